"""What a linear program shares out: links, buses and device capacities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinksim.graphs.linear import Program
from blinksim.graphs.network import Network
from blinksim.graphs.orbits import Alike
from blinksim.topology.graph import Topology

# Relative difference between the program's value and the exact bound from its duals at which they count as equal.
AGREE = 1e-9


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
    program: Program,
    shared: Sequence[Resource],
    same: Alike,
    load: Callable[[int], list[tuple[int, float]]],
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
