"""Rules for machine files: common mistakes, each with a name and a cure.

An error makes answers impossible or meaningless; a warning marks what is legal but usually a slip. Rules look
at the machine as a collective would use it by default. (The idea of a listable family of checks: PyPSA's
consistency checks.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from blinksim import data_files
from blinksim.errors import BlinksimError, InputError, in_runs
from blinksim.graphs.connectivity import breadth_first, grouped, joined
from blinksim.results import count
from blinksim.textio.text_files import read_rows
from blinksim.topology.elements import GPU_KINDS, IN_NETWORK_FACTS, UNLIMITED
from blinksim.topology.selection import neighbours
from blinksim.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology


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
    place : str
        The file and line of the machine that it is about, such as ``mybox.yaml:41``; empty where no line is
        at fault.

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
    place: str = ""


class Breach(NamedTuple):
    """What a rule found. keys: those of a machine file, from the outermost, that lead to what is at fault."""

    message: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A check by name. doc: what must hold, in a line; function: what breaks it, one by one; cure: what to do."""

    name: str
    severity: str
    doc: str
    cure: str
    function: Callable[[Topology], Iterable[str | Breach]]


RULES: dict[str, Rule] = {}


def rule(name: str, severity: str, cure: str) -> Callable[[Callable[[Topology], Iterable[str | Breach]]], None]:
    """Registers what a function finds under a name; its docstring says what must hold."""

    def register(function: Callable[[Topology], Iterable[str | Breach]]) -> None:
        RULES[name] = Rule(name, severity, (function.__doc__ or "").strip(), cure, function)

    return register


def used(topology: Topology) -> Topology:
    """The machine over its default links; as it is if it has no members."""
    return topology.select(connected=False) if topology.members else topology


def rate_to_switches(topology: Topology) -> Fraction:
    """Bytes/s from the first member to switches, 0 if no link leads to one."""
    part = used(topology)
    switches = {device.name for device in part.devices if device.kind == "switch"}
    out = (link.bandwidth for link in part.links if link.src in part.members[:1] and link.dst in switches)
    return sum(out, Fraction(0))


def listed(names: Iterable[str]) -> str:
    """The names, the first six of many."""
    every = list(names)
    return ", ".join(every[:6]) + (f" and {len(every) - 6} more" if len(every) > 6 else "")


def least_first(
    rates: Sequence[tuple[Any, str]], form: str, words: Callable[[Any], str] = format_rate, best: bool = False
) -> tuple[list[str], int, str, str]:
    """The names with less than most have, how many have that, how much it is; and the few, the worst first.

    form: what they have in words, with % for how much. best: with less than the best has.
    """
    order: Callable[[tuple[Any, int]], Any] = itemgetter(0) if best else itemgetter(1, 0)
    most, others = max(Counter(rate for rate, _ in rates).items(), key=order, default=(0, 0))
    few = {name: rate for rate, name in rates if rate < most}
    alike = sorted(grouped((rate, name) for name, rate in few.items()).items())
    told = listed(f"{listed(names)}: {form.replace('%', words(rate))}" for rate, names in alike)
    return [*few], others, words(most), told


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
    if odd := [name for name in topology.members if topology.device(name).kind not in GPU_KINDS]:
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


@rule("way-out", "warning", "link it to a network interface, as the others are, or see which link was forgotten")
def _way_out(topology: Topology) -> Iterator[str]:
    """Where most GPUs reach the fabric without passing another GPU, all do."""
    exits, near = _exits(topology), neighbours(topology, inside=True)
    past = {place: beside.difference(topology.holders) for place, beside in near.items()}
    ways = {name: breadth_first(name, past.__getitem__) for name in topology.members}
    lost = [name for name in topology.members if exits.keys().isdisjoint(ways[name])]
    if 0 < len(lost) < len(topology.members) / 2:
        yield f"{listed(lost)} without a way to the fabric of {'its' if len(lost) == 1 else 'their'} own"


@rule(
    "nic-once", "warning", "describe it once: as a device with one lane of the fabric, or as so many lanes of one port"
)
def _nic_once(topology: Topology) -> Iterator[str]:
    """No network interface is described twice, as a device and as lanes or as a link of the GPU's own."""
    exits, near = _exits(topology), neighbours(topology, inside=True)
    kind = {device.name: device.kind for device in topology.devices}
    twice, ports = [], {name for name in exits if kind[name] == "nic"}
    for name in exits:
        beside = near[name].union(*(near[other] for other in near[name] if kind[other] == "pcie"))
        nics = sorted(beside & ports - {name})
        if kind[name] in GPU_KINDS and nics:
            twice.append(f"{name} and {nics[0]}")
    if twice:
        yield f"{listed(twice)}, linked to each other, both lead to the fabric"
    wide = (name for name, lanes in exits.items() if name in ports and lanes > 1 and near[name])
    groups = grouped((frozenset(near[name]), name) for name in wide)
    if double := [names for names in groups.values() if len(names) == exits[names[0]]]:
        names = double[0]
        said = f"{listed(names)}, beside each other, have {exits[names[0]]} lanes of the fabric each"
        question = f"{len(names) * exits[names[0]]} network interfaces in place of {len(names)}?"
        yield f"{said}, as many as they are: {question}"


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
    if outside := [d.name for d in topology.devices if not -1 <= d.node < topology.nodes]:
        yield f"{listed(outside)} in a node beyond 0 to {topology.nodes - 1}"


