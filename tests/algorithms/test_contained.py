"""What a collective contains takes no longer: broadcast and reduce than an allreduce, allgather than an alltoall."""

from __future__ import annotations

import pytest

import blinksim as bs

MACHINES = (
    ("gaudi3", 1), ("gaudi3", 8), ("mi250", 2), ("mi250", 16), ("mi300x", 1), ("mi300x", 8), ("tpu-v5p", 4),
    ("alps", 8), ("dgx1-v100", 8), ("dgx1-v100", 64), ("p4d", 8), ("dgx2", 8), ("hgx-h100", 3), ("hgx-h100", 4),
    ("aurora", 4), ("p5", 8),
)  # fmt: skip


@pytest.mark.parametrize(("machine", "nodes"), MACHINES)
def test_one_half_takes_no_longer_than_an_allreduce(machine: str, nodes: int) -> None:
    part = bs.load(machine, nodes=nodes)
    for size in ("64KiB", "1MiB", "16MiB"):
        allreduce, *halves = (
            bs.project(part, name, size, model="alpha-beta", algorithm="best").time_s
            for name in ("allreduce", "broadcast", "reduce")
        )
        # An allreduce has more forms, such as other groups of nodes.
        assert max(halves) <= 1.04 * allreduce, (size, allreduce, halves)


@pytest.mark.parametrize(
    ("machine", "nodes"), [("mi300x", 16), ("leonardo", 64), ("p5", 64), ("alps", 16), ("hgx-h100", 64), ("gaudi3", 8)]
)
def test_an_allgather_takes_no_longer_than_an_alltoall_which_could_do_it(machine: str, nodes: int) -> None:
    part = bs.load(machine, nodes=nodes)
    for size in ("16KiB", "64KiB", "1MiB"):
        allgather, alltoall = (
            bs.project(part, name, size, model="alpha-beta", algorithm="best").time_s
            for name in ("allgather", "alltoall")
        )
        assert allgather <= 1.01 * alltoall, (size, allgather, alltoall)


@pytest.mark.parametrize(
    ("machine", "nodes", "size"), [("hgx-h100", 4, "16MiB"), ("mi300x", 8, "1MiB"), ("gaudi3", 8, "1MiB")]
)
@pytest.mark.parametrize("algorithm", ["scatter_allgather", "multi_lane"])
def test_simulated_they_take_what_sums_say(machine: str, nodes: int, size: str, algorithm: str) -> None:
    schedule = bs.synthesize(bs.load(machine, nodes=nodes), "broadcast", algorithm=algorithm)
    sums = bs.project(bs.load(machine, nodes=nodes), "broadcast", size, model="alpha-beta", algorithm=algorithm)
    assert 0.9 * sums.time_s <= bs.simulate(schedule, size).time_s <= 1.2 * sums.time_s
