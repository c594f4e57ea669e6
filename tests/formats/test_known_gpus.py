"""Recorded machines get what was measured of the same GPUs and NVLinks, and are compared with the catalogue's."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import blinksim as bs
from blinksim.answers.health import SIZE
from blinksim.answers.project import project
from blinksim.cli.main import run
from blinksim.errors import InputError
from blinksim.formats import machine_yaml
from blinksim.formats.shipped import known_gpus
from blinksim.formats.shipped.machine_names import catalogue_file, names
from blinksim.machines import Question, check, load, remarks
from blinksim.timing.library_model import Library
from blinksim.topology import edits
from blinksim.topology.graph import Topology

TOPO = Path("tests/data/captures/h200x8/topo.xml")
SMI = Path("tests/data/captures/h200x8/smi_topo.txt")


@pytest.mark.parametrize("file", [TOPO, SMI])
@pytest.mark.parametrize("size", [2**14, *(pytest.param(size, marks=pytest.mark.slow) for size in (2**20, 2**26))])
def test_a_recorded_machine_answers_as_the_one_of_the_catalogue(file: Path, size: int) -> None:
    mine, own = (Question(str(name), rates="measured").part() for name in (file, "hgx-h200"))
    assert (mine.execution, mine.nccl_rates) == (own.execution, own.nccl_rates)
    found, expected = (project(part, "allreduce", size, algorithm="best") for part in (mine, own))
    assert (found.algorithm, found.time_s, found.model) == (expected.algorithm, expected.time_s, "execution")


def test_at_nominal_rates_links_stay_what_they_are() -> None:
    mine = load(TOPO)
    assert mine.execution is not None
    assert {link.lane_bandwidth for link in mine.links if link.kind == "nvlink"} == {25 * 10**9}
    assert check(mine) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('device="0x2335"', 'device="0x2331"'),  # the card for PCIe
        ('sm="90"', 'sm="80"'),
    ],
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_other_gpus_or_nvlinks_have_no_constants(old: str, new: str, everywhere: bool, tmp_path: Path) -> None:
    file = tmp_path / "topo.xml"
    file.write_text(TOPO.read_text().replace(old, new, -1 if everywhere else 1))
    assert load(file).execution is None
    with pytest.raises(InputError, match="nobody measured such GPUs and NVLinks; take nominal or nccl"):
        load(file, rates="measured")


@pytest.mark.parametrize("everywhere", [True, False])
def test_lanes_that_are_left_are_as_they_were_measured(everywhere: bool, tmp_path: Path) -> None:
    file = tmp_path / "topo.xml"
    file.write_text(TOPO.read_text().replace('count="18"', 'count="17"', -1 if everywhere else 1))
    mine = load(file, rates="measured")
    assert mine.execution is None
    assert {link.lane_bandwidth for link in mine.links if link.kind == "nvlink"} == {205 * 10**8}
    assert {link.lanes for link in mine.links if link.kind == "nvlink"} == ({17} if everywhere else {17, 18})


BROKEN_V100 = "degrade gpu0-gpu3 lanes=1", "without gpu4-gpu7"
# GPUs of the file in the order of their names.
GPU_5 = r'((?:count="18".*?){5})count="18"'


@pytest.mark.parametrize(
    ("machine", "edits"),
    [
        ("hgx-h200", ()),
        ("hgx-h200", ("degrade gpu5-nvswitch lanes=12",)),
        ("dgx1-v100", ()),
        ("dgx1-v100", BROKEN_V100),
        ("mi300x", ()),
        ("mi300x", ("without gpu0-gpu3",)),
        ("mi325x", ()),
    ],
)
@pytest.mark.parametrize("collective", ["allreduce", "alltoall"])
def test_a_box_has_one_time_however_it_is_described(
    machine: str, edits: tuple[str, ...], collective: str, tmp_path: Path
) -> None:
    """By the name of the catalogue with what is gone as edits, as NCCL's topology file of that, and imported."""
    asked = bs.load(machine, edits=edits)
    if machine != "hgx-h200":
        bs.write(bs.export(asked, "nccl-topo"), tmp_path / "box.xml")
    else:
        text = re.sub(GPU_5, rf'\1count="{12 if edits else 18}"', TOPO.read_text(), count=1, flags=re.DOTALL)
        (tmp_path / "box.xml").write_text(text)
    assert run(["topo", "import", str(tmp_path / "box.xml"), "-o", str(tmp_path / "box.yaml")]) == 0
    named = bs.project(asked, collective, "64MiB")
    for name in ("box.xml", "box.yaml"):
        found = bs.project(load(tmp_path / name), collective, "64MiB")
        assert isinstance(found, bs.Answer)
        assert isinstance(named, bs.Answer)
        assert found.time_s == pytest.approx(named.time_s, rel=1e-6)
        assert (found.low_s, found.high_s) == pytest.approx((named.low_s, named.high_s), rel=1e-6)
        assert found.least is not None
        assert named.least is not None
        assert found.least.time_s == pytest.approx(named.least.time_s, rel=0.02)
    takes = bs.health(tmp_path / "box.xml").takes
    if collective == "allreduce":
        [alone] = bs.compare(load(tmp_path / "box.xml"), collective, [SIZE]).answers
        assert takes is not None
        assert takes.time_s == pytest.approx(alone.time_s, rel=1e-6)


