"""Three engines, one answer: formulas, arrays and events agree to the tick, start by start."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from small_schedules import exchanges, forests, full
from timed_patterns import RATE, gpus, link, machine, one_ring

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.schedule.loads import resource_loads, resources
from blinksim.schedule.model import Schedule
from blinksim.simulation.engines import events, formulas, given_order, rounds, steps
from blinksim.simulation.engines.choice import outcome, static_order
from blinksim.simulation.simulation_options import Sending, Service, ServiceName
from blinksim.simulation.stages import Stages, stages
from blinksim.simulation.work import Work, timed
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


def work_of(schedule: Schedule, pieces: int, size: int = 10**6, gamma: float = 0.0) -> tuple[Stages, Work]:
    graph = stages(schedule, reduction=gamma > 0)
    return graph, timed(graph, size, pieces, Sending(gamma=gamma))


TIMES = st.tuples(st.sampled_from([0.0, 1e-6, 3e-5]), st.sampled_from([0.0, 2e-6]), st.integers(1, 3))


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES, st.booleans())
def test_arrays_and_events_agree_on_every_start(
    schedule: Schedule, pieces: int, times: tuple[float, float, int], reduction: bool
) -> None:
    graph, work = work_of(retimed(schedule, *times), pieces, gamma=1e-11 if reduction else 0.0)
    by_waves = (steps.in_steps(work, pieces, record=True)[0] if schedule.form == "steps"
                else rounds.in_rounds(work, pieces, record=True)[0])  # fmt: skip
    by_events = given_order.in_order(work, static_order(graph, work, pieces), pieces)
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
    by_waves, in_order = steps.in_steps(work, pieces, record=True)
    assume(in_order)
    by_events = events.fifo(work, pieces)
    assert by_waves.start is not None
    assert by_events.start is not None
    real = ~work.timeless
    assert np.array_equal(by_waves.start[:, real], by_events.start[:, real])


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES, st.booleans())
def test_formulas_agree_with_events(
    schedule: Schedule, pieces: int, times: tuple[float, float, int], turns: bool
) -> None:
    _, work = work_of(retimed(schedule, *times), pieces)
    known = formulas.makespan(work, pieces, turns=turns)
    assume(known is not None)
    assert known == events.fifo(work, pieces, turns=turns).finish


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES, st.sampled_from(["fifo", "static", "weighted", "equal"]))
def test_nothing_beats_the_loads_or_the_longest_path(
    schedule: Schedule, pieces: int, times: tuple[float, float, int], service: ServiceName
) -> None:
    schedule = retimed(schedule, *times)
    graph, work = work_of(schedule, pieces)
    shared = resources(schedule.topology)
    loads = resource_loads(schedule, shared)
    needed = max((10**6 * load / rate for rate, load in zip(shared.rate, loads, strict=True)), default=Fraction(0))
    options: list[dict[str, Any]] = (
        [{}] if service != "fifo" else [{"offer": "turns"}, {"offer": "burst"}, {"slots": 1}, {"slots": 2}]
    )
    for extra in options:
        found = outcome(graph, work, pieces, Service(service, **extra))
        assert found.finish >= work.critical
        assert found.finish / work.ticks_per_second >= needed


@SMALL
@given(st.one_of(forests(), exchanges()), PIECES, TIMES, st.sampled_from(["turns", "burst", "slots"]))
def test_servers_pass_one_piece_at_a_time_and_everything_once(
    schedule: Schedule, pieces: int, times: tuple[float, float, int], offer: str
) -> None:
    graph, work = work_of(retimed(schedule, *times), pieces)
    extra = {"slots": 2} if offer == "slots" else {"offer": offer}
    found = outcome(graph, work, pieces, Service(engine="heap", **extra), record=True)
    assert found.run is not None
    start = found.run.start
    assert start is not None
    assert (start[:, ~work.timeless] >= 0).all()
    for server in np.unique(work.resource[~work.timeless]).tolist():
        mine = np.flatnonzero(work.resource == server)
        begun = start[:, mine].ravel()
        order = np.argsort(begun, kind="stable")
        hold = np.tile(work.hold[mine], pieces)[order]
        assert (begun[order][1:] >= begun[order][:-1] + hold[:-1]).all()
    for a, b in zip(work.before.tolist(), work.after.tolist(), strict=True):
        if not work.timeless[a] and not work.timeless[b]:
            assert (start[:, b] >= start[:, a] + work.lag[a]).all()


def packed(latency: float, collective: str = "allgather", overhead: float = 0.0) -> Schedule:
    topology = with_times(bs.load("dgx1-v100").select(), latency, overhead)
    return algorithm("packed").build(topology, Collective(collective))


@pytest.mark.parametrize("latency", [0.0, 1.9e-6, 4e-5])
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_the_tail_of_rounds_is_exact(latency: float, collective: str) -> None:
    graph, work = work_of(packed(latency, collective, 1e-6), 300, 10**8)
    short = outcome(graph, work, 300, Service("static"))
    assert short.finish == outcome(graph, work, 300, Service("static"), tail=False).finish
    assert short.pieces < 150 or latency > 1e-5


def test_rounds_are_settled_only_where_they_grow_by_the_busiest_server() -> None:
    # Where a latency is longer than a round, servers wait for each other in every round, and the growth stays larger.
    for latency, settled in ((1.9e-6, True), (4e-5, False)):
        _, work = work_of(packed(latency, "allreduce", 1e-6), 300, 10**8)
        found = {n: rounds.in_rounds(work, n, watch=True)[0] for n in (20, 299, 300)}
        assert found[20].settled == found[300].settled == settled
        assert (found[300].finish - found[299].finish == work.busiest) == settled


@SMALL
@given(forests(), TIMES)
def test_the_tail_of_random_forests_is_exact(schedule: Schedule, times: tuple[float, float, int]) -> None:
    graph, work = work_of(retimed(schedule, *times), 60)
    short = outcome(graph, work, 60, Service("static"))
    assert short.finish == outcome(graph, work, 60, Service("static"), tail=False).finish


def test_many_sizes_in_one_batch_are_what_each_is_alone() -> None:
    graph = stages(packed(1.9e-6))
    works = [timed(graph, size, 12, Sending()) for size in (10**5, 10**6, 33333333)]
    batch = [run.finish for run in rounds.in_rounds(works, 12)]
    assert batch == [rounds.in_rounds(work, 12)[0].finish for work in works]


def test_steps_of_a_ring_are_first_come_first_served_in_arrays() -> None:
    ring = algorithm("ring").build(one_ring(6, 3), Collective("allreduce"))
    graph, work = work_of(ring, 5)
    assert (
        outcome(graph, work, 5, Service(engine="waves")).finish
        == outcome(graph, work, 5, Service(engine="heap")).finish
    )
    assert outcome(graph, work, 5, Service()).engine == "closed-form"


def test_odd_shares_that_no_unit_divides_are_rounded_up() -> None:
    links = [link("gpu0", "gpu1", rate=RATE * Fraction(2**89 - 1, 2**88))]
    schedule = algorithm("chain").build(machine("odd", gpus(2), links), Collective("broadcast"), order=[0, 1])
    timeline = bs.simulate(schedule, 1_000_003, pieces=7)
    assert timeline.time_s == pytest.approx(1_000_003 / float(links[0].bandwidth), rel=1e-12)


def test_options_that_do_not_go_together_are_refused() -> None:
    schedule = algorithm("double_binary").build(full(5), Collective("allreduce"))
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"service": "lifo"}, "unknown service"),
        ({"engine": "magic"}, "unknown engine"),
        ({"offer": "none"}, "unknown offer"),
        ({"switching": "circuit"}, "unknown kind of switching"),
        ({"messages": "many"}, "unknown kind of messages"),
        ({"protocol": "ll64"}, "unknown protocol"),
        ({"slots": 0}, "at least 1"),
        ({"slots": 2, "service": "static"}, "service fifo"),
        ({"service": "weighted", "engine": "waves"}, "events only"),
        ({"service": "static", "engine": "closed-form"}, "waves or heap"),
        ({"chunk": 10, "pieces": 10}, "one of them"),
        ({"chunk": 0}, "at least 1"),
        ({"pieces": 0}, "give 1 to"),
        ({"gamma": -1.0}, "gamma"),
        ({"launch": 7200.0}, "launch"),
        ({"offers": "turns"}, "unknown argument of simulate 'offers': did you mean 'offer'"),
        ({"chunk": 0.5}, "0.5 is not a chunk"),
    )
    for options, text in refused:
        with pytest.raises(InputError, match=text):
            bs.simulate(schedule, 10**6, **options)
    with pytest.raises(InputError, match="at least 1 byte"):
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
