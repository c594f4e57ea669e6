"""NVLS trees, made in columns, are those that one send after another makes; and the links that they take the widest."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from strategies import topologies

import blinksim as bs
from blinksim.algorithms.building.switch_plan import Moves, SwitchPlan, WidestLinks
from blinksim.algorithms.double_binary import two_trees
from blinksim.algorithms.nvls_tree import build
from blinksim.collective import Collective
from blinksim.schedule.model import ARRAYS, Schedule
from blinksim.topology.graph import Topology


def one_by_one(topology: Topology) -> Schedule:
    """The schedule from moves, each as early as what it carries is there."""
    plan = SwitchPlan(topology, Collective("allreduce"), "nvls_tree")
    local = min(map(len, plan.groups))
    switches = [sorted(plan.reading_switches(group)) if len(group) > 1 else [] for group in plan.groups]
    planes = max(1, *map(len, switches))
    for place in range(local):
        heads = [group[place] for group in plan.groups]
        for parents, root in two_trees(len(heads)):
            for plane in range(planes):
                moves = Moves(plan)
                for found, group, head in zip(switches, plan.groups, heads, strict=True):
                    if found:
                        switch = found[plane % len(found)]
                        moves.read(switch, head, {switch: [gpu for gpu in group if gpu != head]})
                above = {heads[child]: heads[parent] for child, parent in parents.items()}
                moves.tree(above, heads[root], up=True, down=True)
                for found, group, head in zip(switches, plan.groups, heads, strict=True):
                    if found:
                        switch = found[plane % len(found)]
                        moves.store(switch, head, {switch: [gpu for gpu in group if gpu != head]})
                moves.finish(plan.add_chunk(Fraction(1, 2 * local * planes)))
    return plan.finish()


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
        # Enough pairs for routes by symmetries.
        ("hgx-h100", 20, ()),
    ],
)
def test_columns_are_the_moves_one_by_one(machine: str, nodes: int, edits: Sequence[str]) -> None:
    part = bs.load(machine, nodes=nodes, edits=edits).select()
    made, wanted = build(part, Collective("allreduce")), one_by_one(part)
    assert made.share_den == wanted.share_den
    for name in ARRAYS:
        assert np.array_equal(getattr(made, name), getattr(wanted, name)), name


@given(topologies())
def test_widest_links_are_those_of_a_search(topology: Topology) -> None:
    widest, index = WidestLinks(topology), topology.index
    for src, dst in {(link.src, link.dst) for link in topology.links}:
        (number,) = widest.between([index[src]], [index[dst]]).tolist()
        assert topology.links[number] == max(topology.links_between(src, dst), key=lambda link: link.bandwidth)
