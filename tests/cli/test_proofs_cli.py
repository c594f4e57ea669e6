"""Bounds, placements, schedules and their proofs on the command line, down to corrupted files."""

from __future__ import annotations

import csv
import json
import random
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import blinksim as bs
from blinksim import machines
from blinksim.cli.main import run
from blinksim.formats import machine_yaml

GOLDEN = Path(__file__).parents[1] / "golden"


def answer(capsys: pytest.CaptureFixture[str], line: list[str], status: int = 0) -> str:
    assert run(line) == status
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *line: str, status: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(capsys, [*line, "--json"], status))
    return found


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("p3.16xlarge allgather --links nvlink", "1200/7"),
        ("p3.16xlarge allreduce --links nvlink --members 0,1,2,3,4,7", "125/2"),
        ("p3.16xlarge alltoall --links nvlink", "75"),
        ("dgx-a100 allgather --nodes 2", "1040/3"),
        ("dgx-a100 allgather --nodes 4", "800/3"),
        ("dgx-a100 allgather --nodes 16", "640/3"),
        ("aurora allreduce --links xe,mdfi --rates seed", "90"),
        ("dgx1-v100 broadcast --root 5", "150"),
    ],
)
def test_published_bounds(capsys: pytest.CaptureFixture[str], line: str, rate: str) -> None:
    found = as_json(capsys, "bound", *line.split())
    assert found["rate_exact"] == rate
    assert found["checked"] is True
    assert {"rate_exact", "scope", "bounds", "trees_per_root", "algbw_GBps", "command", "machine", "rates"} <= set(
        found
    )
    assert all(entry["checked"] for entry in found["bounds"])
    keys = {"scope", "rate_exact", "algbw_GBps", "certificate", "checked"}
    assert all(keys <= set(entry) for entry in found["bounds"])


def test_a_degraded_link(capsys: pytest.CaptureFixture[str]) -> None:
    edit = ("--links", "nvlink", "--edit", "degrade gpu0-gpu3 lanes=1")
    assert as_json(capsys, "bound", "p3.16xlarge", "allgather", *edit)["rate_exact"] == "1000/7"
    assert as_json(capsys, "bound", "p3.16xlarge", "allreduce", *edit)["rate_exact"] == "575/7"


def test_reduce_scatter_and_allgather_is_less(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "bound", "dgx1-v100", "allreduce", "--members", "0,1,2,3,4,7")
    assert [(entry["scope"], entry["rate_exact"]) for entry in found["bounds"]] == [
        ("partition", "125/2"),
        ("reduce-scatter + allgather", "45"),
        ("cut", "75"),
    ]


def test_other_names_and_another_order_change_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = machine_yaml.write(machines.load("p3.16xlarge").degrade("gpu0-gpu3", lanes=1))
    names = [f"gpu{i}" for i in range(8)]
    shuffled = random.Random(4).sample(names, 8)
    for old, new in zip(names, shuffled, strict=True):
        text = text.replace(old, f"@{new[3:]}@")
    for digit in range(8):
        text = text.replace(f"@{digit}@", f"gpu{digit}")
    machine = tmp_path / "shuffled.yaml"
    machine.write_text(text)
    found = as_json(capsys, "bound", str(machine), "allgather", "--links", "nvlink")
    assert found["rate_exact"] == "1000/7"
    assert as_json(capsys, "bound", str(machine), "allreduce", "--links", "nvlink")["rate_exact"] == "575/7"


def test_unconnected_members_and_relays(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bound", "dgx1-v100", "allreduce", "--members", "0,5"]) == 3
    assert "gpu0 | gpu5" in capsys.readouterr().err
    with_relays = as_json(capsys, "bound", "dgx1-v100", "allreduce", "--members", "0,5", "--relays", "idle")
    assert with_relays["rate_exact"] == "150"
    assert len(with_relays["relays"]) == 6


@pytest.mark.parametrize("size", ["1KiB", "1MiB", "1GiB"])
@pytest.mark.parametrize(
    "machine", ["aurora --links xe,mdfi --rates seed", "dgx1-v100 --members 0,1,2,3,4,7", "dgx-a100 --nodes 2"]
)
def test_no_projection_beats_the_bound(capsys: pytest.CaptureFixture[str], machine: str, size: str) -> None:
    name, *options = machine.split()
    for collective in ("allreduce", "allgather", "broadcast"):
        best = as_json(capsys, "bound", name, collective, *options)["algbw_GBps"]
        rows = as_json(capsys, "project", name, collective, size, *options, "--algorithm", "all")["rows"]
        assert all(row["algbw_GBps"] <= best * (1 + 1e-9) for row in rows)


def test_links_that_are_alike_are_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "bound", "torus:4x4", "allreduce", "--losses")
    assert "alike" in answer(capsys, ["bound", "torus:4x4", "allreduce", "--losses"])
    # A torus of 4 x 4 has 32 links, and each is the image of any other.
    [lost] = [row for row in found["losses"] if row["change"].endswith(" lost")]
    assert len(lost["links"]) == 32


