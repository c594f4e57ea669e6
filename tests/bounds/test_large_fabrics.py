"""Clusters of hundreds of nodes below fabrics of every shape: bounds by hand arithmetic, and schedules near them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import networkx as nx
import pytest

import blinksim as bs
from blinksim.collective import Collective
from blinksim.timing.contest import ceiling_of, least_time_of
from blinksim.topology.elements import Level
from blinksim.topology.graph import Topology

# A node of HGX H100: eight GPUs with 450 GB/s into the switch and an adapter of 50 GB/s each.
GPUS, PORT, NIC = 8, 450, 50
NODE = GPUS * NIC
# Each fabric with what leaves a group of its nodes, GB/s, by the number of nodes: (nodes in the group, rate).
FABRICS: dict[str, tuple[dict[str, Any], Any]] = {
    "rails": ({"shape": "switch", "planes": 8}, lambda nodes: []),
    "leaf and spine 2:1": (
        {"shape": "levels", "planes": 1, "levels": (Level(16, 1, Fraction(2)), Level())},
        lambda nodes: [(16, 16 * NODE / 2)],
    ),
    "rails below rails 2:1": (
        {"shape": "levels", "planes": 1, "levels": (Level(32, 8, Fraction(2)), Level(None, 8))},
        lambda nodes: [(32, 32 * NODE / 2)],
    ),
    "rails below one spine": (
        {"shape": "levels", "planes": 1, "levels": (Level(32, 8), Level())},
        lambda nodes: [(32, 32 * NODE)],
    ),
    "three levels 2:1 and 4:1": (
        {"shape": "levels", "planes": 1, "levels": (Level(8, 1, Fraction(2)), Level(64, 1, Fraction(4)), Level())},
        lambda nodes: [(8, 8 * NODE / 2), (64, 64 * NODE / 8)],
    ),
    "dragonfly": (
        {"shape": "dragonfly", "planes": 1, "group_nodes": 32, "group_links": 4},
        lambda nodes: [(32, 4 * NIC * (nodes / 32 - 1))],
    ),
}


def cluster(fabric: str, nodes: int) -> Topology:
    node = bs.load("hgx-h100")
    assert node.fabric is not None
    return replace(node, fabric=replace(node.fabric, **FABRICS[fabric][0])).replicate(nodes).select()


def by_hand(fabric: str, nodes: int, collective: str) -> float:
    """The least of the cuts around a GPU, a node, and the nodes below each switch, GB/s of algbw."""
    ranks = GPUS * nodes
    below = [(GPUS * count, rate) for count, rate in FABRICS[fabric][1](nodes)]
    found: list[float] = []
    for inside, rate in ((1, PORT + NIC), (GPUS, NODE), *below):
        outside = ranks - inside
        # Every rank outside has a shard for this side; or a block for every rank of it.
        found.append(rate * ranks / outside / (inside if collective == "alltoall" else 1))
    return min(found)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [128, 1024])
@pytest.mark.parametrize("fabric", FABRICS)
def test_bounds_are_the_least_cut_by_hand(fabric: str, nodes: int) -> None:
    machine = cluster(fabric, nodes)
    for collective in ("allgather", "reducescatter", "alltoall"):
        assert bs.bound(machine, collective).rate_GBps == pytest.approx(by_hand(fabric, nodes, collective)), collective
    # Every sum crosses twice: once to be formed, once to be given out.
    both = bs.bound(machine, "allreduce").rate_GBps
    assert both == pytest.approx(by_hand(fabric, nodes, "allgather") / 2, rel=2 / nodes)


@pytest.mark.slow
@pytest.mark.parametrize(("fabric", "nodes"), [*((fabric, 128) for fabric in FABRICS), ("dragonfly", 512)])
def test_packed_trees_come_near_the_bound(fabric: str, nodes: int) -> None:
    machine = cluster(fabric, nodes)
    for collective in ("allgather", "allreduce") if nodes < 512 else ("allgather",):
        # Every piece costs a start for each of the GPUs that one sends it to: simulated, 96 % of the bound on 32 nodes.
        found = bs.project(machine, collective, "32GiB", algorithm="packed")
        limit = bs.bound(machine, collective).rate_GBps
        assert 0.94 * limit <= found.algbw_GBps <= limit, collective


@pytest.mark.slow
@pytest.mark.parametrize(("each", "nodes"), [([5], 64), ([3, 4, 8], 24)], ids=["5 of 8 GPUs", "3, 4 or 8 GPUs"])
def test_partial_nodes(each: list[int], nodes: int) -> None:
    counts = [each[place % len(each)] for place in range(nodes)]
    names = [f"n{place}.gpu{gpu}" for place, count in enumerate(counts) for gpu in range(count)]
    machine = bs.load("hgx-h100", nodes=nodes).select(names)
    ranks = sum(counts)
    # Only the adapters of GPUs with a rank carry data, and a node gets what the others hold through them.
    least = min(count * NIC * ranks / (ranks - count) for count in {*counts})
    limit = bs.bound(machine, "allgather").rate_GBps
    assert limit == pytest.approx(least, rel=0.01)
    assert limit <= least * (1 + 1e-9)
    found = bs.project(machine, "allgather", "4GiB", algorithm="packed")
    # Simulated in as many pieces, 64 nodes with five GPUs of eight attain 96 %.
    assert 0.95 * limit <= found.algbw_GBps <= limit


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(4, 4, 4), (8, 8, 8), (12, 8, 4)])
def test_three_dimensional_tori_with_wrap(sizes: tuple[int, int, int]) -> None:
    machine = bs.load(f"torus:{'x'.join(map(str, sizes))}@50GB/s").select()
    ranks = machine.ranks
    found = bs.bound(machine, "allgather")
    assert found.rate_GBps == pytest.approx(6 * 50 * ranks / (ranks - 1))
    # Half of the longest rows against the other half: two links of every row, both ways.
    half = 2 * 50 * ranks / max(sizes) * ranks / (ranks / 2) ** 2
    assert bs.bound(machine, "alltoall").rate_GBps <= half * (1 + 1e-9)
    for collective in ("allgather", "allreduce"):
        best = bs.project(machine, collective, "4GiB", algorithm="best")
        assert 0.9 * bs.bound(machine, collective).rate_GBps <= best.algbw_GBps, (collective, best.algorithm)


def test_a_dead_node_of_128_leaves_an_allreduce_of_the_others() -> None:
    """127 nodes that reduce straight to each other: every byte crosses their ports 2 (127 - 1) times, once each way."""
    part = bs.load("hgx-h100", nodes=128).select()
    alive = part.select([name for name in part.members if not name.startswith("n1.")])
    found = bs.synthesize(alive, "allreduce")
    assert found.bound.rate == Fraction(127 * NODE * 10**9, 2 * (127 - 1))
    assert found.gap == 0
    assert found.verdict.ok


@pytest.mark.parametrize(("machine", "nodes"), [("p5", 4), ("p5", 16), ("hgx-h100", 40), ("frontier", 300)])
@pytest.mark.parametrize("name", ["allreduce", "broadcast", "reduce", "scatter"])
def test_no_floor_is_below_the_farthest_latency(machine: str, nodes: int, name: str) -> None:
    """By Dijkstra's algorithm in NetworkX; whole messages may say more."""
    collective = Collective(name)
    part = bs.Question(machine, nodes=nodes, collective=collective).part()
    graph = part.to_networkx()
    src, dst = part.members[:: 1 if name in ("broadcast", "scatter") else -1][:: part.ranks - 1]
    first = {(a, b): data["overhead"] for a, b, data in graph.out_edges(src, data=True)}
    way = nx.single_source_dijkstra_path_length(
        graph, src, weight=lambda a, b, links: min(one["latency"] for one in links.values()) + first.get((a, b), 0)
    )
    found = least_time_of(part, collective, part.ranks, ceiling_of(part, collective))
    assert way[dst] > 2e-6
    assert found.time_s >= way[dst] * (1 - 1e-9)
