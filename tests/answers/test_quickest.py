"""Synthesis for a size: the algorithm that is quickest there, by the model in force, beside what GPUs measured."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.answers.synthesize import Synthesis
from blinksim.cli.main import run
from blinksim.errors import InfeasibleError, InputError
from blinksim.schedule.verify import verify

RESULTS = Path(__file__).resolve().parents[2] / "validate" / "results"
MACHINE = bs.load("hgx-h200", rates="measured")


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


@pytest.mark.parametrize(("gpus", "size"), [(8, 2**12), (8, 2**18), (8, 2**20), (8, 2**26), (2, 2**16)])
def test_what_is_built_is_nearly_the_quickest_of_those_that_were_measured(gpus: int, size: int) -> None:
    found, real = made(gpus, size), measured_us(gpus, size)
    assert found.at is not None
    assert found.verdict.ok
    assert real[found.schedule.algorithm] <= 1.03 * min(real.values())
    assert found.at.time_s * 1e6 == pytest.approx(real[found.schedule.algorithm], rel=0.15)
    assert found.at.projection.model == "execution"


def test_the_choice_is_that_of_project_and_its_terms_add_up() -> None:
    found = made(8, 2**20)
    assert found.at is not None
    best = bs.project(MACHINE, "allreduce", 2**20)
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
    assert found.at.time_s == bs.project("dgx1-v100", "allreduce", "256MiB", algorithm="chain").time_s
    assert found.at.alternatives[0].algorithm == bs.project("dgx1-v100", "allreduce", "256MiB").algorithm
    assert bs.synthesize("dgx1-v100", "allreduce", "chain").at is None


@pytest.mark.slow
def test_what_cannot_be_asked_of_a_size() -> None:
    with pytest.raises(InputError, match="trees is what a certain algorithm takes"):
        bs.synthesize("dgx1-v100", "allreduce", size="1MiB", trees=2)
    with pytest.raises(InputError, match="size"):
        bs.synthesize("dgx1-v100", "allreduce", size="1 furlong")
    with pytest.raises(InfeasibleError, match="take model=alpha-beta"):
        bs.synthesize(MACHINE, "allreduce", "packed_in_network", size="1MiB")


@pytest.mark.slow
def test_one_screen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "quickest.json")
    assert run(["synth", "dgx1-v100", "allreduce", "--size", "16KiB", "-o", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("allreduce of 16 KiB on dgx1-v100 by few_rounds: 4.455")
    assert lines[0].endswith(" us, the quickest of 14 (alpha-beta)")
    labels = [line[2:12].strip() for line in lines[2:]]
    wanted = [
        "terms",
        "model",
        "simulated",
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
