"""The longest path of a pipeline: the longest of all paths tried."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
from hypothesis import given, settings, strategies as st
from strategies import topologies

from blinksim.algorithms.building.plan import Plan
from blinksim.collective import Collective
from blinksim.schedule import loads
from blinksim.schedule.model import Schedule
from blinksim.timing.alpha_beta import _served
from blinksim.topology.graph import Topology


@st.composite
def relays_of_pieces(draw: st.DrawFn) -> Schedule:
    """A forest of random copies: any rank to any other, several in a step, the same rank reached more than once."""
    machine: Topology = draw(topologies(min_devices=3, max_devices=5, half_duplex=False)).select()
    plan = Plan(machine, Collective("broadcast"), "drawn", "forest")
    for share in (1, 2):
        chunk = plan.add_chunk(f"{share}/3")
        for step in range(draw(st.integers(1, 6))):
            for _ in range(draw(st.integers(1, 3))):
                src, dst = draw(st.permutations(range(plan.n)))[:2]
                plan.send(src, dst, chunk=chunk, op="copy", step=step)
    return plan.finish()


def brute_force(schedule: Schedule, seconds: list[float]) -> float:
    """The latest arrival of a piece anywhere: the longest of all sequences of sends, each in a later step."""
    latest = 0.0

    def follow(last: int, time: float) -> None:
        nonlocal latest
        latest = max(latest, time)
        for send in range(schedule.sends):
            if (
                schedule.chunk[send] == schedule.chunk[last]
                and schedule.src[send] == schedule.dst[last]
                and schedule.step[send] > schedule.step[last]
            ):
                follow(send, time + seconds[send])

    for send in range(schedule.sends):
        follow(send, seconds[send])
    return latest


@settings(max_examples=30, deadline=None)
@given(schedule=relays_of_pieces(), seed=st.integers(0, 9))
def test_the_longest_path_is_the_longest_of_all(schedule: Schedule, seed: int) -> None:
    seconds = np.random.default_rng(seed).integers(1, 9, schedule.sends) / 8
    paths = loads.Paths(schedule)
    assert sorted(paths.order.tolist()) == [*range(schedule.sends)]
    # Sums of eighths are exact in any order.
    assert paths.longest(seconds[paths.order]) == brute_force(schedule, seconds.tolist())


_EIGHTHS = st.integers(0, 40).map(lambda eighths: eighths / 8)


@given(
    st.lists(st.tuples(st.integers(0, 3), _EIGHTHS, _EIGHTHS), min_size=1),
    st.lists(st.tuples(_EIGHTHS, _EIGHTHS), min_size=4, max_size=4),
)
def test_a_level_is_served_first_come_first_served(
    messages: list[tuple[int, float, float]], known: list[tuple[float, float]]
) -> None:
    """At each of four resources, busy since the level before: one message after another, by when they are ready."""
    messages.sort(key=itemgetter(0))
    resource, ready, hold = map(np.array, zip(*messages, strict=True))
    used, first, number = np.unique(resource, return_index=True, return_inverse=True)
    busy = np.array(known).T
    found = _served((used[number], first[number], number.astype(float)), ready, hold, busy)
    for place, (until, work) in enumerate(known):
        free, passed = 0.0, 0.0
        for at in sorted(np.flatnonzero(resource == place), key=ready.__getitem__):
            began = max(free, ready[at] + min(max(until - ready[at], 0.0), work))
            assert found[at] == began
            free, passed = began + hold[at], passed + hold[at]
        assert busy[:, place].tolist() == [max(until, free), work + passed]
