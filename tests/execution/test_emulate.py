"""Emulated links: each is a queue of its own that carries what the schedule says, and nothing else leaves a GPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import fake_cupy
import numpy as np
import pytest
from hazards import hazards

from blinksim import machines
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.gpu.execution import cupy_executor, gpu_devices
from blinksim.gpu.execution.emulate import emulate
from blinksim.gpu.execution.numpy_executor import interpret
from blinksim.gpu.execution.reference import Reference
from blinksim.gpu.execution.run import execute
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.program import READY, ExecutionError, Program
from blinksim.schedule.loads import link_loads
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.shapes import fully_connected, one_switch

INT32 = ELEMENT_TYPES["int32"]
CASES = [
    ("packed", "allreduce"),
    ("packed", "allgather"),
    ("rings", "allreduce"),
    ("rings", "reducescatter"),
    ("chains", "allreduce"),
    ("blink", "broadcast"),
    ("blink_hierarchical", "allreduce"),
    ("mxnet", "reduce"),
]


def quad(algorithm: str, collective: str, members: str = "0123", machine: str = "dgx1-v100") -> Schedule:
    topology = machines.load(machine).select([f"gpu{i}" for i in members])
    return REGISTRY[algorithm].build(topology, Collective(collective))


def wrong(program: Program, schedule: Schedule, seed: int | None) -> int:
    reference = Reference(schedule.collective, schedule.topology.ranks, program.layout.count, program.kind, "prod")
    outputs = interpret(program, [reference.inputs(rank) for rank in range(reference.ranks)], "prod", seed)
    return sum(reference.compare(rank, output)[0] for rank, output in enumerate(outputs))


@pytest.mark.parametrize(("algorithm", "collective"), CASES)
@pytest.mark.parametrize("members", ["0123", "230"])
def test_programs_are_sound_and_right_in_every_order(algorithm: str, collective: str, members: str) -> None:
    schedule = quad(algorithm, collective, members)
    program, apart = emulate(schedule, 7001, INT32, 2, 512)
    assert program.order == READY
    assert hazards(program) == []
    for seed in (None, 1, 2):
        assert wrong(program, apart, seed) == 0


@pytest.mark.parametrize(("algorithm", "collective"), CASES)
def test_a_wire_carries_what_its_lane_carries_and_only_copies(algorithm: str, collective: str) -> None:
    """Counted from the arrays: bytes that leave a GPU, by wire, against the loads of the schedule."""
    count = 96 * 1024
    program, apart = emulate(quad(algorithm, collective), count, INT32, 1, 4096)
    carried: Counter[str] = Counter()
    ends: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for queue, name in enumerate(program.queue_name):
        for op in range(int(program.queue_start[queue]), int(program.queue_start[queue + 1])):
            here, targets = int(program.queue_device[queue]), program.rows("destinations", op)
            away = [row for row in targets if row[0] != here]
            if not away:
                continue
            assert len(targets) == len(program.rows("sources", op)) == 1
            carried[name] += int(program.length[op])
            ends[name].add((here, away[0][0]))
    links = apart.topology.links
    loads = {link.name: load for link, load in zip(links, link_loads(apart), strict=True) if load}
    assert carried == {name: count * load for name, load in loads.items()}
    for link in links:
        if link.name in ends:
            number = tuple(program.devices.index(end) for end in (link.src, link.dst))
            assert ends[link.name] == {number}


@pytest.mark.parametrize(("algorithm", "members"), [("packed", "0123"), ("packed", "023"), ("chains", "0123")])
def test_wires_send_whole_lines(algorithm: str, members: str) -> None:
    """Thirds and fifths of a vector too: every piece begins on a multiple of 128 bytes in the receiver's memory."""
    program, _ = emulate(quad(algorithm, "allreduce", members), 1 << 20, INT32, 1, 50_000)
    for op in range(program.ops):
        for _, _, offset in program.rows("destinations", op):
            for piece in range(program.pieces(int(program.length[op]), 0)):
                begin, _ = program.span(int(program.length[op]), 0, piece)
                assert (offset + begin) * 4 % 128 == 0


def test_a_helper_without_data_passes_them_on() -> None:
    machine = machines.load("dgx1-v100").select(["gpu0", "gpu1"], ["gpu2", "gpu3"], relays_reduce=True)
    schedule = REGISTRY["blinkplus"].build(machine, Collective("allreduce"))
    program, apart = emulate(schedule, 5000, INT32, 1, 256)
    assert len(program.devices) == 4
    assert hazards(program) == []
    assert wrong(program, apart, 3) == 0


def test_a_flag_that_is_never_raised_is_found() -> None:
    program, apart = emulate(quad("packed", "allreduce"), 4000, INT32, 1, 512)
    signals, flags = program.signals.copy(), program.flags + 1
    signals[0, 1] = program.flags[signals[0, 0]]
    broken = replace(program, signals=signals, flags=flags)
    assert any("nobody raises flag" in line for line in hazards(broken))
    with pytest.raises(ExecutionError, match=r"the program is stuck: .* wait forever"):
        wrong(broken, apart, None)


def test_a_wire_takes_what_is_ready() -> None:
    """The late tree does not hold up the other one: with one wire for both, the early one is done while it waits."""
    program, apart = emulate(quad("packed", "allreduce"), 64 * 1024, INT32, 1, 4096)
    shared = next(q for q in range(program.queues) if "->" in program.queue_name[q] and _ops(program, q) > 1)
    first, last = int(program.queue_start[shared]), int(program.queue_start[shared + 1])
    # The first op of the wire waits for a flag that rises only at the very end: the others still finish.
    assert {int(program.chunk[op]) for op in range(first, last)} != {int(program.chunk[first])}
    assert wrong(program, apart, 7) == 0


