"""blinksim measured: published measurements beside the model."""

from __future__ import annotations

from typing import Unpack

import click

from blinksim.cli.options import TableOptions, output_options
from blinksim.cli.output import csv_text, print_json
from blinksim.units import format_size


@click.command("measured", epilog="\b\nExample:\n  blinksim measured aurora")
@click.argument("machine")
@output_options(table=True)
def command(machine: str, **options: Unpack[TableOptions]) -> None:
    """What was measured on MACHINE and published, beside what its model says: aurora."""
    from blinksim.answers.measurements.measured import measured

    found = measured(machine)
    if options["as_csv"]:
        click.echo(csv_text(found.rows()), nl=False)
    elif options["as_json"]:
        print_json({"command": "measured", **found.to_dict()})
    else:
        click.echo(found.text())
        cell = found.cells[-1].cell
        size = format_size(cell.size).replace(" ", "")
        click.echo(
            f"next: blinksim project {found.machine} allreduce {size} --nodes {cell.nodes} "
            f"--ranks-per-node {cell.ranks_per_node} --model {cell.preset}"
        )
