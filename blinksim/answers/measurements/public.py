"""Published times of a machine, each beside a model's time and the bound; Aurora's beside its projection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from operator import attrgetter
from statistics import median, quantiles
from typing import Any

from blinksim import data_files
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError, each_of
from blinksim.formats.shipped.machine_names import catalogue_file
from blinksim.graphs import connectivity
from blinksim.machines import Question, load
from blinksim.nccl.tuner.tuner import COLLECTIVES, Timing, nearest
from blinksim.results import Result, count, keyed, table, total
from blinksim.textio.text_files import read_rows
from blinksim.timing.library_model import Library
from blinksim.timing.measured import library_rates, public_tables
from blinksim.timing.measured.library_rates import NCCL, LibraryJob, LibraryTime, library_time
from blinksim.timing.measured.public_tables import BANDS, Cell, Set, band_of
from blinksim.timing.projection import equations, load_preset
from blinksim.timing.projection_result import Ceiling
from blinksim.units import format_rate, format_size, format_time, parse_size

# The machine whose published times stand beside a projection, and where both are published.
PROJECTED, SOURCE = "aurora", "Aurora allreduce projection, 2025; models/aurora-projected.csv"
_HEADING = ("nodes", "ranks a node", "size", "measured ms", "model ms", "printed", "efficiency", "printed", "note")


@dataclass(frozen=True, slots=True)
class ProjectedCell:
    """A cell of a table of the Aurora projection: times in milliseconds and the efficiency in percent as printed.

    size: bytes. flags: what is wrong with the cell (`model-slip`, `efficiency-inconsistent`,
    `efficiency-rounding`).
    """

    table: str
    equation: str
    preset: str
    nodes: int
    ranks_per_node: int
    size: int
    model_ms: float
    measured_ms: float
    efficiency_pct: str
    flags: tuple[str, ...]
    note: str

    @property
    def place(self) -> str:
        """Such as ``2 nodes, 12 ranks each``."""
        return f"{count(self.nodes, 'node')}, {count(self.ranks_per_node, 'rank')}{' each' * (self.nodes > 1)}"

    @property
    def time_ms(self) -> float:
        """The time that the equations of its preset give."""
        return 1e3 * total(equations(load_preset(self.preset), self.size, self.nodes, self.ranks_per_node))

    @property
    def reached_pct(self) -> float:
        """That time as a percentage of the measured one."""
        return 100 * self.time_ms / self.measured_ms

    @classmethod
    def of(cls, times: dict[tuple[int, int, int], float], row: dict[str, str]) -> ProjectedCell:
        """The cell of a row of ``models/aurora-projected.csv``.

        times: measured ms by nodes, ranks and bytes.
        """
        nodes, ranks, size = int(row["nodes"]), int(row["ranks_per_node"]), parse_size(row["size"])
        found: Any = dict(row, nodes=nodes, ranks_per_node=ranks, size=size, flags=tuple(row["flags"].split()))
        model_ms, measured_ms = float(row["model_ms"]), times[nodes, nodes * ranks, size]
        return cls(**found | {"model_ms": model_ms, "measured_ms": measured_ms})


@cache
def projected_cells() -> tuple[ProjectedCell, ...]:
    """The published cells of the Aurora projection, in the order of its tables."""
    path = data_files.folder("models") / "aurora-projected.csv"
    # To six digits: as they were printed.
    known = public_tables.cells(PROJECTED)
    times = {(one.nodes, one.gpus, one.size): float(f"{1e3 * one.time_s:.6g}") for one in known}
    return tuple(read_rows(path, partial(ProjectedCell.of, times), "cell of a projection"))


@dataclass(frozen=True, repr=False)
class Measured(Result):
    """The published cells of Aurora, each beside its projection.

    Attributes
    ----------
    machine : str
        ``aurora``.
    cells : tuple of ProjectedCell
        In the order of the published tables.

    Examples
    --------
    >>> import blinksim as bs
    >>> row = bs.measured("aurora").rows()[0]
    >>> row["nodes"], round(row["model_ms"], 1), row["measured_ms"]
    (2, 108.7, 402.7)
    """

    machine: str
    cells: tuple[ProjectedCell, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell; times in milliseconds, as published."""
        return [keyed(found, "@Measured.rows", collective="allreduce") for found in self.cells]

    def to_dict(self) -> dict[str, Any]:
        """The rows and their source."""
        return {"machine": self.machine, "source": SOURCE, "rows": self.rows()}

    def sentence(self) -> str:
        """The answer in one line."""
        shares = [cell.reached_pct for cell in self.cells]
        reach = f"{min(shares):.3g} to {max(shares):.3g} % of what the model allows"
        # A table with other rates of the model has the measurements of one before it again.
        distinct = {(one.nodes, one.ranks_per_node, one.size, one.measured_ms) for one in self.cells}
        return f"{self.machine}: {len(distinct)} published measurements, printed {len(self.cells)} times, reach {reach}"

    def text(self) -> str:
        """The sentence, a table for each published table, and the source."""
        lines = [self.sentence()]
        for name in dict.fromkeys(found.table for found in self.cells):
            cells = list[list[str]]()
            for one in (one for one in self.cells if one.table == name):
                times = f"{one.measured_ms:g} {one.time_ms:.4g} {one.model_ms:g}".split()
                row = [str(one.nodes), str(one.ranks_per_node), format_size(one.size), *times]
                cells.append([*row, f"{one.reached_pct:.3g} %", f"{one.efficiency_pct} %", one.note])
            lines += [f"\n{name}", table(_HEADING, cells, left=(8,))]
        return "\n".join([*lines, f"\n  source: {SOURCE}"])


