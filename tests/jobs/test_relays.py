"""Groups that send through processes of none of their ranks: in shared memory, and by the kernel built for the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blinksim as bs
from blinksim.errors import InputError
from blinksim.gpu.jobs import backend as backends
from blinksim.gpu.jobs.backend import GpuBackend, SharedMemoryBackend, call_source
from blinksim.gpu.jobs.group import FolderStore, Group, GroupError
from blinksim.gpu.jobs.job_plan import JobPlan, Rule
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.of_calls import Call, Segment

sys.path.insert(0, str(Path(__file__).parents[1] / "execution"))

import fake_cupy

FLOAT, GPUS = ELEMENT_TYPES["float32"], 4
# Two pairs that send through GPUs of the other one, and reduce there.
SHARED = bs.Question("dgx1-v100", edits=("without gpu[4-7]",), relays="others", relays_reduce=True)
needs_compiler = pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler")
Backend = SharedMemoryBackend | GpuBackend


def plans(lane_blocks: int | None = None) -> list[tuple[JobPlan, list[int]]]:
    """The rules of each pair, and the numbers of its ranks and relays."""
    schedule = bs.together(SHARED, ["0,1", "2,3:broadcast"]).schedule
    found = []
    for number, one in enumerate(schedule.groups):
        rule = Rule(one.collective.name, None, schedule.alone(number), "simple", lane_blocks)
        plan = JobPlan.for_switch(2).with_rules([rule], f"{one}")
        found.append((plan, [int(name[3:]) for name in (*one.members, *plan.relays)]))
    assert [places for _, places in found] == [[0, 1, 2, 3], [2, 3, 0]]
    return found


def job(folder: Path, backend: Callable[[int], Backend], lanes: int | None = None, segment: int = 2 << 20) -> list[Any]:
    """What every rank of both pairs has after some calls of its own; and what the last one says."""

    def work(rank: int) -> tuple[list[Any], str]:
        made, relaying, mine, found = list[Group](), list[threading.Thread](), rank // 2, list[Any]()
        for number, (plan, places) in enumerate(plans(lanes)):
            if rank not in places:
                continue
            store, place = FolderStore(folder / f"{number}"), places.index(rank)
            made.append(Group(store, place, plan, backend(rank), Segment.of(segment), timeout_s=60))
            if place >= plan.ranks:
                nothing: Any = np.empty(0, dtype=np.uint8) if isinstance(made[-1].backend, SharedMemoryBackend) else 0
                relaying.append(threading.Thread(target=made[-1].relay, args=(nothing,)))
                relaying[-1].start()
        group, message = next(one for one in made if one.rank < 2), ""

        def call(collective: str, count: int, values: Any) -> None:
            data: Any = values.ctypes.data if isinstance(group.backend, GpuBackend) else values
            group.run(Call(collective, count, FLOAT), data, data)
            group.finish()
            found.append(values)

        for count in (1, 130, 100_001):
            for _ in range(2 - mine):
                call("broadcast" if mine else "allreduce", count, np.arange(count, dtype=np.float32) % 100 + rank)
        # No schedule of this file is for it.
        call("reduce", 1000, np.full(1000, rank + 1, dtype=np.float32))
        try:
            call("allreduce", 100 - rank % 2, np.ones(100, dtype=np.float32))
        except GroupError as error:
            message = str(error)
        group.close()
        for thread in relaying:
            thread.join()
        return found, message

    with ThreadPoolExecutor(GPUS) as threads:
        ranks = [threads.submit(work, rank) for rank in range(GPUS)]
        assert not [error for rank in ranks if (error := rank.exception())]
        return [rank.result() for rank in ranks]


def check(answers: list[Any]) -> None:
    """Sums of the first pair, copies of what rank 2 has in the second, and an error where sizes differed."""
    for rank, (found, message) in enumerate(answers):
        *calls, reduced = found[: 7 - 3 * (rank // 2)]
        for values in calls:
            own = np.arange(len(values), dtype=np.float32) % 100
            assert np.array_equal(values, 2 * own + 1 if rank < 2 else own + 2), rank
        assert rank % 2 or set(reduced.tolist()) == {3 if rank < 2 else 7}
        assert "must call the same" in message or "has failed" in message


def test_relays_in_shared_memory(tmp_path: Path) -> None:
    check(job(tmp_path, lambda rank: SharedMemoryBackend(tmp_path)))
    assert not list(tmp_path.glob("blinksim-*"))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("lanes", [None, 1])
def test_relays_on_gpus(lanes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the launch: each of four stand-ins runs its pair's kernel and, on another stream, a relay's."""
    for packets in (False, True):
        fake_cupy.build(call_source(FLOAT, "sum", packets), tmp_path)
    with fake_cupy.installed(monkeypatch, tmp_path, GPUS):
        monkeypatch.setattr(backends, "keeps_lines_whole", lambda cupy, gpus: True)
        check(job(tmp_path / "store", lambda rank: GpuBackend(rank, blocks=24), lanes, 8 << 20))


