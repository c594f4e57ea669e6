"""Devices, links and fabrics, the rules for their values, and fast copies of parts known to be right.

Checks go over all links at once, as clusters have hundreds of thousands; only a fault is looked up one by
one.

A fabric joins nodes into a cluster. `switch`: one switch, or `planes` of them: port p of every node goes to
plane p mod planes; as many planes as ports are rails. `tree`: per plane, a leaf switch for every `leaf_nodes`
nodes under one spine. `levels`: any number of levels of switches, each with planes of its own, such as rails
under one spine. `dragonfly`: groups of nodes around a switch each, and links between every two groups.
`direct`: ports wired back to back, as NTB adapters are.

A switch of a fabric stands for all switches that share its work: the spine of a leaf-spine network is one
switch here, a dragonfly group too (J. Kim, W. J. Dally, S. Scott, D. Abts, Technology-Driven, Highly-Scalable
Dragonfly Topology, ISCA 2008), so that routes between them are never worse than the sum of their links.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from itertools import accumulate, combinations, compress, pairwise
from math import isfinite, prod
from numbers import Rational
from operator import attrgetter, mod
from typing import TYPE_CHECKING, Any, TypeVar

from blinksim.errors import InputError, blamed_on, each_of, one_of, unknown
from blinksim.units import parse_rate, whole

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

MOST_LANES = 10**6
LONGEST_NAME = 80
LINK_PROPERTIES = ("lanes", "bandwidth", "latency", "overhead")
DEVICE_KINDS = ("gpu", "tile", "switch", "pcie", "cpu", "nic", "fabric")
ABILITIES = ("hold", "forward", "multicast", "reduce", "reduce_into_reader")
# What a switch may do beyond forwarding, and how to say it.
BRANCHING = {"multicast": "multicast", "reduce": "reduce in flight", "reduce_into_reader": "reduce (NVLS)"}
GPU_KINDS = ("gpu", "tile")
# The class of connections without a limit of their own, as of a virtual adapter: any rate is plausible there.
UNLIMITED = "local"
# Libraries of collectives: NVIDIA's, and AMD's fork of it.
NCCL, RCCL = "nccl", "rccl"
# Compute capability, times ten, from which the NVSwitches of GPUs multicast and reduce.
SM_WITH_NVLS = 90
# Attributes of such a switch: the groups that it keeps, bytes/s of sums, element types; each has its source
# beside it.
IN_NETWORK_FACTS = ("multicast_groups", "reduction_rate", "reduction_types")
# '-' and '>' separate the two ends of a link in edits, ',' separates names in lists.
_NAME = re.compile(r"[A-Za-z0-9_.:/]{1,80}")
_KIND = re.compile(r"[A-Za-z0-9_.:/+-]{1,80}")


def _rate(value: object, what: str) -> Fraction:
    """A bandwidth as an exact fraction; raises `InputError` that begins with `what`."""
    if isinstance(value, str):
        value = parse_rate(value)
    if not isinstance(value, (Rational, float)) or (isinstance(value, float) and not isfinite(value)):
        raise InputError(f"{what} of {value!r:.40} is no number of bytes/s")
    if value <= 0:
        raise InputError(f"{what} must be positive")
    return value if isinstance(value, Fraction) else Fraction(value)


# Bytes/s of sums as switches state them, the same object for thousands of alike ones.
_rate_of_sums = cache(_rate)


def check_machine_name(name: str) -> None:
    """Raises `InputError` for a name that a machine file cannot hold, or that would not be seen as it is."""
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        why = "empty" if not name.strip() else "longer than 80 characters" if name.isprintable() else "not printable"
        raise InputError(f"{name[:LONGEST_NAME]!r} cannot name a machine: it is {why}")


def machine_name(text: str) -> str:
    """A name for a machine from text of elsewhere, such as a file's name: printable, and not too long."""
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST_NAME].strip() or "machine"


# A device of a node among several.
ON_NODE = re.compile(r"n([0-9]+)\.(.+)")


def titled(machine: str, nodes: int) -> str:
    """A machine, and how many nodes: ``4 x p5.48xlarge``; shapes that are clusters say that themselves."""
    return f"{nodes} x {machine}" if nodes > 1 and not machine.startswith(("fattree:", "rails:")) else machine


