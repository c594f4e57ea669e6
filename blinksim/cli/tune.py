"""The command tune: a file by which stock NCCL takes quicker algorithms, protocols and channels."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import click

from blinksim.cli.options import ALL_GPUS
from blinksim.cli.terminal import Working, answer, exports, print_json, typed
from blinksim.errors import InputError
from blinksim.textio.text_table import table
from blinksim.units import format_size, format_time

if TYPE_CHECKING:
    from blinksim.answers.tune import Tuning
    from blinksim.cli.commands import RulesOptions, Tune


def tuned(machine: str, times: str, job: RulesOptions) -> Tuning:
    """The rules that a file of measured times gives on a machine; raises as `blinksim.answers.tune.tune`."""
    from blinksim.answers.tune import tune

    return tune(
        machine,
        times,
        members=job.members,
        nodes=job.nodes,
        nvls=not job.no_nvls,
        least_channels=job.least_channels,
        **({} if job.version is None else {"version": job.version}),
    )


def tune(options: Tune) -> None:
    """Where another of NCCL's own choices is quicker, and the rules for a tuner plugin."""
    from blinksim.answers.choice_times import times_text
    from blinksim.nccl.tuner import tuner_files
    from blinksim.textio.whole_files import write_text

    machine, times, output = options.machine, options.times, options.output
    plugin, force = options.plugin, options.force
    if machine is None:
        if plugin is None:
            raise InputError("name a machine and its measured times, or --gpus to take them (or --plugin FILE alone)")
        place = tuner_files.build(plugin, force=force)
        if options.form.json:
            print_json({"command": "tune", "plugin": str(place), "source": str(tuner_files.SOURCE)})
        else:
            click.echo(f"{place}: the plugin, for NCCL 2.21 and later and RCCL")
            exports({"NCCL_TUNER_PLUGIN": str(place.resolve())})
        return
    if (times is None) == (options.gpus is None):
        raise InputError("give measured times (TIMES) or --gpus to take them here, one of the two")
    options.check_files()
    tuning = tuned(machine, times, options.job) if times is not None else _on_gpus(machine, options)
    exported = tuning.export(options.job.dialect)
    if options.times_to is not None:
        write_text(options.times_to, times_text(tuning.measured, tuning.least_channels, tuning.job), force)
    if output is not None:
        write_text(output, exported.files[""], force)
    if plugin is not None:
        tuner_files.build(plugin, force=force)
    variables = exported.variables(output or "FILE")
    said = {**tuning.to_dict(), "dialect": options.job.dialect, "output": output, "environment": variables}

    def text() -> None:
        _show(tuning)
        if output is None:
            click.echo("next: the same with -o tuner.csv")
            return
        click.echo(f"{output}: {exported.summary}; in the environment of every rank:")
        exports(variables | ({} if plugin is None else {"NCCL_TUNER_PLUGIN": plugin}))
        click.echo("  with whole paths, where ranks start in other folders")
        if plugin is None and "NCCL_TUNER_PLUGIN" in variables:
            click.echo(f"  build the plugin: blinksim tune --plugin {typed(variables['NCCL_TUNER_PLUGIN'])}")
        proof = exported.proof[0].split(" {")[0]
        click.echo(f"  in force if the log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING) says: {proof}")
        for line in exported.notes:
            click.echo(f"  note     {line}")

    answer("tune", lambda: said, text)


def _on_gpus(machine: str, options: Tune) -> Tuning:
    from blinksim.answers.tune import tune_here
    from blinksim.gpu.execution.gpu_clock import ChoiceClock
    from blinksim.nccl.tuner.tuner_files import Choice

    job = options.job
    if job.nodes > 1 or job.members:
        raise InputError("--gpus times the first GPUs of this machine; leave --nodes and --members out")
    nvls = not job.no_nvls and os.environ.get("NCCL_NVLS_ENABLE") != "0"
    gpus = None if options.gpus == ALL_GPUS else options.gpus
    clock = ChoiceClock(gpus, least_channels=job.least_channels, nvls=nvls)
    with Working("building the plugin") as say:

        def measure(collective: str, size: int, choice: Choice) -> float:
            say(f"{collective} of {format_size(size)} by {' '.join(map(str, choice[:2]))}")
            return clock.measure(collective, size, choice)

        tuning = tune_here(
            machine,
            measure,
            members=tuple(range(clock.gpus)),
            nvls=nvls,
            least_channels=job.least_channels,
            most=options.measurements,
            gpus=clock.kind,
            **({} if job.version is None else {"version": job.version}),
        )
    tuning = replace(tuning, version=clock.version)
    clock.close()
    return tuning


def _show(tuning: Tuning) -> None:
    """The sentence, and the sizes at which NCCL's choice changes, neighbours of one change in a row."""
    click.echo(f"{tuning.sentence()}\n")
    cells = []
    for (collective, before, choice), group in groupby(
        tuning.cells, lambda cell: (cell.collective, cell.before, cell.choice)
    ):
        run = list(group)
        if choice == before:
            continue
        sizes = format_size(run[0].size) + (f" to {format_size(run[-1].size)}" if len(run) > 1 else "")
        best = max(run, key=lambda cell: cell.gain)
        times = (format_time(best.before_s), format_time(best.time_s), f"{100 * best.gain:.0f} %")
        cells.append((collective, sizes, _words(before), _words(choice), *times))
    if cells:
        heading = ("collective", "sizes", "NCCL takes", "quicker", "time", "becomes", "saves up to")
        click.echo(table(heading, cells, left=(0, 1, 2, 3)))
    else:
        click.echo("NCCL's own choices are the quickest everywhere, as far as the model can tell")
    click.echo(f"\ncaution: {tuning.caution}\n" if tuning.caution else "")


def _words(choice: tuple[str, str, int]) -> str:
    algorithm, protocol, channels = choice
    return f"{algorithm} {protocol}" + (f", {channels} ch" if channels > 0 else "")
