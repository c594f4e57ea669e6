"""Which device is at fault: by hand arithmetic, by published good and bad rigs, and whatever the order of ranks."""

from __future__ import annotations

import csv
import importlib
import json
import math
import random
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.answers.logs.faults import ASKED, SIZE, Faults
from blinksim.answers.logs.locate import Job, Suspicion, _adapters, _Rig
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import Question
from blinksim.nccl import tests_log
from blinksim.nccl.tests_log import RankPlace, Row, Run

DATA = Path(__file__).resolve().parents[1] / "data" / "located"
LOGS = [str(DATA / f"{name}.txt") for name in ("all", "even", "gpu0145", "gpu4567")]
SIZES = (2**26, 2**28, 2**30)
NVLINK, BOX = "gpu5-nvswitch", "hgx-h100"
FAULTS = Faults(BOX, several=False)


def log(spots: Iterable[tuple[str, int]], times: dict[int, float], name: str = "log") -> Run:
    """A run of an allreduce on GPUs of hosts."""
    places = [RankPlace(rank, host, gpu, f"0000:{16 * gpu + 27:02x}:00", "") for rank, (host, gpu) in enumerate(spots)]
    rows = [Row(size, 0, "float", "sum", -1, False, time, size / time, 0.0, None, 0) for size, time in times.items()]
    return Run(name, "allreduce", len(places), tuple(rows), tuple(places))


def box(gpus: Iterable[int], slower: float = 1.0) -> Run:
    """A run on GPUs of one box that takes so many times as long as it should."""
    listed = list(gpus)
    part = bs.load(BOX).select(listed)
    times = {one.size: slower * one.time_s for one in bs.expect(part, ["allreduce"], SIZES).takes}
    return log([("box0", gpu) for gpu in listed], times, f"gpus{listed}")


def test_half_the_lanes_of_one_gpu() -> None:
    found = bs.locate(BOX, LOGS)
    assert found.status == 1
    assert {one.place for one in found.tied} == {NVLINK, "gpu5"}
    assert found.candidates[0].share == pytest.approx(0.5, abs=0.05)
    assert len(found.text().splitlines()) <= 9
    # The one without GPU 5 takes 7 % more than published runs do.
    assert [one.ratio > 0.5 for one in found.seen] == [True, False, True, True]


def test_no_place_is_named_of_those_that_look_alike() -> None:
    """One log of a whole box tells no GPU from another: the headline has the classes, and how many places."""
    found = bs.locate(BOX, LOGS[:1])
    assert len({one.place for one in found.tied}) == 2 * found.gpus
    assert not re.search(r"gpu[0-9]", found.sentence())
    assert "NVLink lanes down or degraded, or a slow GPU, about" in found.sentence()
    assert found.sentence().endswith("left, one of 16 faults that look alike")


def test_a_fault_is_shown_by_logs_that_hold_its_place() -> None:
    """Another log that is behind is slow, by chance or else."""
    pairs = {(0, 1): 2, (6, 7): 1.08, (4, 5): 1, (2, 3): 1}
    logs = [replace(box(gpus, slower), path=f"{gpus[0]}{gpus[1]}") for gpus, slower in pairs.items()]
    found = bs.locate("hgx-h100", logs)
    assert {one.place for one in found.tied} == {"gpu0-nvswitch", "gpu1-nvswitch", "gpu0", "gpu1"}
    lines = [line.split(": ")[0].split() for line in found.text().splitlines()[1:3]]
    assert lines == [["shown", "by", "01"], ["log", "67"]]


def test_the_same_edit_makes_the_same_times() -> None:
    """What is found is an edit, under which the library takes what the logs say."""
    first = bs.locate(BOX, LOGS).candidates[0]
    broken = bs.load(BOX, edits=first.edits)
    expected, measured = bs.expect(broken, ["allreduce"], [2**30]).takes[0], tests_log.read(LOGS[0])[0].rows[-1]
    assert expected.time_s == pytest.approx(measured.time_s, rel=0.1)


@given(order=st.permutations(range(4)), seed=st.integers(0, 99))
def test_the_order_of_logs_and_ranks_changes_nothing(order: list[int], seed: int) -> None:
    draw, runs = random.Random(seed), [tests_log.read(LOGS[place])[0] for place in order]
    mixed = []
    for each in runs:
        places = draw.sample(each.places, len(each.places))
        mixed.append(replace(each, places=tuple(replace(one, rank=rank) for rank, one in enumerate(places))))
    found, usual = bs.locate(BOX, mixed), bs.locate(BOX, LOGS)
    assert found.sentence() == usual.sentence()
    assert found.healthy == pytest.approx(usual.healthy)


@given(seed=st.integers(0, 999))
def test_healthy_boxes_raise_no_alarm(seed: int) -> None:
    """Rigs that differ as their interval says, with 2 % of noise."""
    draw = random.Random(seed)
    rig = {8: draw.gauss(0, 0.1), 4: draw.gauss(0, 0.1)}
    gpus = [range(8), (0, 2, 4, 6), (1, 3, 5, 7), (0, 1, 2, 3)]
    runs = [box(part, math.exp(rig[len(part)] + draw.gauss(0, 0.02))) for part in gpus]
    assert bs.locate(BOX, runs).status != 1


