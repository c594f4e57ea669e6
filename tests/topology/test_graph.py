from __future__ import annotations

import csv
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from time import process_time
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st
from machines_for_tests import GOLDEN, dgx1, with_pcie
from strategies import topologies

import blinksim as bs
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import Question
from blinksim.topology import shapes
from blinksim.topology.elements import ABILITIES
from blinksim.topology.graph import Device, Link, Topology

G = Fraction(10**9)


def link(src: str, dst: str, kind: str = "link", rate: int = 1, **more: Any) -> Link:
    return Link(src, dst, kind, rate * G, **more)


def gpus(*names: str) -> tuple[Device, ...]:
    return tuple(Device(name, "gpu") for name in names)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Device("a b", "gpu"), "cannot name a device"),
        (lambda: Device("", "gpu"), "cannot name a device"),
        (lambda: Device("a-b", "gpu"), "cannot name a device"),
        (lambda: Device("a", "gpo"), "unknown device kind 'gpo': did you mean 'gpu'"),
        (lambda: Device("a", "gpu", capacity=Fraction(0)), "capacity must be positive"),
        (lambda: Device("a", "gpu", can=frozenset({"fly"})), "unknown ability 'fly'"),
        (lambda: link("a", "a"), "joins a device with itself"),
        (lambda: link("a", "b", lanes=0), "leave the link out"),
        (lambda: link("a", "b", rate=0), "bandwidth must be positive"),
        (lambda: link("a", "b", latency=-1.0), "between 0 and 3600 s"),
        (lambda: link("a", "b", latency=float("nan")), "between 0 and 3600 s"),
        (lambda: link("a", "b", overhead=float("inf")), "between 0 and 3600 s"),
        (lambda: link("a", "b", kind="nvlink,pcie"), "cannot name a link class"),
        (lambda: link("a", "b", kind=""), "cannot name a link class"),
        (lambda: Topology("t", gpus("a", "a"), ()), "two devices are called 'a'"),
        (lambda: Topology("t", gpus("gpu0", "gpu1"), (link("gpu0", "gpu11"),)), "did you mean 'gpu1'"),
        (lambda: Topology("t", gpus("a", "b"), (link("a", "b"), link("a", "b"))), "given twice"),
        (lambda: Topology("t", gpus("a", "b"), (), members=("a", "a")), "a named more than once"),
        (lambda: Topology("t", gpus("a", "b", "c"), (), ("a",), relays=("b", "b")), "b named more than once"),
        (lambda: Topology("t", gpus("a", "b"), (), ("a", "b"), relays=("b",)), "member and relay at once"),
        (lambda: Topology("t", (*gpus("a"), Device("s", "switch")), (), members=("s",)), "s is a switch"),
        (lambda: Topology("t", gpus("a", "b"), (), members=("c",)), "unknown device 'c'"),
    ],
)
def test_what_makes_no_machine_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        make()


def test_defaults_of_devices_and_links() -> None:
    assert Device("a", "gpu").can == Device("t", "tile").can == frozenset(ABILITIES[:4])
    assert Device("s", "switch").can == Device("c", "cpu").can == frozenset({"forward"})
    assert not Device("s", "switch").holds
    wire = Link("a", "b", "nvlink", Fraction(61, 3), lanes=3)
    assert wire.bandwidth == 61
    assert wire.name == "a->b (nvlink)"


def test_members_are_the_gpus_in_file_order_unless_named() -> None:
    devices = (Device("z", "tile"), Device("s", "switch"), Device("a", "gpu"))
    assert Topology("t", devices, ()).members == ("z", "a")
    assert Topology("t", devices, (), members=("a",)).ranks == 1


def test_ranks_are_counted_as_what_they_are() -> None:
    assert bs.load("dgx1-v100").taking_part == "8 GPUs of dgx1-v100"
    two = Question("aurora", nodes=2).whole()  # of six cards of two tiles
    assert (two.unit, two.taking_part) == ("tile", "24 tiles of 2 x aurora")


def test_machines_survive_pickling() -> None:
    machine = shapes.rail_cluster(2, 2)
    assert machine.index["n0.gpu0"] == 0
    assert pickle.loads(pickle.dumps(machine)) == machine
    many = shapes.rail_cluster(64, 2)
    route = many.router.route(many.index["n0.gpu0"], many.index["n63.gpu1"])
    again = pickle.loads(pickle.dumps(many))
    assert again == many
    assert again.router.route(many.index["n0.gpu0"], many.index["n63.gpu1"]) == route


