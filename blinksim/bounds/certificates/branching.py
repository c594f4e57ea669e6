"""The least length of trees that may branch in switches: what a byte of a collective costs at least.

A switch that multicasts, or reduces in flight, may be a vertex of a tree or be left out of it (Steiner arborescences:
Hakimi 1971). One that reduces into readers works for a GPU at a time: the GPU owns its part of the tree, which enters
at the owner's port, and the owner's own copy passes that port once more. Every choice of such switches and owners is
tried, each a least arborescence of Chu and Liu (1965) and Edmonds (1967); GPUs that are alike are tried once.

An owner for a whole part suffices: of two operations on one switch, the later one can take in the copies of the
earlier, which saves what the earlier one hands to its owner and reads there. Standard library only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import islice

from blinksim.bounds.certificates.least_length import Matrix, Metric, arborescence, whole_lengths
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

# Choices, times the square of their vertices, that are tried for a certificate: some seconds.
MOST_WORK = 4 * 10**6


@dataclass
class Groups:
    """A switch that works for GPUs by turns, as a vertex of trees; lengths by point, or by number of another switch.

    own: what it costs the owner to begin, its own copy included. far: to the other GPUs of a group. near: to switches
    of the same sort.
    """

    own: dict[int, int] = field(default_factory=dict)
    far: dict[int, int] = field(default_factory=dict)
    near: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What a tree uses: points beside the ranks', and for some switches that work for GPUs the point of the owner."""

    points: tuple[int, ...]
    owners: tuple[tuple[int, int], ...]


@dataclass
class Branching:
    """One direction of trees, outwards: shortest distances between points, and what else they may branch at.

    points: a device of each. cost: None where there is no way. ranks: points that hold ranks, the first ones. others:
    further points that may branch. switches: those that work for GPUs by turns, and the devices that they are.
    most_work, spent: choices times the square of their vertices, at most for a tree and so far.
    """

    points: list[int]

    cost: list[list[int | None]]
    ranks: int
    others: tuple[int, ...]
    switches: list[Groups]
    devices: list[int]
    most_work: int = MOST_WORK
    spent: int = 0

    def least(self, root: int) -> tuple[int, Choice] | None:
        """The length of the least tree from `root` to all ranks, and its choice of switches; None if none reaches them.

        Raises `InputError` if there are more choices than can be tried.
        """
        best: tuple[int, Choice] | None = None
        most = self.most_work // (self.ranks + len(self.others) + len(self.switches)) ** 2 + 1
        choices = list(islice(self._choices(root), most + 1))
        if len(choices) > most:
            raise InputError("too many switches that multicast or reduce differ for this sum to be checked")
        self.spent += len(choices) * self.most_work // most
        for choice in choices:
            matrix, big, at = self.matrix(choice, root)
            value = arborescence(matrix, at)
            if value < big and (best is None or value < best[0]):
                best = value, choice
        return best

    def matrix(self, choice: Choice, root: int) -> tuple[Matrix, int, int]:
        """Lengths between the vertices of a choice (points, then switches), what stands for none, the root's row."""
        points = self._part(choice, root)
        owners = list(choice.owners)
        count = len(points) + len(owners)
        known = [self.cost[a][b] for a in points for b in points]
        known += [v for number, _ in owners for part in (self.switches[number].own, self.switches[number].far)
                  for v in part.values()]  # fmt: skip
        known += [v for number, _ in owners for v in self.switches[number].near.values()]
        big = (max((v for v in known if v is not None), default=0) + 1) * (count + 1)
        rows = [[big] * count for _ in range(count)]
        for i, a in enumerate(points):
            for j, b in enumerate(points):
                rows[i][j] = big if self.cost[a][b] is None else self.cost[a][b]  # type: ignore[assignment]
        place = {point: i for i, point in enumerate(points)}
        for i, (number, owner) in enumerate(owners, len(points)):
            switch = self.switches[number]
            rows[place[owner]][i] = switch.own.get(owner, big)
            for point, length in switch.far.items():
                if point != owner:
                    rows[i][place[point]] = length
            for j, (other, same) in enumerate(owners, len(points)):
                if same == owner and other in switch.near:
                    rows[i][j] = switch.near[other]
        return rows, big, place[root]

    def vertices(self, choice: Choice, root: int) -> list[int]:
        """The device that each row of `matrix` stands for."""
        return [*(self.points[p] for p in self._part(choice, root)), *(self.devices[s] for s, _ in choice.owners)]

    def _part(self, choice: Choice, root: int) -> list[int]:
        return [*range(self.ranks), *choice.points, *([root] if root >= self.ranks else [])]

    def _choices(self, root: int) -> Iterator[Choice]:
        alike = self.alike
        # Of points that are alike, it only counts how many take part.
        kinds = defaultdict[int, list[int]](list)
        for point in self.others:
            if point != root:
                kinds[alike[point]].append(point)
        some: list[tuple[int, ...]] = [()]
        for group in kinds.values():
            some = [(*chosen, *group[:k]) for chosen in some for k in range(min(len(group), self.ranks) + 1)]
            if len(some) > self.most_work:
                raise InputError("too many switches that multicast or reduce differ for this sum to be checked")
        for owners in self._owners(0, (), (root,)):
            for points in some:
                yield Choice(points, owners)

    def _owners(
        self, number: int, taken: tuple[tuple[int, int], ...], special: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, int], ...]]:
        """Owners for the switches from `number` on; of GPUs that are alike and not `special` yet, one is tried."""
        if number == len(self.switches):
            yield taken
            return
        yield from self._owners(number + 1, taken, special)
        switch, seen = self.switches[number], set[int]()
        for point in range(self.ranks) if switch.near else switch.own:
            if point not in special:
                if self.alike[point] in seen:
                    continue
                seen.add(self.alike[point])
            yield from self._owners(number + 1, (*taken, (number, point)), (*special, point))

    @cached_property
    def alike(self) -> list[int]:
        """For every point the first one that it can change places with, and no length changes."""
        count = len(self.cost)
        others = set(self.others)
        sides = [(s.own.get(v), s.far.get(v)) for v in range(count) for s in self.switches]
        many = len(self.switches)
        first: list[int] = []
        leaders = defaultdict[object, list[int]](list)
        for v in range(count):
            lengths = sorted(-1 if x is None else x for x in self.cost[v])
            key = (v < self.ranks, v in others, *sides[v * many : (v + 1) * many], *lengths)
            for u in leaders[key]:
                if self._swap(u, v):
                    first.append(u)
                    break
            else:
                leaders[key].append(v)
                first.append(v)
        return first

    def _swap(self, u: int, v: int) -> bool:
        cost = self.cost
        return cost[u][v] == cost[v][u] and all(
            cost[u][w] == cost[v][w] and cost[w][u] == cost[w][v] for w in range(len(cost)) if w not in (u, v)
        )


