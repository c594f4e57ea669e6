"""Diagnosis: real times are normal, planted faults are found at their size, on their class, with their cause."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import library_times
import numpy as np
import pytest
from hypothesis import given, strategies as st
from nccl_tests_logs import Point, text

import blinksim as bs
from blinksim.answers.logs.diagnose import NOISE, Diagnosis, diagnose
from blinksim.answers.logs.expectation import RingModel, other_gpus, ring_schedule
from blinksim.answers.project import Answer, answer
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import load
from blinksim.nccl.tests_log import RankPlace, Run, read
from blinksim.nccl.tuner.tuner import predict
from blinksim.schedule.verify import verify
from blinksim.timing.library_model import Library
from blinksim.timing.measured import public_tables
from blinksim.units import format_time

TESTS = Path(__file__).resolve().parents[1]
SIZES = [2**power for power in range(10, 31)]


def run_of(folder: Path, collective: str, ranks: int, points: list[Point]) -> Run:
    path = folder / "log.txt"
    # GPUs that no machine has.
    path.write_text(text(collective, ranks, points).replace("NVIDIA H200", "GPU"))
    return read(path)[0]


def captured(collective: str, tag: str = "default", ranks: int = 8) -> list[Point]:
    rows = csv.DictReader((TESTS / "data/captures/h200x8/nccl_curves.csv").read_text().splitlines())
    return [
        Point(int(row["bytes"]), float(row["us"]), None)
        for row in rows
        if (row["tag"], row["coll"], row["n"]) == (tag, collective, str(ranks))
    ]


def h200(folder: Path, collective: str, points: list[Point], multicast: bool = False) -> Diagnosis:
    machine = load("hgx-h200", rates="nccl")
    return diagnose(run_of(folder, collective, 8, points), load("hgx-h200").select(), machine, multicast=multicast)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"])
def test_what_eight_h200_did_is_normal(tmp_path: Path, collective: str) -> None:
    found = h200(tmp_path, collective, captured(collective))
    assert found.first_behind is None
    but = " but for small sizes" * (collective == "reducescatter")
    assert found.sentence().startswith(f"{collective} on 8 GPUs of hgx-h200: normal{but}, ")
    assert found.largest.of_model == pytest.approx(1, abs=0.06)
    assert 0.75 < found.of_bound(found.largest) < 0.85
    assert not found.impossible
    # The framework that took the times needs 23 us to launch, and 46 its first reducescatter; hosts do from a stream,
    # which the log says it did, 13 to 44.
    assert bool(found.small_times) == (collective == "reducescatter")
    graph = diagnose(tmp_path / "log.txt", load("hgx-h200"), multicast=False, set_up="graph")
    # In a graph others took 13 to 18 us for 1 KiB to 16 KiB, also sums of bytes, which NVLS does not serve.
    assert graph.small_times


@cache
def taken(machine: str) -> dict[int, float]:
    """What the library takes, as `bs.project` says it."""
    return {size: bs.project(machine, "allreduce", size).time_s for size in SIZES}


def slowed(machine: str, change: Callable[[int, float], float]) -> list[Point]:
    """A log of what the library takes, changed by hand."""
    return [Point(size, 1e6 * change(size, time), None) for size, time in taken(machine).items()]


def test_slightly_outside_the_interval_is_behind_or_faster_and_inside_is_normal(tmp_path: Path) -> None:
    takes = bs.project("hgx-h200", "allreduce", 2**30)
    assert isinstance(takes, Answer)
    for time, words in [
        (1.02 * takes.high_s, "behind from 1 GiB on"),
        (0.98 * takes.high_s, "normal"),
        (1.02 * takes.low_s, "normal"),
        (0.98 * takes.low_s, "faster than expected, so the log may come from another machine"),
    ]:
        found = h200(tmp_path, "allreduce", [Point(2**30, 1e6 * time, None)], multicast=True)
        assert f": {words}" in found.sentence()
        assert found.to_dict()["normal"] is (words == "normal")
        [row] = found.rows()
        assert row["model_time_s"] == pytest.approx(takes.time_s)
        assert (row["interval_low_s"], row["interval_high_s"]) == pytest.approx((takes.low_s, takes.high_s))


@pytest.mark.parametrize(
    ("machine", "nodes", "size", "edits"),
    [
        ("p5", 8, 2**33, ()),
        ("p5", 2, 2**30, ()),
        ("hgx-h200", 1, 2**20, ()),
        ("mi300x", 1, 2**28, ()),
        ("hgx-h100", 2, 2**30, ("without n0.nic0",)),
    ],
)
def test_what_is_expected_is_what_project_says(machine: str, nodes: int, size: int, edits: tuple[str, ...]) -> None:
    """The time and both ends of its interval; on 8 nodes of p5 all three are held to the bound, or above it."""
    question = bs.Question(machine, nodes=nodes, edits=edits)
    [said] = answer(question, Collective("allreduce"), [size])
    found = diagnose(None, question.part(), question.whole(), size=size, time=1.0).largest.expected
    ends = [found.time_s, found.low_s, found.high_s]
    assert ends == pytest.approx([said.time_s, said.low_s, said.high_s])
    assert said.least is not None
    assert min(ends) >= said.least.time_s
    assert (found.origin, found.basis) == (said.details["origin"], said.details["basis"])


def test_times_of_a_size_that_are_far_apart_are_said(tmp_path: Path) -> None:
    """The middle of two tests of 1 GiB may be normal where neither is steady."""
    machine = load("hgx-h200", rates="nccl")
    usual = h200(tmp_path, "allreduce", captured("allreduce")).largest
    for factor, said in ((1.3, False), (1.6, True)):
        times = [1e6 * usual.time_s / factor**0.5, 1e6 * usual.time_s * factor**0.5]
        runs = [run_of(tmp_path, "allreduce", 8, [Point(usual.size, time, None)]) for time in times]
        found = diagnose(runs, load("hgx-h200").select(), machine, multicast=False)
        assert found.largest.apart == pytest.approx(factor, rel=0.01)
        assert (f"; 1 GiB up to {factor} times apart, measure again" in found.sentence()) is said


def test_far_more_than_is_expected_is_not_normal(tmp_path: Path) -> None:
    """Where little is known the interval is wide; a log of GPUs with 18 NVLinks is still none of GPUs with 12."""
    whole = (TESTS / "data/captures/h200x8/topo.xml").read_text()
    (tmp_path / "topo.xml").write_text(whole.replace('count="18"', 'count="12"'))
    points = [Point(2**30, 1.22 * 5227.44, None)]
    found = diagnose(run_of(tmp_path, "allreduce", 8, points), load(tmp_path / "topo.xml"), multicast=False)
    assert found.largest.of_model > 1.2
    assert not found.impossible
    assert ": faster than expected, so" in found.sentence()


def dgx1(folder: Path, points: list[Point]) -> Diagnosis:
    return diagnose(run_of(folder, "allreduce", 8, points), load("dgx1-v100").select(), load("dgx1-v100", rates="nccl"))


def test_sizes_that_are_behind_below_the_largest_are_not_normal(tmp_path: Path) -> None:
    """Half of what is expected from 16 to 256 MiB, and all of it at 1 GiB."""
    middle = range(2**24, 2**29)
    found = dgx1(tmp_path, slowed("dgx1-v100", lambda size, time: time * (2.0 if size in middle else 1.0)))
    assert found.first_behind is None
    first, last = found.behind_before.split(" to ")
    assert (first, last) == ("16 MiB", "256 MiB")
    assert f": behind at {found.behind_before}, and not at the largest size: " in found.sentence()
    assert found.status() == 1
    assert not found.as_expected


@pytest.mark.parametrize("start", [2**24, 2**25, 2**29])
def test_the_first_size_that_falls_behind_is_found(tmp_path: Path, start: int) -> None:
    points = slowed("dgx1-v100", lambda size, time: time * (1.6 if size >= start else 1.02))
    found = dgx1(tmp_path, points)
    assert found.first_behind is not None
    assert found.first_behind.size == start
    assert found.expectation.rings.limits[0] == "nvlink"
    assert "on nvlink: " in found.sentence()
    assert found.lane is not None
    assert found.lane[0] == pytest.approx(25e9 / 1.6, rel=0.05)
    assert found.lane[1] == 25e9


def test_a_single_odd_size_is_not_a_slow_machine(tmp_path: Path) -> None:
    found = dgx1(tmp_path, slowed("dgx1-v100", lambda size, time: time * (3 if size == 2**26 else 1)))
    assert found.first_behind is None
    assert [line.size for line in found.odd] == [2**26]
    # So is the largest, if it is far from the one before it; what a second test shows too is not odd.
    for usual, factor, many, odd in ((1, 1.6, 1, True), (1, 1.6, 2, False), (1.1, 1.2, 1, False)):
        times = [Point(size, 1e6 * usual * time, None) for size, time in taken("dgx1-v100").items()]
        times[-1] = Point(SIZES[-1], 1e6 * factor * taken("dgx1-v100")[SIZES[-1]], None)
        found = dgx1(tmp_path, times * many)
        assert [line.size for line in found.odd] == SIZES[-1:] * odd
        assert (found.largest.size, found.first_behind is None) == (SIZES[-1 - odd], odd)
        assert found.status() == (5 if odd else 1)
    # A share that grows with the size is no odd size.
    assert dgx1(tmp_path, slowed("dgx1-v100", lambda size, time: time * (1 + 2**24 / size))).odd == []


def test_a_size_within_the_noise_of_its_floor_does_not_make_a_log_behind(tmp_path: Path) -> None:
    """Nor do sizes that latency decides; one that is behind as they are does."""
    lines = dgx1(tmp_path, slowed("dgx1-v100", lambda _, time: time)).lines
    floors = {line.size: line.expected.high_s for line in lines}
    latency, judged = ([line.size for line in lines if line.latency_bound == bound] for bound in (True, False))
    for small, first, second, status in (
        (1.3, 1.01, 1.01, 0),
        (1.3, 1.3, 1.01, 1),
        (1, 1.3, 1.01, 0),
        (1.3, 1.0, 1.0, 0),
        (1, 1.3, 1.3, 1),
    ):
        more = dict.fromkeys(latency, small) | {judged[0]: first, judged[1]: second}
        times = {size: more.get(size, 0) * floors[size] or time for size, time in taken("dgx1-v100").items()}
        found = dgx1(tmp_path, [Point(size, 1e6 * time, None) for size, time in times.items()])
        assert (found.status(), bool(found.behind_before), found.as_expected) == (status, status == 1, status == 0)
        marked = [size for size in judged[:2] if more[size] > 1.1]
        assert [line.size for same in found.stretches for line in same] == marked


def test_noise_is_what_times_of_one_rig_differ_by() -> None:
    """Published times of bytes and of halves: allgathers and alltoalls move both alike, so these are repeated runs."""
    twice = defaultdict[tuple[str, str, int, int, str, int], dict[str, float]](dict)
    for machine in public_tables.machines():
        for cell in public_tables.cells(machine):
            if cell.collective in ("allgather", "alltoall"):
                job = cell.set.name, cell.collective, cell.nodes, cell.gpus, cell.nvls, cell.size
                twice[job][cell.dtype] = cell.time_s
    apart = defaultdict[int, list[float]](list)
    for (*_, size), times in twice.items():
        if len(times) == 2:
            first = next(first for first, _ in NOISE if size >= first)
            apart[first].append(abs(math.log(max(times.values()) / min(times.values()))))
    assert [len(apart[first]) >= 150 for first, _ in NOISE] == [True] * 3
    found = {first: float(np.quantile(each, 0.9)) / 1.645 / 2**0.5 for first, each in apart.items()}
    # Large sizes have a second source, of more rigs.
    assert all(found[first] <= share for first, share in NOISE[:1])
    assert all(found[first] == pytest.approx(share, abs=1e-3) for first, share in NOISE[1:])


@pytest.mark.parametrize(("size", "noise"), NOISE)
def test_what_is_behind_is_so_by_more_than_noise(size: int, noise: float) -> None:
    found = diagnose(None, "hgx-h200", size=max(size, 1024), time=1.0)
    for more, behind in ((0.9, False), (1.1, True)):
        line = replace(found.largest, time_s=(1 + more * noise) * found.largest.expected.high_s)
        assert line.behind is behind


@given(st.lists(st.tuples(st.floats(0.8, 1.6), st.floats(1, 2)), min_size=8, max_size=8))
def test_a_log_that_is_slower_at_each_size_gets_no_better_verdict(shares: list[tuple[float, float]]) -> None:
    found = diagnose(None, "dgx1-v100", size=2**20, time=1.0)
    lines = [replace(found.largest, size=size, expected=found.expectation.taken(size)) for size in SIZES[-8:]]
    both = []
    for more in (0, 1):
        times = [line.expected.time_s * own * slower**more for line, (own, slower) in zip(lines, shares, strict=True)]
        told = tuple(replace(line, time_s=time_s) for line, time_s in zip(lines, times, strict=True))
        both.append(replace(found, lines=told, stated=False))
    assert [0, 5, 1].index(both[0].status()) <= [0, 5, 1].index(both[1].status()) or both[0].impossible


def test_small_sizes_are_told_of_where_large_ones_are_as_expected(tmp_path: Path) -> None:
    found = dgx1(tmp_path, slowed("dgx1-v100", lambda size, time: 3 * time))
    assert found.first_behind is not None
    assert found.small_times == ""


def test_small_sizes_do_not_blame_a_link(tmp_path: Path) -> None:
    found = dgx1(tmp_path, slowed("dgx1-v100", lambda size, time: max(time, 120e-6)))
    assert found.first_behind is None
    assert re.match(
        r"small sizes \(120 us at 1 KiB, where [0-9.]+ us is expected\), so not the links: ", found.small_times
    )
    assert ": normal but for small sizes, " in found.sentence()
    only = diagnose(
        run_of(tmp_path, "allreduce", 8, captured("allreduce")[:4]), load("hgx-h200").select(),
        load("hgx-h200", rates="nccl"), multicast=False,
    )  # fmt: skip
    assert "says nothing about bandwidth" in only.sentence()
    assert not only.to_dict()["normal"]


def test_a_cause_is_named_where_one_fits(tmp_path: Path) -> None:
    machine = load("dgx1-v100", rates="nccl")
    pcie = RingModel(machine.select(None, (), ("pcie", "qpi")), Collective("allreduce"))
    found = dgx1(tmp_path, [Point(size, 1e6 * pcie.time(size), None) for size in SIZES])
    assert found.resembles.startswith("traffic over pcie or the host ")
    prediction = predict(machine)
    slow = [
        Point(size, 1e6 * next(t.time_s for t in prediction.times("allreduce", size)
                               if (t.algorithm, t.protocol) == ("ring", "LL")), None) for size in SIZES
    ]  # fmt: skip
    assert dgx1(tmp_path, slow).resembles.startswith("ring LL ")
    assert dgx1(tmp_path, slowed("dgx1-v100", lambda _, time: 9 * time)).resembles == ""


def test_nvls_is_expected_unless_it_was_off(tmp_path: Path) -> None:
    found = h200(tmp_path, "allreduce", captured("allreduce"), multicast=True)
    assert found.largest.expected.choice.startswith("nvls")
    assert found.first_behind is not None
    assert found.resembles == "NVLS off (NCCL_NVLS_ENABLE=0?)"
    assert f"on, as with {found.resembles}: 359.5 GB/s busbw at 1 GiB, " in found.sentence()


def test_one_dead_adapter_of_four(tmp_path: Path) -> None:
    """On P5 every GPU has four EFA adapters; what is no latency takes 4/3 as long with three."""
    times = {size: bs.project(load("p5", nodes=8), "allreduce", size).time_s for size in (2**31, 2**33)}
    points = [Point(size, 4 / 3 * 1e6 * time, None) for size, time in times.items()]
    found = diagnose(run_of(tmp_path, "allreduce", 64, points), load("p5", nodes=8))
    assert found.lane is not None
    measured, usual, lane, _ = found.lane
    assert lane == "link of class efa"
    assert 4 * measured / usual == pytest.approx(3, rel=0.05)
    assert found.resembles == ""


def test_in_network_reduction_has_another_bound(tmp_path: Path) -> None:
    nvls = [Point(size, size / 275e3 + 25, None) for size in SIZES]
    on, off = h200(tmp_path, "allreduce", nvls, multicast=True), h200(tmp_path, "allreduce", nvls)
    assert (on.bound.scope, on.impossible) == ("tree-optimum", False)
    assert float(on.bound.rate) == 400e9
    assert on.bound.grants
    assert off.impossible
    assert "faster than this machine can be" in off.sentence()


def test_bounds_are_those_of_the_bound_command(tmp_path: Path) -> None:
    found = dgx1(tmp_path, slowed("dgx1-v100", lambda _, time: time))
    assert found.bound.rate == bound(load("dgx1-v100").select(), Collective("allreduce")).rate
    row = found.rows()[-1]
    assert row["percent_of_bound"] == pytest.approx(100 * row["algbw_GBps"] / (600 / 7), rel=1e-2)
    assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 14 / 8)
    assert row["percent_of_model"] == pytest.approx(100, rel=1e-3)
    assert list(found.to_frame()["size_bytes"]) == SIZES


def test_what_only_two_phases_keep_to_is_no_bound(tmp_path: Path) -> None:
    """On six GPUs of a DGX-1V reduce-scatter and allgather lose; trees reach 62.5 GB/s."""
    part = load("dgx1-v100").select([f"gpu{i}" for i in (0, 1, 2, 3, 4, 7)])
    found = diagnose(run_of(tmp_path, "allreduce", 6, [Point(2**30, 2**30 / 50e3, None)]), part, load("dgx1-v100"))
    assert (found.bound.scope, float(found.bound.rate)) == ("partition", 62.5e9)
    assert not found.impossible


def test_a_machine_that_nccl_does_not_run_on(tmp_path: Path) -> None:
    aurora = load("aurora")
    model = RingModel(aurora.select(), Collective("allgather"))
    run = run_of(tmp_path, "allgather", 12, [Point(size, 1e6 * model.time(size), None) for size in SIZES])
    found = diagnose(run, aurora.select(), aurora)
    assert found.expectation.prediction is None
    assert found.expectation.name == "alpha-beta of ring at nominal rates"
    assert found.expectation.rings.limits[0] == "xe"
    best = bs.project(aurora, "allgather", SIZES[-1])
    assert found.largest.expected.time_s == pytest.approx(best.time_s)


def test_sends_that_nccl_has_no_model_for(tmp_path: Path) -> None:
    machine = load("hgx-h200")
    model = RingModel(machine.select(), Collective("alltoall"))
    run = run_of(tmp_path, "alltoall", 8, [Point(size, 1e6 * model.time(size), None) for size in SIZES])
    found = diagnose(run, machine.select(), machine, rates="nominal")
    assert found.expectation.name == "alpha-beta of direct at nominal rates"
    assert found.first_behind is None


def test_an_alltoall_between_nodes_goes_by_rail() -> None:
    """Ten nodes of eight H100, NCCL 2.29.2 (set xxr-h100-N10-G8): it is near the adapters' limit, not at two thirds."""
    machine = load("hgx-h100", nodes=10, rates="nccl").select()
    model = RingModel(machine, Collective("alltoall"))
    assert (model.schedule.algorithm, model.topology.rates) == ("rail_aligned", "nccl")
    measured_us = {67107840: 1662.12, 268435200: 5334.88, 1073740800: 21159.9, 17179868160: 336737}
    shares = [1e6 * model.time(size) / time for size, time in measured_us.items()]
    assert shares == pytest.approx([0.82, 0.96, 0.96, 0.96], abs=0.01)


