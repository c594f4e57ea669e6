"""Routes between devices: fewest hops, then the widest; senders are spread over equal routes.

Devices that hold data are passed through only where no route avoids them. Where several routes are equally
good (the NICs of a node, the planes of a fabric), `route` takes the one that the sender's position in its
node selects, so that neighbours do not all queue at the first NIC, and `routes` lists them all. Parallel
links of one pair of devices count as one link with the sum of their bandwidths.

A search of a large cluster looks at a few devices, so their neighbours are put together when they are asked
for. A route between two nodes passes both nodes and the switches between them only: nodes are alike, so what
a route through a third node would gain, the node of the receiver offers too. Of the fabric only those
switches matter that lie on a shortest route between two switches at which one of the nodes has a port.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import pairwise, permutations, takewhile
from math import gcd, inf, lcm, prod
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints, compressed, distinct, occurrences, scattered
from blinksim.graphs.connectivity import breadth_first, distances, grouped, summed
from blinksim.topology.symmetry import node_group

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology


T = TypeVar("T")
# Routes that a pair of devices divides its data among.
MOST_ROUTES = 64
# Links to take in rotation; of parallel links a wide one stands there more often than a narrow one.
Bundle = tuple[int, ...]
# For each neighbour of a device the links there, and their bytes/s together: floats, which compare fast.
Neighbours = Mapping[int, tuple[Bundle, float]]
_Ends = Iterable[tuple[int, tuple[Bundle, float]]]


class Bundles(dict[int, Neighbours]):
    """The neighbours of every device, by its position; in the order in which links to them first occur.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100")
    >>> Bundles(machine)[machine.index["gpu0"]][machine.index["gpu3"]]
    ((4,), 50000000000.0)
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self._topology = topology
        table = topology.link_columns
        self._start, self._links = compressed(table.src, len(topology.devices))
        # The links of a device by the node where they lead.
        self._sorted: dict[int, tuple[Ints, Ints]] = {}
        self.leading = cache(self.neighbours_in)
        self._widths = [float(rate) for rate in table.bandwidths]

    def __missing__(self, device: int) -> Neighbours:
        found = self[device] = self._joined(self._links[self._start[device] : self._start[device + 1]])
        return found

    def neighbours_in(self, device: int, node: int) -> _Ends:
        """Its neighbours in a node, with the links there."""
        if device not in self._sorted:
            own = self._links[self._start[device] : self._start[device + 1]]
            nodes = self._topology.device_nodes[self._topology.link_columns.dst[own]]
            order = np.argsort(nodes, kind="stable")
            self._sorted[device] = nodes[order], own[order]
        nodes, own = self._sorted[device]
        first, last = (np.searchsorted(nodes, node, side=side) for side in ("left", "right"))
        return self._joined(own[first:last]).items()

    def _joined(self, own: Ints) -> Neighbours:
        """Where these links of a device lead: all that it has there."""
        table, figure = self._topology.link_columns, self._topology.link_columns.figure
        return {
            end: ((links[0],), self._widths[figure[links[0]]]) if len(links) == 1 else self._parallel(links)
            for end, links in grouped(zip(table.dst[own].tolist(), own.tolist(), strict=True)).items()
        }

    def _parallel(self, links: Sequence[int]) -> tuple[Bundle, float]:
        """Links between two devices, each as often as its bandwidth demands, and their width: a bus counts once.

        Only the widest if that needs too many.
        """
        chosen = {i: self._topology.links[i] for i in links}
        on_bus = Counter(link.bus for link in chosen.values())
        share = {i: link.bandwidth / (1 if link.bus is None else on_bus[link.bus]) for i, link in chosen.items()}
        unit = Fraction(
            gcd(*(rate.numerator for rate in share.values())), lcm(*(rate.denominator for rate in share.values()))
        )
        width, widest = sum(share.values()), max(share.values())
        if width > MOST_ROUTES * unit:
            return tuple(i for i, rate in share.items() if rate == widest), float(width)
        return tuple(i for i, rate in share.items() for _ in range(int(rate / unit))), float(width)


# The node of devices that join nodes.
OUTSIDE = -1

Attached = frozenset[int]


