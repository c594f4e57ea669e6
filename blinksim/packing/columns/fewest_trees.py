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
    """What a search for T trees ended with."""

    FOUND = "found"
    IMPOSSIBLE = "impossible"
    UNKNOWN = "unknown"


def search(
    hops: Hops, root: int, used: Sequence[str], rate: Fraction, parts: int, trees: int, limits: Limits
) -> tuple[Answer, list[tuple[tuple[Arc, ...], Fraction]]]:
    """`trees` out-trees from `root` to all members, with rates that are multiples of 1/`parts` and add up to `rate`.

    used: ``down`` and/or ``up``: whether a tree loads its arcs away from the root, those towards it, or both. Among the
    answers one with low trees is preferred. Returns the trees with their rates (arcs away from the root, parents
    first), or none.
    """
    members = hops.vertices[: hops.members]
    inside = set(members)
    total = int(rate * parts)
    model = cp_model.CpModel()
    amounts = [model.new_int_var(1, total, f"w{t}") for t in range(trees)]
    model.add(sum(amounts) == total)
    for wide, narrow in pairwise(amounts):
        model.add(wide >= narrow)
    rows: dict[int, list[Any]] = {}
    taken: list[dict[Arc, Any]] = []
    heights = []
    for amount in amounts:
        depth = {v: model.new_int_var(v != root, 0 if v == root else len(members) - 1, "") for v in members}
        heights.append(model.new_int_var(1, len(members) - 1, ""))
        takes: dict[Arc, Any] = {}
        for a, b in hops.routes:
            ways = [_way((a, b), way) for way in used]
            if b == root or not {a, b} <= inside or not all(way in hops.routes for way in ways):
                continue
            takes[a, b] = model.new_bool_var("")
            carried = model.new_int_var(0, total, "")
            model.add(depth[b] == depth[a] + 1).only_enforce_if(takes[a, b])
            model.add(carried == amount).only_enforce_if(takes[a, b])
            model.add(carried == 0).only_enforce_if(~takes[a, b])
            for resource, times in hops.load(ways):
                rows.setdefault(resource, []).append(times * carried)
        for v in members:
            model.add(depth[v] <= heights[-1])
            if v != root:
                model.add_exactly_one(x for (_, b), x in takes.items() if b == v)
        taken.append(takes)
    for resource, terms in rows.items():
        model.add(sum(terms) <= hops.capacity[resource] * parts)
    model.minimize(sum(heights))
    solver = limits.solver()
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Answer.IMPOSSIBLE, []
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer.UNKNOWN, []
    found = []
    for amount, takes in zip(amounts, taken, strict=True):
        out: dict[int, list[int]] = {}
        for (a, b), x in takes.items():
            if solver.value(x):
                out.setdefault(a, []).append(b)
        order = [root]
        arcs: list[Arc] = []
        for a in order:
            arcs += [(a, b) for b in out.get(a, ())]
            order += out.get(a, ())
        found.append((tuple(arcs), Fraction(solver.value(amount), parts)))
    return Answer.FOUND, found


def _way(arc: Arc, way: str) -> Arc:
    return arc if way == "down" else arc[::-1]
