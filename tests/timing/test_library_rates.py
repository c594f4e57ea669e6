"""Times by constants of a library: sums of what they count, against formulas of the literature and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from library_times import taken

import blinksim as bs
from blinksim.nccl.tuner.tuner import Timing
from blinksim.timing.measured.library_rates import (
    CHOICE,
    STEPS,
    LibraryRates,
    choice_counts,
    scope_of,
    step_counts,
)
from blinksim.timing.measured_constants import FitError

ERROR = FitError(0.05, 0.1, 20)


def rates(form: str, **values: float) -> LibraryRates:
    constants = {name.replace("_", " "): value for name, value in values.items()}
    return LibraryRates("box", "NCCL", "one node", form, (2, 8), constants, ERROR)


@given(st.integers(2, 64), st.integers(1, 2**34))
def test_steps_are_hockneys_ring(ranks: int, size: int) -> None:
    """2(n-1) steps of alpha + size / n * beta (Thakur, Rabenseifner and Gropp, 2005)."""
    alpha, beta = 2e-6, 1 / 50e9
    found = rates(STEPS, rounds_hop=alpha, rounds_bytes=beta).time(step_counts("allreduce", ranks, 1, size))
    assert found == pytest.approx(2 * (ranks - 1) * (alpha + size / ranks * beta))


@given(st.integers(2, 64), st.integers(1, 2**34))
def test_a_pipeline_of_the_best_pieces(depth: int, size: int) -> None:
    """The ramp 2 sqrt(steps * alpha * bytes * beta): what k pieces cost, for the best real k."""
    alpha, beta = 3e-6, 1 / 20e9
    steps, moved = depth, size * depth / (depth + 1)
    best = math.sqrt(moved * beta / (steps * alpha))
    cost = steps * alpha + moved * beta + steps * alpha * best + moved * beta / best
    known = rates(STEPS, rounds_hop=alpha, rounds_bytes=beta, rounds_ramp=2 * math.sqrt(alpha * beta))
    assert known.time(step_counts("allgather", depth + 1, 1, size)) == pytest.approx(cost)


def test_factors_of_one_are_what_nccl_says() -> None:
    counts = choice_counts(Timing("tree", "LL128", 1e-4, 3e-5, 1e10), "allreduce", 16, 2, 2**20)
    same = rates(CHOICE, tree_LL128_latency=1.0, tree_LL128_bytes=1.0)
    assert same.covers(counts)
    assert same.time(counts) == pytest.approx(1e-4)
    other = choice_counts(Timing("ring", "Simple", 1e-4, 3e-5, 1e10), "allreduce", 16, 2, 2**20)
    assert not same.covers(other)
    assert other["ring Simple turn"] == 2**16


def test_which_jobs_are_alike() -> None:
    assert [scope_of(*job) for job in ((1, 8), (2, 16), (10, 10))] == ["one node", "several nodes", "one GPU a node"]


@pytest.mark.parametrize("nodes", [2, 4])
def test_what_one_rig_loses_at_large_sizes_is_not_carried_to_others(nodes: int) -> None:
    """Ten nodes were measured, and their rate falls from 345 GB/s at 1 GiB to 314 at 4 GiB."""
    rigs = bs.load("hgx-h100", nodes=nodes)
    busbw = [bs.project(rigs, "allreduce", 2**power).busbw for power in range(28, 35)]
    assert all(later > 0.98 * most for most, later in zip(np.maximum.accumulate(busbw), busbw, strict=True))


@pytest.mark.parametrize("half", ["allgather", "reducescatter"])
def test_halves_of_what_was_measured_take_half_of_it(half: str) -> None:
    """oneCCL's allreduce on 12 tiles was published, its halves were not; on the links they are half of it."""
    whole, part = (bs.project("aurora", name, "1GB").time_s for name in ("allreduce", half))
    assert part == pytest.approx(whole / 2, rel=0.05)


@pytest.mark.parametrize("machine", ["dgx1-v100", "rtx-4090-pcie"])
@pytest.mark.parametrize("size", [2**13, 2**16])
def test_runs_that_were_told_a_protocol_say_nothing_of_another(machine: str, size: int) -> None:
    """NCCL picks LL here, which takes a step in a third of the time that the forced Simple needs."""
    [found] = taken(bs.Question(machine), "allreduce", [size])
    [forced] = taken(bs.Question(machine), "allreduce", [2**26])
    assert (found.details["choice"], forced.details["choice"]) == ("ring LL", "ring Simple")
    assert "65 published times" not in found.details["origin"]
    assert f"65 published times of {machine}" in forced.details["origin"]


def test_rings_of_rccl_pass_every_rank() -> None:
    """A hop takes 0.6 us by LL inside a node and 2.7 us between nodes (NCCL 2.28.3); no allgather does without."""
    for nodes in (64, 512):
        [found] = taken(bs.Question("frontier", nodes=nodes), "allgather", [8 * nodes * 8])
        assert found.time_s > 1e-6 * (0.6 * 7 * nodes + 2.7 * nodes)
