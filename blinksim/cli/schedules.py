"""The commands schedules, verify, export, simulate and run, for existing schedules; tune, for choices of NCCL."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from blinksim import exports as formats
from blinksim.answers.verify import read_schedule as read_any, verify_file
from blinksim.cli.options import ALL_GPUS, read_schedule, schedule_question, typed_options
from blinksim.cli.terminal import Working, answer, as_typed, drawn, note, show_export, typed, with_name, written
from blinksim.errors import InfeasibleError, InputError
from blinksim.formats.schedule_json import read_schedule as read, ready_names
from blinksim.machines import Question
from blinksim.results import count, keyed, names, table
from blinksim.schedule.verify import verify as verified
from blinksim.textio.text_files import Exported, write_text
from blinksim.timing.alpha_beta import cost
from blinksim.timing.simulator import Timeline, simulate as simulated
from blinksim.units import format_rate, format_size, format_size_about, format_time, parse_time

if TYPE_CHECKING:
    from blinksim.answers.tune import Tuning
    from blinksim.cli.commands import Export, RulesOptions, Run, Schedules, Simulate, Tune, Verify
    from blinksim.gpu.execution.run import Execution
    from blinksim.nccl.tuner.tuner_files import Choice

# From which part on the sums of alpha and beta are said to differ.
_OFF = 0.1
_MOST_LEGS, _MOST_LINKS = 12, 8


def schedules(options: Schedules) -> None:
    """The schedules that come with blinksim, and the bound that each is held against."""
    rows: list[dict[str, object]] = []
    for name in ready_names():
        schedule = read(name)
        bound = schedule.bound.get("rate_exact")
        rows.append(keyed(schedule, "@Ready.row", name=name, collective=str(schedule.collective), bound_exact=bound))
    columns = ("name", "collective", "algorithm", "machine", "ranks", "bound_exact")
    cells = [tuple(str(row[column] or "-") for column in columns) for row in rows]
    heading = ("schedule", *columns[1:-1], "at most GB/s")
    text = f"{table(heading, cells, left=(0, 1, 2, 3))}\n\nnext: blinksim verify dgx1-v100-8-allreduce"
    answer("schedules", lambda: {"rows": rows}, lambda: click.echo(text))


def verify(options: Verify) -> None:
    """Whether a schedule, what `bound` printed, or a file for a runtime is right."""
    asked = {name: getattr(options, name) for name in ("in_place", "slots", "release")}
    verdict = verify_file(options.file, schedule_question(options.where), root=options.where.root, **asked)
    said = {"file": options.file, **verdict.to_dict()}
    answer("verify", lambda: said, lambda: click.echo(f"{options.file}: {verdict.text()}"))
    click.get_current_context().exit(0 if verdict.proved else 5 if verdict.ok else 1)


def export(options: Export) -> None:
    """A schedule in the format of a runtime, with what to set and what to look for there."""
    path, output = options.schedule, options.output
    tuner = options.name.lower().replace("_", "-") == formats.TUNER
    own = ("least_channels", "no_nvls", "version", "dialect", *(() if options.machine else ("members", "nodes")))
    if not tuner and (given := typed_options(options.job, *own)):
        also = "(--members and --nodes with --machine too)"
        raise InputError(f"{given.strip()}: for --format {formats.TUNER} only {also}")
    form = None if tuner else formats.find(options.name)
    if form is not None and form.folder and output is None:
        raise InputError(f"{form.name} writes several files; name a folder for them with -o")
    options.check_files(folder=form is not None and form.folder)
    if form is None:
        if options.machine is None:
            raise InputError("rules for a tuner are for one machine: name it with --machine")
        if options.channels is not None:
            raise InputError("--channels: for schedules; --least-channels is NCCL_MIN_NCHANNELS of the measured times")
        exported = _with_hints(tuned(options.machine, path, options.job).export(options.job.dialect))
    else:
        where = options.machine and Question(options.machine, options.job.nodes, members=options.job.members)
        plan = read_any(path, where or None)
        verdict = verified(plan)
        if not verdict.ok:
            raise InputError(f"{path} is wrong and is not exported: {verdict.reasons[0]}")
        try:
            exported = form.export(plan, options.channels)
        except InfeasibleError as error:
            raise formats.elsewhere(plan, form, error) from None
    if output is not None:
        formats.write(exported, output, options.force)
    target = output or "FILE"
    said = {"schedule": path, "format": formats.TUNER if form is None else form.name, "output": output}
    proof = [with_name(line, target) for line in exported.proof]
    files = dict(exported.files) if output is None else sorted(exported.files)
    named = {"environment": exported.variables(target), "proof": proof, "files": files}
    said |= keyed(exported, "summary facts environment proof notes caution files", **named)
    answer("export", lambda: said, lambda: show_export(exported, output))


def _with_hints(exported: Exported, plugin: str | None = None) -> Exported:
    """Rules for a tuner with what to do for them. plugin: where the plugin for them is built already."""
    if (needed := exported.environment.get("NCCL_TUNER_PLUGIN")) is None:
        return exported
    hints = [f"build the plugin: blinksim tune --plugin {typed(needed)}"] if plugin is None else []
    hints += ["every rank needs the variables; the log has the line with NCCL_DEBUG_SUBSYS=TUNING"]
    environment = {**exported.environment, "NCCL_TUNER_PLUGIN": plugin or needed}
    return replace(exported, environment=environment, notes=(*hints, *exported.notes))


def simulate(options: Simulate) -> None:
    """A schedule in time, on its own links."""
    launch = parse_time(options.launch)
    options.check_files()
    loaded = read_schedule(options.schedule, options.where)
    # With as many buffers as NCCL's connections have: whether fewer will do is for `verify` to say.
    if not (verdict := verified(loaded, slots=8)):
        note(f"blinksim: {options.schedule} is wrong, whatever time it takes: {verdict.reasons[0]}")
    size = loaded.sized(options.size)
    search = "" if options.how.chunk else ", searching the best size of pieces; --chunk 1MiB or another size saves that"
    with Working(f"simulating {options.schedule}{search}"):
        timeline = simulated(loaded, size, launch=launch, **vars(options.how))

    def write(target: str) -> None:
        if cut := formats.write_trace(timeline, target, options.force):
            note(as_typed(cut))

    with written(options.trace, write) as there:
        asked = {"schedule": options.schedule, "edits": list(options.where.edits)}
        if answer("simulate", lambda: {**asked, **timeline.to_dict()}):
            _show_timeline(timeline, options.where.edits)
            more = f"written: {there}\n" if there else ""
            click.echo(f"{more}next: blinksim verify {typed(options.schedule)}{typed_options(options.where)}")
    drawn(options.plot, options.force, "gantt", timeline)


def _show_timeline(timeline: Timeline, edits: Sequence[str]) -> None:
    click.echo(timeline.sentence())
    over = 100 * (timeline.time_s / timeline.bound_s - 1) if timeline.bound_s else 0.0
    best = " (the best found)" if timeline.tried else ""
    most = format_size(float(f"{timeline.piece_bytes:.3g}"))
    click.echo(f"  {count(timeline.pieces, 'piece')} a chunk, up to {most}{best}; links {timeline.discipline}")
    rates = f"  all at {timeline.schedule.topology.rates} rates"
    click.echo("\n".join((rates, *(f"  edited {edit}" for edit in edits))))
    more = f"{over:.3g} % more than" if over < 900 else f"{1 + over / 100:,.0f} times what"
    click.echo(f"  {more} the loads of its links need ({format_time(timeline.bound_s)})")
    sums = cost(timeline.schedule, timeline.size).time_s
    if abs(sums / timeline.time_s - 1) > _OFF:
        why = "they leave out waits for each other" if sums < timeline.time_s else "here steps and pieces overlap more"
        click.echo(f"  project by alpha-beta, from sums of loads and latencies, says {format_time(sums)}: {why}")
    click.echo("\nwhat the time consists of:")
    legs, half = timeline.critical_path, _MOST_LEGS // 2
    lines = [f"  {leg.words()}" for leg in legs]
    if len(legs) > _MOST_LEGS:
        hidden = [leg.time_s for leg in legs[half:-half]]
        lines[half:-half] = [f"  … {len(hidden)} more: {format_time(sum(hidden))}"]
    click.echo("\n".join((*lines, "\nthe busiest links:")))
    shown, units = timeline.uses[:_MOST_LINKS], ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
    per, unit = next(row for row in units if row[0] <= max(1, *(x.load_bytes for x in shown)))
    rows = [(x.resource, x.kind, f"{100 * x.busy:.1f} %", f"{x.load_bytes / per:.4g} {unit}") for x in shown]
    click.echo(table(("link", "class", "busy", "passed"), rows, left=(0, 1)))
    if len(timeline.uses) > _MOST_LINKS:
        click.echo(f"  and {len(timeline.uses) - _MOST_LINKS} more")


def run(options: Run) -> None:
    """A schedule run for real, its data checked."""
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if options.pairs:
        _pairs(options, given)
        return
    if options.schedule is None:
        raise InputError("give a schedule file and a size, as in: blinksim run schedule.json 64MiB (or --pairs)")
    from blinksim.gpu.execution.run import execute, executor_for

    schedule, executor = read_schedule(options.schedule, options.where), options.how.executor
    if executor == "auto":
        executor = "numpy" if options.how.seed is not None else executor_for(schedule)
        if executor == "cupy":
            note("runs on the GPUs of this computer; --executor numpy does not")
    if executor == "numpy" and (idle := [f"--{name}" for name in ("warmup", "iterations") if name in given]):
        note(f"{' and '.join(idle)}: no effect without --executor cupy; NumPy runs once and takes no time")
    ran = execute(schedule, options.size, **vars(options.how) | {"executor": executor})
    answer("run", lambda: {"schedule": options.schedule, **ran.to_dict()}, lambda: _show_run(ran, options))
    context.exit(not ran.ok)


def _show_run(ran: Execution, options: Run) -> None:
    does, size = f"{ran.algorithm} {ran.collective} of", format_size(ran.used_bytes)
    does, size = (f"{names(ran.groups, ' beside ', 4)},", f"{size} in all,") if ran.groups else (does, size)
    what = f"{does} {size} on {len(ran.members)} ranks"
    state = "not checked" if ran.wrong is None else "correct" if ran.ok else f"WRONG: {ran.wrong} elements differ"
    how = f"{ran.executor}, {ran.dtype}{' ' + ran.op if ran.collective.reduces or ran.groups else ''}"
    click.echo(f"{what}, {how}: {state}")
    if ran.rounding:
        click.echo(f"  {ran.rounding}")
    if ran.wrong is not None:
        click.echo(f"  largest error {ran.max_error:g} (tolerance: {ran.tolerance})")
    if ran.time_s is not None and ran.algbw is not None:
        rates = f"algbw {format_rate(ran.algbw)}"
        rates += "" if ran.busbw is None else f", busbw {format_rate(ran.busbw)}"
        span = f"{format_time(min(ran.times_s))} to {format_time(max(ran.times_s))}"
        click.echo(f"  median of {len(ran.times_s)}: {format_time(ran.time_s)}, {rates}; {span}")
        cut = f"{ran.slices} slices, pieces of {format_size_about(ran.piece_bytes)}"
        how = f"protocol {ran.protocol}" + (", staged" if ran.staged else "")
        click.echo(f"  on {', '.join(dict.fromkeys(ran.hardware))}; {how}, {cut}")
    asked = " ".join(filter(None, (typed(options.schedule or ""), options.size)))
    click.echo(f"next: blinksim simulate {asked}{typed_options(options.where)}")


def _pairs(options: Run, given: Sequence[str]) -> None:
    """Measures the links between GPUs; refuses options that it would ignore."""
    takes = {"schedule", "size", "pairs", "json", "quiet", *(["executor"] * (options.how.executor != "numpy"))}
    if others := [name for name in given if name not in takes]:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise InputError(f"--pairs measures links, on GPUs and in its own way; leave out {named}")
    if options.schedule is not None:
        raise InputError("--pairs measures the links between GPUs; leave the schedule out")
    from blinksim.answers.measurements.public import grouped
    from blinksim.gpu.execution.gpu_devices import measure_copies, measure_pairs
    from blinksim.gpu.jobs.backend import compile_ahead

    copies, pairs = measure_copies(), measure_pairs()
    begin = time.perf_counter()
    kernels = {"kernels": compile_ahead(), "compile_s": time.perf_counter() - begin}
    if answer("run", lambda: {**pairs, **kernels, "ways": [rate.to_dict() for rate in copies]}):
        header = ("", *(f"gpu{i}" for i in range(len(pairs["gpus"]))))
        for title, values, scale in (
            (f"copies of {format_size(pairs['size_bytes'])}, GB/s", pairs["GBps"], 1.0),
            ("small copies, us", pairs["latency_s"], 1e6),
        ):
            cells = [["-" if value is None else f"{value * scale:.4g}" for value in row] for row in values]
            click.echo(f"{title}\n{table(header, [(f'gpu{i}', *row) for i, row in enumerate(cells)])}\n")
        # One row for each kind of copy and number of blocks, over all GPUs: the slowest and the fastest.
        rows = []
        for (name, blocks), group in grouped(copies, attrgetter("kind", "blocks")):
            rates, alphas = [rate.rate / 1e9 for rate in group], [rate.alpha_s * 1e6 for rate in group]
            spread = (f"{min(rates):.4g}", f"{max(rates):.4g}", f"{min(alphas):.3g}", f"{max(alphas):.3g}")
            rows.append((name, str(blocks or "-"), str(len(group)), *spread))
        header = ("way", "blocks a peer", "measured", "GB/s least", "most", "alpha us least", "most")
        click.echo(f"way by way (time = alpha + bytes / rate)\n{table(header, rows)}")
        click.echo(f"\non {', '.join(dict.fromkeys(pairs['gpus']))}")
        compiled = f"{kernels['kernels']} kernels of training jobs are compiled (took {kernels['compile_s']:.1f} s)"
        click.echo(f"{compiled}: their first calls need not wait for that")


def tuned(machine: str, times: str, job: RulesOptions) -> Tuning:
    """The rules that a file of measured times gives on a machine; raises as `blinksim.answers.tune.tune`."""
    from blinksim.answers.tune import tune as find_rules

    given: dict[str, Any] = {"members": job.members, "nodes": job.nodes, "least_channels": job.least_channels}
    return find_rules(machine, times, nvls=not job.no_nvls, version=job.version, **given)


def tune(options: Tune) -> None:
    """Where another of NCCL's own choices is quicker, and the rules for a tuner plugin."""
    from blinksim.answers.tune import choice_words, times_text
    from blinksim.nccl.tuner import tuner_files

    machine, times, output, plugin = options.machine, options.times, options.output, options.plugin
    if machine is None:
        if plugin is None:
            raise InputError("name a machine and its measured times, or --gpus to take them (or --plugin FILE alone)")
        place = tuner_files.build(plugin, force=options.force)
        loads = {"NCCL_TUNER_PLUGIN": str(place.resolve())}
        built = Exported({}, "the plugin, for NCCL 2.21 and later and RCCL", environment=loads)
        files = {"plugin": str(place), "source": str(tuner_files.SOURCE)}
        answer("tune", lambda: files, lambda: show_export(built, str(place)))
        return
    if (times is None) == (options.gpus is None):
        raise InputError("give measured times (TIMES) or --gpus to take them here, one of the two")
    options.check_files()
    tuning = tuned(machine, times, options.job) if times is not None else _on_gpus(machine, options)
    exported = tuning.export(options.job.dialect)
    if (to := options.times_to) is not None:
        write_text(to, times_text(tuning.measured, tuning.least_channels, tuning.job), options.force)
    if output is not None:
        write_text(output, exported.files[""], options.force)
    if plugin is not None:
        tuner_files.build(plugin, force=options.force)
    variables = exported.variables(output or "FILE")
    said = {**tuning.to_dict(), "dialect": options.job.dialect, "output": output, "environment": variables}

    if answer("tune", lambda: said):
        # The sentence, and the sizes at which NCCL's choice changes, neighbours of one change in a row.
        click.echo(f"{tuning.sentence()}\n")
        cells = []
        alike = groupby(tuning.cells, attrgetter("collective", "before", "choice"))
        for (collective, before, choice), group in alike:
            run = list(group)
            if choice == before:
                continue
            sizes = format_size(run[0].size) + (f" to {format_size(run[-1].size)}" if len(run) > 1 else "")
            best = max(run, key=lambda cell: cell.gain)
            gain = (format_time(best.before_s), format_time(best.time_s), f"{100 * best.gain:.0f} %")
            cells.append((collective, sizes, choice_words(before), choice_words(choice), *gain))
        if cells:
            heading = ("collective", "sizes", "NCCL takes", "quicker", "time", "becomes", "saves up to")
            click.echo(table(heading, cells, left=(0, 1, 2, 3)))
        else:
            click.echo("NCCL's own choices are the quickest everywhere, as far as the model can tell")
        click.echo(f"\ncaution: {tuning.caution}\n" if tuning.caution else "")
        if output is None:
            # Times that were taken here and not kept are to be taken again.
            again = typed_options(options, "gpus").replace(f" {ALL_GPUS}", "")
            kept = f" {typed(file)}" if (file := times or to) else f"{again} --times-to times.csv"
            click.echo(f"next: blinksim tune {typed(machine)}{kept}{typed_options(options.job)} -o tuner.csv")
            return
        paths = "give whole paths where ranks start in other folders"
        show_export(_with_hints(replace(exported, facts=(), notes=(paths, *exported.notes)), plugin), output)


def _on_gpus(machine: str, options: Tune) -> Tuning:
    from blinksim.answers.tune import tune_here
    from blinksim.gpu.execution.run import ChoiceClock

    job = options.job
    if job.nodes > 1 or job.members:
        raise InputError("--gpus times the first GPUs of this machine; leave --nodes and --members out")
    nvls = not job.no_nvls and os.environ.get("NCCL_NVLS_ENABLE") != "0"
    gpus = None if options.gpus == ALL_GPUS else options.gpus
    clock = ChoiceClock(gpus, least_channels=job.least_channels, nvls=nvls)
    with Working("building the plugin") as say:

        def measure(collective: str, size: int, choice: Choice) -> float:
            say(f"{collective} of {format_size(size)} by {' '.join(map(str, choice[:2]))}")
            return clock.measure(collective, size, choice)

        given: dict[str, Any] = {"members": tuple(range(clock.gpus)), "nvls": nvls, "gpus": clock.kind}
        given |= {"least_channels": job.least_channels, "most": options.measurements}
        tuning = tune_here(machine, measure, version=job.version, **given)
    # Which asks NCCL, with a file of rules that goes when the clock is closed.
    tuning = replace(tuning, version=clock.version)
    clock.close()
    return tuning
