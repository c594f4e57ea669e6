"""Verdicts on small schedules written by hand: right ones, and one of each fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import independent_check
import numpy as np
import pytest
from hypothesis import given, settings
from small_schedules import (
    GB,
    exchanges,
    forests,
    full,
    helped,
    recursive_doubling,
    ring_allreduce,
    star_broadcast,
    steps,
    through_the_helper,
    whole,
)

from blinksim.errors import InputError
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.schedule.verify import MOST_REASONS, overwritten_in_place, verify
from blinksim.schedule.verify_contents import deadlock
from blinksim.topology.graph import Device, Link, Topology


def reasons(schedule: Schedule, **options: Any) -> str:
    verdict = verify(schedule, **options)
    assert verdict.ok == (not verdict.reasons)
    return "\n".join(verdict.reasons)


@pytest.mark.parametrize(
    "schedule",
    [ring_allreduce(2), ring_allreduce(5), star_broadcast(4), recursive_doubling(3), through_the_helper(helped())],
    ids=repr,
)
def test_right_schedules(schedule: Schedule) -> None:
    assert reasons(schedule) == ""
    assert independent_check.check(schedule) == []


def test_facts_of_a_ring() -> None:
    facts = verify(ring_allreduce(4)).facts
    # 2 (n - 1) / n of the vector on each of the n links of the ring.
    assert facts.busiest_load == Fraction(6, 4)
    assert facts.rate == Fraction(10 * GB * 4, 6)
    assert (facts.busiest_count, facts.in_flight, facts.in_place) == (4, 1, True)
    assert facts.scratch == {}
    assert (facts.bound, facts.gap) == (None, None)


@given(forests())
def test_random_forests_are_right_and_have_the_loads_of_the_fractions(schedule: Schedule) -> None:
    verdict = verify(schedule)
    assert verdict.ok, verdict
    assert independent_check.check(schedule) == []
    assert verdict.facts.rate == independent_check.rate(schedule)


def test_loads_count_buses_and_device_capacities() -> None:
    gpus = tuple(Device(f"gpu{i}", "gpu", capacity=Fraction(4 * GB)) for i in range(3))
    links = tuple(
        Link(
            a.name,
            b.name,
            "nvlink",
            Fraction(3 * GB),
            lanes=2,
            bus="b" if {a.name, b.name} == {"gpu0", "gpu1"} else None,
        )
        for a in gpus
        for b in gpus
        if a != b
    )
    topology = Topology("limited", gpus, links)
    around = [(0, f"gpu{i}", f"gpu{j}", REDUCE) for i in range(3) for j in range(3) if i != j]
    schedule = steps(topology, "allreduce", whole(), [around])
    facts = verify(schedule).facts
    assert facts.rate == independent_check.rate(schedule) == 2 * GB
    assert facts.busiest == "out of gpu0"


def test_a_bus_of_unequal_links_is_as_quick_as_the_slowest() -> None:
    """Which `topo check` refuses, and a file may hold."""
    gpus = tuple(Device(f"gpu{i}", "gpu") for i in range(3))
    ends = (("gpu0", "gpu1", 4), ("gpu0", "gpu2", 1))
    links = tuple(Link(src, dst, "nvlink", Fraction(lanes * GB), bus="b") for src, dst, lanes in ends)
    schedule = steps(Topology("shared", gpus, links), "broadcast", whole(), [[(0, *end[:2], COPY) for end in ends]])
    assert verify(schedule).facts.rate == GB / 2


# --- faults of the contents ---------------------------------------------------------------------------------------


def test_a_missing_contribution_names_rank_chunk_and_the_last_send() -> None:
    sends = [[(0, "gpu0", "gpu1", REDUCE)], [(0, "gpu1", "gpu2", COPY)], [(0, "gpu2", f"gpu{i}", COPY) for i in (0, 1)]]
    assert reasons(steps(full(3), "allreduce", whole(), sends)).splitlines() == [
        "gpu0 (rank 0) ends without the contribution of rank 2 in chunk 0; "
        "send 2 (step 2, chunk 0 from gpu2 to gpu0) was the last to write there"
    ]


def test_a_contribution_reduced_twice() -> None:
    ways = [[(0, "gpu1", "gpu0", REDUCE)], [(0, "gpu1", "gpu0", REDUCE)]]
    assert (
        "send 1 (step 1, chunk 0 from gpu1 to gpu0) reduces the contribution of rank 1 into chunk 0 at gpu0 (rank 0)"
        in (reasons(steps(full(2), "reduce", whole(), ways)))
    )


def test_what_is_not_there_cannot_be_sent() -> None:
    ways = [[(0, "gpu1", "gpu2", COPY)], [(0, "gpu0", "gpu1", COPY)]]
    assert reasons(steps(full(3), "broadcast", whole(), ways)).splitlines() == [
        "send 0 (step 0, chunk 0 from gpu1 to gpu2) sends what is not there: "
        "gpu1 (rank 1) has nothing of chunk 0 before step 0"
    ]
    # Within a step nothing can be passed on: its sends read what was there before it.
    assert "not there" in reasons(
        steps(full(3), "broadcast", whole(), [[(0, "gpu0", "gpu1", COPY), (0, "gpu1", "gpu2", COPY)]])
    )


def test_a_rank_that_is_never_reached() -> None:
    schedule = steps(full(4), "broadcast", whole(2), [[(0, "gpu0", f"gpu{i}", COPY) for i in (1, 2, 3)]])
    assert reasons(schedule) == "chunk 1 never reaches gpu1 (rank 1), gpu2 (rank 2), gpu3 (rank 3)"
    gather = steps(full(2), "gather", [(Fraction(1, 2), 0, -1), (Fraction(1, 2), 1, -1)], [])
    assert reasons(gather) == "chunk 1 never reaches gpu0 (rank 0)"


def test_two_copies_to_one_place_in_a_step() -> None:
    ways = [
        [(0, "gpu0", "gpu1", COPY), (0, "gpu0", "gpu2", COPY)],
        [(0, "gpu0", "gpu3", COPY), (0, "gpu1", "gpu3", COPY)],
    ]
    assert "depends on which comes last" in reasons(steps(full(4), "broadcast", whole(), ways))
    both = [[(0, "gpu1", "gpu0", REDUCE), (0, "gpu2", "gpu0", COPY)]]
    assert "copy and reduce to the same place in one step" in reasons(steps(full(3), "reduce", whole(), both))


def test_only_reductions_reduce() -> None:
    assert "reduces, but broadcast only copies" in reasons(
        steps(full(2), "broadcast", whole(), [[(0, "gpu0", "gpu1", REDUCE)]])
    )


def test_many_faults_are_capped_and_counted() -> None:
    nothing = steps(full(4), "allreduce", whole(50), [])
    verdict = verify(nothing)
    assert len(verdict.reasons) <= MOST_REASONS
    assert verdict.reasons[-1] == "… and 40 more of this sort"
    assert not verdict


# --- chunks, shares, labels -----------------------------------------------------------------------------------------


def test_shares_must_be_those_of_the_collective() -> None:
    half = [(Fraction(1, 2), -1, -1)]
    assert "hold 1/2 of the size, not 1" in reasons(steps(full(2), "broadcast", half, [[(0, "gpu0", "gpu1", COPY)]]))
    uneven = [(Fraction(1, 3), 0, -1), (Fraction(2, 3), 1, -1)]
    swap = [[(0, "gpu0", "gpu1", COPY), (1, "gpu1", "gpu0", COPY)]]
    schedule = steps(full(2), "allgather", uneven, swap)
    assert reasons(schedule) == "rank 0 starts with 1/3 of the size, not its share 1/2"
    assert reasons(schedule, shares=[Fraction(1, 3), Fraction(2, 3)]) == ""
    with pytest.raises(InputError, match="2 ranks need 2 shares"):
        verify(schedule, shares=[Fraction(1, 3), Fraction(1, 3)])


def test_origins_and_targets_must_be_given_where_they_mean_something() -> None:
    swap = [[(0, "gpu0", "gpu1", COPY), (1, "gpu1", "gpu0", COPY)]]
    assert "starts from one rank" in reasons(steps(full(2), "allgather", whole(2), swap))
    up = [[(0, "gpu1", "gpu0", REDUCE)]]
    assert "chunk 0 has target rank 1, but in reduce a chunk ends at the root" in reasons(
        steps(full(2), "reduce", [(Fraction(1), -1, 1)], up)
    )
    assert reasons(steps(full(2), "reduce", [(Fraction(1), -1, 0)], up)) == ""


def test_alltoall_needs_a_block_for_every_pair_itself_included() -> None:
    blocks = [(Fraction(1, 2), a, b) for a in range(2) for b in range(2)]
    swap = [[(1, "gpu0", "gpu1", COPY), (2, "gpu1", "gpu0", COPY)]]
    assert reasons(steps(full(2), "alltoall", blocks, swap)) == ""
    short = [*blocks[:3], (Fraction(1, 2), 1, 0)]
    assert "rank 1 has 1 of its size for rank 0, not 1/2" in reasons(steps(full(2), "alltoall", short, swap))
    assert "only 3 chunks" in reasons(steps(full(2), "alltoall", blocks[:3], swap))


# --- devices, links, routes -------------------------------------------------------------------------------------------


def with_route(schedule: Schedule, names: list[tuple[str, str]]) -> Schedule:
    """The schedule with this route for its first send."""
    key = {(link.src, link.dst): i for i, link in enumerate(schedule.topology.links)}
    new = np.array([key[pair] for pair in names], dtype=np.int32)
    route = schedule.route.copy()
    route[0] = len(schedule.route_start) - 1
    return replace(
        schedule,
        route=route,
        route_start=np.append(schedule.route_start, len(schedule.route_links) + len(new)).astype(np.int32),
        route_links=np.concatenate((schedule.route_links, new)),
    )


@pytest.mark.parametrize(
    ("route", "says"),
    [
        ([], "has a route without links"),
        ([("gpu0", "gpu2")], "ends at gpu2, over gpu0->gpu2 (nvlink)"),
        ([("gpu2", "gpu1")], "leaves from gpu2"),
        ([("gpu0", "gpu2"), ("gpu3", "gpu1")], "do not join up: gpu0->gpu2 (nvlink), gpu3->gpu1 (nvlink)"),
        ([("gpu0", "gpu2"), ("gpu2", "gpu1")], ""),
        (
            [("gpu0", "gpu2"), ("gpu2", "gpu3"), ("gpu3", "gpu2"), ("gpu2", "gpu1")],
            "passes gpu2 twice, over gpu0->gpu2 (nvlink), gpu2->gpu3 (nvlink), gpu3->gpu2 (nvlink), gpu2->gpu1",
        ),
        ([("gpu0", "gpu2"), ("gpu2", "gpu0"), ("gpu0", "gpu1")], "passes gpu0 twice"),
    ],
)
def test_routes(route: list[tuple[str, str]], says: str) -> None:
    found = reasons(with_route(star_broadcast(4), route))
    assert says in found
    assert bool(says) == bool(found)
    assert "send 0" in found or not says


def test_a_device_that_takes_no_part_neither_sends_nor_passes_on() -> None:
    schedule = with_route(star_broadcast(3), [("gpu0", "gpu1")])
    topology = replace(schedule.topology, members=("gpu0", "gpu1"))
    outside = reasons(replace(schedule, topology=topology))
    assert "goes to gpu2, which is neither member nor relay" in outside
    around = with_route(star_broadcast(3), [("gpu0", "gpu2"), ("gpu2", "gpu1")])
    only_one = replace(
        around,
        topology=topology,
        **{k: getattr(around, k)[:1] for k in ("chunk", "src", "dst", "op", "step", "route", "channel")},
    )
    assert reasons(only_one) == (
        "send 0 (step 0, chunk 0 from gpu0 to gpu1) passes through gpu2, which does not forward for this collective"
    )


def test_a_forwarder_is_no_end_of_a_send() -> None:
    assert "goes to gpu3, which only forwards; it belongs in a route (3 sends like this)" in reasons(
        through_the_helper(helped(("forward",)))
    )


def test_a_relay_does_only_what_it_can() -> None:
    assert reasons(through_the_helper(helped())) == ""
    assert "reduces at gpu3, which can only copy" in reasons(
        through_the_helper(helped(("forward", "multicast", "hold")))
    )
    assert "send the same data, but gpu3 cannot multicast" in reasons(through_the_helper(helped(("forward", "reduce"))))


def test_a_relay_without_multicast_may_send_what_it_gets_later() -> None:
    # Up once and down once: different data, so no multicast.
    topology = helped(("forward", "reduce"))
    sends = [
        [(0, "gpu0", "gpu3", REDUCE), (0, "gpu2", "gpu3", REDUCE)],
        [(0, "gpu3", "gpu1", REDUCE)],
        [(0, "gpu1", "gpu3", COPY)],
        [(0, "gpu3", "gpu0", COPY)],
        [(0, "gpu1", "gpu2", COPY)],
    ]
    assert reasons(steps(topology, "allreduce", whole(), sends)) == ""


# --- deadlock -----------------------------------------------------------------------------------------------------


def crossing() -> Schedule:
    """Two GPUs swap two chunks, one in the order 0 1 and the other in the order 1 0."""
    ways = [
        (0, "gpu0", "gpu1", REDUCE),
        (1, "gpu0", "gpu1", REDUCE),
        (1, "gpu1", "gpu0", REDUCE),
        (0, "gpu1", "gpu0", REDUCE),
    ]
    return steps(full(2), "allreduce", whole(2), [ways])


def test_crossing_orders_wait_for_each_other_with_one_slot() -> None:
    found = reasons(crossing())
    assert found.startswith("deadlock in step 0 with 1 slot a connection: send ")
    assert "wait for each other in a circle; 2 slots avoid it" in found
    assert independent_check.stuck(crossing(), 1)
    assert reasons(crossing(), slots=2) == ""
    assert not independent_check.stuck(crossing(), 2)
    assert verify(crossing(), slots=2).facts.in_flight == 2
    # On channels of their own the two chunks do not wait for each other.
    apart = replace(crossing(), channel=np.array([0, 1, 0, 1], dtype=np.int32))
    assert reasons(apart) == ""


def test_a_connection_needs_a_slot() -> None:
    with pytest.raises(InputError, match="at least 1"):
        verify(crossing(), slots=0)


@settings(max_examples=150)
@given(exchanges())
def test_deadlocks_of_random_exchanges(schedule: Schedule) -> None:
    for slots in (1, 2, 3):
        found = deadlock(schedule, slots)
        assert (found is None) == (not independent_check.stuck(schedule, slots)), found


# --- in place -----------------------------------------------------------------------------------------------------


def alltoall(n: int, pieces: int, when: Callable[[int, int, int], int]) -> Schedule:
    """Direct sends; when(origin, target, piece) is the step."""
    topology = full(n)
    chunks = [(Fraction(1, n * pieces), o, t) for o in range(n) for t in range(n) for _ in range(pieces)]
    rounds: dict[int, list[tuple[int, str, str, int]]] = {}
    for number in range(len(chunks)):
        o, t, piece = number // pieces // n, number // pieces % n, number % pieces
        if o != t:
            rounds.setdefault(when(o, t, piece), []).append((number, f"gpu{o}", f"gpu{t}", COPY))
    return steps(topology, "alltoall", chunks, [rounds.get(s, []) for s in range(max(rounds) + 1)])


@pytest.mark.parametrize(
    ("schedule", "safe"),
    [
        (alltoall(4, 1, lambda o, t, p: 0), True),
        (alltoall(4, 1, lambda o, t, p: o ^ t), True),
        (alltoall(4, 1, lambda o, t, p: (t - o) % 4), False),
        (alltoall(2, 2, lambda o, t, p: p), True),
        (alltoall(2, 2, lambda o, t, p: p if o else 1 - p), False),
    ],
)
def test_in_place_alltoall(schedule: Schedule, safe: bool) -> None:
    assert verify(schedule).ok
    assert verify(schedule).facts.in_place == safe == (not independent_check.wrong_in_place(schedule))
    assert ("in place, chunk" in reasons(schedule, in_place=True)) == (not safe)


def test_in_place_alltoall_with_unequal_pieces() -> None:
    # Blocks of 1/2: one way in pieces 1/8 3/8, the other way in 3/8 1/8; only the overlapping pieces matter.
    chunks = [(Fraction(1, 2), r, r) for r in range(2)]
    chunks += [(Fraction(1, 8), 0, 1), (Fraction(3, 8), 0, 1), (Fraction(3, 8), 1, 0), (Fraction(1, 8), 1, 0)]
    for late in range(2, 6):
        rounds: list[list[tuple[int, str, str, int]]] = [[], []]
        for c in range(2, 6):
            a, b = ("gpu0", "gpu1") if c < 4 else ("gpu1", "gpu0")
            rounds[c == late].append((c, a, b, COPY))
        schedule = steps(full(2), "alltoall", chunks, rounds)
        assert (overwritten_in_place(schedule) is None) == (not independent_check.wrong_in_place(schedule))