def test_default_links_add_the_inter_node_classes_only_for_several_nodes() -> None:
    assert shapes.rail_cluster(1, 4).default_links() == ("nvlink",)
    assert shapes.rail_cluster(3, 4).default_links() == ("nvlink", "nic", "rail")
    assert dgx1("DGX-1V").default_links() == ("nvlink",)


def test_links_between_and_unknown_devices() -> None:
    machine = with_pcie(dgx1("DGX-1V"))
    assert [x.lanes for x in machine.links_between("gpu0", "gpu3")] == [2]
    assert machine.links_between("gpu0", "gpu5") == []
    with pytest.raises(InputError, match="unknown device 'gpu9': did you mean"):
        machine.device("gpu9")


def test_repr_counts_devices_and_links() -> None:
    assert repr(dgx1("DGX-1P")) == (
        "<Topology DGX-1P: 1 node, 8 members\n  devices: 8 gpu\n  links (directed): 32 nvlink; rates: nominal>"
    )


# --- select ----------------------------------------------------------------------------------------------------------


def test_select_keeps_members_relays_and_forwarders_of_the_chosen_classes() -> None:
    machine = with_pcie(dgx1("DGX-1V"))
    chosen = machine.select(["gpu3", "gpu0", "gpu1"])
    assert chosen.members == ("gpu3", "gpu0", "gpu1")
    assert {d.name for d in chosen.devices} == {"gpu0", "gpu1", "gpu3"}  # the PCIe devices have no NVLink
    assert chosen.collective_links == ("nvlink",)
    both = machine.select(["gpu0", "gpu1"], links=["nvlink", "pcie"])
    assert {d.name for d in both.devices} == {"gpu0", "gpu1", "plx0", "plx1", "cpu0", "cpu1"}
    assert {x.kind for x in both.links} == {"nvlink", "pcie"}


