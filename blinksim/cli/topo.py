"""blinksim topo: machines themselves: list, show, check, import, export."""

from __future__ import annotations

import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import click

from blinksim.cli.options import MachineOptions, command_line, machine_options, question_of
from blinksim.cli.output import count, names, note, print_json, table, typed
from blinksim.errors import InputError
from blinksim.topology.elements import BRANCHING, IN_NETWORK_FACTS
from blinksim.units import format_rate, format_time

if TYPE_CHECKING:
    from blinksim.question import Question
    from blinksim.topology.graph import Topology

N = TypeVar("N", int, float, Fraction)
# Columns where no terminal says how many it has; those that a list needs beside names and texts.
_WIDTH, _MARGIN = 120, 10


class ShowOptions(MachineOptions):
    """The options of ``topo show``."""

    plot: str | None
    bottleneck: str | None
    force: bool


class ExportOptions(TypedDict):
    """The options of ``topo export`` beside the format and the files."""

    members: str | None
    rates: str
    edits: tuple[str, ...]
    force: bool
    quiet: bool


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("topo", epilog="\b\nExample:\n  blinksim topo show dgx1-v100")
def command() -> None:
    """List, show, check, import and export machines."""


@command.command("list", short_help="The machines and shapes that blinksim knows.")
@as_json
def list_machines(as_json: bool) -> None:
    """The machines that come with blinksim, and the shapes that can be generated."""
    from blinksim.formats.shipped import machine_names
    from blinksim.topology import shapes

    heads = {name: machine_names.outline(name) for name in machine_names.names()}
    also = {name: machine_names.also_called(name) for name in heads}
    if as_json:
        rows = [
            {"name": name, "title": head.title, "maker": head.maker, "year": head.year, "aliases": also[name]}
            for name, head in heads.items()
        ]
        print_json({"command": "topo list", "rows": rows, "shapes": dict(shapes.FORMS)})
        return
    click.echo(_catalogue({name: (head.maker, head.year, head.title) for name, head in heads.items()}, also))
    room = max(24, _columns() - _MARGIN - max(len(name) + len(form) for name, form in shapes.FORMS.items()))
    described = [
        row
        for name, example in shapes.FORMS.items()
        for row in _folded([name, example], [wrap(shapes.MEANINGS[name], room)])
    ]
    click.echo(table(("shape", "for example", "what it is"), described, left=(0, 1, 2)))
    click.echo("\nnext: blinksim topo show dgx1-v100")


