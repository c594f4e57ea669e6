"""Rules about devices: who holds data, who reaches whom, and the way out of a node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blinksim.errors import BlinksimError
from blinksim.topology.elements import GPU_KINDS
from blinksim.topology.rules.rule import Breach, listed, rule, used

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology


@rule("members-exist", "error", "add devices of kind gpu or tile, or name others that can hold data")
def _members_exist(topology: Topology) -> Iterator[str]:
    """Some device can hold a rank's data."""
    if not topology.members:
        yield "no device can hold data, so there are no members"


@rule("members-hold-data", "warning", "give GPUs the ability hold, and leave it out elsewhere, or list members")
def _members_hold_data(topology: Topology) -> Iterator[str]:
    """GPUs and tiles hold data, and nothing else does."""
    relays = set(topology.relays)
    mute = [d.name for d in topology.devices if d.kind in GPU_KINDS and not d.holds and d.name not in relays]
    if mute:
        yield f"{listed(mute)} cannot hold data and will never be a member"
    odd = [name for name in topology.members if topology.device(name).kind not in GPU_KINDS]
    if odd:
        yield f"{listed(odd)} will hold a rank, though neither GPU nor tile"


@rule("members-connected", "error", "add the missing links, or name the link classes that join the members")
def _members_connected(topology: Topology) -> Iterator[str]:
    """The default links connect every member with every other, both ways."""
    try:
        if topology.members:
            topology.select()
    except BlinksimError as error:
        yield str(error)


@rule("replicas-connected", "error", "add to inter_node_links the classes between the GPUs and the fabric's ports")
def _replicas_connected(topology: Topology) -> Iterator[str]:
    """Two nodes joined by the machine's own fabric are connected by the default links."""
    if topology.fabric is None or topology.nodes > 1 or not topology.members:
        return
    if any(port not in topology.index for port in topology.fabric.ports) or len(used(topology).components()) > 1:
        return  # other rules say so
    try:
        topology.replicate(2).select()
    except BlinksimError as error:
        yield f"two nodes: {error}"


def _exits(topology: Topology) -> dict[str, int]:
    """The devices of nodes that a fabric's links leave from, with the lanes of these."""
    if topology.fabric is not None and topology.nodes == 1:
        return {port: topology.fabric.lanes for port in topology.fabric.ports if port in topology.index}
    outside = {device.name for device in topology.devices if device.node < 0}
    return {link.src: link.lanes for link in topology.links if link.dst in outside and link.src not in outside}


def _inside(topology: Topology) -> dict[str, set[str]]:
    """The devices of the same node that each device is linked to."""
    near: dict[str, set[str]] = {device.name: set() for device in topology.devices}
    for link in topology.links:
        if topology.device(link.src).node == topology.device(link.dst).node:
            near[link.src].add(link.dst)
            near[link.dst].add(link.src)
    return near


@rule("way-out", "warning", "link it to a network interface, as the others are, or see which link was forgotten")
def _way_out(topology: Topology) -> Iterator[str]:
    """Where most GPUs reach the fabric without passing another GPU, all do."""
    exits, near = _exits(topology), _inside(topology)
    holders = {device.name for device in topology.devices if device.holds}
    lost = []
    for name in topology.members if exits else ():
        seen, todo = {name}, [name]
        while todo and not seen & exits.keys():
            fresh = near[todo.pop()] - holders - seen
            seen |= fresh
            todo += fresh
        if not seen & exits.keys():
            lost.append(name)
    if 0 < len(lost) < len(topology.members) / 2:
        yield f"{listed(lost)} without a way to the fabric of {'its' if len(lost) == 1 else 'their'} own"


@rule(
    "nic-once", "warning", "describe it once: as a device with one lane of the fabric, or as so many lanes of one port"
)
def _nic_once(topology: Topology) -> Iterator[str]:
    """No network interface is described twice, as a device and as lanes or as a link of the GPU's own."""
    exits, near = _exits(topology), _inside(topology)
    kind = {device.name: device.kind for device in topology.devices}
    twice = []
    for name in exits:
        beside = near[name].union(*(near[other] for other in near[name] if kind[other] == "pcie"))
        nics = sorted(other for other in beside - {name} if other in exits and kind[other] == "nic")
        if kind[name] in GPU_KINDS and nics:
            twice.append(f"{name} and {nics[0]}")
    if twice:
        yield f"{listed(twice)}, linked to each other, both lead to the fabric"
    groups: dict[frozenset[str], list[str]] = {}
    for name, lanes in exits.items():
        if kind[name] == "nic" and lanes > 1 and near[name]:
            groups.setdefault(frozenset(near[name]), []).append(name)
    double = [names for names in groups.values() if len(names) == exits[names[0]]]
    if double:
        names = double[0]
        yield (
            f"{listed(names)}, beside each other, have {exits[names[0]]} lanes of the fabric each, "
            f"as many as they are: {len(names) * exits[names[0]]} network interfaces in place of {len(names)}?"
        )


@rule("fabric-ports-exist", "error", "name devices of the node as ports of its fabric")
def _fabric_ports(topology: Topology) -> Iterator[Breach]:
    """Every port of the fabric is a device of the node."""
    missing = [port for port in (topology.fabric.ports if topology.fabric else ()) if port not in topology.index]
    if missing:
        yield Breach(f"the fabric's ports {listed(missing)} are no devices", ("fabric", "ports"))


@rule("node-numbers", "error", "number the nodes from 0 without gaps, fabric switches -1")
def _node_numbers(topology: Topology) -> Iterator[str]:
    """The members sit in nodes 0 to nodes - 1, some in each; what joins nodes has the number -1."""
    there = {topology.device(name).node for name in topology.members}
    empty = [str(number) for number in range(topology.nodes) if number not in there]
    if there and empty:
        yield f"no member in node {listed(empty)} of {topology.nodes}"
    outside = [d.name for d in topology.devices if not -1 <= d.node < topology.nodes]
    if outside:
        yield f"{listed(outside)} in a node beyond 0 to {topology.nodes - 1}"
