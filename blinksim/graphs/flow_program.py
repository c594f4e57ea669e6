"""The greatest flows of several sources at once under shared capacities, as a linear program.

Maximum concurrent flow, aggregated by source (Shahrokhi and Matula 1990): one variable per source and arc, and one rate
for all. Its duals are lengths of links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blinksim.graphs.capacities import SharedCapacity, capacity_duals, capacity_rows
from blinksim.graphs.linear import Program
from blinksim.graphs.network import Network
from blinksim.graphs.orbits import NetworkOrbits, single_orbits


@dataclass(frozen=True, slots=True)
class Commodity:
    """What one vertex sends: to every vertex of `weights`, in their ratio."""

    source: int
    weights: Mapping[int, int]


@dataclass(frozen=True)
class FlowSolution:
    """rate: per unit of weight, in units of the network. flows: by commodity and arc. duals: by shared capacity."""

    rate: float
    flows: list[list[float]]
    duals: list[float]


def flow_variables(net: Network, sources: int) -> int:
    """Number of flow variables of the program, the measure of its size."""
    return len(net.tail) * sources


def solve_flows(
    net: Network,
    shared: Sequence[SharedCapacity],
    commodities: Sequence[Commodity],
    *,
    orbits: NetworkOrbits | None = None,
) -> FlowSolution:
    """The greatest rate that all commodities reach together; raises `InfeasibleError` if the solver finds no optimum.

    orbits: equivalent arcs and ranks, with one commodity for each orbit of members, whose flow the symmetries turn into
    those of the others (default: none are equivalent).
    """
    copies = orbits.count if orbits else (1,) * len(commodities)
    orbits = orbits or single_orbits(net)
    program = Program()
    rate = program.variables(1)[0]
    flows = [program.variables(len(net.tail)) for _ in commodities]
    scale = float(net.capacity.max())
    orbit = orbits.arc.tolist()
    groups: list[list[int]] = [[] for _ in range(orbits.arcs)]
    for arc, number in enumerate(orbit):
        groups[number].append(arc)

    def load(arc: int) -> list[tuple[int, float]]:
        # All copies of a source's flow together load the arcs of an orbit equally.
        group = groups[orbit[arc]]
        return [(flow[other], count / len(group)) for flow, count in zip(flows, copies, strict=True) for other in group]

    # Weights may be bytes: the program's numbers stay near 1 if the largest of them is the unit.
    unit = float(max((max(one.weights.values()) for one in commodities), default=1))
    rows = capacity_rows(program, shared, orbits, load, scale)
    for one, flow in zip(commodities, flows, strict=True):
        _conserve(program, net, one, flow, rate, unit)
    value = program.solve([(rate, 1.0)]) / unit
    carried = [[float(program.values[variable]) * scale for variable in flow] for flow in flows]
    return FlowSolution(value * scale, carried, capacity_duals(program, rows))


def _conserve(program: Program, net: Network, commodity: Commodity, flow: range, rate: int, unit: float) -> None:
    """Rows that let every vertex but the source keep its weight's part of the rate, and pass on the rest.

    unit: the weight that keeps all of the rate.
    """
    balance: list[list[tuple[int, float]]] = [[] for _ in range(net.vertices)]
    for variable, a, b in zip(flow, net.tail.tolist(), net.head.tolist(), strict=True):
        balance[b].append((variable, 1.0))
        balance[a].append((variable, -1.0))
    for vertex, terms in enumerate(balance):
        if vertex != commodity.source:
            weight = commodity.weights.get(vertex, 0)
            program.row([*terms, (rate, -weight / unit)] if weight else terms, at_least=0.0, at_most=0.0)
