"""The elementary algorithms against textbook times, exact loads and a plain execution on sets."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from contextlib import suppress
from fractions import Fraction
from importlib import import_module
from itertools import combinations, pairwise, product
from math import prod

import networkx as nx
import numpy as np
import pytest
import textbook
from hypothesis import given, strategies as st
from textbook import CLOSED_FORMS, Postal

import blinksim as bs
from blinksim import machines
from blinksim.algorithms import hierarchical, hierarchical_trees
from blinksim.algorithms.building import plan as plans
from blinksim.algorithms.registry import REGISTRY, algorithm, candidates
from blinksim.bounds.compute import bound
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.rooted_trees import low_trees, two_trees
from blinksim.schedule.loads import Outline, link_loads, rate
from blinksim.schedule.model import REDUCE, Schedule
from blinksim.timing.alpha_beta import cost
from blinksim.timing.simulator import simulate
from blinksim.topology import shapes
from blinksim.topology.graph import Device, Link, Topology

GB = 10**9
# Those of the textbooks. Others have tests of their own, and tests/schedule/test_every_algorithm.py verifies them all.
TEXTBOOK = (*CLOSED_FORMS, "hierarchical")
PAIRS = [(name, collective) for name in TEXTBOOK for collective in REGISTRY[name].collectives]


def flat(*ranks: int) -> list[tuple[str, str, int]]:
    """(algorithm, collective, ranks) of all that run on one node of so many ranks."""
    return [(*pair, n) for pair in PAIRS for n in ranks if pair[0] != "hierarchical"]


ONE_PORT = Postal(alpha=3e-6, beta=1 / 25e9)


def one_port(ranks: int) -> Topology:
    """Every rank behind one full-duplex port: two hops of 1.5 us make alpha 3 us, with no overhead beside."""
    return shapes.one_switch(ranks, bandwidth=Fraction(25 * GB), times=(1.5e-6, 0.0)).select()


def busy_port(ranks: int) -> Topology:
    """The same alpha, all of it the sender's overhead: its port sends nothing else meanwhile."""
    return shapes.one_switch(ranks, bandwidth=Fraction(25 * GB), times=(0.0, ONE_PORT.alpha)).select()


def full_duplex(pairs: dict[tuple[int, int], int], ranks: int) -> Topology:
    links = []
    for (a, b), lanes in pairs.items():
        links += [Link(f"gpu{x}", f"gpu{y}", "nvlink", Fraction(GB), lanes) for x, y in ((a, b), (b, a))]
    return Topology("test", tuple(Device(f"gpu{i}", "gpu") for i in range(ranks)), tuple(links))


DGX1V = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def execute(schedule: Schedule) -> dict[tuple[int, int], Counter[int]]:
    """What every rank ends with, by chunk: how often each rank's contribution is in it."""
    n, name = schedule.topology.ranks, schedule.collective.name
    state: dict[tuple[int, int], Counter[int]] = {}
    for chunk in range(schedule.chunks):
        for rank in range(n):
            if schedule.collective.reduces:
                has = True
            elif name in ("broadcast", "scatter"):
                has = rank == schedule.collective.root
            else:
                has = rank == schedule.origin[chunk]
            if has:
                state[chunk, rank] = Counter([rank])
    place = schedule.rank_of
    for step in range(schedule.steps):
        before = dict(state)
        for i in np.flatnonzero(schedule.step == step):
            chunk, a, b = int(schedule.chunk[i]), int(place[schedule.src[i]]), int(place[schedule.dst[i]])
            value = before[chunk, a]
            state[chunk, b] = state.get((chunk, b), Counter()) + value if schedule.op[i] == REDUCE else value
    return state


@pytest.mark.parametrize(("name", "collective", "ranks"), flat(2, 3, 4, 6, 8))
def test_keeps_its_promise(name: str, collective: str, ranks: int) -> None:
    root = ranks - 1 if Collective(collective).rooted else 0
    schedule = REGISTRY[name].build(one_port(ranks), Collective(collective, root))
    check_promise(schedule)


