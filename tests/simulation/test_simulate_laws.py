"""Closed forms that a simulator of chunks on FIFO links must equal, to the tick; no tolerance anywhere."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from timed_patterns import (
    BYTES,
    FAST,
    RATE,
    TICK,
    direct,
    egress_ports,
    gpus,
    link,
    machine,
    one_ring,
    one_switch,
    private_pairs,
    ticks,
)

from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Device, Topology

ENGINES = ("auto", "heap")


def built(name: str, topology: Topology, collective: str, **options: object) -> Schedule:
    module = algorithm(name)
    return module.build(topology, Collective(collective), **options)


def cases(count: int, seed: int = 7) -> list[tuple[int, int, int, int]]:
    """(ranks, pieces, ticks of a piece, alpha in ticks)."""
    draw = random.Random(seed)
    return [(draw.randint(2, 7), draw.randint(1, 9), draw.randint(1, 40), draw.randint(0, 90)) for _ in range(count)]


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter"])
def test_ring(collective: str) -> None:
    for n, pieces, tau, alpha in cases(25):
        schedule = built("ring", one_ring(n, alpha), collective, rings=[list(range(n))])
        steps = (n - 1) * (2 if collective == "allreduce" else 1)
        expected = (steps - 1) * max(tau + alpha, pieces * tau) + pieces * tau + alpha
        for engine in ("closed-form", "waves", "heap"):
            found = ticks(schedule, n * pieces * tau * BYTES, pieces, engine=engine)
            assert found == expected, (engine, n, pieces, tau, alpha)


def test_ring_in_the_postal_model() -> None:
    # A start-up that occupies the sender: overhead instead of latency.
    for n, pieces, tau, alpha in cases(20, seed=11):
        schedule = built("ring", one_ring(n, 0, overhead=alpha), "allreduce", rings=[list(range(n))])
        for engine in ENGINES:
            found = ticks(schedule, n * pieces * tau * BYTES, pieces, engine=engine)
            assert found == 2 * (n - 1) * pieces * (alpha + tau)


def chain_of(rates: list[int], alphas: list[int]) -> Topology:
    names = [f"gpu{i}" for i in range(len(rates) + 1)]
    links = [link(a, b, alpha, RATE / rate)
             for a, b, rate, alpha in zip(names[:-1], names[1:], rates, alphas, strict=True)]  # fmt: skip
    return machine("chain", gpus(len(names)), links)


def test_pipelined_chain_of_unequal_links() -> None:
    draw = random.Random(5)
    for _ in range(40):
        hops, pieces = draw.randint(1, 7), draw.randint(1, 12)
        slowness, alphas = [draw.randint(1, 30) for _ in range(hops)], [draw.randint(0, 50) for _ in range(hops)]
        schedule = built("chain", chain_of(slowness, alphas), "broadcast", order=list(range(hops + 1)))
        expected = sum(slowness) + sum(alphas) + (pieces - 1) * max(slowness)
        for engine in (*ENGINES, "closed-form"):
            assert ticks(schedule, pieces * BYTES, pieces, engine=engine) == expected
        assert ticks(schedule, pieces * BYTES, pieces, service="static") == expected


@pytest.mark.parametrize("q", range(1, 6))
def test_recursive_doubling_and_halving_doubling(q: int) -> None:
    n, alpha, whole = 2**q, 13, 32 * 2**q
    pairs = private_pairs(n, alpha)
    doubling = built("recursive_doubling", pairs, "allreduce")
    halving = built("halving_doubling", pairs, "allreduce")
    for engine in ENGINES:
        assert ticks(doubling, whole * BYTES, 1, engine=engine) == q * (alpha + whole)
        assert ticks(halving, whole * BYTES, 1, engine=engine) == 2 * q * alpha + Fraction(2 * (n - 1) * whole, n)


def test_direct_on_private_links() -> None:
    for n in (2, 3, 8):
        schedule = direct(private_pairs(n, 9), rotated=True)
        assert ticks(schedule, n * 10 * BYTES, 1) == 9 + 10


@pytest.mark.parametrize(("n", "rotated", "careless"), [(8, 83, 143), (64, 643, 1263)])
def test_direct_through_ports_and_why_order_matters(n: int, rotated: int, careless: int) -> None:
    # tau 20, alpha 6 (3 on each side of the switch), so twice the published tau 10 and alpha 3.
    topology, size = one_switch(n, 3), n * 20 * BYTES
    assert ticks(direct(topology, rotated=True), size, 1, switching="store-and-forward") == 2 * rotated
    assert ticks(direct(topology, rotated=False), size, 1, switching="store-and-forward") == 2 * careless
    assert ticks(direct(topology, rotated=True), size, 1) == (n - 1) * 20 + 6


# Below 16 ranks the two trees share links.
@pytest.mark.parametrize("q", range(4, 7))
def test_double_binary_tree_on_private_links(q: int) -> None:
    n, tau, alpha = 2**q, 2, 1
    schedule = built("double_binary", private_pairs(n, alpha), "allreduce")
    for pieces in (1, 2, 9):
        expected = 2 * q * (tau + alpha) + (pieces - 1) * tau
        for engine in ENGINES:
            assert ticks(schedule, 2 * pieces * tau * BYTES, pieces, engine=engine) == expected


@pytest.mark.parametrize(("n", "fill"), [(8, 9), (64, 33)])
def test_double_binary_tree_through_one_port(n: int, fill: int) -> None:
    # tau 2 and alpha 1: half a tick is the unit of the published figures (4.5 and 16.5).
    schedule = built("double_binary", egress_ports(n, 1), "allreduce")
    for pieces in (16, 64):
        assert ticks(schedule, 2 * pieces * 2 * BYTES, pieces, offer="burst") == 4 * pieces * 2 + fill


def test_star() -> None:
    for n, pieces, tau, alpha in cases(15, seed=3):
        topology = egress_ports(n, alpha)
        schedule = built("direct", topology, "broadcast")
        expected = (n - 1) * pieces * tau + alpha
        assert ticks(schedule, pieces * tau * BYTES, pieces) == expected
        assert ticks(schedule, pieces * tau * BYTES, pieces, service="static") == expected


def test_half_duplex_takes_both_directions_in_turn() -> None:
    pair = [link("gpu0", "gpu1", 5, bus="b"), link("gpu1", "gpu0", 5, bus="b")]
    schedule = direct(machine("bus", gpus(2), pair), rotated=True)
    assert ticks(schedule, 2 * 30 * BYTES, 1) == 30 + 30 + 5
    free = [link("gpu0", "gpu1", 5), link("gpu1", "gpu0", 5)]
    assert ticks(direct(machine("wires", gpus(2), free), rotated=True), 2 * 30 * BYTES, 1) == 30 + 5


def test_a_device_passes_no_more_than_its_capacity() -> None:
    # Two links of rate 1 leave gpu0, which gives 1 (or 2, which is enough for both) in all.
    for capacity, expected in ((1, 80 + 7), (2, 40 + 7 + 20)):
        devices = [Device("gpu0", "gpu", capacity=capacity * RATE), *gpus(3)[1:]]
        schedule = built("direct", machine("cap", devices, [link("gpu0", "gpu1", 7), link("gpu0", "gpu2", 7)]),
                         "broadcast")  # fmt: skip
        assert ticks(schedule, 40 * BYTES, 1) == expected


def test_a_slower_link_behind_a_switch_is_reached_by_the_head_of_a_piece() -> None:
    def through(rate: Fraction) -> Schedule:
        links = [link("gpu0", "sw", 3), link("sw", "gpu1", 4, rate)]
        return built("direct", machine("sw", [*gpus(2), Device("sw", "switch")], links), "broadcast")

    size = 60 * BYTES
    assert ticks(through(RATE), size, 1) == 60 + 7
    assert ticks(through(RATE / 2), size, 1) == 3 + 120 + 4
    assert ticks(through(FAST), size, 1) == 60 + 7
    assert ticks(through(RATE), size, 1, switching="store-and-forward") == 60 + 3 + 60 + 4
    assert ticks(through(RATE), size, 60, switching="store-and-forward") == 60 + 3 + 1 + 4


def test_protocols_reductions_and_launch_cost_what_they_say() -> None:
    schedule = built("chain", private_pairs(2, 5), "reduce", order=[0, 1])
    size = 240 * BYTES
    assert ticks(schedule, size, 1) == 240 + 5
    assert ticks(schedule, size, 1, protocol="ll") == 480 + 5
    assert ticks(schedule, size, 1, protocol="ll128") == 256 + 5
    assert ticks(schedule, size, 1, launch=100 * TICK) == 345
    # A reducer at half the link's rate: it starts when a piece has arrived, and passes them one by one.
    gamma = 2 * TICK / BYTES
    assert ticks(schedule, size, 1, gamma=gamma) == 240 + 5 + 480
    assert ticks(schedule, size, 4, gamma=gamma) == 60 + 5 + 480


def test_latency_alone_at_eight_bytes() -> None:
    alpha = 2**14
    deep = built("chain", chain_of([1] * 6, [alpha] * 6), "broadcast", order=list(range(7)))
    assert 6 * alpha <= ticks(deep, 8, 1) <= 6 * alpha + 1
