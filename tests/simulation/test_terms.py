"""Projections by simulation: terms that add up, never below the bound, and refusals that say what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.answers.compare import across_models
from blinksim.answers.project import contest
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.nccl.tuner.tuner import predict_with
from blinksim.timing.nccl_model import NcclTuner, projections
from blinksim.timing.projection_result import Projection
from blinksim.timing.simulation_model import MOST_EVENTS
from blinksim.timing.simulator import exact_time

DGX1 = bs.load("dgx1-v100").selected()
QUAD = bs.load("dgx1-v100").select(["gpu0", "gpu1", "gpu2", "gpu3"])


@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(st.sampled_from(["ring", "double_binary", "binary", "two_shot", "mxnet"]), st.integers(8, 10**8))
def test_terms_add_up_to_the_simulated_time_and_stay_above_the_bound(name: str, size: int) -> None:
    found = bs.project(QUAD, "allreduce", size, algorithm=name, model="simulate")
    schedule = contest(QUAD, Collective("allreduce"), [name]).schedules[name]
    timeline = bs.simulate(schedule, size, most_events=MOST_EVENTS)
    assert found.time_s == pytest.approx(timeline.time_s, rel=1e-12)
    assert all(term.time_s > 0 and term.limit for term in found.terms)
    assert found.bound is not None
    assert found.algbw <= float(found.bound.rate) * (1 + 1e-12)
    assert (found.model, found.algorithm) == ("simulate", name)


def test_a_small_message_is_latency_and_overhead_and_a_large_one_bandwidth() -> None:
    nvlink = next(link for link in QUAD.links if link.kind == "nvlink")
    ring = contest(QUAD, Collective("allreduce"), ["ring"]).schedules["ring"]
    doubling = contest(QUAD, Collective("allreduce"), ["recursive_doubling"]).schedules["recursive_doubling"]
    small = {term.name: term.time_s for term in bs.simulate(doubling, 4).terms}
    steps = doubling.steps
    assert small["latency of nvlink"] == pytest.approx(steps * nvlink.latency)
    assert small["pieces passing nvlink"] == pytest.approx(steps * nvlink.overhead, rel=1e-3)
    large = {term.name: term.time_s for term in bs.simulate(ring, 2**30, most_events=MOST_EVENTS).terms}
    assert large["pieces passing nvlink"] > 0.99 * sum(large.values())


def test_the_best_is_the_quickest_simulated() -> None:
    every = contest(QUAD, Collective("allreduce"), model="simulate").projections(2**24)
    assert len(every) > 5
    assert [p.time_s for p in every] == sorted(p.time_s for p in every)
    best = bs.project(QUAD, "allreduce", "16MiB", model="simulate")
    assert (best.algorithm, best.time_s) == (every[0].algorithm, every[0].time_s)


def test_too_large_a_schedule_is_refused_with_what_to_do() -> None:
    pod = bs.load("hgx-h100", nodes=32)
    with pytest.raises(InfeasibleError, match=r"sends.*model='alpha-beta'.*chunk="):
        bs.project(pod, "allreduce", 2**30, algorithm="halving_doubling", model="simulate")
    with pytest.raises(InputError, match="model of schedules"):
        contest(QUAD, Collective("allreduce"), model="simulated")


def test_models_side_by_side() -> None:
    machine = bs.load("dgx1-v100", rates="nccl")
    prediction = predict_with(machine, machine.selected().members)

    def tuner(size: int) -> Sequence[Projection]:
        return projections(prediction, machine, Collective("allreduce"), size)

    table = across_models(machine, "allreduce", [2**24, 2**30], ("alpha-beta", "simulate", "nccl-tuner"))
    rows = {(row["size_bytes"], row["algorithm"], row["model"]): row for row in table.rows()}
    assert len(rows) == 2 * 2 * 3
    assert not table.refused
    assert all(row["ratio"] == 1 for key, row in rows.items() if key[2] == "alpha-beta")
    # Rings keep all links busy: both models come to the same. The trees' shared links need the simulation.
    assert rows[2**30, "ring", "simulate"]["ratio"] == pytest.approx(1, abs=0.02)
    assert rows[2**30, "ring", "nccl-tuner"]["time_s"] == min(
        p.time_s for p in tuner(2**30) if p.algorithm.startswith("ring/")
    )
    with pytest.raises(InputError, match="unknown model"):
        across_models(machine, "allreduce", [1024], ("alpha-beta", "guess"))
    alone = across_models(machine.selected(), "allreduce", [2**30], (NcclTuner(machine),))
    assert alone.rows()[0]["time_s"] == rows[2**30, "ring", "nccl-tuner"]["time_s"]


def test_packed_trees_come_within_three_percent_of_their_bound() -> None:
    machine = bs.load("p3.16xlarge").select(links=["nvlink"])
    schedule = bs.synthesize(machine, "allreduce").schedule
    bound = Fraction(600, 7) * 10**9
    assert schedule.bound["rate_exact"] == "600/7"
    assert 0.97 * bound < bs.simulate(schedule, 4 * 2**30).algbw < bound
    for power in range(12, 32):
        timeline = bs.simulate(schedule, 2**power, most_events=100_000)
        assert timeline.size <= exact_time(timeline) * bound


@pytest.mark.slow
def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*arguments: str) -> str:
        assert run([*arguments]) == 0
        return capsys.readouterr().out

    found = json.loads(answer("project", "dgx1-v100", "allreduce", "16MiB", "--model", "simulate", "--json"))
    assert found["model"] == "simulate"
    assert sum(term["time_s"] for term in found["terms"]) == pytest.approx(found["time_s"])
    assert "simulate" in answer(
        "project", "dgx1-v100", "allreduce", "16MiB", "--model", "simulate", "--algorithm", "all"
    )
    sizes = ("--sizes", "1MiB,64MiB")
    ranked = json.loads(answer("compare", "dgx1-v100", "allreduce", "--model", "simulate", *sizes, "--json"))
    at_16 = [row for row in ranked["rows"] if row["size_bytes"] == 2**26]
    assert min(at_16, key=lambda row: row["time_s"])["best"]
    beside = ("compare", "dgx1-v100", "allreduce", "--model", "alpha-beta,simulate,nccl-tuner", *sizes)
    rows = json.loads(answer(*beside, "--json"))["rows"]
    assert {row["model"] for row in rows} == {"alpha-beta", "simulate", "nccl-tuner"}
    assert len(answer(*beside, "--csv").splitlines()) == 1 + len(rows) == 13
    table = answer(*beside)
    assert "double_binary" in table
    assert "nccl rates" in table
    for wrong in (["--plot", "x.png"], ["--algorithms", "nccl,ring"], ["--model", "alpha-beta,guess"]):
        assert run([*beside, *wrong]) == 2
        capsys.readouterr()
    assert run(["project", "hgx-h100", "allreduce", "1GiB", "--nodes", "32", "--model", "simulate",
                "--algorithm", "halving_doubling"]) == 3  # fmt: skip
    assert "--model alpha-beta" in capsys.readouterr().err
