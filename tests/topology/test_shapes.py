from __future__ import annotations

import math
import re
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import assume, given, settings, strategies as st
from strategies import mutations

from blinksim.errors import BlinksimError, InputError
from blinksim.topology import shapes as gen
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import is_automorphism, link_orbits, orbits

G = Fraction(10**9)
EVERY = [
    "ring:2", "ring:3", "ring:8", "line:2", "line:5", "mesh:4x3", "mesh:2x2x2", "mesh:3x1x3", "torus:4x4x2",
    "torus:3x3", "torus:2x2", "torus:5x1", "hypercube:1", "hypercube:3", "hypercube:4", "full:2", "full:5", "switch:2",
    "switch:16", "rails:1x4", "rails:2x1", "rails:4x8", "rails:3x2", "fattree:16x8", "fattree:7x2", "fattree:2x2",
    "fattree:3x1", "dragonfly:9x4x2", "dragonfly:5x4x1", "dragonfly:4x2x2", "dragonfly:1x3x1",
    "dragonfly:3x1x2",
]  # fmt: skip


def plain(machine: Topology) -> nx.Graph[str]:
    return nx.Graph([(x.src, x.dst) for x in machine.links])


def made(text: str) -> Topology:
    machine = gen.from_text(text)
    assert machine is not None
    return machine


@pytest.mark.parametrize("text", [*EVERY, *(example for example, _ in gen.FORMS.values())])
def test_every_machine_is_sound(text: str) -> None:
    machine = made(text)
    assert machine.name == text
    assert machine.source.startswith("generated: ")
    assert machine.select().ranks == machine.ranks >= 2
    errors = [finding for finding in machine.check() if finding.severity == "error"]
    assert errors == []
    assert {f.rule for f in machine.check()} <= {"missing-link"}  # the ends of a line look like a ring cut open
    assert machine.symmetries
    for perm in machine.symmetries:
        assert is_automorphism(machine, perm)
        assert perm != tuple(range(len(perm)))
    there = {(x.src, x.dst, x.kind, x.bandwidth) for x in machine.links}
    assert there == {(x.dst, x.src, x.kind, x.bandwidth) for x in machine.links}


@pytest.mark.parametrize(
    ("text", "graph"),
    [
        ("ring:7", nx.cycle_graph(7)),
        ("line:6", nx.path_graph(6)),
        ("mesh:4x3", nx.grid_graph((3, 4))),
        ("mesh:3x2x4", nx.grid_graph((4, 2, 3))),
        ("torus:4x3", nx.grid_graph((3, 4), periodic=True)),
        ("torus:3x4x5", nx.grid_graph((5, 4, 3), periodic=True)),
        ("torus:4x2", nx.grid_graph((2, 4), periodic=True)),
        ("hypercube:5", nx.hypercube_graph(5)),
        ("full:6", nx.complete_graph(6)),
        ("switch:9", nx.star_graph(9)),
        ("dragonfly:1x5x1", nx.corona_product(nx.complete_graph(5), nx.complete_graph(1))),
        ("dragonfly:6x1x1", nx.corona_product(nx.complete_graph(6), nx.complete_graph(1))),
    ],
)
def test_shapes_are_those_of_networkx(text: str, graph: nx.Graph[Any]) -> None:
    assert nx.is_isomorphic(plain(made(text)), graph)


@pytest.mark.parametrize(
    ("text", "device_orbits", "link_orbits_"),
    [
        ("ring:8", 1, 1),
        ("line:5", 3, 4),
        ("mesh:3x3", 3, 4),
        ("torus:4x4x2", 1, 2),
        ("torus:5x5x5", 1, 1),
        ("torus:2x2", 1, 1),
        ("hypercube:6", 1, 1),
        ("full:7", 1, 1),
        ("switch:16", 2, 2),
        ("rails:5x4", 4, 6),
        ("fattree:16x8", 5, 8),  # GPUs, node switches, NICs, leaves, spine
        ("dragonfly:9x4x2", 4, 14),  # outer and inner routers; links to GPUs 4, within 6, between 4
        ("fattree:7x2", 9, 16),  # three full leaves and one of a single node
    ],
)
def test_symmetries_reach_all_that_is_alike(text: str, device_orbits: int, link_orbits_: int) -> None:
    machine = made(text)
    assert len(orbits(machine)) == device_orbits
    assert len(link_orbits(machine)) == link_orbits_


@pytest.mark.parametrize(
    "text",
    [
        "mesh:4x3",
        "mesh:3x3",
        "torus:3x3",
        "torus:4x2",
        "hypercube:3",
        "rails:2x2",
        "rails:3x1",
        "fattree:3x2",
        "dragonfly:3x2x1",
        "dragonfly:3x1x2",
    ],
)
def test_orbits_are_those_of_the_whole_automorphism_group(text: str) -> None:
    machine = made(text)
    graph = machine.to_networkx()
    matcher = nx.isomorphism.MultiDiGraphMatcher(
        graph,
        graph,
        node_match=lambda a, b: a["kind"] == b["kind"],
        edge_match=lambda a, b: {k: v["lanes"] for k, v in a.items()} == {k: v["lanes"] for k, v in b.items()},
    )
    groups = nx.utils.UnionFind(graph.nodes)
    for mapping in matcher.isomorphisms_iter():
        for a, b in mapping.items():
            groups.union(a, b)
    ours = {frozenset(machine.devices[i].name for i in orbit) for orbit in orbits(machine)}
    assert ours == set(map(frozenset, groups.to_sets()))