def test_losses_and_gains(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "bound", "dgx1-v100", "allreduce", "--members", "0,1,2,3", "--losses", "--gains")
    assert found["losses"][0]["algbw_GBps"] < found["algbw_GBps"]
    lost = [row for row in found["losses"] if row["change"].endswith(" lost")]
    assert sorted(link for row in lost for link in row["links"]) == sorted(
        {link for row in lost for link in row["links"]}
    )
    assert sum(len(row["links"]) for row in lost) == 6
    assert all(row["algbw_GBps"] >= found["algbw_GBps"] for row in found["gains"])
    whole = as_json(capsys, "bound", "dgx1-v100", "allreduce", "--losses")["losses"]
    rows = [row for row in whole if row["change"].endswith(" lost")]
    # Nash-Williams and Tutte: 24 lanes of 25 GB/s, both ways, over 2 x 7, less those of the pair that is lost.
    expected = {
        f"{row['node_a']}-{row['node_b']} (nvlink) lost": Fraction(2 * 25 * (24 - int(row["kind"][-1])), 14)
        for row in csv.DictReader((GOLDEN / "links_dgx1v.csv").read_text().splitlines())
        if row["kind"].startswith("nvlink x")
    }
    assert {f"{link} lost": Fraction(row["rate_exact"]) for row in rows for link in row["links"]} == expected
    assert [Fraction(row["rate_exact"]) for row in whole] == sorted(Fraction(row["rate_exact"]) for row in whole)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: d.update(rate_exact="1201/7"), "rate_exact"),
        (lambda d: d["bounds"][0].update(rate_exact="1201/7"), "1201/7"),
        (lambda d: d["bounds"][0]["certificate"].update(capacity_exact="151"), "'151', and must be '150'"),
        (lambda d: d["bounds"][0]["certificate"]["side"].append("gpu0"), "nothing has to leave"),
        (lambda d: d["bounds"][0]["certificate"]["side"].pop(), ""),
        (lambda d: d["bounds"][0]["certificate"].update(ranks_inside=6), "6"),
        (lambda d: d["bounds"][0]["certificate"]["links"].pop(), "link"),
        (lambda d: d.update(edits=["degrade gpu0-gpu3 lanes=1"]), ""),
        (lambda d: d["members"].pop(), ""),
        (lambda d: d["bounds"][0]["certificate"].update(capacity_exact="1e99999999"), "'1e99999999', and must be"),
    ],
)
def test_corrupted_bounds_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, damage: Any, said: str
) -> None:
    document = as_json(capsys, "bound", "p3.16xlarge", "allgather", "--links", "nvlink")
    file = tmp_path / "bound.json"
    file.write_text(json.dumps(document))
    assert "right" in answer(capsys, ["verify", str(file)])
    damage(document)
    file.write_text(json.dumps(document))
    found = as_json(capsys, "verify", str(file), status=1)
    assert found["ok"] is False
    assert said in " ".join(found["reasons"])


def test_place(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "place", "dgx1-v100", "4")
    assert [row["members"] for row in found["rows"][:2]] == [
        ["gpu0", "gpu1", "gpu2", "gpu3"],
        ["gpu4", "gpu5", "gpu6", "gpu7"],
    ]
    # Three lanes of 25 GB/s in the two quads, less elsewhere.
    assert [row["rate_exact"] for row in found["rows"][:3]] == ["75", "75", "175/3"]
    assert len(found["rows"]) == 70
    assert sum(row["connected"] for row in found["rows"]) == 56


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ('"allreduce"', '"allreuce"', "unknown collective 'allreuce'"),
        ('"gpu7"', '"gpu77"', "unknown device 'gpu77'"),
        ('"nvlink"', '"nvlnk"', "unknown link class of dgx1-v100: 'nvlnk'"),
        ('"source":"dgx1-v100"', '"source":"dgx1-v10"', "unknown machine 'dgx1-v10'"),
    ],
)
def test_what_is_wrong_in_a_bound_is_blamed_on_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, written: str, instead: str, message: str
) -> None:
    file = tmp_path / "b.json"
    text = json.dumps(as_json(capsys, "bound", "dgx1-v100", "allreduce"), separators=(",", ":"))
    assert written in text
    file.write_text(text.replace(written, instead))
    assert run(["verify", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"blinksim: {file}: {message}")


@pytest.mark.parametrize(("abilities", "more"), [("reduce", 50), ("reduce_into_reader", 40)])
def test_a_schedule_is_the_best_only_where_switches_could_do_no_more(
    capsys: pytest.CaptureFixture[str], abilities: str, more: int
) -> None:
    line = ["synth", "switch:4@50GB/s", "allreduce", "--edit", f"switch can=forward,multicast,{abilities}"]
    said = answer(capsys, line)
    assert "100/3 GB/s algbw (33.33 GB/s), the best if switches only forward\n" in said
    assert f"at most {more} GB/s\n" in said
    found = as_json(capsys, *line)
    assert (found["gap_exact"], found["bounds"][-1]["rate_exact"]) == ("0", str(more))
    added = answer(capsys, [*line, "--algorithm", "packed_in_network"])
    assert f"by packed_in_network: {more} GB/s algbw, the best that is possible\n" in added
    assert "33.33 GB/s), the best that is possible" in answer(capsys, ["synth", "switch:4@50GB/s", "allreduce"])


def test_synth_verify_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "s.json")
    made = as_json(capsys, "synth", "dgx1-v100", "allreduce", "--algorithm", "ring", "-o", file)
    assert made["gap_exact"] == "0"
    keys = {"algorithm", "trees", "height", "hops", "gap_exact", "synthesis_s", "verified", "rate_exact", "bounds"}
    assert keys <= set(made)
    assert as_json(capsys, "verify", file)["ok"] is True
    line = ["run", file, "1000003", "--executor", "numpy", "--op", "prod", "--dtype", "int32", "--check"]
    assert "correct" in answer(capsys, line)
    broken = answer(capsys, ["verify", file, "--edit", "without gpu0-gpu3"], status=1)
    assert "gpu0->gpu3 (nvlink)" in broken
    assert run(["synth", "dgx1-v100", "allreduce", "--algorithm", "ring", "-o", file]) == 2
    assert "--force" in capsys.readouterr().err


