from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from machines_for_tests import dgx1
from strategies import topologies

import blinksim as bs
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.topology.cluster import nodes_of, place, replicate
from blinksim.topology.elements import SHAPES, Fabric, Level
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.symmetry import is_automorphism, orbits

G = Fraction(10**9)


def node(gpus: int = 2, nics: int = 2, *, symmetric: bool = True) -> Topology:
    """GPUs, all linked to a switch, and NICs there too; GPUs and NICs may be turned."""
    names = [f"gpu{i}" for i in range(gpus)] + ["sw"] + [f"nic{i}" for i in range(nics)]
    kinds = ["gpu"] * gpus + ["switch"] + ["nic"] * nics
    links = [Link(a, b, "pcie", G) for x in names if x != "sw" for a, b in ((x, "sw"), ("sw", x))]
    turn_gpus = (*range(1, gpus), 0, *range(gpus, gpus + 1 + nics))
    turn_nics = (*range(gpus + 1), *(gpus + 1 + (i + 1) % nics for i in range(nics)))
    return Topology(
        "box",
        tuple(Device(n, k) for n, k in zip(names, kinds, strict=True)),
        tuple(links),
        collective_links=("pcie",),
        symmetries=(turn_gpus, turn_nics) if symmetric else (),
    )


def fabric(shape: str = "switch", nics: int = 2, **more: Any) -> Fabric:
    return Fabric(shape, tuple(f"nic{i}" for i in range(nics)), "net", 2 * G, latency=1e-6, **more)


def test_copies_are_named_and_joined() -> None:
    cluster = node().replicate(3, fabric())
    assert cluster.nodes == 3
    assert cluster.members == ("n0.gpu0", "n0.gpu1", "n1.gpu0", "n1.gpu1", "n2.gpu0", "n2.gpu1")
    assert cluster.device("n2.sw").node == 2
    assert cluster.device("fabric").node == -1
    assert {(x.src, x.bandwidth, x.latency) for x in cluster.links if x.dst == "fabric"} == {
        (f"n{n}.nic{i}", 2 * G, 1e-6) for n in range(3) for i in range(2)
    }
    assert cluster.inter_node_links == ("net",)  # named by the fabric, not by the node
    assert cluster.select().ranks == 6


def test_one_node_is_itself_and_the_machines_own_fabric_is_used() -> None:
    machine = replace(node(), fabric=fabric())
    assert machine.replicate(1) is machine
    assert machine.replicate(2).links == replicate(node(), 2, fabric()).links


def test_buses_members_and_relays_are_copied() -> None:
    devices = tuple(Device(name, "gpu") for name in ("a", "b", "c"))
    links = [Link(x, y, "pcie", G, bus="wire") for x, y in (("a", "b"), ("b", "a"))]
    links += [Link(x, y, "pcie", G) for x, y in (("b", "c"), ("c", "b"))]
    machine = Topology("t", devices, tuple(links)).select(["c", "a"], ["b"])
    cluster = machine.replicate(2, Fabric("switch", ("a",), "net", G))
    assert cluster.members == ("n0.c", "n0.a", "n1.c", "n1.a")
    assert cluster.relays == ("n0.b", "n1.b")
    assert {x.bus for x in cluster.links} == {None, "n0.wire", "n1.wire"}


@pytest.mark.parametrize(("planes", "shared"), [(1, [[0, 1, 2, 3]]), (2, [[0, 2], [1, 3]]), (4, [[0], [1], [2], [3]])])
def test_ports_are_dealt_to_planes(planes: int, shared: list[list[int]]) -> None:
    cluster = node(2, 4).replicate(2, fabric(nics=4, planes=planes))
    tops = [d.name for d in cluster.devices if d.kind == "fabric"]
    assert len(tops) == planes
    for top, ports in zip(tops, shared, strict=True):
        assert {x.dst for x in cluster.links if x.src == top} == {f"n{n}.nic{p}" for n in (0, 1) for p in ports}


def test_a_tree_has_leaves_with_uplinks_for_all_their_ports() -> None:
    cluster = node().replicate(5, fabric("tree", leaf_nodes=2, oversubscription=Fraction(4)))
    assert [d.name for d in cluster.devices if d.kind == "fabric"] == ["fabric", *(f"fabric.leaf{i}" for i in range(3))]
    assert {x.bandwidth for x in cluster.links if x.src == "fabric"} == {2 * G}  # 2 nodes x 2 NICs x 2 GB/s / 4
    assert {x.src for x in cluster.links if x.dst == "fabric.leaf2"} == {"fabric", "n4.nic0", "n4.nic1"}
    assert cluster.select().ranks == 10


def carried(cluster: Topology, a: str, b: str) -> Fraction:
    (link,) = cluster.links_between(a, b)
    return link.bandwidth


