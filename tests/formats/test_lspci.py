"""Text of lspci: what it shows to be slow, gone or redirected, by hand arithmetic, and paths in drawn PCIe trees."""

from __future__ import annotations

import random
import re
import shlex
from itertools import product
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.cli.main import run
from blinksim.errors import FileError
from blinksim.formats.nvidia_smi import read_text
from blinksim.machines import remarks
from blinksim.textio import lspci

H200 = "NVIDIA Corporation GH100 [H200 SXM 141GB] [10de:2335]"
NIC = "Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]"
FULL = ("32", "16")


def device(slot: str, what: str, *lines: str) -> str:
    return "\n".join([f"{slot} {what}", *(f"\t{line}" for line in lines), "", ""])


def links(does: tuple[str, str] = FULL) -> tuple[str, str]:
    """A port of generation 5 with 16 lanes, and what its link does."""
    marks = ["" if has == most else " (downgraded)" for has, most in zip(does, FULL, strict=True)]
    can = "LnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported"
    return f"\t{can}", f"\tLnkSta:\tSpeed {does[0]}GT/s{marks[0]}, Width x{does[1]}{marks[1]}"


def bridge(slot: str, first: int, last: int, port: str, *more: str) -> str:
    buses = f"Bus: primary={slot[:2]}, secondary={first:02x}, subordinate={last:02x}, sec-latency=0"
    what = "PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0)"
    return device(slot, what, buses, f"Capabilities: [68] Express (v2) {port}, MSI 00", *links(), *more)


def hgx(
    slow: dict[str, tuple[str, str]] | None = None, *, gpu: str = H200, acs: str = "-", dead: str = "", nics: int = 8
) -> str:
    """Eight switches with a GPU and an adapter below each, half of them a NUMA node."""
    text, does = "", slow or {}
    for n in range(8):
        buses, numa = [0x10 * (n + 1) + k for k in range(5)], f"NUMA node: {n // 4}"
        root, top, inner, of_gpu, of_nic = (f"{bus:02x}" for bus in buses)
        text += bridge(f"{root}:01.0", buses[1], buses[4], "Root Port (Slot+)", "\tACSCtl:\tSrcValid+ ReqRedir+")
        text += bridge(f"{top}:00.0", buses[2], buses[4], "Upstream Port")
        for k in (3, 4):
            redirected = f"\tACSCtl:\tSrcValid{acs} TransBlk- ReqRedir{acs} CmpltRedir{acs}"
            text += bridge(f"{inner}:0{k}.0", buses[k], buses[k], "Downstream Port (Slot+)", redirected)
        lost = str(n) in dead
        said = ["!!! Unknown header type 7f"] if lost else [numa, *links(does.get(f"gpu{n}", FULL))]
        text += device(f"{of_gpu}:00.0", f"3D controller [0302]: {gpu} (rev {'ff' if lost else 'a1'})", *said)
        text += device(f"{of_nic}:00.0", NIC, numa, *links(does.get(f"nic{n}", FULL))) if n < nics else ""
    return text


