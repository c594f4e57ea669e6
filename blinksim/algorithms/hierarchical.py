"""Hierarchical collectives: reduce-scatter inside nodes, rings between nodes, allgather inside nodes.

Only 1/g of the vector of a node with g ranks crosses each of its network ports, in g parallel rings (Aurora
allreduce projection, equation 4; Jia et al., "Highly scalable deep learning training system", 2018, section
4.2). Of cards with several tiles, the tiles exchange first, then tiles of equal number, directly: their
links join every pair of cards (projection, section 3.1, the scale-up terms). A single node may have cards
alone. In an allreduce, nodes with slow ports hand their data to the others, as ranks beyond a power of two do in
recursive doubling (Thakur et al., IJHPCA 2005), and by all their ports as evenly as these allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from importlib import import_module

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import SHARDED, Algorithm, per_pair
from blinksim.bounds.groups import private, whole_widths
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints, distinct, round_robin
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
    *,
    evenly: bool = True,
) -> tuple[Round, ...]:
    """Exchanges of tiles, of cards, and between the nodes: on rings, or in levels of exchanges. Raises as `fill` does.

    radices: by the number of nodes, how many groups exchange in each level: first single nodes that are
    neighbours, then groups of ever more nodes. inside: the same for the ranks of a node or card. evenly: nodes that
    hand their data to others use all their ports alike, for two more steps.
    """
    places = places_of(topology, name)
    own = len(places), *inside(places.shape[1])[::-1]
    # A reduce-scatter ends, and an allgather begins, with a shard at every rank.
    sharded = collective.name != "allreduce"
    others, parts, handed = (places, 1, Rounds()) if sharded else _handed(topology, places, evenly)
    nodes = others.shape[2]
    levels = radices(nodes)[::-1] if radices else ()
    chunks = np.arange(others.size * parts).reshape(-1, nodes, parts)
    every = exchanges(others, own, chunks, levels)
    if handed:
        within = exchanges(places, own, chunks.reshape(len(chunks), 1, -1))
        every = [*within, *handed, *every[len(within) :]]
    every += [] if levels or nodes == 1 else [_rings(others.reshape(-1, nodes), chunks)]
    return there_and_back(every, collective)


def _handed(topology: Topology, places: Whole, evenly: bool) -> tuple[Whole, int, Rounds]:
    """The places of all nodes but those with slow ports, the parts of a shard, and how those hand over their data.

    k of n nodes pass their data once, and each of the others 2 (n - k - 1) + k of n - k parts of it. evenly: where a
    slow port would hold this up, other ranks of its node first take what it carries less than they do.
    """
    nodes, (src, dst), node = places.shape[2], topology.ends, topology.device_nodes
    owner, (widths, _) = private(topology).label[src], whole_widths(topology)
    out, lanes = (node[src] != node[dst]) & (owner < topology.ranks), places.reshape(-1, nodes)
    width = np.bincount(owner[out], widths[out].astype(np.float64), topology.ranks)[lanes]
    # Of a node whose ports are all shared, any rank may have half of one.
    width = np.where(width.any(axis=0), width, width.max() / 2)
    sorts, first, which = np.unique(width, axis=1, return_index=True, return_inverse=True)
    if len(first) == 1:
        return places, 1, Rounds()
    # A rank without a port of its own takes another's, of which each then has a part.
    users = np.ones(sorts.shape)
    for lane, sort in np.argwhere(sorts == 0).tolist():
        here, there = topology.member_places[lanes[lane, [first[sort], first[sort] - 1]]].tolist()
        via = [owner[link] for link in topology.router.route(here, there) if out[link]]
        users[np.isin(lanes[:, first[sort]], via), sort] += 1
    least = np.where(sorts > 0, sorts / users, np.inf).min(axis=0)[which.ravel()]
    even = width.mean(axis=0) if evenly else least
    order, k = np.argsort(least, kind="stable"), np.arange(nodes)
    took = np.maximum((2 * (nodes - k - 1) + k) / (nodes - k) / least[order], (k > 0) / even.min())
    some, rest = map(np.sort, np.split(order, [took.argmin()]))
    if not some.size:
        return places, 1, Rounds()
    moves = least.min() < even.min() and least.min() * took.min() <= 1
    part = (width / even)[:, some].T if moves else np.ones((len(some), len(lanes)))
    # On rails every part of a shard takes another one.
    units = _UNITS if len(distinct(dst[out])) > 1 else _UNITS_WITHOUT_RAILS
    parts = max(1, min(int((part > 1).sum(axis=1).max()), 1 + units // len(rest)))
    each = parts * len(rest)
    number = np.arange(len(lanes) * each).reshape(len(lanes), len(rest), parts).swapaxes(1, 2).reshape(-1, each)
    room = np.diff(np.rint(part.cumsum(axis=1) * each), prepend=0).astype(np.int64)
    over = np.arange(each) >= room[..., None]
    first, last, unit = np.broadcast_arrays(lanes.T[some][..., None], np.tile(lanes[:, rest], parts), number)
    held, chunks = first.copy(), np.arange(number.size)[:, None]
    held[over] = lanes.T[some].repeat(np.maximum(room - each, 0).ravel())
    moved = [sent(chunks, held[over], first[over], unit[over], whole=True)] if over.any() else []
    return places[:, :, rest], parts, [*moved, sent(chunks, last.ravel(), held.ravel(), unit.ravel())]


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
    lanes = places.reshape(-1, places.shape[2])
    hops = hops_over_ports(_MOST_BETWEEN, lanes.shape[1]) if tree is None else tree
    ports = 1 + int(hops[:, 2].max(initial=0))
    chunks = np.arange(len(lanes) * trees * ports).reshape(len(lanes), trees, ports)
    before, after = inside(places, int(np.flatnonzero(lanes[:, 0] == collective.root)[0]), chunks)
    between = along(chunks.swapaxes(1, 2).reshape(-1, trees), (hops, lanes.T, ports))
    return there_and_back([*before, *between, *after][::-1], collective)


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
    """The exchanges inside nodes, of ranks in `own` levels, and between them in `levels`: for REDUCE in this order.

    chunks (rank of a node, node, parts): what each rank has at the end; one node if it is the same in all.
    Raises `InfeasibleError` for very many messages.
    """
    check_messages(places.size * (max(levels, default=1) - 1))
    every, inner = places.reshape(*own, *(levels or (-1,)), 1), len(own)
    order = *range(inner - 1, 0, -1), 0, *range(every.ndim - 2, inner - 1, -1)[: len(levels)]
    axes = [axis for axis in order if every.shape[axis] > 1]
    number = chunks.reshape(*own, *(levels or chunks.shape[1:2]), -1)
    return [_exchange(every, axis, axes[:place], number) for place, axis in enumerate(axes)]


def check_messages(messages: int) -> None:
    """Raises `InfeasibleError` for very many messages at once."""
    if messages > _MOST_MESSAGES:
        what = f"{messages:,} messages at once, more than {_MOST_MESSAGES:,}"
        raise InfeasibleError(f"such steps send {what}; take hierarchical, chain_tree or double_binary")


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

    share = Fraction(1, number.size)
    return lambda op: Round(
        exchange, share, op, chunks=len(more), chunk=lambda *_: lowest[pairs[op == REDUCE]].ravel() + more
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
