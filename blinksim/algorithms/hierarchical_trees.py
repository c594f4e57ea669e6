"""Hierarchical collectives for nodes whose GPUs are joined directly, but not each with every other: trees inside them.

What all nodes have for a GPU, or want from it, goes along one tree of each node, in one message for each of its links;
between nodes as `hierarchical_multiplying` (Jia et al., "Highly scalable deep learning training system", 2018,
section 4.2, with the trees of Blink inside nodes: Wang et al., MLSys 2020).

The data of a broadcast leaves the root's node from all GPUs, goes along trees of nodes, and from where it enters one
along trees there. In the root's node it first goes the way out and from there to the rest, at the same time.

On one node there are its trees alone: few steps, and one message on a link in each, for small and middle
sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from blinksim.algorithms import hierarchical
from blinksim.algorithms.building.plan import lanes_between
from blinksim.algorithms.hierarchical_multiplying import radices
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import ON_TREES, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints
from blinksim.graphs.connectivity import grouped
from blinksim.graphs.rooted_trees import Arc, low_trees
from blinksim.schedule.loads import Round, Whole
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    ON_TREES, "trees inside nodes of a mesh, and among few groups in every level between them", sends=per_pair
)
fill = hierarchical.fill

# Trees from the root to each rank of its node: with 1, 2 and 4 a broadcast of 1 GiB on 8 Trn2 UltraServers
# takes 2.42, 2.41 and 2.39 ms, on 8 MI250 5.82, 4.97 and 4.84; 4 take twice the memory of 2. On one node,
# trees from the root in all: with 4, 8 and 16 one of 4 MiB takes 65, 72, 77 us on MI250, 43, 47, 45 on
# Frontier, 36, 37, 36 on Trn2.
_TREES, _TREES_ALONE = 2, 4
# What a hop more is worth to trees from all ranks, and from one. With 0.05, 0.1, 0.17 and 0.25 an allreduce
# of 1 GiB on 8 MI250 takes 8.71, 8.71, 8.78 and 8.61 ms, on 8 Trn2 4.94, 4.94, 4.89 and 4.89, on 8 TPU v5p
# 4.91, 4.90, 4.90 and 4.90; with 0.02, 0.04 and 0.06 a broadcast 4.97, 5.08 and 5.13 on 8 MI250, 3.02, 2.99
# and 2.99 on 8 TPU v5p. One node has others for large sizes: with 0.25, 0.5 and 1 an allreduce of 256 KiB
# takes 19.3, 12.8 and 12.8 us on a DGX-1 V100, 23.6, 23.6 and 23.8 on MI250, of 4 MiB 108, 91 and 86, and
# 79, 82 and 86.
_HOP, _HOP_ALONE, _HOP_OF_ONE = 0.25, 0.5, 0.02
# Ranks of a single node from all of which trees are found in 0.4 s; between nodes nothing else is as quick.
_MOST_ALONE = 64
# Groups of nodes that exchange at a time. With 4, 8 and 16 an allreduce of 64 KiB takes 154, 154 and 111 us
# on 16 TPU v5p, 347, 241 and 241 us on 512; one of 1 GiB 5.76, 5.76 and 6.03 ms, and 6.54, 6.65 and 6.65 ms.
# As between the nodes of `hierarchical_direct` it takes 420 us and 6.80 ms on 512.
_MOST_GROUPS = 16


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises as `fill` does, and for nodes without such links."""
    places = hierarchical.lanes_of(topology, "hierarchical_trees", 1, lacking=not collective.rooted)[None]
    (_, ranks, nodes), there = places.shape, places[0] >= 0
    hop, roots = _HOP if nodes > 1 else _HOP_ALONE, [*range(ranks)]
    if nodes == 1 and collective.rooted:
        hop, roots = _HOP_OF_ONE, np.flatnonzero(places == collective.root).tolist() * _TREES_ALONE
    lanes = lanes_between(topology, places[0, :, there.all(axis=0).argmax()].tolist())
    meshed, large = len(lanes) == ranks * (ranks - 1), nodes == 1 and ranks > _MOST_ALONE
    if meshed or large or not (hops := low_trees(lanes, ranks, roots, hop)).size:
        what = "nodes in which direct links join all GPUs, but not each with every other, one alone of at most 64"
        raise InfeasibleError(f"hierarchical_trees needs {what}; take hierarchical_direct")
    if nodes > 1 and collective.rooted:
        return hierarchical.rooted(places, collective, partial(_by_trees, lanes), _TREES)
    levels = partial(radices, most=_MOST_GROUPS)
    if not there.all():
        return hierarchical.past_gaps(places[0], collective, levels, partial(_inside, topology, places[0]))
    shards = np.arange(len(roots) * nodes).reshape(-1, nodes)
    between = hierarchical.exchanges(places[0], (ranks,), shards, levels(nodes)[::-1]) if nodes > 1 else []
    inside = hierarchical.along(shards, (hops, places[0], 0))
    return hierarchical.there_and_back(inside[::-1] + between, collective)


def _inside(topology: Topology, lanes: Whole, column: Ints, nodes: Ints, chunks: Ints) -> hierarchical.Rounds:
    """As `hierarchical.Passed`, along trees of the ranks that a node has."""
    kinds, trees = grouped((tuple(lanes[:, node] >= 0), node) for node in nodes.tolist()), []
    for there, alike in kinds.items():
        ranks = np.flatnonzero(there)
        links = lanes_between(topology, lanes[ranks, alike[0]].tolist())
        hops = low_trees(links, len(ranks), np.searchsorted(ranks, column).tolist(), _HOP)
        if not hops.size:
            raise InfeasibleError("links join not all GPUs that a node has left; take hierarchical_direct")
        trees.append((hops, lanes[ranks][:, alike], 0))
    return hierarchical.along(chunks, *trees)


def _by_trees(
    lanes: Mapping[Arc, int], places: Whole, root: int, chunks: Ints
) -> tuple[hierarchical.Rounds, hierarchical.Rounds]:
    """Trees in the root's node, first only to the ranks where they leave it, and trees from these in the others."""
    (ranks, each, ports), nodes = chunks.shape, places[0]
    leaves, rows = np.repeat(np.arange(ranks), each), chunks.reshape(-1, ports)
    own = low_trees(lanes, ranks, [root] * len(leaves), _HOP_OF_ONE)
    others = low_trees(lanes, ranks, leaves.tolist(), _HOP)
    # The ranks on the way, and how far others are from it.
    passed = {*enumerate(leaves.tolist())}
    for parent, child, tree, _ in own[::-1].tolist():
        passed |= {(tree, parent)} if (tree, child) in passed else set()
    ahead = np.array([(tree, child) in passed for _, child, tree, _ in own.tolist()])
    rest, far = own[~ahead], dict.fromkeys(passed, -1)
    for hop, (parent, child, tree, _) in zip(rest, rest.tolist(), strict=True):
        hop[3] = far[tree, child] = far[tree, parent] + 1
    before = hierarchical.along(rows, (own[ahead], nodes[:, :1], 0))
    return before, hierarchical.along(rows, (rest, nodes[:, :1], 0), (others, nodes[:, 1:], 0))
