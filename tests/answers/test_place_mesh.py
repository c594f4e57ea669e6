"""The best order of GPUs in a mesh against all orders, each axis by the bound of its groups at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import permutations
from math import inf
from random import Random

import pytest
from test_together import machine_of, topology_of

import blinksim as bs
from blinksim.answers import place as module
from blinksim.cli.main import run
from blinksim.machines import mesh_groups
from blinksim.topology.graph import Topology


def all_orders(machine: Topology, mesh: str, sizes: Sequence[int], name: str) -> tuple[float, int]:
    """The least sum of the axes' times over all orders, and how many sets of groups have it."""
    count, axes = machine.ranks, range(mesh.count("x") + 1)
    places = [[[*map(int, group.split(","))] for group in mesh_groups(mesh, count, axis)] for axis in axes]

    @cache
    def rate(groups: frozenset[frozenset[int]]) -> Fraction:
        texts = [",".join(machine.members[i] for i in sorted(group)) for group in groups]
        try:
            return min(group.rate for group in bs.together(machine, texts, name).groups)
        except bs.InfeasibleError:
            return Fraction(0)

    found = dict[object, float]()
    for order in permutations(range(count)):
        sets = tuple(frozenset(frozenset(order[i] for i in group) for group in axis) for axis in places)
        each = zip(sizes, map(rate, sets), strict=True)
        found[sets] = sum(float(size / one) if one else inf for size, one in each)
    least = min(found.values())
    return least, sum(time < least * (1 + 1e-9) for time in found.values())


@pytest.mark.parametrize("seed", range(12))
def test_against_all_orders(seed: int) -> None:
    random = Random(seed)
    mesh = random.choice(["2x2", "2x3", "3x2"])
    sides = [int(side) for side in mesh.split("x")]
    count = sides[0] * sides[1]
    machine = topology_of(machine_of(random, count, uneven=random.random() < 0.3), count)
    sizes = [random.choice((1, 3, 8)) * 10**6 for _ in sides]
    name = random.choice(["allreduce", "allgather", "reducescatter"])
    least, alike = all_orders(machine, mesh, sizes, name)
    if least == inf:
        with pytest.raises(bs.InfeasibleError, match="the groups of no order"):
            bs.place_mesh(machine, mesh, name, sizes)
        return
    found = bs.place_mesh(machine, mesh, name, sizes)
    assert found.exact
    assert found.counted
    assert sum(found.times(found.best)) == pytest.approx(least)
    assert found.alike == alike - 1


@pytest.mark.parametrize("seed", range(4))
def test_groups_that_share_links(seed: int) -> None:
    """GPUs in pairs below switches: what goes from one pair to another shares a link."""
    random = Random(seed)
    links = {
        link: f"bandwidth={random.randint(8, 32)}GB/s" for link in ("gpu0-pciesw0", "gpu3-pciesw1", "pciesw2-cpu1")
    }
    edits = ["without gpu[6-7]", *(f"degrade {link} {width}" for link, width in links.items())]
    machine = bs.load("l40s-pcie", edits=edits)
    mesh = random.choice(["2x3", "3x2"])
    sizes = [random.randint(1, 3) * 10**6 for _ in mesh.split("x")]
    least, alike = all_orders(machine, mesh, sizes, "allreduce")
    found = bs.place_mesh(machine, mesh, "allreduce", sizes)
    assert (found.exact, found.counted, found.alike) == (True, True, alike - 1)
    assert sum(found.times(found.best)) == pytest.approx(least)


def test_sixteen_gpus_by_hand() -> None:
    """A hypercube: rings of four along both axes, two of three links a GPU each; on a torus, rows and columns."""
    for machine in ("hypercube:4@50GB/s", "torus:4x4@50GB/s"):
        found = bs.place_mesh(machine, "4x4")
        assert found.best == found.default
        assert found.exact
        assert found.best.rates == (Fraction(200 * 10**9, 3),) * 2


def test_a_search_that_is_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bs.place_mesh("dgx1-v100", "2x4")
    assert whole.exact
    assert "the best order is" in whole.sentence()
    monkeypatch.setattr(module, "_MOST_STEPS", 20)
    part = bs.place_mesh("dgx1-v100", "2x4")
    assert not part.exact
    assert not part.counted
    assert "the best order found is" in part.sentence()
    assert "at least" in part.sentence()
    assert sum(part.times(part.best)) >= sum(whole.times(whole.best))


