"""Times of programs by a formula: near those that are simulated, and no shorter than a port or a launch takes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from statistics import median

import numpy as np
import pytest
from h200_rates import H200

import blinksim as bs
from blinksim.gpu.execution_time import simulate_blocks as simulated
from blinksim.gpu.execution_time.closed_form import ScheduleTimes, schedule_times
from blinksim.gpu.programs.program import Program, ProtocolName
from blinksim.schedule.model import Schedule
from blinksim.timing.execution_model import OVERSTATED
from validate.recipes import few_points
from validate.recipes.execution_times import schedule_of

KIB, MIB = 2**10, 2**20
ELEMENTARY = {
    "allreduce": (
        "ring", "chain", "binary", "double_binary", "recursive_doubling", "halving_doubling", "direct", "two_shot",
        "parameter_server",
    ),
    "broadcast": ("chain", "double_binary", "direct"),
    "reduce": ("chain", "binary"),
    "allgather": ("ring", "direct"),
    "reducescatter": ("ring", "direct"),
    "alltoall": ("direct",),
}  # fmt: skip
CASES = [(collective, name) for collective, names in ELEMENTARY.items() for name in names]
SMALL, LARGE = (KIB, 64 * KIB), (3 * MIB, 48 * MIB)
PROTOCOLS: tuple[ProtocolName, ...] = ("simple", "ll128")


def ratios(gpus: int) -> dict[tuple[str, int], list[float]]:
    """Formula over simulation, by form and size."""
    times = ScheduleTimes(H200)
    found = defaultdict(list)
    for collective, name in CASES:
        schedule = schedule_of(name, collective, gpus)
        for protocol in PROTOCOLS:
            for size in (*SMALL, *LARGE):
                one, other = times.estimate(schedule, size, protocol), times.simulate(schedule, size, protocol)
                found[schedule.form, size].append(one.time.time_s / other.time.time_s)
    return found


@pytest.mark.parametrize("gpus", [2, pytest.param(5, marks=pytest.mark.slow), 8])
def test_programs_take_as_long_as_simulated(gpus: int) -> None:
    """Small vectors do, for no block waits for a port; and what is too long is so by less than a choice allows."""
    found = ratios(gpus)
    for (form, size), some in found.items():
        assert max(some) < OVERSTATED[form][(size > 32 << 20) + (size > 128 << 20)]
        if size in SMALL:
            assert some == pytest.approx([1.0] * len(some), rel=5e-3)
    off = sorted(abs(ratio - 1) for some in found.values() for ratio in some)
    assert len(off) > 130
    assert median(off) < 0.001
    assert off[int(0.8 * len(off))] < 0.05
    assert off[int(0.9 * len(off))] < 0.1
    assert off[-1] < 0.35


@pytest.mark.parametrize("name", ["ring", "direct", "two_shot"])
def test_looking_at_flags_and_memory_count_as_they_do_when_simulated(name: str) -> None:
    """With round constants for both, and ports as the formula knows them."""
    ports = replace(few_points.GUESSES.ports, uneven=0.0, posted_s=0.0)
    times, schedule = ScheduleTimes(replace(few_points.GUESSES, ports=ports)), schedule_of(name, "allreduce", 4)
    for protocol, size in product(PROTOCOLS, (64 * KIB, 256 * KIB)):
        one, other = times.estimate(schedule, size, protocol), times.simulate(schedule, size, protocol)
        assert one.time.time_s == pytest.approx(other.time.time_s, rel=0.01), (protocol, size)


def test_a_further_gpu_in_a_ring_costs_two_steps_more() -> None:
    """2 (n - 1) steps, each as long as the one before."""
    times = ScheduleTimes(H200)
    found = [times.estimate(schedule_of("ring", "allreduce", n), KIB, "ll128").time.time_s for n in range(3, 9)]
    steps = np.diff(found)
    assert steps == pytest.approx([steps[0]] * 5, rel=1e-6)
    least = 2 * (H200.packets.piece_s + H200.packets.round_s + H200.packets.step_s)
    assert least < steps[0] < 3 * least


@pytest.mark.parametrize("gpus", [2, 5, 8])
def test_rings_take_what_their_ports_take_in_the_end(gpus: int) -> None:
    """A ring keeps its ports busy: 2 (n - 1) / n of the vector leaves each GPU."""
    size = 2**30
    found = ScheduleTimes(H200).estimate(schedule_of("ring", "allreduce", gpus), size, "simple").time
    wire_s = 2 * (gpus - 1) / gpus * size / H200.ports.out
    assert found.ports_s == pytest.approx(wire_s, rel=1e-3)
    assert wire_s < found.time_s < 1.05 * wire_s


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("calls", simulated.CALLS)
def test_parts_add_up_and_more_bytes_take_longer(protocol: ProtocolName, calls: simulated.CallsName) -> None:
    times = ScheduleTimes(H200, calls)
    for name in ("chain", "double_binary", "two_shot"):
        schedule = schedule_of(name, "allreduce", 8)
        found = [times.estimate(schedule, size, protocol).time for size in (KIB, MIB, 16 * MIB, 64 * MIB)]
        assert [one.time_s for one in found] == sorted(one.time_s for one in found)
        for one in found:
            assert min(one.launch_s, one.looking_s, one.ports_s, one.steps_s) >= 0
            assert one.time_s >= one.launch_s + one.ports_s


def test_calls_apart_take_as_long_as_simulated() -> None:
    times = ScheduleTimes(H200, "apart")
    for name, size in (("chain", KIB), ("ring", 64 * KIB), ("two_shot", MIB), ("double_binary", KIB)):
        schedule = schedule_of(name, "allreduce", 8)
        for protocol in PROTOCOLS:
            one, other = times.estimate(schedule, size, protocol), times.simulate(schedule, size, protocol)
            assert one.time.time_s == pytest.approx(other.time.time_s, rel=5e-3)


def test_calls_of_jobs_take_about_as_long_as_simulated() -> None:
    """Of few bytes every op has a block of its own; of many, half of the blocks are left to computing."""
    rates = bs.load("hgx-h200").execution
    assert rates is not None
    times = schedule_times(rates, "graph")
    for name, size in (("two_shot", 4 * KIB), ("direct", 256 * KIB), ("recursive_doubling", MIB), ("ring", 8 * MIB)):
        schedule = schedule_of(name, "allreduce", 8)
        for protocol in PROTOCOLS:
            one, other = times.estimate(schedule, size, protocol), times.simulate(schedule, size, protocol)
            assert one.time.time_s == pytest.approx(other.time.time_s, rel=0.07)


def test_programs_that_differ_in_names_alone_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both reduce to every GPU and broadcast from it, and read what they add in another order."""
    built = bs.contest("hgx-h200", "allreduce", ["packed", "blink_hierarchical"]).candidates
    schedules = [candidate.compact for candidate in built.values()]
    once, twice = (ScheduleTimes(H200).simulate(schedule, 3 * MIB, "simple") for schedule in schedules)
    assert once == twice
    monkeypatch.setattr(simulated, "Launches", None)
    assert [ScheduleTimes(H200).simulate(schedule, 3 * MIB, "simple") for schedule in schedules] == [once, once]


