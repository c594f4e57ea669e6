"""Common mistakes in machine files, as a list of rules, each with a name and a cure.

An error makes answers impossible or meaningless; a warning marks what is legal but usually a slip. Rules look at
the machine as a collective would use it by default. (The idea of a listable family of checks: PyPSA's consistency
checks.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from blinksim.errors import BlinksimError
from blinksim.topology.elements import GPU_KINDS, Link
from blinksim.units import format_rate

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

FORWARDERS = ("switch", "pcie", "fabric")
SLOWEST, FASTEST = 10**8, 4 * 10**12
"""Bytes/s of a link's direction that hardware plausibly has: 0.1 GB/s to 4 TB/s."""


@dataclass(frozen=True)
class Finding:
    """One breach of a rule.

    Attributes
    ----------
    rule : str
        The rule's name.
    severity : str
        ``error`` or ``warning``.
    message : str
        What is wrong and where.
    cure : str
        What to do about it.

    Examples
    --------
    >>> import blinksim as bs
    >>> (finding,) = bs.check(bs.load("dgx1-v100").replace("nvlink", latency=0, overhead=0))
    >>> finding.severity, finding.cure
    ('warning', 'give latency or overhead; without them small sizes take no time')
    """

    rule: str
    severity: str
    message: str
    cure: str


@dataclass(frozen=True)
class Rule:
    """A check by name. doc: what must hold, in a line; function: one message per breach; cure: what to do."""

    name: str
    severity: str
    doc: str
    cure: str
    function: Callable[[Topology], Iterable[str]]


RULES: dict[str, Rule] = {}


def _rule(name: str, severity: str, cure: str) -> Callable[[Callable[[Topology], Iterable[str]]], None]:
    def register(function: Callable[[Topology], Iterable[str]]) -> None:
        RULES[name] = Rule(name, severity, (function.__doc__ or "").strip(), cure, function)

    return register


def check(topology: Topology) -> list[Finding]:
    """What the rules find, errors first, else in the order of `RULES`; at most one finding per rule and message."""
    found = [
        Finding(rule.name, rule.severity, message, rule.cure)
        for rule in RULES.values()
        for message in dict.fromkeys(rule.function(topology))
    ]
    return sorted(found, key=lambda finding: finding.severity != "error")


def _used(topology: Topology) -> Topology:
    """The machine over its default links; as it is if it has no members."""
    return topology.select(connected=False) if topology.members else topology


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:6]) + (f" and {len(every) - 6} more" if len(every) > 6 else "")


@_rule("members-exist", "error", "add devices of kind gpu or tile, or name others that can hold data")
def _members_exist(topology: Topology) -> Iterator[str]:
    """Some device can hold a rank's data."""
    if not topology.members:
        yield "no device can hold data, so there are no members"


@_rule("members-hold-data", "warning", "give GPUs the ability hold, and leave it out elsewhere, or list members")
def _members_hold_data(topology: Topology) -> Iterator[str]:
    """GPUs and tiles hold data, and nothing else does."""
    relays = set(topology.relays)
    mute = [d.name for d in topology.devices if d.kind in GPU_KINDS and not d.holds and d.name not in relays]
    if mute:
        yield f"{_listed(mute)} cannot hold data and will never be a member"
    odd = [name for name in topology.members if topology.device(name).kind not in GPU_KINDS]
    if odd:
        yield f"{_listed(odd)} will hold a rank, though neither GPU nor tile"


@_rule("members-connected", "error", "add the missing links, or name the link classes that join the members")
def _members_connected(topology: Topology) -> Iterator[str]:
    """The default links connect every member with every other, both ways."""
    try:
        if topology.members:
            topology.select()
    except BlinksimError as error:
        yield str(error)


@_rule("replicas-connected", "error", "add to inter_node_links the classes between the GPUs and the fabric's ports")
def _replicas_connected(topology: Topology) -> Iterator[str]:
    """Two nodes joined by the machine's own fabric are connected by the default links."""
    if topology.fabric is None or topology.nodes > 1 or not topology.members:
        return
    if any(port not in topology.index for port in topology.fabric.ports) or len(_used(topology).components()) > 1:
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


@_rule("way-out", "warning", "link it to a network interface, as the others are, or see which link was forgotten")
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
        yield f"{_listed(lost)} without a way to the fabric of {'its' if len(lost) == 1 else 'their'} own"


