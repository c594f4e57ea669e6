"""Packed trees that attain the exact bounds, at rates that a certificate proves.

Out-trees attain the cut bound for allgather and broadcast (Edmonds 1973; switches split off: ForestColl, Zhao
et al. 2024), in-trees for reducescatter and reduce. Allreduce uses undirected spanning trees at the partition
bound on direct graphs (Blink, Wang et al. 2020, made exact by Nash-Williams and Tutte 1961), the best trees
with free roots where switches or unequal links are in the way, or reducescatter and then allgather where that
is as good; and trees that branch at relays that reduce and multicast. Gather, scatter and alltoall are flows,
cut into paths. Tokens of a dispatch or combine take a copy a node, which a node alone makes one a rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from blinksim.algorithms.blink import MOST_RANKS
from blinksim.algorithms.blinkplus import helped_trees
from blinksim.algorithms.building.branching_trees import add_paths, shared_out
from blinksim.algorithms.building.plan import LARGE, Plan, accepted_gap, in_two_phases, phases_lose
from blinksim.algorithms.building.symmetric_trees import add_host_trees, device_trees, rooted_host_trees
from blinksim.algorithms.building.token_sends import token_schedule, tree_schedule
from blinksim.algorithms.rail_aligned import exchange
from blinksim.algorithms.registry import Algorithm
from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.compute import APART, bound as find_bound
from blinksim.bounds.lengths import Lengths, more_than_forwards
from blinksim.bounds.optimum import Hop, best_trees, tightest
from blinksim.budget import Progress, check, of_trees, within
from blinksim.collective import COLLECTIVES, SHARDED, Collective
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.graphs.arrays import scattered, side_by_side
from blinksim.graphs.network import Network, network, network_orbits
from blinksim.graphs.programs import SharedCapacity, shared_capacities
from blinksim.packing import forest as forests
from blinksim.packing.choose import Limits
from blinksim.schedule.loads import Edge, Tree, rate
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    COLLECTIVES, "trees or paths packed up to the exact bound", solver=True, routes=True, traffic=True, tokens=True
)


# Sends of the equal trees that are asked for: more of them take longer than twenty seconds to write down.
_MOST_SENDS = 10_000_000
# Sends from packings of single hosts, which are made in arrays: about 4 GB.
_MOST_IN_ARRAYS = 40_000_000
# Collectives whose trees all have the same share, from the root or from every rank.
_EQUAL_TREES = ("allgather", "reducescatter", "broadcast", "reduce")
# Members up to which allreduce packs undirected trees even where reducescatter and allgather are as good.
_UNDIRECTED = 64

# Where a schedule close to the bound is accepted at once, a better one gets this long otherwise.
_PATIENCE = 60.0
# Orders of the roots that are tried where a packing takes a fraction of a second: up to so many vertices of
# all trees.
_ORDERS, _FEW = 4, 20_000

# algbw in bytes/s, and the trees that have it; and what packs them.
Packed = tuple[Fraction, list[Tree]]
Method = Callable[[], Packed]


def build(
    topology: Topology,
    collective: Collective,
    *,
    bound: BoundResult | None = None,
    trees: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    templates: bool = True,
    progress: Progress | None = None,
) -> Schedule:
    """A schedule in forest form at the best rate found.

    bound: what `blinksim.bounds.bound` gave, if known already. trees: how many equal trees per root (for
    broadcast and reduce: altogether; equal ones become one chunk) instead of as many as the best rate needs;
    not for the others. time_limit: seconds after which to give up; without one, what would take minutes is
    refused. templates: try the trees of single hosts first, which are taken if they attain the bound, and on
    very large machines if they come within 1 % of it (an exchange: 5 %). seed: changes which of several
    equally good forests is found. progress: called with the amounts done and wanted.

    Raises `InputError` for numbers below 1, and `InfeasibleError` if time runs out or would, or links are
    missing.
    """
    if trees is not None and collective.name not in _EQUAL_TREES:
        instead = ", or take algorithm=chains with channels=" if collective.name == "allreduce" else ""
        many = f"{collective.name} has as many trees as its best rate needs"
        raise InputError(f"trees={trees} is for {', '.join(_EQUAL_TREES)}: {many}. Leave trees= out{instead}")
    if trees is not None and trees < 1:
        raise InputError(f"{trees} trees per root; give 1 or more")
    most = max(1, _MOST_SENDS // ((topology.ranks - 1) * (1 if collective.rooted else topology.ranks) or 1))
    if trees is not None and trees > most:
        raise InputError(f"{trees:,} trees are too many for {topology.ranks} ranks; give at most {most:,}")
    known = bound or find_bound(topology, collective)
    if collective.routing is not None:
        found = token_schedule(topology, collective, "packed")
        if _gap(found, known):
            with suppress(InfeasibleError, InputError):  # sends or trees too many
                if topology.nodes < 2 or topology.ranks <= APART:
                    better = tree_schedule(known)
                else:
                    better = token_schedule(topology, collective, "packed", even=True)
                found = min(found, better, key=lambda one: _gap(one, known))
        return found
    schedule: Schedule | None = None
    if templates and trees is None:
        # Packings of single hosts, where the machine is a cluster of such.
        schedule = exchange(topology, collective) or from_hosts(topology, collective, known.rate)
    if schedule is None and trees is None and not seed:
        # The trees of one device and their images, where all devices are alike: the lowest ones.
        split = device_trees(topology, collective, known.rate, images=True) if topology.symmetries else []
        plan = Plan(topology, collective, "packed", "forest")
        plan.add_trees(split)
        schedule = plan.finish(rounded=True) if split else None
    gap = Fraction(1) if schedule is None else _gap(schedule, known)
    large = topology.ranks >= LARGE
    if schedule is None or gap > accepted_gap(topology, collective):
        limit = _PATIENCE if time_limit is None and large and schedule is not None else time_limit
        try:
            builder = _Builder(topology, collective, known, trees, seed, progress, limit)
            if large and trees is None and in_two_phases(topology, collective, known):
                builder.check(topology.ranks)
            exact = within(limit, "trees", builder.build, spare=False)
        except InfeasibleError:
            if schedule is None:
                raise
        else:
            if schedule is None or _gap(exact, known) < gap:
                schedule = exact
    return schedule


def _gap(schedule: Schedule, bound: BoundResult) -> Fraction:
    return 1 - (rate(schedule) or 0) / bound.rate


def from_hosts(topology: Topology, collective: Collective, aim: Fraction, by_leaf: bool = False) -> Schedule | None:
    """The schedule from packings of single hosts, where the machine is a cluster of such.

    aim: algbw, bytes/s. by_leaf: as in `add_host_trees`.
    """
    if topology.nodes < 2:
        return None
    if collective.name in ("broadcast", "reduce"):
        return rooted_host_trees(topology, collective, aim)
    sends = collective.phases * topology.ranks * (topology.ranks - 1)
    if collective.name not in SHARDED or sends > _MOST_IN_ARRAYS:
        return None
    plan = Plan(topology, collective, "packed", "forest")
    shard = aim / topology.ranks * collective.phases
    pairs = forests.pairs_of_links(topology)
    return plan.finish(rounded=True) if add_host_trees(plan, shard, pairs, by_leaf=by_leaf) else None


@dataclass
class _Builder:
    """One collective on one topology, with what all builders share."""

    topology: Topology
    collective: Collective
    bound: BoundResult
    trees: int | None
    seed: int
    progress: Progress | None
    limit: float | None

    def __post_init__(self) -> None:
        topology = self.topology
        self.net = network(topology)
        self.shared: list[SharedCapacity] = shared_capacities(topology, self.net)
        self.fixed = all(len(resource.uses) == 1 for resource in self.shared)
        self.plan = Plan(topology, self.collective, "packed", "forest")

    def check(self, roots: int) -> None:
        """Raises `InfeasibleError` if packing trees from so many roots would take minutes and has no limit."""
        if self.limit is None:
            instead = "another algorithm, such as ring or chain_tree, or give a time limit (time_limit=) and see"
            check("packing the trees", self.topology, of_trees(self.topology, roots), instead)

    def build(self) -> Schedule:
        if self.collective.personalized:
            add_paths(self.plan, self.net, self.shared, self.bound)
        else:
            methods = [self.allreduce if self.collective.name == "allreduce" else self.one_direction]
            if self.trees is None and more_than_forwards(self.topology):
                methods += [self.helped, self.branching]
                if phases_lose(self.bound):
                    methods.append(methods.pop(0))
            self.plan.add_trees(self.best(methods)[1])
        return self.plan.finish(rounded=True)

    def best(self, methods: Iterable[Method]) -> Packed:
        """What the first method packs that attains the bound, else the best; those that fail do not count."""
        found, failures = list[Packed](), list[BlinksimError]()
        for method in methods:
            try:
                found.append(method())
            except (InputError, InfeasibleError) as error:
                failures.append(error)
            if found and found[-1][0] >= self.bound.rate:
                break
        if not found:
            raise failures[0] if failures else InfeasibleError("no trees fit")
        return max(found, key=lambda packed: packed[0])

    # --- trees that branch at relays ------------------------------------------------------------------------------

    def helped(self) -> Packed:
        """Few trees through relays."""
        if self.topology.ranks > MOST_RANKS:
            raise InfeasibleError(f"trees through relays are searched for up to {MOST_RANKS} ranks")
        return helped_trees(self.topology, self.collective, Limits(seed=self.seed))

    def branching(self) -> Packed:
        """The trees of the bound, which may go towards the root otherwise than away from it."""
        guess = Lengths.like(self.bound.certificate, self.topology, self.collective)
        _, sets, _ = best_trees(self.topology, self.collective, (), guess)
        total, packed = shared_out(self.topology, self.collective, [trees for _, trees in sets])

        def edges(hops: Iterable[Hop]) -> tuple[Edge, ...]:
            return tuple((hop.start, hop.end, hop.links) for hop in hops)

        return total, [Tree(t.root, part / total, edges(t.away), edges(t.towards)) for part, t in packed]

    # --- trees in one direction ---------------------------------------------------------------------------------

    def one_direction(self) -> Packed:
        net = self.net.reversed() if self.collective.collects else self.net
        members = net.members.tolist()
        weights = {members[self.collective.root]: 1} if self.collective.rooted else dict.fromkeys(members, 1)
        forest = self._forest(net, weights)
        return forest.rate * net.unit, self._trees(forest, back=self.collective.collects)

    def _trees(self, forest: forests.Forest, *, back: bool = False) -> list[Tree]:
        """The trees with their shares, towards their roots if `back`."""
        total, limits, trees = sum(tree.amount for tree in forest.trees), self.net.limits, list[Tree]()
        for tree in forest.trees:
            edges, share = list[Edge](), Fraction(tree.amount, total)
            for a, b, path in tree.edges:
                # Arcs that stand for device capacities are no links.
                links = tuple(arc for arc in path if arc < self.net.links) if limits else path
                edges.append((a, b, links[::-1] if back else links))
            trees.append(Tree(tree.root, share, up=tuple(edges)) if back else Tree(tree.root, share, tuple(edges)))
        return trees

    def _forest(self, net: Network, weights: Mapping[int, int]) -> forests.Forest:
        """The best forest whose roots carry rates in the ratio of `weights`."""
        if self.fixed and net.passes_on():
            rate = self._cut_rate(net, weights)
            known = {value: Fraction(value) for value in set(net.capacity.tolist())}
            capacity = tuple(known[value] for value in net.capacity.tolist())
            split = forests.Split({v: rate * weight for v, weight in weights.items()}, capacity)
        else:
            best = self.bound.rate / net.unit
            if self.collective.name == "allreduce":
                best = self._cut_rate(net, weights) * sum(weights.values())
            found = forests.best_split(net, self.shared, weights, both=False, best=best)
            split = found or forests.even_split(net, self.shared, weights, both=False)
        if self.trees is not None:
            self.check(len(weights))
            shares = {vertex: Fraction(weight * self.trees) for vertex, weight in weights.items()}
            pack = partial(forests.pack_forest, net, split.capacity, seed=self.seed, progress=self.progress)
            return pack(shares, counted=True)
        return self._packed(net, split.capacity, split.rates)

    def _packed(self, net: Network, capacity: forests.Capacities, rates: Mapping[int, Fraction]) -> forests.Forest:
        self.check(sum(rate > 0 for rate in rates.values()))
        first = forests.pack_forest(net, capacity, rates, seed=self.seed, progress=self.progress)
        if self.seed or len(rates) == 1 or len(first.trees) * net.vertices > _FEW:
            return first
        # Trees are few: the one of several orders of roots that ends soonest.
        pack = partial(forests.pack_forest, net, capacity, rates, progress=self.progress)
        others = (pack(seed=seed) for seed in range(1, _ORDERS))
        return min([first, *others], key=lambda forest: forest.longest)

    def _cut_rate(self, net: Network, weights: Mapping[int, int]) -> Fraction:
        """The rate of a root of weight 1, in units of the network, by the tightest cut."""
        own = self.bound.headline
        whole = self.collective.name != "allreduce" and len(net.members) == self.topology.ranks
        if whole and own.exact and own.scope == "cut":
            return self.bound.rate / net.unit / sum(weights.values())
        weight = scattered(list(weights), list(weights.values()), net.vertices, 0)
        return tightest(net, weight, net.members[weight[net.members] < weight.sum()])[0]

    # --- allreduce ----------------------------------------------------------------------------------------------

    def allreduce(self) -> Packed:
        """The best of: undirected trees, reducescatter and allgather, trees with free roots."""
        pairs = forests.pairs_of_links(self.topology)
        methods = [self._two_phases, self._free_roots] if self.fixed else [self._free_roots]
        if phases_lose(self.bound):
            # Two phases cannot attain the target; they are the last resort.
            methods.reverse()
        if pairs and not len(self.net.forwarders) and self.topology.ranks <= _UNDIRECTED:
            methods.insert(0, partial(forests.undirected_trees, self.topology, self.net, pairs, self.progress))
        return self.best(methods)

    def _two_phases(self) -> Packed:
        """The forest of an allgather, used up and down; if links differ, a reducescatter forest for the way up."""
        weights = dict.fromkeys(self.net.members.tolist(), 1)
        down = self._forest(self.net, weights)
        if self.net.partner is not None:
            return down.rate * self.net.unit / 2, self._mirrored(down)
        up = self._forest(self.net.reversed(), weights)
        return self.net.unit / (1 / down.rate + 1 / up.rate), self._matched(down, up)

    def _mirrored(self, forest: forests.Forest) -> list[Tree]:
        """Every tree up and down, up over the partners of its arcs."""
        assert self.net.partner is not None
        partner = self.net.partner.tolist()
        return [
            replace(tree, up=tuple((a, b, tuple(partner[arc] for arc in reversed(path))) for a, b, path in tree.down))
            for tree in self._trees(forest)
        ]

    def _matched(self, down: forests.Forest, up: forests.Forest) -> list[Tree]:
        """In-trees and out-trees of the same roots side by side, cut where either ends."""
        rows = defaultdict[int, tuple[list[tuple[int, Fraction]], ...]](lambda: ([], []))
        out, into = self._trees(down), self._trees(up, back=True)[::-1]
        for side, trees in enumerate((out, into)):
            for number, tree in enumerate(trees):
                rows[tree.root][side].append((number, tree.share))
        matched = sorted((a, b, share) for both in rows.values() for (a, b), share in side_by_side(both))
        return [Tree(out[a].root, share, out[a].down, into[b].up) for a, b, share in matched]

    def _free_roots(self) -> Packed:
        """Trees with the best shares for their roots, from a linear program; equal shares if it is too large."""
        net = self.net
        best, alike = self.bound.rate / net.unit, network_orbits(self.topology, net)
        split = forests.best_split(net, self.shared, None, both=True, best=best, orbits=alike)
        weights = dict.fromkeys(net.members.tolist(), 1)
        split = split or forests.even_split(net, self.shared, weights, both=True)
        down = self._packed(net, split.capacity, split.rates)
        rate = split.rate * net.unit
        if split.back is None:
            return rate, self._mirrored(down)
        return rate, self._matched(down, self._packed(net.reversed(), split.back, split.rates))
