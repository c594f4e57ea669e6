"""The commands diagnose, expect, calibrate, measured and reproduce: measurements beside models and bounds."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import isnan
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from blinksim.answers.expect import COLLECTIVES, VISIBLE, expect as expected
from blinksim.answers.logs.calibrate import Calibration, NcclFit, calibrate as calibrated
from blinksim.answers.logs.diagnose import STATUSES, STEPS, Diagnosis, Line, diagnose as diagnosed
from blinksim.answers.logs.expectation import Series, check_ranks, members_of, of_one_job, read_runs
from blinksim.answers.logs.fit import Fitted
from blinksim.answers.logs.locate import Candidate, locate as located
from blinksim.answers.measurements import public as published
from blinksim.answers.measurements.public import Measured as Projected, PublicMeasurements, grouped
from blinksim.bounds.bound_result import NOTHING
from blinksim.cli.options import ALL_GPUS, command_line, question_of, typed_options
from blinksim.cli.terminal import Working, answer, drawn, note, typed, typed_size, written
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.formats import rate_tables
from blinksim.formats.shipped.known_gpus import named
from blinksim.machines import Question, this_machine
from blinksim.nccl.tests_log import Run, select
from blinksim.nccl.tuner.tuner import DEFAULT_VERSION
from blinksim.results import count, keyed, names, plain, table
from blinksim.textio.text_files import shown, write_text
from blinksim.timing.library_model import Library
from blinksim.timing.measured import public_tables
from blinksim.timing.measured_constants import UNJUDGED
from blinksim.timing.projection_result import guesses, labelled, rates_of
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_rate, format_size, format_size_about, format_time, in_GBps

if TYPE_CHECKING:
    from blinksim.cli.commands import Calibrate, Diagnose, Expect, Locate, Measured, Reproduce

_DATA_CHECK = "nvidia-smi -q -d ECC (AMD: amd-smi metric --ecc); dmesg | grep -i -e xid -e amdgpu"


def _runs(log: str, collective: str | None) -> list[Run]:
    """The tests in a log, all of one collective."""
    return select(read_runs(log), Collective.parse(collective).name if collective else "")


def _question(options: Diagnose | Calibrate) -> Question:
    """The question about the machine; where none is named, the refusal names one with the GPUs of the log.

    Refuses numbers in place of logs.
    """
    for log in options.logs:
        if (rate := re.fullmatch("([0-9.]+)(GB/?s)?", log, re.IGNORECASE)) and not Path(log).exists():
            raise InputError(f"{log} is no log; type a figure like --busbw {rate[1]} --size 8GiB --machine hgx-h100")
    if options.machine is None:
        places = [place for log in options.logs[:1] for run in read_runs(log) for place in run.places]
        gpu = named(places[0].name) if places else None
        like = f", as in --machine {gpu.machine}: the log names {places[0].name}" if gpu else " (blinksim topo list)"
        raise InputError(f"name the machine with --machine{like}")
    return question_of(options.machine, options.where)


def _part(run: Run, question: Question, whole: Topology) -> Topology:
    """The selected part of the machine that a test ran on: as the options say, else as the log says."""
    if question.members is None and question.ranks_per_node is None:
        members = members_of(run, whole)
        return whole.select(members, question.relay_names(whole, members), question.link_classes(whole))
    topology = question.part(whole)
    check_ranks(run, topology)
    return topology


def _diagnosed(
    options: Diagnose | Expect, question: Question, whole: Topology, runs: Sequence[Run] | None, tested: str = ""
) -> Diagnosis:
    """What is said of tests of one collective in a log, or of a figure of `tested` in their place."""
    part = _part(runs[0], question, whole) if runs else question.part(whole)
    given = {name: getattr(options, name) for name in ("size", "busbw", "time") if not runs}
    given |= {"in_place": options.in_place, "set_up": options.set_up, "version": options.nccl_version or ""}
    multicast, rates = not options.no_nvls, question.rates
    return diagnosed(runs, part, whole, collective=tested, multicast=multicast, rates=rates, **given)


def diagnose(options: Diagnose) -> None:
    """Whether the bandwidth of a log is normal."""
    if options.logs and typed_options(options, "busbw", "time", "size"):
        cure = "leave one of both out (a machine is named by --machine)"
        raise InputError(f"--busbw, --time and --size are a figure in place of a log; {cure}")
    if options.json and len(options.logs) > 1:
        raise InputError("--json takes one log; --csv has a column for the log")
    question = _question(options)
    whole = question.whole()
    tested = options.collective or "allreduce"
    runs = {log: _runs(log, options.collective) for log in options.logs}
    by_log = {log: _diagnosed(options, question, whole, runs.get(log), tested) for log in runs or ["figure"]}
    # How many per cent of the bound or the model the largest sizes reach.
    bound = options.against == "bound"
    reach = {log: 100 * (x.of_bound(x.lines[-1]) if bound else x.lines[-1].of_model) for log, x in by_log.items()}
    behind = [log for log in by_log if options.threshold is not None and reach[log] < options.threshold]
    first, only = next(iter(by_log.items()))
    # A threshold says itself what is too slow.
    statuses = {x.status(weighed=options.threshold is None) for x in by_log.values()} | {1 for _ in behind}
    several, losses = len(by_log) > 1, _losses(only, runs.get(first), question, options)

    def said() -> dict[str, object]:
        said = {"log": None if only.stated else first, **question.described(only.part), **only.to_dict()}
        said |= {"threshold_percent": options.threshold, "against": options.against, "percent": reach[first]}
        return said | {"single_losses": [one.row() for one in losses], "ok": 1 not in statuses}

    def rows() -> list[dict[str, object]]:
        return [{"log": log} | row for log, each in by_log.items() for row in each.rows()] if several else only.rows()

    def text() -> None:
        if several:
            again = typed_options(options, "collective", "in_place", "no_nvls", "nccl_version", "set_up")
            _show_beside(by_log, question, again)
        else:
            log = typed_options(options, "busbw", "time", "size")[1:] if only.stated else typed(first)
            _show_diagnosis(only, losses, question, f"{log}{typed_options(options, 'collective')}", options)

    answer("diagnose", said, text, rows)
    for log in behind:
        reached = f"{reach[log]:.3g} % of the {options.against} at {format_size(by_log[log].lines[-1].size)}"
        note(f"{f'{log}: ' if several else ''}below the threshold: {reached}, wanted {options.threshold:g} %")
    click.get_current_context().exit(min(statuses, key=STATUSES.index))


def _losses(
    found: Diagnosis, runs: Sequence[Run] | None, question: Question, options: Diagnose
) -> dict[Candidate, str]:
    """The single faults of `locate`'s table that explain a log alike, and where they are by the names of hosts.

    None where it is not behind or a cause is plain.
    """
    plain = found.sure or question.edits
    if runs and len(options.logs) == 1 and found.first_behind is not None and not plain:
        with Working(f"comparing {options.machine} with faults"), suppress(BlinksimError):
            alike = located(question.machine, runs, nodes=question.nodes, multicast=not options.no_nvls)
            # What is rather healthy has no fault to be named.
            said = alike.explained and alike.healthy < 0.5 and not alike.pairs
            return {one: alike.named(one) for one in alike.tied} if said else {}
    return {}


def expect(options: Expect) -> None:
    """What a healthy machine reaches, or whether logs do."""
    question, given = question_of(options.machine, options.where), options.collective
    wanted = [Collective.parse(name) for name in given.split(",")] if given else []
    if options.logs:
        _check(options, question, [one.name for one in wanted])
        return
    with Working(f"predicting {options.machine}"):
        version = options.nccl_version or DEFAULT_VERSION
        library = Library(version=version, multicast=not options.no_nvls, set_up=options.set_up or "graph")
        found = expected(question, wanted or COLLECTIVES, options.sizes, library=library)
    again = command_line(question) + typed_options(options, "no_nvls", "nccl_version", "set_up")
    text = f"{found.text()}\nnext: blinksim expect {again} --check log.txt"
    said, forms = found.to_dict(), {"prometheus": found.prometheus, "nccl-tests": found.nccl_tests}
    answer("expect", lambda: {"edits": list(question.edits), **said}, lambda: click.echo(text), found.rows, forms)


def _check(options: Expect, question: Question, wanted: Collection[str]) -> None:
    """Judges the tests in logs, each collective (and group of a job) by itself, as `diagnose` does."""
    whole, found = question.whole(), list[tuple[str, Sequence[Run], Diagnosis]]()
    read = [read_runs(log) for log in options.logs]
    for runs_of_log in [of_one_job(chain(*read))] if options.one_job else read:
        for (*_, name), tests in grouped(runs_of_log, attrgetter("group", "places", "collective")):
            if name in wanted or not wanted or not name:
                runs = select(tests, name or ",".join(wanted))
                found.append((runs[0].path, runs, _diagnosed(options, question, whole, runs)))
    if not found:
        raise InputError(f"{', '.join(options.logs)}: no test of {', '.join(wanted)}")
    status = min((each.status() for *_, each in found), key=STATUSES.index)
    jobs = [{"log": log, **each.calls(runs)} for log, runs, each in found if runs[0].group]
    heads = [keyed(runs[0], "log group? collective", log=log) for log, runs, _ in found]
    rows = [head | row for head, (*_, each) in zip(heads, found, strict=True) for row in each.rows()]

    def text() -> None:
        again = command_line(question) + typed_options(options, "in_place", "no_nvls", "nccl_version", "set_up")
        if jobs:
            click.echo(_jobs_text(jobs))
            logs = " ".join(f"--check {typed(log)}" for log in options.logs)
            click.echo(f"next: blinksim expect {again} {logs}{typed_options(options, 'one_job')} --csv")
            return
        cells = []
        for log, _, each in found:
            click.echo(each.sentence() if len(options.logs) < 2 else f"{log}: {each.sentence()}")
            for line in each.apart():
                times = line.time_s, line.expected.time_s, line.expected.high_s, line.expected.least_s
                shown = [f"{in_GBps(line.size / time * float(each.factor)):.4g}" for time in times]
                behind = "slow" if line in chain(*each.stretches) else ""
                cells.append([log, each.collective.name, format_size(line.size), *shown, behind])
        heading = ("log", "collective", "size", "busbw", "expected", "floor", "bound", "")
        click.echo("\n" + table(heading, cells, left=(0, 1, 7)) + "\n")
        if launched := sorted({each.expectation.launched for *_, each in found} - {""}):
            click.echo(f"  expected of calls{' or'.join(launched)}")
        worst = next((log for log, _, each in found if each.status() == status), found[0][0])
        click.echo(f"next: blinksim diagnose {typed(worst)} --machine {again}")

    said = {"machine": whole.name, "ok": not status, "status": status, "jobs": jobs, "rows": rows}
    answer("expect", lambda: said, text, lambda: rows)
    click.get_current_context().exit(status)


def locate(options: Locate) -> None:
    """The fault that explains several logs."""
    given: dict[str, Any] = {name: getattr(options, name) for name in ("nodes", "edits", "plan", "collective")}
    given |= {"hosts": options.hosts.split(",") if options.hosts else (), "next_run": options.next}
    with Working(f"comparing {options.machine} with faults"):
        found = located(options.machine, options.logs, multicast=not options.no_nvls, **given)
    first, machine = next(iter(found.candidates), None), typed(options.machine)
    again = typed_options(options, "nodes", "hosts", "edits", "collective", "no_nvls")
    nodes = typed_options(Question(nodes=found.nodes), "nodes")
    nvls = "" if found.multicast else " --no-nvls"
    done = all((options.next, found.seen, not found.next_run))
    if found.next_run or (first is None and found.plan):
        more = found.next_run or found.plan[0]
    elif found.faulty and first is not None and (done or found.nodes == len(found.tied) == 1):
        edits = "".join(f" --edit {typed(edit)}" for edit in (*options.edits, *first.edits))
        more = f"blinksim project {machine} allreduce 256MiB{nodes}{edits}{nvls} --before"
    elif done and found.status == 0:
        more = f"blinksim expect {machine}{typed_options(options, 'edits')}{nodes}{nvls}"
    else:
        logs = "" if done else "".join(f" {typed(log)}" for log in options.logs)
        # What these logs do not say the runs may that clear a machine of which nothing is known.
        more = f"blinksim locate {machine}{logs}{again} {('--next', '--plan')[done]}"
    told = labelled([("runs", "no other of nccl-tests tells more" if done else "")])
    said = "\n".join((found.text(), *told, f"next: {more}"))
    answer("locate", found.to_dict, lambda: click.echo(said), found.rows)
    click.get_current_context().exit(found.status)


def _show_beside(by_log: Mapping[str, Diagnosis], question: Question, more: str) -> None:
    """Several logs: busbw by size and log, and what each log says."""
    for log, each in by_log.items():
        click.echo(f"{log}: {each.sentence()}")
    by_size = {log: {line.size: line for line in each.lines} for log, each in by_log.items()}
    sizes, every = sorted({*chain(*by_size.values())}), by_log.items()
    rows = [[format_size(size), *(_busbw(one, by_size[log].get(size)) for log, one in every)] for size in sizes]
    click.echo("\n  busbw in GB/s by size and log; * is behind what is expected\n")
    click.echo(table(("size", *(f"{log} " for log in by_log)), rows, left=()))
    worst = min(by_log, key=lambda log: (STATUSES.index(by_log[log].status()), by_log[log].largest.of_model))
    click.echo(f"next: blinksim diagnose {typed(worst)} --machine {command_line(question)}{more}")


def _show_diagnosis(
    found: Diagnosis, losses: Mapping[Candidate, str], question: Question, log: str, options: Diagnose
) -> None:
    """log: as it is typed."""
    click.echo(found.sentence() + "\n")
    why, nvls = options.why, (" --no-nvls", "")[found.expectation.ran.multicast]
    library = found.expectation.takes.library
    heading, cells = ["size", "time", "busbw ", "expected", "of expected"], list[list[str]]()
    heading += ["algbw", "of bound", f"{library}'s pick"] * bool(why)
    for line in found.lines if why else found.apart():
        usual = line.size / line.expected.time_s * float(found.factor) / 1e9
        row = [format_size(line.size), format_time(line.time_s), _busbw(found, line), f"{usual:.4g}"]
        row += [f"{100 * line.of_model:.0f} %", f"{line.algbw_GBps:.4g}", f"{100 * found.of_bound(line):.3g} %"]
        cells.append([*row, line.expected.choice][: len(heading)])
    click.echo(table(heading, cells, left=(7,)) + "\n")
    to_do, kinds = found.to_do(), found.expectation.rings.limits
    facts = [*_facts(found, why), *to_do]
    # The headline is of all links of a class alike; one that is slow alone may be of another.
    for kind, same in grouped(sorted(losses, key=lambda one: found.spares(one.kind)), attrgetter("kind")):
        others = f", or {count(len(same) - 1, 'other place')}" if same[1:] else ""
        apart = f"not {' or '.join(kinds)} but, at one place alone, " if found.spares(kind) else ""
        told = f"{apart}{kind.words}, about {100 * same[0].share:.0f} % left ({losses[same[0]]}{others}): {kind.check}"
        facts.append(("could be", told))
    click.echo("\n".join(labelled(sorted(facts, key=lambda one: one[0] == "again"))))
    machine, nodes, one = command_line(question), typed_options(question, "nodes"), typed(str(question.machine))
    if found.part.ranks < question.whole().ranks and not (question.members or question.ranks_per_node):
        question = replace(question, members=",".join(found.part.members))
    again, name = typed_options(options, "in_place", "nccl_version", "set_up"), found.collective.name
    # Roots, and GPUs that a head need not list, are not for locate.
    partly = any((found.stated, found.collective.rooted, question.members, question.ranks_per_node))
    visible = all((library in VISIBLE, not question.edits, found.judged, found.otherwise or not found.as_expected))
    faster = all((found.judged, found.largest.time_s < found.largest.expected.low_s, not found.as_expected))
    run = dict(to_do).get("again", f"blinksim expect {machine} --collective {name}")
    # From one figure, or of classes and networks that such times do not tell apart, none can be calibrated.
    after, asked = ("compare", "advise")[library in VISIBLE], command_line(question, name)
    ways = (
        (found.wrong, f"locate {one}{nodes}{nvls} --plan"),
        (found.failed or found.unfinished or found.last_odd, run),
        (found.strange, f"diagnose {log} --machine {found.strange.rpartition(' ')[2]}{nodes}"),
        (found.impossible, "topo list"),
        (faster, run),
        (found.resembles.startswith("NVLS"), f"diagnose {log} --machine {machine}{again} --no-nvls"),
        (visible, f"locate {one} {(f'{log} --next', '--plan')[partly]}{nodes}{nvls}"),
        (all((library in VISIBLE, question.edits, not found.as_expected)), f"bound {asked} --losses"),
        (any((not found.as_expected, found.again, "again" in dict(to_do))), run),
        (found.stated or found.part.nodes > 1 or len(kinds) > 1, f"{after} {asked}{nvls}"),
        (True, f"calibrate {log} --machine {machine}{nvls} -o rates.yaml"),
    )
    more = next(command for fits, command in ways if fits)
    click.echo(f"next: {('blinksim ', '')[more is run]}{more}")


def _busbw(found: Diagnosis, line: Line | None) -> str:
    """In GB/s, marked * where it is behind, as the sentence says."""
    if line is None:
        return "- "
    return f"{line.algbw * float(found.factor) / 1e9:.4g}{'*' if line in chain(found.odd, *found.stretches) else ' '}"


def _facts(found: Diagnosis, why: bool) -> list[tuple[str, str]]:
    """Labels and texts below the table; `labelled` leaves out those without a text."""
    part, best, expectation = found.part, found.bound, found.expectation
    most, alone = (format_rate(one.rate * found.factor) for one in (best, expectation.bounds))
    doing, at = "add" if found.collective.reduces else "multicast", rates_of(part)
    more = f", with switches that {doing}; {alone} if they only forward" if alone != most else ""
    behind = ""
    if found.first_behind and found.lane and not (found.sure or found.unlike or "every size" in found.shown):
        seen, usual, lane, _ = found.lane
        behind = f"each {lane} at {seen / 1e9:.3g} GB/s, not {usual / 1e9:.3g}, would explain it"
    bases = dict.fromkeys(map(attrgetter("expected.basis"), found.apart()))
    return [
        ("bound", f"busbw {most} at {at} rates{more}{guesses(at)}"),
        ("", f"{exact_GBps(best.rate)} GB/s algbw ({best.scope}): {best.certificate.words(part)}" if why else ""),
        ("", f"it assumes: {best.assumes}" if best.assumes != NOTHING else ""),
        ("expected", f"{found.largest.expected.origin}; interval: 8 in 10 runs{expectation.launched}"),
        ("", f"other sizes otherwise ({', '.join(bases)}): --json has the origin of each" * (len(bases) > 1)),
        ("model", expectation.name if why else ""),
        ("behind", behind),
        ("resembles", f"{found.resembles}, as slow links may" if found.resembles and not found.sure else ""),
        *((f"{expectation.takes.library} found", told) for told in found.otherwise),
        ("ranks", f"{part.ranks}: {names(part.members)}; links {', '.join(part.link_classes)}"),
        ("busbw", f"algbw x {found.factor}; algbw is size / time (blinksim help busbw)" if why else ""),
        ("check", _DATA_CHECK if found.wrong else ""),
        ("check", found.small_times),
    ]


Job = Mapping[str, Any]
"""What `Diagnosis.calls` gives of a group."""


def _jobs_text(jobs: Sequence[Job]) -> str:
    """What `Diagnosis.calls` gives of several groups, and the share of the steps in each log."""
    lines, cells = list[str](), list[list[str]]()
    for log in dict.fromkeys(job["log"] for job in jobs):
        rows = [job for job in jobs if job["log"] == log]
        # All groups share the steps of their job.
        above = sum(row["above_s"] for row in rows)
        whole = rows[0]["of_s"] if rows[0]["of"] == STEPS else sum(row["of_s"] for row in rows)
        share = f"{100 * above / whole:.3g} % of {rows[0]['of']}"
        lines.append(f"{log}: {format_time(above)} above expectation, {share}")
        if waits := [row for row in rows if row.get("late")]:
            most = max(waits, key=itemgetter("waited_s"))
            waited = format_time(sum(row["waited_s"] for row in waits))
            lines.append(f"  besides, ranks waited {waited} for others, most for that of {most['late']}")
        for row in rows:
            times = [format_time(row[key]) for key in ("time_s", "expected_s", "bound_s", "above_s")]
            whose = [str(row[key]) for key in ("group", "collective", "ranks", "calls")]
            cells.append([*whose, *times, row["verdict"]])
    heading = ("group", "collective", "GPUs", "calls", "measured", "expected", "bound", "above", "")
    return "\n".join((*lines, "", table(heading, cells, left=(0, 1, 8)), ""))


def calibrate(options: Calibrate) -> None:
    """What the links really carry, from measured times."""
    if options.gpus is not None:
        if options.logs:
            raise InputError("--gpus measures here; leave the logs out")
        _on_gpus(options)
        return
    if not options.logs:
        raise InputError("give a log and its machine, as in: blinksim calibrate log.txt --machine hgx-h200 (or --gpus)")
    question = _question(options)
    options.check_files()
    whole = question.whole()
    runs = [run for log in options.logs for run in _runs(log, options.collective)]
    series = [Series.of(run, _part(run, question, whole)) for run in runs]
    multicast, rates, pairs = not options.no_nvls, question.rates, zip(runs, series, strict=True)
    found = [diagnosed(run, one.topology, whole, multicast=multicast, rates=rates) for run, one in pairs]
    source = f"blinksim calibrate of {', '.join(Path(shown(log)).name for log in options.logs)}"
    result = calibrated(series, machine=whole, source=source, multicast=multicast)
    table_text = rate_tables.write(result.table)
    with written(options.output, lambda target: write_text(target, table_text, options.force)) as output:
        described = {"logs": list(options.logs), **question.described(series[0].topology)}
        said = {**described, **result.to_dict(), "output": output}
        said |= {"ended_early": [one.ended for one in found if not one.complete]}
        both = zip(runs, found, strict=True)
        said["verdicts"] = [keyed(one.verdict, "log status words", log=run.path) for run, one in both]
        # Of other sizes the file has no times.
        most = typed_size(max(sample.size for sample in series[0].samples))
        again = f"project {command_line(replace(question, rates=None), series[0].collective.name)} {most}"
        switched_off = options.no_nvls or not all(one.ran.multicast for one in series)
        again = _go_on(options, output, f"{again}{' --no-nvls' * switched_off}")
        logs = [f"{one['log']}: {one['words']}" for one in said["verdicts"]]
        answer("calibrate", lambda: said, lambda: _show_calibration(result, logs, again))


def _on_gpus(options: Calibrate) -> None:
    """Measures and fits here, and writes and shows what was found."""
    from blinksim.answers.measurements.execution_fit import calibrate_gpus, processes
    from blinksim.gpu.execution.run import GpuClock

    target, machine = options.output, options.machine
    options.check_files()
    whole = this_machine() if machine is None else question_of(machine, options.where).whole()
    clock = GpuClock(None if options.gpus == ALL_GPUS else options.gpus)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    with Working("compiling") as say, processes() as evaluate:
        result = calibrate_gpus(clock, whole, date=day, report=say, evaluate=evaluate)
    clock.close()
    if machine is None:
        # What nvidia-smi lists has no name of its own; the constants are for whatever names these GPUs.
        result = replace(result, table=replace(result.table, machine=""))
    if target:
        write_text(target, rate_tables.write(result.table), options.force)
    fit = result.execution

    def text() -> None:
        click.echo(f"{fit.rates.hardware}: {len(result.measured)} runs; programs: {fit.error.words()}\n")
        cells = []
        for row in fit.constants:
            scale, unit = (1e6, "us") if row.name.endswith("_s") else (1e-9, "GB/s") if row.value > 1e6 else (1.0, "")
            if row.name == "flags.byte_s":
                scale, unit = 1e12, "us/MB"
            cells.append((row.name.removesuffix("_s"), *_fitted(row, scale, unit)))
        click.echo(table(("constant", "fitted", "95 % interval", "unit", "before"), cells, left=(0, 3)) + "\n")
        if result.nccl is not None:
            _show_nccl(result.nccl)
        if fit.kept:
            click.echo(f"  do not show, and kept: {', '.join(fit.kept)}")
        again = f"project {'MACHINE' if machine is None else typed(machine)} allreduce 1MiB"
        click.echo(_go_on(options, target, again))

    answer("calibrate", lambda: {"machine": whole.name, **result.to_dict(), "output": target}, text)


def _fitted(figure: Fitted, scale: float, unit: str) -> tuple[str, ...]:
    """A fitted figure as cells: its value, its interval, their unit, and what it was before."""
    return f"{figure.value * scale:.4g}", figure.interval(scale), unit, f"{figure.before * scale:.4g}"


def _go_on(options: Calibrate, target: str | None, line: str) -> str:
    """Where the rates are, and a command that takes them, or one that writes them."""
    if target:
        return f"  written   {target}\nnext: blinksim {line} --rates {typed(target)}"
    asked = typed_options(options, "machine", "gpus", "collective", "no_nvls") + typed_options(options.where)
    return f"next: blinksim calibrate {' '.join((*map(typed, options.logs), asked.strip()))} -o rates.yaml"


def _show_nccl(found: NcclFit) -> None:
    """NCCL's own constants: the fitted ones as a table, and those that the times do not tell apart."""
    units = {True: (1e-9, "GB/s a GPU"), False: (1e6, "us")}
    cells = [(one.name, *_fitted(one, *units[one.is_rate])) for one in found.constants]
    click.echo("\n" + table(("NCCL's constant", "fitted", "95 % interval", "unit", "before"), cells, left=(0, 3)))
    click.echo(f"\n  NCCL's time as expected by them: {found.error.words()}")
    if found.kept:
        click.echo(f"  not told apart, and kept: {', '.join(found.kept)}")