@_rule(
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
        yield f"{_listed(twice)}, linked to each other, both lead to the fabric"
    groups: dict[frozenset[str], list[str]] = {}
    for name, lanes in exits.items():
        if kind[name] == "nic" and lanes > 1 and near[name]:
            groups.setdefault(frozenset(near[name]), []).append(name)
    double = [names for names in groups.values() if len(names) == exits[names[0]]]
    if double:
        names = double[0]
        yield (
            f"{_listed(names)}, beside each other, have {exits[names[0]]} lanes of the fabric each, "
            f"as many as they are: {len(names) * exits[names[0]]} network interfaces in place of {len(names)}?"
        )


@_rule("fabric-ports-exist", "error", "name devices of the node as ports of its fabric")
def _fabric_ports(topology: Topology) -> Iterator[str]:
    """Every port of the fabric is a device of the node."""
    missing = [port for port in (topology.fabric.ports if topology.fabric else ()) if port not in topology.index]
    if missing:
        yield f"the fabric's ports {_listed(missing)} are no devices"


@_rule("collective-links-exist", "error", "correct the spelling, or add links of this class")
def _collective_links(topology: Topology) -> Iterator[str]:
    """Every class in collective_links occurs."""
    for kind in topology.collective_links:
        if kind not in topology.link_classes:
            yield f"collective_links names {kind}, and no link has this class"


@_rule("inter-node-links-exist", "error", "correct the spelling, or add such links or a fabric that makes them")
def _inter_node_links(topology: Topology) -> Iterator[str]:
    """Every class in inter_node_links occurs, or is the fabric's."""
    for kind in topology.inter_node_links:
        if kind not in topology.link_classes and not (topology.fabric and topology.fabric.kind == kind):
            yield f"inter_node_links names {kind}, and neither link nor fabric has this class"


@_rule("reserved-name", "error", "choose another name for the link class; all means every class")
def _reserved_name(topology: Topology) -> Iterator[str]:
    """No link class has a name that the command line uses for something else."""
    if "all" in topology.link_classes:
        yield "a link class is called all"


@_rule("node-numbers", "error", "number the nodes from 0 without gaps, fabric switches -1")
def _node_numbers(topology: Topology) -> Iterator[str]:
    """The members sit in nodes 0 to nodes - 1, some in each; what joins nodes has the number -1."""
    there = {topology.device(name).node for name in topology.members}
    empty = [str(number) for number in range(topology.nodes) if number not in there]
    if there and empty:
        yield f"no member in node {_listed(empty)} of {topology.nodes}"
    outside = [d.name for d in topology.devices if not -1 <= d.node < topology.nodes]
    if outside:
        yield f"{_listed(outside)} in a node beyond 0 to {topology.nodes - 1}"


@_rule("bus-pair", "error", "give a bus two links or more of equal bandwidth, or drop the bus")
def _bus_pair(topology: Topology) -> Iterator[str]:
    """A bus joins two links or more, all of the same bandwidth, which is the bus's."""
    buses: dict[str, list[Link]] = {}
    for link in topology.links:
        if link.bus is not None:
            buses.setdefault(link.bus, []).append(link)
    for bus, links in buses.items():
        if len(links) < 2:
            yield f"bus {bus} has the one link {links[0].name}"
        elif len({link.bandwidth for link in links}) > 1:
            yield f"bus {bus} has links of {_listed(sorted({format_rate(link.bandwidth) for link in links}))}"


@_rule("link-both-ways", "warning", "add or mend the other direction, unless the link really is one-way")
def _both_ways(topology: Topology) -> Iterator[str]:
    """Every link has a partner of its class and bandwidth in the other direction."""
    by_key = {link.key: link for link in topology.links}
    lonely, uneven = [], []
    for link in topology.links:
        back = by_key.get((link.dst, link.src, link.kind))
        if back is None:
            lonely.append(link.name)
        elif back.bandwidth < link.bandwidth:
            uneven.append(f"{link.name} {format_rate(link.bandwidth)}, back {format_rate(back.bandwidth)}")
    if lonely:
        yield f"no way back beside {_listed(lonely)}"
    if uneven:
        yield f"unequal directions: {_listed(uneven)}"


@_rule("forwarder-balance", "warning", "give it equal bandwidth in and out; bounds are then exact")
def _forwarder_balance(topology: Topology) -> Iterator[str]:
    """What only forwards can send as much as it can receive."""
    used = _used(topology)
    net = {device.name: Fraction(0) for device in used.devices}
    for link in used.links:
        if link.bus is None:
            net[link.src] += link.bandwidth
            net[link.dst] -= link.bandwidth
    odd = [d.name for d in used.devices if not d.holds and net[d.name]]
    if odd:
        yield f"{_listed(odd)}: bandwidth in and out differ"


@_rule("isolated-device", "warning", "link it or leave it out")
def _isolated(topology: Topology) -> Iterator[str]:
    """Every device has a link."""
    linked = {end for link in topology.links for end in (link.src, link.dst)}
    alone = [d.name for d in topology.devices if d.name not in linked]
    if alone and len(topology.devices) > 1:
        yield f"{_listed(alone)} without any link"


@_rule("dead-end-forwarder", "warning", "add the links that are missing behind it, or leave it out")
def _dead_end(topology: Topology) -> Iterator[str]:
    """A switch of any sort lies between two devices at least."""
    neighbours: dict[str, set[str]] = {}
    for link in topology.links:
        neighbours.setdefault(link.src, set()).add(link.dst)
        neighbours.setdefault(link.dst, set()).add(link.src)
    ports = set(topology.fabric.ports) if topology.fabric else set()
    found = [
        d.name
        for d in topology.devices
        if d.kind in FORWARDERS and len(neighbours.get(d.name, ())) == 1 and d.name not in ports
    ]
    if found:
        yield f"{_listed(found)} linked to one device only"


@_rule("plausible-bandwidth", "warning", "mind GB/s against Gb/s, and that bandwidth is per lane and direction")
def _plausible(topology: Topology) -> Iterator[str]:
    """Links have between 0.1 GB/s and 4 TB/s (between fabric switches more)."""
    node = {device.name: device.node for device in topology.devices}
    for link in topology.links:
        trunk = node[link.src] < 0 and node[link.dst] < 0
        if link.bandwidth < SLOWEST or (link.bandwidth > FASTEST and not trunk):
            yield f"{link.kind} links of {format_rate(link.bandwidth)}"


@_rule("uneven-class", "warning", "write parallel links as lanes, and give links of another sort a class of their own")
def _uneven_class(topology: Topology) -> Iterator[str]:
    """Within a node, a lane of a class has one bandwidth."""
    node = {device.name: device.node for device in topology.devices}
    lanes: dict[str, Counter[str]] = {}
    for link in topology.links:
        if node[link.src] >= 0 and node[link.dst] >= 0:
            lanes.setdefault(link.kind, Counter())[format_rate(link.lane_bandwidth)] += 1
    for kind, counts in lanes.items():
        if len(counts) > 1:
            yield f"{kind} lanes of {_listed(f'{rate} ({times} links)' for rate, times in counts.most_common())}"


@_rule("missing-link", "warning", "see whether a link between them was forgotten")
def _missing_link(topology: Topology) -> Iterator[str]:
    """No two GPUs alone have less bandwidth over a default class than all others, as after one forgotten link."""
    used = _used(topology)
    for kind in used.link_classes:
        total = dict.fromkeys(used.members, Fraction(0))
        for link in used.links:
            if link.kind == kind and link.src in total:
                total[link.src] += link.bandwidth
        most, times = Counter(total.values()).most_common(1)[0] if total else (Fraction(0), 0)
        few = [name for name in used.members if total[name] != most]
        if 0 < len(few) <= 2 and times >= 4 and all(total[name] < most for name in few):
            yield f"{' and '.join(few)} have less {kind} bandwidth than the other {times}"


@_rule("parallel-classes", "warning", "use one class at a time, or check that these are separate wires")
def _parallel(topology: Topology) -> Iterator[str]:
    """No pair is linked by two of the default classes, whose bandwidth would then add up."""
    seen: dict[tuple[str, str], str] = {}
    for link in _used(topology).links:
        other = seen.setdefault((link.src, link.dst), link.kind)
        if other != link.kind:
            yield f"{other} and {link.kind} links join the same devices, such as {link.src} and {link.dst}"
            return


@_rule("private-pcie", "warning", "write PCIe as a tree through switches and CPUs, which GPUs share")
def _private_pcie(topology: Topology) -> Iterator[str]:
    """PCIe links do not join two GPUs directly."""
    for link in topology.links:
        if "pcie" in link.kind.lower() and topology.device(link.src).holds and topology.device(link.dst).holds:
            yield f"{link.kind} links join GPUs directly, such as {link.src} and {link.dst}"
            return


@_rule("latency-given", "warning", "give latency or overhead; without them small sizes take no time")
def _latency(topology: Topology) -> Iterator[str]:
    """Every link class has a latency or an overhead."""
    timed = {link.kind for link in topology.links if link.latency or link.overhead}
    missing = [kind for kind in topology.link_classes if kind not in timed]
    if missing:
        yield f"no latency and no overhead on {_listed(missing)} links"


@_rule("in-network", "warning", "see what the page on machine files says about switches that multicast and reduce")
def _in_network(topology: Topology) -> Iterator[str]:
    """Only switches multicast and reduce, and facts about that have a source."""
    yield from (doubt for device in topology.devices for doubt in device.doubts())


@_rule("symmetric-generators", "warning", "correct or drop these symmetries; they are ignored")
def _symmetric(topology: Topology) -> Iterator[str]:
    """The symmetries given map the machine onto itself."""
    if not topology.symmetries:
        return
    from blinksim.topology import symmetry

    wrong = len(topology.symmetries) - len(symmetry.automorphisms(topology))
    if wrong:
        yield f"{wrong} of {len(topology.symmetries)} symmetries do not map the machine onto itself"
