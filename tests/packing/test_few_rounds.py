"""Schedules of a few rounds for one size: trees by brute force, times by an own recurrence, known values, promises."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from strategies import topologies

import blinksim as bs
from blinksim.algorithms.few_rounds import along_bits, build
from blinksim.algorithms.registry import REGISTRY
from blinksim.bounds.time.delays import SECOND
from blinksim.bounds.time.time_bound import least_time
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.packing.cubes import labels
from blinksim.packing.rounds import Search
from blinksim.packing.wires import FAR, Growth, Wires, sequences
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology
from blinksim.units import size_of

# Machine, members, collective, size, and microseconds of a schedule that was found in another way.
KNOWN = [
    ("dgx1-v100", None, "allgather", "64MiB", 397.168),
    ("dgx1-v100", "0,1,2,3", "allreduce", "64MiB", 902.385),
    ("dgx1-v100", None, "broadcast", "1MiB", 19.086),
    ("dgx1-v100", None, "allreduce", "1MiB", 21.288),
    # By hand: pairs add up, then those at the ends of a two-link route send to each other past the quad's exchange.
    ("dgx1-v100", "0,1,2,3,4,7", "allreduce", "4KiB", 4.13),
]


def quickest(schedule: Schedule, size: int) -> float:
    """Seconds, whichever way links serve."""
    return min(bs.simulate(schedule, size).time_s, bs.simulate(schedule, size, service="ordered").time_s)


@pytest.mark.slow
@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_known_times(case: tuple[str, str | None, str, str, float]) -> None:
    machine, members, collective, size, due = case
    part = bs.Question(machine, members=members).part()
    schedule = build(part, Collective(collective), size=size_of(size), time_limit=60)
    assert verify(schedule).ok
    assert quickest(schedule, size_of(size)) * 1e6 <= due * 1.0005


def in_order(schedule: Schedule, size: int) -> float:
    """Seconds if every link sends its messages in the order of steps, each when all its data is there.

    For routes of one link, one message for each link and step.
    """
    links = schedule.topology.links
    share = schedule.share_num / schedule.share_den
    messages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for send in range(schedule.sends):
        number = int(schedule.route_links[schedule.route_start[schedule.route[send]]])
        messages[int(schedule.step[send]), number].append(send)
    free: dict[int, float] = defaultdict(float)
    there: dict[tuple[int, int], float] = defaultdict(float)
    for step in sorted({step for step, _ in messages}):
        came = dict(there)
        for (now, number), sends in messages.items():
            if now != step:
                continue
            link = links[number]
            ready = max(came.get((int(schedule.chunk[send]), int(schedule.src[send])), 0.0) for send in sends)
            size_here = sum(share[schedule.chunk[send]] for send in sends) * size
            free[number] = max(ready, free[number]) + link.overhead + size_here / float(link.bandwidth)
            for send in sends:
                place = int(schedule.chunk[send]), int(schedule.dst[send])
                there[place] = max(there[place], free[number] + link.latency)
    return max(there.values())


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    topology = draw(topologies(max_devices=5, relays=False))
    delays = st.integers(0, 30).map(lambda tenths: tenths * 1e-7)
    links = [replace(link, latency=draw(delays), overhead=draw(delays), bus=None) for link in topology.links]
    return replace(topology, devices=tuple(replace(d, capacity=None) for d in topology.devices)).with_links(links)


@settings(max_examples=8)
@given(st.data())
def test_promises_and_times(data: st.DataObject) -> None:
    part = data.draw(machines()).selected()
    assume(all(device.kind == "gpu" for device in part.devices) and part.ranks > 1)
    name, size = data.draw(st.sampled_from(COLLECTIVES)), 2 ** data.draw(st.integers(12, 24))
    collective = Collective(name, part.ranks - 1 if Collective(name).rooted else 0)
    schedule = build(part, collective, size=size, time_limit=0.5)
    assert verify(schedule).ok
    assert quickest(schedule, size) >= least_time(part, collective, size).time / SECOND * (1 - 1e-9)
    if bool((np.diff(schedule.route_start) == 1).all()):
        found = bs.simulate(schedule, size, service="ordered", pieces=1).time_s
        assert found == pytest.approx(in_order(schedule, size), rel=1e-6, abs=1e-12)


def cheapest(pair: np.ndarray, have: frozenset[int], now: int) -> float:
    """The least cost of reaching all ranks, by trying every source of every rank in every round."""
    n = pair.shape[1]
    if len(have) == n:
        return 0.0
    if now == len(pair):
        return FAR
    best = FAR
    others = [rank for rank in range(n) if rank not in have]
    for sources in product([None, *have], repeat=len(others)):
        new = [(source, rank) for source, rank in zip(sources, others, strict=True) if source is not None]
        cost = sum(float(pair[now, source, rank]) for source, rank in new)
        if cost < best:
            best = min(best, cost + cheapest(pair, have | {rank for _, rank in new}, now + 1))
    return best


@settings(max_examples=15)
@given(st.integers(3, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_cheapest_trees(n: int, rounds: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    pair = random.integers(1, 50, (rounds, n, n)).astype(float)
    pair[random.random((rounds, n, n)) < 0.3] = FAR
    growth = Growth(pair, np.arange(n * n).reshape(1, n, n).repeat(rounds, axis=0))
    for root in range(n):
        due = cheapest(pair, frozenset({root}), 0)
        assert growth.left[0, 1 << root] == pytest.approx(min(due, FAR))
        if due < FAR:
            sends = growth.sends(1 << root, 0)
            assert sum(pair[now, wire // n, wire % n] for now, wire in sends) == pytest.approx(due)
            assert len(sends) == n - 1


def test_exchanges_of_a_dgx1() -> None:
    """Inside both quads, then between them, and the other way round; and three rounds of pairs."""
    found = sequences(Wires.of(bs.load("dgx1-v100").selected(), 2**20))
    assert {len(sequence) for sequence in found} == {2, 3}
    quads = ((0, 1, 2, 3), (4, 5, 6, 7))
    pairs = ((0, 4), (1, 5), (2, 6), (3, 7))
    assert (quads, pairs) in found
    assert (pairs, quads) in found


@pytest.mark.parametrize(
    ("nodes", "members", "collective", "size", "due"),
    [
        (1, None, "allreduce", "4MiB", 25.811),
        (1, None, "allgather", "1MiB", 7.739),
        (1, None, "broadcast", "4MiB", 23.962),
        (2, None, "allgather", "4MiB", 18.765),
        (1, "0,1,2,3", "alltoall", "4MiB", 11.491),
    ],
)
def test_known_times_behind_switches(nodes: int, members: str | None, collective: str, size: str, due: float) -> None:
    part = bs.Question("hgx-h200", nodes=nodes, members=members).part()
    schedule = build(part, Collective(collective), size=size_of(size), time_limit=2)
    assert verify(schedule).ok
    assert quickest(schedule, size_of(size)) * 1e6 <= due + 0.001


@settings(max_examples=6)
@given(st.integers(12, 26), st.sampled_from(["allgather", "reducescatter", "allreduce"]), st.integers(1, 30))
def test_ranks_that_all_send_alike(power: int, name: str, tenths: int) -> None:
    """The program's time is that of the simulation, and every rank gets what it should, whatever the delays."""
    part = bs.load("switch:8").selected()
    links = [replace(link, overhead=tenths * 1e-7, latency=4e-7) for link in part.links]
    found = along_bits(part.with_links(links), Collective(name), "few_rounds", 2**power, Search(lambda: False, print))
    assert found is not None
    seconds, schedule = found
    assert verify(schedule).ok
    assert bs.simulate(schedule, 2**power, service="ordered", pieces=1).time_s == pytest.approx(seconds, rel=1e-3)


