"""What joins two ranks, a link or a route through switches, with times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blinksim.topology.graph import Topology

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# More than any price.
FAR = 1e15
# Ranks up to which all sets of them are tried.
MOST_RANKS = 8


@dataclass(frozen=True)
class Use:
    """How a message keeps a link busy.

    It enters the link `offset` microseconds after its start, and `lag` microseconds later for each whole size that it
    carries; it keeps it busy for `hold`, and `whole` for each whole size.
    """

    link: int
    offset: float
    lag: float
    hold: float
    whole: float


def joined_directly(topology: Topology) -> bool:
    """True if all devices are ranks, and links share nothing."""
    members = set(topology.members)
    apart = not topology.link_columns.shared and not any(device.capacity for device in topology.devices)
    return apart and all(device.name in members for device in topology.devices)


@dataclass(frozen=True, eq=False)
class Wires:
    """Links between ranks, or routes through switches.

    Attributes
    ----------
    ranks : int
        How many there are.
    routes : tuple of tuple of int
        For every wire, the numbers of its links in the topology.
    uses : tuple of tuple of Use
        For every wire, how a message keeps these links busy.
    src, dst : array (E)
        The ranks that it joins.
    overhead, latency : array (E)
        Microseconds of a message, beside its bytes.
    whole : array (E)
        Microseconds that the whole size takes.
    """

    ranks: int
    routes: tuple[tuple[int, ...], ...]
    uses: tuple[tuple[Use, ...], ...]
    src: Ints
    dst: Ints
    overhead: Floats
    latency: Floats
    whole: Floats

    @classmethod
    def of(cls, topology: Topology, size: int, *, relays: bool = False) -> Wires:
        """Between every two ranks: the links, if it is `joined_directly`, else the usual route.

        relays: True for all routes of two links as well, between ranks that no link joins.
        Raises `InfeasibleError` if there is no route.
        """
        devices = topology.member_places.tolist()
        rank = {device: number for number, device in enumerate(devices)}
        if joined_directly(topology):
            routes: list[tuple[int, ...]] = [(number,) for number in range(len(topology.links))]
            routes += _relayed(topology) if relays else []
        else:
            routes = [topology.router.route(a, b) for a in devices for b in devices if a != b]
        links = topology.links
        uses = tuple(_uses(topology, route, size) for route in routes)
        return cls(
            topology.ranks,
            tuple(routes),
            uses,
            np.array([rank[topology.index[links[route[0]].src]] for route in routes]),
            np.array([rank[topology.index[links[route[-1]].dst]] for route in routes]),
            np.array([links[route[0]].overhead * 1e6 for route in routes]),
            np.array([sum(links[number].latency for number in route) * 1e6 for route in routes]),
            np.array([max(use.whole for use in one) for one in uses]),
        )

    def turned(self) -> Wires:
        """The same the other way round: what comes last comes first."""
        uses = []
        for wire, before in enumerate(self.uses):
            fixed, whole = float(self.overhead[wire] + self.latency[wire]), float(self.whole[wire])
            uses.append(
                tuple(
                    replace(use, offset=fixed - use.offset - use.hold, lag=whole - use.lag - use.whole)
                    for use in reversed(before)
                )
            )
        return replace(self, src=self.dst, dst=self.src, uses=tuple(uses))

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


def _relayed(topology: Topology) -> list[tuple[int, ...]]:
    """The routes over one device in between, by the widest links."""
    widest: dict[tuple[str, str], int] = {}
    for number, link in enumerate(topology.links):
        ends = link.src, link.dst
        if ends not in widest or link.bandwidth > topology.links[widest[ends]].bandwidth:
            widest[ends] = number
    passing = [device.name for device in topology.devices if "forward" in device.can]
    members = topology.members
    return [
        (widest[a, via], widest[via, b])
        for a in members
        for b in members
        if a != b and (a, b) not in widest
        for via in passing
        if (a, via) in widest and (via, b) in widest
    ]


def _uses(topology: Topology, route: tuple[int, ...], size: int) -> tuple[Use, ...]:
    """A message enters a link when it has begun to arrive, and no earlier than that it leaves it when all is there."""
    whole = [size / float(topology.links[number].bandwidth) * 1e6 for number in route]
    overhead = topology.links[route[0]].overhead * 1e6
    uses = [Use(route[0], 0.0, 0.0, overhead, whole[0])]
    offset, lag = overhead, 0.0
    for place in range(1, len(route)):
        offset += topology.links[route[place - 1]].latency * 1e6
        lag += max(0.0, whole[place - 1] - whole[place])
        uses.append(Use(route[place], offset, lag, 0.0, whole[place]))
    return tuple(uses)
