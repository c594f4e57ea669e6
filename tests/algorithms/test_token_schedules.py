"""Schedules of dispatch and combine, against runs on numbers, floors, trees in a linear program, and files."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path

import independent_check
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import linprog
from small_routings import Tokens, all_routings, routing_of
from strategies import topologies

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.bounds.experts import A_NODE, DIRECT
from blinksim.collective import COMBINE, DISPATCH, OF_EXPERTS
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.schedule.model import REDUCE, Schedule
from blinksim.topology.graph import Topology

GB = 10**9


def seconds(schedule: Schedule) -> Fraction:
    """Of the busiest link, added up send by send."""
    routing = schedule.collective.routing
    assert routing is not None
    return routing.size / independent_check.rate(schedule)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_every_token_is_where_it_must_be_and_every_sum_once(data: st.DataObject) -> None:
    machine = data.draw(topologies().filter(lambda one: one.ranks >= 2))
    sets = st.frozensets(st.integers(0, machine.ranks - 1), min_size=1)
    tokens = data.draw(st.lists(st.tuples(st.integers(0, machine.ranks - 1), sets), min_size=1, max_size=8))
    routing = routing_of(machine.ranks, [*tokens, (0, frozenset({1}))])
    for name in OF_EXPERTS:
        wanted = bs.Collective(name, routing=routing)
        for algorithm in ("direct", "packed"):
            made = bs.synthesize(machine, wanted, algorithm)
            assert made.verdict.ok, made.verdict
            assert independent_check.check(made.schedule) == []
            assert made.rate == independent_check.rate(made.schedule) <= bs.bound(machine, wanted).rate
            assert bs.execute(made.schedule, routing.size, dtype="int32").wrong == 0


@pytest.mark.parametrize("name", OF_EXPERTS)
@pytest.mark.parametrize("algorithm", ["rail_aligned", "packed"])
@pytest.mark.parametrize(("machine", "nodes"), [("hgx-h100", 2), ("hgx-h100", 3), ("rails:4x2", 1), ("p5.48xlarge", 2)])
def test_a_copy_a_node_crosses_once(machine: str, nodes: int, algorithm: str, name: str) -> None:
    part = bs.load(machine, nodes=nodes).selected()
    each = 2 if "x2" in machine else 8
    routing = bs.draw_routing(part.ranks, tokens=6, experts=4 * part.ranks, top_k=5, skew=0.5, ranks_per_node=each)
    wanted = bs.Collective(name, routing=routing)
    schedule = bs.synthesize(part, wanted, algorithm).schedule
    assert bs.verify(schedule).ok
    assert independent_check.check(schedule) == []
    assert schedule.steps == 2 or (algorithm == "packed" and schedule.steps == 3)
    # Every token of every rank, as a part of the size: once for each further node that it goes to.
    crossing = Fraction(0)
    for source, rows in enumerate(routing.wanted.tolist()):
        for row in rows:
            nodes_of = {rank // each for rank in row if rank >= 0} - {source // each}
            crossing += Fraction(len(nodes_of) * routing.token_size, routing.size)
    node = np.full(len(part.devices), -1)
    node[part.member_places] = np.arange(part.ranks) // each
    apart = node[schedule.src] != node[schedule.dst]
    assert sum((schedule.share(int(chunk)) for chunk in schedule.chunk[apart]), Fraction(0)) == crossing
    assert set(schedule.op[apart].tolist()) == {REDUCE if name == COMBINE else 1 - REDUCE}
    ran = bs.execute(schedule, routing.size // 100 * 4, op="sum", seed=3)
    assert ran.wrong == 0


def test_every_routing_of_four_tokens_on_three_ranks() -> None:
    """A star copies nothing: every port has what its rank sends to each, and what it receives."""
    machine, tried = bs.load("switch:3@10GB/s").selected(), set[tuple[object, ...]]()
    for tokens in all_routings(3, 4):
        key = tuple(sorted((source, *sorted(wanted)) for source, wanted in tokens))
        if key in tried:
            continue
        tried.add(key)
        wanted = bs.Collective(OF_EXPERTS[len(tried) % 2], routing=routing_of(3, tokens))
        schedule = REGISTRY["direct"].build(machine, wanted)
        assert bs.verify(schedule).ok
        copies = max(sum(len(w - {s}) for s, w in tokens if s == r) for r in range(3))
        taken = max(sum(s != r and r in w for s, w in tokens) for r in range(3))
        assert seconds(schedule) == Fraction(max(copies, taken) * 100, 10 * GB)
    assert len(tried) == 28 * 49 - 1


@pytest.mark.parametrize(("machine", "seed"), [*product(("rails:2x2", "full:5", "rails:3x2", "ring:4"), range(15))])
def test_routings_of_four_tokens_on_four_to_six_ranks(machine: str, seed: int) -> None:
    part, random = bs.load(machine).selected(), np.random.default_rng(seed)
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in random.random((4, part.ranks)) < random.uniform(0.2, 1)]
    tokens = [(token, wanted or frozenset({0, 1})) for token, wanted in enumerate(sets)]
    tokens[3] = (0, frozenset({0, part.ranks - 1}))
    for name in OF_EXPERTS:
        wanted = bs.Collective(name, routing=routing_of(part.ranks, tokens))
        for algorithm in ("direct", "packed"):
            made = bs.synthesize(part, wanted, algorithm)
            assert made.verdict.ok
            assert independent_check.check(made.schedule) == []
            assert bs.bound(part, wanted).rate >= independent_check.rate(made.schedule) == made.rate


def arborescences(machine: Topology, root: str, ends: frozenset[str]) -> list[frozenset[int]]:
    """Sets of links that lead from the root to each of the ends and have no link too many, by trying all parents."""
    into = {device.name: [e for e, x in enumerate(machine.links) if x.dst == device.name] for device in machine.devices}
    found = set[frozenset[int]]()
    others = [name for name in into if name != root]
    for parents in product(*([None, *into[name]] for name in others)):
        parent = dict(zip(others, parents, strict=True))
        if any(parent[end] is None for end in ends - {root}):
            continue
        used = set[int]()
        for end in ends - {root}:
            at, passed = end, set[str]()
            while at != root and at not in passed:
                passed.add(at)
                link = parent[at]
                if link is None:
                    break
                used.add(link)
                at = machine.links[link].src
            if at != root:
                break
        else:
            found.add(frozenset(used))
    return sorted(found, key=sorted)


def by_trees(machine: Topology, tokens: Tokens) -> float:
    """Seconds per byte of the quickest dispatch that copies tokens along trees, each in any parts."""
    columns, kinds = list[tuple[int, frozenset[int]]](), sorted({*tokens}, key=lambda one: (one[0], sorted(one[1])))
    for kind, (source, wanted) in enumerate(kinds):
        ends = frozenset(machine.members[rank] for rank in wanted)
        columns += [(kind, tree) for tree in arborescences(machine, machine.members[source], ends)]
    above = np.zeros((len(machine.links), 1 + len(columns)))
    above[:, 0] = [-float(link.bandwidth) / GB for link in machine.links]
    equal = np.zeros((len(kinds), 1 + len(columns)))
    for place, (kind, tree) in enumerate(columns, 1):
        above[list(tree), place] = 1
        equal[kind, place] = 1
    goal = np.zeros(1 + len(columns))
    goal[0] = 1
    due = [tokens.count(kind) for kind in kinds]
    found = linprog(goal, A_ub=above, b_ub=np.zeros(len(above)), A_eq=equal, b_eq=due, method="highs")
    assert found.fun is not None
    return float(found.fun) / GB


def drawn_machine(random: np.random.Generator) -> Topology:
    """Three or four GPUs, joined in a circle both ways and at random besides, with bandwidths of 1 to 8 GB/s."""
    count = int(random.integers(3, 5))
    names, links = [f"gpu{i}" for i in range(count)], []
    for a, b in combinations(range(count), 2):
        if b - a in (1, count - 1) or random.random() < 0.5:
            rate = Fraction(int(random.integers(1, 9)) * GB)
            links += [bs.Link(names[a], names[b], "link", rate), bs.Link(names[b], names[a], "link", rate)]
    devices = tuple(bs.Device(name, "gpu") for name in names)
    return Topology("drawn", devices, tuple(links), collective_links=("link",)).select()


def test_a_hundred_machines_against_the_quickest_trees() -> None:
    """The floor is what the quickest trees take, on each; no schedule is quicker, and of many tokens it is near."""
    for seed in range(100):
        random = np.random.default_rng(seed)
        machine = drawn_machine(random)
        chosen = random.random((5, machine.ranks)) < random.uniform(0.3, 0.9)
        sets = [frozenset(np.flatnonzero(row).tolist()) for row in chosen]
        tokens = [(0, frozenset({1})), *((int(random.integers(machine.ranks)), wanted) for wanted in sets if wanted)]
        wanted = bs.Collective(DISPATCH, routing=routing_of(machine.ranks, tokens, 1))
        assert wanted.routing is not None
        found, trees = bs.bound(machine, wanted), by_trees(machine, tokens)
        assert found.time(wanted.routing.size) == pytest.approx(trees, rel=1e-6)
        assert found.headline.exact
        for algorithm in ("direct", "packed"):
            assert float(seconds(bs.synthesize(machine, wanted, algorithm).schedule)) >= trees * (1 - 1e-6)
        many = bs.Collective(OF_EXPERTS[seed % 2], routing=routing_of(machine.ranks, 200 * tokens, 1))
        made = bs.synthesize(machine, many)
        assert made.gap <= Fraction(1, 20)
        assert independent_check.check(made.schedule) == []


@pytest.mark.parametrize("name", OF_EXPERTS)
@pytest.mark.parametrize("machine", ["dgx1-v100", "hypercube:3", "mesh:2x3", "ring:5", "mi300x"])
def test_tokens_go_along_trees_where_a_machine_has_no_switch(machine: str, name: str) -> None:
    part = bs.load(machine).selected()
    routing = bs.draw_routing(
        part.ranks, tokens=600, experts=2 * part.ranks, top_k=3, skew=1.0, ranks_per_node=part.ranks
    )
    made = bs.synthesize(part, bs.Collective(name, routing=routing))
    assert made.verdict.ok
    assert made.gap <= Fraction(1, 20)
    assert independent_check.check(made.schedule) == []
    assert bs.execute(made.schedule, routing.size // 100 * 4, op="sum", seed=3).wrong == 0


@pytest.mark.parametrize("seed", range(6))
def test_drawn_routings_are_within_five_per_cent(seed: int) -> None:
    """As benchmarks/bench_experts.py has 200 of, which are larger."""
    random = np.random.default_rng(seed)
    name, nodes = [("hgx-h100", 2), ("mi300x", 4), ("gb200-nvl72", 2)][seed % 3]
    part = bs.load(name, nodes=nodes).selected()
    each, skew = part.ranks // nodes, float(random.choice([0.0, 1.0, 5.0]))
    routing = bs.draw_routing(part.ranks, tokens=128, experts=part.ranks, skew=skew, ranks_per_node=each, seed=seed)
    made = bs.synthesize(part, bs.Collective(OF_EXPERTS[seed % 2], routing=routing))
    assert made.verdict.ok
    assert made.gap <= Fraction(1, 20)


@pytest.mark.parametrize("name", OF_EXPERTS)
def test_rails_are_evened_out(name: str) -> None:
    """Rank 0 has all tokens for the other node, eight times what a rail of its own can have of an even load."""
    part, ids = bs.load("hgx-h100", nodes=2).selected(), np.full((16, 80, 2), -1)
    ids[0] = [[8 + number % 8, 8 + (number + 3) % 8] for number in range(80)]
    # Tokens that cross are few of many alike: each of the classes goes to one rail as a whole.
    routing = bs.Routing(ids, 16, token_size=100)
    wanted = bs.Collective(name, routing=routing)
    aligned, even = (bs.synthesize(part, wanted, algorithm) for algorithm in ("rail_aligned", "packed"))
    assert even.verdict.ok
    assert even.schedule.steps == 3
    assert even.rate == 8 * aligned.rate
    assert bs.execute(even.schedule, routing.size, dtype="int32").wrong == 0


@pytest.mark.parametrize("name", OF_EXPERTS)
@pytest.mark.parametrize(("machine", "nodes", "tokens"), [("hgx-h100", 1, 64), ("hgx-h100", 2, 4), ("mi300x", 4, 16)])
def test_projected_times_are_those_of_the_schedules(machine: str, nodes: int, tokens: int, name: str) -> None:
    """Added up from what pairs of ranks send, without a schedule; and near a simulation, message by message."""
    part = bs.load(machine, nodes=nodes).selected()
    routing = bs.draw_routing(part.ranks, tokens=tokens, experts=4 * part.ranks)
    wanted = bs.Collective(name, routing=routing)
    projected = bs.project_experts(part, wanted)
    times = {row["way"]: row["time_s"] for row in projected.rows()}
    assert projected.could_s == min(times.values())
    for way, algorithm in ((A_NODE, "packed" if nodes == 1 else "rail_aligned"), (DIRECT, "direct")):
        found = bs.project(part, wanted, algorithm=algorithm)
        assert times[way] == pytest.approx(found.time_s, rel=1e-9)
        made = bs.synthesize(part, wanted, algorithm)
        ran = min(bs.simulate(made, routing.size, service=one, messages="joined").time_s for one in ("fifo", "ordered"))
        # Sums leave out that messages wait for each other.
        assert 0.7 * ran <= times[way] <= 1.15 * ran


@pytest.fixture
def small() -> Schedule:
    routing = bs.draw_routing(4, tokens=3, experts=8, top_k=2, ranks_per_node=2)
    return bs.synthesize("rails:2x2", bs.Collective(DISPATCH, routing=routing)).schedule


@pytest.mark.parametrize("name", OF_EXPERTS)
@pytest.mark.parametrize("tokens", [3, 1500])
def test_files_keep_tokens(name: str, tokens: int, tmp_path: Path) -> None:
    """Short lists as numbers, long ones as base64."""
    routing = bs.draw_routing(4, tokens=tokens, experts=8, top_k=2, ranks_per_node=2)
    made = bs.synthesize("rails:2x2", bs.Collective(name, routing=routing))
    path = tmp_path / "made.json"
    bs.write(made, path)
    read = bs.read_schedule(path)
    assert read.collective == made.schedule.collective
    assert bs.verify(read).ok
    assert bs.verify_file(path).ok
    wanted = json.loads(path.read_text())["collective"]["routing"]["wanted"]
    assert isinstance(wanted, list) == (tokens == 3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"wanted": [0]}, "routing.wanted: has 1 entries"),
        ({"wanted": [[0]] * 24}, "routing.wanted"),
        ({"ranks": 0}, "routing.ranks: must lie between"),
        ({"token_bytes": 0}, "routing.token_bytes: must lie between"),
        ({"wanted": [9] * 24}, "expert 9 is wanted"),
        ({"other": 1}, "other"),
        (None, "is missing: the ranks that every token goes to"),
    ],
)
def test_one_message_for_a_wrong_file(
    small: Schedule, tmp_path: Path, change: dict[str, object] | None, why: str
) -> None:
    path = tmp_path / "made.json"
    bs.write(small, path)
    document = json.loads(path.read_text())
    document["collective"]["routing"] = None if change is None else document["collective"]["routing"] | change
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match=why):
        bs.read_schedule(path)
    document["collective"] = {"name": "allreduce", "routing": {}}
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match="goes with dispatch and combine"):
        bs.read_schedule(path)


def test_reasons_name_the_ranks(small: Schedule) -> None:
    shares = small.share_num.copy()
    shares[0] -= 1
    shares[1] += 1
    [reason] = bs.verify(replace(small, share_num=shares)).reasons
    assert "of its size with ranks" in reason
    target = small.target.copy()
    target[0] = (target[0] + 1) % len(small.collective.routing.classes.sets) if small.collective.routing else 0
    assert any("tokens that the routing does not have" in why or "with ranks" in why
               for why in bs.verify(replace(small, target=target)).reasons)  # fmt: skip
    with pytest.raises(InputError, match="outside"):
        replace(small, target=np.full_like(small.target, 99))
    assert "in place, blocks" in str(bs.verify(small, in_place=True).reasons)
    with pytest.raises(InputError, match="cannot run in place"):
        bs.execute(small, "1KiB", in_place=True)


def test_what_is_too_long_to_write_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blinksim.algorithms.building.token_sends.MOST_SENDS", 100)
    routing = bs.draw_routing(6, tokens=300, experts=12, top_k=3)
    with pytest.raises(InfeasibleError, match="at most 100 are written out: take some"):
        bs.synthesize("switch:6", bs.Collective(DISPATCH, routing=routing))


def test_what_runs_elsewhere_is_refused(small: Schedule, tmp_path: Path) -> None:
    for name in ("msccl-xml", "mscclpp-json"):
        with pytest.raises(InfeasibleError):
            bs.export(small, name)
