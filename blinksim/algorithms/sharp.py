"""SHARP: switches add messages as they pass, and multicast the sum back (Graham et al., COM-HPC 2016).

Between nodes, the switches of the fabric add; inside, the GPU that talks to a switch reads the sum of its node's copies
(as NVLS does) or, where switches only forward, gets one message from every other GPU. Every place in the nodes has a
shard and a tree of its own, so that all rails work. On one node, a switch that all GPUs are linked to adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from blinksim.algorithms.building.switching.switch_plan import Moves, SwitchPlan
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule: a chunk for every place in the nodes; raises `InfeasibleError` without switches that do it."""
    plan = SwitchPlan(topology, collective, "sharp")
    groups = plan.groups if len(plan.groups) > 1 else [[rank] for rank in plan.ranks]
    up, down = collective.reduces, collective.ends == EVERY
    local = min(map(len, groups))
    for place in range(local):
        heads = [group[place] for group in groups]
        for parents, top in _trees(plan, heads):
            moves = Moves(plan)
            for group, head in zip(groups, heads, strict=True):
                _inside(plan, moves, group, head, up=up, down=False)
            moves.tree(parents, top, up=up, down=down)
            for group, head in zip(groups, heads, strict=True):
                _inside(plan, moves, group, head, up=False, down=down)
            moves.finish(plan.add_chunk(Fraction(1, local)))
    return plan.finish()


def _inside(plan: SwitchPlan, moves: Moves, group: Sequence[int], head: int, *, up: bool, down: bool) -> None:
    """The sum of a node's copies to its head, or what the head has to the node."""
    switch = next(iter(plan.switches_of(group, ("multicast", "reduce_into_reader"))), None)
    if len(group) == 1:
        return
    if switch is not None and up:
        moves.read(switch, group, head)
    if switch is not None and down:
        moves.store(switch, head, group)
    for gpu in group if switch is None else ():
        if gpu != head and up:
            moves.send(gpu, head, REDUCE)
        if gpu != head and down:
            moves.send(head, gpu, COPY)


def _trees(plan: SwitchPlan, heads: Sequence[int]) -> list[tuple[dict[int, int], int]]:
    """The tree of switches that add, under the one that is nearest to all heads: parents by device, and that switch."""
    devices = plan.topology.devices
    able = {n for n, d in enumerate(devices) if {"multicast", "reduce"} <= d.in_network}
    best: tuple[int, int] | None = None
    for switch in sorted(able):
        try:
            far = sum(len(plan.router.route(head, switch)) for head in heads)
            far += sum(len(plan.router.route(switch, head)) for head in heads)
        except InfeasibleError:
            continue
        if best is None or far < best[0]:
            best = far, switch
    if best is None:
        raise InfeasibleError(
            f"sharp needs switches that multicast and reduce in flight between the GPUs; {plan.topology.name} has none "
            "(machine files say it, or an edit such as 'fabric can=forward,multicast,reduce')"
        )
    top = best[1]
    parents: dict[int, int] = {}
    links = plan.topology.links
    for head in heads:
        below = head
        for link in plan.router.route(head, top):
            end = plan.topology.index[links[link].dst]
            if end in able:
                if below in parents:
                    break
                parents[below] = end
                below = end
    return [(parents, top)]
