"""Clusters with one device or link out of order: what is left alike is found, and the bounds are still right.

Bounds with every device by itself are the oracle, and so are limits: a link that is degraded to nearly nothing is worth
as much as none, and what is taken away never helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import networkx as nx
import pytest
from networkx.algorithms.isomorphism import DiGraphMatcher, categorical_edge_match, categorical_node_match

import blinksim as bs
from blinksim.bounds.compute import bound
from blinksim.bounds.sensitivity import link_changes
from blinksim.collective import Collective
from blinksim.topology.selection import unserved
from blinksim.topology.symmetry import orbits

EDITS = (
    "without n1.nic3",
    "without fabric3",
    "without n1.gpu3",
    "without n1.gpu3-n1.nvswitch",
    "degrade n1.nic3-fabric3 bandwidth=7GB/s",
    "degrade n1.nvswitch->n1.gpu3 bandwidth=7GB/s",
)


def part(*edits: str, nodes: int = 2) -> bs.Topology:
    return bs.load("hgx-h100", nodes=nodes, edits=edits).select()


def alone(machine: bs.Topology) -> bs.Topology:
    """The same with every device as an orbit of its own: no nodes or rails are compared, and no symmetry is known."""
    return replace(machine, symmetries=(), nodes=1)


@pytest.mark.parametrize("edit", [EDITS[0], *(pytest.param(edit, marks=pytest.mark.slow) for edit in EDITS[1:])])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"])
def test_the_bound_is_that_of_every_device_by_itself(edit: str, collective: str) -> None:
    machine = part(edit)
    single = alone(machine)
    assert len(orbits(machine)) < len(orbits(single)) == len(machine.devices)
    found, plain = (bound(one, collective) for one in (machine, single))
    assert (found.rate, found.headline.exact) == (plain.rate, plain.headline.exact)


@pytest.mark.slow
@pytest.mark.parametrize(
    "edits",
    [
        (),
        ("without n1.nic1",),
        ("without fabric2",),
        ("without n1.nic2", "degrade n0.nic0-fabric0 bandwidth=1GB/s"),
    ],
)
def test_orbits_are_those_of_all_symmetries(edits: Sequence[str]) -> None:
    """By another program, which looks for a symmetry from the first device of each orbit to every device."""
    machine = bs.load("rails:3x3@300GB/s,50GB/s", edits=edits).select()
    label = {device: group[0] for group in orbits(machine) for device in group}

    def coloured(at: int) -> nx.DiGraph[int]:
        graph: nx.DiGraph[int] = nx.DiGraph()
        for place, device in enumerate(machine.devices):
            graph.add_node(place, sort=(device.kind, device.name in machine.members, place == at))
        for link in machine.links:
            graph.add_edge(machine.index[link.src], machine.index[link.dst], sort=(link.kind, link.bandwidth))
        return graph

    same = categorical_node_match("sort", None), categorical_edge_match("sort", None)
    for first in {*label.values()}:
        for device, own in label.items():
            takes = DiGraphMatcher(coloured(first), coloured(device), *same).is_isomorphic()
            assert takes == (own == first), (machine.devices[first].name, machine.devices[device].name)


@pytest.mark.parametrize(
    "collective", ["allgather", *(pytest.param(x, marks=pytest.mark.slow) for x in ("allreduce", "alltoall"))]
)
def test_a_dead_link_is_the_limit_of_slow_ones(collective: str) -> None:
    """A link that carries a millionth changes no bound by more than that; what is taken away never helps."""
    slow = [f"degrade n3.nic3-fabric3 bandwidth={rate}" for rate in ("25GB/s", "5GB/s", "25kB/s")]
    machines = [bs.load("hgx-h100", nodes=4, edits=edits).select() for edits in ([], *([one] for one in slow))]
    rates = [bound(machine, collective).rate for machine in machines]
    dead = bound(bs.load("hgx-h100", nodes=4, edits=["without n3.nic3"]).select(), collective).rate
    assert rates == sorted(rates, reverse=True)
    assert dead <= rates[-1] <= dead * (1 + Fraction(1, 10**6))


def test_a_hundred_and_twenty_eight_nodes_with_a_dead_adapter_are_exact() -> None:
    """Every byte of an allreduce crosses 2 (N - 1) links into the fabric and as many out of it, 50 GB/s each."""
    found = bound(bs.load("hgx-h100", nodes=128, edits=["without n5.nic3"]).select(), "allreduce")
    assert found.headline.exact
    assert found.rate == Fraction(2 * (128 * 8 - 1) * 50 * 10**9, 4 * 127)


def test_losses_beside_a_root_are_not_those_of_other_nodes() -> None:
    machine, collective = part(nodes=3), Collective("broadcast", 9)
    for row in link_changes(machine, collective, None):
        for pair in (row.pairs[0], row.pairs[-1]):
            edited = alone(machine).without(pair.partition(" ")[0])
            assert row.after == (0 if unserved(edited, collective) else bound(edited, collective).rate)
