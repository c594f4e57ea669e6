"""Linear programs of flows and of trees under shared capacities; their duals are link lengths.

OR-Tools' GLOP solves them. It is a revised simplex (Dantzig 1963), so its answers are vertices: values and
duals that become short fractions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from blinksim.budget import seconds_left
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Bools, Floats, Ints
from blinksim.graphs.connectivity import grouped
from blinksim.graphs.network import Flow, Network, NetworkOrbits, single_orbits
from blinksim.topology.graph import Topology

# Flow variables (`flow_program`: sources times arcs) up to which a program is built, for bounds and packings
# alike, and GLOP's own count of its work, about seconds and the same on every machine, after which it is
# given up. Then a bound is a cut, and a packing takes the shortest routes.
MOST_FLOWS = 300_000
MOST_WORK = 20.0
# The part of its time by which GLOP may stop too early.
_LAST = 0.1
# Rounds in which a program of trees (`tree_program`) may ask for more sets; it rarely needs more than 20.
MOST_ROUNDS = 200


class Program:
    """Maximise a sum of non-negative variables under rows; build it, `solve` it, read `value`, `values` and `duals`."""

    def __init__(self) -> None:
        # It takes longer to load than most trees take that need no program.
        from ortools.linear_solver.python import model_builder_helper

        self._glop, self._model = model_builder_helper, model_builder_helper.ModelBuilderHelper()
        self._variables = 0
        self.value = 0.0
        self.values: Floats = np.zeros(0)
        self.duals: Floats = np.zeros(0)

    def variables(self, count: int) -> range:
        """Indices of `count` new variables, each at least 0."""
        if count:
            bounds: tuple[Any, Any, Any] = np.zeros(count), np.full(count, np.inf), np.zeros(count, dtype=bool)
            self._model.add_var_array_with_bounds(*bounds, "")
        first, self._variables = self._variables, self._variables + count
        return range(first, self._variables)

    def row(self, terms: Sequence[tuple[int, float]], *, at_most: float, at_least: float = -np.inf) -> int:
        """The index of a new row at_least <= sum of factor times variable <= at_most."""
        number: int = self._model.add_linear_constraint()
        self._model.set_constraint_lower_bound(number, at_least)
        self._model.set_constraint_upper_bound(number, at_most)
        for variable, factor in terms:
            self._model.safe_add_term_to_constraint(number, variable, factor)
        return number

    def solve(self, objective: Sequence[tuple[int, float]]) -> float:
        """The greatest sum of factor times variable; raises `InfeasibleError` if GLOP finds no optimum.

        What ends the work around it (`deadline`) ends this too.
        """
        for variable, factor in objective:
            self._model.set_var_objective_coefficient(variable, factor)
        self._model.set_maximize(True)
        solver = self._glop.ModelSolverHelper("glop")
        left = seconds_left()
        limits = "" if left is None else f" max_time_in_seconds: {left}"
        solver.set_solver_specific_parameters(f"max_deterministic_time: {MOST_WORK}{limits}")
        solver.solve(self._model)
        if solver.status() != self._glop.SolveStatus.OPTIMAL:
            seconds_left(_LAST * (left or 0.0))
            raise InfeasibleError(f"the linear program of this bound has no optimum ({solver.status().name.lower()})")
        self.values, self.duals = np.asarray(solver.variable_values()), np.asarray(solver.dual_values())
        self.value = float(solver.objective_value())
        return self.value


class Growing:
    """Minimise one variable, the first, under rows that stay; further variables join between calls of `solve`.

    The simplex goes on from where it ended, which for column generation is several times quicker than a new
    `Program`.
    """

    def __init__(self) -> None:
        from ortools.linear_solver import pywraplp  # type: ignore[attr-defined]

        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._solver.SetSolverSpecificParametersAsString(f"max_deterministic_time: {MOST_WORK}")
        # What presolving takes out is no basis to go on from. If going on fails numerically, it starts anew.
        self._onward, self._anew = pywraplp.MPSolverParameters(), pywraplp.MPSolverParameters()
        self._onward.SetIntegerParam(self._onward.INCREMENTALITY, self._onward.INCREMENTALITY_ON)
        self._onward.SetIntegerParam(self._onward.PRESOLVE, self._onward.PRESOLVE_OFF)
        self._anew.SetIntegerParam(self._anew.INCREMENTALITY, self._anew.INCREMENTALITY_OFF)
        self._optimal = pywraplp.Solver.OPTIMAL
        self._variables, self._rows = list[Any](), list[Any]()
        self.variable()
        self._solver.Objective().SetCoefficient(self._variables[0], 1.0)
        self._solver.Objective().SetMinimization()

    def variable(self, terms: Sequence[tuple[int, float]] = ()) -> int:
        """The index of a new variable of at least 0, which occurs in these rows with these factors."""
        new = self._solver.NumVar(0.0, self._solver.infinity(), "")
        for row, factor in terms:
            self._rows[row].SetCoefficient(new, factor)
        self._variables.append(new)
        return len(self._variables) - 1

    def row(self, terms: Sequence[tuple[int, float]], *, at_least: float, at_most: float = np.inf) -> int:
        """The index of a new row at_least <= sum of factor times variable <= at_most."""
        row = self._solver.Constraint(at_least, at_most)
        for variable, factor in terms:
            row.SetCoefficient(self._variables[variable], factor)
        self._rows.append(row)
        return len(self._rows) - 1

    def solve(self) -> tuple[Floats, Floats]:
        """The values of all variables, and the duals of all rows.

        What ends the work around it (`deadline`) ends this too. Raises `InfeasibleError` if there is no
        optimum.
        """
        for settings in (self._onward, self._anew):
            self._solver.SetTimeLimit(int(1000 * (seconds_left() or 0)))  # 0: none
            if self._solver.Solve(settings) == self._optimal:
                values = np.array([variable.solution_value() for variable in self._variables])
                return values, np.array([row.dual_value() for row in self._rows])
        raise InfeasibleError("a linear program that grows has no optimum")


# Largest denominators, in the order in which they are tried: the values at a vertex of a program are short
# fractions.
DENOMINATORS = (1, 2, 3, 4, 5, 6, 8, 12, 24, 60, 120, 840, 5040)
_GRID = 2**20
# Accuracy of a program's values, as a part of the greatest.
_ACCURACY = 1e-10
# Largest denominator whose multiples a double can tell apart.
_TOLD_APART = 2**53

Rounding = Callable[[Sequence[float]], list[Fraction]]


def roundings(best: Fraction) -> Iterator[Rounding]:
    """Ways to turn a program's values into fractions, the likeliest first; the last rounds down and always fits.

    A vertex has short fractions, or multiples of those of the rate `best` that it attains.
    """
    yield _common
    for most in DENOMINATORS:
        yield partial(_short, most=most)
    for times in DENOMINATORS[:-2]:
        if best.denominator * times <= _TOLD_APART:
            yield partial(_multiples, denominator=best.denominator * times)

    def down(values: Sequence[float]) -> list[Fraction]:
        step = Fraction(max(1, round(max(values))), _GRID)
        return [int(value / float(step) + 1e-6) * step for value in values]

    yield down


def _common(values: Sequence[float]) -> list[Fraction]:
    """With the least common denominator that the solver's accuracy can tell; where there is none, with a large one."""
    error = _ACCURACY * max(values)
    denominator = 1
    for value in values:
        times = value * denominator
        for most in (1, 10, 100, 1000, 10**4, 10**5, 10**6):
            near = Fraction(times).limit_denominator(most)
            if abs(near - times) <= error * denominator:
                break
        denominator *= near.denominator
        if denominator * error > 1e-3:
            break
    return _multiples(values, denominator)


