"""Schedules by symmetry: the same as written out, in rate, loads and scratch, and refused where they are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.building.symmetric_trees import symmetric_device_trees, symmetric_host_trees
from blinksim.algorithms.packed import from_hosts
from blinksim.collective import Collective
from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.formats import schedule_json
from blinksim.formats.schedule_json import packed
from blinksim.schedule import loads, verify_contents
from blinksim.schedule.candidate import SymmetricSchedule
from blinksim.schedule.loads import rate, resource_loads, resources
from blinksim.schedule.model import COPY
from blinksim.schedule.verify import overwritten_in_place, verify, wrong_exchange
from blinksim.timing.alpha_beta import cost
from blinksim.topology.symmetry import find_commuting_group

SLOW = "degrade n2.nic3-fabric3 bandwidth=20GB/s"


def part_of(name: str, nodes: int, *edits: str, leaf_nodes: int = 0) -> bs.Topology:
    node = bs.load(name)
    if not leaf_nodes:
        return bs.load(name, nodes=nodes, edits=edits).select()
    assert node.fabric is not None
    fabric = replace(node.fabric, shape="tree", planes=1, leaf_nodes=leaf_nodes, oversubscription=Fraction(2))
    return node.replicate(nodes, fabric).select()


def without_node(part: bs.Topology, node: int) -> bs.Topology:
    return part.select([name for name in part.members if not name.startswith(f"n{node}.")])


PARTS = {
    "rails": part_of("hgx-h100", 9),
    "one slow port": part_of("hgx-h100", 9, SLOW),
    "one node less": without_node(part_of("hgx-h100", 9), 3),
    "two ports a pair": part_of("dgx-a100", 5),
    "tiles": part_of("aurora", 3),
    "leaves": part_of("hgx-h100", 8, leaf_nodes=4),
    "a leaf that is not full": part_of("hgx-h100", 7, leaf_nodes=4),
}


def made(part: bs.Topology, name: str, aim: Fraction | None = None) -> SymmetricSchedule | None:
    """At nine tenths of what every node can send: all of these machines attain that."""
    collective = Collective(name)
    return symmetric_host_trees(part, collective, aim or Fraction(9, 10) * ceiling(part, name))


def ceiling(part: bs.Topology, name: str) -> Fraction:
    from blinksim.bounds.quick import quick_bound

    return quick_bound(part, Collective(name)).rate


@pytest.mark.parametrize(("machine", "edit"), [("p5", "without n3.efa0"), ("hgx-h100", "without n3.nic0")])
@pytest.mark.parametrize("nodes", [24, 64])
def test_a_damaged_node_leaves_trees_of_all_shares(machine: str, edit: str, nodes: int) -> None:
    """Shares are rounded as far as their sum lets them be, by next to nothing."""
    part = part_of(machine, nodes, edit)
    found = made(part, "allreduce")
    assert found is not None
    assert found.base.share_den <= 2**40
    assert found.rate is not None
    assert found.rate >= Fraction(85, 100) * ceiling(part, "allreduce")


@pytest.mark.parametrize("name", ["allgather", "reducescatter", "allreduce"])
@pytest.mark.parametrize("machine", PARTS)
def test_it_is_what_it_is_written_out(machine: str, name: str) -> None:
    part = PARTS[machine]
    whole = made(part, name)
    assert whole is not None
    assert whole.base.sends < whole.sends
    full, proof = whole.schedule, verify(whole)
    old = verify(full)
    assert proof.ok, proof.reasons
    assert old.ok, old.reasons
    assert (whole.chunks, whole.sends, whole.steps) == (full.chunks, full.sends, full.steps)
    assert proof.facts == old.facts or _but_for_names(proof.facts) == _but_for_names(old.facts)
    shared = resources(part)
    pooled = resource_loads(whole.weighted, whole.pooled.shared)
    each = [pooled[orbit] / int(whole.pooled.size[orbit]) for orbit in whole.pooled.orbit.tolist()]
    assert each == resource_loads(full, shared)


@pytest.mark.parametrize("name", ["allgather", "allreduce"])
@pytest.mark.parametrize("machine", PARTS)
def test_it_takes_the_time_that_a_simulation_of_what_is_written_out_takes(machine: str, name: str) -> None:
    """On links that cost their senders time for every message; written out, it counts who meets whom in order."""
    part = PARTS[machine].replace("ib" if machine != "tiles" else "slingshot", overhead=3e-7)
    whole = made(part, name)
    assert whole is not None
    full = whole.schedule
    for size in (2**10, 2**20, 2**30):
        once, all_ = cost(whole, size), cost(full, size)
        simulated = bs.simulate(full, size).time_s
        assert 0.9 * simulated <= once.time_s <= 1.23 * simulated
        assert 0.9 * simulated <= all_.time_s <= 1.15 * simulated
        summed = [
            {x.limit: x.time_s for x in cost(form, size, 1e-12).terms}.get("gamma", 0.0) for form in (whole, full)
        ]
        assert summed[0] == pytest.approx(summed[1], rel=1e-12)
        assert (summed[0] > 0) == (name == "allreduce")
        assert once.steps == all_.steps


def _but_for_names(facts: object) -> object:
    return replace(facts, busiest="")  # type: ignore[type-var]


@pytest.mark.parametrize("machine", ["rails", "two ports a pair", "one node less"])
def test_it_takes_no_longer_than_the_schedule_that_is_built_in_full(machine: str) -> None:
    part, collective = PARTS[machine], Collective("allgather")
    aim = ceiling(part, "allgather")
    whole, old = made(part, "allgather", aim), from_hosts(part, collective, aim)
    assert whole is not None
    assert old is not None
    assert (whole.chunks, whole.sends) == (old.chunks, old.sends)
    # The same sends in another order: turned trees begin with other ranks each, and so meet less.
    times = [bs.simulate(one, 2**22, chunk=2**16).time_s for one in (whole.schedule, old)]
    assert 0.8 * times[1] < times[0] < 1.01 * times[1]


def test_numbers_of_the_devices_change_nothing() -> None:
    part = PARTS["one slow port"]
    order = np.random.default_rng(1).permutation(len(part.devices)).tolist()
    other = replace(part, devices=tuple(part.devices[place] for place in order), symmetries=())
    rates = {whole.rate for one in (part, other) if (whole := made(one, "allgather")) is not None}
    assert len(rates) == 1


@pytest.mark.parametrize("change", ["send", "share", "route", "step"])
def test_what_is_wrong_with_a_chunk_is_found(change: str) -> None:
    whole = made(PARTS["rails"], "allgather")
    assert whole is not None
    base = whole.base
    if change == "send":
        rows = {key: getattr(base, key)[:-1] for key in ("chunk", "src", "dst", "op", "step", "route", "channel")}
        wrong = replace(base, **rows)
    elif change == "share":
        wrong = replace(base, share_num=base.share_num * 2)
    elif change == "route":
        wrong = replace(base, route=np.roll(base.route, 1))
    else:
        wrong = replace(base, step=np.zeros_like(base.step))
    verdict = verify(replace(whole, base=wrong))
    assert not verdict.ok
    assert not verify(replace(whole, base=wrong).schedule).ok


@pytest.mark.parametrize(("name", "source"), [("broadcast", "allgather"), ("reduce", "reducescatter")])
def test_symmetries_that_move_the_root_are_wrong(name: str, source: str) -> None:
    """The trees of all ranks, called those of the root: only the images at the root are right."""
    whole = made(PARTS["rails"], source)
    assert whole is not None
    nobody = np.full_like(whole.base.origin, -1)
    base = replace(whole.base, collective=Collective(name), origin=nobody, target=nobody)
    verdict = verify(replace(whole, base=base))
    assert verdict.reasons[0] == "its symmetries move the root n0.gpu0"
    assert not verify(replace(whole, base=base).schedule).ok


def test_the_symmetries_must_be_those_of_the_machine() -> None:
    whole = made(PARTS["rails"], "allgather")
    other = find_commuting_group(part_of("hgx-h100", 9))
    assert whole is not None
    assert other is not None
    with pytest.raises(InputError, match="those of another machine"):
        SymmetricSchedule(whole.base, other)


def test_too_many_sends_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made(PARTS["rails"], "allgather")
    assert whole is not None
    monkeypatch.setattr(loads, "MOST_SENDS", 100)
    with pytest.raises(InfeasibleError, match="once every tree is written out, more than 100"):
        _ = whole.schedule


# --- exchanges ------------------------------------------------------------------------------------------------------


def straight(machine: str) -> SymmetricSchedule:
    """An alltoall whose blocks go from rank to rank, one of every sort: each in two halves in turn, on their own."""
    part = bs.load(machine).select()
    turns = find_commuting_group(part)
    assert turns is not None
    ranks = np.arange(part.ranks)
    src, dst = (grid.ravel() for grid in np.meshgrid(ranks, ranks, indexing="ij"))
    device = np.array([part.index[name] for name in part.members])
    a, b, _ = turns.between(device[src], device[dst])
    pairs = [(i, j) for i, j in dict.fromkeys(zip(a.tolist(), b.tolist(), strict=True)) for _ in range(2)]
    plan = Plan(part, Collective("alltoall"), "direct", "steps")
    rank = {int(place): number for number, place in enumerate(device)}
    for number, (i, j) in enumerate(pairs):
        chunk = plan.add_chunk(Fraction(1, 2 * part.ranks), origin=rank[i], target=rank[j])
        if i != j:
            plan.send(rank[i], rank[j], chunk=chunk, op=COPY, step=number % 2)
    return SymmetricSchedule(plan.finish(), turns)


@settings(max_examples=25)
@given(st.data())
def test_blocks_of_each_sort_prove_what_all_blocks_do(data: st.DataObject) -> None:
    """Shares, labels and steps of a right exchange are changed at random: both proofs agree on what is wrong."""
    whole = straight(data.draw(st.sampled_from(["ring:5", "torus:2x3", "rails:3x2", "fattree:4x2", "full:4"])))
    base, n = whole.base, whole.topology.ranks
    columns = {key: getattr(base, key).copy() for key in ("origin", "target", "share_num", "step")}
    for _ in range(data.draw(st.integers(0, 2))):
        key = data.draw(st.sampled_from(sorted(columns)))
        place = data.draw(st.integers(0, len(columns[key]) - 1))
        most = {"share_num": 3, "step": 1}.get(key, n - 1)
        columns[key][place] = data.draw(st.integers(-1 if most == n - 1 else 0, most))
    order = np.argsort(columns["step"], kind="stable")
    sends = {key: getattr(base, key)[order] for key in ("chunk", "src", "dst", "op", "route", "channel")}
    changed = replace(whole, base=replace(base, **columns | {"step": columns["step"][order]}, **sends))
    full = changed.schedule
    assert bool(list(wrong_exchange(changed))) == bool(list(verify_contents.wrong_chunks(full)))
    assert verify(changed).ok == verify(full).ok
    if not list(verify_contents.wrong_chunks(full)):
        assert (overwritten_in_place(changed) is None) == (overwritten_in_place(full) is None)


def test_a_block_that_nobody_sends_is_named() -> None:
    whole = straight("ring:5")
    base = whole.base
    kept = np.flatnonzero(base.origin != base.target)
    number = np.cumsum(base.origin != base.target) - 1
    columns = {key: getattr(base, key)[kept] for key in ("origin", "target", "share_num")}
    fewer = replace(whole, base=replace(base, chunk=number[base.chunk].astype(np.int32), **columns))
    assert list(wrong_exchange(fewer)) == ["5 ranks have 25 blocks to exchange, but there are chunks for 20 only"]
    light = replace(whole, base=replace(base, share_num=base.share_num * 0 + 2))
    assert list(wrong_exchange(light)) == ["rank 0 has 2/5 of its size for rank 0, not 1/5"]


# --- files --------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> SymmetricSchedule:
    monkeypatch.setattr(schedule_json, "MOST_WRITTEN_OUT", 0)
    found = made(PARTS["one slow port"], "allreduce")
    assert found is not None
    return found


def test_a_file_says_it_once_and_is_read_again(large: SymmetricSchedule, tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    bs.write(large, path)
    document = json.loads(path.read_text())
    again = schedule_json.compact_from_document(path, document)
    assert document["version"] == 2
    assert isinstance(again, SymmetricSchedule)
    assert (again.rate, again.sends, again.topology) == (large.rate, large.sends, large.topology)
    for key in ("share_num", "origin", "chunk", "src", "dst", "op", "step", "route", "channel", "route_links"):
        assert np.array_equal(getattr(again.base, key), getattr(large.base, key))
    assert bs.verify(path).ok
    assert bs.verify_file(path).ok
    assert bs.read_schedule(path).sends == large.sends


def test_a_small_one_is_written_for_readers_of_version_1(tmp_path: Path) -> None:
    whole = made(PARTS["rails"], "allgather")
    assert whole is not None
    bs.write(whole, tmp_path / "small.json")
    assert json.loads((tmp_path / "small.json").read_text())["version"] == 1
    assert bs.verify(tmp_path / "small.json").ok


def test_a_generator_in_a_file_that_is_no_symmetry_is_refused(large: SymmetricSchedule, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    bs.write(large, path)
    document = json.loads(path.read_text())
    turn = large.group.generators[0].copy()
    turn[[0, 1]] = turn[[1, 0]]
    document["generators"][0] = packed(turn)
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match=r"generator 0 is no symmetry of hgx-h100: it takes link \S+"):
        bs.verify(path)


@pytest.mark.parametrize("key", ["src", "link_src", "device_names", "generators"])
def test_a_damaged_column_is_named(large: SymmetricSchedule, tmp_path: Path, key: str) -> None:
    path = tmp_path / "odd.json"
    bs.write(large, path)
    document = json.loads(path.read_text())
    place = document["machine"] if key in document["machine"] else document
    place[key] = [{"length": 3, "differences": "AAAA"}] if key == "generators" else {"length": 3, "text": "AAAA"}
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match=key):
        bs.verify(path)


# --- thousands ----------------------------------------------------------------------------------------------------


def test_a_thousand_gpus_are_proved_at_the_bound() -> None:
    found = bs.synthesize(bs.load("hgx-h100", nodes=128), "allgather")
    assert isinstance(found.compact, SymmetricSchedule)
    assert found.verdict.ok
    assert found.gap == 0
    assert (found.compact.base.chunks, found.compact.chunks) == (1, 1024)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        part_of("hgx-h100", 128),
        without_node(part_of("hgx-h100", 128), 77),
        part_of("hgx-h100", 128, "degrade n77.nic3-fabric3 bandwidth=25GB/s"),
    ],
)
def test_a_thousand_gpus_are_what_they_are_written_out(part: bs.Topology) -> None:
    aim = ceiling(part, "allgather")
    whole, old = made(part, "allgather", aim), from_hosts(part, Collective("allgather"), aim)
    assert whole is not None
    assert old is not None
    full = verify(whole.schedule)
    assert full.ok
    assert full.facts.rate == whole.rate
    assert resource_loads(whole.schedule, resources(part)) == resource_loads(old, resources(part))


@pytest.mark.parametrize("name", ["allgather", "reducescatter", "allreduce"])
@pytest.mark.parametrize("machine", ["ring:9", "torus:4x3", "torus:3x4x5", "full:6"])
def test_trees_of_one_device_serve_all(machine: str, name: str) -> None:
    """On machines of direct links in which all devices are alike, at the rate that the exact bound proves."""
    part, collective = bs.load(machine).select(), Collective(name)
    best = bs.bound(part, collective).rate
    whole = symmetric_device_trees(part, collective, best)
    assert whole is not None
    full, proof = whole.schedule, verify(whole)
    old = verify(full)
    assert proof.ok, proof.reasons
    assert old.ok, old.reasons
    assert whole.rate == rate(full) == best
    assert _but_for_names(proof.facts) == _but_for_names(old.facts)
    assert whole.base.chunks * part.ranks == full.chunks


def test_trees_near_the_bound_are_said_once_too() -> None:
    """An allreduce past a slow adapter stays a little below the bound, by symmetry as in the trees that are written."""
    part = bs.load("hgx-h100", nodes=48, edits=[SLOW]).select()
    made = bs.synthesize(part, "allreduce")
    assert isinstance(made.compact, SymmetricSchedule)
    assert made.verdict.ok
    written = from_hosts(part, Collective("allreduce"), bs.bound(part, "allreduce").rate)
    assert written is not None
    assert made.rate == rate(written)
    assert 0 < 1 - Fraction(made.rate) / made.bound.rate < Fraction(1, 200)


@pytest.mark.parametrize("machine", ["mesh:3x3", "line:5", "dgx1-v100", "switch:8"])
def test_devices_that_are_not_alike_have_no_trees_of_one(machine: str) -> None:
    part, collective = bs.load(machine).select(), Collective("allgather")
    assert symmetric_device_trees(part, collective, bs.bound(part, collective).rate) is None


@pytest.mark.parametrize(("nodes", "version"), [(8, 1), (19, 1), (20, 2), (40, 2)])
def test_small_files_are_of_version_1_and_none_is_large(nodes: int, version: int, tmp_path: Path) -> None:
    """24,000 sends take about 1 MB written out; both sorts are read again to the same rate."""
    found = bs.synthesize(bs.load("hgx-h100", nodes=nodes), "allgather")
    path = tmp_path / "schedule.json"
    bs.write(found, path)
    assert json.loads(path.read_text())["version"] == version
    assert path.stat().st_size < 1.1e6
    again = bs.read_schedule(path)
    assert (rate(again), again.sends) == (found.bound.rate, 8 * nodes * (8 * nodes - 1))