def _show_calibration(found: Calibration, logs: Sequence[str], again: str) -> None:
    """logs: what is said of each; again: the next command."""
    click.echo("\n".join((found.sentence(), *labelled(("log", words) for words in logs))))
    if found.parameters:
        units = {True: (1e-9, "GB/s a lane"), False: (1e6, "us a message")}
        cells = [(p.kind, p.name, *_fitted(p, *units[p.name == "bandwidth"])) for p in found.parameters]
        heading = ("link class", "figure", "fitted", "95 % interval", "unit", "before")
        click.echo(f"\n{table(heading, cells, left=(0, 1, 4))}\n")
    for row in found.series:
        least, most = (format_size(end(sample.size for sample in row.samples)) for end in (min, max))
        part = row.topology
        click.echo(f"  from {row.collective} of {least} to {most}, on {part.ranks} ranks: {names(part.members)}")
    wild = f", not counting {count(len(found.wild), 'wild time')} (all: --json)" if found.wild else ""
    middle, largest = (f"{plain(100 * error, 2)} %" for error in (found.median_error, found.largest_error))
    click.echo(f"  {UNJUDGED if isnan(found.spread) else f'median error {middle}, largest {largest}'}{wild}")
    for row, sample, error in found.wild[:8]:
        took = f"{format_time(sample.time_s)}, {1 + error:.2g} times the fit"
        click.echo(f"    {row.collective} of {format_size(sample.size)} (line {sample.line}): {took}")
    if found.nccl is not None:
        _show_nccl(found.nccl)
    for kind, quantity in found.kept if found.parameters else ():
        click.echo(f"  the {quantity} of {kind} does not show in these times; it stays what it was")
    if found.nccl and not found.parameters:
        click.echo("  nothing about links: rings show what they carry (NCCL_NVLS_ENABLE=0)")
    click.echo(again)


