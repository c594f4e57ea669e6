"""Which relays trees span: those that branch; sets are tried until one attains the bound, and one may fail."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from random import Random

import numpy as np
import pytest

from blinksim.algorithms.packed import _Builder, build
from blinksim.bounds import bound
from blinksim.budget import Watch
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.network import network
from blinksim.graphs.programs import shared_capacities, solve_trees
from blinksim.machines import load
from blinksim.schedule.loads import rate as loaded_rate
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.selection import branching_relays, capable_relays

GB = 10**9

Answers = dict[tuple[int, ...], Fraction]


def tried(answers: Answers) -> tuple[list[tuple[int, ...]], tuple[Fraction, str]]:
    """The sets asked for, in order, and the answer; a set without a rate holds no trees."""
    part = load("dgx1-v100").select(["gpu0", "gpu1"], relays="idle", relays_reduce=True)
    collective = Collective("allreduce")
    builder = _Builder(part, collective, bound(part, collective), None, 0, Watch(None, None))
    assert len(builder.vertex_sets) == 2
    builder.vertex_sets = list(answers)
    asked: list[tuple[int, ...]] = []

    def packed(spanned: tuple[int, ...]) -> tuple[Fraction, str]:
        asked.append(spanned)
        if not answers[spanned]:
            raise InfeasibleError("the links do not reach every member")
        return answers[spanned] * builder.bound.rate, f"trees of {len(spanned)}"

    return asked, builder._spanning_best(packed)


HALF, WHOLE, NONE = Fraction(1, 2), Fraction(1), Fraction(0)


def test_the_first_that_attains_the_bound_ends_the_search() -> None:
    asked, (_, trees) = tried({(0, 1): WHOLE, (0, 1, 2): WHOLE})
    assert asked == [(0, 1)]
    assert trees == "trees of 2"


def test_the_best_is_taken() -> None:
    assert tried({(0, 1): HALF, (0, 1, 2): WHOLE})[1][1] == "trees of 3"
    assert tried({(0, 1): HALF, (0, 1, 2): HALF})[1][1] == "trees of 2"


def test_a_set_on_which_nothing_fits() -> None:
    assert tried({(0, 1): HALF, (0, 1, 2): NONE})[1][1] == "trees of 2"
    assert tried({(0, 1): NONE, (0, 1, 2): HALF})[1][1] == "trees of 3"
    with pytest.raises(InfeasibleError, match="do not reach"):
        tried({(0, 1): NONE, (0, 1, 2): NONE})


def half_duplex(pairs: list[tuple[str, str]], width: int = GB) -> Topology:
    names = dict.fromkeys(name for pair in pairs for name in pair)
    links = [
        Link(src, dst, "link", Fraction(width), 1, 1e-6, bus=f"{a}-{b}")
        for a, b in pairs
        for src, dst in ((a, b), (b, a))
    ]
    return Topology("wheel", tuple(Device(name, "gpu") for name in names), tuple(links), collective_links=("link",))


# Each of three GPUs has two ways of two half-duplex links to a hub.
WHEEL = half_duplex([pair for a in "abc" for way in "12" for pair in ((a, f"{a}{way}"), (f"{a}{way}", "hub"))])


@pytest.mark.parametrize(("name", "rate"), [("reducescatter", 2), ("allgather", 2), ("broadcast", 2), ("allreduce", 1)])
def test_only_relays_that_branch_are_spanned(name: str, rate: int) -> None:
    """Trees that meet in the hub use one way of each GPU. Without it they go through a GPU (3/2), with all relays they
    lead into both ways (4/3)."""
    part = WHEEL.select(["a", "b", "c"], relays="idle", relays_reduce=True)
    assert branching_relays(part) == ["hub"]
    schedule = build(part, Collective(name))
    assert schedule.bound["gap_exact"] == "0"
    assert loaded_rate(schedule) == rate * GB
    assert verify(schedule).reasons == ()


def test_relays_that_do_not_branch_are_of_no_use() -> None:
    """On random machines, by the best trees for every set of relays."""
    dropped = 0
    for seed in range(6):
        random = Random(seed)
        names = [f"gpu{i}" for i in range(8)]
        pairs = {(names[random.randrange(i)], names[i]) for i in range(1, 8)}
        pairs |= {(a, b) for a, b in (sorted(random.sample(names, 2)) for _ in range(3)) if (b, a) not in pairs}
        part = half_duplex(sorted(pairs)).select(random.sample(names, 4), relays="idle", relays_reduce=True)
        net = network(part)
        branching, capable = branching_relays(part), capable_relays(part)
        rates = {}
        weights = dict.fromkeys(net.members.tolist(), 1)
        shared = shared_capacities(part, net)
        for count in range(len(capable) + 1):
            for relays in combinations(capable, count):
                members = [part.index[name] for name in (*part.members, *relays)]
                spanned = replace(net, members=np.array(members, dtype=np.int64))
                rates[relays] = solve_trees(spanned, shared, weights).value
        dropped += len(capable) - len(branching)
        for relays, rate in rates.items():
            kept = tuple(name for name in relays if name in branching)
            assert rates[kept] >= rate - 1e-6
    assert dropped > 5
