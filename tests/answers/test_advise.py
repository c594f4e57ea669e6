"""Advice: its figures are those of `project`, nothing is above the bound, and what it hands out loads."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from library_times import taken

import blinksim as bs
from blinksim.answers.advise import SIZE, WORTH, Advice, advise
from blinksim.answers.idle_gpus import IDLE_GPUS
from blinksim.answers.logs.expectation import Expectation
from blinksim.answers.project import answer, contest, project
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.machines import Question, load
from blinksim.nccl.files import graph_file
from blinksim.nccl.tuner.tuner import predict
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology
from blinksim.units import format_time

SIX = [f"gpu{number}" for number in (0, 1, 2, 3, 4, 7)]


def dgx1(members: list[str] | None = None) -> tuple[Topology, Topology]:
    machine = load("dgx1-v100")
    return machine.select(members), machine


def advised(part: Topology, machine: Topology, collective: str = "allreduce", size: int = SIZE) -> Advice:
    return advise(part, collective, size, machine=machine)


def check(found: Advice) -> None:
    """What every piece of advice promises."""
    takes = found.answer
    assert takes.least is not None
    assert takes.bound is not None
    assert found.bound.rate == takes.bound.rate
    assert not found.bound.check(found.part, takes.collective)
    for option in (found.best, found.loadable, found.other):
        if option is not None:
            assert verify(option.schedule).ok
            assert option.time_s >= takes.least.time_s
    for option in (found.load, found.alternative):
        if option is not None:
            assert option.exported is not None
            assert option.time_s * WORTH <= takes.time_s


@pytest.mark.parametrize(
    ("machine", "collective", "size", "settings"),
    [
        ("dgx1-v100", "allreduce", 2**28, {"members": "0-4,7"}),
        ("hgx-h200", "allreduce", 2**30, {}),
        ("hgx-h100", "allgather", 2**26, {"nodes": 2}),
        ("p5", "alltoall", 2**26, {}),
        ("p6-b200", "reducescatter", 2**24, {}),
        ("dgx-a100", "broadcast", 2**24, {"nodes": 2}),
        ("mi300x", "allreduce", 2**28, {}),
        ("aurora", "allreduce", 2**26, {"members": "0-5"}),
        ("gaudi2", "allreduce", 2**28, {}),
        ("hgx-h200", "allreduce", 2**16, {"edits": ("degrade gpu0-nvswitch lanes=9",)}),
    ],
)
def test_the_three_figures_are_those_of_project(
    machine: str, collective: str, size: int, settings: dict[str, Any]
) -> None:
    question = Question(machine, **settings)
    found = advise(question, collective, size)
    check(found)
    [asked] = answer(question, Collective(collective), [size])
    assert found.answer.to_dict() == asked.to_dict()
    shown = found.to_dict()
    assert asked.could is not None
    assert (shown["nccl"]["time_s"], shown["best"]["time_s"]) == (asked.time_s, asked.could.best.time_s)
    assert asked.least is not None
    assert shown["least_time_s"] == asked.least.time_s
    assert f"{format_time(asked.time_s)} with {asked.library}" in found.sentence()
    # Beside what idle GPUs would add it says what carries that, and beside a time to load whose the interval is.
    advised = [(label, text.replace(f" with {asked.library} alone,", ",")) for label, text in found.lines()]
    assert {line for line in asked.lines() if line[0] != IDLE_GPUS} <= set(advised)
    assert (advised == found.lines()) == (found.load is None and found.alternative is None)


def test_six_gpus_of_a_dgx1_gain_from_chains() -> None:
    """Blink (2018 short paper): up to twice as fast on 4 to 7 GPUs, where NCCL has but one ring each way."""
    found = advised(*dgx1(SIX))
    check(found)
    assert found.answer.details["choice"] == "ring Simple"
    assert found.load is not None
    assert found.load.algorithm == "chains"
    # As many times as fast as the chains' links at NCCL's rates are beside the time that it states.
    stated = predict(load("dgx1-v100", rates="nccl"), SIX).best("allreduce", SIZE).time_s
    assert found.answer.time_s / found.load.time_s == pytest.approx(stated / 5.988e-3, rel=1e-3)
    assert found.sentence().endswith("in place of 13.06 ms with NCCL, 1.9 times as fast")
    assert found.load.exported is not None
    graphs = graph_file.read_text(found.load.exported.files[""], "graph.xml")
    graph_file.check(graphs, [0, 1, 2, 3, 4, 7])
    assert found.load.exported.environment["NCCL_ALGO"] == "allreduce:tree"


@pytest.mark.slow
def test_all_eight_have_nothing_to_gain() -> None:
    found = advised(*dgx1())
    check(found)
    assert (found.load, found.alternative) == (None, None)
    assert "nothing worth loading; " in found.sentence()


@pytest.mark.parametrize(
    ("multicast", "factor", "choice"), [(True, "8/9", "nvls Simple"), (False, "8/14", "ring Simple")]
)
def test_nvls_is_judged_by_a_bound_that_lets_switches_add(multicast: bool, factor: str, choice: str) -> None:
    found = advise("hgx-h200", multicast=multicast)
    check(found)
    # A port carries every byte (n + 1)/n times with NVLS, else 2(n - 1)/n times.
    port = next(iter(found.part.links)).bandwidth
    assert (found.bound.rate, found.answer.details["choice"]) == (Fraction(factor) * port, choice)
    assert found.load is None


def test_other_runtimes_where_nccl_cannot_follow() -> None:
    machine = load("dgx-a100", nodes=2, rates="nccl")
    halves = [f"n{node}.gpu{number}" for node in range(2) for number in range(4)]
    found = advise(machine.select(halves), machine=machine)
    check(found)
    assert found.load is None
    assert found.alternative is not None
    # 0.7 % less than hierarchical and 0.8 % less than packed between four and four GPUs, by sums and simulated.
    assert (found.alternative.algorithm, found.alternative.format) == ("blink_hierarchical", "msccl-xml")
    assert found.alternative.exported is not None
    assert found.alternative.exported.files[""].lstrip().startswith("<algo ")


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "size", "picked"),
    [
        ("l40s-pcie", 1, "allreduce", 2**28, "ring Simple"),
        ("hgx-h100", 1, "allgather", 2**26, "ring Simple"),
        ("p4d", 1, "reducescatter", 2**26, "ring Simple"),
        ("leonardo", 2, "allreduce", 2**30, "tree Simple"),
    ],
)
def test_what_nccl_takes_is_no_advice(machine: str, nodes: int, collective: str, size: int, picked: str) -> None:
    """A port carries no byte less by another schedule; only the models of a library and of links differ."""
    question = Question(machine, nodes=nodes)
    found = advise(question, collective, size)
    check(found)
    assert found.answer.details["choice"] == picked
    assert found.best.time_s * WORTH < found.answer.time_s
    assert (found.load, found.alternative) == (None, None)
    said, on_links = found.sentence(), "; on the links alone NCCL's schedule takes "
    assert said.endswith(", and no known one is a tenth quicker")
    assert on_links in said
    name = "ring" if picked.startswith("ring") else "chain_tree"
    own = contest(question.preferring_known("measured").part(), collective, [name], sizes=[size])
    assert own.projections(size)[0].time_s <= found.best.time_s * WORTH


def test_where_nccl_does_not_run() -> None:
    aurora = load("aurora")
    found = advise(aurora.select(aurora.members[:6]), machine=aurora)
    check(found)
    assert (found.loadable, found.other) == (None, None)
    assert found.best.algorithm == "hierarchical_trees"
    assert found.sentence().endswith("with oneCCL, which reads no schedules")


def test_rccl_reads_schedules_of_one_node_only() -> None:
    found = advise(load("mi300x", nodes=2).select(), size="256MiB")
    assert found.sentence().endswith("with RCCL, which reads no schedules of several nodes")


@pytest.mark.parametrize("collective", ["allgather", "broadcast", "alltoall"])
def test_other_collectives(collective: str) -> None:
    found = advised(*dgx1(), collective=collective)
    check(found)
    assert found.answer.collective == Collective(collective)
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
    least = found.to_dict()["least_time_s"]
    assert 8192 / float(found.bound.rate) < least <= found.best.time_s


def test_gpus_that_are_not_connected() -> None:
    with pytest.raises(InfeasibleError, match="does not connect the members"):
        dgx1(["gpu0", "gpu5"])


@pytest.mark.slow
def test_what_no_file_brings_is_said() -> None:
    """Far from the bound, "nothing worth loading" has another reason than a bound that is near."""
    found = advise(Question("p3dn.24xlarge", nodes=16), size="1GiB")
    assert found.load is None
    assert found.alternative is None
    assert found.best.time_s * WORTH < found.answer.time_s
    assert found.sentence().endswith("of packed")
    assert "no file makes NCCL or MSCCL take" in found.sentence()


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
    with pytest.raises(InfeasibleError, match="sends; take fewer ranks"):
        advise(machine.select(), machine=machine)


@pytest.mark.slow
def test_a_quicker_schedule_that_only_its_loads_describe_stands_back() -> None:
    """The quickest of 1,440 GPUs has four million sends, which no one writes out; a slower one is still advice."""
    found = advise(Question("gb200-nvl72", nodes=20))
    assert found.answer.could is not None
    assert found.answer.could.best.algorithm in ("hierarchical_direct", "hierarchical_multiplying")
    assert found.best.algorithm != "hierarchical_direct"
    assert verify(found.best.schedule).ok
    assert found.best.time_s > found.answer.could.best.time_s


@pytest.mark.parametrize(("size", "quickest_us"), [(2**10, 9.3), (2**20, 17.4)])
def test_where_constants_of_programs_are_known_the_best_is_a_program(size: int, quickest_us: float) -> None:
    """Near what our quickest took in a graph on 4 H200 (validate/results/job-scan-4gpu.csv)."""
    found = advise(Question("hgx-h200", members="0-3"), "allreduce", size, multicast=False)
    check(found)
    assert found.best.time_s * 1e6 == pytest.approx(quickest_us, rel=0.1)
    own = predict(load("hgx-h200", rates="nccl").select("0-3"), multicast=False).best("allreduce", size)
    shown = found.to_dict()
    assert shown["nccl"]["choice"] == f"{own.algorithm} {own.protocol}"
    assert shown["model"] == "execution"
    assert "slices" in shown["best"]["executor"]
    assert (shown["calls"], shown["constants"][:13]) == ("graph", "measured on 2")
    assert shown["nccl"]["measured_on"] == shown["takes"]["origin"]


@pytest.mark.slow
def test_the_choice_at_a_size_is_that_of_project() -> None:
    for size in (2**16, 2**22):
        found = advise("hgx-h200", "allreduce", size)
        best = project(load("hgx-h200", rates="measured"), "allreduce", size, algorithm="best")
        assert (found.best.algorithm, found.best.time_s) == (best.algorithm, best.time_s)


@pytest.mark.slow
def test_edits_of_links_leave_measured_constants_out() -> None:
    damaged = Question("hgx-h200", edits=("degrade gpu0-nvswitch lanes=9",))
    assert advise(damaged).to_dict()["model"] == "alpha-beta"
    assert advise(Question("hgx-h200", members="0-3", rates="measured")).to_dict()["model"] == "execution"


def test_amd_gpus_load_into_rccl() -> None:
    """RCCL's source (misc/msccl/msccl_lifecycle.cc) reads every file of MSCCL_ALGO_DIR."""
    found = advise("mi300x")
    check(found)
    assert "load two_shot into RCCL: " in found.sentence()
    # The links alone take no launches.
    assert re.search(r", at most \d+(\.\d)? times as fast$", found.sentence())
    assert found.alternative is not None
    assert found.alternative.exported is not None
    loads = found.alternative.exported.variables("here/two_shot.xml")
    assert loads == {"MSCCL_ALGO_DIR": "here", "RCCL_MSCCL_FORCE_ENABLE": "1"}
    assert found.alternative.exported.variables("two_shot.xml")["MSCCL_ALGO_DIR"] == "."
    assert found.to_dict()["library"] == "rccl"