def test_wrong_data_come_first(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    lines = text("allreduce", 8, captured("allreduce")).splitlines()
    row = next(i for i, line in enumerate(lines) if line.strip().startswith("1048576 "))
    lines[row] = lines[row].replace("74.56       0", "74.56      77")
    path.write_text("\n".join(lines))
    found = diagnose(read(path)[0], load("hgx-h200").select())
    assert found.sentence().endswith("WRONG DATA at 1 MiB")
    assert [line.size for line in found.wrong] == [2**20]


@pytest.mark.parametrize("in_place", [False, True])
def test_wrong_data_count_in_either_half(tmp_path: Path, in_place: bool) -> None:
    run = run_of(tmp_path, "allreduce", 8, [Point(2**20, 25.0, 24.0), Point(2**28, 1e3, 990.0)])
    for half in (False, True):
        rows = tuple(replace(row, wrong=7.0 * (row.in_place == half and row.size == 2**20)) for row in run.rows)
        found = diagnose(replace(run, rows=rows), load("hgx-h200").select(), in_place=in_place)
        assert [(line.size, line.wrong) for line in found.wrong] == [(2**20, 7.0)]
        assert [line.time_s for line in found.lines] == pytest.approx([24e-6, 990e-6] if in_place else [25e-6, 1e-3])


def test_what_cannot_be_diagnosed(tmp_path: Path) -> None:
    run = run_of(tmp_path, "allreduce", 8, captured("allreduce"))
    with pytest.raises(InputError, match="has 8 ranks, and 4 members are chosen"):
        diagnose(run, load("hgx-h200").select(["gpu0", "gpu1", "gpu2", "gpu3"]))
    with pytest.raises(InputError, match="has no size above 0"):
        diagnose(run_of(tmp_path, "allreduce", 8, [Point(0, 5.0, 5.0)]), load("hgx-h200").select())
    with pytest.raises(InfeasibleError):
        load("dgx1-v100").select(["gpu0", "gpu5"])


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall"])
@pytest.mark.parametrize("machine", ["dgx1-v100", "hgx-h200"])
def test_the_rings_are_right_and_within_the_bound(machine: str, collective: str) -> None:
    topology, wanted = load(machine).select(), Collective(collective)
    assert verify(ring_schedule(topology, wanted)).ok
    limit = float(bound(topology, wanted).rate)
    reached = 2**40 / RingModel(topology, wanted).time(2**40)
    assert 0.4 * limit < reached <= limit * (1 + 1e-9)


@pytest.mark.parametrize("slower", [1, 3])
def test_logs_of_many_nodes_are_held_against_the_same_bound(tmp_path: Path, slower: int) -> None:
    """Switches inside nodes that add make no difference there: a third as fast is a third of the bound."""
    points = [Point(size, slower * 1e6 * size / 185e9, None) for size in (2**28, 2**30, 2**32)]
    found = diagnose(run_of(tmp_path, "allreduce", 128, points), load("hgx-h100", nodes=16))
    assert found.bound.rate == Fraction(640 * 10**9, 3)
    assert found.of_bound(found.largest) == pytest.approx(185e9 / slower / (640e9 / 3), rel=1e-2)
    # PCIe carries 48 GB/s and InfiniBand 50, one after the other; what leaves the node is named first.
    assert found.to_dict()["link_classes"] == ["ib", "pcie"]
    assert ("on ib or pcie: " in found.sentence()) == (slower > 1)


def test_gpus_of_another_model_are_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, "allreduce", 8, captured("allreduce"))
    places = tuple(RankPlace(rank, "here", rank, "", "NVIDIA H200") for rank in range(8))
    assert other_gpus(replace(run, places=places), load("hgx-h200")) == ""
    assert other_gpus(replace(run, places=places), load("a3-ultragpu-8g")) == ""
    assert other_gpus(replace(run, places=()), load("hgx-h100")) == ""
    assert other_gpus(replace(run, places=places), load("switch:8")) == ""
    recorded = TESTS / "data" / "captures" / "h200x8"
    for file in ("smi_topo.txt", "topo.xml"):
        assert other_gpus(replace(run, places=places), load(recorded / file)) == ""
    v100 = tuple(RankPlace(rank, "here", rank, "", "Tesla V100-SXM2-32GB") for rank in range(8))
    assert other_gpus(replace(run, places=v100), load("dgx1-v100")) == ""
    for file in ("smi_topo.txt", "topo.xml"):
        words = other_gpus(replace(run, places=v100), load(recorded / file))
        assert "ran on Tesla V100-SXM2-32GB, and the GPUs of " in words
        assert words.endswith(" are H200; those of the log are as in dgx1-v100")
    words = other_gpus(replace(run, places=places), load("hgx-h100"))
    assert words.endswith("ran on NVIDIA H200, and the GPUs of hgx-h100 are H100; those of the log are as in hgx-h200")


