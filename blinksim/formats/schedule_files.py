"""Schedules from files, own and foreign, on a given machine: blinksim's JSON, MSCCL's XML, MSCCL++'s plans.

A schedule file names devices and links; it runs where the machine has them. A runtime's file names ranks
only: they are the members of the machine in order, and routes are the machine's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from blinksim.collective import Collective
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats import schedule_json
from blinksim.formats.registry import Format, GivenFile, taken
from blinksim.formats.shipped import ready_schedules
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule, rebase
from blinksim.schedule.symmetric import SymmetricSchedule
from blinksim.schedule.verify import verify
from blinksim.textio.strict_json import parse, unpack
from blinksim.textio.text_files import STDIN, read_bytes, standard_input
from blinksim.topology.graph import Topology

_ENDINGS = (".json", ".json.gz", ".xml")


def names_a_file(name: str) -> bool:
    """True if `name` is a file of a schedule by its ending, or a schedule that comes with blinksim."""
    return name.lower().endswith(_ENDINGS) or name in ready_schedules.names()


def is_xml(file: str) -> bool:
    """True if a file is XML by its ending; by its first byte if it ends otherwise, or comes through standard input."""
    if file == STDIN:
        return standard_input(1) == b"<"
    if file.lower().endswith((".xml", ".json", ".gz")):
        return file.lower().endswith(".xml")
    return os.path.isfile(file) and read_bytes(file, schedule_json.MOST_BYTES, "schedule")[:1] == b"<"


def _given(file: str) -> tuple[GivenFile, Format | None]:
    """A file, and the format of a runtime that it has; those name no devices and links."""
    if is_xml(file):
        given = GivenFile(file)
        form = taken(given)
        if form is None:
            raise FileError(file, f"is no algorithm of MSCCL: its outermost element is <{given.outermost}>, not <algo>")
        return given, form
    data = unpack(file, read_bytes(file, schedule_json.MOST_BYTES, "schedule"), schedule_json.MOST_BYTES, "schedule")
    given = GivenFile(file, parse(file, data, "schedule"))
    own = isinstance(given.document, Mapping) and given.document.get("format") == schedule_json.FORMAT
    return given, None if own else taken(given)


def is_of_runtime(path: str | os.PathLike[str]) -> bool:
    """True for a file of a runtime, which names no devices and links."""
    return _given(os.fspath(ready_schedules.located(path)))[1] is not None


def read(path: str | os.PathLike[str], part: Topology | None = None, root: int = 0) -> Candidate:
    """The schedule of a file or a name; on `part`, if it is given.

    part: what `Topology.select` returns; a runtime's file needs it. root: for a rooted collective in a runtime's file,
    which does not name it.

    Raises `FileError` for a file that is none of these or wrong, `InputError` if a machine is needed, and
    `InfeasibleError` if the schedule does not run on the machine.
    """
    given, form = _given(os.fspath(ready_schedules.located(path)))
    if form is not None and form.read is not None:
        if part is None:
            raise InputError(f"{given.path} names ranks, but no devices and links; name its machine with machine=")
        return form.read(given, part, root)
    schedule = schedule_json.from_document(given.path, given.document)
    return Candidate(schedule if part is None else carried(schedule, part, os.fspath(path)))


def read_compact(path: str | os.PathLike[str]) -> Schedule | SymmetricSchedule:
    """The schedule of a file or a name on its own machine, in the form that the file has. Raises as `read`."""
    given, form = _given(os.fspath(ready_schedules.located(path)))
    if form is not None:
        return read(path).schedule
    return schedule_json.compact_from_document(given.path, given.document)


def carried(schedule: Schedule, part: Topology, label: str) -> Schedule:
    """`schedule` on `part`, whose members and relays must be its own. label: what messages call it."""
    old = schedule.topology
    if old.members != part.members:
        raise InfeasibleError(
            f"{label} runs on {', '.join(old.members)} of {old.name}; members= chose {', '.join(part.members)}"
        )
    for name in old.relays:
        if name not in part.relays:
            raise InfeasibleError(f"{label} uses the relay {name}; name its relays with relays={','.join(old.relays)}")
        if not old.device(name).can <= part.device(name).can:
            raise InfeasibleError(f"{label} reduces on the relay {name}; relays_reduce=True lets it")
    moved = rebase(schedule, part)
    if isinstance(moved, tuple):
        raise InfeasibleError(f"{label} does not run on {part.name}: {moved[0]}")
    return moved


def candidate(source: Schedule | str | os.PathLike[str], part: Topology, collective: Collective) -> Candidate:
    """A schedule, or that of a file, to be timed beside algorithms for `collective` on `part`.

    Raises as `read` does, `InputError` for another collective, and for a schedule that is wrong.
    """
    if isinstance(source, Schedule):
        label = source.algorithm
        found = Candidate(carried(source, part, label))
    else:
        label = os.fspath(source)
        found = read(source, part, collective.root)
    if found.compact.collective != collective:
        raise InputError(f"{label} is of {found.compact.collective}, not of {collective}")
    verdict = verify(found.compact)
    if not verdict.ok:
        raise InputError(f"{label} is wrong: {verdict.reasons[0]}")
    return found
