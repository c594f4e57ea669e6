"""What the command line says of NCCL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import blinksim as bs
from blinksim.cli.main import run
from blinksim.machines import load
from blinksim.nccl.tuner.tuner import predict
from blinksim.units import format_time

GRAPH = "tests/data/captures/h200x8/graph.xml"
TOPO = "tests/data/captures/h200x8/topo.xml"


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 2) -> str:
    assert run(list(arguments)) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_nccl_does_not_relay(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(
        capsys,
        "project",
        "dgx1-v100",
        "allreduce",
        "1GiB",
        "--members",
        "0,5",
        "--algorithm",
        "nccl",
        "--rates",
        "nccl",
    )
    assert found["algorithm"] == "nccl"
    assert found["model"] == "nccl-tuner"
    assert (found["channels"], found["channel_GBps"], found["type_intra"]) == (1, 6.0, "SYS")
    assert found["busbw_GBps"] == pytest.approx(6, rel=1e-3)
    assert found["channel_orders"] == [["gpu0", "gpu5"]]


def test_the_rates_are_nccls_unless_others_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked_for = ("project", "dgx1-v100", "allreduce", "1GiB", "--model", "nccl-tuner")
    assert asked(capsys, *asked_for)["rates"] == "nccl"
    assert asked(capsys, *asked_for, "--rates", "nominal")["rates"] == "nominal"


def test_all_ranks_what_nccl_could_take(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "project", "hgx-h200", "allreduce", "1GiB", "--model", "nccl-tuner", "--algorithm", "all")
    assert found["rows"][0]["algorithm"] == "nvls/Simple"
    assert found["time_s"] == pytest.approx(3972e-6, rel=1e-3)
    without = asked(capsys, "project", "hgx-h200", "allreduce", "1GiB", "--algorithm", "nccl", "--no-nvls")
    assert without["nccl_algorithm"] == "ring"
    assert run(["project", "hgx-h200", "allreduce", "1GiB", "--model", "nccl-tuner", "--algorithm", "all"]) == 0
    assert "NCCL takes  nvls, Simple protocol" in capsys.readouterr().out


def test_a_graph_file_takes_the_place_of_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("project", TOPO, "broadcast", "1GiB", "--algorithm", "nccl")
    searched, read = asked(capsys, *common), asked(capsys, *common, "--nccl-graph", GRAPH)
    assert read["time_s"] == searched["time_s"]
    assert len(read["channel_orders"]) == 12


@pytest.mark.slow
def test_a_thousand_nodes_cost_no_more_than_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "project", "dgx1-v100", "allreduce", "1GiB", "--algorithm", "nccl", "--nodes", "1000")
    assert len(found["members"]) == 8000
    assert found["nccl_algorithm"] == "tree"
    few = asked(capsys, "project", "dgx1-v100", "allreduce", "1GiB", "--algorithm", "nccl", "--nodes", "2")
    edited = asked(
        capsys, "project", "dgx1-v100", "allreduce", "1GiB", "--algorithm", "nccl", "--nodes", "2",
        "--members", ",".join(str(i) for i in range(16)),
    )  # fmt: skip
    assert edited["time_s"] == few["time_s"]
    assert edited["members"] == few["members"]


def test_packing_beside_nccl(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(
        capsys, "compare", "dgx1-v100", "allreduce", "--members", "1,4,5,7", "--sizes", "1GiB", "--algorithms",
        "nccl,chains,packed", "--rates", "nccl",
    )  # fmt: skip
    rate = {row["algorithm"]: row["algbw_GBps"] for row in found["rows"]}
    assert found["rates"] == "nccl"
    assert rate["packed"] > 1.3 * rate["nccl"]


@pytest.mark.parametrize(
    ("arguments", "says", "status"),
    [
        (("alltoall", "1MiB", "--algorithm", "nccl"), "alltoall", 3),
        (("allreduce", "1MiB", "--nccl-graph", "x.xml"), "--algorithm nccl", 2),
        (("allreduce", "1MiB", "--algorithm", "nccl", "--nccl-version", "2.28.4"), "2.28.3", 2),
        (("allreduce", "1MiB", "--algorithm", "nccl", "--members", "0,1", "--relays", "3"), "does not relay", 2),
        (("allreduce", "1MiB", "--algorithm", "nccl", "--links", "all"), "rules of its own", 2),
        (("allreduce", "1MiB", "--algorithm", "ring", "--model", "nccl-tuner"), "NCCL's own", 2),
        (("allreduce", "1MiB", "--algorithm", "nccl", "--model", "projection"), "NCCL's own model", 2),
        (("allreduce", "1MiB", "--algorithm", "nccl", "--what-if"), "--what-if", 2),
        (("allreduce", "1MiB", "--algorithm", "nccl", "--nccl-graph", "no-such.xml"), "no-such.xml", 2),
        (("broadcast", "1MiB", "--algorithm", "nccl", "--root", "8"), "root 8", 2),
    ],
)
def test_what_cannot_be_asked_of_nccl(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str, status: int
) -> None:
    assert says in refused(capsys, "project", "dgx1-v100", *arguments, status=status)


@pytest.mark.slow
def test_nccls_ring_and_tree_are_compared_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One model is a comparison like any other: who leads from which size, by NCCL's words, with a picture."""
    words = ("compare", "p5.48xlarge", "allreduce", "--nodes", "8", "--model", "nccl-tuner", "--sizes", "1MiB:2GiB:x16")
    found = asked(capsys, *words)
    rows = found["rows"]
    prediction = predict(load("p5.48xlarge", nodes=8, rates="nccl"))
    for row in rows:
        timed = [t.time_s for t in prediction.times("allreduce", row["size_bytes"]) if t.algorithm == row["algorithm"]]
        assert row["time_s"] == pytest.approx(min(timed), rel=1e-12)
    assert {row["algorithm"] for row in rows} >= {"ring", "tree"}
    assert {row["rates"] for row in rows} == {"nccl"}
    leads = {row["size_bytes"]: row for row in rows if row["best"]}
    assert all(row["nccl_takes"].split()[0] == row["algorithm"] for row in leads.values())
    picture = tmp_path / "ring-or-tree.svg"
    assert run([*words, "--algorithms", "ring,tree", "--plot", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("allreduce on 8 x p5.48xlarge: tree is quickest")
    assert "model nccl-tuner" in shown
    assert picture.exists()


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (("allreduce", "--algorithms", "chain"), "has no chain", 3),
        (("alltoall",), "times no alltoall", 3),
        (("allreduce", "--links", "nvlink"), "leave --links nvlink out", 2),
        (("allreduce", "--relays", "idle", "--members", "0,1"), "does not relay", 2),
    ],
)
def test_what_nccls_model_cannot_compare(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str, status: int
) -> None:
    assert run(["compare", "dgx1-v100", *words, "--sizes", "1MiB", "--model", "nccl-tuner"]) == status
    assert said in capsys.readouterr().err


