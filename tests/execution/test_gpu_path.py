"""The GPU executor without GPUs: the tables it packs, and all of it on a stand-in for CuPy.

Where there is a C++ compiler, the stand-in runs kernels.cu itself: built for the CPU, a thread or two for every block,
with real flags between the "GPUs". That leaves the launch and the hardware's memory model to the tests on GPUs.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError, MissingError
from blinksim.gpu.execution import gpu_devices
from blinksim.gpu.execution.cupy_executor import Kernels, Runner, explain_timeout, protocol_for
from blinksim.gpu.execution.gpu_devices import Stopwatch, map_devices
from blinksim.gpu.execution.numpy_executor import interpret
from blinksim.gpu.execution.reference import Reference
from blinksim.gpu.execution.run import Execution, execute
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.fit import fit, worth_staging
from blinksim.gpu.programs.of_calls import MOST_SOURCES, MOST_TARGETS, compile_schedule
from blinksim.gpu.programs.program import PACKET_BYTES, ExecutionError, Program, ProtocolName, receivers
from blinksim.gpu.programs.tables import (
    ERROR_WORDS,
    HEAD_WORDS,
    IN_INBOX,
    OP_WORDS,
    buffer_bytes,
    kernel_source,
    pack,
)
from blinksim.schedule.model import Schedule
from blinksim.topology.shapes import fully_connected, one_switch

INT32 = ELEMENT_TYPES["int32"]
SOURCE = files("blinksim.gpu.execution").joinpath("kernels.cu").read_text()


def build(name: str = "ring", collective: str = "allreduce", ranks: int = 4, root: int = 0) -> Schedule:
    return REGISTRY[name].build(fully_connected(ranks).select(), Collective(collective, root))


def run_once(schedule: Schedule, size: int, **options: Any) -> Execution:
    """A run of one launch on the stand-in, with flags and not with packets."""
    once: dict[str, Any] = {"protocol": "simple", "warmup": 0, "iterations": 1, **options}
    return execute(schedule, size, executor="cupy", **once)


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "collective"), [("ring", "allreduce"), ("binary", "reduce"), ("direct", "alltoall")])
def test_tables_say_what_the_program_says(name: str, collective: str) -> None:
    program = fit(compile_schedule(build(name, collective, 5), 3000, INT32), 6, slices=2)
    buffers = [[(device + 1) * 10**9 + buffer * 10**8 for buffer in range(4)] for device in range(5)]
    flags = [(device + 1) * 10**12 for device in range(5)]
    heralds = [(device + 1) * 10**15 for device in range(5)]
    tables = pack(program, buffers, flags, heralds)
    for device, table in enumerate(tables):
        queues = program.queues_of(device)
        assert table[:5].tolist() == [len(queues), 2, program.order, 128 // 4, program.piece_units]
        told, awaited, staged, half, stride = table[5:10].tolist()
        assert half == 0
        herald_at = HEAD_WORDS + stride * len(queues)
        assert staged == program.staged
        assert len(table) == herald_at + told + awaited
        senders = [other for other, targets in enumerate(receivers(program)) if device in targets]
        assert table[herald_at : herald_at + told].tolist() == [heralds[x] + 8 * device for x in senders]
        expected = [heralds[device] + 8 * x for x in receivers(program)[device]]
        assert table[herald_at + told :].tolist() == expected
        lengths = []
        for place, queue in enumerate(queues):
            begin = HEAD_WORDS + stride * place
            words = table[begin : begin + stride]
            lengths.append(check_queue(program, int(queue), words, device, buffers, flags))
            assert not words[lengths[-1] :].any()
        assert max(lengths) == stride


def check_queue(
    program: Program, queue: int, words: np.ndarray, device: int, buffers: list[list[int]], flags: list[int]
) -> int:
    first, last = program.queue_start[queue : queue + 2].tolist()
    assert words[0] == last - first
    ops = words[1 : 1 + OP_WORDS * (last - first + 1)].reshape(-1, OP_WORDS)
    for number in range(first, last):
        row, after = ops[number - first], ops[number - first + 1]
        assert row[:3].tolist() == [program.length[number], program.key[number], number]
        sources, targets, waits, signals = (words[row[i] : after[i]].tolist() for i in range(3, 7))
        assert sources == [buffers[device][b] + 4 * o for b, o in program.rows("sources", number)]
        assert targets == [buffers[d][b] + 4 * o for d, b, o in program.rows("destinations", number)]
        assert waits == [flags[device] + 16 * flag for (flag,) in program.rows("waits", number)]
        assert signals == [flags[d] + 16 * flag for d, flag in program.rows("signals", number)]
    return int(ops[-1, 6])


def test_packets_need_no_flags_between_devices() -> None:
    """By hand, for a chain of three: the middle reads its inbox, stores its result and sends on, and nobody waits."""
    program = compile_schedule(build("chain", "broadcast", 3), 1000, INT32, packets=True).cut(1, 4800)
    assert program.unit == 120
    assert program.sizes.tolist() == [[1000, 1000, 0, 0], [0, 1000, 0, 1080], [0, 1000, 0, 1080]]
    assert len(program.waits) == len(program.signals) == 2
    buffers = [[(device + 1) << 32 | buffer << 24 for buffer in range(4)] for device in range(3)]
    tables = pack(program, buffers, [1 << 40] * 3, [1 << 41] * 3)
    inbox = [IN_INBOX + row[3] for row in buffers]
    expected = [
        ([buffers[0][0]], [inbox[1], buffers[0][1]]),
        ([inbox[1]], [inbox[2], buffers[1][1]]),
        ([inbox[2]], [buffers[2][1]]),
    ]
    for table, (sources, targets) in zip(tables, expected, strict=True):
        assert table[8] == 1080 // 120 * 512
        words = table[HEAD_WORDS : HEAD_WORDS + table[9]]
        op, after = words[1 : 1 + OP_WORDS], words[1 + OP_WORDS : 1 + 2 * OP_WORDS]
        assert words[op[3] : after[3]].tolist() == sources
        assert sorted(words[op[4] : after[4]].tolist()) == sorted(targets)
        assert (op[5], op[6]) == (after[5], after[6])


def test_the_kernel_agrees_with_the_tables() -> None:
    head = re.search(r"enum \{ (QUEUES, .*?) \};", SOURCE)
    op = re.search(r"enum \{ (LENGTH, .*?) \};", SOURCE)
    assert head is not None
    assert op is not None
    assert head[1].split(", ").index("HEAD_WORDS") == HEAD_WORDS
    assert op[1].split(", ").index("OP_WORDS") == OP_WORDS
    assert len(re.findall(r"error\[\d\] =", SOURCE)) == ERROR_WORDS - 1
    assert f"MOST_SOURCES = {MOST_SOURCES}, MOST_TARGETS = {MOST_TARGETS};" in SOURCE
    assert f"__launch_bounds__({gpu_devices.THREADS}, 1)" in SOURCE
    assert f"DATA = {PACKET_BYTES}," in SOURCE
    assert f"IN_INBOX = 1LL << {IN_INBOX.bit_length() - 1};" in SOURCE
    assert f"WARP = {gpu_devices.WARP};" in SOURCE


@pytest.mark.parametrize(
    ("name", "op", "head"),
    [
        ("int32", "sum", ["unsigned int", "unsigned int", "0", "0"]),
        ("int32", "min", ["int", "int", "0", "2"]),
        ("int8", "prod", ["unsigned char", "unsigned int", "0", "1"]),
        ("bfloat16", "max", ["unsigned short", "float", "2", "3"]),
        ("float64", "sum", ["double", "double", "0", "0"]),
    ],
)
def test_kernel_source_defines_its_types(name: str, op: str, head: list[str]) -> None:
    source = kernel_source(ELEMENT_TYPES[name], op)
    assert [line.split(" ", 2)[2] for line in source.splitlines()[:4]] == head
    assert source.endswith(SOURCE)


def test_a_timeout_is_told_with_the_op() -> None:
    program = compile_schedule(build(), 100, INT32)
    report = [1, 5, 2, 0, (1 << 32) + 3, (1 << 32) + 2]
    text = explain_timeout(program, 1, report, 500_000_000)
    assert text.startswith(
        "gpu1 gave up after 0.5 s of waiting for piece 2 (flag at 0x100000002, needs 0x100000003) in op 5"
    )
    text = explain_timeout(program, 0, [1, 2**64 - 1, 0, 0, 1, 0], 5_000_000_000)
    assert text == "gpu0 gave up after 5 s of waiting for the other GPUs to begin"


# --- the whole path on a stand-in -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def fake(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.setattr(gpu_devices, "native_atomics", lambda gpu, peer: True)
    with fake_cupy.installed(monkeypatch, built) as module:
        yield module


needs_compiler = pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler to build kernels.cu with")

CASES = [
    pytest.param("ring", "allreduce", 0, "int32", "prod", marks=pytest.mark.slow),
    pytest.param("two_shot", "allreduce", 0, "bfloat16", "sum", marks=pytest.mark.slow),
    pytest.param("double_binary", "allreduce", 0, "float16", "sum", marks=pytest.mark.slow),
    pytest.param("direct", "alltoall", 0, "uint8", "sum", marks=pytest.mark.slow),
    pytest.param("direct", "scatter", 3, "int32", "prod", marks=pytest.mark.slow),
    ("chain", "reduce", 2, "bfloat16", "sum"),
    pytest.param("ring", "reducescatter", 0, "float16", "sum", marks=pytest.mark.slow),
]


CUTS: list[tuple[int | None, int | None, ProtocolName]] = [
    (None, None, "simple"),
    (1, 512, "ll128"),
    (3, 512, "simple"),
]


@needs_compiler
@pytest.mark.parametrize(("name", "collective", "root", "dtype", "op"), CASES)
def test_kernels_are_right(fake: object, name: str, collective: str, root: int, dtype: str, op: str) -> None:
    schedule = build(name, collective, 4, root)
    size = ELEMENT_TYPES[dtype].itemsize
    for count in (3, 5001):
        for in_place in (False, True)[: 1 if collective == "alltoall" else 2]:
            for slices, piece, protocol in CUTS:
                run = execute(
                    schedule,
                    count * size,
                    executor="cupy",
                    dtype=dtype,
                    op=op,
                    in_place=in_place,
                    slices=slices,
                    piece_bytes=piece,
                    protocol=protocol,
                    warmup=1,
                    iterations=2,
                )
                assert run.wrong == 0
                assert len(run.times_s) == 2
                assert run.hardware == ("Fake GPU",) * 4


WAYS = [{}, {"staged": True}, {"packets": True}]


@needs_compiler
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "".join(way) or "direct")
@pytest.mark.parametrize("name", ["ring", "direct", "chain"])
def test_kernel_and_numpy_agree_to_the_bit(fake: object, name: str, way: dict[str, bool]) -> None:
    """With several sources too: they are added up before anything is rounded."""
    schedule = build(name)
    kind = ELEMENT_TYPES["bfloat16"]
    program = fit(compile_schedule(schedule, 999, kind, **way), 6, slices=2, piece_bytes=64)
    reference = Reference(schedule.collective, 4, 999, kind)
    chosen = map_devices(program, schedule.topology)
    runner = Runner(program, Kernels(program, "sum", chosen), chosen)
    runner.load(reference)
    runner.launch()
    runner.synchronize()
    expected = interpret(program, [reference.inputs(rank) for rank in range(4)])
    for got, wanted in zip(runner.outputs(), expected, strict=True):
        assert np.array_equal(got, wanted)


@needs_compiler
def test_a_program_that_cannot_finish_ends_in_an_error_and_the_next_one_runs(fake: object) -> None:
    schedule = build("chain", "broadcast")
    program = compile_schedule(schedule, 400, INT32)
    chosen = map_devices(program, schedule.topology)
    kernels = Kernels(program, "prod", chosen)
    signals, flags = program.signals.copy(), program.flags + 1
    signals[0, 1] = program.flags[signals[0, 0]]
    runner = Runner(replace(program, signals=signals, flags=flags), kernels, chosen, timeout_s=0.2)
    reference = Reference(schedule.collective, 4, 400, INT32)
    runner.load(reference)
    runner.launch()
    with pytest.raises(ExecutionError, match=r"gpu1 gave up after 0.2 s of waiting for piece 0 .* in op \d+ on gpu1"):
        runner.synchronize()
    runner = Runner(program, kernels, chosen)
    runner.load(reference)
    for _ in range(3):
        runner.launch()
    runner.synchronize()
    assert runner.compare(reference) == (0, 0.0)


def test_iterations_apart_do_not_overlap(fake: object) -> None:
    """One GPU takes five times as long as the other: the other gets ahead, unless they are kept apart."""
    streams = [fake_cupy.Stream(), fake_cupy.Stream()]
    seen: list[tuple[int, str, float]] = []

    def launch() -> None:
        for number, stream in enumerate(streams):

            def work(number: int = number) -> None:
                seen.append((number, "begin", time.perf_counter()))
                time.sleep((0.01, 0.05)[number])
                seen.append((number, "end", time.perf_counter()))

            stream.queue(work)

    def finish() -> None:
        for stream in streams:
            stream.synchronize()

    for apart in (False, True):
        seen.clear()
        times = Stopwatch([0, 1], streams).time(launch, finish, warmup=0, iterations=5, apart=apart)
        slow = [at for number, what, at in seen if (number, what) == (1, "end")]
        quick = [at for number, what, at in seen if (number, what) == (0, "begin")]
        # The first iteration is for the host's own overhead, the second has nothing before it.
        assert all(end <= begin for end, begin in zip(slow[1:], quick[2:], strict=False)) == apart
        # Apart, five runs of the slow one, and for the quick one four of them and its own: the mean is no less, however
        # busy this CPU is. Otherwise 150 ms, and room for a busy one.
        assert (sum(times) >= (5 * 0.05 + 4 * 0.05 + 0.01) / 2) == apart


@pytest.mark.slow
@needs_compiler
def test_lanes_can_be_slowed_down(fake: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of two on a single lane, which carries the vector once, and can be told how long to take for it."""
    size, rate = 1 << 16, 4e5
    cut: dict[str, Any] = {"lane_blocks": 1, "piece_bytes": 4096, "warmup": 0, "iterations": 2}
    chain = build("chain", "broadcast", ranks=2)
    monkeypatch.setattr(fake_cupy.Device, "blocks", 12)
    limited: dict[str, Any] = {**cut, "lane_rate": rate}
    slow = execute(chain, size, executor="cupy", **limited)
    assert slow.ok
    assert slow.time_s is not None
    assert max(slow.times_s) >= size / rate
    quick = execute(chain, size, executor="cupy", **cut)
    assert quick.time_s is not None
    assert max(quick.times_s) < size / rate
    with pytest.raises(InputError, match="lane_rate is for the blocks of lanes"):
        execute(build("ring"), size, lane_rate=rate)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("way", WAYS[1:], ids=lambda way: "".join(way))