def test_rails_meet_at_one_spine() -> None:
    levels = (Level(2, planes=2, oversubscription=Fraction(2)), Level())
    cluster = node().replicate(4, fabric("levels", levels=levels))
    tops = [d.name for d in cluster.devices if d.kind == "fabric"]
    assert tops == ["fabric", "fabric0.leaf0", "fabric0.leaf1", "fabric1.leaf0", "fabric1.leaf1"]
    assert {x.dst for x in cluster.links if x.src == "n3.nic1" and x.kind == "net"} == {"fabric1.leaf1"}
    assert carried(cluster, "fabric1.leaf1", "fabric") == 2 * G  # 2 nodes x 1 NIC x 2 GB/s / 2
    assert carried(cluster, "n0.nic0", "fabric0.leaf0") == 2 * G


def test_oversubscriptions_of_levels_multiply() -> None:
    levels = (Level(2), Level(4, oversubscription=Fraction(4)), Level())
    cluster = node().replicate(8, fabric("levels", levels=levels))
    assert carried(cluster, "fabric.leaf3", "fabric.level2.1") == 8 * G  # 2 nodes x 2 NICs x 2 GB/s
    assert carried(cluster, "fabric.level2.1", "fabric") == 4 * G  # 4 nodes x 2 NICs x 2 GB/s / 4
    again = node().replicate(8, fabric("levels", levels=(Level(2, oversubscription=Fraction(2)), *levels[1:])))
    assert carried(again, "fabric.level2.1", "fabric") == 2 * G


def test_a_tree_is_two_levels() -> None:
    tree = node(2, 4).replicate(5, fabric("tree", 4, planes=2, leaf_nodes=2, oversubscription=Fraction(3)))
    levels = (Level(2, 2, Fraction(3)), Level(planes=2))
    assert node(2, 4).replicate(5, fabric("levels", 4, levels=levels)) == tree


def test_every_two_groups_of_a_dragonfly_are_linked() -> None:
    cluster = node().replicate(5, fabric("dragonfly", group_nodes=2, group_links=3))
    groups = [d.name for d in cluster.devices if d.kind == "fabric"]
    assert groups == ["fabric.group0", "fabric.group1", "fabric.group2"]
    assert {carried(cluster, a, b) for a in groups for b in groups if a != b} == {6 * G}
    assert {x.src for x in cluster.links if x.dst == "fabric.group2" and x.src[0] == "n"} == {"n4.nic0", "n4.nic1"}


@pytest.mark.parametrize("present", [2, 3, 4, 5, 6])
def test_the_links_of_a_group_lead_to_those_that_are_there(present: int) -> None:
    """Of five groups each has 3 links to four others, 24 GB/s, also by way of absent ones; a sixth adds 3 links."""
    cluster = node().replicate(2 * present, fabric("dragonfly", group_nodes=2, group_links=3, groups=5))
    out = sum(carried(cluster, "fabric.group0", f"fabric.group{other}") for other in range(1, present))
    assert out == (24 if present <= 5 else 30) * G


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
def test_direct_wires_join_every_two_nodes_and_use_a_port_once(nodes: int) -> None:
    cluster = node(1, 4).replicate(nodes, fabric("direct", nics=4))
    wires = [x for x in cluster.links if x.kind == "net"]
    joined = {frozenset((x.src.split(".")[0], x.dst.split(".")[0])) for x in wires}
    assert len(joined) == nodes * (nodes - 1) // 2
    assert len({x.src for x in wires}) == len(wires)
    assert len(wires) == (2 * 4 if nodes == 2 else nodes * (nodes - 1))
    assert cluster.select().ranks == nodes


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: node().replicate(2), InfeasibleError, "box describes no fabric to join 2 nodes with"),
        (lambda: node().replicate(0, fabric()), InputError, "0 nodes; give at least 1"),
        (lambda: node().replicate(2, fabric()).replicate(2, fabric()), InputError, "already is a cluster of 2 nodes"),
        (lambda: node().replicate(10**9, fabric()), InputError, "of these are built; take fewer"),
        (lambda: node().replicate(4, fabric("direct")), InputError, "need 3 ports each; this machine has 2"),
        (lambda: node().replicate(2, fabric(nics=3)), InputError, "unknown device 'nic2'"),
        (lambda: fabric("star"), InputError, "unknown fabric shape 'star'"),
        (lambda: fabric(nics=0), InputError, "at least one port"),
        (lambda: fabric(planes=3), InputError, "3 planes for 2 ports"),
        (lambda: fabric(planes=0), InputError, "0 planes for 2 ports"),
        (lambda: fabric("tree", leaf_nodes=0), InputError, "must be at least 1"),
        (lambda: fabric("tree", oversubscription=Fraction(1, 2)), InputError, "must be at least 1"),
    ],
)
def test_what_cannot_be_joined_is_refused(make: Callable[[], object], kind: type[BlinksimError], words: str) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        make()


