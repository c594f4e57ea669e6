"""The best of those that are timed is the best of all; and as many trees are kept as are quickest."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st
from small_schedules import forests

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import COLLECTIVES, ROOTED, Collective
from blinksim.schedule import loads
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.timing import alpha_beta, contest
from blinksim.timing.alpha_beta import cost, quickest, takes_at_most
from blinksim.timing.contest import fewer_trees, only_chunks, thinner
from blinksim.timing.library_model import Library
from blinksim.timing.model_registry import schedule_model
from blinksim.timing.projection_result import Projection
from blinksim.topology.graph import Topology


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithms tell outlines of any number of sends."""
    monkeypatch.setattr(contest, "_SOLVED", {})
    monkeypatch.setattr(loads, "MANY_SENDS", 0)


def compare(part: Topology, name: str, size: int) -> None:
    """The best of those that are timed is the best of all, and stands among as many."""
    best, ranked = (bs.rank(part, name, size, "alpha-beta", algorithms=which) for which in ("best", "all"))
    assert best.best == ranked.best
    assert [found.to_dict()["considered"] for found in (best, ranked)] == [
        sorted(x.algorithm for x in ranked.projections)
    ] * 2
    assert (best.left_out, best.refused, ranked.slower) == (ranked.left_out, ranked.refused, ())
    times = {found.algorithm: found.time_s for found in ranked.projections}
    assert all(times[slower] > best.best.time_s for slower in best.slower)


@pytest.mark.slow
@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "mi300x", "p5"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_quickest_is_the_quickest_of_all(machine: str, name: str) -> None:
    for nodes in (5,) if name in ROOTED else (5, 8):
        part = bs.Question(machine, nodes=nodes).part()
        for size in (64, 2**16, 2**30):
            compare(part, name, size)


@pytest.mark.parametrize(
    ("machine", "nodes", "collective"),
    [("mi250", 20, "alltoall"), ("aurora", 16, "alltoall"), ("p5", 32, "alltoall"), ("gb200-nvl72", 2, "gather")],
)
def test_sends_to_every_rank_of_some_hundreds_are_among_those_compared(
    machine: str, nodes: int, collective: str
) -> None:
    part = bs.Question(machine, nodes=nodes).part()
    best = bs.rank(part, collective, 2**26, "alpha-beta")
    assert "direct" in best.to_dict()["considered"]
    [direct] = bs.rank(part, collective, 2**26, "alpha-beta", algorithms=["direct"]).projections
    assert best.best.time_s <= direct.time_s


def test_what_a_library_takes_to_send_to_every_rank_grows_no_faster_than_they_do() -> None:
    found = [Library().at(bs.Question("aurora", nodes=nodes)) for nodes in (16, 128)]
    few, many = (model.times(machine, Collective("alltoall"), [2**16])[0].time_s for model, machine in found)
    assert few < many < 1.1 * 8 * few


@given(forests(), st.integers(0, 40))
def test_no_forest_is_quicker_than_its_busiest_link(schedule: Schedule, power: int) -> None:
    for byte_s, start_s, made in thinner(Candidate(schedule)):
        if (fewer := made()) is not None:
            assert 0 < (byte_s * 2**power + start_s).max() <= cost(fewer, 2**power).time_s * (1 + 1e-9)


@pytest.mark.parametrize(("machine", "nodes", "collective"), [("dgx1-v100", 2, "allreduce"), ("mi250", 1, "allreduce")])
def test_as_many_trees_are_kept_as_are_quickest_of_all(machine: str, nodes: int, collective: str) -> None:
    whole = REGISTRY["packed"].parallel(bs.load(machine, nodes=nodes).select(), Collective(collective))
    fewer = thinner(whole)
    every = [whole, *filter(None, (made() for *_, made in fewer))]
    assert len(every) > 9
    for size in (*(4**power for power in range(4, 16)), 10**9):
        quickest = min(cost(some, size).time_s for some in every)
        assert cost(fewer_trees(whole, size), size).time_s == quickest
        for byte_s, start_s, made in fewer:
            one = made()
            assert one is None or max(byte_s * size + start_s) <= cost(one, size).time_s * (1 + 1e-9)