@pytest.mark.parametrize("name", ["hgx-h100", "hgx-h200", "p4d"])
def test_no_verdict_contradicts_the_interval_beside_it(name: str) -> None:
    for busbw in range(150, 680, 40):
        found = bs.diagnose(None, name, size="1GiB", busbw=busbw)
        line, said = found.largest, found.sentence()
        if not found.impossible:
            assert ("faster than expected" in said) == (line.time_s < line.expected.low_s)
            assert ("slow, " in said) == (line.time_s > line.expected.high_s)


def test_a_normal_figure_names_what_would_look_the_same() -> None:
    found = bs.diagnose(None, bs.load("hgx-h100", nodes=2), size="1GiB", busbw=350)
    assert found.as_expected
    assert found.sentence().endswith("; NVLS off (NCCL_NVLS_ENABLE=0?) would look the same")
    assert bs.diagnose(None, "hgx-h100", size="8GiB", busbw=470).resembles == ""


def test_rings_in_place_of_switches_that_add_are_slow() -> None:
    """H100 with NVLS: 459.6 to 480.4 GB/s in three published runs of 1 GiB; without it 360 to 375."""
    for busbw in (360, 380):
        found = bs.diagnose(None, "hgx-h100", size="1GiB", busbw=busbw)
        assert not found.as_expected
        assert "slow, as with NVLS off" in found.sentence()