def test_the_measured_time_stands_beside_nccls_own(capsys: pytest.CaptureFixture[str]) -> None:
    """8 H200 without NVLS took 5.23 ms (validate/results); NCCL's own figure stays the answer's time."""
    found = asked(capsys, "project", "hgx-h200", "allreduce", "1GiB", "--algorithm", "nccl", "--no-nvls")
    assert found["time_s"] == pytest.approx(5.276e-3, rel=1e-3)
    assert found["measured_time_s"] == pytest.approx(5.23e-3, rel=0.03)
    assert sum(term["time_s"] for term in found["measured_terms"]) == pytest.approx(found["measured_time_s"])
    assert found["measured_busbw_GBps"] == pytest.approx(1.75 * 2**30 / found["measured_time_s"] / 1e9)
    assert found["measured_low_s"] < 5.23e-3 < found["measured_high_s"]
    assert run(["project", "hgx-h200", "allreduce", "1GiB", "--algorithm", "nccl", "--no-nvls"]) == 0
    text = capsys.readouterr().out
    assert "takes 5.276 ms" in text
    assert "measured" not in text


def test_channels_change_the_measured_time_only(capsys: pytest.CaptureFixture[str]) -> None:
    """A channel of Simple carries 26 GB/s: eight of them took 9.25 ms on 8 H200."""
    asked_for = ("project", "hgx-h200", "allreduce", "1GiB", "--algorithm", "nccl", "--no-nvls")
    few, usual = asked(capsys, *asked_for, "--channels", "8"), asked(capsys, *asked_for)
    assert few["time_s"] == usual["time_s"]
    assert few["measured_time_s"] == pytest.approx(9.25e-3, rel=0.03)
    assert few["measured_channels"] == 8
    assert "channels=4 changes" not in refused(
        capsys, "project", "dgx1-v100", "allreduce", "1GiB", "--algorithm", "nccl", "--channels", "4", status=3
    )
    assert "1<=x<=64" in refused(capsys, *asked_for, "--channels", "65")
    assert "--channels is not about the machine as it is; say --algorithm nccl" in refused(
        capsys, "project", "hgx-h200", "allreduce", "1GiB", "--channels", "8"
    )