@given(share=st.floats(0, 3))
def test_what_holds_its_links_for_too_long_is_not_timed(share: float) -> None:
    """Only the time says whether a schedule takes so long; where its busiest link does, that is enough."""
    found = REGISTRY["ring"].parallel(bs.load("dgx1-v100").select(), Collective("allreduce"))
    takes, busy = cost(found, 2**26).time_s, 2**26 / float(found.rate or 0)
    with patch.object(alpha_beta, "cost", wraps=cost) as timed:
        assert takes_at_most(found, 2**26, share * busy) == (takes <= share * busy)
    assert timed.called == (share >= 1) or 1 - 1e-6 < share < takes / busy


@given(share=st.floats(0, 0.999))
def test_starts_are_not_added_up_where_bytes_alone_take_longer(share: float) -> None:
    found = REGISTRY["double_binary"].parallel(bs.load("dgx1-v100").select(), Collective("allreduce"))
    with patch.object(alpha_beta, "_clock", side_effect=AssertionError):
        assert not takes_at_most(found, 2**26, share * 2**26 / float(found.rate or 0))


@given(power=st.integers(8, 32))
def test_the_quickest_is_the_first_of_those_that_take_least(power: int) -> None:
    part = bs.load("dgx1-v100").select()
    names = ("double_binary", "ring", "recursive_doubling", "chain", "ring")
    every = [REGISTRY[name].parallel(part, Collective("allreduce")) for name in names]
    assert quickest(every, 2**power) is min(every, key=lambda one: cost(one, 2**power).time_s)


@pytest.mark.parametrize(
    ("machine", "nodes", "lost", "least"), [("trn2", 6, "chip0.3", 0.75), ("mi250", 6, "gpu3", 0.7)]
)
def test_trees_are_packed_where_all_else_leaves_links_idle(machine: str, nodes: int, lost: str, least: float) -> None:
    """Of 95 ranks; others reach less than 0.7 of the bound there. Few bytes would gain nothing by a search."""
    part = bs.load(machine, nodes=nodes, edits=[f"without n0.{lost}"])
    found = bs.rank(part, "broadcast", 2**30, "alpha-beta")
    bound = bs.time_bound(part, "broadcast", 2**30).time_s
    assert found.best.algorithm == "packed"
    assert bound >= least * found.best.time_s
    others = [one.time_s for one in found.projections if one.algorithm != "packed"]
    assert bound < 0.7 * min(others)
    assert "packed" in (bs.rank(part, "broadcast", 64, "alpha-beta").left_out or {})


def test_lost_parts_of_many_nodes_leave_out_nothing_that_has_no_search() -> None:
    """What is by rounds is timed without its sends, of which 2,047 ranks have millions."""
    part = bs.load("hgx-h100", nodes=256, edits=["without n0.gpu3"])
    found = bs.rank(part, "reducescatter", 2**30, "alpha-beta")
    assert {"hierarchical", "hierarchical_direct", "hierarchical_multiplying", "ring"} <= {
        *found.to_dict()["considered"]
    }
    assert found.best.algorithm.startswith("hierarchical")


def test_trees_that_are_slower_for_sure_are_not_written_if_the_quickest_alone_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part, size, written = bs.load("p5en", nodes=2, edits=["without n0.efa0"]).select(), 2**30, Counter[bool]()
    found = dict[bool, Projection]()
    for only_best in (True, False):

        def counted(*given: Any, only_best: bool = only_best) -> Candidate | None:
            written[only_best] += 1
            return only_chunks(*given)

        monkeypatch.setattr("blinksim.timing.contest.only_chunks", counted)
        thinner.cache_clear()
        rivals = schedule_model("alpha-beta").contest(part, Collective("allreduce"), sizes=[size], only_best=only_best)
        found[only_best] = rivals.projections(size, best=True)[0]
    assert found[True] == found[False]
    assert 0 < 2 * written[True] < written[False]
