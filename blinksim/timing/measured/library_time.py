"""How long a library really takes: by constants of the machine where there are some, else by those of its relative.

In this order: NCCL's constants of one node in the machine's file (`blinksim.cost.nccl_rates`), constants fitted to
published tables of the machine (`blinksim.sources.usable_rates`), and the same two of its nearest relative.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from blinksim.cost.nccl_rates import NVLS, NcclRates
from blinksim.cost.origin import FitError
from blinksim.cost.terms import Term, total
from blinksim.machines import load
from blinksim.nccl.tuner.tuner import Timing
from blinksim.sources import usable_rates
from blinksim.sources.library_rates import CHOICE, ONE_NODE, LibraryRates, choice_counts, scope_of, step_counts
from blinksim.sources.usable_rates import EXPECTED
from blinksim.timing.measured.interval import Interval, relative_of

NCCL = "NCCL"
# Constants say nothing of jobs beyond this factor from those that were measured.
_REACH = 2


@dataclass(frozen=True, slots=True)
class LibraryJob:
    """A collective by a library.

    collective: its name. channels: of NCCL's communicator. switched: True if switches inside the nodes join the GPUs.
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

    terms: they add up to it. origin: where the constants come from, in words. machine: for which one they are taken,
    owner: whose they are. error: of the times that they were fitted to, None where nobody said.
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

        Those of the machine, of the one whose constants they are, and of all; where runs of NCCL were measured on the
        machine, their error goes before the other machines.
        """
        scope = scope_of(job.nodes, job.ranks)
        for name in (self.machine, self.owner, usable_rates.EVERY):
            spread = usable_rates.spread_of(name, EXPECTED, scope, size)
            if spread is not None:
                return Interval.of(spread, self.time_s, self.machine)
            if self.error is not None and not self.by_tables and name == self.machine == self.owner:
                return Interval.within(self.time_s, self.error.p90)
        return None


def library_time(
    name: str, nccl: NcclRates | None, job: LibraryJob, size: int, timing: Timing | None
) -> LibraryTime | None:
    """The time of a job of `size` bytes; None where no constants are near.

    name: of the machine in the catalogue, empty if it is not there. nccl: the constants in its file. timing: what NCCL
    would take, where its model says.
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
    for rates in usable_rates.rates(name, job.library.split()[0], scope) if name else ():
        if not rates.ranks[0] <= job.ranks * _REACH or not job.ranks <= rates.ranks[1] * _REACH:
            continue
        for counts in _counts(rates, job, size, timing):
            if rates.covers(counts):
                return LibraryTime(tuple(rates.terms(counts)), _words(rates), name, name, rates.error, True)
    return None


def _counts(rates: LibraryRates, job: LibraryJob, size: int, timing: Timing | None) -> Iterator[dict[str, float]]:
    if rates.form != CHOICE:
        yield step_counts(job.collective, job.ranks, job.nodes, size)
    elif timing is not None:
        yield counts_of(job, size, timing)


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


def _words(rates: LibraryRates) -> str:
    least, most = rates.ranks
    gpus = f"{least} to {most} GPUs" if most > least else f"{most} GPUs"
    where = "" if rates.scope == ONE_NODE else f" on {rates.scope}" if "GPU" not in rates.scope else ", one a node"
    return f"fitted to {rates.error.points} published times of {rates.machine}, {gpus}{where}"