# Kinds of devices from GPUs to what joins nodes.
_INWARDS = ("gpu", "tile", "nic", "pcie", "cpu", "switch", "fabric")
FORWARDERS = ("switch", "pcie", "fabric")
# Bytes/s of a link's direction that hardware plausibly has: 0.1 GB/s to 4 TB/s.
SLOWEST, FASTEST = 10**8, 4 * 10**12
# Seconds of latency that a link plausibly has at most, over a slow network too.
LONGEST = 1e-3


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
    for bus, links in grouped((link.bus, link) for link in topology.links if link.bus is not None).items():
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
        if (back := by_key.get((link.dst, link.src, link.kind))) is None:
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
    if odd := [d.name for d in part.devices if not d.holds and net[d.name]]:
        yield f"{listed(odd)}: bandwidth in and out differ"


@rule("isolated-device", "warning", "link it or leave it out")
def _isolated(topology: Topology) -> Iterator[str]:
    """Every device has a link."""
    linked = topology.link_columns.touched(len(topology.devices))
    alone = [device.name for device, joined in zip(topology.devices, linked, strict=True) if not joined]
    if alone and len(topology.devices) > 1:
        yield f"{listed(alone)} without any link"


@rule("dead-end-forwarder", "warning", "add the links that are missing behind it, or leave it out")
def _dead_end(topology: Topology) -> Iterator[str]:
    """A switch of any sort lies between two devices at least."""
    near = neighbours(topology)
    ports = set(topology.fabric.ports) if topology.fabric else set()
    within = {d.name for d in topology.devices if d.kind in FORWARDERS} - ports
    if found := [name for name in near if name in within and len(near[name]) == 1]:
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


@rule("uneven-class", "warning", "see what has come down (lspci -vv, rdma link), or give it a class of its own")
def _uneven_class(topology: Topology) -> Iterator[str]:
    """Most links of a class between parts of two sorts are not faster than others; GPUDirect is on."""
    kind, beside = {device.name: device.kind for device in topology.devices}, beside_gpus(topology)
    facts = {one.name: one.attributes for one in topology.devices}
    noted = [(name, name, "GPUDirect", Fraction(str(x.get("gdr", 0)) != "0")) for name, x in facts.items()]
    # How many lanes other links have, other rules compare.
    noted += [(x.src, x.dst, x.kind, x.bandwidth if x.kind == "pcie" else x.lane_bandwidth) for x in topology.links]
    rates = defaultdict[tuple[str, ...], dict[tuple[str, ...], tuple[Fraction, str]]](dict)
    for a, b, what, rate in noted:
        near, far = sorted((a, b), key=lambda name: (_INWARDS.index(kind[name]), name))
        if near in beside:
            # Of adapters the best beside a GPU: others there may be for storage.
            place = (beside[near],) if kind[near] == "nic" else (near, far)
            name = f"{near}-{far}" if near != far and kind[far] in GPU_KINDS else near
            # What lspci calls slower than it can be, another rule tells.
            some = rates[what, kind[near], kind[far], str(facts[near].get("pcie_left"))]
            some[place] = max((rate, name), some.get(place, (rate, name)))
    for (what, *_), found in rates.items():
        words = str if what == "GPUDirect" else format_rate
        few, others, most, told = least_first([*found.values()], f"{what} %", words)
        if 0 < len(few) < others:
            yield f"{told}, the other {others} {most}"


@rule("pcie-port", "warning", "see LnkSta and ACSCtl (lspci -vvv) while a job runs; reseat the card, turn ACS off")
def _pcie_port(topology: Topology) -> Iterator[str]:
    """By lspci no PCIe link is slower than its device can, and no switch sends data for neighbours to the CPU."""
    slow = [one for one in topology.devices if one.attributes.get("pcie_left", "1") != "1"]
    alike = grouped((str(one.attributes["pcie"]), one.name) for one in slow)
    yield from (f"{listed(in_runs(names))}: PCIe {words}" for words, names in alike.items())
    if names := [one.name for one in topology.devices if "acs" in one.attributes]:
        yield f"ACS is on at the ports above {listed(in_runs(names))}"


