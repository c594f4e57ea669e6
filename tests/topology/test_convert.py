from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given
from machines_for_tests import dgx1, with_pcie
from strategies import topologies

from blinksim.errors import InputError
from blinksim.machines import load
from blinksim.topology.elements import Fabric
from blinksim.topology.graph import Device, Link, Topology, from_networkx


@given(topologies(relays=True))
def test_round_trip(machine: Topology) -> None:
    assert from_networkx(machine.to_networkx()) == machine


def test_round_trip_keeps_everything() -> None:
    third = Fraction(10**10, 3)
    machine = Topology(
        "odd",
        (
            Device("b", "gpu", 1, third, frozenset({"hold", "reduce"}), {"bus id": "0000:01", "sm": 90}),
            Device("a", "tile"),
            Device("s", "fabric", -1),
        ),
        (Link("b", "a", "x", third, 3, 1e-6, 2e-6, "bus"), Link("a", "b", "x", third, 3, bus="bus")),
        members=("a", "b"),
        collective_links=("x",),
        inter_node_links=("y",),
        nodes=2,
        rates="measured",
        fabric=Fabric("switch", ("b",), "net", third),
        symmetries=((0, 1, 2),),
        source="a page",
    )
    back = from_networkx(machine.to_networkx())
    assert back == machine
    assert back.devices[0].attributes == {"bus id": "0000:01", "sm": 90}  # not part of the hash, so named here
    assert from_networkx(machine.to_networkx(), "new").name == "new"


@pytest.mark.parametrize("text", ["torus:3x2", "rails:2x2", "fattree:4x1"])
def test_round_trip_of_generated_machines(text: str) -> None:
    machine = load(text)
    assert from_networkx(machine.to_networkx()) == machine


def test_the_graph_answers_peoples_questions() -> None:
    graph = with_pcie(dgx1("DGX-1V")).to_networkx()
    assert graph["gpu0"]["gpu3"]["nvlink"]["bandwidth_GBps"] == 40.0
    assert graph["gpu0"]["gpu3"]["nvlink"]["lanes"] == 2
    assert graph.nodes["plx0"]["kind"] == "pcie"
    assert [graph.nodes[f"gpu{i}"]["rank"] for i in (0, 7)] == [0, 7]
    assert graph.nodes["cpu0"]["rank"] is None
    assert nx.shortest_path_length(graph, "gpu0", "gpu7") == 2
    assert graph.graph["members"] == tuple(f"gpu{i}" for i in range(8))
    # The cut bound of a broadcast on the whole machine: six lanes enter every GPU.
    assert nx.maximum_flow_value(nvlink_only(graph), "gpu0", "gpu5", capacity="bandwidth_GBps") == 120


def nvlink_only(graph: nx.MultiDiGraph[str]) -> nx.DiGraph[str]:
    return nx.DiGraph([(a, b, data) for a, b, kind, data in graph.edges(keys=True, data=True) if kind == "nvlink"])


def test_a_graph_drawn_by_hand_needs_little() -> None:
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_edge("a", "b", key="wire", bandwidth_GBps=2.5)
    graph.add_edge("b", "a", key="wire", bandwidth_exact="5/2", lanes=2)
    machine = from_networkx(graph)
    assert machine.name == "graph"
    assert machine.members == ("a", "b")
    assert [x.bandwidth for x in machine.links] == [25 * 10**8] * 2
    assert [x.lanes for x in machine.links] == [1, 2]


def changed(where: str, **values: object) -> nx.MultiDiGraph[str]:
    graph = dgx1("DGX-1P").to_networkx()
    if where == "graph":
        graph.graph.update(values)
    elif where == "node":
        graph.nodes["gpu0"].update(values)
    else:
        graph["gpu0"]["gpu1"]["nvlink"].update(values)
    return graph


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (nx.Graph([("a", "b")]), "one directed edge per link"),
        (nx.DiGraph([("a", "b")]), "one directed edge per link"),
        (nx.MultiDiGraph([("a", "b")]), "link a->b (link): has no bandwidth"),
        (changed("graph", membres=()), "unknown attribute of the graph: 'membres': did you mean 'members'"),
        (changed("node", knd="gpu"), "unknown attribute of node gpu0: 'knd': did you mean 'kind'"),
        (changed("node", kind="gpo"), "unknown device kind 'gpo'"),
        (changed("node", rank=5), "rank=5, but members and relays of the graph make it 0"),
        (changed("node", relay=True), "relay=True, but members"),
        (changed("node", capacity_exact="much"), "'much' is not a capacity in GB/s"),
        (changed("link", width=3), "unknown attribute of link gpu0->gpu1 (nvlink): 'width'"),
        (changed("link", bandwidth_GBps=99.0), "bandwidth_exact=20 and bandwidth_GBps=99.0 disagree"),
        (changed("link", bandwidth_exact="1/0"), "'1/0' is not a bandwidth in GB/s"),
        (changed("link", bandwidth_exact=None, bandwidth_GBps="fast"), "'fast' is not a bandwidth"),
        (changed("link", bandwidth_exact=None, bandwidth_GBps=float("nan")), "nan is not a bandwidth"),
        (changed("link", bandwidth_exact="-20", bandwidth_GBps=None), "bandwidth must be positive"),
        (changed("link", lanes=0), "lanes=0 is not a positive whole number"),
        (changed("link", lanes=1.5), "lanes=1.5 is not a positive whole number"),
    ],
)
def test_graphs_that_describe_no_machine_are_refused(graph: nx.MultiDiGraph[str], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        from_networkx(graph)


def test_an_edited_graph_is_read_as_edited() -> None:
    graph = changed("link", bandwidth_exact="7", bandwidth_GBps=7.0)
    machine = from_networkx(graph)
    assert machine == replace(machine, links=dgx1("DGX-1P").edit("replace gpu0->gpu1 bandwidth=7GB/s").links)