class Neighbourhood:
    """The devices of a cluster as searches of routes see them.

    node: of every device. src, dst: where every link begins and ends. inner_links: how many pairs of switches
    are linked.
    """

    def __init__(self, node: Sequence[int], src: Ints, dst: Ints) -> None:
        self.node = node
        of = np.array(node, dtype=np.int64)
        outside = of == OUTSIDE
        between = outside[src] & outside[dst]
        # Where links between switches lead, and whichever way they lead.
        pairs = dict.fromkeys(zip(src[between].tolist(), dst[between].tolist(), strict=True))
        self.inner_links = len(pairs)
        inner, beside = grouped(pairs), grouped(ends for a, b in pairs for ends in ((a, b), (b, a)))
        self._ahead = cache(partial(distances, near=defaultdict(list, inner).__getitem__))
        self._around = cache(partial(distances, near=defaultdict(list, beside).__getitem__))
        # Where a node has a port, whichever way its link leads.
        a, b = np.concatenate([src, dst]), np.concatenate([dst, src])
        at = ~outside[a] & outside[b]
        ports = np.divmod(distinct(of[a[at]] * len(node) + b[at]), len(node))
        attached = grouped(zip(ports[0].tolist(), ports[1].tolist(), strict=True))
        self._attached = {number: frozenset(places) for number, places in attached.items()}
        self._between: dict[frozenset[Attached], Attached] = {}

    def switches(self, a: int, b: int) -> Attached:
        """The switches of the fabric that routes between the nodes `a` and `b` may pass.

        A switch of a shortest route between two ports is no farther from one of them than half the way.
        """
        key = frozenset(self._attached.get(node, frozenset()) for node in (a, b))
        if key not in self._between:
            ends = frozenset[int]().union(*key)
            far = max((self._ahead(a).get(b, 0) for a in ends for b in ends), default=0)
            near = (self._around(end).items() for end in ends)
            self._between[key] = frozenset(place for found in near for place, hops in found if 2 * hops <= far)
        return self._between[key]


# Nodes from which on a search leaves those out that hold neither end.
_MANY_NODES = 64
# For each device reached, the bundles that end a shortest and widest route to it.
_Arrivals = dict[int, list[Bundle]]
# A search: where it starts, in which node it ends, and whether it passes devices with data.
_Region = tuple[int, int, bool]
# In place of a node, for a search that leaves none out.
_EVERYWHERE = OUTSIDE


