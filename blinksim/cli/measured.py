"""blinksim measured: published measurements beside the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli.options import TableOptions, check_picture, output_options, plot_y_option
from blinksim.cli.output import csv_text, note, print_json, table
from blinksim.errors import InputError
from blinksim.units import format_size

if TYPE_CHECKING:
    from blinksim.answers.measurements.measured import Measured
    from blinksim.answers.measurements.public import PublicMeasurements


class Options(TableOptions):
    """The options of ``measured``."""

    quality: str
    plot: str | None
    plot_collective: str
    plot_y: str
    force: bool


@click.command("measured", epilog="\b\nExamples:\n  blinksim measured p5\n  blinksim measured aurora")
@click.argument("machine", required=False)
@click.option(
    "--quality",
    default="ABC",
    show_default=True,
    help="Which tables to take: A are whole ones with machine and number of GPUs, in B something is derived, C are "
    "excerpts.",
)
@click.option("--plot", metavar="FILE", help="Draw measured, predicted and bound against size as PNG, SVG or PDF.")
@click.option("--plot-collective", default="", metavar="NAME", help="What the picture shows.  [default: allreduce]")
@plot_y_option
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@output_options(table=True)
def command(machine: str | None, **options: Unpack[Options]) -> None:
    """What was measured on MACHINE and published, beside NCCL's prediction and the bound.

    Without MACHINE, the machines of which there are tables. Aurora's stand beside its projection.
    """
    from blinksim.answers.measurements.measured import measured

    if machine is None:
        _list(options)
        return
    check_picture(options["plot"], options["plot_y"], force=options["force"])
    found = measured(machine, options["quality"].upper())
    if options["plot"]:
        _draw(found, options)
    if options["as_csv"]:
        click.echo(csv_text(found.rows()), nl=False)
    elif options["as_json"]:
        print_json({"command": "measured", **found.to_dict()})
    else:
        click.echo(found.text())
        click.echo(f"next: blinksim {_next(found)}")


def _draw(found: Measured | PublicMeasurements, options: Options) -> None:
    from blinksim import plots
    from blinksim.answers.measurements.measured import Measured

    if isinstance(found, Measured):
        raise InputError("the tables of aurora are not drawn; name another machine, or leave --plot out")
    drawn = plots.measured(found, options["plot_collective"], options["plot_y"])
    note(f"drawn: {plots.save(drawn, options['plot'] or '', force=options['force'])}", quiet=options["quiet"])


def _next(found: Measured | PublicMeasurements) -> str:
    from blinksim.answers.measurements.measured import Measured

    if isinstance(found, Measured):
        cell = found.cells[-1]
        size = format_size(cell.size).replace(" ", "")
        return (
            f"project {found.machine} allreduce {size} --nodes {cell.nodes} "
            f"--ranks-per-node {cell.ranks_per_node} --model {cell.preset}"
        )
    job = found.cells[-1].cell
    nodes = f" --nodes {job.nodes}" if job.nodes > 1 else ""
    model = " --model nccl-tuner" if found.cells[-1].predicted_s is not None else ""
    return f"compare {found.machine} {job.collective}{nodes}{model}"


def _list(options: Options) -> None:
    """The machines with tables, and how many cells each has."""
    from blinksim.answers.measurements.measured import SOURCES, measured_machines, projected_cells
    from blinksim.sources import public_tables

    rows = []
    for name in measured_machines():
        if name in SOURCES:
            rows.append({"machine": name, "cells": len(projected_cells()), "sets": 1, "quality": "A"})
            continue
        cells = public_tables.cells(name)
        used = {cell.set for cell in cells}
        letters = "".join(sorted({one.quality for one in used}))
        rows.append({"machine": name, "cells": len(cells), "sets": len(used), "quality": letters})
    if options["as_csv"]:
        click.echo(csv_text(rows), nl=False)
    elif options["as_json"]:
        print_json({"command": "measured", "rows": rows})
    else:
        lines = [tuple(str(value) for value in row.values()) for row in rows]
        click.echo(table(("machine", "cells", "sets", "quality"), lines, left=(0, 3)))
        click.echo("\nnext: blinksim measured hgx-h100")
