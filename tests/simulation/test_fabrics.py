"""Schedules for clusters on real fabrics, simulated: large sizes come near the rate of the loads, never above."""

from __future__ import annotations

import pytest

import blinksim as bs

FABRICS = {
    "rails": "",
    "rails, 2:1": "fabric shape=tree planes=8 spine_planes=1 leaf_nodes=4 oversubscription=2",
    "rails, 4:1": "fabric shape=tree planes=8 spine_planes=1 leaf_nodes=4 oversubscription=4",
    "leaves, 2:1": "fabric shape=tree leaf_nodes=4 oversubscription=2",
    "leaves, 4:1": "fabric shape=tree leaf_nodes=4 oversubscription=4",
    "dragonfly": "fabric shape=dragonfly group_nodes=4 group_links=4",
}
# Collective, algorithm, the share of its own rate that it reaches at least, and pieces.
CASES = [
    ("allgather", "packed", 0.98, 59),
    ("allreduce", "packed", 0.96, 29),
    ("broadcast", "packed", 0.98, 476),
    ("alltoall", "rail_aligned", 0.99, 33),
    ("alltoall", "direct", 0.995, 59),
    ("allreduce", "hierarchical", 0.91, 29),
]


def share(nodes: int, fabric: str, collective: str, algorithm: str, pieces: int) -> float:
    """The share of the rate that its loads allow which a schedule reaches with 256 GiB; each send takes turns."""
    edits = [FABRICS[fabric]] if FABRICS[fabric] else []
    part = bs.load("hgx-h100", nodes=nodes, edits=edits).select()
    made = bs.synthesize(part, collective, algorithm)
    timeline = bs.simulate(made.schedule, 2**38, pieces=pieces, offer="turns")
    assert made.rate is not None
    return timeline.algbw_GBps * 10**9 / float(made.rate)


def test_an_alltoall_over_two_nodes_takes_what_its_loads_say() -> None:
    assert 0.99 <= share(2, "rails", "alltoall", "rail_aligned", 16) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm", "least", "pieces"), CASES)
@pytest.mark.parametrize(
    "fabric", [pytest.param(name, marks=[pytest.mark.alike] if "4:1" in name else []) for name in FABRICS]
)
def test_eight_nodes_come_near_the_rate_of_their_loads(
    fabric: str, collective: str, algorithm: str, least: float, pieces: int
) -> None:
    assert least <= share(8, fabric, collective, algorithm, pieces) <= 1
