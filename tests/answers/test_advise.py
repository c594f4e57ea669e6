"""Advice: worth what it says by bounds and NCCL's own model, and what it hands out loads."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validated_nccl import points

from blinksim.answers.advise import SIZE, WORTH, Advice, advise
from blinksim.answers.bound import time_bound
from blinksim.answers.logs.expectation import Expectation
from blinksim.answers.project import project
from blinksim.answers.ranking import contest
from blinksim.bounds import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.machines import load
from blinksim.nccl.files import graph_file
from blinksim.nccl.tuner.prediction import predict
from blinksim.question import Question
from blinksim.schedule.verify import verify
from blinksim.timing.simulation_options import ServiceName
from blinksim.timing.simulator import simulate
from blinksim.topology.graph import Topology

SIX = [f"gpu{number}" for number in (0, 1, 2, 3, 4, 7)]


def dgx1(members: list[str] | None = None) -> tuple[Topology, Topology]:
    machine = load("dgx1-v100", rates="nccl")
    return machine.select(members), machine


def advised(part: Topology, machine: Topology, collective: str = "allreduce", size: int = SIZE) -> Advice:
    return advise(part, collective, size, machine=machine)


def check(found: Advice) -> None:
    """What every piece of advice promises."""
    limit = bound(found.part, found.collective)
    assert found.bound.rate >= limit.rate
    assert not found.bound.check(found.part, found.collective)
    for option in (found.best, found.loadable, found.other):
        if option is not None:
            assert verify(option.schedule).ok
            assert found.algbw(option.time_s) <= float(limit.rate) * (1 + 1e-9)
    if found.load is not None:
        assert found.load.exported is not None
        assert found.load.time_s * WORTH <= found.expected.time_s


def test_six_gpus_of_a_dgx1_gain_from_chains() -> None:
    """Blink (2018 short paper): up to twice as fast on 4 to 7 GPUs, where NCCL has but one ring each way."""
    found = advised(*dgx1(SIX))
    check(found)
    assert float(found.bound.rate) == 50e9
    assert found.expected.choice == "ring Simple"
    assert found.expected.time_s == predict(load("dgx1-v100", rates="nccl"), SIX).best("allreduce", found.size).time_s
    assert found.load is not None
    assert found.load.algorithm == "chains"
    assert found.sentence().endswith("in place of 23.91 GB/s, 1.9 times as fast")
    assert found.load.exported is not None
    graphs = graph_file.read_text(found.load.exported.files[""], "graph.xml")
    graph_file.check(graphs, [0, 1, 2, 3, 4, 7])
    assert found.load.exported.environment["NCCL_ALGO"] == "allreduce:tree"


@pytest.mark.slow
def test_all_eight_have_nothing_to_gain() -> None:
    found = advised(*dgx1())
    check(found)
    assert (found.load, found.alternative) == (None, None)
    assert "nothing worth loading: NCCL's own choice reaches 99 % of the bound" in found.sentence()


@pytest.mark.parametrize(
    ("multicast", "factor", "choice"), [(True, "8/9", "nvls Simple"), (False, "8/14", "ring Simple")]
)
def test_nvls_is_judged_by_a_bound_that_lets_switches_add(multicast: bool, factor: str, choice: str) -> None:
    machine = load("hgx-h200", rates="nccl")
    found = advise(machine.select(), machine=machine, multicast=multicast)
    check(found)
    # A port carries every byte (n + 1)/n times with NVLS, else 2(n - 1)/n times.
    port = next(iter(machine.links)).bandwidth
    assert (found.bound.rate, found.expected.choice) == (Fraction(factor) * port, choice)
    assert found.load is None


def test_other_runtimes_where_nccl_cannot_follow() -> None:
    machine = load("dgx-a100", nodes=2, rates="nccl")
    halves = [f"n{node}.gpu{number}" for node in range(2) for number in range(4)]
    found = advise(machine.select(halves), machine=machine)
    check(found)
    assert found.load is None
    assert found.alternative is not None
    # 3.3 % less than packed takes between four and four GPUs, by sums; simulated 0.4 % more.
    assert (found.alternative.algorithm, found.alternative.format) == ("hierarchical", "msccl-xml")
    assert found.alternative.exported is not None
    assert found.alternative.exported.files[""].lstrip().startswith("<algo ")


def test_where_nccl_does_not_run() -> None:
    aurora = load("aurora")
    found = advise(aurora.select(aurora.members[:6]), machine=aurora)
    check(found)
    assert (found.loadable, found.other) == (None, None)
    assert "NCCL does not run here; hierarchical reaches 148.6 GB/s algbw, rings 63.31 GB/s" in found.sentence()


@pytest.mark.parametrize("collective", ["allgather", "broadcast", "alltoall"])
def test_other_collectives(collective: str) -> None:
    found = advised(*dgx1(), collective=collective)
    check(found)
    assert found.collective == Collective(collective)
    data = found.to_dict()
    assert data["best"]["algbw_GBps"] * 1e9 <= float(found.bound.rate) * (1 + 1e-9)
    assert data["nccl"]["algbw_GBps"] > 0


@pytest.mark.slow
def test_small_sizes_are_left_alone() -> None:
    found = advised(*dgx1(SIX), size=8192)
    check(found)
    assert (found.load, found.alternative) == (None, None)
    assert "latency decides at this size" in found.sentence()
    # No schedule is quicker than that, and the bytes alone would be.
    assert found.least_s is not None
    assert 8192 / float(found.bound.rate) < found.least_s <= found.best.time_s
    assert found.to_dict()["least_time_s"] == found.least_s
    assert f"{100 * found.share(found.best.time_s):.0f} % of the bound" in found.sentence()


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "size"), [("allreduce", 2**20), ("allgather", 2**16)])
def test_the_best_is_that_of_all_algorithms_at_the_size(collective: str, size: int) -> None:
    """Also of those that search for it, whose time is the simulated one; nothing is below the bound for the size."""
    found = advised(*dgx1(), collective=collective, size=size)
    check(found)
    assert found.best.algorithm == "few_rounds"
    assert found.best.time_s < 0.8 * contest(found.part, collective, sizes=[size]).projections(size)[0].time_s
    services: tuple[ServiceName, ...] = ("fifo", "ordered")
    runs = [simulate(found.best.schedule, size, service=service).time_s for service in services]
    assert found.best.time_s == pytest.approx(min(runs), rel=0.02)
    assert found.best.time_s >= time_bound(found.part, collective, size).time_s
    row = next(row for row in found.rows() if row["use"] == "best")
    assert row["of_least_time"] == pytest.approx(found.least_s / found.best.time_s if found.least_s else 0)


def test_gpus_that_are_not_connected() -> None:
    with pytest.raises(InfeasibleError, match="does not connect the members"):
        dgx1(["gpu0", "gpu5"])


@pytest.mark.slow
def test_what_no_file_brings_is_said() -> None:
    """Far from the bound, "nothing worth loading" has another reason than a bound that is near."""
    machine = load("p3dn.24xlarge", nodes=16, rates="nccl")
    found = advise(machine.select(), machine=machine, size="1GiB")
    assert found.load is None
    assert found.alternative is None
    assert found.best.time_s * WORTH < found.expected.time_s
    assert found.sentence().endswith("% of packed")
    assert "no file makes NCCL or MSCCL reach" in found.sentence()


@pytest.mark.slow
def test_a_schedule_too_large_to_write_out_stands_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of ranks on parallel routes: the others are still advice."""
    machine = load("aurora", nodes=2)
    sends = {name: candidate.sends for name, candidate in contest(machine, "allreduce").candidates.items()}
    limit = sorted(sends.values())[-2]
    largest = max(sends, key=lambda name: sends[name])
    monkeypatch.setattr("blinksim.answers.advise.MOST_SENDS", limit)
    monkeypatch.setattr("blinksim.schedule.candidate.MOST_SENDS", limit)
    found = advise(machine.select(), machine=machine)
    assert found.best.schedule.sends <= limit
    assert found.best.algorithm != largest
    monkeypatch.setattr("blinksim.answers.advise.MOST_SENDS", 0)
    with pytest.raises(InfeasibleError, match="ranks; take fewer"):
        advise(machine.select(), machine=machine)


