"""The bound on the rate that every answer states: exact if that takes no time, else by closed sums.

A search (`blinksim.bounds.compute`) finds the tightest bound, and may take minutes on many ranks that differ.
Sums (`blinksim.bounds.quick`) are quick everywhere, and on some machines a few percent above it. Which one it
is follows from the machine and the collective alone, so that all commands state the same.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.compute import bound, exchange_variables, two_phases
from blinksim.bounds.quick import quick_bound, tries_every_cut
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.network import network
from blinksim.topology.graph import Topology

# Links up to which there is a search: where cuts in one direction are enough, where shares of trees are sought, and up
# to which two phases are held against the sums. A few tenths of a second each.
_CUTS, _TREES, _PHASES = 10_000, 3_000, 60_000
# The same for exchanges, and the variables of their flows.
_EXCHANGE, _FLOWS = 1_500, 25_000
# Pairs of ranks in the same node up to which flows spread over rails are known within a second.
_SPREAD = 70_000
_CACHED = 64


# A topology never changes: an edited one is another key.
@lru_cache(maxsize=_CACHED)
def best_known(topology: Topology, collective: Collective, grants: tuple[str, ...]) -> BoundResult:
    """The tightest bounds that are found within some tenths of a second; `searched` is False for sums alone.

    topology: the selected part, with two or more members. grants: what switches may do, of what they can.
    """
    if collective.routing is not None:
        return bound(topology, collective)
    quick = quick_bound(topology, collective, grants)
    if grants:
        # What holds for switches that only forward is no higher; beyond that, a search takes long.
        plain = best_known(topology, collective, ())
        searched = plain.searched and plain.rate == quick.rate
    else:
        searched = _attained(topology, collective, quick.rate)
        if not searched and _affordable(topology, collective):
            with suppress(InfeasibleError):
                return bound(topology, collective)
    return BoundResult(topology, collective, (Bound.of(quick, collective),), searched=searched)


def _attained(topology: Topology, collective: Collective, rate: Fraction) -> bool:
    """True if schedules are known to attain the rate of the sums, without a search for the best ones."""
    if not rate:
        return True
    if collective.name == "allreduce":
        # A reduce-scatter and then an allgather.
        phases = [Collective(name) for name in ("reducescatter", "allgather")]
        if _attains_every_cut(topology, phases[0]):
            return 1 / sum((1 / quick_bound(topology, phase).rate for phase in phases), Fraction(0)) >= rate
        with suppress(InfeasibleError):
            return len(topology.links) <= _PHASES and (both := two_phases(topology)).exact and both.rate >= rate
        return False
    if not collective.exchanges:
        return _attains_every_cut(topology, collective)
    # Flows that need no search, on ranks too many for the search.
    local = topology.ranks / max(1, topology.nodes)
    if _affordable(topology, collective) or topology.ranks * local > _SPREAD:
        return False
    from blinksim.bounds.rails import spread_attains

    return spread_attains(topology, collective, rate)


def _attains_every_cut(topology: Topology, collective: Collective) -> bool:
    """True if the sums try every cut, and trees or flows attain the tightest (`Network.passes_on`)."""
    if not tries_every_cut(topology):
        return False
    net = network(topology)
    return collective.personalized or (net.passes_on() and net.reversed().passes_on())


def _affordable(topology: Topology, collective: Collective) -> bool:
    """True if a search takes some tenths of a second at most."""
    links = len(topology.links)
    if collective.exchanges:
        return links <= _EXCHANGE and exchange_variables(topology, collective) <= _FLOWS
    return links <= (_TREES if collective.name == "allreduce" else _CUTS)
