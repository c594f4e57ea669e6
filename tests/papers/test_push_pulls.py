"""The keys of a training step: parameter server, ring or tree, and how many push-pulls go before a wait."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.papers.mxnet import Job, network_keys, push_pulls, together
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology


def built(name: str, topology: Topology) -> Schedule:
    return algorithm(name).build(topology, Collective("allreduce"))


def bytes_of(keys: Sequence[int]) -> list[int]:
    return [4 * elements for elements in keys]


@pytest.mark.slow
def test_many_small_keys_want_a_parameter_server_and_few_large_ones_a_ring() -> None:
    topology = bs.load("p3.16xlarge").select()
    names = list(topology.members)
    # Keys are spread over servers, one on every GPU.
    servers = [built("parameter_server", topology.select(names[r:] + names[:r])) for r in range(len(names))]
    ring, tree = built("ring", topology), built("mxnet", topology)
    many, few = map(bytes_of, network_keys().values())
    # The page counts "over 157" push-pulls of at most about 2M floats, and "fewer than 32" with some over 10M.
    assert len(many) > 157
    assert max(many) < 4 * 2.4e6
    assert len(few) <= 32
    assert max(few) > 4 * 10e6
    times = {
        (keys, name): push_pulls(how, list_, before_wait=150)
        for keys, list_ in (("many", many), ("few", few))
        for name, how in (("server", servers), ("ring", ring), ("tree", tree))
    }
    assert times["many", "server"] < times["many", "ring"]
    assert times["few", "ring"] < times["few", "server"] / 5
    # The trees beat both on ResNet-50 and the server by far on VGG-16 (speed-up table: 1.19, 1.33 and 5.89).
    assert times["many", "tree"] < times["many", "server"]
    assert times["few", "tree"] < times["few", "server"] / 5


def test_networks_have_as_many_parameters_as_published() -> None:
    """25.6 million (He et al. 2016, with the batch normalizations' two) and 138.4 million (Simonyan and Zisserman)."""
    assert {name: round(sum(keys) / 1e6, 1) for name, keys in network_keys().items()} == {
        "ResNet-50": 25.6,
        "VGG-16": 138.4,
    }


def test_push_pulls_overlap_before_a_wait() -> None:
    ring = built("double_binary", bs.load("dgx1-v100").select())
    keys = [200_000] * 60
    one, all_at_once = (push_pulls(ring, keys, before_wait=k, launch=5e-6) for k in (1, 150))
    alone = together([Job(ring, keys[0])]).time_s
    assert one == pytest.approx(60 * (alone + 5e-6))
    assert all_at_once < 0.8 * one
    assert all_at_once >= bs.simulate(ring, sum(keys)).bound_s
    for bad in (([], 1), ([8], 0)):
        with pytest.raises(InputError):
            push_pulls(ring, bad[0], before_wait=bad[1])
