"""Fronts of events against NetworkX, and what a circle of waits holds up."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given, strategies as st

from blinksim.graphs.arrays import fronts

WAITS = st.integers(1, 40).flatmap(
    lambda events: st.tuples(
        st.just(events), st.lists(st.tuples(st.integers(0, events - 1), st.integers(0, events - 1)), max_size=120)
    )
)


def found(events: int, waits: list[tuple[int, int]]) -> list[set[int]]:
    before, after = (np.array([wait[end] for wait in waits], dtype=np.int64) for end in (0, 1))
    return [set(front.tolist()) for front in fronts(before, after, events)]


@given(WAITS)
def test_fronts_are_the_generations_of_the_graph(case: tuple[int, list[tuple[int, int]]]) -> None:
    """Waits from a smaller number to a larger one hold no circle; some of them are listed several times."""
    events, pairs = case
    waits = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    graph: nx.DiGraph[int] = nx.DiGraph(waits)
    graph.add_nodes_from(range(events))
    assert found(events, waits) == [set(front) for front in nx.topological_generations(graph)]


@given(WAITS)
def test_what_waits_for_a_circle_is_in_no_front(case: tuple[int, list[tuple[int, int]]]) -> None:
    events, waits = case
    graph: nx.DiGraph[int] = nx.DiGraph(waits)
    circles = {
        event
        for part in nx.strongly_connected_components(graph)
        for event in part
        if len(part) > 1 or graph.has_edge(event, event)
    }
    held_up = circles.union(*(nx.descendants(graph, event) for event in circles))
    assert set(range(events)).difference(*found(events, waits)) == held_up
