"""Broadcast and reduce over rails: a chain of nodes on every rail, and a star in every node.

The root hands a part of its data to the member of each place; the parts go from node to node, each on its own rail, and
every member that receives one passes it on in its node as well. So each adapter carries its part once in and once out,
and all adapters of a node together carry the whole (a pipelined chain, Chan et al., CCPE 2007, for each rail). Between
groups of nodes, such as those of a dragonfly, chains take different ways round, so that no link between two groups
carries them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import cycle, pairwise
from math import gcd

from blinksim.bounds.exchanges.rails import Rails, Route, read_rails
from blinksim.schedule.tree import Edge, Tree
from blinksim.topology.graph import Topology


def rail_chains(topology: Topology, root: int, *, collects: bool) -> list[Tree] | None:
    """A tree for each rail, from the member of rank `root`; towards it if `collects`.

    None for a machine that is no cluster of alike nodes, or in which a member lacks an adapter.
    """
    rails = read_rails(topology)
    if rails is None or not rails.open.all() or (rails.ranks < 0).any():
        return None
    start = next((a, i) for a, row in enumerate(rails.ranks.tolist()) for i, rank in enumerate(row) if rank == root)
    ways = rails.exit.shape[2]
    rail = ((k, way) for k in range(rails.local) for way in range(ways))
    share = Fraction(1, rails.local * ways)
    orders = _orders(rails, start[0])
    return [_tree(rails, next(orders), start, one, share, collects) for one in rail]


def _orders(rails: Rails, first: int) -> Iterator[list[int]]:
    """The nodes in the order of one chain after another, those below one switch together."""
    switch = [int(rails.exit[a, 0, 0]) for a in range(rails.nodes)]
    groups: dict[int, list[int]] = {}
    for place in range(rails.nodes):
        node = (first + place) % rails.nodes
        groups.setdefault(switch[node], []).append(node)
    rows = list(groups.values())
    strides = [stride for stride in range(1, len(rows)) if gcd(stride, len(rows)) == 1] or [1]
    for stride in cycle(strides):
        yield [node for place in range(len(rows)) for node in rows[place * stride % len(rows)]]


def _tree(
    rails: Rails, order: list[int], start: tuple[int, int], rail: tuple[int, int], share: Fraction, collects: bool
) -> Tree:
    topology, local, (k, _) = rails.topology, rails.local, rail
    device = {
        (a, i): topology.index[topology.members[rank]]
        for a, row in enumerate(rails.ranks.tolist())
        for i, rank in enumerate(row)
    }

    def inside(a: int, i: int, j: int) -> Edge:
        x, y = (j, i) if collects else (i, j)
        ways = rails.inside[(a * local + x) * local + y]
        return device[a, i], device[a, j], ways[(i + j) % len(ways)]

    def across(a: int, b: int) -> Edge:
        x, y = (b, a) if collects else (a, b)
        return device[a, k], device[b, k], _between(rails, x, y, rail)

    edges = [] if start[1] == k else [inside(start[0], start[1], k)]
    for place, node in enumerate(order):
        if place:
            edges.append(across(order[place - 1], node))
        others = [j for j in range(local) if j != k and (node, j) != start]
        if (node, k) == start:
            # The root has sent every other part to somebody here: this one goes from hand to hand.
            edges += [inside(node, i, j) for i, j in pairwise((k, *others))]
        else:
            edges += [inside(node, k, j) for j in others]
    found = tuple(edges)
    return Tree(device[start], share, up=found) if collects else Tree(device[start], share, down=found)


def _between(rails: Rails, a: int, b: int, rail: tuple[int, int]) -> Route:
    """From the member of a place of node `a` to that of node `b`, over one of its ways. rail: the place and the way."""
    k, way = rail
    out, into = int(rails.exit[a, k, way]), int(rails.entry[b, k, way])
    middle = rails.trunks[out, into][0] if out != into else ()
    return (*rails.up[a * rails.local + k][way], *middle, *rails.down[b * rails.local + k][way])
