"""What `diagnose` says of the lines that NCCL prints with NCCL_DEBUG=INFO: other channels than its model finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nccl_tests_logs import Point, text

import blinksim as bs
from blinksim.errors import InputError

DATA = Path(__file__).parents[1] / "data"
DEBUG = (DATA / "captures/h200x8/nccl_debug.log").read_text()
TESTS = (DATA / "nccl_tests/h200x8-allreduce.txt").read_text()


def logged(tmp_path: Path, debug: str) -> Path:
    """A log of nccl-tests whose ranks print NCCL's messages before the first row, as they do."""
    heading = re.search(r"(?m)^#\s+size ", TESTS)
    assert heading is not None
    path = tmp_path / "log.txt"
    path.write_text(f"{TESTS[: heading.start()]}{debug}\n{TESTS[heading.start() :]}")
    return path


def test_a_real_log_of_a_healthy_machine_says_nothing(tmp_path: Path) -> None:
    """8 H200, NCCL's own messages: 12 channels of 30 GB/s for rings and trees, as the model finds."""
    assert "Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX" in DEBUG
    assert bs.diagnose(logged(tmp_path, DEBUG), "hgx-h200", multicast=False).otherwise == ()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            "nChannels 12, bw 30.0",
            "nChannels 6, bw 30.0",
            "6 of 30 GB/s over NVL paths, expected 12 of 30 GB/s over NVL",
        ),
        ("bw 30.000000/30.000000, type NVL", "bw 20.000000/20.000000, type NVL", "12 of 20 GB/s over NVL paths"),
        ("12, bw 30.000000/30.000000, type NVL", "2, bw 0.1/0.1, type SYS", "2 of 0.1 GB/s over SYS paths"),
    ],
)
def test_other_channels_are_named_with_what_they_carry(tmp_path: Path, before: str, after: str, told: str) -> None:
    found = bs.diagnose(logged(tmp_path, DEBUG.replace(before, after)), "hgx-h200", multicast=False)
    ring, tree = found.otherwise
    # The rate is normal; the first line says what is not.
    assert ": normal, 359.5 GB/s" in found.sentence()
    assert found.sentence().endswith(f", though NCCL says: {ring}")
    share = {"6 of": 50, "12 of": 67, "2 of": 0}[told[: told.index(" of") + 3]]
    assert ring.startswith(f"ring: {told}")
    assert tree.startswith(f"tree: {told}")
    assert ring.endswith(f": {share} % of the bandwidth")


def test_the_command_and_json_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from blinksim.cli.main import run

    path = str(logged(tmp_path, DEBUG.replace("nChannels 12", "nChannels 6")))
    run(["diagnose", path, "--machine", "hgx-h200", "--no-nvls"])
    assert "NCCL found" in capsys.readouterr().out
    run(["diagnose", path, "--machine", "hgx-h200", "--no-nvls", "--json"])
    assert '"nccl_otherwise"' in capsys.readouterr().out


def test_sockets_and_disabled_rdma_count_between_nodes(tmp_path: Path) -> None:
    """On one node NCCL says that it uses sockets, too, and they carry nothing."""
    lines = (
        "n0:1:1 [0] NCCL INFO Using network Socket",
        "n0:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
    )
    path = between_nodes(tmp_path, *lines)
    found = bs.diagnose(path, bs.Question("hgx-h200", nodes=2, members="0-3,8-11").part()).otherwise
    assert found == ("Using network Socket", "GPU Direct RDMA Disabled for 'mlx5_0'")
    assert bs.diagnose(path, "hgx-h200").otherwise == ()


def using(host: str, *names: str) -> str:
    """NCCL's line of the adapters that it uses."""
    listed = " ".join(f"[{n}]{name}:1/RoCE" for n, name in enumerate(names))
    return f"{host}:41:97 [0] NCCL INFO NET/IB : Using {listed} [RO]; OOB ens3:192.0.2.3<0>"


def between_nodes(tmp_path: Path, *lines: str) -> Path:
    """A log of eight GPUs on two nodes with these messages."""
    heading, last = re.search(r"(?m)^#\s+size ", TESTS), "# Out of bounds values : 0 OK"
    assert heading is not None
    rows = TESTS[heading.start() :].split("# Out of")[0]
    path = tmp_path / "nodes.txt"
    path.write_text("\n".join(("# Collective test starting: all_reduce_perf", *lines, rows, last)))
    return path


