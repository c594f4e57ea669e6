"""Logs of jobs: hand-written fixtures in the documented formats, judged beside hand arithmetic."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import blinksim as bs
from blinksim.answers.logs.expectation import members_of, of_one_job, read_runs
from blinksim.cli.main import run
from blinksim.errors import BlinksimError, FileError, InputError

EIGHT = list(range(8))
DATA = Path(__file__).parents[1] / "data"
JOB_LOGS = DATA / "job_logs"


def kernel(name: str, elements: tuple[int, int], ranks: list[int], dur: float, **more: Any) -> dict[str, Any]:
    """A kernel of NCCL as Kineto writes it; dur: microseconds."""
    args = {"Collective name": name, "In msg nelems": elements[0], "Out msg nelems": elements[1], "dtype": "BFloat16"}
    args |= {"In split size": "[]", "Out split size": "[]", "Group size": len(ranks), "Process Group Name": "0"}
    args |= {"Process Group Description": "default_pg", "Process Group Ranks": str(ranks), "stream": 20}
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_Generic", "ts": 1.0, "dur": dur, "args": args | more}


def step(number: int, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": 0.0, "dur": dur}


def entry(name: str, sizes: tuple[list[int], list[int]], ms: float | None, **more: Any) -> dict[str, Any]:
    """An entry of the flight recorder."""
    group = tuple(word for word in ("0", "default_pg"))
    found: dict[str, Any] = {"record_id": 1, "process_group": group, "profiling_name": f"nccl:{name}"}
    found |= {"input_sizes": [sizes[0]], "output_sizes": [sizes[1]], "input_dtypes": ["Float"], "is_p2p": False}
    return found | ({} if ms is None else {"duration_ms": ms}) | {"state": "completed", "retired": True} | more


def dump(*entries: dict[str, Any], ranks: str = str(EIGHT)) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": list(entries)}


def record(coll: str, size: int, us: float, shards: int = 1) -> str:
    """A line of NCCL Inspector."""
    perf = {"coll": coll, "coll_sn": 7, "coll_msg_size_bytes": size, "coll_exec_time_us": us}
    perf |= {"coll_algobw_gbs": size * shards / us / 1e3, "coll_busbw_gbs": 1.0}
    header = {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1}
    return json.dumps({"header": header, "metadata": {"inspector_output_format_version": "v4.0"}, "coll_perf": perf})


def calls(path: Path) -> list[tuple[str, str, int, int, int]]:
    """Group, collective, ranks, bytes and rounded microseconds of every call."""
    return [
        (one.group, one.collective, one.ranks, row.size, round(row.time_s * 1e6))
        for one in read_runs(path)
        for row in one.rows
    ]


def test_kernels_of_pytorch(tmp_path: Path) -> None:
    """Bytes are those of the larger buffer: 2 for each BFloat16, of all ranks' shards in an allgather."""
    events = [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.0, "dur": 5.0, "args": {"grid": [1, 1, 1]}},
        kernel("allreduce", (1000, 1000), EIGHT, 25.0),
        kernel("_allgather_base", (1000, 8000), EIGHT, 30.0),
        kernel("_reduce_scatter_base", (8000, 1000), EIGHT, 31.0, dtype="Float"),
        kernel("all_to_all", (800, 800), EIGHT, 40.0, **{"In split size": "[100, 100]"}),
        kernel("all_to_allv", (800, 800), EIGHT, 40.0, **{"In split size": "[10, 190]"}),
        kernel("allreduce", (64, 64), [0, 2, 4], 9.0, **{"Process Group Name": "5", "Process Group Description": ""}),
        kernel("send", (64, 64), [0, 1], 9.0),
        kernel("allreduce", (64, 64), [3], 9.0),
    ]
    for path in (tmp_path / "trace.json", tmp_path / "trace.json.gz"):
        text = json.dumps({"schemaVersion": 1, "traceEvents": [step(1, 1e3), step(2, 2e3), *events]})
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        assert calls(path) == [
            ("0 default_pg", "allreduce", 8, 2000, 25),
            ("0 default_pg", "allgather", 8, 16000, 30),
            ("0 default_pg", "reducescatter", 8, 32000, 31),
            ("0 default_pg", "alltoall", 8, 1600, 40),
            ("5", "allreduce", 3, 128, 9),
        ]
        runs = read_runs(path)
        assert [one.step_s for one in runs] == pytest.approx([3e-3] * len(runs))
        assert [place.device for place in runs[-1].places] == [0, 2, 4]


