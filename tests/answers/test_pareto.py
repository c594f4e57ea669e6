"""The front of latency and bandwidth: no point is bettered, each is right, together they are the quickest."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.answers import pareto as study
from blinksim.cli.main import run
from blinksim.schedule.candidate import Candidate
from blinksim.timing.alpha_beta import cost
from blinksim.units import format_rate, format_time

SIZES = [2**power for power in range(10, 31, 2)]


DGX1 = [pytest.param(("dgx1-v100", name), marks=pytest.mark.slow) for name in ("allreduce", "broadcast")]


@pytest.fixture(params=[*DGX1, ("ring:4@25GB/s", "alltoall")], scope="module")
def question(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="module")
def found(question: tuple[str, str]) -> tuple[bs.Pareto, dict[str, Candidate]]:
    """The front, and all candidates that it was chosen from."""
    candidates: dict[str, Candidate] = {}
    front_of = study._front

    def keeping(given: dict[str, Candidate], sizes: list[int]) -> tuple[list[str], list[str]]:
        candidates.update(given)
        return front_of(given, sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "_front", keeping)
        return bs.pareto(*question, seconds=1, sizes=SIZES), candidates


@pytest.fixture
def front(found: tuple[bs.Pareto, dict[str, Candidate]]) -> bs.Pareto:
    return found[0]


@pytest.mark.slow
def test_every_point_is_right_and_takes_the_time_that_it_says(front: bs.Pareto) -> None:
    for point in front.points:
        assert bs.verify(point.schedule).ok
        for size in SIZES:
            time = cost(point.schedule, size).time_s
            assert time == pytest.approx(point.time_s(size))
            line = point.latency_s + size / point.bandwidth
            if point.schedule.form == "steps":
                # Whole messages take what the line says, or more where steps on other links overlap in pieces.
                whole = cost(point.schedule, size, whole_messages=True).time_s
                assert time <= whole * (1 + 1e-9)
                assert whole >= line * (1 - 1e-9)
            else:
                # Pieces cost more than the line, which both ends reach.
                assert time >= line * (1 - 1e-9)
        assert bs.simulate(point.schedule, 2**20, pieces=1).time_s > 0
        assert point.time_s(2**44) == pytest.approx(2**44 / point.bandwidth, rel=1e-2)


def test_the_envelope_is_the_quickest_of_all_candidates(found: tuple[bs.Pareto, dict[str, Candidate]]) -> None:
    front, candidates = found
    assert len(candidates) == len(front.points) + len(front.dominated)
    for size in SIZES:
        least = min(cost(one.written, size).time_s for one in candidates.values())
        assert min(point.time_s(size) for point in front.points) == pytest.approx(least)
        [leader] = at_size(front, size)
        assert leader.time_s(size) == pytest.approx(least)


def at_size(front: bs.Pareto, size: int) -> list[bs.Tradeoff]:
    """The points that are said to be the quickest at a size."""
    ranges = [(point, start, end) for point in front.points for start, end in point.quickest]
    return [point for point, start, end in ranges if start <= size and (end is None or size < end)]


Times = dict[str, list[int]]


def timed(monkeypatch: pytest.MonkeyPatch, times: Times) -> dict[str, Candidate]:
    """Candidates that take these times, by name, at the sizes 0, 1, 2 ..."""

    @dataclass
    class Cost:
        time_s: float

    monkeypatch.setattr(study, "cost", lambda name, size: Cost(times[name][size]))
    return cast("dict[str, Candidate]", {name: name for name in times})


@given(st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_front_is_what_no_other_reaches_at_every_size(every: list[list[int]]) -> None:
    times = {str(number): row for number, row in enumerate(every)}
    with pytest.MonkeyPatch.context() as patch:
        kept, dominated = study._front(timed(patch, times), range(3))
    assert sorted([*kept, *dominated]) == sorted(times)

    def reaches(one: str, other: str) -> bool:
        return all(a <= b for a, b in zip(times[one], times[other], strict=True))

    for name in times:
        assert any(reaches(other, name) for other in kept)
        # Of equals one is kept.
        assert not any(reaches(other, name) for other in kept if other != name) or name in dominated


@given(st.lists(st.lists(st.integers(0, 3000), min_size=3, max_size=3), min_size=1, max_size=8))
def test_each_of_the_front_gains_on_every_other_and_nothing_gains_on_the_front(every: list[list[int]]) -> None:
    """Times within 0.3 % of each other, so that many differ by less than a gain of 0.1 %."""
    times = {str(number): [1_000_000 + more for more in row] for number, row in enumerate(every)}
    with pytest.MonkeyPatch.context() as patch:
        kept, dominated = study._front(timed(patch, times), range(3))
    assert kept
    assert sorted([*kept, *dominated]) == sorted(times)

    def gains(one: str, other: str) -> bool:
        return any(1000 * a < 999 * b for a, b in zip(times[one], times[other], strict=True))

    assert all(gains(one, other) for one in kept for other in kept if one != other)
    # What is left out may have been reached by one that is left out itself, so by two gains at most.
    for name in dominated:
        assert any(not gains(name, other) for other in times if other != name)


@pytest.mark.parametrize("machine", ["torus:2x3@25GB/s", "ring:6"])
def test_every_row_gains_on_every_other_row_somewhere(machine: str) -> None:
    found = bs.pareto(machine, "allgather", seconds=1)
    sizes = (1, *(2**power for power in range(10, 31)), 2**40)
    for point in found.points:
        for other in found.points:
            assert other is point or any(point.time_s(size) < 0.999 * other.time_s(size) for size in sizes)
    alone = replace(found, points=found.points[:1])
    ends = f"{format_time(alone.points[0].latency_s)} and {format_rate(alone.points[0].bandwidth)} at once"
    assert alone.sentence() == f"allgather on {machine}: 1 schedule, {ends} ({alone.points[0].name})"


def test_every_point_leads_at_some_size() -> None:
    """Few rounds for 64 KiB had the latency of those for 1 MiB, less bandwidth, and were the quickest nowhere."""
    found = bs.pareto("mesh:2x3", "allreduce", seconds=1)
    for point in found.points:
        start, _ = point.quickest[0]
        assert min(other.time_s(start) for other in found.points) == pytest.approx(point.time_s(start), rel=1e-8)
    assert not {point.name for point in found.points}.intersection(found.dominated)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 6)), min_size=1, max_size=6))
def test_every_size_has_one_quickest_point(lines: list[tuple[int, int]]) -> None:
    times = {str(number): [first + size * slope for size in range(301)] for number, (first, slope) in enumerate(lines)}
    with pytest.MonkeyPatch.context() as patch:
        ranges = study.ranges(timed(patch, times), (1, 2, 4, 8, 16, 32, 64, 128, 300))
    for size in range(1, 301):
        found = [
            name
            for name, spans in ranges.items()
            for start, end in spans
            if start <= size and (end is None or size < end)
        ]
        assert len(found) == 1
        assert times[found[0]][size] == min(row[size] for row in times.values())


def test_a_point_may_lead_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Blink's trees on two triangles of GPUs: quickest at small and at large sizes, but not between."""
    found = bs.pareto("ring:4@25GB/s", "allgather", seconds=1, sizes=SIZES)
    times = {"twice": [9, 1, 2, 5, 5, 6], "between": [9, 2, 2, 3, 4, 7]}
    with monkeypatch.context() as patch:
        ranges = study.ranges(timed(patch, times), range(1, 6))
    assert ranges == {"twice": ((1, 3), (5, None)), "between": ((3, 5),)}
    points = [replace(found.points[0], quickest=spans) for spans in ranges.values()]
    lines = replace(found, points=tuple(points)).text().splitlines()
    assert lines[3].endswith("to 3 B, from 5 B")
    assert lines[4].endswith("from 3 B to 5 B")
    row = points[0].row()
    assert (row["quickest_from_bytes"], row["quickest_to_bytes"]) == (1, 3)
    assert json.loads(json.dumps(row["quickest_bytes"])) == [[1, 3], [5, None]]


