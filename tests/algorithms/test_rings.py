"""The most rings of every class of DGX-1 subsets, against published counts and brute force."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise, permutations

import pytest
import strategies
from dgx1_subsets import connected, part
from hypothesis import given, settings
from proved_gaps import gap

import blinksim as bs
from blinksim.algorithms import rings
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import load
from blinksim.schedule.loads import link_loads, rate
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Device, Link, Topology

ALLREDUCE = Collective("allreduce")


def count(topology: Topology, *, bidirectional: bool) -> int:
    try:
        found, proved = rings.most_rings(topology, bidirectional=bidirectional)
    except InfeasibleError:
        return 0
    assert proved
    return len(found) // (2 if bidirectional else 1)


def test_as_many_rings_as_published_on_every_class() -> None:
    compared = 0
    for subset in connected():
        topology = subset.topology()
        for column, bidirectional in (("rings_bidir", True), ("rings_directed", False)):
            if subset.row[column]:
                assert count(topology, bidirectional=bidirectional) == subset.value(column), (str(subset), column)
                compared += 1
    assert compared > 100


@pytest.mark.slow
def test_ring_rates_are_those_published() -> None:
    reached, without = 0, 0
    for subset in connected():
        topology = subset.topology()
        if not subset.value("ring_allreduce"):
            without += 1
            with pytest.raises(InfeasibleError, match=r"no ring visits all \d members"):
                rings.build(topology, ALLREDUCE)
            continue
        root = topology.ranks - 1
        for collective, column in (
            (ALLREDUCE, "ring_allreduce"),
            (Collective("broadcast", root), "ring_broadcast"),
            (Collective("reduce", root), "ring_broadcast"),
        ):
            schedule = rings.build(topology, collective)
            assert verify(schedule).ok, (str(subset), collective)
            assert rate(schedule) == subset.value(column) * subset.lane, (str(subset), collective)
            reached += 1
    assert (reached, without) == (111, 26)


def test_four_fully_connected_gpus_have_one_ring_in_two_directions() -> None:
    """Blink, 2018 short paper, figure 1(a): two cross-bar links stay idle."""
    quad = part("DGX-1P", "0-1-2-3")
    assert count(quad, bidirectional=True) == 1
    assert count(quad, bidirectional=False) == 2
    loads = link_loads(rings.build(quad, ALLREDUCE, bidirectional=True))
    assert sum(not load for load in loads) == 2 * 2


def test_rings_on_six_gpus_of_a_dgx1p_use_6_of_its_16_nvlinks() -> None:
    topology = part("DGX-1P", "0-1-2-4-5-6")
    schedule = rings.build(topology, ALLREDUCE, bidirectional=True)
    assert sum(bool(load) for load in link_loads(schedule)) == 6 * 2
    assert len(topology.links) == 9 * 2


@pytest.mark.parametrize(
    ("gpus", "disjoint", "shared"),
    [("0-1-2-3", "4/3", "2"), ("0-1-2-4-5-6", "6/5", "9/5"), ("0-1-2-3-4-5-6", "7/6", "7/4")],
)
def test_rings_that_share_lanes_can_carry_more(gpus: str, disjoint: str, shared: str) -> None:
    """The six directed rings of four fully connected GPUs, a third of a lane each, fill every arc."""
    topology = part("DGX-1P", gpus)
    assert rate(rings.build(topology, ALLREDUCE)) == Fraction(disjoint) * 20 * 10**9
    schedule = rings.build(topology, ALLREDUCE, channels=16)
    assert verify(schedule).ok
    assert rate(schedule) == Fraction(shared) * 20 * 10**9
    gathered = rings.build(topology, Collective("allgather"), channels=16)
    assert verify(gathered).ok
    assert gap(gathered) == "0"
    assert int(gathered.channel.max()) + 1 == 6


def test_channels_must_be_what_nccl_can_have() -> None:
    topology = part("DGX-1P", "0-1-2-3")
    with pytest.raises(InputError, match="65 channels"):
        rings.build(topology, ALLREDUCE, channels=65)
    with pytest.raises(InputError, match="without bidirectional"):
        rings.build(topology, ALLREDUCE, channels=4, bidirectional=True)
    with pytest.raises(InfeasibleError, match="no ring visits all 3 members over nvlink; take chains"):
        rings.build(part("DGX-1P", "0-1-4"), ALLREDUCE, channels=4)


def test_pairs_of_rings_are_opposite() -> None:
    found, _ = rings.most_rings(part("DGX-1V", "0-1-2-3-4-5-6-7"), bidirectional=True)
    assert len(found) == 6
    assert all(back == (ahead[0], *reversed(ahead[1:])) for ahead, back in zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize(("name", "expected"), [("dgx-a100", 12), ("hgx-h200", 18), ("p3.16xlarge", 6), ("full:5", 4)])
def test_other_machines(name: str, expected: int) -> None:
    topology = load(name).select()
    assert count(topology, bidirectional=False) == expected
    for collective in ("allreduce", "allgather", "reducescatter"):
        schedule = rings.build(topology, Collective(collective))
        assert verify(schedule).ok
        assert gap(schedule) == "0"


def test_one_rank_has_no_ring() -> None:
    with pytest.raises(InputError, match="needs two GPUs or more"):
        bs.synthesize(part("DGX-1V", "0"), ALLREDUCE, "rings")


@settings(max_examples=20)
@given(strategies.topologies(max_devices=5, switches=False, half_duplex=False))
def test_no_larger_number_of_directed_rings_exists(topology: Topology) -> None:
    lane = min(link.lane_bandwidth for link in topology.links)
    lanes = {(x.src, x.dst): int(x.bandwidth / lane) for x in topology.links}
    first, *rest = topology.members
    cycles = [
        Counter(pairwise((first, *order, first)))
        for order in permutations(rest)
        if all(arc in lanes for arc in pairwise((first, *order, first)))
    ]

    def most(left: dict[tuple[str, str], int], start: int) -> int:
        best = 0
        for number in range(start, len(cycles)):
            if all(left[arc] >= times for arc, times in cycles[number].items()):
                after = {arc: left[arc] - cycles[number][arc] for arc in left}
                best = max(best, 1 + most(after, number))
        return best

    assert count(topology, bidirectional=False) == most(lanes, 0)


@pytest.mark.parametrize("name", ["allreduce", "allgather", "broadcast", "reduce"])
def test_a_ring_that_a_bus_is_too_narrow_for_is_refused(name: str) -> None:
    # Two GPUs on one half-duplex lane: the ring would take the lane once in each direction.
    lane = [Link(a, b, "link", Fraction(10**9), 1, bus="shared") for a, b in (("gpu0", "gpu1"), ("gpu1", "gpu0"))]
    pair = Topology("pair", (Device("gpu0", "gpu"), Device("gpu1", "gpu")), tuple(lane))
    with pytest.raises(InfeasibleError, match="no ring visits all 2 members over link with a lane of its own"):
        rings.build(pair, Collective(name))
