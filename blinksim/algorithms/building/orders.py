"""Orders of ranks for rings and chains, by the neighbours that a machine's links favour.

Up to `EXACT` ranks whose direct links hold Hamiltonian cycles, the most edge-disjoint ones (counting lanes)
are found by search, as in NCCL's rings on a DGX-1 (Blink, section 2). Beyond that, direct links that fall
into such cycles, as those of a torus do, are used by all of them. Elsewhere ranks go node by node; with
several NICs a node, each NIC has a ring that leaves the node from a GPU of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice, pairwise, permutations

import numpy as np

from blinksim.graphs.connectivity import summed
from blinksim.packing.hamiltonian import Order, disjoint_cycles, hamiltonian
from blinksim.schedule.loads import resources
from blinksim.schedule.step_loads import uses_of_messages
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

EXACT = 9
_CYCLES = 20_000
# Ranks up to which links are divided into cycles, and the sends of their rings, both ways, that take few seconds.
_MOST_CYCLED = 2048
_MOST_RING_SENDS = 4_500_000


def ring_orders(topology: Topology, *, alike: bool = False) -> list[Order]:
    """Directed cyclic orders of the ranks, one per ring; all rings carry equal shares.

    alike: every node is traversed in the same way, which NCCL's graph files need: they describe one node for
    all.
    """
    n = topology.ranks
    if n <= 2:
        return [tuple(range(n))]
    packed = _pack(lanes_between(topology), n) if n <= EXACT else []
    candidates = [[*packed, *map(_reverse, packed)]] if packed else []
    if not packed:
        if n <= 6:
            everywhere = [[b for b in range(n) if b != a] for a in range(n)]
            candidates += [[order] for order in hamiltonian(everywhere, closed=True, both=True)]
        candidates += _by_node(topology, alike)
        candidates += _disjoint(topology, n)
        candidates += [[*rings, *map(_reverse, rings)] for rings in candidates]
    # Fewest rings among the fastest: each ring costs a channel.
    return max(candidates, key=lambda rings: (ring_rate(topology, rings), -len(rings)))


def chain_order(topology: Topology, first: int = 0) -> Order:
    """An order of the ranks that starts with `first`, with the fastest slowest hop that a search finds."""
    n = topology.ranks
    if n <= 2:
        return (first, *(rank for rank in range(n) if rank != first))
    if n <= EXACT:
        width = _widths(topology)
        found = list[Order]()
        # One path for every threshold that still allows one.
        for level in sorted({*width.values()}):
            next_to = [[b for b in range(n) if b != a and width[a, b] >= level] for a in range(n)]
            order = next(hamiltonian(next_to, closed=False, both=False, starts=[first]), None)
            if order is None:
                break
            found.append(order)
        return max(found, key=lambda order: min(width[hop] for hop in pairwise(order)))
    groups = nodes_of(topology, topology.members)
    home = next(i for i, group in enumerate(groups) if first in group)
    ordered = groups[home:] + groups[:home]
    place = ordered[0].index(first)
    ordered[0] = ordered[0][place:] + ordered[0][:place]
    return tuple(rank for group in ordered for rank in group)


def ring_rate(topology: Topology, rings: list[Order]) -> Fraction:
    """Bytes/s of all rings together when all run at the same rate and divide every hop among all equal routes."""
    orders = [topology.member_places[np.array(order)] for order in rings]
    ends = np.concatenate(orders), np.concatenate([np.roll(order, -1) for order in orders])
    use, _ = uses_of_messages(topology, *ends)
    shared = resources(topology)
    # What devices carry in all does not count here.
    amounts = np.zeros(len(shared.rate), dtype=np.int64)
    np.add.at(amounts, shared.of_link, use.units)
    return use.parts * len(rings) / shared.longest(amounts)


def lanes_between(topology: Topology, ranks: Sequence[int] | None = None) -> dict[tuple[int, int], int]:
    """Lanes between each pair of ranks that a full-duplex link joins directly, in units of the thinnest lane.

    ranks: those that count, numbered by their place here. Default: all.
    """
    columns, rank = topology.link_columns, np.full(len(topology.devices), -1)
    held = [topology.index[topology.members[i]] for i in (range(topology.ranks) if ranks is None else ranks)]
    rank[held] = np.arange(len(held))
    a, b, rates = rank[columns.src], rank[columns.dst], columns.bandwidths
    own = np.flatnonzero((a >= 0) & (b >= 0) & (columns.bus < 0))
    rows = zip(a[own].tolist(), b[own].tolist(), columns.figure[own].tolist(), strict=True)
    direct = summed(((src, dst), rates[row]) for src, dst, row in rows)
    both = {pair: min(rate, direct[pair[::-1]]) for pair, rate in direct.items() if pair[::-1] in direct}
    unit = min(both.values(), default=Fraction(1))
    return {pair: int(rate / unit) for pair, rate in both.items()}


def _pack(lanes: dict[tuple[int, int], int], n: int) -> list[Order]:
    """The most cycles that use no lane twice, by depth-first search over at most `_CYCLES` of them."""
    next_to = [[b for b in range(n) if (a, b) in lanes] for a in range(n)]
    cycles = list(islice(hamiltonian(next_to, closed=True, both=True), _CYCLES))
    edges = [tuple(pairwise((*order, order[0]))) for order in cycles]
    most = min((sum(lanes.get((a, b), 0) for b in range(n)) for a in range(n)), default=0) // 2
    best: list[int] = []
    budget = 200_000

    def search(start: int, chosen: list[int], left: dict[tuple[int, int], int]) -> bool:
        nonlocal best, budget
        if len(chosen) > len(best):
            best = list(chosen)
        budget -= 1
        if len(best) >= most or budget < 0:
            return True
        for number in range(start, len(cycles)):
            if all(left[edge] > 0 for edge in edges[number]):
                for a, b in edges[number]:
                    left[a, b] -= 1
                    left[b, a] -= 1
                chosen.append(number)
                if search(number, chosen, left):
                    return True
                chosen.pop()
                for a, b in edges[number]:
                    left[a, b] += 1
                    left[b, a] += 1
        return False

    search(0, [], dict(lanes))
    return [cycles[number] for number in best]


def _disjoint(topology: Topology, n: int) -> list[list[Order]]:
    """The cycles that all direct links fall into, together and each by itself: one may avoid a slow link."""
    lanes = {(a, b): number for (a, b), number in lanes_between(topology).items() if a < b}
    if len(lanes) <= n or n > _MOST_CYCLED:
        return []
    # A link that differs from most is as good a link; how much its rings lose is measured.
    usual = Counter(lanes.values()).most_common(1)[0][0]
    edges = [edge for edge, number in lanes.items() for _ in range(max(1, round(number / usual)))]
    cycles = disjoint_cycles(edges, n)
    most = _MOST_RING_SENDS // (4 * n * n)
    return [cycles[:most], *([cycle] for cycle in cycles)] if most > 1 and cycles else [[cycle] for cycle in cycles]


def _by_node(topology: Topology, alike: bool) -> list[list[Order]]:
    """Node by node: one ring in rank order, or one per local rank, each entering the nodes at another one.

    Inside the nodes the rings follow the rank order, or in turn the cycles that a node's direct links hold.
    """
    groups = nodes_of(topology, topology.members)
    single = [tuple(rank for group in groups for rank in group)]
    local = min(map(len, groups))
    if len(groups) == 1 or local == 1 or len({len(group) for group in groups}) > 1:
        return [single]
    inside = [tuple(range(local))]
    cycles = _pack(lanes_between(topology, groups[0]), local) if 2 < local <= EXACT else []
    chosen = [orders for orders in (inside, [*cycles, *map(_reverse, cycles)]) if orders]
    directions = (False,) if alike else (False, True)
    return [single, *(_rotated(groups, orders, back) for orders in chosen for back in directions)]


def _rotated(groups: list[list[int]], inside: list[Order], back: bool) -> list[Order]:
    """One ring for every order inside a node and every rank that may come first in it: all ports are used alike.

    back: every other node is passed backwards, so that a ring enters a node where it left the one before,
    which keeps it on its rail. An odd number of nodes has two forward in a row: between them the ring changes
    to a third rail.
    """
    doubled = back and len(groups) % 2 == 1 and len(groups) > 2
    rings = []
    for order in inside:
        for first in range(len(order)):
            rotated = order[first:] + order[:first]
            by_node = [rotated, rotated[::-1] if back else rotated] * len(groups)
            if doubled and len(order) > 2:
                start, third, *middle, end = rotated
                by_node[len(groups) - 2 : len(groups)] = [(end, start, *middle, third), (third, *middle, end, start)]
            rings.append(tuple(group[local] for group, own in zip(groups, by_node, strict=False) for local in own))
    return rings


def _reverse(order: Order) -> Order:
    return (order[0], *reversed(order[1:]))


def _widths(topology: Topology) -> dict[tuple[int, int], tuple[int, Fraction]]:
    """For each ordered pair of ranks: whether the route avoids other GPUs (1 or 0), and its bandwidth."""
    index, (_, head) = topology.member_places.tolist(), topology.ends
    table = dict[tuple[int, int], tuple[int, Fraction]]()
    for (i, a), (j, b) in permutations(enumerate(index), 2):
        passed = {int(head[link]) for link in topology.router.route(a, b)[:-1]}
        table[i, j] = int(passed.isdisjoint(index)), topology.router.together(a, b)
    return table
