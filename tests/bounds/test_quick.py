"""The bound from sums alone: never below the exact one, equal to it where the machine is regular, always certified."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from strategies import topologies

from blinksim import machines
from blinksim.bounds import bound
from blinksim.bounds.quick import quick_bound
from blinksim.collective import COLLECTIVES, Collective
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


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx1-p100", "hgx-h200", "mi250", "aurora"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_single_nodes_of_the_catalogue_get_the_exact_bound(name: str, collective: str) -> None:
    part = machines.load(name).select()
    assert quick_bound(part, Collective(collective)).rate == bound(part, Collective(collective)).rate
