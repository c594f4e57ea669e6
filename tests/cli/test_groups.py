"""Several groups on the command line: the answer, the command that it names, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blinksim.cli.main import run

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
        (["--mesh", "2x3"], "--mesh 2x3: the product of its sides must be 8, as in 2x4"),
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


def test_project_says_the_same_in_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert {*few[:-1]} < {*many}
    assert len(few) <= 9
    assert sum("alike" in line for line in few) == 2
    assert len(answers[0]["rows"]) == 10
    assert few[-1].startswith("next: blinksim project hgx-h100 allreduce")
    assert run(few[-1].removeprefix("next: blinksim ").split()) == 0


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
