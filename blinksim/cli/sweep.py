"""blinksim sweep: every combination of what-ifs, nodes, sizes and algorithms as one table."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from blinksim.cli.options import collective_of, command_line, question_of, typed_options
from blinksim.cli.terminal import answer, csv_text, drawn, flagged, moving, note, written
from blinksim.errors import InfeasibleError
from blinksim.textio.text_table import count, table
from blinksim.units import format_size, format_time, parse_sizes

if TYPE_CHECKING:
    from rich.progress import Progress

    from blinksim.answers.sweep import Sweep as Study
    from blinksim.cli.commands import Sweep

_SHOWN = 40
# Seconds between two lines on the progress, where no bar is shown.
_EVERY_S = 30


def sweep(options: Sweep) -> None:
    """Every combination of what-ifs, nodes, sizes and algorithms as one table."""
    from blinksim.answers import sweep as study
    from blinksim.textio.whole_files import write_text

    question, machine, form = question_of(options.machine, options.where), options.machine, options.form
    options.work.check(machine)
    wanted = collective_of(options.collective, options.root, options.traffic)
    algorithms = options.algorithms.split(",")
    options.check_files()
    journal = f"{options.output}.journal" if options.output else None
    with _Bar() as progress:
        try:
            found = study.sweep(
                machine,
                wanted,
                parse_sizes(options.sizes),
                options.vary,
                algorithms=algorithms,
                model=options.model,
                bounds=options.bounds,
                base=question,
                workers=options.work.workers,
                cluster=options.work.cluster,
                journal=journal,
                report=progress,
            )
        except BaseException:
            if journal and os.path.exists(journal):
                note(f"what is finished is kept in {journal}; the same command goes on from there")
            raise
    if found.resumed:
        note(f"{found.resumed} of {progress.total} pieces of work were taken from {journal}")
    for line in found.damaged:
        note(f"{journal}:{line}: is damaged; its work was done again")
    rows = found.rows()

    def keep(target: str) -> None:
        """Writes the rows; once they are on disk the journal has no use."""
        write_text(target, csv_text(rows), force=options.force)
        Path(f"{target}.journal").unlink(missing_ok=True)

    with written(options.output, keep) as output:
        asked = {"source": machine, "collective": found.collective.name, "model": options.model}
        edited = {"edits": list(question.edits), "vary": list(options.vary)}
        said = {"machine": found.machine, **asked, **edited, "rows": rows}
        answer("sweep", lambda: said, lambda: _show(found, output), lambda: rows)
    if options.plot:
        from blinksim import plots

        drawn(plots.sweep(found, options.plot_y), options.plot, options.force)
    elif not (form.csv or form.json) and 1 <= len(found.varying()) <= 3:
        again = command_line(question, options.collective, options.root, options.traffic)
        again += typed_options(options, "sizes", "algorithms", "model", "vary", "bounds")
        click.echo(f"next: blinksim sweep {again} --plot sweep.png")
    if len(found.failed) == len(rows):
        raise InfeasibleError(f"no point has an answer: {found.failed[0]['reason']}")


class _Bar:
    """A progress bar on stderr if that is a terminal, else a line now and then; called with done and total."""

    def __init__(self) -> None:
        self.total = 0
        self._progress: Progress | None = None
        self._moving = ExitStack()
        self._wanted = not flagged("quiet") and sys.stderr.isatty()
        self._last = monotonic()

    def __call__(self, done: int, total: int) -> None:
        self.total = total
        if not self._wanted and monotonic() - self._last > _EVERY_S:
            note(f"{done} of {total} pieces of work are done")
            self._last = monotonic()
        if self._wanted and self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("sweep", total=total, completed=done)
            self._progress.start()
            self._moving.enter_context(moving())
        if self._progress is not None:
            self._progress.update(self._task, completed=done)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._moving.close()


def _show(found: Study, output: str | None) -> None:
    rows, varying = found.rows(), found.varying()
    answered = [row for row in rows if not row["reason"]]
    if answered:
        best = max(answered, key=lambda row: row["algbw_GBps"])
        slow = min(answered, key=lambda row: row["algbw_GBps"])
        low, high = (f"{row['algbw_GBps']:.4g}" for row in (slow, best))
        # Where all points are alike, none is best.
        at = ", ".join(f"{_title(column)} {_cell(column, best[column])}" for column in varying if low != high)
        lost = f"; {len(found.failed)} without an answer" if found.failed else ""
        span = f"{low if low == high else f'{low} to {high}'} GB/s algbw over {count(len(rows), 'point')}"
        click.echo(f"{found.collective} on {found.machine}: {span}{f', best at {at}' if at else ''}{lost}\n")
    bounded = "bound_algbw_GBps" in rows[0]
    several = len({row["rates"] for row in rows}) > 1 and "rates" not in varying
    # What was asked for says it all, unless that is a choice.
    chosen = [] if "asked" in varying and all(row["asked"] == row["algorithm"] for row in answered) else ["algorithm"]
    header = [*(_title(column) for column in varying), "ranks"]
    header += ["takes" if "asked" in varying else "algorithm"] if chosen else []
    header += ["time", "algbw GB/s"]
    header += ["rates"] if several else []
    header += ["bound", "of it"] if bounded else []
    cells = []
    for row in rows[:_SHOWN]:
        line = [_cell(column, row[column]) for column in varying]
        if row["reason"]:
            line += ["", *(["-" if "asked" in varying else row["asked"]] if chosen else []), "-", "-"]
        else:
            line += [str(row["ranks"]), *(row[key] for key in chosen), format_time(row["time_s"])]
            line.append(f"{row['algbw_GBps']:.4g}")
        line += [row["rates"]] if several else []
        if bounded:
            most, share = row["bound_algbw_GBps"], row["of_bound"]
            line += ["-" if most is None else f"{most:.4g}", "-" if share is None else f"{100 * share:.1f} %"]
        cells.append(line)
    text = {i for i, column in enumerate(varying) if any(isinstance(row[column], str) for row in rows)}
    text |= {place for place, name in enumerate(header) if name in ("takes", "algorithm", "rates")}
    click.echo(table(header, cells, left=text))
    for words in [*_notes(found, several), *(f"edited {edit}" for edit in found.base.edits)]:
        click.echo(f"  {words}")
    if len(rows) > _SHOWN:
        click.echo(f"  … {len(rows) - _SHOWN} more (--csv has all, -o FILE keeps them)")
    for reason in dict.fromkeys(row["reason"] for row in found.failed):
        times = sum(row["reason"] == reason for row in found.failed)
        click.echo(f"\n  no answer for {times}: {reason}", nl=False)
    click.echo("\n" if found.failed else "", nl=bool(not found.failed))
    if output:
        click.echo(f"written: {output}")


def _notes(found: Study, several: bool) -> list[str]:
    """At which rates the rows are, and what their bounds assume."""
    rows = found.rows()
    tables = list(dict.fromkeys(row["rates"] for row in rows))
    if several:
        notes = ["what NCCL chooses is at its own rates; --rates takes one table for all"]
    else:
        notes = [f"all at {tables[0]} rates"] if len(tables) == 1 else []
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
        return format_size(value)
    if column.endswith("_s") and isinstance(value, float):
        return format_time(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
