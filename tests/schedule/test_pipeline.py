"""Cutting forests into pieces, and the room that pieces need, against counting step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import groupby

import independent_check
from hypothesis import given, strategies as st
from in_pieces import cut
from small_schedules import forests, full, helped, ring_allreduce, star_broadcast, steps, through_the_helper, whole

from blinksim.schedule.loads import link_loads
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.schedule.verify import verify
from blinksim.schedule.verify_contents import scratch


def chain(hops: int, collective: str = "broadcast") -> Schedule:
    sends = [[(0, f"gpu{i}", f"gpu{i + 1}", COPY)] for i in range(hops)]
    return steps(full(hops + 1), collective, whole(), sends, form="forest")


def test_a_chain_in_pieces_by_hand() -> None:
    pieces = cut(chain(2), 3)
    rows = [(int(pieces.step[i]), int(pieces.src[i]), int(pieces.chunk[i])) for i in range(pieces.sends)]
    assert sorted(rows) == [(0, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 2), (2, 1, 1), (3, 1, 2)]
    assert pieces.form == "steps"
    assert [pieces.share(c) for c in range(3)] == [Fraction(1, 3)] * 3
    # Height 2 and 3 pieces: 2 + 3 - 1 steps.
    assert pieces.steps == 4


@given(forests(), st.integers(1, 5))
def test_pieces_keep_the_promise_and_the_loads(schedule: Schedule, pieces: int) -> None:
    steps_form = cut(schedule, pieces)
    assert verify(steps_form).ok
    assert independent_check.check(steps_form) == []
    assert link_loads(steps_form) == link_loads(schedule)
    assert steps_form.steps == schedule.steps + pieces - 1
    for chunk in range(schedule.chunks):
        inside = range(chunk * pieces, (chunk + 1) * pieces)
        assert [steps_form.share(c) for c in inside] == [schedule.share(chunk) / pieces] * pieces
        assert all(steps_form.origin[c] == schedule.origin[chunk] for c in inside)


def test_one_piece_changes_only_the_form() -> None:
    schedule = ring_allreduce(4)
    same = cut(schedule, 1)
    assert same.chunk.tolist() == schedule.chunk.tolist()
    assert same.step.tolist() == schedule.step.tolist()


# --- scratch --------------------------------------------------------------------------------------------------------


def room_step_by_step(schedule: Schedule) -> dict[str, Fraction]:
    """The most that each device holds beside its rank's buffers, by keeping books in every step."""
    n, root = schedule.topology.ranks, schedule.collective.root
    ends: Callable[[int], set[int]] = {
        **dict.fromkeys(("allreduce", "broadcast", "allgather"), lambda c: set(range(n))),
        **dict.fromkeys(("reduce", "gather"), lambda c: {root}),
        **dict.fromkeys(("reducescatter", "scatter", "alltoall"), lambda c: {int(schedule.target[c])}),
    }[schedule.collective.name]
    last_use: dict[tuple[int, int, int], int] = {}
    written: dict[tuple[int, int], int] = {}
    generation = 0
    intervals: dict[int, tuple[int, int]] = {}
    by_step = [list(g) for _, g in groupby(range(schedule.sends), key=lambda i: int(schedule.step[i]))]
    for now in by_step:
        step = int(schedule.step[now[0]])
        for i in now:
            here = (int(schedule.src[i]), int(schedule.chunk[i]))
            if here in written:
                intervals[written[here]] = (intervals[written[here]][0], step)
        fresh = set()
        for i in now:
            here = (int(schedule.dst[i]), int(schedule.chunk[i]))
            if int(schedule.rank_of[here[0]]) in ends(here[1]) - {-1}:
                continue
            if here not in written or (schedule.op[i] == COPY and here not in fresh):
                written[here] = generation
                last_use[(*here, generation)] = generation
                intervals[generation] = (step, step)
                generation += 1
            fresh.add(here)
            intervals[written[here]] = (intervals[written[here]][0], step)
    result: dict[str, Fraction] = {}
    held: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for device, chunk, number in last_use:
        for step in range(intervals[number][0], intervals[number][1] + 1):
            held[device, step] += schedule.share(chunk)
    for (device, _), share in held.items():
        name = schedule.topology.devices[device].name
        result[name] = max(result.get(name, Fraction(0)), share)
    return {name: share for name, share in result.items() if share}


@given(forests(), st.integers(1, 4))
def test_scratch_is_what_book_keeping_finds(schedule: Schedule, pieces: int) -> None:
    in_pieces = cut(schedule, pieces)
    assert scratch(in_pieces) == room_step_by_step(in_pieces)


def test_partial_sums_of_a_reduce_need_room_and_an_allreduce_has_it() -> None:
    up = [[(0, "gpu2", "gpu1", REDUCE)], [(0, "gpu1", "gpu0", REDUCE)]]
    assert scratch(steps(full(3), "reduce", whole(), up)) == {"gpu1": Fraction(1)}
    assert scratch(ring_allreduce(4)) == {}
    assert scratch(star_broadcast(3)) == {}


def test_a_relay_needs_the_pipeline_and_not_the_whole_share() -> None:
    schedule = through_the_helper(helped())
    assert scratch(schedule) == {"gpu3": Fraction(1)}
    # A piece arrives in one step and leaves in the next: two are there at once, however many there are in all.
    for pieces in (16, 1000):
        assert scratch(cut(schedule, pieces))["gpu3"] == Fraction(2, pieces)
    assert verify(schedule).facts.scratch == scratch(schedule)


def test_data_that_waits_longer_needs_more_room() -> None:
    topology = helped()
    sends = [[(0, "gpu0", "gpu3", COPY)], [], [], [(0, "gpu3", f"gpu{i}", COPY) for i in (1, 2)]]
    schedule = steps(topology, "broadcast", whole(), sends)
    assert scratch(cut(schedule, 100))["gpu3"] == Fraction(4, 100)


def test_a_replaced_value_gives_its_room_back() -> None:
    topology = helped()
    sends = [
        [(0, "gpu0", "gpu3", COPY)],
        [(0, "gpu3", "gpu1", COPY)],
        [],
        [],
        [(0, "gpu0", "gpu3", COPY)],
        [(0, "gpu3", "gpu2", COPY)],
    ]
    schedule = steps(topology, "broadcast", whole(), sends)
    assert scratch(schedule) == {"gpu3": Fraction(1)}
    assert scratch(cut(schedule, 3)) == {"gpu3": Fraction(2, 3)}
    # With more pieces the last ones of the first value are still there when the second one begins.
    assert scratch(cut(schedule, 100))["gpu3"] == Fraction(4, 100)
