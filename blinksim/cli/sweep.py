"""blinksim sweep: every combination of what-ifs, nodes, sizes and algorithms as one table."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli.options import (
    MachineOptions,
    TableOptions,
    check_picture,
    check_where,
    collective_of,
    command_line,
    machine_options_at,
    output_options,
    plot_y_option,
    question_of,
    root_option,
    sizes_option,
    traffic_option,
    where_options,
)
from blinksim.cli.output import attempt, count, csv_text, note, print_json, table
from blinksim.cli.progress import moving
from blinksim.errors import InfeasibleError
from blinksim.units import format_size, format_time, parse_sizes

if TYPE_CHECKING:
    from rich.progress import Progress

    from blinksim.answers.sweeps.sweep import Sweep
    from blinksim.question import Question


class Options(MachineOptions, TableOptions):
    """The options of the command."""

    root: int | None
    traffic: str | None
    sizes: str
    vary: tuple[str, ...]
    algorithms: str
    model: str
    bounds: bool
    workers: int
    cluster: str | None
    output: str | None
    plot: str | None
    plot_y: str
    force: bool


_SHOWN = 40
# Seconds between two lines on the progress, where no bar is shown.
_EVERY_S = 30


@click.command(
    "sweep",
    epilog="""\b
Examples:
  blinksim sweep aurora allreduce --sizes 2GB --vary nodes=2,4,8,16 --vary 'xe bandwidth=15GB/s,53GB/s' \\
      --ranks-per-node 12 --model aurora-projection
  blinksim sweep dgx1-v100 allreduce --sizes 1MiB,256MiB --algorithms ring,packed --bounds \\
      --vary 'edit=none;without gpu0-gpu3;degrade gpu0-gpu4 lanes=1'
  blinksim sweep hgx-h200 allreduce --vary nodes=2,16,128 --workers 2 -o pods.csv --plot pods.png""",
)
@click.argument("machine")
@click.argument("collective")
@machine_options_at("nominal; nccl for what NCCL chooses; what a model pins")
@root_option
@traffic_option
@sizes_option("1MiB:256MiB:x16")
@click.option(
    "--vary",
    multiple=True,
    metavar="WHAT=VALUES",
    help="What differs; may be repeated, all combinations are taken. nodes=1,2,4 (or ranks-per-node, rates); a "
    "property of links: 'xe bandwidth=15GB/s,53GB/s', 'gpu0-gpu3 lanes=1,2'; whole edits, separated by semicolons: "
    "'edit=none;without gpu3' (and so members, relays, links).",
)
@click.option(
    "--algorithms",
    default="best",
    show_default=True,
    help="Names and Python files, separated by commas; best of those that are found quickly, all that need no solver, "
    "nccl: what NCCL would choose; files of schedules (.json, MSCCL's .xml).",
)
@click.option(
    "--model",
    default="alpha-beta",
    show_default=True,
    help="alpha-beta, execution (measured GPUs of one node), simulate, a preset such as projection, or a file of your "
    "own.",
)
@click.option("--bounds", is_flag=True, help="Also the best rate that is possible at every point.")
@where_options
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write all rows there as CSV. Finished work is kept in FILE.journal meanwhile: after a kill the same command "
    "goes on from it.",
)
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw algbw as PNG, SVG or PDF: lines along sizes, nodes and other numbers, a heat map for two categories.",
)
@plot_y_option
@click.option("--force", is_flag=True, help="Replace files that exist.")
@output_options(table=True)
def command(machine: str, collective: str, **options: Unpack[Options]) -> None:
    """How does the time of COLLECTIVE on MACHINE change with what-ifs, nodes, sizes and algorithms?"""
    from blinksim.answers.sweeps import sweep as study

    question = question_of(machine, options)
    check_where(machine, options["workers"], options["cluster"])
    wanted = collective_of(collective, options["root"], options["traffic"])
    algorithms = options["algorithms"].split(",")
    output, quiet = options["output"], options["quiet"]
    _check_targets(options)
    journal = f"{output}.journal" if output else None
    with _Bar(quiet) as progress:
        try:
            found = study.sweep(
                machine,
                wanted,
                parse_sizes(options["sizes"]),
                options["vary"],
                algorithms=algorithms,
                model=options["model"],
                bounds=options["bounds"],
                base=question,
                workers=options["workers"],
                cluster=options["cluster"],
                journal=journal,
                report=progress,
            )
        except BaseException:
            if journal and os.path.exists(journal):
                note(f"what is finished is kept in {journal}; the same command goes on from there", quiet=quiet)
            raise
    if found.resumed:
        note(f"{found.resumed} of {progress.total} pieces of work were taken from {journal}", quiet=quiet)
    for line in found.damaged:
        note(f"{journal}:{line}: is damaged; its work was done again", quiet=quiet)
    rows, failure = found.rows(), None
    if output:
        target = output
        failure = attempt(lambda: _keep(target, csv_text(rows), options["force"]))
        output = None if failure else output
    if options["as_json"]:
        asked = {"source": machine, "collective": found.collective.name, "model": options["model"]}
        print_json(
            {
                "command": "sweep",
                "machine": found.machine,
                **asked,
                "edits": list(question.edits),
                "vary": list(options["vary"]),
                "rows": rows,
            }
        )
    elif options["as_csv"]:
        click.echo(csv_text(rows), nl=False)
    else:
        _show(found, output)
    if failure is not None:
        raise failure
    if options["plot"]:
        from blinksim import plots

        drawn = plots.sweep(found, options["plot_y"])
        path = plots.save(drawn, options["plot"], force=options["force"])
        click.echo(f"drawn: {path}", err=bool(options["as_csv"] or options["as_json"]))
    elif not (options["as_csv"] or options["as_json"]) and 1 <= len(found.varying()) <= 3:
        click.echo(f"next: blinksim sweep {_again(question, collective, options)} --plot sweep.png")
    if len(found.failed) == len(rows):
        raise InfeasibleError(f"no point has an answer: {found.failed[0]['reason']}")


def _check_targets(options: Options) -> None:
    """Refuses files that exist before any work is done."""
    if options["output"]:
        from blinksim.textio.whole_files import check_target

        check_target(options["output"], options["force"])
    check_picture(options["plot"], options["plot_y"], force=options["force"])


def _keep(output: str, text: str, force: bool) -> None:
    """Writes the rows; once they are on disk the journal has no use."""
    from pathlib import Path

    from blinksim.textio.whole_files import write_text

    write_text(output, text, force=force)
    Path(f"{output}.journal").unlink(missing_ok=True)


def _again(question: Question, collective: str, options: Options) -> str:
    words = [command_line(question, collective, options["root"], options["traffic"])]
    for key, default, value in (
        ("sizes", "1MiB:256MiB:x16", options["sizes"]),
        ("algorithms", "best", options["algorithms"]),
        ("model", "alpha-beta", options["model"]),
    ):
        words += [] if value == default else [f"--{key} {shlex.quote(value)}"]
    words += [f"--vary {shlex.quote(text)}" for text in options["vary"]]
    return " ".join([*words, *(["--bounds"] if options["bounds"] else [])])


class _Bar:
    """A progress bar on stderr if that is a terminal, else a line now and then; called with done and total."""

    def __init__(self, quiet: bool) -> None:
        self.total = 0
        self._update: Callable[[int, int], None] | None = None
        self._progress: Progress | None = None
        self._moving = ExitStack()
        self._wanted = not quiet and sys.stderr.isatty()
        self._told, self._last = not quiet and not self._wanted, monotonic()

    def __call__(self, done: int, total: int) -> None:
        self.total = total
        if self._told and monotonic() - self._last > _EVERY_S:
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


def _show(found: Sweep, output: str | None) -> None:
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


def _notes(found: Sweep, several: bool) -> list[str]:
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
