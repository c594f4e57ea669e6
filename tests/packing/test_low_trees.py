"""Lowest and fewest trees: published heights, counts and rates, and fronts checked against all trees there are."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import assume, given, settings, strategies as st
from strategies import topologies

from blinksim.algorithms import packed
from blinksim.algorithms.building.polish import Point, member_symmetries, polish
from blinksim.algorithms.packed import build
from blinksim.algorithms.registry import algorithm
from blinksim.answers.verify import verify
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.machines import load
from blinksim.packing.choose import Choice
from blinksim.packing.columns import Column, Hops, find_hops, images
from blinksim.packing.tree_columns import entry_trees, low_trees
from blinksim.schedule.loads import rate, trees_of
from blinksim.topology.graph import Topology

GB = 10**9
DGX1V, DGX1P = load("dgx1-v100").select(), load("dgx1-p100").select()
LANE_V, LANE_P = 25 * GB, 20 * GB


def check(front: Sequence[Point]) -> None:
    """Every point is what it says, none is better than the bound, and none is better than another in all respects."""
    most = limit(front)
    for point in front:
        verdict = verify(point.schedule)
        assert verdict.reasons == ()
        assert verdict.facts.rate == point.rate <= most
        assert verdict.facts.gap == 1 - point.rate / most == Fraction(point.schedule.bound["gap_exact"])
        assert point.trees == point.schedule.chunks >= point.least_trees
        assert max(map(height, trees_of(point.schedule))) == point.height
    for one, other in product(front, repeat=2):
        if one is not other:
            assert one.rate > other.rate or one.height < other.height or one.trees < other.trees


def limit(front: Sequence[Point]) -> Fraction:
    """What no schedule of the same collective exceeds."""
    return bound(front[0].schedule.topology, front[0].schedule.collective).rate


def fastest(front: Sequence[Point]) -> Point:
    """Of equally fast ones the lowest."""
    return max(front, key=lambda point: (point.rate, -point.height, -point.trees))


def height(tree: object) -> int:
    """The farthest vertex from the root, by relaxing distances."""
    edges, root = {*tree.down, *tree.up}, tree.root  # type: ignore[attr-defined]
    far = {root: 0}
    for _ in range(len(edges)):
        far |= {b: far[a] + 1 for a, b, _ in edges if a in far}
    return max(far.values())


# --- machines -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dgx1v_allgather_is_two_hops_high() -> None:
    """7/6 of a lane's time per shard; 304 trees of height 2 exist. ForestColl's release makes 22 trees of height 5."""
    hops = find_hops(DGX1V)
    assert sum(len(list(low_trees(hops, root, 2))) for root in hops.vertices) == 304
    front = polish(DGX1V, Collective("allgather"), seconds=1)
    check(front)
    (point,) = front
    assert (point.height, point.rate) == (2, Fraction(8 * 6, 7) * LANE_V)
    assert point.rate == limit(front)
    assert point.trees <= 17
    assert 8 <= point.least_trees <= 14


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "lane", "rates"),
    [(DGX1V, LANE_V, {2: 2, 3: 5, 4: 6}), (DGX1P, LANE_P, {2: 1, 3: 4})],
    ids=["dgx1v", "dgx1p"],
)
def test_taller_trees_broadcast_faster(machine: Topology, lane: int, rates: dict[int, int]) -> None:
    front = polish(machine, Collective("broadcast"), seconds=0.3)
    check(front)
    assert {point.height: point.rate / lane for point in front} == rates
    assert fastest(front).rate == limit(front)
    # Blink's six trees on the DGX-1V, four on the DGX-1P: as many as there are links into the slowest GPU.
    assert fastest(front).trees <= max(rates.values())


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "best"), [(DGX1V, Fraction(24, 7) * LANE_V), (DGX1P, Fraction(16, 7) * LANE_P)])
def test_allreduce_on_low_trees(machine: Topology, best: Fraction) -> None:
    """Trees used up and down, two hops from their roots, reach the partition bound."""
    front = polish(machine, Collective("allreduce"), seconds=0.3)
    check(front)
    assert (fastest(front).rate, fastest(front).height) == (best, 2)
    assert fastest(front).trees < 16


@pytest.mark.slow
def test_backwards_is_the_same() -> None:
    """The links of a DGX-1P are the same both ways, so what gathers in some way also scatters."""
    there, back = (polish(DGX1P, Collective(name), seconds=0.1) for name in ("allgather", "reducescatter"))
    check(back)
    assert [(p.height, p.rate) for p in there] == [(p.height, p.rate) for p in back]
    assert fastest(back).rate == Fraction(8 * 4, 7) * LANE_P


@pytest.mark.parametrize("name", ["allgather", "allreduce"])
def test_one_switch_needs_one_hop(name: str) -> None:
    front = polish(load("dgx-a100").select(), Collective(name), seconds=0.3)
    check(front)
    (point,) = front
    assert (point.height, point.trees, point.least_trees) == (1, 8, 8)
    assert point.rate == limit(front)


@pytest.mark.slow
@pytest.mark.parametrize("boxes", [3, 4])
def test_boxes_on_rails_need_two_hops(boxes: int) -> None:
    """From three boxes of eight A100 on, trees of height 2 reach the bound, one from each GPU."""
    front = polish(load("dgx-a100", nodes=boxes).select(), Collective("allgather"), seconds=0.3)
    check(front)
    (point,) = front
    assert (point.height, point.trees) == (2, 8 * boxes)
    assert point.rate == limit(front) == Fraction(200 * 8 * boxes, 8 * boxes - 8) * GB


@pytest.mark.slow
def test_two_boxes_are_a_compromise() -> None:
    """Two boxes: one low tree a GPU loses 1.1 % (14/300 against 3/65 for a shard over 1 GB/s), tall ones nothing."""
    machine = load("dgx-a100", nodes=2).select()
    front = polish(build(machine, Collective("allgather"), templates=False), seconds=0.3)
    check(front)
    low, tall = front
    assert (low.height, low.trees, low.rate) == (2, 16, Fraction(16 * 300, 14) * GB)
    assert tall.rate == Fraction(16 * 65, 3) * GB == limit(front)
    assert tall.height > 2


def test_two_boxes_lose_nothing_with_two_low_trees_a_gpu() -> None:
    machine = load("dgx-a100", nodes=2).select()
    front = polish(build(machine, Collective("allgather")), seconds=0.3)
    check(front)
    best = fastest(front)
    assert (best.height, best.trees, best.rate) == (2, 32, Fraction(16 * 65, 3) * GB)


@pytest.mark.slow
def test_mi250_needs_fewer_trees_than_published() -> None:
    """Two nodes of 16 MI250 halves: ForestColl's release makes 136 trees, 83 units from each root."""
    machine = load("mi250", nodes=2).select()
    front = polish(packed.build(machine, Collective("allgather")), seconds=0.3)
    check(front)
    assert fastest(front).rate == limit(front)
    assert fastest(front).trees <= 136


