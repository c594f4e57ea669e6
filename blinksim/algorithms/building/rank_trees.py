"""Pipelined trees: chain, binary tree and double binary tree share one way from a parent list to a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from blinksim.algorithms.building.plan import Plan
from blinksim.collective import EVERY, Collective
from blinksim.graphs.rooted_trees import by_levels
from blinksim.packing.search.hamiltonian import Order
from blinksim.schedule.model import COPY, REDUCE

Ints = npt.NDArray[np.int64]
Parents = dict[int, int]
"""The parent of every rank but the root."""


def add_tree(plan: Plan, collective: Collective, share: Fraction, parents: Parents, root: int, channel: int) -> None:
    """One chunk on one tree: up for a reduction, down for a distribution, up and then down for allreduce."""
    chunk = plan.add_chunk(share)
    parent, child, depth = by_levels(parents, root)
    tall = int(depth.max(initial=0))
    if collective.reduces:
        up = np.argsort(-depth, kind="stable")
        _edges(plan, child[up], parent[up], chunk, REDUCE, tall - depth[up], channel)
    if collective.ends == EVERY:
        after = tall if collective.reduces else 0
        _edges(plan, parent, child, chunk, COPY, after + depth - 1, channel)


def add_chains(plan: Plan, collective: Collective, orders: Sequence[Order]) -> None:
    """One chain per order of all ranks, with equal shares, from its first rank.

    If the collective has a root, the orders are rings: each is followed as a chain from the root, or to it for a
    reduce, and the hop that closes the ring stays unused.
    """
    for channel, order in enumerate(orders):
        path = _cut_at(order, collective.root, collective.reduces) if collective.rooted else order
        add_tree(plan, collective, Fraction(1, len(orders)), {b: a for a, b in pairwise(path)}, path[0], channel)


def _cut_at(ring: Order, root: int, reduces: bool) -> Order:
    """The ring as a chain with the root on top; reduced data flows up in the direction of the ring."""
    place = ring.index(root)
    path = ring[place:] + ring[:place]
    return (path[0], *reversed(path[1:])) if reduces else path


def _edges(plan: Plan, src: Ints, dst: Ints, chunk: int, op: int, step: Ints, channel: int) -> None:
    if len(src):
        plan.send(src, dst, chunk=chunk, op=op, step=step, channel=channel)