def test_adapters_that_a_host_does_not_use_are_named(tmp_path: Path) -> None:
    """By the names that other hosts print, or that the topology file has: seven of eight are 88 % of the ports."""
    every = [f"mlx5_{n}" for n in range(8)]
    few = [name for name in every if name != "mlx5_5"]
    path = between_nodes(tmp_path, using("n1", *every), using("n2", *few))
    part = bs.Question("hgx-h200", nodes=2, members="0-3,8-11").part()
    words = "n2 uses 7 of 8 adapters, without mlx5_5: 88 % of the ports"
    assert bs.diagnose(path, part).otherwise == (words,)
    path = between_nodes(tmp_path, using("n1", *few), using("n2", *few))
    nameless = words.replace(", without mlx5_5", "")
    assert bs.diagnose(path, part).otherwise == (nameless.replace("n2", "n1, n2 each"),)
    xml = bs.load(DATA / "nccl_topo/hgx-h100-8nic.xml", nodes=2).select("0-3,8-11")
    assert bs.diagnose(path, xml).otherwise == (words.replace("n2", "n1, n2 each"),)
    path = between_nodes(tmp_path, using("n1", *every), using("n2", *every, "mlx5_bond_0"))
    assert bs.diagnose(path, part).otherwise == ()


def test_channels_that_pass_the_host_s_memory_are_named(tmp_path: Path) -> None:
    """Real lines of NCCL 2.27 but for the names of hosts."""
    direct = "n1:3:3 [3] NCCL INFO Channel 10/0 : 3[3] -> 10[2] [send] via NET/IB/3/GDRDMA"
    path = between_nodes(tmp_path, direct, direct.replace("/GDRDMA", ""), direct.replace("IB/3/GDRDMA", "Socket/0"))
    part = bs.Question("hgx-h200", nodes=2, members="0-3,8-11").part()
    assert bs.diagnose(path, part).otherwise == ("no GPUDirect RDMA over IB/3",)


def four_hosts(tmp_path: Path, slower: float, *messages: str, machine: str = "hgx-h100", hosts: int = 4) -> Path:
    """A log of so many such nodes that takes so many times as long as expected, with these messages."""
    sizes = [2**26, 2**28, 2**30]
    takes = bs.expect(bs.load(machine, nodes=hosts), ["allreduce"], sizes).takes
    points = [Point(one.size, 1e6 * slower * one.time_s, None) for one in takes]
    head, heading, rows = text("allreduce", 8 * hosts, points, hosts=hosts).partition("#     out-of-place")
    path = tmp_path / f"hosts{hosts}.txt"
    gpus = head.replace("NVIDIA H200", "AMD Instinct MI300X") if machine == "mi300x" else head.replace("H200", "H100")
    path.write_text("\n".join((gpus, *messages, f"{heading}{rows}")))
    return path


def test_words_of_a_log_are_those_of_the_library_of_its_machine(tmp_path: Path) -> None:
    path = four_hosts(tmp_path, 8, *OTHERS, "box2:41:97 [0] NCCL INFO Using network Socket", machine="mi300x")
    said = bs.diagnose(path, bs.load("mi300x", nodes=4)).sentence()
    assert said.endswith(" RCCL says: box2 uses sockets")
    assert "NCCL" not in said
    located = bs.locate("mi300x", [path], nodes=4).text()
    assert "RCCL says: box2 uses sockets" in located
    takes = bs.project("mi300x", "allreduce", "256MiB", algorithm="nccl").text()
    assert "\n  RCCL takes  ring, " in takes


NO_RDMA = "GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
EVERY_HCA = "\nbox2:41:97 [0] NCCL INFO ".join(
    f"NET/IB : GPU Direct RDMA Disabled for HCA {n} 'mlx5_{n}'" for n in range(8)
)
OTHERS = [f"box{n}:41:97 [0] NCCL INFO Using network IB" for n in (0, 1, 3)]


@pytest.mark.parametrize(
    ("slower", "message", "words", "kind"),
    [
        (8, "Using network Socket", "uses sockets", "network"),
        (3, "NET/IB : No device found.", "finds no InfiniBand or RoCE adapter", "network"),
        (3, f"NET/IB : {NO_RDMA}", "has GPU Direct RDMA Disabled for 'mlx5_0'", "host"),
        (3, EVERY_HCA, "has GPU Direct RDMA Disabled for 'mlx5_0', 'mlx5_1', … 'mlx5_7'", "host"),
    ],
    ids=["sockets", "no adapter", "one adapter", "all adapters"],
)  # fmt: skip
def test_the_host_that_lacks_something_is_named(
    tmp_path: Path, slower: float, message: str, words: str, kind: str
) -> None:
    """Where not all hosts say so, and where the log is behind, as the fault that `locate` finds."""
    path = four_hosts(tmp_path, slower, *OTHERS, f"box2:41:97 [0] NCCL INFO {message}")
    found = bs.diagnose(path, bs.load("hgx-h100", nodes=4))
    assert found.otherwise == (f"box2 {words}",)
    assert found.sentence().endswith(f" of the bound, and NCCL says: box2 {words}")
    assert "NCCL_ALGO" not in found.resembles
    located = bs.locate("hgx-h100", [path], nodes=4)
    assert (located.status, {one.node for one in located.tied}) == (1, {2})
    assert located.first[0].kind.name == kind
    assert f"NCCL says: box2 {words}" in located.text()


