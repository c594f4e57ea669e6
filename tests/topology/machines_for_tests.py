"""Small machines from published link tables, for the tests of this folder."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

from blinksim.topology.graph import Device, Link, Topology

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def dgx1(model: str) -> Topology:
    """DGX-1P or DGX-1V as their link tables have them: NVLink only, one lane 20 GB/s."""
    links = []
    with (GOLDEN / f"links_{model.lower().replace('-', '')}.csv").open() as file:
        for row in csv.DictReader(file):
            if not row["kind"].startswith("nvlink"):
                continue
            lanes = int(row["kind"].removeprefix("nvlink x"))
            lane = Fraction(row["GBps_per_direction"]) * 10**9 / lanes
            for a, b in ((row["node_a"], row["node_b"]), (row["node_b"], row["node_a"])):
                links.append(Link(a, b, "nvlink", lane, lanes, 1e-6))
    return Topology(model, tuple(Device(f"gpu{i}", "gpu") for i in range(8)), tuple(links))


def with_pcie(machine: Topology) -> Topology:
    """The machine with a PCIe tree besides: a switch per four GPUs, two CPUs."""
    devices = [Device(f"plx{i}", "pcie") for i in range(2)] + [Device(f"cpu{i}", "cpu") for i in range(2)]
    ends = [(f"gpu{i}", f"plx{i // 4}") for i in range(8)] + [("plx0", "cpu0"), ("plx1", "cpu1"), ("cpu0", "cpu1")]
    links = [Link(a, b, "pcie", Fraction(10**10), 1, 1e-6) for x, y in ends for a, b in ((x, y), (y, x))]
    return Topology(machine.name, (*machine.devices, *devices), (*machine.links, *links), collective_links=("nvlink",))
