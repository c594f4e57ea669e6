"""Flows of one vertex turned to all others, against the program of all flows and published rates."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from proved_gaps import gap

from blinksim.algorithms.packed import build
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.graphs.network import network
from blinksim.graphs.programs import Commodity, shared_capacities
from blinksim.machines import load
from blinksim.packing.forest import flow_images, regular_group, route_flows
from blinksim.schedule.verify import verify


@pytest.mark.parametrize("name", ["ring:5", "ring:6", "torus:3x4", "torus:4x4", "hypercube:3", "full:5"])
def test_as_fast_as_flows_from_every_source(name: str) -> None:
    topology = load(name).select()
    net = network(topology)
    everywhere = range(net.vertices)
    commodities = [Commodity(a, {b: 1 for b in everywhere if b != a}) for a in everywhere]
    best = bound(topology, Collective("alltoall")).rate / topology.ranks / net.unit
    routed = route_flows(net, shared_capacities(topology, net), commodities, best)
    group = regular_group(topology)
    assert group is not None
    turned = flow_images(net, best, group)
    assert routed is not None
    assert turned is not None
    rate, paths = turned
    assert rate == routed[0] == best
    load_of, sent = Counter[int](), Counter[tuple[int, int]]()
    for path in paths:
        assert (net.tail[path.arcs[0]], net.head[path.arcs[-1]]) == (path.source, path.sink)
        assert all(net.head[a] == net.tail[b] for a, b in pairwise(path.arcs))
        sent[path.source, path.sink] += path.rate  # type: ignore[assignment]
        for arc in path.arcs:
            load_of[arc] += path.rate  # type: ignore[assignment]
    assert sent == {(a, b): rate for a in everywhere for b in everywhere if a != b}
    assert all(carried <= int(net.capacity[arc]) for arc, carried in load_of.items())


def test_nothing_where_machines_are_not_alike() -> None:
    topology = load("mesh:3x3").select()
    assert regular_group(topology) is None


@pytest.mark.slow
def test_alltoall_of_a_large_torus_attains_its_bound() -> None:
    """144 GPUs are too many for a flow from each; a block takes 6 links of 25 GB/s on average, of 4 each way."""
    topology = load("torus:12x12").select()
    collective = Collective("alltoall")
    best = bound(topology, collective)
    schedule = build(topology, collective, bound=best)
    assert best.rate == Fraction(4 * 25 * 10**9, 6)
    assert gap(schedule) == "0"
    assert verify(schedule).reasons == ()
