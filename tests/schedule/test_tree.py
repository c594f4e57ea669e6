"""Trees that go into a schedule come out again; their heights and loads agree with NetworkX and with the sends."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import networkx as nx
import pytest

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.machines import load
from blinksim.schedule.loads import Tree, resource_loads, resources, trees_of

HALF = Fraction(1, 2)


def test_trees_come_out_as_they_went_in() -> None:
    machine = load("full:4@10GB/s").select()
    link = {(machine.index[one.src], machine.index[one.dst]): number for number, one in enumerate(machine.links)}

    def edges(*arcs: tuple[int, int], up: bool = False) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        return tuple((a, b, (link[b, a] if up else link[a, b],)) for a, b in arcs)

    chain, star = ((1, 0), (0, 2), (2, 3)), ((3, 0), (3, 1), (3, 2))
    trees = [Tree(1, HALF, edges(*chain), edges(*chain, up=True)), Tree(3, HALF, edges(*star), edges(*star, up=True))]
    plan = Plan(machine, Collective("allreduce"), "by hand", "forest")
    plan.add_trees(trees)
    found = trees_of(plan.finish())
    assert [tree.height for tree in found] == [3, 1]
    for tree, expected in zip(found, trees, strict=True):
        assert (tree.root, tree.share) == (expected.root, expected.share)
        assert (sorted(tree.down), sorted(tree.up)) == (sorted(expected.down), sorted(expected.up))


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"])
@pytest.mark.parametrize("machine", ["dgx1-v100", "switch:5@10GB/s", "torus:3x3@10GB/s"])
def test_heights_and_loads(machine: str, collective: str) -> None:
    schedule = REGISTRY["packed"].build(load(machine).select(), Collective(collective))
    shared = resources(schedule.topology)
    carried: Counter[int] = Counter()
    for tree in trees_of(schedule):
        tallest = 0
        for edges in (tree.down, tree.up):
            if edges:
                graph = nx.DiGraph([(a, b) for a, b, _ in edges])
                assert nx.is_arborescence(graph)
                tallest = max(tallest, *nx.single_source_shortest_path_length(graph, tree.root).values())
        assert tree.height == tallest
        for resource, times in tree.loads(shared):
            carried[resource] += times * tree.share  # type: ignore[assignment]
    assert [carried[number] for number in range(len(shared.rate))] == list(resource_loads(schedule, shared))


@pytest.mark.parametrize("name", ["ring", "double_binary", "packed"])
def test_links_know_their_chunks(name: str) -> None:
    """Against the names of the links that every send's row lists."""
    schedule = REGISTRY[name].build(load("dgx1-v100").select(["gpu0", "gpu1", "gpu2", "gpu5"]), Collective("allreduce"))
    carried = {link.name: set[int]() for link in schedule.topology.links}
    for row in schedule.rows():
        for link in row["links"].split(", "):
            carried[link].add(row["chunk"])
    assert schedule.chunks_by_link() == carried
    assert any(carried.values())