def measured(machine: str, quality: str = "ABCD") -> Measured | PublicMeasurements:
    """The published measurements of a machine, beside the times of the models.

    Parameters
    ----------
    machine : str
        A machine of the catalogue of which there are tables, by any of its names; `public_tables.machines`
        lists them.
    quality : str
        Which tables to take: A, whole ones with machine and number of GPUs; B, with something derived; C,
        excerpts; D, reports of what is slow.

    Returns
    -------
    PublicMeasurements or Measured
        One row per published cell: time, NCCL's prediction for itself where NCCL ran, and the bound. For
        Aurora a `Measured`, beside the times of its preset.

    Raises
    ------
    InputError
        For machines without published tables.

    Examples
    --------
    >>> import blinksim as bs
    >>> len(bs.measured("aurora").rows())
    29
    >>> row = bs.measured("p6-b200").rows()[-1]
    >>> row["collective"], row["gpus"], round(row["busbw_GBps"])
    ('allreduce', 8, 682)
    """
    name, known = catalogue_file(machine).stem, public_tables.machines()
    if name not in known:
        near = library_rates.relatives().get(name)
        cure = f"the nearest machine with some is {near[0]}; " if near else ""
        raise InputError(f"no published times of {name}; {cure}there are those of {', '.join(known)}")
    return Measured(name, projected_cells()) if name == PROJECTED else public_measurements(name, quality)


_SHOWN_STEP = 16


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    """The items by their keys, in the order in which keys first come."""
    return list(connectivity.grouped((key(item), item) for item in items).items())


def job_of(cell: Cell) -> tuple[Any, ...]:
    """The key that cells of one curve share."""
    return cell.set, cell.collective, cell.nodes, cell.gpus, cell.placement, cell.nvls


def with_places(cells: Sequence[Cell]) -> list[tuple[Cell, bool]]:
    """The cells in their order, each with whether constants were fitted to it."""
    fitted: dict[int, bool] = {}
    for _, alike in grouped(cells, job_of):
        for place, cell in enumerate(sorted(alike, key=lambda cell: cell.size)):
            fitted[id(cell)] = library_rates.fitted(cell, place)
    return [(cell, fitted[id(cell)]) for cell in cells]


