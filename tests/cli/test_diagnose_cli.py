"""blinksim diagnose: the answer, the exit status, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nccl_tests_logs import Point, as_json, text

import blinksim as bs
from blinksim.answers.logs.diagnose import diagnose
from blinksim.answers.logs.locate import locate
from blinksim.answers.project import answer
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.machines import Question
from blinksim.timing.library_model import Library

LOGS = Path(__file__).resolve().parents[1] / "data" / "nccl_tests"
HEALTHY, SLOW = str(LOGS / "h200x8-allreduce.txt"), str(LOGS / "dgx1v-without-nvlink.txt")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    assert run(["diagnose", *arguments]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_healthy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = ask(capsys, HEALTHY, "--machine", "hgx-h200", "--no-nvls")
    # As the last row of the log says.
    reached = "normal, 359.5 GB/s busbw at 1 GiB, 101 % of expected (343 to 380), "
    assert out.startswith(f"allreduce on 8 GPUs of hgx-h200: {reached}")
    assert err == ""
    assert "algbw x" not in out
    assert [line.partition("iB")[0].strip() for line in out.splitlines()[3:9]] == [
        "1 M",
        "4 M",
        "16 M",
        "64 M",
        "256 M",
        "1 G",
    ]
    why, _ = ask(capsys, HEALTHY, "--machine", "hgx-h200", "--no-nvls", "--why")
    assert "busbw       algbw x 7/4; algbw is size / time" in why
    assert "\n    1 KiB " in why
    assert out.splitlines()[-1].startswith("next: blinksim calibrate ")
    # A command is not broken, nor is what a figure comes from.
    assert max(len(line) for line in out.splitlines() if not line.startswith(("next: ", "  expected "))) < 120


def test_a_machine_without_its_nvlinks(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = ask(capsys, SLOW, "--machine", "dgx1-v100", "--threshold", "75", status=1)
    cause = "traffic over pcie or the host (peer access off: NCCL_P2P_DISABLE, or nvlink down?)"
    assert f"behind from 4 MiB on, as with {cause}: " in out.splitlines()[0]
    assert err.startswith("below the threshold: ")
    assert err.count("\n") == 1
    assert ask(capsys, SLOW, "--machine", "dgx1-v100", "--threshold", "75", "-q", status=1)[1] == ""
    ask(capsys, SLOW, "--machine", "dgx1-v100", "--threshold", "1")
    out, err = ask(capsys, SLOW, "--machine", "dgx1-v100", "--json", status=1)
    assert (json.loads(out)["ok"], err) == (False, "")


@pytest.mark.parametrize(
    ("threshold", "against", "status"),
    [("79", "bound", 0), ("81", "bound", 1), ("99", "model", 0), ("104", "model", 1)],
)
def test_the_threshold(capsys: pytest.CaptureFixture[str], threshold: str, against: str, status: int) -> None:
    # 205.4 of 1800/7 GB/s are 79.9 %.
    arguments = [HEALTHY, "--machine", "hgx-h200", "--no-nvls", "--threshold", threshold, "--against", against]
    out, _ = ask(capsys, *arguments, "--json", status=status)
    found = json.loads(out)
    assert found["ok"] is (status == 0)
    assert found["threshold_percent"] == float(threshold)
    assert found["percent"] == pytest.approx(79.9 if against == "bound" else 100.6, abs=0.1)


def test_json_and_csv_have_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ask(capsys, HEALTHY, "--machine", "hgx-h200", "--json")
    found = json.loads(out)
    expected = {
        "command", "machine", "collective", "members", "relays", "links", "rates", "rows", "model", "bound_exact",
        "normal", "first_behind_size_bytes", "link_class",
    }  # fmt: skip
    assert expected <= set(found)
    # The log says NCCL_NVLS_ENABLE=0, so no switch adds.
    assert found["bound_exact"] == "1800/7"
    out, _ = ask(capsys, HEALTHY, "--machine", "hgx-h200", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [int(row["size_bytes"]) for row in rows] == [row["size_bytes"] for row in found["rows"]]
    for row, other in zip(rows, found["rows"], strict=True):
        assert float(row["algbw_GBps"]) == other["algbw_GBps"]


def test_in_place_times_and_json_logs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(as_json("allreduce", 8, [Point(2**30, 5000.0, 10000.0), Point(2**29, 2500.0, 5000.0)]))
    for more, micros, status in (((), 5000, 0), (("--in-place",), 10000, 1)):
        out, _ = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls", "--json", *more, status=status)
        rows = json.loads(out)["rows"]
        assert [row["size_bytes"] for row in rows] == [2**29, 2**30]
        assert rows[-1]["time_s"] == pytest.approx(micros * 1e-6)


def test_a_log_that_stopped_early_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text("allreduce", 8, [Point(2**30, 5227.0, None)], footer=False))
    out, err = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls")
    assert out.splitlines()[0].endswith("; the run ended early: nccl-tests' last lines are missing")
    assert err == ""


def test_a_run_that_failed_is_run_again_with_what_nccl_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    failed = "box0: Test CUDA failure common.cu:303 'unspecified launch failure'\n"
    path.write_text(text("allreduce", 8, [Point(2**30, 5227.0, None)], footer=False) + failed)
    out, _ = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls", status=1)
    assert f": the run FAILED after 1 GiB: {failed}" in out
    assert out.splitlines()[-1].startswith("next: CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 NCCL_DEBUG=INFO ")
    # Beside a log that is slower the one that failed is the one to look at.
    slow = slowed(tmp_path, lambda _: 1.02)
    out, _ = ask(capsys, str(slow), str(path), "--machine", "hgx-h200", "--no-nvls", status=1)
    assert out.splitlines()[-1] == f"next: blinksim diagnose {path} --machine hgx-h200 --no-nvls"
    # A library that nccl-tests does not run on has no such command.
    out, _ = ask(capsys, str(path), "--machine", "gaudi2", status=1)
    assert out.splitlines()[-1] == "next: blinksim expect gaudi2 --collective allreduce"
    # Of several nodes it asks for as many.
    out, _ = ask(capsys, "--busbw", "5", "--size", "1GiB", "--machine", "aurora", "--nodes", "16", status=1)
    assert out.splitlines()[-1] == "next: blinksim expect aurora --nodes 16 --collective allreduce"


@pytest.mark.parametrize("last", ["# Out of bounds values : 3 FAILED", "box0: Test NCCL failure common.cu:303"])
def test_a_run_that_failed_calibrates_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path, last: str) -> None:
    path, target = tmp_path / "log.txt", tmp_path / "rates.yaml"
    path.write_text(f"{Path(HEALTHY).read_text().partition('# Out of bounds')[0]}{last}\n")
    out, _ = ask(capsys, str(path), "--machine", "hgx-h200", status=1)
    assert f"the run FAILED after 1 GiB: {last}" in out
    assert run(["calibrate", str(path), "--machine", "hgx-h200", "-o", str(target)]) == 2
    assert f"the run FAILED after 1 GiB: {last}; its times calibrate nothing" in capsys.readouterr().err
    assert not target.exists()


def test_small_sizes_that_are_slow_are_shown_and_run_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What a fit would take for the machine's own."""
    path = slowed(tmp_path, lambda size: 3 if size < 2**20 else 1)
    out, _ = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls")
    assert "normal but for small sizes" in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("  ")][1:7] == [*["KiB"] * 5, "MiB"]
    assert out.splitlines()[-1].endswith(" all_reduce_perf -b 1024 -e 1073741824 -f 2 -g 1 -t 1")


