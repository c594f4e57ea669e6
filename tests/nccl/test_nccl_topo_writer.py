"""Machines written for NCCL: what was read comes back equal, what the catalogue holds comes back with its links."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from strategies import topologies

from blinksim import machines
from blinksim.errors import InfeasibleError, InputError
from blinksim.formats.shipped import machine_names
from blinksim.nccl.files import topo_file
from blinksim.nccl.files.topo_file import write
from blinksim.topology.graph import Topology

DATA = Path(__file__).resolve().parents[1] / "data"
FILES = sorted([*(DATA / "nccl_topo").glob("*.xml"), *DATA.glob("captures/*/*topo.xml"), *DATA.glob("thesis*.xml")])
# More than one node, or more elements than NCCL reads.
REFUSED = {"dgx-spark-pair", "gb200-nvl72", "gb300-nvl72", "tpu-v5p", "trn2-ultra"}


def _nvidia(name: str) -> bool:
    """True for one node of NVIDIA GPUs with a network."""
    machine = machines.load(name)
    known = all("sm" in machine.device(gpu).attributes for gpu in machine.members)
    return known and machine.fabric is not None and name not in REFUSED


NVIDIA = [name for name in machine_names.names() if _nvidia(name)]
GB = 10**9
K2200 = topo_file.read(DATA / "nccl_topo" / "k2200-node.xml")


def round_trip(topology: Topology) -> Topology:
    """The machine that NCCL would see: written, and read back at the same rates."""
    rates = "nccl" if topology.rates == "nccl" else "nominal"
    return topo_file.read_text(write(topology)[0], f"{topology.name}.xml", rates)


def nvlinks(topology: Topology) -> dict[tuple[str, str], tuple[Fraction, int]]:
    """Bandwidth and lanes of every NVLink of a GPU, all switches under one name; NCCL knows none between switches."""
    name = {d.name: "nvswitch" if d.kind == "switch" else d.name for d in topology.devices}
    gpus = set(topology.members)
    found = [x for x in topology.links if x.kind == "nvlink" and {x.src, x.dst} & gpus]
    return {(name[x.src], name[x.dst]): (x.bandwidth, x.lanes) for x in found}


@pytest.mark.parametrize("rates", ["nominal", "nccl"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_was_read_comes_back_equal(path: Path, rates: str) -> None:
    before = topo_file.read(path, rates)
    text, notes = write(before)
    after = topo_file.read_text(text, path, rates)
    assert after == before
    assert [dict(device.attributes) for device in after.devices] == [dict(d.attributes) for d in before.devices]
    assert notes == ()


@pytest.mark.parametrize("rates", ["nominal", "nccl"])
@pytest.mark.parametrize("name", NVIDIA)
def test_a_machine_of_the_catalogue_keeps_its_links(name: str, rates: str) -> None:
    before = machines.load(name, rates=rates)
    after = round_trip(before)
    assert nvlinks(after) == nvlinks(before)
    assert after.members == before.members
    assert [after.device(gpu).attributes["sm"] for gpu in after.members] == [
        before.device(gpu).attributes["sm"] for gpu in before.members
    ]
    assert before.fabric is not None
    assert after.fabric is not None
    assert len(after.fabric.ports) == len(before.fabric.ports)
    assert after.fabric.lane_bandwidth * after.fabric.lanes == before.fabric.lane_bandwidth * before.fabric.lanes
    assert write(after)[0] == write(before)[0]


def test_the_pcie_tree_of_a_dgx1_is_kept() -> None:
    before = machines.load("dgx1-v100")
    after = round_trip(before)
    for rates in ("pcie",):
        a, b = (t.select(links=[k for k in t.link_classes if k in ("pcie", "qpi", "cpu")]) for t in (before, after))
        for gpu in a.members[1:]:
            routes = [t.router.route(t.index["gpu0"], t.index[gpu]) for t in (a, b)]
            kinds = [[t.device(t.links[i].dst).kind for i in route] for t, route in zip((a, b), routes, strict=True)]
            assert kinds[0] == kinds[1], (gpu, rates)
    speeds = {x.bandwidth for x in after.links if x.kind == "pcie"}
    assert speeds == {16 * GB}


def test_gpus_of_one_pcie_switch_and_their_nics_hang_below_it() -> None:
    """A DGX A100 has four switches with two GPUs and two NICs each, and NCCL as many channels as on the machine."""
    machine = machines.load("dgx-a100")
    after = round_trip(machine)
    below = [
        sorted(x.dst for x in after.links if x.src == f"pcie{n}" and x.dst[:3] in ("gpu", "nic")) for n in range(4)
    ]
    assert below == [[f"gpu{n}", f"gpu{n + 1}", f"nic{n}", f"nic{n + 1}"] for n in range(0, 8, 2)]
    assert all("pcie_switch" not in device.attributes for device in after.devices)


def test_slow_pcie_is_found_among_the_generations() -> None:
    node = round_trip(machines.load("k2200-ntb"))
    assert {x.lanes for x in node.links if x.kind == "pcie" and x.dst.startswith("gpu")} == {4}
    assert {x.bandwidth for x in node.links if x.kind == "pcie" and x.dst.startswith("gpu")} == {2 * GB}


@pytest.mark.parametrize(("name", "words"), [("mi250", "8 for 8"), ("aurora", "2 for 2.12")])
def test_links_that_are_no_nvlinks_are_written_as_some_and_said(name: str, words: str) -> None:
    before = machines.load(name)
    _, notes = write(before)
    assert any(words in note for note in notes)
    after = round_trip(before)
    assert len(after.members) == len(before.members)
    pairs = [x for x in before.links if x.kind in ("xgmi", "mdfi", "xe")]
    assert len([x for x in after.links if x.kind == "nvlink"]) == len(pairs)


def test_bus_ids_are_those_given_in_gpu_order() -> None:
    ids = [f"0000:{n:02x}:00.0" for n in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)]
    text, notes = write(machines.load("dgx1-v100"), [ids[0].upper(), *ids[1:]])
    assert not any("made up" in note for note in notes)
    after = topo_file.read_text(text, "x.xml")
    assert [after.device(f"gpu{i}").attributes["busid"] for i in range(8)] == ids
    assert nvlinks(after) == nvlinks(machines.load("dgx1-v100"))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["x"] * 8, "not a bus id"),
        (["0000:01:00.0"] * 8, "8 different bus ids"),
        (["0000:01:00.0"], "8 different bus ids"),
    ],
)
def test_wrong_bus_ids_are_refused(ids: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write(machines.load("dgx1-v100"), ids)


def test_one_node_and_not_too_many_elements() -> None:
    with pytest.raises(InfeasibleError, match="describes one node"):
        write(machines.load("dgx1-v100", nodes=2))
    with pytest.raises(InfeasibleError, match="NCCL reads 256"):
        write(machines.load("full:20@25GB/s"))


def test_the_file_keeps_to_what_nccl_reads() -> None:
    for name in set(machine_names.names()) - REFUSED:
        text = write(machines.load(name))[0]
        assert not text.startswith("<?xml")
        assert "\t" not in text
        assert "'" not in text
        assert text.count("<") - text.count("</") <= 256
        assert max(len(line.split('="')) for line in text.splitlines()) <= 17


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_nccl_cannot_read_is_refused(name: str) -> None:
    with pytest.raises(InfeasibleError, match=r"elements, and NCCL reads 256|describes one node"):
        write(machines.load(name))


@given(topologies(switches=False, half_duplex=False, unequal=False, max_devices=6))
@settings(max_examples=30)
def test_drawn_machines_come_back_as_whole_nvlinks(topology: Topology) -> None:
    after = round_trip(topology)
    lane = 25 * GB
    for link in topology.links:
        (found,) = [x for x in after.links_between(link.src, link.dst) if x.kind == "nvlink"]
        assert found.lanes == max(1, round(Fraction(link.bandwidth, lane)))


@given(st.text(max_size=8))
def test_attributes_that_nccl_cannot_read_are_refused(value: str) -> None:
    changed = replace(
        K2200,
        devices=tuple(replace(d, attributes={**d.attributes, "odd": value}) if d.kind == "gpu" else d
                      for d in K2200.devices),
    )  # fmt: skip
    if any(char in value for char in "\"'<>&") or any(ord(char) < 32 for char in value):
        with pytest.raises(InputError, match="cannot stand in a file"):
            write(changed)
    else:
        assert f'odd="{value}"' in write(changed)[0]
