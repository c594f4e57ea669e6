"""Theorems of small sizes: how fast messages spread, and how many devices one device can have informed by when.

The postal model of Bar-Noy and Kipnis (1992), with as many ports as a device has links.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

from blinksim.bounds.time.certificates import Place, Theorem, amount, in_words, microseconds
from blinksim.bounds.time.delays import FAR, Delays
from blinksim.collective import EVERY, OWN, ROOT
from blinksim.errors import InputError

# Ranks up to which the ways from every port are looked for.
_MOST_NODES = 64


class Port(NamedTuple):
    """The least time between two starts, and that of a message to a rank of the node, and of the others."""

    spacing: int
    inside: int
    outside: int


def spread(ports: Sequence[Sequence[Port]], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """When the 1st, 2nd, … rank of the node and of the others is informed at the earliest; the first one at 0.

    Every rank that is informed starts a message on each of its ports, and another one whenever `spacing` is over.
    """
    jumps, alike = (list[int](), list[int]()), [Counter(group) for group in ports]
    # (time, does a message start, group, ranks that start or hear, port)
    queue: list[tuple[int, bool, int, int, Port]] = [(0, False, 0, 1, Port(0, 0, 0))]
    while any(len(known) < count for known, count in zip(jumps, counts, strict=True)):
        time, starts, group, count, port = heappop(queue)
        if time >= FAR:
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
        for one, times in alike[group].items() if new else ():
            heappush(queue, (time, True, group, new * times, one))
    for known, count in zip(jumps, counts, strict=True):
        # Nothing is claimed about ranks that nothing leads to.
        known.extend([0] * (count - len(known)))
    return jumps


class Spreading(NamedTuple):
    """What messages among some devices take, femtoseconds.

    message: the least time from the start of a message to its arrival. spacing: the least time between two starts on
    one link. ports: the most links that a device starts messages on.
    """

    message: int
    spacing: int
    ports: int

    def jumps(self, count: int) -> list[int]:
        """When the 1st, 2nd, … device is informed at the earliest, up to `count` of them; the first at 0."""
        return spread(([Port(self.spacing, self.message, FAR)] * self.ports, ()), (count, 0))[0]


@lru_cache(maxsize=64)
def spreading(facts: Delays, inside: frozenset[int] | None = None) -> Spreading | None:
    """Messages between devices that hold data, over links between those `inside` (all by default); None if none go."""
    devices = frozenset(range(len(facts.topology.devices))) if inside is None else inside
    holders = {device for device in devices if facts.topology.devices[device].holds}
    found = list[tuple[int, int, int]]()
    for link, (src, dst) in enumerate(zip(facts.src, facts.dst, strict=True)):
        if src in holders and dst in devices:
            reached = facts.beyond(link, devices)
            left = min((reached[device] for device in holders if device != src), default=FAR)
            if left < FAR:
                found.append((facts.overhead[link] + facts.latency[link] + left, facts.overhead[link], src))
    if not found:
        return None
    times, starts, sources = zip(*found, strict=True)
    return Spreading(min(times), min(starts), max(Counter(sources).values()))


def spreads(facts: Delays) -> bool:
    """True if data of some rank must get to all others, or to one after another: all but reduce and gather."""
    # In an alltoallv some ranks may have nothing for others.
    return facts.collective.ends != ROOT and facts.collective.traffic is None


def _unlike_sources(facts: Delays) -> list[str]:
    """The ranks that have something for every other rank; of those with like links one."""
    found = dict[tuple[tuple[int, int, int], ...], str]()
    for name, device in zip(facts.topology.members, facts.ranks, strict=True):
        if device in facts.owners:
            links = facts.first_hops(device)
            key = tuple(sorted((facts.rate[e], facts.overhead[e], facts.closes(e) or 0) for e in links))
            found.setdefault(key, name)
    return list(found.values())


class OneStep(Theorem):
    """Before two messages in a row can arrive, every rank needs a message of its own from every source.

    What arrives later than `most` less the least time of a message cannot be sent on. So a source sends each other rank
    all that the rank needs of it. A link carries N messages of that size at most, and pays for N overheads.
    """

    kind = "one-step"
    anywhere = True

    def __init__(self, facts: Delays, size: int, part: frozenset[int]) -> None:
        super().__init__(facts, size, part)
        message = spreading(facts)
        if len(part) != 1 or not part <= facts.owners or message is None:
            raise InputError("one-step says nothing there: the part is no rank with something for the others")
        (self.source,), self.most = part, 2 * message.message
        whole = facts.collective.ends == EVERY and facts.collective.starts in (EVERY, ROOT)
        self.each = facts.block(size) * (self.n if whole else 1)
        self.bytes = Fraction(size, 1 if whole else self.n)

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        return spreads(facts)

    @classmethod
    def places(cls, facts: Delays) -> list[Place]:
        return [((name,),) for name in _unlike_sources(facts)] if spreads(facts) else []

    def there(self, time: int) -> int:
        total = 0
        for link in self.facts.first_hops(self.source):
            left = time - (self.facts.closes(link) or 0)
            rate, overhead = self.facts.rate[link] * self.n, self.facts.overhead[link]
            total += max(min(count * self.each, rate * max(0, left - count * overhead)) for count in range(1, self.n))
        return total

    def needed(self, time: int) -> int:
        return self.each * (self.n - 1)

    def words(self, time: int) -> str:
        name = self.facts.topology.devices[self.source].name
        return (
            f"before {in_words(self.most or 0)} nothing can be passed on, so {name} must send {amount(self.bytes)} to "
            f"each of {self.n - 1} ranks itself, which takes {in_words(time)}"
        )


class Informed(Theorem):
    """One rank cannot have told all others sooner than messages can spread."""

    kind = "informed"

    def __init__(self, facts: Delays, size: int, part: frozenset[int]) -> None:
        super().__init__(facts, size, part)
        found = spreading(facts)
        if found is None:
            raise InputError(f"informed says nothing about {facts.collective} here")
        self.spreading, self.jumps = found, found.jumps(self.n)

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        return spreads(facts)

    def there(self, time: int) -> int:
        return bisect_left(self.jumps, time)

    def needed(self, time: int) -> int:
        return self.n

    def unit(self) -> int:
        return 1

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
            f"so with {one.ports} links each, {self.n} ranks cannot all have heard from one before {in_words(time)}"
        )


class NodesInformed(Theorem):
    """One rank of a node cannot have told all ranks sooner than messages can spread inside nodes and between them.

    Two kinds of ranks, those of one node and all others, and for every port of a rank its own overhead and its own
    least times to either kind. Every rank that has heard starts a message on each of its ports whenever the last one's
    overhead is over. Each start counts as a message to the node and as one to the others, and no rank hears twice.
    """

    kind = "nodes-informed"
    anywhere = True

    def __init__(self, facts: Delays, size: int, part: frozenset[int]) -> None:
        super().__init__(facts, size, part)
        groups = [[device for device in facts.ranks if (device in part) == inside] for inside in (True, False)]
        if not all(groups) or facts.owners.isdisjoint(part):
            raise InputError("nodes-informed: the ranks are all on one side, or no rank there has anything to tell")
        self.jumps = spread([_ports(facts, group, groups) for group in groups], [len(group) for group in groups])

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        return spreads(facts) and facts.topology.ranks <= _MOST_NODES and facts.only_ranks_hold

    @classmethod
    def places(cls, facts: Delays) -> list[Place]:
        devices = facts.topology.devices
        if len({devices[rank].node for rank in facts.ranks}) < 2 or not cls.applies(facts):
            return []
        first = next(devices[rank].node for rank in facts.ranks if rank in facts.owners)
        return [(tuple(device.name for device in devices if device.node == first),)]

    def there(self, time: int) -> int:
        return sum(bisect_left(jumps, time) for jumps in self.jumps)

    def needed(self, time: int) -> int:
        return self.n

    def unit(self) -> int:
        return 1

    def table(self, time: int) -> dict[str, Any]:
        inside, outside = ([microseconds(jump) for jump in jumps] for jumps in self.jumps)
        return {"informed_inside_us": inside, "informed_outside_us": outside}

    def words(self, time: int) -> str:
        return (
            f"from one rank of a node, messages inside nodes and between them cannot have reached all "
            f"{self.n} ranks before {in_words(time)}"
        )


def _ports(facts: Delays, group: list[int], groups: list[list[int]]) -> list[Port]:
    """The ports of each rank of a group; where they differ, as many as the most, each with the least of everything."""
    found = set[tuple[Port, ...]]()
    for device in group:
        ports = []
        for link in facts.first_hops(device):
            away = [facts.overhead[link] + facts.latency[link] + far for far in facts.onward(facts.dst[link])]
            near = (min((away[other] for other in one if other != device), default=FAR) for one in groups)
            ports.append(Port(facts.overhead[link], *(min(far, FAR) for far in near)))
        found.add(tuple(sorted(ports)))
    if len(found) == 1:
        return [*found.pop()]
    every = [port for ports in found for port in ports]
    return [Port(*map(min, zip(*every, strict=True)))] * max(map(len, found))


class Coverage(Theorem):
    """Bytes that enter a part of the machine reach as many of its ranks as messages can spread to in what time is left.

    Each of them must reach all ranks of the part. It enters once or more often; every entry reaches one rank when it
    arrives, and others as messages spread inside. What later enters again counts as another entry.
    """

    kind = "coverage"
    anywhere = True

    def __init__(self, facts: Delays, size: int, part: frozenset[int]) -> None:
        super().__init__(facts, size, part)
        collective, n = facts.collective, self.n
        ranks = [rank for rank, device in enumerate(facts.ranks) if device in part]
        self.ranks = len(ranks)
        root_outside = collective.rooted and collective.root not in ranks
        whole = collective.starts == EVERY or (collective.starts == ROOT and root_outside)
        blocks = n if whole else n - self.ranks if collective.starts == OWN else 0
        if not 0 < self.ranks < n or not blocks:
            raise InputError(f"coverage says nothing about {collective} there")
        self.bytes, self.enter = Fraction(size * blocks, n), facts.block(size) * blocks
        self.links = [
            (facts.rate[link] * n, idle)
            for link, src in enumerate(facts.src)
            if src not in part and facts.dst[link] in part and (idle := facts.idle(link)) is not None
        ]
        found = spreading(facts, part)
        self.jumps = [0] if found is None else found.jumps(self.ranks)

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        return facts.collective.ends == EVERY

    @classmethod
    def places(cls, facts: Delays) -> list[Place]:
        """All but one source, and nodes that the root is not in."""
        if not cls.applies(facts):
            return []
        topology, collective = facts.topology, facts.collective
        names = [device.name for device in topology.devices]
        found: list[Place] = [(tuple(name for name in names if name != one),) for one in _unlike_sources(facts)]
        hosts = {topology.device(name).node for name in topology.members}
        for host in sorted(hosts) if len(hosts) > 1 else ():
            inside = tuple(device.name for device in topology.devices if device.node == host)
            if collective.starts != ROOT or topology.members[collective.root] not in inside:
                found.append((inside,))
        return found

    def there(self, time: int) -> int:
        return sum(rate * self._covered(time - idle) for rate, idle in self.links)

    def _covered(self, time: int) -> int:
        """The integral of how many are informed, from 0 to `time`: devices times femtoseconds."""
        if time <= 0:
            return 0
        ends = [*(jump for jump in self.jumps if jump < time), time]
        return sum((later - now) * (place + 1) for place, (now, later) in enumerate(pairwise(ends)))

    def needed(self, time: int) -> int:
        return self.enter * self.ranks

    def table(self, time: int) -> dict[str, Any]:
        return {"informed_us": [microseconds(jump) for jump in self.jumps]}

    def words(self, time: int) -> str:
        return (
            f"{amount(self.bytes)} must get into a part of the machine and to each of its {self.ranks} ranks, where "
            "messages spread no faster"
        )
