"""Few steps: the points that SCCL published for the DGX-1, closed forms on chains, and refusals that are proofs."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from proved_gaps import proved
from strategies import topologies

from blinksim.algorithms import few_steps
from blinksim.algorithms.few_steps import Question, find, spread
from blinksim.algorithms.registry import REGISTRY
from blinksim.answers.verify import verify
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import load
from blinksim.packing.columns import find_hops
from blinksim.schedule.loads import resources
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

DGX1V = load("dgx1-v100").select()
GB = 10**9


def chain(ranks: int) -> Topology:
    return load(f"line:{ranks}@10GB/s").select()


def check(schedule: Schedule, rounds: tuple[int, ...], attained: bool) -> None:
    """Right by verification, within the lanes of every step's rounds, and no better than the bounds."""
    schedule = proved(schedule)
    verdict = verify(schedule)
    assert verdict.reasons == ()
    assert verdict.facts.gap is not None
    hops = find_hops(schedule.topology)
    assert schedule.steps == len(rounds) >= few_steps.fewest_steps(hops, schedule.collective)
    lane = hops.lane
    (chunk,) = {*schedule.share_num.tolist()}
    rate, bound = lane * schedule.share_den / chunk / sum(rounds), GB * Fraction(schedule.bound["rate_exact"])
    assert rate <= bound
    assert attained == (rate == bound)
    shared = resources(schedule.topology)
    used = [shared.members[start:end].tolist() for start, end in pairwise(shared.starts.tolist())]
    carried = Counter(
        (step, resource)
        for step, route in zip(schedule.step.tolist(), schedule.route.tolist(), strict=True)
        for link in schedule.links_of(route)
        for resource in used[link]
    )
    assert all(number <= shared.rate[r] / lane * rounds[step] for (step, r), number in carried.items())


@pytest.mark.parametrize("point", [(1, 2, 2), (2, 2, 3), (3, 3, 4), (4, 4, 5), (6, 3, 7)])
def test_allgather_on_a_dgx1(point: tuple[int, int, int]) -> None:
    """Points of SCCL's table for the DGX-1; the last one is the cut bound, 7/6 rounds a chunk."""
    chunks, steps, rounds = point
    gather = Collective("allgather")
    found, per_step, attained = find(DGX1V, gather, chunks=chunks, steps=steps, rounds=rounds)
    check(found, per_step, attained)
    assert (found.chunks, len(per_step), sum(per_step)) == (8 * chunks, steps, rounds)
    assert attained == (Fraction(rounds, chunks) == Fraction(7, 6))
    if rounds > steps:
        with pytest.raises(InfeasibleError, match=r"no schedule has|by its bound"):
            find(DGX1V, gather, chunks=chunks, steps=steps, rounds=rounds - 1)


@pytest.mark.parametrize("point", [(2, 2, 2), (6, 3, 3), (12, 4, 4)])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_broadcast_on_a_dgx1(collective: str, point: tuple[int, int, int]) -> None:
    chunks, steps, rounds = point
    check(*find(DGX1V, Collective(collective), chunks=chunks, steps=steps, rounds=rounds))


@pytest.mark.parametrize(("point", "optimal"), [((8, 3, 3), False), ((8, 2, 3), False), ((24, 8, 8), True)])
def test_alltoall_on_a_dgx1(point: tuple[int, int, int], optimal: bool) -> None:
    """The last point is the bound, 3/8 of a lane for every pair; SCCL's solver gave no answer to it in 200 s."""
    chunks, steps, rounds = point
    found = find(DGX1V, Collective("alltoall"), chunks=chunks, steps=steps, rounds=rounds)
    check(*found)
    assert found[2] == optimal


