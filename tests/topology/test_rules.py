from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from machines_for_tests import dgx1, with_pcie
from strategies import topologies

from blinksim import machines
from blinksim.cli.main import run
from blinksim.formats.shipped.machine_names import catalogue_file, names
from blinksim.machines import load
from blinksim.timing.measured_constants import FitError
from blinksim.topology import shapes
from blinksim.topology.elements import Fabric
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.rules import RULES, behind, check

G = Fraction(10**9)
RING = shapes.ring(6)
RAILS = shapes.rail_cluster(2, 4)
STAR = shapes.one_switch(4)


def more(machine: Topology, *links: Link, devices: tuple[Device, ...] = ()) -> Topology:
    return replace(machine, devices=(*machine.devices, *devices), links=(*machine.links, *links), symmetries=())


def pair(a: str, b: str, kind: str, rate: Fraction = 25 * G, **rest: Any) -> list[Link]:
    return [Link(x, y, kind, rate, latency=1e-6, **rest) for x, y in ((a, b), (b, a))]


def changed(machine: Topology, number: int, **values: Any) -> Topology:
    links = list(machine.links)
    links[number] = replace(links[number], **values)
    return replace(machine, links=tuple(links), symmetries=())


def fabric(*ports: str, kind: str = "net") -> Fabric:
    return Fabric("switch", ports, kind, G, latency=1e-6)


def boxed(machine: Topology, **values: Any) -> Topology:
    """A ring with a NIC on GPU 0 over PCIe."""
    links = pair("gpu0", "nic0", "pcie")
    grown = more(machine, *links, devices=(Device("nic0", "nic"),))
    return replace(grown, fabric=fabric("nic0"), **values)


def hosts(without: str = "", ports: tuple[str, ...] = ("nic0", "nic1", "nic2", "nic3"), lanes: int = 1) -> Topology:
    """Four GPUs on a switch, each with a NIC."""
    links = [link for i in range(4) for link in pair(f"gpu{i}", f"nic{i}", "pcie") if f"gpu{i}-nic{i}" != without]
    grown = more(STAR, *links, devices=tuple(Device(f"nic{i}", "nic") for i in range(4)))
    joined = replace(fabric(*ports), lanes=lanes)
    return replace(grown, fabric=joined, inter_node_links=("pcie", "net"))


def twins(lanes: int) -> Topology:
    """The same with two NICs for each GPU."""
    links = [link for i in range(4) for link in pair(f"gpu{i}", f"nic{i + 4}", "pcie")]
    grown = more(hosts(), *links, devices=tuple(Device(f"nic{i + 4}", "nic") for i in range(4)))
    return replace(grown, fabric=replace(fabric(*(f"nic{i}" for i in range(8))), lanes=lanes))


def measured(what: str = "execution", **values: Any) -> Topology:
    """Eight H200 with other constants of programs or of NCCL."""
    machine = load("hgx-h200")
    constants: Any = getattr(machine, what)
    for name, value in values.items():
        group, _, field = name.rpartition("__")
        inner = replace(getattr(constants, group), **{field: value}) if group else value
        constants = replace(constants, **{group or field: inner})
    return replace(machine, **{what: constants})


