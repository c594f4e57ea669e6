"""Several collectives at once, beside each other and one after the other."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from slots import slotted
from small_schedules import forests, full
from timed_patterns import BYTES, TICK, private_pairs

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.papers.mxnet import Job, together
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

SMALL = settings(
    max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def built(name: str, topology: Topology) -> Schedule:
    return algorithm(name).build(topology, Collective("allreduce"))


@SMALL
@given(forests(), st.integers(1, 5))
def test_one_job_is_a_simulation(schedule: Schedule, pieces: int) -> None:
    found = together([Job(schedule, 10**6, pieces)])
    assert found.finish_s[0] == pytest.approx(bs.simulate(schedule, 10**6, pieces=pieces).time_s, rel=1e-12)
    assert found.slowdown == (1.0,)


@SMALL
@given(forests(), st.integers(1, 4), st.integers(1, 4))
def test_two_at_once_are_no_quicker_than_their_loads(schedule: Schedule, first: int, second: int) -> None:
    found = together([Job(schedule, 10**6, first), Job(schedule, 2 * 10**6, second)])
    bound = bs.simulate(schedule, 3 * 10**6, pieces=1).bound_s
    assert found.time_s >= bound * (1 - 1e-12)
    # Neighbours that share no link do not notice each other; these share all.
    assert found.time_s >= max(found.alone_s) * (1 - 1e-12)


def test_a_neighbour_on_other_links_costs_nothing_and_on_the_same_ones_twice() -> None:
    machine = bs.load("dgx1-v100")
    mine, other = (machine.select([f"gpu{i}" for i in group]) for group in ((0, 1, 2, 3), (4, 5, 6, 7)))
    apart = together([Job(built("ring", part), 10**8) for part in (mine, other)])
    assert apart.slowdown == (1.0, 1.0)
    shared = together([Job(built("ring", mine), 10**8) for _ in range(2)])
    assert all(1.9 < slow < 2.05 for slow in shared.slowdown)
    assert shared.busy > 0.95
    late = together([Job(built("ring", mine), 10**8), Job(built("ring", mine), 10**8, start_s=1.0)])
    assert late.slowdown == pytest.approx((1.0, 1.0))


def test_rates_that_contradict_each_other_are_refused() -> None:
    slow = full(3).edit("degrade gpu0-gpu1 bandwidth=5GB/s")
    with pytest.raises(InputError, match="another rate"):
        together([Job(built("ring", full(3)), 10**6), Job(built("ring", slow), 10**6)])
    for jobs in ([], [Job(built("ring", full(3)), 0)], [Job(built("ring", full(3)), 8, 0)]):
        with pytest.raises(InputError):
            together(jobs)


def test_slots_limit_what_is_under_way() -> None:
    # One slot: the next piece leaves when the last has arrived. With enough slots only the link limits.
    schedule = algorithm("chain").build(private_pairs(2, 30), Collective("broadcast"), order=[0, 1])
    size = 8 * 10 * BYTES
    assert [slotted(schedule, size, 8, slots) / TICK for slots in (1, 2, 4, 8)] == [8 * 40, 3 * 40 + 50, 110, 110]
