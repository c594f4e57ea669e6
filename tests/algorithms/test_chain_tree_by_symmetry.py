"""Chain trees said once, for the first heads of the nodes, are those of all heads."""

from __future__ import annotations

import pytest

import blinksim as bs
from blinksim.algorithms import chain_tree
from blinksim.collective import Collective
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import link_loads
from blinksim.timing.alpha_beta import cost
from blinksim.topology.group import place_rotation

ALLREDUCE = Collective("allreduce")


@pytest.mark.parametrize(("machine", "nodes", "step"), [("hgx-h100", 5, 1), ("hgx-h100", 6, 1), ("dgx-a100", 4, 2)])
def test_images_are_the_trees_of_all_heads(machine: str, nodes: int, step: int) -> None:
    part = bs.Question(machine, nodes=nodes).part()
    whole, written = chain_tree.symmetric(part, ALLREDUCE), chain_tree.build(part, ALLREDUCE)
    assert whole is not None
    turn = place_rotation(part)
    assert turn is not None
    assert turn[1] == step
    assert (whole.chunks, whole.sends, whole.steps) == (written.chunks, written.sends, written.steps)
    assert bs.verify(whole).ok
    assert link_loads(whole.schedule) == link_loads(written)
    once, all_of_them = Candidate(whole), Candidate.of(written)
    assert once.rate == all_of_them.rate
    for size in (1, 2**20, 2**32):
        found, wanted = cost(once, size), cost(all_of_them, size)
        assert found.time_s == pytest.approx(wanted.time_s, rel=1e-12)
        assert (found.bottleneck, found.steps, found.pieces) == (wanted.bottleneck, wanted.steps, wanted.pieces)
        assert [(term.name, term.limit) for term in found.terms] == [(term.name, term.limit) for term in wanted.terms]


def test_where_nothing_turns_the_nodes_all_trees_are_said() -> None:
    for machine, edits in (("hgx-h100", ("without n1.gpu3",)), ("p5", ())):
        assert chain_tree.symmetric(bs.Question(machine, nodes=3, edits=edits).part(), ALLREDUCE) is None
