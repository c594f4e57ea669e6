"""NCCL topology files: real dumps, printed listings, NCCL's own paths as the oracle, and hostile input."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st

from blinksim.answers.bound import bound
from blinksim.errors import BlinksimError, FileError, InputError
from blinksim.machines import load
from blinksim.nccl.files.topo_file import read, read_text
from blinksim.textio import link_rates
from blinksim.topology.graph import Topology
from blinksim.topology.rules import behind

DATA = Path(__file__).resolve().parents[1] / "data"
MACHINES = sorted((DATA / "nccl_topo").glob("*.xml"))
PATHS = json.loads((DATA / "nccl_topo" / "paths.json").read_text())
H200 = DATA / "captures" / "h200x8" / "topo.xml"
QUAD = DATA / "captures" / "h200x4" / "quad_topo.xml"
GB = 10**9


def machine(name: str, rates: str = "nominal") -> Topology:
    return read(DATA / "nccl_topo" / f"{name}.xml", rates)


def rate(topology: Topology, src: str, dst: str, kind: str) -> float:
    """GB/s of one link."""
    (link,) = [x for x in topology.links_between(src, dst) if x.kind == kind]
    return float(link.bandwidth / GB)


def lanes(topology: Topology, peers: Iterable[str]) -> dict[tuple[str, str], int]:
    chosen = set(peers)
    return {(x.src, x.dst): x.lanes for x in topology.links if x.kind == "nvlink" and {x.src, x.dst} <= chosen}


# --- real dumps and printed listings ------------------------------------------------------------------------------


@pytest.mark.parametrize(("rates", "expected"), [("nominal", 450), ("nccl", 370.8)])
def test_eight_h200_in_a_virtual_machine(rates: str, expected: float) -> None:
    h200 = read(H200, rates)
    assert h200.members == tuple(f"gpu{i}" for i in range(8))
    assert h200.rates == rates
    for gpu in h200.members:
        (up,), (down,) = h200.links_between(gpu, "nvswitch"), h200.links_between("nvswitch", gpu)
        assert (up.lanes, down.lanes) == (18, 18)
        assert float(up.bandwidth / GB) == float(down.bandwidth / GB) == pytest.approx(expected, abs=1e-12)
        # A path over the switch costs what a small copy between two H200 was measured to take.
        assert up.latency + up.overhead + down.latency + down.overhead == pytest.approx(1.9e-6)
    # link_width="0" stands for 16 lanes of generation 5.
    assert rate(h200, "gpu0", "cpu0", "pcie") == (64 if rates == "nominal" else 48)
    assert h200.collective_links == ("nvlink",)
    gpu5 = h200.device("gpu5").attributes
    assert (gpu5["busid"], gpu5["sm"], gpu5["rank"], gpu5["gdr"], gpu5["device"]) == (
        "0000:00:0b.0",
        90,
        5,
        "1",
        "0x2335",
    )
    net = h200.device("net0").attributes
    assert (net["name"], net["speed"], net["guid"], net["port"], net["maxconn"]) == (
        "eth0",
        "10000",
        "0x0",
        "0",
        "65536",
    )
    assert rate(h200, "cpu0", "nic0", "local") == 5000
    assert rate(h200, "nic0", "net0", "nic") == 1.25


def test_a_dgx1_quad_written_by_hand() -> None:
    quad = read(QUAD)
    once, twice = {(0, 1), (0, 2), (1, 3)}, {(0, 3), (1, 2), (2, 3)}
    expected = {(f"gpu{a}", f"gpu{b}"): 1 for a, b in once} | {(f"gpu{a}", f"gpu{b}"): 2 for a, b in twice}
    assert lanes(quad, quad.members) == expected | {(b, a): n for (a, b), n in expected.items()}
    assert rate(quad, "gpu0", "gpu3", "nvlink") == 50
    assert rate(read(QUAD, "nccl"), "gpu0", "gpu3", "nvlink") == 40
    assert quad.fabric is None
    assert quad.inter_node_links == ()


def test_listing_of_two_small_gpus_and_a_network_card() -> None:
    """SISCI-NCCL thesis (Cubedo 2021), listing 3.3, with the line breaks as printed."""
    node = read(DATA / "thesis_listing_3_3.xml")
    assert node.members == ("gpu0", "gpu1")
    assert rate(node, "gpu0", "cpu0", "pcie") == rate(node, "cpu0", "gpu1", "pcie") == 2.0
    assert rate(node, "cpu0", "nic0", "pcie") == 0.25
    assert rate(node, "nic0", "net0", "nic") == 0.125
    assert node.device("net0").attributes["name"] == "enp9s0"
    assert node.device("cpu0").attributes["familyid"] == "6"
    assert node.collective_links == ("pcie",)
    assert node.fabric is not None
    assert node.fabric.ports == ("net0",)
    assert node.fabric.lane_bandwidth == Fraction(GB, 8)
    pair = node.replicate(2)
    assert pair.ranks == 4
    assert {"pcie", "nic", "net"} == set(pair.default_links())
    assert len(pair.select().components()) == 1


def test_listing_of_an_ntb_adapter_is_a_network_card_not_an_nvswitch() -> None:
    """SISCI-NCCL thesis (Cubedo 2021), listing 4.7: the adapter has the PCI class of an NVSwitch."""
    node = read(DATA / "thesis_listing_4_7.xml")
    assert [d.name for d in node.devices if d.kind == "switch"] == []
    assert rate(node, "gpu0", "cpu0", "pcie") == 2.0
    assert rate(node, "cpu0", "pcie0", "pcie") == rate(node, "pcie0", "nic0", "pcie") == 8.0
    assert rate(node, "nic0", "net0", "nic") == 7.88
    assert node.device("net0").attributes["name"] == "sisci_adapter_0_node_4"
    assert node.fabric is not None
    assert node.fabric.lane_bandwidth == Fraction(788, 100) * GB


# --- NCCL's own answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PATHS))
def test_bandwidths_are_those_nccl_finds_on_its_paths(name: str) -> None:
    """Each path NCCL 2.28.3 prints (type/GB/s) over NVLink or the PCIe tree, recomputed on the imported links."""
    known = PATHS[name]
    topology = read(DATA / "nccl_topo" / name, "nccl")
    count = {kind: sum(d.kind == kind for d in topology.devices) for kind in ("gpu", "cpu", "switch")}
    system = known["system"]
    assert (count["gpu"], count["cpu"], count["switch"]) == (system["gpus"], system["cpus"], system["nvswitch"])
    graphs = {
        "NVL": narrowest(topology, ("nvlink",)),
        "tree": narrowest(topology, ("pcie", "local", "cpu", "nic")),
    }
    compared = 0
    nets = sorted((d.name for d in topology.devices if d.name.startswith("net")), key=lambda n: int(n[3:]))
    for key, ends in (("paths", topology.members), ("net_paths", tuple(nets))):
        for i, row in enumerate(known.get(key, [])):
            for j, text in enumerate(row):
                kind, printed = text.split("/")
                if kind in ("LOC", "NVB", "PXN", "P2C"):
                    continue
                ours = graphs["NVL" if kind == "NVL" else "tree"](topology.members[i], ends[j])
                assert ours == pytest.approx(float(printed), rel=1e-6), (key, i, j, text)
                compared += 1
    assert compared >= 2
    most = max(
        max(sum(x.bandwidth for x in topology.links if x.src == gpu and x.kind == kind) for kind in ("nvlink", "pcie"))
        for gpu in topology.members
    )
    assert float(most / GB) == pytest.approx(system["total_bw"], rel=1e-6)


def narrowest(topology: Topology, kinds: tuple[str, ...]) -> Callable[[str, str], float]:
    """GB/s of the narrowest link on the path with the fewest links, the widest of those."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for link in topology.links:
        if link.kind in kinds:
            graph.add_edge(link.src, link.dst, rate=float(link.bandwidth / GB))

    def of(src: str, dst: str) -> float:
        ways = nx.all_shortest_paths(graph, src, dst)
        return max(float(min(graph.edges[edge]["rate"] for edge in nx.utils.pairwise(way))) for way in ways)

    return of


