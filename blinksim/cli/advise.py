"""The command advise: the schedule or file worth loading."""

from __future__ import annotations

import os
import shlex
import textwrap
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from blinksim.answers import advise as study
from blinksim.answers.advise import Advice, Option
from blinksim.cli.options import collective_of, command_line, left, question_of, typed_options, unedited
from blinksim.cli.terminal import answer, as_typed, proof_lines, written
from blinksim.errors import InputError
from blinksim.exports import write
from blinksim.machines import Question, this_machine
from blinksim.textio.text_files import Exported
from blinksim.units import format_rate, format_time, parse_size

if TYPE_CHECKING:
    from blinksim.cli import commands

# What the machine's own description is called in commands to type.
_SAVED = "topo.txt"


def advise(options: commands.Advise) -> None:
    """What the library takes, could take and cannot take less, and the file to load."""
    options.check_files()
    question = replace(question_of(options.machine or "", options.where), machine=options.machine or _SAVED)
    earlier = unedited(question, options.before)
    wanted = collective_of(options.collective or "allreduce", options.root, options.traffic)
    default = study.SIZE if wanted.traffic is None else wanted.traffic.size
    size = default if options.size is None else parse_size(options.size)

    def answered(given: Question) -> Advice:
        if not options.machine:
            if given.nodes != 1:
                raise InputError("nvidia-smi knows nothing of other nodes; name a machine with a network for --nodes")
            given = replace(given, machine=this_machine())
        return study.advise(given, wanted, size, multicast=not options.no_nvls)

    advice = answered(question)
    was = None if earlier is None else answered(earlier)
    option = advice.load or advice.alternative
    exported = None if option is None else option.exported
    save = exported and partial(write, exported, force=options.force)
    with written(options.output if save else None, save or str) as target:
        output = target if exported else options.output
        said = {**replace(question, rates=None).described(advice.part), **advice.to_dict(), "output": output}
        said |= {} if was is None else {"before": was.to_dict()}
        answer("advise", lambda: said, lambda: _show(advice, was, question, output, options))


def _show(found: Advice, was: Advice | None, question: Question, output: str | None, options: commands.Advise) -> None:
    """Prints the advice, the three figures, and how to load what pays."""
    takes = found.answer
    click.echo(found.sentence() + "\n")
    for label, words in found.lines(options.why):
        click.echo(_wrapped(label, as_typed(words)))
    if was is not None:
        earlier = f"{format_time(was.answer.time_s)}, busbw {format_rate(was.answer.busbw)}"
        click.echo(_wrapped("before", left(was.answer.algbw, takes.algbw, earlier)))
    if options.why:
        click.echo(f"\n{as_typed(takes.why())}\n")
    more, nvls = "" if options.why else "why: --why\n", typed_options(options, "no_nvls")
    option, collective = found.load or found.alternative, takes.collective.name
    save = "" if options.machine else f"nvidia-smi topo -m > {_SAVED} && "
    if option is not None and option.exported is not None:
        # At the rates that the schedule was made for, where the question names none and others count unasked.
        made = option.schedule.topology
        taken = made.loaded_from[1] if made.loaded_from else made.rates
        made_for = replace(question, rates=question.rates or (None if taken == "nominal" else taken))
        line = f"{command_line(made_for, traffic=options.traffic)} {collective}"
        _to_load(option, option.exported, output, f"{save}blinksim synth {line} --algorithm {option.algorithm}")
    elif output:
        click.echo(f"  not written: {output}, since nothing is worth loading")
    tests = "rccl-tests" if takes.library == "RCCL" else "nccl-tests"
    again = f"diagnose log.txt --machine {command_line(question)}{nvls}"
    click.echo(f"{more}next: measure with {tests}, then {save}blinksim {again}")


def _to_load(option: Option, exported: Exported, output: str | None, synth: str) -> None:
    """Prints the variables that load what was written, or the commands that write it."""
    name, folder = option.algorithm, "algorithms" if exported.whole_folder else ""
    target = output or (os.path.join(folder, f"{name}.xml") if set(exported.files) == {""} else name)
    if output:
        click.echo(_wrapped("written", output))
    variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in exported.variables(target).items())
    if variables:
        click.echo(f"  {'load':<17} {variables}")
    if output or not variables:
        click.echo("\n".join(proof_lines(exported, target)))
    if exported.caution:
        click.echo(_wrapped("caution", exported.caution))
    if not output:
        make = f"mkdir -p {folder} && " if folder else ""
        click.echo(f"  make it:\n    {synth} -o {name}.json")
        click.echo(f"    {make}blinksim export {name}.json --format {option.format} -o {shlex.quote(target)}")


def _wrapped(key: str, words: str) -> str:
    return textwrap.fill(words, 110, initial_indent=f"  {key:<17} ", subsequent_indent=" " * 20, break_on_hyphens=False)
