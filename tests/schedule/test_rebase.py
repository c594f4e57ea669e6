"""Schedules on other machines: what is missing is named, and what is left is carried over."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from small_schedules import GB, full, helped, ring_allreduce, star_broadcast, through_the_helper

from blinksim.machines import load
from blinksim.schedule.model import Schedule, rebase
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology


def moved(schedule: Schedule, topology: Topology) -> Schedule:
    result = rebase(schedule, topology)
    assert isinstance(result, Schedule), result
    return result


def test_the_same_machine_gives_the_same_schedule() -> None:
    schedule = ring_allreduce(4).with_bound({"rate_exact": "10"})
    same = moved(schedule, schedule.topology)
    assert verify(same) == verify(schedule)
    assert same.bound == schedule.bound
    assert [same.links_of(r) for r in same.route] == [schedule.links_of(r) for r in schedule.route]


def test_devices_and_links_are_found_by_name() -> None:
    schedule = ring_allreduce(4)
    larger = full(6)
    other = larger.with_links(reversed(larger.links))
    there = moved(schedule, other)
    assert there.topology.members == schedule.topology.members
    assert verify(there).ok
    assert verify(there).facts.rate == verify(schedule).facts.rate


def test_a_link_that_is_gone_is_named_with_the_sends_that_need_it() -> None:
    schedule = ring_allreduce(4)
    assert rebase(schedule, schedule.topology.edit("without gpu0-gpu1")) == (
        "the link gpu0->gpu1 (nvlink) is not part of full4; 6 sends need it (send 0, send 4, send 8, …)",
    )
    assert isinstance(rebase(schedule, schedule.topology.edit("without gpu0-gpu2")), Schedule)


def test_a_member_that_is_gone_is_named_with_its_rank() -> None:
    found = rebase(star_broadcast(3), full(3).without("gpu2"))
    assert found == (
        "gpu2 (rank 2) is not part of full3; 1 send needs it (send 1)",
        "the link gpu0->gpu2 (nvlink) is not part of full3; 1 send needs it (send 1)",
    )


def test_an_unused_route_does_not_matter() -> None:
    schedule = star_broadcast(4)
    kept = schedule.sends - 1
    columns = ("chunk", "src", "dst", "op", "step", "route", "channel")
    shorter = replace(schedule, **{name: getattr(schedule, name)[:kept] for name in columns})
    assert len(shorter.route_start) - 1 == 3
    assert isinstance(rebase(shorter, full(4).without("gpu0->gpu3")), Schedule)


def test_a_relay_stays_what_it_was() -> None:
    schedule = through_the_helper(helped())
    assert verify(moved(schedule, full(4))).ok
    weak = through_the_helper(helped(("forward", "multicast", "hold")))
    assert "can only copy" in verify(moved(weak, full(4))).reasons[0]


@pytest.mark.parametrize(
    ("edit", "rate"),
    [
        ("degrade gpu0-gpu1 bandwidth=5GB/s", Fraction(10, 3)),
        ("degrade gpu0-gpu2 bandwidth=5GB/s", Fraction(20, 3)),
        ("replace gpu0-gpu1 bandwidth=20GB/s", Fraction(20, 3)),
        ("replace nvlink bandwidth=20GB/s", Fraction(40, 3)),
    ],
)
def test_the_figures_of_a_bound_stay_with_their_machine(edit: str, rate: Fraction) -> None:
    schedule = ring_allreduce(4).with_bound({"rate_exact": "20/3", "gap_exact": "0"})
    there = moved(schedule, schedule.topology.edit(edit))
    assert there.bound == {}
    verdict = verify(there)
    assert verdict.ok
    assert verdict.facts.rate == rate * GB


def test_a_machine_that_is_nothing_alike() -> None:
    found = rebase(ring_allreduce(4), load("rails:2x2"))
    assert isinstance(found, tuple)
    assert found[0].startswith("gpu0 (rank 0) is not part of rails:2x2; 12 sends need it")
