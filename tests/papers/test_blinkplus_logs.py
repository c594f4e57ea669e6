"""Blink+'s channels against its logs: links alone give the theory, with one cap the measurements."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.papers import blinkplus
from blinksim.papers.blinkplus import OWN, fitted, speedup

LOGS = Path(__file__).resolve().parents[1] / "golden" / "blinkplus_measured.csv"
LARGE = 2**30
# Operation, tenant, channels: the logs with two to four channels, and the speedups at 1 GiB that they show.
THREE = {("broadcast", "0,1"): 2.91, ("broadcast", "0,3"): 1.39, ("allreduce", "0,1"): 2.59, ("allreduce", "0,3"): 1.29}


@cache
def measured() -> dict[tuple[str, str, int, int], float]:
    """Bytes/s by operation, tenant, channels and MiB (Blink+ report, section 4.2, raw logs)."""
    with LOGS.open(encoding="utf-8") as file:
        return {
            (r["operation"], r["tenant"], OWN[r["tenant"]] + int(r["n_side_channels"]), int(r["size_MiB"])): 1e9
            * float(r["bw_recomputed_GBps"])
            for r in csv.DictReader(file)
        }


def test_the_logs_are_the_golden_ones() -> None:
    assert {
        (*key, size >> 20): size / time for key, times in blinkplus.logs().items() for size, time in times.items()
    } == pytest.approx(measured(), rel=1e-6)


def test_the_schedules_are_right() -> None:
    for operation, tenant in THREE:
        assert bs.verify(blinkplus.side_channels(operation, tenant, 3)).ok


@pytest.mark.parametrize(("operation", "tenant"), THREE)
def test_speedups_of_three_channels_with_a_cap_fitted_on_one_tenant(operation: str, tenant: str) -> None:
    logs = measured()
    shown = logs[operation, tenant, 3, 1024] / logs[operation, tenant, OWN[tenant], 1024]
    assert shown == pytest.approx(THREE[operation, tenant], abs=0.006)
    assert speedup(operation, tenant, 3, LARGE, fitted()[1]) == pytest.approx(shown, rel=0.15)
    # Without it the links alone: three channels instead of one or two.
    assert speedup(operation, tenant, 3, LARGE, None) == pytest.approx(3 / OWN[tenant], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("tenant", OWN)
def test_a_fourth_channel_gains_nothing(tenant: str) -> None:
    logs, cap = measured(), fitted()[1]
    shown = logs["broadcast", tenant, 4, 1024] / logs["broadcast", tenant, OWN[tenant], 1024]
    assert speedup("broadcast", tenant, 4, LARGE, cap) == pytest.approx(shown, rel=0.15)
    assert speedup("broadcast", tenant, 4, LARGE, cap) < 1.02 * speedup("broadcast", tenant, 3, LARGE, cap)
    assert speedup("broadcast", tenant, 4, LARGE, None) == pytest.approx(4 / OWN[tenant], rel=0.04)


@pytest.mark.parametrize("operation", ["broadcast", "allreduce"])
@pytest.mark.parametrize("tenant", OWN)
def test_side_channels_lose_at_small_messages(operation: str, tenant: str) -> None:
    cap = fitted()[1]
    gains = [speedup(operation, tenant, 3, size, cap) for size in (64, 4096, 2**20, 2**26)]
    # A broadcast through a neighbour takes two sends instead of one; an allreduce two either way.
    assert gains[0] == pytest.approx(0.5 if operation == "broadcast" else 1, rel=0.01)
    assert gains[-1] > 1.2
    assert gains == sorted(gains)
