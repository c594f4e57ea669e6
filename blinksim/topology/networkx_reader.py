"""Topologies from NetworkX graphs, as written for drawing, other programs and independent checks.

A `networkx.MultiDiGraph` keeps every device as a node and every link as an edge keyed by its class; what
belongs to the machine as a whole is kept in the graph's attributes. `from_networkx(to_networkx(t))` equals
`t`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from blinksim.errors import InputError, unknown
from blinksim.topology.elements import Device, Link
from blinksim.topology.graph import Topology, machine_fields
from blinksim.units import NUMBER

if TYPE_CHECKING:
    import networkx as nx

_MACHINE = machine_fields(Topology)
_DEVICE = ("kind", "node", "capacity_exact", "capacity_GBps", "can", "attributes", "rank", "relay")
_LINK = ("bandwidth_exact", "bandwidth_GBps", "lanes", "latency", "overhead", "bus", "number")


def _rate(data: Mapping[str, Any], name: str, where: str) -> Fraction | None:
    """Bytes/s from ``<name>_exact`` or else ``<name>_GBps`` of `data`; raises `InputError` if the two disagree."""
    exact, rounded = data.get(f"{name}_exact"), data.get(f"{name}_GBps")
    if (given := rounded if exact is None else exact) is None:
        return None
    try:
        if not NUMBER.fullmatch(text := str(given).strip()):
            raise ValueError(text)
        rate = Fraction(text)
        agree = rounded is None or math.isclose(float(rounded), float(rate), rel_tol=1e-9)
    except (InputError, ValueError, TypeError, OverflowError):
        raise InputError(f"{where}: {given!r} is not a {name} in GB/s, such as 25 or 61/4") from None
    if not agree:
        raise InputError(f"{where}: {name}_exact={exact} and {name}_GBps={rounded} disagree; change or drop both")
    return rate * 10**9


def _known(where: str, data: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in data:
        if key not in known:
            raise unknown(f"attribute of {where}:", str(key), known)


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
    _known("the graph", machine, _MACHINE)
    devices = list[Device]()
    for node, data in graph.nodes(data=True):
        _known(f"node {node}", data, _DEVICE)
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
    _known(where, data, _LINK)
    lanes = data.get("lanes", 1)
    if not isinstance(lanes, int) or lanes < 1:
        raise InputError(f"{where}: lanes={lanes!r} is not a positive whole number")
    rate = _rate(data, "bandwidth", where)
    if rate is None:
        raise InputError(f"{where}: has no bandwidth; set bandwidth_GBps or bandwidth_exact (GB/s)")
    latency, overhead = data.get("latency", 0.0), data.get("overhead", 0.0)
    return Link(src, dst, kind, rate / lanes, lanes, latency, overhead, data.get("bus"))
