"""blinksim traffic: traffic matrices for alltoallv, made, shown and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli.numbers import Decimal, Integer, Whole
from blinksim.cli.options import TextOptions, output_options
from blinksim.cli.output import attempt, print_json, typed
from blinksim.errors import InputError
from blinksim.units import format_size_about

if TYPE_CHECKING:
    from blinksim.traffic import Traffic

_MAKES = ("tokens", "token_size", "experts_per_rank", "top_k", "skew", "seed")


class Options(TextOptions):
    """The options of the command."""

    ranks: int | None
    tokens: int | None
    token_size: str | None
    experts_per_rank: int | None
    top_k: int | None
    skew: float | None
    seed: int | None
    combine: bool
    output: str | None
    plot: str | None
    force: bool


@click.command(
    "traffic",
    epilog="""\b
Examples:
  blinksim traffic --ranks 64 --experts-per-rank 4 --top-k 8 --skew 0.8 -o dispatch.csv
  blinksim traffic dispatch.csv --combine -o combine.csv
  blinksim traffic dispatch.csv --plot dispatch.png
  blinksim bound hgx-h100 alltoallv --nodes 8 --traffic dispatch.csv""",
)
@click.argument("file", required=False)
@click.option("--ranks", type=Whole(2), help="Make the dispatch of experts on this many ranks.")
@click.option("--tokens", type=Whole(1), help="Tokens of every rank.  [default: 4096]")
@click.option("--token-size", metavar="SIZE", help="Bytes of a token, such as 14KiB for 7168 x 2.  [default: 14KiB]")
@click.option("--experts-per-rank", type=Whole(1), help="Experts that every rank holds.  [default: 1]")
@click.option("--top-k", type=Whole(1), help="Experts that a token goes to.  [default: 8]")
@click.option(
    "--skew", type=Decimal(0, 10), help="Exponent of Zipf's law for the choice of experts.  [default: 0, even]"
)
@click.option("--seed", type=Integer(), help="Of the choices.  [default: 0]")
@click.option("--combine", is_flag=True, help="The way back: the transposed matrix.")
@click.option("-o", "--output", metavar="FILE", help="Write the matrix, as CSV or .npy, a row per rank.")
@click.option("--plot", metavar="FILE", help="Draw the matrix as PNG, SVG or PDF.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@output_options()
def command(file: str | None, **options: Unpack[Options]) -> None:
    """What does every rank send to every other? Make the traffic of experts, or show the matrix in FILE.

    Line i of FILE has the bytes that rank i has for rank 0, rank 1 and so on, separated by commas; or FILE is what
    numpy.save wrote. Each token goes once to every rank that holds one of its experts.
    """
    from blinksim.textio.whole_files import check_target

    if options["output"]:
        check_target(options["output"], options["force"])
    if options["plot"]:
        from blinksim import plots

        plots.check(options["plot"], force=options["force"])
    traffic = _traffic(file, options)
    failure = None
    if options["output"]:
        from blinksim.formats.traffic_files import write_traffic

        target = options["output"]
        failure = attempt(lambda: write_traffic(traffic, target, options["force"]))
    if options["as_json"]:
        print_json({"command": "traffic", **traffic.to_dict()})
    else:
        _show(traffic, options["output"] if failure is None else None)
    if failure is not None:
        raise failure
    if options["plot"]:
        from blinksim import plots

        path = plots.save(plots.traffic(traffic), options["plot"], force=options["force"])
        click.echo(f"drawn: {path}", err=options["as_json"])


def _traffic(file: str | None, options: Options) -> Traffic:
    """The matrix in the file, or one that the options describe."""
    given = {name: options[name] for name in _MAKES if options[name] is not None}  # type: ignore[literal-required]
    if file is not None:
        if given or options["ranks"] is not None:
            name = next(iter(given), "ranks").replace("_", "-")
            raise InputError(f"--{name} makes a matrix, and {file} holds one; leave one of them out")
        from blinksim.formats.traffic_files import read_traffic

        found = read_traffic(file)
    elif options["ranks"] is None:
        raise InputError("name a file, or say how many ranks have experts, as in: blinksim traffic --ranks 64")
    else:
        from blinksim.traffic import expert_traffic

        found = expert_traffic(options["ranks"], **given)
    return found.transposed() if options["combine"] else found


def _show(traffic: Traffic, output: str | None) -> None:
    facts = traffic.to_dict()
    pairs = f"{facts['pairs']:,} of {traffic.ranks * (traffic.ranks - 1):,} pairs"
    click.echo(f"traffic of {traffic.ranks} ranks: {format_size_about(traffic.total)} between {pairs}\n")
    for what, key in (("sends", "sent"), ("receives", "received")):
        most, rank, mean = facts[f"most_{key}_bytes"], facts[f"most_{key}_rank"], facts["mean_bytes"]
        times = f"{most / mean:.3g} times the average of {format_size_about(mean)}"
        click.echo(f"  {what:<9} rank {rank} most: {format_size_about(most)}, {times}")
    click.echo(f"  keeps     {format_size_about(facts['kept_bytes'])} in all, which crosses no link")
    if output:
        click.echo(f"  written   {output}")
        click.echo(f"next: blinksim bound MACHINE alltoallv --traffic {typed(output)}")
