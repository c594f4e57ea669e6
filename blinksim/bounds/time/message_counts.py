"""Theorems that count messages: the speed of their spread, and their overheads against bytes.

Spreading is the postal model of Bar-Noy and Kipnis (1992), with as many ports as a device has links.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable
from fractions import Fraction
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import combinations, zip_longest
from typing import Any, NamedTuple

import numpy as np

from blinksim.bounds.certificates import listed
from blinksim.bounds.time.certificates import Place, Theorem, amount, carried, in_words, microseconds
from blinksim.bounds.time.delays import FAR, LONG, Delays
from blinksim.collective import EVERY, OWN, ROOT
from blinksim.errors import InputError
from blinksim.graphs.connectivity import distances, grouped, summed

# Ranks from which ways are looked for, up to symmetries: where any may be the place, and where a node is, of which
# there are few sorts, so that it takes half a second. And ranks up to which any part of them may be the place.
_MOST_CROSSING, _MOST_OF_NODES, _ANY = 64, 256, 8
# More than links ever bring.
_NEVER = 10**60
# Ranks up to which all pairs of sets of ranks are tried: 65,536 for 8.
_MOST_STRADDLING = 8
# Messages for one element, further hops of them, and how many can be under way at once.
Row = tuple[int, int, int]


class SecondMessage(Theorem):
    """What a link carries in one message is one block at most, unless that message comes late; in two, it pays twice.

    Allgather: what a rank sends before anything came is its own block. Reducescatter is the same backwards:
    what it gets and has no time to send on is for its own block. Bytes that pass through a rank count at
    their first link.
    """

    kind = "second-message"

    def prepare(self, facts: Delays) -> None:
        self.must = self.n * (self.n - 1) * self.block
        self.links: list[tuple[int, int, int]] = []
        for link, rate in enumerate(facts.rate):
            idle = facts.overhead[link] + (facts.closes(link) or 0)
            late = facts.passing[facts.src[link]]
            if facts.collective.name == "reducescatter":
                # The least time of a message from the end of the link.
                onward = (facts.overhead[e] + (facts.closes(e) or 0) for e in facts.first_hops(facts.dst[link]))
                late = min(onward, default=None)
            again = facts.overhead[link] if late is None else min(facts.overhead[link], late)
            self.links.append((rate * self.n, idle, again))

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        direct = len(facts.topology.devices) == facts.topology.ranks
        return facts.collective.name in ("allgather", "reducescatter") and direct

    def there(self, time: int) -> int:
        carried = ((rate * max(0, time - idle), rate * max(0, time - idle - again)) for rate, idle, again in self.links)
        return sum(max(min(self.block, first), later) for first, later in carried)

    def words(self, time: int) -> str:
        n, second = self.n, "a link carries more than one of them only with a second message"
        must = f"{n} ranks must get {n - 1} blocks of {amount(Fraction(self.size, n))} each"
        return f"{must}; {second}, and all links together do not carry them within {in_words(time)}"


class ServedTwice(Theorem):
    """Alltoall: a block goes straight to its rank in a message for that rank, or it is sent twice.

    A rank that sends k messages serves k others directly. The k overheads and all bytes must fit on the links
    out of the ranks, and the overheads of the messages on one link into the time that it has for data.
    """

    kind = "served-twice"

    def prepare(self, facts: Delays) -> None:
        # The links of every rank by what a message costs: that, overhead, when data must have passed, and the
        # rate. Ranks that are alike count together.
        rate, overhead = [one * self.n for one in facts.rate], facts.overhead
        every = [[(overhead[e] * rate[e], overhead[e], facts.closes(e) or 0, rate[e]) for e in facts.first_hops(rank)]
                 for rank in facts.ranks]  # fmt: skip
        self.alike = Counter(tuple(sorted(links)) for links in every)

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        return facts.collective.name == "alltoall" and facts.only_ranks_hold

    def there(self, time: int) -> int:
        own = {links: sum(rate * max(0, time - idle) for _, _, idle, rate in links) for links in self.alike}
        return sum(own[links] * times for links, times in self.alike.items())

    def needed(self, time: int) -> int:
        total = 0
        for links, times in self.alike.items():
            sent, each = 0, 2 * (self.n - 1) * self.block
            for cost, overhead, idle, _ in links:
                # Each carries something, so that a little time is left after the last overhead.
                room, more = time - idle - 1, self.n - 1 - sent
                fit = 0 if room < 0 else min(more, room // overhead) if overhead else more
                # A message that costs more than the block that it saves is sent only if it is the first.
                fit = fit if cost < self.block else min(fit, 1 - min(sent, 1))
                sent, each = sent + fit, each + fit * (cost - self.block)
            total += times * (each if sent else _NEVER)
        return total

    def words(self, time: int) -> str:
        block = amount(Fraction(self.size, self.n))
        sends = f"every rank sends {self.n - 1} blocks of {block}, each in a message of its own or twice"
        return f"{sends}; overheads and bytes do not fit on the links out of the ranks within {in_words(time)}"


class CrossingPairs(Theorem):
    """Allreduce: every pair of a rank outside and one inside needs a crossing of its own, or shares one with others.

    Early, few contributions can have come together in what crosses; late, what crosses can still reach a few
    ranks only. Follow what a rank outside contributes to an element on its way to a rank inside, and take the
    last link on which it crosses. A message that can be on the link at t started at some rank a while before,
    with what this rank can have heard by then from ranks outside: N(t) of them at most. It ends at some rank
    a while later; from there, messages inside reach M(T - t) ranks at most. So a byte that crosses at t
    serves N(t) M(T - t) pairs at most.
    """

    kind = "crossing-pairs"
    anywhere = True

    def prepare(self, facts: Delays) -> None:
        self.takers = [rank for rank, device in enumerate(facts.ranks) if device in self.part]
        self.givers = [rank for rank, device in enumerate(facts.ranks) if device not in self.part]
        if not self.takers or not self.givers:
            raise InputError("crossing-pairs: the ranks are all on one side")
        self.must = self.all * len(self.givers) * len(self.takers)

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        if facts.collective.name != "allreduce" or facts.topology.ranks < 2 or not facts.only_ranks_hold:
            return False
        return len(facts.unlike()) <= (_MOST_OF_NODES if facts.topology.nodes > 1 else _MOST_CROSSING)

    @classmethod
    def places(cls, facts: Delays) -> list[Place]:
        return _places(facts, _parts(facts))

    def there(self, time: int) -> int:
        return carried(*waits(self.facts, self.part), time)

    def words(self, time: int) -> str:
        names = [self.facts.topology.devices[device].name for device in self.facts.ranks]
        givers, takers = (listed([names[rank] for rank in side]) for side in (self.givers, self.takers))
        must = f"{takers} must receive {amount(Fraction(self.size))} from {'each of ' * (len(self.givers) > 1)}{givers}"
        return f"{must}; early messages hold few contributions, and late ones reach few ranks"


@lru_cache(maxsize=64)
def waits(facts: Delays, part: frozenset[int]) -> tuple[list[int], list[int]]:
    """Rates, and how long each has nothing to carry: the k-th contribution and the j-th rank with every link."""
    links, inside = _crossing(facts, part), np.array([device in part for device in facts.ranks])
    # Of the ranks that a message can start at, one stands for those that are alike.
    ranks = facts.unlike(part)
    starts, own = facts.topology.member_places[ranks], inside[ranks]
    src, overhead = (np.array([column[link] for link in links])[:, None] for column in (facts.src, facts.overhead))
    apart, away = np.split(facts.ways(np.append(starts, src)), [len(starts)], axis=1)
    apart[ranks, np.arange(len(ranks))] = 0
    takers = starts[own].tolist()
    # start (link, rank): from a rank to the link. end (link, rank): from the link to a rank inside.
    start = np.where(src == starts, overhead, away[ranks].T)
    onward = [(facts.latency[link], facts.onward(facts.dst[link])) for link in links]
    end = [[min(latency + reached[taker], LONG) for taker in takers] for latency, reached in onward]
    jumps = _heard_in(facts, part)
    # heard (k, rank): until a rank has heard from k + 1 outside. reached (rank, j): until it has told j
    # inside.
    heard = np.sort(apart[~inside], axis=0)
    reached = np.maximum(np.sort(apart[ranks[own]][:, own], axis=1), jumps)
    before = (start[:, None, :] + heard).min(axis=2)
    after = (np.array(end)[:, :, None] + reached).min(axis=1)
    total = np.minimum((before[:, :, None] + after[:, None, :]).reshape(len(links), -1), LONG)
    rows = zip([facts.rate[link] * facts.topology.ranks for link in links], total.tolist(), strict=True)
    found = summed((wait, times * rate) for rate, row in rows for wait, times in Counter(row).items())
    return [*found.values()], [*found]


@lru_cache(maxsize=64)
def _parts(facts: Delays) -> tuple[frozenset[int], ...]:
    """Parts of the machine: nodes, or as many ranks as can be, with the least bandwidth into them; one of a kind."""
    if nodes := _unlike_nodes(facts):
        return nodes
    relays, n = frozenset(range(len(facts.topology.devices))) - {*facts.ranks}, len(facts.ranks)
    found, apart = dict[object, frozenset[int]](), facts.ways(facts.ranks)
    for count in (1, n - 1) if relays or n > _ANY else range(1, n):
        # Switches go with the larger part, so that the ports of the smaller one are what is crossed.
        inside = relays if 2 * count > n else frozenset[int]()
        chosen = [inside.union(some) for some in combinations(facts.ranks, count)]
        into = [sum(facts.rate[link] for link in _crossing(facts, part)) for part in chosen]
        least = [part for part, rate in zip(chosen, into, strict=True) if rate == min(into)]
        for part in reversed(least):
            # Links into it, and ways between the ranks of either side, tell a part of another kind.
            links = sorted((facts.rate[e], facts.overhead[e], facts.latency[e]) for e in _crossing(facts, part))
            own = np.array([device in part for device in facts.ranks])
            ways = [sorted(np.sort(apart[side][:, side]).tolist()) for side in (own, ~own)]
            found[count, tuple(links), str(ways)] = part
    return tuple(found.values())


def _crossing(facts: Delays, inside: Container[int]) -> list[int]:
    return [link for link, src in enumerate(facts.src) if src not in inside and facts.dst[link] in inside]


class Straddling(Theorem):
    """Allreduce: an element's messages cannot all be long, as they cannot all be under way at once.

    Gossip takes 2(n-1) messages one after another (Harary and Schwenk 1974); fewer in a row need more at
    once, and many short messages pay many overheads. At any moment let k1 of an element's M messages have
    arrived, k2 not have started, and q be under way. At least n - k1 ranks sent none that arrived, and at
    least n - k2 ranks get none that starts later. From each of the first to each of the second, other than
    itself, a message is under way: what the one contributes is nowhere else, and nothing later reaches the
    other. `under_way` gives the largest q for which that is possible. So all M messages together are under
    way for Q times the time at most, each for its stay on its first link, d, and the least latency. A byte of
    a message takes d/(d - o) of a link's time for a byte, which is convex in d; further hops of a route cost
    1 each.
    """

    kind = "straddling"

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        few = 2 < facts.topology.ranks == len(facts.topology.devices) <= _MOST_STRADDLING
        return facts.collective.name == "allreduce" and few and min(facts.overhead) > 0

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return under_way(tuple(self.facts.ranks), frozenset(zip(self.facts.src, self.facts.dst, strict=True)))

    def there(self, time: int) -> int:
        facts = self.facts
        return sum(rate * self.n * max(0, time - (facts.closes(link) or 0)) for link, rate in enumerate(facts.rate))

    def needed(self, time: int) -> Fraction:
        """The bytes of the size times the least that each costs; more than there ever is where nothing is possible."""
        best = self._best(time)
        return Fraction(_NEVER) if best is None else self.all * best[0]

    def _best(self, time: int) -> tuple[Fraction, Row] | None:
        """The least byte times that a byte needs, and the messages that it takes then; None if nothing is possible."""
        overhead, latency = min(self.facts.overhead), min(self.facts.latency)
        best: Row | None = None
        # The least cost as whole numbers, one over the other; at first, more than any.
        cost, unit = 1, 0
        for messages, further, together in self.rows:
            spent = together * time - messages * latency
            data = spent - messages * overhead
            # No message costs less than 1.
            if data <= 0 or (messages + further) * unit >= cost:
                continue
            paid = messages * spent + further * data
            if paid * unit < cost * data:
                best, cost, unit = (messages, further, together), paid, data
        return None if best is None else (Fraction(cost, unit), best)

    def table(self, time: int) -> dict[str, Any]:
        best = self._best(time)
        rows = [list(row) for row in self.rows if best is None or row[0] + row[1] <= best[0]]
        return {"messages_hops_together": rows}

    def words(self, time: int) -> str:
        best = self._best(time)
        if best is None:
            return f"the messages of an allreduce of {self.n} ranks cannot follow each other within {in_words(time)}"
        busy = f"they keep links busy for {float(best[0]):.4g} times its transfer time"
        return f"each byte needs {best[1][0]} messages; with overheads {busy}"


@lru_cache(maxsize=64)
def under_way(ranks: tuple[int, ...], joined: frozenset[tuple[int, int]]) -> tuple[Row, ...]:
    """For every number of messages and further hops the most messages that can be under way at once.

    ranks: their devices, of which there are no others. joined: pairs of devices with a link. From 2(n-1)
    messages to one for every ordered pair of ranks; only rows that no other one betters, those with the
    fewest messages and hops first. Tries every two sets of ranks.
    """
    n = len(ranks)
    # Links on the shortest way between two ranks, less 1; 0 from a rank to itself.
    out = grouped(joined)
    far = [distances(rank, lambda here: out.get(here, ())) for rank in ranks]
    away = np.array([[reached.get(rank, 10**6) for rank in ranks] for reached in far])
    bits = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    sizes = bits.sum(axis=1)
    pairs = (sizes[:, None] * sizes[None, :] - bits @ bits.T).ravel()
    further = (bits @ np.maximum(away - 1, 0) @ bits.T).ravel()
    both = (sizes[:, None] + sizes[None, :]).ravel()
    most = n * (n - 1)
    found = list[Row]()
    for level in np.flatnonzero(np.bincount(further[further <= most])):
        best = np.zeros(most + 1, dtype=np.int64)
        fits = (further <= level) & (pairs <= most)
        np.maximum.at(best, pairs[fits], both[fits])
        # With nothing under way, either all ranks have sent something that arrived or all get something
        # later.
        best[0] = max(best[0], n)
        lacking = np.arange(most + 1) - np.maximum.accumulate(best)
        for messages in range(2 * n - 2, most + 1):
            possible = np.flatnonzero(lacking[: messages + 1] <= messages - 2 * n)
            found += [(messages, int(level), int(possible[-1]))] if len(possible) else []
    # Rows than which no other one has fewer messages, fewer hops and more under way for each message.
    rows = sorted(found, key=lambda row: (row[0] + row[1], row[0]))
    messages, hops, together = np.array(rows, dtype=np.int64).T
    share = together[:, None] * messages
    better = (messages[:, None] <= messages) & (hops[:, None] <= hops) & (share >= share.T)
    # Of equal ones the first is kept.
    better &= ~(better.T & (np.arange(len(hops))[:, None] >= np.arange(len(hops))))
    return tuple(row for row, worse in zip(rows, better.any(axis=0).tolist(), strict=True) if not worse)


class Port(NamedTuple):
    """The least time between two starts, and that of a message to a rank of the node, and of the others."""

    spacing: int
    inside: int
    outside: int


@lru_cache(maxsize=64)
def spread(ports: tuple[tuple[Port, ...], ...], counts: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """When the 1st, 2nd, … rank of the node and of the others is informed at the earliest; the first one at 0.

    Every rank that is informed starts a message on each of its ports, and another one whenever `spacing` is
    over.
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

    message: the least time from the start of a message to its arrival. spacing: the least time between two
    starts on one link. ports: the most links that a device starts messages on.
    """

    message: int
    spacing: int
    ports: int

    def jumps(self, count: int) -> list[int]:
        """When the 1st, 2nd, … device is informed at the earliest, up to `count` of them; the first at 0."""
        return spread(((Port(self.spacing, self.message, FAR),) * self.ports, ()), (count, 0))[0]


@lru_cache(maxsize=64)
def spreading(facts: Delays, inside: frozenset[int] | None = None) -> Spreading | None:
    """Messages between devices that hold data, over links between those `inside` (all by default); None if none go."""
    devices, (src, dst) = facts.topology.devices, facts.topology.ends
    within = np.array([inside is None or device in inside for device in range(len(devices))])
    holds = within & [device.holds for device in devices]
    first = np.flatnonzero(holds)
    left = facts.from_others((0 * first, first, first), dst, src, within, back=True)
    out = np.flatnonzero(holds[src] & (left < FAR))
    if not len(out):
        return None
    spacing = min(facts.overhead[link] for link in out.tolist())
    return Spreading(int((facts.alpha[out] + left[out]).min()), spacing, int(np.bincount(src[out]).max()))


@lru_cache(maxsize=64)
def _heard_in(facts: Delays, part: frozenset[int]) -> list[int]:
    """When the 1st, 2nd, … rank of a part has heard at the earliest from one that knows at 0; `LONG` for never.

    If the part has ranks of several nodes, they hear no sooner than as many ranks of the whole machine, from one of
    whichever node.
    """
    node, found = facts.topology.device_nodes, spreading(facts, part)
    ranks = [device for device in facts.ranks if device in part]
    jumps = found.jumps(len(ranks)) if found else [0, *[LONG] * (len(ranks) - 1)]
    if len({*node[ranks].tolist()}) == 1 or not facts.only_ranks_hold:
        return jumps
    starts = {*node[facts.topology.member_places[facts.unlike()]].tolist()}
    told = (_told(facts, frozenset(np.flatnonzero(node == one).tolist())) for one in starts)
    sooner = map(min, zip(*(sorted(inside + outside) for inside, outside in told), strict=True))
    return [max(both) for both in zip(jumps, sooner, strict=False)]


@lru_cache(maxsize=64)
def _unlike_sources(facts: Delays) -> list[int]:
    """The ranks that have something for every other rank; of those with like links one."""

    def sort(device: int) -> tuple[tuple[int, int, int], ...]:
        links = facts.first_hops(device)
        return tuple(sorted((facts.rate[e], facts.overhead[e], facts.closes(e) or 0) for e in links))

    alike = grouped((sort(device), device) for device in facts.ranks if device in facts.owners)
    return [first for first, *_ in alike.values()]


@lru_cache(maxsize=64)
def _unlike_nodes(facts: Delays) -> tuple[frozenset[int], ...]:
    """Of nodes with like links into their devices and as many ranks one; of a single node none."""
    node, ranks = facts.topology.device_nodes.tolist(), {*facts.ranks}
    links = grouped((node[end], at) for at, end in enumerate(facts.dst))
    devices = grouped((owner, place) for place, owner in enumerate(node))
    found = dict[object, frozenset[int]]()
    for one in {node[rank]: None for rank in facts.ranks}:
        rows = Counter((facts.rate[e], facts.overhead[e], facts.latency[e]) for e in links.get(one, ()))
        part = frozenset(devices[one])
        found.setdefault((frozenset(rows.items()), len(part & ranks), facts.owners <= part), part)
    return (*found.values(),) if len({node[rank] for rank in ranks}) > 1 else ()


def _places(facts: Delays, parts: Iterable[Container[int]]) -> list[Place]:
    """Parts of the machine by the names of their devices."""
    names = [device.name for device in facts.topology.devices]
    return [(tuple(name for device, name in enumerate(names) if device in part),) for part in parts]


class OfSpreading(Theorem):
    """Of data of some rank that must get to all others, or to one after another: all but reduce and gather."""

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        # In an alltoallv some ranks may have nothing for others.
        return facts.collective.ends != ROOT and facts.collective.traffic is None


class OneStep(OfSpreading):
    """Before two messages in a row can arrive, every rank needs a message of its own from every source.

    What arrives later than `most` less the least time of a message cannot be sent on. So a source sends each
    other rank all that the rank needs of it. A link carries N messages of that size at most, and pays for N
    overheads.
    """

    kind = "one-step"
    anywhere = True

    def prepare(self, facts: Delays) -> None:
        message = spreading(facts)
        if len(self.part) != 1 or not self.part <= facts.owners or message is None:
            raise InputError("one-step says nothing there: the part is no rank with something for the others")
        (self.source,), self.most = self.part, 2 * message.message
        whole = facts.collective.ends == EVERY and facts.collective.starts in (EVERY, ROOT)
        self.each = self.block * (self.n if whole else 1)
        self.bytes, self.must = Fraction(self.size, 1 if whole else self.n), self.each * (self.n - 1)

    @classmethod
    def places(cls, facts: Delays) -> list[Place]:
        return _places(facts, ([source] for source in _unlike_sources(facts)))

    def there(self, time: int) -> int:
        total = 0
        for link in self.facts.first_hops(self.source):
            left = time - (self.facts.closes(link) or 0)
            rate, overhead = self.facts.rate[link] * self.n, self.facts.overhead[link]
            # More messages hold more, and leave less time for it: the most is where these are as much.
            even = rate * left // max(1, self.each + rate * overhead)
            few = (min(max(count, 1), self.n - 1) for count in (even, even + 1))
            total += max(min(count * self.each, rate * max(0, left - count * overhead)) for count in few)
        return total

    def words(self, time: int) -> str:
        name = self.facts.topology.devices[self.source].name
        must = f"{name} must send {amount(self.bytes)} to each of {self.n - 1} ranks itself"
        before = in_words(self.most or 0)
        return f"before {before} nothing can be passed on, so {must}, which takes {in_words(time)}"


class Informed(OfSpreading):
    """One rank cannot have told all others sooner than messages can spread."""

    kind = "informed"

    def prepare(self, facts: Delays) -> None:
        found = spreading(facts)
        if found is None:
            raise InputError(f"informed says nothing about {facts.collective} here")
        self.spreading, self.jumps, self.must, self.unit = found, [found.jumps(self.n)], self.n, 1

    def there(self, time: int) -> int:
        return sum(bisect_left(jumps, time) for jumps in self.jumps)

    def table(self, time: int) -> dict[str, Any]:
        message, spacing, ports = self.spreading
        table = {"message_us": microseconds(message), "spacing_us": microseconds(spacing), "ports": ports}
        return {**table, "informed_us": [microseconds(jump) for jump in self.jumps[0]]}

    def words(self, time: int) -> str:
        takes, later = in_words(self.spreading.message), in_words(self.spreading.spacing)
        rest = f"{self.n} ranks cannot all have heard from one before {in_words(time)}"
        begins = f"a message takes {takes} and the next one on a link starts {later} later"
        return f"{begins}, so with {self.spreading.ports} links each, {rest}"


class NodesInformed(Informed):
    """One rank of a node cannot have told all ranks sooner than messages can spread inside nodes and between them.

    Two kinds of ranks, those of one node and all others, and for every port of a rank its own overhead and
    its own least times to either kind. Every rank that has heard starts a message on each of its ports
    whenever the last one's overhead is over. Each start counts as a message to the node and as one to the
    others, and no rank hears twice.
    """

    kind = "nodes-informed"
    anywhere = True

    def prepare(self, facts: Delays) -> None:
        self.must, self.unit = self.n, 1
        if self.part.isdisjoint(facts.owners) or self.part.issuperset(facts.ranks):
            raise InputError("nodes-informed: the ranks are all on one side, or no rank there has anything to tell")
        self.jumps = [*_told(facts, self.part)]

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        return super().applies(facts) and facts.only_ranks_hold

    @classmethod
    def places(cls, facts: Delays) -> list[Place]:
        return _places(facts, [part for part in _unlike_nodes(facts) if part & facts.owners][:1])

    def table(self, time: int) -> dict[str, Any]:
        inside, outside = ([microseconds(jump) for jump in jumps] for jumps in self.jumps)
        return {"informed_inside_us": inside, "informed_outside_us": outside}

    def words(self, time: int) -> str:
        reached = f"cannot have reached all {self.n} ranks before {in_words(time)}"
        return f"from one rank of a node, messages inside nodes and between them {reached}"


@lru_cache(maxsize=64)
def _told(facts: Delays, part: frozenset[int]) -> tuple[list[int], list[int]]:
    """When the ranks of a part and the others are informed at the earliest, as `spread` does.

    Each rank has the ports of its own kind; where these differ, as many as the most, the quickest with the
    least of all quickest ones, and so on: a machine that lost ports has not the best of everything on the others.
    """
    kinds, (src, dst) = (part.intersection(facts.ranks), frozenset(facts.ranks) - part), facts.topology.ends
    firsts = (np.array([*kind], dtype=np.int64) for kind in kinds)
    # Of every link, when a message across it reaches another rank of each kind.
    behind = (facts.from_others((0 * first, first, first), dst, src, back=True) for first in firsts)
    left = [(facts.alpha + np.minimum(one, FAR - facts.alpha)).tolist() for one in behind]
    every = list[tuple[Port, ...]]()
    for kind in kinds:
        found = set[tuple[Port, ...]]()
        for device in kind:
            ports = (Port(facts.overhead[link], *(far[link] for far in left)) for link in facts.first_hops(device))
            found.add(tuple(sorted(ports, key=lambda port: (min(port[1:]), port))))
        if len(found) > 1:
            alike = (filter(None, ports) for ports in zip_longest(*found))
            found = {tuple(Port(*map(min, zip(*ports, strict=True))) for ports in alike)}
        every.extend(found)
    return spread(tuple(every), tuple(map(len, kinds)))


class Coverage(Theorem):
    """Bytes that enter a part of the machine reach as many of its ranks as messages can spread to in what time is left.

    Each of them must reach all ranks of the part. It enters once or more often; every entry reaches one rank
    when it arrives, and others as messages spread inside. What later enters again counts as another entry.
    """

    kind = "coverage"
    anywhere = True

    def prepare(self, facts: Delays) -> None:
        collective, n = facts.collective, self.n
        ranks = [rank for rank, device in enumerate(facts.ranks) if device in self.part]
        self.ranks = len(ranks)
        root_outside = collective.rooted and collective.root not in ranks
        whole = collective.starts == EVERY or (collective.starts == ROOT and root_outside)
        blocks = n if whole else n - self.ranks if collective.starts == OWN else 0
        if not 0 < self.ranks < n or not blocks:
            raise InputError(f"coverage says nothing about {collective} there")
        self.bytes, self.must = Fraction(self.size * blocks, n), self.block * blocks * self.ranks
        # Many links are alike, and many ranks are informed at once.
        links = Counter((facts.rate[link] * n, facts.idle(link)) for link in _crossing(facts, self.part))
        self.jumps = _heard_in(facts, self.part)
        self.links = [(rate * times * many, idle + jump) for (rate, idle), times in links.items() if idle is not None
                      for jump, many in Counter(self.jumps).items()]  # fmt: skip

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        return facts.collective.ends == EVERY

    @classmethod
    def places(cls, facts: Delays) -> list[Place]:
        """All but one source, and of a node and all else what the root is not in."""
        every, nodes = frozenset(range(len(facts.topology.devices))), _unlike_nodes(facts)
        parts = [every - {source} for source in _unlike_sources(facts)]
        return _places(facts, [*parts, *(p for one in nodes for p in (one, every - one) if not facts.owners <= p)])

    def there(self, time: int) -> int:
        # Of each link the integral of how many are informed by what time is left.
        return sum(rate * max(0, time - wait) for rate, wait in self.links)

    def table(self, time: int) -> dict[str, Any]:
        return {"informed_us": [microseconds(jump) for jump in self.jumps]}

    def words(self, time: int) -> str:
        where = f"a part of the machine and to each of its {self.ranks} ranks, where messages spread no faster"
        return f"{amount(self.bytes)} must get into {where}"


THEOREMS = (OneStep, Informed, NodesInformed, Coverage, CrossingPairs, SecondMessage, ServedTwice, Straddling)
