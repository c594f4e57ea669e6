"""Shards that enter hosts by all ports at once: the exact bound where GPUs limit, two sends from the root."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from ortools.linear_solver import pywraplp  # type: ignore[attr-defined]

import blinksim as bs
from blinksim.algorithms.packed import from_hosts
from blinksim.answers.synthesize import Synthesis
from blinksim.collective import Collective
from blinksim.packing import hosts as shards
from blinksim.packing.hosts import read_hosts, spread, stars
from blinksim.schedule.loads import rate, resource_loads, resources
from blinksim.schedule.verify import verify
from blinksim.topology import shapes

GB = 10**9


@pytest.mark.parametrize(
    ("machine", "nodes", "name"),
    [
        ("hgx-h100", 2, "allreduce"),
        ("hgx-h100", 4, "allgather"),
        ("dgx-a100", 2, "allgather"),
        ("mi300x", 2, "reducescatter"),
    ],
)
def test_two_sends_attain_the_bound_where_gpus_limit(machine: str, nodes: int, name: str) -> None:
    part, collective = bs.load(machine, nodes=nodes).select(), Collective(name)
    best = bs.bound(part, collective).rate
    made = from_hosts(part, collective, best)
    assert made is not None
    assert verify(made).ok
    assert rate(made) == best
    assert Synthesis(made, verify(made), bs.bound(part, collective), 0.0).height == 2


def test_four_adapters_of_a_gpu_take_turns() -> None:
    part = bs.load("p5.48xlarge", nodes=2).select()
    best = bs.bound(part, "allgather").rate
    made = from_hosts(part, Collective("allgather"), best)
    assert made is not None
    assert rate(made) == best
    assert verify(made).ok


@settings(max_examples=8)
@given(st.integers(2, 5), st.integers(2, 5), st.integers(1, 60))
def test_any_rates_of_ports_and_links(nodes: int, local: int, port: int) -> None:
    """Against the exact bound by cuts, which knows no hosts; links have 30 GB/s."""
    part = shapes.rail_cluster(nodes, local, Fraction(30 * GB), nic_bandwidth=Fraction(port * GB)).select()
    best = bs.bound(part, "allgather").rate
    made = from_hosts(part, Collective("allgather"), best)
    assert made is not None
    assert verify(made).ok
    assert rate(made) == best


@settings(max_examples=12)
@given(st.integers(2, 5), st.integers(2, 5), st.integers(1, 60))
def test_the_part_is_what_a_linear_program_finds(nodes: int, local: int, port: int) -> None:
    """The highest rate of any part, by GLOP from the loads of links in schedules of one way each."""
    part = shapes.rail_cluster(nodes, local, Fraction(30 * GB), nic_bandwidth=Fraction(port * GB)).select()
    hosts = read_hosts(part)
    assert hosts is not None
    trees = stars(hosts, 0)
    assert trees is not None
    narrow, wide = spread(hosts, [trees], 0), shards.by_all(hosts)
    assert wide is not None
    most = [float(value) for side in hosts.rates[0] for value in side]
    solver: Any = pywraplp.Solver.CreateSolver("GLOP")
    time, part_by_all = solver.NumVar(0, solver.infinity(), "time"), solver.NumVar(0, 1, "part")
    for rate_of, before, after in zip(most, shards.loads(hosts, narrow), shards.loads(hosts, wide), strict=True):
        solver.Add(float(before) + (float(after) - float(before)) * part_by_all <= rate_of / GB * time)
    solver.Minimize(time)
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    best = Fraction(GB / solver.Objective().Value())
    assert shards.with_many_ports(hosts, narrow, best * Fraction(1001, 1000)) is None
    kept = shards.with_many_ports(hosts, narrow, best * Fraction(999, 1000))
    assert kept is not None
    for member in hosts.shape.members:
        assert sum(weight for root, weight, _, _ in kept if root == member) == 1


def test_loads_are_those_of_the_schedule() -> None:
    """What is said of one host is what the written schedule puts on the links of every host."""
    part = bs.load("mi300x", nodes=3).select()
    best = bs.bound(part, "allgather").rate
    made, hosts = from_hosts(part, Collective("allgather"), best), read_hosts(part)
    assert made is not None
    assert hosts is not None
    trees = stars(hosts, 0)
    assert trees is not None
    narrow = spread(hosts, [trees], 0)
    pieces = shards.with_many_ports(hosts, narrow, best / part.ranks)
    assert pieces is not None
    said = [part.ranks * load for load in resource_loads(made, resources(part))]
    own = resources(part)
    for host in range(hosts.count):
        numbers = np.concatenate([hosts.link[host], hosts.into[host], hosts.outof[host]])
        measured = [said[int(own.members[own.starts[number]])] for number in numbers]
        assert measured == shards.loads(hosts, pieces)
