"""Clusters packed host by host, against the bound and against the packing of the whole graph."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from proved_gaps import gap

import blinksim as bs
from blinksim import machines
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.building.symmetric_trees import add_host_trees
from blinksim.algorithms.packed import build, from_hosts
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.packing.forest import pairs_of_links
from blinksim.packing.hosts import held, packed_host, read_hosts, spread, stars
from blinksim.schedule.loads import rate, resource_loads, resources
from blinksim.schedule.verify import verify
from blinksim.topology import shapes
from blinksim.topology.elements import Level
from blinksim.topology.graph import Topology

GB = 10**9


def cluster(nodes: int, *edits: str) -> Topology:
    return machines.load("dgx-a100", nodes=nodes, edits=edits).select()


@pytest.mark.parametrize(
    "edits",
    [
        (),
        ("degrade n0.nic0-fabric0 bandwidth=12.5GB/s",),
        ("degrade n0.gpu0-n0.nvswitch lanes=6",),
        ("degrade n1.nic3-fabric1 bandwidth=5GB/s", "degrade n2.gpu1-n2.nvswitch lanes=3"),
    ],
)
@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
def test_whole_and_host_by_host_agree(collective: str, edits: tuple[str, ...]) -> None:
    topology = cluster(3, *edits)
    quick = build(topology, Collective(collective))
    whole = build(topology, Collective(collective), templates=False)
    for schedule in (quick, whole):
        verdict = verify(schedule)
        assert verdict.ok, verdict.reasons
        assert gap(schedule) == "0"
    assert rate(quick) == rate(whole)


def test_one_direction_degraded() -> None:
    """One GPU gets less (50 + 25 GB/s) than it gives: roots that hold more than others still attain the cut."""
    topology = cluster(3, "degrade n0.nvswitch->n0.gpu0 lanes=2")
    for collective in ("allgather", "reducescatter"):
        schedule = build(topology, Collective(collective))
        assert verify(schedule).ok
        assert gap(schedule) == "0"
    schedule = build(topology, Collective("allreduce"))
    assert verify(schedule).ok
    two_phases = bound(topology, Collective("allreduce")).scoped("reduce-scatter + allgather")
    assert two_phases is not None
    assert gap(schedule) == "0"
    assert rate(schedule) == 75 * GB
    assert two_phases.rate < 75 * GB


@pytest.mark.parametrize(("machine", "nodes"), [("mi250", 4), ("hgx-h100", 3), ("rails:3x4@200GB/s,50GB/s", 1)])
def test_other_hosts(machine: str, nodes: int) -> None:
    topology = machines.load(machine, nodes=nodes).select()
    hosts = read_hosts(topology)
    assert hosts is not None
    for collective in ("allgather", "allreduce"):
        schedule = build(topology, Collective(collective))
        assert verify(schedule).ok
        assert gap(schedule) == "0"


def test_one_slow_link_among_128_gpus() -> None:
    topology = cluster(16, "degrade n3.nic5-fabric1 bandwidth=10GB/s")
    schedule = build(topology, Collective("allgather"))
    assert verify(schedule).ok
    assert gap(schedule) == "0"
    assert schedule.steps <= 4
    # 185 GB/s enter node 3 for 120 shards.
    assert rate(schedule) == Fraction(185, 120) * 128 * GB


def test_alltoall_uses_all_ports() -> None:
    schedule = build(cluster(3), Collective("alltoall"))
    assert verify(schedule).ok
    assert gap(schedule) == "0"
    assert schedule.steps == 2


def test_hosts_are_told_apart_by_bandwidth_only() -> None:
    hosts = read_hosts(cluster(4, "degrade n2.gpu0-n2.nvswitch lanes=6"))
    assert hosts is not None
    assert hosts.kinds == [0, 0, 1, 0]
    assert hosts.ranks == 32
    less = read_hosts(cluster(3).without("n0.nic0-fabric0"))
    assert less is not None
    assert less.lacking
    assert less.kinds == [1, 0, 0]
    assert read_hosts(machines.load("dgx-a100").select()) is None
    assert read_hosts(shapes.torus((4, 4)).select()) is None


def with_capacity(topology: Topology, name: str) -> Topology:
    devices = tuple(
        replace(device, capacity=Fraction(10 * GB)) if device.name == name else device for device in topology.devices
    )
    return replace(topology, devices=devices, symmetries=())


def joined(topology: Topology, src: str, dst: str, kind: str = "nvlink") -> Topology:
    """With a copy of the first link between `src` and `dst`."""
    link = replace(topology.links[0], src=src, dst=dst, kind=kind)
    return replace(topology, links=(*topology.links, link), symmetries=())


def with_bus(topology: Topology) -> Topology:
    first, *others = topology.links
    return replace(topology, links=(replace(first, bus="shared"), *others), symmetries=())


def levels(nodes: int, *tiers: Level) -> Topology:
    """DGX A100 below levels of switches."""
    node = machines.load("dgx-a100")
    assert node.fabric is not None
    fabric = replace(node.fabric, shape="levels", planes=1, levels=tiers)
    return node.replicate(nodes, fabric).select()


def without_uplinks(topology: Topology) -> Topology:
    """Without the links of the first leaf to what is above it."""
    links = tuple(link for link in topology.links if {link.src, link.dst} != {"fabric.leaf0", "fabric"})
    return replace(topology, links=links, symmetries=())


@pytest.mark.parametrize(
    "topology",
    [
        pytest.param(machines.load("dgx-a100").select(), id="one host"),
        pytest.param(with_capacity(cluster(2), "n1.gpu3"), id="a capacity"),
        pytest.param(with_bus(cluster(2)), id="a bus"),
        pytest.param(joined(cluster(2), "n0.gpu0", "n1.gpu0"), id="hosts without a fabric between them"),
        pytest.param(
            joined(joined(cluster(2), "fabric0", "fabric1"), "fabric0", "fabric1", kind="pcie"), id="parallel links"
        ),
        pytest.param(without_uplinks(levels(4, Level(2), Level())), id="ports apart"),
        pytest.param(cluster(3).without("n1.gpu2"), id="fewer devices"),
        pytest.param(cluster(3, "without n2.nic0-fabric0", "add n2.gpu0-n2.gpu1 nvlink"), id="other links"),
        pytest.param(replace(cluster(2), members=cluster(2).members[:-1]), id="other members"),
    ],
)
def test_unlike_hosts_are_none(topology: Topology) -> None:
    assert read_hosts(topology) is None


@pytest.mark.parametrize(
    "tiers",
    [
        (Level(2), Level()),
        (Level(2, planes=8), Level()),
        (Level(3, planes=2), Level(planes=2)),
        (Level(1), Level(2, planes=1), Level()),
    ],
)
@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
def test_full_trees_of_switches_lose_nothing(collective: str, tiers: tuple[Level, ...]) -> None:
    topology = levels(6, *tiers)
    schedule = from_hosts(topology, Collective(collective), bound(topology, Collective(collective)).rate)
    assert schedule is not None
    assert verify(schedule).ok
    assert rate(schedule) == bound(topology, Collective(collective)).rate


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
def test_a_leaf_gets_one_copy_where_its_uplinks_are_narrow(collective: str) -> None:
    """4:1 above leaves of four nodes: copies for every node would fill the uplinks, one copy for the leaf does not."""
    topology = levels(12, Level(4, oversubscription=Fraction(4)), Level())
    wanted = Collective(collective)
    aim = bound(topology, wanted).rate
    schedule = from_hosts(topology, wanted, aim)
    assert schedule is not None
    assert verify(schedule).ok
    found = rate(schedule)
    assert found is not None
    assert found >= aim * Fraction(95, 100)
    # Straight from node to node, every byte would climb eight times over a quarter of the ports' bandwidth.
    assert found > 2 * straight_rate(topology) / (2 if wanted.name == "allreduce" else 1)


def straight_rate(topology: Topology) -> Fraction:
    """algbw of an allgather of whole shards sent from each node to each other, over the uplinks of a leaf."""
    up = sum(link.bandwidth for link in topology.links if link.src == "fabric.leaf0" and link.dst == "fabric")
    inside, outside = 32, topology.ranks - 32
    return up / (Fraction(inside, topology.ranks) * (outside // 8))


@settings(max_examples=6)
@given(st.integers(4, 8), st.integers(2, 5), st.integers(1, 5), st.sampled_from([1, 2]))
def test_leaves_of_unequal_size_lose_nothing(nodes: int, leaf: int, oversubscription: int, phases: int) -> None:
    lose_nothing(nodes, leaf, oversubscription, phases)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(4, 16), st.integers(2, 9), st.integers(1, 6), st.sampled_from([1, 2]))
def test_many_leaves_of_unequal_size_lose_nothing(nodes: int, leaf: int, oversubscription: int, phases: int) -> None:
    lose_nothing(nodes, leaf, oversubscription, phases)


def lose_nothing(nodes: int, leaf: int, oversubscription: int, phases: int) -> None:
    """Against the exact bound of an allgather, by cuts of the whole graph; an allreduce takes two of these phases."""
    topology = levels(nodes, Level(leaf, oversubscription=Fraction(oversubscription)), Level())
    best = bound(topology, Collective("allgather")).rate / phases
    schedule = from_hosts(topology, Collective("allreduce" if phases == 2 else "allgather"), best)
    assert schedule is not None
    assert verify(schedule).ok
    assert rate(schedule) == best


def test_nodes_of_every_leaf_send_out_equally_much() -> None:
    """Ten nodes on leaves of four at 4:1: every port is full, those of the last leaf too, which has two nodes."""
    topology = levels(10, Level(4, oversubscription=Fraction(4)), Level())
    schedule = from_hosts(topology, Collective("allgather"), bound(topology, Collective("allgather")).rate)
    assert schedule is not None
    loads = resource_loads(schedule, resources(topology))
    own = resources(topology)
    ports = {
        loads[int(own.members[own.starts[number]])]
        for number, link in enumerate(topology.links)
        if link.kind == "ib" and link.src.startswith("n")
    }
    assert ports == {Fraction(9, 8 * 10)}


def test_groups_of_a_dragonfly_are_leaves() -> None:
    node = machines.load("frontier")
    assert node.fabric is not None
    topology = node.replicate(6, replace(node.fabric, group_nodes=2)).select()
    schedule = from_hosts(topology, Collective("allgather"), bound(topology, Collective("allgather")).rate)
    assert schedule is not None
    assert verify(schedule).ok


def test_pieces_make_whole_shards() -> None:
    hosts = read_hosts(cluster(5, "degrade n2.nic0-fabric0 bandwidth=10GB/s"))
    assert hosts is not None
    kinds = hosts.kinds
    shard = bound(cluster(5), Collective("allgather")).rate / 40 * Fraction(185, 200)
    trees = [stars(hosts, kinds.index(kind)) for kind in (0, 1)]
    for kind, packed in enumerate(trees):
        assert packed is not None
        assert held(hosts, kinds.index(kind), packed, shard) == shard
        for member in hosts.shape.members:
            pieces = [piece for piece in spread(hosts, trees, kind) if piece[0] == member]  # type: ignore[arg-type]
            assert sum(weight for _, weight, _, _ in pieces) == 1
    slow = [tree for tree in trees[1] or [] if tree.port >= 0]
    assert sum(tree.weight for tree in slow) == 32
    assert min(tree.weight for tree in slow) == Fraction(32 * 10, 185)


def test_one_host_alone() -> None:
    """A host's own packing: 32 shards come in from outside, one starts at each of its GPUs; nothing enters twice."""
    hosts = read_hosts(cluster(5, "degrade n0.gpu0-n0.nvswitch lanes=2"))
    assert hosts is not None
    assert held(hosts, 0, stars(hosts, 0) or [], Fraction(5 * GB)) < 5 * GB
    members = hosts.shape.members
    trees = packed_host(hosts, 0, Fraction(5 * GB), {hosts.shape.outside: 32, **dict.fromkeys(members, 1)})
    assert trees is not None
    assert sum(tree.weight for tree in trees if tree.port >= 0) == 32
    for member in hosts.shape.members:
        assert sum(tree.weight for tree in trees if tree.port < 0 and tree.root == member) == 1
    for tree in trees:
        assert {tree.root, *(child for _, child, _ in tree.edges)} == set(hosts.shape.members)


