"""calls.cu itself, built for the CPU: a thread for every block, and memory of one process in place of the GPUs'."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blinksim as bs
from blinksim.collective import ON_TREES
from blinksim.errors import InputError
from blinksim.gpu.jobs import backend as backends
from blinksim.gpu.jobs.backend import STATE_WORDS, GpuBackend, call_source, call_table
from blinksim.gpu.jobs.group import FolderStore, Group, GroupError, explain
from blinksim.gpu.jobs.job_plan import NOTES_BYTES, JobPlan, Planner, Rule
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.of_calls import Call, Segment

sys.path.insert(0, str(Path(__file__).parents[1] / "execution"))

import fake_cupy
from test_cuda_source import NVCC

RANKS = 3
SEGMENT = Segment.of(1 << 20)
FLOAT = ELEMENT_TYPES["float32"]
needs_compiler = pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler")


class Ranks:
    """The memory of some ranks, and launches on all of them at once."""

    def __init__(
        self,
        library: ctypes.CDLL,
        plan: JobPlan,
        packets: bool,
        segment: Segment = SEGMENT,
        blocks: int = 4,
        count: int = RANKS,
    ) -> None:
        self.library, self.segment, self.count = library, segment, count
        self.memory = [_aligned(self.segment.lent) for _ in range(count)]
        for memory in self.memory:
            memory[: self.segment.packets_at], memory[self.segment.packets_at :] = 0, 0xFF
        self.scratch = [_aligned(self.segment.scratch) for _ in range(self.count)]
        self.state = [np.zeros(STATE_WORDS, dtype=np.uint64) for _ in range(self.count)]
        self.alarm = [np.zeros(1, dtype=np.uint64) for _ in range(self.count)]
        self.planners = [Planner(plan, rank, segment, blocks, packets) for rank in range(self.count)]
        self.names: dict[int, str] = {}

    def run(self, calls: list[Call], sources: list[Any], targets: list[Any], timeout_s: float = 20.0) -> None:
        def work(rank: int) -> None:
            for launch in self.planners[rank].launches(calls[rank]):
                self.names[launch.signature] = launch.says
                own = self.scratch[rank].ctypes.data, self.alarm[rank].ctypes.data
                table = call_table(launch, rank, [memory.ctypes.data for memory in self.memory], own, self.segment)
                numbers = launch.signature, int(timeout_s * 1e9)
                self.library.launch_call(
                    ctypes.c_void_p(table.ctypes.data),
                    ctypes.c_int64(rank),
                    ctypes.c_int64(self.count),
                    ctypes.c_void_p(self.state[rank].ctypes.data),
                    ctypes.c_void_p(self.memory[rank].ctypes.data),
                    ctypes.c_void_p(sources[rank].ctypes.data + launch.at),
                    ctypes.c_void_p(targets[rank].ctypes.data + launch.at),
                    *(ctypes.c_uint64(number) for number in numbers),
                )

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def explain(self, rank: int) -> str:
        notes = self.memory[rank][:NOTES_BYTES].view(np.uint64)
        return explain(notes, rank, self.count, 0.3, self.names.__getitem__) if self.alarm[rank][0] else ""


def _aligned(size: int) -> Any:
    raw = np.zeros(size + 256, dtype=np.uint8)
    skip = -raw.ctypes.data % 256
    return raw[skip : skip + size]


def carried_out(ranks: Ranks, call: Call) -> None:
    """Every rank gets what the call promises."""
    part = call.count // call.parts(RANKS)
    given = part if call.collective == "allgather" else call.count
    sources = [np.arange(given, dtype=np.float32) % 100 + rank for rank in range(RANKS)]
    total = np.sum(sources, axis=0)
    got = part if call.collective == "reducescatter" else call.count
    targets = sources if call.parts(RANKS) == 1 else [np.zeros(got, dtype=np.float32) for _ in range(RANKS)]
    expected = {
        "allreduce": [total] * RANKS,
        "allgather": [np.concatenate(sources)] * RANKS,
        "reducescatter": np.array_split(total, RANKS),
        "broadcast": [sources[0].copy()] * RANKS,
        "reduce": [total, *(source.copy() for source in sources[1:])],
    }[call.collective]
    ranks.run([call] * RANKS, sources, targets)
    for rank in range(RANKS):
        assert np.array_equal(targets[rank], expected[rank]), (call, rank, ranks.explain(rank))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("packets", [True, False])
def test_the_kernel_carries_calls_out(packets: bool, tmp_path: Path) -> None:
    library = fake_cupy.build(call_source(FLOAT, "sum", packets), tmp_path)
    protocol = "ll128" if packets else "simple"
    chosen = {
        "allreduce": "ring",
        "allgather": "direct",
        "reducescatter": "ring",
        "broadcast": "chain",
        "reduce": "binary",
    }
    rows = ",".join(
        f'{{"collective": "{name}", "algorithm": "{what}", "protocol": "{protocol}"}}' for name, what in chosen.items()
    )
    ranks = Ranks(library, JobPlan.of(JobPlan.for_switch(RANKS).topology, f"[{rows}]"), packets)
    for collective in ON_TREES:
        for part in (1, 130, 30_001):
            call = Call(collective, part * RANKS if collective in ("allgather", "reducescatter") else part, FLOAT)
            carried_out(ranks, call)
    assert len({int(state[0]) for state in ranks.state}) == 1  # launches are counted alike


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("packets", [True, False])
def test_the_kernel_jumps_over_waves_without_work(packets: bool, tmp_path: Path) -> None:
    """Pipelines of several pieces, along a chain of ranks that begin one after another."""
    library = fake_cupy.build(call_source(FLOAT, "sum", packets), tmp_path)
    rows = [{"collective": name, "algorithm": "chain", "protocol": "ll128" if packets else "simple"} for name in
            ("broadcast", "reduce")]  # fmt: skip
    plan = JobPlan.of(JobPlan.for_switch(RANKS).topology, json.dumps(rows))
    segment = Segment.of(32 << 20)
    for collective in ("broadcast", "reduce"):
        ranks = Ranks(library, plan, packets, segment)
        call = Call(collective, 1_000_001, FLOAT, root=1)
        launch = ranks.planners[0].launches(call)[0]
        assert packets or launch.program.pieces(call.count // 2, 0) > 2
        data = [np.arange(call.count, dtype=np.float32) % 100 + rank for rank in range(RANKS)]
        expected = data[1].copy() if collective == "broadcast" else np.sum(data, axis=0)
        ranks.run([call] * RANKS, data, data)
        for rank in range(RANKS) if collective == "broadcast" else (1,):
            assert np.array_equal(data[rank], expected), ranks.explain(rank)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithms", "memory", "part"),
    [
        (("ring", "ring", "ring", "chain", "chain"), 4 << 20, 500_001),
        (("two_shot", "direct", "direct", "binary", "binary"), 256 << 10, 50_001),
    ],
)
def test_the_kernel_repeats_a_program_in_one_launch(
    algorithms: tuple[str, ...], memory: int, part: int, tmp_path: Path
) -> None:
    """Many rounds through small inboxes, call after call, with one launch of a single round between them."""
    library = fake_cupy.build(call_source(FLOAT, "sum", False), tmp_path)
    rules = [Rule(name, None, what, "simple") for name, what in zip(ON_TREES, algorithms, strict=True)]
    plan = JobPlan.for_switch(RANKS).with_rules(rules, "rounds")
    ranks, counted = Ranks(library, plan, False, Segment.of(memory), blocks=8), 0
    for collective in ON_TREES * 2:
        call = Call(collective, part * RANKS, FLOAT)
        launches = ranks.planners[0].launches(call)
        assert len(launches) <= 2  # the second one for what is left over
        assert launches[0].rounds > 3
        assert memory < 1 << 20 or launches[0].program.slices > 1
        carried_out(ranks, call)
        counted += sum(launch.rounds for launch in launches)
    assert {int(state[3]) for state in ranks.state} == {counted}


@needs_compiler
@pytest.mark.slow
def test_rounds_end_when_a_rank_does_not_come(tmp_path: Path) -> None:
    library = fake_cupy.build(call_source(FLOAT, "sum", False), tmp_path)
    ranks = Ranks(library, JobPlan.for_switch(RANKS).with_rules([Rule("allreduce", None, "ring", "simple")], "rounds"),
                  False, Segment.of(256 << 10))  # fmt: skip
    calls = [Call("allreduce", 300_000 if rank else 100, FLOAT) for rank in range(RANKS)]
    assert ranks.planners[0].launches(calls[1])[0].rounds > 3
    data = [np.ones(300_000, dtype=np.float32) for _ in range(RANKS)]
    ranks.run(calls, data, data, timeout_s=0.3)
    messages = [ranks.explain(rank) for rank in range(RANKS)]
    assert all(messages)
    assert any("must call the same" in message and "rank 0" in message for message in messages)
    assert all(np.isnan(values).all() for values in data[1:])


@needs_compiler
@pytest.mark.slow
def test_the_kernel_keeps_to_the_lanes_of_another_machine(tmp_path: Path) -> None:
    """Wires take what is ready: twice over the same memory, then a rank that calls something else."""
    library = fake_cupy.build(call_source(FLOAT, "sum", False), tmp_path)
    schedule = bs.synthesize(bs.load("dgx1-v100").select("0,2,3"), "allreduce", "packed").schedule
    plan = JobPlan.for_switch(RANKS).with_rules([Rule("allreduce", None, schedule, "simple", 1)], "lanes")
    ranks = Ranks(library, plan, False, Segment.of(8 << 20), blocks=24)
    call = Call("allreduce", 300_001, FLOAT)
    data = [np.arange(call.count, dtype=np.float32) % 100 + rank for rank in range(RANKS)]
    total = np.sum(data, axis=0)
    for expected in (total, 3 * total):
        ranks.run([call] * RANKS, data, data)
        assert all(np.array_equal(values, expected) for values in data), ranks.explain(0)
    ranks.run([Call("allreduce", 300_001 - (rank == 1), FLOAT) for rank in range(RANKS)], data, data, timeout_s=0.3)
    assert all(ranks.explain(rank) for rank in range(RANKS))
    assert all(np.isnan(values[:1000]).all() for values in data)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("packets", [True, False])
def test_the_kernel_finds_calls_that_differ(packets: bool, tmp_path: Path) -> None:
    library = fake_cupy.build(call_source(FLOAT, "sum", packets), tmp_path)
    ranks = Ranks(library, JobPlan.for_switch(RANKS), packets)
    calls = [Call("allreduce", 100 - (rank == 1), FLOAT) for rank in range(RANKS)]
    data = [np.ones(100, dtype=np.float32) for _ in range(RANKS)]
    ranks.run(calls, data, data, timeout_s=0.3)
    messages = [ranks.explain(rank) for rank in range(RANKS)]
    assert all(messages)
    assert any("allreduce of 99 float32" in message and "rank 1" in message for message in messages)
    assert all(np.isnan(values[:99]).all() for values in data)
    # Nothing is done any more until the group is made anew.
    data = [np.ones(100, dtype=np.float32) for _ in range(RANKS)]
    ranks.run([Call("allreduce", 100, FLOAT)] * RANKS, data, data, timeout_s=0.3)
    assert all(np.isnan(values).all() for values in data)


def capture(group: Group, call: Call) -> None:
    """A call while the stream is captured in a graph."""
    stream = group.backend.stream  # type: ignore[union-attr]
    group.backend.go_on(stream.ptr)  # type: ignore[union-attr]
    stream.is_capturing = lambda: True
    try:
        group.run(call, 0, 0)
    finally:
        del stream.is_capturing


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["simple", "ll128"])
def test_groups_on_gpus_do_what_those_in_shared_memory_do(
    protocol: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The GPU backend on a stand-in for CuPy, a thread for every rank."""
    fake_cupy.build(call_source(FLOAT, "sum", protocol == "ll128"), tmp_path)
    rows = [{"collective": name, "algorithm": "direct", "protocol": protocol} for name in ON_TREES]
    plan = JobPlan.of(JobPlan.for_switch(RANKS).topology, json.dumps(rows))

    def work(rank: int) -> tuple[Any, str]:
        store = FolderStore(tmp_path / "store")
        backend = GpuBackend(rank, blocks=4)
        group = Group(store, rank, plan, backend, SEGMENT, timeout_s=60)
        found = []
        # Each call on another stream than the one before.
        with backend.cupy.cuda.Device(rank):
            streams = [backend.stream, *(backend.cupy.cuda.Stream() for _ in range(2))]
        for number, collective in enumerate(ON_TREES):
            backend.go_on(streams[number % 3].ptr)
            part = 5000  # several launches
            call = Call(collective, part * RANKS, FLOAT)
            given = np.arange(part if collective == "allgather" else part * RANKS, dtype=np.float32) + rank
            target = given
            if call.parts(RANKS) > 1:
                target = np.zeros(part if collective == "reducescatter" else part * RANKS, dtype=np.float32)
            group.run(call, given.ctypes.data, target.ctypes.data)
            group.finish()
            found.append(target)
        message, short = "", np.ones(100, dtype=np.float32)
        try:
            call = Call("allreduce", 100 - rank // 2, FLOAT)
            with pytest.raises(InputError, match="once before you capture it"):
                capture(group, call)
            group.run(call, short.ctypes.data, short.ctypes.data)
            group.finish()
        except GroupError as error:
            message = str(error)
        group.close()
        return found, message

    with fake_cupy.installed(monkeypatch, tmp_path, RANKS), ThreadPoolExecutor(RANKS) as threads:
        monkeypatch.setattr(backends, "keeps_lines_whole", lambda cupy, gpus: True)
        ranks = [threads.submit(work, rank) for rank in range(RANKS)]
        # All of them: where one fails the others wait for it in vain.
        assert not [error for rank in ranks if (error := rank.exception())]
        answers = [rank.result() for rank in ranks]
    part = 5000
    sums = np.arange(part * RANKS, dtype=np.float32) * RANKS + sum(range(RANKS))
    for rank, (found, message) in enumerate(answers):
        allreduce, allgather, reducescatter, broadcast, reduce = found
        assert np.array_equal(allreduce, sums)
        assert np.array_equal(allgather.reshape(RANKS, part), [np.arange(part) + other for other in range(RANKS)])
        assert np.array_equal(reducescatter, sums[rank * part : (rank + 1) * part])
        assert np.array_equal(broadcast, np.arange(part * RANKS))
        assert rank or np.array_equal(reduce, sums)
        assert "must call the same" in message or "has failed" in message


def test_launches_of_two_groups_fit_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By default half the registers of a GPU at most; and never more blocks than run at once."""
    most_threads = 65536 // 128
    for processors in (20, 108, 132, 160):
        with fake_cupy.installed(monkeypatch, tmp_path, 2, blocks=processors):
            monkeypatch.setattr(backends, "keeps_lines_whole", lambda cupy, gpus: True)
            for asked in (None, 8, 10_000):
                backend = GpuBackend(1, blocks=asked)
                launches = Planner(JobPlan.for_switch(2), 0, Segment(), backend.blocks)
                for count in (1000, 1 << 20, 1 << 26):
                    program = launches.launches(Call("allreduce", count, FLOAT))[0].program
                    grid = len(program.queues_of(0)) * program.slices
                    room = processors * (most_threads // backends.threads_of(program, grid, backend.blocks))
                    assert grid * (1 if asked == 10_000 else 2) <= room


def test_streams_follow_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a caller has queued runs before the calls behind it, and those before what waits for their mark."""
    with fake_cupy.installed(monkeypatch, tmp_path, 2) as cupy:
        monkeypatch.setattr(backends, "keeps_lines_whole", lambda cupy, gpus: True)
        backend = GpuBackend(1)  # which is not the current one: events and launches are its own all the same
        with cupy.cuda.Device(1):
            caller, later = cupy.cuda.Stream(), cupy.cuda.Stream()
        order: list[str] = []

        def note(what: str) -> None:
            time.sleep(0.02)
            order.append(what)

        for turn in "12":
            caller.queue(partial(note, f"before {turn}"))
            backend.follow(caller)
            backend.stream.queue(partial(note, f"call {turn}"))
            backend.precede(backend.mark(), later)
            later.queue(partial(note, f"after {turn}"))
        later.synchronize()
    for turn in "12":
        assert [entry for entry in order if turn in entry] == [f"{what} {turn}" for what in ("before", "call", "after")]


def test_turns_on_several_streams_follow_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """But what a graph has captured runs when the graph does, and holds nothing back."""
    with fake_cupy.installed(monkeypatch, tmp_path, 2) as cupy:
        monkeypatch.setattr(backends, "keeps_lines_whole", lambda cupy, gpus: True)
        waits: list[tuple[str, str]] = []
        backend = GpuBackend(1)
        with cupy.cuda.Device(1):
            streams = {"own": backend.stream, "a": cupy.cuda.Stream(), "b": cupy.cuda.Stream()}
        captured: set[str] = set()
        for name, stream in streams.items():
            stream.is_capturing = lambda name=name: name in captured
        names = {id(stream): name for name, stream in streams.items()}
        recorded = [""]
        monkeypatch.setattr(cupy.cuda.runtime, "eventRecord", lambda e, at: recorded.__setitem__(0, names[id(at)]))
        monkeypatch.setattr(
            cupy.cuda.runtime, "streamWaitEvent", lambda at, e: waits.append((names[id(at)], recorded[0]))
        )

        def launch(name: str) -> list[tuple[str, str]]:
            waits.clear()
            backend.go_on(streams[name].ptr)
            backend.in_graph = name in captured  # as a launch does
            if name != "own":
                recorded[0] = name
            return waits.copy()

        assert launch("own") == []
        assert launch("a") == [("a", "own")]
        assert launch("a") == []
        assert launch("b") == [("b", "a")]
        assert launch("own") == [("own", "b")]
        captured.update("ab")
        assert launch("a") == []
        assert launch("b") == [("b", "a")]
        captured.clear()
        assert launch("own") == []
        assert launch("b") == [("b", "own")]
        # A call with a stream of its own has it wait for the caller's, and that is enough.
        waits.clear()
        backend.follow(streams["b"].ptr)
        assert waits == [("own", "b")]
        assert launch("own") == []
        # The default stream is marked when another one follows it, not behind every launch.
        runtime = cupy.cuda.runtime
        monkeypatch.setattr(runtime, "streamIsCapturing", lambda at: at != 0 and at.is_capturing())
        names[id(0)] = "default"
        backend.go_on(0)
        assert launch("b") == [("b", "default")]
        # Events are made once.
        event = backend.mark()
        assert backend.mark() is not event
        backend.take_back(event)
        assert backend.mark() is event


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize(("dtype", "op", "packets"), [("float32", "sum", False), ("bfloat16", "max", True)])
def test_nvcc_compiles_calls(dtype: str, op: str, packets: bool, tmp_path: Path) -> None:
    source = tmp_path / "calls.cu"
    source.write_text(call_source(ELEMENT_TYPES[dtype], op, packets))
    command = [str(NVCC), "-std=c++17", "-arch=sm_90", "-ptx", "-o", str(tmp_path / "calls.ptx"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
