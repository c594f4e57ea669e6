"""Programs on GPUs as a timing model: block by block, on machines whose constants were measured.

The times are those of `blinksim.gpu.execution_time`: `closed_form` estimates, `simulate_blocks` simulates.

No program of GPUs has switches add. An allreduce by the algorithm ``nvls`` takes the time that was measured
of NCCL's.

`auto`, the default of questions, takes it where the constants are known, else the links alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from blinksim.budget import SlowerError
from blinksim.collective import ON_TREES
from blinksim.errors import InfeasibleError, InputError, one_of
from blinksim.results import Term, keyed, total
from blinksim.schedule.model import Schedule, refuse
from blinksim.textio.text_files import read_words
from blinksim.timing.alpha_beta_model import AlphaBeta
from blinksim.timing.measured_constants import NVLS, NcclRates, uncovered
from blinksim.timing.projection_result import Projection
from blinksim.timing.timing_model import Breakdown, ScheduleModel
from blinksim.units import format_rate, format_size, format_size_about

if TYPE_CHECKING:
    from blinksim.gpu.execution_time.closed_form import Run, ScheduleTimes
    from blinksim.gpu.execution_time.simulate_blocks import CallsName
    from blinksim.gpu.programs.program import ProtocolName
    from blinksim.schedule.candidate import Candidate
    from blinksim.timing.contest import Contest
    from blinksim.topology.graph import Topology

ENTRIES = (
    {"name": "auto", "class": "Auto", "schedules": True, "place": 0},
    {"name": "execution", "class": "Executed", "schedules": True, "place": 2},
    {"name": "execution-closed", "class": "Estimated", "schedules": True, "place": 3},
)

# Schedules with more sends take seconds.
MOST_SENDS = 2000
# Packets move 16 bytes for 15: beyond this many bytes they were never quicker, and are not tried.
MOST_PACKETS = 64 << 20
# The closed form overstates a time by less than this factor (benchmarks/bench_closed_form.py), by the form of
# the schedule, up to 32 and 128 MiB and beyond: most where a pipeline fills.
OVERSTATED: Mapping[str, tuple[float, float, float]] = {"steps": (1.4, 1.2, 1.1), "forest": (1.4, 1.3, 1.1)}
# And the time of the quickest program of a question by less than this one.
OF_THE_QUICKEST = 1.05
# No program is quicker than its busiest port. One that the formula does not see ahead is simulated only if that port
# leaves more than a fiftieth to win.
SHORT_OF_PORTS = 0.98


class Executed(ScheduleModel):
    """The program of the schedule, as GPUs run it: launches, blocks, flags or packets, and ports.

    Parameters
    ----------
    protocol : {"simple", "ll128"}, optional
        How GPUs hand data on. Default: the quicker one.
    calls : {"successive", "apart", "graph", "stream", "host"}, optional
        One call after another, which overlap, or each by itself, launched by one process; or those of a training
        job: captured in a graph, there on a stream of their own, or launched one by one by PyTorch. Default: the
        quicker of successive ones and, where such were measured, those in a graph.
    """

    name = "execution"
    # Each step of the search for a crossover costs simulations, and no formula of programs is that good.
    crossover_precision: ClassVar[int | None] = 50
    # A program that takes more seconds need not be simulated to its end.
    most_s = inf

    def __init__(self, protocol: ProtocolName | None = None, calls: CallsName | None = None) -> None:
        from blinksim.gpu.execution_time.simulate_blocks import CALLS
        from blinksim.gpu.programs.program import PROTOCOLS

        super().__init__()
        for what, name, known in (("protocol", protocol, PROTOCOLS), ("kind of calls", calls, CALLS)):
            if name is not None:
                one_of(what, str(name), known)
        self.protocol, self.calls = protocol, calls
        self.part: Topology | None = None

    def on(self, part: Topology) -> Executed:
        """The model with the constants of this part: those of a schedule may be of the machine that it was built for,
        which equals this one in its links."""
        model = copy(self)
        model.part = part
        return model

    def check_schedule(self, candidate: Candidate) -> None:
        from blinksim.gpu.execution_time.simulate_blocks import IN_JOBS

        if reason := uncovered(self.part or candidate.compact.topology):
            raise InfeasibleError(f"model={self.name}: {reason}; take model=alpha-beta")
        if self._by_switches(candidate.compact) is not None:
            return
        if self.calls in IN_JOBS and (name := candidate.compact.collective.name) not in ON_TREES:
            raise InfeasibleError(f"model={self.name}, calls={self.calls}: training jobs leave {name} to NCCL")
        refuse(candidate.compact, f"model={self.name} times programs of GPUs; take model=alpha-beta")
        if candidate.sends > MOST_SENDS:
            most = f"model={self.name} takes at most {MOST_SENDS:,}"
            raise InfeasibleError(f"{candidate.compact.algorithm} has {candidate.sends:,} sends; {most}")

    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        if gamma:
            raise InputError(f"model={self.name} knows what sums cost; leave gamma out")
        part, rates = self.part or schedule.topology, self._by_switches(schedule)
        if rates is not None and rates.nvls is not None:
            # The number of channels is for rings: those of NVLS have one of their own.
            terms = tuple(rates.terms("allreduce", part.ranks, size, NVLS, channels=1))
            passing = next(term.time_s for term in terms if term.limit == "nvls.byte") / total(terms)
            line, port_rate = rates.nvls, rates.nvls.port_rate(part.ranks, size)
            details: dict[str, Any] = {"library": f"NCCL {rates.version}", "channels": line.channels}
            details |= {"port_GBps": port_rate / 1e9, "measured_from_bytes": line.least(part.ranks)}
            details |= {"bottleneck_busy": passing, "constants": rates.origin_of(NVLS)}
            return Breakdown(terms, "the ports" if passing > 0.5 else "start and chunks", details)
        found = self.run(part, schedule, size)
        time = found.time
        terms = (
            Term("launch", time.launch_s, "between the launches of a kernel"),
            Term("steps", time.looking_s, "blocks step through their ops, also those whose turn comes later"),
            Term(f"bandwidth of {' or '.join(part.link_classes)}", time.ports_s, time.port),
            Term("waiting", time.steps_s, "that port waits for data on their way through blocks, flags and fences"),
        )
        names = ("launch", "steps", f"port {time.port}", "waiting for flags")
        _, longest = max(zip(terms, names, strict=True), key=lambda pair: pair[0].time_s)
        return Breakdown(terms, longest, self.details(found, schedule))

    def rank_best(self, contest: Contest, size: int) -> list[Projection]:
        """The projections; those that the closed form or three launches find slower are its own."""
        closed, listed = Estimated(self.protocol, self.calls).on(contest.topology), list[Projection]()
        for name in contest.candidates:
            with suppress(SlowerError):
                listed += closed.rank(contest.only(name), size)
                # If only the quickest counts, what is slower by its ports alone needs no estimate.
                closed.most_s = OF_THE_QUICKEST * min(p.time_s for p in listed) if contest.only_best else inf
        model, least, found = copy(self), dict[str, float](), list[Projection]()
        closed.most_s = OF_THE_QUICKEST * min(p.time_s for p in listed)
        for name in (p.algorithm for p in listed if "protocol" in p.details and p.time_s <= closed.most_s):
            runs = closed.estimates(contest.topology, contest.candidates[name].compact, size)
            least[name] = min(run.rates.launch_s + run.time.ports_s for run, _ in runs)
        # First whose port leaves most to win: its time spares the simulation of others.
        for projection in sorted(listed, key=lambda p: (least.get(p.algorithm, p.time_s), p.time_s)):
            name, time_s = projection.algorithm, projection.time_s
            model.most_s = found[0].time_s if found and "protocol" in projection.details else inf
            ahead = time_s < model.most_s or least.get(name, inf) <= SHORT_OF_PORTS * model.most_s
            try:
                near = ahead and time_s <= OF_THE_QUICKEST * model.most_s
                found += model.rank(contest.only(name), size) if near else [projection]
            except SlowerError:
                found.append(projection.raised(model.most_s, "what the formula leaves out"))
            found.sort(key=lambda projection: projection.time_s)
        return found

    def projection(self, **given: Any) -> Projection:
        return (NvlsProjection if "library" in given["details"] else ExecutionProjection)(**given)

    def _by_switches(self, schedule: Schedule) -> NcclRates | None:
        """NCCL's constants, if a schedule is an allreduce by NVLS and they say how long switches take for it."""
        part, named = self.part or schedule.topology, (schedule.algorithm, schedule.collective.name)
        adds = part.nodes == 1 and any(device.reads for device in part.devices)
        rates = part.nccl_rates if adds and named == (NVLS, "allreduce") else None
        return rates if rates is not None and rates.line_of(NVLS, "Simple", part.ranks) else None

    def run(self, part: Topology, schedule: Schedule, size: int) -> Run:
        """The program by the protocol, and of the calls, that take less time, simulated; raises `SlowerError` if
        none was."""
        found: list[Run] = []
        most_s, overstated = self.most_s, OVERSTATED[schedule.form][(size > 32 << 20) + (size > 128 << 20)]
        for estimate, times in self.estimates(part, schedule, size):
            if max(estimate.time.time_s / overstated, estimate.time.ports_s) <= most_s:
                with suppress(SlowerError):
                    found.append(times.simulate(schedule, size, estimate.protocol, most_s))
                    most_s = min(most_s, found[-1].time.time_s)
        best = min(found, key=lambda run: run.time.time_s, default=None)
        # One that did not end early although it is slower need not be the quickest of the program's.
        if best is None or best.time.time_s > self.most_s:
            raise SlowerError
        return best

    def estimates(self, part: Topology, schedule: Schedule, size: int) -> list[tuple[Run, ScheduleTimes]]:
        """The program by each protocol and of the calls that come into question, by formula, quickest first.

        Without those that take more than `most_s` by their ports alone; raises `SlowerError` if all do.
        """
        from blinksim.gpu.execution_time.closed_form import schedule_times
        from blinksim.gpu.programs.program import PROTOCOLS

        rates = part.execution
        if rates is None:
            raise InfeasibleError(f"model={self.name}: {uncovered(part)}; take model=alpha-beta")
        called = rates.job is not None and schedule.collective.name in ON_TREES
        usual: Sequence[CallsName] = ("successive", "graph") if called else ("successive",)
        timers = [schedule_times(rates, calls) for calls in ((self.calls,) if self.calls else usual)]
        fitting = PROTOCOLS if size <= MOST_PACKETS else PROTOCOLS[:1]
        every = product(timers, (self.protocol,) if self.protocol else fitting)
        ways = [(times, name) for times, name in every if times.least(schedule, size, name) <= self.most_s]
        if not ways:
            raise SlowerError
        found = ((times.estimate(schedule, size, name), times) for times, name in ways)
        return sorted(found, key=lambda pair: pair[0].time.time_s)

    def details(self, run: Run, schedule: Schedule) -> dict[str, Any]:
        """Further figures of a run, by name."""
        rates, error = run.rates, run.rates.error
        found = keyed(schedule, "bottleneck_busy steps", bottleneck_busy=run.time.ports_s / run.time.time_s)
        found |= keyed(run, "protocol staged slices piece_bytes calls")
        found["constants"] = rates.measured.words(rates.hardware, rates.gpus)
        if error is not None:
            found |= {"error_median": error.median, "error_p90": error.p90, "error": error.words()}
        return found