def test_a_host_that_cannot_copy_to_all_is_helped() -> None:
    """195 of 200 GB/s leave node 5: one shard in forty goes to one other node, which sends it on to the rest."""
    topology = cluster(16, "degrade n5.gpu3->n5.nic3 bandwidth=20GB/s")
    collective = Collective("allgather")
    best = bound(topology, collective).rate
    plan = Plan(topology, collective, "packed", "forest")
    assert add_host_trees(plan, best / topology.ranks, pairs_of_links(topology))
    schedule = plan.finish()
    assert verify(schedule).ok
    attained = rate(schedule)
    assert attained is not None
    assert Fraction(99, 100) < attained / best < 1


@pytest.mark.parametrize(
    ("edits", "most"),
    [
        (("without n0.nic3",), Fraction(0)),
        (("without n2.nic0-fabric0",), Fraction(0)),
        (("without fabric3", "without n1.nic0"), Fraction(0)),
        # Two hosts whose adapters are on other rails have fewer in common than each has.
        (("without n1.nic3", "without n2.nic5", "degrade n0.nic1-fabric1 bandwidth=10GB/s"), Fraction(1, 10)),
    ],
)
def test_hosts_that_lack_an_adapter_attain_the_bound(edits: tuple[str, ...], most: Fraction) -> None:
    """As with an adapter that carries nothing. An allreduce in two phases of equal shards takes both of theirs."""
    topology = machines.load("hgx-h100", nodes=4, edits=edits).select()
    found = read_hosts(topology)
    assert found is not None
    assert found.lacking
    rates = dict[str, Fraction]()
    for collective in ("allgather", "reducescatter", "allreduce"):
        best = bound(topology, collective)
        schedule = from_hosts(topology, Collective(collective), best.rate)
        assert schedule is not None
        assert verify(schedule).ok
        rates[collective] = rate(schedule) or Fraction(0)
        if collective != "allreduce":
            assert 0 <= 1 - rates[collective] / best.rate <= most
    assert best.rate >= rates["allreduce"] >= rates["allgather"] * (1 - most) / 2


