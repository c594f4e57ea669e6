"""The commands bound, synth, place and traffic: the best rate and its proof, schedules, GPUs, and matrices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blinksim import exports
from blinksim.algorithms.registry import REGISTRY, algorithm as registered
from blinksim.answers import bound as study
from blinksim.answers.idle_gpus import IDLE_GPUS, idle_gpus
from blinksim.bounds.bound_result import BY_SUMS, NOTHING, Bound as Entry, BoundResult, granted_to_switches
from blinksim.bounds.certificates import listed
from blinksim.bounds.experts import write_routing
from blinksim.bounds.sensitivity import Change, LevelBound, level_bounds
from blinksim.bounds.together import Together
from blinksim.budget import within
from blinksim.cli.options import collective_of, command_line, left, option_name, question_of, typed_options, wanted_of
from blinksim.cli.terminal import Working, answer, as_typed, drawn, typed, typed_size, written
from blinksim.collective import Collective, busbw_factor
from blinksim.errors import BlinksimError, InputError
from blinksim.formats.traffic_files import read_traffic, write_traffic
from blinksim.machines import Question, mesh_groups
from blinksim.results import count, keyed, plain, table
from blinksim.schedule.verify import verify
from blinksim.timing.projection_result import labelled, links_at, part_lines
from blinksim.topology.edits import in_ranges
from blinksim.traffic import Traffic as Matrix
from blinksim.units import exact_algbw, exact_GBps, format_rate, format_size, format_size_about, format_time, parse_size

if TYPE_CHECKING:
    from blinksim.answers.synthesize import Synthesis
    from blinksim.cli.commands import Bound, Place, Project, Synth, Traffic

COPIES = "tokens that are copied or summed on their way cross less often: their floor is lower"


def bound(options: Bound) -> None:
    """How fast a collective can be at best, and why."""
    if typed_options(options.several):
        at_once(options, typed_options(options, "losses", "gains", "levels", "before"))
        return
    question = question_of(options.machine, options.where, options.before)
    size = parse_size(options.size) if options.size else None
    wanted = wanted_of(options, question)
    with Working(f"bounding {options.collective} on {options.machine}"):
        topology = question.part(collective=wanted)
        best = study.bound(topology, wanted)
        earlier = replace(question, edits=(), collective=wanted)
        was = study.bound(earlier.part(), wanted) if options.before else None
        # A link of several lanes may lose one, which is what fails most often, or all.
        lost = [study.losses(topology, wanted, one_lane=lane) for lane in (False, True) if options.losses]
        less = sorted({row.what: row for rows in lost for row in rows}.values(), key=lambda row: row.after)
        more = study.gains(topology, wanted) if options.gains else []
        levels = level_bounds(best) if options.levels else []
        times = None if size is None else study.from_rates(best, size)

    def rows() -> list[dict[str, object]]:
        rows = [change.to_dict() | {"links": " ".join(change.pairs)} for change in less or more]
        rows = rows or [keyed(level, "@LevelBound.row", crosses=float(level.crosses)) for level in levels]
        rows = rows or (times.rows() if times else [])
        rows = rows or [{key: row[key] for key in row if key != "words"} for row in best.rows()]
        return [row | {"rates": topology.rates} for row in rows]

    def said() -> dict[str, object]:
        said = {**question.described(topology), **best.to_dict(), "trees_per_root": best.trees_per_root}
        said |= {"losses": [change.to_dict() for change in less]} if options.losses else {}
        said |= {"gains": [change.to_dict() for change in more]} if options.gains else {}
        said |= {"levels": [level.to_dict(topology) for level in levels]} if options.levels else {}
        said |= times.to_dict() if times is not None else {}
        given = {key: value for key, value in vars(options.drawing).items() if value is not None}
        said |= {"routing": given | {"digest": wanted.routing.digest}} if wanted.routing is not None else {}
        return said | ({"before": was.to_dict() | {"ratio": float(best.rate / was.rate)}} if was is not None else {})

    def text() -> None:
        # The machine as it is first: its switches do what they can.
        held = best.leading
        click.echo(f"{best.collective} on {topology.title}: at most {_reach(best, held)}")
        if held.grants:
            forwarding = f"if they only forward, {_reach(best, best.headline)}"
            click.echo(f"  with switches that {held.switches_do}; {forwarding}")
        click.echo(f"  {held.certificate.words(topology)}")
        beside = idle_gpus(question, topology, best.collective, best.most)
        idle = [as_typed(f"{IDLE_GPUS} {beside.words()}")] if beside else []
        lines = [f"it assumes: {held.assumes}", *_switch_lines(best), *idle]
        if data := best.collective.data:
            lines = [f"at least {format_time(best.time(data.size))} for {format_size_about(data.size)}", *lines]
        click.echo("\n".join(f"  {line}" for line in lines))
        click.echo(f"\n{_scope_table(best)}")
        if levels:
            click.echo(f"\n{_level_table(levels, best)}")
        for title, changes in (("after losing one link", less), ("with one more", more)):
            if changes:
                only = " if switches only forward" if held.grants else ""
                click.echo(f"\n  {title}, GB/s algbw{only}\n{_change_table(changes)}")
        if times is not None:
            click.echo(f"\n{times.text()}")
        click.echo("\n".join(("", *part_lines(topology, edits=question.edits))))
        if was is not None:
            click.echo(f"  before {left(float(was.most), float(best.most))}")
        root = best.collective.root if best.collective.rooted else None
        again = command_line(question, best.collective.name, root, options.data.traffic)
        again += typed_options(options.drawing)
        again += "" if times is None else f" --size {typed_size(times.size)}"
        saves = times is not None or (less and best.collective.routing is None)
        click.echo(f"next: blinksim {f'synth {again} -o schedule.json' if saves else f'bound {again} --losses'}")

    answer("bound", said, text, rows)


def at_once(options: Bound | Project | Synth, of_one: str, *, why: bool = True, output: str | None = None) -> None:
    """How fast several groups can be at once; by synth their schedules too, verified.

    of_one: options that are about a single collective, as typed. why: also the proof, and what it assumes.
    output: where to write the schedules, if the options allow it (`Options.check_files`).
    """
    from blinksim.timing.simulator import simulate

    asked, size = options.several, options.size
    if given := of_one + typed_options(options.data) + typed_options(options.drawing):
        raise InputError(f"{given.split()[0]} is of a single collective; leave it out for groups")
    if bool(asked.groups) == bool(asked.mesh) or (asked.axis is not None and not asked.mesh):
        raise InputError("give --group, such as 0,1:allreduce:64MiB, or --mesh, such as 2x4, with or without --axis")
    question, wanted = question_of(options.machine or "", options.where), options.collective or "allreduce"
    with Working(f"bounding groups on {options.machine}"):
        order = question.member_names(question.whole())
        mesh = mesh_groups(asked.mesh, len(order), asked.axis) if asked.mesh else []
        groups = (",".join(order[int(place)] for place in one.split(",")) for one in mesh)
        # A mesh is of the members in their order; other groups name theirs.
        machine = replace(question, members=None, ranks_per_node=None) if mesh else question
        found = study.together(machine, [*asked.groups, *groups], wanted, size)
        sized = found.groups[0].size is not None
        time_s = simulate(found, int(sum(found.amounts))).time_s if sized else None
    command = click.get_current_context().info_name
    if command == "project" and not sized:
        raise InputError("the time of groups is of a size; give SIZE, or one to each, as in 0,1:allreduce:64MiB")
    # Behind switches all ports are used as it is.
    holds = {*found.machine.holders}
    relays = any({link.src, link.dst} <= holds for link in found.machine.links) and question.relays is None
    helped = replace(question, relays=study.OTHERS, relays_reduce=True) if relays else question
    # Once relays are named, the schedules are what is left to ask for.
    following, saved = (command, "") if helped is not question else ("synth", " -o schedule.json")
    of_each = "" if size is None else f" {size}" if following == "project" else f" --size {size}"
    again = command_line(helped, f"{options.collective or ''}{of_each}".strip()) + typed_options(asked)
    lines, faults = [found.why() if why else found.text()], found.faults() if command == "synth" else []
    lines += [f"  simulated side by side, their schedules take {format_time(time_s)}"] if sized and time_s else []
    lines += [_alone(machine, found)] if command == "project" else []
    verdict = "NOT correct" if faults else "right, each by itself and all at once"
    lines += [f"  verified {verdict}", *faults] if command == "synth" else []
    said = question.described(found.machine) | found.to_dict() | ({} if time_s is None else {"simulated_s": time_s})
    with written(output, lambda target: exports.write(found, target, force=True)) as there:
        lines += [f"  written {there}"] if there else []
        said |= {"output": there} if command == "synth" else {}
        last = f"verify {typed(there)}" if there else f"{following} {again}{saved}"
        text = "\n".join((*map(as_typed, lines), f"next: blinksim {last}"))
        answer(f"{command} groups", lambda: said, lambda: click.echo(text), found.rows)
    click.get_current_context().exit(bool(faults))


def _alone(question: Question, found: Together) -> str:
    """What the library takes for each sort of group without the others."""
    from blinksim.timing.library_model import Library

    sorts, takes = {(one.collective, one.size, one.alone): one for one in reversed(found.groups)}, list[str]()
    for one in reversed(sorts.values()):
        own = replace(question, members=",".join(one.part.members), relays=None, relays_reduce=False)
        model, where = Library().at(own)
        [alone] = model.times(where, one.collective, [one.size or 0])
        takes.append(f"{listed(one.part.members)} {format_time(alone.time_s)}")
    return f"  {model.library} takes, each group without the others: {', '.join(takes)}"


_TOKENS = "the tightest cut around GPUs, NICs, nodes, switches, or trees among up to nine GPUs, or of one node"


def _switch_lines(found: BoundResult) -> Iterator[str]:
    """What else the bound is of: copies, and what the machine's switches might do beside what they do."""
    if found.collective.data is not None:
        yield _TOKENS if found.collective.routing else COPIES
    if (routing := found.collective.routing) is not None:
        _, tokens, top = routing.experts.shape
        yield f"{tokens:,} tokens a GPU of {routing.token_size:,} B, top {top} of {len(routing.placement)} experts"
    if not found.searched:
        yield BY_SUMS
    if found.in_network is not None:
        flight = study.in_flight(found)
        if flight is not None and flight.rate > found.most:
            yield f"if they reduced in flight, at most {_reach(found, flight)}"
        return
    if found.even_granted is not None:
        yield f"the same where {granted_to_switches(found.even_granted.grants)}"
        return
    able = found.topology.in_network
    cuts = [entry.rate for entry in found.bounds if entry.assumes == NOTHING]
    if able and cuts and found.headline.assumes != NOTHING and not found.collective.personalized:
        words = granted_to_switches(able)
        yield f"where {words}, at most {exact_GBps(min(cuts))} GB/s algbw, an upper bound that may not be attained"


