"""The tightest cuts, partitions and link lengths: by minimum cuts, and by linear programs.

Allgather and broadcast send along out-trees, reducescatter and reduce along in-trees, which are out-trees of
the transposed network; allreduce along both, with the same roots. Alltoall, scatter and gather are a maximum
concurrent flow. `blinksim.graphs.programs` has both programs. Duals rounded to fractions are still valid
lengths, so the bound recomputed from them is exact however the solver rounds (Neumaier and Shcherbina 2004,
safe bounds in linear programming).

Where switches multicast and reduce, trees branch in them. That program has a variable for every set of trees
that moves an element (into a root and out of it) and a row for every link; its dual has a length for every
link and a row for every set. The sets that count are found as they are needed, each the least by the lengths
so far (column generation: Gilmore and Gomory 1961; Steiner trees: Jain, Mahdian and Salavatipour 2003).

The tightest cut and partition are found exactly. Cut: the capacity out of a set of devices over the data that
must leave it. Discrete Newton (Dinkelbach 1967) over minimum cuts: at the present ratio x, connect a source
to every vertex with x times its weight; a sink that cannot receive all of it shows a set with a smaller
ratio. All ratios are quotients of whole numbers, and the last set is the witness. For trees the bound is
attained (Edmonds 1973).

Partition: the least capacity between k parts, each with a member, over k-1. An undirected graph packs
spanning trees at the rate min c(P)/(|P|-1) (Nash-Williams 1961; Tutte 1961), found by discrete Newton over
partitions, each step a greedy of minimum cuts (Cunningham 1985, optimal attack and reinforcement of a
network). Devices without a rank may join any part: the bound is valid for every choice, and the best choice
found is given (the best of all is as hard as a multiway cut).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache, partial
from heapq import heapify, heappop, heappush
from itertools import pairwise, product
from typing import Protocol, TypeVar

import numpy as np

from blinksim.bounds.lengths import SUMS, Lengths, Metric, branching, interchangeable, root_lengths, token_sets
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs import programs
from blinksim.graphs.arrays import Bools, Floats, Ints, by_place, distinct
from blinksim.graphs.connectivity import grouped, summed
from blinksim.graphs.network import Flow, Network, NetworkOrbits, guard, network, network_orbits, single_orbits, whole
from blinksim.graphs.programs import DENOMINATORS, MOST_FLOWS, Program
from blinksim.graphs.rooted_trees import cheapest_parents, from_parents
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import orbits as device_orbits, with_name_rotations
from blinksim.traffic import Traffic

# Lengths need no common denominator with anything else, so long fractions may be tried last.
_DENOMINATORS = (*DENOMINATORS, 10**5, 10**7)


class _Proof(Protocol):
    @property
    def rate(self) -> Fraction: ...


Proof = TypeVar("Proof", bound=_Proof)


def best_flows(
    net: Network,
    collective: Collective,
    shared: Sequence[programs.SharedCapacity],
    orbits: NetworkOrbits,
    shares: Sequence[int] = (),
) -> programs.Solution | None:
    """The greatest algbw of alltoall, scatter or gather in units of `net`, with link lengths; None if too large.

    shares: weights of the ranks' blocks (scatter and gather; default: equal). orbits: equivalent arcs and
    ranks (for alltoall).
    """
    members, traffic, directed = net.members.tolist(), collective.traffic, net
    weights = dict(zip(members, shares or [1] * len(members), strict=True))
    plain = not collective.rooted and traffic is None
    if collective.rooted:
        # A gather is a scatter in the reversed network.
        directed = net.reversed() if collective.collects else net
        rows = [programs.Commodity(members[collective.root], weights)]
    elif len(net.tail) * (len(orbits.first) if traffic is None else traffic.ranks) > MOST_FLOWS:
        return None
    else:
        # Traffic tells ranks apart that the machine does not.
        alike = [programs.Commodity(source, weights) for source in orbits.first]
        rows = alike if traffic is None else commodities(net, traffic)
    solution = programs.solve_flows(directed, shared, rows, orbits=orbits if plain else None)
    total = sum(weights.values()) if traffic is None else traffic.size
    return replace(solution, value=solution.value * total)


def commodities(net: Network, traffic: Traffic) -> list[programs.Commodity]:
    """What every rank sends to the others, in bytes; without the ranks that send nothing."""
    members, apart = net.members.tolist(), traffic.matrix - np.diag(np.diag(traffic.matrix))
    sent = (zip(members, amounts, strict=True) for amounts in apart.tolist())
    weights = ({vertex: amount for vertex, amount in row if amount} for row in sent)
    return [programs.Commodity(source, row) for source, row in zip(members, weights, strict=True) if row]


def shortest_lengths(
    values: Mapping[str, float], target: float, proved: Callable[[dict[str, Fraction]], Proof]
) -> tuple[Proof, bool] | None:
    """The tightest lengths from duals rounded to short fractions, and whether they prove the program's value.

    target: that value, bytes/s. proved: what lengths prove, or an `InputError`. None if no rounding proves
    anything.
    """
    largest = max(values.values(), default=0.0)
    if largest <= 0:
        return None
    # Scaled to the smallest length, or to the largest, the lengths of a vertex are short fractions.
    smallest = min(value for value in values.values() if value > 1e-7 * largest)
    best: Proof | None = None
    tried: list[dict[str, Fraction]] = []
    used = {name: value for name, value in values.items() if value > 1e-9 * largest}
    for scale, denominator in product((smallest, largest), _DENOMINATORS):
        rounded = {name: Fraction(value / scale).limit_denominator(denominator) for name, value in used.items()}
        if rounded in tried:
            continue
        tried.append(rounded)
        with suppress(InputError):
            proof = proved(rounded)
            best = proof if best is None or proof.rate < best.rate else best
        if best is not None and programs.agree(best.rate, target):
            return best, True
    return (best, False) if best else None


# Programs whose trees are cached in the process.
_CACHED = 16
# Sets of trees that are tried, ranks up to which they are (on several hosts fewer), and units of the greatest
# length.
_MOST_SETS = 400
_MOST_RANKS, _MOST_RANKS_OF_HOSTS = 256, 128
# Ranks on several hosts from which on few sets are tried.
_FEW_RANKS, _FEW_SETS = 64, 6
_UNITS = 2**40
# As in `certificates.branching`: for one of many trees, and for all of them.
_MOST_WORK, _MOST_WORK_IN_ALL = 10**6, 4 * 10**6
# The sorts of hops.
PATH, OWN, OUT = range(3)


@dataclass(frozen=True, slots=True)
class Hop:
    """An edge of a tree, away from the root: from a device to another one over links.

    sort: `PATH`, over any devices that forward; `OWN`, from the owner of the work of a switch to that switch,
    with the owner's own copy; `OUT`, from such a switch. In a tree towards the root, the links lead from
    `end` to `start`.
    """

    sort: int
    start: int
    end: int
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BranchingTrees:
    """What a part of the data does: a root, and the hops of a tree away from it and of one towards it, root first."""

    root: int
    part: Fraction = field(compare=False)
    away: tuple[Hop, ...]
    towards: tuple[Hop, ...]

    def sums(self, topology: Topology) -> list[int]:
        """The switches that add: those where hops towards the root meet, and those that read for another device."""
        joined = Counter(hop.start for hop in self.towards)
        devices = topology.devices
        reading = [hop.end for hop in self.towards if hop.sort != PATH and devices[hop.end].reads]
        return [*reading, *(v for v, hops in joined.items() if hops > 1 and "reduce" in devices[v].in_network)]


@dataclass(frozen=True)
class TreeSet:
    """How an element moves: the trees of every rank that holds a part of the data, or of the one root chosen.

    links: how often each link is used, in sizes of the vector, own copies included. sums: how much each
    switch adds. hops: of tokens, from rank to rank, by the rank that has them and the bits of those that want
    them.
    """

    links: Mapping[int, Fraction]
    sums: Mapping[int, Fraction]
    trees: tuple[BranchingTrees, ...]
    hops: Callable[[int, int], Sequence[tuple[int, int]]] | None = None


def best_bound(
    topology: Topology,
    collective: Collective,
    shares: Sequence[int],
    guess: Lengths | None,
    grants: Sequence[str] = (),
    least: Fraction = Fraction(0),
    within: frozenset[str] = frozenset(),
) -> tuple[Lengths, bool] | None:
    """The tightest lengths found for trees that branch, and if schedules attain them; None without any.

    grants: what switches do beside forwarding; relays do what they can. guess, grants, within: as in
    `best_trees`. least: a rate that schedules attain anyway; lengths of that rate are not improved on.
    """
    if guess is not None and guess.rate <= least:
        return guess, True
    try:
        lengths, _, exact = best_trees(topology, collective, shares, guess, grants, within)
    except (InputError, InfeasibleError):
        # Too many switches differ, or the solver gave up; obvious lengths stand, as an upper bound.
        return (guess, False) if guess else None
    # Of equal rates, the lengths that are all alike say more.
    return (guess, exact) if guess and guess.rate <= lengths.rate else (lengths, exact)


# A schedule is built of the trees that its bound has found.
@lru_cache(maxsize=_CACHED)
def best_trees(
    topology: Topology,
    collective: Collective,
    shares: Sequence[int] = (),
    guess: Lengths | None = None,
    grants: Sequence[str] = (),
    within: frozenset[str] = frozenset(),
) -> tuple[Lengths, list[tuple[float, TreeSet]], bool]:
    """Lengths that no schedule beats, the trees that attain their rate, with their bytes/s, and if they do.

    guess: lengths that may be the best, which saves the search once trees attain them. grants: what switches
    do beside forwarding, of what they can. within: devices; only their links limit anything. Default: all. A
    dispatch or combine has a tree for all tokens that go alike, and `TreeSet.trees` is empty. Raises
    `InputError` where too many switches or relays differ, and
    `InfeasibleError` if the solver finds no optimum.
    """
    hosts = {topology.device(name).node for name in topology.members}
    if not within and topology.ranks > (_MOST_RANKS if len(hosts) == 1 else _MOST_RANKS_OF_HOSTS):
        raise InfeasibleError(f"the best trees that branch in switches are not sought on {topology.ranks} ranks")
    # One step costs half a second there; where the first ones do not attain a guess, hundreds would not soon.
    most_sets = _FEW_SETS if not within and len(hosts) > 1 and topology.ranks > _FEW_RANKS else _MOST_SETS
    net, plain = network(topology), not collective.rooted and not shares and collective.data is None
    # Where one set stands for its images under symmetries, its loads are those of orbits.
    part = with_name_rotations(topology) if plain else topology
    capacities = _Capacities(part, net, plain, within)
    scale = float(net.capacity.max())
    # The dual: lengths of least price at which every set has a length of 1.
    program = Program()
    variables = program.variables(len(capacities.cost))
    objective = [(variable, -cost / scale) for variable, cost in zip(variables, capacities.cost, strict=True)]
    lengths = scale / np.array(capacities.cost) if guess is None else capacities.lengths_like(guess)
    sets, spent, value, whole = list[TreeSet](), 0, 0.0, False
    while not whole and most_sets:
        most_sets -= 1
        added, work = least_trees(part, collective, capacities.by_name(lengths), shares, grants, capacities.first)
        spent += work
        if spent > _MOST_WORK_IN_ALL:
            raise InfeasibleError("the best trees that branch in switches take too long to find")
        loads = [capacities.loads(trees) for trees in added]
        # Sets no shorter than 1 change nothing: the lengths are the best.
        whole = bool(sets) and min(float(used @ lengths) for used in loads) >= 1 - 1e-9
        if not whole:
            sets += added
            for used in loads:
                terms = [(variable, load) for variable, load in zip(variables, used.tolist(), strict=True) if load]
                program.row(terms, at_least=1.0, at_most=np.inf)
            value = -program.solve(objective) * scale * float(net.unit)
            lengths = np.maximum(program.values, 0)
            whole = guess is not None and programs.agree(guess.rate, value)
    duals = (-program.duals * scale * float(net.unit)).tolist()
    chosen = [(amount, trees) for amount, trees in zip(duals, sets, strict=True) if amount > 1e-12 * value]
    if guess is not None and programs.agree(guess.rate, value):
        return guess, chosen, whole
    proved = partial(Lengths.of, part, collective, shares=shares, grants=grants)
    proof = shortest_lengths(capacities.by_name(lengths), value, proved)
    if proof is None:
        raise InfeasibleError("no lengths of links prove a bound where trees branch")
    return proof[0], chosen, whole and proof[1]


class _Capacities:
    """What trees use up: links, capacities of devices and adders, in groups of those that symmetries make alike.

    cost: the capacity of each group, all of it. first: for every device the first one that symmetries map
    onto it.
    """

    def __init__(self, topology: Topology, net: Network, plain: bool, within: frozenset[str]) -> None:
        self.topology = topology
        self.names, shared, adders = programs.with_adders(topology, net)
        beside = {link.name for link in topology.links if not within.isdisjoint((link.src, link.dst))}
        self._place = {name: arc for arc, name in enumerate(self.names)}
        if plain:
            orbits, alike = network_orbits(topology, net), device_orbits(topology)
        else:
            orbits, alike = single_orbits(net), tuple((device,) for device in range(len(topology.devices)))
        self.first = {device: group[0] for group in alike for device in group}
        orbit = [*orbits.arc.tolist(), *(-1 - self.first[device] for device in adders.values())]
        numbers: dict[tuple[int, ...], int] = {}
        leading = dict[int, list[int]]()
        self._group, self._part = np.zeros(len(self.names), dtype=np.int64), np.zeros(len(self.names))
        every = list[tuple[int, float]]()
        for capacity in shared:
            arcs = [arc for arc, _ in capacity.uses]
            if within and beside.isdisjoint(self.names[arc] for arc in arcs):
                continue
            number = numbers.setdefault(tuple(sorted(orbit[arc] for arc in arcs)), len(numbers))
            leading.setdefault(number, arcs)
            every.append((number, float(capacity.capacity)))
            self._group[arcs], self._part[arcs] = number, [part for _, part in capacity.uses]
        self._leading = [*leading.values()]
        own, count = dict(reversed(every)), Counter(number for number, _ in every)
        self.cost = [own[number] * count[number] for number in range(len(numbers))]

    def lengths_like(self, guess: Lengths) -> Floats:
        """Those of each group as in a guess, all others small, not 0, so that first trees make no detour."""
        known = dict(guess.lengths)
        most = float(max(known.values()))
        own = (max(float(known.get(self.names[arc], 0)) for arc in arcs) / most for arcs in self._leading)
        return np.array([max(length, 1e-3) for length in own])

    def by_name(self, lengths: Floats) -> dict[str, float]:
        """Of all that limit anything."""
        named = zip(self.names, (lengths[self._group] * self._part).tolist(), self._part, strict=True)
        return {name: length for name, length, part in named if part}

    def loads(self, trees: TreeSet) -> Floats:
        """How much of each group these trees take."""
        used = np.zeros(len(self.names))
        for number, times in trees.links.items():
            link = self.topology.links[number]
            used[number] += float(times)
            for name in (f"{link.src} out", f"{link.dst} in"):
                if name in self._place:
                    used[self._place[name]] += float(times)
        for device, times in trees.sums.items():
            used[self._place[f"{self.topology.devices[device].name} {SUMS}"]] += float(times)
        return np.asarray(np.bincount(self._group, used * self._part, len(self.cost)), dtype=np.float64)


def least_trees(
    topology: Topology,
    collective: Collective,
    lengths: Mapping[str, float],
    shares: Sequence[int],
    grants: Sequence[str],
    first: Mapping[int, int],
) -> tuple[list[TreeSet], int]:
    """The trees of least length, for an allreduce of every root that is as good, and the work to find them.

    first: for every device the one whose tree stands for its own, as symmetries map them onto each other. Of
    several sets, one with few links.
    """
    names = ((link.name, f"{link.src} out", f"{link.dst} in") for link in topology.links)
    far = [sum(lengths.get(name, 0.0) for name in each) for each in names]
    adding = ((place, one) for place, one in enumerate(topology.devices) if one.reduction_rate is not None)
    adders = {place: lengths.get(f"{one.name} {SUMS}", 0.0) for place, one in adding}
    most = max(*far, *adders.values()) or 1.0
    # Links that limit have some length, so that devices stay apart, and no tree makes a detour for nothing.
    limits = [link.name in lengths for link in topology.links]
    whole = [(int(x / most * _UNITS) + 1024) * limit for x, limit in zip(far, limits, strict=True)]
    sums = {place: int(length / most * _UNITS) for place, length in adders.items()}
    trees = _Trees(topology, whole, grants, sums)
    points = trees.sides[0].points

    def moved(v: int, part: Fraction = Fraction(1)) -> BranchingTrees:
        away = trees.tree(0, v) if collective.ends == EVERY else ()
        return BranchingTrees(points[v], part, away, trees.tree(1, v) if collective.starts == EVERY else ())

    if collective.routing is not None:
        side = trees.sides[collective.collects]
        tokens = token_sets(topology, collective, trees.metric, side)
        size = Fraction(collective.routing.token_size, collective.routing.size)
        used = defaultdict[int, Fraction](Fraction)
        for (a, b), many in side.carried(tokens).items():
            for x, y in pairwise(trees.paths(collective.collects, side.points[a])[side.points[b]]):
                used[trees.links[(y, x) if collective.collects else (x, y)]] += size * many
        return [TreeSet(used, {}, (), partial(trees.hops, collective.collects))], side.spent
    if collective.name == "allreduce":
        # Any root will do, so lengths that are alike suffice; machines need not be.
        leader = interchangeable(topology, whole, sums)
        tried = [*dict.fromkeys(trees.place[device] for device in leader if device in trees.place)]
        both_lengths = list(root_lengths(*trees.sides, tried))
        best = min(both for _, both in both_lengths)
        kinds = {tuple(side.alike[root] for side in trees.sides) for root, both in both_lengths if both == best}
        roots = [v for v in tried if tuple(side.alike[v] for side in trees.sides) in kinds]
        sets = [_tree_set(topology, [moved(v)]) for v in roots]
    else:
        held = [int(rank == collective.root) for rank in range(topology.ranks)] if collective.rooted else list(shares)
        weights = held or [1] * topology.ranks
        points_of = (trees.place[first[device]] for device in topology.member_places.tolist())
        parts = summed(zip(points_of, weights, strict=True))
        each = [moved(v, Fraction(weight, sum(weights))) for v, weight in parts.items() if weight]
        sets = [_tree_set(topology, each)]
    return sets, sum(side.spent for side in trees.sides)


def _tree_set(topology: Topology, trees: list[BranchingTrees]) -> TreeSet:
    hops = ((tree.part, hop) for tree in trees for hop in (*tree.away, *tree.towards))
    limited = {place for place, device in enumerate(topology.devices) if device.reduction_rate is not None}
    adders = ((switch, tree.part) for tree in trees for switch in tree.sums(topology) if switch in limited)
    return TreeSet(summed((link, part) for part, hop in hops for link in hop.links), summed(adders), tuple(trees))


class _Trees:
    """Least trees as links, for links that all have a length: out-trees (side 0) and in-trees (side 1)."""

    def __init__(
        self, topology: Topology, whole: Sequence[int], grants: Sequence[str], sums: Mapping[int, int]
    ) -> None:
        import networkx as nx

        self.metric = Metric(topology, whole)
        self.sides = branching(topology, self.metric, grants, sums, _MOST_WORK)
        self.place = {device: number for number, device in enumerate(self.sides[0].points)}
        ends = zip(*(side.tolist() for side in topology.ends), strict=True)
        alike: dict[tuple[int, int], list[int]] = grouped((pair, link) for link, pair in enumerate(ends))
        self.links = {pair: min(links, key=whole.__getitem__) for pair, links in alike.items()}
        self._edges: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._graphs: tuple[nx.DiGraph[int], nx.DiGraph[int]] = nx.DiGraph(), nx.DiGraph()
        for (a, b), number in self.links.items():
            self._graphs[0].add_edge(a, b, weight=whole[number])
            self._graphs[1].add_edge(b, a, weight=whole[number])
        self.paths = cache(lambda inward, a: nx.single_source_dijkstra_path(self._graphs[inward], a))

    def hops(self, inward: int, root: int, ranks: int) -> tuple[tuple[int, int], ...]:
        """From rank to rank the least tree from one to a set of them, as bits, where each is a point."""
        side, parents, stack = self.sides[inward], dict[int, int](), [(root, ranks)]
        rank = {device: number for number, device in enumerate(side.points[: side.ranks])}
        while stack:
            v, those = stack.pop()
            u = side.fork(those, v)
            passed = [rank[x] for x in self.paths(inward, side.points[v])[side.points[u]] if x in rank]
            parents |= {b: a for a, b in pairwise(passed)}
            stack += [(u, part) for part in side.parted(those, u)]
        return from_parents(parents, root)

    def tree(self, inward: int, root: int) -> tuple[Hop, ...]:
        """The hops of the least tree from a point (inward: to it)."""
        side = self.sides[inward]
        leader = side.alike[root]
        if (inward, leader) not in self._edges:
            _, choice = side.least(leader)
            rows, _, at = side.matrix(choice, leader)
            vertices, points = side.vertices(choice, leader), len(rows) - len(choice.switches)
            parents = cheapest_parents(np.array(rows), at)
            self._edges[inward, leader] = [
                (PATH if max(i, j) < points else OWN if i < points else OUT, vertices[i], vertices[j])
                for i, j in from_parents({j: i for j, i in enumerate(parents) if j != at}, at)
            ]
        # A root that is like another has its tree, with both in each other's place.
        swapped = {side.points[leader]: side.points[root], side.points[root]: side.points[leader]}
        hops = []
        for sort, *ends in self._edges[inward, leader]:
            a, b = (swapped.get(end, end) for end in ends)
            # Where the owner begins, its own copy passes as well.
            steps = list(pairwise(self.paths(inward, a)[b])) if sort == PATH else [(a, b)]
            steps += [(b, a)] if sort == OWN else []
            links = [self.links[(y, x) if inward else (x, y)] for x, y in steps]
            # A path to the root is walked from its other end.
            hops.append(Hop(sort, a, b, tuple(reversed(links) if inward and sort == PATH else links)))
        return tuple(hops)


# --- cuts and partitions -------------------------------------------------------------------------------


class _Pieces:
    """The arcs of each host with those that join it to the fabric: small pieces in which most sinks can be served."""

    def __init__(self, net: Network) -> None:
        a, b = net.host[net.tail], net.host[net.head]
        own = np.where(a == b, a, np.where(a < 0, b, np.where(b < 0, a, -2)))
        self._parts: list[dict[int, Ints]] = []
        for key in (net.host, own):
            order = np.argsort(key, kind="stable")
            values, starts = np.unique(key[order], return_index=True)
            self._parts.append(dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True)))
        self._local = np.zeros(net.vertices, dtype=np.int64)
        self.useful = len(self._parts[0]) > 3

    def of(self, hosts: Sequence[int]) -> tuple[Ints, Ints, Ints]:
        """(vertices, arcs, place of every vertex among them) of some hosts and the fabric."""
        which, none = dict.fromkeys((*hosts, -1)), np.zeros(0, dtype=np.int64)
        vertices, arcs = (np.concatenate([part.get(host, none) for host in which]) for part in self._parts)
        self._local[vertices] = np.arange(len(vertices))
        return vertices, arcs, self._local


def tightest(net: Network, weight: Ints, sinks: Ints, orbits: Sequence[Ints] = ()) -> tuple[Fraction, Bools]:
    """The least capacity-over-weight ratio of all sets that lack a sink, in units of `net`, and such a set of vertices.

    weight: whole number per vertex, what a set that holds the vertex must send. sinks: vertices that all must
    receive. orbits: groups of equivalent sinks; one of each group is checked. Raises `InfeasibleError` if
    some sink cannot be reached. Flows: one per sink or orbit, most of them on a small piece, and one per
    improvement.
    """
    everything, total = int(net.capacity.sum()), int(weight.sum())
    leaving, entering = (by_place(np.add, ends, net.capacity, net.vertices) for ends in (net.tail, net.head))
    # It begins with the best of the cuts around one sink.
    rest = total - weight[sinks]
    first = int(np.argmin(entering[sinks] / rest))
    ratio, side = Fraction(int(entering[sinks][first]), int(rest[first])), np.arange(net.vertices) != sinks[first]
    # Sinks that receive all at the present ratio.
    served, pieces, reference = np.zeros(net.vertices, dtype=bool), _Pieces(net), -1

    def flow_into(sink: int, piece: tuple[Ints, Ints, Ints] | None = None) -> Flow:
        """The flow into `sink` at the present ratio, in the whole network or in a piece of it."""
        p, q = ratio.numerator, ratio.denominator
        guard(2 * q * everything + p * total)
        tail, head, capacity, vertices = net.tail, net.head, net.capacity, np.arange(net.vertices)
        if piece is not None:
            vertices, arcs, place = piece
            tail, head, capacity, sink = place[tail[arcs]], place[head[arcs]], capacity[arcs], int(place[sink])
        # A served vertex may send any amount: no cut with it on the far side can be violated any more.
        supply = np.where(served[vertices], leaving[vertices] * q, weight[vertices] * p)
        sources, count = np.flatnonzero(supply), len(vertices)
        tail, head = np.concatenate([np.full(len(sources), count), tail]), np.concatenate([sources, head])
        return Flow(count + 1, tail, head, np.concatenate([supply[sources], capacity * q]), count, sink)

    groups = {int(group[0]): group for group in orbits} or {sink: np.array([sink]) for sink in sinks.tolist()}
    for sink, group in sorted(groups.items(), key=lambda entry: int(net.host[entry[0]])):
        own = int(net.host[sink])
        # Serving a host from its predecessor keeps the pieces small; within a host, from itself.
        piece = pieces.of((own, reference)) if ratio and pieces.useful and len(groups) > 1 else None
        short = piece is None or flow_into(sink, piece).value < ratio.numerator * total
        # Lower the ratio until the sink can receive everything.
        while short and ratio:
            flow = flow_into(sink)
            if short := flow.value < ratio.numerator * total:
                side = flow.side()[:-1] | served
                crossing = side[net.tail] & ~side[net.head]
                ratio = Fraction(int(net.capacity[crossing].sum()), int(weight[side].sum()))
        if not ratio:
            raise InfeasibleError("the links do not reach every member")
        served[group] = True
        reference = own
    return ratio, side


# Choices of a part for the devices without a rank that are all tried.
_ENUMERATE = 64
# Members up to which the exact search over partitions is affordable (flows grow as their number squared).
_SOLVE = 256


def undirected(topology: Topology) -> tuple[Ints, Ints, Ints, Fraction]:
    """(one end, other end, capacity, unit) per joined pair of devices: both directions together, a shared bus once."""
    index = topology.index
    buses: dict[str, tuple[int, int, Fraction]] = {}
    pairs: list[tuple[int, int, Fraction, int]] = []
    for link in topology.links:
        a, b = sorted((index[link.src], index[link.dst]))
        if link.bus is None:
            pairs.append((a, b, link.lane_bandwidth, link.lanes))
        else:
            buses[link.bus] = (a, b, max(buses.get(link.bus, (a, b, Fraction(0)))[2], link.bandwidth))
    pairs += [(a, b, rate, 1) for a, b, rate in buses.values()]
    values, unit = whole([(rate, count) for _, _, rate, count in pairs])
    joined = summed(((a, b), value) for (a, b, _, _), value in zip(pairs, values, strict=True))
    ends = np.array(list(joined), dtype=np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1], np.array(list(joined.values()), dtype=np.int64), unit


def strength(count: int, a: Ints, b: Ints, capacity: Ints) -> tuple[Fraction, Ints]:
    """min over partitions P of vertices 0 … count-1 of c(P)/(|P|-1), and the number of each vertex's part.

    The graph is undirected: edges a-b of whole capacities. Flows: count-1 per Newton step.
    """
    part = np.arange(count, dtype=np.int64)
    ratio = Fraction(int(capacity[a != b].sum()), count - 1)
    degree = by_place(np.add, a, capacity, count) + by_place(np.add, b, capacity, count)
    least = int(degree.argmin())
    around = Fraction(int(degree[least]))
    if around < ratio:
        ratio, part = around, (np.arange(count) != least).astype(np.int64)
    while True:
        found = _attack(count, a, b, capacity, ratio)
        parts = int(found.max()) + 1
        if parts < 2:
            return ratio, part
        value = Fraction(int(capacity[found[a] != found[b]].sum()), parts - 1)
        if value >= ratio:
            return ratio, part
        ratio, part = value, found


def _attack(count: int, a: Ints, b: Ints, capacity: Ints, ratio: Fraction) -> Ints:
    """A partition P that minimises c(P) - ratio (|P|-1), as the number of each vertex's part.

    Greedy for the polymatroid below f(S) = c(S, rest)/2 - ratio: each vertex takes as much as the sets of the
    vertices before it allow, found as one cut; intersecting tight sets merge into the parts (Frank and Tardos
    1988).
    """
    p, q = ratio.numerator, ratio.denominator
    scaled = capacity * q
    guard(4 * (int(capacity.sum()) * q + count * p))
    # Everything is doubled: f(S) = c(S, rest) - 2 ratio.
    taken = np.zeros(count, dtype=np.int64)
    parts: list[set[int]] = []
    sink = count
    for vertex in range(count):
        # Vertices not reached yet stay outside: they are the sink.
        tail, head = np.where(a <= vertex, a, sink), np.where(b <= vertex, b, sink)
        real = tail != head
        tail, head, weight = tail[real], head[real], scaled[real]
        reward, fee = np.maximum(taken[:vertex], 0), np.maximum(-taken[:vertex], 0)
        kept, paid = np.flatnonzero(reward), np.flatnonzero(fee)
        starts = np.concatenate([tail, head, np.full(len(kept), vertex), paid])
        ends = np.concatenate([head, tail, kept, np.full(len(paid), sink)])
        room = np.concatenate([weight, weight, reward[kept], fee[paid]])
        flow = Flow(count + 1, starts, ends, room, vertex, sink)
        taken[vertex] = flow.value - int(reward.sum()) - 2 * p
        tight = set(np.flatnonzero(flow.side()[:count]).tolist())
        met = [other for other in parts if other & tight]
        parts = [*(other for other in parts if not other & tight), tight.union(*met)]
    label = np.zeros(count, dtype=np.int64)
    for number, group in enumerate(parts):
        label[list(group)] = number
    return label


class _Places:
    """The search for the parts that devices without a rank join; a `home` gives each of them a member's part."""

    def __init__(self, topology: Topology) -> None:
        self.a, self.b, self.capacity, _ = undirected(topology)
        self.count = len(topology.devices)
        self.members = topology.member_places.tolist()
        self.others = sorted(set(range(self.count)) - set(self.members))
        self._rank = {vertex: number for number, vertex in enumerate(self.members)}
        pairs = zip(self.a.tolist(), self.b.tolist(), self.capacity.tolist(), strict=True)
        self._joined = grouped(one for a, b, capacity in pairs for one in ((a, (b, capacity)), (b, (a, capacity))))

    def solve(self, home: dict[int, int]) -> tuple[Fraction, Ints]:
        """The least ratio with every other device at its `home`, and each device's part."""
        to = np.array([self._rank[home.get(vertex, vertex)] for vertex in range(self.count)], dtype=np.int64)
        real = to[self.a] != to[self.b]
        ratio, part = strength(len(self.members), to[self.a][real], to[self.b][real], self.capacity[real])
        return ratio, part[to]

    def ratio(self, part: Ints) -> Fraction:
        """c(P)/(|P|-1) of the partition that gives every device a number."""
        return Fraction(int(self.capacity[part[self.a] != part[self.b]].sum()), len(distinct(part)) - 1)

    def first(self) -> dict[int, int]:
        """Each other device with the member that it is joined to by the widest way (Prim 1957)."""
        home: dict[int, int] = {}
        # (minus capacity, vertex, member): the widest way first.
        queue = [(-(2**62), vertex, vertex) for vertex in self.members]
        heapify(queue)
        while queue:
            _, vertex, member = heappop(queue)
            if vertex not in home:
                home[vertex] = member
                for other, capacity in self._joined.get(vertex, ()):
                    if other not in home:
                        heappush(queue, (-capacity, other, member))
        return {vertex: home.get(vertex, self.members[0]) for vertex in self.others}

    def descend(self, home: dict[int, int], rounds: int = 4) -> tuple[Fraction, Ints]:
        """From `home`, move devices to the part that they are joined to most, as long as the ratio falls."""
        ratio, part = self.solve(home)
        for _ in range(rounds):
            label = part.copy()
            anchor = {int(label[vertex]): vertex for vertex in self.members}
            for vertex in self.others:
                pull = summed((int(label[other]), capacity) for other, capacity in self._joined.get(vertex, ()))
                best = max(pull, key=lambda number: pull[number], default=int(label[vertex]))
                if pull.get(best, 0) > pull.get(int(label[vertex]), 0):
                    label[vertex] = best
            lower, found = self.solve({vertex: anchor[int(label[vertex])] for vertex in self.others})
            if lower >= ratio:
                break
            ratio, part = lower, found
        return ratio, part


def best_partition(topology: Topology) -> tuple[list[list[str]], bool]:
    """The parts (of device names) with the least capacity over k-1, and true if no partition can have less.

    Exact without devices that hold no rank, and where all their places can be tried; otherwise the best found
    by moving them, one by one, to the part they are joined to most. Device capacities are ignored.
    """
    places = _Places(topology)
    if exact := len(places.members) ** len(places.others) <= _ENUMERATE:
        homes = product(places.members, repeat=len(places.others))
        options = [places.solve(dict(zip(places.others, home, strict=True))) for home in homes]
    else:
        options = [places.descend(places.first())] if len(places.members) <= _SOLVE else []
        # Every member apart, and every host apart (the fabric with the first).
        home, hosts = places.first(), topology.device_nodes.copy()
        held = hosts[places.members]
        hosts[~np.isin(hosts, held)] = held[0]
        single = np.array([home.get(vertex, vertex) for vertex in range(places.count)], dtype=np.int64)
        options += [(places.ratio(part), part) for part in (single, hosts) if len(distinct(part)) > 1]
    _, part = min(options, key=lambda entry: entry[0])
    names = (device.name for device in topology.devices)
    return list(grouped(zip(part.tolist(), names, strict=True)).values()), exact
