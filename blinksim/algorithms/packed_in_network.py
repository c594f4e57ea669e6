"""Packed trees that may branch in switches which multicast or reduce, at the rate of the bound that grants it.

The trees are those of the bound's linear program (`blinksim.bounds.in_network`): packings of Steiner trees (Jain,
Mahdian and Salavatipour 2003). Where switches do not raise the rate, they only forward, as in `packed`.
"""

from __future__ import annotations

from blinksim.algorithms.building.claims import with_gap
from blinksim.algorithms.packed import build as build_packed
from blinksim.bounds import BoundResult
from blinksim.bounds import bound as find_bound
from blinksim.collective import Collective
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology


def build(topology: Topology, collective: Collective, *, bound: BoundResult | None = None) -> Schedule:
    """The schedule, carrying the bound that it is measured against.

    bound: what `blinksim.bounds.bound` gave with in_network, if known already. Raises `InfeasibleError` where no switch
    does more than to forward, and where no optimum is found.
    """
    from blinksim.algorithms.building.switching.branching_ways import best_schedule, check_switches

    check_switches(topology)
    found = bound or find_bound(topology, collective, in_network=True)
    if found.in_network is None:
        return build_packed(topology, collective, bound=found)
    return with_gap(best_schedule(topology, collective), found, divided=False)