def _short(values: Sequence[float], most: int) -> list[Fraction]:
    return [Fraction(value).limit_denominator(most) for value in values]


def _multiples(values: Sequence[float], denominator: int) -> list[Fraction]:
    return [Fraction(round(value * denominator), denominator) for value in values]


# Relative difference between the program's value and the exact bound from its duals at which they count as
# equal.
AGREE = 1e-9


@dataclass(frozen=True)
class SharedCapacity:
    """A capacity that arcs share: `uses` are (arc, part of the capacity that one unit of flow takes)."""

    uses: tuple[tuple[int, float], ...]
    capacity: int | Fraction


@dataclass(frozen=True)
class Solution:
    """value: rate per unit of weight, in units of the network. flows: by commodity and arc.

    duals: by shared capacity.
    """

    value: float
    flows: list[list[float]]
    duals: list[float]


def shared_capacities(topology: Topology, net: Network) -> list[SharedCapacity]:
    """One per arc without a bus, and one per bus (which its links share by time)."""
    capacity = net.capacity.tolist()
    bus_of = [*(link.bus for link in topology.links), *(None for _ in net.limits)]
    found = [SharedCapacity(((arc, 1.0),), capacity[arc]) for arc, bus in enumerate(bus_of) if bus is None]
    for arcs in grouped((bus, arc) for arc, bus in enumerate(bus_of) if bus is not None).values():
        most = max(capacity[arc] for arc in arcs)
        found.append(SharedCapacity(tuple((arc, most / capacity[arc]) for arc in arcs), most))
    return found


