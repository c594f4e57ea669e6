"""Public measurements on a machine, beside NCCL's expected time and the bound of any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, quantiles
from typing import Any

from blinksim.answers.measurements.public_jobs import Jobs, grouped, with_places
from blinksim.errors import InputError, unknown
from blinksim.results import Result
from blinksim.textio.text_table import count, table
from blinksim.timing.measured import public_tables
from blinksim.timing.measured.library_time import LibraryTime
from blinksim.timing.measured.public_tables import BANDS, Cell, Set, band_of
from blinksim.timing.projection_result import Ceiling
from blinksim.units import format_rate, format_size, format_time

_SHOWN_STEP = 16


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """A cell beside the model.

    predicted_s: what NCCL's own model says that NCCL's choice takes, None where another library ran or nothing is
    predicted; choice: that choice, such as ``ring/Simple``. expected: the time by constants that were fitted to
    measurements of this machine or of its relative. fitted: True if this cell was among them.
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
        """Seconds by constants."""
        return None if self.expected is None else self.expected.time_s

    @property
    def expected_error_pct(self) -> float | None:
        """By how much the time by constants is above the measured one."""
        return None if self.expected is None else 100 * (self.expected.time_s / self.cell.time_s - 1)

    @property
    def best_error_pct(self) -> float | None:
        """`expected_error_pct`, or where no constants are known `error_pct`."""
        return self.error_pct if self.expected is None else self.expected_error_pct

    @property
    def of_bound_pct(self) -> float | None:
        """The measured rate as a share of the bound."""
        if self.bound is None:
            return None
        return 100 * self.cell.size / self.cell.time_s / float(self.bound.rate)

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
        return [
            {
                "set": found.cell.set.name,
                "quality": found.cell.set.quality,
                "library": found.cell.set.library,
                "version": found.cell.set.version,
                "collective": found.cell.collective,
                "nodes": found.cell.nodes,
                "gpus": found.cell.gpus,
                "dtype": found.cell.dtype,
                "size_bytes": found.cell.size,
                "time_s": found.cell.time_s,
                "busbw_GBps": found.cell.busbw / 1e9,
                "predicted_s": found.predicted_s,
                "choice": found.choice,
                "error_pct": found.error_pct,
                "expected_s": found.expected_s,
                "expected_error_pct": found.expected_error_pct,
                "expected_by": "" if found.expected is None else found.expected.origin,
                "fitted": found.fitted,
                "bound_GBps": None if found.bound is None else found.bound.rate_GBps,
                "of_bound_pct": found.of_bound_pct,
            }
            for found in self.cells
        ]

    def summary(self) -> list[dict[str, Any]]:
        """By set, collective, GPUs and band of sizes: the number of cells and the error of the prediction."""
        return [
            {
                "set": one.name,
                "collective": collective,
                "nodes": nodes,
                "gpus": gpus,
                "band": band,
                "cells": len(cells),
                "best_busbw_GBps": max(found.cell.busbw for found in cells) / 1e9,
                "best_of_bound_pct": max((found.of_bound_pct or 0 for found in cells), default=None),
                **_spread([found.error_pct for found in cells if found.error_pct is not None]),
            }
            for (one, collective, nodes, gpus, band), cells in grouped(
                self.cells, lambda found: (*_job(found.cell), found.band)
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """The cells, the summary, and the sources."""
        sources = [
            {"set": one.name, "quality": one.quality, "library": one.library, "version": one.version,
             "algorithm": one.algorithm, "members": one.members, "source": one.source}
            for one in self.sets
        ]  # fmt: skip
        return {"machine": self.machine, "rows": self.rows(), "summary": self.summary(), "sets": sources}

    def sentence(self) -> str:
        """The answer in one line."""
        told = [f"{self.machine}: {count(len(self.cells), 'published cell')} from {count(len(self.sets), 'set')}"]
        fresh = [abs(found.expected_error_pct) for found in self.judged if found.expected_error_pct is not None]
        own = [abs(found.error_pct) for found in self.cells if found.error_pct is not None]
        if fresh:
            told.append(
                f"constants miss {count(len(fresh), 'cell')} that they were not fitted to by {_pct(median(fresh))}"
            )
        if own:
            told.append(f"NCCL's own prediction misses {len(own)} by {_pct(median(own))}")
        return "; ".join(told) + (" at the median" if fresh or own else "")

    @property
    def judged(self) -> tuple[MeasuredCell, ...]:
        """The cells that no constants were fitted to."""
        return tuple(found for found in self.cells if not found.fitted)

    def text(self) -> str:
        """The sentence, how wrong predictions are by size, cells of every sixteenth size, and the sources."""
        lines = [self.sentence()]
        if any(found.best_error_pct is not None for found in self.cells):
            lines += ["", self._accuracy()]
        for one in self.sets:
            mine = [found for found in self.cells if found.cell.set is one]
            ran = " ".join(word for word in (one.library, one.version) if word)
            told = f", {one.algorithm}" if one.algorithm else ""
            lines += ["", f"{one.name}: {ran}{told}; quality {one.quality}", f"  {one.source}", self._table(mine)]
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
        ways = (
            ("constants", [(found.band, found.expected_error_pct) for found in self.judged]),
            ("their fit", [(found.band, found.expected_error_pct) for found in self.cells if found.fitted]),
            ("NCCL itself", [(found.band, found.error_pct) for found in self.cells]),
        )
        for name, told in ways:
            for _, band in BANDS:
                errors = [error for where, error in told if where == band and error is not None]
                if errors:
                    shown = map(_pct, _spread(errors).values())
                    rows.append((band, name, str(len(errors)), *shown))
        heading = ("size", "predicted by", "cells", "median error", "median without sign", "nine of ten below")
        return table(heading, rows, left=(0, 1))

    def _table(self, cells: Sequence[MeasuredCell]) -> str:
        shown = []
        for (_, collective, nodes, gpus, nvls), alike in grouped(
            cells, lambda found: (*_job(found.cell), found.cell.nvls == "off")
        ):
            for found in _thinned(alike):
                share = found.of_bound_pct
                shown.append(
                    (
                        f"{collective}, NVLS off" if nvls else collective,
                        f"{gpus} on {count(nodes, 'node')}",
                        format_size(found.cell.size),
                        format_time(found.cell.time_s),
                        format_rate(found.cell.busbw),
                        _time(found.expected_s),
                        _error(found.expected_error_pct, found.fitted and found.expected is not None),
                        _time(found.predicted_s),
                        _error(found.error_pct),
                        found.choice or "-",
                        "-" if share is None else f"{share:.3g} %",
                    )
                )
        heading = (
            "collective", "GPUs", "size", "measured", "busbw", "expected", "error", "NCCL says", "error", "choice",
            "of the bound",
        )  # fmt: skip
        return table(heading, shown, left=(0, 1, 9))

    def __repr__(self) -> str:
        return f"<PublicMeasurements: {self.sentence()}>"


def public_measurements(machine: str, quality: str = "ABC", *, predict: bool = True) -> PublicMeasurements:
    """The published measurements of a machine of the catalogue; see `blinksim.measured`.

    quality: which letters of `QUALITIES` to take; predict: also what NCCL predicts for itself. Raises `InputError` for
    machines without tables, and for other letters.
    """
    for letter in quality:
        if letter not in public_tables.QUALITIES:
            raise unknown("quality", letter, public_tables.QUALITIES)
    told = [(cell, fitted) for cell, fitted in with_places(public_tables.cells(machine)) if cell.set.quality in quality]
    if not told:
        raise InputError(f"{machine} has no published measurements of quality {quality}")
    jobs = Jobs(machine)
    return PublicMeasurements(machine, tuple(_beside(jobs, cell, fitted, predict) for cell, fitted in told))


def _beside(jobs: Jobs, cell: Cell, fitted: bool, predict: bool) -> MeasuredCell:
    """A cell with what the models say."""
    bound = jobs.bound(cell)
    if not predict:
        return MeasuredCell(cell, bound, fitted=fitted)
    takes = jobs.nccl_takes(cell)
    expected = jobs.expected(cell, takes)
    if takes is None:
        return MeasuredCell(cell, bound, expected=expected, fitted=fitted)
    return MeasuredCell(cell, bound, takes.time_s, f"{takes.algorithm}/{takes.protocol}", expected, fitted)


def _job(cell: Cell) -> tuple[Set, str, int, int]:
    return cell.set, cell.collective, cell.nodes, cell.gpus


def _spread(errors: list[float]) -> dict[str, float | None]:
    """Median of the errors and of their sizes, and what nine of ten stay below."""
    sizes = [abs(error) for error in errors]
    ninth = quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else max(sizes, default=None)
    return {
        "median_error_pct": median(errors) if errors else None,
        "median_size_of_error_pct": median(sizes) if sizes else None,
        "nine_of_ten_below_pct": ninth,
    }


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_time(seconds)


def _error(percent: float | None, fitted: bool = False) -> str:
    return "-" if percent is None else f"{percent:+.1f} %{'*' if fitted else ''}"


def _pct(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:.1f} %"


def _thinned(cells: list[MeasuredCell]) -> list[MeasuredCell]:
    """The largest size and those that are each a sixteenth of the next, smallest first; of those not fitted, if any."""
    kept: list[MeasuredCell] = []
    judged = [found for found in cells if not found.fitted]
    for found in sorted(judged or cells, key=lambda found: -found.cell.size):
        if not kept or found.cell.size * _SHOWN_STEP <= kept[-1].cell.size:
            kept.append(found)
    return kept[::-1]
