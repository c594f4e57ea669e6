"""Packed schedules against published optima, brute force, and two independent checks of what they do."""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from all_cuts import best_cut
from hypothesis import given, strategies as st
from independent_check import check
from proved_gaps import gap, proved
from strategies import topologies

import blinksim as bs
from blinksim import machines
from blinksim.algorithms.building import plan as plans
from blinksim.algorithms.registry import algorithm
from blinksim.bounds.claims import certificate_from_dict
from blinksim.bounds.compute import bound
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology import shapes
from blinksim.topology.graph import Device, Link, Topology

GB = 10**9
GOLDEN = Path(__file__).parents[1] / "golden"


def packed(topology: Topology, collective: str, root: int = 0, **options: object) -> Schedule:
    """The schedule, after it was verified."""
    schedule = algorithm("packed").build(topology, Collective(collective, root), **options)
    verdict = verify(schedule)
    assert verdict.ok, verdict.reasons
    return schedule


def gpus(machine: Topology, chosen: str) -> Topology:
    return machine.select([f"gpu{i}" for i in chosen])


V100 = machines.load("dgx1-v100").select(links=["nvlink"])
P100 = machines.load("dgx1-p100").select(links=["nvlink"])


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "expected"),
    [
        # Blink (2018 short paper) graphs; ForestColl (Zhao et al. 2024) models. Links of 25, 20 GB/s.
        ("dgx1-v100", 1, "allgather", Fraction(1200, 7)),
        ("dgx1-v100", 1, "broadcast", Fraction(150)),
        ("dgx1-v100", 1, "allreduce", Fraction(600, 7)),
        ("dgx1-v100", 1, "alltoall", Fraction(75)),
        ("dgx1-p100", 1, "allgather", Fraction(640, 7)),
        ("dgx1-p100", 1, "reduce", Fraction(80)),
        ("dgx1-p100", 1, "allreduce", Fraction(320, 7)),
        ("dgx-a100", 1, "allgather", Fraction(2400, 7)),
        ("dgx-a100", 1, "allreduce", Fraction(1200, 7)),
        ("dgx-a100", 2, "allgather", Fraction(1040, 3)),
        ("dgx-a100", 2, "reducescatter", Fraction(1040, 3)),
        ("dgx-a100", 2, "allreduce", Fraction(520, 3)),
        ("dgx-a100", 2, "alltoall", Fraction(50)),
        ("dgx-a100", 4, "allgather", Fraction(800, 3)),
        ("dgx-a100", 4, "allreduce", Fraction(400, 3)),
        ("mi250", 1, "allgather", Fraction(2400, 7)),
        # 1/x* = 15/166 per GB/s: 32 ranks.
        ("mi250", 2, "allgather", Fraction(32 * 166, 15)),
    ],
)
def test_published_optima(machine: str, nodes: int, collective: str, expected: Fraction) -> None:
    topology = machines.load(machine, nodes=nodes).select()
    schedule = packed(topology, collective)
    assert schedule.form == "forest"
    assert gap(schedule) == "0"
    assert rate(schedule) == expected * GB


DATA = Path(__file__).parents[1] / "data" / "machines"


