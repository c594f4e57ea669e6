"""Blink: few trees that together attain the best rate on any graph of links.

Blink packs spanning trees from the root instead of rings, and keeps as few as reach the rate (Wang et al.,
"Blink: fast and generic collectives for distributed ML", MLSys 2020; 2018 short paper, section 3). Allreduce
reduces up and broadcasts down the same undirected trees. Behind switches every GPU is the root of one-hop
trees with 1/n of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm
from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.compute import bound as find_bound
from blinksim.collective import ON_TREES, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.rooted_trees import centre, hung_from
from blinksim.packing.choose import Limits
from blinksim.packing.columns import Column, Hops, Mix, find_hops, loads
from blinksim.packing.tree_columns import BOTH, TreeSearch, as_tree, use_of, ways_of
from blinksim.schedule.loads import Tree
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm((*ON_TREES, "gather", "scatter"), "few trees at the best rate (Blink)", solver=True, most_ranks=1024)


# Ranks up to which trees are searched.
MOST_RANKS = 32


def build(
    topology: Topology,
    collective: Collective,
    *,
    loss: Fraction = Fraction(0),
    bound: BoundResult | None = None,
    time_limit: float | None = None,
    seed: int = 0,
) -> Schedule:
    """The best mix of trees, with as few of them as a search finds.

    loss: the part of the rate that may be given up for fewer trees (Blink allows 5 %). time_limit: seconds
    for each solve; without it answers are the same everywhere. Gather and scatter follow the best flows.

    Raises `InputError` for a loss outside 0 to 1, and `InfeasibleError` if some member cannot be reached
    without passing another one, or if there are too many ranks to search and one-hop trees are not the
    answer.
    """
    if not 0 <= loss < 1:
        raise InputError(f"loss {loss}: give a fraction from 0 up to, but not including, 1")
    plan = Plan(topology, collective, "blink", "forest")
    known = bound or find_bound(topology, collective)
    if collective.name in ("gather", "scatter"):
        from blinksim.algorithms.building.branching_trees import add_paths
        from blinksim.graphs.network import network
        from blinksim.graphs.programs import shared_capacities

        net = network(topology)
        add_paths(plan, net, shared_capacities(topology, net), known)
        return plan.finish(rounded=True)
    hops, use = find_hops(topology), use_of(collective)
    members = hops.vertices
    roots = (members[collective.root],) if collective.rooted else members if use != BOTH else members[:1]
    search, mix = TreeSearch(hops, roots, use), None
    if all(len(route) > 1 for route in hops.routes.values()):
        mix = one_hop(hops, search)
    if mix is None or mix.rate * len(roots) * hops.unit < known.rate * (1 - loss):
        if topology.ranks > MOST_RANKS:
            limit = f"blink searches trees for up to {MOST_RANKS} ranks, not {topology.ranks}"
            raise InfeasibleError(f"{limit}; take packed, which has no limit")
        mix = search.few(search.best(), Limits(time_limit, seed), loss=loss)
    plan.add_trees(trees_from(search, mix))
    return plan.finish(rounded=True)


def one_hop(hops: Hops, search: TreeSearch) -> Mix | None:
    """Every member spreads its part in one hop; from a single root, each part first takes a hop to its member.

    Equal parts; None if some pair of members is not joined.
    """
    members = hops.vertices
    if any(len(hops.both[a]) < len(members) - 1 for a in members):
        return None
    columns: list[Column] = []
    single = len(search.roots) == 1
    first = search.roots if single and search.use != BOTH else ()
    for group, hub in enumerate(members):
        if hub not in first:
            star = tuple((hub, v) for v in members if v != hub and v not in first)
            columns.append(search.column((*((root, hub) for root in first), *star), 0 if single else group))
    rate = even_rate(hops, columns)
    return Mix(tuple(columns), (rate,) * len(columns), float(rate) * (len(members) if single else 1))


def even_rate(hops: Hops, columns: Iterable[Column]) -> Fraction:
    """The rate that each of these columns has, if all have the same."""
    together = loads((column, 1) for column in columns)
    return min(Fraction(hops.capacity[r], times) for r, times in together.items())


def trees_from(search: TreeSearch, mix: Mix) -> Iterator[Tree]:
    """The trees of a mix with their shares of the data; one that is used both ways hangs from its centre."""
    total, hops = sum(mix.rates, start=Fraction(0)), search.hops
    for column, value in zip(mix.columns, mix.rates, strict=True):
        root, ways = search.roots[column.group], ways_of(column.arcs, search.forwards)
        if column.up:
            root = column.arcs[0][0]
        elif search.use == BOTH:
            by_ends = {(way[0], way[-1]): way for one in ways for way in (one, one[::-1])}
            arcs = [(way[0], way[-1]) for way in ways]
            root = centre(arcs)
            ways = [by_ends[arc] for arc in hung_from(root, arcs)]
        yield as_tree(hops, root, value / total, ways, search.use, ways_of(column.up, search.forwards))