def _catalogue(heads: Mapping[str, tuple[str, int | None, str]], also: Mapping[str, list[str]]) -> str:
    """The machines by maker and year; heads: maker, year and title by name."""
    made = sorted((maker.lower(), year or 0, name) for name, (maker, year, _) in heads.items())
    # What the first two columns leave of a line, and how the last two share it.
    room = _columns() - _MARGIN - max(map(len, heads))
    what = min(max(len(title) for *_, title in heads.values()), room - 2 - max(16, 3 * room // 10))
    lines = [
        (heads[name][0], [str(year or ""), name], [wrap(heads[name][2], what), _listed(also[name], room - 2 - what)])
        for _, year, name in made
    ]
    rows = [(maker, row) for maker, first, texts in lines for row in _folded(first, texts)]
    head, *shown = table(
        ("year", "machine", "what it is", "also"), [row for _, row in rows], left=(0, 1, 2, 3)
    ).splitlines()
    before = ["", *(maker for maker, _ in rows)]
    titled = [
        row if maker == last else f"\n{maker}\n{row}"
        for row, (maker, _), last in zip(shown, rows, before, strict=False)
    ]
    return "\n".join([head, *titled, ""])


def _listed(words: list[str], width: int) -> list[str]:
    return wrap(", ".join(words), width, break_on_hyphens=False)


def _folded(first: list[str], texts: list[list[str]]) -> list[list[str]]:
    """Rows of a table: the first cells in front of the first lines of the texts."""
    folded = zip_longest(*texts, fillvalue="")
    return [[*(first if place == 0 else [""] * len(first)), *cells] for place, cells in enumerate(folded)]


def _columns() -> int:
    """How many columns the terminal has."""
    return shutil.get_terminal_size(fallback=(_WIDTH, 24)).columns


@command.command(
    "show",
    short_help="Devices, links, rates, and the bandwidth between GPUs.",
    epilog="\b\nExample:\n  blinksim topo show aurora --nodes 2 --rates seed",
)
@click.argument("machine")
@machine_options
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw devices and links as PNG, SVG or PDF: width is bandwidth, red is what edits took.",
)
@click.option(
    "--bottleneck", metavar="COLLECTIVE", help="In the picture, shade what the bound of this collective cuts apart."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@as_json
def show(machine: str, as_json: bool, **options: Unpack[ShowOptions]) -> None:
    """What MACHINE is made of: devices, links, rates, and the bandwidth between its GPUs."""
    from blinksim import machines

    question = question_of(machine, options)
    if options["bottleneck"] and not options["plot"]:
        raise InputError("--bottleneck is shaded in a picture; name its file with --plot")
    if options["plot"]:
        from blinksim import plots

        plots.check(options["plot"], force=options["force"])
    topology = question.part() if _chosen(question) else question.whole()
    if options["plot"]:
        _draw(question, topology, options)
    if as_json:
        print_json({"command": "topo show", **_facts(topology), "assumed": machines.assumptions(machine)})
        return
    kinds = Counter(device.kind for device in topology.devices)
    devices = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    nodes = f", {topology.nodes} nodes" if topology.nodes > 1 else ""
    click.echo(f"{topology.name}{nodes}: {count(topology.ranks, 'rank')}; {devices}; {topology.rates} rates")
    if topology.source:
        click.echo(f"  {topology.source}")
    for assumed in machines.assumptions(machine):
        click.echo(f"  assumed  {assumed}")
    click.echo(
        "\n" + table(("link class", "links", "lanes", "a lane", "latency", "overhead", "used"), _classes(topology))
    )
    if topology.ranks <= 16:
        click.echo(f"\n  bandwidth of the direct links or the best switched route over "
                   f"{', '.join(topology.default_links())}, GB/s")  # fmt: skip
        click.echo(_matrix(topology))
    click.echo(f"\n  members {names(topology.members)}")
    for what, switches in _in_network(topology).items():
        click.echo(f"  in-network  {names(switches)} can {what}")
    for edit in question.edits:
        click.echo(f"  edited  {edit}")
    click.echo(f"next: blinksim project {command_line(question, 'allreduce 256MiB')}")


def _draw(question: Question, topology: Topology, options: ShowOptions) -> None:
    """Pictures leave out what no link of the default classes touches, and GPUs that are not selected."""
    from blinksim import plots

    part = topology if question.links else topology.select(connected=False)
    before = None
    if question.edits:
        unedited = replace(question, edits=())
        whole = unedited.part() if _chosen(question) else unedited.whole()
        before = whole if question.links else whole.select(connected=False)
    found = None
    if options["bottleneck"]:
        from blinksim.bounds import bound

        found = bound(part, options["bottleneck"])
    path = plots.save(plots.topology(part, found, before), options["plot"] or "", force=options["force"])
    note(f"drawn: {path}")


def _chosen(question: Question) -> bool:
    """True if the question is about a part of the machine."""
    some = (question.members, question.links, question.ranks_per_node)
    return any(value is not None for value in some) or question.relays is not None


def _facts(topology: Topology) -> dict[str, object]:
    return {
        "machine": topology.name,
        "nodes": topology.nodes,
        "members": list(topology.members),
        "relays": list(topology.relays),
        "links": list(topology.default_links()),
        "rates": topology.rates,
        "source": topology.source,
        "devices": [
            {"name": d.name, "kind": d.kind, "node": d.node, "can": sorted(d.can)}
            | ({"capacity_GBps": float(d.capacity) / 1e9} if d.capacity is not None else {})
            for d in topology.devices
        ],
        "rows": topology.rows(),
    }


def _in_network(topology: Topology) -> dict[str, list[str]]:
    """The switches that do more than forward, by what they do."""
    found: dict[str, list[str]] = {}
    for device in topology.devices:
        if device.in_network:
            what = " and ".join(words for ability, words in BRANCHING.items() if ability in device.in_network)
            facts = (f"{fact.replace('_', ' ')} {device.attributes[fact]}" for fact in IN_NETWORK_FACTS
                     if fact in device.attributes)  # fmt: skip
            found.setdefault("; ".join((what, *facts)), []).append(device.name)
    return found


def _classes(topology: Topology) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    used = topology.default_links()
    for kind in topology.link_classes:
        links = [link for link in topology.links if link.kind == kind]
        rows.append(
            (
                kind,
                str(len(links)),
                _span({link.lanes for link in links}, str),
                _span({link.lane_bandwidth for link in links}, format_rate),
                _span({link.latency for link in links}, format_time),
                _span({link.overhead for link in links}, format_time),
                "yes" if kind in used else "no",
            )
        )
    return rows


def _span(values: set[N], show: Callable[[N], str]) -> str:
    low, high = min(values), max(values)
    return show(low) if low == high else f"{show(low)} to {show(high)}"


def _matrix(topology: Topology) -> str:
    rates = topology.pair_rates()

    def cell(src: str, dst: str) -> str:
        if src == dst:
            return "-"
        rate = rates[src, dst]
        return "." if rate is None else f"{float(rate) / 1e9:.4g}"

    members = topology.members
    return table(("", *members), [(src, *(cell(src, dst) for dst in members)) for src in members])


@command.command(
    "check",
    short_help="Check a machine against the rules.",
    epilog="\b\nExample:\n  blinksim topo check my-machine.yaml",
)
@click.argument("machine", required=False)
@click.option("--rules", "list_rules", is_flag=True, help="List the rules instead.")
@as_json
def check(machine: str | None, list_rules: bool, as_json: bool) -> None:
    """Check a machine against the rules; exit status 1 if one of them finds an error."""
    from blinksim.topology import rules

    if list_rules:
        click.echo(table(("rule", "what it looks for"), [(r.name, r.doc) for r in rules.RULES.values()], left=(0, 1)))
        return
    if machine is None:
        raise InputError("name a machine to check, or list the rules with --rules")
    from blinksim import machines

    topology = machines.load(machine)
    findings = machines.check(topology)
    errors = sum(finding.severity == "error" for finding in findings)
    if as_json:
        rows = [asdict(finding) for finding in findings]
        print_json({"command": "topo check", "machine": topology.name, "ok": not errors, "rows": rows})
    else:
        for finding in findings:
            where = f"{finding.place}: " if finding.place else ""
            click.echo(f"{where}{finding.severity}: {finding.message} [{finding.rule}]\n  {finding.cure}")
        click.echo(
            f"{topology.name}: {count(errors, 'error')}, {count(len(findings) - errors, 'warning')} "
            f"by {len(rules.RULES)} rules"
        )
    if errors:
        click.get_current_context().exit(1)


@command.command(
    "import",
    short_help="Turn a topo.xml, or any machine, into a machine file.",
    epilog="\b\nExample:\n  blinksim topo import topo.xml -o my-machine.yaml",
)
@click.argument("file")
@click.option("-o", "--output", metavar="FILE", help="Where to write the machine file.  [default: standard output]")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--rates", default="nominal", show_default=True, help="Rates to write down: nominal or nccl.")
@click.option(
    "--like", metavar="MACHINE", help="The machine that FILE is of: GPUs, NVLinks and ports that FILE leaves out."
)
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr.")
def import_machine(file: str, output: str | None, force: bool, rates: str, like: str | None, quiet: bool) -> None:
    """Turn an NCCL topo.xml (or any machine) into a machine file that can be edited."""
    from blinksim import machines
    from blinksim.formats import machine_yaml
    from blinksim.textio.whole_files import check_target, write_text

    if output is not None:
        check_target(output, force)
    topology = machines.load(file, rates=rates, like=like)
    text = machine_yaml.write(topology)
    for remark in machines.remarks(topology):
        note(f"{file}: {remark}", quiet=quiet)
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(output, text, force=force)
    click.echo(
        f"{topology.name}: {count(topology.ranks, 'GPU')}, {count(len(topology.links), 'directed link')}, "
        f"written to {output}"
    )
    click.echo(f"next: blinksim project {typed(output)} allreduce 256MiB")


@command.command(
    "export",
    short_help="Write a machine for NCCL (NCCL_TOPO_FILE).",
    epilog="\b\nExample:\n  blinksim topo export dgx1-v100 --format nccl-topo -o dgx1.xml",
)
@click.argument("machine")
@click.option("--format", "name", required=True, metavar="NAME", help="nccl-topo: NCCL's topology file.")
@click.option("-o", "--output", metavar="FILE", help="Where to write it.  [default: standard output]")
@click.option("--members", metavar="LIST", help="Only these GPUs, by number or name.  [default: all]")
@click.option("--bus-ids", metavar="LIST", help="PCI bus ids of the GPUs that the job runs on: 0000:1b:00.0,…")
@click.option("--rates", default="nominal", show_default=True, help="Rates to take the machine at.")
@click.option("--edit", "edits", multiple=True, metavar="EDIT", help="A what-if, such as 'without gpu3'.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr.")
def export_machine(
    machine: str, name: str, output: str | None, bus_ids: str | None, **options: Unpack[ExportOptions]
) -> None:
    """Write MACHINE for NCCL, which then plans for it on whatever GPUs the job runs (NCCL_TOPO_FILE)."""
    from blinksim.errors import unknown
    from blinksim.exports import export
    from blinksim.question import Question
    from blinksim.textio.whole_files import check_target, write_text

    if name.lower().replace("_", "-") != "nccl-topo":
        raise unknown("format of machines", name, ("nccl-topo",), hint="(schedules: blinksim export)")
    if output is not None:
        check_target(output, options["force"])
    question = Question(machine, members=options["members"], rates=options["rates"], edits=options["edits"])
    whole = question.whole()
    topology = whole if question.members is None else whole.subset(question.part(whole).members)
    found = export(topology, name, bus_ids=None if bus_ids is None else bus_ids.split(","))
    advice = [*(f"  note     {line}" for line in found.notes), f"  caution  {found.caution}"]
    if output is None:
        click.echo(found.files[""], nl=False)
        for line in advice:
            note(line, quiet=options["quiet"])
        return
    write_text(output, found.files[""], force=options["force"])
    click.echo(f"{output}: {found.summary}\n\n  set, for one command:")
    for key, value in found.variables(output).items():
        click.echo(f"    export {key}={shlex.quote(value)}")
    click.echo(f"  in force if {found.proof[0]}")
    for line in advice:
        click.echo(line)
