"""The links between ranks, with times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blinksim.errors import InfeasibleError
from blinksim.topology.graph import Topology

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# More than any price.
FAR = 1e15
# Ranks up to which all sets of them are tried.
MOST_RANKS = 8


def joined_directly(topology: Topology) -> bool:
    """True if all devices are ranks, and links share nothing."""
    members = set(topology.members)
    apart = not any(link.bus for link in topology.links) and not any(device.capacity for device in topology.devices)
    return apart and all(device.name in members for device in topology.devices)


@dataclass(frozen=True, eq=False)
class Wires:
    """Links between ranks.

    Attributes
    ----------
    ranks : int
        How many there are.
    link : array (E)
        The number of each link in the topology.
    src, dst : array (E)
        The ranks that it joins.
    overhead, latency : array (E)
        Microseconds of a message.
    whole : array (E)
        Microseconds that the whole size takes.
    """

    ranks: int
    link: Ints
    src: Ints
    dst: Ints
    overhead: Floats
    latency: Floats
    whole: Floats

    @classmethod
    def of(cls, topology: Topology, size: int) -> Wires:
        """The links of a selected topology that is `joined_directly`; raises `InfeasibleError` for too many ranks."""
        if topology.ranks > MOST_RANKS:
            raise InfeasibleError(f"few_rounds is too slow on {topology.ranks} ranks with links (at most {MOST_RANKS})")
        rank = {name: number for number, name in enumerate(topology.members)}
        links = topology.links
        return cls(
            topology.ranks,
            np.arange(len(links)),
            np.array([rank[link.src] for link in links]),
            np.array([rank[link.dst] for link in links]),
            np.array([link.overhead * 1e6 for link in links]),
            np.array([link.latency * 1e6 for link in links]),
            np.array([size / float(link.bandwidth) * 1e6 for link in links]),
        )

    def turned(self) -> Wires:
        """The same links the other way round."""
        return replace(self, src=self.dst, dst=self.src)

    def between(self, prices: Floats) -> tuple[Floats, Ints]:
        """For every round and ordered pair of ranks the cheapest link's price, and which link that is.

        prices: (K, E). Returns two arrays (K, n, n); `FAR` where there is none.
        """
        rounds, n = len(prices), self.ranks
        least, which = np.full((rounds, n, n), FAR), np.zeros((rounds, n, n), dtype=np.int64)
        for wire, (a, b) in enumerate(zip(self.src.tolist(), self.dst.tolist(), strict=True)):
            better = prices[:, wire] < least[:, a, b]
            least[better, a, b], which[better, a, b] = prices[better, wire], wire
        return least, which
