"""Programs on GPUs as a timing model: block by block, on machines whose constants were measured.

No program of GPUs has switches add. An allreduce by the algorithm ``nvls`` takes the time that was measured of NCCL's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from blinksim.collective import Collective
from blinksim.cost.nccl_rates import NVLS
from blinksim.cost.terms import Term, total
from blinksim.errors import InfeasibleError, InputError, unknown
from blinksim.programs.compile import compile_schedule
from blinksim.programs.dtypes import ELEMENT_TYPES
from blinksim.programs.fit import fit, quicker_protocol, worth_staging
from blinksim.programs.handover import PROTOCOLS, ProtocolName
from blinksim.schedule.switch_work import refuse
from blinksim.simulation.blocks.block_rounds import blocks_of
from blinksim.simulation.blocks.run_time import CALLS, CallsName, RunTime, busiest_port, run_time
from blinksim.timing.projection_result import Projection
from blinksim.timing.timing_model import Breakdown, ScheduleModel
from blinksim.units import format_rate, format_size, format_size_about

if TYPE_CHECKING:
    from blinksim.cost.execution_rates import ExecutionRates
    from blinksim.programs.program import Program
    from blinksim.schedule.model import Schedule
    from blinksim.schedule.ways import Parallel
    from blinksim.topology.graph import Topology

# Schedules with more sends take seconds.
MOST_SENDS = 2000
# Packets move 16 bytes for 15: beyond this many bytes they were never quicker, and are not tried.
MOST_PACKETS = 64 << 20
_KIND = ELEMENT_TYPES["float32"]


def uncovered(part: Topology) -> str:
    """Why the model cannot time programs on a selected topology; empty if it can."""
    if part.execution is None:
        return f"{part.name} at {part.rates} rates has no measured constants of running programs"
    if part.nodes > 1:
        return "its constants are those of one node"
    if part.relays:
        return "it knows no relays"
    others = [device.name for device in part.devices if device.name not in part.members]
    if len(others) != 1:
        return "its constants are those of GPUs around a switch"
    ways = {(link.lane_bandwidth, link.lanes, others[0] in (link.src, link.dst)) for link in part.links}
    if len(part.links) != 2 * part.ranks or len(ways) != 1 or not ways.pop()[2]:
        return "its constants are those of GPUs with equal links to a switch"
    return ""


class Executed(ScheduleModel):
    """The program of the schedule, as GPUs run it: launches, blocks, flags or packets, and ports.

    Parameters
    ----------
    protocol : {"simple", "ll128"}, optional
        How GPUs hand data on. Default: the quicker one.
    calls : {"successive", "apart"}
        One call after another, which overlap, or each by itself.
    """

    name = "execution"
    # Each step of the search for a crossover costs simulations.
    crossover_precision: ClassVar[int | None] = 50

    def __init__(self, protocol: ProtocolName | None = None, calls: CallsName = "successive") -> None:
        super().__init__()
        if protocol not in (None, *PROTOCOLS):
            raise unknown("protocol", str(protocol), PROTOCOLS)
        if calls not in CALLS:
            raise unknown("kind of calls", calls, CALLS)
        self.protocol, self.calls = protocol, calls
        self.part: Topology | None = None

    def on(self, part: Topology) -> Executed:
        """The model with the constants of this part: those of a schedule may be of the machine that it was built for,
        which equals this one in its links."""
        model = copy(self)
        model.part = part
        return model

    def check_schedule(self, entrant: Parallel) -> None:
        reason = uncovered(self.part or entrant.compact.topology)
        if reason:
            raise InfeasibleError(f"model={self.name}: {reason}; take model=alpha-beta")
        if self._by_switches(entrant.compact):
            return
        refuse(entrant.compact, f"model={self.name} times programs of GPUs; take model=alpha-beta")
        if entrant.sends > MOST_SENDS:
            raise InfeasibleError(
                f"{entrant.compact.algorithm} has {entrant.sends:,} sends; model={self.name} takes at most "
                f"{MOST_SENDS:,}"
            )

    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        part = self.part or schedule.topology
        rates = part.execution
        if rates is None:
            raise InfeasibleError(f"model={self.name}: {uncovered(part)}; take model=alpha-beta")
        if gamma:
            raise InputError(f"model={self.name} knows what sums cost; leave gamma out")
        if self._by_switches(schedule):
            return _nvls_breakdown(part, size)
        found = self._quickest(schedule, size, rates)
        return Breakdown(_terms(found), _bottleneck(found), _details(found, schedule, rates, self.calls))

    def quicker(self, schedule: Schedule, size: int) -> ProtocolName:
        """The protocol by which the schedule takes less time, of a model that knows its part."""
        if self.part is None or self.part.execution is None:
            raise InfeasibleError(f"model={self.name} needs a part with measured constants to choose a protocol")
        return "ll128" if self._quickest(schedule, size, self.part.execution).program.packets else "simple"

    def projection(self, **given: Any) -> Projection:
        return (NvlsProjection if "library" in given["details"] else ExecutionProjection)(**given)

    def _by_switches(self, schedule: Schedule) -> bool:
        """True for a schedule that switches carry out and whose time is known: that of NCCL's NVLS."""
        return adds_in_switches(self.part or schedule.topology, schedule.algorithm, schedule.collective)

    def _quickest(self, schedule: Schedule, size: int, rates: ExecutionRates) -> Run:
        """The program by the protocol that takes less time."""
        first = self.protocol or quicker_protocol(schedule, size)
        best = self._run(schedule, size, first, rates)
        for protocol in PROTOCOLS if self.protocol is None else ():
            if protocol == first or (protocol == "ll128" and size > MOST_PACKETS):
                continue
            program = _program(schedule, size, protocol, rates)
            _, busy_s = busiest_port(blocks_of(program, rates), rates, program.devices)
            if rates.launch_s + busy_s < best.time.time_s:
                best = min(best, Run(program, run_time(program, rates, self.calls)), key=lambda run: run.time.time_s)
        return best

    def _run(self, schedule: Schedule, size: int, protocol: str, rates: ExecutionRates) -> Run:
        program = _program(schedule, size, protocol, rates)
        return Run(program, run_time(program, rates, self.calls))


