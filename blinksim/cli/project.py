"""blinksim project: the time of one collective, its terms and its bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from blinksim.cli import nccl
from blinksim.cli.options import command_line, machine_options, output_options, question_of, root_option
from blinksim.cli.output import count, csv_text, names, print_json, table
from blinksim.cli.progress import Working
from blinksim.errors import InputError, unknown
from blinksim.units import format_rate, format_size, format_time, parse_rate, parse_size

if TYPE_CHECKING:
    from blinksim.question import Question


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
@root_option
@click.option(
    "--algorithm",
    default="best",
    show_default=True,
    help="A name, best (of those that need no solver), all to rank them, or nccl for what NCCL would choose.",
)
@click.option(
    "--model",
    default="alpha-beta",
    show_default=True,
    help="alpha-beta, simulate, nccl-tuner, projection (scale-up + scale-out), or a preset such as aurora-projection, "
    "which pins its rates.",
)
@click.option(
    "--reduction-rate",
    metavar="RATE",
    help="How fast a rank adds what it receives, such as 500GB/s.  [default: as fast as it arrives]",
)
@click.option("--what-if", is_flag=True, help="With a preset: what each change that its source discusses would do.")
@nccl.nccl_options
@output_options(table=True)
@click.pass_context
def command(context: click.Context, /, machine: str, collective: str, size: str, **options: Any) -> None:
    """How long will COLLECTIVE of SIZE bytes take on MACHINE, and what takes the time?

    SIZE is the larger of one rank's send and receive buffers, such as 256MiB or 2GB.
    """
    from blinksim.answers import project
    from blinksim.collective import Collective

    question = question_of(machine, options)
    wanted = Collective.parse(collective, options["root"])
    bytes_ = parse_size(size)
    algorithm, model = options["algorithm"], options["model"]
    if algorithm == "nccl" or model == nccl.MODEL:
        nccl.project(nccl.at_nccl_rates(question, context), wanted, bytes_, options)
        return
    nccl.refuse_options(options, "say --algorithm nccl")
    if options["what_if"] and model in project.SCHEDULE_MODELS:
        raise InputError("--what-if goes with a preset, such as --model aurora-projection; use --edit for your own")
    if model not in project.SCHEDULE_MODELS:
        _known(model)
        if options["reduction_rate"]:
            raise InputError(f"--model {model} takes no --reduction-rate")
        chosen_rates = context.get_parameter_source("rates") == click.core.ParameterSource.COMMANDLINE
        found = [_by_preset(question, wanted, bytes_, algorithm, model, chosen_rates)]
        refused: dict[str, str] = {}
    else:
        listed = None if algorithm in ("best", "all") else algorithm.split(",")
        gamma = float(1 / parse_rate(options["reduction_rate"])) if options["reduction_rate"] else 0.0
        with Working(f"reading {machine}", quiet=options["quiet"]) as say:
            contest = project.contest(question.part(), wanted, listed, say, model)
            say("timing" if model == "alpha-beta" else "simulating")
            found, refused = contest.projections(bytes_, gamma), contest.refused
    if options["as_csv"]:
        rows = found if algorithm == "all" else found[:1]
        click.echo(csv_text([projection.row() for projection in rows]), nl=False)
    elif options["as_json"]:
        asked = {"source": machine, "nodes": question.nodes, "edits": list(question.edits)}
        answer = {"command": "project", **asked, **found[0].to_dict()}
        if options["reduction_rate"]:
            answer["reduction_GBps"] = float(parse_rate(options["reduction_rate"])) / 1e9
        if len(found) > 1 and algorithm != "best":
            answer["rows"] = [projection.row() for projection in found]
            answer["refused"] = refused
        if options["what_if"]:
            answer["what_if"] = [
                {"change": c.change, "settings": c.settings, "time_s": c.time_s, "ratio": c.ratio}
                for c in _changes(model, question, bytes_, found[0])
            ]
        print_json(answer)
    else:
        _show(found, refused, algorithm, question)
        if options["what_if"]:
            rows = [
                (c.change or "as it is", c.settings, format_time(c.time_s), f"{c.ratio:.2f}x")
                for c in _changes(model, question, bytes_, found[0])
            ]
            click.echo("\n" + table(("change", "question", "time", "faster"), rows, left=(0, 1)) + "\n")
        _next(found[0], question, options)


def _known(model: str) -> None:
    from blinksim.answers.project import SCHEDULE_MODELS
    from blinksim.cost.presets import preset_names

    if model.removeprefix("projection:") not in preset_names():
        raise unknown("model", model, (*SCHEDULE_MODELS, nccl.MODEL, *preset_names()))


def _next(best: Any, question: Question, options: dict[str, Any]) -> None:
    again = command_line(question, best.collective.name, options["root"])
    if best.bound is None and not options["what_if"]:
        click.echo(f"next: blinksim project {again} SIZE --model {best.model} --what-if".replace("SIZE", _size(best)))
    elif best.bound is not None and options["algorithm"] == "best" and best.algbw < 0.9 * float(best.bound.rate):
        click.echo(f"next: blinksim synth {again} -o schedule.json")
    else:
        click.echo(f"next: blinksim compare {again} --plot {best.collective.name}-by-size.png")


def _size(best: Any) -> str:
    return format_size(best.size).replace(" ", "")


def _by_preset(question: Question, wanted: Any, size: int, algorithm: str, model: str, chosen_rates: bool) -> Any:
    from dataclasses import replace

    from blinksim.answers import project
    from blinksim.cost.presets import load_preset

    if algorithm not in ("best", "all"):
        raise InputError(f"--model {model} has an algorithm of its own; leave --algorithm {algorithm} out")
    if question.members is not None or question.relays != "none" or question.links is not None:
        raise InputError(f"--model {model} takes --nodes and --ranks-per-node, not --members, --relays or --links")
    preset = load_preset(model)
    if preset.rates is not None:
        if chosen_rates and question.rates != preset.rates:
            raise InputError(f"--model {model} pins the rates {preset.rates!r}; leave --rates {question.rates} out")
        question = replace(question, rates=preset.rates)
    # The terms need one node and its fabric only, so a thousand nodes cost no more than one, unless an edit names one.
    try:
        node = replace(question, nodes=1).whole()
    except InputError:
        if question.nodes == 1:
            raise
        node = question.whole()
    return project.project_preset(node, wanted, size, question.nodes, question.ranks_per_node, preset.name)


def _changes(model: str, question: Question, size: int, found: Any) -> Any:
    from blinksim.cost.projection import bottlenecks

    return bottlenecks(model, size, question.nodes, len(found.members) // question.nodes)


def _show(found: list[Any], refused: dict[str, str], algorithm: str, question: Question) -> None:
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
            click.echo(f"  {reason if reason.startswith(name) else f'{name}: {reason}'}")
        click.echo("")
    time = best.time_s or 1.0
    terms = [(term.name, format_time(term.time_s), f"{100 * term.time_s / time:.1f} %") for term in best.terms]
    click.echo(table(("term", "time", "share"), [*terms, ("total", format_time(best.time_s), "100.0 %")]))
    click.echo("")
    busy = best.details.get("bottleneck_busy")
    share = f", busy {100 * busy:.0f} % of the time" if busy is not None else ""
    click.echo(f"  bottleneck  {best.bottleneck}{share}")
    if best.bound is not None:
        reached = best.algbw / float(best.bound.rate)
        click.echo(f"  at most     {format_rate(best.bound.rate)} algbw, of which this is {100 * reached:.1f} %:")
        click.echo(f"              {best.bound.words}")
    click.echo(f"  ranks       {len(best.members)}: {names(best.members)}")
    if best.relays:
        click.echo(f"  relays      {names(best.relays)}")
    click.echo(f"  links       {', '.join(best.links)} at {best.rates} rates")
    for edit in question.edits:
        click.echo(f"  edited      {edit}")
    if algorithm == "best" and best.bound is not None:
        others = f", best of {len(found)} that need no solver; --algorithm all ranks them" if len(found) > 1 else ""
        click.echo(f"  algorithm   {best.algorithm}{others}")
    if best.model == "simulate":
        alone = format_time(best.details["loads_s"])
        click.echo(f"  model       every piece at every link; the loads alone need {alone}")
    if best.bound is None:
        click.echo("  model       bandwidths only, no latencies: for large sizes")
    if best.details.get("pieces", 1) > 1:
        click.echo(f"  pieces      {best.details['pieces']} per chunk, {count(best.details['steps'], 'hop')} deep")
