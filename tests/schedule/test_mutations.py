"""Damaged schedules: whatever breaks the promise is refused, and whatever is accepted keeps it, by other means."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

import independent_check
import numpy as np
import pytest

from blinksim.algorithms.registry import REGISTRY
from blinksim.bounds.experts import draw_routing
from blinksim.collective import COLLECTIVES, OF_EXPERTS, Collective
from blinksim.errors import BlinksimError
from blinksim.machines import load
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.schedule.verify_contents import deadlock
from blinksim.topology.routes import Router

COLUMNS = ("chunk", "src", "dst", "op", "step", "route", "channel")
# Refused though this run of numbers came out right: what is read is the neutral element or depends on timing, or a
# doubled contribution is overwritten before anybody looks.
STRICTER = ("sends what is not there", "in one step", "a second time", "only copies")

# All judge the same thousands of mutants.
pytestmark = pytest.mark.slow


def rearranged(schedule: Schedule, rows: list[int], **columns: list[int]) -> Schedule:
    """The schedule with these sends in this order, sorted by step; columns replace those of the rows."""
    table = {name: getattr(schedule, name)[rows] for name in COLUMNS}
    table |= {name: np.array(values, dtype=table[name].dtype) for name, values in columns.items()}
    order = np.argsort(table["step"], kind="stable")
    return replace(schedule, **{name: column[order] for name, column in table.items()})


def changed(schedule: Schedule, send: int, **values: int) -> Schedule:
    rows = list(range(schedule.sends))
    columns = {name: getattr(schedule, name).tolist() for name in values}
    for name, value in values.items():
        columns[name][send] = value
    return rearranged(schedule, rows, **columns)


def redirected(schedule: Schedule, send: int, **ends: int) -> Schedule:
    """With another source or destination, and the route that leads there."""
    src, dst = ends.get("src", int(schedule.src[send])), ends.get("dst", int(schedule.dst[send]))
    links = Router(schedule.topology).route(src, dst) if src != dst else ()
    longer = replace(
        schedule,
        route_start=np.append(schedule.route_start, schedule.route_start[-1] + len(links)).astype(np.int32),
        route_links=np.append(schedule.route_links, links).astype(np.int32),
    )
    return changed(longer, send, route=len(schedule.route_start) - 1, **ends)


def mutants(schedule: Schedule, numbers: random.Random) -> Iterator[tuple[str, Schedule]]:
    everything = list(range(schedule.sends))
    devices = [int(d) for d in schedule.device_of]
    picked = numbers.sample(everything, min(4, len(everything)))
    for send in picked:
        rest = [i for i in everything if i != send]
        yield "drop", rearranged(schedule, rest)
        yield "duplicate", rearranged(schedule, sorted([*everything, send]))
        late = [*schedule.step.tolist(), schedule.steps]
        yield "repeat at the end", rearranged(schedule, [*everything, send], step=late)
        yield "reorder", changed(schedule, send, step=numbers.randrange(schedule.steps + 1))
        other = numbers.choice(everything)
        both = schedule.step.copy()
        both[[send, other]] = both[[other, send]]
        yield "swap", rearranged(schedule, everything, step=both.tolist())
        yield "redirect", redirected(schedule, send, dst=numbers.choice(devices))
        yield "take from elsewhere", redirected(schedule, send, src=numbers.choice(devices))
        yield "wrong destination", changed(schedule, send, dst=numbers.choice(devices))
        yield "wrong route", changed(schedule, send, route=numbers.randrange(len(schedule.route_start) - 1))
        yield "other operation", changed(schedule, send, op=1 - int(schedule.op[send]))
        yield "other chunk", changed(schedule, send, chunk=numbers.randrange(schedule.chunks))
        yield "other channel", changed(schedule, send, channel=1)
    chunk = numbers.randrange(schedule.chunks)
    for name in ("origin", "target"):
        labels = getattr(schedule, name).copy()
        labels[chunk] = numbers.randrange(-1, schedule.topology.ranks)
        yield f"other {name}", replace(schedule, **{name: labels})
    shares = schedule.share_num.copy()
    shares[chunk] += 1
    yield "other share", replace(schedule, share_num=shares)


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
