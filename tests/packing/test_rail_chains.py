"""Broadcast and reduce over rails: verified, at the bound of hand arithmetic on real fabrics, from any root."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import blinksim as bs
from blinksim.algorithms.building.symmetric_trees import rooted_host_trees
from blinksim.algorithms.packed import from_hosts
from blinksim.graphs.rooted_trees import trees_over_ports
from blinksim.packing.hosts import Keep
from blinksim.schedule.loads import rate
from blinksim.timing.alpha_beta import cost

GB = 10**9
KEEP: tuple[Keep, ...] = ("back", "apart")
SPINE = "fabric shape=tree planes=8 spine_planes=1 leaf_nodes=4 oversubscription=4"
DRAGONFLY = "fabric shape=dragonfly group_nodes=4 group_links=4"


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    ("machine", "nodes", "edits", "due"),
    [
        # Eight adapters of a node.
        ("hgx-h100", 3, (), 400),
        ("hgx-h100", 8, (SPINE,), 400),
        ("dgx-a100", 4, (), 200),
        # Four links between two groups, and chains that take all three ways round five groups.
        ("hgx-h100", 8, (DRAGONFLY,), 200),
        ("hgx-h100", 20, (DRAGONFLY,), 400),
    ],
)
def test_chains_over_rails_attain_the_bound(
    name: str, machine: str, nodes: int, edits: tuple[str, ...], due: int
) -> None:
    part = bs.load(machine, nodes=nodes, edits=edits).select()
    for root in (0, part.ranks // 2 + 1):
        collective = bs.Collective(name, root)
        found = from_hosts(part, collective, bs.bound(part, collective).rate)
        assert found is not None
        assert bs.verify(found)
        assert rate(found) == due * GB


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize("nodes", [2, 5, 12, 40])
def test_trees_over_rails_are_as_wide_as_all_ports_and_low(name: str, nodes: int) -> None:
    part = bs.load("hgx-h100", nodes=nodes).select()
    for root in (0, part.ranks // 2 + 1):
        collective = bs.Collective(name, root)
        for keep in KEEP:
            found = rooted_host_trees(part, collective, bs.bound(part, collective).rate, keep=keep)
            assert found is not None
            assert bs.verify(found)
            assert rate(found) == 400 * GB
            # To a port, and at every level of nodes to another one over at most three of eight GPUs; hand to hand.
            assert found.steps <= max(7, 1 + 4 * nodes.bit_length())


@pytest.mark.parametrize("ports", [1, 2, 3, 4, 8])
def test_trees_over_ports_use_every_port_of_a_vertex_once(ports: int) -> None:
    for vertices in {*range(ports * (ports - 1) + 2, ports * (ports - 1) + 30), 64, 257}:
        if vertices <= ports * (ports - 1) + 1:
            continue
        trees = trees_over_ports(ports, vertices)
        assert len(trees) == ports
        for arcs in trees:
            # Parents come first, and every vertex but the root once.
            known = [0]
            for parent, child, _ in arcs:
                assert parent in known
                known.append(child)
            assert sorted(known) == list(range(vertices))
        sent = [(parent, port) for arcs in trees for parent, _, port in arcs]
        came = [(child, port) for arcs in trees for _, child, port in arcs]
        assert len({*sent}) == len({*came}) == len(sent)


def test_many_nodes_broadcast_near_the_bound_on_time() -> None:
    """Binary trees of nodes took 1.36 times as long as the certified bound, chains far longer.

    A GPU passes each piece to seven others, and every start of a message counts: a simulation says 1.13 as well.
    """
    part = bs.load("hgx-h100", nodes=256).select()
    for name in ("broadcast", "reduce"):
        best = bs.project(part, name, "1GiB", model="alpha-beta")
        assert best.least is not None
        assert 1 <= best.time_s / best.least.time_s < 1.13


def test_leaves_of_switches_chain_trees_of_their_own() -> None:
    """A chain of all 64 nodes has 63 of them to wait for, and each part still crosses once to every leaf."""
    part = bs.load("hgx-h100", nodes=64, edits=(SPINE.replace("leaf_nodes=4", "leaf_nodes=16"),)).select()
    found = rooted_host_trees(part, bs.Collective("broadcast"), bs.bound(part, "broadcast").rate)
    assert found is not None
    assert bs.verify(found)
    assert rate(found) == 400 * GB
    assert found.steps < 40


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize("machine", ["mi300x", "frontier", "mi250", "dgx1-v100", "trn2.48xlarge", "dgx2", "aurora"])
def test_nodes_without_switches_attain_the_bound(machine: str, name: str) -> None:
    """Meshes, cubes and rings, adapters for some GPUs only: from the middle of the second of five nodes."""
    part = bs.load(machine, nodes=5).select()
    collective = bs.Collective(name, part.ranks // 5 + 3)
    aim = bs.bound(part, collective).rate
    for keep in KEEP:
        found = rooted_host_trees(part, collective, aim, keep=keep)
        assert found is not None
        assert bs.verify(found)
        assert rate(found) == aim


@pytest.mark.parametrize("machine", ["nd-a100-v4", "p4d", "perlmutter", "leonardo", "dgx2"])
def test_what_enters_a_node_leaves_it_by_the_same_gpu(machine: str) -> None:
    """Several GPUs are equally near each adapter: with another one on the way, every node would add a hop."""
    part = bs.load(machine, nodes=3).select()
    found = rooted_host_trees(part, bs.Collective("broadcast"), bs.bound(part, "broadcast").rate, keep="apart")
    assert found is not None
    node, came = part.device_nodes, dict[tuple[int, int], int]()
    across = [*zip(*(column[node[found.src] != node[found.dst]].tolist() for column in
                     (found.chunk, found.src, found.dst)), strict=True)]  # fmt: skip
    for chunk, _, dst in across:
        came[chunk, node[dst]] = dst
    assert all(src == came[chunk, node[src]] for chunk, src, _ in across if node[src] > 0)


@pytest.mark.parametrize(
    ("machine", "chunks", "due"), [("hgx-h800", 8, Fraction(1600, 7)), ("mi250", 16, Fraction(256))]
)
def test_trees_of_many_nodes_keep_their_parts_whole(machine: str, chunks: int, due: Fraction) -> None:
    """A GPU of an HGX H800 takes seven eighths over 200 GB/s; sixteen adapters of an MI250 node carry a part each."""
    part = bs.load(machine, nodes=256).select()
    for name in ("broadcast", "reduce"):
        found = rooted_host_trees(part, bs.Collective(name), bs.bound(part, name).rate)
        assert found is not None
        assert bs.verify(found)
        assert (found.chunks, rate(found)) == (chunks, due * GB)


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize("machine", ["hgx-h100", "l40s-pcie"])
def test_few_nodes_take_the_quickest_form_at_any_size(machine: str, name: str) -> None:
    """What comes back spares the root's links, but is slower for small sizes; so are wide trees on narrow PCIe."""
    part = bs.load(machine, nodes=3).select()
    aim = bs.bound(part, name).rate
    forms: list[dict[str, Any]] = [{}, {"keep": "apart"}, {"aim": Fraction(0)}]
    found = [rooted_host_trees(part, bs.Collective(name), **{"aim": aim, **form}) for form in forms]
    assert None not in found
    for size in (2**17, 2**20, 2**26):
        best = bs.project(part, name, size, algorithm="best", model="alpha-beta").time_s
        assert best <= min(cost(form, size).time_s for form in found if form is not None) * (1 + 1e-12)


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_many_nodes_of_shared_pcie_links_pass_data_from_hand_to_hand(name: str) -> None:
    """Binomial trees in a node cross the links between its CPUs four times, a chain once; chains of all nodes are deep.

    Each switch carries in what its GPUs get, what one of them passes on, and an eighth for every port: 1.25 of all.
    """
    part, collective = bs.load("l40s-pcie", nodes=64).select(), bs.Collective(name)
    found = rooted_host_trees(part, collective, Fraction(0), keep="hands")
    assert found is not None
    assert bs.verify(found)
    assert rate(found) == Fraction(32 * GB) / Fraction(5, 4)
    chain = bs.project(part, name, "1GiB", algorithm="chain", model="alpha-beta").time_s
    assert bs.project(part, name, "1GiB", algorithm="best", model="alpha-beta").time_s < 0.9 * chain


