"""Plans whose chunks are reduced and multicast by switches, with steps that follow from dependences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from blinksim.algorithms.building.plan import Ints, Plan
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.rooted_trees import from_parents
from blinksim.schedule.model import COPY, REDUCE
from blinksim.schedule.tree import Route
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology


class Moves:
    """The sends of one chunk: each comes as early as what it carries is there."""

    def __init__(self, plan: SwitchPlan) -> None:
        self._plan = plan
        self._ready: dict[int, int] = defaultdict(int)
        # From which step on a GPU has what it read, which takes the place of what it had.
        self._read: dict[int, int] = {}
        self._sends: list[tuple[int, int, int, int]] = []
        self._links: dict[int, Route] = {}

    def send(self, src: int, dst: int, op: int, links: Route | None = None) -> None:
        """One send between devices, over the given links or the shortest way."""
        step = max(self._ready[src], self._read.get(dst, 0) if op == REDUCE else 0)
        if links is not None:
            self._links[len(self._sends)] = links
        self._sends.append((src, dst, op, step))
        self._ready[dst] = max(self._ready[dst], step + 1)

    def tree(self, parents: Mapping[int, int], root: int, *, up: bool, down: bool) -> None:
        """Sums up a tree, given by the parent of every device but the root, and copies down it."""
        depth = {root: 0}
        for parent, child in from_parents(parents, root):
            depth[child] = depth[parent] + 1
        order = sorted(parents, key=depth.__getitem__)
        for child in reversed(order) if up else ():
            self.send(child, parents[child], REDUCE)
        for child in order if down else ():
            self.send(parents[child], child, COPY)

    def read(self, switch: int, owner: int, below: Mapping[int, Sequence[int]]) -> None:
        """A switch adds the copies of a group of GPUs, and hands the owner the sum, its own copy included.

        below: the other GPUs of the group by switch; further switches of this sort add what is below them first.
        """
        step = self._added(switch, below, (owner,))
        self._sends.append((switch, owner, COPY, step + 1))
        self._ready[switch] = self._ready[owner] = self._read[owner] = step + 2

    def read_all(self, switch: int, group: Sequence[int]) -> None:
        """Every GPU of a group reads the sum at the same time; each copy is sent once for every reader."""
        step = max(self._ready[switch], *(self._ready[gpu] for gpu in group))
        self._sends += [(gpu, switch, REDUCE, step) for gpu in group] * len(group)
        for gpu in group:
            self._sends.append((switch, gpu, COPY, step + 1))
            self._ready[gpu] = step + 2
        self._ready[switch] = step + 2

    def _added(self, switch: int, below: Mapping[int, Sequence[int]], owners: Sequence[int] = ()) -> int:
        """The step in which everything arrives at the switch; what keeps nothing takes it in at once."""
        sources = (*owners, *below.get(switch, ()))
        further = [source for source in sources if below.get(source)]
        ready = [self._added(source, below) + 1 for source in further]
        step = max([self._ready[switch], *ready, *(self._ready[source] for source in sources if source not in further)])
        for source in sources:
            self._sends.append((source, switch, REDUCE, step))
        for source in further:
            self._ready[source] = step + 1
        return step

    def store(self, switch: int, owner: int, below: Mapping[int, Sequence[int]]) -> None:
        """A switch multicasts what the owner has to a group of GPUs, the owner included; `below` as in `read`."""
        step = max(self._ready[switch], self._ready[owner])
        self._sends.append((owner, switch, COPY, step))
        self._spread(switch, step + 1, below, (owner,))

    def _spread(self, switch: int, step: int, below: Mapping[int, Sequence[int]], owners: Sequence[int] = ()) -> None:
        for end in (*owners, *below.get(switch, ())):
            self._sends.append((switch, end, COPY, step))
            self._ready[end] = max(self._ready[end], step + 1)
            if below.get(end):
                self._spread(end, step + 1, below)
        self._ready[switch] = step + 1

    @cached_property
    def _columns(self) -> Ints:
        """By rows source, destination, operation, step and number of every send, in the order of the steps."""
        columns = (
            np.array([(*send, number) for number, send in enumerate(self._sends)], dtype=np.int64).reshape(-1, 5).T
        )
        return columns[:, np.argsort(columns[3], kind="stable")]

    def finish(self, chunk: int, image: Ints | None = None) -> None:
        """Adds the sends to the plan, as those of this chunk. image: what takes the place of every device."""
        plan, (src, dst, op, step, number) = self._plan, self._columns
        if not len(src):
            return
        if image is not None:
            src, dst = image[src], image[dst]
        if self._links:
            ways = zip(number.tolist(), src.tolist(), dst.tolist(), strict=True)
            route = np.array(plan.add_routes(self._links.get(at) or plan.router.route(a, b) for at, a, b in ways))
            channel = plan.channel((src * len(plan.topology.devices) + dst).tolist())
        else:
            # Every pair of devices has a route of its own.
            route = plan.routes(src, dst)
            channel = plan.channel(route.tolist())
        plan.add_sends(chunk=chunk, src=src, dst=dst, op=op, step=step, route=route, channel=channel)


class SwitchPlan(Plan):
    """A plan whose chunks pass switches that add and multicast.

    ranks: the device of every rank. groups: the devices with ranks of every node.
    """

    def __init__(self, topology: Topology, collective: Collective, algorithm: str) -> None:
        super().__init__(topology, collective, algorithm, "forest")
        self.ranks = topology.member_places.tolist()
        self.groups = [[self.ranks[rank] for rank in group] for group in nodes_of(topology, topology.members)]
        # The links of switches that do more than to forward, by their ends: the place of the widest among the rates.
        table, able = topology.link_columns, np.array([bool(device.in_network) for device in topology.devices])
        self._rates = sorted(set(table.bandwidths))
        width = np.array([self._rates.index(rate) for rate in table.bandwidths])[table.figure]
        near = np.flatnonzero(able[table.src] | able[table.dst])
        near = near[np.argsort(width[near], kind="stable")]
        ends = list(zip(table.src[near].tolist(), table.dst[near].tolist(), strict=True))
        self._width = dict(zip(ends, width[near].tolist(), strict=True))
        self._switches: dict[int, set[int]] = defaultdict(set)
        for src, dst in ends:
            self._switches[src].add(dst)

    def switches_of(self, group: Sequence[int], abilities: Iterable[str]) -> dict[int, Fraction]:
        """The switches with these abilities that every GPU of a group is linked to both ways, by the narrowest link."""
        wanted, found = set(abilities), {}
        for switch in sorted(self._switches[group[0]]):
            if wanted <= self.topology.devices[switch].in_network:
                ends = [(gpu, switch) for gpu in group] + [(switch, gpu) for gpu in group]
                narrowest = min(self._width.get(pair, -1) for pair in ends)
                if narrowest >= 0:
                    found[switch] = self._rates[narrowest]
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
