"""blinksim synth: a verified schedule, with its gap to the bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Unpack

import click

from blinksim.cli.numbers import Decimal, Integer, Whole
from blinksim.cli.options import (
    MachineOptions,
    TextOptions,
    collective_of,
    command_line,
    machine_options,
    output_options,
    question_of,
    root_option,
    traffic_option,
)
from blinksim.cli.output import attempt, count, print_json, table, typed
from blinksim.cli.progress import Working
from blinksim.errors import InputError
from blinksim.units import exact_GBps, format_rate, format_size, format_time, parse_size

if TYPE_CHECKING:
    from blinksim.answers.quickest import AtSize
    from blinksim.answers.synthesize import Synthesis
    from blinksim.question import Question
    from blinksim.simulation.simulation_options import MessagesName


# How many other algorithms a line names.
_MOST_OTHERS = 5
# From here on a gap is said in times, not in per cent.
_FEW_TIMES = 9
# Options that algorithms take, by their names there.
_GIVEN: tuple[Literal["time_limit", "seed", "trees", "channels", "alike", "chunks", "steps", "rounds"], ...] = (
    "time_limit",
    "seed",
    "trees",
    "channels",
    "alike",
    "chunks",
    "steps",
    "rounds",
)


class Options(MachineOptions, TextOptions):
    """The options of the command."""

    root: int | None
    traffic: str | None
    algorithm: str | None
    size: str | None
    messages: MessagesName | None
    time_limit: float | None
    polish: float | None
    trees: int | None
    channels: int | None
    alike: bool | None
    chunks: int | None
    steps: int | None
    rounds: int | None
    pareto: bool
    point: str | None
    front: str | None
    seed: int | None
    output: str | None
    plot: str | None
    force: bool


@click.command(
    "synth",
    epilog="""\b
