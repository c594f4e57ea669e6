"""Buckets on tori: right everywhere, at the bound where all sides are equal, in the steps and times of hand sums."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import independent_check
import pytest
from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.algorithms.bucket import symmetric
from blinksim.algorithms.registry import algorithm
from blinksim.bounds.compute import bound
from blinksim.collective import SHARDED, Collective
from blinksim.schedule.candidate import SymmetricSchedule
from blinksim.schedule.model import Schedule
from blinksim.timing.alpha_beta import cost
from blinksim.topology.shapes import torus
from blinksim.topology.symmetry import is_automorphism

SIZE, ALPHA, RATE = 2**20, 1e-6, 25e9


def built(machine: str, collective: str = "allreduce", *edits: str) -> Schedule:
    return algorithm("bucket").build(bs.load(machine, edits=edits).select(), Collective(collective))


def sides_of_tori() -> st.SearchStrategy[list[int]]:
    sides = st.lists(st.integers(1, 5), min_size=2, max_size=4)
    return sides.filter(lambda sides: prod(sides) <= 48 and sum(side > 1 for side in sides) > 1)


@settings(max_examples=25)
@given(sides_of_tori(), st.sampled_from(SHARDED))
def test_it_is_right_on_every_torus_in_as_many_steps_as_the_sides_have(sides: list[int], collective: str) -> None:
    topology = torus(sides).select()
    schedule = algorithm("bucket").build(topology, Collective(collective))
    assert bs.verify(schedule).ok
    assert independent_check.check(schedule) == []
    phases = 2 if collective == "allreduce" else 1
    assert schedule.steps == phases * sum(side - 1 for side in sides)
    # Of every pair of dimensions and ways round, each rank passes every shard on as often as a tree does.
    parts = 2 * sum(side > 1 for side in sides)
    assert schedule.sends == phases * parts * topology.ranks * (topology.ranks - 1)
    wide = {side for side in sides if side > 1}
    gap = bs.verify(schedule).facts.rate, bound(topology, Collective(collective)).rate
    assert gap[0] is not None
    assert gap[0] == gap[1] if len(wide) == 1 else gap[0] <= gap[1]


@settings(max_examples=25)
@given(sides_of_tori(), st.sampled_from(SHARDED), st.integers(1, 2**24), st.booleans())
def test_time_by_symmetry_is_that_of_all_sends(sides: list[int], collective: str, size: int, whole: bool) -> None:
    once = symmetric(torus(sides).select(), Collective(collective))
    for gamma in (0.0, 1e-11):
        by_symmetry = cost(once, size, gamma, whole_messages=whole).time_s
        assert by_symmetry == pytest.approx(cost(once.schedule, size, gamma, whole_messages=whole).time_s, rel=1e-9)
    assert once.rate == bs.verify(once.schedule).facts.rate


@pytest.mark.parametrize("side", [2, 3, 4])
@pytest.mark.parametrize("dimensions", [2, 3])
def test_time_on_equal_sides_by_hand(side: int, dimensions: int) -> None:
    """In phase p every link passes side - 1 messages, a part of 2 D that p dimensions have divided."""
    schedule = built(f"torus:{'x'.join([str(side)] * dimensions)}@25GB/s")
    messages = [SIZE / (2 * dimensions * side**phase) for phase in range(1, dimensions + 1)]
    expected = 2 * sum((side - 1) * (ALPHA + message / RATE) for message in messages)
    assert cost(schedule, SIZE, whole_messages=True).time_s == pytest.approx(expected)
    # A side of two has its two cables in one link, so that both parts are one message there.
    assert bs.simulate(schedule, SIZE, pieces=1).time_s == pytest.approx(expected)


def test_time_on_unequal_sides_by_hand() -> None:
    """Of a torus of 2 x 4, S / 4 a part. The parts that begin in the side of two: S / 8 over each of two cables, then
    three times S / 32. Those that begin in the side of four: three times S / 16, then S / 32."""
    reduced = (1 / 8, 1 / 32 + 1 / 16, 1 / 32 + 1 / 16, 1 / 32)
    expected = 2 * sum(ALPHA + share * SIZE / RATE for share in reduced)
    assert cost(built("torus:2x4@25GB/s"), SIZE, whole_messages=True).time_s == pytest.approx(expected)


@pytest.mark.parametrize("machine", ["torus:3x3", "hypercube:3", "torus:2x3"])
@pytest.mark.parametrize("size", [2**14, 2**20])
def test_a_simulation_takes_as_long_or_less_where_phases_of_unequal_sides_overlap(machine: str, size: int) -> None:
    schedule = built(machine)
    simulated = min(bs.simulate(schedule, size, service=service).time_s for service in ("fifo", "ordered"))
    sums, equal = cost(schedule, size).time_s, machine != "torus:2x3"
    assert (0.95 if equal else 0.8) * sums <= simulated <= sums * (1 + 1e-9)


def test_a_cube_of_chips_takes_18_steps_and_is_the_quickest_of_many_bytes() -> None:
    found = bs.contest("tpu-v5p", "allreduce")
    assert isinstance(found.schedules["bucket"], Schedule)
    assert found.schedules["bucket"].steps == 18
    # 1.9 us a step; 63 of 64 shards twice over six links of 100 GB/s, where phases of whole messages are no slower.
    for size, expected, place in ((2**20, 37.64e-6, 1), (2**24, 89.25e-6, 0)):
        # Low trees have 12 steps, and are quicker up to some MiB.
        found_there = found.projections(size)
        assert found_there[place].algorithm == "bucket"
        assert found_there[place].time_s == pytest.approx(expected, rel=1e-3)
        assert size / 100e9 * 126 / 64 / 6 + 18 * 1.9e-6 == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("machine", "steps"), [("trn2.48xlarge", 12), ("trn2-ultra", 18), ("tpu-v5p", 18)])
def test_machines_that_are_tori_say_their_rotations(machine: str, steps: int) -> None:
    schedule = built(machine)
    assert schedule.steps == steps
    assert bs.verify(schedule).ok
    topology = bs.load(machine)
    assert all(is_automorphism(topology, rotation) for rotation in topology.symmetries)


def test_hundreds_of_ranks_are_said_once() -> None:
    once = symmetric(torus((8, 8, 8)).select(), Collective("allreduce"))
    assert isinstance(once, SymmetricSchedule)
    # Of every rank 2 (n - 1) shards leave over six links.
    assert once.rate == Fraction(6 * 25 * 10**9 * 512, 2 * 511)
    expected = 2 * sum(7 * (ALPHA + SIZE / (6 * 8**phase) / RATE) for phase in (1, 2, 3))
    assert cost(once, SIZE, whole_messages=True).time_s == pytest.approx(expected)


def test_ranks_may_have_any_order() -> None:
    members = [f"gpu{i}" for i in (4, 2, 8, 0, 7, 1, 3, 6, 5)]
    for collective in SHARDED:
        schedule = algorithm("bucket").build(bs.load("torus:3x3").select(members), Collective(collective))
        assert independent_check.check(schedule) == []


@pytest.mark.parametrize("machine", ["ring:5", "line:4", "mesh:3x3", "full:4", "switch:6", "dgx1-v100", "dgx-a100"])
def test_other_machines_are_refused(machine: str) -> None:
    with pytest.raises(bs.InfeasibleError, match="bucket needs the links of a torus of two dim"):
        built(machine)


@pytest.mark.parametrize("edit", ["without gpu0-gpu1", "without gpu4", "degrade gpu0-gpu1 bandwidth=20GB/s"])
def test_a_torus_that_lacks_something_is_refused(edit: str) -> None:
    with pytest.raises(bs.InfeasibleError, match="bucket needs the links of a torus"):
        built("torus:3x3", "allreduce", edit)
