"""Pairs of devices, of which one stands for all that symmetries take it to: its routes are theirs, moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blinksim.topology.symmetries.exchangeable import Exchangeable, alike_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.graph import Topology
    from blinksim.topology.symmetries.commuting import Turns

    Ints = NDArray[np.int64]

# Pairs from which on symmetries are worth looking for.
_MANY_PAIRS = 200


def turning(topology: Topology, pairs: int) -> Exchangeable | Turns | None:
    """What takes routes of so many pairs to each other; None for few pairs, and where nothing does."""
    return alike_nodes(topology) if pairs > _MANY_PAIRS and topology.symmetries else None


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of devices (M), by those that stand for them: src, dst (U).

    which (M): the number of what stands for every pair. group, elements (M, …): what takes the routes of that one to
    those of the pair; None if each stands for itself.
    """

    src: Ints
    dst: Ints
    which: Ints
    group: Exchangeable | Turns | None = None
    elements: Ints | None = None

    @classmethod
    def of(cls, topology: Topology, src: Ints, dst: Ints) -> Pairs:
        """The pairs src[i] to dst[i]; few pairs each stand for themselves."""
        group = turning(topology, len(src))
        if group is None:
            return cls(src, dst, np.arange(len(src)))
        a, b, elements = group.between(src, dst)
        count = len(topology.devices)
        one, which = np.unique(a * count + b, return_inverse=True)
        return cls(one // count, one % count, which, group, elements)

    def images(self, start: Ints, links: Ints) -> tuple[Ints, Ints]:
        """Start (M + 1) and links of all pairs, where those that stand for them have links[start[u]:start[u + 1]]."""
        if self.group is None or self.elements is None:
            return start, links
        return self.group.route_images(self.elements, start, links, self.which)
