"""blinksim reproduce: the tables of the documents that blinksim builds on, beside what it computes."""

from __future__ import annotations

from typing import Unpack

import click

from blinksim.cli.options import TableOptions, output_options
from blinksim.cli.output import csv_text, print_json
from blinksim.papers.tables import DOCUMENTS, reproduce


@click.command("reproduce", epilog="\b\nExamples:\n  blinksim reproduce aurora\n  blinksim reproduce blink --json")
@click.argument("document", type=click.Choice(DOCUMENTS))
@output_options(table=True)
def command(document: str, **options: Unpack[TableOptions]) -> None:
    """The tables of DOCUMENT beside what blinksim computes, and the difference.

    DOCUMENT: blink, blinkplus, cubedo (the SISCI-NCCL thesis), mxnet or aurora. What a document prints and cannot be
    is named at the end.
    """
    found = reproduce(document)
    if options["as_csv"]:
        click.echo(csv_text(found.rows()), nl=False)
    elif options["as_json"]:
        print_json({"command": "reproduce", **found.to_dict()})
    else:
        click.echo(found.text())
