"""One log has one verdict: the same words in every command, and the same status but for the exceptions of the docs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from nccl_tests_logs import Point, text

import blinksim as bs
from blinksim.answers.logs.faults import classes
from blinksim.cli.main import run
from blinksim.timing.library_model import Library

SIZES = [2**power for power in range(10, 31)]


def log(folder: Path, slower: Callable[[int], float], most: int = 2**30, last: str = "") -> str:
    """A log of eight H200 without NVLS, so many times as long as expected, up to a size, with other last lines."""
    library = Library(version="2.28.3", multicast=False, set_up="stream")
    takes = bs.expect("hgx-h200", ["allreduce"], [size for size in SIZES if size <= most], library=library).takes
    points = [Point(one.size, 1e6 * slower(one.size) * one.time_s, None) for one in takes]
    told = text("allreduce", 8, points, footer=not last)
    path = folder / "log.txt"
    path.write_text(f"# NCCL_NVLS_ENABLE=0\n{told}{last}")
    return str(path)


@pytest.mark.parametrize(
    ("slower", "most", "last", "status", "words"),
    [
        (lambda _: 1, 2**30, "", 0, "normal, "),
        (lambda _: 1, 2**26, "\n", 5, "normal as far as it got, "),
        (lambda size: 1 + (size == 2**30), 2**30, "", 5, "cannot tell, the largest size is alone behind: "),
        (lambda size: 1 + (size == 2**26), 2**30, "", 0, "normal, "),
        (lambda size: 2.0 if size >= 2**24 else 1, 2**30, "", 1, "behind from 16 MiB on, "),
        (lambda _: 3, 2**30, "", 1, "behind from 2 MiB on, as every size takes about 3 times as long: "),
        (lambda size: 2.0 if 2**24 <= size <= 2**26 else 1, 2**30, "", 1, "behind at 16 MiB to 64 MiB, "),
    ],
    ids=["healthy", "cut", "last size", "one size", "large sizes", "every size", "middle sizes"],
)
def test_commands_agree_on_a_log(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    slower: Callable[[int], float],
    most: int,
    last: str,
    status: int,
    words: str,
) -> None:
    """`locate` gives 1 for a fault only, and calibrates what was measured, slow or not."""
    path, said = log(tmp_path, slower, most, last), dict[str, tuple[int, str]]()
    for command in (
        f"diagnose {path} --machine hgx-h200",
        f"expect hgx-h200 --check {path}",
        f"locate hgx-h200 {path}",
        f"calibrate {path} --machine hgx-h200",
    ):
        found = run(command.split())
        said[command.split()[0]] = found, capsys.readouterr().out
    verdict = said["diagnose"][1].splitlines()[0].partition("hgx-h200: ")[2]
    assert verdict.startswith(words)
    assert (said["diagnose"][0], said["expect"][0], said["calibrate"][0]) == (status, status, 0)
    assert said["locate"][0] in ((1, 5) if status == 1 else (status,))
    assert all(verdict in out for _, out in said.values())
    assert run(["locate", "hgx-h200", path, "--json"]) == said["locate"][0]
    [one] = json.loads(capsys.readouterr().out)["logs"]
    assert (one["status"], one["verdict"]) == (status, verdict)


def test_what_all_gpus_share_comes_before_single_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a log of all GPUs that is as slow at all large sizes, in both commands that name causes."""
    path = log(tmp_path, lambda size: 2.0 if size >= 2**22 else 1)
    assert run(["diagnose", path, "--machine", "hgx-h200"]) == 1
    causes = [line.split(None, 2)[2] for line in capsys.readouterr().out.splitlines() if line.startswith("  could be")]
    shared = ["few channels", "clocks of all GPUs", "other jobs"]
    assert [cause.startswith(words) for cause, words in zip(causes, shared, strict=False)] == [True] * 3
    assert any("other places" in cause for cause in causes[3:])
    assert run(["locate", "hgx-h200", path]) == 1
    labels = [line[2:13].strip() for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert labels.index("could be") < labels.index("check")


def test_all_hosts_that_lack_adapters_are_in_the_check(tmp_path: Path) -> None:
    """Those that lack the same together."""
    line = "box{0}:400{0}:4100 [0] NCCL INFO NET/IB : Using {1} [RO]; OOB eth0:10.0.0.1<0>\n"
    sizes, cluster = [2**26, 2**28, 2**30], bs.load("hgx-h100", nodes=4)
    points = [Point(one.size, 2e6 * one.time_s, None) for one in bs.expect(cluster, ["allreduce"], sizes).takes]
    used = {0: 8, 1: 6, 2: 7, 3: 6}
    said = "".join(
        line.format(host, " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(many))) for host, many in used.items()
    )
    path = tmp_path / "log.txt"
    path.write_text(said + text("allreduce", 32, points, hosts=4).replace("NVIDIA H200", "GPU"))
    checks = [words for label, words in bs.diagnose(path, cluster).to_do() if label == "check"]
    six, seven = "uses 6 of 8 adapters, without mlx5_6, mlx5_7: 75 %", "uses 7 of 8 adapters, without mlx5_7: 88 %"
    assert [
        check.startswith(f"box1, box3 each {six} of the ports; box2 {seven} of the ports: ibstat;") for check in checks
    ] == [True]


def test_rates_of_a_log_that_was_cut_say_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next command asks of a size of the log, and a larger one says from which it is scaled."""
    path, rates = log(tmp_path, lambda _: 1, 2**26, "\n"), str(tmp_path / "rates.yaml")
    assert run(["calibrate", path, "--machine", "hgx-h200", "-o", rates]) == 0
    following = capsys.readouterr().out.splitlines()[-1]
    assert following == f"next: blinksim project hgx-h200 allreduce 64MiB --no-nvls --rates {rates}"
    assert run(["project", "hgx-h200", "allreduce", "1GiB", "--no-nvls", "--rates", rates]) == 0
    assert "scaled from the nearest size that was measured, 64 MiB: " in capsys.readouterr().out


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_log_of_more_nodes_says_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: int) -> None:
    path = tmp_path / "log.txt"
    rows = "#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec] stddev[%]\n1048576 16 401.1 431.2 416.1 3.1\n"
    path.write_text(f"# Benchmarking: allreduce\n# #processes: 48\n{rows}")
    assert run(["diagnose", str(path), "--machine", "aurora", "--nodes", str(nodes)]) == 2
    assert capsys.readouterr().err.endswith("For a cluster give --nodes 4\n")
    assert run(["diagnose", str(path), "--machine", "aurora", "--nodes", "4"]) in (0, 1, 5)


def test_the_second_test_of_a_log_may_have_ended_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever sizes the first one measured."""
    first = Path(log(tmp_path, lambda _: 1)).read_text()
    path = log(tmp_path, lambda _: 1, 2**26, "\n")
    Path(path).write_text(f"{first}\n{Path(path).read_text()}")
    for command in (f"diagnose {path} --machine hgx-h200", f"locate hgx-h200 {path}"):
        assert run(command.split()) == 5
        assert "the run ended early, before 1 GiB" in capsys.readouterr().out


def test_hosts_before_every_line_are_no_part_of_it(tmp_path: Path) -> None:
    """As pdsh and clush print; a message of a host that failed keeps it."""
    path = Path(log(tmp_path, lambda _: 1))
    usual, failed = bs.diagnose(path, "hgx-h200"), "box0: Test CUDA failure common.cu:303 'out of memory'"
    path.write_text("".join(f"node-a7: {line}\n" for line in path.read_text().splitlines()))
    assert bs.diagnose(path, "hgx-h200").sentence() == usual.sentence()
    path.write_text(f"{path.read_text()}{failed}\n")
    assert failed in bs.diagnose(path, "hgx-h200").sentence()


def test_a_process_that_dies_after_the_last_row_is_said(tmp_path: Path) -> None:
    path = Path(log(tmp_path, lambda _: 1))
    died = "mpirun noticed that process rank 3 with PID 4003 on node box0 exited on signal 9 (Killed)."
    path.write_text(f"{path.read_text()}\n{died}\n")
    found = bs.diagnose(path, "hgx-h200")
    assert found.verdict.words.endswith(f"; after its last row: {died}")
    assert (found.status(), found.failed) == (0, "")


@pytest.mark.parametrize("slower", [lambda size: 1 + 2 * (size >= 2**24), lambda _: 2.2], ids=["large", "every"])
def test_rates_of_a_slow_cluster_are_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slower: Callable[[int], float]
) -> None:
    """Also where trees ran; nothing calls them as expected, and the next command writes them."""
    takes = bs.expect("hgx-h200", ["allreduce"], [2**n for n in range(10, 33, 2)], nodes=4).takes
    points = [Point(one.size, 1e6 * slower(one.size) * one.time_s, None) for one in takes]
    (path := tmp_path / "log.txt").write_text(text("allreduce", 32, points, hosts=4))
    assert run(f"calibrate {path} --machine hgx-h200 --nodes 4".split()) == 0
    first, *others, last = capsys.readouterr().out.splitlines()
    assert "as expected" not in first
    assert any(": behind from " in line for line in others)
    assert last == f"next: blinksim calibrate {path} --machine hgx-h200 --nodes 4 -o rates.yaml"
    rates = str(tmp_path / "rates.yaml")
    assert run([*last.split()[2:-1], rates]) == 0
    again = bs.expect(bs.load("hgx-h200", nodes=4, rates=rates), ["allreduce"], [2**30]).takes
    usual = next(one for one in takes if one.size == 2**30)
    assert again[0].time_s == pytest.approx(slower(2**30) * usual.time_s, rel=1e-2)


@pytest.mark.parametrize("listed", [False, True])
def test_adapters_of_efa_are_counted(tmp_path: Path, listed: bool) -> None:
    """NCCL's plugin says how many it found, and newer ones their addresses: each of a host's processes all of them."""
    line = "box{0}:40{2}:4100 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found {1} nics)\n"
    item = "box{0}:40{2}:4100 [0] NCCL INFO NET/OFI NIC group {3} device #{4} 0000:{5:x}:00.0\n"
    takes = bs.expect("p5en", ["allreduce"], [2**26, 2**28, 2**30], nodes=4).takes
    points = [Point(one.size, 1e6 * one.time_s, None) for one in takes]
    said = ""
    for host, process in product(range(4), range(2)):
        said += line.format(host, 16 - (host == 2), process)
        own = [nic for nic in range(16) if (host, nic) != (2, 5)]
        said += "".join(item.format(host, 0, process, nic // 2, nic % 2, 0x50 + nic) for nic in own * listed)
    (path := tmp_path / "log.txt").write_text(said + text("allreduce", 32, points, hosts=4))
    found = bs.diagnose(path, bs.load("p5en", nodes=4))
    assert found.status() == 5
    words = f"box2 uses 15 of 16 adapters{', without 0000:55:00.0' * listed}: 94 % of the ports"
    assert found.otherwise == (words,)
    [check] = [said for label, said in found.to_do() if label == "check" and said.startswith(words)]
    assert "fi_info -p efa" in check
    assert "ibstat" not in check
    assert "NET/IB" not in check


def test_checks_on_efa_exist_there() -> None:
    """Commands of InfiniBand show nothing of it; those of other faults stay."""
    node, other = (bs.load(name, nodes=2) for name in ("p5en", "hgx-h200"))
    own = {one.name: one.check for one in classes("nccl", node.inter_node_links)}
    usual = {one.name: one.check for one in classes("nccl", other.inter_node_links)}
    assert not [check for check in own.values() if re.search(r"ibstat|NET/IB|ibdiagnet|ib_write|ethtool", check)]
    assert "/hw_counters" in own["nic"]
    assert {name for name in own if own[name] == usual[name]} >= {"nvlink", "pcie", "clock", "gone", "acs"}
