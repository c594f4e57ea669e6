"""blinksim bound: the best possible rate, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli.before import before_option, left, unedited
from blinksim.cli.options import (
    MachineOptions,
    TableOptions,
    collective_of,
    command_line,
    machine_options,
    output_options,
    question_of,
    root_option,
    traffic_option,
)
from blinksim.cli.output import csv_text, names, print_json, table
from blinksim.cli.progress import Working
from blinksim.units import exact_GBps, format_rate, format_size, format_size_about, format_time, parse_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blinksim.bounds import Bound, BoundResult
    from blinksim.bounds.levels import LevelBound
    from blinksim.bounds.sensitivity import Change
    from blinksim.bounds.time.time_bound_result import TimeBound
    from blinksim.question import Question

_LOST, _GAINED = "after losing one link", "with one more"


class Options(MachineOptions, TableOptions):
    """The options of the command."""

    root: int | None
    traffic: str | None
    losses: bool
    gains: bool
    levels: bool
    before: bool
    size: str | None


@click.command(
    "bound",
    epilog="""\b
Examples:
  blinksim bound dgx1-v100 allreduce --members 0,1,2,3,4,7
  blinksim bound dgx-a100 allgather --nodes 4 --json > bound.json
  blinksim bound p3.16xlarge allreduce --losses
  blinksim bound hgx-h100 alltoall --nodes 16 --edit 'fabric shape=tree leaf_nodes=4 oversubscription=2' --levels
  blinksim bound dgx1-v100 allreduce --size 1MiB
  blinksim bound dgx1-v100 allreduce --edit 'without gpu0-gpu3' --before""",
)
@click.argument("machine")
@click.argument("collective")
@machine_options
@root_option
@traffic_option
@click.option("--losses", is_flag=True, help="Also the bound after each single link loss, worst first.")
@click.option("--gains", is_flag=True, help="Also the bound with one lane (or NIC) more, best first.")
@click.option("--levels", is_flag=True, help="Also what GPUs, nodes and each level of switches allow by themselves.")
@click.option("--size", metavar="SIZE", help="Also the least time for SIZE: latency, overhead and bandwidth together.")
@before_option
@output_options(table=True)
def command(machine: str, collective: str, **options: Unpack[Options]) -> None:
    """How fast can COLLECTIVE be on MACHINE at best, whatever the algorithm?

    Every bound is an exact fraction with a certificate that needs no solver to check: `blinksim verify` re-adds the
    sums of what --json prints.
    """
    from blinksim.answers.bound import bound, from_rates, gains, losses
    from blinksim.bounds.levels import level_bounds

    question = question_of(machine, options)
    earlier = unedited(question, options["before"])
    wanted = collective_of(collective, options["root"], options["traffic"])
    size = parse_size(options["size"]) if options["size"] else None
    with Working(f"bounding {collective} on {machine}", quiet=options["quiet"]):
        topology = question.part(collective=wanted)
        found = bound(topology, wanted)
        was = None if earlier is None else bound(earlier.part(collective=wanted), wanted)
        less = losses(topology, wanted) if options["losses"] else []
        more = gains(topology, wanted) if options["gains"] else []
        each = level_bounds(found) if options["levels"] else []
        times = None if size is None else from_rates(found, size)
    if options["as_csv"]:
        changes = less or more
        rows = [c.to_dict() | {"links": " ".join(c.pairs)} for c in changes]
        rows = rows or [_level_cells(level) for level in each]
        rows = rows or (times.rows() if times else [_flat(b) for b in found.bounds])
        click.echo(csv_text([row | {"rates": topology.rates} for row in rows]), nl=False)
    elif options["as_json"]:
        answer = {"command": "bound", **question.described(topology), **found.to_dict()}
        answer["trees_per_root"] = found.trees_per_root
        if options["losses"]:
            answer["losses"] = [change.to_dict() for change in less]
        if options["gains"]:
            answer["gains"] = [change.to_dict() for change in more]
        if options["levels"]:
            answer["levels"] = [level.to_dict(topology) for level in each]
        if times is not None:
            answer |= times.to_dict()
        if was is not None:
            answer["before"] = was.to_dict() | {"ratio": float(found.rate / was.rate)}
        print_json(answer)
    else:
        _show(found, {_LOST: less, _GAINED: more}, each, question, was, times, options["traffic"])


def in_network_lines(found: BoundResult) -> Iterator[str]:
    """What more the switches of the machine allow, by what they can, and what they would in flight."""
    from blinksim.answers.bound import in_flight
    from blinksim.collective import busbw_factor

    granted = found.in_network
    if granted is None:
        yield from _no_more(found)
        return
    factor = busbw_factor(found.collective.name, found.topology.ranks)
    for words, entry in (("", granted), ("if they reduced in flight, ", in_flight(found))):
        if entry is not None:
            reach = "which a schedule attains" if entry.exact else "an upper bound that may not be attained"
            able = words or f"where {entry.assumes.partition(';')[0]}, "
            rate = f"{exact_GBps(entry.rate)} GB/s algbw"
            yield f"{able}at most {rate} (busbw {format_rate(entry.rate * factor)}), {reach}"


def _no_more(found: BoundResult) -> Iterator[str]:
    """What is known of switches that could do more than to forward, where no bound of theirs is higher."""
    from blinksim.bounds.assumptions import NOTHING, granted_to_switches
    from blinksim.bounds.in_network import abilities
    from blinksim.topology.elements import BRANCHING

    if found.even_granted is not None:
        yield f"the same where {granted_to_switches(found.even_granted.grants)}"
        return
    able = set(abilities(found.topology))
    cuts = [entry.rate for entry in found.bounds if entry.assumes == NOTHING]
    if able and cuts and found.headline.assumes != NOTHING and not found.collective.personalized:
        words = granted_to_switches([grant for grant in BRANCHING if grant in able])
        yield f"where {words}, at most {exact_GBps(min(cuts))} GB/s algbw, an upper bound that may not be attained"


def _four_digits(value: float) -> str:
    """At least four significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _level_cells(level: LevelBound) -> dict[str, object]:
    return {
        "level": level.level,
        "parts": level.parts,
        "capacity_GBps": float(level.capacity) / 1e9,
        "crosses": float(level.crosses),
        "rate_exact": exact_GBps(level.bound.rate),
        "algbw_GBps": level.bound.rate_GBps,
        "limits": level.limits,
    }