def _reach(found: BoundResult, entry: Entry) -> str:
    """The rate of one of the bounds, and whether a schedule attains it."""
    exact, factor = exact_GBps(entry.rate), busbw_factor(found.collective.name, found.topology.ranks)
    rounded = f"{format_rate(entry.rate)}, " if "/" in exact else ""
    reach = "a schedule attains it" if entry.exact else "an upper bound that may not be attained"
    return f"{exact} GB/s algbw ({rounded}busbw {format_rate(entry.rate * factor)}); {reach}"


def _level_table(levels: list[LevelBound], best: BoundResult) -> str:
    """What each level allows; what of a level does not limit has room, as a multiple of the bound."""
    cells = []
    for level in levels:
        numbers = map(plain, (float(level.capacity) / 1e9, float(level.crosses), level.bound.rate_GBps))
        room_words = "limits" if level.limits else f"{plain(float(level.bound.rate / best.rate))} x"
        cells.append((f"each {level.level}", str(level.parts), *numbers, room_words))
    header = ("level", "parts", "out or in, GB/s", "crosses, of the size", "at most, GB/s", "room")
    lines = table(header, cells, left=(0, 5))
    if not any(level.limits for level in levels):
        lines += "\n  no level limits by itself: the bound's certificate counts links of several"
    return lines


