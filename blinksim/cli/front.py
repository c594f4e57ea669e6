"""blinksim synth --pareto: the schedules between the least latency and the best bandwidth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blinksim.cli.options import command_line
from blinksim.cli.output import print_json, typed
from blinksim.cli.progress import Working
from blinksim.errors import BlinksimError, InputError

if TYPE_CHECKING:
    from blinksim.answers.pareto import Pareto
    from blinksim.cli.synth import Options
    from blinksim.collective import Collective
    from blinksim.question import Question

# What chooses or shapes a single schedule.
_ONE = ("polish", "trees", "channels", "alike", "chunks", "steps", "rounds")


def answer(question: Question, collective: Collective, options: Options) -> None:
    """Prints the front, draws it, and writes its schedules to a folder."""
    from blinksim.answers.pareto import SECONDS, pareto

    for key in _ONE:
        if options[key] is not None:  # type: ignore[literal-required]
            raise InputError(f"--{key} is for one schedule, and --pareto asks for several; leave one of them out")
    folder = options["output"]
    if folder is not None and os.path.exists(folder):
        if not os.path.isdir(folder):
            raise InputError(f"-o {folder} is a file; --pareto needs a folder")
        if os.listdir(folder) and not options["force"]:
            raise InputError(f"-o {folder} is a folder with files in it; add --force, or name a new one")
    if options["plot"]:
        from blinksim import plots

        plots.check(options["plot"], force=options["force"])
    seconds = SECONDS if options["time_limit"] is None else options["time_limit"]
    with Working(f"searching schedules of {collective}", quiet=options["quiet"]) as say:
        found = pareto(question.part(), collective, seed=options["seed"] or 0, report=say, seconds=seconds)
    files = [] if folder is None else _write(found, Path(folder), options["force"])
    if options["as_json"]:
        rows = [row | ({"file": files[place]} if files else {}) for place, row in enumerate(found.rows())]
        print_json({"command": "synth", **question.described(found.topology), **found.to_dict(), "rows": rows})
    else:
        click.echo(found.text())
        for edit in question.edits:
            click.echo(f"  edited      {edit}")
        for file in files:
            click.echo(f"  written     {file}")
        again = command_line(question, collective.name, options["root"])
        click.echo(
            f"next: blinksim verify {typed(files[0])}" if files else f"next: blinksim synth {again} --pareto -o front"
        )
    if options["plot"]:
        path = plots.save(plots.pareto(found), options["plot"], force=options["force"])
        click.echo(f"drawn: {path}", err=options["as_json"])


def _write(found: Pareto, folder: Path, force: bool) -> list[str]:
    """Writes every point, verified, as a file of the folder; returns the files."""
    from blinksim.exports import write
    from blinksim.schedule.verify import verify

    for point in found.points:
        verdict = verify(point.schedule)
        if not verdict.ok:
            raise BlinksimError(f"{point.name} is wrong: {verdict.reasons[0]}; this is a fault of blinksim")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: the folder cannot be made: {error.strerror}") from None
    files = []
    for number, point in enumerate(found.points, start=1):
        file = folder / f"{number}-{point.schedule.algorithm}.json"
        write(point.schedule, file, force)
        files.append(str(file))
    return files