def test_a_comparison_says_what_nccl_takes(capsys: pytest.CaptureFixture[str]) -> None:
    asked_for = ("compare", "hgx-h200", "allreduce", "--sizes", "1MiB,1GiB", "--algorithms", "nccl,ring", "--no-nvls")
    rows = asked(capsys, *asked_for)["rows"]
    assert [bool(row["nccl_takes"]) for row in rows] == [row["algorithm"] == "nccl" for row in rows]
    assert run(list(asked_for)) == 0
    assert "NCCL takes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (("gaudi3",), "collectives of gpu0 are run by hccl, not by NCCL"),
        (("mi300x", "--nodes", "2"), "between nodes RCCL has channels of its own"),
    ],
)
def test_what_nccl_chooses_is_refused_where_it_does_not_run(
    machine: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *nodes = machine
    assert says in refused(capsys, "project", name, "allreduce", "64MiB", *nodes, "--algorithm", "nccl", status=3)


def test_machines_without_figures_of_nccl_are_asked_at_nominal_rates(capsys: pytest.CaptureFixture[str]) -> None:
    asked_for = ("project", "mi300x", "allreduce", "64MiB", "--algorithm", "nccl")
    found = asked(capsys, *asked_for)
    assert found["rates"] == "nominal"
    assert found == asked(capsys, *asked_for, "--rates", "nominal")


def test_a_graph_file_with_a_byte_order_mark_is_refused_as_nccl_refuses_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = bs.synthesize(bs.load("dgx1-v100").select("0-3"), "allreduce", "chains").schedule
    text = bs.export(made, "nccl-graph").files[""]
    for name, data, status, said in (
        ("plain.xml", text.encode(), 0, "used by NCCL"),
        ("marked.xml", b"\xef\xbb\xbf" + text.encode(), 1, "expecting '<'"),
    ):
        (tmp_path / name).write_bytes(data)
        assert run(["verify", str(tmp_path / name), "--machine", "dgx1-v100", "--members", "0-3"]) == status
        assert said in capsys.readouterr().out
        given = ["--algorithm", "nccl", "--nccl-graph", str(tmp_path / name)]
        assert run(["project", "dgx1-v100", "allreduce", "1MiB", "--members", "0-3", *given]) == 2 * status
        assert (said in capsys.readouterr().err) == (status == 1)


@pytest.mark.parametrize(
    "machine", [["dgx1-v100", "--members", "0,1,2,3,4,7"], ["dgx1-v100", "--edit", "without gpu0-gpu3"]]
)
def test_a_file_has_the_time_that_advise_says_of_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, machine: list[str]
) -> None:
    path = tmp_path / "load.xml"
    assert run(["advise", *machine, "-o", str(path), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    question = ["project", machine[0], "allreduce", "256MiB", *machine[1:], "--algorithm", "nccl"]
    assert run([*question, "--nccl-graph", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured_time_s"] == pytest.approx(advice["load"]["time_s"], rel=1e-6)
    assert run([*question, "--nccl-graph", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said.startswith(f"NCCL takes {format_time(advice['load']['time_s'])} by tree Simple with the graph file")


@pytest.mark.parametrize("size", ["64KiB", "1GiB"])
def test_what_the_tuner_chooses_from_stands_beside_its_choice(capsys: pytest.CaptureFixture[str], size: str) -> None:
    found = asked(capsys, "project", "hgx-h100", "allreduce", size, "--algorithm", "nccl")
    expected = found["nccl_expects_s"]
    assert len(expected) > 5
    assert list(expected.values()) == sorted(expected.values())
    taken = f"{found['nccl_algorithm']} {found['nccl_protocol']}"
    assert (next(iter(expected)), expected[taken]) == (taken, pytest.approx(found["time_s"]))
