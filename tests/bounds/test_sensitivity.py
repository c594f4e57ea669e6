"""What one link, lane or NIC changes, against edits computed from scratch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from golden_machines import GB, a100, dgx1v
from hypothesis import given, settings
from strategies import topologies

from blinksim.bounds import bound
from blinksim.bounds.sensitivity import joined_pairs, lane_gains, link_losses, nic_gain
from blinksim.collective import Collective
from blinksim.machines import load
from blinksim.topology.graph import Topology


def test_all_single_losses_of_the_v100_machine() -> None:
    machine, collective = dgx1v(), Collective("allgather")
    rows = link_losses(machine, collective)
    assert len(rows) == 16
    assert [row.after for row in rows] == sorted(row.after for row in rows)
    for row in rows:
        (pair,) = row.pairs
        ends = pair.partition(" ")[0]
        assert row.before == Fraction(1200, 7) * GB
        assert row.after == bound(machine.without(ends), collective).rate
    # A GPU that loses a double link keeps four lanes, and no other cut is as narrow.
    double = next(row for row in rows if row.what == "gpu0-gpu3 (nvlink) lost")
    assert double.after == Fraction(800, 7) * GB
    assert double.ratio == pytest.approx(2 / 3)
    lanes = link_losses(machine, collective, one_lane=True)
    one = next(row for row in lanes if row.what == "gpu0-gpu3 (nvlink) loses one of 2 lanes")
    assert one.after == Fraction(1000, 7) * GB


def test_losses_of_alike_links_are_one_row() -> None:
    machine = a100(3)
    rows = link_losses(machine, Collective("allgather"))
    assert sum(len(row.pairs) for row in rows) == len(machine.links) // 2
    assert len(rows) == 3
    every = link_losses(replace(machine, symmetries=(), nodes=1), Collective("allgather"))
    assert len(every) == len(machine.links) // 2
    expected = {row.pairs[0]: row.after for row in every}
    assert all(expected[pair] == row.after for row in rows for pair in row.pairs)
    assert all(row.after > 0 for row in rows)  # a GPU keeps its NIC or its NVSwitch


def test_a_loss_that_cuts_a_gpu_off() -> None:
    chain = dgx1v().select(["gpu0", "gpu1", "gpu5"])
    rows = link_losses(chain, Collective("allreduce"))
    assert [(row.after, row.bottleneck) for row in rows] == [
        (0, "not connected: gpu0 | gpu1 gpu5"),
        (0, "not connected: gpu0 gpu1 | gpu5"),
    ]
    assert rows[0].to_dict()["rate_exact"] == "0"


def test_a_lane_helps_only_where_every_bottleneck_counts_it() -> None:
    # Eight GPUs are equally narrow: no single lane helps allgather, but any lane helps the partition of allreduce.
    assert {row.after for row in lane_gains(dgx1v(), Collective("allgather"))} == {Fraction(1200, 7) * GB}
    rows = lane_gains(dgx1v(), Collective("allreduce"))
    assert {row.after for row in rows} == {Fraction(625, 7) * GB}
    # A slow link into one GPU is all that matters.
    narrow = dgx1v().without("gpu0-gpu3").without("gpu0-gpu4")
    best = lane_gains(narrow, Collective("broadcast"))[0]
    assert best.what.startswith("gpu0-")
    assert best.after == 75 * GB


@settings(max_examples=12)
@given(topologies(max_devices=6))
def test_gains_and_losses_match_edits(topology: Topology) -> None:
    collective = Collective("allgather")
    pairs = [pair for group in joined_pairs(topology, collective) for pair in group]
    assert sum(map(len, pairs)) == len(topology.links)
    gains = {row.pairs[0]: row.after for row in lane_gains(topology, collective)}
    for pair in pairs:
        keys = {link.key for link in pair}
        more = [replace(x, lanes=x.lanes + 1) if x.key in keys else x for x in topology.links]
        name = f"{pair[0].src}-{pair[0].dst} ({pair[0].kind})"
        assert gains[name] == bound(replace(topology, links=tuple(more)), collective).rate
    for row in link_losses(topology, collective):
        assert row.after <= row.before


def test_one_nic_more() -> None:
    change = nic_gain(a100(4), Collective("allgather"))
    assert change is not None
    # The box cut of 8 x 25 GB/s becomes 9 x 25, for 24 of 32 shards.
    assert (change.before, change.after) == (Fraction(800, 3) * GB, 300 * GB)
    assert nic_gain(dgx1v(), Collective("allgather")) is None


@pytest.mark.parametrize("name", ["gather", "scatter", "broadcast", "reduce"])
def test_a_root_breaks_the_symmetry_of_a_ring(name: str) -> None:
    machine, collective = load("ring:6").select(), Collective(name)
    for rows, edit in (
        (link_losses(machine, collective), "without {}"),
        (lane_gains(machine, collective), "replace {} lanes=2"),
    ):
        assert sum(len(row.pairs) for row in rows) == 6
        for row in rows:
            for pair in row.pairs:
                edited = machine.edit(edit.format(pair.partition(" ")[0]))
                assert row.after == bound(edited, collective).rate


def test_losses_of_a_gather_on_a_ring() -> None:
    # Five shards of six reach the root over two links: 60 GB/s. Without a link, all that is beyond it takes one way.
    rows = link_losses(load("ring:6").select(), Collective("gather"))
    assert sorted({row.after for row in rows}) == [30 * GB, Fraction(75, 2) * GB, 50 * GB]
