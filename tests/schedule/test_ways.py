"""Parallel routes: the compact form that is timed, the divided schedule that is written, and legal descriptions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import clusters_with_nics, split_lanes, topologies

from blinksim.algorithms.registry import candidates
from blinksim.bounds import bound
from blinksim.collective import Collective
from blinksim.cost.alpha_beta import cost
from blinksim.errors import BlinksimError
from blinksim.question import Question
from blinksim.schedule.loads import rate, resource_loads, resources
from blinksim.schedule.verify import verify
from blinksim.schedule.ways import Parallel, loads, one_way
from blinksim.topology.graph import Device, Link, Topology

MACHINES = Path(__file__).parents[1] / "data" / "machines"
ALLREDUCE = Collective("allreduce")
NAMES = [entry.name for entry in candidates("allreduce")]
GIB = 2**30


def built(topology: Topology, collective: Collective = ALLREDUCE) -> dict[str, Parallel]:
    """What every algorithm without a solver builds, as far as it runs here."""
    found = {}
    for entry in candidates(collective.name):
        try:
            found[entry.name] = entry.parallel(topology, collective)
        except BlinksimError:
            continue
    return found


@given(clusters_with_nics(), st.sampled_from(["allreduce", "allgather", "reducescatter", "broadcast", "alltoall"]))
def test_the_compact_form_says_what_the_divided_schedule_does(topology: Topology, name: str) -> None:
    collective = Collective(name)
    shared = resources(topology)
    most = bound(topology, collective).rate
    for entrant in built(topology, collective).values():
        schedule = entrant.schedule
        assert verify(schedule).ok
        assert entrant.sends == schedule.sends
        compact = loads(entrant.compact, entrant.spread or one_way(entrant.compact), shared)
        assert compact == resource_loads(schedule, shared)
        achieved = rate(schedule)
        assert achieved is not None
        assert achieved <= most
        if schedule.form == "steps":
            one, other = cost(entrant.compact, GIB, spread=entrant.spread), cost(schedule, GIB)
            assert one.time_s == pytest.approx(other.time_s, rel=1e-9)


@given(clusters_with_nics())
def test_dividing_never_lowers_the_rate(topology: Topology) -> None:
    for entrant in built(topology).values():
        alone, shared = rate(entrant.compact), rate(entrant.schedule)
        assert alone is not None
        assert shared is not None
        assert shared >= alone


@given(topologies(max_devices=6, unequal=False))
def test_lanes_or_links_make_no_difference(topology: Topology) -> None:
    whole, split = built(topology), built(split_lanes(topology))
    assert whole.keys() == split.keys()
    for name, entrant in whole.items():
        other = split[name]
        times = [cost(one.compact, GIB, spread=one.spread).time_s for one in (entrant, other)]
        assert times[1] == pytest.approx(times[0], rel=1e-9), name


def test_two_nics_carry_half_each() -> None:
    # Each of the GPUs reaches the fabric over two NICs of 10 GB/s: a direct exchange of halves takes size / 20 GB/s.
    names = ["gpu0", "gpu1", "nic0", "nic1", "nic2", "nic3", "fabric"]
    pairs = [("gpu0", "nic0"), ("gpu0", "nic1"), ("gpu1", "nic2"), ("gpu1", "nic3")]
    pairs += [(nic, "fabric") for nic in names[2:6]]
    links = [Link(a, b, "link", Fraction(10**10)) for pair in pairs for a, b in (pair, pair[::-1])]
    devices = tuple(Device(name, "gpu" if name.startswith("gpu") else "switch") for name in names)
    topology = Topology("two", devices, tuple(links), collective_links=("link",)).select()
    for name, entrant in built(topology).items():
        if name in ("ring", "two_shot", "halving_doubling"):
            assert rate(entrant.compact) == 10**10
            assert rate(entrant.schedule) == 2 * 10**10


def _at_equal_latency(topology: Topology) -> Topology:
    """Bandwidths only: p5.yaml has a PCIe hop more on either side, and so more latency."""
    return replace(topology, links=tuple(replace(link, latency=0.0, overhead=0.0) for link in topology.links))


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_four_nics_or_one_of_four_lanes(nodes: int) -> None:
    times = []
    for name in ("p5.yaml", "p5b.yaml"):
        part = _at_equal_latency(Question(str(MACHINES / name), nodes=nodes).part())
        times.append({name: cost(e.compact, 2 * GIB, spread=e.spread).time_s for name, e in built(part).items()})
    assert times[0].keys() == times[1].keys()
    assert {name: times[0][name] / time for name, time in times[1].items()} == {
        name: pytest.approx(1, abs=0.02) for name in times[1]
    }
