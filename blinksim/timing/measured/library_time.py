"""The real time of a collective by a library, and the interval around a prediction where measurements lie.

In this order: NCCL's constants of one node in the machine's file (`blinksim.timing.measured_constants`), constants
fitted to published tables of the machine (`blinksim.timing.measured.library_rates`), and the same two of its
nearest relative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from blinksim.errors import InputError
from blinksim.formats.shipped.machine_names import catalogue_file
from blinksim.machines import NOMINAL, load
from blinksim.nccl.tuner.tuner import Timing
from blinksim.results import Term, total
from blinksim.timing.measured import library_rates
from blinksim.timing.measured.library_rates import (
    CHOICE,
    EXPECTED,
    LINKS,
    ONE_NODE,
    Spread,
    choice_counts,
    scope_of,
    step_counts,
)
from blinksim.timing.measured_constants import NVLS, FitError, NcclRates
from blinksim.timing.projection_result import Projection
from blinksim.topology.graph import Topology
from blinksim.units import format_time

NCCL = "NCCL"
# Constants say nothing of jobs beyond this factor from those that were measured.
_REACH = 2


@dataclass(frozen=True, slots=True)
class Interval:
    """Where measured times lie: between `low_s` and `high_s`, `share` of them.

    cells: of how many published times that is known, None if not from those. machine: theirs, empty for all
    machines. relative: True if that is not the machine that was asked about.
    """

    low_s: float
    high_s: float
    share: str
    cells: int | None = None
    machine: str = ""
    relative: bool = False

    def words(self) -> str:
        """Such as ``4.4 ms to 5.3 ms: 8 in 10 of 57 published times of p5.48xlarge``."""
        return f"{format_time(self.low_s)} to {format_time(self.high_s)}: {self.share}"

    def keys(self, prefix: str) -> dict[str, Any]:
        """The keys for ``--json``; the name of the machine only where it is another one."""
        found = {f"{prefix}_low_s": self.low_s, f"{prefix}_high_s": self.high_s, f"{prefix}_share": self.share}
        found |= {} if self.cells is None else {f"{prefix}_cells": self.cells}
        return found | ({f"{prefix}_relative": self.machine} if self.relative and self.machine else {})

    @classmethod
    def of(cls, spread: Spread, time_s: float, asked: str) -> Interval:
        """That of a time on the machine `asked`, with a spread of measured over predicted times.

        It holds a time that is expected itself.
        """
        mine = "" if spread.machine == library_rates.EVERY else spread.machine
        whose = "" if mine == asked else ", its nearest relative" if mine else ""
        # Of other sizes and numbers of GPUs: that must not look like a measurement of what was asked.
        from_links = "all machines, as multiples of what links alone need"
        of = f"{spread.cells} published times of {mine or from_links}{whose}"
        share = f"8 in 10 of {of}" if spread.cells >= library_rates.MANY else f"all {of}"
        low, high = spread.low, spread.high
        if spread.what == EXPECTED:
            low, high = min(low, 1.0), max(high, 1.0)
        return cls(low * time_s, high * time_s, share, spread.cells, mine, mine != asked)

    @classmethod
    def within(cls, time_s: float, p90: float) -> Interval | None:
        """That of a time that nine in ten are off by at most the share `p90`."""
        return cls(time_s / (1 + p90), time_s / (1 - p90), "9 in 10 measured times") if p90 < 1 else None


def catalogued(machine: Topology) -> str:
    """The name of a machine of the catalogue, as it is there; empty for one that was edited, and for any other."""
    if machine.edits or machine.loaded_from is None:
        return ""
    try:
        return catalogue_file(machine.loaded_from[0]).stem
    except InputError:
        return ""


def relative_of(name: str) -> str:
    """The machine whose measurements stand in for those of a machine of the catalogue; empty if none is near."""
    return library_rates.relatives().get(name, ("", ""))[0]


def over_links(machine: Topology, projection: Projection) -> Interval | None:
    """Where times of libraries lie if the links alone need what a projection says.

    Those of the machine go before those of its nearest relative, and these before all. None at other than
    nominal rates, for traffic of unequal blocks, and for machines that are not in the catalogue or were
    edited.
    """
    name = catalogued(machine)
    if not name or machine.rates != NOMINAL or projection.collective.traffic is not None:
        return None
    scope = scope_of(machine.nodes, len(projection.members))
    for one in (name, relative_of(name), library_rates.EVERY):
        spread = library_rates.spread_of(one, LINKS, scope, projection.size)
        if spread is not None:
            return Interval.of(spread, projection.time_s, name)
    return None


@dataclass(frozen=True, slots=True)
class LibraryJob:
    """A collective by a library.

    collective: its name. channels: of NCCL's communicator. switched: True if switches inside the nodes join
    the GPUs.
    """

    collective: str
    ranks: int
    nodes: int
    library: str = NCCL
    channels: int = 0
    switched: bool = False


@dataclass(frozen=True, slots=True)
class LibraryTime:
    """A time by constants.

    terms: they add up to it. origin: where the constants come from, in words. machine: for which one they are
    taken, owner: whose they are. error: of the times that they were fitted to, None where nobody said.
    """

    terms: tuple[Term, ...]
    origin: str
    machine: str
    owner: str
    error: FitError | None
    by_tables: bool = False

    @property
    def time_s(self) -> float:
        """Seconds."""
        return total(self.terms)

    def interval(self, job: LibraryJob, size: int) -> Interval | None:
        """Where measured times lie, by the published ones that were not fitted.

        Those of the machine, of the one whose constants they are, and of all; where runs of NCCL were
        measured on the machine, their error goes before the other machines.
        """
        scope = scope_of(job.nodes, job.ranks)
        for name in (self.machine, self.owner, library_rates.EVERY):
            spread = library_rates.spread_of(name, EXPECTED, scope, size)
            if spread is not None:
                return Interval.of(spread, self.time_s, self.machine)
            if self.error is not None and not self.by_tables and name == self.machine == self.owner:
                return Interval.within(self.time_s, self.error.p90)
        return None


def library_time(
    name: str, nccl: NcclRates | None, job: LibraryJob, size: int, timing: Timing | None
) -> LibraryTime | None:
    """The time of a job of `size` bytes; None where no constants are near.

    name: of the machine in the catalogue, empty if it is not there. nccl: the constants in its file. timing:
    what NCCL would take, where its model says.
    """
    for candidate, own in ((name, nccl), *((near, _nccl_rates(near)) for near in (relative_of(name),) if near)):
        found = nccl_time(candidate, own, job, size, timing) or _by_tables(candidate, job, size, timing)
        if found is not None and candidate != name:
            return replace(found, machine=name, origin=f"{found.origin}; of {candidate}, its nearest relative")
        if found is not None:
            return found
    return None


@cache
def _nccl_rates(name: str) -> NcclRates | None:
    return load(name).nccl_rates


def nccl_time(
    name: str, rates: NcclRates | None, job: LibraryJob, size: int, timing: Timing | None
) -> LibraryTime | None:
    """The time of a job on one node by NCCL's constants of a machine; None where they do not cover it."""
    if rates is None or timing is None or job.nodes > 1 or not job.switched or not job.library.startswith(NCCL):
        return None
    line = rates.line_of(timing.algorithm, timing.protocol, job.ranks, job.collective)
    if line is None:
        return None
    terms = tuple(rates.terms(job.collective, job.ranks, size, line, job.channels))
    return LibraryTime(terms, rates.origin_of(line), name, name, rates.error if line != NVLS else None)


