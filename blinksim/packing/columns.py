"""Columns of linear programs over trees, chains and rings: their hops, their best mix, their images.

A hop joins two vertices by a route that passes no third one, and divides its data among all equal routes
(`blinksim.schedule.loads`). Its load counts in whole numbers how often it uses each shared resource (a link,
a bus, a device with a capacity), so machines with and without switches, with wide links and with several
narrow ones, are one case. Symmetries map a choice of columns onto an equally good one.

The best mix of columns under those capacities is a linear program with exact rates; if there are too many
columns to list, those that can improve it are generated from its dual prices (Gilmore and Gomory 1961),
smoothed (P. Wentges, Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming, 1997).
`blinksim.packing.choose` then looks for few columns of the same rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, compress, pairwise, permutations
from math import gcd, inf, lcm
from typing import TypeVar

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Floats
from blinksim.graphs.connectivity import summed
from blinksim.graphs.network import whole
from blinksim.graphs.programs import Growing
from blinksim.schedule.loads import resources
from blinksim.topology.graph import Topology

Arc = tuple[int, int]
Arcs = Collection[Arc] | None
Load = tuple[tuple[int, int], ...]
Weight = TypeVar("Weight", int, float, Fraction)


@dataclass(frozen=True, eq=False)
class Hops:
    """The hops between some devices of a topology.

    vertices: device indices, the members first, in rank order. members: how many of them hold ranks. routes
    and loads, by (device, device): link indices, and (resource, times) pairs. capacity: per resource, in
    whole `unit`s; unit: bytes/s. Where hops leave a resource a part only of what they carry, times and
    capacity are both multiplied until the times are whole. lane: the thinnest lane of any hop, bytes/s.
    """

    vertices: tuple[int, ...]
    members: int
    routes: Mapping[Arc, tuple[int, ...]]
    loads: Mapping[Arc, Load]
    capacity: tuple[int, ...]
    unit: Fraction
    lane: Fraction

    @cached_property
    def next_to(self) -> Mapping[int, tuple[int, ...]]:
        """For every vertex, the vertices that a hop leads to, in the order of `vertices`."""
        return {a: tuple(b for b in self.vertices if (a, b) in self.routes) for a in self.vertices}

    @cached_property
    def both(self) -> Mapping[int, tuple[int, ...]]:
        """For every vertex, the vertices that hops join it to in both directions."""
        return {a: tuple(b for b in others if (b, a) in self.routes) for a, others in self.next_to.items()}

    @property
    def reversed(self) -> Hops:
        """The same machine with every hop reversed, for the dual of a collective."""
        routes = {(b, a): route for (a, b), route in self.routes.items()}
        return replace(self, routes=routes, loads={(b, a): load for (a, b), load in self.loads.items()})

    def load(self, arcs: Iterable[Arc]) -> Load:
        """The load of several hops together."""
        return tuple(sorted(summed(use for arc in arcs for use in self.loads[arc]).items()))

    def cost(self, price: Sequence[float]) -> dict[Arc, float]:
        """Every hop's price, if each use of resource r costs price[r]."""
        return {arc: sum(price[r] * times for r, times in load) for arc, load in self.loads.items()}


