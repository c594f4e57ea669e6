"""blinksim advise: what should I load?"""

from __future__ import annotations

import os
import shlex
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli.before import before_option, left, unedited
from blinksim.cli.export import proof_lines
from blinksim.cli.options import (
    MachineOptions,
    TextOptions,
    collective_of,
    command_line,
    machine_options_at,
    output_options,
    question_of,
    root_option,
    traffic_option,
)
from blinksim.cli.output import attempt, names, print_json
from blinksim.errors import InputError
from blinksim.textio.text_table import count
from blinksim.units import exact_GBps, format_rate, format_size, format_time, parse_size

if TYPE_CHECKING:
    from blinksim.answers.advise import Advice
    from blinksim.answers.loadable import Option
    from blinksim.question import Question
    from blinksim.topology.graph import Topology

# What the machine's own description is called in commands to type.
_SAVED = "topo.txt"
# The least time is named where it is more than this many times what the bytes take alone.
_NOTABLY = 1.05


class Options(MachineOptions, TextOptions):
    """The options of the command."""

    collective: str
    size: str | None
    root: int | None
    traffic: str | None
    no_nvls: bool
    before: bool
    output: str | None
    force: bool


@click.command(
    "advise",
    epilog="""\b
Examples:
  blinksim advise
  blinksim advise dgx1-v100 --members 0,1,2,3,4,7
  blinksim advise topo.xml --collective allgather -o graph.xml""",
)
@click.argument("machine", required=False)
@machine_options_at("measured where constants are known, else nccl, where the machine has it")
@click.option("--collective", default="allreduce", show_default=True, help="What the GPUs will run.")
@click.option("--size", help="How large it is.  [default: 256MiB, or the matrix's largest buffer]")
@root_option
@traffic_option
@click.option("--no-nvls", is_flag=True, help="NCCL will run with NCCL_NVLS_ENABLE=0.")
@before_option
@click.option("-o", "--output", metavar="FILE", help="Where to write what is worth loading, if anything is.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@output_options()
def command(machine: str | None, **options: Unpack[Options]) -> None:
    """The bound, what NCCL would pick, the best schedule, and the file to load, for MACHINE or the one this runs on.

    Without MACHINE, asks nvidia-smi for this computer's own GPUs. Times are real ones where constants of NCCL and of
    programs were measured; elsewhere the rates are those that NCCL computes with, unless --rates says otherwise.
    """
    from blinksim.answers.advise import SIZE, advise
    from blinksim.textio.whole_files import check_target, write_text
    from blinksim.timing.model_registry import DEFAULT

    output, force = options["output"], options["force"]
    if output:
        check_target(output, force)
    question = question_of(machine or _SAVED, options)
    earlier = unedited(question, options["before"])
    wanted = collective_of(options["collective"], options["root"], options["traffic"])
    default = SIZE if wanted.traffic is None else wanted.traffic.size
    size = default if options["size"] is None else parse_size(options["size"])
    multicast = not options["no_nvls"]

    def answered(given: Question, model: str = DEFAULT) -> Advice:
        asked = given if machine else replace(given, machine=_this_machine(given))
        return advise(asked, wanted, size, multicast=multicast, model=model)

    found = answered(question)
    # An edit may take away what was measured: two models' times do not compare.
    was = None if earlier is None else answered(replace(earlier, rates=_table(found.part)), found.model)
    option, failure = found.load or found.alternative, None
    if output and option is not None and option.exported is not None:
        target, text = output, option.exported.files[""]
        failure = attempt(lambda: write_text(target, text, force))
        output = None if failure else output
    if options["as_json"]:
        described = _asked(question, found.part).described(found.part)
        answer = {"command": "advise", **described, **found.to_dict(), "output": output}
        print_json(answer if was is None else answer | {"before": was.to_dict()})
    else:
        _show(found, was, option, question, output, options["traffic"], here=machine is None)
    if failure is not None:
        raise failure


def _show(
    found: Advice,
    was: Advice | None,
    option: Option | None,
    question: Question,
    output: str | None,
    traffic: str | None,
    *,
    here: bool,
) -> None:
    click.echo(found.sentence() + "\n")
    for key, words in _facts(found, question):
        click.echo(_wrapped(key, words))
    for key, words in _changed(found, was):
        click.echo(_wrapped(key, words))
    _how(found, option, question, output, traffic, here=here)


def _facts(found: Advice, question: Question) -> list[tuple[str, str]]:
    from blinksim.bounds.assumptions import NOTHING

    part, best = found.part, found.bound

    def reached(time_s: float) -> str:
        share = f"{100 * found.share(time_s):.0f} % of the bound"
        return f"{format_time(time_s)}, {format_rate(found.algbw(time_s))} algbw, {share}"

    own, timed = found.expectation, found.best.projection
    least = found.least_s or 0.0
    notable = not best.grants and least > _NOTABLY * found.size / float(best.rate)
    at_least = [("", f"at least {format_time(least)} for this size, latency and bandwidth together")] if notable else []
    channels = f", {count(own.prediction.nchannels, 'channel')}" if own.prediction else ""
    said = own.name
    if found.expected.origin:
        said = f"by constants {found.expected.origin}; {own.name} says {format_time(own.at(found.size).time_s)}"
    facts = [
        ("bound", f"{exact_GBps(best.rate)} GB/s algbw ({best.scope}, {best.kind})"),
        ("", best.certificate.words(part)),
        *at_least,
        *([("", f"it assumes: {best.assumes}")] if best.assumes != NOTHING else []),
        (own.library if own.runs else "rings", f"{reached(found.expected.time_s)}: {found.expected.choice}{channels}"),
        ("", said),
        *([("NVLS", found.nvls.sentence())] if found.nvls else []),
        _best(found, f"{reached(found.best.time_s)}: {_described(found.best)}"),
    ]
    loadable = found.loadable
    if loadable is not None and loadable.exported is not None and loadable.time_s <= found.expected.time_s:
        facts.append((f"for {own.library}", f"{reached(loadable.time_s)}: {loadable.exported.summary}"))
    facts += [
        ("ranks", f"{part.ranks}: {names(part.members)}"),
        ("links", f"{', '.join(part.link_classes)} at {part.rates} rates"),
        *timed.basis,
        *(("" if number else "edited", edit) for number, edit in enumerate(question.edits)),
    ]
    return facts


def _changed(found: Advice, was: Advice | None) -> list[tuple[str, str]]:
    """What the edits cost: the bound, what NCCL does by itself, and the best schedule."""
    if was is None:
        return []
    own = found.expectation.library if found.expectation.runs else "rings"
    pairs = {
        "bound": (float(was.bound.rate), float(found.bound.rate)),
        own: (was.algbw(was.expected.time_s), found.algbw(found.expected.time_s)),
        "best": (was.algbw(was.best.time_s), found.algbw(found.best.time_s)),
    }
    return [("" if number else "before", f"{key}: {left(*pairs[key])}") for number, key in enumerate(pairs)]


def _best(found: Advice, words: str) -> tuple[str, str]:
    """The row of the quickest schedule, which what the library does may beat."""
    if found.best.time_s <= found.expected.time_s:
        return "best", words
    why = ", whose switches add" if found.expected.choice.startswith("nvls") else ""
    own = f"{found.expectation.library}'s own choice" if found.expectation.runs else "rings"
    return "schedule", f"{words}; slower than {own}{why}"


def _wrapped(key: str, words: str) -> str:
    return textwrap.fill(words, 100, initial_indent=f"  {key:<9} ", subsequent_indent=" " * 12, break_on_hyphens=False)


def _described(option: Option) -> str:
    plan = option.schedule
    return f"{plan.algorithm}, {plan.parts()}, verified"


def _how(
    found: Advice, option: Option | None, question: Question, output: str | None, traffic: str | None, *, here: bool
) -> None:
    """Commands that make the file and load it, and what to do next."""
    collective, line = found.collective.name, command_line(_asked(question, found.part), traffic=traffic)
    save = f"nvidia-smi topo -m > {_SAVED} && " if here else ""
    if option is None or option.exported is None:
        if output:
            click.echo(f"  not written: {output}, since nothing is worth loading")
        of_size = f"synth {line} {collective} --size {format_size(found.size).replace(' ', '')} -o schedule.json"
        made = found.best.projection.model == "simulate"
        click.echo(f"next: {save}blinksim {of_size if made else f'compare {line} {collective}'}")
        return
    name = option.algorithm
    end = ".xml" if output is None else ""
    folder = "algorithms" if option.exported.whole_folder else ""
    target = output or os.path.join(folder, f"{name}{end}")
    variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in option.exported.variables(target).items())
    if output:
        click.echo(_wrapped("written", output))
    click.echo(f"  load      {variables}")
    if output:
        click.echo("\n".join(proof_lines(option.exported, output)))
    if option.exported.caution:
        click.echo(_wrapped("caution", option.exported.caution))
    if not output:
        click.echo("  make it:")
        click.echo(f"    {save}blinksim synth {line} {collective} --algorithm {name} -o {name}.json")
        make = f"mkdir -p {folder} && " if folder else ""
        click.echo(f"    {make}blinksim export {name}.json --format {option.format} -o {shlex.quote(target)}")
    tests, measured = f"{found.expectation.library.lower()}-tests", command_line(question)
    click.echo(f"next: measure with {tests}, then blinksim diagnose log.txt --machine {measured}")


def _asked(question: Question, part: Topology) -> Question:
    """The question with the rates that were taken where it names none."""
    return replace(question, rates=question.rates or _table(part))


def _table(part: Topology) -> str | None:
    """The table of rates that was taken, None for the one that counts unless another is named."""
    taken = part.loaded_from[1] if part.loaded_from else part.rates
    return None if taken == "nominal" else taken


def _this_machine(question: Question) -> Topology:
    """This computer's GPUs. Raises `MissingError` if there are none."""
    from blinksim.machines import this_machine

    if question.nodes != 1:
        raise InputError("nvidia-smi knows nothing of other nodes; name a machine with a network for --nodes")
    return this_machine()
