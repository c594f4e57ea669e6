"""Groups of real processes, without GPUs: every collective against its definition, and what happens when one fails."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import DEAD, SEGMENT, run_ranks, small_group

import blinksim as bs
from blinksim.collective import ON_TREES
from blinksim.gpu.jobs.backend import SharedMemoryBackend
from blinksim.gpu.jobs.group import FolderStore, Group, GroupError
from blinksim.gpu.jobs.job_plan import JobPlan, Rule
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, REDUCTIONS, fold
from blinksim.gpu.programs.of_calls import Call, Segment

RANKS = 3


def data(call: Call, rank: int, count: int) -> Any:
    """What a rank puts in: small whole numbers, so that sums are exact in any order."""
    values = np.random.default_rng((rank, count)).integers(0, 3, count)
    if call.kind.name == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(call.kind.storage)


def expected(call: Call, rank: int, ranks: int) -> Any:
    """The definition of the collective: what a rank's target must hold afterwards."""
    part = call.count // call.parts(ranks)
    everyone = [data(call, other, part if call.collective == "allgather" else call.count) for other in range(ranks)]
    if call.collective == "allgather":
        return np.concatenate(everyone)
    if call.collective == "broadcast":
        return everyone[call.root]
    if call.collective == "reduce" and rank != call.root:
        return everyone[rank]
    total = fold(everyone, call.op, call.kind)
    return total[rank * part : (rank + 1) * part] if call.collective == "reducescatter" else total


def run_call(group: Group, call: Call, *, aliased: bool = False) -> Any:
    """The target of a call on the data above. aliased: allgather and reducescatter work in their larger buffer."""
    ranks, rank = group.ranks, group.rank
    part = call.count // call.parts(ranks)
    source = data(call, rank, part if call.collective == "allgather" else call.count)
    target = source
    own = slice(rank * part, (rank + 1) * part)
    if call.collective == "allgather":
        target = np.zeros(call.count, dtype=source.dtype)
        if aliased:
            target[own] = source
            source = target[own]
    elif call.collective == "reducescatter":
        target = source[own] if aliased else np.zeros(part, dtype=source.dtype)
    group.run(call, source, target)
    group.finish()
    return target


def check_calls(rank: int, given: tuple[Path, int, list[Call]]) -> list[str]:
    folder, ranks, calls = given
    group = small_group(rank, ranks, folder)
    wrong = []
    for call in calls:
        aliased = call.collective in ("allgather", "reducescatter") and call.count % 2 == 0
        if not np.array_equal(run_call(group, call, aliased=aliased), expected(call, rank, ranks)):
            wrong.append(str(call))
    group.close()
    return wrong


def some_calls(ranks: int, counts: tuple[int, ...], kinds: tuple[str, ...], ops: tuple[str, ...]) -> list[Call]:
    calls = []
    for collective in ON_TREES:
        for count in counts:
            whole = count * ranks if collective in ("allgather", "reducescatter") else count
            for kind in kinds:
                for op in ops if Call(collective, whole, ELEMENT_TYPES["int8"]).what.reduces else ops[:1]:
                    for root in (0, ranks - 1) if collective in ("broadcast", "reduce") else (0,):
                        calls.append(Call(collective, whole, ELEMENT_TYPES[kind], op, root))
    return calls


def test_every_collective_does_what_it_promises(tmp_path: Path) -> None:
    calls = some_calls(RANKS, (1, 2001), ("float32", "bfloat16"), ("sum",))
    # Several launches: the group's memory is smaller than the message.
    calls += some_calls(RANKS, (100_001,), ("int32",), ("sum",))
    assert run_ranks(check_calls, RANKS, (tmp_path, RANKS, calls)) == [[]] * RANKS


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_every_type_and_reduction(tmp_path: Path, ranks: int) -> None:
    calls = some_calls(ranks, (1, 31, 5000), tuple(ELEMENT_TYPES), tuple(REDUCTIONS))
    assert run_ranks(check_calls, ranks, (tmp_path, ranks, calls)) == [[]] * ranks


def test_long_messages_take_turns(tmp_path: Path) -> None:
    def work(rank: int, folder: Path) -> int:
        group = small_group(rank, 2, folder)
        launches = len(group.prepare(Call("allreduce", 10**6, ELEMENT_TYPES["float32"])))
        group.close()
        return launches

    assert run_ranks(work, 2, tmp_path)[0] > 3


