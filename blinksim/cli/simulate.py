"""blinksim simulate: a schedule in time, on its own links."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar, Unpack

import click

from blinksim.cli.numbers import Whole
from blinksim.cli.options import ScheduleMachineOptions, read_schedule, schedule_machine_options
from blinksim.cli.output import attempt, count, note, print_json, table
from blinksim.cli.progress import Working
from blinksim.cli.spelling import as_typed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blinksim.simulation.critical import Leg
    from blinksim.simulation.simulation_options import MessagesName, OfferName, ProtocolName, ServiceName, SwitchingName
    from blinksim.simulation.timeline import Timeline

P = ParamSpec("P")
R = TypeVar("R")
# From which part on the sums of alpha and beta are said to differ.
_OFF = 0.1
_MOST_LEGS, _MOST_LINKS = 12, 8


class Options(ScheduleMachineOptions):
    """The options of the command."""

    chunk: str | None
    service: ServiceName
    offer: OfferName | None
    slots: int | None
    protocol: ProtocolName
    switching: SwitchingName
    messages: MessagesName
    launch: str
    channels_together: str | None
    trace: str | None
    plot: str | None
    force: bool
    quiet: bool
    as_json: bool


def _choice(
    option: str, names: list[str], text: str, *, optional: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """An option with these values; the first is the default, unless it is optional."""
    default = None if optional else names[0]
    return click.option(option, type=click.Choice(names), default=default, show_default=not optional, help=text)


@click.command(
    "simulate",
    epilog="""\b
