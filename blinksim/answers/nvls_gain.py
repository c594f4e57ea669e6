"""What NCCL's NVLS is worth: its own choice where switches may add, and where they may not (NCCL_NVLS_ENABLE=0).

Every byte of an allreduce passes a port 2(n-1)/n times each way where switches only forward, and (n+1)/n times where
they add what a GPU reads and multicast what it stores: up to 2(n-1)/(n+1) times the rate. What an allgather receives,
and what a reduce-scatter sends, stays as much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from blinksim.answers.logs.expectation import Expectation, Expected
from blinksim.cost.nccl_rates import NVLS
from blinksim.units import format_size, format_time, in_GBps

# Sizes at which it is asked for what NCCL takes.
_SIZES = tuple(2**power for power in range(10, 35))


@dataclass(frozen=True)
class NvlsGain:
    """A collective of `size` bytes with NVLS and without.

    Attributes
    ----------
    collective : str
        Its name.
    size : int
        Bytes.
    enabled : bool
        True if NVLS is on in the answer that this stands beside.
    on, off : Expected
        NCCL's choice, and its time: both by measured constants, or both by NCCL's own model.
    at_most : float
        By how much the bounds for switches that add exceed those for switches that only forward.
    least : int, optional
        The first power of two from 1 KiB on at which NCCL takes NVLS; None if it never does.
    """

    collective: str
    size: int
    enabled: bool
    on: Expected
    off: Expected
    at_most: float
    least: int | None

    @property
    def taken(self) -> bool:
        """True if NCCL takes NVLS at this size where it may."""
        return self.on.choice.startswith(NVLS)

    @property
    def ratio(self) -> float:
        """How many times as long the collective takes without NVLS."""
        return self.off.time_s / self.on.time_s

    def sentence(self) -> str:
        """What it is worth, in words."""
        if not self.taken:
            return self._not_taken()
        most = f"; switches that add allow {self.at_most:.3g} times the rate" if self.at_most > 1 else ""
        on, off = (f"{one.choice}: {format_time(one.time_s)}" for one in (self.on, self.off))
        if not self.enabled:
            return f"off; with it NCCL takes {on}, {self._as('fast')}{most}"
        length = self._as("long") if self.ratio >= 1 else f"only {self.ratio:.3g} of the time"
        return f"on; without it (NCCL_NVLS_ENABLE=0) NCCL takes {off}, {length}{most}"

    def _as(self, word: str) -> str:
        times = f"{self.ratio:.3g}"
        return f"about as {word}" if times == "1" else f"{times} times as {word}"

    def _not_taken(self) -> str:
        if self.at_most <= 1:
            article = "an" if self.collective[0] in "aeiou" else "a"
            why = f"nothing to gain for {article} {self.collective}, whose busier direction of a port carries as much"
            return f"{why} with it; NCCL takes {self.on.choice}"
        first = f"; it takes NVLS from {format_size(self.least)} on" if self.least is not None else ""
        return f"changes nothing here: NCCL takes {self.on.choice} with and without it{first}"

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""

        def shown(one: Expected) -> dict[str, Any]:
            return {"choice": one.choice, "time_s": one.time_s, "algbw_GBps": in_GBps(self.size / one.time_s)}

        return {
            "enabled": self.enabled,
            "taken": self.taken,
            "on": shown(self.on),
            "off": shown(self.off),
            "ratio": self.ratio,
            "at_most": self.at_most,
            "from_bytes": self.least,
        }


def nvls_gain(expectation: Expectation, size: int, *, real: bool) -> NvlsGain | None:
    """What NVLS is worth for `size` bytes; None where NCCL cannot use it.

    real: by measured constants, where there are any of both choices; else by NCCL's own model.
    """
    enabled = expectation.multicast
    other = replace(expectation, multicast=not enabled)
    on, off = (expectation, other) if enabled else (other, expectation)
    if not on.adds_in_switches:
        return None
    times = on.measured(size) if real else None, off.measured(size) if real else None
    found = on.bounds
    wider = found.in_network.rate / found.rate if found.in_network is not None else 1
    return NvlsGain(
        expectation.collective.name,
        size,
        enabled,
        times[0] if times[0] and times[1] else on.at(size),
        times[1] if times[0] and times[1] else off.at(size),
        float(wider),
        next((least for least in _SIZES if on.at(least).choice.startswith(NVLS)), None),
    )
