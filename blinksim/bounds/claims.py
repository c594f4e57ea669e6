"""Claims of bounds read from files: only the witness is trusted, all else is derived anew and compared.

Nothing in a claim is believed. The witness of its certificate is taken, the bound is derived from it anew,
and everything else that the claim states must be what was derived. That some schedule attains a bound
(``"kind": "exact"``) no sum can show; the caller may know a schedule that does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any

from blinksim.bounds import certificates
from blinksim.bounds.bound_result import Bound
from blinksim.bounds.certificates import Certificate, Cut, Partition, Phases, contradiction, differing, shown
from blinksim.bounds.lengths import Lengths
from blinksim.collective import Collective
from blinksim.errors import InputError, blamed_on, unknown
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_rate, parse_exact

if TYPE_CHECKING:
    from blinksim.bounds.together import Group, SharedLengths
    from blinksim.schedule.model import Tenant

Tenants = Sequence["Tenant"]
KINDS = ("cut", "partition", "phases", "lengths")
# Digits of a length, and binary digits of the lengths' common denominator. What `rounded_duals` writes has
# far fewer.
_MOST_DIGITS = 80
_MOST_BITS = 8192


def certificate_from_dict(
    entry: object, topology: Topology, collective: Collective, shares: Sequence[int] = (), groups: Tenants = ()
) -> Certificate:
    """The certificate that `entry` is, proved anew for this problem.

    Raises `InputError` for anything that is no certificate of the problem, and if a sum that it states is not
    what the witness gives.
    """
    found = proved(entry, topology, collective, shares, groups)
    stated = {key: value for key, value in as_object(entry).items() if key != "shares"}
    reasons = differing(stated, {key: value for key, value in found.to_dict().items() if key != "shares"})
    own = as_object(entry).get("shares", [])
    stated_shares = as_list(own, "shares")
    if not all(type(share) is int and share >= 0 for share in stated_shares):
        raise InputError("certificate: shares is not a list of whole numbers")
    blocks = certificates.check_shares(collective, topology.ranks, stated_shares)
    if blocks != certificates.check_shares(collective, topology.ranks, shares):
        reasons.append(f"its shares {shown(own)} are those of another problem")
    if reasons:
        raise InputError("; ".join(reasons))
    return found


def proved(
    entry: object, topology: Topology, collective: Collective, shares: Sequence[int] = (), groups: Tenants = ()
) -> Certificate:
    """What the witness in `entry` proves about this problem, whatever sums stand beside it.

    groups: those that share the machine; then it is about all their collectives (`Schedule.groups`). Raises
    `InputError` if it proves nothing.
    """
    fields = as_object(entry)
    kind = fields.get("kind")
    with blamed_on(lambda missing: InputError(f"certificate: the {kind} has no {missing}"), KeyError):
        if groups:
            from blinksim.bounds.together import JointLengths  # with arrays, as below

            told = tuple(_lengths(fields["lengths"]).items()), Fraction(0), Fraction(0)
            return JointLengths(*told, groups=tuple(groups)).again(topology, collective)
        match kind:
            case "cut":
                limits = names(fields.get("limits", []), "limits")
                return Cut.of(topology, collective, names(fields["side"], "side"), limits, shares)
            case "partition":
                parts = [names(group, "parts") for group in as_list(fields["parts"], "parts")]
                return Partition.of(topology, collective, parts, names(fields.get("limits", []), "limits"))
            case "phases":
                phases = []
                for phase in as_list(fields["phases"], "phases"):
                    name = as_object(phase)["collective"]
                    if not isinstance(name, str):
                        raise InputError("certificate: the collective of a phase is not a name")
                    phases.append((name, proved(phase, topology, Collective(name))))
                return Phases.of(topology, collective, phases)
            case "lengths":
                grants = names(fields.get("grants", []), "grants")
                return Lengths.of(topology, collective, _lengths(fields["lengths"]), shares, grants)
    raise unknown("kind of certificate", shown(kind).strip("'"), KINDS)


def as_object(value: object, what: str = "it") -> Mapping[str, Any]:
    """An object in a certificate."""
    if not isinstance(value, Mapping):
        raise InputError(f"certificate: {what} is not an object")
    return value


def as_list(value: object, what: str) -> list[Any]:
    """A list in a certificate."""
    if not isinstance(value, list):
        raise InputError(f"certificate: {what} is not a list")
    return value


def names(value: object, what: str) -> tuple[str, ...]:
    """A list of names in a certificate."""
    found = as_list(value, what)
    if not all(isinstance(name, str) for name in found):
        raise InputError(f"certificate: {what} is not a list of names")
    return tuple(found)


def _lengths(value: object) -> dict[str, Fraction]:
    lengths = {}
    common = 1
    for name, text in as_object(value, "lengths").items():
        with blamed_on(f"certificate: the length of {shown(name)}"):
            lengths[str(name)] = parse_exact(text)
        if len(text) > _MOST_DIGITS:
            raise InputError(f"certificate: the length of {shown(name)} has more than {_MOST_DIGITS} digits")
        common = lcm(common, lengths[name].denominator)
        if common.bit_length() > _MOST_BITS:
            raise InputError("certificate: the lengths have no common denominator of a size that can be checked")
    return lengths


def shared_lengths(entry: Mapping[str, Any], machine: Topology, groups: Sequence[Group]) -> SharedLengths:
    """What the lengths in `entry` prove of groups with their rates; raises `InputError` if that is nothing."""
    from blinksim.bounds.together import SharedLengths  # with arrays, which single certificates do without

    given = as_list(entry.get("held_exact"), "held_exact")
    held = [None if text is None else parse_exact(text) * 10**9 for text in given]
    if len(held) != len(groups) or any(rate not in (None, one.rate) for rate, one in zip(held, groups, strict=True)):
        raise InputError("certificate: a group is held to another rate than it has")
    found = SharedLengths.of(machine, groups, _lengths(entry.get("lengths")), held)
    if found.rate <= 0:
        raise InputError("certificate: nothing is left for the other groups")
    return found


_ATTAINED = ("exact", "upper")


@dataclass(frozen=True)
class Judgement:
    """What is left of a claim.

    bound: what the certificate proves, None if nothing. wrong: what is false. unproved: what may be true, and
    is not shown by the file.
    """

    bound: Bound | None = None
    wrong: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()


def judge(
    claim: Mapping[str, Any], topology: Topology, collective: Collective, shares: Sequence[int], groups: Tenants = ()
) -> Judgement:
    """What the certificate of one bound proves, and what else the claim says.

    That a bound is attained is left to the caller (`Bound.exact` is what is claimed). shares: weights of the
    ranks' blocks in the problem, empty where they are equal.
    """
    kind = claim.get("kind", "upper")
    if kind not in _ATTAINED:
        return Judgement(None, (f"kind is {shown(kind)}, and must be exact or upper",))
    if "certificate" not in claim:
        rate = claim.get("rate_exact", "0")
        says = () if _exact(rate) is not None else (f"rate_exact is {shown(rate)}, not a fraction like '342/7'",)
        return Judgement(None, says, _keys(claim, "not proved, as there is no certificate"))
    try:
        certificate = certificate_from_dict(claim["certificate"], topology, collective, shares, groups)
    except InputError as error:
        return Judgement(None, (str(error),))
    bound = Bound.of(certificate, collective, exact=kind == "exact")
    wrong, unproved = compare(claim, bound.to_dict(topology, collective, shares))
    return Judgement(bound, wrong, unproved)


def compare(claim: Mapping[str, Any], derived: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What of a claim is wrong, and what is not proved, by what was derived. A key that is left out claims nothing.

    Sentences are never wrong, only not proved: another version of blinksim may have put them otherwise.
    """
    told = {key for key in ("assumes", "words") if claim.get(key) != derived.get(key)}
    others = {key: value for key, value in claim.items() if key in told or key not in derived}
    said = [key for key in derived if key in claim and key not in {"certificate", *told}]
    wrong = tuple(text for key in said for text in contradiction(key, claim[key], derived[key]))
    return wrong, _keys(others, "not proved")


