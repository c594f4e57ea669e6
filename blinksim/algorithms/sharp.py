"""SHARP: switches add messages as they pass, and multicast the sum back (Graham et al., COM-HPC 2016).

Between nodes, the switches of the fabric add; inside, the GPU that talks to a switch reads the sum of its
node's copies (as NVLS does), gets it from a switch that adds in flight, or, where switches only forward, gets
one message from every other GPU. Every place in the nodes has a part of the data and trees of its own, so
that all rails work, and a tree under each of the switches that are equally near. On one node, a switch that
all GPUs are linked to adds. Broadcast and allgather only multicast, from the GPU that has the data; reduce
and reducescatter only add, towards the GPU that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from blinksim.algorithms.building.plan import Moves, SwitchPlan
from blinksim.algorithms.registry import ON_TREES, Algorithm
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.rooted_trees import hung_from
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    "sharp",
    ON_TREES,
    "switches between the nodes add and multicast",
    order=280,
    solver=True,
    source="Graham et al. 2016",
    routes=True,
    in_network=True,
)


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule: chunks for every place in the nodes, or for every rank that has data of its own.

    Raises `InfeasibleError` without switches that do it.
    """
    plan = SwitchPlan(topology, collective, "sharp")
    groups = plan.groups if len(plan.groups) > 1 else [[rank] for rank in plan.ranks]
    local = min(map(len, groups))
    if collective.name == "allreduce":
        for place in range(local):
            _allreduce(plan, groups, [group[place] for group in groups], Fraction(1, local))
        return plan.finish(rounded=True)
    own = not collective.rooted
    for rank in range(len(plan.ranks)) if own else [collective.root]:
        group = next(number for number, group in enumerate(groups) if plan.ranks[rank] in group)
        labels = collective.labels(rank, rank) if own else (-1, -1)
        places = [groups[group].index(plan.ranks[rank]) % local] if own else range(local)
        for place in places:
            heads = [group[place] for group in groups]
            if own:
                heads[group] = plan.ranks[rank]
            share = Fraction(1, len(plan.ranks) if own else local)
            _one_direction(plan, groups, heads, group, plan.ranks[rank], (share, labels))
    return plan.finish(rounded=True)


def _allreduce(plan: SwitchPlan, groups: Sequence[Sequence[int]], heads: Sequence[int], share: Fraction) -> None:
    """Sums of the nodes to their heads, up a tree to its top, down again, and into the nodes."""
    trees = _trees(plan, heads, {"multicast", "reduce"})
    for parents, top in trees:
        moves = Moves(plan)
        for group, head in zip(groups, heads, strict=True):
            _gather(plan, moves, group, head)
        moves.tree(parents, top, up=True, down=True)
        for group, head in zip(groups, heads, strict=True):
            _spread(plan, moves, group, head)
        moves.finish(plan.add_chunk(share / len(trees)))


def _one_direction(
    plan: SwitchPlan,
    groups: Sequence[Sequence[int]],
    heads: Sequence[int],
    group: int,
    end: int,
    chunk: tuple[Fraction, tuple[int, int]],
) -> None:
    """From the GPU `end` to all others, or from all others to it, on trees that hang from the head of its node."""
    share, labels = chunk
    inward = plan.collective.reduces
    trees = _trees(plan, heads, {"reduce"} if inward else {"multicast"})
    for parents, _ in trees:
        hung = hung_from(heads[group], [(above, below) for below, above in parents.items()])
        above = {child: parent for parent, child in hung}
        moves = Moves(plan)
        others = [
            (nodes, head) for number, (nodes, head) in enumerate(zip(groups, heads, strict=True)) if number != group
        ]
        if inward:
            for nodes, head in others:
                _gather(plan, moves, nodes, head)
            moves.tree(above, heads[group], up=True, down=False)
            _gather(plan, moves, groups[group], end)
        else:
            _spread(plan, moves, groups[group], end)
            moves.tree(above, heads[group], up=False, down=True)
            for nodes, head in others:
                _spread(plan, moves, nodes, head)
        moves.finish(plan.add_chunk(share / len(trees), *labels))


def _gather(plan: SwitchPlan, moves: Moves, group: Sequence[int], head: int) -> None:
    """The sum of a node's copies to one of its GPUs."""
    switch = next(iter(plan.switches_of(group, ("reduce_into_reader",))), None)
    others = [gpu for gpu in group if gpu != head]
    if others and switch is not None:
        moves.read(switch, head, {switch: others})
        return
    adding = _in_flight(plan, group, "reduce")
    if others and adding is not None:
        for gpu in others:
            moves.send(gpu, adding, REDUCE)
        moves.send(adding, head, REDUCE)
        return
    for gpu, after in reversed(_hops(plan, head, others)):
        moves.send(after, gpu, REDUCE)


def _spread(plan: SwitchPlan, moves: Moves, group: Sequence[int], head: int) -> None:
    """What a GPU has to all others of its node."""
    switch = next((s for s in plan.switches_of(group, ("multicast",)) if plan.topology.devices[s].reads), None)
    others = [gpu for gpu in group if gpu != head]
    if others and switch is not None:
        moves.store(switch, head, {switch: others})
        return
    copying = _in_flight(plan, group, "multicast")
    if others and copying is not None:
        for gpu in (copying, *others):
            moves.send(head if gpu == copying else copying, gpu, COPY)
        return
    for gpu, after in _hops(plan, head, others):
        moves.send(gpu, after, COPY)


def _in_flight(plan: SwitchPlan, group: Sequence[int], ability: str) -> int | None:
    """A switch that all GPUs of a group are linked to, and that does this to messages as they pass."""
    switches = plan.switches_of(group, (ability,))
    return next((switch for switch in switches if not plan.topology.devices[switch].reads), None)


def _hops(plan: SwitchPlan, head: int, others: Sequence[int]) -> list[tuple[int, int]]:
    """From the head to each other GPU where all are heads of some data; else from one to the next."""
    return list(zip((head, *others) if plan.collective.rooted else [head] * len(others), others, strict=False))


def _trees(plan: SwitchPlan, heads: Sequence[int], abilities: set[str]) -> list[tuple[dict[int, int], int]]:
    """The trees of switches that can do this, under each that is nearest to all heads: parents, and the top."""
    devices = plan.topology.devices
    able = {n for n, d in enumerate(devices) if abilities <= d.in_network and not d.reads}
    far: dict[int, int] = {}
    for switch in sorted(able):
        try:
            far[switch] = sum(
                len(plan.router.route(head, switch)) + len(plan.router.route(switch, head)) for head in heads
            )
        except InfeasibleError:
            continue
    if not far:
        what = "multicast and reduce" if len(abilities) > 1 else next(iter(abilities))
        raise InfeasibleError(
            f"sharp needs switches that {what} in flight between the GPUs; {plan.topology.name} has none "
            "(machine files say it, or an edit such as 'fabric can=forward,multicast,reduce')"
        )
    tops = [switch for switch, length in far.items() if length == min(far.values())]
    trees = []
    _, end = plan.topology.ends
    for top in tops:
        parents: dict[int, int] = {}
        for head in heads:
            below = head
            for link in plan.router.route(head, top):
                above = int(end[link])
                if above in able:
                    if below in parents:
                        break
                    parents[below] = above
                    below = above
        trees.append((parents, top))
    return trees