def measured(options: Measured) -> None:
    """Published measurements beside the models."""
    if options.machine is None:
        # The machines with tables, and how many cells each has.
        listed: list[dict[str, object]] = []
        for name in public_tables.machines():
            cells = public_tables.cells(name)
            used, row = {cell.set for cell in cells}, {"machine": name, "cells": len(cells)}
            listed.append({**row, "sets": len(used), "quality": "".join(sorted({one.quality for one in used}))})
        lines = [tuple(str(value) for value in row.values()) for row in listed]
        words = f"{table(tuple(listed[0]), lines, left=(0, 3))}\n\nnext: blinksim measured hgx-h100"
        answer("measured", lambda: {"rows": listed}, lambda: click.echo(words), lambda: listed)
        return
    options.check_files()
    public = published.measured(options.machine, options.quality.upper())
    if isinstance(public, Projected):
        preset = public.cells[-1]
        job = f"--nodes {preset.nodes} --ranks-per-node {preset.ranks_per_node} --model {preset.preset}"
        again = f"project {public.machine} allreduce {typed_size(preset.size)} {job}"
    else:
        last = public.cells[-1]
        nodes = f" --nodes {last.cell.nodes}" if last.cell.nodes > 1 else ""
        model = " --model nccl-tuner" if last.predicted_s is not None else ""
        again = f"compare {public.machine} {last.cell.collective}{nodes}{model}"

    def text() -> None:
        if options.why or isinstance(public, Projected):
            click.echo(public.text())
        else:
            _show_measured(public)
            click.echo("\nwhy: --why; all cells: --csv")
        click.echo(f"next: blinksim {again}")

    answer("measured", public.to_dict, text, public.rows)
    drawn(options.plot, options.force, "measured", public, options.plot_collective, options.plot_y)


