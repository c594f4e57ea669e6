"""The keys of a training step: parameter server, ring or tree, and how many push-pulls go before a wait."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.schedule.model import Schedule
from blinksim.simulation.together import Job, together
from blinksim.sources.push_pulls import push_pulls
from blinksim.topology.graph import Topology


def built(name: str, topology: Topology) -> Schedule:
    return algorithm(name).build(topology, Collective("allreduce"))


def resnet50() -> list[int]:
    """Elements of every key: convolutions, batch normalizations (2 keys each), the classifier (He et al. 2016)."""
    keys, width = [3 * 64 * 49, 64, 64], 64
    for channels, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes = [(width, channels, 1), (channels, channels, 9), (channels, 4 * channels, 1)]
            shapes += [(width, 4 * channels, 1)] * (block == 0)
            for inputs, outputs, kernel in shapes:
                keys += [inputs * outputs * kernel, outputs, outputs]
            width = 4 * channels
    return [*keys, 2048 * 1000, 1000]


def vgg16() -> list[int]:
    """Elements of every key: 13 convolutions and 3 full layers, each with its biases (Simonyan and Zisserman 2015)."""
    widths = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    keys = [n for a, b in pairwise(widths) for n in (9 * a * b, b)]
    for inputs, outputs in ((512 * 49, 4096), (4096, 4096), (4096, 1000)):
        keys += [inputs * outputs, outputs]
    return keys


def bytes_of(keys: Sequence[int]) -> list[int]:
    return [4 * elements for elements in keys]


def test_many_small_keys_want_a_parameter_server_and_few_large_ones_a_ring() -> None:
    topology = bs.load("p3.16xlarge").select()
    names = list(topology.members)
    # Keys are spread over servers, one on every GPU.
    servers = [built("parameter_server", topology.select(names[r:] + names[:r])) for r in range(len(names))]
    ring, tree = built("ring", topology), built("mxnet", topology)
    many, few = bytes_of(resnet50()), bytes_of(vgg16())
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
