"""How fast messages spread over several nodes, where those between the nodes take longer than those inside.

The postal model (Bar-Noy and Kipnis 1992) with two kinds of ranks, those of one node and all others, and for every port
of a rank its own overhead and its own least times to either kind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.small_sizes import sources, spreads
from blinksim.bounds.time.theorems.theorem import Theorem, only_ranks_hold
from blinksim.bounds.time.time_certificate import in_words, microseconds
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

Place = Iterable[Iterable[str]]
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
