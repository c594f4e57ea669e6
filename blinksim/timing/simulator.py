"""Simulation of a schedule on its links, checked against lower bounds, with the best piece size."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import inf
from numbers import Real
from operator import index

from blinksim.budget import most_events
from blinksim.errors import BlinksimError, InputError
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule, ScheduleLike, as_schedule
from blinksim.schedule.pipeline import MOST_PIECES, climbed
from blinksim.timing.alpha_beta import cost
from blinksim.timing.evaluation import evaluated
from blinksim.timing.event_graph import ScheduleGraph, event_graph, timed
from blinksim.timing.simulation_options import (
    MessagesName,
    OfferName,
    Options,
    ProtocolName,
    ServiceName,
    SwitchingName,
)
from blinksim.timing.timeline import Timeline, exact_time
from blinksim.units import parse_size

# Events that one trial in the search for the piece size may take before rounds stand in for it.
_MOST_TRIAL = 400_000


def simulate(
    schedule: ScheduleLike,
    size: int | float | str,
    *,
    chunk: int | str | None = None,
    pieces: int | None = None,
    service: ServiceName = "fifo",
    offer: OfferName | None = None,
    protocol: ProtocolName = "simple",
    gamma: float = 0.0,
    launch: float = 0.0,
    switching: SwitchingName = "cut-through",
    messages: MessagesName = "joined",
    most_events: int | None = None,
) -> Timeline:
    """Simulate `schedule` for `size` bytes on the links, buses and capacities of its machine.

    A link is busy with a piece for its bytes over the bandwidth, and the first link of a route for the
    sender's overhead too; the latency passes afterwards, while the next piece is sent.

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
    service : {"fifo", "static", "ordered"}
        How links serve: what came first; in rounds, or level by level; or step by step.
    offer : {"turns", "burst"}, optional
        How pieces stand in line under ``fifo``: one of each send and chunk at a time (default for forests),
        or all that are there (default for steps).
    protocol : {"simple", "ll", "ll128"}
        What share of the traffic is data.
    gamma : float
        Seconds per byte that a rank reduces.
    launch : float
        Seconds before anything starts.
    switching : {"cut-through", "store-and-forward"}
        Whether devices inside a route pass a piece on while it arrives.
    messages : {"joined", "single"}
        What a connection sends in a step: one message of all its chunks, or one of each.
    most_events : int, optional
        Pieces times stages that the search for the number of pieces may spend on a run.

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
    schedule, size = as_schedule(schedule), whole_bytes(size)
    options = Options(service, offer, protocol, gamma, launch, switching, messages)
    if size < 1:
        raise InputError(f"a size of {size} bytes moves nothing; give at least 1 byte")
    if chunk is not None and pieces is not None:
        raise InputError("chunk= and pieces= both set how chunks are cut; give one of them")
    graph = event_graph(schedule, options)
    tried: dict[int, float] = {}
    count = pieces if chunk is None else pieces_of(schedule, size, whole_bytes(chunk, "chunk"))
    if count is None:
        count = _best_pieces(graph, size, options, most_events, tried)
    if not 1 <= count <= MOST_PIECES:
        raise InputError(f"{count} pieces of each chunk: give 1 to {MOST_PIECES}, by a larger or smaller chunk=")
    work = timed(graph, size, count, options)
    found = evaluated(graph, work, count, options)
    best = rate(schedule)
    loads = Fraction(0) if best is None else size / best / options.efficiency
    timeline = Timeline(schedule, size, count, options, graph, work, found, float(loads), tried)

    # No run beats the loads of its links, its own longest path, or the bound that the schedule carries.
    time, claimed = exact_time(timeline), schedule.claim("rate_exact")
    if time < loads:
        raise BlinksimError(
            f"simulated {float(time)} s, but the loads need {float(loads)} s; this is a fault of blinksim"
        )
    if found.finish < work.critical:
        raise BlinksimError("simulated less than the longest path takes; this is a fault of blinksim")
    if claimed is not None and time * claimed * 10**9 < size:
        raise InputError(
            f"the schedule takes {float(time)} s, less than its own bound of {claimed} GB/s allows: it does not do "
            f"the whole {schedule.collective.name}, or the bound is wrong; blinksim verify says more"
        )
    return timeline


def whole_bytes(size: int | float | str, what: str = "size") -> int:
    """Bytes from a whole number or text such as ``256MiB``; raises `InputError` for anything else.

    A float counts if it is whole (1e6). The result may be 0 or less: callers say what they need.
    """
    if isinstance(size, str):
        return parse_size(size)
    whole = isinstance(size, Real) and not isinstance(size, bool) and size == size // 1
    if not whole:
        raise InputError(f"{size!r} is not a {what}; give whole bytes, or text such as 256MiB")
    return index(size) if hasattr(size, "__index__") else int(size)


def pieces_of(schedule: Schedule, size: int, chunk: int) -> int:
    """The fewest pieces of every chunk such that none has more than `chunk` bytes."""
    if chunk < 1:
        raise InputError(f"a chunk of {chunk} bytes: give at least 1")
    return max(1, -(-(size * int(schedule.share_num.max(initial=0))) // (schedule.share_den * chunk)))


def _best_pieces(graph: ScheduleGraph, size: int, options: Options, most: int | None, tried: dict[int, float]) -> int:
    """The number of pieces with the least time: powers of two near a guess, then in between.

    Where latency only overlaps, more pieces are always better: the search stops when they no longer gain 0.1
    %. most: events of a run. tried: gets the seconds of every number that was tried.
    """
    schedule, most = graph.schedule, most_events("heap") if most is None else most
    if options.service == "static":
        # In rounds most pieces follow from the first ones.
        most *= 100
    elif options.service != "fifo":
        most = min(_MOST_TRIAL, most_events("heap"))
    largest = max(1, int(size * int(schedule.share_num.max(initial=0)) / schedule.share_den))
    most = max(1, min(MOST_PIECES, largest, most // max(1, graph.count)))

    @cache
    def time(count: int) -> float:
        # Where trials would be slow, rounds show well enough what more pieces bring.
        many = options.service == "fifo" and count * graph.count > _MOST_TRIAL
        work = timed(graph, size, count, options)
        try:
            found = evaluated(graph, work, count, replace(options, service="static") if many else options)
        except InputError:  # It would take too long.
            return tried.setdefault(count, inf)
        return tried.setdefault(count, work.seconds(found.finish))

    guess = min(most, cost(schedule, size).pieces)
    best = min(guess, *(climbed(time, guess, factor, most) for factor in (2, 0.5)), key=time)
    for share in (0.75, 1.25, 1.5):
        best = min(best, max(1, min(most, round(best * share))), key=time)
    return min(tried, key=lambda count: (tried[count], count))