class Router:
    """Routes of one topology, found on demand and cached. many: from how many nodes on others are left out."""

    def __init__(self, topology: Topology, many: int = _MANY_NODES) -> None:
        self.topology = topology
        self._tail, self._head = (ends.tolist() for ends in topology.ends)
        relays = set(topology.relays)
        self._holds = [device.holds or device.name in relays for device in topology.devices]
        self._bundles = Bundles(topology)
        self.route, self.routes = cache(self.best_route), cache(self.equal_routes)
        self._round_robin = cache(self.in_rotation)
        self._arrivals: dict[_Region, _Arrivals] = {}
        # The members before each device, as far as they are known.
        self._origins: dict[_Region, dict[int, frozenset[int]]] = {}
        nodes = topology.device_nodes.tolist() if topology.nodes >= many else []
        self._near = Neighbourhood(nodes, *topology.ends) if topology.nodes >= many else None
        # Of every member among those of its node.
        places = topology.member_places
        before = occurrences(topology.device_nodes[places])
        self._position = scattered(places, before, len(topology.devices), 0).tolist()

    def best_route(self, src: int, dst: int) -> tuple[int, ...]:
        """Indices of the links from device `src` to device `dst`; raises `InfeasibleError` if there is none."""
        if dst in self._bundles[src]:
            links = self.topology.links
            return (max(self._bundles[src][dst][0], key=lambda i: (links[i].bandwidth, -i)),)
        for past_members in (False, True):
            region = self._region(src, dst, past_members)
            if dst in self._arrivals[region]:
                return self._found(region, dst, self._position[src])
        a, b = (self.topology.devices[i].name for i in (src, dst))
        classes = ", ".join(self.topology.link_classes)
        raise InfeasibleError(f"{self.topology.name}: no route from {a} to {b} over {classes}")

    def _found(self, region: _Region, dst: int, position: int) -> tuple[int, ...]:
        """The route that a position selects."""
        path, place = list[int](), dst
        while place != region[0]:
            if len(bundles := self._arrivals[region][place]) > 1 and region[2]:
                bundles = self._by_origin(region, bundles, position)
            bundle = _level(bundles)
            path.append(bundle[position % len(bundle)])
            place = self._tail[path[-1]]
        return tuple(reversed(path))

    def equal_routes(self, src: int, dst: int) -> tuple[tuple[int, ...], ...]:
        """All routes that are as good as `route`, each as often as the data should take it.

        The routes part where parallel links do, and where several devices are as near; all pass the same
        devices that hold data, unless they pass several. Every branch is taken equally often, or as its
        bandwidth demands; if that needs more than `MOST_ROUTES` routes, as equally as those allow. `route` is
        one of them.
        """
        if dst in self._bundles[src]:
            return tuple((i,) for i in self._bundles[src][dst][0])
        route = self.route(src, dst)
        region = self._region(src, dst)
        if dst not in self._arrivals[region]:
            ways = [route]
            through = [self._head[link] for link in route[:-1]]
            if sum(map(self._holds.__getitem__, through)) > 1 and self.topology.device_nodes[through].min() < 0:
                # Over a fabric where one end has no port that reaches the other's: all their neighbours' ports in turn.
                past, first = self._region(src, dst, past_members=True), self._position[src]
                turns = (self._found(past, dst, turn) for turn in range(first + 1, first + MOST_ROUTES))
                ways += dict.fromkeys(takewhile(route.__ne__, turns))
            every = [self.along(way) for way in ways]
            together = _level(every)
            return together if len(together) <= MOST_ROUTES else tuple(equal[0] for equal in every)
        if len(routes := self._round_robin(region, dst)) == 1:
            return tuple(routes)
        if len(routes) > MOST_ROUTES or not self._even(region, routes):
            # The branches of one place go with those of another: take every combination.
            into = cache(lambda place: _level(self._arrivals[region][place]))
            passed = breadth_first(dst, lambda place: {self._tail[number] for number in into(place)} - {src})
            choices = {place: into(place) for place in passed}
            lengths = [len(bundle) for bundle in choices.values()]
            if (product := prod(lengths)) <= MOST_ROUTES:
                routes = [self._combined(choices, src, dst, number) for number in range(product)]
            elif len(routes) > MOST_ROUTES:
                routes = routes[: min(max(lengths), MOST_ROUTES)]
        times = Counter(routes)
        common = gcd(*times.values())
        return tuple(path for path, number in times.items() for _ in range(number // common))

    def along(self, route: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The equal routes of any route: between devices with data, those of the pair if it is one.

        The routes of one part go with those of the next in rotation.
        """
        stops = [place for place, link in enumerate(route, 1) if self._holds[self._head[link]] or place == len(route)]
        parts = []
        for first, end in pairwise((0, *stops)):
            part = route[first:end]
            routes = self.routes(self._tail[part[0]], self._head[part[-1]])
            parts.append(routes if part in routes else (part,))
        if (count := lcm(*map(len, parts))) > MOST_ROUTES:
            count = max(map(len, parts))
        return tuple(tuple(link for routes in parts for link in routes[i % len(routes)]) for i in range(count))

    def in_rotation(self, region: _Region, place: int) -> Sequence[tuple[int, ...]]:
        """The routes to a place that round-robin selects: as many as the least common multiple of the branches.

        At most one more than `MOST_ROUTES`. Known for a place, they are known for all places behind it.
        """
        if place == region[0]:
            return ((),)
        bundle = _level(self._arrivals[region][place])
        before = [self._round_robin(region, self._tail[link]) for link in bundle]
        count = min(lcm(len(bundle), *map(len, before)), MOST_ROUTES + 1)
        picks = [(self._position[region[0]] + number) % len(bundle) for number in range(count)]
        return tuple((*before[i][number % len(before[i])], bundle[i]) for number, i in enumerate(picks))

    def _even(self, region: _Region, routes: Sequence[tuple[int, ...]]) -> bool:
        """True if the routes take the branches of every place as often as they stand there."""
        load = Counter(link for route in routes for link in route)
        for place in {self._head[link] for link in load}:
            one, *others = Counter(_level(self._arrivals[region][place])).items()
            if any(load[link] * one[1] != load[one[0]] * times for link, times in others):
                return False
        return True

    def _combined(self, choices: dict[int, Bundle], src: int, dst: int, number: int) -> tuple[int, ...]:
        """The route whose branches are the digits of `number`."""
        path: list[int] = []
        place = dst
        while place != src:
            bundle = choices[place]
            number, digit = divmod(number, len(bundle))
            path.append(bundle[(self._position[src] + digit) % len(bundle)])
            place = self._tail[path[-1]]
        return tuple(reversed(path))

    def _by_origin(self, region: _Region, bundles: list[Bundle], position: int) -> list[Bundle]:
        """Of the bundles that end routes past members, those from one set before; the position says which.

        So a neighbour counts once, however many devices without data lead here from it.
        """
        src, arrivals, known = region[0], self._arrivals[region], self._origins.setdefault(region, {})

        def before(place: int) -> frozenset[int]:
            if place == src or self._holds[place]:
                return frozenset((place,))
            if place not in known:
                known[place] = frozenset().union(*(before(self._tail[b[0]]) for b in arrivals[place]))
            return known[place]

        groups = grouped((before(self._tail[bundle[0]]), bundle) for bundle in bundles)
        return list(groups.values())[position % len(groups)]

    def _region(self, src: int, dst: int, past_members: bool = False) -> _Region:
        """The search that finds routes from `src` to `dst`, if there are any; past devices with data only if asked."""
        for node in (_EVERYWHERE if self._near is None else self._near.node[dst], _EVERYWHERE):
            region = (src, node, past_members)
            if region not in self._arrivals:
                self._arrivals[region] = self._breadth_first(src, self._ends(region))
            # Where all nodes are alike, no route passes a third one (`NodeGroup`).
            if dst in self._arrivals[region] or node_group(self.topology) is not None:
                break
        return region

    def searches(self, pairs: Iterable[tuple[int, int]]) -> int:
        """How many searches the routes between these devices take that are no neighbours."""
        node = None if self._near is None else self._near.node
        far = ((src, dst) for src, dst in pairs if dst not in self._bundles[src])
        return len({(src, _EVERYWHERE if node is None else node[dst]) for src, dst in far})

    @cached_property
    def looked_at(self) -> int:
        """About how many links a search looks at."""
        links, nodes = len(self.topology.links), self.topology.nodes
        return links if self._near is None else 2 * (links - self._near.inner_links) // nodes + nodes

    def _ends(self, region: _Region) -> Callable[[int], _Ends]:
        """Where links of a device lead that a search passes; nowhere if it holds data and none such is passed."""
        src, to, past_members = region
        bundles = self._bundles

        def every(place: int) -> _Ends:
            return bundles[place].items() if past_members or not self._holds[place] else ()

        if to == _EVERYWHERE:
            return every
        # Only in the nodes of the two devices and between them.
        assert self._near is not None
        node = self._near.node
        switches = self._near.switches(node[src], to)
        nodes = sorted({node[src], to} - {OUTSIDE})

        def ends(place: int) -> _Ends:
            if node[place] >= 0:
                return [end for end in every(place) if node[end[0]] in nodes or end[0] in switches]
            if self._holds[place] and not past_members:
                return ()
            # Of thousands of nodes below a switch, few are ever asked for.
            return [*(end for end in bundles.leading(place, OUTSIDE) if end[0] in switches),
                    *(end for number in nodes for end in bundles.leading(place, number))]  # fmt: skip

        return ends

    def _breadth_first(self, src: int, ends: Callable[[int], _Ends]) -> _Arrivals:
        """What ends the shortest and widest routes from one device. ends: where links of a device passed lead."""
        arrivals: _Arrivals = {}
        width = {src: inf}
        level = [src]
        while level:
            reached: dict[int, float] = {}
            for place in level:
                here = width[place]
                for end, (bundle, bandwidth) in self._bundles[src].items() if place == src else ends(place):
                    if end in width:
                        continue
                    wide = bandwidth if bandwidth < here else here
                    best = reached.get(end, -1)
                    if wide > best:
                        reached[end] = wide
                        arrivals[end] = [bundle]
                    elif wide == best:
                        arrivals[end].append(bundle)
            width |= reached
            level = list(reached)
        return arrivals

    def together(self, src: int, dst: int) -> Fraction:
        """Bytes/s of all equal paths from `src` to `dst` on their own."""
        paths = self.routes(src, dst)
        load = Counter(link for path in paths for link in path)
        links = self.topology.links
        shared = summed((links[i].bus, times) for i, times in load.items())
        return min(links[i].bandwidth * len(paths) / shared.get(links[i].bus or "", times) for i, times in load.items())


def _level(bundles: Sequence[tuple[T, ...]]) -> tuple[T, ...]:
    """The links of equally good bundles, or their routes, each bundle as often as any other."""
    if len(bundles) == 1:
        return bundles[0]
    length = lcm(*map(len, bundles))
    return tuple(one for bundle in bundles for one in bundle * (length // len(bundle)))


def pair_rates(topology: Topology) -> dict[tuple[str, str], Fraction | None]:
    """Bytes/s from each member to each other while nothing else runs, None where no link leads there.

    Direct links count together; without them, the best route through switches and hosts counts.
    """
    view = topology.select(connected=False)
    rates: dict[tuple[str, str], Fraction | None] = {}
    for src, dst in permutations(topology.members, 2):
        direct = sum((link.bandwidth for link in view.links_between(src, dst)), start=Fraction(0))
        rates[src, dst] = direct or None
        if not direct:
            # A route may pass through no other member.
            with suppress(InfeasibleError):
                pair = view.select([src, dst], connected=False)
                rates[src, dst] = pair.router.together(pair.index[src], pair.index[dst])
    return rates
