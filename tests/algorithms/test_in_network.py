"""Schedules whose switches multicast and reduce: rates by formulas, results, and what is refused of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import independent_check
import numpy as np
import numpy.typing as npt
import pytest

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.schedule.loads import link_loads
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology

GB = 10**9
READS, ADDS = "can=forward,multicast,reduce_into_reader", "can=forward,multicast,reduce"


def star(gpus: int, can: str = READS) -> Topology:
    return bs.load(f"switch:{gpus}@450GB/s", edits=f"switch {can}").select()


def built(name: str, topology: Topology, collective: str = "allreduce") -> Schedule:
    schedule = REGISTRY[name].build(topology, Collective(collective))
    assert verify(schedule).ok
    assert independent_check.check(schedule) == []
    return schedule


def ports(schedule: Schedule) -> set[tuple[Fraction, Fraction]]:
    """What leaves and what enters every GPU, in sizes of the vector."""
    out, into = (
        dict.fromkeys(schedule.topology.members, Fraction(0)),
        dict.fromkeys(schedule.topology.members, Fraction(0)),
    )
    for load, link in zip(link_loads(schedule), schedule.topology.links, strict=True):
        if link.src in out:
            out[link.src] += load
        if link.dst in into:
            into[link.dst] += load
    return {(out[name], into[name]) for name in schedule.topology.members}


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_nvls_loads_the_ports_as_by_hand(n: int) -> None:
    """Out and in, per byte of the vector: NVLink SHARP with the reader's and the writer's own copies."""
    part = Fraction(1, n)
    assert ports(built("nvls", star(n))) == {(1 + part, 1 + part)}
    assert ports(built("nvls", star(n), "reducescatter")) == {(Fraction(1), part)}
    assert ports(built("nvls", star(n), "allgather")) == {(part, Fraction(1))}


@pytest.mark.parametrize("n", [2, 3, 5])
def test_one_shot_loads_the_ports_as_by_hand(n: int) -> None:
    """Every GPU reads at all n of them: each sends its copy n times, and receives the sum once."""
    schedule = built("nvls_one_shot", star(n))
    assert ports(schedule) == {(Fraction(n), Fraction(1))}
    assert bs.execute(schedule, "1000004B").wrong == 0


def test_one_shot_is_quicker_than_two_shot_where_latency_counts() -> None:
    one, two = built("nvls_one_shot", star(4)), built("nvls", star(4))
    assert bs.simulate(one, "1KiB").time_s < bs.simulate(two, "1KiB").time_s
    assert bs.simulate(one, "1GiB").time_s > bs.simulate(two, "1GiB").time_s


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_switches_that_add_in_flight_load_the_ports_once(n: int) -> None:
    assert ports(built("sharp", star(n, ADDS))) == {(Fraction(1), Fraction(1))}


@pytest.mark.parametrize(
    ("machine", "rate"),
    [("hgx-h200", Fraction(400)), ("gb200-nvl72", Fraction(900 * 72, 73)), ("hgx-b200", Fraction(800))],
)
def test_nvls_attains_its_bound(machine: str, rate: Fraction) -> None:
    found = bs.synthesize(machine, "allreduce", "nvls")
    assert found.verdict.ok
    assert not found.verdict.unproved
    assert found.rate == rate * GB
    assert found.gap == 0
    assert found.bound.grants == ("multicast", "reduce_into_reader")


@pytest.mark.slow
def test_four_nodes_with_sharp_are_as_fast_as_one() -> None:
    """Every node sends and receives the vector once over 400 GB/s; inside, NVLS reaches 400 as well."""
    nodes = bs.load("hgx-h200", nodes=4, edits=f"fabric {ADDS}")
    found = bs.synthesize(nodes, "allreduce", "sharp")
    assert found.rate == 400 * GB
    assert found.gap == 0
    assert not found.verdict.unproved
    # As fast where the switches inside add in flight.
    adding = bs.load("hgx-h200", nodes=4, edits=[f"nvswitch {ADDS}", f"fabric {ADDS}"])
    assert bs.synthesize(adding, "allreduce", "sharp").gap == 0
    # Without NVLS inside, 15 of 8 shards pass each port there.
    inside = bs.load("hgx-h200", nodes=4, edits=["nvswitch can=forward", f"fabric {ADDS}"])
    assert bs.synthesize(inside, "allreduce", "sharp").rate == Fraction(450 * 8, 14) * GB


@pytest.mark.parametrize(("nodes", "rate"), [(2, Fraction(400)), (3, Fraction(300)), (4, Fraction(800, 3))])
def test_packed_attains_what_nvls_allows_on_several_nodes(nodes: int, rate: Fraction) -> None:
    """The NICs carry the vector 2(m-1)/m times each way; NVLS leaves the ports 400 GB/s."""
    found = bs.synthesize(bs.load("hgx-h200", nodes=nodes), "allreduce", "packed_in_network")
    assert (found.rate, found.gap, found.verdict.ok) == (rate * GB, Fraction(0), True)
    assert independent_check.check(found.schedule) == []


@pytest.mark.parametrize(
    ("fabric", "allreduce", "plain"),
    [
        # A port, or the uplink of a leaf, carries the vector once each way; of n nodes that forward, 2(n-1)/n times.
        ("fattree:4x1@50GB/s,50GB/s,2:1", 50, Fraction(100, 3)),
        ("fattree:16x1@50GB/s,50GB/s,8:1", 25, Fraction(50, 3)),
        # Two rails, and GPUs that also swap halves through a switch that forwards.
        ("fattree:4x2@50GB/s,50GB/s,2:1", 75, Fraction(400, 7)),
    ],
)
def test_two_levels_of_switches_that_add(fabric: str, allreduce: int, plain: Fraction) -> None:
    machine = bs.load(fabric, edits=f"fabric {ADDS}")
    found = bs.synthesize(machine, "allreduce", "packed_in_network")
    assert (found.rate, found.gap, found.verdict.ok) == (Fraction(allreduce * GB), Fraction(0), True)
    assert bs.bound(machine, "allreduce").rate == plain * GB
    assert bs.bound(bs.load(fabric, edits="fabric can=forward,multicast"), "allreduce").in_network is None
    for collective in ("allgather", "broadcast"):
        # Links as wide both ways attain the cut where switches forward: multicast adds nothing.
        assert bs.bound(machine, collective).in_network is None


@pytest.mark.parametrize("collective", ["reduce", "broadcast", "allgather", "reducescatter"])
def test_sharp_serves_what_goes_one_way(collective: str) -> None:
    """On one switch at the rate of the cut; between nodes, over every rail, the vector once."""
    schedule = built("sharp", star(5, ADDS), collective)
    shards = Fraction(5, 4) if collective in ("allgather", "reducescatter") else 1
    assert verify(schedule).facts.rate == 450 * shards * GB
    nodes = bs.load("hgx-h200", nodes=2, edits=f"fabric {ADDS}").select()
    rate = verify(built("sharp", nodes, collective)).facts.rate
    # Gathered by NVLS, a GPU's own shards pass its port as well.
    assert rate == (450 if shards != 1 else 400) * GB


def test_more_than_forwarding_may_not_help() -> None:
    found = bs.bound(bs.load("hgx-h200", nodes=8), "allreduce")
    assert found.in_network is None
    assert found.even_granted is not None
    assert found.even_granted.rate == found.rate
    assert found.even_granted.check(found.topology, found.collective) == []


@pytest.mark.slow
def test_bounds_of_clusters_are_marked_as_attained() -> None:
    for nodes, edits, rate in ((2, [], 400), (4, [f"fabric {ADDS}"], 400)):
        granted = bs.bound(bs.load("hgx-h200", nodes=nodes, edits=edits), "allreduce").in_network
        assert granted is not None
        assert granted.exact
        assert granted.rate == rate * GB


@pytest.mark.slow
def test_bounds_of_many_ranks_are_proved_and_attained() -> None:
    for machine, edits, nodes, rate in (
        ("switch:128@450GB/s", f"switch {READS}", 1, Fraction(450 * 128, 129)),
        ("switch:256@450GB/s", f"switch {ADDS}", 1, Fraction(450)),
        ("hgx-h200", f"fabric {ADDS}", 16, Fraction(400)),
    ):
        found = bs.bound(bs.load(machine, nodes=nodes, edits=edits), "allreduce")
        granted = found.in_network
        assert granted is not None
        assert (granted.rate, granted.exact) == (rate * GB, True)
        assert granted.check(found.topology, found.collective) == []


@pytest.mark.parametrize(("nodes", "times"), [(2, 1), (4, 2)])
def test_nvls_trees_send_the_vector_once_or_twice(nodes: int, times: int) -> None:
    """Two nodes: once over 400 GB/s each way. More: inner nodes twice, in one of two trees and half of the other."""
    found = bs.synthesize(bs.load("hgx-h200", nodes=nodes), "allreduce", "nvls_tree")
    assert (found.rate, found.verdict.ok) == (Fraction(400, times) * GB, True)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"])
def test_packed_attains_what_switches_allow(collective: str) -> None:
    for can in (READS, ADDS, "can=forward,multicast", "can=forward,reduce", "can=forward,reduce_into_reader"):
        found = bs.synthesize(star(5, can), collective, "packed_in_network")
        assert found.verdict.ok, can
        assert found.gap == 0, can
        assert not found.verdict.unproved
        assert independent_check.check(found.schedule) == []


def rated(topology: Topology, rate: str) -> Topology:
    """The machine whose switch forms sums at this rate."""
    devices = (replace(d, attributes={"reduction_rate": rate}) if d.in_network else d for d in topology.devices)
    return replace(topology, devices=tuple(devices))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("can", "name", "best"),
    [
        # 200 of 450 GB/s of sums, which take 9/8 of a port, or 1; what is left of the ports takes 14/8 of them.
        (READS, "nvls", 200 + (450 - 200 * Fraction(9, 8)) * Fraction(8, 14)),
        (ADDS, "sharp", 200 + (450 - 200) * Fraction(8, 14)),
    ],
)
def test_adders_limit_what_switches_add(can: str, name: str, best: Fraction) -> None:
    topology = rated(star(8, can), "200GB/s")
    alone = bs.synthesize(topology, "allreduce", name)
    assert (alone.rate, alone.verdict.facts.busiest) == (Fraction(200 * GB), "sums at switch")
    assert 0.9 * 200 * GB < bs.simulate(alone.schedule, "4GiB").algbw <= 200 * GB
    assert bs.project(topology, "allreduce", "4GiB", algorithm=name).algbw < 200 * GB
    mixed = bs.synthesize(topology, "allreduce", "packed_in_network")
    assert (mixed.rate, mixed.gap, mixed.verdict.unproved) == (best * GB, Fraction(0), ())
    assert best * Fraction(9, 10) * GB < bs.simulate(mixed.schedule, "4GiB").algbw <= best * GB
    bound = bs.bound(topology, "allreduce")
    assert bound.in_network is not None
    assert "and the adders of a switch carry" in bound.in_network.certificate.words(topology)
    assert bound.in_network.check(topology, bound.collective) == []
    # Adders as fast as ports are no limit.
    fast = bs.bound(rated(star(8, can), "450GB/s"), "allreduce").in_network
    assert fast is not None
    assert fast.rate == (400 if can == READS else 450) * GB


def test_one_shot_uses_the_adders_once_for_every_reader() -> None:
    topology = rated(star(4), "300GB/s")
    schedule = built("nvls_one_shot", topology)
    assert verify(schedule).facts.rate == 75 * GB


def test_packed_leaves_switches_alone_unasked() -> None:
    assert bs.synthesize(star(5), "allreduce").rate == Fraction(450 * 5, 8) * GB


@pytest.mark.parametrize("name", ["nvls", "sharp"])
@pytest.mark.parametrize("size", ["4B", "1000003B", "1MiB"])
def test_a_switch_that_adds_gives_the_right_sums(name: str, size: str) -> None:
    topology = star(5, READS if name == "nvls" else ADDS)
    schedule = built(name, topology)
    for dtype, op in (("float32", "sum"), ("int32", "max")):
        if size == "1000003B":
            size = "1000004B"
        assert bs.execute(schedule, size, dtype=dtype, op=op).wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nvls", "sharp"])
def test_simulations_keep_to_the_loads(name: str) -> None:
    topology = star(8, READS if name == "nvls" else ADDS)
    schedule = built(name, topology)
    found = bs.simulate(schedule, "16GiB")
    allowed = verify(schedule).facts.rate
    assert allowed is not None
    assert 0.9 * float(allowed) < found.algbw <= float(allowed)
    names = {link.name: load for link, load in zip(topology.links, link_loads(schedule), strict=True)}
    assert names["gpu0->switch (nvlink)"] == (Fraction(9, 8) if name == "nvls" else 1)


def test_no_format_of_a_runtime_carries_it() -> None:
    schedule = built("nvls", star(4))
    for name in ("nccl-graph", "nccl-graph-set", "msccl-xml", "mscclpp-json"):
        with pytest.raises(
            InfeasibleError, match=r"nvls has switch multicast and reduce \(NVLS\); .*NumPy executor can"
        ):
            bs.export(schedule, name)


def test_kernels_refuse_it() -> None:
    from blinksim.gpu.execution import cupy_executor
    from blinksim.gpu.execution.task import RunOptions, Task
    from blinksim.gpu.programs.dtypes import element_type

    task = Task(built("nvls", star(4)), 1024, element_type("float32"), "sum", False, RunOptions.gather())
    with pytest.raises(InfeasibleError, match="no GPU kernel here does that"):
        cupy_executor.run(task, check=True)


def test_machines_without_such_switches_are_refused() -> None:
    for name in ("nvls", "nvls_one_shot", "nvls_tree", "sharp", "packed_in_network"):
        with pytest.raises(InfeasibleError, match="has none"):
            REGISTRY[name].build(bs.load("dgx-a100").select(), Collective("allreduce"))
    for name in ("nvls", "nvls_one_shot"):
        with pytest.raises(InfeasibleError, match="nvls_tree and sharp join the nodes"):
            REGISTRY[name].build(bs.load("hgx-h200", nodes=2).select(), Collective("allreduce"))
    plain = bs.load("hgx-h200", edits="without in-network").select()
    with pytest.raises(InfeasibleError, match="nvls needs"):
        REGISTRY["nvls"].build(plain, Collective("allreduce"))


# --- what is refused of a schedule ------------------------------------------------------------------------------------


def faults(schedule: Schedule, keep: npt.NDArray[np.bool_]) -> str:
    names = ("chunk", "src", "dst", "op", "step", "route", "channel")
    changed = replace(schedule, **{name: getattr(schedule, name)[keep] for name in names})
    verdict = verify(changed)
    assert not verdict.ok
    assert independent_check.check(changed) != []
    return " ".join(verdict.reasons)


def test_own_copies_cannot_be_left_out() -> None:
    schedule = built("nvls", star(4))
    switch = schedule.topology.index["switch"]
    owner = schedule.chunk  # chunk i belongs to GPU i
    into = (schedule.dst == switch) & (schedule.src == owner)
    out = (schedule.src == switch) & (schedule.dst == owner)
    read = into & (schedule.step == 0) & (schedule.chunk == 2)
    assert "whose own copy switch did not read" in faults(schedule, ~read)
    stored = out & (schedule.step == 3) & (schedule.chunk == 1)
    assert "the writer's own copy must be among them" in faults(schedule, ~stored)


def test_every_reader_costs_every_copy_once() -> None:
    """One-shot: a read left out, for one of four readers, or a copy of it."""
    schedule = built("nvls_one_shot", star(4))
    switch = schedule.topology.index["switch"]
    into = np.flatnonzero(schedule.dst == switch)
    keep = np.ones(len(schedule.dst), dtype=np.bool_)
    keep[into[-1]] = False
    assert "formed for one reader" in faults(schedule, keep)
    keep[:] = True
    keep[np.flatnonzero((schedule.dst == switch) & (schedule.src == 0))] = False
    assert faults(schedule, keep)


def test_a_copy_is_read_once_for_one_reader() -> None:
    schedule = built("nvls", star(4))
    into = np.flatnonzero((schedule.dst == schedule.topology.index["switch"]) & (schedule.step == 0))
    twice = np.sort(np.append(np.arange(schedule.sends), into[1]))
    assert "gives switch copies for more readers than the sum has" in faults(schedule, twice)


def test_a_sum_that_passes_no_gpu_is_refused_where_switches_reduce_into_readers() -> None:
    """What SHARP does, on a switch that reduces into readers."""
    schedule = built("sharp", star(4, ADDS))
    moved = replace(schedule, topology=star(4))
    verdict = verify(moved)
    assert not verdict.ok
    assert "sends on a sum that switch formed for one reader; it must pass a GPU first" in verdict.reasons[0]
    assert independent_check.check(moved) != []
    for can in ("can=forward,multicast", "can=forward", "can=forward,reduce"):
        assert not verify(replace(schedule, topology=star(4, can))).ok, can


def test_what_a_switch_cannot_do_is_refused() -> None:
    schedule = built("nvls", star(4))
    for can, words in (
        ("can=forward,reduce_into_reader", "cannot multicast"),
        ("can=forward", "only forwards"),
        ("can=forward,multicast", "reduces at switch, which can only copy"),
    ):
        verdict = verify(replace(schedule, topology=star(4, can)))
        assert not verdict.ok
        assert words in " ".join(verdict.reasons), can


def test_a_switch_keeps_nothing() -> None:
    schedule = built("nvls", star(4))
    switch, step = schedule.topology.index["switch"], schedule.step.copy()
    late = np.flatnonzero((schedule.dst == switch) & (schedule.chunk == 0) & (schedule.step == 0))[-1]
    step[step >= 1] += 1
    step[late] = 1
    order = np.argsort(step, kind="stable")
    columns = {name: getattr(schedule, name)[order] for name in ("chunk", "src", "dst", "op", "route", "channel")}
    verdict = verify(replace(schedule, step=step[order], **columns))
    assert "keeps nothing" in " ".join(verdict.reasons)
