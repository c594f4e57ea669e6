"""Disjoint sets against the connected components of NetworkX."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, strategies as st

from blinksim.graphs.connectivity import UnionFind


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60))
def test_joined_items_are_one_component(pairs: list[tuple[int, int]]) -> None:
    joined = UnionFind(range(31))
    parted = sum(joined.join(a, b) for a, b in pairs)
    graph: nx.Graph[int] = nx.Graph(pairs)
    graph.add_nodes_from(range(31))
    assert 31 - parted == nx.number_connected_components(graph)
    components = [sorted(component) for component in nx.connected_components(graph)]
    assert joined.sets() == sorted(components)
    for component in components:
        assert len({joined.find(item) for item in component} & set(component)) == 1


def test_the_second_of_two_sets_gives_the_name() -> None:
    joined = UnionFind("abc")
    joined.join("a", "b")
    assert (joined.find("a"), joined.find("c")) == ("b", "c")
    joined.join("c", "a")
    assert joined.sets() == [["a", "b", "c"]]
    assert joined.find("c") == "b"
