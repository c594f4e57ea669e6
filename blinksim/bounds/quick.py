"""Upper bounds without a solver: candidate cuts, partitions and lengths, evaluated one by one.

Small machines (at most `_EXACT` devices, no buses) have all their cuts tried. Partitions are grown from
single ranks by joining the two parts with the most bandwidth between them. On larger machines the cuts around
ranks and nodes, and lengths of 1 around them, are tried. The result is not always the tightest
(`compute.bound` searches with flows), but valid, with the same certificates, and cheap enough for every
projection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush
from itertools import compress, repeat
from math import inf
from operator import attrgetter, itemgetter

import numpy as np

from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.certificates import Certificate, Cut, Partition
from blinksim.bounds.groups import chosen_use, crossing_sums, cut_around, groupings, nodes, traffic_cuts, whole_widths
from blinksim.bounds.lengths import MOST_WORK, Lengths, checked_grants, more_than_forwards
from blinksim.collective import EVERY, OWN, ROOT, Collective
from blinksim.errors import InputError
from blinksim.graphs.arrays import Bools, distinct
from blinksim.graphs.connectivity import grouped, joined_labels
from blinksim.topology.graph import Topology

_EXACT = 16
# Ranks up to which partitions of all sizes are grown.
_GROWN = 256
# With more ranks, the numbers of parts whose partitions are worth a certificate, besides all ranks apart.
_FEW_PARTS = range(2, 33)
# Ranks up to which lengths around small groups are tried: where they need distances of all pairs, and where
# trees that arrays cannot tell. In arrays they take a second for a hundred thousand ranks.
_PAIRS, _TREES = 256, 5000
# Ranks up to which lengths of the links between nodes are tried where distances of all pairs are needed: a
# second.
_BETWEEN_NODES = 1024
# What choosing among switches that may branch may cost (`Branching.most_work`): a tenth of a second.
_WORK = 5 * 10**4
_CACHED = 64


@dataclass(frozen=True)
class _Claim:
    """A rate (bytes/s of algbw) that sums over arrays give, and how to get its certificate, which takes longer."""

    rate: Fraction
    certify: Callable[[], Certificate]


# A topology never changes: an edited one is another key. Contests and packed trees ask one after another.
@lru_cache(maxsize=_CACHED)
def tightest_by_sums(topology: Topology, collective: Collective) -> _Claim | None:
    """The best of the cuts and partitions, which hold whatever is granted."""
    return min(_cuts_and_partitions(topology, collective), key=attrgetter("rate"), default=None)


@lru_cache(maxsize=_CACHED)
def quick_bound(topology: Topology, collective: Collective, grants: Sequence[str] = ()) -> Certificate:
    """The tightest of the certificates that are tried; its `rate` is algbw in bytes/s.

    topology: the selected part, with two or more members. grants: what switches may do, of what they can.
    """
    tried = [tightest_by_sums(topology, collective)]
    if not more_than_forwards(topology):
        lengths = guessed_lengths(topology, collective, () if collective.personalized else grants)
        tried.append(None if lengths is None else _proved(lengths))
    return min(filter(None, tried), key=attrgetter("rate")).certify()


def _proved(certificate: Certificate) -> _Claim:
    return _Claim(certificate.rate, lambda: certificate)


def bounds_by_sums(
    topology: Topology, collective: Collective, phases: Bound | None, grants: Sequence[str] = ()
) -> BoundResult:
    """The bounds of an allreduce among so many ranks that a search for the tightest would take minutes.

    phases: a reduce-scatter and an allgather that schedules attain, if they are known. If they reach what is
    found, it is the least, and the result counts as searched. Beside it stands the tightest obvious cut,
    which holds for every schedule. grants: what switches may do, of what they can; what they allow is found
    as well.
    """
    best = quick_bound(topology, collective)
    least = phases is not None and phases.rate == best.rate
    others = [] if phases is None else [phases]
    known = best.kind, best.rate
    cuts = (cut for cut in obvious_cuts(topology, collective) if (cut.kind, cut.rate) != known)
    others += [replace(Bound.of(cut, collective), exact=least and cut.rate == best.rate) for cut in cuts]
    more = Bound.of(quick_bound(topology, collective, grants), collective)
    even = more if more.grants and more.rate == best.rate else None
    others += [more] if more.grants and more.rate > best.rate else []
    return BoundResult(topology, collective, (Bound.of(best, collective, least), *others), (), even, least)


def tries_every_cut(topology: Topology) -> bool:
    """True for a machine on which the tightest of all cuts is among the sums."""
    return len(topology.devices) <= _EXACT and _plain(topology)


def _plain(topology: Topology) -> bool:
    """True if links share nothing and devices carry any amount."""
    return not topology.link_columns.shared and all(d.capacity is None for d in topology.devices)


# --- cuts and partitions --------------------------------------------------------------------------------


def _cuts_and_partitions(topology: Topology, collective: Collective) -> Iterator[_Claim]:
    if tries_every_cut(topology):
        yield _proved(Cut.of(topology, collective, _tightest_side(topology, collective)))
    elif collective.traffic is not None:
        yield from map(_proved, obvious_cuts(topology, collective))
    else:
        for side, rate in _sides(topology, collective):
            yield _Claim(rate, partial(cut_around, topology, collective, side))
    if collective.name != "allreduce":
        return
    # The ranks apart, then ever larger parts (where no forwarder has to be put somewhere); and nodes apart.
    by_node = grouped((device.node, device.name) for device in topology.devices)
    hosts = {*topology.device_nodes[topology.member_places].tolist()}
    outside = [name for number, names in by_node.items() if number not in hosts for name in names]
    nodes = [by_node[number] for number in sorted(hosts)]
    nodes[0] = [*nodes[0], *outside]
    for parts in (*(_grown(topology) if len(topology.devices) == topology.ranks else ()), nodes):
        if len(parts) < 2:
            continue
        if any(device.capacity is not None for device in topology.devices):
            # Which capacities of devices count is for the certificate to say.
            yield _proved(Partition.of(topology, collective, parts))
            continue
        number = {name: place for place, names in enumerate(parts) for name in names}
        src, dst = np.array([number[device.name] for device in topology.devices])[np.stack(topology.ends)]
        rate = topology.link_columns.capacity(src != dst) / (2 * (len(parts) - 1))
        yield _Claim(rate, partial(Partition.of, topology, collective, parts))


def _tightest_side(topology: Topology, collective: Collective) -> list[str]:
    """The devices of the tightest cut, by trying every set of devices."""
    count, n = len(topology.devices), topology.ranks
    sets = np.arange(1, 2**count - 1)
    inside = (sets[:, None] >> np.arange(count)) & 1 == 1
    capacity = np.zeros(len(sets))
    for link in topology.links:
        leaving = inside[:, topology.index[link.src]] & ~inside[:, topology.index[link.dst]]
        capacity += leaving * float(link.bandwidth)
    ranks = inside[:, topology.member_places]
    within, has_root = ranks.sum(axis=1), ranks[:, collective.root]
    # As in `certificates.must_leave`: what starts inside and must end outside as well.
    inner = {EVERY: within > 0, ROOT: has_root, OWN: within / n}[collective.starts]
    outer = {EVERY: within < n, ROOT: ~has_root, OWN: (n - within) / n}[collective.ends]
    crossing = inner.astype(float) * outer * collective.vectors(n)
    if collective.traffic is not None:
        amounts = collective.traffic.matrix.astype(float) / collective.traffic.size
        crossing = ((ranks @ amounts) * ~ranks).sum(axis=1)
    rate = np.divide(capacity, crossing, out=np.full(len(sets), np.inf), where=crossing > 0)
    return [device.name for device, here in zip(topology.devices, inside[int(np.argmin(rate))], strict=True) if here]


def obvious_cuts(topology: Topology, collective: Collective) -> Iterator[Cut]:
    """The tightest around single members, whole nodes, and the nodes below one switch of the fabric.

    For a traffic matrix, the tightest few of each sort.
    """
    if collective.traffic is not None:
        yield from traffic_cuts(topology, collective, groupings(topology))
        return
    for side, _ in sorted(_sides(topology, collective), key=itemgetter(1))[:1]:
        yield cut_around(topology, collective, side)


def _sides(topology: Topology, collective: Collective) -> Iterator[tuple[Bools, Fraction]]:
    """The devices of sides that data of the collective must leave, and the rate of the cut around them.

    Of every grouping, the group with the least bandwidth out and the one with the least in, and all but it.
    """
    places, (src, dst), widths = topology.member_places, topology.ends, whole_widths(topology)[0]
    seen = set[bytes]()
    for found in groupings(topology):
        held, names = distinct(found.label[places]), [*map(str, found.keys)]
        for total in crossing_sums(topology, found.label, widths):
            least = held[total[held] == total[held].min()].tolist()
            group = found.label == min(least, key=names.__getitem__)
            if group.tobytes() in seen:
                continue
            seen.add(group.tobytes())
            for side in (group, ~group):
                within = side[places]
                crossing = collective.between(np.flatnonzero(within), np.flatnonzero(~within), topology.ranks)
                if crossing:
                    yield side, topology.link_columns.capacity(side[src] & ~side[dst]) / crossing


def _grown(topology: Topology) -> Iterator[list[list[str]]]:
    """Partitions from single ranks to two parts, each by joining the pair of parts with the most between them.

    Only the first of the tightest, unless buses or capacities of devices make each one's rate a matter of its
    own.
    """
    place = {name: number for number, name in enumerate(topology.members)}
    between = [defaultdict[int, int](int) for _ in place]
    for link, width in zip(topology.links, whole_widths(topology)[0].tolist(), strict=True):
        a, b = place[link.src], place[link.dst]
        between[a][b] += width
        between[b][a] += width
    joins, crossing = _joins(between)
    if _plain(topology):
        counts = [len(place) - joined for joined in range(len(crossing))]
        tightest = min(range(len(crossing)), key=lambda joined: Fraction(crossing[joined], counts[joined] - 1))
        wanted: Container[int] = (counts[tightest],)
    else:
        wanted = range(2, len(place) + 1) if len(place) <= _GROWN else (len(place), *_FEW_PARTS)
    parts = {number: [name] for name, number in place.items()}
    for into, joined in (*joins, (0, 0)):
        if len(parts) in wanted:
            yield [list(part) for part in parts.values()]
        if into != joined:
            parts[into] += parts.pop(joined)


def _joins(between: list[defaultdict[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """The joins of parts down to two, as (the part that grows, the part that it takes in); a part is its first rank.

    And what crosses between all parts before each join and at the end. between: the neighbours of each rank
    and what is between them; used up. Of equally wide pairs the first one joins, as (later part, earlier
    part).
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


