"""blinksim compare: algorithms against sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli import calls, nccl
from blinksim.cli.numbers import Decimal
from blinksim.cli.options import (
    MachineOptions,
    TableOptions,
    check_picture,
    collective_of,
    machine_options_at,
    output_options,
    plot_y_option,
    question_of,
    root_option,
    sizes_option,
    traffic_option,
)
from blinksim.cli.output import csv_text, print_json
from blinksim.cli.progress import Working
from blinksim.cli.spelling import as_typed
from blinksim.errors import InfeasibleError, InputError
from blinksim.units import parse_sizes

if TYPE_CHECKING:
    from blinksim.answers.compare import Comparison
    from blinksim.answers.models import Models
    from blinksim.collective import Collective
    from blinksim.question import Question
    from blinksim.timing.contest import Answer
    from blinksim.timing.timing_model import TimingModel
    from blinksim.topology.graph import Topology

# Seconds of search for a schedule that stands in the picture at one size.
_SECONDS_A_SIZE = 0.6


class Options(MachineOptions, TableOptions, nccl.NcclOptions, calls.CallOptions):
    """What the command line says besides machine and collective."""

    root: int | None
    traffic: str | None
    sizes: str
    algorithms: str | None
    model: str
    plot: str | None
    plot_y: str
    search: float | None
    force: bool


@click.command(
    "compare",
    epilog="""\b
Examples:
  blinksim compare dgx1-v100 allreduce
  blinksim compare hgx-h200 allreduce --sizes 1KiB:1GiB:x4 --algorithms ring,two_shot,direct --plot sizes.png
  blinksim compare dgx1-v100 allreduce --members 1,4,5,7 --algorithms nccl,chains,packed
  blinksim compare p5.48xlarge allreduce --nodes 64 --model nccl-tuner --sizes 1MiB:2GiB --plot ring-or-tree.png
  blinksim compare dgx1-v100 allreduce --algorithms ring,mine.json,theirs.xml --plot mine.png
  blinksim compare dgx1-v100 allreduce --model alpha-beta,simulate,nccl-tuner --sizes 1MiB:1GiB:x8""",
)
@click.argument("machine")
@click.argument("collective")
@machine_options_at("nominal; nccl for what NCCL chooses")
@root_option
@traffic_option
@sizes_option("1KiB:1GiB")
@click.option(
    "--algorithms",
    help="Names and Python files, separated by commas; nccl is what NCCL would choose. Files of schedules stand beside "
    "them: blinksim's own (.json), MSCCL's (.xml) and MSCCL++'s (.json).  [default: all that are found quickly]",
)
@click.option(
    "--model",
    default="auto",
    show_default=True,
    help="auto (execution with --rates measured where constants are known, else alpha-beta), alpha-beta, execution or "
    "simulate; nccl-tuner for NCCL's own ring and tree; several stand side by side for the same algorithms.",
)
@click.option(
    "--search",
    type=Decimal(0, min_open=True),
    metavar="SECONDS",
    help="Also search so long, for each size, a schedule that is made for it, as synth --size does; all are simulated.",
)
@calls.call_options
@nccl.nccl_options
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw algbw against size as PNG, SVG or PDF, with the bounds and what was measured there.",
)
@plot_y_option
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@output_options(table=True)
def command(machine: str, collective: str, **options: Unpack[Options]) -> None:
    """Which algorithm of COLLECTIVE is best on MACHINE at which size?"""
    from blinksim.answers import compare as study
    from blinksim.answers.quickest import quicker_made, some_sizes
    from blinksim.timing import model_registry as registry
    from blinksim.timing.projection_result import Projection

    question = question_of(machine, options)
    wanted = collective_of(collective, options["root"], options["traffic"])
    sizes = parse_sizes(options["sizes"])
    listed = options["algorithms"].split(",") if options["algorithms"] else None
    models = [name.strip() for name in options["model"].split(",")]
    if len(models) > 1:
        calls.settings(options, "several models", ())
        _across(question, wanted, sizes, models, listed, options)
        return
    check_picture(options["plot"], options["plot_y"], force=options["force"])
    timing: str = models[0]
    if registry.times_schedules(timing):
        chosen = [name for name in listed or () if registry.chooser(name)]
        others = _choices(chosen, question, wanted, options)
        if chosen:
            listed = [name for name in listed or () if name not in chosen]
    else:
        others, listed, timing = _own(timing, listed, question, wanted, options), [], registry.DEFAULT
    model = registry.schedule_model(timing, **calls.settings(options, timing, registry.settings(timing)))
    with Working(f"reading {machine}", quiet=options["quiet"]) as say:
        part, seconds, drawn_too = question.part(collective=wanted), options["search"], dict[int, Projection]()
        found = study.compare(part, wanted, sizes, listed, say, others, model, seconds)
        if options["plot"] and seconds is None and timing == registry.DEFAULT and not (listed or others):
            drawn_too = quicker_made(part, wanted, some_sizes(part, sizes), _SECONDS_A_SIZE, say)
    _show(found, question, options)
    if options["plot"]:
        from blinksim import plots

        drawn = plots.compare(replace(found, made=found.made | drawn_too), y=options["plot_y"])
        path = plots.save(drawn, options["plot"], force=options["force"])
        click.echo(f"drawn: {path}", err=bool(options["as_csv"] or options["as_json"]))


def _choices(names: list[str], question: Question, collective: Collective, options: Options) -> dict[str, Answer]:
    """What libraries choose, by name, as functions of the size; at their own rates, unless the question names some."""
    from blinksim.timing import model_registry as registry

    if not names:
        nccl.settings(options, (), "name nccl in --algorithms")
    found: dict[str, Answer] = {}
    for name in names:
        chooser = registry.chooser(name) or ""
        model = registry.model(chooser, **nccl.settings(options, registry.settings(chooser), ""))
        found[name] = _answer(*model.at(model.at_its_rates(question)), collective, name)
    return found


def _own(
    name: str, listed: list[str] | None, question: Question, collective: Collective, options: Options
) -> dict[str, Answer]:
    """What a model that times no schedules says of its own algorithms, such as NCCL's ring and tree."""
    from blinksim.timing import model_registry as registry

    takes = registry.settings(registry.check(name, registry.MODELS))
    model = registry.model(name, **nccl.settings(options, takes, "name nccl-tuner in --model"))
    asked = model.at_its_rates(question)
    model.check(asked)
    model, topology = model.at(asked)
    known = [own for own in model.algorithms(topology, collective) if not registry.chooser(own)]
    if not known:
        raise InfeasibleError(f"{name} times no {collective}")
    return {own: _answer(model, topology, collective, own) for own in (word.strip() for word in listed or known)}


