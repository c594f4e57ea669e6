"""Shares as whole numbers of parts: exact where they fit, else rounded to nearly the same."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given, settings, strategies as st
from small_schedules import full, steps

import blinksim as bs
from blinksim.algorithms.few_rounds import build
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.exports import FORMATS
from blinksim.formats.moves import MOST_UNITS, units
from blinksim.formats.runtimes import msccl_xml, mscclpp_json
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import COPY, Schedule
from blinksim.schedule.verify import verify
from blinksim.units import size_of

PRIME = 65_521
Shares = list[tuple[Fraction, int, int]]


def gathering(parts: list[list[int]]) -> Schedule:
    """An allgather in which rank i's block is cut in the ratio of parts[i] and a rest, sent straight to everybody."""
    n = len(parts)
    cut = [[*own, PRIME - sum(own)] for own in parts]
    shares: Shares = [(Fraction(part, n * PRIME), rank, -1) for rank, own in enumerate(cut) for part in own]
    sends = [(chunk, f"gpu{share[1]}", f"gpu{other}", COPY) for chunk, share in enumerate(shares)
             for other in range(n) if other != share[1]]  # fmt: skip
    return steps(full(n), "allgather", shares, [sends])


@settings(max_examples=15)
@given(st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=6), min_size=2, max_size=4))
def test_what_ranks_own_stays_whole(parts: list[list[int]]) -> None:
    schedule = gathering(parts)
    found = units(schedule)
    assert found.count <= MOST_UNITS
    owned: dict[int, int] = defaultdict(int)
    for chunk, (length, origin) in enumerate(zip(found.lengths, schedule.origin.tolist(), strict=True)):
        owned[origin] += length
        error = abs(length - schedule.share(chunk) * found.count)
        assert error < 1
        assert error == 0 or found.slower is not None
    assert set(owned.values()) == {Fraction(found.count, len(parts))}
    if found.slower is not None:
        # A part is what a chunk's share can be off by, and no link carries more than a rank's chunks.
        assert found.slower <= max(5e-3, (1 + max(map(len, parts))) * len(parts) / found.count)


@pytest.mark.parametrize("name", ["ring", "two_shot"])
def test_simple_shares_are_not_rounded(name: str) -> None:
    schedule = algorithm(name).build(bs.load("dgx1-v100").selected(), Collective("allreduce"))
    found = units(schedule)
    assert found.slower is None
    assert [Fraction(length, found.count) for length in found.lengths] == [
        schedule.share(chunk) for chunk in range(schedule.chunks)
    ]


def check_exports(machine: str, members: str | None, collective: str, size: str, slower: float = inf) -> None:
    part = bs.Question(machine, members=members).part()
    schedule = build(part, Collective(collective), size=size_of(size), time_limit=20)
    for name, reader in (("mscclpp-json", plan_again), ("msccl-xml", msccl_xml.read_schedule)):
        exported = FORMATS[name].export(schedule)
        assert any("shares are rounded to" in note for note in exported.notes)
        again = reader(exported.files[""], name, part).schedule
        assert verify(again).ok
        if reader is plan_again:
            # A plan says which chunks go together; it is read as trees if those are quicker for large messages, and
            # what waits for nothing as sent early, together with what its connection sends then.
            again = replace(again, form="steps")
            first, second = (bs.simulate(one, size, service="ordered").time_s for one in (schedule, again))
            assert second <= first * slower


def plan_again(text: str, path: str, part: bs.Topology) -> Candidate:
    return mscclpp_json.read_schedule(json.loads(text), path, part)


def test_few_rounds_of_four_in_both_formats() -> None:
    check_exports("dgx1-v100", "0,1,2,3", "allgather", "16MiB")


@pytest.mark.slow
def test_an_allreduce_of_few_rounds_in_both_formats() -> None:
    check_exports("dgx1-v100", None, "allreduce", "1MiB", 1.03)
