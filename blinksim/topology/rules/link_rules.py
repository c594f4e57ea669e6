"""Rules about links: their classes, bandwidths and latencies, and what they join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from blinksim.topology.elements import UNLIMITED, Link
from blinksim.topology.rules.rule import Breach, listed, rule, used
from blinksim.units import format_rate, format_time

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

FORWARDERS = ("switch", "pcie", "fabric")
SLOWEST, FASTEST = 10**8, 4 * 10**12
"""Bytes/s of a link's direction that hardware plausibly has: 0.1 GB/s to 4 TB/s."""
LONGEST = 1e-3
"""Seconds of latency that a link plausibly has at most, over a slow network too."""


@rule("collective-links-exist", "error", "correct the spelling, or add links of this class")
def _collective_links(topology: Topology) -> Iterator[Breach]:
    """Every class in collective_links occurs."""
    for kind in topology.collective_links:
        if kind not in topology.link_classes:
            yield Breach(f"collective_links names {kind}, and no link has this class", ("collective_links",))


@rule("inter-node-links-exist", "error", "correct the spelling, or add such links or a fabric that makes them")
def _inter_node_links(topology: Topology) -> Iterator[Breach]:
    """Every class in inter_node_links occurs, or is the fabric's."""
    for kind in topology.inter_node_links:
        if kind not in topology.link_classes and not (topology.fabric and topology.fabric.kind == kind):
            message = f"inter_node_links names {kind}, and neither link nor fabric has this class"
            yield Breach(message, ("inter_node_links",))


@rule("reserved-name", "error", "choose another name for the link class; all means every class")
def _reserved_name(topology: Topology) -> Iterator[Breach]:
    """No link class has a name that the command line uses for something else."""
    if "all" in topology.link_classes:
        yield Breach("a link class is called all", ("link_classes", "all"))


@rule("bus-pair", "error", "give a bus two links or more of equal bandwidth, or drop the bus")
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
            yield f"bus {bus} has links of {listed(sorted({format_rate(link.bandwidth) for link in links}))}"


@rule("link-both-ways", "warning", "add or mend the other direction, unless the link really is one-way")
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
        yield f"no way back beside {listed(lonely)}"
    if uneven:
        yield f"unequal directions: {listed(uneven)}"


@rule("forwarder-balance", "warning", "give it equal bandwidth in and out; bounds are then exact")
def _forwarder_balance(topology: Topology) -> Iterator[str]:
    """What only forwards can send as much as it can receive."""
    part = used(topology)
    net = {device.name: Fraction(0) for device in part.devices}
    for link in part.links:
        if link.bus is None:
            net[link.src] += link.bandwidth
            net[link.dst] -= link.bandwidth
    odd = [d.name for d in part.devices if not d.holds and net[d.name]]
    if odd:
        yield f"{listed(odd)}: bandwidth in and out differ"


@rule("isolated-device", "warning", "link it or leave it out")
def _isolated(topology: Topology) -> Iterator[str]:
    """Every device has a link."""
    linked = {end for link in topology.links for end in (link.src, link.dst)}
    alone = [d.name for d in topology.devices if d.name not in linked]
    if alone and len(topology.devices) > 1:
        yield f"{listed(alone)} without any link"


@rule("dead-end-forwarder", "warning", "add the links that are missing behind it, or leave it out")
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
        yield f"{listed(found)} linked to one device only"


@rule("plausible-bandwidth", "warning", "mind GB/s against Gb/s, and that bandwidth is per lane and direction")
def _plausible(topology: Topology) -> Iterator[Breach]:
    """Links have between 0.1 GB/s and 4 TB/s (between fabric switches more, and without a limit)."""
    node = {device.name: device.node for device in topology.devices}
    for link in topology.links:
        free = link.kind == UNLIMITED or (node[link.src] < 0 and node[link.dst] < 0)
        if link.bandwidth < SLOWEST or (link.bandwidth > FASTEST and not free):
            yield Breach(f"{link.kind} links of {format_rate(link.bandwidth)}", ("link_classes", link.kind))


@rule("plausible-latency", "warning", "mind us against ms, and that both are of one link and one message")
def _plausible_latency(topology: Topology) -> Iterator[Breach]:
    """Links have a latency and an overhead of at most 1 ms."""
    for link in topology.links:
        for name, time in (("latency", link.latency), ("overhead", link.overhead)):
            if time > LONGEST:
                yield Breach(f"{link.kind} links with {name} {format_time(time)}", ("link_classes", link.kind, name))


@rule("uneven-class", "warning", "write parallel links as lanes, and give links of another sort a class of their own")
def _uneven_class(topology: Topology) -> Iterator[str]:
    """Within a node, a lane of a class has one bandwidth."""
    node = {device.name: device.node for device in topology.devices}
    lanes: dict[str, Counter[str]] = {}
    for link in topology.links:
        if node[link.src] >= 0 and node[link.dst] >= 0:
            lanes.setdefault(link.kind, Counter())[format_rate(link.lane_bandwidth)] += 1
    for kind, counts in lanes.items():
        if len(counts) > 1:
            yield f"{kind} lanes of {listed(f'{rate} ({times} links)' for rate, times in counts.most_common())}"


@rule("missing-link", "warning", "see whether a link between them was forgotten")
def _missing_link(topology: Topology) -> Iterator[str]:
    """No two GPUs alone have less bandwidth over a default class than all others, as after one forgotten link."""
    part = used(topology)
    for kind in part.link_classes:
        total = dict.fromkeys(part.members, Fraction(0))
        for link in part.links:
            if link.kind == kind and link.src in total:
                total[link.src] += link.bandwidth
        most, times = Counter(total.values()).most_common(1)[0] if total else (Fraction(0), 0)
        few = [name for name in part.members if total[name] != most]
        if 0 < len(few) <= 2 and times >= 4 and all(total[name] < most for name in few):
            have = "has" if len(few) == 1 else "have"
            yield f"{' and '.join(few)} {have} less {kind} bandwidth than the other {times}"


@rule("parallel-classes", "warning", "use one class at a time, or check that these are separate wires")
def _parallel(topology: Topology) -> Iterator[str]:
    """No pair is linked by two of the default classes, whose bandwidth would then add up."""
    seen: dict[tuple[str, str], str] = {}
    for link in used(topology).links:
        other = seen.setdefault((link.src, link.dst), link.kind)
        if other != link.kind:
            yield f"{other} and {link.kind} links join the same devices, such as {link.src} and {link.dst}"
            return


@rule("private-pcie", "warning", "write PCIe as a tree through switches and CPUs, which GPUs share")
def _private_pcie(topology: Topology) -> Iterator[str]:
    """PCIe links do not join two GPUs directly."""
    for link in topology.links:
        if "pcie" in link.kind.lower() and topology.device(link.src).holds and topology.device(link.dst).holds:
            yield f"{link.kind} links join GPUs directly, such as {link.src} and {link.dst}"
            return


@rule("latency-given", "warning", "give latency or overhead; without them small sizes take no time")
def _latency(topology: Topology) -> Iterator[Breach]:
    """Every link class has a latency or an overhead, but that of adapters and their own ports."""
    device = {one.name: one.kind for one in topology.devices}
    timed = {
        link.kind
        for link in topology.links
        if link.latency or link.overhead or {device[link.src], device[link.dst]} == {"nic"}
    }
    missing = [kind for kind in topology.link_classes if kind not in timed]
    if missing:
        yield Breach(f"no latency and no overhead on {listed(missing)} links", ("link_classes", missing[0]))