@pytest.mark.parametrize("path", MACHINES, ids=lambda p: p.stem)
@pytest.mark.parametrize("rates", link_rates.RATES)
def test_every_machine_is_connected_and_its_links_come_in_pairs(path: Path, rates: str) -> None:
    topology = read(path, rates)
    assert topology.name == path.stem
    keys = {link.key: link.bandwidth for link in topology.links}
    assert all(keys[(dst, src, kind)] == bandwidth for (src, dst, kind), bandwidth in keys.items())
    assert len(topology.select().components()) == 1
    assert topology.select(links=topology.link_classes).ranks == topology.ranks
    cluster = topology.replicate(2)
    assert len(cluster.select().components()) == 1


CUBE_MESH = {(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3), (2, 6), (3, 7)}
CUBE_MESH |= {(4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)}
DOUBLE = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}


@pytest.mark.parametrize(
    ("name", "lane", "doubled"), [("dgx1p", 20, set()), ("dgx1v-4ib", 25, DOUBLE), ("p3.16xlarge", 25, DOUBLE)]
)
def test_hybrid_cube_mesh(name: str, lane: int, doubled: set[tuple[int, int]]) -> None:
    """Blink (2018 short paper), figure 1: every GPU of a DGX-1 has its 4 (P100) or 6 (V100) NVLinks."""
    topology = machine(name)
    found = {(int(a[3:]), int(b[3:])): count for (a, b), count in lanes(topology, topology.members).items() if a < b}
    assert found == {pair: 2 if pair in doubled else 1 for pair in CUBE_MESH}
    assert {x.lane_bandwidth for x in topology.links if x.kind == "nvlink"} == {Fraction(lane * GB)}


