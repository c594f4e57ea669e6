"""The machine of a case: one for equal questions, another as soon as anything differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blinksim import machines
from blinksim.answers import sweep as study
from blinksim.collective import Collective
from blinksim.machines import Question
from blinksim.topology.graph import Topology

A100 = machines.load("dgx-a100")


def places(machine: object, question: Question, monkeypatch: pytest.MonkeyPatch, **asked: object) -> list[study.Place]:
    """Where a sweep over two algorithms works."""
    found: list[study.Place] = []

    def noted(task: study.Task) -> list[dict[str, object]]:
        found.append(task.place)
        return [task.row(size_bytes=1, reason="not asked")]

    monkeypatch.setattr(study, "run", noted)
    given = {"collective": "allreduce", **asked}
    study.sweep(machine, sizes=[1], base=question, algorithms="ring,chain", **given)  # type: ignore[arg-type]
    return found


def test_equal_questions_share_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question(nodes=2)
    first, second = places(A100, question, monkeypatch)
    [again, _] = places(replace(A100), question, monkeypatch)
    part = study.part_at(first)
    assert study.part_at(second) is part
    assert study.part_at(again) is part
    assert part == Question(A100, nodes=2, collective=Collective("allreduce")).part()
    study.part_at.cache_clear()
    assert study.part_at(first) is not part


@pytest.mark.parametrize(
    "other", [{"nodes": 3}, {"ranks_per_node": 4}, {"edits": ("without gpu7",)}, {"links": "nvlink,pcie,ib"}, {}]
)
def test_another_question_has_another_machine(other: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    [first, _] = places(A100, Question(nodes=2), monkeypatch)
    before = study.part_at(first)
    settings = {"nodes": 2, **other}
    collective = "allreduce" if other else "reduce"
    question = Question(**settings)  # type: ignore[arg-type]
    [place, _] = places(A100, question, monkeypatch, collective=collective)
    assert study.part_at(place) is not before
    whole = replace(question, machine=A100, collective=Collective(collective))
    assert study.part_at(place) == whole.part()


def test_machines_from_elsewhere_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    node = machines.load("hgx-h200", rates="measured")
    bare = replace(node, loaded_from=None, execution=None)
    assert bare == node
    machine: Topology
    for machine in (node, bare, node):
        [place, _] = places(machine, Question(), monkeypatch)
        part = study.part_at(place)
        assert (part.loaded_from, part.execution) == (machine.loaded_from, machine.execution)