def _level_table(levels: list[LevelBound], found: BoundResult) -> str:
    """What each level allows; what of a level does not limit has room, as a multiple of the bound."""
    cells = []
    for level in levels:
        room = float(level.bound.rate / found.rate)
        numbers = map(_four_digits, (float(level.capacity) / 1e9, float(level.crosses), level.bound.rate_GBps))
        cells.append(
            (f"each {level.level}", str(level.parts), *numbers, "limits" if level.limits else f"{_four_digits(room)} x")
        )
    header = ("level", "parts", "out or in, GB/s", "crosses, of the size", "at most, GB/s", "room")
    lines = table(header, cells, left=(0, 5))
    if not any(level.limits for level in levels):
        lines += "\n  no level limits by itself: the bound's certificate counts links of several"
    return lines


def _row_name(entry: Bound, found: BoundResult) -> str:
    """The scope, and what switches do where there are two rows of it: one where they only forward, and one not."""
    if found.in_network is None or entry.scope != found.in_network.scope:
        return entry.scope
    adds = {"reduce", "reduce_into_reader"} & {*entry.grants}
    return f"{entry.scope}, switches {'add' if adds else 'multicast' if entry.grants else 'forward'}"


def _flat(entry: Bound) -> dict[str, object]:
    return {
        "scope": entry.scope,
        "rate_exact": exact_GBps(entry.rate),
        "algbw_GBps": float(entry.rate) / 1e9,
        "kind": entry.kind,
        "assumes": entry.assumes,
    }


