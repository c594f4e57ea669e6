"""blinksim verify: is a schedule, or what `bound --json` printed, right?"""

from __future__ import annotations

from typing import TypedDict, Unpack

import click

from blinksim.cli.numbers import Whole
from blinksim.cli.output import print_json
from blinksim.errors import InputError


class Setting(TypedDict):
    """The options that name the machine."""

    machine: str | None
    rates: str | None
    edits: tuple[str, ...]
    members: str | None
    nodes: int


@click.command(
    "verify",
    epilog="""\b
Examples:
  blinksim verify schedule.json
  blinksim verify dgx1-v100-8-allreduce
  blinksim verify schedule.json --edit 'without gpu0-gpu3'
  blinksim bound dgx1-v100 allreduce --json > bound.json; blinksim verify bound.json
  blinksim verify graph.xml --machine topo.xml --members 0,1,2,3""",
)
@click.argument("file")
@click.option("--machine", metavar="MACHINE", help="Check against this machine instead of the one in FILE.")
@click.option("--rates", metavar="NAME|FILE", help="Rates for --machine.  [default: nominal]")
@click.option("--edit", "edits", multiple=True, metavar="EDIT", help="Check against the edited machine.")
@click.option("--in-place", is_flag=True, help="Ask for a schedule whose input and output are one buffer.")
@click.option("--slots", type=Whole(1), default=1, show_default=True, help="Buffers of each connection.")
@click.option("--members", metavar="LIST", help="For a graph.xml: the GPUs of the communicator.  [default: all]")
@click.option("--nodes", type=Whole(1), default=1, show_default=True, help="For a graph.xml: nodes alike.")
@click.option("--root", type=Whole(0), default=0, show_default=True, help="For a runtime's file: the root.")
@click.option("--nccl", "release", metavar="X.Y.Z", default="2.28.3", show_default=True, help="For a graph.xml: NCCL.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    file: str,
    *,
    as_json: bool,
    in_place: bool,
    slots: int,
    root: int,
    release: str,
    **setting: Unpack[Setting],
) -> None:
    """Is FILE right? It is a schedule, what `bound --json` printed, or a file for a runtime.

    The exit status is 1 if something is wrong, and 5 if nothing is but something that FILE claims is not proved.

    A schedule that comes with blinksim goes by its name (`blinksim schedules`). A schedule is interpreted chunk by
    chunk: every rank must end with what the collective promises. A bound is derived anew from the machine file and the
    witness in its certificate; no solver is asked. That a bound is attained takes a schedule: the one at hand, or one
    that is built and interpreted. A graph file is carried through NCCL's own stages for the GPUs of MACHINE: is it
    used, ignored, refused, or a crash? MSCCL's XML and MSCCL++'s plans are carried out symbolically.
    """
    from blinksim.answers.checks.verify_file import verify_file
    from blinksim.question import Question

    if setting["rates"] is not None and setting["machine"] is None:
        raise InputError("--rates says at which rates --machine is loaded; give --machine too")
    question = Question(
        setting["machine"] or "",
        nodes=setting["nodes"],
        members=setting["members"],
        rates=setting["rates"],
        edits=setting["edits"],
    )
    found = verify_file(file, question, in_place=in_place, slots=slots, root=root, release=release)
    if as_json:
        print_json({"command": "verify", "file": file, **found.to_dict()})
    else:
        click.echo(f"{file}: {found.text()}")
    if not found.proved:
        click.get_current_context().exit(5 if found.ok else 1)
