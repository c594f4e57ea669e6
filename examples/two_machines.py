"""Which of two machines is quicker, and at which sizes?

Run it with: python two_machines.py [PICTURE]
"""

import sys

import blinksim as bs

found = bs.compare_machines(["p4d", "p5"], "allreduce", "1MiB:1GiB:x32")
p4d, p5 = found.answers.values()
for one, other in zip(p4d, p5, strict=True):
    print(f"{one.size >> 20:5} MiB: p4d {one.busbw_GBps:5.1f} GB/s busbw, p5 {other.busbw_GBps:5.1f} GB/s")
print(found.sentence())

picture = sys.argv[1] if len(sys.argv) > 1 else "two_machines.png"
bs.plot.save(bs.plot.compare_machines(found), picture, force=True)
print(f"{picture} shows both.")