@pytest.mark.parametrize("text", [*EVERY, "rails:2x2", "fattree:9x3", "torus:2x3x4", "mesh:1x7"])
def test_what_will_be_built_is_counted_beforehand(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = made(text)
    real = (len(machine.devices), len(machine.links))
    monkeypatch.setattr(gen, "MOST_DEVICES", 0)
    with pytest.raises(InputError, match=r"has [0-9,]+ devices and [0-9,]+ directed links; at most 0 ") as refused:
        gen.from_text.__wrapped__(text)
    devices, links = re.findall(r"([0-9,]+) (?:devices|directed links);?", str(refused.value))[:2]
    counted = (int(devices.replace(",", "")), int(links.replace(",", "")))
    if re.match(r"(rails|fattree):1x", text):
        assert counted > real  # a single node needs no fabric
    else:
        assert counted == real  # clusters count the switch of their node again


def test_the_last_dimension_of_a_grid_is_fastest() -> None:
    machine = gen.mesh((2, 3))
    assert {x.dst for x in machine.links if x.src == "gpu1"} == {"gpu0", "gpu2", "gpu4"}


def test_a_dragonfly_joins_every_two_groups_once_and_every_two_routers_within_three_links() -> None:
    """As Kim et al. (2008) define it: balanced with a = 2 p = 2 h, g = a h + 1, diameter 3 between routers."""
    routers = plain(made("dragonfly:9x4x2"))
    routers.remove_nodes_from([name for name in routers if name.startswith("gpu")])
    group = {name: int(name.removeprefix("router")) // 4 for name in routers}
    between = [{group[a], group[b]} for a, b in routers.edges if group[a] != group[b]]
    assert len(between) == len(set(map(frozenset, between))) == 9 * 8 // 2
    assert {sum(group[other] != group[name] for other in routers[name]) for name in routers} == {2}
    assert nx.diameter(routers) == 3


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda sizes: math.prod(sizes) > 1))
@settings(max_examples=25)
def test_every_gpu_of_a_torus_has_two_lanes_a_dimension(sizes: list[int]) -> None:
    machine = gen.torus(sizes, bandwidth=G)
    for device in machine.devices:
        out = sum(x.bandwidth for x in machine.links if x.src == device.name)
        assert out == 2 * G * sum(size > 1 for size in sizes)


def test_parameters_reach_the_links() -> None:
    for machine in (
        gen.ring(4, 7 * G, (2e-6, 3e-6)),
        gen.line(4, 7 * G, (2e-6, 3e-6)),
        gen.mesh((2, 2), 7 * G, (2e-6, 3e-6)),
        gen.torus((4, 3), 7 * G, (2e-6, 3e-6)),
        gen.hypercube(3, 7 * G, (2e-6, 3e-6)),
        gen.fully_connected(3, 7 * G, (2e-6, 3e-6)),
        gen.one_switch(3, 7 * G, (2e-6, 3e-6)),
        gen.rail_cluster(2, 2, 7 * G, (2e-6, 3e-6)),
        gen.fat_tree(4, 1, 7 * G, (2e-6, 3e-6), leaf_nodes=1),
    ):
        assert {(x.lane_bandwidth, x.latency, x.overhead) for x in machine.links} == {(7 * G, 2e-6, 3e-6)}


def test_rails_join_equal_local_indices() -> None:
    machine = gen.rail_cluster(3, 4, bandwidth=300 * G, nic_bandwidth=50 * G)
    assert machine.nodes == 3
    for i in range(4):
        assert {x.dst for x in machine.links if x.src == f"fabric{i}"} == {f"n{n}.nic{i}" for n in range(3)}
    rates = {kind: {x.bandwidth for x in machine.links if x.kind == kind} for kind in machine.link_classes}
    assert rates == {"nvlink": {300 * G}, "nic": {50 * G}, "rail": {50 * G}}
    assert made("rails:3x4@300GB/s,50GB/s").links == machine.links


@pytest.mark.parametrize(("oversubscription", "up"), [(1, 4), (2, 2), (Fraction(8, 3), Fraction(3, 2))])
def test_uplinks_of_a_fat_tree_follow_its_oversubscription(
    oversubscription: Fraction | int, up: Fraction | int
) -> None:
    machine = gen.fat_tree(4, 2, bandwidth=G, leaf_nodes=2, oversubscription=Fraction(oversubscription))
    trunks = [x for x in machine.links if x.dst == "fabric"]
    assert [x.src for x in trunks] == ["fabric.leaf0", "fabric.leaf1"]
    assert {x.bandwidth for x in trunks} == {up * G}  # two nodes of two NICs of 1 GB/s under each leaf


