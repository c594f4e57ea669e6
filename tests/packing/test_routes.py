"""Routes of random schedules: no device twice, whatever algorithm made them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import topologies

from blinksim import machines
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology

DATA = Path(__file__).parents[1] / "data" / "machines"
QUICK = [
    (name, collective)
    for name, algorithm in REGISTRY.items()
    if name == "packed" or not algorithm.solver
    for collective in algorithm.collectives
]


def circling(schedule: Schedule) -> list[list[str]]:
    """The devices of each route that passes one of them twice."""
    found = []
    for number in range(len(schedule.route_start) - 1):
        links = [schedule.topology.links[link] for link in schedule.links_of(number)]
        passed = [link.src for link in links[:1]] + [link.dst for link in links]
        if len(set(passed)) < len(passed):
            found.append(passed)
    return found


@settings(max_examples=150, deadline=None)
@given(topologies(max_devices=9, relays=True), st.sampled_from(QUICK))
def test_no_route_of_any_algorithm_passes_a_device_twice(topology: Topology, case: tuple[str, str]) -> None:
    name, collective = case
    try:
        schedule = REGISTRY[name].build(topology, Collective(collective))
    except BlinksimError:
        return
    assert circling(schedule) == []
    assert verify(schedule).ok


@pytest.mark.parametrize(
    ("machine", "collective", "relays"),
    [
        (str(DATA / "loop_allgather.yaml"), "allgather", None),
        (str(DATA / "loop_relays.yaml"), "allreduce", ["g2", "g3", "g6", "g7"]),
        ("fattree:4x4", "allgather", None),
        ("dgx1-v100", "allreduce", ["gpu1", "gpu2", "gpu3", "gpu4", "gpu6", "gpu7"]),
    ],
)
def test_joined_paths_leave_out_circles(machine: str, collective: str, relays: list[str] | None) -> None:
    topology = machines.load(machine)
    members = [name for name in topology.members if name not in (relays or [])]
    schedule = REGISTRY["packed"].build(topology.select(members, relays or ()), Collective(collective))
    assert circling(schedule) == []
    assert schedule.bound["gap_exact"] == "0"