def check_promise(schedule: Schedule) -> None:
    n, name, root = schedule.topology.ranks, schedule.collective.name, schedule.collective.root
    state, everyone = execute(schedule), Counter(range(n))
    total = sum((schedule.share(c) for c in range(schedule.chunks)), start=Fraction(0))
    assert total == (n if name == "alltoall" else 1)
    for chunk in range(schedule.chunks):
        origin, target = int(schedule.origin[chunk]), int(schedule.target[chunk])
        match name:
            case "allreduce":
                assert all(state[chunk, rank] == everyone for rank in range(n))
            case "reduce":
                assert state[chunk, root] == everyone
            case "reducescatter":
                assert state[chunk, target] == everyone
            case "broadcast":
                assert all(state[chunk, rank] == Counter([root]) for rank in range(n))
            case "allgather":
                assert all(state[chunk, rank] == Counter([origin]) for rank in range(n))
            case "gather":
                assert state[chunk, root] == Counter([origin])
            case "scatter":
                assert state[chunk, target] == Counter([root])
            case _:
                assert state[chunk, target] == Counter([origin])
    per_rank: defaultdict[int, Fraction] = defaultdict(Fraction)
    for chunk in range(schedule.chunks):
        for ends in (schedule.origin, schedule.target):
            if ends[chunk] >= 0:
                per_rank[int(ends[chunk])] += schedule.share(chunk)
    assert len(set(per_rank.values())) <= 1, "every rank's part must be equally large"


@pytest.mark.parametrize("size", [8, 10**6, 10**9])
@pytest.mark.parametrize(("name", "collective", "ranks"), flat(2, 3, 5, 8, 16))
def test_link_graph_time_equals_the_closed_form(name: str, collective: str, size: int, ranks: int) -> None:
    """Steps of whole messages on ports behind latency; pipelines on ports that are busy for all of alpha."""
    expected = CLOSED_FORMS[name](collective, ranks, size, ONE_PORT)
    schedule = REGISTRY[name].build(one_port(ranks), Collective(collective))
    if schedule.form == "forest":
        schedule = REGISTRY[name].build(busy_port(ranks), Collective(collective))
        found = cost(schedule, size)
        simulated = simulate(schedule, size, pieces=found.pieces).time_s
        assert 0.86 * simulated <= found.time_s <= 1.12 * simulated
        if name in ("chain", "binary") and collective == "broadcast":
            same = CLOSED_FORMS[name](collective, ranks, size, ONE_PORT, pieces=found.pieces)
            assert found.time_s == pytest.approx(same, rel=1e-12)
            assert found.time_s <= expected * 1.05
    else:
        assert cost(schedule, size, whole_messages=True).time_s == pytest.approx(expected, rel=1e-12)
        assert cost(schedule, size).time_s <= expected * (1 + 1e-12)


@pytest.mark.parametrize(("name", "collective", "ranks"), flat(1))
def test_a_single_rank_sends_nothing(name: str, collective: str, ranks: int) -> None:
    schedule = REGISTRY[name].build(full_duplex({}, ranks), Collective(collective))
    assert schedule.sends == 0
    assert cost(schedule, 1000).time_s == 0


def test_textbook_times() -> None:
    """Thakur et al. 2005: the ring's and Rabenseifner's bandwidth terms agree, the latencies are 2(n-1) and 2 log n."""
    free = Postal(0.0, 1e-9)
    assert textbook.ring("allreduce", 8, 8e9, free) == pytest.approx(14.0)
    assert textbook.halving_doubling("allreduce", 8, 8e9, free) == pytest.approx(14.0)
    slow = Postal(1.0, 0.0)
    assert textbook.ring("allreduce", 8, 1, slow) == 14
    assert textbook.halving_doubling("allreduce", 8, 1, slow) == 6
    # With gamma, both reduce (n-1)/n of the vector.
    adding = Postal(0.0, 0.0, 1e-9)
    assert (
        textbook.ring("allreduce", 8, 8e9, adding)
        == textbook.halving_doubling("allreduce", 8, 8e9, adding)
        == pytest.approx(7.0)
    )


