"""Bounds for switches that multicast and reduce, against a search over all moves on small machines."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, product

import pytest
from all_branching import best_rate
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import topologies

from blinksim.bounds import bound
from blinksim.bounds.in_network import abilities, best_ways
from blinksim.collective import Collective
from blinksim.topology.graph import Device, Link, Topology

GB = 10**9
NAMES = ("allreduce", "reduce", "broadcast", "allgather", "reducescatter")
KINDS = (
    ("multicast",),
    ("reduce",),
    ("multicast", "reduce"),
    ("reduce_into_reader",),
    ("multicast", "reduce_into_reader"),
)


def able(topology: Topology, kinds: dict[str, tuple[str, ...]]) -> Topology:
    return replace(
        topology,
        devices=tuple(replace(d, can=frozenset({"forward", *kinds.get(d.name, ())})) if not d.holds else d
                      for d in topology.devices),
        symmetries=(),
    )  # fmt: skip


def assert_exact(topology: Topology, collective: Collective) -> None:
    grants = abilities(topology)
    expected = best_rate(topology, collective.name, collective.root, frozenset(grants))
    lengths, ways, attained = best_ways(topology, collective)
    assert attained
    assert float(lengths.rate) == pytest.approx(expected, rel=1e-6)
    # The ways keep within the links, and move what the bound says.
    used = [0.0] * len(topology.links)
    for amount, way in ways:
        for link, times in way.links.items():
            used[link] += amount * float(times)
    assert all(load <= float(x.bandwidth) * (1 + 1e-6) for load, x in zip(used, topology.links, strict=True))
    assert sum(amount for amount, _ in ways) == pytest.approx(expected, rel=1e-6)
    # What is printed: the plain bounds are those of forwarders, and the last one is this.
    result = bound(topology, collective, in_network=True)
    plain = best_rate(topology, collective.name, collective.root, frozenset())
    assert all(float(entry.rate) >= (expected if entry.grants else plain) * (1 - 1e-6) for entry in result.bounds
               if entry.scope != "reduce-scatter + allgather")  # fmt: skip
    if result.in_network is None:
        assert float(result.rate) == pytest.approx(expected, rel=1e-6)
    else:
        assert result.in_network.rate == lengths.rate


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Up to six devices, two to four of them GPUs, with switches of all kinds."""
    drawn = draw(topologies(3, 6, half_duplex=False).filter(lambda t: 2 <= t.ranks <= 4 and t.ranks < len(t.devices)))
    kinds = {d.name: draw(st.sampled_from(KINDS)) for d in drawn.devices if not d.holds}
    return able(drawn, kinds)


@given(machines(), st.sampled_from(NAMES), st.integers(0, 1))
@settings(max_examples=8, deadline=None)
def test_small_machines_have_exact_bounds(topology: Topology, name: str, root: int) -> None:
    assert_exact(topology, Collective(name, root if name in ("reduce", "broadcast") else 0))


@pytest.mark.slow
@given(machines(), st.sampled_from(NAMES), st.integers(0, 1))
@settings(max_examples=400, deadline=None)
def test_many_small_machines_have_exact_bounds(topology: Topology, name: str, root: int) -> None:
    assert_exact(topology, Collective(name, root if name in ("reduce", "broadcast") else 0))


def star(ports: tuple[int, ...], kind: tuple[str, ...]) -> Topology:
    """GPUs on one switch, at these many GB/s each way."""
    links = [Link(a, b, "link", Fraction(rate * GB), latency=1e-6)
             for i, rate in enumerate(ports) for a, b in ((f"gpu{i}", "switch"), ("switch", f"gpu{i}"))]  # fmt: skip
    switch = Device("switch", "switch", can=frozenset({"forward", *kind}))
    return Topology("star", (*(Device(f"gpu{i}", "gpu") for i in range(len(ports))), switch), tuple(links))


@pytest.mark.parametrize("kind", KINDS, ids="+".join)
def test_stars_have_exact_bounds(kind: tuple[str, ...]) -> None:
    for ports in ((1, 1), (2, 1, 1)):
        for name in NAMES:
            assert_exact(star(ports, kind), Collective(name))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids="+".join)
def test_all_stars_have_exact_bounds(kind: tuple[str, ...]) -> None:
    for count in (2, 3, 4, 5):
        for ports in combinations_with_replacement((1, 2, 3), count):
            for name in NAMES:
                assert_exact(star(ports, kind), Collective(name))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", list(product(KINDS, KINDS)), ids=lambda kinds: f"{kinds[0]} {kinds[1]}")
def test_two_switches_have_exact_bounds(kinds: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """Two GPUs on each of two switches, with a trunk; or every GPU on both."""
    gpus = [Device(f"gpu{i}", "gpu") for i in range(4)]
    switches = [Device(f"sw{i}", "switch", can=frozenset({"forward", *kind})) for i, kind in enumerate(kinds)]

    def both(a: str, b: str, rate: int) -> list[Link]:
        return [Link(x, y, "link", Fraction(rate * GB), latency=1e-6) for x, y in ((a, b), (b, a))]

    for trunk in (1, 2, 4):
        links = [link for i in range(4) for link in both(f"gpu{i}", f"sw{i // 2}", 2)] + both("sw0", "sw1", trunk)
        for name in NAMES:
            assert_exact(Topology("trunk", (*gpus, *switches), tuple(links)), Collective(name))
    for wide in (1, 3):
        links = [link for i in range(3) for s in (0, 1) for link in both(f"gpu{i}", f"sw{s}", (1, wide)[s])]
        for name in NAMES:
            assert_exact(Topology("planes", (*gpus[:3], *switches), tuple(links)), Collective(name))
