"""Schedules of several groups in one run: every group's data right, whoever forwards, and nobody's data mixed up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest

import blinksim as bs
from blinksim.cli.main import run as run_command
from blinksim.gpu.execution import gpu_devices
from blinksim.gpu.execution.numpy_executor import interpret
from blinksim.gpu.execution.task import RunOptions, Task
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from validate.recipes import groups

# A GPU may be in several groups and forward for another one; sizes are in no ratio of whole numbers without them.
GROUPS = {
    "pairs": ("full:8@50GB/s", ["0,1", "2,3", "4,5", "6,7"]),
    "mixed": ("full:8@50GB/s", ["0,1", "2,3:broadcast", "4-7:allgather"]),
    "tenants": ("dgx1-v100", ["0,1", "2,3:allgather", "4-7:reducescatter"]),
    "overlapping": ("dgx1-v100", ["0,1:allreduce:64KiB", "3,2,0:broadcast:192KiB", "0-3:reduce:64KiB"]),
    "mesh": ("mi355x", ["0-3", "4-7", "0,4", "1,5", "2,6", "3,7"]),
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "any order": {"seed": 5},
    "packets": {"protocol": "ll128"},
    "staged": {"staged": True},
    "lanes": {"lane_blocks": 2},
    "slices": {"slices": 3, "piece_bytes": 512},
}


def together(name: str) -> bs.Together:
    machine, groups = GROUPS[name]
    return bs.together(bs.Question(machine, relays="others", relays_reduce=True), groups)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", GROUPS)
def test_all_groups_are_right(name: str, way: str) -> None:
    found = together(name)
    ran = bs.execute(found, 100_004, dtype="int32", op="prod", **WAYS[way])
    assert ran.wrong == 0
    assert len(ran.groups) == len(found.groups) == len(ran.to_dict()["groups"])
    assert 100_004 - 4 * len(found.groups) <= ran.used_bytes <= 100_004


def test_data_are_those_of_a_direct_computation() -> None:
    """Without the references that the executor compares with: sums and copies by NumPy, group by group."""
    found, kind = together("overlapping"), ELEMENT_TYPES["int32"]
    task = Task(found.schedule, 80_000, kind, "sum", False, RunOptions())
    pair, three, four = task.counts
    assert [pair, three, four] == [4_000, 12_000, 4_000]
    program, random = task.program("simple"), np.random.default_rng(1)
    places = {name: place for place, name in enumerate(program.devices)}
    sizes = [size for _, _, size in program.layout.input_place]
    given = [random.integers(-1000, 1000, size, dtype="int32") for size in sizes]
    left = interpret(program, [one.copy() for one in given])
    first, second, third, fourth = (places[f"gpu{number}"] for number in range(4))
    # GPU 0 has the pair's vector and the four's (it is no root of the broadcast); each begins on a line of 32 elements.
    total = given[first][:pair] + given[second][:pair]
    assert np.array_equal(left[first][:pair], total)
    assert np.array_equal(left[second][:pair], total)
    sent = given[fourth][:three]
    assert np.array_equal(left[fourth][:three], sent)
    assert np.array_equal(left[third][:three], sent)
    assert np.array_equal(left[first][pair : pair + three], sent)
    mine = [given[first][pair:], given[second][pair:], given[third], given[fourth][three:]]
    assert [len(one) for one in mine] == [four] * 4
    assert np.array_equal(left[first][pair + three :][:four], sum(mine))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_fault_of_one_group_is_found(number: int) -> None:
    """Without one of its sends a group is wrong, and the others are right."""
    found = together("tenants")
    schedule, group = found.schedule, found.groups[number]
    assert group.schedule is not None
    before = sum(one.schedule.chunks for one in found.groups[:number] if one.schedule)
    mine = np.flatnonzero((schedule.chunk >= before) & (schedule.chunk < before + group.schedule.chunks))
    keep = np.delete(np.arange(schedule.sends), mine[-1])
    columns = ("chunk", "src", "dst", "op", "step", "route", "channel")
    broken = replace(schedule, **{name: getattr(schedule, name)[keep] for name in columns})
    task = Task(broken, 100_000, ELEMENT_TYPES["int32"], "sum", False, RunOptions())
    reference = task.reference
    outputs = interpret(task.program("simple"), map(reference.inputs, range(reference.ranks)))
    wrong = {rank for rank, output in enumerate(outputs) if reference.compare(rank, output)[0]}
    assert wrong
    assert {broken.topology.members[rank] for rank in wrong} <= {*group.part.members}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.setattr(gpu_devices, "native_atomics", lambda gpu, peer: True)
    with fake_cupy.installed(monkeypatch, tmp_path, gpus=4, blocks=256) as module:
        yield module


@pytest.mark.slow
@pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler to build kernels.cu with")
@pytest.mark.parametrize("name", ["mixed", "overlapping"])
def test_the_kernel_runs_them_on_two_gpus(fake: object, name: str) -> None:
    """All but the launch: the kernel built for the CPU, four devices on each of two stand-ins, lanes and all."""
    found = together(name)
    ranks = found.machine.ranks
    gpus = [rank * 2 // ranks for rank in range(ranks)]
    for lanes in (None, 1):
        ran = bs.execute(found, 8_000, executor="cupy", gpus=gpus, lane_blocks=lanes, warmup=0, iterations=1)
        assert ran.wrong == 0
        assert ran.time_s is not None
        assert ran.busbw is None


@pytest.mark.slow
@pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler to build kernels.cu with")
def test_the_command_runs_them_on_gpus(fake: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of two tenants that forward for each other, on as many stand-ins as it has devices."""
    groups = ["--group", "0,1", "--group", "2,3:allgather", "--relays", "others", "--relays-reduce"]
    file = str(tmp_path / "groups.json")
    assert run_command(["synth", "full:4@50GB/s", *groups, "-o", file]) == 0
    words = ["run", file, "12000", "--executor", "cupy", "--warmup", "0", "--iterations", "1"]
    for more in ([], ["--lane-blocks", "1"]):
        capsys.readouterr()
        assert run_command([*words, *more]) == 0
        out = capsys.readouterr().out
        assert (
            "allreduce of gpu0 gpu1 beside allgather of gpu2 gpu3, 12 kB in all, on 4 ranks, cupy, float32 sum: correct"
            in out
        )
        assert "algbw" in out
        assert "busbw" not in out


