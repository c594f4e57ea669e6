"""What a linear program shares out: links, buses and device capacities; and its duals as exact lengths.

A dual solution rounded to fractions is still a valid set of lengths, so the bound recomputed from it is exact whatever
the solver's arithmetic did (Neumaier and Shcherbina 2004, safe bounds in linear programming).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from blinksim.bounds.alike import Alike
from blinksim.bounds.lengths import Lengths
from blinksim.bounds.linear import Program
from blinksim.bounds.network import Network
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

# Relative difference between the program's value and the exact bound from its duals at which they count as equal.
AGREE = 1e-9
_DENOMINATORS = (1, 2, 3, 4, 5, 6, 8, 12, 24, 60, 120, 840, 5040, 10**5, 10**7)


@dataclass(frozen=True)
class Resource:
    """A capacity that arcs share: `uses` are (arc, part of the capacity that one unit of flow takes)."""

    uses: tuple[tuple[int, float], ...]
    capacity: int


@dataclass(frozen=True)
class Solution:
    """value: algbw in units of the network. duals: one per resource."""

    value: float
    duals: list[float]


def resources(topology: Topology, net: Network) -> list[Resource]:
    """One resource per arc without a bus, and one per bus (which its links share by time)."""
    buses: dict[str, list[int]] = {}
    alone = []
    capacity = net.capacity.tolist()
    for arc in range(len(capacity)):
        bus = topology.links[arc].bus if arc < net.links else None
        if bus is None:
            alone.append(Resource(((arc, 1.0),), capacity[arc]))
        else:
            buses.setdefault(bus, []).append(arc)
    for shared in buses.values():
        most = max(capacity[arc] for arc in shared)
        alone.append(Resource(tuple((arc, most / capacity[arc]) for arc in shared), most))
    return alone


def capacity_rows(
    program: Program, shared: Sequence[Resource], same: Alike, load: Callable[[int], list[tuple[int, float]]],
    scale: float,
) -> list[list[int]]:
    """One row per orbit of resources: what `load` gives for an arc, summed over its uses, fits the capacity.

    Capacities are divided by `scale`. Returns (row, size of its orbit) per resource.
    """
    orbit: dict[tuple[int, ...], list[int]] = {}
    for number, resource in enumerate(shared):
        orbit.setdefault(tuple(sorted(int(same.arc[arc]) for arc, _ in resource.uses)), []).append(number)
    rows: list[list[int]] = [[]] * len(shared)
    for group in orbit.values():
        resource = shared[group[0]]
        terms = [(variable, factor * part) for arc, part in resource.uses for variable, factor in load(arc)]
        row = program.row(terms, at_most=resource.capacity / scale)
        for number in group:
            rows[number] = [row, len(group)]
    return rows


def resource_duals(program: Program, rows: Sequence[Sequence[int]]) -> list[float]:
    """The dual of every resource: its row's, shared by the orbit."""
    return [float(program.duals[row]) / size for row, size in rows]


def agree(rate: Fraction, value: float) -> bool:
    """Whether an exact rate and a program's value are the same up to the solver's arithmetic."""
    return abs(float(rate) - value) <= AGREE * value


def certify(
    topology: Topology, collective: Collective, net: Network, shared: Sequence[Resource], solution: Solution,
    shares: Sequence[int] = (),
) -> tuple[Lengths, bool] | None:
    """The best exact bound from the duals, rounded to short fractions, and whether it agrees with the program.

    None if no rounding proves anything.
    """
    dual = np.zeros(len(net.tail))
    for resource, value in zip(shared, solution.duals, strict=True):
        for arc, part in resource.uses:
            dual[arc] = max(value, 0.0) * part
    largest = float(dual.max(initial=0.0))
    if largest <= 0:
        return None
    names = [link.name for link in topology.links] + list(net.limits)
    target = solution.value * float(net.unit)
    best: Lengths | None = None
    tried: list[dict[str, Fraction]] = []
    # Scaled to the smallest length, or to the largest, the lengths of a vertex are short fractions.
    smallest = float(dual[dual > 1e-7 * largest].min())
    for scale in (smallest, largest):
        for denominator in _DENOMINATORS:
            rounded = {
                name: Fraction(value / scale).limit_denominator(denominator)
                for name, value in zip(names, dual.tolist(), strict=True)
                if value > 1e-9 * largest
            }
            if rounded in tried:
                continue
            tried.append(rounded)
            try:
                found = Lengths.of(topology, collective, rounded, shares)
            except InputError:
                continue
            if best is None or found.rate < best.rate:
                best = found
            if agree(best.rate, target):
                return best, True
    return (best, False) if best else None
