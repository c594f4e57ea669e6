"""Rings and trees over all ranks, made of the channels of one node.

A ring goes through the nodes in order; where two channels exchange their ports, odd nodes run the other one of the
pair. A tree is a chain inside every node, below its first GPU, and one of two binary trees over the nodes, which the
second half of the channels mirrors. Every channel is used twice (NCCL 2.28.3, graph/connect.cc and graph/trees.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from blinksim.nccl.families import PATTERN_SPLIT_TREE, PATTERN_TREE
from blinksim.nccl.files.graph_file import Graph

MORE_CHANNELS_ABOVE = 45 * 10**9
"""Bytes/s of a channel above which Hopper and later use each channel four times on several nodes."""


@dataclass(frozen=True)
class Connected:
    """What a communicator runs.

    rings: for each channel the ranks in order from rank 0. parents: for each channel and rank the parent's rank, -1 at
    the root. children: for each channel and rank its children, the one inside the node first.
    """

    rings: tuple[tuple[int, ...], ...]
    parents: tuple[tuple[int, ...], ...]
    children: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def nchannels(self) -> int:
        return len(self.rings)


def connect(ring: Graph, tree: Graph, nnodes: int, sm: int, local: Sequence[int]) -> Connected:
    """The rings and trees of a communicator whose nodes all list their ranks in one order, node after node.

    ring, tree: the channels of one of its `nnodes` nodes. sm: lowest compute capability of the GPUs, times ten.
    local: the number (``dev``) of the GPU of each rank of a node, in rank order.
    """
    count = min(ring.nchannels, tree.nchannels)
    rank_of = {number: rank for rank, number in enumerate(local)}
    rings = [[rank_of[gpu] for gpu in channel] for channel in ring.channels[:count]]
    trees = [[rank_of[gpu] for gpu in channel] for channel in tree.channels[:count]]
    wide = sm >= 90 and nnodes > 1 and ring.bw_intra > MORE_CHANNELS_ABOVE
    copies = 2 if wide and 2 * count < 16 else 1
    swapped = ring.cross_nic == 2
    joined = tuple(_ring(rings, number, swapped, nnodes) for number in range(count))
    found = [_tree(chain, tree.pattern, nnodes, half) for half in (0, 1) for chain in trees] * copies
    return Connected(
        rings=joined * 2 * copies,
        parents=tuple(parents for parents, _ in found),
        children=tuple(children for _, children in found),
    )


def _ring(rings: list[list[int]], number: int, swapped: bool, nnodes: int) -> tuple[int, ...]:
    size = len(rings[number])
    order: list[int] = []
    for node in range(nnodes):
        other = number ^ 1 if swapped and node % 2 and number ^ 1 < len(rings) else number
        order += [node * size + rank for rank in rings[other]]
    start = order.index(0)
    return (*order[start:], *order[:start])


def _tree(
    chain: list[int], pattern: int, nnodes: int, half: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    from blinksim.algorithms.double_binary import two_trees

    size = len(chain)
    parents = [-1] * (size * nnodes)
    children: list[list[int]] = [[] for _ in parents]
    second = min(1, size - 1)
    # Which GPU of the chain has the first and the second child node below it.
    above = (0 if pattern == PATTERN_TREE else second, second if pattern == PATTERN_SPLIT_TREE else 0)
    for node in range(nnodes):
        for upper, lower in pairwise(chain):
            parents[node * size + lower] = node * size + upper
            children[node * size + upper].append(node * size + lower)
    # Both trees have one shape, the second with its nodes moved, so the first tells first children from second ones.
    first, _ = two_trees(nnodes)[0]
    over, _ = two_trees(nnodes)[half]
    pairs = [(child > parent, moved) for (child, parent), moved in zip(first.items(), over.items(), strict=True)]
    for is_second, (child, parent) in sorted(pairs, key=lambda pair: pair[0]):
        top = parent * size + chain[above[is_second]]
        parents[child * size + chain[0]] = top
        children[top].append(child * size + chain[0])
    return tuple(parents), tuple(map(tuple, children))
