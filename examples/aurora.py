"""What do 16 nodes of Aurora take for an allreduce, what was projected, and where would its time go?

Run it with: python aurora.py
"""

import blinksim as bs

part = bs.Question("aurora", nodes=16, ranks_per_node=12).part()
projected = bs.project(part, "allreduce", "2GB", model="aurora-projection")
rows = bs.measured("aurora").rows()
takes = next(row["measured_ms"] for row in rows if (row["nodes"], row["ranks_per_node"]) == (16, 12))

print(f"2 GB on {part.ranks} ranks were measured to take {takes} ms.")
print(f"The published projection says {projected.time_s * 1e3:.1f} ms:")
for term in projected.terms:
    print(f"  {term.name}: {term.time_s * 1e3:.2f} ms on {term.limit}")

axes = ["nodes=16", "ranks-per-node=12", "xe bandwidth=53GB/s"]
(faster,) = bs.sweep("aurora", "allreduce", "2GB", axes, model="aurora-projection").rows()
print(f"With Xe links of 53 in place of 15 GB/s it would say {faster['time_s'] * 1e3:.1f} ms.")
