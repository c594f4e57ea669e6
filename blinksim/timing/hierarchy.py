"""Scale-up and scale-out parts of any machine, derived from its link graph.

In a node the link classes form levels (two tiles of a card over MDFI, cards over Xe links; or one NVSwitch):
a reduce-scatter takes the levels from the inside out, shrinking the vector by the width of each, then the
nodes combine what each rank holds, and an allgather goes back (hierarchical allreduce; Blink, 2018, section
2, and the Aurora allreduce projection, 2025, section 3.1). A rank's own links are the only limit inside a
node and the ports the only one between nodes: a projection to first order, optimistic where GPUs share an
uplink or data must be forwarded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinksim.errors import InfeasibleError
from blinksim.graphs.connectivity import UnionFind
from blinksim.results import Term
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Link, Topology


@dataclass(frozen=True, slots=True)
class Level:
    """A level inside a node: `width` parts exchange over links of class `kind`, each rank at `bandwidth` bytes/s."""

    kind: str
    width: int
    bandwidth: Fraction


@dataclass(frozen=True, slots=True)
class Ports:
    """The network between nodes: `count` ports on every node, of class `kind`, each with `bandwidth` bytes/s."""

    kind: str
    count: int
    bandwidth: Fraction


def ports(topology: Topology) -> Ports:
    """The ports of a node: the links that leave it, or those that its fabric would give it.

    The nodes work in step, so the node with the fewest ports and the slowest port set the values. Raises
    `InfeasibleError` if nothing joins the nodes.
    """
    if topology.nodes == 1:
        fabric = topology.fabric
        if fabric is None:
            raise InfeasibleError(f"{topology.name} describes no fabric to join several nodes with")
        return Ports(fabric.kind, len(fabric.ports), fabric.lane_bandwidth * fabric.lanes)
    node = {device.name: device.node for device in topology.devices}
    leaving: dict[int, list[Link]] = {index: [] for index in node.values() if index >= 0}
    for link in topology.links:
        if 0 <= node[link.src] != node[link.dst]:
            leaving[node[link.src]].append(link)
    fewest = min(leaving.values(), key=len)
    if not fewest:
        raise InfeasibleError(f"{topology.name}: a node has no link to the other nodes")
    kinds = dict.fromkeys(link.kind for links in leaving.values() for link in links)
    slowest = min(_share(link) for links in leaving.values() for link in links)
    return Ports(", ".join(kinds), len(fewest), slowest)


def _share(link: Link) -> Fraction:
    """Bytes/s of one direction while both are busy: half of a bus."""
    return link.bandwidth if link.bus is None else link.bandwidth / 2


def levels(topology: Topology, members: Sequence[str]) -> tuple[Level, ...]:
    """The levels by which the link classes join `members` (all in one node), innermost first; none for one member.

    Raises `InfeasibleError` if a class joins them in groups of unequal size, or if no class joins them all.
    """
    idle = {device.name for device in topology.devices if device.holds} - {*members, *topology.relays}
    home = topology.device(members[0]).node
    part = {device.name: n for n, device in enumerate(topology.devices) if device.node == home}
    for name in idle:
        part.pop(name, None)
    kinds = topology.collective_links or topology.link_classes
    links: dict[str, list[Link]] = {kind: [] for kind in kinds}
    for link in topology.links:
        if link.kind in links and link.src in part and link.dst in part:
            links[link.kind].append(link)
    found: list[Level] = []
    remaining = list(kinds)
    parts = len(members)
    while parts > 1:
        rates = {kind: _rate(topology, links[kind], members, part) for kind in remaining}
        kind = max(remaining, key=lambda kind: rates[kind], default="")
        even = bool(kind) and rates[kind] > 0
        if even:
            remaining.remove(kind)
            part = _joined(part, links[kind])
            sizes = Counter(part[name] for name in members)
            even = len(set(sizes.values())) == 1
        if not even:
            raise _not_covered(topology, members, part, [link for kind in kinds for link in links[kind]])
        if len(sizes) < parts:
            found.append(Level(kind, parts // len(sizes), rates[kind]))
        parts = len(sizes)
    return tuple(found)


def _not_covered(
    topology: Topology, members: Sequence[str], part: Mapping[str, int], links: Sequence[Link]
) -> InfeasibleError:
    """Why no further level joins the members."""
    kinds = ", ".join(topology.collective_links or topology.link_classes)
    names = ", ".join(members)
    together = _joined(part, links)
    if len({together[name] for name in members}) > 1:
        return InfeasibleError(f"{topology.name}: {kinds} does not connect {names}")
    return InfeasibleError(
        f"{topology.name}: {kinds} joins {names} in groups of unequal size; take as many ranks as fill every group"
    )


def _rate(topology: Topology, links: Sequence[Link], members: Sequence[str], part: Mapping[str, int]) -> Fraction:
    """Bytes/s that each member can send over `links` out of its part, in the part where that is least.

    A member's own links are its own; links that leave the part's forwarders are divided among its members.
    """
    leaving = dict.fromkeys(part, Fraction(0))
    for link in links:
        if part[link.src] != part[link.dst]:
            leaving[link.src] += _share(link)
    for name in leaving:
        capacity = topology.device(name).capacity
        if capacity is not None:
            leaving[name] = min(leaving[name], capacity)
    own: dict[int, list[Fraction]] = {}
    for name in members:
        own.setdefault(part[name], []).append(leaving[name])
    forwarded = dict.fromkeys(own, Fraction(0))
    for name in part.keys() - set(members):
        if part[name] in forwarded:
            forwarded[part[name]] += leaving[name]
    return min(min(rates) + forwarded[number] / len(rates) for number, rates in own.items())


def _joined(part: Mapping[str, int], links: Sequence[Link]) -> dict[str, int]:
    """The parts after everything that `links` connect has become one."""
    joined = UnionFind(part.values())
    for link in links:
        joined.join(part[link.src], part[link.dst])
    return {name: joined.find(number) for name, number in part.items()}


@dataclass(frozen=True, slots=True)
class _Structure:
    """first, last: what happens inside the node before and after. passes: how often the vector, less a node's own
    share, crosses its ports; 0 where the whole vector goes through once."""

    first: str
    passes: int
    last: str

    def crossing(self, nodes: int) -> Fraction:
        """Bytes through a node's ports in one direction, as a multiple of the size."""
        return Fraction(self.passes * (nodes - 1), nodes) if self.passes else Fraction(1)


