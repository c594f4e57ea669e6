"""What steps take at least is never more than what they take; and what is left out for it is never the quickest."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest
from hypothesis import given, settings, strategies as st
from small_schedules import forests
from strategies import topologies

import blinksim as bs
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import COLLECTIVES, ROOTED, Collective
from blinksim.errors import BlinksimError
from blinksim.schedule import loads
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import Outline
from blinksim.schedule.model import Schedule
from blinksim.timing import contest
from blinksim.timing.alpha_beta import cost
from blinksim.timing.contest import (
    fewer_trees,
    least_of_sends,
    least_of_steps,
    sends_of,
    thinner,
)
from blinksim.topology.graph import Topology

SIZES = (1, 2**20, 2**33)


def outlines(part: Topology) -> Iterator[Outline]:
    """Those of all algorithms that tell one, for all of their collectives."""
    for entry in REGISTRY.values():
        for name in entry.collectives if entry.outlined else ():
            wanted = Collective(name)
            try:
                rounds = import_module(f"blinksim.algorithms.{entry.name}").rounds(part, wanted)
            except BlinksimError:
                continue
            yield Outline(part, wanted, entry.name, rounds)


def check_sketches(part: Topology) -> int:
    """What trees and chains send, before their routes are known, against their times; how many there were."""
    count = 0
    for entry in REGISTRY.values():
        fill = getattr(import_module(f"blinksim.algorithms.{entry.name}"), "fill", None)
        if fill is None or entry.outlined:
            continue
        for name in entry.collectives:
            wanted = Collective(name, part.ranks // 2 if name in ROOTED else 0)
            sketch = Plan(part, wanted, entry.name, "forest")
            fill(sketch)
            built = entry.parallel(part, wanted)
            hops = entry.hops(part.ranks, name)
            assert hops in (0, built.steps)
            for size in SIZES:
                least = max(least_of_sends(part, [sketch.messages()]) * size, least_of_steps(part, hops))
                time = cost(built, size).time_s
                assert 0 <= least <= time, (entry.name, name, size)
            count += 1
    return count


def check(part: Topology) -> int:
    """Every outline against its time, and the steps of a ring; how many there were."""
    count = check_sketches(part)
    for found in outlines(part):
        count += 1
        hops = REGISTRY[found.algorithm].hops(part.ranks, found.collective.name)
        assert hops in (0, found.steps)
        for size in SIZES:
            time = cost(found.step_loads, size).time_s
            assert 0 <= least_of_steps(part, hops) <= least_of_steps(part, found.steps) <= time, (found.algorithm, size)
            assert 0 <= least_of_sends(part, sends_of(found)) * size <= time, (found.algorithm, size)
    return count


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(topologies(min_devices=3, max_devices=6))
def test_no_steps_of_random_machines_take_less(machine: Topology) -> None:
    check(machine.select())


@pytest.mark.parametrize(
    ("machine", "nodes"), [("hgx-h100", 4), ("dgx-a100", 3), ("p5", 2), ("fattree:4x4", 1), ("torus:4x4", 1)]
)
def test_no_steps_of_clusters_take_less(machine: str, nodes: int) -> None:
    assert check(bs.Question(machine, nodes=nodes).part()) >= 15


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithms tell outlines of any number of sends, and lose by them on any number of ranks."""
    monkeypatch.setattr(contest, "_MOST_TIMED", 1)
    monkeypatch.setattr(contest, "_SOLVED", {})
    monkeypatch.setattr(loads, "_MANY_SENDS", 0)


def compare(part: Topology, name: str, size: int) -> tuple[str, ...]:
    """The best of those that are built is the best of all, and stands among as many; returns the others."""
    best, ranked = (bs.rank(part, name, size, "alpha-beta", algorithms=which) for which in ("best", "all"))
    assert best.best == ranked.best
    assert [found.to_dict()["considered"] for found in (best, ranked)] == [
        sorted(x.algorithm for x in ranked.projections)
    ] * 2
    assert (best.left_out, best.refused, ranked.slower) == (ranked.left_out, ranked.refused, ())
    times = {found.algorithm: found.time_s for found in ranked.projections}
    assert all(times[slower] > best.best.time_s for slower in best.slower)
    return best.slower


@pytest.mark.slow
@pytest.mark.usefixtures("everything_is_large")
def test_what_is_slow_for_sure_is_not_built() -> None:
    part = bs.Question("hgx-h100", nodes=32).part()
    assert {"ring", "direct"} <= {*compare(part, "allreduce", 2**20)}
    assert {"recursive_doubling", "two_shot"} <= {*compare(part, "allreduce", 2**30)}


@pytest.mark.slow
@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "mi300x", "p5"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_quickest_is_the_quickest_of_all(machine: str, name: str) -> None:
    for nodes in (5,) if name in ROOTED else (5, 8):
        part = bs.Question(machine, nodes=nodes).part()
        for size in (64, 2**16, 2**30):
            compare(part, name, size)


@given(forests(), st.integers(0, 40))
def test_no_forest_is_quicker_than_its_busiest_link(schedule: Schedule, power: int) -> None:
    for byte_s, start_s, made in thinner(Candidate(schedule)):
        if (fewer := made()) is not None:
            assert 0 < (byte_s * 2**power + start_s).max() <= cost(fewer, 2**power).time_s * (1 + 1e-9)


@pytest.mark.parametrize(("machine", "nodes", "collective"), [("dgx1-v100", 2, "allreduce"), ("mi250", 1, "allreduce")])
def test_as_many_trees_are_kept_as_are_quickest_of_all(machine: str, nodes: int, collective: str) -> None:
    whole = REGISTRY["packed"].parallel(bs.load(machine, nodes=nodes).select(), Collective(collective))
    fewer = thinner(whole)
    every = [whole, *filter(None, (made() for *_, made in fewer))]
    assert len(every) > 9
    for size in (*(4**power for power in range(4, 16)), 10**9):
        quickest = min(cost(some, size).time_s for some in every)
        assert cost(fewer_trees(whole, size), size).time_s == quickest
        for byte_s, start_s, made in fewer:
            one = made()
            assert one is None or max(byte_s * size + start_s) <= cost(one, size).time_s * (1 + 1e-9)