@pytest.mark.slow
def test_a_given_schedule_loses_trees() -> None:
    one = packed.build(load("torus:3x4@10GB/s").select(), Collective("allgather"))
    front = polish(one, seconds=0.6)
    check(front)
    assert fastest(front).rate == rate(one)
    assert min(point.trees for point in front) <= one.chunks
    assert front[0].height <= max(map(height, trees_of(one)))


# --- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_all_low_trees_are_listed(levels: int) -> None:
    """Against all ways to give everyone but the root a parent."""
    hops = find_hops(DGX1V.select(["gpu0", "gpu1", "gpu2", "gpu3", "gpu4"]))
    root, *others = hops.vertices
    expected = set()
    for parents in product(hops.vertices, repeat=len(others)):
        arcs = frozenset(zip(parents, others, strict=True))
        far, below = {root}, 0
        while below < levels and len(far) < 5:
            far |= {b for a, b in arcs if a in far}
            below += 1
        if len(far) == 5 and all(arc in hops.routes for arc in arcs):
            expected.add(arcs)
    found = [frozenset(arcs) for arcs in low_trees(hops, root, levels)]
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_trees_that_cannot_reach_everyone_are_not_tried() -> None:
    """On a torus of 64, where there are more of them than can be counted."""
    hops = find_hops(load("torus:4x4x4").select())
    assert list(low_trees(hops, hops.vertices[0], 5)) == []
    assert next(low_trees(hops, hops.vertices[0], 6))


