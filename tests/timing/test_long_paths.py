"""The longest path of a pipeline: never longer than the longest of all paths tried, for any size."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from strategies import topologies

from blinksim.algorithms.building.plan import Plan
from blinksim.collective import Collective
from blinksim.schedule.model import Schedule
from blinksim.timing import alpha_beta
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


def brute_force(schedule: Schedule, alphas: list[float], transfer: list[float], pieces: int) -> float:
    """The latest arrival of a piece anywhere: the longest of all sequences of sends, each in a later step."""
    latest = 0.0

    def follow(last: int, lag: float, fill: float, slowest: float) -> None:
        nonlocal latest
        latest = max(latest, lag + (fill - slowest) / pieces)
        for send in range(schedule.sends):
            if (
                schedule.chunk[send] == schedule.chunk[last]
                and schedule.src[send] == schedule.dst[last]
                and schedule.step[send] > schedule.step[last]
            ):
                follow(send, lag + alphas[send], fill + transfer[send], max(slowest, transfer[send]))

    for send in range(schedule.sends):
        follow(send, alphas[send], transfer[send], transfer[send])
    return latest


@settings(max_examples=30, deadline=None)
@given(schedule=relays_of_pieces(), pieces=st.integers(1, 5), seed=st.integers(0, 9))
def test_no_path_is_longer_than_the_longest_of_all(schedule: Schedule, pieces: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    alphas, transfer = draw.integers(1, 9, schedule.sends) / 8, draw.integers(1, 9, schedule.sends) / 4
    waits = draw.integers(0, 3, schedule.sends) / 8
    lag, tail = alpha_beta.Paths(schedule, alphas, transfer, waits).longest(pieces)
    tried = brute_force(schedule, alphas.tolist(), (transfer + pieces * waits).tolist(), pieces)
    assert max(alphas) <= lag + tail / pieces <= tried + 1e-12
    assert alpha_beta.Paths(schedule, alphas, transfer / 8, waits).longest(pieces, 8) == (lag, tail)
