"""The bound from sums alone: never below the exact one, equal to it where the machine is regular, always certified."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from strategies import topologies

from blinksim import machines
from blinksim.bounds.certificates import Partition
from blinksim.bounds.compute import bound
from blinksim.bounds.quick import _cuts_and_partitions, quick_bound
from blinksim.collective import COLLECTIVES, Collective
from blinksim.topology.elements import Level
from blinksim.topology.graph import Topology

GB = 10**9


@pytest.mark.parametrize("collective", COLLECTIVES)
@settings(max_examples=25)
@given(topology=topologies(min_devices=2, max_devices=7))
def test_never_below_the_exact_bound_and_always_checked(collective: str, topology: Topology) -> None:
    part = topology.select()
    wanted = Collective(collective, part.ranks - 1 if Collective(collective).rooted else 0)
    quick = quick_bound(part, wanted)
    assert quick.rate >= bound(part, wanted).rate
    assert quick.check(part, wanted, quick.rate) == []


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "rate"),
    [
        ("dgx1-v100", 1, "allreduce", Fraction(600, 7)),
        ("dgx1-v100", 1, "allgather", Fraction(1200, 7)),
        ("dgx-a100", 2, "allgather", Fraction(1040, 3)),
        ("dgx-a100", 4, "allgather", Fraction(800, 3)),
        ("hgx-h200", 1, "allreduce", Fraction(1800, 7)),
        ("mi250", 1, "alltoall", Fraction(75)),
        ("aurora", 1, "allreduce", Fraction(2910, 11)),
        ("dgx1-p100", 1, "broadcast", Fraction(80)),
    ],
)
def test_regular_machines_need_no_search(machine: str, nodes: int, collective: str, rate: Fraction) -> None:
    part = machines.load(machine, nodes=nodes).select()
    assert quick_bound(part, Collective(collective)).rate == rate * GB


OVER = Fraction(8)
FABRICS: dict[str, dict[str, Any]] = {
    "a leaf for two nodes": {"shape": "tree", "leaf_nodes": 2, "oversubscription": OVER},
    "rails below a spine": {"shape": "levels", "levels": (Level(2, 8, OVER), Level())},
    "pods of two leaves": {"shape": "levels", "levels": (Level(1), Level(2, 1, OVER), Level())},
    "two groups of a dragonfly": {"shape": "dragonfly", "group_nodes": 2, "group_links": 2},
}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter"])
def test_a_narrow_fabric_bounds_what_is_below_its_switches(fabric: str, collective: str) -> None:
    """Two nodes of eight NICs of 50 GB/s, or a group of them, pass 100 GB/s on."""
    node = machines.load("hgx-h100")
    assert node.fabric is not None
    part = node.replicate(4, replace(node.fabric, planes=1, **FABRICS[fabric])).select()
    share = 1 if collective == "allreduce" else 2
    assert quick_bound(part, Collective(collective)).rate == 100 * GB * share
    assert bound(part, collective).rate == 100 * GB * share


@pytest.mark.parametrize("each", [4, 6])
def test_what_is_narrow_inside_nodes_bounds_any_number_of_them(each: int) -> None:
    """Cards of Aurora, two ranks each, reach their host by PCIe of 64 GB/s; its NICs carry more than two or three.

    Without a search, as among 1,024 nodes, whose bound was that of their NICs.
    """
    for nodes in (4, 16, 1024):
        part = machines.Question("aurora", nodes=nodes, ranks_per_node=each).part()
        # A spanning tree of nodes, in and out of each, once to sum up and once to spread.
        assert quick_bound(part, Collective("allreduce")).rate == Fraction(64 * GB * each // 2 * nodes, 2 * (nodes - 1))


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx1-p100", "hgx-h200", "mi250", "aurora"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_single_nodes_of_the_catalogue_get_the_exact_bound(name: str, collective: str) -> None:
    part = machines.load(name).select()
    assert quick_bound(part, Collective(collective)).rate == bound(part, Collective(collective)).rate


def greedy(topology: Topology) -> Fraction:
    """The least capacity over k-1 of the partitions that come from joining the two parts with the most between them."""
    part = {name: number for number, name in enumerate(topology.members)}
    least = None
    while (k := len(set(part.values()))) > 1:
        between: Counter[tuple[int, int]] = Counter()
        for link in topology.links:
            a, b = sorted((part[link.src], part[link.dst]))
            if a != b:
                between[b, a] += link.bandwidth  # type: ignore[assignment]
        ratio = Fraction(sum(between.values())) / (k - 1)
        least = ratio if least is None else min(least, ratio)
        numbers = sorted(set(part.values()))
        later, earlier = max(combinations(numbers, 2), key=lambda p: (between[p[1], p[0]], -p[1], -p[0]))[::-1]
        part = {name: earlier if number == later else number for name, number in part.items()}
    assert least is not None
    return least


@given(
    machine=st.sampled_from(["full:17", "mesh:5x4", "torus:4x5", "hypercube:5", "line:20"]),
    widths=st.lists(st.integers(1, 4), min_size=16, max_size=16),
)
def test_partitions_are_grown_greedily_and_the_best_is_taken(machine: str, widths: list[int]) -> None:
    whole = machines.load(machine).select()
    wide = tuple(
        replace(link, lane_bandwidth=Fraction(widths[min(whole.index[link.src], whole.index[link.dst]) % 16] * GB))
        for link in whole.links
    )
    part = replace(whole, links=wide, symmetries=())
    (found,) = (
        certificate
        for certificate in (claim.certify() for claim in _cuts_and_partitions(part, Collective("allreduce")))
        if isinstance(certificate, Partition) and len(certificate.parts) > 1
    )
    assert found.rate == greedy(part) / 2


def test_thousands_of_ranks_take_seconds() -> None:
    part = machines.load("torus:40x40").select()
    start = time.process_time()
    assert quick_bound(part, Collective("allreduce")).rate == Fraction(100 * 1600, 2 * 1599) * GB
    assert time.process_time() - start < 2


def test_the_fabric_limits_many_nodes() -> None:
    """All bytes pass the ports of 64 nodes of Aurora; a cut around one node would allow almost twice as much."""
    part = machines.load("aurora", nodes=64).select()
    assert quick_bound(part, Collective("allreduce")).rate == Fraction(6400 * 10**9, 63)
