"""How long links are busy: one figure in every answer, that of a simulation that serves every message."""

from __future__ import annotations

import re

import pytest

import blinksim as bs
from blinksim.answers.project import Answer, answer
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
        re.findall(r"limited by +(\w+), (\d+) % of the time of packed ", found.why())[0],
        re.findall(r"\(nvlink\), busy (\d+) %", found.why()),
    )
    assert (kind, limited) == ("nvlink", busy)
    # The bound is the adapters' at nominal rates; the line above says at which ones packed takes so long.
    assert re.findall(r"could take .* by packed at (.*) rates, ", found.text()) == ["measured (pcie: nominal)"]
    aurora = bs.project("aurora", "allreduce", "1GiB")
    assert isinstance(aurora, Answer)
    assert aurora.could is not None
    told = re.search(
        r"limited by .* % of the time of .*, ([0-9.]+) % of what oneCCL takes$", aurora.text(), re.MULTILINE
    )
    assert told is not None
    best = aurora.could.best
    assert float(told[1]) == pytest.approx(100 * best.limit[1] * best.time_s / aurora.time_s, rel=0.05)
    part = bs.Question("hgx-h100", nodes=2, rates="measured").part()
    run = bs.simulate(bs.contest(part, "allgather", ["packed"]).schedules["packed"], "64MiB")
    assert f"{100 * run.uses[0].busy:.0f}" == busy


@pytest.mark.parametrize(
    ("nodes", "size"), [(4, 2**14), (16, 2**16), (64, 2**10), (64, 2**16), (64, 2**20), (64, 2**24)]
)
def test_what_limits_is_what_the_terms_add_up_to(nodes: int, size: int) -> None:
    """Of a link class its bytes and the starts of messages are the share that is said; else the term has that share."""
    question = bs.Question("aurora", nodes=nodes, ranks_per_node=6)
    [found] = answer(question, bs.Collective("allreduce"), [size])
    assert found.could is not None
    best = found.could.best
    share = {term.name: term.time_s / best.time_s for term in best.terms}
    what, limit, _ = best.limit
    starts = best.details["bottleneck_starts"]
    assert limit == pytest.approx(share[what] if what in share else share[f"bandwidth of {what}"] + starts)
    assert found.limited_by.startswith(f"{what}, {100 * limit:.0f} % of the time of {best.algorithm}")
    assert f"{what}, {100 * limit:.0f} % of the time" in found.why().partition("\ncould take\n")[0]
    assert f"({what}), busy {100 * limit:.0f} % of the time" in found.why() or f"bottleneck  {what}, " in found.why()


def test_time_in_which_links_idle_is_not_busy() -> None:
    ring = bs.project("dgx1-v100", "allreduce", "1GiB", algorithm="ring")
    slower: Projection = ring.longer(Term("launch", ring.time_s, "launch"))
    assert slower.details["bottleneck_busy"] == pytest.approx(ring.details["bottleneck_busy"] / 2)
    assert slower.limit[1] == pytest.approx(ring.limit[1] / 2)
