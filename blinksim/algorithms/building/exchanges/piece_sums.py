"""The steps of an alltoallv whose blocks are joined, without its blocks: what members hand on and send across."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from blinksim.bounds.exchanges.rails import Ints, Rails, Route, Uses
from blinksim.packing.hosts.rail_pieces import Sums
from blinksim.schedule.outlines.step_sums import StepSums

Floats = npt.NDArray[np.float64]


def step_sums(rails: Rails, sums: Sums, size: int) -> StepSums:
    """Three steps: to the place where data crosses, across, and on from there. size: in the units of `sums`."""
    count, nodes, local = len(rails.rate), rails.nodes, rails.local
    none, idle = np.zeros((nodes, local, local)), np.zeros((nodes, nodes, local))
    inner = (sums.before + sums.within, sums.after)
    load = np.stack(
        [rails.loads(inner[0].astype(float), idle), rails.loads(none, sums.across.astype(float)),
         rails.loads(inner[1].astype(float), idle)]
    )  # fmt: skip
    alpha, each, longest = (np.zeros((3, count)) for _ in range(3))
    inside, up, down = (_Delays(rails, ways) for ways in (rails.inside, rails.up, rails.down))
    for step, moved in zip((0, 2), inner, strict=True):
        sent = moved.ravel() > 0
        inside.start(sent.astype(np.int64), each[step], longest[step])
        _highest(alpha[step], rails.inside_uses, np.where(sent, inside.alpha, 0.0))
    goes = sums.across > 0
    up.start(goes.sum(axis=1).ravel(), each[1], longest[1])
    ends = up.alpha.reshape(nodes, 1, local) + down.latency.reshape(1, nodes, local)
    middle = max((_Delays(rails, [ways]).latency[0] for ways in rails.trunks.values()), default=0.0)
    whole = np.where(goes, ends + middle, 0.0)
    _highest(alpha[1], rails.up_uses, whole.max(axis=1).ravel())
    _highest(alpha[1], rails.down_uses, whole.max(axis=0).ravel())
    alpha[1] = np.where((load[1] > 0) & (alpha[1] == 0), whole.max(), alpha[1])
    shared = rails.resources
    return StepSums(shared.names, shared.kinds, rails.rate, load / size, alpha, each, longest)


class _Delays:
    """Of the ways of routes: seconds of latency and overhead of the slowest, and where messages start."""

    def __init__(self, rails: Rails, ways: Sequence[Sequence[Route]]) -> None:
        columns, first = rails.topology.link_columns, rails.resources.of_link
        self.latency, self.overhead = np.zeros(len(ways)), np.zeros(len(ways))
        starts: list[tuple[int, int, float]] = []
        for number, alternatives in enumerate(ways):
            for way in alternatives:
                overhead = float(columns.overhead[way[0]])
                self.latency[number] = max(self.latency[number], float(columns.latency[list(way)].sum()))
                self.overhead[number] = max(self.overhead[number], overhead)
                starts.append((number, int(first[way[0]]), overhead))
        self._starts = starts

    @property
    def alpha(self) -> Floats:
        return self.latency + self.overhead

    def start(self, messages: Ints, each: Floats, longest: Floats) -> None:
        """Adds the overheads of so many messages on each route, one for every way, and notes the longest."""
        if not self._starts:
            return
        route, resource, overhead = (np.array(column) for column in zip(*self._starts, strict=True))
        np.add.at(each, resource, overhead * messages[route])
        np.maximum.at(longest, resource, np.where(messages[route] > 0, overhead, 0.0))


def _highest(alpha: Floats, uses: Uses, of_route: Floats) -> None:
    np.maximum.at(alpha, uses.resource, of_route[uses.route])
