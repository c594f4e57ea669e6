"""blinksim calibrate: what the links really carry, from measured times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli.logs import collective_option, part_of, runs_of
from blinksim.cli.numbers import Whole
from blinksim.cli.options import MachineOptions, TextOptions, command_line, machine_options, output_options, question_of
from blinksim.cli.output import attempt, names, print_json, table, typed
from blinksim.cli.progress import Working
from blinksim.errors import InputError
from blinksim.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from blinksim.answers.logs.calibrate import Calibration
    from blinksim.answers.logs.nccl_fit import NcclFit
    from blinksim.answers.measurements.calibrate_gpus import GpuCalibration
    from blinksim.question import Question


# What --gpus stands for without a number.
ALL = 64


class Options(MachineOptions, TextOptions):
    """The options of the command."""

    output: str | None
    force: bool
    no_nvls: bool
    gpus: int | None


@click.command(
    "calibrate",
    epilog="""\b
Examples:
  blinksim calibrate all_reduce.txt --machine hgx-h200 -o rates.yaml
  blinksim project hgx-h200 allreduce 1GiB --rates rates.yaml
  blinksim calibrate --gpus --machine hgx-h200 -o rates.yaml""",
)
@click.argument("logs", metavar="[LOG...]", nargs=-1)
@click.option("--machine", metavar="MACHINE", help="The machine that LOG was measured on, or this one.")
@click.option(
    "--gpus",
    metavar="[N]",
    type=Whole(2, 64),
    is_flag=False,
    flag_value=str(ALL),
    help="Time at most 40 runs on the first N GPUs of this machine (default: all) instead of reading LOG, and fit the "
    "constants of running programs and of NCCL.",
)
@machine_options
@collective_option
@click.option("-o", "--output", metavar="RATES", help="Where to write the rates, as --rates reads them (.yaml).")
@click.option("--force", is_flag=True, help="Replace RATES if it exists.")
@click.option("--no-nvls", is_flag=True, help="NCCL ran with NCCL_NVLS_ENABLE=0.")
@output_options()
def command(logs: tuple[str, ...], machine: str | None, collective: str | None, **options: Unpack[Options]) -> None:
    """Fit alpha and bandwidth of MACHINE's link classes to what nccl-tests measured.

    LOG: text that nccl-tests printed, or its JSON (-J); - for standard input. Several logs, of several collectives
    or numbers of GPUs, are fitted together. Single wild times do not matter, and every figure comes with its
    interval of 95 %.
    """
    if options["gpus"] is not None:
        if logs:
            raise InputError("--gpus measures here; leave the logs out")
        _on_gpus(machine, options)
        return
    if not logs or machine is None:
        raise InputError("give a log and its machine, as in: blinksim calibrate log.txt --machine hgx-h200 (or --gpus)")
    from blinksim.answers.logs.calibrate import calibrate
    from blinksim.answers.logs.series import Series
    from blinksim.formats import rate_tables
    from blinksim.textio.text_files import shown
    from blinksim.textio.whole_files import check_target, write_text

    question = question_of(machine, options)
    target = options["output"]
    if target:
        check_target(target, options["force"])
    whole = question.whole()
    runs = [run for log in logs for run in runs_of(log, collective)]
    series = [Series.of(run, part_of(run, question, whole)) for run in runs]
    source = f"blinksim calibrate of {', '.join(Path(shown(log)).name for log in logs)}"
    multicast, version = not options["no_nvls"], next((run.nccl for run in runs if run.nccl), "")
    found = calibrate(series, machine=whole, source=source, multicast=multicast, version=version)
    place, text = target or "", rate_tables.write(found.table)
    failure = attempt(lambda: write_text(place, text, options["force"])) if target else None
    if failure is not None:
        target = None
    if options["as_json"]:
        described = question.described(series[0].topology)
        print_json({"command": "calibrate", "logs": list(logs), **described, **found.to_dict(), "output": target})
    else:
        _show(found, target, question)
    if failure is not None:
        raise failure


def _on_gpus(machine: str | None, options: Options) -> None:
    """Measures and fits here, and writes and shows what was found."""
    import datetime

    from blinksim import machines
    from blinksim.answers.measurements.calibrate_gpus import calibrate_gpus
    from blinksim.answers.measurements.execution_fit import processes
    from blinksim.formats import rate_tables
    from blinksim.gpu.execution.gpu_clock import GpuClock
    from blinksim.textio.whole_files import check_target, write_text

    target = options["output"]
    if target:
        check_target(target, options["force"])
    whole = machines.this_machine() if machine is None else question_of(machine, options).whole()
    clock = GpuClock(None if options["gpus"] == ALL else options["gpus"])
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    with Working("compiling", quiet=options["quiet"]) as say, processes() as evaluate:
        found = calibrate_gpus(clock, whole, date=day, report=say, evaluate=evaluate)
    clock.close()
    if machine is None:
        # What nvidia-smi lists has no name of its own; the constants are for whatever names these GPUs.
        found = replace(found, table=replace(found.table, machine=""))
    if target:
        write_text(target, rate_tables.write(found.table), options["force"])
    if options["as_json"]:
        print_json({"command": "calibrate", "machine": whole.name, **found.to_dict(), "output": target})
    else:
        _show_gpus(found, target, machine)


def _show_gpus(found: GpuCalibration, target: str | None, machine: str | None) -> None:
    from blinksim.answers.measurements.calibrate_gpus import times_words

    fit = found.execution
    click.echo(f"{fit.rates.hardware}: {len(found.measured)} runs; programs: {fit.error.words()}\n")
    cells = []
    for one in fit.constants:
        scale, unit = (1e6, "us") if one.name.endswith("_s") else (1e-9, "GB/s") if one.value > 1e6 else (1.0, "")
        if one.name == "flags.byte_s":
            scale, unit = 1e12, "us/MB"
        interval = f"{one.low * scale:.4g} to {one.high * scale:.4g}"
        name = one.name.removesuffix("_s")
        cells.append((name, f"{one.value * scale:.4g}", interval, unit, f"{one.before * scale:.4g}"))
    click.echo(table(("constant", "fitted", "95 % interval", "unit", "before"), cells, left=(0, 3)))
    click.echo("")
    for words in times_words(found):
        click.echo(f"  missed most  {words}")
    if found.nccl is not None:
        _show_nccl(found.nccl)
    if fit.kept:
        click.echo(f"  do not show, and kept: {', '.join(fit.kept)}")
    if target:
        click.echo(f"  written   {target}")
        name = "MACHINE" if machine is None else typed(machine)
        click.echo(f"next: blinksim project {name} allreduce 1MiB --rates {typed(target)}")
    else:
        click.echo("next: the same with -o rates.yaml, then --rates rates.yaml for every other command")


def _show_nccl(found: NcclFit) -> None:
    """NCCL's own constants: the fitted ones as a table, and those that the times do not tell apart."""
    cells = []
    for one in found.constants:
        scale, unit = (1e-9, "GB/s") if one.is_rate else (1e6, "us")
        interval = f"{one.low * scale:.4g} to {one.high * scale:.4g}"
        cells.append((one.name, f"{one.value * scale:.4g}", interval, unit, f"{one.before * scale:.4g}"))
    click.echo("")
    click.echo(table(("NCCL's constant", "fitted", "95 % interval", "unit", "before"), cells, left=(0, 3)))
    click.echo(f"\n  NCCL's real time by them: {found.error.words()}")
    if found.kept:
        click.echo(f"  not told apart, and kept: {', '.join(found.kept)}")


