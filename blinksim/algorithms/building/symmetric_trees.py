"""Trees for clusters of alike nodes, in arrays, and base trees with the symmetries that map them to all others.

Packings of single nodes (`blinksim.packing.hosts`) serve thousands of GPUs. Every shard leaves its host over
ports and spreads in each other host along a tree packed for that kind of host. Where links between switches
are narrow, one host of every other leaf gets it and passes it on.

The trees of one node stand for the rest, also if one node differs and the symmetries rotate only the others.
Machines whose devices are all alike, such as tori, have the trees of `blinksim.packing.forest`. The rate is
not assumed but follows from the loads of all images together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from math import gcd, lcm

import numpy as np

from blinksim.algorithms.building.plan import Plan, accepted_gap
from blinksim.bounds.bound_result import BoundResult
from blinksim.collective import EVERY, SHARDED, Collective
from blinksim.graphs.arrays import Ints, distinct, occurrences, per_topology
from blinksim.graphs.connectivity import grouped
from blinksim.graphs.rooted_trees import depths, trees_over_ports
from blinksim.packing.forest import pairs_of_links, regular_group, trees_of_first
from blinksim.packing.hosts import Hosts, Keep, LocalTree, Path, Piece, Rooted, all_pieces, read_hosts, rooted_pieces
from blinksim.schedule.candidate import SymmetricSchedule
from blinksim.schedule.loads import Tree
from blinksim.schedule.model import COPY, MOST_DENOMINATOR, REDUCE, Schedule
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import CommutingGroup, commuting_group, find_commuting_group

# The trees in hosts of a kind, and which hosts.
Away = list[tuple[tuple[LocalTree, ...], Ints]]


def add_host_trees(
    plan: Plan,
    rate: Fraction,
    pairs: list[int] | None,
    hosts: Hosts | None = None,
    stands: Stands | None = None,
    by_leaf: bool = False,
) -> bool:
    """The chunks and sends of allgather, reducescatter or allreduce; False if the machine is no such cluster.

    rate: the best bytes/s per shard of an allgather. pairs: for every link the equal one that goes back,
    needed for reductions. hosts: what `read_hosts` says, if it is known. stands: which chunks are added, each
    with its own share. Default: all of them. by_leaf: other leaves pass on what they get, also where links
    between switches would carry more.
    """
    hosts = hosts or read_hosts(plan.topology)
    if hosts is None or (plan.collective.reduces and pairs is None):
        return False
    kinds, pieces = hosts.kinds, all_pieces(hosts, rate)
    if pieces is None:
        return False
    writer = _Writer(plan, hosts, pairs)
    groups = [np.flatnonzero(np.array(kinds) == kind) for kind in range(len(pieces))]
    divisions = _divisions(hosts, whole=stands is not None, by_leaf=by_leaf)
    # A host that lacks a port cannot pass on by it.
    odd = {kind for kind in range(len(pieces)) if not all(hosts.widths(kinds.index(kind)))}
    parts = [hosts.relayed(kind, rate) if odd <= {kind} else Fraction(0) for kind in range(len(pieces))]
    shares = hosts.root_shares() if plan.collective.name == "allreduce" else None
    if shares is None:
        shares = [Fraction(1, hosts.ranks)] * len(pieces)
    else:
        parts = [Fraction(0)] * len(pieces)
    for _, host, channel, (member, weight, own, away) in _round_robin(groups, pieces):
        root = int(hosts.device[host, member])
        if not shares[kinds[host]] or (stands is not None and int(stands.group.first[root]) != root):
            continue
        part = parts[kinds[host]]
        rest = [(trees, groups[other][groups[other] != host]) for other, trees in away.items()]
        share = weight * shares[kinds[host]]
        for fraction, position in divisions[host] if part < 1 else ():
            if stands is None or stands.take(root, root):
                writer.begin(host, member, share * (1 - part) * fraction, channel)
                writer.everywhere(host, own, rest, position)
                writer.end()
        for trees, there in rest if part else ():
            for by in there.tolist():
                if stands is not None and not stands.take(root, int(hosts.device[by, member])):
                    continue
                writer.begin(host, member, share * part / (hosts.count - 1), channel)
                depth = writer.everywhere(host, own, [(trees, np.array([by]))])
                writer.onward(by, depth, [(other, others[others != by]) for other, others in rest])
                writer.end()
    return True


def _divisions(hosts: Hosts, whole: bool, by_leaf: bool) -> list[list[tuple[Fraction, int]]]:
    """The parts in which every host's shards go out, with their positions where other leaves pass them on; else -1.

    -1 too where a host lacks a port. whole: what is passed on stays in one piece, because symmetries have
    other hosts pass on its images.
    """
    if hosts.lacking or not (by_leaf or hosts.fabric.narrow(hosts.rates[0][1])):
        return [[(Fraction(1), -1)]] * hosts.count
    divided = []
    for part, pieces in hosts.fabric.passed:
        times = 1 if whole else pieces
        each = [(part / times, position) for position in range(times)] if part else []
        divided.append([*each, *([(1 - part, -1)] if part < 1 else [])])
    return [divided[leaf] for leaf in hosts.fabric.leaf_of]


def _round_robin(groups: Sequence[Ints], pieces: Sequence[Sequence[Piece]]) -> list[tuple[int, int, int, Piece]]:
    """(place among those of its member, host, channel, piece) of every host: all first ones, then all second ones.

    What comes first is served first where much waits. So the members of a host are served alike, and no host
    has to take in all pieces of one member from all others at once.
    """
    jobs = []
    for group, own in zip(groups, pieces, strict=True):
        positions = occurrences(np.array([member for member, *_ in own], dtype=np.int64)).tolist()
        for number, (position, piece) in enumerate(zip(positions, own, strict=True)):
            jobs += [(position, host, host * len(own) + number, piece) for host in group.tolist()]
    return sorted(jobs)


@dataclass(frozen=True)
class Stands:
    """Which chunks stand for all that symmetries take them to. counts: for how many each that was taken does."""

    group: CommutingGroup
    counts: list[int] = field(default_factory=list)

    def take(self, device: int, other: int) -> bool:
        """Whether the chunk of a device that another one forwards (or itself) does; counts it then."""
        pair = np.array([device]), np.array([other])
        src, dst, _ = self.group.between(*pair)
        if int(src[0]) != device or int(dst[0]) != other:
            return False
        self.counts.append(int(self.group.images(*pair)[0]))
        return True


class _Writer:
    """Collects one chunk's sends as arrays over hosts."""

    def __init__(self, plan: Plan, hosts: Hosts, pairs: list[int] | None) -> None:
        self.plan, self.hosts, self.collective = plan, hosts, plan.collective
        self.rank = np.full(len(plan.topology.devices), -1, dtype=np.int64)
        self.rank[plan.topology.member_places] = np.arange(plan.n)
        self.pairs = np.array(pairs or [], dtype=np.int64)
        # Of a path inside hosts its routes in all of them.
        self._inside: dict[Path, Ints] = {}
        self._across: dict[tuple[int, int, Path, int], Ints] = {}
        self._leaf_of, self._place = np.array(hosts.fabric.leaf_of), np.zeros(hosts.count, dtype=np.int64)
        for leaf in hosts.fabric.leaves:
            self._place[list(leaf)] = np.arange(len(leaf))
        self._columns: list[list[Ints]] = []
        self._chunk = self._channel = 0

    def begin(self, host: int, member: int, share: Fraction, channel: int) -> None:
        rank = int(self.rank[self.hosts.device[host, member]])
        self._chunk, self._channel = self.plan.add_chunk(share, *self.collective.labels(rank, rank)), channel
        self._columns = [[], [], [], [], []]

    def everywhere(self, host: int, own: LocalTree, away: Away, position: int = -1) -> dict[int, int]:
        """The tree in the root's own host, then those of the other hosts; returns the depth of the last.

        position: from 0 on, one host of every other leaf gets the data, and passes it on to the rest of its
        leaf; which of the pieces it is that `FabricRoutes.passed` says, each passed on by other hosts.
        """
        fabric, depth = self.hosts.fabric, self.inside(np.array([host]), own, 0)
        if position < 0:
            return self.onward(host, depth, away)
        place = int(self._place[host]) * fabric.passed[fabric.leaf_of[host]][1] + position
        for number, leaf in enumerate(fabric.leaves):
            there = [(trees, np.intersect1d(others, leaf)) for trees, others in away]
            if number == fabric.leaf_of[host]:
                self.onward(host, depth, there)
                continue
            # Hosts at the same place of their leaves pass on for each other, so that all do it equally often.
            by = leaf[place % len(leaf)]
            first = [(trees, np.array([by])) for trees, others in there if by in others]
            self.onward(by, self.onward(host, depth, first), [(trees, others[others != by]) for trees, others in there])
        return depth

    def onward(self, host: int, depth: dict[int, int], away: Away) -> dict[int, int]:
        """From a host whose members have the data at these depths to others, and inside them."""
        last: dict[int, int] = {}
        for trees, others in away:
            if not len(others):
                continue
            # From the next host on, so that not all hosts begin with the same one.
            there = np.concatenate(np.split(others, [np.searchsorted(others, host)])[::-1])
            for tree in trees:
                start = depth[self.hosts.shape.feeds[tree.port][0]]
                self.across(host, there, tree, start)
                last |= {member: start + 1 + at for member, at in self.inside(there, tree, start + 1).items()}
        return last or depth

    def from_host_to_host(self, home: int, own: LocalTree, trees: Sequence[LocalTree], arcs: Ints) -> None:
        """The tree in the root's own host, those of all others, and what goes from node to node along `arcs`.

        trees: of every host, and after these of the ways back into the root's own host. arcs: (A, 2), parents
        first.
        """
        hosts = self.hosts
        host = np.concatenate([np.arange(hosts.count), np.full(len(trees) - hosts.count, home)])
        ends, first = np.array(hosts.fabric.ends), np.zeros(len(trees), dtype=np.int64)
        several = {id(tree): tree for tree in (own, *trees)}
        depth = {key: depths(tree.root, [edge[:2] for edge in tree.edges]) for key, tree in several.items()}
        for a, b in arcs.tolist():
            there = depth[id(own if a == home else trees[a])]
            first[b] = first[a] + there[hosts.sender(trees[b])[0]] + 1
        self.inside(np.array([home]), own, 0)
        for tree in several.values():
            a, place = arcs[[trees[b] is tree for b in arcs[:, 1].tolist()]].T
            b = host[place]
            self.inside(b, tree, first[place])
            sender, out = hosts.sender(tree)
            pairs, pair = np.unique(ends[[a, b], tree.port], axis=1, return_inverse=True)
            for number, (here, there) in enumerate(pairs.T.tolist()):
                of = pair.ravel() == number
                mid = hosts.fabric.route(here, there) or ()
                routes = self._both(self._crossing(a[of], b[of], tree, out, mid))
                ends_of = hosts.device[a[of], sender], hosts.device[b[of], tree.root]
                self._put(*ends_of, first[place[of]] - 1, (routes[:, 0], routes[:, 1]))

    def _crossing(self, a: Ints, b: Ints, tree: LocalTree, out: Path, mid: Path) -> Ints:
        """The links from members out by a tree's port to where it enters other hosts, a row for each two."""
        hosts, port = self.hosts, tree.port
        before = hosts.link[a][:, list(out)], hosts.outof[a, port, None]
        after = hosts.into[b, port, None], hosts.link[b][:, list(tree.entry)]
        parts = (*before, np.array([mid], dtype=np.int64), *after)
        return np.concatenate([np.broadcast_to(part, (len(b), part.shape[1])) for part in parts], axis=1)

    def _both(self, routes: Ints) -> Ints:
        """The numbers of routes of equal length, one a row, and of their reverses; 0 where not needed.

        0 as well for rows with a link that their host lacks (-1), as nothing goes there.
        """
        number = np.zeros((len(routes), 2), dtype=np.int64)
        there = (routes >= 0).all(axis=1)
        routes = routes[there]
        first = int(self.collective.ends != EVERY)
        both = [*[routes][first:], *([self.pairs[routes[:, ::-1]]] if self.collective.reduces else [])]
        added = self.plan.add_routes(np.stack(both, axis=1).reshape(-1, routes.shape[1]).tolist())
        number[there, first : first + len(both)] = np.array(added, dtype=np.int64).reshape(len(routes), len(both))
        return number

    def _put(self, src: Ints, dst: Ints, depth: Ints, routes: Iterable[Ints]) -> None:
        for column, values in zip(self._columns, (src, dst, depth, *routes), strict=True):
            column.append(values.ravel())

    def inside(self, there: Ints, tree: LocalTree, first: int | Ints) -> dict[int, int]:
        """The tree's edges in all these hosts, whose root has the data at step `first`; returns members' depths."""
        depth, device = depths(tree.root, [edge[:2] for edge in tree.edges]), self.hosts.device[there]
        columns = np.zeros((5, len(there), len(tree.edges)), dtype=np.int64)
        for place, (a, b, path) in enumerate(tree.edges):
            if path not in self._inside:
                self._inside[path] = self._both(self.hosts.link[:, list(path)])
            columns[:3, :, place] = device[:, a], device[:, b], np.full(len(there), depth[b] - 1 + first)
            columns[3:, :, place] = self._inside[path][there].T
        self._put(columns[0], columns[1], columns[2], columns[3:])
        return depth

    def across(self, host: int, there: Ints, tree: LocalTree, step: int) -> None:
        """From the member that feeds the tree's port to where it enters all these hosts."""
        port, (feeder, out) = tree.port, self.hosts.shape.feeds[tree.port]
        routes = np.zeros((len(there), 2), dtype=np.int64)
        leaves = self._leaf_of[there]
        for leaf in distinct(leaves).tolist():
            here = leaves == leaf
            # To every host of a leaf and back, which are equally long; zeros for the host itself.
            key = (host, port, tree.entry, leaf)
            if (known := self._across.get(key)) is None:
                hosts, whole = self.hosts, self.hosts.fabric.leaves[leaf]
                known = self._across[key] = np.zeros((len(whole), 2), dtype=np.int64)
                others = np.array([other for other in whole if other != host], dtype=np.int64)
                mid = hosts.fabric.route(hosts.fabric.ends[host][port], hosts.fabric.ends[whole[0]][port])
                if len(others) and mid is not None:
                    known[self._place[others]] = self._both(self._crossing(np.array([host]), others, tree, out, mid))
            routes[here] = known[self._place[there[here]]]
        src = np.full(len(there), self.hosts.device[host, feeder])
        self._put(src, self.hosts.device[there, tree.root], np.full(len(there), step), (routes[:, 0], routes[:, 1]))

    def end(self) -> None:
        """Hand the chunk over: up in the reverse order for a reduction, then down."""
        src, dst, depth, ahead, back = (np.concatenate(column) for column in self._columns)
        tall = int(depth.max()) + 1
        same = {"chunk": self._chunk, "channel": self._channel}
        if self.collective.reduces:
            self.plan.add_sends(src=dst, dst=src, op=REDUCE, step=tall - 1 - depth, route=back, **same)
        if self.collective.ends == EVERY:
            after = tall if self.collective.reduces else 0
            self.plan.add_sends(src=src, dst=dst, op=COPY, step=after + depth, route=ahead, **same)


