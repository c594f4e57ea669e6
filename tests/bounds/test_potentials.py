"""What the theorem on potentials says messages bring, against messages that are sent at random until all have all."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from blinksim.bounds.time.delays import SECOND, delays
from blinksim.bounds.time.link_prices import Potentials
from blinksim.collective import Collective
from blinksim.topology.graph import Device, Link, Topology

SIZES = (10**3, 10**5, 10**6)


def machine(rng: random.Random, ranks: int) -> Topology:
    """A ring of links, and some more; each with delays of its own, or all with the same."""
    names = [f"gpu{rank}" for rank in range(ranks)]
    joined = {(rank, (rank + 1) % ranks) for rank in range(ranks)} | {
        (rng.randrange(ranks), rng.randrange(ranks)) for _ in range(ranks)
    }
    pairs = sorted({pair for a, b in joined if a != b for pair in ((a, b), (b, a))})
    link = Link("gpu0", "gpu1", "link", Fraction(25 * 10**9), 1, 6e-7, 1.3e-6)
    links = [replace(link, src=names[a], dst=names[b]) for a, b in pairs]
    if rng.random() < 0.6:
        links = [
            replace(
                one,
                lane_bandwidth=Fraction(rng.choice((10, 25, 50, 100)) * 10**9),
                latency=rng.randint(0, 20) * 1e-7,
                overhead=rng.randint(1, 20) * 1e-7,
            )
            for one in links
        ]
    devices = tuple(Device(name, "gpu") for name in names)
    return Topology("random", devices, tuple(links), collective_links=("link",)).selected()


def finished(rng: random.Random, part: Topology, name: str, size: int) -> float:
    """When all ranks have all, if each message goes at random: over any route, with any parts of the data.

    What passes through a rank takes no time of the links there, so this is sooner than it can be.
    """
    n, parts = part.ranks, rng.choice((1, 1, 2, 4))
    links = [(part.members.index(link.src), part.members.index(link.dst), link) for link in part.links]
    starts = [0] if name == "broadcast" else range(n)
    # From when on a rank has what another one contributes to a part.
    known = {(rank, rank, one): 0.0 for rank in starts for one in range(parts)}
    free = [rng.choice((0.0, rng.random() * 1e-6)) for _ in links]
    while len(known) < n * len(starts) * parts:
        # The next message goes on one of the links that are free first.
        place = min(range(len(links)), key=lambda one: free[one] + rng.random() * 1e-6)
        sender, end, link = links[place]
        carried = [one for one in range(parts) if rng.random() < 0.8]
        start = free[place] + rng.choice((0.0, 0.0, rng.random() * 1e-6))
        data = size / parts * len(carried)
        if name == "allgather":
            data = (
                size / parts / n * sum(known.get((sender, own, one), 1.0) <= start for own in starts for one in carried)
            )
        busy = link.overhead + data / float(link.bandwidth)
        free[place], arrives, seen = start + busy, start + busy + link.latency, {sender, end}
        while rng.random() < 0.3 and (on := [entry for entry in links if entry[0] == end and entry[1] not in seen]):
            _, end, further = rng.choice(on)
            arrives += further.latency
            seen.add(end)
        for own in starts:
            for one in carried:
                if known.get((sender, own, one), 1.0) <= start:
                    known[end, own, one] = min(arrives, known.get((end, own, one), 1.0))
    return max(known.values())


CASES = st.integers(3, 6), st.sampled_from(("broadcast", "allreduce", "allgather")), st.integers(0, 2**32)


@settings(max_examples=12)
@given(*CASES)
def test_no_messages_end_sooner(ranks: int, name: str, seed: int) -> None:
    check(ranks, name, seed)


@pytest.mark.slow
@settings(max_examples=300)
@given(*CASES)
def test_no_messages_of_many_end_sooner(ranks: int, name: str, seed: int) -> None:
    check(ranks, name, seed)


def check(ranks: int, name: str, seed: int) -> None:
    rng = random.Random(seed)
    part, collective, size = machine(rng, ranks), Collective(name), rng.choice(SIZES)
    ends = [finished(rng, part, name, size) for _ in range(4)]
    for place in Potentials.places(delays(part, collective)):
        theorem = Potentials.stated(part, collective, size, place)
        for steps in (7, 32):
            for time in ends:
                rises = [rng.uniform(-0.5, 1.1) for _ in range(3)]
                choice = [bound for begin in rises for bound in (begin, begin + rng.uniform(0.001, 0.8))]
                choice += [rng.choice((0.01, 1.0, 3.0)) for _ in range(3)]
                (brought,) = theorem.brings(int(time * SECOND) + 1, [tuple(choice)], steps)
                assert brought >= theorem.needed(0) * (1 - 1e-9), (place, choice)
