"""blinksim compare: algorithms against sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from blinksim.cli import nccl
from blinksim.cli.options import machine_options, output_options, question_of, root_option, sizes_option
from blinksim.cli.output import csv_text, names, print_json, table
from blinksim.cli.progress import Working
from blinksim.errors import InputError
from blinksim.units import format_size, format_size_about, format_time

if TYPE_CHECKING:
    from blinksim.question import Question

_COLUMNS = 5


@click.command(
    "compare",
    epilog="""\b
Examples:
  blinksim compare dgx1-v100 allreduce
  blinksim compare hgx-h200 allreduce --sizes 1KiB:1GiB:x4 --algorithms ring,two_shot,direct --plot sizes.png
  blinksim compare dgx1-v100 allreduce --members 1,4,5,7 --algorithms nccl,chains,packed
  blinksim compare dgx1-v100 allreduce --model alpha-beta,simulate,nccl-tuner --sizes 1MiB:1GiB:x8""",
)
@click.argument("machine")
@click.argument("collective")
@machine_options
@root_option
@sizes_option("1KiB:1GiB")
@click.option(
    "--algorithms",
    help="Names, separated by commas; nccl is what NCCL would choose.  [default: all that need no solver]",
)
@click.option(
    "--model",
    default="alpha-beta",
    show_default=True,
    help="alpha-beta or simulate; several, also nccl-tuner, stand side by side for the same algorithms.",
)
@nccl.nccl_options
@click.option("--plot", metavar="FILE", help="Draw algbw against size as PNG, SVG or PDF.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@output_options(table=True)
@click.pass_context
def command(context: click.Context, /, machine: str, collective: str, **options: Any) -> None:
    """Which algorithm of COLLECTIVE is best on MACHINE at which size?"""
    from blinksim.answers import compare as study
    from blinksim.collective import Collective

    question = question_of(machine, options)
    wanted = Collective.parse(collective, options["root"])
    sizes = study.parse_sizes(options["sizes"])
    listed = options["algorithms"].split(",") if options["algorithms"] else None
    models = [name.strip() for name in options["model"].split(",")]
    if len(models) > 1 or models[0] == nccl.MODEL:
        _across(question, wanted, sizes, models, listed, options, context)
        return
    others = {}
    if listed is not None and "nccl" in listed:
        question = nccl.at_nccl_rates(question, context)
        listed = [name for name in listed if name != "nccl"]
        others = {"nccl": nccl.chooser(question, wanted, options)}
    else:
        nccl.refuse_options(options, "name nccl in --algorithms")
    if options["plot"]:
        from blinksim import plots

        plots.check(options["plot"], force=options["force"])
    with Working(f"reading {machine}", quiet=options["quiet"]) as say:
        found = study.compare(question.part(), wanted, sizes, listed, say, others, models[0])
    if options["as_csv"]:
        click.echo(csv_text(found.rows()), nl=False)
    elif options["as_json"]:
        print_json({"command": "compare", **question.described(found.topology), **_answer(found)})
    else:
        _show(found, question)
    if options["plot"]:
        path = plots.save(plots.compare(found), options["plot"], force=options["force"])
        click.echo(f"drawn: {path}", err=bool(options["as_csv"] or options["as_json"]))


def _across(
    question: Question,
    wanted: Any,
    sizes: list[int],
    models: list[str],
    listed: list[str] | None,
    options: dict[str, Any],
    context: click.Context,
) -> None:
    """Prints the same algorithms by several models."""
    from blinksim.answers import models as study

    if options["plot"]:
        raise InputError("--plot draws one model; name one, or take --csv")
    if listed is not None and "nccl" in listed:
        raise InputError("several models compare algorithms by name; ask for ring or double_binary instead of nccl")
    tuner = None
    if nccl.MODEL in models:
        question = nccl.at_nccl_rates(question, context)
        tuner = nccl.tuned(question, wanted, options)
    else:
        nccl.refuse_options(options, f"name {nccl.MODEL} in --model")
    with Working(f"reading {question.machine}", quiet=options["quiet"]) as say:
        found = study.across_models(
            question.part(), wanted, sizes, models, listed or ("ring", "double_binary"), tuner, say
        )
    if options["as_csv"]:
        click.echo(csv_text(found.rows()), nl=False)
        return
    if options["as_json"]:
        answer = {"collective": wanted.name, "rows": found.rows(), "refused": found.refused}
        print_json({"command": "compare", **question.described(found.topology), **answer})
        return
    topology = found.topology
    click.echo(f"{wanted} on {topology.name}: the same algorithm by {', '.join(models)}")
    click.echo("\n  algbw in GB/s, and the time over that of the first model\n")
    cells = []
    for size in found.sizes:
        for name in found.algorithms:
            first = found.found.get((size, name, models[0]))
            line = [format_size(size), name]
            for place, model in enumerate(models):
                timed = found.found.get((size, name, model))
                line.append("-" if timed is None else f"{timed.algbw / 1e9:.4g}")
                if place:
                    line.append("-" if timed is None or first is None else f"{timed.time_s / first.time_s:.2f}x")
            cells.append(tuple(line))
    header = ["size", "algorithm", models[0]]
    for model in models[1:]:
        header += [model, "time"]
    click.echo(table(tuple(header), cells, left=(1,)) + "\n")
    click.echo(f"  ranks {topology.ranks}: {names(topology.members)}")
    click.echo(f"  links {', '.join(topology.link_classes)} at {topology.rates} rates")
    for edit in question.edits:
        click.echo(f"  edited {edit}")
    for what, reason in found.refused.items():
        click.echo(f"  {what}: {reason}")


def _answer(found: Any) -> dict[str, Any]:
    return {
        "collective": found.collective.name,
        "rows": found.rows(),
        "crossovers": [{"size_bytes": x.size, "slower": x.slower, "faster": x.faster} for x in found.crossovers],
        "refused": found.refused,
    }


def _show(found: Any, question: Question) -> None:
    topology, best = found.topology, found.best()
    lead = best[-1]
    changes = [f"{x.faster} from {format_size_about(x.size)}" for x in found.crossovers]
    first = f"{best[0].algorithm} is quickest" + (
        f" at small sizes, {', '.join(changes)}" if changes else " throughout"
    )
    click.echo(
        f"{found.collective} on {topology.name}: {first}; {lead.algbw / 1e9:.4g} GB/s at {format_size(lead.size)}"
    )
    click.echo("\n  algbw in GB/s, the quickest marked *\n")
    # Those that lead somewhere first, then those that come closest at the largest size: as many as 80 characters hold.
    leaders = list(dict.fromkeys(projection.algorithm for projection in reversed(best)))
    columns = [*leaders, *(name for name in found.algorithms if name not in leaders)]
    shown = columns[: max(_COLUMNS, len(leaders))]
    rows = []
    for projections in found.projections:
        rate = {p.algorithm: p.algbw / 1e9 for p in projections}
        cells = [f"{'*' if name == projections[0].algorithm else ''}{rate[name]:.4g}" for name in shown]
        rows.append((format_size(projections[0].size), format_time(projections[0].time_s), *cells))
    click.echo(table(("size", "best time", *shown), rows) + "\n")
    if len(columns) > len(shown):
        click.echo(f"  slower: {', '.join(columns[len(shown) :])} (--csv has all)")
    click.echo(f"  ranks {topology.ranks}: {names(topology.members)}")
    models = ", ".join(dict.fromkeys(projection.model for projection in found.projections[-1]))
    click.echo(f"  links {', '.join(topology.link_classes)} at {topology.rates} rates; model {models}")
    for edit in question.edits:
        click.echo(f"  edited {edit}")
    for name, reason in found.refused.items():
        click.echo(f"  {reason if reason.startswith(name) else f'{name}: {reason}'}")
