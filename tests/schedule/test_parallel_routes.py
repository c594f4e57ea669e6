"""Parallel routes: the compact form that is timed, the divided schedule that is written, and legal descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from proved_gaps import gap
from strategies import NicCluster, clusters_with_nics, nic_clusters, split_lanes, topologies

from blinksim.algorithms.registry import REGISTRY, candidates
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.machines import Question
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import rate, resource_loads, resources, single_routes
from blinksim.schedule.verify import verify
from blinksim.timing.alpha_beta import cost
from blinksim.timing.simulator import simulate
from blinksim.topology.graph import Device, Link, Topology

MACHINES = Path(__file__).parents[1] / "data" / "machines"
ALLREDUCE = Collective("allreduce")
# Those that choose whole hops, with a solver.
SEARCHED = [entry.name for entry in REGISTRY.values() if entry.solver and not entry.routes]
GIB = 2**30


def built(
    topology: Topology, collective: Collective = ALLREDUCE, names: Iterable[str] | None = None
) -> dict[str, Candidate]:
    """What these algorithms (default: every one without a solver) build, as far as they run here."""
    entries = candidates(collective.name) if names is None else [REGISTRY[name] for name in names]
    found = {}
    for entry in entries:
        try:
            found[entry.name] = entry.parallel(topology, collective)
        except BlinksimError:
            continue
    return found


def times(found: Mapping[str, Candidate], size: int = GIB) -> dict[str, float]:
    return {name: cost(one.written, size).time_s for name, one in found.items()}


def alike(one: Mapping[str, float], other: Mapping[str, float], *, within: float = 0.02) -> bool:
    assert one.keys() == other.keys()
    return {name: one[name] / time for name, time in other.items()} == {
        name: pytest.approx(1, abs=within) for name in other
    }


@pytest.mark.slow
@given(clusters_with_nics(), st.sampled_from(["allreduce", "allgather", "reducescatter", "broadcast", "alltoall"]))
def test_the_compact_form_says_what_the_divided_schedule_does(topology: Topology, name: str) -> None:
    collective = Collective(name)
    shared = resources(topology)
    most = bound(topology, collective).rate
    found = built(topology, collective)
    assert found
    for candidate in found.values():
        schedule = candidate.schedule
        assert verify(schedule).ok
        assert candidate.sends == schedule.sends
        spread = candidate.written.parallel or single_routes(candidate.compact)
        compact = resource_loads(candidate.compact, shared, spread)
        assert compact == resource_loads(schedule, shared)
        achieved = rate(schedule)
        assert achieved is not None
        assert achieved <= most
        if schedule.form == "steps":
            one, other = cost(candidate.written, GIB), cost(schedule, GIB)
            assert one.time_s == pytest.approx(other.time_s, rel=1e-9)


@pytest.mark.slow
@given(clusters_with_nics())
@settings(max_examples=20)
def test_dividing_never_lowers_the_rate(topology: Topology) -> None:
    found = built(topology)
    assert found
    for candidate in found.values():
        alone, shared = rate(candidate.compact), rate(candidate.schedule)
        assert alone is not None
        assert shared is not None
        assert shared >= alone


@given(topologies(max_devices=6, unequal=False))
@settings(max_examples=15)
@pytest.mark.slow
def test_lanes_or_links_make_no_difference(topology: Topology) -> None:
    # A search finds how many pieces of a pipeline are best, about: off by one, they take a millionth longer.
    assert alike(times(built(topology)), times(built(split_lanes(topology))), within=1e-5)


@given(nic_clusters())
@settings(max_examples=15)
@pytest.mark.slow
def test_nics_or_lanes_of_one_nic_make_no_difference(cluster: NicCluster) -> None:
    assert alike(times(built(cluster.topology())), times(built(cluster.topology(bundled=True))))


@given(nic_clusters(most_gpus=2), st.sampled_from(SEARCHED))
@pytest.mark.slow
def test_nor_does_it_for_what_a_solver_finds(cluster: NicCluster, name: str) -> None:
    both = [built(machine, names=[name]) for machine in (cluster.topology(), cluster.topology(bundled=True))]
    assert alike(times(both[0]), times(both[1]))


def test_two_nics_carry_half_each() -> None:
    # Each of the GPUs reaches the fabric over two NICs of 10 GB/s: a direct exchange of halves takes size / 20 GB/s.
    names = ["gpu0", "gpu1", "nic0", "nic1", "nic2", "nic3", "fabric"]
    pairs = [("gpu0", "nic0"), ("gpu0", "nic1"), ("gpu1", "nic2"), ("gpu1", "nic3")]
    pairs += [(nic, "fabric") for nic in names[2:6]]
    links = [Link(a, b, "link", Fraction(10**10)) for pair in pairs for a, b in (pair, pair[::-1])]
    devices = tuple(Device(name, "gpu" if name.startswith("gpu") else "switch") for name in names)
    topology = Topology("two", devices, tuple(links), collective_links=("link",)).select()
    found = built(topology)
    for name in ("ring", "two_shot", "halving_doubling"):
        assert rate(found[name].compact) == 10**10
        assert rate(found[name].schedule) == 2 * 10**10


def _at_equal_latency(topology: Topology) -> Topology:
    """Bandwidths only: p5.yaml has a PCIe hop more on either side, and so more latency."""
    return replace(topology, links=tuple(replace(link, latency=0.0, overhead=0.0) for link in topology.links))


def _p5(name: str, nodes: int) -> Topology:
    return _at_equal_latency(Question(str(MACHINES / name), nodes=nodes).part())


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_four_nics_or_one_of_four_lanes(nodes: int) -> None:
    assert alike(times(built(_p5("p5.yaml", nodes))), times(built(_p5("p5b.yaml", nodes))))


# Where relays reduce, trees are packed as without; chains are timed on more nodes below.
SEARCHED_ALIKE = {"blinkplus": [pytest.mark.alike], "chains": [pytest.mark.alike]}


@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=[pytest.mark.slow, *SEARCHED_ALIKE.get(name, [])])
            for name in SEARCHED
            if name != "blink"
        ),
        "blink",
        "packed",
    ],
)
def test_what_a_solver_finds_takes_all_nics(name: str) -> None:
    both = [built(_p5(machine, 2), names=[name]) for machine in ("p5.yaml", "p5b.yaml")]
    assert alike(times(both[0]), times(both[1]))
    for found in both:
        schedule = found[name].schedule
        assert verify(schedule).ok
        achieved = rate(schedule)
        assert achieved is not None
        assert achieved == found[name].rate
        assert gap(schedule) == str(1 - achieved / bound(schedule.topology, ALLREDUCE).rate)
        # In few pieces, since pieces without latency would be cut without end; nothing may wait much longer than that.
        simulated = simulate(schedule, GIB, pieces=16).time_s
        assert GIB / float(achieved) <= simulated * (1 + 1e-9)
        assert simulated <= 1.5 * GIB / float(achieved)


@pytest.mark.parametrize("nodes", [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["chains", "rings", "blink_hierarchical"])
def test_more_nodes_take_all_nics_as_well(name: str, nodes: int) -> None:
    one, other = (times(built(_p5(machine, nodes), names=[name])) for machine in ("p5.yaml", "p5b.yaml"))
    assert alike(one, other)
