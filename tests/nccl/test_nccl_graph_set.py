"""Sets of graph files: Blink+'s chains and helpers, and the recipe that runs them, on a stand-in for CuPy and NCCL."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from proved_gaps import proved

from blinksim import machines
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.nccl.files.graph_file import read_text
from blinksim.nccl.files.graph_rules import Communicator, judge
from blinksim.nccl.graph_export import export_set
from blinksim.schedule.model import Schedule
from blinksim.textio.text_files import Exported

TESTS = Path(__file__).resolve().parents[1]
TENANTS = list(csv.DictReader(io.StringIO((TESTS / "golden" / "blinkplus_tenants.csv").read_text())))

# What the recipe uses of CuPy, on the CPU. A collective runs when the group ends; NCCL's variables are noted down.
FAKE_CUPY = """
import json, os, sys, types
import numpy as np

MEMORY = {}

class Array(np.ndarray):
    @property
    def data(self):
        MEMORY[id(self)] = self
        return types.SimpleNamespace(ptr=id(self))

def zeros(count, dtype):
    return np.zeros(count, dtype).view(Array)

def arange(count):
    return np.arange(count).view(Array)

class Device:
    def __init__(self, number):
        self.number = number
    def __enter__(self):
        return self
    def __exit__(self, *_):
        return False

class Communicator:
    started = []
    def __init__(self, group, gpu):
        self.group, self.gpu = group, gpu
    @staticmethod
    def initAll(gpus):
        names = ("NCCL_GRAPH_FILE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS")
        Communicator.started.append({"gpus": list(gpus), **{n: os.environ[n] for n in names}})
        with open(os.environ["FAKE_LOG"], "w") as log:
            json.dump(Communicator.started, log)
        group = types.SimpleNamespace(gpus=list(gpus))
        return [Communicator(group, gpu) for gpu in gpus]
    def _queue(self, what, a, b, count, kind, root):
        assert kind == nccl.NCCL_FLOAT32
        assert len(MEMORY[a]) == len(MEMORY[b]) == count
        QUEUE.append((self.group, self.gpu, what, a, b, root))
    def allReduce(self, a, b, count, kind, op, stream):
        self._queue("allreduce", a, b, count, kind, 0)
    def reduce(self, a, b, count, kind, op, root, stream):
        self._queue("reduce", a, b, count, kind, root)
    def broadcast(self, a, b, count, kind, root, stream):
        self._queue("broadcast", a, b, count, kind, root)

QUEUE = []

def group_start():
    QUEUE.clear()

def group_end():
    groups = {}
    for entry in QUEUE:
        groups.setdefault(id(entry[0]), []).append(entry)
    for entries in groups.values():
        group, what, root = entries[0][0], entries[0][2], entries[0][5]
        assert [entry[1] for entry in entries] == group.gpus
        values = sum(MEMORY[e[3]] for e in entries) if what != "broadcast" else MEMORY[entries[root][3]]
        for place, entry in enumerate(entries):
            if what != "reduce" or place == root:
                MEMORY[entry[4]][:] = values

nccl = types.SimpleNamespace(NcclCommunicator=Communicator, groupStart=group_start, groupEnd=group_end,
                             NCCL_FLOAT32=7, NCCL_SUM=0)
