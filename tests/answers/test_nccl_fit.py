"""NCCL's constants from logs: known ones come back, few points predict the rest, and what is not told apart is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nccl_tests_logs import Point, text
from validated_nccl import H200, Point as Time, points, prediction

from blinksim.answers.logs.calibrate import NcclFit, fit_nccl
from blinksim.answers.logs.expectation import Sample, Series
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.formats import rate_tables
from blinksim.machines import check, load
from validate.recipes.few_points import NCCL as CHOSEN

MIB = 2**20


def series(times: list[Time]) -> list[Series]:
    found: dict[tuple[str, int], list[Sample]] = {}
    for time in times:
        found.setdefault((time.collective, time.ranks), []).append(Sample(time.size, time.time_s))
    return [
        Series(H200.select(range(ranks)), Collective(name), tuple(samples)) for (name, ranks), samples in found.items()
    ]


def fitted(times: list[Time]) -> NcclFit:
    found = fit_nccl(series(times), version="2.28.9")
    assert found is not None
    return found


def errors(found: NcclFit, times: list[Time]) -> list[float]:
    result = []
    for time in times:
        best = prediction(time.ranks).best(time.collective, time.size)
        line = best.protocol.lower()
        predicted = found.rates.time(time.collective, time.ranks, time.size, line, 24)
        result.append(abs(predicted / time.time_s - 1))
    return result


def test_24_times_of_two_and_four_gpus_predict_the_rest() -> None:
    seen: set[tuple[str, int, int]] = set()
    chosen, rest = list[Time](), list[Time]()
    for time in points():
        key = time.collective, time.ranks, time.size
        wanted = time.ranks in (2, 4) and time.size in CHOSEN.get(time.collective, ()) and key not in seen
        (chosen if wanted else rest).append(time)
        seen.add(key)
    assert len(chosen) == 24
    found = fitted(chosen)
    assert H200.nccl_rates is not None
    full, few = H200.nccl_rates.constants(24), found.rates.constants(24)
    fixed = {name.replace(".rate", ".byte") for name in found.kept}
    assert len(fixed) <= 2
    for name in full.keys() - fixed:
        assert few[name] == pytest.approx(full[name], rel=0.3), name
    missed = errors(found, rest)
    assert len(missed) == 159
    assert np.median(missed) < 0.035
    assert np.quantile(missed, 0.9) < 0.10


def test_known_constants_come_back() -> None:
    """Times made from the constants of H200, with 2 % of noise."""
    rates = H200.nccl_rates
    assert rates is not None
    rng = np.random.default_rng(7)
    times = []
    for collective in ("allreduce", "allgather", "broadcast"):
        for ranks in (2, 3, 4, 8):
            for size in (2**power for power in range(12, 31, 2)):
                line = prediction(ranks).best(collective, size).protocol.lower()
                time = rates.time(collective, ranks, size, line, 24) * np.exp(rng.normal(0, 0.02))
                times.append(Time(collective, ranks, size, float(time)))
    found = fitted(times)
    truth = rates.constants(24)
    inside = 0
    for one in found.constants:
        name = one.name.replace(".rate", ".byte")
        value = 1 / truth[name] if one.is_rate else truth[name]
        assert one.value == pytest.approx(value, rel=0.25), one.name
        inside += one.low <= value <= one.high
    # Intervals of 95 %: of a dozen, at most two miss.
    assert inside >= len(found.constants) - 2
    assert found.error.median < 0.02


def test_a_rate_beyond_the_links_is_not_one_that_the_times_show() -> None:
    """Times by LL128 that hardly grow with the size: a start says it better than a rate of 2,000 GB/s."""
    times = []
    for time in points():
        by_ll128 = prediction(time.ranks).best(time.collective, time.size).protocol == "LL128"
        flat = (30 + 5e-7 * time.size) * 1e-6 if by_ll128 else time.time_s
        times.append(replace(time, time_s=flat))
    found = fitted(times)
    assert "ll128.rate" in found.kept
    assert H200.nccl_rates is not None
    assert found.rates.ll128.rate == H200.nccl_rates.ll128.rate
    assert found.rates.ll128.start_s != H200.nccl_rates.ll128.start_s
    assert found.rates.simple.rate == pytest.approx(H200.nccl_rates.simple.rate, rel=0.05)
    assert not check(replace(load("hgx-h200"), nccl_rates=found.rates))


def test_one_log_does_not_tell_start_from_steps() -> None:
    """All allreduces on eight GPUs make 14 steps."""
    found = fitted([time for time in points() if time.ranks == 8 and time.collective == "allreduce"])
    for line in ("ll", "simple"):
        assert len({f"{line}.start", f"{line}.hop"} & set(found.kept)) == 1
    assert {"simple.turn", "simple.rooted_start"} <= set(found.kept)
    assert found.rates.rooted_start_s == 17.1e-6
    assert found.rates.gpus == (8,)


def test_meshes_and_several_nodes_have_none() -> None:
    samples = tuple(Sample(size, 1e-5 + size / 1e11) for size in (2**12, 2**20, 2**30))
    for machine in (load("dgx1-v100"), load("hgx-h200", nodes=2)):
        assert fit_nccl([Series(machine.select(), Collective("allreduce"), samples)]) is None


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = []
    for ranks in (4, 8):
        times = [time for time in points() if (time.ranks, time.collective) == (ranks, "allreduce")]
        rows = [Point(time.size, time.time_s * 1e6, time.time_s * 1e6) for time in sorted(times, key=lambda t: t.size)]
        logs.append(str(tmp_path / f"{ranks}.txt"))
        Path(logs[-1]).write_text(text("allreduce", ranks, rows, devices=list(range(ranks))))
    target = str(tmp_path / "rates.yaml")
    assert run(["calibrate", *logs, "--machine", "hgx-h200", "--no-nvls", "-o", target]) == 0
    shown = capsys.readouterr().out
    assert "NCCL's constant" in shown
    assert "not told apart, and kept: simple.rooted_start" in shown
    rates = rate_tables.read(target).nccl_rates
    assert rates is not None
    assert rates.gpus == (4, 8)
    assert rates.error is not None
    asked = ["--members", "0-5", "--no-nvls", "--rates", target]
    assert run(["project", "hgx-h200", "allreduce", "1MiB", *asked]) == 0
    assert "measured on 4 to 8 NVIDIA H200" in capsys.readouterr().out
