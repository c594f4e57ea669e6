"""Why a machine is no cluster of alike hosts, link by link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blinksim.topology.graph import Link, Topology


class NotAlikeError(Exception):
    """Why a machine is no cluster of alike hosts. Not an error for users: `alike_hosts.read_hosts` catches it."""


# The ends of a link in local numbers (or a device of the fabric), its kind and its number.
_Entry = tuple[int, int, str, int]


@dataclass
class _Host:
    """The devices of one host, and its links: inside, from the fabric down into it, and up out of it."""

    devices: list[int]
    inner: list[_Entry] = field(default_factory=list)
    down: list[_Entry] = field(default_factory=list)
    up: list[_Entry] = field(default_factory=list)

    @property
    def links(self) -> tuple[list[_Entry], list[_Entry], list[_Entry]]:
        return self.inner, self.down, self.up


def why_unlike(topology: Topology) -> str:
    """The first reason that is found."""
    try:
        return _differing(topology, _grouped(topology))
    except NotAlikeError as error:
        return str(error)


def _grouped(topology: Topology) -> list[_Host]:
    """Devices and links by host, in local numbers, the links of each host sorted; raises `NotAlikeError`."""
    hosts: dict[int, _Host] = {}
    place: dict[int, tuple[_Host, int]] = {}
    for number, device in enumerate(topology.devices):
        if device.capacity is not None:
            raise NotAlikeError(f"{device.name} has a capacity of its own")
        if device.node >= 0:
            host = hosts.setdefault(device.node, _Host([]))
            place[number] = (host, len(host.devices))
            host.devices.append(number)
    if len(hosts) < 2:
        raise NotAlikeError("there is only one host")
    index = topology.index
    inner: list[tuple[int, int]] = []
    for number, link in enumerate(topology.links):
        if link.bus is not None:
            raise NotAlikeError(f"{link.name} shares a bus")
        a, b = index[link.src], index[link.dst]
        if a in place or b in place:
            _add_link(place, a, b, link, number)
        else:
            inner.append((a, b))
    if len(set(inner)) < len(inner):
        raise NotAlikeError("switches of the fabric are joined by parallel links")
    # Hosts without a member, such as those that are out of order, only stand there.
    ranked = {index[name] for name in topology.members}
    used = [host for host in hosts.values() if not ranked.isdisjoint(host.devices)]
    if len(used) < 2:
        raise NotAlikeError("there is only one host")
    for host in used:
        for part in host.links:
            part.sort()
    return used


def _add_link(place: Mapping[int, tuple[_Host, int]], a: int, b: int, link: Link, number: int) -> None:
    """Put a link from device a to device b among those of its host; raises `NotAlikeError` if it belongs to two."""
    tail, head = place.get(a), place.get(b)
    if tail and head:
        if tail[0] is not head[0]:
            raise NotAlikeError(f"{link.name} joins two hosts without a fabric between them")
        tail[0].inner.append((tail[1], head[1], link.kind, number))
    elif head:
        head[0].down.append((head[1], a, link.kind, number))
    elif tail:
        tail[0].up.append((tail[1], b, link.kind, number))


def _differing(topology: Topology, hosts: Sequence[_Host]) -> str:
    """How hosts differ."""
    ranked = {topology.index[name] for name in topology.members}
    first, *others = hosts
    members, wiring = _members(first, ranked), _wiring(first)
    node = topology.devices[first.devices[0]].node
    for host in others:
        other = topology.devices[host.devices[0]].node
        if len(host.devices) != len(first.devices):
            return f"node {other} has {len(host.devices)} devices, node {node} has {len(first.devices)}"
        if _wiring(host) != wiring:
            return f"the links of node {other} differ from those of node {node}"
        if _members(host, ranked) != members:
            return f"node {other} has other members than node {node}"
    # A port is one link each way between the same two devices.
    if not first.down or [entry[:2] for entry in first.down] != [entry[:2] for entry in first.up]:
        return f"node {node} is not joined to the fabric by pairs of links, one each way"
    return "its hosts differ"


def _wiring(host: _Host) -> list[list[tuple[int, int, str]]]:
    """The links of a host but for their numbers; a switch of the fabric goes by the place where it comes first."""
    switch: dict[int, int] = {}
    for _, end, *_ in (*host.down, *host.up):
        switch.setdefault(end, len(switch))
    ports = [[(local, switch[end], kind) for local, end, kind, _ in part] for part in (host.down, host.up)]
    return [[entry[:3] for entry in host.inner], *ports]


def _members(host: _Host, ranked: set[int]) -> tuple[int, ...]:
    """The local numbers of the devices that hold a rank."""
    return tuple(local for local, number in enumerate(host.devices) if number in ranked)
