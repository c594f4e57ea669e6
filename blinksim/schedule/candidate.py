"""Candidate schedules, each in the form that its time follows from, symmetric ones, and a cache of the latest.

A schedule of 32,768 GPUs has a tree for every GPU, with as many sends each; on a symmetric machine the trees
are images of one tree. So `base` has one chunk of each sort, and `group` the commuting symmetries of the
machine (`blinksim.topology.symmetry`). The schedule is the images of every chunk of `base` under the elements
of the group; a generator that takes all sends of a chunk to sends of the same chunk makes no further image of
it.

A symmetry takes links to equal links, so one image stands for all. The load of all follows from orbits: the
elements spread what a chunk sends over a link evenly over the orbit of that link (the orbit-stabilizer
theorem), so an orbit is one resource with the bandwidth of all its links.

A topology never changes, and an edited one is another key, so what is cached never grows stale.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.arrays import Bools, Ints, Ints32, by_place, compressed, expand, occurrences, places
from blinksim.results import count
from blinksim.schedule import loads
from blinksim.schedule.loads import MOST_SENDS, Outline, Spread, StepLoads, chunk_parts, divided, rate
from blinksim.schedule.model import COPY, REDUCE, Schedule, ScheduleLike, as_schedule, of_sends
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import CommutingGroup, orbit_labels


@dataclass(frozen=True, eq=False)
class Candidate:
    """A schedule in the form that its time follows from; what needs its sends has them written.

    timed: with all sends, by symmetry, or the loads of its steps. parallel: the routes that the sends of a
    `Schedule` are divided among, None if every send takes the one route that it has. build: what writes the
    sends that loads leave out.
    """

    timed: Schedule | SymmetricSchedule | Outline | StepLoads
    parallel: Spread | None = None
    build: Callable[[], Candidate] | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> Candidate:
        """With all equal routes, if the loads then allow at least the rate that they allow without.

        Whole messages take turns at them where that loads links alike, others are divided among them.
        """
        spread = loads.equal_routes(schedule)
        if spread is None or (rate(schedule, spread) or 0) < (rate(schedule) or 0):
            return cls(schedule)
        whole = loads.whole_messages(schedule, spread) if schedule.form == "steps" else None
        return cls(schedule, spread) if whole is None else cls(whole)

    @cached_property
    def written(self) -> Candidate:
        """The same with its sends, as `compact` has them, and their parallel routes."""
        return self if self.build is None else self.build()

    @property
    def by_symmetry(self) -> SymmetricSchedule | None:
        """The schedule by symmetry, if it is one."""
        return self.timed if isinstance(self.timed, SymmetricSchedule) else None

    @property
    def compact(self) -> Schedule:
        """As an algorithm builds it: before sends are divided among parallel routes, or one chunk of each sort."""
        found = self.written.by_symmetry.base if self.written.by_symmetry else self.written.timed
        assert isinstance(found, Schedule)
        return found

    @property
    def on_fewer_routes(self) -> list[Candidate]:
        """The same with messages on one route or a few, if any is divided: each part of it costs a start."""
        if isinstance(self.timed, Outline):
            return [
                Candidate(one, build=lambda: [*self.written.on_fewer_routes, self.written][0])
                for one in self.timed.undivided
            ]
        return [Candidate(self.timed, few) for few in (None, *self.parallel.fewer())] if self.parallel else []

    @property
    def steps(self) -> int:
        """Dependent sends on the longest path."""
        return self.timed.steps

    # Each new candidate of the cache asks all that are in it.
    @cached_property
    def held(self) -> int:
        """How many sends, or loads, it holds in memory."""
        match self.timed:
            case Schedule():
                return self.sends
            case SymmetricSchedule():
                return self.timed.base.sends
            case Outline():
                return sum(len(one.exchange.src) for one in self.timed.rounds if one.exchange.src is not None)
        return int(np.count_nonzero(self.timed.load))

    @cached_property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow; None if nothing is sent."""
        return rate(self.timed, self.parallel) if isinstance(self.timed, Schedule) else self.timed.rate

    @cached_property
    def sends(self) -> int:
        """How many sends `schedule` has."""
        if not isinstance(self.timed, Schedule) or self.parallel is None:
            return self.timed.sends
        return int(chunk_parts(self.timed, self.parallel)[self.timed.chunk].sum())

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule with every send written out: what is verified, simulated, run and exported.

        Raises `InfeasibleError` if that are too many sends.
        """
        found = self.written
        if found is not self:
            return found.schedule
        if isinstance(self.timed, SymmetricSchedule):
            return self.timed.schedule
        if self.parallel is None:
            return self.compact
        if self.sends > MOST_SENDS:
            who = f"{self.compact.algorithm} on {self.compact.topology.ranks} ranks has {self.sends:,} sends"
            once = f"once its data is divided among parallel routes, more than {MOST_SENDS:,}"
            raise InfeasibleError(f"{who} {once}; take packed, or fewer ranks")
        return divided(self.compact, self.parallel)


# Sends of all cached schedules together: some 30 bytes each. An answer at every size asks for those of half the
# nodes, a quarter and so on again: `compare aurora alltoall --nodes 1024` takes 106 s and 2.8 GB in all with
# 4 million, 41 s and 2.9 GB with 8, 28 s and 2.3 GB with 16.
MOST_CACHED = 16_000_000
# By the hash of the key, which takes milliseconds for a large topology.
_cache: OrderedDict[int, tuple[Hashable, Candidate]] = OrderedDict()
_lock = Lock()


def cached(key: Hashable, build: Callable[[], Candidate]) -> Candidate:
    """The candidate that `build` gives, or gave for an equal key; the least recently used make room."""
    place = hash(key)
    before, candidate = _cache.get(place, (None, None))
    if candidate is None or before != key:
        before, candidate = None, build()
        if candidate.held > MOST_CACHED:
            return candidate
    with _lock:
        _cache[place] = key, candidate
        _cache.move_to_end(place)
        while before is None and sum(other.held for _, other in _cache.values()) > MOST_CACHED:
            _cache.popitem(last=False)
    return candidate


@dataclass(frozen=True, eq=False, repr=False)
class SymmetricSchedule:
    """A schedule as the images of a few chunks under commuting symmetries of its machine.

    Parameters
    ----------
    base : Schedule
        One chunk of each sort with its sends, and its share of the size.
    group : CommutingGroup
        The symmetries.

    Raises
    ------
    InputError
        For symmetries of another machine.

    Examples
    --------
    >>> import blinksim as bs
    >>> made = bs.synthesize(bs.load("hgx-h100", nodes=256), "allgather").compact
    >>> made.chunks, made.base.chunks, bool(bs.verify(made))
    (2048, 1, True)
    """

    base: Schedule
    group: CommutingGroup

    # What the images have in common with `base`.
    topology: Topology = field(init=False)
    collective: Collective = field(init=False)
    algorithm: str = field(init=False)
    form: str = field(init=False)
    bound: Mapping[str, Any] = field(init=False)
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        common = ("topology", "collective", "algorithm", "form", "bound", "steps")
        self.__dict__.update({name: getattr(self.base, name) for name in common})
        if self.group.topology is not self.topology:
            raise InputError(f"{self.algorithm}: the symmetries are those of another machine")

    @property
    def chunks(self) -> int:
        return int(self.times.sum())

    @property
    def sends(self) -> int:
        return int(self.times[self.base.chunk].sum())

    def with_bound(self, bound: Mapping[str, Any]) -> SymmetricSchedule:
        """The same schedule, carrying a bound and its certificate."""
        copy, kept = replace(self, base=self.base.with_bound(bound)), ("still", "times", "pooled", "rate", "step_loads")
        copy.__dict__.update({key: value for key, value in self.__dict__.items() if key in kept})
        return copy

    def named(self, algorithm: str) -> SymmetricSchedule:
        """The same schedule under the name of another algorithm."""
        return replace(self, base=replace(self.base, algorithm=algorithm))

    def parts(self) -> str:
        """What the data is cut into, in words."""
        what = "path" if self.collective.personalized else "tree" if self.form == "forest" else "chunk"
        return f"{self.chunks:,} {what}s, turned from {self.base.chunks} by symmetries"

    def __repr__(self) -> str:
        what = f"{self.algorithm}: {self.collective} on {self.topology.name}, {self.topology.ranks} ranks"
        sizes = (self.base.chunks, self.base.sends), (self.chunks, self.sends)
        base, images = (f"{count(chunks, 'chunk')} with {count(sends, 'send')}" for chunks, sends in sizes)
        steps = f"{count(self.steps, 'step')} ({self.form} form)"
        return f"<SymmetricSchedule {what}\n  {base}, turned to {images} in {steps}>"

    # --- images --------------------------------------------------------------------------------------------------

    @cached_property
    def still(self) -> Bools:
        """For every chunk of `base` and every generator, whether it takes the chunk's sends to the same ones."""
        parts, group = self.base, self.group
        device, rank = parts.device_of.astype(np.int64), parts.rank_of
        still = np.zeros((parts.chunks, len(group.generators)), dtype=bool)
        for number, (generator, links) in enumerate(zip(group.generators, group.links, strict=True)):
            # Chunks that start and end where they do under the generator as well.
            stays = np.ones(parts.chunks, dtype=bool)
            for label in (parts.origin, parts.target):
                known = label >= 0
                stays[known] &= rank[generator[device[label[known]]]] == label[known]
            # In most chunks that change, what receives does; then none is sorted.
            stays &= np.bincount(parts.chunk, generator[parts.dst] - parts.dst, parts.chunks) == 0
            if self.collective.rooted:
                stays &= bool(rank[generator[device[self.collective.root]]] == self.collective.root)
            for chunk in np.flatnonzero(stays).tolist():
                # The same sends in the order of their ends, over the same links.
                sends = np.flatnonzero(parts.chunk == chunk)
                head = parts.step[sends] * np.int64(2) + parts.op[sends]
                src, dst = parts.src[sends], parts.dst[sends]
                own, image = np.stack((dst, src, head)), np.stack((generator[dst], generator[src], head))
                before, after = np.lexsort(own), np.lexsort(image)
                if np.array_equal(own[:, before], image[:, after]):
                    row, here = expand(parts.route_start, parts.route_links, parts.route[sends[before]])
                    other, there = expand(parts.route_start, parts.route_links, parts.route[sends[after]])
                    still[chunk, number] = np.array_equal(row, other) and np.array_equal(here, links[there])
        return still

    @cached_property
    def times(self) -> Ints:
        """How many images every chunk of `base` has."""
        orders = np.array(self.group.orders, dtype=np.int64)
        return np.asarray(np.where(self.still, 1, orders).prod(axis=1), dtype=np.int64)

    def elements(self) -> tuple[Ints, Ints]:
        """The chunk of `base` of every chunk, and the exponents (chunks, G) that make it an image of that one."""
        chunk = np.repeat(np.arange(self.base.chunks), self.times)
        left = places(self.times)
        exponents = np.zeros((len(chunk), len(self.group.orders)), dtype=np.int64)
        for number, order in enumerate(self.group.orders):
            radix = np.where(self.still[chunk, number], 1, order)
            exponents[:, number] = left % radix
            left = left // radix
        return chunk, exponents

    def labels_of(self, label: Ints32, chunk: Ints, exponents: Ints) -> Ints32:
        """The origins or targets of images, from those of the chunks of `base`."""
        known = label[chunk] >= 0
        ranks = np.full(len(chunk), -1, dtype=np.int32)
        devices = self.base.device_of[label[chunk][known]].astype(np.int64)
        ranks[known] = self.base.rank_of[self.group.along(exponents[known], devices)]
        return ranks

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule with every image written out: what is simulated, run and exported.

        Raises `InfeasibleError` if that are too many sends.
        """
        if self.sends > loads.MOST_SENDS:
            who = f"{self.algorithm} on {self.topology.ranks:,} ranks has {self.sends:,} sends"
            once = f"once every tree is written out, more than {loads.MOST_SENDS:,}"
            cure = "to simulate, draw, run or export one, take fewer ranks"
            raise InfeasibleError(f"{who} {once}. Its file can be verified as it is; {cure}")
        # Every image of every chunk: those of an exchange sort after sort, others rank after rank and then
        # again.
        parts, group, times = self.base, self.group, self.times
        chunk, exponents = self.elements()
        place = places(times)
        if not self.collective.personalized:
            # The first image of every rank, then all second ones, ranks in order. The rank where every image
            # is first copied from, or else was reduced last; -1 for one without sends.
            home = np.full(parts.chunks, -1, dtype=np.int64)
            reduces, copies = (np.flatnonzero(parts.op == op) for op in (REDUCE, COPY))
            # Of several that are written to one place the last one stays.
            home[parts.chunk[reduces]] = parts.dst[reduces]
            home[parts.chunk[copies[::-1]]] = parts.src[copies[::-1]]
            sent = home[chunk] >= 0
            owner = np.full(len(chunk), -1, dtype=np.int64)
            owner[sent] = parts.rank_of[self.group.along(exponents[sent], home[chunk[sent]])]
            order = np.lexsort((owner, occurrences(owner)))
            chunk, exponents, place = chunk[order], exponents[order], place[order]
        image, send = expand(*compressed(parts.chunk, parts.chunks), chunk)
        elements = exponents[image]
        order = np.lexsort((image, parts.step[send]))
        image, send, elements = image[order], send[order], elements[order]
        start = parts.route_start.astype(np.int64)
        table, which = parts.route_links.astype(np.int64), parts.route[send].astype(np.int64)
        route_start, links = group.route_images(elements, start, table, which)
        src, dst = (group.along(elements, ends[send].astype(np.int64)) for ends in (parts.src, parts.dst))
        used, route = loads.distinct_routes(route_start, links)
        lengths = np.diff(route_start)[used]
        route_start, links = np.concatenate([[0], np.cumsum(lengths)]), expand(route_start, links, used)[1]
        channel = parts.channel[send].astype(np.int64)
        if parts.form == "forest":
            # Images of a chunk have channels of their own, so that none waits behind another; in steps they
            # join.
            channel = channel * int(times.max()) + place[image]
        return of_sends(
            (self.topology, self.collective, self.algorithm, self.form),
            (parts.share_num[chunk], parts.share_den),
            [self.labels_of(label, chunk, exponents) for label in (parts.origin, parts.target)],
            (image, src, dst, parts.op[send], parts.step[send], route, channel),
            (route_start, links),
        ).with_bound(self.bound)

    # --- loads ---------------------------------------------------------------------------------------------------

    @cached_property
    def pooled(self) -> Pool:
        """The resources of the machine, those of an orbit as one."""
        return Pool(self.group)

    @cached_property
    def weighted(self) -> Schedule:
        """`base` with the shares of all images of every chunk together."""
        largest = int((self.base.share_num * self.times).max(initial=0))
        if largest * max(1, self.base.sends) >= 2**61:
            raise InputError(f"{self.algorithm}: loads with the denominator {self.base.share_den} exceed 63 bits")
        return replace(self.base, share_num=self.base.share_num * self.times)

    @cached_property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow: the least rate / load of any resource; None if nothing is sent."""
        return loads.rate(self.weighted, shared=self.pooled.shared)

    @cached_property
    def step_loads(self) -> StepLoads:
        """Load per step of one in steps form: sends that the group takes to one connection are one message.

        An orbit of links is a resource.
        """
        base, group, pool, columns = self.base, self.group, self.pooled, self.topology.link_columns
        start, table = base.route_start.astype(np.int64), base.route_links.astype(np.int64)
        _, first, which, _ = loads.alike_routes(group, start, table)
        channels = int(base.channel.max(initial=0)) + 1
        key = (base.step.astype(np.int64) * channels + base.channel) * len(first) + which[base.route]
        keys, where = np.unique(key, return_inverse=True)
        # By message: its step, what all its images carry, its route, and how many images there are.
        step, route = keys // len(first) // channels, first[keys % len(first)]
        total = by_place(np.add, where, self.weighted.share_num[base.chunk], len(keys))
        (tail, head), begins = self.topology.ends, table[start[route]]
        times = group.images(tail[begins], head[table[start[route + 1] - 1]])
        message, link = expand(start, table, route)
        overhead = columns.overhead[begins]
        alphas = np.bincount(message, columns.latency[link], len(keys)) + overhead
        place, resource = expand(pool.shared.starts, pool.shared.members, link)
        message = message[place]
        shape = self.steps, len(pool.size)
        at, begun = step[message] * shape[1] + resource, step * shape[1] + pool.shared.of_link[begins]
        alpha = by_place(np.maximum, at, alphas[message], shape[0] * shape[1])
        longest = by_place(np.maximum, begun, overhead, len(alpha))
        load = np.bincount(at, total[message] / base.share_den, len(alpha)).astype(np.float64)
        each = np.bincount(begun, overhead * times, len(alpha))
        starts = each.reshape(shape) / pool.size, longest.reshape(shape)
        passing = load.reshape(shape), alpha.reshape(shape)
        # What a step reduces at devices of an orbit is the same for all of these.
        reduces, orbit = base.op == REDUCE, group.orbit
        sums = np.zeros((self.steps, int(orbit.max()) + 1))
        at_devices = base.step[reduces], orbit[base.dst[reduces]]
        np.add.at(sums, at_devices, self.weighted.share_num[base.chunk[reduces]] / base.share_den)
        most = float((sums / np.bincount(orbit)).max(axis=1).sum())
        found = StepLoads(self.collective, self.sends, pool.shared, *passing, *starts, limit=self.rate)
        return replace(found, reduced=((1, most, 1),))