BROKEN = [
    ("members-exist", Topology("t", (Device("s", "switch"), Device("c", "cpu")), tuple(pair("s", "c", "pcie"))),
     "no device can hold data"),
    ("members-hold-data",
     replace(RING, devices=(*RING.devices[:5], replace(RING.devices[5], can=frozenset({"forward"}))),
             members=RING.members[:5]),
     "gpu5 cannot hold data"),
    ("members-hold-data",
     more(RING, *pair("gpu0", "cpu0", "link"), devices=(Device("cpu0", "cpu", can=frozenset({"hold", "forward"})),))
     .select([*RING.members, "cpu0"]),
     "cpu0 will hold a rank"),
    ("members-connected", RING.without("gpu0-gpu1", "gpu3-gpu4"), "gpu0 gpu4 gpu5 | gpu1 gpu2 gpu3"),
    ("replicas-connected", boxed(RING), "two nodes:"),
    ("way-out", hosts(without="gpu3-nic3"), "gpu3 without a way to the fabric of its own"),
    ("way-out", hosts(without="gpu3-nic3").replicate(2), "n0.gpu3, n1.gpu3 without a way"),
    ("nic-once", hosts(ports=("nic0", "nic1", "nic2", "nic3", "gpu0")), "gpu0 and nic0, linked to each other, both"),
    ("nic-once", hosts(ports=("nic0", "nic1", "nic2", "nic3", "gpu0")).replicate(2), "n0.gpu0 and n0.nic0, n1.gpu0"),
    ("nic-once", twins(lanes=2), "nic0, nic4, beside each other, have 2 lanes of the fabric each"),
    ("fabric-ports-exist", replace(RING, fabric=fabric("nic0", "gpu1")), "ports nic0 are no devices"),
    ("collective-links-exist", replace(RING, collective_links=("lnk",)), "collective_links names lnk"),
    ("inter-node-links-exist", boxed(RING, inter_node_links=("pcie", "nett")), "inter_node_links names nett"),
    ("reserved-name", replace(RING.with_links(replace(x, kind="all") for x in RING.links), collective_links=()),
     "a link class is called all"),
    ("node-numbers", replace(RING, nodes=3), "no member in node 1, 2 of 3"),
    ("node-numbers", replace(RAILS, nodes=1), "in a node beyond 0 to 0"),
    ("bus-pair", changed(RING, 0, bus="b"), "bus b has the one link gpu0->gpu1 (link)"),
    ("bus-pair", changed(changed(RING, 0, bus="b"), 1, bus="b", lanes=2), "bus b has links of 25 GB/s, 50 GB/s"),
    ("link-both-ways", RING.without("gpu0->gpu1"), "no way back beside gpu1->gpu0 (link)"),
    ("link-both-ways", RING.degrade("gpu2->gpu3", bandwidth="5GB/s"), "gpu3->gpu2 (link) 25 GB/s, back 5 GB/s"),
    ("forwarder-balance", STAR.degrade("gpu0->switch", bandwidth="5GB/s"), "switch: bandwidth in and out differ"),
    ("isolated-device", more(RING, devices=(Device("cpu0", "cpu"),)), "cpu0 without any link"),
    ("dead-end-forwarder", more(RING, *pair("gpu0", "plx", "pcie"), devices=(Device("plx", "pcie"),)),
     "plx linked to one device only"),
    ("plausible-bandwidth", RING.replace("link", bandwidth="25MB/s"), "link links of 0.025 GB/s"),
    ("plausible-bandwidth", RING.replace("link", bandwidth="25TB/s"), "link links of 25000 GB/s"),
    ("uneven-class", RING.replace("gpu0-gpu1", bandwidth="2.5GB/s"), "gpu0-gpu1: link 2.5 GB/s, the other 5 25 GB/s"),
    ("pcie-port", replace(RING, devices=(Device("gpu0", "gpu", attributes={"pcie": "8 GT/s x8 of 16 GT/s x16",
     "pcie_left": "1/4"}), *RING.devices[1:])), "gpu0: PCIe 8 GT/s x8 of 16 GT/s x16"),
    ("pcie-port", replace(RING, devices=(*(Device(f"gpu{n}", "gpu", attributes={"acs": "on"}) for n in range(2)),
     *RING.devices[2:])), "ACS is on at the ports above gpu0 to gpu1"),
    ("missing-link", dgx1("DGX-1V").without("gpu0-gpu4"), "gpu0, gpu4: 80 GB/s of nvlink, the other 6 GPUs 120 GB/s"),
    ("parallel-classes", replace(more(RING, *pair("gpu0", "gpu1", "pcie")), collective_links=()),
     "link and pcie links join the same devices, such as gpu0 and gpu1"),
    ("private-pcie", more(RING, *pair("gpu0", "gpu3", "PCIe4")), "PCIe4 links join GPUs directly"),
    ("latency-given", shapes.ring(4, times=(0.0, 0.0)), "no latency and no overhead on link links"),
    ("in-network", more(RING, *pair("gpu0", "nic0", "pcie"),
     devices=(Device("nic0", "nic", can=frozenset({"reduce"})),)), "nic0, a nic, can reduce"),
    ("in-network", replace(STAR, devices=(*STAR.devices[:-1], Device("switch", "switch",
     attributes={"reduction_types": "float16"}))), "switch has reduction_types, and only forwards"),
    ("in-network", replace(STAR, devices=(*STAR.devices[:-1], Device("switch", "switch", can=frozenset({"multicast"}),
     attributes={"multicast_groups": 64}))), "switch has multicast_groups without multicast_groups_source"),
    ("in-network", replace(STAR, devices=(*STAR.devices[:-1], Device("switch", "switch", can=frozenset({"reduce"}),
     attributes={"reduction_rate": "fast", "reduction_rate_source": "x"}))), "switch: reduction_rate: "),
    ("plausible-latency", RING.replace("link", latency="0.5s"), "link links with latency 500 ms"),
    ("plausible-latency", RING.replace("link", overhead="2ms"), "link links with overhead 2 ms"),
    ("plausible-constants", measured(launch_s=5.0), "execution.launch is 5 s; hardware has 0 s to 100 us"),
    ("plausible-constants", measured(packets__step_s=8e-4), "execution.protocols.ll128.step is 800 us"),
    ("plausible-constants", measured(flags__byte_s=2e-6), "execution.protocols.simple.byte is 2 us"),
    ("plausible-constants", measured(flags__cache_bytes=25e3), "execution.protocols.simple.cache is "),
    ("plausible-constants", measured(ports__fan=2.7), "execution.ports.fan is 2.7; hardware has 0 to 0.5"),
    ("plausible-constants", measured(ports__out=520e9), "ports.out is 520 GB/s; the links to the switch carry 450"),
    ("plausible-constants", measured(ports__into=46e9), "ports.into is 46 GB/s; the links to the switch carry 450"),
    ("plausible-constants", measured("nccl_rates", simple__rate=3.6e12), "execution.nccl.simple.rate is 3600 GB/s"),
    ("plausible-constants", measured("nccl_rates", ll__hop_s=6e-3), "execution.nccl.ll.hop is 6 ms"),
    ("plausible-constants", measured(error=FitError(0.2, 0.1, 9)), "execution.error: the median is above p90"),
    ("plausible-constants", replace(RING, nccl_rates=load("hgx-h200").nccl_rates),
     "execution.nccl is of GPUs around a switch"),
    ("symmetric-generators", replace(RING, symmetries=((1, 0, 2, 3, 4, 5), RING.symmetries[0])),
     "1 of 2 symmetries do not map"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "machine", "words"), BROKEN, ids=[f"{case[0]}-{i}" for i, case in enumerate(BROKEN)])
