"""Bounds and schedules of alltoallv: against another program and solver, and against what must not change them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from ortools.linear_solver import pywraplp  # type: ignore[attr-defined]
from strategies import renamed, topologies

import blinksim as bs
from blinksim.algorithms import few_rounds, few_steps
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.topology.graph import Topology
from blinksim.traffic import Traffic

GB = 10**9


@st.composite
def matrices(draw: st.DrawFn, ranks: int) -> Traffic:
    """Sparse and skewed: mostly small numbers, some zero, some large."""
    entry = st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 10**9))
    rows = [[draw(entry) for _ in range(ranks)] for _ in range(ranks)]
    rows[0][1] += 1
    return Traffic(rows)


def exchange(traffic: Traffic) -> Collective:
    return Collective("alltoallv", traffic=traffic)


def greatest_flow(machine: Topology, traffic: Traffic) -> float:
    """algbw in bytes/s by a flow for every pair of ranks (the library has one for every source), and by CLP."""
    solver: Any = pywraplp.Solver.CreateSolver("CLP")
    rate = solver.NumVar(0, solver.infinity(), "rate")
    used: dict[str, list[Any]] = {link.name: [] for link in machine.links}
    for i, start in enumerate(machine.members):
        for j, end in enumerate(machine.members):
            amount = int(traffic.matrix[i, j])
            if i == j or not amount:
                continue
            flow = {link.name: solver.NumVar(0, solver.infinity(), "") for link in machine.links}
            for device in machine.devices:
                into = sum(flow[link.name] for link in machine.links if link.dst == device.name)
                out = sum(flow[link.name] for link in machine.links if link.src == device.name)
                due = rate * (amount / traffic.size) * ((device.name == start) - (device.name == end))
                solver.Add(out - into == due)
            for name, variable in flow.items():
                used[name].append(variable)
    buses: dict[str, list[Any]] = {}
    for link in machine.links:
        buses.setdefault(link.bus or link.name, []).append(
            sum(used[link.name]) * (1 / (float(link.bandwidth) / GB)) if used[link.name] else 0
        )
    for terms in buses.values():
        solver.Add(sum(terms) <= 1)
    solver.Maximize(rate)
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return float(rate.solution_value()) * GB


@settings(max_examples=12)
@given(st.data())
def test_the_bound_is_what_another_solver_finds(data: st.DataObject) -> None:
    machine = data.draw(topologies(max_devices=5)).select()
    traffic = data.draw(matrices(machine.ranks))
    found = bs.bound(machine, exchange(traffic))
    assert float(found.rate) == pytest.approx(greatest_flow(machine, traffic), rel=1e-6)
    assert found.headline.check(machine, exchange(traffic)) == []
    made = bs.synthesize(machine, exchange(traffic))
    assert made.verdict.ok
    assert made.gap is not None
    assert 0 <= made.gap < Fraction(1, 10**6)


@settings(max_examples=15)
@given(st.data())
def test_names_order_and_scale_do_not_matter(data: st.DataObject) -> None:
    machine = data.draw(topologies(max_devices=5)).select()
    traffic = data.draw(matrices(machine.ranks))
    rate = bs.bound(machine, exchange(traffic)).rate
    other, _ = data.draw(renamed(machine))
    assert bs.bound(other, exchange(traffic)).rate == rate
    order = data.draw(st.permutations(range(machine.ranks)))
    turned = machine.select([machine.members[rank] for rank in order])
    assert bs.bound(turned, exchange(Traffic(traffic.matrix[np.ix_(order, order)]))).rate == rate
    tripled = Traffic(traffic.matrix * 3)
    assert bs.bound(machine, exchange(tripled)).time(tripled.size) == pytest.approx(3 * float(traffic.size / rate))


@pytest.mark.parametrize(("name", "nodes"), [("dgx1-v100", 1), ("hgx-h100", 2), ("torus:4x4", 1), ("mi250", 1)])
def test_equal_blocks_are_an_alltoall(name: str, nodes: int) -> None:
    machine = bs.load(name, nodes=nodes).select()
    traffic = Traffic.uniform(machine.ranks, 1000 * machine.ranks)
    assert bs.bound(machine, exchange(traffic)).rate == bs.bound(machine, "alltoall").rate
    assert bs.synthesize(machine, exchange(traffic), "direct").rate == bs.synthesize(machine, "alltoall", "direct").rate


@given(st.permutations(range(6)), st.lists(st.integers(1, 10**6), min_size=6, max_size=6))
@settings(max_examples=15)
def test_one_switch_takes_the_largest_sum_of_a_row_or_column(order: list[int], amounts: list[int]) -> None:
    """Birkhoff: behind one switch a matrix takes as long as its busiest port."""
    matrix = np.zeros((6, 6), dtype=np.int64)
    matrix[np.arange(6), order] = amounts
    matrix += np.roll(matrix, 1, axis=1)
    np.fill_diagonal(matrix, 0)
    traffic = Traffic(matrix)
    found = bs.bound("switch:6@25GB/s", exchange(traffic))
    assert found.rate == 25 * GB
    assert found.headline.exact
    made = bs.synthesize("switch:6@25GB/s", exchange(traffic), "direct")
    assert made.gap == 0
    assert made.verdict.ok


@settings(max_examples=10)
@given(st.data())
def test_runs_leave_every_rank_with_its_blocks(data: st.DataObject) -> None:
    """NumPy carries the schedule out on real data; what must arrive follows from the matrix alone."""
    machine = bs.load(
        data.draw(st.sampled_from(["full:3@25GB/s", "rails:2x2@50GB/s,25GB/s", "ring:4@25GB/s"]))
    ).select()
    traffic = data.draw(matrices(machine.ranks))
    name = "rail_aligned" if machine.nodes > 1 else data.draw(st.sampled_from(["direct", "packed"]))
    made = bs.synthesize(machine, exchange(traffic), name)
    size = 4 * data.draw(st.integers(1, 5000))
    assert bs.execute(made, size, check=True).ok


def test_no_compromise_beats_the_bound() -> None:
    machine = bs.load("ring:4@25GB/s").select()
    traffic = Traffic(np.arange(16).reshape(4, 4))
    rate = bs.bound(machine, exchange(traffic)).rate
    found = bs.pareto(machine, exchange(traffic), seconds=0.1)
    assert all(point.bandwidth <= float(rate) * (1 + 1e-12) for point in found.points)
    for search in (few_steps.find, partial(few_rounds.build, size=1 << 20)):
        with pytest.raises(InfeasibleError, match="take packed"):
            search(machine, exchange(traffic))


def test_a_wrong_block_is_found() -> None:
    machine = bs.load("switch:4@25GB/s").select()
    traffic = Traffic(np.arange(16).reshape(4, 4))
    schedule = bs.synthesize(machine, exchange(traffic), "direct").schedule
    other = Traffic(np.arange(16).reshape(4, 4) + np.eye(4, k=1, dtype=int))
    wrong = bs.verify(replace(schedule, collective=exchange(other), bound={}))
    assert not wrong
    assert any("rank 0 has" in reason or "add up" in reason for reason in wrong.reasons)


def test_simulated_and_projected_times_keep_the_bound() -> None:
    machine = bs.load("hgx-h100", nodes=2).select()
    traffic = bs.expert_traffic(16, tokens=2000, skew=0.8)
    least = bs.bound(machine, exchange(traffic)).time(traffic.size)
    made = bs.synthesize(machine, exchange(traffic))
    simulated = bs.simulate(made.schedule, traffic.size)
    projected = bs.project(machine, exchange(traffic), traffic.size, algorithm="best")
    assert least <= simulated.time_s <= 1.1 * least
    assert least <= projected.time_s <= 1.1 * least


def test_what_is_bounded_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A token for two ranks of another node: as blocks it crosses twice, and a broadcast of the same bytes once."""
    machine = bs.load("rails:2x2@100GB/s,10GB/s")
    traffic = Traffic([[0, 0, 10**7, 10**7], [0] * 4, [0] * 4, [0] * 4])
    found = bs.bound(machine, exchange(traffic))
    copied = bs.bound(machine, "broadcast")
    assert copied.headline.exact
    assert copied.time(10**7) < found.time(traffic.size)
    assert {entry.assumes for entry in found.bounds} == {"the blocks of the matrix share no data"}
    least = bs.project(machine, exchange(traffic)).least
    assert least is not None
    assert least.assumes == "the blocks of the matrix share no data"
    path = tmp_path / "t.csv"
    bs.write_traffic(traffic, path)
    for line in (["bound", "switch:4", "alltoallv", "--traffic", str(path), "--size", "1MiB"], ["traffic", str(path)]):
        assert run(line) == 0
        out = capsys.readouterr().out
        assert "floor is lower" in out
        assert "holds for every schedule" not in out
