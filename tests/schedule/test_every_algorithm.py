"""Every algorithm of the registry, every collective it has, on several machines: the schedules keep their promise."""

from __future__ import annotations

from collections.abc import Iterator

import independent_check
import pytest
from registry_facts import needs_a_power_of_two

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.machines import load
from blinksim.schedule.model import Schedule
from blinksim.schedule.pipeline import cut
from blinksim.schedule.verify import verify

# What an algorithm refuses, and why; every other pair of algorithm and machine has a schedule.
NO_POWERS_OF_TWO = ("ring:5", "torus:3x3", "switch:6")
SINGLE_NODES = ("full:2", "full:4", "ring:5", "hypercube:3", "torus:3x3", "switch:6")
REFUSED = {"hierarchical": SINGLE_NODES}
MACHINES = ("full:2", "full:4", "ring:5", "hypercube:3", "torus:3x3", "rails:2x4", "rails:4x2", "switch:6")
SMALL = ("full:4", "rails:2x4")


def schedules(name: str, collective: str) -> Iterator[Schedule]:
    algorithm = REGISTRY[name]
    for machine in SMALL if algorithm.solver else MACHINES:
        topology = load(machine).select()
        for root in {0, topology.ranks - 1} if Collective(collective).rooted else {0}:
            wanted = Collective(collective, root)
            if machine in (*REFUSED.get(name, ()), *(NO_POWERS_OF_TWO if needs_a_power_of_two(name) else ())):
                with pytest.raises(BlinksimError):
                    algorithm.build(topology, wanted)
            else:
                yield algorithm.build(topology, wanted)


@pytest.mark.parametrize(
    ("name", "collective"), [(name, c) for name, algorithm in REGISTRY.items() for c in algorithm.collectives]
)
def test_it_verifies_whole_and_in_pieces(name: str, collective: str) -> None:
    built = list(schedules(name, collective))
    assert built, f"{name} was built on none of the machines"
    for schedule in built:
        verdict = verify(schedule)
        assert verdict.ok, verdict
        assert independent_check.check(schedule) == []
        assert verdict.facts.rate == independent_check.rate(schedule)
        # With the slots that the facts state nothing ever waits for a slot inside a step.
        assert verify(schedule, slots=max(1, verdict.facts.in_flight)).ok
        if schedule.sends <= 500:
            assert verify(cut(schedule, 3)).ok
