"""What a schedule by symmetry sends in each step: the messages of one node, say, whose turns are those of all."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from blinksim.schedule.turned.symmetric import Pool, SymmetricSchedule
from blinksim.schedule.ways import distinct_routes
from blinksim.structures.arrays import expand
from blinksim.topology.group import Turns

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Messages:
    """Sorts of messages, M of them: what one connection carries in a step, and its images.

    step (M): never decreases. start (M + 1), links: of the route of message m, links[start[m]:start[m + 1]]. total (M):
    what all images carry, where `whole` stands for the size. times (M): how many images there are.
    """

    turns: Turns
    step: Ints
    start: Ints
    links: Ints
    total: Ints
    times: Ints
    whole: int

    @classmethod
    def of(cls, schedule: SymmetricSchedule) -> Messages:
        """Those of a schedule in steps form: sends that turns take to the same connection in a step are one sort."""
        base, turns = schedule.base, schedule.turns
        start, table = base.route_start.astype(np.int64), base.route_links.astype(np.int64)
        tail, head = base.topology.ends
        src, dst = tail[table[start[:-1]]].astype(np.int64), head[table[start[1:] - 1]].astype(np.int64)
        _, _, exponents = turns.between(src, dst)
        lengths, turned = turns.route_images(turns.inverse(exponents), start, table, np.arange(len(start) - 1))
        first, which = distinct_routes(lengths, turned)
        channels = int(base.channel.max(initial=0)) + 1
        key = (base.step.astype(np.int64) * channels + base.channel) * len(first) + which[base.route]
        found, where = np.unique(key, return_inverse=True)
        total = np.zeros(len(found), dtype=np.int64)
        np.add.at(total, where, schedule.weighted.share_num[base.chunk])
        route = first[found % len(first)]
        row, links = expand(start, table, route)
        ends = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(route)))])
        step = found // len(first) // channels
        return cls(turns, step, ends, links, total, turns.images(src[route], dst[route]), base.share_den)

    @cached_property
    def pool(self) -> Pool:
        """The resources of the machine, those of an orbit as one."""
        return Pool.of(self.turns)

    @property
    def steps(self) -> int:
        """One more than the last step."""
        return int(self.step.max(initial=-1)) + 1

    @cached_property
    def loads(self) -> Ints:
        """What passes each orbit of resources in all steps, where `whole` stands for the size."""
        row, resource = self.uses
        found = np.zeros(len(self.pool.size), dtype=np.int64)
        np.add.at(found, resource, self.total[row])
        return found

    @cached_property
    def uses(self) -> tuple[Ints, Ints]:
        """Which message (its row) passes which orbit of resources."""
        shared = self.pool.shared
        row, link = expand(self.start, self.links, np.arange(len(self.step)))
        place, resource = expand(shared.starts, shared.members, link)
        return row[place], resource.astype(np.int64)

    @property
    def alphas(self) -> npt.NDArray[np.float64]:
        """Seconds of all latencies on the way of each, and of the overhead of its first link."""
        columns = self.turns.topology.link_columns
        return np.asarray(np.add.reduceat(columns.latency[self.links], self.start[:-1])) + self.overheads

    @property
    def overheads(self) -> npt.NDArray[np.float64]:
        """Seconds that the sender of each spends on it."""
        return np.asarray(self.turns.topology.link_columns.overhead[self.links[self.start[:-1]]])

    @property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow; None if nothing is sent."""
        pairs = zip(self.pool.shared.rate, self.loads.tolist(), strict=True)
        return min((rate * self.whole / load for rate, load in pairs if load), default=None)
