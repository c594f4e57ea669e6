"""Alpha-beta time of candidate schedules in every form, and lower bounds on it.

Of a schedule by symmetry, all images of a chunk take as long as it does. What they occupy together follows
from orbits: an orbit of links is one resource with the bandwidth of all, and messages that start on any of
them are counted on all of them. Lower bounds follow from the ends of messages alone, without routes: a step
waits for one message at least, so it takes the alpha of some link, and what leaves a GPU, or a node, passes
the links that lead out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import distinct, per_topology
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import RouteUses, alike_routes, one_way, resources, whole_loads
from blinksim.schedule.model import REDUCE, Schedule
from blinksim.schedule.step_loads import Outline, StepLoads
from blinksim.schedule.symmetric import SymmetricSchedule, step_loads
from blinksim.timing.alpha_beta import Cost, Floats, Work, cost, in_turn, pipelined, route_alphas, slowest
from blinksim.timing.pipelines import Paths, Step, paced
from blinksim.timing.terms import Term
from blinksim.topology.graph import Topology

Ints = npt.NDArray[np.int64]
_known: WeakKeyDictionary[Candidate, dict[tuple[int, float], Cost]] = WeakKeyDictionary()
# Messages of one sort of trees on a link, for every rank, above which trees are taken to send together.
_MOST_A_RANK = 64


def cost_of(candidate: Candidate, size: int, gamma: float = 0.0) -> Cost:
    """As `blinksim.timing.alpha_beta.cost`, in whatever form a schedule is.

    What is asked again of the same candidate is not worked out again.
    """
    known, key = _known.setdefault(candidate, {}), (size, gamma)
    if key not in known:
        match candidate.timed:
            case Schedule() as timed:
                known[key] = cost(timed, size, gamma, candidate.parallel)
            case SymmetricSchedule() as timed:
                known[key] = symmetric_cost(timed, size, gamma)
            case Outline() as timed:
                known[key] = loads_cost(timed.step_loads, size, gamma)
            case timed:
                known[key] = loads_cost(timed, size, gamma)
    return known[key]


def symmetric_cost(whole: SymmetricSchedule, size: int, gamma: float = 0.0) -> Cost:
    """The time of the schedule written out, for `size` bytes; raises `InfeasibleError` for steps that reduce."""
    base, pool = whole.base, whole.pooled
    if not base.sends:
        return Cost((Term("nothing to send", 0.0),), "nothing", 0.0, 0)
    if base.form != "forest":
        if (base.op == REDUCE).any():
            raise InfeasibleError(f"{base.algorithm} by symmetry has steps that reduce; only forests that do are timed")
        return loads_cost(step_loads(whole), size)
    ways, own = one_way(base), resources(base.topology)
    seconds, pooled = size / own.rates, size / pool.shared.rates
    carried, unit = whole_loads(whole.weighted, ways, pool.shared)
    busy = np.array([value / unit for value in carried]) * pooled
    share = (base.share_num / base.share_den)[base.chunk]
    each, longest = _messages(whole)
    behind, waits = in_turn(base, ways, own, seconds)
    work = Work(
        route_alphas(base, ways)[base.route],
        slowest(RouteUses.of(ways, own), seconds)[base.route] * share + behind,
        waits,
        busy,
        each,
        longest,
    )
    worst = int(np.argmax(busy))
    terms, pieces = pipelined(base, work, pool.shared.kinds[worst], gamma * size * _most_reduced(whole, share))
    time = sum(term.time_s for term in terms)
    return Cost(terms, pool.shared.names[worst], float(busy[worst] / time), base.steps, pieces)


def loads_cost(loads: StepLoads, size: int, gamma: float = 0.0, *, whole_messages: bool = False) -> Cost:
    """The time of steps by their loads, for `size` bytes."""
    seconds = size / loads.rates
    load = loads.load * seconds
    busy = load.sum(axis=0) if loads.total is None else loads.total * seconds
    times, channels = (given or (1,) * len(load) for given in (loads.times, loads.channels))
    runs = [
        (Step.of(load[step], loads.alpha[step], loads.each[step], loads.longest[step], channels[step]), times[step])
        for step in np.flatnonzero(load.any(axis=1)).tolist()
    ]
    worst = int(np.argmax(busy))
    drain = Term(f"bandwidth of {loads.kinds[worst]}", float(busy[worst]), loads.kinds[worst])
    terms, pieces = paced(runs, loads.kinds, drain, loads.steps, whole_messages)
    reduction = sum(many * gamma * size * share * into for many, share, into in loads.reduced)
    terms += (Term("reduction", reduction, "gamma"),) if reduction else ()
    time = sum(term.time_s for term in terms)
    return Cost(terms, loads.names[worst], float(busy[worst] / time), loads.steps, pieces)


def _most_reduced(whole: SymmetricSchedule, share: Floats) -> float:
    """The share of the size that the device reduces which reduces most."""
    base = whole.base
    label = whole.turns.orbit
    reduces = base.op == REDUCE
    amounts = np.bincount(label[base.dst[reduces]], (share * whole.times[base.chunk])[reduces], int(label.max()) + 1)
    return float((amounts / np.bincount(label)).max())


def _messages(whole: SymmetricSchedule) -> tuple[Floats, Floats]:
    """Seconds of overhead on each orbit of resources for one piece of every chunk, and of the longest of these.

    Every tree sends messages of its own, as a simulation and a program do. Turned by all symmetries of several levels
    of switches, a few trees stand for more than anything could send one by one: there what sends over the same route
    in the same step sends together.
    """
    base, pool = whole.base, whole.pooled
    link = base.route_links[base.route_start[:-1][base.route]].astype(np.int64)
    times = whole.times[base.chunk]
    if (times / pool.size[pool.shared.of_link[link]]).max(initial=0) > _MOST_A_RANK * base.topology.ranks:
        start, table = base.route_start.astype(np.int64), base.route_links.astype(np.int64)
        _, first, which, _ = alike_routes(whole.turns, start, table)
        messages = distinct(base.step.astype(np.int64) * len(first) + which[base.route]) % len(first)
        used, times = np.unique(messages, return_counts=True)
        route, (tail, head) = first[used], base.topology.ends
        link = table[start[route]]
        times = times * whole.turns.images(tail[link], head[table[start[route + 1] - 1]])
    overhead, resource = base.topology.link_columns.overhead[link], pool.shared.of_link[link]
    count = len(pool.shared.names)
    each = np.bincount(resource, overhead * times, count) / pool.size
    longest = np.zeros(count)
    np.maximum.at(longest, resource, overhead)
    return np.asarray(each), longest


AnyFloats = npt.NDArray[np.floating[Any]]
Devices = npt.NDArray[np.integer[Any]]
Messages = tuple[Devices, Devices, AnyFloats]
# Sums in another order may differ in their last digits.
_SAFE = 1 - 1e-9


def least_of_steps(topology: Topology, steps: int) -> float:
    """Seconds that so many steps take at least, whatever they send."""
    table = topology.link_columns
    return steps * float((table.latency + table.overhead).min()) * _SAFE if len(table.src) else 0.0


def least_of_outline(outline: Outline, size: int) -> float:
    """Seconds that an outline takes at least for `size` bytes, by its steps and by what leaves and enters its ranks."""
    found = least_of_steps(outline.topology, outline.steps)
    # What shares a bus has no bandwidth of its own.
    if outline.topology.link_columns.shared:
        return found
    ranks = outline.topology.member_places
    # For GPUs and for nodes: the most seconds that any one takes for a byte of the size, outwards or inwards.
    for cut in _cuts(outline.topology):
        out, into = np.zeros(len(cut.out)), np.zeros(len(cut.into))
        for one in outline.rounds:
            ends, share = one.exchange, float(one.message * one.times)
            if ends.src is None or ends.dst is None:
                sent = received = cut.every_pair(ranks)
            else:
                sent, received = cut.crossing(ranks[ends.src], ranks[ends.dst])
            out += sent * share
            into += received * share
        found = max(found, cut.busiest(out, into) * size * _SAFE)
    return found


def least_of_tree(schedule: Schedule) -> float:
    """Seconds that a forest takes at least besides passing its bytes; 0 where a device gets a chunk from several.

    That is what a piece waits for latencies and overheads on its way to the device that it reaches last.
    """
    reached = schedule.dst * np.int64(schedule.chunks) + schedule.chunk
    if schedule.form != "forest" or len(distinct(reached)) < schedule.sends:
        return 0.0
    none = np.zeros(schedule.sends)
    lag, _ = Paths(schedule, route_alphas(schedule)[schedule.route], none, none).longest(1)
    return lag * _SAFE


def least_of_messages(topology: Topology, messages: Messages, size: int) -> float:
    """Seconds that messages take at least for `size` bytes, however they are ordered, by what leaves and enters ranks.

    messages: the devices that send, those that receive, and the share of the size.
    """
    if topology.link_columns.shared:
        return 0.0
    src, dst, share = messages
    loads = [cut.busiest(*cut.crossing(src, dst, share)) for cut in _cuts(topology)]
    return max(loads) * size * _SAFE


@dataclass(frozen=True, eq=False)
class _Cut:
    """Devices in groups: the group of each, -1 for none; bytes/s out of every group and into it."""

    group: Ints
    out: AnyFloats
    into: AnyFloats

    @classmethod
    def of(cls, topology: Topology, group: Ints) -> _Cut:
        table = topology.link_columns
        rates = np.array([float(rate) for rate in table.bandwidths])[table.figure]
        a, b = group[table.src], group[table.dst]
        count, apart = int(group.max()) + 1, a != b
        kept = (apart & (side >= 0) for side in (a, b))
        out, into = (np.bincount(side[some], rates[some], count) for side, some in zip((a, b), kept, strict=True))
        return cls(group, *(np.where(rate > 0, rate, np.inf) for rate in (out, into)))

    def crossing(self, src: Devices, dst: Devices, share: AnyFloats | None = None) -> tuple[AnyFloats, AnyFloats]:
        """How many messages leave each group, and how many enter it; or what they carry."""
        a, b = self.group[src], self.group[dst]
        apart, count = a != b, len(self.out)
        carried = np.ones(int(apart.sum())) if share is None else share[apart]
        out, into = (np.bincount(side[apart], carried, count) for side in (a, b))
        return np.asarray(out, dtype=np.float64), np.asarray(into, dtype=np.float64)

    def every_pair(self, ranks: Ints) -> AnyFloats:
        """The same both ways where every rank sends to every other."""
        size = np.bincount(self.group[ranks], minlength=len(self.out))
        return np.asarray(size * (len(ranks) - size), dtype=np.float64)

    def busiest(self, out: AnyFloats, into: AnyFloats) -> float:
        """The most seconds that a group takes for what leaves it, or for what enters it."""
        return float(max((out / self.out).max(), (into / self.into).max()))


@per_topology
def _cuts(topology: Topology) -> tuple[_Cut, ...]:
    """Every rank by itself, and every node."""
    alone, node = np.full(len(topology.devices), -1), topology.device_nodes
    alone[topology.member_places] = np.arange(topology.ranks)
    groups = (alone, node) if bool((node[topology.member_places] >= 0).all()) else (alone,)
    return tuple(_Cut.of(topology, group) for group in groups)
