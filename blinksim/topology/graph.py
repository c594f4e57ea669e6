"""The link graph: devices, directed links with bandwidth and latency, and the members among them.

A `Topology` is a frozen directed multigraph. Full duplex is two links; half duplex is two links on one `bus`,
which share one capacity. A device may have a capacity of its own (a PCIe root, a GPU's copy engines). Edits
return new values (`blinksim.topology.edits`). Bandwidths are exact (`fractions.Fraction`, bytes/s), latencies
seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import compress, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from blinksim.collective import Collective
from blinksim.errors import InputError, blamed_on, each_of, unknown
from blinksim.graphs.connectivity import grouped
from blinksim.results import Tabular, count, keyed
from blinksim.topology import edits as what_if, elements, rules, selection
from blinksim.topology.elements import BRANCHING, Device, Fabric, Link
from blinksim.topology.selection import Names
from blinksim.units import NUMBER, exact_GBps, format_time

if TYPE_CHECKING:
    import networkx as nx

    from blinksim.graphs.arrays import Ints
    from blinksim.timing.measured_constants import ExecutionRates, NcclRates
    from blinksim.topology.link_columns import LinkColumns
    from blinksim.topology.routes import Router


__all__ = ["Device", "Link", "Topology", "from_networkx"]


@dataclass(frozen=True, repr=False)
class Topology(Tabular):
    """A machine, or the part of one that a collective runs on.

    Parameters
    ----------
    name, source : str
        Of the machine, and where its description comes from.
    devices : tuple of Device
        The vertices.
    links : tuple of Link
        The directed edges.
    members : tuple of str
        The devices that hold ranks, in rank order. Default: every GPU or tile, in file order.
    relays : tuple of str
        Devices without a rank that may forward, or reduce if they can.
    collective_links, inter_node_links : tuple of str
        The link classes that collectives use by default, and further ones once there are several nodes.
    nodes, rates : int, str
        Hosts; name of the rate table in force.
    fabric : Fabric, optional
        How copies of this node are joined by `replicate`.
    symmetries : tuple of tuple of int
        Permutations of the device indices that map the machine onto itself (checked before use).
    loaded_from, edits, execution, nccl_rates, of_nominal, lost : optional
        What `blinksim.load` read and at which table of rates; what was changed, as on the command line; what
        it costs the GPUs to run a program, and NCCL, as measured; the share that the table gives each link
        class of its nominal bandwidth, in which edits speak; what led to GPUs that were taken away, by GPU
        (of a node, or of every one) and class. No part of what makes topologies equal.

    Raises
    ------
    InputError
        For links of unknown devices, names given twice, and members that cannot hold a rank.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100")
    >>> machine.select("0-3").ranks, machine.without("gpu7").ranks
    (4, 7)
    >>> ends = ("gpu0", "gpu1"), ("gpu1", "gpu0")
    >>> pair = bs.Topology(
    ...     "pair",
    ...     (bs.Device("gpu0", "gpu"), bs.Device("gpu1", "gpu")),
    ...     tuple(bs.Link(src, dst, "nvlink", 25 * 10**9) for src, dst in ends),
    ... )
    >>> bs.bound(pair, "broadcast").rate_GBps
    25.0
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
    symmetries: tuple[tuple[int, ...], ...] = ()
    source: str = ""
    loaded_from: tuple[str, str] | None = field(default=None, compare=False)
    edits: tuple[str, ...] = field(default=(), compare=False)
    execution: ExecutionRates | None = field(default=None, compare=False)
    nccl_rates: NcclRates | None = field(default=None, compare=False)
    of_nominal: Mapping[str, Fraction] = field(default_factory=dict, compare=False)
    lost: Mapping[tuple[str, str], Fraction] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        elements.check_graph(self)
        if not self.members:
            object.__setattr__(self, "members", self.holders)
        elements.check_roles(self)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Of what makes topologies equal, as far as it is quickly read; asked for by every table of answers."""
        return hash((self.name, self.members, self.relays, self.nodes, self.rates, len(self.links), self.links[:64]))

    @cached_property
    def at_rates(self) -> dict[str, Topology]:
        """The same at other tables of rates, as far as they were asked for; `blinksim.machines.at_rates` fills it."""
        return {}

    @cached_property
    def ends(self) -> tuple[Ints, Ints]:
        """The position in `devices` of each link's source, and of its destination."""
        return self.link_columns.src, self.link_columns.dst

    @cached_property
    def link_columns(self) -> LinkColumns:
        """The links as columns of whole numbers; a large cluster is built with them."""
        from blinksim.topology.link_columns import LinkColumns

        return LinkColumns.of(self.links, self.index)

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each device in `devices`, by name."""
        return {device.name: position for position, device in enumerate(self.devices)}

    @cached_property
    def member_places(self) -> Ints:
        """Position in `devices` of each member, in rank order; read-only."""
        from blinksim.graphs.arrays import fixed

        return fixed(map(self.index.__getitem__, self.members), len(self.members))

    @cached_property
    def holders(self) -> tuple[str, ...]:
        """All GPUs, members or not, by name."""
        return tuple(device.name for device in self.devices if device.holds)

    @cached_property
    def device_nodes(self) -> Ints:
        """The host of each device, -1 for switches of the fabric; read-only."""
        from blinksim.graphs.arrays import fixed

        return fixed((device.node for device in self.devices), len(self.devices))

    @cached_property
    def out_links(self) -> tuple[tuple[int, ...], ...]:
        """For each device, the indices of the links that leave it."""
        leaving = grouped((link.src, number) for number, link in enumerate(self.links))
        return tuple(tuple(leaving.get(device.name, ())) for device in self.devices)

    def __getstate__(self) -> dict[str, Any]:
        """What it is, without what was worked out from it, such as routes: that is quick to find again."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def router(self) -> Router:
        """Routes between devices, found on demand and kept with the topology."""
        from blinksim.topology.routes import Router

        return Router(self)

    @property
    def title(self) -> str:
        """Its name, and how many nodes there are, such as ``4 x p5.48xlarge``."""
        return elements.titled(self.name, self.nodes)

    @property
    def unit(self) -> str:
        """What has a rank: ``GPU``, or of cards with several of these ``tile``."""
        return self.device(self.members[0]).kind.replace("gpu", "GPU")

    @property
    def taking_part(self) -> str:
        """Who takes part, such as ``32 GPUs of 4 x p5.48xlarge``."""
        return elements.taking_part(self.ranks, self.name, self.nodes, self.unit, self.members[0])

    @cached_property
    def link_classes(self) -> tuple[str, ...]:
        """The classes that occur, in the order in which they first do."""
        return self.link_columns.classes

    @property
    def edited_classes(self) -> tuple[str, ...]:
        """The classes that rates and edits may change: those that occur, and the fabric's last."""
        return tuple(dict.fromkeys((*self.link_classes, *([self.fabric.kind] if self.fabric else []))))

    @cached_property
    def in_network(self) -> tuple[str, ...]:
        """What some device can do on data in flight (`Device.in_network`), in the order of `BRANCHING`."""
        sorts = {(device.kind, device.can): device for device in self.devices}
        able = frozenset[str]().union(*(device.in_network for device in sorts.values()))
        return tuple(ability for ability in BRANCHING if ability in able)

    @property
    def ranks(self) -> int:
        return len(self.members)

    def device(self, name: str, what: str = "device", hint: str = "") -> Device:
        """The device called `name`; raises `InputError` with the nearest names if there is none.

        Or with those of its node of the sort that it begins with, where all that hold ranks are GPUs. what, hint: how
        the message begins and ends.
        """
        if name not in self.index:
            if self.fabric and name.startswith(("fabric", "leaf", "spine", "n0.", "n1.")):
                raise InputError(f"unknown {what} {name!r}: {self.name} is one node; links between nodes need nodes=2")
            own = (one for one in self.devices if one.name.startswith(name[: name.rfind(".") + 1]))
            sorts = grouped(("gpu" if one.holds else one.kind, one.name) for one in own)
            hint = hint or f"(blinksim topo show {(self.loaded_from or [self.name])[0]} lists them)"
            raise unknown(what, name, self.index, hint=hint, sorts=sorts)
        return self.devices[self.index[name]]

    def links_between(self, src: str, dst: str) -> list[Link]:
        """The links from `src` to `dst`, one per class."""
        return [self.links[i] for i in self.out_links[self.index[src]] if self.links[i].dst == dst]

    def with_links(self, links: Iterable[Link]) -> Topology:
        """The same devices with other links."""
        return replace(self, links=tuple(links))

    def rows(self) -> list[dict[str, Any]]:
        """One row per directed link."""
        return [keyed(link, "@Topology.rows") for link in self.links]

    def __repr__(self) -> str:
        counts = [f"{sum(d.kind == kind for d in self.devices)} {kind}" for kind in elements.DEVICE_KINDS]
        present = ", ".join(text for text in counts if not text.startswith("0 "))
        links = ", ".join(f"{sum(link.kind == kind for link in self.links)} {kind}" for kind in self.link_classes)
        edited = "".join(f"\n  edited: {edit}" for edit in self.edits)
        return (
            f"<Topology {self.name}: {count(self.nodes, 'node')}, {count(self.ranks, 'member')}\n"
            f"  devices: {present}\n"
            f"  links (directed): {links or 'none'}; rates: {self.rates}{edited}>"
        )

    def _repr_html_(self) -> str:
        from html import escape

        import pandas as pd

        facts = attrgetter("kind", "lanes", "bandwidth", "latency", "overhead")
        kinds = Counter((*facts(link), link.bus is not None) for link in self.links)
        rows, order = list[tuple[Any, ...]](), self.link_classes.index
        for facts_of, times in sorted(kinds.items(), key=lambda entry: (order(entry[0][0]), -entry[0][2])):
            kind, lanes, rate, *seconds, half = facts_of
            rows.append((kind, times, lanes, exact_GBps(rate), *map(format_time, seconds), "half" if half else "full"))
        columns, most = ("class", "links", "lanes", "GB/s", "latency", "overhead", "duplex"), 12
        more = f"<p>… {count(len(rows) - most, 'more kind')}</p>" if len(rows) > most else ""
        return f"<pre>{escape(repr(self))}</pre>{pd.DataFrame(rows[:most], columns=columns).to_html(index=False)}{more}"

    def default_links(self) -> tuple[str, ...]:
        """The classes that a collective uses by default."""
        chosen = self.collective_links + (self.inter_node_links if self.nodes > 1 else ())
        return tuple(kind for kind in dict.fromkeys(chosen) if kind in self.link_classes) or self.link_classes

    def select(
        self,
        members: Names | None = None,
        relays: Names | None = None,
        links: str | Iterable[str] | None = None,
        *,
        relays_reduce: bool = False,
        connected: bool = True,
        collective: Collective | None = None,
    ) -> Topology:
        """The part of the machine that a collective runs on.

        members, relays: names, or numbers that count the GPUs of this topology, as a list or as text such as
        ``0-3`` or ``gpu0,gpu3``; relays also ``none``, or ``idle`` for every GPU that is no member (default:
        this topology's). links: classes as a list, or as text such as ``nvlink,pcie`` or ``all``.

        Keeps the members (default: all of this topology's), the relays, every device that only forwards, and
        the links of the classes in `links` (default: `default_links`). GPUs that are neither member nor relay
        are left out with their links. Relays forward; with `relays_reduce` they can also reduce and
        multicast.

        Raises `InputError` for unknown names and `InfeasibleError` if what remains does not connect the
        members (as far as the collective needs, if one is given).

        >>> import blinksim as bs
        >>> bs.load("dgx1-v100").select([0, 1, 4], relays="idle").relays
        ('gpu2', 'gpu3', 'gpu5', 'gpu6', 'gpu7')
        """
        holders = self.holders
        chosen = self.members if members is None else selection.listed(members, holders, "members")
        if not chosen:
            raise InputError("no members: name at least one GPU")
        wanted = [name for name in self.relays if name not in chosen] if relays is None else relays
        helpers = selection.relay_names(wanted, chosen, holders)
        classes = self.default_links() if links is None else selection.class_names(links, self.link_classes)
        if links is None and len({self.device(name).node for name in (*chosen, *helpers)}) == 1:
            # GPUs of one node send inside it, as in a machine of that node alone.
            classes = tuple(kind for kind in classes if kind in self.collective_links) or classes
        each_of(f"link class of {self.name}:", classes, self.link_classes)
        keep = {*chosen, *helpers}
        for name in helpers if members is None else (*chosen, *helpers):
            self.device(name)
        can = frozenset(("forward", "multicast", "reduce") if relays_reduce else ("forward",))
        # A switch named as a relay keeps its own abilities. The new topology refuses a member that is also
        # a relay.
        forwarding = {name for name in helpers if self.device(name).holds} - {*chosen}
        there = [not device.holds or device.name in keep for device in self.devices]
        devices = [replace(d, can=can) if d.name in forwarding else d for d in compress(self.devices, there)]
        roles: dict[str, Any] = {"members": chosen, "relays": helpers}
        roles |= {"collective_links": classes, "inter_node_links": ()}
        if len(devices) == len(self.devices) and not forwarding and {*classes} == {*self.link_classes}:
            result = elements.regarded(self, **roles).pruned()
        else:
            names = {device.name for device in devices}
            among = (x.kind in classes and x.src in names and x.dst in names for x in self.links)
            result = elements.among(self, there, among, devices=tuple(devices), **roles).pruned()
        if connected:
            selection.require_connected(result, self, classes, collective)
        return result

    def selected(self) -> Topology:
        """This topology if it is what `select` gives, else its part with its default members and links."""
        # All members hold, and each is there once.
        whole = len(self.holders) > len(self.members)
        return self.select() if whole or set(self.default_links()) != set(self.link_classes) else self

    def pruned(self) -> Topology:
        """The machine without the forwarders that no link touches."""
        used = self.link_columns.touched(len(self.devices))
        used[self.member_places] = used[[self.index[name] for name in self.relays]] = True
        return self if used.all() else elements.among(self, used, repeat(True, len(self.links)))

    def components(self) -> list[list[str]]:
        """The members grouped by what can reach each other both ways, groups and members in rank order."""
        labels = selection.labels(self)[self.member_places].tolist()
        return list(grouped(zip(labels, self.members, strict=True)).values())

    # What-if edits, each of which returns another machine, and breaches of the rules of machine files.
    subset = what_if.subset
    without = what_if.without
    degrade = what_if.degrade
    replace = what_if.replace_links
    edit = what_if.apply
    check = rules.check

    def replicate(self, nodes: int, fabric: Fabric | None = None) -> Topology:
        """`nodes` copies joined by `fabric` (default: the one that the machine describes).

        >>> import blinksim as bs
        >>> bs.load("dgx-a100").replicate(4) == bs.load("dgx-a100", nodes=4)
        True
        """
        from blinksim.topology import cluster

        return cluster.replicate(self, nodes, fabric)

    def pair_rates(self) -> dict[tuple[str, str], Fraction | None]:
        """Bytes/s between each two members, by direct links or the best switched route; None without a route.

        >>> import blinksim as bs
        >>> bs.load("dgx1-v100").pair_rates()["gpu0", "gpu3"] / 10**9
        Fraction(50, 1)
        """
        from blinksim.topology import routes

        return routes.pair_rates(self)

    def to_networkx(self) -> nx.MultiDiGraph[str]:
        """A graph for NetworkX: devices as nodes, links as edges, with every field as an attribute.

        Nodes (device names): kind, node, can (sorted list), attributes, rank (None unless a member), relay,
        capacity_exact ("p/q" in GB/s) and capacity_GBps (float), both None for no limit. Edges (keyed by
        link class): bandwidth_exact ("p/q" in GB/s) and bandwidth_GBps (float) of all lanes together, lanes,
        latency and overhead (s), bus, number (position in `Topology.links`). The graph: name, members, relays
        and the other fields.
        """
        import networkx as nx

        graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=self.name)
        graph.graph.update({name: getattr(self, name) for name in _MACHINE})
        rank_of = {name: rank for rank, name in enumerate(self.members)}
        relays = set(self.relays)
        for device in self.devices:
            own = keyed(device, "kind node capacity_exact=capacity capacity_GBps=capacity")
            role = {"can": sorted(device.can), "rank": rank_of.get(device.name), "relay": device.name in relays}
            graph.add_node(device.name, **own, attributes=dict(device.attributes), **role)
        for number, link in enumerate(self.links):
            own = keyed(link, "bandwidth_exact=bandwidth bandwidth_GBps=bandwidth lanes latency overhead bus")
            graph.add_edge(link.src, link.dst, key=link.kind, **own, number=number)
        return graph


