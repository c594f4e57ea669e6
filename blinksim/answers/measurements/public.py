"""What others measured on a machine, beside what NCCL would take there and what no schedule exceeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from statistics import median, quantiles
from typing import Any

from blinksim.bounds.assumptions import granted_to_switches
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError, unknown
from blinksim.nccl.tuner.constants import nearest
from blinksim.question import Question
from blinksim.results import Result
from blinksim.sources import public_tables
from blinksim.sources.public_tables import Cell, Set
from blinksim.textio.text_table import count, table
from blinksim.timing.entrants import ceiling_of
from blinksim.timing.nccl_model import CHOICE, NcclTuner
from blinksim.timing.projection_result import Ceiling, Projection
from blinksim.topology.elements import BRANCHING
from blinksim.topology.graph import Topology
from blinksim.units import format_rate, format_size, format_time

BANDS = ((0, "below 512 KiB"), (512 * 2**10, "512 KiB to 64 MiB"), (64 * 2**20, "from 64 MiB"))
"""The sizes that are summed up together: the first of each band, in bytes, and its name."""
_SHOWN_STEP = 16
# NCCL plans larger NVLink domains as many nodes, which its model here does not.
_MOST_GPUS_A_NODE = 16


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """A cell beside the model.

    predicted_s: what NCCL's own model says that NCCL's choice takes, None where another library ran or nothing is
    predicted; choice: that choice, such as ``ring/Simple``.
    """

    cell: Cell
    bound: Ceiling | None
    predicted_s: float | None = None
    choice: str = ""

    @property
    def error_pct(self) -> float | None:
        """By how much the predicted time is above the measured one."""
        return None if self.predicted_s is None else 100 * (self.predicted_s / self.cell.time_s - 1)

    @property
    def of_bound_pct(self) -> float | None:
        """The measured rate as a share of the bound."""
        if self.bound is None:
            return None
        return 100 * self.cell.size / self.cell.time_s / float(self.bound.rate)

    @property
    def band(self) -> str:
        """Which of `BANDS` its size is in."""
        return next(name for least, name in reversed(BANDS) if self.cell.size >= least)


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
        """The sets that the cells come from."""
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
                "size_bytes": found.cell.size,
                "time_s": found.cell.time_s,
                "busbw_GBps": found.cell.busbw / 1e9,
                "predicted_s": found.predicted_s,
                "choice": found.choice,
                "error_pct": found.error_pct,
                "bound_GBps": None if found.bound is None else found.bound.rate_GBps,
                "of_bound_pct": found.of_bound_pct,
            }
            for found in self.cells
        ]

    def summary(self) -> list[dict[str, Any]]:
        """By set, collective, GPUs and band of sizes: how many cells, and how wrong the prediction is."""
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
            for (one, collective, nodes, gpus, band), cells in _grouped(
                self.cells, lambda found: (*_job(found.cell), found.band)
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """The cells, the summary, and where they come from."""
        sources = [
            {"set": one.name, "quality": one.quality, "library": one.library, "version": one.version,
             "algorithm": one.algorithm, "members": one.members, "source": one.source}
            for one in self.sets
        ]  # fmt: skip
        return {"machine": self.machine, "rows": self.rows(), "summary": self.summary(), "sets": sources}

    def sentence(self) -> str:
        """The answer in one line."""
        errors = [abs(found.error_pct) for found in self.cells if found.error_pct is not None]
        said = f"; what NCCL predicts for itself is {median(errors):.3g} % off at the median" if errors else ""
        return f"{self.machine}: {count(len(self.cells), 'published cell')} from {count(len(self.sets), 'set')}{said}"

    def text(self) -> str:
        """The sentence, how wrong predictions are by size, cells of every sixteenth size, and the sources."""
        lines = [self.sentence()]
        if any(found.predicted_s is not None for found in self.cells):
            lines += ["", self._accuracy()]
        for one in self.sets:
            mine = [found for found in self.cells if found.cell.set is one]
            ran = " ".join(word for word in (one.library, one.version) if word)
            told = f", {one.algorithm}" if one.algorithm else ""
            lines += ["", f"{one.name}: {ran}{told}; quality {one.quality}", f"  {one.source}", self._table(mine)]
        lines += ["", f"  quality  {'; '.join(f'{letter}: {said}' for letter, said in self._qualities())}"]
        granted = {word for found in self.cells if found.bound is not None for word in found.bound.granted}
        lines += [f"  bounds   where {word}" for word in sorted(granted)]
        return "\n".join(lines)

    def _accuracy(self) -> str:
        """How wrong the predictions are, by size."""
        rows = []
        for _, band in BANDS:
            errors = [found.error_pct for found in self.cells if found.band == band and found.error_pct is not None]
            told = _spread(errors).values()
            rows.append((band, str(len(errors)), *("-" if one is None else f"{one:.3g} %" for one in told)))
        return table(("size", "cells", "median error", "median without sign", "nine of ten below"), rows)

    def _qualities(self) -> list[tuple[str, str]]:
        used = {one.quality for one in self.sets}
        return [(letter, said) for letter, said in public_tables.QUALITIES.items() if letter in used]

    def _table(self, cells: Sequence[MeasuredCell]) -> str:
        shown = []
        for (_, collective, nodes, gpus, nvls), alike in _grouped(
            cells, lambda found: (*_job(found.cell), found.cell.nvls == "off")
        ):
            for found in _thinned(alike):
                error, share = found.error_pct, found.of_bound_pct
                shown.append(
                    (
                        f"{collective}, NVLS off" if nvls else collective,
                        f"{gpus} on {count(nodes, 'node')}",
                        format_size(found.cell.size),
                        format_time(found.cell.time_s),
                        format_rate(found.cell.busbw),
                        "-" if found.predicted_s is None else format_time(found.predicted_s),
                        "-" if error is None else f"{error:+.3g} %",
                        found.choice or "-",
                        "-" if share is None else f"{share:.3g} %",
                    )
                )
        heading = ("collective", "GPUs", "size", "measured", "busbw", "predicted", "error", "choice", "of the bound")
        return table(heading, shown, left=(0, 1, 7))

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
    cells = [cell for cell in public_tables.cells(machine) if cell.set.quality in quality]
    if not cells:
        raise InputError(f"{machine} has no published measurements of quality {quality}")
    found: dict[int, MeasuredCell] = {}
    place = {id(cell): number for number, cell in enumerate(cells)}
    for _, alike in _grouped(cells, lambda cell: (*_job(cell), cell.nvls)):
        for one in _beside(machine, alike, predict):
            found[place[id(one.cell)]] = one
    return PublicMeasurements(machine, tuple(found[number] for number in range(len(cells))))


def _job(cell: Cell) -> tuple[Set, str, int, int]:
    return cell.set, cell.collective, cell.nodes, cell.gpus


def _grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())


def _spread(errors: list[float]) -> dict[str, float | None]:
    """Median of the errors and of their sizes, and what nine of ten stay below."""
    sizes = [abs(error) for error in errors]
    return {
        "median_error_pct": median(errors) if errors else None,
        "median_size_of_error_pct": median(sizes) if sizes else None,
        "nine_of_ten_below_pct": quantiles(sizes, n=10)[-1] if len(sizes) > 1 else max(sizes, default=None),
    }


def _thinned(cells: list[MeasuredCell]) -> list[MeasuredCell]:
    """The largest size and those that are each a sixteenth of the next, smallest first."""
    kept: list[MeasuredCell] = []
    for found in sorted(cells, key=lambda found: -found.cell.size):
        if not kept or found.cell.size * _SHOWN_STEP <= kept[-1].cell.size:
            kept.append(found)
    return kept[::-1]


def _beside(machine: str, cells: Sequence[Cell], predict: bool) -> list[MeasuredCell]:
    """Cells of one job on one machine with what the models say."""
    first = cells[0]
    collective = Collective(first.collective)
    question = _question(machine, first)
    bound = _bound(question, first, collective)
    predicted: dict[int, Projection] = {}
    if predict:
        with suppress(BlinksimError):
            predicted = _predicted(question, first, collective, [cell.size for cell in cells])
    answers = []
    for cell in cells:
        one = predicted.get(cell.size)
        chosen = "" if one is None else str(one.details.get("nccl_algorithm", one.algorithm))
        if one is not None and "/" not in chosen:
            chosen = f"{chosen}/{one.details['nccl_protocol']}"
        answers.append(MeasuredCell(cell, bound, None if one is None else one.time_s, chosen))
    return answers


def _question(machine: str, cell: Cell) -> Question:
    """The part of the machine that took part."""
    each = cell.gpus // cell.nodes
    if cell.set.members:
        return Question(machine, nodes=cell.nodes, members=cell.set.members)
    if cell.nodes > 1:
        return Question(machine, nodes=cell.nodes, ranks_per_node=each)
    return Question(machine, members=f"0-{each - 1}" if each > 1 else "0")


def _bound(question: Question, cell: Cell, collective: Collective) -> Ceiling | None:
    """The bound at nominal rates; switches do what their file says that they can, unless they were told not to."""
    try:
        part = question.part()
    except BlinksimError:
        return None
    grants = () if collective.personalized or cell.nvls not in ("on", "unknown") else _abilities(part)
    return ceiling_of(part, collective, (granted_to_switches(grants),) if grants else (), grants)


def _abilities(part: Topology) -> tuple[str, ...]:
    """What switches inside the nodes can do besides forwarding."""
    able = frozenset[str]().union(*(device.in_network for device in part.devices if device.node >= 0))
    return tuple(grant for grant in BRANCHING if grant in able)


def _predicted(question: Question, cell: Cell, collective: Collective, sizes: Sequence[int]) -> dict[int, Projection]:
    """What NCCL's own model says, by size; nothing where another library ran."""
    if not cell.set.library.startswith("NCCL") or cell.gpus > _MOST_GPUS_A_NODE * cell.nodes:
        return {}
    told = cell.set.algorithm.replace(" (forced)", "").replace(", ", "/").lower()
    forced = bool(told) and "(default)" not in told
    model, topology = NcclTuner(version=nearest(cell.set.version), multicast=cell.nvls != "off").at(
        question.preferring_known("nccl")
    )
    names = (told if "/" not in told else None) if forced else CHOICE
    found = model.times(topology, collective, sizes, None if names is None else (names,))
    if names is None:
        found = [one for one in found if one.algorithm.lower() == told]
    return {one.size: one for one in found}