def test_dumps_of_the_flight_recorder(tmp_path: Path) -> None:
    entries = dump(
        entry("all_reduce", ([4, 1000], [4, 1000]), 0.5),
        entry("_reduce_scatter_base", ([8000], [1000]), 0.25),
        entry("all_reduce", ([4], [4]), None),
        entry("send", ([4], [4]), 0.1, is_p2p=True),
    )
    expected = [("0 default_pg", "allreduce", 8, 16000, 500), ("0 default_pg", "reducescatter", 8, 32000, 250)]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(entries, 2))
    assert calls(path) == expected
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(entries))
    assert calls(path) == expected


def test_records_of_the_inspector(tmp_path: Path) -> None:
    """The example of its manual: a reduce-scatter of 2 GiB shards in 41057 us has 418.4 GB/s algbw and 366.1 busbw."""
    path, group = tmp_path / "inspector.log", "0x7f8c496ae9f661"
    path.write_text("\n".join([record("ReduceScatter", 2**31, 41057, 8), record("AllReduce", 2**34, 61974)]) + "\n")
    assert calls(path) == [(group, "reducescatter", 8, 2**34, 41057), (group, "allreduce", 8, 2**34, 61974)]
    [first, _] = read_runs(path)
    assert first.rows[0].algbw * 7 / 8 / 1e9 == pytest.approx(366.134533, rel=1e-4)
    path.write_text(json.dumps(json.loads(record("AllReduce", 2**34, 61974)), indent=1))
    assert calls(path) == [(group, "allreduce", 8, 2**34, 61974)]


def recorded(name: str) -> list[str]:
    logs = sorted(JOB_LOGS.glob(f"inspector-4xh200-{name}rank*.json.gz"))
    return [word for log in logs for word in ("--check", str(log))]


