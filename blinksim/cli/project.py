"""The commands project, compare, sweep and advise: the time of a collective by size and what-if, and what to load."""

from __future__ import annotations

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, lcm
from operator import itemgetter, methodcaller
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from blinksim.answers.project import BEST, answer as three_figures, held_at, origins, rank
from blinksim.cli import terminal
from blinksim.cli.options import collective_of, command_line, left, of_tokens, question_of, typed_options, wanted_of
from blinksim.cli.terminal import Working, answer, as_typed, csv_text, drawn, note, typed, typed_size, written
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.exports import write
from blinksim.graphs.connectivity import grouped
from blinksim.machines import Question, this_machine
from blinksim.results import count, keyed, table
from blinksim.textio.text_files import Exported, write_text
from blinksim.timing import model_registry as registry
from blinksim.timing.contest import Answer
from blinksim.timing.library_model import Library
from blinksim.timing.projection import Change, bottlenecks, load_preset
from blinksim.timing.projection_result import Projection
from blinksim.timing.timing_model import TimingModel
from blinksim.topology.elements import NCCL, RCCL
from blinksim.topology.graph import Topology
from blinksim.topology.shapes import names_of
from blinksim.units import format_rate, format_size_about, format_time, in_GBps, parse_rate, parse_size, parse_sizes

if TYPE_CHECKING:
    from blinksim.answers.advise import Advice, Option
    from blinksim.answers.compare import Buckets, Comparison, Models
    from blinksim.answers.sweep import Sweep as Study
    from blinksim.answers.worker_pool import Rows
    from blinksim.cli.commands import Advise, Compare, ModelOptions, Project, Sweep


# Options for programs on GPUs, and for NCCL, by the settings of models that they are.
_OF_PROGRAMS = {"protocol": "protocol", "calls": "calls"}
_OF_NCCL = {"channels": "channels", "version": "nccl_version", "graph_file": "nccl_graph", "multicast": "no_nvls"}
_OF_LIBRARY = "version", "multicast", "set_up"
_SET_UP = {"set_up": "set_up"}


def _settings(given: ModelOptions, takes: Collection[str], which: Mapping[str, str], why: str) -> dict[str, object]:
    """The options of a sort that are given as settings of a model that `takes` some.

    why: what others are about, and what to do. Raises `InputError` if such an option is given.
    """
    found = {setting: value for setting, name in which.items() if (value := getattr(given, name))}
    for setting in found:
        if setting not in takes:
            raise InputError(f"--{which[setting].replace('_', '-')} is {why}, or leave it out")
    return found | ({"multicast": False} if "multicast" in found else {})


def program_settings(given: ModelOptions, name: str, takes: Collection[str]) -> dict[str, object]:
    """The options for programs on GPUs as settings of the model called `name`."""
    return _settings(given, takes, _OF_PROGRAMS, f"about programs on GPUs; take --model execution instead of {name}")


def nccl_settings(given: ModelOptions, takes: Collection[str], cure: str) -> dict[str, object]:
    """The options for NCCL as settings of a model. cure: what to do where it takes none."""
    return _settings(given, takes, _OF_NCCL, f"about NCCL; {cure}")


def _of_library(given: ModelOptions) -> str:
    """Those options, as typed, that the machine's library takes: what a command without a model knows."""
    return typed_options(given, *((_OF_NCCL | _SET_UP)[setting] for setting in _OF_LIBRARY))