def test_facts_of_the_other_machines() -> None:
    a100 = machine("dgx-a100")
    assert a100.links_between("gpu0", "nvswitch")[0].lanes == 12
    assert rate(a100, "gpu0", "nvswitch", "nvlink") == 300
    assert sorted(d.name for d in a100.devices if d.kind == "cpu") == ["cpu1", "cpu3", "cpu5", "cpu7"]
    # EPYC 7002: four links of 16 lanes at 18 GT/s, of which NCCL counts 16 GB/s.
    assert rate(a100, "cpu3", "cpu1", "cpu") == 4 * 16 * 18 / 8
    assert a100.fabric is not None
    assert a100.fabric.ports == tuple(f"net{i}" for i in range(8))
    h100 = machine("hgx-h100-8nic")
    assert h100.links_between("nvswitch", "gpu7")[0].lanes == 18
    # NVSwitches of Hopper add what a GPU reads, those of Ampere only forward.
    assert h100.device("nvswitch").in_network == {"multicast", "reduce_into_reader"}
    assert not a100.device("nvswitch").in_network
    assert rate(h100, "cpu0", "cpu1", "cpu") == 128
    assert rate(h100, "nic3", "net3", "nic") == 50
    dgx2 = machine("dgx-2")
    assert (dgx2.ranks, rate(dgx2, "gpu15", "nvswitch", "nvlink"), rate(dgx2, "cpu1", "cpu0", "cpu")) == (16, 150, 62.4)
    grace = machine("gh200x4")
    assert rate(grace, "gpu1", "cpu1", "c2c") == rate(grace, "cpu1", "gpu1", "c2c") == pytest.approx(447.12)
    assert rate(grace, "gpu0", "gpu3", "nvlink") == 150
    assert "c2c" in grace.inter_node_links
    assert rate(machine("vm-a100x4"), "gpu2", "nvswitch", "nvlink") == 300
    for name, between in (("pcie8-2sw-amd", 144), ("pcie8-2sw-intel", 62.4), ("pcie8-4sw-intel", 128)):
        box = machine(name)
        assert box.collective_links == ("pcie", "cpu")
        assert rate(box, "cpu0", "cpu1", "cpu") == between
        assert rate(box, "gpu0", "pcie0", "pcie") == 32
    assert rate(machine("pcie2-intel-desktop"), "gpu1", "cpu0", "pcie") == 16


# --- small files --------------------------------------------------------------------------------------------------


def system(*inside: str, cpu: str = 'numaid="0" arch="x86_64" vendor="AuthenticAMD"') -> str:
    return f'<system version="1">\n<cpu {cpu}>\n' + "\n".join(inside) + "\n</cpu>\n</system>\n"


def gpu(dev: int, nvlinks: str = "", *, sm: int = 70, rank: str = "", pci: str = "") -> str:
    """One line of XML with a GPU at bus id 0000:1<dev>:00.0."""
    place = pci or 'link_speed="8.0 GT/s PCIe" link_width="16"'
    inside = f'<gpu dev="{dev}" sm="{sm}" {rank}>{nvlinks}</gpu>'
    return f'<pci busid="0000:1{dev}:00.0" class="0x030200" {place}>{inside}</pci>'


def nvlink(dev: int, count: int = 1, tclass: str = 'tclass="0x030200"') -> str:
    return f'<nvlink target="0000:1{dev}:00.0" count="{count}" {tclass}/>'


PAIR = (gpu(0, nvlink(1), rank='rank="0"'), gpu(1, nvlink(0), rank='rank="1"'))


def test_members_follow_the_ranks_and_idle_gpus_stay_devices() -> None:
    text = system(gpu(0, rank='rank="2"'), gpu(1), gpu(2, rank='rank="0"'))
    topology = read_text(text, "t.xml")
    assert topology.members == ("gpu2", "gpu0")
    assert topology.device("gpu1").holds
    assert "rank" not in topology.device("gpu1").attributes
    assert read_text(system(gpu(2), gpu(0)), "t.xml").members == ("gpu0", "gpu2")


