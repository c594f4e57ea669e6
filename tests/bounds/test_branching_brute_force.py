"""Bounds for switches that multicast and reduce, against a search over all moves on small machines."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement

import pytest
from all_branching import best_rate
from hypothesis import assume, given, settings, strategies as st
from strategies import topologies

from blinksim.algorithms.building.branching_trees import shared_out
from blinksim.bounds.compute import bound
from blinksim.bounds.optimum import best_trees
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
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


RATES = st.sampled_from((None, None, "1GB/s", "2GB/s"))


def switch(name: str, kind: tuple[str, ...], rate: str | None = None) -> Device:
    """A switch that can do this, with adders of a rate."""
    return Device(
        name, "switch", can=frozenset({"forward", *kind}), attributes={"reduction_rate": rate} if rate else {}
    )


def able(topology: Topology, kinds: dict[str, tuple[tuple[str, ...], str | None]]) -> Topology:
    devices = tuple(d if d.holds else switch(d.name, *kinds.get(d.name, ((), None))) for d in topology.devices)
    return replace(topology, devices=devices, symmetries=())


def assert_exact(topology: Topology, collective: Collective) -> None:
    grants = topology.in_network
    expected = best_rate(topology, collective.name, collective.root, frozenset(grants))
    lengths, sets, attained = best_trees(topology, collective, grants=grants)
    assert attained
    assert float(lengths.rate) == pytest.approx(expected, rel=1e-6)
    # What symmetries make of the trees keeps within the links, and moves what the bound says.
    used, sums = [0.0] * len(topology.links), [0.0] * len(topology.devices)
    total, trees = shared_out(topology, collective, [trees for _, trees in sets])
    for amount, tree in trees:
        for hop in (*tree.away, *tree.towards):
            for link in hop.links:
                used[link] += amount
        for device in tree.sums(topology):
            sums[device] += amount
    assert all(load <= float(x.bandwidth) * (1 + 1e-6) for load, x in zip(used, topology.links, strict=True))
    assert all(
        load <= float(d.reduction_rate or load) * (1 + 1e-6) for load, d in zip(sums, topology.devices, strict=True)
    )
    assert total == pytest.approx(expected, rel=1e-6)
    assert sum(amount for amount, _ in trees) == pytest.approx(expected, rel=1e-6)
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
    kinds = {d.name: (draw(st.sampled_from(KINDS)), draw(RATES)) for d in drawn.devices if not d.holds}
    return able(drawn, kinds)


@given(machines(), st.sampled_from(NAMES), st.integers(0, 1))
@settings(max_examples=8, deadline=None)
def test_small_machines_have_exact_bounds(topology: Topology, name: str, root: int) -> None:
    assert_exact(topology, Collective(name, root if name in ("reduce", "broadcast") else 0))


@pytest.mark.slow
@given(machines(), st.sampled_from(NAMES), st.integers(0, 1))
@settings(max_examples=100, deadline=None)
def test_many_small_machines_have_exact_bounds(topology: Topology, name: str, root: int) -> None:
    assert_exact(topology, Collective(name, root if name in ("reduce", "broadcast") else 0))


def star(ports: tuple[int, ...], kind: tuple[str, ...], rate: str | None = None) -> Topology:
    """GPUs on one switch, at these many GB/s each way; rate: of its adders."""
    links = [Link(a, b, "link", Fraction(rate * GB), latency=1e-6)
             for i, rate in enumerate(ports) for a, b in ((f"gpu{i}", "switch"), ("switch", f"gpu{i}"))]  # fmt: skip
    devices = (*(Device(f"gpu{i}", "gpu") for i in range(len(ports))), switch("switch", kind, rate))
    return Topology("star", devices, tuple(links))


@pytest.mark.parametrize(("kind", "rate"), [(("multicast", "reduce"), "1GB/s"), (KINDS[-1], "500MB/s")])
def test_adders_limit_stars(kind: tuple[str, ...], rate: str) -> None:
    for name in ("allreduce", "reducescatter"):
        assert_exact(star((2, 1, 1), kind, rate), Collective(name))
    # Lengths that are alike on GPUs that are not: each needs a tree of its own.
    assert_exact(star((1, 2, 2, 2), kind, rate), Collective("reducescatter"))


@pytest.mark.parametrize("kind", KINDS, ids="+".join)
def test_stars_have_exact_bounds(kind: tuple[str, ...]) -> None:
    for ports in ((1, 1), (2, 1, 1)):
        for name in NAMES:
            assert_exact(star(ports, kind), Collective(name))


@st.composite
def two_switches(draw: st.DrawFn) -> Topology:
    """Two to four GPUs on one or both of two switches, some linked to each other, the switches perhaps too."""
    gpus = draw(st.integers(2, 4))
    kinds = draw(st.tuples(*[st.tuples(st.sampled_from(((), *KINDS)), RATES)] * 2))
    pairs = [(f"gpu{i}", f"sw{s}") for i in range(gpus) for s in draw(st.sampled_from(((0,), (1,), (0, 1))))]
    pairs += [("sw0", "sw1")] * draw(st.integers(0, 1))
    pairs += draw(
        st.lists(
            st.sampled_from([(f"gpu{i}", f"gpu{j}") for i in range(gpus) for j in range(i)]), max_size=2, unique=True
        )
    )
    links = []
    for a, b in pairs:
        rate = Fraction(draw(st.integers(1, 3)) * GB)
        links += [Link(x, y, "link", rate, latency=1e-6) for x, y in ((a, b), (b, a))]
    switches = (switch(f"sw{i}", *kind) for i, kind in enumerate(kinds))
    return Topology("two", (*(Device(f"gpu{i}", "gpu") for i in range(gpus)), *switches), tuple(links))


@pytest.mark.slow
@given(two_switches(), st.sampled_from(NAMES), st.integers(0, 1))
@settings(max_examples=100, deadline=None)
def test_machines_of_two_switches_have_exact_bounds(machine: Topology, name: str, root: int) -> None:
    try:
        part = machine.select()
    except InfeasibleError:
        assume(False)
    assume(any(device.in_network for device in part.devices))
    assert_exact(part, Collective(name, root if name in ("reduce", "broadcast") else 0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids="+".join)
def test_all_stars_have_exact_bounds(kind: tuple[str, ...]) -> None:
    for count in (2, 3, 4):
        for ports in combinations_with_replacement((1, 2) if count == 4 else (1, 2, 3), count):
            for name in NAMES:
                assert_exact(star(ports, kind), Collective(name))
                if count < 4:
                    assert_exact(star(ports, kind, "1GB/s"), Collective(name))
