"""Export formats by name: machines and schedules as blinksim's own files, schedules for runtimes.

Modules are imported when a format is used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from blinksim.errors import InfeasibleError, InputError, one_of, unknown
from blinksim.formats import machine_yaml, rate_tables
from blinksim.formats.rate_tables import RateTable
from blinksim.formats.registry import FORMATS as FORMATS, TUNER as TUNER, Format
from blinksim.schedule.model import Schedule, ScheduleLike, as_schedule
from blinksim.textio.text_files import Exported, read_words, write_folder, write_text
from blinksim.topology.elements import RCCL
from blinksim.topology.graph import Topology

if TYPE_CHECKING:
    from blinksim.timing.simulator import Timeline

FormatName = Literal["msccl-xml", "mscclpp-json", "nccl-graph", "nccl-graph-set"]
"""The formats of schedules, for editors and type checkers; ``-`` and ``_`` are alike."""
MachineFormatName = Literal["nccl-topo"]
"""The formats of machines."""


def elsewhere(schedule: Schedule, refused: Format, why: InfeasibleError) -> InfeasibleError:
    """The refusal of one format with what the others say of the schedule: which take it, and why the rest do not."""
    take, reasons = list[str](), dict[str, str]()
    for form in FORMATS.values():
        if form.name == refused.name:
            continue
        try:
            form.export(schedule)
        except InfeasibleError as error:
            # What to do instead of another format is about that format.
            reason = _reason(error).partition(". ")[0].replace(form.name, refused.name)
            if not str(why).startswith(reason) and reason not in reasons.values():
                reasons[form.name] = reason
        else:
            take.append(form.name)
    if take:
        takes = "takes" if len(take) == 1 else "take"
        return InfeasibleError(f"{why}. As it is, {' and '.join(take)} {takes} this schedule")
    if not reasons:
        return why
    others = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return InfeasibleError(f"{_reason(why)}. No other format takes it as it is ({others})")


def _reason(error: InfeasibleError) -> str:
    """What an error says, without another format to take: that one is asked as well."""
    return str(error).partition("; take ")[0]


def find(name: str) -> Format:
    """The format called `name` (``-`` and ``_`` alike); raises `InputError` with the nearest names."""
    key = name.lower().replace("_", "-")
    # What the formats are for, where users name that.
    if meant := read_words("runtime").get(key):
        raise InputError(f"unknown format {name!r}: {meant}")
    if key not in FORMATS:
        raise unknown("format", name, (*FORMATS, TUNER), hint="(machines: `blinksim topo export`)")
    return FORMATS[key]


def write(
    thing: ScheduleLike | Topology | RateTable | Timeline | Exported, path: str | os.PathLike[str], force: bool = False
) -> None:
    """Write a schedule (.json, .json.gz), a machine or rates (.yaml), a timeline, or an export.

    Parameters
    ----------
    thing : Schedule, Synthesis, Topology, RateTable, Timeline or Exported
        What to write; a timeline becomes a trace (.json) for ui.perfetto.dev, of very many transfers a
        sample.
    path : str or path
        Where; the ending must fit. An export of several files goes into a folder.
    force : bool
        Replace a file that exists.

    Raises
    ------
    InputError
        For an ending that does not fit, an existing file without `force`, and anything else than these.
    FileError
        If the file cannot be written.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write(bs.load("dgx1-v100", edits="without gpu7"), "seven.yaml")
    >>> bs.load("seven.yaml").ranks
    7
    >>> bs.write(bs.simulate(bs.synthesize("full:4", "allreduce", "ring").schedule, "1MiB"), "trace.json")
    """
    from blinksim.formats.schedule_json import write_schedule
    from blinksim.timing.simulator import Timeline

    def check(what: str, *endings: str) -> None:
        if not os.fspath(path).endswith(endings):
            raise InputError(f"{os.fspath(path)}: {what} ends in {' or '.join(endings)}")

    if isinstance(thing, Topology):
        check("a machine file", ".yaml", ".yml")
        write_text(path, machine_yaml.write(thing), force)
    elif isinstance(thing, RateTable):
        check("a rates file", ".yaml", ".yml")
        write_text(path, rate_tables.write(thing), force)
    elif isinstance(thing, Timeline):
        check("a trace file", ".json")
        write_trace(thing, path, force)
    elif isinstance(thing, Exported):
        if set(thing.files) == {""}:
            write_text(Path(path), thing.files[""], force)
        else:
            write_folder(Path(path), thing.files, force)
    elif isinstance(thing, Schedule) or hasattr(type(thing), "schedule"):
        check("a schedule file", ".json", ".json.gz")
        write_schedule(thing, path, force)
    else:
        others = "schedules, machines, rates, timelines and exports have"
        raise InputError(f"a {type(thing).__name__} has no file format; {others}")


def write_trace(
    timeline: Timeline, path: str | os.PathLike[str], force: bool = False, most: int | None = None
) -> str | None:
    """Writes the trace; returns a sentence if it does not hold every transfer. Raises as `write_text` does."""
    from blinksim.formats.traces import events

    listed = events(timeline, most)
    shown, all_of_them = sum(event["ph"] == "X" for event in listed), timeline.transfer_count
    recorded, pieces = timeline.recorded_pieces, timeline.pieces
    whole = "the whole run" if recorded == pieces else f"the first {recorded:,} of {pieces:,} pieces"
    held = f"the trace holds {shown:,} of {all_of_them:,} transfers, sampled from {whole}"
    cut = f"{held}; a larger chunk= makes fewer" if shown < all_of_them else None
    about: dict[str, Any] = {"answer": timeline.sentence(), "service": timeline.discipline}
    about |= {"transfers": all_of_them} | ({"cut": cut} if cut else {})
    document = {"traceEvents": listed, "displayTimeUnit": "ns", "otherData": about}
    write_text(path, json.dumps(document, separators=(",", ":"), allow_nan=False), force)
    return cut


def export(
    thing: ScheduleLike | Topology,
    name: FormatName | MachineFormatName | str,
    channels: int | None = None,
    *,
    bus_ids: Sequence[str] | None = None,
) -> Exported:
    """Export a schedule in the format of a runtime, or a machine in NCCL's.

    Parameters
    ----------
    thing : Schedule, Synthesis or Topology
        What to export.
    name : str
        ``nccl-graph``, ``nccl-graph-set``, ``msccl-xml`` or ``mscclpp-json`` for schedules, ``nccl-topo`` for
        machines.
    channels : int, optional
        The most channels that a schedule may use. Default: the format's own limit.
    bus_ids : sequence of str, optional
        For a machine: the bus ids of the GPUs, such as ``0000:1b:00.0``. Default: the machine's, or made-up
        ones.

    Returns
    -------
    Exported
        The files as text, the variables that load them, and what shows that they are in force.

    Raises
    ------
    InputError
        For an unknown format, a limit that it does not have, or a schedule that does not do its collective.
    InfeasibleError
        If the format cannot express the schedule or the machine.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.export(bs.synthesize("dgx1-v100", "allreduce", "chains").schedule, "nccl-graph")
    >>> sorted(found.environment)
    ['NCCL_ALGO', 'NCCL_GRAPH_FILE', 'NCCL_MAX_NCHANNELS', 'NCCL_PROTO']
    >>> bs.write(bs.export(bs.load("dgx1-v100"), "nccl-topo"), "dgx1.xml")
    """
    if isinstance(thing, Topology):
        if channels is not None:
            raise InputError("channels= is for schedules; leave it out for a machine")
        from blinksim.formats.shipped.known_gpus import numbered
        from blinksim.nccl.files import topo_file

        known, hint = get_args(MachineFormatName), "(schedules: blinksim export)"
        one_of("format of machines", name.lower().replace("_", "-"), known, hint=hint)
        text, notes = topo_file.write(numbered(thing), bus_ids)
        library = "RCCL" if thing.device(thing.members[0]).library == RCCL else "NCCL"
        return Exported(
            files={"": text},
            summary=f"{thing.name} with {thing.ranks} GPUs, as {library} sees it",
            environment={"NCCL_TOPO_FILE": "{file}"},
            proof=("the bus ids of this file, with NCCL_DEBUG_SUBSYS=GRAPH",),
            notes=notes,
            caution="for experiments: every communicator of the process plans for this machine, on whatever GPUs",
        )
    if bus_ids is not None:
        raise InputError("bus_ids= is for machines; leave it out for a schedule")
    from blinksim.schedule.verify import verify

    form, schedule = find(name), as_schedule(thing)
    if not (verdict := verify(schedule)).ok:
        raise InputError(f"the schedule is wrong and is not exported: {verdict.reasons[0]}")
    return form.export(schedule, channels)