@needs_compiler
@pytest.mark.slow
def test_relays_see_no_graph_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans()[0][0]
    with fake_cupy.installed(monkeypatch, tmp_path, GPUS):
        monkeypatch.setattr(backends, "keeps_lines_whole", lambda cupy, gpus: True)

        def work(place: int) -> str:
            group = Group(FolderStore(tmp_path / "s"), place, plan, GpuBackend(place, blocks=4), Segment.of(2 << 20))
            if place >= plan.ranks:
                group.relay(0)
                return ""
            monkeypatch.setattr(GpuBackend, "capturing", property(lambda self: True))
            with pytest.raises(InputError, match="call it outside of the graph") as error:
                group.run(Call("allreduce", 10, FLOAT), 0, 0)
            group.close()
            return str(error.value)

        with ThreadPoolExecutor(GPUS) as threads:
            assert sum("allreduce of 10 float32" in said for said in threads.map(work, range(GPUS))) == 2


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch: pip install torch")
def test_the_recipe_without_gpus(tmp_path: Path) -> None:
    """Both ways to run them, with and without relays: right, and one pair by itself too."""
    root = Path(__file__).parents[2]
    recipe = [str(root / "validate" / "recipes" / "group_jobs.py"), "--device", "cpu", "--sizes", "64KiB"]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "BLINKSIM_BUFFER": "4MiB"}
    done = subprocess.run([sys.executable, *recipe, "--out", str(tmp_path)], env=environment, check=False)
    assert done.returncode == 0
    found = json.loads((tmp_path / "group-jobs-4gpu.json").read_text())
    rows = [(part, row["relays"], row["groups"], row["lanes"]) for part in ("commands", "job") for row in found[part]]
    lanes = {("none", "all"): 1, ("none", "0,1"): 1, ("none", "2,3"): 2}
    expected = [("commands", relays, "all", lanes.get((relays, "all"), 2.5)) for relays in ("none", "others")]
    expected += [
        ("job", relays, who, lanes.get((relays, who), 2.5))
        for relays in ("none", "others")
        for who in ("all", "0,1", "2,3")
    ]
    assert sorted(rows) == sorted(expected)
    assert not any(row["wrong"] for part in ("commands", "job") for row in found[part])


def test_a_plan_has_no_relays(tmp_path: Path) -> None:
    """Rules of one process group: nobody would do a relay's part."""
    pairs = bs.together(SHARED, ["0,1", "2,3"])
    assert pairs.groups[0].schedule is not None
    bs.write(pairs.groups[0].schedule, tmp_path / "pair.json")
    bs.write(pairs, tmp_path / "pairs.json")
    for file, words in (
        ("pair", "a schedule relays through gpu2 gpu3, which are no ranks"),
        ("pairs", "several groups"),
    ):
        plan = json.dumps([{"collective": "allreduce", "schedule": f"{file}.json"}])
        with pytest.raises(InputError, match=f"{words}.*blinksim.torch.new_groups"):
            JobPlan.of(JobPlan.for_switch(2).topology, plan, tmp_path / "plan.json")