def test_too_many_groups_to_list_leave_the_file_order() -> None:
    """Inside nodes and across them by place: as quick as by hand; the axes the other way round are slower for these."""
    machine = bs.load("hgx-h100", nodes=4, edits=["without gpu[6-7]"])
    found = bs.place_mesh(machine, "4x6", size=["1MiB", "64MiB"])
    assert found.best == found.default
    assert not found.exact
    assert "of those that were tried" in found.sentence()
    inside, across = found.best.members[:6], found.best.members[::6]
    assert {name.split(".")[0] for name in inside} == {"n0"}
    assert {name.split(".")[1] for name in across} == {"gpu0"}
    assert found.best.rates[1] == bs.bound(machine.select(inside), "allreduce").rate
    turned = bs.place_mesh(machine, "6x4", size=["64MiB", "1MiB"])
    assert turned.best.members[:2] == ("n0.gpu0", "n1.gpu0")
    assert sum(turned.times(turned.best)) == sum(found.times(found.best))


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Pairs with two links and quads with one against quads with three: twice as quick for large pairs."""
    words = ["place", "dgx1-v100", "--mesh", "2x4", "--size", "1GiB,64MiB"]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best, default = found["rows"]
    assert (best["rates_exact"], default["rates_exact"]) == (["50", "50"], ["25", "75"])
    assert best["time_s"] == pytest.approx(2**30 / 50e9 + 2**26 / 50e9)
    assert found["slowdown"] == pytest.approx(default["time_s"] / best["time_s"])
    assert found["proved"]
    numbers = [name.removeprefix("gpu") for name in best["members"]]
    assert found["setting"] == f"CUDA_VISIBLE_DEVICES={','.join(numbers)} before init_device_mesh"
    assert run(words) == 0
    following = capsys.readouterr().out.splitlines()[-1].removeprefix("next: blinksim ").split()
    assert run([*following, "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["rows"]
    assert [one["rate_exact"] for one in groups] == ["50"] * 6
    # The last axis is innermost: the first four of the order are a group.
    assert best["members"][:4] in [one["members"] for one in groups]


def test_a_mesh_of_some_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bound", "dgx1-v100", "--members", "3,2,1,0", "--mesh", "2x2", "--axis", "1", "--json"]) == 0
    assert [one["members"] for one in json.loads(capsys.readouterr().out)["rows"]] == [
        ["gpu3", "gpu2"],
        ["gpu1", "gpu0"],
    ]
    assert (
        run(["project", "hgx-h100", "allreduce", "64MiB", "--nodes", "2", "--ranks-per-node", "4", "--mesh", "2x4"])
        == 0
    )
    assert "GPU 0 of n0-1" in capsys.readouterr().out
    assert run(["bound", "dgx1-v100", "--members", "0-3", "--mesh", "2x4"]) == 2
    assert "the product of its sides must be 4" in capsys.readouterr().err


def test_what_to_set_names_the_gpus_of_the_machine() -> None:
    """Numbers of devices are those of the machine before an edit; a job on several nodes gives ranks."""
    seven = bs.place_mesh(bs.load("hgx-h100", edits=["without gpu0", "without gpu5"]), "2x3")
    assert seven.setting() == "CUDA_VISIBLE_DEVICES=1,2,3,4,6,7 before init_device_mesh"
    assert bs.place_mesh("mi355x", "2x2x2").setting().startswith("HIP_VISIBLE_DEVICES=")
    two = bs.place_mesh(bs.load("hgx-h100", nodes=2, edits=["without gpu[2-7]"]), "2x2")
    assert two.setting().startswith("DeviceMesh(device, [[0,")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["8", "--mesh", "2x4"], "leave COUNT out"),
        (["--mesh", "2x3"], "the product of its sides must be 8"),
        (["--mesh", "1x8"], "leave sides of 1 out"),
        (["--mesh", "2x4", "--size", "1,2,3"], "give one for all axes of --mesh 2x4, or 2"),
        (["--mesh", "2x4", "--collective", "broadcast"], "not broadcast"),
        (["--mesh", "2x4", "--members", "0-3"], "leave --members out"),
        (["--mesh", "2x4", "--top", "2"], "leave --top out"),
        ([], "Missing argument 'COUNT'"),
    ],
)
def test_what_is_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["place", "dgx1-v100", *words]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1
