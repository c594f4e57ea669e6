"""How long does an allreduce take on eight H100?

Run it with: python allreduce_time.py
"""

import blinksim as bs

answer = bs.project("hgx-h100", "allreduce", "256MiB")
found = answer.to_dict()
low, high, least = (found[key] * 1e3 for key in ("interval_low_s", "interval_high_s", "cannot_take_less_s"))

print(f"An allreduce of 256 MiB takes {answer.time_s * 1e3:.2f} ms with {found['library']}.")
print(f"nccl-tests then prints a busbw of {answer.busbw_GBps:.0f} GB/s.")
print(f"8 runs in 10 take between {low:.2f} and {high:.2f} ms.")
print(f"No schedule along trees takes less than {least:.2f} ms.")