def test_an_odd_node_has_trees_of_its_own_and_loses_little() -> None:
    part = bs.Question("hgx-h100", nodes=3, edits=("degrade n1.gpu3-n1.nvswitch lanes=6",)).part()
    collective = bs.Collective("broadcast", 4)
    aim = bs.bound(part, collective).rate
    found = from_hosts(part, collective, aim)
    assert found is not None
    assert bs.verify(found)
    assert Fraction(6, 10) * aim < (rate(found) or 0) <= aim
    assert bs.synthesize(part, collective).gap < Fraction(1, 100)


@pytest.mark.parametrize(("machine", "least"), [("gaudi2", 0.89), ("hgx-h800", 0.81), ("dgx2", 0.95)])
def test_a_search_serves_few_nodes_whose_own_trees_miss_the_bound(machine: str, least: float) -> None:
    part = bs.load(machine, nodes=8).select()
    found = bs.project(part, "broadcast", "1GiB", model="alpha-beta")
    assert found.algbw > least * float(bs.bound(part, "broadcast").rate)


def test_a_node_that_lacks_an_adapter_costs_all_of_them_one() -> None:
    """Seven of eight adapters carry the whole: 2.68 ms times 8/7, and the pipeline has to fill."""
    part = bs.Question("hgx-h100", nodes=16, edits=("without n1.nic2-fabric2",)).part()
    assert from_hosts(part, bs.Collective("broadcast"), bs.bound(part, "broadcast").rate) is None
    best = bs.project(part, "broadcast", "8GiB", model="alpha-beta")
    assert 1 < best.time_s / (8 * 2**30 / 350e9) < 1.15


def test_many_nodes_are_projected_near_the_bound() -> None:
    part = bs.load("hgx-h100", nodes=16).select()
    found = bs.project(part, "broadcast", "64GiB", algorithm="best")
    assert found.algorithm == "packed"
    assert found.algbw > 0.95 * 400 * GB
