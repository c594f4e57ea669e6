"""What is worked out once for all that symmetries take it to: the very answers of working it out for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from strategies import clusters_with_nics

import blinksim as bs
from blinksim.bounds import compute, quick
from blinksim.collective import Collective
from blinksim.schedule import candidate, loads
from blinksim.timing.contest import ceiling_of
from blinksim.topology import symmetry
from blinksim.topology.graph import Topology

ALGORITHMS = ("ring", "chain", "chain_tree", "double_binary", "halving_doubling", "hierarchical", "packed")
NEVER = 10**9
ODD = {
    "all alike": (),
    "a slow NIC": ("degrade n1.nic0-fabric0 bandwidth=10GB/s",),
    "a dead GPU": ("without n1.gpu3",),
    "a dead node": ("without n1.gpu[0-7]",),
    "slower links": ("replace nvlink latency=3us",),
}


@contextmanager
def one_by_one() -> Iterator[None]:
    """No table of a cluster from those of a node, no route and no way from those of another pair."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetry, "_MANY_PAIRS", NEVER)
        patch.setattr(loads, "_MANY_ROUTES", NEVER)
        yield


@contextmanager
def by_symmetry() -> Iterator[None]:
    """All of these from two pairs on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetry, "_MANY_PAIRS", 1)
        patch.setattr(loads, "_MANY_ROUTES", 1)
        yield


def answers(
    part: Topology, collective: str, algorithms: Iterable[str] = ALGORITHMS
) -> tuple[Fraction, str, dict[str, float | str]]:
    """The ceiling and why it holds, and the time of every algorithm, or why it cannot run."""
    candidate._cache.clear()
    for known in (quick.tightest_by_sums, quick.quick_bound, compute.best_known, compute._bounds):
        known.cache_clear()
    ceiling = ceiling_of(part, Collective(collective))
    found: dict[str, float | str] = {}
    for name in algorithms:
        try:
            found[name] = bs.project(part, collective, "64MiB", algorithm=name, model="alpha-beta").time_s
        except bs.BlinksimError as error:
            found[name] = str(error)
    return ceiling.rate, ceiling.words, found


def check(
    name: str, nodes: int, edits: tuple[str, ...], collective: str, algorithms: Iterable[str] = ALGORITHMS
) -> None:
    with one_by_one():
        expected = answers(bs.load(name, nodes=nodes, edits=edits).select(), collective, algorithms)
    with by_symmetry():
        assert answers(bs.load(name, nodes=nodes, edits=edits).select(), collective, algorithms) == expected


def test_a_small_cluster_with_a_slow_port() -> None:
    check("dgx-a100", 3, ODD["a slow NIC"], "allreduce", ("double_binary",))


@pytest.mark.slow
@pytest.mark.parametrize("edits", ODD.values(), ids=list(ODD))
@pytest.mark.parametrize(("name", "nodes"), [("hgx-h100", 9), ("dgx-a100", 2)])
def test_clusters(name: str, nodes: int, edits: tuple[str, ...]) -> None:
    for collective in ("allreduce", "allgather"):
        check(name, nodes, edits, collective)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes"), [("gb200-nvl72", 3), ("aurora", 8), ("dgx1-v100", 6)])
def test_other_clusters(name: str, nodes: int) -> None:
    check(name, nodes, (), "allreduce")


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "edits"), [(64, "a slow NIC"), (128, "all alike")])
def test_hundreds_of_ranks(nodes: int, edits: str) -> None:
    """Up to 1,024 GPUs, by what takes seconds pair by pair."""
    check("hgx-h100", nodes, ODD[edits], "allreduce", ("double_binary", "chain"))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(machine=clusters_with_nics(), collective=st.sampled_from(["allreduce", "allgather", "broadcast"]))
def test_random_clusters(machine: Topology, collective: str) -> None:
    with one_by_one():
        expected = answers(replace(machine), collective)
    with by_symmetry():
        assert answers(replace(machine), collective) == expected
