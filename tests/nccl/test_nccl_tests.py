"""Logs of nccl-tests: every layout gives the same rows, and every fault is named with its line."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from nccl_tests_logs import Point, as_json, text

import blinksim as bs
from blinksim.collective import COLLECTIVES, busbw_factor
from blinksim.errors import FileError, InputError
from blinksim.nccl.tests_log import Number, Row, Run, read, select

POINTS = [Point(8, 5.631, 5.2), Point(65536, 23.4, 22.0), Point(2**20, 123.456, 120.0), Point(2**30, 5227.44, 5300.2)]


def write(folder: Path, content: str, name: str = "log.txt") -> Path:
    path = folder / name
    path.write_text(content)
    return path


@pytest.mark.parametrize("layout", ["new", "iterations", "stamped", "old", "rccl"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast", "reduce", "reducescatter"])
def test_every_layout_gives_the_same_rows(tmp_path: Path, collective: str, layout: str) -> None:
    path = write(tmp_path, text(collective, 8, POINTS, layout=layout))
    (run,) = select(read(path), collective)
    assert (run.collective, run.ranks, run.complete) == (collective, 8, True)
    assert [(row.size, row.in_place) for row in run.rows] == [(p.size, half) for p in POINTS for half in (False, True)]
    for row, micros in zip(run.rows, (m for p in POINTS for m in p[1:]), strict=True):
        assert row.time_s == pytest.approx((micros or 0) * 1e-6, rel=1e-3)
        assert row.algbw == pytest.approx(row.size / row.time_s, rel=0.01, abs=5e6)
        assert row.busbw == pytest.approx(row.algbw * float(busbw_factor(collective, 8)), rel=0.01, abs=1e7)
        assert row.wrong == (2e-07 if layout == "old" else 0)
        assert row.op == ("sum" if "reduce" in collective else "none")
        assert row.root == (0 if collective in ("broadcast", "reduce") else -1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.rows[0].size = 1  # type: ignore[misc]


@pytest.mark.parametrize(("place", "in_place"), [("out-of-place", False), ("in-place", True)])
def test_one_half_alone_is_the_one_that_the_heading_names(tmp_path: Path, place: str, in_place: bool) -> None:
    """As rccl-tests prints it when it is told to run one of them."""
    content = f"""\
#                                                   {place}
#       size         count      type   redop    root     time   algbw   busbw #wrong     algo     proto   nchannels
     1048576        262144     float     sum      -1    26.24   39.96   69.93      0    RING        LL          32