def test_nccl_is_not_offered_to_what_other_libraries_drive() -> None:
    found = advise("gaudi2")
    assert " with HCCL, " in found.sentence()
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
    assert (found.runs, found.load, found.alternative) == (False, None, None)
    with pytest.raises(InfeasibleError, match="no links that NCCL takes join all of gpu0, gpu1, gpu2, gpu3"):
        predict(load(file))


def test_rccl_between_nodes_is_not_taken_for_nccl() -> None:
    """NCCL's search found one ring of 12.7 GB/s on two MI300X nodes, a tenth of what RCCL was measured to reach."""
    machine = load("mi300x", nodes=2)
    found = Expectation(machine.select(), machine, Collective("allreduce"))
    assert (found.prediction, found.takes.library) == (None, "RCCL")
    assert found.at(SIZE).time_s < 0.002
    with pytest.raises(InfeasibleError, match="between nodes RCCL has channels of its own"):
        project(machine, "allreduce", SIZE, algorithm="nccl")


@pytest.mark.parametrize(
    ("edit", "weakest"),
    [
        ("without {}.nic[0-6]", "{}: 50 GB/s of ib, the other node 400 GB/s"),
        ("degrade {0}.gpu5-{0}.nvswitch lanes=9", "{}.gpu5: 225 GB/s of nvlink, the other 15 GPUs 450 GB/s"),
        ("fabric shape=tree leaf_nodes=1 oversubscription=16", ""),
    ],
)
def test_a_damaged_cluster_is_judged_by_its_weakest_part(edit: str, weakest: str) -> None:
    first, last = (
        advise(Question("hgx-h100", nodes=2, edits=(edit.format(node),)), size=2**28) for node in ("n0", "n1")
    )
    for node, found in (("n0", first), ("n1", last)):
        assert found.answer.weakest == weakest.format(node)
        assert found.to_dict().get("weakest", "") == found.answer.weakest
        assert max(row["of_bound"] for row in found.rows()) <= 1 + 1e-9
        assert max(row["of_least_time"] for row in found.rows()) <= 1
    assert first.answer.time_s == pytest.approx(last.answer.time_s)
    assert first.bound.rate == last.bound.rate


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
    edits = (f"replace {kind} bandwidth={rate}", f"degrade gpu0-gpu{gpu} lanes=1")
    question = Question("dgx1-v100", members="0-3", edits=edits)
    found = advise(question, size=size)
    assert max(row["of_bound"] for row in found.rows()) <= 1 + 1e-9
    assert max(row["of_least_time"] for row in found.rows()) <= 1
    machine = question.preferring_known("nccl").whole()
    reached = project(machine, "allreduce", size, algorithm="nccl").algbw
    assert reached <= float(bound(machine.select(links="all"), "allreduce", in_network=True).rate) * (1 + 1e-9)


