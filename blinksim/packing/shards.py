"""Shards of members spread over a cluster whose nodes have been packed one by one.

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

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import ceil, lcm

from blinksim.graphs.arrays import side_by_side
from blinksim.packing.hosts import Hosts, LocalTree, Path, Shape, depth_order, packed_host, paths_from, stars, straight

# (member, weight, tree in the member's own host, {kind of host: trees there})
Piece = tuple[int, Fraction, LocalTree, dict[int, tuple[LocalTree, ...]]]
# Rotations of the ports of all members.
_MOST_ROTATIONS = 16


def with_many_ports(hosts: Hosts, pieces: Sequence[Piece], rate: Fraction) -> tuple[Piece, ...] | None:
    """These pieces and those of the part that enters by all ports, the least that holds `rate` (bytes/s a shard).

    For hosts that are all alike. None if no part does.
    """
    wide = by_all(hosts)
    if wide is None:
        return None
    links, into, outof = hosts.rates[0]
    low, high = Fraction(0), Fraction(1)
    for before, after, most in zip(loads(hosts, pieces), loads(hosts, wide), (*links, *into, *outof), strict=True):
        if before == after:
            if before * rate > most:
                return None
            continue
        limit = (most - before * rate) / ((after - before) * rate)
        if after > before:
            high = min(high, limit)
        else:
            low = max(low, limit)
    if low > high:
        return None
    both = [*((1 - low, piece) for piece in pieces), *((low, piece) for piece in wide)]
    return tuple((member, part * weight, own, away) for part, (member, weight, own, away) in both if part)


def loads(hosts: Hosts, pieces: Sequence[Piece]) -> list[Fraction]:
    """Shards over the links of a host, and then into and out of its ports, if those of all hosts are such pieces."""
    shape, others = hosts.shape, hosts.count - 1
    inside = [Fraction(0)] * len(shape.tail)
    into, outof = ([Fraction(0)] * len(shape.ports) for _ in range(2))
    for _, weight, own, away in pieces:
        entered = [tree for trees in away.values() for tree in trees]
        routes = [(weight, path) for _, _, path in own.edges]
        for tree in entered:
            into[tree.port] += weight * others
            outof[tree.port] += weight * others
            paths = shape.feeds[tree.port][1], tree.entry, *(path for _, _, path in tree.edges)
            routes += [(weight * others, path) for path in paths]
        for amount, path in routes:
            for link in path:
                inside[link] += amount
    return [*inside, *into, *outof]


def by_all(hosts: Hosts) -> list[Piece] | None:
    """Every member's shard, passed on by all members with own ports; a piece for every rotation of the ports."""
    shape, trees = hosts.shape, stars(hosts, 0)
    if trees is None:
        return None
    entries: dict[int, list[LocalTree]] = {}
    for tree in trees:
        if tree.port >= 0:
            entries.setdefault(tree.root, []).append(tree)
    rotations = lcm(*map(len, entries.values()))
    if rotations > _MOST_ROTATIONS:
        return None
    paths = {member: paths_from(shape, member) for member in entries}
    pieces: list[Piece] = []
    for own in (tree for tree in trees if tree.port < 0):
        for rotation in range(rotations):
            entered = [entries[member][rotation % len(entries[member])] for member in entries]
            # Trees from where data enters to members where none does, round-robin from the root's number on.
            edges: dict[int, list[tuple[int, int, Path]]] = {tree.root: [] for tree in entered}
            roots = list(edges)
            rest = [member for member in shape.members if member not in edges]
            for number, member in enumerate(rest):
                root = roots[(number + own.root) % len(roots)]
                edges[root].append((root, member, paths[root][member]))
            shared = tuple(
                LocalTree(tree.root, Fraction(1), depth_order(tree.root, edges[tree.root]), tree.port, tree.entry)
                for tree in entered
            )
            pieces.append((own.root, Fraction(1, rotations), own, {0: shared}))
    return pieces


def kinds_of(hosts: Hosts) -> list[int]:
    """A number for every host, equal for hosts with equal bandwidths; 0 is the most frequent kind."""
    # Fractions hash slowly, and most hosts share the very same rates.
    objects, known = {id(rates): rates for rates in hosts.rates}, dict[object, int]()
    first = {key: known.setdefault(rates, key) for key, rates in objects.items()}
    label = [first[id(rates)] for rates in hosts.rates]
    number = {kind: place for place, (kind, _) in enumerate(Counter(label).most_common())}
    return [number[kind] for kind in label]