def beside_gpus(topology: Topology) -> dict[str, str]:
    """GPUs, and PCIe switches and adapters that no CPU parts from them: by name one of those together."""
    kind = {device.name: device.kind for device in topology.devices if device.kind in _INWARDS[:4]}
    ends = ((link.src, link.dst) for link in topology.links if {link.src, link.dst} <= kind.keys())
    first = joined(kind, (pair for pair in ends if not {*map(kind.__getitem__, pair)} <= {*GPU_KINDS}))
    held = {first[name] for name in kind if kind[name] in GPU_KINDS}
    return {name: one for name, one in first.items() if one in held}


@rule("missing-link", "warning", "see whether a link between them was forgotten")
def _missing_link(topology: Topology) -> Iterator[str]:
    """No two GPUs alone have less bandwidth over a default class than all others, as after one forgotten link."""
    found = (row for row in behind(topology) if row[0][0] in topology.members)
    yield from (words for few, words in found if len(few) <= min(2, topology.ranks - 4))


def behind(topology: Topology) -> Iterator[tuple[list[str], str]]:
    """Adapters, nodes and members with less bandwidth of a class than most of their sort: names, and words.

    What enters and what leaves a device count apart, and of a node what joins it to others.
    """
    import numpy as np

    columns, node, members = topology.link_columns, topology.device_nodes, topology.member_places.tolist()
    rate = np.array([float(rate) for rate in columns.bandwidths])[columns.figure]
    nodes, every = dict.fromkeys(node[members].tolist()), np.arange(len(node))
    # One that nothing of its node is joined to has lost its GPU, and is no reason of its own; a port that RCCL
    # lists beside its adapter is joined to that alone. Inside one node nothing passes them.
    nic = np.array([device.kind == "nic" for device in topology.devices], dtype=bool)
    inside = nic[columns.src] & ~nic[columns.dst] & (node[columns.src] == node[columns.dst])
    own = inside & np.isin(node[columns.src], [*nodes] * (len(nodes) > 1))
    sorts = ("adapter", every, np.unique(columns.src[own]).tolist()), ("node", node, [*nodes]), ("GPU", every, members)
    for (sort, group, chosen), kind in product(sorts, topology.default_links()):
        apart = (columns.kind == columns.classes.index(kind)) & (group[columns.src] != group[columns.dst])
        ends = (group[end[apart]] + 1 for end in (columns.src, columns.dst))
        least = np.minimum(*(np.bincount(end, rate[apart], len(node) + 1) for end in ends))
        if not topology.lost and len({*least[1:][chosen].round().tolist()}) < 2:
            continue
        named = {f"n{place}" if sort == "node" else topology.devices[place].name: place for place in chosen}
        rates = list[tuple[float, str]]()
        for name, place in named.items():
            # Nobody misses what led to GPUs and adapters that are gone.
            gone = topology.lost.get((name, kind), 0) + topology.lost.get((name.partition(".")[2], kind), 0)
            # Whole bytes a second: sums of the same rates in another order are the same.
            rates.append((float(round(least[place + 1] + float(gone))), name))
        # Nodes were bought alike, however many have lost adapters since.
        few, others, most, told = least_first(rates, f"% of {kind}", best=sort == "node")
        # Half of many, some in every node, is a sort of its own, as every other GPU of Frontier.
        own = others > 1 and {*node[[named[name] for name in few]].tolist()} == {*nodes}
        most_of_them = len(nodes) if sort == "node" else others - own
        if 0 < len(few) <= most_of_them and others == len(chosen) - len(few):
            yield few, f"{told}, the other {count(others, sort) if others > 1 else sort} {most}"


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
    sort = {one.name: one.kind for one in topology.devices}
    between_nics = {link.kind for link in topology.links if {sort[link.src], sort[link.dst]} == {"nic"}}
    timed = between_nics.union(link.kind for link in topology.links if link.latency or link.overhead)
    if missing := [kind for kind in topology.link_classes if kind not in timed]:
        yield Breach(f"no latency and no overhead on {listed(missing)} links", ("link_classes", missing[0]))


@rule("in-network", "warning", "see what the page on machine files says about switches that multicast and reduce")
def _in_network(topology: Topology) -> Iterator[str]:
    """Only switches multicast and reduce, and facts about that have a source."""
    for device in topology.devices:
        if device.in_network and device.kind not in ("switch", "fabric"):
            yield f"{device.name}, a {device.kind}, can {', '.join(sorted(device.in_network))}"
        for fact in IN_NETWORK_FACTS:
            if fact in device.attributes and not device.in_network:
                yield f"{device.name} has {fact}, and only forwards"
            elif fact in device.attributes and f"{fact}_source" not in device.attributes:
                yield f"{device.name} has {fact} without {fact}_source"
        try:
            _ = device.reduction_rate
        except InputError as error:
            yield str(error).removeprefix("device ")