@pytest.mark.parametrize(("size", "quickest_us"), [(2**10, 13.5), (2**20, 27.1)])
def test_where_constants_are_known_both_times_are_real(size: int, quickest_us: float) -> None:
    """Within 10 % of what NCCL without NVLS and our quickest took on 8 H200 (validate/results)."""
    found = advise("hgx-h200", "allreduce", size, multicast=False)
    check(found)
    assert found.model == "execution"
    assert found.real
    assert found.part.rates.startswith("measured")
    assert found.best.time_s * 1e6 == pytest.approx(quickest_us, rel=0.1)
    [nccl] = [p.time_s for p in points() if (p.collective, p.ranks, p.size) == ("allreduce", 8, size)][:1]
    assert found.expected.time_s == pytest.approx(nccl, rel=0.1)
    # What NCCL takes is its own choice at the rates that it computes with, whatever is measured.
    own = predict(load("hgx-h200", rates="nccl"), multicast=False).best("allreduce", size)
    assert found.expected.choice == f"{own.algorithm} {own.protocol}"
    answer = found.to_dict()
    assert answer["model"] == "execution"
    assert "slices" in answer["best"]["executor"]
    assert (answer["calls"], answer["constants"][:13]) == ("successive", "measured on 2")
    assert "measured on 2 to 8 NVIDIA H200" in answer["nccl"]["measured_on"]