def project(options: Project) -> None:
    """The time of one collective: with the machine's library, at best and at least, or by one algorithm or model."""
    if typed_options(options.several):
        from blinksim.cli.bound import at_once

        of_one = typed_options(options, "algorithm", "model", "reduction_rate", "what_if", "before")
        at_once(options, of_one + typed_options(options.many) + typed_options(options.timing), why=options.why)
        return
    question = question_of(options.machine, options.where, options.before)
    wanted = wanted_of(options, question)
    if options.many.bytes:
        # The time of many calls.
        from blinksim.answers.compare import buckets

        again, each = command_line(question, wanted.name, **vars(options.data)), options.many.bucket or ""
        if given := typed_options(options, "algorithm", "model", "reduction_rate", "what_if", "before"):
            raise InputError(f"{given.strip()} is about one call: blinksim project {again} {each}{given}")
        with Working(f"predicting {options.machine}"):
            found = buckets(question, wanted, options.many.bytes, each, library_of(options.timing))
        more = f"next: blinksim project {again} {typed_size(found.best.size)}{_of_library(options.timing)} --why"
        answer("project", found.to_dict, lambda: click.echo(f"{as_typed(found.text())}\n{more}"), found.rows)
        return
    if options.size is not None:
        size = parse_size(options.size)
        if re.fullmatch("[0-9.]+B", options.size):
            note(f"{options.size} is read as bytes; {options.size[:-1]} billion parameters in bf16 are {2 * size}GB")
    elif wanted.data is not None:
        size = wanted.data.size
    else:
        raise click.UsageError("Missing argument 'SIZE'.")
    if options.algorithm or options.model or options.reduction_rate or options.what_if:
        _by_name(options, question, wanted, size)
    elif wanted.routing is not None:
        _of_experts(options, question, wanted)
    else:
        _with_library(options, question, wanted, size)


def _of_experts(options: Project, question: Question, wanted: Collective) -> None:
    """The time of a dispatch or combine, its floor, and what would save."""
    from blinksim.bounds.compute import APART
    from blinksim.timing.experts import project_experts

    given = f" size {options.size}, which --tokens gives" if options.size else ""
    asked = f"{command_line(question, wanted.name)}{typed_options(options.drawing)}"
    if given := given or typed_options(options, "before") + typed_options(options.timing):
        raise InputError(f"{wanted} takes no{given}: its time is the busiest link's; blinksim project {asked}")
    found = project_experts(part := question.part(), wanted, **vars(options.drawing))
    said = {**question.described(part), **found.to_dict()}
    # Among few GPUs schedules take the trees of the bound, which may be far quicker than ways of libraries.
    trees = f"synth {asked} -o schedule.json" if part.ranks <= APART else ""
    end = f"\nnext: blinksim {trees or f'bound {asked}'}"
    answer("project", lambda: said, lambda: click.echo(as_typed(found.text(options.why)) + end), found.rows)


def _with_library(options: Project, question: Question, collective: Collective, size: int) -> None:
    """The three figures."""
    library = library_of(options.timing)
    with Working(f"reading {options.machine}") as say:
        [found] = three_figures(question, collective, [size], say, library)
        was = three_figures(replace(question, edits=()), collective, [size], say, library) if options.before else []
    said = {"source": options.machine, "nodes": question.nodes, "edits": list(question.edits), **found.to_dict()}
    said |= {"before": was[0].to_dict() | {"ratio": found.algbw / was[0].algbw}} if was else {}

    def text() -> None:
        click.echo(as_typed(found.why() if options.why else found.text()))
        for one in was:
            more = f" of {len(one.members)} ranks" * (len(one.members) > len(found.members))
            earlier = f"{format_time(one.time_s)}, busbw {format_rate(one.busbw)}{more}"
            # The time of fewer GPUs is scaled from as many of the machine as it was.
            source = one.details["origin"].partition("; quicker than ")[0]
            other = "" if found.details["origin"].startswith(source) else f"; by other data: {source}"
            click.echo(f"  {'before':<17} {left(one.algbw, found.algbw, earlier)}{other}")
        again = command_line(question, collective.name, **vars(options.data)) + _of_library(options.timing)
        held = held_at([found.row()]).get("could take", "")
        rates = " --rates measured" if "measured" in held and not question.rates else ""
        more = "" if options.why else f"why: --why; other algorithms: --algorithm all{rates}\n"
        click.echo(f"{more}next: blinksim compare {again} --plot {_picture(found, question)}")

    answer("project", lambda: said, text, found.rows)


def library_of(given: ModelOptions) -> Library:
    """The machine's library as the options set it; refuses those that are about other models."""
    about = "not about the machine as it is"
    _settings(given, (), _OF_PROGRAMS, f"{about}; take --model execution")
    settings: Any = _settings(given, _OF_LIBRARY, _OF_NCCL | _SET_UP, f"{about}; say --algorithm nccl")
    return Library(**settings)


