"""Trees of one root turned to all others: against cuts and distances of NetworkX, and where vertices differ."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from proved_gaps import gap

from blinksim.algorithms.packed import build
from blinksim.collective import Collective
from blinksim.graphs.rooted_trees import RootedTree
from blinksim.machines import load
from blinksim.packing.forest import regular_group, trees_of_first
from blinksim.schedule.loads import trees_of
from blinksim.schedule.verify import verify


class Arcs(NamedTuple):
    """Arc i goes from tail[i] to head[i] with capacity[i]; all vertices are members."""

    tail: npt.NDArray[np.int64]
    head: npt.NDArray[np.int64]
    capacity: tuple[Fraction, ...]
    members: range


def circulant(count: int, steps: dict[int, int]) -> Arcs:
    """A circle with an arc from every vertex to those some steps ahead, of the given capacities."""
    arcs = [(a, (a + step) % count, Fraction(c)) for a in range(count) for step, c in steps.items()]
    tail, head = (np.array([arc[i] for arc in arcs], dtype=np.int64) for i in (0, 1))
    return Arcs(tail, head, tuple(c for _, _, c in arcs), range(count))


def turns(count: int) -> npt.NDArray[np.int64]:
    """All turns of a circle, row v the one that takes 0 to v."""
    return np.add.outer(np.arange(count), np.arange(count)) % count


def packed_on(arcs: Arcs, rate: Fraction) -> tuple[list[RootedTree], Fraction] | None:
    """The images of the first vertex's trees under all turns, and how many trees there are for a rate of 1."""
    group, tail, head = turns(len(arcs.members)), arcs.tail.tolist(), arcs.head.tolist()
    ends = {b: capacity for a, b, capacity in zip(tail, head, arcs.capacity, strict=True) if a == 0}
    found = trees_of_first(group[:, list(ends)], list(ends.values()), rate)
    if found is None:
        return None
    trees = [
        RootedTree(root, amount, tuple(zip(image[parents].tolist(), image[children].tolist(), strict=True)))
        for root, image in enumerate(group)
        for parents, children, amount in found[0]
    ]
    return trees, found[1] / rate


def graph_of(arcs: Arcs) -> nx.DiGraph[int | str]:
    graph: nx.DiGraph[int | str] = nx.DiGraph()
    for a, b, c in zip(arcs.tail.tolist(), arcs.head.tolist(), arcs.capacity, strict=True):
        graph.add_edge(a, b, capacity=c)
    return graph


def height(graph: nx.DiGraph[int | str], root: int) -> int:
    return max(nx.single_source_shortest_path_length(graph, root).values())


def holds(arcs: Arcs, rate: Fraction) -> bool:
    """True if every vertex can receive `rate` from each (Edmonds 1973), by NetworkX."""
    graph = graph_of(arcs)
    graph.add_edges_from((("source", vertex) for vertex in arcs.members), capacity=rate)
    return all(nx.maximum_flow_value(graph, "source", vertex) >= rate * len(arcs.members) for vertex in arcs.members)


def test_random_circles() -> None:
    """Trees span, are as low as distances allow, and carry the rate; more than a port's share never fits."""
    rng = random.Random(5)
    packed = 0
    for _ in range(60):
        count = rng.randint(3, 12)
        steps = {step: rng.randint(1, 4) for step in {1, *rng.sample(range(1, count), rng.randint(1, count - 1))}}
        arcs = circulant(count, steps)
        rate = Fraction(sum(steps.values()), count - 1)
        assert not holds(arcs, rate * Fraction(100, 99))
        found = packed_on(arcs, rate)
        if found is None:
            continue
        packed += 1
        assert holds(arcs, rate)
        trees, scale = found
        load, sent = Counter[tuple[int, int]](), Counter[int]()
        far = height(graph_of(arcs), 0)
        for tree in trees:
            made: nx.DiGraph[int | str] = nx.DiGraph(tree.edges)
            assert nx.is_arborescence(made)
            assert set(made) == set(range(count))
            assert height(made, tree.root) == far
            load.update(dict.fromkeys(tree.edges, tree.amount))
            sent[tree.root] += tree.amount
        assert set(sent.values()) == {rate * scale}
        for a, b, c in zip(arcs.tail.tolist(), arcs.head.tolist(), arcs.capacity, strict=True):
            assert load.pop((a, b), 0) <= c * scale
        assert not load
    assert packed > 15


def test_trees_that_would_have_to_be_taller() -> None:
    """Every second vertex is nearest over the narrow step of two: the lowest trees do not hold the rate."""
    arcs = circulant(6, {1: 9, 2: 1})
    rate = Fraction(10, 5)
    assert holds(arcs, rate)
    assert packed_on(arcs, rate) is None


@pytest.mark.parametrize("name", ["ring:7", "torus:4x3x2", "torus:4x4", "hypercube:4", "full:6"])
def test_regular_groups(name: str) -> None:
    """Closed, each vertex taken to each by one element, and all elements symmetries."""
    machine = load(name).selected()
    count = len(machine.devices)
    group = regular_group(machine)
    assert group is not None
    rows = {tuple(row) for row in group.tolist()}
    assert len(rows) == count
    assert all(sorted(column) == list(range(count)) for column in group.T.tolist())
    assert all(tuple(one[other].tolist()) in rows for one in group for other in group)
    links = {(machine.index[link.src], machine.index[link.dst]) for link in machine.links}
    assert all({(int(turned[a]), int(turned[b])) for a, b in links} == links for turned in group)


def test_no_regular_group() -> None:
    assert regular_group(load("mesh:3x3").selected()) is None


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
@pytest.mark.parametrize(
    ("name", "diameter"), [("torus:5x4", 4), ("hypercube:5", 5), ("ring:9", 4), ("torus:3x4x2", 4)]
)
def test_schedules_attain_the_bound_at_the_diameter(name: str, diameter: int, collective: str) -> None:
    schedule = build(load(name).selected(), Collective(collective))
    assert verify(schedule).reasons == ()
    assert gap(schedule) == "0"
    for tree in trees_of(schedule):
        assert height(nx.DiGraph((a, b) for a, b, _ in (tree.down or tree.up)), tree.root) == diameter
