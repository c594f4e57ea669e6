"""How soon messages can have reached all ranks of two nodes, against every schedule of messages without bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations

import networkx
import pytest
from hypothesis import given, settings, strategies as st
from strategies import topologies

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.bounds.time.delays import LONG, delays, femtoseconds
from blinksim.bounds.time.message_counts import Port, spread, spreading
from blinksim.timing.contest import ceiling_of, least_time_of


def test_two_nodes_of_eight_by_hand() -> None:
    """1.9 us inside and one start every 1.3 us; 5.6 us over the own NIC, every 0.9 us; 6.6 us over another one's NIC.

    Outside: 5.6; 6.5; 6.6; 7.4; 7.5 by the second rank's NIC, and by the first one outside; 7.9; 8.3 twice.
    """
    part = bs.Question("hgx-h200", nodes=2).part()
    found = bs.time_bound(part, "allgather", "4KiB").best
    assert found.kind == "nodes-informed"
    assert found.to_dict()["time_us"] == "8.3"
    assert found.check(part, bs.Collective("allgather"), 4096) == []


@settings(max_examples=25)
@given(st.lists(st.integers(1, 6), min_size=4, max_size=4), st.integers(1, 2))
def test_no_order_of_messages_is_quicker(delays: list[int], inside: int) -> None:
    """Four ranks, each with one port: every order in which they hear, and whoever tells whom."""
    spacing, near, far, back = delays
    near, far, back = near + spacing, far + spacing, back + spacing
    ports = (Port(spacing, near, far),), (Port(spacing, back, near),)
    least = min(max(heard) for order in permutations(range(1, 4)) for heard in ways(order, ports, inside))
    assert max(map(max, spread(ports, (inside, 4 - inside)))) <= least


def ways(order: tuple[int, ...], ports: tuple[tuple[Port], tuple[Port]], inside: int) -> list[list[int]]:
    """When the ranks hear, for each choice of who tells them, one after another in this order."""
    found = [([0, *[-1] * 3], [0] * 4)]
    for rank in order:
        more = []
        for heard, free in found:
            for teller in (one for one in range(4) if heard[one] >= 0):
                port = ports[teller >= inside][0]
                start = max(free[teller], heard[teller])
                then, busy = heard.copy(), free.copy()
                then[rank] = start + (port.outside if rank >= inside else port.inside)
                busy[teller] = start + port.spacing
                more.append((then, busy))
        found = more
    return [heard for heard, _ in found]


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "p5", "l40s-pcie", "perlmutter", "dgx1-v100", "mi300x"])
@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "allgather", "alltoall"])
def test_small_messages_take_no_less_on_more_nodes(machine: str, collective: str) -> None:
    """On 2 to 64 nodes, up to 512 ranks; and binomial trees, one message after another, take no less than that."""
    least = list[float]()
    asked = bs.Collective(collective)
    for nodes in (2, 4, 8, 9, 16, 17, 64):
        part = bs.Question(machine, nodes=nodes).part()
        least.append(least_time_of(part, asked, 64, ceiling_of(part, asked)).time_s)
        if collective == "broadcast" and nodes in (8, 17):
            took = bs.simulate(algorithm("binomial").build(part, asked), 64).time_s
            assert least[-1] <= took
    assert all(few <= more * (1 + 1e-9) for few, more in pairwise(least)), least
    assert least[-1] > least[0]


@pytest.mark.parametrize(
    ("machine", "nodes"),
    [
        ("aurora", (4, 16, 21, 22, 64)),
        ("p5", (4, 8, 9, 32, 33, 128)),
        ("dgx-a100", (8, 9, 17)),
        ("frontier", (32, 33, 64)),
        ("dgx2", (16, 17, 64)),
    ],
)
def test_an_allreduce_of_some_size_takes_no_less_on_more_nodes(machine: str, nodes: tuple[int, ...]) -> None:
    """On thousands of ranks too, also where neither bytes nor the number of messages decide alone."""
    asked, least = bs.Collective("allreduce"), list[float]()
    for part in (bs.Question(machine, nodes=number).part() for number in nodes):
        least.append(least_time_of(part, asked, 2**20, ceiling_of(part, asked)).time_s)
    assert all(few <= more * (1 + 1e-9) for few, more in pairwise(least)), least


@pytest.mark.parametrize(
    ("machine", "edits"),
    [
        ("aurora", ()),
        ("dgx-a100", ("without n1.nic0",)),
        ("dgx1-v100", ("without n2.gpu0-n2.gpu3", "without n0.nic1")),
        ("p5", ("without n2.efa0",)),
    ],
)
def test_ways_of_nodes_that_are_alike_are_those_of_each(machine: str, edits: tuple[str, ...]) -> None:
    """From every rank, by Dijkstra's algorithm on the links without those into it; nothing there knows of nodes."""
    part = bs.Question(machine, nodes=4, edits=edits).part()
    facts = delays(part, bs.Collective("allreduce"))
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    for link in part.links:
        graph.add_edge(link.src, link.dst, time=femtoseconds(link.latency), more=femtoseconds(link.overhead))
    ways = facts.ways(facts.ranks).tolist()
    for rank, name in enumerate(part.members):
        others = graph.copy()
        others.remove_node(name)
        first = {there: edge["time"] + edge["more"] for there, edge in graph[name].items()}
        others.add_weighted_edges_from(((name, there, time) for there, time in first.items()), weight="time")
        far = networkx.single_source_dijkstra_path_length(others, name, weight="time")
        wanted = [far[other] if other != name else LONG for other in part.members]
        assert ways[rank] == wanted


@settings(max_examples=50)
@given(topologies(relays=True), st.data())
def test_the_least_message_goes_along_a_route_without_circles(machine: bs.Topology, data: st.DataObject) -> None:
    """Of all routes from one device that holds data to another, by walking every one."""
    links = tuple(replace(x, latency=data.draw(st.integers(0, 9)) * 1e-6, overhead=data.draw(st.integers(0, 9)) * 1e-6)
                  for x in machine.links)  # fmt: skip
    drawn = replace(machine, links=links)
    holders = {device.name for device in drawn.devices if device.holds}

    def routes(way: tuple[str, ...]) -> Iterator[int]:
        for link in links:
            if link.src == way[-1] and link.dst not in way:
                here = femtoseconds(link.latency) + (femtoseconds(link.overhead) if len(way) == 1 else 0)
                if link.dst in holders:
                    yield here
                yield from (here + more for more in routes((*way, link.dst)))

    least = min(time for name in holders for time in routes((name,)))
    found = spreading(delays(drawn, bs.Collective("allreduce")))
    assert found is not None
    assert found.message == least


@pytest.mark.parametrize("collective", ["alltoall", "allgather"])
@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "nd-a100-v4"])
def test_a_machine_that_lost_adapters_is_bound_as_it_was_or_later(machine: str, collective: str) -> None:
    """What it can do the whole one can: one NIC, some of a node, most of all nodes."""
    whole = bs.time_bound(bs.load(machine, nodes=2), collective, "8KiB")
    for lost in ("n0.nic0", "n0.nic[0-3]", "n[0-1].nic[1-7]"):
        poorer = bs.time_bound(bs.load(machine, nodes=2, edits=[f"without {lost}"]), collective, "8KiB")
        assert poorer.time_s >= whole.time_s
