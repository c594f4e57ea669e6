"""Sweeps: what varies, tidy rows, reasons instead of failures, going on after a kill, and processes."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pool_work import double

import blinksim as bs
from blinksim.answers import sweep as sweep_module, worker_pool
from blinksim.answers.project import answer
from blinksim.answers.sweep import Axis, expand, sweep
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, FileError, InputError, MissingError
from blinksim.machines import Question
from blinksim.schedule.candidate import Candidate
from blinksim.textio import text_files
from blinksim.timing.alpha_beta_model import AlphaBeta
from blinksim.timing.timing_model import Breakdown
from blinksim.units import parse_sizes

MIB = 2**20
RING4 = "ring:4@25GB/s"


# --- axes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "column", "numbers"),
    [
        ("nodes=1,2,4", "nodes", [1, 2, 4]),
        ("ranks_per_node=2, 4", "ranks_per_node", [2, 4]),
        ("xe bandwidth=15GB/s,53GB/s", "xe_bandwidth_GBps", [15.0, 53.0]),
        ("degrade gpu0-gpu3 lanes=1,2", "gpu0-gpu3_lanes", [1, 2]),
        ("add gpu0-gpu5 nvlink lanes=1,2", "add_gpu0-gpu5_nvlink_lanes", [1, 2]),
        ("nvlink latency=1us,2us", "nvlink_latency_s", [1e-6, 2e-6]),
        ("members=0-3;0,1,4,5", "members", ["0-3", "0,1,4,5"]),
        ("edit=none;degrade gpu0-gpu3 lanes=1", "edit", ["none", "degrade gpu0-gpu3 lanes=1"]),
    ],
)
def test_an_axis_is_read_with_units_in_its_column(text: str, column: str, numbers: list[object]) -> None:
    axis = Axis.parse(text)
    assert axis.column == column
    assert [axis.number(value) for value in axis.values] == numbers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes", "names no values"),
        ("nods=1,2", "did you mean 'nodes'"),
        ("nodes=1,,2", "a value is missing"),
        ("nodes=0", "whole numbers of at least 1"),
        ("nodes=" + 5000 * "1", "whole numbers of at least 1"),
        ("nodes=2,2", "twice"),
        ("xe bandwith=15GB/s", "did you mean 'bandwidth'"),
        ("xe bandwidth=15", "has no unit"),
        ("=1", "nothing named"),
        ("members=0-1,0-3", "names a GPU twice; separate values by semicolons, as in 'members=0-1;0-3'"),
        ("relays=2, 2", "separate values by semicolons"),
    ],
)
def test_a_wrong_axis_costs_one_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        Axis.parse(text)
    assert "\n" not in str(caught.value)


def test_values_from_python_are_si() -> None:
    assert Axis.of("xe bandwidth", [15e9, Fraction(53 * 10**9)]) == Axis.parse("xe bandwidth=15GB/s,53GB/s")
    assert Axis.of("members", [["gpu0", "gpu1"], "0-3"]).values == ("gpu0,gpu1", "0-3")
    assert Axis.of("edit", [None, "without gpu3"]).values == ("none", "without gpu3")
    assert Axis.of("nvlink latency", [1e-6]).number(Axis.of("nvlink latency", [1e-6]).values[0]) == 1e-6


def test_cases_are_all_combinations_and_apply_what_they_say() -> None:
    found = expand(Question(edits=("without gpu7",)), [Axis.parse("nodes=1,2"), Axis.parse("edit=none;without gpu6")])
    assert [dict(case.labels) for case in found] == [
        {"nodes": 1, "edit": "none"}, {"nodes": 1, "edit": "without gpu6"},
        {"nodes": 2, "edit": "none"}, {"nodes": 2, "edit": "without gpu6"},
    ]  # fmt: skip
    assert found[3].question.edits == ("without gpu7", "without gpu6")
    assert found[2].question.nodes == 2


def test_members_are_those_of_the_command_line() -> None:
    node = bs.load("dgx1-v100")
    assert Question(node, members="0-3,gpu7").part().members == ("gpu0", "gpu1", "gpu2", "gpu3", "gpu7")
    # Numbers count the GPUs of the file, whatever an edit takes away.
    assert Question(node, members="6,7", edits=("without gpu0",)).part().members == ("gpu6", "gpu7")
    cluster = Question(bs.load("hgx-h200"), nodes=2, members="7,15").part()
    assert cluster.members == ("n0.gpu7", "n1.gpu7")
    assert Question(node, members="0,5", relays="idle").part().relays == tuple(f"gpu{i}" for i in (1, 2, 3, 4, 6, 7))
    for text in ("8", "3-1", "2-x"):
        with pytest.raises(InputError):
            Question(node, members=text).part()


# --- rows -------------------------------------------------------------------------------------------------------------


def test_rows_equal_single_projections() -> None:
    found = sweep(
        "dgx1-v100", "allreduce", [MIB, "256MiB"], {"edit": ["none", "without gpu0-gpu3"]}, algorithms=["ring", "best"]
    )
    assert len(found.rows()) == 2 * 2 * 2
    assert found.varying() == ["edit", "asked", "size_bytes"]
    for row in found.rows():
        machine = bs.load("dgx1-v100", edits=() if row["edit"] == "none" else (row["edit"],))
        alone = bs.project(machine, "allreduce", row["size_bytes"], algorithm=row["asked"])
        assert (row["time_s"], row["algorithm"]) == (alone.time_s, alone.algorithm)
        assert row["busbw_GBps"] == pytest.approx(alone.busbw / 1e9)
        assert row["reason"] == ""


def test_the_default_rows_are_the_three_figures_of_project() -> None:
    vary = {"edit": ["none", "without gpu0-gpu3", "without gpu99"]}
    found = sweep("dgx1-v100", "allreduce", [MIB, "256MiB"], vary)
    assert found.varying() == ["edit", "size_bytes"]
    *answered, _, _ = rows = found.rows()
    assert len(rows) == 6
    for row in answered:
        question = Question("dgx1-v100", edits=() if row["edit"] == "none" else (row["edit"],))
        [alone] = answer(question, Collective("allreduce"), [row["size_bytes"]])
        assert row | alone.row() == row
        assert row["interval_low_s"] < row["time_s"] < row["interval_high_s"]
        assert row["cannot_take_less_s"] < row["could_take_s"]
        assert row["library"] == "NCCL"
    assert all(row["reason"] and row["time_s"] is row["could_take_s"] is None for row in found.failed)
    assert len(found.failed) == 2
    assert {tuple(row) for row in rows} == {tuple(rows[0])}


def test_a_table_of_rates_that_is_named_is_that_of_project() -> None:
    row = sweep("dgx1-v100", "allreduce", [MIB], base=Question(rates="seed"), bounds=True).rows()[0]
    [alone] = answer(Question("dgx1-v100", rates="seed"), Collective("allreduce"), [MIB])
    assert (row["time_s"], row["could_take_s"]) == (alone.time_s, alone.row()["could_take_s"])


def test_the_published_projection_at_every_point() -> None:
    found = sweep(
        "aurora", "allreduce", ["2GB"], ["nodes=2,4,8,16", "xe bandwidth=15GB/s,53GB/s"],
        base=Question(ranks_per_node=12), model="aurora-projection",
    )  # fmt: skip
    frame = found.to_frame()
    published = frame[frame["xe_bandwidth_GBps"] == 15]["time_s"] * 1e3
    # Aurora allreduce projection, section 3.2: 35.8, 42.6, 46.0 and 47.7 ms.
    assert list(published.round(1)) == [35.8, 42.6, 46.0, 47.7]
    assert set(frame["ranks"]) == {24, 48, 96, 192}
    faster = frame[frame["xe_bandwidth_GBps"] == 53]["time_s"] * 1e3
    # Only the scale-up terms shrink: 2 GB/2 over 6 links, twice.
    saved = [1e3 * (1e9 / 6 / 15e9 - 1e9 / 6 / 53e9) * 2] * 4
    assert list(published.to_numpy() - faster.to_numpy()) == pytest.approx(saved)


def test_a_preset_has_a_column_for_each_link_class() -> None:
    """16 nodes of twelve ranks by hand: 2 GB over six Xe links of 15 GB/s and eight NICs at 0.8 of 23 GB/s."""
    vary = ["nodes=1,16", "xe bandwidth=15GB/s,53GB/s"]
    found = sweep("aurora", "allreduce", ["1KiB", "2GB"], vary, model="aurora-projection").rows()
    assert len(found) == 8
    for row in found:
        parts = [row[key] for key in ("xe_s", "mdfi_s", "slingshot_s")]
        if row["reason"]:
            assert parts == [None] * 3
            continue
        assert sum(parts) == pytest.approx(row["time_s"], rel=1e-12)
        assert (row["nodes"] == 1) is (row["slingshot_s"] == 0) is (row["mdfi_s"] > 0)
        xe = 2 * (2 / 12 if row["nodes"] == 1 else 1 / 6) / row["xe_bandwidth_GBps"]
        assert row["xe_s"] == pytest.approx(xe)
        assert row["slingshot_s"] in (0.0, pytest.approx(2 * 2 * 15 / 16 / (0.8 * 8 * 23)))
    assert not any(
        key in row for row in sweep("dgx1-v100", "allreduce", ["1MiB"]).rows() for key in ("nvlink_s", "alpha_s")
    )


def test_sizes_without_an_answer_cost_the_others_none() -> None:
    found = sweep("aurora", "allreduce", ["1KiB", "1MiB", "2GB"], "nodes=2", model="aurora-projection").rows()
    assert [bool(row["reason"]) for row in found] == [True, True, False]
    assert [row["size_bytes"] for row in found] == [2**10, 2**20, 2 * 10**9]
    assert "holds from 4 MiB on" in found[0]["reason"] == found[1]["reason"]
    assert found[2]["time_s"] == pytest.approx(35.809e-3, rel=1e-4)


def test_a_point_without_an_answer_is_a_row_with_its_reason() -> None:
    found = sweep(
        "dgx1-v100", "allreduce", [MIB], {"edit": ["none", "without gpu9"], "members": ["0-3", "0,5"]}, bounds=True
    )
    assert [bool(row["reason"]) for row in found.rows()] == [False, True, True, True]
    assert "gpu9" in found.rows()[2]["reason"]
    assert "does not connect" in found.rows()[1]["reason"]
    assert found.rows()[1]["time_s"] is None
    assert found.rows()[1]["bound_reason"]
    frame = found.to_frame()
    assert list(frame["reason"] == "") == [True, False, False, False]
    assert frame["algbw_GBps"].notna().sum() == 1
    assert "3 without an answer" in repr(found)


def test_an_unforeseen_fault_costs_one_point_only(monkeypatch: pytest.MonkeyPatch) -> None:
    true = AlphaBeta.breakdown_of

    def breaks_at_two(self: AlphaBeta, candidate: Candidate, size: int, gamma: float) -> Breakdown:
        if candidate.compact.topology.ranks == 2:
            raise ZeroDivisionError("made up")
        return true(self, candidate, size, gamma)

    monkeypatch.setattr(AlphaBeta, "breakdown_of", breaks_at_two)
    found = sys.modules["blinksim.answers.sweep"].sweep(RING4, "allreduce", [MIB], {"members": ["0-1", "0-3"]})
    assert [row["reason"] for row in found.rows()] == ["unexpected ZeroDivisionError: made up", ""]


def test_no_row_beats_its_bound() -> None:
    found = sweep(
        "dgx1-p100", "allreduce", ["1GiB"], {"members": ["0-7", "0-6", "0-3"]}, algorithms=["ring", "packed"],
        bounds=True,
    )  # fmt: skip
    shares = [row["of_bound"] for row in found.rows()]
    assert all(0 < share <= 1 for share in shares)
    assert Fraction(found.rows()[0]["bound_exact_GBps"]) == Fraction(16, 7) * 20
    assert found.rows()[-1]["bound_scope"] == "partition"


def test_the_simulated_time_is_the_simulators() -> None:
    found = sweep(RING4, "allreduce", [64 * MIB], algorithms=["ring"], model="simulate")
    # 2(n-1) steps of size/n bytes, half of them each way round (Patarasu and Yuan 2009); every step may cost its
    # latency of 1 us, or hide it behind the pieces before it.
    bandwidth = 6 * 16 * MIB / (2 * 25e9)
    assert bandwidth < found.rows()[0]["time_s"] <= bandwidth + 6 * 1e-6


def test_what_nccl_would_choose_is_its_own_answer() -> None:
    found = sweep(
        "dgx1-v100",
        "allreduce",
        ["256MiB"],
        ["members=0-7;0,1,2,3,4,7"],
        algorithms=["nccl", "packed"],
        base=Question(rates="nccl"),
        bounds=True,
    )
    assert [row["model"] for row in found.rows()] == ["nccl-tuner", "alpha-beta"] * 2
    whole = bs.load("dgx1-v100", rates="nccl")
    alone = bs.project(whole, "allreduce", 256 * MIB, "nccl")
    assert found.rows()[0]["time_s"] == alone.time_s
    # Six GPUs have one ring only, and NCCL makes nothing better of them.
    assert found.rows()[2]["algbw_GBps"] < 0.6 * found.rows()[3]["algbw_GBps"]


def test_large_machines_by_closed_form_and_bound() -> None:
    found = sweep("hgx-h200", "allgather", ["1GiB"], ["nodes=64,1024"], model="projection", bounds=True)
    assert [row["ranks"] for row in found.rows()] == [512, 8192]
    assert all(not row["reason"] and 0 < row["of_bound"] <= 1 for row in found.rows())
    # n nodes of 8 GPUs with 50 GB/s of NIC each: the cut around one node, 400 GB/s for 8 (n - 1) of 8 n shards.
    assert found.rows()[1]["bound_exact_GBps"] == str(Fraction(400 * 1024, 1023))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": []}, "no sizes"),
        ({"model": "alpha"}, "unknown model"),
        ({"algorithms": ["rng"]}, "did you mean 'ring'"),
        ({"workers": 0}, "at least 1"),
        ({"vary": ["nodes=1", "nodes=2"]}, "varies twice"),
        ({"model": "projection", "algorithms": ["ring"]}, "an algorithm of its own"),
        ({"model": "projection", "vary": ["members=0-1;0-3"]}, "not members"),
        ({"model": "aurora-projection", "vary": ["rates=seed,nominal"]}, "pins the rates"),
        ({"vary": {"nodes": range(1, 100_002)}}, "too many"),
    ],
)
def test_what_cannot_be_right_anywhere_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(BlinksimError, match=words):
        sweep("dgx1-v100", "allreduce", **arguments)


def test_rates_of_a_topology_vary_unless_it_was_loaded_at_some() -> None:
    with pytest.raises(InputError, match="give its name instead"):
        sweep(bs.load("dgx1-v100", rates="seed"), "allreduce", [MIB], ["rates=nominal,nccl"])
    named = sweep("aurora", "allreduce", [MIB], ["rates=nominal,seed"]).rows()
    loaded = sweep(bs.load("aurora"), "allreduce", [MIB], ["rates=nominal,seed"]).rows()
    for figure in ("time_s", "could_take_s", "cannot_take_less_s"):
        assert [row[figure] for row in loaded] == [row[figure] for row in named]
    # Tables of the package are views of one machine: what its library takes, and the bound, stay.
    assert named[0]["could_take_s"] != named[1]["could_take_s"]
    assert (named[0]["time_s"], named[0]["cannot_take_less_s"]) == (named[1]["time_s"], named[1]["cannot_take_less_s"])
    assert [row["could_take_rates"].partition(" (")[0] for row in named] == ["nominal", "seed"]


def test_what_nccl_chooses_changes_no_other_row() -> None:
    alone = sweep("dgx1-v100", "allreduce", ["256MiB"], algorithms=["ring"], bounds=True).rows()
    ring, nccl = sweep("dgx1-v100", "allreduce", ["256MiB"], algorithms=["ring", "nccl"], bounds=True).rows()
    assert ring == alone[0]
    assert (ring["rates"], nccl["rates"]) == ("nominal", "nccl")
    # NVLink lanes of 25 GB/s; those of 20.6 or less that NCCL counts are no bound.
    assert ring["bound_exact_GBps"] == nccl["bound_exact_GBps"] == "600/7"
    base = Question(rates="nccl")
    both = sweep("dgx1-v100", "allreduce", ["256MiB"], algorithms=["ring", "nccl"], base=base).rows()
    assert [row["rates"] for row in both] == ["nccl", "nccl"]
    assert both[1]["time_s"] == nccl["time_s"]


def test_no_bound_is_exceeded_where_switches_reduce() -> None:
    rows = sweep("hgx-h100", "allreduce", ["1KiB", "1GiB"], algorithms=["nccl", "two_shot"], bounds=True).rows()
    assert max(row["of_bound"] for row in rows) < 1
    # 18 lanes of 25 GB/s each way: with sums into readers each byte crosses a port (n + 1) / n times, without
    # 2 (n - 1) / n times.
    lifted = next(row for row in rows if row["asked"] == "nccl" and row["size_bytes"] == 2**30)
    assert lifted["bound_algbw_GBps"] == pytest.approx(18 * 25 * 8 / 9)
    assert "reduce (NVLS)" in lifted["bound_assumes"]
    small = next(row for row in rows if row["asked"] == "nccl" and row["size_bytes"] == 2**10)
    assert small["bound_algbw_GBps"] == pytest.approx(18 * 25 * 8 / 14)
    assert "only forward" in small["bound_assumes"]


# --- going on ---------------------------------------------------------------------------------------------------------


def test_a_second_run_takes_over_what_is_finished(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    arguments = (RING4, "allreduce", [MIB], {"members": ["0-3", "0,1", "1,2,3"]})
    whole = sweep(*arguments)
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 2:
            raise KeyboardInterrupt

    stopped = sweep(*arguments, journal=journal, report=stop)
    assert stopped.unfinished == 1
    assert stopped.rows() == whole.rows()[:2]
    assert stopped.varying() == whole.varying() == ["members"]
    assert whole.unfinished == 0
    assert seen == [(0, 3), (1, 3), (2, 3)]
    # As a kill in the middle of writing leaves it.
    with journal.open("a") as file:
        file.write('{"key": "cut sho')
    again = sweep(*arguments, journal=journal)
    assert again.resumed == 2
    assert again.rows() == whole.rows()
    assert sweep(*arguments, journal=journal).resumed == 3
    # Another question takes nothing over.
    assert sweep(RING4, "allgather", [MIB], {"members": ["0-3"]}, journal=journal).resumed == 0
    assert sweep("ring:4@26GB/s", "allreduce", [MIB], {"members": ["0-3"]}, journal=journal).resumed == 0


def test_ctrl_c_prints_the_points_that_are_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with bounds, whose work comes last of each case; before any point is there, there is nothing to print."""
    done, target = list[object](), tmp_path / "out.csv"
    work = sweep_module.run

    def stops_at_third(task: Any) -> Any:
        done.append(task)
        if len(done) == 3:
            raise KeyboardInterrupt
        return work(task)

    command = ["sweep", RING4, "allreduce", "--sizes", "1MiB", "--algorithms", "ring", "--bounds"]
    command += ["--vary", "members=0-3;0,1;1,2,3", "--csv"]
    monkeypatch.setattr(sweep_module, "run", stops_at_third)
    assert run(command) == 130
    stopped = capsys.readouterr()
    assert "stopped before 4 of 6 pieces were done" in stopped.err
    done.clear()
    assert run([*command, "-o", str(target)]) == 130
    assert f"{target}.journal keeps what is finished" in capsys.readouterr().err
    assert not target.exists()
    done[:] = [None] * 2
    assert run(command) == 130
    assert capsys.readouterr().out == ""
    done[:] = [None] * 3
    assert run(command) == 0
    whole = capsys.readouterr().out.splitlines()
    assert stopped.out.splitlines() == whole[:2]
    assert run([*command, "-o", str(target)]) == 0
    assert "2 of 6 pieces of work were taken from" in capsys.readouterr().err
    assert target.read_text().splitlines() == whole


