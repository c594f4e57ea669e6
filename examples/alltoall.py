"""How fast is an alltoall if the network is oversubscribed, and if some ranks get more than others?

Run it with: python alltoall.py
"""

import blinksim as bs

sixteen = bs.load("hgx-h100", nodes=16)
tree = bs.load("hgx-h100", nodes=16, edits="fabric shape=tree leaf_nodes=4 oversubscription=2")
for what, machine in (("all adapters at full rate", sixteen), ("2:1 above every four nodes", tree)):
    rate = bs.bound(machine, "alltoall").rate_GBps
    print(f"{what}: at most {rate:.1f} GB/s for each GPU")

pair = bs.load("hgx-h100", nodes=2)
for skew in (0.0, 0.8):
    traffic = bs.expert_traffic(16, skew=skew)
    least = bs.bound(pair, bs.Collective("alltoallv", traffic=traffic)).time(traffic.size)
    print(f"skew {skew}: {traffic.size >> 20} MiB in the largest buffer, at least {least * 1e3:.2f} ms")