def question_of(machine: str, cell: Cell) -> Question:
    """The part of the machine that took part."""
    each = cell.gpus // cell.nodes
    members = cell.set.members or (None if cell.nodes > 1 else f"0-{each - 1}" if each > 1 else "0")
    return Question(machine, nodes=cell.nodes, members=members, ranks_per_node=None if members else each)


class Jobs:
    """The jobs of a machine; what NCCL finds for the same GPUs is searched for once, and so are bounds."""

    def __init__(self, machine: str) -> None:
        self.machine, self.rates = machine, load(machine).nccl_rates
        self._library = cache(lambda question, **how: Library(**how).at(question)[0])

    def library(self, cell: Cell, adds: bool) -> Library:
        """The library's model for the GPUs of a cell. adds: switches may add."""
        return self._library(question_of(self.machine, cell), version=nearest(cell.set.version), multicast=adds)

    def bound(self, cell: Cell) -> Ceiling | None:
        """The bound at nominal rates; switches do what their file says that they can, unless they were set not to."""
        adds = cell.nvls in ("on", "unknown") and cell.adds_in_switches
        try:
            return self.library(cell, adds).bounded(Collective(cell.collective))[2]
        except BlinksimError:
            return None

    def nccl_takes(self, cell: Cell) -> Timing | None:
        """The time that NCCL's own model chooses, or that of a forced algorithm; None where it says nothing."""
        own = cell.set.library.startswith(NCCL)
        plan = self.library(cell, cell.adds_in_switches).prediction if own else None
        if plan is None or cell.collective not in COLLECTIVES:
            return None
        forced = cell.set.algorithm.replace(" (forced)", "").replace(", ", "/").lower()
        timed = plan.times(cell.collective, cell.size)
        if forced and "(default)" not in forced:
            timed = [one for one in timed if f"{one.algorithm}/{one.protocol}".lower().startswith(forced)]
        return min(timed, key=lambda one: one.time_s, default=None)

    def job(self, cell: Cell) -> LibraryJob:
        """The job of a cell."""
        job = self.library(cell, cell.adds_in_switches).job
        return replace(job, collective=cell.collective, nodes=cell.nodes, library=cell.set.library)


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """A cell beside the model.

    predicted_s: what NCCL's own model says that NCCL's choice takes, None where another library ran or
    nothing is predicted; choice: that choice, such as ``ring/Simple``. expected: the time by constants that
    were fitted to measurements of this machine or of its relative. fitted: True if this cell was among them.
    """

    cell: Cell
    bound: Ceiling | None
    predicted_s: float | None = None
    choice: str = ""
    expected: LibraryTime | None = None
    fitted: bool = False

    @property
    def error_pct(self) -> float | None:
        """By how much the predicted time is above the measured one."""
        return None if self.predicted_s is None else 100 * (self.predicted_s / self.cell.time_s - 1)

    @property
    def expected_s(self) -> float | None:
        """Seconds by constants, no fewer than the bound allows."""
        least = self.cell.size / float(self.bound.rate) if self.bound else 0.0
        return None if self.expected is None else max(least, self.expected.time_s)

    @property
    def expected_error_pct(self) -> float | None:
        """By how much the time by constants is above the measured one."""
        return None if self.expected_s is None else 100 * (self.expected_s / self.cell.time_s - 1)

    @property
    def best_error_pct(self) -> float | None:
        """`expected_error_pct`, or where no constants are known `error_pct`."""
        return self.error_pct if self.expected is None else self.expected_error_pct

    @property
    def of_bound_pct(self) -> float | None:
        """The measured rate as a share of the bound."""
        return None if self.bound is None else 100 * self.cell.size / self.cell.time_s / float(self.bound.rate)

    @property
    def band(self) -> str:
        """Which of `BANDS` its size is in."""
        return band_of(self.cell.size)