def test_an_edited_parent_is_refused_and_gives_wrong_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    answer(capsys, ["synth", "switch:4", "broadcast", "--algorithm", "binary", "-o", str(file)])
    document = json.loads(file.read_text())
    # Let rank 1's parent be rank 3, its own child.
    first = document["dst"].index(1)
    document["src"][first] = 3
    file.write_text(json.dumps(document))
    assert as_json(capsys, "verify", str(file), status=1)["ok"] is False
    assert "WRONG" in answer(capsys, ["run", str(file), "4096", "--check"], status=1)


def test_other_files_are_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, text in {
        "empty.json": "",
        "list.json": "[]",
        "other.json": "{}",
        "half.json": '{"format": "blin',
    }.items():
        file = tmp_path / name
        file.write_text(text)
        assert run(["verify", str(file)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_options_of_an_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    one = as_json(capsys, "synth", "dgx1-v100", "allgather", "--trees", "1")
    assert one["rate_exact"] == "400/3"
    assert one["gap_exact"] == "2/9"
    assert "--trees 1" in answer(capsys, ["synth", "dgx1-v100", "allgather", "--trees", "1"]).splitlines()[-1]
    more = as_json(capsys, "synth", "dgx1-v100", "allreduce", "--algorithm", "chains", "--channels", "24")
    assert (more["trees"], more["gap_exact"]) == (24, "0")
    assert run(["synth", "dgx1-v100", "allreduce", "--algorithm", "ring", "--channels", "3"]) == 2
    assert "ring takes no --channels" in capsys.readouterr().err
    assert "packed" in answer(capsys, ["synth", "--list"])


def test_polishing_gives_lower_and_fewer_trees(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "synth", "dgx1-p100", "broadcast", "--polish", "2")
    assert found["gap_exact"] == "0"
    assert found["verified"] is True
    rows = [(row["rate_exact"], row["height"], row["trees"]) for row in found["front"]]
    # One lane at height 2, four at height 3: the bound.
    assert rows == [("20", 2, 1), ("80", 3, 4)]


def test_ctrl_c_while_polishing_keeps_what_is_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blinksim.answers import synthesize

    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(synthesize, "polish", interrupt)
    file = tmp_path / "best.json"
    line = ["synth", "dgx1-v100", "allgather", "--polish", "60", "-o", str(file)]
    assert "this is the best so far" in answer(capsys, line, status=130)
    assert as_json(capsys, "verify", str(file))["gap_exact"] == "0"


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100", "hgx-b200", "dgx1-v100", "mi300x", "rtx-pro-6000-pcie"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast", "alltoall"])
def test_python_leads_with_what_the_command_line_says_first(
    machine: str, collective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bound", machine, collective]) == 0
    first, found = capsys.readouterr().out.splitlines()[0], bs.bound(machine, collective)
    for text in (first, found.sentence(), repr(found).splitlines()[0]):
        said = re.search(r"at most ([0-9./]+) GB/s", text)
        assert said is not None
        assert Fraction(said[1]) * 10**9 == found.most == found.leading.rate
    # Both figures are named, and JSON has them too; it says of which switches `rate` is.
    assert f"\n  GB/s: most {found.most / 10**9}, rate {found.rate / 10**9}; " in repr(found)
    told = found.to_dict()
    assert Fraction(told["most_exact"]) * 10**9 == found.most
    assert told["most_GBps"] == found.leading.rate_GBps
    assert (told["rate_exact"], told["algbw_GBps"]) == (str(found.rate / 10**9), found.rate_GBps)
    # Switches that do more never allow less.
    assert found.rate == found.headline.rate <= found.most
    assert (found.most > found.rate) == bool(found.leading.grants)
    projected = bs.project(machine, collective, "1GiB")
    assert projected.algbw <= found.most