def _by_name(options: Project, question: Question, wanted: Collective, size: int) -> None:
    """The time by one algorithm or model, its terms and its bottleneck."""
    algorithm, name = options.algorithm or BEST, options.model or registry.DEFAULT
    model = _model(options, algorithm, name)
    asked = model.at_its_rates(question)
    was: Projection | None = None
    changes: tuple[Change, ...] = ()
    with Working(f"reading {options.machine}") as say:
        ranking = rank(asked, wanted, size, model, algorithm, say)
        best = ranking.best
        if options.before:
            # By the model of the answer after the edits: the times of two models do not compare.
            earlier = replace(asked, edits=())
            if model.at(earlier)[0].name not in (best.model, model.name):
                model = _model(options, algorithm, best.model)
            was = rank(earlier, best.collective, best.size, model, algorithm, say).best
    if options.what_if:
        per_node = len(best.members) // question.nodes
        changes = bottlenecks(best.model, best.size, question.nodes, per_node, model.at(asked)[1])
    said = {"source": options.machine, "nodes": question.nodes, "edits": list(question.edits), **ranking.to_dict()}
    said |= {} if was is None else {"before": was.to_dict() | {"ratio": best.algbw / was.algbw}}
    if options.reduction_rate:
        said["reduction_GBps"] = in_GBps(parse_rate(options.reduction_rate))
    said |= {"what_if": [keyed(case, "change settings time_s ratio") for case in changes]} if changes else {}

    def text() -> None:
        click.echo(as_typed(ranking.text()))
        if was is not None:
            earlier = f"{format_time(was.time_s)} ({was.algorithm}), busbw {format_rate(was.busbw)}"
            click.echo(f"  before      {left(was.algbw, best.algbw, earlier)}")
        if changes:
            set_here = {setting.partition(" ")[0] for c in changes if c.settings for setting in c.settings.split(", ")}
            constants = sorted(set_here - set(question.whole().link_classes))
            rows = [(c.change or "as it is", c.settings, format_time(c.time_s), f"{c.ratio:.2f}x") for c in changes]
            click.echo("\n" + table(("change", "setting", "time", "faster"), rows, left=(0, 1)))
            if constants:
                which = "no links, which --edit changes, but constants of the model; to try other values,"
                how = "give --model a copy of its file (models/*projection.yaml)"
                click.echo(f"  {', '.join(constants)}: {which}\n  {how}")
            click.echo("")
        click.echo(f"next: blinksim {_next(best, question, options, algorithm, name)}")

    answer("project", lambda: said, text, ranking.rows)


def _model(options: Project, algorithm: str, name: str) -> TimingModel:
    """The model of this name, set up with the options that it takes; refuses the others."""
    if (chooser := registry.chooser(algorithm)) is not None:
        if name not in (registry.DEFAULT, chooser):
            raise InputError(f"--algorithm nccl is timed by NCCL's own model; leave --model {name} out")
        name = chooser
    takes = registry.settings(name)
    settings = nccl_settings(options.timing, takes, "say --algorithm nccl")
    if "graph_file" in takes and algorithm not in ("best", "all") and chooser is None:
        raise InputError(f"--model {name} is about NCCL's own algorithms; say --algorithm nccl or all")
    if options.what_if and not (registry.is_preset(name) and load_preset(name).constants):
        which = "a preset that has equations, as --model aurora-projection"
        raise InputError(f"--what-if goes with {which}; use --edit for your own")
    if options.reduction_rate:
        if "gamma" not in takes:
            raise InputError(f"--model {name} takes no --reduction-rate")
        settings["gamma"] = float(1 / parse_rate(options.reduction_rate))
    settings |= program_settings(options.timing, name, takes)
    settings |= _settings(options.timing, takes, _SET_UP, "about the library; leave --algorithm and --model out")
    return registry.model(name, **settings)


def _next(best: Projection, question: Question, options: Project, algorithm: str, model: str) -> str:
    """The command to go on with."""
    again = command_line(question, best.collective.name, **vars(options.data)) + typed_options(options.drawing)
    size = typed_size(best.size)
    # As it was typed: a model in a file has another name in the answer.
    timed_by = best.model if registry.chooser(algorithm) else typed(model)
    if "holds_from_bytes" in best.details:
        if not options.what_if and registry.model(best.model).pins_rates:
            return f"project {again} {size} --model {timed_by} --what-if"
        # A preset times itself only: other sizes of the same question, by the same model.
        least = typed_size(best.details["holds_from_bytes"])
        return f"sweep {again} --sizes {least}:{size}:x4 --model {timed_by} --plot sizes.png"
    if best.bound is not None and algorithm == "best" and best.algbw < 0.9 * float(best.bound.rate):
        return f"synth {again} --size {size} -o schedule.json"
    given = options.timing
    by = _of_library(given) if model == registry.DEFAULT else f" --model {timed_by}{typed_options(given)}"
    # Files take part only where they are named.
    by += f" --algorithms {typed(algorithm)}" if "." in algorithm else ""
    return f"compare {again}{by} --plot {_picture(best, question)}"


