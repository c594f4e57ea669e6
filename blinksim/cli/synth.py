"""The command synth: a verified schedule with its gap to the bound, or the Pareto front of schedules.

The command advise: the schedule or file worth loading.
"""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blinksim import exports
from blinksim.algorithms.registry import REGISTRY, algorithm as registered
from blinksim.answers import advise as study
from blinksim.answers.advise import Advice, Option
from blinksim.bounds.bound_result import BY_SUMS
from blinksim.budget import within
from blinksim.cli.options import collective_of, command_line, left, option_name, question_of, typed_options, wanted_of
from blinksim.cli.terminal import Working, answer, as_typed, drawn, proof_lines, typed, written
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.exports import write
from blinksim.machines import Question, this_machine
from blinksim.schedule.verify import verify
from blinksim.textio.text_files import Exported, check_folder
from blinksim.textio.text_table import count, table
from blinksim.timing.projection_result import links_at
from blinksim.units import exact_algbw, exact_GBps, format_rate, format_size, format_time, parse_size

if TYPE_CHECKING:
    from blinksim.answers.synthesize import Synthesis
    from blinksim.cli.commands import Advise, Synth

Given = dict[str, Any]
# How many other algorithms a line names.
_MOST_OTHERS = 5
# From here on a gap is said in times, not in per cent.
_FEW_TIMES = 9
# Options that algorithms take, by their names there.
_GIVEN = ("time_limit", "seed", "trees", "channels", "alike", "chunks", "steps", "rounds")
# What chooses or shapes a single schedule.
_ONE = ("algorithm", "size", "polish", *_GIVEN[2:])


def synth(options: Synth) -> None:
    """A verified schedule, with its gap to the bound."""
    from blinksim.answers.synthesize import synthesize
    from blinksim.cli.bound import at_once
    from blinksim.formats.schedule_json import write_schedule

    if options.listed:
        rows = []
        for algo in REGISTRY.values():
            few = len(algo.collectives) < 8
            rows.append((algo.name, algo.summary, " ".join(algo.collectives) if few else "all collectives"))
        click.echo(table(("algorithm", "what it is", "for"), rows, left=(0, 1, 2)))
        return
    if options.machine is not None and typed_options(options.several):
        of_one = typed_options(options, "algorithm", "messages", "polish", "pareto", "plot", *_GIVEN)
        options.check_files()
        at_once(options, of_one, output=options.output)
        return
    if options.machine is None or options.collective is None:
        raise InputError("name a machine and a collective, as in: blinksim synth dgx1-v100 allreduce (or --list)")
    question = question_of(options.machine, options.where)
    wanted = wanted_of(options, question)
    if options.pareto:
        _pareto(question, wanted, options)
        return
    size = None if options.size is None else parse_size(options.size)
    if size is None and options.messages is not None:
        raise InputError("--messages is about a time, and there is no size; add --size, or leave it out")
    algorithm = options.algorithm or (None if size is not None else "packed")
    if options.output is not None and not options.output.endswith((".json", ".json.gz")):
        raise InputError(f"-o {options.output}: a schedule file ends in .json or .json.gz")
    options.check_files()
    # The seed of tokens is of their experts.
    extra, known = _given(options, algorithm, _GIVEN[:1] if wanted.routing else _GIVEN)
    what = f"synthesising {options.collective} on {options.machine}"
    working = Working(what)
    if "progress" in known:
        extra["progress"] = lambda done, wanted: working(f"{what}, {done} of {wanted} trees")

    def work() -> Synthesis:
        part = question.part(collective=wanted)
        if options.plot and not (wanted.exchanges or wanted.routing):
            from blinksim.plots.topology_plot import view

            view(part)  # refuses what is too large to draw before the work, not after it
        extra.update(size=size, messages=options.messages or "joined", polish_seconds=options.polish)
        return synthesize(part, wanted, algorithm, report=lambda news: working(f"{what}: {news}"), **extra)

    with working:
        limit = None if options.time_limit is None else options.time_limit + (options.polish or 0)
        result = within(limit, "schedule", work)
    topology = result.compact.topology
    with written(options.output, lambda target: write_schedule(result, target, options.force)) as output:
        said = {**question.described(topology), **result.to_dict()}
        answer("synth", lambda: said, lambda: _show(result, options, question, output))
    loads = result.compact.collective.exchanges or wanted.routing is not None
    drawn(options.plot, options.force, "loads" if loads else "trees", result)
    if not result.verdict.ok:
        click.get_current_context().exit(1)
    if result.interrupted:
        click.get_current_context().exit(130)