@pytest.mark.parametrize(("machine", "nodes"), [("p5", 1), ("p5", 8), ("hgx-h100", 1), ("mi300x", 2)])
def test_no_figure_above_what_project_allows_is_possible(machine: str, nodes: int) -> None:
    """At every size: a tenth less than the least time of `project` cannot be, and a tenth more can."""
    part = load(machine, nodes=nodes)
    for said in answer(part, Collective("allreduce"), [1, 2**10, 2**20, 2**30]):
        assert said.least is not None
        for share, impossible in ((0.9, True), (1.1, False)):
            found = diagnose(None, part, size=said.size, time=share * said.least.time_s)
            assert found.impossible is impossible
            assert found.of_bound(found.largest) == pytest.approx(1 / share)
            assert ("faster than this machine can be" in found.sentence()) is impossible
            assert (found.status() == 5) >= impossible


def test_the_gpus_that_a_log_names_are_part_of_the_answer(tmp_path: Path) -> None:
    run = run_of(tmp_path, "allreduce", 8, captured("allreduce"))
    for name, strange in (("NVIDIA H200", False), ("NVIDIA A100-SXM4-80GB", True)):
        places = tuple(RankPlace(rank, "here", rank, "", name) for rank in range(8))
        found = diagnose(replace(run, places=places), load("hgx-h200"), multicast=False)
        assert (f"ran on {name}, and the GPUs of hgx-h200 are H200" in found.sentence()) is strange
        assert bool(found.to_dict()["other_gpus"]) is strange
        # Nothing else is said of it.
        assert found.sentence().startswith("allreduce on 8 GPUs of hgx-h200: not judged, as ") is strange
        assert ("dgx-a100" in found.sentence(), found.status()) == ((True, 5) if strange else (False, 0))
        assert (found.stretches == [], found.to_dict()["normal"]) == (True, not strange)


