"""Blink's hierarchical allreduce: reduce to chunk owners in cliques, exchange between partners, broadcast.

Every group of fully connected GPUs reduces each chunk at its owner; the owners of a chunk, one per group and
joined by links, exchange it; then each spreads it in its group (Wang et al., Blink, 2018 short paper, section
3.1). Only GPUs with a partner in the other group own chunks, so groups may be partial and unequal (5, 6 and 7
GPUs of a DGX-1), and a linear program sets the chunks' shares: equal ones where these are best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, islice, pairwise, permutations, product
from math import prod

from blinksim.algorithms.blink import even_rate
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.connectivity import grouped
from blinksim.packing.columns import Arc, Column, Hops, Mix, best_mix, find_hops
from blinksim.packing.tree_columns import cheapest_tree
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

ENTRY = Algorithm(("allreduce",), "reduce inside cliques, exchange between them (Blink)", solver=True, most_ranks=1024)


# Ranks up to which all partitions into the fewest cliques are listed; most of these; most choices of owners.
_EXACT_RANKS = 10
_MOST_PARTITIONS = 60
_MOST_OWNERS = 2000

Groups = tuple[tuple[int, ...], ...]


# The owners of a chunk, one device per group; the hops that join them, away from the first owner; the hops
# from each owner to the others of its group.
_Chunk = tuple[tuple[int, ...], tuple[Arc, ...], list[Arc]]


def build(
    topology: Topology,
    collective: Collective,
    *,
    groups: Sequence[Sequence[str]] | None = None,
    time_limit: float | None = None,
    seed: int = 0,
) -> Schedule:
    """The three-phase allreduce over `groups` of devices (default: the best of the fewest cliques that there are).

    With two groups partners exchange at once, both ways; with more, the owners of a chunk form a tree, up and
    down. With one group only the first and the last phase remain. Raises `InfeasibleError` for groups that
    are not fully connected, or without a chain of partners through all of them.
    """
    plan = Plan(topology, collective, "blink_hierarchical", "forest")
    hops, options = considered(topology, groups)
    several = filter(None, (dict(_chunks(hops, option)) for option in options))
    mixes = [(_equal(hops, chunks, best_mix(list(chunks), hops.capacity)), chunks) for chunks in several]
    if not mixes:
        lacks = f"{topology.name}: no links join one GPU of every group with one of another"
        way = f"all the way through {_words(topology, options[0])}"
        raise InfeasibleError(f"{lacks}, {way}; take blink, whose trees need no groups")
    mix, chunks = max(mixes, key=lambda found: found[0].rate)
    if len(set(mix.rates)) > 1:
        # CP-SAT takes longer to load than most machines take to answer, and only unequal shares need it.
        from blinksim.packing.choose import Limits, fewest

        mix = fewest(mix, list(chunks), hops.capacity, mix.rate, Limits(time_limit, seed))
    total = sum(mix.rates, start=Fraction(0))
    for channel, (column, rate) in enumerate(zip(mix.columns, mix.rates, strict=True)):
        owners, links, stars = chunks[column]
        # To the owners, between them, from the owners.
        phases = list[tuple[Sequence[Arc], int]]()
        phases += [([(v, owner) for owner, v in stars], REDUCE)] if stars else []
        if len(owners) == 2:
            phases.append(((*links, links[0][::-1]), REDUCE))
        else:
            # Arcs lead away from the first owner, parents first: up in reverse, one after another.
            phases += [([(b, a)], REDUCE) for a, b in reversed(links)]
            phases += [([arc], COPY) for arc in links]
        phases.append((stars, COPY))
        chunk = plan.add_chunk(rate / total)
        for step, (arcs, op) in enumerate(phases):
            plan.add_edges(chunk, [(*arc, hops.routes[arc]) for arc in arcs], op, step, channel)
    return plan.finish()


def considered(topology: Topology, groups: Sequence[Sequence[str]] | None) -> tuple[Hops, list[Groups]]:
    """The partitions to choose from, those given or `cliques`, and the hops that their chunks may take."""
    nodes = tuple(tuple(topology.member_places[one].tolist()) for one in nodes_of(topology, topology.members))
    if groups is None and prod(map(len, nodes)) > _MOST_OWNERS:
        # Owners at equal positions: of many nodes other pairs are most of all.
        alike = {arc for group in (*nodes, *zip(*nodes, strict=False)) for arc in permutations(group, 2)}
        hops = find_hops(topology, only=alike)
        if (options := cliques(topology, hops)) == [nodes]:
            return hops, options
    hops = find_hops(topology)
    return hops, cliques(topology, hops) if groups is None else [_given(topology, hops, groups)]


def cliques(topology: Topology, hops: Hops) -> list[Groups]:
    """Partitions of the members (device indices) into the fewest groups of which every pair is joined on its node.

    All of them (up to 60) on up to 10 ranks; beyond that one, by greedy colouring of the pairs that are not
    joined.
    """
    members = hops.vertices
    node = {v: topology.devices[v].node for v in members}
    joined = {v: {u for u in hops.both[v] if node[u] == node[v]} for v in members}
    if len(members) > _EXACT_RANKS:
        whole = tuple(tuple(members[rank] for rank in group) for group in nodes_of(topology, topology.members))
        if all(u in joined[v] for group in whole for v in group for u in group if u != v):
            return [whole]
        return [_greedy(members, joined)]
    for size in range(1, len(members) + 1):
        found = (groups for groups in _partitions([*members], joined, size, ()) if len(groups) == size)
        if partitions := list(islice(found, _MOST_PARTITIONS)):
            return partitions
    raise AssertionError("every GPU is a clique of its own")


def _partitions(rest: list[int], joined: dict[int, set[int]], most: int, groups: Groups) -> Iterator[Groups]:
    """All ways to add the rest of the members to the groups, of which there may be `most` then."""
    if not rest:
        yield groups
        return
    vertex, *others = rest
    for place, group in enumerate(groups):
        if joined[vertex].issuperset(group):
            grown = (*groups[:place], (*group, vertex), *groups[place + 1 :])
            yield from _partitions(others, joined, most, grown)
    if len(groups) < most:
        yield from _partitions(others, joined, most, (*groups, (vertex,)))


def _greedy(members: Sequence[int], joined: dict[int, set[int]]) -> Groups:
    import networkx as nx

    apart: nx.Graph[int] = nx.Graph()
    apart.add_nodes_from(members)
    apart.add_edges_from((a, b) for a in members for b in members if a < b and b not in joined[a])
    colours = nx.greedy_color(apart, strategy="DSATUR")
    return tuple(map(tuple, grouped((colours[vertex], vertex) for vertex in members).values()))


def _given(topology: Topology, hops: Hops, groups: Sequence[Sequence[str]]) -> Groups:
    indices = tuple(tuple(topology.index[topology.device(name).name] for name in group) for group in groups if group)
    if sorted(v for group in indices for v in group) != sorted(hops.vertices):
        raise InfeasibleError(f"{_words(topology, indices)}: the groups must hold every member once")
    for a, b in chain.from_iterable(permutations(group, 2) for group in indices):
        if b not in hops.both[a]:
            names = topology.devices[a].name, topology.devices[b].name
            raise InfeasibleError(f"{names[0]} and {names[1]} are in one group, but no link joins them")
    return indices


def _words(topology: Topology, groups: Groups) -> str:
    return " | ".join(" ".join(topology.devices[v].name for v in group) for group in groups)


def _chunks(hops: Hops, groups: Groups) -> Iterator[tuple[Column, _Chunk]]:
    """Every choice of one owner per group that links join; if there are too many, owners at equal positions only."""
    choices: Iterable[tuple[int, ...]] = product(*groups)
    if prod(map(len, groups)) > _MOST_OWNERS:
        choices = zip(*groups, strict=False)
    for owners in choices:
        inside = set(owners)
        arcs = ((a, b) for a in owners for b in hops.both[a] if b in inside)
        price = {arc: 1 / min(hops.capacity[r] / t for r, t in hops.loads[arc]) for arc in arcs}
        if (tree := cheapest_tree(price, owners[0], owners)) is None:
            continue
        line = tuple(pairwise(owners))
        if all(arc in price and price[arc] <= max(price[other] for other in tree) for arc in line):
            # As wide as the tree, and no owner has more than two others to send to.
            tree = line
        stars = [(owner, v) for owner, group in zip(owners, groups, strict=True) for v in group if v != owner]
        used = (*tree, *stars)
        load = hops.load((*used, *((b, a) for a, b in used)))
        yield Column(used, load, 1 + len(tree)), (owners, tree, stars)


def _equal(hops: Hops, chunks: dict[Column, _Chunk], mix: Mix) -> Mix:
    """Equal shares for chunks with disjoint owners, where that is as good as `mix`."""
    chosen, busy = list[Column](), set[int]()
    for column, chunk in sorted(chunks.items(), key=lambda item: item[0] not in mix.columns):
        if not busy & set(chunk[0]):
            chosen.append(column)
            busy |= set(chunk[0])
    rate = even_rate(hops, chosen)
    if rate * len(chosen) < mix.rate:
        return mix
    chosen.sort(key=lambda column: chunks[column][0])
    return Mix(tuple(chosen), (rate,) * len(chosen), mix.optimum)