def test_the_chain_uses_the_best_number_of_pieces() -> None:
    model = Postal(1e-6, 1e-9)
    h, size = 7, 10**8
    plain = min((c + h - 1) * (model.alpha + model.beta * size / c) for c in range(1, 3000))
    assert textbook.chain("broadcast", 8, size, model) == pytest.approx(plain, rel=1e-12)
    # Without overheads ever more pieces pay, down to the bandwidth alone.
    assert textbook.chain("broadcast", 4, 100.0, Postal(0.0, 1.0)) == pytest.approx(100.0, rel=1e-3)


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_no_time_beats_the_loads(name: str, collective: str) -> None:
    """A link needs its load over its bandwidth, whatever the order: on one port, on a DGX-1V and on rails."""
    single = () if name == "hierarchical" else (one_port(8), full_duplex(DGX1V, 8))
    for topology in (*single, cluster(2, 4)):
        schedule = REGISTRY[name].build(topology, Collective(collective))
        attainable = rate(schedule)
        assert attainable is not None
        for size in (8, 10**6, 10**9):
            assert cost(schedule, size).time_s >= size / float(attainable) * (1 - 1e-12)


@pytest.mark.parametrize("ranks", range(1, 40))
def test_double_binary_trees_span_and_make_every_rank_a_leaf_once(ranks: int) -> None:
    trees = two_trees(ranks)
    for parents, root in trees:
        assert set(parents) | {root} == set(range(ranks))
        assert textbook.height(parents) <= max(1, ranks.bit_length())
    inner = [set(parents.values()) for parents, _ in trees]
    shared = inner[0] & inner[1]
    # The mirror image of an even count shares no inner vertex; the shift of an odd count may share the one it wraps.
    assert len(shared) <= (ranks % 2 if ranks > 2 else 1)


def test_pairs_that_do_not_exist_are_refused() -> None:
    missing = [(e, c) for e in REGISTRY.values() for c in COLLECTIVES if not e.supports(c)]
    assert len(PAIRS) >= 25
    for entry, collective in missing:
        with pytest.raises(InfeasibleError, match=f"there is no {entry.name} {collective}"):
            entry.build(one_port(4), Collective(collective))
    with pytest.raises(InputError, match="did you mean 'ring'"):
        algorithm("rign")
    assert "direct" in {entry.name for entry in candidates("alltoall")}


def test_dgx1v_rings_are_those_of_the_hardware() -> None:
    """Three bidirectional rings on the whole DGX-1V, which reach 24/7 lanes of algbw (Blink, section 2)."""
    topology = full_duplex(DGX1V, 8)
    rings = plans.ring_orders(topology)
    assert len(rings) == 6
    assert rate(REGISTRY["ring"].build(topology, Collective("allreduce"))) == Fraction(24 * GB, 7)


# Bidirectional rings by GPU set, from a brute force over all edge-disjoint Hamiltonian cycles.
@pytest.mark.parametrize(
    ("gpus", "rings"),
    [
        ((0, 1, 2), 1),
        ((0, 2, 3), 1),
        ((0, 1, 2, 3), 2),
        ((0, 1, 4, 5), 1),
        ((0, 2, 3, 4, 6, 7), 2),
        ((0, 1, 2, 3, 4, 5, 6), 2),
    ],
)
def test_dgx1v_subset_rings(gpus: tuple[int, ...], rings: int) -> None:
    topology = full_duplex(DGX1V, 8).subset([f"gpu{i}" for i in gpus])
    found = rate(REGISTRY["ring"].build(topology, Collective("allreduce")))
    assert found == Fraction(2 * rings * len(gpus) * GB, 2 * (len(gpus) - 1))


def test_rings_pass_through_gpus_only_where_they_must() -> None:
    """GPUs 0, 1, 4 of a DGX-1V are a path, not a ring: 1-4 goes through GPU 0 and shares its links."""
    topology = full_duplex(DGX1V, 8).subset(["gpu0", "gpu1", "gpu4"])
    schedule = REGISTRY["ring"].build(topology, Collective("allreduce"))
    check_promise(schedule)
    loads = dict(zip([x.name for x in topology.links], link_loads(schedule), strict=True))
    assert max(loads.values()) == Fraction(4, 3)


