"""Mixes of columns against maximum flows, and few or equal ones against trying all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, pairwise, product

import networkx as nx
import pytest

import blinksim as bs
from blinksim.errors import InfeasibleError
from blinksim.packing.choose import Limits, equal_shares, fewest, most_whole
from blinksim.packing.columns import Column, Mix, best_mix, find_hops, loads, shortened
from blinksim.packing.tree_columns import cheapest_tree


def network(seed: int) -> nx.DiGraph[int]:
    """A random network from 0 to its last vertex with small whole capacities; arcs are numbered."""
    draw = random.Random(seed)
    count = draw.randint(4, 6)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(count))
    for a in range(count):
        for b in range(count):
            if a != b and draw.random() < 0.55:
                graph.add_edge(a, b, capacity=draw.randint(1, 4), number=graph.number_of_edges())
    return graph


def paths(graph: nx.DiGraph[int]) -> list[Column]:
    return [
        Column(tuple(pairwise(path)), tuple((graph.edges[arc]["number"], 1) for arc in pairwise(path)), len(path))
        for path in nx.all_simple_paths(graph, 0, len(graph) - 1)
    ]


def capacities(graph: nx.DiGraph[int]) -> list[int]:
    return [data["capacity"] for _, _, data in graph.edges(data=True)]


CONNECTED = [seed for seed in range(30) if nx.has_path(network(seed), 0, len(network(seed)) - 1)]


@pytest.mark.parametrize("seed", CONNECTED)
def test_the_best_mix_of_paths_is_a_maximum_flow(seed: int) -> None:
    graph = network(seed)
    listed, capacity = paths(graph), capacities(graph)
    flow = nx.maximum_flow_value(graph, 0, len(graph) - 1)
    mix = best_mix(listed, capacity)
    assert mix.rate == flow
    assert all(load <= capacity[r] for r, load in loads(list(zip(mix.columns, mix.rates, strict=True))).items())

    def price(prices: Sequence[float]) -> list[Column]:
        cost = {(a, b): prices[data["number"]] for a, b, data in graph.edges(data=True)}
        tree = cheapest_tree(cost, 0, (len(graph) - 1,), range(1, len(graph) - 1))
        assert tree is not None
        return [next(column for column in listed if set(column.arcs) == set(tree))]

    assert best_mix(listed[-1:], capacity, price=price).rate == flow


@pytest.mark.parametrize("seed", CONNECTED[:12])
def test_no_smaller_choice_carries_as_much(seed: int) -> None:
    graph = network(seed)
    listed, capacity = paths(graph), capacities(graph)
    mix = best_mix(listed, capacity)
    few = fewest(mix, listed, capacity, mix.rate, Limits())
    assert few.rate == mix.rate
    assert all(load <= capacity[r] for r, load in loads(list(zip(few.columns, few.rates, strict=True))).items())
    smaller = combinations(listed, len(few.columns) - 1)
    assert all(best_mix(chosen, capacity).rate < mix.rate for chosen in smaller if chosen)


@pytest.mark.parametrize("seed", CONNECTED[:12])
def test_whole_and_equal_choices_against_trying_all(seed: int) -> None:
    graph = network(seed)
    listed, capacity = paths(graph)[:5], capacities(graph)

    def peak(counts: Sequence[int]) -> Fraction:
        """The largest load / capacity."""
        chosen = [(c, Fraction(times)) for c, times in zip(listed, counts, strict=True) if times]
        return max(load / capacity[r] for r, load in loads(chosen).items())

    choices = [counts for counts in product(range(5), repeat=len(listed)) if any(counts)]
    counts, proved = most_whole(listed, capacity)
    assert proved
    assert sum(counts) == max(sum(chosen) for chosen in choices if peak(chosen) <= 1)
    best = best_mix(listed, capacity).rate
    rate, counts = equal_shares(listed, capacity, 4, best)
    even = {chosen: sum(chosen) / peak(chosen) for chosen in choices if sum(chosen) <= 4}
    assert rate == max(even.values()) == sum(counts) / peak(counts)
    assert sum(counts) == min(sum(chosen) for chosen, value in even.items() if value == rate)


def test_groups_get_equal_rates() -> None:
    """Two groups share 3 and have 5 and 1 of their own: the second takes all that is shared, and both get 4."""
    shared, first, second = 0, 1, 2
    columns = [
        Column(((0, 1),), ((shared, 1),), group=0),
        Column(((0, 2),), ((first, 1),), group=0),
        Column(((1, 2),), ((shared, 1),), group=1),
        Column(((1, 3),), ((second, 1),), group=1),
    ]
    mix = best_mix(columns, [3, 5, 1], weights=(1, 1))
    totals = [sum(r for c, r in zip(mix.columns, mix.rates, strict=True) if c.group == g) for g in (0, 1)]
    assert totals == [4, 4]
    assert mix.rate == 4
    assert best_mix([*columns, *columns], [3, 5, 1], weights=(1, 1)).rate == 4
    # Twice as much for the second group, which has the shared resource then; or 3 of it, whatever the first has.
    assert best_mix(columns, [3, 5, 1], weights=(1, 2)).rate == 2
    assert best_mix(columns, [3, 5, 1], weights=(1, 9), held={1: Fraction(3)}).rate == 6


def test_awkward_shares_are_rounded_and_still_fit() -> None:
    awkward = Fraction(1, 2**31 - 1)
    columns = tuple(Column(((0, i),), ((i, 1),)) for i in range(3))
    mix = Mix(columns, (1 - awkward, Fraction(1), Fraction(1, 3)), 7 / 3)
    short = shortened(mix, [1, 1, 1])
    assert all(rate <= 1 for rate in short.rates)
    assert 0 <= mix.rate - short.rate < Fraction(1, 10**6)
    assert max((rate / short.rate).denominator for rate in short.rates) <= 2**24
    plain = Mix(columns, (Fraction(1), Fraction(1), Fraction(1, 3)), 7 / 3)
    assert shortened(plain, [1, 1, 1]) is plain


def test_no_time_means_the_mix_as_it_was() -> None:
    graph = network(CONNECTED[0])
    mix = best_mix(paths(graph), capacities(graph))
    assert fewest(mix, paths(graph), capacities(graph), mix.rate, Limits(effort=0.0)) == mix


@pytest.mark.parametrize("seed", range(30))
def test_a_spanning_tree_of_least_price(seed: int) -> None:
    """Used both ways, against Kruskal's tree by NetworkX; some pairs are not joined, and some prices are equal."""
    draw, count = random.Random(seed), 3 + seed % 5
    edges = {(a, b): draw.randint(1, 4) for a in range(count) for b in range(a) if draw.random() < 0.7}
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_weighted_edges_from((a, b, price) for (a, b), price in edges.items())
    price = {arc: float(cost) for (a, b), cost in edges.items() for arc in ((a, b), (b, a))}
    tree = cheapest_tree(price, 0, range(count))
    assert (tree is not None) == nx.is_connected(graph)
    if tree is not None:
        assert sum(price[arc] for arc in tree) == nx.minimum_spanning_tree(graph).size(weight="weight")
        assert nx.is_arborescence(nx.DiGraph(tree))


def test_no_pair_is_not_every_pair() -> None:
    """Without pairs named all count; of an empty set none does, and nothing is joined."""
    machine = bs.load("dgx1-v100")
    joined = set(find_hops(machine).routes)
    assert len(joined) == 8 * 7
    few = set(sorted(joined)[:3])
    assert set(find_hops(machine, only=few).routes) == few
    with pytest.raises(InfeasibleError, match="no link joins"):
        find_hops(machine, only=set())
