"""Is a machine whole: lost links, GPUs and adapters by hand arithmetic, in whatever an operator has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import blinksim as bs
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
        assert run([*re.findall(r"'[^']*'|\S+", shown[-1])[2:7], "degrade gpu5-nvswitch lanes=12", "--json"]) == 0
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
        assert "nothing missing" in shown[0]


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
