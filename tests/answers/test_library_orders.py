"""What a collective takes with the library keeps the order that links impose, on machines that nobody measured too."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from library_times import taken
from machine_sorts import of_each_sort

import blinksim as bs
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.machines import catalogue
from blinksim.timing.library_model import Library
from blinksim.timing.measured import library_rates
from blinksim.timing.projection_result import Projection

NAMES = ("allreduce", "allgather", "reducescatter", "broadcast")
SIZES = tuple(2**power for power in range(10, 33, 2))
MACHINES = tuple(catalogue())


def _taken(machine: str, nodes: int, sizes: Sequence[int]) -> dict[str, list[Projection]]:
    """By collective; empty where the machine does not join so many nodes."""
    found = dict[str, list[Projection]]()
    with suppress(BlinksimError):
        model, whole = Library().at(bs.Question(machine, nodes=nodes))
        for name in NAMES:
            found[name] = model.times(whole, Collective(name), sizes)
    return found


def _contradictions(machine: str, nodes: int, sizes: Sequence[int]) -> Iterator[str]:
    found = _taken(machine, nodes, sizes)
    for name, times in found.items():
        for one in times:
            low, high = one.details["interval_low_s"], one.details["interval_high_s"]
            if one.least and one.time_s < one.least.time_s * (1 - 1e-9):
                yield f"{machine} x {nodes} {name} {one.size}: below its bound"
            if not low * (1 - 1e-9) <= one.time_s <= high * (1 + 1e-9):
                yield f"{machine} x {nodes} {name} {one.size}: outside its interval"
        for less, more in itertools.pairwise(times):
            if more.time_s < less.time_s * (1 - 1e-9) and more.details["basis"] != "measured":
                yield f"{machine} x {nodes} {name} {more.size}: falls"
        for half, whole in zip(times, found["allreduce"], strict=True):
            # NCCL's rings of few bytes across nodes take longer than its trees, also by what was published.
            rings = nodes > 1 and half.size < 2**26 and half.details["library"] == "NCCL" and name[0] in "ar"
            excused = rings or half.details["basis"] in ("measured", "between", "fitted")
            if half.time_s > whole.time_s * (1 + 1e-9) and not excused:
                yield f"{machine} x {nodes} {name} {half.size}: {half.time_s:.4g} s, allreduce {whole.time_s:.4g} s"


@pytest.mark.parametrize(
    ("machine", "nodes"), [("aurora", 1), ("aurora", 8), ("mi300x", 2), ("mi250", 1), ("p5.48xlarge", 8), ("gaudi2", 1)]
)
def test_no_answer_contradicts_another(machine: str, nodes: int) -> None:
    assert list(_contradictions(machine, nodes, SIZES[::3])) == []


@pytest.mark.slow
@pytest.mark.parametrize("machine", [of_each_sort(name, machine=name) for name in MACHINES])
def test_no_answer_of_the_catalogue_contradicts_another(machine: str) -> None:
    assert [line for nodes in (1, 2, 8) for line in _contradictions(machine, nodes, SIZES)] == []


@pytest.mark.parametrize(
    ("machine", "nodes", "edit"),
    [
        ("aurora", 16, "without nic[0-3]"),
        ("aurora", 1, "without card0.t0"),
        ("aurora", 1, "replace xe bandwidth=10GB/s"),
        ("mi250", 1, "degrade xgmi bandwidth=20GB/s"),
        ("trn2.48xlarge", 1, "degrade neuronlink bandwidth=20GB/s"),
    ],
)
def test_fewer_links_take_no_less(machine: str, nodes: int, edit: str) -> None:
    """And an edited machine keeps what was measured of it: without a tile of Aurora, 9 % more."""
    asked = [bs.Question(machine, nodes=nodes, edits=edits) for edits in ((), (edit,))]
    for before, after in zip(*(taken(one, "allreduce", [2**18, 2**24, 2**30]) for one in asked), strict=True):
        # Without a tile the job has a GPU less, and fewer steps.
        if "card0" not in edit or before.size == 2**30:
            assert after.time_s >= before.time_s * (1 - 1e-9)
            assert "card0" not in edit or after.time_s <= 1.15 * before.time_s


@pytest.mark.parametrize(
    ("machine", "adapter", "each"), [("p5en", "efa", 16), ("p5", "efa", 32), ("hgx-h100", "nic", 8)]
)
def test_an_alltoall_waits_for_the_adapters_that_are_left(machine: str, adapter: str, each: int) -> None:
    """Straight sends of a GPU that lost one of two would take twice as long, and less without the other."""
    times = list[float]()
    for lost in range(4):
        edits = tuple(f"without n0.{adapter}{number}" for number in range(lost))
        [found] = taken(bs.Question(machine, nodes=2, edits=edits), "alltoall", [2**30])
        assert found.time_s == pytest.approx(each / (each - lost) * next(iter(times), found.time_s), rel=0.01)
        times.append(found.time_s)
    assert times == sorted(times)


def test_a_library_has_no_schedules_that_are_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a better search nor a worse one changes what it takes."""

    def none(*_: object, **__: object) -> None:
        raise AssertionError("a schedule was asked for")

    monkeypatch.setattr("blinksim.timing.contest.enter_best", none)
    for machine, nodes in (("aurora", 1), ("mi300x", 2), ("gb200-nvl72", 2)):
        model, whole = Library().at(bs.Question(machine, nodes=nodes))
        assert all(one.time_s > 0 for one in model.times(whole, Collective("allreduce"), [2**20, 2**30]))


