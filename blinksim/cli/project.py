"""blinksim project: the time of one collective, its terms and its bottleneck."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli import calls, nccl
from blinksim.cli.before import before_option, left, unedited
from blinksim.cli.options import (
    MachineOptions,
    TableOptions,
    collective_of,
    command_line,
    machine_options_at,
    output_options,
    question_of,
    root_option,
    traffic_option,
)
from blinksim.cli.output import csv_text, print_json, table, typed
from blinksim.cli.progress import Working
from blinksim.cli.spelling import as_typed
from blinksim.errors import InputError
from blinksim.units import format_size, format_time, in_GBps, parse_rate, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from blinksim.answers.ranking import Ranking
    from blinksim.collective import Collective
    from blinksim.cost.projection import Change
    from blinksim.question import Question
    from blinksim.timing.projection_result import Projection
    from blinksim.timing.timing_model import TimingModel


class Options(MachineOptions, TableOptions, nccl.NcclOptions, calls.CallOptions):
    """What the command line says besides machine, collective and size."""

    root: int | None
    traffic: str | None
    algorithm: str
    model: str
    reduction_rate: str | None
    what_if: bool
    before: bool


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
@click.argument("size", required=False)
@machine_options_at("nominal; nccl for what NCCL chooses; what a model pins")
@root_option
@traffic_option
@click.option(
    "--algorithm",
    default="best",
    show_default=True,
    help="A name, a Python file of your own, best (of those that are found quickly), all to rank them, or nccl for "
    "what NCCL would choose.",
)
@click.option(
    "--model",
    default="auto",
    show_default=True,
    help="auto (execution with --rates measured where constants are known, else alpha-beta), alpha-beta, execution, "
    "simulate, nccl-tuner, projection (scale-up + scale-out), a preset such as aurora-projection, which pins its "
    "rates, or a file of your own.",
)
@click.option(
    "--reduction-rate",
    metavar="RATE",
    help="How fast a rank adds what it receives, such as 500GB/s.  [default: as fast as it arrives]",
)
@click.option("--what-if", is_flag=True, help="With a preset: what each change that its source discusses would do.")
@before_option
@calls.call_options
@nccl.nccl_options
@output_options(table=True)
def command(machine: str, collective: str, size: str | None, **options: Unpack[Options]) -> None:
    """How long will COLLECTIVE of SIZE bytes take on MACHINE, and what takes the time?

    SIZE is the larger of one rank's send and receive buffers, such as 256MiB or 2GB. With --traffic it is that of the
    matrix unless you give another, to which the matrix is scaled.
    """
    from blinksim.answers.ranking import rank

    question = question_of(machine, options)
    unedited(question, options["before"])
    wanted = collective_of(collective, options["root"], options["traffic"])
    bytes_ = _size(size, wanted)
    model = _model(options)
    model.check(question)
    asked = model.at_its_rates(question)
    with Working(f"reading {machine}", quiet=options["quiet"]) as say:
        found = rank(asked, wanted, bytes_, model, options["algorithm"], say)
        was = _before(found, replace(asked, edits=()), options, say) if options["before"] else None
    changes = _changes(found, question) if options["what_if"] else ()
    if options["as_csv"]:
        click.echo(csv_text(found.rows()), nl=False)
    elif options["as_json"]:
        source = {"source": machine, "nodes": question.nodes, "edits": list(question.edits)}
        print_json({"command": "project", **source, **found.to_dict(), **_more(options, changes, was, found)})
    else:
        click.echo(as_typed(found.text()))
        if was is not None:
            detail = f", {format_time(was.time_s)} ({was.algorithm})"
            click.echo(f"  before      {left(was.algbw, found.best.algbw, detail)}")
        _show_changes(changes, question)
        _next(found, question, options)


def _size(given: str | None, collective: Collective) -> int:
    """The size in bytes: as given, else that of the traffic matrix."""
    if given is not None:
        return parse_size(given)
    if collective.traffic is None:
        raise click.UsageError("Missing argument 'SIZE'.")
    return collective.traffic.size


def _model(options: Options) -> TimingModel:
    """The model that the options name, set up with those that it takes; refuses the others."""
    from blinksim.timing import model_registry as models

    algorithm, name = options["algorithm"], options["model"]
    chooser = models.chooser(algorithm)
    if chooser is not None:
        if name not in (models.DEFAULT, chooser):
            raise InputError(f"--algorithm nccl is timed by NCCL's own model; leave --model {name} out")
        name = chooser
    takes = models.settings(name)
    settings: dict[str, object] = {**nccl.settings(options, takes, "say --algorithm nccl")}
    if settings and algorithm not in ("best", "all") and chooser is None:
        raise InputError(f"--model {name} is about NCCL's own algorithms; say --algorithm nccl or all")
    if options["what_if"] and not models.has_equations(name):
        raise InputError(
            "--what-if goes with a preset that has equations, as --model aurora-projection; use --edit for your own"
        )
    if options["reduction_rate"]:
        if "gamma" not in takes:
            raise InputError(f"--model {name} takes no --reduction-rate")
        settings["gamma"] = float(1 / parse_rate(options["reduction_rate"]))
    settings |= calls.settings(options, name, takes)
    return models.model(name, **settings)


def _before(found: Ranking, unedited: Question, options: Options, say: Callable[[str], None]) -> Projection:
    """The answer before the edits, by the model of the one after them: the times of two models do not compare."""
    from blinksim.answers.ranking import rank

    best, model = found.best, _model(options)
    if model.at(unedited)[0].name not in (best.model, model.name):
        model = _model({**options, "model": best.model})
    return rank(unedited, best.collective, best.size, model, options["algorithm"], say).best


def _changes(found: Ranking, question: Question) -> tuple[Change, ...]:
    from blinksim.cost.projection import bottlenecks

    best = found.best
    return bottlenecks(best.model, best.size, question.nodes, len(best.members) // question.nodes)


def _more(options: Options, changes: tuple[Change, ...], was: Projection | None, found: Ranking) -> dict[str, object]:
    """What the JSON says beyond the result."""
    answer: dict[str, object] = {}
    if was is not None:
        answer["before"] = was.to_dict() | {"ratio": found.best.algbw / was.algbw}
    if options["reduction_rate"]:
        answer["reduction_GBps"] = in_GBps(parse_rate(options["reduction_rate"]))
    if changes:
        answer["what_if"] = [
            {"change": c.change, "settings": c.settings, "time_s": c.time_s, "ratio": c.ratio} for c in changes
        ]
    return answer


def _show_changes(changes: tuple[Change, ...], question: Question) -> None:
    if not changes:
        return
    set_here = {setting.partition(" ")[0] for c in changes if c.settings for setting in c.settings.split(", ")}
    constants = sorted(set_here - set(question.whole().link_classes))
    rows = [(c.change or "as it is", c.settings, format_time(c.time_s), f"{c.ratio:.2f}x") for c in changes]
    click.echo("\n" + table(("change", "setting", "time", "faster"), rows, left=(0, 1)))
    if constants:
        click.echo(
            f"  {', '.join(constants)}: no links, which --edit changes, but constants of the model; to try other"
        )
        click.echo("  values, give --model a copy of its file")
    click.echo("")


def _next(found: Ranking, question: Question, options: Options) -> None:
    from blinksim.timing import model_registry as models

    best = found.best
    if found.chosen is not None:
        return
    again = command_line(question, best.collective.name, options["root"], options["traffic"])
    size = format_size(best.size).replace(" ", "")
    # As it was typed: a model in a file has another name in the answer.
    timed_by = best.model if models.chooser(options["algorithm"]) else typed(options["model"])
    if best.bound is None and not options["what_if"] and models.model(best.model).pins_rates:
        click.echo(f"next: blinksim project {again} {size} --model {timed_by} --what-if")
    elif best.bound is not None and options["algorithm"] == "best" and best.algbw < 0.9 * float(best.bound.rate):
        click.echo(f"next: blinksim synth {again} --size {size} -o schedule.json")
    elif best.bound is None:
        # A preset times itself only: other sizes of the same question, by the same model.
        click.echo(f"next: blinksim sweep {again} --sizes 1MB:{size}:x4 --model {timed_by} --plot sizes.png")
    else:
        model = "" if options["model"] == models.DEFAULT else f" --model {timed_by}"
        click.echo(f"next: blinksim compare {again}{model} --plot {best.collective.name}-by-size.png")