# --- graphs of NetworkX, as written for drawing, other programs and independent checks --------------------

# What belongs to the machine as a whole: attributes of the graph itself.
_OWN = ("name", "devices", "links")
_MACHINE = tuple(one.name for one in fields(Topology) if one.compare and one.name not in _OWN)
_DEVICE = ("kind", "node", "capacity_exact", "capacity_GBps", "can", "attributes", "rank", "relay")
_LINK = ("bandwidth_exact", "bandwidth_GBps", "lanes", "latency", "overhead", "bus", "number")


def _rate(data: Mapping[str, Any], name: str, where: str) -> Fraction | None:
    """Bytes/s from ``<name>_exact`` or else ``<name>_GBps`` of `data`; raises `InputError` if the two disagree."""
    exact, rounded = data.get(f"{name}_exact"), data.get(f"{name}_GBps")
    if (given := rounded if exact is None else exact) is None:
        return None
    no_rate = InputError(f"{where}: {given!r} is not a {name} in GB/s, such as 25 or 61/4")
    with blamed_on(lambda _: no_rate, (ValueError, TypeError, OverflowError)):
        if not NUMBER.fullmatch(text := str(given).strip()):
            raise ValueError(text)
        rate = Fraction(text)
        agree = rounded is None or math.isclose(float(rounded), float(rate), rel_tol=1e-9)
    if not agree:
        raise InputError(f"{where}: {name}_exact={exact} and {name}_GBps={rounded} disagree; change or drop both")
    return rate * 10**9