def _change_table(changes: list[Change]) -> str:
    """The bound after each change; those that make no difference share a line."""
    changed = [change for change in changes if change.ratio != 1]
    same = len(changes) - len(changed)
    if not changed:
        return f"  none of {same} changes makes a difference"
    rates = ((f"{float(row.after) / 1e9:.4g}", f"{100 * (row.ratio - 1):+.3g} %") for row in changed)
    cells = [(row.what, *rate, str(len(row.pairs))) for row, rate in zip(changed, rates, strict=True)]
    lines = table(("change", "bound", "change by", "alike"), cells)
    return lines + (f"\n  {same} other change{'s make' if same > 1 else ' makes'} no difference" if same else "")


def _scope_table(found: BoundResult) -> str:
    """The bound of every scope."""
    rows, more = [], found.in_network
    for entry in found.bounds:
        scope = entry.scope
        if more is not None and scope == more.scope:
            # Two rows of it: switches only forward in one, and not in the other.
            scope += f", switches {entry.switches_do}"
        rate = f"{float(entry.rate) / 1e9:.4g}"
        rows.append((scope, exact_GBps(entry.rate), rate, entry.kind, entry.assumes))
    return table(("scope", "GB/s, exact", "GB/s", "kind", "assumes"), rows, left=(0, 3, 4))


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
    from blinksim.formats.schedule_json import write_schedule

    if options.listed:
        rows = [keyed(algo, "algorithm=name summary collectives") for algo in REGISTRY.values()]
        cells = [(a, b, " ".join(c) if len(c) < 8 else "all collectives") for a, b, c in map(dict.values, rows)]
        shown = table(("algorithm", "what it is", "for"), cells, left=(0, 1, 2))
        answer("synth list", lambda: {"rows": rows}, lambda: click.echo(shown))
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
    click.get_current_context().exit(130 * result.interrupted if result.verdict.ok else 1)


