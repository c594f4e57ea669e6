"""Schedules in forest form from trees with paths: one chunk per tree, up to reduce, down to distribute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm

from blinksim.collective import Collective
from blinksim.graphs.rooted_trees import depths
from blinksim.schedule.model import COPY, MOST_DENOMINATOR, REDUCE, Builder, Schedule
from blinksim.schedule.tree import Edge, Tree
from blinksim.topology.graph import Topology

# Parts of which shares are made where their own denominators are out of reach.
_PARTS = 2**28


class ForestPlan(Builder):
    """A `Builder` that takes trees."""

    def __init__(self, topology: Topology, collective: Collective, algorithm: str) -> None:
        super().__init__(topology, collective, algorithm, "forest")
        self._rank = {topology.index[name]: rank for rank, name in enumerate(topology.members)}
        self._busy: dict[tuple[int, int], int] = {}

    def finish(self) -> Schedule:
        """The schedule; shares without a common denominator in reach are rounded, by less than 2^-28 of their sum."""
        if lcm(*(share.denominator for share in self._shares)) > MOST_DENOMINATOR:
            self._shorten()
        return super().finish()

    def _shorten(self) -> None:
        """Chunks that begin and end alike keep their sum, each in whole parts of it; the largest takes what is over."""
        alike: dict[tuple[int, int], list[int]] = {}
        for chunk, ends in enumerate(zip(self._origin, self._target, strict=True)):
            alike.setdefault(ends, []).append(chunk)
        for chunks in alike.values():
            total = sum((self._shares[chunk] for chunk in chunks), start=Fraction(0))
            parts = {chunk: max(1, int(self._shares[chunk] / total * _PARTS)) for chunk in chunks}
            parts[max(chunks, key=lambda chunk: parts[chunk])] += _PARTS - sum(parts.values())
            for chunk, part in parts.items():
                self._shares[chunk] = total * part / _PARTS

    def add_trees(self, trees: Iterable[Tree]) -> None:
        """One chunk per tree. A chunk of an allgather starts from its root, one of a reducescatter ends there.

        Channels: a tree takes the first channel that no tree before it uses between any two of its devices, so that
        trees which share nothing share channels, and no chunk waits behind another's.
        """
        for tree in trees:
            rank = self._rank.get(tree.root, -1)
            down, up = self._pruned(tree.down), self._pruned(tree.up)
            chunk = self.add_chunk(tree.share, *self.collective.labels(rank, rank))
            edges = [(b, a) for a, b, _ in up] + [(a, b) for a, b, _ in down]
            channel = self.channel(edges)
            after = 0
            if up:
                # A device sends up once everything from below has arrived.
                ready: dict[int, int] = {}
                steps = []
                for parent, child, _ in reversed(up):
                    step = ready.get(child, 0)
                    steps.append(step)
                    ready[parent] = max(ready.get(parent, 0), step + 1)
                after = ready[tree.root]
                turned = list(reversed(up))
                self._add(chunk, [(b, a, links) for a, b, links in turned], REDUCE, steps, channel)
            if down:
                depth = depths(tree.root, [edge[:2] for edge in down], after)
                self._add(chunk, down, COPY, [depth[child] - 1 for _, child, _ in down], channel)

    def add_chain(self, chunk: int, edges: Sequence[Edge]) -> None:
        """Copies of one chunk from device to device, one after another."""
        channel = self.channel([(a, b) for a, b, _ in edges])
        self._add(chunk, edges, COPY, range(len(edges)), channel)

    def _add(self, chunk: int, edges: Sequence[Edge], op: int, steps: Sequence[int], channel: int) -> None:
        self.add_sends(
            chunk=chunk,
            src=[a for a, _, _ in edges],
            dst=[b for _, b, _ in edges],
            op=op,
            step=list(steps),
            route=[self.add_route(links) for _, _, links in edges],
            channel=channel,
        )

    def channel(self, edges: Sequence[tuple[int, int]]) -> int:
        """The first channel that none of these pairs of devices has used yet."""
        taken = 0
        for edge in edges:
            taken |= self._busy.get(edge, 0)
        free = ~taken & (taken + 1)
        for edge in edges:
            self._busy[edge] = self._busy.get(edge, 0) | free
        return free.bit_length() - 1

    def _pruned(self, edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
        """The tree without leaves that hold no rank: no rank needs what they receive."""
        if all(child in self._rank for _, child, _ in edges):
            return edges
        needed: set[int] = set()
        kept = []
        for edge in reversed(edges):
            if edge[1] in self._rank or edge[1] in needed:
                needed.add(edge[0])
                kept.append(edge)
        return tuple(reversed(kept))
