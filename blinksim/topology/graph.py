"""The link graph: devices, directed links with bandwidth and latency, and who takes part.

A `Topology` is a frozen directed multigraph. Full duplex is two links; half duplex is two links on one `bus`, which
share one capacity. A device may have a capacity of its own (a PCIe root, a GPU's copy engines). Edits return new
values (`blinksim.topology.edits`). Bandwidths are exact (`fractions.Fraction`, bytes/s), latencies seconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from blinksim.errors import InputError, unknown
from blinksim.results import Tabular
from blinksim.topology.selection import Names, class_names, listed, relay_names

if TYPE_CHECKING:
    import networkx as nx

    from blinksim.topology.cluster import Fabric
    from blinksim.topology.routes import Router
    from blinksim.topology.rules import Finding

DEVICE_KINDS = ("gpu", "tile", "switch", "pcie", "cpu", "nic", "fabric")
ABILITIES = ("hold", "forward", "multicast", "reduce")
# '-' and '>' separate the two ends of a link in edits, ',' separates names in lists.
_NAME = re.compile(r"[A-Za-z0-9_.:/]{1,80}")
_KIND = re.compile(r"[A-Za-z0-9_.:/+-]{1,80}")


@dataclass(frozen=True, slots=True)
class Device:
    """A vertex of the link graph.

    name: unique in its topology. kind: one of `DEVICE_KINDS`. node: index of the host it sits in; fabric switches that
    belong to no host have -1. capacity: bytes/s that may enter it, and as many that may leave it, None for no limit.
    can: a subset of `ABILITIES`; by default GPUs and tiles can do everything and all others only forward.
    attributes: facts that no computation needs (bus id, sm, ...).
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
        if self.kind not in DEVICE_KINDS:
            raise unknown("device kind", self.kind, DEVICE_KINDS)
        if self.capacity is not None and self.capacity <= 0:
            raise InputError(f"device {self.name}: its capacity must be positive")
        if not self.can:
            everything = self.kind in ("gpu", "tile")
            object.__setattr__(self, "can", frozenset(ABILITIES if everything else ("forward",)))
        for ability in self.can:
            if ability not in ABILITIES:
                raise unknown("ability", ability, ABILITIES)

    @property
    def holds(self) -> bool:
        """Whether the device can hold a rank's data."""
        return "hold" in self.can