def nvlinks(dead: int = 0) -> str:
    """What nvidia-smi nvlink -s prints of eight H200 of which GPU 5 lacks some NVLinks."""
    lines = []
    for gpu in range(8):
        lines.append(f"GPU {gpu}: NVIDIA H200 (UUID: GPU-{gpu})")
        gone = dead if gpu == 5 else 0
        lines += [f"\t Link {link}: {'<inactive>' if link < gone else '26.562 GB/s'}" for link in range(18)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "words", "edit"),
    [
        # 16 lanes of generation 5 carry 64 GB/s, 8 of generation 4 carry 16.
        (hgx({"gpu5": ("16", "8")}), "gpu5: PCIe 16 GT/s x8 of 32 GT/s x16", "degrade gpu5-nic5 bandwidth=16GB/s"),
        (hgx({"nic3": ("32", "8")}), "nic3: PCIe 32 GT/s x8 of 32 GT/s x16", "degrade nic3-gpu3 bandwidth=32GB/s"),
        (hgx({"nic3": ("2.5", "16")}), "nic3: PCIe 2.5 GT/s x16 of 32 GT/s x16", "degrade nic3-gpu3 bandwidth=4GB/s"),
        (hgx({f"gpu{n}": ("32", "8") for n in range(8)}), "gpu0 to gpu7: PCIe 32 GT/s x8 of 32 GT/s x16",
         "degrade gpu7-nic7 bandwidth=32GB/s"),
        (hgx(dead="2"), "1 GPU fewer", "without gpu7"),
        (hgx(nics=7), "gpu7: 1 NIC fewer on its side of the CPU", "without nic7"),
        (nvlinks(6) + hgx({"gpu5": ("16", "8")}), "gpu5 has 12 of 18 lanes, gpu5: PCIe 16 GT/s x8 of 32 GT/s x16",
         "degrade gpu5-nvswitch lanes=12"),
    ],
    ids=range(7),
)  # fmt: skip
def test_what_lspci_shows_to_be_slow_or_gone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str, edit: str
) -> None:
    path = tmp_path / "box.txt"
    path.write_text(text)
    assert run(["health", str(path), "-q"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= 9
    assert re.match(r"box: like hgx-h200 \([78] x H200\), but ", shown[0])
    assert shown[0].endswith(f", but {words}")
    assert f"--edit '{edit}'" in shown[-1]
    assert "in place of" in shown[1]
    assert run([*shlex.split(shown[-1])[2:], "-q"]) == 0
    assert ("the GPU at 33:00.0 does not answer" in "\n".join(shown)) == ("GPU fewer" in words)


@pytest.mark.parametrize(
    "gpu", [H200, "NVIDIA Corporation GH100 [H200 SXM 141GB]", "NVIDIA Corporation Device [10de:2335]"]
)
def test_a_whole_machine_lacks_nothing_that_lspci_tells(gpu: str, tmp_path: Path) -> None:
    """Idle GPUs run their links at 2.5 GT/s, and NVLinks are not listed."""
    path = tmp_path / "box.txt"
    path.write_text(hgx({f"gpu{n}": ("2.5", "16") for n in range(8)}, gpu=gpu))
    found = bs.health(str(path))
    assert (found.status, found.twin and found.twin.name) == (0, "hgx-h200")
    assert found.sentence().endswith("(8 x H200), as many GPUs, NICs; not compared: NVLinks")
    path.write_text(nvlinks() + path.read_text())
    assert bs.health(str(path)).sentence().endswith(", nothing missing")


def test_nvlinks_that_lspci_does_not_list_are_those_of_a_whole_machine_or_none(tmp_path: Path) -> None:
    """H200 are sold with 18 to NVSwitches, L40S with none; how those of V100 lie, another tool must say."""
    path = tmp_path / "box.txt"
    path.write_text(hgx())
    assert bs.project(path, "allreduce", "64MiB").time_s == bs.project("hgx-h200", "allreduce", "64MiB").time_s
    assert any("assumption" in remark for remark in remarks(bs.load(path)))
    path.write_text(hgx(gpu="NVIDIA Corporation AD102GL [L40S] [10de:26b9]"))
    assert "nvlink" not in bs.load(path).link_classes
    assert (
        bs.health(str(path)).sentence() == "box: like l40s-pcie (8 x L40S), as many GPUs, NICs; not compared: NVLinks"
    )
    path.write_text(hgx(gpu="NVIDIA Corporation GA102 [GeForce RTX 3090] [10de:2204]"))
    assert bs.health(str(path)).sentence().startswith("box: 8 x GeForce RTX 3090; cannot tell")
    path.write_text(hgx(gpu="NVIDIA Corporation GV100GL [Tesla V100 SXM2 16GB] [10de:1db1]"))
    with pytest.raises(FileError, match="NVLinks alone do not say which GPUs they join"):
        bs.load(path)


def test_links_without_lanes_say_nothing() -> None:
    """A port with nothing below it has a width of x0."""
    text = hgx().replace("Width x16,", "Width x0,").replace("Width x16", "Width x0")
    assert {link.lane_bandwidth for link in read_text(text, "box.txt").links if link.kind == "pcie"} == {10**9}


def test_the_example_of_the_docs_is_such_a_text() -> None:
    path = Path(__file__).parents[1] / "data" / "damaged" / "hgx-h200-lspci.txt"
    assert path.read_text() == hgx({"gpu5": ("16", "8")})


def test_links_that_are_hidden_are_not_compared(tmp_path: Path) -> None:
    """Without root lspci denies access to what it knows of links."""
    path = tmp_path / "box.txt"
    hidden = re.sub(r"\t\tLnk.*\n", "", hgx(nics=7))
    for text, unseen in ((hidden, "NVLinks, PCIe"), (nvlinks() + hidden, "PCIe")):
        path.write_text(text.replace(NIC, ""))
        assert bs.health(str(path)).unseen == [*unseen.split(", ")[:-1], "NICs", "PCIe"]


def test_ports_that_redirect_are_named(tmp_path: Path) -> None:
    """Root ports redirect wherever there is an IOMMU; what counts are the ports of switches."""
    path = tmp_path / "box.txt"
    for acs, said in (("-", False), ("+", True)):
        path.write_text(hgx(acs=acs))
        found = bs.health(str(path))
        assert found.status == int(said)
        assert ("ACS is on at the ports above gpu0 to gpu7" in found.text()) == said


def test_rates_and_the_tree_are_those_of_the_ports() -> None:
    machine = read_text(hgx({"gpu5": ("16", "8")}), "box.txt")
    assert {link.bandwidth / 10**9 for link in machine.links if "gpu5" in link.name and link.kind == "pcie"} == {16}
    assert {link.bandwidth / 10**9 for link in machine.links if "gpu4" in link.name and link.kind == "pcie"} == {64}
    beside = {
        name: {x.dst for x in machine.links if x.src == name and x.kind == "pcie"} for name in ("gpu6", "nic6", "gpu7")
    }
    assert beside["gpu6"] == beside["nic6"] != beside["gpu7"]


def test_other_numbers_of_gpus_are_not_compared() -> None:
    machine = read_text(nvlinks() + hgx(dead="2"), "box.txt")
    assert "lspci lists 7 GPUs, nvidia-smi 8: PCIe not compared" in machine.source
    assert len(machine.members) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (device("41:00.0", "Processing accelerators [1200]: AMD/ATI Aqua Vanjaram [1002:74a1]"), "no table"),
        ("".join(device(f"{bus:02x}:{n:02x}.0", f"3D controller: {H200}") for bus in range(8) for n in range(40)),
         "lists 320 GPUs and 0 NICs of 320 devices"),
        (hgx() + "".join(bridge(f"{n % 256:02x}:{n // 256:02x}.0", 0, 255, "Downstream Port") for n in range(4096)),
         "lists 8 GPUs and 8 NICs of 4144 devices"),
    ],
)  # fmt: skip
def test_texts_without_a_machine_are_refused(text: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read_text(text, "box.txt")


class Drawn:
    """A PCIe tree. parent: of each place; leaves: NUMA node of each GPU."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.bus = draw, 0
        self.parent, self.leaves = dict[str, str](), dict[str, str]()
        self.text = ""
        for root in range(draw.randint(1, 3)):
            self.bus += 1
            self.text += self.below(f"{self.bus:02x}:01.0", "", 3, root % 2)

    def below(self, slot: str, above: str, depth: int, numa: int) -> str:
        """A root port or a switch's port with what is below it: a device, or another switch."""
        self.parent[slot] = above
        self.bus += 1
        first, place = self.bus, f"{self.bus:02x}:00.0"
        self.parent[place] = slot
        if depth == 0 or self.draw.random() < 0.4:
            self.leaves[place] = str(numa)
            inside = device(place, f"3D controller: {H200}", f"NUMA node: {numa}")
        else:
            self.bus += 1
            second, ports = self.bus, range(self.draw.randint(1, 3))
            inside = "".join(self.below(f"{second:02x}:{n:02x}.0", place, depth - 1, numa) for n in ports)
            inside = bridge(place, second, self.bus, "Upstream Port") + inside
        return bridge(slot, first, self.bus, "Downstream Port") + inside

    def walk(self, slot: str) -> list[str]:
        """The bridges above a place, the nearest first."""
        found = []
        while slot := self.parent[slot]:
            found.append(slot)
        return found


def test_paths_in_drawn_trees_are_those_of_their_bridges() -> None:
    """By walks up the tree: one switch between them is PIX, more are PXB, none is PHB or, over NUMA nodes, SYS."""
    draw = random.Random(7)
    for _ in range(40):
        tree = Drawn(draw)
        devices = lspci.read(tree.text)
        labels = {f"GPU{number}": one for number, one in enumerate(one for one in devices if one.kind == "gpu")}
        cells, _ = lspci.as_table(labels, devices)
        slots = dict(zip(labels, sorted(tree.leaves), strict=True))
        numa = {label: tree.leaves[slots[label]] for label in labels}
        for a, b in product(labels, repeat=2):
            one, two = tree.walk(slots[a]), tree.walk(slots[b])
            common = [slot for slot in one if slot in two]
            if a == b:
                expected = "X"
            elif common:
                expected = "PIX" if max(one.index(common[0]), two.index(common[0])) < 2 else "PXB"
            else:
                expected = "PHB" if numa[a] == numa[b] else "SYS"
            assert cells[a, b] == expected
