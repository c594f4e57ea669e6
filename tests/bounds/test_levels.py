"""What every level allows: hand arithmetic on real fabrics, maximum flows by NetworkX, and random machines."""

from __future__ import annotations

import json
from fractions import Fraction
from math import ceil

import networkx as nx
import pytest
import strategies
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.bounds.certificates import Cut
from blinksim.bounds.sensitivity import levels
from blinksim.cli.main import run
from blinksim.errors import InputError

GB = 10**9
UNDER_SPINE = "fabric shape=tree planes=8 spine_planes=1 leaf_nodes=4 oversubscription={ratio}"
LEAF_SPINE = "fabric shape=tree leaf_nodes=4 oversubscription={ratio}"
DRAGONFLY = "fabric shape=dragonfly group_nodes=4 group_links={ratio}"


def _must_cross(collective: str, inside: int, ranks: int, parts: int) -> Fraction:
    """What a part of `inside` of `ranks` ranks sends or takes in at least, one of `parts` that are alike."""
    away = Fraction(ranks - inside, ranks)
    match collective:
        case "allgather" | "reducescatter":
            return away
        case "alltoall":
            return inside * away
        case "allreduce":
            # 2(k - 1) messages between k parts for each of the k, in trees without relays.
            return 2 * Fraction(parts - 1, parts)
        case _:
            return Fraction(1)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "alltoall"])
@pytest.mark.parametrize(
    ("nodes", "edit", "above"),
    [
        (2, "", 0),
        pytest.param(8, "", 0, marks=pytest.mark.slow),
        (8, UNDER_SPINE.format(ratio=2), 800),
        pytest.param(8, LEAF_SPINE.format(ratio=4), 400, marks=pytest.mark.slow),
        pytest.param(16, UNDER_SPINE.format(ratio=4), 400, marks=pytest.mark.slow),
        # Four links to each of the other groups.
        (8, DRAGONFLY.format(ratio=4), 4 * 50),
        pytest.param(12, DRAGONFLY.format(ratio=4), 2 * 4 * 50, marks=pytest.mark.slow),
    ],
)
def test_levels_of_hgx_h100_are_hand_arithmetic(nodes: int, edit: str, above: int, collective: str) -> None:
    part = bs.load("hgx-h100", nodes=nodes, edits=[edit] if edit else []).select()
    found = {row.level: row for row in bs.levels(part, collective)}
    # NVLink and one adapter for a GPU, eight adapters for a node; then the links above four nodes.
    wanted = {"GPU": (1, 450 + 50), "node": (8, 8 * 50)} | ({"4 nodes": (32, above)} if above else {})
    assert set(found) == set(wanted)
    best = bs.bound(part, collective).rate
    rates = {}
    for level, (inside, carries) in wanted.items():
        row, parts = found[level], nodes * 8 // inside
        crosses = _must_cross(collective, inside, nodes * 8, parts)
        if collective == "allreduce" and parts == 2:
            crosses = Fraction(1)
        rates[level] = carries * GB / crosses
        assert (row.parts, row.bound.rate) == (parts, rates[level])
        assert row.capacity / row.crosses == row.bound.rate
        assert not row.bound.check(part, bs.Collective(collective))
    # One level limits by itself here, and a schedule attains it.
    assert min(rates.values()) == best
    assert {level for level, row in found.items() if row.limits} == {v for v, rate in rates.items() if rate == best}


@pytest.mark.slow
@pytest.mark.parametrize("edit", [UNDER_SPINE.format(ratio=2), LEAF_SPINE.format(ratio=4), DRAGONFLY.format(ratio=4)])
def test_cuts_around_parts_are_the_maximum_flows_of_networkx(edit: str) -> None:
    part = bs.load("hgx-h100", nodes=8, edits=[edit]).select()
    for name, parts in levels(part):
        graph: nx.DiGraph[str] = nx.DiGraph()
        for link in part.links:
            graph.add_edge(link.src, link.dst, capacity=int(link.bandwidth))
        label = parts.label[part.member_places]
        for member, inside in zip(part.members, label == label[0], strict=True):
            graph.add_edge(*(("s", member) if inside else (member, "t")))
        [row] = [row for row in bs.levels(part, "alltoall") if row.level == name]
        assert isinstance(row.bound.certificate, Cut)
        flow = nx.maximum_flow_value(graph, "s", "t")
        # A GPU alone also has the link to its own adapter, which is wider than the adapter.
        assert row.capacity == flow


@pytest.mark.slow
def test_three_racks_of_nvl72_on_infiniband() -> None:
    part = bs.load("gb200-nvl72", nodes=3).select()
    found = {row.level: row for row in bs.levels(part, "alltoall")}
    assert found["node"].capacity == 72 * 50 * GB
    assert found["node"].crosses == 72 * Fraction(2, 3)
    assert found["node"].limits
    assert found["GPU"].capacity == (900 + 50) * GB


