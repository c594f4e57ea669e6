"""The result of a simulation: the time, what every link did, the critical path, and every transfer on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.collective import busbw_factor
from blinksim.results import Rates, Result, paragraph
from blinksim.schedule.model import Schedule
from blinksim.simulation import critical
from blinksim.simulation.critical import Leg
from blinksim.simulation.engines.choice import Outcome, connection_of, outcome
from blinksim.simulation.simulation_options import OfferName, ProtocolName, Sending, Service, ServiceName
from blinksim.simulation.stages import Stages
from blinksim.simulation.work import Ticks, Work
from blinksim.structures.arrays import distinct
from blinksim.textio.text_table import count
from blinksim.units import format_rate, format_size, format_time

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

# Transfers that are recorded to find the critical path; beyond that, a run with fewer pieces of the same size.
_MOST_RECORDED = 3_000_000


@dataclass(frozen=True, slots=True)
class Use:
    """What one link (bus, device, reducer) did. busy_s: seconds; busy: their share of the whole; load_bytes: passed."""

    resource: str
    kind: str
    busy_s: float
    busy: float
    load_bytes: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "resource": self.resource,
            "class": self.kind,
            "busy": self.busy,
            "busy_s": self.busy_s,
            "load_bytes": self.load_bytes,
        }


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


@dataclass(frozen=True, eq=False)
class Spans:
    """Pieces at servers as arrays of equal length. start, end: seconds; they overlap where a server shares its rate."""

    row: Whole
    chunk: Whole
    start: Real
    end: Real


@dataclass(frozen=True, eq=False)
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
    service, offer, slots
        How links serve (`blinksim.simulation.simulation_options.Service`).
    protocol : str
        What share of the traffic is data.
    options : Sending
        How sends behave.
    graph, work, found
        The stages, their times, and what the engine found.
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
    service: ServiceName
    offer: OfferName
    slots: int | None
    protocol: ProtocolName
    options: Sending
    graph: Stages
    work: Work
    found: Outcome
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
    def discipline(self) -> str:
        """How links are served, in words."""
        ways = {
            "fifo": "first come, first served, "
            + ("one piece of a tree in line" if self.offer == "turns" else "all pieces in line"),
            "static": "in rounds, piece by piece through all trees"
            if self.schedule.form == "forest"
            else "level by level",
            "ordered": "in the order of steps",
            "weighted": "shared by streams in proportion to their shares",
            "equal": "shared equally by streams",
        }
        return ways[self.service] + (f", {self.slots} slots a connection" if self.slots is not None else "")

    # --- what links did ----------------------------------------------------------------------------------------------

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """Every link, bus, device capacity and reducer that was used, busiest first."""
        real = self.graph.send >= 0
        resource = self.graph.resource[real]
        hold = np.zeros(int(self.graph.resource.max(initial=-1)) + 1, dtype=np.int64)
        share = np.zeros(len(hold), dtype=np.int64)
        np.add.at(hold, resource, self.work.hold[real])
        np.add.at(share, resource, self.graph.share[real])
        scale = self.size / self.schedule.share_den
        kinds = self.graph.shared.kinds
        rows = []
        for number in distinct(resource).tolist():
            ticks = int(hold[number]) * self.pieces
            kind = kinds[number] if number < len(kinds) else "reduction"
            rows.append(
                Use(
                    self.graph.resource_name(number),
                    kind,
                    self.work.seconds(ticks),
                    ticks / self.found.finish if self.found.finish else 0.0,
                    float(share[number] * scale),
                )
            )
        return tuple(sorted(rows, key=lambda use: (-use.busy, use.resource)))

    @property
    def utilisation(self) -> dict[str, float]:
        """Share of the time that each link (bus, device, reducer) was busy."""
        return {use.resource: use.busy for use in self.uses}

    # --- why it took so long -----------------------------------------------------------------------------------------

    @cached_property
    def _recorded(self) -> tuple[int, Outcome]:
        """(pieces, run) with every start; fewer pieces of the same size where there are too many to keep."""
        shown = max(1, min(self.pieces, _MOST_RECORDED // max(1, self.work.count)))
        run = self.found.run
        if run is not None and run.start is not None and len(run.start) == shown:
            return shown, self.found
        service = Service(self.service, self.offer, self.slots)
        return shown, outcome(self.graph, self.work, shown, service, tail=False, record=True)

    @cached_property
    def critical_path(self) -> tuple[Leg, ...]:
        """The stretches that add up to the time, first to last; a single one where servers share their rate."""
        if not self.work.count:
            return ()
        if self.service in ("weighted", "equal"):
            busiest = self.uses[0]
            rest = self.time_s - busiest.busy_s
            shared = Leg(busiest.resource, busiest.kind, 0.0, busiest.busy_s, self.pieces)
            return (shared, Leg("filling and draining", "", busiest.busy_s, rest, 0))
        shown, recorded = self._recorded
        assert recorded.run is not None
        connection = None if self.slots is None else connection_of(self.graph)
        legs = critical.path(self.graph, self.work, recorded.run, connection)
        if shown < self.pieces:
            more = self.time_s - self.work.seconds(recorded.finish)
            busiest = self.uses[0]
            place = f"{count(self.pieces - shown, 'more piece')}, mostly over {busiest.resource}"
            legs.append(Leg(place, busiest.kind, self.time_s - more, more, 0))
        return tuple(legs)

    # --- every transfer ----------------------------------------------------------------------------------------------

    def starts(self) -> Ticks:
        """(pieces, E): ticks at which each stage began each piece, -1 for joints; the first pieces if too many."""
        run = self._recorded[1].run
        assert run is not None
        assert run.start is not None
        return run.start

    def transfers(self, most: int | None = None) -> Iterator[Transfer]:
        """Every piece at every server in the order of time; of more than `most` a sample from the whole run.

        The sample takes whole pieces, evenly spaced, so that the way of a piece can be followed; where not even two
        fit, it takes evenly spaced transfers.
        """
        start = self.starts()
        over = self._recorded[1].run
        assert over is not None
        names = [device.name for device in self.schedule.topology.devices]
        real = np.flatnonzero(self.graph.send >= 0)
        kinds = self.graph.shared.kinds
        for piece, stage in _sampled(start, real, most):
            send, server, begun = int(self.graph.send[stage]), int(self.graph.resource[stage]), int(start[piece, stage])
            hold = int(self.work.hold[stage])
            gone = begun + hold if over.end is None else int(over.end[piece, stage])
            yield Transfer(
                resource=self.graph.resource_name(server),
                kind=kinds[server] if server < len(kinds) else "reduction",
                chunk=int(self.schedule.chunk[send]),
                piece=piece,
                src=names[self.schedule.src[send]],
                dst=names[self.schedule.dst[send]],
                start_s=self.work.seconds(begun),
                time_s=self.work.seconds(gone - begun),
                arrived_s=self.work.seconds(gone - hold + int(self.work.lag[stage])),
            )

    def spans(self, resources: Sequence[str]) -> Spans:
        """When every piece passed the servers in `resources`, all of them, as arrays; row is the place in the list."""
        start = self.starts()
        run = self._recorded[1].run
        assert run is not None
        place = {name: row for row, name in enumerate(resources)}
        servers = range(int(self.graph.resource.max(initial=-1)) + 1)
        rows = np.array([place.get(self.graph.resource_name(server), -1) for server in servers], dtype=np.int64)
        real = np.flatnonzero((self.graph.send >= 0) & (rows[self.graph.resource] >= 0))
        begun = start[:, real]
        gone = begun + self.work.hold[real] if run.end is None else run.end[:, real]
        tick = float(self.work.ticks_per_second)
        chunk = self.schedule.chunk[self.graph.send[real]].astype(np.int64)
        return Spans(
            np.broadcast_to(rows[self.graph.resource[real]], begun.shape).ravel(),
            np.broadcast_to(chunk, begun.shape).ravel(),
            begun.ravel() / tick,
            gone.ravel() / tick,
        )

    @property
    def recorded_pieces(self) -> int:
        """The pieces whose transfers are known: all of them, or the first ones of a run too long to keep."""
        return len(self.starts())

    @property
    def transfer_count(self) -> int:
        """Pieces at servers, all together."""
        return int((self.graph.send >= 0).sum()) * self.pieces

    # --- answers -----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The keys of the answer as JSON."""
        topology = self.schedule.topology
        collective = self.schedule.collective
        return {
            "machine": topology.name,
            "collective": collective.name,
            **({"root": collective.root} if collective.rooted else {}),
            "members": list(topology.members),
            "relays": list(topology.relays),
            "links": list(topology.link_classes),
            "rates": topology.rates,
            "size_bytes": self.size,
            "algorithm": self.schedule.algorithm,
            "time_s": self.time_s,
            "algbw_GBps": self.algbw_GBps if self.time_s else None,
            "busbw_GBps": self.busbw_GBps,
            "bound_time_s": self.bound_s,
            "pieces": self.pieces,
            "piece_bytes": self.piece_bytes,
            "service": self.service,
            "offer": self.offer,
            "slots": self.slots,
            "protocol": self.protocol,
            "switching": self.options.switching,
            "messages": self.options.sent(self.schedule.form),
            "engine": self.engine,
            "transfers": self.transfer_count,
            "utilisation": self.rows(),
            "critical_path": [leg.to_dict() for leg in self.critical_path],
        }

    def rows(self) -> list[dict[str, Any]]:
        """The utilisation: resource, class, busy, busy_s, load_bytes."""
        return [use.to_dict() for use in self.uses]

    def sentence(self) -> str:
        """The answer in one line."""
        schedule = self.schedule
        return (
            f"{schedule.collective} of {format_size(self.size)} on {schedule.topology.name} by {schedule.algorithm} "
            f"takes {format_time(self.time_s)}: algbw {format_rate(self.algbw)}, busbw {format_rate(self.busbw)}"
        )

    def __repr__(self) -> str:
        over = self.time_s / self.bound_s - 1 if self.bound_s else 0.0
        return (
            f"<Timeline {self.sentence()}\n  {count(self.pieces, 'piece')} of up to "
            f"{format_size(self.piece_bytes)}, {self.discipline}; {100 * over:.3g} % above the bound>"
        )

    def _repr_html_(self) -> str:
        path = "".join(f"<li>{escape(leg.words())}</li>" for leg in self.critical_path[:12])
        return f"{paragraph(f'{self.sentence()}; {self.discipline}')}<ol>{path}</ol>"


def _sampled(start: Ticks, real: Whole, most: int | None) -> Iterator[tuple[int, int]]:
    """(piece, stage) of the stages `real` in the order of time, at most `most`."""
    if most is not None and 2 * len(real) <= most < len(start) * len(real):
        kept = distinct(np.linspace(0, len(start) - 1, most // len(real)).round().astype(np.int64))
    else:
        kept = np.arange(len(start))
    order = np.argsort(start[np.ix_(kept, real)], axis=None, kind="stable")
    if most is not None and most < len(order):
        order = order[distinct(np.linspace(0, len(order) - 1, most).round().astype(np.int64))]
    for place in order.tolist():
        yield int(kept[place // len(real)]), int(real[place % len(real)])


def exact_time(timeline: Timeline) -> Fraction:
    """Seconds, exact."""
    return timeline.found.finish / timeline.work.ticks_per_second
