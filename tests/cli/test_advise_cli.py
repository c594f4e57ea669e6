"""blinksim advise: one screen, the file, and this computer's own GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blinksim.cli.main import run
from blinksim.nccl.files import graph_file

CAPTURES = Path(__file__).resolve().parents[1] / "data" / "captures"
SIX = ("dgx1-v100", "--members", "0,1,2,3,4,7")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    assert run(["advise", *arguments]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program called nvidia-smi, the only one that can be found."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_one_screen_with_what_to_load(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = ask(capsys, *SIX)
    assert err == ""
    lines = out.splitlines()
    assert "load chains into NCCL: 45 GB/s algbw in place of 23.91 GB/s, 1.9 times as fast" in lines[0]
    assert len(lines) <= 24
    assert "NCCL_GRAPH_FILE=chains.xml" in out
    # The commands that it names make that file.
    typed = [line.split("blinksim ", 1)[1].split() for line in lines if line.startswith("    blinksim ")]
    assert [words[0] for words in typed] == ["synth", "export"]
    for words in typed:
        assert run(words) == 0
    assert (tmp_path / "chains.xml").is_file()


@pytest.mark.slow
def test_the_file_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "graph.xml"
    out, _ = ask(capsys, *SIX, "-o", str(target))
    assert f"NCCL_GRAPH_FILE={target}" in out
    graph_file.check(graph_file.read(target), [0, 1, 2, 3, 4, 7])
    _, err = ask(capsys, *SIX, "-o", str(target), status=2)
    assert "is not overwritten; add --force" in err
    # Nothing to load leaves no file.
    other = tmp_path / "other.xml"
    out, _ = ask(capsys, "dgx1-v100", "-o", str(other))
    assert "not written" in out
    assert not other.exists()


def test_a_file_for_a_damaged_machine_says_how_to_see_that_it_is_in_force(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target, edit = str(tmp_path / "graph.xml"), ("--edit", "without gpu0-gpu3")
    out, _ = ask(capsys, "dgx1-v100", *edit, "-o", target)
    lines = out.splitlines()
    assert "  edited    without gpu0-gpu3" in lines
    head = lines.index("  in force if the log (NCCL_DEBUG=INFO) of rank 0 says:")
    # What the checker of graph files makes of the file: the first channel, as rank 0 prints it.
    ring = dict(graph_file.read(target).graphs)[0]
    assert lines[head + 1] == f"    Channel 00/03 : {' '.join(map(str, ring.channels[0]))}"
    assert lines[head + 4].startswith("    Trees [0] ")
    # And `verify` agrees, with the abbreviations of NCCL in words.
    assert run(["verify", target, "--machine", "dgx1-v100", *edit]) == 0
    out = capsys.readouterr().out
    assert "over NVB paths" in out
    assert "NVL: NVLink; NVB: NVLink by way of another GPU" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(ask(capsys, *SIX, "--json")[0])
    assert found["command"] == "advise"
    assert found["bound_exact"] == "50"
    assert found["rates"].startswith("nccl")
    assert found["certificate"]["kind"] == "partition"
    assert found["load"]["algorithm"] == "chains"
    assert found["nccl"]["choice"] == "ring Simple"
    assert found["best"]["rate_exact"] == "50"


def test_collective_and_size_go_in_place_or_after_options(capsys: pytest.CaptureFixture[str]) -> None:
    placed = ask(capsys, *SIX, "allgather", "64MiB", "--json")
    assert placed == ask(capsys, *SIX, "--collective", "allgather", "--size", "64MiB", "--json")
    found = json.loads(placed[0])
    assert (found["collective"], found["size_bytes"]) == ("allgather", 2**26)


@pytest.mark.slow
def test_times_before_an_edit_are_by_the_model_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Links that are edited are no longer what was measured; then neither answer rests on it."""
    out, _ = ask(capsys, "hgx-h200", "--before", "--edit", "degrade gpu0-nvswitch lanes=9")
    assert "  model     alpha-beta: links and latencies, no launch" in out
    assert "  before    bound: 329.6 GB/s algbw without the edit; 43.8 % slower with it" in out
    out, _ = ask(capsys, "hgx-h200", "--size", "64KiB", "--before", "--edit", "without gpu7", "--json")
    found = json.loads(out)
    assert (found["model"], found["before"]["model"]) == ("execution", "execution")
    assert found["before"]["best"]["time_s"] == pytest.approx(found["best"]["time_s"], rel=0.2)


@pytest.mark.parametrize("machine", [pytest.param("h200x8/topo.xml", marks=pytest.mark.slow), "h200x8/smi_topo.txt"])
def test_descriptions_of_ones_own_machine(capsys: pytest.CaptureFixture[str], machine: str) -> None:
    """Eight H200: what was measured of them holds, as for the machine of the catalogue."""
    out, _ = ask(capsys, str(CAPTURES / machine))
    assert "nothing worth loading: NCCL's own choice reaches 74 % of the bound" in out
    own, _ = ask(capsys, "hgx-h200")
    # But for the classes of links and the name of the machine.
    mine, other = ([line for line in text.splitlines()[1:-1] if "nominal)" not in line] for text in (out, own))
    assert mine == other


def test_this_computers_gpus(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, monkeypatch, f'if [ "$1" = topo ]; then cat {CAPTURES}/h200x8/smi_topo.txt; else exit 9; fi')
    out, _ = ask(capsys, "--no-nvls")
    assert " on 8 GPUs of nvidia-smi: " in out
    assert out.splitlines()[-1].startswith("next: nvidia-smi topo -m > topo.txt && blinksim compare topo.txt ")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "no GPUs found here (there is no nvidia-smi); name a machine"),
        ("echo No devices were found; exit 6", "nvidia-smi lists no GPUs; name a machine"),
    ],
)
def test_a_computer_without_gpus(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None,
    message: str,
) -> None:  # fmt: skip
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        smi(tmp_path, monkeypatch, script)
    out, err = ask(capsys, status=4)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("dgx1-v10",), 2, "did you mean 'dgx1-v100'"),
        (("dgx1-v100", "--size", "7 furlongs"), 2, "7 furlongs"),
        (("dgx1-v100", "--members", "0,5"), 3, "nvlink does not connect the members: gpu0 | gpu5"),
        (("--nodes", "2"), 2, "knows nothing of other nodes"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, message: str
) -> None:
    out, err = ask(capsys, *arguments, status=status)
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_a_schedule_slower_than_nccls_choice_is_not_called_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ask(capsys, "hgx-h100")[0].splitlines()
    assert not any(line.startswith("  best ") for line in lines)
    row = next(number for number, line in enumerate(lines) if line.startswith("  schedule "))
    assert "slower than NCCL's own choice, whose switches add" in " ".join(lines[row : row + 2])