@pytest.mark.parametrize(("name", "collective"), [("chain", "reduce"), ("ring", "allreduce"), ("direct", "alltoall")])
def test_data_of_one_launch_are_not_taken_for_those_of_another(
    fake: object, name: str, collective: str, way: dict[str, bool]
) -> None:
    """Other data in every launch, several launches in the queue at once, and a count that fills no packet."""
    schedule = build(name, collective)
    program = fit(compile_schedule(schedule, 1003, INT32, **way), 6)
    chosen = map_devices(program, schedule.topology)
    runner = Runner(program, Kernels(program, "sum", chosen), chosen)
    for turn in range(5):
        reference = Reference(schedule.collective, 4, 1003, INT32)
        runner.load(reference)
        for _ in range(turn):
            runner.launch()
        for buffer in runner.buffers[0][:1]:
            buffer += turn
        others = Reference(schedule.collective, 4, 1003, INT32)
        inputs = [others.inputs(rank) + (turn if rank == 0 else 0) for rank in range(4)]
        runner.synchronize()
        runner.launch()
        runner.synchronize()
        expected = interpret(program, inputs)
        for got, wanted in zip(runner.outputs(), expected, strict=True):
            assert np.array_equal(got, wanted)


@needs_compiler
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "".join(way) or "direct")
def test_who_sends_to_inboxes_is_one_launch_ahead_and_no_further(fake: Any, way: dict[str, bool]) -> None:
    """The first of a chain ends a second launch before the others begin it if inboxes have room, and never a third."""
    schedule = build("chain", "broadcast", 3)
    program = fit(compile_schedule(schedule, 1003, INT32, **way), 6)
    chosen = map_devices(program, schedule.topology)
    runner = Runner(program, Kernels(program, "sum", chosen), chosen, timeout_s=0.2)
    runner.load(Reference(schedule.collective, 3, 1003, INT32))
    runner.launch()
    runner.synchronize()
    gave_up = []
    for epoch in (2, 3):
        arguments = (runner.tables[0], *runner.heads[0], np.uint64(epoch), runner.timeout, runner.errors[0])
        with runner.streams[0]:
            runner.kernels.run[chosen[0]]((runner.grids[0],), (runner.kernels.threads,), arguments)
        runner.streams[0].synchronize()
        gave_up.append(bool(runner.errors[0][0]))
    assert gave_up == ([False, True] if way else [True, True])


