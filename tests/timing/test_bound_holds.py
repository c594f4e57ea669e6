"""No answer is above the bound that stands beside it, NCCL's prediction on several nodes least of all."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given, settings, strategies as st
from machine_sorts import LIKE_OTHERS

import blinksim as bs
from blinksim.bounds.bound_result import EVERY_LINK, REDUCING_SWITCHES
from blinksim.collective import Collective, busbw_factor
from blinksim.errors import BlinksimError, InfeasibleError
from blinksim.formats.shipped import machine_names
from blinksim.machines import Question
from blinksim.timing.nccl_model import NcclTuner
from blinksim.timing.projection_result import Projection

DATA = Path(__file__).parents[1] / "data"
FILES = sorted(
    str(path)
    for path in (*DATA.glob("nccl_topo/*.xml"), *DATA.glob("machines/*.yaml"), DATA / "captures/h200x8/topo.xml")
)
SHAPES = [
    "torus:4x4",
    "switch:16",
    "full:8",
    "rails:2x4@300GB/s,50GB/s",
    "fattree:4x4@300GB/s,50GB/s,2:1",
    "dragonfly:3x2x2",
]
EVERY = [*(name for name in machine_names.names() if name not in LIKE_OTHERS), *SHAPES, *FILES]
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
# Bytes so large that latencies count for nothing.
SIZES = (2**20, 2**36)


# Those whose channels are found in less than a second; the others run in make test-all.
QUICK = {("dgx-a100", 1), ("hgx-h100", 1), ("hgx-h100", 2), ("p4d.24xlarge", 2), ("mi250", 1), ("k2200-ntb", 2)}
QUICK |= {("switch:16", 1), ("fattree:4x4@300GB/s,50GB/s,2:1", 1), ("p5b.yaml", 2)}
# Whose clusters have hundreds of ranks.
LARGE = {"gb200-nvl72", "tpu-v5p", "trn2-ultra"}
# One of each sort of network; on four nodes the others repeat what two show.
FOUR = {"dgx1-v100", "dgx-a100", "hgx-h100", "p5.48xlarge", "trn2.48xlarge", "aurora"}


def marks(machine: str, nodes: int) -> list[pytest.MarkDecorator]:
    if (Path(machine).name, nodes) in QUICK:
        return []
    # NCCL's files describe one node, of a machine that the catalogue has too.
    alike = (nodes == 4 and machine not in FOUR) or (nodes == 2 and machine.endswith(".xml"))
    return [pytest.mark.slow, *([pytest.mark.alike] if alike else [])]


CASES = [
    pytest.param(machine, nodes, marks=marks(machine, nodes))
    for machine in EVERY
    for nodes in (1, 2, 4)
    if not (machine in LARGE and nodes > 1) and (machine, nodes) != ("dgx-spark", 1)
]


def names(value: object) -> str:
    return Path(str(value)).name


def assert_holds(found: Projection) -> None:
    assert found.bound is not None
    # Times are floats: a part in 10^9 for their sums.
    assert found.algbw <= float(found.bound.rate) * (1 + 1e-9), (found.algorithm, found.details.get("nccl_algorithm"))


@pytest.mark.parametrize(("machine", "nodes"), CASES, ids=names)
def test_what_nccl_predicts_has_a_bound_and_keeps_it(machine: str, nodes: int) -> None:
    model = NcclTuner()
    try:
        whole = Question(machine, nodes=nodes).preferring_known("nccl").whole()
        model.prediction(whole)
    except BlinksimError:
        pytest.skip("NCCL does not run there, or nothing joins the nodes")
    for collective in COLLECTIVES:
        for found in model.times(whole, Collective(collective), SIZES):
            assert_holds(found)
            # What NCCL predicts for a machine of the catalogue is possible as it is.
            assert machine not in machine_names.names() or all(term.limit != "bound" for term in found.terms)


@pytest.mark.parametrize(("machine", "nodes"), CASES, ids=names)
def test_every_algorithm_keeps_the_bound(machine: str, nodes: int) -> None:
    try:
        part = bs.load(machine, nodes=nodes).select()
    except BlinksimError:
        pytest.skip("nothing joins the nodes")
    for collective in COLLECTIVES:
        try:
            found = bs.contest(part, collective)
        except BlinksimError:
            continue
        for projection in found.projections(2**36):
            assert_holds(projection)


@given(
    machine=st.sampled_from(["dgx1-v100", "hgx-h100", "p4d.24xlarge", "torus:4x4"]),
    members=st.sets(st.integers(0, 7), min_size=2),
    collective=st.sampled_from(COLLECTIVES),
)
@settings(max_examples=8, deadline=None)
def test_nccl_on_some_gpus_keeps_the_bound(machine: str, members: set[int], collective: str) -> None:
    """Also where NCCL leaves the NVLinks, or goes by way of a GPU that does not take part."""
    whole = bs.load(machine, rates="nccl") if ":" not in machine else bs.load(machine)
    chosen = replace(whole, members=tuple(whole.members[rank] for rank in sorted(members)))
    try:
        found = bs.project(chosen, collective, "64GiB", algorithm="nccl")
    except BlinksimError:
        assume(False)
    assert_holds(found)


def test_two_hosts_may_reduce_in_their_switches() -> None:
    """NVLS: a host sends what it added once, over eight adapters of 400 Gb/s."""
    found = bs.project(bs.load("hgx-h100", nodes=2), "allreduce", "1GiB", algorithm="nccl")
    assert found.details["nccl_algorithm"] == "nvls_tree"
    assert found.bound is not None
    assert found.bound.rate == 8 * 50 * 10**9
    assert found.bound.granted == (REDUCING_SWITCHES,)
    assert "it assumes: switches may multicast and reduce (NVLS)" in found.text()


@pytest.mark.parametrize("edit", ["without in-network", "nvswitch can=forward"])
def test_nvls_needs_switches_that_can(edit: str) -> None:
    found = bs.project(bs.load("hgx-h200", edits=edit), "allreduce", "1GiB", algorithm="nccl")
    assert not str(found.details["nccl_algorithm"]).startswith("nvls")


def test_rings_between_hosts_get_the_bound_that_all_others_have() -> None:
    machine = bs.load("dgx-a100", nodes=2)
    found, plain = (bs.project(machine, "allgather", "1GiB", algorithm=name) for name in ("nccl", "ring"))
    assert found.bound is not None
    assert plain.bound is not None
    assert found.bound.granted == ()
    assert found.bound.rate == plain.bound.rate


def test_no_bound_stands_on_what_nccl_counts_of_links() -> None:
    """Eight RTX PRO 6000 on two CPUs were measured with 37.6 GB/s busbw; NCCL counts 16 GB/s between CPUs.

    github.com/voipmonitor/rtx6kpro: the xGMI between the sockets carries 192 to 256 GB/s.
    """
    measured = Fraction(376 * 10**8) / busbw_factor("allreduce", 8)
    machine = bs.load("rtx-pro-6000-pcie", rates="nccl")
    found = bs.project(machine, "allreduce", "32MiB", algorithm="nccl")
    assert found.rates == "nccl"
    assert found.bound is not None
    assert found.least is not None
    assert found.least.time_s < 2**25 / measured
    assert found.bound.rate > measured
    # All bytes but a rank's own leave each port, of 64 GB/s, twice.
    assert found.bound.rate == Fraction(64 * 10**9 * 8, 14)
    assert "GB/s algbw at nominal rates, of which" in found.text()
    # A schedule at rates that were named is held to those, and the line says so.
    assert "at most     16 GB/s algbw at nccl rates" in bs.project(machine, "allreduce", "32MiB", "ring").text()


def test_a_comparison_with_nccl_shows_no_time_below_its_bound() -> None:
    """NCCL counts 5 us for a network whose messages are known to take 20 and more."""
    question = Question("p3.16xlarge", nodes=2)
    model, whole = NcclTuner().at(question.preferring_known("nccl"))
    others = {"nccl": lambda size: model.times(whole, Collective("broadcast"), [size], ["nccl"])[0]}
    found = bs.compare(question, "broadcast", ["1KiB", "64KiB", "1GiB"], ["binomial"], others=others)
    for size, least_s in found.least_s.items():
        [rows] = [one for one in found.projections if one[0].size == size]
        assert {one.algorithm for one in rows} == {"nccl", "binomial"}
        assert all(one.time_s >= least_s * (1 - 1e-9) for one in rows)
    assert [*found.least_s] == [2**10, 2**16, 2**30]


@pytest.mark.parametrize(("over", "per_leaf_GBps"), [(1, None), (8, 200), (32, 50)])
def test_a_narrow_fabric_is_not_outrun(over: int, per_leaf_GBps: int | None) -> None:
    """NCCL's search does not see it: a ring passes all shards but one into each group of four nodes."""
    shape = f"fabric shape=tree leaf_nodes=4 oversubscription={over}"
    model, whole = NcclTuner().at(Question("hgx-h100", nodes=16, edits=(shape,)))
    [(_, found)] = model.stated(whole, Collective("allgather"), 2**30, ["nccl"])
    [shown] = model.times(whole, Collective("allgather"), [2**30], ["nccl"])
    raised = [term.time_s for term in found.terms if term.limit == "bound"]
    if per_leaf_GBps is None:
        assert raised == []
        return
    assert found.time_s == pytest.approx(2**30 * 127 / 128 / (per_leaf_GBps * 1e9))
    assert len(raised) == 1
    assert found.bound is not None
    assert found.bottleneck == "what ring sends between nodes"
    # Other schedules pass twelve of sixteen shards: what nothing is quicker than is less than what a ring takes.
    assert shown.least is not None
    assert 0.7 * found.time_s < shown.least.time_s < found.time_s == shown.time_s