def test_each_rule_finds_its_fault_and_says_what_to_do(rule: str, machine: Topology, words: str) -> None:
    found = [finding for finding in check(machine) if finding.rule == rule]
    assert len(found) == 1
    assert words in found[0].message
    assert found[0].severity == RULES[rule].severity
    assert found[0].cure == RULES[rule].cure != ""


def test_every_rule_is_documented_and_has_a_machine_that_breaks_it() -> None:
    assert {case[0] for case in BROKEN} == set(RULES)
    for name, rule in RULES.items():
        assert rule.name == name
        assert rule.severity in ("error", "warning")
        assert rule.doc.endswith(".")
        assert "\n" not in rule.doc


@pytest.mark.parametrize(
    "machine",
    [
        dgx1("DGX-1P"),
        dgx1("DGX-1V"),
        with_pcie(dgx1("DGX-1V")),
        RING,
        RAILS,
        STAR,
        boxed(RING, inter_node_links=("pcie", "net")),
        hosts(),
        hosts(lanes=2),
        hosts().replicate(2),
        twins(lanes=1),
        shapes.fat_tree(6, 2),
        load("hgx-h200", nodes=2, rates="measured"),
    ],
    ids=repr,
)
def test_sound_machines_pass(machine: Topology) -> None:
    assert machine.check() == []