@pytest.mark.slow
def test_the_choice_at_a_size_is_that_of_project() -> None:
    for size in (2**16, 2**22):
        found = advise("hgx-h200", "allreduce", size)
        best = project(load("hgx-h200", rates="measured"), "allreduce", size, algorithm="best")
        assert (found.best.algorithm, found.best.time_s) == (best.algorithm, best.time_s)


@pytest.mark.slow
def test_other_rates_and_edits_of_links_leave_measured_constants_out() -> None:
    for rates in ("nccl", "nominal"):
        found = advise("hgx-h200", rates=rates)
        assert (found.model, found.expected.origin, found.real) == ("alpha-beta", "", False)
    damaged = Question("hgx-h200", edits=("degrade gpu0-nvswitch lanes=9",))
    assert advise(damaged).model == "alpha-beta"
    assert advise(damaged).part.rates == "nccl"
    assert advise(Question("hgx-h200", members="0-3", rates="measured")).model == "execution"


def test_amd_gpus_load_into_rccl() -> None:
    """RCCL's source (misc/msccl/msccl_lifecycle.cc) reads every file of MSCCL_ALGO_DIR."""
    found = advise("mi300x")
    check(found)
    assert "load two_shot into RCCL: " in found.sentence()
    assert found.alternative is not None
    assert found.alternative.exported is not None
    loads = found.alternative.exported.variables("here/two_shot.xml")
    assert loads == {"MSCCL_ALGO_DIR": "here", "RCCL_MSCCL_FORCE_ENABLE": "1"}
    assert found.alternative.exported.variables("two_shot.xml")["MSCCL_ALGO_DIR"] == "."
    assert found.to_dict()["library"] == "rccl"


def test_nccl_is_not_offered_to_what_other_libraries_drive() -> None:
    found = advise("gaudi2")
    assert "NCCL does not run here" in found.sentence()
    assert (found.load, found.alternative) == (None, None)


