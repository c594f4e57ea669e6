"""One event graph, one answer: formulas, arrays, events and their plain twin agree to the tick, start by start."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from plain_events import plain_fifo
from small_schedules import exchanges, forests, full
from timed_patterns import RATE, gpus, link, machine, one_ring

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.graphs.arrays import Ints
from blinksim.schedule.loads import resource_loads, resources
from blinksim.schedule.model import Schedule
from blinksim.timing.event_graph import ScheduleGraph, Work, event_graph, in_ticks, timed, transfer_times
from blinksim.timing.events import evaluated, first_come, in_levels, in_order, in_rounds, makespan, step_order
from blinksim.timing.simulation_options import Options, ServiceName
from blinksim.topology.graph import Topology

SMALL = settings(
    max_examples=40, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
PIECES = st.integers(1, 9)


def with_times(topology: Topology, latency: float, overhead: float = 0.0, ratio: int = 1) -> Topology:
    """Other latencies, and links whose bandwidths differ by up to `ratio`."""
    links = [
        replace(
            x,
            latency=latency * (1 + i % 3),
            overhead=overhead * (i % 2),
            lane_bandwidth=x.lane_bandwidth / (1 + i % ratio),
        )
        for i, x in enumerate(topology.links)
    ]
    return topology.with_links(links)


def retimed(schedule: Schedule, latency: float, overhead: float, ratio: int) -> Schedule:
    return replace(schedule, topology=with_times(schedule.topology, latency, overhead, ratio))


def work_of(schedule: Schedule, pieces: int, size: int = 10**6, gamma: float = 0.0) -> tuple[ScheduleGraph, Work]:
    options = Options(gamma=gamma)
    graph = event_graph(schedule, options)
    return graph, timed(graph, size, pieces, options)


def static_order(graph: ScheduleGraph, pieces: int) -> Ints:
    """Items (piece * E + stage) in rounds for a forest, level by level for steps."""
    piece, stage = np.divmod(np.arange(pieces * graph.count), max(graph.count, 1))
    level = graph.level[stage]
    return np.lexsort((stage, piece, level) if graph.schedule.form == "steps" else (stage, piece + level))


TIMES = st.tuples(st.sampled_from([0.0, 1e-6, 3e-5]), st.sampled_from([0.0, 2e-6]), st.integers(1, 3))


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES, st.booleans())
def test_arrays_and_events_agree_on_every_start(
    schedule: Schedule, pieces: int, times: tuple[float, float, int], reduction: bool
) -> None:
    graph, work = work_of(retimed(schedule, *times), pieces, gamma=1e-11 if reduction else 0.0)
    by_waves = (
        in_levels(work, pieces, record=True)[0] if schedule.form == "steps" else in_rounds(work, pieces, record=True)
    )
    by_events = in_order(work, static_order(graph, pieces), pieces)
    assert by_waves.finish == by_events.finish
    assert by_waves.start is not None
    assert by_events.start is not None
    assert np.array_equal(by_waves.start, by_events.start)


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES)
def test_levels_served_in_order_of_arrival_are_first_come_first_served(
    schedule: Schedule, pieces: int, times: tuple[float, float, int]
) -> None:
    _, work = work_of(retimed(schedule, *times), pieces)
    by_waves, in_order = in_levels(work, pieces, record=True)
    assume(in_order)
    by_events = first_come(work, pieces)
    assert by_waves.start is not None
    assert by_events.start is not None
    real = ~work.graph.timeless
    assert np.array_equal(by_waves.start[:, real], by_events.start[:, real])


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES, st.booleans(), st.booleans())
def test_schedules_run_as_in_the_plain_twin(
    schedule: Schedule, pieces: int, times: tuple[float, float, int], turns: bool, reduction: bool
) -> None:
    graph, work = work_of(retimed(schedule, *times), pieces, gamma=1e-11 if reduction else 0.0)
    plain = plain_fifo(work, pieces, turns=turns)
    assert plain.start is not None
    fast = first_come(work, pieces, turns=turns)
    assert fast.start is not None
    assert np.array_equal(plain.start, fast.start)
    options = Options(offer="turns" if turns else "burst")
    assert evaluated(graph, work, pieces, options).finish == plain.finish


@SMALL
@given(exchanges(), PIECES, TIMES)
def test_every_server_goes_in_the_order_of_steps(
    schedule: Schedule, pieces: int, times: tuple[float, float, int]
) -> None:
    graph, work = work_of(retimed(schedule, *times), pieces)
    step = np.append(schedule.step, -1)[graph.send]
    start = in_order(work, step_order(graph, step, pieces), pieces).start
    assert start is not None
    for a, b in zip(graph.before.tolist(), graph.after.tolist(), strict=True):
        assert (start[:, b] >= start[:, a] + work.lag[a]).all()
    real = np.flatnonzero(~graph.timeless)
    for server in np.unique(graph.resource[real]).tolist():
        mine = real[graph.resource[real] == server]
        items = sorted((step[stage], piece, stage) for stage in mine for piece in range(pieces))
        begun = [start[piece, stage] for _, piece, stage in items]
        ends = [when + work.hold[stage] for when, (_, _, stage) in zip(begun, items, strict=True)]
        assert all(after >= before for before, after in zip(ends[:-1], begun[1:], strict=True))


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES, st.booleans())
def test_formulas_agree_with_events(
    schedule: Schedule, pieces: int, times: tuple[float, float, int], turns: bool
) -> None:
    _, work = work_of(retimed(schedule, *times), pieces)
    known = makespan(work, pieces, turns=turns)
    assume(known is not None)
    assert known == first_come(work, pieces, turns=turns).finish


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES, st.sampled_from(["fifo", "static"]))
def test_nothing_beats_the_loads_or_the_longest_path(
    schedule: Schedule, pieces: int, times: tuple[float, float, int], service: ServiceName
) -> None:
    schedule = retimed(schedule, *times)
    graph, work = work_of(schedule, pieces)
    shared = resources(schedule.topology)
    loads = resource_loads(schedule, shared)
    needed = max((10**6 * load / rate for rate, load in zip(shared.rate, loads, strict=True)), default=Fraction(0))
    options: list[dict[str, Any]] = [{}] if service != "fifo" else [{"offer": "turns"}, {"offer": "burst"}]
    for extra in options:
        found = evaluated(graph, work, pieces, Options(service, **extra))
        assert found.finish >= work.critical
        assert found.finish / work.ticks_per_second >= needed


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES, st.booleans())
def test_servers_pass_one_piece_at_a_time_and_everything_once(
    schedule: Schedule, pieces: int, times: tuple[float, float, int], turns: bool
) -> None:
    graph, work = work_of(retimed(schedule, *times), pieces)
    start = first_come(work, pieces, turns=turns).start
    assert start is not None
    assert (start[:, ~graph.timeless] >= 0).all()
    for server in np.unique(graph.resource[~graph.timeless]).tolist():
        mine = np.flatnonzero(graph.resource == server)
        begun = start[:, mine].ravel()
        order = np.argsort(begun, kind="stable")
        hold = np.tile(work.hold[mine], pieces)[order]
        assert (begun[order][1:] >= begun[order][:-1] + hold[:-1]).all()
    for a, b in zip(graph.before.tolist(), graph.after.tolist(), strict=True):
        if not graph.timeless[a] and not graph.timeless[b]:
            assert (start[:, b] >= start[:, a] + work.lag[a]).all()


def packed(latency: float, collective: str = "allgather", overhead: float = 0.0) -> Schedule:
    topology = with_times(bs.load("dgx1-v100").select(), latency, overhead)
    return algorithm("packed").build(topology, Collective(collective))


@pytest.mark.parametrize("latency", [0.0, 1.9e-6, 4e-5])
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_the_tail_of_rounds_is_exact(latency: float, collective: str) -> None:
    graph, work = work_of(packed(latency, collective, 1e-6), 300, 10**8)
    short = evaluated(graph, work, 300, Options("static"))
    assert short.finish == evaluated(graph, work, 300, Options("static"), record=True).finish
    assert short.pieces < 150 or latency > 1e-5


def test_rounds_are_settled_only_where_they_grow_by_the_busiest_server() -> None:
    # Where a latency is longer than a round, servers wait for each other in every round, and the growth stays larger.
    for latency, settled in ((1.9e-6, True), (4e-5, False)):
        _, work = work_of(packed(latency, "allreduce", 1e-6), 300, 10**8)
        found = {n: in_rounds(work, n, watch=True) for n in (20, 299, 300)}
        assert found[20].settled == found[300].settled == settled
        assert (found[300].finish - found[299].finish == work.busiest) == settled


@SMALL
@given(forests(), TIMES)
def test_the_tail_of_random_forests_is_exact(schedule: Schedule, times: tuple[float, float, int]) -> None:
    graph, work = work_of(retimed(schedule, *times), 60)
    short = evaluated(graph, work, 60, Options("static"))
    assert short.finish == evaluated(graph, work, 60, Options("static"), record=True).finish


def test_steps_of_a_ring_are_first_come_first_served_in_arrays() -> None:
    ring = algorithm("ring").build(one_ring(6, 3), Collective("allreduce"))
    graph, work = work_of(ring, 5)
    run, in_order_of_arrival = in_levels(work, 5)
    assert in_order_of_arrival
    assert run.finish == first_come(work, 5).finish
    assert evaluated(graph, work, 5, Options(offer="burst")).engine == "closed-form"
    # Where starts are to be recorded, no formula answers.
    assert evaluated(graph, work, 5, Options(offer="burst"), record=True).engine == "waves"


def test_odd_shares_that_no_unit_divides_are_rounded_up() -> None:
    links = [link("gpu0", "gpu1", rate=RATE * Fraction(2**89 - 1, 2**88))]
    schedule = algorithm("chain").build(machine("odd", gpus(2), links), Collective("broadcast"), order=[0, 1])
    timeline = bs.simulate(schedule, 1_000_003, pieces=7)
    assert timeline.time_s == pytest.approx(1_000_003 / float(links[0].bandwidth), rel=1e-12)


@pytest.mark.parametrize("pieces", [1, 2, 50])
def test_links_that_wait_for_what_is_next_in_order_fit_in_ticks(pieces: int) -> None:
    # All 56 messages of one step on routes of up to four links: each waits for the whole route of the one before.
    direct = algorithm("direct").build(bs.load("ring:8@50GB/s").select(), Collective("allgather"))
    graph = event_graph(direct, Options("ordered"))
    coarse = in_ticks(graph, transfer_times(graph, 4096, pieces, Options("ordered")), Fraction(10**12), Fraction(0))
    run = in_order(coarse, step_order(graph, np.append(direct.step, -1)[graph.send], pieces), pieces)
    timeline = bs.simulate(direct, 4096, service="ordered", pieces=pieces)
    assert timeline.time_s == pytest.approx(coarse.seconds(run.finish), rel=1e-6)
    assert timeline.found.finish < 2**60


def test_a_schedule_for_a_small_size_is_found_where_orders_of_steps_are_slow() -> None:
    assert bs.synthesize("ring:8@50GB/s", "allgather", "direct", size="4KiB").at is not None


def test_options_that_do_not_go_together_are_refused() -> None:
    schedule = algorithm("double_binary").build(full(5), Collective("allreduce"))
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"service": "lifo"}, "unknown service"),
        ({"offer": "none"}, "unknown offer"),
        ({"switching": "circuit"}, "unknown kind of switching"),
        ({"messages": "many"}, "unknown kind of messages"),
        ({"protocol": "ll64"}, "unknown protocol"),
        ({"chunk": 10, "pieces": 10}, "one of them"),
        ({"chunk": 0}, "whole, positive number"),
        ({"pieces": 0}, "give 1 to"),
        ({"gamma": -1.0}, "gamma"),
        ({"launch": 7200.0}, "launch"),
        ({"chunk": 0.5}, "0.5 is not a whole, positive number of bytes"),
    )
    for options, text in refused:
        with pytest.raises(InputError, match=text):
            bs.simulate(schedule, 10**6, **options)
    with pytest.raises(InputError, match="0 is not a whole, positive number of bytes"):
        bs.simulate(schedule, 0)


@pytest.mark.parametrize("size", ["1MB", 10**6, 1e6, np.int64(10**6), np.float64(1e6), Fraction(10**6)])
def test_sizes_are_whole_bytes_or_text(size: int | str) -> None:
    schedule = algorithm("double_binary").build(full(5), Collective("allreduce"))
    found = bs.simulate(schedule, size, chunk="100kB")
    assert type(found.size) is int
    assert found.time_s == bs.simulate(schedule, 1_000_000, chunk=100_000).time_s


@pytest.mark.parametrize("size", ["1MiBs", "half", 1.5, float("nan"), float("inf"), None, True, [10**6], -3, "0"])
def test_other_sizes_are_refused_in_one_line(size: object) -> None:
    schedule = algorithm("double_binary").build(full(5), Collective("allreduce"))
    with pytest.raises(InputError) as refused:
        bs.simulate(schedule, size)  # type: ignore[arg-type]
    assert len(str(refused.value).splitlines()) == 1