@pytest.mark.slow
def test_what_is_bettered_in_latency_and_bandwidth_at_once_leads_between_them() -> None:
    """A schedule of few rounds for 4 KiB had the least latency of all, at a third of the bandwidth of another."""
    found = bs.pareto("dgx1-v100", "allgather", seconds=1)
    for point in found.points:
        for other in found.points:
            slower = other is not point and other.latency_s >= point.latency_s * (1 - 1e-9)
            if slower and other.bandwidth < point.bandwidth * (1 - 1e-6):
                assert any(other.time_s(size) < 0.999 * point.time_s(size) for size in SIZES)
                assert other.bandwidth > point.bandwidth / 1.2


@pytest.mark.slow
def test_sccl_s_points_of_a_dgx1_are_among_the_candidates() -> None:
    # Cai et al., PPoPP 2021, table 4: allgather with (chunks, steps, rounds) (1, 2, 2), (2, 2, 3), (6, 3, 7) …
    found = bs.pareto("dgx1-v100", "allgather", seconds=12)
    known = {*found.dominated, *(point.name for point in found.points)}
    assert {"few_steps of 1 chunk, 2 steps, 2 rounds", "few_steps of 2 chunks, 2 steps, 3 rounds"} <= known


@pytest.mark.slow
def test_a_given_schedule_may_join(tmp_path: Path) -> None:
    own = bs.synthesize("dgx1-v100", "broadcast", "blink").schedule
    bs.write(own, tmp_path / "own.json")
    found = bs.pareto("dgx1-v100", "broadcast", seconds=1, sizes=SIZES, more=[tmp_path / "own.json", own])
    known = {*found.dominated, *(point.name for point in found.points)}
    assert {str(tmp_path / "own.json"), "blink (given)"} <= known
    with pytest.raises(bs.InputError, match="not of allgather"):
        bs.pareto("dgx1-v100", "allgather", seconds=1, sizes=SIZES, more=[own])
    with pytest.raises(bs.InputError, match="give more than 0"):
        bs.pareto("dgx1-v100", "allgather", seconds=0)