def taking_part(ranks: int, machine: str, nodes: int, unit: str = "GPU", first: str = "") -> str:
    """Who takes part: ``32 GPUs of 4 x p5.48xlarge``. unit: what has a rank; first: the name of the first.

    >>> taking_part(4, "p5.48xlarge", 1, first="n0.gpu0")
    '4 GPUs of p5.48xlarge, all on n0'
    """
    alone = f", all on n{home[1]}" if nodes == 1 and (home := ON_NODE.match(first)) else ""
    return f"{ranks} {unit}s of {titled(machine, nodes)}{alone}"


@dataclass(frozen=True, slots=True)
class Device:
    """A vertex of the link graph.

    Parameters
    ----------
    name : str
        Unique in its topology.
    kind : {"gpu", "tile", "switch", "pcie", "cpu", "nic", "fabric"}
        What it is.
    node : int
        Index of the host that it sits in; -1 for fabric switches, which belong to no host.
    capacity : Fraction, optional
        Bytes/s that may enter it, and as many that may leave it; as for a link. Default: no limit.
    can : frozenset of str
        A subset of `ABILITIES`. A device that can ``reduce`` adds what arrives and sends the sum on, a switch
        that can ``reduce_into_reader`` adds what a GPU reads at a group of GPUs, itself included, and hands
        that GPU the sum. Default: GPUs and tiles hold, forward, multicast and reduce, all others only
        forward.
    attributes : mapping
        Facts that no computation needs (bus id, sm, ...).

    Raises
    ------
    InputError
        For a name, a kind, a capacity or an ability that no device has.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.Device("gpu0", "gpu").holds
    True
    >>> bs.load("hgx-h200").device("nvswitch").kind
    'switch'
    """

    name: str
    kind: str
    node: int = 0
    capacity: Fraction | None = None
    can: frozenset[str] = frozenset()
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"{self.name!r} cannot name a device: use letters, digits and _ . : / only")
        one_of("device kind", self.kind, DEVICE_KINDS)
        if self.capacity is not None:
            object.__setattr__(self, "capacity", _rate(self.capacity, f"device {self.name}: its capacity"))
        if not self.can:
            everything = self.kind in GPU_KINDS
            object.__setattr__(self, "can", frozenset(ABILITIES[:4] if everything else ("forward",)))
        each_of("ability", self.can, ABILITIES)
        if "reduce_into_reader" in self.can and {"hold", "reduce"} & self.can:
            raise InputError(f"device {self.name}: what reduces into readers neither holds data nor reduces in flight")

    @property
    def holds(self) -> bool:
        """True if the device can hold a rank's data."""
        return "hold" in self.can

    @property
    def in_network(self) -> frozenset[str]:
        """The operations of `BRANCHING` that the device can do on data in flight; none for GPUs and tiles."""
        return frozenset() if self.kind in GPU_KINDS else self.can & BRANCHING.keys()

    @property
    def gfx(self) -> str:
        """The number that RCCL's own files give a GPU (``gcn``), such as ``gfx942``; empty for others."""
        return str(self.attributes.get("gcn", ""))

    @property
    def library(self) -> str:
        """The library that runs collectives on a GPU, from its attribute ``library``; ``nccl`` by default."""
        return str(self.attributes.get("library", RCCL if self.gfx else NCCL)).lower()

    @property
    def reduction_rate(self) -> Fraction | None:
        """Bytes/s of sums that a switch's adders form; None if it states no rate or adds nothing.

        Raises `InputError` if the attribute is no rate.
        """
        if "reduction_rate" not in self.attributes or not self.in_network & {"reduce", "reduce_into_reader"}:
            return None
        with blamed_on(f"device {self.name}: reduction_rate"):
            return _rate_of_sums(str(self.attributes["reduction_rate"]), "it")

    @property
    def reads(self) -> bool:
        """True for a switch that reduces into readers, and multicasts to groups of GPUs that include the writer."""
        return "reduce_into_reader" in self.can


def nvswitch(sm: int, node: int = 0) -> Device:
    """All NVSwitches of a node as one device, by the compute capability (times ten) of the GPUs on them.

    Those of Hopper and later multicast and reduce into readers (NVIDIA, third-generation NVSwitch, 2022).

    >>> nvswitch(90).reads, nvswitch(80).reads
    (True, False)
    """
    if sm < SM_WITH_NVLS:
        return Device("nvswitch", "switch", node)
    source = "NVIDIA, third-generation NVSwitch (2022): of GPUs from compute capability 9.0 on"
    can = frozenset(("forward", "multicast", "reduce_into_reader"))
    return Device("nvswitch", "switch", node, can=can, attributes={"in_network_source": source})


