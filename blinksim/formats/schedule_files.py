"""Schedules from files, own and foreign, on a given machine: blinksim's JSON, MSCCL's XML, MSCCL++'s plans.

A schedule file names devices and links; it runs where the machine has them. A runtime's file names ranks only: they are
the members of the machine in order, and routes are the machine's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from blinksim.collective import Collective
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats import schedule_json
from blinksim.formats.shipped import ready_schedules
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule, rebase
from blinksim.schedule.symmetric import SymmetricSchedule
from blinksim.schedule.verify import verify
from blinksim.textio.strict_json import parse, unpack
from blinksim.textio.text_files import STDIN, read_bytes, standard_input
from blinksim.topology.graph import Topology

_ENDINGS = (".json", ".json.gz", ".xml")
_PLAN = {"gpus", "protocol", "collective"}


def names_a_file(name: str) -> bool:
    """True if `name` is a file of a schedule by its ending, or a schedule that comes with blinksim."""
    return name.lower().endswith(_ENDINGS) or name in ready_schedules.names()


def is_xml(file: str) -> bool:
    """True if a file is XML by its ending; by its first byte if it ends otherwise, or comes through standard input."""
    if file == STDIN:
        return standard_input(1) == b"<"
    if file.lower().endswith((".xml", ".json", ".gz")):
        return file.lower().endswith(".xml")
    return os.path.isfile(file) and read_bytes(file, 2**30)[:1] == b"<"


def is_plan(document: object) -> bool:
    """True for a parsed JSON document that is an execution plan of MSCCL++."""
    return isinstance(document, Mapping) and document.keys() >= _PLAN


def is_of_runtime(path: str | os.PathLike[str]) -> bool:
    """True for XML and for an execution plan of MSCCL++, which name no devices and links."""
    file = os.fspath(ready_schedules.located(path))
    return is_xml(file) or is_plan(_document(file))


def _document(file: str) -> object:
    data = unpack(file, read_bytes(file, schedule_json.MOST_BYTES, "schedule"), schedule_json.MOST_BYTES, "schedule")
    return parse(file, data, "schedule")


def read(path: str | os.PathLike[str], part: Topology | None = None, root: int = 0) -> Candidate:
    """The schedule of a file or a name; on `part`, if it is given.

    part: what `Topology.select` returns; a runtime's file needs it. root: for a rooted collective in a runtime's file,
    which does not name it.

    Raises `FileError` for a file that is none of these or wrong, `InputError` if a machine is needed, and
    `InfeasibleError` if the schedule does not run on the machine.
    """
    file = os.fspath(ready_schedules.located(path))
    if is_xml(file):
        return _xml(file, part, root)
    document = _document(file)
    if is_plan(document):
        from blinksim.formats.msccl.program_schedule import from_plan

        return from_plan(document, file, _needed(file, part), root)
    schedule = schedule_json.from_document(file, document)
    return Candidate(schedule if part is None else carried(schedule, part, os.fspath(path)))


def read_compact(path: str | os.PathLike[str]) -> Schedule | SymmetricSchedule:
    """The schedule of a file or a name on its own machine, in the form that the file has. Raises as `read`."""
    file = os.fspath(ready_schedules.located(path))
    if is_of_runtime(file):
        return read(file).schedule
    return schedule_json.compact_from_document(file, _document(file))


def _xml(file: str, part: Topology | None, root: int) -> Candidate:
    from blinksim.formats.msccl.program_schedule import from_xml
    from blinksim.textio.safe_xml import file_text, outermost

    text = file_text(file)
    if outermost(text) != "algo":
        raise FileError(file, f"is no algorithm of MSCCL: its outermost element is <{outermost(text)}>, not <algo>")
    return from_xml(text, file, _needed(file, part), root)


def _needed(file: str, part: Topology | None) -> Topology:
    if part is None:
        raise InputError(f"{file} names ranks, but no devices and links; name its machine with machine=")
    return part


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


def entrant(source: Schedule | str | os.PathLike[str], part: Topology, collective: Collective) -> Candidate:
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
