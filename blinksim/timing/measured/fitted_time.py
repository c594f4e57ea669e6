"""The time of a collective by a library, from constants that were fitted to measurements.

In this order: NCCL's constants of one node in the machine's file (`blinksim.timing.measured_constants`), constants
fitted to published tables of the machine (`blinksim.timing.measured.library_rates`), and the same two of its
nearest relative.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from blinksim.errors import InputError
from blinksim.formats.shipped.known_gpus import RECORDED
from blinksim.formats.shipped.machine_names import catalogue_file
from blinksim.graphs.connectivity import breadth_first
from blinksim.machines import load
from blinksim.nccl.tuner.tuner import Timing
from blinksim.results import Term, total
from blinksim.timing.measured import library_rates, public_tables
from blinksim.timing.measured.library_rates import CHOICE, EXCHANGES, ONE_NODE, choice_counts, scope_of, step_counts
from blinksim.timing.measured_constants import FitError, NcclRates
from blinksim.topology.graph import Topology

NCCL = "NCCL"


def catalogued(machine: Topology) -> str:
    """The name of a machine of the catalogue, as it is there; empty for one that was edited, and for any other."""
    if machine.edits or machine.loaded_from is None or machine.source.startswith(RECORDED):
        return ""
    with suppress(InputError):
        return catalogue_file(machine.loaded_from[0]).stem
    return ""


def relatives_of(name: str, lent: str = "rates") -> list[str]:
    """The machines that lend a machine of the catalogue what was measured on them, the nearest first."""
    near, _ = library_rates.relatives(lent).get(name, ("", ""))
    return [near, *relatives_of(near, lent)] if near else []


def kin_of(name: str) -> list[str]:
    """The other machines of the catalogue whose nodes have the same links, the nearest first."""
    lent = library_rates.relatives("times")
    pairs = {*((one, near) for one, (near, _) in lent.items()), *((near, one) for one, (near, _) in lent.items())}
    return [*breadth_first(name, lambda one: sorted(near for this, near in pairs if this == one))][1:]


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

    terms: they add up to it. origin: where the constants come from, in words. owner: the machine that they are of.
    error: of the times that they were fitted to.
    """

    terms: tuple[Term, ...]
    origin: str
    owner: str
    error: FitError | None

    @property
    def time_s(self) -> float:
        """Seconds."""
        return total(self.terms)


def library_time(
    name: str, nccl: NcclRates | None, job: LibraryJob, size: int, timing: Timing | None
) -> LibraryTime | None:
    """The time of a job of `size` bytes; None where no constants are near.

    name: of the machine in the catalogue, empty if it is not there. nccl: the constants in its file. timing:
    what NCCL would take, where its model says.
    """
    # Machines of the same board may have another network.
    relatives = [(near, load(near).nccl_rates) for near in relatives_of(name, "times") if job.nodes == 1]
    for candidate, own in ((name, nccl), *relatives):
        found = nccl_time(candidate, own, job, size, timing) or _by_tables(candidate, job, size, timing)
        if found is not None:
            lent = f"; of {candidate}, its nearest relative" if candidate != name else ""
            return replace(found, origin=f"{found.origin}{lent}")
    return None


def nccl_time(
    name: str, rates: NcclRates | None, job: LibraryJob, size: int, timing: Timing | None
) -> LibraryTime | None:
    """The time of a job on one node by NCCL's constants of a machine; None where they do not cover it."""
    # For two GPUs a switch changes nothing.
    near = job.nodes == 1 and (job.switched or job.ranks == 2)
    if rates is None or timing is None or not near or not job.library.startswith(NCCL):
        return None
    line = rates.line_of(timing.algorithm, timing.protocol, job.ranks, job.collective)
    if line is None:
        return None
    terms = tuple(rates.terms(job.collective, job.ranks, size, line, job.channels))
    return LibraryTime(terms, rates.origin_of(line), name, rates.error)


def _by_tables(name: str, job: LibraryJob, size: int, timing: Timing | None) -> LibraryTime | None:
    scope = scope_of(job.nodes, job.ranks)
    known = library_rates.all_rates().get((name, job.library.split()[0], scope), ())
    smallest = _smallest(name, scope, job.collective in EXCHANGES) if known else {}
    # Without a switch other numbers of GPUs of a node have other links.
    alike = job.switched or job.ranks // job.nodes in smallest
    # Below the smallest message that was measured libraries take other algorithms.
    if not alike or size < min(smallest.values(), default=0):
        return None
    for rates in known:
        least, most = rates.ranks
        if not least <= job.ranks <= most or (rates.form == CHOICE and timing is None):
            continue
        counts = step_counts(job.collective, job.ranks, job.nodes, size)
        if rates.form == CHOICE and timing is not None:
            counts = choice_counts(timing, job.collective, job.ranks, job.nodes, size)
        if rates.covers(counts):
            gpus = f"{least} to {most} GPUs" if most > least else f"{most} GPUs"
            where = "" if scope == ONE_NODE else f" on {scope}" if "GPU" not in scope else ", one a node"
            jobs = ", ".join((f"{gpus}{where}", *library_rates.forced(name)))
            origin = f"fitted to {rates.error.points} published times of {rates.machine}, {jobs}"
            return LibraryTime(tuple(rates.terms(counts)), origin, name, rates.error)
    return None


@cache
def _smallest(name: str, scope: str, exchange: bool) -> dict[int, int]:
    """Bytes of the smallest message that constants of such jobs know of, by how many GPUs of a node took part."""
    told = {part.set for part in library_rates.parts()}
    known, job = (cell for cell in public_tables.cells(name) if cell.set.name in told), (scope, exchange)
    alike = [one for one in known if (scope_of(one.nodes, one.gpus), one.collective in EXCHANGES) == job]
    return {cell.gpus // cell.nodes: cell.size for cell in sorted(alike, key=lambda cell: -cell.size)}
