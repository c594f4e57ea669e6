"""Blink+ on every tenant of the report and every pair of a DGX-1V; least Steiner trees against brute force."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations

import independent_check
import networkx as nx
import pytest
from dgx1_subsets import GOLDEN, MACHINES, machine
from in_pieces import cut
from proved_gaps import gap, proved

import blinksim as bs
from blinksim.algorithms import blinkplus
from blinksim.algorithms.blinkplus import lanes
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.gpu.execution.numpy_executor import interpret
from blinksim.gpu.execution.reference import Reference
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.of_calls import compile_schedule
from blinksim.graphs.rooted_trees import longest_path
from blinksim.machines import load
from blinksim.packing import tree_columns
from blinksim.packing.tree_columns import cheapest_tree
from blinksim.schedule.loads import Tree, rate, trees_of
from blinksim.schedule.verify import verify
from blinksim.schedule.verify_contents import scratch
from blinksim.topology.graph import Topology

ALLREDUCE = Collective("allreduce")
with (GOLDEN / "blinkplus_tenants.csv").open(encoding="utf-8", newline="") as _file:
    TENANTS = list(csv.DictReader(_file))


def tenant(gpus: Iterable[int], helpers: Iterable[int] = range(8), *, reduce: bool = True) -> Topology:
    """The tenant's GPUs of a DGX-1V with all others among `helpers` as relays."""
    own = list(gpus)
    idle = [f"gpu{i}" for i in helpers if i not in own]
    return machine("DGX-1V").select([f"gpu{i}" for i in own], relays=idle, relays_reduce=reduce)


def spelled(topology: Topology, tree: Tree) -> str:
    """``gpu0-gpu3-gpu1`` for a chain, otherwise the hops; routes are spelled out link by link."""
    joined: dict[frozenset[str], tuple[str, str]] = {}
    for _, _, links in (*reversed(tree.up), *tree.down):
        for link in (topology.links[number] for number in links):
            joined.setdefault(frozenset((link.src, link.dst)), (link.src, link.dst))
    index = topology.index
    path = longest_path([(index[a], index[b]) for a, b in joined.values()])
    if len(path) != len(joined) + 1:
        return " ".join(f"{a}-{b}" for a, b in joined.values())
    names = [topology.devices[vertex].name for vertex in path]
    rank = {name: number for number, name in enumerate(topology.members)}
    backwards = rank.get(names[-1], len(rank)) < rank.get(names[0], len(rank))
    return "-".join(reversed(names) if backwards else names)


@pytest.mark.parametrize("row", TENANTS, ids=lambda row: row["tenant"])
def test_tenants_of_the_report(row: dict[str, str]) -> None:
    pair = [int(gpu) for gpu in row["tenant"].split(",")]
    for name in ("allreduce", "broadcast", "reduce"):
        for helpers, column in ((range(4), "chains_max_4gpu"), (range(8), "chains_max_8gpu"), (pair, "direct_links")):
            schedule = blinkplus.build(tenant(pair, helpers), Collective(name))
            assert verify(schedule).ok
            assert independent_check.check(schedule) == []
            assert lanes(schedule) == int(row[column]), (name, column)
            assert gap(schedule) == "0"


def test_the_chains_that_the_report_names() -> None:
    schedule = blinkplus.build(tenant((0, 1), range(4)), ALLREDUCE)
    found = {spelled(schedule.topology, tree): tree.share for tree in trees_of(schedule)}
    named = ["gpu0-gpu1", "gpu0-gpu3-gpu1", "gpu0-gpu2-gpu1", "gpu0-gpu3-gpu2-gpu1"]
    assert found == dict.fromkeys(named, Fraction(1, 4))
    # The data of 0-3 is split 2:1:1 over the double link and two helpers (section 4.2).
    schedule = blinkplus.build(tenant((0, 3), range(4)), ALLREDUCE)
    split = {spelled(schedule.topology, tree): tree.share for tree in trees_of(schedule)}
    assert split == {
        "gpu0-gpu3": Fraction(1, 2),
        "gpu0-gpu1-gpu3": Fraction(1, 4),
        "gpu0-gpu2-gpu3": Fraction(1, 4),
    }


@pytest.mark.slow
def test_every_pair_reaches_all_six_lanes_with_all_gpus() -> None:
    for pair in combinations(range(8), 2):
        schedule = blinkplus.build(tenant(pair), ALLREDUCE)
        assert verify(schedule).ok
        assert lanes(schedule) == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DGX-1P", "DGX-1V"])
