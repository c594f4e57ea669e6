"""Blocks of a traffic matrix that travel together: verified, at the bound, and timed by sums as they are in full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.algorithms import rail_joined
from blinksim.algorithms.registry import REGISTRY
from blinksim.bounds.rails import read_rails
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.packing.rails import choose_places, place_sums
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import StepLoads
from blinksim.timing.alpha_beta import cost
from blinksim.timing.contest import said_once
from blinksim.topology.graph import Topology
from blinksim.traffic import Traffic


def exchange(traffic: Traffic) -> Collective:
    return Collective("alltoallv", traffic=traffic)


def sparse(ranks: int, seed: int = 1) -> Traffic:
    random = np.random.default_rng(seed)
    return Traffic(random.integers(0, 3, (ranks, ranks)) * 997)


@settings(max_examples=3)
@given(st.data())
def test_any_matrix_arrives_joined_at_the_bound(data: st.DataObject) -> None:
    """Followed send by send to where every block belongs."""
    nodes, local = data.draw(st.sampled_from([(2, 2), (2, 3), (3, 2)]))
    machine = bs.load(f"rails:{nodes}x{local}@300GB/s,25GB/s").select()
    entry = st.one_of(st.just(0), st.integers(0, 10), st.integers(0, 10**7))
    rows = [[data.draw(entry) for _ in range(machine.ranks)] for _ in range(machine.ranks)]
    rows[0][-1] += 10**6
    traffic = Traffic(rows)
    schedule = REGISTRY["rail_joined"].build(machine, exchange(traffic))
    verdict = bs.verify(schedule)
    assert verdict.ok, verdict
    place, arrived = schedule.device_of[schedule.origin], np.zeros((machine.ranks, machine.ranks))
    for chunk, src, dst in zip(schedule.chunk, schedule.src, schedule.dst, strict=True):
        assert place[chunk] == src
        place[chunk] = dst
    np.add.at(arrived, (schedule.origin, schedule.rank_of[place]), schedule.share_num / schedule.share_den)
    assert np.rint(arrived * traffic.size).astype(int).tolist() == traffic.matrix.tolist()
    assert schedule.steps <= 3
    assert verdict.facts.rate is not None
    assert 1 - float(verdict.facts.rate / bs.bound(machine, exchange(traffic)).rate) < 1e-3


TREE = "fabric shape=tree planes=8 spine_planes=1 leaf_nodes=2 oversubscription=4"


def machine(name: str, nodes: int, edits: tuple[str, ...]) -> Topology:
    return bs.Question(name, nodes=nodes, edits=edits).part()


@pytest.mark.parametrize(
    ("name", "nodes", "edits", "accurate"),
    [("hgx-h100", 3, (), 1e-9), ("hgx-h100", 3, ("without n1.nic2-fabric2",), 1e-9), ("hgx-h100", 4, (TREE,), 1e-9),
     # Blocks are cut in whole bytes between two ways.
     ("p5.48xlarge", 3, (), 1e-3)],
)  # fmt: skip
def test_sums_take_as_long_as_the_schedule(name: str, nodes: int, edits: tuple[str, ...], accurate: float) -> None:
    part = machine(name, nodes, edits)
    for traffic in (sparse(part.ranks), bs.expert_traffic(part.ranks, tokens=64, skew=0.8)):
        schedule, sums = rail_joined.build(part, exchange(traffic)), rail_joined.symmetric(part, exchange(traffic))
        assert sums is not None
        assert isinstance(sums.timed, StepLoads)
        assert (sums.sends, sums.steps) == (schedule.sends, schedule.steps)
        for size in (2**16, 2**22, 2**28):
            written = cost(Candidate(schedule), size).time_s
            assert cost(sums, size).time_s == pytest.approx(written, rel=accurate)


def test_a_simulation_takes_as_long() -> None:
    part = bs.load("hgx-h100", nodes=3).select()
    traffic = bs.expert_traffic(24, tokens=64, skew=0.8)
    schedule = REGISTRY["rail_joined"].build(part, exchange(traffic))
    for size in (2**16, 2**20):
        assert cost(Candidate(schedule), size).time_s == pytest.approx(bs.simulate(schedule, size).time_s, rel=0.06)


@pytest.mark.parametrize("seed", [1, 2])
def test_sums_are_those_of_the_pieces(seed: int) -> None:
    """Added up piece by piece."""
    rails = read_rails(bs.load("hgx-h100", nodes=3).select())
    assert rails is not None
    units = rails.by_place(sparse(24, seed).matrix)
    pieces, sums = choose_places(rails, units, 0.0), place_sums(rails, units, 0.0)
    before, across = np.zeros((3, 8, 8), dtype=np.int64), np.zeros((3, 3, 8), dtype=np.int64)
    after = before.copy()
    columns = (pieces.a, pieces.i, pieces.k, pieces.b, pieces.j, pieces.amount)
    for a, i, k, b, j, amount in zip(*(column.tolist() for column in columns), strict=True):
        across[a, b, k] += amount
        before[a, i, k] += amount * (i != k)
        after[b, k, j] += amount * (k != j)
    assert np.array_equal(sums.before, before)
    assert np.array_equal(sums.across, across)
    assert np.array_equal(sums.after, after)


def test_thousands_of_ranks_with_a_matrix_are_timed_at_the_bound() -> None:
    """A node that takes in three times as much: its eight adapters are busy all the time."""
    part = bs.load("hgx-h100", nodes=48).select()
    matrix = np.full((384, 384), 2**17)
    matrix[:, 80:88] *= 3
    collective = exchange(Traffic(matrix))
    found = said_once(REGISTRY["rail_joined"], part, collective)
    assert found is not None
    assert isinstance(found.timed, StepLoads)
    size = Traffic(matrix).size
    least = 376 * 8 * 3 * 2**17 / 400e9
    assert least < cost(found, size).time_s < 1.02 * least


def test_what_is_too_large_is_refused_before_it_is_built() -> None:
    entry = REGISTRY["rail_joined"]
    entry.check_size(2048, "alltoallv")
    with pytest.raises(InfeasibleError, match="fewer ranks"):
        entry.check_size(2049, "alltoallv")
