"""Several groups on the command line: the answer, the command that it names, and what is refused."""

from __future__ import annotations

import json

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
        ([*PAIRS, "--size", "1MiB"], "give --group, such as"),
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
