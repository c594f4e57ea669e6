"""The best rate of schedules whose data travels along trees, where devices without a rank only pass bytes on.

Out-trees of rate x_v from every root v fit into capacities g exactly if every member can receive the sum of all x by
flow (Edmonds 1973; forwarders are split off first: Bang-Jensen, Frank and Jackson 1995). In-trees are out-trees of the
reversed graph. So the best shares are one linear program; its duals are lengths of links.
"""

from __future__ import annotations

from collections.abc import Sequence

from blinksim.collective import Collective
from blinksim.graphs.capacities import SharedCapacity, Solution, capacity_duals, capacity_rows
from blinksim.graphs.linear import Program
from blinksim.graphs.network import Network
from blinksim.graphs.orbits import NetworkOrbits

# Flow variables up to which the program is solved; beyond it takes minutes.
LIMIT = 10_000


def size(net: Network, collective: Collective, same: NetworkOrbits) -> int:
    """Number of flow variables of the program."""
    both = collective.name == "allreduce" and not net.symmetric
    return len(net.tail) * len(same.first) * (2 if both else 1)


def best_trees(
    net: Network, collective: Collective, shared: list[SharedCapacity], same: NetworkOrbits, shares: Sequence[int] = ()
) -> Solution | None:
    """The greatest algbw in units of `net`, with link lengths; None if the program is too large.

    allreduce: roots may hold any shares; allgather and reducescatter: as `shares` (default: equal); broadcast, reduce:
    all at the root. same: what is alike, and that must leave root and shares alone.
    """
    if size(net, collective, same) > LIMIT:
        return None
    program = Program()
    ranks = len(net.members)
    scale = float(net.capacity.max())
    name = collective.name
    if name == "allreduce":
        roots = program.variables(len(same.first))
        share = [[(roots[orbit], 1.0)] for orbit in same.member]
        objective = [(root, float(count)) for root, count in zip(roots, same.count, strict=True)]
    else:
        rate = program.variables(1)[0]
        weights = [float(rank == collective.root) for rank in range(ranks)]
        if not collective.rooted:
            parts = list(shares) or [1] * ranks
            weights = [part / sum(parts) for part in parts]
        share = [[(rate, weight)] if weight else [] for weight in weights]
        objective = [(rate, 1.0)]
    used: list[range] = []
    if name in ("allgather", "broadcast", "allreduce"):
        used.append(_arborescences(program, net, share, same))
    if name in ("reducescatter", "reduce") or (name == "allreduce" and not net.symmetric):
        used.append(_arborescences(program, net.reversed(), share, same))
    # In a symmetric network the in-trees may be taken as the out-trees turned round: each link then carries its own
    # use and its partner's.
    partner = net.partner if name == "allreduce" else None

    def load(arc: int) -> list[tuple[int, float]]:
        ways = [arc] if partner is None else [arc, int(partner[arc])]
        return [(variables[int(same.arc[way])], 1.0) for variables in used for way in ways]

    rows = capacity_rows(program, shared, same, load, scale)
    value = program.solve(objective)
    duals = capacity_duals(program, rows)
    if partner is not None:
        # The rows of a link and of its partner are the same, and the solver gives the price of both to either.
        holder = {arc: number for number, resource in enumerate(shared) for arc, _ in resource.uses}
        other = [holder[int(partner[resource.uses[0][0]])] for resource in shared]
        duals = [(duals[number] + duals[mate]) / 2 for number, mate in enumerate(other)]
    return Solution(value * scale, duals)


def _arborescences(program: Program, net: Network, share: list[list[tuple[int, float]]], same: NetworkOrbits) -> range:
    """Variables for what out-trees use of each orbit of arcs, with the rows that make them reach every member."""
    arcs = len(net.tail)
    tail, head, orbit = net.tail.tolist(), net.head.tolist(), same.arc.tolist()
    used = program.variables(same.arcs)
    supply = dict(zip(net.members.tolist(), share, strict=True))
    passing: dict[int, list[tuple[int, float]]] = {vertex: [] for vertex in net.forwarders.tolist()}
    for arc in range(arcs):
        if tail[arc] in passing:
            passing[tail[arc]].append((used[orbit[arc]], 1.0))
        if head[arc] in passing:
            passing[head[arc]].append((used[orbit[arc]], -1.0))
    for terms in passing.values():
        program.row(terms, at_most=0.0)
    for sink in same.first:
        flow = program.variables(arcs)
        balance: list[list[tuple[int, float]]] = [[] for _ in range(net.vertices)]
        for arc, variable in enumerate(flow):
            program.row([(variable, 1.0), (used[orbit[arc]], -1.0)], at_most=0.0)
            balance[tail[arc]].append((variable, 1.0))
            balance[head[arc]].append((variable, -1.0))
        for vertex, entry in enumerate(balance):
            if vertex != sink:
                # What starts at a vertex is its root's share, and all of it must leave towards the sink.
                starts = [(variable, -factor) for variable, factor in supply.get(vertex, ())]
                program.row(entry + starts, at_least=0.0, at_most=0.0)
    return used
