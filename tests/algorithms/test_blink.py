"""Blink's trees at the published bounds of every class of DGX-1 subsets, how few they are, and its three phases."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import independent_check
import numpy as np
import pytest
import strategies
from dgx1_subsets import Subset, connected, part
from hypothesis import given, settings
from proved_gaps import gap

from blinksim.algorithms import blink, blink_hierarchical
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import load
from blinksim.packing.choose import Limits, search_trees
from blinksim.packing.columns import find_hops
from blinksim.schedule.loads import link_loads, rate
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology

ALLREDUCE = Collective("allreduce")
GB = 10**9
CASES = [
    (subset, name, column)
    for subset in connected()
    for name, column in (
        ("allreduce", "allreduce_tree_bound"),
        ("broadcast", "broadcast_bound_links"),
        ("reduce", "broadcast_bound_links"),
        ("allgather", "allgather_bound"),
        ("reducescatter", "allgather_bound"),
    )
    # Larger ones take seconds each: benchmarks/bench_subsets.py has them all.
    if subset.topology().ranks <= {"allgather": 4 if subset.machine == "DGX-1V" else 5, "reducescatter": 3}.get(name, 7)
]


@pytest.fixture(scope="module")
def built() -> list[tuple[Subset, str, str, Schedule]]:
    rows = []
    for subset, name, column in CASES:
        collective = Collective(name)
        if collective.rooted:
            collective = Collective(name, subset.topology().ranks - 1)
        rows.append((subset, name, column, blink.build(subset.topology(), collective, time_limit=20)))
    assert len(rows) > 190
    return rows


@pytest.mark.slow
def test_the_published_bound_is_reached_on_every_class(built: list[tuple[Subset, str, str, Schedule]]) -> None:
    for subset, name, column, schedule in built:
        assert independent_check.rate(schedule) == subset.value(column) * subset.lane, (str(subset), name)
        assert gap(schedule) == "0"


@pytest.mark.slow
def test_every_schedule_keeps_its_promise(built: list[tuple[Subset, str, str, Schedule]]) -> None:
    for subset, name, _, schedule in built:
        assert verify(schedule).ok, (str(subset), name)
        assert independent_check.check(schedule) == [], (str(subset), name)


@pytest.mark.slow
def test_never_more_trees_than_links_and_roots(built: list[tuple[Subset, str, str, Schedule]]) -> None:
    """A vertex of the linear program has no more columns than rows, and fewer trees are kept than that."""
    for subset, name, _, schedule in built:
        roots = subset.topology().ranks if name in ("allgather", "reducescatter") else 1
        assert schedule.chunks <= len(subset.topology().links) + roots, (str(subset), name)


def test_three_trees_where_rings_leave_links_idle() -> None:
    """Blink, 2018 short paper, figure 1(b): 9 of 12 arcs of four fully connected GPUs, those into the root idle."""
    schedule = blink.build(part("DGX-1P", "0-1-2-3"), Collective("broadcast"))
    assert rate(schedule) == 3 * 20 * GB
    assert schedule.chunks == 3
    idle = [link for link, load in zip(schedule.topology.links, link_loads(schedule), strict=True) if not load]
    assert [link.dst for link in idle] == ["gpu0"] * 3
    assert schedule.steps == 2


@pytest.mark.parametrize(("machine", "lanes", "trees"), [("DGX-1V", 6, 4), ("DGX-1P", 4, 4)])
def test_the_fewest_trees_of_a_whole_machine(machine: str, lanes: int, trees: int) -> None:
    """Four trees carry six lanes on a DGX-1V, two of them over the double links; three cannot (nor on a DGX-1P)."""
    topology = part(machine, "0-1-2-3-4-5-6-7")
    schedule = blink.build(topology, Collective("broadcast"))
    assert schedule.chunks == trees
    assert verify(schedule).ok
    hops = find_hops(topology)
    for fewer in range(1, trees):
        assert search_trees(hops.loads, hops.vertices[0], hops.capacity, Fraction(lanes), fewer, Limits()) == []


def test_a_loss_buys_fewer_trees() -> None:
    topology = part("DGX-1P", "0-1-2-3-4-5-6-7")
    schedule = blink.build(topology, Collective("broadcast"), loss=Fraction(1, 4))
    assert schedule.chunks == 3
    assert rate(schedule) == 3 * 20 * GB
    assert gap(schedule) == "1/4"
    with pytest.raises(InputError, match="loss 1"):
        blink.build(topology, Collective("broadcast"), loss=Fraction(1))


@pytest.mark.parametrize("name", ["dgx-a100", "hgx-h200"])
def test_behind_a_switch_every_gpu_roots_an_equal_part_in_one_hop(name: str) -> None:
    topology = load(name).select()
    gathered = blink.build(topology, Collective("allgather"))
    assert (gathered.chunks, gathered.steps) == (8, 1)
    reduced = blink.build(topology, ALLREDUCE)
    assert (reduced.chunks, reduced.steps) == (8, 2)
    assert {reduced.share(chunk) for chunk in range(8)} == {Fraction(1, 8)}
    # From a single root every part takes one hop to the GPU that spreads it.
    spread = blink.build(topology, Collective("broadcast", 3))
    assert (spread.chunks, spread.steps) == (7, 2)
    for schedule in (gathered, reduced, spread):
        assert verify(schedule).ok
        assert gap(schedule) == "0"


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_gather_and_scatter_follow_the_best_flows(name: str) -> None:
    for gpus in ("0-1-2-3-4", "0-2-3-4-6-7"):
        schedule = blink.build(part("DGX-1V", gpus), Collective(name, 2))
        assert verify(schedule).ok
        assert gap(schedule) == "0"


def test_one_rank_and_too_many() -> None:
    with pytest.raises(InputError, match="needs two GPUs or more"):
        blink.build(part("DGX-1V", "0"), ALLREDUCE)
    with pytest.raises(InfeasibleError, match="up to 32 ranks, not 64; take packed"):
        blink.build(load("torus:8x8").select(), ALLREDUCE)


@pytest.mark.slow
@settings(max_examples=20)
@given(strategies.topologies(max_devices=5, switches=False, half_duplex=False, unequal=False))
def test_random_direct_machines_reach_their_bound(topology: Topology) -> None:
    for collective in (ALLREDUCE, Collective("broadcast", 1), Collective("allgather")):
        schedule = blink.build(topology, collective, time_limit=5)
        assert verify(schedule).ok
        # Shares with a huge common denominator are rounded, at a loss of less than a millionth.
        best = bound(topology, collective).rate
        attained = rate(schedule)
        assert attained is not None
        assert best * Fraction(999_999, 1_000_000) <= attained <= best


# --- the hierarchical allreduce -----------------------------------------------------------------------------------


def test_eight_gpus_of_a_dgx1p_take_four_chunks_and_three_steps() -> None:
    """Blink, 2018 short paper, section 3.1: two groups of four, a pipelined time of M/(2b)."""
    schedule = blink_hierarchical.build(part("DGX-1P", "0-1-2-3-4-5-6-7"), ALLREDUCE)
    assert verify(schedule).ok
    assert (schedule.chunks, schedule.steps) == (4, 3)
    assert {schedule.share(chunk) for chunk in range(4)} == {Fraction(1, 4)}
    assert rate(schedule) == 2 * 20 * GB
    # Phase 1 keeps all arcs inside the groups equally busy, phase 2 those between partners.
    inside = [
        load
        for link, load in zip(schedule.topology.links, link_loads(schedule), strict=True)
        if abs(int(link.src[3:]) - int(link.dst[3:])) != 4
    ]
    assert set(inside) == {Fraction(1, 2)}


HIERARCHICAL = {
    "0-1-2-3": Fraction(2),
    "0-1-2-4-5-6": Fraction(3, 2),
    "0-1-2-3-4-5-6": Fraction(3, 2),
    "0-1-2-3-4": Fraction(1),
    "0-1-2-4-5": Fraction(1),
}


@pytest.mark.parametrize("gpus", HIERARCHICAL)
def test_partial_and_unequal_groups(gpus: str) -> None:
    """The prism {0,1,2,4,5,6} gives 3/2 in three chunks; a GPU without a partner owns none."""
    schedule = blink_hierarchical.build(part("DGX-1P", gpus), ALLREDUCE)
    assert verify(schedule).ok
    assert rate(schedule) == HIERARCHICAL[gpus] * 20 * GB
    if gpus == "0-1-2-3-4-5-6":
        last = schedule.op == 0
        owners = {schedule.topology.devices[i].name for i in schedule.src[last]}
        assert owners == {"gpu0", "gpu1", "gpu2", "gpu4", "gpu5", "gpu6"}


def test_never_above_the_partition_bound_and_always_right() -> None:
    better = 0
    for subset in connected():
        schedule = blink_hierarchical.build(subset.topology(), ALLREDUCE)
        assert verify(schedule).ok, str(subset)
        lanes = independent_check.rate(schedule) / subset.lane
        assert lanes <= subset.value("allreduce_tree_bound")
        better += lanes > subset.value("ring_allreduce") > 0
    assert better >= 10


def test_shares_follow_the_links_where_these_are_unequal() -> None:
    """Triangle 0-2-3 of a DGX-1V (lanes 1, 2, 2): equal thirds give 9/4 lanes, the best shares 5/2."""
    schedule = blink_hierarchical.build(part("DGX-1V", "0-2-3"), ALLREDUCE)
    assert rate(schedule) == Fraction(5, 2) * 25 * GB
    assert sorted(schedule.share(chunk) for chunk in range(schedule.chunks))[-1] == Fraction(3, 5)


def test_more_than_two_groups_exchange_over_a_tree() -> None:
    schedule = blink_hierarchical.build(load("torus:3x4").select(), ALLREDUCE)
    assert verify(schedule).ok
    groups = blink_hierarchical.cliques(schedule.topology, find_hops(schedule.topology))
    assert {len(group) for group in groups[0]} == {3}
    assert len(groups[0]) == 4


def test_boxes_are_groups_and_rails_join_their_owners() -> None:
    schedule = blink_hierarchical.build(load("dgx-a100", nodes=4).select(), ALLREDUCE)
    assert verify(schedule).ok
    assert schedule.chunks == 8
    # A line over four boxes loads the NICs of the inner ones twice.
    assert rate(schedule) == 100 * GB


def test_groups_can_be_named() -> None:
    topology = part("DGX-1P", "0-1-4-5")
    rows = [["gpu0", "gpu4"], ["gpu1", "gpu5"]]
    schedule = blink_hierarchical.build(topology, ALLREDUCE, groups=rows)
    assert verify(schedule).ok
    assert Counter(schedule.op.tolist()) == {1: 2 * 4, 0: 2 * 2}
    with pytest.raises(InfeasibleError, match="gpu0 and gpu5 are in one group, but no link joins them"):
        blink_hierarchical.build(topology, ALLREDUCE, groups=[["gpu0", "gpu5"], ["gpu1", "gpu4"]])
    with pytest.raises(InfeasibleError, match="every member once"):
        blink_hierarchical.build(topology, ALLREDUCE, groups=[["gpu0", "gpu1"]])


def test_groups_without_partners_all_the_way_are_refused() -> None:
    """Six GPUs in a line: the pair in the middle has its two neighbours at different GPUs."""
    line = load("ring:6").without("gpu5-gpu0").select()
    with pytest.raises(InfeasibleError, match="take blink"):
        blink_hierarchical.build(line, ALLREDUCE)
    assert np.all(verify(blink.build(line, ALLREDUCE)).ok)
