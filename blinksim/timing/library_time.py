"""How long a library really takes: by constants of the machine where there are some, else by those of its relative.

In this order: NCCL's constants of one node in the machine's file (`blinksim.cost.nccl_rates`), constants fitted to
published tables of the machine (`blinksim.sources.usable_rates`), and the same two of its nearest relative.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from blinksim.cost.nccl_rates import NVLS, NcclRates
from blinksim.cost.origin import FitError
from blinksim.cost.terms import Term, total
from blinksim.errors import InputError
from blinksim.formats.shipped.machine_names import catalogue_file
from blinksim.machines import load
from blinksim.nccl.tuner.tuner import Timing
from blinksim.sources import usable_rates
from blinksim.sources.library_rates import CHOICE, ONE_NODE, LibraryRates, choice_counts, scope_of, step_counts
from blinksim.topology.graph import Topology

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

    terms: they add up to it. origin: where the constants come from, in words. machine: whose they are. error: of the
    times that they were fitted to, None where nobody said.
    """

    terms: tuple[Term, ...]
    origin: str
    machine: str
    error: FitError | None

    @property
    def time_s(self) -> float:
        """Seconds."""
        return total(self.terms)


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
    found = usable_rates.relative(name)
    return "" if found is None else found[0]


def library_time(
    name: str, nccl: NcclRates | None, job: LibraryJob, size: int, timing: Timing | None
) -> LibraryTime | None:
    """The time of a job of `size` bytes; None where no constants are near.

    name: of the machine in the catalogue, empty if it is not there. nccl: the constants in its file. timing: what NCCL
    would take, where its model says.
    """
    for candidate, own in ((name, nccl), *((near, _nccl_rates(near)) for near in (relative_of(name),) if near)):
        found = nccl_time(candidate, own, job, size, timing) or _by_tables(candidate, job, size, timing)
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
    return LibraryTime(terms, rates.origin_of(line), name, rates.error if line != NVLS else None)


def _by_tables(name: str, job: LibraryJob, size: int, timing: Timing | None) -> LibraryTime | None:
    scope = scope_of(job.nodes, job.ranks)
    for rates in usable_rates.rates(name, job.library.split()[0], scope) if name else ():
        if not rates.ranks[0] <= job.ranks * _REACH or not job.ranks <= rates.ranks[1] * _REACH:
            continue
        for counts in _counts(rates, job, size, timing):
            if rates.covers(counts):
                return LibraryTime(tuple(rates.terms(counts)), _words(rates), name, rates.error)
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
