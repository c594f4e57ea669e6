"""Schedules of an alltoall whose blocks travel together (`joined_blocks`): written out, by symmetry, in messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from blinksim.algorithms.building.exchanges.joined_blocks import Course, Delays, Hop, hops
from blinksim.algorithms.building.exchanges.piece_schedule import aim, alike, of_pieces, pieces_of
from blinksim.algorithms.building.exchanges.piece_sums import step_sums
from blinksim.algorithms.building.exchanges.rail_routes import RailRoutes, through_others
from blinksim.bounds.exchanges.rails import Ints, Rails, Route, read_rails
from blinksim.bounds.exchanges.turned_rails import TurnedRails, turned_rails
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.packing.hosts.rail_pieces import place_sums
from blinksim.schedule.model import COPY, Schedule
from blinksim.schedule.outlines.step_sums import Summed
from blinksim.schedule.turned.entrant import TurnedSteps
from blinksim.schedule.turned.step_messages import Messages
from blinksim.schedule.turned.symmetric import SymmetricSchedule
from blinksim.structures.arrays import expand
from blinksim.topology.graph import Topology

Chosen = Callable[[tuple[int, ...], int, Delays], Course]
"""A course for the orders of a group that turns the nodes, the members of a node, and the delays of messages."""


def build(topology: Topology, collective: Collective, algorithm: str, choose: Chosen) -> Schedule:
    """Every block of every rank; nodes are a circle. Raises `InfeasibleError` for what are no rails of alike nodes."""
    rails = read_rails(topology)
    if rails is None:
        raise InfeasibleError(
            f"{algorithm} needs two or more nodes with members of the same names and switches between; take direct"
        )
    if through_others(rails):
        raise InfeasibleError(f"{algorithm}: members of a node reach each other only through others; take direct")
    if collective.traffic is not None or not alike(rails):
        if algorithm != "rail_joined":
            raise InfeasibleError(f"{algorithm} needs nodes with the same members and adapters; take rail_joined")
        return of_pieces(collective, rails, *pieces_of(collective, rails), algorithm, joined=True)
    course = choose((rails.nodes,), rails.local, delays(rails))
    return _schedule(rails, course, algorithm, np.arange(rails.nodes))


def of_traffic(topology: Topology, collective: Collective, build: Callable[[], Schedule]) -> Summed | None:
    """The schedule of a traffic matrix by the sums of its steps; None where there are no rails for it."""
    rails, traffic = read_rails(topology), collective.traffic
    if rails is None or traffic is None or through_others(rails):
        return None
    try:
        sums = place_sums(rails, rails.by_place(traffic.matrix), aim(rails, traffic))
    except InfeasibleError:
        return None
    return Summed(collective, step_sums(rails, sums, traffic.size), sums.sends, build)


def entrant(topology: Topology, collective: Collective, algorithm: str, choose: Chosen) -> TurnedSteps | None:
    """The schedule by symmetry; None for what are no rails of nodes that turns take to each other."""
    rails = turned_rails(topology) if collective.name == "alltoall" else None
    if rails is None or not rails.alike:
        return None
    course = choose(rails.turns.orders, rails.local, delays(rails))
    found, sends = messages(rails, course)
    return TurnedSteps(collective, found, sends, lambda: turned(rails, course, algorithm))


def delays(rails: Rails) -> Delays:
    """Of the messages of the first node."""
    local = rails.local
    inside = [way for pair in range(local * local) for way in rails.inside[pair]]
    across = list[Route]()
    for k in range(local):
        between = int(rails.exit[0, k, 0]), int(rails.entry[-1, k, 0])
        middle = rails.trunks[between][0] if between[0] != between[1] else ()
        across.append((*rails.up[k][0], *middle, *rails.down[(rails.nodes - 1) * local + k][0]))
    return Delays(_slowest(rails, inside), _slowest(rails, across))


def _slowest(rails: Rails, ways: Sequence[Route]) -> tuple[float, float]:
    """The greatest alpha of messages on these ways, and the greatest overhead."""
    columns = rails.topology.link_columns
    overhead = [float(columns.overhead[way[0]]) for way in ways]
    alpha = [float(columns.latency[list(way)].sum()) + own for way, own in zip(ways, overhead, strict=True)]
    return max(alpha, default=0.0), max(overhead, default=0.0)


def turned(rails: TurnedRails, course: Course, algorithm: str) -> SymmetricSchedule:
    """The blocks of the first node's ranks, and the turns of the nodes."""
    return SymmetricSchedule(_schedule(rails, course, algorithm, np.zeros(1, dtype=np.int64)), rails.turns)


