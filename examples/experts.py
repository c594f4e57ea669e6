"""How long do tokens take to their experts and back, in a mixture of experts on eight nodes?

Run it with: python experts.py
"""

import blinksim as bs

machine = bs.load("hgx-h100", nodes=8)
for name in ("dispatch", "combine"):
    free = bs.project_experts(machine, name, tokens=512)
    limited = bs.project_experts(machine, name, tokens=512, node_limit=4)
    print(f"{name} of 512 tokens a GPU: {free.time_s * 1e3:.2f} ms with libraries,")
    print(f"  {free.could_s * 1e3:.2f} ms on the links with a copy a node,")
    print(f"  at least {free.floor_s * 1e3:.2f} ms whatever the schedule,")
    print(f"  {limited.time_s * 1e3:.2f} ms with libraries if a token goes to at most four nodes")