def test_relays_that_reduce_attain_the_bound_for_every_class_of_subsets(name: str) -> None:
    """Packed trees through all idle GPUs, also for subsets that NVLink alone does not join; proofs need no solver."""
    with (GOLDEN / "blink_subsets.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["machine"] == name and row["n"] != "8"]
    assert len(rows) == {"DGX-1P": 18, "DGX-1V": 55}[name]
    lane = MACHINES[name][1]
    for row in rows:
        own = [f"gpu{number}" for number in row["subset"].split("-")]
        idle = [device for device in machine(name).members if device not in own]
        part = machine(name).select(own, idle, relays_reduce=True)
        schedule = proved(algorithm("packed").build(part, ALLREDUCE))
        verdict = bs.verify(schedule)
        assert verdict.ok
        assert independent_check.check(schedule) == []
        assert verdict.facts.bound is not None
        assert verdict.facts.gap == 0, row["subset"]
        assert independent_check.rate(schedule) == verdict.facts.bound
        # Each pair alone has the six lanes of a GPU (four on P100), and nobody has less than without help.
        assert verdict.facts.bound >= Fraction(row["allreduce_tree_bound"]) * lane
        assert row["n"] != "2" or verdict.facts.bound == {"DGX-1P": 4, "DGX-1V": 6}[name] * lane


def test_helpers_hold_pieces_only_and_end_with_nothing() -> None:
    """A helper needs room for what passes, not for the data: its share of one chunk, less with more pieces."""
    schedule = blinkplus.build(tenant((0, 1), range(4)), ALLREDUCE)
    whole, pieces = scratch(schedule), scratch(cut(schedule, 16))
    assert {"gpu2", "gpu3"} <= set(whole)
    assert all(pieces[name] < whole[name] for name in ("gpu2", "gpu3"))


@pytest.mark.parametrize("op", ["sum", "prod", "min"])
@pytest.mark.parametrize(("gpus", "name"), [((0, 1), "allreduce"), ((0, 5, 6), "allreduce"), ((0, 5, 6), "reduce")])
def test_helpers_change_no_result(gpus: tuple[int, ...], name: str, op: str) -> None:
    """Their scratch starts with the neutral element, also where that is not zero."""
    schedule = blinkplus.build(tenant(gpus), Collective(name, 1 if name == "reduce" else 0))
    program = compile_schedule(schedule, 1003, ELEMENT_TYPES["int32"])
    reference = Reference(schedule.collective, len(gpus), program.layout.count, program.kind, op)
    outputs = interpret(program.cut(2, 64), [reference.inputs(rank) for rank in range(len(gpus))], op)
    assert sum(reference.compare(rank, output)[0] for rank, output in enumerate(outputs)) == 0


def test_fewer_channels_when_asked() -> None:
    """With three channels the tenant 0-1 gets three lanes, over the three shortest chains."""
    schedule = blinkplus.build(tenant((0, 1), range(4)), ALLREDUCE, channels=3)
    assert verify(schedule).ok
    assert lanes(schedule) == 3
    assert [spelled(schedule.topology, tree) for tree in trees_of(schedule)] == [
        "gpu0-gpu1",
        "gpu0-gpu2-gpu1",
        "gpu0-gpu3-gpu1",
    ]
    assert gap(schedule) == "1/4"
    assert lanes(blinkplus.build(tenant((0, 1), range(4)), ALLREDUCE, channels=9)) == 4
    with pytest.raises(InputError, match="0 channels"):
        blinkplus.build(tenant((0, 1)), ALLREDUCE, channels=0)


def test_relays_that_only_forward_carry_chains_of_pairs() -> None:
    schedule = blinkplus.build(tenant((0, 1), range(4), reduce=False), ALLREDUCE)
    assert verify(schedule).ok
    assert lanes(schedule) == 4
    # Every send runs between the two GPUs; relays lie on routes.
    names = {schedule.topology.devices[i].name for i in (*schedule.src, *schedule.dst)}
    assert names == {"gpu0", "gpu1"}


def test_trees_of_more_pass_relays_that_only_forward_and_branch_at_none() -> None:
    """As much as the bound allows on a DGX-1 half, where the tree of three GPUs alone has less."""
    part = tenant((0, 1, 2), range(4), reduce=False)
    schedule = blinkplus.build(part, ALLREDUCE)
    assert verify(schedule).ok
    assert rate(schedule) == bs.bound(part).rate > bs.bound(tenant((0, 1, 2), range(3))).rate
    assert {int(i) for i in (*schedule.src, *schedule.dst)} == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((0, 1, 2), 5),
        ((0, 5, 6), 5),
        ((0, 1, 4, 6), Fraction(14, 3)),
        ((0, 1, 2, 4, 5, 7), 4),
        ((0, 1, 2, 3, 4, 5, 6), Fraction(11, 3)),
    ],
    ids=str,
)
def test_larger_tenants(gpus: tuple[int, ...], expected: Fraction) -> None:
    """Broadcast always reaches the root's six lanes (Edmonds); allreduce what trees used both ways can."""
    topology = tenant(gpus)
    schedule = blinkplus.build(topology, ALLREDUCE)
    assert verify(schedule).ok
    assert lanes(schedule) == expected
    assert lanes(schedule) <= Fraction(proved(schedule).bound["rate_exact"]) / 25
    spread = blinkplus.build(topology, Collective("broadcast", 1))
    assert verify(spread).ok
    assert lanes(spread) == 6
    assert gap(spread) == "0"