def failing(rank: int, given: tuple[Path, str]) -> tuple[str, float, bool, str]:
    """Two calls, of which the second goes wrong; (message, seconds, spoilt, what a group made anew says)."""
    folder, fault = given
    group = small_group(rank, RANKS, folder / "first", timeout_s=0.3 if fault in ("is late", "dies") else 1.5)
    kind = ELEMENT_TYPES["float32"]
    call = Call("allreduce", 100, kind)
    values = np.ones(100, dtype=np.float32)
    group.run(call, values, values)
    if rank == 1:
        if fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "is late":
            time.sleep(0.6)
        other = {
            "another size": Call("allreduce", 99, kind),
            "another type": Call("allreduce", 100, ELEMENT_TYPES["int32"]),
            "another order": Call("reduce", 100, kind),
        }
        call = other.get(fault, call)
    begin, values = time.monotonic(), np.ones(100, dtype=np.float32)
    message = ""
    try:
        # A root of a reduction has no need to wait for others to end; at the latest, the next call fails.
        for _ in range(2):
            group.run(call, values, values)
        group.finish()
    except GroupError as error:
        message = str(error)
    took = time.monotonic() - begin
    group.close()
    again = ""
    if fault != "dies":
        group = small_group(rank, RANKS, folder / "second")
        fresh = np.full(10, rank, dtype=np.float32)
        group.run(Call("allreduce", 10, kind), fresh, fresh)
        again = f"{fresh[0]:g}"
        group.close()
    return message, took, bool(np.isnan(values).any() or (values.view(np.int32) == -1).any()), again


@pytest.mark.parametrize("fault", ["another size", "another type", "another order"])
def test_calls_that_differ_are_an_error_that_names_both_ranks(tmp_path: Path, fault: str) -> None:
    answers = run_ranks(failing, RANKS, (tmp_path, fault))
    for message, took, spoilt, again in answers:
        assert message
        assert took < 2
        assert spoilt or fault == "another order"  # a rank that is not the root of a reduction gets nothing
        assert again == "3"
    assert any(spoilt for _, _, spoilt, _ in answers)
    named = [message for message, _, _, _ in answers if "must call the same" in message]
    assert named
    assert all("rank 1" in message and ("rank 0" in message or "rank 2" in message) for message in named), named
    assert all("allreduce of 100 float32" in message for message in named)


@pytest.mark.parametrize("fault", ["is late", pytest.param("dies", marks=pytest.mark.slow)])
def test_a_missing_rank_is_an_error_everywhere_in_time(tmp_path: Path, fault: str) -> None:
    answers = run_ranks(failing, RANKS, (tmp_path, fault))
    for rank in (0, 2):
        message, took, spoilt, _ = answers[rank]
        assert "gave up after 0.3 s in call 2" in message or "has failed" in message
        assert took < 1.5
        assert spoilt
    assert any("rank 1 had not begun it" in answers[rank][0] for rank in (0, 2))
    if fault == "dies":
        assert answers[1] == DEAD
    else:
        # It comes too late, finds the group failed, and says so.
        assert "has failed" in answers[1][0]


class FleetingStore(FolderStore):
    """A store that is gone once the group has been made, as that of torch is when its host has died."""

    gone = False

    def set(self, key: str, value: str, /) -> None:
        self._still_there()
        super().set(key, value)

    def check(self, keys: list[str], /) -> bool:
        self._still_there()
        return super().check(keys)

    def _still_there(self) -> None:
        if self.gone:
            raise RuntimeError("the store does not answer")


def test_a_group_fails_in_time_without_its_store(tmp_path: Path) -> None:
    def work(rank: int, folder: Path) -> tuple[str, str]:
        store = FleetingStore(folder)
        group = Group(store, rank, JobPlan.for_switch(2), SharedMemoryBackend(), SEGMENT, timeout_s=0.3)
        store.gone = True
        values, message = np.ones(100, dtype=np.float32), ""
        group.run(Call("allreduce", 100, ELEMENT_TYPES["float32"]), values, values)
        first = f"{values.sum():g}"
        try:
            for _ in range(2):
                group.run(Call("allreduce", 90 + rank, ELEMENT_TYPES["float32"]), values, values)
        except GroupError as error:
            message = str(error)
        group.close()
        return first, message

    for first, message in run_ranks(work, 2, tmp_path):
        assert first == "200"
        assert "another call" in message