def _answer(model: TimingModel, topology: Topology, collective: Collective, name: str) -> Answer:
    return lambda size: replace(model.times(topology, collective, [size], [name])[0], algorithm=name)


def _across(
    question: Question,
    collective: Collective,
    sizes: list[int],
    names: list[str],
    listed: list[str] | None,
    options: Options,
) -> None:
    """Prints the same algorithms by several models."""
    from blinksim.answers.models import across_models
    from blinksim.timing import model_registry as registry

    if options["plot"]:
        raise InputError("--plot draws one model; name one, or take --csv")
    if options["search"] is not None:
        raise InputError("--search makes schedules for the links alone; name one model, or none")
    for name in filter(registry.chooser, listed or ()):
        raise InputError(f"several models compare algorithms by name; ask for ring or double_binary instead of {name}")
    taken = {name: registry.settings(registry.check(name, registry.MODELS)) for name in names}
    if not any("graph_file" in takes for takes in taken.values()):
        nccl.settings(options, (), "name nccl-tuner in --model")
    models: list[TimingModel] = []
    for name, takes in taken.items():
        model = registry.model(name, **(nccl.settings(options, takes, "") if "graph_file" in takes else {}))
        # One table for all: the ratios are to show the models, not the rates.
        question = model.at_its_rates(question)
        models.append(model)
    models = [model if registry.times_schedules(model.name) else model.at(question)[0] for model in models]
    with Working(f"reading {question.machine}", quiet=options["quiet"]) as say:
        part = question.part(collective=collective)
        found = across_models(part, collective, sizes, models, listed or ("ring", "double_binary"), say)
    _show(found, question, options)


def _show(found: Comparison | Models, question: Question, options: Options) -> None:
    if options["as_csv"]:
        click.echo(csv_text(found.rows()), nl=False)
    elif options["as_json"]:
        print_json({"command": "compare", **question.described(found.topology), **found.to_dict()})
    else:
        click.echo(as_typed(found.text(question.edits)))