@rule("symmetric-generators", "warning", "correct or drop these symmetries; they are ignored")
def _symmetric(topology: Topology) -> Iterator[Breach]:
    """The symmetries given map the machine onto itself."""
    if not topology.symmetries:
        return
    from blinksim.topology import symmetry

    if wrong := len(topology.symmetries) - len(symmetry.automorphisms(topology)):
        message = f"{wrong} of {len(topology.symmetries)} symmetries do not map the machine onto itself"
        yield Breach(message, ("symmetries",))


# Seconds that a step of a program or of NCCL, or the start of either, takes at most on any hardware that we
# know of.
_LONGEST = 100e-6
# The least and the most of others, by field.
_FIGURES = read_rows(data_files.folder("models") / "plausible_ranges.csv", dict, "range")
_RANGES = {row["field"]: (float(row["least"]), float(row["most"])) for row in _FIGURES}
# Of a port, as shares of the bandwidth of the links: kernels move less than a data sheet's figure, and on
# H200 a little more came in than went out. NCCL's LL sends half as many bytes, and on few channels any
# protocol sends less.
_LEAST_OF_LINKS, _MOST_OUT, _MOST_IN = 0.25, 1.1, 1.3
# Where a machine file states what a field holds.
_KEYS = {"packets": ("protocols", "ll128"), "flags": ("protocols", "simple")}
_SECTION = "execution"


@rule("plausible-constants", "warning", "mind us against ms and GB/s against Gb/s, or calibrate again")
def _plausible_constants(topology: Topology) -> Iterator[Breach]:
    """Measured constants of programs and of NCCL are such as hardware has, and fit the links."""
    leaving = float(rate_to_switches(topology))
    for constants, keys in ((topology.execution, (_SECTION,)), (topology.nccl_rates, (_SECTION, "nccl"))):
        if constants is None:
            continue
        yield from _odd(constants, keys)
        if not leaving:
            yield Breach(f"{'.'.join(keys)} is of GPUs around a switch, and no link leads from a GPU to one", keys)
        if hasattr(constants, "ports"):
            rates = {
                ("ports", "out"): (constants.ports.out, _LEAST_OF_LINKS, _MOST_OUT),
                ("ports", "into"): (constants.ports.into, _LEAST_OF_LINKS, _MOST_IN),
            }
        else:
            every = ("ll", "ll128", "simple")
            rates = {(name, "rate"): (getattr(constants, name).rate, 0.0, _MOST_OUT) for name in every}
        for end, (rate, least, most) in rates.items():
            if leaving and not least * leaving <= rate <= most * leaving:
                said = f"{'.'.join(keys + end)} is {format_rate(rate)}"
                yield Breach(f"{said}; the links to the switch carry {format_rate(leaving)}", keys + end)
        if constants.error is not None and constants.error.median > constants.error.p90:
            place = (*keys, "error")
            yield Breach(f"{'.'.join(place)}: the median is above p90, which is above half of the errors", place)


def _odd(constants: Any, keys: tuple[str, ...]) -> Iterator[Breach]:
    """The constants that hardware does not have, also those in groups."""
    for field in fields(constants):
        value = getattr(constants, field.name)
        if is_dataclass(value) and field.name not in ("measured", "error"):
            yield from _odd(value, keys + _KEYS.get(field.name, (field.name,)))
            continue
        longest = (0.0, _LONGEST) if field.name.endswith("_s") else None
        least, most = _RANGES.get(field.name) or longest or (None, None)
        if value is not None and least is not None and most is not None and not least <= value <= most:
            place = (*keys, field.name.removesuffix("_s").removesuffix("_bytes"))
            had, low, high = (_text(field.name, number) for number in (value, least, most))
            yield Breach(f"{'.'.join(place)} is {had}; hardware has {low} to {high}", place)


def _text(name: str, value: float) -> str:
    if name.endswith("_s"):
        return format_time(value)
    return format_size(int(value)) if name.endswith("_bytes") else f"{value:.4g}"


def check(topology: Topology, place: Callable[[tuple[str, ...]], str] = lambda keys: "") -> list[Finding]:
    """What the rules find, errors first, else in the order of `RULES`; at most one finding per rule and message.

    place: the file and line of what such keys of the machine's file lead to.
    """
    found = []
    for rule in RULES.values():
        breaches = [one if isinstance(one, Breach) else Breach(one) for one in rule.function(topology)]
        for message, keys in {one.message: one.keys for one in breaches}.items():
            found.append(Finding(rule.name, rule.severity, message, rule.cure, place(keys) if keys else ""))
    return sorted(found, key=lambda finding: finding.severity != "error")
