"""Bounds against published and closed-form numbers."""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from statistics import median_high

import pytest
from golden_machines import GB, GOLDEN, a100, aurora, dgx1p, dgx1v, pair, ring

import blinksim as bs
from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.topology.graph import Device, Link, Topology


def rate(topology: Topology, name: str, root: int = 0) -> Fraction:
    """The headline in GB/s, its certificates checked."""
    return checked(bound(topology, Collective(name, root))).rate / GB


def checked(result: BoundResult) -> BoundResult:
    for entry in result.bounds:
        assert entry.check(result.topology, result.collective, result.shares) == []
        assert entry.certificate.rate == entry.rate
    return result


def test_the_whole_v100_machine() -> None:
    machine = dgx1v()
    assert rate(machine, "allgather") == rate(machine, "reducescatter") == Fraction(1200, 7)
    assert rate(machine, "broadcast") == rate(machine, "reduce", 5) == 150
    assert rate(machine, "gather", 3) == rate(machine, "scatter") == Fraction(1200, 7)
    assert rate(machine, "alltoall") == 75  # 3/8 of a 25 GB/s link for each pair
    assert rate(machine, "allreduce") == Fraction(600, 7)


def test_six_v100_do_better_by_trees_than_in_two_phases() -> None:
    six = dgx1v().select([f"gpu{i}" for i in (0, 1, 2, 3, 4, 7)])
    result = checked(bound(six, Collective("allreduce")))
    assert (result.scope, result.rate, result.headline.kind) == ("partition", Fraction(125, 2) * GB, "exact")
    phases = result.scoped("reduce-scatter + allgather")
    assert phases is not None
    assert phases.rate == 45 * GB
    assert result.scoped("cut") is not None


def test_one_lane_less() -> None:
    degraded = dgx1v().degrade("gpu0-gpu3", lanes=1)
    assert rate(degraded, "allgather") == Fraction(1000, 7)
    assert rate(degraded, "allreduce") == Fraction(575, 7)


def test_p100_machine() -> None:
    # SCCL-style units: allgather 7/4 per link, that is 32/7 links of 20 GB/s.
    assert rate(dgx1p(), "allgather") == Fraction(32, 7) * 20
    assert rate(dgx1p(), "broadcast") == 80
    assert rate(dgx1p(), "allreduce") == Fraction(16, 7) * 20


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (1, Fraction(2400, 7)),
        (2, Fraction(1040, 3)),
        (4, Fraction(800, 3)),
        (8, Fraction(1600, 7)),
        (16, Fraction(640, 3)),
        (32, Fraction(6400, 31)),
    ],
)
def test_a100_boxes_reach_the_published_optimum(nodes: int, expected: Fraction) -> None:
    result = checked(bound(a100(nodes), Collective("allgather")))
    assert result.rate == expected * GB
    assert result.headline.exact


@pytest.mark.parametrize(("nodes", "expected"), [(1, Fraction(1200, 7)), (2, Fraction(520, 3)), (4, Fraction(400, 3))])
def test_forwarding_switches_make_two_phases_optimal(nodes: int, expected: Fraction) -> None:
    result = checked(bound(a100(nodes), Collective("allreduce")))
    assert (result.scope, result.rate, result.headline.exact) == ("tree-optimum", expected * GB, True)
    assert result.bounds[1].rate == expected * GB


def able(box: Topology, *abilities: str) -> Topology:
    devices = (replace(d, can=frozenset({"forward", *abilities})) if d.kind == "switch" else d for d in box.devices)
    return replace(box, devices=tuple(devices))


def test_reducing_switches_have_a_bound_of_their_own() -> None:
    box = able(a100(1), "multicast", "reduce")
    assert checked(bound(box, Collective("allreduce"))).rate == Fraction(1200, 7) * GB
    result = checked(bound(box, Collective("allreduce"), in_network=True))
    assert (result.rate, result.scope) == (Fraction(1200, 7) * GB, "tree-optimum")
    assert result.in_network is not None
    assert (result.in_network.rate, result.in_network.exact) == (300 * GB, True)
    assert result.in_network.grants == ("multicast", "reduce")
    granted = result.in_network.certificate
    # The lengths prove nothing of the kind for a machine whose switches cannot.
    for other in (a100(1), able(a100(1), "multicast"), able(a100(1), "multicast", "reduce_into_reader")):
        assert "no switch of" in granted.check(other, Collective("allreduce"), granted.rate)[0]


