"""What do I load into NCCL to be quicker than its own choice, and what into MSCCL++?

Run it with: python load_into_nccl.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import blinksim as bs

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
whole = bs.load("dgx1-v100")
part = whole.select("0,1,2,3,4,7")
print(bs.advise(part, machine=whole).sentence())

graph = bs.export(bs.synthesize(part, "allreduce", "chains").schedule, "nccl-graph")
bs.write(graph, folder / "graph.xml", force=True)
print("NCCL: graph.xml is written; set")
for name, value in graph.variables("graph.xml").items():
    print(f"  {name}={value}")

plan = bs.export(bs.synthesize("hgx-h100", "allreduce", "ring").schedule, "mscclpp-json")
bs.write(plan, folder / "plan.json", force=True)
print(f"MSCCL++: plan.json is written, {plan.summary}.")
