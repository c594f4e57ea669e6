"""Programs simulated block by block: against a second implementation, against GPUs, and against what must hold."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import pytest
from h200_rates import H200, US

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.programs.compile import compile_schedule
from blinksim.programs.dtypes import ELEMENT_TYPES
from blinksim.programs.fit import fit, merge_queues, worth_staging
from blinksim.programs.program import READY, ExecutionError, Program
from blinksim.schedule.model import Schedule
from blinksim.simulation.blocks.block_events import Launches
from blinksim.simulation.blocks.block_rounds import blocks_of, round_bytes
from blinksim.simulation.blocks.run_time import busiest_port, periods, run_time
from blinksim.simulation.blocks.walk import END, walk
from blinksim.topology.shapes import fully_connected, one_switch

RESULTS = Path(__file__).parents[2] / "validate" / "results"
KIB, MIB, GIB = 2**10, 2**20, 2**30


@cache
def schedule_of(name: str, collective: str, gpus: int) -> Schedule:
    # Packed trees were measured as they are on direct links.
    shape = fully_connected if name == "packed" else one_switch
    return REGISTRY[name].build(shape(gpus, bandwidth=Fraction(450 * 10**9)).select(), Collective(collective))


def program_of(
    gpus: int, collective: str, name: str, protocol: str, size: int, staged: bool | None = None, in_place: bool = False
) -> Program:
    schedule, packets = schedule_of(name, collective, gpus), protocol == "ll128"
    if staged is None:
        staged = packets or worth_staging(schedule, size)
    count = (size - size % (128 * gpus)) // 4
    program = compile_schedule(
        schedule, count, ELEMENT_TYPES["float32"], packets=packets, staged=staged, in_place=in_place
    )
    return fit(program, H200.blocks)


# Microseconds, by another implementation of the same rules.
SECOND_OPINION = [
    (2, "allreduce", "direct", "ll128", KIB, 10.60),
    (2, "allreduce", "chain_tree", "ll128", KIB, 21.63),
    (8, "allreduce", "direct", "ll128", KIB, 13.51),
    (8, "allreduce", "ring", "ll128", KIB, 42.01),
    (8, "allreduce", "double_binary", "ll128", KIB, 24.14),
    (8, "reduce", "double_binary", "ll128", MIB, 33.47),
    (8, "broadcast", "chain", "ll128", MIB, 23.01),
    (8, "allreduce", "ring", "ll128", 16 * MIB, 134.5),
    (8, "allreduce", "ring", "simple", MIB, 77.16),
    (6, "allreduce", "ring", "simple", MIB, 67.81),
    (8, "allreduce", "ring", "simple", GIB, 5149),
    (8, "allgather", "ring", "simple", 64 * MIB, 187.6),
    pytest.param(8, "allreduce", "two_shot", "simple", GIB, 5987, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("gpus", "collective", "name", "protocol", "size", "expected"), SECOND_OPINION)
def test_a_second_implementation_finds_the_same(
    gpus: int, collective: str, name: str, protocol: str, size: int, expected: float
) -> None:
    found = run_time(program_of(gpus, collective, name, protocol, size), H200)
    assert found.time_s / US == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    ("gpus", "name", "size", "expected"), [(8, "two_shot", 16 * MIB, 122.7), (4, "direct", 16 * MIB, 185.6)]
)
def test_a_second_implementation_serves_equal_requests_in_another_order(
    gpus: int, name: str, size: int, expected: float
) -> None:
    found = run_time(program_of(gpus, "allreduce", name, "simple", size), H200)
    assert found.time_s / US == pytest.approx(expected, rel=0.012)


def measured() -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of GPUs, and a row of the results: with `fit`'s cut, and five launches to warm up."""
    for gpus in (2, 3, 4, 6, 8):
        for row in json.loads((RESULTS / f"full-speed-{gpus}gpu.json").read_text())["ours"]:
            yield gpus, row
    for gpus in (2, 8):
        for row in json.loads((RESULTS / f"elementary-{gpus}gpu.json").read_text())["allreduce"]:
            yield gpus, row


def off(gpus: int, row: dict[str, Any]) -> float:
    """Simulated over measured time, less one."""
    program = program_of(
        gpus,
        row["collective"],
        row["algorithm"],
        row["protocol"],
        row["used_bytes"],
        row["staged"],
        row.get("in_place", False),
    )
    assert program.slices == row["slices"]
    return run_time(program, H200).time_s / float(row["time_s"]) - 1


def test_gpus_take_as_long() -> None:
    """Every eleventh of the measured points up to 16 MiB."""
    rows = [(gpus, row) for gpus, row in measured() if row["used_bytes"] <= 16 * MIB]
    wrong = [abs(off(gpus, row)) for gpus, row in rows[::11]]
    assert len(wrong) > 50
    assert median(wrong) < 0.04
    assert quantiles(wrong, n=10)[-1] < 0.13


@pytest.mark.slow
def test_gpus_take_as_long_everywhere() -> None:
    """All measured points; and who takes the predicted winner loses little."""
    wrong, rivals = [], defaultdict(list)
    for gpus, row in measured():
        error = off(gpus, row)
        wrong.append(abs(error))
        key = gpus, row["collective"], row["size_bytes"], row.get("in_place")
        rivals[key].append((row["time_s"] * (1 + error), row["time_s"]))
    lost = [min(found)[1] / min(time for _, time in found) - 1 for found in rivals.values()]
    assert len(wrong) == 1134
    assert median(wrong) < 0.03
    assert quantiles(wrong, n=10)[-1] < 0.11
    assert median(lost) == 0
    assert mean(lost) < 0.02