@pytest.mark.parametrize(
    ("machine", "collective", "algbw"),
    [
        # One direction of one link missing, or slower: root shares with many denominators.
        ("overflow_one_way.yaml", "allreduce", Fraction(445, 9)),
        ("exact_not_reached.yaml", "allreduce", Fraction(557, 14)),
        ("odd_denominator.yaml", "allgather", Fraction(84704969, 85360)),
        # Large ones; the rates by a program of flows to every member.
        ("uneven_48.yaml", "allreduce", Fraction(1)),
        ("capacity_64.yaml", "broadcast", Fraction(25)),
        ("mesh:9x9@50GB/s", "allreduce", Fraction(90)),
        pytest.param("mesh:16x16@1GB/s", "allreduce", Fraction(960, 510), marks=pytest.mark.slow),
        # Two boxes, on rails and on a thin fabric.
        ("rails:2x8@300GB/s,20GB/s", "allreduce", None),
        ("fattree:2x8@300GB/s,20GB/s", "allreduce", None),
    ],
)
def test_the_bound_is_attained_on_uneven_and_large_machines(
    machine: str, collective: str, algbw: Fraction | None
) -> None:
    topology = machines.load(str(DATA / machine) if machine.endswith(".yaml") else machine).select()
    schedule = packed(topology, collective)
    assert gap(schedule) == "0"
    assert algbw is None or rate(schedule) == algbw * GB


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce", "alltoall", "gather"])
def test_shares_are_rounded_where_their_common_denominator_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, collective: str
) -> None:
    machine = machines.load("dgx1-v100", nodes=2, edits="degrade n1.nic3-fabric bandwidth=7.0111GB/s").select()
    exact = packed(machine, collective)
    monkeypatch.setattr(plans, "MOST_DENOMINATOR", 2)
    rounded = packed(machine, collective)
    assert rounded.share_den <= machine.ranks * 2**28
    best, near = rate(exact), rate(rounded)
    assert best is not None
    assert near is not None
    assert (1 - Fraction(1, 10**6)) * best < near <= best


@given(topologies(max_devices=7))
def test_two_phases_are_bounded_by_the_best_of_each(topology: Topology) -> None:
    """What reduces first and then gathers is an allreduce, so its bound is not above that of all of them."""
    found = bound(topology, "allreduce")
    phases = next(entry for entry in found.bounds if entry.scope == "reduce-scatter + allgather")
    assert phases.rate <= found.rate
    assert 1 / phases.rate == sum(1 / bound(topology, name).rate for name in ("reducescatter", "allgather"))
    assert phases.check(topology, found.collective) == []
    written = certificate_from_dict(phases.certificate.to_dict(), topology, found.collective)
    assert written == phases.certificate


@given(topologies(max_devices=7), st.sampled_from(["gather", "scatter", "alltoall"]), st.data())
def test_what_crosses_a_bus_of_many_links(topology: Topology, collective: str, data: st.DataObject) -> None:
    """No loose bound: all links of one device may share a bus."""
    ends = {end for link in topology.links for end in (link.src, link.dst)}
    centre = data.draw(st.sampled_from(sorted(ends)))
    links = tuple(
        replace(link, bus=f"bus {centre}", lane_bandwidth=Fraction(GB), lanes=1)
        if centre in (link.src, link.dst)
        else link
        for link in topology.links
    )
    schedule = packed(replace(topology, links=links), collective)
    assert gap(schedule) == "0"
    assert proved(schedule).bound["checked"] is True


@pytest.mark.parametrize("shape", ["torus:4x5", "full:18", "hypercube:4"])
@pytest.mark.parametrize("seed", range(4))
def test_links_lost_in_one_direction(shape: str, seed: int) -> None:
    whole = machines.load(shape)
    lost = Random(seed).randrange(len(whole.links))
    topology = replace(whole, links=whole.links[:lost] + whole.links[lost + 1 :], symmetries=()).select()
    assert gap(packed(topology, "allreduce")) == "0"


# GPUs, optimal allreduce in links: beyond reduce-scatter + allgather (7/4 and 9/5 links).
@pytest.mark.parametrize(
    ("machine", "chosen", "links"),
    [(P100, "0123456", Fraction(2)), (V100, "012347", Fraction(5, 2)), (V100, "012", Fraction(2))],
)
def test_allreduce_beyond_two_phases(machine: Topology, chosen: str, links: Fraction) -> None:
    topology = gpus(machine, chosen)
    lane = min(link.lane_bandwidth for link in topology.links)
    schedule = packed(topology, "allreduce")
    assert rate(schedule) == links * lane
    two_phases = bound(topology, Collective("allreduce")).scoped("reduce-scatter + allgather")
    assert two_phases is not None
    assert two_phases.rate < links * lane


OPTIMA = {"broadcast": "broadcast_bound_links", "allgather": "allgather_bound", "allreduce": "allreduce_tree_bound"}


