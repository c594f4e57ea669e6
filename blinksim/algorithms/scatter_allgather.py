"""Scatter and allgather: a broadcast for middle sizes, in few messages that carry the data about twice.

The root gives every rank of its node a shard, which goes along trees of nodes, and every node gathers the shards
(Barnett et al., "Interprocessor collective communication library", 1994; Thakur et al., IJHPCA 2005, section 4.2). A
reduce goes the other way: a reduce-scatter and a gather (Rabenseifner, ICCS 2004).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from blinksim.algorithms import hierarchical
from blinksim.algorithms.hierarchical_multiplying import radices
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.graphs.arrays import Ints
from blinksim.graphs.rooted_trees import hops_by_levels
from blinksim.schedule.loads import Exchange, Round, Whole
from blinksim.schedule.model import COPY
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    ("broadcast", "reduce"),
    "shards to the ranks of a node, along trees of nodes, and gathered in every node",
    sends=per_pair,
)


# Nodes that a level of a tree makes of one. A broadcast of 256 KiB, 1 MiB and 4 MiB on 8 HGX H100 takes 31.2, 40.1 and
# 63.8 us with 2, 27.6, 37.2 and 71.1 with 4, 27.0, 40.8 and 97.8 with 8. Along pipelined trees pieces of the first and
# the last steps wait for each other: 16 MiB take 138 us where sums say 112.
_MOST_NODES = 4


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises `InfeasibleError` for nodes with different numbers of ranks."""
    one, tree = np.arange(topology.ranks), hops_by_levels(radices(topology.nodes, most=_MOST_NODES))
    places = hierarchical.places_of(topology, "scatter_allgather") if topology.nodes > 1 else one
    return hierarchical.rooted(places.reshape(1, -1, topology.nodes), collective, _by_shards, tree=tree)


def _by_shards(places: Whole, root: int, chunks: Ints) -> tuple[hierarchical.Rounds, hierarchical.Rounds]:
    """A scatter in the root's node along a binomial tree, and doubling exchanges in all nodes."""
    levels = radices(len(chunks), most=2)
    ranks, shards = np.roll(places[0, :, 0], -root), np.roll(chunks, -root, axis=0)
    before, hops, held = hierarchical.Rounds(), hops_by_levels(levels), [ranks[0] * chunks.size + shards.ravel()]
    for level in range(len(levels)):
        parent, child, *_ = hops[hops[:, 3] == level].T
        span = int(child[0] - parent[0])
        blocks, ends = shards.reshape(-1, span), (ranks[parent], ranks[child])
        before.append(hierarchical.sent(blocks, *ends, child // span))
        held.append((ends[1][:, None] * chunks.size + blocks[child // span]).ravel())
    every = hierarchical.exchanges(places, (1, *levels[::-1]), parts=1)[::-1]
    return before, [partial(_to_others, one, np.concatenate(held), chunks.size) for one in every]


def _to_others(every: Callable[[int], Round], held: Ints, chunks: int, op: int) -> Round:
    """Without what goes to ranks that have passed it on, or for REDUCE from them; held: rank * chunks + chunk."""
    one = every(op)
    ends = one.exchange.ends(0)
    src, dst, chunk = np.broadcast_arrays(*ends, one.chunk(*ends, 0))
    keep = ~np.isin((dst if op == COPY else src) * chunks + chunk, held)
    return replace(one, exchange=Exchange(src[keep], dst[keep]), chunks=1, chunk=lambda *_: chunk[keep])
