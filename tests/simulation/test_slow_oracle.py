"""A second simulator, slow and straight from the rules, in fractions of a second: what the engines must equal.

It knows nothing of stages, joints and ticks: every transfer looks for what it waits for among all sends.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from small_schedules import exchanges, forests, helped, recursive_doubling, ring_allreduce, through_the_helper

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.timing.simulation_options import MessagesName, OfferName
from blinksim.timing.simulator import exact_time

# Latencies that are sums of powers of two, so that no engine rounds them.
TICK = 2.0**-30
kinds = st.sampled_from(get_args(MessagesName))


def waits(schedule: Schedule, send: int) -> list[int]:
    """The sends whose data `send` passes on: what earlier steps brought to its place, from the last copy on."""
    step, place = schedule.step, (schedule.chunk[send], schedule.src[send])
    earlier = [
        j for j in range(schedule.sends)
        if (schedule.chunk[j], schedule.dst[j]) == place and step[j] < step[send]
    ]  # fmt: skip
    copies = [step[j] for j in earlier if schedule.op[j] == COPY]
    # Writes with no read between them count as one: what came before a copy and was never read is waited for too.
    since = max(copies, default=-1)
    reads = [s for s in step[(schedule.chunk == place[0]) & (schedule.src == place[1])] if s <= since]
    return [j for j in earlier if step[j] >= max(reads, default=-1)]


def messages(schedule: Schedule, kind: str) -> list[list[int]]:
    """The sends that travel together: of one connection and step, where the schedule runs in steps and joins them."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in range(schedule.sends):
        key = (i,) if schedule.form == "forest" or kind == "single" else tuple(
            int(a[i]) for a in (schedule.step, schedule.src, schedule.dst, schedule.channel))  # fmt: skip
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def turn(schedule: Schedule, send: int) -> tuple[int, ...]:
    """What of a forest is served first of all that is ready at once: by step, then by chunk.

    Where every rank is a root, of sums the one from the device after their root, then from the one after that.
    """
    if schedule.form != "forest":
        return ()
    topology, src, dst = schedule.topology, int(schedule.src[send]), int(schedule.dst[send])
    sums = schedule.op[send] == REDUCE and topology.devices[dst].holds and not schedule.collective.rooted
    return int(schedule.step[send]), (src - dst) % len(topology.devices) * sums, int(schedule.chunk[send])


def slow(schedule: Schedule, size: int, pieces: int, kind: str = "joined", offer: str = "turns") -> Fraction:
    """Seconds, first come first served."""
    links = schedule.topology.links
    route = [links[schedule.links_of(int(r))[0]] for r in schedule.route]
    mates = {i: group for group in messages(schedule, kind) for i in group}
    wanted = {i: sorted({k for m in mates[i] for j in waits(schedule, m) for k in mates[j]}) for i in mates}
    order = {i: n for n, i in enumerate(sorted(mates, key=lambda i: (turn(schedule, i), i)))}
    lead = {i: min(mates[i], key=lambda m: order[m]) == i for i in mates}
    free: dict[str, Fraction] = {}
    arrived: dict[tuple[int, int], Fraction] = {}
    left: dict[tuple[int, int], Fraction] = {}
    todo = {(i, p) for i in mates for p in range(pieces)}
    turns = offer == "turns"

    def ready(i: int, p: int) -> Fraction | None:
        if any((j, p) not in arrived for j in wanted[i]):
            return None
        there = max((arrived[j, p] for j in wanted[i]), default=Fraction(0))
        if not turns or not p:
            return there
        return max(there, left[i, p - 1]) if (i, p - 1) in left else None

    while todo:
        open_ = [(when, p, order[i], i) for i, p in todo for when in [ready(i, p)] if when is not None]
        when, p, _, i = min(open_)
        todo.remove((i, p))
        link = route[i]
        key = link.bus or link.name
        start = max(when, free.get(key, Fraction(0)))
        spent = schedule.share(int(schedule.chunk[i])) * size / pieces / link.bandwidth
        spent += Fraction(link.overhead) if lead[i] else 0
        free[key] = left[i, p] = start + spent
        arrived[i, p] = start + spent + Fraction(link.latency)
    return max(arrived.values(), default=Fraction(0))


def unrounded(schedule: Schedule, latency: int, overhead: int) -> Schedule:
    """The schedule on links whose times are binary fractions, so that ticks hold them exactly."""
    links = [
        replace(
            x,
            latency=latency * (1 + i % 3) * TICK,
            overhead=overhead * (i % 2) * TICK,
            lane_bandwidth=Fraction(2**30, 1 + i % 2),
        )
        for i, x in enumerate(schedule.topology.links)
    ]
    return replace(schedule, topology=schedule.topology.with_links(links))


@settings(max_examples=300, derandomize=True, deadline=None, database=None, suppress_health_check=[*HealthCheck])
@given(
    st.one_of(forests(), exchanges()),
    st.integers(1, 3),
    st.integers(0, 9000),
    st.sampled_from([0, 777]),
    kinds,
    st.sampled_from(get_args(OfferName)),
)
def test_random_schedules(
    schedule: Schedule, pieces: int, latency: int, overhead: int, kind: MessagesName, offer: OfferName
) -> None:
    schedule = unrounded(schedule, latency, overhead)
    found = bs.simulate(schedule, 27720, pieces=pieces, messages=kind, offer=offer, service="fifo")
    assert exact_time(found) == slow(schedule, 27720, pieces, kind, offer)


@pytest.mark.parametrize("name", ["mxnet", "chains", "packed"])
def test_trees_that_share_links(name: str) -> None:
    quad = bs.load("dgx1-v100").select([f"gpu{i}" for i in range(4)])
    schedule = unrounded(algorithm(name).build(quad, Collective("allreduce")), 3000, 200)
    assert exact_time(bs.simulate(schedule, 55440, pieces=6, service="fifo")) == slow(schedule, 55440, 6)


@pytest.mark.parametrize("schedule", [ring_allreduce(4), recursive_doubling(3), through_the_helper(helped())],
                         ids=lambda s: s.algorithm + str(s.topology.ranks))  # fmt: skip
@pytest.mark.parametrize("latency", [0, 5000])
@pytest.mark.parametrize("offer", get_args(OfferName))
def test_known_schedules(schedule: Schedule, latency: int, offer: OfferName) -> None:
    schedule = unrounded(schedule, latency, 100)
    for pieces in (1, 2, 5):
        found = bs.simulate(schedule, 55440, pieces=pieces, offer=offer, service="fifo")
        assert exact_time(found) == slow(schedule, 55440, pieces, offer=offer)