cuda = types.ModuleType("cupy.cuda")
cuda.Device, cuda.nccl = Device, nccl
cuda.Stream = lambda non_blocking: types.SimpleNamespace(ptr=1)
cuda.runtime = types.SimpleNamespace(deviceSynchronize=lambda: None)
sys.modules["cupy.cuda"] = cuda
"""


def schedule(tenant: str, helpers: str, collective: str = "allreduce", root: int = 0) -> Schedule:
    whole = machines.load("dgx1-v100", rates="seed")
    topology = whole.select([f"gpu{i}" for i in tenant], [f"gpu{i}" for i in helpers], relays_reduce=True)
    return algorithm("blinkplus").build(topology, Collective(collective, root))


def manifest(exported: Exported) -> dict[str, list[dict[str, Any]]]:
    read: dict[str, list[dict[str, Any]]] = json.loads(exported.files["manifest.json"])
    return read


def test_the_tenant_0_1_gets_the_four_chains_of_the_report() -> None:
    exported = export_set(schedule("01", "23"))
    entries = manifest(exported)["communicators"]
    chains = {tuple(entry["gpus"]) if entry["gpus"][0] == 0 else tuple(entry["gpus"][::-1]) for entry in entries}
    assert chains == {(0, 1), (0, 2, 1), (0, 3, 1), (0, 3, 2, 1)}
    assert [entry["share"] for entry in entries] == ["1/4"] * 4
    assert sorted(gpu for entry in entries for gpu in entry["helpers"]) == [2, 2, 3, 3]
    assert all(sorted(entry["users"]) == [0, 1] for entry in entries)
    for entry in entries:
        text = exported.files[str(entry["file"])]
        gpus = tuple(entry["gpus"])
        assert {channel for _, graph in read_text(text, "x").graphs for channel in graph.channels} == {gpus}
        assert judge(text, Communicator(gpus)).ok
        # Their order of ranks does not matter to the file.
        assert judge(text, Communicator(tuple(sorted(gpus)))).ok


@pytest.mark.parametrize("row", TENANTS, ids=lambda row: row["tenant"])
def test_every_tenant_of_a_quad_gets_its_chains(row: dict[str, str]) -> None:
    tenant = row["tenant"].replace(",", "")
    plan = schedule(tenant, "".join(str(i) for i in range(4) if str(i) not in tenant))
    entries = manifest(export_set(plan))["communicators"]
    assert sum(Fraction(str(entry["share"])) for entry in entries) == 1
    # A chain over two lanes is two communicators beside others, or one with two channels alone.
    assert sum(int(str(entry["channels"])) for entry in entries) == int(row["chains_max_4gpu"])
    assert len({entry["environment"]["NCCL_MAX_NCHANNELS"] for entry in entries}) == 1
    assert Fraction(str(proved(plan).bound["rate_exact"])) == int(row["bound_4gpu_GBps"])


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "root"), [("allreduce", 0), ("broadcast", 1), ("reduce", 0)])
def test_the_recipe_runs_and_checks_itself(tmp_path: Path, collective: str, root: int) -> None:
    plan = schedule("03", "12", collective, root)
    exported = export_set(plan)
    for name, text in exported.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "cupy.py").write_text(FAKE_CUPY)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "fake"), "FAKE_LOG": str(tmp_path / "log.json")}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "recipe.py"), "1"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{collective} of 1 MiB over GPUs [0, 3], helpers [1, 2]" in done.stdout
    assert "0 wrong elements" in done.stdout
    started = json.loads((tmp_path / "log.json").read_text())
    for entry, seen in zip(manifest(exported)["communicators"], started, strict=True):
        assert seen["gpus"] == entry["gpus"]
        assert Path(seen["NCCL_GRAPH_FILE"]).name == entry["file"]
        assert seen["NCCL_ALGO"] == ("allreduce:tree" if collective == "allreduce" else "Ring")
    assert len({seen["NCCL_MAX_NCHANNELS"] for seen in started}) == 1
    # A wrong share is a wrong result, and the recipe says so.
    broken = json.loads(exported.files["manifest.json"])
    broken["communicators"].pop()
    broken["communicators"][0]["share"] = "0"
    (tmp_path / "manifest.json").write_text(json.dumps(broken))
    (tmp_path / "recipe.py").write_text(exported.files["recipe.py"].replace("parts[-1][1] += total - start", ""))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "recipe.py"), "1"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert " 0 wrong elements" not in done.stdout


@pytest.mark.parametrize(
    ("name", "collective", "nodes", "message"),
    [
        ("rings", "allreduce", 1, "runs on rings"),
        ("rings", "allgather", 1, "not allgather"),
        ("chain", "allreduce", 2, "stay on one node"),
    ],
)
def test_what_is_no_set_of_chains_is_refused(name: str, collective: str, nodes: int, message: str) -> None:
    topology = machines.load("dgx1-v100", nodes=nodes).select()
    with pytest.raises(InfeasibleError, match=message):
        export_set(algorithm(name).build(topology, Collective(collective)))


def test_too_many_chains_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="at most 2"):
        export_set(schedule("01", "23"), 2)