def test_nccl_over_pcie_is_granted_all_links() -> None:
    """GPUs 0, 3 and 5 of a DGX-1V have no NVLinks that join them."""
    whole = bs.load("dgx1-v100", rates="nccl")
    found = bs.project(replace(whole, members=("gpu0", "gpu3", "gpu5")), "allreduce", "1GiB", algorithm="nccl")
    assert_holds(found)
    assert found.bound is not None
    assert EVERY_LINK in found.bound.granted


def test_nccl_without_a_path_has_no_answer() -> None:
    """GPUs 0 and 2 of a torus have no link, and a shape draws no PCIe: any time would be made up."""
    torus = bs.load("torus:4x4")
    with pytest.raises(InfeasibleError, match="no links that NCCL takes join all of gpu0, gpu2"):
        bs.project(replace(torus, members=("gpu0", "gpu2")), "allreduce", "1GiB", algorithm="nccl")


def test_a_sweep_shows_nothing_above_its_bound() -> None:
    found = bs.sweep(
        "hgx-h100", "allreduce", ["1GiB"], {"nodes": [1, 2]}, algorithms=["best", "nccl", "two_shot"], bounds=True
    )
    assert all(0 < row["of_bound"] <= 1 for row in found.rows())
    assumed = {row["bound_assumes"] for row in found.rows() if row["asked"] == "nccl"}
    assert all(text.startswith(REDUCING_SWITCHES) for text in assumed)


@pytest.mark.parametrize("machine", ["p5en.48xlarge", "hgx-h100", "dgx1-v100"])
def test_no_term_is_rounding_and_no_time_is_below_the_least(machine: str) -> None:
    """Direct exchange attains the bound there, so its sums differ from the least time by rounding alone."""
    seen = 0
    for nodes, size in ((2, 2**28), (4, 2**20)):
        found = bs.project(bs.load(machine, nodes=nodes), "alltoall", size, algorithm="direct", model="alpha-beta")
        assert found.least is not None
        assert found.time_s >= found.least.time_s * (1 - 1e-12)
        assert found.time_s == sum(term.time_s for term in found.terms)
        assert all(term.time_s > 1e-9 * found.time_s for term in found.terms)
        seen += found.time_s < found.least.time_s * (1 + 1e-9)
    assert machine != "p5en.48xlarge" or seen