@pytest.mark.parametrize("machine", ["hgx-h100", "p5.48xlarge", "dgx1-v100", "gb200-nvl72", "aurora", "mi300x"])
def test_gpus_of_one_node_of_several_send_as_in_a_machine_of_one(machine: str) -> None:
    """What joins the nodes is none of theirs; named, it is taken."""
    whole, alone = bs.load(machine, nodes=2), bs.load(machine)
    own = whole.members[: alone.ranks // 2]
    part, same = whole.select(own), alone.select(alone.members[: alone.ranks // 2])
    assert part.link_classes == same.link_classes
    assert bs.bound(part, "allreduce").rate == bs.bound(same, "allreduce").rate
    assert set(whole.select(own, links="all").link_classes) > set(part.link_classes)
    both = whole.select([*own, whole.members[alone.ranks]])
    assert set(both.link_classes) > set(part.link_classes)


def test_a_relay_forwards_and_reduces_only_if_asked() -> None:
    machine = dgx1("DGX-1V")
    plain = machine.select(["gpu0", "gpu1"], ["gpu3"])
    assert plain.relays == ("gpu3",)
    assert plain.device("gpu3").can == {"forward"}
    able = machine.select(["gpu0", "gpu1"], ["gpu3"], relays_reduce=True)
    assert able.device("gpu3").can == {"forward", "reduce", "multicast"}


def test_a_switch_named_as_relay_keeps_its_abilities() -> None:
    smart = Device("s", "switch", can=frozenset({"forward", "reduce"}))
    links = [link(a, b) for a, b in (("a", "s"), ("s", "a"), ("b", "s"), ("s", "b"))]
    chosen = Topology("t", (*gpus("a", "b"), smart), tuple(links)).select(relays=["s"])
    assert chosen.device("s").can == {"forward", "reduce"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"members": []}, "no members"),
        ({"members": ["gpu0", "gpu0"]}, "gpu0 named more than once"),
        ({"members": ["gpu0", "gpu9"]}, "unknown device 'gpu9'"),
        ({"members": ["gpu0", "gpu1"], "relays": ["gpu1"]}, "gpu1 cannot be member and relay at once"),
        ({"members": ["gpu0", "gpu1"], "relays": ["gpu2", "gpu2"]}, "gpu2 named more than once"),
        ({"members": ["gpu0", "plx0"]}, "plx0 is a pcie"),
        ({"links": ["nvlnk"]}, "unknown link class of DGX-1V: 'nvlnk': did you mean 'nvlink'"),
        ({"links": []}, "no link class: name at least one of nvlink, pcie"),
    ],
)
def test_select_refuses(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        with_pcie(dgx1("DGX-1V")).select(**arguments)


def test_disconnected_members_are_grouped_and_told_what_connects_them() -> None:
    with pytest.raises(InfeasibleError) as refusal:
        with_pcie(dgx1("DGX-1V")).select(["gpu0", "gpu1", "gpu6", "gpu7"])
    assert str(refusal.value) == (
        "DGX-1V: nvlink does not connect the members: gpu0 gpu1 | gpu6 gpu7; links=nvlink,pcie or "
        "relays=idle (forwards through GPUs that are not members) would connect them"
    )
    assert refusal.value.exit_code == 3
    with pytest.raises(InfeasibleError, match=r"gpu0 \| gpu5; relays=idle"):
        dgx1("DGX-1P").select(["gpu0", "gpu5"])


def test_what_does_not_help_is_not_offered() -> None:
    island = Topology("t", gpus("a", "b", "c"), (link("a", "b"), link("b", "a")))
    with pytest.raises(InfeasibleError, match=r"a b \| c; no link or idle GPU"):
        island.select()
    one_way = Topology("t", gpus("a", "b"), (link("a", "b"), link("b", "a", kind="slow"), link("a", "b", kind="odd")))
    with pytest.raises(InfeasibleError, match=r"a \| b; links=link,slow would connect them$"):
        one_way.select(links=["link"])
    # Neither more links nor idle GPUs alone are enough here, but both together are.
    links = [x for a, b, kind in (("a", "c", "link"), ("c", "b", "slow")) for x in (link(a, b, kind), link(b, a, kind))]
    with pytest.raises(InfeasibleError, match="links=all together with relays=idle"):
        Topology("t", gpus("a", "b", "c"), tuple(links), ("a", "b")).select(links=["link"])


def test_all_classes_are_offered_where_no_single_one_is_enough() -> None:
    chain = [("a", "b", "link"), ("b", "c", "slow"), ("c", "d", "odd")]
    links = tuple(x for a, b, kind in chain for x in (link(a, b, kind), link(b, a, kind)))
    with pytest.raises(InfeasibleError, match=r"a b \| c \| d; links=all \(adds slow, odd\) would connect them$"):
        Topology("t", gpus("a", "b", "c", "d"), links, collective_links=("link",)).select()


@pytest.mark.parametrize("model", ["DGX-1P", "DGX-1V"])
def test_which_gpu_subsets_of_dgx1_are_connected(model: str) -> None:
    # Both machines have the same pairs: 50 of the 246 subsets of 2 to 7 GPUs are disconnected, all usable with relays.
    machine, disconnected = dgx1(model), []
    for size in range(2, 8):
        for members in combinations(machine.members, size):
            if len(machine.select(members, connected=False).components()) > 1:
                disconnected.append(members)
                idle = [name for name in machine.members if name not in members]
                assert machine.select(members, idle).relays == tuple(idle)
    assert len(disconnected) == 50
    # The published table names the same ones, by class representative.
    with (GOLDEN / "blink_subsets.csv").open() as file:
        for row in csv.DictReader(file):
            if row["machine"] == model and row["n"] != "8":
                subset = tuple(f"gpu{i}" for i in row["subset"].split("-"))
                assert (subset in disconnected) == (row["nvlink_connected"] == "no")


@given(topologies(max_devices=7), st.data())
def test_components_are_the_strong_components_of_networkx(machine: Topology, data: st.DataObject) -> None:
    links = data.draw(st.lists(st.sampled_from(machine.links), unique_by=lambda x: x.key))
    part = machine.with_links(links)
    graph = nx.DiGraph([(x.src, x.dst) for x in links])
    graph.add_nodes_from(machine.index)
    expected = {frozenset(c) & set(machine.members) for c in nx.strongly_connected_components(graph)} - {frozenset()}
    groups = part.components()
    assert {frozenset(group) for group in groups} == expected
    ranks = [[machine.members.index(name) for name in group] for group in groups]
    assert ranks == sorted(map(sorted, ranks))


@given(topologies(relays=True))
def test_drawn_machines_are_connected_and_selecting_again_changes_nothing(machine: Topology) -> None:
    again = machine.select(relays=machine.relays)
    assert again.members == machine.members
    assert again.relays == machine.relays
    assert set(again.links) == set(machine.links)


def test_a_thousand_islands_are_counted_quickly() -> None:
    cluster = shapes.rail_cluster(500, 8)
    groups = cluster.select(links=["nvlink"], connected=False).components()
    assert len(groups) == 500
    assert groups[7] == [f"n7.gpu{i}" for i in range(8)]


@pytest.mark.parametrize("two_way", [True, False])
def test_devices_apart_are_counted_in_one_pass(two_way: bool) -> None:
    names = [f"gpu{number}" for number in range(40_000)]
    links = [link("gpu0", "gpu1"), link("gpu1", "gpu0")] + [link("gpu1", "gpu2")] * (not two_way)
    start = process_time()
    groups = Topology("t", gpus(*names), tuple(links)).components()
    assert (len(groups), groups[0]) == (39_999, ["gpu0", "gpu1"])
    assert process_time() - start < 5


def test_symmetries_stay_where_the_choice_respects_them() -> None:
    from blinksim.topology.symmetry import is_automorphism, orbits

    cluster = shapes.rail_cluster(4, 4)
    chosen = cluster.select([f"n{n}.gpu{i}" for n in range(4) for i in range(2)])
    assert chosen.symmetries
    assert all(is_automorphism(chosen, perm) for perm in chosen.symmetries)
    assert len(orbits(chosen)) < len(chosen.devices)
    # Two GPUs on the same rail reach each other; across rails a GPU in between has to forward.
    assert cluster.select(["n0.gpu1", "n1.gpu1"]).members == ("n0.gpu1", "n1.gpu1")
    with pytest.raises(InfeasibleError, match="relays=idle"):
        cluster.select(["n0.gpu0", "n1.gpu1"])


def test_pruned_drops_only_forwarders_without_links() -> None:
    machine = Topology("t", (*gpus("a"), Device("s", "switch"), *gpus("b")), (link("a", "b"), link("b", "a")))
    small = replace(machine, symmetries=((2, 1, 0), (1, 0, 2))).pruned()
    assert [d.name for d in small.devices] == ["a", "b"]
    assert small.symmetries == ((1, 0),)
    assert small.pruned() is small


@pytest.mark.parametrize(
    ("members", "relays", "links"),
    [
        ("0,1,4", "2-3", "nvlink"),
        ([0, 1, 4], [2, 3], ["nvlink"]),
        ([0, "gpu1", np.int64(4)], ("gpu2", 3), "nvlink,nvlink"),
        ("gpu0,gpu1,4", "gpu2,gpu3", None),
    ],
)
def test_select_takes_text_numbers_and_names(members: Any, relays: Any, links: Any) -> None:
    machine = dgx1("DGX-1V")
    assert machine.select(members, relays, links) == machine.select(
        ["gpu0", "gpu1", "gpu4"], ["gpu2", "gpu3"], ["nvlink"]
    )


def test_select_knows_idle_relays_and_all_links() -> None:
    machine = dgx1("DGX-1V")
    assert machine.select("0,5", "idle").relays == ("gpu1", "gpu2", "gpu3", "gpu4", "gpu6", "gpu7")
    assert machine.select("0,1", "none").relays == ()
    assert machine.select("0,1", links="all").link_classes == machine.link_classes


@pytest.mark.parametrize("members", [[-1], [True], [None], [1.5], "1.5", "-1", [9], "9", "0-", "x", [["gpu0"]], "0;1"])
def test_select_refuses_what_is_no_gpu_in_a_line(members: Any) -> None:
    with pytest.raises(InputError) as refused:
        dgx1("DGX-1V").select(members)
    assert "\n" not in str(refused.value)


def test_a_topology_shows_itself_briefly_and_its_edits() -> None:
    machine = bs.load("dgx1-v100")
    assert "edited" not in repr(machine)
    shown = machine._repr_html_()
    # One row for each kind of link: NVLinks of one lane and of two, PCIe and QPI.
    assert shown.count("<tr>") <= 8
    edits = ("without gpu7", "degrade gpu0-gpu3 lanes=1", "replace nvlink latency=1us", "add gpu0-gpu5 nvlink lanes=2")
    changed = bs.load("dgx1-v100", nodes=2, edits=[*edits, "without n1.gpu6"])
    assert changed.edits == (*edits, "without n1.gpu6")
    assert changed.select(links="nvlink", members="0-3").edits == changed.edits
    for edit in changed.edits:
        assert f"edited: {edit}" in repr(changed)
        assert f"edited: {edit}" in changed._repr_html_()
    assert machine.degrade("gpu0-gpu3", lanes=1).edits == ("degrade gpu0-gpu3 lanes=1",)
    # Two ways to one machine are one machine.
    assert machine.without("gpu7", "gpu6") == machine.without("gpu7").without("gpu6")