def _given(options: Synth, algorithm: str | None, names: Sequence[str]) -> tuple[Given, Collection[str]]:
    """The options for an algorithm that were given, of some names, and those that it takes; refuses others."""
    known = {"time_limit"} if algorithm is None else registered(algorithm).options()
    extra: Given = {key: getattr(options, key) for key in names if getattr(options, key) is not None}
    for key in extra:
        if key not in known and algorithm is None:
            raise InputError(f"{option_name(options, key)} is for a certain algorithm; name it with --algorithm")
        if key not in known:
            raise InputError(f"{algorithm} takes no {option_name(options, key)}")
    return extra, known


def _pareto(question: Question, collective: Collective, options: Synth) -> None:
    """Prints all schedules that no other betters, draws them, and writes them to a folder."""
    from blinksim.answers.pareto import SECONDS, pareto

    for key in _ONE:
        if getattr(options, key) is not None:
            raise InputError(f"{option_name(options, key)} is for one schedule; --pareto asks for several")
    folder = options.output
    if folder is not None:
        check_folder(folder, options.force)
    if options.plot:
        from blinksim import plots

        plots.check(options.plot, force=options.force)
    seconds = SECONDS if options.time_limit is None else options.time_limit
    with Working(f"searching schedules of {collective}") as say:
        part = question.part(collective=collective)
        front = pareto(part, collective, seed=options.seed or 0, report=say, seconds=seconds)
    rows = front.rows()
    if folder is not None:
        for point in front.points:
            verdict = verify(point.schedule)
            if not verdict.ok:
                raise BlinksimError(f"{point.name} is wrong: {verdict.reasons[0]}; this is a fault of blinksim")
        Path(folder).mkdir(parents=True, exist_ok=True)
        for number, (point, row) in enumerate(zip(front.points, rows, strict=True), start=1):
            row["file"] = str(Path(folder) / f"{number}-{point.schedule.algorithm}.json")
            exports.write(point.schedule, row["file"], options.force)

    if answer("synth", lambda: {**question.described(front.topology), **front.to_dict(), "rows": rows}):
        click.echo(as_typed(front.text()))
        for edit in question.edits:
            click.echo(f"  edited      {edit}")
        if folder is not None:
            for row in rows:
                click.echo(f"  written     {row['file']}")
            click.echo(f"next: blinksim verify {typed(rows[0]['file'])}")
        else:
            again = command_line(question, collective.name, options.data.root)
            click.echo(f"next: blinksim synth {again} --pareto{typed_options(options, 'time_limit')} -o front")
    drawn(options.plot, options.force, "pareto", front)
    if front.interrupted:
        click.get_current_context().exit(130)


def _show(found: Synthesis, options: Synth, question: Question, output: str | None) -> None:
    schedule, topology = found.compact, found.compact.topology
    more = found.bounds.in_network
    adding = more if more is not None and more.rate > found.bound.rate else None
    best = "the best if switches only forward" if adding else "the best that is possible"
    gap = best if found.gap == 0 else f"{100 * float(found.gap):.3g} % below the bound"
    click.echo("\n".join(_headlines(found, f"{exact_algbw(found.rate)}, {gap}")))
    click.echo(f"  bound     {exact_GBps(found.bound.rate)} GB/s, {found.bound.certificate.words(topology)}")
    if adding:
        click.echo(f"            where {adding.assumes.partition(';')[0]}, at most {exact_GBps(adding.rate)} GB/s")
    if not found.bounds.searched:
        click.echo(f"            {BY_SUMS}")
    sends = f"{count(schedule.sends, 'send')}, height {found.height}, up to {count(found.hops, 'link')} a send"
    click.echo(f"  schedule  {schedule.parts()}, {sends}; built in {format_time(found.seconds)}")
    if found.front:
        cells = [(f"{float(p.rate) / 1e9:.5g}", str(p.height), str(p.trees), f"{p.least_trees}") for p in found.front]
        header = ("GB/s", "height", "trees", "fewest trees possible")
        click.echo(table(header, cells, left=(), indent="            "))
    click.echo(f"  verified  {'every rank ends with what it was promised' if found.verdict.ok else 'NOT correct'}")
    for reason in found.verdict.reasons:
        click.echo(f"            {reason}")
    click.echo(f"  links     {links_at(topology)}")
    for edit in question.edits:
        click.echo(f"  edited    {edit}")
    if found.interrupted:
        click.echo("  stopped   before the search was done; this is the best so far")
    if output:
        click.echo(f"  written   {output}")
        click.echo(f"next: blinksim verify {typed(output)}")
    else:
        again = command_line(question, schedule.collective.name, **vars(options.data))
        names = ("algorithm", "size", "messages", "trees", "channels", "chunks", "steps", "rounds", "polish")
        chosen = typed_options(options, *names, "time_limit", "alike") + typed_options(options.drawing)
        click.echo(f"next: blinksim synth {again}{chosen} -o schedule.json")


