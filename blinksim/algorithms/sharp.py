"""SHARP: switches add messages as they pass, and multicast the sum back (Graham et al., COM-HPC 2016).

Between nodes, the switches of the fabric add; inside, the GPU that talks to a switch reads the sum of its
node's copies (as NVLS does), gets it from a switch that adds in flight, or, where switches only forward, gets
one message from every other GPU. Every place in the nodes has a part of the data and trees of its own, so
that all rails work, and a tree under each of the switches that are equally near. On one node, a switch that
all GPUs are linked to adds. Broadcast and allgather only multicast, from the GPU that has the data; reduce
and reducescatter only add, towards the GPU that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise

from blinksim.algorithms.building.plan import Moves, SwitchPlan
from blinksim.algorithms.registry import Algorithm
from blinksim.collective import EVERY, ON_TREES, OWN
from blinksim.errors import InfeasibleError
from blinksim.graphs.rooted_trees import hung_from
from blinksim.schedule.model import COPY, REDUCE

ENTRY = Algorithm(ON_TREES, "switches between the nodes add and multicast", in_network=True)


def fill(plan: SwitchPlan) -> None:
    """Chunks for every place in the nodes, or for every rank that has data of its own.

    Raises `InfeasibleError` without switches that do it.
    """
    collective = plan.collective
    groups = plan.groups if len(plan.groups) > 1 else [[rank] for rank in plan.ranks]
    local = min(map(len, groups))
    reduces, spreads = collective.reduces, collective.ends == EVERY
    abilities = {*["reduce"] * reduces, *["multicast"] * spreads}
    own = OWN in (collective.starts, collective.ends)
    share = Fraction(1, len(plan.ranks) if own else local)
    for rank, end, node, heads in _ends(plan, groups, own=own):
        # The other nodes, of an allreduce all: before the tree their data is added up, or after it they get it.
        others = [(group, head) for group, head in zip(groups, heads, strict=True) if group is not node]
        trees = _trees(plan, heads, abilities)
        for parents, top in trees:
            moves = Moves(plan)
            if node:
                # The tree hangs from the head of the node that the data comes from or goes to.
                top = heads[groups.index(node)]
                hung = hung_from(top, [(above, below) for below, above in parents.items()])
                parents = {below: above for above, below in hung}
            for group, head in others if reduces else [(node, end)]:
                _inside(plan, moves, group, head, up=reduces)
            moves.tree(parents, top, up=reduces, down=spreads)
            for group, head in others if spreads else [(node, end)]:
                _inside(plan, moves, group, head, up=not spreads)
            moves.finish(plan.add_chunk(share / len(trees), *collective.labels(rank, rank)))


def _ends(plan: SwitchPlan, groups: list[list[int]], *, own: bool) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """A rank that data comes from or goes to, its GPU and node (none for an allreduce), and the head of every node.

    own: every rank has data of its own, which takes the trees of the rank's place in its node; else the data
    is divided among all places.
    """
    local = min(map(len, groups))
    if plan.collective.name == "allreduce":
        for place in range(local):
            yield -1, -1, [], [group[place] for group in groups]
        return
    for rank in range(len(plan.ranks)) if own else [plan.collective.root]:
        end = plan.ranks[rank]
        node = next(group for group in groups if end in group)
        for place in [node.index(end) % local] if own else range(local):
            yield rank, end, node, [end if own and group is node else group[place] for group in groups]


def _inside(plan: SwitchPlan, moves: Moves, group: Sequence[int], head: int, *, up: bool) -> None:
    """The sum of a node's copies to one of its GPUs (up), or what that has to all others of its node."""
    others = [gpu for gpu in group if gpu != head]
    reading = _switch(plan, group, "reduce_into_reader" if up else "multicast", reads=True)
    passing = _switch(plan, group, "reduce" if up else "multicast", reads=False)
    if others and reading is not None:
        (moves.read if up else moves.store)(reading, head, {reading: others})
        return
    if others and passing is not None:
        edges = [(head, passing), *((passing, gpu) for gpu in others[:: -1 if up else 1])]
    else:
        # Without a root all are heads of some data.
        edges = list(pairwise((head, *others))) if plan.collective.rooted else [(head, gpu) for gpu in others]
    for above, below in reversed(edges) if up else edges:
        moves.send(*(below, above, REDUCE) if up else (above, below, COPY))


def _switch(plan: SwitchPlan, group: Sequence[int], ability: str, *, reads: bool) -> int | None:
    """A switch with an ability that all GPUs of a group are linked to; reads: whether it works for readers."""
    switches = plan.switches_of(group, (ability,))
    return next((switch for switch in switches if plan.topology.devices[switch].reads == reads), None)


def _trees(plan: SwitchPlan, heads: Sequence[int], abilities: set[str]) -> list[tuple[dict[int, int], int]]:
    """The trees of switches that can do this, under each that is nearest to all heads: parents, and the top."""
    able = {n for n, d in enumerate(plan.topology.devices) if abilities <= d.in_network and not d.reads}
    far: dict[int, int] = {}
    for switch in sorted(able):
        with suppress(InfeasibleError):
            ways = (way for head in heads for way in ((head, switch), (switch, head)))
            far[switch] = sum(len(plan.router.route(*way)) for way in ways)
    if not far:
        what = "multicast and reduce" if len(abilities) > 1 else next(iter(abilities))
        needs = f"sharp needs switches that {what} in flight between the GPUs; {plan.topology.name} has none"
        edit = "'fabric can=forward,multicast,reduce'"
        raise InfeasibleError(f"{needs} (machine files say it, or an edit such as {edit})")
    tops = [switch for switch, length in far.items() if length == min(far.values())]
    trees = []
    _, end = plan.topology.ends
    for top in tops:
        parents: dict[int, int] = {}
        for head in heads:
            below = head
            for link in plan.router.route(head, top):
                if (above := int(end[link])) in able:
                    if below in parents:
                        break
                    parents[below] = above
                    below = above
        trees.append((parents, top))
    return trees