def test_entries_add_up_and_each_gpu_lists_its_own_side() -> None:
    topology = read_text(system(gpu(0, nvlink(1, 2) + nvlink(1)), gpu(1, nvlink(0))), "t.xml")
    assert lanes(topology, topology.members) == {("gpu0", "gpu1"): 3, ("gpu1", "gpu0"): 1}
    one_way = read_text(system(gpu(0, nvlink(1)), gpu(1)), "t.xml")
    assert lanes(one_way, one_way.members) == {("gpu0", "gpu1"): 1}
    # NVLink one way does not connect the two, so the PCIe tree is taken too.
    assert one_way.collective_links == ("nvlink", "pcie")


@pytest.mark.parametrize("tclass", ['tclass="0x068000"', 'tclass="0x068000 "', ""])
@pytest.mark.parametrize("target", ["fffffff:ff:ff.0", "FFFFFFF:FFFF:FF.0"])
def test_hidden_switches(target: str, tclass: str) -> None:
    entry = f'<nvlink target="{target}" count="6" {tclass}/>'
    topology = read_text(system(gpu(0, entry), gpu(1, entry)), "t.xml")
    assert topology.links_between("nvswitch", "gpu1")[0].lanes == 6


def test_nvlink_to_the_cpu_goes_both_ways() -> None:
    entry = '<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/>'
    power = 'numaid="8" arch="ppc64" vendor="IBM"'
    topology = read_text(system(gpu(0, entry), gpu(1, entry), cpu=power), "t.xml")
    assert rate(topology, "gpu0", "cpu8", "nvlink") == rate(topology, "cpu8", "gpu0", "nvlink") == 75
    assert topology.collective_links == ("nvlink",)


@pytest.mark.parametrize(
    ("speed", "width", "nominal", "nccl"),
    [
        ('link_speed="2.5 GT/s"', 1, 0.25, 0.1875),
        ('link_speed="5.0 GT/s PCIe"', 4, 2, 1.5),
        ('link_speed="8 GT/\n   s"', 8, 8, 6),
        ('link_speed="16.0 GT/s PCIe"', 16, 32, 24),
        ('link_speed="32.0 GT/s PCIe"', 0, 64, 48),
        ('link_speed="64.0 GT/s PCIe"', 16, 128, 96),
        ('link_speed="Unknown"', 16, 16, 12),
        ('link_speed=""', 16, 16, 12),
        ("", 16, 16, 12),
    ],
)
def test_pcie_rates(speed: str, width: int, nominal: float, nccl: float) -> None:
    text = system(gpu(0, pci=f'{speed} link_width="{width}"'))
    assert rate(read_text(text, "t.xml"), "gpu0", "cpu0", "pcie") == nominal
    assert rate(read_text(text, "t.xml", "nccl"), "gpu0", "cpu0", "pcie") == nccl


@pytest.mark.parametrize(
    ("sm", "nominal", "nccl"),
    [
        (60, 20, 18),
        (61, 20, 18),
        (70, 25, 20),
        (75, 25, 20),
        (80, 25, 20),
        (86, 14.0625, 12),
        (87, 25, 20),
        (90, 25, 20.6),
        (100, 50, 40.1),
        (103, 50, 40.1),
    ],
)
def test_nvlink_rates(sm: int, nominal: float, nccl: float) -> None:
    text = system(gpu(0, nvlink(1), sm=sm), gpu(1, nvlink(0), sm=sm))
    assert rate(read_text(text, "t.xml"), "gpu0", "gpu1", "nvlink") == nominal
    assert rate(read_text(text, "t.xml", "nccl"), "gpu0", "gpu1", "nvlink") == nccl


@pytest.mark.parametrize(
    ("cpu", "nominal", "nccl"),
    [
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79"', 6, 6),
        # As many UPI links as a board may connect, of 20.8, 32 and 40 GB/s.
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"', 62.4, 10),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"', 4 * 32, 22),
        ('arch="x86_64" vendor="GenuineIntel" familyid="0x6" modelid="0xcf"', 4 * 40, 40),
        ('arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49"', 144, 16),
        ('arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1"', 144, 16),
        ('arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17"', 256, 16),
        ('arch="x86_64" vendor="AuthenticAMD" familyid="26" modelid="2"', 256, 16),
        ('arch="x86_64" vendor="AuthenticAMD"', 256, 16),
        ('arch="x86_64" vendor="  Shanghai  " familyid="7" modelid="91"', 9, 9),
        ('arch="x86_64" vendor="CentaurHauls" familyid="7" modelid="59"', 6, 6),
        ('arch="ppc64"', 32, 32),
        ('arch="arm64" vendor="ARM"', 6, 6),
        ('arch="x86_64" vendor="Other"', 5000, 5000),
    ],
)
@pytest.mark.parametrize("rates", link_rates.RATES)
def test_cpu_rates(cpu: str, nominal: float, nccl: float, rates: str) -> None:
    expected = nccl if rates == "nccl" else nominal
    second = gpu(1).replace("0000:11", "0000:21")
    text = f'<system version="1"><cpu numaid="0" {cpu}>{gpu(0)}</cpu><cpu numaid="1" {cpu}>{second}</cpu></system>'
    topology = read_text(text, "t.xml", rates)
    assert rate(topology, "cpu0", "cpu1", "cpu") == rate(topology, "cpu1", "cpu0", "cpu") == expected


