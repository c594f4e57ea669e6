"""Calls, their launches and their plans."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import ON_TREES
from blinksim.errors import InputError
from blinksim.formats.schedule_json import write_schedule
from blinksim.gpu.jobs.job_plan import JobPlan, Planner, Rule, signature_of
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.of_calls import Call, Segment, compile_schedule, without_unread
from blinksim.gpu.programs.program import SCRATCH
from blinksim.topology.shapes import one_switch

FLOAT = ELEMENT_TYPES["float32"]


@given(
    collective=st.sampled_from(ON_TREES),
    part=st.integers(1, 10**6),
    ranks=st.integers(1, 9),
    kind=st.sampled_from(["int8", "float16", "float64"]),
    most=st.integers(64, 10**6),
)
def test_stretches_cover_a_call_once(collective: str, part: int, ranks: int, kind: str, most: int) -> None:
    parts = ranks if collective in ("allgather", "reducescatter") else 1
    call = Call(collective, part * parts, ELEMENT_TYPES[kind])
    at = 0
    for first, length in call.stretches(ranks, most):
        assert first == at
        assert length >= 1
        # Whole lines may be more than was asked for when that is less than a line for every part.
        assert length * parts * call.kind.itemsize <= max(most, 128 * parts)
        at += length
    assert at == part


def test_other_calls_have_other_signatures() -> None:
    calls = [Call(name, 60, kind, op, root) for name in ON_TREES for kind in (FLOAT, ELEMENT_TYPES["int32"])
             for op in ("sum", "max") for root in (0, 1)]  # fmt: skip
    told_apart = {str(call): signature_of(call, 0, 60) for call in calls}
    assert len(set(told_apart.values())) == len(told_apart)
    assert signature_of(calls[0], 0, 30) != signature_of(calls[0], 30, 30)


@pytest.mark.parametrize("count", [47_680 * 20, 999_999])
def test_a_long_message_takes_one_launch_of_many_rounds(count: int) -> None:
    """And one for what is left over; packets, whose messages are short, take a launch for every stretch."""
    plan, segment = JobPlan.for_switch(4), Segment.of(1 << 20)
    for protocol in ("simple", "ll128"):
        rules = [Rule("allreduce", None, "ring", protocol)]
        launches = Planner(plan.with_rules(rules, "one rule"), 0, segment, 8).launches(Call("allreduce", count, FLOAT))
        assert (len(launches) == 1 + (count % 47_680 > 0)) == (protocol == "simple")
        moved = [launch.rounds * launch.step // 4 for launch in launches]
        assert sum(moved) == count
        assert [launch.written[1] // 4 for launch in launches] == moved
        begins = [sum(moved[:number]) for number in range(len(launches))]
        assert [launch.at // 4 for launch in launches] == begins
        assert len({launch.signature for launch in launches}) == len(launches)


def test_stores_that_nobody_reads_are_left_out() -> None:
    """A ring passes sums on that it need not keep; recursive doubling goes on with them."""
    plan, call = JobPlan.for_switch(4), Call("allreduce", 4096, FLOAT)
    for name, kept in (("ring", False), ("recursive_doubling", True)):
        schedule = REGISTRY[name].build(plan.topology, call.what)
        program = compile_schedule(schedule, call.count, FLOAT, in_place=True, packets=False, staged=True)
        less = without_unread(program)
        assert program.sizes[:, SCRATCH].any()
        assert (less.destinations[:, 1] == SCRATCH).any() == less.sizes[:, SCRATCH].any() == kept
        assert (np.diff(less.destination_start)[np.diff(program.destination_start) > 0] > 0).all()
        others = program.destinations[:, 1] != SCRATCH
        assert np.array_equal(less.destinations[less.destinations[:, 1] != SCRATCH], program.destinations[others])


def test_unequal_parts_are_refused() -> None:
    with pytest.raises(InputError, match="4 ranks need equal parts, and 10 is no multiple of 4"):
        Call("allgather", 10, FLOAT).parts(4)


@pytest.mark.parametrize("collective", ON_TREES)
@pytest.mark.parametrize("packets", [True, False])
def test_turns_fit_the_memory_and_need_nobody_elses_addresses(collective: str, packets: bool) -> None:
    segment = Segment.of(4 << 20)
    for count in (4, 4096, 1 << 22):
        for launch in Planner(JobPlan.for_switch(4), 0, segment, 16, packets).launches(Call(collective, count, FLOAT)):
            assert segment.holds(launch.program)
            assert launch.program.staged
            assert packets or not launch.program.packets


def test_a_plan_is_read_from_a_file(tmp_path: Path) -> None:
    machine = bs.load("dgx1-v100").select("0-3")
    write_schedule(bs.synthesize(machine, "allreduce", "packed").schedule, tmp_path / "trees.json")
    rules = [
        {"collective": "allreduce", "up_to": "64KiB", "algorithm": "direct", "protocol": "ll128"},
        {"collective": "allreduce", "schedule": "trees.json"},
    ]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(rules))
    plan = JobPlan.read(one_switch(4).select(), path)
    small, large = (plan.choose(Call("allreduce", count, FLOAT)) for count in (1000, 10**6))
    assert (small.schedule.algorithm, small.protocol) == ("direct", "ll128")
    assert (large.schedule.algorithm, large.protocol) == ("packed", "simple")
    assert plan.choose(Call("broadcast", 1000, FLOAT, root=2)).schedule.collective.root == 2
    assert plan.fingerprint != JobPlan.for_switch(4).fingerprint
    with pytest.raises(InputError, match="is for 4 ranks, not 3"):
        JobPlan.read(one_switch(3).select(), path)
    path.write_text(json.dumps([{"collective": "reducescatter", "schedule": "trees.json"}]))
    with pytest.raises(InputError, match=r"\[0\]: its schedule is for allreduce, not reducescatter"):
        JobPlan.read(one_switch(4).select(), path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "plan:1:2: is not JSON"),
        ("3", "must be a list"),
        ('[{"collective": "allreduce", "algorithm": "ring", "upto": 3}]', r"\[0\]: .*upto.*up_to"),
        ('[{"collective": "allreduce"}]', "either an algorithm or a schedule"),
        ('[{"collective": "allreduce", "algorithm": "rong"}]', "rong.*ring"),
        ('[{"collective": "alltoall", "algorithm": "ring"}]', "alltoall"),
        ('[{"collective": "reduce", "algorithm": "ring", "protocol": "ll"}]', "ll.*ll128"),
        ('[{"collective": "reduce", "algorithm": "ring", "lane_blocks": 1}]', r"\[0\]: lane_blocks .* a schedule"),
        ('[{"collective": "reduce", "algorithm": "ring", "lane_blocks": "all"}]', r"lane_blocks"),
    ],
)
def test_a_bad_plan_is_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        JobPlan.of(one_switch(2).select(), text, "plan")