@dataclass(frozen=True, repr=False)
class PublicMeasurements(Result):
    """The published cells of a machine, each beside prediction and bound.

    Attributes
    ----------
    machine : str
        A name of the catalogue.
    cells : tuple of MeasuredCell
        In the order of the tables.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.measured("gb300-nvl72")
    >>> found.rows()[0]["set"], round(found.rows()[0]["busbw_GBps"])
    ('oci-gb300-n4-ar', 681)
    """

    machine: str
    cells: tuple[MeasuredCell, ...]

    @cached_property
    def sets(self) -> tuple[Set, ...]:
        """The sets of measurements that the cells come from."""
        return tuple(dict.fromkeys(found.cell.set for found in self.cells))

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell; rates are algbw unless the key says busbw."""
        by = (found.expected.origin if found.expected else "" for found in self.cells)
        pairs = zip(self.cells, by, strict=True)
        return [keyed(found, "@PublicMeasurements.rows", expected_by=origin) for found, origin in pairs]

    def summary(self) -> list[dict[str, Any]]:
        """By set, collective, GPUs and band of sizes: the number of cells and the error of the prediction."""
        keys, rows = "set=cell.set.name collective=cell.collective nodes=cell.nodes gpus=cell.gpus band", []
        for _, cells in grouped(self.cells, lambda found: (*job_of(found.cell)[:4], found.band)):
            best = {"best_busbw_GBps": max(found.cell.busbw for found in cells) / 1e9}
            best["best_of_bound_pct"] = max(found.of_bound_pct or 0 for found in cells)
            errors = _spread([found.error_pct for found in cells if found.error_pct is not None])
            rows.append(keyed(cells[0], keys) | {"cells": len(cells)} | best | errors)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The cells, the summary, and the sources."""
        sources = [keyed(one, "@PublicMeasurements.sets") for one in self.sets]
        return {"machine": self.machine, "rows": self.rows(), "summary": self.summary(), "sets": sources}

    def sentence(self) -> str:
        """The answer in one line."""
        parts = [f"{self.machine}: {count(len(self.cells), 'published cell')} from {count(len(self.sets), 'set')}"]
        fresh = [abs(found.expected_error_pct) for found in self.judged if found.expected_error_pct is not None]
        own = [abs(found.error_pct) for found in self.cells if found.error_pct is not None]
        if fresh:
            parts.append(f"median error {_pct(median(fresh))} on {count(len(fresh), 'held-out cell')}")
        if own:
            parts.append(f"median error of NCCL's own model {_pct(median(own))} on {len(own)}")
        return "; ".join(parts)

    @property
    def judged(self) -> tuple[MeasuredCell, ...]:
        """The cells that no constants were fitted to."""
        return tuple(found for found in self.cells if not found.fitted)

    def text(self) -> str:
        """The sentence, how wrong predictions are by size, cells of every sixteenth size, and the sources."""
        lines = [self.sentence()]
        if any(found.best_error_pct is not None for found in self.cells):
            lines += ["", self._accuracy()]
        for one, mine in grouped(self.cells, attrgetter("cell.set")):
            ran = f"{one.library} {one.version}".strip()
            algorithm = f", {one.algorithm}" if one.algorithm else ""
            lines += ["", f"{one.name}: {ran}{algorithm}; quality {one.quality}", f"  {one.source}", self._table(mine)]
        used = {one.quality for one in self.sets}
        letters = [f"{letter}: {said}" for letter, said in public_tables.QUALITIES.items() if letter in used]
        lines += ["", f"  quality   {'; '.join(letters)}"]
        granted = {word for found in self.cells if found.bound is not None for word in found.bound.granted}
        lines += [f"  bounds    where {word}" for word in sorted(granted)]
        origins = dict.fromkeys(found.expected.origin for found in self.cells if found.expected is not None)
        lines += [f"  {'' if place else 'expected':<8}  by constants {words}" for place, words in enumerate(origins)]
        if any(found.fitted for found in self.cells):
            lines.append("  *         a cell that constants were fitted to")
        return "\n".join(lines)

    def _accuracy(self) -> str:
        """How wrong the predictions are, by size."""
        rows = []
        for name, pairs in (
            ("constants", [(found.band, found.expected_error_pct) for found in self.judged]),
            ("their fit", [(found.band, found.expected_error_pct) for found in self.cells if found.fitted]),
            ("NCCL itself", [(found.band, found.error_pct) for found in self.cells]),
        ):
            for _, band in BANDS:
                if errors := [error for where, error in pairs if where == band and error is not None]:
                    rows.append((band, name, str(len(errors)), *map(_pct, _spread(errors).values())))
        heading = ("size", "predicted by", "cells", "median error", "median absolute error", "90th percentile")
        return table(heading, rows, left=(0, 1))

    def _table(self, cells: Sequence[MeasuredCell]) -> str:
        shown = []
        jobs = grouped(cells, lambda found: (*job_of(found.cell)[:4], found.cell.nvls == "off"))
        for (_, collective, nodes, gpus, off), alike in jobs:
            # The largest size and those that are each a sixteenth of the next, of cells that were not fitted,
            # if any.
            chosen: list[MeasuredCell] = []
            judged = [found for found in alike if not found.fitted]
            for found in sorted(judged or alike, key=lambda found: -found.cell.size):
                if not chosen or found.cell.size * _SHOWN_STEP <= chosen[-1].cell.size:
                    chosen.append(found)
            for found in reversed(chosen):
                cell, mark = found.cell, "*" if found.fitted and found.expected is not None else ""
                times = [None if time is None else format_time(time) for time in (found.expected_s, found.predicted_s)]
                row = [f"{collective}, NVLS off" if off else collective, f"{gpus} on {count(nodes, 'node')}"]
                row += [format_size(cell.size), format_time(cell.time_s), format_rate(cell.busbw), times[0] or "-"]
                row += [_pct(found.expected_error_pct, "+.1f") + mark, times[1] or "-", _pct(found.error_pct, "+.1f")]
                shown.append([*row, found.choice or "-", _pct(found.of_bound_pct, ".3g")])
        heading = ["collective", "GPUs", "size", "measured", "busbw", "expected", "error"]
        heading += ["library says", "error", "choice", "of the bound"]
        return table(heading, shown, left=(0, 1, 9))