def _show_nvls(found: Calibration, target: str | None, question: Question) -> None:
    """What logs of NVLS alone say."""
    assert found.nccl is not None
    assert found.nccl.rates.nvls is not None
    one = max(found.series, key=lambda one: one.topology.ranks)
    ranks, line = one.topology.ranks, found.nccl.rates.nvls
    largest = max(sample.size for sample in one.samples)
    # Every byte passes a port 1 + 1/n times each way.
    port = (1 + 1 / ranks) * largest / line.time(ranks, largest)
    busbw = format_rate(port * 2 * (ranks - 1) / (ranks + 1))
    click.echo(
        f"{one.topology.name}: NCCL ran NVLS, and a port carries {format_rate(port)} while its switch adds "
        f"(busbw {busbw} on {ranks} GPUs at {format_size(largest)}), from {len(found.residuals)} measurements"
    )
    _show_nccl(found.nccl)
    for each in found.series:
        size = format_size(min(sample.size for sample in each.samples))
        click.echo(
            f"  fitted to {each.collective} from {size} on, on {each.topology.ranks} ranks: "
            f"{names(each.topology.members)}"
        )
    click.echo("  nothing about links: rings show what they carry (NCCL_NVLS_ENABLE=0)")
    if target:
        click.echo(f"  written   {target}")
        again = command_line(replace(question, rates=None))
        click.echo(
            f"next: blinksim project {again} {one.collective.name} 1GiB --algorithm nccl --rates {typed(target)}"
        )
    else:
        click.echo("next: the same with -o rates.yaml, then --rates rates.yaml for every other command")


