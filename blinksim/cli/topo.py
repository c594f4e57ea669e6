"""The command topo: list, show, check, import and export machines."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from itertools import chain, zip_longest
from operator import attrgetter
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from blinksim import machines
from blinksim.cli.options import command_line, question_of
from blinksim.cli.terminal import answer, drawn, note, show_export, typed, typed_size
from blinksim.errors import InputError, in_runs
from blinksim.formats import machine_yaml
from blinksim.formats.shipped import machine_names
from blinksim.graphs.connectivity import grouped
from blinksim.results import count, keyed, names, table
from blinksim.textio.text_files import write_text
from blinksim.topology import rules, shapes
from blinksim.topology.elements import BRANCHING, IN_NETWORK_FACTS
from blinksim.topology.graph import Topology
from blinksim.units import format_rate, format_time

if TYPE_CHECKING:
    from blinksim.cli.commands import Health, TopoCheck, TopoExport, TopoImport, TopoList, TopoShow

# Columns where no terminal says how many it has; those that a list needs beside names and texts.
_WIDTH, _MARGIN = 120, 10


def list_machines(options: TopoList) -> None:
    """The machines that come with blinksim by maker and year, and the shapes that can be generated."""
    also = {name: machine_names.ALSO.get(name, []) for name in machine_names.names()}
    outlines = {name: machine_names.outline(name) for name in also}
    said = {name: f"{name} {head.maker} {head.title} {also[name]}".lower() for name, head in outlines.items()}
    heads = {name: head for name, head in outlines.items() if (options.word or "").lower() in said[name]}
    if not heads:
        raise InputError(f"no machine that blinksim knows has {options.word!r} in its name, maker or description")
    rows = [keyed(head, "@Catalogue.row", name=name, aliases=also[name]) for name, head in heads.items()]
    if answer("topo list", lambda: {"rows": rows, "shapes": {name: one for name, (one, _) in shapes.FORMS.items()}}):
        columns = shutil.get_terminal_size(fallback=(_WIDTH, 24)).columns
        # What the first two columns leave of a line, and how the last two share it.
        room = columns - _MARGIN - max(map(len, heads))
        what = min(max(len(head.title) for head in heads.values()), room - 2 - max(16, 3 * room // 10))
        makers, cells = [""], []
        for name, head in sorted(heads.items(), key=lambda one: (one[1].maker.lower(), one[1].year or 0, one[0])):
            others = wrap(", ".join(also[name]), room - 2 - what, break_on_hyphens=False)
            folded = _folded([str(head.year or ""), name], [wrap(head.title, what), others])
            makers += [head.maker] * len(folded)
            cells += folded
        first, *lines = table(("year", "machine", "what it is", "also"), cells, left=(0, 1, 2, 3)).splitlines()
        click.echo(first)
        for line, maker, last in zip(lines, makers[1:], makers, strict=False):
            click.echo(line if maker == last else f"\n{maker}\n{line}")
        if not options.word:
            room = max(24, columns - _MARGIN - max(len(name) + len(form) for name, (form, _) in shapes.FORMS.items()))
            listed = [_folded([name, form], [wrap(meaning, room)]) for name, (form, meaning) in shapes.FORMS.items()]
            click.echo("\n" + table(("shape", "for example", "what it is"), [*chain(*listed)], left=(0, 1, 2)))
        click.echo("\nnext: blinksim topo show dgx1-v100")


def _folded(first: list[str], texts: list[list[str]]) -> list[list[str]]:
    """Rows of a table: the first cells in front of the first lines of the texts."""
    folded = zip_longest(*texts, fillvalue="")
    return [[*(first if place == 0 else [""] * len(first)), *cells] for place, cells in enumerate(folded)]


def show(options: TopoShow) -> None:
    """Devices, links, rates, and the bandwidth between GPUs."""
    question = question_of(options.machine, options.where)
    if options.bottleneck and not options.plot:
        raise InputError("--bottleneck is shaded in a picture; name its file with --plot")
    options.check_files()
    topology = _part(question)
    assumed = machines.assumptions(options.machine)
    facts = "name kind node can capacity_GBps?=capacity"
    devices = [keyed(device, facts, can=sorted(device.can)) for device in topology.devices]
    of_default = {"links": topology.default_links(), "rows": topology.rows()}
    said = keyed(topology, "@Topology", devices=devices, assumed=assumed, **of_default)
    answer("topo show", lambda: said, lambda: _show(topology, question, assumed))
    if options.plot:
        from blinksim.bounds.compute import bound

        # Without what no link of the default classes touches, and GPUs that are not selected.
        parts = [topology, *([_part(replace(question, edits=()))] if question.edits else [])]
        part, *before = parts if question.links else [each.select(connected=False) for each in parts]
        limit = bound(part, options.bottleneck) if options.bottleneck else None
        drawn(options.plot, options.force, "topology", part, limit, *before)


def _part(question: machines.Question) -> Topology:
    """The part that the question is about, or the whole machine if it names none."""
    chosen = (question.members, question.links, question.ranks_per_node, question.relays)
    return question.part() if any(value is not None for value in chosen) else question.whole()


def _show(topology: Topology, question: machines.Question, assumptions: Iterable[str]) -> None:
    kinds = Counter(device.kind for device in topology.devices)
    devices = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    nodes = f"{question.nodes} x " * (question.nodes > 1)
    lines = [f"{nodes}{topology.name}: {count(topology.ranks, 'rank')}; {devices}; {topology.rates} rates"]
    lines += [f"  {topology.source}"] * bool(topology.source)
    click.echo("\n".join((*lines, *(f"  assumed  {assumed}" for assumed in assumptions))))
    forms = {"lanes": "{}".format, "lane_bandwidth": format_rate, "latency": format_time, "overhead": format_time}
    rows, used = [], topology.default_links()
    found: dict[str, list[object]] = grouped((link.kind, link) for link in topology.links)
    if topology.fabric is not None:
        # Of one node, also those of its ports to others, as its fabric has them.
        found.setdefault(topology.fabric.kind, [*[topology.fabric] * 2 * len(topology.fabric.ports)])
    for kind, links in found.items():
        spans = [(form, [*map(attrgetter(field), links)]) for field, form in forms.items()]
        cells = [" to ".join(dict.fromkeys((form(min(values)), form(max(values))))) for form, values in spans]
        rows.append((kind, str(len(links)), *cells, ("no", "yes")[kind in used]))
    click.echo("\n" + table(("link class", "links", "lanes", "a lane", "latency", "overhead", "used"), rows))
    if topology.ranks <= 16:
        over = ", ".join(topology.default_links())
        click.echo(f"\n  bandwidth of the direct links or the best switched route over {over}, GB/s")
        # A dot where no links connect two members.
        rates, ends = topology.pair_rates(), topology.members
        shown = {pair: "." if rate is None else f"{float(rate) / 1e9:.4g}" for pair, rate in rates.items()}
        click.echo(table(("", *ends), [(src, *(shown.get((src, dst), "-") for dst in ends)) for src in ends]))
    lines = [f"\n  members {names(topology.members)}"]
    lines += [f"  {label}  {names(at)}{what}" for (label, what), at in grouped(_apart(topology)).items()]
    lines += [f"  edited  {edit}" for edit in question.edits]
    again = question if topology.ranks > 1 else replace(question, nodes=2 * question.nodes)
    click.echo("\n".join((*lines, f"next: blinksim project {command_line(again, 'allreduce 256MiB')}")))


def _apart(topology: Topology) -> Iterator[tuple[tuple[str, str], str]]:
    """What rates of classes do not say, as a label and words, with each bus and device that it is of."""
    yield ("devices", ""), ", ".join(in_runs(device.name for device in topology.devices if device.node <= 0))
    for bus, own in grouped((link.bus, link) for link in topology.links if link.bus is not None).items():
        yield ("shared", f": {format_rate(own[0].bandwidth)} for {len(own)} links together"), bus
    for device in topology.devices:
        if device.capacity is not None:
            yield ("capacity", f": {format_rate(device.capacity)} in, and as much out"), device.name
        if device.in_network:
            what = " and ".join(words for ability, words in BRANCHING.items() if ability in device.in_network)
            known = [fact for fact in IN_NETWORK_FACTS if fact in device.attributes]
            facts = [f"{fact.replace('_', ' ')} {device.attributes[fact]}" for fact in known]
            yield ("in-network", f" can {'; '.join((what, *facts))}"), device.name


def check(options: TopoCheck) -> None:
    """A machine held against the rules."""
    if options.rules:
        listed = [{"rule": each.name, "looks_for": each.doc} for each in rules.RULES.values()]
        shown = table(("rule", "what it looks for"), [(*row.values(),) for row in listed], left=(0, 1))
        answer("topo check rules", lambda: {"rows": listed}, lambda: click.echo(shown))
        return
    if options.machine is None:
        raise InputError("name a machine to check, or list the rules with --rules")
    topology = machines.load(options.machine)
    for remark in machines.remarks(topology):
        note(f"{options.machine}: {remark}")
    findings = machines.check(topology)
    errors = sum(finding.severity == "error" for finding in findings)
    rows = [asdict(finding) for finding in findings]
    if answer("topo check", lambda: {"machine": topology.name, "ok": not errors, "rows": rows}):
        for finding in findings:
            where = f"{finding.place}: " if finding.place else ""
            click.echo(f"{where}{finding.severity}: {finding.message} [{finding.rule}]\n  {finding.cure}")
        warnings = count(len(findings) - errors, "warning")
        click.echo(f"{topology.name}: {count(errors, 'error')}, {warnings} by {len(rules.RULES)} rules")
    click.get_current_context().exit(int(errors > 0))


def health(options: Health) -> None:
    """A machine beside its like in the catalogue."""
    from blinksim.answers.health import SIZE, health as compared

    found = compared(options.machine)
    # Adapters count between nodes.
    inside = not found.machine.fabric or bool(found.twin and found.twin.lanes)
    asked = found.asked or machines.Question(options.machine, nodes=1 if inside else 2)
    before = " --before" if asked.edits else ""
    slower = f"project {command_line(asked, f'allreduce {typed_size(SIZE)}')}{before}"
    more = slower if found.missing else f"expect {command_line(machines.Question(options.machine))}"
    answer("health", found.to_dict, lambda: click.echo(f"{found.text()}\nnext: blinksim {more}"))
    click.get_current_context().exit(found.status)


def import_machine(options: TopoImport) -> None:
    """A machine file made of another tool's, or of any machine."""
    file, output, force = options.file, options.output, options.force
    options.check_files()
    topology = machines.load(file, rates=options.rates, like=options.like)
    text = machine_yaml.write(topology)
    for remark in machines.remarks(topology):
        note(f"{file}: {remark}")
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(output, text, force=force)
    links = count(len(topology.links), "directed link")
    click.echo(f"{topology.name}: {count(topology.ranks, topology.unit)}, {links}, written to {output}")
    click.echo(f"next: blinksim project {typed(output)} allreduce 256MiB")


def export(options: TopoExport) -> None:
    """A machine written for NCCL."""
    from blinksim import exports as formats

    options.check_files()
    question = machines.Question(options.machine, members=options.members, rates=options.rates, edits=options.edits)
    whole = question.whole()
    topology = whole if question.members is None else whole.subset(question.part(whole).members)
    exported = formats.export(topology, options.name, bus_ids=options.bus_ids and options.bus_ids.split(","))
    if options.output is not None:
        write_text(options.output, exported.files[""], force=options.force)
    show_export(exported, options.output)
