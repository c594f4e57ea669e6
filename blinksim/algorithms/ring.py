"""Ring: every rank sends to its successor only, each shard goes once (or twice) around.

Bandwidth-optimal on one port per rank, latency linear in the ranks (Patarasu and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", JPDC 2009). The allgather is also NCCL's bootstrap
exchange (SISCI-NCCL thesis, listing 3.2). With several edge-disjoint rings each carries an equal share, as
NCCL's channels do (Blink, section 2).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan, ring_orders
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import EVERY, SHARDED, Collective
from blinksim.packing.tree_columns import Order
from blinksim.schedule.loads import Exchange, Round
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm(SHARDED, "one or more rings over the fastest links", sends=per_pair)


def build(
    topology: Topology, collective: Collective, rings: list[Order] | None = None, *, alike: bool = False
) -> Schedule:
    """The schedule over `rings` (directed cyclic orders of all ranks; default: what suits the links).

    alike: choose rings that pass every node in the same way, as NCCL's graph files need them.
    """
    orders = ring_orders(topology, alike=alike) if rings is None else rings
    plan = Plan(topology, collective, "ring", "steps")
    n = plan.n
    share = Fraction(1, n * len(orders))
    position, step = (grid.ravel() for grid in np.meshgrid(np.arange(n), np.arange(n - 1)))
    for channel, ring in enumerate(orders):
        order = np.array(ring, dtype=np.int32)
        ends = [(ring[shard], ring[shard - 1]) for shard in range(n)]
        first, *_ = [plan.add_chunk(share, *collective.labels(*pair)) for pair in ends]
        src, dst = order[position], order[(position + 1) % n]
        if collective.reduces:
            plan.send(src, dst, chunk=first + (position - step) % n, op=REDUCE, step=step, channel=channel)
        if collective.ends == EVERY:
            # After a reduce-scatter the rank at position p owns shard p + 1, before an allgather its own.
            owned, after = (1, n - 1) if collective.name == "allreduce" else (0, 0)
            chunk = first + (position + owned - step) % n
            plan.send(src, dst, chunk=chunk, op=COPY, step=after + step, channel=channel)
    return plan.finish()


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps of `build` have in common: every rank sends one shard to the next, on every ring."""
    orders = [np.array(ring) for ring in ring_orders(topology)]
    n = topology.ranks
    around = Exchange(np.concatenate(orders), np.concatenate([np.roll(ring, -1) for ring in orders]))
    ops = (*((REDUCE,) if collective.reduces else ()), *((COPY,) if collective.ends == EVERY else ()))
    channel = np.repeat(np.arange(len(orders)), n)
    return tuple(Round(around, Fraction(1, n * len(orders)), op, n - 1, channel=channel) for op in ops)
