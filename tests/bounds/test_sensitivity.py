"""What one link, lane or NIC changes, against edits computed from scratch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from golden_machines import GB, a100, dgx1v
from hypothesis import given, settings
from strategies import topologies

from blinksim.bounds.compute import bound
from blinksim.bounds.sensitivity import Change, joined_pairs, link_changes, nic_gain
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.machines import load
from blinksim.topology.graph import Topology


def link_losses(topology: Topology, collective: Collective) -> list[Change]:
    return link_changes(topology, collective, None)


def lane_gains(topology: Topology, collective: Collective) -> list[Change]:
    return link_changes(topology, collective, 1)


def test_all_single_losses_of_the_v100_machine() -> None:
    machine, collective = dgx1v(), Collective("allgather")
    rows = link_losses(machine, collective)
    assert sum(len(row.pairs) for row in rows) == 16
    assert [row.after for row in rows] == sorted(row.after for row in rows)
    assert len({row.after for row in rows}) == len(rows)
    for row in rows:
        assert row.before == Fraction(1200, 7) * GB
        for pair in row.pairs:
            assert row.after == bound(machine.without(pair.partition(" ")[0]), collective).rate
    # A GPU that loses a double link keeps four lanes, and no other cut is as narrow.
    double = next(row for row in rows if "gpu0-gpu3 (nvlink)" in row.pairs)
    assert double.what.endswith(" lost")
    assert double.after == Fraction(800, 7) * GB
    assert double.ratio == pytest.approx(2 / 3)
    lanes = link_changes(machine, collective, -1)
    one = next(row for row in lanes if "gpu0-gpu3 (nvlink)" in row.pairs)
    assert one.what.endswith(" loses one of 2 lanes")
    assert one.after == Fraction(1000, 7) * GB


@pytest.mark.parametrize(
    ("name", "collective", "kinds"),
    # By symmetry one NVLink of each is enough; two classes on Aurora, the tiles of a card and others.
    [("hgx-h200", "allreduce", 1), ("mi300x", "allreduce", 1), ("aurora", "allgather", 2)],
)
def test_losses_are_those_of_every_single_link(name: str, collective: str, kinds: int) -> None:
    machine, wanted = load(name).select(), Collective(collective)
    whole, lane = (link_changes(machine, wanted, lanes) for lanes in (None, -1))
    assert len(whole) == kinds
    for rows, verb in ((whole, "without {}"), (lane, "degrade {} lanes={}")):
        pairs = {pair.partition(" ")[0]: row for row in rows for pair in row.pairs}
        assert len(pairs) == len(machine.links) // 2
        for pair, row in pairs.items():
            left = machine.links_between(*pair.split("-"))[0].lanes - 1
            edited = machine.edit(verb.format(pair, left)) if left else machine.without(pair)
            served = len(edited.components()) == 1
            assert row.after == (bound(edited, wanted).rate if served else 0)


def test_one_lane_of_eighteen() -> None:
    # All ports together carry 8 x 450 GB/s, of which a lane is 25; every byte of an allreduce passes 14 of them.
    (row,) = link_changes(load("hgx-h200").select(), Collective("allreduce"), -1)
    assert row.what == "gpu0-nvswitch (nvlink) loses one of 18 lanes"
    assert len(row.pairs) == 8
    assert (row.before, row.after) == (Fraction(3600 * GB, 14), Fraction(3575 * GB, 14))


def test_too_many_losses_are_refused_by_their_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blinksim.bounds.sensitivity._MOST_SECONDS", 0.0)
    with pytest.raises(InfeasibleError, match=r"ask for one of them, as in edits='without gpu\d-gpu\d'"):
        link_losses(dgx1v(), Collective("allgather"))


def test_losses_of_alike_links_are_one_row() -> None:
    machine = a100(3)
    rows = link_losses(machine, Collective("allgather"))
    assert sum(len(row.pairs) for row in rows) == len(machine.links) // 2
    assert len(rows) == 3
    for row in rows:
        for pair in row.pairs:
            assert row.after == bound(machine.without(pair.partition(" ")[0]), Collective("allgather")).rate
    assert all(row.after > 0 for row in rows)  # a GPU keeps its NIC or its NVSwitch


def test_a_loss_that_cuts_a_gpu_off() -> None:
    chain = dgx1v().select(["gpu0", "gpu1", "gpu5"])
    (row,) = link_losses(chain, Collective("allreduce"))
    assert (row.after, row.bottleneck, len(row.pairs)) == (0, "not connected: gpu0 | gpu1 gpu5", 2)
    assert row.to_dict()["rate_exact"] == "0"


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
    gains = {pair: row.after for row in lane_gains(topology, collective) for pair in row.pairs}
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
