"""Programs simulated block by block: against a second implementation, against GPUs, and against what must hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest
from h200_rates import H200, US

from blinksim.answers.measurements.execution_fit import with_values
from blinksim.budget import SlowerError
from blinksim.errors import InputError
from blinksim.gpu.execution_time.closed_form import ScheduleTimes
from blinksim.gpu.execution_time.program_shape import round_bytes
from blinksim.gpu.execution_time.simulate_blocks import Blocks, Launches, busiest_port, forget, run_time
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.fit import fit, merge_queues, worth_staging
from blinksim.gpu.programs.of_calls import compile_schedule
from blinksim.gpu.programs.program import READY, WAVES, ExecutionError, Program
from blinksim.machines import load
from validate.recipes import execution_times, few_points
from validate.recipes.execution_times import lost, lost_by_cut, off, points, schedule_of, within

RESULTS = Path(__file__).parents[2] / "validate" / "results"
KIB, MIB, GIB = 2**10, 2**20, 2**30
SHIPPED = load("hgx-h200").execution or H200


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


@pytest.mark.slow
def test_gpus_take_as_long() -> None:
    """Every eleventh of the measured points up to 16 MiB."""
    runs = [point for point in points() if point.size <= 16 * MIB][::11]
    for rates, most, nearly_all in ((H200, 0.04, 0.13), (SHIPPED, 0.035, 0.11)):
        errors = [abs(off(point, rates)) for point in runs]
        assert len(errors) > 50
        assert median(errors) < most
        assert within(errors) < nearly_all


@pytest.mark.slow
def test_gpus_take_as_long_everywhere() -> None:
    """All measured points up to 1 MiB, as larger ones take minutes; who takes the predicted winner loses little."""
    runs = [point for point in points() if point.size <= MIB]
    errors = [off(point, SHIPPED) for point in runs]
    losses = lost(runs, errors).values()
    assert len(errors) > 500
    assert median(map(abs, errors)) < 0.025
    assert within(errors) < 0.1
    assert median(losses) == 0
    assert mean(losses) < 0.015


def test_the_table_names_who_is_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    some = [point for point in points() if point.size == MIB and point.row["algorithm"] in ("direct", "two_shot")][:6]
    monkeypatch.setattr(execution_times, "points", lambda tuning: some)
    monkeypatch.setattr("sys.argv", ["execution_times.py", "--worst", "1"])
    execution_times.main()
    printed = capsys.readouterr().out
    assert "two_shot" in printed
    assert "to 16 MiB       6" in printed
    assert "us measured" in printed.splitlines()[-1]


def test_a_cut_loses_what_it_takes_longer_than_the_quickest_that_was_measured() -> None:
    """With perfect predictions the predicted cut loses nothing, and with reversed ones the most."""
    scans = [point for point in points(tuning=True) if point.scan and point.row["algorithm"] == "direct"]
    scans = [point for point in scans if (point.gpus, point.size, point.row["protocol"]) == (8, 16 * MIB, "simple")]
    perfect = lost_by_cut(scans, [0.0] * len(scans), H200.blocks)
    reverse = lost_by_cut(scans, [1e-6 / point.time_s**2 for point in scans], H200.blocks)
    assert perfect
    assert all(predicted == 0 <= usual for usual, predicted in perfect)
    assert max(usual for usual, _ in perfect) == pytest.approx(0.306, abs=1e-3)
    assert all(predicted > 0.2 for _, predicted in reverse)


@pytest.mark.slow
def test_what_was_measured_was_cut_as_it_is_now() -> None:
    for point in list(points())[::40]:
        program = point.program(H200.blocks)
        size = program.piece_units * program.unit * program.kind.itemsize
        assert (program.slices, size) == (point.row["slices"], point.row["piece_bytes"])


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
    _, _, busy_s = busiest_port(program, H200)
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


@pytest.mark.parametrize("case", CASES)
def test_only_what_takes_longer_ends_early(case: tuple[int, str, str, str, int]) -> None:
    program = program_of(*case)
    forget()
    time = run_time(program, H200)
    forget()
    assert run_time(program, H200, most_s=time.time_s) == time
    forget()
    with pytest.raises(SlowerError):
        run_time(program, H200, most_s=0.8 * time.time_s)


def test_what_was_found_too_slow_is_simulated_again_only_for_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times, schedule = ScheduleTimes(H200), schedule_of("ring", "allgather", 8)
    time_s = times.simulate(schedule, 2**24, "simple").time.time_s
    times = ScheduleTimes(H200)
    forget()
    for _ in range(2):
        with pytest.raises(SlowerError):
            times.simulate(schedule, 2**24, "simple", 0.8 * time_s)
        monkeypatch.setattr("blinksim.gpu.execution_time.simulate_blocks.run_time", None)
    monkeypatch.undo()
    assert times.simulate(schedule, 2**24, "simple", 1.1 * time_s).time.time_s == time_s


# Constants with all that the simulation knows of ports, caches and flags; those of H200 above leave some of it out.
ROUND = few_points.GUESSES


@pytest.mark.parametrize("case", CASES)
def test_uneven_shares_leave_ports_as_busy(case: tuple[int, str, str, str, int]) -> None:
    """Two slices stand for all instead of one: they carry as much, and no port goes faster than it can."""
    program, even = program_of(*case), replace(ROUND, ports=replace(ROUND.ports, uneven=0.0))
    one, two = Blocks(program, even), Blocks(program, ROUND)
    assert [len(found) for found in two.rounds] == 2 * [len(found) for found in one.rounds]
    assert sorted(set(two.share)) == [0.5, 1.5]
    carried = [
        sum(found.load * len(found.targets) for rounds in blocks.rounds for found in rounds) for blocks in (one, two)
    ]
    assert carried[1] == pytest.approx(carried[0])
    assert run_time(program, ROUND).time_s >= busiest_port(program, ROUND)[2]


@pytest.mark.parametrize(
    ("gpus", "collective", "name", "protocol", "size", "constant", "least_gain"),
    [
        # Slices drift apart: a chain is quicker than all of them in step, trees that share a port are slower.
        (8, "allreduce", "chain", "simple", 16 * MIB, "ports.uneven", 0.1),
        (8, "broadcast", "packed", "simple", 64 * MIB, "ports.uneven", 0.08),
        # Ports buffer what blocks store: rings in packets go on.
        (4, "allgather", "ring", "ll128", 4 * MIB, "ports.posted_s", 0.08),
        # Looking at flags that are raised already takes blocks time, where pieces follow each other.
        (6, "allreduce", "ring", "simple", MIB, "flags.look_s", 0.03),
        # Blocks that begin together store to one GPU together, until they drift apart.
        (8, "allreduce", "direct", "ll128", 4 * MIB, "ports.drift", 0.04),
        # Who gets more of a port changes: in the end, slices of a long run are as far.
        (8, "allreduce", "parameter_server", "simple", 256 * MIB, "ports.turns_s", 0.08),
        # Data are loaded before they leave.
        (4, "allgather", "ring", "simple", 4 * MIB, "flags.load", 0.02),
        # Packets out of memory instead of the cache.
        (6, "reduce", "packed", "ll128", 64 * MIB, "packets.far_s", 0.1),
    ],
)
def test_gpus_show_what_ports_caches_and_flags_do(
    gpus: int, collective: str, name: str, protocol: str, size: int, constant: str, least_gain: float
) -> None:
    """Round numbers for these constants come nearer to what was measured than without them."""
    point = next(
        point
        for point in points()
        if (point.gpus, point.row["collective"], point.row["algorithm"]) == (gpus, collective, name)
        if (point.row["protocol"], point.size, point.row.get("in_place", False)) == (protocol, size, False)
    )
    without = abs(off(point, with_values(ROUND, [constant], [0.0])))
    assert abs(off(point, ROUND)) < without - least_gain


def test_pipelines_drift_apart() -> None:
    """A broadcast by a chain takes longer from launch to launch, on eight H200 as in the simulation."""
    row = next(
        point.row
        for point in points()
        if (point.gpus, point.row["algorithm"], point.row["protocol"], point.size) == (8, "chain", "ll128", MIB)
        and point.row["collective"] == "broadcast"
    )
    launches = Launches(Blocks(program_of(8, "broadcast", "chain", "ll128", MIB), H200), H200, 21)
    launches.run()
    times = np.diff(np.array(launches.ends), axis=0).mean(axis=1).tolist()
    assert times == pytest.approx(row["times_s"], rel=0.09)
    assert times[-1] / times[0] == pytest.approx(row["times_s"][-1] / row["times_s"][0], rel=0.05)


@pytest.mark.parametrize("protocol", ["ll128", "simple"])
def test_a_program_that_gets_stuck_is_refused(protocol: str) -> None:
    """All ops of a GPU in one queue, in the reverse order: each waits for one behind it."""
    program = program_of(4, "allreduce", "two_shot", protocol, 64 * KIB)
    backwards = merge_queues(replace(program, key=program.key.max() - program.key), 1)
    with pytest.raises(ExecutionError, match="stuck"):
        run_time(backwards, H200)


def test_a_flag_that_is_never_raised_is_refused() -> None:
    program = program_of(4, "allreduce", "two_shot", "simple", 64 * KIB)
    silent = replace(program, signals=program.signals[:0], signal_start=0 * program.signal_start)
    with pytest.raises(ExecutionError, match="no op raises"):
        run_time(silent, H200)


def test_queues_without_an_order_are_refused() -> None:
    program = program_of(2, "allreduce", "ring", "simple", KIB)
    with pytest.raises(InputError, match="no fixed order"):
        run_time(replace(program, order=READY), H200)


@pytest.mark.parametrize("case", [*CASES, (8, "allreduce", "mxnet", "simple", MIB), (2, "reduce", "chain", "ll128", 4)])
def test_blocks_take_the_turns_of_the_program(case: tuple[int, str, str, str, int]) -> None:
    program = program_of(*case)
    for queue in range(program.queues):
        for part in {0, program.slices - 1}:
            ops = range(int(program.queue_start[queue]), int(program.queue_start[queue + 1]))
            pieces = {op: program.pieces(int(program.length[op]), part) for op in ops}
            moving = [op for op in ops if len(program.rows("destinations", op))]
            # By the definitions: in waves key + piece rises, by key all pieces of an op come together; waits are last.
            found = [(op, piece) for op in moving for piece in range(pieces[op])]
            if program.order == WAVES:
                found.sort(key=lambda turn: (int(program.key[turn[0]]) + turn[1], turn[0]))
            found += [(op, pieces[op] - 1) for op in ops if op not in moving and pieces[op]]
            assert list(program.op_pieces(queue, part)) == found


def test_a_leaf_looks_once_in_every_wave() -> None:
    """Pieces of the last GPU of a chain come a wave later for every key, and its block looks at it in all of them."""
    program = program_of(8, "broadcast", "chain", "ll128", KIB)
    seen = 0
    for queue in range(program.queues):
        op, piece, looks = next(program.walk(queue, 0))
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