def rooted_host_trees(
    topology: Topology, collective: Collective, aim: Fraction, *, by_leaf: bool = True, keep: Keep = "back"
) -> Schedule | None:
    """A broadcast or reduce by trees of nodes over every port; None if nodes differ in more than bandwidth.

    The root hands a part of its data to the member of each port, and every member that receives one passes it
    on to the next nodes and in its own. So each port carries its part once in and once out, and all ports
    together carry the whole. aim: algbw, bytes/s; 0: the lowest trees inside nodes, however slow. by_leaf:
    nodes of different switches form trees of their own, chained, so that each part crosses once between them,
    in groups of a dragonfly by different routes. keep: where nodes form one tree.
    """
    hosts, pairs = read_hosts(topology), pairs_of_links(topology)
    if hosts is None or hosts.lacking or (collective.collects and pairs is None):
        return None
    ((home, root),) = np.argwhere(hosts.device == topology.member_places[collective.root]).tolist()
    every = hosts.fabric.leaves if by_leaf else [tuple(range(hosts.count))]
    leaves = sorted(every, key=lambda leaf: home not in leaf)
    pieces = rooted_pieces(hosts, home, root, aim, "whole" if leaves[1:] else keep)
    if pieces is None:
        return None
    # Trees over all ports, or as many as there are nodes for. Unequal parts stay on one, half by half.
    others, alike = min(map(len, leaves)) - 1, len(pieces) if len({share for _, share in pieces}) == 1 else 1
    wide = (many for many in range(1, alike + 1) if many * (many - 1) < max(1, others))
    ports = max(many for many in wide if alike % many == 0)
    twice = 1 + (ports == 1 and others > 2)
    parts = [(trees, share / twice) for trees, share in pieces for _ in range(twice)]
    writer = _Writer(Plan(topology, collective, "packed", "forest"), hosts, pairs)
    for channel, (own, entered, arcs) in enumerate(_between_hosts(hosts, home, parts, ports * twice, leaves)):
        writer.begin(home, root, parts[channel][1], channel)
        writer.from_host_to_host(home, own, entered, np.array(arcs))
        writer.end()
    return writer.plan.finish(rounded=True)


