"""Bounds against brute force over all cuts and partitions, NetworkX flows, and what must not change them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import networkx as nx
import pytest
from all_cuts import best_cut
from golden_machines import GB, a100, dgx1v
from hypothesis import given, settings, strategies as st
from strategies import renamed, topologies

from blinksim.bounds.compute import bound
from blinksim.collective import COLLECTIVES, Collective
from blinksim.graphs.programs import Program
from blinksim.topology.graph import Link, Topology

ONE_WAY = ("allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter")


def between(topology: Topology, part: dict[str, int]) -> Fraction:
    """Bytes/s between parts, both ways, a bus counted once."""
    crossing = [x for x in topology.links if part[x.src] != part[x.dst]]
    buses = {x.bus: x.bandwidth for x in crossing if x.bus}
    return sum((x.bandwidth for x in crossing if not x.bus), Fraction(0)) + sum(buses.values())


def partitions(names: list[str]) -> Iterator[dict[str, int]]:
    """All partitions, as the part of each name (restricted growth strings)."""

    def grow(part: list[int]) -> Iterator[list[int]]:
        if len(part) == len(names):
            yield part
            return
        for number in range(max(part, default=-1) + 2):
            yield from grow([*part, number])

    for part in grow([]):
        yield dict(zip(names, part, strict=True))


def best_partition(topology: Topology) -> Fraction:
    """The least c(P)/(k-1) of all partitions with a member in each part."""
    best = Fraction(10**30)
    for part in partitions([device.name for device in topology.devices]):
        count = len(set(part.values()))
        if count > 1 and {part[name] for name in topology.members} == set(part.values()):
            best = min(best, between(topology, part) / (count - 1))
    return best


@given(topologies(max_devices=8, relays=True))
def test_cuts_are_the_tightest_of_all(topology: Topology) -> None:
    for name in ONE_WAY:
        collective = Collective(name, topology.ranks - 1 if name in ("broadcast", "gather") else 0)
        result = bound(topology, collective)
        cut = result.scoped("cut")
        assert cut is not None
        assert cut.rate == best_cut(topology, collective)
        assert all(not entry.check(topology, collective) for entry in result.bounds)


@settings(max_examples=4)
@given(topologies(min_devices=11, max_devices=12, relays=True))
def test_cuts_of_twelve_devices(topology: Topology) -> None:
    for name in ("allgather", "broadcast", "scatter"):
        cut = bound(topology, Collective(name)).scoped("cut")
        assert cut is not None
        assert cut.rate == best_cut(topology, Collective(name))


@given(topologies(max_devices=7, switches=False, relays=False))
def test_partitions_of_direct_graphs_are_the_best_of_all(topology: Topology) -> None:
    result = bound(topology, Collective("allreduce"))
    partition = result.scoped("partition")
    assert partition is not None
    assert partition.rate == best_partition(topology) / 2
    assert all(not entry.check(topology, result.collective) for entry in result.bounds)


@given(topologies(max_devices=7, relays=True))
def test_allreduce_bounds_stand_in_order(topology: Topology) -> None:
    result = bound(topology, Collective("allreduce"))
    rates = {entry.scope: entry.rate for entry in result.bounds}
    assert rates["cut"] == best_cut(topology, result.collective)
    # With devices that only forward, the partition found is valid, and never below the best one.
    assert best_partition(topology) / 2 <= rates["partition"]
    assert result.rate == min(rate for scope, rate in rates.items() if "+" not in scope)
    phases = result.scoped("reduce-scatter + allgather")
    assert phases is not None
    if phases.exact:
        assert phases.rate <= result.rate
    assert all(not entry.check(topology, result.collective) for entry in result.bounds)


@settings(max_examples=30)
@given(topologies(max_devices=6, half_duplex=True, relays=True))
def test_alltoall_lengths_agree_with_the_program(topology: Topology) -> None:
    result = bound(topology, Collective("alltoall"))
    cut, lengths = result.scoped("cut"), result.scoped("lengths")
    assert cut is not None
    assert lengths is not None
    assert lengths.exact
    assert lengths.rate <= cut.rate == best_cut(topology, result.collective)


@settings(max_examples=30)
@given(topologies(max_devices=8, half_duplex=False, relays=True))
def test_networkx_finds_the_flows_that_attain_allgather(topology: Topology) -> None:
    rate = bound(topology, Collective("allgather")).rate
    share = rate / topology.ranks
    graph: nx.DiGraph[str] = nx.DiGraph()
    for link in topology.links:
        before = graph.get_edge_data(link.src, link.dst, {"capacity": Fraction(0)})["capacity"]
        graph.add_edge(link.src, link.dst, capacity=before + link.bandwidth)
    for name in topology.members:
        graph.add_edge("source", name, capacity=share)
    for sink in topology.members:
        assert nx.maximum_flow_value(graph, "source", sink) == rate


@settings(max_examples=25)
@given(st.data())
def test_names_and_order_do_not_matter(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_devices=7, relays=True))
    other, _ = data.draw(renamed(topology))
    for name in COLLECTIVES:
        mine, theirs = bound(topology, Collective(name)), bound(other, Collective(name))
        assert (mine.rate, mine.headline.exact) == (theirs.rate, theirs.headline.exact)
        assert {x.scope: x.rate for x in mine.bounds if x.exact} == {x.scope: x.rate for x in theirs.bounds if x.exact}


@settings(max_examples=25)
@given(st.data())
def test_a_further_link_lowers_no_bound(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_devices=7, switches=False))
    a, b = data.draw(st.permutations(topology.members))[:2]
    rate = Fraction(data.draw(st.integers(1, 9)) * GB)
    more = replace(topology, links=(*topology.links, Link(a, b, "more", rate), Link(b, a, "more", rate)))
    for name in COLLECTIVES:
        before, after = bound(topology, Collective(name)), bound(more, Collective(name))
        assert after.rate >= before.rate


def test_renamed_v100_machine_has_the_same_bounds() -> None:
    machine = dgx1v()
    shuffled = machine.select([f"gpu{i}" for i in (3, 1, 7, 5, 0, 2, 6, 4)])
    turned = replace(shuffled, devices=shuffled.devices[::-1], links=shuffled.links[::-1])
    for name in COLLECTIVES:
        assert bound(turned, Collective(name)).rate == bound(machine, Collective(name)).rate


@pytest.mark.parametrize("port", ["n1.nic3-fabric", "n2.gpu5-n2.nvswitch"])
def test_symmetry_changes_no_bound(port: str) -> None:
    # The same rate with one sink per orbit and with all of them; with one slow link, the orbits are gone.
    whole = a100(4)
    for name in ("allgather", "reducescatter", "broadcast"):
        collective = Collective(name)
        assert bound(whole, collective).rate == bound(replace(whole, symmetries=()), collective).rate
        slower = whole.degrade(port, bandwidth="10GB/s")
        assert bound(slower, collective).rate < bound(whole, collective).rate
        # A wrong generator is not believed.
        assert bound(replace(slower, symmetries=whole.symmetries), collective).rate == bound(slower, collective).rate


@given(st.data())
def test_serving_sinks_host_by_host_finds_the_same_cuts(data: st.DataObject) -> None:
    # Wherever devices are said to sit, the tightest cut is the same.
    topology = data.draw(topologies(min_devices=5, max_devices=9, relays=True))
    nodes = [data.draw(st.integers(-1, 4)) for _ in topology.devices]
    spread = replace(topology, devices=tuple(replace(d, node=n) for d, n in zip(topology.devices, nodes, strict=True)))
    for name in ("allgather", "reducescatter", "broadcast", "reduce"):
        cut = bound(spread, Collective(name)).scoped("cut")
        assert cut is not None
        assert cut.rate == best_cut(topology, Collective(name))


@pytest.mark.slow
@settings(max_examples=8)
@given(st.data())
def test_slow_links_in_a_cluster_are_found(data: st.DataObject) -> None:
    whole = a100(6)
    for link in data.draw(st.lists(st.sampled_from(whole.links), min_size=1, max_size=4, unique=True)):
        slower = data.draw(st.integers(1, 24))
        whole = whole.degrade(f"{link.src}->{link.dst}", bandwidth=f"{slower}GB/s") if link.lanes == 1 else whole
    one_host = replace(whole, devices=tuple(replace(device, node=0) for device in whole.devices))
    for name in ("allgather", "reducescatter", "broadcast"):
        piecewise, at_once = bound(whole, Collective(name)), bound(one_host, Collective(name))
        assert [entry.rate for entry in piecewise.bounds if entry.scope == "cut"] == [
            entry.rate for entry in at_once.bounds if entry.scope == "cut"
        ]


@pytest.mark.parametrize("rates", [{}, {"pcie": "12GB/s"}, {"nvlink": "40GB/s"}, {"nvlink": "30GB/s", "ib": "100GB/s"}])
def test_programs_over_orbits_give_the_same_rates(rates: dict[str, str]) -> None:
    whole = a100(3)
    for kind, rate in rates.items():
        whole = whole.replace(kind, bandwidth=rate)
    assert whole.symmetries
    for name in ("allreduce", "alltoall"):
        symmetric = bound(whole, Collective(name))
        plain = bound(replace(whole, symmetries=()), Collective(name))
        expected = [(entry.scope, entry.rate, entry.exact) for entry in plain.bounds]
        assert [(entry.scope, entry.rate, entry.exact) for entry in symmetric.bounds] == expected
        assert symmetric.headline.exact


def spanning_trees(topology: Topology, root: str) -> list[frozenset[int]]:
    """All out-trees from `root` over the links of a direct graph, as sets of link numbers."""
    others = [name for name in topology.members if name != root]
    entering = [[i for i, link in enumerate(topology.links) if link.dst == name] for name in others]
    trees = []
    for choice in product(*entering):
        reached, grew = {root}, True
        while grew:
            grew = False
            for i in choice:
                if topology.links[i].src in reached and topology.links[i].dst not in reached:
                    reached.add(topology.links[i].dst)
                    grew = True
        if len(reached) == topology.ranks:
            trees.append(frozenset(choice))
    return trees


def packed(topology: Topology, name: str) -> float:
    """The best algbw of a packing of all trees there are, by a linear program with one variable per choice of trees."""
    turned = replace(topology, links=tuple(replace(x, src=x.dst, dst=x.src) for x in topology.links))
    program = Program()
    columns: list[tuple[str, dict[int, int]]] = []
    for root in topology.members:
        out, back = spanning_trees(topology, root), spanning_trees(turned, root)
        choices = product(out, back) if name == "allreduce" else ((tree,) for tree in out)
        for trees in choices:
            uses: dict[int, int] = {}
            for number in (number for tree in trees for number in tree):
                uses[number] = uses.get(number, 0) + 1
            columns.append((root, uses))
    amounts = program.variables(len(columns))
    groups: dict[str, list[int]] = {}
    for i, link in enumerate(topology.links):
        groups.setdefault(link.bus or link.name, []).append(i)
    for shared in groups.values():
        terms = [
            (amount, float(sum(uses.get(link, 0) for link in shared)))
            for amount, (_, uses) in zip(amounts, columns, strict=True)
        ]
        program.row([term for term in terms if term[1]], at_most=float(topology.links[shared[0]].bandwidth) / GB)
    if name == "allgather":
        # Every root spreads as much.
        for other in topology.members[1:]:
            factor = {other: 1.0, topology.members[0]: -1.0}
            terms = [(a, factor[root]) for a, (root, _) in zip(amounts, columns, strict=True) if root in factor]
            program.row(terms, at_least=0.0, at_most=0.0)
    return program.solve([(amount, 1.0) for amount in amounts])


@given(topologies(max_devices=4, switches=False))
def test_exact_bounds_are_attained_by_packing_all_trees(topology: Topology) -> None:
    # Unequal directions and shared buses included: a packing of explicit trees reaches what is called exact.
    for name in ("allgather", "allreduce"):
        result = bound(topology, Collective(name))
        assert result.headline.exact
        assert packed(topology, name) == pytest.approx(float(result.rate) / GB, rel=1e-9)
