"""Link lengths as certificates of a bound: every schedule uses at least a certain length per byte.

Linear-programming duality (shortest paths for alltoall: Shahrokhi and Matula 1990; least-cost arborescences
for trees: Edmonds 1967, Chu and Liu 1965): give every link a length; carrying one byte of every rank's result
costs at least `distance` of length, and the machine offers `price` (sum of capacity times length) per second.
Any lengths give a valid bound; it is checked in whole numbers: shortest distances by Dijkstra (1959), least
spanning trees where distances are the same both ways, least-cost out-trees elsewhere. Only the standard
library is needed for small machines, as a check of a certificate must be.

A switch that multicasts, or reduces in flight, and a relay that does, may be a vertex of a tree or not
(Steiner arborescences: Hakimi 1971). So may one that reduces into readers: the GPU before it in the tree owns
its operation, enters at its own port, and its own copy passes that port once more. All choices of such
switches are tried, each as a least arborescence; of alike switches only the number matters, and a switch that
reaches every GPU on it at the least length is in every choice. One owner for a whole part suffices: of two
operations on one switch, the later can take in the copies of the earlier, which saves what the earlier hands
to its owner and reads there. Among few ranks, the least trees to all sets of ranks are less work than all
choices (Dreyfus and Wagner 1971).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import combinations, islice
from math import lcm, prod
from operator import add, mul
from typing import Any

from blinksim.bounds.certificates import Certificate, Cut, Partition, check_shares
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.graphs.connectivity import grouped, joined, summed
from blinksim.results import keyed
from blinksim.topology.elements import BRANCHING
from blinksim.topology.graph import Topology
from blinksim.units import format_rate

Matrix = list[list[int]]


def least_use(
    topology: Topology,
    collective: Collective,
    lengths: Mapping[str, Fraction],
    shares: Sequence[int] = (),
    grants: Sequence[str] = (),
    most_work: int | None = None,
) -> Fraction:
    """Length that any schedule uses per byte, where relays do what they can, and switches what is granted."""
    if collective.routing is not None:
        whole, common = whole_lengths(topology, lengths)
        metric = Metric(topology, whole)
        trees = branching(topology, metric, (), {}, most_work or MOST_WORK)[collective.collects]
        moved = trees.carried(token_sets(topology, collective, metric, trees))
        used = sum(many * (trees.cost[a][b] or 0) for (a, b), many in moved.items())
        return Fraction(used * collective.routing.token_size, collective.routing.size * common)
    if grants or (more_than_forwards(topology) and not collective.personalized):
        return least_branching(topology, collective, lengths, shares, grants, most_work or MOST_WORK)
    # Shortest paths, or trees in the metric of shortest paths, as devices without a rank only pass bytes on.
    whole, common = whole_lengths(topology, lengths)
    if not collective.personalized:
        least = Metric(topology, whole).least_tree()
        if least is not None:
            # All roots have the same tree then, used both ways.
            return Fraction(least * collective.phases, common)
    cost, row = distances(topology, whole)
    groups, ranks = range(len(cost)), len(row)
    count, weight = Counter(row), summed(zip(row, list(shares) or [1] * ranks, strict=True))
    back = [list(column) for column in zip(*cost, strict=True)]
    side, root = back if collective.collects else cost, row[collective.root] if collective.rooted else 0
    if collective.traffic is not None:
        there = collective.traffic.matrix.tolist()
        total = sum(sum(map(mul, amounts, [cost[a][b] for b in row])) for amounts, a in zip(there, row, strict=True))
        value = Fraction(total, collective.traffic.size)
    elif collective.name == "alltoall":
        value = Fraction(sum(count[a] * count[b] * cost[a][b] for a in groups for b in groups), ranks)
    elif collective.personalized:
        value = Fraction(sum(weight[b] * side[root][b] for b in groups), sum(weight.values()))
    elif collective.name == "allreduce":
        value = Fraction(min(arborescence(cost, v) + arborescence(back, v) for v in groups))
    else:
        weight = {root: 1} if collective.rooted else weight
        value = Fraction(sum(w * arborescence(side, v) for v, w in weight.items() if w), sum(weight.values()))
    return value / common


def whole_lengths(topology: Topology, lengths: Mapping[str, Fraction]) -> tuple[list[int], int]:
    """The length of every link as a whole number, those of its ends' capacities included, and how many are 1."""
    common = lcm(*{length.denominator for length in lengths.values()})
    zero = Fraction(0)
    found = [lengths.get(link.name, zero) for link in topology.links]
    if any(name.endswith((" in", " out")) for name in lengths):
        found = [
            length + (lengths.get(f"{link.src} out", zero) + lengths.get(f"{link.dst} in", zero))
            for length, link in zip(found, topology.links, strict=True)
        ]
    return [length.numerator * (common // length.denominator) for length in found], common


class Metric:
    """Shortest distances for whole link lengths (Dijkstra 1959), where devices that nothing separates are one point.

    place: the point of every device. ends: the points that hold ranks, in the order of their first ranks.
    direct: the length of the least link between two devices. apart: devices that are points of their own.
    """

    def __init__(self, topology: Topology, whole: Sequence[int], apart: Collection[int] = ()) -> None:
        index = topology.index
        ends = [(index[link.src], index[link.dst]) for link in topology.links]
        # Joined both ways by links of length 0.
        free = {pair for pair, length in zip(ends, whole, strict=True) if not length}
        both = ((a, b) for a, b in free if (b, a) in free and a not in apart and b not in apart)
        self.place = [*joined(range(len(topology.devices)), both).values()]
        self.direct: dict[tuple[int, int], int] = {}
        self._ahead: list[dict[int, int]] = [{} for _ in topology.devices]
        place, direct, ahead = self.place, self.direct, self._ahead
        for pair, length in zip(ends, whole, strict=True):
            a, b = place[pair[0]], place[pair[1]]
            if length < direct.get(pair, length + 1):
                direct[pair] = length
            if a != b and length < ahead[a].get(b, length + 1):
                ahead[a][b] = length
        self.ends = list(dict.fromkeys(self.place[index[name]] for name in topology.members))

    def _nearest(self, starts: Iterable[int]) -> dict[int, tuple[int, int]]:
        """For every point that can be reached the least distance from one of these, and from which."""
        best: dict[int, tuple[int, int]] = {}
        queue = [(0, start, start) for start in starts]
        while queue:
            far, at, start = heappop(queue)
            if at in best:
                continue
            best[at] = far, start
            for other, length in self._ahead[at].items():
                if other not in best:
                    heappush(queue, (far + length, other, start))
        return best

    def rows(self, points: Sequence[int]) -> list[list[int | None]]:
        """The distances between points, None where there is no way."""
        reached = map(self._nearest, ([start] for start in points))
        return [[best[end][0] if end in best else None for end in points] for best in reached]

    def least_tree(self) -> int | None:
        """Length of the least tree over the points that hold ranks; None if ways differ by direction, or are missing.

        Every point goes to the nearest of them; links between the regions of two of them are candidates for a
        least spanning tree (K. Mehlhorn, A faster approximation algorithm for the Steiner problem in graphs,
        Information Processing Letters 1988, section 2: it is one of the whole metric).
        """
        if any(self._ahead[b].get(a) != length for a, near in enumerate(self._ahead) for b, length in near.items()):
            return None
        best = self._nearest(self.ends)
        bridges = sorted(
            (best[a][0] + length + best[b][0], best[a][1], best[b][1])
            for a, near in enumerate(self._ahead)
            for b, length in near.items()
            if a < b and a in best and best[a][1] != best[b][1]
        )
        least, tree = 0, {end: end for end in self.ends}
        for length, a, b in bridges:
            if tree[a] != (other := tree[b]):
                least += length
                tree = {end: tree[a] if of == other else of for end, of in tree.items()}
        return least if len({*tree.values()}) == 1 else None


def distances(topology: Topology, whole: Sequence[int]) -> tuple[Matrix, list[int]]:
    """Shortest distances between ranks for whole link lengths, and the row of each rank.

    Ranks that nothing separates share a row.
    """
    metric = Metric(topology, whole)
    rows: Matrix = []
    for found in metric.rows(metric.ends):
        row = [far for far in found if far is not None]
        if len(row) < len(found):
            raise InputError(f"the links of {topology.name} do not connect its members")
        rows.append(row)
    place = {end: number for number, end in enumerate(metric.ends)}
    return rows, [place[metric.place[topology.index[name]]] for name in topology.members]


def arborescence(cost: Matrix, root: int) -> int:
    """Cost of the cheapest out-tree from `root` in a complete digraph (Chu and Liu 1965; Edmonds 1967).

    Vertices that reach each other by entries of least cost become one, all at once.
    """
    # Whole columns at a time: what each vertex is entered by, less what is paid already.
    into: Matrix = [list(column) for column in zip(*cost, strict=True)]
    total, big = 0, max(map(max, cost)) + 1
    while True:
        for vertex, column in enumerate(into):
            column[vertex] = big
        least = [min(column) for column in into]
        total += sum(least) - least[root]
        into = [[entry - low for entry in column] for column, low in zip(into, least, strict=True)]
        into[root] = [big] * len(into)
        # Sets of vertices that reach each other, by what each is reached from (Warshall 1962).
        free = (sum((not more) << other for other, more in enumerate(column)) for column in into)
        reached = [1 << vertex | others for vertex, others in enumerate(free)]
        for middle in range(len(reached)):
            reached = [those | reached[middle] if those >> middle & 1 else those for those in reached]
        groups = [[v for v, those in enumerate(reached) if those == alike] for alike in dict.fromkeys(reached)]
        if len(groups) == len(into):
            return total
        entered = zip(*_merged(into, groups), strict=True)
        into = [list(column) for column in zip(*_merged([*entered], groups), strict=True)]
        root = groups.index([root])


def _merged(rows: Sequence[Sequence[int]], groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """The least of the rows of each group, entry by entry."""
    picked = ([rows[vertex] for vertex in group] for group in groups)
    return [list(map(min, *some)) if len(some) > 1 else some[0] for some in picked]


# What stands behind a switch's name where the lengths are of its adders.
SUMS = "sums"
# Choices, times the square of their vertices, that are tried for a certificate: some seconds.
MOST_WORK = 4 * 10**6


def priced(topology: Topology, lengths: Mapping[str, Fraction]) -> Iterator[tuple[Fraction, list[int]]]:
    """Capacity times length in bytes/s, and the links that it is of.

    A bus is priced as its most expensive link, and the capacity of a device with all links that it limits.
    """
    buses = defaultdict[str, list[tuple[Fraction, int]]](list)
    # Thousands of links have the very same length and bandwidth: multiply these once.
    product: dict[tuple[int, int, int], Fraction] = {}
    for number, link in enumerate(topology.links):
        length = lengths.get(link.name)
        if not length:
            continue
        key = id(length), id(link.lane_bandwidth), link.lanes
        if key not in product:
            product[key] = length * link.bandwidth
        if link.bus is None:
            yield product[key], [number]
        else:
            buses[link.bus].append((product[key], number))
    for entries in buses.values():
        yield max(entries)[0], [number for _, number in entries]
    for device in topology.devices:
        for way in ("in", "out"):
            if length := lengths.get(f"{device.name} {way}"):
                if device.capacity is None:
                    raise InputError(f"{device.name} has no capacity of its own to give a length to")
                ends = ((link.src if way == "out" else link.dst) for link in topology.links)
                yield length * device.capacity, [number for number, end in enumerate(ends) if end == device.name]


def added(prices: Iterable[Fraction]) -> Fraction:
    """Their sum; of thousands of links one price stands for all, which is multiplied once."""
    every = list(prices)
    worth, times = {id(each): each for each in every}, Counter(map(id, every))
    return sum((worth[which] * count for which, count in times.items()), Fraction(0))


def price(topology: Topology, lengths: Mapping[str, Fraction]) -> Fraction:
    """Capacity times length, summed over what is `priced` and the adders of switches."""
    total = added(each for each, _ in priced(topology, lengths))
    for device in topology.devices:
        if length := lengths.get(f"{device.name} {SUMS}"):
            if device.reduction_rate is None:
                raise InputError(f"{device.name} has no adders of a known rate to give a length to")
            total += length * device.reduction_rate
    return total


PROVE_NOTHING = "these lengths prove nothing: some schedule uses none of them"


def checked_lengths(topology: Topology, lengths: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Those that are not 0; raises `InputError` for a negative one, and for that of no link or device."""
    known = {link.name for link in topology.links}
    ways = {f"{device.name} {way}" for device in topology.devices for way in ("in", "out", SUMS)}
    for name, length in lengths.items():
        if name not in known and name not in ways:
            raise InputError(f"{name!r} is no link of {topology.name}")
        if length < 0:
            raise InputError(f"the length of {name} is negative")
    return {name: length for name, length in lengths.items() if length}


@dataclass(frozen=True)
class Lengths(Certificate):
    """Lengths by link name; others are 0.

    Device capacities have the names ``gpu0 in`` and ``gpu0 out``, and the adders of a switch ``nvswitch
    sums``.

    price: capacity times length in bytes/s. distance: what `least_length` gives. grants: what switches may do
    beside forwarding, of what the machine says that they can; nothing by default. even: what `even_use` says,
    where that is known. relays: those at which trees may branch, as they do more than forward.
    """

    lengths: tuple[tuple[str, Fraction], ...]
    price: Fraction
    distance: Fraction
    shares: tuple[int, ...] = ()
    grants: tuple[str, ...] = ()
    even: str | None = field(default=None, compare=False, repr=False)
    relays: tuple[str, ...] = ()
    kind = "lengths"

    @classmethod
    def of(
        cls,
        topology: Topology,
        collective: Collective,
        lengths: Mapping[str, Fraction],
        shares: Sequence[int] = (),
        grants: Iterable[str] = (),
        most_work: int = MOST_WORK,
    ) -> Lengths:
        """Theorem: algbw is at most `price` (capacity times length, summed) / `distance` (length that a byte needs).

        Moving one byte uses at least `least_length`; per second the machine offers `price` of length. Weak
        duality of linear programs, true of any lengths. Raises `InputError` for unknown links and for lengths
        that prove nothing. Also for a grant of what no switch of the machine can, and if the least tree among
        relays and switches that may branch takes more than `most_work`.
        """
        weights = check_shares(collective, topology.ranks, shares)
        granted = checked_grants(topology, grants)
        if granted and collective.personalized:
            raise InputError(f"switches that multicast or reduce make no difference to {collective.name} here")
        relays = () if collective.personalized else tuple(more_than_forwards(topology))
        kept = checked_lengths(topology, lengths)
        distance = least_use(topology, collective, kept, weights, granted, most_work)
        if distance <= 0:
            raise InputError(PROVE_NOTHING)
        return cls(tuple(sorted(kept.items())), price(topology, kept), distance, weights, granted, relays=relays)

    @classmethod
    def like(
        cls, proof: Certificate, topology: Topology, collective: Collective, shares: Sequence[int] = ()
    ) -> Lengths:
        """What a cut or a partition proves, by its lengths."""
        return proof if isinstance(proof, Lengths) else cls.of(topology, collective, counted(proof, topology), shares)

    def again(self, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> Lengths:
        """What the same lengths prove about another problem."""
        return Lengths.of(topology, collective, dict(self.lengths), shares, self.grants)

    @property
    def rate(self) -> Fraction:
        return self.price / self.distance

    def words(self, topology: Topology) -> str:
        """One sentence that a reader can check: what must carry every byte how often, and what that allows."""
        from blinksim.bounds.groups import even_use

        allowed = format_rate(self.rate)
        even = self.even or even_use(topology, dict(self.lengths), self.distance)
        if even is not None:
            return f"{even} {allowed}"
        adders = sum(name.endswith(f" {SUMS}") for name, _ in self.lengths)
        more = f" and the adders of {'a switch' if adders == 1 else f'{adders} switches'}" if adders else ""
        what = f"{len(self.lengths) - adders} links{more} carry {format_rate(self.price)} together"
        uses = f"every byte uses them {self.distance} times"
        return f"weighted by the certificate, {what} and {uses}: {allowed}"

    def to_dict(self) -> dict[str, Any]:
        """JSON: lengths as exact fractions, the price and the ratio (the bound) in GB/s."""
        lengths = {name: str(length) for name, length in self.lengths}
        entry = keyed(self, "@Lengths", lengths=lengths, distance_exact=str(self.distance))
        more = {"shares": self.shares, "grants": self.grants, "relays": self.relays}
        return entry | {key: list(value) for key, value in more.items() if value}


def counted(proof: Certificate, topology: Topology) -> dict[str, Fraction]:
    """The lengths of a proof; of a cut or a partition 1 for every link that crosses, or the capacity in its place."""
    if isinstance(proof, Lengths):
        return dict(proof.lengths)
    assert isinstance(proof, Cut | Partition)
    limits, held = {*proof.limits}, set[str]()
    if limits:
        held = {x.name for x in topology.links if not limits.isdisjoint((f"{x.src} out", f"{x.dst} in"))}
    crossing = [name for name in proof.links if name not in held]
    return dict.fromkeys((*proof.limits, *crossing), Fraction(1))


def more_than_forwards(topology: Topology) -> list[str]:
    """Relays that can do more than forward: multicast or reduce. Switches do so only where that is granted."""
    members, more = set(topology.members), frozenset(("multicast", "reduce"))
    relays = (device for device in topology.devices if device.name not in members)
    return [device.name for device in relays if not more.isdisjoint(device.can) and not device.in_network]


def checked_grants(topology: Topology, grants: Iterable[str]) -> tuple[str, ...]:
    """What is granted to switches, in order; raises `InputError` for what none of them can do."""
    wanted = set(grants)
    for grant in sorted(wanted.difference(topology.in_network)):
        raise InputError(f"no switch of {topology.name} can {BRANCHING.get(grant, repr(grant))}, which is granted")
    return tuple(ability for ability in BRANCHING if ability in wanted)


@dataclass
class Groups:
    """A switch that works for GPUs by turns, as a vertex of trees; lengths by point, or by number of another switch.

    own: what it costs the owner to begin, its own copy included. far: to the other GPUs of a group. near: to
    switches of the same sort.
    """

    own: dict[int, int] = field(default_factory=dict)
    far: dict[int, int] = field(default_factory=dict)
    near: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What a tree uses: points beside the ranks', and the numbers of switches that work for GPUs by turns."""

    points: tuple[int, ...]
    switches: tuple[int, ...]


def _refuse(many: bool) -> None:
    if many:
        raise InputError("too many switches that multicast or reduce differ for this sum to be checked")


@lru_cache(maxsize=4096)
def _halves(ranks: int) -> Sequence[tuple[int, int]]:
    """The ways to part a set, as bits, in two: one that has its first rank, and the rest."""
    first, found = ranks & -ranks, list[tuple[int, int]]()
    part = ranks ^ first
    while part:
        part = (part - 1) & ranks & ~first
        found.append((part | first, ranks ^ part ^ first))
    return found


@dataclass
class Branching:
    """One direction of trees, outwards: shortest distances between points, and what else they may branch at.

    points: a device of each. cost: None where there is no way. ranks: points that hold ranks, the first ones.
    others: further points that may branch. switches: those that work for GPUs by turns, and the devices that
    they are. sums: what it costs to branch at one of `others`. most_work, spent: choices times the square of
    their vertices, at most for a tree and so far.
    """

    points: list[int]

    cost: list[list[int | None]]
    ranks: int
    others: tuple[int, ...]
    switches: list[Groups]
    devices: list[int]
    sums: Mapping[int, int] = field(default_factory=dict)
    most_work: int = MOST_WORK
    spent: int = 0
    _found: dict[int, tuple[int, Choice]] = field(default_factory=dict)

    def least(self, root: int) -> tuple[int, Choice]:
        """The length of the least tree from `root` to all ranks, and its choice of switches.

        Raises `InputError` if none reaches them, and if there are more choices than can be tried.
        """
        if root in self._found:
            return self._found[root]
        best: tuple[int, Choice] | None = None
        vertices = self.ranks + len(self.others) + len(self.switches)
        kinds = Counter(map(self.alike.__getitem__, self.others)).values()
        if not self.switches and not self.sums and 3**self.ranks < prod(many + 1 for many in kinds) * vertices**2:
            best = self._least_by_sets(root)
        else:
            most = self.most_work // vertices**2 + 1
            choices = list(islice(self._choices(root), most + 1))
            _refuse(len(choices) > most)
            self.spent += len(choices) * self.most_work // most
            for choice in choices:
                matrix, big, at = self.matrix(choice, root)
                value = arborescence(matrix, at) + self.sums.get(root, 0)
                if value < big and (best is None or value < best[0]):
                    best = value, choice
        if best is None:
            raise InputError("no tree reaches all members")
        self._found[root] = best
        return best

    def _least_by_sets(self, root: int) -> tuple[int, Choice] | None:
        """As `least`, by the least trees from every vertex to every set of ranks, where none of them is a switch."""
        vertices, _, _, best = self._sets
        every, at = len(best) - 1, vertices.index(root)
        if best[every][at] > self._longest * len(vertices):
            return None
        used, stack = {root}, [(every, at)]
        for ranks, v in stack:
            u = self.fork(ranks, v)
            used.add(vertices[u])
            stack += [(part, u) for part in self.parted(ranks, u)]
        return best[every][at], Choice(tuple(sorted(v for v in used if v >= self.ranks and v != root)), ())

    def fork(self, ranks: int, v: int) -> int:
        """Where the least tree from a vertex to a set of ranks forks."""
        _, far, forked, best = self._sets
        return [*map(add, far[v], forked[ranks])].index(best[ranks][v])

    def parted(self, ranks: int, u: int) -> Sequence[int]:
        """Into which parts of a set of ranks the least tree that forks at a vertex does so."""
        _, _, forked, best = self._sets
        return next((two for two in _halves(ranks) if best[two[0]][u] + best[two[1]][u] == forked[ranks][u]), ())

    def carried(self, amounts: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        """What goes from point to point along least trees, by what goes from each to sets of ranks, as bits.

        Raises `InputError` where no tree reaches them.
        """
        vertices, _, _, best = self._sets
        due, found = [Counter[int]() for _ in best], Counter[tuple[int, int]]()
        for (start, ranks), amount in amounts.items():
            due[ranks][vertices.index(start)] += amount
        for ranks in range(len(best) - 1, 0, -1):
            at = Counter[int]()
            for v, amount in due[ranks].items():
                u = self.fork(ranks, v)
                found[vertices[v], vertices[u]] += amount * (u != v)
                at[u] += amount
            for u, amount in at.items():
                for part in self.parted(ranks, u):
                    due[part][u] += amount
        moved = {pair: amount for pair, amount in found.items() if amount}
        if any(self.cost[a][b] is None for a, b in moved):
            raise InputError("no tree reaches all ranks that want a token")
        return moved

    @cached_property
    def _sets(self) -> tuple[list[int], Matrix, Matrix, Matrix]:
        """For every set of ranks, as bits, the least trees that fork at each vertex, and those from each vertex.

        The vertices and the lengths between them come first.
        """
        vertices = sorted({*range(self.ranks), *self.others})
        big = (self._longest + 1) * (len(vertices) + 1)
        far = [[big if (x := self.cost[a][b]) is None else x for b in vertices] for a in vertices]
        forked, best, self.spent = [[0]], [[0] * len(vertices)], self.spent + 3**self.ranks
        for ranks in range(1, 1 << self.ranks):
            if ranks & (ranks - 1):
                sums = [list(map(add, best[part], best[rest])) for part, rest in _halves(ranks)]
                forked.append(list(map(min, *sums)) if len(sums) > 1 else sums[0])
            else:
                forked.append([0 if 1 << v == ranks else big for v in range(len(vertices))])
            best.append([min(map(add, row, forked[ranks])) for row in far])
        return vertices, far, forked, best

    def matrix(self, choice: Choice, root: int) -> tuple[Matrix, int, int]:
        """Lengths between the vertices of a choice (points, then switches), what stands for none, the root's row."""
        points, switches = self._part(choice, root), [self.switches[number] for number in choice.switches]
        big = (self._longest + 1) * (len(points) + len(switches) + 1)
        costs, beyond = (map(self.cost[a].__getitem__, points) for a in points), [big] * len(switches)
        rows = [[*(big if far is None else far for far in row), *beyond] for row in costs]
        for column, point in enumerate(points):
            if point in self.sums:
                for row in rows:
                    row[column] = min(big, row[column] + self.sums[point])
        place = {point: i for i, point in enumerate(points)}
        for number, switch in zip(choice.switches, switches, strict=True):
            for point, length in switch.own.items():
                if point in place:
                    rows[place[point]][len(rows)] = length
            near = (big if other == number else switch.near.get(other, big) for other in choice.switches)
            rows.append([*(switch.far.get(point, big) for point in points), *near])
        return rows, big, place[root]

    @cached_property
    def _longest(self) -> int:
        longest = max((far for row in self.cost for far in row if far is not None), default=0)
        parts = [part for s in self.switches for part in (s.own, s.far, s.near) if part]
        return max(longest, max((max(part.values()) for part in parts), default=0)) + max(self.sums.values(), default=0)

    def vertices(self, choice: Choice, root: int) -> list[int]:
        """The device that each row of `matrix` stands for."""
        return [*(self.points[p] for p in self._part(choice, root)), *(self.devices[s] for s in choice.switches)]

    def _part(self, choice: Choice, root: int) -> list[int]:
        return [*range(self.ranks), *choice.points, *([root] if root >= self.ranks else [])]

    def _choices(self, root: int) -> Iterator[Choice]:
        # Of points that are alike, it only counts how many take part.
        kinds = grouped((self.alike[point], point) for point in self.others if point != root)
        some: list[tuple[int, ...]] = [()]
        for group in kinds.values():
            some = [(*chosen, *group[:k]) for chosen in some for k in range(min(len(group), self.ranks) + 1)]
            _refuse(len(some) > self.most_work)
        open_ = [n for n, switch in enumerate(self.switches) if switch.far and n not in self._always]
        _refuse(len(some) << len(open_) > self.most_work)
        for count in range(len(open_) + 1):
            for switches in combinations(open_, count):
                for points in some:
                    yield Choice(points, (*self._always, *switches))

    @cached_property
    def _always(self) -> tuple[int, ...]:
        """The switches that a least tree may as well use, whatever else it uses.

        In a tree without such a switch, the first GPU on it can own the work and all others be reached from
        there, which together costs no more than the least ways to them.
        """
        found = []
        for number, switch in enumerate(self.switches):
            group = switch.far.keys()
            if len(group) < 2 or group != switch.own.keys():
                continue
            saved = {}
            for point, length in switch.far.items():
                # The least length of an edge to the point, but from this switch.
                direct = [row[point] for other, row in enumerate(self.cost) if other != point]
                work = [other.far.get(point) for other in self.switches if other is not switch]
                entries = [far for far in (*direct, *work) if far is not None]
                saved[point] = min(entries, default=self._longest + 1) - length
            if all(sum(saved.values()) >= saved[owner] + length for owner, length in switch.own.items()):
                found.append(number)
        return tuple(found)

    @cached_property
    def alike(self) -> list[int]:
        """For every point the first one that it can change places with, and no length changes."""
        cost, count = self.cost, len(self.cost)
        others = set(self.others)
        sides = [(s.own.get(v), s.far.get(v)) for v in range(count) for s in self.switches]
        many = len(self.switches)
        first: list[int] = []
        leaders = defaultdict[object, list[int]](list)
        for v in range(count):
            lengths = sorted(-1 if x is None else x for x in self.cost[v])
            key = (v < self.ranks, v in others, self.sums.get(v), *sides[v * many : (v + 1) * many], *lengths)
            for u in leaders[key]:
                swapped = (
                    cost[u][w] == cost[v][w] and cost[w][u] == cost[w][v] for w in range(count) if w not in (u, v)
                )
                if cost[u][v] == cost[v][u] and all(swapped):
                    first.append(u)
                    break
            else:
                leaders[key].append(v)
                first.append(v)
        return first


def branching(
    topology: Topology, metric: Metric, grants: Sequence[str], sums: Mapping[int, int], most_work: int = MOST_WORK
) -> tuple[Branching, Branching]:
    """Trees outwards, which multicast, and inwards, which reduce: these are trees outwards on reversed links.

    sums: the lengths of adders, by device.
    """
    held = set(metric.ends)
    relays = {*more_than_forwards(topology)}
    able = [
        (metric.place[number], number, device.can if device.name in relays else device.in_network & {*grants})
        for number, device in enumerate(topology.devices)
        if metric.place[number] not in held
    ]
    readers = [number for _, number, can in able if can and topology.devices[number].reads]
    free = [
        sorted({point for point, number, can in able if ability in can and not topology.devices[number].reads})
        for ability in ("multicast", "reduce")
    ]
    every = [*metric.ends, *sorted({*free[0], *free[1]})]
    place = {point: number for number, point in enumerate(every)}
    far = metric.rows(every)
    members = {topology.index[name] for name in topology.members}
    number_of = {device: number for number, device in enumerate(readers)}
    sides = []
    for inward, grant in enumerate(("multicast", "reduce_into_reader")):
        # The lengths around switches that work for an owner; inward, on reversed links, and with what a sum
        # costs them.
        switches, paid = [Groups() for _ in readers], sums if inward else {}
        direct = {(b, a) if inward else (a, b): length for (a, b), length in metric.direct.items()}
        for (a, b), length in direct.items() if grant in grants else ():
            if a not in number_of or grant not in topology.devices[a].can:
                continue
            switch = switches[number_of[a]]
            if b in number_of:
                switch.near[number_of[b]] = length + paid.get(b, 0)
            elif b in members:
                point = place[metric.place[b]]
                switch.far[point] = min(length, switch.far.get(point, length))
                if (b, a) in direct:
                    # Out and in at one port: the owner's own copy.
                    both = length + direct[b, a] + paid.get(a, 0)
                    switch.own[point] = min(both, switch.own.get(point, both))
        cost = [list(column) for column in zip(*far, strict=True)] if inward else far
        others = tuple(place[point] for point in free[inward])
        points = ((place.get(metric.place[number], -1), length) for number, length in sums.items())
        added = {point: length for point, length in points if inward and point in others}
        sides.append(Branching(every, cost, len(metric.ends), others, switches, readers, added, most_work))
    # What is the same both ways is found once.
    return sides[0], sides[sides[0] != sides[1]]


def token_sets(
    topology: Topology, collective: Collective, metric: Metric, side: Branching
) -> dict[tuple[int, int], int]:
    """The tokens of a dispatch or combine by the point that has them, and the bits of those that want them.

    Raises `InputError` for too many points.
    """
    _refuse(3**side.ranks * (side.ranks + len(side.others)) > side.most_work)
    place = {point: number for number, point in enumerate(side.points)}
    label = tuple(place[metric.place[topology.index[name]]] for name in topology.members)
    return collective.routed.sets(label)


def least_branching(
    topology: Topology,
    collective: Collective,
    lengths: Mapping[str, Fraction],
    shares: Sequence[int],
    grants: Sequence[str],
    most_work: int = MOST_WORK,
) -> Fraction:
    """Length that any schedule uses per byte of size, on trees that may branch where `grants` lets switches.

    most_work: what choices may cost, as in `Branching`. Raises `InputError` if no tree reaches all ranks, and
    for too many choices.
    """
    whole, common = whole_lengths(topology, lengths)
    adders = {topology.index[name.removesuffix(f" {SUMS}")]: int(length * common)
              for name, length in lengths.items() if name.endswith(f" {SUMS}")}  # fmt: skip
    metric = Metric(topology, whole, adders)
    outward, inward = branching(topology, metric, grants, adders, most_work)
    leader = interchangeable(topology, whole, adders)
    place = {point: number for number, point in enumerate(outward.points)}
    if collective.name == "allreduce":
        roots = [place[metric.place[device]] for device in leader if metric.place[device] in place]
        return Fraction(min(both for _, both in root_lengths(outward, inward, roots)), common)
    weights = [int(rank == collective.root) for rank in range(topology.ranks)] if collective.rooted else list(shares)
    side, weights = inward if collective.collects else outward, weights or [1] * topology.ranks
    points = (place[metric.place[leader[topology.index[name]]]] for name in topology.members)
    at = summed((side.alike[point], weight) for point, weight in zip(points, weights, strict=True))
    return Fraction(sum(w * side.least(v)[0] for v, w in at.items() if w), sum(weights) * common)


def interchangeable(topology: Topology, whole: Sequence[int], sums: Mapping[int, int]) -> list[int]:
    """For every device the first one that a symmetry of the machine takes to it, with all lengths as they are.

    sums: the lengths of adders, by device.
    """
    # Loads NumPy, which the check of a certificate without grants does not need.
    from blinksim.topology.symmetry import candidates, encoded, name_rotations

    index, members = topology.index, {*topology.members}
    length = {(index[x.src], index[x.dst], x.kind): own for x, own in zip(topology.links, whole, strict=True)}
    traits = [(x.can, x.name in members, sums.get(place)) for place, x in enumerate(topology.devices)]
    alike = set[tuple[int, int]]()
    for goes in map(list, (*candidates(encoded(topology)), *name_rotations(topology))):
        if sorted(goes) == list(range(len(traits))) and all(
            length.get((goes[a], goes[b], kind)) == own for (a, b, kind), own in length.items()
        ) and all(traits[device] == traits[image] for device, image in enumerate(goes)):  # fmt: skip
            alike |= {*enumerate(goes)}
    return [*joined(range(len(traits)), alike).values()]


def root_lengths(outward: Branching, inward: Branching, tried: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
    """For every root of an allreduce, up to those that are alike, the length of a tree in and one out.

    tried: the points that are considered. Default: all.
    """
    able = {*range(outward.ranks), *({*outward.others} & {*inward.others})}
    roots = [root for root in dict.fromkeys(tried or sorted(able)) if root in able]
    done = set[tuple[int, int]]()
    for root in roots:
        kind = outward.alike[root], inward.alike[root]
        if kind not in done:
            done.add(kind)
            yield root, outward.least(root)[0] + inward.least(root)[0]
