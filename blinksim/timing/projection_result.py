"""The answer of a timing model: a time with its terms, what sets it, and what no algorithm exceeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from blinksim.collective import Collective, busbw_factor
from blinksim.cost.terms import Term
from blinksim.results import Rates, Result
from blinksim.units import exact_GBps, format_rate, format_size, format_time, in_GBps


@dataclass(frozen=True)
class Ceiling:
    """An upper bound on algbw, bytes/s, found from sums alone (`blinksim.bounds.quick`), and why it holds."""

    rate: Fraction
    words: str

    @property
    def rate_GBps(self) -> float:  # noqa: N802 - GBps is the unit's name
        """rate in GB/s."""
        return in_GBps(self.rate)


@dataclass(frozen=True)
class Projection(Rates, Result):
    """The projected time of one collective on one machine, for one size.

    time_s: seconds; terms add up to it. algbw and busbw: bytes/s. bottleneck: what sets the time. details: what the
    model has to add (steps, pieces, presets), with units in the keys.
    """

    machine: str
    collective: Collective
    members: tuple[str, ...]
    relays: tuple[str, ...]
    links: tuple[str, ...]
    rates: str
    size: int
    model: str
    algorithm: str
    terms: tuple[Term, ...]
    bottleneck: str
    details: Mapping[str, Any] = field(default_factory=dict)
    bound: Ceiling | None = None

    @property
    def time_s(self) -> float:
        return sum(term.time_s for term in self.terms)

    @property
    def algbw(self) -> float:
        return self.size / self.time_s

    @property
    def busbw(self) -> float:
        return self.algbw * float(busbw_factor(self.collective.name, len(self.members)))

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints; every key with a unit carries it."""
        return {
            "machine": self.machine,
            "collective": self.collective.name,
            **({"root": self.collective.root} if self.collective.rooted else {}),
            "members": list(self.members),
            "relays": list(self.relays),
            "links": list(self.links),
            "rates": self.rates,
            "size_bytes": self.size,
            "model": self.model,
            "algorithm": self.algorithm,
            "time_s": self.time_s,
            "algbw_GBps": self.algbw_GBps,
            "busbw_GBps": self.busbw_GBps,
            "terms": [{"name": t.name, "time_s": t.time_s, "limit": t.limit} for t in self.terms],
            "bottleneck": self.bottleneck,
            **({"ceiling_exact": exact_GBps(self.bound.rate), "ceiling_words": self.bound.words} if self.bound else {}),
            **self.details,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The terms: name, time_s, limit, share."""
        return [
            {"name": t.name, "time_s": t.time_s, "limit": t.limit, "share": t.time_s / (self.time_s or 1.0)}
            for t in self.terms
        ]

    def row(self) -> dict[str, Any]:
        """The projection as a row of a table that compares several."""
        return {
            "algorithm": self.algorithm,
            "time_s": self.time_s,
            "algbw_GBps": self.algbw_GBps,
            "busbw_GBps": self.busbw_GBps,
            "bottleneck": self.bottleneck,
        }

    def sentence(self) -> str:
        """The answer in one line."""
        return (
            f"{self.collective} of {format_size(self.size)} on {self.machine} takes {format_time(self.time_s)}: "
            f"algbw {format_rate(self.algbw)}, busbw {format_rate(self.busbw)} ({self.algorithm}, {self.model})"
        )

    def __repr__(self) -> str:
        return f"<Projection {self.sentence()}\n  bottleneck: {self.bottleneck}; rates: {self.rates}>"

    def _repr_html_(self) -> str:
        return f"<p>{self.sentence()}; bottleneck: {self.bottleneck}</p>{self.to_frame().to_html(index=False)}"
