"""Searches of routes that look at two nodes and what is between them, against searches of the whole cluster."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from blinksim import machines
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.topology import shapes
from blinksim.topology.elements import Fabric, Level
from blinksim.topology.graph import Topology
from blinksim.topology.routes import Neighbourhood, Router

EVERYWHERE = 10**9


def same_routes(topology: Topology, most: int, seed: int = 0) -> None:
    """Routes and ways of up to `most` pairs of members are those of a search of the whole."""
    whole, near = Router(topology, EVERYWHERE), Router(topology, 2)
    pairs = list(permutations([topology.index[name] for name in topology.members], 2))
    for pair in Random(seed).sample(pairs, min(most, len(pairs))):
        assert near.route(*pair) == whole.route(*pair)
        assert near.routes(*pair) == whole.routes(*pair)


@pytest.mark.parametrize(
    "machine", ["p5", "dgx-a100", "hgx-h100", "frontier", "aurora", "mi300x", "a3-mega", "gb200-nvl4"]
)
def test_routes_of_the_catalogue(machine: str) -> None:
    same_routes(machines.load(machine, nodes=4).select(), 60)


@given(
    nodes=st.integers(2, 9),
    leaf=st.integers(1, 3),
    planes=st.sampled_from([(1, 1, 1), (2, 2, 1), (2, 1, 1), (4, 2, 2)]),
    edit=st.sampled_from(["", "without n1.nic0", "degrade n0.nic1-fabric bandwidth=1GB/s"]),
    seed=st.integers(0, 99),
)
def test_routes_of_random_fabrics(nodes: int, leaf: int, planes: tuple[int, int, int], edit: str, seed: int) -> None:
    levels = (Level(leaf, planes[0], Fraction(2)), Level(2 * leaf, planes[1]), Level(None, planes[2]))
    node = machines.load("dgx-a100")
    fabric = Fabric("levels", tuple(f"nic{i}" for i in range(8)), "ib", Fraction(25 * 10**9), levels=levels)
    cluster = node.replicate(nodes, fabric)
    if edit.startswith("degrade"):
        edit = edit.replace(
            "fabric", next(link.dst for link in cluster.links if link.src == "n0.nic1" and "fab" in link.dst)
        )
    same_routes((cluster.edit(edit) if edit else cluster).select(), 20, seed)


def test_only_switches_on_a_shortest_way_count() -> None:
    #  nodes 0, 1, 2 below the switches 3, 4, 5 below the switch 6; the switch 7 hangs at 6.
    node = [0, 1, 2, -1, -1, -1, -1, -1]
    pairs = [(0, 3), (1, 4), (2, 5), (3, 6), (4, 6), (5, 6), (6, 7)]
    src, dst = np.array([*pairs, *((b, a) for a, b in pairs)]).T
    near = Neighbourhood(node, src, dst)
    assert near.switches(0, 1) == {3, 4, 6}
    assert near.switches(2, 2) == {5}
    assert near.inner_links == 8


def test_a_search_looks_at_little_of_a_large_cluster() -> None:
    cluster = shapes.fat_tree(512, 4, leaf_nodes=32).select()
    router = cluster.router
    assert router.looked_at < len(cluster.links) / 8
    far = [(cluster.index["n0.gpu0"], cluster.index[name]) for name in ("n1.gpu0", "n1.gpu1", "n511.gpu3")]
    assert router.searches(far) == 2
    assert all(router.route(*pair) == Router(cluster, EVERYWHERE).route(*pair) for pair in far)


def test_data_between_gpus_without_ports_passes_all_ports_alike() -> None:
    """On rails the first neighbour would carry twice as much as the others: 267 GB/s in place of 400."""
    lost = [f"without n{node}.nic{node}" for node in range(4)]
    part = machines.load("hgx-h100", nodes=4, edits=lost).select()
    routes = part.router.routes(part.index["n0.gpu0"], part.index["n1.gpu0"])
    passed = Counter(part.links[link].src for route in routes for link in route)
    # nic0 and nic1 are lost on one of the two nodes each.
    assert [passed[f"n0.nic{number}"] * 6 == len(routes) for number in range(8)] == [False] * 2 + [True] * 6
    assert REGISTRY["hierarchical_direct"].parallel(part, Collective("allgather")).rate == 400 * 10**9
