"""Is my busbw normal: 380 GB/s for 8 GiB on eight p5 instances, or 200 GB/s?

Run it with: python normal_busbw.py
"""

import blinksim as bs

machine = bs.load("p5", nodes=8)
for busbw in (380, 200):
    found = bs.diagnose(None, machine, size="8GiB", busbw=busbw)
    says = {0: "normal", 1: "not normal", 5: "neither clearly normal nor clearly not"}[found.status()]
    print(f"{busbw} GB/s is {says}:")
    print(f"  {found.sentence()}")