class Estimated(Executed):
    """As `Executed`, by the critical path of a program instead of its simulation: at once for any size."""

    name = "execution-closed"

    def run(self, part: Topology, schedule: Schedule, size: int) -> Run:
        return self.estimates(part, schedule, size)[0][0]

    rank_best = ScheduleModel.rank

    def details(self, run: Run, schedule: Schedule) -> dict[str, Any]:
        """Without the errors of the simulation, which are not those of the formula."""
        found = super().details(run, schedule)
        return {key: value for key, value in found.items() if not key.startswith("error")}


_CALLS = read_words("calls")


class ExecutionProjection(Projection):
    """A program's time on measured GPUs."""

    @property
    def executor(self) -> str:
        details = self.details
        protocol = "ll128 packets" if details["protocol"] == "ll128" else "simple, flags behind the data"
        return f"{protocol}; {details['slices']} slices, pieces of {format_size_about(details['piece_bytes'])}"

    @property
    def runs_as(self) -> str:
        how = "by blinksim.torch in a CUDA graph" if self.details["calls"] == "graph" else super().runs_as
        off = self.details["constants"].partition("may be off by ")[2]
        return how + f", by lent constants that may be off by {off}" * bool(off)

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

    own_facts = basis


class NvlsProjection(Projection):
    """The time of NVLS on GPUs whose switches add."""

    runs_as = "run by NCCL as NVLS"

    @property
    def own_facts(self) -> list[tuple[str, str]]:
        """Who runs it, how, and how well that is known."""
        details = self.details
        channels = f"{details['channels']} channels; " if details["channels"] else ""
        port = format_rate(details["port_GBps"] * 1e9)
        few = f"; nothing below {format_size(details['measured_from_bytes'])} was measured"
        known = details["constants"] + few * (self.size < details["measured_from_bytes"])
        return [("run by", f"NCCL, as NVLS: {channels}{port} through a port at this size"), ("constants", known)]


