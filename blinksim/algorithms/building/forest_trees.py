"""From a schedule in forest form back to its trees: the inverse of `blinksim.algorithms.building.forest_plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from blinksim.algorithms.building.forest_plan import Branches, Edge
from blinksim.packing.columns.hops import Load
from blinksim.schedule.loads import resources
from blinksim.schedule.model import COPY, Schedule
from blinksim.topology.graph import Topology


def trees_of(schedule: Schedule) -> list[Branches]:
    """The trees of a forest: one per chunk, with its share."""
    order = np.lexsort((schedule.step, schedule.chunk))
    starts = np.searchsorted(schedule.chunk[order], np.arange(schedule.chunks + 1))
    found = []
    for chunk in range(schedule.chunks):
        down: list[Edge] = []
        up: list[Edge] = []
        for send in order[starts[chunk] : starts[chunk + 1]]:
            src, dst = int(schedule.src[send]), int(schedule.dst[send])
            links = tuple(schedule.links_of(int(schedule.route[send])))
            if schedule.op[send] == COPY:
                down.append((src, dst, links))
            else:
                up.append((dst, src, links))
        up.reverse()
        found.append(Branches((down or up)[0][0], schedule.share(chunk), tuple(down), tuple(up)))
    return found


def tree_height(tree: Branches) -> int:
    """Hops from the root to its farthest leaf, down or up."""
    tallest = 0
    for edges in (tree.down, tree.up):
        depth = {tree.root: 0}
        for parent, child, _ in edges:
            depth[child] = depth[parent] + 1
        tallest = max(tallest, *depth.values())
    return tallest


def tree_loads(topology: Topology, trees: Sequence[Branches]) -> list[Load]:
    """For every tree how often it uses each shared resource of the topology."""
    shared = resources(topology)
    found = []
    for tree in trees:
        used = Counter(
            int(resource)
            for _, _, links in (*tree.down, *tree.up)
            for link in links
            for resource in shared.members[shared.starts[link] : shared.starts[link + 1]]
        )
        found.append(tuple(sorted(used.items())))
    return found
