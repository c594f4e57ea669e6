"""Chains that NCCL can load: paths through all ranks in K equal channels, reduced up and broadcast down.

NCCL's tree allreduce makes a chain of every channel of a graph file and splits the data evenly over them
(NCCL 2.28.3 graph/connect.cc), so the best that such a file can carry is a packing of undirected Hamiltonian
paths in K equal channels. No such packing exceeds the partition bound (Nash-Williams and Tutte 1961); on most
GPU subsets of a DGX-1 it attains it.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from blinksim.algorithms.blink import even_rate
from blinksim.algorithms.building.plan import Plan, add_chains, by_rail, chain_order, zigzags
from blinksim.algorithms.registry import Algorithm
from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.compute import bound as find_bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.packing.choose import Limits
from blinksim.packing.columns import Hops, find_hops
from blinksim.packing.tree_columns import Order, column, even_orders, listed, priced
from blinksim.schedule.model import Schedule
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    ("allreduce",), "Hamiltonian paths in equal channels: the best NCCL can load", solver=True, most_ranks=1024
)


CHANNELS = 16
MOST_CHANNELS = 64
_LIST_RANKS = 10
_TEMPLATES = 16


def build(
    topology: Topology,
    collective: Collective,
    *,
    channels: int = CHANNELS,
    bound: BoundResult | None = None,
    time_limit: float | None = None,
    seed: int = 0,
) -> Schedule:
    """The best chains in at most `channels` equal channels; among equally good ones the fewest.

    Channel c carries chunk c along chain c; its tree's root is the chain's first rank (element 0, as in
    NCCL). `elements` reads the chains back. time_limit: seconds for each solve; without it answers are the
    same everywhere.

    Raises `InputError` for a number of channels that NCCL cannot have (1 to 64), and `InfeasibleError` if the
    links hold no path through all ranks.
    """
    if not 1 <= channels <= MOST_CHANNELS:
        raise InputError(f"{channels} channels: give 1 to {MOST_CHANNELS} (NCCL before 2.25 has 32, two per chain)")
    plan = Plan(topology, collective, "chains", "forest")
    known = bound or find_bound(topology, collective)
    hops, limits = find_hops(topology), Limits(time_limit, seed)
    target = known.rate / hops.unit
    # On at most `MOST_LISTED` paths the best mix is exact.
    pool = listed(hops, closed=False, both=True, most_ranks=_LIST_RANKS)
    rate, chains = _template(topology, hops, target, channels) if pool is None else (Fraction(0), [])
    if pool is None and rate < target:
        start = [column(hops, order, closed=False, both=True) for order in dict.fromkeys(chains)]
        start, mixed = priced(hops, start, hops.capacity, closed=False, both=True, limits=limits)
        pool = list(dict.fromkeys((*mixed, *start)))
    if pool == []:
        lacks = f"{topology.name}: no chain visits all {hops.members} members from one to the next over"
        cure = "take blink, whose trees may branch"
        raise InfeasibleError(f"{lacks} {', '.join(topology.link_classes)}; {cure}")
    if pool is not None:
        chains = sorted(even_orders(hops, pool, channels, limits, closed=False, most=target))
    add_chains(plan, chains)
    return plan.finish()


def _template(topology: Topology, hops: Hops, target: Fraction, channels: int) -> tuple[Fraction, list[Order]]:
    """The best of some ready-made sets of chains, with its rate in units: zigzags, or node by node on rails.

    None at rate 0 if the links hold none of them.
    """
    n = hops.members
    starts = [chain_order(topology, first) for first in range(min(n, channels, _TEMPLATES))]
    best = Fraction(0), list[Order]()
    # Chains on rails, over the nodes in one order, and over zigzags of nodes, where every node is an end alike.
    nodes = nodes_of(topology, topology.members)
    plain = by_rail(nodes, closed=False)
    by_zigzag = [by_rail([nodes[place] for place in order], closed=False) for order in zigzags(len(nodes))]
    size = len(plain)
    if not size or len(nodes) < 3:
        rails = [plain]
    else:
        every = [chain for chains in by_zigzag for chain in chains]
        # With too few channels for all, every rail takes the zigzags round-robin.
        mixed = [by_zigzag[place * len(by_zigzag) // size % len(by_zigzag)][place] for place in range(size)]
        rails = [plain, mixed, every]
    for chains in (zigzags(n), *rails, starts, starts[:1]):
        steps = {(hops.vertices[a], hops.vertices[b]) for order in chains for a, b in pairwise(order)}
        if not 0 < len(chains) <= channels or not all({(a, b), (b, a)} <= hops.routes.keys() for a, b in steps):
            continue
        columns = [column(hops, order, closed=False, both=True) for order in chains]
        if (rate := even_rate(hops, columns) * len(chains)) > best[0]:
            best = rate, chains
        if rate >= target:
            break
    return best
