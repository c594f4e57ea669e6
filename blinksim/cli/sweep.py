"""The command sweep: every combination of edits, nodes, sizes and algorithms as one table."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from blinksim.cli.options import collective_of, command_line, question_of, typed_options
from blinksim.cli.terminal import Working, answer, csv_text, drawn, note, written
from blinksim.errors import InfeasibleError
from blinksim.textio.text_table import count, table
from blinksim.units import format_size_about, format_time, parse_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blinksim.answers.pool import Rows
    from blinksim.answers.sweep import Sweep as Study
    from blinksim.cli.commands import Sweep

_SHOWN = 40
# Seconds between two lines on the progress, where no line moves.
_EVERY_S = 30


def sweep(options: Sweep) -> None:
    """Every combination of what-ifs, nodes, sizes and algorithms as one table."""
    from blinksim.answers import sweep as study
    from blinksim.textio.whole_files import write_text

    question, machine, form = question_of(options.machine, options.where), options.machine, options.form
    options.work.check(machine)
    wanted = collective_of(options.collective, options.root, options.traffic)
    options.check_files()
    journal = f"{options.output}.journal" if options.output else None
    total, start, last = 0, monotonic(), monotonic()
    with Working(f"sweeping {options.collective} on {machine}") as say:

        def report(done: int, of: int) -> None:
            nonlocal total, last
            total, now = of, monotonic()
            if now - last > _EVERY_S and not sys.stderr.isatty():
                note(f"{done} of {of} pieces of work are done")
                last = now
            left = f", about {format_time((now - start) * (of - done) / done)} left" if done else ""
            say(f"{done} of {of} pieces of work are done{left}")

        try:
            swept = study.sweep(
                machine,
                wanted,
                parse_sizes(options.sizes),
                options.vary,
                algorithms=options.algorithms or (),
                model=options.model,
                bounds=options.bounds,
                base=question,
                **vars(options.work),
                journal=journal,
                report=report,
            )
        except BaseException:
            if journal and os.path.exists(journal):
                note(f"what is finished is kept in {journal}; the same command goes on from there")
            raise
    if swept.resumed:
        note(f"{swept.resumed} of {total} pieces of work were taken from {journal}")
    for line in swept.damaged:
        note(f"{journal}:{line}: is damaged; its work was done again")
    rows = swept.rows()

    def keep(target: str) -> None:
        """Writes the rows; once they are on disk the journal has no use."""
        write_text(target, csv_text(rows), force=options.force)
        Path(f"{target}.journal").unlink(missing_ok=True)

    with written(options.output, keep) as output:
        asked = {
            "source": machine,
            "collective": swept.collective.name,
            "model": options.model or ("alpha-beta" if options.algorithms else "library"),
        }
        edited = {"edits": list(question.edits), "vary": list(options.vary)}
        said = {"machine": swept.machine, **asked, **edited, "rows": rows}
        answer("sweep", lambda: said, lambda: _show(swept, output), lambda: rows)
    drawn(options.plot, options.force, "sweep", swept, options.plot_y)
    if not (options.plot or form.csv or form.json) and 1 <= len(swept.varying()) <= 3:
        again = command_line(question, options.collective, options.root, options.traffic)
        again += typed_options(options, "sizes", "algorithms", "model", "vary", "bounds")
        click.echo(f"next: blinksim sweep {again} --plot sweep.png")
    if len(swept.failed) == len(rows):
        raise InfeasibleError(f"no point has an answer: {swept.failed[0]['reason']}")


def _show(swept: Study, output: str | None) -> None:
    rows, varying = swept.rows(), swept.varying()
    answered = [row for row in rows if not row["reason"]]
    if answered:
        click.echo(f"{_sentence(swept, answered)}\n")
    several = len({row["rates"] for row in answered}) > 1 and "rates" not in varying
    # What was asked for says it all, unless that is a choice.
    asked = "asked" in varying
    chosen = not asked or any(row["asked"] != row["algorithm"] for row in answered)
    chosen &= any(not row.get("library") for row in answered)
    lines = _lines(rows[:_SHOWN], varying, chosen=chosen, several=several)
    header = list(lines[0])
    words = {_title(column) for column in varying if any(isinstance(row[column], str) for row in rows)}
    left = [place for place, name in enumerate(header) if name in words | {"takes", "algorithm", "rates"}]
    click.echo(table(header, [list(line.values()) for line in lines], left=left))
    for text in [*_notes(swept, several), *(f"edited {edit}" for edit in swept.base.edits)]:
        click.echo(f"  {text}")
    if len(rows) > _SHOWN:
        click.echo(f"  … {len(rows) - _SHOWN} more (--csv has all, -o FILE keeps them)")
    for reason in dict.fromkeys(row["reason"] for row in swept.failed):
        times = sum(row["reason"] == reason for row in swept.failed)
        click.echo(f"\n  no answer for {times}: {reason}", nl=False)
    click.echo("\n" if swept.failed else "", nl=bool(not swept.failed))
    if output:
        click.echo(f"written: {output}")


def _sentence(swept: Study, answered: Rows) -> str:
    """From which rate to which, and where it is best."""
    best = max(answered, key=lambda row: row["algbw_GBps"])
    slow = min(answered, key=lambda row: row["algbw_GBps"])
    low, high = (f"{row['algbw_GBps']:.4g}" for row in (slow, best))
    # Where all points are alike, none is best.
    at = ", ".join(f"{_title(column)} {_cell(column, best[column])}" for column in swept.varying() if low != high)
    lost = f"; {len(swept.failed)} without an answer" if swept.failed else ""
    span = f"{low if low == high else f'{low} to {high}'} GB/s algbw over {count(len(swept.rows()), 'point')}"
    return f"{swept.collective} on {swept.machine}: {span}{f', best at {at}' if at else ''}{lost}"


def _lines(rows: Rows, varying: Sequence[str], *, chosen: bool, several: bool) -> list[dict[str, str]]:
    """The rows of the table, by the names of its columns."""
    asked, lines = "asked" in varying, []
    for row in rows:
        failed = bool(row["reason"])
        line = {_title(column): _cell(column, row[column]) for column in varying}
        line["ranks"] = "" if failed else str(row["ranks"])
        if chosen:
            line["takes" if asked else "algorithm"] = row["algorithm"] if not failed else "-" if asked else row["asked"]
        line["time"] = "-" if failed else format_time(row["time_s"])
        for key in ("could_take_s", "cannot_take_less_s"):
            if key in row:
                line[_title(key.removesuffix("_s"))] = "-" if row[key] is None else format_time(row[key])
        line["algbw GB/s"] = "-" if failed else f"{row['algbw_GBps']:.4g}"
        if several:
            line["rates"] = row["rates"]
        if "bound_algbw_GBps" in row:
            most, share = row["bound_algbw_GBps"], row["of_bound"]
            line["bound"] = "-" if most is None else f"{most:.4g}"
            line["of it"] = "-" if share is None else f"{100 * share:.1f} %"
        lines.append(line)
    return lines


def _notes(swept: Study, several: bool) -> list[str]:
    """At which rates the rows are, and what their bounds assume."""
    rows = swept.rows()
    tables = list(dict.fromkeys(row["rates"] for row in rows if not row["reason"]))
    if several:
        notes = ["what NCCL chooses is at its own rates; --rates takes one table for all"]
    else:
        notes = [f"all at {tables[0]} rates"] if len(tables) == 1 else []
    libraries = dict.fromkeys(row["library"] for row in rows if row.get("library"))
    notes += [f"time with {' or '.join(libraries)}; --csv has its interval"] if libraries else []
    held: dict[str, dict[str, None]] = {}  # bounds in GB/s, by what they assume
    for row in rows:
        if row.get("bound_assumes"):
            held.setdefault(row["bound_assumes"], {})[f"{row['bound_algbw_GBps']:.4g}"] = None
    for assumes, rates in held.items():
        which = f"bound of {', '.join(rates)} GB/s" if len(held) > 1 and len(rates) < 4 else "bound"
        notes.append(f"the {which} assumes: {assumes}")
    missing = dict.fromkeys(row["bound_reason"] for row in rows if row.get("bound_reason") and not row["reason"])
    return [*notes, *(f"no bound: {reason}" for reason in missing)]


def _title(column: str) -> str:
    return {"size_bytes": "size", "asked": "algorithm"}.get(column, column.replace("_GBps", " GB/s").replace("_", " "))


def _cell(column: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if column == "size_bytes":
        return format_size_about(value)
    if column.endswith("_s") and isinstance(value, float):
        return format_time(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