def public_measurements(machine: str, quality: str = "ABCD", *, predict: bool = True) -> PublicMeasurements:
    """The published measurements of a machine of the catalogue; see `blinksim.measured`.

    quality: which letters of `QUALITIES` to take; predict: also what NCCL predicts for itself. Raises
    `InputError` for machines without tables, and for other letters.
    """
    each_of("quality", quality, public_tables.QUALITIES)
    pairs = [pair for pair in with_places(public_tables.cells(machine)) if pair[0].set.quality in quality]
    if not pairs:
        raise InputError(f"{machine} has no published measurements of quality {quality}")
    jobs, cells = Jobs(machine), list[MeasuredCell]()
    for cell, fitted in pairs:
        takes = jobs.nccl_takes(cell) if predict else None
        predicted, choice = (takes.time_s, f"{takes.algorithm}/{takes.protocol}") if takes else (None, "")
        expected = library_time(machine, jobs.rates, jobs.job(cell), cell.size, takes) if predict else None
        cells.append(MeasuredCell(cell, jobs.bound(cell), predicted, choice, expected, fitted))
    return PublicMeasurements(machine, tuple(cells))


def _spread(errors: list[float]) -> dict[str, float | None]:
    """Median of the errors and of their sizes, and what nine of ten stay below."""
    sizes = [abs(error) for error in errors]
    ninth = quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else max(sizes, default=None)
    middle, of_sizes = (median(each) if each else None for each in (errors, sizes))
    return {"median_error_pct": middle, "median_size_of_error_pct": of_sizes, "nine_of_ten_below_pct": ninth}


def _pct(percent: float | None, how: str = ".1f") -> str:
    return "-" if percent is None else f"{percent:{how}} %"