"""
    (run,) = read(write(tmp_path, content))
    assert [(row.in_place, row.time_s) for row in run.rows] == [(in_place, pytest.approx(26.24e-6))]
    with pytest.raises(FileError, match=r"log.txt:3: the row does not end with algorithm, protocol and channels"):
        read(write(tmp_path, content.replace("RING        LL          32", "")))


def test_the_line_of_every_row_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, text("allreduce", 4, POINTS))
    (run,) = read(path)
    lines = path.read_text().splitlines()
    assert len(run.rows) == 2 * len(POINTS)
    for row in run.rows:
        assert lines[row.line - 1].split()[0] == str(row.size)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("listed", ["first", "all", "none"])
def test_json_says_the_same(tmp_path: Path, version: int, listed: str) -> None:
    content = as_json("reducescatter", 8, POINTS, version=version, listed=listed)
    (run,) = read(write(tmp_path, content, "log.json"))
    assert (run.collective, run.ranks, run.complete) == ("reducescatter", 8, True)
    assert [row.time_s for row in run.rows] == pytest.approx([m * 1e-6 for p in POINTS for m in p[1:]])  # type: ignore[operator]
    assert run.rows[0].root == -1


def test_unchecked_and_left_out_numbers(tmp_path: Path) -> None:
    (run,) = read(write(tmp_path, text("alltoall", 4, [Point(2**20, 100.0, None)], checked=False)))
    assert [(row.in_place, row.wrong) for row in run.rows] == [(False, None)]
    (run,) = read(write(tmp_path, as_json("alltoall", 4, [Point(2**20, None, 100.0)]), "log.json"))
    assert [row.in_place for row in run.rows] == [True]


def test_blanks_in_place_of_the_first_half(tmp_path: Path) -> None:
    content = text("allreduce", 4, [Point(2**20, 100.0, 100.0)])
    row = next(line for line in content.splitlines() if line.strip().startswith("1048576"))
    head, half = row[:46], "  100.00   10.49   15.73       0"
    (run,) = read(write(tmp_path, content.replace(row, head + " " * 32 + half)))
    assert [(r.in_place, r.time_s) for r in run.rows] == [(True, pytest.approx(1e-4))]


def test_what_else_stands_in_logs(tmp_path: Path) -> None:
    lines = text("allreduce", 4, POINTS).splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith("8 "))
    noisy = [
        "Warning: Permanently added 'box1' to the list of known hosts.",
        *lines[: first + 1], "box:1:1 [0] NCCL INFO Channel 00/24 : 0 1 2 3", "", *lines[first + 1 :], "$ exit",
    ]  # fmt: skip
    tagged = "\r\n".join(f"[1,0]<stdout>:{line}" for line in noisy)
    plain, other = read(write(tmp_path, "\n".join(lines)))[0], read(write(tmp_path, tagged, "tagged.txt"))[0]
    assert [dataclasses.replace(row, line=0) for row in plain.rows] == [
        dataclasses.replace(row, line=0) for row in other.rows
    ]


def test_several_tests_in_one_file(tmp_path: Path) -> None:
    path = write(tmp_path, text("allreduce", 4, POINTS) + text("allgather", 4, POINTS) + text("allgather", 4, POINTS))
    runs = read(path)
    assert [run.collective for run in runs] == ["allreduce", "allgather", "allgather"]
    assert len(select(runs, "allgather")) == 2
    with pytest.raises(InputError, match="holds allgather, allreduce; choose one with collective="):
        select(runs)
    with pytest.raises(InputError, match="has no test of broadcast, only of allgather, allreduce"):
        select(runs, "broadcast")


@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_an_unnamed_log_is_of(tmp_path: Path, name: str) -> None:
    (run,) = read(write(tmp_path, text(name, 8, POINTS, named=False)))
    # Operation, root and busbw leave two pairs open.
    clear = name in ("allreduce", "reducescatter", "reduce", "broadcast")
    assert run.collective == (name if clear else "")
    assert select([run], name)[0].collective == name
    if not clear:
        with pytest.raises(InputError, match="does not name its collective"):
            select([run])


def test_a_command_above_a_log_names_its_test(tmp_path: Path) -> None:
    """As people paste it, of each test the last one; what a log says itself counts more."""
    typed = "$ mpirun -np 8 -x NCCL_DEBUG=INFO ./build/{}_perf -b 8 -e 8G -f 2 -g 1\n"
    gathered, dealt = (text(name, 8, POINTS, named=False) for name in ("allgather", "alltoall"))
    runs = read(write(tmp_path, typed.format("all_gather") + gathered + typed.format("alltoall") + dealt))
    assert [run.collective for run in runs] == ["allgather", "alltoall"]
    (run,) = read(write(tmp_path, typed.format("all_gather") + text("alltoall", 8, POINTS)))
    assert run.collective == "alltoall"


def test_processes_that_ran_alone_are_told_from_ranks_of_a_job(tmp_path: Path) -> None:
    rank = "#  Rank  0 Group  0 Pid 1 on node{} device 0 [0x1b] NVIDIA H100 80GB HBM3\n"
    with pytest.raises(FileError, match="rank 0 is listed twice; each process ran a test of its own: build nccl-tests"):
        read(write(tmp_path, rank.format(1) + rank.format(2)))


def test_a_test_that_is_no_collective(tmp_path: Path) -> None:
    content = text("broadcast", 2, POINTS).replace("broadcast_perf", "sendrecv_perf")
    with pytest.raises(InputError, match="is a log of sendrecv; blinksim knows allreduce"):
        select(read(write(tmp_path, content)))


def test_a_log_that_was_cut_short(tmp_path: Path) -> None:
    (run,) = read(write(tmp_path, text("allreduce", 4, POINTS, footer=False)))
    assert not run.complete
    lines = text("allreduce", 4, POINTS, footer=False).splitlines()
    # In the middle of a number, and between its halves: a row is still no row.
    for part in (lines[-1][:70], " ".join(lines[-1].split()[:9])):
        (short,) = read(write(tmp_path, "\n".join([*lines[:-1], part])))
        assert not short.complete
        assert short.rows == run.rows[:-2]
        assert (short.ended, short.rows) == (part.strip(), run.rows[:-2])
        (ended,) = read(write(tmp_path, "\n".join([*lines[:-1], part, ""])))
        assert (ended.ended, ended.rows) == (short.ended, short.rows)
        # Between whole rows, and before the last lines, such a line is damage.
        for more in (lines[-1], "# Out of bounds values : 0 OK"):
            path = write(tmp_path, "\n".join([*lines[:-1], part, more, ""]))
            with pytest.raises(FileError, match=rf"^{re.escape(str(path))}:{len(lines)}: the row has \d columns, its"):
                read(path)


LOST = "n1:4321:4400 [3] transport/net_ib.cc:231 NCCL WARN NET/IB : Got completion from peer n2<51234> status=12"
FAILURE = "gpu-a01: Test NCCL failure all_reduce.cu:44 'remote process exited or there was a network error'"
KILLED = "srun: error: n2: task 17: Terminated"


@pytest.mark.parametrize(
    "last",
    [
        (FAILURE, " .. gpu-a01 pid 4321: Test failure common.cu:401"),
        (KILLED, "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-03-01T12:00:00 ***"),
        (LOST,),
        (LOST, FAILURE),
        (f"  134217728  33554432  float  sum  -1{FAILURE}", KILLED),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_crashed(tmp_path: Path, last: tuple[str, ...], again: bool) -> None:
    """Whole rows count; what came first behind them is why; the next test of the file is read as ever."""
    good, content = text("allreduce", 4, POINTS), text("allreduce", 4, POINTS, footer=False)
    path = write(tmp_path, "\n".join((f"{content}{last[0]}", *last[1:], good * again)))
    whole, (run, *others) = read(write(tmp_path, good, "good.txt"))[0], read(path)
    assert (run.rows, run.complete, run.ended) == (whole.rows, False, last[0].strip())
    assert [(len(other.rows), other.complete, other.ended) for other in others] == [(len(run.rows), True, "")] * again


def test_an_error_after_the_last_row_of_a_whole_run(tmp_path: Path) -> None:
    """What NCCL warns of on the way to its last row counts for nothing, what comes after it is kept."""
    good = text("allreduce", 4, POINTS)
    (run,) = read(write(tmp_path, f"{LOST}\n{good}"))
    assert (run.complete, run.ended) == (True, "")
    (run,) = read(write(tmp_path, f"{good}{LOST}\n"))
    assert (run.complete, run.ended) == (True, LOST)
    sentence = bs.diagnose([run], bs.load("hgx-h200").select(range(4))).sentence()
    assert sentence.endswith(f"; after its last row: {LOST}")


def test_a_run_that_crashed_before_its_first_row(tmp_path: Path) -> None:
    """The refusal has the error as it was printed, and the cure; NCCL may fail before the heading, too."""
    lines = text("allreduce", 4, [], footer=False)
    cure, many = "; run it again with NCCL_DEBUG=INFO, and NCCL says why", "mpirun -x NCCL_DEBUG -np 4 -N "
    options = "-b 8 -e 1073741824 -f 2 -g 1 -t 1"
    threads, bytewise = ("nGpus 1", "nGpus 4"), ("step: 2(factor)", "step: 1048576(bytes)")
    for last, change, more in (
        (FAILURE, ("", ""), f": NCCL_DEBUG=INFO {many}4 all_reduce_perf {options}"),
        (KILLED, ("", ""), f": NCCL_DEBUG=INFO {many}4 all_reduce_perf {options}"),
        (FAILURE, threads, f": NCCL_DEBUG=INFO all_reduce_perf {options}".replace("-g 1", "-g 4")),
        (FAILURE, bytewise, f": NCCL_DEBUG=INFO {many}4 all_reduce_perf {options}".replace("-f 2", "-i 1048576")),
        (FAILURE, ("all_reduce", "/a;b/all_reduce"), f": NCCL_DEBUG=INFO {many}4 '/a;b/all_reduce_perf' {options}"),
        # What a log does not say no command can have.
        (FAILURE, ("Collective test", "A test"), ""),
    ):
        for before in (lines, lines[: lines.index("#     out-of-place")]):
            with pytest.raises(FileError) as said:
                read(write(tmp_path, f"{before.replace(*change)}{last}\n"))
            # A line of a launcher may be anything where no test has begun.
            told = before is lines or last == FAILURE
            why = f"the run ended early: {last}" if told else "did the test end early?"
            assert str(said.value).endswith(f"has no measurement; {why}{cure}{more}")
    # A head that is cut does not say how many ranks there were.
    for cut in (r"#  Rank  0 .*\n", r"#  Rank .*\n"):
        with pytest.raises(FileError, match=r"not list all ranks\): NCCL_DEBUG=INFO mpirun -x NCCL_DEBUG -np N all_re"):
            read(write(tmp_path, f"{re.sub(cut, '', lines)}{FAILURE}\n"))
    # Nor does one that ends in its list, or whose last host has fewer than the others.
    listed = text("allreduce", 4, [], footer=False, hosts=2).partition("#  Rank  3")[0]
    for last in ("", f"{FAILURE}\n"):
        with pytest.raises(FileError, match=r"not list all ranks\): NCCL_DEBUG=INFO mpirun -x NCCL_DEBUG -np N all_re"):
            read(write(tmp_path, f"{listed}{last}"))
    with pytest.raises(FileError, match="-np N all_re"):
        read(write(tmp_path, lines.partition("#  Rank  3")[0]))
    two = text("allreduce", 4, [], footer=False, hosts=2)
    with pytest.raises(FileError, match=f"{many}2 all_reduce_perf "):
        read(write(tmp_path, f"{two}{FAILURE}\n"))


@pytest.mark.parametrize(
    "died",
    [
        "bash: line 1: 4711 Segmentation fault      (core dumped) all_reduce_perf -b 8 -e 8G -f 2 -g 8",
        "srun: error: gpu-a01: task 3: Segmentation fault (core dumped)",
        "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-03-01T12:00:00 DUE TO TIME LIMIT ***",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
        "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 6 (Aborted).",
        "Killed",
    ],
)
def test_a_process_that_died_is_a_run_that_failed(tmp_path: Path, died: str) -> None:
    """Also below a row that is cut; behind the last lines of a test it harms none."""
    good, cut = text("allreduce", 4, POINTS), text("allreduce", 4, POINTS, footer=False)
    part = cut.splitlines()[-1][:70]
    for before in (cut, f"{cut}{part}\n"):
        (run,) = read(write(tmp_path, f"{before}{died}\n"))
        assert (run.failed, run.complete) == (died, False)
    (run,) = read(write(tmp_path, f"{died}\n{good}{died}\n"))
    assert (run.failed, run.complete) == ("", True)


def test_what_mpirun_says_first_is_not_why_a_process_died(tmp_path: Path) -> None:
    died = "mpirun noticed that process rank 9 with PID 0 on node n1 exited on signal 9 (Killed)."
    told = ["-" * 74, "Primary job  terminated normally, but 1 process returned",
            "a non-zero exit code. Per user-direction, the job has been aborted.", "-" * 74, died]  # fmt: skip
    (run,) = read(write(tmp_path, text("allreduce", 4, POINTS, footer=False) + "\n".join(told) + "\n"))
    assert (run.failed, run.ended) == (died, told[1])


ROW = " 1048576  262144     float     sum      -1   123.46    8.49   12.74       0   120.00    8.74   13.11       0"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("123.46", "12x.46", "time must be a number, not '12x.46'"),
        ("123.46", "-123.46", "time must be a number"),
        ("123.46", "nan", "time must be a number"),
        ("123.46", "N/A", "time is N/A, but other numbers of the row are there"),
        ("123.46", "0.00", "time must be more than 0"),
        ("123.46", "1234.6", r"1048576 bytes in 1234.6 us are 0.8493 GB/s, but the row says algbw 8.49"),
        ("8.49", "0.00", "but the row says algbw 0"),
        ("1048576", "1048576.5", "size must be a whole number"),
        ("262144", "-262144", "count must be a whole number"),
        ("sum", "s;m", "redop must be a word"),
        ("   -1", "   -7", "root must be a rank or -1, not '-7'"),
        ("  0   120.00", "  120.00", "the row has 12 columns, its heading 13"),
        (ROW, "Segmentation fault (core dumped)", "the row has 4 columns, its heading 13"),
        (ROW, f"{ROW} 7", "the row has 14 columns, its heading 13"),
    ],
)
def test_every_malformed_row_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    content = text("allreduce", 4, [Point(2**20, 123.456, 120.0), Point(2**21, 200.0, 200.0)])
    lines = [ROW if line.strip().startswith("1048576") else line for line in content.splitlines()]
    place = lines.index(ROW) + 1
    read(write(tmp_path, "\n".join(lines)))
    lines[place - 1] = ROW.replace(old, new, 1)
    path = write(tmp_path, "\n".join(lines))
    with pytest.raises(FileError, match=rf"^{re.escape(str(path))}:{place}: .*{message}"):
        read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no heading"),
        ("hello\n", "has no heading"),
        ("# size count type redop root time algbw busbw #wrong\n", "has no measurement; did the test end early"),
        ("# size count colour time algbw busbw\n", ":1: the heading has columns that .* does not print: colour"),
        ("# size count time busbw\n", ":1: the heading has no column algbw"),
        ("{", r":1:2: is not JSON"),
        ("[]", "must be an object"),
        ('{"version": 3}', "has no 'results'"),
        ('{"version": 9, "results": []}', "version: must lie between 1 and 3"),
        ('{"version": 3, "results": []}', "there is no measurement"),
        ('{"version": 3, "results": [{}]}', r"results\[0\].size: must be a whole number"),
    ],
)
def test_what_is_no_log(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read(write(tmp_path, content))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("out_of_place", "time"), 0, r"results\[0\].out_of_place.time: must be more than 0"),
        (("out_of_place", "time"), "nan", r"results\[0\].out_of_place.time: must be a number"),
        (("out_of_place", "alg_bw"), 7.0, "bytes in 123.456 us are 8.494 GB/s, but the row says algbw 7"),
        (("out_of_place",), [], r"results\[0\].out_of_place: must be an object"),
        (("size",), True, "size: must be a whole number"),
        (("root",), "x", "root: must be a rank or -1, not 'x'"),
    ],
)
def test_faults_in_json(tmp_path: Path, keys: tuple[str, ...], value: object, message: str) -> None:
    data = json.loads(as_json("allreduce", 4, [Point(2**20, 123.456, 120.0)]))
    inner = data["results"][0]
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    with pytest.raises(FileError, match=message):
        read(write(tmp_path, json.dumps(data), "log.json"))


@pytest.mark.parametrize(
    ("collective", "ranks"), [("allreduce", 2), ("allreduce", 8), ("allreduce", 48), ("alltoall", 16)]
)
def test_ranks_that_are_not_listed_are_counted(tmp_path: Path, collective: str, ranks: int) -> None:
    content = text(collective, ranks, [Point(8, 20.0, 20.0), Point(2**30, 5227.44, 5300.2)])
    bare = "".join(line for line in content.splitlines(keepends=True) if "Rank" not in line)
    (run,) = read(write(tmp_path, bare))
    assert (run.ranks, run.places) == (ranks, ())
    # The factor of a broadcast is 1 for any number; small rates have too few digits.
    for other in (text("broadcast", ranks, POINTS), text(collective, ranks, POINTS[:1])):
        bare = "".join(line for line in other.splitlines(keepends=True) if "Rank" not in line)
        assert read(write(tmp_path, bare))[0].ranks == 0


def test_a_mixture_of_logs_is_refused(tmp_path: Path) -> None:
    eight, four = text("allreduce", 8, POINTS).splitlines(), text("allreduce", 4, POINTS).splitlines()
    first = next(i for i, line in enumerate(eight) if line.strip().startswith("8 "))
    with pytest.raises(FileError, match=r"busbw / algbw is 1.500, but an allreduce on 8 ranks has 7/4 = 1.750"):
        read(write(tmp_path, "\n".join([*eight[:first], *four[-8:]])))


numbers = st.floats(0.01, 9e6)


@given(
    collective=st.sampled_from(COLLECTIVES),
    ranks=st.integers(2, 64),
    layout=st.sampled_from(["new", "iterations", "stamped", "old"]),
    points=st.lists(st.builds(Point, st.integers(1, 2**34), numbers, st.none() | numbers), min_size=1, max_size=6),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, collective: str, ranks: int, layout: str, points: list[Point]
) -> None:
    path = write(tmp_path_factory.mktemp("log"), text(collective, ranks, points, layout=layout))
    (run,) = select(read(path), collective)
    assert run.ranks == ranks
    expected = [(p.size, m) for p in points for m in p[1:] if m is not None]
    assert [row.size for row in run.rows] == [size for size, _ in expected]
    for row, (_, micros) in zip(run.rows, expected, strict=True):
        # Two digits of numbers too large for their column, two decimals of small ones.
        assert row.time_s * 1e6 == pytest.approx(micros, rel=0.051, abs=0.0051)


@given(
    cut=st.integers(0, 10**4), length=st.integers(0, 40), put=st.text(max_size=12), lines=st.booleans(),
    layout=st.sampled_from(["new", "iterations", "old", "json"]),
)  # fmt: skip
def test_damaged_logs_end_in_one_message(
    tmp_path_factory: pytest.TempPathFactory, cut: int, length: int, put: str, lines: bool, layout: str
) -> None:
    good = as_json("allreduce", 2, POINTS) if layout == "json" else text("allreduce", 2, POINTS, layout=layout)
    start = cut % len(good)
    put = put.replace("\n", " ") if lines else put
    path = tmp_path_factory.mktemp("damaged") / "log"
    path.write_bytes((good[:start] + put + good[start + length :]).encode("utf-8", "surrogatepass"))
    message = f"{path}:"
    runs: tuple[Run, ...] = ()
    try:
        runs = read(path)
    except FileError as error:
        message = str(error)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert all(row.time_s > 0 and row.algbw >= 0 for run in runs for row in run.rows)


@pytest.mark.parametrize(
    ("printed", "value", "half"), [("123.45", 123.45, 0.005), ("12345", 12345, 0.5), ("1.2e+06", 1.2e6, 5e4)]
)
def test_how_far_the_digits_of_a_number_go(printed: str, value: float, half: float) -> None:
    number = Number.parse(printed)
    assert number is not None
    assert (number.value, number.half) == (value, pytest.approx(half))


def plain_rows(run: Run) -> list[Row]:
    return [dataclasses.replace(row, line=0) for row in run.rows]


TAGS = {
    "mpirun": "[1,0]<stdout>:",
    "prterun": "[prterun-box-77@1,0]<stdout>: ",
    "srun": "0: ",
    "srun with width": "  12: ",
    "hydra": "[0] ",
    "kubernetes": "2026-03-01T12:00:00.123456789Z ",
    "containerd": "2026-03-01T12:00:00.123456789+00:00 stdout F ",
    "a stamp and a host": "2026-03-01T12:00:00.123Z node01 ",
    "docker compose": "worker-0    | ",
    "kubectl logs --prefix": "[pod/nccl-launcher-abc/mpi] ",
    "docker and mpirun": "launcher-1  | [1,0]<stdout>:",
    "kubernetes and mpirun": "2026-03-01T12:00:00.123456789Z [1,0]<stdout>:",
}


@pytest.mark.parametrize("tag", TAGS.values(), ids=TAGS)
@pytest.mark.parametrize("collective", ["allreduce", "broadcast"])
def test_what_launchers_put_before_lines(tmp_path: Path, tag: str, collective: str) -> None:
    content = text(collective, 8, POINTS)
    (plain,) = read(write(tmp_path, content))
    (tagged,) = read(write(tmp_path, "".join(f"{tag}{line}\n" for line in content.splitlines()), "tagged.txt"))
    assert plain_rows(tagged) == plain_rows(plain)
    assert (tagged.places, tagged.collective, tagged.ranks) == (plain.places, plain.collective, plain.ranks)


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[0]", "[12] ", "0: "])
def test_tags_inside_rows(tmp_path: Path, tag: str) -> None:
    """A row is printed in two pieces, and a launcher may tag each."""
    lines = text("allreduce", 8, POINTS).splitlines()
    (plain,) = read(write(tmp_path, "\n".join(lines)))
    torn = [
        f"{tag}{line}" if line.startswith("#") else f"{tag}{line.replace('  -1  ', f'  -1 {tag}  ')}" for line in lines
    ]
    (tagged,) = read(write(tmp_path, "\n".join(torn), "torn.txt"))
    assert plain_rows(tagged) == plain_rows(plain)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("tag", ["", "[0] "])
def test_a_message_of_nccl_in_the_middle_of_a_row(tmp_path: Path, tag: str, halves: bool) -> None:
    """Behind the head, and as nccl-tests prints with NCCL_DEBUG_SUBSYS=TUNING, behind each half too."""
    lines = text("allreduce", 8, POINTS).splitlines()
    (plain,) = read(write(tmp_path, "\n".join(lines)))
    torn = []
    for line in lines:
        head, minus, rest = line.partition("  -1  ")
        if line.startswith("#") or not minus:
            torn.append(line)
        else:
            message = f"{tag}box:12:34 [0] NCCL INFO Bytes -> Algo 0 proto 0 time 25.8"
            numbers = rest.split()
            pieces = [" ".join(numbers[:4]) + message, message, " ".join(numbers[4:])] if halves else [rest]
            torn += [f"{tag}{head}  -1{message}", *(f"{tag}{piece}" for piece in pieces)]
    (found,) = read(write(tmp_path, "\n".join(torn), "torn.txt"))
    assert plain_rows(found) == plain_rows(plain)


def test_a_log_that_lost_its_hashes(tmp_path: Path) -> None:
    content = text("allreduce", 8, POINTS)
    (plain,) = read(write(tmp_path, content))
    (found,) = read(write(tmp_path, "\n".join(line.lstrip("# ") for line in content.splitlines()), "bare.txt"))
    assert plain_rows(found) == plain_rows(plain)
    assert (found.places, found.complete) == (plain.places, True)


def test_a_log_that_begins_with_a_bracket(tmp_path: Path) -> None:
    content = text("allreduce", 8, POINTS)
    (plain,) = read(write(tmp_path, content))
    for first in ("[node01:12345] mca_base_component_repository_open: unable to open", "[warn] x", "[[1,1],0] y"):
        (found,) = read(write(tmp_path, f"{first}\n{content}", "bracket.txt"))
        assert plain_rows(found) == plain_rows(plain)


def test_the_logs_of_2017(tmp_path: Path) -> None:
    """Other names of the columns, times in milliseconds, ranks without a process."""
    content = """# NCCL Tests compiled with NCCL 2.1
