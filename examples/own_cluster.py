"""How fast is a cluster of my own nodes, joined by my own network?

Run it with: python own_cluster.py
"""

import tempfile
from pathlib import Path

import blinksim as bs

NODE = """
name: my-node
devices:
  - {name: "gpu[0-3]", kind: gpu}
  - {name: "nic[0-3]", kind: nic}
link_classes:
  nvlink: {bandwidth: 100GB/s, latency: 0.6us, overhead: 1.3us, source: data sheet}
  pcie: {bandwidth: 50GB/s, latency: 1us, overhead: 0us, source: data sheet}
  roce: {bandwidth: 400Gb/s, latency: 2us, overhead: 1us, source: data sheet}
links:
  - {between: [gpu0, "gpu[1-3]"], class: nvlink}
  - {between: [gpu1, "gpu[2-3]"], class: nvlink}
  - {between: [gpu2, gpu3], class: nvlink}
  - {between: ["gpu[0-3]", "nic[0-3]"], class: pcie}
collective_links: [nvlink]
inter_node_links: [pcie, roce]
fabric: {shape: switch, ports: ["nic[0-3]"], class: roce}
"""

path = Path(tempfile.mkdtemp()) / "my-node.yaml"
path.write_text(NODE)
for nodes in (1, 2, 4, 8):
    cluster = bs.load(path, nodes=nodes)
    rates = [bs.bound(cluster, name).rate_GBps for name in ("allreduce", "alltoall")]
    print(f"{cluster.ranks:2} GPUs: allreduce at most {rates[0]:5.1f} GB/s, alltoall {rates[1]:5.1f} GB/s")