@dataclass(frozen=True, slots=True)
class Link:
    """A directed edge of the link graph.

    Parameters
    ----------
    src, dst : str
        The devices that it joins.
    kind : str
        The link class.
    lane_bandwidth : Fraction
        Bytes/s of a lane. A whole number, or text such as ``25GB/s``, becomes a fraction.
    lanes : int
        Parallel lanes.
    latency : float
        Seconds from the last byte sent to its arrival; overlaps with the next chunk.
    overhead : float
        Seconds that each chunk occupies the sender.
    bus : str, optional
        Links with the same bus share one capacity (half duplex). Default: a link of its own.

    Raises
    ------
    InputError
        For a link from a device to itself, and for figures that no link has.

    Examples
    --------
    >>> import blinksim as bs
    >>> (link,) = bs.load("dgx1-v100").select(links="nvlink").links_between("gpu0", "gpu3")
    >>> link.lanes, link.bandwidth / 10**9
    (2, Fraction(50, 1))
    """

    src: str
    dst: str
    kind: str
    lane_bandwidth: Fraction
    lanes: int = 1
    latency: float = 0.0
    overhead: float = 0.0
    bus: str | None = None

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise InputError(f"{self.kind!r} cannot name a link class: use letters, digits and _ . : / + - only")
        if self.src == self.dst:
            raise InputError(f"link {self.name}: joins a device with itself")
        if self.lanes < 1:
            raise InputError(f"link {self.name}: has {self.lanes} lanes; leave the link out if it has none")
        object.__setattr__(self, "lane_bandwidth", _rate(self.lane_bandwidth, f"link {self.name}: its bandwidth"))
        if self.lanes > MOST_LANES:
            raise InputError(f"link {self.name}: has more than {MOST_LANES:,} lanes")
        if not (0 <= self.latency <= 3600 and 0 <= self.overhead <= 3600):
            raise InputError(f"link {self.name}: latency and overhead must lie between 0 and 3600 s")

    def between(self, src: str, dst: str, bus: str | None) -> Link:
        """The same link between two other devices, on another bus."""
        return copies([self], src=[src], dst=[dst], bus=[bus])[0]

    @property
    def bandwidth(self) -> Fraction:
        """Bytes/s in this direction, all lanes together."""
        # Asked so often that the product is worth sparing.
        return self.lane_bandwidth if self.lanes == 1 else self.lane_bandwidth * self.lanes

    @property
    def name(self) -> str:
        """``src->dst (kind)``, unique in a topology."""
        return f"{self.src}->{self.dst} ({self.kind})"

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.src, self.dst, self.kind)


Thing = TypeVar("Thing", Device, Link)


def copies(originals: Sequence[Thing], **changes: Iterable[Any]) -> list[Thing]:
    """The same devices or links, with other values of some fields, one each; nothing is checked again."""
    found: list[Thing] = [*map(object.__new__, map(type, originals))]
    for field_ in fields(originals[0]) if originals else ():
        values = changes.get(field_.name, map(attrgetter(field_.name), originals))
        # Writing a slot through its descriptor is what a frozen dataclass allows at the least cost.
        deque(map(getattr(type(originals[0]), field_.name).__set__, found, values), maxlen=0)
    return found


# Cached properties of a topology that its members and relays do not change.
_OF_DEVICES_AND_LINKS = ("index", "link_columns", "out_links", "in_network", "device_nodes")


def check_graph(topology: Topology) -> None:
    """Raises `InputError` for a name that none may have, and for devices or links that are there twice."""
    check_machine_name(topology.name)
    if len(topology.index) != len(topology.devices):
        twice = next(name for name, times in Counter(d.name for d in topology.devices).items() if times > 1)
        raise InputError(f"{topology.name}: two devices are called {twice!r}; names must be unique")
    known, seen = topology.index, set[tuple[str, str, str]]()
    for link in topology.links:
        for end in (link.src, link.dst):
            if end not in known:
                raise unknown(f"device in link {link.name}:", end, known)
        if link.key in seen:
            raise InputError(f"{topology.name}: link {link.name} is given twice; use lanes for parallel links")
        seen.add(link.key)


