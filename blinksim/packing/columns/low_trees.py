"""The lowest trees at a rate, and the fewest of them: all trees of a height, a linear program, then whole numbers.

The best rate of trees of bounded height is a linear program over all of them (`blinksim.packing.columns.column_mix`); the
fewest at that rate an integer program, as in Blink (Wang et al. 2020, section 4). Looking first for answers that a
symmetry of the machine maps onto themselves makes that program a fraction of its size; its own bound says how few could
do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil
from typing import Any

from ortools.sat.python import cp_model

from blinksim.packing.columns.column_mix import Column
from blinksim.packing.columns.hops import Arc, Hops

Turn = Mapping[int, int]
# Symmetries that are looked at, and steps of the search for them.
_TURNS, _STEPS = 6, 50_000
# Seconds that a short search may take longer where others use the processor too, so that its answer is the same there.
_GRACE = 10.0


# --- all low trees ------------------------------------------------------------------------------------------------


def low_trees(hops: Hops, root: int, height: int) -> Iterator[tuple[Arc, ...]]:
    """All out-trees of at most that height from `root` to all members, as arcs with parents first."""
    members = hops.vertices[: hops.members]

    def extend(
        level: Sequence[int], inside: frozenset[int], arcs: tuple[Arc, ...], left: int
    ) -> Iterator[tuple[Arc, ...]]:
        rest = [vertex for vertex in members if vertex not in inside]
        if not rest:
            yield arcs
        elif left:
            # Whoever joins on this level hangs below one of the last; None waits for a later level.
            later = (None,) if left > 1 else ()
            parents = [[*(above for above in level if (above, vertex) in hops.routes), *later] for vertex in rest]
            for choice in product(*parents):
                more = tuple((above, vertex) for vertex, above in zip(rest, choice, strict=True) if above is not None)
                new = [vertex for _, vertex in more]
                if new:
                    yield from extend(new, inside.union(new), arcs + more, left - 1)

    yield from extend([root], frozenset([root]), (), height)


def entry_trees(hops: Hops, nodes: Sequence[Sequence[int]], root: int) -> Iterator[tuple[Arc, ...]]:
    """Trees of height 2 over several nodes: `root` sends to its own node, and to one entry in each other node.

    nodes: the members of every node. The n-th tree enters every node at the n-th (counted round) member that a hop from
    the root leads to and that reaches the rest of its node by hops.
    """
    routes = hops.routes
    own = [(root, other) for node in nodes if root in node for other in node if other != root]
    entries = [
        [here for here in node if (root, here) in routes and all(b == here or (here, b) in routes for b in node)]
        for node in nodes
        if root not in node
    ]
    if not all(arc in routes for arc in own) or not all(entries):
        return
    for turn in range(max(map(len, entries), default=0)):
        chosen = [options[turn % len(options)] for options in entries]
        others = [next(node for node in nodes if here in node) for here in chosen]
        below = [(here, b) for here, node in zip(chosen, others, strict=True) for b in node if b != here]
        yield (*own, *((root, here) for here in chosen), *below)


# --- symmetries ---------------------------------------------------------------------------------------------------


def turns(hops: Hops) -> list[Turn]:
    """Permutations of the members, other than the identity, that map hops and what they share onto equal ones.

    At most `_TURNS`, by a search that gives up after `_STEPS`; those that leave no member in place come first.
    """
    members = hops.vertices[: hops.members]
    widths = {arc: tuple(sorted((hops.capacity[r], times) for r, times in load)) for arc, load in hops.loads.items()}
    users: dict[int, set[tuple[Arc, int]]] = {}
    for arc, load in hops.loads.items():
        for resource, times in load:
            users.setdefault(resource, set()).add((arc, times))
    shared = {(frozenset(use), hops.capacity[resource]) for resource, use in users.items()}
    found: list[Turn] = []
    steps = 0

    def alike(here: int, other: int, image: list[int]) -> bool:
        return all(
            widths.get((one, here)) == widths.get((to, other)) and widths.get((here, one)) == widths.get((other, to))
            for one, to in zip(members, image, strict=False)
        )

    def extend(image: list[int]) -> None:
        nonlocal steps
        steps += 1
        if len(found) == 4 * _TURNS or steps > _STEPS:
            return
        if len(image) == len(members):
            turn = dict(zip(members, image, strict=True))
            moved = {
                (frozenset(((turn[a], turn[b]), times) for (a, b), times in use), capacity) for use, capacity in shared
            }
            if moved == shared and image != list(members):
                found.append(turn)
            return
        here = members[len(image)]
        for other in members:
            if other not in image and alike(here, other, image):
                extend([*image, other])

    extend([])
    return sorted(found, key=lambda turn: sum(a == b for a, b in turn.items()))[:_TURNS]


def images(columns: Sequence[Column], turn: Turn, roots: Sequence[int], *, both: bool = False) -> list[int] | None:
    """For each column the number of the one that the turn maps it to; None if some column has none.

    roots: the root of every group of columns. both: trees are used both ways, so that their roots do not matter.
    """
    group = {root: number for number, root in enumerate(roots)}

    def shape(arcs: Iterable[Arc]) -> Hashable:
        return frozenset(frozenset(arc) if both else arc for arc in arcs)

    place = {(shape(column.arcs), column.group): number for number, column in enumerate(columns)}
    found = []
    for column in columns:
        arcs = shape((turn[a], turn[b]) for a, b in column.arcs)
        number = place.get((arcs, column.group if both else group.get(turn[roots[column.group]], -1)))
        if number is None:
            return None
        found.append(number)
    return found


# --- the fewest ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """amounts: of each column, as multiples of a common part. least: no selection of these columns has fewer."""

    amounts: tuple[int, ...]
    least: int

    @property
    def count(self) -> int:
        return sum(amount > 0 for amount in self.amounts)


@dataclass(frozen=True)
class Choice:
    """Columns, of which every group needs the same `rate` in multiples of 1/parts, under the capacities."""

    columns: Sequence[Column]
    capacity: Sequence[int]
    rate: Fraction
    parts: int

    @property
    def least(self) -> int:
        """A number of columns that is surely needed: no column of a group can have more than fits alone."""
        widest: dict[int, Fraction] = {}
        for column in self.columns:
            alone = min(Fraction(self.capacity[resource], times) for resource, times in column.load)
            widest[column.group] = max(widest.get(column.group, Fraction(0)), alone)
        return sum(ceil(self.rate / most) for most in widest.values())

    def fewest(
        self, seconds: float, seed: int = 0, *, maps: Sequence[Sequence[int]] = (), known: Sequence[int] | None = None
    ) -> Selection | None:
        """As few columns as are found in about `seconds`; None if these columns cannot make the rate, or time is over.

        maps: symmetries of the columns (`images`); for each, an answer that it maps onto itself is looked for first.
        known: amounts to start from. One worker; the answer is the same every time unless the clock ends the search.
        """
        best = None if known is None else Selection(tuple(known), self.least)
        if best is not None and best.count == best.least:
            return best
        for number in maps:
            found = self._solve(seconds / 2 / len(maps), seed, number, None)
            if found is not None and (best is None or found.count < best.count):
                best = found
        rest = seconds / 2 if maps else seconds
        found = self._solve(rest, seed, range(len(self.columns)), None if best is None else best.amounts)
        if found is None:
            return best
        return found if best is None or found.count < best.count else Selection(best.amounts, found.least)

    def _solve(self, seconds: float, seed: int, image: Sequence[int], hint: Sequence[int] | None) -> Selection | None:
        orbit = _orbits(image)
        total = int(self.rate * self.parts)
        model = cp_model.CpModel()
        amounts: dict[int, Any] = {}
        used: dict[int, Any] = {}
        for number in sorted(set(orbit)):
            most = min([total, *(self.capacity[r] * self.parts // t for r, t in self.columns[number].load)])
            amount, use = model.new_int_var(0, most, f"a{number}"), model.new_bool_var(f"u{number}")
            model.add(amount <= most * use)
            model.add(amount >= use)
            if hint is not None:
                model.add_hint(amount, hint[number])
                model.add_hint(use, hint[number] > 0)
            amounts[number], used[number] = amount, use
        rows: dict[int, dict[int, int]] = {}
        groups: dict[int, dict[int, int]] = {}
        for number, column in enumerate(self.columns):
            group = groups.setdefault(column.group, {})
            group[orbit[number]] = group.get(orbit[number], 0) + 1
            for resource, times in column.load:
                row = rows.setdefault(resource, {})
                row[orbit[number]] = row.get(orbit[number], 0) + times
        for resource, row in rows.items():
            model.add(sum(t * amounts[number] for number, t in row.items()) <= self.capacity[resource] * self.parts)
        for group in groups.values():
            model.add(sum(times * amounts[number] for number, times in group.items()) == total)
            model.add_at_least_one(used[number] for number in group)
        sizes = {number: orbit.count(number) for number in used}
        model.minimize(sum(sizes[number] * use for number, use in used.items()))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed
        # A unit of the solver's own measure of effort takes 0.3 to 0.4 s; the clock ends only what is much slower.
        solver.parameters.max_deterministic_time = 2 * seconds
        solver.parameters.max_time_in_seconds = 2 * seconds + _GRACE
        if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        least = max(round(solver.best_objective_bound), self.least)
        return Selection(tuple(solver.value(amounts[number]) for number in orbit), least)


def _orbits(image: Sequence[int]) -> list[int]:
    """For each column the least number in the cycle of `image` that it lies in."""
    orbit = [-1] * len(image)
    for start in range(len(image)):
        place = start
        while orbit[place] < 0:
            orbit[place] = start
            place = image[place]
    return orbit