def test_a_box_as_expected_is_sound() -> None:
    assert bs.locate(BOX, [box(range(8)), box((0, 1)), box((2, 3))]).status == 0


@pytest.mark.parametrize("gpu", [0, 3, 6])
def test_groups_that_share_a_gpu(gpu: int) -> None:
    """The one GPU that all slow pairs share, whatever the rig makes of pairs."""
    pairs = [(gpu, (gpu + step) % 8) for step in (1, 2)] + [
        ((gpu + 3) % 8, (gpu + 4) % 8),
        ((gpu + 5) % 8, (gpu + 6) % 8),
    ]
    runs = [box(pair, 0.9 * (1.6 if gpu in pair else 1)) for pair in pairs]
    found = bs.locate(BOX, runs)
    assert found.status == 1
    assert {one.place for one in found.tied} == {f"gpu{gpu}", f"gpu{gpu}-nvswitch"}


@given(gpus=st.sets(st.integers(0, 7), min_size=2, max_size=8), faulty=st.integers(0, 7))
def test_a_fault_of_others_changes_nothing(gpus: set[int], faulty: int) -> None:
    """Half of the lanes double the time of those that use them, and nobody else's.

    On other numbers of GPUs less, as the library says, since NCCL's speeds come in steps.
    """
    effects = FAULTS.effects(tuple(sorted(gpus)))
    for (place, share), effect in zip(FAULTS.columns, effects, strict=True):
        target = FAULTS.targets[place]
        if target.kind.name == "nvlink" and share == 0.5:
            gpu = int(target.name.removeprefix("gpu").removesuffix("-nvswitch"))
            used = gpu in gpus
            assert (effect > 0.5) == used
            assert effect == pytest.approx(math.log(2) * used, abs=0.03) or len(gpus) not in (2, 8)
            if gpu != faulty:
                continue
            asked = FAULTS.projection([(*sorted(gpus),)], ASKED, SIZE, FAULTS.edits(target, share)).time_s
            healthy = FAULTS.projection([(*sorted(gpus),)], ASKED, SIZE).time_s
            assert effect == pytest.approx(max(0.0, math.log(asked / healthy)), abs=0.01)


def test_symmetric_parts_have_symmetric_effects() -> None:
    """What is known of GPUs 0 and 1, moved to 2 and 3, is what is said of these if they are asked about first."""
    first, second = Faults("perlmutter", several=False), Faults("perlmutter", several=False)
    first.effects((0, 1))
    assert second.effects((2, 3)).tolist() == pytest.approx(first.effects((2, 3)).tolist(), abs=1e-9)


def test_a_plan_clears_a_machine_or_finds_what_is_wrong() -> None:
    """Its runs leave nothing open where all is well, and a GPU with half of its rate shows, whichever it is."""
    plan = bs.locate(BOX, plan=True).plan
    groups = [[int(gpu) for gpu in re.findall("[0-9]", line.split()[0])] for line in plan]
    assert 1 <= len(plan) <= 10
    assert bs.locate(BOX, [box(group) for group in groups]).status == 0
    for slow in range(8):
        found = bs.locate(BOX, [box(group, 1 + (slow in group)) for group in groups])
        assert found.status == 1
        assert f"gpu{slow}" in {one.place for one in found.tied}


CLUSTER = Faults("perlmutter", several=True)


@pytest.mark.parametrize("kind", ["nic", "nvlink", "host"])
def test_what_is_asked_at_some_shares_is_what_the_library_says_there(kind: str) -> None:
    """At the least share, and at half of the bandwidth; NCCL's choice jumps in between."""
    # All adapters are taken by all GPUs only.
    local = (0, 1, 2, 3) if kind == "nic" else (0, 1)
    effects, healthy = CLUSTER.effects(local, local), CLUSTER.projection([local] * 2, ASKED, SIZE).time_s
    checked = 0
    for (place, share), effect in zip(CLUSTER.columns, effects, strict=True):
        target = CLUSTER.targets[place]
        if target.kind.name == kind and share == target.kind.shares[-1]:
            asked = CLUSTER.projection([local] * 2, ASKED, SIZE, CLUSTER.edits(target, share, [0])).time_s
            assert effect == pytest.approx(max(0.0, math.log(asked / healthy)))
            checked += 1
    assert checked


def test_a_run_on_one_adapter_shows_that_one_alone() -> None:
    """Every GPU reaches all four through the CPU: NCCL takes what it finds, and only a run on one tells which."""
    every, alone = (CLUSTER.effects((0,), (0,), nics=nics) for nics in ((), ("nic2",)))
    for (place, share), before, after in zip(CLUSTER.columns, every, alone, strict=True):
        target = CLUSTER.targets[place]
        if target.kind.name == "nic" and share == 0.25:
            assert before == pytest.approx(0, abs=1e-3)
            assert (after > 1) == ("nic2" in target.name)


def on_adapter(number: int, slower: float = 1.0) -> Run:
    """A run of GPU 0 of four nodes of Perlmutter on one adapter, whose log says which."""
    time = slower * CLUSTER.projection([(0,)] * 4, ASKED, SIZE, nics=(f"nic{number}",)).time_s
    made = log([(f"host{node}", 0) for node in range(4)], {SIZE: time}, f"hca{number}")
    return replace(made, adapters=f"cxi{number}")