def _show(found: Calibration, target: str | None, question: Question) -> None:
    measured = len(found.residuals)
    if not found.parameters:
        _show_nvls(found, target, question)
        return
    rates = [p for p in found.parameters if p.quantity == "bandwidth"]
    first = (
        f"a lane of {rates[0].kind} carries {rates[0].value / 1e9:.4g} GB/s "
        f"({rates[0].low / 1e9:.4g} to {rates[0].high / 1e9:.4g})"
        if rates
        else "these sizes do not determine a bandwidth"
    )
    click.echo(f"{found.series[0].topology.name}: {first}, from {measured} measurements\n")
    cells = []
    for p in found.parameters:
        scale, unit = (1e-9, "GB/s a lane") if p.quantity == "bandwidth" else (1e6, "us a message")
        interval = f"{p.low * scale:.4g} to {p.high * scale:.4g}"
        cells.append((p.kind, p.quantity, f"{p.value * scale:.4g}", interval, unit, f"{found.before[p] * scale:.4g}"))
    heading = ("link class", "figure", "fitted", "95 % interval", "unit", "before")
    click.echo(table(heading, cells, left=(0, 1, 4)))
    click.echo("")
    for one in found.series:
        click.echo(f"  fitted to {one.collective} on {one.topology.ranks} ranks: {names(one.topology.members)}")
    wild = f", not counting {len(found.wild)} wild {'time' if len(found.wild) == 1 else 'times'}:" if found.wild else ""
    click.echo(f"  median error {100 * found.median_error:.2g} %, largest {100 * found.largest_error:.2g} %{wild}")
    for one, sample, error in found.wild[:8]:
        place = f" (line {sample.line})" if sample.line else ""
        click.echo(
            f"    {one.collective} of {format_size(sample.size)}{place}: {format_time(sample.time_s)}, "
            f"{1 + error:.2g} times the fit"
        )
    if len(found.wild) > 8:
        click.echo(f"    … {len(found.wild) - 8} more (--json)")
    if found.nccl is not None:
        _show_nccl(found.nccl)
    for kind, quantity in found.kept:
        click.echo(f"  the {quantity} of {kind} does not show in these times; it stays what it was")
    if target:
        click.echo(f"  written   {target}")
        name = found.series[0].collective.name
        ring = " --algorithm ring" if name in ("allreduce", "allgather", "reducescatter") else ""
        again = command_line(replace(question, rates=None))
        click.echo(f"next: blinksim project {again} {name} 1GiB{ring} --rates {typed(target)}")
    else:
        click.echo("next: the same with -o rates.yaml, then --rates rates.yaml for every other command")