@pytest.mark.slow
def test_reducing_collectives_are_the_others_backwards() -> None:
    scattered = find(DGX1V, Collective("reducescatter"), chunks=6, steps=3, rounds=7)
    check(*scattered)
    assert scattered[2]
    both, rounds, attained = find(DGX1V, Collective("allreduce"), chunks=6, steps=6, rounds=14)
    check(both, rounds, attained)
    # The allreduce bound of the whole DGX-1V is that of its two phases: 24/7 lanes of 25 GB/s.
    assert attained
    assert Fraction(proved(both).bound["rate_exact"]) == Fraction(24, 7) * 25
    assert both.chunks == 48


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("machine", ["dgx1-v100", "dgx-a100", "ring:5"])
def test_the_default_has_the_fewest_steps(name: str, machine: str) -> None:
    topology = load(machine).select()
    root = 2 if Collective(name).rooted else 0
    found, rounds, attained = find(topology, Collective(name, root))
    check(found, rounds, attained)
    diameter = {"dgx1-v100": 2, "dgx-a100": 1, "ring:5": 2}[machine]
    assert few_steps.fewest_steps(find_hops(topology), Collective(name, root)) == diameter
    assert found.steps == diameter * (2 if name == "allreduce" else 1)
    assert REGISTRY["few_steps"].solver


@pytest.mark.parametrize(("chunks", "steps"), [(1, 2), (4, 2), (4, 3), (4, 4), (4, 5), (5, 3), (6, 4)])
def test_pipelining_on_a_chain(chunks: int, steps: int) -> None:
    """Over two hops in S steps, S - 1 equal batches are best: C rounds, and those of one batch more."""
    found = find(chain(3), Collective("broadcast"), chunks=chunks, steps=steps)
    check(*found)
    assert sum(found[1]) == max(steps, chunks + -(-chunks // (steps - 1)))


def test_on_a_ring_both_ways_share_the_work() -> None:
    """A ring of 5: each GPU receives 4 chunks over two links, half of them straight from the neighbours."""
    found = find(load("ring:5@10GB/s").select(), Collective("allgather"), chunks=1, steps=2, rounds=2)
    check(*found)
    assert found[2]


@settings(max_examples=15)
@given(topologies(max_devices=5))
def test_random_machines(topology: Topology) -> None:
    for name in ("allgather", "reducescatter", "broadcast", "alltoall", "gather"):
        root = topology.ranks - 1 if Collective(name).rooted else 0
        check(*find(topology, Collective(name, root), time_limit=5))


def test_the_same_seed_gives_the_same_schedule() -> None:
    one, two = (find(DGX1V, Collective("allgather"), chunks=2, seed=3)[0] for _ in range(2))
    assert (one.chunk == two.chunk).all()
    assert (one.src == two.src).all()
    assert (one.step == two.step).all()


def test_refusals_say_whether_they_are_proofs() -> None:
    gather = Collective("allgather")
    with pytest.raises(InfeasibleError, match="needs at least 2 steps, not 1"):
        find(DGX1V, gather, steps=1)
    with pytest.raises(InfeasibleError, match="needs at least 7 rounds, not 6, by its bound"):
        find(DGX1V, gather, chunks=6, steps=3, rounds=6)
    with pytest.raises(InfeasibleError, match="no schedule has 2 steps and 7 rounds"):
        find(DGX1V, gather, chunks=6, steps=2, rounds=7)
    with pytest.raises(InfeasibleError, match=r"found none of 3 steps and 7 rounds in 1e-06 s"):
        find(DGX1V, gather, chunks=6, steps=3, rounds=7, time_limit=1e-6)
    with pytest.raises(InputError, match="a multiple of 8"):
        find(DGX1V, Collective("alltoall"), chunks=3)
    with pytest.raises(InputError, match="0 steps: give 1 or more"):
        find(DGX1V, gather, steps=0)
    with pytest.raises(InputError, match="every step has at least one round"):
        find(DGX1V, gather, steps=3, rounds=2)
    with pytest.raises(InfeasibleError, match="it is for small machines"):
        find(load("dgx-a100", nodes=8).select(), gather, chunks=8, steps=6)


def test_fewer_rounds_than_the_bound_are_not_claimed() -> None:
    """Without a bound to start from, the search itself proves that 2 chunks in 2 steps need 3 rounds."""
    hops = find_hops(DGX1V)
    origins = [vertex for vertex in hops.vertices for _ in range(2)]
    answer = spread(Question(hops, 2, None, 1, 30.0), origins)
    assert sum(answer.rounds) == answer.least_rounds == 3
    assert answer.proved
    assert few_steps.fewest_steps(hops, Collective("allgather")) == 2