def _given(options: Synth, algorithm: str | None, names: Sequence[str]) -> tuple[Given, Collection[str]]:
    """The options for an algorithm that were given, of some names, and those that it takes; refuses others."""
    known = {"time_limit"} if algorithm is None else registered(algorithm).options()
    extra: Given = {key: getattr(options, key) for key in names if getattr(options, key) is not None}
    if others := [option_name(options, key) for key in extra if key not in known]:
        named = f"{algorithm} takes no {others[0]}"
        raise InputError(named if algorithm else f"{others[0]} is for a certain algorithm; name it with --algorithm")
    return extra, known


def _pareto(question: Question, collective: Collective, options: Synth) -> None:
    """Prints the schedules that no other beats at every size, draws them, and writes them to a folder."""
    from blinksim.algorithms.building.plan import claim
    from blinksim.answers.pareto import SECONDS, pareto
    from blinksim.bounds.compute import bound

    for key in _ONE:
        if getattr(options, key) is not None:
            raise InputError(f"{option_name(options, key)} is for one schedule; --pareto asks for several")
    options.check_files(folder=True)
    folder = options.output
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
        limit = bound(part, collective, in_network=True)
        for number, (point, row) in enumerate(zip(front.points, rows, strict=True), start=1):
            row["file"] = str(Path(folder) / f"{number}-{point.schedule.algorithm}.json")
            exports.write(point.schedule.with_bound(claim(point.schedule, limit)), row["file"], options.force)

    if answer("synth", lambda: {**question.described(front.topology), **front.to_dict(), "rows": rows}):
        facts = [("edited", edit) for edit in question.edits]
        facts += [("written", row["file"]) for row in rows if folder is not None]
        click.echo("\n".join((as_typed(front.text()), *labelled(facts))))
        if folder is not None:
            click.echo(f"next: blinksim verify {typed(rows[0]['file'])}")
        else:
            again = command_line(question, collective.name, options.data.root)
            click.echo(f"next: blinksim synth {again} --pareto{typed_options(options, 'time_limit')} -o front")
    drawn(options.plot, options.force, "pareto", front)
    click.get_current_context().exit(130 * front.interrupted)


