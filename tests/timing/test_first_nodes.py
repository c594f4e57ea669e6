"""On more nodes no algorithm is quicker, so that those that are slower on few of many are not built on all."""

from __future__ import annotations

from dataclasses import replace

import pytest

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.answers.project import answer
from blinksim.collective import ON_TREES, Collective
from blinksim.timing.contest import Contest, first_nodes
from blinksim.timing.model_registry import schedule_model

SIZES = [2**10, 2**20, 2**30]
# The algorithm whose members take turns: where nodes are few, some idle.
IN_TURNS = "locality_bruck"


def contest_on(part: bs.Topology, collective: str, *, only_best: bool = False) -> Contest:
    return schedule_model("alpha-beta").contest(part, bs.Collective(collective), None, None, SIZES, only_best=only_best)


@pytest.mark.parametrize(
    ("machine", "nodes", "collective"),
    [
        *((machine, nodes, of) for machine, nodes in (("mi300x", 128), ("dgx1-v100", 130)) for of in ON_TREES),
        ("aurora", 64, "allreduce"),
        ("leonardo", 256, "allgather"),
        ("leonardo", 256, "broadcast"),
    ],
)
def test_what_is_slower_on_the_first_nodes_is_slower_on_all(machine: str, nodes: int, collective: str) -> None:
    part = bs.load(machine, nodes=nodes).select()
    first = first_nodes(part)
    assert first is not None
    assert first.ranks * 4 <= part.ranks
    # The first nodes by themselves are the machine of so many nodes.
    other = bs.load(machine, nodes=first.nodes).select()
    assert {link.name for link in first.links} == {link.name for link in other.links}
    few, many, best = (
        contest_on(first, collective),
        contest_on(part, collective),
        contest_on(part, collective, only_best=True),
    )
    for size in SIZES:
        times = [{one.algorithm: one.time_s for one in contest.projections(size)} for contest in (few, many)]
        both = times[0].keys() & times[1].keys() - {IN_TURNS, "packed"}
        assert len(both) > 5
        assert all(times[1][name] >= 0.999 * times[0][name] for name in both)
        assert best.projections(size)[0].time_s == pytest.approx(min(times[1].values()), rel=1e-3)
    assert set(best.candidates) < set(many.candidates)
    assert all(best.left_out[name].endswith("on fewer nodes") for name in set(many.candidates) - set(best.candidates))


@pytest.mark.parametrize(("machine", "nodes"), [("mi300x", 31), ("gb200-nvl72", 7), ("dgx1-v100", 1)])
def test_few_nodes_have_no_first_ones(machine: str, nodes: int) -> None:
    assert first_nodes(bs.load(machine, nodes=nodes).select()) is None


def test_nodes_that_are_not_alike_have_no_first_ones() -> None:
    assert first_nodes(bs.load("mi300x", nodes=128, edits=["without n5.nic0"]).select()) is None


def test_an_algorithm_of_a_user_is_built_on_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether more nodes make it quicker."""
    monkeypatch.setattr("blinksim.algorithms.registry.REGISTRY", registry := REGISTRY.copy())
    monkeypatch.setattr("blinksim.timing.contest.REGISTRY", registry)
    part = bs.load("mi300x", nodes=32).select()
    assert "double_binary" in contest_on(part, "broadcast", only_best=True).left_out
    registry["double_binary"] = replace(registry["double_binary"], file="own.py")
    assert "double_binary" in contest_on(part, "broadcast", only_best=True).candidates


def test_nodes_in_unlike_groups_are_answered_without_a_search() -> None:
    """Of 940 nodes of Frontier the last group has 44: routes from every rank took minutes and gigabytes."""
    [found] = answer(bs.Question("frontier", nodes=940), Collective("allreduce"), [2**28])
    assert found.could is None
    assert found.least is not None
    assert found.least.time_s < found.time_s
