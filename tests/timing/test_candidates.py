"""What ``best`` considers: no named algorithm beats it by more than the 1 % that it may give up."""

from __future__ import annotations

from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.answers.project import rank
from blinksim.collective import Collective
from blinksim.machines import Question
from blinksim.schedule.loads import rate
from blinksim.timing.model_registry import schedule_model
from blinksim.topology.graph import Topology

MACHINES = Path(__file__).parents[1] / "data" / "machines"


def best(machine: Topology, size: str) -> bs.Projection:
    return bs.project(machine, "allreduce", size, algorithm="best")


@pytest.mark.parametrize(
    ("machine", "edits"), [("torus:4x4", []), ("torus:4x4", ["degrade gpu0-gpu1 bandwidth=10GB/s"]), ("dgx1-v100", [])]
)
@pytest.mark.slow
def test_nothing_that_is_named_beats_the_default(machine: str, edits: list[str]) -> None:
    loaded = bs.load(machine, edits=edits)
    found = best(loaded, "256MiB").time_s
    for name in ("ring", "packed", "chains", "two_shot", "mxnet", "chain_tree"):
        assert found <= bs.project(loaded, "allreduce", "256MiB", algorithm=name).time_s * 1.01


@pytest.mark.parametrize(
    ("machine", "nodes", "size"),
    [("hgx-h100", 2, "1MiB"), ("dgx-a100", 2, "64KiB"), ("dgx1-p100", 1, "64KiB"), ("p3.16xlarge", 4, "64KiB")],
)
def test_blinks_three_phases_are_considered_for_small_messages(machine: str, nodes: int, size: str) -> None:
    loaded = bs.load(machine, nodes=nodes)
    named = bs.project(loaded, "allreduce", size, algorithm="blink_hierarchical")
    assert best(loaded, size).time_s <= named.time_s * 1.01


@pytest.mark.slow
def test_p5_answers_over_all_nics() -> None:
    question = Question(str(MACHINES / "p5.yaml"), nodes=64)
    rate, model = float(bs.bound(question.part(), "allreduce").rate), schedule_model("alpha-beta")
    assert rank(question, Collective("allreduce"), 2**34, model).best.algbw >= 0.97 * rate
    found = rank(question, Collective("allreduce"), 2**36, model)
    # Trees have a long way to fill, in pieces that 32 adapters share: 97 %.
    assert found.best.algorithm == "hierarchical_direct"
    assert found.best.algbw >= 0.99 * rate
    answer = found.to_dict()
    assert "packed" in answer["considered"]
    assert "rings" in answer["left_out"]
    assert "left out" in found.text()


def test_what_is_left_out_and_what_is_considered_are_all() -> None:
    contest = bs.contest("dgx1-v100", "allreduce")
    every = {*contest.candidates, *contest.refused, *contest.left_out}
    from blinksim.algorithms.registry import REGISTRY

    assert every == {name for name, entry in REGISTRY.items() if entry.supports("allreduce") and not entry.in_network}


@pytest.mark.parametrize("nodes", [2, 8])
def test_the_projection_counts_every_nic_of_a_gpu(nodes: int) -> None:
    times = [
        bs.project(bs.load(str(MACHINES / name), nodes=nodes), "allreduce", "2GiB", model="projection").time_s
        for name in ("p5.yaml", "p5b.yaml")
    ]
    assert times[0] == pytest.approx(times[1])


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_trees_that_attain_the_bound_below_an_oversubscribed_fabric_are_low(collective: str) -> None:
    """They were up to 30 sends high, and few low trees near the bound quicker; no size takes others now."""
    part = bs.load(MACHINES / "hgx-h100-2to1.yaml", nodes=4).select(None)
    exact = bs.synthesize(part, collective)
    assert exact.gap == 0
    assert exact.height <= 3
    for size in (2**20, 2**26, 2**30):
        found = bs.contest(part, collective, ["packed"], sizes=[size])
        [chosen] = found.projections(size)
        [attains] = bs.contest(part, collective, [exact.schedule], sizes=[size]).projections(size)
        assert chosen.time_s <= attains.time_s
        schedule = found.schedules["packed"]
        assert bs.verify(schedule).ok
        assert (rate(schedule) or 0) >= Fraction(99, 100) * exact.bound.rate


def test_a_search_that_nobody_asked_for_ends_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """On clusters of uneven nodes a search may take hours."""
    part = bs.load("dgx1-v100").select([1, 2, 3, 5, 6])

    def endless(*_: object) -> None:
        while True:
            sum(range(1000))

    monkeypatch.setattr("blinksim.algorithms.packed.build", endless)
    monkeypatch.setattr("blinksim.timing.contest._SEARCH_S", 0.05)
    # What other tests have built is forgotten.
    monkeypatch.setattr("blinksim.schedule.candidate._cache", OrderedDict())
    found = bs.contest(part, "allgather")
    assert "no schedule within 0.05 s" in found.refused["packed"]
    assert {"ring", "direct"} <= found.candidates.keys()


@settings(max_examples=12)
@given(
    st.sampled_from(["dgx1-v100", "torus:3x3", "frontier", "aurora"]),
    st.sampled_from(["allreduce", "alltoall", "broadcast"]),
    st.integers(10, 31),
)
def test_what_is_slower_for_sure_is_not_timed_and_the_quickest_stays(machine: str, collective: str, power: int) -> None:
    """Where only the quickest is asked for; what is asked for beside it is timed as well."""
    few, every = (bs.contest(machine, collective, only_best=only) for only in (True, False))
    found, size = every.answers(2**power), 2**power
    timed, slowest = few.answers(size, best=True), found[-1].algorithm
    assert (timed[0].algorithm, timed[0].time_s) == (found[0].algorithm, found[0].time_s)
    missing = {one.algorithm for one in found} - {one.algorithm for one in timed}
    assert {one.algorithm for one in found if one.time_s > 30 * found[0].time_s} <= missing
    assert all(one.time_s > timed[0].time_s for one in found if one.algorithm in missing)
    beside = few.answers(size, best=True, beside=[slowest])
    assert slowest in {one.algorithm for one in beside}
    assert beside[0].algorithm == timed[0].algorithm


def test_what_is_not_timed_is_considered_all_the_same() -> None:
    found = rank(Question("aurora"), Collective("allreduce"), 2**12, schedule_model("alpha-beta"))
    assert found.slower
    assert {*found.to_dict()["considered"]} == bs.contest("aurora", "allreduce").candidates.keys()
