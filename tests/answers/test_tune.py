"""Tuner files from few measured times, judged by every choice at every size as it was measured on H200."""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest
from source_tree import ROOT

import blinksim as bs
from blinksim.answers.tune import (
    COLUMNS,
    ChoiceTime,
    ChoiceTimes,
    TimedJob,
    Tuning,
    model_of,
    read_times,
    search,
    times_text,
    tune_here,
)
from blinksim.cli.main import run
from blinksim.errors import FileError, InputError, MissingError
from blinksim.gpu.execution import run as runs
from blinksim.gpu.execution.run import ChoiceClock
from blinksim.machines import load
from blinksim.nccl.tuner import tuner_files
from blinksim.nccl.tuner.tuner import COLLECTIVES, predict
from blinksim.nccl.tuner.tuner_files import MOST_BYTES, Choice

RESULTS = ROOT / "validate" / "results"
TIMES = RESULTS / "nccl-tuning-4gpu.csv"
Space = dict[tuple[str, int, Choice], float]


def space_of(path: Path, least_channels: int) -> Space:
    """Seconds of every choice that was timed with so many channels at least."""
    with path.open(newline="") as file:
        return {
            (row["collective"], int(row["size_bytes"]), (row["algorithm"], row["protocol"], int(row["channels"]))):
            float(row["time_us"]) * 1e-6
            for row in csv.DictReader(file)
            if int(row["least_channels"]) == least_channels
        }  # fmt: skip


@pytest.fixture(scope="module")
def four() -> Space:
    return space_of(RESULTS / "nccl-space-4gpu.csv", 32)


@pytest.fixture(scope="module")
def eight() -> Space:
    """Of eight H200. With 32 channels at least, NCCL takes all of them from 1 MiB on."""
    space = space_of(ROOT / "tests" / "golden" / "nccl_space_h200x8.csv", 0)
    for (collective, size, choice), _ in list(space.items()):
        if choice[0] == "ring" and choice[2] == -1 and size >= 2**20:
            space[collective, size, choice] = space[collective, size, (*choice[:2], 32)]
    return space


def losses(space: Space, found: Tuning) -> list[float]:
    """How much longer each cell takes by the rules than by the best of all choices."""
    lost = []
    for cell in found.cells:
        rules = [r for r in found.rules if r.collective == cell.collective and r.least <= cell.size <= r.most]
        taken = space[cell.collective, cell.size, rules[0].choice if rules else cell.before]
        best = min(
            time for (name, size, (algorithm, *_)), time in space.items()
            if (name, size) == (cell.collective, cell.size) and algorithm != "stock"
        )  # fmt: skip
        lost.append(taken / best - 1)
    return lost


def replayed(space: Space, ranks: int, most: int) -> tuple[Tuning, int]:
    asked = []

    def measure(collective: str, size: int, choice: Choice) -> float:
        asked.append((collective, size, choice))
        return space[collective, size, choice]

    found = tune_here("hgx-h200", measure, members=range(ranks), nvls=False, least_channels=32, most=most)
    assert len(set(asked)) == len(asked) == len(found.measured)
    return found, len(asked)


def test_forty_times_come_near_the_best_of_all_choices(four: Space) -> None:
    """Four H200, five collectives, 21 sizes: NCCL's own choices lose 48 % at worst."""
    found, asked = replayed(four, 4, 40)
    lost = losses(four, found)
    assert asked <= 40
    assert mean(lost) < 0.01
    assert max(lost) < 0.10
    own = losses(four, Tuning("", "", 1, 4, (), found.cells, ()))
    assert max(own) > 0.35