def _show(found: Synthesis, options: Synth, question: Question, output: str | None) -> None:
    schedule, topology = found.compact, found.compact.topology
    more = found.bounds.in_network
    adding = more if more is not None and more.rate > found.bound.rate else None
    best = "the best if switches only forward" if adding else "the best that is possible"
    gap = best if found.gap == 0 else f"{100 * float(found.gap):.3g} % below the bound"
    facts = [("bound", f"{exact_GBps(found.bound.rate)} GB/s, {found.bound.certificate.words(topology)}")]
    if adding:
        facts.append(("", f"where {adding.assumes.partition(';')[0]}, at most {exact_GBps(adding.rate)} GB/s"))
    facts += [] if found.bounds.searched else [("", BY_SUMS)]
    sends = f"{count(schedule.sends, 'send')}, height {found.height}, up to {count(found.hops, 'link')} a send"
    facts.append(("schedule", f"{schedule.parts()}, {sends}; built in {format_time(found.seconds)}"))
    if found.front:
        cells = [(f"{float(p.rate) / 1e9:.5g}", str(p.height), str(p.trees), f"{p.least_trees}") for p in found.front]
        shown = table(("GB/s", "height", "trees", "fewest trees possible"), cells, left=(), indent="")
        facts += [("", line) for line in shown.splitlines()]
    facts.append(("verified", "every rank ends with what it was promised" if found.verdict.ok else "NOT correct"))
    facts += [*(("", reason) for reason in found.verdict.reasons), ("links", links_at(topology))]
    facts += [("edited", edit) for edit in question.edits]
    facts += [("stopped", "before the search was done; this is the best so far")] if found.interrupted else []
    facts.append(("written", output or ""))
    click.echo("\n".join((*_headlines(found, f"{exact_algbw(found.rate)}, {gap}"), *labelled(facts, 9))))
    if output:
        order, verb = _simulated(found), "verify"
        if order and found.at:
            # Without these options a simulation takes longer than was said.
            verb, order = "simulate", f" {typed_size(found.at.size)}{order}"
        click.echo(f"next: blinksim {verb} {typed(output)}{order}")
    else:
        again = command_line(question, schedule.collective.name, **vars(options.data))
        names = ("algorithm", "size", "messages", "trees", "channels", "chunks", "steps", "rounds", "polish")
        chosen = typed_options(options, *names, "time_limit", "alike") + typed_options(options.drawing)
        click.echo(f"next: blinksim synth {again}{chosen} -o schedule.json")