def test_hosts_of_leaves_that_lack_adapters() -> None:
    fabric = "fabric shape=tree leaf_nodes=2"
    topology = machines.load("dgx-a100", nodes=4, edits=(fabric, "without n3.nic2", "without n0.nic1")).select()
    found = read_hosts(topology)
    assert found is not None
    assert found.lacking
    schedule = from_hosts(topology, Collective("allgather"), bound(topology, "allgather").rate)
    assert schedule is not None
    assert verify(schedule).ok
    assert Fraction(9, 10) <= (rate(schedule) or 0) / bound(topology, "allgather").rate <= 1


@pytest.mark.parametrize("edit", ["without n1.gpu3", "without n1.gpu2-n1.nvswitch"])
def test_hosts_that_lack_a_rank_or_a_way_inside_are_not_packed_alone(edit: str) -> None:
    topology = machines.load("hgx-h100", nodes=3, edits=(edit,)).select()
    assert from_hosts(topology, Collective("allgather"), bound(topology, "allgather").rate) is None


@pytest.mark.parametrize("edit", ["without n1.nic3", "degrade n1.nic3-fabric3 bandwidth=20GB/s"])
def test_a_host_with_less_is_root_of_less_of_an_allreduce(edit: str) -> None:
    """All ports are full then but for a percent: equal shards would lose an eighth, or a fifteenth."""
    topology = machines.load("hgx-h100", nodes=24, edits=(edit,)).select()
    best = bound(topology, "allreduce")
    schedule = from_hosts(topology, Collective("allreduce"), best.rate)
    assert schedule is not None
    assert verify(schedule).ok
    assert best.rate * Fraction(99, 100) <= (rate(schedule) or 0) <= best.rate


