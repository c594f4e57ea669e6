"""What a file claims about a bound, held against what its certificate proves: proved, wrong, or not proved.

Nothing in a claim is believed. The witness of its certificate is taken, the bound is derived from it anew, and
everything else that the claim states must be what was derived. That some schedule attains a bound (``"kind": "exact"``)
no sum can show; the caller may know a schedule that does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blinksim.bounds.bound_result import Bound
from blinksim.bounds.certificates.certificate_json import certificate_from_dict, proved
from blinksim.bounds.certificates.stated import contradiction, shown
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_rate, parse_exact

_KINDS = ("exact", "upper")


@dataclass(frozen=True)
class Judgement:
    """What is left of a claim.

    bound: what the certificate proves, None if nothing. wrong: what is false. unproved: what may be true, and is not
    shown by the file.
    """

    bound: Bound | None = None
    wrong: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()


def judge(
    claim: Mapping[str, Any], topology: Topology, collective: Collective, shares: Sequence[int] = ()
) -> Judgement:
    """What the certificate of one bound proves, and what else the claim says.

    That a bound is attained is left to the caller (`Bound.exact` is what is claimed). shares: weights of the ranks'
    blocks in the problem, empty where they are equal.
    """
    kind = claim.get("kind", "upper")
    if kind not in _KINDS:
        return Judgement(None, (f"kind is {shown(kind)}, and must be exact or upper",))
    if "certificate" not in claim:
        return Judgement(None, _wrong_rate(claim), _keys(claim, "not proved, as there is no certificate"))
    try:
        certificate = certificate_from_dict(claim["certificate"], topology, collective, shares)
    except InputError as error:
        return Judgement(None, (str(error),))
    bound = Bound.of(certificate, collective, exact=kind == "exact")
    derived = bound.to_dict(topology, collective, shares)
    wrong, unproved = compare(claim, derived)
    return Judgement(bound, wrong, unproved)


def compare(claim: Mapping[str, Any], derived: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What of a claim is wrong, and what is not proved, by what was derived. A key that is left out claims nothing."""
    wrong = list[str]()
    others = {key: value for key, value in claim.items() if key not in derived}
    for key, value in derived.items():
        if key not in claim or key == "certificate":
            continue
        wrong.extend(contradiction(key, claim[key], value))
    return tuple(wrong), _keys(others, "not proved")


def bound_here(
    claim: Mapping[str, Any], topology: Topology, collective: Collective, shares: Sequence[int] = ()
) -> Bound | None:
    """What the witness of a claim proves on another machine than the claim's; None if it proves nothing there."""
    try:
        return Bound.of(proved(claim.get("certificate"), topology, collective, shares), collective)
    except InputError:
        return None


def judge_schedule(
    claim: Mapping[str, Any],
    topology: Topology,
    collective: Collective,
    rate: Fraction | None,
    *,
    keeps: Callable[[str], bool],
    shares: Sequence[int] = (),
) -> Judgement:
    """The claim that comes with a schedule: a bound, and ``gap_exact``, 1 - rate/bound.

    rate: algbw in bytes/s that the schedule's loads allow, None if it sends nothing. keeps: tells if the schedule is
    right and keeps what a bound assumes, so that it is a proof of what it attains.
    """
    stated = dict(claim)
    if "certificate" in stated:
        # Derived below, from the bound that is left.
        stated.pop("gap_exact", None)
    found = judge(stated, topology, collective, shares)
    wrong, unproved = list(found.wrong), list(found.unproved)
    if found.bound is None:
        known = _exact(stated.get("rate_exact"))
        best = None if known is None else known * 10**9
    else:
        best = found.bound.rate
    if best is not None and rate is not None and rate > best:
        wrong.append(
            f"the bound says at most {exact_GBps(best)} GB/s, but the loads of this schedule allow "
            f"{exact_GBps(rate)} GB/s: the bound does not hold here"
        )
    if "gap_exact" in claim:
        gap = claim["gap_exact"]
        due = None if not best or rate is None else 1 - rate / best
        if _exact(gap) is None or (due is not None and _exact(gap) != due):
            wrong.append(f"gap_exact is {shown(gap)}, but 1 - rate/bound is {'not known' if due is None else due}")
        elif due is None and found.bound is not None:
            unproved.append("not proved: gap_exact")
    sure = found.bound
    if sure is not None and sure.exact and not (rate == sure.rate and keeps(sure.assumes)):
        unproved.append(f"not proved: that some schedule attains {exact_GBps(sure.rate)} GB/s; this one does not")
    return Judgement(found.bound, tuple(wrong), tuple(unproved))


def _wrong_rate(claim: Mapping[str, Any]) -> tuple[str, ...]:
    if "rate_exact" in claim and _exact(claim["rate_exact"]) is None:
        return (f"rate_exact is {shown(claim['rate_exact'])}, not a fraction like '342/7'",)
    return ()


def _exact(value: object) -> Fraction | None:
    try:
        found = parse_exact(value)
    except InputError:
        return None
    return found if found >= 0 else None


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