def test_links_that_run_one_way_only(tmp_path: Path) -> None:
    """NCCL takes every link both ways; it ran at many times the bound over links that it does not have."""
    file = tmp_path / "oneway.yaml"
    links = "".join(f"  - {{from: gpu{n}, to: gpu{(n + 1) % 4}, class: nvlink}}\n" for n in range(4))
    kind = "{bandwidth: 25GB/s, latency: 1us, overhead: 1us, source: made up}"
    file.write_text(
        f'name: oneway\ndevices: [{{name: "gpu[0-3]", kind: gpu}}]\nlink_classes: {{nvlink: {kind}}}\nlinks:\n{links}'
    )
    found = advise(file)
    check(found)
    assert "NCCL does not run here" in found.sentence()
    with pytest.raises(InfeasibleError, match="no links that NCCL takes join all of gpu0, gpu1, gpu2, gpu3"):
        predict(load(file))


def test_rccl_between_nodes_is_not_taken_for_nccl() -> None:
    """NCCL's search found one ring of 12.7 GB/s on two MI300X nodes, a tenth of what RCCL was measured to reach."""
    machine = load("mi300x", nodes=2)
    found = Expectation(machine.select(), machine, Collective("allreduce"))
    assert (found.runs, found.library) == (False, "RCCL")
    assert "RCCL has channels of its own" in found.silence
    assert found.at(SIZE).time_s < 0.002
    with pytest.raises(InfeasibleError, match="between nodes RCCL has channels of its own"):
        project(machine, "allreduce", SIZE, algorithm="nccl")


@pytest.mark.parametrize(
    ("edit", "weakest"),
    [
        ("without {}.nic[0-6]", "{}: 50 GB/s of ib, the other 1 node 400 GB/s"),
        ("degrade {0}.gpu5-{0}.nvswitch lanes=9", "{}.gpu5: 185.4 GB/s of nvlink, the other 15 GPUs 370.8 GB/s"),
        ("fabric shape=tree leaf_nodes=1 oversubscription=16", ""),
    ],
)
def test_a_damaged_cluster_is_judged_by_its_weakest_part(edit: str, weakest: str) -> None:
    first, last = (
        advise(Question("hgx-h100", nodes=2, edits=(edit.format(node),)), size=2**28, model="alpha-beta")
        for node in ("n0", "n1")
    )
    for node, found in (("n0", first), ("n1", last)):
        assert found.weakest == weakest.format(node)
        assert found.to_dict().get("weakest", "") == found.weakest
        assert max(row["of_bound"] for row in found.rows()) <= 1 + 1e-9
        assert max(row["of_least_time"] for row in found.rows()) <= 1
    assert first.expected == last.expected
    assert first.bound.rate == last.bound.rate
    # Of a leaf of one node 25 GB/s go up: what NCCL says alone is eight times as fast.
    assert ("raised to the bound" in first.basis) == edit.startswith("fabric")


@settings(max_examples=3, deadline=None)
@given(
    kind=st.sampled_from(["nvlink", "pcie", "qpi"]),
    rate=st.sampled_from(["1MB/s", "200MB/s", "3GB/s", "300GB/s"]),
    gpu=st.integers(1, 3),
    size=st.sampled_from([2**10, 2**22, 2**30]),
)
def test_no_advice_and_no_prediction_beats_the_bound_of_an_edited_machine(
    kind: str, rate: str, gpu: int, size: int
) -> None:
    question = Question("dgx1-v100", edits=(f"replace {kind} bandwidth={rate}", f"degrade gpu0-gpu{gpu} lanes=1"))
    found = advise(question, size=size)
    assert max(row["of_bound"] for row in found.rows()) <= 1 + 1e-9
    assert max(row["of_least_time"] for row in found.rows()) <= 1
    machine = question.preferring_known("nccl").whole()
    reached = project(machine, "allreduce", size, algorithm="nccl").algbw
    assert reached <= float(bound(machine.select(links="all"), "allreduce", in_network=True).rate) * (1 + 1e-9)
