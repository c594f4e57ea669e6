"""Columns of links: those of a cluster are those of its links read one by one, and their sums those of fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from strategies import clusters_with_nics, topologies

from blinksim import machines
from blinksim.bounds.certificates import capacity
from blinksim.topology.graph import Topology
from blinksim.topology.link_columns import LinkColumns
from blinksim.topology.symmetry import is_automorphism

LARGE = ["hgx-h100", "dgx-a100", "gb200-nvl72", "aurora", "dgx1-v100"]


def columns(table: LinkColumns) -> list[tuple[object, ...]]:
    """Every link: its ends, its figures, and the first link of its bus."""
    first: dict[int, int] = {}
    buses = [first.setdefault(bus, row) if bus >= 0 else None for row, bus in enumerate(table.bus.tolist())]
    figures = [table.figures[row] for row in table.figure.tolist()]
    return list(zip(table.src.tolist(), table.dst.tolist(), figures, buses, strict=True))


def assert_as_read(topology: Topology) -> None:
    read = LinkColumns.of(topology.links, {device.name: place for place, device in enumerate(topology.devices)})
    assert columns(topology.link_columns) == columns(read)
    assert topology.link_columns.classes == tuple(dict.fromkeys(link.kind for link in topology.links))
    assert topology.index == {device.name: place for place, device in enumerate(topology.devices)}


@pytest.mark.parametrize("nodes", [3, 70])
@pytest.mark.parametrize("name", LARGE)
def test_a_cluster_knows_its_columns(name: str, nodes: int) -> None:
    """Put together from a node and a fabric: as read link by link, and the same cluster as one made with all checks."""
    node = machines.load(name)
    made = node.replicate(nodes)
    assert "link_columns" in made.__dict__
    assert_as_read(made)
    assert_as_read(made.select())
    checked = Topology(**{field: getattr(made, field) for field in made.__dataclass_fields__})
    assert checked == made
    assert checked.select() == made.select()


@settings(max_examples=20, deadline=None)
@given(machine=clusters_with_nics())
def test_clusters_of_random_nodes_know_their_columns(machine: Topology) -> None:
    assert_as_read(machine)


@settings(max_examples=40, deadline=None)
@given(machine=topologies(max_devices=8) | clusters_with_nics(), data=st.data())
def test_a_part_knows_its_columns(machine: Topology, data: st.DataObject) -> None:
    """Those of the whole without what is left out, as read link by link; what moves only what stays is a symmetry."""
    members = data.draw(st.lists(st.sampled_from(machine.members), min_size=1, unique=True))
    lost = data.draw(st.sampled_from([link.name.partition(" ")[0] for link in machine.links]))
    for part in (machine.select(members, links="all", connected=False), machine.without(lost), machine.subset(members)):
        assert "link_columns" in part.__dict__ or len(members) == len(machine.members)
        assert_as_read(part)
        assert_as_read(part.pruned())
        assert part.link_columns.figures == LinkColumns.of(part.links, part.index).figures
        assert all(is_automorphism(part, order) for order in part.symmetries)
        assert part == Topology(**{field: getattr(part, field) for field in part.__dataclass_fields__})


@settings(max_examples=40, deadline=None)
@given(machine=topologies(max_devices=8), data=st.data())
def test_capacities_are_those_of_sums_of_fractions(machine: Topology, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.booleans(), min_size=len(machine.links), max_size=len(machine.links)))
    chosen = [link for link, here in zip(machine.links, some, strict=True) if here]
    assert machine.link_columns.capacity(np.array(some)) == capacity(machine, chosen)
    rates = [machine.link_columns.bandwidths[row] for row in machine.link_columns.figure.tolist()]
    assert rates == [link.bandwidth for link in machine.links]


def test_a_cluster_keeps_what_its_node_may_not_have() -> None:
    """The widest link of a bus counts, once for each copy of the bus."""
    node = machines.load("dgx1-v100")
    table = node.replicate(70).link_columns
    everything = table.capacity(np.ones(len(table.src), dtype=np.bool_))
    assert everything == capacity(node, node.replicate(70).links)
    assert isinstance(everything, Fraction)
