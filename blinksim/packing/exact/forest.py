"""From exact rates to routed trees: scale, split forwarders off, pack, and give every arc its path back.

The steps of ForestColl (Zhao et al. 2024): each of them keeps the rate exactly, so the forest attains what the cut
bound allows wherever forwarders take in at least as much as they give out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

from blinksim.graphs.digraph import CutPool, Digraph
from blinksim.packing.exact.arborescences import Effort, pack
from blinksim.packing.exact.lower_trees import longest, lowered
from blinksim.packing.exact.routed_trees import RoutedTree, Routes
from blinksim.packing.exact.scaling import Arcs, clipped, fewest, fixed
from blinksim.packing.exact.splitting import split_off, usual_sets
from blinksim.packing.exact.turned_trees import pack_turned

Progress = Callable[[int, int], None]
# Orders of the roots that are tried where a packing takes a fraction of a second: up to so many vertices of all trees.
_ORDERS, _FEW = 4, 20_000


@dataclass(frozen=True)
class Forest:
    """Trees and their scale: a tree of amount 1 carries 1 / scale units of rate.

    longest: how long a piece of the data is on its way (`lower_trees.longest`), to compare forests of one machine.
    """

    trees: list[RoutedTree]
    scale: Fraction
    effort: Effort = field(default_factory=Effort)
    longest: int = 0

    @property
    def rate(self) -> Fraction:
        """The rate of all trees together."""
        return sum(tree.amount for tree in self.trees) / self.scale


def pack_forest(
    arcs: Arcs, rates: Mapping[int, Fraction], *, seed: int = 0, progress: Progress | None = None
) -> Forest:
    """Out-trees from every root v that carry rates[v] together and reach all members.

    Raises `InfeasibleError` if there are none. seed: in which order the roots take turns (0: as given). progress:
    called with trees done and wanted.
    """
    arcs = clipped(arcs, rates)
    graph, scale = fewest(arcs, rates)
    return _packed(arcs, graph, scale, seed, progress)


def pack_shares(arcs: Arcs, shares: Mapping[int, int], *, seed: int = 0, progress: Progress | None = None) -> Forest:
    """As many equal out-trees from every root v as shares[v], at the best rate that this number allows."""
    arcs = clipped(arcs, shares)
    graph, scale = fixed(arcs, shares)
    return _packed(arcs, graph, scale, seed, progress)


def _packed(arcs: Arcs, graph: Digraph, scale: Fraction, seed: int, progress: Progress | None) -> Forest:
    if seed:
        order = list(graph.roots)
        Random(seed).shuffle(order)
        graph.roots = {root: graph.roots[root] for root in order}
    pool = CutPool(graph)
    pool.add(usual_sets(graph, arcs.host))
    capacity = _per_arc(arcs, graph, scale)
    log = split_off(graph, arcs.host, pool, progress)
    effort = Effort()
    trees = lowered(pack(graph, pool, effort, progress), graph, arcs.host)
    routes = Routes(arcs.tail.tolist(), arcs.head.tolist(), capacity, log)
    return Forest(routes.route(trees), scale, effort, longest(trees, arcs.host))


def low_forest(arcs: Arcs, rates: Mapping[int, Fraction], *, progress: Progress | None = None) -> Forest:
    """As `pack_forest`; where trees are few, the one of several orders of roots that ends soonest."""
    best = pack_forest(arcs, rates, progress=progress)
    if len(rates) == 1 or len(best.trees) * arcs.count > _FEW:
        return best
    others = (pack_forest(arcs, rates, seed=seed, progress=progress) for seed in range(1, _ORDERS))
    return min([best, *others], key=lambda forest: forest.longest)


def turned_forest(arcs: Arcs, rates: Mapping[int, Fraction], symmetries: Sequence[Sequence[int]]) -> Forest | None:
    """As `pack_forest`, by turning the trees of one root to all others; None where that is not possible.

    symmetries: permutations of the vertices.
    """
    if not symmetries or not len(arcs.members) == arcs.count == len(rates) or len(set(rates.values())) > 1:
        return None
    found = pack_turned(arcs, next(iter(rates.values())), symmetries)
    if found is None:
        return None
    trees, scale = found
    whole = [int(value * scale) for value in arcs.capacity]
    return Forest(Routes(arcs.tail.tolist(), arcs.head.tolist(), whole, ()).route(trees), scale)


def _per_arc(arcs: Arcs, graph: Digraph, scale: Fraction) -> list[int]:
    """The whole capacity of every arc; parallel arcs share what `graph` has, which trimming may have lowered."""
    left = [dict(row) for row in graph.out]
    capacity = []
    for a, b, value in zip(arcs.tail.tolist(), arcs.head.tolist(), arcs.capacity, strict=True):
        part = min(left[a].get(b, 0), int(value * scale))
        if part:
            left[a][b] -= part
        capacity.append(part)
    return capacity