# --- lengths of 1 ---------------------------------------------------------------------------------------


def guessed_lengths(topology: Topology, collective: Collective, grants: Sequence[str] = ()) -> Lengths | None:
    """The best of a few obvious sets of lengths: 1 on all links that leave or enter groups of devices.

    The groups are nodes, single ranks, ranks with what is private to them, and nodes below one switch. None
    if none proves anything. grants: what switches may do, of what they can.
    """
    pairs = bool(grants) or collective.personalized
    if collective.personalized and topology.ranks > _BETWEEN_NODES:
        return None
    best: Lengths | None = None
    for crossing in _boundaries(topology, pairs):
        few = not pairs or topology.ranks <= _BETWEEN_NODES
        # What is granted shortens trees: without it the same lengths prove no higher rate.
        plain = even_lengths(topology, collective, crossing) if best and grants else None
        if best and plain and plain.rate >= best.rate:
            continue
        with suppress(InputError):
            found = unit_lengths(topology, collective, crossing, grants, _WORK if few else 0)
            best = found if best is None or found.rate < best.rate else best
    return best


def _boundaries(topology: Topology, pairs: bool) -> list[Bools]:
    """The links between groups that are worth lengths.

    Of ways to group that leave the ranks in as many groups, the one whose links carry least. pairs: distances of all
    pairs are needed, which are affordable on few ranks only, as are trees over links that share buses.
    """
    members, columns = topology.member_places, topology.link_columns
    # In arrays, trees over a hundred thousand ranks take a second.
    quick = not pairs and columns.goes_back and not columns.shared
    few = quick or topology.ranks <= (_PAIRS if pairs else _TREES)
    least: dict[int, tuple[float, Bools]] = {}
    hosts = nodes(topology)
    for found in (hosts, *(other for other in (groupings(topology) if few else ()) if other.sort != hosts.sort)):
        label = found.label
        held = np.isin(np.arange(int(label.max()) + 1), label[members])
        a, b = label[columns.src], label[columns.dst]
        # Links of a node without members lead nowhere that a tree must go.
        idle = ~held
        idle[label[topology.device_nodes < 0]] = False
        crossing = (a != b) & ~(idle[a] & ~held[b] | idle[b] & ~held[a])
        carried, count = float(columns.capacity(crossing)), int(held.sum())
        if crossing.any() and carried < least.get(count, (inf,))[0]:
            least[count] = carried, crossing
    return [crossing for _, crossing in least.values()]