def cluster(nodes: int, local: int) -> Topology:
    return shapes.rail_cluster(nodes, local).select()


@pytest.mark.parametrize(
    ("name", "nodes", "local"),
    [
        (name, nodes, local)
        for name in ("ring", "hierarchical", "chain_tree", "double_binary", "two_shot", "halving_doubling")
        for nodes, local in ((2, 2), (3, 2), (2, 4), (4, 4), (5, 1))
    ],
)
def test_clusters(name: str, nodes: int, local: int) -> None:
    for collective in REGISTRY[name].collectives:
        check_promise(REGISTRY[name].build(cluster(nodes, local), Collective(collective)))


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter"])
@pytest.mark.parametrize(("nodes", "local"), [(2, 4), (4, 8), (3, 1)])
def test_hierarchical_time(collective: str, nodes: int, local: int) -> None:
    """On rails the ports inside (switch) and between the nodes (NIC) differ, and with them alpha and beta."""
    topology = cluster(nodes, local)
    schedule = REGISTRY["hierarchical"].build(topology, Collective(collective))
    routes = [[topology.links[i] for i in schedule.links_of(r)] for r in range(len(schedule.route_start) - 1)]
    ports = [
        Postal(sum(x.latency for x in links) + links[0].overhead, float(1 / min(x.bandwidth for x in links)))
        for links in (min(routes, key=len), max(routes, key=len))
    ]
    expected = textbook.hierarchical(collective, nodes, local, 10**8, *ports)
    assert cost(schedule, 10**8, whole_messages=True).time_s == pytest.approx(expected, rel=1e-9)


LEVELS = [("hierarchical_direct", n, 2) for n in (20, 24, 26)] + [
    ("hierarchical_multiplying", n, local) for n, local in ((9, 2), (16, 1), (24, 2), (17, 1), (2, 12), (3, 18), (2, 8))
]


@pytest.mark.parametrize(("name", "nodes", "local"), LEVELS)
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter"])
def test_levels_of_exchanges_keep_their_promise_at_the_load_of_a_direct_one(
    name: str, nodes: int, local: int, collective: str
) -> None:
    """However many levels: every port passes what other nodes have, once for each phase, as it would in one step."""
    topology = cluster(nodes, local)
    schedule = REGISTRY[name].build(topology, Collective(collective))
    check_promise(schedule)
    phases = 2 if collective == "allreduce" else 1
    loads = [load for link, load in zip(topology.links, link_loads(schedule), strict=True) if "fabric" in link.name]
    assert set(loads) == {phases * Fraction(nodes - 1, nodes * local)}
    radices = import_module(f"blinksim.algorithms.{name}").radices
    inside = len(radices(local, most=2 if local <= 8 else 4)) if name == "hierarchical_multiplying" else int(local > 1)
    assert schedule.steps == phases * (len(radices(nodes)) + inside)


MESHES = [("dgx1-v100", 3, 0.999), ("trn2.48xlarge", 2, 0.85), ("frontier", 4, 0.999), ("mi250", 2, 0.7)]


@pytest.mark.parametrize(("machine", "nodes", "least"), MESHES)
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter"])
def test_trees_inside_nodes_leave_them_no_more_than_needed(
    machine: str, nodes: int, least: float, collective: str
) -> None:
    """Inside nodes only direct links are used, and every adapter passes what a straight exchange gives it."""
    part = machines.load(machine, nodes=nodes).select()
    schedule = REGISTRY["hierarchical_trees"].build(part, Collective(collective))
    check_promise(schedule)
    phases = 2 if collective == "allreduce" else 1
    crossing = part.device_nodes[schedule.src] != part.device_nodes[schedule.dst]
    assert crossing.sum() == phases * part.ranks * (nodes - 1)
    assert {len(schedule.links_of(route)) for route in set(schedule.route[~crossing].tolist())} == {1}
    assert least <= (rate(schedule) or 0) / bound(part, Collective(collective)).rate <= 1


