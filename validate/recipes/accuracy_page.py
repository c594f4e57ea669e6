"""The page docs/measurements/accuracy.md: how wrong the times are, from validate/results/times-predicted.json."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from blinksim.cli.main import run
from blinksim.units import format_size, format_time
from validate.recipes.time_figures import (
    APART,
    BANDS,
    Row,
    aims,
    apart,
    band,
    by,
    error,
    losses,
    percent,
    within,
)

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "accuracy.md"
PICTURE = "../pictures/accuracy.png"
COMMAND = "project hgx-h200 allreduce 1MiB --rates measured --algorithm best --calls successive"
# How much of an answer is shown.
_FIRST = 9
_SIZES = tuple(2**power for power in range(10, 31, 2))
_WORST = 10
# A run that was fitted may have been made twice.
_CASE = ("gpus", "collective", "algorithm", "protocol", "size_bytes")

HEAD = """\
# How wrong are times on H200?

Every time below was measured on 2 to 8 H200 behind an NVSwitch, at full speed, from 1 KiB to 1 GiB, and stands in
`validate/results`. `PYTHONPATH=. python3 validate/recipes/time_predictions.py` predicts all of them anew, and
`validate/recipes/report.py` writes this page from that; nothing here is typed in. Errors count in per cent of the
measured time.

Where constants of a machine were measured, `project` answers with what its GPUs take; `--calls successive` names what
all runs below are, programs that one process launches one after another:
"""
FEW = """\
## From few runs on two and four GPUs

How good is a calibration that takes a minute? Constants were fitted to {ours} runs of our programs and {nccl} of NCCL,
all on two and four GPUs, starting from round guesses. The table leaves these out, and counts all others. In brackets
stands the aim, in per cent.
"""
CATALOGUE = """\
## With the constants of the catalogue

`hgx-h200` comes with constants that were fitted to some of these runs, of all counts of GPUs. The table has all runs,
fitted or not, so it says how well one set of constants describes the machine, not how well it predicts.
"""
WHERE = """\
## By size, GPUs and algorithm

With the constants of the catalogue, and with those of few runs; fitted runs are among them.
"""
APART_WORDS = """\
## Runs that nothing was fitted to

Measured apart: sizes between the powers of two, and float16 (`odd-sizes-*`, `held-out-*` in `validate/results`). They
are reported as found, with no run left out. `odd-sizes-later` ran when the model and all constants were as now.
"""
ALLREDUCE = """\
## One question, from 1 KiB to 1 GiB

An allreduce on eight H200, as `compare hgx-h200 allreduce --rates measured` finds it: the algorithm that is predicted
to be quickest among those that were measured, by the constants of the catalogue, and NCCL without NVLS by its own.
"""
POOR = """\
## What is predicted worst

The runs that the catalogue's constants miss most. Keep them out of promises.
"""
END = """\
## Elsewhere

- Machines whose constants were derived, such as `hgx-h100`, say so in the answer, with a band; nobody measured them.
- [Published measurements](measured.md) of 28 machines stand beside NCCL's own prediction.
- Where no constants are known, times count links and latencies only, and the answer's model is `alpha-beta`. At small
  sizes that is too little by the launch and by what blocks spend: several times too little below 1 MiB.
