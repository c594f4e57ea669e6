from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from machines_for_tests import dgx1, with_pcie
from strategies import mutations, topologies

from blinksim.errors import InputError
from blinksim.machines import load
from blinksim.topology import edits, shapes
from blinksim.topology.elements import Fabric
from blinksim.topology.graph import Device, Link, Topology

G = Fraction(10**9)
V = dgx1("DGX-1V")


def lanes(machine: Topology, a: str, b: str) -> int:
    return sum(x.lanes for x in machine.links_between(a, b))


def bus_machine() -> Topology:
    devices = tuple(Device(name, "gpu") for name in "abc")
    links = [Link(x, y, "pcie", 4 * G, bus="wire") for x, y in (("a", "b"), ("b", "a"))]
    links += [Link(x, y, "nv", 4 * G) for x, y in (("b", "c"), ("c", "b"))]
    return Topology("t", devices, tuple(links))


@pytest.mark.parametrize(
    ("machine", "edit", "cure"),
    [
        ("aurora", "nic bandwidth=10GB/s", "replace slingshot bandwidth=10GB/s"),
        ("aurora", "xe bandwidth=10GB/s", "replace xe bandwidth=10GB/s"),
        ("p5", "nic bandwidth=10GB/s", "replace efa bandwidth=10GB/s"),
    ],
)
def test_changes_without_a_verb_get_one_that_works(machine: str, edit: str, cure: str) -> None:
    with pytest.raises(InputError, match=rf"as in: {cure};"):
        load(machine, edits=edit)
    assert load(machine, edits=cure).edits == (cure,)


def test_every_documented_example_is_understood() -> None:
    machine = with_pcie(V)
    for verb, text in edits.VERBS.items():
        for example in text.split(" | "):
            example = example.replace("nic0->fabric", "gpu0->gpu3").replace("xe", "pcie")
            assert example.startswith(verb)
            assert edits.parsed(example)(machine) != machine


def test_without_a_device_takes_its_links_and_its_rank() -> None:
    less = V.without("gpu3", "gpu0-gpu1", "gpu4->gpu5")
    assert less.members == tuple(f"gpu{i}" for i in (0, 1, 2, 4, 5, 6, 7))
    assert "gpu3" not in less.index
    assert not less.links_between("gpu0", "gpu1")
    assert not less.links_between("gpu1", "gpu0")
    assert not less.links_between("gpu4", "gpu5")
    assert less.links_between("gpu5", "gpu4")
    assert V.ranks == 8  # the machine edited is as it was


def test_without_a_card_takes_its_tiles() -> None:
    machine = load("aurora")
    less = machine.edit("without card0")
    assert less.ranks == machine.ranks - 2
    assert less.members == machine.without("card0.t0", "card0.t1", "card0").members
    assert less.links == machine.without("card0.t0", "card0.t1", "card0").links
    assert "card1.t0" in less.members
    assert load("aurora", nodes=2, edits=["without n1.card[0-4]"]).ranks == 12 + 2
    assert machine.without("card0.t1").ranks == machine.ranks - 1
    with pytest.raises(InputError, match="no member is left"):
        machine.without("card[0-5]")


def test_without_a_relay_takes_only_that_relay() -> None:
    part = V.select(["gpu0", "gpu1"], ["gpu2", "gpu3"]).without("gpu3")
    assert part.relays == ("gpu2",)
    assert part.members == ("gpu0", "gpu1")


def test_edits_reach_the_fabric_that_will_join_copies() -> None:
    box = Topology("t", (Device("a", "gpu"), Device("b", "gpu")), tuple(bus_machine().links[:2]))
    box = replace(box, fabric=Fabric("switch", ("a", "b"), "net", 8 * G, planes=2))
    slow = box.edit("degrade net bandwidth=2GB/s").replicate(2)
    assert {x.bandwidth for x in slow.links if x.kind == "net"} == {2 * G}
    with pytest.raises(InputError, match=r"would raise .* from 8 GB/s to 9 GB/s, lanes=1 of 9 GB/s; use"):
        box.edit("degrade net bandwidth=9GB/s")
    with pytest.raises(InputError, match="leave the link out"):
        box.edit("replace net lanes=0")
    one = box.without("b")
    assert box.fabric is not None
    assert one.fabric == replace(box.fabric, ports=("a",), planes=1)
    assert box.subset(["a"]).fabric == one.fabric
    assert one.replicate(3).select().ranks == 3


def test_without_the_last_port_a_node_has_no_fabric() -> None:
    ring = shapes.ring(3)
    box = replace(ring, fabric=Fabric("switch", ("gpu0",), "net", G))
    assert box.without("gpu0").fabric is None
    assert box.without("gpu1").fabric == box.fabric


