"""The NetworkX view of a topology: devices as nodes, links as edges keyed by their class, fields as attributes."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from blinksim.units import exact_GBps

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
    capacity_exact ("p/q" in GB/s) and capacity_GBps (float), both None for no limit. Edges (keyed by link class):
    bandwidth_exact ("p/q" in GB/s) and bandwidth_GBps (float) of all lanes together, lanes, latency and overhead (s),
    bus, number (position in `Topology.links`). The graph: name, members, relays and the other fields.
    """
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=topology.name)
    graph.graph.update({name: getattr(topology, name) for name in machine_fields(topology)})
    rank_of = {name: rank for rank, name in enumerate(topology.members)}
    relays = set(topology.relays)
    for device in topology.devices:
        graph.add_node(
            device.name,
            kind=device.kind,
            node=device.node,
            capacity_exact=None if device.capacity is None else exact_GBps(device.capacity),
            capacity_GBps=None if device.capacity is None else float(device.capacity / 10**9),
            can=sorted(device.can),
            attributes=dict(device.attributes),
            rank=rank_of.get(device.name),
            relay=device.name in relays,
        )
    for number, link in enumerate(topology.links):
        graph.add_edge(
            link.src,
            link.dst,
            key=link.kind,
            bandwidth_exact=exact_GBps(link.bandwidth),
            bandwidth_GBps=float(link.bandwidth / 10**9),
            lanes=link.lanes,
            latency=link.latency,
            overhead=link.overhead,
            bus=link.bus,
            number=number,
        )
    return graph
