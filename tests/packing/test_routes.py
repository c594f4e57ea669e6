"""Routes of random schedules: no device twice, whatever algorithm made them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from proved_gaps import gap
from strategies import clusters_with_nics, topologies

from blinksim import machines
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology

DATA = Path(__file__).parents[1] / "data" / "machines"
QUICK = {name: entry for name, entry in REGISTRY.items() if name == "packed" or not entry.solver}


def circling(schedule: Schedule) -> list[list[str]]:
    """The devices of each route that passes one of them twice."""
    found = []
    for number in range(len(schedule.route_start) - 1):
        links = [schedule.topology.links[link] for link in schedule.links_of(number)]
        passed = [link.src for link in links[:1]] + [link.dst for link in links]
        if len(set(passed)) < len(passed):
            found.append(passed)
    return found


# Nodes that are alike, and all pairs joined, which some algorithms want and the others of these are seldom.
ALIKE = st.sampled_from(["rails:2x2", "rails:3x2", "rails:9x1", "rails:10x2", "full:4"]).map(
    lambda name: machines.load(name).select()
)
TORI = st.sampled_from(["torus:2x3", "torus:3x3"]).map(lambda name: machines.load(name).select())
MESHES = st.just("dgx1-p100").map(lambda name: machines.load(name, nodes=2).select())


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_no_route_of_any_algorithm_passes_a_device_twice(name: str) -> None:
    built = Counter[str]()

    @settings(max_examples=25, deadline=None)
    @given(st.one_of(ALIKE, TORI, MESHES, topologies(max_devices=9, relays=True), clusters_with_nics()), st.data())
    def passes_each_once(topology: Topology, data: st.DataObject) -> None:
        collective = data.draw(st.sampled_from(QUICK[name].collectives))
        try:
            schedule = QUICK[name].build(topology, Collective(collective))
        except BlinksimError:
            return
        built[topology.name] += 1
        assert circling(schedule) == []
        assert verify(schedule).ok

    passes_each_once()
    assert built


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
    assert gap(schedule) == "0"
