"""Over which place every byte of an alltoall crosses to another node, in whole units and few pieces.

For two nodes the places get what suits their adapters (`blinksim.bounds.exchanges.rail_spread`). What a receiver gets
goes over its own place as far as that has room, which saves a hop inside its node, and the rest over the places that
have room left; what goes over a place comes from the sender there first, which saves the other hop. Both are
transportation problems between totals; after the diagonal, the northwest-corner rule solves them with as few pieces as
there are totals (Dantzig 1951).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from blinksim.bounds.exchanges.rail_spread import place_parts
from blinksim.bounds.exchanges.rails import Floats, Rails
from blinksim.errors import InfeasibleError
from blinksim.structures.transport import transport

Ints = npt.NDArray[np.int64]
# How much of what crosses goes where adapters have room; the rest keeps to the receivers' places. Tried in this order:
# where a GPU receives more than its links inside the node carry, its own adapter must be busy all the time.
_EVEN = (1.0, 0.99, 0.98, 0.96, 0.92, 0.84, 0.68, 0.36, 0.0)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Units that go one way: from member `i` of node `a` over `way` of place `k` to member `j` of node `b`."""

    a: Ints
    i: Ints
    k: Ints
    way: Ints
    b: Ints
    j: Ints
    amount: Ints


def choose_places(rails: Rails, units: Ints, aim: float) -> Pieces:
    """The pieces of what goes between nodes, at the best rate found.

    units: (N, L, N, L), what member i of node a has for member j of node b. aim: units/s at which the search ends.
    Raises `InfeasibleError` where two nodes have no open place in common.
    """
    found: dict[float, list[Pieces]] = {}

    def keep(even: float, pieces: Pieces) -> None:
        found.setdefault(even, []).append(pieces)

    best, _ = _best(rails, units, aim, keep)
    columns = ("a", "i", "k", "way", "b", "j", "amount")
    return Pieces(*(np.concatenate([getattr(one, name) for one in found[best]]) for name in columns))


def place_sums(rails: Rails, units: Ints, aim: float) -> Sums:
    """What `choose_places` has members hand to each other and send across, added up; raises as it does."""
    return _best(rails, units, aim, lambda even, pieces: None)[1]


@dataclass(frozen=True, eq=False)
class Sums:
    """What pieces add up to, in units, and how many sends they have.

    before, after, within: (N, L, L), from member to member of a node before crossings, after them, and of what stays in
    its node. across: (N, N, L), from node to node over each place.
    """

    before: Ints
    across: Ints
    after: Ints
    within: Ints
    sends: int


def _best(rails: Rails, units: Ints, aim: float, keep: Callable[[float, Pieces], None]) -> tuple[float, Sums]:
    """Which of `_EVEN` is best, and its sums. keep: called with every piece of one of these, node by node."""
    nodes, local = rails.ranks.shape
    own = np.arange(nodes)
    within = units[own, :, own, :].copy()
    within[:, np.arange(local), np.arange(local)] = 0
    by_receiver = units.sum(axis=1)
    by_receiver[own, own] = 0
    by_node = by_receiver.sum(axis=2)
    parts = place_parts(rails, by_node.astype(float))
    if parts is None:
        raise InfeasibleError("some nodes have no adapters of equal place in common")
    best: tuple[float, float, Sums] | None = None
    for even in _EVEN:
        room = _room(by_node, by_receiver, parts, even)
        if even < 1 and (room[~rails.open[:, None, :] | ~rails.open[None, :, :]] > 0).any():
            continue
        sums = _summed(rails, units, room, by_receiver, within, partial(keep, even))
        moved = (sums.before + sums.after + within).astype(float)
        time = float((rails.loads(moved, sums.across.astype(float)) / rails.rate).max())
        if best is None or time < best[0]:
            best = time, even, sums
        if 1 / time >= aim * (1 - 1e-6):
            break
    assert best is not None
    return best[1:]


def _summed(
    rails: Rails, units: Ints, room: Ints, by_receiver: Ints, within: Ints, keep: Callable[[Pieces], None]
) -> Sums:
    nodes, local = rails.ranks.shape
    before, after = (np.zeros(nodes * local * local, dtype=np.int64) for _ in range(2))
    across = np.zeros(nodes * nodes * local, dtype=np.int64)
    sends = int(np.count_nonzero(within))
    for a in range(nodes):
        one = _pieces(rails, units, room, by_receiver, a)
        keep(one)
        for moved, node, x, y in ((before, one.a, one.i, one.k), (after, one.b, one.k, one.j)):
            goes = x != y
            np.add.at(moved, ((node * local + x) * local + y)[goes], one.amount[goes])
            sends += int(np.count_nonzero(goes))
        np.add.at(across, (one.a * nodes + one.b) * local + one.k, one.amount)
        sends += len(one.amount)
    inside = (nodes, local, local)
    return Sums(before.reshape(inside), across.reshape(nodes, nodes, local), after.reshape(inside), within, sends)


def _room(by_node: Ints, by_receiver: Ints, parts: Floats, even: float) -> Ints:
    """Units (N, N, L) between two nodes over each place; they add up to what goes there."""
    aligned = np.divide(
        by_receiver, by_node[:, :, None], out=np.zeros(by_receiver.shape), where=by_node[:, :, None] > 0
    )
    bounds = np.cumsum(even * parts + (1 - even) * aligned, axis=2) * by_node[:, :, None]
    whole = np.floor(bounds + 0.5).astype(np.int64)
    whole[:, :, -1] = by_node
    return np.diff(whole, axis=2, prepend=0)


def _pieces(rails: Rails, units: Ints, room: Ints, by_receiver: Ints, a: int) -> Pieces:
    """The pieces that start in node `a`."""
    over = transport(by_receiver[a], room[a])  # (node b, receiver j, place k)
    sent = units[a].transpose(1, 2, 0).copy()  # (b, j, sender i)
    sent[a] = 0
    flow = transport(sent, over)  # (b, j, i, k)
    b, j, i, k = np.nonzero(flow)
    amount = flow[b, j, i, k]
    way = np.zeros(len(amount), dtype=np.int64)
    count = rails.exit.shape[2]
    if count > 1:
        rows = _divided(amount, b * room.shape[2] + k, room[a].ravel(), count)
        piece, way, amount = (np.concatenate(column) for column in zip(*rows, strict=True))
        b, j, i, k = b[piece], j[piece], i[piece], k[piece]
    return Pieces(np.full(len(amount), a), i, k, way, b, j, amount)


def _divided(amount: Ints, group: Ints, room: Ints, count: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Pieces cut so that every group's units are divided evenly among its ways: (piece, way, units) for every way."""
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(amount[order])
    # Where every piece lies within its group.
    first = np.concatenate(([0], np.cumsum(np.bincount(group, amount, len(room)).astype(np.int64))))[group[order]]
    start, end = ends - amount[order] - first, ends - first
    whole = room[group[order]]
    for way in range(count):
        low, high = whole * way // count, whole * (way + 1) // count
        there = np.minimum(end, high) - np.maximum(start, low)
        some = np.flatnonzero(there > 0)
        yield order[some], np.full(len(some), way), there[some]
