"""Rail-aligned alltoall: verified, at the bound, in three sends; and what it rests on, place by place."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.algorithms import rail_aligned
from blinksim.algorithms.rail_aligned import symmetric
from blinksim.algorithms.registry import REGISTRY
from blinksim.bounds.optimum import best_flows
from blinksim.bounds.rails import (
    NodeTraffic,
    attained_rate,
    cheapest,
    place_parts,
    read_rails,
    spread_time,
    symmetric_rails,
)
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import transport
from blinksim.graphs.network import network, single_orbits
from blinksim.graphs.programs import shared_capacities
from blinksim.schedule.candidate import Candidate, SymmetricSchedule
from blinksim.schedule.loads import resource_loads, resources
from blinksim.timing.alpha_beta import cost
from blinksim.topology.graph import Topology
from blinksim.traffic import Traffic


def exchange(traffic: Traffic | None) -> Collective:
    return Collective("alltoall") if traffic is None else Collective("alltoallv", traffic=traffic)


def gap(machine: Topology, traffic: Traffic | None = None) -> float:
    """What a verified schedule of at most three sends a piece loses against the bound."""
    schedule = REGISTRY["rail_aligned"].build(machine, exchange(traffic))
    verdict = bs.verify(schedule)
    assert verdict.ok, verdict
    assert np.bincount(schedule.chunk).max() <= 3
    assert verdict.facts.rate is not None
    return 1 - float(verdict.facts.rate / bs.bound(machine, exchange(traffic)).rate)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("hgx-h100", 8), ("dgx-a100", 3), ("p5.48xlarge", 2), ("mi300x", 2), ("rails:4x4@300GB/s,50GB/s", 1),
     ("fattree:8x2@300GB/s,50GB/s,2:1", 1), ("dgx2", 2), ("rails:4x1", 1)],
)  # fmt: skip
def test_an_alltoall_attains_the_bound(name: str, nodes: int) -> None:
    assert gap(bs.load(name, nodes=nodes).select()) == 0


@settings(max_examples=12)
@given(st.data())
def test_any_traffic_attains_the_bound_over_rails(data: st.DataObject) -> None:
    nodes, local = data.draw(st.sampled_from([(2, 3), (3, 2), (4, 2), (3, 4)]))
    machine = bs.load(f"rails:{nodes}x{local}@300GB/s,25GB/s").select()
    entry = st.one_of(st.just(0), st.integers(0, 10), st.integers(0, 10**7))
    rows = [[data.draw(entry) for _ in range(machine.ranks)] for _ in range(machine.ranks)]
    rows[0][-1] += 10**6
    # Bytes are whole, and the fitting of places ends after some rounds.
    assert gap(machine, Traffic(rows)) < 1e-3


@pytest.mark.parametrize(
    ("edits", "most"),
    [(("degrade n0.nic1-fabric1 bandwidth=25GB/s",), 1e-4), (("without n1.nic2-fabric2",), 1e-4),
     (("degrade n0.gpu0-n0.nvswitch lanes=9",), 1e-4), (("without n1.gpu3",), 1e-4), (("without n0.gpu0",), 1e-4)],
)  # fmt: skip
def test_one_weak_link_costs_no_more_than_it_must(edits: tuple[str, ...], most: float) -> None:
    machine = bs.Question("hgx-h100", nodes=3, edits=edits).part()
    assert gap(machine) < most
    assert gap(machine, bs.expert_traffic(machine.ranks, tokens=256, skew=0.8)) < most


@pytest.mark.parametrize(
    "edits",
    [("without n0.nic3",), ("without fabric3",), ("without nic3",), ("without n0.nic3", "without n1.nic0"),
     ("without n0.nic3", "without n2.nic3", "without fabric7")],
)  # fmt: skip
def test_adapters_that_are_gone_cost_their_share(edits: tuple[str, ...]) -> None:
    """At the bound of the linear program or the cut: the neighbours carry what a dead adapter or rail does not."""
    assert gap(bs.load("hgx-h100", nodes=4, edits=edits).select()) == pytest.approx(0, abs=2e-3)


@pytest.mark.parametrize(
    ("name", "nodes", "adapters"),
    [("p5en", 2, [f"efa{i}" for i in range(16)]), ("p5", 2, [f"efa{i}" for i in range(32)]),
     ("hgx-h100", 3, [f"nic{i}" for i in range(8)]), ("aurora", 2, [f"nic{i}" for i in range(8)])],
)  # fmt: skip
@settings(max_examples=8)
@given(data=st.data())
def test_fewer_adapters_are_never_quicker(name: str, nodes: int, adapters: list[str], data: st.DataObject) -> None:
    """What is left of them carries what all must, in proportion."""
    every = st.sampled_from([f"n{node}.{one}" for node in range(nodes) for one in adapters])
    lost, rate = data.draw(st.lists(every, min_size=1, max_size=5, unique=True)), np.inf
    for many in range(len(lost) + 1):
        machine = bs.load(name, nodes=nodes, edits=[f"without {one}" for one in lost[:many]]).select()
        found = float(REGISTRY["rail_aligned"].parallel(machine, Collective("alltoall")).rate or 0)
        bound = float(bs.bound(machine, "alltoall").rate)
        assert found <= min(bound, rate * 1.001)
        # Of several nodes other rails may be lost, which leaves fewer that both ends have.
        alone = len({one.partition(".")[0] for one in lost[:many]}) < 2
        assert found > 0.99 * bound * alone
        rate = found
    assert bs.verify(REGISTRY["rail_aligned"].build(machine, Collective("alltoall"))).ok


def test_it_keeps_adapters_busy_that_direct_leaves_idle() -> None:
    machine = bs.load("hgx-h100", nodes=4).select()
    # One GPU of every node has everything for one GPU of the next.
    matrix = np.zeros((32, 32), dtype=np.int64)
    for node in range(4):
        matrix[8 * node, (8 * node + 13) % 32] = 10**9
    traffic = Traffic(matrix)
    assert gap(machine, traffic) < 1e-6
    direct = bs.synthesize(machine, exchange(traffic), "direct").rate
    assert bs.bound(machine, exchange(traffic)).rate == 8 * direct


@pytest.mark.parametrize("name", ["hgx-h100", "ring:8", "dragonfly:3x2x2"])
def test_what_it_refuses(name: str) -> None:
    with pytest.raises(InfeasibleError, match="two or more nodes"):
        REGISTRY["rail_aligned"].build(bs.load(name).select(), Collective("alltoall"))


def test_nodes_of_other_members_are_refused() -> None:
    machine = bs.load("hgx-h100", nodes=2)
    with pytest.raises(InfeasibleError, match="same names"):
        REGISTRY["rail_aligned"].build(
            machine.select(["n0.gpu0", "n0.gpu1", "n1.gpu1", "n1.gpu2"]), Collective("alltoall")
        )


def test_best_takes_it_on_rails() -> None:
    found = bs.project(bs.load("hgx-h100", nodes=12).select(), "alltoall", "1GiB", algorithm="best")
    assert found.algorithm == "rail_aligned"
    assert found.bound is not None
    assert found.algbw > 0.99 * float(found.bound.rate)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6), st.randoms())
def test_a_transport_keeps_the_totals_and_the_diagonal(rows: list[int], random: Any) -> None:
    columns = [0] * len(rows)
    for _ in range(sum(rows)):
        columns[random.randrange(len(rows))] += 1
    found = transport(np.array(rows), np.array(columns))
    assert found.sum(axis=1).tolist() == rows
    assert found.sum(axis=0).tolist() == columns
    assert found.min() >= 0
    assert np.diagonal(found).tolist() == [min(pair) for pair in zip(rows, columns, strict=True)]
    assert np.count_nonzero(found) <= 2 * len(rows)


@pytest.mark.parametrize("name", ["hgx-h100", "p5.48xlarge", "dgx-a100", "aurora"])
def test_loads_of_rails_are_those_of_the_schedule(name: str) -> None:
    """Sums over pairs of nodes against the sends that are written out one by one."""
    machine = bs.load(name, nodes=2).select()
    traffic = bs.expert_traffic(machine.ranks, tokens=100, token_size=24, skew=0.5)
    schedule = REGISTRY["rail_aligned"].build(machine, exchange(traffic))
    rails = read_rails(machine)
    assert rails is not None
    node = {int(rank): (a, i) for a, row in enumerate(rails.ranks) for i, rank in enumerate(row)}
    moved, across = np.zeros((2, rails.local, rails.local)), np.zeros((2, 2, rails.local))
    amounts = schedule.share_num * traffic.size // schedule.share_den
    for chunk, src, dst in zip(schedule.chunk, schedule.src, schedule.dst, strict=True):
        (a, i), (b, j) = node[int(schedule.rank_of[src])], node[int(schedule.rank_of[dst])]
        if a == b:
            moved[a, i, j] += amounts[chunk]
        else:
            assert i == j
            across[a, b, i] += amounts[chunk]
    due = [float(load * traffic.size) for load in resource_loads(schedule, resources(machine))]
    # Ways of a place are cut in whole bytes.
    assert rails.loads(moved, across) == pytest.approx(due, abs=200)


MIXED = ["dgx-a100", "mi300x", "l40s-pcie", "aurora", "fattree:4x2@50GB/s,25GB/s,2:1"]


def greatest(machine: Topology, traffic: Traffic) -> float:
    net = network(machine)
    found = best_flows(net, exchange(traffic), shared_capacities(machine, net), single_orbits(net))
    assert found is not None
    return found.value * float(net.unit)


@settings(max_examples=8)
@given(
    st.integers(0, 1000),
    st.sampled_from(["dgx-a100", "mi300x", "l40s-pcie", "aurora", "fattree:4x2@50GB/s,25GB/s,2:1"]),
)
def test_spread_flows_are_flows(seed: int, name: str) -> None:
    """Never above the linear program's rate."""
    machine = bs.load(name, nodes=1 if ":" in name else 2).select()
    random = np.random.default_rng(seed)
    traffic = Traffic((random.pareto(1.2, (machine.ranks, machine.ranks)) * 1000).astype(int))
    assert attained_rate(machine, exchange(traffic)) <= greatest(machine, traffic) * (1 + 1e-6)