def test_the_recipe_without_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of two tenants alone and both at once, with and without relays; a second run has nothing left to do."""
    words = ["--executor", "numpy", "--sizes", "64KiB", "--only", "tenants", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["groups.py", *words])
    groups.main()
    found = json.loads((tmp_path / "groups-2gpu.json").read_text())["runs"]
    assert [row["groups"] for row in found] == ["0,1", "2,3", "all"] * 2
    assert [row["wrong"] for row in found] == [0] * 6
    assert all(row["bound_s"] <= row["simulated_s"] for row in found)
    # Lanes of 5 GB/s: 1 and 2 between the tenants' own GPUs, 4 and 5 with those of the other one, 2.5 each at once.
    assert [round(2**16 / row["bound_s"] / 5e9, 6) for row in found] == [1, 2, 1, 4, 5, 2.5]
    capsys.readouterr()
    groups.main()
    assert capsys.readouterr().out == "0 wrong elements\n"


def sent_by_node(routing: bs.Routing, half: int) -> list[list[set[int]]]:
    """The ranks that hold the experts of each token, by the node of the token."""
    experts = len(routing.placement)
    return [
        [{expert * routing.ranks // experts for expert in token} for rank in node for token in routing.experts[rank]]
        for node in (range(half), range(half, 2 * half))
    ]


def tokens_of_the_recipe() -> list[groups.Run]:
    return [run for run in groups.runs([2**20]) if "nodes" in run.case]


def test_the_recipe_sends_tokens_to_the_experts_of_two_nodes() -> None:
    """Dispatch and combine lane by lane: right, and above the bound, which a copy a node over each rail attains."""
    found = tokens_of_the_recipe()
    assert [run.case for run in found] == [
        f"{name}, two nodes of {half}" for half in (2, 4) for name in ("dispatch", "combine")
    ]
    for run in found:
        entry = groups.measure(run, 2, "numpy", 1)
        assert entry["wrong"] == 0
        assert run.least <= entry["simulated_s"] < 1.25 * run.least
        # Tokens of a node that experts of the other one want cross the lane of 5 GB/s of their rank.
        assert isinstance(run.found, bs.Schedule)
        routing, half = run.found.collective.routing, run.found.topology.ranks // 2
        assert routing is not None
        away = [
            sum(bool({*to} & {*range(half * (node == 0), half * (node == 0) + half)}) for to in routing_to)
            for node, routing_to in enumerate(sent_by_node(routing, half))
        ]
        assert run.least >= max(away) * routing.token_size / half / 5e9 * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler to build kernels.cu with")
def test_the_kernel_sends_tokens_on_two_gpus(fake: object) -> None:
    for run in tokens_of_the_recipe()[:2]:
        entry = groups.measure(run, 2, "cupy", 1)
        assert (entry["wrong"], len(entry["times_s"])) == (0, 1)


def test_what_is_refused() -> None:
    found = together("pairs")
    with pytest.raises(bs.InputError, match="no element of every group"):
        bs.execute(found, 4)
    with pytest.raises(bs.InputError, match="groups run out of place"):
        bs.execute(found, "1MiB", in_place=True)
