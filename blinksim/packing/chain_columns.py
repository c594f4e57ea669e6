"""Hamiltonian paths and cycles as columns: all of them on small machines, the best by price on larger ones.

A path or cycle of least price is a travelling-salesman tour, found by CP-SAT's circuit constraint (Perron and
Furnon). Where every pair is joined alike, Walecki's zigzags (Lucas, Recreations mathematiques 2, 1892) use
every pair and every end equally often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice, pairwise

from ortools.sat.python import cp_model

from blinksim.packing.choose import Limits, equal_shares
from blinksim.packing.columns import Arc, Column, Hops, best_mix
from blinksim.packing.hamiltonian import Order, hamiltonian

# Most orders that are listed; beyond that, orders are priced, up to this many ranks.
MOST_LISTED = 3000
MOST_PRICED = 24
_PRICE_SCALE = 1_000_000
_PRICE_EFFORT = 0.2


def listed(hops: Hops, *, closed: bool, both: bool, most_ranks: int) -> list[Column] | None:
    """A column for every order of the members in which each hops to the next, and the last to the first if `closed`.

    both: hops must exist in both directions, and of an order and its reverse only one is given; otherwise
    orders are directed. None if there are too many, or more ranks than `most_ranks`.
    """
    if hops.members > most_ranks:
        return None
    members = hops.vertices[: hops.members]
    rank = {vertex: number for number, vertex in enumerate(members)}
    joined = hops.both if both else hops.next_to
    next_to = [[rank[b] for b in joined[a] if b in rank] for a in members]
    orders = list(islice(hamiltonian(next_to, closed=closed, both=both), MOST_LISTED + 1))
    return [column(hops, order, closed=closed, both=both) for order in orders] if len(orders) <= MOST_LISTED else None


def column(hops: Hops, order: Order, *, closed: bool, both: bool) -> Column:
    """The load of one order: every hop once, or once in each direction."""
    places = [hops.vertices[rank] for rank in ((*order, order[0]) if closed and len(order) > 1 else order)]
    arcs = tuple(pairwise(places))
    return Column(arcs, hops.load((*arcs, *((b, a) for a, b in arcs)) if both else arcs))


def orders_of(hops: Hops, columns: Sequence[Column], counts: Sequence[int], *, closed: bool) -> list[Order]:
    """The ranks in the order of each column's hops, as often as it counts."""
    rank, orders = {vertex: number for number, vertex in enumerate(hops.vertices)}, list[Order]()
    for column, times in zip(columns, counts, strict=True):
        places = [column.arcs[0][0], *(b for _, b in column.arcs)]
        orders += [tuple(rank[v] for v in (places[:-1] if closed else places))] * times
    return orders


def even_orders(
    hops: Hops, pool: Sequence[Column], channels: int, limits: Limits, *, closed: bool, most: Fraction | None = None
) -> list[Order]:
    """The orders of at most `channels` equal channels that carry the most together; the fewest of these.

    most: a rate that nothing exceeds.
    """
    mix = best_mix(pool, hops.capacity)
    best = max(mix.rate, Fraction(mix.optimum).limit_denominator(10_000))
    _, counts = equal_shares(pool, hops.capacity, channels, best if most is None else min(most, best), limits)
    return orders_of(hops, pool, counts, closed=closed)


def zigzags(n: int) -> list[Order]:
    """Paths through all of 0 … n-1 that use every pair equally often and end at every number equally often.

    n/2 of them for even n, n for odd n (then every pair is used twice).
    """
    base = [0]
    for step in range(1, n // 2 + 1):
        base += [step, -step]
    base = base[:n]
    return [tuple((first + step) % n for step in base) for first in range(n // 2 if n % 2 == 0 else n)]


def by_rail(groups: Sequence[Sequence[int]], *, closed: bool) -> list[Order]:
    """Orders node by node that leave a node where the next one is entered: at the same place, on the same rail.

    groups: the ranks of each node, equally many. One order per place to start from, so that all rails are
    used alike; none for single nodes or nodes of one rank, or closed orders of an odd number of nodes of two.
    """
    count, size = len(groups), len(groups[0])
    if count < 2 or size < 2 or len(set(map(len, groups))) > 1 or (closed and count % 2 and size < 3):
        return []
    orders = []
    for start in range(size):
        places = [(start + node % 2) % size for node in range(count)]
        if closed and count % 2:
            places[-1] = (start + 2) % size
        order: list[int] = []
        for node, (enter, leave) in enumerate(zip(places, [*places[1:], start if closed else -1], strict=True)):
            if leave < 0:
                leave = (enter - 1) % size
            inner = [(enter + step) % size for step in range(1, size)]
            inner.remove(leave)
            order += [groups[node][place] for place in (enter, *inner, leave)]
        orders.append(tuple(order))
    return orders


def priced(
    hops: Hops, start: Sequence[Column], capacity: Sequence[int], *, closed: bool, both: bool, limits: Limits
) -> tuple[list[Column], tuple[Column, ...]]:
    """The columns of `start` (or the cheapest order), and those that a linear program over all orders takes."""
    if hops.members > MOST_PRICED:
        return list(start), ()
    rank = {vertex: number for number, vertex in enumerate(hops.vertices[: hops.members])}
    arcs = [(a, b) for a, b in hops.routes if a in rank and b in rank and (not both or (b, a) in hops.routes)]
    ends = [(rank[a], rank[b]) for a, b in arcs]

    def price(prices: Sequence[float]) -> list[Column]:
        cost = hops.cost(prices)
        costs = [cost[a, b] + (cost[b, a] if both else 0.0) for a, b in arcs]
        order = cheapest_order(ends, costs, hops.members, closed=closed, limits=replace(limits, effort=_PRICE_EFFORT))
        return [] if order is None else [column(hops, order, closed=closed, both=both)]

    pool = list(start) or price([1.0] * len(capacity))
    # Each answer takes longer on a larger machine.
    rounds = 60 if hops.members <= 16 else 40
    return pool, best_mix(pool, capacity, price=price, rounds=rounds).columns if pool else ()


def cheapest_order(arcs: Sequence[Arc], cost: Sequence[float], n: int, *, closed: bool, limits: Limits) -> Order | None:
    """An order of 0 … n-1 along `arcs` with the least sum of costs that the search finds; None if it finds none."""
    model = cp_model.CpModel()
    literals = [(a, b, model.new_bool_var("")) for a, b in arcs]
    circuit = list(literals)
    if not closed:
        # A further vertex closes the path: it comes before the first and after the last.
        circuit += [(n, a, model.new_bool_var("")) for a in range(n)]
        circuit += [(a, n, model.new_bool_var("")) for a in range(n)]
    model.add_circuit(circuit)
    scale = _PRICE_SCALE / (max(cost, default=0.0) or 1.0)
    model.minimize(sum(round(c * scale) * x for c, (_, _, x) in zip(cost, literals, strict=True)))
    solver = limits.solved(model)
    if solver is None:
        return None
    follows = {a: b for a, b, x in circuit if solver.value(x)}
    order = [0 if closed else follows[n]]
    while len(order) < n:
        order.append(follows[order[-1]])
    return tuple(order)