def test_a_torus_of_four_is_a_cube() -> None:
    ring = [{(rank + 1) % 4, (rank - 1) % 4} for rank in range(4)]
    torus = [{4 * (r // 4) + x for x in ring[r % 4]} | {4 * y + r % 4 for y in ring[r // 4]} for r in range(16)]
    numbers = labels(torus)
    assert sorted(numbers) == [*range(16)]
    assert all((numbers[a] ^ numbers[b]).bit_count() == 1 for a in range(16) for b in torus[a])
    assert labels([{1, 2}, {0, 2}, {0, 1}]) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_two_nodes_keep_their_promises(collective: str) -> None:
    for machine in ("rails:2x4", "rails:2x3", "switch:6"):
        part = bs.load(machine).selected()
        for size in (2**12, 2**22):
            assert verify(build(part, Collective(collective), size=size, time_limit=0.2)).ok


def test_nodes_of_one_gpu_have_nothing_to_pass_on_inside() -> None:
    part = bs.load("dgx-spark", nodes=4).select()
    schedule = build(part, Collective("allgather"), size=2**20, time_limit=1)
    assert verify(schedule).ok
    # Every rank takes in three quarters of the data through its own port, after at least one latency.
    (rate,) = {link.bandwidth for link in part.links if link.src == "fabric"}
    assert quickest(schedule, 2**20) >= 3 / 4 * 2**20 / float(rate)


def test_what_it_refuses() -> None:
    rounds = REGISTRY["few_rounds"]
    with pytest.raises(InfeasibleError, match="at most 8"):
        rounds.build(bs.load("torus:3x4").selected(), Collective("allgather"))
    with pytest.raises(InputError, match="at least 1 byte"):
        build(bs.load("ring:4").selected(), Collective("allgather"), size=0)
    with pytest.raises(InfeasibleError, match="for one size"):
        bs.compare("dgx1-v100", "allgather", ["1KiB", "1MiB"], ["few_rounds"])


@pytest.mark.slow
def test_synth_takes_it_where_it_is_quickest() -> None:
    part = bs.Question("dgx1-v100", members="0,1,2,3").part()
    made = bs.synthesize(part, "allgather", size="1MiB")
    assert made.schedule.algorithm == "few_rounds"
    assert made.verdict.ok
    assert made.at is not None
    assert made.at.quickest
    assert made.at.least_s == bs.time_bound(part, "allgather", "1MiB").time_s


@pytest.mark.parametrize(("size", "due"), [("4KiB", 3.809), ("64KiB", 3.946), ("256KiB", 4.383), ("4MiB", 11.491)])
def test_an_alltoall_behind_a_switch_passes_small_blocks_on(size: str, due: float) -> None:
    """Two steps of two blocks each (Bruck et al., IEEE TPDS 1997), 2 (o + L) + D / B, then one for every other rank."""
    part = bs.Question("hgx-h200", members="0,1,2,3").part()
    schedule = build(part, Collective("alltoall"), size=size_of(size))
    assert verify(schedule).ok
    assert quickest(schedule, size_of(size)) * 1e6 == pytest.approx(due, abs=2e-3)


AGREE = [
    ("dgx1-v100", "0,1,2,3,4,7", "allreduce", "4MiB"),
    ("dgx1-v100", "0,1,4,6,7", "allreduce", "64KiB"),
    ("dgx1-v100", "0,1,2,3,4,7", "reducescatter", "16KiB"),
    ("dgx1-v100", None, "broadcast", "256KiB"),
    ("hgx-h200", None, "scatter", "64KiB"),
    ("hgx-h200", None, "broadcast", "4MiB"),
    ("hgx-h200", None, "allreduce", "1MiB"),
    ("ring:8@50GB/s", None, "allreduce", "256KiB"),
    # Of 16 ranks, a minute.
    pytest.param("torus:4x4@50GB/s", None, "allreduce", "1MiB", marks=pytest.mark.alike),
]


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "members", "collective", "size"), AGREE)
def test_a_simulation_takes_as_long_as_the_programs_say(machine: str, members: str, collective: str, size: str) -> None:
    """Within 2 %, also without overheads, where a simulation cuts messages into many pieces.

    A search that ran out of time may leave messages that are quicker in another order than the program's.
    """
    part, said = bs.Question(machine, members=members).part(), list[float]()
    schedule = build(part, Collective(collective), size=size_of(size), time_limit=10, report=said.append)
    took = [bs.simulate(schedule, size, service=service).time_s for service in ("fifo", "ordered")]
    # A simulation that is not told the order of service takes the better one, as `synth` does.
    assert bs.simulate(schedule, size).time_s == min(took)
    assert min(took) <= 1.02 * min(said)
    assert any(time_s == pytest.approx(min(said), rel=0.02) for time_s in took)


@pytest.mark.parametrize(
    ("collective", "pieces"), [("broadcast", 3), ("allgather", 2), ("reduce", 4), ("allreduce", 2)]
)
def test_messages_in_pieces_take_as_long_as_the_programs_say(collective: str, pieces: int) -> None:
    part, said, size = bs.Question("dgx1-v100", members="0,1,2,3").part(), list[float](), 2**22
    schedule = build(part, Collective(collective), size=size, time_limit=0.5, report=said.append, pieces=pieces)
    assert verify(schedule).ok
    found = bs.simulate(schedule, size, service="ordered", pieces=pieces).time_s
    assert found == pytest.approx(min(said), rel=1e-3)


@pytest.mark.parametrize(
    ("machine", "collective", "size", "loads"),
    [
        pytest.param("ring:8@50GB/s", "allgather", 2**20, 3.5 / 8, marks=pytest.mark.slow),
        ("ring:4@50GB/s", "allreduce", 2**20, 0.75),
    ],
)
def test_without_overheads_messages_flow(machine: str, collective: str, size: int, loads: float) -> None:
    """By hand: every link is busy with its load without a gap, and what comes last is a latency on its way.

    In an allgather half of seven blocks goes either way around; an allreduce brings each rank twice three quarters.
    """
    part, said = bs.load(machine).selected(), list[float]()
    schedule = build(part, Collective(collective), size=size, time_limit=5, report=said.append)
    due = 1e-6 + loads * size / 50e9
    assert min(said) == pytest.approx(due, rel=1e-6)
    assert quickest(schedule, size) == pytest.approx(due, rel=1e-3)
