"""blinksim advise: one screen, the file, and this computer's own GPUs."""

from __future__ import annotations

import json
import re
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
    assert "load chains into NCCL: 6.967 ms in place of 13.06 ms with NCCL, 1.9 times as fast" in lines[0]
    assert len(lines) <= 18
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
    assert "  edited            without gpu0-gpu3" in lines
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
    assert found["bound_exact"] == "125/2"
    assert found["rates"] == "nominal"
    assert found["certificate"]["kind"] == "partition"
    assert found["load"]["algorithm"] == "chains"
    assert found["nccl"]["choice"] == "ring Simple"
    assert found["best"]["rate_exact"] == "1119/20"


def test_collective_and_size_go_in_place_or_after_options(capsys: pytest.CaptureFixture[str]) -> None:
    placed = ask(capsys, *SIX, "allgather", "64MiB", "--json")
    assert placed == ask(capsys, *SIX, "--collective", "allgather", "--size", "64MiB", "--json")
    found = json.loads(placed[0])
    assert (found["collective"], found["size_bytes"]) == ("allgather", 2**26)


def test_what_an_edit_costs(capsys: pytest.CaptureFixture[str]) -> None:
    edit = ("hgx-h200", "--size", "64KiB", "--before", "--edit", "degrade gpu0-nvswitch lanes=9")
    out, _ = ask(capsys, *edit)
    found = json.loads(ask(capsys, *edit, "--json")[0])
    assert "\n  before            " in out
    project = json.loads(ask(capsys, "hgx-h200", "--size", "64KiB", "--json")[0])
    assert found["before"]["takes"] == project["takes"]


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["h200x8/topo.xml", "h200x8/smi_topo.txt"])
def test_descriptions_of_ones_own_machine(capsys: pytest.CaptureFixture[str], machine: str) -> None:
    """Eight H200: what was measured of them holds, as for the machine of the catalogue."""
    out, _ = ask(capsys, str(CAPTURES / machine))
    assert "nothing worth loading; 1.055 ms with NCCL" in out
    own, _ = ask(capsys, "hgx-h200")
    # But for the classes of links and the name of the machine.
    mine, other = (text.splitlines()[1:-1] for text in (out, own))
    assert mine == other


def test_this_computers_gpus(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, monkeypatch, f'if [ "$1" = topo ]; then cat {CAPTURES}/h200x8/smi_topo.txt; else exit 9; fi')
    out, _ = ask(capsys, "--no-nvls")
    assert " on 8 GPUs of nvidia-smi: " in out
    assert out.splitlines()[-1].endswith(
        "nvidia-smi topo -m > topo.txt && blinksim expect topo.txt --collective allreduce --no-nvls"
    )


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
    # What lies in the folder is not read.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topo.txt").write_text("no description of a machine\n")
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


def test_a_schedule_slower_than_nccls_choice_is_not_worth_loading(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ask(capsys, "hgx-h100", "--why")
    assert "and no known schedule is a tenth quicker" in out.splitlines()[0]
    assert re.search(
        r"^  could take        .* by .*; the quickest that is\s+known is what NCCL runs$", out, re.MULTILINE
    )
    assert "\nNCCL takes\n" in out
    assert "\nwhy: --why" not in out


RELAYS = ("--relays", "idle", "--relays-reduce")


@pytest.mark.parametrize(
    ("machine", "members", "carried"),
    [
        ("dgx1-v100", "0,1", "NCCL loads its chains (--format nccl-graph-set)"),
        ("dgx1-v100", "0-3", "blinksim run executes it"),
        ("mi355x", "0,1", "nothing loads it yet"),
    ],
)
def test_it_carries_what_it_offers(
    capsys: pytest.CaptureFixture[str], machine: str, members: str, carried: str
) -> None:
    """Idle GPUs are offered with what runs a schedule through them; asked with them it says the same."""
    offered, _ = ask(capsys, machine, "--members", members)
    taken, _ = ask(capsys, machine, "--members", members, *RELAYS)
    lines = [" ".join(text.split()) for text in (offered, taken)]
    assert all(carried in text for text in lines)
    assert "--relays idle --relays-reduce; " in lines[0]
    if "nccl-graph-set" in carried:
        assert "load blinkplus into NCCL" in taken
    else:
        assert "by packed through relays; " in taken


def test_the_chains_that_it_offers_can_be_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, _ = ask(capsys, "dgx1-v100", "--members", "0,1", *RELAYS)
    for line in out.splitlines():
        if line.startswith("    blinksim "):
            assert run(line.split()[1:]) == 0
    assert (tmp_path / "blinkplus" / "recipe.py").is_file()
    # The six disjoint ways between two GPUs of a DGX-1V.
    assert len(list((tmp_path / "blinkplus").glob("*.xml"))) >= 6
    ask(capsys, "dgx1-v100", "--members", "0,1", *RELAYS, "-o", "direct")
    assert sorted(path.name for path in Path("direct").iterdir()) == sorted(
        path.name for path in Path("blinkplus").iterdir()
    )
