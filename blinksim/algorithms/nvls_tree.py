"""NVLSTree: NVLS inside the nodes, a double binary tree between them.

In every node, a GPU reads the sum of its node's copies of its shard. The GPUs with the same place in their nodes add
these up along one tree, half of the shard along the other, and each stores the result at its node (NCCL since 2.18).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from blinksim.algorithms.building.plan import Parents
from blinksim.algorithms.building.switch_plan import SwitchPlan
from blinksim.algorithms.double_binary import two_trees
from blinksim.collective import Collective
from blinksim.graphs.rooted_trees import by_levels
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

Ints = npt.NDArray[np.int64]


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule: two chunks for every place in the nodes; raises `InfeasibleError` without switches that do it."""
    plan = SwitchPlan(topology, collective, "nvls_tree")
    local = min(map(len, plan.groups))
    switches = [sorted(plan.reading_switches(group)) if len(group) > 1 else [] for group in plan.groups]
    planes = max(1, *map(len, switches))
    trees = [_Tree.of(*tree, [bool(found) for found in switches]) for tree in two_trees(len(plan.groups))]
    for place in range(local):
        nodes = _Nodes.of(plan.groups, place)
        for tree in trees:
            for plane in range(planes):
                switch = np.array([found[plane % len(found)] if found else -1 for found in switches], dtype=np.int64)
                chunk = plan.add_chunk(Fraction(1, 2 * local * planes))
                plan.add_moves(chunk, *_sends(nodes, tree, switch))
    return plan.finish()


@dataclass(frozen=True, eq=False)
class _Nodes:
    """The GPUs with a rank of all nodes, each node's head first: gpu, node (R); head, size (N)."""

    gpu: Ints
    node: Ints
    head: Ints
    size: Ints

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], place: int) -> _Nodes:
        gpu = [gpu for group in groups for gpu in (group[place], *group[:place], *group[place + 1 :])]
        size = np.array([len(group) for group in groups], dtype=np.int64)
        node = np.repeat(np.arange(len(groups)), size)
        return cls(np.array(gpu), node, np.array([group[place] for group in groups]), size)


@dataclass(frozen=True, eq=False)
class _Tree:
    """A tree of nodes, by its edges from the root down (N - 1), and when data is there to go on.

    rises (N - 1): the step in which the child of an edge sends its sum up. has (N): the step from which a node has the
    sum of all.
    """

    parent: Ints
    child: Ints
    rises: Ints
    has: Ints

    @classmethod
    def of(cls, parents: Parents, root: int, reads: Sequence[bool]) -> _Tree:
        """reads: whether the GPUs of a node read their sum from a switch first, which takes two steps."""
        _, below, depth = by_levels(parents, root)
        depth_of = dict(zip(below.tolist(), depth.tolist(), strict=True))
        edges = [(parents[child], child) for child in sorted(parents, key=depth_of.__getitem__)]
        ready = [2 if first else 0 for first in reads]
        rises = []
        for parent, child in reversed(edges):
            rises.append(ready[child])
            ready[parent] = max(ready[parent], ready[child] + 1)
        for parent, child in edges:
            ready[child] = ready[parent] + 1
        ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
        return cls(ends[:, 0], ends[:, 1], np.array(rises[::-1], dtype=np.int64), np.array(ready, dtype=np.int64))


def _sends(nodes: _Nodes, tree: _Tree, switch: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The sends of one chunk (src, dst, op, step): reads, up the tree and down it, stores. switch: of every node."""
    reads = switch >= 0
    inside, at = reads[nodes.node], np.flatnonzero(reads)
    gpu, of = nodes.gpu[inside], nodes.node[inside]
    head, step = nodes.head, tree.has
    ups = slice(None, None, -1)
    # What a node stores comes after what the nodes before it store: in, then out.
    store = np.argsort(np.concatenate([at, of]), kind="stable")
    parts = (
        (gpu, switch[of], REDUCE, np.zeros_like(of)),
        (switch[at], head[at], COPY, np.ones_like(at)),
        (head[tree.child[ups]], head[tree.parent[ups]], REDUCE, tree.rises[ups]),
        (head[tree.parent], head[tree.child], COPY, step[tree.parent]),
        (
            np.concatenate([head[at], switch[of]])[store],
            np.concatenate([switch[at], gpu])[store],
            COPY,
            np.concatenate([step[at], step[of] + 1])[store],
        ),
    )
    op = np.repeat([one[2] for one in parts], [len(one[0]) for one in parts])
    src, dst, when = (np.concatenate([one[column] for one in parts]) for column in (0, 1, 3))
    return src, dst, op, when
