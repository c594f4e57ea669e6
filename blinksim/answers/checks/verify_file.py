"""Is a file right? A schedule, what `bound --json` printed, or a file for a runtime."""

from __future__ import annotations

import os
from typing import Any

from blinksim.answers.checks import verify_runtime
from blinksim.answers.checks.file_verdict import FileVerdict
from blinksim.answers.checks.read_schedule import moved_to
from blinksim.collective import Collective
from blinksim.errors import FileError, InputError
from blinksim.question import Question
from blinksim.schedule.model import Schedule
from blinksim.textio.text_files import STDIN
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_rate, parse_exact


def verify_file(
    path: str | os.PathLike[str],
    question: Question | None = None,
    *,
    in_place: bool = False,
    slots: int = 1,
    root: int = 0,
    release: str = "2.28.3",
) -> FileVerdict:
    """Checks a file, and trusts nothing in it.

    Parameters
    ----------
    path : str or path
        A schedule, what ``blinksim bound --json`` printed, a graph file of NCCL, an algorithm of MSCCL (.xml) or an
        execution plan of MSCCL++ (.json); or the name of a schedule that comes with blinksim.
    question : Question, optional
        The machine to check against, its rates and edits; members and nodes for a graph file. Without a machine, the
        one in the file counts.
    in_place, slots
        For a schedule, as `blinksim.verify` takes them.
    root : int
        For the file of a runtime: the root's rank.
    release : str
        For a graph file: the release of NCCL.

    Returns
    -------
    FileVerdict
        ``ok``, a summary, the reasons if it is wrong, and the facts if it is right.

    Raises
    ------
    FileError
        If the file is none of these kinds.
    InputError
        If the question does not fit the kind of file.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write(bs.synthesize("dgx1-v100", "allgather", "ring").schedule, "ring.json")
    >>> bs.verify_file("ring.json").ok
    True
    """
    from blinksim.formats.ready_schedules import located
    from blinksim.formats.schedule_files import is_plan, is_xml

    file, asked = os.fspath(located(path)), question or Question()
    if is_xml(file):
        return verify_runtime.xml(file, asked, release, root)
    from blinksim.formats.schedule_json import FORMAT, MOST_BYTES
    from blinksim.textio.strict_json import parse, unpack
    from blinksim.textio.text_files import read_bytes

    document = parse(file, unpack(file, read_bytes(file, MOST_BYTES), MOST_BYTES))
    if is_plan(document):
        return verify_runtime.plan(file, document, asked, root)
    if asked.members is not None or asked.nodes != 1:
        raise InputError("members= and nodes= are for files of runtimes; a schedule names its own members")
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return _schedule(file, document, asked, in_place, slots)
    if isinstance(document, dict) and "bounds" in document and "collective" in document:
        return _bounds(file, document, asked)
    raise FileError(file, "is neither a schedule file nor a bound in JSON")


def _about(topology: Topology, collective: Collective) -> dict[str, Any]:
    return {
        "machine": topology.name,
        "collective": collective.name,
        "members": list(topology.members),
        "relays": list(topology.relays),
        "links": list(topology.default_links()),
        "rates": topology.rates,
    }


def _schedule(file: str, document: Any, question: Question, in_place: bool, slots: int) -> FileVerdict:
    from blinksim.formats.schedule_json import from_document
    from blinksim.schedule.verify import verify

    schedule = from_document(file, document)
    about = _about(schedule.topology, schedule.collective)
    if question.machine or question.edits:
        moved = moved_to(schedule, question)
        if isinstance(moved, tuple):
            return FileVerdict(False, "does not run on this machine", moved, (), about)
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
    return FileVerdict(
        not reasons,
        f"{'wrong' if reasons else 'right'}: {promise}",
        tuple(reasons),
        tuple(lines),
        _about(schedule.topology, schedule.collective),
        {
            "rate_exact": None if facts.rate is None else exact_GBps(facts.rate),
            "gap_exact": None if facts.gap is None else str(facts.gap),
        },
    )


def _claim(schedule: Schedule) -> list[str]:
    """What is wrong with the certificate that a schedule carries, if it carries one."""
    if "certificate" not in schedule.bound:
        return []
    from blinksim.bounds import certificate_from_dict

    try:
        rate = parse_exact(schedule.bound.get("rate_exact")) * 10**9
        found = certificate_from_dict(schedule.bound["certificate"])
        return [f"its bound: {reason}" for reason in found.check(schedule.topology, schedule.collective, rate)]
    except InputError as error:
        return [f"its bound: {error}"]


def _bounds(file: str, document: Any, question: Question) -> FileVerdict:
    from blinksim.bounds import certificate_from_dict

    topology = _machine_of(file, document, question)
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
    return FileVerdict(
        ok,
        f"{'right' if ok else 'wrong'}: {len(document['bounds'])} bounds of {wanted} on {topology.name}",
        tuple(reasons),
        tuple(facts) if ok else (),
        _about(topology, wanted),
        {"rate_exact": document.get("rate_exact")},
    )


def _named(file: str, asked: Question) -> Topology:
    """The machine that a file names. It is a stranger's: no pipe is opened, and no error quotes what it points to."""
    places = [place for place in (str(asked.machine), asked.table) if os.path.lexists(place)]
    for place in places:
        if not os.path.isfile(place):
            raise FileError(file, f"names {place!r}, which is no ordinary file; say which machine with machine=")
    try:
        return asked.whole()
    except InputError:
        if not places:
            raise
        why = f"names {' and '.join(map(repr, places))}, which cannot be used"
        raise FileError(file, f"{why}; say which machine with machine=") from None


def _machine_of(file: str, document: Any, question: Question) -> Topology:
    """The part of the machine that the bound is about, loaded anew: nothing in the file is trusted."""

    def texts(key: str) -> list[str]:
        value = document.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise FileError(file, f"{key} is not a list of names")
        return value

    nodes = document.get("nodes", 1)
    if not isinstance(nodes, int) or not 1 <= nodes <= 100_000:
        raise FileError(file, "nodes is not a number of nodes")
    source = question.machine or document.get("source") or document.get("machine")
    if source == STDIN and not question.machine:
        raise FileError(file, "is of a machine that came through standard input; say which one with machine=")
    if not isinstance(source, str):
        raise FileError(file, "names no machine; give one with machine=")
    rates = question.table if question.machine else str(document.get("rates_source", "nominal"))
    asked = Question(source, nodes=nodes, rates=rates, edits=(*texts("edits"), *question.edits))
    whole = asked.whole() if question.machine else _named(file, asked)
    reduce = document.get("relays_reduce") is True
    return whole.select(texts("members"), texts("relays"), texts("links") or None, relays_reduce=reduce)