def unit_lengths(
    topology: Topology, collective: Collective, chosen: Bools, grants: Sequence[str] = (), most_work: int = MOST_WORK
) -> Lengths:
    """What lengths of 1 on the chosen links prove; raises `InputError` as `Lengths.of`.

    most_work: as there; if it is 0, for what arrays do not tell as well.
    """
    found = even_lengths(topology, collective, chosen, grants)
    if found is not None:
        return found
    if not most_work:
        raise InputError("these lengths need the distances of too many pairs")
    _, lengths = least_even_tree(topology, chosen.tobytes())
    return Lengths.of(topology, collective, dict(lengths), (), grants, most_work)


def even_lengths(
    topology: Topology, collective: Collective, chosen: Bools, grants: Sequence[str] = ()
) -> Lengths | None:
    """As `unit_lengths` by arrays alone: `Lengths.of` takes seconds for hundreds of thousands of links.

    None for what only that can say, and links that prove nothing: collectives without trees, relays that do
    more than forward, links that share a bus, links that have none back. What is granted to switches makes no
    difference where each of them has a member beside it that no chosen link separates: what branches there
    may as well do so at the member.
    """
    columns, places = topology.link_columns, topology.member_places
    if collective.personalized or not columns.goes_back or bool((columns.bus[chosen] >= 0).any()):
        return None
    if grants:
        point = joined_labels(len(topology.devices), columns.src[~chosen], columns.dst[~chosen])
        able = [place for place, device in enumerate(topology.devices) if not device.can.isdisjoint(grants)]
        if not np.isin(point[able], point[places]).all():
            return None
    least, lengths = least_even_tree(topology, chosen.tobytes())
    if not least:
        return None
    distance = Fraction(least * collective.phases)
    carried, even = columns.capacity(chosen), chosen_use(topology, chosen, distance)
    return Lengths(lengths, carried, distance, grants=checked_grants(topology, grants), even=even)