@pytest.mark.parametrize(("machine", "members", "loads"), [("l40s", None, False), ("dgx1-v100", "0,1,2,3,4,7", True)])
def test_what_to_load_is_timed_at_the_rates_of_what_could_be_taken(
    machine: str, members: str | None, loads: bool
) -> None:
    """NCCL assumes links of L40S for an allreduce at 10 GB/s; measured ones carry 6.2, so chains gain nothing there."""
    question = Question(machine, members=members)
    found, links = advise(question, size=SIZE), question.preferring_known("measured").part()
    assert (found.load is not None) is loads
    assert found.loadable is not None
    rivals = contest(links, Collective("allreduce"), [found.loadable.schedule], model="alpha-beta", sizes=[SIZE])
    assert found.loadable.time_s >= rivals.projections(SIZE)[0].time_s * 0.999


@pytest.mark.parametrize("machine", ["p5", "hgx-h100", "dgx-a100"])
@pytest.mark.parametrize("collective", ["alltoall", "gather"])
def test_what_a_library_sends_by_itself_is_not_worth_loading(machine: str, collective: str) -> None:
    found = bs.advise(bs.Question(machine, nodes=2), collective)
    for option in (found.load, found.alternative):
        assert option is None or option.algorithm not in ("direct", "rail_aligned")
    if collective == "alltoall":
        assert "nothing worth loading" in found.sentence()


