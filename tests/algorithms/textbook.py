"""Closed-form times of the elementary algorithms, as the literature gives them: the oracle for costs on a link graph.

Every rank has one full-duplex port and all pairs are equally far apart. Loads of trees without a formula of their own
are counted, port by port, on the trees that the algorithm builds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from blinksim.algorithms import chain_tree as chain_tree_module, mxnet as mxnet_module
from blinksim.algorithms.double_binary import two_trees_from
from blinksim.graphs.rooted_trees import two_trees
from blinksim.packing.balanced import sends


@dataclass(frozen=True, slots=True)
class Postal:
    """Hockney's model of a port, with a term for reductions (Hockney, Parallel Computing 20, 1994; Thakur et al. 2005).

    alpha: seconds a message takes before its first byte counts; in a pipeline they keep the sending port busy. beta:
    seconds per byte of a port, in each direction. gamma: seconds per byte that a rank reduces.
    """

    alpha: float
    beta: float
    gamma: float = 0.0


# Numbers of pieces that are tried: more than are best for any pipeline of the tests.
PIECES = np.arange(1, 4097, dtype=np.float64)
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def pipelined(
    collective: str,
    size: float,
    model: Postal,
    trees: Sequence[Mapping[int, int]],
    pieces: int | None = None,
    below: Sequence[Mapping[int, int]] | None = None,
) -> float:
    """Seconds of a pipeline over trees (child to parent) with equal parts of the vector, up to the root and down again.

    Parents receive and send in the order of the children; below: the same trees in the order down, if it is another.

    The longest path, with one piece on all of its hops but the slowest, and the port that is busy longest. A port sends
    one message after another, so the children of a vertex wait for those before them (Pjesivac-Grbovic et al.,
    "Performance analysis of MPI collective operations", Cluster Computing 2007, for binary trees), and every piece of
    every message keeps it busy for alpha. For a chain with C pieces that is (hops + C - 1) (alpha + beta part / C)
    (Chan et al., CCPE 2007, section 6). One piece of one tree meets no other: its alphas are those of its path. pieces:
    C; without it, the least of all times.
    """
    up, down = collective != "broadcast", collective != "reduce"
    counts = PIECES if pieces is None else np.array([float(pieces)])
    part = size / max(1, len(trees))
    transfer = model.beta * part
    out, into, received = Counter[int](), Counter[int](), Counter[int]()
    path, alone = np.zeros(len(counts)), (counts == 1) & (len(trees) == 1)
    for parents, downwards in zip(trees, below or trees, strict=True):
        for child, parent in parents.items():
            received[parent] += up
            out.update({child: up, parent: down})
            into.update({parent: up, child: down})
        both = (parents if up else {}, downwards if down else {})
        path = np.maximum(path, _longest(*both, transfer, model.alpha, counts, alone))
    if not out:
        return 0.0
    sent = max(out.values()) * (transfer + counts * model.alpha) - model.alpha
    sent = np.where(alone, max(out.values()) * transfer, sent)
    times = path + np.maximum(sent, max(into.values()) * transfer)
    return float(times.min()) + model.gamma * part * max(received.values())


def _longest(
    up: Mapping[int, int], down: Mapping[int, int], transfer: float, alpha: float, counts: Floats, alone: Bools
) -> Floats:
    """The longest path from the leaves to the root and down again, without its slowest hop, by number of pieces.

    Of a piece that is alone without the bytes on that hop only.
    """
    above, below = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for children, parents in ((above, up), (below, down)):
        for child, parent in parents.items():
            children[parent].append(child)
    # Alphas, the time of one piece on the hops, and on the slowest of these.
    start: Floats = np.zeros((3, len(counts)))

    def hop(state: Floats, turn: int, waits: float) -> Floats:
        moved = (1 + turn) * transfer / counts
        slowest = np.maximum(state[2], moved + np.where(alone, 0.0, waits))
        return np.array([state[0] + alpha, state[1] + moved + waits, slowest])

    def from_below(vertex: int) -> Floats:
        latest = start
        for turn, child in enumerate(above.get(vertex, [])):
            found = hop(from_below(child), turn, 0.0)
            latest = np.where(found[0] + found[1] >= latest[0] + latest[1], found, latest)
        return latest

    def to_below(vertex: int, state: Floats) -> Floats:
        ends = state[0] + state[1] - state[2]
        for turn, child in enumerate(below.get(vertex, [])):
            ends = np.maximum(ends, to_below(child, hop(state, turn, turn * alpha)))
        return np.asarray(ends)

    roots = ({*above} or {*below}) - ({*up} or {*down})
    return np.asarray(np.max([to_below(root, from_below(root)) for root in roots] or [start[0]], axis=0))


def ring(collective: str, ranks: int, size: float, model: Postal) -> float:
    """n-1 steps of a shard of size/n each, twice for allreduce (Patarasu and Yuan, JPDC 2009)."""
    step = model.alpha + model.beta * size / ranks
    reduction = model.gamma * size / ranks if collective != "allgather" else 0.0
    return (ranks - 1) * (step * (2 if collective == "allreduce" else 1) + reduction)


def chain(collective: str, ranks: int, size: float, model: Postal, pieces: int | None = None) -> float:
    """A pipeline of n-1 hops (Chan et al., CCPE 2007, section 6); allreduce goes up, then down."""
    return pipelined(collective, size, model, [{rank: rank - 1 for rank in range(1, ranks)}], pieces)


def binary(collective: str, ranks: int, size: float, model: Postal, pieces: int | None = None) -> float:
    """A pipeline down the complete binary tree (Chan et al., CCPE 2007, section 6)."""
    return pipelined(collective, size, model, [{rank: (rank - 1) // 2 for rank in range(1, ranks)}], pieces)


def double_binary(collective: str, ranks: int, size: float, model: Postal, pieces: int | None = None) -> float:
    """Two pipelined trees with half the vector each (Sanders, Speck and Träff, Parallel Computing 2009)."""
    if collective == "allreduce":
        trees = two_trees(ranks)
    else:
        trees = two_trees_from(0, ranks)
    return pipelined(collective, size, model, [dict(sorted(parents.items())) for parents, _ in trees], pieces)


def chain_tree(collective: str, ranks: int, size: float, model: Postal, pieces: int | None = None) -> float:
    """On one node a pipelined chain per local rank, up and down (NCCL's tree inside a node)."""
    trees = chain_tree_module.channel_trees([list(range(ranks))])
    return pipelined(collective, size, model, [dict(parents) for parents, _ in trees], pieces)


def mxnet(collective: str, ranks: int, size: float, model: Postal, pieces: int | None = None) -> float:
    """Pipelined balanced trees (MXNet's multi-tree wiki page), one per rank for allreduce, over equal links."""
    alike = np.full((ranks, ranks), mxnet_module.SINGLE, dtype=np.float32) * ~np.eye(ranks, dtype=np.bool_)
    trees = mxnet_module.grow(alike, range(ranks if collective == "allreduce" else 1))
    # By level up, and back.
    up = [sorted(sends(tree), key=lambda send: send[0]) for tree in trees]
    down = [sorted(sends(tree), key=lambda send: -send[0]) for tree in trees]
    above, below = ([{child: parent for _, child, parent in tree} for tree in way] for way in (up, down))
    return pipelined(collective, size, model, above, pieces, below)


def height(parents: dict[int, int]) -> int:
    """The most steps from a vertex up to the root, in a tree given by the parent of every other vertex."""
    return max((_depth(parents, vertex) for vertex in parents), default=0)


def _depth(parents: dict[int, int], vertex: int) -> int:
    return 1 + _depth(parents, parents[vertex]) if vertex in parents else 0


def recursive_doubling(collective: str, ranks: int, size: float, model: Postal) -> float:
    """log2 n steps, with the whole vector each or a doubling share of it (Thakur et al., IJHPCA 2005, section 4).

    An allreduce of other numbers than powers of two takes one step more before these, which adds, and one after them.
    """
    steps, power = int(log2(ranks)), ranks == 2 ** int(log2(ranks))
    if collective == "allreduce":
        more = 0 if power else 1
        return (steps + 2 * more) * (model.alpha + model.beta * size) + (steps + more) * model.gamma * size
    return ceil(log2(ranks)) * model.alpha + model.beta * size * (ranks - 1) / ranks


def recursive_multiplying(collective: str, ranks: int, size: float, model: Postal) -> float:
    """A step for each prime factor k, with k-1 whole vectors through every port (Ruefenacht et al., 2017)."""
    left, time = ranks, 0.0
    for factor in range(2, ranks + 1):
        while left % factor == 0:
            left //= factor
            time += model.alpha + (factor - 1) * (model.beta + model.gamma) * size
    return time


def halving_doubling(collective: str, ranks: int, size: float, model: Postal) -> float:
    """log2 n steps and (n-1)/n of the vector, twice for allreduce (Rabenseifner, ICCS 2004; Bruck et al., 1997)."""
    one_way = ceil(log2(ranks)) * model.alpha + model.beta * size * (ranks - 1) / ranks
    return one_way * (2 if collective == "allreduce" else 1) + model.gamma * size * (ranks - 1) / ranks


def scatter_allgather(collective: str, ranks: int, size: float, model: Postal) -> float:
    """(n-1)/n of the vector through the root's port twice (Barnett et al., 1994), in a level for each prime factor."""
    left, levels = ranks, 0
    for factor in range(2, ranks + 1):
        while left % factor == 0:
            left, levels = left // factor, levels + 1
    moved = size * (ranks - 1) / ranks
    return 2 * (levels * model.alpha + model.beta * moved) + model.gamma * moved * (collective == "reduce")


def direct(collective: str, ranks: int, size: float, model: Postal) -> float:
    """One latency, and n-1 messages of a shard (or of the vector) through the busiest port (Chan et al., 2007)."""
    whole = collective in ("allreduce", "broadcast", "reduce")
    moved = size * (ranks - 1) / (1 if whole else ranks)
    reduced = moved if collective in ("allreduce", "reduce", "reducescatter") else 0.0
    return model.alpha + model.beta * moved + model.gamma * reduced


def two_shot(collective: str, ranks: int, size: float, model: Postal) -> float:
    """Two latencies, and (n-1)/n of the vector from a port twice: direct reduce-scatter (or scatter) and allgather."""
    moved = size * (ranks - 1) / ranks
    return 2 * (model.alpha + model.beta * moved) + model.gamma * moved * (collective != "broadcast")


def parameter_server(collective: str, ranks: int, size: float, model: Postal) -> float:
    """The server's port takes n-1 vectors in, then sends n-1 out (MXNet's multi-tree wiki page, figure 2)."""
    moved = size * (ranks - 1)
    return 2 * (model.alpha + model.beta * moved) + model.gamma * moved


def hierarchical(collective: str, nodes: int, local: int, size: float, inside: Postal, between: Postal) -> float:
    """Nodes whose ports inside and between them differ (Aurora allreduce projection, equation 4)."""
    ways = 2 if collective == "allreduce" else 1
    moved = size * (local - 1) / local
    shard = size / (local * nodes)
    one_way = (inside.alpha if local > 1 else 0.0) + inside.beta * moved
    one_way += (nodes - 1) * (between.alpha + between.beta * shard)
    reduced = inside.gamma * moved + between.gamma * (nodes - 1) * shard
    return ways * one_way + (reduced if collective != "allgather" else 0.0)


CLOSED_FORMS: dict[str, Callable[..., float]] = {
    function.__name__: function
    for function in (
        ring, chain, binary, double_binary, chain_tree, mxnet, recursive_doubling, halving_doubling, direct, two_shot,
        parameter_server, scatter_allgather, recursive_multiplying,
    )
}  # fmt: skip
