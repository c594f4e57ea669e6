"""Hierarchical collectives: reduce-scatter inside nodes, rings between nodes, allgather inside nodes.

Only 1/g of the vector of a node with g ranks crosses each of its network ports, in g parallel rings (Aurora
allreduce projection, equation 4; Jia et al., "Highly scalable deep learning training system", 2018, section
4.2). Of cards with several tiles, the tiles exchange first, then tiles of equal number, directly: their
links join every pair of cards (projection, section 3.1, the scale-up terms). A single node may have cards
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from importlib import import_module
from math import prod

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import SHARDED, Algorithm, per_pair
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints, round_robin
from blinksim.graphs.connectivity import grouped
from blinksim.graphs.rooted_trees import depths, trees_over_ports
from blinksim.schedule.loads import Exchange, Round, Whole
from blinksim.schedule.model import COPY, REDUCE
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    SHARDED, "direct inside nodes (or cards), rings between nodes", sends=per_pair, source="Jia et al., 2018"
)


# Messages of a level between nodes, up to which who sends to whom is written down.
_MOST_MESSAGES = 4_000_000
# Trees of a broadcast in the root's node, and between nodes from each of its ranks. 1 GiB on 64 GB300 NVL72 takes 1.85,
# 1.76, 1.73, 1.72 and 1.74 ms with 2, 3, 4, 6 and 8 in the node; on 64 p5 3.20, 3.20, 3.31 and 3.42 ms with 2, 3, 4
# and 6 between nodes, on 64 HGX H100 3.03, 3.02, 2.94 and 2.98.
_MOST_INSIDE, _MOST_BETWEEN = 4, 3


def fill(plan: Plan) -> None:
    """The steps of the algorithm of this plan; the shard of local rank l and node k has number l * nodes + k.

    Raises `InfeasibleError` for a single node, unless it has cards of several tiles, and for nodes or cards
    with different numbers of ranks.
    """
    rounds = import_module(f"blinksim.algorithms.{plan.algorithm}").rounds(plan.topology, plan.collective)
    share = rounds[0].share
    for owner in np.resize(places_of(plan.topology, plan.algorithm), share.denominator).tolist():
        plan.add_chunk(share, *plan.collective.labels(owner, owner))
    plan.add_rounds(rounds)


def rounds(
    topology: Topology,
    collective: Collective,
    name: str = "hierarchical",
    radices: Callable[[int], tuple[int, ...]] | None = None,
    inside: Callable[[int], tuple[int, ...]] = lambda ranks: (ranks,),
) -> tuple[Round, ...]:
    """Exchanges of tiles, of cards, and between the nodes: on rings, or in levels of exchanges. Raises as `fill` does.

    radices: by the number of nodes, how many groups exchange in each level: first single nodes that are
    neighbours, then groups of ever more nodes. inside: the same for the ranks of a node or card.
    """
    places = places_of(topology, name)
    nodes = places.shape[2]
    levels = radices(nodes)[::-1] if radices else ()
    every, found = exchanges(places, (len(places), *inside(places.shape[1])[::-1]), levels), list[Round]()
    every += [] if levels or nodes == 1 else [_rings(places.reshape(-1, nodes))]
    for op in [REDUCE] * collective.reduces + [COPY] * (collective.ends == EVERY):
        steps = [exchange(op) for exchange in every]
        found += steps if op == REDUCE else steps[::-1]
    return tuple(found)


def rooted(places: Whole, collective: Collective, inside: Callable[[int], tuple[int, ...]]) -> tuple[Round, ...]:
    """Of a broadcast, or backwards of a reduce: along trees in the root's node, from all its ranks along trees of
    nodes, and exchanges in these. inside: as in `rounds`.
    """
    places = np.roll(places, -int(np.argwhere(places == collective.root)[0, 2]), axis=2)
    lanes = places.reshape(-1, places.shape[2])
    first = np.roll(lanes[:, :1], -int(np.flatnonzero(lanes[:, 0] == collective.root)[0]), axis=0)
    parts = _ports(_MOST_BETWEEN, lanes.shape[1])
    chunks = np.arange(len(lanes) * parts)
    ports = _ports(_MOST_INSIDE, len(lanes), chunks.size)
    found = _along(first, chunks.reshape(1, ports, -1)) + _along(lanes.T, chunks.reshape(-1, parts, 1))
    if lanes.shape[1] > 1:
        own = len(places), *inside(places.shape[1])[::-1]
        found += exchanges(places[:, :, 1:], own, parts=parts)[::-1]
    return tuple(of(REDUCE) for of in found[::-1]) if collective.reduces else tuple(of(COPY) for of in found)


def _ports(most: int, vertices: int, chunks: int = 0) -> int:
    """The largest number of `trees_over_ports`, at most so many, that share the chunks evenly."""
    return max(many for many in range(1, most + 1) if many * (many - 1) < max(1, vertices - 1) and not chunks % many)


def _along(ranks: Whole, chunks: Ints) -> list[Callable[[int], Round]]:
    """What goes along trees over several ports, level by level, for COPY in this order.

    ranks (vertices, lanes): in every lane such trees from the first. chunks (lanes, trees, C): what each carries.
    """
    levels = list[tuple[int, tuple[int, int, int]]]()
    for tree, arcs in enumerate(trees_over_ports(chunks.shape[1], len(ranks))):
        depth = depths(0, [arc[:2] for arc in arcs])
        levels += [(depth[a], (a, b, tree)) for a, b, _ in arcs]
    hops = (np.array(level).T for _, level in sorted(grouped(levels).items()))
    return [_sent(ranks[a], ranks[b], chunks[:, tree].swapaxes(0, 1), chunks.size) for a, b, tree in hops]


def _sent(src: Whole, dst: Whole, chunk: Ints, many: int) -> Callable[[int], Round]:
    """These ranks to those, for COPY, or back: of so many chunks the ones in the last axis in a message each."""
    ends, each = (src.reshape(-1, 1), dst.reshape(-1, 1)), chunk.reshape(-1, chunk.shape[-1])
    to = {COPY: Exchange(*ends), REDUCE: Exchange(*ends[::-1])}
    return lambda op: Round(to[op], Fraction(1, many), op, chunks=each.shape[1], chunk=lambda *_: each)


def exchanges(
    places: Whole, own: tuple[int, ...], levels: tuple[int, ...] = (), parts: int = 0
) -> list[Callable[[int], Round]]:
    """The exchanges inside nodes, of ranks in `own` levels, and between them in `levels`: for REDUCE in this order.

    parts: how many chunks each rank of a node has, the same in all nodes; 0: one that no other rank has.
    Raises `InfeasibleError` for very many messages.
    """
    if (messages := places.size * (max(levels, default=1) - 1)) > _MOST_MESSAGES:
        what = f"{messages:,} messages at once between nodes, more than {_MOST_MESSAGES:,}"
        raise InfeasibleError(f"such levels send {what}; take hierarchical, which has rings")
    every, inner = places.reshape(*own, *(levels or (-1,))), len(own)
    order = *range(inner - 1, 0, -1), 0, *range(every.ndim - 1, inner - 1, -1)[: len(levels)]
    axes = [axis for axis in order if every.shape[axis] > 1]
    shape = (*own, parts) if parts else every.shape
    number = np.arange(prod(shape)).reshape(shape)
    return [_exchange(every, axis, axes[:place], number) for place, axis in enumerate(axes)]


def places_of(topology: Topology, name: str) -> Whole:
    """The ranks by card, place there, and node; a node without cards of equally many tiles is one card."""
    nodes, places = nodes_of(topology, topology.members), topology.member_places.tolist()
    by_card: dict[tuple[int, str], list[int]] = {}
    for node, group in enumerate(nodes):
        for device, rank in ((topology.devices[places[rank]], rank) for rank in group):
            # Cards are what the names of tiles begin with (card0.t1).
            card = device.name.rpartition(".")[0] if device.kind == "tile" else ""
            by_card.setdefault((node, card), []).append(rank)
    cards = [*by_card.values()]
    groups = nodes if len(nodes) > 1 else cards
    if len(groups) < 2 or len({*map(len, groups)}) > 1:
        what = "nodes" if len(nodes) > 1 or (0, "") in by_card else "cards"
        sizes = f"these have {' '.join(str(len(group)) for group in groups)}" if groups[1:] else "here is one"
        needs = f"{name} needs two or more {what} with the same number of ranks each; {sizes}"
        raise InfeasibleError(f"{needs}; take algorithm=ring, or change nodes= and members=")
    even = cards if len({*map(len, cards)}) == 1 else nodes
    return np.array(even, dtype=np.int32).reshape(len(nodes), -1, len(even[0])).transpose(1, 2, 0)


def _exchange(places: Whole, axis: int, before: Sequence[int], number: Ints) -> Callable[[int], Round]:
    """What ranks do that differ in their place along one axis alone, for REDUCE or for COPY: all send to all.

    Chunks are those of the receiver (REDUCE) or sender (COPY), and of all that differ from it in other axes
    than those `before`, over which chunks have been reduced already, or will be copied. number: of the chunks.
    """
    pairs = round_robin(places.shape[axis])
    exchange = Exchange(*(np.moveaxis(places, axis, 0)[end].ravel() for end in pairs))
    free = [one != axis and one not in before for one in range(places.ndim)]
    lowest = np.broadcast_to(number[tuple(slice(0, 1) if one else slice(None) for one in free)], places.shape)
    more = number[tuple(slice(None) if one else slice(0, 1) for one in free)].reshape(-1, 1)
    lowest = np.moveaxis(lowest, axis, 0)

    def of(op: int) -> Round:
        share, side = Fraction(1, number.size), pairs[op == REDUCE]
        return Round(exchange, share, op, chunks=len(more), chunk=lambda *_: lowest[side].ravel() + more)

    return of


def _rings(places: Whole) -> Callable[[int], Round]:
    """A ring over the nodes for every local rank: chunk k ends its reduction, or starts its route, at node k."""
    nodes = places.shape[1]
    l, node = np.divmod(np.arange(places.size), nodes)  # noqa: E741
    exchange, share = Exchange(places.ravel(), np.roll(places, -1, axis=1).ravel()), Fraction(1, places.size)

    def chunk(op: int, src: Whole, dst: Whole, step: int) -> Ints:
        return np.asarray(l * nodes + (node - step - (op == REDUCE)) % nodes)

    return lambda op: Round(exchange, share, op, nodes - 1, chunk=partial(chunk, op), channel=l)
