"""MXNet's multi-tree allreduce: balanced binary trees of greatest weight, one per GPU, on separate links.

A balanced tree has the least latency, a heavy one the widest links, and a penalty on links of earlier trees
spreads the load (MXNet multi-tree wiki page; Apache MXNet, kvstore `comm_tree.h`).
MXNet's variables and their defaults: MXNET_KVSTORE_USETREE (0)
turns trees on; MXNET_KVSTORE_TREE_ARRAY_BOUND (10,000,000 elements) is `ARRAY_BOUND`;
MXNET_KVSTORE_TREE_BACKTRACK (0) and MXNET_KVSTORE_TREE_LINK_USAGE_PENALTY (0.7) are the arguments `backtrack`
and `penalty`.

Balanced binary trees of greatest weight, n vertices in ceil(log2 n) levels, by bisection or by search. A tree
is the list of its 2^depth leaves. In round i (from 0) the vertex at position j + 2^i sends to the one at j,
for every j that 2^(i+1) divides; a vertex next to itself sends nothing. Halving the graph and joining halves
by their heaviest link finds such a tree fast; searching all leaf lists finds the best (MXNet multi-tree wiki
page; Apache MXNet, kvstore `gpu_topology.h`). Weights are 32-bit, as there, so that ties fall alike.

Halving keeps heavy links inside the halves: start from any halves, swap pairs of vertices, best gain first,
each vertex once, keep the best prefix of the swaps, and repeat until nothing is gained (Kernighan and Lin,
"An efficient heuristic procedure for partitioning graphs", Bell System Technical Journal 1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

import numpy as np
import numpy.typing as npt

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm
from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError, InputError, unknown
from blinksim.graphs.arrays import Bools, Floats, Ints
from blinksim.graphs.connectivity import breadth_first
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.textio.text_table import count
from blinksim.topology.graph import Topology

Weights = npt.NDArray[np.float32]


def bisect(weights: Weights, vertices: Sequence[int], random: Random) -> tuple[list[int], list[int]]:
    """Two halves of `vertices`, of floor(s/2) and the rest, in increasing order.

    weights: matrix over all vertices, 0 where there is no link; a pair counts with the mean of its two
    directions. random: gives the first halves.
    """
    order = list(vertices)
    random.shuffle(order)
    half = set(order[: len(order) // 2])
    order.sort()
    inner = weights[np.ix_(order, order)].astype(np.float64)
    # The gains of swaps hold for cuts, which know no direction; with one-way links the passes would cycle.
    inner = (inner + inner.T) / 2
    side = np.array([1 if vertex in half else -1 for vertex in order], dtype=np.int64)
    while True:
        # A pass of swaps, undone behind its best prefix; the last one gains nothing.
        trial = side.copy()
        difference = differences(inner, side)
        locked: list[int] = []
        total, best, better = 0.0, 0.0, None
        while (found := best_swap(inner, trial, difference, locked)) is not None:
            a, b, gain = found
            # The cost to a and b counts the other way for all others once they have changed sides.
            difference += 2 * trial * (inner[:, a] * trial[a] + inner[:, b] * trial[b])
            trial[a], trial[b] = trial[b], trial[a]
            locked += [a, b]
            total += gain
            # Rounding must not turn a swap back and forth without end.
            if total > best + 1e-9:
                best, better = total, trial.copy()
        if better is None:
            break
        side = better
    left = [vertex for vertex, here in zip(order, side.tolist(), strict=True) if here == 1]
    return left, [vertex for vertex, here in zip(order, side.tolist(), strict=True) if here == -1]


def differences(weights: npt.NDArray[np.floating], side: Ints) -> Floats:
    """External minus internal cost of every vertex: weight to the other half less weight to its own; side: 1 or -1."""
    return np.asarray(-side * (weights @ side), dtype=np.float64)


def best_swap(
    weights: npt.NDArray[np.floating], side: Ints, difference: Floats, locked: Sequence[int] = ()
) -> tuple[int, int, float] | None:
    """The pair on different sides whose swap gains most, and the gain; None if no swap gains anything."""
    gain = difference[:, None] + difference[None, :] - 2 * weights
    gain[side[:, None] == side[None, :]] = 0
    gain[list(locked), :] = 0
    gain[:, list(locked)] = 0
    a, b = divmod(int(gain.argmax()), len(side))
    return (a, b, float(gain[a, b])) if gain[a, b] > 0 else None


# Up to this number of vertices all trees are compared; beyond, the first that fits is taken.
EXACT = 8
_TRIES = 200_000
_RETRIES = 10
_SAME_LINK, _SAME_VERTEX = np.float32(100), np.float32(10)


def depth_of(count: int) -> int:
    """Rounds that `count` vertices need: ceil(log2 count)."""
    return (count - 1).bit_length()


def sends(leaves: Sequence[int]) -> list[tuple[int, int, int]]:
    """(round, from, to) of every send, towards the root, in the order in which they run."""
    rounds = ((i, *pair) for i in range(depth_of(len(leaves))) for pair in _pairs(len(leaves), 1 << i))
    return [(i, leaves[near], leaves[far]) for i, near, far in rounds if leaves[near] != leaves[far]]


# --- halving ------------------------------------------------------------------------------------------------------


def halved(weights: Weights, root: int, random: Random) -> list[int] | None:
    """The leaves of a tree from `root` by halving all vertices again and again; None if that gets stuck."""
    heads, clusters = [root], [list(range(len(weights)))]
    for _ in range(depth_of(len(weights))):
        for _ in range(_RETRIES):
            level = next_level(weights, heads, clusters, random)
            if level is not None:
                break
        else:
            return None
        heads, clusters = level
    return heads


def next_level(
    weights: Weights, heads: Sequence[int], clusters: Sequence[Sequence[int]], random: Random
) -> tuple[list[int], list[list[int]]] | None:
    """Every cluster as two, each with the vertex that heads it; None if two halves have no link from the head.

    The head of a cluster heads the half that it is in; the other half's is the end of the heaviest link from
    there.
    """
    new_heads: list[int] = []
    new_clusters: list[list[int]] = []
    for head, cluster in zip(heads, clusters, strict=True):
        if len(cluster) > 2:
            halves = bisect(weights, cluster, random)
            near, far = halves if head_of(halves[0], heads) is not None else halves[::-1]
        else:
            child = child_of(cluster, head)
            near, far = [head], [head if child is None else child]
        ends = far if near == far else heaviest(weights, head, far)
        if not ends:
            return None
        new_heads += [head, random.choice(ends)]
        new_clusters += [near, far]
    return new_heads, new_clusters


def heaviest(weights: Weights, vertex: int, cluster: Sequence[int]) -> list[int]:
    """The members of `cluster` to which the heaviest link from `vertex` leads, several if they tie; empty if none."""
    best = max((weights[vertex, other] for other in cluster), default=0)
    return [other for other in cluster if best and weights[vertex, other] == best]


def head_of(cluster: Sequence[int], heads: Sequence[int]) -> int | None:
    """The one of `heads` that lies in the cluster, None if none does."""
    return next((head for head in heads if head in cluster), None)


def child_of(cluster: Sequence[int], head: int) -> int | None:
    """The other member of a cluster of two, None for any other cluster."""
    return next((other for other in cluster if other != head), None) if len(cluster) == 2 else None


# --- search -------------------------------------------------------------------------------------------------------


def search(weights: Weights, root: int) -> list[int] | None:
    """The leaves of the best tree from `root`, or of the first one for more than `EXACT` vertices; None without one.

    Best: the greatest of `tree_weights` with penalties of the settled tree, and of equal ones the first in
    the order of the leaf lists before they are settled.
    """
    if len(weights) <= EXACT:
        return _best(weights, root)
    count, length = len(weights), 1 << depth_of(len(weights))
    if count == length and np.count_nonzero(weights[root]) < depth_of(count):
        # There is no room for repeats, so the root exchanges in every round, each time with another vertex.
        return None
    linked = [[b for b in range(count) if weights[a, b]] for a in range(count)]
    tries = 0

    def extended(leaves: list[int], unused: frozenset[int]) -> list[int] | None:
        nonlocal tries
        place = len(leaves)
        if place == length:
            return leaves
        tries += 1
        above = leaves[place & (place - 1)]
        repeats = [above] if len(unused) < length - place else []
        for leaf in (*(b for b in linked[above] if b in unused), *repeats):
            if tries > _TRIES:
                break
            found = extended([*leaves, leaf], unused - {leaf})
            if found is not None:
                return found
        return None

    return extended([root], frozenset(range(count)) - {root})


def _best(weights: Weights, root: int) -> list[int] | None:
    count, length = len(weights), 1 << depth_of(len(weights))
    states = np.full((1, 1), root, dtype=np.int64)
    linked = (weights > 0) | np.eye(count, dtype=np.bool_)
    for place in range(1, length):
        # All choices for one more place, in lexicographic order.
        states = np.column_stack([np.repeat(states, count, axis=0), np.tile(np.arange(count), len(states))])
        states = states[linked[states[:, place], states[:, place & (place - 1)]]]
        missing = count - np.bitwise_count(np.bitwise_or.reduce(1 << states, axis=1)).astype(np.int64)
        states = states[missing <= length - place - 1]
    trees = settled(states)
    legal = np.ones(len(states), dtype=np.bool_)
    for place in range(1, length):
        legal &= linked[trees[:, place], trees[:, place & (place - 1)]]
    trees = trees[legal]
    return trees[int(tree_weights(weights, trees, True).argmax())].tolist() if len(trees) else None


def _pairs(length: int, stride: int) -> list[tuple[int, int]]:
    return [(place + stride, place) for place in range(0, length, 2 * stride)]


def settled(states: Ints) -> Ints:
    """The same trees in which no vertex sends twice: one that also stands nearer to the root stays silent below."""
    states = states.copy()
    length = states.shape[1]
    for i in reversed(range(depth_of(length))):
        stride = 1 << i
        seen = np.bitwise_or.reduce(1 << states[:, :: 2 * stride], axis=1)
        for near, far in _pairs(length, stride):
            again = (seen >> states[:, near]) & 1 == 1
            states[again, near] = states[again, far]
            seen |= 1 << states[:, near]
    return states


def tree_weights(weights: Weights, states: Ints, penalties: bool = False) -> npt.NDArray[np.float32]:
    """The sum of the weights of all sends of every tree.

    penalties: less 100 for every link used again, and 10 for every vertex met again in one round after the
    first.
    """
    count, length = len(weights), states.shape[1]
    total = np.zeros(len(states), dtype=np.float32)
    rows = np.arange(len(states))
    used = np.zeros((len(states), count, count) if penalties else 0, dtype=np.bool_)
    for i in range(depth_of(length)):
        met = np.zeros(len(states), dtype=np.int64)
        for near, far in _pairs(length, 1 << i):
            a, b = states[:, near], states[:, far]
            sent = a != b
            total = total + np.where(sent, weights[a, b], np.float32(0))
            if not penalties:
                continue
            total = total - np.where(sent & used[rows, a, b], _SAME_LINK, np.float32(0))
            used[rows[sent], a[sent], b[sent]] = used[rows[sent], b[sent], a[sent]] = True
            for vertex in (b, a) if i else ():
                total = total - np.where((met >> vertex) & 1, _SAME_VERTEX, np.float32(0))
                met |= 1 << vertex
    return total


ENTRY = Algorithm(
    REDUCE_AND_SPREAD,
    "a balanced binary tree per GPU, avoiding each other's links (MXNet)",
    most_ranks=32,
    source="MXNet multi-tree wiki page",
)


ARRAY_BOUND = 10_000_000
"""Elements above which an array is sliced, and every GPU roots a tree with one slice."""
PENALTY = 0.7
PCIE, SINGLE, DOUBLE = 1, 2, 3
"""Values of the link matrix: a route over PCIe and CPUs, one NVLink lane, two lanes or more. 0: a GPU and itself."""
TREES = ("auto", "single", "multi")

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BalancedTree:
    """leaves: the tree as `blinksim.algorithms.mxnet` writes it. searched: true if halving got stuck, so that
    all trees were compared (or if that was requested)."""

    leaves: tuple[int, ...]
    searched: bool

    @property
    def root(self) -> int:
        return self.leaves[0]

    @property
    def depth(self) -> int:
        return depth_of(len(self.leaves))

    @property
    def sends(self) -> list[tuple[int, int, int]]:
        """(round, from, to) of every send of a reduction; a broadcast runs them backwards."""
        return sends(self.leaves)


# --- the link matrix ------------------------------------------------------------------------------------------------


def link_matrix(topology: Topology) -> Matrix:
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


def corrected(matrix: Matrix, peers: Bools) -> Matrix:
    """The matrix that a driver reports, unless it calls a pair PCIe that can access each other's memory (`peers`).

    Such a matrix is ignored (seen with CUDA 9.2 on a p3.16xlarge): peers count as one lane, others as PCIe.
    """
    apart = ~np.eye(len(matrix), dtype=np.bool_)
    if not ((matrix == PCIE) & peers & apart).any():
        return matrix
    return np.where(apart, np.where(peers, SINGLE, PCIE), 0).astype(np.float32)


def connected(matrix: Matrix) -> bool:
    """True if links better than PCIe connect all GPUs."""
    return len(breadth_first(0, lambda gpu: np.flatnonzero(matrix[gpu] > PCIE).tolist())) == len(matrix)


def weighted(matrix: Matrix) -> Matrix:
    """The weights that trees are made from: PCIe gets 0 where NVLink connects all GPUs, else 1/n (it is shared)."""
    pcie = np.float32(0 if connected(matrix) else 1 / len(matrix))
    return np.where(matrix == PCIE, pcie, matrix).astype(np.float32)


# --- the trees ------------------------------------------------------------------------------------------------------


def grow(
    weights: Matrix,
    roots: Sequence[int],
    *,
    penalty: float = PENALTY,
    backtrack: bool = False,
    seed: int = 0,
) -> list[BalancedTree]:
    """One tree from each of `roots`, in that order, each avoiding the links of those before it.

    penalty: the factor that each use of a link applies to its weight, both ways. backtrack: compare all trees
    instead of halving. Raises `InputError` for a penalty outside 0 to 1, `InfeasibleError` if no balanced
    tree spans the GPUs.
    """
    if not 0 < penalty <= 1:
        raise InputError(f"penalty {penalty}: a use of a link multiplies its weight by more than 0 and at most 1")
    random = Random(seed)
    weights = weights.astype(np.float32)
    trees = []
    for root in roots:
        leaves = None if backtrack else halved(weights, root, random)
        searched = leaves is None
        if leaves is None:
            leaves = search(weights, root)
        if leaves is None:
            depth = depth_of(len(weights))
            raise InfeasibleError(
                f"mxnet: found no tree of {count(depth, 'round')} from rank {root} that reaches "
                f"{len(weights)} ranks by links; take chain or packed"
            )
        trees.append(BalancedTree(tuple(leaves), searched))
        weights = penalised(weights, trees[-1], penalty)
    return trees


def penalised(weights: Matrix, tree: BalancedTree, penalty: float) -> Matrix:
    """The weights after one more use of each link of the tree."""
    weights = weights.copy()
    for _, a, b in tree.sends:
        weights[a, b] *= np.float32(penalty)
        weights[b, a] *= np.float32(penalty)
    return weights


def slices(rows: int, ranks: int) -> list[range]:
    """The rows of an array that each tree carries: rows // ranks, and the rest on the last."""
    part = rows // ranks
    return [range(rank * part, (rank + 1) * part if rank < ranks - 1 else rows) for rank in range(ranks)]


