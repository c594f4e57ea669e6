"""Schedule files: one JSON object with machine, collective, arrays, bound and certificate.

docs/schedule-file.md describes every key. In version 1 arrays are plain lists while they are short; longer ones
are base64 of their little-endian bytes, so that a million sends take a minute rather than an hour of reading
digits. Version 2 holds a schedule by symmetry: base chunks, the generators, and a machine in columns.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.collective import ALLTOALLV, COLLECTIVES, Collective
from blinksim.errors import InputError, unknown
from blinksim.formats.machine_json import (
    columns_of,
    from_columns,
    machine_from_json,
    machine_to_json,
    packed,
    packed_text,
    unpacked,
    unpacked_text,
)
from blinksim.formats.shipped import ready_schedules
from blinksim.schedule.model import ARRAYS, FORMS, MOST_DENOMINATOR, Schedule, ScheduleLike, as_schedule
from blinksim.schedule.symmetric import SymmetricSchedule, as_compact
from blinksim.textio.strict_json import Entry, pack, parse, unpack
from blinksim.textio.text_files import MIB, read_bytes
from blinksim.textio.whole_files import write_bytes
from blinksim.topology.group import CommutingGroup
from blinksim.traffic import Traffic

FORMAT, VERSION, SYMMETRIC_VERSION = "blinksim-schedule", 1, 2
MOST_BYTES = 256 * MIB
LONGEST_LIST = 4096
# Sends up to which a schedule by symmetry is written out, for readers of version 1: a file of about 1 MB.
MOST_WRITTEN_OUT = 24_000
_KEYS = ("format", "version", "algorithm", "form", "collective", "machine", "share_den", *ARRAYS, "bound")
_CERTIFICATE = "certificate"


def write_schedule(schedule: ScheduleLike, path: str | os.PathLike[str], force: bool = False) -> None:
    """Write a schedule file, compressed if the path ends in ``.gz``.

    Parameters
    ----------
    schedule : Schedule
        What to write. One by symmetry is written out where that is small; else the file says its chunks once.
    path : str or path
        Where.
    force : bool
        Replace a file that exists.

    Raises
    ------
    InputError
        If the file exists and `force` is not given, or if the bound or a device's attributes hold a value that JSON
        cannot represent.
    FileError
        If the file cannot be written.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write_schedule(bs.synthesize("dgx1-v100", "allgather", "ring").schedule, "ring.json.gz")
    """
    text = to_text(as_compact(schedule))
    write_bytes(path, pack(text) if os.fspath(path).endswith(".gz") else text.encode("utf-8"), force)


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Reads a schedule file, compressed or not.

    What the schedule does is not checked here: `blinksim.verify` does that.

    Parameters
    ----------
    path : str or path
        A file that `write_schedule` wrote, or the name of a schedule that comes with blinksim, such as
        ``dgx1-v100-8-allreduce``. A file of that name goes first.

    Returns
    -------
    Schedule
        With the machine, the bound and the certificate that the file holds.

    Raises
    ------
    FileError
        If anything is not as `write_schedule` writes it; the message names the key.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write(bs.synthesize("dgx1-v100", "allgather", "ring").schedule, "ring.json")
    >>> bs.read_schedule("ring.json").algorithm
    'ring'
    """
    path = ready_schedules.located(path)
    data = unpack(path, read_bytes(path, MOST_BYTES, "schedule"), MOST_BYTES, "schedule")
    return from_document(path, parse(path, data, "schedule"))


def to_text(schedule: Schedule | SymmetricSchedule) -> str:
    """The JSON text of a schedule."""
    whole = None
    if isinstance(schedule, SymmetricSchedule):
        whole = schedule if schedule.sends > MOST_WRITTEN_OUT else None
        schedule = schedule.schedule if whole is None else schedule.base
    collective: dict[str, Any] = {"name": schedule.collective.name}
    if schedule.collective.rooted:
        collective["root"] = schedule.collective.root
    if schedule.collective.traffic is not None:
        collective["traffic"] = _encode(schedule.collective.traffic.matrix.ravel())
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION if whole is None else SYMMETRIC_VERSION,
        "algorithm": schedule.algorithm,
        "form": schedule.form,
        "collective": collective,
        "machine": (machine_to_json if whole is None else columns_of)(schedule.topology),
        "share_den": schedule.share_den,
    }
    document |= {name: (_encode if whole is None else packed)(getattr(schedule, name)) for name in ARRAYS}
    bound = dict(schedule.bound)
    try:
        if whole is None:
            # One key a line, for readability.
            lines = [f"{json.dumps(key)}: {_dump(value)}" for key, value in (document | {"bound": bound}).items()]
        else:
            document["generators"] = [packed(turn) for turn in whole.group.generators]
            document["bound"] = {key: value for key, value in bound.items() if key != _CERTIFICATE}
            if _CERTIFICATE in bound:
                document[_CERTIFICATE] = packed_text(json.dumps(bound[_CERTIFICATE], allow_nan=False))
            lines = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items()]
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{schedule.algorithm}: this schedule cannot be written as JSON: {error}") from None
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _dump(value: Any) -> str:
    if not isinstance(value, dict) or "base64" in value:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    rows = []
    for key, inner in value.items():
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            text = "[\n    " + ",\n    ".join(json.dumps(item, allow_nan=False) for item in inner) + "\n  ]"
        else:
            text = json.dumps(inner, allow_nan=False)
        rows.append(f"{json.dumps(key)}: {text}")
    return "{\n  " + ",\n  ".join(rows) + "\n}" if rows else "{}"