def with_adders(topology: Topology, net: Network) -> tuple[list[str], list[SharedCapacity], dict[int, int]]:
    """What a collective with sums in switches can use up: the names of arcs, then of adders, and their capacities.

    Adders with a rate count as arcs behind those of the network. The last mapping has the device of each.
    """
    names = [link.name for link in topology.links] + list(net.limits)
    shared = shared_capacities(topology, net)
    devices = {}
    for place, device in enumerate(topology.devices):
        if device.reduction_rate is not None:
            devices[len(names)] = place
            shared.append(SharedCapacity(((len(names), 1.0),), device.reduction_rate / net.unit))
            names.append(f"{device.name} sums")
    return names, shared, devices


def capacity_rows(
    program: Program,
    shared: Sequence[SharedCapacity],
    orbits: NetworkOrbits,
    load: Callable[[int], list[tuple[int, float]]],
    scale: float,
) -> list[list[int]]:
    """One row per orbit of shared capacities: what `load` gives for an arc, summed over its uses, fits.

    Capacities are divided by `scale`. Returns (row, size of its orbit) for each of `shared`, whose dual is
    that of the row, divided by the size.
    """
    orbits_of = (tuple(sorted(int(orbits.arc[arc]) for arc, _ in one.uses)) for one in shared)
    alike = grouped((orbit, number) for number, orbit in enumerate(orbits_of))
    rows: list[list[int]] = [[]] * len(shared)
    for group in alike.values():
        capacity = shared[group[0]]
        terms = [(variable, factor * part) for arc, part in capacity.uses for variable, factor in load(arc)]
        row = program.row(terms, at_most=capacity.capacity / scale)
        for number in group:
            rows[number] = [row, len(group)]
    return rows


def agree(rate: Fraction | float, value: float) -> bool:
    """True if an exact rate and a program's value are the same up to the solver's arithmetic."""
    return abs(float(rate) - value) <= AGREE * value


@dataclass(frozen=True, slots=True)
class Commodity:
    """What one vertex sends: to every vertex of `weights`, in their ratio."""

    source: int
    weights: Mapping[int, int]


def solve_flows(
    net: Network,
    shared: Sequence[SharedCapacity],
    commodities: Sequence[Commodity],
    *,
    orbits: NetworkOrbits | None = None,
) -> Solution:
    """The greatest rate that all commodities reach together; raises `InfeasibleError` if the solver finds no optimum.

    orbits: equivalent arcs and ranks, with one commodity for each orbit of members, whose flow the symmetries
    turn into those of the others (default: none are equivalent).
    """
    copies = orbits.count if orbits else (1,) * len(commodities)
    orbits = orbits or single_orbits(net)
    program = Program()
    rate = program.variables(1)[0]
    flows = [program.variables(len(net.tail)) for _ in commodities]
    scale = float(net.capacity.max())
    orbit = orbits.arc.tolist()
    groups = grouped((number, arc) for arc, number in enumerate(orbit))

    def load(arc: int) -> list[tuple[int, float]]:
        # All copies of a source's flow together load the arcs of an orbit equally.
        group = groups[orbit[arc]]
        return [(flow[other], count / len(group)) for flow, count in zip(flows, copies, strict=True) for other in group]

    # Weights may be bytes: the program's numbers stay near 1 if the largest of them is the unit.
    unit = float(max((max(one.weights.values()) for one in commodities), default=1))
    rows = capacity_rows(program, shared, orbits, load, scale)
    for one, flow in zip(commodities, flows, strict=True):
        # Rows that let every vertex but the source keep its weight's part of the rate, and pass on the rest.
        balance: list[list[tuple[int, float]]] = [[] for _ in range(net.vertices)]
        for variable, a, b in zip(flow, net.tail.tolist(), net.head.tolist(), strict=True):
            balance[b].append((variable, 1.0))
            balance[a].append((variable, -1.0))
        for vertex, terms in enumerate(balance):
            if vertex != one.source:
                weight = one.weights.get(vertex, 0)
                program.row([*terms, (rate, -weight / unit)] if weight else terms, at_least=0.0, at_most=0.0)
    value = program.solve([(rate, 1.0)]) / unit
    carried = [[float(program.values[variable]) * scale for variable in flow] for flow in flows]
    return Solution(value * scale, carried, [float(program.duals[row]) / size for row, size in rows])


