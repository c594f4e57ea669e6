"""No schedule of any algorithm, simulated on a random machine, ends before a bound on its time: each theorem alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from strategies import clusters_with_nics, renamed, topologies

from blinksim.algorithms.registry import REGISTRY
from blinksim.answers.project import contest
from blinksim.bounds.compute import bound
from blinksim.bounds.lengths import Lengths
from blinksim.bounds.quick import quick_bound
from blinksim.bounds.time.certificates import TimeCertificate, Windows
from blinksim.bounds.time.delays import FAR, LONG, SECOND, delays
from blinksim.bounds.time.time_bound import all_times, best_time, least_time, time_certificate_from_dict
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import BlinksimError
from blinksim.schedule.model import abilities_used
from blinksim.timing.simulator import simulate
from blinksim.topology import shapes
from blinksim.topology.elements import BRANCHING, Device
from blinksim.topology.graph import Link, Topology

ROUNDING = 1 - 1e-9
DELAYS = st.integers(0, 40).map(lambda tenths: tenths * 1e-7)
SIZES = st.integers(10, 24).map(lambda power: 2**power)


@st.composite
def machines(draw: st.DrawFn, max_devices: int = 6, *, relays: bool = False) -> Topology:
    """Random machines whose links have latencies and overheads, the same for all or each its own."""
    return draw(with_delays(draw(topologies(max_devices=max_devices, relays=relays))))


@st.composite
def with_delays(draw: st.DrawFn, topology: Topology) -> Topology:
    alike = draw(st.booleans())
    latency, overhead = draw(DELAYS), draw(DELAYS)
    links = []
    for link in topology.links:
        if not alike:
            latency, overhead = draw(DELAYS), draw(DELAYS)
        links.append(replace(link, latency=latency, overhead=overhead))
    return topology.with_links(links)


def collectives(topology: Topology) -> st.SearchStrategy[Collective]:
    names = st.sampled_from(COLLECTIVES)
    return names.map(lambda name: Collective(name, topology.ranks - 1 if Collective(name).rooted else 0))


def theorems(topology: Topology, collective: Collective, size: int) -> tuple[TimeCertificate, ...]:
    """The latest time of each theorem, with the bound on the rate that is searched for with flows."""
    proofs = [entry.certificate for entry in bound(topology, collective).bounds]
    return all_times(topology, collective, size, proofs)


def check_simulated(topology: Topology, collective: Collective, size: int, *, searches: bool) -> None:
    part = topology.selected()
    found = theorems(part, collective, size)
    names = [name for name, entry in REGISTRY.items() if entry.supports(collective.name) and not entry.in_network]
    fields = [contest(part, collective).candidates]
    for name in names if searches else ():
        try:
            fields.append(contest(part, collective, [name]).candidates)
        except BlinksimError:
            continue
    for name, candidate in ((name, candidate) for field in fields for name, candidate in field.items()):
        if abilities_used(candidate.compact):
            continue
        for pieces in (None, 1, 3):
            time = simulate(candidate.schedule, size, pieces=pieces).time_s
            for certificate in found:
                assert time >= certificate.time / SECOND * ROUNDING, (name, pieces, certificate)


@settings(max_examples=12)
@given(st.data())
def test_quick_algorithms(data: st.DataObject) -> None:
    topology = data.draw(machines())
    check_simulated(topology, data.draw(collectives(topology)), data.draw(SIZES), searches=False)


@settings(max_examples=12)
@given(st.data())
def test_several_nodes(data: st.DataObject) -> None:
    """Messages inside two or three nodes, and over adapters between them."""
    topology = data.draw(with_delays(data.draw(clusters_with_nics())))
    check_simulated(topology, data.draw(collectives(topology)), data.draw(SIZES), searches=False)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.data())
def test_all_algorithms(data: st.DataObject) -> None:
    topology = data.draw(machines(relays=True))
    check_simulated(topology, data.draw(collectives(topology)), data.draw(SIZES), searches=True)


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"])
def test_switches_that_add_and_multicast(name: str) -> None:
    """With grants, of all schedules that let the switches of an HGX H200 do the work."""
    import blinksim as bs

    part, collective = bs.load("hgx-h200").selected(), Collective(name)
    able = tuple(ability for ability in BRANCHING if any(ability in device.in_network for device in part.devices))
    entries = [entry for entry in REGISTRY.values() if entry.in_network and entry.supports(name)]
    for entry in entries:
        try:
            candidate = entry.parallel(part, collective)
        except BlinksimError:
            continue
        for size in (2**12, 2**20, 2**26):
            least = least_time(part, collective, size, able)
            time = simulate(candidate.schedule, size).time_s
            assert time >= least.time / SECOND * ROUNDING, (entry.name, size, least)


@settings(max_examples=25)
@given(st.data())
def test_every_certificate_is_derived_again_from_its_json(data: st.DataObject) -> None:
    part = data.draw(machines(relays=True)).selected()
    collective, size = data.draw(collectives(part)), data.draw(SIZES)
    for certificate in theorems(part, collective, size):
        document = certificate.to_dict()
        assert time_certificate_from_dict(document, part, collective, size) == certificate
        assert certificate.check(part, collective, size) == []
        assert certificate.words(part)


@settings(max_examples=25)
@given(st.data())
def test_names_and_order_make_no_difference(data: st.DataObject) -> None:
    part = data.draw(machines()).selected()
    other, _ = data.draw(renamed(part))
    collective, size = data.draw(collectives(part)), data.draw(SIZES)
    proof, again = quick_bound(part, collective), quick_bound(other, collective)
    assume(proof.rate == again.rate)
    here, there = best_time(part, collective, size, [proof]), best_time(other, collective, size, [again])
    assert here.time == pytest.approx(there.time, rel=1e-9)


@settings(max_examples=25)
@given(st.data())
def test_never_below_the_time_by_the_rate_alone(data: st.DataObject) -> None:
    part = data.draw(machines()).selected()
    collective, size = data.draw(collectives(part)), data.draw(SIZES)
    assert (
        least_time(part, collective, size).time / SECOND >= size / float(quick_bound(part, collective).rate) * ROUNDING
    )


@settings(max_examples=25)
@given(st.data())
def test_what_is_proved_with_a_further_link_holds_without_it(data: st.DataObject) -> None:
    """A link more, or a lane more where all pairs have one: every schedule without it is one with it, too."""
    part = data.draw(machines(max_devices=5)).selected()
    names = [device.name for device in part.devices if device.kind == "gpu"]
    free = [(a, b) for a, b in permutations(names, 2) if not part.links_between(a, b)]
    links = list(part.links)
    if free:
        src, dst = data.draw(st.sampled_from(free))
        rate = Fraction(data.draw(st.integers(1, 20)) * 10**9)
        links.append(Link(src, dst, "link", rate, 1, data.draw(DELAYS), data.draw(DELAYS)))
    else:
        place = data.draw(st.sampled_from([place for place, link in enumerate(links) if link.bus is None] or [0]))
        links[place] = replace(links[place], lanes=links[place].lanes + 1)
    wider = part.with_links(links)
    collective, size = data.draw(collectives(part)), data.draw(SIZES)
    for certificate in theorems(wider, collective, size):
        assert without(certificate, part, collective, size) >= certificate.time, certificate


def test_a_lane_more_lets_no_theorem_claim_what_fails_without_it() -> None:
    """Two GPUs beside a switch: its narrow link is where a message is cheapest, as long as one fits on it."""
    devices = (Device("gpu0", "gpu"), Device("gpu1", "gpu"), Device("sw0", "switch"))
    links = [
        Link(a, b, "link", Fraction((1 if "sw0" in (a, b) else 3) * 10**9), 1 if "sw0" in (a, b) else 2, 0.0, overhead)
        for a, b in permutations([device.name for device in devices], 2)
        for overhead in [1e-7 if a == "gpu0" else 0.0]
    ]
    part = Topology("narrow", devices, tuple(links), collective_links=("link",)).selected()
    wider = part.with_links(replace(link, lanes=2) if link.key[:2] == ("gpu0", "sw0") else link for link in links)
    every = theorems(wider, Collective("alltoall"), 1024)
    assert "served-twice" in [certificate.kind for certificate in every]
    for certificate in every:
        assert without(certificate, part, Collective("alltoall"), 1024) >= certificate.time, certificate


def without(certificate: TimeCertificate, part: Topology, collective: Collective, size: int) -> int:
    """The time that the same witness proves on the machine without the link, 0 if none."""
    if not isinstance(certificate, Windows) or not isinstance(certificate.proof, Lengths):
        return certificate.again(part, collective, size).time
    known = {link.name for link in part.links}
    lengths = {name: length for name, length in certificate.proof.lengths if name in known}
    return Windows.of(part, collective, size, Lengths.of(part, collective, lengths), certificate.time).time


@pytest.mark.slow
@settings(max_examples=15)
@given(st.data())
def test_one_port_for_each_rank(data: st.DataObject) -> None:
    """Behind one switch, where messages wait for each other at the ports: every theorem against every algorithm."""
    ranks, latency, overhead = data.draw(st.integers(3, 8)), data.draw(DELAYS), data.draw(DELAYS)
    part = shapes.one_switch(ranks, bandwidth=Fraction(10**11), times=(latency, overhead)).selected()
    collective, size = data.draw(collectives(part)), data.draw(SIZES)
    check_simulated(part, collective, size, searches=False)
    schedule = REGISTRY["few_rounds"].build(part, collective, size=size)
    for service in ("fifo", "ordered"):
        time = simulate(schedule, size, service=service).time_s
        for certificate in theorems(part, collective, size):
            assert time >= certificate.time / SECOND * ROUNDING, certificate


@given(st.data())
@settings(max_examples=60)
def test_what_reaches_a_device_first_from_elsewhere_is_the_least_by_all_ways(data: st.DataObject) -> None:
    topology = data.draw(machines(max_devices=5, relays=True)).selected()
    facts = delays(topology, data.draw(collectives(topology)))
    every = range(len(topology.devices))
    latency = {pair: 0 if pair[0] == pair[1] else FAR for pair in product(every, every)}
    alpha = dict.fromkeys(latency, FAR)
    for link, ends in enumerate(zip(facts.src, facts.dst, strict=True)):
        latency[ends] = min(latency[ends], facts.latency[link])
        alpha[ends] = min(alpha[ends], facts.latency[link] + facts.overhead[link])

    def apart(passed: Iterable[int]) -> dict[tuple[int, int], int]:
        """The least latencies by ways over these devices (Floyd 1962)."""
        found = dict(latency)
        for middle, a, b in product(passed, every, every):
            found[a, b] = min(found[a, b], found[a, middle] + found[middle, b])
        return found

    onward, without = apart(every), {one: apart({*every} - {one}) for one in every}

    def sent(start: int, end: int, ways: dict[tuple[int, int], int]) -> int:
        """The overhead is paid once."""
        return min((alpha[start, first] + ways[first, end] for first in {*every} - {start}), default=FAR)

    for device in every:
        first = min((sent(owner, device, onward) for owner in facts.owners - {device}), default=FAR)
        assert facts.passing[device] == (None if first >= FAR else first)
    ways = facts.ways(facts.ranks)
    for (a, start), (b, end) in permutations(enumerate(facts.ranks), 2):
        assert ways[a, b] == min(sent(start, end, without[start]), LONG)
    sources = data.draw(st.sets(st.sampled_from(every), min_size=1))
    but, at = data.draw(st.sampled_from(every)), np.array(every)
    starts = np.array([*sources])
    out, back = (facts.from_others((0 * starts, starts, starts), at, at * 0 + but, back=way) for way in (False, True))
    towards = apart({*every} - sources)
    for device in every:
        near = sources & {device} if device in sources else sources
        assert out[device] == min(min((onward[one, device] for one in sources - {but}), default=FAR), FAR)
        assert back[device] == min(min((towards[device, one] for one in near - {but}), default=FAR), FAR)