def test_the_same_on_eight_gpus(eight: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three collectives were measured, from 4 KiB on, in processes that differ by up to 10 % at small sizes."""
    monkeypatch.setattr("blinksim.answers.tune.COLLECTIVES", ("allgather", "reducescatter", "allreduce"))
    monkeypatch.setattr("blinksim.answers.tune.SIZES", tuple(2**power for power in range(12, 31)))
    for most in (24, 40):
        found, asked = replayed(eight, 8, most)
        lost = losses(eight, found)
        assert asked <= most
        assert mean(lost) < 0.01
        assert max(lost) < 0.11
    # Beside NCCL as it comes, in processes of its own: where there is no rule, both are the same but for those.
    gains, noise = list[float](), list[float]()
    for cell in found.cells:
        rules = [r for r in found.rules if r.collective == cell.collective and r.least <= cell.size <= r.most]
        taken = eight[cell.collective, cell.size, rules[0].choice if rules else cell.before]
        stock = eight[cell.collective, cell.size, ("stock", "", -1)]
        (gains if rules else noise).append(taken / stock - 1)
    assert max(gains) < 0.01
    assert mean(gains + noise) < -0.05
    assert max(noise) < 0.023


def test_nccl_was_nowhere_slower_with_the_file() -> None:
    """Measured in turn on four H200, with the file that `blinksim tune --gpus` wrote there."""
    with (RESULTS / "nccl-tuned-4gpu.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ratios = [float(row["tuned_us"]) / float(row["stock_us"]) for row in rows]
    assert len(ratios) == 105
    assert max(ratios) < 1.02
    assert mean(ratios) < 0.97


def test_fewer_times_still_help(four: Space) -> None:
    found, asked = replayed(four, 4, 15)
    assert asked <= 15
    assert mean(losses(four, found)) < 0.03


def test_a_file_gives_what_the_run_gave() -> None:
    found = bs.tune("hgx-h200", TIMES, members="0-3", nvls=False)
    assert (found.nodes, found.ranks, found.least_channels) == (1, 4, 32)
    assert len(found.rows()) == 105
    assert {row["collective"] for row in found.rows()} == set(COLLECTIVES)
    for rule, words in found.changes():
        assert words.startswith(f"{rule.algorithm} {rule.protocol}"), rule
        assert " instead of ring " in words
    text = found.export().files[""]
    assert "# needs NCCL_MIN_NCHANNELS=32\n" in text
    assert sum(not line.startswith("#") for line in text.splitlines()) == len(found.rules)
    # What NCCL takes anyway has no rule.
    for cell in found.cells:
        inside = [r for r in found.rules if r.collective == cell.collective and r.least <= cell.size <= r.most]
        assert (cell.choice == cell.before) == (not inside)


def test_a_choice_without_measurement_needs_more_of_a_gain() -> None:
    prediction = predict(load("hgx-h200"), load("hgx-h200").members[:4], multicast=False)
    times = ChoiceTimes(model_of(prediction, None))
    ring = ("ring", "ll", -1)
    expected = times.model("allreduce", "ring", "ll", 2**20)
    assert expected is not None
    assert times.time("allreduce", ring, 2**20) == expected
    times.add([ChoiceTime("allreduce", 2**20, *ring, 2 * expected), ChoiceTime("allreduce", 2**22, *ring, 1.0)])
    assert times.time("allreduce", ring, 2**20) == pytest.approx(2 * expected)
    assert times.time("allreduce", ring, 2**22) == pytest.approx(1.0)
    low, high = (times.time("allreduce", ring, 2**power) for power in (10, 21))
    assert low == pytest.approx(2 * (times.model("allreduce", "ring", "ll", 2**10) or 0))
    assert high is not None
    assert 2 * expected < high < 1.0
    # Other collectives borrow it; other numbers of channels do not.
    assert times.time("allgather", ring, 2**20) == pytest.approx(
        2 * (times.model("allgather", "ring", "ll", 2**20) or 0)
    )
    assert times.time("allreduce", ("ring", "ll", 8), 2**20) is None
    assert times.distance("allreduce", ring, 2**24) == 2
    assert times.distance("allgather", ring, 2**24) == float("inf")


def test_a_search_stops_when_nothing_is_left_to_ask() -> None:
    """A model that is right leaves little to measure, and the budget is not spent."""
    prediction = predict(load("hgx-h200"), multicast=False)
    times = ChoiceTimes(model_of(prediction, load("hgx-h200").nccl_rates))
    model = times.model
    found = search(times, lambda name, size, choice: model(name, *choice[:2], size) or 0, 1000)
    assert len(found) < 80


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["collective,size"], ": holds no measured time: a line names the columns, collective,size_bytes,"),
        (["# of a machine", ",".join(COLUMNS)], ":1: say '# NCCL 2.28.9 on MACHINE (GPUS): 4 ranks on 1 node'"),
        (["# NCCL 2.28.9 on x (sm 90): 4 ranks on 1 node", "collective", "allreduce"], ":3: is no measured time: "),
        (["# NCCL 2.28.9 on x (): 4 ranks on 2 nodes", ",".join(COLUMNS), "", "a"], "(1 cells, and the head has 7)"),
        ([",".join(COLUMNS), "allreduce,1024,ring,ll,-1,32"], "(6 cells, and the head has 7)"),
        (
            [",".join(COLUMNS), "allreduce,1k,ring,ll,-1,32,9"],
            ":2: is no measured time: allreduce,1k,ring,",
        ),
        ([",".join(COLUMNS), "allreduce,1_024,ring,ll,-1,32,9"], "(numbers are of the digits 0 to 9"),
        ([",".join(COLUMNS), "allreduce,\u0663,ring,ll,-1,32,9"], "(numbers are of the digits 0 to 9"),
        ([",".join(COLUMNS), "allreduce,1024,ring,ll,-1,-1,9"], ":2: "),
        ([",".join(COLUMNS), "allreduce,1024,ring,ll,-1,32,1e308"], ":2: "),
        (
            [",".join(COLUMNS), "allreduce,1024,ring,ll\r,-1,32,9"],
            ":2: is no measured time: allreduce,1024,ring,ll (",
        ),
        ([",".join(COLUMNS), "x" * 200_000], ":2: "),
        (["# NCCL 2.28.9 on a" + " (b): 4 ranks on 1 node" * 9000 + "x"], ":1: say '# NCCL 2.28.9 on MACHINE"),
        ([",".join(COLUMNS), "allreduce,1024,ring,ll,0,32,9"], "(channels=0: give 1 to 64, or -1 for NCCL's own"),
        ([",".join(COLUMNS), "allreduce,1024,ring,ll,-2,32,9"], "(channels=-2: give 1 to"),
        (
            [",".join(COLUMNS), "allreduce,1024,ring,ll,-1,32,-9"],
            "(a measured time of -9e-06 s",
        ),
        ([",".join(COLUMNS), "allreduce,1024,ring,ll,-1,32,0"], "(a measured time of 0 s for allreduce"),
        ([",".join(COLUMNS), "allreduce,8,ring,ll,-1,32,0.0009"], "(a measured time of 9e-10 s for allreduce: give"),
        ([",".join(COLUMNS), "allreduce,8,ring,ll,-1,32,99e9"], "(a measured time of 99000 s for allreduce: give"),
        ([",".join(COLUMNS), "sendrecv,8,ring,ll,-1,32,9"], "(unknown collective of NCCL's tuner 'sendrecv'"),
        ([",".join(COLUMNS), "allreduce,8,rings,ll,-1,32,9"], "(unknown algorithm of NCCL 'rings'"),
        ([",".join(COLUMNS), "allreduce,8,ring,l1,-1,32,9"], "(unknown protocol of NCCL 'l1'"),
        ([",".join(COLUMNS), "allgather,8,tree,ll,-1,32,9"], "(NCCL does not run allgather by tree with ll"),
        ([",".join(COLUMNS), "allreduce,8,ring,ll,-1,65,9"], "(least_channels=65: give 0 to 64, and one number"),
        ([",".join(COLUMNS), *["allreduce,8,ring,ll,-1,32,9"] * 2], "(a second time of the same choice"),
        ([",".join(COLUMNS), "allreduce,0,ring,ll,-1,32,9"], "(a measured time of allreduce for 0 bytes"),
        ([",".join(COLUMNS), "allreduce,8,ring,ll,-1,32,9", "allreduce,8,ring,ll,8,0,9"], "(least_channels=0: "),
    ],
)
def test_a_wrong_file_of_times_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    place = tmp_path / "times.csv"
    place.write_text("\n".join(lines) + "\n")
    with pytest.raises(FileError) as caught:
        read_times(place)
    assert message in str(caught.value)
    if message.startswith("("):
        # A last row whose figures are wrong.
        assert f"times.csv:{len(lines)}: is no measured time: {lines[-1]} (" in str(caught.value)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([], "no measured times"),
        ([ChoiceTime("allreduce", 1024, "collnet_chain", "simple", -1, 1e-5)], "NCCL cannot run that here"),
        ([ChoiceTime("allreduce", 1024, "nvls", "simple", -1, 1e-5)], "NCCL cannot run that here; name the machine"),
    ],
)
def test_times_that_nccl_cannot_have_are_refused(times: list[ChoiceTime], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bs.tune("hgx-h200", times, nvls=False)


def test_times_survive_a_file(tmp_path: Path) -> None:
    times, least, job = read_times(TIMES)
    assert (len(times), least) == (len(TIMES.read_text().splitlines()) - 2, 32)
    assert job == TimedJob("2.28.9", "hgx-h200", "sm 90", 4, 1)
    place = tmp_path / "again.csv"
    place.write_text(times_text(times, least, job))
    assert read_times(place) == (times, least, job)
    place.write_text(times_text(times[:1], None, replace(job, nodes=2, gpus="")))
    assert read_times(place) == (times[:1], None, replace(job, nodes=2, gpus=""))


@pytest.mark.parametrize(
    ("machine", "job", "message"),
    [
        ("hgx-h200", {}, "4 ranks on 1 node, and 8 ranks on 1 need times of their own: members= and nodes= say"),
        ("hgx-h200", {"nodes": 2}, "4 ranks on 1 node, and 16 ranks on 2 need times of their own"),
        ("dgx-a100", {"members": "0-3"}, r"hgx-h200 \(sm 90\): .*, and the GPUs of dgx-a100 are sm 80: measure there"),
    ],
)
def test_times_of_another_job_are_refused(machine: str, job: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bs.tune(machine, TIMES, nvls=False, **job)


def test_times_of_an_unknown_job_are_taken_with_a_caution(tmp_path: Path) -> None:
    """And those of a machine of another name with the same GPUs."""
    known = bs.tune("hgx-h200", TIMES, members="0-3", nvls=False)
    assert known.caution == known.export().caution == ""
    place = tmp_path / "times.csv"
    place.write_text(TIMES.read_text().partition("\n")[2])
    unknown = bs.tune("hgx-h200", place, members="0-3", nvls=False)
    assert unknown.rules == known.rules
    assert "does not say of which machine and how many ranks its times are" in unknown.caution
    other = bs.tune("hgx-h100", TIMES, members="0-3", nvls=False)
    assert "has times of NCCL 2.28.9 on hgx-h200 (sm 90): 4 ranks on 1 node, which are taken for those" in other.caution
    assert other.export().caution == other.caution


def test_gpus_of_another_kind_are_not_measured_for_a_machine() -> None:
    with pytest.raises(InputError, match="the GPUs here are sm 80, and those of hgx-h200 sm 90"):
        tune_here("hgx-h200", lambda *asked: 1.0, members="0-3", gpus="sm 80")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_page_names_the_line_of_a_rule() -> None:
    rules = bs.tune("hgx-h200", TIMES, members="0-3", nvls=False).export().files[""].splitlines()
    lines = re.findall(
        r"tuner\.csv:(\d+) in force: allgather of 4194304 bytes by ring, ll128", (ROOT / "docs" / "nccl.md").read_text()
    )
    assert len(lines) == 1
    row = rules[int(lines[0]) - 1].split(",")
    assert (row[0], row[3:5]) == ("allgather", ["ring", "ll128"])
    assert int(row[1]) <= 4194304 <= int(row[2])


def test_the_command_writes_rules_and_says_what_to_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "tuner.csv"
    arguments = ["tune", "hgx-h200", str(TIMES), "--members", "0-3", "--no-nvls", "-o", str(target)]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert f"export NCCL_TUNER_CONFIG_FILE={target}" in out
    assert "export NCCL_MIN_NCHANNELS=32" in out
    written = target.read_text()
    assert run(arguments) == 2
    assert target.read_text() == written
    assert run([*arguments, "--force", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["rules"]) == sum(not line.startswith("#") for line in written.splitlines())
    assert answer["environment"]["NCCL_TUNER_CONFIG_FILE"] == str(target)


def test_without_a_file_the_command_says_which_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command is whole, and runs."""
    monkeypatch.chdir(tmp_path)
    assert run(["tune", "hgx-h200", str(TIMES), "--members", "0-3", "--no-nvls"]) == 0
    _, told, command = capsys.readouterr().out.rpartition("next: blinksim ")
    assert told
    assert command == f"tune hgx-h200 {TIMES} --members 0-3 --no-nvls -o tuner.csv\n"
    assert run(command.split()) == 0
    assert (tmp_path / "tuner.csv").read_text().startswith("#")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "name a machine and its measured times"),
        (["hgx-h200"], 2, "give measured times (TIMES) or --gpus"),
        (["hgx-h200", str(TIMES), "--gpus"], 2, "one of the two"),
        (["hgx-h200", "--gpus", "4", "--members", "0-3"], 2, "leave --nodes and --members out"),
        (["hgx-h200", "--gpus"], 4, "CuPy"),
        (["hgx-h200", "nowhere.csv"], 2, "no such file of measured times"),
    ],
)
def test_wrong_uses_of_the_command(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", *arguments]) == code
    assert message in capsys.readouterr().err


# --- on GPUs, without a GPU -------------------------------------------------------------------------------------------


class FakeNccl:
    """Notes the rules in force when it is made."""

    version = "2.28.9"
    made: list[str] = []  # noqa: RUF012

    def __init__(self, gpus: range) -> None:
        self.gpus, self.streams = list(gpus), [None] * len(gpus)
        FakeNccl.made.append(Path(os.environ["NCCL_TUNER_CONFIG_FILE"]).read_text())

    def launch(self, sent: list[Any], got: list[Any], count: int, kind: Any, op: str, collective: str) -> None:
        assert (op, kind.name) == ("sum", "float32")
        assert [len(one) for one in (*sent, *got)] == [count] * 8

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


class FakeWatch:
    def __init__(self, gpus: list[int], streams: list[object]) -> None:
        self.gpus = gpus

    def time(self, launch: Any, finish: Any, iterations: int) -> list[float]:
        launch()
        return [1e-3] * (iterations - 1) + [1.0]


class FakeDevice:
    compute_capability = "90"

    def __init__(self, gpu: int) -> None:
        pass

    def __enter__(self) -> FakeDevice:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


def test_the_clock_puts_each_choice_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(getDeviceCount=lambda: 4)
    fake = SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime, Device=FakeDevice),
        full=lambda count, value, dtype: range(count),
        zeros=lambda count, dtype: range(count),
        float32="float32",
    )
    monkeypatch.setattr(runs, "require_cupy", lambda: fake)
    monkeypatch.setattr(runs, "Nccl", FakeNccl)
    monkeypatch.setattr(runs, "Stopwatch", FakeWatch)
    monkeypatch.setattr(tuner_files, "build", lambda target: target)
    for name in ("NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE", "NCCL_MIN_NCHANNELS", "NCCL_NVLS_ENABLE"):
        monkeypatch.setenv(name, "")
    FakeNccl.made.clear()
    clock = ChoiceClock(least_channels=32, nvls=False)
    assert (clock.version, clock.kind) == ("2.28.9", "sm 90")
    for size in (2**20, 2**28):
        assert clock.measure("allgather", size, ("ring", "ll", 8)) == 1e-3
    assert os.environ["NCCL_MIN_NCHANNELS"] == "32"
    assert os.environ["NCCL_NVLS_ENABLE"] == "0"
    plain, forced = ([line for line in text.splitlines() if not line.startswith("#")] for text in FakeNccl.made)
    assert plain == []
    assert f"allgather,0,{MOST_BYTES},ring,ll,8,-1,-1,-1,-1" in forced
    assert len(forced) == 5
    folder = clock.rules.parent
    clock.close()
    assert not folder.exists()
    with pytest.raises(MissingError, match="5 GPUs are wanted, and 4 are here"):
        ChoiceClock(5)
