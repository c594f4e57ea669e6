"""Times that steps take at least, from the ends of their messages alone: no route is looked for.

A step waits for one message at least, so it takes the alpha of some link. What leaves a GPU, or a node, passes the
links that lead out of it, and no sum of `blinksim.cost.brief.outlined` is below what these take for all bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.cost.alpha_beta import route_alphas
from blinksim.cost.pipelines.longest_path import Paths
from blinksim.schedule.model import Schedule
from blinksim.schedule.outlines.outline import Outline
from blinksim.structures.arrays import distinct, per_topology
from blinksim.topology.graph import Topology

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Devices = npt.NDArray[np.integer[Any]]
Messages = tuple[Devices, Devices, Floats]
# Sums in another order may differ in their last digits.
_SAFE = 1 - 1e-9


def least_of_steps(topology: Topology, steps: int) -> float:
    """Seconds that so many steps take at least, whatever they send."""
    table = topology.link_columns
    return steps * float((table.latency + table.overhead).min()) * _SAFE if len(table.src) else 0.0


def least_of_outline(outline: Outline, size: int) -> float:
    """Seconds that an outline takes at least for `size` bytes, by its steps and by what leaves and enters its ranks."""
    found = least_of_steps(outline.topology, outline.steps)
    # What shares a bus has no bandwidth of its own.
    if outline.topology.link_columns.shared:
        return found
    return max([found, *(share * size * _SAFE for share in _loads(outline))])


def least_of_tree(schedule: Schedule) -> float:
    """Seconds that a forest takes at least besides passing its bytes; 0 where a device gets a chunk from several.

    That is what a piece waits for latencies and overheads on its way to the device that it reaches last.
    """
    reached = schedule.dst * np.int64(schedule.chunks) + schedule.chunk
    if schedule.form != "forest" or len(distinct(reached)) < schedule.sends:
        return 0.0
    none = np.zeros(schedule.sends)
    lag, _ = Paths(schedule, route_alphas(schedule)[schedule.route], none, none).longest(1)
    return lag * _SAFE


def _loads(outline: Outline) -> Iterator[float]:
    """For GPUs and for nodes: the most seconds that any one takes for a byte of the size, outwards or inwards."""
    ranks = outline.topology.member_places
    for cut in _cuts(outline.topology):
        out, into = np.zeros(len(cut.out)), np.zeros(len(cut.into))
        for one in outline.rounds:
            ends, share = one.exchange, float(one.message * one.times)
            if ends.src is None or ends.dst is None:
                out += cut.every_pair(ranks) * share
                into += cut.every_pair(ranks) * share
                continue
            sent, received = cut.crossing(ranks[ends.src], ranks[ends.dst])
            out += sent * share
            into += received * share
        yield cut.busiest(out, into)


def least_of_messages(topology: Topology, messages: Messages, size: int) -> float:
    """Seconds that messages take at least for `size` bytes, however they are ordered, by what leaves and enters ranks.

    messages: the devices that send, those that receive, and the share of the size.
    """
    if topology.link_columns.shared:
        return 0.0
    src, dst, share = messages
    loads = [cut.busiest(*cut.crossing(src, dst, share)) for cut in _cuts(topology)]
    return max(loads) * size * _SAFE


@dataclass(frozen=True, eq=False)
class _Cut:
    """Devices in groups: the group of each, -1 for none; bytes/s out of every group and into it."""

    group: Ints
    out: Floats
    into: Floats

    @classmethod
    def of(cls, topology: Topology, group: Ints) -> _Cut:
        table = topology.link_columns
        rates = np.array([float(rate) for rate in table.bandwidths])[table.figure]
        a, b = group[table.src], group[table.dst]
        count, apart = int(group.max()) + 1, a != b
        kept = (apart & (side >= 0) for side in (a, b))
        out, into = (np.bincount(side[some], rates[some], count) for side, some in zip((a, b), kept, strict=True))
        return cls(group, *(np.where(rate > 0, rate, np.inf) for rate in (out, into)))

    def crossing(self, src: Devices, dst: Devices, share: Floats | None = None) -> tuple[Floats, Floats]:
        """How many messages leave each group, and how many enter it; or what they carry."""
        a, b = self.group[src], self.group[dst]
        apart, count = a != b, len(self.out)
        carried = np.ones(int(apart.sum())) if share is None else share[apart]
        out, into = (np.bincount(side[apart], carried, count) for side in (a, b))
        return np.asarray(out, dtype=np.float64), np.asarray(into, dtype=np.float64)

    def every_pair(self, ranks: Ints) -> Floats:
        """The same both ways where every rank sends to every other."""
        size = np.bincount(self.group[ranks], minlength=len(self.out))
        return np.asarray(size * (len(ranks) - size), dtype=np.float64)

    def busiest(self, out: Floats, into: Floats) -> float:
        """The most seconds that a group takes for what leaves it, or for what enters it."""
        return float(max((out / self.out).max(), (into / self.into).max()))


@per_topology
def _cuts(topology: Topology) -> tuple[_Cut, ...]:
    """Every rank by itself, and every node."""
    alone, node = np.full(len(topology.devices), -1), topology.device_nodes
    alone[topology.member_places] = np.arange(topology.ranks)
    groups = (alone, node) if bool((node[topology.member_places] >= 0).all()) else (alone,)
    return tuple(_Cut.of(topology, group) for group in groups)