# Rates that nobody measured: who asks for them asks what the links allow.
_STATED = ("nominal", "nccl", "seed")
# Ports as measured carry less than the links of a data sheet, and not by more than this factor.
_MOST_STATED = 1.3


class Auto(ScheduleModel):
    """``execution`` where the machine's constants are known, else ``alpha-beta``; answers carry that name.

    Parameters
    ----------
    gamma : float
        As `AlphaBeta` takes it; what reducing costs is among the constants that were measured.
    protocol, calls : str, optional
        As `blinksim.timing.execution_model.Executed` takes them.
    """

    name = "auto"

    def __init__(
        self, gamma: float = 0.0, protocol: ProtocolName | None = None, calls: CallsName | None = None
    ) -> None:
        super().__init__(gamma)
        self.protocol, self.calls = protocol, calls

    def on(self, part: Topology) -> ScheduleModel:
        rates, stated = part.execution, part.rates.partition(" (")[0] in _STATED
        if rates is not None and not self.gamma and not stated and not uncovered(part):
            leaving = sum(float(link.bandwidth) for link in part.links if link.src == part.members[0])
            if 1 / _MOST_STATED <= leaving / rates.ports.out <= _MOST_STATED:
                return Executed(self.protocol, self.calls).on(part)
        if self.protocol is not None or self.calls is not None:
            none = f"{part.name} at {part.rates} rates has no constants of them; leave both out"
            raise InputError(f"protocol= and calls= are about programs on measured GPUs, and {none}")
        return AlphaBeta(self.gamma)

    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        return self.on(schedule.topology).breakdown(schedule, size, gamma)
