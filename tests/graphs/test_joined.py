"""What pairs join against the connected components of NetworkX."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, strategies as st

from blinksim.graphs.connectivity import grouped, joined


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60))
def test_joined_items_are_one_component(pairs: list[tuple[int, int]]) -> None:
    graph: nx.Graph[int] = nx.Graph(pairs)
    graph.add_nodes_from(range(31))
    first = joined(range(31), pairs)
    groups = grouped((one, item) for item, one in first.items())
    assert list(groups.values()) == sorted(map(sorted, nx.connected_components(graph)))
    assert all(one == items[0] for one, items in groups.items())


def test_items_that_stand_twice_are_one() -> None:
    assert joined([3, 1, 3, 2], [(2, 3)]) == {3: 3, 1: 1, 2: 3}
