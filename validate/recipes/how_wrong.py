"""The page that says how wrong predictions of published times are; `usable_rates.py` writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from blinksim import data_files
from blinksim.answers.measurements.public import MeasuredCell, PublicMeasurements, grouped
from blinksim.formats.shipped import machine_names
from blinksim.textio.text_files import read_rows
from blinksim.timing.measured.library_rates import scope_of
from blinksim.timing.measured.public_tables import BANDS, Cell, band_of

# An error from which a cell is an outlier, in percent.
OUTLIER = 30
# Median and nine in ten, in percent, by band: of all left-out rigs, and of those of several nodes.
AIMS = ("12 / 45", "7 / 25", "4 / 15"), ("20 / 60", "15 / 50", "7 / 30")
SMALL, LARGE = 2**13, 2**30
# As titles of machines say them; the first that is found counts.
GENERATIONS = (
    "GB300", "GB200", "B300", "B200", "GH200", "H200", "H800", "H100", "A100", "V100", "P100", "MI355X", "MI325X",
    "MI300X", "Gaudi 3", "Gaudi 2", "Data Center GPU Max", "RTX PRO 6000", "RTX 4090", "DGX Spark",
)  # fmt: skip
Row = Sequence[str]
Cells = Sequence[tuple[str, MeasuredCell]]
# A machine, and whose its GPUs are.
Rig = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Judged:
    """A published time beside what is said of it where nobody had published what its rig takes; seconds.

    low_s, high_s: the ends of the interval. basis: what the time comes from.
    """

    rig: Rig
    cell: Cell
    time_s: float
    low_s: float
    high_s: float
    basis: str


HEAD = """# How wrong are predictions?

{left_out} published times of {rigs} rigs of {rigged} machines, each beside what blinksim says where **nobody had
published what that rig takes**: its tables are removed, constants and intervals are made anew from the others, and its
jobs are asked as they ran, with their launches. A rig is the GPUs of one repository or page. Errors are
|predicted / measured - 1|.

{tables}
`blinksim measured MACHINE` prints the cells of a machine; `--csv` has all of them with their errors. The page is made
by `PYTHONPATH=. python3 validate/recipes/usable_rates.py`, which makes constants and intervals anew, repeats all of
this, and prints the tables.

# Where the rig is known

What follows flatters: constants of the machine know the rig. Of {cells} published times of {machines} machines
constants were fitted to {fitted}, which `models/usable/parts.csv` states; {judged} are other sizes of the same jobs,
by which the constants are judged here. {faulty} of these have a fault that their source shows
(`models/usable/remarks.csv`), and {excerpts} are excerpts (quality C).
"""

TAIL = """## What is not predicted