@given(
    st.sampled_from(SHAPES),
    st.integers(1, 3),
    st.integers(2, 9),
    st.integers(1, 4),
    st.data(),
)
def test_symmetries_of_clusters_are_true_ones(
    shape: str, nics: int, nodes: int, leaf_nodes: int, data: st.DataObject
) -> None:
    if shape == "direct":
        nodes = min(nodes, nics + 1)
    planes = data.draw(st.integers(1, nics))
    more: dict[str, Any] = {}
    if shape == "levels":
        above = data.draw(st.integers(1, planes))
        more["levels"] = (Level(leaf_nodes, planes), Level(leaf_nodes * data.draw(st.integers(1, 3)), above), Level())
    elif shape == "dragonfly":
        more = {"group_nodes": leaf_nodes, "group_links": 2}
    if nodes > 1:
        cluster = node(3, nics).replicate(nodes, fabric(shape, nics, planes=planes, leaf_nodes=leaf_nodes, **more))
        for perm in cluster.symmetries:
            assert is_automorphism(cluster, perm)


@pytest.mark.parametrize(
    "joined",
    [
        fabric("levels", levels=(Level(2, planes=2), Level(4), Level())),
        fabric("dragonfly", group_nodes=2, group_links=1),
        fabric("tree", leaf_nodes=4),
    ],
)
def test_all_nodes_of_full_groups_are_alike(joined: Fabric) -> None:
    cluster = node().replicate(8, joined)
    found = [{cluster.devices[place].name for place in orbit} for orbit in orbits(cluster)]
    assert set(cluster.members) in found


@pytest.mark.parametrize(
    ("shape", "more", "expected"),
    [
        ("switch", {}, [1, 4, 8, 12]),  # the fabric, 4 switches, 8 NICs, 12 GPUs
        ("switch", {"planes": 2}, [2, 4, 8, 12]),
        ("tree", {"leaf_nodes": 2}, [1, 2, 4, 8, 12]),
        ("tree", {"leaf_nodes": 2, "planes": 2}, [2, 4, 4, 8, 12]),
        ("tree", {"leaf_nodes": 3}, [1, 1, 1, 1, 2, 3, 3, 6, 9]),  # the last leaf has one node
        ("tree", {"leaf_nodes": 9}, [1, 1, 4, 8, 12]),
    ],
)
def test_symmetries_reach_all_equal_devices(shape: str, more: dict[str, int], expected: list[int]) -> None:
    cluster = node(3, 2).replicate(4, fabric(shape, **more))
    assert sorted(map(len, orbits(cluster))) == expected


def test_two_nodes_wired_directly_are_alike() -> None:
    cluster = node(2, 2).replicate(2, fabric("direct"))
    assert sorted(map(len, orbits(cluster))) == [2, 4, 4]


def test_nodes_and_rails_without_known_symmetries_can_still_be_exchanged() -> None:
    """Two rails, each a GPU, a NIC and a switch of the fabric, and the switch of every node."""
    cluster = node(2, 2, symmetric=False).replicate(5, fabric(planes=2))
    assert sorted(map(len, orbits(cluster))) == [2, 5, 10, 10]


@given(topologies(max_devices=5), st.integers(2, 4))
@settings(max_examples=25)
def test_any_machine_can_be_replicated(machine: Topology, nodes: int) -> None:
    cluster = machine.replicate(nodes, Fabric("switch", (machine.members[0],), "net", G))
    assert cluster.select().ranks == nodes * machine.ranks
    assert len(cluster.links) == nodes * (len(machine.links) + 2)
    assert all(is_automorphism(cluster, perm) for perm in cluster.symmetries)


def test_place_takes_the_first_members_of_every_node() -> None:
    cluster = dgx1("DGX-1V").replicate(2, Fabric("switch", ("gpu0",), "net", G))
    assert place(cluster, None) == cluster.members
    assert place(cluster, 2) == ("n0.gpu0", "n0.gpu1", "n1.gpu0", "n1.gpu1")
    with pytest.raises(InputError, match="9 ranks per node, but a node of DGX-1V has 8 GPUs"):
        place(cluster, 9)
    with pytest.raises(InputError, match="give 1 to 8, or no number for all GPUs"):
        place(cluster, 0)
    with pytest.raises(InputError, match="has 0 GPUs"):
        place(Topology("t", (Device("s", "switch"),), ()), 1)


def test_nodes_of_groups_ranks() -> None:
    cluster = node().replicate(2, fabric())
    assert nodes_of(cluster, ["n1.gpu0", "n0.gpu0", "n1.gpu1"]) == [[0, 2], [1]]


@pytest.mark.parametrize(("each", "gpus"), [(1, [1]), (2, [1, 3]), (4, [1, 3, 5, 7]), (5, [0, 1, 3, 5, 7])])
def test_ranks_are_placed_on_gpus_with_an_adapter_first(each: int, gpus: list[int]) -> None:
    """Half of Frontier's dies reach the network through others alone."""
    question = bs.Question("frontier", nodes=3, ranks_per_node=each)
    assert question.part().members == tuple(f"n{node}.gpu{gpu}" for node in range(3) for gpu in gpus)