@pytest.mark.parametrize(("nodes", "pair_rate"), [(2, Fraction(25, 8)), (4, Fraction(25, 24))])
def test_alltoall_between_boxes_is_bound_by_the_box(nodes: int, pair_rate: Fraction) -> None:
    result = checked(bound(a100(nodes), Collective("alltoall")))
    assert result.rate == pair_rate * 8 * nodes * GB
    assert result.headline.exact


def test_aurora_tiles() -> None:
    assert rate(aurora(), "allreduce") == 90


def test_rings_in_both_duplex_modes() -> None:
    assert rate(ring(5), "allreduce") == Fraction(10 * 5, 4)  # both directions: c = 2*5*10 over 2*4
    # Half duplex: the strength 5*10/4 for one direction of data, half of it for allreduce.
    half = ring(5, bus=True)
    for name in ("broadcast", "reduce", "allgather", "reducescatter"):
        result = checked(bound(half, Collective(name)))
        assert (result.rate, result.headline.exact) == (Fraction(50, 4) * GB, True)
    assert rate(half, "allreduce") == Fraction(50, 8)


def test_a_shared_bus_halves_two_gpus() -> None:
    two = Topology("pair", (Device("a", "gpu"), Device("b", "gpu")), tuple(pair("a", "b", 12, bus="one")))
    assert rate(two, "broadcast") == 12
    assert rate(two, "allreduce") == 6
    assert rate(two, "allgather") == 12
    assert rate(two, "alltoall") == 12  # a block each way, 6 GB/s a block, size 2 blocks


def test_device_capacity_limits_what_leaves() -> None:
    names = ["gpu0", "gpu1", "gpu2"]
    links = [x for a, b in combinations(names, 2) for x in pair(a, b, 10)]
    limited = (Device("gpu0", "gpu", capacity=Fraction(8 * GB)), Device("gpu1", "gpu"), Device("gpu2", "gpu"))
    machine = Topology("limited", limited, tuple(links))
    assert rate(machine, "broadcast") == 8
    assert rate(machine, "broadcast", 1) == 8  # what gpu0 takes in
    assert rate(machine, "scatter") == 8 * Fraction(3, 2)
    assert rate(machine, "allgather") == 8 * Fraction(3, 2)
    assert rate(machine, "alltoall") == 8 * Fraction(3, 2)


def test_unequal_shares() -> None:
    two = Topology("pair", (Device("a", "gpu"), Device("b", "gpu")), tuple(pair("a", "b", 10)))
    # b needs 3 of 4 parts over 10 GB/s.
    result = checked(bound(two, Collective("allgather"), shares=[3, 1]))
    assert result.rate == Fraction(40, 3) * GB
    assert result.headline.certificate.to_dict()["shares"] == [3, 1]
    assert checked(bound(two, Collective("reducescatter"), shares=[3, 1])).rate == Fraction(40, 3) * GB
    assert checked(bound(two, Collective("scatter", 1), shares=[3, 1])).rate == Fraction(40, 3) * GB
    with pytest.raises(InputError, match="2 whole numbers"):
        bound(two, Collective("allgather"), shares=[1])
    with pytest.raises(InputError, match="one rank has everything"):
        bound(two, Collective("allgather"), shares=[0, 1])
    with pytest.raises(InputError, match="allreduce has no shares"):
        bound(two, Collective("allreduce"), shares=[1, 1])


def _subset_rows() -> list[dict[str, str]]:
    with (GOLDEN / "blink_subsets.csv").open() as handle:
        return list(csv.DictReader(handle))


def test_every_class_of_gpu_subsets_of_both_dgx1() -> None:
    rows = _subset_rows()
    assert len(rows) == 75
    connected = 0
    for row in rows:
        machine, lane = (dgx1p(), 20) if row["machine"] == "DGX-1P" else (dgx1v(), 25)
        members = [f"gpu{i}" for i in row["subset"].split("-")]
        if row["nvlink_connected"] == "no":
            with pytest.raises(InfeasibleError, match=r"does not connect the members: gpu\d"):
                machine.select(members)
            continue
        connected += 1
        part = machine.select(members)
        assert rate(part, "broadcast") == Fraction(row["broadcast_bound_links"]) * lane
        assert rate(part, "allgather") == Fraction(row["allgather_bound"]) * lane
        result = checked(bound(part, Collective("allreduce")))
        assert result.rate == Fraction(row["allreduce_tree_bound"]) * lane * GB
        assert result.headline.exact
        phases = result.scoped("reduce-scatter + allgather")
        assert phases is not None
        assert phases.rate == Fraction(row["allreduce_rs_ag"]) * lane * GB
    assert connected == sum(row["nvlink_connected"] == "yes" for row in rows) == 63