@pytest.mark.parametrize(
    ("machine", "nodes", "words"),
    [
        ("hgx-h100", 1, "traffic over pcie or the host (peer access off: NCCL_P2P_DISABLE"),
        ("dgx-a100", 1, "traffic over pcie or the host (peer access off: NCCL_P2P_DISABLE"),
        ("aurora", 1, "traffic over pcie or the host (peer access off, or xe down?)"),
        ("p5", 4, "sockets in place of efa (NET/Socket in NCCL_DEBUG=INFO; EFA plugin not loaded?)"),
        ("hgx-h100", 4, "sockets in place of ib (NET/Socket in NCCL_DEBUG=INFO?)"),
    ],
)
def test_what_is_slower_than_other_ways_may_have_taken_them(machine: str, nodes: int, words: str) -> None:
    """5 GB/s is less than a PCIe port or an adapter carries; two thirds of what is expected is more."""
    part = load(machine, nodes=nodes)
    slow = diagnose(None, part, size=2**33, busbw=5 if machine != "aurora" else 0.5)
    assert slow.resembles.startswith(words)
    assert f"slow, as with {words}" in slow.sentence()
    expected = slow.largest.expected
    for times in (1.1, 1.5):
        assert not diagnose(None, part, size=2**33, time=times * expected.high_s).resembles.startswith(words)