def test_logs_of_single_adapters_name_the_slow_one() -> None:
    logs = [on_adapter(0), on_adapter(1), on_adapter(2, 2.5), on_adapter(3)]
    found = bs.locate("perlmutter", logs, nodes=4)
    assert found.status == 1
    assert {re.search("nic[0-9]", one.place)[0] for one in found.tied} == {"nic2"}  # type: ignore[index]


LEAVES = "fabric shape=tree leaf_nodes=2"


def between(first: int, second: int, slower: float = 1.0) -> Run:
    """A run on all GPUs of two nodes of a cluster, two of which are below a leaf switch each."""
    part = bs.load(BOX, nodes=6, edits=LEAVES).select(
        [f"n{node}.gpu{gpu}" for node in (first, second) for gpu in range(8)]
    )
    times = {one.size: slower * one.time_s for one in bs.expect(part, ["allreduce"], [SIZE]).takes}
    spots = [(f"host{node}", gpu) for node in (first, second) for gpu in range(8)]
    return log(spots, times, f"{first}-{second}")


def test_a_leaf_uplink_slows_only_what_leaves_the_leaf() -> None:
    """Two nodes below one leaf are as quick as ever; with a slow network of node 2 these are slow as well."""
    hosts, slow = [f"host{node}" for node in range(6)], 2.5
    logs = [between(0, 2, slow), between(2, 4, slow), between(0, 4), between(2, 3), between(1, 5)]
    found = bs.locate(BOX, logs, nodes=6, hosts=hosts, edits=LEAVES)
    assert found.status == 1
    assert [(one.kind.name, one.place) for one in found.tied] == [("uplink", "fabric.leaf1-fabric")]
    assert found.candidates[0].edits[0].startswith("degrade fabric.leaf1-fabric bandwidth=")
    broken = bs.load(BOX, nodes=6, edits=(LEAVES, *found.candidates[0].edits))
    assert broken.links_between("fabric.leaf1", "fabric")[0].bandwidth < 50e9 * 8 / 2
    other = bs.locate(BOX, [*logs[:3], between(2, 3, slow), logs[4]], nodes=6, hosts=hosts, edits=LEAVES)
    assert "uplink" not in {one.kind.name for one in other.tied}
    assert all(one.place.startswith(("n2.", "node 2")) for one in other.tied)


def test_a_node_at_half_the_rate_may_have_a_slow_adapter() -> None:
    """Four hosts in pairs, of which the last halves what it takes part in: a slow port is among what can be."""
    faults = Faults("hgx-h100", several=True)
    every = tuple(range(faults.gpus))
    healthy = faults.projection((every, every), Collective("allreduce"), 2**28).time_s

    def pair(nodes: tuple[int, int]) -> Run:
        spots = [(f"h{node}", gpu) for node in nodes for gpu in every]
        return log(spots, {2**28: healthy * (1 + (3 in nodes))})

    found = bs.locate("hgx-h100", [pair(nodes) for nodes in combinations(range(4), 2)], nodes=4)
    assert found.status == 1
    assert {one.node for one in found.tied} == {3}
    assert {"nic", "network"} <= {one.kind.name for one in found.tied}
    assert found.text().count("  check  ") > 1
    assert len(found.text().splitlines()) <= 9


def test_amds_gpus_are_checked_by_amds_commands() -> None:
    said = [f"{one.kind.words} {one.kind.check}" for one in Faults("mi300x", several=False).targets]
    assert {"amd-smi", "xGMI"} <= {*re.findall(r"[\w-]+", " ".join(said))}
    assert not [words for words in said if "nvidia" in words.lower() or "NVLink" in words]


def test_text_names_nodes_by_their_hosts() -> None:
    """JSON keeps the names of the machine, which edits take."""
    times = [1.0, 1.0, 1.0, 3.0]
    logs = [replace(box(range(8), slow), places=()) for slow in times]
    named = [replace(one, places=log([(f"big{x}", gpu) for gpu in range(8)], {}).places) for x, one in enumerate(logs)]
    found = bs.locate(BOX, named, nodes=4)
    assert found.hosts == ("big0", "big1", "big2", "big3")
    assert ", 4 logs: NVLink lanes down or degraded, or a slow GPU (big3), about 32 % of its rate" in found.sentence()
    assert found.sentence().endswith(" left, one of 16 faults that look alike")
    assert "cannot be told apart: nvlink of big3.gpu0-nvswitch, " in found.text()
    assert all(one.place.startswith("n3.") for one in found.tied)