def nic(busid: str, *nets: str) -> str:
    return f'<pci busid="{busid}" class="0x020000" link_speed="8 GT/s" link_width="8"><nic>{"".join(nets)}</nic></pci>'


def test_functions_of_one_adapter_share_its_pcie_link() -> None:
    text = system(
        gpu(0),
        nic("0000:20:00.0", '<net name="a" dev="0" speed="100000" latency="5.5"/>'),
        nic("0000:20:00.1", '<net name="b" dev="1" speed="25000"/>', '<net name="no number" speed="1"/>'),
        nic("0000:21:00.0", '<net dev="0x2" speed="-1"/>'),
    )
    topology = read_text(text, "t.xml")
    assert [d.name for d in topology.devices if d.kind == "nic"] == ["nic0", "net0", "net1", "nic1", "net2"]
    assert rate(topology, "nic0", "cpu0", "pcie") == 8
    # Without a speed, NCCL takes 10 Gb/s.
    assert [rate(topology, *pair, "nic") for pair in (("nic0", "net0"), ("nic0", "net1"), ("nic1", "net2"))] == [
        12.5,
        3.125,
        1.25,
    ]
    assert topology.fabric is not None
    assert topology.fabric.ports == ("net0", "net1", "net2")
    assert topology.fabric.lane_bandwidth == 12_500_000_000
    # From node to node a message takes two of the fabric's links.
    assert topology.fabric.latency * 2 == pytest.approx(5.5e-6)
    assert topology.inter_node_links == ("pcie", "nic", "net")


def test_bridges_linked_side_by_side() -> None:
    inner = '<pci busid="0000:4{}:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">{}{}</pci>'
    text = system(
        inner.format(0, '<pcilink target="0000:41:00.0"/>', gpu(0)),
        inner.format(1, '<pcilink target="0000:40:00.0"/><pcilink target="0000:99:00.0"/>', gpu(1)),
    )
    topology = read_text(text, "t.xml")
    assert rate(topology, "pcie0", "pcie1", "local") == rate(topology, "pcie1", "pcie0", "local") == 5000


def test_several_hosts_in_one_file() -> None:
    entry = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'
    cpu = '<cpu numaid="0" host_hash="0x{}" arch="arm64">{}</cpu>'
    text = (
        '<system version="1">'
        + "".join(
            cpu.format(
                h, gpu(0, entry, sm=100, rank=f'rank="{h}"') + nic("0000:20:00.0", '<net dev="0" speed="1000"/>')
            )
            for h in range(2)
        )
        + "</system>"
    )
    topology = read_text(text, "t.xml")
    assert topology.members == ("n0.gpu0", "n1.gpu0")
    assert [topology.device(m).node for m in topology.members] == [0, 1]
    assert (topology.nodes, topology.device("nvswitch").node, topology.fabric) == (2, -1, None)
    assert len(topology.select().components()) == 1


def test_prolog_comments_and_elements_nccl_does_not_know_are_skipped() -> None:
    text = '<?xml version="1.0"?>\n<!-- x -->\n' + system(*PAIR, '<xgmi target="1"/>', "<future><gpu/></future>")
    assert read_text(text, "t.xml").ranks == 2


def test_attributes_may_have_any_name() -> None:
    text = system(
        gpu(0)
        .replace("<pci ", '<pci name="n" kind="k" host="h" self="s" element="e" ')
        .replace("<gpu ", '<gpu facts="f" ')
    )
    found = read_text(text, "t.xml").device("gpu0").attributes
    assert [found[key] for key in ("name", "kind", "host", "self", "element", "facts")] == [
        "n",
        "k",
        "h",
        "s",
        "e",
        "f",
    ]


def test_a_switch_class_without_anything_below_is_no_device() -> None:
    for kind in ("0x068000", "0x030000", "0x020000"):
        text = system(*PAIR, f'<pci busid="0000:50:00.0" class="{kind}"/>')
        assert [d.kind for d in read_text(text, "t.xml").devices] == ["cpu", "gpu", "gpu"]


# --- what is refused ----------------------------------------------------------------------------------------------