@dataclass(frozen=True, slots=True)
class Run:
    """A program and the time that it takes."""

    program: Program
    time: RunTime


def _program(schedule: Schedule, size: int, protocol: str, rates: ExecutionRates) -> Program:
    """The schedule for vectors of `size` bytes of float32, as a run would cut it."""
    packets = protocol == "ll128"
    staged = packets or worth_staging(schedule, size)
    count = max(1, size // _KIND.itemsize)
    return fit(compile_schedule(schedule, count, _KIND, packets=packets, staged=staged), rates.blocks)


def _terms(run: Run) -> tuple[Term, ...]:
    time = run.time
    return (
        Term("launch", time.launch_s, "between the launches of a kernel"),
        Term("steps", time.looking_s, "blocks step through their ops, also those whose turn comes later"),
        Term("bandwidth", time.ports_s, time.port),
        Term("waiting", time.steps_s, "that port waits for data on their way through blocks, flags and fences"),
    )


def _bottleneck(run: Run) -> str:
    time = run.time
    parts = {
        "launch": time.launch_s,
        "steps": time.looking_s,
        f"port {time.port}": time.ports_s,
        "waiting for flags": time.steps_s,
    }
    return max(parts, key=lambda name: parts[name])


def _details(run: Run, schedule: Schedule, rates: ExecutionRates, calls: CallsName) -> dict[str, Any]:
    program, error = run.program, rates.error
    return {
        "bottleneck_busy": run.time.ports_s / run.time.time_s,
        "steps": schedule.steps,
        "protocol": "ll128" if program.packets else "simple",
        "staged": program.staged,
        "slices": program.slices,
        "piece_bytes": program.piece_units * program.unit * program.kind.itemsize,
        "calls": calls,
        "constants": rates.measured.words(rates.hardware, rates.gpus),
        **({} if error is None else {"error_median": error.median, "error_p90": error.p90, "error": error.words()}),
    }


_CALLS = {
    "successive": "one after another without a pause: launches overlap",
    "apart": "each by itself, begun by all GPUs at once",
}


class ExecutionProjection(Projection):
    """A program's time on measured GPUs."""

    @property
    def executor(self) -> str:
        details = self.details
        way = "ll128 packets" if details["protocol"] == "ll128" else "simple, flags behind the data"
        return f"{way}; {details['slices']} slices, pieces of {format_size_about(details['piece_bytes'])}"

    @property
    def basis(self) -> list[tuple[str, str]]:
        return [("executor", self.executor), *self.conditions]

    @property
    def conditions(self) -> list[tuple[str, str]]:
        known = "; ".join(self.details[key] for key in ("constants", "error") if key in self.details)
        return [("calls", _CALLS[self.details["calls"]]), ("constants", known)]

    @property
    def bottleneck_words(self) -> str:
        """The longest of the terms, and its share."""
        return f"{self.bottleneck}, {100 * max(t.time_s for t in self.terms) / self.time_s:.0f} % of the time"

    def facts(
        self, edits: Sequence[str] = (), rivals: int | None = None, left_out: Mapping[str, str] | None = None
    ) -> list[tuple[str, str]]:
        """As `Projection.facts`, and how the program is cut, what is timed, and how well that is known."""
        return [*super().facts(edits, rivals, left_out), *self.basis]


def adds_in_switches(part: Topology, algorithm: str, collective: Collective) -> bool:
    """True if the constants of a part say how long switches take that reduce into readers."""
    rates = part.nccl_rates
    adds = any(device.reads for device in part.devices)
    named = (algorithm, collective.name) == (NVLS, "allreduce") and part.nodes == 1 and adds
    return named and rates is not None and rates.line_of(NVLS, "Simple", part.ranks) is not None


def nvls_time(part: Topology, size: int) -> float | None:
    """Seconds of an allreduce of `size` bytes by NVLS on a part; None where no constants say it."""
    if not adds_in_switches(part, NVLS, Collective("allreduce")):
        return None
    return total(_nvls_terms(part, size))


def _nvls_breakdown(part: Topology, size: int) -> Breakdown:
    """The terms of an allreduce of `size` bytes by NVLS, for a part that is `adds_in_switches`."""
    rates = part.nccl_rates
    assert rates is not None
    assert rates.nvls is not None
    terms = _nvls_terms(part, size)
    by_limit = {term.limit: term.time_s for term in terms}
    details = {
        "library": f"NCCL {rates.version}",
        "channels": rates.nvls.channels,
        "port_GBps": rates.nvls.port_rate(part.ranks, size) / 1e9,
        "measured_from_bytes": rates.nvls.least(part.ranks),
        "bottleneck_busy": by_limit["nvls.byte"] / total(terms),
        "constants": rates.origin_of(NVLS),
    }
    return Breakdown(terms, "the ports" if by_limit["nvls.byte"] > 0.5 * total(terms) else "start and chunks", details)


def _nvls_terms(part: Topology, size: int) -> tuple[Term, ...]:
    rates = part.nccl_rates
    assert rates is not None
    # The number of channels is for rings: those of NVLS have one of their own.
    return tuple(rates.terms("allreduce", part.ranks, size, NVLS, channels=1))


class NvlsProjection(Projection):
    """What NVLS takes on GPUs whose switches add."""

    def facts(
        self, edits: Sequence[str] = (), rivals: int | None = None, left_out: Mapping[str, str] | None = None
    ) -> list[tuple[str, str]]:
        """As `Projection.facts`, and who runs it, how, and how well that is known."""
        details = self.details
        channels = f"{details['channels']} channels; " if details["channels"] else ""
        port = format_rate(details["port_GBps"] * 1e9)
        known = details["constants"]
        if self.size < details["measured_from_bytes"]:
            known += f"; nothing below {format_size(details['measured_from_bytes'])} was measured"
        return [
            *super().facts(edits, rivals, left_out),
            ("run by", f"NCCL, as NVLS: {channels}{port} through a port at this size"),
            ("constants", known),
        ]