@pytest.mark.parametrize("machine", ["mi250", "mi300a", "hgx-h800"])
def test_what_nobody_measured_is_no_surer_than_what_was(machine: str) -> None:
    """One machine of a library says nothing of how far others are from it: the ends are those of left-out machines."""
    found = bs.project(machine, "allreduce", 2**28)
    like = bs.project("mi300x", "allreduce", 2**28)
    assert isinstance(found, bs.Answer)
    assert isinstance(like, bs.Answer)
    assert math.log(found.high_s / found.low_s) > 2 * math.log(like.high_s / like.low_s)


def test_intervals_of_guesses_hold_machines_that_were_left_out() -> None:
    """Of the oneCCL machine, nine in ten of all others' spread; and the row of a library is not that of one machine."""
    rows = library_rates.spreads()
    for whose, found in rows.items():
        for which, row in found.items():
            assert row.low <= row.middle <= row.high, (*whose, *which)
    every, of_one = (rows[name, "links"]["one node", "64 MiB to 1 GiB"] for name in ("all", "RCCL"))
    assert of_one.high / of_one.low == pytest.approx(every.high / every.low, rel=1e-2)


def test_gpus_that_a_table_names_have_its_times() -> None:
    """Two cards of Aurora: 74.2 ms, as its document prints it."""
    found = bs.project(bs.load("aurora").select([0, 2]), "allreduce", 875 * 10**6)
    assert found.time_s == pytest.approx(74.2e-3)


def test_a_broadcast_that_an_allreduce_limits_says_so() -> None:
    found = bs.project(bs.load("p5.48xlarge", nodes=2), "broadcast", 2**20)
    assert found.details["choice"] == ""
    assert found.details["origin"].startswith("held to what an allreduce takes: ")


def test_an_allgather_by_rings_takes_longer_than_an_allreduce_by_trees() -> None:
    """Polaris, published: 16 KiB on 256 nodes 8,182 us and 211 us; NCCL has no trees for half of an allreduce."""
    found = _taken("hgx-h100", 64, [2**13])
    assert found["allgather"][0].time_s > 3 * found["allreduce"][0].time_s
    assert found["allgather"][0].details["choice"].startswith("ring")
    few = _taken("hgx-h100", 2, [2**28])
    assert few["allgather"][0].time_s < few["allreduce"][0].time_s


def test_no_ring_takes_what_the_library_took_where_adapters_carry_less() -> None:
    """1 GiB on two p5 was published with 440 GB/s; a ring crosses adapters of 400 GB/s a node."""
    machine = bs.load("p5.48xlarge", nodes=2)
    ring = bs.project(machine, "allreduce", 2**30, algorithm="ring").time_s
    assert ring >= 2 * 15 / 16 * 2**30 / 400e9 > bs.project(machine, "allreduce", 2**30).time_s


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_no_ring_is_named_beside_a_rate_above_that_of_adapters(nodes: int) -> None:
    """The sum of bus bandwidths of rings across two nodes is at most that of 32 adapters of 100 Gbit/s, by AWS.

    Two nodes were published with more; what nobody published is no more than the ring can that NCCL's model picks.
    """
    found = _taken("p5.48xlarge", nodes, [2**power for power in range(28, 35)])["allreduce"]
    quick = [one for one in found if one.busbw > 32 * 100e9 / 8 * (1 + 1e-9)]
    assert bool(quick) == (nodes == 2)
    assert all(one.details["interval_low_s"] <= one.time_s <= one.details["interval_high_s"] for one in found)
    for one in quick:
        words = " ".join((one.details["choice"], one.bottleneck, *(term.name for term in one.terms)))
        assert "ring" not in words.replace("not by a ring", "")
        assert "quicker than a ring can be on these links" in one.details["origin"]
    assert all(one.details["choice"] for one in found if one not in quick)


@pytest.mark.parametrize("name", ["project", "compare", "bound", "place", "levels"])
def test_functions_say_where_nodes_go(name: str) -> None:
    takes = {"machine": "p5", "part": "p5", "collective": "allreduce"}
    with pytest.raises(bs.InputError, match=r"takes no edits=; take as the machine bs.load\(name, edits="):
        getattr(bs, name)(*takes.values(), edits=["without gpu0"])


def test_what_older_hardware_was_published_to_take_is_enough_for_newer() -> None:
    new, old = (_taken(name, 2, [2**24])["allreduce"][0] for name in ("p5en.48xlarge", "p5.48xlarge"))
    assert new.time_s == old.time_s
    # Their NICs differ, EFA v2 and v3, where a node has 3,200 Gb/s of either.
    assert "measured on p5.48xlarge with as much bandwidth between nodes: " in new.details["origin"]
    new, old = (_taken(name, 8, [2**30])["allreduce"][0] for name in ("p5en.48xlarge", "p5.48xlarge"))
    assert new.details["origin"] == f"{old.details['origin']} of p5.48xlarge"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("better", "poorer"), [("p5en.48xlarge", "p5.48xlarge"), ("hgx-h200", "hgx-h100"), ("nd-h200-v5", "nd-h100-v5")]
)
def test_newer_hardware_takes_no_longer_than_what_was_published_of_older(better: str, poorer: str) -> None:
    """On several nodes with the same network, where nobody published times of the newer; but for jumps of these."""
    above, cells = 0, 0
    for nodes in (2, 8):
        times = zip(*(_taken(name, nodes, SIZES[::2]).values() for name in (better, poorer)), strict=True)
        for new, old in times:
            for one, other in zip(new, old, strict=True):
                cells += 1
                above += one.time_s > other.time_s * (1 + 1e-9)
                assert one.time_s <= 1.2 * other.time_s, (one.collective, nodes, one.size)
    assert above <= cells // 20