PEER = "Got completion from peer 192.0.2.7<33057> with"


@pytest.mark.parametrize(
    ("said", "words", "place"),
    [
        ("NET/IB : mlx5_5:1 Got async event : port error", "has a port error at mlx5_5", "n2.nic5-fabric5"),
        ("NET/IB: mlx5_5:1 async fatal event: port error", "has a port error at mlx5_5", "n2.nic5-fabric5"),
        ("NET/IB : Got async event : port error", "has a port error at an adapter", ""),
        (f"NET/IB : {PEER} error 12, opcode 0, len 0, vendor err 129 (Recv)",
         "has no answer (status 12) at an adapter", ""),
        (f"NET/IB : {PEER} status=12 opcode=32614 len=9 vendor err 129 (Send) hca mlx5_1",
         "has no answer (status 12) at mlx5_1", "n2.nic1-fabric1"),
        (f"NET/IB: {PEER} status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RECV(129) vendor_err=129 hca mlx5_1",
         "has no answer (status 12) at mlx5_1", "n2.nic1-fabric1"),
    ],
)  # fmt: skip
def test_a_port_that_went_down_is_a_cause(tmp_path: Path, said: str, words: str, place: str) -> None:
    """As every release of NCCL says it; which adapter it is only later ones say."""
    line = f"box2:41:97 [5] transport/net_ib.cc:93 NCCL WARN {said}"
    path = four_hosts(tmp_path, 1.8, *OTHERS, line)
    found, located = bs.diagnose(path, bs.load("hgx-h100", nodes=4)), bs.locate("hgx-h100", [path], nodes=4)
    assert found.sentence().endswith(f", and NCCL says: box2 {words}")
    assert ("check", f"box2 {words}: ibstat; rdma link; ethtool (Speed); ethtool -S (errors)") in found.to_do()
    assert f"NCCL says: box2 {words}" in located.text()
    assert {one.kind.name for one in located.tied} == {"nic"}
    assert {one.node for one in located.tied} == {2}
    assert not place or [one.place for one in located.tied] == [place]
    with path.open("a") as log:
        log.write("box2: Test NCCL failure common.cu:303 'unhandled system error'\n")
    with pytest.raises(InputError, match=f"the run FAILED after .*; box2 {re.escape(words)}; its times"):
        bs.locate("hgx-h100", [path], nodes=4)


def test_what_a_log_excludes_is_no_cause(tmp_path: Path) -> None:
    """All adapters in use, which read the GPUs' memory, at a third of what is expected."""
    causes = {"fewer NICs", "GPUDirect RDMA off", "ACS on", "PFC", "oversubscribed"}
    channel = "box1:3:3 [3] NCCL INFO Channel 10/0 : 3[3] -> 10[2] [send] via NET/IB/3/GDRDMA"
    every = [using(f"box{n}", *(f"mlx5_{port}" for port in range(8))) for n in range(4)]
    whole = ("fewer NICs",)
    for lines, out in (((), ()), (every, whole), ((channel,), ("GPUDirect RDMA off",)), (every[:3], whole)):
        path = four_hosts(tmp_path, 3, *OTHERS, *lines)
        said = [
            words for label, words in bs.diagnose(path, bs.load("hgx-h100", nodes=4)).to_do() if label == "could be"
        ]
        assert {cause for cause in causes if any(words.startswith(cause) for words in said)} == causes - {*out}
    # Beside two hosts that are sound an adapter that is down at another one would explain a log half as slow again.
    sound = four_hosts(tmp_path, 1, *OTHERS[:2], hosts=2)
    for lines in ((), every):
        logs = [four_hosts(tmp_path, 1.5, *OTHERS, *lines), sound]
        kinds = {one.kind.name for one in bs.locate("hgx-h100", logs, nodes=4).candidates}
        assert ("down" in kinds) is (not lines)


