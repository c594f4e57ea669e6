"""Clusters whose nodes are not alike: NCCL takes the least that any node has found, whichever that is."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import blinksim as bs
from blinksim.answers.project import answer
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.machines import Question
from blinksim.nccl.families import PATH_TYPES
from blinksim.nccl.tuner import tuner
from blinksim.nccl.tuner.tuner import predict
from blinksim.timing.nccl_model import NcclTuner
from blinksim.timing.projection_result import Projection
from blinksim.topology.graph import Topology

COLLECTIVES = ("allreduce", "allgather", "reducescatter")
SIZES = (2**10, 2**20, 2**30)
# Edits of one node, by where its name goes.
DAMAGES = (
    "without {}.nic0",
    "without {}.nic[0-6]",
    "without {}.gpu5-{}.nic5",
    "without {}.nvswitch",
    "degrade {}.nic0-fabric0 bandwidth=1GB/s",
    "degrade {}.nic3-fabric3 bandwidth=10MB/s",
    "degrade {}.gpu5-{}.nvswitch lanes=9",
    "degrade {}.gpu5->{}.nvswitch lanes=2",
    "{}.nvswitch can=forward",
)


@cache
def timed(*edits: str) -> tuple[Projection, ...]:
    """What NCCL takes on four HGX H100, and everything that it could take."""
    model, whole = NcclTuner().at(Question("hgx-h100", nodes=4, edits=edits).preferring_known("nccl"))
    found: list[Projection] = []
    for collective in map(Collective, COLLECTIVES):
        found += model.times(whole, collective, SIZES, ["nccl"])
        found += sorted(model.times(whole, collective, SIZES), key=lambda p: (p.size, p.algorithm))
    return tuple(found)


def facts(found: Projection) -> tuple[Any, ...]:
    """What does not depend on names."""
    kept = ("nccl_algorithm", "nccl_protocol", "channels", "channel_GBps", "type_intra", "type_inter")
    assert found.bound is not None
    times = tuple(term.time_s for term in found.terms)
    return found.collective, found.size, found.algorithm, times, found.bound.rate, *(found.details[k] for k in kept)


def leaving(whole: Topology) -> Fraction:
    """Bytes/s that leave the node from which least does."""
    out: defaultdict[int, Fraction] = defaultdict(Fraction)
    for link in whole.links:
        if (node := whole.device(link.src).node) >= 0 > whole.device(link.dst).node:
            out[node] += link.bandwidth
    return min(out.values())


@pytest.mark.parametrize("damage", [*DAMAGES[::2], *(pytest.param(d, marks=pytest.mark.slow) for d in DAMAGES[1::2])])
def test_which_node_is_damaged_does_not_matter(damage: str) -> None:
    first, edit = (damage.format(node, node) for node in ("n0", "n3"))
    assert list(map(facts, timed(first))) == list(map(facts, timed(edit)))
    whole = bs.load("hgx-h100", nodes=4, rates="nccl", edits=edit)
    healthy: dict[tuple[Any, ...], float] = {}
    for p in timed():
        healthy[p.collective, p.size, p.algorithm] = p.time_s
    for p in timed(edit):
        # NCCL may have less to choose from; what is left is no quicker than before.
        assert p.time_s >= healthy[p.collective, p.size, p.algorithm]
        # Every node must send or receive all data, or in half of an allreduce all but its own part.
        part = 1 if p.collective.name == "allreduce" else Fraction(3, 4)
        assert p.time_s >= p.size * part / leaving(whole) * (1 - 1e-9)
    assert timed(edit)[2].time_s > timed()[2].time_s


@pytest.mark.parametrize("damages", [[(0, 1), (2, 5)], [(0, 3), (0, 4)], [(0, 0), (1, 0), (3, 6)]])
def test_several_damages_move_with_their_nodes(damages: list[tuple[int, int]]) -> None:
    order = [1, 3, 2, 0]
    here = timed(*(DAMAGES[kind].format(*[f"n{node}"] * 2) for node, kind in damages))
    there = timed(*(DAMAGES[kind].format(*[f"n{order[node]}"] * 2) for node, kind in damages))
    assert list(map(facts, here)) == list(map(facts, there))


def test_every_number_is_the_least_of_any_node() -> None:
    """A cluster of unlike nodes, beside the clusters in which all nodes are as one of them."""
    nics, lanes = "without n1.nic[0-6]", "degrade n2.gpu5-n2.nvswitch lanes=1"
    alike = [("without nic[0-6]",), ("degrade gpu5-nvswitch lanes=1",), ()]
    found = predict(bs.load("hgx-h100", nodes=4, rates="nccl", edits=(nics, lanes)))
    each = [predict(bs.load("hgx-h100", nodes=4, rates="nccl", edits=edits)) for edits in alike]
    assert len({one.ring.nchannels for one in each}) > 1
    assert len({one.tree.bw_intra for one in each}) > 1
    for family, graph in found.graphs.items():
        graphs = [one.graphs[family] for one in each]
        for key in ("nchannels", "bw_intra", "bw_inter", "same_channels"):
            assert getattr(graph, key) == min(getattr(one, key) for one in graphs), (family, key)
        for key in ("type_intra", "type_inter"):
            farthest = max(PATH_TYPES.index(getattr(one, key)) for one in graphs)
            assert PATH_TYPES.index(getattr(graph, key)) == farthest
        assert len(graph.channels) == len(graph.nets) == graph.nchannels
    # The channels listed are those of a damaged node.
    assert {name.partition(".")[0] for order in found.orders["ring"] for name in order} <= {"n1", "n2"}


def test_nodes_that_are_alike_are_searched_once() -> None:
    tuner.channels_of.cache_clear()
    predict(bs.load("hgx-h100", nodes=64, rates="nccl", edits=("without n9.nic1", "without n50.nic1")))
    assert tuner.channels_of.cache_info().misses == 2 * len(("ring", "tree", "nvls"))
    predict(bs.load("hgx-h100", nodes=63, rates="nccl", edits="without n1.nic1"), multicast=False)
    assert tuner.channels_of.cache_info().misses == 2 * len(("ring", "tree", "nvls"))


def test_switches_of_one_node_that_cannot_add_stop_all() -> None:
    assert "nvls" in predict(bs.load("hgx-h100", nodes=4, rates="nccl")).graphs
    assert "nvls" not in predict(bs.load("hgx-h100", nodes=4, rates="nccl", edits="n2.nvswitch can=forward")).graphs


def test_a_node_without_a_port_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"^n3 names no network port"):
        predict(bs.load("hgx-h100", nodes=4, edits="without n3.nic[0-7]"))


@pytest.mark.parametrize(
    ("machine", "gpu"), [("hgx-h100", "gpu3"), ("p5", "gpu0"), ("p4d", "gpu5"), ("dgx1-v100", "gpu6")]
)
def test_nodes_with_other_gpus_have_the_channels_of_the_poorest(machine: str, gpu: str) -> None:
    """Every node plans for itself, and all take the least: more nodes that lack a GPU cost no more channels."""
    one, two, each = (
        predict(bs.load(machine, nodes=4, rates="nccl", edits=edits))
        for edits in ([f"without n2.{gpu}"], [f"without n1.{gpu}", f"without n2.{gpu}"], [f"without {gpu}"])
    )
    assert [found.job.ranks for found in (one, two, each)] == [31, 30, 28]
    for found in (one, two):
        assert found.graphs.keys() == each.graphs.keys()
        for family, graph in each.graphs.items():
            assert (found.graphs[family].nchannels, found.graphs[family].bw_inter) == (graph.nchannels, graph.bw_inter)


@pytest.mark.parametrize(("machine", "gpu"), [("hgx-h100", "gpu3"), ("p4d", "gpu5")])
def test_two_dead_gpus_are_no_quicker_than_one(machine: str, gpu: str) -> None:
    """By the rate of a rank, as fewer ranks have less to send; and a dead GPU leaves no adapter to blame.

    Where every node lacks one, times are those of seven GPUs a node, and not of eight and the part that edits take.
    """
    lost = [(), (f"without n2.{gpu}",), (f"without n1.{gpu}", f"without n2.{gpu}"), (f"without {gpu}",)]
    found = [answer(Question(machine, nodes=4, edits=edits), Collective("allreduce"), [2**30])[0] for edits in lost]
    busbw = [one.busbw for one in found]
    assert busbw[2] == pytest.approx(busbw[1], rel=0.01)
    assert busbw[3] == pytest.approx(busbw[1], rel=0.03)
    assert all(rate < 1.001 * busbw[0] for rate in busbw[1:])
    assert not any(one.weakest for one in found)