@pytest.mark.slow
def test_every_connected_class_of_subsets() -> None:
    """All classes of GPU subsets of both DGX-1 with their brute-force optima in links (Blink short paper's graphs)."""
    seen = 0
    with (GOLDEN / "blink_subsets.csv").open() as handle:
        for row in csv.DictReader(handle):
            machine = {"DGX-1P": P100, "DGX-1V": V100}[row["machine"]]
            if row["nvlink_connected"] == "no":
                continue
            topology = gpus(machine, row["subset"].replace("-", ""))
            lane = min(link.lane_bandwidth for link in machine.links)
            for collective, column in OPTIMA.items():
                assert rate(packed(topology, collective)) == Fraction(row[column]) * lane
            seen += 1
    assert seen >= 40


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(topologies(max_devices=9, relays=True), st.data())
def test_random_machines(collective: str, topology: Topology, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, topology.ranks - 1)) if Collective(collective).rooted else 0
    schedule = packed(topology, collective, root)
    assert check(schedule) == []
    assert gap(schedule) == "0"
    limit = brute_force(topology, collective, root)
    if limit is not None:
        assert rate(schedule) == limit


def brute_force(topology: Topology, collective: str, root: int) -> Fraction | None:
    """The least cut over all sets of devices, where it is known to be attained; None elsewhere."""
    if any(link.bus for link in topology.links) or collective in ("allreduce", "alltoall"):
        return None
    for device in topology.devices:
        if device.name not in topology.members:
            into = sum(x.bandwidth for x in topology.links if x.dst == device.name)
            if into != sum(x.bandwidth for x in topology.links if x.src == device.name):
                return None
    return best_cut(topology, Collective(collective, root))


def bus_ring() -> Topology:
    """Four GPUs in a ring of shared buses of 10 GB/s: half duplex everywhere."""
    links = []
    for i in range(4):
        a, b = f"gpu{i}", f"gpu{(i + 1) % 4}"
        links += [Link(x, y, "bus", Fraction(10 * GB), bus=f"bus{i}") for x, y in ((a, b), (b, a))]
    return Topology("bus ring", tuple(Device(f"gpu{i}", "gpu") for i in range(4)), tuple(links))


def test_half_duplex() -> None:
    """Broadcast at the strength (all four buses over three: 40/3), allreduce at half of it (Frank's orientation)."""
    assert rate(packed(bus_ring(), "broadcast")) == Fraction(40, 3) * GB
    assert rate(packed(bus_ring(), "allreduce")) == Fraction(20, 3) * GB


def test_device_capacity_limits_every_tree() -> None:
    """Three GPUs fully joined at 10 GB/s, but GPU 0 takes in only 5: its copy of everything is the bottleneck."""
    base = shapes.fully_connected(3, bandwidth=Fraction(10 * GB))
    devices = (Device("gpu0", "gpu", capacity=Fraction(5 * GB)), *base.devices[1:])
    topology = Topology("limited", devices, base.links)
    schedule = packed(topology, "allgather")
    assert rate(schedule) == Fraction(15, 2) * GB
    assert gap(schedule) == "0"


def test_relays_raise_the_rate() -> None:
    """GPUs 0 and 5 of a DGX-1V are not joined; one lane by way of GPU 1 and one by way of GPU 4 join them."""
    topology = V100.select(["gpu0", "gpu5"], ["gpu1", "gpu4"])
    schedule = packed(topology, "broadcast")
    assert rate(schedule) == 50 * GB
    assert gap(schedule) == "0"


