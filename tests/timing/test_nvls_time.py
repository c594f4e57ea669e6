"""The algorithm `nvls` at measured rates: its published times, and what cannot be timed."""

from __future__ import annotations

import pytest

import blinksim as bs
from blinksim.cli.main import run
from blinksim.errors import InfeasibleError

GPUS = ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6", "gpu7"]


@pytest.mark.parametrize(("ranks", "busbw"), [(5, 414.2), (6, 435.6), (7, 460.0), (8, 473.1)])
def test_large_allreduces_reach_the_published_rate(ranks: int, busbw: float) -> None:
    """8 GiB on 5 to 8 H200, NCCL 2.27.7 (ml-engineering, network/README.md)."""
    part = bs.load("hgx-h200", rates="measured").select(GPUS[:ranks])
    found = bs.project(part, "allreduce", "8GiB", algorithm="nvls")
    assert found.model == "execution"
    assert found.busbw_GBps == pytest.approx(busbw, rel=0.02)
    assert found.time_s == pytest.approx(sum(term.time_s for term in found.terms))
    assert found.bound is not None
    assert found.algbw < found.bound.rate


@pytest.mark.parametrize(("size", "microseconds"), [("2MiB", 41.34), ("16MiB", 122.1), ("64MiB", 319.0)])
def test_times_of_the_middle_are_those_of_a_table(size: str, microseconds: float) -> None:
    """Azure's table of 8 H200."""
    part = bs.load("hgx-h200", rates="measured").select()
    found = bs.project(part, "allreduce", size, algorithm="nvls")
    assert found.time_s * 1e6 == pytest.approx(microseconds, rel=0.05)


def test_only_an_allreduce_on_switches_that_add_is_timed() -> None:
    part = bs.load("hgx-h200", rates="measured").select()
    with pytest.raises(InfeasibleError, match="take model=alpha-beta"):
        bs.project(part, "allgather", "64MiB", algorithm="nvls", model="execution")
    with pytest.raises(InfeasibleError, match="has none"):
        bs.project("dgx-a100", "allreduce", "64MiB", algorithm="nvls", model="execution")


def test_project_says_what_switches_that_add_gain(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["project", "hgx-h200", "allreduce", "1GiB", "--rates", "measured"]
    assert run([*asked, "--algorithm", "ring,nvls"]) == 0
    assert "(nvls, execution)" in capsys.readouterr().out
    assert run(asked) == 0
    assert "NCCL picks nvls Simple" in capsys.readouterr().out
    assert run([*asked, "--no-nvls"]) == 0
    assert "NCCL picks ring" in capsys.readouterr().out


def test_small_sizes_are_told_to_be_unmeasured(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["project", "hgx-h200", "allreduce", "--rates", "measured", "--algorithm", "nvls"]
    assert run([*asked[:3], "64KiB", *asked[3:]]) == 0
    assert "nothing below 2 MiB was measured" in capsys.readouterr().out
    assert run([*asked[:3], "2MiB", *asked[3:]]) == 0
    assert "nothing below" not in capsys.readouterr().out