@pytest.mark.parametrize(
    ("machine", "there", "elsewhere"),
    [("p5", "fi_info -p efa", "NET/IB"), ("hgx-h100", "NET/IB", "efa"), ("alps", "cxi_stat", "ibstat")],
)
def test_causes_are_those_of_the_network(tmp_path: Path, machine: str, there: str, elsewhere: str) -> None:
    part, sizes = load(machine, nodes=8), [2**28, 2**30, 2**32]
    takes = bs.expect(part, ["allreduce"], sizes).takes
    points = [Point(one.size, 3e6 * one.time_s, None) for one in takes]
    (tmp_path / "log.txt").write_text(text("allreduce", part.ranks, points, hosts=8).replace("NVIDIA H200", "GPU"))
    causes = " ".join(one.check for one, _ in diagnose(read(tmp_path / "log.txt")[0], part).causes)
    assert there in causes
    assert elsewhere not in causes


@pytest.mark.parametrize(("nodes", "ranks"), [(16, 12), (16, 1), (32, 4)])
@pytest.mark.parametrize("size", [2**28, 2 * 10**9])
def test_half_the_rate_of_aurora_is_no_sign_of_sockets(nodes: int, ranks: int, size: int) -> None:
    """Links explain a thin part of its times, so that they may be slow a hundredfold before these double."""
    question = bs.Question("aurora", nodes=nodes, ranks_per_node=ranks)
    part, whole = question.part(), question.whole()
    usual = diagnose(None, part, whole, size=size, time=1.0).largest.expected.time_s
    found = diagnose(None, part, whole, size=size, time=2 * usual)
    assert "sockets" not in found.sentence()
    found = diagnose(None, part, whole, size=size, time=9 * usual)
    assert found.resembles.startswith("sockets in place of slingshot")


def test_causes_are_those_of_the_library(tmp_path: Path) -> None:
    """oneCCL has no NCCL_DEBUG; the document on Aurora names others, and locate says who answers."""
    machine, sizes = load("aurora", nodes=16), [2**28, 2**29, 2**30, 2**31]
    takes = bs.expect(machine, ["allreduce"], sizes).takes
    rows = "".join(f"{one.size} {4e6 * one.time_s:.2f}\n" for one in takes)
    (tmp_path / "osu.txt").write_text(f"# OSU MPI-SYCL Allreduce Latency Test v7.5\n# Size  Avg Latency(us)\n{rows}")
    found = bs.diagnose(tmp_path / "osu.txt", machine)
    assert found.status() == 1
    causes = [words for label, words in found.to_do() if label == "could be"]
    assert [cause.split(",")[0].split(":")[0] for cause in causes] == [
        "a node",
        "oversubscribed switches or other jobs on them",
        "other jobs on these GPUs and hosts",
    ]
    assert not re.search("NCCL|NVLink|nvidia|mlx5", " ".join(causes))
    with pytest.raises(InputError, match="runs oneccl; blinksim diagnose says what may be slow, and what to measure"):
        bs.locate("aurora", [tmp_path / "osu.txt"], nodes=16)


@pytest.mark.parametrize(
    ("machine", "nodes", "busbw", "multicast"),
    [
        ("hgx-h100", 1, 300, True),
        ("hgx-h100", 1, 250, False),
        ("dgx-a100", 1, 150, False),
        ("mi300x", 1, 200, True),
        ("dgx1-v100", 1, 90, True),
        ("nd40rs-v2", 1, 30, True),
        ("hgx-h100", 4, 180, True),
        ("p5", 4, 180, True),
    ],
)
def test_an_edit_to_the_rate_that_is_blamed_takes_what_was_measured(
    machine: str, nodes: int, busbw: float, multicast: bool
) -> None:
    found = bs.diagnose(None, bs.load(machine, nodes=nodes), size="8GiB", busbw=busbw, multicast=multicast)
    assert found.lane is not None
    assert found.first_behind is not None
    edit = f"degrade {found.expectation.rings.limits[0]} bandwidth={found.lane[0] / 1e9:.6g}GB/s"
    model, whole = Library(multicast=multicast).at(bs.Question(machine, nodes=nodes, edits=(edit,)))
    [edited] = model.times(whole, found.collective, [found.largest.size])
    assert edited.time_s == pytest.approx(found.largest.time_s, rel=0.1)
    assert found.unlike == ""


