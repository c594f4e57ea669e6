"""Calibration of the constants of programs and of NCCL, from at most 40 runs on the GPUs of this machine.

What times the runs is handed in (`Clock`), so that everything but the launches also works without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any, Protocol

from blinksim.answers.logs.nccl_fit import STAND_IN, NcclFit, fit_nccl
from blinksim.answers.logs.series import Sample, Series
from blinksim.answers.measurements.execution_fit import Case, ExecutionFit, Map, fit_execution, here, plan
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.formats.rate_tables import RateTable
from blinksim.machines import load
from blinksim.results import Result, keyed
from blinksim.schedule.model import Schedule
from blinksim.timing.measured_constants import ExecutionRates, FlagRates, Origin, PacketRates
from blinksim.topology.graph import Topology
from blinksim.units import format_size, format_time

NCCL = "nccl"


class Clock(Protocol):
    """What times runs on GPUs.

    Attributes
    ----------
    hardware, driver, nccl_version : str
        Names of the GPUs and of what runs on them.
    gpus, blocks : int
        How many GPUs there are, and how many thread blocks each runs at once.
    """

    hardware: str
    driver: str
    nccl_version: str
    gpus: int
    blocks: int

    def time(self, schedule: Schedule, size: int, protocol: str, slices: int | None) -> Sequence[float]:
        """Seconds of successive iterations of a schedule on the first GPUs; size: bytes."""

    def time_nccl(self, gpus: int, collective: str, size: int) -> Sequence[float]:
        """Seconds of successive iterations of NCCL's own collective, without NVLS."""

    def close(self) -> None:
        """Ends what was begun on the GPUs."""


@dataclass(frozen=True)
class GpuCalibration(Result):
    """Constants of this machine's GPUs.

    Attributes
    ----------
    table : RateTable
        A rates file with the constants; links keep their rates.
    execution : ExecutionFit
        Of our programs.
    nccl : NcclFit, optional
        Of NCCL, where its rings run over the switches.
    measured : tuple
        Each case with its median time in seconds.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.load("hgx-h200").nccl_rates.gpus
    (2, 3, 4, 6, 8)
    """

    table: RateTable
    execution: ExecutionFit
    nccl: NcclFit | None
    measured: tuple[tuple[Case, float], ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row per constant of ours: its value with the interval of 95 %, in seconds or bytes/s."""
        return [keyed(one, "constant=name value low high before") for one in self.execution.constants]

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        ran = "gpus collective algorithm protocol size_bytes=used"
        runs = [keyed(case, ran) | {"time_s": time} for case, time in self.measured]
        keys = "name=table.name measurements rows kept=execution.kept median_error=execution.error.median"
        keys += " p90_error=execution.error.p90 runs"
        said = keyed(self, keys, measurements=len(self.measured), rows=self.rows(), runs=runs)
        return said | ({NCCL: self.nccl.to_dict()} if self.nccl is not None else {})

    def __repr__(self) -> str:
        return f"<GpuCalibration {self.table.name}: {len(self.measured)} runs, {self.execution.error.words()}>"


def calibrate_gpus(
    clock: Clock,
    machine: Topology,
    *,
    date: str = "",
    report: Callable[[str], None] | None = None,
    evaluate: Map = here,
) -> GpuCalibration:
    """Times at most 40 runs and fits the constants of our programs and of NCCL to them.

    Parameters
    ----------
    clock : Clock
        What times them.
    machine : Topology
        The GPUs, at least as many as the clock has, around one switch.
    date : str
        The day, such as ``2026-11-20``.
    report : callable, optional
        Called with a progress message.
    evaluate : Map
        What predicts many runs: in this process, or in several.

    Returns
    -------
    GpuCalibration
        The constants with their intervals, and how well they fit.

    Raises
    ------
    InputError
        For fewer than two GPUs, and where half of the times stay more than 8 % off.
    """
    say = report or (lambda message: None)
    if clock.gpus < 2 or machine.ranks < clock.gpus:
        raise InputError(f"{machine.name} has {machine.ranks} GPUs and {clock.gpus} are here; two or more must be both")
    measured: list[tuple[Case, float]] = []
    for case in plan(clock.gpus):
        say(f"timing {case.algorithm} {case.collective} of {format_size(case.size)} on {case.gpus} GPUs")
        if case.algorithm == NCCL:
            times = clock.time_nccl(case.gpus, case.collective, case.used)
        else:
            times = clock.time(case.schedule, case.used, case.protocol, case.slices)
        measured.append((case, median(times)))
    origin = Origin("blinksim calibrate on these GPUs", date, clock.driver)
    say("fitting the constants of programs")
    ours = [(case, time) for case, time in measured if case.algorithm != NCCL]
    # The machine's own constants to start from, else those of H200 for links of this rate.
    begun = machine.execution
    if begun is None:
        known = load(STAND_IN)
        assert known.execution is not None
        begun = derived(known.execution, _port(machine) / _port(known))
    start = replace(begun, hardware=clock.hardware, measured=origin, blocks=clock.blocks)
    execution = fit_execution([case for case, _ in ours], [time for _, time in ours], start, evaluate)
    series: dict[tuple[int, str], list[Sample]] = {}
    for case, time in measured:
        if case.algorithm == NCCL:
            series.setdefault((case.gpus, case.collective), []).append(Sample(case.used, time))
    logs = [
        Series(machine.select(machine.members[:gpus]), Collective(collective), tuple(samples))
        for (gpus, collective), samples in series.items()
    ]
    nccl = fit_nccl(logs, version=clock.nccl_version)
    rates = None if nccl is None else replace(nccl.rates, hardware=clock.hardware, measured=origin)
    name = f"measured-{date}" if date else "measured"
    table = RateTable(name, {}, machine.name, origin.source, execution.rates, rates)
    return GpuCalibration(table, execution, nccl, tuple(measured))


def derived(rates: ExecutionRates, ports: float, slower: float = 1.0) -> ExecutionRates:
    """Constants of programs for GPUs that nobody measured, from those of others.

    ports: how many times the bandwidth they have. slower: how many times as long their clocks make
    everything.

    >>> import blinksim as bs
    >>> known = bs.load("hgx-h200").execution
    >>> round(derived(known, 300 / 450, 1.4).ports.out / 1e9)
    245
    """

    def times(of: ExecutionRates | PacketRates | FlagRates) -> dict[str, Any]:
        return {one.name: getattr(of, one.name) * slower for one in fields(of) if one.name.endswith("_s")}

    scaled = replace(rates.ports, out=rates.ports.out * ports, into=rates.ports.into * ports)
    packets, flags = replace(rates.packets, **times(rates.packets)), replace(rates.flags, **times(rates.flags))
    return replace(rates, **times(rates), ports=scaled, packets=packets, flags=flags, error=None)


def _port(machine: Topology) -> float:
    """Bytes/s out of the first GPU over the links of collectives."""
    part = machine.select()
    first = part.members[0]
    return float(sum(link.bandwidth for link in part.links if link.src == first))


def times_words(found: GpuCalibration) -> list[str]:
    """The runs that the constants miss most, worst first, as lines of text."""
    ours = [(case, time) for case, time in found.measured if case.algorithm != NCCL]
    rows = [(p / time - 1, case, time) for (case, time), p in zip(ours, found.execution.predicted, strict=True)]
    worst = sorted(rows, key=lambda row: -abs(row[0]))[:3]
    return [
        f"{case.algorithm} {case.collective} of {format_size(case.size)} on {case.gpus} GPUs, {case.protocol}: "
        f"{format_time(time)}, predicted {100 * off:+.1f} %"
        for off, case, time in worst
    ]
