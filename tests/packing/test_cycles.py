"""Edge-disjoint Hamiltonian cycles: every edge once, every vertex once per cycle, and the rings of tori that follow."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import assume, given, strategies as st

import blinksim as bs
from blinksim.packing.tree_columns import disjoint_cycles

SIZES = [(3, 3), (4, 4), (3, 5), (4, 6), (5, 7), (3, 16), (8, 8), (3, 3, 3), (4, 4, 4), (2, 2, 2, 2), (32, 32)]


def check(edges: list[tuple[int, int]], count: int, cycles: list[tuple[int, ...]]) -> None:
    for cycle in cycles:
        assert sorted(cycle) == list(range(count))
    used = Counter(frozenset(edge) for cycle in cycles for edge in pairwise((*cycle, cycle[0])))
    assert used == Counter(map(frozenset, edges))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_tori_fall_into_as_many_cycles_as_they_have_dimensions(sizes: tuple[int, ...]) -> None:
    graph = nx.convert_node_labels_to_integers(nx.grid_graph(sizes, periodic=True))
    # A ring of two has two cables.
    doubled: nx.MultiGraph[int] = nx.MultiGraph(graph)
    doubled.add_edges_from(graph.edges if set(sizes) == {2} else [])
    edges, count = list(doubled.edges(keys=False)), graph.number_of_nodes()
    cycles = disjoint_cycles(edges, count)
    assert len(cycles) == len(sizes)
    check(edges, count, cycles)


def test_of_any_graph_all_cycles_or_none() -> None:
    """All of them in most graphs: in every one of higher degree here, and in those of degree two that are one cycle."""
    found = Counter[tuple[bool, bool]]()

    @given(st.integers(3, 12), st.integers(1, 3), st.randoms(use_true_random=False))
    def divided(count: int, half: int, random: object) -> None:
        assume(2 * half < count)
        graph = nx.random_regular_graph(2 * half, count, seed=random)
        cycles = disjoint_cycles(list(graph.edges), count)
        found[half > 1 or nx.is_connected(graph), bool(cycles)] += 1
        if cycles:
            assert len(cycles) == half
            check(list(graph.edges), count, cycles)

    divided()
    assert found[True, True] > 10
    assert found[True, False] == found[False, True] == 0


def test_what_is_not_joined_has_none_and_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 DGX-1 without their adapters: a search took half a minute to end without a cycle."""
    monkeypatch.setattr("blinksim.packing.tree_columns._Merging.cycles", lambda self: [()] * len(self.factors))
    cliques = [(5 * part + a, 5 * part + b) for part in range(2) for a in range(5) for b in range(a)]
    assert disjoint_cycles(cliques, 10) == []
    assert disjoint_cycles(cliques[:10], 5) == [(), ()]


def test_a_graph_that_is_not_regular_has_none() -> None:
    assert disjoint_cycles([(0, 1), (1, 2), (2, 0), (2, 3)], 4) == []
    assert disjoint_cycles([(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)], 6) == []


def test_a_pair_with_more_links_than_all_others_of_its_ranks_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links at a thousandth of the others' rate were thousands of edges, a hundred seconds of search."""
    monkeypatch.setattr("blinksim.algorithms.building.plan.disjoint_cycles", lambda *_: pytest.fail("searched"))
    slow = bs.load("aurora").edit("degrade xe bandwidth=1MB/s").select()
    assert bs.project(slow, "allreduce", "1GiB", algorithm="ring", model="alpha-beta").bound is not None


@pytest.mark.parametrize("machine", ["torus:4x4", "torus:8x8", "torus:4x4x4", "torus:3x7"])
def test_rings_on_tori_use_all_links(machine: str) -> None:
    loaded = bs.load(machine)
    schedule = bs.synthesize(loaded, "allreduce", "ring")
    assert schedule.verdict.ok
    # All ports of every GPU send all the time: nothing is faster.
    assert schedule.gap == 0


def test_a_ring_avoids_a_link_that_is_nearly_dead() -> None:
    loaded = bs.load("torus:5x5", edits=["degrade gpu0-gpu1 bandwidth=1GB/s"])
    found = bs.project(loaded, "allreduce", "256MiB", algorithm="ring")
    assert found.algbw_GBps > 25
