"""blinksim diagnose: is my bandwidth normal?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import click

from blinksim.cli.logs import collective_option, part_of, runs_of
from blinksim.cli.numbers import Decimal
from blinksim.cli.options import (
    MachineOptions,
    TableOptions,
    command_line,
    machine_options_at,
    output_options,
    question_of,
)
from blinksim.cli.output import csv_text, names, note, print_json, table, typed
from blinksim.errors import InputError
from blinksim.units import exact_GBps, format_rate, format_size, format_time

if TYPE_CHECKING:
    from blinksim.answers.logs.diagnose import Diagnosis
    from blinksim.question import Question
    from blinksim.topology.graph import Topology


class Options(MachineOptions, TableOptions):
    """The options of the command."""

    threshold: float | None
    against: str
    in_place: bool
    no_nvls: bool
    nccl_version: str | None


@click.command(
    "diagnose",
    epilog="""\b
Examples:
  all_reduce_perf -b 1K -e 1G -f 2 -g 8 > log.txt
  blinksim diagnose log.txt --machine hgx-h200
  blinksim diagnose log.txt --machine hgx-h200 --threshold 75 -q
  blinksim diagnose monday.txt tuesday.txt --machine hgx-h200""",
)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--machine", metavar="MACHINE", required=True, help="The machine that LOG was measured on.")
@machine_options_at("nominal for the bound, nccl for NCCL's model")
@collective_option
@click.option(
    "--threshold",
    type=Decimal(0, 1000),
    metavar="PERCENT",
    help="Exit status 1 if the largest size reaches less.  [default: status 1 only for wrong data]",
)
@click.option(
    "--against",
    type=click.Choice(["bound", "model"]),
    default="bound",
    show_default=True,
    help="What PERCENT is of.",
)
@click.option("--in-place", is_flag=True, help="Take the times in place.  [default: out of place, where there are any]")
@click.option("--no-nvls", is_flag=True, help="NCCL ran with NCCL_NVLS_ENABLE=0.")
@click.option("--nccl-version", metavar="VERSION", help="The NCCL that ran.  [default: what LOG says, else 2.28.3]")
@output_options(table=True)
def command(logs: tuple[str, ...], machine: str, collective: str | None, **options: Unpack[Options]) -> None:
    """Compare what nccl-tests measured with what NCCL expects of MACHINE and with what no schedule exceeds.

    LOG: text that nccl-tests printed, or its JSON (-J); - for standard input. Names the first size that falls
    behind NCCL's own model, and the link class that it falls behind on. Several logs stand side by side.
    """
    question = question_of(machine, options)
    whole = question.whole()
    if options["as_json"] and len(logs) > 1:
        raise InputError("--json takes one log; --csv has a column for the log")
    found = {log: _diagnosed(log, collective, question, whole, options) for log in logs}
    checks = {log: _reached(each, options) for log, each in found.items()}
    if options["as_csv"]:
        named = [{"log": log} | row for log, each in found.items() for row in each.rows()]
        click.echo(csv_text(named if len(found) > 1 else next(iter(found.values())).rows()), nl=False)
    elif options["as_json"]:
        (log, each), (percent, enough) = next(iter(found.items())), next(iter(checks.values()))
        checked = {"threshold_percent": options["threshold"], "against": options["against"], "percent": percent,
                   "ok": enough and not each.wrong}  # fmt: skip
        print_json({"command": "diagnose", "log": log, **question.described(each.part), **each.to_dict(), **checked})
    elif len(found) > 1:
        _show_beside(found, question, " --no-nvls" if options["no_nvls"] else "")
    else:
        _show(next(iter(found.values())), question, logs[0])
    for log, each in found.items():
        percent, enough = checks[log]
        if not each.complete:
            note(f"{log}: ends before nccl-tests' last lines; did the test stop early?", quiet=options["quiet"])
        if not enough:
            before = f"{log}: " if len(found) > 1 else ""
            note(
                f"{before}below the threshold: {percent:.3g} % of the {options['against']} at "
                f"{format_size(each.largest.size)}, wanted {options['threshold']:g} %",
                quiet=options["quiet"],
            )
    if any(each.wrong for each in found.values()) or not all(enough for _, enough in checks.values()):
        click.get_current_context().exit(1)


def _diagnosed(log: str, collective: str | None, question: Question, whole: Topology, options: Options) -> Diagnosis:
    from blinksim.answers.logs.diagnose import diagnose
    from blinksim.answers.logs.log_members import other_gpus

    runs = runs_of(log, collective)
    part = part_of(runs[0], question, whole)
    strange = other_gpus(runs[0], whole)
    if strange:
        note(strange, quiet=options["quiet"])
    return diagnose(
        runs,
        part,
        whole,
        in_place=options["in_place"],
        multicast=not options["no_nvls"],
        rates=question.rates,
        version=options["nccl_version"] or "",
    )


def _reached(found: Diagnosis, options: Options) -> tuple[float, bool]:
    """How many per cent of the bound or the model the largest size reaches, and if that is enough."""
    percent = 100 * (found.of_bound(found.largest) if options["against"] == "bound" else found.largest.of_model)
    return percent, options["threshold"] is None or percent >= options["threshold"]


def _show_beside(found: Mapping[str, Diagnosis], question: Question, more: str) -> None:
    """Several logs: algbw by size and log, and what each log says."""
    for log, each in found.items():
        click.echo(f"{log}: {each.sentence()}")
    by_size = {log: {line.size: line for line in each.lines} for log, each in found.items()}
    sizes = sorted({size for lines in by_size.values() for size in lines})
    rows = []
    for size in sizes:
        lines = [by_size[log].get(size) for log in found]
        rates = [f"{line.algbw_GBps:.4g}{'*' if line.behind and not line.latency_bound else ' '}" if line else "- "
                 for line in lines]  # fmt: skip
        rows.append((format_size(size), *rates))
    click.echo("\n  algbw in GB/s by size and log; * behind NCCL's model\n")
    click.echo(table(("size", *(f"{log} " for log in found)), rows, left=()))
    worst = min(found, key=lambda log: found[log].largest.of_model)
    click.echo(f"next: blinksim diagnose {typed(worst)} --machine {command_line(question)}{more}")


def _show(found: Diagnosis, question: Question, log: str) -> None:
    from blinksim.answers.logs.diagnose import small_times

    click.echo(found.sentence() + "\n")
    factor = float(found.factor)
    cells = [
        (
            format_size(line.size),
            format_time(line.time_s),
            f"{line.algbw / 1e9:.4g}",
            f"{line.algbw * factor / 1e9:.4g}",
            format_time(line.expected.time_s),
            f"{100 * line.of_model:.0f} %{'*' if line.behind and not line.latency_bound else ' '}",
            f"{100 * found.of_bound(line):.3g} %",
            line.expected.choice,
        )
        for line in found.lines
    ]
    heading = ("size", "time", "algbw", "busbw", "model", "of model ", "of bound", "NCCL's pick")
    click.echo(table(heading, cells, left=(7,)))
    click.echo("")
    for key, words in _facts(found, small_times(found)):
        click.echo(f"  {key:<11} {words}")
    machine = command_line(question)
    if found.resembles.startswith("ring") and found.largest.expected.choice.startswith("nvls"):
        click.echo(f"next: blinksim diagnose {typed(log)} --machine {machine} --no-nvls")
    elif found.first_behind is None and not found.impossible and len(found.expectation.limits) > 1:
        # Of classes that such times do not tell apart, none can be calibrated.
        click.echo(f"next: blinksim advise {machine} --collective {found.collective.name}")
    elif found.first_behind is None and not found.impossible:
        click.echo(f"next: blinksim calibrate {typed(log)} --machine {machine} -o rates.yaml")
    else:
        click.echo(f"next: blinksim bound {machine} {found.collective.name} --losses")


def _facts(found: Diagnosis, small: str) -> list[tuple[str, str]]:
    from blinksim.bounds.assumptions import NOTHING

    part, best = found.part, found.bound
    facts = [
        ("bound", f"{exact_GBps(best.rate)} GB/s algbw at {part.rates} rates ({best.scope})"),
        ("", best.certificate.words(part)),
        *([("", f"it assumes: {best.assumes}")] if best.assumes != NOTHING else []),
    ]
    beaten = [entry for entry in found.bounds[1:] if entry.rate < best.rate and entry.rate < found.largest.algbw]
    if beaten:
        facts.append(("", f"above {format_rate(beaten[0].rate)}, which holds for: {beaten[0].assumes}"))
    if found.impossible:
        facts.append(("", "no schedule is faster: another machine, or rates that are too low (see --rates)"))
    facts.append(("model", found.expectation.name))
    origins = dict.fromkeys(line.expected.origin for line in found.lines if line.expected.origin)
    facts += [("", f"NVLS by constants {origin}") for origin in origins]
    if found.expectation.silence:
        facts.append(("", f"not NCCL's own: {found.expectation.silence}"))
    if found.first_behind is not None and found.lane is not None:
        seen, usual = found.lane
        kind = found.expectation.limit
        facts.append(("behind", f"as if a lane of {kind} carried {seen / 1e9:.3g} GB/s in place of {usual / 1e9:.3g}"))
        others = found.expectation.limits[1:]
        if others:
            facts.append(
                ("", f"{' and '.join((kind, *others))} follow each other, so a log does not tell which is slow")
            )
    if found.resembles:
        facts.append(("resembles", found.resembles))
    if found.published is not None:
        facts += [("published", found.published.words), ("", found.published.cell.set.source)]
    if found.odd:
        sizes = ", ".join(format_size(line.size) for line in found.odd[:6])
        facts.append(("odd sizes", f"{sizes}: behind, though larger sizes are not; measure again"))
    if small:
        facts.append(("small sizes", small))
    facts.append(("ranks", f"{part.ranks}: {names(part.members)}; links {', '.join(part.link_classes)}"))
    rule = {"allreduce": "2(n-1)/n", "broadcast": "1", "reduce": "1"}.get(found.collective.name, "(n-1)/n")
    facts += [
        ("algbw", "in GB/s: size / time, what the caller gets"),
        ("busbw", f"algbw x {found.factor} ({rule} for n = {part.ranks}): what every GPU's links carry, so that it"),
        ("", "compares with their data sheet whatever the number of ranks"),
    ]
    return facts