- [Calibrate](../diagnose.md#what-do-my-links-really-carry) your own GPUs: `blinksim calibrate --gpus` takes a minute.
"""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *lines])


def answer(words: str, lines: int) -> str:
    """The first lines that a command prints, as a block that the tests of the pages run again."""
    out = io.StringIO()
    with redirect_stdout(out):
        status = run(words.split())
    assert status == 0, words
    shown = out.getvalue().splitlines()[:lines]
    return "\n".join(["```console", f"$ blinksim {words}", *(line.rstrip() for line in shown), "…", "```"])


def summary(content: Mapping[str, Any]) -> str:
    """The answer to the page's question, in a sentence or two."""
    rows = content["ours"]
    off = [error(row, "catalogue") for row in rows if not apart(row)]
    lost = losses([row for row in rows if not apart(row)], "catalogue")
    fresh = [error(row, "catalogue") for row in rows if apart(row)]
    middle, fresh_middle = (sorted(map(abs, errors))[len(errors) // 2] for errors in (off, fresh))
    return (
        f"Half of {len(off)} runs are predicted within {percent(middle)}, nine in ten within {percent(within(off))}; "
        f"taking the predicted winner costs {percent(sum(lost) / len(lost))} on average. Of {len(fresh)} runs that "
        f"nothing was fitted to, half are within {percent(fresh_middle)}, nine in ten within {percent(within(fresh))}."
    )


def allreduce(content: Mapping[str, Any]) -> str:
    """Predicted and measured winner of an allreduce on eight GPUs, by size, and NCCL."""
    lines = []
    for size in _SIZES:
        ours = [row for row in content["ours"] if _is_it(row, size) and not row["in_place"]]
        nccl = [row for row in content["nccl"] if _is_it(row, size)]
        if not ours or not nccl:
            continue
        said, real = (min(ours, key=lambda row: row[key]) for key in ("catalogue_s", "measured_s"))
        other = nccl[0]
        lines.append(
            [
                format_size(size),
                f"{said['algorithm']}, {said['protocol']}",
                *(format_time(said[key]) for key in ("catalogue_s", "measured_s")),
                f"{real['algorithm']}, {format_time(real['measured_s'])}" if real is not said else "the same",
                *(format_time(other[key]) for key in ("catalogue_s", "measured_s")),
            ]
        )
    head = ("size", "quickest, predicted", "predicted", "measured", "quickest, measured", "NCCL, predicted", "measured")
    return table(head, lines)


def _is_it(row: Row, size: int) -> bool:
    return (row["gpus"], row["collective"], row["size_bytes"]) == (8, "allreduce", size) and not apart(row)


def worst(rows: Sequence[Row]) -> str:
    """The runs that are furthest off."""
    chosen = sorted(rows, key=lambda row: -abs(error(row, "catalogue")))[:_WORST]
    lines = [
        [
            f"{100 * error(row, 'catalogue'):+.0f} %",
            str(row["gpus"]),
            row["collective"],
            f"{row['algorithm']}, {row['protocol']}",
            format_size(row["size_bytes"]),
            format_time(row["measured_s"]),
            format_time(row["catalogue_s"]),
        ]
        for row in chosen
    ]
    return table(("off by", "GPUs", "collective", "algorithm", "size", "measured", "predicted"), lines)


def details(content: Mapping[str, Any]) -> list[str]:
    """Errors by size, GPUs, collective and algorithm, of programs and of NCCL."""
    order = [name for name, _ in BANDS]
    ours = sorted(
        (row for row in content["ours"] if not apart(row)), key=lambda row: (order.index(band(row)), row["gpus"])
    )
    named = sorted(ours, key=lambda row: (row["collective"], row["algorithm"], row["protocol"]))
    nccl = sorted((row for row in content["nccl"] if not apart(row)), key=lambda row: (row["collective"], row["gpus"]))
    both = ("catalogue", "few")
    return [
        table(*by(ours, lambda row: (band(row), str(row["gpus"])), ("size", "GPUs"), both)),
        table(
            *by(named, lambda row: (row["collective"], row["algorithm"], row["protocol"]),
                ("collective", "algorithm", "protocol"), both)
        ),
        "NCCL, its choice given:",
        table(*by(nccl, lambda row: (row["collective"], str(row["gpus"])), ("collective", "GPUs"), both)),
    ]  # fmt: skip


def fresh(content: Mapping[str, Any]) -> list[str]:
    """Errors of the runs that nothing was fitted to."""
    both = ("catalogue", "few")
    rows = [row for row in content["ours"] if apart(row)]
    order = [name for name, _ in BANDS]
    rows.sort(key=lambda row: (row["source"], row["gpus"], order.index(band(row))))
    nccl = [row for row in content["nccl"] if apart(row)]
    lost = losses(rows, "catalogue")
    return [
        table(
            *by(rows, lambda row: (row["source"], str(row["gpus"]), band(row)), ("result", "GPUs", "size"), both),
        ),
        f"Taking the predicted winner costs {percent(sum(lost) / len(lost))} on average here, at worst "
        f"{percent(max(lost))} ({len(lost)} questions).",
        "NCCL:",
        table(*by(nccl, lambda row: (row["source"], str(row["gpus"])), ("result", "GPUs"), both)),
    ]


def text(content: Mapping[str, Any]) -> str:
    """The page."""
    ours = {tuple(row[key] for key in _CASE) for row in content["ours"] if row["fitted"]}
    count = {"ours": len(ours), "nccl": sum(row["fitted"] for row in content["nccl"])}
    parts = [
        HEAD,
        answer(COMMAND, _FIRST),
        # No line begins with a unit.
        textwrap.fill(summary(content).replace(" %", "\0%"), 110).replace("\0", " "),
        f"![Errors of predicted times against size, of our programs and of NCCL]({PICTURE})",
        FEW.format(**count),
        table(*aims(content, "few")),
        CATALOGUE,
        table(*aims(content, "catalogue")),
        APART_WORDS,
        *fresh(content),
        ALLREDUCE,
        allreduce(content),
        WHERE,
        *details(content),
        POOR,
        worst([row for row in content["ours"] if not str(row["source"]).startswith(APART)]),
        END,
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
