"""Rings: the most Hamiltonian cycles that share no lane, each with an equal part of the data.

NCCL's rings use a machine this way, and Blink (Wang et al., 2018 short paper, section 2) counts what they
leave idle: one bidirectional ring on 4 to 7 GPUs of a DGX-1P uses 6 to 7 of its 16 links. The count is an
integer program over all cycles of small machines (or those of least price), so that "no further ring fits" is
proved where it is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from blinksim.algorithms import ring
from blinksim.algorithms.building.plan import Plan, add_chains, by_rail, ring_orders
from blinksim.algorithms.registry import Algorithm
from blinksim.collective import ON_TREES, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.packing.choose import LIMITS, Limits, most_whole
from blinksim.packing.columns import Column, Hops, find_hops
from blinksim.packing.tree_columns import Order, column, even_orders, listed, orders_of, priced
from blinksim.schedule.loads import link_loads
from blinksim.schedule.model import Schedule
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

ENTRY = Algorithm(ON_TREES, "the most rings that share no lane", solver=True, most_ranks=1024)


_LIST_RANKS = 9
# Behind wide switch ports, rings are copies of each other; more than this add nothing.
MOST_RINGS = 64


def build(
    topology: Topology,
    collective: Collective,
    *,
    bidirectional: bool = False,
    channels: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
) -> Schedule:
    """The collective over the most lane-disjoint rings, one channel each.

    bidirectional: take rings in pairs of opposite direction. channels: take the best rings of at most that
    many equal channels instead, which may share lanes (what an NCCL graph file can carry). A broadcast or
    reduce follows every ring as a chain from (or to) the root; its last hop stays unused.

    Raises `InputError` for a number of channels that NCCL cannot have (1 to 64) or channels in pairs, and
    `InfeasibleError` if the links hold no ring through all ranks.
    """
    if channels is not None and (bidirectional or not 1 <= channels <= MOST_RINGS):
        raise InputError(f"{channels} channels: give 1 to {MOST_RINGS}, without bidirectional")
    limits = Limits(time_limit, seed)
    if channels is None:
        rings, _ = most_rings(topology, bidirectional=bidirectional, limits=limits)
    else:
        hops = find_hops(topology)
        if (pool := listed(hops, closed=True, both=False, most_ranks=_LIST_RANKS)) is None:
            templates = _templates(topology, hops, False, hops.capacity)
            pool = _priced(hops, templates, hops.capacity, False, limits)
        if not pool:
            raise _none(topology, "")
        rings = even_orders(hops, pool, channels, limits, closed=True)
    if collective.rooted:
        plan = Plan(topology, collective, "rings", "forest")
        add_chains(plan, rings)
        return plan.finish()
    return replace(ring.build(topology, collective, rings), algorithm="rings")


def most_rings(topology: Topology, *, bidirectional: bool = False, limits: Limits = LIMITS) -> tuple[list[Order], bool]:
    """The most rings of which no two use the same lane; both directions of each one if `bidirectional`.

    Directed cyclic orders of the ranks, and true if no more rings exist (counting lanes). A lane has the
    bandwidth of the thinnest one between members. Proved on machines with few enough cycles to list, or where
    some rank has no lanes left. Raises `InfeasibleError` if there is no ring.
    """
    hops = find_hops(topology)
    both = bidirectional and hops.members > 2
    lanes = [int(c * hops.unit / hops.lane) for c in hops.capacity]
    every = listed(hops, closed=True, both=both, most_ranks=_LIST_RANKS)
    pool = _templates(topology, hops, both, lanes) if every is None else every
    # The fewest lanes that leave any member: no more directed rings than these fit.
    first = [{hops.loads[a, b][0][0] for b in hops.next_to[a]} for a in hops.vertices[: hops.members]]
    most = min(sum(lanes[r] for r in leaving) for leaving in first) // (2 if both else 1)
    counts, proved = most_whole(pool, lanes, limits)
    if every is None and sum(counts) < min(most, MOST_RINGS):
        pool = _priced(hops, pool, lanes, both, limits)
        counts, proved = most_whole(pool, lanes, limits)
    if not (rings := orders_of(hops, pool, counts, closed=True)[:MOST_RINGS]):
        # There are none, or a bus or a device is too narrow for them.
        raise _none(topology, " with a lane of its own")
    if both:
        rings = [order for ahead in rings for order in (ahead, (ahead[0], *reversed(ahead[1:])))]
    return rings, (proved and every is not None) or sum(counts) == most


def _none(topology: Topology, condition: str) -> InfeasibleError:
    over = f"over {', '.join(topology.link_classes)}{condition}; take chains or blink, which need none"
    return InfeasibleError(f"{topology.name}: no ring visits all {topology.ranks} members {over}")


def idle_links(schedule: Schedule) -> list[str]:
    """The names of the links that carry nothing."""
    loads = link_loads(schedule)
    return [link.name for link, load in zip(schedule.topology.links, loads, strict=True) if not load]


def _templates(topology: Topology, hops: Hops, both: bool, lanes: Sequence[int]) -> list[Column]:
    """The rings that need no search, if their hops pass no other member and each has a lane of its own."""
    columns = []
    for order in (*ring_orders(topology), *by_rail(nodes_of(topology, topology.members), closed=True)):
        steps = [(hops.vertices[a], hops.vertices[b]) for a, b in pairwise((*order, order[0]))]
        if all(a in hops.routes and a[::-1] in hops.routes for a in steps):
            entry = column(hops, order, closed=True, both=both)
            if all(lanes[r] >= times for r, times in entry.load):
                columns.append(entry)
    return columns


def _priced(hops: Hops, pool: list[Column], lanes: Sequence[int], both: bool, limits: Limits) -> list[Column]:
    """`pool` with the cycles that a linear program over all of them takes."""
    start, mix = priced(hops, pool, lanes, closed=True, both=both, limits=limits)
    return [c for c in dict.fromkeys((*start, *mix)) if all(lanes[r] >= times for r, times in c.load)]