def test_how_a_log_says_its_adapter(tmp_path: Path) -> None:
    """NCCL's line, a comment, or what stands behind the path; as NCCL reads its variable."""
    text, own = Path(LOGS[0]).read_text(), [f"nic{number}" for number in range(8)]
    for words, wanted in (
        ("vm:1:2 [0] NCCL INFO NCCL_IB_HCA set to mlx5_2", "mlx5_2"),
        ("vm:1:2 [0] NCCL INFO NCCL_IB_HCA set by environment to =mlx5_2:1", "=mlx5_2:1"),
        ("# mpirun -x NCCL_IB_HCA=mlx5_2,mlx5_3 all_reduce_perf", "mlx5_2,mlx5_3"),
    ):
        path = tmp_path / "log.txt"
        path.write_text(f"{words}\n{text}{text}")
        assert [run.adapters for run in tests_log.read(path)] == [wanted] * 2
    rig = _Rig(Faults(BOX, several=True), Question(BOX, nodes=2), {}, {}, _adapters([], Faults(BOX, several=True)))
    for told, chosen in (
        ("mlx5_2", ["nic2"]), ("=mlx5_2:1", ["nic2"]), ("nic1,mlx5_7", ["nic1", "nic7"]), ("mlx5", []), ("", []),
        ("^mlx5_0", own[1:]), ("^=mlx5_0,mlx5_1", own[2:]),
    ):  # fmt: skip
        assert list(rig.nics(replace(box((0, 1)), adapters=told))) == chosen
    with pytest.raises(InputError, match=r"took adapter rocep1s0f1.*log\.txt:hca=nic0"):
        rig.nics(replace(box((0, 1)), adapters="rocep1s0f1"))


def test_runs_on_an_adapter_are_proposed_as_commands() -> None:
    """A slow NIC or PCIe of the node: which of four shows in runs on one each, and logs of these are understood."""
    found = bs.locate("perlmutter", [on_adapter(0), on_adapter(1)], nodes=4, plan=True)
    assert any(re.search(r"-x FI_CXI_DEVICE_NAME=cxi[0-3] ", line) for line in found.plan)


