"""The fast loops of events against their plain twin, start by start, on random stage graphs; and the order of ties."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from plain_events import plain_fifo

from blinksim.timing.event_graph import EventGraph, Work
from blinksim.timing.events import alike, first_come

MANY = settings(max_examples=100, derandomize=True, deadline=None, database=None, suppress_health_check=[*HealthCheck])


def work_of(
    hold: list[int],
    lag: list[int],
    server: list[int],
    waits: list[tuple[int, int]],
    release: list[int],
    joints: int = 0,
) -> Work:
    """The work of a stage graph; the last `joints` stages are joints, each with a server number of its own."""
    count, real = len(hold), len(hold) - joints
    before, after = (np.array([wait[side] for wait in waits], dtype=np.int64) for side in (0, 1))
    timeless = np.arange(count) >= real
    resource = np.array([*server[:real], *(max(server) + 1 + j for j in range(joints))], dtype=np.int64)
    graph = EventGraph(resource, timeless, before, after)
    hold_, lag_ = (np.where(timeless, 0, values) for values in (hold, lag))
    return Work(graph, hold_, lag_, np.array(release, dtype=np.int64), Fraction(1))


@st.composite
def works(draw: st.DrawFn, *, releases: bool = True) -> Work:
    """Up to 9 stages at up to 4 servers and up to 2 joints; few distinct times, so that many events coincide."""
    real, joints = draw(st.integers(1, 9)), draw(st.integers(0, 2))
    times = st.lists(st.integers(0, 4), min_size=real + joints, max_size=real + joints)
    server = draw(st.lists(st.integers(0, 3), min_size=real, max_size=real))
    pairs = [(a, b) for b in range(real) for a in range(b)]
    waits = set(draw(st.lists(st.sampled_from(pairs), max_size=12))) if pairs else set()
    for joint in range(real, real + joints if real > 1 else real):
        # From some stage before a place in the order of stages into the joint, and on to some stage behind it.
        middle = draw(st.integers(1, real - 1))
        waits |= {(draw(st.integers(0, middle - 1)), joint), (joint, draw(st.integers(middle, real - 1)))}
        waits |= {(draw(st.integers(0, middle - 1)), joint), (joint, draw(st.integers(middle, real - 1)))}
    joints = joints if real > 1 else 0
    count = real + joints
    release = [draw(st.integers(0, 3))] * count
    if releases and draw(st.booleans()):
        # Collectives that start at different times: a stage belongs to the first or to the second.
        second = draw(st.integers(0, count - 1))
        release = [release[0] + (3 if stage >= second else 0) for stage in range(count)]
    return work_of(draw(times)[:count], draw(times)[:count], server, sorted(waits), release, joints)


def same(work: Work, pieces: int | list[int], turns: bool | list[bool]) -> None:
    fast, plain = first_come(work, pieces, turns=turns), plain_fifo(work, pieces, turns=turns)
    assert fast.start is not None
    assert plain.start is not None
    assert np.array_equal(fast.start, plain.start)
    assert fast.finish == plain.finish == first_come(work, pieces, turns=turns, record=False).finish


@MANY
@given(works(), st.integers(1, 6))
def test_turns_equal_the_plain_twin(work: Work, pieces: int) -> None:
    same(work, pieces, True)


@MANY
@given(works(), st.integers(1, 6))
def test_bursts_equal_the_plain_twin(work: Work, pieces: int) -> None:
    same(work, pieces, False)


@MANY
@given(works(), st.integers(1, 5), st.data())
def test_stages_of_both_kinds_equal_the_plain_twin(work: Work, pieces: int, data: st.DataObject) -> None:
    same(work, pieces, data.draw(st.lists(st.booleans(), min_size=work.count, max_size=work.count)))


@pytest.mark.parametrize("turns", [True, False])
def test_ties_are_served_by_piece_then_by_stage(turns: bool) -> None:
    # Stages 1 and 2 both wait for stage 0 and share a server; stages 3 and 4 wait for nothing and share another.
    work = work_of([2, 2, 2, 1, 1], [2, 2, 2, 1, 1], [0, 1, 1, 2, 2], [(0, 1), (0, 2)], [0] * 5)
    start = first_come(work, 2, turns=turns).start
    assert start is not None
    # Piece 0 is ready for stages 1 and 2 at 2, piece 1 at 4; stage 1 goes first both times.
    assert start[:, 1].tolist() == [2, 6]
    assert start[:, 2].tolist() == [4, 8]
    # Piece 0 of both stages goes before piece 1 of either.
    assert start[:, 3].tolist() == [0, 2]
    assert start[:, 4].tolist() == [1, 3]


@pytest.mark.parametrize("turns", [True, False])
def test_a_tie_goes_to_the_lower_piece_even_at_the_higher_stage(turns: bool) -> None:
    # Stage 2 has its piece 0 at 4, by stage 1; stage 3 its piece 1 at 4, by stage 0. They share a server.
    work = work_of([2, 4, 1, 1], [2, 4, 1, 1], [0, 1, 2, 2], [(1, 3), (0, 2)], [0] * 4)
    start = first_come(work, 2, turns=turns).start
    assert start is not None
    assert start[:, 2].tolist() == [2, 5]
    assert start[:, 3].tolist() == [4, 8]


def test_a_late_collective_does_not_hold_up_an_early_one() -> None:
    # Stage 1 waits for stage 0, which starts at 0; stage 2 at the same server belongs to a collective that starts at 9.
    work = work_of([2, 2, 5], [2, 2, 5], [0, 1, 1], [(0, 1)], [0, 0, 9])
    start = first_come(work, 2).start
    assert start is not None
    assert start.tolist() == [[0, 2, 9], [2, 4, 14]]


@MANY
@given(st.data(), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_servers_that_do_the_same_stand_for_each_other(
    data: st.DataObject, servers: int, rounds: int, pieces: int, turns: bool
) -> None:
    # Stage (round, server) goes on from the round before at the server so many places back, at all servers alike.
    shift = data.draw(st.integers(0, servers - 1))
    hold, more = (data.draw(st.lists(st.integers(0, 3), min_size=rounds, max_size=rounds)) for _ in range(2))
    order = data.draw(st.permutations(range(rounds)))
    number = {(turn, at): order[turn] * servers + at for turn in range(rounds) for at in range(servers)}
    waits = [
        (number[turn - 1, (at - shift) % servers], number[turn, at])
        for turn in range(1, rounds)
        for at in range(servers)
    ]
    holds, lags, resource = ([0] * (rounds * servers) for _ in range(3))
    for (turn, at), stage in number.items():
        holds[stage], lags[stage], resource[stage] = hold[turn], hold[turn] + more[turn] + 1, at
    even = work_of(holds, lags, resource, waits, [0] * len(holds))
    # Half of all stages or fewer must be left, so of two servers or more one is.
    assert alike(even)[0].count == rounds
    odd = data.draw(st.integers(0, len(holds) - 1))
    uneven = work_of([h + (stage == odd) for stage, h in enumerate(holds)], lags, resource, waits, [0] * len(holds))
    for work in (even, uneven):
        some, kind = alike(work)
        found, plain = first_come(some, pieces, turns=turns), plain_fifo(work, pieces, turns=turns)
        assert found.start is not None
        assert plain.start is not None
        assert np.array_equal(found.start[:, kind], plain.start)
        assert found.finish == plain.finish