def _encode(array: npt.NDArray[Any]) -> Any:
    if len(array) <= LONGEST_LIST:
        return array.tolist()
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    text = base64.b64encode(data).decode("ascii")
    return {"dtype": array.dtype.name, "length": len(array), "base64": text}


def from_document(path: str | os.PathLike[str], document: Any) -> Schedule:
    """The schedule of a parsed JSON document, with all sends; `path` is for messages only.

    Raises `InfeasibleError` if it is one by symmetry that has too many.
    """
    return as_schedule(compact_from_document(path, document))


def compact_from_document(path: str | os.PathLike[str], document: Any) -> Schedule | SymmetricSchedule:
    """The schedule of a parsed JSON document in the form that it has; `path` is for messages only."""
    whole = Entry(path, "", document)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise whole.wrong(f'is no schedule: it must be an object with "format": "{FORMAT}"')
    version = document.get("version")
    if type(version) is not int or version not in (VERSION, SYMMETRIC_VERSION):
        raise whole.wrong(
            f"has version {str(version)[:20]}; this blinksim reads versions {VERSION} and {SYMMETRIC_VERSION}"
        )
    symmetric = version == SYMMETRIC_VERSION
    fields = whole.fields((*_KEYS, "generators"), {_CERTIFICATE: None}) if symmetric else whole.fields(_KEYS)
    form = fields["form"].text()
    if form not in FORMS:
        raise fields["form"].wrong(f"must be {' or '.join(FORMS)}, not {form[:40]!r}")
    arrays = {name: (unpacked if symmetric else _decode)(fields[name], dtype) for name, dtype in ARRAYS.items()}
    topology = (from_columns if symmetric else machine_from_json)(fields["machine"])
    collective = _collective(fields["collective"])
    algorithm, share_den = fields["algorithm"].text(200), fields["share_den"].whole(1, MOST_DENOMINATOR)
    bound = dict(fields["bound"].a(dict, "an object {…}"))
    if bool((arrays["route_start"][1:] == arrays["route_start"][:-1]).any()):
        raise fields["route_start"].wrong("has a route without links; leave it out")
    generators = []
    if symmetric:
        generators = [unpacked(item, "int64") for item in fields["generators"].items()]
        if fields[_CERTIFICATE].value is not None:
            bound[_CERTIFICATE] = parse(whole.path, unpacked_text(fields[_CERTIFICATE]), "certificate")
    try:
        schedule = Schedule(topology, collective, algorithm, form, share_den=share_den, bound=bound, **arrays)
        return SymmetricSchedule(schedule, CommutingGroup.of(topology, generators)) if symmetric else schedule
    except InputError as error:
        raise whole.wrong(str(error)) from None


def _collective(entry: Entry) -> Collective:
    fields = entry.fields(("name",), {"root": None, "traffic": None})
    name = fields["name"].text()
    if name == ALLTOALLV or fields["traffic"].value is not None:
        # The alltoallv of a file: its matrix row by row.
        if name != ALLTOALLV or fields["root"].value is not None:
            raise fields["traffic"].wrong(f"goes with {ALLTOALLV}, without a root")
        if fields["traffic"].value is None:
            raise fields["traffic"].wrong("is missing: the bytes from every rank to every other, row by row")
        flat = _decode(fields["traffic"], "int64")
        ranks = isqrt(len(flat))
        if ranks * ranks != len(flat):
            raise fields["traffic"].wrong(f"has {len(flat)} entries, which are no square matrix")
        try:
            return Collective(name, traffic=Traffic(flat.reshape(ranks, ranks)))
        except InputError as error:
            raise fields["traffic"].wrong(str(error)) from None
    if name not in COLLECTIVES:
        raise fields["name"].wrong(str(unknown("collective", name[:80], COLLECTIVES)))
    collective = Collective(name)
    if not collective.rooted:
        if fields["root"].value is not None:
            raise fields["root"].wrong(f"{name} has no root; leave it out")
        return collective
    return Collective(name, fields["root"].whole(0, 2**31 - 1))


def _decode(entry: Entry, dtype: str) -> npt.NDArray[Any]:
    if isinstance(entry.value, list):
        limits = np.iinfo(dtype)
        for number, value in enumerate(entry.value):
            if type(value) is not int or not limits.min <= value <= limits.max:
                Entry(entry.path, f"{entry.place}[{number}]", value).whole(int(limits.min), int(limits.max))
        return np.array(entry.value, dtype=dtype)
    if not isinstance(entry.value, dict):
        raise entry.wrong("must be a list of whole numbers, or an object with dtype, length and base64")
    fields = entry.fields(("dtype", "length", "base64"))
    if fields["dtype"].text() != dtype:
        raise fields["dtype"].wrong(f"must be {dtype!r}")
    length = fields["length"].whole(0, 2**31 - 1)
    try:
        data = base64.b64decode(fields["base64"].text(MOST_BYTES), validate=True)
    except (binascii.Error, ValueError):
        raise fields["base64"].wrong("is not base64") from None
    kind = np.dtype(dtype)
    if len(data) != length * kind.itemsize:
        raise entry.wrong(f"has {len(data)} bytes, but {length} {dtype} need {length * kind.itemsize}")
    return np.frombuffer(data, dtype=kind.newbyteorder("<")).astype(kind)