# Variable and factor: a root's rate as a part of the program.
Supply = Mapping[int, tuple[int, float]]

# Flows take whole numbers: the program's values in these parts of the greatest. A set is broken by more than
# this part.
_PARTS = 2**40
_BROKEN = 1e-9
# Rounds after which one sort of trees after the other is worth something for what it uses as well: where many vertices
# are best, each breaks other sets, and those that use most break fewest. Without an EFA, eight p5 take 27 rounds so,
# where means of vertices broke sets after 400; with a slow NVLink, two take 15 of 187.
_VERTICES, _FILL = 10, 1e-5


@dataclass(frozen=True)
class TreeSolution:
    """value: the rate of all out-trees together, in units of the network. duals: one per shared capacity.

    attained: false if sets were still broken after all rounds; then the value, as what follows from
    the duals, is an upper bound, and the uses hold trees of a somewhat lower rate. roots: the rates that the
    program chose, one for each orbit of members, or a common one where the ratio is given. used: what
    out-trees use of each orbit of arcs, and then what in-trees do, unless they are the out-trees reversed.
    """

    value: float
    attained: bool
    roots: list[float]
    used: list[list[float]]
    duals: list[float]


def solve_trees(
    net: Network,
    shared: Sequence[SharedCapacity],
    weights: Mapping[int, int] | None,
    *,
    both: bool = False,
    orbits: NetworkOrbits | None = None,
    rounds: int = MOST_ROUNDS,
) -> TreeSolution:
    """The trees with the greatest rate; raises `InfeasibleError` if the solver finds no optimum.

    weights: the ratio of the roots' rates, by vertex; None leaves it free. both: in-trees with the same roots
    and rates run at the same time. orbits: equivalent arcs and ranks; they must respect the weights (default:
    none are equivalent). rounds: after which the program is given up.
    """
    orbits = orbits or single_orbits(net)
    program = Program()
    scale = float(net.capacity.max())
    members = net.members.tolist()
    if weights is None:
        rates = program.variables(len(orbits.first))
        objective = [(rate, float(count)) for rate, count in zip(rates, orbits.count, strict=True)]
        supply = {vertex: (rates[orbit], 1.0) for vertex, orbit in zip(members, orbits.member, strict=True)}
    else:
        rates = program.variables(1)
        objective = [(rates[0], 1.0)]
        total = sum(weights.values())
        supply = {vertex: (rates[0], weight / total) for vertex, weight in weights.items() if weight}
    # In a symmetric network the in-trees may be taken as the out-trees reversed: each link then carries its
    # own use and its partner's.
    partner = net.partner.tolist() if both and net.partner is not None else None
    forests = [_Forest(program, net, supply, orbits)]
    if both and partner is None:
        forests.append(_Forest(program, net.reversed(), supply, orbits))
    orbit = orbits.arc.tolist()

    def load(arc: int) -> list[tuple[int, float]]:
        arcs = [arc] if partner is None else [arc, partner[arc]]
        return [(forest.used[orbit[number]], 1.0) for forest in forests for number in arcs]

    rows = capacity_rows(program, shared, orbits, load, scale)
    point, whole = _converged(program, objective, forests, rounds)
    duals = [float(program.duals[row]) / size for row, size in rows]
    if partner is not None:
        # A link and its partner have the same row, and the solver prices only one.
        holder = {arc: number for number, capacity in enumerate(shared) for arc, _ in capacity.uses}
        mates = [holder[partner[capacity.uses[0][0]]] for capacity in shared]
        duals = [(dual + duals[mate]) / 2 for dual, mate in zip(duals, mates, strict=True)]
    roots = (point[list(rates)] * scale).tolist()
    used = [(point[list(forest.used)] * scale).tolist() for forest in forests]
    return TreeSolution(program.value * scale, whole, roots, used, duals)


def widest(net: Network) -> int:
    """The member that can send most: the first root to try where any will do.

    One root often suffices, always where links are equal both ways (a tree that is used up and down may hang
    from any of its vertices), and leaves far fewer answers that are equally good.
    """
    return int(net.members[np.bincount(net.tail, net.capacity, net.vertices)[net.members].argmax()])