def carried(schedule: Schedule | SymmetricSchedule) -> tuple[loads.Resources, list[Fraction], list[int]]:
    """What carries data, its loads, and for how many links or devices each stands."""
    if isinstance(schedule, SymmetricSchedule):
        pool = schedule.pooled
        return pool.shared, loads.resource_loads(schedule.weighted, pool.shared), pool.size.tolist()
    shared = loads.resources(schedule.topology)
    return shared, loads.resource_loads(schedule, shared), [1] * len(shared.rate)


def as_compact(thing: ScheduleLike) -> Schedule | SymmetricSchedule:
    """A schedule in the form that it has: by symmetry, or with all sends. Raises `InputError` for anything else."""
    compact = getattr(thing, "by_symmetry", None) or getattr(thing, "compact", thing)
    return compact if isinstance(compact, SymmetricSchedule) else as_schedule(thing)


class Pool:
    """The resources of a machine (`blinksim.schedule.loads.Resources`), each orbit under a group as one.

    shared: with the rates of whole orbits, named after their first ones. size: how many there are in each.
    orbit: of every resource of the machine.
    """

    def __init__(self, group: CommutingGroup) -> None:
        own = loads.resources(group.topology)
        images = []
        for generator, links in zip(group.generators, group.links, strict=True):
            goes = np.arange(len(own.rate))
            # Links that go to each other use equal resources in the same order.
            goes[own.members] = expand(own.starts, own.members, links)[1]
            for device, number in own.adders.items():
                goes[number] = own.adders[int(generator[device])]
            images.append(goes)
        self.orbit = label = orbit_labels(len(own.rate), images)
        _, first = np.unique(label, return_index=True)
        self.size = np.bincount(label)
        chosen, sizes = first.tolist(), self.size.tolist()
        kinds = tuple(own.kinds[place] for place in chosen)
        rates = tuple(own.rate[place] * times for place, times in zip(chosen, sizes, strict=True))
        uses = own.starts, label[own.members].astype(np.int32)
        adders = {device: int(label[number]) for device, number in own.adders.items()}
        self.shared = loads.Resources(lambda place: own.name(chosen[place]), kinds, rates, *uses, adders)
