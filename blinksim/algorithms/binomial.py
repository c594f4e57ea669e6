"""The earliest tree: every rank that has the data sends it on until all do, quickest for small messages.

Where a message must arrive before the next one leaves, this is the binomial tree. Where a rank may send again
sooner, it is the optimal broadcast of LogP (Karp, Sahay, Santos and Schauser, "Optimal broadcast and
summation in the LogP model", SPAA 1993). A rank sends inside its node and to other nodes at the same time.
Only senders spend time on a message, so sums go straight to one rank of each node, and on to the root.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm
from blinksim.collective import EVERY
from blinksim.schedule.model import COPY, REDUCE
from blinksim.topology.cluster import nodes_of

ENTRY = Algorithm(REDUCE_AND_SPREAD, "the earliest tree: every rank that has the data sends it on", form="forest")


def fill(plan: Plan) -> None:
    """Sums go up over one rank of every node; the tree is the way down."""
    collective, root = plan.collective, plan.collective.root
    groups, chunk, tall = nodes_of(plan.topology, plan.topology.members), plan.add_chunk(Fraction(1)), 0
    tree = np.array(list(earliest(plan, groups)), dtype=np.int64).reshape(-1, 4)
    if collective.reduces:
        came = {rank: place for place, rank in enumerate([root, *tree[:, 1].tolist()])}
        heads = [min(group, key=came.__getitem__) for group in groups]
        pairs = zip(heads, groups, strict=True)
        inside = [(rank, head) for head, group in pairs for rank in group if rank != head]
        for sends in (inside, [(head, root) for head in heads if head != root]):
            if sends:
                plan.send(*np.transpose(sends), chunk=chunk, op=REDUCE, step=tall)
                tall += 1
    if collective.ends == EVERY:
        sender, receiver, depth, _ = tree[np.argsort(tree[:, 2], kind="stable")].T
        plan.send(sender, receiver, chunk=chunk, op=COPY, step=tall + depth - 1)


def earliest(plan: Plan, groups: list[list[int]]) -> Iterator[tuple[int, int, int, bool]]:
    """(sender, receiver, sends from the root, leaves a node) of every message, as they arrive."""
    root = plan.collective.root
    home = {rank: node for node, group in enumerate(groups) for rank in group}
    nodes, depth = [node for node in range(len(groups)) if node != home[root]], {root: 0}
    left = [[rank for rank in group if rank != root] for group in groups]
    costs = seconds(plan, groups)
    # When a message arrives, who sends it, and whether it leaves the node.
    events = [(costs[leaves][0], root, leaves) for leaves in (False, True)]
    while events:
        time, sender, leaves = heappop(events)
        waiting = nodes if leaves else left[home[sender]]
        if not waiting:
            continue
        receiver = waiting.pop(0)
        if leaves:
            group, own = groups[receiver], groups[home[sender]]
            receiver = group[own.index(sender) % len(group)]
            left[home[receiver]].remove(receiver)
        depth[receiver] = depth[sender] + 1
        yield sender, receiver, depth[receiver], leaves
        heappush(events, (time + costs[leaves][1], sender, leaves))
        for further in (False, True):
            heappush(events, (time + costs[further][0], receiver, further))


def seconds(plan: Plan, groups: list[list[int]]) -> list[tuple[float, float]]:
    """Inside a node, and to another one: until a message arrives, and until the next one may leave; 0 if none goes."""
    places, columns = plan.topology.member_places, plan.topology.link_columns
    found = list[tuple[float, float]]()
    for src, *others in (max(groups, key=len), [group[0] for group in groups]):
        route = list(plan.router.route(int(places[src]), int(places[others[0]]))) if others else []
        overhead = float(columns.overhead[route[0]]) if route else 0.0
        found.append((overhead + float(columns.latency[route].sum()), overhead))
    return found