Examples:
  blinksim simulate trees.json 256MiB
  blinksim simulate trees.json 256MiB --chunk 1MiB --trace run.json     (open it at ui.perfetto.dev)
  blinksim simulate trees.json 256MiB --service equal --plot links.png
  blinksim simulate msccl.xml 256MiB --machine dgx1-v100""",
)
@click.argument("schedule")
@click.argument("size")
@schedule_machine_options
@click.option("--chunk", metavar="SIZE", help="Bytes of a piece at most.  [default: what takes the least time]")
@_choice(
    "--service",
    ["fifo", "static", "ordered", "weighted", "equal"],
    "How a link serves: in order of arrival; in rounds; by steps; shared in proportion to the shares, or equally.",
)
@_choice(
    "--offer",
    ["turns", "burst"],
    "How pieces stand in line: one of every tree at a time, or all there are.  [default: turns for trees]",
    optional=True,
)
@click.option("--slots", type=Whole(1), help="Pieces that a connection has room for.  [default: no limit]")
@_choice("--protocol", ["simple", "ll", "ll128"], "What share of the traffic is data: all, 1/2, 15/16.")
@_choice(
    "--switching",
    ["cut-through", "store-and-forward"],
    "Whether switches and hosts pass a piece on while it arrives.",
)
@_choice(
    "--messages",
    ["joined", "single"],
    "What a connection sends in a step: one message of all its chunks, or one of each. Trees always send one of each.",
)
@click.option("--launch", metavar="TIME", default="0us", show_default=True, help="Time before anything starts.")
@click.option(
    "--channels-together",
    metavar="RATE",
    help="What a GPU's kernels drive together, such as 62GB/s.  [default: what the machine states, else no limit]",
)
@click.option("--trace", metavar="FILE", help="Write the transfers in Chrome's trace format; of very many, a sample.")
@click.option("--plot", metavar="FILE", help="Draw what the busiest links do over time (.png, .svg, .pdf).")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(schedule: str, size: str, **options: Unpack[Options]) -> None:
    """How long does SCHEDULE take for SIZE bytes when its pieces share the links of its machine?

    SCHEDULE is a file or a name of `blinksim schedules`; with --machine also an XML file of MSCCL or a plan of MSCCL++.

    Every piece waits for its data and for its link; the answer says which links were busy and what the time consists
    of.
    """
    from blinksim.simulation import simulate
    from blinksim.simulation.contention import with_cap
    from blinksim.textio.whole_files import check_target
    from blinksim.units import parse_rate, parse_size, parse_time

    amount, launch = parse_size(size), parse_time(options["launch"])
    files = [file for file in (options["trace"], options["plot"]) if file]
    # Before the work, not after it.
    for file in files:
        check_target(file, options["force"])
    if options["plot"]:
        from blinksim import plots

        plots.check(options["plot"], force=options["force"])
    cap = None if options["channels_together"] is None else parse_rate(options["channels_together"])
    loaded = with_cap(read_schedule(schedule, options), cap)
    search = "" if options["chunk"] else ", searching the best size of pieces; --chunk 1MiB or another size saves that"
    with Working(f"simulating {schedule}{search}", quiet=options["quiet"]):
        timeline = simulate(
            loaded,
            amount,
            chunk=options["chunk"],
            service=options["service"],
            protocol=options["protocol"],
            launch=launch,
            offer=options["offer"],
            slots=options["slots"],
            switching=options["switching"],
            messages=options["messages"],
        )
    failure = attempt(
        lambda: _write(timeline, options["trace"], options["plot"], force=options["force"], quiet=options["quiet"])
    )
    if options["as_json"]:
        print_json({"command": "simulate", "schedule": schedule, **timeline.to_dict()})
    else:
        _show(timeline)
        for file in files if failure is None else ():
            click.echo(f"written: {file}")
    if failure is not None:
        raise failure


def _write(timeline: Timeline, trace: str | None, plot: str | None, *, force: bool, quiet: bool) -> None:
    if trace:
        from blinksim.formats.chrome_trace import write_trace

        cut = write_trace(timeline, trace, force)
        if cut:
            note(as_typed(cut), quiet=quiet)
    if plot:
        from blinksim import plots

        plots.save(plots.gantt(timeline), plot, force=force)


def _show(timeline: Timeline) -> None:
    from blinksim.units import format_size, format_time

    click.echo(timeline.sentence())
    over = 100 * (timeline.time_s / timeline.bound_s - 1) if timeline.bound_s else 0.0
    found = " (the best found)" if timeline.tried else ""
    most = format_size(float(f"{timeline.piece_bytes:.3g}"))
    click.echo(f"  {count(timeline.pieces, 'piece')} a chunk, up to {most}{found}; links {timeline.discipline}")
    click.echo(f"  all at {timeline.schedule.topology.rates} rates")
    more = f"{over:.3g} % more than" if over < 900 else f"{1 + over / 100:,.0f} times what"
    click.echo(f"  {more} the loads of its links need ({format_time(timeline.bound_s)})")
    _say_of_sums(timeline)
    click.echo("\nwhat the time consists of:")
    for line in _path(timeline.critical_path):
        click.echo(f"  {line}")
    click.echo("\nthe busiest links:")
    rows = [
        (use.resource, use.kind, f"{100 * use.busy:.1f} %", format_size(float(f"{use.load_bytes:.4g}")))
        for use in timeline.uses[:_MOST_LINKS]
    ]
    click.echo(table(("link", "class", "busy", "passed"), rows, left=(0, 1)))
    if len(timeline.uses) > _MOST_LINKS:
        click.echo(f"  and {len(timeline.uses) - _MOST_LINKS} more")


def _say_of_sums(timeline: Timeline) -> None:
    """What the sums of alpha and beta say, where that is a good deal more or less."""
    from blinksim.cost.alpha_beta import cost
    from blinksim.units import format_time

    sums = cost(timeline.schedule, timeline.size).time_s
    if abs(sums / timeline.time_s - 1) > _OFF:
        why = "they leave out waits for each other" if sums < timeline.time_s else "here steps and pieces overlap more"
        click.echo(f"  project by alpha-beta, from sums of loads and latencies, says {format_time(sums)}: {why}")


def _path(legs: tuple[Leg, ...]) -> Iterator[str]:
    """A line for each leg; of many legs the first and the last ones, and a line for those between."""
    from blinksim.units import format_time

    half = _MOST_LEGS // 2
    hidden = legs[half:-half] if len(legs) > _MOST_LEGS else ()
    yield from (leg.words() for leg in legs[: half if hidden else None])
    if hidden:
        yield f"… {len(hidden)} more: {format_time(sum(leg.time_s for leg in hidden))}"
        yield from (leg.words() for leg in legs[-half:])