@pytest.mark.parametrize(
    "name", ["rails:2x4@40GB/s,25GB/s", "rails:3x3@60GB/s,20GB/s", "fattree:4x2@50GB/s,25GB/s,2:1"]
)
@pytest.mark.parametrize("seed", [1, 5])
def test_flows_made_to_measure_attain_the_linear_program(name: str, seed: int) -> None:
    """One rank receives more than the links inside its node carry, so that its own adapter must be busy throughout."""
    machine = bs.load(name).select()
    matrix = np.random.default_rng(seed).integers(1, 100, (machine.ranks, machine.ranks))
    matrix[:, 1] *= 12
    traffic = Traffic(matrix)
    most = greatest(machine, traffic)
    assert attained_rate(machine, exchange(traffic), most) == pytest.approx(most, rel=1e-9)
    assert attained_rate(machine, exchange(traffic)) <= most * (1 + 1e-9)
    assert bs.bound(machine, exchange(traffic)).headline.kind == "exact"


@pytest.mark.parametrize(("name", "priced"), [("rails:3x4@60GB/s,20GB/s", 4), ("fattree:4x2@50GB/s,25GB/s,2:1", 99)])
def test_the_cheapest_flow_costs_what_each_block_costs_at_least(name: str, priced: int) -> None:
    """Every block on its own, over the place that costs least; some resources, or all, have a price."""
    machine, random = bs.load(name).select(), np.random.default_rng(3)
    rails = read_rails(machine)
    assert rails is not None
    traffic = Traffic(random.integers(0, 50, (machine.ranks, machine.ranks)))
    prices = np.zeros(len(rails.resources.rates))
    some = random.permutation(len(prices))[:priced]
    prices[some] = random.random(len(some))
    apart = NodeTraffic(rails, traffic).apart
    moved, across = cheapest(rails, apart, prices)
    nodes, local = rails.ranks.shape

    def price(node: int, i: int, k: int, other: int, j: int) -> float:
        """By the loads of a single byte."""
        one, over = np.zeros((nodes, local, local)), np.zeros((nodes, nodes, local))
        over[node, other, k] = 1
        if i != k:
            one[node, i, k] += 1
        if k != j:
            one[other, k, j] += 1
        return float(rails.loads(one, over) / rails.resources.rates @ prices)

    least = sum(
        apart[a, i, b, j] * min(price(a, i, k, b, j) for k in range(local))
        for a, i, b, j in np.argwhere(apart).tolist()
    )
    assert across.sum() == pytest.approx(apart.sum())
    assert float(rails.loads(moved, across) / rails.resources.rates @ prices) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "nodes", "edits"),
    [
        ("hgx-h100", 4, ()),
        ("mi300x", 3, ()),
        ("rails:8x2@300GB/s,50GB/s", 1, ()),
        ("fattree:4x2@300GB/s,50GB/s,2:1", 1, ()),
        ("hgx-h100", 8, ("fabric shape=dragonfly group_nodes=2 group_links=4",)),
        ("hgx-h100", 8, ("fabric shape=tree planes=8 spine_planes=1 leaf_nodes=4 oversubscription=4",)),
    ],
)
def test_one_node_and_its_turns_are_the_schedule(name: str, nodes: int, edits: tuple[str, ...]) -> None:
    """Said by symmetry it has the sends and the rate of the one that is written piece by piece.

    Each takes by sums what it takes simulated: the one that is built meets others in another order than the turns.
    """
    part, alltoall = bs.load(name, nodes=nodes, edits=edits).select(), Collective("alltoall")
    turned = symmetric(part, alltoall)
    assert turned is not None
    whole = REGISTRY["rail_aligned"].build(part, alltoall)
    facts, written = bs.verify(turned).facts, bs.verify(turned.schedule).facts
    assert (facts.rate, facts.in_place, facts.scratch) == (written.rate, written.in_place, written.scratch)
    assert bs.verify(turned, in_place=True).ok == bs.verify(turned.schedule, in_place=True).ok
    assert (turned.sends, turned.chunks) == (turned.schedule.sends, turned.schedule.chunks)
    assert turned.rate == bs.verify(whole).facts.rate
    for size in (2**16, 2**22, 2**30):
        for sent, summed in ((turned.schedule, (turned, turned.schedule)), (whole, (whole,))):
            simulated = bs.simulate(sent, size).time_s
            for one in summed:
                assert cost(Candidate(one), size).time_s == pytest.approx(simulated, rel=0.033)


