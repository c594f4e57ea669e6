"""What would one more network adapter in every node bring, and what does a lost one cost?

Run it with: python one_more_nic.py
"""

import blinksim as bs

pair = bs.load("hgx-h100", nodes=2)
more = next(change for change in bs.gains(pair, "alltoall") if "NIC" in change.what)
before, after = float(more.before) / 1e9, float(more.after) / 1e9
print(f"Alltoall, {more.what}: the best rate grows from {before:.1f} to {after:.1f} GB/s.")

damaged = bs.load("hgx-h100", nodes=2, edits="without n1.nic0")
now, then = (bs.project(machine, "allreduce", "1GiB", "nccl") for machine in (pair, damaged))
print(f"An allreduce of 1 GiB takes {now.time_s * 1e3:.2f} ms by NCCL's own model.")
print(f"If one node loses an adapter, it takes {then.time_s * 1e3:.2f} ms: the slowest node decides.")
