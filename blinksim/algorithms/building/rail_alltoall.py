"""Alltoall and alltoallv schedules over rails: blocks cut into pieces, each through the members of one index.

Routes run inside nodes and between members of equal index; every one is written out once. Loads per step
follow from what members hand on and send across, without listing the blocks.

Or blocks that share a part of their route travel together, in few messages. A block goes from member i of a
node to member j of another, `far` nodes further on. Its route is cut into crossings, one for each digit of
that distance (Bruck et al., IEEE TPDS 1997); a single one if the radix is the number of nodes. Before each
crossing the members of a node exchange blocks, so that all blocks for one node are at the member that sends
them there, on its own rail (PXN, NCCL 2.12; two-dimensional hierarchical alltoall, Tutel 2022). Fewer
messages pay fewer overheads; more rounds overlap more of the traffic inside nodes with the traffic between
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import gcd, isqrt, prod

import numpy as np

from blinksim.algorithms.registry import algorithm
from blinksim.bounds.rails import Rails, Route, SymmetricRails, read_rails, spread_time, symmetric_rails
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Bools, Floats, Ints, Ints32, distinct, occurrences
from blinksim.packing.rails import Pieces, Sums, choose_places, place_sums
from blinksim.schedule.candidate import Candidate, SymmetricSchedule
from blinksim.schedule.loads import StepLoads
from blinksim.schedule.model import COPY, Schedule, of_sends
from blinksim.topology.graph import Topology
from blinksim.traffic import Traffic

Sends = Sequence[tuple[Ints, ...]]


@dataclass
class RailRoutes:
    """Numbers of routes for sends; what takes the same route has the same number."""

    rails: Rails
    listed: list[Route] = field(default_factory=list)

    def inside(self, node: Ints, i: Ints, k: Ints, choice: Ints | None = None) -> Ints:
        """Routes inside nodes from member `i` to member `k`.

        choice: which of several equal routes each takes, modulo their number; default: round-robin.
        """
        local, routes = self.rails.local, self.rails.inside
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

    def flat(self) -> tuple[Ints32, Ints32]:
        """All routes as `Schedule` takes them."""
        lengths = np.array([0, *map(len, self.listed)])
        return np.cumsum(lengths).astype(np.int32), np.array([x for path in self.listed for x in path], dtype=np.int32)

    def schedule(
        self, what: tuple[Collective, str, str], shares: tuple[Ints, int], ranks: tuple[Ints, ...], sends: Sends
    ) -> Schedule:
        """The schedule of chunks with these shares, from ranks to ranks. what: collective, algorithm and form.

        sends: (chunk, src, dst, step, route, channel) in arrays, ends as devices; in order within each step.
        """
        chunk, src, dst, step, route, channel = map(np.concatenate, zip(*sends, strict=True))
        columns = chunk, src, dst, np.full(len(step), COPY), step, route, channel
        return of_sends((self.rails.topology, *what), shares, ranks, columns, self.flat())


def rails_for(topology: Topology, collective: Collective, name: str) -> Rails:
    """The rails of what is called so.

    Raises `InfeasibleError` for a single node, for nodes with other members or without switches between
    them, and where members of a node reach each other only through others, which tokens do not mind.
    """
    if (rails := read_rails(topology)) is None:
        needs = "two or more nodes with members of the same names and switches between"
        raise InfeasibleError(f"{name} needs {needs}; take packed")
    inner = {topology.links[link].dst for routes in rails.inside for route in routes for link in route[:-1]}
    if collective.routing is None and any(topology.device(passed).holds for passed in inner):
        raise InfeasibleError(f"{name}: members of a node reach each other only through others; take packed")
    return rails


def step_loads(rails: Rails, sums: Sums, collective: Collective, size: int) -> StepLoads:
    """Three steps: to the place where data crosses, across, and on from there. size: in the units of `sums`."""
    count, nodes, local = len(rails.resources.rates), rails.nodes, rails.local
    none, idle = np.zeros((nodes, local, local)), np.zeros((nodes, nodes, local))
    inner = (sums.before + sums.within, sums.after)
    load = np.stack(
        [rails.loads(inner[0].astype(float), idle), rails.loads(none, sums.across.astype(float)),
         rails.loads(inner[1].astype(float), idle)]
    )  # fmt: skip
    alpha, each, longest = (np.zeros((3, count)) for _ in range(3))
    inside, up, down = (_Delays(rails, routes) for routes in (rails.inside, rails.up, rails.down))
    for step, moved in zip((0, 2), inner, strict=True):
        sent = moved.ravel() > 0
        inside.start(sent.astype(np.int64), each[step], longest[step])
        uses = rails.inside_uses
        np.maximum.at(alpha[step], uses.resource, np.where(sent, inside.alpha, 0.0)[uses.route])
    goes = sums.across > 0
    up.start(goes.sum(axis=1).ravel(), each[1], longest[1])
    ends = up.alpha.reshape(nodes, 1, local) + down.latency.reshape(1, nodes, local)
    middle = max((_Delays(rails, [routes]).latency[0] for routes in rails.trunks.values()), default=0.0)
    whole = np.where(goes, ends + middle, 0.0)
    for uses, axis in zip(rails.fabric_uses, (1, 0), strict=True):
        np.maximum.at(alpha[1], uses.resource, whole.max(axis=axis).ravel()[uses.route])
    alpha[1] = np.where((load[1] > 0) & (alpha[1] == 0), whole.max(), alpha[1])
    return StepLoads(collective, sums.sends, rails.resources, load / size, alpha, each, longest)


class _Delays:
    """Of lists of equal routes: seconds of latency and overhead of the slowest, and where messages start."""

    def __init__(self, rails: Rails, routes: Sequence[Sequence[Route]]) -> None:
        columns, first = rails.topology.link_columns, rails.resources.of_link
        self.latency, self.overhead = np.zeros(len(routes)), np.zeros(len(routes))
        self._starts: list[tuple[int, int, float]] = []
        for number, alternatives in enumerate(routes):
            for route in alternatives:
                overhead = float(columns.overhead[route[0]])
                self.latency[number] = max(self.latency[number], float(columns.latency[list(route)].sum()))
                self.overhead[number] = max(self.overhead[number], overhead)
                self._starts.append((number, int(first[route[0]]), overhead))

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


def pieces_of(collective: Collective, rails: Rails) -> tuple[Pieces, int]:
    """What crosses over which places, and then what stays inside nodes; and how many units the size is."""
    if (traffic := collective.traffic) is None:
        # One unit for each block, or more where adapters carry unequal parts, or none as many blocks as others.
        ranks, whole = rails.topology.ranks, rails.local % rails.exit.shape[2] == 0
        traffic = Traffic.uniform(ranks, ranks * (1 if whole and alike(rails) else _UNITS))
    units = rails.by_place(traffic.matrix)
    # Beyond the rate of flows no better places are looked for.
    crossing, nodes = choose_places(rails, units, 1 / spread_time(rails, traffic)), np.arange(rails.nodes)
    own, i, j = np.nonzero(units[nodes, :, nodes, :])
    inside = own, i, j, np.zeros_like(own), own, j, units[own, i, own, j]
    return Pieces(*map(np.concatenate, zip(crossing, inside, strict=True))), traffic.size


def alike(rails: Rails) -> bool:
    """True if all members of all nodes have routes to the fabric and back, of one rate each."""
    rates = (uses.rates(rails.resources.rates) for uses in rails.fabric_uses)
    return bool(rails.open.all()) and all(len(distinct(rate)) == 1 for rate in rates)


def of_pieces(
    collective: Collective, rails: Rails, pieces: Pieces, size: int, algorithm: str, *, joined: bool = False
) -> Schedule:
    """The schedule of pieces, each on a path of its own; those inside a node (`k` is `j`) come last.

    joined: in three steps, where all with the same route is sent together.
    """
    # Every node sends to the next one first, and every member to the next place there, so none takes in all.
    (nodes, local), routes = rails.ranks.shape, RailRoutes(rails)
    apart, shift, far = pieces.a != pieces.b, (pieces.j - pieces.i) % local, (pieces.b - pieces.a) % nodes
    order = np.lexsort((*(key * apart for key in (pieces.port, pieces.i, shift, far)), ~apart))
    a, i, k, port, b, j, amount = (column[order] for column in pieces)
    device = rails.topology.member_places[rails.ranks]
    # Sends of three sorts: to the place where a piece crosses, across, and on from there; and those inside a node.
    first, over = i != k, np.flatnonzero(a != b)
    before, after, inner = np.flatnonzero(first & (a != b)), np.flatnonzero(k != j), np.flatnonzero(first & (a == b))
    to_place = before, a[before], i[before], k[before], np.zeros_like(before)
    from_place = after, b[after], k[after], j[after], 1 + (first[after] | joined)
    within = inner, a[inner], i[inner], k[inner], np.zeros_like(inner)
    chunk, node, x, y, step = map(np.concatenate, zip(to_place, from_place, within, strict=True))
    # All at once: what goes between the same two members takes its routes round-robin, or is one message.
    inner_route = routes.inside(node, x, y, step if joined else None)
    sends = [(chunk, device[node, x], device[node, y], step, inner_route, np.zeros_like(step))]
    ends = device[a[over], k[over]], device[b[over], k[over]]
    crossing = a[over], b[over], k[over], port[over]
    across = routes.messages(*crossing) if joined else routes.across(*crossing)
    channel = port[over] if joined else np.zeros_like(over)
    sends.append((over, *ends, (first | joined)[over].astype(np.int64), across, channel))
    common = gcd(size, int(np.gcd.reduce(amount)))
    what = collective, algorithm, "steps" if joined else "forest"
    ranks = rails.ranks[a, i], rails.ranks[b, j]
    return routes.schedule(what, (amount // common, size // common), ranks, sends)


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
        return next(number for number in count(1) if self.radix**number >= self.nodes)

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
        yield _hop(goes, step, node, place, course.plus(rest, far % reach, -1), place)
        node, step, reach = np.where(goes, course.plus(a, rest), node), step + 1, reach * course.radix
    yield _hop(place != j, step, node, place, np.zeros_like(far), j)


def _hop(moves: Bools, step: Ints, a: Ints, x: Ints, far: Ints, y: Ints) -> Hop:
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
        messages = -(-(min(course.radix, course.nodes) - 1) * course.groups // course.local)
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


# A course for the orders of a group that permutes the nodes, the members of a node, and the delays of messages.
Chosen = Callable[[tuple[int, ...], int, Delays], Course]


def build_joined(algorithm: str, choose: Chosen, topology: Topology, collective: Collective) -> Schedule:
    """Every block of every rank, in steps form; nodes are a circle.

    Raises `InfeasibleError` for a single node, for nodes that differ in members or adapters or without switches
    between them, and where members of a node reach each other only through others.
    """
    rails = rails_for(topology, collective, algorithm)
    if collective.traffic is not None or not alike(rails):
        if algorithm != "rail_joined":
            raise InfeasibleError(f"{algorithm} needs nodes with the same members and adapters; take rail_joined")
        return of_pieces(collective, rails, *pieces_of(collective, rails), algorithm, joined=True)
    course = choose((rails.nodes,), rails.local, delays(rails))
    return _schedule(rails, course, algorithm, np.arange(rails.nodes))


def joined_candidate(name: str, choose: Chosen, topology: Topology, collective: Collective) -> Candidate | None:
    """The schedule by symmetry, or of a traffic matrix by the sums of its steps; None where there are no rails for it.

    By symmetry there is none where no group takes a node to all others either.
    """
    if collective.traffic is not None:
        traffic = collective.traffic
        try:
            whole = rails_for(topology, collective, name)
            sums = place_sums(whole, whole.by_place(traffic.matrix), 1 / spread_time(whole, traffic))
        except InfeasibleError:
            return None
        loads = step_loads(whole, sums, collective, traffic.size)
        return Candidate(loads, build=lambda: Candidate(algorithm(name).build(topology, collective)))
    if (rails := symmetric_rails(topology)) is None or not rails.alike:
        return None
    course = choose(rails.group.orders, rails.local, delays(rails))
    # The blocks of the first node's ranks; images by the group are the rest.
    return Candidate(SymmetricSchedule(_schedule(rails, course, name, np.zeros(1, dtype=np.int64)), rails.group))


def delays(rails: Rails) -> Delays:
    """Of the messages of the first node."""
    local = rails.local
    inside = [route for pair in range(local * local) for route in rails.inside[pair]]
    across = list[Route]()
    for k in range(local):
        between = int(rails.exit[0, k, 0]), int(rails.entry[-1, k, 0])
        middle = rails.trunks[between][0] if between[0] != between[1] else ()
        across.append((*rails.up[k][0], *middle, *rails.down[(rails.nodes - 1) * local + k][0]))
    slowest = (_Delays(rails, [[route] for route in routes]) for routes in (inside, across))
    return Delays(*((float(one.alpha.max(initial=0.0)), float(one.overhead.max(initial=0.0))) for one in slowest))


def _schedule(rails: Rails, course: Course, algorithm: str, origins: Ints) -> Schedule:
    """The blocks of the ranks of the nodes `origins`, to member `j` of the node that is `far` away.

    Every node begins with the next one, and every member with the next place, so that none takes in all at
    once.
    """
    nodes, local = rails.ranks.shape
    # Over as many ports as every member has: all send as much, and those with more would wait for the others.
    ports = rails.exit.shape[2] if isinstance(rails, SymmetricRails) else min(rails.ports())
    grids = np.meshgrid(np.arange(nodes), np.arange(local), origins, np.arange(local), indexing="ij")
    far, shift, a, i = (grid.ravel() for grid in grids)
    j = (i + shift) % local
    device, routes, sends = rails.topology.member_places[rails.ranks], RailRoutes(rails), list[tuple[Ints, ...]]()
    for hop in hops(course, a, i, far, j):
        if not len(hop.blocks):
            continue
        part = Hop(*(np.repeat(getattr(hop, name), ports) for name in ("blocks", "step", "a", "x", "far", "y")))
        # Inside nodes all parts of a block are one message; between them each has its own port, and the
        # first parts of those for several nodes have several.
        which = np.tile(np.arange(ports), len(hop.blocks))
        channel = (which + part.far) % ports if part.far[0] else np.zeros_like(which)
        there = course.plus(part.a, part.far)
        ends = device[part.a, part.x], device[there, part.y]
        # One route for every message.
        if not part.far[0]:
            route = routes.inside(part.a, part.x, part.y, part.step)
        elif not isinstance(rails, SymmetricRails):
            route = routes.messages(part.a, there, part.x, channel, part.step)
        else:
            # By symmetry routes are images of those of the first node.
            first = routes.messages(np.zeros_like(part.a), part.far, part.x, channel, part.step)
            pairs, where = np.unique(first * rails.nodes + part.a, return_inverse=True)
            number, node = pairs // rails.nodes, pairs % rails.nodes
            elsewhere = np.flatnonzero(node)
            start, links = (column.astype(np.int64) for column in routes.flat())
            exponents = np.stack(np.unravel_index(node[elsewhere], rails.group.orders), axis=1)
            bounds, images = rails.group.route_images(exponents, start, links, number[elsewhere])
            number[elsewhere] = len(routes.listed) + np.arange(len(elsewhere))
            if len(elsewhere):
                routes.listed += [tuple(image.tolist()) for image in np.split(images, bounds[1:-1])]
            route = number[where]
        sends.append((part.blocks * ports + which, *ends, part.step, route, channel))
    ranks = (np.repeat(column, ports) for column in (rails.ranks[a, i], rails.ranks[course.plus(a, far), j]))
    shares = np.ones(len(a) * ports, dtype=np.int64), rails.topology.ranks * ports
    return routes.schedule((Collective("alltoall"), algorithm, "steps"), shares, tuple(ranks), sends)