@pytest.mark.parametrize(("machine", "nodes"), [("hgx-h100", 4), ("dgx-a100", 3), ("mi300x", 3)])
def test_no_node_takes_in_what_all_send_at_once(machine: str, nodes: int) -> None:
    """Where links serve who comes first, large blocks take the least time that there is, but for the way of the first.

    Sent to node 0 first, then to node 1 and so on, they take half as long again on four nodes.
    """
    part = bs.load(machine, nodes=nodes).select()
    schedule = REGISTRY["rail_aligned"].build(part, Collective("alltoall"))
    least = 2**28 / float(bs.bound(part, "alltoall").rate)
    assert least < bs.simulate(schedule, 2**28, chunk=2**28).time_s < 1.01 * least


def test_what_no_turn_makes_is_written_piece_by_piece() -> None:
    alltoall = Collective("alltoall")
    lost = bs.Question("hgx-h100", nodes=4, edits=("without n1.nic2-fabric2",)).part()
    assert symmetric(lost, alltoall) is None
    part = bs.load("hgx-h100", nodes=4).select()
    assert symmetric(part, exchange(bs.expert_traffic(32, tokens=64))) is None
    assert symmetric(bs.load("hgx-h100").select(), alltoall) is None


def test_thousands_of_ranks_are_projected_at_the_bound() -> None:
    part = bs.load("hgx-h100", nodes=160).select()
    found = bs.project(part, "alltoall", "1GiB", algorithm="best")
    assert found.algorithm == "rail_aligned"
    # 159 of 160 parts of what 8 ranks have leave a node over its eight adapters.
    assert found.algbw == pytest.approx(8 * 50e9 / (8 * 159 / 160), rel=1e-3)