def branching(
    topology: Topology, metric: Metric, grants: Sequence[str], most_work: int = MOST_WORK
) -> tuple[Branching, Branching]:
    """Trees outwards, which multicast, and inwards, which reduce: these are trees outwards on links turned round."""
    held = set(metric.ends)
    able = [
        (metric.place[number], number, device)
        for number, device in enumerate(topology.devices)
        if device.in_network & set(grants) and metric.place[number] not in held
    ]
    by_turns = [number for _, number, device in able if device.reads]
    free = [
        sorted({point for point, _, device in able if ability in device.in_network & set(grants) and not device.reads})
        for ability in ("multicast", "reduce")
    ]
    every = [*metric.ends, *sorted({*free[0], *free[1]})]
    place = {point: number for number, point in enumerate(every)}
    far = metric.rows(every)
    ways = []
    for turned, grant in enumerate(("multicast", "reduce_into_reader")):
        switches = [Groups() for _ in by_turns]
        if grant in grants:
            switches = _groups(topology, metric, place, by_turns, turned=bool(turned))
            switches = [
                groups if grant in topology.devices[number].can else Groups()
                for number, groups in zip(by_turns, switches, strict=True)
            ]
        cost = [list(column) for column in zip(*far, strict=True)] if turned else far
        others = tuple(place[point] for point in free[turned])
        ways.append(Branching(every, cost, len(metric.ends), others, switches, by_turns, most_work))
    return ways[0], ways[1]


def _groups(
    topology: Topology, metric: Metric, place: Mapping[int, int], by_turns: Sequence[int], *, turned: bool
) -> list[Groups]:
    """The lengths around switches that work for GPUs by turns; turned: of links turned round."""
    members = {topology.index[name] for name in topology.members}
    turn = {device: number for number, device in enumerate(by_turns)}
    direct = {(b, a) if turned else (a, b): length for (a, b), length in metric.direct.items()}
    found = [Groups() for _ in by_turns]
    for (a, b), length in direct.items():
        if a not in turn:
            continue
        switch = found[turn[a]]
        if b in turn:
            switch.near[turn[b]] = length
        elif b in members:
            point = place[metric.place[b]]
            switch.far[point] = min(length, switch.far.get(point, length))
            if (b, a) in direct:
                # Out and in at one port: the owner's own copy.
                both = length + direct[b, a]
                switch.own[point] = min(both, switch.own.get(point, both))
    return found


def least_branching(
    topology: Topology,
    collective: Collective,
    lengths: Mapping[str, Fraction],
    shares: Sequence[int],
    grants: Sequence[str],
    most_work: int = MOST_WORK,
) -> Fraction:
    """Length that any schedule uses per byte of size, on trees that may branch where `grants` lets switches.

    most_work: what choices may cost, as in `Branching`. Raises `InputError` for a collective without trees, if no tree
    reaches all ranks, and for too many choices.
    """
    whole, common = whole_lengths(topology, lengths)
    metric = Metric(topology, whole)
    outward, inward = branching(topology, metric, grants, most_work)
    row = [metric.ends.index(metric.place[topology.index[name]]) for name in topology.members]
    name = collective.name
    weights = list(shares) or [1] * len(row)
    if name == "allreduce":
        return Fraction(min(both for _, both in both_ways(outward, inward)), common)
    if name in ("broadcast", "reduce"):
        weights = [int(rank == collective.root) for rank in range(len(row))]
    elif name not in ("allgather", "reducescatter"):
        raise InputError(f"switches that multicast or reduce make no difference to {name} here")
    way = inward if collective.collects else outward
    at = defaultdict[int, int](int)
    for place, weight in zip(row, weights, strict=True):
        at[way.alike[place]] += weight
    return Fraction(sum(w * _least(way, v) for v, w in at.items() if w), sum(weights) * common)


def both_ways(outward: Branching, inward: Branching) -> Iterator[tuple[int, int]]:
    """For every root of an allreduce, up to those that are alike, the length of a tree in and one out."""
    roots = (*range(outward.ranks), *sorted({*outward.others} & {*inward.others}))
    done = set[tuple[int, int]]()
    for root in roots:
        kind = outward.alike[root], inward.alike[root]
        if kind not in done:
            done.add(kind)
            yield root, _least(outward, root) + _least(inward, root)


def _least(way: Branching, root: int) -> int:
    found = way.least(root)
    if found is None:
        raise InputError("no tree reaches all members")
    return found[0]