@pytest.mark.parametrize("edit", ["without efa0", "without gpu0-nvswitch"])
def test_alike_ranks_are_roots_together(edit: str) -> None:
    """One root's program does not end here (13 s for 200 rounds, above the bound); that of all roots by orbits does."""
    topology = machines.Question("p5", nodes=4, edits=(edit,), rates="measured").part()
    schedule = build(topology, Collective("allreduce"), templates=False)
    assert verify(schedule).ok
    assert gap(schedule) == "0"
    assert rate(schedule) == bound(topology, Collective("allreduce")).rate


@pytest.mark.parametrize(("machine", "nodes"), [("aurora", 5), ("l40s-pcie", 3), ("mi250", 3)])
def test_nodes_with_one_rank_are_served_too(machine: str, nodes: int) -> None:
    """Its node has nothing to pass on inside: the bytes go from port to port, at 5 % off the bound's rate at most."""
    part = bs.Question(machine, nodes=nodes, ranks_per_node=1).part()
    for name in ("broadcast", "reduce"):
        found = bs.project(part, name, "1GiB", model="alpha-beta", algorithm="packed")
        assert found.time_s <= 1.05 * 2**30 / bs.bound(part, name).rate


def test_a_large_node_with_odd_rates_is_packed_in_few_trees() -> None:
    """72 GPUs, one of which has a twentieth of the others' bandwidth: the exact 719 trees would take hours."""
    part = bs.load("gb300-nvl72", nodes=2, edits=["degrade n0.gpu14-n0.nvswitch bandwidth=45GB/s"], rates="measured")
    collective = Collective("broadcast")
    best = bound(part, collective).rate
    schedule = from_hosts(part, collective, best)
    assert schedule is not None
    assert verify(schedule).ok
    found = rate(schedule)
    assert found is not None
    assert found > Fraction(4, 5) * best
