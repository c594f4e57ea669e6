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
from contextlib import suppress
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
            together = _joined(part, [link for kind in kinds for link in links[kind]])
            what, names = f"{topology.name}: {', '.join(kinds)}", ", ".join(members)
            if len({together[name] for name in members}) > 1:
                raise InfeasibleError(f"{what} does not connect {names}")
            advice = "take as many ranks as fill every group"
            raise InfeasibleError(f"{what} joins {names} in groups of unequal size; {advice}")
        if len(sizes) < parts:
            found.append(Level(kind, parts // len(sizes), rates[kind]))
        parts = len(sizes)
    return tuple(found)


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


# What happens inside the node before and after, and in between how often the vector, less a node's own share,
# crosses its ports; 0 where the whole vector goes through once.
_STRUCTURES = {
    "allreduce": ("reduce-scatter", 2, "allgather"),
    "reducescatter": ("reduce-scatter", 1, ""),
    "allgather": ("", 1, "allgather"),
    "broadcast": ("scatter", 0, "allgather"),
    "reduce": ("reduce-scatter", 0, "gather"),
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
    before, passes, after = _STRUCTURES[collective]

    def timed(group: Sequence[str]) -> list[tuple[str, float]]:
        steps, part = list[tuple[str, float]](), Fraction(size)
        for level in levels(topology, group):
            steps.append((level.kind, float(part * Fraction(level.width - 1, level.width) / level.bandwidth)))
            part /= level.width
        return steps

    # The levels of the node that takes longest; all nodes wait for it.
    groups = [[members[rank] for rank in ranks] for ranks in nodes_of(topology, members)]
    steps = max(map(timed, groups), key=lambda steps: sum(time for _, time in steps))
    terms = []
    if before:
        terms += [Term(f"{before} in the node", time, kind) for kind, time in steps]
    if nodes > 1:
        out = ports(topology)
        alone = min(out.count, len(groups[0])) * out.bandwidth
        together = min(out.count * out.bandwidth, _own_ports(topology, groups[0], out.bandwidth))
        crossing = Fraction(passes * (nodes - 1), nodes) if passes else 1
        time = float(size * crossing / (max(alone, together) * nic_efficiency))
        terms.append(Term(f"{collective} between nodes", time, out.kind))
    if after:
        terms += [Term(f"{after} in the node", time, kind) for kind, time in reversed(steps)]
    return tuple(terms)


def _own_ports(topology: Topology, members: Sequence[str], bandwidth: Fraction) -> Fraction:
    """Bytes/s through the ports that the members of one node have to themselves, `bandwidth` each.

    A port is a member's own if no other member is as near; all own ports that lie behind the same link out of
    the member get no more than the route there carries.
    """
    home = topology.device(members[0]).node
    node = {device.name: device for device in topology.devices if device.node == home}
    fabric = topology.fabric if topology.nodes == 1 else None
    leaving = dict.fromkeys(link.src for link in topology.links if link.src in node and link.dst not in node)
    past = {name for name, device in node.items() if not device.holds}
    wanted, carried = Counter[tuple[str, str]](), dict[tuple[str, str], Fraction]()
    for port in fabric.ports if fabric else leaving:
        route = _nearest(topology, members, port, past)
        if route:
            key = route[0].src, route[0].dst
            wanted[key] += 1
            carried[key] = max(carried.get(key, Fraction(0)), min(map(_share, route)))
    return sum((min(count * bandwidth, carried[key]) for key, count in wanted.items()), start=Fraction(0))


def _nearest(topology: Topology, members: Sequence[str], port: str, past: set[str]) -> list[Link]:
    """The route to a port, past devices of `past`, from the member that is nearest; empty if several are."""
    routes = list[list[Link]]()
    for name in {*members} - {port}:
        with suppress(InfeasibleError):
            route = topology.router.route(topology.index[name], topology.index[port])
            routes.append([topology.links[number] for number in route])
    near = sorted((route for route in routes if past.issuperset(link.src for link in route[1:])), key=len)
    return near[0] if len(near) == 1 or (near and len(near[0]) < len(near[1])) else []
