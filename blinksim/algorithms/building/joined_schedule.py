"""Alltoall schedules in few messages: blocks that share a part of their route travel together.

A block goes from member i of a node to member j of another, `far` nodes further on. Its route is cut into
crossings, one for each digit of that distance (Bruck et al., IEEE TPDS 1997); a single one if the radix is
the number of nodes. Before each crossing the members of a node exchange blocks, so that all blocks for one
node are at the member that sends them there, on its own rail (PXN, NCCL 2.12; two-dimensional hierarchical
alltoall, Tutel 2022).

Fewer messages pay fewer overheads; more rounds overlap more of the traffic inside nodes with the traffic
between them. A schedule can be written out, stored by symmetry, or given as messages only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt, prod

import numpy as np
import numpy.typing as npt

from blinksim.algorithms.building.piece_schedule import (
    RailRoutes,
    aim,
    alike,
    exchange_schedule,
    of_pieces,
    pieces_of,
    step_loads,
    through_others,
)
from blinksim.algorithms.registry import algorithm
from blinksim.bounds.rails import Ints, Rails, Route, SymmetricRails, read_rails, symmetric_rails
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import expand
from blinksim.packing.rails import place_sums
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.schedule.step_loads import StepLoads
from blinksim.schedule.symmetric import SymmetricSchedule, loads_of_messages
from blinksim.topology.graph import Topology

# Messages of a member in a round, and from how many on there are several rounds.
_IN_A_ROUND, _MANY = 32, 256


@dataclass(frozen=True)
class Course:
    """How blocks get from node to node.

    local: members of a node. orders: of the generators of a group whose elements take the first node to all
    others; nodes are numbered as `numpy.indices` numbers the elements. radix: of the digits of the distance,
    one crossing for each. groups: into how many groups the members of a node fall that a message is for, a
    divisor of their number. rounds: parts that the distances are divided among, where there is one crossing;
    in each all members send.
    """

    orders: tuple[int, ...]
    local: int
    radix: int
    groups: int
    rounds: int = 1

    @property
    def nodes(self) -> int:
        return prod(self.orders)

    @property
    def crossings(self) -> int:
        """How often a block goes from node to node at most."""
        count, reach = 1, self.radix
        while reach < self.nodes:
            count, reach = count + 1, reach * self.radix
        return count

    @property
    def handed(self) -> bool:
        """True if members hand blocks on between crossings and after the last, too."""
        return 1 < self.local > self.groups

    def plus(self, a: Ints, far: Ints, sign: int = 1) -> Ints:
        """The nodes that are so far from nodes `a`; with the sign -1 those from which it is so far to them."""
        parts = zip(np.unravel_index(a, self.orders), np.unravel_index(far, self.orders), self.orders, strict=True)
        return np.asarray(np.ravel_multi_index([(x + sign * y) % order for x, y, order in parts], self.orders))


@dataclass(frozen=True, eq=False)
class Hop:
    """A send of `blocks`: in `step`, from member `x` of node `a` to member `y` of the node `far` away; arrays.

    far: 0 inside a node.
    """

    blocks: Ints
    step: Ints
    a: Ints
    x: Ints
    far: Ints
    y: Ints


def hops(course: Course, a: Ints, i: Ints, far: Ints, j: Ints) -> Iterator[Hop]:
    """The sends of blocks from members `i` of nodes `a` to members `j` of the nodes `far` away, one after another."""
    apart, node, place = far > 0, a, i
    # What stays inside its node goes with the first round.
    step = np.where(apart, (far - 1) // (course.local // course.groups) % course.rounds, 0)
    reach = 1
    for number in range(course.crossings):
        rest = far if number == course.crossings - 1 else far % (reach * course.radix)
        digit = rest // reach
        goes = digit > 0
        if course.local > 1 and (number == 0 or course.handed):
            over = (digit * course.groups + j * course.groups // course.local) % course.local
            # All are with the receivers' places from the first exchange on, unless messages are for several of these.
            target = np.where(goes, over, place) if course.handed else j
            target = np.where(apart, target, j if number == 0 else place)
            yield _hop(place != target, step, node, place, np.zeros_like(far), target)
            place, step = target, step + 1
        away = course.plus(rest, far % reach, -1)
        yield _hop(goes, step, node, place, away, place)
        node, step, reach = np.where(goes, course.plus(a, rest), node), step + 1, reach * course.radix
    yield _hop(place != j, step, node, place, np.zeros_like(far), j)


def _hop(moves: npt.NDArray[np.bool_], step: Ints, a: Ints, x: Ints, far: Ints, y: Ints) -> Hop:
    blocks = np.flatnonzero(moves)
    return Hop(blocks, *(column[blocks] for column in (step, a, x, far, y)))


@dataclass(frozen=True)
class Delays:
    """Seconds of alpha of a message and of the overhead of each further one, inside nodes and between them."""

    inside: tuple[float, float]
    across: tuple[float, float]

    def of(self, course: Course) -> float:
        """Seconds that the messages of a course take without their bytes, all rounds at once."""
        (alpha, overhead), (far_alpha, far_overhead) = self.inside, self.across
        digits = min(course.radix, course.nodes) - 1
        messages = -(-digits * course.groups // course.local)
        total = course.crossings * (far_alpha + (messages - 1) * far_overhead)
        if course.local > 1:
            exchanges = course.crossings + 1 if course.handed else 1
            total += exchanges * (alpha + (course.local - 2) * overhead)
        return total


def once(orders: tuple[int, ...], local: int, delays: Delays) -> Course:
    """A single crossing, in rounds where members have many messages."""
    nodes = prod(orders)

    def lost(groups: int) -> float:
        """The time of messages, longer by what adapters differ in how many they have."""
        messages = (nodes - 1) * groups
        return delays.of(Course(orders, local, nodes, groups)) * (-(-messages // local) * local / messages)

    groups = min(reversed(divisors(local)), key=lost)
    messages = -(-(nodes - 1) * groups // local)
    return Course(orders, local, nodes, groups, messages // _IN_A_ROUND if messages >= _MANY and local > 1 else 1)


def twice(orders: tuple[int, ...], local: int, delays: Delays) -> Course:
    """Two crossings, or one between two nodes: the messages that take the least time."""
    radix = max(2, 1 + isqrt(prod(orders) - 1))
    return min((Course(orders, local, radix, groups) for groups in reversed(divisors(local))), key=delays.of)


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


Chosen = Callable[[tuple[int, ...], int, Delays], Course]
"""A course for the orders of a group that permutes the nodes, the members of a node, and the delays of messages."""


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


def candidate(topology: Topology, collective: Collective, name: str, choose: Chosen) -> Candidate | None:
    """The schedule by symmetry, or of a traffic matrix by the sums of its steps; None where there are no rails for it.

    By symmetry there is none where no group takes a node to all others either.
    """
    if collective.traffic is not None:
        traffic, whole = collective.traffic, read_rails(topology)
        if whole is None or through_others(whole):
            return None
        try:
            sums = place_sums(whole, whole.by_place(traffic.matrix), aim(whole, traffic))
        except InfeasibleError:
            return None
        loads = step_loads(whole, sums, collective, traffic.size)
        return Candidate(loads, build=lambda: Candidate(algorithm(name).build(topology, collective)))
    rails = symmetric_rails(topology)
    if rails is None or not rails.alike:
        return None
    course = choose(rails.group.orders, rails.local, delays(rails))
    loads = messages(rails, course, collective)

    def images() -> Candidate:
        # The blocks of the first node's ranks; images by the group are the rest.
        base = _schedule(rails, course, name, np.zeros(1, dtype=np.int64))
        return Candidate(SymmetricSchedule(base, rails.group))

    return Candidate(loads, build=images, images=True)


def delays(rails: Rails) -> Delays:
    """Of the messages of the first node."""
    local = rails.local
    inside = [route for pair in range(local * local) for route in rails.inside[pair]]
    across = list[Route]()
    for k in range(local):
        between = int(rails.exit[0, k, 0]), int(rails.entry[-1, k, 0])
        middle = rails.trunks[between][0] if between[0] != between[1] else ()
        across.append((*rails.up[k][0], *middle, *rails.down[(rails.nodes - 1) * local + k][0]))
    return Delays(_slowest(rails, inside), _slowest(rails, across))


def _slowest(rails: Rails, routes: Sequence[Route]) -> tuple[float, float]:
    """The greatest alpha of messages on these routes, and the greatest overhead."""
    columns = rails.topology.link_columns
    overhead = [float(columns.overhead[route[0]]) for route in routes]
    alpha = [float(columns.latency[list(route)].sum()) + own for route, own in zip(routes, overhead, strict=True)]
    return max(alpha, default=0.0), max(overhead, default=0.0)


def _schedule(rails: Rails, course: Course, algorithm: str, origins: Ints) -> Schedule:
    ports = rails.exit.shape[2]
    a, i, far, j = _blocks(rails, origins)
    device, routes, sends = rails.topology.member_places[rails.ranks], RailRoutes(rails), list[tuple[Ints, ...]]()
    for hop in hops(course, a, i, far, j):
        if not len(hop.blocks):
            continue
        part = Hop(*(np.repeat(getattr(hop, name), ports) for name in ("blocks", "step", "a", "x", "far", "y")))
        # Inside nodes all parts of a block are one message; between them each has its own port.
        which = np.tile(np.arange(ports), len(hop.blocks))
        channel = which if part.far[0] else np.zeros_like(which)
        there = course.plus(part.a, part.far)
        ends = device[part.a, part.x], device[there, part.y]
        route = _routes(rails, routes, part, there, channel)
        sends.append((part.blocks * ports + which, *ends, part.step, route, channel))
    ranks = (np.repeat(column, ports) for column in (rails.ranks[a, i], rails.ranks[course.plus(a, far), j]))
    shares = np.ones(len(a) * ports, dtype=np.int64), rails.topology.ranks * ports
    return exchange_schedule(routes, Collective("alltoall"), algorithm, "steps", shares, tuple(ranks), sends)


def _blocks(rails: Rails, origins: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The blocks from member `i` of node `a` to member `j` of the node `far` away, as a, i, far, j.

    Every node begins with the next one, and every member with the next place, so that none takes in all at
    once.
    """
    nodes, local = rails.ranks.shape
    grids = np.meshgrid(np.arange(nodes), np.arange(local), origins, np.arange(local), indexing="ij")
    far, shift, a, i = (grid.ravel() for grid in grids)
    return a, i, far, (i + shift) % local