def _ops(program: Program, queue: int) -> int:
    return int(program.queue_start[queue + 1] - program.queue_start[queue])


@pytest.mark.parametrize(("algorithm", "collective"), [*CASES, ("direct", "allreduce"), ("two_shot", "allreduce")])
@pytest.mark.parametrize("staged", [True, False])
def test_wires_work_in_place_with_few_blocks(algorithm: str, collective: str, staged: bool) -> None:
    """The data of a send may be overwritten only when all of its wires have read them."""
    if algorithm in ("direct", "two_shot"):
        schedule = REGISTRY[algorithm].build(fully_connected(4).select(), Collective(collective))
    else:
        schedule = quad(algorithm, collective, "0145")
    most = 9
    program, apart = emulate(schedule, 7001, INT32, 1, 512, in_place=True, staged=staged, most_blocks=most)
    assert staged <= program.staged
    assert max(len(program.queues_of(device)) for device in range(4)) <= most
    assert hazards(program) == []
    assert wrong(program, apart, 1) == 0


def test_data_on_two_wires_stay_until_both_have_sent_them() -> None:
    """Rank 1 sends its input to both others; the answer of one of them must not overwrite what the other wire reads."""
    plan = Plan(fully_connected(3).select(), Collective("allreduce"), "twice", "steps")
    chunk = plan.add_chunk(Fraction(1))
    for src, dst in ((1, 0), (1, 2), (2, 0), (0, 2)):
        plan.send(src, dst, chunk=chunk, op=REDUCE, step=0)
    plan.send(0, 1, chunk=chunk, op=COPY, step=1)
    program, apart = emulate(plan.finish(), 5000, INT32, 1, 512, in_place=True, staged=True)
    assert hazards(program) == []
    assert wrong(program, apart, 1) == 0


@pytest.mark.parametrize(("piece", "parts"), [(1 << 20, 1), (64 << 10, 1), (24 << 10, 3), (8 << 10, 8), (1 << 10, 8)])
def test_no_part_is_shorter_than_a_piece(piece: int, parts: int) -> None:
    """64 KiB from the root over single lanes: whole messages, or as many parts as there are pieces, up to 8."""
    schedule = REGISTRY["direct"].build(fully_connected(3).select(), Collective("broadcast"))
    program, apart = emulate(schedule, 16 << 10, INT32, 1, piece)
    assert (apart.chunks, apart.sends) == (parts, 2 * parts)
    assert wrong(program, apart, None) == 0


def test_what_cannot_be_emulated_is_refused() -> None:
    behind = REGISTRY["ring"].build(one_switch(3, bandwidth=Fraction(10**9)).select(), Collective("allreduce"))
    with pytest.raises(InfeasibleError, match="crosses several links"):
        emulate(behind, 1000, INT32)
    ring = REGISTRY["ring"].build(fully_connected(3).select(), Collective("allreduce"))
    with pytest.raises(InputError, match="at least one thread block"):
        emulate(ring, 1000, INT32, 0)
    with pytest.raises(InfeasibleError, match="3 lanes of a GPU with 2 thread blocks each leave none of 4 to compute"):
        emulate(quad("rings", "allreduce", "0145"), 1000, INT32, 2, most_blocks=4)
    with pytest.raises(InputError, match="runs out of place"):
        execute(ring, 4000, lane_blocks=1, in_place=True)
    with pytest.raises(InputError, match="runs out of place"):
        execute(ring, 4000, lane_blocks=1, slices=2)
    with pytest.raises(InputError, match="give at most 1024"):
        execute(ring, 4000, lane_blocks=32768)


def test_execute_emulates() -> None:
    run = execute(quad("packed", "allreduce"), 1 << 18, lane_blocks=2, op="prod", dtype="int32")
    assert run.wrong == 0
    assert run.slices == 2


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fake_cupy.installed(monkeypatch, tmp_path_factory.mktemp("kernels"), blocks=64):
        yield


@pytest.mark.slow
@pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler to build kernels.cu with")
def test_the_kernel_does_the_same(fake: None) -> None:
    for algorithm, collective in CASES[:4]:
        for count, piece, blocks in ((3, 256, 1), (6_003, 1024, 1), (9_003, 4096, 2)):
            run = execute(
                quad(algorithm, collective, "230"),
                4 * count,
                executor="cupy",
                dtype="int32",
                op="prod",
                lane_blocks=blocks,
                piece_bytes=piece,
                warmup=1,
                iterations=2,
            )
            assert run.wrong == 0


@pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler to build kernels.cu with")
def test_a_wire_that_waits_for_ever_ends_in_an_error(fake: None) -> None:
    schedule = quad("chains", "allreduce")
    program, apart = emulate(schedule, 4000, INT32, 1, 512)
    signals, flags = program.signals.copy(), program.flags + 1
    signals[0, 1] = program.flags[signals[0, 0]]
    chosen = gpu_devices.map_devices(program, apart.topology)
    kernels = cupy_executor.Kernels(program, "prod", chosen)
    runner = cupy_executor.Runner(replace(program, signals=signals, flags=flags), kernels, chosen, timeout_s=0.3)
    runner.load(Reference(schedule.collective, 4, 4000, INT32, "prod"))
    runner.launch()
    with pytest.raises(ExecutionError, match=r"gave up after 0.3 s of waiting for piece \d+ .* in op \d+ on gpu"):
        runner.synchronize()
    assert np.all(np.concatenate(list(runner.errors)) == 0)