@pytest.mark.parametrize(("nodes", "staged"), [(12, True), (16, False)])
def test_a_benchmark_of_oneccl_asks_for_no_benchmark(tmp_path: Path, nodes: int, staged: bool) -> None:
    """Copies through the host's memory are of numbers of nodes that are no power of two."""
    aurora = bs.load("aurora", nodes=nodes)
    takes = bs.expect(aurora, ["allreduce"], [2**26, 2**28, 2**30]).takes
    rows = [f"{one.size} 16 0 0 {4e6 * one.time_s:.2f} 1" for one in takes]
    path, columns = tmp_path / "log.txt", "#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec] stddev[%]"
    path.write_text("\n".join(("# Benchmarking: allreduce", f"# #processes: {aurora.ranks}", columns, *rows)))
    said = [words for label, words in bs.diagnose(path, aurora).to_do() if label == "could be"]
    assert any("switches" in words for words in said)
    assert any("copies" in words for words in said) is staged
    assert not any("framework" in words for words in said)


def test_what_all_hosts_say_is_of_none(tmp_path: Path) -> None:
    """No adapters of InfiniBand on any host is what machines of other networks say."""
    every = [line.replace("IB", "Socket") for line in (*OTHERS, OTHERS[0].replace("box0", "box2"))]
    none = [
        line.replace("Using network IB", "NET/IB : No device found.")
        for line in (*OTHERS, OTHERS[0].replace("box0", "box2"))
    ]
    path = four_hosts(tmp_path, 1, *none, *every)
    assert bs.diagnose(path, bs.load("hgx-h100", nodes=4)).otherwise == ("Using network Socket",)
    assert bs.locate("hgx-h100", [path], nodes=4).status == 0


@pytest.mark.parametrize(("slower", "status"), [(1.0, 5), (1.7, 1), (2.5, 5)])
def test_an_adapter_that_a_host_does_not_use_is_told_by_both_commands(
    tmp_path: Path, slower: float, status: int
) -> None:
    """Seven of eight on one of four hosts take an eighth longer: what is left of the other one slows nothing."""
    names = [f"mlx5_{n}" for n in range(8)]
    used = {n: names if n != 2 else [name for name in names if name != "mlx5_5"] for n in range(4)}
    path = four_hosts(tmp_path, slower, *(using(f"box{n}", *own) for n, own in used.items()))
    words = "box2 uses 7 of 8 adapters, without mlx5_5: 88 % of the ports"
    assert bs.diagnose(path, bs.load("hgx-h100", nodes=4)).otherwise == (words,)
    found = bs.locate("hgx-h100", [path], nodes=4)
    assert f"NCCL says: {words}" in found.text()
    # Within the wide interval of expected times an adapter that is not used does not show; it is no sound machine.
    assert found.status == status
    named = [(one.kind.name, one.place, one.share, one.edits) for one in found.tied if found.faulty]
    assert named == [("down", "n2.nic5-fabric5", 0, ("without n2.nic5-fabric5",))] * (slower == 1.7)
    checks = [said for label, said in bs.diagnose(path, bs.load("hgx-h100", nodes=4)).to_do() if label == "check"]
    assert [said.startswith(f"{words}: ") for said in checks] == [True]
    assert "all nodes" not in checks[0]
    # What a run was told to leave out is no fault of the machine.
    told = "box2:41:97 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_2"
    path = four_hosts(tmp_path, slower, told, *(using(f"box{n}", "mlx5_2") for n in range(4)))
    assert "NCCL says" not in bs.locate("hgx-h100", [path], nodes=4).text()


@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_all_hosts_that_lack_adapters_are_named_the_worst_first(tmp_path: Path, slower: float) -> None:
    """By both commands; a log at three quarters of what is expected is not said to have no fault then."""
    used = {0: 8, 1: 7, 2: 8, 3: 6}
    lines = [using(f"box{n}", *(f"mlx5_{port}" for port in range(ports))) for n, ports in used.items()]
    path = four_hosts(tmp_path, slower, *lines)
    worst = "box3 uses 6 of 8 adapters, without mlx5_6, mlx5_7: 75 % of the ports"
    both = f"{worst}; box1 uses 7 of 8 adapters, without mlx5_7: 88 % of the ports"
    assert bs.diagnose(path, bs.load("hgx-h100", nodes=4)).sentence().endswith(f" NCCL says: {both}")
    found = bs.locate("hgx-h100", [path], nodes=4)
    assert (found.status, "no fault" in found.text()) == (5, False)
    assert f"NCCL says: {both}" in found.text()