def sliced(elements: int, rows: int, ranks: int, bound: int = ARRAY_BOUND) -> bool:
    """True if MXNet slices an array over all trees: more elements than the bound, and two rows for every GPU."""
    return elements > bound and rows >= 2 * ranks


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
    if trees not in TREES:
        raise unknown("number of trees", trees, TREES)
    if trees == "multi" and collective.rooted:
        raise InputError(f"mxnet: a {collective.name} runs on the tree of its root; trees=multi is for allreduce")
    best = not collective.rooted and (elements is None or sliced(elements, elements, topology.ranks))
    many = best if trees == "auto" else trees == "multi"
    plan = Plan(topology, collective, "mxnet", "forest")
    roots = range(plan.n) if many else [collective.root]
    weights = weighted(link_matrix(topology))
    for channel, tree in enumerate(grow(weights, roots, penalty=penalty, backtrack=backtrack, seed=seed)):
        chunk = plan.add_chunk(Fraction(1, len(roots)))
        level, src, dst = np.array(tree.sends, dtype=np.int32).reshape(-1, 3).T
        if collective.reduces:
            plan.send(src, dst, chunk=chunk, op=REDUCE, step=level, channel=channel)
        if collective.ends == EVERY:
            down = tree.depth * (2 if collective.reduces else 1) - 1 - level
            plan.send(dst, src, chunk=chunk, op=COPY, step=down, channel=channel)
    return plan.finish()
