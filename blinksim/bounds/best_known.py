"""The one bound on a rate that every answer states: searched where that takes no time, else by sums.

A search (`blinksim.bounds.compute`) finds the tightest bound, and may take minutes on many ranks that differ. Sums
(`blinksim.bounds.quick`) are quick everywhere, and on some machines a few percent above it. Which one it is follows
from the machine and the collective alone, so that all commands state the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from blinksim.bounds.certificates import Certificate
from blinksim.bounds.compute import bound, exchange_variables, two_phases
from blinksim.bounds.quick import quick_bound, tries_every_cut
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.topology.graph import Topology

# Links up to which there is a search: where cuts in one direction are enough, where shares of trees are sought, and up
# to which two phases are held against the sums. A few tenths of a second each.
_CUTS, _TREES, _PHASES = 10_000, 3_000, 60_000
# The same for exchanges, and the variables of their flows.
_EXCHANGE, _FLOWS = 1_500, 25_000
# Pairs of ranks in the same node up to which flows spread over rails are known within a second.
_SPREAD = 70_000
_KEPT = 64


@dataclass(frozen=True)
class BestKnown:
    """Certificates of bounds on a rate, the tightest first.

    searched: false if sums alone gave it, so that a search might find a tighter one.
    """

    certificates: tuple[Certificate, ...]
    searched: bool

    @property
    def certificate(self) -> Certificate:
        """The tightest."""
        return self.certificates[0]

    @property
    def rate(self) -> Fraction:
        """algbw in bytes/s."""
        return self.certificate.rate


# A topology never changes: an edited one is another key.
@lru_cache(maxsize=_KEPT)
def best_known(topology: Topology, collective: Collective, grants: tuple[str, ...] = ()) -> BestKnown:
    """The tightest bound that is found within some tenths of a second.

    topology: the selected part, with two or more members. grants: what switches may do, of what they can.
    """
    quick = quick_bound(topology, collective, grants)
    if grants:
        # What holds for switches that only forward is no higher; beyond that, a search takes long.
        plain = best_known(topology, collective)
        return BestKnown((quick,), plain.searched and plain.rate == quick.rate)
    if _attained(topology, collective, quick.rate):
        return BestKnown((quick,), True)
    if not _affordable(topology, collective):
        return BestKnown((quick,), False)
    try:
        found = bound(topology, collective)
    except InfeasibleError:
        return BestKnown((quick,), False)
    return BestKnown(tuple(entry.certificate for entry in found.bounds), found.searched)


def _attained(topology: Topology, collective: Collective, rate: Fraction) -> bool:
    """True if schedules are known to attain the rate of the sums, without a search for the best ones."""
    if not rate:
        return True
    if collective.name == "allreduce":
        reached = _two_phases(topology)
        return reached is not None and reached >= rate
    if collective.exchanges:
        return _spread_attains(topology, collective, rate)
    return _attains_every_cut(topology, collective)


def _spread_attains(topology: Topology, collective: Collective, rate: Fraction) -> bool:
    """True if flows that need no search attain the rate, on ranks too many for the search."""
    local = topology.ranks / max(1, topology.nodes)
    if _affordable(topology, collective) or topology.ranks * local > _SPREAD:
        return False
    from blinksim.bounds.rail_flows import attained_rate
    from blinksim.graphs.programs import agree

    return agree(rate, attained_rate(topology, collective, float(rate)))


def _attains_every_cut(topology: Topology, collective: Collective) -> bool:
    """True if the sums try every cut, and trees or flows attain the tightest (`Network.passes_on`)."""
    if not tries_every_cut(topology):
        return False
    from blinksim.graphs.network import network

    net = network(topology)
    return collective.personalized or (net.passes_on() and net.reversed().passes_on())


def _two_phases(topology: Topology) -> Fraction | None:
    """The algbw of a reduce-scatter and then an allgather, which schedules attain; None if it is not known."""
    ways = [Collective(name) for name in ("reducescatter", "allgather")]
    if _attains_every_cut(topology, ways[0]):
        return 1 / sum((1 / quick_bound(topology, way).rate for way in ways), Fraction(0))
    if len(topology.links) > _PHASES:
        return None
    try:
        found = two_phases(topology)
    except InfeasibleError:
        return None
    return found.rate if found.exact else None


def _affordable(topology: Topology, collective: Collective) -> bool:
    """True if a search takes some tenths of a second at most."""
    links = len(topology.links)
    if collective.exchanges:
        return links <= _EXCHANGE and exchange_variables(topology, collective) <= _FLOWS
    return links <= (_TREES if collective.name == "allreduce" else _CUTS)
