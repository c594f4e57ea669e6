"""One question has one true answer: however it is asked, and with what it leaves out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import blinksim as bs
from blinksim.answers.project import answer as three_figures, rank
from blinksim.bounds.experts import token_bytes
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.topology.graph import Topology


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


def test_nodes_may_stand_before_a_name_in_python_as_on_the_command_line() -> None:
    """One answer, however the nodes are said; who says them twice is told."""
    said = bs.project("2xp5", "allreduce", "1GiB")
    assert said == bs.project(bs.load("p5", nodes=2), "allreduce", "1GiB")
    assert bs.Question("2xp5") == bs.Question("p5", nodes=2)
    with pytest.raises(bs.InputError, match="2xp5 says how many nodes there are; leave nodes=3 out"):
        bs.load("2xp5", nodes=3)
    compared = bs.compare_machines(["2xp5", "2xhgx-b200"], "allreduce", ["1GiB"])
    assert sorted({row["machine"] for row in compared.rows()}) == ["hgx-b200", "p5"]


def test_a_bound_in_bytes_says_which_function_has_a_size() -> None:
    with pytest.raises(bs.InputError, match=r"takes no size=; .* bs\.time_bound"):
        bs.bound("dgx1-v100", "allreduce", size="1MiB")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("dtype", "size"), [("fp8", 7392), ("bf16", 14336), ("half", 14336), ("Float16", 14336), ("fp32", 28672)]
)
def test_types_of_tokens_have_their_bytes(dtype: str, size: int) -> None:
    """By the names that people type; a type that is not known is refused, where it counted as 2 bytes."""
    assert token_bytes(7168, dtype) == size
    with pytest.raises(bs.InputError, match="unknown element type 'int4'"):
        token_bytes(7168, "int4")


def test_what_is_measured_is_no_difference_of_a_reproduction() -> None:
    """The chain of equation 1 is 773 % off the measured time, and that is the document's."""
    found = bs.reproduce("aurora")
    assert max(abs(row["difference_pct"]) for row in found.rows() if row["difference_pct"]) > 700
    assert "farthest off by 16.2 %: Intra-node" in found.sentence()
    assert "not counted, as it is measured or checked: The chain, beside measured times" in found.text()


@pytest.mark.parametrize("name", ["8xH100", "16xmi300x", "4xv100"])
def test_so_many_gpus_are_not_so_many_boxes(name: str) -> None:
    many, gpu = name.split("x", 1)
    with pytest.raises(bs.InputError, match=f"{many} GPUs or {many} boxes. one box is {gpu}, .* nodes={many}"):
        bs.project(name, "allreduce", "1MiB")
    assert bs.project(bs.load(gpu, nodes=2), "allreduce", "1MiB").time_s > 0


def test_a_time_that_falls_as_the_size_grows_is_said_to_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """32 KiB took longer than 64 KiB in the published run of 2 x p5; where no time falls, nothing is said."""
    words = "a time that is less than that of fewer bytes was measured so"
    for sizes, falls in (("32KiB,64KiB", True), ("1MiB,2MiB", False)):
        assert run(["sweep", "p5", "allreduce", "--nodes", "2", "--sizes", sizes]) == 0
        assert (words in capsys.readouterr().out) is falls


def test_equations_wait_for_no_bound_of_thousands_of_ranks() -> None:
    few, many = (rank(bs.Question("aurora", nodes=n), "allreduce", "1GiB", "aurora-projection").best for n in (2, 512))
    assert few.bound is not None
    assert many.bound is None
    assert many.time_s > few.time_s


def test_one_answer_selects_each_part_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a part goes what is known of it, such as its routes, which takes seconds for thousands of nodes."""
    selected, select = Counter[tuple[int, str]](), Topology.select

    def counted(self: Topology, *asked: Any, **how: Any) -> Topology:
        selected[self.nodes, self.rates] += 1
        return select(self, *asked, **how)

    monkeypatch.setattr(Topology, "select", counted)
    bs.project(bs.load("hgx-h100", nodes=16), "alltoall", "1MiB")
    assert selected[16, "nominal"] == 1
    assert set(selected.values()) == {1}


def test_all_gpus_of_one_node_of_several_are_the_job_of_one_node() -> None:
    size, names = [2**30], bs.load("aurora").members
    members = ",".join(f"n2.{name}" for name in names)
    part = bs.load("aurora", nodes=4)
    asked = bs.Question.of_part(part.select([f"n2.{name}" for name in names]), part)
    others = bs.Question("aurora", nodes=4, members=members), asked
    (alone,) = three_figures(bs.Question("aurora"), Collective("allreduce"), size)
    for other in others:
        (found,) = three_figures(other, Collective("allreduce"), size)
        assert (found.time_s, found.low_s, found.high_s) == (alone.time_s, alone.low_s, alone.high_s)