def from_networkx(graph: nx.MultiDiGraph[str], name: str | None = None) -> Topology:
    """A machine from a graph of NetworkX, with the attributes that `Topology.to_networkx` gives.

    Parameters
    ----------
    graph : networkx.MultiDiGraph
        A node needs no attributes (its kind is then gpu); an edge needs bandwidth_GBps or bandwidth_exact, of
        all its lanes together. The key of an edge is its link class; a number counts the links of the class
        ``link``. Members and relays are those in the graph's attributes.
    name : str, optional
        Of the machine. Default: the graph's.

    Returns
    -------
    Topology
        The machine.

    Raises
    ------
    InputError
        For an undirected or simple graph, an unknown attribute, values that contradict each other, and
        whatever `Topology` refuses.

    Examples
    --------
    >>> import blinksim as bs
    >>> import networkx as nx
    >>> graph = nx.MultiDiGraph(nx.cycle_graph(4))
    >>> nx.set_edge_attributes(graph, 25.0, "bandwidth_GBps")
    >>> bs.bound(bs.from_networkx(graph, "cycle"), "allgather").rate
    Fraction(200000000000, 3)
    """
    if not (hasattr(graph, "is_multigraph") and graph.is_directed() and graph.is_multigraph()):
        raise InputError("a machine is a MultiDiGraph: one directed edge per link, keyed by its class")
    machine = {key: value for key, value in graph.graph.items() if key != "name"}
    each_of("attribute of the graph:", map(str, machine), _MACHINE)
    devices = list[Device]()
    for node, data in graph.nodes(data=True):
        each_of(f"attribute of node {node}:", map(str, data), _DEVICE)
        place, capacity = data.get("node", 0), _rate(data, "capacity", f"node {node}")
        can, attributes = frozenset(data.get("can", ())), dict(data.get("attributes", {}))
        devices.append(Device(str(node), data.get("kind", "gpu"), place, capacity, can, attributes))
    numbered: list[tuple[int, Link]] = []
    for src, dst, kind, data in graph.edges(keys=True, data=True):
        # NetworkX numbers parallel edges that are given no key.
        known = kind if isinstance(kind, str) else f"link{kind or ''}"
        numbered.append((data.get("number", len(numbered)), _link(str(src), str(dst), known, data)))
    links = tuple(link for _, link in sorted(numbered, key=lambda pair: pair[0]))
    called = name if name is not None else graph.graph.get("name") or "graph"
    topology = Topology(called, tuple(devices), links, **machine)
    rank_of = {member: rank for rank, member in enumerate(topology.members)}
    for node, data in graph.nodes(data=True):
        for key, real in (("rank", rank_of.get(str(node))), ("relay", str(node) in topology.relays)):
            if key in data and data[key] != real:
                raise InputError(f"node {node}: {key}={data[key]}, but members and relays of the graph make it {real}")
    return topology


def _link(src: str, dst: str, kind: str, data: Mapping[str, Any]) -> Link:
    where = f"link {src}->{dst} ({kind})"
    each_of(f"attribute of {where}:", map(str, data), _LINK)
    lanes = data.get("lanes", 1)
    if not isinstance(lanes, int) or lanes < 1:
        raise InputError(f"{where}: lanes={lanes!r} is not a positive whole number")
    if (rate := _rate(data, "bandwidth", where)) is None:
        raise InputError(f"{where}: has no bandwidth; set bandwidth_GBps or bandwidth_exact (GB/s)")
    latency, overhead = data.get("latency", 0.0), data.get("overhead", 0.0)
    return Link(src, dst, kind, rate / lanes, lanes, latency, overhead, data.get("bus"))