@pytest.mark.slow
def test_racks_whose_hot_gpu_limits_have_an_exact_bound() -> None:
    part = bs.load("gb200-nvl72", nodes=2).select()
    traffic = bs.expert_traffic(144, tokens=512, token_size="112KiB", experts_per_rank=4, skew=1.2)
    found = bs.bound(part, exchange(traffic))
    hot = int(traffic.received.argmax())
    # NVLink and one adapter.
    assert found.headline.kind == "exact"
    assert found.rate == Fraction(950 * 10**9 * traffic.size, int(traffic.received[hot] - traffic.matrix[hot, hot]))
    assert gap(part, traffic) < 0.05


def test_parts_suit_unequal_adapters() -> None:
    machine = bs.Question("hgx-h100", nodes=3, edits=("degrade n0.nic1-fabric1 bandwidth=25GB/s",)).part()
    rails = read_rails(machine)
    assert rails is not None
    traffic = Traffic.uniform(24, 2400)
    parts: npt.NDArray[np.float64] | None = place_parts(rails, NodeTraffic(rails, traffic).by_node)
    assert parts is not None
    assert parts[~np.eye(3, dtype=bool)].sum(axis=1) == pytest.approx(1)
    # Node 0 has 7.5 adapters' worth for 128 of 2400 / 24 bytes.
    due = float(Fraction(8 * 16 * 100, 375 * 10**9))
    assert spread_time(rails, traffic) == pytest.approx(due, rel=1e-9)


