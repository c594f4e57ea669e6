"""What is the best schedule for six GPUs of a DGX-1, and is it right?

Run it with: python make_a_schedule.py [PICTURE]
"""

import sys

import blinksim as bs

machine = bs.load("dgx1-v100").select("0,1,2,3,4,7")
made = bs.synthesize(machine, "allreduce")
print(f"{made.compact.chunks} trees reach {made.rate_GBps} GB/s, {made.gap} below the bound.")

verdict = bs.verify(made.schedule)
print(f"Every byte followed: the schedule is {'right' if verdict.ok else 'wrong'}.")
ran = bs.execute(made.schedule, "1MiB", dtype="int32")
print(f"Run on random data: {ran.wrong} wrong elements.")

picture = sys.argv[1] if len(sys.argv) > 1 else "make_a_schedule.png"
bs.plot.save(bs.plot.trees(made.schedule), picture, force=True)
print(f"{picture} shows the trees.")
