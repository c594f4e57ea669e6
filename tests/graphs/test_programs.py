"""The tree program and the flow program against NetworkX flows, and with symmetry against without."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st
from strategies import topologies

from blinksim import machines
from blinksim.graphs.network import Network, network, network_orbits
from blinksim.graphs.programs import Commodity, Program, SharedCapacity, shared_capacities, solve_flows, solve_trees
from blinksim.topology.graph import Topology


def greatest_flow(net: Network, source: int, sink: int) -> int:
    graph: nx.DiGraph[int] = nx.DiGraph()
    for a, b, capacity in zip(net.tail.tolist(), net.head.tolist(), net.capacity.tolist(), strict=True):
        known = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=known + capacity)
    return int(nx.maximum_flow_value(graph, source, sink))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(topologies(max_devices=6, half_duplex=False))
def test_trees_from_one_root_reach_the_least_of_its_flows(topology: Topology) -> None:
    """Edmonds (1973): out-trees from a root are worth its least greatest flow; in-trees those of the way back."""
    net = network(topology)
    shared = shared_capacities(topology, net)
    root, *others = net.members.tolist()
    out = solve_trees(net, shared, {root: 1})
    assert out.value == pytest.approx(min(greatest_flow(net, root, other) for other in others))
    back = solve_trees(net.reversed(), shared, {root: 1})
    assert back.value == pytest.approx(min(greatest_flow(net, other, root) for other in others))
    # The duals price the capacities at what the trees are worth, and the uses fit the capacities.
    paid = sum(dual * capacity.capacity for dual, capacity in zip(out.duals, shared, strict=True))
    assert paid == pytest.approx(out.value)
    for used, capacity in zip(out.used[0], net.capacity.tolist(), strict=True):
        assert used <= capacity * (1 + 1e-9)


def best_by_flows(net: Network, shared: list[SharedCapacity], both: bool) -> float:
    """The same optimum as one program without sets: a flow from the roots to every member within what trees use."""
    program = Program()
    scale = float(net.capacity.max())
    rates = program.variables(len(net.members) if both else 1)
    roots = {vertex: rates[number if both else 0] for number, vertex in enumerate(net.members.tolist())}
    carried: list[list[int]] = [[] for _ in net.tail]
    for way in (net, net.reversed())[: 1 + both]:
        ends = list(zip(way.tail.tolist(), way.head.tolist(), strict=True))
        used = program.variables(len(ends))
        for arc, variable in enumerate(used):
            carried[arc].append(variable)

        def balance(
            flow: range, vertex: int, ends: list[tuple[int, int]] = ends, own: int | None = None
        ) -> list[tuple[int, float]]:
            """What leaves a vertex beyond what enters it, less what starts there."""
            terms = [(flow[arc], float((a == vertex) - (b == vertex))) for arc, (a, b) in enumerate(ends)]
            return [term for term in terms if term[1]] + ([] if own is None else [(own, -1.0)])

        for vertex in net.forwarders.tolist():
            program.row(balance(used, vertex), at_most=0)
        for sink in roots:
            flow = program.variables(len(ends))
            for part, whole in zip(flow, used, strict=True):
                program.row([(part, 1.0), (whole, -1.0)], at_most=0)
            for vertex in set(range(net.vertices)) - {sink}:
                program.row(balance(flow, vertex, own=roots.get(vertex)), at_least=0, at_most=0)
    for one in shared:
        terms = [(variable, part) for arc, part in one.uses for variable in carried[arc]]
        program.row(terms, at_most=one.capacity / scale)
    return program.solve([(rate, 1.0 if both else float(len(roots))) for rate in rates]) * scale


@given(topologies(max_devices=7), st.booleans())
def test_the_sets_that_are_asked_for_suffice(topology: Topology, both: bool) -> None:
    net = network(topology)
    shared = shared_capacities(topology, net)
    weights = None if both else dict.fromkeys(net.members.tolist(), 1)
    found = solve_trees(net, shared, weights, both=both)
    assert found.value == pytest.approx(best_by_flows(net, shared, both))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(topologies(max_devices=6, half_duplex=False))
def test_one_commodity_is_a_greatest_flow(topology: Topology) -> None:
    net = network(topology)
    source, *_, sink = net.members.tolist()
    solution = solve_flows(net, shared_capacities(topology, net), [Commodity(source, {sink: 2})])
    assert 2 * solution.value == pytest.approx(greatest_flow(net, source, sink))
    arrives = sum(flow for flow, b in zip(solution.flows[0], net.head.tolist(), strict=True) if b == sink)
    leaves = sum(flow for flow, a in zip(solution.flows[0], net.tail.tolist(), strict=True) if a == sink)
    assert arrives - leaves == pytest.approx(2 * solution.value)


@pytest.mark.parametrize(("name", "nodes"), [("torus:3x3", 1), ("dgx-a100", 2), ("rails:2x3@200GB/s,50GB/s", 1)])
def test_orbits_change_no_optimum(name: str, nodes: int) -> None:
    topology = machines.load(name, nodes=nodes).select()
    net = network(topology)
    shared, orbits = shared_capacities(topology, net), network_orbits(topology, net)
    assert orbits.arcs < len(net.tail)
    equal = dict.fromkeys(net.members.tolist(), 1)
    for weights, both in ((equal, False), (None, True)):
        small = solve_trees(net, shared, weights, both=both, orbits=orbits)
        assert small.value == pytest.approx(solve_trees(net, shared, weights, both=both).value)
    few = [Commodity(source, equal) for source in orbits.first]
    every = [Commodity(source, equal) for source in net.members.tolist()]
    rate = solve_flows(net, shared, few, orbits=orbits).value
    assert rate == pytest.approx(solve_flows(net, shared, every).value)
