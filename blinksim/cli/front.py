"""blinksim synth --pareto: the schedules between the least latency and the best bandwidth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blinksim.cli.options import command_line
from blinksim.cli.output import print_json, typed
from blinksim.cli.progress import Working
from blinksim.cli.spelling import as_typed
from blinksim.errors import BlinksimError, InputError, unknown

if TYPE_CHECKING:
    from blinksim.answers.pareto import Pareto, Tradeoff
    from blinksim.cli.synth import Options
    from blinksim.collective import Collective
    from blinksim.question import Question

# What chooses or shapes a single schedule.
_ONE = ("algorithm", "size", "polish", "trees", "channels", "alike", "chunks", "steps", "rounds")


def answer(question: Question, collective: Collective, options: Options) -> None:
    """Prints the front, draws it, and writes its schedules to a folder, or the one that is chosen to a file."""
    from blinksim.answers.pareto import SECONDS, pareto

    for key in _ONE:
        if options[key] is not None:  # type: ignore[literal-required]
            raise InputError(f"{_typed(key)} is for one schedule, and --pareto asks for several; leave one of them out")
    target, chosen = options["output"], options["point"]
    if chosen is None:
        _check_folder(target, options["force"])
    else:
        _check_file(target, options["force"])
    if options["plot"]:
        from blinksim import plots

        plots.check(options["plot"], force=options["force"])
    seconds = SECONDS if options["time_limit"] is None else options["time_limit"]
    with Working(f"searching schedules of {collective}", quiet=options["quiet"]) as say:
        found = pareto(
            question.part(collective=collective), collective, seed=options["seed"] or 0, report=say, seconds=seconds
        )
    points = found.points if chosen is None else (_point(found, chosen),)
    files = [] if target is None else _write(points, target, options["force"], alone=chosen is not None)
    if options["as_json"]:
        written = dict(zip((point.name for point in points), files, strict=False))
        rows = [row | ({"file": written[row["name"]]} if row["name"] in written else {}) for row in found.rows()]
        print_json({"command": "synth", **question.described(found.topology), **found.to_dict(), "rows": rows})
    else:
        click.echo(as_typed(found.text()))
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


def _typed(key: str) -> str:
    return "--chunks-per-rank" if key == "chunks" else f"--{key}"


def _check_folder(folder: str | None, force: bool) -> None:
    """Refuses a folder that cannot take the schedules, before the work."""
    if folder is not None and os.path.exists(folder):
        if not os.path.isdir(folder):
            raise InputError(f"-o {folder} is a file; --pareto needs a folder, or --point and the one to write there")
        if os.listdir(folder) and not force:
            raise InputError(f"-o {folder} is a folder with files in it; add --force, or name a new one")


def _check_file(file: str | None, force: bool) -> None:
    """Refuses a file that cannot take a schedule, before the work."""
    from blinksim.textio.whole_files import check_target

    if file is None:
        raise InputError("--point is for a file; name it with -o")
    if not file.endswith((".json", ".json.gz")):
        raise InputError(f"-o {file}: a schedule file ends in .json or .json.gz")
    check_target(file, force)


def _point(found: Pareto, chosen: str) -> Tradeoff:
    """The point with this number or name."""
    by_name = {point.name: point for point in found.points}
    if chosen in by_name:
        return by_name[chosen]
    last = len(found.points)
    if chosen.isascii() and chosen.isdigit():
        if not 1 <= int(chosen[:9]) <= last:
            raise InputError(f"--point {chosen}: the schedules have the numbers 1 to {last} here")
        return found.points[int(chosen) - 1]
    raise unknown("point", chosen, by_name, hint=f"(or a number from 1 to {last})")


def _write(points: Sequence[Tradeoff], target: str, force: bool, *, alone: bool) -> list[str]:
    """Writes points, verified, as files of the folder `target`, or one alone as that file; returns the files."""
    from blinksim.exports import write
    from blinksim.schedule.verify import verify

    for point in points:
        verdict = verify(point.schedule)
        if not verdict.ok:
            raise BlinksimError(f"{point.name} is wrong: {verdict.reasons[0]}; this is a fault of blinksim")
    if alone:
        write(points[0].schedule, target, force)
        return [target]
    folder = Path(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: the folder cannot be made: {error.strerror}") from None
    files = []
    for number, point in enumerate(points, start=1):
        file = folder / f"{number}-{point.schedule.algorithm}.json"
        write(point.schedule, file, force)
        files.append(str(file))
    return files