def _simulated(found: Synthesis) -> str:
    """The options with which `simulate` takes as long; empty if it is not what timed the schedule."""
    run = found.at.projection.details if found.at else {}
    # Trees send single messages anyway.
    return " --messages single" * (run.get("messages") == "single" and found.compact.form == "steps")


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
        by = ", links in the order of steps" * (run["service"] == "ordered")
        sums = f"the sums of alpha and beta say {format_time(run['alpha_beta_s'])}"
        timed_by = [("model", f"simulate{_simulated(found)}: message by message{by}, no launch; {sums}")]
    least = [("at least", f"{format_time(at.least_s)}, the bytes at the rate of the bound, without any latency")]
    # Marked where another model timed them.
    others = ", ".join(
        f"{one.algorithm} {format_time(one.time_s)}{'' if one.model == at.projection.model else f' ({one.model})'}"
        for one in at.alternatives[:_MOST_OTHERS]
    )
    terms = ", ".join(f"{term.name} {format_time(term.time_s)}" for term in at.projection.terms)
    facts = [("terms", terms), *timed_by, *(at.projection.floor() or least)]
    facts += [("others", others), ("rate", rate)]
    above = f"{100 * at.gap:.3g} % above" if at.gap < _FEW_TIMES else f"{1 + at.gap:,.0f} times"
    above = f"at most {above} the least time" if at.gap else "the least time that is possible"
    gap = f", {above}" if at.projection.least else ""
    head = f"{what}: {format_time(at.time_s)}{gap}, {place} ({at.projection.model})\n"
    return [head, *labelled(facts, 9)]


def place(options: Place) -> None:
    """Which GPUs to ask for."""
    from blinksim.answers.place import place as ranked
    from blinksim.answers.project import held_at

    if options.mesh is not None:
        _place_mesh(options, options.mesh)
        return
    count = options.count
    if count is None:
        raise click.UsageError("Missing argument 'COUNT'.")
    options.work.check(options.machine)
    wanted = collective_of(options.collective, **vars(options.data))
    question = question_of(options.machine, options.where)
    if question.members is not None or question.ranks_per_node is not None:
        cure = "take away GPUs that are not free with --edit, as in --edit 'without gpu[2-3]'"
        raise InputError(f"place chooses the GPUs itself: leave --members and --ranks-per-node out; {cure}")
    whole = question.whole()
    size, links = options.size and parse_size(options.size), question.link_classes(whole)
    named, how = question.relays or "none", {"top": options.top, **vars(options.work)}
    relays = named if named in ("none", "idle") else question.relay_names(whole, ())
    with Working(f"ranking {count} {whole.unit}s of {options.machine}") as say:
        places = ranked(whole, count, wanted, size, links=links, relays=relays, report=say, **how)
    best, rows = places[0], places.rows()
    joined = [{key: " ".join(row[key]) for key in ("members", "relays")} | {"rates": whole.rates} for row in rows]

    def text() -> None:
        groups = places.equals()
        click.echo(places.sentence())
        if best.rate is None:
            return
        click.echo()
        adds = any(row.in_network for row in places)
        cells = list[tuple[str, ...]]()
        for row, words in groups[: options.top]:
            reach = ["-", "not connected", ""]
            if row.rate:
                part = f"{100 * float(row.rate / best.rate):.0f} %"
                reach = [exact_GBps(row.rate), f"{row.rate_GBps:.4g}", part]
            added = f"{float(row.in_network / 10**9):.4g}" if row.in_network else "-"
            times = row.answer.times() if row.answer else "---"
            cells.append((words, *reach, *[added] * adds, *(times if best.answer else ())))
        header = [f"{places.unit}s", "GB/s, exact", "GB/s", "of the best", *(["GB/s, switches add"] if adds else [])]
        header += [f"with {best.answer.library}", "could take", "cannot take less"] if best.answer else []
        click.echo(table(header, cells))
        if len(groups) > options.top:
            click.echo(f"  … {len(groups) - options.top} more (--top {len(groups)}, --csv)")
        held = held_at([row.answer.row() for row, _ in groups[: options.top] if row.answer])
        rates = [f"{'GB/s' if held else 'all'} at {whole.rates} rates", *map("".join, held.items())]
        rates += [f"times of the {places.unit}s named"] if best.answer and len(groups) < len(places) else []
        click.echo(f"  {', '.join(rates)}")
        chosen = replace(question, members=",".join(in_ranges(best.members)))
        if beside := idle_gpus(chosen, chosen.part(whole), wanted, best.in_network or best.rate):
            click.echo(f"  {as_typed(f'{IDLE_GPUS} {beside.words()}')}")
        click.echo(f"next: blinksim bound {command_line(chosen, options.collective, **vars(options.data))}")

    said = {**question.described(whole), "collective": options.collective, "count": count, "rows": rows}
    answer("place", lambda: said, text, lambda: [row | words for row, words in zip(rows, joined, strict=True)])
    click.get_current_context().exit(best.rate is None)