def check_roles(topology: Topology) -> None:
    """Members and relays: known, able, and each in one role once; raises `InputError`."""
    members, relays, index = topology.members, topology.relays, topology.index
    each_of("device", (*members, *relays), index)
    if both := set(members) & set(relays):
        raise InputError(f"{', '.join(sorted(both))} cannot be member and relay at once")
    for name in members:
        device = topology.devices[index[name]]
        if not device.holds:
            within = [one for one in index if one.startswith(f"{name}.")]
            named = f"; name {' or '.join(within[:2])}" if within else ""
            raise InputError(f"{name} is a {device.kind}; only GPUs and tiles can hold a rank{named}")
    for names, role in ((members, "holds at most one rank"), (relays, "relays once")):
        if len(set(names)) < len(names):
            doubled = sorted(name for name, times in Counter(names).items() if times > 1)
            raise InputError(f"{', '.join(doubled)} named more than once; each device {role}")


def regarded(topology: Topology, known: Mapping[str, Any] | None = None, **changes: Any) -> Topology:
    """`dataclasses.replace` where devices and links are right by how they were made; only roles are checked.

    known: cached properties of the result. Default: those of `topology`, whose devices and links stay. Raises
    `InputError` for members and relays as `check_roles` does.
    """
    if known is None:
        known = {name: topology.__dict__[name] for name in _OF_DEVICES_AND_LINKS if name in topology.__dict__}
    made: Topology = object.__new__(type(topology))
    made.__dict__.update({field.name: getattr(topology, field.name) for field in fields(topology)}, **known, **changes)
    check_roles(made)
    return made


def among(topology: Topology, there: Iterable[bool], used: Iterable[bool], **changes: Any) -> Topology:
    """The devices of a topology that are `there`, with the `used` links, which join these; else as `regarded`.

    Symmetries that keep these devices among themselves stay, as permutations of them.
    """
    import numpy as np

    held, kept = (np.fromiter(chosen, dtype=np.bool_) for chosen in (there, used))
    place, old, orders = np.cumsum(held) - 1, topology.link_columns, topology.symmetries
    if not held.all():
        moved = [np.asarray(order)[held] for order in orders]
        orders = tuple(tuple(place[ends].tolist()) for ends in moved if held[ends].all())
    src, dst, bus = place[old.src[kept]], place[old.dst[kept]], old.bus[kept]
    # Figures in the order of their use; numbers of few bits are sorted several times as fast.
    figure = old.figure[kept].astype(np.min_scalar_type(len(old.figures)))
    rows, first, which = np.unique(figure, return_index=True, return_inverse=True)
    own = tuple(old.figures[row] for row in rows[np.argsort(first)].tolist())
    columns = replace(old, src=src, dst=dst, figure=np.argsort(np.argsort(first))[which], figures=own, bus=bus)
    parts = {"devices": tuple(compress(topology.devices, held)), "links": tuple(compress(topology.links, kept))}
    return regarded(topology, {"link_columns": columns}, **{**parts, "symmetries": orders, **changes})


SHAPES = ("switch", "tree", "levels", "dragonfly", "direct")
MOST_LEVELS = 8
# The kind of the devices that join nodes.
FABRIC = "fabric"


