"""Several groups on the command line: the answer, the command that it names, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blinksim.cli.main import run
from blinksim.units import format_time

PAIRS = ["--group", "0,1", "--group", "2,3"]


def test_groups_with_the_command_that_has_relays(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bound", "full:8@50GB/s", *PAIRS]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 groups on full:8@50GB/s at once: each at most 50 GB/s algbw, which schedules attain\n")
    following = out.splitlines()[-1].removeprefix("next: blinksim ").split()
    assert run(following) == 0
    # Every GPU has seven links; of the four that the pairs share, each pair can have half: 7 - 2 / 2.
    assert "each at most 300 GB/s algbw, which schedules attain" in capsys.readouterr().out


def test_a_mesh_at_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    """Two quads of a full mesh: 150 of 6 x 50 GB/s a tree, two trees; 64 MiB at 100 GB/s."""
    assert run(["bound", "full:8@50GB/s", "--mesh", "2x4", "--axis", "1", "--size", "64MiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["least_time_s"] == pytest.approx(2**26 / 100e9)
    assert found["least_time_s"] <= found["simulated_s"] <= 1.2 * found["least_time_s"]
    assert (found["kind"], found["checked"], found["gap_exact"]) == ("exact", True, "0")
    assert [row["members"] for row in found["rows"]] == [[f"gpu{i}" for i in range(a, a + 4)] for a in (0, 4)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--mesh", "2x3"], "--mesh 2x3: the product of its sides must be 8, in numbers as in 2x4"),
        (["--mesh", "2x4", "--axis", "2"], "has axes 0 to 1"),
        (["--axis", "1"], "give --group, such as"),
        ([*PAIRS, "--mesh", "2x4"], "give --group, such as"),
        ([*PAIRS, "--losses"], "--losses is of a single collective"),
        ([*PAIRS, "--members", "0-3"], "leave --members and --ranks-per-node out"),
        (["--group", "0,9"], "the machine has GPUs 0 to 7"),
        ([], "Missing argument 'COLLECTIVE'"),
    ],
)
def test_what_is_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bound", "dgx1-v100", *words]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1


def test_project_says_the_same_in_few_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of bound, as rows too; of many groups one row for those that are alike."""
    words = ["hgx-h100", "allreduce", "--mesh", "2x8", "--nodes", "2"]
    answers = []
    for command in (["project", *words, "64MiB"], ["bound", *words, "--size", "64MiB"]):
        assert run([*command, "--json"]) == 0
        (tmp_path / "answer.json").write_text(capsys.readouterr().out)
        answers.append(json.loads((tmp_path / "answer.json").read_text()))
        assert run(["verify", str(tmp_path / "answer.json")]) == 0
        capsys.readouterr()
        assert run(command) == 0
        answers[-1]["text"] = capsys.readouterr().out.splitlines()
    few, many = (one.pop("text") for one in answers)
    assert [one.pop("command") for one in answers] == ["project groups", "bound groups"]
    assert answers[0] == answers[1]
    assert run(["synth", "full:8@50GB/s", "--mesh", "2x4", "--size", "1MiB"]) == 0
    assert "next: blinksim synth full:8@50GB/s --size 1MiB" in capsys.readouterr().out
    *said, library, following = few
    assert {*said} < {*many}
    assert len(few) <= 9
    # NCCL's own times, as of each group by itself.
    assert library.startswith("  NCCL takes, each group without the others: ")
    assert run(["project", *words[:2], "64MiB", *words[4:], "--members", "0-7", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["time_s"]
    assert f" {format_time(alone)}" in library
    assert sum("alike" in line for line in few) == 2
    assert len(answers[0]["rows"]) == 10
    assert following.startswith("next: blinksim synth hgx-h100 allreduce")
    monkeypatch.chdir(tmp_path)
    assert run(following.removeprefix("next: blinksim ").split()) == 0


def test_groups_that_name_no_size_have_that_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for words in (["allreduce", "1MiB", *PAIRS], [word + ":allreduce:1MiB" * (word[0] != "-") for word in PAIRS]):
        assert run(["project", "dgx1-v100", *words]) == 0
        lines.append(capsys.readouterr().out.splitlines()[:-1])
    assert lines[0] == lines[1]
    assert run(["project", "dgx1-v100", "allreduce", *PAIRS]) == 2
    assert "give SIZE, or one to each" in capsys.readouterr().err
    assert run(["project", "dgx1-v100", "allreduce", "1MiB", *PAIRS, "--algorithm", "ring"]) == 2
    assert "--algorithm is of a single collective" in capsys.readouterr().err


def test_each_group_has_its_time_alone_and_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Blink+'s four V100: a pair has four ways of 25 GB/s through the other two, which it loses in part to them."""
    words = ["bound", "dgx1-v100", "--edit", "without gpu[4-7]", "--relays", "others", "--relays-reduce"]
    groups = ["--group", "0,1:allreduce:1GiB", "--group", "2,3:allreduce:1GiB"]
    assert run([*words, *groups, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert first["alone_s"] == pytest.approx(2**30 / 100e9)
    assert second["alone_s"] == pytest.approx(2**30 / 125e9)
    assert first["at_once_s"] == second["at_once_s"] == pytest.approx(2**30 / 62.5e9)
    assert run([*words, *groups]) == 0
    assert "100, 10.74 ms" in capsys.readouterr().out


TENANTS = [
    "dgx1-v100",
    "--edit",
    "without gpu[4-7]",
    "--group",
    "0,1:allreduce:64MiB",
    "--group",
    "2,3:allgather:32MiB",
]
OTHERS = ["--relays", "others", "--relays-reduce"]


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The schedules of two tenants that forward for each other, written by the command that bound names."""
    assert run(["bound", *TENANTS, *OTHERS]) == 0
    following = capsys.readouterr().out.splitlines()[-1]
    assert following.startswith(
        "next: blinksim synth dgx1-v100 --relays others --relays-reduce --edit 'without gpu[4-7]' "
    )
    assert following.endswith(" -o schedule.json")
    path = str(tmp_path / "groups.json")
    assert run(["synth", *TENANTS, *OTHERS, "-o", path]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-3:] == [
        "  verified right, each by itself and all at once",
        f"  written {path}",
        f"next: blinksim verify {path}",
    ]
    return path


def test_a_file_of_several_groups(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What `verify`, `simulate` and `run` say of it, on NumPy: sizes are those of both together."""
    assert run(["verify", file]) == 0
    assert (
        f"{file}: right: allreduce of gpu0 gpu1 beside allgather of gpu2 gpu3 on dgx1-v100, 4 ranks"
        in capsys.readouterr().out
    )
    assert run(["simulate", file, "96MiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"] == ["allreduce of gpu0 gpu1", "allgather of gpu2 gpu3"]
    assert found["busbw_GBps"] is None
    assert run(["bound", *TENANTS, *OTHERS, "--json"]) == 0
    bound = json.loads(capsys.readouterr().out)
    assert bound["least_time_s"] <= found["time_s"] == bound["simulated_s"]
    assert run(["simulate", file, "96MiB"]) == 0
    assert (
        "allreduce of gpu0 gpu1 beside allgather of gpu2 gpu3, 96 MiB in all, on dgx1-v100 takes"
        in capsys.readouterr().out
    )
    for more in (
        [],
        ["--dtype", "int32", "--op", "prod"],
        ["--lane-blocks", "1"],
        ["--protocol", "ll128", "--seed", "3"],
    ):
        assert run(["run", file, "96KiB", "--executor", "numpy", *more]) == 0
        assert (
            "allreduce of gpu0 gpu1 beside allgather of gpu2 gpu3, 96 KiB in all, on 4 ranks, numpy, "
            in capsys.readouterr().out
        )
    assert run(["run", file, "96KiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == ["allreduce of gpu0 gpu1", "allgather of gpu2 gpu3"]


@pytest.mark.parametrize("group", [0, 1])
def test_run_checks_the_data_of_each_group(file: str, group: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a send that only one of them needs, in the file: wrong, and `verify` says whose it is."""
    document = json.loads(Path(file).read_text())
    ends = np.cumsum(document["share_num"]) * 3 <= document["share_den"] * 2
    send = [number for number, chunk in enumerate(document["chunk"]) if bool(ends[chunk]) == (group == 0)][-1]
    for key in ("chunk", "src", "dst", "op", "step", "route", "channel"):
        del document[key][send]
    Path(file).write_text(json.dumps(document))
    assert run(["run", file, "96KiB", "--executor", "numpy"]) == 1
    assert "elements differ" in capsys.readouterr().out
    assert run(["verify", file]) == 1
    reasons = capsys.readouterr().out.splitlines()[1:]
    named = ["allreduce of gpu0 gpu1: ", "allgather of gpu2 gpu3: "]
    assert any(named[group] in reason for reason in reasons)
    assert not any(named[1 - group] in reason for reason in reasons)


def test_what_a_file_of_groups_is_not_for(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    does = "allreduce of gpu0 gpu1 beside allgather of gpu2 gpu3"
    cases = [
        (["run", file, "1MiB", "--in-place"], 2, "groups run out of place"),
        (["run", file, "4"], 2, "4 bytes hold no element of every group"),
        (["export", file, "--format", "msccl-xml"], 3, f"msccl-xml holds one collective, not {does}"),
        (["compare", "dgx1-v100", "allreduce", "--edit", "without gpu[4-7]", "--algorithms", file], 2, f"is of {does}"),
        (["verify", file, "--edit", "without gpu2-gpu3"], 1, ""),
        (["synth", *TENANTS, "--algorithm", "ring"], 2, "--algorithm is of a single collective"),
        (["synth", *TENANTS, "-o", file], 2, "exists"),
        (["synth", *TENANTS, "-o", "groups.xml"], 2, "a schedule file ends in .json or .json.gz"),
    ]
    for words, status, reason in cases:
        assert run(words) == status, words
        error = capsys.readouterr().err
        assert reason in error
        assert len(error.splitlines()) <= 1
    assert run(["verify", file, "--in-place"]) == 1
    assert "groups do not run in place" in capsys.readouterr().out


def test_synth_says_of_groups_what_bound_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for command in ("bound", "synth"):
        assert run([command, "full:8@50GB/s", "--mesh", "2x4", "--size", "1MiB", "--json"]) == 0
        (tmp_path / "answer.json").write_text(capsys.readouterr().out)
        assert run(["verify", str(tmp_path / "answer.json")]) == 0
        capsys.readouterr()
        answers.append(json.loads((tmp_path / "answer.json").read_text()))
        assert answers[-1].pop("command") == f"{command} groups"
    assert answers[1].pop("output") is None
    assert answers[0] == answers[1]
