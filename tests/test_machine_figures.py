"""Every machine of the catalogue against what its maker publishes of it, and bounds against hand arithmetic on that."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.formats.shipped import machine_names

GB = 10**9
with (Path(__file__).parent / "golden" / "machine_figures.csv").open(newline="") as file:
    ROWS = {row["machine"]: row for row in csv.DictReader(file)}
# Two nodes are not bounded by the links of one GPU or one node there; test_machines.py has the published figure.
UNEVEN = {"mi250"}


def test_figures_are_of_machines_and_have_sources() -> None:
    assert set(ROWS) <= set(machine_names.names())
    assert all(row["source"] and row["how"] for row in ROWS.values())


@pytest.mark.parametrize("name", ROWS)
def test_a_gpu_and_a_node_have_the_published_bandwidth(name: str) -> None:
    row, machine = ROWS[name], bs.load(name)
    used = [link for link in machine.links if link.kind in machine.collective_links]
    assert machine.ranks == int(row["gpus"])
    for ends in ("src", "dst"):
        found = {sum(link.bandwidth for link in used if getattr(link, ends) == gpu) for gpu in machine.members}
        assert found == {Fraction(figure) * GB for figure in row["gpu_GBps"].split()}
    fabric = machine.fabric
    assert (fabric is None) == (not row["node_GBps"])
    if fabric is not None:
        assert len(fabric.ports) * fabric.lanes * fabric.lane_bandwidth == Fraction(row["node_GBps"]) * GB


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row["gpus"] != "1"])
def test_the_bound_of_a_node_is_the_figure(name: str) -> None:
    assert bs.bound(bs.load(name), "allgather").rate == Fraction(ROWS[name]["allgather_GBps"]) * GB


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row["node_GBps"] and name not in UNEVEN])
def test_the_bound_of_two_nodes_follows_from_the_figures(name: str) -> None:
    """Half of the data enters a node, all but its own share a GPU, which may use its links to the network as well."""
    row, machine = ROWS[name], bs.load(name)
    assert machine.fabric is not None
    node, gpu = Fraction(row["node_GBps"]) * GB, max(map(Fraction, row["gpu_GBps"].split())) * GB
    ranks = 2 * machine.ranks
    beside = max(
        sum(link.bandwidth for link in machine.links if link.dst == gpu and link.kind in machine.inter_node_links)
        for gpu in machine.members
    )
    if machine.fabric.ports[0] in machine.members:
        beside += machine.fabric.lanes * machine.fabric.lane_bandwidth
    least, most = (min(2 * node, into * ranks / (ranks - 1)) for into in (gpu, gpu + beside))
    found = bs.bound(bs.load(name, nodes=2), "allgather").rate
    assert least * Fraction(999999, 10**6) <= found <= most


with (Path(__file__).parent / "golden" / "machine_sources.csv").open(newline="") as file:
    SOURCES = list(csv.DictReader(file))


def test_what_was_collected_about_machines_is_cited_or_marked_as_assumed() -> None:
    """Figures collected with a source have it in the file; others name a document or are marked `assumed`."""
    assert {row["machine"] for row in SOURCES} <= set(machine_names.names())
    for row in SOURCES:
        head = machine_names.outline(row["machine"])
        assumed = " ".join(head.structure)
        cited = " ".join([head.source, *(one.source for one in head.link_classes.values())])
        wanted = {"assumed": assumed, "memory": f"{assumed} {cited}"}.get(row["tag"], cited)
        assert row["words"] in wanted, f"topologies/{row['machine']}.yaml: {row['figure']}: cite {row['words']!r}"
