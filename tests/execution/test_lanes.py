"""Lanes kept apart: the same collective, every lane of a link loaded alike, one link per lane."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest

from blinksim import machines
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.gpu.execution.emulate import MOST_CHUNKS, lane_links, lanes_apart
from blinksim.schedule.loads import link_loads, rate
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology.shapes import one_switch

CASES = [
    ("packed", "allreduce"),
    ("rings", "allreduce"),
    ("chains", "allreduce"),
    ("packed", "allgather"),
    ("packed", "alltoall"),
    ("mxnet", "broadcast"),
    ("blink", "reduce"),
]


def build(algorithm: str, collective: str, members: str) -> Schedule:
    machine = machines.load("dgx1-v100").select([f"gpu{i}" for i in members])
    return REGISTRY[algorithm].build(machine, Collective(collective))


@pytest.mark.parametrize(("algorithm", "collective"), CASES)
@pytest.mark.parametrize("least", [1, 8])
def test_lanes_share_the_load_of_their_link(algorithm: str, collective: str, least: int) -> None:
    schedule = build(algorithm, collective, "0123")
    apart = lanes_apart(schedule, least)
    assert verify(apart).ok
    assert rate(apart) == rate(schedule)
    lanes: dict[tuple[str, str], list[Fraction]] = defaultdict(list)
    for link, load in zip(apart.topology.links, link_loads(apart), strict=True):
        assert link.lanes == 1
        lanes[link.src, link.dst].append(load)
    for link, load in zip(schedule.topology.links, link_loads(schedule), strict=True):
        assert lanes[link.src, link.dst] == [load / link.lanes] * link.lanes
    assert apart.chunks <= MOST_CHUNKS or apart.chunks <= 2 * schedule.chunks


def test_chunks_are_cut_to_one_share_and_then_on() -> None:
    schedule = build("packed", "allreduce", "023")
    assert len(set(schedule.share_num.tolist())) == 2
    apart = lanes_apart(schedule)
    assert len(set(apart.share_num.tolist())) == 1
    further = lanes_apart(schedule, 8 * apart.chunks)
    assert further.chunks == min(8, MOST_CHUNKS // apart.chunks) * apart.chunks


def test_a_link_becomes_its_lanes() -> None:
    machine = machines.load("dgx1-v100")
    apart, numbers = lane_links(machine)
    for link, lanes in zip(machine.links, numbers, strict=True):
        assert len(lanes) == link.lanes
        assert {apart.links[i].bandwidth for i in lanes} == {link.lane_bandwidth}
        assert [apart.links[i].kind for i in lanes] == [f"{link.kind}.{lane}" for lane in range(link.lanes)]
    assert set(apart.collective_links) == {"nvlink.0", "nvlink.1"}


def test_a_switch_has_no_lanes_to_choose() -> None:
    schedule = REGISTRY["ring"].build(one_switch(3, bandwidth=Fraction(10**9)).select(), Collective("allreduce"))
    with pytest.raises(InfeasibleError, match="crosses several links"):
        lanes_apart(schedule)
