"""Every algorithm of the registry, every collective it has, on several machines: the schedules keep their promise."""

from __future__ import annotations

from collections.abc import Iterator

import independent_check
import pytest
from in_pieces import cut

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.machines import load
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify

# What an algorithm refuses, and why; every other pair of algorithm and machine has a schedule.
SINGLE_NODES = ("full:2", "full:4", "ring:5", "hypercube:3", "torus:3x3", "switch:6")
REFUSED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("hierarchical", "hierarchical_direct", "hierarchical_multiplying"), SINGLE_NODES),
    **dict.fromkeys(("rail_aligned", "rail_joined", "bruck"), SINGLE_NODES),
    "bucket": ("full:2", "full:4", "ring:5", "rails:2x4", "rails:4x2", "switch:6"),
    **dict.fromkeys(("multi_lane", "locality_bruck", "node_aware"), SINGLE_NODES),
    "hierarchical_trees": ("full:2", "full:4", "rails:2x4", "rails:4x2", "switch:6"),
}
MACHINES = ("full:2", "full:4", "ring:5", "hypercube:3", "torus:3x3", "rails:2x4", "rails:4x2", "switch:6")
SMALL = ("full:4", "rails:2x4")
READS, ADDS = "can=forward,multicast,reduce_into_reader", "can=forward,multicast,reduce"
# For those that need switches which multicast or reduce: machines with such switches.
IN_NETWORK: dict[str, tuple[tuple[str, int, tuple[str, ...]], ...]] = {
    "nvls": (("switch:6", 1, (f"switch {READS}",)), ("switch:2", 1, (f"switch {READS}",)), ("hgx-h200", 1, ())),
    "nvls_one_shot": (("switch:4", 1, (f"switch {READS}",)), ("switch:2", 1, (f"switch {READS}",))),
    "packed_in_network": (("switch:4", 1, (f"switch {READS}",)), ("switch:3", 1, (f"switch {ADDS}",))),
    "nvls_tree": (("hgx-h200", 2, ("without gpu[3-7]",)), ("hgx-h200", 3, ("without gpu[2-7]",))),
    "sharp": (("switch:5", 1, (f"switch {ADDS}",)), ("dgx-a100", 2, ("without gpu[3-7]", f"fabric {ADDS}"))),
}
MANY_NODES = {
    "hierarchical_multiplying": (("rails:12x2", 1, ()), ("rails:9x1", 1, ())),
    "locality_bruck": (("rails:12x2", 1, ()), ("rails:2x6", 1, ()), ("dgx1-v100", 3, ()), ("aurora", 2, ())),
    "multi_lane": (("rails:12x2", 1, ()), ("rails:9x1", 1, ()), ("rails:2x6", 1, ()), ("mi300x", 2, ())),
    "node_aware": (("rails:12x3", 1, ()), ("rails:9x4", 1, ()), ("dgx1-v100", 6, ()), ("aurora", 4, ())),
    "scatter_allgather": (("rails:12x2", 1, ()), ("rails:2x6", 1, ()), ("dgx1-v100", 2, ()), ("aurora", 2, ())),
    "hierarchical_trees": (("dgx1-v100", 2, ()), ("dgx1-p100", 3, ("without gpu[5-7]",)), ("mi250", 2, ())),
}


def schedules(name: str, collective: str) -> Iterator[Schedule]:
    algorithm = REGISTRY[name]
    for machine, nodes, edits in (IN_NETWORK | MANY_NODES).get(name, ()):
        topology = load(machine, nodes=nodes, edits=edits).select()
        yield from (
            algorithm.build(topology, Collective(collective, root))
            for root in ({0, topology.ranks - 1} if Collective(collective).rooted else {0})
        )
    if algorithm.in_network:
        return
    for machine in SMALL if algorithm.solver else MACHINES:
        topology = load(machine).select()
        for root in {0, topology.ranks - 1} if Collective(collective).rooted else {0}:
            wanted = Collective(collective, root)
            if machine in REFUSED.get(name, ()):
                with pytest.raises(BlinksimError):
                    algorithm.build(topology, wanted)
            else:
                yield algorithm.build(topology, wanted)


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        pytest.param(name, c, marks=[pytest.mark.slow] if algorithm.solver else [])
        for name, algorithm in REGISTRY.items()
        for c in algorithm.collectives
    ],
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
