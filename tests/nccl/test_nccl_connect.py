"""Rings and trees over all ranks against NCCL's own."""

from __future__ import annotations

from typing import Any

import pytest
from nccl_cases import VERSIONS, answer, cases, given

from blinksim.nccl.search.connect import Connected, connect


def connected(case: dict[str, Any], version: str) -> Connected:
    prediction = given(case, version)
    job = prediction.job
    return connect(prediction.ring, prediction.tree, job.nnodes, job.sm, case["gpus"])


@pytest.mark.parametrize("version", VERSIONS)
def test_rings_and_trees_are_nccls(version: str) -> None:
    """Built from the reference's channels, so that this looks at the connection alone."""
    ranks = 0
    for case in cases():
        expected = answer(case, version)["connect"]
        found = connected(case, version)
        assert found.nchannels == expected["nchannels"], case["id"]
        half = len(expected["rings"])
        assert [list(ring) for ring in found.rings] == expected["rings"] * (found.nchannels // half), case["id"]
        mine = [
            [[parent, *below] for parent, below in zip(parents, children, strict=True)]
            for parents, children in zip(found.parents, found.children, strict=True)
        ]
        assert mine == expected["trees"], case["id"]
        ranks += len(found.parents[0])
    assert ranks > 1500


def test_every_tree_reaches_every_rank() -> None:
    for case in cases():
        found = connected(case, VERSIONS[0])
        for parents, children in zip(found.parents, found.children, strict=True):
            assert parents.count(-1) == 1
            reached, waiting = 0, [parents.index(-1)]
            while waiting:
                reached += 1
                waiting += children[waiting.pop()]
            assert reached == len(parents), case["id"]
