"""Schedules by symmetry beside the same ones written out: equal rates, loads and simulated times, to the tick.

One file says its trees once, with the symmetries that turn them. The other comes from builders that know no symmetries:
they write down every tree, and every block of an exchange. Both files are read again before they are compared.
"""

from __future__ import annotations

import base64
import json
import lzma
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import blinksim as bs
from blinksim.algorithms import rail_aligned
from blinksim.algorithms.building.symmetric_trees import symmetric_host_trees
from blinksim.algorithms.packed import from_hosts
from blinksim.collective import Collective
from blinksim.formats import schedule_json
from blinksim.schedule.candidate import SymmetricSchedule
from blinksim.schedule.loads import rate, resource_loads, resources
from blinksim.schedule.model import Schedule
from blinksim.timing.simulator import exact_time

COLLECTIVES = ["allgather", "reducescatter", "allreduce", "alltoall"]


def machine(name: str, nodes: int) -> bs.Topology:
    return bs.load(name, nodes=nodes).select()


def by_symmetry(part: bs.Topology, name: str) -> SymmetricSchedule:
    collective = Collective(name)
    if name == "alltoall":
        found = rail_aligned.symmetric(part, collective)
    else:
        found = symmetric_host_trees(part, collective, aim(part, name))
    assert found is not None
    return found


def one_by_one(part: bs.Topology, name: str) -> Schedule:
    collective = Collective(name)
    if name == "alltoall":
        return rail_aligned.build(part, collective)
    found = from_hosts(part, collective, aim(part, name))
    assert found is not None
    return found


def aim(part: bs.Topology, name: str) -> Fraction:
    return bs.bound(part, name).rate


@pytest.fixture(autouse=True)
def _short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of small schedules by symmetry say their trees once, too."""
    monkeypatch.setattr(schedule_json, "MOST_WRITTEN_OUT", 0)


def short_file(part: bs.Topology, name: str, folder: Path) -> Path:
    path = folder / "once.json"
    bs.write(by_symmetry(part, name), path)
    return path


def read_short(path: Path) -> SymmetricSchedule:
    document = json.loads(path.read_text())
    assert document["version"] == 2
    whole = schedule_json.compact_from_document(path, document)
    assert isinstance(whole, SymmetricSchedule)
    return whole


def read_full(part: bs.Topology, name: str, folder: Path) -> Schedule:
    path = folder / "all.json"
    bs.write(one_by_one(part, name), path)
    assert json.loads(path.read_text())["version"] == 1
    return bs.read_schedule(path)


def alike(part: bs.Topology, name: str, size: int, pieces: tuple[int, ...], folder: Path) -> Fraction:
    """Fails where the two differ in anything; gives their rate."""
    short = short_file(part, name, folder)
    once, full = read_short(short), read_full(part, name, folder)
    assert once.base.chunks < once.chunks == full.chunks
    assert once.base.sends < once.sends == full.sends
    assert once.rate is not None
    assert once.rate == rate(full)
    pooled = resource_loads(once.weighted, once.pooled.shared)
    each = [pooled[orbit] / int(once.pooled.size[orbit]) for orbit in once.pooled.orbit.tolist()]
    assert each == resource_loads(full, resources(full.topology))
    written = bs.read_schedule(short)
    for count in pieces:
        times = [exact_time(bs.simulate(one, size, pieces=count)) for one in (written, full)]
        assert times[0] == times[1]
        assert size / Fraction(times[0]) <= once.rate
    return once.rate


@pytest.mark.parametrize("name", COLLECTIVES)
def test_equal_rate_loads_and_time(name: str, tmp_path: Path) -> None:
    part = machine("hgx-h100", 8)
    assert alike(part, name, 2**26, (2,), tmp_path) == aim(part, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES[:3])
def test_equal_rate_loads_and_time_with_four_adapters_a_gpu(name: str, tmp_path: Path) -> None:
    part = machine("p5.48xlarge", 4)
    assert Fraction(99, 100) * aim(part, name) < alike(part, name, 2**26, (1, 2), tmp_path) <= aim(part, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine_name", "nodes", "name"),
    [
        *(("hgx-h100", 16, name) for name in COLLECTIVES),
        ("dgx-a100", 64, "reducescatter"),
        ("gb200-nvl72", 4, "allgather"),
    ],
)
def test_equal_rate_loads_and_time_of_hundreds(machine_name: str, nodes: int, name: str, tmp_path: Path) -> None:
    part = machine(machine_name, nodes)
    assert alike(part, name, 2**28, (1,), tmp_path) == aim(part, name)


@pytest.mark.parametrize("name", ["allgather", "allreduce"])
def test_equal_sends_when_the_generators_of_the_file_are_applied_by_hand(name: str, tmp_path: Path) -> None:
    """The file alone, with the standard library: its trees turned by every product of its generators."""
    part = machine("hgx-h100", 8)
    document = json.loads(short_file(part, name, tmp_path).read_text())
    full = read_full(part, name, tmp_path)
    generators = [_column(one) for one in document["generators"]]
    base = {key: _column(document[key]) for key in ("chunk", "src", "dst", "op", "step", "share_num")}
    trees = _trees(base, document["share_den"])
    images = set(trees)
    while trees:
        turned = [
            (share, frozenset((turn[a], turn[b], op, step) for a, b, op, step in sends))
            for share, sends in trees
            for turn in generators
        ]
        trees = list(set(turned) - images)
        images |= set(trees)
    written = _trees({key: getattr(full, key).tolist() for key in base}, full.share_den)
    assert len(images) == len(written)
    assert images == set(written)


def _trees(columns: dict[str, list[int]], whole: int) -> list[tuple[Fraction, frozenset[tuple[int, ...]]]]:
    """The share of every chunk, and its sends: from, to, operation, step."""
    sends: list[list[tuple[int, ...]]] = [[] for _ in columns["share_num"]]
    for chunk, *send in zip(*(columns[key] for key in ("chunk", "src", "dst", "op", "step")), strict=True):
        sends[chunk].append(tuple(send))
    shares = [Fraction(share, whole) for share in columns["share_num"]]
    return [(share, frozenset(tree)) for share, tree in zip(shares, sends, strict=True)]


def _column(packed: dict[str, object]) -> list[int]:
    """The numbers of a packed column: differences of neighbours, 64 bits each, compressed."""
    data = lzma.decompress(base64.b64decode(str(packed["differences"])))
    found, last = [], 0
    for place in range(0, len(data), 8):
        last += int.from_bytes(data[place : place + 8], "little", signed=True)
        found.append(last)
    assert len(found) == packed["length"]
    return found


def test_other_names_for_the_same_places_change_no_time() -> None:
    """Every rank takes the place of the one that a symmetry takes it to; the trees are built anew, in every way."""
    part, name = machine("hgx-h100", 8), "allreduce"
    times = set()
    turns = by_symmetry(part, name).group
    for turn in (np.arange(len(part.devices)), *turns.generators):
        renamed = part.select([part.devices[int(turn[place])].name for place in part.member_places])
        assert renamed.members != part.members or (turn == np.arange(len(turn))).all()
        for made in (by_symmetry(renamed, name).schedule, one_by_one(renamed, name)):
            times.add(exact_time(bs.simulate(made, 2**26, pieces=2)))
    assert len(times) == 1