CASES = [
    (8, "allreduce", "ring", "ll128", MIB),
    (4, "allreduce", "double_binary", "ll128", 4 * MIB),
    (8, "allreduce", "two_shot", "simple", 4 * MIB),
    (3, "reducescatter", "direct", "simple", 16 * MIB),
    (6, "reduce", "chain", "simple", 16 * MIB),
]


@pytest.mark.parametrize("case", CASES)
def test_ports_bound_the_time_and_the_parts_add_up(case: tuple[int, str, str, str, int]) -> None:
    program = program_of(*case)
    found = run_time(program, H200)
    _, busy_s = busiest_port(blocks_of(program, H200), H200, program.devices)
    assert found.time_s >= found.ports_s == pytest.approx(busy_s)
    assert min(found.launch_s, found.looking_s, found.steps_s) >= 0
    assert found.launch_s == H200.launch_s
    # Every GPU but a leaf sends its share once at least, and no faster than its port.
    gpus, collective, _, _, size = case
    most = {"allreduce": 2 * (gpus - 1) / gpus, "reducescatter": (gpus - 1) / gpus, "reduce": 1}[collective]
    assert found.ports_s >= most * size * 0.999 / H200.ports.out


@pytest.mark.parametrize("case", CASES)
def test_quicker_ports_hardly_ever_take_longer(case: tuple[int, str, str, str, int]) -> None:
    program, ports = program_of(*case), H200.ports
    quicker = replace(H200, ports=replace(ports, out=2 * ports.out, into=2 * ports.into))
    assert run_time(program, quicker).time_s < 1.07 * run_time(program, H200).time_s


def test_calls_one_by_one_do_not_overlap() -> None:
    """A GPU at the head of a chain begins the next call while the last ones are still at the one before."""
    program = program_of(8, "broadcast", "chain", "ll128", KIB)
    assert run_time(program, H200, "apart").time_s > 1.2 * run_time(program, H200).time_s
    with pytest.raises(InputError, match="apart"):
        run_time(program, H200, "aparte")  # type: ignore[arg-type]


def test_pipelines_drift_apart() -> None:
    """A broadcast by a chain takes longer from launch to launch, on eight H200 as in the simulation."""
    row = next(
        row
        for gpus, row in measured()
        if (gpus, row["collective"], row["algorithm"], row["protocol"]) == (8, "broadcast", "chain", "ll128")
        and row["size_bytes"] == MIB
    )
    launches = Launches(blocks_of(program_of(8, "broadcast", "chain", "ll128", MIB), H200), H200, 21)
    launches.run()
    times = periods(launches.ends)
    assert times == pytest.approx(row["times_s"], rel=0.09)
    assert times[-1] / times[0] == pytest.approx(row["times_s"][-1] / row["times_s"][0], rel=0.05)


@pytest.mark.parametrize("protocol", ["ll128", "simple"])
def test_a_program_that_gets_stuck_is_refused(protocol: str) -> None:
    """All ops of a GPU in one queue, in the reverse order: each waits for one behind it."""
    program = program_of(4, "allreduce", "two_shot", protocol, 64 * KIB)
    backwards = merge_queues(program.replace(key=program.key.max() - program.key), 1)
    with pytest.raises(ExecutionError, match="stuck"):
        run_time(backwards, H200)


def test_a_flag_that_is_never_raised_is_refused() -> None:
    program = program_of(4, "allreduce", "two_shot", "simple", 64 * KIB)
    silent = program.replace(signals=program.signals[:0], signal_start=0 * program.signal_start)
    with pytest.raises(ExecutionError, match="no op raises"):
        run_time(silent, H200)


def test_queues_without_an_order_are_refused() -> None:
    program = program_of(2, "allreduce", "ring", "simple", KIB)
    with pytest.raises(InputError, match="no fixed order"):
        run_time(program.replace(order=READY), H200)


@pytest.mark.parametrize("case", [*CASES, (8, "allreduce", "mxnet", "simple", MIB), (2, "reduce", "chain", "ll128", 4)])
def test_blocks_take_the_turns_of_the_program(case: tuple[int, str, str, str, int]) -> None:
    program = program_of(*case)
    for queue in range(program.queues):
        for part in {0, program.slices - 1}:
            walked = [(op, piece) for op, piece, _ in walk(program, queue, part) if op != END]
            assert walked == list(program.turns(queue, part))


def test_a_leaf_looks_once_in_every_wave() -> None:
    """Pieces of the last GPU of a chain come a wave later for every key, and its block looks at it in all of them."""
    program = program_of(8, "broadcast", "chain", "ll128", KIB)
    seen = 0
    for queue in range(program.queues):
        op, piece, looks = next(iter(walk(program, queue, 0)))
        if program.queue_start[queue + 1] - program.queue_start[queue] == 1:
            assert (piece, looks) == (0, int(program.key[op]) + 1)
            seen = max(seen, looks)
    assert seen > 20


@pytest.mark.parametrize(
    ("count", "sources", "packets", "expected"),
    [
        (1, 1, True, [1]),
        (15_360, 4, True, [15_360]),
        (15_360, 5, True, [7680, 7680]),
        (61_441, 1, False, [61_440, 1]),
        (100_000, 1, False, [61_440, 30_720, 7840]),
        (40_000, 2, False, [30_720, 7680, 1600]),
        (16_384, 8, False, [15_360, 1024]),
    ],
)
def test_the_kernel_moves_so_much_at_once(count: int, sources: int, packets: bool, expected: list[int]) -> None:
    """480 or 512 threads with 16 bytes of 8, 4 or 2 lines each; what is left by half of that, or by line."""
    assert round_bytes(count, sources, packets) == expected
