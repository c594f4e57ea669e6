"""Is a machine whole: lost links, GPUs and adapters by hand arithmetic, in whatever an operator has."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.answers.logs.faults import classes
from blinksim.cli.main import run

DATA = Path(__file__).resolve().parents[1] / "data"
SMI, LOG = DATA / "captures" / "h200x8" / "smi_topo.txt", DATA / "captures" / "h200x8" / "nccl_debug.log"
PATHS = json.loads((DATA / "nccl_topo" / "paths.json").read_text())
# NVLinks between GPUs of a DGX-1V, as its manual has them.
DGX1 = {"01": 1, "02": 1, "03": 2, "04": 2, "12": 2, "13": 1, "15": 2, "23": 2, "26": 1, "37": 1, "45": 1, "46": 1}
DGX1 |= {"47": 2, "56": 2, "57": 1, "67": 2}


def smi(links: dict[str, int], model: str) -> str:
    """What nvidia-smi -L and topo -m print of eight GPUs with these NVLinks between two of them."""
    lines = [f"GPU {n}: {model} (UUID: GPU-{n})" for n in range(8)]
    lines.append("\t" + "\t".join(f"GPU{n}" for n in range(8)))
    for a in range(8):
        found = [links.get(f"{min(a, b)}{max(a, b)}", 0) for b in range(8)]
        cells = ["X" if a == b else f"NV{many}" if many else "SYS" for b, many in enumerate(found)]
        lines.append("\t".join([f"GPU{a}", *cells]))
    return "\n".join(lines) + "\n"


def switched(working: dict[int, int]) -> str:
    """What nvidia-smi nvlink -s prints of eight H200 of which some have fewer NVLinks that work."""
    lines = []
    for gpu in range(8):
        lines.append(f"GPU {gpu}: NVIDIA H200 (UUID: GPU-{gpu})")
        dead = 18 - working.get(gpu, 18)
        lines += [f"\t Link {link}: {'<inactive>' if link < dead else '26.562 GB/s'}" for link in range(18)]
    return "\n".join(lines) + "\n"


def nccl_log(paths: list[list[str]], *, switches: bool = True) -> str:
    """What NCCL prints of the paths between GPUs."""
    lines = ["node1:7:7 [0] NCCL INFO === System : maxBw 1.0 totalBw 1.0 ==="]
    for gpu, row in enumerate(paths):
        shown = " ".join(f"GPU/0-{n + 1}0 (1/{float(p[4:]):.1f}/{p[:3]})" for n, p in enumerate(row))
        shown += " NVS/0-0 (1/370.8/NVL)" * switches + f" CPU/0-{gpu // 4} (1/12.0/PHB) NET/0-0 (3/1.2/PHB) "
        lines.append(f"node1:7:7 [0] NCCL INFO GPU/0-{gpu + 1}0 :{shown}")
    return "\n".join(lines) + "\n"


def ask(capsys: pytest.CaptureFixture[str], path: Path | str, status: int) -> list[str]:
    assert run(["health", str(path), "-q"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert len(lines) <= 9
    assert lines[-1].startswith("next: blinksim ")
    return lines


def test_one_gpu_with_fewer_nvlinks_whatever_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every byte passes its port once each way while switches add: 12 x 25 GB/s allow 300 GB/s, busbw 7/4 of it."""
    table = [line.split("\t") for line in SMI.read_text().splitlines()]
    for words in table:
        if words[0] == "GPU5":
            words[:] = [word.replace("NV18", "NV12") for word in words]
        elif re.fullmatch("GPU[0-7]", words[0]):
            words[6] = "NV12"
    rows = [["LOC/5000.0" if a == b else f"NVL/{247.2 if 5 in (a, b) else 370.8}" for b in range(8)] for a in range(8)]
    texts = {"topo.txt": "\n".join("\t".join(words) for words in table), "list.txt": switched({5: 12})}
    texts["log.txt"] = nccl_log(rows)
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        shown = ask(capsys, path, 1)
        assert shown[0].endswith("but gpu5 has 12 of 18 lanes")
        # NCCL's log does not say which GPUs of their generation these are.
        assert f"like {'hgx-h100' if name == 'log.txt' else 'hgx-h200'} (8 x " in shown[0]
        found = bs.health(str(path)).to_dict()
        assert (found["bound_exact"], found["healthy_bound_exact"]) == ("300", "400")
        assert found["rows"] == [{"src": "gpu5", "dst": "nvswitch", "kind": "nvlink", "lanes": 12, "of": 18}]
        assert found["take"] == [f"gpu{n}" for n in range(8) if n != 5]
        assert found["time_s"] > found["healthy_time_s"]
        assert found["take_busbw_GBps"] > found["busbw_GBps"]
        assert any("CUDA_VISIBLE_DEVICES=0,1,2,3,4,6,7" in line for line in shown)
        # The command that it ends with says the same times.
        next_one = shlex.split(shown[-1])[2:]
        assert next_one[1] == (str(path) if name == "log.txt" else "hgx-h200")
        assert run([*[word for word in next_one if word != "--before"], "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["time_s"] == pytest.approx(found["time_s"])


def test_lost_links_of_a_machine_without_switches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By hand: 1100 GB/s of links are left for 14 copies, 550/7 GB/s; 1200 GB/s allow 600/7."""
    path = tmp_path / "box.txt"
    path.write_text(smi(DGX1 | {"03": 0, "47": 1}, "Tesla V100-SXM2-32GB"))
    shown = ask(capsys, path, 1)
    assert shown[0].endswith(
        "like dgx1-v100 (8 x Tesla V100), but gpu0-gpu3 has 0 of 2 lanes, gpu4-gpu7 has 1 of 2 lanes"
    )
    assert "--edit 'without gpu0-gpu3' --edit 'degrade gpu4-gpu7 lanes=1' --before" in shown[-1]
    found = bs.health(str(path))
    edited = bs.bound(bs.load("dgx1-v100", edits=["without gpu0-gpu3", "degrade gpu4-gpu7 lanes=1"]), "allreduce")
    assert found.takes is not None
    assert found.takes.bound is not None
    assert found.takes.bound.rate == edited.rate
    assert found.to_dict()["healthy_bound_exact"] == "600/7"


@pytest.mark.parametrize("name", sorted(PATHS))
def test_paths_that_nccl_prints_give_the_links_of_its_topology_file(name: str, tmp_path: Path) -> None:
    """NVLinks between two GPUs, or to switches, as the topology file says that these paths were found in."""
    expected, path = bs.load(DATA / "nccl_topo" / name), tmp_path / "nccl.log"
    switches = any(device.kind == "switch" for device in expected.devices)
    path.write_text(nccl_log(PATHS[name]["paths"], switches=switches))
    read = bs.load(str(path))

    def nvlinks(machine: bs.Topology) -> list[tuple[str, str, int]]:
        of_gpus = [one for one in machine.links if one.kind == "nvlink" and one.src in machine.members]
        return sorted((one.src, re.sub("switch[0-9]*", "switch", one.dst), one.lanes) for one in of_gpus)

    assert len(read.members) == len(expected.members)
    assert nvlinks(read) == nvlinks(expected)


@pytest.mark.parametrize("path", [SMI, LOG, *sorted((DATA / "nccl_topo").glob("*.xml"))], ids=lambda path: path.name)
def test_recorded_machines(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    """Those of the catalogue lack nothing; half of a DGX A100 is one; PCIe boxes are not in the catalogue."""
    shown = ask(capsys, path, {"vm-a100x4.xml": 1}.get(path.name, 5 if re.match("pcie|k2200|dgx-2", path.name) else 0))
    if path.name == "vm-a100x4.xml":
        assert shown[0].endswith("like dgx-a100 (4 x A100), but 4 GPUs fewer")
    elif path in (SMI, LOG):
        assert "as many GPUs, NVLinks; not compared: NICs" in shown[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (switched({}).replace("H200", "X200"), "NVLinks alone do not say which GPUs they join"),
        ("".join(f"GPU {n}: Tesla V100 (UUID: x)\n\t Link 0: 25.781 GB/s\n" for n in range(4)), "which GPUs they join"),
        (nccl_log([["LOC/5000.0", "NVL/31.7"], ["NVL/31.7", "LOC/5000.0"]]), "31.7 GB/s are of no known GPU"),
        (nccl_log([["LOC/5000.0", "NVL/20.6"]]), "are not those of one node"),
        ("nothing\n", "no line begins with GPU0"),
    ],
)
def test_what_says_too_little_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "box.txt"
    path.write_text(text)
    assert run(["health", str(path)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err


XML = (DATA / "nccl_topo" / "hgx-h100-8nic.xml").read_text()
GPU2 = 'busid="0000:32:00.0" class="0x030200" vendor="0x10de" device="0x2330" '
NIC2 = 'busid="0000:38:00.0" class="0x020700" '
WIDE = 'link_speed="32.0 GT/s PCIe" link_width="16"'


@pytest.mark.parametrize(
    ("before", "after", "words", "edit"),
    [
        # A lane of generation 5 carries 4 GB/s, of generation 1 0.25.
        (GPU2 + WIDE, GPU2 + WIDE.replace("16", "1"), "gpu2: pcie 4 GB/s, the other 7 64 GB/s", "gpu2-nic2 4"),
        (GPU2 + WIDE, GPU2 + WIDE.replace("16", "8"), "gpu2: pcie 32 GB/s, the other 7 64 GB/s", "gpu2-nic2 32"),
        (GPU2 + WIDE, GPU2 + WIDE.replace("32.0", "2.5"), "gpu2: pcie 4 GB/s, the other 7 64 GB/s", "gpu2-nic2 4"),
        (NIC2 + WIDE, NIC2 + WIDE.replace("16", "4"), "nic2: pcie 16 GB/s, the other 7 64 GB/s", "nic2-gpu2 16"),
        ('name="mlx5_2" dev="2" latency="0" speed="400000"', 'name="mlx5_2" dev="2" latency="0" speed="200000"',
         "net2: nic 25 GB/s, the other 7 50 GB/s", ""),
        ('<gpu dev="2" sm="90" rank="2" gdr="1">', '<gpu dev="2" sm="90" rank="2" gdr="0">',
         "gpu2: GPUDirect 0, the other 7 1", ""),
    ],
    ids=range(6),
)  # fmt: skip
def test_what_is_slower_than_its_likes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, before: str, after: str, words: str, edit: str
) -> None:
    path = tmp_path / "topo.xml"
    path.write_text(XML.replace(before, after))
    assert XML.count(before) == 1
    shown = ask(capsys, path, 1)
    assert shown[0] == f"topo: like hgx-h100 (8 x H100), but {words}"
    if not edit:
        assert shown[-1] == f"next: blinksim project {path} allreduce 256MiB --nodes 2"
        return
    # What a slow port costs counts between nodes, on the machine of the catalogue.
    link, rate = edit.split()
    assert shown[-1].endswith(
        f"hgx-h100 allreduce 256MiB --nodes 2 --edit 'degrade {link} bandwidth={rate}GB/s' --before"
    )
    assert " in place of " in shown[1]


def box(
    *,
    dead: str = "",
    nvlinks: int = 18,
    nics: str = "01234567",
    far: str = "",
    seen: str = "01234567",
    shared: bool = False,
) -> str:
    """What nvidia-smi prints of an HGX H100.

    dead: GPUs without an active link; far: whose NIC is over the CPUs; shared: whether GPU 0 is beside GPU 1's NIC.
    """
    labels = [*(f"GPU{n}" for n in seen), *(f"NIC{n}" for n in nics)]

    def cell(a: str, b: str) -> str:
        if a[0] == b[0] == "G":
            return f"NV{nvlinks}" if nvlinks else "SYS"
        near = ("1" if shared and label == "GPU0" else label[3] for label in (a, b))
        return "PIX" if len({*near}) == 1 and a[3] not in far else "SYS"

    lines = [f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})" for n in seen]
    lines.append("\t".join(["", *labels, "CPU Affinity", "NUMA Affinity"]))
    lines += ["\t".join([a, *("X" if a == b else cell(a, b) for b in labels)]) for a in labels]
    lines.append("")
    for gpu in seen if nvlinks else "":
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        down = "NVML: Unable to retrieve NVLink information as all links are inActive"
        lines += [down] if gpu in dead else [f"\t Link {link}: 26.562 GB/s" for link in range(18)]
    return "\n".join(lines) + "\n"


def test_a_pair_that_nvswitches_cannot_make_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [line.split("\t") for line in box(nics="").splitlines()]
    [one] = [row for row in rows if row[:2] == ["GPU1", "NV18"]]
    [two] = [row for row in rows if row[:2] == ["GPU2", "NV18"]]
    one[3] = two[2] = "NV17"
    path = tmp_path / "odd.txt"
    path.write_text("\n".join("\t".join(row) for row in rows if row[0][4:5] != " " and "Link" not in row[-1]))
    assert run(["health", str(path)]) == 2
    assert "row GPU1 has NV17 to GPU2, and up to NV18 to others" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words", "last"),
    [
        (box(nics="0123567"), "gpu4: 1 NIC fewer on its side of the CPU", "--nodes 2 --edit 'without nic4' --before"),
        (box(nics="01234"), "gpu[5-7]: 1 NIC fewer on its side of the CPU",
         "--nodes 2 --edit 'without nic5' --edit 'without nic6' --edit 'without nic7' --before"),
        # GPUs 0 and 1 share a NIC.
        (box(nics="1234567", shared=True), "1 NIC fewer", "--nodes 2 --edit 'without nic7' --before"),
        (box(far="2"), "gpu2: 1 NIC fewer on its side of the CPU", "allreduce 256MiB"),
        (box(nvlinks=0), "no GPU has NVLink", "allreduce 256MiB"),
        (box().replace("26.562", "12.5", 1), "gpu0: nvlink 24.26 GB/s, the other 7 25 GB/s", "allreduce 256MiB"),
        (box(nics="").replace("NV18", "NV9"), "gpu[0-7] have 9 of 18 lanes",
         "--edit 'degrade gpu[0-7]-nvswitch lanes=9' --before"),
        (box(seen="0123456"), "1 GPU fewer", "--edit 'without gpu7' --before"),
        (box(dead="3"), "gpu3 has 0 of 18 lanes",
         "--members gpu0,gpu1,gpu2,gpu4,gpu5,gpu6,gpu7 --edit 'without gpu3-nvswitch' --before"),
    ],
    ids=range(9),
)  # fmt: skip
def test_what_text_of_nvidia_smi_shows_to_be_gone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str, last: str
) -> None:
    """(17 x 26.562 + 12.5) / 18 of 26.562 is 24.26 of 25; the bound of seven GPUs is 3/2 x 450, of eight 14/9 x 450."""
    path = tmp_path / "box.txt"
    path.write_text(text)
    shown = ask(capsys, path, 1)
    assert shown[0].startswith("box: like hgx-h100 (")
    assert shown[0].endswith(f", but {words}")
    assert shown[-1].endswith(last)
    assert run([*shlex.split(shown[-1])[2:], "-q"]) == 0
    capsys.readouterr()
    if "--nodes 2" in last:
        # Seven of eight NICs, or five, carry what a node takes in: what is lost counts between nodes.
        assert " on 2 such nodes: " in shown[1]
        left = float(shown[2].split()[2])
        assert left == pytest.approx(750 * (5 if "nic5" in last else 7) / 8, rel=1e-3)
    if "1 GPU" in words:
        assert "busbw 675 GB/s in place of 700 GB/s" in shown[2]
    if "gpu3" in words:
        assert "CUDA_VISIBLE_DEVICES=0,1,2,4,5,6,7" in shown[3]
    if "NVLink" in words:
        assert "nvidia-fabricmanager" in shown[3]


@pytest.mark.parametrize(
    "name", ["l40s-pcie", "rtx-pro-6000-pcie", "aurora", "gaudi3", "trn2.48xlarge", "tpu-v5p", "dgx-spark"]
)
def test_machines_of_the_catalogue_are_like_themselves(name: str) -> None:
    found = bs.health(name)
    assert (found.status, found.twin and found.twin.name) == (0, name)
    assert found.sentence().endswith(", nothing missing")


def test_ports_of_pcie_in_the_log_of_nccl(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """NCCL gives 48 GB/s to 16 lanes of generation 5, which carry 64."""
    path = tmp_path / "nccl.log"
    path.write_text(LOG.read_text().replace("PCI[48.0] - GPU/0-b0", "PCI[6.0] - GPU/0-b0"))
    assert ask(capsys, path, 1)[0].endswith("but gpu5: pcie 8 GB/s, the other 7 64 GB/s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LOG.read_text() + LOG.read_text().replace("vm:", "vm2:"), "not those of one node (vm, vm2)"),
        (box() + box(dead="3"), "holds tables of several hosts (lines 9, "),
        ("\n".join(line for line in LOG.read_text().splitlines() if "GPU/" not in line), "NCCL_DEBUG_SUBSYS=GRAPH"),
        ("#  out-of-place  in-place\n 1024 256 float sum -1 9.0 0.1 0.2 0\n", "blinksim diagnose judges its times"),
    ],
)
def test_texts_of_several_hosts_or_without_a_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "box.log"
    path.write_text(text)
    assert run(["health", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_why_all_gpus_are_taken_where_fewer_are_quicker(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Seven whole GPUs reach more busbw than eight of which one has 16 lanes, but less than 8/7 times as much."""
    path = tmp_path / "box.txt"
    path.write_text(switched({5: 16}))
    found, lines = bs.health(str(path)).to_dict(), ask(capsys, path, 1)
    assert 1 < found["take_busbw_GBps"] / found["busbw_GBps"] < 8 / 7
    assert any("meanwhile   take all, as 7 GPUs compute less; these alone: busbw" in line for line in lines)


def test_what_a_lost_nic_costs_is_of_one_basis(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Seven of eight NICs are left: at most 8/7 times as long, whether the GPUs are named or not."""
    path, answers = tmp_path / "box.txt", []
    for text in (box(nics="0124567"), re.sub("(?m)^GPU [0-9]:.*\n|^\t Link.*\n", "", box(nics="0124567"))):
        path.write_text(text)
        lines = ask(capsys, path, 1)
        assert lines[-1].endswith("hgx-h100 allreduce 256MiB --nodes 2 --edit 'without nic3' --before")
        found = bs.health(str(path)).to_dict()
        assert 1 < found["time_s"] / found["healthy_time_s"] < 8 / 7
        assert run([*shlex.split(lines[-1])[2:-1], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["time_s"] == pytest.approx(found["time_s"])
        answers.append((found["time_s"], found["healthy_time_s"]))
    assert answers[0] == answers[1]


def test_times_of_unnamed_gpus_say_whose_model_they_are_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, path = (DATA / "machines" / "p5.yaml").read_text(), tmp_path / "less.yaml"
    whole = '{between: ["gpu[0-7]", nvswitch], class: nvlink, lanes: 18}'
    assert whole in text
    parts = whole.replace("gpu[0-7]", "gpu[0-6]"), whole.replace("gpu[0-7]", "gpu7").replace("18", "12")
    path.write_text(text.replace(whole, "\n  - ".join(parts)))
    lines = ask(capsys, path, 1)
    assert lines[0].endswith("but gpu7 has 12 of 18 lanes")
    assert lines[1].endswith("; by NCCL's own model, as the GPUs are not named")
    assert "own model, as the GPUs" not in "".join(ask(capsys, "aurora", 0))


def test_a_slow_adapter_is_left_out_meanwhile() -> None:
    """It holds up NCCL's rings, as `project` says of the same machine."""
    slow = bs.load("hgx-h100", nodes=2, edits="degrade n1.nic3-fabric3 bandwidth=5GB/s")
    found, takes = bs.health(slow), bs.project(slow, "allreduce", "256MiB")
    assert isinstance(takes, bs.Answer)
    assert found.meanwhile is not None
    assert takes.meanwhile is not None
    assert found.meanwhile.time_s == takes.meanwhile.time_s < takes.time_s / 3
    assert "meanwhile   leave out n1.nic3, NCCL_IB_HCA=^=mlx5_3 on n1: " in found.text()
    assert found.to_dict()["take_without"] == ["n1.nic3"]


@pytest.mark.parametrize(
    ("machine", "edit", "fault"),
    [
        ("hgx-h200", "degrade gpu5-nvswitch lanes=12", "nvlink"),
        ("dgx-a100", "without nic3", "nic"),
        ("hgx-h200", "without gpu3", "gone"),
        ("mi300x", "without gpu3", "gone"),
    ],
)
def test_the_commands_are_those_of_the_class_of_fault(machine: str, edit: str, fault: str) -> None:
    found = bs.health(bs.load(machine, edits=edit))
    kinds = {kind.name: kind for kind in classes(found.machine.device(found.machine.members[0]).library, ())}
    assert found.missing
    assert f"  check       {kinds[fault].check}" in found.text().splitlines()


def test_no_commands_of_another_maker_are_named() -> None:
    found = bs.health(bs.load("aurora", edits="degrade card0.t0-card1.t0 bandwidth=1GB/s"))
    assert found.missing
    assert "nvidia" not in found.text()