def _headlines(found: Synthesis, rate: str) -> list[str]:
    """The answer in one line, and with a size what the time is made of."""
    schedule, at = found.compact, found.at
    if at is None:
        return [f"{schedule.collective} on {schedule.topology.title} by {schedule.algorithm}: {rate}\n"]
    what = f"{schedule.collective} of {format_size(at.size)} on {schedule.topology.title} by {schedule.algorithm}"
    first = at.alternatives[0].algorithm if at.alternatives else ""
    place = f"the quickest of {len(at.alternatives) + 1}" if at.quickest else f"{first} is quicker"
    place += f", but too long to write with {at.too_long[first]:,} sends" if first in at.too_long else ""
    timed_by, run = at.projection.basis, at.projection.details
    if "service" in run:
        order = " --service ordered" if run["service"] == "ordered" else ""
        # Trees send single messages anyway.
        order += " --messages single" if run["messages"] == "single" and schedule.form == "steps" else ""
        formula = f"the sums of alpha and beta say {format_time(run['alpha_beta_s'])}"
        timed_by = [("model", f"simulate{order}: message by message, no launch; {formula}")]
    least = [("at least", f"{format_time(at.least_s)}, the bytes at the rate of the bound, without any latency")]
    # Marked where another model timed them.
    others = ", ".join(
        f"{one.algorithm} {format_time(one.time_s)}{'' if one.model == at.projection.model else f' ({one.model})'}"
        for one in at.alternatives[:_MOST_OTHERS]
    )
    terms = ", ".join(f"{term.name} {format_time(term.time_s)}" for term in at.projection.terms)
    facts = [("terms", terms), *timed_by, *(at.projection.floor() or least)]
    facts += [*([("others", others)] if others else []), ("rate", rate)]
    above = f"{100 * at.gap:.3g} % above" if at.gap < _FEW_TIMES else f"{1 + at.gap:,.0f} times"
    # Times are sums of floats.
    above = f"at most {above} the least time" if at.gap > 1e-9 else "the least time that is possible"
    gap = f", {above}" if at.projection.least else ""
    head = f"{what}: {format_time(at.time_s)}{gap}, {place} ({at.projection.model})\n"
    return [head, *(f"  {label:<9} {text}" for label, text in facts)]


# What the machine's own description is called in commands to type.
_SAVED = "topo.txt"


def advise(options: Advise) -> None:
    """What the library takes, could take and cannot take less, and the file to load."""
    options.check_files()
    question = question_of(options.machine or "", options.where, options.before)
    question = replace(question, machine=options.machine or _SAVED)
    wanted = collective_of(options.collective or "allreduce", **vars(options.data))
    default = study.SIZE if wanted.traffic is None else wanted.traffic.size
    size = default if options.size is None else parse_size(options.size)

    def answered(given: Question) -> Advice:
        if not options.machine:
            if given.nodes != 1:
                raise InputError("nvidia-smi knows nothing of other nodes; name a machine with a network for --nodes")
            given = replace(given, machine=this_machine())
        return study.advise(given, wanted, size, multicast=not options.no_nvls)

    advice = answered(question)
    was = answered(replace(question, edits=())) if options.before else None
    option = advice.load or advice.alternative
    exported = None if option is None else option.exported
    save = exported and partial(write, exported, force=options.force)
    with written(options.output if save else None, save or str) as target:
        output = target if exported else options.output
        said = {**replace(question, rates=None).described(advice.part), **advice.to_dict(), "output": output}
        said |= {} if was is None else {"before": was.to_dict()}
        answer("advise", lambda: said, lambda: _show_advice(advice, was, question, output, options))


def _show_advice(found: Advice, was: Advice | None, question: Question, output: str | None, options: Advise) -> None:
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
        line = f"{command_line(made_for, traffic=options.data.traffic)} {collective}"
        _to_load(option, option.exported, output, f"{save}blinksim synth {line} --algorithm {option.algorithm}")
    elif output:
        click.echo(f"  not written: {output}, since nothing is worth loading")
    again = f"expect {command_line(question)} --collective {collective}{nvls}"
    click.echo(f"{more}next: {save}blinksim {again}")


def _to_load(option: Option, exported: Exported, output: str | None, synth: str) -> None:
    """Prints the variables that load what was written, or the commands that write it."""
    # In a folder of its own for a runtime that reads every file of it.
    folder = "algorithms" if "{folder}" in " ".join(exported.environment.values()) else ""
    name = option.algorithm
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
