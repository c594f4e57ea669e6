"""One bound in every answer: the searched one where it says so, else one by sums, and the same in all commands."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from strategies import clusters_with_nics, topologies

import blinksim as bs
from blinksim.answers.project import contest
from blinksim.bounds.certificates import Cut
from blinksim.bounds.compute import best_known, bound
from blinksim.bounds.quick import quick_bound
from blinksim.collective import COLLECTIVES, Collective
from blinksim.machines import Question
from blinksim.topology.graph import Topology


@pytest.mark.parametrize("collective", COLLECTIVES)
@settings(max_examples=15)
@given(topology=topologies(min_devices=2, max_devices=7))
def test_it_is_what_a_search_finds(collective: str, topology: Topology) -> None:
    part = topology.select()
    wanted = Collective(collective, part.ranks - 1 if Collective(collective).rooted else 0)
    known = best_known(part, wanted, ())
    assert known.searched
    assert known.rate == bound(part, wanted).rate
    assert known.certificate.check(part, wanted, known.rate) == []


@pytest.mark.parametrize(
    ("machine", "nodes", "collective", "rate"),
    [
        # Sums of ports give 274.1 and 265.3, those of nodes 288 and 266.7.
        ("hgx-h100", 2, "allreduce", Fraction(800, 3)),
        ("hgx-h100", 4, "allreduce", Fraction(8000, 31)),
        ("mi300x", 2, "allreduce", Fraction(1328, 5)),
        ("gb200-nvl72", 4, "allreduce", Fraction(136800, 287)),
        ("mi250", 2, "allgather", Fraction(5312, 15)),
        ("p5.48xlarge", 2, "scatter", Fraction(1600, 3)),
    ],
)
def test_all_commands_state_the_same(machine: str, nodes: int, collective: str, rate: Fraction) -> None:
    part, wanted = bs.load(machine, nodes=nodes).selected(), Collective(collective)
    assert bound(part, wanted).rate == rate * 10**9
    assert best_known(part, wanted, ()).rate == rate * 10**9
    field = contest(part, wanted, ["direct" if collective == "scatter" else "ring"])
    [found] = field.answers(2**26)
    assert found.bound is not None
    assert found.bound.rate == rate * 10**9
    assert found.to_dict()["ceiling_searched"]
    assert found.least is not None
    assert found.least.time_s == bs.time_bound(part, wanted, 2**26).time_s


def test_an_answer_by_sums_says_so() -> None:
    """Ranks that differ, and an exchange among many: its program has too many flows."""
    part = bs.load("torus:8x10@50GB/s").degrade("gpu0-gpu1", bandwidth=25 * 10**9).selected()
    known = best_known(part, Collective("alltoall"), ())
    assert not known.searched
    assert known.certificate == quick_bound(part, Collective("alltoall"))
    [found] = contest(part, "alltoall", ["direct"]).answers(2**26)
    assert not found.to_dict()["ceiling_searched"]
    assert "a quick bound; a search, which takes long here" in found.text()


@pytest.mark.parametrize("edits", [(), ("replace ib bandwidth=100GB/s",)])
def test_narrow_links_to_the_adapters_limit_an_alltoall_in_every_answer(edits: tuple[str, ...]) -> None:
    """By hand: 8 GPUs of a node send at 48 GB/s each by PCIe, and 8 * 504 of 512 blocks of each leave the node."""
    part = Question("hgx-h100", nodes=64, rates="nccl", edits=edits).part()
    known = best_known(part, Collective("alltoall"), ())
    assert known.searched
    assert known.rate == bound(part, Collective("alltoall")).rate == Fraction(8 * 48 * 10**9 * 512, 8 * 504)


@settings(max_examples=15)
@given(topology=clusters_with_nics(), width=st.integers(1, 20))
def test_adapters_of_any_width_are_in_the_sums(topology: Topology, width: int) -> None:
    """No cut by sums is below the flows that a linear program finds, nor above those around nodes and their GPUs."""
    node = {device.name: device.node for device in topology.devices}
    inner = {link.name for link in topology.links if node[link.src] == node[link.dst]}
    narrow = Fraction(width * 10**9, 4)
    part = topology.with_links(
        replace(link, lane_bandwidth=narrow) if link.name in inner and "nic" in link.name else link
        for link in topology.links
    ).selected()
    wanted = Collective("alltoall")
    sums = quick_bound(part, wanted)
    assert sums.check(part, wanted, sums.rate) == []
    assert sums.rate >= bound(part, wanted).rate
    for number in range(part.nodes):
        around = [name for name, there in node.items() if there == number]
        inside = [name for name in around if part.device(name).kind != "nic"]
        assert sums.rate <= min(Cut.of(part, wanted, side).rate for side in (around, inside))


@pytest.mark.parametrize(
    ("machine", "nodes", "each", "hands_on"),
    [("aurora", 64, 2, 64), ("aurora", 256, 2, 64), ("dgx1-v100", 256, 4, 25), ("hgx-h100", 64, 4, 200)],
)
def test_alike_nodes_of_which_some_gpus_take_part(machine: str, nodes: int, each: int, hands_on: int) -> None:
    """Links of these GPUs, not ports of nodes, hold up many nodes as they do few, such as PCIe of a card of Aurora."""
    known = best_known(bs.Question(machine, nodes=nodes, ranks_per_node=each).part(), Collective("allreduce"), ())
    assert known.rate == Fraction(hands_on * 10**9 * nodes, 2 * (nodes - 1))
    assert known.searched