def test_what_lands_in_an_inbox_is_marked() -> None:
    """By hand, for a chain of three: the last copies its inbox out, the first stores to that of the middle."""
    program = compile_schedule(build("chain", "broadcast", 3), 1000, INT32, staged=True)
    assert program.sizes[:, 3].tolist() == [0, 1024, 1024]
    buffers = [[(device + 1) << 32 | buffer << 24 for buffer in range(4)] for device in range(3)]
    tables = pack(program, buffers, [1 << 40] * 3, [1 << 41] * 3)
    assert [table[8] for table in tables] == [1024 * 4] * 3
    expected = [
        ([buffers[0][0]], {IN_INBOX + buffers[1][3], buffers[0][1]}),
        ([IN_INBOX + buffers[1][3]], {IN_INBOX + buffers[2][3], buffers[1][1]}),
        ([IN_INBOX + buffers[2][3]], {buffers[2][1]}),
    ]
    for table, (sources, targets) in zip(tables, expected, strict=True):
        words = table[HEAD_WORDS : HEAD_WORDS + table[9]]
        op, after = words[1 : 1 + OP_WORDS], words[1 + OP_WORDS : 1 + 2 * OP_WORDS]
        assert words[op[3] : after[3]].tolist() == sources
        assert set(words[op[4] : after[4]].tolist()) == targets


