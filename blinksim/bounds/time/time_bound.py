"""The largest of all lower bounds on the time of a collective for one size.

They hold for messages over links with latency, overhead and bandwidth, as `blinksim.timing.simulator` times
them: data is divisible, and what passes through a device goes on while it arrives. They say nothing of
launches or of protocols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from blinksim.bounds.best_known import best_known
from blinksim.bounds.bound_result import NOTHING, of_blocks
from blinksim.bounds.certificates import Certificate, Phases, differing, shown
from blinksim.bounds.claims import names, proved
from blinksim.bounds.time import link_prices, message_counts
from blinksim.bounds.time.certificates import (
    Stated,
    Theorem,
    TimeCertificate,
    Windows,
    from_microseconds,
    in_words,
    microseconds,
)
from blinksim.bounds.time.clock import Clock, best_clock
from blinksim.bounds.time.delays import SECOND, delays
from blinksim.collective import Collective
from blinksim.errors import InputError, unknown
from blinksim.results import Result, keyed
from blinksim.textio.text_table import table
from blinksim.topology.graph import Topology
from blinksim.units import format_size

THEOREMS: tuple[type[Theorem], ...] = (*message_counts.THEOREMS, *link_prices.THEOREMS)
# Ranks up to which messages are counted: beyond, bandwidths and distances set the time.
_COUNTED = 128
_KEPT = 4096


def best_time(
    topology: Topology, collective: Collective, size: int, proofs: Sequence[Certificate], grants: Sequence[str] = ()
) -> TimeCertificate:
    """The certificate of the latest time; of equal ones, the one that assumes least.

    proofs: certificates of rates. grants: what switches may do beside forwarding; what counts messages then
    says nothing.
    """
    best = min(_fluid(topology, collective, size, proofs), key=_order)
    for theorem in _counted(topology, grants):
        best = _stated(theorem, topology, collective, size, best.time) or best
    return best


def all_times(
    topology: Topology, collective: Collective, size: int, proofs: Sequence[Certificate], grants: Sequence[str] = ()
) -> tuple[TimeCertificate, ...]:
    """The certificate of the latest time of every kind, as `best_time` takes it: the latest first."""
    stated = (_stated(theorem, topology, collective, size, 0) for theorem in _counted(topology, grants))
    found = sorted((*_fluid(topology, collective, size, proofs), *filter(None, stated)), key=_order)
    best: dict[str, TimeCertificate] = {}
    for entry in found:
        best.setdefault(entry.kind, entry)
    return tuple(best.values())


def _order(certificate: TimeCertificate) -> tuple[int, bool]:
    return -certificate.time, certificate.assumes != NOTHING


def _counted(topology: Topology, grants: Sequence[str]) -> tuple[type[Theorem], ...]:
    return () if grants or topology.ranks > _COUNTED else THEOREMS


def _fluid(
    topology: Topology, collective: Collective, size: int, proofs: Sequence[Certificate]
) -> list[TimeCertificate]:
    """What holds for bytes that flow, however many messages they are in."""
    rates = [proof for proof in proofs if not isinstance(proof, Phases)]
    clock = best_clock(topology, collective, size)
    return [*(Windows.of(topology, collective, size, proof) for proof in rates), *([clock] if clock else [])]


def _stated(theorem: type[Theorem], topology: Topology, collective: Collective, size: int, low: int) -> Stated | None:
    """The latest time after `low` by a theorem that counts messages, of all places where it says something."""
    facts, best = delays(topology, collective), None
    for place in theorem.places(facts) if theorem.applies(facts) else ():
        time = theorem.stated(topology, collective, size, place).latest(low)
        if time:
            low, best = time, place
    return None if best is None else Stated.of(theorem, topology, collective, size, best, low)


@lru_cache(maxsize=_KEPT)
def least_time(topology: Topology, collective: Collective, size: int, grants: tuple[str, ...] = ()) -> TimeCertificate:
    """As `best_time`, from the bounds on the rate that every answer states."""
    return best_time(topology, collective, size, best_known(topology, collective, grants).certificates, grants)


_THEOREMS = {theorem.kind: theorem for theorem in THEOREMS}
KINDS = ("windows", "clock", *_THEOREMS)


def time_certificate_from_dict(entry: object, topology: Topology, collective: Collective, size: int) -> TimeCertificate:
    """The certificate that `entry` is, proved anew for this problem.

    Raises `InputError` for anything that proves no time, and if a sum that it states is not what the witness
    gives.
    """
    if not isinstance(entry, Mapping):
        raise InputError("certificate: it is not an object")
    kind = entry.get("kind")
    if kind not in KINDS:
        raise unknown("kind of certificate", shown(kind).strip("'"), KINDS)
    try:
        time = from_microseconds(entry["time_us"], "time_us")
        if kind == "windows":
            found: TimeCertificate = Windows.of(
                topology, collective, size, proved(entry["proof"], topology, collective), time
            )
        elif kind == "clock":
            clocks = entry["clocks_us"]
            if not isinstance(clocks, Mapping):
                raise InputError("certificate: clocks_us is not an object")
            shows = {str(name): from_microseconds(text, f"the clock of {name}") for name, text in clocks.items()}
            ends = names(entry["sources"], "sources"), names(entry["sinks"], "sinks")
            found = Clock.of(topology, collective, size, ends, shows, time)
        else:
            where = entry["where"]
            if not isinstance(where, list):
                raise InputError("certificate: where is not a list")
            place = tuple(names(part, "where") for part in where)
            found = Stated.of(_THEOREMS[kind], topology, collective, size, place, time)
    except KeyError as missing:
        raise InputError(f"certificate: the {kind} has no {missing.args[0]!r}") from None
    reasons = differing(entry, found.to_dict())
    if reasons:
        raise InputError("; ".join(reasons))
    return found


@dataclass(frozen=True, repr=False)
class TimeBound(Result):
    """A lower bound on the time of a collective of one size, on the links alone.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What is bounded.
    size : int
        Bytes.
    certificates : tuple of TimeCertificate
        The latest time of each theorem, the latest first.
    in_network : TimeCertificate, optional
        What holds for switches that multicast and reduce as they can, where the machine has such.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.time_bound("dgx1-v100", "allgather", "1MiB")
    >>> found.kind, round(found.time_s * 1e6, 3)
    ('second-message', 9.317)
    >>> found.best.check(found.topology, found.collective, found.size)  # reasons against the certificate
    []
    """

    topology: Topology
    collective: Collective
    size: int
    certificates: tuple[TimeCertificate, ...]
    in_network: TimeCertificate | None = None

    @property
    def best(self) -> TimeCertificate:
        """The certificate of the largest lower bound."""
        return self.certificates[0]

    @property
    def time_s(self) -> float:
        """The largest lower bound in seconds."""
        return self.best.time / SECOND

    @property
    def kind(self) -> str:
        """The theorem that gives the largest lower bound."""
        return self.best.kind

    def rows(self) -> list[dict[str, Any]]:
        """One row per theorem."""
        keys = "kind time_s time_us assumes words"
        return [
            keyed(e, keys, time_s=e.time / SECOND, time_us=microseconds(e.time), words=e.words(self.topology))
            | {"assumes": of_blocks(e.assumes, self.collective)}
            for e in self.certificates
        ]

    def sentence(self) -> str:
        """The answer in one line."""
        return (
            f"{self.collective} of {format_size(self.size)} on {self.topology.name}: at least "
            f"{in_words(self.best.time)} on the links alone ({self.kind})"
        )

    def text(self) -> str:
        """The sentence, the proof, and the bound of each theorem."""
        every, collective = self.certificates, self.collective
        rows = [(one.kind, in_words(one.time), of_blocks(one.assumes, collective)) for one in every]
        able = self.in_network
        more = []
        if able is not None and (able.time, able.assumes) != (self.best.time, self.best.assumes):
            where = "whatever switches do" if able.assumes == NOTHING else f"where {able.assumes.partition(';')[0]}"
            more = [f"  {where}, at least {in_words(able.time)}"]
        best = self.best
        lines = self.sentence(), f"  {best.words(self.topology)}", f"  it assumes: {rows[0][2]}", *more
        return "\n".join((*lines, "", table(("theorem", "at least", "assumes"), rows, left=(0, 2))))

    def __repr__(self) -> str:
        return f"<TimeBound {self.sentence()}>"

    def to_dict(self) -> dict[str, Any]:
        """JSON: the largest bound, and every certificate with its own; each is checked on the way."""
        every = [*self.certificates, *([self.in_network] if self.in_network else [])]
        return {
            "collective": self.collective.name,
            **({"root": self.collective.root} if self.collective.rooted else {}),
            "size_bytes": self.size,
            "time_bound_s": self.time_s,
            "time_bounds": [stated(entry, self.topology, self.collective) for entry in every],
        }


def stated(entry: TimeCertificate, topology: Topology, collective: Collective) -> dict[str, Any]:
    """JSON of one bound, as a file has it."""
    return {
        "time_s": entry.time / SECOND,
        "assumes": of_blocks(entry.assumes, collective),
        "words": entry.words(topology),
        "certificate": entry.to_dict(),
        "checked": not entry.check(topology, collective, entry.size),
    }
