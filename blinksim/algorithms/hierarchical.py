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

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import SHARDED, Algorithm, per_pair
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints, round_robin
from blinksim.schedule.model import COPY, REDUCE
from blinksim.schedule.step_loads import Exchange, Round, Whole
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    SHARDED,
    "direct inside nodes (or cards), rings (or direct) between them",
    sends=per_pair,
    source="Jia et al., 2018",
    outlined=True,
)


# What is sent between nodes without rings, up to which who sends to whom is written down.
_MOST_MESSAGES = 4_000_000


def fill(plan: Plan) -> None:
    """Sends in which local rank l of every node is on inter-node ring l.

    Raises `InfeasibleError` for a single node, unless it has cards of several tiles, and for nodes or cards
    with different numbers of ranks.
    """
    add_shards(plan)
    plan.add_rounds(rounds(plan.topology, plan.collective))


def add_shards(plan: Plan) -> None:
    """The chunks: that of local rank l and node k has number l * nodes + k. Raises as `fill` does."""
    ranks, _ = _table(plan.topology, plan.algorithm)
    for owner in ranks.T.ravel().tolist():
        plan.add_chunk(Fraction(1, plan.n), *plan.collective.labels(owner, owner))


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises as `fill` does."""
    return phases(topology, collective)


def phases(topology: Topology, collective: Collective, *, direct: bool = False) -> tuple[Round, ...]:
    """The steps inside the nodes and between them: rings, or one step if `direct` or between cards."""
    ranks, cards = _table(topology, "hierarchical_direct" if direct else "hierarchical")
    if direct and (messages := ranks.size * len(ranks)) > _MOST_MESSAGES:
        what = f"{messages:,} messages between nodes, more than {_MOST_MESSAGES:,}"
        raise InfeasibleError(f"hierarchical_direct sends {what}; take hierarchical, which has rings")
    (a, b), node = round_robin(ranks.shape[1]), np.arange(len(ranks))[:, None]
    inside = Exchange(ranks[node, a].ravel(), ranks[node, b].ravel())
    around = Exchange(ranks.ravel(), np.roll(ranks, -1, axis=0).ravel())
    found = list[Round]()
    for op in (REDUCE, COPY):
        within, between = (
            _inside(ranks, inside, op),
            _direct(ranks, op) if cards or direct else _rings(ranks, around, op),
        )
        if op == REDUCE and collective.reduces:
            found += [within, between]
        elif op == COPY and collective.ends == EVERY:
            found += [between, within]
    return tuple(phase for phase in found if phase.exchange is not inside or len(a))


def _table(topology: Topology, name: str) -> tuple[Whole, bool]:
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
            f"{name} needs two or more {'cards' if cards else 'nodes'} with the same number of ranks each; "
            f"these have {sizes}; take algorithm=ring, or change nodes= and members="
        )
    return np.array(groups, dtype=np.int32), cards


def _inside(ranks: Whole, exchange: Exchange, op: int) -> Round:
    """Within every node, local rank a sends to (REDUCE) or owns (COPY) the chunks of local rank b or a.

    Chunks go in the order in which the rings want them (REDUCE) or have them (COPY).
    """
    nodes, local = ranks.shape
    node, late = np.repeat(np.arange(nodes), local * (local - 1)), 1 if op == REDUCE else 0
    owner = np.tile(round_robin(local)[late], nodes)

    def chunk(src: Whole, dst: Whole, step: int) -> Ints:
        return np.asarray(owner * nodes + (node - np.arange(nodes)[:, None] - late) % nodes)

    return Round(exchange, Fraction(1, ranks.size), op, chunks=nodes, chunk=chunk)


def _direct(ranks: Whole, op: int) -> Round:
    """Local rank l of every group sends chunk (l, k) to group k (REDUCE), or group k sends it to all (COPY)."""
    groups, local = ranks.shape
    (g, k), l = round_robin(groups), np.arange(local)[:, None]  # noqa: E741
    ends, chunk = (ranks[g, l].ravel(), ranks[k, l].ravel()), (l * groups + k).ravel()
    exchange = Exchange(*(ends if op == REDUCE else ends[::-1]))
    return Round(exchange, Fraction(1, ranks.size), op, chunk=lambda src, dst, step: chunk)


def _rings(ranks: Whole, exchange: Exchange, op: int) -> Round:
    """A ring over the nodes for every local rank: chunk k ends its reduction, or starts its route, at node k."""
    nodes, local = ranks.shape
    node, l = np.divmod(np.arange(ranks.size), local)  # noqa: E741

    def chunk(src: Whole, dst: Whole, step: int) -> Ints:
        return np.asarray(l * nodes + (node - step - (op == REDUCE)) % nodes)

    return Round(exchange, Fraction(1, ranks.size), op, nodes - 1, chunk=chunk, channel=l)
