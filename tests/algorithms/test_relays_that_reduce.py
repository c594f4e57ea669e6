"""Trees that branch at relays attain the best rate: by a search over all moves, and by rates known by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from all_branching import best_rate
from hypothesis import given, settings, strategies as st
from proved_gaps import gap
from strategies import topologies

import blinksim as bs
from blinksim.algorithms.packed import build
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.schedule.loads import rate as loaded_rate
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Device, Link, Topology

GB = 10**9
NAMES = ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")


def half_duplex(pairs: list[tuple[str, str]]) -> Topology:
    names = dict.fromkeys(name for pair in pairs for name in pair)
    links = [
        Link(src, dst, "link", Fraction(GB), 1, 1e-6, bus=f"{a}-{b}") for a, b in pairs for src, dst in ((a, b), (b, a))
    ]
    return Topology("wheel", tuple(Device(name, "gpu") for name in names), tuple(links), collective_links=("link",))


# Each of three GPUs has two ways of two half-duplex links to a hub.
WHEEL = half_duplex([pair for a in "abc" for way in "12" for pair in ((a, f"{a}{way}"), (f"{a}{way}", "hub"))])


@pytest.mark.parametrize(("name", "rate"), [("reducescatter", 2), ("allgather", 2), ("broadcast", 2), ("allreduce", 1)])
def test_only_some_relays_are_spanned(name: str, rate: int) -> None:
    """Trees that meet in the hub use one way of each GPU. Without it they go through a GPU (3/2), with all relays they
    lead into both ways (4/3)."""
    part = WHEEL.select(["a", "b", "c"], relays="idle", relays_reduce=True)
    schedule = build(part, Collective(name))
    assert gap(schedule) == "0"
    assert loaded_rate(schedule) == rate * GB
    assert verify(schedule).reasons == ()


@pytest.mark.parametrize(
    ("machine", "members", "GBps"),
    [
        # On a full mesh every one of 8 - n relays carries a star of the rate of a link, and the members' own links
        # the n/2 of them that spanning trees of n ranks do.
        *(("full:8@50GB/s", n, 50 * (8 - n + Fraction(n, 2))) for n in (2, 3, 4, 5, 6, 7)),
        ("mi355x", 4, Fraction(2304, 5)),
        ("dgx1-v100", 3, 125),
        ("dgx1-v100", 5, Fraction(375, 4)),
        # Behind a switch, a relay reduces what all ports bring to it.
        ("hgx-h100", 4, 450),
    ],
)
def test_whole_machines_help(machine: str, members: int, GBps: Fraction) -> None:
    part = bs.Question(machine, members=f"0-{members - 1}", relays="idle", relays_reduce=True).part()
    found = bound(part, Collective("allreduce"))
    assert (found.rate, found.headline.exact) == (GBps * GB, True)
    assert found.headline.check(part, found.collective) == []
    schedule = build(part, Collective("allreduce"))
    assert (loaded_rate(schedule), gap(schedule)) == (found.rate, "0")
    assert verify(schedule).reasons == ()


def assert_best(topology: Topology, collective: Collective) -> None:
    expected = best_rate(topology, collective.name, collective.root, frozenset(("multicast", "reduce")))
    found = bound(topology, collective)
    assert float(found.rate) == pytest.approx(expected, rel=1e-6)
    assert found.headline.check(topology, collective) == []
    schedule = build(topology, collective)
    assert verify(schedule).reasons == ()
    assert (found.headline.exact, gap(schedule)) == (True, "0")


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Up to seven devices, two to four of them members, the other GPUs relays that reduce, switches that forward."""
    drawn = draw(topologies(3, 7, half_duplex=False))
    names = drawn.members
    ranks = draw(st.integers(2, min(4, len(names))))
    return drawn.select(names[:ranks], names[ranks:], relays_reduce=len(names) > ranks)


@given(machines(), st.sampled_from(NAMES))
@settings(max_examples=10, deadline=None)
def test_small_machines(topology: Topology, name: str) -> None:
    assert_best(topology, Collective(name))


@pytest.mark.slow
@given(machines(), st.sampled_from(NAMES))
@settings(max_examples=200, deadline=None)
def test_many_small_machines(topology: Topology, name: str) -> None:
    assert_best(topology, Collective(name))
