"""The symmetries of clusters of two nodes of two GPUs, written out by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from blinksim.topology.elements import Fabric
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.symmetry import is_automorphism

GB = Fraction(10**9)
NODE = Topology(
    "pair",
    (Device("gpu0", "gpu"), Device("gpu1", "gpu")),
    (Link("gpu0", "gpu1", "nvlink", GB), Link("gpu1", "gpu0", "nvlink", GB)),
    symmetries=((1, 0),),
)


# Devices: n0.gpu0 0, n0.gpu1 1, n1.gpu0 2, n1.gpu1 3, then those of the fabric.
@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ("direct", {}, {(2, 3, 0, 1), (1, 0, 3, 2)}),
        ("switch", {}, {(2, 3, 0, 1, 4), (1, 0, 2, 3, 4)}),
        ("switch", {"planes": 2}, {(2, 3, 0, 1, 4, 5), (1, 0, 3, 2, 5, 4)}),
        ("tree", {"leaf_nodes": 2}, {(2, 3, 0, 1, 4, 5), (1, 0, 2, 3, 4, 5)}),
        ("tree", {"leaf_nodes": 1}, {(2, 3, 0, 1, 4, 6, 5), (1, 0, 2, 3, 4, 5, 6)}),
    ],
)
def test_two_nodes_of_two_gpus(shape: str, options: dict[str, Any], expected: set[tuple[int, ...]]) -> None:
    cluster = NODE.replicate(2, Fabric(shape, ("gpu0", "gpu1"), "net", GB, **options))
    assert set(cluster.symmetries) == expected
    assert all(is_automorphism(cluster, permutation) for permutation in cluster.symmetries)


def test_more_than_two_nodes_wired_directly_have_none() -> None:
    assert NODE.replicate(3, Fabric("direct", ("gpu0", "gpu1"), "net", GB)).symmetries == ()
