"""A schedule in time on its links: one call, checked against its lower bounds, with the best piece size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Unpack

from blinksim import budget
from blinksim.cost.alpha_beta import cost
from blinksim.errors import BlinksimError, InputError
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule, ScheduleLike, as_schedule
from blinksim.simulation.engines.choice import Outcome, outcome
from blinksim.simulation.simulation_options import (
    MOST_EVENTS,
    MOST_PIECES,
    Chunks,
    ProtocolName,
    RareOptions,
    Sending,
    Service,
    ServiceName,
    check_rare,
    pieces_of_share,
    whole_bytes,
)
from blinksim.simulation.stages import Stages, stages
from blinksim.simulation.timeline import Timeline, exact_time
from blinksim.simulation.work import Work, timed

# Events that one trial in the search for the piece size may take before rounds stand in for it.
_MOST_TRIAL = 400_000


def simulate(
    schedule: ScheduleLike,
    size: int | float | str,
    *,
    chunk: int | str | None = None,
    pieces: int | None = None,
    service: ServiceName = "fifo",
    protocol: ProtocolName = "simple",
    gamma: float = 0.0,
    launch: float = 0.0,
    **rare: Unpack[RareOptions],
) -> Timeline:
    """The time that `schedule` takes for `size` bytes on the links, buses and capacities of its machine.

    A link is busy with a piece for its bytes over the bandwidth, and the first link of a route for the sender's
    overhead too; the latency passes afterwards, while the next piece is sent.

    Parameters
    ----------
    schedule : Schedule or Synthesis
        What to run.
    size : int or str
        Bytes, or text such as ``"256MiB"``.
    chunk : int or str, optional
        Bytes of a piece at most.
    pieces : int, optional
        Into which every chunk is cut, in place of `chunk`. Default: the number with the least time.
    service : {"fifo", "static", "ordered", "weighted", "equal"}
        How links serve.
    protocol : {"simple", "ll", "ll128"}
        What share of the traffic is data.
    gamma : float
        Seconds per byte that a rank reduces.
    launch : float
        Seconds before anything starts.
    **rare
        Rarely needed: offer, slots and engine (`blinksim.simulation.simulation_options.Service`), switching
        and messages (`Sending` there), most_events (`Chunks` there).

    Returns
    -------
    Timeline
        The time, what every link did, the critical path, and every transfer on demand.

    Raises
    ------
    InputError
        For bad or contradicting arguments, and for a schedule that beats its own bound.

    Examples
    --------
    >>> import blinksim as bs
    >>> schedule = bs.synthesize("dgx1-v100", "allreduce", "ring").schedule
    >>> round(bs.simulate(schedule, "256MiB").algbw_GBps)
    85
    """
    given = check_rare(rare)
    return simulated(
        as_schedule(schedule),
        whole_bytes(size),
        Chunks(chunk, pieces, given.get("most_events", MOST_EVENTS)),
        Service(service, given.get("offer"), given.get("slots"), given.get("engine", "auto")),
        Sending(protocol, gamma, launch, given.get("switching", "cut-through"), given.get("messages", "joined")),
    )


def simulated(
    schedule: Schedule,
    size: int,
    chunks: Chunks = Chunks(),  # noqa: B008 - frozen
    service: Service = Service(),  # noqa: B008 - frozen
    sending: Sending = Sending(),  # noqa: B008 - frozen
) -> Timeline:
    """As `simulate`, with its arguments in groups."""
    if size < 1:
        raise InputError(f"a size of {size} bytes moves nothing; give at least 1 byte")
    if service.shares:
        # A share of a link has no fixed rate that the next link could follow.
        sending = replace(sending, switching="store-and-forward")
    graph = stages(schedule, switching=sending.switching, messages=sending.messages, reduction=sending.gamma > 0)
    tried: dict[int, float] = {}
    count = chunks.given(size, _largest_share(schedule))
    if count is None:
        count = _searched(graph, size, chunks.most_events, service, sending, tried)
    work, found = _run(graph, size, count, service, sending)
    bound = _bound(schedule, size, sending)
    offered = service.offered(schedule.form)
    timeline = Timeline(
        schedule, size, count, service.name, offered, service.slots, sending.protocol, sending, graph, work, found,
        float(bound), tried,
    )  # fmt: skip
    _check(timeline, bound)
    return timeline


def pieces_of(schedule: Schedule, size: int, chunk: int) -> int:
    """The fewest pieces of every chunk such that none has more than `chunk` bytes."""
    return pieces_of_share(size, _largest_share(schedule), chunk)


def _largest_share(schedule: Schedule) -> Fraction:
    return Fraction(int(schedule.share_num.max(initial=0)), schedule.share_den)


def _run(graph: Stages, size: int, count: int, service: Service, sending: Sending) -> tuple[Work, Outcome]:
    work = timed(graph, size, count, sending)
    return work, outcome(graph, work, count, service)


def _searched(
    graph: Stages, size: int, most_events: int, service: Service, sending: Sending, tried: dict[int, float]
) -> int:
    """The number of pieces with the least time; `tried` gets the seconds of every number that was tried."""
    exact = service.name == "fifo" and service.slots is None

    def trial(count: int) -> float:
        # Where trials would be slow, rounds show well enough what more pieces bring.
        many = exact and count * graph.count > _MOST_TRIAL
        try:
            work, found = _run(graph, size, count, Service("static") if many else service, sending)
        except InputError:  # It would take too long.
            return inf
        return work.seconds(found.finish)

    if service.name == "static":
        # In rounds most pieces follow from the first ones.
        limit = 100 * most_events
    else:
        limit = most_events if exact else min(_MOST_TRIAL, budget.most_events("shares"))
    return _best(graph.schedule, size, max(1, limit // max(1, graph.count)), trial, tried)


def _bound(schedule: Schedule, size: int, sending: Sending) -> Fraction:
    """Seconds that the loads of the schedule need on their own links, exact."""
    best = rate(schedule)
    return Fraction(0) if best is None else size / best / sending.efficiency


def _check(timeline: Timeline, loads: Fraction) -> None:
    """No run beats the loads of its links, its own longest path, or the bound that the schedule carries."""
    time = exact_time(timeline)
    if time < loads:
        raise BlinksimError(
            f"simulated {float(time)} s, but the loads need {float(loads)} s; this is a fault of blinksim"
        )
    if timeline.found.finish < timeline.work.critical:
        raise BlinksimError("simulated less than the longest path takes; this is a fault of blinksim")
    claimed = timeline.schedule.claim("rate_exact")
    if claimed is not None and time * claimed * 10**9 < timeline.size:
        raise InputError(
            f"the schedule takes {float(time)} s, less than its own bound of {claimed} GB/s allows: it does not do "
            f"the whole {timeline.schedule.collective.name}, or the bound is wrong; blinksim verify says more"
        )


def _best(
    schedule: Schedule,
    size: int,
    limit: int,
    time: Callable[[int], float],
    tried: dict[int, float],
) -> int:
    """The number of pieces, at most `limit`, with the least time: powers of two near a guess, then in between.

    Where latency only overlaps, more pieces are always better: the search stops when they no longer gain 0.1 %.
    """
    largest = max(1, int(size * int(schedule.share_num.max(initial=0)) / schedule.share_den))
    most = max(1, min(MOST_PIECES, largest, limit))

    def at(count: int) -> float:
        if count not in tried:
            tried[count] = time(count)
        return tried[count]

    guess = min(most, cost(schedule, size).pieces)
    best = guess
    for factor in (2, 0.5):
        count = guess
        while 1 <= (further := round(count * factor)) <= most and at(further) < at(count) * 0.999:
            count = further
        if at(count) < at(best):
            best = count
    for share in (0.75, 1.25, 1.5):
        between = max(1, min(most, round(best * share)))
        if at(between) < at(best):
            best = between
    return min(tried, key=lambda n: (tried[n], n))
