"""The commands that answers end with: they are about the same question, and survive any file name."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "tests/data/nccl_tests/h200x8-allreduce.txt"
HOSTILE = ("a; touch pwned.json", "it's $(id).json", "-x.json", "a b.json")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def following(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The words of the next command, as a shell takes them apart."""
    assert run(list(arguments)) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: blinksim ")]
    return shlex.split(line.removeprefix("next: "))[1:]


@pytest.mark.slow
def test_a_schedule_for_a_size_is_simulated_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of steps, which no command has to be told: also the one that `run` proposes."""
    assert run(["synth", "ring:8@25GB/s", "broadcast", "--size", "64KiB", "-o", "few.json"]) == 0
    said = capsys.readouterr().out
    assert "simulate: message by message, links in the order of steps" in said
    promised = said.split(": ")[1].split(",")[0]
    assert run(["run", "few.json", "64KiB", "--executor", "numpy"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert run(shlex.split(last)[2:]) == 0
    assert f"takes {promised}:" in capsys.readouterr().out.splitlines()[0]


def test_the_gpus_of_a_place_are_named_by_ranges_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve nodes, as the tenth comes before the second in the order of the alphabet."""
    words = following(capsys, "place", "hgx-h100", "96", "--nodes", "12")
    members = words[words.index("--members") + 1]
    assert members.split(",") == [f"n{node}.gpu[0-7]" for node in range(12)]
    assert bs.load("hgx-h100", nodes=12).select(members).members == bs.load("hgx-h100", nodes=12).members


def test_what_reads_no_schedules_is_not_sent_to_advise(capsys: pytest.CaptureFixture[str]) -> None:
    """oneCCL loads nothing, NCCL does."""
    asked = ["allreduce", "--sizes", "1MiB"]
    assert following(capsys, "compare", "aurora", *asked) == ["project", "--why", "aurora", "allreduce", "1MiB"]
    assert following(capsys, "compare", "dgx1-v100", *asked) == ["advise", "dgx1-v100", "allreduce", "1MiB"]


