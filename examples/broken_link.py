"""What does a broken NVLink cost, and which one costs most?

Run it with: python broken_link.py [PICTURE]
"""

import sys

import blinksim as bs

whole = bs.load("dgx1-v100").select()
worst, *_, mildest = bs.losses(whole, "allreduce")
for change in (worst, mildest):
    print(f"{change.what}: {float(change.before) / 1e9:.1f} become {float(change.after) / 1e9:.1f} GB/s.")

broken = bs.load("dgx1-v100", edits="without gpu0-gpu3").select()
for name in ("ring", "packed"):
    before, after = (bs.project(machine, "allreduce", "256MiB", name).time_s for machine in (whole, broken))
    print(f"Without gpu0-gpu3 the schedule {name} takes {after / before - 1:.0%} longer.")

picture = sys.argv[1] if len(sys.argv) > 1 else "broken_link.png"
bs.plot.save(bs.plot.topology(broken, before=whole), picture, force=True)
print(f"{picture} shows the machine with the broken link in red.")
