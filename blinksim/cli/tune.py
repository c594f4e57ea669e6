"""blinksim tune: a file that makes stock NCCL take quicker algorithms, protocols and channels."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli.numbers import Whole
from blinksim.cli.options import MACHINE_HELP
from blinksim.cli.output import print_json, table, typed
from blinksim.cli.progress import Working
from blinksim.cli.tuned_job import JobOptions, job_options, release, tuned
from blinksim.errors import InputError
from blinksim.units import format_size, format_time

if TYPE_CHECKING:
    from blinksim.answers.tuning.tune import TunedCell, Tuning

# What --gpus stands for without a number.
_ALL = 64


class Options(JobOptions):
    """The options of the command."""

    gpus: int | None
    measurements: int
    output: str | None
    times_to: str | None
    plugin: str | None
    force: bool
    as_json: bool
    quiet: bool


@click.command(
    "tune",
    epilog="""\b
Examples:
  blinksim tune --plugin libnccl-tuner-blinksim.so
  blinksim tune hgx-h200 --gpus --least-channels 32 --times-to times.csv -o tuner.csv
  blinksim tune hgx-h200 times.csv --dialect ncclx -o tuner.csv""",
    help="Find where another of NCCL's own choices is quicker, and write a file of rules for a tuner plugin.\n\n"
    f"{MACHINE_HELP}\n\nTIMES: measured times of choices, as --times-to writes them.",
)
@click.argument("machine", required=False)
@click.argument("times", required=False)
@click.option(
    "--gpus",
    metavar="[N]",
    type=Whole(2, 64),
    is_flag=False,
    flag_value=str(_ALL),
    help="Time NCCL's choices on the first N GPUs of this machine (default: all) instead of reading TIMES.",
)
@click.option("--measurements", type=Whole(5, 4000), default=40, show_default=True, help="The most times to take.")
@job_options
@click.option("-o", "--output", metavar="FILE", help="Where to write the rules.")
@click.option("--times-to", metavar="FILE", help="Where to write the measured times.")
@click.option("--plugin", metavar="FILE", help="Build the plugin that reads the rules, with the system's C compiler.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(machine: str | None, times: str | None, **options: Unpack[Options]) -> None:
    """The command; its help is above."""
    from blinksim.textio.whole_files import check_target

    if machine is None:
        if options["plugin"] is None:
            raise InputError("name a machine and its measured times, or --gpus to take them (or --plugin FILE alone)")
        _build(options)
        return
    if (times is None) == (options["gpus"] is None):
        raise InputError("give measured times (TIMES) or --gpus to take them here, one of the two")
    for name in ("output", "times_to", "plugin"):
        target = options[name]
        if target is not None:
            check_target(target, options["force"])
    found = tuned(machine, str(times), options) if times is not None else _on_gpus(machine, options)
    exported = found.export(options["dialect"])  # type: ignore[arg-type]
    _write(found, exported.files[""], options)
    if options["as_json"]:
        answer = {"command": "tune", **found.to_dict(), "dialect": options["dialect"], "output": options["output"]}
        print_json({**answer, "environment": exported.variables(options["output"] or "FILE")})
        return
    _show(found)
    if options["output"] is None:
        click.echo("next: the same with -o tuner.csv")
        return
    click.echo(f"{options['output']}: {exported.summary}; in the environment of every rank:")
    variables = exported.variables(options["output"])
    if options["plugin"] is not None:
        variables["NCCL_TUNER_PLUGIN"] = options["plugin"]
    for name, value in variables.items():
        click.echo(f"    export {name}={shlex.quote(value)}")
    click.echo("  with whole paths, where ranks start in other folders")
    if options["plugin"] is None and "NCCL_TUNER_PLUGIN" in variables:
        click.echo(f"  build the plugin: blinksim tune --plugin {typed(variables['NCCL_TUNER_PLUGIN'])}")
    click.echo(
        f"  in force if the log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING) says: {exported.proof[0].split(' {')[0]}"
    )
    for text in exported.notes:
        click.echo(f"  note     {text}")


def _build(options: Options) -> None:
    from blinksim.nccl.tuner import tuner_files

    place = tuner_files.build(str(options["plugin"]), force=options["force"])
    if options["as_json"]:
        print_json({"command": "tune", "plugin": str(place), "source": str(tuner_files.SOURCE)})
    else:
        click.echo(f"{place}: the plugin, for NCCL 2.21 and later and RCCL")
        click.echo(f"    export NCCL_TUNER_PLUGIN={shlex.quote(str(place.resolve()))}")


def _on_gpus(machine: str, options: Options) -> Tuning:
    from blinksim.answers.tuning.tune import tune_here
    from blinksim.gpu.execution.gpu_clock import ChoiceClock
    from blinksim.nccl.tuner.tuner_files import Choice

    if options["nodes"] > 1 or options["members"]:
        raise InputError("--gpus times the first GPUs of this machine; leave --nodes and --members out")
    nvls = not options["no_nvls"] and os.environ.get("NCCL_NVLS_ENABLE") != "0"
    gpus = None if options["gpus"] == _ALL else options["gpus"]
    clock = ChoiceClock(gpus, least_channels=options["least_channels"], nvls=nvls)
    with Working("building the plugin", quiet=options["quiet"]) as say:

        def measure(collective: str, size: int, choice: Choice) -> float:
            say(f"{collective} of {format_size(size)} by {' '.join(map(str, choice[:2]))}")
            return clock.measure(collective, size, choice)

        found = tune_here(
            machine,
            measure,
            members=tuple(range(clock.gpus)),
            nvls=nvls,
            least_channels=options["least_channels"],
            most=options["measurements"],
            gpus=clock.kind,
            **release(options),
        )
    found = replace(found, version=clock.version)
    clock.close()
    return found


def _write(found: Tuning, text: str, options: Options) -> None:
    from blinksim.answers.tuning.times_file import times_text
    from blinksim.nccl.tuner import tuner_files
    from blinksim.textio.whole_files import write_text

    if options["times_to"] is not None:
        write_text(options["times_to"], times_text(found.measured, found.least_channels, found.job), options["force"])
    if options["output"] is not None:
        write_text(options["output"], text, options["force"])
    if options["plugin"] is not None:
        tuner_files.build(options["plugin"], force=options["force"])


def _show(found: Tuning) -> None:
    """The sentence, and the sizes at which NCCL's choice changes, neighbours of one change in a row."""
    click.echo(f"{found.sentence()}\n")
    rows: list[list[TunedCell]] = []
    for cell in found.cells:
        last = rows[-1][-1] if rows else None
        if last is not None and (last.collective, last.before, last.choice) == (
            cell.collective,
            cell.before,
            cell.choice,
        ):
            rows[-1].append(cell)
        else:
            rows.append([cell])
    cells = []
    for run in rows:
        first, last = run[0], run[-1]
        if first.choice == first.before:
            continue
        sizes = format_size(first.size) + (f" to {format_size(last.size)}" if last is not first else "")
        best = max(run, key=lambda cell: cell.gain)
        cells.append(
            (first.collective, sizes, _words(first.before), _words(first.choice), format_time(best.before_s),
             format_time(best.time_s), f"{100 * best.gain:.0f} %")
        )  # fmt: skip
    if cells:
        heading = ("collective", "sizes", "NCCL takes", "quicker", "time", "becomes", "saves up to")
        click.echo(table(heading, cells, left=(0, 1, 2, 3)))
    else:
        click.echo("NCCL's own choices are the quickest everywhere, as far as the model can tell")
    click.echo(f"\ncaution: {found.caution}\n" if found.caution else "")


def _change(cell: TunedCell) -> tuple[object, ...]:
    return cell.collective, cell.before, cell.choice


def _words(choice: tuple[str, str, int]) -> str:
    algorithm, protocol, channels = choice
    return f"{algorithm} {protocol}" + (f", {channels} ch" if channels > 0 else "")