@pytest.mark.parametrize("used", [8, 7])
def test_what_a_host_lacks_is_located_and_not_forgotten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, used: int
) -> None:
    """Where the bandwidth is normal, too: what `advise` says is of nodes that have all."""
    path, sizes = tmp_path / "log.txt", [2**power for power in range(20, 31, 2)]
    times = answer(Question("hgx-h100", nodes=2), Collective("allreduce"), sizes)
    rows = [Point(one.size, 1e6 * one.time_s, None) for one in times]
    names = (" ".join(f"[{one}]mlx5_{one}:1/IB" for one in range(many)) for many in (8, used))
    uses = [
        f"box{n}:1:2 [0] NCCL INFO NET/IB : Using {own} [RO]; OOB eth0:10.0.0.1<0>\n" for n, own in enumerate(names)
    ]
    path.write_text("".join(uses) + text("allreduce", 16, rows, hosts=2).replace("NVIDIA H200", "GPU"))
    out, _ = ask(capsys, str(path), "--machine", "hgx-h100", "--nodes", "2", status=0 if used == 8 else 5)
    following = "advise hgx-h100 allreduce --nodes 2" if used == 8 else f"locate hgx-h100 {path} --next --nodes 2"
    assert out.splitlines()[-1] == f"next: blinksim {following}"


