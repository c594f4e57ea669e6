"""The same from Python: logs in, calibration, diagnosis and advice out; and what is measured on H200 agrees."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import blinksim as bs

TESTS = Path(__file__).resolve().parents[1]
LOG = TESTS / "data" / "nccl_tests" / "h200x8-allreduce.txt"
CAPTURE = TESTS / "data" / "captures" / "h200x8"


@pytest.mark.slow
def test_from_a_path() -> None:
    machine = bs.load("hgx-h200")
    (series,) = bs.read_series(LOG, machine)
    found = bs.calibrate(series, machine="hgx-h200")
    assert 18e9 < found.parameter("nvlink", "bandwidth").value < 20.5e9
    assert "nvlink carries 18.63" in repr(found)
    diagnosis = bs.diagnose(str(LOG), machine.select(), bs.load("hgx-h200", rates="nccl"), multicast=False)
    assert "normal" in repr(diagnosis)
    assert "<table" in diagnosis._repr_html_()
    assert list(found.to_frame()["class"]) == ["nvlink"]
    assert "nothing worth loading" in repr(bs.advise(machine.select(), machine=machine))


def test_a_name_stands_for_the_machine() -> None:
    whole = bs.load("hgx-h200")
    by_name = bs.diagnose(LOG, "hgx-h200", multicast=False)
    by_parts = bs.diagnose(LOG, whole.select(), bs.load("hgx-h200", rates="nccl"), multicast=False)
    assert by_name.rows() == by_parts.rows()
    assert [one.samples for one in bs.read_series(LOG, "hgx-h200")] == [
        one.samples for one in bs.read_series(LOG, whole)
    ]
    series = bs.read_series(LOG, "hgx-h200", "all_reduce")
    assert bs.calibrate(series, machine=whole).table.machine == bs.calibrate(series, machine="h200").table.machine
    for wrong in (lambda: bs.diagnose(LOG, "hgx-h2000"), lambda: bs.read_series(LOG, 8)):  # type: ignore[arg-type]
        with pytest.raises(bs.InputError):
            wrong()


def test_of_a_whole_machine_the_log_says_the_members(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^#  Rank  [4-7] .*\n", "", LOG.read_text())
    four = tmp_path / "four.txt"
    # busbw / algbw of four ranks is 3/2, of eight 7/4.
    four.write_text(
        re.sub(
            r"(?m)^( *\d+ +\d+ +float .* )(\d+\.\d+) +(\d+\.\d+)( +0 )",
            lambda row: f"{row[1]}{row[2]} {1.5 * float(row[2]):.2f}{row[4]}",
            text,
        )
    )
    found = bs.diagnose(four, "hgx-h200", multicast=False)
    assert found.part.members == ("gpu0", "gpu1", "gpu2", "gpu3")


@pytest.mark.slow
def test_advice_on_a_name_is_that_of_the_command() -> None:
    named = bs.advise("dgx1-v100")
    whole = bs.load("dgx1-v100")
    assert named.rows() == bs.advise(whole.select(), machine=whole).rows()


def test_the_measured_rates_are_what_kernels_write_to_a_peer() -> None:
    text = (CAPTURE / "p2p.txt").read_text()
    pushed = [float(rate) for rate in re.findall(r"SM push blocks (?:64|132) ([\d.]+)", text)]
    machine = bs.load("hgx-h200", rates="measured")
    (port,) = {float(link.bandwidth) for link in machine.links if link.kind == "nvlink"}
    assert min(pushed) * 1e9 <= port <= max(pushed) * 1e9
    small = float(re.findall(r"memcpyPeer size 4 us ([\d.]+)", text)[0])
    way = [machine.links[i] for i in machine.router.route(machine.index["gpu0"], machine.index["gpu1"])]
    assert sum(link.latency + link.overhead for link in way) == pytest.approx(small * 1e-6, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("collective", ["allreduce", "broadcast"])
def test_nccl_keeps_to_the_bound_at_measured_rates(collective: str, ranks: int) -> None:
    """At 1 GiB NCCL on H200 reaches 88 to 100.3 % of what the measured rates allow, on any number of GPUs."""
    rows = csv.DictReader((CAPTURE / "nccl_curves.csv").read_text().splitlines())
    best = max(
        float(row["bytes"]) / float(row["us"]) * 1e6
        for row in rows
        if (row["coll"], row["n"]) == (collective, str(ranks))
    )
    machine = bs.load("hgx-h200", rates="measured")
    limit = float(bs.bound(machine.select([f"gpu{i}" for i in range(ranks)]), bs.Collective(collective)).rate)
    assert 0.88 < best / limit < 1.003


@pytest.mark.parametrize(
    "said",
    ["# NCCL_NVLS_ENABLE=0", "box0:1:2 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.",
     "$ mpirun -x NCCL_NVLS_ENABLE=0 all_reduce_perf"],
)  # fmt: skip
def test_what_a_log_says_of_its_environment_counts_as_the_flag(tmp_path: Path, said: str) -> None:
    """For a diagnosis, a fault and rates alike; and where the log says nothing, the flag counts."""
    silent, told = tmp_path / "silent.txt", tmp_path / "told.txt"
    silent.write_text(LOG.read_text().replace(", NCCL_NVLS_ENABLE=0", ""))
    told.write_text(f"{said}\n{silent.read_text()}")
    assert bs.diagnose(silent, "hgx-h200").first_behind is not None
    flagged = bs.diagnose(silent, "hgx-h200", multicast=False)
    assert bs.diagnose(told, "hgx-h200").sentence() == flagged.sentence()
    assert bs.diagnose(told, "hgx-h200").bound.rate == flagged.bound.rate
    assert bs.locate("hgx-h200", [silent]).status
    for one in (bs.locate("hgx-h200", [told]), bs.locate("hgx-h200", [silent], multicast=False)):
        assert (one.status, one.seen[0].line.expected.time_s) == (0, flagged.largest.expected.time_s)
    silent_fit, told_fit = (
        bs.calibrate(bs.read_series(log, "hgx-h200"), multicast=log is told) for log in (silent, told)
    )
    assert told_fit.table.classes == silent_fit.table.classes


def test_logs_with_and_without_nvls_are_not_compared(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(f"# NCCL_NVLS_ENABLE=2\n{LOG.read_text().replace(', NCCL_NVLS_ENABLE=0', '')}")
    with pytest.raises(bs.InputError, match="with and without NVLS"):
        bs.locate("hgx-h200", [LOG, other])


@pytest.mark.parametrize(("processes", "options"), [(8, "-g 1 -t 1"), (1, "-g 8 -t 1"), (2, "-g 4 -t 1 -G 20")])
def test_a_run_is_run_again_as_it_was(tmp_path: Path, processes: int, options: str) -> None:
    """As many processes, with its options and its environment; also as the next run that tells more."""
    each, graph = 8 // processes, " graph: 20" if "-G" in options else ""
    content = LOG.read_text().replace("nGpus 1", f"nGpus {each}").replace("iters: 20", f"iters: 20{graph}")
    path = tmp_path / "log.txt"
    path.write_text("# NCCL_ALGO=Ring\n" + content.replace("# Avg", "box0: Test CUDA failure common.cu:1\n# Avg"))
    start = f"-np {processes} -N {processes} " if processes > 1 else ""
    again = dict(bs.diagnose(path, "hgx-h200").to_do())["again"]
    assert {"NCCL_NVLS_ENABLE=0", "NCCL_ALGO=Ring", "NCCL_DEBUG=INFO"} <= set(again.partition("_perf")[0].split())
    assert again.endswith(f" {options}")
    assert f"{start}all_reduce_perf " in again
    assert ("mpirun" in again) == (processes > 1) == (" -x NCCL_ALGO" in again)
    path.write_text(f"# NCCL_ALGO=Ring\n{content}")
    more = bs.locate("hgx-h200", [path], plan=True).plan or bs.locate("hgx-h200", plan=True, multicast=False).plan
    assert all("NCCL_NVLS_ENABLE=0 " in run for run in more)


def test_a_run_that_failed_locates_nothing_and_is_said_to_have_failed(tmp_path: Path) -> None:
    path, failed = tmp_path / "log.txt", "box0: Test CUDA failure common.cu:303 'unspecified launch failure'"
    path.write_text(f"{LOG.read_text().partition('# Out of bounds')[0]}{failed}\n")
    assert f": the run FAILED after 1 GiB: {failed}" in bs.diagnose(path, "hgx-h200").sentence()
    with pytest.raises(
        bs.InputError, match=rf"log\.txt: the run FAILED after 1 GiB: {failed}; its times locate nothing"
    ):
        bs.locate("hgx-h200", [LOG, path])
