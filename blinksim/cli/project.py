"""blinksim project: the time of one collective, its terms and its bottleneck."""

from __future__ import annotations

from typing import Any

import click

from blinksim.cli.options import Setting, machine_options, output_options
from blinksim.cli.output import csv_text, names, print_json, table
from blinksim.errors import InputError
from blinksim.units import format_rate, format_time, parse_rate, parse_size


@click.command(
    "project",
    epilog="""\b
Examples:
  blinksim project dgx1-v100 allreduce 256MiB
  blinksim project dgx1-v100 allreduce 256MiB --members 0,1,2,3,4,7 --algorithm all
  blinksim project aurora allreduce 2GB --nodes 16 --ranks-per-node 12 --model aurora-projection""",
)
@click.argument("machine")
@click.argument("collective")
@click.argument("size")
@machine_options
@click.option("--root", type=int, help="Root rank of broadcast, reduce, gather, scatter.  [default: 0]")
@click.option(
    "--algorithm",
    default="best",
    show_default=True,
    help="A name, best (of those that need no solver), or all to rank them.",
)
@click.option(
    "--model",
    default="alpha-beta",
    show_default=True,
    help="alpha-beta, projection (scale-up + scale-out), or a preset such as aurora-projection, which pins its rates.",
)
@click.option(
    "--reduction-rate",
    metavar="RATE",
    help="How fast a rank adds what it receives, such as 500GB/s.  [default: as fast as it arrives]",
)
@click.option("--what-if", is_flag=True, help="With a preset: what each change that its source discusses would do.")
@output_options(table=True)
@click.pass_context
def command(context: click.Context, /, machine: str, collective: str, size: str, **options: Any) -> None:
    """How long will COLLECTIVE of SIZE bytes take on MACHINE, and what takes the time?

    SIZE is the larger of one rank's send and receive buffers, such as 256MiB or 2GB.
    """
    from blinksim import choose
    from blinksim.collective import Collective

    setting = Setting.of(machine, options)
    wanted = Collective.parse(collective, options["root"])
    count = parse_size(size)
    algorithm, model = options["algorithm"], options["model"]
    if options["what_if"] and model == "alpha-beta":
        raise InputError("--what-if goes with a preset, such as --model aurora-projection; use --edit for your own")
    if model != "alpha-beta":
        if options["reduction_rate"]:
            raise InputError(f"--model {model} takes no --reduction-rate")
        chosen_rates = context.get_parameter_source("rates") == click.core.ParameterSource.COMMANDLINE
        found = [_by_preset(setting, wanted, count, algorithm, model, chosen_rates)]
        refused: dict[str, str] = {}
    else:
        topology = setting.select()
        listed = None if algorithm in ("best", "all") else algorithm.split(",")
        contest = choose.contest(topology, wanted, listed)
        gamma = float(1 / parse_rate(options["reduction_rate"])) if options["reduction_rate"] else 0.0
        found, refused = contest.projections(count, gamma), contest.refused
    if options["as_csv"]:
        rows = found if algorithm == "all" else found[:1]
        click.echo(csv_text([_row(projection) for projection in rows]), nl=False)
    elif options["as_json"]:
        answer = {"command": "project", **found[0].to_dict()}
        if len(found) > 1 and algorithm != "best":
            answer["rows"] = [_row(projection) for projection in found]
            answer["refused"] = refused
        if options["what_if"]:
            answer["what_if"] = [
                {"change": c.change, "settings": c.settings, "time_s": c.time_s, "ratio": c.ratio}
                for c in _changes(model, setting, count, found[0])
            ]
        print_json(answer)
    else:
        _show(found, refused, algorithm, setting)
        if options["what_if"]:
            rows = [
                (c.change or "as it is", c.settings, format_time(c.time_s), f"{c.ratio:.2f}x")
                for c in _changes(model, setting, count, found[0])
            ]
            click.echo("\n" + table(("change", "setting", "time", "faster"), rows, left=(0, 1)))


def _by_preset(setting: Setting, wanted: Any, size: int, algorithm: str, model: str, chosen_rates: bool) -> Any:
    from dataclasses import replace

    from blinksim import choose
    from blinksim.cost.presets import load_preset

    if algorithm not in ("best", "all"):
        raise InputError(f"--model {model} has an algorithm of its own; leave --algorithm {algorithm} out")
    if setting.members is not None or setting.relays != "none" or setting.links is not None:
        raise InputError(f"--model {model} takes --nodes and --ranks-per-node, not --members, --relays or --links")
    preset = load_preset(model)
    if preset.rates is not None:
        if chosen_rates and setting.rates != preset.rates:
            raise InputError(f"--model {model} pins the rates {preset.rates!r}; leave --rates {setting.rates} out")
        setting = replace(setting, rates=preset.rates)
    # The terms need one node and its fabric only, so a thousand nodes cost no more than one, unless an edit names one.
    try:
        node = replace(setting, nodes=1).load()
    except InputError:
        if setting.nodes == 1:
            raise
        node = setting.load()
    return choose.project_preset(node, wanted, size, setting.nodes, setting.ranks_per_node, preset.name)


def _changes(model: str, setting: Setting, size: int, found: Any) -> Any:
    from blinksim.cost.projection import bottlenecks

    return bottlenecks(model, size, setting.nodes, len(found.members) // setting.nodes)


def _row(projection: Any) -> dict[str, Any]:
    return {
        "algorithm": projection.algorithm,
        "time_s": projection.time_s,
        "algbw_GBps": projection.algbw / 1e9,
        "busbw_GBps": projection.busbw / 1e9,
        "bottleneck": projection.bottleneck,
    }


def _show(found: list[Any], refused: dict[str, str], algorithm: str, setting: Setting) -> None:
    best = found[0]
    click.echo(best.sentence())
    click.echo("")
    if algorithm == "all":
        rows = [
            (p.algorithm, format_time(p.time_s), format_rate(p.algbw), format_rate(p.busbw), p.bottleneck)
            for p in found
        ]
        click.echo(table(("algorithm", "time", "algbw", "busbw", "bottleneck"), rows))
        for name, reason in refused.items():
            click.echo(f"  {name}: {reason}")
        click.echo("")
    time = best.time_s or 1.0
    terms = [(term.name, format_time(term.time_s), f"{100 * term.time_s / time:.1f} %") for term in best.terms]
    click.echo(table(("term", "time", "share"), [*terms, ("total", format_time(best.time_s), "100.0 %")]))
    click.echo("")
    busy = best.details.get("bottleneck_busy")
    share = f", busy {100 * busy:.0f} % of the time" if busy is not None else ""
    click.echo(f"  bottleneck  {best.bottleneck}{share}")
    if best.bound is not None:
        reached = f"{100 * best.algbw / float(best.bound.rate):.0f} % reached" if best.algbw < float("inf") else ""
        click.echo(f"  bound       {format_rate(best.bound.rate)} algbw, {reached}: {best.bound.words}")
    click.echo(f"  ranks       {len(best.members)}: {names(best.members)}")
    if best.relays:
        click.echo(f"  relays      {names(best.relays)}")
    click.echo(f"  links       {', '.join(best.links)} at {best.rates} rates")
    if algorithm == "best" and best.model == "alpha-beta":
        others = f" (best of {len(found)}; --algorithm all ranks them)" if len(found) > 1 else ""
        click.echo(f"  algorithm   {best.algorithm}{others}")
    if best.details.get("pieces", 1) > 1:
        click.echo(f"  pieces      {best.details['pieces']} per chunk, {best.details['steps']} hops deep")
    click.echo(f"next: blinksim compare {setting.command_line()} {best.collective.name} --plot sizes.png")
