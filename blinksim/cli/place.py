"""blinksim place: which GPUs should I ask for?"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import click

from blinksim.cli.numbers import Whole
from blinksim.cli.options import (
    MachineOptions,
    TableOptions,
    check_where,
    collective_of,
    command_line,
    machine_options,
    output_options,
    question_of,
    traffic_option,
    where_options,
)
from blinksim.cli.output import csv_text, print_json, table
from blinksim.cli.progress import Working


class Options(MachineOptions, TableOptions):
    """The options of the command."""

    collective: str
    traffic: str | None
    top: int
    workers: int
    cluster: str | None


@click.command("place", epilog="\b\nExample:\n  blinksim place dgx1-v100 4")
@click.argument("machine")
@click.argument("count", type=Whole(2))
@machine_options
@click.option("--collective", default="allreduce", show_default=True, help="What the GPUs will run.")
@traffic_option
@click.option("--top", type=Whole(1), default=20, show_default=True, help="Rows to print as text.")
@where_options
@output_options(table=True)
def command(machine: str, count: int, **options: Unpack[Options]) -> None:
    """Rank all choices of COUNT GPUs of MACHINE by the best rate that a collective can have on them."""
    from blinksim.answers.place import place
    from blinksim.errors import InputError

    check_where(machine, options["workers"], options["cluster"])
    wanted = collective_of(options["collective"], None, options["traffic"])
    question = question_of(machine, options)
    if question.members is not None or question.ranks_per_node is not None:
        raise InputError("place chooses the members itself; leave --members and --ranks-per-node out")
    whole = question.whole()
    links = question.link_classes(whole)
    relays = question.relays or "none"
    chosen = relays if relays in ("none", "idle") else question.relay_names(whole, ())
    with Working(f"ranking {count} GPUs of {machine}", quiet=options["quiet"]) as say:
        found = place(
            whole,
            count,
            wanted,
            links=links,
            relays=chosen,
            report=say,
            workers=options["workers"],
            cluster=options["cluster"],
        )
    rows = [placement.to_dict() for placement in found]
    if options["as_csv"]:
        joined = [{key: " ".join(row[key]) for key in ("members", "relays")} for row in rows]
        flat = [row | names | {"rates": whole.rates} for row, names in zip(rows, joined, strict=True)]
        click.echo(csv_text(flat), nl=False)
        return
    if options["as_json"]:
        described = question.described(whole)
        print_json({"command": "place", **described, "collective": options["collective"], "count": count, "rows": rows})
        return
    best, connected = found[0], sum(p.connected for p in found)
    if best.rate is None:
        click.echo(f"no {count} GPUs of {whole.name} are connected by the chosen links")
        click.get_current_context().exit(1)
    click.echo(
        f"{count} of {whole.name}'s {whole.ranks} GPUs for {options['collective']}: ask for {', '.join(best.members)}, "
        f"up to {float(best.rate) / 1e9:.4g} GB/s algbw; {connected} of {len(found)} choices are connected\n"
    )
    adds = any(row["in_network_GBps"] for row in rows)
    cells = [
        (
            " ".join(row["members"]),
            row["rate_exact"] or "-",
            f"{row['algbw_GBps']:.4g}" if row["connected"] else "not connected",
            f"{row['algbw_GBps'] / rows[0]['algbw_GBps']:.0%}" if row["connected"] else "",
            *([f"{row['in_network_GBps']:.4g}" if row["in_network_GBps"] else "-"] if adds else []),
        )
        for row in rows[: options["top"]]
    ]
    click.echo(table(("GPUs", "GB/s, exact", "GB/s", "of the best", *(["GB/s, switches add"] if adds else [])), cells))
    if len(rows) > options["top"]:
        click.echo(f"  … {len(rows) - options['top']} more (--top {len(rows)}, --csv)")
    click.echo(f"  all at {whole.rates} rates")
    chosen = ",".join(best.members)
    again = command_line(replace(question, members=chosen), options["collective"], traffic=options["traffic"])
    click.echo(f"next: blinksim bound {again}")
