"""Views of a topology: a graph of NetworkX, a headline, and one row for each kind of link."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING

from blinksim.results import keyed
from blinksim.textio.text_table import count
from blinksim.topology.elements import DEVICE_KINDS
from blinksim.units import exact_GBps, format_time

if TYPE_CHECKING:
    import networkx as nx

    from blinksim.topology.graph import Topology


def machine_fields(topology: Topology | type[Topology]) -> tuple[str, ...]:
    """The fields that belong to the machine as a whole: attributes of the graph itself."""
    own = ("name", "devices", "links")
    return tuple(field.name for field in fields(topology) if field.compare and field.name not in own)


def to_networkx(topology: Topology) -> nx.MultiDiGraph[str]:
    """The link graph with every field as an attribute.

    Nodes (device names): kind, node, can (sorted list), attributes, rank (None unless a member), relay,
    capacity_exact ("p/q" in GB/s) and capacity_GBps (float), both None for no limit. Edges (keyed by link
    class): bandwidth_exact ("p/q" in GB/s) and bandwidth_GBps (float) of all lanes together, lanes, latency
    and overhead (s), bus, number (position in `Topology.links`). The graph: name, members, relays and the
    other fields.
    """
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=topology.name)
    graph.graph.update({name: getattr(topology, name) for name in machine_fields(topology)})
    rank_of = {name: rank for rank, name in enumerate(topology.members)}
    relays = set(topology.relays)
    for device in topology.devices:
        own = keyed(device, "kind node capacity_exact=capacity capacity_GBps=capacity")
        role = {"can": sorted(device.can), "rank": rank_of.get(device.name), "relay": device.name in relays}
        graph.add_node(device.name, **own, attributes=dict(device.attributes), **role)
    for number, link in enumerate(topology.links):
        own = keyed(link, "bandwidth_exact=bandwidth bandwidth_GBps=bandwidth lanes latency overhead bus")
        graph.add_edge(link.src, link.dst, key=link.kind, **own, number=number)
    return graph


def headline(topology: Topology) -> str:
    """What it is made of, at which rates, and after which edits."""
    counts = [f"{sum(d.kind == kind for d in topology.devices)} {kind}" for kind in DEVICE_KINDS]
    present = ", ".join(text for text in counts if not text.startswith("0 "))
    links = ", ".join(f"{sum(link.kind == kind for link in topology.links)} {kind}" for kind in topology.link_classes)
    edited = "".join(f"\n  edited: {edit}" for edit in topology.edits)
    return (
        f"<Topology {topology.name}: {count(topology.nodes, 'node')}, {count(topology.ranks, 'member')}\n"
        f"  devices: {present}\n"
        f"  links (directed): {links or 'none'}; rates: {topology.rates}{edited}>"
    )


def html(topology: Topology) -> str:
    """The headline, and a table of the links: how many of each class, lanes and bandwidth there are."""
    import pandas as pd

    kinds = Counter(
        (link.kind, link.lanes, link.bandwidth, link.latency, link.overhead, link.bus is not None)
        for link in topology.links
    )
    order = {kind: number for number, kind in enumerate(topology.link_classes)}
    columns = ("class", "links", "lanes", "GB/s", "latency", "overhead", "duplex")
    rows = [
        (kind, times, lanes, exact_GBps(rate), *map(format_time, seconds), "half" if half else "full")
        for (kind, lanes, rate, *seconds, half), times in sorted(
            kinds.items(), key=lambda entry: (order[entry[0][0]], -entry[0][2])
        )
    ]
    most = 12
    more = f"<p>… {count(len(rows) - most, 'more kind')}</p>" if len(rows) > most else ""
    return f"<pre>{escape(repr(topology))}</pre>{pd.DataFrame(rows[:most], columns=columns).to_html(index=False)}{more}"
