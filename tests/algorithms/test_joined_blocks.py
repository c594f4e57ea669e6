"""Alltoall in few messages: every block arrives, by few messages, at the time that a simulation takes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.algorithms import bruck, rail_joined
from blinksim.algorithms.building.rail_alltoall import Course, Delays, divisors, hops, once, twice
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints
from blinksim.schedule.candidate import Candidate
from blinksim.timing.alpha_beta import cost

ALLTOALL = Collective("alltoall")
NVLINK, RAIL = (1.9e-6, 1.3e-6), (5.6e-6, 0.9e-6)


def blocks(course: Course) -> tuple[Ints, ...]:
    grids = map(np.arange, (course.nodes, course.local, course.nodes, course.local))
    return tuple(grid.ravel() for grid in np.meshgrid(*grids, indexing="ij"))


@given(st.data())
def test_every_block_goes_from_its_rank_to_its_rank(data: st.DataObject) -> None:
    """Followed one by one: over rails between nodes, step after step, to where it belongs."""
    orders = data.draw(st.sampled_from([(2,), (5,), (9,), (2, 2, 2), (4, 3), (3, 3)]))
    local = data.draw(st.sampled_from([1, 2, 3, 4]))
    radix = data.draw(st.integers(2, prod(orders)))
    groups = data.draw(st.sampled_from(divisors(local)))
    rounds = data.draw(st.integers(1, 3)) if radix == prod(orders) else 1
    course = Course(orders, local, radix, groups, rounds)
    a, i, far, j = blocks(course)
    node, place, last = a.copy(), i.copy(), np.full(len(a), -1)
    for hop in hops(course, a, i, far, j):
        here = hop.blocks
        assert np.array_equal(node[here], hop.a)
        assert np.array_equal(place[here], hop.x)
        assert (hop.step > last[here]).all()
        assert ((hop.far == 0) != (hop.x == hop.y)).all()
        node[here], place[here], last[here] = course.plus(hop.a, hop.far), hop.y, hop.step
    there = [(np.array(np.unravel_index(x, orders))) for x in (a, far)]
    due = np.ravel_multi_index(tuple((there[0] + there[1]) % np.array(orders)[:, None]), orders)
    assert np.array_equal(node, due)
    assert np.array_equal(place, j)


def most_messages(course: Course) -> int:
    """The most messages that a rank sends to other nodes."""
    a, i, far, j = blocks(course)
    found = set[tuple[int, ...]]()
    for hop in hops(course, a, i, far, j):
        out = hop.far > 0
        columns = (hop.a[out], hop.x[out], hop.step[out], hop.far[out])
        found |= set(zip(*(column.tolist() for column in columns), strict=True))
    return int(np.bincount([node * course.local + place for node, place, _, _ in found]).max())


@pytest.mark.parametrize(("nodes", "local"), [(16, 4), (9, 2), (8, 8)])
def test_a_rank_sends_few_messages(nodes: int, local: int) -> None:
    """Its share of the other nodes, or of the other digits; to every rank of other nodes it would be (N - 1) L."""
    for groups in divisors(local):
        once = -(-(nodes - 1) * groups // local)
        assert most_messages(Course((nodes,), local, nodes, groups)) == once
        radix = 4 if nodes == 16 else 3
        assert most_messages(Course((nodes,), local, radix, groups)) <= 2 * -(-(radix - 1) * groups // local)


def test_the_course_suits_the_delays() -> None:
    """By hand: HGX H100, where a further message costs 0.9 us between nodes and 1.3 us inside."""
    delays = Delays(NVLINK, RAIL)
    few, many, most = (once((nodes,), 8, delays) for nodes in (8, 64, 4096))
    # Seven messages and one exchange, against one message and two exchanges.
    assert (few.groups, few.rounds) == (8, 1)
    assert delays.of(few) == pytest.approx(1.9e-6 + 6 * 1.3e-6 + 5.6e-6 + 6 * 0.9e-6)
    assert (many.groups, most.groups, most.rounds) == (1, 1, 16)
    assert delays.of(most) == pytest.approx(2 * (1.9e-6 + 6 * 1.3e-6) + 5.6e-6 + 511 * 0.9e-6)
    # 64 of 4096 nodes in each digit: eight messages each.
    assert delays.of(twice((4096,), 8, delays)) == pytest.approx(3 * 9.7e-6 + 2 * (5.6e-6 + 7 * 0.9e-6))


TREE = "fabric shape=tree planes=8 spine_planes=1 leaf_nodes=4 oversubscription=4"


@pytest.mark.parametrize("module", [rail_joined, bruck], ids=["rail_joined", "bruck"])
@pytest.mark.parametrize(
    ("name", "nodes", "edits"),
    [
        ("hgx-h100", 5, ()),
        ("rails:40x2@300GB/s,50GB/s", 1, ()),
        ("p5.48xlarge", 4, ()),
        ("fattree:4x2@300GB/s,50GB/s,2:1", 1, ()),
        pytest.param("hgx-h100", 24, (), marks=pytest.mark.slow),
        pytest.param("hgx-h100", 8, ("fabric shape=dragonfly group_nodes=2 group_links=4",), marks=pytest.mark.slow),
        pytest.param("hgx-h100", 8, (TREE,), marks=pytest.mark.slow),
    ],
)
def test_one_node_and_its_turns_are_the_schedule(module: object, name: str, nodes: int, edits: tuple[str, ...]) -> None:
    """Messages, chunks of one node and all chunks: the same sends, rates, facts and times."""
    part = bs.load(name, nodes=nodes, edits=edits).select()
    turned = module.symmetric(part, ALLTOALL)  # type: ignore[attr-defined]
    assert turned is not None
    whole, schedule = turned.by_symmetry, turned.schedule
    facts, written = bs.verify(whole), bs.verify(schedule)
    assert facts.ok, facts
    assert written.ok, written
    assert facts.facts.rate == written.facts.rate == turned.rate
    assert facts.facts.scratch == written.facts.scratch
    assert (facts.facts.in_flight, facts.facts.in_place) == (written.facts.in_flight, written.facts.in_place)
    assert turned.sends == whole.sends == schedule.sends
    for size in (2**16, 2**22, 2**30):
        times = [cost(one, size).time_s for one in (turned, Candidate(whole), Candidate(schedule))]
        assert times == pytest.approx([times[0]] * 3, rel=1e-9)
    assert cost(whole.step_loads, 2**20).steps == schedule.steps


@pytest.mark.parametrize(
    ("name", "nodes", "size"),
    [("hgx-h100", 4, 2**16), ("hgx-h100", 4, 2**20), ("rails:6x2@300GB/s,50GB/s", 1, 2**20),
     pytest.param("hgx-h100", 8, 2**22, marks=pytest.mark.slow),
     pytest.param("hgx-h100", 16, 2**20, marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.parametrize("algorithm", ["rail_joined", "bruck"])
def test_a_simulation_takes_as_long(name: str, nodes: int, size: int, algorithm: str) -> None:
    schedule = REGISTRY[algorithm].build(bs.load(name, nodes=nodes).select(), ALLTOALL)
    assert cost(Candidate(schedule), size).time_s == pytest.approx(bs.simulate(schedule, size).time_s, rel=0.05)


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-a100"])
def test_large_blocks_attain_the_bound(name: str) -> None:
    """Where every adapter has as many messages: what crosses is what must cross, by any schedule."""
    part = bs.load(name, nodes=3).select()
    verdict = bs.verify(REGISTRY["rail_joined"].build(part, ALLTOALL))
    assert verdict.facts.rate == bs.bound(part, "alltoall").rate


def test_thousands_of_ranks_take_as_long_as_their_bytes() -> None:
    """2,048 ranks: 512 KiB for each other rank, then 256 bytes."""
    part = bs.load("hgx-h100", nodes=256).select()
    large, small = (rail_joined.symmetric(part, ALLTOALL), bruck.symmetric(part, ALLTOALL))
    assert large is not None
    assert small is not None
    least = 2**30 * 8 * 255 / 256 / 400e9
    assert least < cost(large, 2**30).time_s < 1.03 * least
    # A message to each of 2,040 ranks of other nodes would cost 0.9 us; these are 15 in each digit, of eight members.
    assert cost(small, 2**19).time_s < 1e-4 < 2039 * 0.9e-6


@pytest.mark.parametrize("algorithm", ["rail_joined", "bruck"])
def test_what_they_refuse(algorithm: str) -> None:
    with pytest.raises(InfeasibleError, match="two or more nodes"):
        REGISTRY[algorithm].build(bs.load("hgx-h100").select(), ALLTOALL)


def test_a_lost_adapter_leaves_its_part_to_the_others() -> None:
    lost = bs.Question("hgx-h100", nodes=3, edits=("without n1.nic2-fabric2",)).part()
    verdict = bs.verify(REGISTRY["rail_joined"].build(lost, ALLTOALL))
    assert verdict.ok
    assert float(verdict.facts.rate or 0) > (1 - 1e-4) * float(bs.bound(lost, "alltoall").rate)
    with pytest.raises(InfeasibleError, match="rail_joined"):
        REGISTRY["bruck"].build(lost, ALLTOALL)


@pytest.mark.parametrize("module", [bruck, rail_joined])
def test_adapters_lost_on_some_nodes_cost_no_more_than_on_all(module: Any) -> None:
    """The part of an adapter goes to those that every node has: in no more messages, hence in no more starts."""
    some, every = (bs.load("aurora", nodes=4, edits=[f"without {lost}"]) for lost in ("n[0-2].nic1", "n[0-3].nic1"))
    here, there = (Candidate(module.build(machine, ALLTOALL)) for machine in (some, every))
    assert here.sends == there.sends
    for size in (2**10, 2**20, 2**30):
        assert cost(here, size).time_s <= cost(there, size).time_s * (1 + 1e-9)


def test_many_nodes_with_fewer_adapters_on_some_take_what_is_quickest_with_fewer_on_all() -> None:
    """Too many sends to write them out: in steps by symmetry they are as good where some nodes have more."""
    some, every = (bs.load("aurora", nodes=48, edits=[f"without {lost}"]) for lost in ("n[0-2].nic1", "n[0-47].nic1"))
    here, there = (bs.project(machine, "alltoall", "64KiB", model="alpha-beta") for machine in (some, every))
    assert here.time_s <= there.time_s * (1 + 1e-9)
    assert here.algorithm in ("bruck", "rail_joined")


def test_synthesis_by_symmetry_is_proved(tmp_path: object) -> None:
    made = bs.synthesize(bs.load("hgx-h100", nodes=14), "alltoall", "rail_joined")
    assert made.verdict.ok
    bs.write(made, f"{tmp_path}/joined.json")
    assert bs.verify(f"{tmp_path}/joined.json").ok
