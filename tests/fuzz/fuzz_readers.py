"""Every reader of files with samples of what it reads: the repository's own files, and what blinksim writes."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import nccl_tests_logs
import numpy as np
from fuzz_mutate import changed_values, damaged

import blinksim as bs
from blinksim import data_files
from blinksim.answers.logs.expectation import read_runs
from blinksim.answers.tune import ChoiceTime, TimedJob, read_times, times_text
from blinksim.answers.worker_pool import Journal
from blinksim.cli import main
from blinksim.formats import machine_yaml
from blinksim.gpu.jobs.job_plan import JobPlan
from blinksim.nccl import tests_log
from blinksim.nccl.files import graph_file
from blinksim.timing.projection import read_presets

DATA = Path(__file__).resolve().parents[1] / "data"


@dataclass(frozen=True)
class Reader:
    """samples: texts that it reads. name: of the file. read: what reads it. packed: True if it may be gzip."""

    samples: Callable[[], list[str]]
    name: str
    read: Callable[[Path], object]
    json: bool = False
    packed: bool = False

    def input(self, random_: random.Random) -> bytes:
        """A hostile file."""
        samples = self.samples()
        text = random_.choice(samples)
        if self.json and random_.random() < 0.6:
            text = changed_values(random_, text)
        else:
            text = damaged(random_, text, samples)
        data = text.encode("utf-8", "surrogateescape" if random_.random() < 0.9 else "replace")
        return gzip.compress(data, 1, mtime=0) if self.packed and random_.random() < 0.05 else data


def _files(*patterns: str) -> list[str]:
    found = [path for pattern in patterns for path in sorted(DATA.glob(pattern))]
    assert found
    return [path.read_text(encoding="utf-8") for path in found if path.stat().st_size < 60_000]


@cache
def machines() -> list[str]:
    small = [
        machine_yaml.write(bs.load(name))
        for name in ("ring:3@25GB/s", "torus:2x2", "switch:3", "mesh:2x2", "dgx1-v100")
    ]
    return small + [path.read_text(encoding="utf-8") for path in data_files.files("topologies").values()]


@cache
def rates() -> list[str]:
    nvlink = "nvlink: {bandwidth: 22.9GB/s, latency: 1us, overhead: 1us}"
    own = f"name: x\nmachine: dgx1-v100\nsource: a log\nclasses:\n  {nvlink}\n"
    return [own, *(path.read_text(encoding="utf-8") for path in data_files.files("models/rates").values())]


@cache
def models() -> list[str]:
    names = ("aurora-projection.yaml", "projection.yaml")
    return [(data_files.folder("models") / name).read_text(encoding="utf-8") for name in names]


@cache
def topologies() -> list[str]:
    return _files("nccl_topo/*.xml", "captures/*/*topo.xml")


@cache
def graphs() -> list[str]:
    return _files("nccl_graph/*.xml", "nccl_graph_dumps/*.xml", "captures/*/*graph.xml")


@cache
def algorithms() -> list[str]:
    return [*_exported("msccl-xml"), *graphs()[:3]]


@cache
def plans() -> list[str]:
    return _exported("mscclpp-json")


def _exported(form: str) -> list[str]:
    asked = (("ring:3", "allgather", "ring"), ("full:4", "alltoall", "direct"), ("dgx1-v100", "allreduce", "ring"))
    found = [bs.export(bs.synthesize(machine, name, algorithm).schedule, form) for machine, name, algorithm in asked]
    return [text for one in found for text in one.files.values()]


@cache
def schedules() -> list[str]:
    from blinksim.formats.schedule_json import to_text

    asked = (("ring:3", "allgather", "ring"), ("full:4", "allreduce", "packed"), ("mesh:2x2", "broadcast", "packed"))
    return [to_text(bs.synthesize(machine, name, algorithm).schedule) for machine, name, algorithm in asked]


@cache
def bounds() -> list[str]:
    asked = (("dgx1-v100", "allreduce"), ("ring:4", "broadcast"), ("torus:2x2", "alltoall"), ("ring:3", "allgather"))
    found = []
    for words in asked:
        with redirect_stdout(io.StringIO()) as printed:
            assert main.run(["bound", *words, "--json"]) == 0
        found.append(printed.getvalue())
    return found


@cache
def logs() -> list[str]:
    points = [nccl_tests_logs.Point(2**k, 10.0 + 2**k / 1e4, 11.0 + 2**k / 1e4) for k in range(10, 30, 4)]
    own = [
        nccl_tests_logs.text(name, 8, points, layout=layout)
        for name in ("allreduce", "alltoall", "broadcast")
        for layout in ("new", "old", "iterations", "stamped")
    ]
    return [*own, *_files("nccl_tests/*.txt")]


@cache
def tables() -> list[str]:
    return _files("captures/*/smi_topo.txt", "captures/*/p2p.txt", "captures/*/nccl_debug.log", "damaged/*.txt")


@cache
def journals() -> list[str]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "j.journal"
        journal = Journal(path)
        for number in range(4):
            journal.add(f"k{number}", [{"machine": "a", "size": number, "time_s": 0.5}])
        return [path.read_text(encoding="utf-8")]


@cache
def traffic() -> list[str]:
    """Of CSV and of NumPy, whose bytes are text with surrogates here."""
    found = ["# dispatch\n0,100,64KiB\n100, 0,7\n1,2,3\n", "\n".join(bs.Traffic.uniform(4, 4096).lines())]
    for matrix in (np.arange(9).reshape(3, 3), np.asfortranarray(np.eye(4, dtype=">i4") + 3), np.ones((2, 2), "u1")):
        buffer = io.BytesIO()
        np.save(buffer, matrix)
        found.append(buffer.getvalue().decode("utf-8", "surrogateescape"))
    return found


@cache
def routings() -> list[str]:
    """Experts of tokens of two ranks, as CSV and of NumPy."""
    found = ["# experts\n0,3\n1,-1\n", "2\n3\n0\n1\n"]
    for ids in (
        np.arange(12).reshape(2, 2, 3) % 4,
        np.asfortranarray(np.ones((4, 2), dtype=">i2")),
        np.eye(2, dtype="u1"),
    ):
        buffer = io.BytesIO()
        np.save(buffer, ids)
        found.append(buffer.getvalue().decode("utf-8", "surrogateescape"))
    return found


def placements() -> list[str]:
    return ["# of each expert\n0\n1\n0,1\n1\n", "1\n0\n"]


def _placed(path: Path) -> object:
    with TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.csv"
        ids.write_text("0,1\n1,0\n", encoding="utf-8")
        return bs.read_routing(ids, path, ranks=2)


@cache
def times() -> list[str]:
    job = TimedJob("2.28.9", "hgx-h200", "sm 90", 4, 1)
    choices = (("ring", "ll", -1), ("tree", "simple", 8), ("ring", "ll128", 32))
    taken = [ChoiceTime("allreduce", 2**k, *choice, 1e-6 * k) for k in range(10, 24, 4) for choice in choices]
    return [times_text(taken, least, job) for least in (None, 16)] + [times_text(taken, 8, job).partition("\n")[2]]


@cache
def rules() -> list[str]:
    """The plan of a job: rules that name algorithms, or a file that is not there."""
    return [
        '[{"collective": "allreduce", "algorithm": "ring", "up_to": "1MiB", "protocol": "ll128"}, '
        '{"collective": "allgather", "algorithm": "direct"}]',
        '[{"collective": "broadcast", "schedule": "s.json", "lane_blocks": 2}]',
    ]


@cache
def plugins() -> list[str]:
    """An algorithm and a timing model, without loops: what a plug-in itself does is nobody's fault here."""
    algorithm = (
        "import blinksim as bs\nfrom fractions import Fraction\n\n"
        '@bs.register_algorithm(["broadcast"])\ndef own(plan):\n'
        '    """A line."""\n    half = plan.add_chunk(Fraction(1, 2))\n    rest = plan.add_chunk(Fraction(1, 2))\n'
        '    plan.send(0, 1, chunk=half, op="copy", step=0)\n    plan.send(0, [2, 1], chunk=rest, op="copy", step=1)\n'
        '    plan.send(1, 2, chunk=half, op="copy", step=2, channel=1)\n'
    )
    raising = algorithm.replace("    half =", '    raise bs.InfeasibleError("not here")\n    half =')
    return [algorithm, raising, algorithm.replace("step=2", "step=2 + plan.n")]