@pytest.mark.parametrize("name", ["mi300a", "mi300x", "mi325x", "mi355x"])
def test_gpus_of_amd_are_known_by_rccls_files(name: str, tmp_path: Path) -> None:
    bs.write(bs.export(load(name), "nccl-topo"), tmp_path / "box.xml")
    text = (tmp_path / "box.xml").read_text()
    found = bs.health(tmp_path / "box.xml")
    assert found.twin is not None
    assert (found.twin.name, found.missing, found.status) == (name, (), 0)
    bs.write(bs.export(load(name, edits="without gpu0-gpu1"), "nccl-topo"), tmp_path / "less.xml")
    less = bs.health(tmp_path / "less.xml")
    assert [words.partition(" has 0 of ")[0] for words in less.missing] == ["gpu0-gpu1"]
    assert "  check       amd-smi xgmi; " in less.text()
    # Compute units are no compute capability: of GPUs of no known number nothing in the catalogue is their like.
    (tmp_path / "other.xml").write_text(re.sub('sm="[0-9]+"', 'sm="120"', text.replace('device="0x7', 'device="0x1')))
    other = bs.health(tmp_path / "other.xml")
    assert other.twin is None
    assert "GPU of 120 compute units; cannot tell" in other.sentence()


def test_a_box_is_no_other_where_that_would_be_a_guess(tmp_path: Path) -> None:
    """Several nodes have networks of their own, some links are no whole machine, and a GPU of unknown model is any."""
    broken = tmp_path / "broken.xml"
    broken.write_text(re.sub(GPU_5, r'\1count="12"', TOPO.read_text(), count=1, flags=re.DOTALL))
    for asked in (Question(str(broken), nodes=2), Question(str(broken), links="pcie,local")):
        assert Library().at(asked)[0].healthy is None
    box = Library().at(Question(str(broken)))[0]
    assert box.healthy is not None
    assert box.healthy.machine.name == "hgx-h200"
    unknown = tmp_path / "unknown.xml"
    unknown.write_text(broken.read_text().replace('device="0x2335"', 'device="0xffff"'))
    assert Library().at(Question(str(unknown)))[0].healthy is None
    # A part of it has one time however it is chosen, and losing more never makes the schedules quicker.
    part, named = (bs.project(one, "allreduce", "64MiB") for one in
                   (load(broken).select([4, 5]), Question(str(broken), members="4,5").part()))  # fmt: skip
    assert part.time_s == named.time_s
    edited = bs.project(load(broken, edits="degrade gpu5-nvswitch lanes=11"), "allreduce", "64MiB")
    before = bs.project(load(broken), "allreduce", "64MiB")
    assert isinstance(edited, bs.Answer)
    assert isinstance(before, bs.Answer)
    assert edited.could is not None
    assert before.could is not None
    assert edited.time_s > before.time_s
    assert edited.could.best.time_s > before.could.best.time_s