ONE = '<nic><net dev="0" speed="{}" latency="{}"/></nic>'
REFUSED = {
    "version": (system(*PAIR).replace('version="1"', 'version="2"'), 1, "version='2' must lie between 1 and 1"),
    "no version": (system(*PAIR).replace(' version="1"', ""), 1, "attribute version is missing"),
    "no gpu": (system(), 1, "names no GPU"),
    "not a topology": ('<graphs version="1"/>', 1, "this file must hold <system>"),
    "no numaid": (system(*PAIR, cpu='arch="x86_64"'), 2, "attribute numaid is missing"),
    "no sm": (system(gpu(0).replace('sm="70"', "")), 3, "attribute sm is missing"),
    "no busid": (system(gpu(0).replace("busid", "bus")), 3, "attribute busid is missing"),
    "busid": (system(gpu(0).replace("0000:10:00.0", "here")), 3, "busid='here' is not a bus id"),
    "same busid": (
        system(gpu(0), gpu(1).replace("0000:11", "0000:10")),
        4,
        "busid='0000:10:00.0' is also that of line 3",
    ),
    "same dev": (system(gpu(0), gpu(1).replace('dev="1"', 'dev="0"')), 4, "line 3 already describes gpu0"),
    "same rank": (system(gpu(0, rank='rank="1"'), gpu(1, rank='rank="1"')), 4, "rank=1 is also that of line 3"),
    "negative rank": (system(gpu(0, rank='rank="-1"')), 3, "rank='-1' must lie between"),
    "dev": (system(gpu(0).replace('dev="0"', 'dev="x"')), 3, "dev='x' is not a whole number"),
    "link_width": (system(gpu(0, pci='link_width="abc"')), 3, "link_width='abc' is not a whole number"),
    "wide": (system(gpu(0, pci='link_width="255"')), 3, "link_width='255' must lie between 0 and 32"),
    "link_speed": (system(gpu(0, pci='link_speed="fast"')), 3, "link_speed='fast' is not PCIe's; known: 2.5, 5, 8, 16"),
    "no such speed": (system(gpu(0, pci='link_speed="9 GT/s"')), 3, "link_speed='9GT/s' is not PCIe's"),
    "negative count": (system(gpu(0, nvlink(1, -1)), gpu(1)), 3, "count='-1' must lie between 1 and 1024"),
    "no count": (system(gpu(0, nvlink(1, 0)), gpu(1)), 3, "count='0' must lie between"),
    "no target": (system(gpu(0, nvlink(1).replace("target", "to")), gpu(1)), 3, "attribute target is missing"),
    "tclass": (system(gpu(0, nvlink(1, 1, 'tclass="0x0200"')), gpu(1)), 3, "tclass='0x0200' is not the class of"),
    "old sm": (system(gpu(0, nvlink(1), sm=50), gpu(1)), 3, "NVLink at a GPU of sm=50; NVLink begins with sm=60"),
    "c2c": (system(gpu(0, '<c2c bw="none" count="1"/>')), 3, "bw='none' is not a whole number"),
    "net speed": (system(gpu(0), ONE.format("1Gb", 0)), 4, "speed='1Gb' is not a whole number"),
    "net latency": (system(gpu(0), ONE.format(1, "-2")), 4, "latency='-2' must lie between"),
    "same net": (system(gpu(0), ONE.format(1, 0), ONE.format(1, 0)), 5, "line 4 already describes net0"),
    "two gpus": (system(gpu(0, "").replace("</pci>", '<gpu dev="1" sm="70"/></pci>')), 3, "a second GPU with the same"),
    "gpu misplaced": (system('<gpu dev="0" sm="70"/>'), 3, "stands inside <cpu>; its place is inside <pci>"),
    "nvlink misplaced": (system(gpu(0), nvlink(1)), 4, "stands inside <cpu>; its place is inside <gpu>"),
    "same numaid": (
        '<system version="1">\n<cpu numaid="0"/>\n<cpu numaid="-1"/>\n</system>',
        3,
        "line 2 already describes cpu0",
    ),
    "Intel without model": (
        f'<system version="1">\n<cpu numaid="0" arch="x86_64" vendor="GenuineIntel">{gpu(0)}</cpu>\n'
        '<cpu numaid="1" arch="x86_64"/>\n</system>',
        2,
        "attribute familyid is missing",
    ),
    "too many CPUs": ('<system version="1">' + "\n<cpu/>" * 257 + "</system>", 258, "more than 256 CPUs"),
    "too many elements": ('<system version="1">' + "\n<x/>" * 20_000 + "</system>", 20_001, "more than 20000 elements"),
    "cut": (H200.read_text().partition("tclass")[0], 5, "ends inside <gpu> of line 4; the file is cut short"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_malformed_files_are_refused_with_line_and_attribute(case: str) -> None:
    text, line, message = REFUSED[case]
    with pytest.raises(FileError) as caught:
        read_text(text, "t.xml")
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"t.xml:{line}:")


def test_other_rates_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="unknown rates 'fast': an imported machine has nominal or nccl"):
        read_text(system(*PAIR), "t.xml", "fast")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for place in (tmp_path / "none.xml", tmp_path):
        with pytest.raises(InputError, match=re.escape(str(place))):
            read(place)
    (tmp_path / "b.xml").write_bytes(b"\xff\xfe<\x00s\x00y\x00s\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read(tmp_path / "b.xml")


# --- fuzzing ------------------------------------------------------------------------------------------------------

SEEDS = [
    QUAD.read_text(),
    H200.read_text(),
    (DATA / "thesis_listing_4_7.xml").read_text(),
    system(*PAIR),
    (DATA / "nccl_topo" / "gh200x4.xml").read_text(),
]
PIECES = [
    "",
    "0",
    "-1",
    "0x",
    "99999999999999999999",
    '"',
    "<",
    ">",
    "/>",
    "\x00",
    "é",
    "</cpu>",
    "<gpu/>",
    " ",
    "\n",
    "<nic>",
    'dev="0"',
    "nan",
    "1e9",
    "0000:00:07.0",
    "fffffff:ff:ff.0",
    "0x068000",
    "0x068001",
    "<pci>",
]


def either(text: str) -> None:
    try:
        assert read_text(text, "t.xml").ranks >= 1
    except BlinksimError as error:
        message = str(error)
    else:
        return
    assert message.startswith("t.xml")
    assert len(message) < 400


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.text(max_size=80))
def test_random_text(text: str) -> None:
    either(text)
    either(f'<system version="1">{text}</system>')