def test_real_records_of_the_inspector(capsys: pytest.CaptureFixture[str]) -> None:
    """Of NCCL 2.28.9 on 4 H200, each rank's of other calls: a sound job, and one beside matrix products on GPU 2."""
    machine = str(DATA / "located" / "h200x4" / "topo.xml")
    assert run(["expect", machine, *recorded(""), "--one-job", "--json", "-q"]) == 0
    sound = json.loads(capsys.readouterr().out)["jobs"]
    assert {one["collective"] for one in sound} == {"allreduce", "allgather", "reducescatter"}
    assert all(one["time_s"] == pytest.approx(one["expected_s"], rel=0.05) for one in sound)
    assert run(["expect", machine, *recorded("busy-gpu2-"), "--one-job", "-q"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"waited .* for others, most for that of \S*busy-gpu2-rank2", said)
    # By itself a log counts the time that its rank waits.
    assert run(["expect", machine, *recorded("")[:2], "-q"]) == 1


def test_numbered_calls_count_where_all_logs_have_them(tmp_path: Path) -> None:
    """Two ranks recorded calls 0 and 1, and 1 and 2: call 1 is shared. Logs without a shared call are of no one job."""
    logs = []
    for rank, numbers in enumerate(((0, 1), (1, 2))):
        lines = [json.loads(record("AllReduce", 2**20 * (1 + number), 100 + rank, 8)) for number in numbers]
        for line, number in zip(lines, numbers, strict=True):
            line["coll_perf"]["coll_sn"] = number
        logs.append(tmp_path / f"{rank}.log")
        logs[-1].write_text("\n".join(map(json.dumps, lines)))
    [job] = of_one_job([one for log in logs for one in read_runs(log)])
    assert [(row.size, round(1e6 * row.time_s)) for row in job.rows] == [(2**21, 100)]
    logs[1].write_text(logs[1].read_text().splitlines()[1])
    with pytest.raises(InputError, match="not of the ranks of one job"):
        of_one_job([one for log in logs for one in read_runs(log)])


def test_a_trace_beside_what_is_expected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As long as NCCL takes, and four GPUs at half of it: what is above is half of what these took."""
    usual = {}
    for members, name in ((EIGHT, "allgather"), ([0, 1, 2, 3], "allreduce")):
        question = bs.Question.of("hgx-h100", members=members)
        [row] = bs.expect(question, [name], [2**28]).rows()
        usual[name] = 1e6 * row["time_s"]
    half = kernel("allreduce", (2**27, 2**27), [0, 1, 2, 3], 2 * usual["allreduce"], **{"Process Group Name": "tp"})
    good = kernel("_allgather_base", (2**24, 2**27), EIGHT, usual["allgather"])
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [step(3, 20 * usual["allreduce"]), good, good, good, half, half]}))
    assert run(["expect", "hgx-h100", "--check", str(path)]) == 1
    first, _, _, *rows, _, last = capsys.readouterr().out.splitlines()
    assert first.endswith("above expectation, 10 % of the steps")
    assert [(words.split()[2], "slow" in words) for words in rows] == [("allgather", False), ("allreduce", True)]
    assert last == f"next: blinksim expect hgx-h100 --check {path} --csv"
    assert run(["expect", "hgx-h100", "--check", str(path), "--json"]) == 1
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [(one["group"], one["ranks"], one["calls"]) for one in jobs] == [
        ("0 default_pg", 8, 3),
        ("tp default_pg", 4, 2),
    ]
    assert jobs[1]["above_s"] == pytest.approx(2e-6 * usual["allreduce"])
    assert jobs[0]["above_s"] == pytest.approx(0, abs=1e-12)
    assert run(["expect", "hgx-h100", "--check", str(path), "--csv", "--collective", "allgather"]) == 0
    [only] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (only["group"], only["collective"], only["size_bytes"]) == ("0 default_pg", "allgather", str(2**28))


def test_ranks_of_a_job_are_members_of_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [kernel("allreduce", (2**20, 2**20), [0, 8], 500.0)]}))
    assert members_of(read_runs(path)[0], bs.load("hgx-h100", nodes=2)) == ("n0.gpu0", "n1.gpu0")
    with pytest.raises(BlinksimError, match="names rank 8, but hgx-h100 has 8 GPUs; for a cluster give nodes="):
        bs.diagnose(str(path), "hgx-h100")


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


def test_no_pickle_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in (2, 4):
        (tmp_path / "dump").write_bytes(
            pickle.dumps(dump(entry("all_reduce", ([4], [4]), 0.5, x=_Harmful())), protocol)
        )
        with pytest.raises(FileError, match="no dump of a flight recorder"):
            read_runs("dump")
    assert not (tmp_path / "harmed").exists()


def _list_within_itself() -> bytes:
    inner: list[Any] = []
    inner.append(inner)
    return pickle.dumps({"entries": inner}, 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(dump(entry("all_reduce", ([4], [4]), 0.5)), 2)[:-9], "is damaged, or no dump"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "must be an object"),
        (_list_within_itself(), "must be an object"),
        (pickle.dumps([1, 2], 2), "must be an object"),
        (json.dumps(dump()).replace("entries", '"record_id": 1, "entries').encode()[:30], "not JSON|JSON"),
        (json.dumps({"traceEvents": []}).encode(), "holds no calls of collectives"),
        (json.dumps({"traceEvents": [kernel("send", (1, 1), [0, 1], 3.0)]}).encode(), "holds no calls of collectives"),
        (json.dumps({"traceEvents": [kernel("allreduce", (-1, 1), EIGHT, 3.0)]}).encode(), "In msg nelems"),
        (json.dumps({"traceEvents": {}}).encode(), "traceEvents: must be a list"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-4], "cut short"),
        (json.dumps(dump(entry("all_reduce", ([], []), 0.5, input_sizes=[["a"]]))).encode(), "must be a whole number"),
    ],
)
def test_damaged_logs_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    with pytest.raises(FileError, match=message):
        read_runs(path)
    assert run(["expect", "hgx-h100", "--check", str(path)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def ranks_of(name: str) -> list[str]:
    """What two ranks of PyTorch 2.11 (NCCL 2.28.9, NVLS off) wrote on two H100 on 2026-11-26."""
    return [str(JOB_LOGS / f"{name}-2xh100-rank{rank}.json.gz") for rank in (0, 1)]


def jobs_of(logs: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    checks = [word for log in logs for word in ("--check", log)] + ["--one-job"] * (len(logs) > 1)
    assert run(["expect", "hgx-h100", *checks, "--json"]) in (0, 1)
    jobs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["jobs"]
    return jobs


def test_ranks_of_a_job_wait_for_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Each call takes what its quickest rank took, summed here from the traces alone; so it is what is expected."""
    logs = ranks_of("calls")
    kernels = [
        [
            event
            for event in json.loads(gzip.decompress(Path(log).read_bytes()))["traceEvents"]
            if "ncclDev" in event["name"]
        ]
        for log in logs
    ]
    for jobs in (jobs_of(logs, capsys), jobs_of(logs[::-1], capsys)):
        assert [(job["calls"], job["verdict"]) for job in jobs] == [(16, "")] * 4
        for job in jobs:
            own = [
                [e["dur"] for e in rank if job["collective"] in e["args"]["Collective name"].replace("_", "")]
                for rank in kernels
            ]
            assert job["time_s"] == pytest.approx(sum(map(min, *own)) / 1e6)
            assert job["waited_s"] == pytest.approx((max(map(sum, own)) - sum(map(min, *own))) / 1e6)
            assert job["late"] == logs[min((0, 1), key=lambda rank: sum(own[rank]))]
            assert job["time_s"] == pytest.approx(job["expected_s"], rel=0.07)
    alone = jobs_of(logs[1:], capsys)
    assert "late" not in alone[0]
    assert alone[0]["time_s"] > 5 * alone[0]["expected_s"]  # it waited for the other rank


def test_calls_beside_compute_are_no_slow_links(capsys: pytest.CaptureFixture[str]) -> None:
    """Most buckets of DDP share the GPU with the backward pass; the last ones do not, and are as expected."""
    [job] = jobs_of(ranks_of("ddp"), capsys)
    assert (job["verdict"], job["calls"]) == ("", 12)
    assert job["above_s"] > 0.2 * job["time_s"]


def test_logs_that_are_not_of_one_job_are_not_joined(capsys: pytest.CaptureFixture[str]) -> None:
    """Recorders that end at other calls, one log twice, and logs of nccl-tests."""
    first, second = ranks_of("flight-recorder")
    tests = str(JOB_LOGS.parent / "nccl_tests" / "h200x8-allreduce.txt")
    for logs in ((first, second), (first, first), (tests,)):
        checks = [word for log in logs for word in ("--check", log)]
        assert run(["expect", "hgx-h100", *checks, "--one-job"]) == 2
        assert "not of the ranks of one job" in capsys.readouterr().err
    # Without the option each log is judged by itself.
    calls = ranks_of("calls")
    assert run(["expect", "hgx-h100", "--check", calls[0], "--check", calls[1], "--json"]) in (0, 1)
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [job["log"] for job in jobs] == [log for log in calls for _ in range(4)]
    assert not any("late" in job for job in jobs)


def test_a_gather_takes_what_its_root_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that only sends its own block is done long before."""
    logs = []
    for rank, microseconds in enumerate((3000.0, 375.0)):
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps({"traceEvents": [kernel("gather", (2**26, 2**29), EIGHT, microseconds)] * 3}))
        logs.append(str(path))
    [job] = jobs_of(logs, capsys)
    assert job["time_s"] == pytest.approx(9e-3)
    assert job["verdict"] != "faster than can be"


def test_shares_are_of_all_calls(capsys: pytest.CaptureFixture[str]) -> None:
    """Of several collectives without steps: what is above expectation is a share of all calls together, below 1."""
    log = ranks_of("flight-recorder")[0]
    jobs = jobs_of([log], capsys)
    share = sum(job["above_s"] for job in jobs) / sum(job["time_s"] for job in jobs)
    assert share < 1
    assert run(["expect", "hgx-h100", "--check", log]) == 1
    assert f"{100 * share:.3g} % of the time of these calls" in capsys.readouterr().out


OSU = """
# OSU MPI-SYCL {title} Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                      11.69             11.01             12.40        1000
1048576              1043.10           1001.00           1100.00         100
"""
ONECCL = """options:
  processes:      12
  collectives:    {name}

#------------------------------------------------------------
# Benchmarking: {name}\x20
# #processes: 12
#------------------------------------------------------------

        #bytes  #repetitions   t_min[usec]   t_max[usec]   t_avg[usec]  stddev[%]
             4            16         30.50         30.86         30.68       0.59
       1048576            16        229.70        229.77        229.73       0.11

# All done
"""
IMB = """# Benchmarking {name}
# #processes = 4
# ( 2 additional processes waiting in MPI_Barrier)
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.07         0.07         0.08
         1024         1000         0.65         6.07         3.36
"""


def tabled(path: Path, text: str) -> list[Any]:
    path.write_text(text)
    found = read_runs(path)
    return [(x.collective, x.ranks, x.group, [(row.size, row.time_s, row.line) for row in x.rows]) for x in found]


def test_tables_of_mpi_hold_bytes_and_mean_times(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    rows = [(4, pytest.approx(11.69e-6), 5), (1048576, pytest.approx(1043.1e-6), 6)]
    for title, name in (("Allreduce", "allreduce"), ("Broadcast", "broadcast"), ("Reduce_scatter", "reducescatter")):
        assert tabled(log, OSU.format(title=title)) == [(name, 0, "", rows)]
    rows = [(4, pytest.approx(30.68e-6), 11), (1048576, pytest.approx(229.73e-6), 12)]
    for name, known in (("allreduce", "allreduce"), ("bcast", "broadcast"), ("reduce_scatter", "reducescatter")):
        assert tabled(log, ONECCL.format(name=name)) == [(known, 12, "", rows)]
    assert tabled(log, IMB.format(name="Reduce")) == [("reduce", 4, "", [(1024, pytest.approx(3.36e-6), 7)])]
    both = IMB.format(name="Reduce") + IMB.format(name="Bcast").replace("= 4", "= 2")
    assert [row[:2] for row in tabled(log, both.replace("\n", "\r\n"))] == [("reduce", 4), ("broadcast", 2)]


def test_tables_of_mpi_say_the_bytes_of_a_block(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    names = {"allgather": "allgather", "allgatherv": "allgather", "alltoall": "alltoall"}
    for name, known in names.items():
        ((found, ranks, _, rows),) = tabled(log, ONECCL.format(name=name))
        assert (found, ranks, [size for size, *_ in rows]) == (known, 12, [12 * 4, 12 * 1048576])
    for title, known in (("Allgather", "allgather"), ("All-to-All Personalized Exchange", "alltoall")):
        text = OSU.format(title=title)
        with pytest.raises(FileError, match=r"log.txt:5: .*how many ranks there are; add a line such as '# #proc"):
            tabled(log, text)
        ((found, ranks, _, rows),) = tabled(log, f"# #processes: 24{text}")
        assert (found, ranks, [size for size, *_ in rows]) == (known, 24, [24 * 4, 24 * 1048576])


def test_tables_of_mpi_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    text = OSU.format(title="Allreduce")
    for wrong, message in (
        (text.replace("1043.10           1001.00", "fast"), "log.txt:6: the row has no time in column 2"),
        (text.partition("1043")[0], "log.txt:6: the row has no time in column 2"),
        (text.partition("4   ")[0], "holds no calls of collectives with their size and time"),
        (OSU.format(title="Barrier"), "holds no calls of collectives"),
        (text.replace(" Allreduce", ""), "has no heading like"),
    ):
        with pytest.raises(FileError, match=message):
            tabled(log, wrong)


def test_tables_of_mpi_are_judged_on_the_ranks_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(OSU.format(title="Allreduce"))
    for options, ranks in (([], 12), (["--nodes", "2"], 24), (["--members", "0-3"], 4)):
        assert run(["diagnose", str(log), "--machine", "aurora", *options, "--json"]) in (0, 1, 5)
        row = json.loads(capsys.readouterr().out)["rows"][-1]
        # busbw of an allreduce is 2 (n - 1) / n of size over time.
        assert row["busbw_GBps"] == pytest.approx(1.048576 / 1.0431 * 2 * (ranks - 1) / ranks, rel=1e-6)
    log.write_text(ONECCL.format(name="allreduce"))
    assert run(["expect", "aurora", "--check", str(log), "--json"]) in (0, 1, 5)
    assert json.loads(capsys.readouterr().out)["jobs"] == []
    assert run(["diagnose", str(log), "--machine", "aurora", "--nodes", "2"]) == 2
    assert "comes from 12 of the 24 GPUs of aurora" in capsys.readouterr().err
