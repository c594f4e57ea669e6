"""Where measured times lie, given what is predicted: by what was published of a machine or of its nearest relative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blinksim.errors import InputError
from blinksim.formats.shipped.machine_names import catalogue_file
from blinksim.machines import NOMINAL
from blinksim.sources import usable_rates
from blinksim.sources.library_rates import scope_of
from blinksim.sources.usable_rates import EXPECTED, LINKS, Spread
from blinksim.timing.projection_result import Projection
from blinksim.topology.graph import Topology
from blinksim.units import format_time


@dataclass(frozen=True, slots=True)
class Interval:
    """Where measured times lie: between `low_s` and `high_s`, `share` of them.

    cells: of how many published times that is known, None if not from those. machine: theirs, empty for all machines.
    relative: True if that is not the machine that was asked about.
    """

    low_s: float
    high_s: float
    share: str
    cells: int | None = None
    machine: str = ""
    relative: bool = False

    def words(self) -> str:
        """Such as ``4.4 ms to 5.3 ms: 8 in 10 of 57 published times of p5.48xlarge``."""
        return f"{format_time(self.low_s)} to {format_time(self.high_s)}: {self.share}"

    def keys(self, prefix: str) -> dict[str, Any]:
        """What ``--json`` says; the name of the machine only where it is another one."""
        found = {f"{prefix}_low_s": self.low_s, f"{prefix}_high_s": self.high_s, f"{prefix}_share": self.share}
        found |= {} if self.cells is None else {f"{prefix}_cells": self.cells}
        return found | ({f"{prefix}_relative": self.machine} if self.relative and self.machine else {})

    @classmethod
    def of(cls, spread: Spread, time_s: float, asked: str) -> Interval:
        """That of a time on the machine `asked`, with a spread of measured over predicted times.

        It holds a time that is expected itself.
        """
        mine = "" if spread.machine == usable_rates.EVERY else spread.machine
        whose = "" if mine == asked else ", its nearest relative" if mine else ""
        # Of other sizes and numbers of GPUs: that must not look like a measurement of what was asked.
        from_links = "all machines, as multiples of what links alone need"
        of = f"{spread.cells} published times of {mine or from_links}{whose}"
        share = f"8 in 10 of {of}" if spread.cells >= usable_rates.MANY else f"all {of}"
        low, high = spread.low, spread.high
        if spread.what == EXPECTED:
            low, high = min(low, 1.0), max(high, 1.0)
        return cls(low * time_s, high * time_s, share, spread.cells, mine, mine != asked)

    @classmethod
    def within(cls, time_s: float, p90: float) -> Interval | None:
        """That of a time that nine in ten are off by at most the share `p90`."""
        return cls(time_s / (1 + p90), time_s / (1 - p90), "9 in 10 measured times") if p90 < 1 else None


def catalogued(machine: Topology) -> str:
    """The name of a machine of the catalogue, as it is there; empty for one that was edited, and for any other."""
    if machine.edits or machine.loaded_from is None:
        return ""
    try:
        return catalogue_file(machine.loaded_from[0]).stem
    except InputError:
        return ""


def relative_of(name: str) -> str:
    """The machine whose measurements stand in for those of a machine of the catalogue; empty if none is near."""
    found = usable_rates.relative(name)
    return "" if found is None else found[0]


def over_links(machine: Topology, projection: Projection) -> Interval | None:
    """Where times of libraries lie if the links alone need what a projection says.

    Those of the machine go before those of its nearest relative, and these before all. None at other than nominal
    rates, for traffic of unequal blocks, and for machines that are not in the catalogue or were edited.
    """
    name = catalogued(machine)
    if not name or machine.rates != NOMINAL or projection.collective.traffic is not None:
        return None
    scope = scope_of(machine.nodes, len(projection.members))
    for one in (name, relative_of(name), usable_rates.EVERY):
        spread = usable_rates.spread_of(one, LINKS, scope, projection.size)
        if spread is not None:
            return Interval.of(spread, projection.time_s, name)
    return None
