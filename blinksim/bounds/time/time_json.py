"""Certificates of times back from JSON: the witness is read, all else is derived anew and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blinksim.bounds.certificates.certificate_json import proved
from blinksim.bounds.certificates.stated import differing, shown
from blinksim.bounds.time.clock import Clock
from blinksim.bounds.time.theorems.theorem import Stated
from blinksim.bounds.time.time_bound import THEOREMS
from blinksim.bounds.time.time_certificate import TimeCertificate, from_microseconds
from blinksim.bounds.time.windows import Windows
from blinksim.collective import Collective
from blinksim.errors import InputError, unknown
from blinksim.topology.graph import Topology

_THEOREMS = {theorem.kind: theorem for theorem in THEOREMS}
KINDS = ("windows", "clock", *_THEOREMS)


def time_certificate_from_dict(entry: object, topology: Topology, collective: Collective, size: int) -> TimeCertificate:
    """The certificate that `entry` is, proved anew for this problem.

    Raises `InputError` for anything that proves no time, and if a sum that it states is not what the witness gives.
    """
    if not isinstance(entry, Mapping):
        raise InputError("certificate: it is not an object")
    found = _proved(entry, topology, collective, size)
    reasons = differing(entry, found.to_dict())
    if reasons:
        raise InputError("; ".join(reasons))
    return found


def _proved(entry: Mapping[str, Any], topology: Topology, collective: Collective, size: int) -> TimeCertificate:
    kind = entry.get("kind")
    if kind not in KINDS:
        raise unknown("kind of certificate", shown(kind).strip("'"), KINDS)
    try:
        time = from_microseconds(entry["time_us"], "time_us")
        if kind == "windows":
            return Windows.of(topology, collective, size, proved(entry["proof"], topology, collective), time)
        if kind == "clock":
            clocks = entry["clocks_us"]
            if not isinstance(clocks, Mapping):
                raise InputError("certificate: clocks_us is not an object")
            shows = {str(name): from_microseconds(text, f"the clock of {name}") for name, text in clocks.items()}
            sources, sinks = _names(entry["sources"], "sources"), _names(entry["sinks"], "sinks")
            return Clock.of(topology, collective, size, sources, sinks, shows, time)
        where = entry["where"]
        if not isinstance(where, list):
            raise InputError("certificate: where is not a list")
        return Stated.of(_THEOREMS[kind], topology, collective, size, [_names(part, "where") for part in where], time)
    except KeyError as missing:
        raise InputError(f"certificate: the {kind} has no {missing.args[0]!r}") from None


def _names(value: object, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"certificate: {what} is not a list of names")
    return value
