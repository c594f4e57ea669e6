"""The constants of NCCL that come with machines, against times that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from validated_nccl import H200, points, prediction

from blinksim.formats.shipped.machine_names import names
from blinksim.machines import load
from blinksim.timing.measured_constants import addends

SPACE = Path(__file__).resolve().parents[1] / "data" / "captures" / "h200x8" / "nccl_space.json"
RATES = H200.nccl_rates


def test_the_constants_of_h200_give_what_nccl_took() -> None:
    """183 times on 2 to 8 GPUs; NCCL's own figures are three times as far off."""
    assert RATES is not None
    ours, own = [], []
    for point in points():
        best = prediction(point.ranks).best(point.collective, point.size)
        line = RATES.line_of(best.algorithm, best.protocol, point.ranks)
        assert line is not None
        time = RATES.time(point.collective, point.ranks, point.size, line, 24)
        ours.append(abs(time / point.time_s - 1))
        own.append(abs(best.time_s / point.time_s - 1))
    assert len(ours) == 183
    assert np.median(ours) < 0.028
    assert np.quantile(ours, 0.9) < 0.085
    assert max(ours) < 0.22
    assert RATES.error is not None
    assert RATES.error.points == len(ours)
    assert RATES.error.median == pytest.approx(np.median(ours), abs=5e-4)
    assert RATES.error.p90 == pytest.approx(np.quantile(ours, 0.9), abs=1e-3)
    assert np.median(own) > 3 * np.median(ours)


@pytest.mark.parametrize("channels", [4, 8, 16, 32])
def test_what_channels_carry(channels: int) -> None:
    """From 64 MiB on, where the rate counts; replays of CUDA graphs start a little later."""
    assert RATES is not None
    runs = json.loads(SPACE.read_text())["runs"]
    errors = []
    for protocol in ("LL", "LL128", "Simple"):
        for key, measured_us in runs[f"Ring_{protocol}_c{channels}"].items():
            collective, size = key.split()
            if int(size) >= 2**26:
                time = RATES.time(collective, 8, int(size), protocol.lower(), channels)
                errors.append(abs(time * 1e6 / measured_us - 1))
    assert len(errors) == 45
    assert np.median(errors) < 0.07
    assert max(errors) < 0.25


def test_terms_add_up_and_grow_with_size_and_ranks() -> None:
    assert RATES is not None
    for collective in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce"):
        for line in ("ll", "ll128", "simple"):
            times = []
            for ranks in (2, 4, 8):
                for size in (2**10, 2**20, 2**30):
                    terms = list(RATES.terms(collective, ranks, size, line, 24))
                    time = RATES.time(collective, ranks, size, line, 24)
                    assert time == pytest.approx(sum(term.time_s for term in terms))
                    assert {term.limit for term in terms} == set(addends(collective, ranks, size, line))
                    times.append(time)
            for row in np.array(times).reshape(3, 3):
                assert list(row) == sorted(row)


def test_no_constants_beyond_what_was_measured() -> None:
    assert RATES is not None
    assert RATES.line_of("ring", "LL128", 5) == "ll128"
    assert RATES.line_of("ring", "LL", 16) is None
    assert RATES.line_of("tree", "LL", 8) is None
    assert RATES.line_of("nvls", "Simple", 8) == "nvls"


def test_where_constants_come_from_reads_on_after_from() -> None:
    """Answers print it as ``from  …``; what was derived does not say that it was measured."""
    known = {name: rates for name in names() if (rates := load(name).nccl_rates) is not None}
    assert {"hgx-h100", "gb200-nvl72"} <= set(known)
    for name, rates in known.items():
        said = [rates.origin_of(line) for line in ("simple", "nvls")]
        assert all(words.startswith(("measured on ", "not measured on ", "fitted to ")) for words in said), name
        assert not any(words.startswith("measured on ") and "constants of" in words for words in said), name