def _between_hosts(
    hosts: Hosts, home: int, parts: Rooted, ports: int, leaves: Sequence[Sequence[int]]
) -> Iterator[tuple[LocalTree, list[LocalTree], list[tuple[int, int]]]]:
    """Of every part the tree in the root's host, those of all others, and the arcs between hosts.

    leaves: hosts that form trees of their own over `ports` ports, one after another below a host of an earlier
    one that has a port left. What only leaves the root's host comes back by such ports, or by those used least:
    more trees and arcs.
    """
    # The hosts of every leaf, below one of another leaf but for the first. By whose ports every host sends.
    levels = [[-1] * (home not in leaf) + sorted(leaf, key=home.__ne__) for leaf in leaves]
    shapes = [trees_over_ports(ports, len(level)) for level in levels]
    sent = Counter[tuple[int, int]]()
    for (level, shape), first in product(zip(levels, shapes, strict=True), range(0, len(parts), ports)):
        sent.update({(level[a], first + port) for arcs in shape for a, _, port in arcs})
    strides = [stride for stride in range(1, max(2, len(leaves))) if gcd(stride, len(leaves)) == 1]
    by_member = grouped((tree.root, way) for way, ((_, tree, *_), _) in enumerate(parts))
    for channel, ((own, *entered), _) in enumerate(parts):
        trees, along = entered[:1] * hosts.count, list[tuple[int, int]]()
        for place in range(len(leaves)):
            turn = place * strides[channel % len(strides)] % len(leaves)
            above = next((b for _, b in along if (b, channel) not in sent), home)
            sent[above, channel] += 1
            nodes = [above, *levels[turn][1:]]
            for a, b, port in shapes[turn][channel % ports]:
                trees[nodes[b]] = parts[channel - channel % ports + port][0][1 + hosts.kinds[nodes[b]]]
                along.append((nodes[a], nodes[b]))
        _, reached = zip(*along, strict=True)
        for member in () if own.edges else {*hosts.shape.members} - {own.root}:
            host, way = min(product(reached, by_member[member]), key=sent.__getitem__)
            sent[host, way] += 1
            along.append((host, len(trees)))
            trees.append(replace(parts[way][0][1], edges=()))
        yield own, trees, along


