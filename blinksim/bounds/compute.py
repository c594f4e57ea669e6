"""Computation of the best rate: the bounds for each collective, and which of them are attained.

Every rate is recomputed from its certificate, so anyone who checks it gets what is printed.

Every answer states the same bound, `best_known`: exact if that takes no time, else by closed sums. A search
finds the tightest bound, and may take minutes on many ranks that differ. Sums (`blinksim.bounds.quick`) are
quick everywhere, and on some machines a few percent above it. Which one it is follows from the machine and
the collective alone, so that all commands state the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from operator import attrgetter

import numpy as np

from blinksim import budget
from blinksim.bounds.bound_result import KEPT_BY_ALL, ONLY_TREES, SCOPES, TREES_BRANCH, UNSHARED, Bound, BoundResult
from blinksim.bounds.certificates import PHASES, Certificate, Cut, Partition, Phases, check_shares
from blinksim.bounds.experts import A_NODE, Way
from blinksim.bounds.groups import groupings, tight_cut, tight_traffic_cut
from blinksim.bounds.lengths import Lengths, more_than_forwards
from blinksim.bounds.optimum import best_bound, best_flows, best_partition, shortest_lengths, tightest
from blinksim.bounds.quick import bounds_by_sums, guessed_lengths, obvious_cuts, quick_bound, tries_every_cut
from blinksim.bounds.rails import spread_attains
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs import programs
from blinksim.graphs.arrays import Ints
from blinksim.graphs.connectivity import grouped
from blinksim.graphs.network import Network, NetworkOrbits, network, network_orbits, single_orbits
from blinksim.schedule.loads import moves_along_trees
from blinksim.schedule.model import Schedule, abilities_used, own_copies
from blinksim.topology.elements import BRANCHING
from blinksim.topology.graph import Topology
from blinksim.topology.selection import require_served
from blinksim.topology.symmetry import node_group, orbits

# Questions whose bounds are cached in the process.
_CACHED = 64
# Searches of an allreduce, each as long as one for a tightest cut: cuts both ways, and partitions.
_SEARCHES = 3
# Ranks up to which trees of tokens are sought where all links limit them, not those of one node alone.
APART = 9
# Ranks up to which lengths are given beside a cut that is attained already.
_LENGTHS = 64


def bound(
    topology: Topology, collective: Collective | str, *, shares: Sequence[int] = (), in_network: bool = False
) -> BoundResult:
    """The best algbw of `collective` on `topology`, as `Topology.select` gives it.

    Of a whole machine the default members and links take part.

    shares: weights of the ranks' parts, where they are unequal (allgather, reducescatter, gather, scatter);
    algbw is then all parts together over the time. Raises `InputError` for fewer than two members, a root
    that is no rank or shares that do not fit, and `InfeasibleError` if the links do not connect the members.

    An allreduce on so many ranks that its search would take minutes has the bounds of
    `blinksim.bounds.quick`. Equal rates are ordered by how little they assume. They hold for switches that
    only forward, unless a bound says otherwise. in_network: also, as the last bound, what those that can
    multicast or reduce allow, if that is more.
    """
    topology = topology.selected()
    collective = Collective.parse(collective) if isinstance(collective, str) else collective
    collective.check_ranks(topology.ranks)
    weights = check_shares(collective, topology.ranks, shares)
    require_served(topology, collective)
    if by_sums_alone(topology, collective, weights):
        return bounds_by_sums(topology, collective, packed_phases(topology), topology.in_network if in_network else ())
    instead = "ask how fast it will be (blinksim project), which comes with a bound without a search"
    budget.check(f"the exact bound of {collective.name}", topology, _seconds(topology, collective), instead)
    found = _bounds(topology, collective, weights)
    more = _in_network(topology, collective, weights) if in_network else None
    if more is not None and more.rate > found[0].rate:
        return BoundResult(topology, collective, (*found, more), weights)
    return BoundResult(topology, collective, found, weights, more)


def two_phases(topology: Topology) -> Bound:
    """What a reduce-scatter and then an allgather reach on a selected topology; a rate of schedules where exact."""
    return _Question(topology, Collective("allreduce"), ()).two_phases()


def packed_phases(topology: Topology) -> Bound | None:
    """`two_phases` where a theorem says that trees attain them (`Network.passes_on`); None where a search would."""
    question = _Question(topology, Collective("allreduce"), ())
    quick = _seconds(topology, Collective("allgather")) <= budget.MOST_SECONDS
    return question.two_phases() if quick and all(map(question.attained, map(Collective, PHASES))) else None


def by_sums_alone(topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> bool:
    """True where `bound` has sums instead of a search, which would take minutes."""
    wanted = collective.name == "allreduce" and not shares
    return wanted and _seconds(topology, collective) > budget.MOST_SECONDS


def _seconds(topology: Topology, collective: Collective) -> float:
    """About the seconds of the flows of a search."""

    if collective.personalized:
        return 0.0  # a single flow, or a linear program that is not begun where it is too large
    flows = topology.ranks
    if collective.name in ("allgather", "reducescatter") and (topology.symmetries or topology.nodes > 1):
        flows = len(orbits(topology))
    elif collective.name == "allreduce":
        flows = _SEARCHES * (min(flows, len(orbits(topology)) + topology.nodes) if topology.nodes > 1 else flows)
    return budget.of_flows(topology, flows)


# A topology never changes: an edited one is another key.
@lru_cache(maxsize=_CACHED)
def _bounds(topology: Topology, collective: Collective, shares: tuple[int, ...]) -> tuple[Bound, ...]:
    question = _Question(topology, collective, shares)
    if collective.name == "allreduce":
        return tuple(question.allreduce())
    return tuple(question.exchange() if collective.exchanges or collective.routing else question.one_way())


@lru_cache(maxsize=_CACHED)
def _in_network(topology: Topology, collective: Collective, shares: tuple[int, ...]) -> Bound | None:
    """The bound that grants what switches can do beyond forwarding, if it says more than the cuts."""
    if collective.personalized or not topology.in_network:
        return None
    found = _bounds(topology, collective, shares)
    cuts = [entry.rate for entry in found if isinstance(entry.certificate, Cut)]
    if cuts and found[0].rate >= min(cuts):
        return None

    grants = topology.in_network
    guess = guessed_lengths(topology, collective, grants) if not shares else None
    best = best_bound(topology, collective, shares, guess, grants, found[0].rate if found[0].exact else Fraction(0))
    if best is None or not found[0].rate <= best[0].rate <= min(cuts, default=best[0].rate):
        return None
    return Bound.of(best[0], collective, best[1])


def in_flight(found: BoundResult) -> BoundResult | None:
    """The bounds if switches that reduce into readers reduced in flight; None for a machine without such switches."""
    if found.in_network is None or "reduce_into_reader" not in found.in_network.grants:
        return None
    every = found.topology.devices
    devices = (replace(d, can=d.can - {"reduce_into_reader"} | {"reduce"}) if d.reads else d for d in every)
    other = replace(found.topology, devices=tuple(devices))
    return bound(other, found.collective, shares=found.shares, in_network=True)


def keeps(schedule: Schedule, assumed: str) -> bool:
    """True if a schedule that is right keeps what a bound assumes (`blinksim.bounds.bound_result`).

    No schedule codes: a send is a chunk or a reduction of one. What is not looked into counts as not kept.
    """
    each = [schedule.alone(number) for number in range(len(schedule.groups))] or [schedule]
    if assumed.removeprefix(UNSHARED).removeprefix("; ") in KEPT_BY_ALL:
        return True
    if assumed != ONLY_TREES and not assumed.endswith(TREES_BRANCH):
        return False
    # Data that is only copied or only reduced takes trees.
    trees = (one.collective.name != "allreduce" or moves_along_trees(one, own_copies(one)) for one in each)
    granted = assumed.partition(";")[0] if assumed.endswith(TREES_BRANCH) else ""
    able = {ability for ability, words in BRANCHING.items() if words in granted}
    return all(trees) and set[str]().union(*map(abilities_used, each)) <= able


def _is_reversed(collective: Collective) -> bool:
    """True if the cut is that of the dual in the reversed network: a cut has many sources, and one kind of sink."""
    return collective.reduces or collective.name == "scatter"


class _Question:
    """One collective on one topology, with what its bounds share."""

    def __init__(self, topology: Topology, collective: Collective, shares: tuple[int, ...]) -> None:
        self.topology, self.collective, self.shares = topology, collective, shares
        self.buses = {link.bus for link in topology.links} - {None}

    @cached_property
    def net(self) -> Network:

        return network(self.topology)

    @cached_property
    def alike(self) -> NetworkOrbits:
        """The orbits of arcs and ranks."""

        # Data tells ranks apart that the machine does not.
        return single_orbits(self.net) if self.collective.data else network_orbits(self.topology, self.net)

    def of(self, certificate: Certificate, exact: bool = False) -> Bound:
        """The bound that `certificate` proves."""
        return Bound.of(certificate, self.collective, exact)

    # --- cuts -------------------------------------------------------------------------------------------

    def cut(self, collective: Collective) -> Cut:
        """The tightest cut of a collective whose data flows one way."""

        transposed = _is_reversed(collective)
        name = collective.dual.name if transposed else collective.name
        net = self.net
        # A network that is its own reverse gives the same cut, read from the other side.
        work = net.reversed() if transposed else net
        weight = np.zeros(net.vertices, dtype=np.int64)
        root, groups = net.members[collective.root], list[Ints]()
        if name == "broadcast":
            weight[root] = 1
            sinks = np.delete(net.members, collective.root)
            # The other nodes are alike to the root, in any order.
            if (alike := node_group(self.topology)) is not None:
                own = alike.node[root]
                groups += [*np.delete(alike.table, own, axis=0).T, *alike.table[own, :, None]]
        else:
            weight[net.members] = list(self.shares) or 1
            sinks = net.members[[collective.root]] if name == "gather" else net.members
            sinks = sinks[weight[sinks] < weight.sum()]
        if name == "allgather" and not self.shares and (self.topology.symmetries or self.topology.nodes > 1):
            groups += [np.array(group) for group in orbits(self.topology)]
        asked = {*sinks.tolist()}
        _, side = tightest(work, weight, sinks, [group for group in groups if group[0] in asked])
        names, limits = work.side_names(self.topology, side)
        return Cut.of(self.topology, collective, names, limits, self.shares)

    def attained(self, collective: Collective) -> bool:
        """True if the cut bound of a one-way collective is known to be attained."""
        if collective.personalized:
            return self.paired_buses
        return not self.buses and (self.net.reversed() if _is_reversed(collective) else self.net).passes_on()

    @cached_property
    def paired_buses(self) -> bool:
        """True if every bus is one pair of devices with equal capacity both ways."""
        shared = (link for link in self.topology.links if link.bus is not None)
        kinds = grouped((link.bus, (frozenset((link.src, link.dst)), link.bandwidth)) for link in shared)
        return all(len({*alike}) == 1 for alike in kinds.values())

    # --- the collectives --------------------------------------------------------------------------------

    def one_way(self) -> list[Bound]:
        """Allgather, reducescatter, broadcast, reduce, gather and scatter."""
        cut = self.cut(self.collective)
        exact = self.attained(self.collective)
        bounds = [self.of(cut, exact)]
        if exact:
            return bounds
        if self.collective.personalized:
            return self.with_flows(bounds[0])
        if self.buses:
            partition, _ = self.partition()
            bounds.append(self.of(partition))
        return self.with_trees(bounds)

    def allreduce(self) -> list[Bound]:
        """The cut and the partition bound, the best of all trees, and reduce-scatter then allgather."""
        phases = self.two_phases()
        cuts = [self.cut(Collective("broadcast"))]
        if self.net.partner is None:
            cuts.append(self.cut(Collective("reduce")))
        least = min(cuts, key=lambda cut: cut.rate)
        cut = Cut.of(self.topology, self.collective, least.side, least.limits)
        partition, found = self.partition()
        direct = self.net.partner is not None and not len(self.net.forwarders) and self.paired_buses and found
        reached = phases.exact and partition.rate == phases.rate
        cut_reached = cut.rate == partition.rate if direct else phases.exact and cut.rate == phases.rate
        bounds = [self.of(cut, cut_reached), self.of(partition, direct or reached)]
        if not any(entry.exact for entry in bounds):
            bounds = self.with_trees(bounds, phases.rate if phases.exact else None)
        best, *others = sorted(bounds, key=_order)
        return [best, phases, *others]

    def two_phases(self) -> Bound:
        """Reduce-scatter and then allgather, each with the tightest bound of its own."""
        first, second = (_Question(self.topology, Collective(name), ()) for name in PHASES)
        gather = second.one_way()[0]
        side = gather.certificate.side if isinstance(gather.certificate, Cut) else ()
        if gather.exact and side and self.net.partner is not None:
            # Read from the other side, it is the cut of the reduce-scatter.
            inside = set(side)
            other = [device.name for device in self.topology.devices if device.name not in inside]
            scatter = first.of(Cut.of(self.topology, first.collective, other), True)
        else:
            scatter = first.one_way()[0]
        phases = Phases((("reducescatter", scatter.certificate), ("allgather", gather.certificate)))
        return self.of(phases, scatter.exact and gather.exact)

    def exchange(self) -> list[Bound]:
        """The tightest of the obvious cuts, and the lengths that a linear program finds."""

        if self.collective.data is not None:
            cut = tight_traffic_cut(self.topology, self.collective, self.net, groupings(self.topology))
            if self.collective.traffic:
                return self.with_flows(self.of(cut))
            # The bound of tokens of experts is marked if the way of libraries attains it.
            way, data = None, self.collective.routing
            with suppress(InfeasibleError):  # too many routes to look up
                way = Way.of(self.topology, self.collective, A_NODE)
            found = self.of(cut, data is not None and way is not None and way.time * cut.rate == data.size)
            return [found] if found.exact else self.with_trees([found])
        side, limits = tight_cut(self.topology, self.net, self.alike.first)
        cuts = [Cut.of(self.topology, self.collective, side, limits)]
        if self.topology.nodes > 1:
            cuts += obvious_cuts(self.topology, self.collective)
        return self.with_flows(self.of(min(cuts, key=lambda cut: cut.rate)))

    def with_flows(self, cut: Bound) -> list[Bound]:
        """`cut` and the lengths that a linear program of flows finds; marks those that flows attain."""

        large = self.collective.exchanges and (self.collective.traffic or self.topology.ranks > _LENGTHS)
        if large and spread_attains(self.topology, self.collective, cut.rate):
            return [replace(cut, exact=True)]
        shared, solution = programs.shared_capacities(self.topology, self.net), None
        # If the solver gives up, the cut stands, as an upper bound.
        with suppress(InfeasibleError):
            solution = best_flows(self.net, self.collective, shared, self.alike, self.shares)
        if solution is None:
            return [cut]
        if programs.agree(cut.rate, solution.value * float(self.net.unit)):
            cut = replace(cut, exact=True)
            if self.topology.ranks > _LENGTHS or self.collective.rooted:
                return [cut]
        found = self.lengths(shared, solution)
        if found is None:
            return [cut]
        lengths, exact = found
        cut = replace(cut, exact=cut.exact or (exact and cut.rate <= lengths.rate))
        return sorted([cut, self.of(lengths, exact)], key=_order)

    # --- partitions and trees ---------------------------------------------------------------------------

    def partition(self) -> tuple[Partition, bool]:
        """The best partition found, and whether it is the best there is."""

        parts, exact = best_partition(self.topology)
        return Partition.of(self.topology, self.collective, parts), exact

    def with_trees(self, bounds: list[Bound], reached: Fraction | None = None) -> list[Bound]:
        """`bounds` and the optimum over trees, if it is tighter; marks those that trees attain.

        reached: a rate that trees are known to attain.
        """
        best = min(entry.rate for entry in bounds)
        # Trees between members suffice if devices without a rank only forward and all data goes to each rank.
        if self.collective.routing or more_than_forwards(self.topology):
            certificate = min(bounds, key=attrgetter("rate")).certificate
            asked = self.topology, self.collective, self.shares
            within = self.node_around(certificate) if self.collective.routing else frozenset[str]()
            found = best_bound(*asked, Lengths.like(certificate, *asked), within=within)
            lengths, exact = found or (None, False)
            attained = lengths.rate if lengths is not None and exact and not within else None
        else:
            lengths, attained = self._trees(best, reached)
        if attained is not None:
            bounds = [replace(entry, exact=entry.exact or entry.rate <= attained) for entry in bounds]
        if lengths is not None and lengths.rate < best:
            bounds.append(self.of(lengths, lengths.rate == attained))
        return sorted(bounds, key=_order)

    def node_around(self, certificate: Certificate) -> frozenset[str]:
        """The devices of the node that a cut lies in, if all else is one point; none where all are points."""
        every, side = self.topology.devices, set(certificate.side) if isinstance(certificate, Cut) else set()
        smaller = [d for d in every if (d.name in side) == (2 * len(side) <= len(every))]
        hosts = {device.node for device in smaller} - {-1}
        one = self.topology.ranks > APART and len(hosts) == 1
        return frozenset(device.name for device in every if one and device.node in hosts)

    def _trees(self, best: Fraction, reached: Fraction | None) -> tuple[Lengths | None, Fraction | None]:
        """Lengths that trees cannot beat, and the rate that trees attain; either may be unknown."""

        guess = guessed_lengths(self.topology, self.collective)
        if guess is not None and guess.rate == reached:
            return guess, reached
        shared = programs.shared_capacities(self.topology, self.net)
        # A root or unequal shares tell ranks apart that the machine does not.
        alike = single_orbits(self.net) if self.collective.rooted or self.shares else self.alike
        found = None
        # If the solver gives up, the other bounds stand, as upper bounds.
        with suppress(InfeasibleError):
            for solution in self.best_trees(shared, alike):
                if solution.attained and programs.agree(best, solution.value * float(self.net.unit)):
                    return None, best
                found = self.lengths(shared, solution)
                if found and found[1] and solution.attained:
                    return found[0], found[0].rate
        known = [lengths for lengths in (found and found[0], guess) if lengths]
        return min(known, key=attrgetter("rate"), default=None), None

    def best_trees(
        self, shared: Sequence[programs.SharedCapacity], orbits: NetworkOrbits
    ) -> Iterator[programs.TreeSolution]:
        """The best trees by linear programs, the best last: first with one root of an allreduce, then with any.

        Allgather and broadcast send along out-trees, reducescatter and reduce along in-trees, which are
        out-trees of the transposed network; allreduce along both, with the same roots.

        orbits: equivalent arcs and ranks; they must respect root and shares.
        """
        net, collective, members = self.net, self.collective, self.net.members.tolist()
        if collective.name == "allreduce":
            if len(orbits.first) == len(members):
                yield programs.solve_trees(net, shared, {programs.widest(net): 1}, both=True)
            yield programs.solve_trees(net, shared, None, both=True, orbits=orbits)
        else:
            held = [int(rank == collective.root) for rank in range(len(members))] if collective.rooted else self.shares
            weights = dict(zip(members, held or [1] * len(members), strict=True))
            yield programs.solve_trees(net.reversed() if collective.collects else net, shared, weights, orbits=orbits)

    def lengths(
        self, shared: Sequence[programs.SharedCapacity], solution: programs.Solution | programs.TreeSolution
    ) -> tuple[Lengths, bool] | None:
        """The tightest lengths from the duals of a program, and whether they prove its value; None if none do."""

        names = [link.name for link in self.topology.links] + list(self.net.limits)
        worth = [(one.uses, max(value, 0.0)) for one, value in zip(shared, solution.duals, strict=True)]
        duals = {names[arc]: value * part for uses, value in worth for arc, part in uses}
        proved = partial(Lengths.of, self.topology, self.collective, shares=self.shares)
        return shortest_lengths(duals, solution.value * float(self.net.unit), proved)


def _order(entry: Bound) -> tuple[Fraction, int]:
    return entry.rate, SCOPES.index(entry.scope)


# --- the bound that every answer states -----------------------------------------------------------------

# Links up to which there is a search: where cuts in one direction are enough, where shares of trees are sought, and
# up to which two phases are held against the sums or alike nodes stand for each other. A few tenths of a second each:
# 0.04 to 0.35 s for 2,000 to 41,000 links of 64 and 256 nodes of eight machines, 1.7 for 131,000.
_CUTS, _TREES, _TWO_PHASES = 10_000, 3_000, 60_000
# The same for exchanges, and the variables of their flows.
_EXCHANGE, _FLOWS = 1_500, 25_000
# Pairs of ranks in the same node up to which flows spread over rails are known within a second.
_SPREAD = 70_000


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
        phases = [Collective(name) for name in PHASES]
        if _attains_every_cut(topology, phases[0]):
            return 1 / sum((1 / quick_bound(topology, phase).rate for phase in phases), Fraction(0)) >= rate
        with suppress(InfeasibleError):
            return len(topology.links) <= _TWO_PHASES and (both := two_phases(topology)).exact and both.rate >= rate
        return False
    if not collective.exchanges:
        return _attains_every_cut(topology, collective)
    # Flows that need no search, on ranks too many for the search.
    local = topology.ranks / max(1, topology.nodes)
    if _affordable(topology, collective) or topology.ranks * local > _SPREAD:
        return False
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
        question = _Question(topology, collective, ())
        return links <= _EXCHANGE and len(question.net.tail) * len(question.alike.first) <= _FLOWS
    alike = topology.nodes > 1 and node_group(topology) is not None
    return links <= (_TWO_PHASES if alike else _TREES if collective.name == "allreduce" else _CUTS)
