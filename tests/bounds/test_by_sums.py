"""Bounds among thousands of ranks, where no search is made: as tight as formulas say, and judged right by `verify`."""

from __future__ import annotations

import json
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import topologies

from blinksim import budget
from blinksim.answers.verify import verify_file
from blinksim.bounds.bound_result import NVLS_GRANTS, with_reduction
from blinksim.bounds.compute import best_known, bound, packed_phases
from blinksim.bounds.quick import _boundaries, bounds_by_sums, even_lengths, guessed_lengths, unit_lengths
from blinksim.bounds.sensitivity import level_bounds
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.machines import Question
from blinksim.topology.graph import Topology

ALLREDUCE = Collective("allreduce")
WIDE = ("replace ib bandwidth=500GB/s", "replace pcie bandwidth=500GB/s")


@settings(max_examples=12)
@given(topology=topologies(min_devices=2, max_devices=7))
def test_sums_are_never_below_what_a_search_finds(topology: Topology) -> None:
    part = topology.select()
    found, searched = bounds_by_sums(part, ALLREDUCE, packed_phases(part)), bound(part, ALLREDUCE)
    assert found.rate >= searched.rate
    if found.searched:
        assert found.headline.exact
        assert found.rate == searched.rate
    for entry in found.bounds:
        assert entry.check(part, ALLREDUCE) == []


@pytest.mark.parametrize(("nodes", "edits"), [(1, ()), (4, ()), (2, WIDE), (4, WIDE)])
def test_no_group_that_is_passed_over_is_tighter(nodes: int, edits: tuple[str, ...]) -> None:
    part, rates = Question("hgx-h200", nodes=nodes, edits=edits).part(collective=ALLREDUCE), list[Fraction]()
    for crossing in _boundaries(part, pairs=True):
        with suppress(InputError):
            rates.append(unit_lengths(part, ALLREDUCE, crossing, NVLS_GRANTS).rate)
    found = guessed_lengths(part, ALLREDUCE, NVLS_GRANTS)
    assert found is not None
    assert found.rate == min(rates)


@pytest.mark.slow
def test_the_port_of_a_gpu_limits_thousands_of_them() -> None:
    part = Question("hgx-h200", nodes=640, edits=WIDE).part(collective=ALLREDUCE)
    assert best_known(part, ALLREDUCE, ()).rate == Fraction(950 * 10**9 * 5120, 2 * 5119)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "nodes", "edits", "port", "attained"),
    [
        # A rank's port carries both the reduction and the result: 2(n-1)/n of the size each way (Thakur, Rabenseifner
        # and Gropp 2005, section 4.5). Its rate is the machine file's.
        ("gb200-nvl72", 72, (), 950, True),
        # NVLink and PCIe together, on a wide network.
        ("hgx-h200", 640, WIDE, 950, True),
    ],
)
def test_every_answer_names_the_port(
    machine: str, nodes: int, edits: tuple[str, ...], port: int, attained: bool
) -> None:
    part = Question(machine, nodes=nodes, edits=edits).part(collective=ALLREDUCE)
    ranks = part.ranks
    assert ranks > 5000
    found = bound(part, ALLREDUCE)
    assert found.rate == best_known(part, ALLREDUCE, ()).rate == Fraction(port * 10**9 * ranks, 2 * (ranks - 1))
    assert (found.searched, found.headline.exact) == (attained, attained)
    assert min(row.bound.rate for row in level_bounds(found)) == found.rate


@pytest.mark.parametrize(("machine", "nodes"), [("hgx-h100", 4), ("rails:2x2@300GB/s,150GB/s", 1)])
def test_what_bound_prints_without_a_search_is_right(
    machine: str, nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question(machine, nodes=nodes)
    part = question.part(collective=ALLREDUCE)
    # No machine is small enough for a search.
    monkeypatch.setattr(budget, "MOST_SECONDS", 1e-7)
    found = bound(part, ALLREDUCE)
    assert found == bounds_by_sums(part, ALLREDUCE, packed_phases(part))
    assert not found.searched
    file = tmp_path / "bound.json"
    document = {"command": "bound", **question.described(part), **found.to_dict()}
    file.write_text(json.dumps(document))
    verdict = verify_file(str(file))
    assert verdict.ok, verdict
    # A search that was not made cannot be claimed.
    file.write_text(json.dumps(document | {"searched": True}))
    assert verify_file(str(file)).reasons == ("searched is True, and must be False",)


@pytest.mark.parametrize("machine", ["hgx-h100", "gb200-nvl4", "rails:2x3@300GB/s,50GB/s"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
def test_switches_beside_members_make_no_difference_to_lengths_between_nodes(machine: str, collective: str) -> None:
    """The sums in arrays are those of trees among switches that may branch (`least_branching`)."""
    wanted = Collective(collective)
    nodes = 1 if ":" in machine else 2
    part = with_reduction(Question(machine, nodes=nodes).part(collective=wanted))
    node = part.device_nodes
    chosen = node[part.ends[0]] != node[part.ends[1]]
    found = even_lengths(part, wanted, chosen, NVLS_GRANTS)
    assert found is not None
    assert found.grants == NVLS_GRANTS
    assert found.check(part, wanted, found.rate) == []
    # A choice that cuts the switch off from all members: there it may make one.
    assert even_lengths(part, wanted, np.full(len(chosen), True), NVLS_GRANTS) is None
