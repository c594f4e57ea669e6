"""The best rate of schedules whose data travels along trees, where devices without a rank only pass bytes on.

Allgather and broadcast send along out-trees, reducescatter and reduce along in-trees, which are out-trees of the
reversed network; allreduce along both, with the same roots. `blinksim.graphs.tree_program` finds the best ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from blinksim.collective import Collective
from blinksim.graphs.capacities import SharedCapacity, Solution
from blinksim.graphs.network import Network
from blinksim.graphs.orbits import NetworkOrbits
from blinksim.graphs.tree_program import solve_trees


def best_trees(
    net: Network,
    collective: Collective,
    shared: Sequence[SharedCapacity],
    orbits: NetworkOrbits,
    shares: Sequence[int] = (),
) -> Solution:
    """The greatest algbw in units of `net`, with link lengths.

    allreduce: roots may hold any shares; allgather and reducescatter: as `shares` (default: equal); broadcast, reduce:
    all at the root. orbits: equivalent arcs and ranks; they must respect root and shares.
    """
    both = collective.name == "allreduce"
    members = net.members.tolist()
    if both:
        weights = None
    elif collective.rooted:
        weights = {members[collective.root]: 1}
    else:
        weights = dict(zip(members, shares or [1] * len(members), strict=True))
    solution = solve_trees(net.reversed() if collective.collects else net, shared, weights, both=both, orbits=orbits)
    return Solution(solution.value, solution.duals)
