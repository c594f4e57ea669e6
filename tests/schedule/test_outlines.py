"""Outlines of schedules: they take the time, and have the loads and the sends, of the schedules themselves."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from itertools import product

import pytest

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InfeasibleError
from blinksim.schedule import loads
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import Outline
from blinksim.timing.alpha_beta import cost
from blinksim.topology import symmetry

OUTLINED = [entry.name for entry in REGISTRY.values() if entry.outlined]


def leaves(nodes: int) -> bs.Topology:
    node = bs.load("dgx-a100")
    assert node.fabric is not None
    fabric = replace(node.fabric, shape="tree", planes=1, leaf_nodes=2, oversubscription=Fraction(2))
    return node.replicate(nodes, fabric).select()


PARTS = {
    "rails": bs.load("hgx-h100", nodes=4).select(),
    "an odd number of nodes": bs.load("dgx-a100", nodes=3).select(),
    "leaves": leaves(4),
    "a leaf that is not full": leaves(3),
    "one slow port": bs.load("hgx-h100", nodes=4, edits=["degrade n2.nic3-fabric3 bandwidth=20GB/s"]).select(),
    "two nodes without a port": bs.load("hgx-h100", nodes=4, edits=["without n0.nic0", "without n2.nic3"]).select(),
    "a torus": bs.load("torus:4x4").select(),
    "buses": bs.load("l40s-pcie").select(),
    "cards": bs.load("aurora").select(),
    "cubes": bs.load("dgx1-v100").select(),
    "four adapters a GPU": bs.load("p5", nodes=3).select(),
    "adapters of a host": bs.load("aurora", nodes=2).select(),
    "two adapters in sight": bs.load("nd-a100-v4", nodes=2).select(),
    "messages that do not divide": bs.load("p5", nodes=2).select(
        ["n0.gpu0", "n0.gpu3", "n0.gpu4", "n1.gpu0", "n1.gpu2", "n1.gpu7"]
    ),
}


@pytest.mark.parametrize("by_symmetry", [False, True])
@pytest.mark.parametrize("machine", PARTS)
def test_it_takes_the_time_of_the_schedule(machine: str, by_symmetry: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On links that cost their senders time for every message, and ranks that take time to reduce."""
    part = PARTS[machine]
    if by_symmetry:
        monkeypatch.setattr(symmetry, "_MANY_PAIRS", 0)
        monkeypatch.setattr(loads, "MOST_PAIRS", 0)
    seen = 0
    for name in OUTLINED:
        module = import_module(f"blinksim.algorithms.{name}")
        for collective in map(Collective, REGISTRY[name].collectives):
            if collective.traffic is not None or (by_symmetry and name in ("direct", "two_shot") and _told_apart(part)):
                continue
            try:
                full = Candidate.of(REGISTRY[name].parallel(part, collective).compact)
            except BlinksimError as refused:
                with pytest.raises(type(refused), match=name):
                    module.rounds(part, collective)
                continue
            outline = Outline(part, collective, name, module.rounds(part, collective))
            assert (outline.steps, outline.sends, outline.rate) == (full.compact.steps, full.compact.sends, full.rate)
            written = full.written
            # As it is, and with each message on one route if any is divided.
            forms = [*zip([outline, *outline.undivided], [written, *written.on_fewer_routes], strict=False)]
            for (timed, given), (size, gamma) in product(forms, ((2**10, 0.0), (2**30, 1e-12))):
                brief, long = cost(timed.step_loads, size, gamma), cost(given, size, gamma)
                assert [term.name for term in brief.terms] == [term.name for term in long.terms]
                assert [term.time_s for term in brief.terms] == pytest.approx(
                    [term.time_s for term in long.terms], rel=1e-11, abs=1e-18
                )
                assert (brief.bottleneck, brief.steps, brief.pieces) == (long.bottleneck, long.steps, long.pieces)
                assert brief.busy == pytest.approx(long.busy, rel=1e-12)
            seen += 1
    assert seen >= 3