def test_two_gpus_of_a_box_are_two_of_its_like(tmp_path: Path) -> None:
    root = ElementTree.parse(TOPO)
    text = ElementTree.tostring(root.getroot(), encoding="unicode")
    blocks = re.findall(r"<pci [^>]*>(?:(?!<pci ).)*?<gpu .*?</pci>", text, flags=re.DOTALL)
    for block in blocks[2:]:
        text = text.replace(block, "")
    (tmp_path / "two.xml").write_text(text)
    found, named = (bs.project(one, "allreduce", "64MiB").time_s for one in
                    (load(tmp_path / "two.xml"), load("hgx-h200").select([0, 1])))  # fmt: skip
    assert found == pytest.approx(named, rel=1e-9)


def test_every_gpu_is_that_of_its_machine() -> None:
    for gpu in known_gpus.known_gpus():
        assert catalogue_file(gpu.machine).is_file()
        assert all(len(number) == 4 and int(number, 16) for number in gpu.pci)
    numbers = [number for gpu in known_gpus.known_gpus() for number in gpu.pci]
    assert len({*numbers}) == len(numbers)


def test_names_of_drivers_lead_to_constants() -> None:
    assert known_gpus.named("NVIDIA H100 80GB HBM3") == known_gpus.named("NVIDIA H100")
    assert known_gpus.execution_rates("NVIDIA H200") == load("hgx-h200").execution
    # Derived, not measured.
    assert known_gpus.execution_rates("NVIDIA H100 80GB HBM3") is None
    assert known_gpus.execution_rates("NVIDIA H100 PCIe") is None


# A DGX-1V as nvidia-smi prints it: the NVLinks of each pair, without the adapters.
DGX1 = """
      GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 CPU Affinity
GPU0  X    NV1  NV1  NV2  NV2  SYS  SYS  SYS  0-19
GPU1  NV1  X    NV2  NV1  SYS  NV2  SYS  SYS  0-19
GPU2  NV1  NV2  X    NV2  SYS  SYS  NV1  SYS  0-19
GPU3  NV2  NV1  NV2  X    SYS  SYS  SYS  NV1  0-19
GPU4  NV2  SYS  SYS  SYS  X    NV1  NV1  NV2  20-39
GPU5  SYS  NV2  SYS  SYS  NV1  X    NV2  NV1  20-39
GPU6  SYS  SYS  NV1  SYS  NV1  NV2  X    NV2  20-39
GPU7  SYS  SYS  SYS  NV1  NV2  NV1  NV2  X    20-39

"""
V100S = "".join(f"GPU {number}: Tesla V100-SXM2-32GB (UUID: GPU-{number})\n" for number in range(8))


def with_cells(text: str, cells: dict[tuple[int, int], str]) -> str:
    """The table with other connections between pairs."""
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "GPU0 GPU1" in line)
    rows = [line.split() for line in lines[at + 1 :] if re.match("(GPU|NIC)[0-9]", line)]
    for (a, b), cell in cells.items():
        rows[a][b + 1] = rows[b][a + 1] = cell
    return "\n".join([*lines[: at + 1], *map(" ".join, rows), *lines[at + 1 + len(rows) :]]) + "\n"


