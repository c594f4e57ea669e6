"""Routes of an alltoall over rails: inside nodes, and between members of equal place, each written out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from blinksim.bounds.exchanges.rails import Ints, Rails, Route
from blinksim.structures.arrays import places


class RailRoutes:
    """Numbers of routes for sends; what goes the same way has the same number."""

    def __init__(self, rails: Rails) -> None:
        self.rails = rails
        self.listed: list[Route] = []

    def inside(self, node: Ints, i: Ints, k: Ints, turn: Ints | None = None) -> Ints:
        """Routes inside nodes from member `i` to member `k`.

        turn: which of several equal ways each takes, counted round; by default those of two members take turns.
        """
        local = self.rails.local
        ways = self.rails.inside
        return self._in_turn((node * local + i) * local + k, lambda key: ways[key], turn)

    def across(self, a: Ints, b: Ints, k: Ints, way: Ints, turn: Ints | None = None) -> Ints:
        """Routes from node `a` to node `b` over `way` of place `k`, those between switches of the fabric in turn."""
        rails = self.rails
        nodes, local = rails.ranks.shape
        width = rails.exit.shape[2]

        def ways(key: int) -> Sequence[Route]:
            key, v = divmod(key, width)
            key, k = divmod(key, local)
            a, b = divmod(key, nodes)
            up, down = rails.up[a * local + k][v], rails.down[b * local + k][v]
            between = int(rails.exit[a, k, v]), int(rails.entry[b, k, v])
            middle = rails.trunks[between] if between[0] != between[1] else ((),)
            return [(*up, *way, *down) for way in middle]

        return self._in_turn(((a * nodes + b) * local + k) * width + way, ways, turn)

    def messages(self, a: Ints, b: Ints, k: Ints, way: Ints, step: Ints | None = None) -> Ints:
        """As `across`, where all that goes one way in a step is a message and takes one route.

        Messages between the same two switches of the fabric take its ways in turn.
        """
        rails, step = self.rails, np.zeros_like(a) if step is None else step
        shape = (int(step.max(initial=0)) + 1, rails.nodes, rails.nodes, rails.local, rails.exit.shape[2])
        found, where = np.unique(np.ravel_multi_index((step, a, b, k, way), shape), return_inverse=True)
        _, a, b, k, way = np.unravel_index(found, shape)
        between = rails.exit[a, k, way] * len(rails.topology.devices) + rails.entry[b, k, way]
        turn = np.empty(len(found), dtype=np.int64)
        turn[np.argsort(between, kind="stable")] = places(np.unique(between, return_counts=True)[1])
        return np.asarray(self.across(a, b, k, way, turn)[where])

    def _in_turn(self, keys: Ints, ways: Callable[[int], Sequence[Route]], turn: Ints | None) -> Ints:
        found, place = np.unique(keys, return_inverse=True)
        lists = [ways(key) for key in found.tolist()]
        counts = np.array([len(one) for one in lists], dtype=np.int64)
        first = len(self.listed) + np.concatenate(([0], np.cumsum(counts)[:-1])) if len(lists) else counts
        self.listed += [way for one in lists for way in one]
        if turn is None:
            order = np.argsort(place, kind="stable")
            turn = np.empty(len(keys), dtype=np.int64)
            starts = np.searchsorted(place[order], np.arange(len(found)))
            turn[order] = np.arange(len(keys)) - np.repeat(starts, np.bincount(place, minlength=len(found)))
        return np.asarray(first[place] + turn % counts[place])

    def flat(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """All routes as `Schedule` takes them."""
        lengths = np.array([0, *map(len, self.listed)])
        return np.cumsum(lengths).astype(np.int32), np.array([x for way in self.listed for x in way], dtype=np.int32)


def through_others(rails: Rails) -> bool:
    """True if a way inside a node passes another member."""
    links = rails.topology.links
    inner = {links[link].dst for ways in rails.inside for way in ways for link in way[:-1]}
    return any(rails.topology.device(name).holds for name in inner)
