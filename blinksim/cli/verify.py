"""blinksim verify: is a schedule, or what `bound --json` printed, right?"""

from __future__ import annotations

from typing import Any

import click

from blinksim.cli.output import print_json
from blinksim.errors import FileError, InputError
from blinksim.units import exact_GBps, format_rate, parse_exact


@click.command(
    "verify",
    epilog="""\b
Examples:
  blinksim verify schedule.json
  blinksim verify schedule.json --edit 'without gpu0-gpu3'
  blinksim bound dgx1-v100 allreduce --json > bound.json; blinksim verify bound.json
  blinksim verify graph.xml --machine topo.xml --members 0,1,2,3""",
)
@click.argument("file")
@click.option("--machine", metavar="MACHINE", help="Check against this machine instead of the one in FILE.")
@click.option("--rates", metavar="NAME|FILE", help="Rates for --machine.  [default: nominal]")
@click.option("--edit", "edits", multiple=True, metavar="EDIT", help="Check against the edited machine.")
@click.option("--in-place", is_flag=True, help="Ask for a schedule whose input and output are one buffer.")
@click.option("--slots", type=click.IntRange(1), default=1, show_default=True, help="Buffers of each connection.")
@click.option("--members", metavar="LIST", help="For a graph.xml: the GPUs of the communicator.  [default: all]")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="For a graph.xml: nodes alike.")
@click.option("--root", type=click.IntRange(0), default=0, show_default=True, help="For a runtime's file: the root.")
@click.option("--nccl", "release", metavar="X.Y.Z", default="2.28.3", show_default=True, help="For a graph.xml: NCCL.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    file: str, machine: str | None, rates: str | None, edits: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Is FILE right? It is a schedule, what `bound --json` printed, or a file for a runtime; exit status 1 if not.

    A schedule is interpreted chunk by chunk: every rank must end with what the collective promises. A bound's
    certificate is re-added from the machine file; no solver is asked. A graph file is carried through NCCL's own
    stages for the GPUs of MACHINE: is it used, ignored, refused, or a crash? MSCCL's XML and MSCCL++'s plans are
    carried out symbolically.
    """
    from blinksim.question import Question

    graph = {key: options.pop(key) for key in ("members", "nodes", "release", "root")}
    if file.lower().endswith(".xml"):
        from blinksim.cli import verify_runtime

        # All links: a graph file may well be for GPUs that have no NVLink between them.
        where = Question(
            machine or "", graph["nodes"], members=graph["members"], links="all", rates=rates or "nominal", edits=edits
        )
        _print(file, verify_runtime.xml(file, where, graph["release"], graph["root"]), as_json)
        return
    if graph["members"] is not None or graph["nodes"] != 1:
        raise InputError("--members and --nodes are for graph.xml files; a schedule says itself who takes part")
    from blinksim.formats.schedule_json import FORMAT, MOST_BYTES
    from blinksim.textio.strict_json import parse, unpack
    from blinksim.textio.text_files import read_bytes

    if rates is not None and machine is None:
        raise InputError("--rates says at which rates --machine is loaded; give --machine too")
    rates = rates or "nominal"
    document = parse(file, unpack(file, read_bytes(file, MOST_BYTES), MOST_BYTES))
    if isinstance(document, dict) and document.get("format") == FORMAT:
        answer = _schedule(file, document, machine, rates, edits, **options)
    elif isinstance(document, dict) and "bounds" in document and "collective" in document:
        answer = _bounds(file, document, machine, rates, edits)
    elif isinstance(document, dict) and {"gpus", "protocol", "collective"} <= document.keys():
        from blinksim.cli import verify_runtime

        answer = verify_runtime.plan(file, graph["root"])
    else:
        raise FileError(file, "is neither a schedule file nor what `blinksim bound --json` prints")
    _print(file, answer, as_json)


def _about(topology: Any, collective: Any) -> dict[str, Any]:
    return {
        "machine": topology.name,
        "collective": collective.name,
        "members": list(topology.members),
        "relays": list(topology.relays),
        "links": list(topology.default_links()),
        "rates": topology.rates,
    }


def _print(file: str, answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"command": "verify", "file": file, **answer})
    else:
        click.echo(f"{file}: {answer['summary']}")
        for reason in answer["reasons"]:
            click.echo(f"  {reason}")
        for fact in answer["facts"]:
            click.echo(f"  {fact}")
    if not answer["ok"]:
        click.get_current_context().exit(1)


def _schedule(
    file: str, document: Any, machine: str | None, rates: str, edits: tuple[str, ...], in_place: bool, slots: int
) -> dict[str, Any]:
    from blinksim import machines
    from blinksim.formats.schedule_json import from_document
    from blinksim.schedule.rebase import rebase
    from blinksim.schedule.verify import verify

    schedule = from_document(file, document)
    if machine is not None or edits:
        nodes = schedule.topology.nodes
        target = schedule.topology if machine is None else machines.load(machine, nodes=nodes, rates=rates)
        for edit in edits:
            target = target.edit(edit)
        moved = rebase(schedule, target)
        if isinstance(moved, tuple):
            about = _about(schedule.topology, schedule.collective)
            reasons = list(moved)
            return {**about, "ok": False, "summary": "does not run on this machine", "reasons": reasons, "facts": []}
        schedule = moved
    verdict = verify(schedule, slots=slots, in_place=in_place)
    facts = verdict.facts
    reasons = [*verdict.reasons, *_claim(schedule)]
    promise = f"{schedule.algorithm} {schedule.collective} on {schedule.topology.name}, {schedule.topology.ranks} ranks"
    lines = []
    if facts.rate is not None:
        alike = f" and {facts.busiest_count - 1} like it" if facts.busiest_count > 1 else ""
        lines.append(
            f"loads allow {exact_GBps(facts.rate)} GB/s algbw ({format_rate(facts.rate)}): "
            f"{facts.busiest}{alike} carries {facts.busiest_load} of the size"
        )
    if facts.bound is not None and facts.gap is not None:
        lines.append(f"bound {exact_GBps(facts.bound)} GB/s, gap {facts.gap}")
    if facts.scratch:
        most = max(facts.scratch, key=lambda name: facts.scratch[name].share)
        alike = f", the most of {len(facts.scratch)} devices" if len(facts.scratch) > 1 else ""
        lines.append(f"{most} needs scratch for {facts.scratch[most].share} of the size{alike}")
    lines.append(f"in place: {'possible' if facts.in_place else 'not possible'}")
    return {
        **_about(schedule.topology, schedule.collective),
        "ok": not reasons,
        "summary": f"{'wrong' if reasons else 'right'}: {promise}",
        "reasons": reasons,
        "facts": lines,
        "rate_exact": None if facts.rate is None else exact_GBps(facts.rate),
        "gap_exact": None if facts.gap is None else str(facts.gap),
    }


def _claim(schedule: Any) -> list[str]:
    """What is wrong with the certificate that a schedule carries, if it carries one."""
    if "certificate" not in schedule.bound:
        return []
    from blinksim.bounds import certificate_from_dict

    try:
        rate = parse_exact(schedule.bound.get("rate_exact")) * 10**9
        found = certificate_from_dict(schedule.bound["certificate"])
        return [f"its bound: {x}" for x in found.check(schedule.topology, schedule.collective, rate)]
    except InputError as error:
        return [f"its bound: {error}"]


def _bounds(file: str, document: Any, machine: str | None, rates: str, edits: tuple[str, ...]) -> dict[str, Any]:
    from blinksim.bounds import certificate_from_dict
    from blinksim.collective import Collective

    topology = _machine_of(file, document, machine, rates, edits)
    root = document.get("root")
    wanted = Collective.parse(str(document["collective"]), root if isinstance(root, int) else None)
    wanted.check_ranks(topology.ranks)
    reasons, facts = [], []
    if not isinstance(document["bounds"], list) or not document["bounds"]:
        raise FileError(file, "bounds is not a list of bounds")
    for entry in document["bounds"]:
        if not isinstance(entry, dict) or not {"scope", "rate_exact", "certificate"} <= set(entry):
            raise FileError(file, "an entry of bounds lacks scope, rate_exact or certificate")
        try:
            certificate = certificate_from_dict(entry["certificate"])
            found = certificate.check(topology, wanted, parse_exact(entry["rate_exact"]) * 10**9)
            facts.append(f"{entry['scope']}: {entry['rate_exact']} GB/s; {certificate.words(topology)}")
        except InputError as error:
            found = [str(error)]
        reasons += [f"{entry['scope']}: {reason}" for reason in found]
    first = document["bounds"][0]
    if document.get("rate_exact") != first["rate_exact"]:
        reasons.append(
            f"rate_exact is {document.get('rate_exact')!r}, but the first bound's is {first['rate_exact']!r}"
        )
    ok = not reasons
    return {
        **_about(topology, wanted),
        "ok": ok,
        "summary": f"{'right' if ok else 'wrong'}: {len(document['bounds'])} bounds of {wanted} on {topology.name}",
        "reasons": reasons,
        "facts": facts if ok else [],
        "rate_exact": document.get("rate_exact"),
    }


def _machine_of(file: str, document: Any, machine: str | None, rates: str, edits: tuple[str, ...]) -> Any:
    """The part of the machine that the bound is about, loaded anew: nothing in the file is believed."""

    from blinksim.question import Question

    def texts(key: str) -> list[str]:
        value = document.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise FileError(file, f"{key} is not a list of names")
        return value

    nodes = document.get("nodes", 1)
    if not isinstance(nodes, int) or not 1 <= nodes <= 100_000:
        raise FileError(file, "nodes is not a number of nodes")
    source = machine or document.get("source") or document.get("machine")
    if not isinstance(source, str):
        raise FileError(file, "names no machine; give one with --machine")
    known = document.get("rates_source", "nominal") if machine is None else rates
    whole = Question(source, nodes=nodes, rates=str(known), edits=(*texts("edits"), *edits)).whole()
    reduce = document.get("relays_reduce") is True
    return whole.select(texts("members"), texts("relays"), texts("links") or None, relays_reduce=reduce)
