"""Machines side by side, and calls in buckets: each figure is that of the question by itself."""

from __future__ import annotations

import csv
import json
import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import blinksim as bs
from blinksim.answers.project import Answer
from blinksim.cli.main import run
from blinksim.errors import InfeasibleError, InputError
from blinksim.topology.shapes import names_of
from blinksim.units import format_size

_LISTED = (
    "rails:4x8@450GB/s,50GB/s",
    "fattree:4x8@300GB/s, 50e1Gbps ,2:1",
    "fattree:4x8@2:1",
    "ring:4@25GB/s,2.5us",
    "8xp5",
    "2x4.yaml",
    "hgx-h100",
)


def test_lists_of_machines_are_read_back() -> None:
    for few in range(1, 5):
        for names in permutations(_LISTED, few):
            assert names_of(", ".join(names)) == [*names]


@pytest.mark.parametrize("shape", _LISTED[:2])
def test_a_shape_with_several_figures_is_one_machine(capsys: pytest.CaptureFixture[str], shape: str) -> None:
    assert run(["project", shape, "allreduce", "64MiB"]) == 0
    [following] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next:")]
    words = shlex.split(following)[2:]
    assert words[0] == "compare"
    assert run([*words[: words.index("--plot")], "--sizes", "64MiB"]) == 0
    assert f" GPUs of {shape}: 64 MiB takes " in capsys.readouterr().out
    assert run(["compare", f"{shape},p5", "allreduce", "--sizes", "64MiB", "--price", f"{shape}=3,p5=2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["machine"] for row in rows] == [shape, "p5"]
    assert rows[0]["busbw_per_price"] == pytest.approx(rows[0]["busbw_GBps"] / (3 / 8))


def test_each_machine_answers_as_by_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "two.svg"
    words = ["compare", "hgx-h100,dgx-a100", "allreduce", "--sizes", "1MiB,1GiB", "--price", "dgx-a100=16"]
    assert run([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    for row in rows:
        alone = bs.project(row["machine"], "allreduce", row["size_bytes"])
        assert row["time_s"] == alone.time_s
        # A GPU costs 2 an hour.
        worth = alone.busbw_GBps / 2 if row["machine"] == "dgx-a100" else None
        assert row["busbw_per_price"] == (None if worth is None else pytest.approx(worth))
    assert len(rows) == 4
    assert run([*words, "--plot", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("allreduce of 1 GiB: hgx-h100 is quickest, ")
    assert "GB/s per unit of price" in shown
    [large] = [line.split() for line in shown.splitlines() if line.split()[:3] == ["1", "GiB", "dgx-a100"]]
    assert large[-1] == f"{rows[-1]['busbw_per_price']:.4g}"
    # Of machines without a price nobody knows what they have for the money.
    assert shown.rstrip().endswith(("busbw over what a GPU costs an hour", "two.svg"))
    assert picture.exists()
    assert run([*words, "--price", "hgx-h100=800"]) == 0
    assert capsys.readouterr().out.partition("\n")[0].endswith("; dgx-a100 has most for the money")
    near = bs.compare_machines(["p5", "p5en"], "allreduce", ["1GiB"], nodes=2, prices={"p5": 84, "p5en": 98})
    [p5, p5en] = [near.answers[name][-1] for name in ("p5", "p5en")]
    low, high = (busbw * 84 / 98 for busbw in (p5en.busbw_GBps, p5en.busbw_GBps * p5en.time_s / p5en.low_s))
    assert low < p5.busbw_GBps < high
    assert near.sentence().endswith("; p5 has most for the money, but intervals do not tell it from that of p5en")


def test_headline_names_all_whose_intervals_overlap() -> None:
    overlapping = bs.compare_machines(["p5", "p5en"], "allreduce", ["1GiB"], nodes=2)
    slower, quicker = (overlapping.answers[name][-1] for name in ("p5en", "p5"))
    # Nobody has published times of p5en: what p5 takes is enough for it.
    assert quicker.time_s == slower.time_s
    assert slower.low_s < quicker.high_s
    winners = "p5 4.575 ms or p5en 4.575 ms"
    assert overlapping.sentence() == f"allreduce of 1 GiB: no clear winner: {winners}, as intervals overlap"
    three = bs.compare_machines(["hgx-h100", "hgx-h200", "mi300x"], "allreduce", ["256MiB"])
    assert " no clear winner: hgx-h200 1.055 ms or hgx-h100 1.09 ms, as" in three.sentence()
    other_sizes = bs.compare_machines(["hgx-h100", "gb200-nvl72"], "alltoall", ["1GiB"])
    assert "gb200-nvl72 (72 GPUs)" in other_sizes.sentence()
    # All are marked that the headline names: intervals do not tell which takes least.
    # Where no machine is behind, a mark at each would tell nothing.
    assert not any(" *  " in line for line in overlapping.text().splitlines())
    marked = [line.split()[2] for line in three.text().splitlines() if " *  " in line]
    assert marked == ["hgx-h100", "hgx-h200"]
    by_size = bs.compare_machines(["gaudi3", "hgx-h100", "dgx-a100"], "allreduce", ["16MiB", "1GiB"])
    for line in by_size.text().splitlines()[3:9]:
        at, name = {"MiB": 0, "GiB": 1}[line.split()[1]], line.split()[2]
        best = min((answers[at] for answers in by_size.answers.values()), key=lambda one: one.time_s)
        one = by_size.answers[name][at]
        assert (" *  " in line) == (one is best or one.low_s < best.time_s or one.time_s < best.high_s), line


def test_the_next_question_keeps_prices_and_what_the_library_may() -> None:
    asked = "compare p5,p5en allreduce --nodes 2 --sizes 1MiB --price p5=55 --price p5en=60 --no-nvls"
    with redirect_stdout(StringIO()) as out:
        assert run(asked.split()) == 0
    assert out.getvalue().splitlines()[-1] == f"next: blinksim {asked} --plot machines.png"


@pytest.mark.parametrize(
    ("machines", "nodes", "prices", "costs"),
    [
        (["p5", "hgx-h100"], 2, {"2xp5": 55}, {"p5": 55}),
        (["2xp5", "2xhgx-h100"], 1, {"p5": 55, "2xhgx-h100": 60}, {"p5": 55, "hgx-h100": 60}),
        (["2xp5", "hgx-h100"], 1, {"p5": 55, "1xhgx-h100": 60}, {"2xp5": 55, "1xhgx-h100": 60}),
        (["2xp5", "1xp5"], 1, {"p5": 55}, {"2xp5": 55, "1xp5": 55}),
    ],
)
def test_prices_go_by_the_name_with_its_nodes_or_without(
    machines: list[str], nodes: int, prices: dict[str, float], costs: dict[str, float]
) -> None:
    """Per node and hour in either way."""
    found = bs.compare_machines(machines, "allreduce", ["1MiB"], nodes=nodes, prices=prices)
    assert found.prices == costs
    for row in found.rows():
        cost = costs.get(row["machine"])
        assert row["busbw_per_price"] == (cost and pytest.approx(row["busbw_GBps"] * 8 / cost))


def test_default_sizes_of_several_machines_fit_a_screen() -> None:
    found = bs.compare_machines(["hgx-h100", "dgx-a100", "hgx-h200"], "allreduce")
    sizes = [one.size for one in found.answers["hgx-h100"]]
    assert sizes == [2**power for power in (10, 14, 18, 22, 26, 30)]
    assert len(found.rows()) <= 24


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "p5,p5", "allreduce"], "name at least two, each once"),
        (["compare", "p5,p5en", "allreduce", "--price", "p4d=3"], "there are prices of p4d"),
        (["compare", "p5,p5en", "allreduce", "--price", "2xp5=3"], "there are prices of 2xp5"),
        (["compare", "p5,p5en", "allreduce", "--price", "p5=3", "--price", "1xp5=4"], "p5 has two prices; give one"),
        (["compare", "p5,p5en", "allreduce", "--price", "p5=0"], "the price of a node is a number above 0"),
        (["compare", "p5,p5en", "allreduce", "--price", "p5"], "write it like --price p5=55.04"),
        (["compare", "p5,p5en", "allreduce", "--algorithms", "ring"], "leave algorithms and models out"),
        (["compare", "p5", "allreduce", "--price", "p5=3"], "name several"),
        (["project", "p5", "allreduce", "--bytes", "14GB"], "give both"),
        (["project", "p5", "allreduce", "--bytes", "1MB", "--bucket", "1GB"], "more than all bytes"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert run([*words, *(["--sizes", "1MiB"] if words[0] == "compare" else [])]) == 2
    assert said in capsys.readouterr().err


def test_buckets_are_as_many_calls(capsys: pytest.CaptureFixture[str]) -> None:
    found = bs.buckets("hgx-h100", "allreduce", "14GB", "25MiB")
    one, rest = (bs.project("hgx-h100", "allreduce", size) for size in ("25MiB", 14 * 10**9 - 534 * 25 * 2**20))
    first, last = found.rows()[0], found.rows()[-1]
    assert first["calls"] == -(-14 * 10**9 // (25 * 2**20)) == 535
    assert first["time_s"] == pytest.approx(534 * one.time_s + rest.time_s)
    assert (last["calls"], last["bucket_bytes"]) == (1, 14 * 10**9)
    as_good = [row["bucket_bytes"] for row in found.rows() if row["time_s"] <= 1.1 * last["time_s"]]
    assert found.best.size == min(as_good)
    assert run(["project", "hgx-h100", "allreduce", "--bytes", "14GB", "--bucket", "25MiB"]) == 0
    assert capsys.readouterr().out.startswith("14 GB in 535 allreduce calls of 25 MiB with NCCL: ")
    poorer = bs.buckets(bs.Question("hgx-h100", edits=("without gpu3",)), "allreduce", "14GB", "25MiB")
    assert "edited            without gpu3" in poorer.text()
    asked = ["project", "hgx-h100", "allreduce", "--bytes", "14GB", "--bucket", "25MiB", "--edit", "without gpu3"]
    assert run([*asked, "--before"]) == 2
    alone = "blinksim project hgx-h100 allreduce --edit 'without gpu3' 25MiB --before"
    assert capsys.readouterr().err.endswith(f"--before is about one call: {alone}\n")
    assert run(["bound", "hgx-h100", "allreduce", "--bytes", "14GB", "--bucket", "25MiB"]) == 2
    assert "project and compare take it: blinksim project hgx-h100 allreduce" in capsys.readouterr().err


def test_the_text_of_many_calls_says_where_its_times_come_from() -> None:
    found = bs.buckets("hgx-h100", "allreduce", "14GB", "25MiB")
    rows = {row["bucket_bytes"]: row for row in found.rows()}
    for size in (25 * 2**20, 14 * 10**9):
        assert rows[size]["origin"] == bs.project("hgx-h100", "allreduce", size).details["origin"]
        assert f": {rows[size]['origin']}" in found.text()


_MANY = ["--bytes", "14GB", "--bucket", "25MiB"]


def answered(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_compare_takes_many_calls_on_machines(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(["compare", "hgx-h100,dgx-a100", "allreduce", *_MANY], capsys)
    for name in ("hgx-h100", "dgx-a100"):
        alone = answered(["project", name, "allreduce", *_MANY], capsys)
        assert [row | {"machine": name} for row in alone["rows"]] == [r for r in found["rows"] if r["machine"] == name]
    assert run(["compare", "hgx-h100,dgx-a100", "allreduce", *_MANY]) == 0
    text = capsys.readouterr().out
    assert text.startswith("allreduce of 14GB in calls of 25MiB, one after another")
    assert "from, hgx-h100, 25 MiB: between sizes that were measured" in text
    for name in ("hgx-h100", "dgx-a100"):
        [words] = [line.split("  ") for line in text.splitlines() if line.startswith(f"  {name}")]
        assert run(["project", name, "allreduce", *_MANY]) == 0
        first, one, whole, *_ = capsys.readouterr().out.splitlines()
        assert first.endswith(f": {words[2].strip()}")
        assert [line.split("  ")[-1].strip() for line in (one, whole)] == [words[3].strip(), words[-1].strip()]


@pytest.mark.parametrize("option", ["--sizes 1MiB", "--algorithms ring", "--price hgx-h100=3"])
def test_many_calls_are_of_one_size_with_libraries(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    machines = "hgx-h100,dgx-a100" if "price" in option else "hgx-h100"
    assert run(["compare", machines, "allreduce", *_MANY, *option.split()]) == 2
    assert f"leave {option} out" in capsys.readouterr().err


def test_each_named_algorithm_has_its_figure(capsys: pytest.CaptureFixture[str]) -> None:
    named = ["ring", "binomial", "parameter_server", "two_shot", "mxnet", "chain", "double_binary"]
    found = bs.compare("dgx1-v100", "allreduce", ["256MiB"], named)
    head = next(line.split() for line in found.text().splitlines() if "binomial" in line)
    assert {*named} <= {*head}
    # Both spellings of the option are one.
    assert run(["project", "dgx1-v100", "allreduce", "256MiB", "--algorithms", "ring,binomial"]) == 0
    shown = capsys.readouterr().out
    for name in ("ring", "binomial"):
        rate = bs.project("dgx1-v100", "allreduce", "256MiB", name).algbw_GBps
        assert f"{rate:.4g} GB/s" in next(line for line in shown.splitlines() if line.startswith(f"  {name}"))


def test_a_shape_without_a_rate_says_which_it_is_taken_at(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["project", "ring:4", "allreduce", "1MiB"],
        ["bound", "ring:4", "allreduce"],
        ["topo", "show", "ring:4"],
    ):
        assert run(command) == 0
        assert "25 GB/s a lane and direction is assumed" in (told := capsys.readouterr().err)
        assert "ring:4@50GB/s has another rate" in told
    for machine in ("ring:4@25GB/s", "ring:4@200Gbps", "ring:4@25GBps", "ring:4@25GB/s,2us", "fattree:2x2@50Gbps,2:1"):
        assert run(["bound", machine, "allreduce"]) == 0
        assert capsys.readouterr().err == ""
    assert run(["bound", "ring:4@50", "allreduce"]) == 2
    assert "assumed" not in capsys.readouterr().err
    assert run(["bound", "ring:4@2us", "allreduce"]) == 0
    assert "is assumed" in capsys.readouterr().err


def test_buckets_take_what_each_call_takes_and_none_falls_below_its_bound() -> None:
    """Between 8 nodes of p5 NCCL's own model alone is 4 % below the bound at 14 GB."""
    p5, whole = bs.load("p5", nodes=8), 14 * 10**9
    found = {row["bucket_bytes"]: row for row in bs.buckets(p5, "allreduce", whole, "25MiB").rows()}
    answers = {size: bs.project(p5, "allreduce", size) for size in (whole, 2**33, whole - 2**33)}
    least = answers[whole].least
    assert least is not None
    assert found[whole]["time_s"] == answers[whole].time_s >= least.time_s
    assert found[2**33]["calls"] == 2
    for key in ("time_s", "low_s", "high_s"):
        both = sum(getattr(answers[size], key) for size in (2**33, whole - 2**33))
        assert found[2**33][key] == pytest.approx(both)


@pytest.mark.parametrize(("machine", "nodes"), [("aurora", 2), ("hgx-h100", 1), ("mi300x", 2)])
def test_the_best_bucket_is_held_against_the_quickest(machine: str, nodes: int) -> None:
    """Of Aurora one call of 8 GiB is guessed at longer than 32 of 256 MiB: then it is no measure of what is good."""
    found = bs.buckets(bs.Question(machine, nodes=nodes), "allreduce", "8GiB", "256MiB")
    rows = {row["bucket_bytes"]: row["time_s"] for row in found.rows()}
    assert rows[found.best.size] <= 1.1 * min(rows.values())
    good = next(line for line in found.text().splitlines() if line.startswith("  nearly as good"))
    assert ("take least" in good) == (min(rows.values()) < rows[2**33]) == (machine == "aurora")
    # The line names what is asked next.
    assert re.search(rf"\b(of|from) {format_size(found.best.size)} (take|cost|on)", good)


def test_one_bucket_of_all_is_one_call() -> None:
    found = bs.buckets("hgx-h100", "allreduce", "1GiB", "1GiB")
    first = found.rows()[0]
    assert (first["calls"], first["bucket_bytes"]) == (1, 2**30)
    with pytest.raises(InputError, match="more than all bytes"):
        bs.buckets("hgx-h100", "allreduce", 10, 20)


def test_a_machine_far_from_the_best_is_no_winner() -> None:
    """DGX A100 takes twice as long as P5 on four nodes; their intervals touch, and hold no time of each other."""
    found = bs.compare_machines(["hgx-h100", "p5", "dgx-a100"], "allreduce", ["1GiB"], nodes=4)
    [h100, p5, a100] = [found.answers[name][-1] for name in ("hgx-h100", "p5", "dgx-a100")]
    assert p5.time_s < a100.low_s < p5.high_s < a100.time_s
    assert h100.low_s < p5.time_s < h100.time_s < p5.high_s
    assert "hgx-h100" in found.sentence()
    assert "dgx-a100" not in found.sentence()


def test_a_machine_that_cannot_answer_has_its_reason() -> None:
    """Two GPUs of a DGX-1 without a link: no answer for these, and one for the other machine."""
    apart = bs.Question("dgx1-v100", members="0,5")
    found = bs.compare_machines([apart, "hgx-h100"], "allreduce", ["1GiB"])
    assert [*found.answers] == ["hgx-h100"]
    assert "nvlink does not connect the members" in found.refused["dgx1-v100"]
    assert found.refused["dgx1-v100"] in found.text()
    assert found.to_dict()["refused"] == dict(found.refused)
    with pytest.raises(InfeasibleError, match="does not connect"):
        bs.compare_machines([apart, bs.Question("p3.16xlarge", members="0,5")], "allreduce", ["1GiB"])


def test_what_nobody_measured_ranks_no_machines() -> None:
    """p5en, which is newer, seems slower than p5 on 8 nodes: both are lent by others, and `project` says so as well."""
    found = bs.compare_machines(["p5", "p5en"], "allreduce", ["1GiB"], nodes=8)
    assert "no clear winner" in found.sentence()
    [line] = [line for line in found.text().splitlines() if "from predicted or links: an estimate, as no time" in line]
    for answers in found.answers.values():
        assert line.split(": ")[1] in answers[0].text()


@pytest.mark.parametrize(
    ("machines", "edits", "known"),
    [
        (["p5", "p5en", "p6-b200"], (), ["p5", "p5en"]),
        pytest.param(["p6-b200", "p5"], ("without n1.efa0",), ["p5"], marks=pytest.mark.slow),
        (["p5", "p5en"], (), None),
        (["p6-b200", "p6-b300"], (), None),
    ],
)
def test_times_that_stand_on_other_grounds_are_said_to(
    machines: list[str], edits: tuple[str, ...], known: list[str] | None
) -> None:
    """Nobody has published times of several p6: seemingly slower than p5, they may well be quicker."""
    found = bs.compare_machines([bs.Question(one, nodes=8, edits=edits) for one in machines], "allreduce", ["1GiB"])
    first, second = found.text().splitlines()[:2]
    assert second == ""
    if known is not None:
        assert f"published times count for {', '.join(known)};" in first
        assert "models alone for p6-b200;" in first
        assert found.text().count("not like with like") == 1
        assert first.endswith(f"; {found.to_dict()['caveat']}")
        assert first.endswith("do not choose by this difference")
        assert ": no clear winner: p" in found.sentence()
    assert ("caveat" in found.to_dict()) == (known is not None)


def test_what_is_not_like_with_like_has_no_most_for_the_money() -> None:
    prices = {"p5": 55.0, "trn2": 22.0, "tpu-v5p": 268.0}
    found = bs.compare_machines([*prices], "allreduce", ["1GiB"], prices=prices)
    assert "money" not in found.sentence()
    assert found.to_dict()["caveat"].startswith("not like with like: ")
    alike = bs.compare_machines(["p5", "p5en"], "allreduce", ["1GiB"], nodes=2, prices={"p5": 55.0, "p5en": 63.0})
    assert "has most for the money" in alike.sentence()


def test_what_is_scaled_to_published_times_is_no_model_alone() -> None:
    """Nobody published an allgather of these, and `project` scales what the links say to their allreduce."""
    machines = [bs.Question(one) for one in ("aurora", "p5", "gb200-nvl72")]
    found = bs.compare_machines([*machines, bs.Question("mi355x")], "allgather", ["1GiB"])
    told = {name: "scaled to" in answers[0].text() for name, answers in found.answers.items()}
    assert told == {"aurora": True, "p5": False, "gb200-nvl72": True, "mi355x": False}
    assert "published times count for aurora, p5, gb200-nvl72; models alone for mi355x;" in found.text()


def test_rows_hold_the_three_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "dgx1-v100", "allreduce", "--sizes", "1MiB,1GiB", "--csv"]) == 0
    for row in csv.DictReader(capsys.readouterr().out.splitlines()):
        alone = bs.project("dgx1-v100", "allreduce", int(row["size_bytes"]))
        assert isinstance(alone, Answer)
        assert alone.could
        assert alone.least
        figures = alone.time_s, alone.low_s, alone.high_s, alone.could.best.time_s, alone.least.time_s
        keys = "takes_s", "takes_low_s", "takes_high_s", "could_take_s", "cannot_take_less_s"
        assert [float(row[key]) for key in keys] == pytest.approx(figures, rel=1e-12)


def test_each_machine_may_have_its_own_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """Of as many GPUs, or of one machine alone: each takes what it takes when asked by itself."""
    asked = {"2xhgx-h100": ("hgx-h100", 2), "8xhgx-h100": ("hgx-h100", 8), "2xp5": ("p5", 2)}
    assert run(["compare", ",".join(asked), "allreduce", "--sizes", "1GiB", "--price", "2xp5=55", "--json"]) == 0
    rows = {row["machine"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows.keys() == asked.keys()
    for name, (machine, nodes) in asked.items():
        alone = bs.project(bs.load(machine, nodes=nodes), "allreduce", "1GiB")
        assert (rows[name]["time_s"], rows[name]["ranks"]) == (pytest.approx(alone.time_s), 8 * nodes)
        assert (rows[name]["busbw_per_price"] is None) == (name != "2xp5")
    # The command that it offers asks for as many GPUs of each.
    assert run(["compare", "2xhgx-h100,p5", "allreduce", "--sizes", "1GiB", "--nodes", "4"]) == 0
    text = capsys.readouterr().out
    said = "  the next command asks for as many GPUs of each, 32\n"
    assert f"{said}next: blinksim compare 4xhgx-h100,4xp5 allreduce --sizes 1GiB " in text
    assert "4xp5 (32 GPUs)" in text
    # So does every command about one machine.
    assert run(["project", "2xp5", "allreduce", "1GiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_s"] == pytest.approx(rows["2xp5"]["time_s"])
    assert run(["project", "2xp5", "allreduce", "1GiB", "--nodes", "3"]) == 2
    assert "2xp5 says how many nodes there are; leave --nodes 3 out" in capsys.readouterr().err
    assert run(["compare", "0xp5,p5en", "allreduce"]) == 2
    for machines in ("8xp5,8xp5en", "4xp5,2xgb200-nvl8"):
        # Also where it says again what one of them says.
        assert run(["compare", machines, "allreduce", "--nodes", "4"]) == 2
        assert "--nodes is for machines without a number before their name" in capsys.readouterr().err
    assert run(["compare", "2xhgx-h100,2xp5", "allreduce", "--sizes", "1GiB"]) == 0
    assert "the next command" not in capsys.readouterr().out


def test_notes_say_what_the_table_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", "p5,p5en,1xgb200", "allreduce", "--nodes", "2", "--sizes", "1GiB", "--price", "2xp5=55"]
    assert run(asked) == 0
    text = capsys.readouterr().out
    assert "no price of 2xp5en, 1xgb200" in text
    assert "2xp5, 2xp5en: nothing known tells their times apart; could take " in text
    # Each origin is that of `project`: the figures of p5en are lent by p5.
    for name in ("2xp5", "2xp5en", "1xgb200"):
        assert f"\n  from, {name}: {bs.project(name, 'allreduce', '1GiB').details['origin']}" in text
    assert run(["compare", "p5e,p5en", "allreduce", "--nodes", "8", "--sizes", "1GiB"]) == 0
    assert "\n  from, p5e, p5en: " in capsys.readouterr().out
    # A name that nobody knows is said at once.
    assert run(["compare", "p5,p5x", "allreduce"]) == 2
    told = capsys.readouterr().err
    assert "unknown machine 'p5x'" in told
    assert "still at work" not in told


def test_the_headline_names_who_leads_at_other_sizes() -> None:
    found = bs.compare_machines(["p5", "hgx-b200"], "allreduce", ["1KiB", "1MiB", "1GiB"])
    took = {name: [one.time_s for one in answers] for name, answers in found.answers.items()}
    assert took["p5"][0] < took["hgx-b200"][0]
    assert took["p5"][2] > took["hgx-b200"][2]
    # At 1 MiB intervals overlap.
    assert found.sentence().endswith("hgx-b200 is quickest, 2.446 ms with NCCL; at 1 KiB p5")
    alone = bs.compare_machines(["p5", "hgx-b200"], "allreduce", ["1GiB"])
    assert alone.sentence().endswith(" with NCCL")


def test_prices_stand_together_or_apart(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", "p5,hgx-b200", "allreduce", "--sizes", "1GiB", "--csv"]
    assert run([*asked, "--price", "p5=55,hgx-b200=80"]) == 0
    together = capsys.readouterr().out
    assert run([*asked, "--price", "p5=55", "--price", "hgx-b200=80"]) == 0
    assert capsys.readouterr().out == together


def test_an_algorithm_that_cannot_run_is_listed_beside_those_that_can(capsys: pytest.CaptureFixture[str]) -> None:
    edited = ["torus:4x4@50GB/s", "allreduce", "--edit", "without gpu0-gpu1"]
    sized = {"compare": ["--sizes", "1MiB", "--algorithms"], "project": ["1MiB", "--algorithm"]}
    for command, more in sized.items():
        assert run([command, *edited, *more, "ring,bucket"]) == 0
        both = capsys.readouterr().out
        assert "bucket needs the links of a torus" in both
        assert run([command, *edited, *more, "ring"]) == 0
        # Only the table of a single algorithm is another one.
        assert capsys.readouterr().out.splitlines()[0] == both.splitlines()[0]
        assert run([command, *edited, *more, "bucket"]) == 3
        assert "bucket needs the links of a torus" in capsys.readouterr().err


def test_what_cannot_be_quickest_is_not_held_against_what_may() -> None:
    """The bound of the box without switches is above any time of the others, whatever its own time rests on."""
    found = bs.compare_machines(["h100", "a100", "l40s-pcie"], "allreduce", ["1GiB"])
    least = {name: one.least for name, [one] in found.answers.items()}
    assert least["l40s-pcie"] is not None
    assert least["l40s-pcie"].time_s > found.answers["h100"][0].high_s
    assert found.sentence().startswith("allreduce of 1 GiB: h100 is quickest")
    assert "caveat" not in found.to_dict()
    assert "caveat" in bs.compare_machines(["a100", "l40s-pcie"], "allreduce", ["1KiB"]).to_dict()
