"""The earliest tree: LogP's own count, the simulation, and what no schedule falls below are the oracles."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.topology import shapes
from blinksim.topology.graph import Topology

MACHINES = (("hgx-h100", 3), ("gb200-nvl72", 1), ("dgx1-v100", 2), ("p4d.24xlarge", 5), ("torus:3x3", 1), ("mi250", 1))


def informed(ticks: int, gap: int, arrives: int) -> int:
    """Ranks that have the data after so many ticks: a rank, and the subtrees of whom it sent to, one gap apart."""

    @cache
    def count(left: int) -> int:
        return 1 + sum(count(left - arrives - place * gap) for place in range(1 + (left - arrives) // gap))

    return count(ticks)


@given(ranks=st.integers(2, 90), gap=st.integers(1, 9), latency=st.integers(0, 9))
def test_a_broadcast_takes_as_long_as_logp_says(ranks: int, gap: int, latency: int) -> None:
    """Karp et al., SPAA 1993, theorem 2.1: most ranks are informed if all send as often as they can."""
    tick = 1e-6
    part = shapes.one_switch(ranks, bandwidth=Fraction(10**15), times=(latency / 2 * tick, gap * tick)).select()
    least = next(t for t in range(10**4) if informed(t, gap, gap + latency) >= ranks)
    found = bs.project(part, "broadcast", 1, "binomial", model="alpha-beta")
    assert found.time_s == pytest.approx(least * tick, rel=1e-6)


@pytest.mark.parametrize(("name", "nodes"), MACHINES)
@pytest.mark.parametrize("collective", ["broadcast", "reduce", "allreduce"])
def test_small_messages_take_what_a_simulation_says(name: str, nodes: int, collective: str) -> None:
    part = _part(name, nodes)
    found = bs.project(part, collective, 8, "binomial", model="alpha-beta")
    simulated = bs.simulate(algorithm("binomial").build(part, bs.Collective(collective)), 8).time_s
    assert found.time_s == pytest.approx(simulated, rel=0.01)
    assert found.least is not None
    assert simulated >= found.least.time_s * (1 - 1e-9)
    others = [bs.project(part, collective, 8, other, model="alpha-beta").time_s for other in ("binary", "chain")]
    assert found.time_s <= min(others)


@given(ranks=st.integers(2, 90), gap=st.integers(1, 9), latency=st.integers(0, 9))
def test_small_blocks_are_scattered_as_early_as_a_broadcast_arrives(ranks: int, gap: int, latency: int) -> None:
    """Blocks that weigh nothing take LogP's time of a broadcast, which nothing beats as each rank needs a message."""
    tick = 1e-6
    part = shapes.one_switch(ranks, bandwidth=Fraction(10**15), times=(latency / 2 * tick, gap * tick)).select()
    least = next(t for t in range(10**4) if informed(t, gap, gap + latency) >= ranks)
    schedule = algorithm("binomial_blocks").build(part, bs.Collective("scatter"))
    assert bs.simulate(schedule, ranks).time_s == pytest.approx(least * tick, rel=1e-6)
    assert bs.project(part, "scatter", ranks, "binomial_blocks", model="alpha-beta").time_s >= least * tick * (1 - 1e-6)


@pytest.mark.parametrize("collective", ["scatter", "gather"])
@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_blocks_are_where_they_belong(name: str, nodes: int, collective: str) -> None:
    """On any root; a scatter of 8 B on many GPUs takes a fraction of what a message to each of them takes."""
    part = _part(name, nodes)
    for root in (0, part.ranks - 1):
        schedule = algorithm("binomial_blocks").build(part, bs.Collective(collective, root))
        assert bs.verify(schedule)
        assert bs.execute(schedule, part.ranks * 8, dtype="int32").wrong == 0
    if collective == "scatter" and name in ("hgx-h100", "gb200-nvl72"):
        times = [
            bs.simulate(algorithm(one).build(part, bs.Collective(collective)), 8).time_s
            for one in ("binomial_blocks", "direct")
        ]
        assert times[0] < 0.5 * times[1]


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 12, 24, 72])
@pytest.mark.parametrize(
    ("name", "collective"), [("recursive_doubling", "allgather"), ("halving_doubling", "reducescatter")]
)
def test_shards_go_around_in_the_fewest_steps(name: str, collective: str, ranks: int) -> None:
    """A rank has at most twice as many shards after a step of one message, so log2 of the ranks are the fewest."""
    schedule = algorithm(name).build(shapes.fully_connected(ranks).select(), bs.Collective(collective))
    assert bs.verify(schedule)
    assert schedule.steps == (ranks - 1).bit_length()
    assert schedule.sends == ranks * (ranks - 1)


def _part(name: str, nodes: int) -> Topology:
    return bs.load(name, nodes=nodes).select()