def columns_of(hops: Hops, levels: int) -> list[Column]:
    return [
        Column(arcs, hops.load(arcs), 0, group)
        for group, root in enumerate(hops.vertices)
        for arcs in low_trees(hops, root, levels)
    ]


def test_symmetries_of_a_dgx1v() -> None:
    """Its double links are an 8-cycle 0-3-2-1-5-6-7-4; the single ones leave a half turn and two mirrors of it."""
    hops = find_hops(DGX1V)
    place = {gpu: number for number, gpu in enumerate((0, 3, 2, 1, 5, 6, 7, 4))}
    cycle = {number: gpu for gpu, number in place.items()}
    expected = [
        {gpu: cycle[(sign * place[gpu] + shift) % 8] for gpu in range(8)} for sign, shift in ((1, 4), (-1, 3), (-1, 7))
    ]
    found = member_symmetries(DGX1V)
    assert sorted(map(sorted, (t.items() for t in found))) == sorted(map(sorted, (t.items() for t in expected)))
    columns = columns_of(hops, 2)
    for turn in found:
        image = images(columns, turn, hops.vertices)
        assert image is not None
        assert sorted(image) == list(range(304))
        for column, number in zip(columns, image, strict=True):
            assert {(turn[a], turn[b]) for a, b in column.arcs} == set(columns[number].arcs)


@settings(max_examples=8)
@given(topologies(max_devices=4, switches=False), st.integers(1, 3))
def test_the_fewest_against_all_selections(topology: Topology, parts: int) -> None:
    """Brute force over how often each column is taken, for one root."""
    hops = find_hops(topology)
    columns = [Column(arcs, hops.load(arcs)) for arcs in low_trees(hops, hops.vertices[0], 2)][:5]
    assume(columns)
    wanted = Fraction(min(hops.capacity))
    total = int(wanted * parts)
    if (total + 1) ** len(columns) > 20_000:
        wanted, total = Fraction(1, parts), 1
    counts = []
    for amounts in product(range(total + 1), repeat=len(columns)):
        load: dict[int, int] = {}
        for column, amount in zip(columns, amounts, strict=True):
            for resource, times in column.load:
                load[resource] = load.get(resource, 0) + times * amount
        if sum(amounts) == total and all(value <= hops.capacity[r] * parts for r, value in load.items()):
            counts.append(sum(amount > 0 for amount in amounts))
    found = Choice(columns, hops.capacity, wanted, parts).fewest(5)
    assert (found is None) == (not counts)
    if found is not None:
        assert found.count == found.least == min(counts)


@settings(max_examples=10)
@given(topologies(max_devices=5))
def test_random_machines(topology: Topology) -> None:
    for name in ("allgather", "reduce", "allreduce"):
        front = polish(topology, Collective(name), seconds=0.1)
        check(front)


def test_trees_that_enter_every_node_once() -> None:
    machine = load("dgx-a100", nodes=3).select()
    hops = find_hops(machine)
    nodes = [hops.vertices[i : i + 8] for i in (0, 8, 16)]
    for arcs in entry_trees(hops, nodes, hops.vertices[9]):
        assert sorted(b for _, b in arcs) == sorted(set(hops.vertices) - {hops.vertices[9]})
        assert sum(a == hops.vertices[9] for a, _ in arcs) == 7 + 2
        assert all(arc in hops.routes for arc in arcs)


def test_refusals() -> None:
    with pytest.raises(InputError, match="alltoall cannot be polished"):
        polish(DGX1V, Collective("alltoall"))
    with pytest.raises(InputError, match="in steps form"):
        polish(algorithm("ring").build(DGX1V, Collective("allgather")))
    with pytest.raises(InputError, match="too many trees to compare"):
        polish(load("torus:4x4").select(), Collective("allgather"))
