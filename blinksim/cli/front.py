"""blinksim synth --pareto: the schedules between the least latency and the best bandwidth."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blinksim.cli.options import command_line
from blinksim.cli.output import print_json, typed
from blinksim.cli.progress import Working
from blinksim.cli.spelling import as_typed
from blinksim.errors import BlinksimError, InputError, unknown

if TYPE_CHECKING:
    from blinksim.answers.pareto import Tradeoff
    from blinksim.cli.synth import Options
    from blinksim.collective import Collective
    from blinksim.question import Question

# What a folder says of the front whose schedules it holds.
_SAVED = "front.json"
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
    if options["front"] is not None:
        _from_saved(options["front"], question, collective, options)
        return
    seconds = SECONDS if options["time_limit"] is None else options["time_limit"]
    with Working(f"searching schedules of {collective}", quiet=options["quiet"]) as say:
        found = pareto(
            question.part(collective=collective), collective, seed=options["seed"] or 0, report=say, seconds=seconds
        )
    points = found.points if chosen is None else (found.points[_number(chosen, found.rows())],)
    files = [] if target is None else _write(points, target, options["force"], alone=chosen is not None)
    written = dict(zip((point.name for point in points), files, strict=False))
    rows = [row | ({"file": written[row["name"]]} if row["name"] in written else {}) for row in found.rows()]
    answer = {"command": "synth", **question.described(found.topology), **found.to_dict(), "rows": rows}
    if target is not None and chosen is None:
        _save(answer, rows, target)
    if options["as_json"]:
        print_json(answer)
    else:
        click.echo(as_typed(found.text()))
        for edit in question.edits:
            click.echo(f"  edited      {edit}")
        for file in files:
            click.echo(f"  written     {file}")
        again = command_line(question, collective.name, options["root"])
        limit = "" if options["time_limit"] is None else f" --time-limit {options['time_limit']:g}"
        click.echo(
            f"next: blinksim verify {typed(files[0])}"
            if files
            else f"next: blinksim synth {again} --pareto{limit} -o front"
        )
    if options["plot"]:
        path = plots.save(plots.pareto(found), options["plot"], force=options["force"])
        click.echo(f"drawn: {path}", err=options["as_json"])
    if found.interrupted:
        click.get_current_context().exit(130)


def _save(answer: Mapping[str, object], rows: Sequence[Mapping[str, object]], folder: str) -> None:
    """Writes what the front says beside its schedules, whose names there are those in the folder."""
    from blinksim.textio.whole_files import write_text

    saved = [{**row, "file": Path(str(row["file"])).name} for row in rows]
    write_text(Path(folder) / _SAVED, json.dumps({**answer, "rows": saved}, indent=1) + "\n", force=True)


def _from_saved(folder: str, question: Question, collective: Collective, options: Options) -> None:
    """Writes a point of a front that a folder has, verified, without a search."""
    from blinksim.exports import write
    from blinksim.formats.schedule_json import read_schedule
    from blinksim.schedule.verify import verify
    from blinksim.textio.strict_json import parse
    from blinksim.textio.text_files import MIB, read_bytes

    chosen, target = options["point"], options["output"]
    if chosen is None or target is None:
        raise InputError("--front is where --point is taken from, and -o where it is written; give all three")
    place = Path(folder) / _SAVED
    saved = parse(place, read_bytes(place, MIB, "front"), "front")
    rows = saved.get("rows") if isinstance(saved, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and {"name", "file"} <= row.keys() for row in rows):
        raise InputError(f"{place}: no front with files; make one with blinksim synth … --pareto -o {folder}")
    row = rows[_number(chosen, rows)]
    file = Path(folder) / Path(str(row["file"])).name
    schedule = read_schedule(file)
    part = question.part(collective=collective)
    if schedule.collective != collective or schedule.topology.links != part.links:
        what = f"{schedule.collective} on {schedule.topology.name}"
        raise InputError(f"{file} is for {what}; ask for the same, or search anew")
    verdict = verify(schedule)
    if not verdict.ok:
        raise InputError(f"{file} is wrong: {verdict.reasons[0]}")
    write(schedule, target, options["force"])
    if options["as_json"]:
        found = {"name": row["name"], "algorithm": schedule.algorithm, "file": target}
        print_json({"command": "synth", **question.described(part), "collective": collective.name, "rows": [found]})
    else:
        click.echo(f"{collective} on {part.name}: {row['name']}, verified")
        click.echo(f"  written     {target}")
        click.echo(f"next: blinksim verify {typed(target)}")


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


def _number(chosen: str, rows: Sequence[Mapping[str, object]]) -> int:
    """The place of the point with this number or name."""
    by_name = {str(row["name"]): place for place, row in enumerate(rows)}
    if chosen in by_name:
        return by_name[chosen]
    last = len(rows)
    if chosen.isascii() and chosen.isdigit():
        if not 1 <= int(chosen[:9]) <= last:
            raise InputError(f"--point {chosen}: the schedules have the numbers 1 to {last} here")
        return int(chosen) - 1
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
