"""The capacities that arcs of a network share: what a linear program divides, and the rows that keep it within them.

An arc without a bus has a capacity of its own; the arcs of a bus share its time. A device capacity is an arc already
(`blinksim.graphs.network`). The loads of a schedule are counted per link and device instead, by name:
`blinksim.schedule.loads.Resources`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinksim.graphs.linear import Program
from blinksim.graphs.network import Network
from blinksim.graphs.orbits import NetworkOrbits
from blinksim.topology.graph import Topology

# Relative difference between the program's value and the exact bound from its duals at which they count as equal.
AGREE = 1e-9


@dataclass(frozen=True)
class SharedCapacity:
    """A capacity that arcs share: `uses` are (arc, part of the capacity that one unit of flow takes)."""

    uses: tuple[tuple[int, float], ...]
    capacity: int | Fraction


@dataclass(frozen=True)
class Solution:
    """value: algbw in units of the network. duals: one per shared capacity."""

    value: float
    duals: list[float]


def shared_capacities(topology: Topology, net: Network) -> list[SharedCapacity]:
    """One per arc without a bus, and one per bus (which its links share by time)."""
    buses: dict[str, list[int]] = {}
    found = []
    capacity = net.capacity.tolist()
    for arc in range(len(capacity)):
        bus = topology.links[arc].bus if arc < net.links else None
        if bus is None:
            found.append(SharedCapacity(((arc, 1.0),), capacity[arc]))
        else:
            buses.setdefault(bus, []).append(arc)
    for arcs in buses.values():
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

    Capacities are divided by `scale`. Returns (row, size of its orbit) for each of `shared`.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for number, capacity in enumerate(shared):
        alike.setdefault(tuple(sorted(int(orbits.arc[arc]) for arc, _ in capacity.uses)), []).append(number)
    rows: list[list[int]] = [[]] * len(shared)
    for group in alike.values():
        capacity = shared[group[0]]
        terms = [(variable, factor * part) for arc, part in capacity.uses for variable, factor in load(arc)]
        row = program.row(terms, at_most=capacity.capacity / scale)
        for number in group:
            rows[number] = [row, len(group)]
    return rows


def capacity_duals(program: Program, rows: Sequence[Sequence[int]]) -> list[float]:
    """The dual of every shared capacity: its row's, divided by the size of its orbit."""
    return [float(program.duals[row]) / size for row, size in rows]


def agree(rate: Fraction, value: float) -> bool:
    """True if an exact rate and a program's value are the same up to the solver's arithmetic."""
    return abs(float(rate) - value) <= AGREE * value
