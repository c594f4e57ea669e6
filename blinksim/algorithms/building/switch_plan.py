"""Plans whose chunks are added and multicast by switches.

The widest link from each device to each of its neighbours, and the switches that whole groups are linked to.

Chunks that switches add and multicast on their way, with the steps that follow from who waits for whom.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from blinksim.algorithms.building.forest_plan import ForestPlan, Table
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.rooted_trees import depths
from blinksim.schedule.model import COPY, REDUCE
from blinksim.schedule.tree import Route
from blinksim.structures.arrays import expand, places
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology
from blinksim.topology.group import Pairs

Ints = npt.NDArray[np.int64]


class WidestLinks:
    """The links of a topology by their two ends, of parallel ones the widest, and of equal ones the first."""

    def __init__(self, topology: Topology) -> None:
        self._topology, table = topology, topology.link_columns
        self._devices = len(topology.devices)
        self._rates = sorted({*table.bandwidths})
        place = {rate: number for number, rate in enumerate(self._rates)}
        width = np.array([place[rate] for rate in table.bandwidths], dtype=np.int64)[table.figure]
        key = table.src * self._devices + table.dst
        order = np.lexsort((-width, key))
        first = order[np.diff(key[order], prepend=-1) > 0]
        self._keys, self._links, self._width = key[first], first, width[first]

    def between(self, src: npt.ArrayLike, dst: npt.ArrayLike) -> Ints:
        """The links from devices (M) to neighbours (M), by their numbers."""
        place, known = self._places(np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64))
        assert known.all()
        return self._links[place]

    def switches_of(self, groups: Sequence[Sequence[int]], abilities: Iterable[str]) -> list[dict[int, Fraction]]:
        """For each group of devices the switches with these abilities that all of it are linked to both ways.

        By their numbers, in rising order, each with bytes/s of the narrowest of these links.
        """
        wanted, devices = set(abilities), self._topology.devices
        # Of thousands of switches, only those beside the first of a group can be linked to all of it.
        first = np.array([group[0] for group in groups], dtype=np.int64)
        start, end = (np.searchsorted(self._keys, (first + more) * self._devices) for more in (0, 1))
        owner = np.repeat(np.arange(len(groups)), end - start)
        beside = self._keys[np.repeat(start, end - start) + places(end - start)] % self._devices
        able = np.array([wanted <= devices[number].in_network for number in beside.tolist()], dtype=np.bool_)
        owner, beside = owner[able], beside[able]
        found: list[dict[int, Fraction]] = [{} for _ in groups]
        if not len(owner):
            return found
        bounds = np.cumsum([0, *map(len, groups)])
        case, member = expand(bounds, np.array([one for group in groups for one in group], dtype=np.int64), owner)
        switch = beside[case]
        ways = (self._places(member, switch), self._places(switch, member))
        width = np.minimum(*(np.where(known, self._width[place], -1) for place, known in ways))
        narrowest = np.full(len(owner), len(self._rates))
        np.minimum.at(narrowest, case, width)
        for group, number, least in zip(owner.tolist(), beside.tolist(), narrowest.tolist(), strict=True):
            if least >= 0:
                found[group][number] = self._rates[least]
        return found

    def _places(self, src: Ints, dst: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        key = src * self._devices + dst
        place = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return place, self._keys[place] == key


_Send = tuple[int, int, int, int, Route]


class Moves:
    """The sends of one chunk: each comes as early as what it carries is there."""

    def __init__(self, plan: SwitchPlan) -> None:
        self._plan = plan
        self._ready: dict[int, int] = defaultdict(int)
        self._sends: list[_Send] = []

    def send(self, src: int, dst: int, op: int, links: Route | None = None) -> None:
        """One send between devices, over the given links or the shortest way."""
        step = self._ready[src]
        self._sends.append((src, dst, op, step, links or self._plan.router.route(src, dst)))
        self._ready[dst] = max(self._ready[dst], step + 1)

    def tree(self, parents: Mapping[int, int], root: int, *, up: bool, down: bool) -> None:
        """Sums up a tree, given by the parent of every device but the root, and copies down it."""
        edges = [(parent, child) for child, parent in parents.items()]
        depth = depths(root, _from_the_root(edges, root))
        order = sorted(parents, key=lambda child: depth[child])
        for child in reversed(order) if up else ():
            self.send(child, parents[child], REDUCE)
        for child in order if down else ():
            self.send(parents[child], child, COPY)

    def read(self, switch: int, owner: int, below: Mapping[int, Sequence[int]]) -> None:
        """A switch adds the copies of a group of GPUs, and hands the owner the sum, its own copy included.

        below: the other GPUs of the group by switch; further switches of this sort add what is below them first.
        """
        step = self._added(switch, below, (owner,))
        self._emit(switch, owner, COPY, step + 1)
        self._ready[switch] = self._ready[owner] = step + 2

    def read_all(self, switch: int, group: Sequence[int]) -> None:
        """Every GPU of a group reads the sum at the same time; each copy is sent once for every reader."""
        step = max(self._ready[switch], *(self._ready[gpu] for gpu in group))
        for _ in group:
            for gpu in group:
                self._emit(gpu, switch, REDUCE, step)
        for gpu in group:
            self._emit(switch, gpu, COPY, step + 1)
            self._ready[gpu] = step + 2
        self._ready[switch] = step + 2

    def _added(self, switch: int, below: Mapping[int, Sequence[int]], owners: Sequence[int] = ()) -> int:
        """The step in which everything arrives at the switch; what keeps nothing takes it in at once."""
        sources = (*owners, *below.get(switch, ()))
        further = [source for source in sources if below.get(source)]
        ready = [self._added(source, below) + 1 for source in further]
        step = max([self._ready[switch], *ready, *(self._ready[source] for source in sources if source not in further)])
        for source in sources:
            self._emit(source, switch, REDUCE, step)
        for source in further:
            self._ready[source] = step + 1
        return step

    def store(self, switch: int, owner: int, below: Mapping[int, Sequence[int]]) -> None:
        """A switch multicasts what the owner has to a group of GPUs, the owner included; `below` as in `read`."""
        step = max(self._ready[switch], self._ready[owner])
        self._emit(owner, switch, COPY, step)
        self._spread(switch, step + 1, below, (owner,))

    def _spread(self, switch: int, step: int, below: Mapping[int, Sequence[int]], owners: Sequence[int] = ()) -> None:
        for end in (*owners, *below.get(switch, ())):
            self._emit(switch, end, COPY, step)
            self._ready[end] = max(self._ready[end], step + 1)
            if below.get(end):
                self._spread(end, step + 1, below)
        self._ready[switch] = step + 1

    def _emit(self, src: int, dst: int, op: int, step: int) -> None:
        self._sends.append((src, dst, op, step, self._plan.link(src, dst)))

    def finish(self, chunk: int) -> None:
        """Adds the sends to the plan, as those of this chunk."""
        columns = list(zip(*sorted(self._sends, key=lambda send: send[3]), strict=True))
        if columns:
            src, dst, op, step, links = columns
            pairs = list(zip(src, dst, strict=True))
            route = [self._plan.add_route(way) for way in links]
            channel = self._plan._channel(pairs)
            self._plan.add_sends(
                chunk=chunk, src=list(src), dst=list(dst), op=list(op), step=list(step), route=route, channel=channel
            )


class SwitchPlan(ForestPlan):
    """A plan whose chunks pass switches that add and multicast.

    ranks: the device of every rank. groups: the devices with ranks of every node.
    """

    def __init__(self, topology: Topology, collective: Collective, algorithm: str) -> None:
        super().__init__(topology, collective, algorithm)
        self.router = topology.router
        self.ranks = topology.member_places.tolist()
        self.groups = [[self.ranks[rank] for rank in group] for group in nodes_of(topology, topology.members)]
        self._widest = WidestLinks(topology)
        self._links: dict[tuple[int, int], Route] = {}
        self._switches: dict[tuple[tuple[int, ...], frozenset[str]], dict[int, Fraction]] = {}

    def link(self, src: int, dst: int) -> Route:
        """The widest link from one device to another."""
        found = self._links.get((src, dst))
        if found is None:
            found = self._links[src, dst] = (int(self._widest.between(src, dst)),)
        return found

    def add_moves(self, chunk: int, src: Ints, dst: Ints, op: Ints, step: Ints) -> None:
        """Sends of one chunk between devices, which are in order within each step: as `Moves` adds them."""
        order = np.argsort(step, kind="stable")
        src, dst, op, step = src[order], dst[order], op[order], step[order]
        kind = src * len(self.topology.devices) + dst
        self.add_columns(chunk, src, dst, op, step, kind, lambda some: self._ways(src[some], dst[some]))

    def _ways(self, src: Ints, dst: Ints) -> Table:
        """Links to switches; between GPUs the routes of the router, many by those that symmetries take to them."""
        ranked = np.zeros(len(self.topology.devices), dtype=np.bool_)
        ranked[self.topology.member_places] = True
        far = ranked[src] & ranked[dst]
        pairs = Pairs.of(self.topology, src[far], dst[far])
        ways = [self.router.route(a, b) for a, b in zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True)]
        flat = np.array([link for way in ways for link in way], dtype=np.int64)
        start, links = pairs.images(np.cumsum([0, *map(len, ways)]), flat)
        lengths = np.ones(len(src), dtype=np.int64)
        lengths[far] = np.diff(start)
        ends = np.cumsum(np.concatenate([[0], lengths]))
        found = np.empty(ends[-1], dtype=np.int64)
        found[ends[:-1][~far]] = self._widest.between(src[~far], dst[~far])
        found[np.repeat(far, lengths)] = links
        return ends, found

    def switches_of(self, group: Sequence[int], abilities: Iterable[str]) -> dict[int, Fraction]:
        """The switches with these abilities that every GPU of a group is linked to both ways, by the narrowest link."""
        key = tuple(group), frozenset(abilities)
        if key not in self._switches:
            # Another node is asked about next, or the same one again.
            groups = {(*group,): None, **dict.fromkeys(map(tuple, self.groups))}
            for one, found in zip(groups, self._widest.switches_of([*groups], key[1]), strict=True):
                self._switches[one, key[1]] = found
        return self._switches[key]

    def reading_switches(
        self, group: Sequence[int], abilities: Iterable[str] = ("multicast", "reduce_into_reader")
    ) -> dict[int, Fraction]:
        """The switches that a group can read (and store) at, each with its part of the work.

        Raises `InfeasibleError` if there are none.
        """
        found = self.switches_of(group, abilities)
        if not found:
            raise InfeasibleError(
                f"{self.algorithm} needs a switch that multicasts and reduces into readers, linked to all GPUs of a "
                f"node; {self.topology.name} has none (machine files say it, or an edit such as "
                "'nvswitch can=forward,multicast,reduce_into_reader')"
            )
        total = sum(found.values())
        return {switch: rate / total for switch, rate in found.items()}


def _from_the_root(edges: Sequence[tuple[int, int]], root: int) -> list[tuple[int, int]]:
    """The edges (parent, child) of a tree, parents before their children."""
    below: dict[int, list[int]] = defaultdict(list)
    for parent, child in edges:
        below[parent].append(child)
    found, todo = [], [root]
    while todo:
        parent = todo.pop()
        for child in below[parent]:
            found.append((parent, child))
            todo.append(child)
    return found
