"""Machines of the golden link tables, and others whose optimum is published, built without the catalogue."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

from blinksim.topology.cluster import replicate
from blinksim.topology.elements import Fabric
from blinksim.topology.graph import Device, Link, Topology

GOLDEN = Path(__file__).parents[1] / "golden"
GB = 10**9


def pair(
    a: str, b: str, rate: Fraction | int, kind: str = "nvlink", lanes: int = 1, bus: str | None = None
) -> list[Link]:
    """Both directions of a link of `lanes` lanes with `rate` GB/s each."""
    return [Link(x, y, kind, Fraction(rate) * GB, lanes, bus=bus) for x, y in ((a, b), (b, a))]


def golden(file: str, kinds: str, lane: int | None = None) -> Topology:
    """The links of a golden table whose kind starts with one of `kinds`; with `lane` GB/s, xN means N lanes of it."""
    links: list[Link] = []
    with (GOLDEN / file).open() as handle:
        for row in csv.DictReader(handle):
            if row["kind"].startswith(tuple(kinds.split(","))):
                name, _, lanes = row["kind"].partition(" x")
                count = int(lanes) if lane else 1
                rate = Fraction(lane) if lane else Fraction(row["GBps_per_direction"])
                links += pair(row["node_a"], row["node_b"], rate, name, count)
    names = sorted({end for link in links for end in (link.src, link.dst)})
    kind = "tile" if ".t" in names[0] else "gpu"
    return Topology(file, tuple(Device(name, kind) for name in names), tuple(links))


def dgx1v() -> Topology:
    """Eight V100, lanes of 25 GB/s."""
    return golden("links_p3_16xlarge.csv", "nvlink", 25)


def dgx1p() -> Topology:
    """Eight P100, lanes of 20 GB/s."""
    return golden("links_dgx1p.csv", "nvlink", 20)


def aurora() -> Topology:
    """Twelve tiles: MDFI within a card, Xe links between cards."""
    return golden("links_aurora.csv", "MDFI,Xe-link")


def a100(nodes: int) -> Topology:
    """Boxes of eight A100 on one NVSwitch (300 GB/s a GPU) with a NIC of 25 GB/s per GPU, on one switch."""
    gpus = [f"gpu{i}" for i in range(8)]
    nics = [f"nic{i}" for i in range(8)]
    devices = [Device(n, "gpu") for n in gpus] + [Device("nvswitch", "switch")] + [Device(n, "nic") for n in nics]
    links = [x for g in gpus for x in pair(g, "nvswitch", 300)]
    links += [x for g, n in zip(gpus, nics, strict=True) for x in pair(g, n, 25, "pcie")]
    turn = (*range(1, 8), 0, 8, *range(10, 17), 9)
    box = Topology("a100", tuple(devices), tuple(links), collective_links=("nvlink", "pcie"), symmetries=(turn,))
    fabric = Fabric("switch", tuple(nics), "ib", Fraction(25 * GB))
    whole = replicate(box, nodes, fabric)
    return whole.select(links=whole.link_classes)


def ring(count: int, rate: int = 10, *, bus: bool = False) -> Topology:
    """GPUs in a ring; with `bus`, each link is half duplex."""
    links = [
        x for i in range(count) for x in pair(f"gpu{i}", f"gpu{(i + 1) % count}", rate, bus=f"bus{i}" if bus else None)
    ]
    return Topology("ring", tuple(Device(f"gpu{i}", "gpu") for i in range(count)), tuple(links))
