"""Sums of alpha and beta beside simulations of the same schedules, with the best number of pieces for each."""

from __future__ import annotations

from functools import cache

import pytest

import blinksim as bs

SIZES = ("64KiB", "1MiB", "16MiB", "256MiB", "4GiB")


@cache
def part_of(machine: str, nodes: int) -> bs.Topology:
    return (bs.load(machine, nodes=nodes) if nodes > 1 else bs.load(machine)).select()


def ratios(machine: str, nodes: int, collective: str, algorithm: str) -> list[float]:
    """The time of the sums over that of a simulation, by size."""
    part = part_of(machine, nodes)
    times = [
        [bs.project(part, collective, size, algorithm=algorithm, model=model).time_s for size in SIZES]
        for model in ("alpha-beta", "simulate")
    ]
    return [summed / simulated for summed, simulated in zip(*times, strict=True)]


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "algorithm"),
    [
        # Two rings on a link of two lanes, each with messages of its own.
        ("dgx1-v100", 1, "allreduce", "ring"),
        # Steps on links of their own, which overlap in pieces.
        ("dgx1-v100", 1, "allreduce", "recursive_doubling"),
        ("aurora", 1, "allgather", "hierarchical"),
        # Latency passes while the next piece is sent.
        ("dgx1-v100", 1, "broadcast", "chain"),
        pytest.param("hgx-h100", 2, "broadcast", "chain", marks=pytest.mark.slow),
        # Children of a vertex wait for each other.
        ("hgx-h100", 1, "broadcast", "packed"),
        # What waits for the adapters' first bytes is not what the busiest links carry.
        ("hgx-h100", 2, "allgather", "packed"),
        ("p4d", 2, "allgather", "packed"),
        # Ports of a switch that gather and spread one after the other.
        ("hgx-h100", 1, "allreduce", "packed"),
        # All begin with another receiver, so nobody waits at a port behind a switch.
        ("hgx-h100", 1, "allgather", "direct"),
        ("hgx-h100", 1, "alltoall", "direct"),
        ("hgx-h100", 1, "allreduce", "two_shot"),
        ("hgx-h100", 2, "reducescatter", "hierarchical"),
        pytest.param("gb200-nvl72", 2, "allgather", "hierarchical", marks=pytest.mark.slow),
    ],
)
def test_what_is_regular_takes_as_long_as_simulated(machine: str, nodes: int, collective: str, algorithm: str) -> None:
    assert ratios(machine, nodes, collective, algorithm) == pytest.approx([1.0] * len(SIZES), abs=0.035)


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "algorithm", "least", "most"),
    [
        ("dgx1-v100", 1, "allreduce", "packed", 1.0, 1.16),
        ("hgx-h100", 2, "allreduce", "hierarchical", 0.999, 1.04),
        pytest.param("gb200-nvl72", 2, "allreduce", "hierarchical_multiplying", 0.97, 1.03, marks=pytest.mark.slow),
        # Pieces of several steps meet at the ports of a switch, which is as busy as the adapters.
        pytest.param("hgx-h100", 4, "allgather", "hierarchical", 0.93, 1.01, marks=pytest.mark.slow),
        pytest.param("hgx-h100", 8, "allgather", "hierarchical", 0.83, 1.01, marks=pytest.mark.slow),
        pytest.param("hgx-h100", 2, "alltoall", "rail_aligned", 0.9, 1.3, marks=pytest.mark.slow),
        pytest.param("hgx-h100", 2, "allreduce", "ring", 0.98, 1.13, marks=pytest.mark.slow),
        # Shards that come in by all ports at once overlap more than the sums say.
        pytest.param("hgx-h100", 2, "allreduce", "packed", 1.0, 1.36, marks=pytest.mark.slow),
        pytest.param("hgx-h100", 2, "allreduce", "double_binary", 0.99, 1.2, marks=pytest.mark.slow),
        pytest.param("torus:4x4", 1, "allgather", "ring", 0.99, 1.01, marks=pytest.mark.slow),
        pytest.param("torus:4x4", 1, "broadcast", "packed", 0.99, 1.01, marks=pytest.mark.slow),
        pytest.param("gb200-nvl72", 2, "broadcast", "packed", 0.8, 1.03, marks=pytest.mark.slow),
    ],
)
def test_the_others_are_near(
    machine: str, nodes: int, collective: str, algorithm: str, least: float, most: float
) -> None:
    found = ratios(machine, nodes, collective, algorithm)
    assert least <= min(found)
    assert max(found) <= most


def test_steps_of_whole_messages_add_up() -> None:
    """On links of their own, without pieces the steps follow each other, and in pieces they overlap."""
    from blinksim.timing.alpha_beta import cost

    schedule = bs.synthesize(part_of("dgx1-v100", 1), "allreduce", "recursive_doubling").schedule
    whole, best = cost(schedule, 2**28, whole_messages=True), cost(schedule, 2**28)
    assert whole.time_s == pytest.approx(bs.simulate(schedule, 2**28, pieces=1).time_s, rel=1e-3)
    assert best.time_s == pytest.approx(bs.simulate(schedule, 2**28, pieces=best.pieces).time_s, rel=1e-3)
    assert (whole.pieces, best.steps) == (1, whole.steps)
    assert best.time_s < whole.time_s / 2.5
    assert sum(term.time_s for term in best.terms) == pytest.approx(best.time_s)


@pytest.mark.parametrize("machine", ["hgx-h100", "hgx-b300", "mi300x", "hgx-h800"])
@pytest.mark.parametrize("model", ["alpha-beta", "simulate"])
def test_a_reducescatter_is_an_allgather_that_runs_backwards(machine: str, model: str) -> None:
    """Trees of the same links, the last hops first: what fills one pipeline drains the other."""
    part = bs.load(machine, nodes=2)
    ways = [bs.project(part, one, "1GiB", model=model, algorithm="packed") for one in ("allgather", "reducescatter")]
    gathered, scattered = (way.time_s for way in ways)
    assert scattered == pytest.approx(gathered, rel=0.06)
