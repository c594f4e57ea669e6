"""The best rate of schedules whose data travels along trees, where devices without a rank only pass bytes on.

Allgather and broadcast send along out-trees, reducescatter and reduce along in-trees, which are out-trees of the
reversed network; allreduce along both, with the same roots. `blinksim.graphs.tree_program` finds the best ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blinksim.collective import Collective
from blinksim.graphs.capacities import SharedCapacity, Solution
from blinksim.graphs.network import Network
from blinksim.graphs.orbits import NetworkOrbits
from blinksim.graphs.tree_program import solve_trees, widest


def best_trees(
    net: Network,
    collective: Collective,
    shared: Sequence[SharedCapacity],
    orbits: NetworkOrbits,
    shares: Sequence[int] = (),
) -> Iterator[tuple[Solution, bool]]:
    """Rates in units of `net` with link lengths, the best last, and true for those that trees attain.

    allreduce: roots may hold any shares, in the first answer one holds everything; allgather and reducescatter: as
    `shares` (default: equal); broadcast, reduce: all at the root. orbits: equivalent arcs and ranks; they must respect
    root and shares.
    """
    members = net.members.tolist()
    if collective.name == "allreduce":
        if len(orbits.first) == len(members):
            one = solve_trees(net, shared, {widest(net): 1}, both=True)
            yield Solution(one.value, one.duals), one.attained
        solution = solve_trees(net, shared, None, both=True, orbits=orbits)
    else:
        held = [int(rank == collective.root) for rank in range(len(members))] if collective.rooted else shares
        weights = dict(zip(members, held or [1] * len(members), strict=True))
        way = net.reversed() if collective.collects else net
        solution = solve_trees(way, shared, weights, orbits=orbits)
    yield Solution(solution.value, solution.duals), solution.attained
