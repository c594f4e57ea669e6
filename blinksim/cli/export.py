"""blinksim export: a schedule in the format of a runtime, with what to set and what to look for there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from blinksim.cli.numbers import Integer
from blinksim.cli.output import note, print_json, typed
from blinksim.errors import InputError

if TYPE_CHECKING:
    from blinksim.exports import Format
    from blinksim.textio.exported import Exported


@click.command(
    "export",
    epilog="""\b
Examples:
  blinksim synth dgx1-v100 allreduce --members 0,1,2,3 --algorithm chains -o chains.json
  blinksim export chains.json --format nccl-graph -o graph.xml""",
)
@click.argument("schedule")
@click.option("--format", "name", required=True, metavar="NAME", help="nccl-graph, nccl-graph-set, msccl-xml, "
              "mscclpp-json.")  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Where to write it; a folder for nccl-graph-set.  [default: "
              "standard output]")  # fmt: skip
@click.option("--channels", type=Integer(), metavar="N", help="The most channels.  [default: what every release loads]")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr.")
def command(
    schedule: str, name: str, output: str | None, channels: int | None, force: bool, as_json: bool, quiet: bool
) -> None:
    """Write SCHEDULE so that a communication library runs it: NCCL, RCCL, MSCCL or MSCCL++.

    The schedule is verified first. Exit status 3 says that the format cannot hold it, and what to do instead.
    """
    from blinksim import exports
    from blinksim.formats.schedule_json import read_schedule
    from blinksim.schedule.verify import verify
    from blinksim.textio.whole_files import check_folder, check_target

    form = exports.find(name)
    if form.folder and output is None:
        raise InputError(f"{form.name} writes several files; name a folder for them with -o")
    if output is not None:
        check = check_folder if form.folder else check_target
        check(output, force)
    plan = read_schedule(schedule)
    verdict = verify(plan)
    if not verdict.ok:
        raise InputError(f"{schedule} is wrong and is not exported: {verdict.reasons[0]}")
    found = form.export(plan, channels)
    if output is not None:
        exports.write(found, output, force)
    if as_json:
        print_json(_as_json(found, form, schedule, output))
    elif output is None:
        click.echo(found.files[""], nl=False)
        for line in _advice(found, "FILE"):
            note(line, quiet=quiet)
    else:
        click.echo(f"{output}: {found.summary}")
        for fact in found.facts:
            click.echo(f"  {fact}")
        click.echo("")
        for line in _advice(found, output):
            click.echo(line)


def _advice(found: Exported, output: str) -> list[str]:
    lines = []
    if found.environment:
        lines += ["  set, for one command:"]
        lines += [f"    export {key}={shlex.quote(value)}" for key, value in found.variables(output).items()]
    lines += proof_lines(found, output)
    lines += [f"  note     {text}" for text in found.notes]
    if found.caution:
        lines += [f"  caution  {found.caution}"]
    return lines


def proof_lines(found: Exported, output: str) -> list[str]:
    """What shows that a runtime uses the file that went to `output`; nothing where nothing is known to."""
    if not found.proof:
        return []
    head = "in force if the log (NCCL_DEBUG=INFO) of rank 0 says:" if found.environment else "try it:"
    return [f"  {head}", *(f"    {_named(line, output)}" for line in found.proof)]


def _named(line: str, output: str) -> str:
    """A line of advice with the file's name, quoted for a shell or for Python."""
    return line.replace("{python}", repr(output)).replace("{file}", typed(output))


def _as_json(found: Exported, form: Format, schedule: str, output: str | None) -> dict[str, object]:
    return {
        "command": "export",
        "schedule": schedule,
        "format": form.name,
        "output": output,
        "summary": found.summary,
        "facts": list(found.facts),
        "environment": found.variables(output or "FILE"),
        "proof": [_named(line, output or "FILE") for line in found.proof],
        "notes": list(found.notes),
        "caution": found.caution,
        "files": dict(found.files) if output is None else sorted(found.files),
    }
