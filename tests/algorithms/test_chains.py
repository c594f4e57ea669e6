"""Chains against the partition bound on every class of DGX-1 subsets, against brute force, and on other machines."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise, permutations

import independent_check
import numpy as np
import pytest
import strategies
from dgx1_subsets import connected, part
from hypothesis import given, settings
from proved_gaps import gap

from blinksim.algorithms import chains
from blinksim.algorithms.building.plan import by_rail, zigzags
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import load
from blinksim.schedule.loads import rate, trees_of
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Device, Link, Topology

ALLREDUCE = Collective("allreduce")
GB = 10**9
# Classes of a DGX-1V whose best chains in 16 channels stay below the bound, with rate / bound.
BELOW = {
    "0-1-2-5": Fraction(1, 2),
    "0-1-2-4-5": Fraction(8, 9),
    "0-1-2-4-5-7": Fraction(5, 6),
    "0-1-2-3-4-5-6-7": Fraction(35, 36),
}


@pytest.fixture(scope="module")
def packed() -> list[tuple[str, str, int, Fraction, Fraction, int]]:
    """(machine, GPUs, subsets like this, lanes, published bound, channels), all verified."""
    rows = []
    for subset in connected():
        schedule = chains.build(subset.topology(), ALLREDUCE)
        verdict = verify(schedule)
        assert verdict.ok, (str(subset), verdict)
        assert independent_check.check(schedule) == []
        lanes = independent_check.rate(schedule) / subset.lane
        rows.append(
            (subset.machine, subset.gpus, subset.size, lanes, subset.value("allreduce_tree_bound"), schedule.chunks)
        )
    return rows


@pytest.mark.slow
def test_sixteen_channels_reach_the_partition_bound_on_nearly_all_subsets(
    packed: list[tuple[str, str, int, Fraction, Fraction, int]],
) -> None:
    reached, all_of_them = Counter[str](), Counter[str]()
    for machine, gpus, alike, lanes, best, channels in packed:
        assert channels <= 16
        all_of_them[machine] += alike
        reached[machine] += alike * (lanes == best)
        below = BELOW.get(gpus, Fraction(1)) if machine == "DGX-1V" else Fraction(1)
        assert lanes == best * below, (machine, gpus)
    assert reached == {"DGX-1P": 197, "DGX-1V": 186}
    assert all_of_them == {"DGX-1P": 197, "DGX-1V": 197}


@pytest.mark.slow
def test_channels_of_known_subsets(packed: list[tuple[str, str, int, Fraction, Fraction, int]]) -> None:
    channels = {(machine, gpus): count for machine, gpus, _, _, _, count in packed}
    assert channels["DGX-1P", "0-1-2-3-4-5-6-7"] == 16
    assert channels["DGX-1V", "0-1"] == channels["DGX-1V", "0-3"] == 1
    # A triangle at 3/2 lanes: three chains, each pair in two of them.
    assert channels["DGX-1P", "0-1-2"] == 3
    for machine, gpus, _, lanes, _, count in packed:
        # With one lane a link, the fullest carries m chains and the rate is count/m: m must be a whole number.
        if machine == "DGX-1P":
            assert (count / lanes).denominator == 1, gpus


@pytest.mark.slow
def test_the_whole_dgx1v_needs_24_channels() -> None:
    topology = part("DGX-1V", "0-1-2-3-4-5-6-7")
    schedule = chains.build(topology, ALLREDUCE, channels=24)
    assert rate(schedule) == Fraction(24, 7) * 25 * GB == bound(topology, ALLREDUCE).rate
    assert schedule.chunks == 24
    assert gap(schedule) == "0"
    assert gap(chains.build(topology, ALLREDUCE, channels=16)) == "1/36"


def test_chains_can_be_read_back_with_their_root_first() -> None:
    schedule = chains.build(part("DGX-1V", "0-1-2-3"), ALLREDUCE)
    devices = schedule.topology.devices
    listed = [[devices[v].name for v in (tree.root, *(b for _, b, _ in tree.down))] for tree in trees_of(schedule)]
    assert schedule.channel.max() + 1 == schedule.chunks == len(listed) == 3
    load = Counter[frozenset[str]]()
    for channel, names in enumerate(listed):
        assert sorted(names) == ["gpu0", "gpu1", "gpu2", "gpu3"]
        load.update(map(frozenset, pairwise(names)))
        # Nobody but element 0 ends with everything before the way down begins.
        into_first = (schedule.channel == channel) & (schedule.op == 1)
        last = int(np.flatnonzero(into_first)[-1])
        assert schedule.topology.devices[schedule.dst[last]].name == names[0]
    lanes = {frozenset((x.src, x.dst)): x.lanes for x in schedule.topology.links}
    assert all(load[pair] <= lanes[pair] for pair in load)
    assert set(schedule.share_num.tolist()) == {1}


def test_the_same_answer_every_time() -> None:
    topology = part("DGX-1V", "0-1-2-3-4-7")
    first, second = (trees_of(chains.build(topology, ALLREDUCE)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("ranks", range(2, 10))
def test_zigzags_use_every_pair_and_every_end_equally_often(ranks: int) -> None:
    paths = zigzags(ranks)
    assert all(sorted(path) == list(range(ranks)) for path in paths)
    pairs = Counter(frozenset(pair) for path in paths for pair in pairwise(path))
    ends = Counter(end for path in paths for end in (path[0], path[-1]))
    assert len(pairs) == ranks * (ranks - 1) // 2
    assert len(set(pairs.values())) == 1
    assert len(ends) == ranks
    assert len(set(ends.values())) == 1


@pytest.mark.parametrize(("name", "channels"), [("dgx-a100", 4), ("hgx-h200", 4), ("k2200-ntb", 1)])
def test_behind_one_switch_balanced_ends_reach_the_bound(name: str, channels: int) -> None:
    """A chain's inner GPUs send twice, its ends once: n/2 zigzags even that out, b n / (2 (n-1))."""
    topology = load(name).select()
    schedule = chains.build(topology, ALLREDUCE)
    assert gap(schedule) == "0"
    assert schedule.chunks == channels
    if topology.ranks == 8:
        port = topology.links[topology.out_links[0][0]].bandwidth
        assert rate(schedule) == port * Fraction(8, 14)