@dataclass(frozen=True, slots=True)
class Level:
    """A level of switches.

    nodes: how many nodes are below each of its switches, None for all; planes: how many separate switches
    every group of nodes has here; oversubscription: how much more its switches take in from below than they
    pass on.
    """

    nodes: int | None = None
    planes: int = 1
    oversubscription: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Fabric:
    """How copies of a node are joined.

    ports: devices of one node that the fabric's links leave from, such as its NICs. kind, lane_bandwidth
    (bytes/s), lanes, latency, overhead (s): of every port's link. oversubscription: how much more the leaves
    of a `tree` take in than they pass on. levels: of the shape `levels`, from the nodes up. group_nodes,
    group_links: of a dragonfly, how many nodes a group has, and links of one lane between every two groups.
    groups: of the full dragonfly; where fewer are there, a group's links are shared out among these.
    can: what its switches do, as for a `Device`; empty if they only forward.
    """

    shape: str
    ports: tuple[str, ...]
    kind: str
    lane_bandwidth: Fraction
    lanes: int = 1
    latency: float = 0.0
    overhead: float = 0.0
    planes: int = 1
    leaf_nodes: int = 16
    oversubscription: Fraction = Fraction(1)
    levels: tuple[Level, ...] = ()
    group_nodes: int = 0
    group_links: int = 0
    groups: int = 0
    can: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        one_of("fabric shape", self.shape, SHAPES)
        if not self.ports:
            raise InputError("a fabric needs at least one port on every node")
        for planes in (self.planes, *(level.planes for level in self.levels)):
            if not 1 <= planes <= len(self.ports):
                raise InputError(f"{planes} planes for {len(self.ports)} ports; every plane needs a port")
        if self.leaf_nodes < 1 or self.oversubscription < 1:
            raise InputError("leaf_nodes and oversubscription must be at least 1")
        if (self.shape == "levels") != bool(self.levels):
            raise InputError("levels go with the shape levels, which needs at least one of them")
        if (self.shape == "dragonfly") != (self.group_nodes > 0 and self.group_links > 0):
            raise InputError("group_nodes and group_links, at least 1, go with the shape dragonfly, which needs both")
        levels = self.levels
        if len(levels) > MOST_LEVELS:
            raise InputError(f"{len(levels)} levels of switches; at most {MOST_LEVELS} are drawn")
        if any(level.oversubscription < 1 or (level.nodes is not None and level.nodes < 1) for level in levels):
            raise InputError("nodes and oversubscription of a level must be at least 1")
        if levels and (levels[-1].nodes is not None or levels[-1].oversubscription != 1):
            raise InputError("the last level is above all nodes: give it neither nodes nor oversubscription")
        for lower, upper in pairwise(levels):
            if lower.nodes is None or (upper.nodes is not None and upper.nodes % lower.nodes):
                what = "every level but the last says how many nodes it has"
                raise InputError(f"{what}, a multiple of those one level below")
            if upper.planes > lower.planes:
                raise InputError(f"{upper.planes} planes above {lower.planes}; planes can join on the way up, not part")
        self.switch(FABRIC)  # refuses what no switch can do

    def switch(self, name: str) -> Device:
        """One of its switches."""
        return Device(name, FABRIC, node=-1, can=self.can)

    def tiers(self) -> tuple[Level, ...]:
        """The levels of switches from the nodes up, whatever the shape; the groups of a dragonfly are its only one."""
        match self.shape:
            case "switch":
                return (Level(None, self.planes),)
            case "tree":
                return (Level(self.leaf_nodes, self.planes, self.oversubscription), Level(None, self.planes))
            case "dragonfly":
                return (Level(self.group_nodes),)
            case _:
                return self.levels

    def planes_of(self, port: int) -> list[int]:
        """The plane of the port with this number on every level."""
        return [*accumulate((level.planes for level in self.tiers()), mod, initial=port)][1:]

    def pairs(self, ends: Iterable[tuple[str, str]], times: Fraction = Fraction(1)) -> list[Link]:
        """The two links between each two devices, with `times` a port's bandwidth."""
        # Files tell links apart by the object that their rate is.
        rate = self.lane_bandwidth if times == 1 else self.lane_bandwidth * times
        one = Link("port", "switch", self.kind, rate, self.lanes, self.latency, self.overhead)
        ways = [way for a, b in ends for way in ((a, b), (b, a))]
        return copies([one] * len(ways), src=[a for a, _ in ways], dst=[b for _, b in ways])

    def uplink(self, level: int, plane: int) -> Fraction:
        """Bandwidth from a switch of a level to the next one up, as a multiple of a port's."""
        below = self.tiers()[: level + 1]
        ports = sum(self.planes_of(port)[level] == plane for port in range(len(self.ports)))
        return Fraction(ports * (below[-1].nodes or 0)) / prod(one.oversubscription for one in below)


# A switch of a fabric: its level from the nodes up, its plane, and which group of nodes it serves.
Switch = tuple[int, int, int]


