"""Simulation of a schedule on its links, checked against lower bounds, with the best piece size.

A run is a timeline: time, activity of every link, critical path, and transfers on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property, partial
from html import escape
from math import inf
from typing import Any

import numpy as np

from blinksim.budget import most_events
from blinksim.collective import busbw_factor
from blinksim.errors import BlinksimError, InputError
from blinksim.graphs.arrays import Floats, Ints, by_place, compressed, distinct
from blinksim.results import Rates, Result, Term, count, keyed
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule, ScheduleLike, as_schedule
from blinksim.timing import simulation_options
from blinksim.timing.alpha_beta import MOST_PIECES, climbed, cost
from blinksim.timing.event_graph import Run, ScheduleGraph, Work, event_graph, timed
from blinksim.timing.events import MOST_KEPT, evaluated
from blinksim.timing.simulation_options import MessagesName, OfferName, Options, ProtocolName, ServiceName
from blinksim.units import format_rate, format_size_about, format_time, size_of


@dataclass(frozen=True, slots=True)
class Use:
    """Work of one link (bus, device, reducer). busy_s: seconds; busy: their share of the whole; load_bytes: passed."""

    resource: str
    kind: str
    busy_s: float
    busy: float
    load_bytes: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """One piece passing one server. stage: of the event graph; resource: its server; start_s, time_s: seconds.

    arrived_s: when what waits for it may go on.
    """

    resource: str
    kind: str
    chunk: int
    piece: int
    src: str
    dst: str
    start_s: float
    time_s: float
    arrived_s: float


@dataclass(frozen=True, slots=True)
class Leg:
    """A stretch of the critical path at one server.

    place: the link, bus, device or reducer, or what else took the time. kind: its link class. start_s,
    time_s: seconds. pieces: passed one after another. travel_s: the part of time_s in which the last of them
    was on its way (latency, and what a slower stage behind it took).
    """

    place: str
    kind: str
    start_s: float
    time_s: float
    pieces: int = 1
    travel_s: float = 0.0

    def words(self) -> str:
        """One sentence without a full stop."""
        if not self.pieces:
            return f"{self.place}: {format_time(self.time_s)}"
        many = f"{self.pieces} pieces in a row" if self.pieces > 1 else "1 piece"
        travel = f", of which {format_time(self.travel_s)} on its way" if self.travel_s > 0 else ""
        return f"{self.place} passes {many}: {format_time(self.time_s)}{travel}"


@dataclass(frozen=True, eq=False)
class Spans:
    """Pieces at servers as arrays of equal length. start, end: seconds."""

    row: Ints
    chunk: Ints
    start: Floats
    end: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Rates, Result):
    """The simulated run of a schedule for one size.

    Attributes
    ----------
    schedule : Schedule
        What ran.
    size : int
        Bytes.
    pieces : int
        Into which every chunk was cut.
    options : Options
        How links serve and sends behave.
    graph, work, found
        The event graph, its times, and the run.
    bound_s : float
        Seconds that no schedule with these loads can beat.
    tried : dict
        Seconds by number of pieces, where the best was searched.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.simulate(bs.synthesize("dgx1-v100", "allreduce", "ring").schedule, "256MiB")
    >>> found.time_s >= found.bound_s
    True
    >>> max(use.busy for use in found.uses) > 0.9
    True
    """

    schedule: Schedule
    size: int
    pieces: int
    options: Options
    graph: ScheduleGraph
    work: Work
    found: Run
    bound_s: float
    tried: dict[int, float] = field(default_factory=dict)

    @property
    def time_s(self) -> float:
        return self.work.seconds(self.found.finish)

    @property
    def engine(self) -> str:
        return self.found.engine

    @property
    def algbw(self) -> float:
        """Bytes/s: size over time."""
        return self.size / self.time_s if self.time_s else float("inf")

    @property
    def busbw(self) -> float:
        factor = busbw_factor(self.schedule.collective.name, self.schedule.topology.ranks)
        return self.algbw * float(factor) if self.time_s else 0.0

    @property
    def piece_bytes(self) -> float:
        """Bytes of the largest piece."""
        return self.size * int(self.schedule.share_num.max(initial=0)) / self.schedule.share_den / self.pieces

    @property
    def service(self) -> str:
        """The order of service of links, by name."""
        return self.options.service

    @property
    def discipline(self) -> str:
        """The order of service of links, in words."""
        if self.service == "fifo":
            turns = self.options.offer == "turns"
            return f"first come, first served, {'one piece of a send in line' if turns else 'all pieces in line'}"
        if self.service == "ordered":
            return "in the order of steps"
        return "in rounds, piece by piece through all trees" if self.schedule.form == "forest" else "level by level"

    # --- what links did ----------------------------------------------------------------------------------------------

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """The use of every link, bus, device capacity and reducer, busiest first."""
        share = by_place(np.add, self.graph.resource, self.graph.share, len(self.work.load))
        scale = self.size / self.schedule.share_den
        rows = []
        for number in distinct(self.graph.resource[~self.graph.timeless]).tolist():
            ticks = int(self.work.load[number]) * self.pieces
            busy = ticks / self.found.finish if self.found.finish else 0.0
            name, kind = self.graph.resource_name(number), self.graph.resource_kind(number)
            rows.append(Use(name, kind, self.work.seconds(ticks), busy, float(share[number] * scale)))
        return tuple(sorted(rows, key=lambda use: (-use.busy, use.resource)))

    @property
    def utilisation(self) -> dict[str, float]:
        """Share of the time that each link (bus, device, reducer) was busy."""
        return {use.resource: use.busy for use in self.uses}

    # --- why it took so long -----------------------------------------------------------------------------------------

    @cached_property
    def _recorded(self) -> Run:
        """The run with every start; of fewer pieces of the same size where there are too many to keep."""
        shown = max(1, min(self.pieces, MOST_KEPT // max(1, self.work.count)))
        if self.found.start is not None and len(self.found.start) == shown:
            return self.found
        return evaluated(self.graph, self.work, shown, self.options, record=True)

    def starts(self) -> Ints:
        """(pieces, E): ticks at which each stage began each piece, -1 for joints; the first pieces if too many."""
        assert self._recorded.start is not None
        return self._recorded.start

    @cached_property
    def critical_path(self) -> tuple[Leg, ...]:
        """The stretches that add up to the time, first to last."""
        if not self.work.count:
            return ()
        # The chain of busy servers and journeys that ends with the last delivery, first leg first.
        graph, work, start = self.graph, self.work, self.starts()
        limits, order = compressed(graph.after, work.count)
        sources = graph.before[order]
        server_limits, by_server = compressed(graph.resource, int(graph.resource.max()) + 1)

        @cache
        def line(server: int) -> tuple[Ints, Ints, Ints, Ints]:
            """Work of a server, in order: (pieces, stages, starts, first of the unbroken busy time of each)."""
            stages = by_server[server_limits[server] : server_limits[server + 1]]
            piece, column = np.nonzero(start[:, stages] >= 0)
            stage = stages[column]
            begun = start[piece, stage]
            order = np.lexsort((stage, piece, begun + work.hold[stage], begun))
            piece, stage, begun = piece[order], stage[order], begun[order]
            breaks = np.append(True, begun[1:] > (begun + work.hold[stage])[:-1])
            return piece, stage, begun, np.maximum.accumulate(np.where(breaks, np.arange(len(begun)), 0))

        def arrival(source: int, piece: int) -> tuple[int, int]:
            """When a stage delivered a piece, and itself; for a joint the latest that it collected."""
            if not graph.timeless[source]:
                return int(start[piece, source] + work.lag[source]), source
            inner = (arrival(one, piece) for one in sources[limits[source] : limits[source + 1]].tolist())
            return max(inner, key=lambda found: found[0])

        done = np.where((start >= 0) & ~graph.timeless, start + work.lag, -1)
        piece, stage = (int(place) for place in np.unravel_index(int(np.argmax(done)), done.shape))
        legs, stop = list[Leg](), int(done.max())
        while True:
            server, travel = int(graph.resource[stage]), int(work.lag[stage] - work.hold[stage])
            # How many pieces the server passed without a break up to this one. A server that is free takes what
            # is there: so the first of them came just then.
            pieces, stages, begun, first = line(server)
            low, high = (int(np.searchsorted(begun, start[piece, stage], side)) for side in ("left", "right"))
            at = next(k for k in range(low, high) if (pieces[k], stages[k]) == (piece, stage))
            head = int(first[at])
            piece, stage = int(pieces[head]), int(stages[head])
            begin = int(start[piece, stage])
            # A piece may start at the next server before it has left this one: the leg then ends where that begins.
            onward = work.seconds(max(0, min(travel, stop - begin)))
            name, kind = graph.resource_name(server), graph.resource_kind(server)
            legs.append(Leg(name, kind, work.seconds(begin), work.seconds(stop - begin), at - head + 1, onward))
            stop = begin
            arrivals = (arrival(one, piece) for one in sources[limits[stage] : limits[stage + 1]].tolist())
            cause = next((source for when, source in arrivals if when == begin), None)
            if cause is None:
                break
            stage = cause
        if begin > 0:
            legs.append(Leg("before the first send starts", "launch", 0.0, work.seconds(begin), 0))
        legs.reverse()
        if more := self.pieces - self.recorded_pieces:
            more_s = self.time_s - self.work.seconds(self._recorded.finish)
            place = f"{count(more, 'more piece')}, mostly over {self.uses[0].resource}"
            legs.append(Leg(place, self.uses[0].kind, self.time_s - more_s, more_s, 0))
        return tuple(legs)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The time as a sum: the critical path by link class, pieces in sequence, and their latency."""
        found: dict[tuple[str, str], float] = {}
        for leg in self.critical_path:
            passing = "reductions" if leg.kind == "reduction" else f"pieces passing {leg.kind}"
            if not leg.pieces:
                passing = f"further pieces passing {leg.kind}" if "0" <= leg.place[:1] <= "9" else leg.place
            parts = {f"latency of {leg.kind}": leg.travel_s, passing: leg.time_s - leg.travel_s}
            for name, time_s in parts.items():
                if time_s > 0:
                    found[name, leg.kind] = found.get((name, leg.kind), 0.0) + time_s
        return tuple(Term(name, time_s, kind) for (name, kind), time_s in found.items())

    @property
    def facts(self) -> dict[str, Any]:
        """Further facts of a run for its projection, by name: seconds, shares and numbers."""
        classes = {use.kind: use.busy for use in reversed(self.uses)}
        classes = dict(sorted(classes.items(), key=lambda one: -one[1]))
        found = {"bottleneck_busy": self.uses[0].busy, "busy_by_class": classes}
        return found | keyed(self, "steps=schedule.steps pieces loads_s=bound_s")

    # --- every transfer ----------------------------------------------------------------------------------------------

    def transfers(self, most: int | None = None) -> Iterator[Transfer]:
        """Every piece at every server in the order of time; of more than `most` a sample from the whole run.

        The sample takes whole pieces, evenly spaced, so that the way of a piece can be followed; where not
        even two fit, it takes evenly spaced transfers.
        """
        start, seconds = self.starts(), self.work.seconds
        names = [device.name for device in self.schedule.topology.devices]
        real, pieces = np.flatnonzero(~self.graph.timeless), np.arange(len(start))
        if most is not None and 2 * len(real) <= most < len(start) * len(real):
            pieces = distinct(np.linspace(0, len(start) - 1, most // len(real)).round().astype(np.int64))
        order = np.argsort(start[np.ix_(pieces, real)], axis=None, kind="stable")
        if most is not None and most < len(order):
            order = order[distinct(np.linspace(0, len(order) - 1, most).round().astype(np.int64))]
        for place in order.tolist():
            piece, stage = int(pieces[place // len(real)]), int(real[place % len(real)])
            send, server, begun = int(self.graph.send[stage]), int(self.graph.resource[stage]), int(start[piece, stage])
            resource = self.graph.resource_name(server), self.graph.resource_kind(server)
            ends = names[self.schedule.src[send]], names[self.schedule.dst[send]]
            ticks = begun, int(self.work.hold[stage]), begun + int(self.work.lag[stage])
            yield Transfer(*resource, int(self.schedule.chunk[send]), piece, *ends, *map(seconds, ticks))

    def spans(self, resources: Sequence[str]) -> Spans:
        """When every piece passed the servers in `resources`, all of them, as arrays; row is the place in the list."""
        start, graph, tick = self.starts(), self.graph, float(self.work.ticks_per_second)
        place = {name: row for row, name in enumerate(resources)}
        servers = range(int(graph.resource.max(initial=-1)) + 1)
        rows = np.array([place.get(graph.resource_name(server), -1) for server in servers], dtype=np.int64)
        real = np.flatnonzero(~graph.timeless & (rows[graph.resource] >= 0))
        begun = start[:, real]
        labels = rows[graph.resource[real]], self.schedule.chunk[graph.send[real]].astype(np.int64)
        row, chunk = (np.broadcast_to(label, begun.shape).ravel() for label in labels)
        return Spans(row, chunk, begun.ravel() / tick, (begun + self.work.hold[real]).ravel() / tick)

    @property
    def recorded_pieces(self) -> int:
        """The pieces whose transfers are known: all of them, or the first ones of a run too long to keep."""
        return len(self.starts())

    @property
    def transfer_count(self) -> int:
        """The number of transfers: pieces times servers passed."""
        return int((~self.graph.timeless).sum()) * self.pieces

    # --- answers -----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        form, root = self.schedule.form, " root=collective.root" if self.schedule.collective.rooted else ""
        found = keyed(self.schedule, f"machine=topology.name collective=collective.name{root}")
        found |= keyed(self.schedule.topology, "members relays links=link_classes rates")
        own = {"offer": self.options.offer, "slots": None, "messages": self.options.sent(form)}
        if self.schedule.groups:
            found["groups"], own["busbw_GBps"] = [*map(str, self.schedule.groups)], None
        found |= keyed(self, "@Timeline", **own, **({} if self.time_s else {"algbw_GBps": None}))
        path = [keyed(leg, "place class=kind start_s time_s pieces travel_s") for leg in self.critical_path]
        return found | {"utilisation": self.rows(), "critical_path": path}

    def rows(self) -> list[dict[str, Any]]:
        """The utilisation: resource, class, busy, busy_s, load_bytes."""
        return [keyed(use, "resource class=kind busy busy_s load_bytes") for use in self.uses]

    def sentence(self) -> str:
        """The answer in one line."""
        schedule, size, where = self.schedule, format_size_about(self.size), self.schedule.topology.title
        takes, rates = f"takes {format_time(self.time_s)}", f"algbw {format_rate(self.algbw)}"
        if schedule.groups:
            return f"{schedule.does}, {size} in all, on {where} {takes}: {rates}"
        what = f"{schedule.collective} of {size} on {where} by {schedule.algorithm}"
        return f"{what} {takes}: {rates}, busbw {format_rate(self.busbw)}"

    def _repr_html_(self) -> str:
        path = "".join(f"<li>{escape(leg.words())}</li>" for leg in self.critical_path[:12])
        return f"<p>{escape(f'{self.sentence()}; {self.discipline}')}</p><ol>{path}</ol>"


def exact_time(timeline: Timeline) -> Fraction:
    """Seconds, exact."""
    return timeline.found.finish / timeline.work.ticks_per_second


# Events that one trial in the search for the piece size may take before rounds stand in for it.
_MOST_TRIAL = 400_000
# Pieces from which the search may begin whatever a trial takes.
_FEW_PIECES = 64
# By number of pieces, what was tried: its seconds, and the run where it was by the service that is asked for.
Runs = dict[int, tuple[float, Run | None]]


def simulate(
    schedule: ScheduleLike,
    size: int | float | str | None = None,
    *,
    chunk: int | str | None = None,
    pieces: int | None = None,
    service: ServiceName | None = None,
    offer: OfferName = "turns",
    protocol: ProtocolName = "simple",
    gamma: float = 0.0,
    launch: float = 0.0,
    switching: simulation_options.SwitchingName = "cut-through",
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
    size : int or str, optional
        Bytes, or text such as ``"256MiB"``. Default: those of its tokens, traffic matrix or groups.
    chunk : int or str, optional
        Bytes of a piece at most.
    pieces : int, optional
        Into which every chunk is cut, in place of `chunk`. Default: the number with the least time.
    service : {"fifo", "static", "ordered"}, optional
        How links serve: what came first; in rounds, or level by level; or step by step. Default: what came
        first, of a schedule in steps or step by step, whichever takes less time.
    offer : {"turns", "burst"}
        How pieces stand in line under ``fifo``: one of each send and chunk at a time, or all that are there.
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
    schedule = as_schedule(schedule)
    size = schedule.sized(size)
    options = Options(service or "fifo", offer, protocol, gamma, launch, switching, messages)
    if chunk is not None and pieces is not None:
        raise InputError("chunk= and pieces= both set how chunks are cut; give one of them")
    count = pieces if chunk is None else pieces_of(schedule, size, size_of(chunk))
    run = partial(_run, event_graph(schedule, options), size, count, most=most_events)
    first = run(options)
    # Where a formula has the time nothing stands in line, so that the order changes nothing.
    if service is not None or schedule.form != "steps" or first.engine == "closed-form":
        return first
    return min(first, run(replace(options, service="ordered")), key=exact_time)


def _run(graph: ScheduleGraph, size: int, given: int | None, options: Options, most: int | None) -> Timeline:
    """The run in one order of service, checked by its bounds. given: pieces of each chunk; else the best."""
    schedule, runs = graph.schedule, Runs()
    count = _best_pieces(graph, size, options, most, runs) if given is None else given
    if not 1 <= count <= MOST_PIECES:
        raise InputError(f"{count} pieces of each chunk: give 1 to {MOST_PIECES}, by a larger or smaller chunk=")
    work = timed(graph, size, count, options)
    found = runs.get(count, (inf, None))[1] or evaluated(graph, work, count, options)
    loads = size / best / options.efficiency if (best := rate(schedule)) is not None else Fraction(0)
    tried = {number: seconds for number, (seconds, _) in runs.items()}
    timeline = Timeline(schedule, size, count, options, graph, work, found, float(loads), tried)

    # No run beats the loads of its links, its own longest path, or the bound that the schedule carries.
    time, claimed = exact_time(timeline), schedule.claim("rate_exact")
    if time < loads:
        short = f"simulated {float(time)} s, but the loads need {float(loads)} s"
        raise BlinksimError(f"{short}; this is a fault of blinksim")
    if found.finish < work.critical:
        raise BlinksimError("simulated less than the longest path takes; this is a fault of blinksim")
    if claimed is not None and time * claimed * 10**9 < size:
        less = f"the schedule takes {float(time)} s, less than its own bound of {claimed} GB/s allows"
        why = f"it does not do the whole {schedule.collective.name}, or the bound is wrong"
        raise InputError(f"{less}: {why}; blinksim verify says more")
    return timeline


def pieces_of(schedule: Schedule, size: int, chunk: int) -> int:
    """The fewest pieces of every chunk such that none has more than `chunk` bytes."""
    return max(1, -(-(size * int(schedule.share_num.max(initial=0))) // (schedule.share_den * chunk)))


def _best_pieces(graph: ScheduleGraph, size: int, options: Options, most: int | None, runs: Runs) -> int:
    """The number of pieces with the least time: powers of two near a guess, then in between.

    Where latency only overlaps, more pieces are always better: the search stops when they no longer gain 0.1
    %. most: events of a run. runs: gets every number that was tried.
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
        trial = replace(options, service="static") if many else options
        work = timed(graph, size, count, trial)
        try:
            found = evaluated(graph, work, count, trial)
            runs[count] = work.seconds(found.finish), None if many else found
        except InputError:  # It would take too long.
            runs[count] = inf, None
        return runs[count][0]

    guess = min(most, cost(schedule, size).pieces)
    if options.service == "fifo":
        # More pieces than are tried event by event have to gain something.
        guess = min(guess, max(_FEW_PIECES, _MOST_TRIAL // max(1, graph.count)))
        # Level by level, steps gain nothing by pieces: 48 of a broadcast on 8 p5 (3.10 ms) seemed worse than 24 (3.48).
        if schedule.form == "steps" and guess * graph.count > _MOST_TRIAL:
            return guess
    best = min(guess, *(climbed(time, guess, factor, most) for factor in (2, 0.5)), key=time)
    for share in (0.75, 1.25, 1.5):
        best = min(best, max(1, min(most, round(best * share))), key=time)
    return min(runs, key=lambda count: (runs[count][0], count))
