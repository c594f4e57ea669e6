"""Synthesis for a size: the algorithm that is quickest there, by the model in force, beside what GPUs measured."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.answers import synthesize
from blinksim.answers.project import Answer, answer, schedules
from blinksim.answers.synthesize import Synthesis, candidates, of_the_quickest
from blinksim.cli.main import run
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.gpu.execution.emulate import lane_links
from blinksim.schedule.candidate import SymmetricSchedule
from blinksim.schedule.model import as_schedule
from blinksim.schedule.verify import verify
from blinksim.timing.alpha_beta import cost
from blinksim.timing.simulation_options import ServiceName

RESULTS = Path(__file__).resolve().parents[2] / "validate" / "results"
MACHINE = bs.load("hgx-h200", rates="measured")
assert MACHINE.execution is not None
# One process launches the programs that were measured, so nothing else may be quicker.
ONE_PROCESS = replace(MACHINE, execution=replace(MACHINE.execution, job=None))


@cache
def measured_us(gpus: int, size: int) -> dict[str, float]:
    """Microseconds of every algorithm by its quicker protocol, out of place (validate/results)."""
    found: dict[str, float] = {}
    for row in json.loads((RESULTS / f"elementary-{gpus}gpu.json").read_text())["allreduce"]:
        if row["size_bytes"] == size and not row["in_place"]:
            time = 1e6 * row["time_s"]
            found[row["algorithm"]] = min(time, found.get(row["algorithm"], time))
    return found


@cache
def made(gpus: int, size: int) -> Synthesis:
    return bs.synthesize(MACHINE.select(range(gpus)), "allreduce", size=size)


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "size"), [(8, 2**12), (8, 2**18), (8, 2**20), (8, 2**26), (2, 2**16)])
def test_what_is_built_is_nearly_the_quickest_of_those_that_were_measured(gpus: int, size: int) -> None:
    found = bs.synthesize(ONE_PROCESS.select(range(gpus)), "allreduce", size=size)
    real = measured_us(gpus, size)
    assert found.at is not None
    assert found.verdict.ok
    assert real[found.schedule.algorithm] <= 1.03 * min(real.values())
    assert found.at.time_s * 1e6 == pytest.approx(real[found.schedule.algorithm], rel=0.15)
    assert found.at.projection.model == "execution"


def test_the_choice_is_that_of_project_and_its_terms_add_up() -> None:
    found = made(8, 2**20)
    assert found.at is not None
    best = bs.project(MACHINE, "allreduce", 2**20, algorithm="best")
    assert (found.at.projection.algorithm, found.at.time_s) == (best.algorithm, best.time_s)
    assert found.at.quickest
    times = [one.time_s for one in found.at.alternatives]
    assert times == sorted(times)
    assert times[0] >= found.at.time_s
    answer = found.to_dict()
    assert sum(term["time_s"] for term in answer["terms"]) == pytest.approx(answer["time_s"])
    assert answer["least_time_s"] == pytest.approx(2**20 / float(found.bound.rate))
    assert answer["least_time_s"] < answer["time_s"]
    assert verify(found.schedule).ok


def test_a_named_algorithm_is_timed_beside_the_others() -> None:
    found = bs.synthesize("dgx1-v100", "allreduce", "chain", size="256MiB")
    assert found.at is not None
    assert not found.at.quickest
    assert found.at.time_s == pytest.approx(bs.simulate(found, "256MiB").time_s)
    by_sums = bs.project("dgx1-v100", "allreduce", "256MiB", algorithm="chain").time_s
    assert found.at.projection.details["alpha_beta_s"] == by_sums
    assert (
        found.at.alternatives[0].algorithm == bs.project("dgx1-v100", "allreduce", "256MiB", algorithm="best").algorithm
    )
    assert bs.synthesize("dgx1-v100", "allreduce", "chain").at is None


def simulated(schedule: bs.Schedule, size: int) -> float:
    """Seconds in a simulation, in the order of arrival or of steps."""
    orders: tuple[ServiceName, ...] = ("fifo", "ordered") if schedule.form == "steps" else ("fifo",)
    return min(bs.simulate(schedule, size, service=order).time_s for order in orders)


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "size"),
    [("dgx1-v100", 1, "allreduce", 2**20), ("dgx1-v100", 1, "allgather", 2**26), ("hgx-h200", 2, "allreduce", 2**18)],
)
def test_the_choice_is_the_quickest_in_a_simulation(machine: str, nodes: int, collective: str, size: int) -> None:
    part = bs.load(machine, nodes=nodes).selected()
    rivals = candidates(part, bs.Collective(collective), size)
    times = {name: simulated(candidate.schedule, size) for name, candidate in rivals.contest.candidates.items()}
    own, schedule = rivals.quickest()
    assert own.algorithm == min(times, key=times.__getitem__)
    assert own.model == "simulate"
    assert own.time_s == pytest.approx(simulated(as_schedule(schedule), size), rel=0.02)
    assert own.least is not None
    assert own.time_s >= own.least.time_s
    assert sum(term.time_s for term in own.terms) == pytest.approx(own.time_s)


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
@pytest.mark.parametrize(("machine", "nodes"), [("hgx-h100", 2), ("torus:3x3", 1)])
def test_trees_pay_for_every_message_by_sums_as_in_a_simulation(machine: str, nodes: int, collective: str) -> None:
    """Trees of all GPUs of a node use the same routes; where they sent together, sums said half of a simulation."""
    schedule = bs.synthesize(bs.load(machine, nodes=nodes), collective).schedule
    for size in (2**16, 2**20, 2**24, 2**28):
        assert 0.85 < cost(schedule, size).time_s / bs.simulate(schedule, size).time_s < 1.5


@pytest.mark.slow
def test_messages_are_counted_by_symmetry_too() -> None:
    made = bs.synthesize(bs.load("hgx-h100", nodes=64), "allgather").compact
    assert isinstance(made, SymmetricSchedule)
    for size in (2**20, 2**26):
        assert cost(made, size).time_s == pytest.approx(cost(made.schedule, size).time_s)


@pytest.mark.slow
def test_a_thousand_gpus_get_trees_that_are_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "many.json")
    assert run(["synth", "hgx-h100", "allgather", "--nodes", "256", "--size", "256MiB", "-o", file, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["algorithm"], answer["trees"], answer["verified"]) == ("packed", 2048, True)
    assert answer["time_s"] > answer["least_time_s"]
    assert run(["verify", file]) == 0


def test_a_simulation_says_what_sums_say_where_that_is_more(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "trees.json")
    assert run(["synth", "dgx1-v100", "allreduce", "--algorithm", "blink_hierarchical", "-o", file]) == 0
    said = "project by alpha-beta, from sums of loads and latencies, says"
    assert run(["simulate", file, "1MiB"]) == 0
    assert said in capsys.readouterr().out
    assert run(["simulate", file, "4GiB"]) == 0
    assert said not in capsys.readouterr().out


def test_what_is_quicker_and_too_long_to_write_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    part = bs.load("dgx1-v100").selected()
    monkeypatch.setattr(synthesize, "_MOST_WRITTEN", 50)
    rivals = synthesize.candidates(part, Collective("allreduce"), 2**26)
    own, schedule = rivals.quickest()
    found = rivals.timed(schedule, bs.bound(part, "allreduce").headline, own)
    assert schedule.sends <= 50
    assert found.too_long
    assert found.to_dict()["too_long"] == found.too_long
    for one in found.alternatives:
        assert (one.algorithm in found.too_long) == (one.time_s < own.time_s)


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "edits"),
    [
        pytest.param("aurora", 4, "allreduce", (), marks=pytest.mark.slow),
        ("mi300x", 2, "broadcast", ()),
        pytest.param("p5", 2, "allgather", ("without n1.efa0",), marks=pytest.mark.slow),
        ("dgx1-v100", 2, "broadcast", ("without n1.nic0",)),
    ],
)
def test_a_size_has_one_time_whatever_else_is_asked(
    machine: str, nodes: int, collective: str, edits: tuple[str, ...]
) -> None:
    """And its schedule is on the links of the machine, also where it is one of what all nodes have."""
    question, wanted = bs.Question(machine, nodes=nodes, edits=edits), Collective(collective)
    sizes = [2**10, 2**16, 2**20, 2**24, 2**30]
    every = schedules(question, wanted, sizes)
    for size in sizes:
        one = schedules(question, wanted, [size])
        found, alone = (asked.answers(size, best=True)[0] for asked in (every, one))
        assert found.time_s == pytest.approx(alone.time_s, rel=1e-9)
        schedule = every.at(size).candidates[found.algorithm].schedule
        assert schedule.topology.links == every.topology.links
        assert verify(schedule).ok


@pytest.mark.parametrize("collective", ["reduce", "broadcast"])
def test_the_schedule_is_the_one_that_was_simulated(collective: str) -> None:
    """Of several forms of packed trees that whole one which beats, in a simulation, what sums alone would pick."""
    part = bs.Question("mi300x", nodes=2).part()
    projection, schedule = candidates(part, Collective(collective), 379625062).quickest()
    assert projection.model == "simulate"
    assert simulated(as_schedule(schedule), 379625062) == pytest.approx(projection.time_s, rel=1e-9)


@pytest.mark.parametrize(("machine", "collective"), [("hgx-h200", "allreduce"), ("dgx1-v100", "allgather")])
def test_a_comparison_says_what_each_size_alone_is_answered(machine: str, collective: str) -> None:
    """One time for a question: the quickest of the rows is what it could take, of programs the one simulated."""
    found = bs.compare(machine, collective, ["16KiB", "1MiB", "64MiB"])
    for row, figures in zip(found.envelope(), found.answers, strict=True):
        alone = bs.project(machine, collective, figures.size)
        assert isinstance(alone, bs.Answer)
        assert alone.could is not None
        best = min((each for each in found.rows() if each["size_bytes"] == figures.size), key=itemgetter("time_s"))
        assert (best["algorithm"], best["time_s"]) == (row["algorithm"], row["time_s"])
        assert row["time_s"] == row["could_take_s"] == pytest.approx(alone.could.best.time_s, rel=1e-9)
        assert row["time_bound_s"] == best["cannot_take_less_s"] <= row["time_s"]
        assert row["share"] == row["time_bound_s"] / row["time_s"]


def test_where_no_schedule_is_known_the_library_and_the_bound_are_compared() -> None:
    """Each of 1,600 GPUs sends to every other: too many routes for any algorithm, but not for a library."""
    question = bs.Question("mesh:40x40@50GB/s")
    found = bs.compare(question, "alltoall", ["1MiB", "16MiB"])
    assert (found.best(), found.algorithms, found.crossovers) == ((), (), ())
    assert "no algorithm runs alltoall on mesh" in found.refused["best"]
    for row, line, alone in zip(found.envelope(), found.rows(), found.answers, strict=True):
        assert row.keys() == {"size_bytes", "time_bound_s", "takes_s", "takes_low_s", "takes_high_s"}
        assert row["takes_s"] == line["time_s"] == alone.time_s > row["time_bound_s"] == line["cannot_take_less_s"]
    with pytest.raises(InfeasibleError, match="no algorithm runs alltoall on mesh"):
        bs.advise(question, "alltoall", "16MiB")


@pytest.mark.slow
def test_compare_names_what_is_quickest_at_each_size_and_what_is_made_for_it() -> None:
    part, sizes = bs.load("dgx1-v100").select([0, 1, 2, 3]), [2**14, 2**20, 2**34]
    found = bs.compare(part, "allgather", sizes, search=0.3)
    assert found.made[2**20].time_s == pytest.approx(simulated(few_rounds(part, 2**20), 2**20), rel=0.02)
    for row, projections in zip(found.envelope(), found.projections, strict=True):
        least = min(projections, key=lambda one: one.time_s)
        assert (row["algorithm"], row["time_s"]) == (least.algorithm, least.time_s)
        bound = bs.time_bound(part, "allgather", row["size_bytes"]).time_s
        assert row["time_bound_s"] == pytest.approx(bound, rel=0.05)
        assert row["share"] == row["time_bound_s"] / row["time_s"]
        assert bound <= row["made_s"] * (1 + 1e-9)
    lines = found.text().splitlines()
    [told] = [line for line in lines if line.startswith("  for the size: few_rounds")]
    starred = [size for size, row in zip(("16 KiB", "1 MiB", "16 GiB"), found.envelope(), strict=True)
               if row["made_s"] < row["time_s"]]  # fmt: skip
    assert f"quicker at {', '.join(starred)}, up to" in told
    assert found.to_dict()["envelope"] == found.envelope()
    # One measure: all that stand beside each other are simulated, as bytes over time, with one star a row.
    assert {row["model"] for row in found.rows() if row["algorithm"] in found.algorithms[:3]} == {"simulate"}
    ring = next(one for one in found.projections[1] if one.algorithm == "ring")
    assert ring.time_s == pytest.approx(simulated(REGISTRY["ring"].build(part, found.collective), 2**20), rel=0.02)
    for size, line in zip(("16 KiB", "1 MiB", "16 GiB"), lines[5:8], strict=True):
        assert line.split()[:2] == size.split()
        assert line.count("*") == 1
    assert "made_s" not in bs.compare(part, "allgather", sizes).envelope()[0]


def test_a_search_for_other_models_than_those_of_links_is_refused() -> None:
    with pytest.raises(InputError, match="search= is for the links alone, and execution counts more"):
        bs.compare(MACHINE.select([0, 1]), "allreduce", [2**20], ["ring"], search=0.1)
    on_links = bs.compare(MACHINE.select([0, 1]), "allreduce", [2**20], ["ring"], model="alpha-beta", search=0.1)
    assert on_links.made[2**20].time_s < on_links.projections[0][0].time_s * 1.001
    large = bs.compare("ring:9", "allgather", [2**20], ["ring"], search=0.1)
    assert not large.made
    assert large.left_out["few_rounds"] == "no schedule for a size within 0.1 s"


def few_rounds(part: bs.Topology, size: int) -> bs.Schedule:
    return REGISTRY["few_rounds"].build(part, bs.Collective("allgather"), size=size, time_limit=3)


def test_a_search_that_ends_with_nothing_leaves_the_others() -> None:
    part = bs.load("hgx-h200", nodes=2).selected()
    found = candidates(part, bs.Collective("allreduce"), 2**20, search=True, seconds=0.01)
    assert found.quickest()[0].time_s == found.projections[0].time_s


@pytest.mark.slow
def test_what_cannot_be_asked_of_a_size() -> None:
    with pytest.raises(InputError, match="trees is what a certain algorithm takes"):
        bs.synthesize("dgx1-v100", "allreduce", size="1MiB", trees=2)
    with pytest.raises(InputError, match="size"):
        bs.synthesize("dgx1-v100", "allreduce", size="1 furlong")
    with pytest.raises(InfeasibleError, match="take model=alpha-beta"):
        bs.synthesize(MACHINE, "allreduce", "packed_in_network", size="1MiB")


def test_messages_of_trees_that_are_sent_one_by_one() -> None:
    """Joined, few rounds are quicker; on links that send chunk by chunk, fewer and larger messages are."""
    part = bs.load("dgx1-v100").select([f"gpu{i}" for i in range(4)])
    rate = Fraction(42 * 10**9)
    links = [replace(link, lane_bandwidth=rate, overhead=3.2e-6, latency=3.9e-6) for link in part.links]
    lanes = lane_links(part.with_links(links))[0]
    joined = bs.synthesize(lanes, "allgather", size="16MiB")
    single = bs.synthesize(lanes, "allgather", size="16MiB", messages="single")
    assert joined.at is not None
    assert single.at is not None
    assert joined.schedule.algorithm == "few_rounds"
    assert single.schedule.algorithm != "few_rounds"
    assert (joined.at.to_dict()["messages"], single.at.to_dict()["messages"]) == ("joined", "single")
    [one] = [other for other in single.at.alternatives if other.algorithm == "few_rounds"]
    assert joined.at.time_s < single.at.time_s < one.time_s


def test_messages_need_a_size_and_links_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["synth", "dgx1-v100", "allgather", "--messages", "single"]) == 2
    assert "--messages is about a time, and there is no size" in capsys.readouterr().err
    with pytest.raises(InputError, match="there is no size"):
        bs.synthesize("dgx1-v100", "allgather", messages="single")
    with pytest.raises(InputError, match="execution counts more"):
        bs.synthesize(MACHINE.select([0, 1]), "allgather", size="1MiB", messages="single")
    given = ["--size", "16KiB", "--messages", "single", "--time-limit", "1"]
    assert run(["synth", "dgx1-v100", "broadcast", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  model     simulate") and " --messages single: message by message" in line
               for line in lines)  # fmt: skip
    assert lines[-1].endswith("--size 16KiB --messages single --time-limit 1 -o schedule.json")


@pytest.mark.slow
def test_one_screen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "quickest.json")
    assert run(["synth", "dgx1-v100", "allreduce", "--size", "16KiB", "-o", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = "allreduce of 16 KiB on dgx1-v100 by few_rounds: "
    assert lines[0].startswith(head)
    assert lines[0].endswith(" % above the least time, the quickest of 17 (simulate)")
    time_us = float(lines[0].removeprefix(head).partition(" us")[0])
    assert time_us == pytest.approx(1e6 * simulated(bs.read_schedule(file), 2**14), rel=0.02)
    labels = [line[2:12].strip() for line in lines[2:]]
    wanted = [
        "terms",
        "model",
        "at least",
        "",
        "",
        "others",
        "rate",
        "bound",
        "schedule",
        "verified",
        "links",
        "written",
    ]
    assert labels[: len(wanted)] == wanted
    assert run(["verify", file]) == 0
    assert run(["synth", "dgx1-v100", "allreduce", "--size", "16KiB", "--trees", "2"]) == 2
    assert "--trees is for a certain algorithm; name it with --algorithm" in capsys.readouterr().err
    assert run(["synth", "dgx1-v100", "allreduce", "--size", "16KiB", "--pareto"]) == 2
    assert "--size is for one schedule" in capsys.readouterr().err


def test_a_search_that_runs_out_of_time_leaves_the_best_of_the_others() -> None:
    made = bs.synthesize("torus:4x4", "allreduce", size="1MiB", time_limit=3)
    known = bs.rank("torus:4x4", "allreduce", "1MiB", model="alpha-beta")
    assert made.verdict.ok
    assert made.at is not None
    assert made.at.time_s <= known.best.time_s


def test_nothing_is_simulated_once_the_time_for_it_is_over() -> None:
    rivals = bs.contest("ring:4", "allreduce", ["ring", "binary"])
    assert len(of_the_quickest(rivals, rivals.answers(2**20), 10_000)) == 1
    assert of_the_quickest(rivals, rivals.answers(2**20), 10_000, monotonic() - 1) == []


@pytest.mark.parametrize("algorithm", ["ring", "double_binary", "two_shot", "packed"])
def test_the_height_is_the_most_reductions_or_copies_in_a_row(algorithm: str) -> None:
    found = bs.synthesize("dgx1-v100", "allreduce", algorithm)
    schedule, rows = found.schedule, 0
    sends = sorted(zip(schedule.step, schedule.op, schedule.chunk, schedule.src, schedule.dst, strict=True))
    arrived: dict[tuple[int, int, int], int] = {}
    for _, op, chunk, src, dst in sends:
        row = arrived.get((op, chunk, src), 0) + 1
        arrived[op, chunk, dst] = max(row, arrived.get((op, chunk, dst), 0))
        rows = max(rows, row)
    assert found.height == rows >= 1


def test_nothing_in_a_comparison_with_nccl_takes_less_than_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """NVLS adds in the switches, which no bound for schedules that only forward allows."""
    options = ["--algorithms", "ring,nccl", "--sizes", "1MiB,256MiB,4GiB", "--json"]
    assert run(["compare", "hgx-h100", "allreduce", *options]) == 0
    envelope = json.loads(capsys.readouterr().out)["envelope"]
    assert [row["algorithm"] for row in envelope] == ["nccl"] * 3
    assert all(0 < row["time_bound_s"] <= row["time_s"] for row in envelope)


@pytest.mark.slow
def test_what_takes_more_pieces_than_are_simulated_keeps_its_sum() -> None:
    """With the few pieces that are simulated a broadcast on 8 p5 takes longer than one that is searched for."""
    machine = bs.load("p5", nodes=8)
    found = bs.synthesize(machine, "broadcast", size="1GiB")
    known = bs.project(machine, "broadcast", "1GiB", model="alpha-beta")
    assert found.at is not None
    assert (found.schedule.algorithm, found.at.time_s) == (known.algorithm, known.time_s)


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "lost"),
    [
        # Each part of a broadcast that only leaves its node comes back by ports, of which too few are left.
        ("p6-b300", 4, "reduce", {3: [9]}),
        pytest.param("p5en", 5, "broadcast", {3: [5]}, marks=pytest.mark.slow),
        # The port by which data enters every node is one that another node has lost.
        ("l40s-pcie", 2, "reducescatter", {1: [1]}),
        pytest.param("polaris", 4, "allgather", {1: [0], 2: [1], 3: [1]}, marks=pytest.mark.slow),
    ],
)
def test_lost_adapters(machine: str, nodes: int, collective: str, lost: dict[int, list[int]]) -> None:
    _answers_of_lost_adapters(machine, nodes, collective, lost)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=20)
def test_any_lost_adapters(data: st.DataObject) -> None:
    machine = data.draw(st.sampled_from(["p6-b300", "p5en", "l40s-pcie", "polaris", "hgx-h100", "p3dn", "dgx1-v100"]))
    nodes, collective = data.draw(st.integers(2, 5)), data.draw(st.sampled_from(COLLECTIVES))
    each = len(_adapters(machine))
    some = st.lists(st.integers(0, each - 1), min_size=1, max_size=min(3, each - 1), unique=True)
    lost = data.draw(st.dictionaries(st.integers(0, nodes - 1), some, min_size=1)) if each > 1 else {}
    _answers_of_lost_adapters(machine, nodes, collective, lost)


def _adapters(machine: str) -> list[str]:
    return [device.name for device in bs.load(machine).devices if device.kind == "nic"]


def _answers_of_lost_adapters(machine: str, nodes: int, collective: str, lost: dict[int, list[int]]) -> None:
    """A machine that lost adapters has an answer, its schedule is right, and no time is below the bound."""
    names = _adapters(machine)
    edits = [f"without n{node}.{names[place]}" for node, places in lost.items() for place in places]
    question, wanted = bs.Question(machine, nodes=nodes, edits=tuple(edits)), Collective(collective)
    for size in (2**16, 2**30):
        found = schedules(question, wanted, [size])
        projection, schedule = found.answers(size, best=True)[0], found.at(size)
        assert projection.least is not None
        assert projection.time_s >= projection.least.time_s * (1 - 1e-9)
        assert verify(schedule.candidates[projection.algorithm].schedule).ok


@pytest.mark.parametrize("machine", ["dgx1-v100", "hgx-h200"])
def test_those_that_are_slower_wait_until_rows_are_asked_for(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text and the best need the quickest alone, which is that of the rows too."""
    asked = list[bool]()

    def answered(*given: Any) -> list[Answer]:
        asked.append(given[-1].only_best)
        return answer(*given)

    monkeypatch.setattr("blinksim.answers.compare.answer", answered)
    found = bs.compare(machine, "allreduce", ["64KiB", "1GiB"])
    assert found.text()
    best = [(one.algorithm, one.terms, one.bound) for one in found.best()]
    assert asked == [True]
    assert [(one.algorithm, one.terms, one.bound) for one, *_ in found.projections] == best
    assert len(found.rows()) > len(best)
    assert asked == [True, False]


def test_equal_parts_are_exact() -> None:
    """By hand: the three directions of a cube share an allreduce alike, so every order of them has a third."""
    cube = bs.load("hypercube:3")
    made = REGISTRY["few_rounds"].build(cube, bs.Collective("allreduce"), size=2**16, time_limit=3)
    assert {made.share(chunk) for chunk in range(made.chunks)} == {Fraction(1, 3)}
