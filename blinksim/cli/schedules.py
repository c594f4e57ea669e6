"""blinksim schedules: the schedules that come with blinksim."""

from __future__ import annotations

import click

from blinksim.cli.output import print_json, table


@click.command(
    "schedules",
    epilog="\b\nExamples:\n  blinksim schedules --json\n  blinksim verify dgx1-v100-8-allreduce",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """List the schedules that come with blinksim; verify, simulate, run and export take their names."""
    rows = _described()
    if as_json:
        print_json({"command": "schedules", "rows": rows})
        return
    heading = ("schedule", "collective", "algorithm", "machine", "ranks", "at most GB/s")
    keys = ("name", "collective", "algorithm", "machine", "ranks", "bound_exact")
    cells = [tuple(str(row[key] or "-") for key in keys) for row in rows]
    click.echo(table(heading, cells, left=(0, 1, 2, 3)))
    click.echo("\nnext: blinksim verify dgx1-v100-8-allreduce")


def _described() -> list[dict[str, object]]:
    """One row per schedule: its name, what it does, on which machine, and the bound that it is held against."""
    from blinksim.formats.schedule_json import read_schedule
    from blinksim.formats.shipped import ready_schedules

    rows = []
    for name in ready_schedules.names():
        schedule = read_schedule(name)
        rows.append(
            {
                "name": name,
                "collective": str(schedule.collective),
                "algorithm": schedule.algorithm,
                "machine": schedule.topology.name,
                "ranks": schedule.topology.ranks,
                "chunks": schedule.chunks,
                "sends": schedule.sends,
                "bound_exact": schedule.bound.get("rate_exact"),
            }
        )
    return rows
