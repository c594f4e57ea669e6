"""Damaged schedules: whatever breaks the promise is refused, and whatever is accepted keeps it, by other means."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

import independent_check
import pytest
from schedule_mutants import STRICTER, mutants

from blinksim.algorithms.registry import REGISTRY
from blinksim.bounds.experts import draw_routing
from blinksim.collective import COLLECTIVES, OF_EXPERTS, Collective
from blinksim.errors import BlinksimError
from blinksim.machines import load
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.schedule.verify_contents import deadlock

# All judge the same thousands of mutants.
pytestmark = pytest.mark.slow


def originals() -> Iterator[Schedule]:
    for machine in ("full:4", "rails:2x2"):
        topology = load(machine).select()
        for algorithm in REGISTRY.values():
            for collective in algorithm.collectives:
                if algorithm.solver:
                    continue
                try:
                    yield algorithm.build(topology, Collective(collective))
                except BlinksimError:
                    continue
        routing = draw_routing(4, tokens=3, experts=8, top_k=2, ranks_per_node=2)
        for algorithm in filter(attrgetter("tokens"), REGISTRY.values()):
            for collective in OF_EXPERTS:
                try:
                    yield algorithm.build(topology, Collective(collective, routing=routing))
                except BlinksimError:
                    continue


# (mutation, mutant, refused, really wrong, reasons)
Verdicts = list[tuple[str, Schedule, bool, bool, tuple[str, ...]]]


@pytest.fixture(scope="module")
def verdicts() -> Verdicts:
    """Those of some mutants of every algorithm and collective."""
    numbers = random.Random(1)
    result = []
    for schedule in originals():
        for name, mutant in mutants(schedule, numbers):
            verdict = verify(mutant)
            result.append((name, mutant, not verdict.ok, bool(independent_check.check(mutant)), verdict.reasons))
    return result


def test_what_breaks_the_promise_is_refused_and_what_is_accepted_keeps_it(verdicts: Verdicts) -> None:
    accepted = [(name, mutant) for name, mutant, refused, wrong, _ in verdicts if wrong and not refused]
    assert accepted == []
    assert sum(wrong for *_, wrong, _ in verdicts) > 1000


def test_every_kind_of_damage_is_met(verdicts: Verdicts) -> None:
    refused = Counter(name for name, _, no, _, _ in verdicts if no)
    assert set(refused) >= {name for name, *_ in verdicts} - {"other channel"}
    assert all(no for name, _, no, _, _ in verdicts if name == "drop"), "no send of these algorithms is superfluous"
    assert not any(no for name, _, no, _, _ in verdicts if name == "other channel")
    assert any(not no for name, _, no, _, _ in verdicts if name in ("reorder", "swap", "duplicate"))


def test_what_is_refused_beyond_wrong_numbers_is_a_matter_of_timing(verdicts: Verdicts) -> None:
    odd = [
        (name, reasons)
        for name, _, refused, wrong, reasons in verdicts
        if refused and not wrong and not any(words in reason for reason in reasons for words in STRICTER)
    ]
    assert odd == []


def test_a_reason_names_the_chunk_and_the_send_or_rank(verdicts: Verdicts) -> None:
    for name, _, refused, _, reasons in verdicts:
        if refused and name in ("other share", "other origin", "other target"):
            assert any("rank" in reason or "shares" in reason for reason in reasons), reasons
        elif refused:
            assert any("chunk" in reason and ("send" in reason or "rank" in reason) for reason in reasons), reasons


@pytest.mark.parametrize("slots", [1, 2])
def test_deadlocks_are_those_that_playing_the_queues_shows(verdicts: Verdicts, slots: int) -> None:
    small = [mutant for _, mutant, *_ in verdicts if mutant.sends <= 24][:250]
    assert len(small) == 250
    for mutant in small:
        assert (deadlock(mutant, slots) is None) == (not independent_check.stuck(mutant, slots)), mutant


def test_collectives_are_all_covered() -> None:
    assert {schedule.collective.name for schedule in originals()} == {*COLLECTIVES, *OF_EXPERTS}
