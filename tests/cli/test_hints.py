"""Slips that users make often end in the command that they meant."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.cli.commands import COMMANDS
from blinksim.cli.main import run

ONE_WAY = """
name: pair
devices:
  - {name: "g[0-1]", kind: gpu}
link_classes:
  c0: {bandwidth: 6GB/s, latency: 1us, overhead: 0us, source: test}
links:
  - {from: g0, to: g1, class: c0}
"""
HELPER = """
name: helped
devices:
  - {name: "g[0-2]", kind: gpu}
  - {name: h, kind: gpu}
link_classes:
  l: {bandwidth: 10GB/s, latency: 1us, overhead: 0us, source: test}
links:
  - {between: ["g[0-2]", h], class: l}
members: [g0, g1, g2]
relays: [h]
"""


def said(words: list[str], capsys: pytest.CaptureFixture[str], status: int = 2) -> str:
    assert run(words) == status
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["project", "allreduce", "dgx1-v100"], "blinksim project dgx1-v100 allreduce"),
        (["project", "allreduce", "dgx1-v100", "1MiB"], "blinksim project dgx1-v100 allreduce 1MiB"),
        (["bound", "broadcast", "my box.yaml"], "blinksim bound 'my box.yaml' broadcast"),
        (["sweep", "allreduce", "hgx-h100", "--sizes", "1MiB"], "blinksim sweep hgx-h100 allreduce --sizes 1MiB"),
        (["synth", "allreduce"], "blinksim synth hgx-h100 allreduce"),
        (["project", "all_reduce", "1GiB"], "blinksim project hgx-h100 all_reduce 1GiB"),
        (["project", "all_gather_into_tensor", "1GiB", "--why"], "hgx-h100 all_gather_into_tensor 1GiB --why"),
        (["project", "reduce_scatter", "--nodes", "2"], "blinksim project hgx-h100 reduce_scatter --nodes 2"),
        (["bound", "All-Reduce", "1GiB", "--why"], "blinksim bound hgx-h100 All-Reduce --why"),
        (["project", "all_reduce", "dgx1-v100", "1MiB"], "blinksim project dgx1-v100 all_reduce 1MiB"),
    ],
)
def test_a_collective_in_front_of_the_machine(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, _, command = said(words, capsys).partition(f"{words[1]} is a collective; the machine comes before it: ")
    assert before == "blinksim: "
    assert meant in command


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["allreduce", "h100"], "blinksim project h100 allreduce 256MiB"),
        (["all_reduce"], "blinksim project hgx-h100 all_reduce 256MiB"),
        (["allreduce", "h100", "1GiB", "--nodes", "2"], "blinksim project h100 allreduce 1GiB --nodes 2"),
        (["allgather", "1GiB"], "blinksim project hgx-h100 allgather 1GiB"),
        (["Reduce", "./my box.yaml", "--json"], "blinksim project './my box.yaml' Reduce 256MiB --json"),
    ],
)
def test_a_collective_in_place_of_the_command(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    begin = f"blinksim: {words[0]} is a collective; the machine comes before it: "
    assert said(words, capsys) == f"{begin}{meant} (see blinksim --help)"
    if ".yaml" not in meant:
        assert run(shlex.split(meant)[1:]) == 0


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        (["project", "h100"], "'COLLECTIVE', such as allreduce"),
        (["compare", "h100"], "'COLLECTIVE', such as allreduce"),
        (["bound", "h100"], "'COLLECTIVE', such as allreduce"),
        (["project", "h100", "allreduce"], "'SIZE', such as 256MiB"),
        (["project"], "'MACHINE', such as hgx-h100"),
        (["verify"], "'FILE'"),
    ],
)
def test_what_is_missing_has_an_example(words: list[str], lacks: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(words, capsys) == f"blinksim: Missing argument {lacks} (see blinksim {words[0]} --help)"


@pytest.mark.parametrize("size", ["-5MiB", "-1", "-.5GB"])
def test_a_size_below_zero_is_no_option(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = f"blinksim: No such option '{size[:2]}': a size has no sign; write it like 256MiB "
    assert said(["project", "h100", "allreduce", size], capsys).startswith(told)


def test_help_begins_with_the_commands_to_begin_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    listed = re.findall(r"^  ([a-z]+) {2,}\S", capsys.readouterr().out.partition("Start here:")[2], re.MULTILINE)
    assert listed[:5] == ["project", "compare", "bound", "advise", "diagnose"]
    assert sorted(listed) == sorted(name for name in COMMANDS if " " not in name)
    page = Path("docs/commands.md").read_text(encoding="utf-8")
    assert listed == re.findall(r"^\| \[`(\w+)`\]", page, re.MULTILINE)


def test_a_machine_may_have_the_name_of_a_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reduce").write_text(HELPER)
    assert "is a collective" not in said(["bound", "reduce", "broadcast-"], capsys)
    Path("reduce").unlink()
    assert "reduce is a collective; the machine comes before it" in said(["bound", "reduce", "broadcast-"], capsys)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["bound", "dgx1-v100", "allreduce", "--without", "gpu7"], "--edit 'without gpu7'"),
        (["bound", "dgx1-v100", "allreduce", "--degrade", "gpu0-gpu1 lanes=1"], "--edit 'degrade gpu0-gpu1 lanes=1'"),
        (["bound", "dgx1-v100", "allreduce", "--without"], "'--edit'"),
        (["bound", "dgx1-v100", "allreduce", "--what-if", "--json"], "'--edit'"),
    ],
)
def test_an_edit_as_an_option(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"Did you mean {meant}?" in said(words, capsys)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["health", "--edit", "without gpu7"], "'--edit' (see"),
        (["compare", "dgx1-v100", "allreduce", "--size", "1MiB"], "'--size'. Did you mean '--sizes'? (see"),
        (["bound", "dgx1-v100", "allreduce", "--member", "0,1"], "'--member'. Did you mean '--members'? (see"),
    ],
)
def test_options_that_are_spelt_alike(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"No such option {meant}" in said(words, capsys)


@pytest.mark.parametrize(
    ("name", "meant"), [("nccl", "nccl-graph"), ("RCCL", "msccl-xml"), ("mscclpp", "mscclpp-json")]
)
def test_a_runtime_as_a_format(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert meant in said(["export", "dgx1-v100-8-allreduce", "--format", name], capsys)


@pytest.mark.parametrize("command", ["simulate", "run", "verify"])
def test_a_machine_file_as_a_schedule(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(ONE_WAY)
    line = said([command, str(path), *(["1MiB"] if command != "verify" else [])], capsys)
    assert "YAML files are machines and rates, of which blinksim synth makes schedules" in line


def test_what_if_says_which_names_are_no_links(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["project", "aurora", "allreduce", "1GB", "--model", "aurora-projection"]
    assert run([*words, "--what-if"]) == 0
    assert "nic, nic_efficiency: no links, which --edit changes" in capsys.readouterr().out
    # The others are.
    assert run([*words, "--edit", "replace xe bandwidth=53GB/s"]) == 0
    assert run([*words, "--edit", "replace nic bandwidth=25GB/s"]) == 2


@pytest.mark.parametrize("words", [["project", "MACHINE", "broadcast", "1MiB"], ["compare", "MACHINE", "broadcast"]])
def test_links_that_lead_one_way_carry_what_needs_no_more(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(ONE_WAY)
    assert run([str(path) if word == "MACHINE" else word for word in words]) == 0
    assert "could take" in capsys.readouterr().out
    other = [str(path) if word == "MACHINE" else word.replace("broadcast", "allreduce") for word in words]
    assert "does not connect the members: g0 | g1" in said(other, capsys, 3)


def test_no_relays_turns_off_those_of_the_machine_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "helped.yaml"
    path.write_text(HELPER)
    assert run(["bound", str(path), "allreduce"]) == 0
    capsys.readouterr()
    assert "does not connect the members: g0 | g1 | g2" in said(
        ["bound", str(path), "allreduce", "--relays", "none"], capsys, 3
    )


def test_the_time_of_a_wrong_schedule_comes_with_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, torn = tmp_path / "whole.json", tmp_path / "torn.json"
    assert run(["synth", "dgx1-v100", "allgather", "-o", str(whole)]) == 0
    table = json.loads(whole.read_text())
    last = {key: table[key][:-1] for key in ("chunk", "src", "dst", "op", "step", "route", "channel")}
    torn.write_text(json.dumps(table | last))
    capsys.readouterr()
    for file, told in ((whole, ""), (torn, f"blinksim: {torn} is wrong, whatever time it takes: chunk ")):
        assert run(["simulate", str(file), "1MiB"]) == 0
        assert capsys.readouterr().err.startswith(told)
        assert bool(told) == (run(["verify", str(file)]) == 1)
        capsys.readouterr()


def test_a_device_that_is_missing_is_looked_up_in_the_file_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name inside the file is none that the command knows."""
    monkeypatch.chdir(tmp_path)
    text = (Path(bs.__file__).parents[1] / "topologies/dgx1-v100.yaml").read_text()
    Path("drag.yaml").write_text(text.replace("name: dgx1-v100", "name: mydrag", 1))
    assert run(["bound", "drag.yaml", "allreduce", "--edit", "without plane0-plane1"]) == 2
    assert "(blinksim topo show drag.yaml lists them)" in capsys.readouterr().err
    assert run(["topo", "show", "drag.yaml"]) == 0
    assert "devices  gpu0 to gpu7, pciesw0 to pciesw3, cpu0 to cpu1, nic0 to nic3" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["nic3-fabric3", "n1.nic0-fabric0"])