@pytest.mark.parametrize(
    ("machine", "nodes", "busbw"),
    [("dgx1-v100", 1, 60), ("gaudi2", 4, 15)],
)
def test_no_rate_is_claimed_that_does_not_take_what_was_measured(machine: str, nodes: int, busbw: float) -> None:
    """Where NCCL finds fewer rings at that rate, and where a large part of a time does not come from links."""
    found = bs.diagnose(None, bs.load(machine, nodes=nodes), size="8GiB", busbw=busbw)
    assert found.lane is not None
    assert found.first_behind is not None
    edit = f"degrade {found.expectation.rings.limits[0]} bandwidth={found.lane[0] / 1e9:.6g}GB/s"
    takes = library_times.taken(bs.Question(machine, nodes=nodes, edits=(edit,)), "allreduce", [2**33])[0].time_s
    assert abs(takes / found.largest.time_s - 1) > 0.05
    assert found.unlike == format_time(takes)
    assert found.to_dict()["lane_GBps"] is None


@pytest.mark.parametrize(
    ("machine", "nodes", "busbw"),
    [
        ("hgx-h100", 2, 80),
        ("hgx-h100", 2, 150),
        ("hgx-h100", 2, 200),
        ("aurora", 16, 3),
        ("frontier", 8, 20),
        ("rtx-pro-6000-pcie", 1, 10),
    ],
)
def test_the_rate_that_is_blamed_takes_what_was_measured(machine: str, nodes: int, busbw: float) -> None:
    """Also where the time does not fall as the rate rises, as rings change and part of it comes from elsewhere."""
    part = bs.load(machine, nodes=nodes)
    found = bs.diagnose(None, part, size="1GB", busbw=busbw)
    assert found.lane is not None
    assert not found.unlike
    for verb in ("degrade", "replace")[: 1 + (machine == "aurora")]:
        edit = f"{verb} {found.expectation.rings.limits[0]} bandwidth={found.lane[0]:.9g}B/s"
        takes = bs.project(part.edit(edit), "allreduce", "1GB").time_s
        assert takes == pytest.approx(found.largest.time_s, rel=0.03)


@pytest.mark.parametrize(
    ("said", "resembles"),
    [
        ("", "ring LL "),
        ("RING proto LL channel{Lo..Hi}={0..1}", "ring LL "),
        ("1 proto 0 time 9.1", "ring LL "),
        ("RING proto SIMPLE channel{Lo..Hi}={0..1}", ""),
        ("TREE proto LL channel{Lo..Hi}={0..1}", ""),
    ],
)
def test_no_other_algorithm_is_named_than_the_log_says(tmp_path: Path, said: str, resembles: str) -> None:
    """Times of ring LL by NCCL's model, beside what NCCL_DEBUG_SUBSYS=TUNING prints; older releases print numbers."""
    text = "# Collective test starting: all_reduce_perf\n"
    text += "# size count type redop root time algbw busbw #wrong\n"
    for size in (2**26, 2**28, 2**30):
        choices = predict(load("dgx1-v100", rates="nccl")).times("allreduce", size)
        time = next(one.time_s for one in choices if (one.algorithm, one.protocol) == ("ring", "LL"))
        text += f"vm:3533:3533 [0] NCCL INFO AllReduce: {size} Bytes -> Algo {said}\n" if said else ""
        rate = size / time / 1e9
        text += f"{size} {size // 4} float sum -1 {1e6 * time:.2f} {rate:.4f} {1.75 * rate:.4f} 0\n"
    (tmp_path / "log.txt").write_text(text)
    found = bs.diagnose(tmp_path / "log.txt", "dgx1-v100")
    assert found.first_behind is not None
    assert found.resembles[: len("ring LL ")] == resembles


def between_nodes(folder: Path, nodes: int, slower: Callable[[int], float], before: str = "", after: str = "") -> Path:
    """A log of HGX H100, so many times as long as expected by size, with lines before it and after it."""
    points = [Point(size, 1e6 * slower(size) * time, None) for size, time in on_nodes(nodes).items()]
    told = text("allreduce", 8 * nodes, points, hosts=nodes, footer=not after).replace("NVIDIA H200", "GPU")
    path = folder / "log.txt"
    path.write_text(f"{before}{told}{after}")
    return path


@cache
def on_nodes(nodes: int) -> dict[int, float]:
    sizes = [2**power for power in range(20, 31)]
    return {size: bs.project(bs.load("hgx-h100", nodes=nodes), "allreduce", size).time_s for size in sizes}


def test_a_run_that_failed_is_not_normal(tmp_path: Path) -> None:
    """As nccl-tests says it (src/common.h), whatever the rows before it say, and whatever NCCL warned of."""
    lines = ["box1: Test NCCL failure common.cu:1279 'remote process exited or there was a network error / '"]
    lines += [" .. box1 pid 4009: Test failure common.cu:595", ""]
    for warned in ("", "box1:4009:4109 [1] NCCL WARN NET/IB : Got completion from peer with status=12\n"):
        path = between_nodes(tmp_path, 2, lambda _: 1.0, after=warned + "\n".join(lines))
        found = bs.diagnose(path, bs.load("hgx-h100", nodes=2))
        assert f": the run FAILED after 1 GiB: {lines[0]}" in found.sentence()
        assert ("status=12" in found.sentence()) == bool(warned)
        assert (found.status(), found.to_dict()["normal"], found.to_dict()["failed"]) == (1, False, lines[0])
        again = dict(found.to_do())["again"]
        assert "NCCL_DEBUG=INFO" in again
        assert again.endswith("-np 16 -N 8 all_reduce_perf -b 8388608 -e 1073741824 -f 2 -g 1 -t 1")


