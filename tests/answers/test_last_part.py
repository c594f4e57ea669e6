"""The machine of a case: one for equal questions, another as soon as anything differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blinksim import machines
from blinksim.answers.sweeps.last_part import KeptQuestion, forget
from blinksim.collective import Collective
from blinksim.question import Question


def test_equal_questions_share_one_machine() -> None:
    node = machines.load("dgx-a100")
    question = KeptQuestion.like(Question(node, nodes=2))
    part = question.part()
    assert question.part() is part
    assert KeptQuestion.like(Question(replace(node), nodes=2)).part() is part
    assert part == Question(node, nodes=2).part()
    forget()
    assert question.part() is not part


@pytest.mark.parametrize(
    "other",
    [
        {"nodes": 3},
        {"ranks_per_node": 4},
        {"edits": ("without gpu7",)},
        {"collective": Collective("broadcast")},
        {"links": "nvlink,pcie,ib"},
    ],
)
def test_another_question_has_another_machine(other: dict[str, object]) -> None:
    question = KeptQuestion.like(Question(machines.load("dgx-a100"), nodes=2))
    before = question.part()
    changed = replace(question, **other)  # type: ignore[arg-type]
    assert changed.part() is not before
    assert changed.part() == Question(question.machine, **{"nodes": 2, **other}).part()  # type: ignore[arg-type]


def test_machines_from_elsewhere_are_told_apart() -> None:
    node = machines.load("hgx-h200", rates="measured")
    bare = replace(node, loaded_from=None, execution=None)
    assert bare == node
    for machine in (node, bare, node):
        part = KeptQuestion.like(Question(machine)).part()
        assert (part.loaded_from, part.execution) == (machine.loaded_from, machine.execution)
