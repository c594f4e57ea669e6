"""An upper bound without a solver: cuts, partitions and lengths that can be tried one by one.

Small machines (at most `_EXACT` devices, no buses) have all their cuts tried. Partitions are grown from single ranks by
joining the two parts with the most bandwidth between them. On larger machines the cuts around ranks and nodes, and
lengths of 1 around ranks and between nodes, are tried. The result is not always the tightest (`compute.bound` searches
with flows), but valid, with the same certificates, and cheap enough for every projection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import lcm
from weakref import ref

from blinksim.bounds.certificates.certificate import Certificate, Cut, Partition
from blinksim.bounds.certificates.lengths import Lengths, more_than_forwards
from blinksim.collective import EVERY, OWN, ROOT, Collective
from blinksim.errors import InputError
from blinksim.graphs.network import whole
from blinksim.structures.union_find import UnionFind
from blinksim.topology.graph import Topology

_EXACT = 16
# Ranks up to which lengths that keep all ranks apart are worth their shortest paths.
_GUESS = 256
# What choosing among such switches may cost (`Branching.most_work`): a tenth of a second.
_GUESS_WORK = 5 * 10**4
# The same for lengths of the links between nodes, where distances of all pairs are needed: a second at most.
_GUESS_BETWEEN_NODES = 1024
# With more ranks, the numbers of parts whose partitions are worth a certificate, besides all ranks apart.
_FEW_PARTS = range(2, 33)
# The best cut or partition of the last topology, by collective.
_last: list[tuple[ref[Topology], dict[Collective, Certificate | None]]] = []
# The tightest of all, by collective and grants: contests and packed trees ask for it one after another.
_last_bounds: list[tuple[ref[Topology], dict[tuple[Collective, tuple[str, ...]], Certificate]]] = []


def quick_bound(topology: Topology, collective: Collective, grants: Sequence[str] = ()) -> Certificate:
    """The tightest of the certificates that are tried; its `rate` is algbw in bytes/s.

    topology: the selected part, with two or more members. grants: what switches may do, of what they can.
    """
    if not _last_bounds or _last_bounds[0][0]() is not topology:
        _last_bounds[:] = [(ref(topology), {})]
    known, key = _last_bounds[0][1], (collective, tuple(grants))
    if key not in known:
        known[key] = min(_candidates(topology, collective, grants), key=lambda certificate: certificate.rate)
    return known[key]


def _candidates(topology: Topology, collective: Collective, grants: Sequence[str] = ()) -> Iterator[Certificate]:
    """Of cuts and partitions, which hold whatever is granted, only the tightest, known from before if it is."""
    if not _last or _last[0][0]() is not topology:
        _last[:] = [(ref(topology), {})]
    known = _last[0][1]
    if collective not in known:
        found = _cuts_and_partitions(topology, collective)
        known[collective] = min(found, key=lambda certificate: certificate.rate, default=None)
    tightest = known[collective]
    if tightest is not None:
        yield tightest
    every_pair = bool(grants) or collective.personalized
    if (topology.ranks <= _GUESS_BETWEEN_NODES or not every_pair) and not more_than_forwards(topology):
        lengths = guessed_lengths(topology, collective, () if collective.personalized else grants)
        if lengths is not None:
            yield lengths


def _cuts_and_partitions(topology: Topology, collective: Collective) -> Iterator[Certificate]:
    if _plain(topology) and len(topology.devices) <= _EXACT:
        yield Cut.of(topology, collective, _tightest_side(topology, collective))
    else:
        yield from obvious_cuts(topology, collective)
    if collective.name == "allreduce":
        for parts in _partitions(topology):
            if len(parts) > 1:
                yield Partition.of(topology, collective, parts)


def _plain(topology: Topology) -> bool:
    """True if links share nothing and devices carry any amount."""
    return not any(link.bus for link in topology.links) and all(d.capacity is None for d in topology.devices)


def _tightest_side(topology: Topology, collective: Collective) -> list[str]:
    """The devices of the tightest cut, by trying every set of devices."""
    import numpy as np

    count, n = len(topology.devices), topology.ranks
    sets = np.arange(1, 2**count - 1)
    inside = (sets[:, None] >> np.arange(count)) & 1 == 1
    capacity = np.zeros(len(sets))
    for link in topology.links:
        leaving = inside[:, topology.index[link.src]] & ~inside[:, topology.index[link.dst]]
        capacity += leaving * float(link.bandwidth)
    ranks = inside[:, [topology.index[name] for name in topology.members]]
    within, has_root = ranks.sum(axis=1), ranks[:, collective.root]
    # As in `certificates.sums.must_leave`: what starts inside and must end outside as well.
    inner = {EVERY: within > 0, ROOT: has_root, OWN: within / n}[collective.starts]
    outer = {EVERY: within < n, ROOT: ~has_root, OWN: (n - within) / n}[collective.ends]
    crossing = inner.astype(float) * outer * collective.vectors(n)
    if collective.traffic is not None:
        amounts = collective.traffic.matrix.astype(float) / collective.traffic.size
        crossing = ((ranks @ amounts) * ~ranks).sum(axis=1)
    rate = np.divide(capacity, crossing, out=np.full(len(sets), np.inf), where=crossing > 0)
    return [device.name for device, here in zip(topology.devices, inside[int(np.argmin(rate))], strict=True) if here]


def guessed_lengths(topology: Topology, collective: Collective, grants: Sequence[str] = ()) -> Lengths | None:
    """The better of two obvious sets of lengths: 1 on all links of members, or on all between hosts.

    None if neither proves anything. grants: what switches may do, of what they can.
    """
    members = set(topology.members)
    host = {device.name: device.node for device in topology.devices}
    chosen = [[link for link in topology.links if host[link.src] != host[link.dst]]]
    if topology.ranks <= _GUESS:
        chosen.append([link for link in topology.links if link.src in members or link.dst in members])
    best: Lengths | None = None
    one = Fraction(1)
    for links in chosen:
        try:
            found = Lengths.of(topology, collective, {link.name: one for link in links}, (), grants, _GUESS_WORK)
        except InputError:
            continue
        if best is None or found.rate < best.rate:
            best = found
    return best


def obvious_cuts(topology: Topology, collective: Collective) -> Iterator[Cut]:
    """Around single members, whole nodes, and the nodes below one switch of the fabric."""
    if collective.traffic is not None:
        from blinksim.bounds.exchanges.traffic_cuts import traffic_cuts

        yield from traffic_cuts(topology, collective, groups(topology))
        return
    names = [device.name for device in topology.devices]
    root = topology.members[collective.root] if collective.rooted else None
    for group in dict.fromkeys(map(frozenset, _tightest_groups(topology))):
        rest = [name for name in names if name not in group]
        for side in (sorted(group, key=topology.index.__getitem__), rest):
            if _says_something(topology, collective, set(side), root):
                yield Cut.of(topology, collective, side)


def _says_something(topology: Topology, collective: Collective, side: set[str], root: str | None) -> bool:
    """True if data of the collective must leave `side`."""
    inside = sum(name in side for name in topology.members)
    outside = topology.ranks - inside
    match collective.name:
        case "broadcast" | "scatter":
            return root in side and outside > 0
        case "reduce" | "gather":
            return root not in side and inside > 0
        case _:
            return inside > 0 and outside > 0


def _tightest_groups(topology: Topology) -> Iterator[set[str]]:
    """Single members, alone and with their private NICs, whole nodes, and nodes below one switch of the fabric.

    Of each sort the one with the least bandwidth out and the one with the least in.
    """
    width = whole([(link.lane_bandwidth, link.lanes) for link in topology.links])[0]
    for key in groups(topology):
        holders = {key[name] for name in topology.members}
        for total in _crossing(topology, key, width):
            least = min(holders, key=lambda group: (total[group], str(group)))
            yield {name for name, group in key.items() if group == least}


def groups(topology: Topology) -> Iterator[Mapping[str, object]]:
    """Ways to put devices into groups, as the group of each device that is in one.

    Single members, alone and with their private NICs, whole nodes, and nodes below one switch of the fabric.
    """
    node = {device.name: device.node for device in topology.devices}
    own: dict[str, object] = {name: name for name in topology.members}
    yield own
    yield own | _private(topology)
    if len({node[name] for name in topology.members}) > 1:
        yield {name: number for name, number in node.items() if number >= 0}
        yield from _below_switches(topology, node)


def _crossing(
    topology: Topology, key: Mapping[str, object], width: Sequence[int]
) -> tuple[dict[object, int], dict[object, int]]:
    """What links carry out of every group, and into it. key: the group of every device in one. width: of every link."""
    import numpy as np

    number = {group: place for place, group in enumerate(dict.fromkeys(key.values()))}
    label = np.array([number[key[d.name]] if d.name in key else len(number) for d in topology.devices], dtype=np.int64)
    widths = np.array(width, dtype=np.int64 if sum(width) < 2**62 else object)
    a, b = (label[ends] for ends in topology.ends)
    sums = []
    for side in (a, b):
        total = np.zeros(len(number) + 1, dtype=widths.dtype)
        np.add.at(total, side[a != b], widths[a != b])
        sums.append(dict(zip(number, total.tolist(), strict=False)))
    return sums[0], sums[1]


def _below_switches(topology: Topology, node: Mapping[str, int]) -> Iterator[dict[str, object]]:
    """The nodes below one switch of the fabric with what is between them, level by level; none of the last level.

    A switch beside nodes is on the lowest level, one beside such a switch on the next.
    """
    trunks = defaultdict[str, set[str]](set)
    for link in topology.links:
        if node[link.src] < 0 and node[link.dst] < 0:
            trunks[link.src].add(link.dst)
    if not trunks:
        return
    beside = {link.dst for link in topology.links if node[link.dst] < 0 <= node[link.src]}
    level = dict.fromkeys(beside, 0)
    while new := {there for here in beside for there in trunks[here] if there not in level}:
        level |= dict.fromkeys(new, max(level.values()) + 1)
        beside = new
    joined = UnionFind(node)
    for low in range(max(level.values()) + 1):
        for link in topology.links:
            ends = sorted(level.get(end, -1) for end in (link.src, link.dst))
            # Links within a level, as between the groups of a dragonfly, belong to the level above it.
            if (ends[1] == low and ends[0] < low) or (low == 0 and ends[1] < 0):
                joined.join(link.src, link.dst)
        found = joined.sets()
        if len(found) > 1:
            yield {name: number for number, names in enumerate(found) for name in names}


def _private(topology: Topology) -> dict[str, object]:
    """The forwarders that lead, within their node, to one member only; with the member."""
    import numpy as np

    node = np.array([device.node for device in topology.devices])
    member = np.zeros(len(node), dtype=bool)
    member[[topology.index[name] for name in topology.members]] = True
    src, dst = topology.ends
    inner = node[src] == node[dst]
    a, b = np.concatenate([src[inner], dst[inner]]), np.concatenate([dst[inner], src[inner]])
    pairs = np.unique(a * len(node) + b)
    a, b = pairs // len(node), pairs % len(node)
    alone = (np.bincount(a, minlength=len(node)) == 1)[a] & ~member[a] & member[b]
    names = [device.name for device in topology.devices]
    return {names[near]: names[end] for near, end in zip(a[alone].tolist(), b[alone].tolist(), strict=True)}


def _partitions(topology: Topology) -> Iterator[list[list[str]]]:
    """The ranks apart, then ever larger parts (where no forwarder has to be put somewhere); and the nodes apart."""
    if len(topology.devices) == topology.ranks:
        yield from _grown(topology)
    by_node = defaultdict[int, list[str]](list)
    for device in topology.devices:
        by_node[device.node].append(device.name)
    hosts = {topology.device(name).node for name in topology.members}
    outside = [name for number, names in by_node.items() if number not in hosts for name in names]
    parts = [by_node[number] for number in sorted(hosts)]
    parts[0] = [*parts[0], *outside]
    yield parts


def _grown(topology: Topology) -> Iterator[list[list[str]]]:
    """Partitions from single ranks to two parts, each by joining the pair of parts with the most between them.

    Only the first of the tightest, unless buses or capacities of devices make each one's rate a matter of its own.
    """
    scale = lcm(*{link.bandwidth.denominator for link in topology.links})
    place = {name: number for number, name in enumerate(topology.members)}
    between = [defaultdict[int, int](int) for _ in place]
    for link in topology.links:
        a, b = place[link.src], place[link.dst]
        between[a][b] += int(link.bandwidth * scale)
        between[b][a] += int(link.bandwidth * scale)
    joins, crossing = _joins(between)
    if _plain(topology):
        counts = [len(place) - joined for joined in range(len(crossing))]
        tightest = min(range(len(crossing)), key=lambda joined: Fraction(crossing[joined], counts[joined] - 1))
        wanted: Container[int] = (counts[tightest],)
    elif len(place) <= _GUESS:
        wanted = range(2, len(place) + 1)
    else:
        wanted = (len(place), *_FEW_PARTS)
    parts = {number: [name] for name, number in place.items()}
    for into, joined in (*joins, (0, 0)):
        if len(parts) in wanted:
            yield [list(part) for part in parts.values()]
        if into != joined:
            parts[into] += parts.pop(joined)


def _joins(between: list[defaultdict[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """The joins of parts down to two, as (the part that grows, the part that it takes in); a part is its first rank.

    And what crosses between all parts before each join and at the end. between: the neighbours of each rank and what
    is between them; used up. Of equally wide pairs the first one joins, as (later part, earlier part).
    """
    queue = [(-width, a, b) for a, near in enumerate(between) for b, width in near.items() if b < a]
    heapify(queue)
    joins: list[tuple[int, int]] = []
    crossing = [-sum(width for width, _, _ in queue)]
    gone: set[int] = set()
    while len(joins) < len(between) - 2 and queue:
        width, a, b = heappop(queue)
        if a in gone or b in gone or between[a][b] != -width:
            continue
        joins.append((b, a))
        crossing.append(crossing[-1] + width)
        gone.add(a)
        del between[b][a]
        for other, more in between[a].items():
            if other != b:
                del between[other][a]
                between[b][other] += more
                between[other][b] += more
                heappush(queue, (-between[b][other], max(b, other), min(b, other)))
        between[a].clear()
    return joins, crossing