def _picture(found: Projection, question: Question) -> str:
    """A file for the picture of a comparison, named by what it is about."""
    nodes = f"-x{question.nodes}" if question.nodes > 1 else ""
    return typed(re.sub(r"[^\w.-]+", "-", f"{found.machine}{nodes}-{found.collective.name}.png"))


def compare(options: Compare) -> None:
    """Algorithms against sizes."""
    from blinksim.answers.compare import compare as compared

    wanted = collective_of(options.collective, **vars(options.data))
    options.check_files()
    if options.many.bytes:
        _many_calls(options, wanted)
        return
    if len(names_of(options.machine)) > 1:
        _side_by_side(options, wanted)
        return
    if options.price:
        raise InputError("--price compares machines; name several, separated by commas")
    question = question_of(options.machine, options.where)
    sizes, given = parse_sizes(options.sizes or "1KiB:1GiB"), options.timing
    listed = options.algorithms.split(",") if options.algorithms else None
    models = [name.strip() for name in (options.model or registry.DEFAULT).split(",")]
    if len(models) > 1:
        program_settings(given, "several models", ())
        found_by_models, question = _across(question, wanted, sizes, models, options)
        _print(found_by_models, question, options)
        return
    if any((options.model, listed, options.search)):
        timing: str = models[0]
        if registry.times_schedules(timing):
            others, listed = _chosen_by_libraries(question, wanted, listed, given)
        else:
            # The algorithms of a model that times no schedules, such as NCCL's ring and tree.
            takes = registry.settings(registry.check(timing, registry.MODELS))
            own = registry.model(timing, **nccl_settings(given, takes, "name nccl-tuner in --model"))
            asked = own.at_its_rates(question)
            own.check(asked)
            own, topology = own.at(asked)
            if not (known := [one for one in own.algorithms(topology, wanted) if not registry.chooser(one)]):
                raise InfeasibleError(f"{timing} times no {wanted}")
            chosen = [word.strip() for word in listed or known]
            others = {name: _answer(own, topology, wanted, name) for name in chosen}
            listed, timing = [], registry.DEFAULT
        model = registry.schedule_model(timing, **program_settings(given, timing, registry.settings(timing)))
        with Working(f"reading {options.machine}") as say:
            part = question.part(collective=wanted)
            found = compared(part, wanted, sizes, listed, say, others, model, options.search)
    else:
        with Working(f"reading {options.machine}") as say:
            found = compared(question, wanted, sizes, report=say, model=library_of(given))
    _print(found, question, options)
    drawn(options.plot, options.force, "compare", found, y=options.plot_y)


def _machines(options: Compare) -> list[Question]:
    """The machines that are named, each with its library."""
    if options.model or options.algorithms or options.search:
        raise InputError("several machines are compared with their libraries; leave algorithms and models out")
    questions, typed_names = [], names_of(options.machine)
    for name in typed_names:
        one = question_of(name, type(options.where)(vars(options.where) | {"nodes": 1}))
        # A name that nobody knows is said before the others have taken their time.
        one.node()
        questions.append(replace(one, nodes=options.where.nodes) if one.machine == name else one)
    if options.where.nodes > 1 and {question.machine for question in questions}.isdisjoint(typed_names):
        raise InputError("--nodes is for machines without a number before their name (8xp5); leave one out")
    return questions


