"""Constants of NCCL and other libraries on a machine, fitted to published times, and the times that follow.

Of a job those count that come first: NCCL's constants of one node in the machine's file
(`blinksim.timing.measured_constants`), constants fitted to published tables of the machine, and the same two of its
nearest relative.

Two forms. `choice` is for NCCL: its own model chooses algorithm and protocol, and splits the time into a
latency and the time of the bytes; factors on both, by algorithm and protocol, fit it to the measurements.
`steps` counts the steps and the bytes of a ring, or of direct sends for alltoall, whatever the library does.
Both have a term that grows with the root of latency times bytes: pieces of the best size cost a pipeline of
depth d d * alpha + bytes / rate + 2 * sqrt(d * alpha * bytes / rate).

The tables are in ``models/usable``: `parts.csv` lists the published cells that constants were fitted to,
`constants.csv` the constants, `spreads.csv` the errors of predictions on the other cells, and `relatives.csv`
the machine that stands in for one without tables. ``validate/recipes/usable_rates.py`` makes constants and
spreads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np

from blinksim import data_files
from blinksim.errors import InputError
from blinksim.formats.shipped.known_gpus import RECORDED
from blinksim.formats.shipped.machine_names import catalogue_file
from blinksim.graphs.connectivity import breadth_first, grouped
from blinksim.machines import load
from blinksim.nccl.tuner.tuner import Timing
from blinksim.results import Term, total
from blinksim.textio.text_files import read_rows
from blinksim.timing.measured import public_tables
from blinksim.timing.measured_constants import ROUNDS, WORDS, FitError, NcclRates
from blinksim.topology.graph import Topology

Made = TypeVar("Made")

NCCL = "NCCL"

CHOICE, STEPS = FORMS = ("choice", "steps")
# The jobs that constants are for: adapters add up where several GPUs of a node use them.
ONE_NODE, SEVERAL, ALONE = SCOPES = ("one node", "several nodes", "one GPU a node")
EXCHANGES = ("alltoall", "gather", "scatter")


def scope_of(nodes: int, ranks: int) -> str:
    """Which of `SCOPES` a job is in.

    >>> scope_of(2, 16), scope_of(10, 10)
    ('several nodes', 'one GPU a node')
    """
    return ONE_NODE if nodes == 1 else SEVERAL if ranks > nodes else ALONE


@dataclass(frozen=True, slots=True)
class LibraryRates:
    """The constants of a library on a machine.

    Parameters
    ----------
    machine, library, scope, form : str
        Names of the catalogue and of the library, and entries of `SCOPES` and `FORMS`.
    ranks : tuple of int
        The smallest and the largest number of GPUs that were measured.
    constants : mapping of str to float
        By the names that `choice_counts` and `step_counts` give them: factors on what NCCL says, else
        seconds, seconds per byte, and for ``ramp`` seconds per root of a step's bytes.
    error : FitError
        Of the times that they were fitted to.

    Examples
    --------
    >>> known = {"rounds start": 2e-5, "rounds hop": 1e-6, "rounds bytes": 5e-12}
    >>> rates = LibraryRates("box", "RCCL", "one node", "steps", (8, 8), known, FitError(0.05, 0.1, 16))
    >>> [(term.name, round(1e6 * term.time_s)) for term in rates.terms(step_counts("allreduce", 8, 1, 2**24))]
    [('start', 20), ('steps', 14), ('bytes sent', 147)]
    """

    machine: str
    library: str
    scope: str
    form: str
    ranks: tuple[int, int]
    constants: Mapping[str, float]
    error: FitError

    def covers(self, counts: Mapping[str, float]) -> bool:
        """True if it is known how long the bytes take."""
        return any(name.endswith(" bytes") and name in self.constants for name in counts)

    def terms(self, counts: Mapping[str, float]) -> Iterator[Term]:
        """The addends of the time, each limited by the constant of its name."""
        for name, times in counts.items():
            if (time_s := self.constants.get(name, 0.0) * times) > 0:
                yield Term(WORDS[name.rpartition(" ")[2]], time_s, name)

    def time(self, counts: Mapping[str, float]) -> float:
        """The sum of `terms`, in seconds."""
        return total(self.terms(counts))


def choice_counts(timing: Timing, collective: str, ranks: int, nodes: int, size: int) -> dict[str, float]:
    """How often each constant counts where NCCL takes `timing`, for its latency and the rest of its time.

    >>> counts = choice_counts(Timing("tree", "LL", 2.1e-5, 2e-5, 1e8), "allreduce", 16, 4, 1024)
    >>> counts["tree LL latency"], counts["tree LL across"]
    (2e-05, 4.0)
    """
    key, latency_s = f"{timing.algorithm} {timing.protocol}", timing.latency_s
    bytes_s = max(0.0, timing.time_s - latency_s)
    counts = {f"{key} latency": latency_s, f"{key} bytes": bytes_s, f"{key} ramp": math.sqrt(latency_s * bytes_s)}
    if nodes > 1:
        rounds = ROUNDS.get(collective, 1) * (nodes - 1)
        counts[f"{key} across"] = rounds if timing.algorithm == "ring" else 2 * math.log2(nodes)
    if key == "ring Simple":
        counts[f"{key} turn"] = size / ranks
    return counts


def step_counts(collective: str, ranks: int, nodes: int, size: int) -> dict[str, float]:
    """How often each constant counts by steps and bytes.

    >>> step_counts("allgather", 4, 1, 4000)
    {'rounds start': 1.0, 'rounds hop': 3.0, 'rounds bytes': 3000.0, 'rounds ramp': 94.86832980505137}
    """
    if collective in EXCHANGES:
        # On one node what a rank keeps takes as long as what it sends: times of 2, 4 and 8 GPUs are the same.
        # Between nodes only what leaves them counts.
        key, steps, moved = "exchange", ranks - 1, size * (1.0 if nodes == 1 else 1 - 1 / nodes)
    elif collective in ROUNDS:
        key, steps = "rounds", ROUNDS[collective] * (ranks - 1)
        moved = size * steps / ranks
    else:
        key, steps, moved = "rooted", 1, float(size)
    counts = {f"{key} start": 1.0, f"{key} hop": float(steps), f"{key} bytes": moved}
    counts[f"{key} ramp"] = math.sqrt(steps * moved)
    if nodes > 1 and key == "rounds":
        counts[f"{key} across"] = ROUNDS[collective] * (nodes - 1.0)
    return counts


# --- the tables -----------------------------------------------------------------------------------------------------

# The name of all machines together in `spreads.csv`.
EVERY = "all"
AGAIN, EXPECTED = "again", "expected"
GUESSED = PREDICTED, LINKS, SENDS = "predicted", "links", "sends"
"""References for measured times: the median of runs of the job on other rigs, on one node also of machines
of the same links; times by constants of the machine, NCCL's own model, and what libraries do on the links at
nominal rates: chains and trees, or sends of single blocks. None knows the rig that the times are of. What is
guessed is multiplied by the middle of the ratios."""


def _table(name: str, make: Callable[[dict[str, str]], Made], what: str) -> list[Made]:
    path = data_files.folder("models") / "usable" / name
    return read_rows(path, make, what) if path.is_file() else []


_STEPS = _table("size_steps.csv", dict, "step of sizes")
# The sizes that `spreads.csv` tells apart: the first of each, in bytes, and its name.
SIZE_STEPS = tuple((int(row["least"]), row["name"]) for row in _STEPS)
# The middle of each of `SIZE_STEPS`; between them spreads are interpolated.
TURNS = tuple(int(row["middle"]) for row in _STEPS)


@dataclass(frozen=True, slots=True)
class Part:
    """Cells of a set that constants were fitted to.

    collectives, gpus: empty for all. least: bytes of the smallest. every: each so many-th size, in their
    order, 1 for all of them; the first of them is not the smallest size. constants: where they are.
    """

    set: str
    collectives: tuple[str, ...]
    gpus: tuple[int, ...]
    least: int
    every: int
    constants: str

    def holds(self, cell: public_tables.Cell, place: int) -> bool:
        """True for a cell of the part; place: its number among the sizes of its job, from 0."""
        return (
            cell.set.name == self.set
            and (not self.collectives or cell.collective in self.collectives)
            and (not self.gpus or cell.gpus in self.gpus)
            and cell.size >= self.least
            and place % self.every == self.every // 2
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """How measured times compare to predicted ones: low, middle and high are quantiles of their ratio.

    They are 5, 50 and 95 %, of runs on one node as the recipe has it, the ends where there are few cells; of
    all machines every one counts as much as any other.
    For what is `GUESSED` low and high are those of machines around what the others say of each, and the cells of the
    machine itself count as more machines, and lie inside. Eight in ten times of a left-out rig lie between them.
    """

    cells: int
    low: float
    middle: float
    high: float


Spreads: TypeAlias = dict[tuple[str, str], dict[tuple[str, str], Spread]]
"""By machine and reference, then by scope and sizes."""


@cache
def parts() -> tuple[Part, ...]:
    """All parts. Raises `FileError` with the line of a row that cannot be used."""

    def part(row: dict[str, str]) -> Part:
        which = tuple(row["collectives"].split()), tuple(map(int, row["gpus"].split()))
        return Part(row["set"], *which, int(row["least"]), int(row["every"]), row["constants"])

    return tuple(_table("parts.csv", part, "part of a table"))


@cache
def forced(machine: str) -> tuple[str, ...]:
    """What libraries were told to take in the tables that constants of a machine are fitted to, in words."""
    told = (public_tables.sets()[part.set] for part in parts())
    return tuple(sorted({one.algorithm for one in told if one.machine == machine and "forced" in one.algorithm}))


def fitted(cell: public_tables.Cell, place: int) -> bool:
    """True if constants were fitted to a cell; place: its number among the sizes of its job, from 0."""
    return any(part.holds(cell, place) for part in parts())


@cache
def all_rates() -> Mapping[tuple[str, str, str], tuple[LibraryRates, ...]]:
    """All constants by machine, library and scope, the better form first."""
    found: dict[tuple[str, str, str, str], LibraryRates] = {}

    def add(row: dict[str, str]) -> None:
        key = row["machine"], row["library"], row["scope"], row["form"]
        error = FitError(float(row["median"]), float(row["p90"]), int(row["cells"]))
        constants = {**(found[key].constants if key in found else {}), row["constant"]: float(row["value"])}
        found[key] = LibraryRates(*key, (int(row["least_gpus"]), int(row["most_gpus"])), constants, error)

    _table("constants.csv", add, "row of a constant")
    whose = grouped(((one.machine, one.library, one.scope), one) for one in found.values())
    return {who: tuple(rates) for who, rates in whose.items()}


@cache
def relatives(lent: str = "rates") -> dict[str, tuple[str, str]]:
    """The machine with tables that is nearest to one without, and why it is, by that one.

    lent: ``rates`` for the share of nominal rates that links reach; ``times`` for constants of the library, which only
    machines of the same links lend.
    """
    rows = _table("relatives.csv", dict, "relative")
    return {row["machine"]: (row["relative"], row["why"]) for row in rows if lent in ("rates", row["lends"])}


@cache
def spreads() -> Spreads:
    """All spreads by machine and reference, then by one each of `SCOPES` and `SIZE_STEPS`.

    `EVERY` stands for all machines together; a library for its own and those, by partial pooling.
    """
    return spreads_of(_table("spreads.csv", dict, "row of a spread"))


def spreads_of(rows: Iterable[Mapping[str, Any]]) -> Spreads:
    """Spreads by the rows of ``spreads.csv``."""
    found: Spreads = {}
    for row in rows:
        spread = Spread(int(row["cells"]), *(float(row[name]) for name in ("low", "middle", "high")))
        found.setdefault((row["machine"], row["what"]), {})[row["scope"], row["sizes"]] = spread
    return found


@lru_cache(maxsize=4096)
def spread_at(machine: str, library: str, network: str, what: str, scope: str, size: int) -> Spread:
    """How published times compare with a reference at a size, interpolated between the sizes of `SIZE_STEPS`.

    In each of these the nearest machines count of which any have cells: those of the library over the network, of the
    library, of the scope, all; and the machine itself, whose rows of what is `GUESSED` know of the others. References
    that were fitted to measurements have the middle 1, and an interval that holds both.
    """
    known = list[tuple[float, int, list[float]]]()
    for turn, (_, sizes) in zip(TURNS, SIZE_STEPS, strict=True):
        places = (f"{library} over {network}", scope), (library, scope), (EVERY, scope), (EVERY, SEVERAL)
        own, *others = (spreads().get((name, what), {}).get((of, sizes)) for name, of in ((machine, scope), *places))
        if near := next(filter(None, others), None):
            ends = own if own and what in GUESSED else near
            figures = [ends.low, ends.middle, ends.high]
            if what not in GUESSED:
                figures = [min(1, near.low, (own or near).low), 1.0, max(1, near.high, (own or near).high)]
            known.append((math.log(turn), near.cells, figures))
    at_sizes, cells, rows = zip(*known, strict=True)
    at = math.log(max(size, 1))
    return Spread(sum(cells), *(math.exp(np.interp(at, at_sizes, each)) for each in np.log(rows).T))


# --- times ------------------------------------------------------------------------------------------------------------


def catalogued(machine: Topology) -> str:
    """The name of a machine of the catalogue, as it is there; empty for one that was edited, and for any other."""
    if machine.edits or machine.loaded_from is None or machine.source.startswith(RECORDED):
        return ""
    with suppress(InputError):
        return catalogue_file(machine.loaded_from[0]).stem
    return ""


def relatives_of(name: str, lent: str = "rates") -> list[str]:
    """The machines that lend a machine of the catalogue what was measured on them, the nearest first."""
    near, _ = relatives(lent).get(name, ("", ""))
    return [near, *relatives_of(near, lent)] if near else []


def kin_of(name: str) -> list[str]:
    """The other machines of the catalogue whose nodes have the same links, the nearest first."""
    lent = relatives("times")
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
        found = nccl_time(candidate, own, job, size, timing)
        # What runs took that were told an algorithm says nothing of another that is picked.
        told = {word for one in forced(candidate) for word in one.removesuffix(" (forced)").split(", ")}
        if timing is None or told <= {timing.algorithm.capitalize(), timing.protocol}:
            found = found or _by_tables(candidate, job, size, timing)
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
    known = all_rates().get((name, job.library.split()[0], scope), ())
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
            jobs = ", ".join((f"{gpus}{where}", *forced(name)))
            origin = f"fitted to {rates.error.points} published times of {rates.machine}, {jobs}"
            return LibraryTime(tuple(rates.terms(counts)), origin, name, rates.error)
    return None


@cache
def _smallest(name: str, scope: str, exchange: bool) -> dict[int, int]:
    """Bytes of the smallest message that constants of such jobs know of, by how many GPUs of a node took part."""
    told = {part.set for part in parts()}
    known, job = (cell for cell in public_tables.cells(name) if cell.set.name in told), (scope, exchange)
    alike = [one for one in known if (scope_of(one.nodes, one.gpus), one.collective in EXCHANGES) == job]
    return {cell.gpus // cell.nodes: cell.size for cell in sorted(alike, key=lambda cell: -cell.size)}