@pytest.mark.parametrize("text", ["ring:4@25GB/s,2us", "torus:3x3@50GB/s, 0.3us", "switch:4@2500ns"])
def test_text_gives_the_latency(text: str) -> None:
    machine = gen.from_text(text)
    assert machine is not None
    wanted = {"ring:4@25GB/s,2us": 2e-6, "torus:3x3@50GB/s, 0.3us": 0.3e-6, "switch:4@2500ns": 2.5e-6}[text]
    assert {link.latency for link in machine.links} == {wanted}


def test_text_gives_the_bandwidth() -> None:
    assert made("torus:4x4x2@50GB/s").links[0].lane_bandwidth == 50 * G
    assert made(" RING:3@100Gb/s ").links[0].bandwidth == Fraction(25, 2) * G
    assert made("ring:3").links[0].bandwidth == 25 * G


@pytest.mark.parametrize("text", ["ring", "dgx1-v100", "foo:8", "/a/b:8", "C:8", "ring 8", "", ":", "a.xml", "rings:8"])
def test_other_texts_are_left_to_other_readers(text: str) -> None:
    assert gen.from_text(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ring:", "'' is not a size; write it like ring:8"),
        ("ring:-3", "'-3' is not a size"),
        ("ring:8.5", "'8.5' is not a size"),
        ("ring:٣", "is not a size"),
        ("ring:0", "every size must be at least 1"),
        ("ring:1", "at least 2 GPUs"),
        ("mesh:1x1", "at least 2 GPUs"),
        ("switch:1", "at least 2 GPUs"),
        ("rails:1x1", "at least 2 GPUs"),
        ("fattree:1x1", "at least 2 GPUs"),
        ("mesh:3x0", "every size must be at least 1"),
        ("rails:0x4", "every size must be at least 1"),
        ("fattree:0x4", "every size must be at least 1"),
        ("fattree:4x0", "every size must be at least 1"),
        ("ring:4x4", "gives 2 sizes, ring takes 1"),
        ("rails:4", "gives 1 size, rails takes 2"),
        ("torus:4x", "'4x' is not a size"),
        ("hypercube:17", "131,072 devices"),
        ("hypercube:999999999", "dimension must be from 1 to 16"),
        ("full:1001", "1,001,000 directed links"),
        ("torus:999999999x999999999x999999999", "at most 100,000"),
        ("rails:99999x99", "at most 100,000"),
        ("ring:9999999999999999999999", "is not a size"),
        ("ring:8@", "'' is not a bandwidth"),
        ("ring:8@5", "'5' has no unit"),
        ("ring:8@0GB/s", "not a positive bandwidth"),
        ("ring:8@1GB/s,2GB/s", "gives 2 bandwidths"),
        ("rails:2x2@1GB/s,2GB/s,3GB/s", "gives 3 bandwidths"),
    ],
)
def test_known_forms_with_bad_sizes_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        gen.from_text(text)


@given(st.sampled_from(["ring:8", "mesh:4x3", "torus:2x2@50GB/s", "rails:2x2@3GB/s,5GB/s"]).flatmap(mutations))
def test_damaged_texts_end_in_one_clear_error(text: str) -> None:
    # Sizes that are read as far larger ones are not built here; the caps have a test of their own.
    assume(not re.search(r"\d{4}|(\d+x){4}", text))
    try:
        machine = gen.from_text(text)
    except BlinksimError as error:
        line = str(error)
    else:
        line = machine.name if machine else ""
    assert "\n" not in line.strip()


@pytest.mark.parametrize(("text", "ratio"), [("", 1), (",1:1", 1), (",2:1", 2), (",3:2", Fraction(3, 2))])
def test_the_uplinks_of_an_oversubscribed_tree_carry_less(text: str, ratio: Fraction) -> None:
    made = gen.from_text(f"fattree:4x2@100GB/s,50GB/s{text}")
    assert made is not None
    up: defaultdict[str, Fraction] = defaultdict(Fraction)
    into: defaultdict[str, Fraction] = defaultdict(Fraction)
    for link in made.links:
        if made.device(link.src).kind == made.device(link.dst).kind == "fabric":
            up[link.src] += link.bandwidth
        elif made.device(link.dst).kind == "fabric":
            into[link.dst] += link.bandwidth
    # Two nodes of two NICs share a leaf; a leaf's link to the spine carries what its NICs do, divided by the ratio.
    assert sorted(into.values()) == [4 * 50 * G] * 2
    assert {up[leaf] for leaf in into} == {4 * 50 * G / Fraction(ratio)}


@pytest.mark.parametrize("text", ["fattree:4x2@1:2", "fattree:4x2@2:0", "fattree:4x2@2:1:1", "rails:4x2@1GB/s,2:1"])
def test_what_is_no_oversubscription_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"oversubscription|is not a bandwidth"):
        gen.from_text(text)


def test_the_page_of_shapes_has_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "machine-file.md").read_text()
    rows = re.findall(r"^\| `(\w+):", page, re.MULTILINE)
    assert rows == list(gen.FORMS)
