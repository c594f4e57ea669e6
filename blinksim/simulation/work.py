"""Stages with times: whole ticks of a unit that divides every transfer time, so that all engines agree to the tick.

Sums and maxima of whole numbers do not depend on their order. In floating point two simultaneous arrivals would
differ in the last digit, engines would serve them in different orders, and the runs would diverge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from blinksim.errors import InputError
from blinksim.simulation.simulation_options import Sending
from blinksim.simulation.stages import Derived, Stages

Ticks = npt.NDArray[np.int64]
# Stages, bytes, pieces and the start in seconds: one collective among several.
Part = tuple[Stages, int, int, float]
Found = TypeVar("Found")
# Times stay below this, so that sums of two fit in 63 bits.
_MOST_TICKS = 2**60


@dataclass(frozen=True, eq=False)
class Work:
    """What the engines run. E stages; everything in ticks.

    resource (E): what each stage occupies. hold (E): for how long, for one piece. lag (E): from its start until what
    waits for it may start (the next stage, or whoever needs the delivered piece). before, after, level: see `Stages`.
    timeless (E): joints, which occupy nothing. stream (E): pieces of one stream are served in order by sharing servers.
    weight (E): the share of a stream. release (E): when the stages without a predecessor may start. ticks_per_second:
    the unit, exact. derived: what engines compute from the graph alone (all fields but hold, lag, weight, release).
    """

    resource: Ticks
    hold: Ticks
    lag: Ticks
    before: Ticks
    after: Ticks
    level: Ticks
    timeless: npt.NDArray[np.bool_]
    stream: Ticks
    weight: Ticks
    release: Ticks
    ticks_per_second: Fraction
    derived: Derived = field(default_factory=Derived)

    @property
    def count(self) -> int:
        return len(self.resource)

    def once(self, function: Callable[[Work], Found]) -> Found:
        """``function(self)``, computed once for the graph; it must not look at times."""
        return self.derived.once(function, self)

    @property
    def fan_in(self) -> Ticks:
        """How many waits lead to each stage."""
        return self.once(_fan_in)

    @cached_property
    def load(self) -> Ticks:
        """Ticks that one piece of everything occupies each resource."""
        total = np.zeros(int(self.resource.max(initial=-1)) + 1, dtype=np.int64)
        np.add.at(total, self.resource, self.hold)
        return total

    @property
    def by_level(self) -> tuple[Ticks, Ticks]:
        """The waits in the order of the level of `after`, and where each level's begin."""
        return self.once(_by_level)

    @cached_property
    def head(self) -> Ticks:
        """The longest path to each stage: when it could start without contention."""
        reached = self.release.copy()
        order, starts = self.by_level
        for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            now = order[first:end]
            np.maximum.at(reached, self.after[now], reached[self.before[now]] + self.lag[self.before[now]])
        return reached

    @cached_property
    def tail(self) -> Ticks:
        """The longest path from the start of each stage to the end, its own lag included."""
        left = self.lag.copy()
        order, starts = self.by_level
        for first, end in zip(starts[:-1][::-1].tolist(), starts[1:][::-1].tolist(), strict=True):
            now = order[first:end]
            np.maximum.at(left, self.before[now], left[self.after[now]] + self.lag[self.before[now]])
        return left

    @cached_property
    def critical(self) -> int:
        """Ticks of the longest path of one piece; no order of service ends earlier."""
        return int((self.head + self.lag).max(initial=0))

    @cached_property
    def busiest(self) -> int:
        """Ticks that a piece of everything occupies the busiest resource: the least growth of the time per piece."""
        return int(self.load.max(initial=0))

    def seconds(self, ticks: int) -> float:
        return float(ticks / self.ticks_per_second)


def _fan_in(work: Work) -> Ticks:
    return np.bincount(work.after, minlength=work.count)


def _by_level(work: Work) -> tuple[Ticks, Ticks]:
    target = work.level[work.after]
    order = np.argsort(target, kind="stable")
    return order, np.searchsorted(target[order], np.arange(int(work.level.max(initial=0)) + 2))


@dataclass(frozen=True, eq=False)
class Run:
    """What an engine found; everything in ticks.

    finish: when the last piece is delivered. start (pieces, E): when each stage began, if recorded, -1 for joints. end
    (pieces, E): when each was over, where that is not start + hold. settled: True if more pieces certainly add no more
    than the busiest server's load each.
    """

    finish: int
    start: Ticks | None = None
    end: Ticks | None = None
    settled: bool = False


def timed(graph: Stages, size: int, pieces: int, sending: Sending) -> Work:
    """The work of one piece when every chunk of a collective of `size` bytes is cut into `pieces`."""
    return merged([(graph, size, pieces, 0.0)], sending)


def merged(parts: Sequence[Part], sending: Sending) -> Work:
    """The work of several collectives at once; stages of all parts follow each other.

    parts: (stages, bytes, pieces, start in seconds). Resources of the same name, and reducers of devices of the same
    name, are the same. Raises `InputError` where their rates differ.
    """
    times: list[list[Fraction]] = []
    inverse: list[npt.NDArray[np.intp]] = []
    per_second = 1 / Fraction(sending.gamma).limit_denominator(10**30) if sending.gamma else Fraction(1)
    for graph, size, pieces, _ in parts:
        rates, shares, where = graph.transfers
        factor = Fraction(size, graph.schedule.share_den * pieces)
        times.append(
            [
                share * factor / (per_second if rate is None else rate * sending.efficiency)
                for rate, share in zip(rates, shares, strict=True)
            ]
        )
        inverse.append(where)
    resource, servers = _servers(parts)
    unit = _unit(parts, times, inverse, sending)
    return _assembled(parts, times, inverse, resource, unit, servers, sending)