@pytest.mark.parametrize(
    ("name", "collective", "ranks", "size", "expected"),
    [
        ("chain", "broadcast", 4, 1 << 26, True),
        ("chain", "broadcast", 2, 1 << 26, False),  # nobody passes anything on
        ("chain", "reduce", 2, 1 << 26, True),  # but what is added up would land beside the output anyway
        ("double_binary", "reduce", 4, 1 << 30, True),
        ("double_binary", "reduce", 4, (1 << 30) + 4, False),  # memory
        ("chain", "allreduce", 4, 1 << 26, False),  # both ways
        ("ring", "allgather", 4, 1 << 26, False),
    ],
)
def test_what_goes_one_way_is_staged(name: str, collective: str, ranks: int, size: int, expected: bool) -> None:
    assert worth_staging(build(name, collective, ranks), size) == expected


@pytest.mark.slow
@needs_compiler
def test_a_run_says_whether_it_was_staged(fake: object) -> None:
    chain = build("chain", "broadcast")
    assert [run_once(chain, 400, staged=staged).staged for staged in (None, True, False)] == [True, True, False]
    assert execute(chain, 400).staged is False
    assert execute(chain, 400, staged=True).to_dict()["staged"] is True
    assert execute(chain, 400, protocol="ll128").staged is True
    assert execute(chain, 400, executor="cupy", staged=False, warmup=0, iterations=1).protocol == "simple"
    with pytest.raises(InputError, match=r"packets always go through inboxes; .* take protocol=simple"):
        execute(chain, 400, protocol="ll128", staged=False)
    with pytest.raises(InputError, match="an emulated machine hands data on without inboxes"):
        execute(build("chain", "broadcast"), 400, lane_blocks=1, staged=True)


