"""Certificates back from JSON: the witness is read, all else is derived anew and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from blinksim.bounds.certificates.certificate import Certificate, Cut, Partition, Phases
from blinksim.bounds.certificates.crossing_sums import check_shares
from blinksim.bounds.certificates.lengths import Lengths
from blinksim.bounds.certificates.stated import differing, shown
from blinksim.collective import Collective
from blinksim.errors import InputError, unknown
from blinksim.topology.graph import Topology
from blinksim.units import parse_exact

KINDS = ("cut", "partition", "phases", "lengths")
# Digits of a length, and binary digits of the lengths' common denominator. What `rounded_duals` writes has far fewer.
_MOST_DIGITS = 80
_MOST_BITS = 8192


def certificate_from_dict(
    entry: object, topology: Topology, collective: Collective, shares: Sequence[int] = ()
) -> Certificate:
    """The certificate that `entry` is, proved anew for this problem.

    Raises `InputError` for anything that is no certificate of the problem, and if a sum that it states is not what the
    witness gives.
    """
    found = proved(entry, topology, collective, shares)
    stated = {key: value for key, value in _object(entry).items() if key != "shares"}
    reasons = differing(stated, {key: value for key, value in found.to_dict().items() if key != "shares"})
    own = _object(entry).get("shares", [])
    if _blocks(own) != check_shares(collective, topology.ranks, shares):
        reasons.append(f"its shares {shown(own)} are those of another problem")
    if reasons:
        raise InputError("; ".join(reasons))
    return found


def proved(entry: object, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> Certificate:
    """What the witness in `entry` proves about this problem, whatever sums stand beside it.

    Raises `InputError` if it proves nothing.
    """
    fields = _object(entry)
    kind = fields.get("kind")
    try:
        match kind:
            case "cut":
                return Cut.of(topology, collective, *_side(fields), shares)
            case "partition":
                parts = [_names(group, "parts") for group in _list(fields["parts"], "parts")]
                return Partition.of(topology, collective, parts, _names(fields.get("limits", []), "limits"))
            case "phases":
                return Phases.of(topology, collective, _phases(fields["phases"], topology))
            case "lengths":
                grants = _names(fields.get("grants", []), "grants")
                return Lengths.of(topology, collective, _lengths(fields["lengths"]), shares, grants)
    except KeyError as missing:
        raise InputError(f"certificate: the {kind} has no {missing.args[0]!r}") from None
    raise unknown("kind of certificate", shown(kind).strip("'"), KINDS)


def _object(entry: object) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise InputError("certificate: it is not an object")
    return entry


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"certificate: {what} is not a list")
    return value


def _blocks(value: object) -> tuple[int, ...]:
    """Weights in lowest terms, empty where they are equal."""
    shares = _list(value, "shares")
    if not all(type(share) is int and share >= 0 for share in shares):
        raise InputError("certificate: shares is not a list of whole numbers")
    common = gcd(*shares)
    return () if len(set(shares)) <= 1 else tuple(share // common for share in shares)


def _names(value: object, what: str) -> tuple[str, ...]:
    if not all(isinstance(name, str) for name in _list(value, what)):
        raise InputError(f"certificate: {what} is not a list of names")
    return tuple(_list(value, what))


def _side(fields: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _names(fields["side"], "side"), _names(fields.get("limits", []), "limits")


def _phases(value: object, topology: Topology) -> list[tuple[str, Certificate]]:
    phases = []
    for phase in _list(value, "phases"):
        name = _object(phase)["collective"]
        if not isinstance(name, str):
            raise InputError("certificate: the collective of a phase is not a name")
        phases.append((name, proved(phase, topology, Collective(name))))
    return phases


def _lengths(value: object) -> dict[str, Fraction]:
    if not isinstance(value, Mapping):
        raise InputError("certificate: lengths is not an object")
    lengths = {}
    common = 1
    for name, text in value.items():
        try:
            lengths[str(name)] = parse_exact(text)
        except InputError as error:
            raise InputError(f"certificate: the length of {shown(name)}: {error}") from None
        if len(text) > _MOST_DIGITS:
            raise InputError(f"certificate: the length of {shown(name)} has more than {_MOST_DIGITS} digits")
        common = lcm(common, lengths[name].denominator)
        if common.bit_length() > _MOST_BITS:
            raise InputError("certificate: the lengths have no common denominator of a size that can be checked")
    return lengths