@settings(max_examples=250, derandomize=True, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES)), max_size=3),
)
def test_mutated_files(text: str, cuts: list[tuple[float, int, str]]) -> None:
    for place, length, piece in cuts:
        start = int(place * len(text))
        text = text[:start] + piece + text[start + length :]
    either(text)


VALUE = re.compile(r'"([^"]*)"')


@settings(max_examples=250, derandomize=True, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.floats(0, 0.999),
    st.sampled_from(PIECES[:5] + PIECES[14:15] + PIECES[16:23]) | st.integers().map(str),
)
def test_one_value_changed(text: str, place: float, value: str) -> None:
    found = list(VALUE.finditer(text))
    match = found[int(place * len(found))]
    either(text[: match.start(1)] + value.replace('"', "") + text[match.end(1) :])


def test_reading_a_capture_takes_milliseconds() -> None:
    read(H200)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        read(H200)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.02


@pytest.mark.parametrize("tclass", ['tclass="0x030200"', ""])
def test_links_to_gpus_that_are_not_in_the_dump_are_left_out(tclass: str) -> None:
    """NCCL dumps what a job's GPUs see; a job on two GPUs of a DGX-1 lists NVLinks to the other six."""
    text = system(gpu(0, nvlink(1) + nvlink(7, 2, tclass=tclass)), gpu(1, nvlink(0)))
    topology = read_text(text, "part.xml")
    assert [(x.src, x.dst) for x in topology.links if x.kind == "nvlink"] == [("gpu0", "gpu1"), ("gpu1", "gpu0")]
    assert "without 2 NVLinks to GPUs that are not in it" in topology.source


# --- files of the wild --------------------------------------------------------------------------------------------


def rccl(gcn: str, count: int = 1) -> str:
    """Four GPUs of AMD, each with `count` xGMI links to each other, as RCCL writes them."""
    lines = []
    for dev in range(4):
        links = "".join(
            f'<xgmi target="0000:1{peer}:00.0" count="{count}" tclass="0x120000"/>' for peer in range(4) if peer != dev
        )
        one = gpu(dev, links, sm=304 if gcn == "gfx942" else 104, rank=f'rank="{dev}" gcn="{gcn}" arch="38911"')
        lines.append(one.replace("0x030200", "0x120000"))
    return system(*lines).replace('version="1"', 'version="2"')