Examples:
  blinksim synth dgx1-v100 allreduce --members 0,1,2,3,4,7 -o trees.json
  blinksim synth dgx1-v100 allgather --algorithm ring -o ring.json
  blinksim synth hgx-h200 allreduce --size 1MiB --rates measured -o quickest.json
  blinksim synth dgx1-v100 allgather --algorithm few_steps --chunks-per-rank 2 --steps 2
  blinksim synth dgx1-v100 allgather --pareto --plot front.png -o front
  blinksim synth dgx1-v100 allgather --pareto --front front --point ring -o ring.json""",
)
@click.argument("machine", required=False)
@click.argument("collective", required=False)
@machine_options
@root_option
@traffic_option
@click.option(
    "--algorithm",
    help="A name, or a Python file; packed attains the bound.  [default: packed, with --size the quickest]",
)
@click.option(
    "--size",
    metavar="SIZE",
    help="Build what is quickest for this many bytes, such as 1MiB, and say how long it takes: of what project "
    "considers, by the model that it takes; where that is alpha-beta, the quickest are simulated.",
)
@click.option(
    "--messages",
    type=click.Choice(["joined", "single"]),
    help="With --size: count what a connection sends in a step as one message, or every chunk as one, as programs of "
    "MSCCL and emulated lanes send it.  [default: joined]",
)
@click.option("--time-limit", type=Decimal(0, min_open=True), metavar="S", help="Seconds after which the search ends.")
@click.option(
    "--polish",
    type=Decimal(0, min_open=True),
    metavar="SECONDS",
    help="Search this long for lower and fewer trees at the same rate; prints the compromises.",
)
@click.option("--trees", type=Whole(1), metavar="K", help="packed: exactly K trees per root, at a stated loss.")
@click.option("--channels", type=Whole(1), metavar="K", help="chains, rings, blinkplus: at most K channels.")
@click.option(
    "--chunks-per-rank",
    "chunks",
    type=Whole(1),
    metavar="C",
    help="few_steps: chunks that each rank's data is cut into; of broadcast and reduce, the vector.  [default: 1]",
)
@click.option("--steps", type=Whole(1), metavar="S", help="few_steps: how many.  [default: the fewest possible]")
@click.option(
    "--rounds",
    type=Whole(1),
    metavar="R",
    help="few_steps: of all steps together.  [default: the fewest that are found]",
)
@click.option(
    "--pareto",
    is_flag=True,
    help="Instead of one schedule, all that no other betters in latency and bandwidth; -o names a folder for them.",
)
@click.option(
    "--point",
    metavar="N|NAME",
    help="With --pareto: write this one of them to the file that -o names, by its number or name in the table.",
)
@click.option(
    "--front",
    metavar="FOLDER",
    help="With --point: take it from this folder, which --pareto -o wrote, in place of a search.",
)
@click.option("--alike", is_flag=True, default=None, help="ring: pass every node the same way, as NCCL's files need.")
@click.option("--list", "listed", is_flag=True, help="List the algorithms instead.")
@click.option("--seed", type=Integer(), help="Seed of a solver, for repeatable answers.")
@click.option("-o", "--output", metavar="FILE", help="Where to write the schedule (.json, .json.gz).")
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw the trees, the largest first, or the loads of an alltoall, as PNG, SVG or PDF.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@output_options()
def command(machine: str | None, collective: str | None, listed: bool, **options: Unpack[Options]) -> None:
    """Build a schedule of COLLECTIVE on MACHINE, verify it, and write it to a file."""
    if listed:
        _list()
        return
    if machine is None or collective is None:
        raise InputError("name a machine and a collective, as in: blinksim synth dgx1-v100 allreduce (or --list)")
    from blinksim.answers.synthesize import synthesize
    from blinksim.budget import within
    from blinksim.formats.schedule_json import write_schedule

    question = question_of(machine, options)
    wanted = collective_of(collective, options["root"], options["traffic"])
    if options["pareto"]:
        from blinksim.cli import front

        front.answer(question, wanted, options)
        return
    algorithm, size, messages = _asked_for(options)
    _check_files(options)
    waiting = Working(f"synthesising {collective} on {machine}", quiet=options["quiet"])
    extra = _extra(algorithm, options, waiting)

    limit = None if options["time_limit"] is None else options["time_limit"] + (options["polish"] or 0)

    def work() -> Synthesis:
        part = question.part(collective=wanted)
        if options["plot"] and not wanted.exchanges:
            from blinksim.plots.machine_view import view
            from blinksim.plots.topology_plot import check_devices

            check_devices(view(part))  # before the work, not after it
        report, polish = _telling(waiting), options["polish"]
        return synthesize(
            part, wanted, algorithm, size=size, messages=messages, polish_seconds=polish, report=report, **extra
        )

    with waiting:
        found = within(limit, "schedule", work)
    topology = found.compact.topology
    target, failure = options["output"], None
    if target:
        failure = attempt(lambda: write_schedule(found, target, options["force"]))
    if options["as_json"]:
        print_json({"command": "synth", **question.described(topology), **found.to_dict()})
    else:
        _show(found, {**options, "output": target if failure is None else None}, question)
    if failure is not None:
        raise failure
    if options["plot"]:
        from blinksim import plots

        exchanges = found.compact.collective.exchanges
        picture = plots.loads(found) if exchanges else plots.trees(found)
        path = plots.save(picture, options["plot"], force=options["force"])
        click.echo(f"drawn: {path}", err=options["as_json"])
    if not found.verdict.ok:
        click.get_current_context().exit(1)
    if found.interrupted:
        click.get_current_context().exit(130)


def _asked_for(options: Options) -> tuple[str | None, int | None, MessagesName]:
    """The algorithm (None: the quickest at a size), the size and what a message is; refuses what is for several."""
    for key in ("point", "front"):
        if options[key] is not None:
            raise InputError(f"--{key} is for the schedules that --pareto finds; add --pareto, or leave it out")
    messages = options["messages"] or "joined"
    if options["size"] is not None:
        return options["algorithm"], parse_size(options["size"]), messages
    if options["messages"] is not None:
        raise InputError("--messages is about a time, and there is no size; add --size, or leave it out")
    return options["algorithm"] or "packed", None, messages


def _check_files(options: Options) -> None:
    """Refuses files that cannot be written, before the work."""
    from blinksim.textio.whole_files import check_target

    if options["output"] is not None:
        if not options["output"].endswith((".json", ".json.gz")):
            raise InputError(f"-o {options['output']}: a schedule file ends in .json or .json.gz")
        check_target(options["output"], options["force"])
    if options["plot"]:
        from blinksim import plots

        plots.check(options["plot"], force=options["force"])


def _extra(algorithm: str | None, options: Options, waiting: Working) -> dict[str, object]:
    """What the algorithm is given beyond machine and collective; refuses options that it does not have."""
    from blinksim.algorithms.registry import algorithm as registered

    known = {"time_limit"} if algorithm is None else registered(algorithm).options()
    extra: dict[str, object] = {key: options[key] for key in _GIVEN if options[key] is not None}
    for key in extra:
        if key not in known and algorithm is None:
            raise InputError(f"{_option(key)} is for a certain algorithm; name it with --algorithm")
        if key not in known:
            raise InputError(f"{algorithm} takes no {_option(key)}")
    if "progress" in known:
        what = waiting.what

        def progress(done: int, wanted: int) -> None:
            waiting(f"{what}, {done} of {wanted} trees")

        extra["progress"] = progress
    return extra


def _telling(waiting: Working) -> Callable[[str], None]:
    """What adds news to the line about the work."""
    what = waiting.what
    return lambda news: waiting(f"{what}: {news}")


def _option(key: str) -> str:
    """How an option of an algorithm is typed."""
    return "--chunks-per-rank" if key == "chunks" else f"--{key.replace('_', '-')}"


def _list() -> None:
    from blinksim.algorithms.registry import REGISTRY

    rows = [
        (entry.name, entry.summary, " ".join(entry.collectives) if len(entry.collectives) < 8 else "all collectives")
        for entry in REGISTRY.values()
    ]
    click.echo(table(("algorithm", "what it is", "for"), rows, left=(0, 1, 2)))


def _show(found: Synthesis, options: Options, question: Question) -> None:
    output = options["output"]
    schedule, topology = found.compact, found.compact.topology
    gap = "the best that is possible" if found.gap == 0 else f"{100 * float(found.gap):.3g} % below the bound"
    rounded = f" ({format_rate(found.rate)})" if "/" in exact_GBps(found.rate) else ""
    rate = f"{exact_GBps(found.rate)} GB/s algbw{rounded}, {gap}"
    for line in _headlines(found, rate):
        click.echo(line)
    click.echo(f"  bound     {exact_GBps(found.bound.rate)} GB/s, {found.bound.certificate.words(topology)}")
    if not found.bounds.searched:
        from blinksim.bounds.assumptions import BY_SUMS

        click.echo(f"            {BY_SUMS}")
    click.echo(
        f"  schedule  {schedule.parts()}, {count(schedule.sends, 'send')}, "
        f"height {found.height}, up to {count(found.hops, 'link')} a send; built in {format_time(found.seconds)}"
    )
    if found.front:
        cells = [(f"{float(p.rate) / 1e9:.5g}", str(p.height), str(p.trees), f"{p.least_trees}") for p in found.front]
        header = ("GB/s", "height", "trees", "fewest trees possible")
        click.echo(table(header, cells, left=(), indent="            "))
    verdict = "every rank ends with what it was promised" if found.verdict.ok else "NOT correct"
    click.echo(f"  verified  {verdict}")
    for reason in found.verdict.reasons:
        click.echo(f"            {reason}")
    click.echo(f"  links     {', '.join(topology.link_classes)} at {topology.rates} rates")
    for edit in question.edits:
        click.echo(f"  edited    {edit}")
    if found.interrupted:
        click.echo("  stopped   before the search was done; this is the best so far")
    if output:
        click.echo(f"  written   {output}")
        click.echo(f"next: blinksim verify {typed(output)}")
    else:
        again = command_line(question, schedule.collective.name, options["root"], options["traffic"])
        size = options["size"]
        named = options["algorithm"] or (schedule.algorithm if size is None else None)
        chosen = "" if named is None or (named == "packed" and size is None) else f" --algorithm {typed(named)}"
        chosen += "" if size is None else f" --size {typed(size)}"
        chosen += f" --messages {options['messages']}" if options["messages"] else ""
        for key in ("trees", "channels", "chunks", "steps", "rounds", "polish", "time_limit", "seed"):
            value = options[key]
            if value is not None:
                chosen += f" {_option(key)} {value:g}"
        chosen += " --alike" if options["alike"] else ""
        click.echo(f"next: blinksim synth {again}{chosen} -o schedule.json")


def _headlines(found: Synthesis, rate: str) -> list[str]:
    """The answer in one line, and with a size what the time is made of."""
    schedule, at = found.compact, found.at
    if at is None:
        return [f"{schedule.collective} on {schedule.topology.name} by {schedule.algorithm}: {rate}\n"]
    what = f"{schedule.collective} of {format_size(at.size)} on {schedule.topology.name} by {schedule.algorithm}"
    first = at.alternatives[0].algorithm if at.alternatives else ""
    place = f"the quickest of {len(at.alternatives) + 1}" if at.quickest else f"{first} is quicker"
    place += f", but too long to write with {at.too_long[first]:,} sends" if first in at.too_long else ""
    terms = ", ".join(f"{term.name} {format_time(term.time_s)}" for term in at.projection.terms)
    facts = [
        ("terms", terms),
        *_timed_by(at, schedule.form),
        *(
            at.projection.floor()
            or [("at least", f"{format_time(at.least_s)}, the bytes at the rate of the bound, without any latency")]
        ),
        *([("others", _others(at))] if at.alternatives else []),
        ("rate", rate),
    ]
    above = f"{100 * at.gap:.3g} % above" if at.gap < _FEW_TIMES else f"{1 + at.gap:,.0f} times"
    gap = f", at most {above} the least time" if at.projection.least else ""
    head = f"{what}: {format_time(at.time_s)}{gap}, {place} ({at.projection.model})\n"
    return [head, *(f"  {label:<9} {text}" for label, text in facts)]


def _timed_by(at: AtSize, form: str) -> list[tuple[str, str]]:
    """What timed a schedule of this form, as labels and texts."""
    if at.service is None or at.formula_s is None:
        return at.projection.basis
    order = " --service ordered" if at.service == "ordered" else ""
    # Trees send single messages anyway.
    order += " --messages single" if at.messages == "single" and form == "steps" else ""
    formula = f"the sums of alpha and beta say {format_time(at.formula_s)}"
    return [("model", f"simulate{order}: message by message, no launch; {formula}")]


def _others(at: AtSize) -> str:
    """The quickest of the others, with their times; marked where another model timed them."""
    own = at.projection.model
    return ", ".join(
        f"{one.algorithm} {format_time(one.time_s)}{'' if one.model == own else f' ({one.model})'}"
        for one in at.alternatives[:_MOST_OTHERS]
    )
