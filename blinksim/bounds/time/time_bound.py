"""The largest of all lower bounds on the time of a collective for one size.

They hold for messages over links with latency, overhead and bandwidth, as `blinksim.timing.simulator` times
them: data is divisible, and what passes through a device goes on while it arrives. They say nothing of
launches or of protocols.

The clock bound: data between two sets of ranks must cross the links between clocks that run ahead.

Flows over time (Ford and Fulkerson 1958; the quickest transshipment of Hoppe and Tardos 2000), with what is
known of messages: a rank's own data pays the overhead, and data of others cannot pass it before it can have
come. Clocks are found by successive shortest paths: in the order of their delay, each path carries its rate
from its delay on. For given sources and sinks the flow does not depend on the size, so one search serves all
sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from heapq import heappop, heappush
from math import ceil
from typing import Any

import numpy as np

from blinksim.bounds.bound_result import NOTHING, of_blocks
from blinksim.bounds.certificates import Certificate, Phases, differing, known_devices, listed, shown
from blinksim.bounds.claims import as_list, as_object, names, proved
from blinksim.bounds.compute import best_known
from blinksim.bounds.time import certificates, link_prices, message_counts
from blinksim.bounds.time.certificates import Stated, Theorem, TimeCertificate, amount, in_words, latest
from blinksim.bounds.time.delays import FAR, SECOND, Delays, delays
from blinksim.collective import EVERY, OWN, ROOT, Collective
from blinksim.errors import InputError, blamed_on, unknown
from blinksim.graphs.connectivity import grouped
from blinksim.results import Result, keyed, table
from blinksim.topology.graph import Topology
from blinksim.units import format_size


def window(facts: Delays, clocks: Mapping[int, int] | list[int], link: int) -> int:
    """How long a byte can cross the link that is ahead of the clock at its start and behind the clock at its end.

    It is sent once the clock shows the time at its source, or later: a rank's own data after the overhead,
    data of others when they can have come.
    """
    start, through = clocks[facts.src[link]], facts.passing[facts.src[link]]
    begins = [] if through is None else [max(start, through)]
    begins += [start + facts.overhead[link]] if facts.src[link] in facts.owners else []
    return max(0, clocks[facts.dst[link]] - facts.latency[link] - min(begins)) if begins else 0


Ends = tuple[Sequence[str], Sequence[str]]


@dataclass(frozen=True)
class Clock(TimeCertificate):
    """A clock on every device; between them the links carry less than what must get from `sources` to `sinks`.

    Attributes
    ----------
    size, time : int
        Bytes; femtoseconds.
    sources, sinks : tuple of str
        Ranks whose clocks show 0 and `time`.
    clocks : tuple of (str, int)
        Every device with what its clock shows, in femtoseconds.
    carried, needed : Fraction
        Bytes that pass at most, and that must pass.
    """

    size: int
    time: int
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    clocks: tuple[tuple[str, int], ...]
    carried: Fraction
    needed: Fraction
    kind = "clock"
    assumes = NOTHING

    @classmethod
    def of(
        cls, topology: Topology, collective: Collective, size: int, ends: Ends, clocks: Mapping[str, int], time: int
    ) -> Clock:
        """Theorem: nothing ends before `time` if the windows of all links carry at most what must pass them.

        ends: the names of sources and sinks.

        Call a byte early at a device while the clock there has not passed its own time. Every byte that must
        get from the sources, whose clocks show 0, to the sinks, whose clocks show `time`, starts late and
        would end early; so it crosses some link on which it starts at or after the clock of one end and
        arrives before the clock of the other. That leaves `window` for each link. Raises `InputError` if the
        sums do not prove it.
        """
        facts = delays(topology, collective)
        rank = {name: number for number, name in enumerate(topology.members)}
        if not all(ends) or not rank.keys() >= known_devices(topology, (*ends[0], *ends[1])):
            raise InputError("a clock needs ranks as sources and as sinks, and no rank can be both")
        given, taken = ([rank[name] for name in names] for names in ends)
        shown = [0] * len(topology.devices)
        known_devices(topology, clocks)
        for name, value in clocks.items():
            shown[topology.index[name]] = value
        if any(not 0 <= value <= time for value in shown):
            raise InputError(f"a clock shows less than 0 or more than {in_words(time)}")
        for ranks, value in ((given, 0), (taken, time)):
            for place in topology.member_places[ranks].tolist():
                shown[place] = value
        needed = collective.between(given, taken, topology.ranks) * size
        total = sum(rate * window(facts, shown, link) for link, rate in enumerate(facts.rate))
        passes = Fraction(total, facts.scale * SECOND)
        if not needed or passes > needed:
            raise InputError(f"by these clocks {float(passes):g} B pass, and {float(needed):g} B must")
        names = [device.name for device in topology.devices]
        sources, sinks = (tuple(topology.members[rank] for rank in ranks) for ranks in (given, taken))
        return cls(size, time, sources, sinks, tuple(zip(names, shown, strict=True)), passes, needed)

    def again(self, topology: Topology, collective: Collective, size: int) -> Clock:
        """What the same clocks prove about another problem."""
        return Clock.of(topology, collective, size, (self.sources, self.sinks), dict(self.clocks), self.time)

    def words(self, topology: Topology) -> str:
        """One sentence with the ranks and what must get from one to the other."""
        ends = f"from {listed(self.sources)} to {listed(self.sinks)}"
        return f"in less than {in_words(self.time)} the links cannot carry {amount(self.needed)} {ends}"

    def to_dict(self) -> dict[str, Any]:
        """JSON: also clocks in microseconds."""
        clocks = {name: certificates.microseconds(value) for name, value in self.clocks}
        sums = {"carried_bytes_exact": str(self.carried), "needed_bytes_exact": str(self.needed)}
        return super().to_dict() | keyed(self, "sources sinks clocks_us", clocks_us=clocks) | sums


# Pairs of sources and sinks that are searched, the most promising first, and devices up to which they are.
_PAIRS = 24
_MOST_DEVICES = 160
# Ranks from which on counts of messages and clocks, which take seconds there, are left out.
_MOST_RANKS = 16_384
# Of these, those whose clocks are set again after a first look, and those whose time is then raised.
_REFINED, _RAISED = 6, 2
# Rounds of telling which ranks are reached before data of others can pass them.
_ROUNDS = 3
_KEPT = 64

# Ranks that data comes from, and that it must get to.
Pair = tuple[tuple[int, ...], tuple[int, ...]]


@lru_cache(maxsize=_KEPT)
def best_clock(topology: Topology, collective: Collective, size: int) -> Clock | None:
    """The latest time that clocks prove, of all sources and sinks that are tried; None for one large node.

    On large machines, by plain distances between one rank and all of other nodes.
    """
    if len(topology.devices) > _MOST_DEVICES:
        return _distance_clock(topology, collective, size) if topology.ranks <= _MOST_RANKS else None
    flows = _flows(topology, collective)
    looks: tuple[tuple[Callable[[_Flow, int], float], int], ...] = (
        (_Flow.estimate, _PAIRS),
        (lambda flow, size: flow.paths(flow.late).clocks(flow.needed(size))[0], _REFINED),
        (lambda flow, size: flow.refined(size)[0], _RAISED),
    )
    for look, most in looks:
        # Many pairs share a flow.
        later = {flow: -look(flow, size) for flow in {*flows}}
        flows = tuple(sorted(flows, key=later.__getitem__)[:most])
    found = filter(None, (flow.clock(size) for flow in dict.fromkeys(flows)))
    return max(found, key=lambda clock: clock.time, default=None)


def _distance_clock(topology: Topology, collective: Collective, size: int) -> Clock | None:
    """By distances from other nodes to one rank, or to them from one; from one where that is as good as from all."""
    host, one = topology.device_nodes[topology.member_places], collective.root if collective.rooted else 0
    gives = collective.starts == ROOT or collective.ends == OWN
    every = (collective.ends if gives else collective.starts) == OWN
    far = tuple(np.flatnonzero(host != host[one])[None if every else -1 :].tolist())
    given, taken = ((one,), far) if gives else (far, (one,))
    if not collective.between(given, taken, topology.ranks):
        return None
    facts = delays(topology, collective)
    clocks = facts.since([facts.ranks[rank] for rank in given]).tolist()
    apart = min(clocks[facts.ranks[rank]] for rank in taken)
    return _Flow(facts, apart, given, taken).clock(size, (apart, clocks))


@lru_cache(maxsize=_KEPT)
def _flows(topology: Topology, collective: Collective) -> tuple[_Flow, ...]:
    """Flows between all pairs of one question; for pairs that are alike, that of the first."""
    facts = delays(topology, collective)
    apart = facts.ways(facts.ranks)
    pairs = [*dict.fromkeys(_pairs(facts, apart.tolist()))]
    first = facts.alike([[frozenset(facts.ranks[rank] for rank in side) for side in ends] for ends in pairs])
    flows = dict[int, _Flow]()
    for at in {*first}:
        given, taken = pairs[at]
        if collective.between(given, taken, topology.ranks):
            flows[at] = _Flow(facts, int(apart[[*given]][:, [*taken]].min()), given, taken)
    return tuple(flows[place] for place in first if place in flows)


def _pairs(facts: Delays, apart: list[list[int]]) -> Iterator[Pair]:
    """For every rank that takes, the ranks at least so far away; for every one that gives, those it takes so long to.

    One of each where what must pass does not depend on how many there are.
    """
    collective = facts.collective
    givers = [rank for rank, device in enumerate(facts.ranks) if device in facts.owners]
    takers = [rank for rank, device in enumerate(facts.ranks) if device in facts.takers]
    for taker in takers if collective.starts == OWN else ():
        far = {rank: apart[rank][taker] for rank in givers if rank != taker}
        for level in sorted({*far.values()}):
            yield tuple(rank for rank in far if far[rank] >= level), (taker,)
    for giver in givers if collective.ends == OWN else ():
        far = {rank: apart[giver][rank] for rank in takers if rank != giver}
        for level in sorted({*far.values()}):
            yield (giver,), tuple(rank for rank in far if far[rank] >= level)
    if OWN not in (collective.starts, collective.ends):
        yield from (((giver,), (taker,)) for giver in givers for taker in takers if giver != taker)
    hosts = [facts.topology.devices[device].node for device in facts.ranks]
    if len({*hosts}) > 1 and EVERY not in (collective.starts, collective.ends):
        for host in dict.fromkeys(hosts):
            inside = tuple(rank for rank, own in enumerate(hosts) if own == host)
            outside = tuple(rank for rank, own in enumerate(hosts) if own != host)
            yield inside, outside
            yield outside, inside


class _Flow:
    """What can get from some ranks to others, and by when; apart: the least delay of anything between them."""

    def __init__(self, facts: Delays, apart: int, given: tuple[int, ...], taken: tuple[int, ...]) -> None:
        self.facts, self.given, self.taken = facts, given, taken
        self.sources, self.sinks = [facts.ranks[rank] for rank in given], [facts.ranks[rank] for rank in taken]
        self._share = facts.collective.between(given, taken, facts.topology.ranks) * facts.scale * SECOND
        # The devices of ranks whose clocks are taken to show less than when data of others can pass; at first, all.
        self.late = frozenset(device for device in self.sources if device in facts.owners)
        self.paths = cache(partial(_Paths, facts, self.sources, {*self.sinks}))
        self._apart = apart

    def needed(self, size: int) -> Fraction:
        """What must pass, in the unit of a rate times a femtosecond."""
        return self._share * size

    def estimate(self, size: int) -> float:
        """A time that is about right: what must pass over the rate into the sinks, and the least delay."""
        return float(self.needed(size)) / self._narrow + self._apart

    @cached_property
    def _narrow(self) -> int:
        """The least of the rates out of the sources and into the sinks."""
        facts, inside, outside = self.facts, {*self.sources}, {*self.sinks}
        every = list(zip(facts.src, facts.dst, facts.rate, strict=True))
        out = sum(rate for src, dst, rate in every if src in inside and dst not in inside)
        into = sum(rate for src, dst, rate in every if dst in outside and src not in outside)
        return max(1, min(out, into))

    def refined(self, size: int) -> tuple[int, list[int]]:
        """A later time where there is one, and its clocks: with what is known of when data of others can pass."""
        facts, late, best = self.facts, self.late, (0, [0] * len(self.facts.topology.devices))
        for _ in range(_ROUNDS):
            time, clocks = self.paths(late).clocks(self.needed(size))
            best = max(best, (time, clocks), key=lambda found: found[0])
            passing = {device: facts.passing[device] for device in facts.ranks if device in facts.owners}
            late = frozenset(device for device, then in passing.items() if then is None or clocks[device] < then)
        return best

    def clock(self, size: int, found: tuple[int, list[int]] | None = None) -> Clock | None:
        """The certificate of the latest time for the best clocks. found: a time and clocks, in place of `refined`."""
        facts, needed, (time, clocks) = self.facts, self.needed(size), found or self.refined(size)
        if time <= 0:
            return None
        for device in self.sources:
            clocks[device] = 0
        # All clocks that show the time, or stand at a sink, are set to a later one.
        ends = {*self.sinks, *(device for device, value in enumerate(clocks) if value >= time)}

        def shown(then: int) -> list[int]:
            return [then if device in ends else min(value, then) for device, value in enumerate(clocks)]

        # Links of one sort between devices of one sort carry the same.
        sort = [(value, v in ends, facts.passing[v], v in facts.owners) for v, value in enumerate(clocks)]
        alike, first = Counter[int](), dict[tuple[object, ...], int]()
        for link, rate in enumerate(facts.rate):
            key = sort[facts.src[link]], sort[facts.dst[link]], facts.overhead[link], facts.latency[link]
            alike[first.setdefault(key, link)] += rate

        def passing(then: int) -> int:
            at = shown(then)
            return sum(rate * window(facts, at, link) for link, rate in alike.items())

        start = time if passing(time) < needed else 0
        time = latest(lambda then: passing(then) < needed, start, None, lambda then: passing(then) <= needed)
        topology, names = facts.topology, [device.name for device in facts.topology.devices]
        sources, sinks = ([topology.members[rank] for rank in ranks] for ranks in (self.given, self.taken))
        values = dict(zip(names, shown(time), strict=True))
        return Clock.of(topology, facts.collective, size, (sources, sinks), values, time)


class _Paths:
    """Successive shortest paths from sources to sinks: those of a flow over time, in the order of their delays.

    Arcs are in pairs, each the other's reverse; devices are the first vertices, then the origin of all
    sources, then one vertex per late device and overhead. ahead, behind: the distances of every device from
    the sources and from the sinks, in what the paths before left.
    """

    def __init__(self, facts: Delays, sources: list[int], sinks: set[int], late: frozenset[int]) -> None:
        """late: devices of ranks whose clocks are taken to show less than when data of others can pass; their own data
        pays the overhead.
        """
        count = len(facts.topology.devices)
        self.out: list[list[int]] = [[] for _ in range(count + 1)]
        self.head, self.room, self.cost = list[int](), list[int](), list[int]()
        origin, sink, endless = count, min(sinks), sum(facts.rate) + 1
        for device in sources:
            self._arc(origin, device, endless, 0)
        doors: dict[tuple[int, int], int] = {}
        for link, (src, end, rate) in enumerate(zip(facts.src, facts.dst, facts.rate, strict=True)):
            if src in sinks:
                continue
            dst = sink if end in sinks else end
            if src not in late:
                self._arc(src, dst, rate, facts.latency[link])
                continue
            door = (src, facts.overhead[link])
            if door not in doors:
                doors[door] = len(self.out)
                self.out.append([])
                self._arc(src, doors[door], endless, facts.overhead[link])
                through = facts.passing[src]
                if through is not None:
                    self._arc(origin, doors[door], endless, through)
            self._arc(doors[door], dst, rate, facts.latency[link])
        self.potential = [0] * len(self.out)
        self.paths: list[tuple[int, int]] = []
        self.ahead, self.behind = list[list[int]](), list[list[int]]()
        while True:
            reached, came = self._distances(origin)
            if not self.paths or reached[sink] > self.paths[-1][0]:
                self.ahead.append(reached[:count])
                self.behind.append(self._distances(sink)[0][:count])
                if reached[sink] >= FAR:
                    return
                self.paths.append((reached[sink], 0))
            # Paths of one delay count as one, with the rates of all.
            delay, rate = self.paths[-1]
            self.paths[-1] = delay, rate + self._fill(origin, sink, came)
            # Distances from the origin as potentials leave no arc with a negative length. What is not reached any more
            # keeps its place behind all that is.
            pairs = list(zip(reached, self.potential, strict=True))
            most = max(far - old for far, old in pairs if far < FAR)
            self.potential = [old + most if far >= FAR else far for far, old in pairs]

    def clocks(self, needed: Fraction) -> tuple[int, list[int]]:
        """By when this much has come at the earliest, and the clocks of every device that prove it."""
        flow, gone, used, time = 0, 0, 0, 0
        for delay, rate in self.paths:
            if flow and flow * delay - gone >= needed:
                break
            used += 1
            flow += rate
            gone += rate * delay
            # Just before it may all have come.
            time = ceil((needed + gone) / flow) - 1
        pairs = zip(self.ahead[used], self.behind[used], strict=True)
        return time, [max(0, min(time, ahead, time + behind)) for ahead, behind in pairs]

    def _arc(self, src: int, dst: int, room: int, cost: int) -> None:
        for tail, head, capacity, length in ((src, dst, room, cost), (dst, src, 0, -cost)):
            self.out[tail].append(len(self.head))
            self.head.append(head)
            self.room.append(capacity)
            self.cost.append(length)

    def _distances(self, start: int) -> tuple[list[int], list[int]]:
        """The distance of every vertex from `start` in what is left, and the arc that each is reached by."""
        distance, came = [FAR] * len(self.out), [-1] * len(self.out)
        distance[start] = 0
        queue = [(0, start)]
        potential, head, room, cost = self.potential, self.head, self.room, self.cost
        while queue:
            far, here = heappop(queue)
            if far > distance[here]:
                continue
            base = far + potential[here]
            for arc in self.out[here]:
                if room[arc]:
                    there = head[arc]
                    length = base + cost[arc] - potential[there]
                    if length < distance[there]:
                        distance[there] = length
                        came[there] = arc
                        heappush(queue, (length, there))
        own = potential[start]
        return [FAR if far >= FAR else far + potential[v] - own for v, far in enumerate(distance)], came

    def _fill(self, origin: int, sink: int, came: list[int]) -> int:
        """Fills the path to the sink; returns its rate."""
        path, here = [], sink
        while here != origin:
            path.append(came[here])
            here = self.head[came[here] ^ 1]
        amount = min(self.room[arc] for arc in path)
        for arc in path:
            self.room[arc] -= amount
            self.room[arc ^ 1] += amount
        return amount


THEOREMS: tuple[type[Theorem], ...] = (*message_counts.THEOREMS, *link_prices.THEOREMS)
_TIMES_KEPT = 4096


def best_time(
    topology: Topology, collective: Collective, size: int, proofs: Sequence[Certificate], grants: Sequence[str] = ()
) -> TimeCertificate:
    """The certificate of the latest time; of equal ones, the one that assumes least.

    proofs: certificates of rates. grants: what switches may do beside forwarding; what counts messages then
    says nothing, and is not asked about thousands of ranks.
    """
    best = min(_fluid(topology, collective, size, proofs), key=_order)
    for theorem in () if grants or topology.ranks > _MOST_RANKS else THEOREMS:
        best = _stated(theorem, topology, collective, size, best.time) or best
    return best


def all_times(
    topology: Topology, collective: Collective, size: int, proofs: Sequence[Certificate]
) -> tuple[TimeCertificate, ...]:
    """The certificate of the latest time of every kind, as `best_time` takes it: the latest first."""
    stated = (_stated(theorem, topology, collective, size, 0) for theorem in THEOREMS)
    found = sorted((*_fluid(topology, collective, size, proofs), *filter(None, stated)), key=_order)
    return tuple(entries[0] for entries in grouped((entry.kind, entry) for entry in found).values())


def _order(certificate: TimeCertificate) -> tuple[int, bool]:
    return -certificate.time, certificate.assumes != NOTHING


def _fluid(
    topology: Topology, collective: Collective, size: int, proofs: Sequence[Certificate]
) -> list[TimeCertificate]:
    """What holds for bytes that flow, however many messages they are in.

    Raises `InputError` for tokens of experts.
    """
    if collective.routing is not None:
        unknown = f"what latencies add to the least time of a {collective} is not known"
        raise InputError(f"{unknown}; bound it without a size")
    rates = (proof for proof in proofs if not isinstance(proof, Phases))
    windows = (certificates.Windows.of(topology, collective, size, proof) for proof in rates)
    return [*windows, *filter(None, [best_clock(topology, collective, size)])]


def _stated(theorem: type[Theorem], topology: Topology, collective: Collective, size: int, low: int) -> Stated | None:
    """The latest time after `low` by a theorem that counts messages, of all places where it says something."""
    facts, best = delays(topology, collective), None
    for place in theorem.places(facts) if theorem.speaks(facts) else ():
        if time := theorem.stated(topology, collective, size, place).latest(low):
            low, best = time, place
    return None if best is None else Stated.of(theorem, topology, collective, size, best, low)


@lru_cache(maxsize=_TIMES_KEPT)
def least_time(topology: Topology, collective: Collective, size: int, grants: tuple[str, ...] = ()) -> TimeCertificate:
    """As `best_time`, from the bounds on the rate that every answer states."""
    return best_time(topology, collective, size, best_known(topology, collective, grants).certificates, grants)


_THEOREMS = {theorem.kind: theorem for theorem in THEOREMS}
KINDS = ("windows", "clock", *_THEOREMS)


def time_certificate_from_dict(entry: object, topology: Topology, collective: Collective, size: int) -> TimeCertificate:
    """The certificate that `entry` is, proved anew for this problem.

    Raises `InputError` for anything that proves no time, and if a sum that it states is not what the witness
    gives.
    """
    fields = as_object(entry)
    kind = fields.get("kind")
    if kind not in KINDS:
        raise unknown("kind of certificate", shown(kind).strip("'"), KINDS)
    with blamed_on(lambda missing: InputError(f"certificate: the {kind} has no {missing}"), KeyError):
        time = certificates.from_microseconds(fields["time_us"], "time_us")
        if kind == "windows":
            proof = proved(fields["proof"], topology, collective)
            found: TimeCertificate = certificates.Windows.of(topology, collective, size, proof, time)
        elif kind == "clock":
            clocks, read = as_object(fields["clocks_us"], "clocks_us"), certificates.from_microseconds
            shows = {str(name): read(text, f"the clock of {name}") for name, text in clocks.items()}
            ends = names(fields["sources"], "sources"), names(fields["sinks"], "sinks")
            found = Clock.of(topology, collective, size, ends, shows, time)
        else:
            place = tuple(names(part, "where") for part in as_list(fields["where"], "where"))
            found = Stated.of(_THEOREMS[kind], topology, collective, size, place, time)
    if reasons := differing(fields, found.to_dict()):
        raise InputError("; ".join(reasons))
    return found


@dataclass(frozen=True, repr=False)
class TimeBound(Result):
    """A lower bound on the time of a collective of one size, on the links alone.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What is bounded.
    size : int
        Bytes.
    certificates : tuple of TimeCertificate
        The latest time of each theorem, the latest first.
    in_network : TimeCertificate, optional
        What holds for switches that multicast and reduce as they can, where the machine has such.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.time_bound("dgx1-v100", "allgather", "1MiB")
    >>> found.kind, round(found.time_s * 1e6, 3)
    ('second-message', 9.317)
    >>> found.best.check(found.topology, found.collective, found.size)  # reasons against the certificate
    []
    """

    topology: Topology
    collective: Collective
    size: int
    certificates: tuple[TimeCertificate, ...]
    in_network: TimeCertificate | None = None

    @property
    def best(self) -> TimeCertificate:
        """The certificate of the largest lower bound."""
        return self.certificates[0]

    @property
    def time_s(self) -> float:
        """The largest lower bound in seconds."""
        return self.best.time / SECOND

    @property
    def kind(self) -> str:
        """The theorem that gives the largest lower bound."""
        return self.best.kind

    def rows(self) -> list[dict[str, Any]]:
        """One row per theorem."""
        keys, exact = "kind time_s time_us assumes words", certificates.microseconds
        return [
            keyed(e, keys, time_s=e.time / SECOND, time_us=exact(e.time), words=e.words(self.topology))
            | {"assumes": of_blocks(e.assumes, self.collective)}
            for e in self.certificates
        ]

    def sentence(self) -> str:
        """The answer in one line."""
        least = f"at least {in_words(self.best.time)} on the links alone ({self.kind})"
        return f"{self.collective} of {format_size(self.size)} on {self.topology.title}: {least}"

    def text(self) -> str:
        """The sentence, the proof, and the bound of each theorem."""
        every, collective = self.certificates, self.collective
        rows = [(one.kind, in_words(one.time), of_blocks(one.assumes, collective)) for one in every]
        able = self.in_network
        more = []
        if able is not None and (able.time, able.assumes) != (self.best.time, self.best.assumes):
            where = "whatever switches do" if able.assumes == NOTHING else f"where {able.assumes.partition(';')[0]}"
            more = [f"  {where}, at least {in_words(able.time)}"]
        lines = self.sentence(), f"  {self.best.words(self.topology)}", f"  it assumes: {rows[0][2]}", *more
        return "\n".join((*lines, "", table(("theorem", "at least", "assumes"), rows, left=(0, 2))))

    def to_dict(self) -> dict[str, Any]:
        """JSON: the largest bound, and every certificate with its own; each is checked on the way."""
        every = [*self.certificates, *([self.in_network] if self.in_network else [])]
        root = self.collective.root if self.collective.rooted else None
        bounds = [stated(entry, self.topology, self.collective) for entry in every]
        return keyed(self, "@TimeBound", root=root, time_bounds=bounds)


def stated(entry: TimeCertificate, topology: Topology, collective: Collective) -> dict[str, Any]:
    """JSON of one bound, as a file has it."""
    said = {"time_s": entry.time / SECOND, "assumes": of_blocks(entry.assumes, collective)}
    proof = {"certificate": entry.to_dict(), "checked": not entry.check(topology, collective, entry.size)}
    return {**said, "words": entry.words(topology), **proof}
