"""Paths against NCCL's own, for every case of the reference; and the figures that bound its search."""

from __future__ import annotations

import pytest
from nccl_cases import cases, near, system

from blinksim import machines
from blinksim.errors import InfeasibleError, InputError
from blinksim.nccl.families import PATH_TYPES
from blinksim.nccl.paths import GRAIN, Path, Paths, systems_of
from blinksim.nccl.tuner.tuner import predict
from blinksim.topology.graph import Device, Topology


def written(path: Path) -> str:
    return f"{PATH_TYPES[path.kind]}/{path.bandwidth * GRAIN / 1e9:.7g}"


def test_paths_are_nccls_in_every_case() -> None:
    compared = 0
    for case in cases():
        found = system(case)
        paths = Paths(found)
        at = {found.vertices[gpu].number: gpu for gpu in found.gpus}
        order = [at[number] for number in case["gpus"]]
        assert [[written(paths[a, b]) for b in order] for a in order] == case["paths"], case["id"]
        if case["nnodes"] > 1:
            ports = sorted(found.ports, key=lambda port: found.vertices[port].number)
            assert [[written(paths[a, port]) for port in ports] for a in order] == case["net_paths"], case["id"]
        assert near(paths.widest() * GRAIN / 1e9, case["system"]["max_bw"]), case["id"]
        assert near(paths.total() * GRAIN / 1e9, case["system"]["total_bw"]), case["id"]
        assert len(paths.switches) == case["system"]["nvswitch"]
        compared += len(order) ** 2
    assert len(cases()) == 227
    assert compared > 4000


def test_a_gpu_that_takes_no_part_is_no_relay() -> None:
    dgx1 = machines.load("dgx1-v100", rates="nccl")
    alone = systems_of(dgx1, ["gpu0", "gpu5"])[0]
    assert written(Paths(alone)[alone.gpus[0], alone.gpus[1]]) == "SYS/6"
    three = systems_of(dgx1, ["gpu0", "gpu1", "gpu5"])[0]
    assert written(Paths(three)[three.gpus[0], three.gpus[2]]) == "NVB/20"


def test_a_cluster_is_seen_as_its_first_node() -> None:
    one = systems_of(machines.load("dgx1-v100", rates="nccl"), nodes=2)[0]
    two = systems_of(machines.load("dgx1-v100", nodes=2, rates="nccl"))[0]
    assert two.nnodes == one.nnodes == 2
    assert [wire.bandwidth for wire in two.wires] == [wire.bandwidth for wire in one.wires]
    assert len(two.ports) == 4


@pytest.mark.parametrize(
    ("name", "nodes", "chosen", "error", "says"),
    [
        ("aurora", 1, None, InfeasibleError, "NVIDIA"),
        ("dgx1-v100", 1, ["gpu0"], InfeasibleError, "at least two ranks"),
        ("dgx1-v100", 1, ["gpu9"], InputError, "gpu9"),
        ("dgx1-v100", 1, [], InputError, "no members"),
    ],
)
def test_what_nccl_cannot_run_is_refused(
    name: str, nodes: int, chosen: list[str] | None, error: type, says: str
) -> None:
    with pytest.raises(error, match=says):
        systems_of(machines.load(name, nodes=nodes), chosen)[0]


def test_a_gpu_of_another_maker_is_refused() -> None:
    foreign = tuple(Device(f"gpu{i}", "gpu", attributes={"sm": "gfx90a"}) for i in range(2))
    with pytest.raises(InfeasibleError, match="gfx90a"):
        systems_of(Topology("foreign", foreign, ()))[0]


def test_what_the_machine_does_not_say_is_named() -> None:
    plain = systems_of(machines.load("ring:4@25GB/s"))[0]
    assert any("compute capability" in text for text in plain.assumed)
    assert any("CPUs are GenuineIntel" in text for text in plain.assumed)


def test_a_generated_cluster_gets_as_many_trees_as_rings() -> None:
    """Before Hopper a tree enters a node by two GPUs of one PCIe switch, and these have a switch each."""
    plan = predict(machines.load("rails:2x8@450GB/s,50GB/s"))
    assert (plan.ring.nchannels, plan.tree.nchannels, plan.nvls) == (8, 8, None)


@pytest.mark.parametrize("value", ["first", None, -1, float("nan")])
def test_a_number_that_is_none_is_named(value: object) -> None:
    odd = tuple(Device(f"gpu{i}", "gpu", attributes={"sm": 80, "dev": value}) for i in range(2))
    with pytest.raises(InputError, match="gpu0: its attribute dev"):
        systems_of(Topology("odd", odd, ()))[0]


def test_gpus_of_one_number_are_refused() -> None:
    twins = tuple(Device(f"gpu{i}", "gpu", attributes={"sm": 80, "dev": 3}) for i in range(2))
    with pytest.raises(InputError, match="same number"):
        predict(Topology("twins", twins, ()))
