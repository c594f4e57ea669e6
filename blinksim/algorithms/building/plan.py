"""Plans of schedules in terms of ranks: routes between them, pipelined trees, and plans filled by plugins.

Chain, binary tree and double binary tree share one function from a parent list to a schedule. Chunks that
switches reduce and multicast have steps that follow from dependences. An algorithm from outside the package
fills a `Plan`, and the resulting schedule is verified. `claim` gives the bound that a schedule is compared
with, and the gap of its loads to it.

Rings and chains run along orders of ranks, by the neighbours that a machine's links favour. Up to `EXACT`
ranks whose direct links hold Hamiltonian cycles, the most edge-disjoint ones (counting lanes) are found by
search, as in NCCL's rings on a DGX-1 (Blink, section 2). Beyond that, direct links that fall into such
cycles, as those of a torus do, are used by all of them. Elsewhere ranks go node by node; with several NICs a
node, each NIC has a ring that leaves the node from a GPU of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from itertools import islice, pairwise, permutations, repeat
from math import lcm
from operator import or_
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from blinksim.bounds.bound_result import BoundResult
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError, InputError, PluginError
from blinksim.graphs.arrays import Ints, Ints32, by_place
from blinksim.graphs.connectivity import grouped, summed
from blinksim.graphs.rooted_trees import Parents, by_levels, depths, from_parents
from blinksim.packing.choose import LIMITS
from blinksim.packing.tree_columns import Order, cheapest_order, disjoint_cycles, hamiltonian
from blinksim.plugins import blamed, located, source_of
from blinksim.results import count
from blinksim.schedule.candidate import Candidate, SymmetricSchedule
from blinksim.schedule.loads import Edge, Round, Route, Tree, Whole, pruned, resources, searched, uses_of_messages
from blinksim.schedule.model import COPY, MOST_DENOMINATOR, REDUCE, Builder, Schedule, abilities_used
from blinksim.schedule.verify import verify
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import Pairs

_OPS = {"copy": COPY, "reduce": REDUCE}
# Sends of one call: more of them would take gigabytes before anything could end the call.
_MOST_AT_ONCE = 2**26


class Plan(Builder):
    """A schedule being built: chunks of the data, and their sends from rank to rank; it finds the routes.

    Attributes
    ----------
    n : int
        How many ranks there are; they are numbered from 0.
    topology : Topology
        The part of the machine that takes part; ``plan.topology.members`` are its GPUs in rank order.
    collective : Collective
        What is wanted: its ``name``, its ``root``, and whether it ``reduces``.

    Examples
    --------
    >>> import blinksim as bs
    >>> plan = bs.Plan(bs.load("ring:4@25GB/s").select(), bs.Collective("broadcast"), "line", "steps")
    >>> everything = plan.add_chunk(1)
    >>> plan.send([0, 1, 2], [1, 2, 3], chunk=everything, op="copy", step=[0, 1, 2])
    >>> bs.verify(plan.finish())
    <Verdict: ok; 25 GB/s by its loads>
    """

    def __init__(self, topology: Topology, collective: Collective, algorithm: str, form: str) -> None:
        super().__init__(topology, collective, algorithm, form)
        collective.check_ranks(topology.ranks)
        self.n = topology.ranks
        self.router = topology.router
        # Pairs of devices that have sent, src * devices + dst, sorted, and their routes.
        self._known = np.array([-1]), np.array([-1])
        self._devices = topology.member_places.astype(np.int32)
        # Of calls of `send` the pairs of ranks, src * n + dst, whose routes are not known yet.
        self._pairs: dict[int, Ints] = {}
        # Channels that each pair of devices has used, as bits.
        self._busy: dict[Hashable, int] = {}

    def send(
        self,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        *,
        chunk: npt.ArrayLike,
        op: int | Literal["copy", "reduce"],
        step: npt.ArrayLike,
        channel: npt.ArrayLike = 0,
    ) -> None:
        """Send chunks from ranks to ranks, given as numbers or as arrays that broadcast.

        src, dst: ranks. chunk: what `add_chunk` returned. op: ``copy``, or ``reduce`` to add to what the
        receiver has. step: sends of a step read what was there when it began. channel: sends of one channel
        between two ranks keep their order. Raises `InputError` for ranks and chunks that do not exist.
        """
        if isinstance(op, str):
            if op not in _OPS:
                raise InputError(f"op={op!r}: a send is a copy or a reduce")
            op = _OPS[op]
        given = {"src": src, "dst": dst, "chunk": chunk, "step": step, "channel": channel}
        try:
            arrays = np.broadcast_arrays(*(_whole(what, values) for what, values in given.items()))
        except ValueError:
            shapes = ", ".join(f"{what} {np.shape(values)}" for what, values in given.items())
            raise InputError(f"these do not fit each other: {shapes}") from None
        if arrays[0].size > _MOST_AT_ONCE:
            raise InputError(f"{arrays[0].size:,} sends at once are too many; send at most {_MOST_AT_ONCE:,}")
        a, b, chunks, steps, channels = (array.ravel() for array in arrays)
        _inside("rank", self.n, a, b)
        _inside("chunk", len(self._shares), chunks)
        if len(itself := np.flatnonzero(a == b)):
            raise InputError(f"rank {a[itself[0]]} sends to itself")
        self._pairs[len(self._columns[0])] = a.astype(np.int64) * self.n + b
        src, dst = self._devices[a], self._devices[b]
        self.add_sends(chunk=chunks, src=src, dst=dst, op=op, step=steps, route=-1, channel=channels)

    def routes(self, src: Whole, dst: Whole) -> Ints:
        """The numbers of the routes between devices, by the router; new ones are numbered in the order of their use."""
        keys, (known, routes) = src.astype(np.int64) * len(self.topology.devices) + dst, self._known
        place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        if not len(new := np.flatnonzero(known[place] != keys)):
            return np.asarray(routes[place])
        new = new[np.sort(np.unique(keys[new], return_index=True)[1])]
        # Of many pairs, one is searched for all that symmetries take it to.
        pairs = Pairs.of(self.topology, src[new].astype(np.int64), dst[new].astype(np.int64))
        paths = searched(self.algorithm, self.topology, pairs.src, pairs.dst)
        if pairs.group is None:
            added = np.array(self.add_routes(paths), dtype=np.int64)
        else:
            # Pairs that have not sent yet have routes that nobody added.
            start, links = np.cumsum([0, *map(len, paths)]), np.array([link for path in paths for link in path])
            added = self.add_new_routes(*pairs.images(start, links))
        known, routes = np.concatenate([known, keys[new]]), np.concatenate([routes, added])
        order = np.argsort(known, kind="stable")
        known, routes = self._known = known[order], routes[order]
        return np.asarray(routes[np.searchsorted(known, keys)])

    def add_trees(self, trees: Iterable[Tree]) -> None:
        """One chunk per tree. A chunk of an allgather starts from its root, one of a reducescatter ends there.

        Channels: a tree takes the first channel that no tree before it uses between any two of its devices,
        so that trees which share nothing share channels, and no chunk waits behind another's.
        """
        number = {device: rank for rank, device in enumerate(self._devices.tolist())}
        for tree in trees:
            rank = number.get(tree.root, -1)
            down, up = pruned(tree.down, number), pruned(tree.up, number)
            chunk = self.add_chunk(tree.share, *self.collective.labels(rank, rank))
            back = [(b, a, links) for a, b, links in reversed(up)]
            channel = self.channel([edge[:2] for edge in (*back, *down)])
            # A device sends up once everything from below has arrived.
            ready: dict[int, int] = {}
            steps = []
            for child, parent, _ in back:
                steps.append(ready.get(child, 0))
                ready[parent] = max(ready.get(parent, 0), steps[-1] + 1)
            self.add_edges(chunk, back, REDUCE, steps, channel)
            depth = depths(tree.root, [edge[:2] for edge in down], ready.get(tree.root, 0))
            self.add_edges(chunk, down, COPY, [depth[child] - 1 for _, child, _ in down], channel)

    def add_edges(
        self, chunk: int, edges: Sequence[Edge], op: int, step: int | Sequence[int], channel: int | None = None
    ) -> None:
        """Sends of one chunk between devices, each over links of its own. channel: by default the first free one."""
        if edges:
            src, dst, links = zip(*edges, strict=True)
            channel = self.channel(list(zip(src, dst, strict=True))) if channel is None else channel
            routes = self.add_routes(links)
            self.add_sends(chunk=chunk, src=src, dst=dst, op=op, step=step, route=routes, channel=channel)

    def channel(self, pairs: Iterable[Hashable]) -> int:
        """The first channel that no former chunk used between any of these pairs of devices; it is used then."""
        known = [*pairs]
        former = [*map(self._busy.get, known, repeat(0))]
        taken = reduce(or_, former, 0)
        free = ~taken & (taken + 1)
        self._busy.update(zip(known, map(free.__or__, former), strict=True))
        return free.bit_length() - 1

    def add_own(self, share: Fraction, parts: int = 1) -> None:
        """The blocks that ranks have for themselves, which are part of the vector too, each in so many parts."""
        if self.collective.personalized:
            for rank in range(self.n) if self.collective.exchanges else [self.collective.root]:
                for _ in range(parts):
                    self.add_chunk(share, *self.collective.labels(rank, rank))

    def add_rounds(self, rounds: Sequence[Round]) -> None:
        """The sends of steps one after another.

        Of a plan without chunks these are as many as the steps say, such as one for every rank: its own, or the one
        that ends with it. Of an alltoall each is a block, by origin and target.
        """
        chunks = rounds[0].share.denominator if rounds else self.n
        ends = np.ndindex(*(self.n, self.n) if self.collective.exchanges else (chunks,))
        for end in ends if not self._shares else ():
            self.add_chunk(Fraction(1, chunks), *self.collective.labels(end[0], end[-1]))
        number = 0
        for one in rounds:
            src, dst = one.exchange.ends(self.n)
            for step in range(one.times):
                chunk = one.chunk(src, dst, step)
                self.send(src, dst, chunk=chunk, op=one.op, step=number, channel=one.channel)
                number += 1

    def finish(self, *, rounded: bool = False, common: int = 1) -> Schedule:
        """The schedule.

        rounded: shares without a common denominator in reach are rounded, by less than 2^-28 of their sum if
        that has a short one, where they are refused otherwise. Chunks that begin and end alike keep their sum;
        the largest takes what is over. common: what the denominator has to be a multiple of. Routes of all that
        was sent are found at once.
        """
        if self._pairs:
            keys, calls = np.concatenate([*self._pairs.values()]), np.cumsum([*map(len, self._pairs.values())])
            pairs, first, where = np.unique(keys, return_index=True, return_inverse=True)
            # Numbered call by call, and in rising order in each.
            order = np.lexsort((pairs, np.searchsorted(calls, first, side="right")))
            route = np.empty(len(pairs), dtype=np.int32)
            route[order] = self.routes(*self._devices[np.stack(np.divmod(pairs[order], self.n))])
            for call, routes in zip(self._pairs, np.split(route[where], calls[:-1]), strict=True):
                self._columns[5][call] = routes
            self._pairs.clear()
        if rounded and lcm(common, *(share.denominator for share in self._shares)) > MOST_DENOMINATOR:
            alike = grouped((ends, chunk) for chunk, ends in enumerate(self._ends))
            totals = [sum((self._shares[chunk] for chunk in chunks), start=Fraction(0)) for chunks in alike.values()]
            # Parts as fine as what the chunks of each kind have together lets them be.
            many = min(2**28, MOST_DENOMINATOR // lcm(*(total.denominator for total in totals)) or 1)
            for total, chunks in zip(totals, alike.values(), strict=True):
                parts = {chunk: max(1, int(self._shares[chunk] / total * many)) for chunk in chunks}
                parts[max(chunks, key=lambda chunk: parts[chunk])] += many - sum(parts.values())
                for chunk, part in parts.items():
                    self._shares[chunk] = total * part / many
        return super().finish()


def _whole(what: str, values: npt.ArrayLike) -> Ints32:
    """The values as an array; raises `InputError` for anything but whole numbers."""
    if isinstance(values, Sized) and len(values) > _MOST_AT_ONCE:
        raise InputError(f"{len(values):,} sends at once are too many; send at most {_MOST_AT_ONCE:,}")
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"{what} must be a whole number or an array of them, not {values!r:.60}")
    return array.astype(np.int32)


def _inside(what: str, count: int, *arrays: Ints32) -> None:
    for values in arrays:
        if len(outside := values[(values < 0) | (values >= count)]):
            raise InputError(f"there is no {what} {outside[0]}: there are {count}, from 0 on")


def add_rank_trees(plan: Plan, trees: Sequence[tuple[Parents, int]], share: Fraction) -> None:
    """One chunk per tree of ranks (parents, root): up to reduce, down to distribute, up and then down for allreduce."""
    collective = plan.collective
    for channel, (parents, root) in enumerate(trees):
        chunk = plan.add_chunk(share)
        parent, child, depth = by_levels(parents, root)
        tall = int(depth.max(initial=0)) if collective.reduces else 0
        if collective.reduces:
            up = np.argsort(-depth, kind="stable")
            plan.send(child[up], parent[up], chunk=chunk, op=REDUCE, step=tall - depth[up], channel=channel)
        if collective.ends == EVERY:
            plan.send(parent, child, chunk=chunk, op=COPY, step=tall + depth - 1, channel=channel)


def add_chains(plan: Plan, orders: Sequence[Order]) -> None:
    """One chain per order of all ranks, with equal shares, from its first rank.

    If the collective has a root, the orders are rings: each is followed as a chain from the root, or to it
    for a reduce, and the hop that closes the ring stays unused.
    """
    collective, trees = plan.collective, []
    for order in orders:
        place = order.index(collective.root) if collective.rooted else 0
        path = order[place:] + order[:place]
        if collective.rooted and collective.reduces:
            # Reduced data flows up in the direction of the ring.
            path = (path[0], *reversed(path[1:]))
        trees.append(({b: a for a, b in pairwise(path)}, path[0]))
    add_rank_trees(plan, trees, Fraction(1, len(orders)))


def filled(
    name: str, fill: Callable[..., object], form: str, topology: Topology, collective: Collective, **options: Any
) -> Schedule:
    """The schedule that `fill` puts into a plan.

    Raises `InfeasibleError` if the function does, and `PluginError` if it fails, or if the schedule does not
    do what the collective promises.
    """
    what = f"algorithm {name!r}"
    file, line = source_of(fill)
    plan = Plan(topology, collective, name, form)
    with blamed(what, file, line):
        returned = fill(plan, **options)
        schedule = plan.finish()
    if returned is not None:
        kind = type(returned).__name__
        raise PluginError(f"{located(what, file, line)} returns a {kind}; fill the plan, return nothing")
    if not schedule.chunks:
        raise PluginError(f"{located(what, file, line)} adds no chunk to the plan; begin with plan.add_chunk(share)")
    verdict = verify(schedule)
    if not verdict.ok:
        more = f" (and {count(len(verdict.reasons) - 1, 'more fault')})" if len(verdict.reasons) > 1 else ""
        doing = f"does not do {collective} on {topology.name}, {topology.ranks} ranks"
        raise PluginError(f"{located(what, file, line)} {doing}: {verdict.reasons[0]}{more}")
    return schedule


@dataclass
class Moves:
    """The sends of one chunk: each comes as early as what it carries is there."""

    _plan: SwitchPlan
    _ready: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    # From which step on a GPU has what it read, which takes the place of what it had.
    _read: dict[int, int] = field(default_factory=dict)
    _sends: list[tuple[int, int, int, int]] = field(default_factory=list)
    _links: dict[int, Route] = field(default_factory=dict)

    def send(self, src: int, dst: int, op: int, links: Route | None = None) -> None:
        """One send between devices, over the given links or the shortest route."""
        step = max(self._ready[src], self._read.get(dst, 0) if op == REDUCE else 0)
        if links is not None:
            self._links[len(self._sends)] = links
        self._sends.append((src, dst, op, step))
        self._ready[dst] = max(self._ready[dst], step + 1)

    def tree(self, parents: Mapping[int, int], root: int, *, up: bool, down: bool) -> None:
        """Sums up a tree, given by the parent of every device but the root, and copies down it."""
        order = sorted(parents, key=depths(root, from_parents(parents, root)).__getitem__)
        for child in reversed(order) if up else ():
            self.send(child, parents[child], REDUCE)
        for child in order if down else ():
            self.send(parents[child], child, COPY)

    def read(self, switch: int, owner: int, below: Mapping[int, Sequence[int]]) -> None:
        """A switch adds the copies of a group of GPUs, and hands the owner the sum, its own copy included.

        below: the other GPUs of the group by switch; further switches of this sort add what is below them
        first.
        """
        step = self._added(switch, below, (owner,))
        self._sends.append((switch, owner, COPY, step + 1))
        self._ready[switch] = self._ready[owner] = self._read[owner] = step + 2

    def read_all(self, switch: int, group: Sequence[int]) -> None:
        """Every GPU of a group reads the sum at the same time; each copy is sent once for every reader."""
        step = self._added(switch, {}, group)
        self._sends += [(gpu, switch, REDUCE, step) for gpu in group] * (len(group) - 1)
        self._spread(switch, step + 1, {}, group)

    def _added(self, switch: int, below: Mapping[int, Sequence[int]], owners: Sequence[int] = ()) -> int:
        """The step in which everything arrives at the switch; what keeps nothing takes it in at once."""
        sources = (*owners, *below.get(switch, ()))
        further = [source for source in sources if below.get(source)]
        ready = [self._added(source, below) + 1 for source in further]
        step = max([self._ready[switch], *ready, *(self._ready[source] for source in sources if source not in further)])
        self._sends += [(source, switch, REDUCE, step) for source in sources]
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

    def finish(self, chunk: int) -> None:
        """Adds the sends to the plan, as those of this chunk, in the order of the steps."""
        plan, columns = self._plan, np.array(self._sends, dtype=np.int64).reshape(-1, 4).T
        order = np.argsort(columns[3], kind="stable")
        src, dst, op, step = columns[:, order]
        if not len(order):
            return
        if self._links:
            sends = zip(order.tolist(), src.tolist(), dst.tolist(), strict=True)
            route = np.array(plan.add_routes(self._links.get(at) or plan.router.route(a, b) for at, a, b in sends))
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

    def __init__(self, topology: Topology, collective: Collective, algorithm: str, form: str = "forest") -> None:
        super().__init__(topology, collective, algorithm, form)
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
        self._switches = grouped(self._width)

    def switches_of(self, group: Sequence[int], abilities: Iterable[str]) -> dict[int, Fraction]:
        """The switches with these abilities that all GPUs of a group are linked to and from, by the narrowest link."""
        wanted, rates = set(abilities), {}
        for switch in sorted(self._switches.get(group[0], ())):
            if wanted <= self.topology.devices[switch].in_network:
                ends = [(gpu, switch) for gpu in group] + [(switch, gpu) for gpu in group]
                if (narrowest := min(self._width.get(pair, -1) for pair in ends)) >= 0:
                    rates[switch] = self._rates[narrowest]
        return rates

    def reading_switches(
        self, group: Sequence[int], abilities: Iterable[str] = ("multicast", "reduce_into_reader")
    ) -> dict[int, Fraction]:
        """The switches that a group can read (and store) at, each with its part of the work.

        Raises `InfeasibleError` if there are none.
        """
        rates = self.switches_of(group, abilities)
        if not rates and group == self.ranks and len(self.groups) > 1:
            where = "is for GPUs on one switch; nvls_tree and sharp join the nodes as well"
            raise InfeasibleError(f"{self.algorithm} {where}")
        if not rates:
            needs = "a switch that multicasts and reduces into readers, linked to all GPUs of a node"
            edit = "'nvswitch can=forward,multicast,reduce_into_reader'"
            none = f"{self.topology.name} has none (machine files say it, or an edit such as {edit})"
            raise InfeasibleError(f"{self.algorithm} needs {needs}; {none}")
        return {switch: rate / sum(rates.values()) for switch, rate in rates.items()}


# --- the bound of a schedule -------------------------------------------------------------------------------

# Members from which on a schedule close to the bound is accepted, and no better one searched for.
LARGE = 384
NEARLY, _FAIRLY = Fraction(1, 100), Fraction(1, 20)


def accepted_gap(topology: Topology, collective: Collective) -> Fraction:
    """The share of the bound that trees of single hosts may miss, so that no better ones are searched for."""
    # Where a program of flows is too large, all that remains for an exchange is one route for each pair.
    return Fraction(0) if topology.ranks < LARGE else _FAIRLY if collective.exchanges else NEARLY


def claim(schedule: Schedule | SymmetricSchedule, bound: BoundResult) -> dict[str, Any]:
    """What a schedule says of its bound: the headline of `bound`, and `gap_exact`: 1 - rate/bound as "p/q".

    If it has switches multicast or reduce, with the bound that grants that instead.

    The kind is ``exact`` where the schedule attains the bound, whatever was known before. Elsewhere it is
    ``upper``: a schedule claims no more than it proves.
    """
    base = schedule if isinstance(schedule, Schedule) else schedule.base
    achieved = Candidate(schedule).rate
    held = bound.holding(abilities_used(base))
    headline = held.to_dict(schedule.topology, schedule.collective)
    if achieved is None:
        return headline | {"kind": "upper"}
    gap = 1 - achieved / held.rate
    return headline | {"kind": "upper" if gap else "exact", "gap_exact": str(gap)}


def in_two_phases(topology: Topology, collective: Collective, bound: BoundResult) -> bool:
    """Whether an allreduce first packs the trees of an allgather: one root for every rank.

    How long these take can be stated before the network of thousands of ranks is cut.
    """
    plain = not topology.link_columns.shared and all(device.capacity is None for device in topology.devices)
    switched = len(topology.devices) > len(topology.members) + len(topology.relays)
    return collective.name == "allreduce" and plain and switched and not phases_lose(bound)


def phases_lose(bound: BoundResult) -> bool:
    """Whether a reducescatter and an allgather together cannot attain the bound."""
    return any(each.scope == "reduce-scatter + allgather" and each.rate < bound.rate for each in bound.bounds)


EXACT = 9
_CYCLES = 20_000
# Ranks up to which links are divided into cycles, and the sends of their rings, both ways, that take few seconds.
_MOST_CYCLED = 2048
# NCCL's 64 channels are as many lanes both ways.
_MOST_LANES = 32
_MOST_RING_SENDS = 4_500_000
# Ranks up to which a ring or chain over direct links is searched for. The search takes 0.1 s on a mesh of 8x8
# and 0.4 s on a torus of 16x16, each without a link; on a mesh of 16x16 or a torus of 16x32 it gives up after
# 1.4 s.
_MOST_SEARCHED = 256


def ring_orders(topology: Topology, *, alike: bool = False) -> list[Order]:
    """Directed cyclic orders of the ranks, one per ring; all rings carry equal shares.

    alike: every node is traversed in the same way, which NCCL's graph files need: they describe one node for
    all.
    """
    if (n := topology.ranks) <= 2:
        return [tuple(range(n))]
    packed = _pack(lanes_between(topology), n) if n <= EXACT else []
    candidates = [[*packed, *map(_reverse, packed)]] if packed else []
    if not packed:
        if n <= 6:
            everywhere = [[b for b in range(n) if b != a] for a in range(n)]
            candidates += [[order] for order in hamiltonian(everywhere, closed=True, both=True)]
        candidates += _by_node(topology, alike)
        found = _disjoint(topology, n) or [[_along_links(topology, candidates[0][0])]]
        candidates += [rings for rings in found if rings not in candidates]
        candidates += [[*rings, *map(_reverse, rings)] for rings in candidates]
    # Fewest rings among the fastest: each ring costs a channel.
    return max(candidates, key=lambda rings: (ring_rate(topology, rings), -len(rings)))


def chain_order(topology: Topology, first: int = 0) -> Order:
    """An order of the ranks that starts with `first`, with the fastest slowest hop that a search finds."""
    if (n := topology.ranks) <= 2:
        return (first, *(rank for rank in range(n) if rank != first))
    if n <= EXACT:
        # Of each hop, whether the route avoids other GPUs (1 or 0), and its bandwidth.
        index, (_, head) = topology.member_places.tolist(), topology.ends
        width = dict[tuple[int, int], tuple[int, Fraction]]()
        for (i, a), (j, b) in permutations(enumerate(index), 2):
            passed = {int(head[link]) for link in topology.router.route(a, b)[:-1]}
            width[i, j] = int(passed.isdisjoint(index)), topology.router.together(a, b)
        found = list[Order]()
        # One path for every threshold that still allows one.
        for level in sorted({*width.values()}):
            next_to = [[b for b in range(n) if b != a and width[a, b] >= level] for a in range(n)]
            order = next(hamiltonian(next_to, closed=False, both=False, starts=[first]), None)
            if order is None:
                break
            found.append(order)
        return max(found, key=lambda order: min(width[hop] for hop in pairwise(order)))
    groups = nodes_of(topology, topology.members)
    home = next(i for i, group in enumerate(groups) if first in group)
    ordered = groups[home:] + groups[:home]
    place = ordered[0].index(first)
    ordered[0] = ordered[0][place:] + ordered[0][:place]
    return _along_links(topology, tuple(rank for group in ordered for rank in group), closed=False)


def _along_links(topology: Topology, order: Order, *, closed: bool = True) -> Order:
    """A ring, or a chain from the first of `order`, over direct links of one rate; `order` if none is found."""
    n, alike = topology.ranks, len({*topology.link_columns.bandwidths}) == 1
    direct = lanes_between(topology) if alike and topology.nodes == 1 and n <= _MOST_SEARCHED else {}
    if len({a for a, _ in direct}) < n or direct.keys() >= {*pairwise((*order, order[0]) if closed else order)}:
        return order
    hops = [(a, b) for a, b in direct if closed or b != order[0]]
    return cheapest_order(hops, [0.0] * len(hops), n, closed=closed, limits=LIMITS) or order


def zigzags(n: int) -> list[Order]:
    """Paths through all of 0 … n-1 that use every pair equally often and end at every number equally often.

    n/2 of them for even n, n for odd n (then every pair is used twice): Walecki's (Lucas, Recreations
    mathematiques 2, 1892).
    """
    base = [0, *(way * step for step in range(1, n // 2 + 1) for way in (1, -1))][:n]
    return [tuple((first + step) % n for step in base) for first in range(n // 2 if n % 2 == 0 else n)]


def by_rail(groups: Sequence[Sequence[int]], *, closed: bool) -> list[Order]:
    """Orders node by node that leave a node where the next one is entered: at the same place, on the same rail.

    groups: the ranks of each node, equally many. One order per place to start from, so that all rails are
    used alike; none for single nodes or nodes of one rank, or closed orders of an odd number of nodes of two.
    """
    count, size = len(groups), len(groups[0])
    if count < 2 or size < 2 or len(set(map(len, groups))) > 1 or (closed and count % 2 and size < 3):
        return []
    orders = []
    for start in range(size):
        places = [(start + node % 2) % size for node in range(count)]
        if closed and count % 2:
            places[-1] = (start + 2) % size
        order: list[int] = []
        last = start if closed else (places[-1] - 1) % size
        for node, (enter, leave) in enumerate(zip(places, [*places[1:], last], strict=True)):
            inner = [place for place in (*range(enter + 1, size), *range(enter)) if place != leave]
            order += [groups[node][place] for place in (enter, *inner, leave)]
        orders.append(tuple(order))
    return orders


def ring_rate(topology: Topology, rings: list[Order]) -> Fraction:
    """Bytes/s of all rings together when all run at the same rate and divide every hop among all equal routes."""
    orders = [topology.member_places[np.array(order)] for order in rings]
    ends = np.concatenate(orders), np.concatenate([np.roll(order, -1) for order in orders])
    use, _ = uses_of_messages(topology, *ends)
    shared = resources(topology)
    # What devices carry in all does not count here.
    amounts = by_place(np.add, shared.of_link, use.on().units, len(shared.rate))
    return use.parts * len(rings) / shared.longest(amounts)


def lanes_between(topology: Topology, ranks: Sequence[int] | None = None) -> dict[tuple[int, int], int]:
    """Lanes between each pair of ranks that a full-duplex link joins directly, in units of the thinnest one.

    Without links that are no 32nd of the widest: no library has more rings.

    ranks: those that count, numbered by their place here. Default: all.
    """
    columns, rank = topology.link_columns, np.full(len(topology.devices), -1)
    held = [topology.index[topology.members[i]] for i in (range(topology.ranks) if ranks is None else ranks)]
    rank[held] = np.arange(len(held))
    a, b, rates = rank[columns.src], rank[columns.dst], columns.bandwidths
    own = np.flatnonzero((a >= 0) & (b >= 0) & (columns.bus < 0))
    rows = zip(a[own].tolist(), b[own].tolist(), columns.figure[own].tolist(), strict=True)
    direct = summed(((src, dst), rates[row]) for src, dst, row in rows)
    both = {pair: min(rate, direct[pair[::-1]]) for pair, rate in direct.items() if pair[::-1] in direct}
    least = max(both.values(), default=Fraction(1)) / _MOST_LANES
    unit = min((rate for rate in both.values() if rate >= least), default=least)
    return {pair: int(rate / unit) for pair, rate in both.items() if rate >= least}


def _pack(lanes: dict[tuple[int, int], int], n: int) -> list[Order]:
    """The most cycles that use no lane twice, by depth-first search over `_CYCLES` of them, a second at most."""
    next_to = [[b for b in range(n) if (a, b) in lanes] for a in range(n)]
    cycles = list(islice(hamiltonian(next_to, closed=True, both=True), _CYCLES))
    edges = [(*pairwise((*order, order[0])), *pairwise((order[0], *order[::-1]))) for order in cycles]
    most = min((sum(lanes.get((a, b), 0) for b in range(n)) for a in range(n)), default=0) // 2
    best: list[int] = []
    budget = 200_000

    def search(start: int, chosen: list[int], left: dict[tuple[int, int], int]) -> bool:
        nonlocal best, budget
        best = max(best, chosen, key=len)
        if len(best) >= most or budget < 0:
            return True
        for number in range(start, len(cycles)):
            budget, used = budget - 1, edges[number]
            fits = all(left[edge] > 0 for edge in used)
            if fits and search(number, [*chosen, number], left | {edge: left[edge] - 1 for edge in used}):
                return True
        return False

    search(0, [], lanes)
    return [cycles[number] for number in best]


def _disjoint(topology: Topology, n: int) -> list[list[Order]]:
    """The cycles that all direct links fall into, together and each by itself: one may avoid a slow link."""
    direct = lanes_between(topology) if n <= _MOST_CYCLED else {}
    lanes = {(a, b): number for (a, b), number in direct.items() if a < b}
    if len(lanes) <= n:
        return []
    # A link that differs from most is as good a link; how much its rings lose is measured.
    usual = Counter(lanes.values()).most_common(1)[0][0]
    times = {edge: max(1, round(number / usual)) for edge, number in lanes.items()}
    degrees = summed((end, many) for edge, many in times.items() for end in edge)
    # Each of half as many cycles as links meet at a rank passes a pair of ranks at most once.
    if any(2 * many > degrees[a] for (a, _), many in times.items()):
        return []
    cycles = disjoint_cycles([edge for edge, many in times.items() for _ in range(many)], n)
    most = _MOST_RING_SENDS // (4 * n * n)
    return [cycles[:most], *([cycle] for cycle in cycles)] if most > 1 and cycles else [[cycle] for cycle in cycles]


def _by_node(topology: Topology, alike: bool) -> list[list[Order]]:
    """Node by node: one ring in rank order, or one per local rank, each entering the nodes at another one.

    Inside the nodes the rings follow the rank order, or in turn the cycles that a node's direct links hold.
    """
    groups = nodes_of(topology, topology.members)
    single = [tuple(rank for group in groups for rank in group)]
    local = min(map(len, groups))
    if len(groups) == 1 or local == 1 or len({len(group) for group in groups}) > 1:
        return [single]
    inside = [tuple(range(local))]
    cycles = _pack(lanes_between(topology, groups[0]), local) if 2 < local <= EXACT else []
    chosen = [orders for orders in (inside, [*cycles, *map(_reverse, cycles)]) if orders]
    directions = (False,) if alike else (False, True)
    return [single, *(_rotated(groups, orders, back) for orders in chosen for back in directions)]


def _rotated(groups: list[list[int]], inside: list[Order], back: bool) -> list[Order]:
    """One ring for every order inside a node and every rank that may come first in it: all ports are used alike.

    back: every other node is passed backwards, so that a ring enters a node where it left the one before,
    which keeps it on its rail. An odd number of nodes has two forward in a row: between them the ring changes
    to a third rail.
    """
    doubled = back and len(groups) % 2 == 1 and len(groups) > 2
    rings = []
    for order in inside:
        for first in range(len(order)):
            rotated = order[first:] + order[:first]
            by_node = [rotated, rotated[::-1] if back else rotated] * len(groups)
            if doubled and len(order) > 2:
                start, third, *middle, end = rotated
                by_node[len(groups) - 2 : len(groups)] = [(end, start, *middle, third), (third, *middle, end, start)]
            rings.append(tuple(group[local] for group, own in zip(groups, by_node, strict=False) for local in own))
    return rings


def _reverse(order: Order) -> Order:
    return (order[0], *reversed(order[1:]))