def test_disconnected_tenants_need_neighbours() -> None:
    with pytest.raises(InfeasibleError, match="not connect"):
        tenant((0, 5), ())
    assert lanes(blinkplus.build(tenant((0, 5)), ALLREDUCE)) == 6


def test_on_other_machines() -> None:
    """Neighbours add nothing behind a switch, where a GPU's own port is the limit; on a torus every port is used."""
    box = load("dgx-a100")
    part = box.select(["gpu0", "gpu1"], relays=[f"gpu{i}" for i in range(2, 8)], relays_reduce=True)
    schedule = blinkplus.build(part, ALLREDUCE)
    assert schedule.chunks == 1
    assert {schedule.topology.devices[i].name for i in (*schedule.src, *schedule.dst)} == {"gpu0", "gpu1"}
    assert gap(schedule) == "0"
    torus = load("torus:3x3")
    ends = torus.select(["gpu0", "gpu4"], relays=[f"gpu{i}" for i in range(9) if i not in (0, 4)], relays_reduce=True)
    schedule = blinkplus.build(ends, ALLREDUCE)
    assert verify(schedule).ok
    assert lanes(schedule) == 4


# --- least trees --------------------------------------------------------------------------------------------------


def cost(price: dict[tuple[int, int], float], tree: Iterable[tuple[int, int]]) -> float:
    return sum(price[arc] for arc in tree)


@pytest.mark.parametrize("seed", range(25))
def test_least_trees_against_all_sets_of_helpers(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(4, 7)
    price = {
        (a, b): float(draw.randint(0, 9)) for a in range(count) for b in range(count) if a != b and draw.random() < 0.6
    }
    terminals = draw.sample(range(count), draw.randint(2, 4))
    helpers = [v for v in range(count) if v not in terminals]
    root = terminals[0]
    best = None
    for size in range(len(helpers) + 1):
        for chosen in combinations(helpers, size):
            graph: nx.DiGraph[int] = nx.DiGraph()
            graph.add_nodes_from((*terminals, *chosen))
            inside = set(graph)
            graph.add_weighted_edges_from((a, b, c) for (a, b), c in price.items() if {a, b} <= inside and b != root)
            try:
                value = nx.minimum_spanning_arborescence(graph).size(weight="weight")
            except nx.NetworkXException:
                continue
            best = value if best is None else min(best, value)
    tree = cheapest_tree(price, root, terminals, helpers)
    if best is None:
        assert tree is None
        return
    assert tree is not None
    assert cost(price, tree) == best
    reached = {root} | {b for _, b in tree}
    assert reached.issuperset(terminals)
    assert all(a in reached for a, _ in tree)
    assert len(tree) == len(reached) - 1


def test_many_terminals_try_sets_of_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the dynamic program the answer is the same on a machine with few helpers."""
    draw = random.Random(7)
    price = {(a, b): draw.random() for a in range(7) for b in range(7) if a != b}
    exact = cheapest_tree(price, 0, range(5), (5, 6))
    monkeypatch.setattr(tree_columns, "MOST_TERMINALS", 1)
    tried = cheapest_tree(price, 0, range(5), (5, 6))
    assert exact is not None
    assert tried is not None
    assert cost(price, tried) == pytest.approx(cost(price, exact))
