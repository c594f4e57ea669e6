"""Theorems of small sizes: how fast messages spread, and how many devices one device can have informed by when.

The postal model of Bar-Noy and Kipnis (1992), with as many ports as a device has links.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

from blinksim.bounds.time.certificates import Theorem, amount, block, in_words, microseconds, only_ranks_hold, units
from blinksim.bounds.time.delays import Delays, delays
from blinksim.collective import EVERY, OWN, ROOT, Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology


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


Place = Iterable[Iterable[str]]
Places = list[tuple[tuple[str, ...], ...]]


def spreads(collective: Collective) -> bool:
    """True if data of some rank must get to all others, or to one after another: all but reduce and gather."""
    # In an alltoallv some ranks may have nothing for others.
    return collective.ends != ROOT and collective.traffic is None


def sources(facts: Delays) -> list[int]:
    """The ranks that have something for every other rank."""
    return [rank for rank, device in enumerate(facts.ranks) if facts.owners[device]]


class OneStep(Theorem):
    """Before two messages in a row can arrive, every rank needs a message of its own from every source.

    What arrives later than `most` less the least time of a message cannot be sent on. So a source sends each other rank
    all that the rank needs of it. A link carries N messages of that size at most, and pays for N overheads.
    """

    kind = "one-step"

    def __init__(self, facts: Delays, size: int, source: int, message: int) -> None:
        n, collective = facts.topology.ranks, facts.collective
        self.facts, self.source, self.most = facts, source, 2 * message
        whole = collective.ends == EVERY and collective.starts in (EVERY, ROOT)
        self.each = block(facts, size) * (n if whole else 1)
        self.bytes = Fraction(size, 1 if whole else n)
        self.links = facts.first_hops(facts.ranks[source])

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> OneStep:
        """where: the source."""
        facts, names = delays(topology, collective), [name for part in where for name in part]
        message = Spreading.among(facts)
        if len(names) != 1 or names[0] not in topology.members or message is None or not spreads(collective):
            raise InputError(f"one-step says nothing about {collective} from {', '.join(names) or 'nobody'}")
        source = topology.members.index(names[0])
        if source not in sources(facts):
            raise InputError(f"{names[0]} has nothing for the others")
        return cls(facts, size, source, message.message)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> Places:
        if not spreads(collective):
            return []
        facts = delays(topology, collective)
        found = dict[tuple[tuple[int, int, int], ...], str]()
        for rank in sources(facts):
            links = facts.first_hops(facts.ranks[rank])
            key = tuple(sorted((facts.rate[e], facts.overhead[e], facts.closes(e) or 0) for e in links))
            found.setdefault(key, topology.members[rank])
        return [((name,),) for name in found.values()]

    def there(self, time: int) -> int:
        n = self.facts.topology.ranks
        total = 0
        for link in self.links:
            left = time - (self.facts.closes(link) or 0)
            rate, overhead = self.facts.rate[link] * n, self.facts.overhead[link]
            total += max(min(count * self.each, rate * max(0, left - count * overhead)) for count in range(1, n))
        return total

    def needed(self, time: int) -> int:
        return self.each * (self.facts.topology.ranks - 1)

    def unit(self) -> int:
        return units(self.facts)

    def words(self, time: int) -> str:
        name, others = self.facts.topology.members[self.source], self.facts.topology.ranks - 1
        return (
            f"before {in_words(self.most or 0)} nothing can be passed on, so {name} must send {amount(self.bytes)} to "
            f"each of {others} ranks itself, which takes {in_words(time)}"
        )


class Informed(Theorem):
    """One rank cannot have told all others sooner than messages can spread."""

    kind = "informed"

    def __init__(self, facts: Delays, spreading: Spreading) -> None:
        self.facts, self.spreading = facts, spreading
        self.jumps = spreading.jumps(facts.topology.ranks)

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> Informed:
        """where: nothing, it is about all ranks."""
        facts = delays(topology, collective)
        spreading = Spreading.among(facts)
        if [*where] or spreading is None or not spreads(collective):
            raise InputError(f"informed says nothing about {collective} here")
        return cls(facts, spreading)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> Places:
        return [()] if spreads(collective) else []

    def there(self, time: int) -> int:
        return informed(self.jumps, time)

    def needed(self, time: int) -> int:
        return self.facts.topology.ranks

    def table(self, time: int) -> dict[str, Any]:
        return {
            "message_us": microseconds(self.spreading.message),
            "spacing_us": microseconds(self.spreading.spacing),
            "ports": self.spreading.ports,
            "informed_us": [microseconds(jump) for jump in self.jumps],
        }

    def words(self, time: int) -> str:
        one = self.spreading
        return (
            f"a message takes {in_words(one.message)} and the next one on a link starts {in_words(one.spacing)} later, "
            f"so with {one.ports} links each, {self.facts.topology.ranks} ranks cannot all have heard from one before "
            f"{in_words(time)}"
        )


class Coverage(Theorem):
    """Bytes that enter a part of the machine reach as many of its ranks as messages can spread to in what time is left.

    Each of them must reach all ranks of the part. It enters once or more often; every entry reaches one rank when it
    arrives, and others as messages spread inside. What later enters again counts as another entry.
    """

    kind = "coverage"

    def __init__(self, facts: Delays, size: int, inside: set[int]) -> None:
        topology, collective = facts.topology, facts.collective
        self.facts = facts
        ranks = [rank for rank, device in enumerate(facts.ranks) if device in inside]
        self.ranks, n = len(ranks), topology.ranks
        root_outside = collective.rooted and collective.root not in ranks
        whole = collective.starts == EVERY or (collective.starts == ROOT and root_outside)
        part = n if whole else n - self.ranks if collective.starts == OWN else 0
        if collective.ends != EVERY or not 0 < self.ranks < n or not part:
            raise InputError(f"coverage says nothing about {collective} there")
        self.bytes = Fraction(size * part, n)
        self.enter = block(facts, size) * part
        self.links = [
            (facts.rate[link] * n, idle)
            for link, src in enumerate(facts.src)
            if src not in inside and facts.dst[link] in inside and (idle := facts.idle(link)) is not None
        ]
        spreading = Spreading.among(facts, inside)
        self.spreading = spreading
        self.jumps = [0] if spreading is None else spreading.jumps(self.ranks)

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> Coverage:
        """where: the devices of the part."""
        names = [name for part in where for name in part]
        if any(name not in topology.index for name in names) or len({*names}) != len(names):
            raise InputError(f"coverage: the part is no list of devices of {topology.name}")
        return cls(delays(topology, collective), size, {topology.index[name] for name in names})

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> Places:
        if collective.ends != EVERY:
            return []
        facts, found = delays(topology, collective), list[tuple[tuple[str, ...], ...]]()
        names = [device.name for device in topology.devices]
        seen = set[tuple[tuple[int, int, int], ...]]()
        for rank in sources(facts):
            links = facts.first_hops(facts.ranks[rank])
            key = tuple(sorted((facts.rate[e], facts.overhead[e], facts.closes(e) or 0) for e in links))
            if key not in seen:
                found.append((tuple(name for name in names if name != topology.members[rank]),))
            seen.add(key)
        hosts = {topology.device(name).node for name in topology.members}
        for host in sorted(hosts) if len(hosts) > 1 else ():
            inside = tuple(device.name for device in topology.devices if device.node == host)
            root = topology.members[collective.root] if collective.starts == ROOT else None
            if root not in inside:
                found.append((inside,))
        return found

    def there(self, time: int) -> int:
        return sum(rate * covered(self.jumps, time - idle) for rate, idle in self.links)

    def needed(self, time: int) -> int:
        return self.enter * self.ranks

    def unit(self) -> int:
        return units(self.facts)

    def table(self, time: int) -> dict[str, Any]:
        return {"informed_us": [microseconds(jump) for jump in self.jumps]}

    def words(self, time: int) -> str:
        return (
            f"{amount(self.bytes)} must get into a part of the machine and to each of its {self.ranks} ranks, where "
            "messages spread no faster"
        )


# Ranks up to which the ways from every port are looked for.
_MOST = 64
# Later than anything.
_NEVER = 10**30


class Port(NamedTuple):
    """The least time between two starts, and that of a message to a rank of the node, and of the others."""

    spacing: int
    inside: int
    outside: int


class NodesInformed(Theorem):
    """One rank of a node cannot have told all ranks sooner than messages can spread inside nodes and between them.

    Every rank that has heard starts a message on each of its ports whenever the last one's overhead is over. Each start
    counts as a message to the node and as one to the others, and no rank hears twice.
    """

    kind = "nodes-informed"

    def __init__(self, facts: Delays, inside: set[int]) -> None:
        self.facts = facts
        groups = [device for device in facts.ranks if device in inside], [d for d in facts.ranks if d not in inside]
        if not groups[0] or not groups[1]:
            raise InputError("nodes-informed: the ranks are all on one side")
        out: list[list[int]] = [[] for _ in facts.topology.devices]
        for link, src in enumerate(facts.src):
            out[src].append(link)
        ports = [_ports(facts, out, group, groups) for group in groups]
        self.jumps = _spread(ports, [len(group) for group in groups])

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> NodesInformed:
        """where: the devices of the node."""
        facts, names = delays(topology, collective), [name for part in where for name in part]
        if any(name not in topology.index for name in names) or len({*names}) != len(names):
            raise InputError(f"nodes-informed: the node is no list of devices of {topology.name}")
        inside = {topology.index[name] for name in names}
        told = spreads(collective) and any(facts.ranks[rank] in inside for rank in sources(facts))
        if not told or topology.ranks > _MOST or not only_ranks_hold(facts):
            raise InputError(f"nodes-informed says nothing about {collective} there")
        return cls(facts, inside)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        hosts = {topology.device(name).node for name in topology.members}
        facts = delays(topology, collective)
        if len(hosts) < 2 or topology.ranks > _MOST or not spreads(collective) or not only_ranks_hold(facts):
            return []
        first = topology.device(topology.members[sources(facts)[0]]).node
        return [(tuple(device.name for device in topology.devices if device.node == first),)]

    def there(self, time: int) -> int:
        return sum(bisect_left(jumps, time) for jumps in self.jumps)

    def needed(self, time: int) -> int:
        return self.facts.topology.ranks

    def table(self, time: int) -> dict[str, Any]:
        inside, outside = ([microseconds(jump) for jump in jumps] for jumps in self.jumps)
        return {"informed_inside_us": inside, "informed_outside_us": outside}

    def words(self, time: int) -> str:
        return (
            f"from one rank of a node, messages inside nodes and between them cannot have reached all "
            f"{self.facts.topology.ranks} ranks before {in_words(time)}"
        )


def _ports(facts: Delays, out: list[list[int]], group: list[int], groups: tuple[list[int], list[int]]) -> list[Port]:
    """The ports of each rank of a group; where they differ, as many as the most, each with the least of everything."""
    found = {tuple(sorted(_port(facts, out, e, groups) for e in facts.first_hops(device))) for device in group}
    if len(found) == 1:
        return [*found.pop()]
    every = [port for ports in found for port in ports]
    least = Port(*(min(port[place] for port in every) for place in range(3)))
    return [least] * max(map(len, found))


def _port(facts: Delays, out: list[list[int]], link: int, groups: tuple[list[int], list[int]]) -> Port:
    away, queue = dict[int, int](), [(facts.overhead[link] + facts.latency[link], facts.dst[link])]
    while queue:
        time, device = heappop(queue)
        if device in away:
            continue
        away[device] = time
        for other in out[device]:
            if facts.dst[other] not in away:
                heappush(queue, (time + facts.latency[other], facts.dst[other]))
    sender = facts.src[link]
    inside, outside = (min((away.get(d, _NEVER) for d in group if d != sender), default=_NEVER) for group in groups)
    return Port(facts.overhead[link], inside, outside)


def _spread(ports: list[list[Port]], counts: list[int]) -> tuple[list[int], list[int]]:
    """When the 1st, 2nd, … rank of the node and of the others is informed at the earliest; the first one at 0."""
    jumps = (list[int](), list[int]())
    # (time, does a message start, group, ranks that start or hear, port)
    queue: list[tuple[int, bool, int, int, Port]] = [(0, False, 0, 1, Port(0, 0, 0))]
    while any(len(known) < count for known, count in zip(jumps, counts, strict=True)):
        time, starts, group, count, port = heappop(queue)
        if time >= _NEVER:
            break
        if starts:
            many = count if port.spacing else sum(counts)
            heappush(queue, (time + port.inside, False, 0, many, port))
            heappush(queue, (time + port.outside, False, 1, many, port))
            if port.spacing:
                heappush(queue, (time + port.spacing, True, group, count, port))
            continue
        new = min(count, counts[group] - len(jumps[group]))
        jumps[group].extend([time] * new)
        for one in ports[group] if new else ():
            heappush(queue, (time, True, group, new, one))
    for known, count in zip(jumps, counts, strict=True):
        # Nothing is claimed about ranks that nothing leads to.
        known.extend([0] * (count - len(known)))
    return jumps[0], jumps[1]
