"""Certificates back from JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

from blinksim.bounds.certificates.certificate import Certificate, Cut, Partition, Phases
from blinksim.bounds.certificates.lengths import Lengths
from blinksim.errors import InputError, unknown
from blinksim.units import parse_exact

_Kind = TypeVar("_Kind", Cut, Partition, Phases, Lengths)
KINDS = ("cut", "partition", "phases", "lengths")


def _exact(value: object, what: str, times: int = 1) -> Fraction:
    try:
        return parse_exact(value) * times
    except InputError as error:
        raise InputError(f"certificate: {what}: {error}") from None


def _names(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"certificate: {what} is not a list of names")
    return tuple(value)


def _counts(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(count) is int for count in value):
        raise InputError(f"certificate: {what} is not a list of whole numbers")
    return tuple(value)


def certificate_from_dict(entry: Mapping[str, Any]) -> Certificate:
    """The certificate that `to_dict` wrote; raises `InputError` for anything that is none. Checks no sums."""
    if not isinstance(entry, Mapping):
        raise InputError("certificate: it is not an object")
    kind = entry.get("kind")
    if kind not in KINDS:
        raise unknown("kind of certificate", str(kind), KINDS)
    try:
        return _READERS[kind](entry)
    except KeyError as missing:
        raise InputError(f"certificate: the {kind} has no {missing.args[0]!r}") from None


def _cut(entry: Mapping[str, Any]) -> Cut:
    return _stated(
        entry,
        Cut(
            _names(entry["side"], "side"),
            _counts([entry["ranks_inside"]], "ranks_inside")[0],
            _exact(entry["capacity_exact"], "capacity_exact", 10**9),
            _positive(_exact(entry["crossing_exact"], "crossing_exact"), "crossing_exact"),
            _names(entry["links"], "links"),
            _names(entry.get("limits", []), "limits"),
            _counts(entry.get("shares", []), "shares"),
        ),
    )


def _partition(entry: Mapping[str, Any]) -> Partition:
    if not isinstance(entry["parts"], list):
        raise InputError("certificate: parts is not a list")
    return _stated(
        entry,
        Partition(
            tuple(_names(group, "parts") for group in entry["parts"]),
            _exact(entry["capacity_exact"], "capacity_exact", 10**9),
            int(_positive(Fraction(*_counts([entry["messages"]], "messages")), "messages")),
            _names(entry["links"], "links"),
            _names(entry.get("limits", []), "limits"),
        ),
    )


def _phases(entry: Mapping[str, Any]) -> Phases:
    if not isinstance(entry["phases"], list) or not entry["phases"]:
        raise InputError("certificate: phases is not a list")
    cuts = []
    for phase in entry["phases"]:
        if not isinstance(phase, Mapping):
            raise InputError("certificate: a phase is not an object")
        cut = _cut(phase)
        _positive(cut.capacity, "capacity_exact")
        cuts.append((str(phase["collective"]), cut))
    return _stated(entry, Phases(tuple(cuts)))


def _lengths(entry: Mapping[str, Any]) -> Lengths:
    lengths = entry["lengths"]
    if not isinstance(lengths, Mapping):
        raise InputError("certificate: lengths is not an object")
    return _stated(
        entry,
        Lengths(
            tuple(sorted((str(name), _exact(length, f"the length of {name}")) for name, length in lengths.items())),
            _exact(entry["price_exact"], "price_exact", 10**9),
            _positive(_exact(entry["distance_exact"], "distance_exact"), "distance_exact"),
            _counts(entry.get("shares", []), "shares"),
        ),
    )


def _positive(value: Fraction, what: str) -> Fraction:
    if value <= 0:
        raise InputError(f"certificate: {what} is not positive")
    return value


def _stated(entry: Mapping[str, Any], certificate: _Kind) -> _Kind:
    """`certificate`, if its own quotient is the one that the file states."""
    if _exact(entry["ratio_exact"], "ratio_exact", 10**9) != certificate.rate:
        raise InputError("certificate: ratio_exact is not the quotient of its own numbers")
    return certificate


_READERS: dict[str, Callable[[Mapping[str, Any]], Certificate]] = {
    "cut": _cut,
    "partition": _partition,
    "phases": _phases,
    "lengths": _lengths,
}
