"""Programs are sound: found by reading their arrays, by breaking them, and by running them in every order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hazards import hazards
from hypothesis import given, settings, strategies as st
from on_one_node import CASES

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import COLLECTIVES, ROOTED, Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.gpu.execution.numpy_executor import interpret
from blinksim.gpu.execution.reference import Reference
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.fit import fit, merge_queues
from blinksim.gpu.programs.of_calls import compile_schedule
from blinksim.gpu.programs.program import ExecutionError, Program, lay_out, slice_bounds
from blinksim.machines import load
from blinksim.schedule.model import COPY, REDUCE, Builder, Schedule
from blinksim.topology.graph import Topology
from blinksim.topology.shapes import fully_connected

INT32 = ELEMENT_TYPES["int32"]


def machine(ranks: int, name: str = "") -> Topology:
    """GPUs of which every two are joined, or a torus for buckets."""
    return (load(f"torus:2x{ranks // 2}") if name == "bucket" else fully_connected(ranks)).select()


@cache
def many(name: str, ranks: int) -> int:
    """The ranks, or the next number of them that the algorithm takes."""
    for more in range(ranks, 2 * ranks + 3):
        with suppress(BlinksimError):
            REGISTRY[name].build(machine(more, name), Collective(REGISTRY[name].collectives[0]))
            return more
    raise AssertionError(f"{name} refuses {ranks} ranks and twice as many")


def wrong(program: Program, schedule: Schedule, op: str = "sum", seed: int | None = None) -> int:
    reference = Reference(schedule.collective, schedule.topology.ranks, program.layout.count, program.kind, op)
    outputs = interpret(program, [reference.inputs(rank) for rank in range(reference.ranks)], op, seed)
    return sum(reference.compare(rank, output)[0] for rank, output in enumerate(outputs))


def route(builder: Builder, src: int, dst: int) -> int:
    topology = builder.topology
    ends = (topology.devices[src].name, topology.devices[dst].name)
    return builder.add_routes([[i for i, x in enumerate(topology.links) if (x.src, x.dst) == ends][:1]])[0]


def by_hand(collective: Collective, ranks: int, sends: list[tuple[int, int, int, int]], relays: int = 0) -> Schedule:
    """A schedule with one chunk; a send is (src, dst, op, step). The last `relays` devices are no members."""
    whole = fully_connected(ranks + relays)
    names = [device.name for device in whole.devices]
    topology = whole.select(names[:ranks], names[ranks:], relays_reduce=True)
    builder = Builder(topology, collective, "by_hand", "steps")
    builder.add_chunk(Fraction(1))
    for src, dst, op, step in sends:
        builder.add_sends(chunk=0, src=src, dst=dst, op=op, step=step, route=route(builder, src, dst))
    return builder.finish()


@pytest.mark.parametrize(
    ("name", "collective", "ranks"),
    [
        pytest.param(*case, ranks, marks=[pytest.mark.slow] if ranks == 8 else [])
        for case in CASES
        for ranks in dict.fromkeys(many(case[0], ranks) for ranks in (2, 3, 4, 8))
    ],
)
def test_every_algorithm_compiles_to_a_sound_program_that_is_right(name: str, collective: str, ranks: int) -> None:
    for root in {0, ranks - 1} if collective in ROOTED else {0}:
        schedule = REGISTRY[name].build(machine(ranks, name), Collective(collective, root))
        for count in (1, 10 * ranks + 3):
            for in_place in (False, True)[: 1 if collective == "alltoall" else 2]:
                for packets, staged in ((False, False), (False, True), (True, False)):
                    how = {"in_place": in_place, "packets": packets, "staged": staged}
                    program = compile_schedule(schedule, count, INT32, **how)
                    assert program.staged == (packets or staged)
                    assert hazards(program) == []
                    assert wrong(program.cut(2, 64), schedule, seed=root) == 0


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    case=st.sampled_from([case for case in CASES if "doubling" not in case[0]]),
    ranks=st.integers(2, 6),
    count=st.integers(1, 400),
    cut=st.tuples(st.integers(1, 4), st.integers(1, 200)),
    queues=st.integers(1, 4),
    sources=st.integers(2, 8),
    in_place=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_results_do_not_depend_on_cutting_merging_or_order(
    case: tuple[str, str],
    ranks: int,
    count: int,
    cut: tuple[int, int],
    queues: int,
    sources: int,
    in_place: bool,
    seed: int,
) -> None:
    name, collective = case
    ranks, root = many(name, ranks), seed % ranks if collective in ROOTED else 0
    schedule = REGISTRY[name].build(machine(ranks, name), Collective(collective, root))
    in_place = in_place and collective != "alltoall"
    program = compile_schedule(schedule, count, INT32, in_place=in_place, most_sources=sources)
    merged = merge_queues(program, queues).cut(*cut)
    assert hazards(merged) == []
    assert max(len(merged.queues_of(device)) for device in range(ranks)) <= queues
    assert wrong(merged, schedule, seed=seed) == 0


@settings(max_examples=40, derandomize=True, deadline=None)
@given(data=st.data())
def test_random_sends_mean_what_the_model_says(data: st.DataObject) -> None:
    """Against a direct simulation: all sends of a step read first, then copies and reductions land in order."""
    ranks = data.draw(st.integers(2, 4))
    devices = ranks + data.draw(st.integers(0, 1))
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    draw = st.tuples(st.sampled_from(pairs), st.sampled_from([COPY, REDUCE]), st.integers(0, 3))
    sends = sorted(data.draw(st.lists(draw, min_size=1, max_size=12)), key=lambda send: send[2])
    collective = Collective(data.draw(st.sampled_from(["allreduce", "broadcast", "reduce"])))
    schedule = by_hand(collective, ranks, [(a, b, op, step) for (a, b), op, step in sends], devices - ranks)
    reference = Reference(collective, ranks, 5, INT32)
    inputs = [reference.inputs(rank) for rank in range(ranks)]
    poison = np.full(5, -1, dtype=np.int32)
    state = {rank: data for rank, data in enumerate(inputs) if len(data)}
    for step in range(4):
        before = dict(state)
        for (a, b), op, at in sends:
            if at == step:
                sent = before.get(a, poison)
                state[b] = state[b] + sent if op == REDUCE and b in state else sent
    for in_place in (False, True):
        program = compile_schedule(schedule, 5, INT32, in_place=in_place, most_sources=data.draw(st.integers(2, 8)))
        assert hazards(program) == []
        got = interpret(program.cut(1, 4), inputs, seed=data.draw(st.integers(0, 99)))
        for rank in range(ranks):
            if len(got[rank]):
                assert got[rank].tolist() == state.get(rank, poison).tolist()


def test_a_step_reads_what_was_there_when_it_began() -> None:
    # Both swap: with sends one after another, rank 1 would pass rank 0's data back.
    schedule = by_hand(Collective("allreduce"), 2, [(0, 1, REDUCE, 0), (1, 0, REDUCE, 0)])
    for in_place in (False, True):
        assert wrong(compile_schedule(schedule, 9, INT32, in_place=in_place), schedule) == 0


def test_a_relay_that_reduces_adds_nothing_of_its_own() -> None:
    sends = [(0, 3, REDUCE, 0), (1, 3, REDUCE, 0), (2, 3, REDUCE, 1), (3, 0, COPY, 2), (3, 1, COPY, 2), (3, 2, COPY, 3)]
    schedule = by_hand(Collective("allreduce"), 3, sends, relays=1)
    for op in ("sum", "prod", "min"):
        assert wrong(compile_schedule(schedule, 100, INT32), schedule, op) == 0


def test_receive_reduce_and_send_on_are_one_op() -> None:
    schedule = REGISTRY["ring"].build(machine(4), Collective("allreduce"))
    program = compile_schedule(schedule, 4000, INT32)
    shapes = {(len(program.rows("sources", op)), len(program.rows("destinations", op))) for op in range(program.ops)}
    # Send on; add and send on; the last sum also stays here, and so does what is passed on; what arrives last waits.
    assert shapes <= {(1, 1), (2, 1), (2, 2), (0, 0)}
    assert (2, 2) in shapes


@pytest.mark.parametrize("damage", ["wait", "signal", "place", "source"])
def test_a_damaged_program_is_found(damage: str) -> None:
    schedule = REGISTRY["ring"].build(machine(3), Collective("allreduce"))
    program = compile_schedule(schedule, 300, INT32)
    if damage == "wait":  # one op no longer waits
        start, waits = program.wait_start.copy(), np.delete(program.waits, 0, axis=0)
        start[start > 0] -= 1
        damaged = replace(program, wait_start=start, waits=waits)
    elif damage == "signal":
        signals = program.signals.copy()
        signals[0, 1] = 99
        damaged = replace(program, signals=signals)
    elif damage == "place":
        targets = program.destinations.copy()
        targets[0, 2] += 1
        damaged = replace(program, destinations=targets)
    else:
        sources = program.sources.copy()
        sources[0] = (2, 0)
        damaged = replace(program, sources=sources)
    assert hazards(damaged)


@pytest.mark.parametrize(("name", "collective"), [case for case in CASES if case[1] in ("allreduce", "reduce")])
def test_packets_add_up_in_the_same_order(name: str, collective: str) -> None:
    """Rounded sums are the same to the bit, whichever way the data come."""
    schedule = REGISTRY[name].build(machine(8, name), Collective(collective))
    kind = ELEMENT_TYPES["bfloat16"]
    reference = Reference(schedule.collective, 8, 1003, kind, "sum")
    inputs = [reference.inputs(rank) for rank in range(8)]
    plain, packets = (interpret(compile_schedule(schedule, 1003, kind, packets=way), inputs) for way in (False, True))
    for a, b in zip(plain, packets, strict=True):
        assert np.array_equal(a, b)


def test_a_program_that_gets_stuck_names_the_op() -> None:
    schedule = REGISTRY["chain"].build(machine(3), Collective("broadcast"))
    program = compile_schedule(schedule, 300, INT32)
    signals = program.signals.copy()
    signals[0, 1] = 99
    with pytest.raises(ExecutionError, match=r"stuck: .* in op \d+ on gpu\d, chunk 0 .*waits for flags 0") as caught:
        wrong(replace(program, signals=signals), schedule)
    assert caught.value.exit_code == 1


def test_missing_data_spreads_poison_and_is_noticed() -> None:
    # Rank 1 forwards before it has anything.
    schedule = by_hand(Collective("broadcast"), 3, [(0, 1, COPY, 1), (1, 2, COPY, 0)])
    assert wrong(compile_schedule(schedule, 7, INT32), schedule) == 7


def test_shares_that_do_not_fill_the_vector_are_refused() -> None:
    topology = machine(2)
    builder = Builder(topology, Collective("allreduce"), "half", "steps")
    builder.add_chunk(Fraction(1, 2))
    with pytest.raises(InputError, match="hold 1/2 of the vector, not 1"):
        compile_schedule(builder.finish(), 10, INT32)
    builder = Builder(topology, Collective("allgather"), "uneven", "steps")
    builder.add_chunk(Fraction(1, 3), origin=0)
    builder.add_chunk(Fraction(2, 3), origin=1)
    with pytest.raises(InputError, match="of rank 0 hold 1/3 of the vector, not 1/2"):
        compile_schedule(builder.finish(), 10, INT32)


def test_alltoall_in_place_is_refused() -> None:
    schedule = REGISTRY["direct"].build(machine(2), Collective("alltoall"))
    with pytest.raises(InputError, match="cannot run in place"):
        compile_schedule(schedule, 10, INT32, in_place=True)


@given(count=st.integers(1, 10_000), parts=st.integers(1, 9))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_slices_tile_the_vector(count: int, parts: int) -> None:
    bounds = slice_bounds(count, parts)
    assert len(bounds) == parts + 1
    assert bounds[0] == 0
    assert bounds[-1] == count
    assert max(np.diff(bounds)) - min(np.diff(bounds)) <= 1


@given(count=st.integers(1, 10_000), ranks=st.integers(2, 9), size=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_chunks_tile_the_vector(count: int, ranks: int, size: int) -> None:
    for name in COLLECTIVES:
        schedule = REGISTRY["direct"].build(machine(ranks), Collective(name))
        layout = lay_out(schedule, count, size)
        for rank in range(ranks):
            for places, (buffer, offset, elements) in (
                (layout.source, layout.input_place[rank]),
                (layout.result, layout.output_place[rank]),
            ):
                mine = sorted((o, layout.length[c]) for (r, c), (b, o) in places.items() if r == rank and b == buffer)
                assert sum(length for _, length in mine) == elements
                ends = offset
                for begin, length in mine:
                    assert begin == ends or length == 0
                    ends += length


def test_large_chunks_begin_on_16_bytes() -> None:
    schedule = REGISTRY["ring"].build(machine(3), Collective("allreduce"))
    layout = lay_out(schedule, 1_000_003, 4)
    assert all(offset % 4 == 0 for _, offset in layout.result.values())
    assert sum(layout.length) == 1_000_003


def test_fit_stays_within_the_blocks() -> None:
    schedule = REGISTRY["direct"].build(machine(8), Collective("alltoall"))
    program = compile_schedule(schedule, 1 << 20, INT32)
    for blocks in (1, 3, 132):
        fitted = fit(program, blocks)
        assert max(len(fitted.queues_of(device)) for device in range(8)) * fitted.slices <= blocks
    assert fit(program, 132).slices > 1
    with pytest.raises(InputError, match="9 slices need 9 thread blocks"):
        fit(program, 8, slices=9)
