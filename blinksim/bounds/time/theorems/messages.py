"""How fast messages spread: the least time of one, and how many devices one device can have informed by when.

The postal model of Bar-Noy and Kipnis (1992), with as many ports as a device has links.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from blinksim.bounds.time.delays import Delays


@dataclass(frozen=True)
class Spreading:
    """What messages among some devices take.

    message: the least time from the start of a message to its arrival. spacing: the least time between two starts on
    one link. ports: the most links that a device starts messages on. All in femtoseconds.
    """

    message: int
    spacing: int
    ports: int

    @classmethod
    def among(cls, facts: Delays, devices: Iterable[int] | None = None) -> Spreading | None:
        """Messages between devices that hold data, over links between `devices` (all of them by default).

        None if there are none.
        """
        inside = set(range(len(facts.topology.devices)) if devices is None else devices)
        holders = {device for device in inside if facts.topology.devices[device].holds}
        links = [link for link, src in enumerate(facts.src) if src in inside and facts.dst[link] in inside]
        out: list[list[int]] = [[] for _ in facts.topology.devices]
        for link in links:
            out[facts.src[link]].append(link)
        times, starts, ports = list[int](), list[int](), dict[int, int]()
        for link in links:
            src = facts.src[link]
            left = _to_next(facts, out, facts.dst[link], holders, src) if src in holders else None
            if left is not None:
                times.append(facts.overhead[link] + facts.latency[link] + left)
                starts.append(facts.overhead[link])
                ports[src] = ports.get(src, 0) + 1
        if not times:
            return None
        return cls(min(times), min(starts), max(ports.values()))

    def jumps(self, count: int) -> list[int]:
        """When the 1st, 2nd, … device is informed at the earliest, up to `count` of them; the first at 0.

        Every device that is informed starts a message on each of its ports, and another one whenever `spacing` is over.
        """
        found, queue = [0], [(self.message, self.ports)]
        while len(found) < count:
            time, ports = heappop(queue)
            new = count - len(found) if not self.spacing else min(ports, count - len(found))
            found += [time] * new
            heappush(queue, (time + self.spacing, ports))
            # All that are informed now start together.
            heappush(queue, (time + self.message, new * self.ports))
        return found


def informed(jumps: list[int], time: int) -> int:
    """How many are informed before `time`."""
    return bisect_left(jumps, time)


def covered(jumps: list[int], time: int) -> int:
    """The integral of how many are informed, from 0 to `time`: devices times femtoseconds."""
    if time <= 0:
        return 0
    ends = [*(jump for jump in jumps if jump < time), time]
    return sum((later - now) * (place + 1) for place, (now, later) in enumerate(pairwise(ends)))


def _to_next(facts: Delays, out: list[list[int]], start: int, holders: set[int], source: int) -> int | None:
    """The least latency from a device to one that holds data, not through `source`; None if there is no way."""
    seen, queue = set[int](), [(0, start)]
    while queue:
        time, device = heappop(queue)
        if device in holders:
            return time
        if device in seen:
            continue
        seen.add(device)
        for link in out[device]:
            if facts.dst[link] != source:
                heappush(queue, (time + facts.latency[link], facts.dst[link]))
    return None