def test_subset_gives_the_order_of_ranks() -> None:
    part = with_pcie(V).subset(["gpu7", "gpu1"])
    assert part.members == ("gpu7", "gpu1")
    assert {d.name for d in part.devices if d.kind == "gpu"} == {"gpu1", "gpu7"}
    assert {"plx0", "cpu1"} <= set(part.index)
    with pytest.raises(InputError, match="no members"):
        V.subset([])


def test_replace_sets_values_of_a_pair_or_a_class() -> None:
    slow = V.replace("nvlink", bandwidth="18GB/s", latency="2us")
    assert {(x.lane_bandwidth, x.latency) for x in slow.links} == {(18 * G, 2e-6)}
    one = V.replace("gpu0-gpu3", lanes=3, overhead="1us")
    assert [x for x in one.links if x not in V.links] == [
        x for x in one.links if {x.src, x.dst} == {"gpu0", "gpu3"} and x.lanes == 3 and x.overhead == 1e-6
    ]
    assert V.replace("gpu0->gpu3", bandwidth=Fraction(7)).links_between("gpu0", "gpu3")[0].bandwidth == 14


def test_degrade_never_gives_more() -> None:
    assert lanes(V.degrade("gpu0-gpu3", lanes=1), "gpu3", "gpu0") == 1
    with pytest.raises(InputError, match=re.escape("would raise gpu0->gpu3 (nvlink) from 40 GB/s to 60 GB/s")):
        V.degrade("gpu0-gpu3", lanes=3)
    # A message that waits less is no damage, whatever else becomes slower.
    [link] = V.links_between("gpu0", "gpu3")
    assert link.latency > 0
    with pytest.raises(InputError, match=re.escape("make gpu0->gpu3 (nvlink) quicker; use replace")):
        V.degrade("gpu0-gpu3", lanes=1, latency=link.latency / 2)
    assert V.degrade("gpu0-gpu3", latency=2 * link.latency).links_between("gpu0", "gpu3")[0].latency == 2 * link.latency


def test_add_makes_links_or_lanes() -> None:
    assert lanes(V.edit("add gpu0-gpu5 nvlink lanes=2"), "gpu0", "gpu5") == 2
    more = V.edit("add gpu0-gpu3 nvlink")
    assert lanes(more, "gpu0", "gpu3") == lanes(more, "gpu3", "gpu0") == 3
    assert lanes(V.edit("add gpu0->gpu5 nvlink"), "gpu5", "gpu0") == 0


def test_add_to_a_link_does_not_quietly_drop_other_properties() -> None:
    with pytest.raises(InputError, match=re.escape("gpu0->gpu3 (nvlink) exists; add only lanes to it")):
        V.edit("add gpu0-gpu3 nvlink bandwidth=50GB/s")
    assert lanes(V.edit("add gpu0-gpu3 nvlink bandwidth=20GB/s"), "gpu0", "gpu3") == 3


def test_a_bus_keeps_one_bandwidth() -> None:
    machine = bus_machine()
    both = machine.edit("degrade a-b bandwidth=1GB/s")
    assert {x.bandwidth for x in both.links if x.bus} == {G}
    for text in ("degrade a->b bandwidth=1GB/s", "add a->b pcie", "replace a->b lanes=2"):
        with pytest.raises(InputError, match="half duplex: change all links of its bus alike"):
            machine.edit(text)
    wider = machine.edit("add a-c pcie")
    assert len({x.bus for x in wider.links if x.kind == "pcie"}) == 2
    assert {x.bus for x in wider.links_between("a", "c")} == {x.bus for x in wider.links_between("c", "a")} != {None}
    (one_way,) = machine.edit("add a->c pcie").links_between("a", "c")
    assert one_way.bus is None
    assert machine.edit("replace a->b latency=1us").links[0].latency == 1e-6


def test_an_edit_that_breaks_a_symmetry_drops_it() -> None:
    ring = shapes.ring(6)
    assert ring.symmetries
    assert ring.replace("link", bandwidth="1GB/s").symmetries == ring.symmetries
    for text in ("without gpu0", "degrade gpu0-gpu1 bandwidth=1GB/s", "add gpu0-gpu3 link"):
        assert ring.edit(text).symmetries == ()