def bound_here(
    claim: Mapping[str, Any], topology: Topology, collective: Collective, groups: Tenants = ()
) -> Bound | None:
    """What the witness of a claim proves on another machine than the claim's; None if it proves nothing there."""
    with suppress(InputError):
        return Bound.of(proved(claim.get("certificate"), topology, collective, groups=groups), collective)
    return None


def judge_schedule(
    claim: Mapping[str, Any],
    topology: Topology,
    collective: Collective,
    rate: Fraction | None,
    shares: Sequence[int] = (),
    groups: Tenants = (),
    *,
    keeps: Callable[[str], bool],
) -> Judgement:
    """The claim that comes with a schedule: a bound, and ``gap_exact``, 1 - rate/bound.

    rate: algbw in bytes/s that the schedule's loads allow, None if it sends nothing. keeps: tells if the
    schedule is right and keeps what a bound assumes, so that it is a proof of what it attains.
    """
    stated = dict(claim)
    if "certificate" in stated:
        # Derived below, from the bound that is left.
        stated.pop("gap_exact", None)
    found = judge(stated, topology, collective, shares, groups)
    wrong, unproved, sure = list(found.wrong), list(found.unproved), found.bound
    best = sure.rate if sure is not None else _exact(stated.get("rate_exact"), 10**9)
    if best is not None and rate is not None and rate > best:
        says = f"the bound says at most {exact_GBps(best)} GB/s"
        allow = f"the loads of this schedule allow {exact_GBps(rate)} GB/s"
        wrong.append(f"{says}, but {allow}: the bound does not hold here")
    if "gap_exact" in claim:
        gap, due = _exact(claim["gap_exact"]), None if not best or rate is None else 1 - rate / best
        if gap is None or due not in (None, gap):
            known_gap = "not known" if due is None else due
            wrong.append(f"gap_exact is {shown(claim['gap_exact'])}, but 1 - rate/bound is {known_gap}")
        elif due is None and sure is not None:
            unproved.append("not proved: gap_exact")
    if sure is not None and sure.exact and not (rate == sure.rate and keeps(sure.assumes)):
        unproved.append(f"not proved: that some schedule attains {exact_GBps(sure.rate)} GB/s; this one does not")
    return Judgement(sure, tuple(wrong), tuple(unproved))


def _exact(value: object, unit: int = 1) -> Fraction | None:
    """A stated number of units; None for what is no number of at least 0."""
    with suppress(InputError):
        found = parse_exact(value)
        return found * unit if found >= 0 else None
    return None


def _keys(claim: Mapping[str, Any], why: str) -> tuple[str, ...]:
    """One sentence about keys that nothing was derived for."""
    if not claim:
        return ()
    listed = ", ".join(shown(key).strip("'") for key in list(claim)[:6])
    return (f"{why}: {listed}{', …' if len(claim) > 6 else ''}",)


def unknown_bound(rate: Fraction | None) -> str:
    """What is said of a schedule that carries no proof of a bound."""
    known = "the schedule sends nothing" if rate is None else f"rate of the schedule {format_rate(rate)}"
    return f"no certificate: {known}, bound unknown"