def _plugin(path: Path) -> None:
    with redirect_stdout(io.StringIO()) as printed:
        bs.synthesize("ring:3", "broadcast", f"{path}")
    assert not printed.getvalue()


def _machine(path: Path) -> None:
    machine = bs.load(path)
    machine_yaml.write(machine)
    bs.check(machine)


def _schedule(path: Path) -> None:
    if bs.verify_file(path).ok:
        bs.simulate(bs.read_schedule(path), "1MiB")


def _graph(path: Path) -> None:
    bs.verify_file(path, bs.Question("dgx1-v100"))
    graph_file.read(path)


@cache
def job_logs() -> list[str]:
    kernel = {"cat": "kernel", "name": "nccl", "ts": 1.0, "dur": 25.0, "args": {"Collective name": "allreduce"}}
    kernel["args"] |= {"In msg nelems": 9, "Out msg nelems": 9, "dtype": "Float", "Group size": 2}  # type: ignore[operator]
    kernel["args"] |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}  # type: ignore[operator]
    step = {"cat": "user_annotation", "name": "ProfilerStep#1", "dur": 1000.0}
    entry = {"record_id": 1, "process_group": ["0", "x"], "profiling_name": "nccl:all_reduce", "duration_ms": 0.5}
    entry |= {"input_sizes": [[4, 8]], "output_sizes": [[4, 8]], "input_dtypes": ["Float"]}
    dump = {"pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [entry, entry]}
    record = {"header": {"id": "0x7f", "n_ranks": 2}, "coll_perf": {"coll": "AllReduce", "coll_msg_size_bytes": 1000}}
    record["coll_perf"] |= {"coll_exec_time_us": 10, "coll_algobw_gbs": 0.1}
    return [json.dumps({"traceEvents": [step, kernel, kernel]}), json.dumps(dump), json.dumps(record)]


@cache
def dumps() -> list[str]:
    """Pickles, as text that stands for their bytes."""
    return [pickle.dumps(json.loads(job_logs()[1]), 2).decode("utf-8", "surrogateescape")]


READERS = {
    "machine": Reader(machines, "m.yaml", _machine),
    "rates": Reader(rates, "r.yaml", lambda path: bs.load("dgx1-v100", rates=str(path))),
    "presets": Reader(models, "p.yaml", lambda path: read_presets(path)),
    "topology": Reader(topologies, "t.xml", _machine),
    "graph": Reader(graphs, "g.xml", _graph),
    "algorithm": Reader(algorithms, "a.xml", lambda path: bs.verify_file(path, bs.Question("dgx1-v100"))),
    "plan": Reader(plans, "p.json", lambda path: bs.verify_file(path), json=True),
    "schedule": Reader(schedules, "s.json", _schedule, json=True, packed=True),
    "bound": Reader(bounds, "b.json", lambda path: bs.verify_file(path), json=True),
    "log": Reader(logs, "log.txt", lambda path: tests_log.read(path)),
    "job": Reader(job_logs, "job.log", lambda path: read_runs(path), json=True, packed=True),
    "dump": Reader(dumps, "dump", lambda path: read_runs(path)),
    "table": Reader(tables, "smi.txt", _machine),
    "traffic": Reader(traffic, "traffic.csv", lambda path: bs.read_traffic(path)),
    "routing": Reader(routings, "ids.csv", lambda path: bs.read_routing(path, ranks=2)),
    "placement": Reader(placements, "held.csv", _placed),
    "times": Reader(times, "times.csv", lambda path: read_times(path)),
    "rules": Reader(rules, "rules.json", lambda path: JobPlan.read(bs.load("ring:4").select(), path), json=True),
    "plugin": Reader(plugins, "own.py", _plugin),
    "journal": Reader(journals, "j.journal", lambda path: Journal(path)),
}
