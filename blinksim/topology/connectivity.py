"""Which members can reach each other, and what would join those that cannot.

Two members belong together if each can reach the other along directed links, so the groups are the strongly connected
components, found here in linear time (S. R. Kosaraju, in Aho, Hopcroft and Ullman, Data Structures and Algorithms,
1983, section 6.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blinksim.errors import InfeasibleError
from blinksim.structures.union_find import joined_labels

# Links from which on arrays are quicker than lists.
_MANY = 20_000

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.topology.graph import Topology


def components(topology: Topology) -> list[list[str]]:
    """The members grouped by what can reach each other both ways, groups and members in rank order."""
    index, label = topology.index, _components(topology)
    groups: dict[int, list[str]] = {}
    for name in topology.members:
        groups.setdefault(label[index[name]], []).append(name)
    return list(groups.values())


def unserved(topology: Topology, collective: Collective | None = None) -> list[str]:
    """The members that some data cannot reach or leave, in rank order; empty if the collective is possible.

    From the root of a broadcast or scatter, links must lead to every member; to that of a reduce or gather, from every
    member; otherwise, and without a collective, between all members both ways.
    """
    label = _components(topology)
    places = topology.member_places.tolist()
    if collective is not None:
        collective.check_ranks(topology.ranks)
    if len({label[place] for place in places}) == 1:
        return []
    if collective is None or not collective.rooted:
        first = label[places[0]]
        return [name for name, place in zip(topology.members, places, strict=True) if label[place] != first]
    index, ahead = topology.index, [list[int]() for _ in topology.devices]
    for link in topology.links:
        a, b = (link.dst, link.src) if collective.collects else (link.src, link.dst)
        ahead[index[a]].append(index[b])
    stack = [index[topology.members[collective.root]]]
    seen = set(stack)
    while stack:
        new = [other for other in ahead[stack.pop()] if other not in seen]
        seen.update(new)
        stack += new
    return [name for name in topology.members if index[name] not in seen]


def require_served(topology: Topology, collective: Collective) -> None:
    """Raises `InfeasibleError` if the links do not lead the data of `collective` to where it must be."""
    lost = unserved(topology, collective)
    if lost:
        listed = " ".join(lost[:8]) + (" …" if len(lost) > 8 else "")
        raise InfeasibleError(f"{topology.name}: the links do not carry the data of {collective} to or from {listed}")


def in_reach(topology: Topology) -> frozenset[str]:
    """The devices that can reach some member, and it them."""
    index, label = topology.index, _components(topology)
    reached = {label[index[name]] for name in topology.members}
    return frozenset(name for name, place in index.items() if label[place] in reached)


def capable_relays(topology: Topology) -> list[str]:
    """The relays in reach that can do all that a member can, in the order of the devices."""
    reached = in_reach(topology) - set(topology.members)
    return [
        device.name
        for device in topology.devices
        if not device.in_network and "reduce" in device.can and "multicast" in device.can and device.name in reached
    ]


def branching_relays(topology: Topology) -> list[str]:
    """Those of the capable relays at which trees can gain by branching, in the order of the devices.

    Not where two ways meet or fewer, dead ends aside: a tree that branches there may as well pass, or end elsewhere.
    """
    around: dict[str, set[str]] = {device.name: set() for device in topology.devices}
    for link in topology.links:
        around[link.src].add(link.dst)
        around[link.dst].add(link.src)
    ends = {*topology.members, *capable_relays(topology)}
    # What only forwards may lead anywhere.
    plain = {name for name in ends.difference(topology.members) if around[name] <= ends}
    stack = sorted(plain)
    while stack:
        name = stack.pop()
        if name in plain and len(around[name]) < 2:
            for other in around.pop(name):
                around[other].remove(name)
                stack.append(other)
            plain.remove(name)
            ends.remove(name)
    return [name for name in capable_relays(topology) if name in ends and (name not in plain or len(around[name]) > 2)]


def _components(topology: Topology) -> list[int]:
    """For each device a number that it shares with its strongly connected component."""
    label = _both_ways(topology) if len(topology.links) > _MANY else None
    if label is not None:
        return label
    index = topology.index
    ahead: list[list[int]] = [[] for _ in topology.devices]
    back: list[list[int]] = [[] for _ in topology.devices]
    for link in topology.links:
        a, b = index[link.src], index[link.dst]
        ahead[a].append(b)
        back[b].append(a)
    return _labels(back, _finishing_order(ahead))


def _both_ways(topology: Topology) -> list[int] | None:
    """As `_components` where every link has one that goes back, so that arrays will do; None elsewhere."""
    table = topology.link_columns
    if not table.goes_back:
        return None
    label: list[int] = joined_labels(len(topology.devices), table.src, table.dst).tolist()
    return label


def _finishing_order(ahead: list[list[int]]) -> list[int]:
    """The vertices in the order in which a depth-first search leaves them."""
    seen, order = [False] * len(ahead), []
    for start in range(len(ahead)):
        if seen[start]:
            continue
        seen[start] = True
        stack = [(start, iter(ahead[start]))]
        while stack:
            vertex, neighbours = stack[-1]
            for other in neighbours:
                if not seen[other]:
                    seen[other] = True
                    stack.append((other, iter(ahead[other])))
                    break
            else:
                stack.pop()
                order.append(vertex)
    return order


def _labels(back: list[list[int]], order: list[int]) -> list[int]:
    """For each vertex a number that it shares with its strongly connected component."""
    label = [-1] * len(back)
    for start in reversed(order):
        if label[start] >= 0:
            continue
        label[start] = start
        stack = [start]
        while stack:
            for other in back[stack.pop()]:
                if label[other] < 0:
                    label[other] = start
                    stack.append(other)
    return label


def require_connected(
    part: Topology, whole: Topology, classes: Sequence[str], collective: Collective | None = None
) -> None:
    """Raises `InfeasibleError` unless the members of `part`, selected from `whole` by link `classes`, are connected.

    With a collective, as far as it needs them to be (`unserved`).

    The message lists the groups of members and whatever would connect them: further link classes, or idle GPUs that
    forward.
    """
    if not unserved(part, collective):
        return
    groups = components(part)
    listed = [" ".join(group[:8]) + (" …" if len(group) > 8 else "") for group in groups]
    parts = " | ".join(listed[:8]) + (f" | … ({len(groups)} groups)" if len(groups) > 8 else "")

    def joins(links: Sequence[str], relays: Sequence[str]) -> bool:
        return not unserved(whole.select(part.members, relays, links, connected=False), collective)

    ways = []
    others = [kind for kind in whole.link_classes if kind not in classes]
    enough = [kind for kind in others if joins([*classes, kind], part.relays)]
    if enough:
        ways.append(f"links={','.join([*classes, enough[0]])}")
    elif others and joins(whole.link_classes, part.relays):
        ways.append(f"links=all (adds {', '.join(others)})")
    members = set(part.members)
    idle = [d.name for d in whole.devices if d.holds and d.name not in members]
    if idle and joins(classes, idle):
        ways.append("relays=idle (forwards through GPUs that are not members)")
    if not ways and idle and others and joins(whole.link_classes, idle):
        ways.append("links=all together with relays=idle")
    cure = f"{' or '.join(ways)} would connect them" if ways else "no link or idle GPU of this machine connects them"
    used = f"{', '.join(classes)} {'does' if len(classes) == 1 else 'do'}" if classes else "an empty set of links does"
    raise InfeasibleError(f"{part.name}: {used} not connect the members: {parts}; {cure}")