def _schedule(rails: Rails, course: Course, algorithm: str, origins: Ints) -> Schedule:
    topology, ways = rails.topology, rails.exit.shape[2]
    blocks = _Blocks.of(rails, origins)
    routes = (_TurnedRoutes if isinstance(rails, TurnedRails) else _Routes)(rails)
    columns = []
    for hop in hops(course, blocks.a, blocks.i, blocks.far, blocks.j):
        if not len(hop.blocks):
            continue
        part = Hop(*(np.repeat(getattr(hop, name), ways) for name in ("blocks", "step", "a", "x", "far", "y")))
        # Inside nodes all parts of a block are one message; between them each goes its own way.
        which = np.tile(np.arange(ways), len(hop.blocks))
        channel = which if part.far[0] else np.zeros_like(which)
        there = course.plus(part.a, part.far)
        ends = rails.ranks[part.a, part.x], rails.ranks[there, part.y]
        columns.append((part.blocks * ways + which, *ends, part.step, routes.of(part, there, channel), channel))
    chunk, src, dst, step, route, channel = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(step, kind="stable")
    device = topology.member_places
    start, links = routes.listed.flat()
    target = course.plus(blocks.a, blocks.far)
    return Schedule(
        topology=topology,
        collective=Collective("alltoall"),
        algorithm=algorithm,
        form="steps",
        share_num=np.ones(len(blocks.a) * ways, dtype=np.int64),
        share_den=topology.ranks * ways,
        origin=np.repeat(rails.ranks[blocks.a, blocks.i], ways).astype(np.int32),
        target=np.repeat(rails.ranks[target, blocks.j], ways).astype(np.int32),
        chunk=chunk[order].astype(np.int32),
        src=device[src[order]].astype(np.int32),
        dst=device[dst[order]].astype(np.int32),
        op=np.full(len(order), COPY, dtype=np.uint8),
        step=step[order].astype(np.int32),
        route=route[order].astype(np.int32),
        channel=channel[order].astype(np.int32),
        route_start=start,
        route_links=links,
    )


@dataclass(frozen=True, eq=False)
class _Blocks:
    """From member `i` of node `a` to member `j` of the node `far` away.

    Every node begins with the next one, and every member with the next place, so that none takes in all at once.
    """

    a: Ints
    i: Ints
    far: Ints
    j: Ints

    @classmethod
    def of(cls, rails: Rails, origins: Ints) -> _Blocks:
        nodes, local = rails.ranks.shape
        grids = np.meshgrid(np.arange(nodes), np.arange(local), origins, np.arange(local), indexing="ij")
        far, turn, a, i = (grid.ravel() for grid in grids)
        return cls(a, i, far, (i + turn) % local)


class _Routes:
    """Numbers of routes for hops: one route for every message."""

    def __init__(self, rails: Rails) -> None:
        self.rails, self.listed = rails, RailRoutes(rails)

    def of(self, hop: Hop, there: Ints, way: Ints) -> Ints:
        """Of hops that are all inside nodes, or all between them; there: the node that each goes to."""
        if not hop.far[0]:
            return self.listed.inside(hop.a, hop.x, hop.y, hop.step)
        return self.listed.messages(hop.a, there, hop.x, way, hop.step)


class _TurnedRoutes(_Routes):
    """Those of the first node are chosen, and turned to where other nodes send."""

    rails: TurnedRails

    def of(self, hop: Hop, there: Ints, way: Ints) -> Ints:
        if not hop.far[0]:
            return super().of(hop, there, way)
        rails, listed = self.rails, self.listed.listed
        route = self.listed.messages(np.zeros_like(hop.a), hop.far, hop.x, way, hop.step)
        found, where = np.unique(route * rails.nodes + hop.a, return_inverse=True)
        number, node = found // rails.nodes, found % rails.nodes
        elsewhere = np.flatnonzero(node)
        start, links = self.listed.flat()
        exponents = np.stack(np.unravel_index(node[elsewhere], rails.turns.orders), axis=1)
        ends, images = rails.turns.route_images(
            exponents, start.astype(np.int64), links.astype(np.int64), number[elsewhere]
        )
        number[elsewhere] = len(listed) + np.arange(len(elsewhere))
        listed += [tuple(image.tolist()) for image in np.split(images, ends[1:-1])] if len(elsewhere) else []
        return np.asarray(number[where])


def messages(rails: TurnedRails, course: Course) -> tuple[Messages, int]:
    """What the schedule of `turned` sends, and how many sends it has, without its chunks."""
    ways, local, nodes = rails.exit.shape[2], rails.local, rails.nodes
    blocks, routes = _Blocks.of(rails, np.zeros(1, dtype=np.int64)), _TurnedRoutes(rails)
    rows: list[tuple[Ints, Ints, Ints]] = []
    sends = 0
    for hop in hops(course, blocks.a, blocks.i, blocks.far, blocks.j):
        if not len(hop.blocks):
            continue
        sends += len(hop.blocks) * ways
        shape = (int(hop.step.max()) + 1, nodes, local, local)
        found, count = np.unique(np.ravel_multi_index((hop.step, hop.far, hop.x, hop.y), shape), return_counts=True)
        step, far, x, y = np.unravel_index(found, shape)
        # Inside nodes all parts of a block are one message; between them each goes its own way.
        parts = ways if far[0] else 1
        step, far, x, y, count = (np.repeat(column, parts) for column in (step, far, x, y, count))
        way = np.tile(np.arange(parts), len(found))
        here = np.zeros_like(step)
        route = routes.of(Hop(here, step, here, x, far, y), far, way)
        rows.append((step, route, count * (ways // parts)))
    step, route, count = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = np.argsort(step, kind="stable")
    start, links = routes.listed.flat()
    row, links = expand(start, links, route[order])
    ends = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(order)))])
    times = np.full(len(order), nodes)
    whole, total = rails.topology.ranks * ways, count[order] * nodes
    return Messages(rails.turns, step[order], ends, links.astype(np.int64), total, times, whole), sends * nodes