@pytest.mark.slow
def test_a_group_runs_what_is_predicted_to_be_quickest(tmp_path: Path) -> None:
    plan = JobPlan.predicted(bs.load("dgx1-v100").select("0-3"))
    assert plan.choose(Call("broadcast", 1 << 22, ELEMENT_TYPES["float32"])).schedule.algorithm == "packed"

    def work(rank: int, folder: Path) -> list[bool]:
        group, right = small_group(rank, 4, folder, plan=plan), []
        for collective in ON_TREES:
            for count in (400, 200_000):
                call = Call(collective, count, ELEMENT_TYPES["int32"], root=0)
                right.append(bool(np.array_equal(run_call(group, call), expected(call, rank, 4))))
        group.close()
        return right

    assert run_ranks(work, 4, tmp_path) == [[True] * 2 * len(ON_TREES)] * 4


@pytest.mark.parametrize(
    ("algorithm", "collective"),
    [("packed", "allreduce"), pytest.param("rings", "reducescatter", marks=pytest.mark.slow)],
)
def test_a_group_runs_on_the_lanes_of_another_machine(tmp_path: Path, algorithm: str, collective: str) -> None:
    """In place and in several launches; every lane is a block, and what it stores goes over that lane."""
    machine = bs.load("dgx1-v100").select("0,1,4,5")
    schedule = bs.synthesize(machine, collective, algorithm).schedule
    plan = JobPlan.for_switch(4).with_rules([Rule(collective, None, schedule, "simple", 1)], "lanes")
    calls = [Call(collective, count, ELEMENT_TYPES["int32"]) for count in (4, 30_000)]
    lanes = {(0, 1): 1, (0, 2): 2, (1, 3): 2, (2, 3): 1}

    def work(rank: int, folder: Path) -> tuple[list[bool], dict[tuple[int, int], int]]:
        group = small_group(rank, 4, folder, plan=plan)
        right = [bool(np.array_equal(run_call(group, call), expected(call, rank, 4))) for call in calls]
        program = group.prepare(calls[-1])[0].program
        wires: dict[tuple[int, int], int] = {}
        for queue in range(program.queues):
            ends = {
                (int(program.queue_device[queue]), row[0])
                for op in range(int(program.queue_start[queue]), int(program.queue_start[queue + 1]))
                for row in program.rows("destinations", op)
            }
            for a, b in ends:
                if a != b:
                    assert len(ends) == 1
                    wires[a, b] = wires.get((a, b), 0) + 1
        group.close()
        return right, wires

    for right, wires in run_ranks(work, 4, tmp_path):
        assert right == [True] * 2
        assert wires
        assert all(number == lanes[min(ends), max(ends)] for ends, number in wires.items())


def test_other_programs_are_other_calls(tmp_path: Path) -> None:
    """Two ranks whose algorithms differ although their plans look alike, as a solver could make them."""

    def work(rank: int, folder: Path) -> str:
        group = small_group(rank, 2, folder, timeout_s=0.3)
        other = Rule("allreduce", None, "two_shot" if rank else "direct", "simple")
        group.choose_by(JobPlan.for_switch(2).with_rules([other], "the same name"))
        values, message = np.ones(1000, dtype=np.float32), ""
        try:
            for _ in range(2):
                group.run(Call("allreduce", 1000, ELEMENT_TYPES["float32"]), values, values)
        except GroupError as error:
            message = str(error)
        group.close()
        return message

    assert all(run_ranks(work, 2, tmp_path))


def test_groups_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    def work(rank: int, folder: Path) -> str:
        plan = JobPlan.for_switch(2)
        if rank == 1:
            plan = JobPlan.of(plan.topology, '[{"collective": "allreduce", "algorithm": "ring"}]', "mine.json")
        try:
            small_group(rank, 2, folder, plan=plan)
        except GroupError as error:
            return str(error)
        return ""

    first, second = run_ranks(work, 2, tmp_path)
    assert "rank 0 and rank 1 cannot be one group: plan is built-in rules" in first
    assert "rank 1 and rank 0" in second


def test_nothing_is_left_in_shared_memory(tmp_path: Path) -> None:
    backend = SharedMemoryBackend(tmp_path)
    backend.connect(0, [backend.allocate(Segment.of(1 << 20))])
    assert list(tmp_path.iterdir())
    backend.settle()
    assert not list(tmp_path.iterdir())
