"""What would take minutes is refused at once, in one line that says what works."""

from __future__ import annotations

import cProfile
import re

import pytest
from proved_gaps import gap

import blinksim as bs
from blinksim import budget
from blinksim.algorithms import packed
from blinksim.algorithms.registry import REGISTRY
from blinksim.cli.main import run
from blinksim.errors import InfeasibleError, InputError

LIMIT = re.compile(r"works up to about ([0-9,]+) ranks: take a smaller one, or \w+")


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run([*words, "-q"]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    return line


@pytest.mark.parametrize(
    "words",
    [
        ["bound", "line:100", "reduce"],
        ["bound", "line:100", "reduce", "--losses"],
        ["synth", "line:100", "broadcast"],
        ["synth", "line:100", "broadcast", "--algorithm", "binary"],
        ["advise", "mesh:10x10", "allgather"],
        ["project", "line:100", "reduce", "8", "--algorithm", "binary"],
        ["project", "switch:100", "alltoall", "8"],
        ["compare", "line:100", "reduce", "--algorithms", "binary"],
        ["project", "line:100", "reduce", "8", "--algorithm", "double_binary", "--model", "simulate"],
        ["place", "line:100", "99", "--collective", "reduce"],
    ],
)
def test_every_command_refuses_what_takes_too_long(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MOST_SECONDS", 1e-5)
    found = LIMIT.search(refused(words, capsys))
    assert found is not None
    assert 2 <= int(found[1].replace(",", "")) < 100


@pytest.mark.parametrize("command", ["bound", "synth"])
@pytest.mark.parametrize(("smaller", "seconds"), [(10, 1), pytest.param(1, 110, marks=pytest.mark.slow)])
def test_the_refusal_comes_at_once(
    command: str, smaller: int, seconds: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some calls of Python a rank, which read the machine, whatever the computer: no search is begun."""
    monkeypatch.setattr(budget, "MOST_SECONDS", budget.MOST_SECONDS / smaller**2)
    ranks, work = 20_000 // smaller, cProfile.Profile()
    line = work.runcall(refused, [command, f"line:{ranks}", "reduce"], capsys)
    assert sum(entry.callcount for entry in work.getstats()) < 250 * ranks
    assert f"would take about {seconds} seconds ({ranks:,} ranks, {2 * ranks - 2:,} links)" in line


def test_the_size_that_is_said_to_work_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_SECONDS", budget.MOST_SECONDS / 100)

    def check(ranks: int) -> None:
        machine = bs.load(f"line:{ranks}").select()
        budget.check("it", machine, budget.of_flows(machine, ranks), "rest")

    with pytest.raises(InfeasibleError, match="works up to about") as caught:
        check(2_000)
    found = LIMIT.search(str(caught.value))
    assert found is not None
    most = int(found[1].replace(",", ""))
    check(most)
    with pytest.raises(InfeasibleError):
        check(most + most // 10)


def test_best_leaves_out_what_needs_long_searches_of_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_SECONDS", 1e-5)
    found = bs.contest("line:100", "reduce")
    assert "chain" in found.schedules
    assert "works up to about" in found.refused["binary"]


def test_neighbours_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_SECONDS", 1e-5)
    assert bs.project("full:16", "alltoall", "1MiB", algorithm="direct").algorithm == "direct"
    with pytest.raises(InfeasibleError, match="works up to about"):
        bs.project("switch:16", "alltoall", "1MiB", algorithm="direct")


def test_the_estimate_grows_with_the_machine_alone() -> None:
    small, large = (bs.load(text).select() for text in ("ring:10", "ring:100"))
    assert budget.of_flows(large, 100) == pytest.approx(100 * budget.of_flows(small, 10))
    assert budget.of_routes(len(large.links), 100) == pytest.approx(100 * budget.of_routes(len(small.links), 10))


@pytest.mark.parametrize("algorithm", ["packed", "ring"])
def test_a_simulation_that_takes_too_long_says_how_many_pieces_work(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bandwidths that differ, so that no formula answers.
    machine = bs.load("dgx1-v100").degrade("gpu0-gpu3", lanes=1).select()
    schedule = bs.synthesize(machine, "allreduce", algorithm).schedule
    monkeypatch.setattr(budget, "MOST_SECONDS", 0.02)
    with pytest.raises(InputError, match="pieces work: take larger ones") as caught:
        bs.simulate(schedule, "256MiB", pieces=60_000)
    found = re.search(r"up to ([0-9,]+) pieces work", str(caught.value))
    assert found is not None
    most = int(found[1].replace(",", ""))
    assert bs.simulate(schedule, "256MiB", pieces=most).pieces == most
    # The search for the best number keeps to those that work.
    assert bs.simulate(schedule, "256MiB").pieces <= 1.2 * most


def test_a_schedule_with_more_stages_than_a_simulation_may_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = bs.synthesize("dgx1-v100", "allreduce").schedule
    monkeypatch.setattr(budget, "MOST_SECONDS", 1e-5)
    with pytest.raises(InputError, match="take a schedule of fewer sends, or service='static'"):
        bs.simulate(schedule, "256MiB", pieces=1)


@pytest.mark.parametrize(("text", "roots"), [("mesh:4x4", 16), ("hgx-h100", 8)])
def test_packing_that_takes_too_long_is_refused_unless_it_has_a_time_limit(
    text: str, roots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, collective = bs.load(text).select(), bs.Collective.parse("allgather")
    known = bs.bound(machine, collective)
    monkeypatch.setattr(budget, "MOST_SECONDS", 0.9 * budget.of_trees(machine, roots))
    with pytest.raises(InfeasibleError, match=r"packing the trees on .* works up to about"):
        packed.build(machine, collective, bound=known)
    assert gap(packed.build(machine, collective, bound=known, time_limit=60)) == "0"
    # A single root has far fewer trees.
    assert gap(packed.build(machine, bs.Collective.parse("broadcast"))) == "0"


def test_trees_are_estimated_by_the_links_that_a_search_looks_at() -> None:
    def links(text: str) -> float:
        return budget.of_trees(bs.load(text).select(), 1) / budget.of_trees(bs.load("full:2").select(), 1)

    # Everything is next to the first; a line is seen to its last link, and each link from both sides.
    assert links("full:40") == pytest.approx(39)
    assert links("line:40") == pytest.approx(2 * 39 - 1)
    assert links("switch:40") == pytest.approx(1 + 40)


@pytest.mark.parametrize("algorithm", ["chains", "rings", "blink", "blink_hierarchical", "few_steps"])
def test_searches_over_all_pairs_of_thousands_of_ranks_are_not_begun(algorithm: str) -> None:
    many = bs.load("hgx-h100", nodes=512).select()
    words = rf"{algorithm} searches for too long on 4,096 ranks \(at most 1,024\); take packed"
    with pytest.raises(InfeasibleError, match=words):
        REGISTRY[algorithm].build(many, bs.Collective.parse("allreduce"))
