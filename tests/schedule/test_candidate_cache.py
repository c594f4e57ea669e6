"""A question asked twice is worked out once, and an edited machine is another question."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import patch

import pytest

import blinksim as bs
from blinksim.algorithms import packed, ring
from blinksim.algorithms.registry import REGISTRY
from blinksim.bounds import compute
from blinksim.collective import Collective
from blinksim.schedule import candidate
from blinksim.timing import contest

ALLREDUCE = Collective("allreduce")


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    candidate._cache.clear()


def test_the_same_question_is_packed_once() -> None:
    with patch.object(packed, "build", wraps=packed.build) as build:
        first = bs.project("dgx1-v100", "allreduce", "64MiB", algorithm="packed")
        again = bs.project("dgx1-v100", "allreduce", "64MiB", algorithm="packed")
        assert bs.compare("dgx1-v100", "allreduce", ["1MiB", "64MiB"], algorithms=["packed"]).rows()
    assert build.call_count == 1
    assert first.time_s == again.time_s


def test_an_edited_machine_is_another_question() -> None:
    whole = bs.project("torus:4x4", "allreduce", "256MiB", algorithm="ring").time_s
    slow = bs.load("torus:4x4", edits=["degrade gpu0-gpu1 bandwidth=1GB/s"])
    assert bs.project(slow, "allreduce", "256MiB", algorithm="ring").time_s > 1.5 * whole
    assert bs.bound(slow, "allreduce").rate < bs.bound("torus:4x4", "allreduce").rate


def test_bounds_are_computed_once() -> None:
    compute._bounds.cache_clear()
    for _ in range(2):
        bs.bound(bs.load("dgx1-v100"), "allreduce")
    assert compute._bounds.cache_info().misses == 1


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate, "MOST_CACHED", 500)
    with patch.object(ring, "build", wraps=ring.build) as build:
        for machine in ("full:4", "switch:20", "full:4"):
            REGISTRY["ring"].parallel(bs.load(machine), ALLREDUCE)
        assert build.call_count == 2
        # 48 + 160 + 240 sends fit, and 112 more do not: the first has to go.
        for machine in ("full:5", "full:6", "switch:8", "full:6", "full:4"):
            REGISTRY["ring"].parallel(bs.load(machine), ALLREDUCE)
        assert build.call_count == 6
    assert sum(found.sends for _, found in candidate._cache.values()) <= 500


def test_what_an_answer_asks_at_every_size_is_kept() -> None:
    """An alltoall of 1,024 nodes, that of half the nodes, a quarter and so on, and two more that are said once."""
    part = bs.load("aurora", nodes=1024).select()
    whole = contest.said_once(REGISTRY["rail_aligned"], part, Collective("alltoall"))
    assert whole is not None
    # The halves together have as many sends again, the others 1.5 and 2.4 times as many.
    assert 6 * whole.held <= candidate.MOST_CACHED


def test_threads_share_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a group build their schedules at once, each in a thread of its own."""
    rings = [REGISTRY["ring"].parallel(bs.load(f"full:{ranks}"), ALLREDUCE) for ranks in range(3, 11)]
    monkeypatch.setattr(candidate, "MOST_CACHED", sum(one.sends for one in rings) // 2)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def ask(thread: int) -> None:
        drawn = random.Random(thread)
        for _ in range(3000):
            number = drawn.randrange(len(rings))
            assert candidate.cached(("ring", number), partial(rings.__getitem__, number)) is rings[number]

    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, range(8)))
    finally:
        sys.setswitchinterval(before)
