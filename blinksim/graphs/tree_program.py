"""The best out-trees and in-trees under shared capacities, as a linear program.

Out-trees of rate x_v from every root v fit into capacities g exactly if every member can receive the sum of all x by
flow (Edmonds 1973; forwarders are split off first: Bang-Jensen, Frank and Jackson 1995). In-trees are out-trees of the
reversed network. So the program has a rate for every root, the use of every arc by all trees together, and a
flow to every member within that use. Its duals are lengths of links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blinksim.graphs.capacities import SharedCapacity, capacity_duals, capacity_rows
from blinksim.graphs.linear import Program
from blinksim.graphs.network import Network
from blinksim.graphs.orbits import NetworkOrbits, single_orbits

# Variable and factor: a root's rate as a part of the program.
Supply = Mapping[int, tuple[int, float]]


@dataclass(frozen=True)
class TreeSolution:
    """value: the rate of all out-trees together, in units of the network. duals: one per shared capacity.

    roots: the rates that the program chose, one for each orbit of members, or a common one where the ratio is given.
    used: what out-trees use of each orbit of arcs, and then what in-trees do, unless they are the out-trees reversed.
    """

    value: float
    roots: list[float]
    used: list[list[float]]
    duals: list[float]


def flow_variables(net: Network, sinks: int, *, both: bool) -> int:
    """Number of flow variables of the program, the measure of its size."""
    return len(net.tail) * sinks * (2 if both and not net.symmetric else 1)


def solve_trees(
    net: Network,
    shared: Sequence[SharedCapacity],
    weights: Mapping[int, int] | None,
    *,
    both: bool = False,
    orbits: NetworkOrbits | None = None,
) -> TreeSolution:
    """The trees with the greatest rate; raises `InfeasibleError` if the solver finds no optimum.

    weights: the ratio of the roots' rates, by vertex; None leaves it free. both: in-trees with the same roots and rates
    run at the same time. orbits: equivalent arcs and ranks; they must respect the weights (default: none are
    equivalent).
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
    # In a symmetric network the in-trees may be taken as the out-trees reversed: each link then carries its own use and
    # its partner's.
    partner = net.partner.tolist() if both and net.partner is not None else None
    used = [_arborescences(program, net, supply, orbits)]
    if both and partner is None:
        used.append(_arborescences(program, net.reversed(), supply, orbits))
    orbit = orbits.arc.tolist()

    def load(arc: int) -> list[tuple[int, float]]:
        ways = [arc] if partner is None else [arc, partner[arc]]
        return [(variables[orbit[way]], 1.0) for variables in used for way in ways]

    rows = capacity_rows(program, shared, orbits, load, scale)
    value = program.solve(objective)
    duals = capacity_duals(program, rows)
    return TreeSolution(
        value * scale,
        [float(program.values[rate]) * scale for rate in rates],
        [[float(program.values[variable]) * scale for variable in variables] for variables in used],
        duals if partner is None else _levelled(duals, shared, partner),
    )


def _levelled(duals: Sequence[float], shared: Sequence[SharedCapacity], partner: Sequence[int]) -> list[float]:
    """The duals of a symmetric network: a link and its partner have the same row, and the solver prices only one."""
    holder = {arc: number for number, capacity in enumerate(shared) for arc, _ in capacity.uses}
    mates = [holder[partner[capacity.uses[0][0]]] for capacity in shared]
    return [(duals[number] + duals[mate]) / 2 for number, mate in enumerate(mates)]


def _arborescences(program: Program, net: Network, supply: Supply, orbits: NetworkOrbits) -> range:
    """Variables for what out-trees use of each orbit of arcs, with the rows that make them reach every member."""
    arcs, orbit = len(net.tail), orbits.arc.tolist()
    # The arcs of every vertex: what leaves it counts as 1, what enters it as -1.
    touching: list[list[tuple[int, float]]] = [[] for _ in range(net.vertices)]
    for arc, (a, b) in enumerate(zip(net.tail.tolist(), net.head.tolist(), strict=True)):
        touching[a].append((arc, 1.0))
        touching[b].append((arc, -1.0))
    # What starts at a vertex is its root's rate.
    starts = {vertex: [(variable, -factor)] for vertex, (variable, factor) in supply.items()}
    used = program.variables(orbits.arcs)
    use = [used[number] for number in orbit]
    for vertex in net.forwarders.tolist():
        # A forwarder gives out no more than it takes in: it only passes on.
        passing = [(use[arc], sign) for arc, sign in touching[vertex]]
        program.row(passing + starts.get(vertex, []), at_most=0.0)
    for sink in orbits.first:
        flow = program.variables(arcs).start
        for arc in range(arcs):
            program.row([(flow + arc, 1.0), (use[arc], -1.0)], at_most=0.0)
        for vertex in range(net.vertices):
            if vertex != sink:
                # All that starts at a vertex or enters it must leave towards the sink.
                passing = [(flow + arc, sign) for arc, sign in touching[vertex]]
                program.row(passing + starts.get(vertex, []), at_least=0.0, at_most=0.0)
    return used
