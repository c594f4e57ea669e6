"""Shards of which a part enters other hosts by all their ports at once, where GPUs limit and not the ports.

A shard that enters a host by one port spreads inside from there, so it loads the links inside almost as much as shards
of the host's own do. In two to four hosts of eight GPUs those links are full before the ports are. A part of every
shard then goes another way: each member passes what it got inside its own host on over its own port, so that all
members of all other hosts have it two sends after its root. How large the part is follows from the loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from blinksim.packing.hosts.alike_hosts import Hosts, LocalTree, Path, Shape, stars, turned_edges, ways_from

# (member, weight, tree in the member's own host, {kind of host: trees there})
Piece = tuple[int, Fraction, LocalTree, dict[int, tuple[LocalTree, ...]]]
# Ports of a member that take turns.
_MOST_TURNS = 16


def with_many_doors(hosts: Hosts, pieces: Sequence[Piece], rate: Fraction) -> tuple[Piece, ...] | None:
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
    both = [*((1 - low, one) for one in pieces), *((low, one) for one in wide)]
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
    """Every member's shard, passed on by all members with a port of their own; a piece for every turn of the ports."""
    shape, trees = hosts.shape, stars(hosts, 0)
    if trees is None:
        return None
    doors: dict[int, list[LocalTree]] = {}
    for tree in trees:
        if tree.port >= 0:
            doors.setdefault(tree.root, []).append(tree)
    turns = lcm(*map(len, doors.values()))
    if turns > _MOST_TURNS:
        return None
    ways = {member: ways_from(shape, member) for member in doors}
    pieces: list[Piece] = []
    for own in (tree for tree in trees if tree.port < 0):
        for turn in range(turns):
            entered = [doors[member][turn % len(doors[member])] for member in doors]
            pieces.append((own.root, Fraction(1, turns), own, {0: _shared(shape, entered, ways, own.root)}))
    return pieces


def _shared(
    shape: Shape, entered: Sequence[LocalTree], ways: dict[int, dict[int, Path]], first: int
) -> tuple[LocalTree, ...]:
    """Trees from where data enters to the members where none does, dealt out in turn; `first` shifts the turns."""
    edges: dict[int, list[tuple[int, int, Path]]] = {tree.root: [] for tree in entered}
    roots = list(edges)
    rest = [member for member in shape.members if member not in edges]
    for number, member in enumerate(rest):
        root = roots[(number + first) % len(roots)]
        edges[root].append((root, member, ways[root][member]))
    return tuple(
        LocalTree(tree.root, Fraction(1), turned_edges(tree.root, edges[tree.root]), tree.port, tree.entry)
        for tree in entered
    )
