"""Alpha-beta time of schedules by symmetry (`blinksim.schedule.turned`), from one chunk of each sort.

All images of a chunk take as long as it does. What they occupy together follows from orbits: an orbit of links is one
resource with the bandwidth of all, and messages that start on any of them are counted on all of them.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from blinksim.cost.alpha_beta import Cost, Floats, Work, cost, in_turn, pipelined, route_alphas, slowest
from blinksim.cost.brief.outlined import outlined_cost
from blinksim.cost.pipelines.paced import Step, paced
from blinksim.cost.terms import Term
from blinksim.errors import InfeasibleError
from blinksim.schedule.loads import resources
from blinksim.schedule.model import REDUCE
from blinksim.schedule.outlines.outline import Outlined
from blinksim.schedule.outlines.step_sums import StepSums, Summed
from blinksim.schedule.turned.entrant import Turned, TurnedSteps
from blinksim.schedule.turned.step_messages import Messages
from blinksim.schedule.turned.symmetric import SymmetricSchedule
from blinksim.schedule.ways import Parallel, RouteUses, distinct_routes, one_way, whole_loads
from blinksim.structures.arrays import distinct
from blinksim.topology.symmetry import orbit_labels

Ints = npt.NDArray[np.int64]
_known: WeakKeyDictionary[Parallel, dict[tuple[int, float], Cost]] = WeakKeyDictionary()
# Messages of one sort of trees on a link, for every rank, above which trees are taken to send together.
_MOST_A_RANK = 64


def cost_of(entrant: Parallel, size: int, gamma: float = 0.0) -> Cost:
    """As `blinksim.cost.alpha_beta.cost`, of a schedule with its parallel ways, or of one by symmetry or outline.

    What is asked again of the same entrant is not worked out again.
    """
    known, key = _known.setdefault(entrant, {}), (size, gamma)
    if key not in known:
        known[key] = _cost_of(entrant, size, gamma)
    return known[key]


def _cost_of(entrant: Parallel, size: int, gamma: float) -> Cost:
    if isinstance(entrant, Summed):
        return sums_cost(entrant.sums, size)
    if isinstance(entrant, TurnedSteps):
        return messages_cost(entrant.messages, size)
    if isinstance(entrant, Turned):
        return symmetric_cost(entrant.whole, size, gamma)
    if isinstance(entrant, Outlined):
        return outlined_cost(entrant.outline, size, gamma)
    return cost(entrant.compact, size, gamma, entrant.spread)


def symmetric_cost(whole: SymmetricSchedule, size: int, gamma: float = 0.0) -> Cost:
    """The time of the schedule written out, for `size` bytes; raises `InfeasibleError` for steps that reduce."""
    base, pool = whole.base, whole.pooled
    if not base.sends:
        return Cost((Term("nothing to send", 0.0),), "nothing", 0.0, 0)
    if base.form != "forest":
        if (base.op == REDUCE).any():
            raise InfeasibleError(f"{base.algorithm} by symmetry has steps that reduce; only forests that do are timed")
        return messages_cost(Messages.of(whole), size)
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


def messages_cost(messages: Messages, size: int) -> Cost:
    """The time of steps that copy, by what they send in each, for `size` bytes."""
    return sums_cost(sums_of(messages), size)


def sums_of(messages: Messages) -> StepSums:
    """What messages put on orbits of resources, each as one."""
    pool, steps = messages.pool, messages.steps
    count, (row, resource) = len(pool.size), messages.uses
    shape, at = (steps, count), messages.step[row] * count + resource
    carried = np.bincount(at, messages.total[row] / messages.whole, steps * count)
    load = np.asarray(carried, dtype=np.float64).reshape(shape)
    alpha, longest = np.zeros(steps * count), np.zeros(steps * count)
    np.maximum.at(alpha, at, messages.alphas[row])
    first = pool.shared.of_link[messages.links[messages.start[:-1]]]
    starts = messages.step * count + first
    np.maximum.at(longest, starts, messages.overheads)
    each = np.bincount(starts, messages.overheads * messages.times, steps * count).reshape(shape) / pool.size
    alpha, longest = alpha.reshape(shape), longest.reshape(shape)
    return StepSums(pool.shared.names, pool.shared.kinds, pool.shared.rates, load, alpha, each, longest)


def sums_cost(sums: StepSums, size: int) -> Cost:
    """The time of steps by their sums, for `size` bytes."""
    load, steps = sums.load * (size / sums.rates), len(sums.load)
    used = np.flatnonzero(load.any(axis=1)).tolist()
    runs = [(Step.of(load[step], sums.alpha[step], sums.each[step], sums.longest[step]), 1) for step in used]
    busy = load.sum(axis=0)
    worst = int(np.argmax(busy))
    kind = sums.kinds[worst]
    terms, pieces = paced(runs, sums.kinds, Term(f"bandwidth of {kind}", float(busy[worst]), kind), steps)
    time = sum(term.time_s for term in terms)
    return Cost(terms, sums.names[worst], float(busy[worst] / time), steps, pieces)


def _most_reduced(whole: SymmetricSchedule, share: Floats) -> float:
    """The share of the size that the device reduces which reduces most."""
    base = whole.base
    label = orbit_labels(len(base.topology.devices), whole.turns.generators)
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
        link, times = _joined(whole)
    overhead, resource = base.topology.link_columns.overhead[link], pool.shared.of_link[link]
    count = len(pool.shared.names)
    each = np.bincount(resource, overhead * times, count) / pool.size
    longest = np.zeros(count)
    np.maximum.at(longest, resource, overhead)
    return np.asarray(each), longest


def _joined(whole: SymmetricSchedule) -> tuple[Ints, Ints]:
    """The first link of each route that is used in a step, and how many messages all images of the route are."""
    base, turns = whole.base, whole.turns
    start, table = base.route_start.astype(np.int64), base.route_links.astype(np.int64)
    tail, head = base.topology.ends
    src, dst = tail[table[start[:-1]]], head[table[start[1:] - 1]]
    _, _, exponents = turns.between(src, dst)
    _, turned = turns.route_images(-exponents, start, table, np.arange(len(start) - 1))
    first, which = distinct_routes(start, turned)
    messages = distinct(base.step.astype(np.int64) * len(first) + which[base.route]) % len(first)
    used, times = np.unique(messages, return_counts=True)
    routes = first[used]
    return table[start[:-1][routes]], times * turns.images(src[routes], dst[routes])
