"""Commuting symmetries: found where there are some, refused where there are none, and right about routes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import blinksim as bs
from blinksim.algorithms.building.symmetric_trees import symmetric_trees
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.schedule import loads as sums
from blinksim.schedule.candidate import _cache
from blinksim.schedule.loads import resources
from blinksim.topology import symmetry
from blinksim.topology.routes import Router
from blinksim.topology.symmetry import (
    CommutingGroup,
    alike_nodes_of,
    encoded,
    find_commuting_group,
    is_automorphism,
    node_generators,
    orbit_labels,
    order,
)

MACHINES = ("torus:3x4", "torus:4x4x2", "ring:6", "hypercube:3")


def cluster(name: str, nodes: int) -> bs.Topology:
    return bs.load(name, nodes=nodes).select()


@pytest.mark.parametrize(
    ("part", "orders"),
    [
        (cluster("hgx-h100", 5), {5, 8}),
        (cluster("gb200-nvl72", 3), {3, 18}),
        (bs.load("torus:3x4x6").select(), {3, 4, 6}),
        (cluster("aurora", 4), {4, 2}),
    ],
)
def test_the_turns_of_nodes_and_dimensions_are_found(part: bs.Topology, orders: set[int]) -> None:
    found = find_commuting_group(part)
    assert found is not None
    assert set(found.orders) == orders


@pytest.mark.parametrize("name", MACHINES)
def test_coordinates_lead_from_the_first_of_an_orbit_to_every_member(name: str) -> None:
    part = bs.load(name).select()
    found = find_commuting_group(part)
    assert found is not None
    members = np.array([part.index[member] for member in part.members])
    assert np.array_equal(found.along(found.place[members], found.first[members]), members)


def test_what_turns_one_leaf_turns_all_of_them() -> None:
    """A turn of the nodes below one leaf leaves all others in place; its product with theirs moves every node."""
    node = bs.load("hgx-h100")
    assert node.fabric is not None
    part = node.replicate(12, replace(node.fabric, shape="tree", planes=1, leaf_nodes=4)).select()
    found = find_commuting_group(part)
    assert found is not None
    assert set(found.orders) == {3, 4, 8}


@settings(max_examples=40)
@given(name=st.sampled_from(MACHINES), data=st.data())
def test_what_is_no_symmetry_is_refused_by_the_name_of_a_link_or_a_device(name: str, data: st.DataObject) -> None:
    part = bs.load(name).select()
    turn = data.draw(st.permutations(range(len(part.devices))))
    if is_automorphism(part, turn):
        return
    with pytest.raises(InputError, match=r"is no symmetry of .*: it takes (link )?\S+ "):
        CommutingGroup.of(part, [turn])


def test_a_slow_link_is_named() -> None:
    part = bs.load("ring:4").degrade("gpu1->gpu2", bandwidth="1GB/s").select()
    with pytest.raises(InputError, match=r"link gpu0->gpu1 \(link\) to gpu1->gpu2 \(link\), which has other figures"):
        CommutingGroup.of(part, [[1, 2, 3, 0]])


def test_symmetries_that_do_not_commute_or_are_not_independent_are_refused() -> None:
    part = bs.load("ring:6").select()
    turn, mirror = [1, 2, 3, 4, 5, 0], [5, 4, 3, 2, 1, 0]
    with pytest.raises(InputError, match="do not commute"):
        CommutingGroup.of(part, [turn, mirror])
    with pytest.raises(InputError, match="before their orders are through"):
        CommutingGroup.of(part, [turn, [3, 4, 5, 0, 1, 2]])


def test_the_order_is_that_of_all_cycles() -> None:
    assert order(np.array([1, 2, 0, 4, 3, 5])) == 6


@pytest.mark.parametrize("name", ["chain_tree", "double_binary", "recursive_doubling", "direct"])
@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "aurora", "gb200-nvl72"])
def test_routes_by_symmetry_carry_what_those_of_every_pair_do(
    name: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = bs.load(machine, nodes={"aurora": 4, "gb200-nvl72": 2}.get(machine, 4)).select()
    if part.ranks > 100 and name == "direct":
        pytest.skip("a matter of seconds")
    loads: list[list[Fraction]] = []
    for many in (10**9, 0):
        monkeypatch.setattr(symmetry, "_MANY_PAIRS", many)
        monkeypatch.setattr(sums, "_MANY_ROUTES", many)
        _cache.clear()
        found = algorithm(name).parallel(part, Collective("allreduce"))
        loads.append(sums.resource_loads(found.compact, resources(part), found.written.parallel))
        assert bs.verify(found.schedule)
    _cache.clear()
    assert loads[0] == loads[1]


@pytest.mark.parametrize("edit", ["", "degrade n2.nic3-fabric3 bandwidth=20GB/s"])
def test_nodes_that_an_edit_left_alike_are_turned(edit: str) -> None:
    """Every turn is a symmetry, and together they join the nodes that are alike, and no others."""
    part = bs.load("hgx-h100", nodes=6, edits=[edit] if edit else []).select()
    known = encoded(part)
    found = node_generators(len(part.devices), alike_nodes_of(known))
    assert all(is_automorphism(part, turn.tolist()) for turn in found)
    label = orbit_labels(len(part.devices), found)
    first = [label[part.index[f"n{node}.gpu0"]] for node in range(6)]
    assert len(set(first)) == (2 if edit else 1)


def test_all_leaves_at_once_join_what_each_joins() -> None:
    """One turn and one exchange below all leaves have the orbits, of devices and links, of a pair for every leaf."""
    edits = ["fabric shape=tree planes=1 leaf_nodes=4 oversubscription=2", "without n5.gpu1"]
    part = bs.load("dgx-a100", nodes=14, edits=edits).select()
    known, count = encoded(part), len(part.devices)
    sets = alike_nodes_of(known)
    assert sorted(len(table) for table in sets) == [2, 3, 4, 4]
    each = [one for table in sets for one in node_generators(count, [table])]
    images: list[list[Any]] = []
    for turns in (each, node_generators(count, sets)):
        links = [known.image(turn) for turn in turns]
        assert all(image is not None for image in links)
        images.append([orbit_labels(count, turns).tolist(), orbit_labels(len(part.links), links).tolist()])  # type: ignore[arg-type]
    assert images[0] == images[1]


def test_hypercubes_turn_by_flipping_bits() -> None:
    """All flips together take any member to any other, so the trees of one say those of all, at the bound."""
    part, allgather = bs.load("hypercube:6").select(), Collective("allgather")
    turns = find_commuting_group(part)
    assert turns is not None
    assert turns.regular
    # Each of 63 ranks takes in 63 of 64 shards over six links of 25 GB/s.
    made = symmetric_trees(part, allgather, 6 * Fraction(25 * 10**9) * Fraction(64, 63))
    assert made is not None
    assert made.rate == bs.bound(part, allgather).rate
    assert bs.verify(made)


@settings(max_examples=10)
@given(
    name=st.sampled_from(["hgx-h100", "dgx-a100", "dgx1-v100", "aurora"]),
    edited=st.lists(st.integers(0, 4), min_size=1, max_size=2, unique=True),
    many=st.sampled_from([2, 64]),
)
def test_an_edited_node_leaves_the_routes_of_the_others_alike(name: str, edited: list[int], many: int) -> None:
    """Few pairs stand for all, by the sorts of their nodes, and the images of their routes are those of the router."""
    part = bs.load(name, nodes=5, edits=[f"without n{node}.nic0" for node in edited]).select()
    places, router = part.member_places, Router(part, many)
    src, dst = (ends.ravel() for ends in np.meshgrid(places, places))
    src, dst = src[src != dst], dst[src != dst]
    pairs, each = symmetry.Pairs.of(part, src, dst), part.ranks // 5
    # Two nodes of two sorts, in both orders, or one node of a sort.
    assert len(pairs.src) <= 2 * (2 * 2 * each * each) + 2 * each * each < len(src)
    paths = [router.route(*ends) for ends in zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True)]
    start, links = pairs.images(np.cumsum([0, *map(len, paths)]), np.array([link for path in paths for link in path]))
    found = [tuple(links[first:end]) for first, end in pairwise(start.tolist())]
    assert found == [router.route(*ends) for ends in zip(src.tolist(), dst.tolist(), strict=True)]