@pytest.mark.parametrize("models", [V100S, ""])
@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({}, ""),
        (
            {(0, 3): "PHB", (4, 7): "NV1"},
            "like dgx1-v100, but gpu0-gpu3 has 0 of 2 lanes, gpu4-gpu7 has 1 of 2 lanes",
        ),
        ({(0, 1): "PIX"}, "like dgx1-v100, but gpu0-gpu1 has 0 of 1 lane"),
        ({(0, 7): "NV1", (0, 1): "PHB", (6, 7): "PHB"}, ""),  # wired in another way: no DGX-1
    ],
)
def test_nvlinks_that_a_recorded_machine_lacks_are_named(
    models: str, cells: dict[tuple[int, int], str], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "box.txt"
    file.write_text(models + with_cells(DGX1, cells))
    assert [found.message for found in check(str(file)) if found.rule == "as-in-catalogue"] == (
        [message] * bool(message)
    )


def smi(gpus: int, nics: int, near: str = "PIX") -> str:
    """What nvidia-smi prints of an HGX H100 with so many GPUs and adapters left, each adapter beside one GPU."""
    labels = [*(f"GPU{n}" for n in range(gpus)), *(f"NIC{n}" for n in range(nics))]

    def cell(a: str, b: str) -> str:
        return "X" if a == b else "NV18" if a[0] == b[0] == "G" else near if a[3:] == b[3:] else "SYS"

    return "\n".join([" ".join(labels), *(" ".join([a, *(cell(a, b) for b in labels)]) for a in labels)]) + "\n"


@pytest.mark.parametrize(
    ("gpus", "nics", "near", "message"),
    [
        (8, 8, "PIX", []),
        (7, 8, "PIX", ["like hgx-h100, but 1 GPU fewer"]),
        (8, 7, "PIX", ["like hgx-h100, but gpu7: 1 NIC fewer on its side of the CPU"]),
        (7, 6, "PIX", ["like hgx-h100, but 1 GPU fewer, gpu6: 1 NIC fewer on its side of the CPU"]),
        (8, 0, "PIX", []),  # adapters without RDMA are not listed
        (8, 2, "PHB", []),  # of a virtual machine, beside no GPU
    ],
)
@pytest.mark.parametrize("models", [True, False])
def test_gpus_and_nics_that_a_recorded_machine_lacks_are_counted(
    gpus: int, nics: int, near: str, message: list[str], models: bool, tmp_path: Path
) -> None:
    names = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})\n" for n in range(gpus))
    file = tmp_path / "box.txt"
    file.write_text((names if models else "") + smi(gpus, nics, near))
    assert [found.message for found in check(str(file)) if found.rule == "as-in-catalogue"] == message


@pytest.mark.parametrize(("gpus", "nics", "near", "left"), [
    (8, 8, "PIX", 8), (8, 7, "PIX", 7), (8, 0, "PIX", 8), (8, 2, "PHB", 8),
])  # fmt: skip
def test_adapters_that_are_gone_stay_gone_in_what_is_completed(
    gpus: int, nics: int, near: str, left: int, tmp_path: Path
) -> None:
    """Those that a text does not list, or lists away from the GPUs, are no sign of that."""
    file = tmp_path / "box.txt"
    names = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})\n" for n in range(gpus))
    file.write_text(names + smi(gpus, nics, near))
    found = load(str(file), like="hgx-h100")
    assert [device.name for device in found.devices if device.kind == "nic"] == [f"nic{n}" for n in range(left)]


def test_an_adapter_at_another_place_is_said_where_the_machine_named_has_it_in_its_own(tmp_path: Path) -> None:
    """NIC0 is beside GPU1, as many in all: what is written has it beside gpu0, and a note says so."""
    file = tmp_path / "box.txt"
    file.write_text(with_cells(smi(8, 8, "PIX"), {(0, 8): "SYS", (1, 8): "PIX", (8, 9): "PIX"}))
    found = load(str(file), like="hgx-h100")
    told = "NICs placed as there and not as recorded: gpu0: 1 NIC fewer on its side of the CPU"
    assert remarks(found) == ["completed as hgx-h100", told]
    assert len([device for device in found.devices if device.kind == "nic"]) == 8
    file.write_text(smi(8, 8, "PIX"))
    assert remarks(load(str(file), like="hgx-h100")) == ["completed as hgx-h100"]


def test_no_machine_of_the_catalogue_lacks_anything() -> None:
    for name in names():
        assert known_gpus.compare(load(name)) == []


def test_gpus_that_are_sold_with_nvlinks_only_are_missed_all(tmp_path: Path) -> None:
    file = tmp_path / "box.txt"
    file.write_text(V100S + with_cells(DGX1, {(a, b): "SYS" for b in range(8) for a in range(b)}))
    (found,) = check(str(file))
    assert found.message == "like dgx1-v100, but no GPU has NVLink"