@pytest.mark.slow
@needs_compiler
def test_memory_decides_whether_runs_are_staged(fake: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever passes data on needs room for its output, and for two inboxes of as much where it is staged."""
    chain = build("chain", "broadcast")
    program = compile_schedule(chain, 1 << 16, INT32, staged=True)
    assert [sum(buffer_bytes(program, device)) >> 18 for device in range(4)] == [2, 3, 3, 3]
    for free, staged in ((4 << 18, True), (3 << 18, False)):
        monkeypatch.setattr(fake_cupy.Device, "free", free)
        assert run_once(chain, 1 << 18).staged == staged
    # GPUs that are not there have no memory to look at.
    with pytest.raises(MissingError, match="there is no GPU 9"):
        run_once(chain, 1 << 18, gpus=[0, 1, 2, 9])
    with pytest.raises(MissingError, match="this machine has 4"):
        run_once(build("chain", "broadcast", 5), 1 << 18)
    with pytest.raises(InputError, match="5 are named"):
        run_once(chain, 1 << 18, gpus=[0, 1, 2, 3, 0])
    monkeypatch.setattr(fake_cupy.Device, "free", 1 << 17)
    with pytest.raises(MissingError, match=r"GPU 0 has no memory left for 256 KiB; take a smaller size"):
        run_once(chain, 1 << 18)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "".join(way) or "direct")
def test_data_that_never_come_end_in_an_error_and_old_ones_are_forgotten(fake: object, way: dict[str, bool]) -> None:
    schedule = build("chain", "broadcast")
    program = compile_schedule(schedule, 400, INT32, **way)
    chosen = map_devices(program, schedule.topology)
    kernels = Kernels(program, "prod", chosen)
    reference = Reference(schedule.collective, 4, 400, INT32)
    runner = Runner(program, kernels, chosen, timeout_s=0.2)
    runner.load(reference)
    for _ in range(3):
        runner.launch()
    runner.synchronize()
    good = runner.tables[0].copy()
    # The root has nothing to send: a queue of no ops.
    runner.tables[0][HEAD_WORDS] = 0
    runner.launch()
    with pytest.raises(ExecutionError, match=r"gpu1 gave up after 0.2 s of waiting for piece 0 .* in op \d+ on gpu1"):
        runner.synchronize()
    runner.launch()
    with pytest.raises(ExecutionError, match="gpu1 gave up"):
        runner.synchronize()
    runner.tables[0][:] = good
    runner.load(reference)
    for _ in range(3):
        runner.launch()
    runner.synchronize()
    assert runner.compare(reference) == (0, 0.0)


@needs_compiler
@pytest.mark.parametrize("way", WAYS[:2], ids=lambda way: "".join(way) or "direct")
def test_flags_may_be_raised_long_after_their_pieces(
    fake: object, way: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block is ahead of its posters by as many pieces as they have room for."""
    monkeypatch.setenv("BLINKSIM_FENCE_US", "300")
    for name, collective in (("ring", "allreduce"), ("chain", "reduce")):
        run = execute(
            build(name, collective),
            16_000,
            executor="cupy",
            protocol="simple",
            slices=1,
            piece_bytes=128,
            staged=bool(way),
            iterations=2,
        )
        assert run.wrong == 0


@needs_compiler
@pytest.mark.slow
def test_the_fewest_threads_are_enough(fake: object) -> None:
    fewest: tuple[tuple[ProtocolName, int], ...] = (("ll128", 32), ("simple", 64))
    for protocol, threads in fewest:
        assert execute(build("ring"), 4000, executor="cupy", threads=threads, protocol=protocol, iterations=1).ok


@needs_compiler
def test_an_op_may_wait_for_more_than_is_kept_in_mind(fake: object) -> None:
    """Every rank's own flag is awaited ten times over by the op that adds up."""
    schedule = build("direct", "reduce", 3)
    program = compile_schedule(schedule, 400, INT32)
    adds = next(op for op in range(program.ops) if len(program.rows("sources", op)) == 3)
    waits = [program.rows("waits", op) * (5 if op == adds else 1) for op in range(program.ops)]
    assert len(waits[adds]) == 10
    rows = np.array([row for every in waits for row in every]).reshape(-1, 1)
    many = replace(program, wait_start=np.cumsum([0, *map(len, waits)]), waits=rows)
    chosen = map_devices(many, schedule.topology)
    runner = Runner(many, Kernels(many, "sum", chosen), chosen)
    reference = Reference(schedule.collective, 3, 400, INT32)
    runner.load(reference)
    runner.launch()
    runner.synchronize()
    assert runner.compare(reference) == (0, 0.0)


@needs_compiler
def test_iterations_are_timed_between_marks(fake: object) -> None:
    program = compile_schedule(build("ring", ranks=2), 10, INT32)
    chosen = map_devices(program, fully_connected(2).select())
    runner = Runner(program, Kernels(program, "prod", chosen), chosen)
    launches = []

    def launch() -> None:
        launches.append(1)
        for stream in runner.streams:
            stream.queue(lambda: time.sleep(0.003))

    times = Stopwatch(chosen, runner.streams).time(launch, runner.synchronize, warmup=2, iterations=4)
    # Warm-up, one to see how long they take to queue, one that is not timed, and those that are.
    assert len(launches) == 2 + 1 + 1 + 4
    assert len(times) == 4
    assert all(0.003 <= time < 0.1 for time in times)


def test_missing_hardware_is_named(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = build()
    program = compile_schedule(schedule, 10, INT32)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module(built, gpus=2))
    with pytest.raises(MissingError, match="runs on 4 GPUs, and this machine has 2"):
        map_devices(program, schedule.topology)
    with pytest.raises(MissingError, match="there is no GPU 2: this machine has 2"):
        map_devices(program, schedule.topology, [0, 1, 2, 0])
    with pytest.raises(InputError, match="4 GPUs, and 2 are named"):
        map_devices(program, schedule.topology, [0, 1])
    assert map_devices(program, schedule.topology, [0, 0, 1, 1]) == [0, 0, 1, 1]
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module(built, gpus=0))
    with pytest.raises(MissingError, match="this machine has none"):
        map_devices(program, schedule.topology)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module(built, peers=False))
    with pytest.raises(MissingError, match="cannot access the memory of GPU"):
        map_devices(program, schedule.topology)