@pytest.mark.slow
def test_every_point_is_written_verified_simulated_run_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "front"
    assert run(["synth", "dgx1-v100", "allgather", "--members", "0-3", "--pareto", "--time-limit", "2", "--json",
                "-o", str(folder)]) == 0  # fmt: skip
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) > 1
    for row in rows:
        file = row["file"]
        assert run(["verify", file]) == 0
        assert run(["simulate", file, "1MiB"]) == 0
        assert run(["run", file, "4096", "--check"]) == 0
        assert run(["export", file, "--format", "msccl-xml", "-o", file.replace(".json", ".xml")]) == 0


def test_points_are_written_with_their_bound_and_the_edits_of_their_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, edit = tmp_path / "front", "degrade gpu0-gpu1 bandwidth=10GB/s"
    words = ["ring:4@25GB/s", "allreduce", "--pareto", "--time-limit", "1", "--edit", edit]
    assert run(["synth", *words, "--json", "-o", str(folder)]) == 0
    for row in json.loads(capsys.readouterr().out)["rows"]:
        assert run(["verify", row["file"]]) == 0
        shown = capsys.readouterr().out
        # Six messages must cross all eight links, two of them slowed: (6 x 25 + 2 x 10) / 6.
        assert "\n  bound 85/3 GB/s" in shown
        assert f"\n  edited {edit}\n" in shown


@pytest.mark.slow
def test_a_front_that_is_stopped_is_written_as_far_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "front"
    command = [sys.executable, "-m", "blinksim", "synth", "dgx1-v100", "allgather", "--pareto", "--time-limit", "300"]
    with subprocess.Popen([*command, "-o", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        # A slow machine says before that it is still at work.
        found = re.compile(rb"schedules so far, .* us and .* GB/s of at most 171.4 GB/s")
        assert any(map(found.search, running.stderr))
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"before the search was done; these are the best so far" in out
    files = sorted(folder.glob("[0-9]*.json"))
    assert len(files) > 1
    assert all(bs.verify(bs.read_schedule(file)).ok for file in files)


@pytest.mark.slow
def test_the_command_prints_draws_and_writes_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, picture = tmp_path / "front", tmp_path / "front.svg"
    words = ["synth", "dgx1-v100", "broadcast", "--pareto", "--time-limit", "1", "-o", str(folder)]
    assert run([*words, "--json", "--plot", str(picture)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert picture.exists()
    for row in answer["rows"]:
        assert bs.verify_file(row["file"]).ok
        schedule = bs.read_schedule(row["file"])
        assert schedule.algorithm == row["algorithm"]
        assert cost(schedule, 2**40).time_s == pytest.approx(2**40 / (row["algbw_GBps"] * 1e9), rel=1e-2)
    assert run(words) == 2
    assert "is a folder with files in it; add --force" in capsys.readouterr().err
    assert run([*words, "--force"]) == 0
    assert "the quickest" in capsys.readouterr().out
    assert run(["synth", "dgx1-v100", "broadcast", "--pareto", "--polish", "3"]) == 2
    assert "--polish is for one schedule" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pareto", "--algorithm", "ring"], "--algorithm is for one schedule"),
        (["--pareto", "--chunks-per-rank", "2"], "--chunks-per-rank is for one schedule"),
    ],
)
def test_what_a_front_does_not_take_is_refused(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["synth", "dgx1-v100", "broadcast", *words]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_that_hold_blanks_are_told_apart() -> None:
    found = bs.pareto("ring:4@25GB/s", "allgather", seconds=1, sizes=SIZES)
    names = ("few_steps of 1 chunk, 2 steps, 2 rounds", "ring", "packed of height 2")
    line = next(line for line in replace(found, dominated=names).text().splitlines() if "bettered" in line)
    assert line.split(None, 1)[1].split("; ") == list(names)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--algorithm", "few_steps", "--chunks-per-rank", "2", "--steps", "2"], 0, "16 chunks"),
        (["--algorithm", "few_steps", "--chunks-per-rank", "2", "--steps", "1"], 3, "needs at least 2 steps, not 1"),
        (["--algorithm", "few_steps", "--steps", "2", "--rounds", "1"], 2, "every step has at least one round"),
        (["--algorithm", "ring", "--steps", "2"], 2, "ring takes no --steps"),
        (["--chunks-per-rank", "2"], 2, "packed takes no --chunks-per-rank"),
    ],
)
def test_few_steps_takes_sccl_s_numbers(
    words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["synth", "dgx1-v100", "allgather", *words]) == status
    printed = capsys.readouterr()
    assert message in printed.out + printed.err
    if not status:
        assert "--chunks-per-rank 2 --steps 2 -o schedule.json" in printed.out


def test_a_number_of_trees_for_an_allreduce_is_refused_readably(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["synth", "dgx1-v100", "allreduce", "--trees", "2"]) == 2
    assert capsys.readouterr().err == (
        "blinksim: --trees 2 is for allgather, reducescatter, broadcast, reduce: allreduce has as many trees as its "
        "best rate needs. Leave --trees out, or take --algorithm chains with --channels\n"
    )
