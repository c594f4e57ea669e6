"""Routes between devices: fewest hops, then the widest; senders share equal ones.

Devices that hold data are passed through only where no route avoids them. Where several routes are equally good (the
NICs of a node, the planes of a fabric), a sender takes the one that its own position in its node selects, so that
neighbours do not all queue at the first NIC.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from blinksim.errors import InfeasibleError

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

# For each device reached, the links that end a shortest and widest route to it.
_Arrivals = dict[int, list[int]]


class Router:
    """Routes of one topology, found on demand and kept."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        # Rank the bandwidths: integers compare faster than fractions.
        place = {rate: number for number, rate in enumerate(sorted({link.bandwidth for link in topology.links}))}
        self._links = [
            (topology.index[link.src], topology.index[link.dst], place[link.bandwidth]) for link in topology.links
        ]
        self._holds = [device.holds or device.name in topology.relays for device in topology.devices]
        self._routes: dict[tuple[int, int], tuple[int, ...]] = {}
        self._arrivals: dict[tuple[int, bool], _Arrivals] = {}
        position: dict[int, int] = {}
        self._turn = [0] * len(topology.devices)
        for name in topology.members:
            device = topology.device(name)
            self._turn[topology.index[name]] = position.setdefault(device.node, 0)
            position[device.node] += 1

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Indices of the links from device `src` to device `dst`; raises `InfeasibleError` if there is no way."""
        found = self._routes.get((src, dst))
        if found is None:
            found = self._routes[src, dst] = self._direct(src, dst) or self._search(src, dst)
        return found

    def _direct(self, src: int, dst: int) -> tuple[int, ...]:
        best = max(
            (i for i in self.topology.out_links[src] if self._links[i][1] == dst),
            key=lambda i: (self._links[i][2], -i),
            default=None,
        )
        return () if best is None else (best,)

    def _search(self, src: int, dst: int) -> tuple[int, ...]:
        for through_members in (False, True):
            arrivals = self._from(src, through_members)
            if dst in arrivals:
                path: list[int] = []
                place = dst
                while place != src:
                    equal = arrivals[place]
                    path.append(equal[self._turn[src] % len(equal)])
                    place = self._links[path[-1]][0]
                return tuple(reversed(path))
        a, b = (self.topology.devices[i].name for i in (src, dst))
        classes = ", ".join(self.topology.link_classes)
        raise InfeasibleError(f"{self.topology.name}: no route from {a} to {b} over {classes}")

    def _from(self, src: int, through_members: bool) -> _Arrivals:
        """Breadth-first search from one device, with or without passing through devices that hold data."""
        key = (src, through_members)
        if key in self._arrivals:
            return self._arrivals[key]
        arrivals: _Arrivals = {}
        width = {src: len(self._links)}
        level = [src]
        while level:
            reached: dict[int, int] = {}
            for place in level:
                if place != src and self._holds[place] and not through_members:
                    continue
                for number in self.topology.out_links[place]:
                    _, end, bandwidth = self._links[number]
                    if end in width:
                        continue
                    wide = min(width[place], bandwidth)
                    best = reached.get(end, -1)
                    if wide > best:
                        reached[end] = wide
                        arrivals[end] = [number]
                    elif wide == best:
                        arrivals[end].append(number)
            width.update(reached)
            level = list(reached)
        self._arrivals[key] = arrivals
        return arrivals

    def bandwidth(self, route: tuple[int, ...]) -> Fraction:
        """Bytes/s of a route on its own: that of its slowest link."""
        return min(self.topology.links[i].bandwidth for i in route)


def pair_rates(topology: Topology) -> dict[tuple[str, str], Fraction | None]:
    """Bytes/s from each member to each other while nothing else runs, None where no link leads there.

    Direct links count together; without them, the best route through switches and hosts counts.
    """
    view = topology.select(connected=False)
    found: dict[tuple[str, str], Fraction | None] = {}
    for src in topology.members:
        for dst in topology.members:
            if src == dst:
                continue
            direct = sum((link.bandwidth for link in view.links_between(src, dst)), start=Fraction(0))
            found[src, dst] = direct or _alone(view, src, dst)
    return found


def _alone(view: Topology, src: str, dst: str) -> Fraction | None:
    """Bytes/s of the best route that passes through no other member."""
    try:
        return path_rate(view.select([src, dst], connected=False), src, dst)
    except InfeasibleError:
        return None


def path_rate(topology: Topology, src: str, dst: str) -> Fraction:
    """Bytes/s that one route from `src` to `dst` carries while nothing else runs."""
    router = topology.router
    return router.bandwidth(router.route(topology.index[src], topology.index[dst]))
