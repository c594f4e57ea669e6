"""The best rate of schedules whose data travels along trees, where devices without a rank only pass bytes on.

Out-trees of rate x_v from every root v fit into capacities g exactly if every member can receive the sum of all x by
flow (Edmonds 1973; forwarders are split off first: Bang-Jensen, Frank and Jackson 1995). In-trees are out-trees of the
reversed graph. So the best shares are one linear program; its duals are lengths of links.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blinksim.bounds.linear import Program
from blinksim.bounds.network import Network
from blinksim.bounds.resources import Resource, Solution, capacity_rows
from blinksim.collective import Collective

# Flow variables up to which the program is solved; beyond it takes minutes.
LIMIT = 10_000


def size(net: Network, collective: Collective) -> int:
    """Number of flow variables of the program."""
    both = collective.name == "allreduce" and not net.symmetric
    return len(net.tail) * (len(net.members) + 1) * (2 if both else 1)


def best_trees(
    net: Network, collective: Collective, shared: list[Resource], shares: Sequence[int] = ()
) -> Solution | None:
    """The greatest algbw in units of `net`, with link lengths; None if the program is too large.

    allreduce: roots may hold any shares; allgather and reducescatter: as `shares` (default: equal); broadcast, reduce:
    all at the root.
    """
    if size(net, collective) > LIMIT:
        return None
    program = Program()
    ranks = len(net.members)
    scale = float(net.capacity.max())
    name = collective.name
    if name == "allreduce":
        share = [[(variable, 1.0)] for variable in program.variables(ranks)]
        objective = [entry[0][0] for entry in share]
    else:
        rate = program.variables(1)[0]
        weights = [float(rank == collective.root) for rank in range(ranks)]
        if not collective.rooted:
            parts = list(shares) or [1] * ranks
            weights = [part / sum(parts) for part in parts]
        share = [[(rate, weight)] if weight else [] for weight in weights]
        objective = [rate]
    used: list[range] = []
    if name in ("allgather", "broadcast", "allreduce"):
        used.append(_arborescences(program, net, share))
    if name in ("reducescatter", "reduce") or (name == "allreduce" and not net.symmetric):
        used.append(_arborescences(program, net.reversed(), share))
    firsts = [variables.start for variables in used]
    if name == "allreduce" and net.partner is not None:
        # The in-trees may be taken as the out-trees turned round: each link carries its own use and its partner's.
        rows = _paired_rows(program, net.partner.tolist(), shared, used[0], scale)
    else:
        rows = capacity_rows(program, shared, firsts, scale)
    value = program.solve(objective)
    duals = [float(program.duals[row]) for row in rows]
    if name == "allreduce" and net.partner is not None:
        # The rows of a link and of its partner are the same, and the solver gives the price of both to either.
        holder = {arc: number for number, resource in enumerate(shared) for arc, _ in resource.uses}
        other = [holder[int(net.partner[resource.uses[0][0]])] for resource in shared]
        duals = [(duals[number] + duals[partner]) / 2 for number, partner in enumerate(other)]
    return Solution(value * scale, duals)


def _paired_rows(
    program: Program, partner: list[int], shared: list[Resource], used: range, scale: float
) -> list[int]:
    rows = []
    for resource in shared:
        terms: dict[int, float] = {}
        for arc, part in resource.uses:
            for either in (arc, partner[arc]):
                terms[used[either]] = terms.get(used[either], 0.0) + part
        rows.append(program.row(list(terms.items()), at_most=resource.capacity / scale))
    return rows


def _arborescences(program: Program, net: Network, share: list[list[tuple[int, float]]]) -> range:
    """Variables for the capacity that out-trees use on each arc, with the rows that make them reach every member."""
    arcs = len(net.tail)
    tail, head, members = net.tail.tolist(), net.head.tolist(), net.members.tolist()
    used = program.variables(arcs)
    supply = dict(zip(members, share, strict=True))
    for vertex in net.forwarders.tolist():
        leaving = [(used[arc], 1.0) for arc in np.flatnonzero(net.tail == vertex).tolist()]
        entering = [(used[arc], -1.0) for arc in np.flatnonzero(net.head == vertex).tolist()]
        program.row(leaving + entering, at_most=0.0)
    for sink in members:
        flow = program.variables(arcs)
        terms: list[list[tuple[int, float]]] = [[] for _ in range(net.vertices)]
        for arc, variable in enumerate(flow):
            program.row([(variable, 1.0), (used[arc], -1.0)], at_most=0.0)
            terms[tail[arc]].append((variable, 1.0))
            terms[head[arc]].append((variable, -1.0))
        for vertex, entry in enumerate(terms):
            if vertex != sink:
                # What starts at a vertex is its root's share, and all of it must leave towards the sink.
                starts = [(variable, -factor) for variable, factor in supply.get(vertex, ())]
                program.row(entry + starts, at_least=0.0, at_most=0.0)
    return used
