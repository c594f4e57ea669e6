"""Rails: by which of them the bytes of an alltoall cross, in whole units and few pieces.

For two nodes the indices get what suits their adapters (`blinksim.bounds.rails`). Data for a receiver
crosses by its own index as far as that has room, which saves a hop inside its node, and else by those with
room left; the sender of that index goes first, which saves the other hop. Both are transportation problems
between totals; after the diagonal, the northwest-corner rule solves them with as few pieces as there are
totals (Dantzig 1951).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blinksim.bounds.rails import Rails, place_parts
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints, transport

# How much of what crosses goes where adapters have room; the rest keeps to the receivers' places. Tried in
# this order: where a GPU receives more than its links inside the node carry, its own adapter must be busy all
# the time.
_EVEN = (1.0, 0.99, 0.98, 0.96, 0.92, 0.84, 0.68, 0.36, 0.0)


class Pieces(NamedTuple):
    """Units on one route: from member `i` of node `a` over `port` of place `k` to member `j` of node `b`."""

    a: Ints
    i: Ints
    k: Ints
    port: Ints
    b: Ints
    j: Ints
    amount: Ints


def choose_places(rails: Rails, units: Ints, aim: float) -> Pieces:
    """The pieces of what goes between nodes, at the best rate found.

    units: (N, L, N, L), what member i of node a has for member j of node b. aim: units/s at which the search
    ends. Raises `InfeasibleError` where two nodes have no open place in common.
    """
    return Pieces(*map(np.concatenate, zip(*place_sums(rails, units, aim, keep=True).pieces, strict=True)))


@dataclass(frozen=True, eq=False)
class Sums:
    """What pieces add up to, in units, and how many sends they have.

    before, after, within: (N, L, L), from member to member of a node before crossings, after them, and of
    what stays in its node. across: (N, N, L), from node to node over each place. pieces: those of each node,
    where they are kept.
    """

    before: Ints
    across: Ints
    after: Ints
    within: Ints
    sends: int
    pieces: tuple[Pieces, ...] = ()


def place_sums(rails: Rails, units: Ints, aim: float, *, keep: bool = False) -> Sums:
    """What `choose_places` has members hand to each other and send across, added up; raises as it does.

    keep: the pieces that are added up as well.
    """
    nodes, local = rails.ranks.shape
    own = np.arange(nodes)
    within = units[own, :, own, :].copy()
    within[:, np.arange(local), np.arange(local)] = 0
    by_receiver = units.sum(axis=1)
    by_receiver[own, own] = 0
    by_node = by_receiver.sum(axis=2)
    if (parts := place_parts(rails, by_node.astype(float))) is None:
        raise InfeasibleError("some nodes have no adapters of equal place in common")
    some = by_node[:, :, None] > 0
    aligned = np.divide(by_receiver, by_node[:, :, None], out=np.zeros(by_receiver.shape), where=some)
    best: tuple[float, Sums] | None = None
    for even in _EVEN:
        # Units (N, N, L) between two nodes over each place; they add up to what goes there.
        bounds = np.cumsum(even * parts + (1 - even) * aligned, axis=2) * by_node[:, :, None]
        whole = np.floor(bounds + 0.5).astype(np.int64)
        whole[:, :, -1] = by_node
        room = np.diff(whole, axis=2, prepend=0)
        if even < 1 and (room[~rails.open[:, None, :] | ~rails.open[None, :, :]] > 0).any():
            continue
        before, after = np.zeros((2, nodes, local, local), dtype=np.int64)
        across, pieces = np.zeros((nodes, nodes, local), dtype=np.int64), list[Pieces]()
        sends = int(np.count_nonzero(within))
        for a in range(nodes):
            # The pieces that start in node `a`.
            over = transport(by_receiver[a], room[a])  # (node b, receiver j, place k)
            sent = units[a].transpose(1, 2, 0).copy()  # (b, j, sender i)
            sent[a] = 0
            flow = transport(sent, over)  # (b, j, i, k)
            b, j, i, k = np.nonzero(flow)
            amount = flow[b, j, i, k]
            port = np.zeros(len(amount), dtype=np.int64)
            count = rails.exit.shape[2]
            if count > 1:
                # Pieces are cut so that the units of every group are even over its ports.
                group = b * room.shape[2] + k
                order = np.argsort(group, kind="stable")
                ends = np.cumsum(amount[order])
                sizes = np.bincount(group, amount, room[a].size).astype(np.int64)
                # Where every piece lies within its group.
                first = np.concatenate(([0], np.cumsum(sizes)))[group[order]]
                start, end = ends - amount[order] - first, ends - first
                whole = room[a].ravel()[group[order]]
                numbers = np.arange(count)[:, None]
                low, high = whole * numbers // count, whole * (numbers + 1) // count
                there = np.minimum(end, high) - np.maximum(start, low)
                port, some = np.nonzero(there > 0)
                piece, amount = order[some], there[port, some]
                b, j, i, k = b[piece], j[piece], i[piece], k[piece]
            part = Pieces(np.full(len(amount), a), i, k, port, b, j, amount)
            pieces += [part] if keep else []
            for moved, node, x, y in ((before, part.a, part.i, part.k), (after, part.b, part.k, part.j)):
                goes = x != y
                np.add.at(moved.reshape(-1), ((node * local + x) * local + y)[goes], part.amount[goes])
                sends += int(np.count_nonzero(goes))
            np.add.at(across.reshape(-1), (part.a * nodes + part.b) * local + part.k, part.amount)
            sends += len(part.amount)
        loads = rails.loads((before + after + within).astype(float), across.astype(float))
        time = float((loads / rails.resources.rates).max())
        if best is None or time < best[0]:
            best = time, Sums(before, across, after, within, sends, tuple(pieces))
        if 1 / time >= aim * (1 - 1e-6):
            break
    assert best is not None
    return best[1]
