"""Hierarchical collectives for nodes whose GPUs are joined directly, but not each with every other: trees inside them.

What all nodes have for a GPU, or want from it, goes along one tree of each node, in one message for each of its links;
between nodes as `hierarchical_direct` (Jia et al., "Highly scalable deep learning training system", 2018, section 4.2,
with the trees of Blink inside nodes: Wang et al., MLSys 2020).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms import hierarchical
from blinksim.algorithms.building.plan import lanes_between
from blinksim.algorithms.hierarchical_direct import radices
from blinksim.algorithms.registry import SHARDED, Algorithm, per_pair
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints
from blinksim.schedule.loads import Exchange, Round
from blinksim.schedule.model import COPY, REDUCE
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    SHARDED,
    "trees inside nodes of a mesh, straight and by halving and doubling between them",
    sends=per_pair,
    source="Jia et al., 2018; Wang et al. (Blink), 2020",
)
fill = hierarchical.fill

# Times that every tree is grown again around the others. The busiest link of a torus of 4 x 4 carries 5 of 3.75 trees
# after the first time and 4 after the fifth; a hop more is worth a quarter of a message on a link.
_TIMES, _HOP = 5, 0.25


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises as `fill` does, and for nodes without such links."""
    places = hierarchical.places_of(topology, "hierarchical_trees").reshape(-1, topology.nodes)
    ranks, nodes = places.shape
    hops, found = low_trees(topology, places[:, 0].tolist()) if nodes > 1 else np.zeros((0, 4)), list[Round]()
    if not hops[:, 3].any():
        what = "nodes in which direct links join all GPUs, but not each with every other"
        raise InfeasibleError(f"hierarchical_trees needs {what}; take hierarchical_direct")
    between = hierarchical.exchanges(places, (ranks,), radices(nodes)[::-1])[1:]

    def inside(op: int, level: int) -> Round:
        tail, head, root, _ = hops[hops[:, 3] == level].T
        ends = [places[end].reshape(-1, 1) for end in ((head, tail) if op == REDUCE else (tail, head))]
        own, each = np.repeat(root * nodes, nodes)[:, None], np.arange(nodes)
        # Of thousands of nodes all chunks take gigabytes, and only what is written out has them.
        return Round(Exchange(*ends), Fraction(1, places.size), op, chunks=nodes, chunk=lambda *_: own + each)

    levels = range(int(hops[:, 3].max()) + 1)
    if collective.reduces:
        found += [inside(REDUCE, level) for level in levels[::-1]] + [exchange(REDUCE) for exchange in between]
    if collective.ends == EVERY:
        found += [exchange(COPY) for exchange in between[::-1]] + [inside(COPY, level) for level in levels]
    return tuple(found)


def low_trees(topology: Topology, group: list[int]) -> Ints:
    """(hops, 4): parent, child, root and the parent's depth of the hops of one tree from each rank of a node.

    All by place in `group`. Every tree takes the links that others use least, and is low. No rows where no direct links
    join all ranks.
    """
    lanes = lanes_between(topology, group)
    tail, head = np.array([*lanes], dtype=np.int64).reshape(-1, 2).T
    width, load = np.array([*lanes.values()]), np.zeros(len(lanes))
    trees = dict[int, tuple[list[int], Ints]]()
    for root in [*range(len(group))] * _TIMES:
        load[trees[root][0] if root in trees else []] -= 1
        depth, links = np.full(len(group), -1), list[int]()
        depth[root] = 0
        while len(near := np.flatnonzero((depth[tail] >= 0) & (depth[head] < 0))):
            link = near[np.argmin((load[near] + 1) / width[near] + _HOP * depth[tail[near]])]
            depth[head[link]] = depth[tail[link]] + 1
            links.append(link)
        if (depth < 0).any():
            return np.zeros((0, 4), dtype=np.int64)
        load[links] += 1
        trees[root] = links, depth[tail[links]]
    hops = [(tail[links], head[links], np.full(len(links), root), depth) for root, (links, depth) in trees.items()]
    return np.concatenate(hops, axis=1).T