def test_a_finding_says_the_line_of_the_file_that_is_at_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = catalogue_file("hgx-h200").read_text()
    faults = (
        (r"(?m)^(  launch: [\d.]+)us", r"\1s"),
        ("latency: 0.3us", "latency: 0.3s"),
        (r"median: [\d.]+", "median: 24"),
    )
    for old, new in faults:
        text, changed = re.subn(old, new, text, count=1)
        assert changed
    lines = text.splitlines()
    Path("box.yaml").write_text(text)
    starts = ("  launch:", "    latency: 0.3s", "  error:")
    at = {start: number for start in starts for number, line in enumerate(lines, 1) if line.startswith(start)}
    places = {finding.place for finding in machines.check("box.yaml")}
    assert places == {f"box.yaml:{number}" for number in at.values()}
    assert run(["topo", "check", "box.yaml"]) == 0
    assert f"box.yaml:{at['  launch:']}: warning: execution.launch is " in capsys.readouterr().out
    # The constants of a rates file go before those of the machine, and an edit is on no line.
    Path("rates.yaml").write_text("name: mine\n" + "\n".join(lines[lines.index("execution:") :]))
    there = {finding.place for finding in machines.check(load("hgx-h200", rates="rates.yaml"))}
    assert there == {
        f"rates.yaml:{at[start] - lines.index('execution:') + 1}" for start in starts if start != starts[1]
    }
    edited = load("box.yaml", edits="degrade gpu0-nvswitch latency=0.4s")
    assert {finding.place for finding in machines.check(edited)} == {""}


def test_only_trunks_between_fabric_switches_may_be_faster_than_hardware_is() -> None:
    fast = shapes.fat_tree(4, 2, nic_bandwidth=3000 * G)
    assert {x.bandwidth for x in fast.links if x.dst == "fabric"} == {12000 * G}
    assert fast.check() == []
    for kind in ("nic", "fabric"):
        found = check(fast.replace(kind, bandwidth="5TB/s"))
        assert ("plausible-bandwidth", f"{kind} links of 5000 GB/s") in [(f.rule, f.message) for f in found]
    assert check(shapes.ring(4, bandwidth=Fraction(10**8))) == []
    assert check(shapes.ring(4, bandwidth=Fraction(4 * 10**12))) == []


def test_errors_come_first() -> None:
    machine = replace(RING.without("gpu0->gpu1", "gpu3-gpu4"), collective_links=("lnk", "link"), symmetries=((0,),))
    severities = [finding.severity for finding in check(machine)]
    assert severities == sorted(severities)
    assert {"error", "warning"} == set(severities)


def test_a_faulty_machine_never_breaks_the_check_itself() -> None:
    empty = Topology("t", (), ())
    assert [finding.rule for finding in check(empty)] == ["members-exist"]
    lone = Topology("t", (Device("gpu0", "gpu"),), ())
    assert check(lone) == []


@given(topologies(relays=True))
def test_drawn_machines_have_no_errors(machine: Topology) -> None:
    assert [finding for finding in check(machine) if finding.severity == "error"] == []


@pytest.mark.parametrize(
    ("edit", "first"),
    [
        ("without n3.nic[0-6]", "n3: 50 GB/s of ib, the other 3 nodes 400 GB/s"),
        ("without n[0-1].nic0", "n0, n1: 350 GB/s of ib, the other 2 nodes 400 GB/s"),
        ("degrade n1.nic0-fabric0 bandwidth=1GB/s", "n1.nic0: 1 GB/s of ib, the other 31 adapters 50 GB/s"),
        ("degrade fabric0->n1.nic0 bandwidth=1GB/s", "n1.nic0: 1 GB/s of ib, the other 31 adapters 50 GB/s"),
        ("degrade n2.gpu5-n2.nvswitch lanes=9", "n2.gpu5: 225 GB/s of nvlink, the other 31 GPUs 450 GB/s"),
        ("without n0.gpu1-n0.nic1", "n0.gpu1: 0 GB/s of pcie, the other 31 GPUs 64 GB/s"),
        ("without n0.gpu1", ""),
        ("degrade n[0-3].nic2-fabric2 bandwidth=20GB/s",
         "n0.nic2, n1.nic2, n2.nic2, n3.nic2: 20 GB/s of ib, the other 28 adapters 50 GB/s"),
        ("replace ib bandwidth=10GB/s", ""),
    ],
)  # fmt: skip
def test_what_is_behind_the_others_of_its_sort(edit: str, first: str) -> None:
    whole = machines.load("hgx-h100", nodes=4, edits=edit)
    assert next((words for _, words in behind(whole)), "") == first
    # Who takes no part is compared with nobody.
    apart = replace(whole, members=tuple(f"n{node}.gpu{gpu}" for node in (0, 1) for gpu in (0, 3)))
    assert [words for _, words in behind(apart) if "n2" in words or "n3" in words] == []


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "p5", "perlmutter", "alps", "gb200-nvl8"])
@pytest.mark.parametrize(("damaged", "nodes"), [(1, 2), (1, 3), (2, 4), (3, 6), (4, 8), (3, 4), (7, 8)])
def test_nodes_are_named_for_an_adapter_that_they_lack(machine: str, damaged: int, nodes: int) -> None:
    """Also if most of them lack it; and no GPU is, for its link to that adapter."""
    whole = machines.load(machine, nodes=nodes)
    adapter = min(device.name for device in whole.devices if device.kind == "nic").removeprefix("n0.")
    edits = [f"without n{node}.{adapter}" for node in range(damaged)]
    told = [*behind(machines.load(machine, nodes=nodes, edits=edits))]
    assert [named for named, _ in told] == [[f"n{node}" for node in range(damaged)]]
    fabric = machines.load(machine).fabric
    assert fabric is not None
    assert f" of {fabric.kind}, " in told[0][1]