def test_a_journal_tells_constants_apart(tmp_path: Path) -> None:
    """Links alike, and another time to launch: what was kept is of another machine."""
    two = bs.load("hgx-h200", rates="measured").select("0,1")
    assert two.execution is not None
    # Without constants of calls in graphs, which have a launch of their own and would be quicker both times.
    two = replace(two, execution=replace(two.execution, job=None))
    assert two.execution is not None
    slower = replace(two, execution=replace(two.execution, launch_s=20e-6))
    times = []
    for machine in (two, slower, slower):
        found = sweep(machine, "broadcast", [MIB], algorithms="chain", model="execution", journal=tmp_path / "journal")
        [row] = found.rows()
        times.append((row["model"], row["time_s"], found.resumed))
    (model, quick, _), (_, slow, fresh), (_, again, kept) = times
    assert model == "execution"
    assert slow > quick + 1e-6
    assert (fresh, kept, again) == (0, 1, slow)


def test_another_file_is_no_journal(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("my notes\n")
    with pytest.raises(FileError, match=r"notes.txt:1: is no journal"):
        sweep(RING4, "allreduce", [MIB], journal=other)
    assert other.read_text() == "my notes\n"


@pytest.mark.slow
def test_a_killed_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = ";".join(f"0-{last}" for last in range(1, 8))
    command = ["sweep", "dgx1-v100", "allreduce", "--sizes", "1MiB", "--algorithms", "ring,packed,few_steps"]
    edits = "none;degrade gpu0-gpu3 lanes=1;degrade gpu0-gpu4 lanes=1;degrade gpu1-gpu2 lanes=1"
    command += ["--vary", f"members={members}", "--vary", f"edit={edits}", "-o", str(tmp_path / "out.csv")]
    journal = tmp_path / "out.csv.journal"
    with subprocess.Popen([sys.executable, "-m", "blinksim", *command], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if journal.exists() and journal.read_bytes().count(b"\n") >= 3:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    kept = journal.read_bytes().count(b"\n")
    assert 3 <= kept < 84
    assert not (tmp_path / "out.csv").exists()
    # What is left is done with ring and packed only; few_steps takes long.
    quick = [word if word != "ring,packed,few_steps" else "ring,packed" for word in command]
    assert run(quick) == 0
    captured = capsys.readouterr()
    assert "pieces of work were taken from" in captured.err
    assert not journal.exists()
    frame = pd.read_csv(tmp_path / "out.csv", keep_default_na=True)
    assert len(frame) == 56
    assert frame["time_s"].notna().all()


KILLED = [
    "sweep", "dgx1-v100", "allreduce", "--sizes", "1MiB,64MiB", "--algorithms", "ring,packed", "--workers", "2",
    "--vary", f"members={';'.join(f'0-{last}' for last in range(1, 8))}",
    "--vary", "edit=none;degrade gpu0-gpu3 lanes=1;degrade gpu0-gpu4 lanes=1",
]  # fmt: skip


def _started(output: Path) -> subprocess.Popen[bytes]:
    """The command in a session of its own, so that its processes can be told from others."""
    command = [sys.executable, "-m", "blinksim", *KILLED, "-o", str(output)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _left(session: int) -> list[int]:
    """The living processes of a session (proc(5): the fourth field after the name in parentheses)."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(place.parent.name))
    return found


def _until(reached: Callable[[], bool], seconds: float = 300) -> bool:
    """Waits; the limit only ends a test that would hang."""
    end = time.monotonic() + seconds
    while not reached() and time.monotonic() < end:
        time.sleep(0.01)
    return reached()


def _lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _after(seconds: float) -> Callable[[subprocess.Popen[bytes]], bool]:
    end = time.monotonic() + seconds
    return lambda process: time.monotonic() > end


def _killed(output: Path, moment: Callable[[subprocess.Popen[bytes]], bool]) -> None:
    with _started(output) as process:
        _until(lambda: moment(process) or process.poll() is not None)
        process.kill()
    assert _until(lambda: not _left(process.pid)), "processes are left"


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_process_and_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    with _started(tmp_path / "whole.csv") as whole:
        assert whole.wait(600) == 0
    output, journal = tmp_path / "out.csv", tmp_path / "out.csv.journal"
    # While the workers start, and while they work.
    _killed(output, lambda process: len(_left(process.pid)) >= 3)
    _killed(output, lambda process: _lines(journal) >= 1)
    _killed(output, lambda process: _lines(journal) >= 10)
    assert _lines(journal) >= 10
    with _started(output) as process:
        assert process.wait(600) == 0
    assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "whole.csv"]
    assert _until(lambda: not _left(process.pid))


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path: Path) -> None:
    began = time.monotonic()
    with _started(tmp_path / "whole.csv") as whole:
        assert whole.wait(600) == 0
    lasted = time.monotonic() - began
    chance = random.Random(50)
    for number in range(2):
        output = tmp_path / f"{number}.csv"
        _killed(output, _after(lasted * chance.random()))
        if not output.exists():
            with _started(output) as process:
                assert process.wait(600) == 0
        assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()
        # A kill after the rows were on disk may leave the journal, whose work is then done.
        for path in tmp_path.iterdir():
            assert path.suffix in (".csv", ".journal"), path


@pytest.mark.parametrize(
    "damage",
    [
        b"[" * 100_000,
        b'{"rows": []}',
        b'{"key": 1, "rows": 2, "sum": 3}',
        b'{"key": "KEY", "rows": [{"wrong": "columns"}], "sum": "0"}',
        b'["key", "rows", "sum"]',
        b'"key"',
        b"null",
        b"\xff\xfe",
        b"",
        b"1" * 5000,
    ],
)
def test_a_damaged_journal_names_its_line_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes
) -> None:
    journal = tmp_path / "journal"
    arguments = (RING4, "allreduce", [MIB], {"members": ["0-3", "0,1", "1,2,3"]})
    whole = sweep(*arguments, journal=journal)
    lines = journal.read_bytes().splitlines()
    key = json.loads(lines[1])["key"].encode()
    journal.write_bytes(b"\n".join([lines[0], damage.replace(b"KEY", key), lines[2], b""]))
    again = sweep(*arguments, journal=journal)
    assert again.rows() == whole.rows()
    assert (again.resumed, again.damaged) == (2, (2,))
    # Once more: the work of the damaged line has been added.
    assert sweep(*arguments, journal=journal).resumed == 3


def test_a_bit_that_flips_in_a_journal_is_found(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    arguments = (RING4, "allreduce", [MIB], {"members": ["0-3", "0,1"]})
    whole = sweep(*arguments, journal=journal)
    text = journal.read_text()
    value = f'"time_s": {whole.rows()[0]["time_s"]!r}'
    journal.write_text(text.replace(value, '"time_s": 1e-9', 1))
    again = sweep(*arguments, journal=journal)
    assert again.rows() == whole.rows()
    assert again.damaged == (1,)


def test_a_journal_is_an_ordinary_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim, pipe = tmp_path / "victim", tmp_path / "pipe"
    victim.write_text("")
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="cannot be used as a journal: is a link"):
        sweep(RING4, "allreduce", [MIB], journal=tmp_path / "link")
    with pytest.raises(FileError, match="cannot be used as a journal: it is no ordinary file"):
        sweep(RING4, "allreduce", [MIB], journal=pipe)
    assert victim.read_text() == ""


def test_points_of_unequal_ranks_are_compared_by_busbw(capsys: pytest.CaptureFixture[str]) -> None:
    vary = "members=0,1;0-7"
    command = ["sweep", "dgx-a100", "allreduce", "--sizes", "1GiB", "--vary", vary, "--algorithms", "ring"]
    rows = sweep("dgx-a100", "allreduce", ["1GiB"], [vary], algorithms=["ring"]).rows()
    assert rows[0]["algbw_GBps"] > rows[1]["algbw_GBps"]
    best = max(rows, key=lambda row: row["busbw_GBps"])
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert f"{best['busbw_GBps']:.4g} GB/s busbw over 2 points, best at members {best['members']}\n" in shown
    assert "busbw GB/s\n" in shown


def test_a_sweep_without_an_answer_says_why_once(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "dgx1-v100", "allreduce", "--sizes", "1MiB", "--links", "nvlink", "--vary", "members=0,5"]
    assert run(command) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("does not connect the members") == 1


def test_mistyped_edits_everywhere_are_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    """At the three default sizes, each message once; a question that is none for the machine stays status 3."""
    command = ["sweep", "dgx1-v100", "allreduce", "--vary"]
    assert run([*command, "edit=without gpu0-gpu9;without gpu8"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [captured.err.count(word) for word in ("no point", "'gpu9'", "'gpu8'", "\n")] == [1, 1, 1, 1]
    assert run([*command, "members=0,5;0,9", "--links", "nvlink"]) == 3


def test_what_failed_is_named_and_not_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    edits = "edit=none;without gpu0-gpu9;without gpu0-gpu3"
    command = ["sweep", "dgx1-v100", "allreduce", "--sizes", "1MiB", "--algorithms"]
    assert run([*command, "ring,sharp", "--vary", edits]) == 0
    shown = capsys.readouterr().out
    assert "no answer for edit without gpu0-gpu9: unknown device 'gpu9'" in shown
    assert "no answer for algorithm sharp: sharp needs switches" in shown
    assert "next:" not in shown
    assert run([*command, "ring,direct", "--vary", edits.replace("gpu0-gpu9", "gpu0-gpu2")]) == 0
    assert "next: blinksim sweep dgx1-v100 allreduce " in capsys.readouterr().out


def test_where_times_come_from_is_said_as_by_compare(capsys: pytest.CaptureFixture[str]) -> None:
    """Aurora's times on two nodes are all scaled from one published one, which is among these sizes."""
    asked = ["aurora", "allreduce", "--nodes", "2", "--sizes", "8MB:2GB:x4"]
    told = []
    for command in ("compare", "sweep"):
        assert run([command, *asked]) == 0
        told.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("  from, ")])
    assert told[0] == told[1]
    assert [line.partition(":")[0] for line in told[1]] == ["  from, 2 GB", "  from, 8 MB to 512 MB"]
    assert "scaled from the nearest size that was measured" in told[1][1]
    assert run(["sweep", *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][-1]["origin"] in told[0][0]


def test_rows_that_cannot_be_written_are_shown_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.csv"
    command = ["sweep", RING4, "allreduce", "--sizes", "1MiB", "--vary", "members=0-3;0,1", "-o", str(output)]
    before = text_files.write_text
    with pytest.MonkeyPatch.context() as patch:

        def late(path: str, text: str, force: bool = False) -> None:
            output.write_text("of another run")
            before(path, text, force)

        patch.setattr("blinksim.cli.project.write_text", late)
        assert run(command) == 2
    captured = capsys.readouterr()
    assert "GB/s busbw" in captured.out
    assert "written" not in captured.out
    assert "exists and is not overwritten" in captured.err
    assert output.read_text() == "of another run"
    assert _lines(tmp_path / "out.csv.journal") == 2


def test_where_times_come_from_is_said_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """One line is of all rows; where rows differ, none says of which it is, and the table as CSV does."""
    sweep = ["sweep", "p4d", "allreduce", "--sizes", "1GiB", "--vary", "nodes=1,2"]
    assert run([*sweep, "--vary", "edit=none;without efa0"]) == 0
    out = capsys.readouterr().out
    assert "  from, " not in out
    assert "times from several sources: each row of the CSV names its own" in out
    alike = "edit=degrade gpu0-nvswitch lanes=3;degrade gpu1-nvswitch lanes=3"
    assert run([*sweep[:5], "--vary", alike]) == 0
    assert re.findall("^  from, (.*?): ", capsys.readouterr().out, re.MULTILINE) == ["1 GiB"]


def test_a_journal_tells_traffic_matrices_apart(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    even, skewed = (
        bs.Traffic(matrix) for matrix in ([[0, 5, 5], [5, 0, 5], [5, 5, 0]], [[0, 9, 1], [1, 0, 1], [1, 1, 0]])
    )
    for number, traffic in enumerate((even, skewed, even)):
        asked = Collective("alltoallv", traffic=traffic)
        found = sweep("ring:3@10GB/s", asked, ["16MiB"], algorithms=["direct"], journal=journal)
        assert found.resumed == number // 2
        # Neighbours have a link of their own: the largest block of all decides.
        block = 16 * MIB * int(traffic.matrix.max()) / traffic.size
        assert found.points[0]["time_s"] == pytest.approx(block / 10e9, rel=0.05)


# --- elsewhere --------------------------------------------------------------------------------------------------------


def test_processes_give_the_same_and_survive_one_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(worker_pool.finished(double, [1, 2, 3], workers=2)) == [(1, 2), (2, 4), (3, 6)]
    monkeypatch.setenv("DIE_AT_THREE", "1")
    found = dict(worker_pool.finished(double, [1, 2, 3, 4], workers=2))
    assert found == {1: 2, 2: 4, 3: None, 4: 8}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_scheduler_costs_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "PATIENCE_S", 0.2)
    with pytest.raises(InputError, match=r"no dask scheduler answers at 'tcp://127.0.0.1:9'"):
        sweep(RING4, "allreduce", [MIB], cluster="tcp://127.0.0.1:9")


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingError, match=r"pip install 'blinksim\[cluster\]'"):
        sweep(RING4, "allreduce", [MIB], cluster="tcp://127.0.0.1:9")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_answers_in_text_csv_and_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = ["sweep", "aurora", "allreduce", "--sizes", "2GB", "--vary", "nodes=2,16", "--model", "aurora-projection"]
    assert run(base) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].startswith(
        "allreduce on aurora: 83.42 to 107 GB/s busbw over 2 points, best at nodes 2"
    )
    assert "next: blinksim sweep aurora allreduce --sizes 2GB --model aurora-projection --vary nodes=2,16 " in text
    assert run([*base, "--csv"]) == 0
    frame = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(frame["nodes"]) == [2, 16]
    assert run([*base, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["command"] == "sweep"
    assert answer["rows"][0]["time_s"] == pytest.approx(0.0358089, rel=1e-5)
    out = str(tmp_path / "a.csv")
    assert run([*base, "-o", out]) == 0
    assert run([*base, "-o", out]) == 2
    assert "add --force" in capsys.readouterr().err
    assert run([*base, "-o", out, "--force"]) == 0


def test_no_answer_anywhere_is_status_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "dgx1-v100", "allreduce", "--members", "0,5", "--sizes", "1MiB"]) == 3
    assert "no point has an answer: dgx1-v100: nvlink does not connect" in capsys.readouterr().err
    assert run(["sweep", "dgx1-v100", "allreduce", "--workers", "2", "--cluster", "tcp://a:1"]) == 2


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1KiB:8KiB", [1024, 2048, 4096, 8192]),
        ("1MiB:2GiB:x8", [2**20, 2**23, 2**26, 2**29, 2**31]),
        ("1M:5M", [2**20, 2**21, 2**22, 5 * 2**20]),
        ("7:7", [7]),
    ],
)
def test_a_range_of_sizes_ends_where_it_says(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


def test_tokens_of_experts_vary_with_nodes_and_machines() -> None:
    vary = {"nodes": [1, 2], "tokens": [4, 8], "top-k": [2, 5]}
    found = bs.sweep("l40s-pcie", "dispatch", vary=vary, tokens={"experts": 32, "seed": 3})
    assert found.varying() == ["nodes", "tokens", "top_k", "size_bytes"]
    for row in found.rows():
        machine = bs.load("l40s-pcie", nodes=row["nodes"])
        own = bs.project_experts(machine, tokens=row["tokens"], top_k=row["top_k"], experts=32, seed=3)
        assert (row["time_s"], row["cannot_take_less_s"]) == (own.time_s, own.floor_s)
        assert (row["logical_GBps"], row["wire_GBps"]) == (own.logical / 1e9, own.wire / 1e9)
    # What cannot be drawn is a row with the reason.
    few = bs.sweep("hgx-h100", "combine", vary={"top-k": [2, 9]}, tokens={"experts": 8, "tokens": 4})
    assert [row["reason"][:20] for row in few.rows()] == ["", "a token cannot go to"]


@pytest.mark.parametrize(
    ("collective", "given", "why"),
    [
        ("dispatch", {"algorithms": "direct"}, "leave algorithms, model and bounds out"),
        ("dispatch", {"bounds": True}, "leave algorithms, model and bounds out"),
        ("allreduce", {"vary": "tokens=1,2"}, "only a dispatch and a combine have"),
        ("allreduce", {"tokens": {"top_k": 2}}, "only a dispatch and a combine have"),
        ("dispatch", {"vary": "skew=-1"}, "not negative"),
        ("dispatch", {"vary": "top-k=0"}, "whole numbers of at least 1"),
    ],
)
def test_what_a_sweep_of_tokens_refuses(collective: str, given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        bs.sweep("hgx-h100", collective, **given)


@pytest.mark.parametrize(
    "edit", ["halve gpu0-gpu3", "degrade gpu0-gpu3 lanes=0", "degrade gpu0-gpu3 lanes=x", "without"]
)
def test_an_edit_that_no_machine_can_have_is_refused_before_the_work(edit: str) -> None:
    with pytest.raises(InputError):
        bs.sweep("dgx1-v100", "allreduce", ["1MiB"], {"edit": ["none", edit]}, algorithms=["ring"])
    # What only this machine lacks is a row with a reason.
    [_, lost] = bs.sweep(
        "dgx1-v100", "allreduce", ["1MiB"], {"edit": ["none", "without gpu9"]}, algorithms="ring"
    ).rows()
    assert "unknown device" in lost["reason"]


def test_programs_and_bare_links_in_one_table_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Inside a node a program is timed with its launch, between nodes the links alone; each says so if asked alone."""
    base = ["sweep", "h100", "allreduce", "--sizes", "25MiB", "--vary"]
    legend = "could take in some rows as a program on the GPUs"
    assert run([*base, "nodes=1,2"]) == 0
    assert legend in capsys.readouterr().out
    assert run([*base, "nodes=2,4"]) == 0
    assert legend not in capsys.readouterr().out
    for row in sweep("h100", "allreduce", ["25MiB"], {"nodes": [1, 2]}).rows():
        alone = bs.project(Question("h100", nodes=row["nodes"]), "allreduce", "25MiB")
        assert f", {row['could_take_as']}" in str(alone)