def test_small_messages_of_very_many_go_on_one_route_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a few: each of the eight adapters of a node would cost a start, 244 us on 64 nodes in all."""
    name = "hierarchical_multiplying"
    few, many = (bs.load("aurora", nodes=nodes) for nodes in (16, 64))
    took = [bs.project(machine, "allreduce", "4KiB", algorithm=name, model="alpha-beta") for machine in (few, many)]
    assert took[1].time_s < 1.5 * took[0].time_s
    monkeypatch.setattr(loads, "MANY_SENDS", 0)
    divided = REGISTRY[name].parallel(bs.load("aurora", nodes=6).select(), Collective("allreduce"))
    (whole,) = divided.on_fewer_routes
    assert isinstance(whole.timed, Outline)
    assert whole.schedule.sends < divided.schedule.sends
    assert bs.verify(whole.schedule)
    assert bs.simulate(whole.schedule, "4KiB").time_s == pytest.approx(cost(whole, 4096).time_s, rel=0.05)


def _told_apart(part: bs.Topology) -> bool:
    """Whether every pair of ranks would have to be looked at."""
    try:
        loads.uses_of_every_pair(part)
    except InfeasibleError:
        return True
    return False


def test_large_schedules_are_timed_by_their_outlines_and_written_when_asked_for() -> None:
    part, collective = bs.load("hgx-h100", nodes=16).select(), Collective("allgather")
    found = REGISTRY["direct"].parallel(bs.load("hgx-h100", nodes=2).select(), collective)
    assert not isinstance(found.timed, Outline)
    large = REGISTRY["hierarchical"].parallel(bs.load("hgx-h100", nodes=48).select(), collective)
    assert isinstance(large.timed, Outline)
    assert large.rate is not None
    ring = REGISTRY["ring"].parallel(part, collective)
    assert isinstance(ring.timed, Outline)
    assert bs.verify(ring.schedule)
    assert cost(ring, 2**20).time_s == pytest.approx(cost(Candidate(ring.schedule), 2**20).time_s, rel=1e-9)


def test_a_ring_of_hundreds_takes_what_its_formula_says() -> None:
    """n - 1 steps of one latency and one shard each (Patarasu and Yuan 2009), of 512 ranks on one switch."""
    part = bs.load("switch:512@25GB/s").select()
    found = REGISTRY["ring"].parallel(part, Collective("reducescatter"))
    alpha = sum(link.latency for link in part.links[:1]) * 2
    overhead = part.links[0].overhead
    expected = 511 * (alpha + overhead + 2**30 / 512 / 25e9)
    assert isinstance(found.timed, Outline)
    assert cost(found.timed.step_loads, 2**30, whole_messages=True).time_s == pytest.approx(expected, rel=1e-9)
    assert expected - 511 * alpha < cost(found, 2**30).time_s <= expected


@pytest.mark.parametrize("machine", ["p5", "aurora", "nd-a100-v4"])
def test_messages_between_every_pair_go_whole_as_the_event_simulation_has_them(machine: str) -> None:
    """Parts over all adapters of a GPU would cost a start each: 101 us on 4 x p5, where whole messages take 36.4."""
    found = REGISTRY["direct"].parallel(bs.load(machine, nodes=4).select(), Collective("alltoall"))
    assert found.parallel is None
    assert bs.verify(found.schedule)
    assert cost(found, 2**16).time_s == pytest.approx(bs.simulate(found.schedule, 2**16, pieces=1).time_s, rel=0.05)


@pytest.mark.parametrize(("machine", "few", "many"), [("p5", 44, 48), ("aurora", 24, 32)])
def test_more_ranks_cost_their_messages_and_no_more(machine: str, few: int, many: int) -> None:
    """Whether its sends are written out or not, a direct alltoall of small blocks grows with the number of ranks."""
    times = [
        bs.rank(bs.load(machine, nodes=n), "alltoall", "64KiB", algorithms="direct").best.time_s for n in (few, many)
    ]
    assert 1 < times[1] / times[0] < many / few
