"""One question has one true answer: however it is asked, and with what it leaves out."""

from __future__ import annotations

import pytest

import blinksim as bs
from blinksim.answers.project import answer as three_figures
from blinksim.collective import Collective


@pytest.mark.parametrize("name", ["projection", "aurora-projection"])
def test_a_projection_by_equations_has_the_bound_of_the_answer_without_a_model(name: str) -> None:
    """By name, as the command line does, and from Python: one bound, that of the GPUs that take part."""
    question = bs.Question("aurora", nodes=2, ranks_per_node=6)
    (plain,) = three_figures(question, Collective("allreduce"), [2**30])
    ranked = bs.rank(question, "allreduce", "1GiB", name).best
    direct = bs.project(question.part(), "allreduce", "1GiB", model=name)
    assert (ranked.time_s, ranked.least, ranked.bound) == (direct.time_s, direct.least, direct.bound)
    assert plain.least is not None
    assert ranked.least == plain.least
    assert "at least" in ranked.text()


def test_a_time_below_what_the_links_need_says_so() -> None:
    """Equations count no latency, and every link of a ring is busy all the time: 0.1 % is missing."""
    found = bs.project("dgx1-v100", "allgather", "1GiB", model="projection")
    assert found.least is not None
    assert 1 < found.least.time_s / found.time_s < 1.001
    assert "of this time, which leaves something out" in found.text()


def test_nccls_own_model_has_a_bound_on_any_number_of_ranks() -> None:
    found = bs.rank(bs.Question("hgx-h100", nodes=1025), "allreduce", "1GiB", "nccl-tuner").best
    assert found.bound is not None
    assert found.least is not None
    assert found.least.time_s < found.time_s