def test_links_between_nodes_are_there_from_two_nodes_on(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    edit = ["--edit", f"degrade {target} bandwidth=10GB/s"]
    assert run(["bound", "hgx-h100", "allreduce", *edit]) == 2
    assert "hgx-h100 is one node; links between nodes need --nodes 2" in capsys.readouterr().err
    edit[1] = edit[1].replace(" nic", " n0.nic")
    assert run(["bound", "hgx-h100", "allreduce", "--nodes", "2", *edit]) == 0


def test_the_next_command_keeps_a_file_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which no comparison takes in unless it is named."""
    path = tmp_path / "mine.json"
    assert run(["synth", "ring:4", "allgather", "--algorithm", "ring", "-o", str(path)]) == 0
    assert run(["project", "ring:4", "allgather", "1MiB", "--algorithm", str(path)]) == 0
    following = capsys.readouterr().out.splitlines()[-1].removeprefix("next: blinksim ").split()
    assert following[following.index("--algorithms") + 1] == str(path)
    assert run(following[: following.index("--plot")]) == 0
    assert "mine" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["torus", "dragonfly", "QPI", "algorithm", "witness"])
def test_words_that_answers_and_pages_use_are_in_the_glossary(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", word]) == 0
    assert f"{word}:" in capsys.readouterr().out


def test_a_check_says_what_is_assumed_of_a_recorded_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "data/captures/h200x8/smi_topo.txt").read_text()
    path = tmp_path / "box.txt"
    path.write_text(text.replace("NVIDIA H200", "NVIDIA X999"))
    assert run(["topo", "check", str(path)]) == 0
    said = capsys.readouterr().err
    assert "assumed: NV18 leads to NVSwitches" in said
    assert "the model 'NVIDIA X999' is not known here" in said