def _routes(rails: Rails, routes: RailRoutes, hop: Hop, there: Ints, port: Ints) -> Ints:
    """One route for every message of hops that are all inside nodes, or all between them.

    there: the node that each goes to. By symmetry routes are images of those of the first node.
    """
    if not hop.far[0]:
        return routes.inside(hop.a, hop.x, hop.y, hop.step)
    if not isinstance(rails, SymmetricRails):
        return routes.messages(hop.a, there, hop.x, port, hop.step)
    route = routes.messages(np.zeros_like(hop.a), hop.far, hop.x, port, hop.step)
    pairs, where = np.unique(route * rails.nodes + hop.a, return_inverse=True)
    number, node = pairs // rails.nodes, pairs % rails.nodes
    elsewhere = np.flatnonzero(node)
    start, links = (column.astype(np.int64) for column in routes.flat())
    exponents = np.stack(np.unravel_index(node[elsewhere], rails.group.orders), axis=1)
    ends, images = rails.group.route_images(exponents, start, links, number[elsewhere])
    number[elsewhere] = len(routes.listed) + np.arange(len(elsewhere))
    if len(elsewhere):
        routes.listed += [tuple(image.tolist()) for image in np.split(images, ends[1:-1])]
    return np.asarray(number[where])


def messages(rails: SymmetricRails, course: Course, collective: Collective) -> StepLoads:
    """What the schedule by symmetry sends, without its chunks."""
    ports, local, nodes = rails.exit.shape[2], rails.local, rails.nodes
    routes = RailRoutes(rails)
    rows: list[tuple[Ints, Ints, Ints]] = []
    sends = 0
    for hop in hops(course, *_blocks(rails, np.zeros(1, dtype=np.int64))):
        if not len(hop.blocks):
            continue
        sends += len(hop.blocks) * ports
        shape = (int(hop.step.max()) + 1, nodes, local, local)
        keys, count = np.unique(np.ravel_multi_index((hop.step, hop.far, hop.x, hop.y), shape), return_counts=True)
        step, far, x, y = np.unravel_index(keys, shape)
        # Inside nodes all parts of a block are one message; between them each has its own port.
        parts = ports if far[0] else 1
        step, far, x, y, count = (np.repeat(column, parts) for column in (step, far, x, y, count))
        port = np.tile(np.arange(parts), len(keys))
        here = np.zeros_like(step)
        route = _routes(rails, routes, Hop(here, step, here, x, far, y), far, port)
        rows.append((step, route, count * (ports // parts)))
    step, route, count = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = np.argsort(step, kind="stable")
    start, links = routes.flat()
    row, links = expand(start, links, route[order])
    ends = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(order)))])
    times = np.full(len(order), nodes)
    whole, total = rails.topology.ranks * ports, count[order] * nodes
    routes_of = ends, links.astype(np.int64)
    return loads_of_messages(rails.group, collective, sends * nodes, step[order], routes_of, total, times, whole)
