"""The fewest trees from one root at a given rate, by CP-SAT over T trees with unknown hops and rates.

Blink reduces its trees by an integer program over those of an approximate packing (Wang et al. 2020, section 4.1). Here
the trees themselves are unknown, so that "T - 1 trees cannot do it" is a proof (for rates that are multiples of 1/D).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ortools.sat.python import cp_model

from blinksim.packing.columns.hops import Arc, Hops
from blinksim.packing.columns.solver_limits import Limits

# Members up to which the model is small enough.
MOST_MEMBERS = 10


class Answer(Enum):
    """How a search for T trees ended."""

    FOUND = "found"
    IMPOSSIBLE = "impossible"
    UNKNOWN = "unknown"


def search(
    hops: Hops, root: int, used: Sequence[str], rate: Fraction, parts: int, trees: int, limits: Limits
) -> tuple[Answer, list[tuple[tuple[Arc, ...], Fraction]]]:
    """`trees` out-trees from `root` to all members, with rates that are multiples of 1/`parts` and add up to `rate`.

    used: ``down`` and/or ``up``: a tree loads its arcs away from the root, those towards it, or both. Low trees are
    preferred. Returns the trees with their rates (arcs away from the root, parents
    first), or none.
    """
    program = _Program(hops, root, used, int(rate * parts))
    amounts = program.amounts(trees)
    taken = [program.tree(amount) for amount in amounts]
    model = program.finish(parts)
    solver = limits.solver()
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Answer.IMPOSSIBLE, []
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer.UNKNOWN, []
    found = []
    for amount, takes in zip(amounts, taken, strict=True):
        chosen = [arc for arc, taken_here in takes.items() if solver.value(taken_here)]
        found.append((_parents_first(root, chosen), Fraction(solver.value(amount), parts)))
    return Answer.FOUND, found


class _Program:
    """Trees with unknown hops and amounts, the sum of which is `total`. heights: the variable of each tree's height."""

    def __init__(self, hops: Hops, root: int, used: Sequence[str], total: int) -> None:
        self.hops, self.root, self.used, self.total = hops, root, used, total
        self.members = hops.vertices[: hops.members]
        self.model = cp_model.CpModel()
        self.heights: list[Any] = []
        self._rows: dict[int, list[Any]] = {}

    def amounts(self, trees: int) -> list[Any]:
        """What each tree carries, the most first."""
        amounts = [self.model.new_int_var(1, self.total, f"w{t}") for t in range(trees)]
        self.model.add(sum(amounts) == self.total)
        for wide, narrow in pairwise(amounts):
            self.model.add(wide >= narrow)
        return amounts

    def tree(self, amount: Any) -> dict[Arc, Any]:
        """One more tree: for each hop that it may take, the variable that selects it."""
        model, last = self.model, len(self.members) - 1
        depth = {v: model.new_int_var(v != self.root, 0 if v == self.root else last, "") for v in self.members}
        self.heights.append(model.new_int_var(1, last, ""))
        takes: dict[Arc, Any] = {}
        for a, b in self.hops.routes:
            ways = [_way((a, b), way) for way in self.used]
            if b == self.root or a not in depth or b not in depth or not all(way in self.hops.routes for way in ways):
                continue
            takes[a, b] = model.new_bool_var("")
            carried = model.new_int_var(0, self.total, "")
            model.add(depth[b] == depth[a] + 1).only_enforce_if(takes[a, b])
            model.add(carried == amount).only_enforce_if(takes[a, b])
            model.add(carried == 0).only_enforce_if(~takes[a, b])
            for resource, times in self.hops.load(ways):
                self._rows.setdefault(resource, []).append(times * carried)
        for v in self.members:
            model.add(depth[v] <= self.heights[-1])
            if v != self.root:
                model.add_exactly_one(takes_here for (_, b), takes_here in takes.items() if b == v)
        return takes

    def finish(self, parts: int) -> cp_model.CpModel:
        """The model with its capacities, in multiples of 1/`parts`, and low trees as its aim."""
        for resource, terms in self._rows.items():
            self.model.add(sum(terms) <= self.hops.capacity[resource] * parts)
        self.model.minimize(sum(self.heights))
        return self.model


def _parents_first(root: int, arcs: Sequence[Arc]) -> tuple[Arc, ...]:
    """The arcs of a tree, breadth first from its root."""
    out: dict[int, list[int]] = {}
    for a, b in arcs:
        out.setdefault(a, []).append(b)
    order = [root]
    found: list[Arc] = []
    for a in order:
        found += [(a, b) for b in out.get(a, ())]
        order += out.get(a, ())
    return tuple(found)


def _way(arc: Arc, way: str) -> Arc:
    return arc if way == "down" else arc[::-1]
