"""The command traffic: traffic matrices for alltoallv, made, shown and drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from blinksim.cli.terminal import answer, drawn, typed, written
from blinksim.errors import InputError
from blinksim.units import format_size_about

if TYPE_CHECKING:
    from blinksim.cli.commands import Traffic


def traffic(options: Traffic) -> None:
    """What every rank sends to every other: made, or read from a file."""
    from blinksim.formats.traffic_files import read_traffic, write_traffic
    from blinksim.traffic import expert_traffic

    options.check_files()
    makes = ("tokens", "token_size", "experts_per_rank", "top_k", "skew", "seed")
    given = {name: getattr(options, name) for name in makes if getattr(options, name) is not None}
    file, ranks = options.file, options.ranks
    if file is not None:
        if given or ranks is not None:
            name = next(iter(given), "ranks").replace("_", "-")
            raise InputError(f"--{name} makes a matrix, and {file} holds one; leave one of them out")
        flows = read_traffic(file)
    elif ranks is None:
        raise InputError("name a file, or say how many ranks have experts, as in: blinksim traffic --ranks 64")
    else:
        flows = expert_traffic(ranks, **given)
    if options.combine:
        flows = flows.transposed()
    facts = flows.to_dict()
    with written(options.output, lambda target: write_traffic(flows, target, options.force)) as output:

        def text() -> None:
            pairs = f"{facts['pairs']:,} of {flows.ranks * (flows.ranks - 1):,} pairs"
            click.echo(f"traffic of {flows.ranks} ranks: {format_size_about(flows.total)} between {pairs}\n")
            for what, key in (("sends", "sent"), ("receives", "received")):
                most, rank, mean = facts[f"most_{key}_bytes"], facts[f"most_{key}_rank"], facts["mean_bytes"]
                times = f"{most / mean:.3g} times the average of {format_size_about(mean)}"
                click.echo(f"  {what:<9} rank {rank} most: {format_size_about(most)}, {times}")
            click.echo(f"  keeps     {format_size_about(facts['kept_bytes'])} in all, which crosses no link")
            if output:
                click.echo(f"  written   {output}")
                click.echo(f"next: blinksim bound MACHINE alltoallv --traffic {typed(output)}")

        answer("traffic", lambda: facts, text)
    drawn(options.plot, options.force, "traffic", flows)
