"""MXNet's multi-tree allreduce: balanced binary trees of greatest weight, one per GPU, on separate links.

A balanced tree has the least latency, a heavy one the widest links, and a penalty on links of earlier trees
spreads the load (MXNet multi-tree wiki page; Apache MXNet, kvstore `comm_tree.h`).
`blinksim.packing.balanced` finds the trees. MXNet's variables and their defaults: MXNET_KVSTORE_USETREE (0)
turns trees on; MXNET_KVSTORE_TREE_ARRAY_BOUND (10,000,000 elements) is `ARRAY_BOUND`;
MXNET_KVSTORE_TREE_BACKTRACK (0) and MXNET_KVSTORE_TREE_LINK_USAGE_PENALTY (0.7) are the arguments `backtrack`
and `penalty`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError, InputError, one_of
from blinksim.graphs.arrays import Bools
from blinksim.graphs.connectivity import breadth_first
from blinksim.packing import balanced
from blinksim.packing.balanced import Weights
from blinksim.results import count
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    REDUCE_AND_SPREAD, "a balanced binary tree per GPU, avoiding each other's links (MXNet)", most_ranks=32
)


# Elements above which an array is sliced, and every GPU roots a tree with one slice.
ARRAY_BOUND = 10_000_000
PENALTY = 0.7
# Values of the link matrix: a route over PCIe and CPUs, one NVLink lane, two lanes or more. 0: a GPU and itself.
PCIE, SINGLE, DOUBLE = 1, 2, 3
TREES = ("auto", "single", "multi")


# The leaves of a tree, as `blinksim.packing.balanced` writes it: the first is its root.
Leaves = tuple[int, ...]


# --- the link matrix ------------------------------------------------------------------------------------------------


def link_matrix(topology: Topology) -> Weights:
    """The class of the route between every two ranks: 0 itself, `PCIE`, `SINGLE` or `DOUBLE`; shape (n, n).

    A route through switches alone counts like a link with the lanes of its narrowest part.
    """
    index = topology.member_places.tolist()
    matrix = np.zeros((len(index), len(index)), dtype=np.float32)
    for a, device in enumerate(index):
        for b, other in enumerate(index):
            if device != other:
                links = [topology.links[i] for i in topology.router.route(device, other)]
                passed = {topology.device(link.dst).kind for link in links[:-1]}
                lanes = min(sum(one.lanes for one in topology.links_between(link.src, link.dst)) for link in links)
                matrix[a, b] = PCIE if passed - {"switch"} else SINGLE if lanes == 1 else DOUBLE
    return matrix


def corrected(matrix: Weights, peers: Bools) -> Weights:
    """The matrix that a driver reports, unless it calls a pair PCIe that can access each other's memory (`peers`).

    Such a matrix is ignored (seen with CUDA 9.2 on a p3.16xlarge): peers count as one lane, others as PCIe.
    """
    apart = ~np.eye(len(matrix), dtype=np.bool_)
    if not ((matrix == PCIE) & peers & apart).any():
        return matrix
    return np.where(apart, np.where(peers, SINGLE, PCIE), 0).astype(np.float32)


def connected(matrix: Weights) -> bool:
    """True if links better than PCIe connect all GPUs."""
    return len(breadth_first(0, lambda gpu: np.flatnonzero(matrix[gpu] > PCIE).tolist())) == len(matrix)


def weighted(matrix: Weights) -> Weights:
    """The weights that trees are made from: PCIe gets 0 where NVLink connects all GPUs, else 1/n (it is shared)."""
    pcie = np.float32(0 if connected(matrix) else 1 / len(matrix))
    return np.where(matrix == PCIE, pcie, matrix).astype(np.float32)


# --- the trees ------------------------------------------------------------------------------------------------------


def grow(
    weights: Weights, roots: Sequence[int], *, penalty: float = PENALTY, backtrack: bool = False, seed: int = 0
) -> list[Leaves]:
    """One tree from each of `roots`, in that order, each avoiding the links of those before it.

    penalty: the factor that each use of a link applies to its weight, both ways. backtrack: compare all trees
    instead of halving. Raises `InputError` for a penalty outside 0 to 1, `InfeasibleError` if no balanced
    tree spans the GPUs.
    """
    if not 0 < penalty <= 1:
        raise InputError(f"penalty {penalty}: a use of a link multiplies its weight by more than 0 and at most 1")
    random = Random(seed)
    weights = weights.astype(np.float32)
    trees = list[Leaves]()
    for root in roots:
        # Where halving gets stuck, all trees are compared.
        leaves = (not backtrack and balanced.halved(weights, root, random)) or balanced.search(weights, root)
        if leaves is None:
            what = f"no tree of {count(balanced.depth_of(len(weights)), 'round')} from rank {root}"
            reach = f"reaches {len(weights)} ranks by links"
            raise InfeasibleError(f"mxnet: found {what} that {reach}; take chain or packed")
        trees.append(tuple(leaves))
        weights = penalised(weights, trees[-1], penalty)
    return trees


def penalised(weights: Weights, tree: Leaves, penalty: float) -> Weights:
    """The weights after one more use of each link of the tree."""
    weights = weights.copy()
    for _, a, b in balanced.sends(tree):
        weights[a, b] *= np.float32(penalty)
        weights[b, a] *= np.float32(penalty)
    return weights


def sliced(elements: int, rows: int, ranks: int) -> bool:
    """True if MXNet slices an array over all trees: more elements than the bound, and two rows for every GPU."""
    return elements > ARRAY_BOUND and rows >= 2 * ranks


def build(
    topology: Topology,
    collective: Collective,
    *,
    trees: str = "auto",
    elements: int | None = None,
    penalty: float = PENALTY,
    backtrack: bool = False,
    seed: int = 0,
) -> Schedule:
    """The schedule, level by level: leaves to root for a reduction, back for a broadcast, both for allreduce.

    trees: ``single`` (from the root, or rank 0), ``multi`` (from every rank, with an equal slice each;
    allreduce only) or ``auto``: what MXNet takes for `elements`, and without that multi where it exists.
    Raises `InputError` for other words and `InfeasibleError` if no balanced tree spans the ranks.
    """
    one_of("number of trees", trees, TREES)
    if trees == "multi" and collective.rooted:
        raise InputError(f"mxnet: a {collective.name} runs on the tree of its root; trees=multi is for allreduce")
    best = not collective.rooted and (elements is None or sliced(elements, elements, topology.ranks))
    many = best if trees == "auto" else trees == "multi"
    plan = Plan(topology, collective, "mxnet", "forest")
    roots = range(plan.n) if many else [collective.root]
    weights = weighted(link_matrix(topology))
    for channel, tree in enumerate(grow(weights, roots, penalty=penalty, backtrack=backtrack, seed=seed)):
        chunk = plan.add_chunk(Fraction(1, len(roots)))
        level, src, dst = np.array(balanced.sends(tree), dtype=np.int32).reshape(-1, 3).T
        if collective.reduces:
            plan.send(src, dst, chunk=chunk, op=REDUCE, step=level, channel=channel)
        if collective.ends == EVERY:
            down = balanced.depth_of(plan.n) * (2 if collective.reduces else 1) - 1 - level
            plan.send(dst, src, chunk=chunk, op=COPY, step=down, channel=channel)
    return plan.finish()