@pytest.mark.parametrize(
    ("machine", "nodes", "port", "told"),
    [
        ("p5", 2, "n1.efa0-fabric", {"n1": "by FI_EFA_IFACE"}),
        ("hgx-h100", 4, "n2.nic3-fabric3", {"n2": "NCCL_IB_HCA=^=mlx5_3"}),
        ("perlmutter", 2, "n1.nic1-fabric", {"n1": "FI_CXI_DEVICE_NAME=cxi0,cxi2,cxi3"}),
    ],
)
def test_an_adapter_that_nccl_waits_for_is_to_be_left_out(
    machine: str, nodes: int, port: str, told: dict[str, str]
) -> None:
    """NCCL told to leave it out takes what it takes on a machine without it, and nothing slower is offered."""
    slow, adapter = f"degrade {port} bandwidth=1GB/s", port.partition("-")[0]
    question = Question(machine, nodes=nodes, edits=(slow,))
    found, [without] = (
        advise(question, size=2**30),
        taken(replace(question, edits=(f"without {adapter}",)), "allreduce", [2**30]),
    )
    spared = found.answer.meanwhile
    assert spared is not None
    assert spared.time_s == pytest.approx(without.time_s)
    assert 5 * spared.time_s < found.answer.time_s
    better = found.alternative or found.load
    assert better is None or better.time_s * WORTH <= spared.time_s
    assert better or f": leave out {adapter}, " in found.sentence()
    assert better or f": {format_time(without.time_s)}, busbw " in found.sentence()
    takes = found.to_dict()["takes"]
    assert takes["meanwhile_set"] == told
    words = "the quickest that is known is what NCCL runs without slow adapters"
    assert found.answer.could is not None
    assert (words in dict(found.lines())["could take"]) == (found.answer.could.best.time_s > spared.time_s)


@pytest.mark.parametrize("edit", [(), ("without n1.efa0",), ("degrade n1.gpu3-n1.nvswitch lanes=9",)])
def test_what_nccl_does_not_wait_for_is_not_left_out(edit: tuple[str, ...]) -> None:
    [found] = answer(Question("p5", nodes=2, edits=edit), Collective("allreduce"), [2**30])
    assert found.meanwhile is None
    assert "meanwhile" not in dict(found.lines())
