"""Scatter and gather along the earliest tree: a rank passes on the blocks of all ranks below it as one message.

As MPI libraries do it with binomial trees (Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19, 2005): few messages leave the root, which sends some bytes twice.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from blinksim.algorithms.binomial import earliest, seconds
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm, per_channel
from blinksim.collective import ROOT
from blinksim.schedule.model import COPY
from blinksim.topology.cluster import nodes_of

ENTRY = Algorithm(
    ("gather", "scatter"), "blocks down or up the earliest tree, those of a subtree as one message", sends=per_channel
)


def fill(plan: Plan) -> None:
    """In a step a rank sends as many messages as leave before the first one arrives; blocks follow the tree."""
    root, down = plan.collective.root, plan.collective.starts == ROOT
    groups = nodes_of(plan.topology, plan.topology.members)
    most = [max(1, int(arrives / leaves)) if leaves else plan.n for arrives, leaves in seconds(plan, groups)]
    above, when, sent = dict[int, int](), {root: 0}, Counter[tuple[int, bool]]()
    for sender, receiver, _, leaves in earliest(plan, groups):
        above[receiver], when[receiver] = sender, when[sender] + 1 + sent[sender, leaves] // most[leaves]
        sent[sender, leaves] += 1
    # A message is the blocks of a step for one rank, in the order in which the ranks are reached.
    last, place = max(when.values()), {rank: number for number, rank in enumerate(above)}
    rows = list[tuple[int, int, int, int, int]]()
    for rank in above:
        chunk, at = plan.add_chunk(Fraction(1, plan.n), *((root, rank) if down else (rank, root))), rank
        while at != root:
            step = when[at] - 1 if down else last - when[at]
            rows.append((step, place[at], chunk, *((above[at], at) if down else (at, above[at]))))
            at = above[at]
    # The root's own block stays there.
    plan.add_chunk(Fraction(1, plan.n), root, root)
    if rows:
        steps, _, chunks, src, dst = zip(*sorted(rows), strict=True)
        plan.send(src, dst, chunk=chunks, op=COPY, step=steps)