def test_relays_that_reduce_are_vertices() -> None:
    """A star of three GPUs around an idle one: with a reducing centre everybody's link is used once each way."""
    ends = [pair for i in (1, 2, 3) for pair in ((f"gpu{i}", "gpu0"), ("gpu0", f"gpu{i}"))]
    links = [Link(x, y, "nvlink", Fraction(10 * GB)) for x, y in ends]
    star = Topology("star", tuple(Device(f"gpu{i}", "gpu") for i in range(4)), tuple(links))
    able = packed(star.select(["gpu1", "gpu2", "gpu3"], ["gpu0"], relays_reduce=True), "allreduce")
    plain = packed(star.select(["gpu1", "gpu2", "gpu3"], ["gpu0"]), "allreduce")
    assert rate(able) == 10 * GB
    assert rate(plain) == Fraction(15, 2) * GB
    assert not check(able)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_fixed_number_of_trees(number: int) -> None:
    topology = machines.load("dgx1-v100").select(links=["nvlink"])
    schedule = packed(topology, "allgather", trees=number)
    units = [schedule.share(chunk) * 8 * number for chunk in range(schedule.chunks)]
    assert all(unit.denominator == 1 for unit in units)
    assert schedule.chunks <= 8 * number
    assert Fraction(gap(schedule)) >= 0
    # U/k <= 1/x* + 1/(k min b) (Zhao et al. 2024), in links.
    attained = rate(schedule)
    assert attained is not None
    assert attained * (Fraction(7, 6) + Fraction(1, number)) >= 8 * 25 * GB


def test_same_input_same_schedule() -> None:
    topology = machines.load("dgx1-v100").select()
    first, second = (packed(topology, "allgather") for _ in range(2))
    other = packed(topology, "allgather", seed=7)
    assert first.src.tolist() == second.src.tolist()
    assert first.dst.tolist() == second.dst.tolist()
    assert rate(other) == rate(first)
    assert other.src.tolist() != first.src.tolist()


def test_trees_that_share_nothing_share_a_channel() -> None:
    schedule = packed(machines.load("dgx-a100").select(), "allgather")
    assert schedule.chunks == 8
    assert int(schedule.channel.max()) == 0


def test_tells_progress_and_stops_in_time() -> None:
    topology = machines.load("mi250", nodes=2).select()
    told: list[tuple[int, int]] = []
    packed(topology, "allgather", templates=False, progress=lambda done, wanted: told.append((done, wanted)))
    assert told
    assert all(0 <= done <= wanted for done, wanted in told)
    with pytest.raises(InfeasibleError, match="allow more time"):
        packed(topology, "allgather", templates=False, time_limit=0.0)


def test_refusals() -> None:
    topology = shapes.ring(4)
    with pytest.raises(InputError, match="trees"):
        packed(topology, "allgather", trees=0)
    with pytest.raises(InputError, match="trees"):
        packed(topology, "alltoall", trees=2)


@pytest.mark.parametrize("name", ["packed", "rings", "ring"])
def test_known_bound_is_used(name: str) -> None:
    """By the answer of any algorithm, whether the search itself needs the bound or not."""
    known = bound(topology := shapes.ring(4), Collective("allgather"))
    assert bs.synthesize(topology, "allgather", name, bound=known).bounds is known


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_helper_that_is_a_dead_end_is_left_aside(way: str) -> None:
    # A bus keeps the fast exact engine away; the relay gpu2 can be entered, or left, only.
    lanes = [Link(a, b, "link", Fraction(8 * GB), bus="shared") for a, b in (("gpu0", "gpu1"), ("gpu1", "gpu0"))]
    lanes.append(Link(*(("gpu1", "gpu2") if way == "in" else ("gpu2", "gpu1")), "link", Fraction(GB)))
    machine = Topology(
        "dead-end", tuple(Device(f"gpu{i}", "gpu", capacity=Fraction(5 * GB)) for i in range(3)), tuple(lanes)
    )
    part = machine.select(["gpu0", "gpu1"], ["gpu2"], relays_reduce=True)
    for name, best in (("broadcast", 5), ("reduce", 5), ("allreduce", 4)):
        schedule = packed(part, name)
        assert verify(schedule).ok
        assert rate(schedule) == best * GB == bound(part, Collective(name)).rate


@pytest.mark.parametrize(("collective", "most"), [("allgather", 833_333), ("broadcast", 3_333_333)])
def test_more_trees_than_can_be_written_down_are_refused_with_the_most(collective: str, most: int) -> None:
    with pytest.raises(InputError, match=f"too many for 4 ranks; give at most {most:,}"):
        algorithm("packed").build(machines.load("torus:2x2"), Collective(collective), trees=100_000_000)
