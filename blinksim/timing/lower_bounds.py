"""Lower bounds on the alpha-beta time of schedules, before their routes are known.

They follow from the ends of messages alone: a step waits for one message at least, so it takes the alpha of
some link, and what leaves a GPU, or a node, passes the links that lead out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.graphs.arrays import distinct, per_topology
from blinksim.schedule.model import Schedule
from blinksim.schedule.step_loads import Outline
from blinksim.timing.alpha_beta import Paths, route_alphas
from blinksim.topology.graph import Topology

Ints = npt.NDArray[np.int64]
AnyFloats = npt.NDArray[np.floating[Any]]
Devices = npt.NDArray[np.integer[Any]]
Messages = tuple[Devices, Devices, AnyFloats]
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
    ranks = outline.topology.member_places
    # For GPUs and for nodes: the most seconds that any one takes for a byte of the size, outwards or inwards.
    for cut in _cuts(outline.topology):
        out, into = np.zeros(len(cut.out)), np.zeros(len(cut.into))
        for one in outline.rounds:
            ends, share = one.exchange, float(one.message * one.times)
            if ends.src is None or ends.dst is None:
                sent = received = cut.every_pair(ranks)
            else:
                sent, received = cut.crossing(ranks[ends.src], ranks[ends.dst])
            out += sent * share
            into += received * share
        found = max(found, cut.busiest(out, into) * size * _SAFE)
    return found


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
    out: AnyFloats
    into: AnyFloats

    @classmethod
    def of(cls, topology: Topology, group: Ints) -> _Cut:
        table = topology.link_columns
        rates = np.array([float(rate) for rate in table.bandwidths])[table.figure]
        a, b = group[table.src], group[table.dst]
        count, apart = int(group.max()) + 1, a != b
        mask = (apart & (side >= 0) for side in (a, b))
        out, into = (np.bincount(side[some], rates[some], count) for side, some in zip((a, b), mask, strict=True))
        return cls(group, *(np.where(rate > 0, rate, np.inf) for rate in (out, into)))

    def crossing(self, src: Devices, dst: Devices, share: AnyFloats | None = None) -> tuple[AnyFloats, AnyFloats]:
        """How many messages leave each group, and how many enter it; or what they carry."""
        a, b = self.group[src], self.group[dst]
        apart, count = a != b, len(self.out)
        carried = np.ones(int(apart.sum())) if share is None else share[apart]
        out, into = (np.bincount(side[apart], carried, count) for side in (a, b))
        return np.asarray(out, dtype=np.float64), np.asarray(into, dtype=np.float64)

    def every_pair(self, ranks: Ints) -> AnyFloats:
        """The same in both directions where every rank sends to every other."""
        size = np.bincount(self.group[ranks], minlength=len(self.out))
        return np.asarray(size * (len(ranks) - size), dtype=np.float64)

    def busiest(self, out: AnyFloats, into: AnyFloats) -> float:
        """The most seconds that a group takes for what leaves it, or for what enters it."""
        return float(max((out / self.out).max(), (into / self.into).max()))


@per_topology
def _cuts(topology: Topology) -> tuple[_Cut, ...]:
    """Every rank by itself, and every node."""
    alone, node = np.full(len(topology.devices), -1), topology.device_nodes
    alone[topology.member_places] = np.arange(topology.ranks)
    groups = (alone, node) if bool((node[topology.member_places] >= 0).all()) else (alone,)
    return tuple(_Cut.of(topology, group) for group in groups)