def test_idle_gpus_as_relays() -> None:
    machine, gathering = dgx1v(), Collective("allgather")
    gains, usable = [], 0
    for count in range(2, 8):
        for members in combinations(machine.members, count):
            idle = [name for name in machine.members if name not in members]
            helped = bound(machine.select(members, idle), gathering)
            assert helped.headline.exact
            alone = machine.select(members, connected=False)
            if len(alone.components()) > 1:
                usable += 1
            else:
                gains.append(helped.rate / bound(alone, gathering).rate)
    assert (usable, len(gains), median_high(gains), max(gains)) == (50, 196, 3, 6)
    assert min(gains) > 1


def test_allreduce_with_relays_is_exact_by_lengths() -> None:
    machine = dgx1v()
    result = checked(
        bound(
            machine.select(["gpu0", "gpu5"], ["gpu1", "gpu2", "gpu3", "gpu4", "gpu6", "gpu7"]), Collective("allreduce")
        )
    )
    assert (result.rate, result.headline.exact) == (150 * GB, True)
    six = [f"gpu{i}" for i in (0, 1, 2, 4, 5, 6)]
    result = checked(bound(machine.select(six, ["gpu3", "gpu7"]), Collective("allreduce")))
    assert (result.scope, result.rate, result.headline.exact) == ("tree-optimum", 90 * GB, True)
    reducing = machine.select(six, ["gpu3", "gpu7"], relays_reduce=True)
    assert checked(bound(reducing, Collective("allreduce"))).rate >= 90 * GB


def test_one_rank_moves_nothing() -> None:
    with pytest.raises(InputError, match="a collective needs two GPUs or more"):
        bound(dgx1v().select(["gpu0"]), Collective("allgather"))
    with pytest.raises(InputError, match="root 9 is not a rank"):
        bound(dgx1v(), Collective("broadcast", 9))


def test_bandwidths_without_a_common_unit_are_refused() -> None:
    links = pair("a", "b", Fraction(10**9 + 7, 10**9 + 9)) + pair("a", "b", Fraction(10**9 + 21, 10**9 + 33), "other")
    odd = Topology("odd", (Device("a", "gpu"), Device("b", "gpu")), tuple(links))
    with pytest.raises(InputError, match="round them"):
        bound(odd, Collective("allgather"))


def test_a_switch_with_more_ways_out_than_in() -> None:
    # 3 GB/s enter the switch, three times 3 leave it: only a switch that multicasts could reach the cut.
    names = ["gpu0", "gpu1", "gpu2", "gpu3"]
    up = [Link("gpu0", "switch", "nvlink", Fraction(3 * GB))]
    down = [Link("switch", name, "nvlink", Fraction(3 * GB)) for name in names[1:]]
    back = [Link(name, "gpu0", "nvlink", Fraction(3 * GB)) for name in names[1:]]
    for can, most in (("forward", None), ("forward,multicast", 3), ("forward,reduce", None)):
        switch = Device("switch", "switch", can=frozenset(can.split(",")))
        machine = Topology("fan", (*(Device(name, "gpu") for name in names), switch), (*up, *down, *back))
        result = checked(bound(machine, Collective("broadcast"), in_network=True))
        assert (result.scope, result.rate, result.headline.exact) == ("tree-optimum", GB, True)
        granted = result.in_network
        assert (granted and (granted.rate / GB, granted.exact)) == (most and (most, True))
        # Towards the root nothing is in the way: the switch takes no part.
        assert checked(bound(machine, Collective("gather"))).headline.exact


def test_links_of_the_widest_kind_do_not_overflow() -> None:
    """A million lanes of 1e9 GB/s each: by hand, a ring of four carries 4/6 of a link's both directions."""
    wide = bs.load("ring:4@1000000000GB/s", edits=["replace link lanes=1000000"])
    narrow = bs.load("ring:4@1GB/s")
    assert bs.bound(wide, "allreduce").rate == bs.bound(narrow, "allreduce").rate * 10**15
    found = bs.project(wide, "allreduce", "1GiB").bound
    assert found is not None
    assert found.rate == bs.bound(wide, "allreduce").rate