def host_rotations(hosts: Hosts, devices: int) -> list[Ints]:
    """Rotations of hosts of one kind below the same switches, and of leaves of the most frequent kind.

    Hosts below several such leaves of one size rotate together too, which commutes with rotating the leaves.

    devices: how many devices the cluster has. What is no symmetry is for the caller to find.
    """
    kinds, rotations = hosts.kinds, list[Ints]()
    leaves: dict[int, list[tuple[int, ...]]] = defaultdict(list)

    def rotate(rounds: Iterable[Sequence[Sequence[int]]]) -> None:
        """Of every round, each group of hosts to the place of the next one, with the switches at their ports."""
        goes = np.arange(devices)
        for groups in rounds:
            for here, there in zip(groups, [*groups[1:], groups[0]], strict=True):
                for a, b in zip(here, there, strict=True):
                    held = (hosts.device[a] >= 0) & (hosts.device[b] >= 0)
                    goes[hosts.device[a][held]] = hosts.device[b][held]
                    goes[list(hosts.fabric.ends[a])] = list(hosts.fabric.ends[b])
        rotations.append(goes)

    for leaf in hosts.fabric.leaves:
        alike = grouped((kinds[host], [host]) for host in leaf)
        for group in alike.values():
            if len(group) > 1:
                rotate([group])
        if len(alike) == 1 and 0 in alike:
            leaves[len(leaf)].append(leaf)
    for size, several in leaves.items():
        if len(several) > 1:
            rotate([several])
            if size > 1:
                rotate([[host] for host in leaf] for leaf in several)
    return rotations