@pytest.mark.parametrize(("gcn", "expected"), [("906", 24), ("gfx90a", 36), ("gfx942", 48), ("gfx950", 48), ("", 24)])
def test_topologies_of_rccl_are_read_with_their_xgmi_links(gcn: str, expected: float) -> None:
    # RCCL, src/graph/topo.h: VEGA_XGMI_WIDTH 24, MI200_XGMI_WIDTH 36, GFX94X_XGMI_WIDTH 48.
    machine = read_text(rccl(gcn, count=2), "mi.xml", "nccl")
    assert machine.collective_links == ("xgmi",)
    links = [link for link in machine.links if link.kind == "xgmi"]
    assert len(links) == 12
    assert {(link.lanes, float(link.lane_bandwidth / GB)) for link in links} == {(2, expected)}
    assert f"xGMI links at {expected} GB/s" in machine.source
    assert "a file of RCCL" in machine.source
    # Every GPU has three peers with two links each: allgather is bound by what enters it.
    assert bound(machine, "allgather").rate_GBps == pytest.approx(6 * expected / 3 * 4)


@pytest.mark.parametrize(
    ("gcn", "name"), [("gfx90a", "mi250"), ("gfx942", "mi300x"), ("gfx942", "mi300a"), ("gfx950", "mi355x")]
)
def test_a_file_of_rccl_and_the_catalogue_have_one_nominal_rate(gcn: str, name: str) -> None:
    written = read_text(rccl(gcn), "mi.xml", "nominal")
    rates = [
        {link.lane_bandwidth for link in machine.links if link.kind == "xgmi"} for machine in (written, load(name))
    ]
    assert rates[0] == rates[1]


def test_files_of_virtual_machines_are_read_as_nccl_does() -> None:
    """Bridges with one bus id are several devices, and a port may say that it is faster than any is."""
    bridge = '<pci busid="0000:10:00.0" class="0x060400" link_speed="8.0 GT/s PCIe" link_width="16">{}</pci>'
    port = '<pci busid="0000:12:00.0" class="0x020000"><nic><net name="cxi0" dev="0" speed="200000000"/></nic></pci>'
    one, two = (bridge.format(inside) for inside in (gpu(1, nvlink(2)), gpu(2, nvlink(1)) + port))
    machine = read_text(system(one, two), "t.xml")
    assert [device.name for device in machine.devices if device.kind == "pcie"] == ["pcie0", "pcie1"]
    assert "devices with one bus id, 0000:10:00.0, taken for several" in machine.source
    assert [rate(machine, "pcie1", name, "pcie") for name in ("gpu2", "nic0")] == [16, 16]
    assert rate(machine, "nic0", "net0", "nic") == 25000
    # The port of an adapter is no second one that lacks PCIe.
    assert list(behind(machine.replicate(2))) == []


def test_version_2_is_rccls() -> None:
    with pytest.raises(FileError, match="version='2' must lie between 1 and 1"):
        read_text(system(*PAIR).replace('version="1"', 'version="2"'), "t.xml")


@pytest.mark.parametrize("text", ["32 GT/s PCIe/s", "32.0 GT/s PCIe", "32 GT/s", "32.0 GT/s PCIe Gen5"])
def test_link_speeds_are_compared_by_their_beginning(text: str) -> None:
    pci = f'link_speed="{text}" link_width="16"'
    machine = read_text(system(gpu(0, pci=pci), gpu(1, pci=pci)), "t.xml")
    assert rate(machine, "gpu0", "cpu0", "pcie") == 64


def test_what_is_passed_over_is_named() -> None:
    itself = read_text(system(gpu(0, nvlink(0) + nvlink(1)), gpu(1, nvlink(0))), "t.xml")
    assert lanes(itself, ("gpu0", "gpu1")) == {("gpu0", "gpu1"): 1, ("gpu1", "gpu0"): 1}
    assert "NVLinks of gpu0 to itself passed over" in itself.source
    misspelt = read_text(system(gpu(0, '<nvlnk target="0000:11:00.0" count="4"/>'), gpu(1)), "t.xml")
    assert "elements <nvlnk> passed over" in misspelt.source
    template = read_text(system(*(gpu(dev, sm=90) for dev in range(8))), "p5.xml")
    assert "no NVLinks are listed" in template.source
    plain = read_text(system(*PAIR), "t.xml")
    assert plain.source == "NCCL topology file t.xml"
    with pytest.raises(FileError, match=r"names no GPU.*NCCL_TOPO_DUMP_FILE"):
        read_text(system(), "ndv4-topo.xml")


def test_rates_that_the_file_does_not_say_are_named_with_how_many_have_them() -> None:
    text = H200.read_text()
    assert "assumed" not in read_text(text, "topo.xml").source
    text = text.replace('link_speed="32.0 GT/s PCIe"', 'link_speed="Unknown"', 3).replace(' speed="10000"', "")
    source = read_text(text, "topo.xml").source
    assert "assumed: PCIe at 8 GT/s a lane of 3 devices without a speed in the file (gpu0 gpu1 gpu2)" in source
    assert "assumed: 1.25 GB/s a port of 1 device without a speed in the file (net0)" in source