@pytest.mark.parametrize("step", [4, 8])
@pytest.mark.parametrize(("last", "odd"), [(3.0, True), (1.0, False)])
def test_a_last_size_that_is_alone_behind_is_measured_again_first(last: float, odd: bool, step: int) -> None:
    """As `diagnose` says of the same log; a second log of that size settles it, whatever it says."""
    sizes = [2**30 // step**2, 2**30 // step, 2**30]
    spots, takes = [("box0", gpu) for gpu in range(8)], bs.expect(BOX, ["allreduce"], sizes).takes
    times = {one.size: one.time_s * (last if one.size == 2**30 else 1) for one in takes}
    run = log(spots, times, "first")
    found, said = bs.locate(BOX, [run], next_run=True), bs.diagnose(run, BOX)
    assert [line.size for line in said.odd] == [2**30] * odd
    assert (
        found.odd == "first: 1 GiB",
        "log         first: cannot tell, the largest size is alone behind" in found.text(),
    ) == (odd, odd)
    assert found.next_run.endswith(f"all_reduce_perf -b {2**30} -e {2**30} -f 2 -g 8") == odd
    # The rest of the log is as expected, which does not say whether that size was slow by chance.
    assert (found.status, found.seen[0].line.size) == (5 * odd, said.largest.size)
    assert ("cannot tell yet whether anything is wrong" in found.sentence()) == odd
    for again in (1.0, 3.0):
        found = bs.locate(BOX, [run, log(spots, {2**30: again * takes[-1].time_s}, "again")], next_run=True)
        assert (found.odd, found.status == 0) == ("", again == 1)
        assert "-b 1073741824 -e 1073741824" not in found.next_run


def test_a_proposed_command_is_quoted() -> None:
    """Names of hosts come from logs and options, and go to a shell."""
    found = bs.locate("hgx-h100", nodes=2, hosts=["a;b", "$(c)"], next_run=True)
    words = shlex.split(found.next_run, posix=True)
    assert words[words.index("-H") + 1] == "a;b:8,$(c):8"


def test_ends_on_other_rails_are_no_run_where_rails_are_apart() -> None:
    """GPU 0 of one node and GPU 7 of the other are joined by nothing there: no such run is timed as of one rail."""
    same, other = (Job(((0, (0,)), (1, (gpu,)))) for gpu in (0, 7))
    known = Suspicion(Faults("hgx-h100", several=True), 2)
    assert known.expected(same).time_s > 0
    with pytest.raises(InfeasibleError, match=r"n0.gpu0 \| n1.gpu7"):
        known.expected(other)


def test_the_next_run_halves_what_is_open() -> None:
    found = bs.locate(BOX, [*LOGS[:2], box((1, 3, 5, 7), 2.0)], next_run=True)
    open_, asked = {one.place for one in found.tied}, found.next_run.split()[0]
    inside = {name for name in open_ if any(f"gpu{gpu}" in name for gpu in re.findall("[0-9]", asked))}
    assert 0 < len(inside) < len(open_)


def test_numbers_that_cuda_leaves_are_read_by_their_addresses() -> None:
    renumbered = [tests_log.read(name)[0] for name in LOGS]
    runs = [replace(one, places=tuple(replace(p, device=i) for i, p in enumerate(one.places))) for one in renumbered]
    assert bs.locate(BOX, runs).sentence() == bs.locate(BOX, LOGS).sentence()


def test_gpus_behind_a_log(tmp_path: Path) -> None:
    bare = tmp_path / "bare.txt"
    bare.write_text(re.sub(r"#  Rank.*\n", "", Path(LOGS[3]).read_text()))
    with pytest.raises(InputError, match=r"name them behind it, as in log\.txt@0,1"):
        bs.locate(BOX, [bare])
    assert bs.locate(BOX, [*LOGS[:3], f"{bare}@4-7"]).sentence() == bs.locate(BOX, LOGS).sentence()


def test_what_does_not_fit() -> None:
    times = dict.fromkeys(SIZES, 1e-3)
    with pytest.raises(InputError, match=r"come from 2 hosts \(a b\); give nodes=2"):
        bs.locate(BOX, [log([("a", 0), ("b", 0)], times)])
    with pytest.raises(InputError, match="devices are not those of this machine"):
        bs.locate(BOX, [log([("a", 0), ("a", 9)], times)])
    with pytest.raises(InputError, match="ran on one GPU"):
        bs.locate(BOX, [log([("a", 0)], times)])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["locate", BOX, *LOGS, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["place"] == NVLINK
    assert found["rows"][0]["tied"]
    assert run(["locate", BOX, *LOGS[1:2], "-q", "--next"]) in (0, 5)
    assert capsys.readouterr().out.splitlines()[-1].startswith("next: CUDA_VISIBLE_DEVICES=")


@pytest.mark.parametrize(
    ("runs", "healthy", "verb"), [([box(range(8))], 0.9, "expect"), (LOGS, 0.2, "locate"), (LOGS, 0.0, "project")]
)
def test_where_no_run_tells_more_the_next_is_a_command_that_answers(
    runs: list[Run | str],
    healthy: float,
    verb: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of healthy logs, of such as do not say whether anything is wrong, and of a fault."""
    found = replace(bs.locate(BOX, runs), healthy=healthy)
    with monkeypatch.context() as patched:
        patched.setattr("blinksim.cli.logs.located", lambda *_, **__: found)
        assert run(["locate", BOX, "log.txt", "--next"]) == found.status
    *_, told, last = capsys.readouterr().out.splitlines()
    assert told == "  runs        no other of nccl-tests tells more"
    assert shlex.split(last)[:3] == ["next:", "blinksim", verb]
    assert run([*shlex.split(last)[2:], "-q"]) == 0


def test_diagnose_names_the_single_losses_that_explain_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the lanes of one GPU of eight, of which one log does not say which; none where all is well."""
    assert run(["diagnose", LOGS[0], "--machine", BOX, "--json"]) == 1
    losses = json.loads(capsys.readouterr().out)["single_losses"]
    assert sorted(one["place"] for one in losses if one["class"] == "nvlink") == [f"gpu{x}-nvswitch" for x in range(8)]
    assert {one["class"] for one in losses} == {"nvlink", "clock"}
    assert all(one["share_left"] == pytest.approx(0.5, abs=0.05) for one in losses)
    assert run(["diagnose", LOGS[0], "--machine", BOX]) == 1
    assert "could be" in capsys.readouterr().out
    healthy = str(DATA.parent / "nccl_tests" / "h200x8-allreduce.txt")
    assert run(["diagnose", healthy, "--machine", "hgx-h200", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["single_losses"] == []


def published(name: str, collective: str) -> Run:
    rows, first = list[Row](), None
    with (DATA / "public_pairs.csv").open() as file:
        for row in csv.DictReader(file):
            if (row["set"], row["collective"]) == (name, collective):
                size, time, first = int(row["size_bytes"]), float(row["time_us"]) / 1e6, row
                rows.append(Row(size, 0, "", "none", -1, False, time, size / time, 0.0, None, 0))
    assert first is not None
    return Run(name, collective, int(first["gpus"]), tuple(rows))


REAL = DATA / "h200x4"


def real(name: str) -> list[str]:
    return [str(path) for path in sorted(REAL.glob(f"{name}*.txt"))]


def test_four_real_gpus_are_sound() -> None:
    """nccl-tests on 4 H200 of one board, 2026-11: all four, and all pairs."""
    found = bs.locate(REAL / "topo.xml", real("healthy"))
    assert (found.status, len(found.to_dict()["logs"])) == (0, 7)
    assert max(one["probability"] for one in found.rows()) < 1e-5


def test_a_real_gpu_that_another_process_keeps_busy() -> None:
    """Matrix products of another process on GPU 2, in the three runs that `next_run` asked for one after the other."""
    logs = real("busy-gpu2")
    for run_logs, asked in ((logs[:1], "0,2"), (logs[:2], "0,1")):
        assert bs.locate(REAL / "topo.xml", run_logs, next_run=True).next_run.startswith(
            f"CUDA_VISIBLE_DEVICES={asked} "
        )
    found = bs.locate(REAL / "topo.xml", logs)
    assert (found.status, found.first[0].kind.name, found.first[0].place) == (1, "clock", "gpu2")
    assert {one["place"] for one in found.rows() if one["tied"]} == {"gpu2", "gpu2-nvswitch"}


def test_a_real_connection_that_copies_keep_busy() -> None:
    """Copies between GPUs 2 and 3 take a part of their NVLinks: one end is named, and the next run shows the other."""
    logs = real("copies-gpu2-gpu3")
    found = bs.locate(REAL / "topo.xml", logs, next_run=True)
    assert (found.status, found.first[0].kind.name, found.first[0].place) == (1, "nvlink", "gpu2-nvswitch")
    assert 0.4 < found.first[0].share < 0.8
    done = [Path(log).read_text().splitlines()[0].removeprefix("# ") for log in logs]
    assert found.next_run.startswith("CUDA_VISIBLE_DEVICES=1,3 ")
    assert found.next_run not in done


def test_good_and_bad_boxes_without_nvlink() -> None:
    """The second host of the PCIe box: all of its PCIe is slow."""
    good, bad = (published(f"pan-4090-n8{more}", "allreduce") for more in ("", "-slow"))
    assert bs.locate("rtx-4090-pcie", [good]).status == 0
    found = bs.locate("rtx-4090-pcie", [bad])
    assert found.status == 1
    assert found.candidates[0].kind.name == "host"


PAIRS = (
    ("cscs-alps-good", "cscs-alps-broken", "alps", "network"),
    ("alcf-polaris-e5", "alcf-polaris-e1", "polaris", "network"),
    ("xxr-h100-pair", "xxr-h100-pair-slow", "hgx-h100", "nic"),
    # One GPU a node, by one adapter: the good one is slow as well, with 2.8 of 12.5 GB/s.
    # No rail of all nodes, which the good one has too.
    ("aws-karpenter-efa-n2", "aws-karpenter-tcp-n2", "p4d.24xlarge", "network"),
)


@pytest.mark.parametrize(("good", "bad", "machine", "kind"), PAIRS)
def test_good_and_bad_clusters(good: str, bad: str, machine: str, kind: str) -> None:
    """Two nodes that are well, and two that are not, of one cluster of four."""
    collective = "alltoall" if kind == "nic" else "allreduce"
    gpus = [published(name, collective).ranks // 2 for name in (good, bad)]
    runs = []
    for start, name, many in zip((0, 2), (good, bad), gpus, strict=True):
        spots = [RankPlace(0, f"n{start + node}", gpu, "", "") for node in (0, 1) for gpu in range(many)]
        runs.append(replace(published(name, collective), places=tuple(replace(s, rank=r) for r, s in enumerate(spots))))
    alone = bs.locate(machine, runs[:1], nodes=4, hosts=["n0", "n1", "n2", "n3"])
    assert alone.status != 1
    found = bs.locate(machine, runs, nodes=4, hosts=["n0", "n1", "n2", "n3"])
    assert found.status == 1
    assert kind in {one.kind.name for one in found.tied}
    named = [edit for one in found.tied if one.kind.at != "rail" for edit in one.edits]
    assert not any(f"{node}." in edit for edit in named for node in ("n0", "n1"))


@pytest.mark.parametrize("cases", [12, pytest.param(24, marks=pytest.mark.alike)])
def test_a_small_form_of_the_benchmark(cases: int) -> None:
    """Faults that the benchmark draws by itself, found by doing what ``--next`` says."""
    path = Path(__file__).resolve().parents[2] / "benchmarks"
    sys.path.insert(0, str(path))
    try:
        bench = importlib.import_module("bench_locate")
    finally:
        sys.path.remove(str(path))
    counts = bench.counted(BOX, 1, cases, random.Random(3))
    assert counts["class named"] >= 0.9 * counts["cases"]
    assert counts["place in two"] >= 0.9 * counts["cases"]
    assert counts["runs"] <= 10 * counts["cases"]


def test_what_no_two_faults_explain_is_not_called_sound() -> None:
    """Three pairs of a box are slow, or halves by more than any fault: neither a fault nor "no fault shows"."""
    for logs in (
        [box((0, 2, 4, 6), 20), box((1, 3, 5, 7), 20)],
        [box(pair, 2) for pair in ((0, 1), (2, 3), (4, 5))] + [box((6, 7))],
    ):
        found = bs.locate(BOX, logs)
        assert (found.status, found.explained, found.pairs) == (5, False, ())
        assert "neither a fault nor two explain all logs" in found.text()
        assert "measure again" not in found.text()


def test_a_fault_that_comes_and_goes_is_called_so() -> None:
    """The very same GPUs as they should be, and at two fifths of the rate, which no fault that stays does.

    So too where both are slow, or a quarter of one log's rows. Runs that differ by less than a fault are steady.
    """
    found = bs.locate(BOX, [box(range(8)), box(range(8), 2.5)])
    assert (found.status, found.explained) == (5, False)
    assert "the same GPUs took up to 2.5 times as long in one run as in another: measure again" in found.text()
    slow = [box((0, 1), 3), box((0, 1), 6), box(range(8))]
    found = bs.locate(BOX, slow)
    assert found.apart == pytest.approx(2)
    assert found.next_run.startswith("CUDA_VISIBLE_DEVICES=0,1 all_reduce_perf ")
    first, last = box(range(8)).rows[-1], box(range(8), 1.6).rows[-1]
    found = bs.locate(BOX, [replace(box(range(8)), rows=(first, first, first, last))])
    assert found.apart == pytest.approx(1.6)
    assert found.status == 5
    steady = bs.locate(BOX, [box(range(8)), box(range(8), 1.3)])
    assert (steady.apart, steady.next_run, "measure again" in steady.text()) == (1, "", False)


@pytest.mark.parametrize(("slow", "times"), [((2, 5), 1.5), ((0, 7), 1.5), ((3, 4), 1.5), ((2, 5), 1.2)])
def test_two_faults_that_explain_logs_better_than_any_single_one(slow: tuple[int, int], times: float) -> None:
    """GPUs of which each shows in other pairs, by hand: every pair is as slow as its slower GPU.

    By 1.2 noise could still do it, once in a thousand machines with the other fault alone.
    """
    rates = dict(zip(slow, (times, 2.5), strict=True))
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7)]
    logs = [box(pair, max(rates.get(gpu, 1.0) for gpu in pair)) for pair in pairs]
    found = bs.locate(BOX, logs)
    assert (found.status, found.explained) == (1, True)
    assert "two faults explain all logs" in found.sentence()
    for both in found.pairs:
        if both[0].tied:
            found_times = {int(re.findall("gpu([0-9])", one.place)[0]): 1 / one.share for one in both}
            assert found_times == pytest.approx(rates, rel=0.15)
    assert {one["places"][0] for one in found.to_dict()["pairs"]} <= {one["words"] for one in found.rows()}


def test_halves_that_are_both_slow_may_be_two_faults() -> None:
    """One of each half, or a rig that is slow as a whole: nobody can tell."""
    found = bs.locate(BOX, [box((0, 2, 4, 6), 1.35), box((1, 3, 5, 7), 1.35)])
    assert (found.status, found.explained) == (5, True)
    assert "do not say whether by a fault" in found.sentence()
    for both in found.pairs:
        assert {int(re.findall("gpu([0-9])", one.place)[0]) % 2 for one in both} == {0, 1}


def test_a_machine_without_nvlink_is_no_fault_of_the_table() -> None:
    other = bs.locate(BOX, [str(DATA.parent / "nccl_tests" / "dgx1v-without-nvlink.txt")])
    assert other.status == 5


def test_logs_that_would_be_taken_for_others_are_refused() -> None:
    """Rooted collectives, numbers of GPUs that addresses contradict, and hosts that were not named."""
    rooted = replace(box((0, 1)), collective="broadcast")
    with pytest.raises(InputError, match="whose root counts"):
        bs.locate(BOX, [rooted])
    pairs = [box((0, 1)), box((4, 5), 2)]
    renumbered = [
        replace(one, places=tuple(replace(place, device=place.rank) for place in one.places)) for one in pairs
    ]
    with pytest.raises(InputError, match="PCI addresses"):
        bs.locate(BOX, renumbered)
    with pytest.raises(InputError, match="box0 is not among hosts"):
        bs.locate(BOX, [box((0, 1))], nodes=2, hosts=("a", "b"))
    with pytest.raises(InputError, match="no size above 0"):
        bs.locate(BOX, [replace(box((0, 1)), rows=())])
    with pytest.raises(InputError, match="aurora runs oneccl"):
        bs.locate("aurora", plan=True)


@pytest.mark.parametrize(
    ("edit", "names"),
    [("without n1.nic0", "n1.nic0"), ("without n[0-1].nic0", "n[0-1].nic0"),
     ("degrade n1.gpu0-n1.nvswitch lanes=9", "n1.gpu0-n1.nvswitch")],
)  # fmt: skip
def test_edits_of_single_nodes_are_refused(edit: str, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["locate", BOX, "--nodes", "2", "--plan", "--edit", edit]) == 2
    said = capsys.readouterr().err
    assert f"locate's edits are of every node, and {names} is on some; leave it out" in said


@pytest.mark.parametrize(("asked", "status"), [(["--plan"], 0), (["--next"], 0), ([], 5)])
def test_runs_that_were_asked_for_are_an_answer(asked: list[str], status: int) -> None:
    assert run(["locate", BOX, "-q", *asked]) == status


def test_logs_of_a_smaller_box_say_what_is_missing() -> None:
    logs = sorted((DATA / "h200x4").glob("*.txt"))
    with pytest.raises(InputError, match=r"name 4 GPUs, and the machine has 8: .* the machine's own topo\.xml"):
        bs.locate("hgx-h200", logs)
    assert bs.locate(DATA / "h200x4" / "topo.xml", logs).gpus == 4


def _using(host: str, adapters: Iterable[int]) -> tuple[str, tuple[str, ...]]:
    return host, tuple(f"mlx5_{number}" for number in adapters)


@pytest.mark.parametrize(("node", "kept"), [(3, (0, 1)), (1, (1, 3, 4, 7))])
def test_adapters_that_nccl_leaves_out_on_a_host_are_one_fault(node: int, kept: tuple[int, ...]) -> None:
    """Named first where what the edit takes explains the log, and the next run is on that host."""
    lost = [number for number in range(8) if number not in kept]
    hosts = [f"n{number}" for number in range(4)]
    edits = [f"without n{node}.nic{number}" for number in lost]
    slow, sizes = bs.load(BOX, nodes=4, edits=edits), SIZES
    times = {one.size: one.time_s for one in bs.expect(slow, ["allreduce"], sizes).takes}
    run = log([(host, gpu) for host in hosts for gpu in range(8)], times)
    run = replace(run, hcas=tuple(_using(host, kept if host == hosts[node] else range(8)) for host in hosts))
    found = bs.locate(BOX, [run], nodes=4, next_run=True)
    first = found.candidates[0]
    assert (found.status, first.kind.name, first.node, first.share) == (1, "down", node, 0)
    assert sorted(first.edits) == sorted(f"without n{node}.nic{number}-fabric{number}" for number in lost)
    assert f"n{node}:" in found.next_run
    # What hosts with all adapters exclude is not said.
    assert "fewer NICs" not in found.text()


def test_what_nccl_says_of_a_host_is_no_fault_where_every_size_is_as_slow() -> None:
    """As slow where latency decides: a run of that host comes next, and no loss of adapters is found."""
    sizes = tuple(2**power for power in range(10, 31, 4))
    hosts, machine = [f"n{number}" for number in range(4)], bs.load(BOX, nodes=4)
    times = {one.size: 2.3 * one.time_s for one in bs.expect(machine, ["allreduce"], sizes).takes}
    run = log([(host, gpu) for host in hosts for gpu in range(8)], times)
    run = replace(run, hcas=tuple(_using(host, range(2 if host == "n3" else 8)) for host in hosts))
    found = bs.locate(BOX, [run], nodes=4, next_run=True)
    assert found.status == 5
    assert "n3:" in found.next_run


def _on_all(factors: dict[int, float], name: str = "log") -> Run:
    """A run on all GPUs of one box, some sizes so many times as long as they should take."""
    sizes = tuple(2**power for power in range(10, 31, 2))
    takes = bs.expect(BOX, ["allreduce"], sizes).takes
    return log([("box0", gpu) for gpu in range(8)], {x.size: factors.get(x.size, 1) * x.time_s for x in takes}, name)


def test_a_single_size_that_is_behind_is_said_as_by_diagnose() -> None:
    run = _on_all({2**26: 2.2})
    found, other = bs.locate(BOX, [run]), bs.diagnose(run, BOX)
    assert (found.status, other.status()) == (0, 0)
    assert "64 MiB alone behind, measure again" in found.text()
    assert other.verdict.words in found.text()


def test_what_slows_every_size_on_all_gpus_is_no_slow_gpu_until_a_log_tells_them_apart() -> None:
    every = _on_all(dict.fromkeys((2**power for power in range(10, 31)), 2.0))
    found = bs.locate(BOX, [every])
    assert found.status == 5
    assert "slow GPU" not in found.text()
    assert "clocks of all GPUs" in found.text()
    # Half of them as they should be.
    found = bs.locate(BOX, [every, box(range(4)), box(range(4, 8), 2.0)])
    assert found.status == 1
    assert {one.place for one in found.tied} <= {
        f"{gpu}{end}" for gpu in ("gpu4", "gpu5", "gpu6", "gpu7") for end in ("", "-nvswitch")
    }


def _pair(first: int, second: int, slower: float = 1.0, lacks: int = -1) -> Run:
    """Two nodes of four, one of which may use all adapters but the last."""
    takes = bs.expect(BOX, ["allreduce"], SIZES, nodes=2).takes
    spots = [(f"n{node}", gpu) for node in (first, second) for gpu in range(8)]
    run = log(spots, {one.size: slower * one.time_s for one in takes}, f"pair{first}{second}")
    return replace(run, hcas=tuple(_using(f"n{n}", range(8 - (n == lacks))) for n in (first, second)))


def test_a_rail_of_all_nodes_slows_every_pair_and_every_log_is_named() -> None:
    """Three of four pairs in order, as far as slow nodes go, and no pair of them is slow by a rail."""
    runs = [_pair(0, 1), _pair(1, 3, 3), _pair(1, 2, 3), _pair(2, 3, 1.14)]
    found = bs.locate(BOX, runs, nodes=4, hosts=[f"n{number}" for number in range(4)])
    assert (found.status, found.explained) == (5, False)
    assert all(each.path in found.text() for each in runs)


def test_adapters_that_a_host_lacks_are_found_where_its_pair_alone_is_slower() -> None:
    """Within the interval of what is expected; not where its pair takes as long as others."""
    hosts = [f"n{number}" for number in range(4)]
    for slower, status in ((1.14, 1), (1.0, 5)):
        found = bs.locate(BOX, [_pair(0, 2, slower, lacks=2), _pair(1, 3)], nodes=4, hosts=hosts)
        assert found.status == status
    lacking = _pair(0, 2, 1.14, lacks=2)
    causes = bs.diagnose(lacking, bs.load(BOX, nodes=2)).causes
    assert [said != "" for _, said in causes] == [True]


def test_the_first_fault_is_on_the_links_that_the_logs_name() -> None:
    """And the first check is that of the first fault."""
    runs = [_pair(0, 2), _pair(0, 1, 3), _pair(1, 3, 3), _pair(2, 3)]
    found = bs.locate(BOX, runs, nodes=4, hosts=[f"n{number}" for number in range(4)])
    [first] = found.first
    assert (found.status, first.node, first.kind.name == "nvlink") == (1, 1, False)
    checks = [line.split(None, 1)[1] for line in found.text().splitlines() if line.startswith("  check")]
    assert first.kind.check == checks[0]


def test_what_has_to_be_measured_again_is_the_next_run_as_in_diagnose() -> None:
    single = _on_all({2**26: 2.2})
    short = replace(single, rows=single.rows[:8], complete=False, ended="cut", most=2**30)
    for each in (short, single):
        again = dict(bs.diagnose(each, BOX).to_do())["again"]
        assert bs.locate(BOX, [each], next_run=True).next_run == again
