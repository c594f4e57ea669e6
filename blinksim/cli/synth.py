"""blinksim synth: a schedule, proved, with its distance from the best that is possible."""

from __future__ import annotations

from typing import Any

import click

from blinksim.cli.options import Setting, machine_options, output_options
from blinksim.cli.output import print_json
from blinksim.units import exact_GBps, format_rate, format_time


@click.command(
    "synth",
    epilog="""\b
Examples:
  blinksim synth dgx1-v100 allreduce --members 0,1,2,3,4,7 -o trees.json
  blinksim synth dgx1-v100 allgather --algorithm ring -o ring.json""",
)
@click.argument("machine")
@click.argument("collective")
@machine_options
@click.option("--root", type=int, help="Root rank of broadcast, reduce, gather, scatter.  [default: 0]")
@click.option("--algorithm", default="packed", show_default=True, help="What to build; packed attains the bound.")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), metavar="S", help="Seconds for a solver.")
@click.option("--seed", type=int, help="Seed of a solver, for repeatable answers.")
@click.option("-o", "--output", metavar="FILE", help="Where to write the schedule (.json, .json.gz).")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@output_options()
def command(machine: str, collective: str, **options: Any) -> None:
    """Build a schedule of COLLECTIVE on MACHINE, verify it, and write it to a file."""
    from blinksim.collective import Collective
    from blinksim.formats.schedule_json import write_schedule
    from blinksim.formats.text_files import check_target
    from blinksim.synthesis import synthesize

    setting = Setting.of(machine, options)
    wanted = Collective.parse(collective, options["root"])
    if options["output"]:
        # Before the work, not after it.
        check_target(options["output"], options["force"])
    extra = {key: options[key] for key in ("time_limit", "seed") if options[key] is not None}
    topology = setting.select()
    found = synthesize(topology, wanted, options["algorithm"], **extra)
    if options["output"]:
        write_schedule(found.schedule, options["output"], options["force"])
    if options["as_json"]:
        print_json({"command": "synth", **setting.described(topology), **found.to_dict()})
    else:
        _show(found, options["output"], setting)
    if not found.verdict.ok:
        click.get_current_context().exit(1)


def _show(found: Any, output: str | None, setting: Setting) -> None:
    schedule, topology = found.schedule, found.schedule.topology
    gap = "the best that is possible" if found.gap == 0 else f"{100 * float(found.gap):.3g} % below the bound"
    rounded = f" ({format_rate(found.rate)})" if "/" in exact_GBps(found.rate) else ""
    click.echo(
        f"{schedule.collective} on {topology.name} by {schedule.algorithm}: "
        f"{exact_GBps(found.rate)} GB/s algbw{rounded}, {gap}"
    )
    click.echo(
        f"\n  bound     {exact_GBps(found.bounds.rate)} GB/s, {found.bounds.headline.certificate.words(topology)}"
    )
    click.echo(
        f"  schedule  {schedule.chunks} {'trees' if schedule.form == 'forest' else 'chunks'}, {schedule.sends} sends, "
        f"height {found.height}, up to {found.hops} links a send; built in {format_time(found.seconds)}"
    )
    verdict = "every rank ends with what it was promised" if found.verdict.ok else "NOT correct"
    click.echo(f"  verified  {verdict}")
    for reason in found.verdict.reasons:
        click.echo(f"            {reason}")
    if output:
        click.echo(f"  written   {output}")
        click.echo(f"next: blinksim verify {output}")
    else:
        click.echo(f"next: blinksim synth {setting.command_line()} {schedule.collective.name} -o schedule.json")