def _change_table(changes: list[Change]) -> str:
    """The bound after each change; those that make no difference share a line."""
    told = [change for change in changes if change.ratio != 1]
    same = len(changes) - len(told)
    if not told:
        return f"  none of {same} changes makes a difference"
    # A column of nothing but ones says nothing.
    several = any(len(change.pairs) > 1 for change in changes)
    cells = [
        (change.what, f"{float(change.after) / 1e9:.4g}", f"{100 * (change.ratio - 1):+.1f} %")
        + ((str(len(change.pairs)),) if several else ())
        for change in told
    ]
    lines = table(("change", "bound", "change by", *(["alike"] if several else [])), cells)
    return lines + (f"\n  {same} other change{'s make' if same > 1 else ' makes'} no difference" if same else "")


def _show(
    found: BoundResult,
    changed: dict[str, list[Change]],
    levels: list[LevelBound],
    question: Question,
    was: BoundResult | None,
    times: TimeBound | None = None,
    file: str | None = None,
) -> None:
    from blinksim.bounds.assumptions import BY_SUMS
    from blinksim.collective import busbw_factor

    topology, best = found.topology, found.headline
    factor = busbw_factor(found.collective.name, topology.ranks)
    exact = exact_GBps(found.rate)
    rounded = f"{format_rate(found.rate)}, " if "/" in exact else ""
    reach = "which a schedule attains" if best.exact else "an upper bound that may not be attained"
    more = found.in_network
    limits = " where switches only forward" if more else ""
    click.echo(
        f"{found.collective} on {topology.name}: at most {exact} GB/s algbw "
        f"({rounded}busbw {format_rate(found.rate * factor)}){limits}, {reach}"
    )
    click.echo(f"  {best.certificate.words(topology)}")
    if found.collective.traffic is not None:
        largest = found.collective.traffic.size
        least = f"at least {format_time(found.time(largest))} for the bytes of the matrix"
        click.echo(f"  {least}, whose largest buffer is {format_size_about(largest)}")
    click.echo(f"  it assumes: {best.assumes}")
    if not found.searched:
        click.echo(f"  {BY_SUMS}")
    for line in in_network_lines(found):
        click.echo(f"  {line}")
    click.echo()
    rows = [
        (_row_name(entry, found), exact_GBps(entry.rate), f"{float(entry.rate) / 1e9:.4g}", entry.kind, entry.assumes)
        for entry in found.bounds
    ]
    click.echo(table(("scope", "GB/s, exact", "GB/s", "kind", "assumes"), rows, left=(0, 3, 4)))
    if levels:
        click.echo(f"\n{_level_table(levels, found)}")
    for title, changes in changed.items():
        if changes:
            click.echo(f"\n  {title}, GB/s algbw\n{_change_table(changes)}")
    if times is not None:
        click.echo(f"\n{times.text()}")
    click.echo(f"\n  ranks {topology.ranks}: {names(topology.members)}")
    if topology.relays:
        click.echo(f"  relays {names(topology.relays)}")
    click.echo(f"  links {', '.join(topology.link_classes)} at {topology.rates} rates")
    for edit in question.edits:
        click.echo(f"  edited {edit}")
    if was is not None:
        click.echo(f"  before {left(float(was.rate), float(found.rate))}")
    again = command_line(
        question, found.collective.name, found.collective.root if found.collective.rooted else None, file
    )
    click.echo(f"next: blinksim {_next(again, times, lost=bool(changed[_LOST]))}")


def _next(again: str, times: TimeBound | None, *, lost: bool) -> str:
    """The command to go on with: a schedule for the size that was asked about, or for all, once losses are known."""
    if times is not None:
        return f"synth {again} --size {format_size(times.size).replace(' ', '')} -o schedule.json"
    return f"synth {again} -o schedule.json" if lost else f"bound {again} --losses"
