from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from machines_for_tests import dgx1
from networkx.algorithms.isomorphism import DiGraphMatcher
from strategies import renamed, topologies

from blinksim.machines import load
from blinksim.topology import shapes
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.symmetry import (
    automorphisms,
    is_automorphism,
    link_orbits,
    orbits,
    searched,
    with_name_rotations,
)

G = Fraction(10**9)


def maps_onto_itself(machine: Topology, perm: tuple[int, ...]) -> bool:
    """The definition, read aloud: rename everything by `perm` and compare sets."""
    names = [d.name for d in machine.devices]
    name = {names[i]: names[j] for i, j in enumerate(perm)}
    role = {n: (n in machine.members, n in machine.relays) for n in names}

    def devices(rename: Callable[[str], str]) -> set[tuple[object, ...]]:
        return {(rename(d.name), d.kind, d.capacity, d.can, role[d.name]) for d in machine.devices}

    def links(rename: Callable[[str], str]) -> set[tuple[object, ...]]:
        return {
            (rename(x.src), rename(x.dst), x.kind, x.lane_bandwidth, x.lanes, x.latency, x.overhead)
            for x in machine.links
        }

    def buses(rename: Callable[[str], str]) -> set[frozenset[tuple[str, ...]]]:
        groups: dict[str, set[tuple[str, ...]]] = {}
        for x in machine.links:
            if x.bus is not None:
                groups.setdefault(x.bus, set()).add((rename(x.src), rename(x.dst), x.kind))
        return {frozenset(group) for group in groups.values()}

    return all(part(name.__getitem__) == part(str) for part in (devices, links, buses))


@given(topologies(max_devices=5, relays=True))
def test_every_permutation_is_judged_as_the_definition_says(machine: Topology) -> None:
    for perm in permutations(range(len(machine.devices))):
        assert is_automorphism(machine, perm) == maps_onto_itself(machine, perm)


@settings(max_examples=30)
@given(topologies(max_devices=5), st.data())
def test_names_and_order_do_not_change_the_orbits(machine: Topology, data: st.DataObject) -> None:
    group = [p for p in permutations(range(len(machine.devices))) if maps_onto_itself(machine, p)]
    machine = replace(machine, symmetries=tuple(group))
    other, name = data.draw(renamed(machine))
    renamed_orbits = {frozenset(name[machine.devices[i].name] for i in orbit) for orbit in orbits(machine)}
    assert {frozenset(other.devices[i].name for i in orbit) for orbit in orbits(other)} == renamed_orbits
    # An orbit under a whole group is the images of any one of its devices.
    assert {frozenset(p[i] for p in group) for i in range(len(machine.devices))} == set(map(frozenset, orbits(machine)))
    keys = [x.key for x in machine.links]
    wanted = set()
    for x in machine.links:
        image = set()
        for p in group:
            to = {machine.devices[i].name: machine.devices[j].name for i, j in enumerate(p)}
            image.add(keys.index((to[x.src], to[x.dst], x.kind)))
        wanted.add(frozenset(image))
    assert set(map(frozenset, link_orbits(machine))) == wanted


@pytest.mark.parametrize("perm", [(), (0,), (0, 1), (0, 0, 1), (0, 1, 3), (-1, 0, 1), (0.0, 1.0, 2.0), ("a", "b", "c")])
def test_what_is_no_permutation_is_no_automorphism(
    perm: tuple[int, ...],
) -> None:
    assert not is_automorphism(shapes.ring(3), perm)


def test_a_single_difference_breaks_a_symmetry() -> None:
    ring = shapes.ring(4)
    turn = (1, 2, 3, 0)
    assert is_automorphism(ring, turn)
    changes: tuple[dict[str, Any], ...] = (
        {"lane_bandwidth": G},
        {"lanes": 2},
        {"latency": 1.0},
        {"overhead": 1.0},
        {"kind": "other"},
        {"bus": "b"},
    )
    for change in changes:
        links = (replace(ring.links[0], **change), *ring.links[1:])
        assert not is_automorphism(ring.with_links(links), turn), change
    changes = ({"capacity": G}, {"kind": "tile"}, {"can": frozenset({"hold"})})
    for change in changes:
        devices = (replace(ring.devices[0], **change), *ring.devices[1:])
        assert not is_automorphism(replace(ring, devices=devices), turn), change
    assert not is_automorphism(replace(ring, members=("gpu0", "gpu1", "gpu2")), turn)
    assert is_automorphism(replace(ring, members=("gpu2", "gpu0", "gpu1", "gpu3")), turn)
    named = replace(ring.devices[0], node=0, attributes={"bus id": "0000:01"})
    assert is_automorphism(replace(ring, devices=(named, *ring.devices[1:])), turn)


def test_buses_must_go_to_buses_as_wholes() -> None:
    # Two pairs and four one-way wires: the same links, but grouped into buses differently.
    devices = tuple(Device(name, "gpu") for name in "abcd")
    ends = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]
    swap = (2, 3, 0, 1)
    paired = [Link(x, y, "link", G, bus=bus) for (x, y), bus in zip(ends, "ppqq", strict=True)]
    mixed = [Link(x, y, "link", G, bus=bus) for (x, y), bus in zip(ends, "pqpp", strict=True)]
    assert is_automorphism(Topology("t", devices, tuple(paired)), swap)
    assert not is_automorphism(Topology("t", devices, tuple(mixed)), swap)


