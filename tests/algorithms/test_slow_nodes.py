"""Allreduce where ports of one node are slow or lost: that node hands its data to the others."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

import blinksim as bs

GB = 10**9

NAMES = "hierarchical", "hierarchical_direct", "hierarchical_multiplying"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("edit", "nodes", "rate"),
    [
        # Nothing lost: 2 (n - 1) / n of the data over eight ports of 50 GB/s.
        ("", 8, Fraction(400 * 8, 14)),
        # A quarter of the data over the port that two GPUs share, once; the other nodes pass 13/7 over eight ports.
        ("without n0.nic0", 8, Fraction(200)),
        # 5/3 of the data over eight ports are more than 1.5 over the half of one that two share: 133 GB/s.
        ("without n0.nic0", 4, Fraction(200)),
        # Half a port is an eighth of the data in a node that hands it over; the others pass 13/7.
        ("degrade n5.nic3-fabric3 bandwidth=25GB/s", 8, Fraction(200)),
        # A little slower is better than to hand over: 14/8 of the data over 48 GB/s.
        ("degrade n5.nic3-fabric3 bandwidth=48GB/s", 8, Fraction(48 * 8 * 8, 14)),
    ],
)
def test_rates_by_hand(name: str, edit: str, nodes: int, rate: Fraction) -> None:
    machine = bs.load("hgx-h100", nodes=nodes, edits=edit or ())
    made = bs.synthesize(machine, "allreduce", name)
    assert made.verdict.ok
    assert made.rate == rate * GB


@given(st.integers(3, 6), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=6), st.sampled_from(NAMES))
def test_any_lost_ports(nodes: int, lost: list[tuple[int, int]], name: str) -> None:
    edits = [f"without n{node}.nic{nic}" for node, nic in sorted({*lost}) if node < nodes and nic < 4]
    made = bs.synthesize(bs.load("hgx-h100", nodes=nodes, edits=edits), "allreduce", name)
    assert made.verdict.ok
    assert made.rate <= made.bound.rate