@dataclass(frozen=True, slots=True)
class Link:
    """A directed edge.

    kind: the link class. lanes: parallel lanes, each of `lane_bandwidth` bytes/s. latency: seconds from the last byte
    sent to its arrival, overlaps with the next chunk. overhead: seconds that each chunk occupies the sender.
    bus: links with the same bus share one capacity (half duplex); None for a link of its own.
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
        if self.lane_bandwidth <= 0:
            raise InputError(f"link {self.name}: its bandwidth must be positive")
        if not (0 <= self.latency <= 3600 and 0 <= self.overhead <= 3600):
            raise InputError(f"link {self.name}: latency and overhead must lie between 0 and 3600 s")

    @property
    def bandwidth(self) -> Fraction:
        """Bytes/s in this direction, all lanes together."""
        return self.lane_bandwidth * self.lanes

    @property
    def name(self) -> str:
        """``src->dst (kind)``, unique in a topology."""
        return f"{self.src}->{self.dst} ({self.kind})"

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.src, self.dst, self.kind)


@dataclass(frozen=True, repr=False)
class Topology(Tabular):
    """A machine, or the part of one that a collective runs on.

    members: the devices that hold ranks, in rank order (by default every GPU or tile, in file order). relays: devices
    without a rank that may forward, or reduce if they can. collective_links: the link classes that collectives use by
    default; inter_node_links: further ones once there are several nodes. rates: name of the rate table in force.
    fabric: how copies of this node are joined by `replicate`. generators: permutations of the device indices that map
    the machine onto itself (checked before use).
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    members: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    collective_links: tuple[str, ...] = ()
    inter_node_links: tuple[str, ...] = ()
    nodes: int = 1
    rates: str = "nominal"
    fabric: Fabric | None = None
    generators: tuple[tuple[int, ...], ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if len(self.index) != len(self.devices):
            seen: set[str] = set()
            for device in self.devices:
                if device.name in seen:
                    raise InputError(f"{self.name}: two devices are called {device.name!r}; names must be unique")
                seen.add(device.name)
        keys: set[tuple[str, str, str]] = set()
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in self.index:
                    raise unknown(f"device in link {link.name}:", end, self.index)
            if link.key in keys:
                raise InputError(f"{self.name}: link {link.name} is given twice; use lanes for parallel links")
            keys.add(link.key)
        if not self.members:
            object.__setattr__(self, "members", tuple(d.name for d in self.devices if d.holds))
        for name in (*self.members, *self.relays):
            if name not in self.index:
                raise unknown("device", name, self.index)
        both = set(self.members) & set(self.relays)
        if both:
            raise InputError(f"{', '.join(sorted(both))} cannot be member and relay at once")
        for name in self.members:
            if not self.device(name).holds:
                raise InputError(f"{name} is a {self.device(name).kind}; only GPUs and tiles can hold a rank")
        for names, role in ((self.members, "holds at most one rank"), (self.relays, "relays once")):
            doubled = sorted(name for name, times in Counter(names).items() if times > 1)
            if doubled:
                raise InputError(f"{', '.join(doubled)} named more than once; each device {role}")

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each device in `devices`, by name."""
        return {device.name: position for position, device in enumerate(self.devices)}

    @cached_property
    def out_links(self) -> tuple[tuple[int, ...], ...]:
        """For each device, the indices of the links that leave it."""
        leaving: list[list[int]] = [[] for _ in self.devices]
        for number, link in enumerate(self.links):
            leaving[self.index[link.src]].append(number)
        return tuple(map(tuple, leaving))

    @cached_property
    def router(self) -> Router:
        """Routes between devices, found on demand and kept with the topology."""
        from blinksim.topology.routes import Router

        return Router(self)

    @cached_property
    def link_classes(self) -> tuple[str, ...]:
        """The classes that occur, in the order in which they first do."""
        return tuple(dict.fromkeys(link.kind for link in self.links))

    @property
    def ranks(self) -> int:
        return len(self.members)

    def device(self, name: str) -> Device:
        """The device called `name`; raises `InputError` with the nearest names if there is none."""
        if name not in self.index:
            raise unknown("device", name, self.index, hint=f"(blinksim topo show {self.name} lists them)")
        return self.devices[self.index[name]]

    def links_between(self, src: str, dst: str) -> list[Link]:
        """The links from `src` to `dst`, one per class."""
        return [self.links[i] for i in self.out_links[self.index[src]] if self.links[i].dst == dst]

    def with_links(self, links: Iterable[Link]) -> Topology:
        """The same devices with other links."""
        return replace(self, links=tuple(links))

    def rows(self) -> list[dict[str, Any]]:
        """One row per directed link."""
        return [
            {
                "src": x.src,
                "dst": x.dst,
                "class": x.kind,
                "lanes": x.lanes,
                "bandwidth_GBps": float(x.bandwidth) / 1e9,
                "bandwidth_exact": str(x.bandwidth / 10**9),
                "latency_s": x.latency,
                "overhead_s": x.overhead,
                "bus": x.bus,
            }
            for x in self.links
        ]

    def __repr__(self) -> str:
        counts = [f"{sum(d.kind == kind for d in self.devices)} {kind}" for kind in DEVICE_KINDS]
        present = ", ".join(text for text in counts if not text.startswith("0 "))
        links = ", ".join(f"{sum(x.kind == kind for x in self.links)} {kind}" for kind in self.link_classes)
        return (
            f"<Topology {self.name}: {self.nodes} node{'s' * (self.nodes != 1)}, {self.ranks} members\n"
            f"  devices: {present}\n"
            f"  links (directed): {links or 'none'}; rates: {self.rates}>"
        )

    # --- who takes part -----------------------------------------------------------------------------------------

    def default_links(self) -> tuple[str, ...]:
        """The classes that a collective uses when nobody says otherwise."""
        chosen = self.collective_links + (self.inter_node_links if self.nodes > 1 else ())
        present = tuple(kind for kind in dict.fromkeys(chosen) if kind in self.link_classes)
        return present or self.link_classes

    def select(
        self,
        members: Names | None = None,
        relays: Names = (),
        links: str | Iterable[str] | None = None,
        *,
        relays_reduce: bool = False,
        connected: bool = True,
    ) -> Topology:
        """The part of the machine that a collective runs on.

        members, relays: names, or numbers that count the GPUs of this topology, as a list or as text such as ``0-3``
        or ``gpu0,gpu3``; relays also ``none``, or ``idle`` for every GPU that is no member. links: classes as a list,
        or as text such as ``nvlink,pcie`` or ``all``.

        Keeps the members (default: all of this topology's), the relays, every device that only forwards, and the links
        of the classes in `links` (default: `default_links`). GPUs that are neither member nor relay are left out with
        their links. Relays forward; with `relays_reduce` they can also reduce and multicast.

        Raises `InputError` for unknown names and `InfeasibleError` if the members are not connected by what remains.
        """
        holders = [device.name for device in self.devices if device.holds]
        chosen = self.members if members is None else listed(members, holders, "members")
        if not chosen:
            raise InputError("no members: name at least one GPU")
        helpers = relay_names(relays, chosen, holders)
        classes = self.default_links() if links is None else class_names(links, self.link_classes)
        for kind in classes:
            if kind not in self.link_classes:
                raise unknown(f"link class of {self.name}:", kind, self.link_classes)
        keep = {*chosen, *helpers}
        for name in (*chosen, *helpers):
            self.device(name)
        can = frozenset(("forward", "multicast", "reduce") if relays_reduce else ("forward",))
        # A switch named as a relay keeps its own abilities; a member among the relays is refused below.
        turned = {name for name in helpers if self.device(name).holds} - {*chosen}
        kept = [
            replace(device, can=can) if device.name in turned else device
            for device in self.devices
            if not device.holds or device.name in keep
        ]
        names = {device.name for device in kept}
        result = replace(
            self,
            devices=tuple(kept),
            links=tuple(x for x in self.links if x.kind in classes and x.src in names and x.dst in names),
            members=chosen,
            relays=helpers,
            collective_links=classes,
            inter_node_links=(),
            generators=self._restricted(kept),
        )
        result = result.pruned()
        if connected:
            from blinksim.topology import connectivity

            connectivity.require_connected(result, self, classes)
        return result

    def selected(self) -> Topology:
        """This topology if it is what `select` gives, else its part with its default members and links."""
        taking_part = {*self.members, *self.relays}
        whole = any(device.holds and device.name not in taking_part for device in self.devices)
        return self.select() if whole or set(self.default_links()) != set(self.link_classes) else self

    def pruned(self) -> Topology:
        """Without the forwarders that no link touches."""
        used = {end for link in self.links for end in (link.src, link.dst)} | {*self.members, *self.relays}
        if len(used) == len(self.devices):
            return self
        kept = tuple(device for device in self.devices if device.name in used)
        return replace(self, devices=kept, generators=self._restricted(kept))

    def _restricted(self, kept: Iterable[Device]) -> tuple[tuple[int, ...], ...]:
        """The symmetries that keep the devices `kept` among themselves, as permutations of these."""
        position = {self.index[device.name]: number for number, device in enumerate(kept)}
        if len(position) == len(self.devices):
            return self.generators
        inside = [perm for perm in self.generators if all(perm[old] in position for old in position)]
        return tuple(tuple(position[perm[old]] for old in position) for perm in inside)

    def components(self) -> list[list[str]]:
        """The members grouped by what can reach each other both ways, in rank order."""
        from blinksim.topology import connectivity

        return connectivity.components(self)

    # --- edits and views; each lives in a module of its own -------------------------------------------------------

    def subset(self, members: Iterable[str]) -> Topology:
        """Without the GPUs and tiles that are not in `members`, which become the members in the order given."""
        from blinksim.topology import edits

        return edits.subset(self, members)

    def without(self, *targets: str) -> Topology:
        """Without the devices and links named (``gpu3``, ``gpu0-gpu3``, ``gpu0->gpu3``)."""
        from blinksim.topology import edits

        return edits.without(self, *targets)

    def degrade(self, target: str, **changes: Any) -> Topology:
        """With less of a link (``lanes=1``, ``bandwidth=...``); refuses to give it more."""
        from blinksim.topology import edits

        return edits.degrade(self, target, **changes)

    def replace(self, target: str, **changes: Any) -> Topology:
        """With other lanes, bandwidth (of a lane), latency or overhead for a link or a whole link class."""
        from blinksim.topology import edits

        return edits.replace_links(self, target, **changes)

    def edit(self, text: str) -> Topology:
        """With an edit written as on the command line, such as ``degrade gpu0-gpu3 lanes=1``."""
        from blinksim.topology import edits

        return edits.apply(self, text)

    def replicate(self, nodes: int, fabric: Fabric | None = None) -> Topology:
        """`nodes` copies joined by `fabric` (default: the one that the machine describes)."""
        from blinksim.topology import cluster

        return cluster.replicate(self, nodes, fabric)

    def check(self) -> list[Finding]:
        """What the rules of `blinksim.topology.rules` find wrong or odd."""
        from blinksim.topology import rules

        return rules.check(self)

    def graph(self) -> nx.MultiDiGraph[str]:
        """The NetworkX view: devices as nodes, links as edges, with their fields as attributes."""
        from blinksim.topology import convert

        return convert.to_networkx(self)
