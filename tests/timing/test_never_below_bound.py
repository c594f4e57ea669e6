"""No projection is quicker than the bound at the same rates: over nodes, ranks, rates, presets, and alpha-beta."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings, strategies as st
from strategies import topologies

from blinksim import machines
from blinksim.answers.project import contest
from blinksim.bounds.compute import bound
from blinksim.bounds.quick import quick_bound
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.results import total
from blinksim.timing import projection
from blinksim.topology.cluster import place
from blinksim.topology.graph import Topology

GB = 10**9
KINDS = ("mdfi", "xe", "pcie", "host-nic", "slingshot")
ALLREDUCE = Collective("allreduce")
AURORA = machines.load("aurora", rates="seed")
CHECKED = settings(max_examples=25)
RATE = st.integers(1, 400).map(lambda tenths: Fraction(tenths * GB, 2))


@cache
def joined(nodes: int, ranks: int) -> Topology:
    """So many nodes with so many tiles each, over all link classes of Aurora."""
    whole = AURORA.replicate(nodes) if nodes > 1 else AURORA
    return whole.select(place(whole, ranks), links=whole.link_classes)


def at_rates(topology: Topology, rates: dict[str, Fraction]) -> Topology:
    links = tuple(
        replace(link, lane_bandwidth=rates[link.kind]) if link.kind in rates else link for link in topology.links
    )
    fabric = topology.fabric
    if fabric is not None and fabric.kind in rates:
        fabric = replace(fabric, lane_bandwidth=rates[fabric.kind])
    return replace(topology, links=links, fabric=fabric)


def answered() -> list[tuple[str, int, int, str]]:
    """(preset, nodes, ranks on each, collective) of what the presets project; the others they refuse at any rates."""
    collectives = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
    found = []
    for case in product(projection.presets(), range(1, 6), (1, 2, 4, 6, 8, 12), collectives):
        name, nodes, ranks, collective = case
        try:
            projection.project(AURORA, nodes, ranks, 2 * GB, projection.load_preset(name), collective)
        except BlinksimError:
            continue
        found.append(case)
    return found


ANSWERED = answered()


def test_the_presets_answer_more_than_allreduce() -> None:
    """Each of the six answers for all but one rank alone, or needs two nodes; one of them knows five collectives."""
    assert {name for name, *_ in ANSWERED} == set(projection.presets())
    assert len(ANSWERED) == 9 * (5 * 6 - 1) + (4 * 6)


@CHECKED
@given(st.sampled_from(ANSWERED), st.fixed_dictionaries(dict.fromkeys(KINDS, RATE)))
def test_presets_at_any_rates(case: tuple[str, int, int, str], rates: dict[str, Fraction]) -> None:
    name, nodes, ranks, collective = case
    node = at_rates(AURORA, rates)
    size = 2 * GB
    terms = projection.project(node, nodes, ranks, size, projection.load_preset(name), collective)
    # What a reading leaves out or calls hidden is assumed not to be in the way: those links get all the room they want.
    named = {term.limit for term in terms}
    wide = {kind: rate if kind in named else Fraction(10**6 * GB) for kind, rate in rates.items()}
    machine = at_rates(joined(nodes, ranks), wide)
    best = quick_bound(machine, Collective(collective))
    assert total(terms) >= size / float(best.rate) * (1 - 1e-12), best.words(machine)


@pytest.mark.parametrize("name", projection.presets())
def test_presets_at_the_rates_that_they_pin(name: str) -> None:
    preset = projection.load_preset(name)
    seen = 0
    for nodes, ranks in product((1, 2, 3, 16), (1, 2, 4, 6, 8, 12)):
        try:
            time = total(projection.project(AURORA, nodes, ranks, 2 * GB, preset))
        except BlinksimError:
            continue
        seen += 1
        assert time >= 2 * GB / float(quick_bound(joined(nodes, ranks), ALLREDUCE).rate)
    assert seen >= 15


@CHECKED
@given(topologies(max_devices=6), st.sampled_from(["allreduce", "allgather", "broadcast"]), st.integers(1, 10**10))
def test_alpha_beta(topology: Topology, name: str, size: int) -> None:
    """Every algorithm that runs, against the bound that is searched for with flows."""
    collective = Collective(name)
    best = bound(topology, collective).rate
    for projected in contest(topology, collective).projections(size):
        assert projected.time_s >= size / float(best) * (1 - 1e-12), projected.algorithm
