"""Certificates are checked by sums alone, and every damaged one is refused."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest
from golden_machines import GB, a100, aurora, dgx1v
from hypothesis import given, strategies as st
from strategies import topologies

from blinksim.bounds.bound_result import Bound
from blinksim.bounds.certificates import Cut, Partition, listed
from blinksim.bounds.claims import certificate_from_dict
from blinksim.bounds.compute import bound
from blinksim.bounds.lengths import Lengths, Metric, arborescence, distances
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.topology.graph import Device, Link, Topology

Case = tuple[str, Topology, Collective, Bound]


def cases() -> list[Case]:
    """Every bound of several machines: all kinds of certificate."""
    box, tiles, machine = a100(1), aurora(), dgx1v()
    six = machine.select([f"gpu{i}" for i in (0, 1, 2, 3, 4, 7)])
    return [
        (f"{topology.name} {topology.ranks} {name} {entry.scope}", topology, Collective(name), entry)
        for topology in (machine, six, box, tiles)
        for name in COLLECTIVES
        for entry in bound(topology, Collective(name)).bounds
    ]


CASES = cases()


def accepted(entry: dict[str, Any], topology: Topology, collective: Collective, rate: Fraction) -> bool:
    try:
        return certificate_from_dict(entry, topology, collective).rate == rate
    except BlinksimError:
        return False


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_round_trip_and_every_corruption(case: Case) -> None:
    _, topology, collective, entry = case
    original = json.loads(json.dumps(entry.certificate.to_dict()))
    assert certificate_from_dict(original, topology, collective) == entry.certificate
    assert accepted(original, topology, collective, entry.rate)
    assert not accepted(original, topology, collective, entry.rate * Fraction(999, 1000))
    assert not accepted(original, topology, collective, entry.rate + 1)
    for damaged in corruptions(original):
        assert not accepted(damaged, topology, collective, entry.rate), damaged


def corruptions(original: dict[str, Any]) -> list[dict[str, Any]]:
    """Changed capacities, moved devices, wrong counts, missing and unknown names, one at a time."""
    damaged = []

    def change(**values: Any) -> None:
        damaged.append({**copy.deepcopy(original), **values})

    for key, value in original.items():
        if key.endswith("_exact"):
            change(**{key: str(Fraction(value) + 1)})
        if key.endswith("_exact") and key != "ratio_exact":
            # Consistent with itself, and wrong.
            change(**{key: str(Fraction(value) * 2), "ratio_exact": str(Fraction(original["ratio_exact"]) * 2)})
        if isinstance(value, int):
            change(**{key: value + 1})
        if key != "kind":
            rest = copy.deepcopy(original)
            del rest[key]
            damaged.append(rest)
    match original["kind"]:
        case "cut":
            change(side=original["side"][1:])
            change(side=[*original["side"], original["side"][0]])
            change(side=[*original["side"], "gpu99"])
            change(links=original["links"][1:])
        case "partition":
            parts = copy.deepcopy(original["parts"])
            parts[1].append(parts[0].pop())
            change(parts=parts)
            change(parts=original["parts"][1:])
            change(parts=[original["parts"][0] + original["parts"][1], *original["parts"][2:]])
        case "phases":
            change(phases=original["phases"][::-1])
            change(phases=original["phases"][:1])
            for inner in corruptions(original["phases"][0]):
                change(phases=[inner, original["phases"][1]])
        case "lengths":
            name = next(iter(original["lengths"]))
            for value in ("-1", "3", "0", "1/0", 1, None):
                change(lengths={**original["lengths"], name: value})
            change(lengths={**original["lengths"], "gpu0->gpu99 (nvlink)": "1"})
            change(lengths={key: value for key, value in original["lengths"].items() if key != name})
    return damaged


def test_the_machine_must_be_the_one_that_was_measured() -> None:
    machine, collective = dgx1v(), Collective("allgather")
    entry = bound(machine, collective).headline
    for edited in (machine.degrade("gpu0-gpu3", lanes=1), machine.without("gpu0-gpu1"), machine.without("gpu7")):
        assert entry.check(edited, collective)
    assert entry.check(machine, Collective("broadcast"))
    assert entry.check(machine, Collective("allreduce"))


def test_certificates_in_words() -> None:
    machine = dgx1v()
    side = [f"gpu{i}" for i in range(7)]
    cut = Cut.of(machine, Collective("allgather"), side)
    assert cut.words(machine) == "GPU 7 can receive at most 150 GB/s and must receive 7 of 8 shards"
    apart = Partition.of(machine, Collective("allreduce"), [[name] for name in machine.members])
    expected = "14 copies of the data must cross the links between all 8 ranks, which carry 1200 GB/s together"
    assert apart.words(machine) == expected
    assert listed(["n0.gpu1", "n0.gpu0", "n0.gpu2", "n1.gpu4", "host"]) == "GPUs 0-2 of n0, GPU 4 of n1, host"
    assert listed([f"n{node}.gpu{i}" for node in (1, 2, 3) for i in range(8)]) == "GPUs 0-7 of n1-3"
    assert listed(["gpu3"]) == "GPU 3"
    assert listed([f"a{i}b" for i in range(9)], most=2) == "a0b, a1b and 7 more groups"


def test_what_a_partition_must_be() -> None:
    machine, collective = dgx1v(), Collective("allreduce")
    everything = list(machine.members)
    for parts in ([everything], [everything[:4]], [everything[:4], everything[3:]], [everything, []]):
        with pytest.raises(InputError):
            Partition.of(machine, collective, parts)
    with pytest.raises(InputError, match="says nothing about alltoall"):
        Partition.of(machine, Collective("alltoall"), [everything[:4], everything[4:]])
    with pytest.raises(InputError, match="nothing has to leave"):
        Cut.of(machine, Collective("broadcast", 0), ["gpu1"])
    with pytest.raises(InputError, match="prove nothing"):
        Lengths.of(machine, collective, {"gpu0->gpu1 (nvlink)": Fraction(1)})


def test_anybody_may_choose_the_lengths() -> None:
    # Any lengths give a bound, never below the true one.
    machine, collective = dgx1v(), Collective("alltoall")
    best = bound(machine, collective).rate
    for number in (1, 3, 7):
        lengths = {x.name: Fraction(1 + i * number % 5) for i, x in enumerate(machine.links)}
        assert Lengths.of(machine, collective, lengths).rate >= best


@given(st.integers(2, 5), st.data())
def test_arborescences_against_all_parent_choices(count: int, data: st.DataObject) -> None:
    weights = st.integers(0, 6)
    cost = [[0 if i == j else data.draw(weights) for j in range(count)] for i in range(count)]
    root = data.draw(st.integers(0, count - 1))
    best = None
    for code in range(count**count):
        parent = [code // count**j % count for j in range(count)]
        if parent[root] == root and all(_reaches(parent, j, root) for j in range(count)):
            total = sum(cost[parent[j]][j] for j in range(count) if j != root)
            best = total if best is None else min(best, total)
    assert arborescence(cost, root) == best


def _reaches(parent: list[int], start: int, root: int) -> bool:
    for _ in parent:
        start = parent[start]
    return start == root


def test_checking_needs_no_solver() -> None:
    source = """