def switches(fabric: Fabric, nodes: int) -> list[Switch]:
    """The switches for so many nodes, in the order of their devices: plane by plane if the planes stay apart."""
    tiers = fabric.tiers()
    found = [
        (level, plane, group)
        for level, tier in reversed(list(enumerate(tiers)))
        for plane in range(tier.planes)
        for group in range(1 if tier.nodes is None else -(-nodes // tier.nodes))
    ]
    apart = len({tier.planes for tier in tiers}) == 1
    return sorted(found, key=lambda switch: switch[1]) if apart else found


def join(fabric: Fabric, nodes: int) -> tuple[list[Device], list[Link]]:
    """The switches between `nodes` nodes called n0, n1 …, and all links to and between them."""
    if fabric.shape == "direct":
        return [], _back_to_back(fabric, nodes)
    found = switches(fabric, nodes)
    devices = [fabric.switch(_name(fabric, switch)) for switch in found]
    tiers, links = fabric.tiers(), list[Link]()
    width = tiers[0].nodes or nodes
    for plane in range(tiers[0].planes):
        for level, _, group in (switch for switch in found if switch[1] == plane and switch[0] + 1 < len(tiers)):
            # The links to the switch above.
            upper, below = tiers[level + 1], tiers[level].nodes
            above = (level + 1, plane % upper.planes, group * below // upper.nodes if below and upper.nodes else 0)
            ends = _name(fabric, (level, plane, group)), _name(fabric, above)
            links += fabric.pairs([ends], fabric.uplink(level, plane))
        ports = [port for number, port in enumerate(fabric.ports) if fabric.planes_of(number)[0] == plane]
        leaves = [_name(fabric, (0, plane, group)) for group in range(-(-nodes // width))]
        links += fabric.pairs((f"n{i}.{port}", leaves[i // width]) for i in range(nodes) for port in ports)
    if fabric.shape == "dragonfly":
        between, others = replace(fabric, lanes=fabric.group_links), len(devices) - 1
        wider = Fraction(max(fabric.groups - 1, others, 1), max(others, 1))
        links += between.pairs(((a.name, b.name) for a, b in combinations(devices, 2)), wider)
    return devices, links


def _name(fabric: Fabric, switch: Switch) -> str:
    level, plane, group = switch
    tiers = fabric.tiers()
    name = "fabric" if tiers[level].planes == 1 else f"fabric{plane}"
    if fabric.shape == "dragonfly":
        return f"{name}.group{group}"
    below = f".{'leaf' if level == 0 else f'level{level + 1}.'}{group}"
    return name + below * (level < len(tiers) - 1)


def _back_to_back(fabric: Fabric, nodes: int) -> list[Link]:
    if nodes - 1 > len(fabric.ports):
        need = f"{nodes} nodes wired directly need {nodes - 1} ports each"
        raise InputError(f"{need}; this machine has {len(fabric.ports)}")
    ports, count = fabric.ports, len(fabric.ports)
    return fabric.pairs(
        (f"n{i}.{ports[(j - 1 + shift) % count]}", f"n{j}.{ports[(i + shift) % count]}")
        for i, j in combinations(range(nodes), 2)
        # Spread the ports over the peers; with one peer all ports join the same two nodes.
        for shift in range(count if nodes == 2 else 1)
    )


EXAMPLE = "fabric shape=tree leaf_nodes=4 oversubscription=2"
COUNTS = ("planes", "leaf_nodes", "group_nodes", "group_links", "groups", "spine_planes")
PROPERTIES = ("shape", "oversubscription", *COUNTS)
_SHAPES = ("switch", "tree", "dragonfly", "direct")


def rewired(fabric: Fabric, changes: Mapping[str, str]) -> Fabric:
    """`fabric` with the same ports and rates in another shape.

    changes: as in a machine file's ``fabric`` section; what is not given is one plane, and as there by
    default. spine_planes: of a tree, how many separate spines its planes share: 1 joins rails that have
    leaves of their own. Raises `InputError` for other keys and values, and what no fabric can be.
    """
    each_of("property of a fabric", changes, PROPERTIES, hint=f"(as in: {EXAMPLE})")
    shape = changes.get("shape", fabric.shape)
    one_of("shape of a fabric", shape, _SHAPES, hint="(other levels are written in a machine file)")
    given: dict[str, Any] = {key: whole(changes[key], key) for key in COUNTS if key in changes}
    if "oversubscription" in changes:
        text = changes["oversubscription"]
        match = re.fullmatch(r"([1-9][0-9]{0,3})(?:[:/]([1-9][0-9]{0,3}))?", text)
        ratio = Fraction(int(match[1]), int(match[2] or 1)) if match else Fraction(0)
        if ratio < 1:
            raise InputError(f"oversubscription={text:.40} is not a ratio of at least 1, such as 2 or 3:2")
        given["oversubscription"] = ratio
    spines = given.pop("spine_planes", None)
    for key in ("leaf_nodes", "oversubscription", "spine_planes"):
        if key in changes and shape != "tree":
            raise InputError(f"{key} goes with shape=tree, and this is {shape}; write it as in: {EXAMPLE}")
    times = fabric.latency, fabric.overhead
    plain = Fabric("switch", fabric.ports, fabric.kind, fabric.lane_bandwidth, fabric.lanes, *times)
    found = replace(plain, can=fabric.can, shape=shape, **given)
    if spines is None:
        return found
    leaves = Level(found.leaf_nodes, found.planes, found.oversubscription)
    return replace(plain, can=fabric.can, shape="levels", levels=(leaves, Level(None, spines)))
