"""Trees of a schedule in forest form: devices, shares and the links of every edge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from blinksim.graphs.arrays import distinct
from blinksim.graphs.rooted_trees import height
from blinksim.schedule.loads import Resources
from blinksim.schedule.model import COPY, Schedule

Route = tuple[int, ...]
Edge = tuple[int, int, Route]


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of devices with a share: edges (parent, child, links), parents before their children.

    The links of `down` lead from the parent to the child, those of `up` from the child to the parent.
    """

    root: int
    share: Fraction
    down: tuple[Edge, ...] = ()
    up: tuple[Edge, ...] = ()

    @property
    def height(self) -> int:
        """Hops from the root to its farthest leaf, down or up."""
        return max(height(self.root, [edge[:2] for edge in edges]) for edges in (self.down, self.up))

    def loads(self, shared: Resources) -> tuple[tuple[int, int], ...]:
        """How often the tree uses each of the shared resources of its topology: (resource, times)."""
        used = Counter(
            int(resource)
            for _, _, links in (*self.down, *self.up)
            for link in links
            for resource in shared.members[shared.starts[link] : shared.starts[link + 1]]
        )
        return tuple(sorted(used.items()))


def trees_of(schedule: Schedule) -> list[Tree]:
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
        found.append(Tree((down or up)[0][0], schedule.share(chunk), tuple(down), tuple(up)))
    return found


def moves_along_trees(schedule: Schedule, besides: Sequence[int] = ()) -> bool:
    """True if every device passes a chunk on for reduction at most once, and takes a copy of it at most once.

    In a schedule that is right, the sends of a chunk are then a tree towards some rank and a tree away from
    it. besides: sends that do not count, such as own copies.
    """
    reduces = schedule.op != COPY
    ends = np.where(reduces, schedule.src, schedule.dst).astype(np.int64)
    keys = (schedule.chunk.astype(np.int64) * len(schedule.topology.devices) + ends) * 2 + reduces
    keys = np.delete(keys, np.asarray(besides, dtype=np.int64))
    return len(distinct(keys)) == len(keys)