@pytest.mark.parametrize(
    ("machines", "more", "equal"),
    [
        ("2xp5,1xgb200-nvl72", [], "9xp5,1xgb200-nvl72"),
        ("p5,aurora", ["--nodes", "4"], "6xp5,4xaurora"),
        ("2xp5,2xhgx-h100", [], "2xp5,2xhgx-h100"),
        ("p5,ring:4@25GB/s", [], "p5,ring:4@25GB/s"),
    ],
)
def test_the_next_comparison_is_of_as_many_gpus(
    machines: str, more: list[str], equal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A least common multiple of the GPUs of a node, and no fewer than before; as asked where they are as many."""
    asked = ["allreduce", *more, "--sizes", "1GiB"]
    assert following(capsys, "compare", machines, *asked)[:3] == ["compare", equal, "allreduce"]


def test_ranks_that_are_tiles_are_called_so_beside_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "p5,aurora", "allreduce", "--sizes", "1GiB", "--nodes", "2"]) == 0
    shown = capsys.readouterr().out
    assert "p5 (16 GPUs) is quickest" in shown
    assert " aurora   24 tiles " in shown
    assert "24 GPUs" not in shown
    assert run(["project", "aurora", "allreduce", "1MiB", "--members", "0-5"]) == 0
    assert re.search(
        r"scaled to published times of [0-9]+ tiles( at other sizes)? and 12 tiles", capsys.readouterr().out
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_file_names_are_quoted(capsys: pytest.CaptureFixture[str], name: str) -> None:
    name = name if name.endswith(".json") else f"{name}.json"
    words = following(capsys, "synth", "dgx1-v100", "allgather", "--algorithm", "ring", f"--output={name}")
    assert [Path(words[1]).name, words[0], len(words)] == [name, "verify", 2]
    assert run(words) == 0
    machine = name.replace(".json", ".yaml")
    words = following(capsys, "topo", "import", "dgx1-v100", f"--output={machine}")
    assert Path(words[1]).name == machine
    assert run(words) == 0


def test_schedules_without_a_machine_go_on_on_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "dgx1-v100-2-allreduce", "--format", "msccl-xml", "-o", "pair.xml"]) == 0
    capsys.readouterr()
    where = ["--machine", "dgx1-v100", "--members", "0,3"]
    words = following(capsys, "run", "pair.xml", "1MiB", *where)
    assert words == ["simulate", "pair.xml", "1MiB", *where]
    words = following(capsys, *words, "--edit", "degrade gpu0-gpu3 lanes=1")
    assert {*words} == {"verify", "pair.xml", *where, "--edit", "degrade gpu0-gpu3 lanes=1"}
    assert run(words) == 0


@pytest.mark.parametrize("name", ["it's.json", 'a"b.json'])
def test_the_python_of_an_export_can_be_typed(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run(["export", "dgx1-v100-2-allreduce", "--format", "mscclpp-json", "-o", name]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "ExecutionPlan(" in line]
    assert eval(line.split("ExecutionPlan(")[1].split(", rank)")[0], {}) == name


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("project aurora allreduce 2GB --nodes 4 --ranks-per-node 12 --model aurora-projection --what-if",
         ["aurora", "--nodes", "4", "--ranks-per-node", "12", "--model", "aurora-projection"]),
        pytest.param(
            "project dgx1-v100 allreduce 1GiB --model simulate --algorithm ring --edit 'without gpu[0-1]'",
            ["dgx1-v100", "--model", "simulate", "--edit", "without gpu[0-1]"],
            marks=pytest.mark.slow,
        ),
        ("project aurora allreduce 2GB --nodes 4 --model projection", ["--nodes", "4", "--model", "projection"]),
        pytest.param(
            "project switch:4 allreduce 64KiB --algorithm best",
            ["synth", "switch:4", "--size", "64KiB"],
            marks=pytest.mark.slow,
        ),
        ("bound switch:3 allgather --size 64KiB", ["synth", "switch:3", "--size", "64KiB"]),
        ("compare dgx1-v100 allreduce --sizes 1KiB,64KiB --members 0-3", ["advise", "dgx1-v100", "64KiB"]),
        ("compare ring:4 allgather --sizes 1KiB,64KiB --algorithms ring", ["advise", "ring:4", "64KiB"]),
        ("project hgx-h100 allreduce --bytes 1GiB --bucket 25MiB", ["project", "hgx-h100", "--why"]),
        ("project dgx1-v100 allreduce 1MiB --algorithm nccl", ["compare", "dgx1-v100", "--plot"]),
        ("project dgx1-v100 allreduce 1MiB --members 0,3 --no-nvls --nccl-version 2.30.7",
         ["compare", "--nccl-version", "2.30.7", "--no-nvls"]),
        ("project dgx1-v100 allreduce 1MiB --members 0,3 --algorithm nccl --no-nvls", ["compare", "--no-nvls"]),
        ("project dgx1-v100 allreduce 1MiB --members 0,3 --model nccl-tuner --algorithm all --no-nvls",
         ["compare", "--model", "nccl-tuner", "--no-nvls"]),
        ("project dgx-a100 allreduce --bytes 1GiB --bucket 25MiB --no-nvls", ["project", "--no-nvls", "--why"]),
        ("compare dgx1-v100 allreduce --sizes 1KiB --members 0,3 --no-nvls", ["advise", "1KiB", "--no-nvls"]),
        ("diagnose --busbw 230 --size 1GiB --machine dgx-a100 --no-nvls", ["advise", "dgx-a100", "--no-nvls"]),
        ("traffic --ranks 6 --experts-per-rank 2 -o t.csv", ["bound", "switch:6", "alltoallv", "--traffic", "t.csv"]),
        ("simulate dgx1-v100-2-allreduce 64KiB", ["verify", "dgx1-v100-2-allreduce"]),
        ("run dgx1-v100-2-allreduce 64KiB", ["simulate", "dgx1-v100-2-allreduce", "64KiB"]),
    ],
)  # fmt: skip
def test_the_next_command_stays_in_the_question(capsys: pytest.CaptureFixture[str], line: str, kept: list[str]) -> None:
    words = following(capsys, *shlex.split(line))
    assert set(kept) <= set(words)
    for word, value in itertools.pairwise(kept):
        if word.startswith("--"):
            assert words[words.index(word) + 1] == value
    assert run(words) == 0


def test_the_next_commands_end_and_name_a_picture_for_each_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """From project by way of compare to what to load, and from there to a measurement, not back."""
    pictures = set()
    for machine in ("dgx1-v100", "switch:4@50GB/s", "dgx1-v100 --nodes 2"):
        words = following(capsys, "project", *machine.split()[:1], "allreduce", "1MiB", *machine.split()[1:])
        assert words[0] == "compare"
        pictures.add(words[words.index("--plot") + 1])
    assert pictures == {"dgx1-v100-allreduce.png", "switch-4-50GB-s-allreduce.png", "dgx1-v100-x2-allreduce.png"}
    words = following(capsys, "compare", "dgx1-v100", "allreduce", "--sizes", "64KiB", "--members", "0,3")
    assert words[0] == "advise"
    assert run(words) == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("next: blinksim"))
    assert words == ["expect", "dgx1-v100", "--members", "0,3", "--collective", "allreduce"]
    assert run(words) == 0
    assert "next: blinksim expect dgx1-v100 --members 0,3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("synth dgx1-v100 allgather --algorithm ring -o s.json", "verified  every rank ends"),
        (f"calibrate {LOG} --machine hgx-h200 -o r.yaml", "median error"),
        ("advise dgx1-v100 --edit 'without gpu0-gpu3' -o g.xml", "load chains into NCCL"),
        ("simulate dgx1-v100-2-allreduce 1MiB --trace t.json", "what the time consists of"),
    ],
)
def test_an_answer_is_shown_where_its_file_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, shown: str
) -> None:
    """The disk fills up after the check of the place."""

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    assert run(shlex.split(line)) == 2
    captured = capsys.readouterr()
    assert shown in captured.out
    assert "written " not in captured.out
    assert captured.err.count("\n") == 1
    assert "No space left on device" in captured.err


def test_a_folder_that_takes_no_files_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
    assert run(["synth", "dgx1-v100", "allgather", "-o", str(tmp_path / "s.json")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "takes no new files" in captured.err


# Machines on which the work itself would take minutes.
@pytest.mark.parametrize(
    "line",
    [
        "synth mesh:300x300@25GB/s allgather -o nowhere/x.json",
        "synth mesh:300x300@25GB/s allgather --plot nowhere/x.png",
        "compare mesh:300x300@25GB/s allreduce --plot nowhere/x.png",
        "sweep mesh:300x300@25GB/s allreduce -o nowhere/x.csv",
        "sweep mesh:300x300@25GB/s allreduce --plot nowhere/x.png",
        "topo show mesh:300x300@25GB/s --bottleneck allgather --plot nowhere/x.png",
        "topo import mesh:300x300@25GB/s -o nowhere/x.yaml",
        "topo export mesh:300x300@25GB/s --format nccl-topo -o nowhere/x.xml",
        "advise mesh:300x300@25GB/s -o nowhere/x.xml",
        f"calibrate {LOG} --machine mesh:300x300@25GB/s -o nowhere/x.yaml",
        "export dgx1-v100-2-allreduce --format nccl-graph -o nowhere/x.xml",
        "simulate dgx1-v100-2-allreduce 1GiB --trace nowhere/x.json",
        "simulate dgx1-v100-2-allreduce 1GiB --plot nowhere/x.png",
    ],
)
def test_where_an_answer_goes_is_checked_before_the_work(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert run(shlex.split(line)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "there is no folder" in captured.err


@pytest.mark.parametrize(("machine", "then"), [("dgx1-v100", "synth"), ("hgx-h100 --nodes 2", "bound")])
def test_the_floor_of_tokens_is_followed_by_what_attains_it(
    capsys: pytest.CaptureFixture[str], machine: str, then: str
) -> None:
    asked = f"{machine} dispatch --tokens 16 --experts 32".split()
    words = following(capsys, "project", *asked)
    assert words[0] == then
    assert run(words) == 0
    assert ("at most" in capsys.readouterr().out.splitlines()[0]) == (then == "bound")