@pytest.mark.parametrize(("slow", "last"), [(4, 4), (1, 4), (1, 1)])
def test_what_is_no_run_of_nccl_is_not_called_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, slow: float, last: float
) -> None:
    """oneCCL on Aurora, by OSU's benchmark: slow everywhere, or of one size, all nodes are measured again."""
    path, sizes = tmp_path / "log.txt", [2**power for power in range(12, 29, 2)]
    times = [1e6 * one.time_s for one in answer(Question("aurora", nodes=2), Collective("allreduce"), sizes)]
    factors = [slow] * (len(sizes) - 1) + [last]
    rows = [f"{size} {by * time:.2f}" for size, time, by in zip(sizes, times, factors, strict=True)]
    path.write_text("\n".join(("# OSU MPI Allreduce Latency Test v7.1", "# Size       Avg Latency(us)", *rows, "")))
    arguments = (str(path), "--machine", "aurora", "--nodes", "2", "--why")
    out, _ = ask(capsys, *arguments, status=1 if slow > 1 else 5 if last > slow else 0)
    assert "oneCCL's pick" in out
    assert "NCCL" not in out.replace("oneCCL", "")
    assert ("256 MiB alone behind, measure again" in out) == (last > slow)
    usual = "expect aurora --nodes 2 --collective" if last > slow else "compare aurora"
    following = "expect aurora --nodes 2 --collective" if slow > 1 else usual
    assert out.splitlines()[-1].startswith(f"next: blinksim {following} allreduce")


def test_the_next_command_of_a_run_that_ended_early_is_this_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, last = tmp_path / "log.txt", "srun: error: box0: task 0: Segmentation fault"
    told = text("allreduce", 8, [Point(2**30, 5227.0, None)], footer=False).replace("1073741824", "8589934592", 1)
    for more, status in (("", 5), ("  2147483648 5368", 5), (f"  2147483648 5368\n{last}\n", 1)):
        path.write_text(f"{told}{more}")
        out, _ = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls", status=status)
        assert (f": the run FAILED after 1 GiB: {last}; the run ended early: " in out) == (status == 1)
        assert "all_reduce_perf -b 8388608 -e 8589934592 " in out.splitlines()[-1]


def test_wrong_data_end_with_status_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(Path(HEALTHY).read_text().replace("359.46       0", "359.46       7"))
    out, _ = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls", status=1)
    assert "WRONG DATA at 1 GiB" in out
    # The run again has the sizes that were wrong, also small ones, and those of which no doubling comes to the largest.
    for size in (16384, 3 * 2**22):
        points = [Point(it, 5000.0 * it / 2**30 + 20, None) for it in (1024, 4096, 16384, 2**20, 3 * 2**22, 2**30)]
        rows = text("allreduce", 8, points).splitlines()
        rows = [line.replace("  0  ", "  7  ") if line.split()[:1] == [str(size)] else line for line in rows]
        path.write_text("\n".join(rows))
        out, _ = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls", status=1)
        (again,) = (line for line in out.splitlines() if line.startswith("  again "))
        first, last = (int(word) for word in re.findall("-[be] ([0-9]+)", again))
        assert size in (first << power for power in range(20))
        assert first <= size <= last


def test_a_log_of_another_machine_ends_with_status_5(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text("allreduce", 8, [Point(2**30, 2**30 / 300e3, None)]))
    out, _ = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls", "--json", status=5)
    assert json.loads(out)["normal"] is False
    out, _ = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls", status=5)
    assert "faster than this machine can be, so the log comes from another one" in out


