"""blinksim export: a schedule in the format of a runtime, with what to set and what to look for there."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import click
from click.core import ParameterSource

from blinksim.cli.numbers import Integer
from blinksim.cli.output import note, print_json, typed
from blinksim.cli.tuned_job import JobOptions, job_options, tuned
from blinksim.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from blinksim.textio.whole_files import Exported


class Options(JobOptions):
    """The options of the command."""

    name: str
    output: str | None
    channels: int | None
    machine: str | None
    force: bool
    as_json: bool
    quiet: bool


@click.command(
    "export",
    epilog="""\b
Examples:
  blinksim synth dgx1-v100 allreduce --members 0,1,2,3 --algorithm chains -o chains.json
  blinksim export chains.json --format nccl-graph -o graph.xml
  blinksim export times.csv --format nccl-tuner --machine hgx-h200 --dialect ncclx -o tuner.csv""",
)
@click.argument("schedule")
@click.option("--format", "name", required=True, metavar="NAME", help="nccl-graph, nccl-graph-set, msccl-xml, "
              "mscclpp-json, nccl-tuner.")  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Where to write it; a folder for nccl-graph-set.  [default: "
              "standard output]")  # fmt: skip
@click.option("--channels", type=Integer(), metavar="N", help="The most channels.  [default: what every release loads]")
@click.option("--machine", metavar="MACHINE", help="nccl-tuner: the machine that the times are of.")
@job_options
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr.")
def command(schedule: str, **options: Unpack[Options]) -> None:
    """Write SCHEDULE so that a communication library runs it: NCCL, RCCL, MSCCL or MSCCL++.

    The schedule is verified first. Exit status 3 says that the format cannot hold it, and what to do instead.

    nccl-tuner makes rules for the tuners of NCCL, RCCL and NCCLX. In place of a schedule it takes TIMES, a file of
    measured times as blinksim tune --times-to writes it; the options from --machine to --dialect are for it alone.
    """
    from blinksim import exports
    from blinksim.textio.whole_files import check_folder, check_target

    output = options["output"]
    tuner = options["name"].lower().replace("_", "-") == exports.TUNER
    given = _given_for_a_tuner()
    if given and not tuner:
        raise InputError(f"{', '.join(sorted(given))}: for --format {exports.TUNER} only")
    folder = not tuner and exports.find(options["name"]).folder
    if folder and output is None:
        raise InputError(f"{exports.find(options['name']).name} writes several files; name a folder for them with -o")
    if output is not None:
        (check_folder if folder else check_target)(output, options["force"])
    found = _rules(schedule, options) if tuner else _schedule(schedule, options)
    if output is not None:
        exports.write(found, output, options["force"])
    if options["as_json"]:
        print_json(_as_json(found, exports.TUNER if tuner else exports.find(options["name"]).name, schedule, output))
    elif output is None:
        click.echo(found.files[""], nl=False)
        for line in _advice(found, "FILE"):
            note(line, quiet=options["quiet"])
    else:
        click.echo(f"{output}: {found.summary}")
        for fact in found.facts:
            click.echo(f"  {fact}")
        click.echo("")
        for line in _advice(found, output):
            click.echo(line)


def _given_for_a_tuner() -> set[str]:
    """The options of a tuner's rules on the command line."""
    context = click.get_current_context()
    names = {"machine", *JobOptions.__annotations__}
    return {
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }


def _schedule(path: str, options: Options) -> Exported:
    from blinksim import exports
    from blinksim.formats.schedule_json import read_schedule
    from blinksim.schedule.verify import verify

    plan = read_schedule(path)
    verdict = verify(plan)
    if not verdict.ok:
        raise InputError(f"{path} is wrong and is not exported: {verdict.reasons[0]}")
    form = exports.find(options["name"])
    try:
        return form.export(plan, options["channels"])
    except InfeasibleError as error:
        raise exports.elsewhere(plan, form, error) from None


def _rules(times: str, options: Options) -> Exported:
    """What blinksim tune makes of a file of times."""
    if options["machine"] is None:
        raise InputError("rules for a tuner are for one machine: name it with --machine")
    if options["channels"] is not None:
        raise InputError("--channels: for schedules; --least-channels is NCCL_MIN_NCHANNELS of the measured times")
    found = tuned(options["machine"], times, options).export(options["dialect"])  # type: ignore[arg-type]
    plugin = found.environment.get("NCCL_TUNER_PLUGIN")
    if plugin is None:
        return found
    hints = (
        f"build the plugin: blinksim tune --plugin {typed(plugin)}",
        "every rank needs the variables; the log has the line with NCCL_DEBUG_SUBSYS=TUNING",
    )
    return replace(found, notes=(*hints, *found.notes))


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
    named = {"{python}": repr(output), "{file}": typed(output), "{folder}": typed(os.path.dirname(output) or ".")}
    for place, words in named.items():
        line = line.replace(place, words)
    return line


def _as_json(found: Exported, form: str, schedule: str, output: str | None) -> dict[str, object]:
    return {
        "command": "export",
        "schedule": schedule,
        "format": form,
        "output": output,
        "summary": found.summary,
        "facts": list(found.facts),
        "environment": found.variables(output or "FILE"),
        "proof": [_named(line, output or "FILE") for line in found.proof],
        "notes": list(found.notes),
        "caution": found.caution,
        "files": dict(found.files) if output is None else sorted(found.files),
    }