def says_its_gpus(machine: Topology) -> bool:
    """Whether its NVLinks are those of GPUs of a known compute capability, by which a recorded one is recognised."""
    return "nvlink" in machine.link_classes and "sm" in machine.device(machine.members[0]).attributes


@pytest.mark.parametrize("name", [name for name in names() if says_its_gpus(load(name))])
def test_lost_lanes_of_every_machine_are_found_again(name: str) -> None:
    """Machines of the catalogue with lost NVLinks, as if they had been read from nvidia-smi."""
    whole, chance = load(name), random.Random(name)
    links = [link for link in whole.links if link.kind == "nvlink" and link.src in whole.members]
    first = {frozenset((link.src, link.dst)): link for link in reversed(links)}
    lost = {link: chance.randint(1, link.lanes) for link in chance.sample(list(first.values()), min(2, len(first)))}
    broken = whole
    for link, lanes in lost.items():
        ends = f"{link.src}-{link.dst}"
        left = link.lanes - lanes
        broken = broken.degrade(ends, lanes=left) if left else broken.without(ends)
    assert edits.lacking(broken, whole) == lost
    assert edits.lacking(whole, broken) is None
    assert wires(known_gpus.completed(broken, whole)) == wires(broken)
    recorded = replace(broken, source="nvidia-smi topo -m in box.txt")
    (found,) = [one for one in check(recorded) if one.rule == "as-in-catalogue"]
    machine, _, words = found.message.removeprefix("like ").partition(", but ")
    assert edits.lacking(broken, load(machine)) is not None
    for link, lanes in lost.items():
        assert f"{link.lanes - lanes} of {link.lanes} lane" in words


def wires(machine: Topology) -> list[tuple[str, str, str, int]]:
    return sorted((link.src, link.dst, link.kind, link.lanes) for link in machine.links)


def test_text_of_nvidia_smi_is_completed_from_the_machine_that_it_is_of(tmp_path: Path) -> None:
    file, written = tmp_path / "box.txt", tmp_path / "box.yaml"
    file.write_text(V100S + with_cells(DGX1, {(0, 3): "PHB", (4, 7): "NV1"}))
    found = load(str(file), like="dgx1-v100")
    expected = load("dgx1-v100", edits=["without gpu0-gpu3", "degrade gpu4-gpu7 lanes=1"])
    assert wires(found) == wires(expected)
    assert found.fabric == expected.fabric
    assert found.name == "box"
    assert found.source.endswith("; completed as dgx1-v100, without gpu0-gpu3, degrade gpu4-gpu7 lanes=1")
    # At NCCL's rates, and as a file.
    assert (
        load(str(file), like="dgx1-v100", rates="nccl").links
        == load("dgx1-v100", rates="nccl", edits=["without gpu0-gpu3", "degrade gpu4-gpu7 lanes=1"]).links
    )
    written.write_text(machine_yaml.write(found))
    assert wires(load(written)) == wires(expected)
    assert [one.rule for one in check(str(written))] == ["as-in-catalogue"]
    with pytest.raises(
        InputError, match="box has Tesla V100, and dgx1-p100 has Tesla P100; name the machine that it is"
    ):
        load(str(file), like="dgx1-p100")
    with pytest.raises(InputError, match="box has other NVLinks than dgx2; name the machine that it is"):
        load(str(file), like="dgx2")


@pytest.mark.parametrize("like", ["hgx-h200", "hgx-b200", "dgx-a100", "hgx-h20"])
def test_gpus_of_another_model_are_no_like(like: str, tmp_path: Path) -> None:
    """An H100 box completed as one of B200 had times of B200; a topology file says its model by its PCI number."""
    recorded = tmp_path / "box.xml"
    recorded.write_text(Path("tests/data/nccl_topo/hgx-h100-8nic.xml").read_text())
    with pytest.raises(InputError, match=f"box has H100, and {like} has .*; name the machine that it is"):
        load(str(recorded), like=like)
    # A board that clouds sell under other names is the same.
    assert load(str(recorded), like="p5").ranks == 8
