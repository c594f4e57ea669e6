"""blinksim run: a schedule run for real, its data checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast

import click

from blinksim.cli.numbers import Whole
from blinksim.cli.options import ScheduleMachineOptions, read_schedule, schedule_machine_options
from blinksim.cli.output import note, print_json, table
from blinksim.errors import InputError
from blinksim.units import format_rate, format_size, format_size_about, format_time

if TYPE_CHECKING:
    from blinksim.gpu.execution.gpu_pairs import Way
    from blinksim.gpu.execution.run import Execution


class RunFlags(TypedDict):
    """The options that go to `execute` as they are."""

    executor: Literal["numpy", "cupy"]
    op: str
    dtype: str
    check: bool
    in_place: bool
    protocol: Literal["simple", "ll128"] | None
    warmup: int
    iterations: int
    seed: int | None
    lane_blocks: int | None


class Options(RunFlags, ScheduleMachineOptions):
    """All options but those of the command itself."""


@click.command(
    "run",
    epilog="""\b
Examples:
  blinksim run schedule.json 1000003 --executor numpy --op prod --dtype int32 --check
  blinksim run msccl.xml 1MiB --machine dgx1-v100
  blinksim run schedule.json 1GiB --executor cupy
  blinksim run schedule.json 256MiB --executor cupy --lane-blocks 1
  blinksim run --pairs""",
)
@click.argument("schedule", required=False)
@click.argument("size", required=False)
@schedule_machine_options
@click.option("--executor", type=click.Choice(["numpy", "cupy"]), default="numpy", show_default=True)
@click.option("--op", default="sum", show_default=True, help="sum, prod, min or max.")
@click.option("--dtype", default="float32", show_default=True, help="Such as float32, bfloat16, int32.")
@click.option("--check/--no-check", default=True, show_default=True, help="Compare every rank's data afterwards.")
@click.option("--in-place", is_flag=True, help="Use one buffer for input and output.")
@click.option(
    "--protocol",
    type=click.Choice(["simple", "ll128"]),
    help="Flags behind the data, or packets that carry them, over NVLink.  [default: on GPUs the quicker one for this "
    "size; with --lane-blocks and on the CPU simple]",
)
@click.option("--warmup", type=Whole(0), default=5, show_default=True, help="Iterations not counted (GPUs).")
@click.option("--iterations", type=Whole(1), default=20, show_default=True, help="Timed iterations (GPUs).")
@click.option("--seed", type=Whole(0), help="Order in which NumPy runs the blocks.  [default: in turn]")
@click.option(
    "--lane-blocks",
    type=Whole(1),
    metavar="N",
    help="Emulate the schedule's machine: N thread blocks for every lane of a link, and no other way out of a GPU.",
)
@click.option("--pairs", is_flag=True, help="Measure every pair of GPUs, way by way, instead of running a schedule.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(schedule: str | None, size: str | None, pairs: bool, as_json: bool, **options: Unpack[Options]) -> None:
    """Run SCHEDULE with vectors of SIZE bytes; exit status 1 if the data are wrong.

    NumPy interprets on the CPU the same program that GPUs run through CuPy; its time says nothing about a machine.
    """
    if pairs:
        _only_pairs(options)
        _pairs(schedule, as_json)
        return
    if schedule is None or size is None:
        raise InputError("give a schedule file and a size, as in: blinksim run schedule.json 64MiB (or --pairs)")
    from blinksim.gpu.execution.run import execute

    if options["executor"] == "numpy":
        idle = [f"--{name}" for name in ("warmup", "iterations") if _given(name)]
        if idle:
            note(f"{' and '.join(idle)}: no effect without --executor cupy; NumPy runs once and takes no time")
    flags = cast("RunFlags", {name: options[name] for name in RunFlags.__annotations__})  # type: ignore[literal-required]
    found = execute(read_schedule(schedule, options), size, **flags)
    if as_json:
        print_json({"command": "run", "schedule": schedule, **found.to_dict()})
    else:
        _show(found)
    if not found.ok:
        click.get_current_context().exit(1)


def _given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


def _only_pairs(options: Options) -> None:
    """Raises `InputError` if options are given that ``--pairs`` would ignore."""
    given = [name for name in options if _given(name) and (name != "executor" or options["executor"] != "cupy")]
    if given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"--pairs measures links, on GPUs and in its own way; leave out {named}")


def _show(found: Execution) -> None:
    what = f"{found.algorithm} {found.collective} of {format_size(found.used_bytes)} on {len(found.members)} ranks"
    if found.wrong is None:
        state = "not checked"
    else:
        state = "correct" if found.ok else f"WRONG: {found.wrong} elements differ"
    click.echo(f"{what}, {found.executor}, {found.dtype}{' ' + found.op if found.collective.reduces else ''}: {state}")
    if found.rounding:
        click.echo(f"  {found.rounding}")
    if found.wrong is not None:
        click.echo(f"  largest error {found.max_error:g} (tolerance: {found.tolerance})")
    if found.time_s is not None and found.algbw is not None and found.busbw is not None:
        click.echo(
            f"  median of {len(found.times_s)}: {format_time(found.time_s)}, algbw {format_rate(found.algbw)}, "
            f"busbw {format_rate(found.busbw)}; {format_time(min(found.times_s))} to {format_time(max(found.times_s))}"
        )
        cut = f"{found.slices} slices, pieces of {format_size_about(found.piece_bytes)}"
        how = f"protocol {found.protocol}" + (", staged" if found.staged else "")
        click.echo(f"  on {', '.join(dict.fromkeys(found.hardware))}; {how}, {cut}")


def _pairs(schedule: str | None, as_json: bool) -> None:
    if schedule is not None:
        raise InputError("--pairs measures the links between GPUs; leave the schedule out")
    from blinksim.gpu.execution.gpu_devices import measure_pairs
    from blinksim.gpu.execution.gpu_pairs import measure_ways

    ways = measure_ways()
    found = measure_pairs()
    if as_json:
        print_json({"command": "run", **found, "ways": [way.to_dict() for way in ways]})
        return
    header = ("", *(f"gpu{i}" for i in range(len(found["gpus"]))))
    for title, values in (
        (f"copies of {format_size(found['size_bytes'])}, GB/s", _cells(found["GBps"], 1.0)),
        ("small copies, us", _cells(found["latency_s"], 1e6)),
    ):
        click.echo(f"{title}\n{table(header, [(f'gpu{i}', *row) for i, row in enumerate(values)])}\n")
    click.echo(f"{_ways(ways)}\n")
    click.echo(f"on {', '.join(dict.fromkeys(found['gpus']))}")


def _ways(ways: Sequence[Way]) -> str:
    """One row for each way and number of blocks, over all GPUs: the slowest and the fastest."""
    groups: dict[tuple[str, int], list[Way]] = {}
    for way in ways:
        groups.setdefault((way.way, way.blocks), []).append(way)
    rows = []
    for (name, blocks), group in groups.items():
        rates = [way.rate / 1e9 for way in group]
        alphas = [way.alpha_s * 1e6 for way in group]
        spread = (f"{min(rates):.4g}", f"{max(rates):.4g}", f"{min(alphas):.3g}", f"{max(alphas):.3g}")
        rows.append((name, str(blocks or "-"), str(len(group)), *spread))
    header = ("way", "blocks a peer", "measured", "GB/s least", "most", "alpha us least", "most")
    return "\n".join(("way by way (time = alpha + bytes / rate)", table(header, rows)))


def _cells(rows: list[list[float | None]], scale: float) -> list[list[str]]:
    return [["-" if value is None else f"{value * scale:.4g}" for value in row] for row in rows]
