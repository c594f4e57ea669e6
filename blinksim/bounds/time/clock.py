"""The clock bound: what must get from some ranks to others passes the links between clocks that run ahead.

Flows over time (Ford and Fulkerson 1958; the quickest transshipment of Hoppe and Tardos 2000), with what is known of
messages: a rank's own data pays the overhead, and data of others cannot pass it before it can have come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blinksim.bounds.assumptions import NOTHING
from blinksim.bounds.time.delays import SECOND, Delays, delays
from blinksim.bounds.time.time_certificate import TimeCertificate, amount, in_words, microseconds
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology


def window(facts: Delays, clocks: Mapping[int, int] | list[int], link: int) -> int:
    """How long a byte can cross the link that is ahead of the clock at its start and behind the clock at its end.

    It is sent once the clock shows the time at its source, or later: a rank's own data after the overhead, data of
    others when they can have come.
    """
    start = clocks[facts.src[link]]
    through = facts.passing[facts.src[link]]
    begin = None if through is None else max(start, through)
    if facts.owners[facts.src[link]]:
        own = start + facts.overhead[link]
        begin = own if begin is None else min(own, begin)
    return 0 if begin is None else max(0, clocks[facts.dst[link]] - facts.latency[link] - begin)


@dataclass(frozen=True)
class Clock(TimeCertificate):
    """A clock on every device; between them the links carry less than what must get from `sources` to `sinks`.

    Attributes
    ----------
    size, time : int
        Bytes; femtoseconds.
    sources, sinks : tuple of str
        Ranks whose clocks show 0 and `time`.
    clocks : tuple of (str, int)
        Every device with what its clock shows, in femtoseconds.
    carried, needed : Fraction
        Bytes that pass at most, and that must pass.
    """

    size: int
    time: int
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    clocks: tuple[tuple[str, int], ...]
    carried: Fraction
    needed: Fraction
    kind = "clock"
    assumes = NOTHING

    @classmethod
    def of(
        cls,
        topology: Topology,
        collective: Collective,
        size: int,
        sources: Iterable[str],
        sinks: Iterable[str],
        clocks: Mapping[str, int],
        time: int,
    ) -> Clock:
        """Theorem: nothing ends before `time` if the windows of all links carry at most what must pass them.

        Call a byte early at a device while the clock there has not passed its own time. Every byte that must get from
        the sources, whose clocks show 0, to the sinks, whose clocks show `time`, starts late and would end early; so it
        crosses some link on which it starts at or after the clock of one end and arrives before the clock of the
        other. That leaves `window` for each link. Raises `InputError` if the sums do not prove it.
        """
        facts = delays(topology, collective)
        given, taken = _known(topology, sources), _known(topology, sinks)
        if {*given} & {*taken} or not given or not taken:
            raise InputError("a clock needs sources and sinks, and no rank can be both")
        shown = [0] * len(topology.devices)
        for name, value in clocks.items():
            if name not in topology.index:
                raise InputError(f"{name} is no device of {topology.name}")
            shown[topology.index[name]] = value
        if any(not 0 <= value <= time for value in shown):
            raise InputError(f"a clock shows less than 0 or more than {in_words(time)}")
        for rank in given:
            shown[topology.index[topology.members[rank]]] = 0
        for rank in taken:
            shown[topology.index[topology.members[rank]]] = time
        needed = collective.between(given, taken, topology.ranks) * size
        total = sum(rate * window(facts, shown, link) for link, rate in enumerate(facts.rate))
        passes = Fraction(total, facts.scale * SECOND)
        if not needed or passes > needed:
            raise InputError(f"by these clocks {float(passes):g} B pass, and {float(needed):g} B must")
        names = [device.name for device in topology.devices]
        return cls(
            size,
            time,
            tuple(topology.members[rank] for rank in given),
            tuple(topology.members[rank] for rank in taken),
            tuple(zip(names, shown, strict=True)),
            passes,
            needed,
        )

    def again(self, topology: Topology, collective: Collective, size: int) -> Clock:
        """What the same clocks prove about another problem."""
        return Clock.of(topology, collective, size, self.sources, self.sinks, dict(self.clocks), self.time)

    def words(self, topology: Topology) -> str:
        """One sentence with the ranks and what must get from one to the other."""
        return (
            f"{amount(self.needed)} must get from {_some(self.sources)} to {_some(self.sinks)}; within "
            f"{in_words(self.time)} the links between the certificate's clocks carry no more"
        )

    def witness(self) -> dict[str, Any]:
        """JSON: clocks in microseconds."""
        return {
            "sources": list(self.sources),
            "sinks": list(self.sinks),
            "clocks_us": {name: microseconds(value) for name, value in self.clocks},
            "carried_bytes_exact": str(self.carried),
            "needed_bytes_exact": str(self.needed),
        }


def _known(topology: Topology, names: Iterable[str]) -> list[int]:
    """The ranks of members by name."""
    rank = {name: number for number, name in enumerate(topology.members)}
    found = list[int]()
    for name in names:
        if name not in rank or rank[name] in found:
            raise InputError(f"{name} is no rank of {topology.name}, or named twice")
        found.append(rank[name])
    return found


def _some(members: tuple[str, ...]) -> str:
    return members[0] if len(members) == 1 else f"{len(members)} ranks" if len(members) > 3 else ", ".join(members)
