"""How far predicted times of programs and of NCCL are off (`times-predicted.json`), in tables, beside the aims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

Row = Mapping[str, Any]
KIB, MIB = 2**10, 2**20
BANDS = (("below 256 KiB", 256 * KIB), ("256 KiB to 16 MiB", 16 * MIB), ("from 16 MiB", 2**62))
# Runs of sizes and counts that nothing was fitted to.
APART = ("odd-sizes", "held-out")
_QUESTION = ("source", "gpus", "collective", "size_bytes", "dtype", "in_place")

# Which constants predicted.
WORDS = {"catalogue": "catalogue", "few": "few runs"}


@dataclass(frozen=True, slots=True)
class Aim:
    """The most that errors may be, as shares: half of them, nine in ten, all; None for any."""

    middle: float
    nine: float | None
    worst: float | None


AIMS = {
    "below 256 KiB": Aim(0.025, 0.06, 0.20),
    "256 KiB to 16 MiB": Aim(0.03, 0.12, 0.25),
    "from 16 MiB": Aim(0.03, 0.10, 0.20),
    "NCCL": Aim(0.035, 0.10, 0.25),
    "winner": Aim(0.0, 0.03, 0.15),
    "emulated": Aim(0.015, None, 0.10),
    "published": Aim(0.10, 0.30, None),
}
HEAD = ["", "what", "runs", "half within", "nine in ten within", "worst", "aim"]
# What taking the predicted winner may cost on average.
MEAN_LOSS = 0.015


def band(row: Row) -> str:
    return next(name for name, end in BANDS if row["size_bytes"] < end)


def apart(row: Row) -> bool:
    """True for runs that no constants were fitted to."""
    return str(row["source"]).startswith(APART)


def error(row: Row, what: str) -> float:
    """How far the prediction is off, as a share of the measured time; above 0 if it says too much."""
    return float(row[f"{what}_s"] / row["measured_s"] - 1)


def within(errors: Iterable[float], share: float = 0.9) -> float:
    """What this share of the errors does not exceed."""
    ordered = sorted(map(abs, errors))
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(errors: Sequence[float]) -> tuple[float, float, float]:
    """(median, nine in ten, worst) of the absolute errors."""
    return median(map(abs, errors)), within(errors), max(map(abs, errors))


def losses(rows: Iterable[Row], what: str) -> list[float]:
    """For every question with several answers, how much longer the predicted winner takes than the real one."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in ("source", "gpus", "collective", "size_bytes", "dtype", "in_place"))].append(
            row
        )
    found = []
    for rivals in groups.values():
        if len({row["algorithm"] for row in rivals}) > 1:
            taken = min(rivals, key=lambda row: row[f"{what}_s"])
            found.append(taken["measured_s"] / min(row["measured_s"] for row in rivals) - 1)
    return found


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def line(label: Sequence[str], errors: Sequence[float], aim: Aim | None = None) -> list[str]:
    """A row of a table: what the label says, how many errors, their figures, and whether they meet the aim."""
    found = figures(errors)
    cells = [percent(share) for share in found]
    if aim is not None:
        wanted = (aim.middle, aim.nine, aim.worst)
        cells = [cell if most is None else f"{cell} ({100 * most:g})" for cell, most in zip(cells, wanted, strict=True)]
        # As the table shows them: a tenth of a per cent.
        met = all(most is None or round(share, 3) <= most for share, most in zip(found, wanted, strict=True))
        cells.append("met" if met else "missed")
    return [*label, str(len(errors)), *cells]


def aims(content: Mapping[str, Any], what: str) -> tuple[list[str], list[list[str]]]:
    """The aims and what was reached on 8 GPUs and on all, by constants of few runs (then without those runs) or of the
    catalogue."""
    ours = [row for row in content["ours"] if not (what == "few" and row["fitted"])]
    nccl = [row for row in content["nccl"] if not (what == "few" and row["fitted"])]
    rows = []
    for gpus in (8, None):
        who = "8 GPUs" if gpus else "2 to 8 GPUs"
        mine = [row for row in ours if gpus in (None, row["gpus"])]
        for name, _ in BANDS:
            rows.append(
                line((who, f"our programs, {name}"), [error(r, what) for r in mine if band(r) == name], AIMS[name])
            )
        theirs = [error(row, what) for row in nccl if gpus in (None, row["gpus"])]
        rows.append(line((who, "NCCL, its choice given"), theirs, AIMS["NCCL"]))
        lost = losses(mine, what)
        last = line((who, "lost by taking the predicted winner"), lost, AIMS["winner"])
        average = mean(lost)
        last[-1] = "met" if last[-1] == "met" and round(average, 3) <= MEAN_LOSS else "missed"
        last[1] += f", mean {percent(average)} ({100 * MEAN_LOSS:g})"
        rows.append(last)
    return HEAD, rows


def by(
    rows: Sequence[Row],
    key: Callable[[Row], tuple[str, ...]],
    head: Sequence[str],
    what: Sequence[str] = ("catalogue",),
) -> tuple[list[str], list[list[str]]]:
    """Errors of groups, in the order of their keys: for each kind of constants the median, nine in ten and worst."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    lines = []
    for label, found in groups.items():
        cells = [percent(share) for one in what for share in figures([error(row, one) for row in found])]
        lines.append([*label, str(len(found)), *cells])
    words = [f"{WORDS[one]}: half within" for one in what]
    return [*head, "runs", *(cell for word in words for cell in (word, "nine in ten", "worst"))], lines