@lru_cache(maxsize=_CACHED)
def least_even_tree(topology: Topology, flags: bytes) -> tuple[int | None, tuple[tuple[str, Fraction], ...]]:
    """How many of the chosen links the least tree over all members has, and lengths of 1 by their names.

    flags: a byte for every link, 1 for those chosen. None if the tree does not reach all members, and where relays do
    more than forward.

    Every link must have one that goes back, chosen as well if it is. As in `Metric.least_tree`: what no
    chosen link separates is one point, every point goes to the nearest member, and links between the regions
    of two are candidates for a least spanning tree (K. Mehlhorn, Information Processing Letters 1988, section
    2). Lengths are small whole numbers, so Kruskal's algorithm joins all candidates of one length at once.
    """
    chosen, one = np.frombuffer(flags, dtype=np.bool_), Fraction(1)
    names = sorted(map(attrgetter("name"), compress(topology.links, chosen.tolist())))
    lengths = tuple(zip(names, repeat(one)))
    if more_than_forwards(topology):
        return None, lengths
    columns, count = topology.link_columns, len(topology.devices)
    joined = joined_labels(count, columns.src[~chosen], columns.dst[~chosen])
    points, point = np.unique(joined, return_inverse=True)
    a, b = point[columns.src[chosen]], point[columns.dst[chosen]]
    a, b = np.divmod(distinct((a * len(points) + b)[a != b]), max(1, len(points)))
    ends = distinct(point[topology.member_places])
    far, nearest = np.full(len(points), -1), np.arange(len(points))
    far[ends] = hops = 0
    while (step := (far[a] == hops) & (far[b] < 0)).any():
        nearest[b[step]] = nearest[a[step]]
        hops += 1
        far[b[step]] = hops
    across = (far[a] >= 0) & (far[b] >= 0) & (nearest[a] != nearest[b])
    a, b = a[across], b[across]
    length = far[a] + 1 + far[b]
    total, left = 0, len(ends)
    for far_apart in distinct(length).tolist():
        label = joined_labels(len(points), nearest[a[length <= far_apart]], nearest[b[length <= far_apart]])
        now = len(distinct(label[ends]))
        total, left = total + far_apart * (left - now), now
    return (total if left == 1 else None), lengths
