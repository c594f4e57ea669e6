"""When is which link busy while a schedule runs?

Run it with: python simulate_timeline.py [PICTURE]
"""

import sys

import blinksim as bs

machine = bs.load("dgx1-v100").select("0-3")
run = bs.simulate(bs.synthesize(machine, "allreduce", "double_binary").schedule, "16MiB", pieces=4)
busiest = max(run.uses, key=lambda use: use.busy)
idle = min(run.uses, key=lambda use: use.busy)

print(f"16 MiB take {run.time_s * 1e6:.1f} us; with these loads at least {run.bound_s * 1e6:.1f} us.")
print(f"{busiest.resource} is busy for {busiest.busy:.0%} of the time, {idle.resource} for {idle.busy:.0%}.")

picture = sys.argv[1] if len(sys.argv) > 1 else "simulate_timeline.png"
bs.plot.save(bs.plot.gantt(run), picture, force=True)
print(f"{picture} shows every link over time.")