def find_hops(topology: Topology, helpers: Sequence[str] = (), *, divided: bool = True, only: Arcs = None) -> Hops:
    """The hops between the members and `helpers` (further devices that trees may branch at).

    divided: what a hop carries is divided among all routes as good as its own. only: the pairs that count;
    default: all. Raises `InfeasibleError` if no two vertices are joined.
    """
    shared, links, head = resources(topology), topology.links, topology.ends[1].tolist()
    uses_of = [shared.members[first:last].tolist() for first, last in pairwise(shared.starts.tolist())]
    vertices = tuple(topology.index[name] for name in (*topology.members, *helpers))
    inside, routes, router = set(vertices), dict[Arc, tuple[int, ...]](), topology.router
    for arc in (arc for arc in permutations(vertices, 2) if only is None or arc in only):
        with suppress(InfeasibleError):
            route = router.route(*arc)
            if inside.isdisjoint(map(head.__getitem__, route[:-1])):
                routes[arc] = route
    if not routes:
        raise InfeasibleError(f"{topology.name}: no link joins two of the members; add link classes or relays")
    equal = {arc: router.routes(*arc) if divided else (route,) for arc, route in routes.items()}
    # How often all routes of a hop use each resource, which are as many as its use is divided among.
    uses = {arc: Counter(chain(*map(uses_of.__getitem__, chain(*paths)))) for arc, paths in equal.items()}
    whole_of = [1] * len(shared.rate)
    for arc, used in uses.items():
        for r, times in used.items():
            whole_of[r] = lcm(whole_of[r], len(equal[arc]) // gcd(times, len(equal[arc])))
    capacity, unit = whole(list(zip(shared.rate, whole_of, strict=True)))
    loads = {
        arc: tuple(sorted((r, times * whole_of[r] // len(equal[arc])) for r, times in used.items()))
        for arc, used in uses.items()
    }
    lane = min(links[i].lane_bandwidth for i in {*chain(*chain(*equal.values()))})
    return Hops(vertices, topology.ranks, routes, loads, tuple(capacity), unit, lane)


def links_as_hops(machine: Topology, part: Topology, helpers: Sequence[str]) -> Hops:
    """Every link of a part of a machine as a hop, in uses of the machine's resources, so that parts compare.

    What forwards is a vertex too, behind the helpers: data take any ways from GPU to GPU, of different
    lengths, in any ratio. Of parallel links all but the first lead through a vertex of their own.
    """
    shared, number = resources(machine), {link.key: place for place, link in enumerate(machine.links)}
    vertices = dict.fromkeys(part.index[name] for name in (*part.members, *helpers))
    vertices |= dict.fromkeys(v for v, device in enumerate(part.devices) if "forward" in device.can)
    routes, loads, beside = dict[Arc, tuple[int, ...]](), dict[Arc, Load](), dict[object, int]()
    for place, link in sorted(enumerate(part.links), key=lambda one: one[1].kind):
        a, b = part.index[link.src], part.index[link.dst]
        if vertices.keys() >= {a, b}:
            if (a, b) in routes:
                own = beside.setdefault((link.kind, *sorted((a, b))), len(part.devices) + len(beside))
                routes[own, b], loads[own, b], b = (), (), own
            uses = shared.members[slice(*shared.starts[number[link.key] :][:2])]
            routes[a, b], loads[a, b] = (place,), tuple((r, 1) for r in sorted(uses.tolist()))
    capacity, unit = whole([(rate, 1) for rate in shared.rate])
    lane = min(link.lane_bandwidth for link in machine.links)
    return Hops((*vertices, *beside.values()), part.ranks, routes, loads, tuple(capacity), unit, lane)


# Shares with a larger common denominator are rounded to multiples of 1/ROUNDED.
# Both leave room to cut the shares into 2^14 pieces.
_MOST_DENOMINATOR = 2**26
_ROUNDED = 2**24
_EPSILON = 1e-7
# What full rows may lack: the less, the smaller the groups that are told apart.
_SLACK = 1e-6, 1e-9, 1e-12
# How near to the best prices that are known the next ones are. Two groups of 8 of full:16 with all others as
# relays take 4.6 s at 0, 2.1 s at 0.5, 1.4 s at 0.8, and 1.0 s so.
_INERTIA = 0.9
# What a full resource costs besides, as a part of all: of ways of one price the emptier is taken. A mesh of
# 2x8 on two p5 with all others as relays takes 9.5 s at 0, 2.4 s at 1e-8, and 2.3 s so.
_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class Column:
    """Something that one unit of rate can use. load: (resource, times). group: all groups get the same rate.

    arcs: its hops. cost: decides between equally good choices, such as the height of a tree. up: the hops of
    the tree towards the root, if it is another one than away from it, with parents first.
    """

    arcs: tuple[Arc, ...]
    load: Load
    cost: int = 0
    group: int = 0
    up: tuple[Arc, ...] = ()


@dataclass(frozen=True, slots=True)
class Mix:
    """Columns with rates, in units of the capacity.

    optimum: the rate of each group that the linear program gives for the columns known to it, in floating
    point. prices: of its resources.
    """

    columns: tuple[Column, ...]
    rates: tuple[Fraction, ...]
    optimum: float
    prices: tuple[float, ...] = ()

    @property
    def rate(self) -> Fraction:
        """The rate of each group, the same for all groups; exact."""
        first = next((column.group for column in self.columns), None)
        return sum((r for c, r in zip(self.columns, self.rates, strict=True) if c.group == first), start=Fraction(0))


Price = Callable[[Sequence[float]], list[Column]]
Weights = Sequence[int | Fraction]
# Rates of some groups, by number.
Rates = Mapping[int, Fraction]


def best_mix(
    columns: Sequence[Column],
    capacity: Sequence[int],
    *,
    weights: Weights = (1,),
    price: Price | None = None,
    rounds: int = 200,
    held: Rates | None = None,
) -> Mix:
    """The columns and rates with the largest rates of groups, in the ratio of their weights, that fit.

    held: groups that keep a rate of their own; at least one does not.

    price: given a price per resource, returns the cheapest columns; those worth more than they cost join.
    None if `columns` are all there are. The rates are exact fractions that fit the capacities exactly; where
    the program's numbers cannot be made exact they are lowered until they fit.
    """
    held, new, tightest = held or {}, columns, inf
    master, centre = _Master(capacity, weights, held), 1 / np.array(capacity, dtype=float)
    for left in reversed(range(rounds)):
        optimum, used = master.solved(new)
        if price is None or not left:
            break
        # The first prices are even; then they lie between the best that are known and those of the program.
        between = centre if tightest == inf else _INERTIA * centre + (1 - _INERTIA) * master.prices
        carried = loads(used)
        full = np.array([carried.get(r, 0.0) for r in range(len(capacity))]) / master.room**2
        for start in (between, master.prices):
            at = start + _TIE * float(start @ master.room) * full
            bound, unit, new = master.judged(price(at.tolist()), at)
            if bound < tightest:
                tightest, centre = bound, at / unit
            if new:
                break
        if not new:
            break
    exact, prices = _exact(used, optimum, capacity, weights, held), tuple(master.prices.tolist())
    return Mix(tuple(c for c, _ in exact), tuple(rate for _, rate in exact), optimum, prices)


class _Master:
    """The linear program of the best mix, which columns may join.

    prices, worth: of every resource, and of every group. held: the rates of groups that keep theirs.
    """

    def __init__(self, capacity: Sequence[int], weights: Weights, held: Rates) -> None:
        self.columns, self.held = dict[Column, None](), held
        self.room, self.scale, self.program = np.array(capacity, dtype=float), float(max(capacity)), Growing()
        room = (self.room / self.scale).tolist()
        self.rows = [self.program.row([], at_least=-inf, at_most=each) for each in room]
        # What the common rate lacks of one that nothing attains is least. Rates count in those of a group.
        free = [group not in held for group in range(len(weights))]
        self.weights = [float(held[g]) / self.scale if g in held else float(w) for g, w in enumerate(weights)]
        self.most = sum(room) / max(compress(self.weights, free))
        ends = (([(0, 1.0)], self.most) if each else ([], 1.0) for each in free)
        self.shares = [self.program.row(terms, at_least=least, at_most=least) for terms, least in ends]

    def solved(self, columns: Sequence[Column]) -> tuple[float, list[tuple[Column, float]]]:
        """The common rate, and the columns with a rate, with these columns too."""
        fresh = dict.fromkeys(columns)
        for column in fresh:
            weight = self.weights[column.group]
            load = ((self.rows[resource], times * weight) for resource, times in column.load)
            self.program.variable([(self.shares[column.group], 1.0), *load])
        self.columns |= fresh
        values, duals = self.program.solve()
        self.prices, self.worth = np.maximum(-duals[self.rows], 0.0), duals[self.shares].tolist()
        rates = zip(self.columns, (values[1:] * self.scale).tolist(), strict=True)
        used = [(column, rate * self.weights[column.group]) for column, rate in rates if rate > _EPSILON]
        return (self.most - float(values[0])) * self.scale, used

    def judged(self, cheapest: Iterable[Column], at: Floats) -> tuple[float, float, list[Column]]:
        """By the cheapest columns at some prices: a bound of the rate, what it divides by, columns to add.

        The bound is that of `SharedLengths.of`; inf where the prices prove nothing.
        """
        cost, new = [inf] * len(self.worth), list[Column]()
        for column in cheapest:
            weight = self.weights[column.group]
            cost[column.group] = min(cost[column.group], sum(at[r] * times for r, times in column.load))
            paid = sum(self.prices[r] * times for r, times in column.load) * weight
            if paid < self.worth[column.group] - _EPSILON and column not in self.columns:
                new.append(column)
        left = float(at @ self.room) - sum(float(rate) * cost[group] for group, rate in self.held.items())
        free = sum(self.weights[group] * each for group, each in enumerate(cost) if group not in self.held)
        return left / free if 0 < free < inf else inf, free, new


def _exact(
    used: Sequence[tuple[Column, float]], optimum: float, capacity: Sequence[int], weights: Weights, held: Rates
) -> list[tuple[Column, Fraction]]:
    """The program's rates in fractions that fit: its vertex solved exactly, or short fractions, lowered.

    The common roundings lose a part in 10^9 where a vertex has denominators beyond what a solver's numbers
    can tell.
    """
    tried = (_vertex(used, capacity, weights, held, slack) for slack in _SLACK)
    if (exact := next((found for found in tried if found is not None), None)) is None:
        carried = summed((c.group, w) for c, w in used)
        rounded = [(c, Fraction(w / carried[c.group]).limit_denominator(10_000)) for c, w in used]
        totals = summed((c.group, w) for c, w in rounded)
        free = Fraction(optimum).limit_denominator(10**6)
        level = [(c, w * held.get(c.group, free * weights[c.group]) / totals[c.group]) for c, w in rounded]
        excess = max((load / capacity[r] for r, load in loads(level).items()), default=Fraction(0))
        exact = [(c, w / max(excess, Fraction(1))) for c, w in level]
    return [(c, w) for c, w in exact if w]


def _vertex(
    chosen: Sequence[tuple[Column, float]], capacity: Sequence[int], weights: Weights, held: Rates, slack: float
) -> list[tuple[Column, Fraction]] | None:
    """The rates of the columns of a vertex, from its rows that are full; None if these do not determine it.

    slack: the part of its capacity that a full row may lack by the program's numbers.
    """
    width = len(chosen)
    # Unknowns: a rate per column and the common rate; the last place of an equation is its right-hand side.
    carried = sorted(loads(chosen).items())
    full = {r: {width + 1: Fraction(capacity[r])} for r, load in carried if load > capacity[r] * (1 - slack)}
    for place, (column, _) in enumerate(chosen):
        for resource, times in column.load:
            if resource in full:
                full[resource][place] = Fraction(times)
    equal = [{i: Fraction(1) for i, (c, _) in enumerate(chosen) if c.group == g} for g in range(len(weights))]
    ends = ({width + 1: held[g]} if g in held else {width: Fraction(-w)} for g, w in enumerate(weights))
    rates = (row | end for row, end in zip(equal, ends, strict=True))
    if (values := _eliminate([*full.values(), *rates], width + 1)) is None or min(values) < 0:
        return None
    exact = [(c, value) for (c, _), value in zip(chosen, values, strict=False)]
    return exact if all(load <= capacity[r] for r, load in loads(exact).items()) else None


def _eliminate(rows: Iterable[dict[int, Fraction]], width: int) -> list[Fraction] | None:
    """The one solution of equations (Gauss); None if there is none, or more than one.

    rows: the coefficients that are not 0, by unknown, and the right-hand side at `width`.
    """
    first, zero = dict[int, dict[int, Fraction]](), Fraction(0)
    for row in rows:
        while (lead := min(row, default=width)) in first:
            times, other = row[lead], first[lead]
            # Fractions are slow, so that places that only `row` has are left alone.
            changed = {place: row.get(place, zero) - times * value for place, value in other.items()}
            row = {place: value for place, value in (row | changed).items() if value}
        if lead < width:
            first[lead] = {place: value / row[lead] for place, value in row.items()}
        elif row:
            return None
    if len(first) < width:
        return None
    values = [Fraction(0)] * width
    for lead in reversed(range(width)):
        row = first[lead]
        known = (value * values[place] for place, value in row.items() if lead < place < width)
        values[lead] = row.get(width, zero) - sum(known, start=zero)
    return values


def shortened(mix: Mix, capacity: Sequence[int]) -> Mix:
    """`mix` itself, or, where its rates need too large a common denominator, a slightly lower one that does not.

    Every group keeps the same rate.
    """
    shares = [rate / mix.rate for rate in mix.rates]
    if lcm(*(share.denominator for share in shares)) <= _MOST_DENOMINATOR:
        return mix
    parts = [int(share * _ROUNDED) for share in shares]
    for group in {column.group for column in mix.columns}:
        mine = [i for i, column in enumerate(mix.columns) if column.group == group]
        # What rounding down leaves goes to the largest remainders.
        by_rest = sorted(mine, key=lambda i: parts[i] - shares[i] * _ROUNDED)
        for i in by_rest[: _ROUNDED - sum(parts[i] for i in mine)]:
            parts[i] += 1
    chosen = [(column, Fraction(part, _ROUNDED)) for column, part in zip(mix.columns, parts, strict=True) if part]
    rate = min(capacity[r] / load for r, load in loads(chosen).items())
    return replace(mix, columns=tuple(c for c, _ in chosen), rates=tuple(share * rate for _, share in chosen))


def loads(chosen: Iterable[tuple[Column, Weight]]) -> dict[int, Weight]:
    """What each resource carries."""
    return summed((resource, weight * times) for column, weight in chosen for resource, times in column.load)


# A permutation of the members, by vertex.
Symmetry = Mapping[int, int]


def images(
    columns: Sequence[Column], symmetry: Symmetry, roots: Sequence[int], *, both: bool = False
) -> list[int] | None:
    """For each column the number of the one that the symmetry maps it to; None if some column has none.

    roots: the root of every group of columns. both: trees are used both ways, so that their roots do not
    matter.
    """
    group = {root: number for number, root in enumerate(roots)}

    def shape(arcs: Iterable[Arc]) -> Hashable:
        return frozenset(frozenset(arc) if both else arc for arc in arcs)

    place = {(shape(column.arcs), column.group): number for number, column in enumerate(columns)}
    moved = (shape((symmetry[a], symmetry[b]) for a, b in column.arcs) for column in columns)
    groups = (column.group if both else group.get(symmetry[roots[column.group]], -1) for column in columns)
    numbers = [place.get(key, -1) for key in zip(moved, groups, strict=True)]
    return None if -1 in numbers else numbers
