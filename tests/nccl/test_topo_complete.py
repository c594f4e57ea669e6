"""Templates of topology files completed from a machine: against the machine itself, and against its whole file."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.cli.main import run
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.nccl.files.topo_file import read_text, write
from blinksim.topology.graph import Topology

TOPOLOGIES = Path(__file__).resolve().parents[2] / "topologies"
PORT = 'link_speed="32.0 GT/s PCIe" link_width="16"'
CPU = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'


def pci(bus: str, kind: str, *inside: str) -> str:
    return f'<pci busid="{bus}" class="{kind}" {PORT}>{"".join(inside)}</pci>'


def system(*cpus: str) -> str:
    numbered = (f'<cpu numaid="{number}" {CPU}>{inside}</cpu>' for number, inside in enumerate(cpus))
    return f'<system version="1">{"".join(numbered)}</system>'


def bridged(first: int, *, gpu: str = "", adapters: int = 1) -> str:
    """Four bridges with a GPU and adapters each, as one CPU of a template of Azure or Amazon has them."""
    return "".join(
        pci(f"ffff:ff:{place:02x}.0", "0x060400",
            pci(f"{place:04x}:00:00.0", "0x030200", gpu and f'<gpu dev="{place - 1}" {gpu}/>'),
            *(pci(f"{place:04x}:01:{number:02x}.0", "0x020000") for number in range(adapters)))
        for place in range(first, first + 4)
    )  # fmt: skip


BRIDGED = (Path(__file__).resolve().parents[1] / "data" / "topo_templates" / "eight-bridges.xml").read_text()


def wires(machine: Topology) -> Counter[tuple[str, str, str, int, Fraction]]:
    return Counter((link.src, link.dst, link.kind, link.lanes, link.lane_bandwidth) for link in machine.links)


def test_pcie_devices_alone_become_the_machine_they_are_of() -> None:
    like = bs.load("nd-h100-v5")
    machine = read_text(BRIDGED, "ndv5.xml", like=like)
    assert "completed as nd-h100-v5: 8 GPUs, 144 NVLinks, 8 ports of the fabric" in machine.source
    for name in ("allreduce", "allgather", "alltoall", "broadcast"):
        own, other = bs.bound(machine, name), bs.bound(like, name)
        assert own.headline.rate == other.headline.rate
        assert (own.in_network is None) == (other.in_network is None)
        if own.in_network and other.in_network:
            assert own.in_network.rate == other.in_network.rate
    assert machine.fabric is not None
    assert (len(machine.fabric.ports), machine.fabric.planes) == (8, 8)
    # Eight ports of 50 GB/s leave a node, on either.
    assert bs.bound(machine.replicate(4), "alltoall").rate_GBps == bs.bound(like.replicate(4), "alltoall").rate_GBps


def test_gpus_without_bridges_are_wired_in_the_order_of_their_bus_ids() -> None:
    def gpus(*places: int) -> str:
        return "".join(pci(f"{place:04x}:00:00.0", "0x030200") for place in places)

    like = bs.load("nd40rs-v2")
    machine = read_text(
        system(gpus(2, 1, 4, 3) + pci("0101:00:00.0", "0x020700"), gpus(5, 6, 7, 8)), "ndv2.xml", like=like
    )
    found = {(link.src, link.dst): link.lanes for link in machine.links if link.kind == "nvlink"}
    assert found == {(link.src, link.dst): link.lanes for link in like.links if link.kind == "nvlink"}
    assert machine.device("gpu0").attributes["busid"] == "0001:00:00.0"
    assert [link.dst for link in machine.links_between("gpu5", "cpu1")] == ["cpu1"]


def test_nvlinks_that_are_left_out_are_named_and_added() -> None:
    template = system(bridged(1, gpu='sm="90"', adapters=4) + bridged(5, gpu='sm="90"', adapters=4))
    alone = read_text(template, "p5.xml")
    assert "no NVLinks are listed" in alone.source
    assert "like=MACHINE" in alone.source
    machine = read_text(template, "p5.xml", like=bs.load("p5.48xlarge"))
    assert "completed as p5.48xlarge: 144 NVLinks, 32 ports of the fabric" in machine.source
    assert machine.collective_links == ("nvlink",)
    assert "no NVLinks" not in machine.source


@pytest.mark.parametrize(
    "name", [name for name in bs.catalogue() if "sm:" in (TOPOLOGIES / f"{name}.yaml").read_text()]
)
def test_a_file_without_its_gpus_links_and_ports_is_completed_to_what_it_was(name: str) -> None:
    like = bs.load(name)
    try:
        whole = write(like)[0]
    except InfeasibleError:  # more elements than NCCL reads
        pytest.skip("NCCL's files cannot hold it")
    stripped = re.sub(r"<(nvlink|c2c) [^>]*/>", "", whole)
    bare = re.sub(r"<gpu [^>]*/>|<gpu [^>]*>\s*</gpu>", "", stripped)
    before = read_text(whole, "box.xml")
    links = wires(read_text(stripped, "box.xml", like=like))
    assert links == wires(before)
    assert wires(read_text(bare, "box.xml", like=like)) == links
    ports = re.sub(r"<nic>.*?</nic>", "", bare, flags=re.DOTALL)
    again = read_text(ports, "box.xml", like=like)
    if "ports of the fabric" in again.source or not like.fabric:
        assert wires(again) == links


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ("dgx-spark-pair", "describes 8 GPUs, and dgx-spark-pair has 2; name the machine that the file is of"),
        ("mi300x", "mi300x has no GPUs of NVIDIA"),
        ("p4d", r":1: a GPU of sm=90, and those of p4d.24xlarge have 80; name the machine"),
    ],
)
def test_other_machines_are_refused(like: str, message: str) -> None:
    listed = system(bridged(1, gpu='sm="90"'), bridged(5, gpu='sm="90"'))
    with pytest.raises(InputError, match=message):
        read_text(listed, "box.xml", like=bs.load(like))


def test_what_a_template_lacks_is_named() -> None:
    with pytest.raises(
        FileError, match=r"names no GPU.*8 PCIe devices of a GPU's class without a <gpu>; 8 network adapters"
    ):
        read_text(BRIDGED, "ndv5.xml")
    with pytest.raises(InputError, match=r"hgx-h200 is neither a topology file \(.xml\) nor text"):
        bs.load("hgx-h200", like="nd-h100-v5")


def test_importing_a_template_writes_a_machine_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template, written = tmp_path / "ndv5-topo.xml", tmp_path / "box.yaml"
    template.write_text(BRIDGED)
    assert run(["topo", "import", str(template)]) == 2
    assert "--like MACHINE" in capsys.readouterr().err
    assert run(["topo", "import", str(template), "--like", "nd-h100-v5", "-o", str(written)]) == 0
    assert "completed as nd-h100-v5: 8 GPUs, 144 NVLinks, 8 ports of the fabric" in capsys.readouterr().err
    assert wires(bs.load(written)) == wires(bs.load(template, like="nd-h100-v5"))
    assert bs.load(written, nodes=2).ranks == 16
