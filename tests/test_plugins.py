"""Algorithms, timing models and presets from outside the package: used by name and by file, and blamed by name."""

from __future__ import annotations

import json
import os
import re
import time
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import independent_check
import pytest
import strategies
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY, algorithm, candidates
from blinksim.cli.main import run
from blinksim.timing import model_registry

HEAD = "import blinksim as bs\n"
SWAP = """
@bs.register_algorithm(["allreduce"])
def swap(plan):
    if plan.n & (plan.n - 1):
        raise bs.InfeasibleError("swap needs a power of two ranks")
    everything = plan.add_chunk(1)
    for bit in range(plan.n.bit_length() - 1):
        for rank in range(plan.n):
            plan.send(rank, rank ^ (1 << bit), chunk=everything, op="reduce", step=bit)
"""
LATE = """
from blinksim.timing.alpha_beta_model import AlphaBeta

@bs.register_model
class Late(AlphaBeta):
    name = "late"
    def breakdown(self, schedule, size, gamma):
        found = super().breakdown(schedule, size, gamma)
        return bs.Breakdown((bs.Term("launch", 1e-3), *found.terms), found.bottleneck)
"""
PRESET = """
title: ours
source: ours
constants:
  nic_efficiency: {value: 1/2, assumed: true, source: a guess}
presets:
  ours: {title: half of every NIC, reading: derived}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, *parts: str) -> str:
    Path(name).write_text("".join(parts))
    return name


def test_a_file_stands_where_an_algorithm_stands(capsys: pytest.CaptureFixture[str]) -> None:
    write("swap.py", HEAD, SWAP)
    # Three steps of the whole size over single lanes of their own: by hand, alpha 1.9 us and 25 GB/s, in pieces that
    # cost an overhead of 1.3 us each.
    by_hand = min(3 * 1.9e-6 + 40e-6 * (1 + 2 / pieces) + (pieces - 1) * 1.3e-6 for pieces in range(1, 100))
    for name in ("swap.py", "./swap.py", "swap.py:swap", str(Path("swap.py").resolve())):
        found = bs.project("dgx1-v100", "allreduce", 10**6, algorithm=name)
        assert found.algorithm == "swap"
        assert found.time_s == pytest.approx(by_hand)
    # The same sends as the package's own.
    own = bs.synthesize("dgx1-v100", "allreduce", "recursive_doubling").schedule
    mine = bs.synthesize("dgx1-v100", "allreduce", "swap").schedule
    assert sorted(map(str, mine.rows())) == sorted(map(str, own.rows()))
    assert bs.compare("dgx1-v100", "allreduce", [1024], ["ring", "swap.py"]).algorithms == ("swap", "ring")
    for line in (
        ["project", "dgx1-v100", "allreduce", "1MiB", "--algorithm", "swap.py"],
        ["compare", "dgx1-v100", "allreduce", "--algorithms", "ring,swap.py", "--sizes", "1MiB"],
        ["sweep", "dgx1-v100", "allreduce", "--algorithms", "ring,swap.py", "--sizes", "1MiB"],
        ["synth", "dgx1-v100", "allreduce", "--algorithm", "swap.py", "-o", "swap.json"],
        ["verify", "swap.json"],
    ):
        assert run(line) == 0
        assert "swap" in capsys.readouterr().out


def test_the_next_command_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    write("swap.py", HEAD, SWAP)
    write("late.py", HEAD, LATE)
    assert run(["synth", "dgx1-v100", "allreduce", "--algorithm", "swap.py"]) == 0
    assert "--algorithm swap.py" in capsys.readouterr().out.splitlines()[-1]
    assert run(["project", "dgx1-v100", "allreduce", "1GiB", "--algorithm", "ring", "--model", "late.py"]) == 0
    assert "--model late.py" in capsys.readouterr().out.splitlines()[-1]


def test_a_registered_algorithm_stands_against_the_others() -> None:
    @bs.register_algorithm(["allgather"], only_named=True)
    def slow(plan: bs.Plan) -> None:
        raise AssertionError("only when named")

    @bs.register_algorithm("allreduce")
    def to_the_first(plan: bs.Plan, root: int = 0) -> None:
        """All to one rank and back."""
        everything, others = plan.add_chunk("1/1"), [rank for rank in range(plan.n) if rank != root]
        plan.send(others, root, chunk=everything, op="reduce", step=0)
        plan.send(root, others, chunk=everything, op="copy", step=1)

    assert "to_the_first" in {entry.name for entry in candidates("allreduce")}
    assert "to_the_first" in bs.contest("dgx1-v100", "allreduce").candidates
    assert "slow" in bs.rank("dgx1-v100", "allgather", "1MiB", algorithms="all").to_dict()["left_out"]
    assert algorithm("to-the-first").options() == ("root",)
    again = bs.synthesize("dgx1-v100", "allreduce", "to_the_first", root=3).schedule
    assert {again.topology.members[0], again.rows()[-1]["src"]} == {"gpu0", "gpu3"}
    server = bs.project("switch:4@25GB/s", "allreduce", "1MiB", algorithm="parameter_server")
    assert bs.project("switch:4@25GB/s", "allreduce", "1MiB", algorithm="to_the_first").time_s == server.time_s


@given(machine=strategies.topologies(), root=st.integers(0, 10**6))
def test_what_is_believed_is_right(machine: bs.Topology, root: int) -> None:
    """A broadcast in arbitrary order on arbitrary machines, against an interpreter of its own."""

    @bs.register_algorithm(["broadcast"])
    def spread(plan: bs.Plan) -> None:
        everything = plan.add_chunk(1)
        order = [plan.collective.root, *(rank for rank in range(plan.n) if rank != plan.collective.root)]
        for step, (src, dst) in enumerate(pairwise(order)):
            plan.send(src, dst, chunk=everything, op="copy", step=step)

    part = machine.selected()
    made = bs.synthesize(part, bs.Collective("broadcast", root % part.ranks), "spread")
    assert independent_check.check(made.schedule) == []
    assert made.rate == independent_check.rate(made.schedule)


FAULTS = {
    'return {}["x"]': r"\(bad\.py:4\): KeyError: 'x'$",
    "pass": r"adds no chunk to the plan",
    'plan.send(0, 99, chunk=plan.add_chunk(1), op="copy", step=0)': "there is no rank 99: there are 8",
    'plan.send(-1, 0, chunk=plan.add_chunk(1), op="copy", step=0)': "there is no rank -1",
    'plan.send(0, 1.5, chunk=plan.add_chunk(1), op="copy", step=0)': "dst must be a whole number .* not 1.5",
    'plan.send(0, 1, chunk=7, op="copy", step=0)': "there is no chunk 7: there are 0",
    'plan.send(0, 1, chunk=plan.add_chunk(1), op="mul", step=0)': "a send is a copy or a reduce",
    'plan.send(2, 2, chunk=plan.add_chunk(1), op="copy", step=0)': "rank 2 sends to itself",
    'plan.send([0, 1], [1, 2, 3], chunk=plan.add_chunk(1), op="copy", step=0)': "do not fit each other: src",
    "plan.add_chunk(0.1)": "0.1 is not an exact share",
    'plan.add_chunk("half")': "'half' is not an exact share",
    'plan.add_chunk("1/2")': "the chunks hold 1/2 of the size",
    "plan.add_chunk(1, origin=99)": "origin",
    "plan.add_chunk(1)": "ends without the contributions",
    "plan.add_chunk(1); return plan.finish()": "returns a Schedule; fill the plan",
    "raise SystemExit(0)": "SystemExit",
    "raise BaseException": "BaseException: no message",
    'raise ValueError("two\\nlines")': "ValueError: two lines$",
}


@pytest.mark.parametrize("body", FAULTS)
def test_a_fault_of_an_algorithm_is_one_line_with_its_name(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("bad.py", HEAD, '@bs.register_algorithm(["allreduce"])\ndef bad(plan):\n    ', body, "\n")
    with pytest.raises(bs.PluginError, match=FAULTS[body]):
        bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="bad.py")
    assert run(["project", "dgx1-v100", "allreduce", "1MiB", "--algorithm", "bad.py"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("blinksim: algorithm 'bad' (bad.py:")
    assert printed.count("\n") == 1
    # Nor does it disappear among those that cannot run, or take the library's time away.
    assert re.search(FAULTS[body], bs.contest("dgx1-v100", "allreduce").left_out["bad"])
    found = bs.project("dgx1-v100", "allreduce", "1MiB")
    assert found.time_s > 0
    assert "  left out          bad (algorithm 'bad' (bad.py:" in found.text()
    with pytest.raises(bs.PluginError, match="algorithm 'bad'"):
        bs.synthesize("dgx1-v100", "allreduce", "bad")


def test_what_a_plugin_prints_does_not_stand_in_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    write("loud.py", 'print("loading")\n', HEAD, SWAP.replace("\n    ", '\n    print("building")\n    ', 1))
    assert run(["project", "dgx1-v100", "allreduce", "1MiB", "--algorithm", "loud.py", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["algorithm"] == "swap"
    assert err.splitlines()[0] == "loading"
    assert "building" in err


@pytest.mark.parametrize("many", ["np.broadcast_to(np.int8(0), 10**9)", "range(10**9)", "np.zeros((2**14, 1), int)"])
def test_more_sends_than_memory_holds_are_refused_at_once(capsys: pytest.CaptureFixture[str], many: str) -> None:
    send = f"plan.send({many}, np.ones(2**13, int), chunk=plan.add_chunk(1), op='copy', step=0)"
    head = "@bs.register_algorithm(['allgather'])\ndef many(plan):\n"
    write("many.py", "import numpy as np\n", HEAD, head, f"    {send}")
    start = time.process_time()
    assert run(["project", "ring:4", "allgather", "1MiB", "--algorithm", "many.py"]) == 2
    assert "sends at once are too many" in capsys.readouterr().err
    assert time.process_time() - start < 2


def test_a_refusal_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    write("swap.py", HEAD, SWAP)
    line = ["project", "dgx1-v100", "allreduce", "1MiB", "--members", "0-2"]
    assert run([*line, "--algorithm", "swap.py"]) == 3
    assert "swap needs a power of two ranks" in capsys.readouterr().err
    assert bs.contest(bs.load("dgx1-v100").select("0-2"), "allreduce").refused["swap"].startswith("swap needs")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothere", r"x\.py:1: ModuleNotFoundError"),
        ("\ndef f(:", r"x\.py:2: is not Python"),
        ("x = " + 5000 * "[", r"x\.py.*: is not Python"),
        (9999 * "-" + "1", r"x\.py.*: is not Python"),
        ("", r"registers no algorithm; put @bs\.register_algorithm"),
        (HEAD + '@bs.register_algorithm(["allreduce"])\ndef ring(plan): pass', "'ring' already; take another name"),
        (HEAD + '@bs.register_algorithm(["allreduce"])\ndef best(plan): pass', "'best' already"),
        (HEAD + '@bs.register_algorithm(["allredcue"])\ndef own(plan): pass', "did you mean 'allreduce'"),
        (HEAD + "@bs.register_algorithm\ndef own(plan): pass", "needs the collectives"),
        (HEAD + '@bs.register_algorithm(["allreduce"], form="tree")\ndef own(plan): pass', "steps or forest"),
        (HEAD + '@bs.register_algorithm(["allreduce"])\ndef own(): pass', "a function that takes a plan"),
        (HEAD + 'bs.register_algorithm(["allreduce"], name="a b")(print)', "cannot name an algorithm"),
        (HEAD + SWAP + SWAP.replace("swap(", "other("), r"registers swap, other; say which, as in x\.py:swap"),
    ],
)
def test_a_file_that_is_no_plugin_says_why(text: str, words: str) -> None:
    write("x.py", text)
    with pytest.raises(bs.InputError, match=words):
        bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="x.py")


def test_files_that_are_not_there_or_not_text() -> None:
    for name, contents in (("none.py", None), ("raw.py", b"\x00\xff\xfe"), ("folder.py", None)):
        if contents is not None:
            Path(name).write_bytes(contents)
        elif name == "folder.py":
            Path(name).mkdir()
        with pytest.raises(bs.FileError, match=name):
            bs.project("dgx1-v100", "allreduce", "1MiB", algorithm=name)
    write("mine.py", HEAD, SWAP)
    with pytest.raises(bs.InputError, match=r"unknown algorithm 'mine'.*or the file mine\.py"):
        bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="mine")
    with pytest.raises(bs.FileError, match="no algorithm 'swab', only swap"):
        bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="mine.py:swab")


def test_an_edited_file_runs_again_and_a_second_one_is_refused() -> None:
    write("swap.py", HEAD, SWAP)
    before = bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="swap.py").time_s
    write("swap.py", HEAD, SWAP.replace("step=bit)", "step=2 * bit)"))
    assert bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="swap.py").time_s >= before
    assert bs.synthesize("dgx1-v100", "allreduce", "swap").schedule.steps == 5
    write("other.py", HEAD, SWAP)
    with pytest.raises(bs.PluginError, match=r"'swap' is registered by .*swap\.py already"):
        bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="other.py")


def test_a_cell_may_run_again() -> None:
    for share in (Fraction(1), Fraction(1, 2)):

        @bs.register_algorithm(["broadcast"], name="cell")
        def cell(plan: bs.Plan, share: Fraction = share) -> None:
            for _ in range(1 // share):
                chunk = plan.add_chunk(share)
                plan.send(0, range(1, plan.n), chunk=chunk, op="copy", step=0)

        assert bs.synthesize("full:4", "broadcast", "cell").schedule.chunks == 1 / share
    assert REGISTRY["cell"].fill is cell


@pytest.mark.slow
def test_a_sweep_takes_files_to_its_workers_and_times_them_again_when_edited() -> None:
    write("swap.py", HEAD, SWAP)
    write("late.py", HEAD, LATE)
    arguments = {"algorithms": ["ring", "swap.py"], "model": "late.py", "journal": "journal"}
    found = bs.sweep("dgx1-v100", "allreduce", ["1MiB"], workers=2, **arguments)  # type: ignore[arg-type]
    assert [row["algorithm"] for row in found.rows()] == ["ring", "swap"]
    assert all(row["time_s"] > 1e-3 for row in found.rows())
    assert bs.sweep("dgx1-v100", "allreduce", ["1MiB"], **arguments).resumed == 2  # type: ignore[arg-type]
    write("late.py", HEAD, LATE.replace("1e-3", "2e-3"))
    again = bs.sweep("dgx1-v100", "allreduce", ["1MiB"], **arguments)  # type: ignore[arg-type]
    assert again.resumed == 0
    assert all(row["time_s"] > 2e-3 for row in again.rows())

    @bs.register_algorithm(["allreduce"], name="here")
    def here(plan: bs.Plan) -> None: ...

    with pytest.raises(bs.InputError, match="'here' is registered in this process only"):
        bs.sweep("dgx1-v100", "allreduce", ["1MiB"], algorithms=["here"], workers=2)
    with pytest.raises(bs.InputError, match="in this process only"):
        bs.sweep("dgx1-v100", "allreduce", ["1MiB"], algorithms=["here"], journal="journal")


# --- timing models ---------------------------------------------------------------------------------------------------


def test_a_model_adds_what_it_says() -> None:
    write("late.py", HEAD, LATE)
    plain = bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="ring")
    late = bs.project("dgx1-v100", "allreduce", "1MiB", algorithm="ring", model="late.py")
    assert late.model == "late"
    assert late.time_s == pytest.approx(plain.time_s + 1e-3)
    assert model_registry.times_schedules("late.py")
    beside = bs.across_models("dgx1-v100", "allreduce", ["1MiB"], ["alpha-beta", "late.py"], ["ring"])
    assert {row["model"] for row in beside.rows()} == {"alpha-beta", "late"}
    assert bs.compare("dgx1-v100", "allreduce", ["1MiB"], ["ring"], model="late.py").projections[0][0].model == "late"


MODEL_FAULTS = {
    "1 / 0": "ZeroDivisionError",
    "None": "returned None; return a Breakdown",
    "3": "returned 3; return a Breakdown",
    'bs.Breakdown((bs.Term("x", float("nan")),), "x")': "is not a term of at least 0 seconds",
    'bs.Breakdown((bs.Term("x", -1.0),), "x")': "is not a term of at least 0 seconds",
    'bs.Breakdown((bs.Term("x", "1"),), "x")': "TypeError",
    'bs.Breakdown((("x", 1.0),), "x")': "is not a term",
    'bs.Breakdown((), "x")': "add up to 0 seconds",
}


@pytest.mark.parametrize("value", MODEL_FAULTS)
def test_a_fault_of_a_model_is_one_line_with_its_name(value: str) -> None:
    body = "    name = 'odd'\n    def breakdown(self, schedule, size, gamma):\n        return "
    write("odd.py", HEAD, "@bs.register_model\nclass Odd(bs.ScheduleModel):\n", body, value, "\n")
    with pytest.raises(bs.PluginError, match=rf"timing model 'odd' \(odd\.py:\d\): .*{MODEL_FAULTS[value]}"):
        bs.project("dgx1-v100", "allreduce", "1MiB", model="odd.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bs.register_model(3)", "a subclass of ScheduleModel"),
        ("bs.register_model(type('A', (), {}))", "a subclass of ScheduleModel"),
        ("bs.register_model(type('A', (bs.ScheduleModel,), {'name': 'a'}))", "timing model A has no breakdown"),
        ("bs.register_model(type('A', (bs.ScheduleModel,), {'breakdown': len}))", "None cannot name a timing model"),
        (
            "bs.register_model(type('A', (bs.ScheduleModel,), {'breakdown': len, 'name': 'simulate'}))",
            "'simulate' already",
        ),
    ],
)
def test_what_is_no_model_is_refused(text: str, words: str) -> None:
    write("x.py", HEAD, text)
    with pytest.raises(bs.InputError, match=words):
        bs.project("dgx1-v100", "allreduce", "1MiB", model="x.py")


# --- presets ----------------------------------------------------------------------------------------------------------


def test_a_preset_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    write("ours.yaml", PRESET)
    whole = {term.name: term.time_s for term in bs.project(CLUSTER, "allreduce", "1GiB", model="projection").terms}
    half = {term.name: term.time_s for term in bs.project(CLUSTER, "allreduce", "1GiB", model="ours.yaml").terms}
    between = "allreduce between nodes"
    assert half.pop(between) == pytest.approx(2 * whole.pop(between))
    assert half == pytest.approx(whole)
    assert run(["project", "hgx-h200", "allreduce", "1GiB", "--nodes", "2", "--model", "ours.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "ours"
    rows = bs.sweep("hgx-h200", "allreduce", ["1GiB"], {"nodes": [2]}, model="ours.yaml:ours").rows()
    assert rows[0]["reason"] == ""


CLUSTER = bs.load("hgx-h200", nodes=2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ours: {title", "projection: {title", "'projection' is a preset of models/ already"),
        ("assumed: true", "assumed: perhaps", "unknown answer 'perhaps'"),
        (
            "assumed: true, source: a guess",
            "assumed: true",
            r":5:19: constant nic_efficiency has no 'source'",
        ),
        ("presets:\n", "presets:\n  theirs: {title: b, reading: derived}\n", r"holds the presets theirs, ours; say wh"),
    ],
)
def test_a_preset_that_cannot_be_used_is_named(old: str, new: str, words: str) -> None:
    write("ours.yaml", PRESET.replace(old, new))
    with pytest.raises(bs.FileError, match=words):
        bs.project(CLUSTER, "allreduce", "1GiB", model="ours.yaml")


def test_a_file_is_found_by_its_name_only() -> None:
    write("ours.yaml", PRESET)
    with pytest.raises(bs.InputError, match=r"unknown model 'ours'.*or the file ours\.yaml"):
        bs.project(CLUSTER, "allreduce", "1GiB", model="ours")
    with pytest.raises(bs.InputError, match=r"models/gpus\.yaml is not searched.*projection\.yaml"):
        bs.project(CLUSTER, "allreduce", "1GiB", model="gpus")
    assert not os.path.exists("journal")
