"""Blink (Wang et al., short paper, 2018): rings against trees on the GPUs of a DGX-1, and the bound.

The figures of the paper survive as prose only; the bounds of every class of GPU subsets were found by brute
force over cuts, partitions and Hamiltonian cycles, independently of blinksim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from functools import cache

from blinksim.algorithms import blink, blink_hierarchical, rings
from blinksim.answers.bound import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.machines import load
from blinksim.papers.tables import Figure, Table, published_rows
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

TITLE = "Blink, short paper, 2018"
_MACHINES = {"DGX-1P": "dgx1-p100", "DGX-1V": "dgx1-v100"}
_ALLREDUCE, _BROADCAST = Collective("allreduce"), Collective("broadcast")
_BOUNDS = {"broadcast_bound_links": "broadcast", "allgather_bound": "allgather", "allreduce_tree_bound": "allreduce"}


@cache
def part(machine: str, gpus: str) -> Topology:
    """GPUs such as ``0-1-4`` of a machine, ``DGX-1P`` or ``DGX-1V``."""
    return load(_MACHINES[machine]).select([f"gpu{number}" for number in gpus.split("-")])


def _in_lanes(schedule: Schedule) -> float:
    return float((rate(schedule) or 0) / schedule.topology.links[0].lane_bandwidth)


def tables() -> Iterator[Table]:
    """The paper's statements, then the bounds of all classes."""
    quad, all_eight, six = (part("DGX-1P", gpus) for gpus in ("0-1-2-3", "0-1-2-3-4-5-6-7", "0-1-2-4-5-6"))
    quad_rings = rings.build(quad, _ALLREDUCE, bidirectional=True)
    by_rings, by_trees = rings.build(quad, _BROADCAST, bidirectional=True), blink.build(quad, _BROADCAST)
    yield Table(
        "Figure 1: broadcast on four fully connected GPUs",
        "section 1; the time n/(2b) is 2 links' worth of bandwidth, n/(3b) is 3",
        (
            Figure("rings", 2, _in_lanes(by_rings), "links"),
            Figure("trees", 3, _in_lanes(by_trees), "links"),
            Figure("trees over rings", 1.5, _in_lanes(by_trees) / _in_lanes(by_rings), "times"),
            Figure("forwarding trees", 3, by_trees.chunks),
            Figure("links that rings leave idle", 2, len(rings.idle_links(quad_rings)) // 2),
        ),
    )
    classes = [row for row in published_rows("blink_subsets.csv") if row["nvlink_connected"] == "yes"]
    some = [part("DGX-1P", row["subset"]) for row in classes if row["machine"] == "DGX-1P" and 4 <= int(row["n"]) <= 7]
    ring_counts = [0]
    for one in some:
        with suppress(InfeasibleError):
            ring_counts.append(len(rings.most_rings(one, bidirectional=True)[0]) // 2)
    six_rings = rings.build(six, _ALLREDUCE, bidirectional=True)
    hierarchical = blink_hierarchical.build(all_eight, _ALLREDUCE)
    yield Table(
        "NCCL's rings and Blink's phases on a DGX-1P",
        "sections 2 and 3.1; rings are counted in the subsets of 4 to 7 GPUs that have any",
        (
            Figure("NVLinks of the machine", 16, len(all_eight.links) // 2),
            Figure("rings with 4 to 7 GPUs, at most", 1, max(ring_counts)),
            Figure("links that rings use with 6 GPUs", 6, len(six.links) // 2 - len(rings.idle_links(six_rings)) // 2),
            Figure("chunks of the allreduce", 4, hierarchical.chunks),
            Figure("allreduce in phases, 8 GPUs", 2, _in_lanes(hierarchical), "links", "a pipelined time of M/(2b)"),
        ),
    )
    gains: dict[tuple[str, int], tuple[float, str]] = {}
    rows = []
    for row in classes:
        topology = part(row["machine"], row["subset"])
        lane = topology.links[0].lane_bandwidth
        name = f"{row['machine']} {row['subset']}"
        values = {column: float(bound(topology, what).rate / lane) for column, what in _BOUNDS.items()}
        values["ring_allreduce"] = 0.0
        with suppress(InfeasibleError):
            values["ring_allreduce"] = _in_lanes(rings.build(topology, _ALLREDUCE))
        rows += [Figure(f"{name}: {what}", float(Fraction(row[what])), ours, "links") for what, ours in values.items()]
        if values["ring_allreduce"]:
            gain = values["allreduce_tree_bound"] / values["ring_allreduce"]
            key = row["machine"], int(row["n"])
            gains[key] = max(gains.get(key, (0.0, "")), (gain, row["subset"]))
    middle = [(f"{machine}, {n} GPUs", *best) for (machine, n), best in gains.items() if 4 <= n <= 7]
    best_gains = tuple(Figure(name, 2, gain, "times", f"GPUs {gpus}") for name, gain, gpus in middle)
    ours = "ours: the bound over the rings' rate, in the best subset"
    source = f"section 3.2: measured, up to 2 times NCCL; {ours}"
    yield Table("Allreduce on 4 to 7 GPUs, over ideal rings", source, best_gains)
    yield Table(
        "Bounds of every class of GPU subsets", "by brute force; in bandwidths of an NVLink", tuple(rows), checked=True
    )