def _side_by_side(options: Compare, collective: Collective) -> None:
    """Several machines with their libraries."""
    from blinksim.answers.compare import compare_machines

    prices, questions, more = dict[str, float](), _machines(options), ""
    for text in names_of(",".join(options.price)) if options.price else ():
        name, _, price = text.partition("=")
        try:
            prices[name] = float(price)
        except ValueError:
            raise InputError(f"--price {text}: write it like --price p5=55.04") from None
    with Working(f"predicting {options.machine}"):
        library = library_of(options.timing)
        found = compare_machines(questions, collective, options.sizes, prices=prices, library=library)
    asked = replace(questions[0], machine=options.machine, nodes=options.where.nodes)
    totals = [len(answers[0].members) for answers in found.answers.values()]
    each = [total // one.nodes for total, one in zip(totals, questions, strict=False)]
    if all((len({*totals}) > 1, not found.refused, not prices, *(one.node().fabric for one in questions))):
        # Next are as many GPUs of each, no fewer than now.
        most = lcm(*each) * ceil(max(totals) / lcm(*each))
        counted = (f"{most // own}x{one.machine}" for own, one in zip(each, questions, strict=True))
        asked = replace(asked, machine=",".join(counted), nodes=1)
        more = f"\n  the next command asks for as many GPUs of each, {most}"
    again = command_line(asked, options.collective, **vars(options.data))
    again += typed_options(options, "sizes", "price") + _of_library(options.timing)
    text = as_typed(found.text())
    text += "" if options.plot else f"{more}\nnext: blinksim compare {again} --plot machines.png"
    answer("compare", found.to_dict, lambda: click.echo(text), found.rows)
    drawn(options.plot, options.force, "compare_machines", found, y=options.plot_y)


def _many_calls(options: Compare, collective: Collective) -> None:
    """Many calls, on each of several machines with its library."""
    from blinksim.answers.compare import buckets

    if given := typed_options(options, "algorithms", "model", "sizes", "search", "price", "plot"):
        raise InputError(f"--bytes is of calls of one size with a machine's library, in a table; leave{given} out")
    found: dict[str, Buckets] = {}
    library, many = library_of(options.timing), options.many
    asked = dict(zip(names_of(options.machine), _machines(options), strict=True))
    for name, one in asked.items():
        with Working(f"predicting {name}"):
            found[name] = buckets(one, collective, many.bytes or "", many.bucket or "", library)
    rows = [{"machine": name, **row} for name, one in found.items() for row in one.rows()]
    shown = [{"machine": name, **one.figures} for name, one in found.items()]
    told = [f"  {line.replace('from,', f'from, {name},', 1)}" for name, of in found.items() for line in of.told]
    again = command_line(next(iter(asked.values())), collective.name, **vars(options.data)) + typed_options(many)
    every = f"{collective} of {many.bytes} in calls of {many.bucket}, one after another\n"
    lines = every, table([*shown[0]], [[*one.values()] for one in shown], left=(0, 1, 2)), "", *told
    text = "\n".join((*lines, f"next: blinksim project {again}"))
    answer("compare", lambda: {"rows": rows}, lambda: click.echo(text), lambda: rows)


def _chosen_by_libraries(
    question: Question, wanted: Collective, listed: list[str] | None, given: ModelOptions
) -> tuple[dict[str, Answer], list[str] | None]:
    """What libraries choose, at their own rates unless the question names some; and the algorithms that are left."""
    choosers = {name: chooser for name in listed or () if (chooser := registry.chooser(name))}
    if not choosers:
        nccl_settings(given, (), "name nccl in --algorithms")
        return {}, listed
    answers: dict[str, Answer] = {}
    for name, chooser in choosers.items():
        own = registry.model(chooser, **nccl_settings(given, registry.settings(chooser), ""))
        answers[name] = _answer(*own.at(own.at_its_rates(question)), wanted, name)
    return answers, [name for name in listed or () if name not in choosers]


def _answer(model: TimingModel, topology: Topology, collective: Collective, name: str) -> Answer:
    return lambda size: replace(model.times(topology, collective, [size], [name])[0], algorithm=name)


def _across(
    question: Question, collective: Collective, sizes: list[int], names: list[str], options: Compare
) -> tuple[Models, Question]:
    """The same algorithms by several models, and the question at the rates that all of them take."""
    from blinksim.answers.compare import across_models

    if options.plot:
        raise InputError("--plot draws one model; name one, or take --csv")
    if options.search is not None:
        raise InputError("--search makes schedules for the links alone; name one model, or none")
    listed = (options.algorithms or "ring,double_binary").split(",")
    for name in filter(registry.chooser, listed):
        raise InputError(f"several models compare algorithms by name; ask for ring or double_binary instead of {name}")
    taken = {name: registry.settings(registry.check(name, registry.MODELS)) for name in names}
    if not any("graph_file" in takes for takes in taken.values()):
        nccl_settings(options.timing, (), "name nccl-tuner in --model")
    models: list[TimingModel] = []
    for name, takes in taken.items():
        model = registry.model(name, **(nccl_settings(options.timing, takes, "") if "graph_file" in takes else {}))
        # One table for all: the ratios are to show the models, not the rates.
        question = model.at_its_rates(question)
        models.append(model)
    models = [model if registry.times_schedules(model.name) else model.at(question)[0] for model in models]
    with Working(f"reading {question.machine}") as say:
        part = question.part(collective=collective)
        return across_models(part, collective, sizes, models, listed, say), question


def _print(found: Comparison | Models, question: Question, options: Compare) -> None:
    from blinksim.answers.compare import Models

    again = command_line(question, options.collective, **vars(options.data))
    # What no schedule is known of, nothing can be loaded for; and other libraries read no schedules.
    loads = found.topology.device(found.topology.members[0]).library in (NCCL, RCCL)
    verb = "advise" if loads and (isinstance(found, Models) or found.best()) else "project --why"
    more = f"next: blinksim {verb} {again} {typed_size(max(found.sizes))}{typed_options(options.timing, 'no_nvls')}"
    described, text = question.described(found.topology), f"{as_typed(found.text(question.edits))}\n{more}"
    answer("compare", lambda: {**described, **found.to_dict()}, lambda: click.echo(text), found.rows)


_SHOWN = 40
# Seconds between two lines on the progress, where no line moves.
_EVERY_S = 30


def sweep(options: Sweep) -> None:
    """Every combination of what-ifs, nodes, sizes and algorithms as one table."""
    from blinksim.answers import sweep as study

    question, machine = question_of(options.machine, options.where), options.machine
    options.work.check(machine)
    tokens: dict[str, object] | None = None
    if of_tokens(options):
        if given := typed_options(options, "sizes"):
            raise InputError(f"{options.collective} takes no{given}: its tokens say how many bytes there are")
        wanted: Collective | str = options.collective
        tokens = {name: value for name, value in vars(options.drawing).items() if value is not None}
    else:
        wanted = collective_of(options.collective, **vars(options.data))
    options.check_files()
    journal = f"{options.output}.journal" if options.output else None
    total, last = 0, monotonic()
    with Working(f"sweeping {options.collective} on {machine}") as say:

        def report(done: int, of: int) -> None:
            nonlocal total, last
            total, now, so_far = of, monotonic(), f"{done} of {of} pieces of work are done"
            if now - last > _EVERY_S and not sys.stderr.isatty():
                note(so_far)
                last = now
            # How long the others take is not known: those of many nodes, which come last, take longest.
            say(so_far)

        try:
            how: Any = vars(options.work) | {"base": question, "tokens": tokens, "bounds": options.bounds}
            how |= {"algorithms": options.algorithms or (), "model": options.model}
            sizes, how["journal"], how["report"] = parse_sizes(options.sizes), journal, report
            swept = study.sweep(machine, wanted, sizes, options.vary, **how)
        except BaseException:
            if journal and os.path.exists(journal):
                note(f"what is finished is kept in {journal}; the same command goes on from there")
            raise
    if swept.resumed:
        note(f"{swept.resumed} of {total} pieces of work were taken from {journal}")
    if swept.unfinished:
        kept = f"; {journal} keeps what is finished, and the same command goes on" * bool(journal)
        note(f"stopped before {swept.unfinished} of {total} pieces were done: here are the others{kept}")
    for line in swept.damaged:
        note(f"{journal}:{line}: is damaged; its work was done again")
    rows = swept.rows()

    keep = partial(write_text, text=csv_text(rows), force=options.force)
    with written(None if swept.unfinished else options.output, keep) as output:
        if output:  # The rows are on disk, and the journal has no use.
            Path(f"{output}.journal").unlink(missing_ok=True)
        said: dict[str, object] = {"machine": swept.machine, "source": machine}
        by = options.model or ("alpha-beta" if options.algorithms else "library")
        said |= {"collective": getattr(swept.collective, "name", swept.collective), "model": by}
        said |= {"edits": list(question.edits), "vary": list(options.vary), "rows": rows}
        answer("sweep", lambda: said, lambda: _show(swept, output), lambda: rows)
    drawn(options.plot, options.force, "sweep", swept, options.plot_y)
    if len(swept.failed) == len(rows):
        reasons = dict.fromkeys(row["reason"] for row in rows)
        error = InputError if reasons.keys() <= {*swept.mistaken} else InfeasibleError
        raise error(f"no point has an answer: {'; '.join(reasons)}")
    # What failed is to be mended, and not asked again.
    if not any((options.plot, options.csv, options.json, swept.failed)) and 1 <= len(swept.varying()) <= 3:
        again = command_line(question, options.collective, **vars(options.data))
        again += typed_options(options, "sizes", "algorithms", "model", "vary", "bounds")
        again += typed_options(options.drawing)
        click.echo(f"next: blinksim sweep {again} --plot sweep.png")
    click.get_current_context().exit(130 * bool(swept.unfinished))


def _show(swept: Study, output: str | None) -> None:
    """Prints the table, its notes, and why points have no answer."""
    rows, varying = swept.rows(), swept.varying()
    answered = [row for row in rows if not row["reason"]]
    if answered:
        rates = _rates(answered)
        click.echo(f"{_sentence(swept, answered, rates[-1])}\n")
        tables = list(dict.fromkeys(row["rates"] for row in answered if not row.get("library")))
        several = len(tables) > 1 and "rates" not in varying
        # What was asked for says it all, unless that is a choice.
        chosen = "asked" not in varying or any(row["asked"] != row["algorithm"] for row in answered)
        chosen &= any(not row.get("library") for row in answered)
        lines = _lines(rows[:_SHOWN], varying, rates, chosen=chosen, several=several)
        header = list(lines[0])
        words = {_title(column) for column in varying if any(isinstance(row[column], str) for row in rows)}
        left = [place for place, name in enumerate(header) if name in words | {"takes", "algorithm", "rates"}]
        click.echo(table(header, [list(line.values()) for line in lines], left=left))
        for text in [*_notes(swept, tables, several=several), *(f"edited {edit}" for edit in swept.base.edits)]:
            click.echo(f"  {text}")
        if len(rows) > _SHOWN:
            click.echo(f"  … {len(rows) - _SHOWN} more (--csv has all, -o FILE keeps them)")
        for reason, failed in grouped((row["reason"], row) for row in swept.failed).items():
            which = _named([column for column in varying if len({row[column] for row in failed}) == 1], failed[0])
            click.echo(f"\n  no answer for {which or len(failed)}: {reason}", nl=False)
        click.echo("\n" if swept.failed else "", nl=bool(not swept.failed))
    if output:
        click.echo(f"written: {output}")


def _rates(answered: Rows) -> list[str]:
    """The rates that are shown; points are compared by the last, which is busbw where numbers of ranks differ.

    Of tokens, what goes over the wires, and what that is worth to ranks.
    """
    if "logical_GBps" in answered[0]:
        return ["wire", "logical"]
    return ["algbw", "busbw"] if len({row["ranks"] for row in answered}) > 1 else ["algbw"]


def _sentence(swept: Study, answered: Rows, rate: str) -> str:
    """From which rate to which, and where it is best."""
    best = max(answered, key=lambda row: row[f"{rate}_GBps"])
    slow = min(answered, key=lambda row: row[f"{rate}_GBps"])
    low, high = (f"{row[f'{rate}_GBps']:.4g}" for row in (slow, best))
    # Where all points are alike, none is best.
    at = _named(swept.varying() if low != high else (), best)
    lost = f"; {len(swept.failed)} without an answer" if swept.failed else ""
    span = f"{low if low == high else f'{low} to {high}'} GB/s {rate} over {count(len(swept.rows()), 'point')}"
    return f"{swept.collective} on {swept.machine}: {span}{f', best at {at}' if at else ''}{lost}"


def _lines(
    rows: Rows, varying: Sequence[str], shown: Sequence[str], *, chosen: bool, several: bool
) -> list[dict[str, str]]:
    """The rows of the table, by the names of its columns; shown: which rates."""
    asked, lines = "asked" in varying, []
    for row in rows:
        failed = bool(row["reason"])
        line = {_title(column): _cell(column, row[column]) for column in varying}
        line["ranks"] = "" if failed else str(row["ranks"])
        if chosen:
            line["takes" if asked else "algorithm"] = row["algorithm"] if not failed else "-" if asked else row["asked"]
        for key in filter(row.__contains__, ("time_s", "could_take_s", "cannot_take_less_s")):
            # The quickest that is known may be what the library runs.
            told = "-" if row[key] is None else "none quicker" if row[key] > row["time_s"] else row[key]
            line[_title(key.removesuffix("_s"))] = _cell(key, told)
        line |= {f"{rate} GB/s": "-" if failed else f"{row[f'{rate}_GBps']:.4g}" for rate in shown}
        line |= {"rates": row["rates"]} if several else {}
        if "bound_algbw_GBps" in row:
            most, share = row["bound_algbw_GBps"], row["of_bound"]
            line["bound"] = "-" if most is None else f"{most:.4g}"
            line["of it"] = "-" if share is None else f"{100 * share:.1f} %"
        lines.append(line)
    return lines


def _notes(swept: Study, tables: Sequence[str], *, several: bool) -> list[str]:
    """At which rates the rows are (`tables` where no library takes them), and what their bounds assume."""
    rows = swept.rows()
    told = sorted((row for row in rows if row.get("library")), key=itemgetter("size_bytes"))
    libraries, times = dict.fromkeys(map(itemgetter("library"), told)), [*map(itemgetter("time_s"), told)]
    notes = [f"time with {' or '.join(libraries)}; --csv has its interval and origin"] if libraries else []
    if swept.varying() == ["size_bytes"] and times != sorted(times):
        notes.append("a time that is less than that of fewer bytes was measured so")
    notes += origins(told, {*swept.varying()} <= {"size_bytes"})
    notes.append(", ".join(map("".join, held_at(rows).items())))
    ways = dict.fromkeys(filter(None, map(methodcaller("get", "could_take_as"), rows)))
    notes.append(f"could take in some rows {', in others '.join(ways)}; --csv says which" * (len(ways) > 1))
    if several:
        notes.append("what NCCL chooses is at its own rates; --rates takes one table for all")
    elif len(tables) == 1:
        notes.append(f"{'others' if libraries else 'all'} at {tables[0]} rates")
    bounds = ((row["bound_assumes"], f"{row['bound_algbw_GBps']:.4g}") for row in rows if row.get("bound_assumes"))
    held = grouped(dict.fromkeys(bounds))
    for assumes, rates in held.items():
        which = f"bound of {', '.join(rates)} GB/s" if len(held) > 1 and len(rates) < 4 else "bound"
        notes.append(f"the {which} assumes: {assumes}")
    missing = dict.fromkeys(row["bound_reason"] for row in rows if row.get("bound_reason") and not row["reason"])
    return [*filter(None, notes), *(f"no bound: {reason}" for reason in missing)]


def _named(columns: Iterable[str], row: Mapping[str, float | str]) -> str:
    return ", ".join(f"{_title(column)} {_cell(column, row[column])}" for column in columns)


def _title(column: str) -> str:
    return {"size_bytes": "size", "asked": "algorithm"}.get(column, column.replace("_GBps", " GB/s").replace("_", " "))


def _cell(column: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if column == "size_bytes":
        return format_size_about(value)
    if column.endswith("_s") and isinstance(value, float):
        return format_time(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# What the machine's own description is called in commands to type.
_SAVED = "topo.txt"


def advise(options: Advise) -> None:
    """What the library takes, could take and cannot take less, and the file to load."""
    from blinksim.answers import advise as study

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
        click.echo("\n".join(terminal.proof_lines(exported, target)))
    if exported.caution:
        click.echo(_wrapped("caution", exported.caution))
    if not output:
        make = f"mkdir -p {folder} && " if folder else ""
        click.echo(f"  make it:\n    {synth} -o {name}.json")
        click.echo(f"    {make}blinksim export {name}.json --format {option.format} -o {shlex.quote(target)}")


def _wrapped(key: str, words: str) -> str:
    return textwrap.fill(words, 110, initial_indent=f"  {key:<17} ", subsequent_indent=" " * 20, break_on_hyphens=False)
