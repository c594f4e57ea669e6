"""The command advise: the schedule or file worth loading."""

from __future__ import annotations

import os
import shlex
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from blinksim.cli.options import collective_of, command_line, left, question_of, unedited
from blinksim.cli.schedules import proof_lines
from blinksim.cli.terminal import answer, written
from blinksim.errors import InputError
from blinksim.textio.text_table import count, names
from blinksim.units import exact_GBps, format_rate, format_size, format_time, parse_size

if TYPE_CHECKING:
    from blinksim.answers.advise import Advice
    from blinksim.cli import commands
    from blinksim.question import Question
    from blinksim.topology.graph import Topology

# What the machine's own description is called in commands to type.
_SAVED = "topo.txt"
# The least time is named where it is more than this many times what the bytes take alone.
_NOTABLY = 1.05


def advise(options: commands.Advise) -> None:
    """The bound, what NCCL would pick, the best schedule, and the file to load."""
    from blinksim.answers import advise as study
    from blinksim.machines import this_machine
    from blinksim.textio.whole_files import write_text
    from blinksim.timing.model_registry import DEFAULT

    options.check_files()
    question = question_of(options.machine or _SAVED, options.where)
    earlier = unedited(question, options.before)
    wanted = collective_of(options.collective or "allreduce", options.root, options.traffic)
    default = study.SIZE if wanted.traffic is None else wanted.traffic.size
    size = default if options.size is None else parse_size(options.size)

    def answered(given: Question, model: str = DEFAULT) -> Advice:
        if not options.machine:
            if given.nodes != 1:
                raise InputError("nvidia-smi knows nothing of other nodes; name a machine with a network for --nodes")
            given = replace(given, machine=this_machine())
        return study.advise(given, wanted, size, multicast=not options.no_nvls, model=model)

    advice = answered(question)
    # An edit may take away what was measured: two models' times do not compare.
    was = None if earlier is None else answered(replace(earlier, rates=_table(advice.part)), advice.model)
    option = advice.load or advice.alternative
    exported = option and option.exported
    text = exported.files[""] if exported else ""
    with written(options.output if exported else None, lambda file: write_text(file, text, options.force)) as target:
        output = target if exported else options.output
        # The question with the rates that were taken where it names none.
        asked = replace(question, rates=question.rates or _table(advice.part))
        said = {**asked.described(advice.part), **advice.to_dict(), "output": output}
        said |= {} if was is None else {"before": was.to_dict()}
        answer("advise", lambda: said, lambda: _show(advice, was, asked, question, output, options))


def _show(
    found: Advice, was: Advice | None, asked: Question, question: Question, output: str | None, options: commands.Advise
) -> None:
    click.echo(found.sentence() + "\n")
    for key, words in [*_facts(found, question), *([] if was is None else _changed(found, was))]:
        click.echo(_wrapped(key, words))
    option = found.load or found.alternative
    collective, line = found.collective.name, command_line(asked, traffic=options.traffic)
    save = "" if options.machine else f"nvidia-smi topo -m > {_SAVED} && "
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


def _facts(advice: Advice, question: Question) -> list[tuple[str, str]]:
    from blinksim.bounds.bound_result import NOTHING

    part, bound, own, expected, best = advice.part, advice.bound, advice.expectation, advice.expected, advice.best

    def reached(time_s: float) -> str:
        share = f"{100 * advice.share(time_s):.0f} % of the bound"
        return f"{format_time(time_s)}, {format_rate(advice.algbw(time_s))} algbw, {share}"

    facts = [
        ("bound", f"{exact_GBps(bound.rate)} GB/s algbw ({bound.scope}, {bound.kind})"),
        ("", bound.certificate.words(part)),
    ]
    least = advice.least_s or 0.0
    if not bound.grants and least > _NOTABLY * advice.size / float(bound.rate):
        facts.append(("", f"at least {format_time(least)} for this size, latency and bandwidth together"))
    if bound.assumes != NOTHING:
        facts.append(("", f"it assumes: {bound.assumes}"))
    channels = f", {count(own.prediction.nchannels, 'channel')}" if own.prediction else ""
    facts.append((own.library if own.runs else "rings", f"{reached(expected.time_s)}: {expected.choice}{channels}"))
    facts.append(("", advice.basis))
    if advice.nvls:
        facts.append(("NVLS", advice.nvls.sentence()))
    facts += [("weakest", advice.weakest)] if advice.weakest else []
    plan = best.schedule
    words = f"{reached(best.time_s)}: {plan.algorithm}, {plan.parts()}, verified"
    if best.time_s <= expected.time_s:
        facts.append(("best", words))
    else:  # What the library does beats the quickest schedule.
        why = ", whose switches add" if expected.choice.startswith("nvls") else ""
        choice = f"{own.library}'s own choice" if own.runs else "rings"
        facts.append(("schedule", f"{words}; slower than {choice}{why}"))
    loadable = advice.loadable
    if loadable is not None and loadable.exported is not None and loadable.time_s <= expected.time_s:
        facts.append((f"for {own.library}", f"{reached(loadable.time_s)}: {loadable.exported.summary}"))
    return [
        *facts,
        ("ranks", f"{part.ranks}: {names(part.members)}"),
        ("links", f"{', '.join(part.link_classes)} at {part.rates} rates"),
        *best.projection.basis,
        *(("" if number else "edited", edit) for number, edit in enumerate(question.edits)),
    ]


def _changed(advice: Advice, was: Advice) -> list[tuple[str, str]]:
    """What the edits cost: the bound, what NCCL does by itself, and the best schedule."""
    own = advice.expectation.library if advice.expectation.runs else "rings"
    pairs = {
        "bound": (float(was.bound.rate), float(advice.bound.rate)),
        own: (was.algbw(was.expected.time_s), advice.algbw(advice.expected.time_s)),
        "best": (was.algbw(was.best.time_s), advice.algbw(advice.best.time_s)),
    }
    return [("" if number else "before", f"{key}: {left(*pairs[key])}") for number, key in enumerate(pairs)]


def _wrapped(key: str, words: str) -> str:
    return textwrap.fill(words, 100, initial_indent=f"  {key:<9} ", subsequent_indent=" " * 12, break_on_hyphens=False)


def _table(part: Topology) -> str | None:
    """The table of rates that was taken, None for the one that counts unless another is named."""
    taken = part.loaded_from[1] if part.loaded_from else part.rates
    return None if taken == "nominal" else taken
