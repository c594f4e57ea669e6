"""Which four GPUs of a DGX-1 should I ask the scheduler for?

Run it with: python which_gpus.py
"""

import blinksim as bs

found = bs.place("dgx1-v100", 4)
best = found[0]
poor = [choice for choice in found if choice.connected][-1]

print(f"Ask for {', '.join(best.members)}: up to {best.rate_GBps:.0f} GB/s for an allreduce.")
print(f"The poorest four that NVLink joins are {', '.join(poor.members)}, with {poor.rate_GBps:.0f} GB/s.")
parted = sum(not choice.connected for choice in found)
print(f"{parted} of {len(found)} choices fall into two parts that NVLink does not join.")
