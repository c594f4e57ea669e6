"""Is a file right? A schedule, what `bound --json` printed, or a file for a runtime."""

from __future__ import annotations

import os
from typing import Any

from blinksim.answers.checks import verify_runtime
from blinksim.answers.checks.file_verdict import FileVerdict
from blinksim.answers.checks.read_schedule import moved_to
from blinksim.answers.checks.verify_bounds import about_part, verify_bounds
from blinksim.errors import FileError, InputError
from blinksim.question import Question
from blinksim.units import exact_GBps, format_rate


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
        For a schedule, as `blinksim.verify` takes them; `slots` also for an algorithm of MSCCL.
    root : int
        For the file of a runtime: the root's rank.
    release : str
        For a graph file: the release of NCCL.

    Returns
    -------
    FileVerdict
        ``ok``, a summary, the reasons if it is wrong, and the facts if it is right. ``unproved`` lists what the file
        claims and does not prove.

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
    from blinksim.formats.schedule_files import is_plan, is_xml
    from blinksim.formats.shipped.ready_schedules import located

    file, asked = os.fspath(located(path)), question or Question()
    if is_xml(file):
        return verify_runtime.xml(file, asked, release, root, slots)
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
        return verify_bounds(file, document, asked)
    raise FileError(file, "is neither a schedule file nor a bound in JSON")


def _schedule(file: str, document: Any, question: Question, in_place: bool, slots: int) -> FileVerdict:
    from blinksim.answers.checks.verify_schedule import verify
    from blinksim.bounds.claims import unknown_bound
    from blinksim.formats.schedule_json import compact_from_document
    from blinksim.schedule.model import as_schedule

    schedule = compact_from_document(file, document)
    about = about_part(schedule.topology, schedule.collective)
    if question.machine or question.edits:
        moved = moved_to(as_schedule(schedule), question)
        if isinstance(moved, tuple):
            return FileVerdict(False, "does not run on this machine", moved, (), about)
        schedule = moved
    verdict = verify(schedule, slots=slots, in_place=in_place)
    facts = verdict.facts
    promise = f"{schedule.algorithm} {schedule.collective} on {schedule.topology.name}, {schedule.topology.ranks} ranks"
    lines = []
    if facts.rate is not None:
        others = facts.busiest_count - 1
        alike = f" carries, and {others:,} like it {'carry' if others > 1 else 'carries'}," if others else " carries"
        lines.append(
            f"loads allow {exact_GBps(facts.rate)} GB/s algbw ({format_rate(facts.rate)}): "
            f"{facts.busiest}{alike} {'the whole' if facts.busiest_load == 1 else f'{facts.busiest_load} of the'} size"
        )
    if facts.bound is not None:
        lines.append(f"bound {exact_GBps(facts.bound)} GB/s, gap {facts.gap}")
    elif verdict.ok:
        lines.append(unknown_bound(facts.rate))
    if facts.scratch:
        most = max(facts.scratch, key=lambda name: facts.scratch[name].share)
        alike = f", the most of {len(facts.scratch)} devices" if len(facts.scratch) > 1 else ""
        lines.append(f"{most} needs scratch for {facts.scratch[most].share} of the size{alike}")
    lines += [
        f"in place: {'possible' if facts.in_place else 'not possible'}",
        f"all at {schedule.topology.rates} rates",
    ]
    return FileVerdict(
        verdict.ok,
        f"{'right' if verdict.ok else 'wrong'}: {promise}",
        verdict.reasons,
        tuple(lines),
        about_part(schedule.topology, schedule.collective),
        {
            "rate_exact": None if facts.rate is None else exact_GBps(facts.rate),
            "bound_exact": None if facts.bound is None else exact_GBps(facts.bound),
            "gap_exact": None if facts.gap is None else str(facts.gap),
        },
        verdict.unproved,
    )