def spread(hosts: Hosts, kinds: Sequence[int], trees: Sequence[Sequence[LocalTree]], kind: int) -> tuple[Piece, ...]:
    """The pieces of the shards of hosts of this kind. trees: those of every kind.

    A port that can give out less than the others is used less by the same factor.
    """
    shape = hosts.shape
    host = kinds.index(kind)
    wide = widths(hosts, host)
    others = {other for place, other in enumerate(kinds) if place != host}
    rows: dict[int, dict[int, list[tuple[LocalTree, Fraction]]]] = {}
    for other in others:
        entering = [tree for tree in trees[other] if tree.port >= 0]
        parts = [tree.weight * wide[tree.port] for tree in entering]
        factor = len(shape.members) / sum(parts, start=Fraction(0))
        rows[other] = _dealt(shape, [(tree, part * factor) for tree, part in zip(entering, parts, strict=True)])
    pieces: list[Piece] = []
    for member in shape.members:
        own = [(tree, tree.weight) for tree in trees[kind] if tree.port < 0 and tree.root == member]
        for (tree, *entered), part in side_by_side([own, *(rows[other][member] for other in others)]):
            away = dict[int, tuple[LocalTree, ...]](zip(others, ((there,) for there in entered), strict=True))
            pieces.append((member, part, tree, away))
    return tuple(pieces)


def all_pieces(hosts: Hosts, kinds: Sequence[int], rate: Fraction) -> list[tuple[Piece, ...]] | None:
    """The pieces of the shards of every kind of host; None if some host has no trees. rate: the best of a shard."""
    trees: list[list[LocalTree]] = []
    for kind in range(max(kinds) + 1):
        packed = straight(hosts, kinds.index(kind), rate)
        if packed is None and max(kinds) == 0 and (level := stars(hosts, 0)):
            wide = with_many_ports(hosts, spread(hosts, kinds, [level], 0), rate)
            if wide is not None:
                return [wide]
        packed = packed or packed_host(hosts, kinds.index(kind), rate)
        if packed is None:
            return None
        trees.append(packed)
    return [spread(hosts, kinds, trees, kind) for kind in range(len(trees))]


def relayed(hosts: Hosts, kinds: Sequence[int], kind: int, rate: Fraction) -> Fraction:
    """The part of its shards that each host of this kind sends to one other host, which forwards it.

    Not 0 where an odd host cannot give out a copy of everything to every other host at `rate` (bytes/s a
    shard).
    """
    if kind == 0 or hosts.count < 4:
        return Fraction(0)
    wanted = rate * len(hosts.shape.members) * (hosts.count - 1)
    missing = wanted - sum(widths(hosts, kinds.index(kind)))
    part = missing / (rate * len(hosts.shape.members) * (hosts.count - 2))
    # Rounded up to keep the shares' denominators short.
    return min(Fraction(1), Fraction(ceil(part * 1024), 1024)) if missing > 0 else Fraction(0)


def root_shares(hosts: Hosts, kinds: Sequence[int]) -> list[Fraction] | None:
    """The part of an allreduce's data whose root each member of a kind should be; None where an equal part is best.

    A host with the part x of a rate r as root sends it to each of N - 1 others, and its part of what these
    reduce: in all r + (N - 2) x over ports of bandwidth w. So all ports are full with x = (w - r) / (N - 2).
    """
    wide = [sum(widths(hosts, kinds.index(kind)), start=Fraction(0)) for kind in range(max(kinds) + 1)]
    others, many = hosts.count - 2, len(hosts.shape.members)
    if len(set(wide)) < 2 or hosts.count < 4:
        return None
    rate = sum((wide[kind] for kind in kinds), start=Fraction(0)) / (2 * others + 2)
    # Rounded to keep the denominators short; the most frequent kind has the rest.
    parts = [Fraction(max(0, int((own - rate) / (others * rate * many) * 2**20)), 2**20) for own in wide]
    rest = 1 - sum((parts[kind] * many for kind in kinds if kind), start=Fraction(0))
    parts[0] = rest / (many * kinds.count(0))
    return parts if parts[0] > 0 else None


def widths(hosts: Hosts, host: int) -> list[Fraction]:
    """What can leave a host by each port."""
    links, _, outof = hosts.rates[host]
    return [min([outof[port], *(links[i] for i in path)]) for port, (_, path) in enumerate(hosts.shape.feeds)]


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