@pytest.mark.parametrize(
    "last", ["", "# Avg bus bandwidth : 123", "box0: Test CUDA failure common.cu:406 'out of memory'"]
)
def test_a_run_that_ended_early_is_run_again_up_to_its_last_size(tmp_path: Path, last: str) -> None:
    """The size that failed is beyond those that were measured; the head says where the test was to end."""
    told = text("allreduce", 8, captured("allreduce")[:-1], footer=False).replace(
        "maxBytes 1073741824", "maxBytes 8589934592"
    )
    (tmp_path / "log.txt").write_text(f"{told}{last}\n")
    found = bs.diagnose(tmp_path / "log.txt", "hgx-h200", multicast=False)
    status = 1 if "CUDA" in last else 0 if "Avg" in last else 5
    assert (found.most, found.complete, found.status()) == (2**33, "Avg" in last, status)
    ended = "; the run ended early, before 8 GiB; run it again: nccl-tests' last lines are missing"
    assert (": normal as far as it got, " in found.sentence(), ended in found.sentence()) == (status == 5, status == 5)
    again = [words.split("_perf ")[1] for label, words in found.to_do() if label == "again"]
    assert again == ["-b 8388608 -e 8589934592 -f 2 -g 1 -t 1"] * (not found.complete)


@pytest.mark.parametrize(
    ("most", "last", "sizes"),
    [("1000000000", 2**20, "-b 1953125 -e 1000000000"), ("1073741824", 2**20, "-b 1048576 -e 1073741824"),
     ("", 2**16, "-b 65536 -e 131072"), ("4096", 2**10, "-b 1024 -e 4096")],
)  # fmt: skip
def test_a_run_that_failed_is_run_again_up_to_the_size_that_failed(
    tmp_path: Path, most: str, last: int, sizes: str
) -> None:
    """Also where that is no multiple of what the command begins with, and where the head does not say it."""
    told = text("broadcast", 8, [Point(last, 100.0, None)], footer=False)
    told = told.replace("maxBytes 1073741824", f"maxBytes {most}" * bool(most)).replace("none  0", "none  3")
    (tmp_path / "log.txt").write_text(f"{told}box0: Test CUDA failure common.cu:406 'out of memory'\n")
    words = dict(bs.diagnose(tmp_path / "log.txt", "hgx-h200").to_do())["again"]
    assert words.endswith(f" broadcast_perf {sizes} -f 2 -r 3 -g 1 -t 1")


@pytest.mark.parametrize(("used", "said"), [(8, False), (7, True)])
def test_an_adapter_that_nccl_leaves_out_has_a_check(tmp_path: Path, used: int, said: bool) -> None:
    names = " ".join(f"[{one}]mlx5_{one}:1/IB" for one in range(used))
    line = "box{0}:400{0}:4100 [0] NCCL INFO NET/IB : Using {1} [RO]; OOB eth0:10.0.0.1<0>\n"
    before = line.format(0, names) + line.format(1, names)
    found = bs.diagnose(between_nodes(tmp_path, 2, lambda _: 1.0, before), bs.load("hgx-h100", nodes=2))
    assert (found.status(), ": normal but for what a host lacks, " in found.sentence()) == (5 * said, said)
    checks = [words for label, words in found.to_do() if label == "check"]
    named = [(one.startswith("box0, box1 each uses 7 of 8"), "NCCL_IB_HCA" in one) for one in checks]
    assert named == [(True, True)] * said


@pytest.mark.parametrize(
    ("slower", "wanted"),
    [
        (lambda size: 2.5 if size >= 2**24 else 1, "fewer GPUDirect few clocks other ACS PFC, oversubscribed"),
        # What is as slow where latency decides is not so by a link.
        (lambda _: 2.5, "clocks other"),
        (lambda size: 1 if size < 2**24 else 2.2 if size < 2**30 else 3.5, ""),
        (lambda _: 1, ""),
    ],
)
def test_nodes_that_are_slow_alike_have_causes_in_an_order(
    tmp_path: Path, slower: Callable[[int], float], wanted: str
) -> None:
    """Of every node, and with the run that tells them apart; where sizes differ a single place may be slow."""
    found = bs.diagnose(between_nodes(tmp_path, 4, slower), bs.load("hgx-h100", nodes=4))
    causes = [words for label, words in found.to_do() if label == "could be"]
    assert [cause.split()[0] for cause in causes] == wanted.split()
    assert ("again" in dict(found.to_do())) == bool(wanted)


def test_what_is_to_be_measured_again_has_its_command(tmp_path: Path) -> None:
    for size in (2**26, 0):
        times = taken("dgx1-v100") | ({size: 3 * taken("dgx1-v100")[size]} if size else {})
        found = dgx1(tmp_path, [Point(own, 1e6 * time, None) for own, time in times.items()])
        again = [words for label, words in found.to_do() if label == "again"]
        assert len(again) == bool(found.again) == bool(size)
        assert [words.split("_perf ")[1] for words in again] == ["-b 8388608 -e 1073741824 -f 2 -g 1 -t 1"] * bool(size)