def _place_mesh(options: Place, mesh: str) -> None:
    """Which order of the GPUs a device mesh should have."""
    from blinksim.answers.place import place_mesh

    question = question_of(options.machine, options.where)
    given = typed_options(options, "top") + typed_options(options.data) + typed_options(options.work)
    given += typed_options(question, "members", "ranks_per_node", "relays", "relays_reduce", "links")
    if options.count is not None or given:
        raise InputError(f"a mesh is of all GPUs of the machine; leave {given.split()[0] if given else 'COUNT'} out")
    with Working(f"ordering the GPUs of {options.machine}"):
        sizes = options.size and [parse_size(size) for size in options.size.split(",")]
        found = place_mesh(question.whole(), mesh, options.collective, sizes[0] if sizes and not sizes[1:] else sizes)
    described = question.described(found.machine) | {"collective": found.collective.name, "count": found.machine.ranks}
    again = command_line(replace(question, members=",".join(map(str, found.numbers))), options.collective)
    text = f"{as_typed(found.text())}\nnext: blinksim bound {again} --mesh {mesh}"
    answer("place", lambda: described | found.to_dict(), lambda: click.echo(text), found.rows)


def traffic(options: Traffic) -> None:
    """What every rank sends to every other: made, or read from a file."""
    options.check_files()
    file, made = options.file, typed_options(options.drawing) + typed_options(options, "ranks", "routing_to")
    if file is not None and made:
        raise InputError(f"{made.split()[0]} makes a matrix, and {file} holds one; leave one of them out")
    from blinksim.timing.experts import routing_of

    routing = routing_of(options.ranks, default_each=1, **vars(options.drawing)) if file is None else None
    flows = read_traffic(file or "") if routing is None else Matrix(routing.tokens * routing.token_size)
    if options.combine:
        flows = flows.transposed()
    facts = flows.to_dict()
    if routing is not None and options.routing_to:
        write_routing(routing, options.routing_to, options.force)
    with written(options.output, lambda target: write_traffic(flows, target, options.force)) as output:

        def text() -> None:
            pairs = f"{facts['pairs']:,} of {flows.ranks * (flows.ranks - 1):,} pairs"
            click.echo(f"traffic of {flows.ranks} ranks: {format_size_about(flows.total)} between {pairs}\n")
            for what, key in (("sends", "sent"), ("receives", "received")):
                most, rank, mean = facts[f"most_{key}_bytes"], facts[f"most_{key}_rank"], facts["mean_bytes"]
                times = f"{most / mean:.3g} times the average of {format_size_about(mean)}"
                uneven = f"rank {rank} most: {format_size_about(most)}, {times}"
                click.echo(f"  {what:<9} {uneven if most > mean else f'every rank {format_size_about(most)}'}")
            click.echo(f"  keeps     {format_size_about(facts['kept_bytes'])} in all, which crosses no link")
            click.echo(f"  counts    {facts['counts']}; {COPIES}")
            if files := [typed(target) for target in (output, options.routing_to) if target]:
                taken = "alltoallv --traffic" if output else "dispatch --routing"
                click.echo(f"  written   {' '.join(files)}")
                click.echo(f"next: blinksim bound switch:{flows.ranks} {taken} {files[0]}")

        answer("traffic", lambda: facts, text)
    drawn(options.plot, options.force, "traffic", flows)
