"""How long links are busy: one figure in every answer, that of a simulation that serves every message."""

from __future__ import annotations

import re

import pytest

import blinksim as bs
from blinksim.answers.project import Answer
from blinksim.results import Term
from blinksim.timing.projection_result import Projection


@pytest.mark.parametrize("machine", ["dgx1-v100", "hgx-h100", "mi250", "full:6@50GB/s", "hypercube:3@25GB/s"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall", "broadcast"])
@pytest.mark.parametrize("size", [2**16, 2**22, 2**28])
def test_links_are_held_as_long_as_in_a_simulation(machine: str, collective: str, size: int) -> None:
    """Bytes and the overheads of messages: in as many pieces the busiest link passes as many seconds of both."""
    found = bs.contest(machine, collective)
    best = found.projections(size)[0]
    assert 0 < best.details["bottleneck_busy"] <= 1 + 1e-9
    run = bs.simulate(found.at(size).schedules[best.algorithm], size)
    if run.pieces == best.details["pieces"]:  # else they hold links for other overheads
        assert best.details["bottleneck_busy"] * best.time_s == pytest.approx(run.uses[0].busy_s, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 8])
def test_measured_links_do_not_limit_beside_adapters_that_nobody_measured(nodes: int) -> None:
    """Every byte crosses the 32 EFAs of a p5, which at data sheets carry less than its NVLinks: 400 of 3,600 GB/s."""
    found, alone = (bs.project(bs.load("p5", nodes=many), "allreduce", "1GiB") for many in (nodes, 1))
    assert isinstance(found, Answer)
    assert isinstance(alone, Answer)
    assert found.limited_by.startswith("efa, ")
    assert alone.limited_by.startswith("nvlink, 100 %")


def test_one_screen_says_one_figure() -> None:
    """What limits, the bottleneck of the schedule below it, and a simulation of that schedule."""
    found = bs.project(bs.load("hgx-h100", nodes=2), "allgather", "64MiB")
    assert isinstance(found, Answer)
    (kind, limited), (busy,) = (
        re.findall(r"limited by +(\w+), (\d+) %", found.why())[0],
        re.findall(r"\(nvlink\), busy (\d+) %", found.why()),
    )
    assert (kind, limited) == ("nvlink", busy)
    # The bound is the adapters' at nominal rates, so the line says at which rates NVLink is the narrowest.
    rates = re.findall(r"could take .* at (.*) rates, ", found.text())
    assert re.findall(r"limited by .* of the time of the best schedule at (.*) rates", found.text()) == rates
    assert rates == ["measured (pcie: nominal)"]
    # Nothing is said where both are of one table.
    aurora = bs.project("aurora", "allreduce", "1GiB")
    assert isinstance(aurora, Answer)
    assert aurora.could is not None
    told = re.search(r"limited by .* best schedule, and ([0-9.]+) % of what oneCCL takes$", aurora.text(), re.MULTILINE)
    assert told is not None
    best = aurora.could.best
    assert float(told[1]) == pytest.approx(100 * best.limit[1] * best.time_s / aurora.time_s, rel=0.05)
    part = bs.Question("hgx-h100", nodes=2, rates="measured").part()
    run = bs.simulate(bs.contest(part, "allgather", ["packed"]).schedules["packed"], "64MiB")
    assert f"{100 * run.uses[0].busy:.0f}" == busy


def test_time_in_which_links_idle_is_not_busy() -> None:
    ring = bs.project("dgx1-v100", "allreduce", "1GiB", algorithm="ring")
    slower: Projection = ring.longer(Term("launch", ring.time_s, "launch"))
    assert slower.details["bottleneck_busy"] == pytest.approx(ring.details["bottleneck_busy"] / 2)
    assert slower.limit[1] == pytest.approx(ring.limit[1] / 2)
