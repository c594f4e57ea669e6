"""Alike nodes of a cluster, the fabric between them, and the trees packed inside one node for all.

What a member sends reaches every other node through one of its ports and spreads there. So a node sees two
kinds of trees: those of its own members, and those of all others together, which enter through its ports.
Packing both on the node alone (the rest of the cluster is one more root) is small, and the cluster's rate is
the least of its nodes'. A node with a link that differs gets a packing of its own; one that lacks a device or
link has it put back with no bandwidth. The optimum of a quotient need not be that of the whole, so the
rate is claimed only after it has been compared with the bound of the whole graph.

Nodes whose ports end at the same switches are a leaf. Copies for every node of another leaf can fill the
links between the switches, while one copy for the leaf, which one of its nodes passes on to the others,
seldom does. The nodes then forward as much in all as before, because every byte enters every node once either
way.

The trees that enter a node are dealt out to the members of every other node, as far as possible so that a
member's data leaves over the port that it feeds itself. A shard is cut wherever one of its trees ends in any
node, so that each piece has one tree in every node (the common refinement of the partitions).

A shard that enters a node by one port spreads inside from there, so it loads the links inside almost as much
as the node's own shards do. In two to four nodes of eight GPUs those links are full before the ports are.
Then a part of every shard enters other nodes by all their ports: each member passes what it got inside its
own node on over its own port, so that all members of all other nodes have it two sends after its root. The
loads give the size of that part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from itertools import pairwise, permutations, zip_longest
from math import ceil, gcd, lcm
from typing import Any, Literal

import numpy as np

from blinksim.graphs.arrays import Bools, Ints, distinct, per_topology, scattered, side_by_side
from blinksim.graphs.connectivity import breadth_first, grouped, path_to, summed
from blinksim.graphs.network import Network, whole
from blinksim.graphs.programs import SharedCapacity
from blinksim.graphs.rooted_trees import depths
from blinksim.packing.forest import Split, best_split, fewest, pack_forest
from blinksim.topology.cluster import LinkName, links_by_name
from blinksim.topology.graph import Topology

# Hosts that may lack something; of more, they are looked at as they are.
_MOST_LACKING = 256


@dataclass(frozen=True, eq=False)
class Parts:
    """Devices and links of a cluster in arrays; those that are missing come last.

    node, ranked, slot (device): its host, whether it holds a rank, and what orders the devices of one host.
    src, dst, kind, figure (link): ends, class and row of `bandwidths`.
    """

    node: Ints
    ranked: Bools
    slot: Ints
    src: Ints
    dst: Ints
    kind: Ints
    figure: Ints
    bandwidths: tuple[Fraction, ...]

    def longer(self, **more: Ints | Bools) -> Parts:
        """With further entries at the end of these columns."""
        columns: dict[str, Any] = {of: np.concatenate([getattr(self, of), last]) for of, last in more.items()}
        return replace(self, **columns)


def _parts(topology: Topology) -> Parts:
    """The cluster with what some of its hosts lack, where that holds no rank; otherwise as it is."""
    columns, count = topology.link_columns, len(topology.devices)
    names = sorted(columns.classes)
    kind = np.array([names.index(name) for name in columns.classes], dtype=np.int64)[columns.kind]
    ranked = np.isin(np.arange(count), topology.member_places)
    node, src, dst, figure = topology.device_nodes, columns.src, columns.dst, columns.figure
    plain = Parts(node, ranked, np.arange(count), src, dst, kind, figure, (*columns.bandwidths, Fraction(0)))
    owner = np.maximum(node[src], node[dst])
    if not len(used := distinct(node[ranked & (node >= 0)])):
        return plain
    most = int(node.max()) + 1
    devices, links = (np.bincount(of[of >= 0], minlength=most)[used] for of in (node, owner))
    full = np.argmax(devices * (len(owner) + 1) + links)
    lacking = used[(devices < devices[full]) | (links < links[full])].tolist()
    if not lacking or len(lacking) > _MOST_LACKING:
        return plain
    # The cluster with what the hosts `lacking` something lack beside the fullest one, at no bandwidth.
    # The device outside hosts that a link joins; -1 for one inside.
    outside = node < 0
    switch = np.where(outside[src], src, np.where(outside[dst], dst, -1)).tolist()
    slot, added = plain.slot.tolist(), list[int]()
    more_links = list[tuple[int, int, int]]()
    all_devices, all_links = _by_name(topology, owner, int(used[full]))
    for host in lacking:
        own, wires = _by_name(topology, owner, host)
        if own.keys() - all_devices.keys() or wires.keys() - all_links.keys():
            return plain
        for place, (name, like) in enumerate(all_devices.items()):
            if name not in own:
                if plain.ranked[like]:
                    return plain
                own[name] = len(slot)
                slot.append(0)
                added.append(host)
            slot[own[name]] = place
        there = {switch[all_links[key]]: switch[link] for key, link in wires.items()}
        for key in (key for key in all_links if key not in wires):
            beyond = switch[all_links[key]]
            a, b = (own[name] if name else there.get(beyond, beyond) for name in key[:2])
            more_links.append((a, b, names.index(key[2])))
    src, dst, kind = np.array(more_links, dtype=np.int64).reshape(-1, 3).T
    linked = plain.longer(src=src, dst=dst, kind=kind, figure=np.full(len(src), len(plain.bandwidths) - 1))
    whole = linked.longer(node=np.array(added, dtype=np.int64), ranked=np.zeros(len(added), dtype=np.bool_))
    return replace(whole, slot=np.array(slot, dtype=np.int64))


def _by_name(topology: Topology, owner: Ints, host: int) -> tuple[dict[str, int], dict[LinkName, int]]:
    """The devices of a host by their names there, and its links by ends, "" for the fabric, and class."""
    numbers = np.flatnonzero(topology.device_nodes == host).tolist()
    local = {topology.devices[number].name.removeprefix(f"n{host}."): number for number in numbers}
    return local, links_by_name(topology, host, np.flatnonzero(owner == host).tolist())


Path = tuple[int, ...]
# (parent, child, local links), parents before children.
Edges = tuple[tuple[int, int, Path], ...]
# Pieces that a shard is cut into so that all hosts of a leaf pass on equally much.
_MOST_PIECES = 32


class FabricRoutes:
    """The shortest route from each switch of a fabric to each other.

    ends: the switches (numbers of devices) at the ports of every host. inner: number and bandwidth of the
    link between two switches.
    """

    def __init__(self, ends: Sequence[tuple[int, ...]], inner: Mapping[tuple[int, int], tuple[int, Fraction]]) -> None:
        self.ends, self._inner = tuple(ends), inner
        out = grouped(inner)
        self._reached_from = cache(lambda switch: breadth_first(switch, lambda here: out.get(here, ())))

    @cached_property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The hosts by the switches that their ports end at."""
        by_switches = grouped((switches, host) for host, switches in enumerate(self.ends))
        return tuple(map(tuple, by_switches.values()))

    @cached_property
    def leaf_of(self) -> tuple[int, ...]:
        """The number of each host's leaf."""
        place = {host: number for number, leaf in enumerate(self.leaves) for host in leaf}
        return tuple(place[host] for host in range(len(self.ends)))

    @cached_property
    def passed(self) -> tuple[tuple[Fraction, int], ...]:
        """For every leaf: the part of its hosts' shards that one host of each other leaf passes on, in how many pieces.

        A host of a small leaf has fewer to pass to, so it sends more itself, directly. With s hosts in a
        leaf, 1 - 1/s of what comes in for it is passed on inside. Shards passed on in that ratio have every
        host send out n - 1 shards for n hosts, as it takes in; those of the largest leaves all are. The
        pieces have different hosts pass them on, so that all hosts of a leaf do it equally often.
        """
        sizes = [len(leaf) for leaf in self.leaves]
        most, shares = max(sizes), {}
        for size in set(sizes):
            pieces = lcm(*(other // gcd(size, other) for other in sizes))
            part = Fraction(most * (size - 1), size * (most - 1)) if most > 1 else Fraction(1)
            shares[size] = part, pieces if pieces <= _MOST_PIECES else 1
        return tuple(shares[size] for size in sizes)

    def route(self, a: int, b: int) -> Path | None:
        """The links from one switch to another, none for the same; None if there is none."""
        came = self._reached_from(a)
        return tuple(self._inner[hop][0] for hop in pairwise(path_to(came, b)[::-1])) if b in came else None

    def narrow(self, widths: Sequence[Fraction]) -> bool:
        """True if the links between switches are full before the ports, when each host sends to each other directly.

        widths: bytes/s of every port, which are used as these compare.
        """
        # In whole units of the widths, which add up quickly.
        units, unit = whole([(width, 1) for width in widths])
        load: Counter[int] = Counter()
        for leaf, other in permutations(self.leaves, 2):
            for start, end, width in zip(self.ends[leaf[0]], self.ends[other[0]], units, strict=True):
                for link in self.route(start, end) or ():
                    load[link] += len(leaf) * len(other) * width
        most = (len(self.ends) - 1) / unit
        return any(load[link] > most * bandwidth for link, bandwidth in self._inner.values())


Rates = tuple[tuple[tuple[Fraction, ...], tuple[Fraction, ...], tuple[Fraction, ...]], ...]


@dataclass(frozen=True)
class Shape:
    """What all hosts have in common, in local numbers: devices, links between them, members, and ports.

    ports: the local device behind every port.
    """

    devices: int
    tail: tuple[int, ...]
    head: tuple[int, ...]
    members: tuple[int, ...]
    ports: tuple[int, ...]

    @property
    def outside(self) -> int:
        """What stands for the rest of the cluster in the network of a host, after its devices and the gate."""
        return self.devices + 1

    @cached_property
    def nearest(self) -> tuple[dict[int, Path], ...]:
        """Per port, the members that reach it over forwarders by fewest links, with these."""
        reverse, found = replace(self, tail=self.head, head=self.tail), list[dict[int, Path]]()
        for port in self.ports:
            paths = paths_from(reverse, port)
            least = min(map(len, paths.values()), default=0)
            found.append({member: path[::-1] for member, path in paths.items() if len(path) == least})
        return tuple(found)

    @cached_property
    def feeds(self) -> tuple[tuple[int, Path], ...]:
        """Per port, the member whose data leaves there, of the `nearest`, and links; ports shared evenly."""
        feeds, used = list[tuple[int, Path]](), dict.fromkeys(self.members, 0)
        for near in self.nearest:
            member = min(near, key=lambda vertex: (used[vertex], vertex))
            used[member] += 1
            feeds.append((member, near[member]))
        return tuple(feeds)


@dataclass(frozen=True, eq=False)
class Hosts:
    """A cluster, host by host: device and link numbers of the topology at every local number.

    device (host, local device), link (host, local link), into and outof (host, port): numbers, -1 for what
    one lacks. rates: exact bandwidths of (local links, into, outof) of every host, 0 for what it lacks.
    fabric: the routes between the switches at their ports.
    """

    shape: Shape
    device: Ints
    link: Ints
    into: Ints
    outof: Ints
    rates: Rates
    fabric: FabricRoutes

    @property
    def count(self) -> int:
        return len(self.device)

    @property
    def ranks(self) -> int:
        return self.count * len(self.shape.members)

    @cached_property
    def kinds(self) -> list[int]:
        """A number for every host, equal for hosts with equal bandwidths; 0 is the most frequent kind."""
        # Fractions hash slowly, and most hosts share the very same rates.
        objects, known = {id(rates): rates for rates in self.rates}, dict[object, int]()
        first = {key: known.setdefault(rates, key) for key, rates in objects.items()}
        label = [first[id(rates)] for rates in self.rates]
        number = {kind: place for place, (kind, _) in enumerate(Counter(label).most_common())}
        return [number[kind] for kind in label]

    def widths(self, host: int) -> list[Fraction]:
        """What can leave a host by each port."""
        links, _, outof = self.rates[host]
        return [min([outof[port], *(links[i] for i in path)]) for port, (_, path) in enumerate(self.shape.feeds)]

    def sender(self, tree: LocalTree) -> tuple[int, Path]:
        """The member that sends on what a tree got by its port, and the links to the port."""
        return self.shape.feeds[tree.port] if tree.out is None else (tree.root, tree.out)

    def relayed(self, kind: int, rate: Fraction) -> Fraction:
        """The part of its shards that each host of this kind sends to one other host, which forwards it.

        Not 0 where an odd host cannot give out a copy of everything to every other host at `rate` (bytes/s a
        shard).
        """
        if kind == 0 or self.count < 4:
            return Fraction(0)
        wanted = rate * len(self.shape.members) * (self.count - 1)
        missing = wanted - sum(self.widths(self.kinds.index(kind)))
        part = missing / (rate * len(self.shape.members) * (self.count - 2))
        # Rounded up to keep the shares' denominators short.
        return min(Fraction(1), Fraction(ceil(part * 1024), 1024)) if missing > 0 else Fraction(0)

    def root_shares(self) -> list[Fraction] | None:
        """The part of an allreduce's data whose root each member of a kind should be; None if equal parts are best.

        A host with the part x of a rate r as root sends it to each of N - 1 others, and its part of what
        these reduce: in all r + (N - 2) x over ports of bandwidth w. So all ports are full with
        x = (w - r) / (N - 2).
        """
        kinds = self.kinds
        wide = [sum(self.widths(kinds.index(kind)), start=Fraction(0)) for kind in range(max(kinds) + 1)]
        others, many = self.count - 2, len(self.shape.members)
        if len(set(wide)) < 2 or self.count < 4:
            return None
        rate = sum((wide[kind] for kind in kinds), start=Fraction(0)) / (2 * others + 2)
        # Rounded to keep the denominators short; the most frequent kind has the rest.
        parts = [Fraction(max(0, int((own - rate) / (others * rate * many) * 2**20)), 2**20) for own in wide]
        rest = 1 - sum((parts[kind] * many for kind in kinds if kind), start=Fraction(0))
        parts[0] = rest / (many * kinds.count(0))
        return parts if parts[0] > 0 else None

    @property
    def lacking(self) -> bool:
        """True if a host lacks a device or a link."""
        return any(bool((table < 0).any()) for table in (self.device, self.link, self.into, self.outof))


@dataclass(frozen=True, slots=True)
class LocalTree:
    """A tree inside a host with `weight` (1: a whole shard), without which trees compare.

    port: where its data enters, -1 if its root is a member.
    edges: (parent, child, local links), parents before children. entry: links from the port to the first
    member. out: from there back to the port, by which it sends on; None if the port's feeder does.
    """

    root: int
    weight: Fraction = field(compare=False)
    edges: Edges
    port: int = -1
    entry: Path = ()
    out: Path | None = None


@per_topology
def read_hosts(topology: Topology) -> Hosts | None:
    """The cluster as alike hosts, all compared at once.

    None if there is one host only, if hosts differ in more than bandwidths, or if the fabric does not join
    the same ports of all.
    """
    if topology.link_columns.shared or any(device.capacity is not None for device in topology.devices):
        return None
    parts = _parts(topology)
    node, ranked, src, dst, kind = parts.node, parts.ranked, parts.src, parts.dst, parts.kind
    a, b = node[src], node[dst]
    # Hosts without a member, such as those that are out of order, only stand there.
    used = distinct(node[ranked])
    if bool((node[ranked] < 0).any()) or len(used) < 2 or bool(((a >= 0) & (b >= 0) & (a != b)).any()):
        return None
    # In the order of their first devices.
    nodes, first = np.unique(node, return_index=True)
    used = used[np.argsort(first[np.searchsorted(nodes, used)])]
    host = scattered(used, np.arange(len(used)), int(node.max()) + 2)
    inside = np.flatnonzero(host[node] >= 0)
    inside = inside[np.argsort(parts.slot[inside], kind="stable")]
    device = _rows(host[node][inside], inside, len(used))
    if device is None or not (ranked[device] == ranked[device[0]]).all():
        return None
    local = scattered(device, np.arange(device.shape[1]), len(node), 0)
    owner = np.maximum(host[a], host[b])
    tables = []
    for chosen, near, far in (
        ((a >= 0) & (b >= 0), local[src], local[dst]),
        ((a < 0) & (b >= 0), local[dst], src),
        ((a >= 0) & (b < 0), local[src], dst),
    ):
        some = np.flatnonzero(chosen & (owner >= 0))
        order = some[np.lexsort((some, kind[some], far[some], near[some], owner[some]))]
        rows = _rows(owner[order], order, len(used))
        if rows is None or not all((value[rows] == value[rows[0]]).all() for value in (near, kind)):
            return None
        tables.append((rows, near[rows[0]], far[rows]))
    (link, tail, head), (into, ports, above), (outof, leaving, beyond) = tables
    # Every switch goes by the place where it comes first.
    switches = np.concatenate([above, beyond], axis=1)
    place = (switches[:, :, None] == switches[:, None, :]).argmax(axis=2)
    paired = np.array_equal(ports, leaving) and np.array_equal(above[0], beyond[0])
    between = np.flatnonzero((a < 0) & (b < 0)).tolist()
    inner = {
        (int(src[number]), int(dst[number])): (number, parts.bandwidths[parts.figure[number]]) for number in between
    }
    alike = bool((head == head[0]).all() and (place == place[0]).all()) and len(inner) == len(between)
    members = tuple(np.flatnonzero(ranked[device[0]]).tolist())
    wires = tuple(tail.tolist()), tuple(head[0].tolist())
    shape = Shape(device.shape[1], *wires, members, tuple(ports.tolist()))
    fabric = FabricRoutes([tuple(row) for row in above.tolist()], inner)
    # Every port of a host must have a route to the same port of every other.
    ends = [fabric.ends[leaf[0]] for leaf in fabric.leaves]
    joined = all(fabric.route(*hop) is not None for here in ends for to in ends for hop in zip(here, to, strict=True))
    # And some member must reach every port.
    if not (alike and paired and len(ports) and joined and all(shape.nearest)):
        return None
    # Hosts with the same figures share their rates.
    different, row = np.unique(parts.figure[np.concatenate([link, into, outof], axis=1)], axis=0, return_inverse=True)
    figures = (tuple(map(parts.bandwidths.__getitem__, each)) for each in different.tolist())
    rates = [(each[: len(tail)], each[len(tail) : -len(ports)], each[-len(ports) :]) for each in figures]
    device[device >= len(topology.devices)] = -1
    for table in (link, into, outof):
        table[table >= len(topology.links)] = -1
    every = tuple(map(rates.__getitem__, row.ravel().tolist()))
    return Hosts(shape, device, link, into, outof, every, fabric)


def _rows(owner: Ints, values: Ints, count: int) -> Ints | None:
    """Values by owner, one row for each of so many, in the order given; None if these have unequally many."""
    if not np.array_equal(np.bincount(owner, minlength=count), np.full(count, len(values) // count)):
        return None
    return values[np.argsort(owner, kind="stable")].reshape(count, -1)


def local_network(hosts: Hosts, host: int, most: Fraction, rooted: bool) -> tuple[Network, list[int]]:
    """One host, its ports behind a gate (the vertex after its devices), the rest of the cluster behind that (the last).

    The gate lets in `most` bytes/s, what all other members send, so that nothing can enter twice. And for
    every arc the local link, port (after the links) or the gate (after these): those that the host lacks have
    none. rooted: links from members to the ports that they feed are kept for what leaves there.
    """
    shape = hosts.shape
    links, into, _ = hosts.rates[host]
    gate, outside = shape.devices, shape.outside
    leaving = {link for _, path in shape.feeds for link in path if rooted}
    rates = (*(rate * (number not in leaving) for number, rate in enumerate(links)), *into, most)
    present = [number for number, value in enumerate(rates) if value]
    values, unit = whole([(rates[number], 1) for number in present])
    ends = (*shape.tail, *[gate] * len(shape.ports), outside), (*shape.head, *shape.ports, gate)
    tail, head = (np.array(side, dtype=np.int64)[present] for side in ends)
    capacity, members = (np.array(column, dtype=np.int64) for column in (values, shape.members))
    one, every = np.zeros(outside + 1, dtype=np.int64), np.arange(outside + 1)
    return Network(tail, head, capacity, unit, members, one, every, every, ()), present


Forms = list[list[LocalTree]]


def held(hosts: Hosts, host: int, trees: Sequence[LocalTree], rate: Fraction) -> Fraction:
    """What links inside a host and the ports into it leave these trees of `rate` (bytes/s, for a weight of 1)."""
    links, into, _ = hosts.rates[host]
    most, passed = (*links, *into), ((passed_by(hosts.shape, tree), tree.weight) for tree in trees)
    load = summed((link, weight) for path, weight in passed for link in path)
    return min([rate, *(most[link] / carried for link, carried in load.items())])


def lowest(
    hosts: Hosts, host: int, start: int, rate: Fraction, forms: Forms, whole: Iterable[LocalTree] = ()
) -> list[LocalTree] | None:
    """The first of these trees that hold `rate` (bytes/s), else those that hold most, also of packed ones.

    start: where packed trees begin. whole: trees of other hosts, which go on by one of the packed trees each
    if these then hold the rate.
    """
    if rate and all(held(hosts, host, trees, rate) < rate for trees in forms):
        packed = packed_host(hosts, host, rate, {start: 1}) or []
        load, each = [Fraction(0)] * len(packed), list[LocalTree]()
        for weight in (tree.weight for tree in whole if packed):
            place = min(range(len(load)), key=lambda number: (load[number] + weight) / packed[number].weight)
            load[place] += weight
            each.append(replace(packed[place], weight=weight))
        forms = [*forms, *filter(None, (each, packed))]
    # Of equal ones the first.
    return max(forms, key=lambda trees: held(hosts, host, trees, rate), default=None)


def passed_by(shape: Shape, tree: LocalTree) -> list[int]:
    """The links inside a host that a tree takes, and after these the port by which it enters."""
    entered = [len(shape.tail) + tree.port] if tree.port >= 0 else []
    return [*entered, *tree.entry, *(link for _, _, path in tree.edges for link in path)]


@lru_cache(maxsize=8)
def stars(hosts: Hosts, host: int) -> list[LocalTree] | None:
    """Every member, and every port's member, straight to all others; None where some do not reach each other.

    Ports are used as much as their bandwidths compare.
    """
    shape = hosts.shape
    links, into, _ = hosts.rates[host]
    paths = {vertex: paths_from(shape, vertex) for vertex in shape.members}
    if any(len(reach) < len(paths) for reach in paths.values()):
        return None
    star = {
        vertex: depth_order(vertex, [(vertex, other, reach[other]) for other in shape.members if other != vertex])
        for vertex, reach in paths.items()
    }
    trees = [LocalTree(vertex, Fraction(1), star[vertex]) for vertex in shape.members]
    entries = []
    for number, port in enumerate(shape.ports):
        if not (reach := paths_from(shape, port)):
            return None
        first = min(reach, key=lambda vertex: (len(reach[vertex]), vertex != shape.feeds[number][0], vertex))
        entries.append((first, reach[first], min([into[number], *(links[i] for i in reach[first])])))
    width = sum(least for _, _, least in entries)
    total = hosts.ranks - len(shape.members)
    trees += [
        LocalTree(first, total * least / width, star[first], number, path)
        for number, (first, path, least) in enumerate(entries)
        if least
    ]
    return trees if width else None


def depth_order(root: int, edges: Sequence[tuple[int, int, Path]]) -> tuple[tuple[int, int, Path], ...]:
    """The edges of a tree by depth, and then from the root's next device on: not all trees begin with the same one."""
    depth = depths(root, [edge[:2] for edge in edges])
    return tuple(sorted(edges, key=lambda edge: (depth[edge[1]], edge[1] < root, edge[1])))


def paths_from(shape: Shape, start: int) -> dict[int, Path]:
    """The links of a shortest route from a local device to every member, over forwarders alone."""
    out = defaultdict[int, dict[int, int]](dict)
    for number, (a, b) in enumerate(zip(shape.tail, shape.head, strict=True)):
        out[a].setdefault(b, number)
    came = breadth_first(start, lambda at: out[at] if at == start or at not in shape.members else ())
    paths = {vertex: path_to(came, vertex)[::-1] for vertex in came if vertex in shape.members}
    return {vertex: tuple(out[a][b] for a, b in pairwise(path)) for vertex, path in paths.items()}


# Members of a host up to which any number of trees is packed: 700,000 of unequal amounts in 0.2 s on 12. Of more
# than so many a member, 719 and 128,869 on 72 take minutes; 288 equal ones hold 0.90 and 0.93 of the rate, in 0.4
# and 1.6 s.
_SMALL, _FEW = 16, 4


def packed_host(hosts: Hosts, host: int, rate: Fraction, weights: Mapping[int, int]) -> list[LocalTree] | None:
    """The best trees of one host, by the linear program and the packing; None if that is too large.

    rate: bytes/s for a weight of 1; more is not needed. weights: by local device, what starts there; what
    enters by the ports starts at `Shape.outside`. Those of the trees are relative to these.
    """
    shape, whole = hosts.shape, sum(weights.values())

    def best_at(rate: Fraction) -> tuple[Network, list[int], Split | None]:
        net, present = local_network(hosts, host, rate * weights.get(shape.outside, 0), len(weights) == 1)
        shared = [SharedCapacity(((arc, 1.0),), value) for arc, value in enumerate(net.capacity.tolist())]
        return net, present, best_split(net, shared, weights, both=False, best=rate * whole / net.unit)

    net, present, split = best_at(rate)
    if split is not None and split.rate * net.unit < rate * whole:
        # The host cannot sustain that rate, so its gate must be narrower.
        net, present, split = best_at(split.rate * net.unit / whole)
    if split is None:
        return None
    few, wanted = _FEW * len(shape.members), split.rates
    if len(shape.members) > _SMALL and fewest(net, split.capacity, wanted)[0].trees > few:
        wanted = {start: Fraction(weight * -(-few // whole)) for start, weight in weights.items()}
    forest = pack_forest(net, split.capacity, wanted, counted=wanted is not split.rates)
    each, outside = forest.rate / whole, shape.outside
    trees = []
    for tree in forest.trees:
        weight = tree.amount / forest.scale / each
        edges = [(a, b, tuple(present[arc] for arc in path)) for a, b, path in tree.edges]
        if tree.root != outside:
            trees.append(LocalTree(tree.root, weight, depth_order(tree.root, edges)))
            continue
        if len(entered := [edge for edge in edges if edge[0] == outside]) > 1:
            return None
        _, first, path = entered[0]
        rest = depth_order(first, [edge for edge in edges if edge[0] != outside])
        trees.append(LocalTree(first, weight, rest, path[1] - len(shape.tail), path[2:]))
    return trees


@lru_cache(maxsize=8)
def entering_trees(hosts: Hosts, host: int, rate: Fraction, hands: bool) -> list[LocalTree] | None:
    """Trees by which all ports of a host together give all its members `rate` bytes/s; None as `packed_host`.

    From the members next to each port to twice as many in every step, or straight to all, or, if so asked,
    from hand to hand; unless links inside are too narrow for that. They never are for a rate of 0.
    """
    level, shape, ports = stars(hosts, host) or [], hosts.shape, list[list[LocalTree]]()
    star = {tree.root: tree.edges for tree in level if tree.port < 0}
    for tree in (tree for tree in level if tree.port >= 0):
        reach, out = paths_from(shape, shape.ports[tree.port]), shape.nearest[tree.port]
        near = [member for member, path in reach.items() if len(path) == len(tree.entry)]
        near.sort(key=lambda member: (member < shape.feeds[tree.port][0], member))
        share = tree.weight / (hosts.ranks - len(shape.members)) / len(near)
        ports.append([LocalTree(m, share, (), tree.port, reach[m], out.get(m)) for m in near])
    # By the feeders of all ports, then by the next ones, so that fewer trees still use all ports and members.
    parts = [tree for some in zip_longest(*ports) for tree in some if tree]
    ways = (rotated(star, hands), star) if parts else ()
    forms = [[replace(tree, edges=inside[tree.root]) for tree in parts] for inside in ways]
    return lowest(hosts, host, shape.outside, rate, forms)


def rotated(star: Mapping[int, Edges], hands: bool) -> dict[int, Edges]:
    """Binomial trees or chains from each member by the paths of stars, alike but for where they start."""
    paths = {(a, b): path for edges in star.values() for a, b, path in edges}
    members, found = sorted(star), dict[int, Edges]()
    for first, root in enumerate(members):
        order = members[first:] + members[:first]
        back = (1 if hands else 1 << place.bit_length() - 1 for place in range(1, len(order)))
        pairs = [(order[place - far], order[place]) for place, far in enumerate(back, 1)]
        found[root] = depth_order(root, [(a, b, paths[a, b]) for a, b in pairs])
    return found


# What becomes of a part in its nodes: packed trees share it, one of them passes it on whole, or what starts
# next to a port only leaves the root's node, if all others there have ports by which they get it back; or it
# goes from hand to hand in every node, which suits links that everything shares.
Keep = Literal["apart", "whole", "back", "hands"]


def leaving_trees(
    hosts: Hosts, host: int, root: int, entering: Sequence[LocalTree], rate: Fraction, keep: Keep
) -> list[LocalTree] | None:
    """Trees by which a member gives all others of its host `rate` bytes/s; None as `packed_host`.

    One for each of the trees that are `entering` other hosts: by the member next to its port straight to the
    others. What starts next to a port of its own goes from hand to hand.
    """
    shape, level = hosts.shape, stars(hosts, host) or ()
    others = sorted({*shape.members} - {root}, key=lambda member: (member < root, member))
    paths = {(a, b): path for tree in level for a, b, path in tree.edges}
    firsts = others * (keep != "hands")
    by = {first: [(root, first), *((first, other) for other in others if other != first)] for first in firsts}
    alike = len({tree.weight for tree in entering}) == 1 and {tree.root for tree in entering} >= {*others}
    hands = [*pairwise((root, *others))]
    ways = [list[tuple[int, int]](), hands] if keep == "back" and alike else [hands]
    forms = []
    for own in ways if level else ():
        pairs = [(tree.weight, by.get(tree.root, own)) for tree in entering]
        forms.append([LocalTree(root, w, tuple((*arc, paths[arc]) for arc in arcs)) for w, arcs in pairs])
    return lowest(hosts, host, root, rate, forms, () if keep == "apart" else entering)


# Trees of the root's host and of every kind of host, and their weights.
Rooted = list[tuple[tuple[LocalTree, ...], Fraction]]


@lru_cache(maxsize=4)
def rooted_pieces(hosts: Hosts, home: int, root: int, rate: Fraction, keep: Keep) -> Rooted | None:
    """Trees that together carry `rate` bytes/s; None as `entering_trees`.

    home, root: the root's host, and its number there. Nothing comes back from hosts that differ.
    """
    kinds = hosts.kinds
    entering = [entering_trees(hosts, kinds.index(kind), rate, keep == "hands") for kind in range(max(kinds) + 1)]
    own = entering[kinds[home]]
    most = held(hosts, home, own, rate) if own else rate
    keep = "whole" if keep == "back" and entering[1:] else keep
    leaving = own and leaving_trees(hosts, home, root, own, most, keep)
    if leaving is None or None in entering:
        return None
    return list(side_by_side([[(tree, tree.weight) for tree in row or ()] for row in (leaving, *entering)]))


# (member, weight, tree in the member's own host, {kind of host: trees there})
Piece = tuple[int, Fraction, LocalTree, dict[int, tuple[LocalTree, ...]]]
# Rotations of the ports of all members.
_MOST_ROTATIONS = 16


def with_many_ports(hosts: Hosts, pieces: Sequence[Piece], rate: Fraction) -> tuple[Piece, ...] | None:
    """These pieces and those of the part that enters by all ports, the least that holds `rate` (bytes/s a shard).

    For hosts that are all alike. None if no part does.
    """
    if (wide := by_all(hosts)) is None:
        return None
    links, into, outof = hosts.rates[0]
    low, high = Fraction(0), Fraction(1)
    for before, after, most in zip(loads(hosts, pieces), loads(hosts, wide), (*links, *into, *outof), strict=True):
        if before == after:
            if before * rate > most:
                return None
            continue
        limit = (most - before * rate) / ((after - before) * rate)
        low, high = (low, min(high, limit)) if after > before else (max(low, limit), high)
    if low > high:
        return None
    both = [*((1 - low, piece) for piece in pieces), *((low, piece) for piece in wide)]
    return tuple((member, part * weight, own, away) for part, (member, weight, own, away) in both if part)


def loads(hosts: Hosts, pieces: Sequence[Piece]) -> list[Fraction]:
    """Shards over the links of a host, and then into and out of its ports, if those of all hosts are such pieces."""
    shape, others = hosts.shape, hosts.count - 1
    links, ports = len(shape.tail), len(shape.ports)
    total = [Fraction(0)] * (links + 2 * ports)
    for _, weight, own, away in pieces:
        for link in passed_by(shape, own):
            total[link] += weight
        for tree in (tree for trees in away.values() for tree in trees):
            for link in (*passed_by(shape, tree), links + ports + tree.port, *shape.feeds[tree.port][1]):
                total[link] += weight * others
    return total


def by_all(hosts: Hosts) -> list[Piece] | None:
    """Every member's shard, passed on by all members with own ports; a piece for every rotation of the ports."""
    shape, trees = hosts.shape, stars(hosts, 0)
    if trees is None:
        return None
    entries = grouped((tree.root, tree) for tree in trees if tree.port >= 0)
    if (rotations := lcm(*map(len, entries.values()))) > _MOST_ROTATIONS:
        return None
    paths = {member: paths_from(shape, member) for member in entries}
    pieces: list[Piece] = []
    for own in (tree for tree in trees if tree.port < 0):
        for rotation in range(rotations):
            entered = [entries[member][rotation % len(entries[member])] for member in entries]
            # Trees from where data enters to members where none does, round-robin from the root's number on.
            rest, shared = [member for member in shape.members if member not in entries], list[LocalTree]()
            for number, tree in enumerate(entered):
                mine = rest[(number - own.root) % len(entered) :: len(entered)]
                edges = depth_order(tree.root, [(tree.root, member, paths[tree.root][member]) for member in mine])
                shared.append(replace(tree, weight=Fraction(1), edges=edges))
            pieces.append((own.root, Fraction(1, rotations), own, {0: tuple(shared)}))
    return pieces


def spread(hosts: Hosts, trees: Sequence[Sequence[LocalTree]], kind: int) -> tuple[Piece, ...]:
    """The pieces of the shards of hosts of this kind. trees: those of every kind.

    A port that can give out less than the others is used less by the same factor. There are no pieces if those
    by which data enters other hosts can give out nothing.
    """
    shape, host = hosts.shape, hosts.kinds.index(kind)
    wide = hosts.widths(host)
    others = {other for place, other in enumerate(hosts.kinds) if place != host}
    rows: dict[int, dict[int, list[tuple[LocalTree, Fraction]]]] = {}
    for other in others:
        entering = [tree for tree in trees[other] if tree.port >= 0]
        parts = [tree.weight * wide[tree.port] for tree in entering]
        if not any(parts):
            return ()
        factor = len(shape.members) / sum(parts, start=Fraction(0))
        rows[other] = _dealt(shape, [(tree, part * factor) for tree, part in zip(entering, parts, strict=True)])
    pieces: list[Piece] = []
    for member in shape.members:
        own = [(tree, tree.weight) for tree in trees[kind] if tree.port < 0 and tree.root == member]
        for (tree, *entered), part in side_by_side([own, *(rows[other][member] for other in others)]):
            away = dict[int, tuple[LocalTree, ...]](zip(others, ((there,) for there in entered), strict=True))
            pieces.append((member, part, tree, away))
    return tuple(pieces)


@lru_cache(maxsize=4)
def all_pieces(hosts: Hosts, rate: Fraction) -> list[tuple[Piece, ...]] | None:
    """The pieces of the shards of every kind of host; None if some host has no trees. rate: the best of a shard."""
    kinds, trees, members = hosts.kinds, list[list[LocalTree]](), hosts.shape.members
    weights = {hosts.shape.outside: hosts.ranks - len(members), **dict.fromkeys(members, 1)}
    for kind in range(max(kinds) + 1):
        level, wide = stars(hosts, host := kinds.index(kind)), None
        packed = level if level and held(hosts, host, level, rate) >= rate else None
        if packed is None and level and max(kinds) == 0:
            wide = with_many_ports(hosts, spread(hosts, [level], 0), rate)
        if wide is not None:
            return [wide]
        if (packed := packed or packed_host(hosts, host, rate, weights)) is None:
            return None
        trees.append(packed)
    every = [spread(hosts, trees, kind) for kind in range(len(trees))]
    return every if all(every) else None


def _dealt(shape: Shape, entering: Sequence[tuple[LocalTree, Fraction]]) -> dict[int, list[tuple[LocalTree, Fraction]]]:
    """Trees worth one shard for every member, preferably those whose port the member itself feeds."""
    left = [weight for _, weight in entering]
    dealt: dict[int, list[tuple[LocalTree, Fraction]]] = {}
    need = dict.fromkeys(shape.members, Fraction(1))
    for own in (True, False):
        for member in shape.members:
            for place, (tree, _) in enumerate(entering):
                part = min(left[place], need[member])
                if part and (not own or shape.feeds[tree.port][0] == member):
                    dealt.setdefault(member, []).append((tree, part))
                    left[place] -= part
                    need[member] -= part
    return dealt