def test_peer_access_is_enabled_for_neighbours_only(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_cupy.module(built)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(gpu_devices, "native_atomics", lambda gpu, peer: True)
    schedule = build("chain")
    program = compile_schedule(schedule, 10, INT32)
    for _ in range(2):  # enabled already the second time
        map_devices(program, schedule.topology)
    sends = {(a, b) for a, others in enumerate(receivers(program)) for b in others}
    assert module.enabled == sends | {(b, a) for a, b in sends}
    assert len(module.enabled) == 6


def test_packets_only_go_where_lines_stay_whole(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default not, if asked for with a message: PCIe may split a line, and so may old GPUs."""
    schedule = build("chain", "broadcast")
    assert protocol_for(schedule, 1 << 20) == "ll128"
    assert protocol_for(schedule, 1 << 30) == "simple"
    assert protocol_for(schedule, 1 << 20, wanted="simple") == "simple"
    monkeypatch.setattr(gpu_devices, "native_atomics", lambda gpu, peer: {gpu, peer} != {1, 3})
    assert protocol_for(schedule, 1 << 20) == "simple"
    assert protocol_for(schedule, 1 << 20, gpus=[0, 1, 2, 0]) == "ll128"
    with pytest.raises(InfeasibleError, match=r"ll128 needs NVLink between all GPUs .*; take protocol=simple"):
        execute(schedule, 1 << 20, executor="cupy", protocol="ll128")
    monkeypatch.setattr(gpu_devices, "native_atomics", lambda gpu, peer: True)
    monkeypatch.setattr(fake_cupy.Device, "compute_capability", "61")
    assert protocol_for(schedule, 1 << 20) == "simple"


def test_measured_gpus_take_the_protocol_that_is_simulated_to_be_quicker(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reduction of 16 MiB to one of two H200 by two trees took 56.5 us with flags and 68.7 us in packets."""
    monkeypatch.setattr(gpu_devices, "native_atomics", lambda gpu, peer: True)
    pair = one_switch(2, bandwidth=Fraction(450 * 10**9)).select()
    schedule = REGISTRY["double_binary"].build(pair, Collective("reduce"))
    assert protocol_for(schedule, 16 << 20) == "ll128"
    runtime = sys.modules["cupy"].cuda.runtime
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda gpu: {"name": b"NVIDIA H200"})
    assert protocol_for(schedule, 16 << 20) == "simple"
    assert protocol_for(schedule, 1 << 20) == "ll128"
    assert protocol_for(schedule, 16 << 20, wanted="ll128") == "ll128"
    # A GPU that stands for two was not measured, nor were direct links of more than two.
    assert protocol_for(schedule, 16 << 20, gpus=[0, 0]) == "ll128"
    direct = REGISTRY["double_binary"].build(
        fully_connected(3, bandwidth=Fraction(10**9)).select(), Collective("reduce")
    )
    assert protocol_for(direct, 16 << 20) == "ll128"


def test_a_machine_without_a_driver_has_no_atomics_between_gpus() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        assert not gpu_devices.native_atomics(0, 1)


def test_too_many_targets_are_refused(fake: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_cupy.Device, "blocks", 200)
    schedule = build("direct", "broadcast", ranks=40)
    with pytest.raises(InputError, match="would store to 40 places at once, and the kernel to 32 at most"):
        execute(schedule, 4000, executor="cupy", protocol="simple", gpus=[0, 1] * 20, slices=1)


def test_too_many_blocks_are_refused(fake: object) -> None:
    schedule = build("direct", "alltoall")
    program = compile_schedule(schedule, 1000, INT32).cut(4, 512)
    chosen = map_devices(program, schedule.topology)
    kernels = Kernels.__new__(Kernels)
    kernels.cupy, kernels.run, kernels.blocks = fake, {}, 6
    with pytest.raises(InputError, match="needs 16 thread blocks on a GPU, and only 6 run at once"):
        Runner(program, kernels, chosen)


def test_a_block_has_whole_warps_and_no_more_threads_than_the_kernel_allows(fake: object) -> None:
    for threads in (32, 72, 1024):
        with pytest.raises(InputError, match=f"64 to 512 threads, in steps of 32; not {threads}"):
            execute(build("ring"), 400, executor="cupy", threads=threads, protocol="simple")


def test_a_switch_cannot_run_ops() -> None:
    from blinksim.schedule.model import COPY, Builder

    topology = one_switch(2, bandwidth=Fraction(10**9)).select()
    index = {device.name: number for number, device in enumerate(topology.devices)}
    switch = next(device.name for device in topology.devices if device.kind == "switch")
    builder = Builder(topology, Collective("broadcast"), "through", "steps")
    builder.add_chunk(Fraction(1))
    for step, (a, b) in enumerate([(topology.members[0], switch), (switch, topology.members[1])]):
        link = next(i for i, link in enumerate(topology.links) if (link.src, link.dst) == (a, b))
        builder.add_sends(
            chunk=0, src=index[a], dst=index[b], op=COPY, step=step, route=builder.add_routes([[link]])[0]
        )
    schedule = builder.finish()
    assert execute(schedule, 4096).ok
    with pytest.raises(InfeasibleError, match="only GPUs can run"):
        map_devices(compile_schedule(schedule, 10, INT32), topology)


def test_compiled_kernels_are_kept_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By another process, on a full disk and in a home that is read only, nothing but time is lost."""
    with fake_cupy.installed(monkeypatch, tmp_path):
        monkeypatch.setattr(fake_cupy.Compiler, "compiled", 0)
        folder = tmp_path / "cache"

        def compiled(capability: str = "90") -> int:
            assert gpu_devices.machine_code("source", capability) == b"source"
            return fake_cupy.Compiler.compiled

        assert (compiled(), compiled()) == (1, 1)
        (kept,) = folder.iterdir()
        # A file of another version of the compiler, or for other GPUs, is another one.
        monkeypatch.setattr(fake_cupy.Compiler, "getVersion", lambda: (0, 1))
        assert (compiled(), len(list(folder.iterdir()))) == (2, 2)
        monkeypatch.setattr(fake_cupy.Compiler, "getVersion", lambda: (0, 0))
        # What was cut off is not taken.
        kept.write_bytes(kept.read_bytes()[:-1])
        assert (compiled(), compiled()) == (3, 3)

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        kept.unlink()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            assert compiled() == 4
        assert len(list(folder.iterdir())) == 1  # no part of a file stays
        blocked = tmp_path / "file"
        blocked.write_text("")
        monkeypatch.setenv("BLINKSIM_CACHE", str(blocked / "no folder"))
        assert compiled() == 5
