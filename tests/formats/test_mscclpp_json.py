"""MSCCL++ plans: carried out symbolically as the executor does, and caught whenever one operation is wrong."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st
from on_one_node import CASES
from small_schedules import full, ring_allreduce, steps, whole

from blinksim import machines
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats.moves import moves
from blinksim.formats.programs import Effort, outcome
from blinksim.formats.runtimes.mscclpp_json import Memory, Plan, check, export, read, to_text
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.textio.strict_json import parse

QUAD = machines.load("dgx1-v100").select([f"gpu{i}" for i in range(4)])
TORUS = machines.load("torus:2x3").select()
PAIR = to_text(moves(ring_allreduce(2)), "ring")
RING = to_text(moves(ring_allreduce(3)), "ring")


def run(plan: Plan, seed: int, root: int = 0) -> str:
    return outcome(Memory(plan, Effort(), root=root), seed)


@pytest.mark.parametrize(("name", "collective"), CASES)
def test_every_algorithm_ends_as_promised(name: str, collective: str) -> None:
    wanted = Collective(collective, 2) if Collective(collective).rooted else Collective(collective)
    schedule = algorithm(name).build(TORUS if name == "bucket" else QUAD, wanted)
    plan = read(json.loads(export(schedule).files[""]), "plan.json")
    for seed in range(6):
        assert run(plan, root=wanted.root, seed=seed) == ""


def test_the_ring_of_eight_just_fits() -> None:
    eight = machines.load("dgx1-v100").select()
    exported = export(algorithm("rings").build(eight, Collective("allreduce")))
    assert "57 operations" in exported.summary


def one_by_one(count: int) -> Schedule:
    """A broadcast of so many chunks, in as many steps."""
    return steps(full(2), "broadcast", whole(count), [[(chunk, "gpu0", "gpu1", COPY)] for chunk in range(count)])


def test_what_one_block_cannot_do_others_go_on_with() -> None:
    exported = export(one_by_one(40))
    assert "3 thread blocks on the busiest GPU, up to 62 operations each" in exported.summary
    plan = read(json.loads(exported.files[""]), "plan.json")
    assert [run(plan, seed=seed) for seed in range(6)] == [""] * 6
    with pytest.raises(InfeasibleError, match=r"MSCCL\+\+ takes 64 in each of 80"):
        export(one_by_one(2000))


def test_what_a_connection_sends_in_a_step_is_signalled_once() -> None:
    together = [[(chunk, "gpu0", "gpu1", COPY) for chunk in range(3)]]
    for form, ops in (
        ("steps", "wait nop put put put nop signal"),
        ("forest", "wait nop" + 3 * " put nop signal"),
    ):
        [sender, _] = json.loads(export(steps(full(2), "broadcast", whole(3), together, form=form)).files[""])["gpus"]
        assert " ".join(op["name"] for op in sender["threadblocks"][0]["ops"]) == ops


def test_the_plan_has_what_the_reader_requires() -> None:
    plan = json.loads(PAIR)
    assert {"name", "collective", "protocol", "inplace", "gpus"} <= plan.keys()
    for rank, gpu in enumerate(plan["gpus"]):
        assert gpu["id"] == rank
        assert {"input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels"} <= gpu.keys()
        assert [block["id"] for block in gpu["threadblocks"]] == list(range(len(gpu["threadblocks"])))
        # One channel for each direction, so that data and readiness do not mix.
        assert gpu["channels"] == [{"channel_type": "memory", "connected_to": [1 - rank, 1 - rank]}]


def test_what_lands_where_nothing_was_needs_no_scratch() -> None:
    chain = algorithm("chain").build(QUAD, Collective("broadcast"))
    assert all(gpu["scratch_chunks"] == 0 for gpu in json.loads(export(chain).files[""])["gpus"])


def test_branches_share_a_barrier_and_strangers_do_not() -> None:
    sends = [
        [(0, "gpu1", "gpu0", REDUCE), (0, "gpu2", "gpu0", REDUCE)],
        [(0, "gpu0", "gpu1", COPY), (0, "gpu0", "gpu2", COPY)],
    ]
    plan = json.loads(to_text(moves(steps(full(3), "allreduce", whole(), sends)), "x"))
    barriers = [op for block in plan["gpus"][0]["threadblocks"] for op in block["ops"] if op["name"] == "barrier"]
    assert {op["num_threadblocks"] for op in barriers} == {4}
    apart = json.loads(to_text(moves(algorithm("rings").build(QUAD, Collective("allreduce"))), "x"))
    used = {op["barrier_id"] for block in apart["gpus"][0]["threadblocks"] for op in block["ops"]
            if op["name"] == "barrier"}  # fmt: skip
    assert len(used) == 4


# --- what is caught -----------------------------------------------------------------------------------------------


def places(text: str, *names: str) -> list[tuple[int, int, int]]:
    plan = json.loads(text)
    return [
        (g, b, o)
        for g, gpu in enumerate(plan["gpus"])
        for b, block in enumerate(gpu["threadblocks"])
        for o, op in enumerate(block["ops"])
        if not names or op["name"] in names
    ]


def changed(text: str, place: tuple[int, int, int], op: dict[str, Any] | None) -> str:
    plan = json.loads(text)
    ops = plan["gpus"][place[0]]["threadblocks"][place[1]]["ops"]
    ops[place[2] : place[2] + 1] = [] if op is None else [copy.deepcopy(op)]
    return json.dumps(plan)


def caught(text: str) -> bool:
    try:
        plan = read(json.loads(text), "x.json")
    except FileError:
        return True
    return any(run(plan, seed=seed) for seed in range(25))


@pytest.mark.parametrize("place", places(PAIR))
def test_every_single_operation_is_needed(place: tuple[int, int, int]) -> None:
    ops = json.loads(PAIR)["gpus"][place[0]]["threadblocks"][place[1]]["ops"]
    # A nop with nothing after it orders nothing.
    last = ops[place[2]]["name"] == "nop" and place[2] == len(ops) - 1
    assert caught(changed(PAIR, place, None)) != last


ORDERING = ("barrier", "wait", "signal", "put", "re")


@pytest.mark.parametrize("name", ORDERING)
def test_operations_of_a_larger_ring_are_needed(name: str) -> None:
    of_the_first = [place for place in places(RING, name) if place[0] == 0]
    assert of_the_first
    assert [place for place in of_the_first if not caught(changed(RING, place, None))] == []


def test_a_sum_that_is_a_copy_is_caught() -> None:
    sums = places(PAIR, "re")
    assert sums
    for place in sums:
        plan = json.loads(PAIR)
        op = plan["gpus"][place[0]]["threadblocks"][place[1]]["ops"][place[2]]
        assert caught(
            changed(PAIR, place, {"name": "copy", "src_buff": op["src_buff"][1:], "dst_buff": op["dst_buff"]})
        )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (("collective",), "all_reduce", "collective: must be one of"),
        (("protocol",), "LL", "protocol"),
        (("gpus", 0, "id"), 1, r"gpus\[0\].id: must lie between 0 and 0"),
        (("gpus", 0, "input_chunks"), 0, "input_chunks"),
        (("gpus", 0, "channels", 0, "channel_type"), "port", "only memory channels"),
        (("gpus", 0, "channels", 0, "connected_to"), [1], "no other end"),
        (("gpus", 0, "threadblocks", 0, "ops", 0, "name"), "pws", "must be one of nop"),
        (("gpus", 0, "threadblocks", 0, "ops", 0, "channel_ids"), [3], "must lie between"),
        (("gpus", 0, "scratch_chunks"), 0, "must lie between"),
        (("gpus", 0, "threadblocks", 0, "remote_buffer_refs", 0, "remote_buffer_ids"), [9], "must lie between"),
    ],
)
def test_what_the_executor_refuses(key: tuple[Any, ...], value: Any, message: str) -> None:
    plan = json.loads(PAIR)
    inside = plan
    for part in key[:-1]:
        inside = inside[part]
    inside[key[-1]] = value
    with pytest.raises(FileError, match=message):
        check(plan, "x.json")


@given(st.integers(0, len(PAIR)), st.integers(0, 30), st.text(alphabet='{}[]",:0129 \n', max_size=6))
def test_damaged_plans_are_plans_or_file_errors(start: int, length: int, text: str) -> None:
    with suppress(FileError):
        damaged = PAIR[:start] + text + PAIR[start + length :]
        check(parse("x.json", damaged.encode(), "plan"), "x.json")


def test_channels_are_not_a_choice() -> None:
    with pytest.raises(InputError, match="leave channels= out"):
        export(ring_allreduce(2), 4)


def test_several_nodes_are_refused() -> None:
    topology = machines.load("hgx-h200", nodes=2).select()
    with pytest.raises(InfeasibleError, match="stay in a node"):
        export(algorithm("chain").build(topology, Collective("allreduce")))
