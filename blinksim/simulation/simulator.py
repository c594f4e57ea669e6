"""A schedule in time on its links: one call, checked against what no run can beat, with the best piece size found."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from blinksim.cost.alpha_beta import cost
from blinksim.cost.protocols import efficiency
from blinksim.errors import InputError
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule
from blinksim.simulation.engines.choice import MOST_EVENTS, Outcome, outcome
from blinksim.simulation.stages import stages
from blinksim.simulation.timeline import Timeline, exact_time
from blinksim.simulation.work import Options, Work, timed

MOST_PIECES = 65_536
# Events that one trial in the search for the piece size may take before rounds stand in for it.
_MOST_TRIAL = 400_000


def simulate(
    schedule: Schedule,
    size: int,
    *,
    chunk: int | None = None,
    pieces: int | None = None,
    service: str = "fifo",
    offer: str | None = None,
    slots: int | None = None,
    protocol: str = "simple",
    switching: str = "cut-through",
    gamma: float = 0.0,
    launch: float = 0.0,
    engine: str = "auto",
    most_events: int = MOST_EVENTS,
) -> Timeline:
    """The time that `schedule` takes for `size` bytes on the links, buses and capacities of its machine.

    A link is busy with a piece for its bytes over the bandwidth, and the first link of a route for the sender's
    overhead too; the latency passes afterwards, while the next piece is sent. chunk: bytes of a piece at most, or
    pieces: into how many every chunk is cut (default: as many as give the least time). service: ``fifo``, ``static``,
    ``weighted``, ``equal``; offer: ``turns`` or ``burst``; slots: pieces that a connection has room for
    (`blinksim.simulation.engines.choice.outcome`). protocol: ``simple``, ``ll`` or ``ll128``. switching:
    ``cut-through`` or ``store-and-forward`` at the devices inside a route. gamma: seconds per byte that a rank reduces.
    launch: seconds before anything starts. engine: ``auto``, ``closed-form``, ``waves`` or ``heap``. most_events:
    pieces times stages that the search for the piece size may spend on a run.

    Raises `InputError` for bad or contradicting arguments, and for a schedule that beats its own bound.
    """
    if size < 1:
        raise InputError(f"a size of {size} bytes moves nothing; give at least 1 byte")
    if chunk is not None and pieces is not None:
        raise InputError("chunk and pieces both say how chunks are cut; give one of them")
    if not (0 <= gamma < 1 and 0 <= launch <= 3600):
        raise InputError("gamma must lie between 0 and 1 s per byte, launch between 0 and 3600 s")
    if service in ("weighted", "equal"):
        # A share of a link has no fixed rate that the next link could follow.
        switching = "store-and-forward"
    options = Options(efficiency(protocol), gamma, launch, switching)
    graph = stages(schedule, switching=switching, reduction=gamma > 0)

    def run(count: int, how: str = service) -> tuple[Work, Outcome]:
        work = timed(graph, size, count, options)
        if how != service:
            return work, outcome(graph, work, count, service=how)
        return work, outcome(graph, work, count, service=service, engine=engine, offer=offer, slots=slots)

    def trial(count: int) -> float:
        # Where trials would be slow, rounds show well enough what more pieces bring.
        many = service == "fifo" and slots is None and count * graph.count > _MOST_TRIAL
        work, found = run(count, "static" if many else service)
        return work.seconds(found.finish)

    tried: dict[int, float] = {}
    if chunk is not None:
        count = pieces_of(schedule, size, chunk)
    elif pieces is not None:
        count = pieces
    else:
        limit = {"static": 100 * most_events, "fifo": most_events}.get(service, _MOST_TRIAL)
        limit = limit if slots is None else _MOST_TRIAL
        count = _best(schedule, size, max(1, limit // max(1, graph.count)), trial, tried)
    if not 1 <= count <= MOST_PIECES:
        raise InputError(f"{count} pieces of each chunk: give 1 to {MOST_PIECES}, by a larger or smaller --chunk")
    work, found = run(count)
    bound = _bound(schedule, size, options)
    offered = offer or ("burst" if schedule.form == "steps" else "turns")
    timeline = Timeline(
        schedule, size, count, service, offered, slots, protocol, options, graph, work, found, float(bound), tried
    )
    _check(timeline, bound)
    return timeline


def pieces_of(schedule: Schedule, size: int, chunk: int) -> int:
    """Into how many pieces every chunk is cut so that none has more than `chunk` bytes."""
    if chunk < 1:
        raise InputError(f"a chunk of {chunk} bytes: give at least 1")
    largest = Fraction(size * int(schedule.share_num.max(initial=0)), schedule.share_den)
    return max(1, -(-largest // chunk).__floor__()) if largest else 1


def _bound(schedule: Schedule, size: int, options: Options) -> Fraction:
    """Seconds that the loads of the schedule need on their own links, exact."""
    best = rate(schedule)
    return Fraction(0) if best is None else size / best / options.efficiency


def _check(timeline: Timeline, loads: Fraction) -> None:
    """No run beats the loads of its links, its own longest path, or the bound that the schedule carries."""
    time = exact_time(timeline)
    assert time >= loads, f"simulated {float(time)} s, but the loads need {float(loads)} s"
    assert timeline.found.finish >= timeline.work.critical, "simulated less than the longest path"
    claimed = timeline.schedule.bound.get("rate_exact")
    if claimed is not None:
        best = Fraction(claimed) * 10**9
        if time * best < timeline.size:
            raise InputError(
                f"the schedule takes {float(time)} s, less than its own bound of {claimed} GB/s allows: it does not do "
                f"the whole {timeline.schedule.collective.name}, or the bound is wrong; blinksim verify says which"
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