# Using devices
#   Rank  0 on      box0 device  0 [0x06] Tesla P100-SXM2-16GB
#   Rank  1 on      box0 device  1 [0x07] Tesla P100-SXM2-16GB

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
    67108864      16777216   float     sum    4.034  16.64  16.64    2e-07    4.030  16.65  16.65    2e-07
   134217728      33554432   float     sum    8.035  16.70  16.70    2e-07    8.028  16.72  16.72    2e-07
 Out of bounds values : 0 OK
 Avg bus bandwidth    : 16.68
"""
    (run,) = read(write(tmp_path, content))
    assert [place.busid for place in run.places] == ["0x06", "0x07"]
    assert [row.time_s for row in run.rows] == pytest.approx([4.034e-3, 4.030e-3, 8.035e-3, 8.028e-3])
    assert (run.ranks, run.complete, run.rows[0].op, run.rows[0].wrong) == (2, True, "sum", 2e-7)


@pytest.mark.parametrize("root", [False, True])
def test_alltoall_with_a_blank_operation(tmp_path: Path, root: bool) -> None:
    """As releases of 2020 to 2022 print alltoall: the heading has the column, the rows leave it blank."""
    columns = "size count type redop" + " root" * root + " time algbw busbw error" * 2
    content = f"""# nThread 1 nGpus 4 minBytes 1048576 maxBytes 16777216 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#   Rank  0 Pid   1320 on      box0 device  0 [0x07] A100-SXM4-40GB
