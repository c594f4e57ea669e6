"""What project and compare say of NCCL: their options for it, and the answer to --algorithm nccl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from blinksim.question import Question


from blinksim.cli.output import csv_text, names, print_json, table
from blinksim.errors import InputError
from blinksim.units import format_rate, format_time

F = TypeVar("F", bound=Callable[..., Any])
MODEL = "nccl-tuner"


def nccl_options(command: F) -> F:
    """Adds what can be said about NCCL."""
    for option in (
        click.option("--no-nvls", is_flag=True, help="With nccl: without NVLS, as NCCL_NVLS_ENABLE=0."),
        click.option("--nccl-graph", metavar="FILE", help="With nccl: the channels of a graph file (NCCL_GRAPH_FILE)."),
        click.option("--nccl-version", help="With nccl: whose figures, 2.28.3 or 2.30.7.  [default: 2.28.3]"),
    ):
        command = option(command)
    return command


def refuse_options(options: dict[str, Any], cure: str) -> None:
    """Raises `InputError` if an option for NCCL is given where NCCL is not asked about."""
    for key in ("nccl_version", "nccl_graph", "no_nvls"):
        if options[key]:
            raise InputError(f"--{key.replace('_', '-')} is about NCCL; {cure}, or leave it out")


def at_nccl_rates(question: Question, context: click.Context) -> Question:
    """The question with the rates that NCCL computes with, unless the command line names others."""
    chosen = context.get_parameter_source("rates") == click.core.ParameterSource.COMMANDLINE
    return question if chosen else replace(question, rates="nccl")


def prediction(question: Question, options: dict[str, Any]) -> tuple[Any, Any]:
    """NCCL's channels for a question, and the whole machine that they were searched on."""
    from blinksim.nccl.tuner.constants import DEFAULT_VERSION
    from blinksim.timing import nccl_model as study

    nodes: int | None = None
    # NCCL plans for one node, so that a thousand nodes cost no more than one, unless an option names one of them.
    named = (question.members or "", *question.edits)
    if question.nodes > 1 and not question.members and not any("n0." in text or "fabric" in text for text in named):
        try:
            whole = replace(question, nodes=1).whole()
            nodes = question.nodes
        except InputError:
            whole = question.whole()
    else:
        whole = question.whole()
    if nodes is not None and whole.fabric is None:
        whole, nodes = question.whole(), None
    found = study.predict_with(
        whole,
        question.member_names(whole),
        nodes=nodes,
        version=options["nccl_version"] or DEFAULT_VERSION,
        multicast=not options["no_nvls"],
        graph_file=options["nccl_graph"],
    )
    return found, whole


def project(question: Question, wanted: Any, size: int, options: dict[str, Any]) -> None:
    """Prints what NCCL would choose, and with --algorithm all what else it could."""
    from blinksim.timing import nccl_model as study

    algorithm, model = options["algorithm"], options["model"]
    if algorithm not in ("best", "all", "nccl"):
        raise InputError(f"--model {MODEL} is about NCCL's own algorithms; say --algorithm nccl or all")
    if model not in ("alpha-beta", MODEL):
        raise InputError(f"--algorithm nccl is timed by NCCL's own model; leave --model {model} out")
    for key in ("reduction_rate", "what_if"):
        if options[key]:
            raise InputError(f"NCCL's model takes no --{key.replace('_', '-')}")
    if question.relays != "none":
        raise InputError(f"NCCL does not relay through GPUs that are not members; leave --relays {question.relays} out")
    if question.links is not None:
        raise InputError(f"NCCL takes links by rules of its own; leave --links {question.links} out")
    found, whole = prediction(question, options)
    best = study.choice(found, whole, wanted, size)
    rows = study.projections(found, whole, wanted, size) if algorithm == "all" else [best]
    if options["as_csv"]:
        click.echo(csv_text([projection.row() for projection in rows]), nl=False)
    elif options["as_json"]:
        asked = {"source": question.machine, "nodes": question.nodes, "edits": list(question.edits)}
        more = {"rows": [projection.row() for projection in rows]} if algorithm == "all" else {}
        print_json({"command": "project", **asked, **best.to_dict(), **more})
    else:
        _show(best, rows if algorithm == "all" else [], found, question)


def chooser(question: Question, wanted: Any, options: dict[str, Any]) -> Callable[[int], Any]:
    """What NCCL would choose, as a function of the size in bytes."""
    from blinksim.timing import nccl_model as study

    found, whole = prediction(question, options)
    return lambda size: study.choice(found, whole, wanted, size)


def tuned(question: Question, wanted: Any, options: dict[str, Any]) -> Callable[[int], Any]:
    """All that NCCL could choose, as a function of the size in bytes."""
    from blinksim.timing import nccl_model as study

    found, whole = prediction(question, options)
    return lambda size: study.projections(found, whole, wanted, size)


def _show(best: Any, rows: list[Any], found: Any, question: Question) -> None:
    click.echo(best.sentence() + "\n")
    if rows:
        cells = [(p.algorithm, format_time(p.time_s), format_rate(p.algbw), format_rate(p.busbw)) for p in rows]
        click.echo(table(("algorithm", "time", "algbw", "busbw"), cells) + "\n")
    time = best.time_s or 1.0
    terms = [(term.name, format_time(term.time_s), f"{100 * term.time_s / time:.1f} %") for term in best.terms]
    click.echo(table(("term", "time", "share"), [*terms, ("total", format_time(best.time_s), "100.0 %")]) + "\n")
    click.echo(f"  bottleneck  {best.bottleneck}")
    click.echo(f"  NCCL takes  {best.details['nccl_algorithm']}, {best.details['nccl_protocol']} protocol")
    orders = best.details["channel_orders"]
    if orders:
        click.echo(f"  channel 0   {names(orders[0])}")
    click.echo(f"  ranks       {len(best.members)}: {names(best.members)}")
    click.echo(f"  rates       {best.rates}; figures of NCCL {found.version}")
    for edit in question.edits:
        click.echo(f"  edited      {edit}")
    for text in found.assumed:
        click.echo(f"  assumed     {text}")
