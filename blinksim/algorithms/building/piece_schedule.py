"""Alltoall and alltoallv schedules over rails: blocks cut into pieces, each through the members of one index.

Routes run inside nodes and between members of equal index; every one is written out once. Loads per step
follow from what members hand on and send across, without listing the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import gcd

import numpy as np
import numpy.typing as npt

from blinksim.bounds.rail_flows import spread_time
from blinksim.bounds.rails import Ints, Rails, Route, Uses
from blinksim.collective import Collective
from blinksim.graphs.arrays import occurrences
from blinksim.packing.rails import Pieces, Sums, choose_places
from blinksim.schedule.model import COPY, Schedule
from blinksim.schedule.step_loads import StepLoads
from blinksim.traffic import Traffic


class RailRoutes:
    """Numbers of routes for sends; what takes the same route has the same number."""

    def __init__(self, rails: Rails) -> None:
        self.rails = rails
        self.listed: list[Route] = []

    def inside(self, node: Ints, i: Ints, k: Ints, choice: Ints | None = None) -> Ints:
        """Routes inside nodes from member `i` to member `k`.

        choice: which of several equal routes each takes, modulo their number; default: round-robin.
        """
        local = self.rails.local
        routes = self.rails.inside
        return self._round_robin((node * local + i) * local + k, lambda key: routes[key], choice)

    def across(self, a: Ints, b: Ints, k: Ints, port: Ints, choice: Ints | None = None) -> Ints:
        """Routes from node `a` to node `b` over `port` of place `k`, round-robin between switches of the fabric."""
        rails = self.rails
        nodes, local = rails.ranks.shape
        width = rails.exit.shape[2]

        def routes(key: int) -> Sequence[Route]:
            key, v = divmod(key, width)
            key, k = divmod(key, local)
            a, b = divmod(key, nodes)
            up, down = rails.up[a * local + k][v], rails.down[b * local + k][v]
            between = int(rails.exit[a, k, v]), int(rails.entry[b, k, v])
            middle = rails.trunks[between] if between[0] != between[1] else ((),)
            return [(*up, *trunk, *down) for trunk in middle]

        return self._round_robin(((a * nodes + b) * local + k) * width + port, routes, choice)

    def messages(self, a: Ints, b: Ints, k: Ints, port: Ints, step: Ints | None = None) -> Ints:
        """As `across`, where all over one port in a step is a message and takes one route.

        Messages between the same two switches of the fabric take its routes round-robin.
        """
        rails, step = self.rails, np.zeros_like(a) if step is None else step
        shape = (int(step.max(initial=0)) + 1, rails.nodes, rails.nodes, rails.local, rails.exit.shape[2])
        keys, where = np.unique(np.ravel_multi_index((step, a, b, k, port), shape), return_inverse=True)
        _, a, b, k, port = np.unravel_index(keys, shape)
        between = rails.exit[a, k, port] * len(rails.topology.devices) + rails.entry[b, k, port]
        return np.asarray(self.across(a, b, k, port, occurrences(between))[where])

    def _round_robin(self, keys: Ints, routes: Callable[[int], Sequence[Route]], choice: Ints | None) -> Ints:
        unique_keys, place = np.unique(keys, return_inverse=True)
        lists = [routes(key) for key in unique_keys.tolist()]
        counts = np.array([len(equal) for equal in lists], dtype=np.int64)
        first = len(self.listed) + np.concatenate(([0], np.cumsum(counts)[:-1])) if len(lists) else counts
        self.listed += [route for equal in lists for route in equal]
        choice = occurrences(place) if choice is None else choice
        return np.asarray(first[place] + choice % counts[place])

    def flat(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """All routes as `Schedule` takes them."""
        lengths = np.array([0, *map(len, self.listed)])
        return np.cumsum(lengths).astype(np.int32), np.array([x for path in self.listed for x in path], dtype=np.int32)


def through_others(rails: Rails) -> bool:
    """True if a route inside a node passes another member."""
    links = rails.topology.links
    inner = {links[link].dst for routes in rails.inside for route in routes for link in route[:-1]}
    return any(rails.topology.device(name).holds for name in inner)


Floats = npt.NDArray[np.float64]


def step_loads(rails: Rails, sums: Sums, collective: Collective, size: int) -> StepLoads:
    """Three steps: to the place where data crosses, across, and on from there. size: in the units of `sums`."""
    count, nodes, local = len(rails.rate), rails.nodes, rails.local
    none, idle = np.zeros((nodes, local, local)), np.zeros((nodes, nodes, local))
    inner = (sums.before + sums.within, sums.after)
    load = np.stack(
        [rails.loads(inner[0].astype(float), idle), rails.loads(none, sums.across.astype(float)),
         rails.loads(inner[1].astype(float), idle)]
    )  # fmt: skip
    alpha, each, longest = (np.zeros((3, count)) for _ in range(3))
    inside, up, down = (_Delays(rails, routes) for routes in (rails.inside, rails.up, rails.down))

    def highest(alpha: Floats, uses: Uses, of_route: Floats) -> None:
        np.maximum.at(alpha, uses.resource, of_route[uses.route])

    for step, moved in zip((0, 2), inner, strict=True):
        sent = moved.ravel() > 0
        inside.start(sent.astype(np.int64), each[step], longest[step])
        highest(alpha[step], rails.inside_uses, np.where(sent, inside.alpha, 0.0))
    goes = sums.across > 0
    up.start(goes.sum(axis=1).ravel(), each[1], longest[1])
    ends = up.alpha.reshape(nodes, 1, local) + down.latency.reshape(1, nodes, local)
    middle = max((_Delays(rails, [routes]).latency[0] for routes in rails.trunks.values()), default=0.0)
    whole = np.where(goes, ends + middle, 0.0)
    highest(alpha[1], rails.up_uses, whole.max(axis=1).ravel())
    highest(alpha[1], rails.down_uses, whole.max(axis=0).ravel())
    alpha[1] = np.where((load[1] > 0) & (alpha[1] == 0), whole.max(), alpha[1])
    shared = rails.resources
    names, kinds = shared.names, shared.kinds
    return StepLoads(collective, sums.sends, names, kinds, rails.rate, load / size, alpha, each, longest)


class _Delays:
    """Of lists of equal routes: seconds of latency and overhead of the slowest, and where messages start."""

    def __init__(self, rails: Rails, routes: Sequence[Sequence[Route]]) -> None:
        columns, first = rails.topology.link_columns, rails.resources.of_link
        self.latency, self.overhead = np.zeros(len(routes)), np.zeros(len(routes))
        starts: list[tuple[int, int, float]] = []
        for number, alternatives in enumerate(routes):
            for route in alternatives:
                overhead = float(columns.overhead[route[0]])
                self.latency[number] = max(self.latency[number], float(columns.latency[list(route)].sum()))
                self.overhead[number] = max(self.overhead[number], overhead)
                starts.append((number, int(first[route[0]]), overhead))
        self._starts = starts

    @property
    def alpha(self) -> Floats:
        return self.latency + self.overhead

    def start(self, messages: Ints, each: Floats, longest: Floats) -> None:
        """Adds the overheads of so many messages on each of several equal routes, and notes the longest."""
        if not self._starts:
            return
        route, resource, overhead = (np.array(column) for column in zip(*self._starts, strict=True))
        np.add.at(each, resource, overhead * messages[route])
        np.maximum.at(longest, resource, np.where(messages[route] > 0, overhead, 0.0))


# Units of a block of an alltoall where adapters carry unequal parts.
_UNITS = 5040


@dataclass(frozen=True, eq=False)
class Inside:
    """Units that stay inside node `own`: from member `i` to member `j`, which may be the same."""

    own: Ints
    i: Ints
    j: Ints
    amount: Ints


def pieces_of(collective: Collective, rails: Rails) -> tuple[Inside, Pieces, int]:
    """What stays inside nodes, what crosses over which places, and how many units the size is."""
    traffic = collective.traffic
    if traffic is None:
        # One unit for each block, or more where adapters carry unequal parts.
        rates = (rails.rate[uses.resource] for uses in (rails.up_uses, rails.down_uses))
        even = rails.open.all() and all(len(set(rate.tolist())) == 1 for rate in rates)
        ranks = rails.topology.ranks
        traffic = Traffic.uniform(ranks, ranks * (1 if even else _UNITS))
    units = rails.by_place(traffic.matrix)
    pieces = choose_places(rails, units, aim(rails, traffic))
    nodes = np.arange(rails.nodes)
    own, i, j = np.nonzero(units[nodes, :, nodes, :])
    return Inside(own, i, j, units[own, i, own, j]), pieces, traffic.size


def aim(rails: Rails, traffic: Traffic) -> float:
    """Units/s beyond which no better places are looked for."""
    return 1 / spread_time(rails, traffic)


def alike(rails: Rails) -> bool:
    """True if all members of all nodes have routes to the fabric and back, of one rate each."""
    rates = (uses.rates(rails.rate, rails.open.size) for uses in (rails.up_uses, rails.down_uses))
    return bool(rails.open.all()) and all(len(np.unique(rate)) == 1 for rate in rates)


def of_pieces(
    collective: Collective,
    rails: Rails,
    within: Inside,
    pieces: Pieces,
    size: int,
    algorithm: str,
    *,
    joined: bool = False,
) -> Schedule:
    """The schedule of pieces, each on a path of its own.

    joined: in three steps, where all with the same route is sent together.
    """
    # Every node sends to the next one first, and every member to the next place there, so that none takes in all.
    nodes, local = rails.ranks.shape
    order = np.lexsort((pieces.port, pieces.i, (pieces.j - pieces.i) % local, (pieces.b - pieces.a) % nodes))
    in_rounds = Pieces(*(getattr(pieces, column.name)[order] for column in fields(pieces)))
    routes, pieces = RailRoutes(rails), in_rounds
    count, own, i, j = len(pieces.amount), within.own, within.i, within.j
    amount = np.concatenate([pieces.amount, within.amount])
    device = rails.topology.member_places[rails.ranks]
    # Sends of three sorts: to the place where a piece crosses, across, and on from there; and those inside a node.
    first, last = pieces.i != pieces.k, pieces.k != pieces.j
    before, after, inner = np.flatnonzero(first), np.flatnonzero(last), np.flatnonzero(i != j)
    chunk, node, x, y, step = (
        np.concatenate(column)
        for column in zip(
            (before, pieces.a[before], pieces.i[before], pieces.k[before], np.zeros(len(before), np.int64)),
            (after, pieces.b[after], pieces.k[after], pieces.j[after], 1 + (first[after] | joined)),
            (count + inner, own[inner], i[inner], j[inner], np.zeros(len(inner), np.int64)),
            strict=True,
        )
    )
    # All at once: what goes between the same two members takes its routes round-robin, or is one message.
    inner_route = routes.inside(node, x, y, step if joined else None)
    sends = [(chunk, device[node, x], device[node, y], step, inner_route, np.zeros_like(step))]
    ends = device[pieces.a, pieces.k], device[pieces.b, pieces.k]
    crossing = (pieces.a, pieces.b, pieces.k, pieces.port)
    across = routes.messages(*crossing) if joined else routes.across(*crossing)
    channel = pieces.port if joined else np.zeros_like(pieces.port)
    sends.append((np.arange(count), *ends, (first | joined).astype(np.int64), across, channel))
    common = gcd(size, int(np.gcd.reduce(amount)))
    ranks = rails.ranks
    starts = np.concatenate([ranks[pieces.a, pieces.i], ranks[own, i]])
    targets = np.concatenate([ranks[pieces.b, pieces.j], ranks[own, j]])
    form, shares = "steps" if joined else "forest", (amount // common, size // common)
    return exchange_schedule(routes, collective, algorithm, form, shares, (starts, targets), sends)


def exchange_schedule(
    routes: RailRoutes,
    collective: Collective,
    algorithm: str,
    form: str,
    shares: tuple[Ints, int],
    ranks: tuple[Ints, ...],
    sends: Sequence[tuple[Ints, ...]],
) -> Schedule:
    """The schedule of chunks with these shares, from ranks to ranks.

    sends: (chunk, src, dst, step, route, channel) in arrays, ends as devices; in order within each step.
    """
    columns = [np.concatenate(column) for column in zip(*sends, strict=True)]
    order = np.argsort(columns[3], kind="stable")
    chunk, src, dst, step, route, channel = (column[order].astype(np.int32) for column in columns)
    start, links = routes.flat()
    return Schedule(
        topology=routes.rails.topology,
        collective=collective,
        algorithm=algorithm,
        form=form,
        share_num=shares[0],
        share_den=shares[1],
        origin=ranks[0].astype(np.int32),
        target=ranks[1].astype(np.int32),
        chunk=chunk,
        src=src,
        dst=dst,
        step=step,
        route=route,
        channel=channel,
        op=np.full(len(order), COPY, dtype=np.uint8),
        route_start=start,
        route_links=links,
    )
