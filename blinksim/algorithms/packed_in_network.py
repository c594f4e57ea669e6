"""Trees packed through switches that multicast or reduce, at the rate of the bound that grants them this.

Such trees are Steiner trees (Jain, Mahdian and Salavatipour, "Packing Steiner trees", SODA 2003). Where
switches do not raise the rate, they only forward, as in `packed`.
"""

from __future__ import annotations

from blinksim.algorithms.building.branching_trees import shared_out
from blinksim.algorithms.building.plan import Moves, SwitchPlan
from blinksim.algorithms.packed import build as build_packed
from blinksim.algorithms.registry import Algorithm
from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.compute import bound as find_bound
from blinksim.bounds.optimum import OUT, OWN, PATH, best_trees
from blinksim.bounds.quick import guessed_lengths
from blinksim.collective import ON_TREES, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.connectivity import grouped
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm(ON_TREES, "packed trees that may branch in switches", in_network=True)


def build(topology: Topology, collective: Collective, *, bound: BoundResult | None = None) -> Schedule:
    """The schedule.

    bound: what `blinksim.bounds.bound` gave with in_network, if known already. Raises `InfeasibleError` where
    no switch does more than to forward, and where no optimum is found.
    """
    if not topology.in_network:
        needs = f"packed_in_network needs a switch that multicasts or reduces; {topology.name} has none"
        edit = "'nvswitch can=forward,multicast,reduce_into_reader'"
        raise InfeasibleError(f"{needs} (machine files say it, or an edit such as {edit})")
    known = bound or find_bound(topology, collective, in_network=True)
    if known.in_network is None:
        return build_packed(topology, collective, bound=known)
    grants = topology.in_network
    _, sets, _ = best_trees(topology, collective, (), guessed_lengths(topology, collective, grants), grants)
    total, trees = shared_out(topology, collective, [trees for _, trees in sets])
    if not total:
        raise InfeasibleError("the trees of this bound carry nothing")
    plan = SwitchPlan(topology, collective, "packed_in_network")
    rank = {device: number for number, device in enumerate(plan.ranks)}
    for amount, tree in trees:
        moves = Moves(plan)
        # What each switch that works for an owner is joined with, without that: GPUs, and further switches.
        below = grouped((hop.start, hop.end) for hop in tree.towards if hop.sort == OUT)
        for hop in reversed(tree.towards):
            if hop.sort == PATH:
                moves.send(hop.end, hop.start, REDUCE, hop.links)
            elif hop.sort == OWN:
                moves.read(hop.end, hop.start, below)
        below = grouped((hop.start, hop.end) for hop in tree.away if hop.sort == OUT)
        for hop in tree.away:
            if hop.sort == PATH:
                moves.send(hop.start, hop.end, COPY, hop.links)
            elif hop.sort == OWN:
                moves.store(hop.end, hop.start, below)
        root = rank.get(tree.root, -1)
        moves.finish(plan.add_chunk(amount / total, *collective.labels(root, root)))
    return plan.finish(rounded=True)