Of {names}
there are one or two sizes of a kind, which any constants fit. Those of Gaudi reach 97 to 100 % of the bound; Aurora's
stand [beside its own projection](measured.md). No table of times by size was found for TPU, Trainium and oneCCL.
"""


def left_out_tables(judged: Sequence[Judged]) -> str:
    """How wrong times are of rigs that were left out, and how often intervals hold them: three tables in Markdown."""
    heading = "", "size", "rigs", "times", "median", "nine in ten", "aim", "8 in 10 hold", "width"
    rows, bands = list[Row](), [band for _, band in BANDS]
    for name, nodes, aims in (("all", (0, 10**6), AIMS[0]), ("one node", (1, 1), ()), ("several", (2, 10**6), AIMS[1])):
        for place, band in enumerate(bands):
            chosen = [
                one for one in judged if nodes[0] <= one.cell.nodes <= nodes[1] and band_of(one.cell.size) == band
            ]
            median, ninth, *more = _of_judged(chosen)
            rows.append((name, band, *_numbers(chosen), median, ninth, aims[place] if aims else "", *more))
    text = "## By size\n\n" + _markdown(heading, rows, 2)
    text += "\nThe width is the median of the upper end over the lower one. By what a time comes from:\n\n"
    kinds = grouped(judged, lambda one: (one.basis, "one node" if one.cell.nodes == 1 else "several nodes"))
    text += _markdown(
        ("from", "nodes", "rigs", "times", "median", "nine in ten", "8 in 10 hold", "width"),
        [(*kind, *_numbers(chosen), *_of_judged(chosen)) for kind, chosen in sorted(kinds)],
        2,
    )
    text += _in_hindsight(judged, bands)
    heads = [text for band in bands for text in (band, "median", "nine in ten")]
    text += "\n## By rig\n\n"
    return text + _markdown(
        ("machine", "rig", *heads, "8 in 10 hold"),
        [
            (rig[0], rig[1].removeprefix("github.com/"), *_by_band(chosen, bands), _of_judged(chosen)[2])
            for rig, chosen in sorted(grouped(judged, lambda one: one.rig))
        ],
        2,
    )


def _in_hindsight(judged: Sequence[Judged], bands: Sequence[str]) -> str:
    """What is left of errors once the median of what they have in common is known, in Markdown."""
    alike: dict[str, Callable[[Judged], object]] = {
        "rig": lambda one: one.rig,
        "collective": lambda one: (one.rig, one.cell.collective),
        "runs and nodes": lambda one: (one.cell.set.name, one.cell.collective, one.cell.nodes, one.cell.gpus),
    }
    rows = list[Row]()
    placed = grouped(judged, lambda one: (one.cell.nodes > 1, bands.index(band_of(one.cell.size))))
    for (several, band), chosen in sorted(placed):
        row = ["several" if several else "one node", bands[band], " / ".join(_of_judged(chosen)[:2])]
        for key in alike.values():
            errors = list[float]()
            for _, those in grouped(chosen, key):
                ratios = np.array([one.time_s / one.cell.time_s for one in those])
                errors += (100 * np.abs(ratios / np.exp(np.median(np.log(ratios))) - 1)).tolist()
            row.append(" / ".join(_figures(errors)))
        rows.append(row)
    text = "\nHad one known beforehand by how much these times are off at the median, of the rig, of each of its\n"
    text += "collectives, or of each of their runs and nodes, these errors would be left, median / nine in ten:\n\n"
    return text + _markdown(("nodes", "size", "as it is", *alike), rows, 2)


def _numbers(judged: Sequence[Judged]) -> tuple[str, str]:
    """Of how many rigs, and how many times."""
    return str(len({one.rig for one in judged})), f"{len(judged):,}"


def _of_judged(judged: Sequence[Judged]) -> tuple[str, str, str, str]:
    """Median and nine in ten of the errors, the share inside the intervals, and their median width."""
    if not judged:
        return "", "", "", ""
    errors = [100 * abs(one.time_s / one.cell.time_s - 1) for one in judged]
    # Figures have four digits.
    inside = [one.low_s * 0.999 <= one.cell.time_s <= one.high_s * 1.001 for one in judged]
    width = np.median([one.high_s / one.low_s for one in judged])
    return *_figures(errors), f"{100 * float(np.mean(inside)):.0f} %", f"{width:.2f}"


def _by_band(judged: Sequence[Judged], bands: Sequence[str]) -> list[str]:
    row = list[str]()
    for band in bands:
        chosen = [one for one in judged if band_of(one.cell.size) == band]
        row += [str(len(chosen)), *_of_judged(chosen)[:2]]
    return row


def page(found: Iterable[PublicMeasurements], left_out: Sequence[Judged]) -> str:
    """The page in Markdown."""
    cells = [(one.machine, cell) for one in found for cell in one.cells]
    timed = [one for one in cells if one[1].best_error_pct is not None]
    known = {_job(cell) for _, cell in timed if cell.fitted}
    judged = [one for one in timed if not one[1].fitted and _job(one[1]) in known]
    sound = [one for one in judged if one[1].cell.set.quality in "AB" and not _faulty(one[1])]
    head = HEAD.format(
        left_out=f"{len(left_out):,}",
        rigs=len({one.rig for one in left_out}),
        rigged=len({one.rig[0] for one in left_out}),
        tables=left_out_tables(left_out),
        cells=f"{len(cells):,}",
        machines=len({machine for machine, _ in cells}),
        fitted=f"{sum(cell.fitted for _, cell in timed):,}",
        judged=f"{len(judged):,}",
        faulty=sum(_faulty(cell) for _, cell in judged),
        excerpts=sum(cell.cell.set.quality == "C" for _, cell in judged),
    )
    parts = (
        head,
        "## Known rigs by size\n",
        _by_size(timed, judged, sound),
        "## By machine\n",
        "Judged cells of quality A and B without known faults; the last column counts the fitted ones.\n",
        _by(lambda machine, cell: machine, sound, timed),
        "## By collective\n",
        _by(lambda machine, cell: cell.cell.collective, sound, timed),
        "## By library\n",
        _by(lambda machine, cell: cell.cell.set.library.split()[0], sound, timed),
        "## By nodes\n",
        _by(lambda machine, cell: scope_of(cell.cell.nodes, cell.cell.gpus), sound, timed),
        "## Outliers\n",
        _outliers(judged),
        "## How much of the data sheet is usable?\n",
        _efficiency(cells),
        TAIL.format(names=", ".join(sorted({machine for machine, cell in cells if cell.best_error_pct is None}))),
    )
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Remark:
    """Why cells of a set are far from predictions.

    set: its name, or how those of several begin. collectives: empty for all. gpus, sizes: least and most, 0 for any.
    fault: True if the cells do not count when predictions are judged. kind, why: in words.
    """

    set: str
    collectives: tuple[str, ...]
    gpus: tuple[int, int]
    sizes: tuple[int, int]
    fault: bool
    kind: str
    why: str

    @staticmethod
    def _within(value: int, ends: tuple[int, int]) -> bool:
        return ends[0] <= value and (not ends[1] or value <= ends[1])

    def holds(self, cell: Cell) -> bool:
        """True for a cell that it is about."""
        return (
            cell.set.name.startswith(self.set)
            and (not self.collectives or cell.collective in self.collectives)
            and self._within(cell.gpus, self.gpus)
            and self._within(cell.size, self.sizes)
        )


def _remark(row: dict[str, str]) -> Remark:
    gpus = int(row["least_gpus"]), int(row["most_gpus"])
    sizes = int(row["least"]), int(row["most"])
    return Remark(
        row["set"], tuple(row["collectives"].split()), gpus, sizes, row["fault"] == "yes", row["kind"], row["why"]
    )


@cache
def remarks() -> tuple[Remark, ...]:
    """All remarks, those that go before others first."""
    return tuple(read_rows(data_files.folder("models") / "usable" / "remarks.csv", _remark, "remark on a set"))


def remark_of(cell: Cell) -> Remark | None:
    """The first remark that is about a cell."""
    return next((remark for remark in remarks() if remark.holds(cell)), None)


def _faulty(cell: MeasuredCell) -> bool:
    remark = remark_of(cell.cell)
    return remark is not None and remark.fault


def _markdown(heading: Row, rows: Iterable[Row], left: int = 1) -> str:
    rule = ["---"] * left + ["--:"] * (len(heading) - left)
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, rule, *rows)) + "\n"


def _errors(cells: Iterable[tuple[str, MeasuredCell]]) -> list[float]:
    return [abs(cell.best_error_pct) for _, cell in cells if cell.best_error_pct is not None]


def _figures(errors: Sequence[float]) -> tuple[str, str]:
    """Median, and what nine in ten stay below."""
    return (f"{np.median(errors):.1f} %", f"{np.quantile(errors, 0.9):.0f} %") if errors else ("", "")


def _within(errors: Sequence[float], most: float = 20) -> str:
    return f"{100 * float(np.mean(np.array(errors) <= most)):.0f} %" if errors else ""


def _by_size(timed: Cells, judged: Cells, sound: Cells) -> str:
    rows = []
    fitted = [one for one in timed if one[1].fitted]
    for _, band in BANDS:
        ways = (("judged, A and B, no known fault", sound), ("judged, all", judged), ("fitted", fitted))
        for name, chosen in ways:
            errors = _errors(one for one in chosen if one[1].band == band)
            rows.append((band, name, str(len(errors)), *_figures(errors), _within(errors)))
        own = [abs(cell.error_pct) for _, cell in sound if cell.band == band and cell.error_pct is not None]
        rows.append((band, "NCCL's own prediction of the first", str(len(own)), *_figures(own), _within(own)))
    return _markdown(("size", "cells", "number", "median", "nine in ten", "within 20 %"), rows, 2)


def _job(cell: MeasuredCell) -> Any:
    one = cell.cell
    return one.set.name, one.collective, one.nodes, one.gpus


_HEADING = ("", *(text for _, band in BANDS for text in (band, "median", "nine in ten")))


def _bands(cells: Cells) -> list[str]:
    row = []
    for _, band in BANDS:
        errors = _errors(one for one in cells if one[1].band == band)
        row += [str(len(errors)), *_figures(errors)]
    return row


def _by(key: Callable[[str, MeasuredCell], str], sound: Cells, timed: Cells) -> str:
    rows = []
    for name in sorted({key(*one) for one in timed}):
        fitted = sum(one[1].fitted for one in timed if key(*one) == name)
        rows.append((name, *_bands([one for one in sound if key(*one) == name]), str(fitted)))
    return _markdown((*_HEADING, "fitted"), rows)


def _outliers(judged: Cells) -> str:
    told: dict[tuple[str, str, str], list[float]] = {}
    for _, cell in judged:
        error = cell.best_error_pct
        if error is None or abs(error) <= OUTLIER:
            continue
        remark = remark_of(cell.cell)
        kind, why = (remark.kind, remark.why) if remark is not None else ("unknown", "")
        told.setdefault((cell.cell.set.name, kind, why), []).append(error)
    rows = [
        (*key, str(len(errors)), " to ".join(dict.fromkeys(f"{end(errors):+.0f} %" for end in (min, max))))
        for key, errors in sorted(told.items(), key=lambda one: (-len(one[1]), one[0]))
    ]
    far = sum(map(len, told.values()))
    said = f"{far} of {len(judged):,} judged cells ({100 * far / len(judged):.0f} %) are more than {OUTLIER} % off:\n\n"
    return said + _markdown(("set", "cause", "why", "cells", "errors"), rows, 3)


def _efficiency(cells: Cells) -> str:
    """What large sizes reach of the bound at nominal rates, and what small ones take, by generation and by machine."""
    said = (
        "What collectives (without alltoall) reach of the bound at nominal rates: median, 8 in 10 cells in brackets.\n"
        "By generation of GPUs:\n\n"
    )
    rows = [
        (generation, scope, *_share(alike, BANDS[-1][0], LARGE), *_share(alike, LARGE, 2**60), ", ".join(names))
        for (generation, scope), alike in _by_scope(cells, _generation)
        if (names := sorted({machine for machine, cell in alike if cell.of_bound_pct is not None and _large(cell)}))
    ]
    heading = ("GPUs", "jobs", "64 MiB to 1 GiB", "cells", "from 1 GiB", "cells", "machines")
    said += _markdown(heading, sorted(rows), 2) + "\nBy machine, with what sizes of at most 8 KiB take:\n\n"
    machines = list[Row]()
    for (machine, scope), alike in _by_scope(cells, lambda machine: machine):
        small = [cell.cell.time_s * 1e6 for _, cell in alike if cell.cell.size <= SMALL]
        share, number = _share(alike, BANDS[-1][0], 2**60)
        if number != "0":
            latency = f"{np.median(small):.0f} us ({min(small):.0f} to {max(small):.0f})" if small else ""
            machines.append((machine, scope, share, number, latency))
    return said + _markdown(("machine", "jobs", "from 64 MiB", "cells", "small sizes"), machines, 2)


def _by_scope(cells: Cells, key: Callable[[str], str]) -> list[tuple[Any, Any]]:
    return grouped(cells, lambda one: (key(one[0]), scope_of(one[1].cell.nodes, one[1].cell.gpus)))


def _generation(machine: str) -> str:
    title = machine_names.outline(machine).title
    return next(name for name in GENERATIONS if name in title)


def _large(cell: MeasuredCell) -> bool:
    return cell.cell.size >= BANDS[-1][0] and cell.cell.collective != "alltoall"


def _share(cells: Cells, least: int, most: int) -> tuple[str, str]:
    """What cells of such sizes reach of the bound, and how many they are."""
    reached = [
        cell.of_bound_pct
        for _, cell in cells
        if cell.of_bound_pct is not None and _large(cell) and least <= cell.cell.size < most
    ]
    if not reached:
        return "", "0"
    low, middle, high = np.quantile(reached, (0.1, 0.5, 0.9))
    return f"{middle:.0f} % ({low:.0f} to {high:.0f})", str(len(reached))