#   Rank  1 Pid   1320 on      box0 device  1 [0x0f] A100-SXM4-40GB
#   Rank  2 Pid   1320 on      box0 device  2 [0x47] A100-SXM4-40GB
#   Rank  3 Pid   1320 on      box0 device  3 [0x4e] A100-SXM4-40GB
# {columns}
     1048576         65536   float              20.10   52.17   39.13  0e+00    20.30   51.65   38.74  0e+00
    16777216       1048576   float              120    139.8   104.9  0e+00    119.2   140.7   105.6    N/A
# Out of bounds values : 0 OK
"""
    (run,) = select(read(write(tmp_path, content)), "alltoall")
    assert [(row.size, row.in_place, row.op, row.root) for row in run.rows] == [
        (size, half, "none", -1) for size in (2**20, 2**24) for half in (False, True)
    ]
    assert run.rows[2].time_s == pytest.approx(120e-6)
    cut = content.replace("39.13  0e+00 ", "39.13 ")
    with pytest.raises(FileError, match=":8: the row has"):
        read(write(tmp_path, cut, "cut.txt"))


@pytest.mark.parametrize(
    ("threads", "gpus", "end", "launched"),
    [(1, 1, "", "stream"), (1, 1, " graph: 0", "stream"), (1, 8, " graph: 0", "threads"), (8, 1, "", "threads"),
     (1, 1, " graph: 20", "graph"), (1, 8, " graph: 1", "graph")],
)  # fmt: skip
def test_a_log_says_how_calls_were_launched(tmp_path: Path, threads: int, gpus: int, end: str, launched: str) -> None:
    """By its settings: -t, -g and -G; what was cut off says nothing."""
    settings = f"# nThread {threads} nGpus {gpus} minBytes 8 maxBytes 1024 step: 2(factor) iters: 20 validation: 1{end}"
    heading = "#  size  count  type  redop  root  time  algbw  busbw  #wrong"
    row = "  1024  256  float  sum  -1  23.73  0.04  0.08  0"
    log = tmp_path / "log.txt"
    for lines, expected in (([settings, heading, row], launched), ([heading, row], "")):
        log.write_text("\n".join(lines))
        assert [run.set_up for run in read(log)] == [expected]