def test_a_program_whose_ops_wait_for_others_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(schedule_of("two_shot", "allreduce", 4))
    asked = []

    def seen(*arguments: object) -> tuple[float, float]:
        asked.append(arguments)
        return 1.0, 0.0

    monkeypatch.setattr(simulated, "timed", seen)
    simulated.forget()
    reads = np.concatenate([np.arange(end - 1, start - 1, -1) for start, end in _rows(program.source_start)])
    waits = np.concatenate([np.arange(end - 1, start - 1, -1) for start, end in _rows(program.wait_start)])
    same = replace(program, sources=program.sources[reads], waits=program.waits[waits])
    for number, other in enumerate((program, same, replace(program, waits=program.waits[::-1].copy()))):
        simulated.run_time(other, H200)
        assert len(asked) == (1, 1, 2)[number]
    simulated.forget()


def _program(schedule: Schedule) -> Program:
    return ScheduleTimes(H200).program(schedule, MIB, "simple")


def _rows(start: np.ndarray) -> zip[tuple[int, int]]:
    return zip(start[:-1].tolist(), start[1:].tolist(), strict=True)


@pytest.mark.slow
def test_a_comparison_prints_what_a_simulation_of_all_finds() -> None:
    machine = bs.load("hgx-h200", rates="measured").select("0-3")
    sizes = [4 * KIB, 512 * KIB, 6 * MIB, 96 * MIB]
    found = bs.compare(machine, "allreduce", sizes, model="auto")
    rivals = bs.contest(machine, "allreduce", sizes=sizes)
    every = [rivals.projections(size) for size in sizes]
    assert [best.algorithm for best in found.best()] == [projections[0].algorithm for projections in every]
    assert "execution-closed" in {row["model"] for row in found.rows()}
    shown = found.text().splitlines()[4].split()[3:]
    for ours, theirs in zip(found.projections, every, strict=True):
        times = {projection.algorithm: projection.time_s for projection in theirs}
        for projection in ours:
            if projection.algorithm in shown:
                assert projection.model == "execution"
            if projection.model == "execution":
                assert projection.time_s == times[projection.algorithm]
            else:
                assert times[projection.algorithm] > ours[0].time_s