def test_a_range_is_the_edits_of_its_names_in_turn() -> None:
    box = load("hgx-h200")
    gone = box.edit("without nic[0-3]")
    assert gone == box.without("nic0", "nic1", "nic2", "nic3")
    slow = box.edit("degrade gpu[0-3]-nvswitch lanes=9")
    one_by_one = box
    for number in range(4):
        one_by_one = one_by_one.edit(f"degrade gpu{number}-nvswitch lanes=9")
    assert slow == one_by_one != box
    assert V.edit("add gpu[0-1]-gpu[5-6] nvlink") == V.edit("add gpu0-gpu5 nvlink").edit("add gpu1-gpu6 nvlink")
    assert V.edit("without gpu0->gpu[1-2]") == V.without("gpu0->gpu1", "gpu0->gpu2")


def test_a_range_may_count_nodes() -> None:
    machine = load("hgx-h200", nodes=3, edits="without n[0-1].gpu[6-7]")
    assert machine.ranks == 20
    assert [name for name in machine.members if name.endswith("gpu7")] == ["n2.gpu7"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("without gpu[6-9]", "unknown device 'gpu8'"),
        ("without gpu[0-7]", "no member is left"),
        ("without gpu[3-1]", "runs backwards; write [1-3]"),
        ("without gpu[0-999999999]", "stands for more than 100000 names"),
        ("degrade gpu[0-1]-gpu[2-4] lanes=1", "gpu[0-1]-gpu[2-4]: a link joins ranges of equal length"),
        ("without gpu0-gpu[1-5]", "has no link gpu0-gpu5; gpu0 is linked to gpu1, gpu2, gpu3, gpu4"),
        ("degrade gpu0-gpu3 lanes=٣", "is not a whole number"),
        ("", "unknown edit ''"),
        ("   ", "unknown edit ''"),
        ("remove gpu0", "unknown edit 'remove'"),
        ("without", "cannot read the edit"),
        ("without gpu9", "unknown device or link 'gpu9'"),
        ("without gpu0-gpu5", "has no link gpu0-gpu5; gpu0 is linked to gpu1, gpu2, gpu3, gpu4"),
        ("without gpu0-gpu1-gpu2", "unknown device or link"),
        ("without gpu0 lanes=1", "cannot read the edit"),
        ("degrade gpu0-gpu3", "say what is left"),
        ("degrade gpu0-gpu3 lanes=0", "leave the link out"),
        ("degrade gpu0-gpu3 lanes=-1", "leave the link out"),
        ("degrade gpu0-gpu3 lanes=1.5", "'1.5' is not a whole number"),
        ("degrade gpu0-gpu3 lanes=", "'' is not a whole number"),
        ("degrade gpu0-gpu3 bandwidth=12", "'12' has no unit"),
        ("degrade gpu0-gpu3 width=1", "unknown property of a link 'width'"),
        ("replace gpu0-gpu1 target=1", "unknown property of a link 'target'"),
        ("replace gpu0-gpu1 topology=1", "unknown property of a link 'topology'"),
        ("degrade gpu0-gpu1 changes=1", "unknown property of a link 'changes'"),
        ("add gpu0-gpu5 nvlink kind=1", "unknown property of a link 'kind'"),
        ("add gpu0-gpu5 nvlink =1", "unknown property of a link ''"),
        ("replace gpu0-gpu1 lanes=1 lanes=2", "gives a property twice"),
        ("replace gpu0-gpu1 lanes=1000001", "has more than 1,000,000 lanes"),
        ("replace gpu0-gpu1 lanes=1" + 400 * "0", "is not a whole number; write it like lanes=4"),
        ("replace gpu0-gpu3 latency=-1us", "is not a latency"),
        ("replace gpu0-gpu9 lanes=1", "unknown device 'gpu9'"),
        ("add gpu0-gpu5", "cannot read the edit"),
        ("add gpu0-gpu5 nvlnk", "unknown link class 'nvlnk': did you mean 'nvlink'"),
        (
            "degrade gpu5 lanes=1",
            "gpu5 is a device, and a link has two ends, as in gpu5-gpu1; gpu5 is linked to gpu1, ",
        ),
        ("add gpu0 nvlink", "is not a link"),
        ("add gpu0-gpu0 nvlink", "joins a device with itself"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        V.edit(text)


@pytest.mark.parametrize("value", [2.5, float("nan"), float("inf")])
def test_numbers_that_are_no_counts_or_rates_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="is not a whole number"):
        V.replace("gpu0-gpu3", lanes=value)
    if value != 2.5:
        with pytest.raises(InputError, match="is not a number of bytes/s"):
            V.replace("gpu0-gpu3", bandwidth=value)


@pytest.mark.parametrize(("machine", "port"), [("p4d", "efa0"), ("aurora", "nic0")])
def test_a_port_without_a_node_is_that_of_every_node(machine: str, port: str) -> None:
    """As on machines whose switches between the nodes have numbers."""
    every = load(machine, nodes=2, edits=[f"degrade {port}-fabric bandwidth=6GB/s"])
    each = load(machine, nodes=2, edits=[f"degrade n{node}.{port}-fabric bandwidth=6GB/s" for node in (0, 1)])
    assert every.links == each.links


def test_the_names_of_adapters_are_offered_where_an_edit_names_another() -> None:
    with pytest.raises(InputError, match=r"unknown device or link 'nic0': known: efa0 to efa31 \(a link"):
        load("p5", edits=["without nic0"])


def test_the_adapters_of_a_node_are_offered_where_an_edit_names_another_of_it() -> None:
    known = r"known: n1\.efa0 to n1\.efa3 \(a link"
    with pytest.raises(InputError, match=rf"unknown device or link 'n1\.nic2': {known}"):
        load("p4d", nodes=2, edits=["without n1.nic2"])
    with pytest.raises(InputError, match=r"unknown device or link 'n1\.ega2': did you mean 'n1\.efa2'\?"):
        load("p4d", nodes=2, edits=["without n1.ega2"])


def test_tiles_are_offered_where_an_edit_names_a_gpu_and_all_devices_for_another_word() -> None:
    with pytest.raises(InputError, match=r"'n0\.gpu0': known: n0\.card0\.t0 to n0\.card0\.t1, .*card5\.t1 \(a link"):
        load("aurora", nodes=2, edits=["without n0.gpu0"])
    with pytest.raises(InputError, match=r"'gpu0': known: card0\.t0 to card0\.t1, .*, card5\.t0 to card5\.t1 \(blink"):
        load("aurora").device("gpu0")
    with pytest.raises(InputError, match="'port3': known: efa0 to efa31, gpu0 to gpu7, nvswitch, "):
        load("p5", edits=["without port3"])


def test_the_last_member_cannot_be_removed() -> None:
    one = V.subset(["gpu0"])
    with pytest.raises(InputError, match="no member is left"):
        one.without("gpu0")


@given(mutations("degrade gpu0-gpu3 lanes=1"))
def test_damaged_edits_end_in_one_clear_error_or_a_machine(text: str) -> None:
    try:
        edited = V.edit(text)
    except InputError as error:
        edited, message = V, str(error)
    else:
        message = ""
    assert "\n" not in message
    # What is still read as `degrade` takes nothing away but bandwidth.
    assert edited.devices == V.devices
    assert [x.name for x in edited.links] == [x.name for x in V.links]
    assert all(new.bandwidth <= old.bandwidth for new, old in zip(edited.links, V.links, strict=True))


@given(topologies(), st.data())
def test_removing_links_one_by_one_leaves_exactly_the_others(machine: Topology, data: st.DataObject) -> None:
    gone = data.draw(st.lists(st.sampled_from(machine.links), unique_by=lambda x: x.key, max_size=4))
    left = machine.without(*(f"{x.src}->{x.dst}" for x in gone))
    assert left.links == tuple(x for x in machine.links if x not in gone)
    assert left.devices == machine.devices


def test_an_adapter_of_every_node_may_be_named_beside_the_fabric() -> None:
    short, long = (
        load("hgx-h100", nodes=3, edits=[f"degrade {adapter}-fabric7 bandwidth=25GB/s"])
        for adapter in ("nic7", "n[0-2].nic7")
    )
    assert short.links == long.links != load("hgx-h100", nodes=3).links
    # A range of adapters goes with as long a range of switches, in every node or in those that are named.
    each = load("hgx-h100", nodes=2, edits=[f"degrade nic{k}-fabric{k} bandwidth=25GB/s" for k in range(8)])
    for adapters, switches in (("nic[0-7]", "fabric[0-7]"), ("n[0-1].nic[0-7]", "fabric[0-7]")):
        for target in (f"{adapters}-{switches}", f"{switches}-{adapters}"):
            assert load("hgx-h100", nodes=2, edits=[f"degrade {target} bandwidth=25GB/s"]).links == each.links
    first = load("hgx-h100", nodes=2, edits=["without n1.nic[2-3]-fabric[2-3]"])
    assert not first.links_between("n1.nic3", "fabric3")
    assert first.links_between("n0.nic3", "fabric3")
    with pytest.raises(InputError, match="ranges of equal length"):
        load("hgx-h100", nodes=2, edits=["without nic[0-6]-fabric[0-3]"])
    (one,) = (
        link for link in load("hgx-h100", nodes=3, edits=["without nic7->fabric7"]).links_between("fabric7", "n2.nic7")
    )
    assert one.bandwidth == 50 * 10**9
