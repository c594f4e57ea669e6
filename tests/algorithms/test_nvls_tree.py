"""NVLS trees read and store in every node, and the links that they take are the widest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from strategies import topologies

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.topology.graph import Topology


@pytest.mark.parametrize(
    ("machine", "nodes", "edits"),
    [
        ("hgx-h200", 1, ()),
        ("hgx-h200", 2, ()),
        ("hgx-h200", 5, ()),
        ("hgx-h200", 12, ()),
        ("hgx-h200", 3, ("without n1.gpu[1-7]",)),
        ("hgx-h200", 4, ("without n0.gpu[5-7]", "without n2.gpu0")),
        ("gb200-nvl72", 2, ()),
        ("hgx-h100", 20, ()),
    ],
)
def test_every_node_is_read_and_stored_to_once(machine: str, nodes: int, edits: Sequence[str]) -> None:
    part = bs.load(machine, nodes=nodes, edits=edits).select()
    schedule = algorithm("nvls_tree").build(part, Collective("allreduce"))
    assert bs.verify(schedule).ok
    kinds = [device.kind for device in part.devices]
    ends = [(kinds[a], kinds[b]) for a, b in zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True)]
    between = sum(a == b for a, b in ends)
    assert between == schedule.chunks * 2 * (nodes - 1), "up and down a tree of the nodes"
    several = [node for node in range(nodes) if sum(part.device(name).node == node for name in part.members) > 1]
    assert sum(a != b and b == "gpu" for a, b in ends) == schedule.chunks * sum(
        1 + sum(part.device(name).node == node for name in part.members) for node in several
    ), "a switch hands one GPU the sum, and all of them the result"


@given(topologies())
def test_neighbours_send_over_their_widest_link(topology: Topology) -> None:
    index = topology.index
    for src, dst in {(link.src, link.dst) for link in topology.links}:
        (link,) = topology.router.route(index[src], index[dst])
        assert topology.links[link] == max(topology.links_between(src, dst), key=lambda link: link.bandwidth)