import json, sys
from fractions import Fraction
from blinksim.bounds.claims import certificate_from_dict
from blinksim.bounds.lengths import Lengths
from blinksim.collective import Collective
from blinksim.topology.graph import Device, Link, Topology
devices = (Device("a", "gpu"), Device("b", "gpu"))
pair = Topology("pair", devices, tuple(Link(x, y, "link", Fraction(10**10)) for x, y in ("ab", "ba")))
cut = {"kind": "cut", "side": ["a"], "ranks_inside": 1, "capacity_exact": "10", "crossing_exact": "1/2",
       "ratio_exact": "20", "links": ["a->b (link)"]}
assert certificate_from_dict(cut, pair, Collective("allgather")).rate == Fraction(2 * 10**10)
lengths = Lengths.of(pair, Collective("alltoall"), {"a->b (link)": Fraction(1)})
assert not lengths.check(pair, Collective("alltoall"), lengths.rate)
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"ortools", "numpy", "networkx", "pandas"}, loaded
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"kind": "cuts"},
        {"kind": "cut"},
        {"kind": "phases", "phases": [3]},
        {"kind": "phases", "phases": []},
        {"kind": "lengths", "lengths": 3},
        {"kind": "partition", "parts": "gpu0"},
    ],
)
def test_what_is_no_certificate(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        certificate_from_dict(entry, dgx1v(), Collective("allreduce"))


def test_json_keys_of_the_result() -> None:
    machine = dgx1v()
    answer = bound(machine, Collective("allreduce")).to_dict()
    assert answer["rate_exact"] == "600/7"
    assert answer["algbw_GBps"] == pytest.approx(600 / 7)
    assert answer["busbw_GBps"] == pytest.approx(150)
    assert (answer["scope"], answer["kind"], answer["checked"]) == ("partition", "exact", True)
    assert [entry["scope"] for entry in answer["bounds"]] == ["partition", "reduce-scatter + allgather", "cut"]
    assert all(entry["checked"] and entry["assumes"] and entry["words"] for entry in answer["bounds"])
    assert json.loads(json.dumps(answer)) == answer
    assert bound(machine, Collective("broadcast", 3)).to_dict()["root"] == 3
    assert bound(machine, Collective("allgather")).time(1200 * GB) == pytest.approx(7.0)


def test_a_device_limit_does_not_stand_in_for_half_a_bus() -> None:
    # One bus of 8 GB/s between two GPUs that 5 GB/s enter and 5 GB/s leave: 8 is less than 5 + 5.
    bus = [Link(a, b, "link", Fraction(8 * 10**9), bus="shared") for a, b in (("gpu0", "gpu1"), ("gpu1", "gpu0"))]
    pair = Topology("pair", tuple(Device(f"gpu{i}", "gpu", capacity=Fraction(5 * 10**9)) for i in range(2)), tuple(bus))
    for name, best in (("allreduce", 4), ("allgather", 8)):
        partition = Partition.of(pair, Collective(name), [["gpu0"], ["gpu1"]])
        assert partition.rate == best * 10**9
        assert bound(pair, Collective(name)).rate == best * 10**9
        assert not partition.limits


@given(machine=topologies(unequal=False), data=st.data())
def test_the_least_tree_is_one_of_the_metric(machine: Topology, data: st.DataObject) -> None:
    """Against distances of all pairs, and the least tree among these."""
    length = {frozenset((link.src, link.dst)): data.draw(st.integers(0, 4)) for link in machine.links}
    whole = [length[frozenset((link.src, link.dst))] for link in machine.links]
    cost, _ = distances(machine, whole)
    assert Metric(machine, whole).least_tree() == arborescence(cost, 0)
