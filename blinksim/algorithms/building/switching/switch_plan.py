"""Chunks that switches add and multicast on their way, with the steps that follow from who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from blinksim.algorithms.building.forest_plan import ForestPlan
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.rooted_trees import depths
from blinksim.schedule.model import COPY, REDUCE
from blinksim.schedule.tree import Route
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology
from blinksim.topology.parts import bandwidths

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
        self._links: dict[tuple[int, int], tuple[Fraction, int]] = {}
        self._beside: dict[int, set[int]] = defaultdict(set)
        tail, head = (ends.tolist() for ends in topology.ends)
        for number, (ends, width) in enumerate(zip(zip(tail, head, strict=True), bandwidths(topology), strict=True)):
            if ends not in self._links or self._links[ends][0] < width:
                self._links[ends] = width, number
                self._beside[ends[0]].add(ends[1])

    def link(self, src: int, dst: int) -> Route:
        """The widest link from one device to another."""
        return (self._links[src, dst][1],)

    def switches_of(self, group: Sequence[int], abilities: Iterable[str]) -> dict[int, Fraction]:
        """The switches with these abilities that every GPU of a group is linked to both ways, by the narrowest link."""
        wanted = set(abilities)
        found = {}
        # Of thousands of switches, only those beside the first of the group can be linked to all of it.
        for number in sorted(self._beside[group[0]]):
            if wanted <= self.topology.devices[number].in_network:
                widths = [self._links.get(pair, (None,))[0] for gpu in group for pair in ((gpu, number), (number, gpu))]
                known = [width for width in widths if width is not None]
                if len(known) == len(widths):
                    found[number] = min(known)
        return found

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
