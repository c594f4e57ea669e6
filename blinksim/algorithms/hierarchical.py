"""Hierarchical collectives: reduce-scatter inside nodes, rings between nodes, allgather inside nodes.

Only 1/g of the vector of a node with g ranks crosses each of its network ports, in g parallel rings (Aurora
allreduce projection, equation 4; Jia et al., "Highly scalable deep learning training system", 2018, section
4.2). Of cards with several tiles, the tiles exchange first, then tiles of equal number, directly: their
links join every pair of cards (projection, section 3.1, the scale-up terms). A single node may have cards
alone. Where ports are slow or lost, or GPUs, shards are those of the ports that are left, or, in an allreduce, such
nodes hand their data to the others, as ranks beyond a power of two do in recursive doubling (Thakur et al., IJHPCA
2005), and by all their ports as evenly as these allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib import import_module
from math import gcd

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.bounds.groups import private, whole_widths
from blinksim.collective import EVERY, SHARDED, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Floats, Ints, distinct, round_robin
from blinksim.graphs.rooted_trees import hops_over_ports
from blinksim.schedule.loads import Exchange, Round, Whole
from blinksim.schedule.model import COPY, REDUCE
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

ENTRY = Algorithm(SHARDED, "direct inside nodes (or cards), rings between nodes", sends=per_pair)


# For COPY or REDUCE, what goes in rounds one after another; and from places, the root's place in its node and chunks to
# what goes there before and after the trees of nodes.
Rounds = list[Callable[[int], Round]]
Inside = Callable[[Whole, int, Ints], tuple[Rounds, Rounds]]
# From ranks of these places in nodes, in each of the nodes to all others there, a row of the chunks.
Passed = Callable[[Ints, Ints, Ints], Rounds]
# By a number of nodes or ranks, how many groups exchange in each level.
Levels = Callable[[int], tuple[int, ...]]
# The same by ranks of a node.
Inner = Callable[[Whole], tuple[int, ...]]

_NONE_IN_ALL = "nodes lack other GPUs each, and no GPU is in all of them; take packed"
# Messages of a step, up to which who sends to whom is written down.
_MOST_MESSAGES = 4_000_000
# Trees of a broadcast between nodes from each rank of the root's. 1 GiB on 64 p5 takes 3.20, 3.20, 3.31 and 3.42 ms
# with 2, 3, 4 and 6, on 64 HGX H100 3.03, 3.02, 2.94 and 2.98.
_MOST_BETWEEN = 3
# How many chunks the shards that a rank hands over are cut into, about. With shards in 1, 2, 4 and 7 parts, allreduces
# of 64 MiB and 1 GiB take 482, 474, 472, 473 us and 5.57, 5.44, 5.35, 5.31 ms on 8 HGX H100 of which one lost a NIC,
# 684, 711, 760, 833 us and 5.82, 5.81, 5.81, 5.94 ms on 64. Without rails 1 GiB takes 5.52, 4.65, 4.58, 4.58 ms on 2 p5
# and 4.90, 4.98, 4.98, 4.97 on 4.
_UNITS, _UNITS_WITHOUT_RAILS = 50, 2
# How many slots the ports of a rank are counted as, and how many times shorter steps over them must be. 1 GiB
# on 64 p5 without an EFA each takes 6.62, 6.28, 6.09, 6.09 ms with 1, 2, 4 and 8 slots. On 64 HGX H100 with a
# port of 45, 47, 48 of 50 GB/s an allgather of 1 GiB takes 3.01, 2.88, 2.84 ms without slots, 2.83 with them,
# of 64 MiB 238 and 250 us.
# An allreduce straight to other nodes, where every rank keeps a port, takes 0.49 to 0.86, 0.59 to 0.97, 0.87
# to 1.01 and 0.95 to 1.05 times as long for 1 MiB, 64 MiB, 1 GiB and 16 GiB over slots that are estimated to
# take up to 1.08 times as long as handing over, on 4 to 64 p5 and p5en without an EFA or two and on HGX H100
# with half a port.
_MOST_SLOTS, _LEAST_GAIN, _AS_GOOD = 4, 1.03, 1 / 1.08


def fill(plan: Plan) -> None:
    """The steps of the algorithm of this plan; shards are numbered by local rank and node, and then by their parts.

    Raises `InfeasibleError` for a single node, unless it has cards of equally many tiles, and for nodes of which
    each lacks another GPU, unless the collective is an allreduce.
    """
    rounds = import_module(f"blinksim.algorithms.{plan.algorithm}").rounds(plan.topology, plan.collective)
    share = rounds[0].share
    places, chunks = places_of(plan.topology, plan.algorithm, 1, lacking=True).ravel(), share.denominator
    places = places[places >= 0]
    for owner in places[np.arange(chunks) * len(places) // chunks].tolist():
        plan.add_chunk(share, *plan.collective.labels(owner, owner))
    plan.add_rounds(rounds)


def rounds(
    topology: Topology,
    collective: Collective,
    name: str = "hierarchical",
    radices: Levels | None = None,
    inside: Inner = lambda ranks: (len(ranks),),
    *,
    evenly: bool = True,
) -> tuple[Round, ...]:
    """Exchanges of tiles, of cards, and between the nodes: on rings, or in levels of exchanges. Raises as `fill` does.

    radices: by the number of nodes, how many groups exchange in each level: first single nodes that are
    neighbours, then groups of ever more nodes. inside: the same for the ranks of a node or card. evenly: ports carry
    what they have room for, for another step and more messages.
    """
    # A reduce-scatter ends, and an allgather begins, with a shard at every rank.
    sharded = collective.name != "allreduce"
    places = places_of(topology, name, lacking=True)
    own = len(places), *inside(places[0, :, 0])[::-1]
    if sharded and places.min() < 0:
        return past_gaps(places.reshape(-1, places.shape[2]), collective, radices)
    others, chunks, within, settled = _shared_out(topology, places, own, sharded, evenly, bool(radices))
    return there_and_back([*within, *_between(others, chunks, radices), *settled * sharded], collective)


def _shared_out(
    topology: Topology, places: Whole, own: tuple[int, ...], sharded: bool, evenly: bool, straight: bool
) -> tuple[Whole, Ints, Rounds, Rounds]:
    """The ranks (R, nodes) that exchange between nodes, the chunks of each, and what comes before and after it.

    Where ports are alike, all ranks exchange. Else ranks with slow ports, or that a node lacks, have fewer of
    the chunks of their node, or, if that takes less time and no rank keeps a shard, nodes with slow ports hand
    all of theirs to the other nodes: k of n pass their data once, and each of the others 2 (n - k - 1) + k of
    n - k parts of it. evenly: as `rounds`.
    straight: they send straight to other nodes.
    """
    lanes, nodes = places.reshape(-1, places.shape[2]), places.shape[2]
    width, least, inside, rails = _ports(topology, lanes)
    even, lacking = width.mean(axis=0) if evenly else least, lanes.min() < 0
    order, k = np.argsort(least, kind="stable"), np.arange(1 if sharded else nodes)
    took = np.maximum((2 * (nodes - k - 1) + k) / (nodes - k) / least[order[k]], (k > 0) / even.min())
    passed = 2 * (len(lanes) - 1) / inside
    if evenly or lacking:
        takes, slots = _slots(width, passed)
        kept = took.argmin() and slots.min() and np.ptp(slots, axis=0).any()
        if lacking or (_AS_GOOD if straight and kept else _LEAST_GAIN) * takes < max(took.min(), passed):
            return _over_ranks(lanes, np.broadcast_to(slots, lanes.shape))
    some, rest = map(np.sort, np.split(order, [took.argmin()]))
    if some.size:
        moves = least.min() < even.min() and least.min() * took.min() <= 1
        part = (width / even)[:, some].T if moves else np.ones((len(some), len(lanes)))
        # On rails every part of a shard takes another one.
        parts = 1 + (_UNITS if rails else _UNITS_WITHOUT_RAILS) // len(rest)
        lanes, chunks, handed = _over_nodes(lanes, some, rest, part, parts)
    else:
        chunks, handed = np.arange(lanes.size).reshape(*lanes.shape, 1), Rounds()
    within = exchanges(places, own, np.arange(chunks.size).reshape(len(lanes), 1, -1))
    return lanes, chunks, [*within, *handed], Rounds()


def _ports(topology: Topology, lanes: Whole) -> tuple[Floats, Floats, float, bool]:
    """Bytes/s of the ports of each rank alone, of every node the least for a rank, and of links inside; if on rails."""
    (src, dst), node = topology.ends, topology.device_nodes
    owner, (widths, _), kinds = private(topology).label[src], whole_widths(topology), topology.link_columns
    out = (node[src] != node[dst]) & (owner < topology.ranks)
    width = np.append(np.bincount(owner[out], widths[out].astype(np.float64), topology.ranks), 0.0)[lanes]
    # Of a node whose ports are all shared, any rank may have half of one.
    width = np.where(lanes < 0, 0.0, np.where(width.any(axis=0), width, width.max() / 2 or 1.0))
    sorts, first, which = np.unique(width, axis=1, return_index=True, return_inverse=True)
    # A rank without a port of its own takes another's, of which each then has a part.
    users = np.ones(sorts.shape)
    for lane, sort in np.argwhere((sorts == 0) & (lanes[:, first] >= 0) & (lanes[:, first - 1] >= 0)).tolist():
        here, there = topology.member_places[lanes[lane, [first[sort], first[sort] - 1]]].tolist()
        via = [owner[link] for link in topology.router.route(here, there) if out[link]]
        users[np.isin(lanes[:, first[sort]], via), sort] += 1
    least: Floats = np.where(sorts > 0, sorts / users, np.inf).min(axis=0)[which.ravel()]
    by_kind = np.zeros((len(topology.devices), len(kinds.classes)))
    np.add.at(by_kind, (src, kinds.kind), widths.astype(np.float64))
    inside = by_kind[topology.member_places].max(axis=1).min()
    return width, least, float(inside), len(distinct(dst[out])) > 1


def _slots(width: Floats, passed: float) -> tuple[float, Ints]:
    """Seconds for a byte of a shard, and the best number of equal slots of the ports of each rank (ranks, nodes or 1).

    width (ranks, nodes): bytes/s of these ports. passed: seconds that a rank takes inside its node for a slot.
    """
    (ranks, nodes), found = width.shape, list[tuple[float, Ints]]()
    units = np.unique(width[width > 0] / np.c_[1 : _MOST_SLOTS + 1])[::-1]
    every = np.minimum(width / units[:, None, None] + 1e-9, _MOST_SLOTS).astype(np.int64)
    # Those that all nodes can have at the same ranks take fewer messages.
    for slots in (every.min(axis=2, keepdims=True), every):
        each = ranks / np.maximum(slots.sum(axis=1).min(axis=1), 1e-9)
        takes = each * np.maximum(2 * (nodes - 1) / nodes / units, passed * slots.max(axis=(1, 2)))
        found.append((float(takes.min()), slots[takes.argmin()]))
    return found[int(_LEAST_GAIN * found[1][0] < found[0][0])]


def _over_ranks(lanes: Whole, slots: Ints) -> tuple[Whole, Ints, Rounds, Rounds]:
    """As `_shared_out`, where each rank of a node exchanges, and has the chunks, for so many slots (ranks, nodes)."""
    (ranks, nodes), total = lanes.shape, int(slots.sum(axis=0).min())
    factor = gcd(ranks, total)
    parts, room = total // factor, slots * (ranks // factor)
    # Of each part of a shard who has it in every node: its own rank, or one with room for more.
    owner, part = np.divmod(np.arange(ranks * parts), parts)
    holder, over = owner[:, None].repeat(nodes, axis=1), part[:, None] >= room[owner]
    for node in np.flatnonzero(over.any(axis=0)).tolist():
        more = np.arange(ranks).repeat(np.maximum(room[:, node] - parts, 0))
        holder[over[:, node], node] = more[: over[:, node].sum()]
    _, which, many = np.unique(holder, axis=0, return_inverse=True, return_counts=True)
    order, each = np.argsort(which.ravel(), kind="stable"), gcd(*many.tolist())
    number = np.arange(lanes.size * parts).reshape(ranks, nodes, parts).swapaxes(1, 2).reshape(-1, nodes)
    held, column, every = number[order].reshape(-1, each * nodes), holder[order[::each]], np.arange(nodes)
    check_messages(column.size * (ranks - 1))
    within = _inside(lanes, column, every, held)
    # A rank gives shards of its own to those that pass them on.
    unit, where = np.nonzero(over)
    ends = lanes[owner[unit], where], lanes[holder[unit, where], where]
    settled = sent(np.arange(number.size)[:, None], *ends, number[unit, where], whole=True)
    return lanes[column, every], held.reshape(-1, each, nodes).swapaxes(1, 2), within, [settled]


def past_gaps(
    lanes: Whole, collective: Collective, radices: Levels | None, inside: Passed | None = None
) -> tuple[Round, ...]:
    """The rounds where nodes lack ranks: shards of such a rank go between the nodes that have it, as those of others.

    From there the ranks that all nodes have bring a part each to the nodes without it. inside: by which messages they
    go on there, for COPY: by default straight. Raises `InfeasibleError` where each node lacks another rank.

    An allreduce, whose chunks need no rank of their own, takes fewer steps by `_over_ranks`: of 64 MiB on 8 HGX H100
    of which one lost a GPU it would take 1.2 times as long like this, on 64 1.5 times.
    """
    there = lanes >= 0
    some, odd = np.flatnonzero(there.all(axis=1)), np.flatnonzero(~there.all(axis=1)).tolist()
    parts, goes = len(some), inside or partial(_inside, lanes)
    if not parts:
        raise InfeasibleError(_NONE_IN_ALL)
    first = (np.cumsum(there) - 1).reshape(*lanes.shape, 1) * parts
    number, found = first + np.arange(parts), Rounds()
    check_messages(lanes.size * len(lanes))
    for rank in odd:
        have, lack = np.flatnonzero(there[rank]), np.flatnonzero(~there[rank])
        own = number[rank, have]
        found += goes(some, lack, own.T)[::-1]
        ends = lanes[some][:, have, None], lanes[some][:, None, lack]
        src, dst, row = np.broadcast_arrays(*ends, np.arange(own.size).reshape(parts, -1, 1))
        found.append(sent(own.T.reshape(-1, 1), src.ravel(), dst.ravel(), row.ravel()))
        found += goes(np.array([rank]), have, own.reshape(1, -1))[::-1]
        found += _between(lanes[rank : rank + 1, have], number[rank : rank + 1, have], radices)
    found += goes(some, np.arange(lanes.shape[1]), number[some].reshape(parts, -1))[::-1]
    found += _between(lanes[some], number[some], radices)
    share = Fraction(1, parts * int(there.sum()))
    return tuple(replace(one, share=share) for one in there_and_back(found, collective))


def _between(lanes: Whole, chunks: Ints, radices: Levels | None) -> Rounds:
    """The rounds between nodes of ranks (R, nodes) with these chunks (R, nodes, parts), for REDUCE in this order."""
    levels = radices(lanes.shape[1])[::-1] if radices else ()
    rings = [_rings(lanes, chunks)] if lanes.shape[1] > 1 else []
    return exchanges(lanes, (len(lanes),), chunks, levels) if levels else rings


def _inside(lanes: Whole, column: Ints, nodes: Ints, chunks: Ints) -> Rounds:
    """From ranks (rows, and nodes) by their place in nodes, a row of the chunks each, to all others there."""
    column = column.reshape(len(column), -1)
    to = lanes[(column + np.arange(1, len(lanes))[:, None, None]) % len(lanes), nodes]
    src, row = np.broadcast_arrays(lanes[column, nodes], np.arange(len(column))[:, None], to)[:2]
    return [sent(chunks, src[to >= 0], to[to >= 0], row[to >= 0])]


def _over_nodes(lanes: Whole, some: Ints, rest: Ints, part: Floats, most: int) -> tuple[Whole, Ints, Rounds]:
    """As `_shared_out`, where the rest of the nodes exchanges and sums what some hand over.

    part (nodes, ranks): of what a rank of these has, how much leaves by its ports. most: parts of a shard.
    """
    parts = max(1, min(int((part > 1).sum(axis=1).max()), most))
    each = parts * len(rest)
    number = np.arange(len(lanes) * each).reshape(len(lanes), len(rest), parts)
    unit = number.swapaxes(1, 2).reshape(-1, each)
    room = np.diff(np.rint(part.cumsum(axis=1) * each), prepend=0).astype(np.int64)
    over = np.arange(each) >= room[..., None]
    first, last, unit = np.broadcast_arrays(lanes.T[some][..., None], np.tile(lanes[:, rest], parts), unit)
    held, chunks = first.copy(), np.arange(number.size)[:, None]
    held[over] = lanes.T[some].repeat(np.maximum(room - each, 0).ravel())
    moved = [sent(chunks, held[over], first[over], unit[over], whole=True)] if over.any() else []
    return lanes[:, rest], number, [*moved, sent(chunks, last.ravel(), held.ravel(), unit.ravel())]


def there_and_back(every: Rounds, collective: Collective) -> tuple[Round, ...]:
    """The rounds of a collective, from those for REDUCE in this order."""
    ways = [(REDUCE, every)] * collective.reduces + [(COPY, every[::-1])] * (collective.ends == EVERY)
    return tuple(of(op) for op, rounds in ways for of in rounds)


def rooted(
    places: Whole, collective: Collective, inside: Inside, trees: int = 1, tree: Ints | None = None
) -> tuple[Round, ...]:
    """Of a broadcast, or backwards of a reduce: in the root's node, along trees of nodes from all its ranks, in nodes.

    inside: by the places, with the root's node first, the root's number in it, and the chunks (rank of a node, tree
    there, tree of nodes), what comes before the trees of nodes and what after them. trees: to each rank of its node.
    tree: the hops of a tree of nodes, in place of several.
    """
    places = np.roll(places, -int(np.argwhere(places == collective.root)[0, 2]), axis=2)
    lanes = places.reshape(-1, places.shape[2]).copy()
    # What some nodes lack gets all from the others of its node; a root among them takes the place of another.
    gaps = np.any(lanes < 0, axis=1)
    if gaps.all():
        raise InfeasibleError(_NONE_IN_ALL)
    own, other = int(np.flatnonzero(lanes[:, 0] == collective.root)[0]), int(gaps.argmin())
    if gaps[own]:
        lanes[own, 0], lanes[other, 0] = lanes[other, 0], lanes[own, 0]
    rest, lanes = lanes[gaps], lanes[~gaps]
    places = lanes[None] if rest.size else places
    hops = hops_over_ports(_MOST_BETWEEN, lanes.shape[1]) if tree is None else tree
    ports = 1 + int(hops[:, 2].max(initial=0))
    chunks = np.arange(len(lanes) * trees * ports).reshape(len(lanes), trees, ports)
    before, after = inside(places, int(np.flatnonzero(lanes[:, 0] == collective.root)[0]), chunks)
    if rest.size:
        rank, where = np.nonzero(rest >= 0)
        row, to = np.arange(len(lanes)).repeat(len(rank)), np.tile(rest[rank, where], len(lanes))
        after = [*after, sent(chunks.reshape(len(lanes), -1), lanes[:, where].ravel(), to, row)]
    between = along(chunks.swapaxes(1, 2).reshape(-1, trees), (hops, lanes.T, ports))
    return there_and_back([*before, *between, *after][::-1], collective)


def scatter_allgather(every: Sequence[Round], ranks: int, collective: Collective) -> tuple[Round, ...]:
    """A broadcast by the two parts of `scattered`, or a reduce backwards."""
    before, after = scattered(every, ranks, collective.root)
    return there_and_back([*before, *after][::-1], collective)


def scattered(every: Sequence[Round], ranks: int, root: int) -> tuple[Rounds, Rounds]:
    """A scatter to the ranks that an allgather begins with, and the allgather to those that have not got it then.

    every: the rounds of the allgather, which can be several at once of the same chunks. The scatter goes back along
    the paths on which the root would gather. Raises `InfeasibleError` for very many ranks and chunks.
    """
    chunks = every[0].share.denominator if every else 1
    check_messages(ranks * chunks)
    sends = list[tuple[Ints, ...]]()
    for one in every:
        ends = one.exchange.ends(ranks)
        sends.append(np.broadcast_arrays(*ends, one.chunk(*ends, 0)))
    numbers = np.arange(chunks)[:, None]
    # Which chunks ranks pass on to the root, and which they have once these came from there.
    wanted, passed = np.zeros((2, ranks, len(numbers)), dtype=bool)
    wanted[root] = passed[root] = True
    before, after = Rounds(), Rounds()
    for src, dst, chunk in sends[::-1]:
        way = wanted[dst, chunk]
        giver, taker, number = src[way], dst[way], chunk[way]
        wanted[taker, number], wanted[giver, number], passed[giver, number] = False, True, True
        before += [sent(numbers, taker, giver, number)] if way.any() else []
    for src, dst, chunk in sends:
        new = ~passed[dst, chunk]
        after += [sent(numbers, src[new], dst[new], chunk[new])] if new.any() else []
    return before, after


def along(chunks: Ints, *trees: tuple[Ints, Whole, int]) -> Rounds:
    """What goes along trees, level by level, for COPY in this order.

    chunks (rows, C): what a tree carries. trees: hops (parent, child, tree, level), the ranks (vertices, copies) that
    these vertices are, and how many rows further on the tree of the next copy has its chunks.
    """
    found = Rounds()
    for level in range(1 + max(int(hops[:, 3].max(initial=-1)) for hops, *_ in trees)):
        sends = []
        for hops, ranks, further in trees:
            tail, head, tree, _ = hops[hops[:, 3] == level].T
            rows = np.add.outer(tree, further * np.arange(ranks.shape[1]))
            sends.append((ranks[tail].ravel(), ranks[head].ravel(), rows.ravel()))
        found.append(sent(chunks, *map(np.concatenate, zip(*sends, strict=True))))
    return found


def sent(chunks: Ints, src: Whole, dst: Whole, row: Ints, *, whole: bool = False) -> Callable[[int], Round]:
    """These ranks to those (M), for COPY, or back: a row (M) of the chunks in a message each.

    whole: it goes back as a sum that has the part of who gets it already, and takes its place.
    """
    to = {COPY: Exchange(src[:, None], dst[:, None]), REDUCE: Exchange(dst[:, None], src[:, None])}
    share, many = Fraction(1, chunks.size), chunks.shape[1]
    # Of thousands of nodes all chunks take gigabytes, and only what is written out has them.
    return lambda op: Round(to[op], share, COPY if whole else op, chunks=many, chunk=lambda *_: chunks[row])


def exchanges(
    places: Whole, own: tuple[int, ...], chunks: Ints, levels: tuple[int, ...] = ()
) -> list[Callable[[int], Round]]:
    """The exchanges inside nodes, of ranks in `own` levels, or between nodes in `levels`: for REDUCE in this order.

    chunks (rank of a node, node, parts): what each rank has at the end; one node if it is the same in all.
    Raises `InfeasibleError` for very many messages.
    """
    check_messages(places.size * (max(levels, default=1) - 1))
    every, inner = places.reshape(*own, *(levels or (-1,)), 1), len(own)
    inside, between = (*range(inner - 1, 0, -1), 0), range(every.ndim - 2, inner - 1, -1)
    # What goes between nodes has been reduced inside them.
    order, before = (between, inside) if levels else (inside, ())
    axes = [axis for axis in order if every.shape[axis] > 1]
    number = chunks.reshape(*own, *(levels or chunks.shape[1:2]), -1)
    return [_exchange(every, axis, (*before, *axes[:place]), number) for place, axis in enumerate(axes)]


def check_messages(messages: int) -> None:
    """Raises `InfeasibleError` for very many messages at once."""
    if messages > _MOST_MESSAGES:
        what = f"{messages:,} messages at once, more than {_MOST_MESSAGES:,}"
        raise InfeasibleError(f"such steps send {what}; take hierarchical, chain_tree or double_binary")


def places_of(topology: Topology, name: str, least: int = 2, *, lacking: bool = False) -> Whole:
    """The ranks by card, place there, and node; a node without cards of equally many tiles is one card.

    least: how many nodes it needs, or cards of a single one. lacking: nodes may have fewer ranks than others,
    and -1 in the places of these. Raises `InfeasibleError` for fewer, and for others.
    """
    nodes, places = nodes_of(topology, topology.members), topology.member_places.tolist()
    by_card: dict[tuple[int, str], list[int]] = {}
    for node, group in enumerate(nodes):
        for device, rank in ((topology.devices[places[rank]], rank) for rank in group):
            # Cards are what the names of tiles begin with (card0.t1).
            card = device.name.rpartition(".")[0] if device.kind == "tile" else ""
            by_card.setdefault((node, card), []).append(rank)
    cards = [*by_card.values()]
    groups = cards if len(nodes) == 1 < least else nodes
    if lacking and len({*map(len, nodes)}) > 1:
        return _with_gaps(topology, nodes)
    if len(groups) < least or len({*map(len, groups)}) > 1:
        what = "nodes" if len(nodes) > 1 or (0, "") in by_card else "cards"
        sizes = f"these have {' '.join(str(len(group)) for group in groups)}" if groups[1:] else "here is one"
        needs = f"{name} needs two or more {what} with the same number of ranks each; {sizes}"
        raise InfeasibleError(f"{needs}; take algorithm=ring, or change nodes= and members=")
    even = cards if len({*map(len, cards)}) == 1 else nodes
    return np.array(even, dtype=np.int32).reshape(len(nodes), -1, len(even[0])).transpose(1, 2, 0)


def _with_gaps(topology: Topology, nodes: Sequence[Sequence[int]]) -> Whole:
    """The ranks of nodes as `places_of`, each in the place that its device has in the largest node, if in it."""
    devices = [[topology.devices[topology.member_places[rank]] for rank in group] for group in nodes]
    names = [[one.name.removeprefix(f"n{one.node}.") for one in group] for group in devices]
    every = max(names, key=len)
    names = names if all({*every}.issuperset(one) for one in names) else [every[: len(one)] for one in names]
    places = np.full((1, len(every), len(nodes)), -1, dtype=np.int32)
    for node, (group, own) in enumerate(zip(nodes, names, strict=True)):
        places[0, [every.index(name) for name in own], node] = group
    return places


def lanes_of(topology: Topology, name: str, least: int = 2, *, lacking: bool = False) -> Whole:
    """The ranks by place in their node, and node. Raises `InfeasibleError` for fewer nodes, and as `places_of`."""
    places = places_of(topology, name, least, lacking=lacking)
    if places.shape[2] < least:
        raise InfeasibleError(f"{name} needs two or more nodes; take packed")
    return places.reshape(-1, places.shape[2])


def _exchange(places: Whole, axis: int, before: Sequence[int], number: Ints) -> Callable[[int], Round]:
    """What ranks do that differ in their place along one axis alone, for REDUCE or for COPY: all send to all.

    Chunks are those of the receiver (REDUCE) or sender (COPY), and of all that differ from it in other axes
    than those `before`, over which chunks have been reduced already, or will be copied. number: of the chunks.
    """
    pairs = round_robin(places.shape[axis])
    exchange = Exchange(*(np.moveaxis(places, axis, 0)[end].ravel() for end in pairs))
    free = [one != axis and one not in before for one in range(places.ndim)]
    shape = (1 if one else size for one, size in zip(free, number.shape, strict=True))
    held = np.moveaxis(number, np.flatnonzero(free), range(sum(free))).reshape(-1, *shape)
    held = np.moveaxis(np.broadcast_to(held, (len(held), *places.shape)), 1 + axis, 1)

    share = Fraction(1, number.size)
    return lambda op: Round(
        exchange, share, op, chunks=len(held), chunk=lambda *_: held[:, pairs[op == REDUCE]].reshape(len(held), -1)
    )


def _rings(places: Whole, chunks: Ints) -> Callable[[int], Round]:
    """A ring over the nodes for every local rank: chunks of node k end their reduction, or start their route, there.

    chunks (local rank, node, parts): of each place.
    """
    (_, nodes, parts), own = chunks.shape, chunks.transpose(2, 0, 1)
    l, node = np.divmod(np.arange(places.size), nodes)  # noqa: E741
    exchange, share = Exchange(places.ravel(), np.roll(places, -1, axis=1).ravel()), Fraction(1, chunks.size)

    return lambda op: Round(
        exchange, share, op, nodes - 1, parts, lambda _, to, step: own[:, l, (node - step - (op == REDUCE)) % nodes], l
    )