def _span(values: list[float], show: Callable[[float], str] = str) -> str:
    """From the least to the largest of the values."""
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def _show_measured(public: PublicMeasurements) -> None:
    """Prints which sets of measurements there are, and what was measured of each collective beside predictions."""
    click.echo(f"{public.sentence()}\n")
    lines = list[tuple[str, ...]]()
    for name, rows in grouped(public.rows(), itemgetter("set")):
        first = rows[0]
        lines.append((name, f"{first['library']} {first['version']}", first["quality"], str(len(rows))))
    click.echo(table(("set", "library", "quality", "cells"), lines, left=(0, 1, 2)) + "\n")
    lines = []
    for (collective, several), rows in grouped(public.rows(), lambda row: (row["collective"], row["nodes"] > 1)):
        nodes = f"{_span([row['nodes'] for row in rows])} nodes" if several else "1 node"
        cells = [collective, f"{_span([row['gpus'] for row in rows])} on {nodes}", str(len(rows))]
        cells.append(_span([row["size_bytes"] for row in rows], format_size_about))
        # Constants are judged by cells that they were not fitted to.
        held_out = [row["expected_error_pct"] for row in rows if not row["fitted"]]
        for found in (held_out, [row["error_pct"] for row in rows]):
            errors = [abs(error) for error in found if error is not None]
            cells.append(f"{median(errors):.1f} %" if errors else "-")
        lines.append(tuple(cells))
    click.echo(table(("collective", "GPUs", "cells", "sizes", "median error", "library's own"), lines, left=(0, 1)))


def reproduce(options: Reproduce) -> None:
    """The tables of a document, beside what comes out here."""
    from blinksim.papers.tables import reproduce as reproduced

    result = reproduced(options.document)
    answer("reproduce", result.to_dict, lambda: click.echo(result.text()), result.rows)