def test_large_alltoalls_are_written_by_symmetry() -> None:
    made = bs.synthesize(bs.load("hgx-h100", nodes=45), "alltoall")
    assert isinstance(made.compact, SymmetricSchedule)
    assert made.gap == 0
    assert (made.compact.algorithm, made.compact.chunks) == ("packed", 360 * 360)
    assert made.verdict.ok


def test_exchanges_too_large_to_write_out_are_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rail_aligned, "_MOST_PATHS", 64 * 63)
    with pytest.raises(InfeasibleError, match="at most 4,032 are written out"):
        bs.synthesize("torus:5x13", "alltoall")


TREE = "fabric shape=tree planes={} spine_planes=1 leaf_nodes={} oversubscription={}"


@pytest.mark.parametrize("edit", [TREE.format(1, 2, 2), TREE.format(8, 4, 1), TREE.format(8, 2, 4)])
def test_rails_by_symmetry_are_those_of_every_node(edit: str) -> None:
    """What one node and the orbits say is what the sums over all pairs of nodes say."""
    part = bs.load("dgx-a100", nodes=8, edits=[edit]).select()
    symmetric, whole = symmetric_rails(part), read_rails(part)
    assert symmetric is not None
    assert whole is not None
    assert symmetric.alike
    row = {int(ranks[0]): number for number, ranks in enumerate(whole.ranks)}
    order = [row[int(ranks[0])] for ranks in symmetric.ranks]
    assert np.array_equal(symmetric.ranks, whole.ranks[order])
    assert np.array_equal(symmetric.exit, whole.exit[order])
    for name in ("inside", "up", "down"):
        each = len(getattr(whole, name)) // whole.nodes
        for number, node in enumerate(order):
            for place in range(each):
                ways, there = (
                    getattr(rails, name)[at * each + place] for rails, at in ((symmetric, number), (whole, node))
                )
                assert {*ways} == {*there}
    ranks = part.ranks
    attained = spread_time(whole, Traffic.uniform(ranks, ranks), 1e-12)
    assert symmetric.equal_blocks_time == pytest.approx(attained, rel=1e-9)
    assert bs.bound(part, "alltoall").rate == pytest.approx(ranks / symmetric.equal_blocks_time, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "nodes", "edits", "rate"),
    [
        # Eight adapters of 50 GB/s a node, which 8 ranks' blocks for 4095 of 4096 nodes must leave.
        ("hgx-h100", 4096, (), Fraction(8 * 50 * 10**9 * 4096, 8 * 4095)),
        # 32 nodes of eight adapters of 25 GB/s below a leaf, half as much above it, for 31 of 32 leaves.
        ("dgx-a100", 1024, (TREE.format(1, 32, 2),), Fraction(32 * 8 * 25 * 10**9 * 32, 2 * 256 * 31)),
    ],
)
def test_tens_of_thousands_of_ranks_are_proved_at_the_bound(
    machine: str, nodes: int, edits: tuple[str, ...], rate: Fraction, tmp_path: Path
) -> None:
    made = bs.synthesize(bs.load(machine, nodes=nodes, edits=edits).select(), "alltoall")
    assert (made.verdict.ok, made.bound.kind, made.bound.rate, made.rate) == (True, "exact", rate, rate)
    bs.write(made, tmp_path / "large.json")
    assert (tmp_path / "large.json").stat().st_size < 10**6
    assert bs.verify(tmp_path / "large.json").ok