# Sends of the trees from which on one of each sort is said once: written out, they take a file of more than 1 MB.
FEW_SENDS = 24_000
# Sends of trees that are written one by one at most, and how many times as many images of trees may have.
_MOST_IN_FULL = 40_000_000
_MOST_TIMES = 8


def many_sends(topology: Topology, collective: Collective, many: int) -> bool:
    """Whether trees from all ranks have so many sends that one of each sort should stand for them."""
    return collective.name in SHARDED and collective.phases * topology.ranks * (topology.ranks - 1) >= many


def symmetric_packed(topology: Topology, collective: Collective, bound: BoundResult) -> SymmetricSchedule | None:
    """The packed trees of a large symmetric machine, if they attain the bound, or miss by no more than is accepted of
    trees of hosts; else None, and they must be searched."""
    if not many_sends(topology, collective, FEW_SENDS):
        return None
    schedule = symmetric_trees(topology, collective, bound.rate)
    least = (1 - accepted_gap(topology, collective)) * bound.rate
    if schedule is None or schedule.rate is None or schedule.rate < least:
        return None
    # Symmetries may change trees into so many that all of them could not be written out, where one by one they can.
    plain = many_sends(topology, collective, _MOST_IN_FULL)
    return schedule if plain or many_sends(topology, collective, -(-schedule.sends // _MOST_TIMES)) else None


def symmetric_trees(topology: Topology, collective: Collective, aim: Fraction) -> SymmetricSchedule | None:
    """Those of alike hosts, or of alike devices; None if the machine is neither. aim: algbw, bytes/s."""
    return symmetric_host_trees(topology, collective, aim) or symmetric_device_trees(topology, collective, aim)


# Trees for a leaf and others of one cluster share its group.
_rotations: Callable[[Topology], CommutingGroup | None] = per_topology(
    lambda of: find_commuting_group(of, host_rotations(hosts, len(of.devices))) if (hosts := read_hosts(of)) else None
)


def symmetric_host_trees(
    topology: Topology, collective: Collective, aim: Fraction, by_leaf: bool = False
) -> SymmetricSchedule | None:
    """The trees of a cluster of alike hosts; None if it is none, or it has no such group.

    aim: algbw, bytes/s. by_leaf: as in `add_host_trees`.
    """
    if collective.name not in SHARDED or topology.nodes < 2:
        return None
    hosts = read_hosts(topology)
    rotations = _rotations(topology)
    if hosts is None or rotations is None:
        return None
    best: SymmetricSchedule | None = None
    shard = aim / topology.ranks * collective.phases
    # Members of a host may share its ports such that symmetries inside the host change that. So those that leave
    # every device in its place in its host come second.
    place = np.full(len(rotations.first), -1)
    there = hosts.device >= 0
    place[hosts.device[there]] = np.nonzero(there)[1]
    for group in filter(None, dict.fromkeys((rotations, rotations.keeping(place)))):
        plan, stands = Plan(topology, collective, "packed", "forest"), Stands(group)
        if add_host_trees(plan, shard, pairs_of_links(topology), hosts, stands, by_leaf):
            schedule = weighed(plan.finish(rounded=True), group, stands.counts)
            if schedule is not None and (best is None or (schedule.rate or 0) > (best.rate or 0)):
                best = schedule
        if best is not None and best.rate == aim:
            break
    return best


def alike_devices(topology: Topology) -> tuple[CommutingGroup, list[int]] | None:
    """A group that takes any device to any other by one element each, and the reverse of every link.

    None unless there are members and direct links alone, one from a device to another.
    """
    tail, head = topology.ends
    count = len(topology.devices)
    single = len(distinct(tail * count + head)) == len(tail)
    if count != topology.ranks or not single or any(device.capacity is not None for device in topology.devices):
        return None
    pairs, group = pairs_of_links(topology), commuting_group(topology)
    return None if pairs is None or group is None or not group.regular else (group, pairs)


def symmetric_device_trees(topology: Topology, collective: Collective, aim: Fraction) -> SymmetricSchedule | None:
    """The trees of the first device of a machine in which all are alike, and their images; None as `device_trees`."""
    trees, group = device_trees(topology, collective, aim), commuting_group(topology)
    if not trees or group is None:
        return None
    plan = Plan(topology, collective, "packed", "forest")
    plan.add_trees(trees)
    return weighed(plan.finish(rounded=True), group, [topology.ranks] * len(trees))


def device_trees(topology: Topology, collective: Collective, aim: Fraction, *, images: bool = False) -> list[Tree]:
    """The trees of the first device of a machine of `alike_devices`, or with their `images` those of all.

    None of other machines, and none where such trees do not hold the aim (algbw, bytes/s).
    """
    alike = alike_devices(topology) if collective.name in SHARDED else None
    if alike is None:
        return []
    (group, pairs), (tail, head), count = alike, topology.ends, topology.ranks
    exponents, own = group.place - group.place[0], np.flatnonzero(tail == 0)
    heads = np.stack([group.along(exponents, np.full(count, end)) for end in head[own].tolist()], axis=1)
    rates = [topology.links[link].bandwidth for link in own.tolist()]
    packed = trees_of_first(heads, rates, aim / count * collective.phases)
    every = regular_group(topology) if images else np.arange(count)[None]
    if packed is None or every is None:
        return []
    (parts, units), key, trees = packed, tail * count + head, list[Tree]()
    order = np.argsort(key)
    for root, image in enumerate(every):
        for parents, children, amount in parts:
            ends = image[parents], image[children]
            links = order[np.searchsorted(key, ends[0] * count + ends[1], sorter=order)]
            edges = list(zip(*(column.tolist() for column in (*ends, links)), strict=True))
            down = tuple((a, b, (link,)) for a, b, link in edges) if collective.ends == EVERY else ()
            up = tuple((a, b, (pairs[link],)) for a, b, link in edges) if collective.reduces else ()
            trees.append(Tree(root, Fraction(amount, units * count), down, up))
    return trees


def weighed(parts: Schedule, group: CommutingGroup, counts: Sequence[int]) -> SymmetricSchedule | None:
    """The schedule in which the images of every chunk together have the share of all that it stands for.

    A chunk has more images than that if what permutes the rest of the machine changes its tree: then each has
    less. None if shares get too long. parts: with the share of one chunk. counts: for how many each stands.
    """
    whole = SymmetricSchedule(parts, group)
    factor = [Fraction(many, times) for many, times in zip(counts, whole.times.tolist(), strict=True)]
    if all(part == 1 for part in factor):
        return whole
    common = lcm(*(part.denominator for part in factor))
    if parts.share_den * common > MOST_DENOMINATOR:
        return None
    scaled = parts.share_num * np.array([int(part * common) for part in factor], dtype=np.int64)
    return SymmetricSchedule(replace(parts, share_num=scaled, share_den=parts.share_den * common), group)
