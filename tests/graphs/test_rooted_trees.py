"""Trees as arcs, against NetworkX on random trees."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given, strategies as st

from blinksim.graphs.rooted_trees import centre, cheapest_parents, depths, from_parents, height, hung_from, longest_path

# The parent of each vertex from 1 on is an earlier one: every tree, with some numbering.
PARENTS = st.lists(st.integers(0, 10**6), max_size=14).map(
    lambda drawn: {child: value % child for child, value in enumerate(drawn, start=1)}
)


def graph_of(parents: dict[int, int]) -> nx.Graph[int]:
    graph: nx.Graph[int] = nx.Graph()
    graph.add_node(0)
    graph.add_edges_from(parents.items())
    return graph


@given(PARENTS)
def test_depths_and_height(parents: dict[int, int]) -> None:
    arcs = from_parents(parents, 0)
    far = nx.single_source_shortest_path_length(graph_of(parents), 0)
    assert {child: parent for parent, child in arcs} == parents
    assert depths(0, arcs) == dict(far)
    assert depths(0, arcs, 3) == {vertex: 3 + count for vertex, count in far.items()}
    assert height(0, arcs) == max(far.values())


@given(PARENTS.filter(bool))
def test_centre_and_longest_path(parents: dict[int, int]) -> None:
    arcs, graph = from_parents(parents, 0), graph_of(parents)
    path = longest_path(arcs)
    assert nx.is_path(graph, path)
    assert len(set(path)) == len(path) == nx.diameter(graph) + 1
    assert centre(arcs) in nx.center(graph)


@given(PARENTS, st.integers(0, 100))
def test_hung_from_another_vertex(parents: dict[int, int], number: int) -> None:
    graph = graph_of(parents)
    root = number % len(graph)
    arcs = hung_from(root, from_parents(parents, 0))
    assert sorted(map(sorted, arcs)) == sorted(map(sorted, graph.edges))
    assert depths(root, arcs) == dict(nx.single_source_shortest_path_length(graph, root))


def test_a_single_vertex() -> None:
    assert longest_path(()) == []
    assert height(4, ()) == 0
    assert hung_from(4, ()) == from_parents({}, 4) == ()


@given(st.integers(1, 9), st.integers(0, 2**32), st.integers(1, 30))
def test_trees_are_cheapest(count: int, seed: int, most: int) -> None:
    cost = np.random.default_rng(seed).integers(0, most, (count, count))
    root = seed % count
    parents = cheapest_parents(cost, root)
    arcs = [(above, vertex) for vertex, above in enumerate(parents) if vertex != root]
    graph: nx.DiGraph[int] = nx.DiGraph(arcs)
    graph.add_node(root)
    assert parents[root] == root
    assert nx.is_arborescence(graph) or count == 1
    assert all(nx.has_path(graph, root, vertex) for vertex in range(count))
    whole: nx.DiGraph[int] = nx.DiGraph()
    whole.add_nodes_from(range(count))
    whole.add_weighted_edges_from(
        (i, j, int(cost[i, j])) for i in range(count) for j in range(count) if i != j and j != root
    )
    best = nx.minimum_spanning_arborescence(whole).size(weight="weight") if count > 1 else 0
    assert sum(int(cost[a, b]) for a, b in arcs) == best
