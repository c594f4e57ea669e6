"""What several channels reach together can be a fact of the machine, or be given."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.papers.blinkplus import ATTRIBUTE, machine_cap, with_cap
from blinksim.topology.graph import Topology


@pytest.mark.slow
def test_the_cap_is_an_optional_fact_of_the_machine() -> None:
    part = bs.load("dgx1-v100").select(["gpu0", "gpu1"], ["gpu2", "gpu3"], relays_reduce=True)
    schedule = algorithm("blinkplus").build(part, Collective("broadcast"), channels=3)
    assert machine_cap(schedule.topology) is None
    assert with_cap(schedule, None) is schedule

    def stated(text: str) -> Topology:
        topology = schedule.topology
        devices = tuple(replace(d, attributes={**d.attributes, ATTRIBUTE: text}) for d in topology.devices)
        return replace(topology, devices=devices)

    known = with_cap(replace(schedule, topology=stated("62GB/s")), None)
    assert {d.capacity for d in known.topology.devices if d.holds} == {Fraction(62 * 10**9)}
    with pytest.raises(InputError):
        machine_cap(stated("much"))
    for cap, expected in ((None, 62), (Fraction(30 * 10**9), 30)):
        capped = with_cap(replace(schedule, topology=stated("62GB/s")), cap)
        assert 0.98 * expected < bs.simulate(capped, "1GiB").algbw_GBps <= expected
