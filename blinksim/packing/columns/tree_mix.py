"""The best mix of trees over hops, and few of them: the core of Blink and Blink+.

A linear program over all trees, those that can improve it being generated as trees of least price; then an integer
program over these and further trees, drawn with random prices, for the fewest at the same rate. Its optimum is the
tree-packing bound: the cut for one root (Edmonds 1973), the partition bound for trees used both ways (Nash-Williams and
Tutte 1961).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

from blinksim.errors import InfeasibleError
from blinksim.graphs.rooted_trees import height, longest_path
from blinksim.packing.columns.column_mix import Column, Mix, best_mix, improves, shortened
from blinksim.packing.columns.fewest_columns import fewest
from blinksim.packing.columns.fewest_trees import MOST_MEMBERS, Answer, search
from blinksim.packing.columns.hops import Arc, Hops
from blinksim.packing.columns.solver_limits import Limits
from blinksim.packing.columns.steiner import Prices, cheapest_tree

DOWN, UP, BOTH = "down", "up", "both"
# Trees drawn with random prices beside those that the linear program asks for, per root.
_DRAWN = 60


@dataclass(frozen=True)
class TreeSearch:
    """Trees from `roots` (groups, with equal rates) to all members of `hops`.

    use: DOWN loads the arcs away from the root, UP those towards it, BOTH both; then the root only names the tree.
    hops_first: a tree's cost, which decides between equals, is its number of hops instead of its height.
    """

    hops: Hops
    roots: tuple[int, ...]
    use: str
    hops_first: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        return self.hops.vertices[: self.hops.members]

    @property
    def helpers(self) -> tuple[int, ...]:
        return self.hops.vertices[self.hops.members :]

    def column(self, arcs: tuple[Arc, ...], group: int = 0) -> Column:
        """The tree's load; its cost is its height, from its centre if it is used both ways."""
        turned = tuple((b, a) for a, b in arcs)
        used = {DOWN: arcs, UP: turned, BOTH: (*arcs, *turned)}[self.use]
        cost = len(arcs) if self.hops_first else self.height(arcs, group)
        return Column(arcs, self.hops.load(used), cost, group)

    def height(self, arcs: Sequence[Arc], group: int = 0) -> int:
        """The most hops from the root, or from the centre of a tree that is used both ways."""
        return len(longest_path(arcs)) // 2 if self.use == BOTH else height(self.roots[group], arcs)

    def prices(self, cost: Mapping[Arc, float]) -> Prices:
        """What each arc of a tree costs, if each hop costs `cost`."""
        if self.use == DOWN:
            return cost
        if self.use == UP:
            return {(b, a): value for (a, b), value in cost.items()}
        return {(a, b): value + cost[b, a] for (a, b), value in cost.items() if (b, a) in cost}

    def cheapest(self, cost: Mapping[Arc, float], group: int) -> Column | None:
        arcs = cheapest_tree(
            self.prices(cost), self.roots[group], self.members, self.helpers, directed=self.use != BOTH
        )
        return None if arcs is None else self.column(arcs, group)

    def price(self, prices: Sequence[float], worth: Sequence[float]) -> list[Column]:
        """Trees that are worth more than they cost (`best_mix`)."""
        cost = self.hops.cost(prices)
        found = [self.cheapest(cost, group) for group in range(len(self.roots))]
        return [c for c in found if c is not None and improves(c, prices, worth)]

    def best(self) -> Mix:
        """The best mix of all trees; raises `InfeasibleError` if some member cannot be reached."""
        flat = dict.fromkeys(self.hops.routes, 1.0)
        start = [self.cheapest(flat, group) for group in range(len(self.roots))]
        if any(column is None for column in start):
            raise InfeasibleError("some member cannot be reached by hops that pass no other member")
        first = [column for column in start if column is not None]
        return best_mix(first, self.hops.capacity, groups=len(self.roots), price=self.price, rounds=300)

    def drawn(self, seed: int, number: int = _DRAWN) -> list[Column]:
        """Trees with random prices, over all hops and over the wide ones only: wide trees mean few trees."""
        random = Random(seed)
        widths = sorted({min(self.hops.capacity[r] // t for r, t in load) for load in self.hops.loads.values()})
        found: dict[Column, None] = {}
        for width in widths:
            wide = [
                arc for arc, load in self.hops.loads.items() if all(self.hops.capacity[r] >= t * width for r, t in load)
            ]
            for _ in range(number):
                cost = {arc: 1.0 + random.random() for arc in wide}
                if self.use == BOTH:
                    cost = {(a, b): cost[min(a, b), max(a, b)] for a, b in wide if (b, a) in cost}
                for group in range(len(self.roots)):
                    column = self.cheapest(cost, group)
                    if column is not None:
                        found[column] = None
        return list(found)

    def few(self, mix: Mix, limits: Limits, *, loss: Fraction = Fraction(0), cheapest: bool = False) -> Mix:
        """At least (1 - loss) of the rate of `mix` with as few trees as the search finds.

        One root without helpers on a small machine: a number of trees that is proved to be least, if the proof ends
        in time (`fewest_trees`). Otherwise the fewest of those known (`fewest_columns`). cheapest: the least sum of
        rate times cost comes first.
        """
        rate = mix.rate * (1 - loss)
        small = len(self.roots) == 1 and not self.helpers and self.hops.members <= MOST_MEMBERS
        if small and not cheapest:
            found = self._fewest(mix, rate, limits)
            if found is not None:
                return found
        drawn = self.drawn(limits.seed, max(4, _DRAWN // len(self.roots)))
        found = fewest(mix, drawn, self.hops.capacity, rate=rate, limits=limits, cheapest=cheapest)
        return shortened(found, self.hops.capacity)

    def _fewest(self, mix: Mix, rate: Fraction, limits: Limits) -> Mix | None:
        """The provably fewest trees; None if the search gives up before that is settled."""
        used = (DOWN, UP) if self.use == BOTH else (self.use,)
        short = replace(limits, effort=limits.effort / 4)
        for trees in range(1, len(mix.columns) + 1):
            answer, found = search(self.hops, self.roots[0], used, rate, rate.denominator, trees, short)
            if answer is Answer.FOUND:
                return replace(
                    mix, columns=tuple(self.column(arcs) for arcs, _ in found), rates=tuple(value for _, value in found)
                )
            if answer is Answer.UNKNOWN:
                return None
        return None
