"""Theorems for small sizes, where the number of messages counts: one step, and informing everybody."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.messages import Spreading, covered, informed
from blinksim.bounds.time.theorems.theorem import Theorem, block, units
from blinksim.bounds.time.time_certificate import amount, in_words, microseconds
from blinksim.collective import EVERY, OWN, ROOT, Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

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