_STRUCTURES = {
    "allreduce": _Structure("reduce-scatter", 2, "allgather"),
    "reducescatter": _Structure("reduce-scatter", 1, ""),
    "allgather": _Structure("", 1, "allgather"),
    "broadcast": _Structure("scatter", 0, "allgather"),
    "reduce": _Structure("reduce-scatter", 0, "gather"),
}


def hierarchical(
    topology: Topology,
    members: Sequence[str],
    nodes: int,
    size: int,
    collective: str = "allreduce",
    nic_efficiency: Fraction = Fraction(1),
) -> tuple[Term, ...]:
    """Terms of a collective of `size` bytes over `nodes` nodes, on `members` of the topology (all, or one node's).

    Broadcast and reduce pass the vector on between the nodes as a pipeline of small chunks; the others are
    bandwidth-optimal between the nodes too. Ranks drive the ports nearest to them, and at least one each.
    Raises `InfeasibleError` for a collective that does not have this structure, and as `levels` and `ports`
    do.
    """
    if collective not in _STRUCTURES:
        raise InfeasibleError(
            f"{collective} is not a reduce-scatter, an exchange between nodes and an allgather; "
            f"the projection covers {', '.join(_STRUCTURES)}"
        )
    structure = _STRUCTURES[collective]
    # The levels of the node that takes longest; all nodes wait for it.
    per_node = [levels(topology, [members[rank] for rank in ranks]) for ranks in nodes_of(topology, members)]

    def duration(chosen: tuple[Level, ...]) -> Fraction:
        time, part = Fraction(0), Fraction(1)
        for level in chosen:
            time += part * Fraction(level.width - 1, level.width) / level.bandwidth
            part /= level.width
        return time

    inside = max(per_node, key=duration)
    steps = []
    part = Fraction(size)
    for level in inside:
        steps.append((level, float(part * Fraction(level.width - 1, level.width) / level.bandwidth)))
        part /= level.width
    terms = []
    if structure.first:
        terms += [Term(f"{structure.first} in the node", time, level.kind) for level, time in steps]
    if nodes > 1:
        out = ports(topology)
        local = [members[rank] for rank in nodes_of(topology, members)[0]]
        alone = min(out.count, len(local)) * out.bandwidth
        together = min(out.count * out.bandwidth, _own_ports(topology, local, out.bandwidth))
        time = float(size * structure.crossing(nodes) / (max(alone, together) * nic_efficiency))
        terms.append(Term(f"{collective} between nodes", time, out.kind))
    if structure.last:
        terms += [Term(f"{structure.last} in the node", time, level.kind) for level, time in reversed(steps)]
    return tuple(terms)


def _own_ports(topology: Topology, members: Sequence[str], bandwidth: Fraction) -> Fraction:
    """Bytes/s through the ports that the members of one node have to themselves, `bandwidth` each.

    A port is a member's own if no other member is as near; all own ports that lie behind the same link out of
    the member get no more than the route there carries.
    """
    home = topology.device(members[0]).node
    if topology.nodes == 1:
        ports_of = topology.fabric.ports if topology.fabric is not None else ()
    else:
        inside = {device.name for device in topology.devices if device.node == home}
        ports_of = tuple(dict.fromkeys(x.src for x in topology.links if x.src in inside and x.dst not in inside))
    reached = {name: _reached(topology, name, home) for name in members}
    wanted, carried = Counter[tuple[str, int]](), dict[tuple[str, int], Fraction]()
    for port in ports_of:
        steps = {name: found[port].steps for name, found in reached.items() if port in found}
        nearest = [name for name, count in steps.items() if count == min(steps.values())]
        if len(nearest) == 1:
            route = reached[nearest[0]][port]
            key = nearest[0], route.first
            wanted[key] += 1
            carried[key] = max(carried.get(key, Fraction(0)), route.width)
    return sum((min(count * bandwidth, carried[key]) for key, count in wanted.items()), start=Fraction(0))


@dataclass(frozen=True, slots=True)
class _Route:
    """The route from a member to a device: hops, number of its first link, bytes/s of its slowest link."""

    steps: int
    first: int
    width: Fraction


def _reached(topology: Topology, start: str, home: int) -> dict[str, _Route]:
    """The nearest routes from a member to the devices of its node, past none that holds data."""
    node = {device.name: device for device in topology.devices if device.node == home}
    found: dict[str, _Route] = {}
    level = [start]
    while level:
        further: dict[str, _Route] = {}
        for name in level:
            if name != start and node[name].holds:
                continue
            for number in topology.out_links[topology.index[name]]:
                link, route = topology.links[number], found.get(name)
                if link.dst not in node or link.dst in found or link.dst == start:
                    continue
                width = _share(link) if route is None else min(route.width, _share(link))
                if link.dst not in further or width > further[link.dst].width:
                    first = number if route is None else route.first
                    further[link.dst] = _Route(1 if route is None else route.steps + 1, first, width)
        found |= further
        level = list(further)
    return found