@pytest.mark.parametrize(
    ("content", "arguments", "status", "message"),
    [
        ("no log\n", (), 2, "has no heading"),
        (None, ("--collective", "broadcast"), 2, "no test of broadcast"),
        (None, ("--members", "0,1"), 2, "has 8 ranks, and 2 members are chosen"),
        (None, ("--threshold", "-1"), 2, "--threshold"),
        (
            None,
            ("--nodes", "2"),
            2,
            "has 8 ranks on 1 host, not on 16 GPUs of 2 x hgx-h200; give --nodes 1, or "
            "--ranks-per-node 4 if hosts share a name",
        ),
        (None, ("--nodes", "2", "--members", "0-15"), 2, "has 8 ranks, and 16 members are chosen"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, arguments: tuple[str, ...], status: int,
    message: str,
) -> None:  # fmt: skip
    path = tmp_path / "log.txt"
    path.write_text(Path(HEALTHY).read_text() if content is None else content)
    out, err = ask(capsys, str(path), "--machine", "hgx-h200", *arguments, status=status)
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.slow
def test_no_solver_no_pictures_and_no_tables_are_imported() -> None:
    """pandas, pyplot and the CP-SAT solver cost seconds; a diagnosis of one node needs none of them."""
    code = (
        "import sys; from blinksim.cli.main import run; "
        f"run(['diagnose', {HEALTHY!r}, '--machine', 'hgx-h200', '--json']); "
        "sys.exit(', '.join(m for m in ('pandas', 'matplotlib', 'ortools.sat') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr


def slowed(folder: Path, factor: Callable[[int], float]) -> Path:
    """The healthy log with times that are so many times as long."""
    lines = []
    for line in Path(HEALTHY).read_text().splitlines():
        words = line.split()
        if words and words[0].isdigit():
            times = factor(int(words[0]))
            words[5:8] = [f"{float(words[5]) * times}", *(f"{float(word) / times}" for word in words[6:8])]
            line = " ".join(words)
        lines.append(line)
    slower = folder / "slower.txt"
    slower.write_text("\n".join(lines) + "\n")
    return slower


def test_one_small_size_that_is_slow_is_shown_and_run_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Ten times as long as its neighbours; what small sizes take differs by less from rig to rig."""
    path = slowed(tmp_path, lambda size: 10 if size == 2**12 else 1)
    out, _ = ask(capsys, str(path), "--machine", "hgx-h200", "--no-nvls")
    assert out.splitlines()[0].endswith("; 4 KiB alone behind, measure again")
    assert starred(out) == ["4 K"]
    assert out.splitlines()[-1].endswith(" all_reduce_perf -b 4096 -e 1073741824 -f 2 -g 1 -t 1")


@pytest.mark.parametrize("slower", [1.5, 3])
def test_a_log_that_is_as_slow_at_every_size_names_no_link(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, slower: float
) -> None:
    """A link does not slow what latency decides; clocks do, and other jobs."""
    sizes = [2**power for power in range(10, 31)]
    for least, named in ((0, False), (2**25, True)):
        asked = bs.load("hgx-h200"), ["allreduce"], [size for size in sizes if size >= least]
        takes = bs.expect(*asked, library=Library(version="2.28.3", set_up="stream")).takes
        path = tmp_path / "log.txt"
        path.write_text(text("allreduce", 8, [Point(one.size, 1e6 * slower * one.time_s, None) for one in takes]))
        out, _ = ask(capsys, str(path), "--machine", "hgx-h200", status=1)
        causes = [line for line in out.splitlines() if line.startswith("  could be ")]
        assert any("NVLink" in cause for cause in causes) is named
        # Also where small sizes do not say, before what single links would do.
        assert causes[0].startswith(f"  could be    {'few channels' if named else 'clocks of all GPUs'}")
        assert any("clocks of all GPUs" in cause for cause in causes)
        alike = f"as every size takes about {slower} times as long: "
        assert (alike in out.splitlines()[0]) is not named
        kinds = {one.kind.name for one in locate("hgx-h200", [path]).tied}
        assert kinds == {"clock", "nvlink"} if named else {"clock"}


def test_stars_are_where_the_first_line_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """16 MiB is as slow as what stays behind, and 64 MiB is not."""
    slower = slowed(tmp_path, lambda size: 1.6 if size == 2**24 or size >= 2**28 else 1)
    out, _ = ask(capsys, str(slower), "--machine", "hgx-h200", "--no-nvls", status=1)
    assert ": behind from 256 MiB on" in out.splitlines()[0]
    assert out.splitlines()[0].endswith("; 16 MiB alone behind, measure again")
    assert starred(out) == ["16 M", "256 M", "1 G"]


def starred(out: str) -> list[str]:
    return [line.partition("iB")[0].strip() for line in out.splitlines()[1:] if "* " in line]


def test_every_size_that_the_first_line_names_has_a_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Half of the rate at 64 and 128 MiB, and by itself at 512 MiB, of which one row in four would be shown."""
    takes = answer(Question("hgx-h200"), Collective("allreduce"), [2**power for power in range(20, 31)])

    def log(*slow: int) -> str:
        times = [Point(one.size, 1e6 * one.time_s * (2 if one.size in slow else 1), None) for one in takes]
        path = tmp_path / "log.txt"
        path.write_text(text("allreduce", 8, times))
        return str(path)

    out, _ = ask(capsys, log(2**26, 2**27), "--machine", "hgx-h200", status=1)
    assert ": behind at 64 MiB to 128 MiB, and not at the largest size" in out.splitlines()[0]
    assert starred(out) == ["64 M", "128 M"]
    assert "alone" not in out.splitlines()[0]
    out, _ = ask(capsys, log(2**29), "--machine", "hgx-h200")
    assert ": normal, " in out.splitlines()[0]
    assert "; 512 MiB alone behind, measure again" in out.splitlines()[0]
    assert starred(out) == ["512 M"]
    assert run(["expect", "hgx-h200", "--check", log(2**29)]) == 0
    [slow] = [line for line in capsys.readouterr().out.splitlines() if line.endswith("slow")]
    assert "512 MiB" in slow
    # The largest: the first line is about the one before it, and a threshold still about the largest.
    out, _ = ask(capsys, log(2**30), "--machine", "hgx-h200", status=5)
    assert (" at 512 MiB, 100 % of expected" in out, starred(out)) == (True, ["1 G"])
    assert "; 1 GiB alone behind, measure again" in out.splitlines()[0]
    assert "all_reduce_perf -b 8388608 -e 1073741824 " in out.splitlines()[-1]
    _, err = ask(capsys, log(2**30), "--machine", "hgx-h200", "--threshold", "60", "--against", "model", status=1)
    assert "below the threshold: 50 % of the model at 1 GiB" in err


def test_the_first_size_that_is_judged_may_be_odd(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One of MI300X is by 2 % outside the interval that one healthy run in ten leaves: no alarm of a whole log."""
    takes = answer(Question("mi300x"), Collective("allreduce"), [2**power for power in range(20, 34)])
    times = [Point(one.size, 1e6 * (1.02 * one.high_s if one.size == 2**21 else one.time_s), None) for one in takes]
    path = tmp_path / "log.txt"
    path.write_text(text("allreduce", 8, times).replace("NVIDIA H200", "GPU"))
    out, _ = ask(capsys, str(path), "--machine", "mi300x")
    assert "; 2 MiB alone behind" in out.splitlines()[0]
    assert starred(out) == ["2 M"]
    # Where the size before is behind too, which latency decides, it is not alone.
    late = {one.size: 2 * one.high_s if one.size <= 2**21 else one.time_s for one in takes}
    times = [Point(size, 1e6 * time, None) for size, time in late.items()]
    path.write_text(text("allreduce", 8, times).replace("NVIDIA H200", "GPU"))
    out, _ = ask(capsys, str(path), "--machine", "mi300x", status=1)
    assert ": behind at 2 MiB, and not at the largest size" in out.splitlines()[0]
    assert starred(out) == ["2 M"]
    assert "\n  check       small sizes (" in out


@pytest.mark.parametrize(("small", "large", "status", "said"), [(3, 1, 0, 1), (3, 3, 1, 0), (1, 1, 0, 0)])
def test_small_sizes_have_one_line_where_all_others_are_as_expected(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, small: int, large: int, status: int, said: int
) -> None:
    """With what to check; none where the log is behind everywhere, which the first line says."""
    takes = answer(Question("hgx-h200"), Collective("allreduce"), [2**power for power in range(10, 31)])
    times = [Point(one.size, 1e6 * one.time_s * (small if one.size < 2**19 else large), None) for one in takes]
    path = tmp_path / "log.txt"
    path.write_text(text("allreduce", 8, times))
    out, _ = ask(capsys, str(path), "--machine", "hgx-h200", status=status)
    assert (": normal but for small sizes, " in out.splitlines()[0]) is bool(said)
    assert len([line for line in out.splitlines() if "small sizes (" in line and "check" in line]) == said
    assert out.count("is expected)") == said


def test_no_fault_is_named_that_logs_do_not_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A hair below the interval is behind, and `locate` does not say whether by a fault."""
    takes = answer(Question("hgx-h100"), Collective("reducescatter"), [2**28, 2**30])
    path = tmp_path / "log.txt"
    times = [Point(one.size, 1.02e6 * one.high_s, None) for one in takes]
    path.write_text(text("reducescatter", 8, times).replace("NVIDIA H200", "GPU"))
    out, _ = ask(capsys, str(path), "--machine", "hgx-h100", status=1)
    assert starred(out) == ["256 M", "1 G"]
    assert "could be" not in out
    assert run(["locate", "hgx-h100", str(path)]) == 5
    assert "do not say whether by a fault" in capsys.readouterr().out


def test_the_next_command_fits_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each log says why it is no measure of a link's rate, and the next command looks for just that."""
    takes = answer(Question("hgx-h200"), Collective("allreduce"), [2**power for power in range(10, 31)])
    times = [Point(one.size, 1e6 * one.time_s, None) for one in takes]
    usual, path = text("allreduce", 8, times), tmp_path / "log.txt"
    [row] = [line for line in usual.splitlines() if line.split()[:1] == ["1048576"]]
    quick = text("allreduce", 8, [Point(one.size, 1e6 * one.least.time_s / 2, None) for one in takes if one.least])
    logs = {
        usual.replace(row, row.replace("       0 ", "       7 ", 1)): (
            "WRONG DATA at 1 MiB",
            "locate hgx-h200 --plan",
            1,
        ),
        usual.replace("NVIDIA H200", "NVIDIA A100-SXM4-80GB"): ("not judged", f"diagnose {path} --machine dgx-a100", 5),
        quick: ("faster than this machine can be", "topo list", 5),
        # Small sizes alone are run again up to large ones.
        text("allreduce", 8, times[:4]): ("latency decides", "all_reduce_perf -b 8192 -e 1073741824 -f 2 -g 1 -t 1", 5),
    }
    assert len(logs) == 4
    for log, (words, command, status) in logs.items():
        path.write_text(log)
        lines = ask(capsys, str(path), "--machine", "hgx-h200", status=status)[0].splitlines()
        assert words in lines[0]
        assert lines[-1].startswith("next: ")
        assert lines[-1].endswith(f" {command}")
    path.write_text(next(iter(logs)))
    assert run(["calibrate", str(path), "--machine", "hgx-h200", "-o", str(tmp_path / "rates.yaml")]) == 2
    assert (
        capsys.readouterr().err
        == f"blinksim: {path}: WRONG DATA at 1 MiB; its times calibrate nothing, run the test again\n"
    )
    assert not (tmp_path / "rates.yaml").exists()


def test_logs_stand_side_by_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A second log with a third less bandwidth from 256 KiB on."""
    slower = slowed(tmp_path, lambda size: 1.5 if size >= 2**18 else 1)
    both = [HEALTHY, str(slower), "--machine", "hgx-h200", "--no-nvls"]
    out, _ = ask(capsys, *both, status=1)
    sentences = {log: ask(capsys, log, *both[2:], status=log != HEALTHY)[0].splitlines()[0] for log in both[:2]}
    assert [f"{log}: {sentence}" for log, sentence in sentences.items()] == out.splitlines()[:2]
    row = next(line for line in out.splitlines() if line.startswith("    1 GiB"))
    assert row.split()[2:] == ["359.5", "239.6*"]
    assert out.splitlines()[-1] == f"next: blinksim diagnose {slower} --machine hgx-h200 --no-nvls"
    rows = list(csv.DictReader(io.StringIO(ask(capsys, *both, "--csv", status=1)[0])))
    assert [row["log"] for row in rows] == [HEALTHY] * (len(rows) // 2) + [str(slower)] * (len(rows) // 2)
    # One log below the threshold is enough for the status.
    _, err = ask(capsys, *both, "--threshold", "75", status=1)
    assert err == f"{slower}: below the threshold: 53.3 % of the bound at 1 GiB, wanted 75 %\n"
    ask(capsys, *both, "--threshold", "50")
    assert "--json takes one log" in ask(capsys, *both, "--json", status=2)[1]


@pytest.mark.parametrize(
    ("figure", "status", "words"),
    [
        ("--busbw 460 --size 1GiB", 0, "normal, 460 GB/s busbw at 1 GiB, "),
        ("--busbw 460GB/s --size 1GiB", 0, "normal, 460 GB/s busbw at 1 GiB, "),
        ("--time 4.085ms --size 1GiB", 0, "normal, 460 GB/s busbw at 1 GiB, "),
        ("--busbw 300 --size 1GiB", 1, "slow, on nvlink: 300 GB/s busbw at 1 GiB, "),
        ("--time 260us --size 16KiB", 1, "slow, latency decides: "),
        (
            "--busbw 560 --size 1GiB",
            0,
            "faster than expected, so the figure or its size may come from another machine",
        ),
        (
            "--busbw 1560 --size 1GiB",
            5,
            "faster than this machine can be, so the figure or its size comes from another",
        ),
    ],
)
def test_one_figure_in_place_of_a_log(capsys: pytest.CaptureFixture[str], figure: str, status: int, words: str) -> None:
    out, err = ask(capsys, *figure.split(), "--machine", "hgx-h200", status=status)
    assert out.startswith(f"allreduce on 8 GPUs of hgx-h200: {words}")
    assert err == ""
    found = json.loads(ask(capsys, *figure.split(), "--machine", "hgx-h200", "--json", status=status)[0])
    (row,) = found["rows"]
    assert (found["log"], found["ok"], row["behind"]) == (None, status != 1, "slow" in words)
    assert found["normal"] == words.startswith("normal")
    given = dict(zip(figure.split()[::2], figure.split()[1::2], strict=True))
    settings: dict[str, Any] = {name.removeprefix("--"): value for name, value in given.items()}
    assert diagnose(None, "hgx-h200", **settings).rows() == found["rows"]
    project = answer(Question("hgx-h200"), Collective("allreduce"), [row["size_bytes"]])[0]
    assert row["model_time_s"] == project.time_s
    # The interval of `project`, as busbw of eight GPUs: 2 x 7/8 of algbw.
    slow, quick = (row["size_bytes"] / end * 1.75 / 1e9 for end in (project.high_s, project.low_s))
    usual = f" % of expected ({slow:.3g} to {quick:.3g}), "
    assert (usual in out.splitlines()[0]) is ("faster than this" not in words)


@pytest.mark.parametrize(
    ("busbw", "status", "words"),
    [(280, 0, "normal, "), (260, 5, "cannot tell, nearer to half of what is expected, "), (170, 1, "slow, ")],
)
def test_within_a_wide_interval_a_fault_does_not_show(
    capsys: pytest.CaptureFixture[str], busbw: int, status: int, words: str
) -> None:
    """386 GB/s are expected, of 196 to 516; 273 are as near to 386 as to half of it."""
    figure = (f"--busbw={busbw}", "--size", "2GiB", "--machine", "p5en", "--nodes", "4")
    out, _ = ask(capsys, *figure, status=status)
    assert f": {words}" in out.splitlines()[0]
    found = json.loads(ask(capsys, *figure, "--json", status=status)[0])
    assert (found["normal"], found["ok"]) == (status == 0, status != 1)
    ask(capsys, *figure, "--threshold", "20")


@pytest.mark.parametrize("command", ["diagnose", "calibrate"])
def test_without_a_machine_the_log_names_one(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([command, HEALTHY]) == 2
    said = "blinksim: name the machine with --machine, as in --machine hgx-h200: the log names NVIDIA H200\n"
    assert capsys.readouterr() == ("", said)
    assert run(["diagnose", "--busbw", "380", "--size", "8GiB"]) == 2
    assert capsys.readouterr() == ("", "blinksim: name the machine with --machine (blinksim topo list)\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give a log, or a figure: --size with --busbw or --time, such as --size 8GiB with --busbw 380"),
        ("--busbw 380", "give a log, or a figure"),
        ("380", "380 is no log; type a figure like --busbw 380 --size 8GiB"),
        ("180GB/s --machine hgx-h100", "180GB/s is no log; type a figure like --busbw 180 --size 8GiB"),
        ("--busbw 380 --time 4ms --size 1GiB", "give a log, or a figure"),
        ("--busbw 0 --size 1GiB", "is not a positive bandwidth"),
        ("--busbw -1 --size 1GiB", "is not a positive bandwidth"),
        ("--busbw \u0663 --size 1GiB", "is not a bandwidth"),
        ("--time 0s --size 1GiB", "0s is no measured time"),
        (f"{HEALTHY} --busbw 380 --size 1GiB", "are a figure in place of a log"),
    ],
)
def test_what_is_no_figure(capsys: pytest.CaptureFixture[str], arguments: str, message: str) -> None:
    out, err = ask(capsys, *arguments.split(), "--machine", "hgx-h200", status=2)
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.slow
def test_single_losses_outside_the_class_of_the_headline_say_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two nodes at half of the expected rate: all their adapters, or one NVLink, which is none of those."""
    sizes = [2**power for power in range(20, 34)]
    found = answer(Question("hgx-h100", nodes=2), Collective("allreduce"), sizes)
    points = [Point(one.size, (1.9e6 if one.size >= 2**24 else 1e6) * one.time_s, None) for one in found]
    path = tmp_path / "log.txt"
    path.write_text(text("allreduce", 16, points, hosts=2).replace("NVIDIA H200", "GPU"))
    assert run(["diagnose", str(path), "--machine", "hgx-h100", "--nodes", "2"]) == 1
    out = capsys.readouterr().out
    assert "on ib or pcie: " in out.splitlines()[0]
    causes = [line.split("could be", 1)[1].strip() for line in out.splitlines() if line.startswith("  could be")]
    # What slows all nodes comes first.
    causes = causes[[cause.startswith("oversubscribed") for cause in causes].index(True) + 1 :]
    apart = [cause.startswith("not ib or pcie but, at one place alone, ") for cause in causes]
    assert apart == sorted(apart)
    assert [("NVLink" in cause) for cause in causes] == apart
    assert any(apart)
    assert "1 other places" not in out


@pytest.mark.parametrize("log", ["even", "all"])
def test_what_comes_next_tells_causes_apart(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A log of some GPUs alone leaves a plan; where no log can be located, the bound after losses is left."""
    path = Path(__file__).resolve().parents[1] / "data" / "located" / f"{log}.txt"
    run(["diagnose", str(path), "--machine", "hgx-h100"])
    words = {"even": "--plan", "all": f"{path} --next"}[log]
    assert capsys.readouterr().out.endswith(f"\nnext: blinksim locate hgx-h100 {words}\n")
    run(
        ["diagnose", "--busbw", "99", "--size", "1GiB", "--machine", "hgx-h100", "--edit", "replace nvlink latency=2us"]
    )
    words = "hgx-h100 allreduce --edit 'replace nvlink latency=2us' --losses"
    assert capsys.readouterr().out.endswith(f"\nnext: blinksim bound {words}\n")


def test_what_comes_next_of_several_nodes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The log goes to locate, a figure to its plan; what is faster to other machines; wrong data to checks."""
    takes = answer(Question("hgx-h100", nodes=4), Collective("allreduce"), [2**28, 2**30])
    path = tmp_path / "log.txt"

    def said(slower: float, command: str = f"diagnose {path} --machine hgx-h100 --nodes 4") -> tuple[int, str]:
        points = [Point(one.size, 1e6 * slower * one.time_s, None) for one in takes]
        path.write_text(text("allreduce", 32, points, hosts=4).replace("H200", "H100 80GB HBM3"))
        return run(command.split()), capsys.readouterr().out

    assert f"\nnext: blinksim locate hgx-h100 {path} --next --nodes 4\n" in said(4)[1]
    assert said(0.62)[1].endswith("\nnext: blinksim topo list\n")
    status, out = said(1, "diagnose --busbw 38 --size 8GiB --machine p5 --nodes 8")
    assert status == 1
    assert out.endswith("\nnext: blinksim locate p5 --plan --nodes 8\n")
    # GPUs of another model are not judged, however fast.
    status, out = said(1, f"diagnose {path} --machine dgx-a100 --nodes 4")
    assert (status, "not judged" in out) == (5, True)
    path.write_text(path.read_text().replace("       0  ", "       7  "))
    assert run(f"diagnose {path} --machine hgx-h100 --nodes 4".split()) == 1
    out = capsys.readouterr().out
    assert "WRONG DATA" in out
    assert "  check       nvidia-smi -q -d ECC" in out


@pytest.mark.parametrize("said", ["", "# NCCL_NVLS_ENABLE=0"])
def test_what_comes_next_keeps_that_nvls_was_off(capsys: pytest.CaptureFixture[str], tmp_path: Path, said: str) -> None:
    """Whether the log says it, or the flag."""
    path = tmp_path / "log.txt"
    path.write_text(f"{said}\n{slowed(tmp_path, lambda _: 2.0).read_text()}")
    out, _ = ask(capsys, str(path), "--machine", "hgx-h200", *["--no-nvls"] * (not said), status=1)
    assert out.splitlines()[-1] == f"next: blinksim locate hgx-h200 {path} --next --no-nvls"
