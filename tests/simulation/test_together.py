"""Several collectives at once: neighbours, and the keys of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_schedules import forests, full

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.schedule.model import Schedule
from blinksim.simulation.together import Job, together
from blinksim.sources.push_pulls import push_pulls
from blinksim.topology.graph import Topology

SMALL = settings(
    max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def built(name: str, topology: Topology) -> Schedule:
    return algorithm(name).build(topology, Collective("allreduce"))


@SMALL
@given(forests(), st.integers(1, 5))
def test_one_job_is_a_simulation(schedule: Schedule, pieces: int) -> None:
    found = together([Job(schedule, 10**6, pieces)])
    assert found.finish_s[0] == pytest.approx(bs.simulate(schedule, 10**6, pieces=pieces).time_s, rel=1e-12)
    assert found.slowdown == (1.0,)


@SMALL
@given(forests(), st.integers(1, 4), st.integers(1, 4))
def test_two_at_once_are_no_quicker_than_their_loads(schedule: Schedule, first: int, second: int) -> None:
    found = together([Job(schedule, 10**6, first), Job(schedule, 2 * 10**6, second)])
    bound = bs.simulate(schedule, 3 * 10**6, pieces=1).bound_s
    assert found.time_s >= bound * (1 - 1e-12)
    # Neighbours that share no link do not notice each other; these share all.
    assert found.time_s >= max(found.alone_s) * (1 - 1e-12)


def test_a_neighbour_on_other_links_costs_nothing_and_on_the_same_ones_twice() -> None:
    machine = bs.load("dgx1-v100")
    mine, other = (machine.select([f"gpu{i}" for i in group]) for group in ((0, 1, 2, 3), (4, 5, 6, 7)))
    apart = together([Job(built("ring", part), 10**8) for part in (mine, other)])
    assert apart.slowdown == (1.0, 1.0)
    shared = together([Job(built("ring", mine), 10**8) for _ in range(2)])
    assert all(1.9 < slow < 2.05 for slow in shared.slowdown)
    assert shared.busy > 0.95
    late = together([Job(built("ring", mine), 10**8), Job(built("ring", mine), 10**8, start_s=1.0)])
    assert late.slowdown == pytest.approx((1.0, 1.0))


def test_rates_that_contradict_each_other_are_refused() -> None:
    slow = full(3).edit("degrade gpu0-gpu1 bandwidth=5GB/s")
    with pytest.raises(InputError, match="another rate"):
        together([Job(built("ring", full(3)), 10**6), Job(built("ring", slow), 10**6)])
    for jobs in ([], [Job(built("ring", full(3)), 0)], [Job(built("ring", full(3)), 8, 0)]):
        with pytest.raises(InputError):
            together(jobs)


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
