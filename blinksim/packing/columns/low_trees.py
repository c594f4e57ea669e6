"""All out-trees of small height: the columns among which the lowest schedules are chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from blinksim.packing.columns.hops import Arc, Hops


def low_trees(hops: Hops, root: int, height: int) -> Iterator[tuple[Arc, ...]]:
    """All out-trees of at most that height from `root` to all members, as arcs with parents first."""
    members = hops.vertices[: hops.members]

    def extend(
        level: Sequence[int], inside: frozenset[int], arcs: tuple[Arc, ...], left: int
    ) -> Iterator[tuple[Arc, ...]]:
        rest = [vertex for vertex in members if vertex not in inside]
        if not rest:
            yield arcs
        elif left:
            # A vertex that joins on this level hangs below one of the last level; None waits for a later one.
            later = (None,) if left > 1 else ()
            parents = [[*(above for above in level if (above, vertex) in hops.routes), *later] for vertex in rest]
            for choice in product(*parents):
                more = tuple((above, vertex) for vertex, above in zip(rest, choice, strict=True) if above is not None)
                new = [vertex for _, vertex in more]
                if new:
                    yield from extend(new, inside.union(new), arcs + more, left - 1)

    yield from extend([root], frozenset([root]), (), height)


def entry_trees(hops: Hops, nodes: Sequence[Sequence[int]], root: int) -> Iterator[tuple[Arc, ...]]:
    """Trees of height 2 over several nodes: `root` sends to its own node, and to one entry in each other node.

    nodes: the members of every node. The n-th tree enters every node at the n-th (counted round) member that a hop from
    the root leads to and that reaches the rest of its node by hops.
    """
    routes = hops.routes
    own = [(root, other) for node in nodes if root in node for other in node if other != root]
    entries = [
        [here for here in node if (root, here) in routes and all(b == here or (here, b) in routes for b in node)]
        for node in nodes
        if root not in node
    ]
    if not all(arc in routes for arc in own) or not all(entries):
        return
    for number in range(max(map(len, entries), default=0)):
        chosen = [options[number % len(options)] for options in entries]
        others = [next(node for node in nodes if here in node) for here in chosen]
        below = [(here, b) for here, node in zip(chosen, others, strict=True) for b in node if b != here]
        yield (*own, *((root, here) for here in chosen), *below)
