"""How does the time of an allreduce grow with the number of nodes?

Run it with: python more_nodes.py [PICTURE]
"""

import sys

import blinksim as bs

found = bs.sweep("p4d", "allreduce", "1GiB", {"nodes": [1, 2, 4, 8]})
for row in found.rows():
    low, high = row["interval_low_s"] * 1e3, row["interval_high_s"] * 1e3
    print(f"{row['ranks']:3} GPUs: {row['time_s'] * 1e3:.2f} ms, 8 runs in 10 from {low:.2f} to {high:.2f} ms")

picture = sys.argv[1] if len(sys.argv) > 1 else "more_nodes.png"
bs.plot.save(bs.plot.sweep(found, "time"), picture, force=True)
print(f"{picture} shows the times.")