def test_wrong_generators_are_passed_over() -> None:
    machine = replace(shapes.line(4), symmetries=((1, 2, 3, 0), (3, 2, 1, 0), (0,)))
    assert automorphisms(machine) == ((3, 2, 1, 0),)
    assert orbits(machine) == ((0, 3), (1, 2))
    assert orbits(replace(machine, symmetries=())) == ((0,), (1,), (2,), (3,))
    assert len(link_orbits(machine)) == 3


def test_dgx1_has_the_symmetries_of_its_drawing() -> None:
    # The P100 machine looks alike from every GPU (hypercube with crossed quads), the V100 machine does not.
    quads, mirror = (4, 5, 6, 7, 0, 1, 2, 3), (1, 0, 3, 2, 5, 4, 7, 6)
    machine = dgx1("DGX-1P")
    assert is_automorphism(machine, quads)
    assert is_automorphism(machine, mirror)
    assert is_automorphism(dgx1("DGX-1V"), quads)
    assert not is_automorphism(dgx1("DGX-1V"), (2, 0, 1, 3, 6, 4, 5, 7))


def test_a_machine_without_links() -> None:
    pair = Topology("t", (Device("a", "gpu"), Device("b", "gpu")), (), symmetries=((1, 0),))
    assert orbits(pair) == ((0, 1),)
    assert link_orbits(pair) == ()


def test_numpy_permutations_are_fine() -> None:
    assert is_automorphism(shapes.ring(5), list(np.roll(np.arange(5), 2)))


def test_eight_thousand_gpus_within_a_second() -> None:
    cluster = shapes.rail_cluster(1024, 8)
    best = min(_seconds(orbits, cluster) for _ in range(3))
    assert best <= 1.0
    assert sorted(map(len, orbits(cluster))) == [8, 1024, 8192, 8192]
    assert len(link_orbits(cluster)) == 6


def _seconds(function: Callable[[Topology], object], argument: Topology) -> float:
    start = time.perf_counter()
    function(argument)
    return time.perf_counter() - start


def brute_orbits(machine: Topology) -> set[frozenset[int]]:
    """The orbits of the devices under all permutations that map the machine onto itself."""
    found = [perm for perm in permutations(range(len(machine.devices))) if is_automorphism(machine, perm)]
    return {frozenset(perm[place] for perm in found) for place in range(len(machine.devices))}


def searched_orbits(machine: Topology) -> set[frozenset[int]]:
    known = tuple(tuple(perm.tolist()) for perm in searched(machine))
    assert all(is_automorphism(machine, perm) for perm in known)
    return {frozenset(orbit) for orbit in orbits(replace(machine, symmetries=known))}


def isomorphic_orbits(machine: Topology) -> set[frozenset[int]]:
    """The orbits as NetworkX finds them (VF2), for machines without buses and relays."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((place, {"kind": device.kind}) for place, device in enumerate(machine.devices))
    for link in machine.links:
        ends = machine.index[link.src], machine.index[link.dst]
        figures = (link.kind, link.lanes, link.lane_bandwidth, link.latency, link.overhead)
        graph.add_edge(*ends, figures={*graph.edges.get(ends, {}).get("figures", ()), figures})
    found = list(DiGraphMatcher(graph, graph, operator.eq, operator.eq).isomorphisms_iter())
    return {frozenset(perm[place] for perm in found) for place in graph}


@pytest.mark.parametrize("edit", [(), ("without gpu0-gpu1",), ("degrade gpu2-gpu3 bandwidth=1GB/s",)])
@pytest.mark.parametrize("name", ["dgx1-v100", "p3.16xlarge", "frontier", "mi250", "perlmutter", "dgx1-p100"])
def test_a_search_finds_what_is_alike_on_machines_that_state_no_symmetry(name: str, edit: tuple[str, ...]) -> None:
    machine = load(name, edits=edit).select()
    assert searched_orbits(machine) == isomorphic_orbits(machine)


@settings(max_examples=60)
@given(topologies(max_devices=6))
def test_what_a_search_finds_is_alike_indeed(machine: Topology) -> None:
    orbits_found, every = searched_orbits(machine), brute_orbits(machine)
    for orbit in orbits_found:
        assert any(orbit <= whole for whole in every)


@pytest.mark.parametrize(
    ("name", "nodes", "kinds"),
    [
        ("p5", 1, {"gpu", "nic", "pcie", "switch"}),
        ("p5", 4, {"gpu", "nic", "pcie", "switch", "fabric"}),
        ("hgx-h200", 3, {"gpu", "nic", "switch", "fabric"}),
    ],
)
def test_devices_of_a_kind_are_alike_on_machines_of_clouds(name: str, nodes: int, kinds: set[str]) -> None:
    machine = load(name, nodes=nodes)
    for by in (searched_orbits(machine), orbits(with_name_rotations(machine))):
        found = [{machine.devices[place].kind for place in orbit} for orbit in by]
        assert sorted(map(sorted, found)) == [[kind] for kind in sorted(kinds)]


def test_a_search_leaves_broken_nodes_apart() -> None:
    machine = load("p5", nodes=3, edits=["without n1.efa5"])
    of = {
        name: orbit for orbit in searched_orbits(machine) for name in (machine.devices[place].name for place in orbit)
    }
    assert of["n0.gpu1"] == of["n0.gpu0"] == of["n2.gpu7"]
    assert of["n1.gpu0"] == of["n1.gpu7"] != of["n0.gpu0"]
    assert {machine.devices[place].name for place in of["n1.gpu1"]} == {"n1.gpu1"}
    assert {machine.devices[place].name for place in of["n1.efa4"]} == {"n1.efa4", "n1.efa6", "n1.efa7"}