def _converged(
    program: Program, goal: Sequence[tuple[int, float]], forests: Sequence[_Forest], rounds: int
) -> tuple[Floats, bool]:
    """Values of the program's variables that break no set, with the rows that they took; the last ones at worst."""
    mean, added, number = np.zeros(0), 1, 0
    for number in range(rounds):
        turn = forests[number % len(forests)] if number >= _VERTICES else None
        worth = ((each, _FILL * (forest is turn)) for forest in forests if turn for each in forest.used)
        program.solve([*goal, *worth])
        point = np.maximum(program.values, 0)
        # Out-trees and in-trees share what is left, in halves.
        mean = (mean + point) / 2 if number > _VERTICES else point
        broken, added = np.sum([forest.mend(mean) for forest in forests], axis=0).tolist()
        if broken and not added:
            # The mean breaks what vertices before it did.
            mean = point
            added = sum(forest.mend(point)[1] for forest in forests)
        if not added:
            break
    if number >= _VERTICES:
        program.solve([*goal, *((variable, 0.0) for forest in forests for variable in forest.used)])
    return mean, not added and agree(program.value, sum(factor * mean[variable] for variable, factor in goal))


class _Forest:
    """Out-trees in one program: variables for what they use of each orbit of arcs, and the rows that make them reach.

    used: the variables.
    """

    def __init__(self, program: Program, net: Network, supply: Supply, orbits: NetworkOrbits) -> None:
        self.used = program.variables(orbits.arcs)
        self._program, self._net, self._supply = program, net, supply
        self._variable = self.used.start + orbits.arc
        self._sinks = orbits.first
        self._known: set[bytes] = set()
        everywhere = np.arange(net.vertices)
        arcs_at = [
            (orbits.arc[order], np.searchsorted(ends[order], np.arange(net.vertices + 1)))
            for ends in (net.head, net.tail)
            for order in (np.lexsort((orbits.arc, ends)),)
        ]
        seen = set[tuple[bytes, ...]]()
        for vertex in net.forwarders.tolist():
            # Of those with alike arcs one: they would have the same row.
            key = tuple(arcs[start[vertex] : start[vertex + 1]].tobytes() for arcs, start in arcs_at)
            if key not in seen or vertex in supply:
                seen.add(key)
                # A forwarder gives out no more than it takes in, or starts there: it only passes on.
                self._row(net.head == vertex, net.tail == vertex, everywhere == vertex, 1.0)
        for vertex in self._sinks:
            self.add(everywhere != vertex)
            self.add(everywhere == vertex)
        for host in set(net.host[list(self._sinks)].tolist()):
            self.add(net.host == host)
            self.add(net.host != host)

    def add(self, side: Bools) -> bool:
        """Demand that what starts in `side` leaves it; False if that is known, or if `side` lacks no member."""
        key = np.packbits(side).tobytes()
        if key in self._known or side[self._net.members].all():
            return False
        self._known.add(key)
        leaving = side[self._net.tail] & ~side[self._net.head]
        self._row(leaving, np.zeros_like(leaving), side, -1.0)
        return True

    def _row(self, more: Bools, less: Bools, side: Bools, sign: float) -> None:
        """The use of the arcs of `more`, plus sign times what starts in `side`, is no less than that of `less`."""
        terms = Counter[int](self._variable[more].tolist())
        terms.subtract(self._variable[less].tolist())
        row = {variable: float(times) for variable, times in terms.items() if times}
        for vertex, (rate, factor) in self._supply.items():
            if side[vertex]:
                row[rate] = row.get(rate, 0.0) + sign * factor
        self._program.row(list(row.items()), at_least=0.0, at_most=np.inf)

    def mend(self, values: Floats) -> tuple[int, int]:
        """Demands what the program's values break: how many sets that are, and how many of them were not known."""
        sets = list(self.broken(values))
        return len(sets), sum(map(self.add, sets))

    def broken(self, values: Floats) -> Iterator[Bools]:
        """Sets that too little leaves by the program's values: for each sink that is short, its least cuts."""
        net = self._net
        capacity, start = values[self._variable], np.zeros(net.vertices)
        for vertex, (rate, factor) in self._supply.items():
            start[vertex] = values[rate] * factor
        parts = _PARTS / max(float(capacity.max()), float(start.max()), 1e-30)
        whole: Ints = (np.concatenate([start, capacity]) * parts).astype(np.int64)
        need = int(whole[: net.vertices].sum())
        whole[net.vertices :] += 1
        tail = np.concatenate([np.full(net.vertices, net.vertices), net.tail])
        head = np.concatenate([np.arange(net.vertices), net.head])
        for sink in self._sinks:
            flow = Flow(net.vertices + 1, tail, head, whole, net.vertices, sink)
            if flow.value >= need * (1 - _BROKEN):
                # No broken set can hold a sink that receives everything: from here on it is as good as the
                # source.
                whole[sink] = need
            else:
                yield flow.side()[:-1]
                yield ~flow.side(sink=True)[:-1]
