"""Hierarchical collectives: reduce-scatter inside nodes, rings between nodes, allgather inside nodes.

Only 1/g of the vector of a node with g ranks crosses each of its network ports, in g parallel rings (Aurora
allreduce projection, equation 4; Jia et al., "Highly scalable deep learning training system", 2018, section
4.2). On a single node of cards with several tiles, cards take the role of nodes, and tiles of equal number
exchange directly instead of on rings: their links join every pair of cards (projection, section 3.1, the
scale-up terms).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import SHARDED, Algorithm, per_pair
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import round_robin
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.schedule.step_loads import Exchange, Round
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    "hierarchical",
    SHARDED,
    "direct inside nodes (or cards), rings (or direct) between them",
    order=120,
    sends=per_pair,
    source="Jia et al., 2018",
    outlined=True,
)


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule; local rank l of every node is on inter-node ring l.

    Raises `InfeasibleError` for a single node, unless it has cards of several tiles, and for nodes or cards with
    different numbers of ranks.
    """
    ranks, cards = _table(topology)
    plan = Plan(topology, collective, "hierarchical", "steps")
    nodes, local = ranks.shape
    # Chunk (l, k) of local rank l and ring position k has number l * nodes + k.
    for l in range(local):  # noqa: E741 - l for local, as in the formulas
        for k in range(nodes):
            owner = int(ranks[k, l])
            plan.add_chunk(Fraction(1, nodes * local), *collective.labels(owner, owner))
    between = _direct if cards else _rings
    step = 0
    if collective.reduces:
        if local > 1:
            _inside(plan, ranks, REDUCE, step)
            step += 1
        step = between(plan, ranks, REDUCE, step)
    if collective.ends == EVERY:
        step = between(plan, ranks, COPY, step)
        if local > 1:
            _inside(plan, ranks, COPY, step)
    return plan.finish()


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps of `build` have in common. Raises as it does."""
    ranks, cards = _table(topology)
    nodes, local = ranks.shape
    share = Fraction(1, nodes * local)
    (a, b), node = round_robin(local), np.arange(nodes)[:, None]
    inside = Exchange(ranks[node, a].ravel(), ranks[node, b].ravel())
    if cards:
        g, k = round_robin(nodes)
        between = Exchange(ranks[g].ravel(), ranks[k].ravel())
    else:
        between = Exchange(ranks.ravel(), np.roll(ranks, -1, axis=0).ravel())
    phases = []
    if collective.reduces:
        phases += [Round(inside, share, REDUCE, chunks=nodes), Round(between, share, REDUCE, 1 if cards else nodes - 1)]
    if collective.ends == EVERY:
        phases += [Round(between, share, COPY, 1 if cards else nodes - 1), Round(inside, share, COPY, chunks=nodes)]
    return tuple(phase for phase in phases if local > 1 or phase.exchange is between)


def _table(topology: Topology) -> tuple[npt.NDArray[np.int32], bool]:
    """The ranks by node or, of a single one, by card; and whether these are cards."""
    groups = nodes_of(topology, topology.members)
    cards = len(groups) == 1 and all(topology.device(name).kind == "tile" for name in topology.members)
    if cards:
        # Ranks by the card that the tiles' names begin with (card0.t1), in rank order.
        by_card: dict[str, list[int]] = {}
        for rank, tile in enumerate(topology.members):
            by_card.setdefault(tile.rpartition(".")[0], []).append(rank)
        groups = list(by_card.values())
    if len(groups) < 2 or len({len(group) for group in groups}) > 1:
        sizes = " ".join(str(len(group)) for group in groups)
        raise InfeasibleError(
            f"hierarchical needs two or more {'cards' if cards else 'nodes'} with the same number of ranks each; "
            f"these have {sizes}; take algorithm=ring, or change nodes= and members="
        )
    return np.array(groups, dtype=np.int32), cards


def _inside(plan: Plan, ranks: npt.NDArray[np.int32], op: int, step: int) -> None:
    """Within every node, local rank a sends to (REDUCE) or owns (COPY) the chunks of local rank b or a.

    Chunks go in the order in which the rings want them (REDUCE) or have them (COPY).
    """
    nodes, local = ranks.shape
    a, b = round_robin(local)
    wanted, node, pair = (g.ravel() for g in np.meshgrid(*map(np.arange, (nodes, nodes, len(a))), indexing="ij"))
    a, b = a[pair], b[pair]
    k = (node - wanted - (1 if op == REDUCE else 0)) % nodes
    plan.send(ranks[node, a], ranks[node, b], chunk=(b if op == REDUCE else a) * nodes + k, op=op, step=step)


def _direct(plan: Plan, ranks: npt.NDArray[np.int32], op: int, step: int) -> int:
    """Local rank l of every group sends chunk (l, k) to group k (REDUCE), or group k sends it to all (COPY)."""
    groups, local = ranks.shape
    g, k = round_robin(groups)
    l = np.arange(local)[:, None]  # noqa: E741
    src, dst = (ranks[g, l], ranks[k, l]) if op == REDUCE else (ranks[k, l], ranks[g, l])
    plan.send(src, dst, chunk=l * groups + k, op=op, step=step)
    return step + 1


def _rings(plan: Plan, ranks: npt.NDArray[np.int32], op: int, first: int) -> int:
    """A ring over the nodes for every local rank: chunk k ends its reduction, or starts its route, at node k."""
    nodes, local = ranks.shape
    pos, node, l = (g.ravel() for g in np.meshgrid(*map(np.arange, (nodes - 1, nodes, local)), indexing="ij"))  # noqa: E741
    k = (node - pos - (1 if op == REDUCE else 0)) % nodes
    plan.send(ranks[node, l], ranks[(node + 1) % nodes, l], chunk=l * nodes + k, op=op, step=first + pos, channel=l)
    return int(first + nodes - 1)
