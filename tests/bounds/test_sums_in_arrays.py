"""Rates that are summed over arrays: those of the certificates, which are summed link by link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from strategies import clusters_with_nics, topologies

from blinksim import machines
from blinksim.bounds.lengths import Lengths
from blinksim.bounds.quick import _cuts_and_partitions, even_lengths
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

TREES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
CLUSTERS = {
    "rails": ("hgx-h100", 5, ()),
    "one slow NIC": ("hgx-h100", 4, ("degrade n1.nic3-fabric3 bandwidth=10GB/s",)),
    "a dead node": ("hgx-h100", 5, (*(f"without n2.gpu{i}" for i in range(8)),)),
    "a dead link": ("dgx-a100", 3, ("without n1.nic0-fabric0",)),
    "racks": ("gb200-nvl72", 3, ()),
    "buses": ("dgx1-v100", 3, ()),
    "tiles": ("aurora", 3, ()),
}


def check(part: Topology, name: str) -> None:
    wanted = Collective(name, part.ranks - 1 if Collective(name).rooted else 0)
    for claim in _cuts_and_partitions(part, wanted):
        assert claim.rate == claim.certify().rate


@settings(max_examples=20, deadline=None)
@given(machine=st.one_of(topologies(min_devices=3, max_devices=7), clusters_with_nics()), data=st.data())
def test_random_machines(machine: Topology, data: st.DataObject) -> None:
    check(replace(machine, symmetries=()).select(), data.draw(st.sampled_from(COLLECTIVES)))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_clusters(cluster: str) -> None:
    name, nodes, edits = CLUSTERS[cluster]
    part = machines.load(name, nodes=nodes, edits=edits).select()
    for collective in ("allreduce", "allgather", "alltoall", "broadcast"):
        check(part, collective)


def lengths_agree(part: Topology, label: list[int], name: str) -> bool:
    """True if the arrays say anything; they must say the same then."""
    wanted = Collective(name, part.ranks - 1 if Collective(name).rooted else 0)
    group = np.array(label)
    src, dst = part.ends
    chosen = group[src] != group[dst]
    found = even_lengths(part, wanted, chosen)
    lengths = {part.links[number].name: 1 for number in np.flatnonzero(chosen).tolist()}
    try:
        expected = Lengths.of(part, wanted, lengths)  # type: ignore[arg-type]
    except InputError:
        assert found is None
        return False
    if found is None:
        return False
    assert (found.lengths, found.price, found.distance) == (expected.lengths, expected.price, expected.distance)
    assert found.rate == expected.rate
    assert found.check(part, wanted, expected.rate) == []
    assert found.words(part) == expected.words(part)
    return True


@settings(max_examples=60, deadline=None)
@given(machine=topologies(min_devices=3, max_devices=7, half_duplex=False), data=st.data())
def test_lengths_between_random_groups(machine: Topology, data: st.DataObject) -> None:
    count = len(machine.devices)
    label = data.draw(st.lists(st.integers(0, count - 1), min_size=count, max_size=count))
    lengths_agree(machine.select(), label, data.draw(st.sampled_from(TREES)))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_lengths_between_nodes_and_around_members(cluster: str) -> None:
    name, nodes, edits = CLUSTERS[cluster]
    part = machines.load(name, nodes=nodes, edits=edits).select()
    by_node = [device.node for device in part.devices]
    members = set(part.members)
    alone = [number if device.name in members else -1 for number, device in enumerate(part.devices)]
    for collective in ("allreduce", "allgather"):
        said = [lengths_agree(part, label, collective) for label in (by_node, alone)]
        assert said == [True, True] or cluster == "buses"


def test_lengths_say_nothing_about_pairs() -> None:
    part = machines.load("dgx-a100", nodes=2).select()
    src, dst = part.ends
    assert even_lengths(part, Collective("alltoall"), src != dst) is None