@pytest.mark.parametrize(
    ("machine", "nodes", "least"), [("trn2.48xlarge", 3, 0.9), ("aurora", 8, 0.99), ("mi250", 2, 0.75)]
)
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_broadcast_leaves_a_mesh_from_all_its_ranks(machine: str, nodes: int, least: float, collective: str) -> None:
    """Each rank of the root's node sends a part of its own, and links inside carry little more than they must."""
    part = machines.load(machine, nodes=nodes).select()
    schedule = REGISTRY["hierarchical_trees"].build(part, Collective(collective, root=part.ranks - 2))
    check_promise(schedule)
    crossing = part.device_nodes[schedule.src] != part.device_nodes[schedule.dst]
    assert {len(schedule.links_of(route)) for route in set(schedule.route[~crossing].tolist())} == {1}
    assert len(set(schedule.src[crossing].tolist())) >= part.ranks // nodes
    assert least <= (rate(schedule) or 0) / bound(part, schedule.collective).rate <= 1


def test_trees_of_alike_nodes_take_memory_by_their_messages() -> None:
    """Steps of 256 nodes are told by no more than their ends: four times those of 64, not by the chunks in them."""
    sizes = list[int]()
    for nodes in (64, 256):
        part = machines.load("aurora", nodes=nodes).selected()
        tracemalloc.start()
        kept = hierarchical_trees.rounds(part, Collective("allreduce"))
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert sum(one.exchange.messages(part.ranks) for one in kept) > 2 * 11 * part.ranks
    assert sizes[1] < 6 * sizes[0]


@given(data=st.data(), ranks=st.integers(2, 9))
def test_low_trees_span_their_node(data: st.DataObject, ranks: int) -> None:
    pairs = list(combinations(range(ranks), 2))
    chosen = data.draw(st.sets(st.sampled_from(pairs), min_size=1))
    width = {pair: data.draw(st.integers(1, 3)) for pair in sorted(chosen)}
    links = [
        Link(f"gpu{a}", f"gpu{b}", "link", Fraction(25 * k)) for pair, k in width.items() for a, b in (pair, pair[::-1])
    ]
    part = Topology("node", tuple(Device(f"gpu{i}", "gpu") for i in range(ranks)), tuple(links))
    graph = nx.Graph(chosen)
    hops = low_trees(plans.lanes_between(part), ranks, range(ranks), 0.25)
    if len(graph) < ranks or not nx.is_connected(graph):
        assert not len(hops)
        return
    for root in range(ranks):
        tree: nx.DiGraph[int] = nx.DiGraph(hops[hops[:, 2] == root][:, :2].tolist())
        assert nx.is_arborescence(tree)
        assert not tree.in_degree(root)
        assert all(graph.has_edge(*hop) for hop in tree.edges)
        far = nx.single_source_shortest_path_length(tree, root)
        assert all(far[a] == depth for a, _, _, depth in hops[hops[:, 2] == root].tolist())


# Of 64 MiB on DGX-1 seconds, as of 1 GiB.
IN_TURNS = [
    pytest.param(
        size, collective, machine, nodes, marks=[pytest.mark.alike] * ((machine, size) == ("dgx1-v100", 2**26))
    )
    for size, collective, (machine, nodes) in product(
        (2**22, 2**26, 2**30),
        ("allreduce", "allgather", "reducescatter"),
        (("hgx-h100", 2), ("dgx1-v100", 2), ("mi300x", 3), ("dgx2", 2)),
    )
]


@pytest.mark.parametrize(("size", "collective", "machine", "nodes"), IN_TURNS)
def test_steps_in_turns_take_what_a_simulation_shows(machine: str, nodes: int, collective: str, size: int) -> None:
    part = machines.load(machine, nodes=nodes).select()
    for name in ("hierarchical", "hierarchical_direct", "hierarchical_multiplying", "hierarchical_trees"):
        with suppress(InfeasibleError):
            found = REGISTRY[name].parallel(part, Collective(collective))
            simulated = simulate(found.schedule, size).time_s
            assert 0.85 <= cost(found, size).time_s / simulated <= 1.25


