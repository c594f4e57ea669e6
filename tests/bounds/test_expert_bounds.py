"""Floors of dispatch and combine: against all cuts by plain sets, a program of coded flows, and ways in the open."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import linprog
from small_routings import Tokens, all_routings, routing_of
from strategies import topologies

import blinksim as bs
from blinksim.bounds import compute
from blinksim.bounds.certificates import Cut
from blinksim.bounds.experts import A_NODE, A_RANK, Way
from blinksim.collective import COMBINE, DISPATCH
from blinksim.topology.graph import Topology

GB = 10**9


@st.composite
def tokens_of(draw: st.DrawFn, ranks: int) -> Tokens:
    wanted = st.frozensets(st.integers(0, ranks - 1), min_size=1)
    found = draw(st.lists(st.tuples(st.integers(0, ranks - 1), wanted), min_size=1, max_size=6))
    return [*found, (0, frozenset({1}))]


def crosses(name: str, source: int, wanted: frozenset[int], inside: set[int], ranks: int) -> bool:
    """True if a token, or a sum of what was made of it, must leave the ranks `inside`."""
    here, there = (inside, set(range(ranks)) - inside) if name == DISPATCH else (set(range(ranks)) - inside, inside)
    return source in here and bool(wanted & there)


def least_by_all_cuts(machine: Topology, name: str, tokens: Tokens, size: int) -> Fraction:
    """Seconds: the most of bytes that must leave a set of devices over what leaves it in a second, over all sets."""
    devices, worst = [device.name for device in machine.devices], Fraction(0)
    for count in range(1, len(devices)):
        for side in map(set, combinations(devices, count)):
            inside = {rank for rank, member in enumerate(machine.members) if member in side}
            must = sum(crosses(name, source, wanted, inside, machine.ranks) for source, wanted in tokens)
            carried = sum(link.bandwidth for link in machine.links if link.src in side and link.dst not in side)
            if must:
                worst = max(worst, Fraction(must * size) / carried)
    return worst


def plain(machine: Topology) -> bool:
    return all(link.bus is None for link in machine.links) and all(d.capacity is None for d in machine.devices)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_tightest_of_all_cuts(data: st.DataObject) -> None:
    machine = data.draw(topologies().filter(lambda one: len(one.devices) <= 8 and one.ranks >= 3 and plain(one)))
    tokens = data.draw(tokens_of(machine.ranks))
    routing = routing_of(machine.ranks, tokens)
    for name in (DISPATCH, COMBINE):
        wanted = bs.Collective(name, routing=routing)
        found = bs.bound(machine, wanted)
        [cut] = [entry for entry in found.bounds if isinstance(entry.certificate, Cut)]
        assert routing.size / cut.rate == least_by_all_cuts(machine, name, tokens, 100)
        # Trees of tokens may need more than any cut shows, and then lengths of links prove it.
        assert found.rate <= cut.rate
        assert [entry.check(machine, wanted) for entry in found.bounds] == [[] for _ in found.bounds]


def coded_flows(machine: Topology, tokens: Tokens) -> float:
    """Seconds per byte of the quickest dispatch if devices may code: a flow of each token for each rank."""
    links, kinds = machine.links, [(source, sorted(wanted - {source})) for source, wanted in tokens]
    flows = [(token, sink) for token, (_, sinks) in enumerate(kinds) for sink in sinks]

    # Variables: the time, what every token puts on every link, and every flow on every link.
    def used(token: int, link: int) -> int:
        return 1 + token * len(links) + link

    def flow(number: int, link: int) -> int:
        return used(len(kinds) + number, link)

    count = 1 + (len(kinds) + len(flows)) * len(links)
    above, right, equal, due = [], [], [], []
    for e, link in enumerate(links):
        row = np.zeros(count)
        row[[used(t, e) for t in range(len(kinds))]], row[0] = 1, -float(link.bandwidth) / GB
        above.append(row)
        for f, (token, _) in enumerate(flows):
            row = np.zeros(count)
            row[flow(f, e)], row[used(token, e)] = 1, -1
            above.append(row)
    right = [0.0] * len(above)
    for f, (token, sink) in enumerate(flows):
        for device in machine.devices:
            row = np.zeros(count)
            for e, link in enumerate(links):
                row[flow(f, e)] += (link.src == device.name) - (link.dst == device.name)
            equal.append(row)
            ends = machine.members[kinds[token][0]], machine.members[sink]
            due.append(float(device.name == ends[0]) - float(device.name == ends[1]))
    goal = np.zeros(count)
    goal[0] = 1
    found = linprog(goal, A_ub=np.array(above), b_ub=right, A_eq=np.array(equal), b_eq=due, method="highs")
    assert found.fun is not None
    return float(found.fun) / GB


MACHINES = ("switch:4@50GB/s", "full:4@25GB/s", "ring:4@25GB/s", "rails:2x2@100GB/s,10GB/s", "mesh:2x2@20GB/s")


def drawn(ranks: int, seed: int) -> Tokens:
    random = np.random.default_rng(seed)
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in random.random((6, ranks)) < random.uniform(0.3, 0.9)]
    return [(0, frozenset({1})), *((int(random.integers(ranks)), wanted) for wanted in sets if wanted)]


@pytest.mark.parametrize("machine", MACHINES)
def test_no_coded_flow_is_quicker_and_most_are_as_quick(machine: str) -> None:
    topology, equal = bs.load(machine).selected(), 0
    back = topology.with_links(bs.Link(x.dst, x.src, x.kind, x.lane_bandwidth, x.lanes) for x in topology.links)
    for seed in range(8):
        tokens = drawn(topology.ranks, seed)
        routing = routing_of(topology.ranks, tokens, 1)
        for name, on in ((DISPATCH, topology), (COMBINE, back)):
            found = bs.bound(on, bs.Collective(name, routing=routing))
            optimum, cut = coded_flows(topology, tokens), max(entry.rate for entry in found.bounds)
            assert float(routing.size / cut) <= optimum * (1 + 1e-6)
            assert found.headline.exact
            assert found.time(routing.size) >= optimum * (1 - 1e-6)
            equal += found.time(routing.size) == pytest.approx(optimum, rel=1e-6)
    assert equal >= 6


def test_every_routing_of_four_tokens_on_three_ranks() -> None:
    machine, tried = bs.load("switch:3@10GB/s").selected(), 0
    found = dict[tuple[int, ...], Fraction]()
    for tokens in all_routings(3, 4):
        tried += 1
        routing = routing_of(3, tokens, 10)
        # All that a port must send, and take in: of a star, no other cut is tighter.
        sent = [sum(s == r and bool(w - {r}) for s, w in tokens) for r in range(3)]
        taken = [sum(s != r and r in w for s, w in tokens) for r in range(3)]
        due = Fraction(max(*sent, *taken) * 10, 10 * GB)
        key = (routing.size, *routing.tokens.ravel().tolist(), *sent)
        if key not in found:
            wanted = bs.Collective(DISPATCH, routing=routing)
            found[key] = routing.size / bs.bound(machine, wanted).rate
        assert found[key] == due
    assert tried == 7**4 - prod((1, 1, 1, 1))


@pytest.mark.parametrize("nodes", [2, 8])
def test_the_cuts_of_a_cluster_by_hand(nodes: int) -> None:
    """Node, GPU and its ports: the only cuts of eight GPUs behind a switch, on rails."""
    machine = bs.load("hgx-h100", nodes=nodes).selected()
    routing = bs.draw_routing(8 * nodes, tokens=64, experts=64, skew=0.7, seed=3)
    wanted = [[set((row // (64 // (8 * nodes))).tolist()) for row in rows] for rows in routing.experts]
    into_node, into_gpu = np.zeros(nodes), np.zeros(8 * nodes)
    for source, rows in enumerate(wanted):
        for ranks in rows:
            for node in {rank // 8 for rank in ranks} - {source // 8}:
                into_node[node] += 1
            for rank in ranks - {source}:
                into_gpu[rank] += 1
    due = routing.token_size * max(into_node.max() / 400e9, into_gpu.max() / 500e9)
    for name in (DISPATCH, COMBINE):
        found = bs.bound(machine, bs.Collective(name, routing=routing))
        assert found.time(routing.size) == pytest.approx(due, rel=1e-12)


def ways_in_the_open(machine: Topology, routing: bs.Routing, copy_each: bool) -> float:
    """Seconds of the busiest port: every token followed by itself, on nodes of eight behind a switch, on rails."""
    out, into, sent, taken = (np.zeros(machine.ranks) for _ in range(4))
    each = len(routing.placement) // machine.ranks
    for source, rows in enumerate(routing.experts):
        for row in rows:
            ranks = set((row // each).tolist())
            for node in {rank // 8 for rank in ranks}:
                local = {rank for rank in ranks if rank // 8 == node}
                entry = source if node == source // 8 else node * 8 + source % 8
                if entry != source:
                    sent[source] += len(local) if copy_each else 1
                    taken[entry] += len(local) if copy_each else 1
                for rank in local - {entry}:
                    out[entry] += 1
                    into[rank] += 1
    busiest = max(max(out.max(), into.max()) / 450e9, max(sent.max(), taken.max()) / 50e9)
    return float(busiest * routing.token_size)


@pytest.mark.parametrize(("nodes", "skew"), [(1, 0.0), (2, 0.0), (4, 1.2)])
def test_ways_put_on_links_what_their_tokens_do(nodes: int, skew: float) -> None:
    machine = bs.load("hgx-h100", nodes=nodes).selected()
    routing = bs.draw_routing(8 * nodes, tokens=50, experts=64, skew=skew, seed=1)
    for name in (DISPATCH, COMBINE):
        wanted = bs.Collective(name, routing=routing)
        floor = bs.bound(machine, wanted).time(routing.size)
        for way in (A_RANK, A_NODE):
            time_s = Way.of(machine, wanted, way).time_s
            assert time_s == pytest.approx(ways_in_the_open(machine, routing, way == A_RANK), rel=1e-12)
            assert time_s >= floor * (1 - 1e-12)


def test_the_figures_of_the_issue() -> None:
    """2 x 8 H100, 4,096 tokens of 14 KiB, top 8 of 256: 191 MB a GPU by blocks, 58.5 MB once a node, 1.17 ms."""
    machine = bs.load("hgx-h100", nodes=2).selected()
    routing = bs.draw_routing(16, tokens=4096, experts=256, top_k=8, token_size="14KiB")
    assert bs.bound(machine, bs.Collective(DISPATCH, routing=routing)).time(routing.size) == pytest.approx(
        1.17e-3, rel=2e-3
    )
    matrix = bs.Traffic(routing.tokens * routing.token_size)
    assert bs.bound(machine, bs.Collective("alltoallv", traffic=matrix)).time(matrix.size) == pytest.approx(
        3.83e-3, rel=5e-3
    )
    per_gpu = {
        way: Way.of(machine, bs.Collective(DISPATCH, routing=routing), way).bytes["ib"] / 1e6
        for way in (A_RANK, A_NODE)
    }
    assert per_gpu == {A_RANK: pytest.approx(191, rel=0.02), A_NODE: pytest.approx(58.5, rel=0.005)}


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_a_node_alone_proves_no_more_than_all_links(data: st.DataObject) -> None:
    """Of a cluster, whose other nodes are one point for the trees: a floor is no tighter then, and is checked alike."""
    machine = bs.load(data.draw(st.sampled_from(["rails:2x2@100GB/s,10GB/s", "rails:3x2", "rails:2x3"]))).selected()
    routing = routing_of(machine.ranks, data.draw(tokens_of(machine.ranks)))
    for name in (DISPATCH, COMBINE):
        wanted = bs.Collective(name, routing=routing)
        every = bs.bound(machine, wanted)
        compute._bounds.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compute, "APART", 1)
            alone = bs.bound(machine, wanted)
        compute._bounds.cache_clear()
        assert every.headline.exact
        assert every.rate <= alone.rate <= max(entry.rate for entry in every.bounds)
        assert [entry.check(machine, wanted) for entry in alone.bounds] == [[] for _ in alone.bounds]


@pytest.mark.parametrize("seed", range(4))
def test_who_has_which_number_makes_no_difference(seed: int) -> None:
    random = np.random.default_rng(seed)
    machine, tokens = bs.load("mesh:2x3").selected(), drawn(6, seed)
    order = random.permutation(6).tolist()
    other = machine.select(members=[machine.members[order.index(rank)] for rank in range(6)])
    moved = [(order[source], frozenset(order[rank] for rank in wanted)) for source, wanted in tokens]
    rates = [
        bs.bound(on, bs.Collective(COMBINE, routing=routing_of(6, of))).rate
        for on, of in ((machine, tokens), (other, moved))
    ]
    assert rates[0] == rates[1]