@pytest.mark.parametrize(("nodes", "channels"), [(4, 16), (8, 32)])
def test_chains_over_boxes_on_rails_reach_the_bound(nodes: int, channels: int) -> None:
    """Zigzags over the nodes, on every rail: all nodes are ends equally often, 200 GB/s n / (2 (n-1))."""
    schedule = chains.build(load("dgx-a100", nodes=nodes).select(), ALLREDUCE, channels=channels)
    assert verify(schedule).ok
    assert rate(schedule) == Fraction(200 * GB * nodes, 2 * (nodes - 1))
    assert gap(schedule) == "0"
    assert schedule.chunks == channels


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(("nodes", "local"), [(2, 2), (2, 4), (3, 3), (3, 4), (4, 2), (5, 8)])
def test_orders_stay_on_rails(nodes: int, local: int, closed: bool) -> None:
    groups = [list(range(node * local, (node + 1) * local)) for node in range(nodes)]
    found = by_rail(groups, closed=closed)
    assert len(found) == local
    crossings = Counter[int]()
    for order in found:
        assert sorted(order) == list(range(nodes * local))
        steps = [*pairwise(order), *([(order[-1], order[0])] if closed else [])]
        across = [(a, b) for a, b in steps if a // local != b // local]
        assert len(across) == (nodes if closed else nodes - 1)
        assert all(a % local == b % local for a, b in across)
        crossings.update(a % local for a, _ in across)
    assert len(set(crossings.values())) == 1, "every rail is crossed equally often"


def test_what_cannot_be_is_refused() -> None:
    star = Topology(
        "star",
        tuple(Device(f"gpu{i}", "gpu") for i in range(4)),
        tuple(Link(f"gpu{a}", f"gpu{b}", "link", Fraction(GB)) for i in (1, 2, 3) for a, b in ((0, i), (i, 0))),
        collective_links=("link",),
    )
    with pytest.raises(InfeasibleError, match="no chain visits all 4 members"):
        chains.build(star, ALLREDUCE)
    with pytest.raises(InputError, match="0 channels: give 1 to 64"):
        chains.build(part("DGX-1V", "0-1"), ALLREDUCE, channels=0)
    with pytest.raises(InputError, match="needs two GPUs or more"):
        chains.build(part("DGX-1V", "0"), ALLREDUCE)


@settings(max_examples=15)
@given(strategies.topologies(max_devices=4, switches=False))
def test_no_other_chains_in_three_channels_are_better(topology: Topology) -> None:
    joined = {(link.src, link.dst) for link in topology.links}
    names = topology.members
    paths = [
        path
        for path in permutations(names)
        if path[0] < path[-1] and all({(a, b), (b, a)} <= joined for a, b in pairwise(path))
    ]
    if not paths:
        with pytest.raises(InfeasibleError):
            chains.build(topology, ALLREDUCE, channels=3)
        return
    choices = [chosen for count in (1, 2, 3) for chosen in combinations_with_replacement(paths, count)]
    best = max(_even_rate(topology, chosen) for chosen in choices)
    schedule = chains.build(topology, ALLREDUCE, channels=3)
    assert rate(schedule) == best
    assert schedule.chunks == min(len(chosen) for chosen in choices if _even_rate(topology, chosen) == best)
    assert verify(schedule).ok


def _even_rate(topology: Topology, chosen: tuple[tuple[str, ...], ...]) -> Fraction:
    load = Counter[str]()
    capacity = {}
    for link in topology.links:
        capacity[link.bus or link.name] = link.bandwidth
    for path in chosen:
        for a, b in pairwise(path):
            for x, y in ((a, b), (b, a)):
                (link,) = topology.links_between(x, y)
                load[link.bus or link.name] += 1
    return min(capacity[name] / times for name, times in load.items()) * len(chosen)