@given(nodes=st.integers(2, 5000) | st.integers(1, 12).map(lambda power: 2**power))
def test_groups_that_exchange_are_factors_of_the_nodes(nodes: int) -> None:
    direct = import_module("blinksim.algorithms.hierarchical_direct").radices(nodes)
    multiplying = import_module("blinksim.algorithms.hierarchical_multiplying").radices(nodes)
    assert prod(direct) == prod(multiplying) == nodes
    assert direct[0] >= min(nodes, 10)
    assert min(*direct, *multiplying) > 1
    if nodes & (nodes - 1) == 0:
        assert max(multiplying) <= 8
        assert len(multiplying) == -(-(nodes.bit_length() - 1) // 3)


@pytest.mark.parametrize("size", [2**10, 2**20, 2**30])
def test_levels_take_less_time_than_rings_or_one_exchange_of_many_nodes(size: int) -> None:
    part = machines.load("hgx-h100", nodes=64).select()
    names = "ring", "hierarchical", "hierarchical_direct", "hierarchical_multiplying"
    times = {n: cost(REGISTRY[n].parallel(part, Collective("allgather")), size).time_s for n in names}
    one = hierarchical.rounds(part, Collective("allgather"), radices=lambda nodes: (nodes,))
    least = cost(Outline(part, Collective("allgather"), "one exchange", one), size).time_s
    best = min(times["hierarchical_direct"], times["hierarchical_multiplying"])
    assert best < min(0.97 * least, times["hierarchical"], times["ring"])


@pytest.mark.parametrize(("collective", "phases"), [("allgather", 1), ("allreduce", 2)])
def test_levels_inside_large_nodes_send_fewer_messages_for_the_same_bytes(collective: str, phases: int) -> None:
    """Of 72 GPUs three, three, four and two: 8 messages of each in place of 71, and every byte in as often."""
    part = machines.load("gb200-nvl72", nodes=2).select()
    names = "hierarchical_direct", "hierarchical_multiplying"
    rounds = [import_module(f"blinksim.algorithms.{name}").rounds(part, Collective(collective)) for name in names]
    direct, levels = (Outline(part, Collective(collective), *both) for both in zip(names, rounds, strict=True))
    assert direct.sends == levels.sends
    each = [sum(one.exchange.messages(part.ranks) for one in found.rounds) / part.ranks for found in (direct, levels)]
    assert each == [phases * (71 + 1), phases * (2 + 2 + 3 + 1 + 1)]
    assert cost(levels, 2**30).time_s < 0.97 * cost(direct, 2**30).time_s


def test_a_broadcast_is_gathered_in_large_nodes_with_the_fewest_messages() -> None:
    """Of 72 GPUs at ports three, three and three times two: 7 messages of each, where groups of four make 8."""
    part = machines.load("gb200-nvl72", nodes=2).select()
    found = import_module("blinksim.algorithms.hierarchical_multiplying").rounds(part, Collective("broadcast"))
    senders = [one.exchange.ends(part.ranks)[0] for one in found]
    gathered = np.concatenate([src.ravel() for src in senders if src.min() >= 72])
    assert np.bincount(gathered)[72:].tolist() == [2 + 2 + 1 + 1 + 1] * 72


@pytest.mark.parametrize(("nodes", "levels"), [(2, (2,)), (3, (3,)), (4, (4,)), (8, (8,)), (12, (4, 3)), (64, (8, 8))])
def test_each_member_hears_of_another_node(nodes: int, levels: tuple[int, ...]) -> None:
    """Of k groups each result enters a node of 8 GPUs 8/k times; of two, and where 8 is no multiple, 8 times."""
    part = machines.load("hgx-h100", nodes=nodes).select()
    outline = Outline(
        part,
        Collective("allreduce"),
        "node_aware",
        import_module("blinksim.algorithms.node_aware").rounds(part, Collective("allreduce")),
    )
    node = np.arange(part.ranks) // 8
    between = [
        ends
        for one in outline.rounds
        for ends in [one.exchange.ends(part.ranks)]
        if (node[ends[0]] != node[ends[1]]).any()
    ]
    assert [len(src) for src, _ in between] == [nodes * (k - 1) * (8 // k if k in (4, 8) else 8) for k in levels]


def test_node_aware_allreduces_take_the_steps_of_one_adapter() -> None:
    """64 KiB on 8 nodes of 8: three exchanges inside nodes, one between them, three inside, each with all data."""
    part = machines.load("hgx-h100", nodes=8).select()
    found = bs.project(part, "allreduce", "64KiB", model="alpha-beta", algorithm="node_aware")
    inside, across = (part.router.route(*part.member_places[list(ends)].tolist()) for ends in ((0, 1), (0, 8)))
    ways = [[part.links[link] for link in way] for way in (inside, across)]
    alpha = [way[0].overhead + sum(link.latency for link in way) for way in ways]
    by_hand = 6 * (alpha[0] + 65536 / 450e9) + alpha[1] + 65536 / 50e9
    assert found.time_s == pytest.approx(by_hand, rel=1e-9)


def test_hierarchical_needs_equal_nodes() -> None:
    whole = cluster(2, 4)
    with pytest.raises(InfeasibleError, match="two or more nodes with the same number of ranks each; here is one;"):
        REGISTRY["hierarchical"].build(one_port(4), Collective("allreduce"))
    with pytest.raises(InfeasibleError, match="have 4 3"):
        REGISTRY["locality_bruck"].build(whole.subset(whole.members[:-1]), Collective("allgather"))


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("machine", ["dgx-a100", "hgx-h200"])
def test_rings_stay_on_their_rails_for_any_number_of_nodes(machine: str, nodes: int) -> None:
    """NICs on rails: a hop between nodes that joins GPUs of different numbers would cross a second NIC."""
    topology = machines.load(machine, nodes=nodes).select()
    rings = plans.ring_orders(topology)
    between: Counter[tuple[int, int, int]] = Counter()
    for ring in rings:
        assert sorted(ring) == list(range(topology.ranks))
        for a, b in pairwise((*ring, ring[0])):
            if a // 8 != b // 8:
                assert a % 8 == b % 8
                between[a // 8, b // 8, a % 8] += 1
    # Every rail carries one ring each way between neighbours.
    assert set(between.values()) == {1}
    assert len(between) == 8 * nodes
    even = machines.load(machine, nodes=2).select()
    assert plans.ring_rate(topology, rings) == plans.ring_rate(even, plans.ring_orders(even))


def test_ranks_of_one_of_several_nodes() -> None:
    """All nodes are there, with their adapters, and the ranks are those of the first."""
    part = bs.Question("aurora", nodes=4, members="0,2,4,6,8,10").part()
    found = bs.contest(part, "allreduce")
    assert "ring" in found.candidates
    assert "two or more nodes" in found.refused["locality_bruck"]


@pytest.mark.parametrize(
    ("machine", "gone", "ring", "chain"),
    [
        # A Hamiltonian ring both ways at 50 GB/s: 2 x 50 x n / (2 (n - 1)).
        ("torus:4x4", "gpu0-gpu1", Fraction(160, 3), 50),
        ("torus:4x4", "gpu5-gpu9", Fraction(160, 3), 50),
        ("hypercube:4", "gpu0-gpu1", Fraction(160, 3), 50),
        ("torus:4x6", "gpu0-gpu1", Fraction(1200, 23), 50),
        ("torus:5x5", "gpu0-gpu1", Fraction(625, 12), 50),
        ("mesh:4x4", "gpu5-gpu6", Fraction(160, 3), 50),
    ],
)
def test_rings_and_chains_follow_direct_links_where_one_is_gone(
    machine: str, gone: str, ring: Fraction, chain: int
) -> None:
    """The links that remain hold a Hamiltonian cycle, and a path from rank 0."""
    part = bs.load(f"{machine}@50GB/s").without(gone).select()
    assert REGISTRY["ring"].parallel(part, Collective("allreduce")).rate == ring * GB
    assert REGISTRY["ring"].parallel(part, Collective("allgather")).rate == 2 * ring * GB
    assert REGISTRY["chain"].parallel(part, Collective("broadcast")).rate == chain * GB
