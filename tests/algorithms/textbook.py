"""Closed-form times of the elementary algorithms, as the literature gives them: the oracle for costs on a link graph.

Every rank has one full-duplex port and all pairs are equally far apart. Loads of trees without a formula of their own
are counted, port by port, on the trees that the algorithm builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, floor, log2, sqrt

import numpy as np

from blinksim.algorithms import chain_tree as chain_tree_module
from blinksim.algorithms import double_binary as double_binary_module
from blinksim.algorithms import mxnet as mxnet_module


@dataclass(frozen=True, slots=True)
class Postal:
    """Hockney's model of a port, with a term for reductions (Hockney, Parallel Computing 20, 1994; Thakur et al. 2005).

    alpha: seconds a message takes before its first byte counts. beta: seconds per byte of a port, in each direction.
    gamma: seconds per byte that a rank reduces.
    """

    alpha: float
    beta: float
    gamma: float = 0.0


def pipelined(hops: int, message: float, load: float, model: Postal, reduced: float = 0.0) -> float:
    """Seconds for a pipeline with the best whole number of pieces, up to 65,536 (Chan et al., CCPE 2007, section 6).

    hops: length of the longest path. message: bytes that follow it. load: bytes that the busiest port passes.
    reduced: bytes that the busiest rank reduces. With C pieces: (hops + C - 1) alpha, plus the busy port's time, plus
    the time of one piece on every hop but the busy one; least near C = sqrt((hops - 1) beta message / alpha).
    """
    if hops == 0:
        return 0.0
    tail = (hops - 1) * model.beta * message
    best = sqrt(tail / model.alpha) if model.alpha else 65536.0
    counts = {min(65536, max(1, count)) for count in (floor(best), ceil(best))}
    pieces = min(count * model.alpha + tail / count for count in counts)
    return (hops - 1) * model.alpha + model.beta * load + pieces + model.gamma * reduced


def ring(collective: str, ranks: int, size: float, model: Postal) -> float:
    """n-1 steps of a shard of size/n each, twice for allreduce (Patarasu and Yuan, JPDC 2009)."""
    step = model.alpha + model.beta * size / ranks
    reduction = model.gamma * size / ranks if collective != "allgather" else 0.0
    return (ranks - 1) * (step * (2 if collective == "allreduce" else 1) + reduction)


def chain(collective: str, ranks: int, size: float, model: Postal) -> float:
    """A pipeline of n-1 hops (Chan et al., CCPE 2007, section 6); allreduce goes up, then down.

    In an allreduce the inner ranks' ports carry the vector up and down.
    """
    ways = 2 if collective == "allreduce" else 1
    load = size * (ways if ranks > 2 else 1)
    return pipelined(ways * (ranks - 1), size, load, model, 0.0 if collective == "broadcast" else size)


def binary(collective: str, ranks: int, size: float, model: Postal) -> float:
    """A pipeline down the complete binary tree (Chan et al., CCPE 2007, section 6).

    The busiest port sends to (or receives from) two children, and in an allreduce to its parent as well.
    """
    tall = floor(log2(ranks))
    children = min(2, ranks - 1)
    if collective == "allreduce":
        # Rank 1 is the first inner vertex with a parent; it has two children from five ranks on.
        below = min(2, max(0, ranks - 3))
        busiest = max(children, below + 1 if ranks > 3 else 1)
        return pipelined(2 * tall, size, busiest * size, model, children * size)
    return pipelined(tall, size, children * size, model, 0.0 if collective == "broadcast" else children * size)


def double_binary(collective: str, ranks: int, size: float, model: Postal) -> float:
    """Two pipelined trees with half the vector each (Sanders, Speck and Träff, Parallel Computing 2009)."""
    if collective == "allreduce":
        trees = double_binary_module.two_trees(ranks)
    else:
        trees = double_binary_module.rooted_trees(ranks, 0)
    return _on_trees(collective, ranks, size, model, [dict(parents) for parents, _ in trees])


def chain_tree(collective: str, ranks: int, size: float, model: Postal) -> float:
    """On one node a pipelined chain per local rank, up and down (NCCL's tree inside a node)."""
    trees = chain_tree_module.channel_trees([list(range(ranks))])
    return _on_trees(collective, ranks, size, model, [dict(parents) for parents, _ in trees])


def mxnet(collective: str, ranks: int, size: float, model: Postal) -> float:
    """Pipelined balanced trees (MXNet's multi-tree wiki page), one per rank for allreduce, over equal links."""
    alike = np.full((ranks, ranks), mxnet_module.SINGLE, dtype=np.float32) * ~np.eye(ranks, dtype=np.bool_)
    trees = mxnet_module.grow(alike, range(ranks if collective == "allreduce" else 1))
    return _on_trees(
        collective, ranks, size, model, [{child: parent for _, child, parent in tree.sends} for tree in trees]
    )


def _on_trees(collective: str, ranks: int, size: float, model: Postal, trees: Iterable[dict[int, int]]) -> float:
    """A pipeline over trees (child to parent) with equal parts of the vector; the busiest port is counted."""
    up, down = collective != "broadcast", collective != "reduce"
    out, into, received = [0] * ranks, [0] * ranks, [0] * ranks
    tall = count = 0
    for parents in trees:
        count += 1
        for child, parent in parents.items():
            out[child] += up
            into[parent] += up
            received[parent] += up
            out[parent] += down
            into[child] += down
        tall = max(tall, height(parents))
    part = size / count
    return pipelined(tall * (up + down), part, part * max(*out, *into), model, part * max(received))


def height(parents: dict[int, int]) -> int:
    """The most steps from a vertex up to the root, in a tree given by the parent of every other vertex."""
    return max((_depth(parents, vertex) for vertex in parents), default=0)


def _depth(parents: dict[int, int], vertex: int) -> int:
    return 1 + _depth(parents, parents[vertex]) if vertex in parents else 0


def recursive_doubling(collective: str, ranks: int, size: float, model: Postal) -> float:
    """log2 n steps, with the whole vector each or a doubling share of it (Thakur et al., IJHPCA 2005, section 4)."""
    steps = log2(ranks)
    if collective == "allreduce":
        return steps * (model.alpha + (model.beta + model.gamma) * size)
    return steps * model.alpha + model.beta * size * (ranks - 1) / ranks


def halving_doubling(collective: str, ranks: int, size: float, model: Postal) -> float:
    """log2 n steps and (n-1)/n of the vector, twice for allreduce (Rabenseifner, ICCS 2004)."""
    one_way = log2(ranks) * model.alpha + model.beta * size * (ranks - 1) / ranks
    return one_way * (2 if collective == "allreduce" else 1) + model.gamma * size * (ranks - 1) / ranks


def direct(collective: str, ranks: int, size: float, model: Postal) -> float:
    """One latency, and n-1 messages of a shard (or of the vector) through the busiest port (Chan et al., 2007)."""
    whole = collective in ("allreduce", "broadcast", "reduce")
    moved = size * (ranks - 1) / (1 if whole else ranks)
    reduced = moved if collective in ("allreduce", "reduce", "reducescatter") else 0.0
    return model.alpha + model.beta * moved + model.gamma * reduced


def two_shot(collective: str, ranks: int, size: float, model: Postal) -> float:
    """Two latencies, and (n-1)/n of the vector out of every port twice: a direct reduce-scatter and allgather."""
    moved = size * (ranks - 1) / ranks
    return 2 * (model.alpha + model.beta * moved) + model.gamma * moved


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


CLOSED_FORMS: dict[str, Callable[[str, int, float, Postal], float]] = {
    function.__name__: function
    for function in (
        ring, chain, binary, double_binary, chain_tree, mxnet, recursive_doubling, halving_doubling, direct, two_shot,
        parameter_server,
    )
}  # fmt: skip