def test_what_a_rail_less_costs() -> None:
    whole, less = (bs.load("hgx-h100", nodes=4, edits=edits).select() for edits in ((), ("without fabric3",)))
    before, after = (
        {row.level: row for row in bs.levels(part, "alltoall")}["node"].bound.rate for part in (whole, less)
    )
    assert after / before == Fraction(7, 8)
    assert after == bs.bound(less, "alltoall").rate


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_a_schedule_carries_what_must_cross_or_more(collective: str) -> None:
    part = bs.load("rails:4x4@300GB/s,50GB/s").select()
    made = bs.synthesize(part, collective, "packed")
    rows = bs.levels(part, collective, schedule=made.schedule)
    for row in rows:
        assert row.carried is not None
        assert row.carried >= row.crosses
        # It attains the bound, so the level that limits is full.
        assert not row.limits or row.carried == row.crosses
    with pytest.raises(InputError, match="the schedule is of"):
        bs.levels(part, "broadcast", schedule=made.schedule)


@given(strategies.clusters_with_nics(), st.sampled_from(["allreduce", "allgather", "reduce", "alltoall", "scatter"]))
def test_no_level_beats_the_bound(machine: bs.Topology, collective: str) -> None:
    found = bs.bound(machine, collective)
    rows = bs.levels(machine, collective)
    for row in rows:
        assert row.bound.rate >= found.rate
        assert row.limits == (row.bound.rate == found.rate)
        assert row.capacity == row.crosses * row.bound.rate
        assert not row.bound.check(found.topology, found.collective)


def test_leaves_that_are_not_full_and_a_traffic_matrix() -> None:
    part = bs.load("hgx-h100", nodes=6, edits=[LEAF_SPINE.format(ratio=2)]).select()
    matrix = [[0] * 48 for _ in range(48)]
    # The second leaf has two nodes. Everything goes from the first leaf to it.
    for i in range(32):
        matrix[i][32 + i % 16] = 1000
    skewed = bs.Collective("alltoallv", traffic=bs.Traffic(matrix))
    [row] = [row for row in bs.levels(part, skewed) if row.level == "4 nodes"]
    assert row.parts == ceil(6 / 4)
    # An uplink is as wide as a full leaf's.
    assert row.bound.rate == 800 * GB * Fraction(2000, 32 * 1000)


def test_a_gpu_of_more_than_a_thousand_takes_part_in_nearly_two_messages() -> None:
    machine = bs.load("rails:138x8@300GB/s,50GB/s")
    found = {row.level: row for row in bs.levels(machine, "allreduce")}
    assert found["GPU"].crosses == Fraction(2 * 1103, 1104)
    assert found["GPU"].bound.rate == 350 * 10**9 / Fraction(2 * 1103, 1104)
    assert [row.limits for row in found.values()] == [True, False]


def test_the_command_prints_levels_as_text_csv_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bound", "fattree:16x8@300GB/s,50GB/s,4:1", "alltoall", "--levels"]
    assert run(command) == 0
    text = capsys.readouterr().out
    assert "each node        16              400                   7.5          53.33  3.2 x" in text
    assert "each 4 nodes      4              400                    24          16.67  limits" in text
    assert run([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["levels"]
    assert [row["limits"] for row in rows] == [False, False, True]
    assert rows[2]["rate_exact"] == "50/3"
    assert run([*command, "--csv"]) == 0
    assert capsys.readouterr().out.startswith("level,parts,capacity_GBps,crosses,rate_exact,algbw_GBps,limits")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("fabric shape=dragonfly", "group_nodes and group_links"),
        ("fabric planes=9", "9 planes for 8 ports"),
        ("fabric shape=ring", "unknown shape of a fabric 'ring'"),
        ("fabric foo=1", "unknown property of a fabric 'foo'"),
        ("fabric oversubscription=2", "goes with shape=tree"),
        ("fabric shape=tree oversubscription=1:2", "not a ratio of at least 1"),
        ("fabric shape=tree leaf_nodes=0", "must be at least 1"),
        ("fabric", "unknown edit 'fabric'"),
    ],
)
def test_edits_of_a_fabric_that_cannot_be(edit: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        bs.load("hgx-h100", nodes=2, edits=[edit])


def test_an_edit_joins_nodes_as_a_machine_file_does() -> None:
    shape = bs.load("fattree:16x8@450GB/s,50GB/s,2:1")
    edited = bs.load("hgx-h100", nodes=16, edits=[LEAF_SPINE.format(ratio=2)])
    for collective in ("alltoall", "broadcast"):
        assert bs.bound(shape, collective).rate == bs.bound(edited, collective).rate
    with pytest.raises(InputError, match="already is a cluster"):
        shape.edit("fabric planes=2")
    with pytest.raises(InputError, match="describes no fabric"):
        bs.load("ring:4", edits="fabric planes=2")
