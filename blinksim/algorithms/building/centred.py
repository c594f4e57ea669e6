"""Allreduce on direct links: undirected spanning trees at the partition bound, up and down, rooted at their centres.

Blink (Wang et al. 2020) reduces and broadcasts over the same trees; that such trees attain the partition bound is the
theorem of Nash-Williams and Tutte (1961), see `blinksim.packing.exact.spanning`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from blinksim.bounds.partition import undirected
from blinksim.graphs.network import Network
from blinksim.graphs.rooted_trees import RootedTree
from blinksim.packing.exact.routed_trees import Routes
from blinksim.packing.exact.spanning import pack_low
from blinksim.schedule.tree import Tree
from blinksim.topology.graph import Topology


def pairs_of_links(topology: Topology) -> list[int] | None:
    """The reverse of every link, of the same class; None unless all come in equal pairs, alone on their bus."""
    columns, count = topology.link_columns, len(topology.devices)
    kinds = len(columns.classes)
    key, back = ((a * count + b) * kinds + columns.kind for a, b in (topology.ends, topology.ends[::-1]))
    if not len(key):
        return []
    order = np.argsort(key)
    place = np.minimum(np.searchsorted(key[order], back), len(key) - 1)
    pairs = order[place]
    number = {rate: row for row, rate in enumerate(columns.bandwidths)}
    rate = np.array([number[rate] for rate in columns.bandwidths], dtype=np.int64)[columns.figure]
    equal = (key[pairs] == back) & (columns.bus[pairs] == columns.bus) & (rate[pairs] == rate)
    alone = bool((np.bincount(columns.bus[columns.bus >= 0]) == 2).all())
    return pairs.tolist() if bool(equal.all()) and alone else None


def undirected_trees(
    topology: Topology, net: Network, pairs: Sequence[int], progress: Callable[[int, int], None] | None = None
) -> tuple[Fraction, list[Tree]]:
    """algbw in bytes/s, and spanning trees of the graph whose edges are pairs of links.

    net: the network of `topology`, in which every device is a vertex of the trees. pairs: what `pairs_of_links` gives.
    """
    a, b, capacity, unit = undirected(topology)
    strength, trees = pack_low(net.vertices, a, b, capacity, progress)
    # Amounts are whole; scaled, they add up to the strength.
    scale = sum(tree.amount for tree in trees) / strength
    # One arc per pair of links, from the lower to the higher device; a bus counts once for both directions.
    tail, head = net.tail.tolist(), net.head.tolist()
    once = [0] * len(tail)
    for arc, (x, y, c) in enumerate(zip(tail, head, net.capacity.tolist(), strict=True)):
        if x < y:
            once[arc] = int(c * net.unit / unit * scale) * (1 if topology.links[arc].bus else 2)
    routes = Routes(tail, head, once, ())
    found: list[Tree] = []
    for tree in trees:
        plain = RootedTree(tree.root, tree.amount, tuple((min(e), max(e)) for e in tree.edges))
        for routed in routes.route([plain]):
            down, up = [], []
            for (parent, child), (_, _, (arc,)) in zip(tree.edges, routed.edges, strict=True):
                ways = (arc, pairs[arc]) if tail[arc] == parent else (pairs[arc], arc)
                down.append((parent, child, ways[:1]))
                up.append((parent, child, ways[1:]))
            found.append(Tree(tree.root, routed.amount / (strength * scale), tuple(down), tuple(up)))
    return strength * unit / 2, found