def _by_tables(name: str, job: LibraryJob, size: int, timing: Timing | None) -> LibraryTime | None:
    scope = scope_of(job.nodes, job.ranks)
    for rates in library_rates.rates(name, job.library.split()[0], scope) if name else ():
        least, most = rates.ranks
        if not least <= job.ranks * _REACH or not job.ranks <= most * _REACH:
            continue
        if rates.form != CHOICE:
            counts = step_counts(job.collective, job.ranks, job.nodes, size)
        elif timing is not None:
            counts = counts_of(job, size, timing)
        else:
            continue
        if rates.covers(counts):
            gpus = f"{least} to {most} GPUs" if most > least else f"{most} GPUs"
            where = "" if scope == ONE_NODE else f" on {scope}" if "GPU" not in scope else ", one a node"
            origin = f"fitted to {rates.error.points} published times of {rates.machine}, {gpus}{where}"
            return LibraryTime(tuple(rates.terms(counts)), origin, name, name, rates.error, True)
    return None


def counts_of(job: LibraryJob, size: int, timing: Timing) -> dict[str, float]:
    """`choice_counts` of a job of `size` bytes for which NCCL takes `timing`."""
    return choice_counts(
        timing.algorithm,
        timing.protocol,
        timing.latency_s,
        max(0.0, timing.time_s - timing.latency_s),
        ranks=job.ranks,
        nodes=job.nodes,
        size=size,
        collective=job.collective,
    )