def _servers(parts: Sequence[Part]) -> tuple[list[Ticks], int]:
    """The server of each part's stages (-1 for joints), numbered over all parts, and how many there are."""
    if len(parts) == 1:
        graph = parts[0][0]
        return [np.where(graph.send >= 0, graph.resource, -1)], graph.reducers.stop
    numbers: dict[str, tuple[int, Fraction | None]] = {}
    result = []
    for graph, _, _, _ in parts:
        shared = graph.shared
        names = [(f"{kind} {name}", rate)
                 for kind, name, rate in zip(shared.kinds, shared.names, shared.rate, strict=True)]  # fmt: skip
        every: list[tuple[str, Fraction | None]] = [*names]
        every += [(f"reduction at {device.name}", None) for device in graph.schedule.topology.devices]
        local = np.empty(len(every), dtype=np.int64)
        for number, (name, rate) in enumerate(every):
            local[number], known = numbers.setdefault(name, (len(numbers), rate))
            if known != rate:
                raise InputError(f"{name} has another rate in one of the collectives than in the others")
        mine = np.full(graph.count, -1, dtype=np.int64)
        real = graph.send >= 0
        mine[real] = local[graph.resource[real]]
        result.append(mine)
    return result, len(numbers)


def _unit(
    parts: Sequence[Part],
    times: Sequence[Sequence[Fraction]],
    inverse: Sequence[npt.NDArray[np.intp]],
    sending: Sending,
) -> Fraction:
    """Ticks per second: a multiple of all denominators if there is room, as fine as 60 bits allow."""
    longest = sending.launch
    for (graph, _, pieces, start), column, where in zip(parts, times, inverse, strict=True):
        hold = np.array([float(x) for x in column])[where] if len(where) else np.zeros(0)
        real = graph.send >= 0
        load = np.bincount(graph.resource[real], hold + graph.overhead[real]).max(initial=0.0)
        deep = int(graph.level.max(initial=0)) + 1
        lag = float((graph.latency + graph.overhead).max(initial=0.0)) + hold.max(initial=0.0)
        # A chain of waits alternates between busy servers and stages on their way.
        longest += start + deep * (float(load) * pieces + lag)
    room = Fraction(_MOST_TICKS) / max(Fraction(longest), Fraction(1, 10**9))
    common = 1
    for fraction in {x for column in times for x in column}:
        common = lcm(common, fraction.denominator)
        if common > room:
            break
    if common <= room:
        fine = (room / common).__floor__().bit_length() - 1
        return Fraction(common << fine)
    return Fraction(1 << (room.__floor__().bit_length() - 1)) if room >= 1 else room


def _assembled(
    parts: Sequence[Part],
    times: Sequence[Sequence[Fraction]],
    inverse: Sequence[npt.NDArray[np.intp]],
    resource: Sequence[Ticks],
    unit: Fraction,
    resources: int,
    sending: Sending,
) -> Work:
    columns: list[list[npt.NDArray[np.generic]]] = [[] for _ in range(10)]
    stages, streams = 0, 0
    for (graph, _, _, start), column, where, mine in zip(parts, times, inverse, resource, strict=True):
        real = graph.send >= 0
        transfer = np.zeros(graph.count, dtype=np.int64)
        # Rounded up where the unit does not divide it: never quicker than the link.
        ticks = np.array([-((-x * unit) // 1) for x in column], dtype=np.int64)
        transfer[real] = ticks[where]
        latency, overhead = _round(*graph.latencies, unit), _round(*graph.overheads, unit)
        following = np.append(transfer[1:], 0)
        passed = np.where(graph.cut, np.maximum(transfer - following, 0), transfer)
        release = np.full(graph.count, int((Fraction(start) + Fraction(sending.launch)) * unit), dtype=np.int64)
        joints = int((~real).sum())
        mine[~real] = resources + np.arange(joints)
        resources += joints
        chunk = np.zeros(graph.count, dtype=np.int64)
        chunk[real] = graph.schedule.chunk[graph.send[real]]
        found = (mine, transfer + overhead, overhead + latency + passed, graph.before + stages, graph.after + stages,
                 graph.level, ~real, chunk + streams, graph.share, release)  # fmt: skip
        for target, values in zip(columns, found, strict=True):
            target.append(values)
        stages += graph.count
        streams += graph.schedule.chunks
    names = ("resource", "hold", "lag", "before", "after", "level", "timeless", "stream", "weight", "release")
    arrays: dict[str, Any] = {name: np.concatenate(column) for name, column in zip(names, columns, strict=True)}
    # Works of one graph differ only in their times, and share what follows from the graph.
    derived = parts[0][0].derived if len(parts) == 1 else Derived()
    return Work(**arrays, ticks_per_second=unit, derived=derived)


def _round(distinct: npt.NDArray[np.float64], where: Ticks, unit: Fraction) -> Ticks:
    # Half a tick does not matter here, but equal latencies must stay equal.
    return np.array([round(Fraction(x) * unit) for x in distinct.tolist()], dtype=np.int64)[where]