def test_inside_one_node_no_adapter_is_behind() -> None:
    one, two = (machines.load("mi300x", nodes=nodes, edits=f"degrade {node}gpu3-{node}nic3 bandwidth=1GB/s")
                for nodes, node in ((1, ""), (2, "n1.")))  # fmt: skip
    assert list(behind(one)) == []
    assert [named for named, _ in behind(two)] == [["n1.nic3"], ["n1.gpu3"]]


@settings(max_examples=20, deadline=None)
@given(lost=st.lists(st.integers(0, 7), min_size=1, max_size=4))
def test_each_node_is_named_with_what_it_has_itself_the_worst_first(lost: list[int]) -> None:
    """Nodes of Aurora that lost so many of their eight adapters of 25 GB/s; as many more lost none."""
    nodes = 2 * len(lost) + 2
    edits = [f"without n{node}.nic[0-{few - 1}]" for node, few in enumerate(lost) if few]
    told = [words for _, words in behind(machines.load("aurora", nodes=nodes, edits=edits))]
    alike = {few: [f"n{node}" for node, of in enumerate(lost) if of == few] for few in {*lost} - {0}}
    worst = [f"{', '.join(alike[few])}: {25 * (8 - few)} GB/s of slingshot" for few in sorted(alike, reverse=True)]
    whole = nodes - sum(map(len, alike.values()))
    assert told == ([f"{', '.join(worst)}, the other {whole} nodes 200 GB/s"] if alike else [])


def test_links_of_one_class_that_are_slow_have_figures_of_their_own() -> None:
    slow = shapes.ring(9).replace("gpu0-gpu1", bandwidth="2.5GB/s").replace("gpu4-gpu5", bandwidth="5GB/s")
    told = [finding.message for finding in check(slow) if finding.rule == "uneven-class"]
    assert told == ["gpu0-gpu1: link 2.5 GB/s, gpu4-gpu5: link 5 GB/s, the other 7 25 GB/s"]


@pytest.mark.parametrize(("machine", "gpu"), [("aurora", "card2"), ("aurora", "card2.t0"), ("dgx1-v100", "gpu3"),
                                              ("mi300x", "gpu0"), ("perlmutter", "gpu1")])  # fmt: skip
@pytest.mark.parametrize("nodes", [1, 4])
def test_nobody_is_behind_for_links_to_a_gpu_that_is_gone(machine: str, gpu: str, nodes: int) -> None:
    """A slow link of the same node is told, and so is one of each copy of a node that was edited by itself."""
    edits = [f"without n2.{gpu}" if nodes > 1 else f"without {gpu}"]
    assert list(behind(machines.load(machine, nodes=nodes, edits=edits))) == []
    node = machines.load(machine, edits=f"without {gpu}")
    assert list(behind(node.replicate(nodes))) == []
    link = next(one for one in node.links if {one.src, one.dst} <= {*node.members})
    slow = node.degrade(f"{link.src}-{link.dst}", bandwidth="1GB/s").replicate(nodes)
    named, words = next(behind(slow)) if node.ranks > 4 else ((link.src, link.dst), f" of {link.kind}, ")
    assert {name.removeprefix("n0.") for name in named} >= {link.src, link.dst}
    assert f" of {link.kind}, " in words


def test_machines_of_the_catalogue_have_nothing_behind() -> None:
    """But for Frontier, half of whose GPUs have no adapter and a link more."""
    for name in names():
        assert name == "frontier" or list(behind(machines.load(name))) == []
