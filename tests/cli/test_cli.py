"""The command line as a person or a script uses it: answers, JSON keys, exit statuses, one line per error."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

from blinksim.algorithms.registry import REGISTRY
from blinksim.cli.commands import COMMANDS
from blinksim.cli.main import run
from blinksim.cli.options import Whole, built, left
from blinksim.collective import COLLECTIVES
from blinksim.machines import load

CAPTURE = "tests/data/captures/h200x8/topo.xml"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert run(list(arguments)) == status
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(capsys, *arguments, "--json"))
    return found


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 2) -> str:
    assert run(list(arguments)) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("blinksim: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "topo list"])
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = answer(capsys, *command.split(), "--help")
    assert f"blinksim {command} " in text.split("Example", 1)[1]


def listed(text: str) -> list[str]:
    """The options that a help text lists, in order."""
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("command", [name for name in COMMANDS if COMMANDS[name].run])
def test_help_shows_common_options_and_where_the_others_are(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Every option that the command takes is in one place of three, and none in two."""
    short = listed(answer(capsys, *command.split(), "--help"))
    whole = listed(answer(capsys, "help", *command.split()))
    machine = listed(answer(capsys, "help", "machine"))
    flags = [parameter.opts for parameter in built(command).params if isinstance(parameter, click.Option)]
    takes = {next(flag for flag in each if flag.startswith("--")) for each in flags}
    assert len(short) <= 14
    assert set(short) <= set(whole)
    assert {"--help", *takes} - set(whole) in (set(), set(machine))
    text = answer(capsys, *command.split(), "--help")
    assert ("…): blinksim help machine\n" in text) == (not takes <= set(whole))
    more = f"{len(whole) - len(short)} more options: blinksim help {command}"
    assert (more in text) == (len(whole) > len(short))


def test_help_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    listed = answer(capsys, "help").removeprefix(answer(capsys, "--help"))
    assert listed.startswith("\nWords:\n  8 in 10  ")
    assert {"busbw", "NCCL", "world size", "halving_doubling"} <= set(re.split(r" {2,}|\n", listed))
    assert "did you mean 'project'" in refusal(capsys, "help", "projet")


@pytest.mark.parametrize("name", ["--relays", "--price", "--ranks-per-node"])
def test_help_of_an_option(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert answer(capsys, "help", name).startswith(f"{name}: ")
    assert f"unknown word '{name}x'" in refusal(capsys, "help", f"{name}x")


def test_help_of_a_command_that_is_a_word_has_both(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(answer(capsys, "help", "bound").split())
    assert text.startswith("Usage: blinksim bound")
    assert " bound: a rate that no schedule of its scope exceeds" in text


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("busbw", "2(n-1)/n for allreduce"),
        ("buses", None),
        ("NCCL", "NVIDIA's library of collectives"),
        ("FSDP", "allgather and reducescatter"),
        ("torch", "PyTorch"),
        ("bucket", "gradients that are sent in one call"),
        ("world_size", "their number n"),
        ("nvls", "NVSwitches add what GPUs read"),
        ("rails", "the NICs with the same number"),
        ("What is an allreduce?", "every rank gets the sum"),
        ("what are rails", "the NICs with the same number"),
        ("ring", "the last to the first"),
        ("rings", "the most rings"),
        ("link class", "nvlink"),
        ("all_reduce", "every rank gets the sum"),
        ("reduce-scatter", "only its 1/n of the sum"),
        ("halving_doubling", "exchanges at halving"),
        ("double binary tree", "two children in one has none in the other"),
        ("pipeline fill", "until the first piece has come through"),
        ("launches", "until a kernel starts"),
    ],
)
def test_help_explains_words(capsys: pytest.CaptureFixture[str], word: str, says: str | None) -> None:
    if says is None:
        assert f"unknown word {word!r}: " in (said := refusal(capsys, "help", word))
        assert said.endswith(" (blinksim help lists them, none of your own files)\n")
    else:
        text = answer(capsys, "help", *word.split())
        assert says in " ".join(text.split())
        assert "**" not in text
        assert max(map(len, text.splitlines())) <= 80


WORDS = (
    "algbw busbw bottleneck latency overhead bandwidth share ranks links rates nominal nccl channel Simple LL128 "
    "scope exact upper tree-optimum cut partition gap step chunk tree chain ring relay NIC rail fabric in-network "
    "multicast NVLS SHARP launch alpha-beta execution simulate nccl-tuner projection preset packed lane "
    "gradient overlap theorem Edmonds Tutte Nash-Williams weakest expected behind resembles interval EFA GDR RoCE ib "
    "port start waiting pieces hops executor calls constants height loads cell quality held-out NVB picks idle fitted "
    "NCCL_ALGO NCCL_PROTO NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_GRAPH_FILE NCCL_TUNER_PLUGIN NCCL_DEBUG"
)
# As `bound --size` lists them (docs/bounds.md).
THEOREMS = re.findall(r"^\| `([a-z-]+)` \| ", Path("docs/bounds.md").read_text(), re.MULTILINE)


def test_every_theorem_that_a_bound_names_is_on_the_page_of_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "bound", "dgx1-v100", "allreduce", "--size", "1MiB").partition("  theorem ")[2]
    named = [line.split()[0] for line in text.splitlines()[1:] if re.search(r" us  [a-z]", line)]
    assert len(named) > 3
    assert {*named} <= {*THEOREMS}


PHRASES = (
    "switches that add",
    "in-switch reduction",
    "limited by",
    "could take",
    "cannot take less",
    "left out",
    "at most",
    "at least",
    "8 in 10",
    "on the links",
    "no launches counted",
    "nominal rates",
    "measured rates",
    "tensor parallel",
    "data parallel",
)


@pytest.mark.parametrize("word", [*COLLECTIVES, *REGISTRY, *WORDS.split(), *THEOREMS, *PHRASES])
def test_words_of_answers_are_explained(capsys: pytest.CaptureFixture[str], word: str) -> None:
    text = answer(capsys, "help", word).replace("-\n", "-").replace("_", "-")
    assert word.rstrip("s").replace("_", "-").lower() in text.lower()


@pytest.mark.parametrize(
    "line", ["project p5 allreduce 1GiB --nodes 2", "diagnose --busbw 180 --size 8GiB --machine p5"]
)
def test_labels_of_answers_are_explained(capsys: pytest.CaptureFixture[str], line: str) -> None:
    run([*line.split(), "--edit", "degrade gpu0-nvswitch lanes=9"])
    labels = re.findall(r"^  ([a-z]+(?: [a-z]+)*)  +[^ ]", capsys.readouterr().out, re.MULTILINE)
    assert len(labels) > 4
    for label in labels:
        assert label.rstrip("s") in answer(capsys, "help", label)


@pytest.mark.parametrize("word", ["edit", "edits", "what-if"])
def test_help_has_every_edit_of_the_page_of_edits(capsys: pytest.CaptureFixture[str], word: str) -> None:
    table = Path("docs/what-if.md").read_text().partition("| edit | what it does |")[2].partition("\n\n")[0]
    edits = re.findall(r"^\| `([^`]*)`", table, re.MULTILINE)
    assert len(edits) > 8
    explained = " ".join(answer(capsys, "help", word).split())
    assert [edit for edit in edits if f"'{edit}'" not in explained] == []


@pytest.mark.parametrize("more", [[], ["--algorithm", "nccl"]])
def test_links_of_a_job_on_several_nodes_are_those_of_its_network_too(
    capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    found = as_json(capsys, "project", "p5", "allreduce", "1GiB", "--nodes", "8", *more)
    assert found["links"] == ["nvlink", "pcie", "efa"]
    assert found["members"][::63] == ["n0.gpu0", "n7.gpu7"]
    assert found.get("could_take", found)["links"] == found["links"]


@pytest.mark.parametrize("name", ["nodes", "ranks-per-node"])
def test_several_numbers_where_one_goes_are_for_sweep(capsys: pytest.CaptureFixture[str], name: str) -> None:
    words = refusal(capsys, "project", "p5", "allreduce", "1GiB", f"--{name}", "2,4")
    axis = f"{name}=2,4"
    assert f"'2,4' is not a whole number; for several: blinksim sweep MACHINE COLLECTIVE --vary {axis} (see" in words
    assert "ranks" in answer(capsys, "sweep", "p5", "allreduce", "--sizes", "1GiB", "--vary", axis)


def test_every_whole_number_of_a_command_line_is_held_to_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    for command, options in COMMANDS.items():
        numbers = [name for name, kind in getattr(options, "__annotations__", {}).items() if kind.startswith("int")]
        given = {parameter.name: parameter.type for parameter in built(command).params}
        assert all(isinstance(given[name], Whole) for name in numbers), command
    assert "--seed': -1 is not in the range x>=0" in refusal(
        capsys, "traffic", "--ranks", "4", "--experts-per-rank", "2", "--seed=-1"
    )


def test_project_json_keys_are_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "project", "dgx1-v100", "allreduce", "256MiB", "--algorithm", "best")
    expected = {
        "command", "machine", "collective", "members", "relays", "links", "rates", "size_bytes", "model", "algorithm",
        "time_s", "algbw_GBps", "busbw_GBps", "terms", "bottleneck",
    }  # fmt: skip
    assert expected <= set(found)
    assert found["size_bytes"] == 2**28
    assert found["links"] == ["nvlink"]
    assert found["algorithm"] == "ring"
    assert sum(term["time_s"] for term in found["terms"]) == pytest.approx(found["time_s"], rel=1e-12)
    assert found["algbw_GBps"] == pytest.approx(2**28 / found["time_s"] / 1e9)
    assert found["busbw_GBps"] == pytest.approx(found["algbw_GBps"] * 14 / 8)
    # 24/7 lanes of 25 GB/s is what the links allow; latency takes a little of it.
    assert 0.97 * 600 / 7 < found["algbw_GBps"] < 600 / 7


@pytest.mark.parametrize(
    ("size", "nodes", "ranks", "ms"), [("2GB", 16, 12, 47.70), ("1GB", 32, 6, 39.772), ("2GB", 3, 10, 44.783)]
)
def test_the_aurora_projection(
    capsys: pytest.CaptureFixture[str], size: str, nodes: int, ranks: int, ms: float
) -> None:
    found = as_json(
        capsys, "project", "aurora", "allreduce", size, "--nodes", str(nodes), "--ranks-per-node", str(ranks),
        "--model", "aurora-projection",
    )  # fmt: skip
    assert found["time_s"] * 1e3 == pytest.approx(ms, abs=0.005)
    assert found["rates"] == "seed"
    assert len(found["members"]) == nodes * ranks


def test_one_bandwidth_changes_its_term_only(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("project", "aurora", "allreduce", "2GB", "--nodes", "16", "--model", "aurora-projection")
    before = as_json(capsys, *base)
    after = as_json(capsys, *base, "--edit", "replace xe bandwidth=53GB/s")
    changed = [
        (a["limit"], a["time_s"] / b["time_s"])
        for a, b in zip(before["terms"], after["terms"], strict=True)
        if a["time_s"] != b["time_s"]
    ]
    assert {limit for limit, _ in changed} == {"xe"}
    assert all(ratio == pytest.approx(53 / 15) for _, ratio in changed)


def test_a_topology_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "project", CAPTURE, "allreduce", "1GiB", "--algorithm", "best")
    assert len(found["members"]) == 8
    assert 0.9 * 1800 / 7 < found["algbw_GBps"] < 1800 / 7


def test_all_algorithms_are_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "project", "dgx1-v100", "allreduce", "64MiB", "--algorithm", "all")
    times = [row["time_s"] for row in found["rows"]]
    assert times == sorted(times)
    assert len(times) >= 8
    assert "two or more nodes" in found["refused"]["hierarchical"]
    text = answer(capsys, "project", "dgx1-v100", "allreduce", "64MiB", "--algorithm", "all")
    assert text.splitlines()[0].startswith("allreduce of 64 MiB on dgx1-v100 takes ")
    assert max(map(len, text.splitlines())) < 160


def test_project_csv(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "project", "dgx1-v100", "allgather", "1MiB", "--algorithm", "all", "--csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = {"algorithm", "time_s", "algbw_GBps", "busbw_GBps", "bottleneck", "rates", "time_bound_s"}
    assert columns == set(rows[0])


def test_compare_finds_the_crossovers(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "compare", "dgx1-v100", "allreduce", "--sizes", "1KiB:64MiB:x4", "--model", "auto")
    best = {row["size_bytes"]: row["algorithm"] for row in found["rows"] if row["best"]}
    assert best[1024] != best[2**26] == "ring"
    for crossing in found["crossovers"]:
        for offset, leader in ((-1, crossing["slower"]), (0, crossing["faster"])):
            size, both = f"{crossing['size_bytes'] + offset}B", f"{crossing['slower']},{crossing['faster']}"
            found = as_json(capsys, "project", "dgx1-v100", "allreduce", size, "--algorithm", both)
            assert found["algorithm"] == leader


@pytest.mark.slow
def test_compare_draws_and_does_not_overwrite(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "sizes.svg"
    arguments = (
        "compare",
        "dgx1-v100",
        "allreduce",
        "--sizes",
        "1KiB:1GiB:x32",
        "--model",
        "auto",
        "--plot",
        str(target),
    )
    assert f"drawn: {target}" in answer(capsys, *arguments)
    # Letters are drawn as outlines; the text that they make stands before them in a comment.
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    drawn = ElementTree.parse(target, parser)
    texts = [(node.text or "").strip() for node in drawn.iter() if not isinstance(node.tag, str)]
    assert {"algbw (GB/s)", "size", "1 KiB", "1 GiB", "mxnet", "ring", "quickest", "bound at this size"} <= set(texts)
    target.write_text("mine")
    assert run(list(arguments)) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "mine"
    answer(capsys, *arguments, "--algorithms", "ring", "--force")
    assert target.read_text() != "mine"


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ('project dgx1-v100 allreduce "12 parsecs"', 2, "has the unit 'parsecs'"),
        ("project dgx1-v100 allreduce -5MB", 2, "such option"),
        ("project dgx1-v100 allreduce 0", 2, "whole, positive number of bytes"),
        ("project dgx1-v100 allreduce nanMB", 2, "not a size"),
        ("project dgx1-v10 allreduce 1MB", 2, "did you mean 'dgx1-v100'"),
        ("project dgx1-v100 alreduce 1MB", 2, "did you mean 'allreduce'"),
        ("... --algorithm rnig", 2, "did you mean 'ring'"),
        ("project dgx1-v100 alltoall 1MB --algorithm ring", 3, "there is no ring alltoall"),
        ("... --algorithm tree", 2, "NCCL's tree is chain_tree here; double_binary has all ranks in its two trees, and "
         "--model nccl-tuner with --algorithm all times NCCL's own"),
        ("... --algorithm pat", 2, "--model nccl-tuner with --algorithm all times it"),
        ("... --algorithm CollnetDirect", 2, "reduces in the network's switches"),
        ("compare dgx1-v100 allreduce --algorithms ring,tree", 2, "NCCL's tree is chain_tree here"),
        ("... --gpus 0,1", 2, "Did you mean '--members'?"),
        ("... --gpus 4", 2, "Did you mean --members 0-3, or blinksim place"),
        ("... --gpus 64", 2, "or --nodes N for whole nodes?"),
        ("... -n 8", 2, "Did you mean '--nodes'?"),
        ("... --price 3", 2, "blinksim compare takes it"),
        ("compare dgx1-v100 allreduce --bucket 25MiB", 2, "give both, such as --bytes 14GB"),
        ("... --bytes 14GB --bucket 25MiB", 2, "and no SIZE"),
        ("project dgx1-v100 allreduce --bytes 14GB", 2, "what each sends: give both"),
        ("project dgx1-v100 allreduce --bucket 25MiB", 2, "what each sends: give both"),
        ("project dgx1-v100 --nodes 2 --group n0.gpu0-3:allreduce:1GiB", 2, "write a range like n0.gpu[0-3]"),
        ("project dgx1-v100 --group gpu0-gpu3:allreduce:1GiB", 2, "write a range like gpu[0-3]"),
        ("project p5 dispatch 1GiB", 2, "takes no size 1GiB, which --tokens gives"),
        ("project tests/data/captures/h200x8/smi_topo.txt allreduce 1MiB --nodes 2", 3, "import and --like hgx-h200"),
        ("compare dgx1-v100 allreduce --algo ring", 2, "Did you mean '--algorithm'?"),
        ("... --dtype bf16", 2, "only bytes count for the time"),
        ("project dgx1-v100 allreduce 100 MB", 2, "a size has no blank; write 100MB"),
        ("advise dgx1-v100 256MiB allreduce --nodes 2", 2,
         "256MiB is a size; the collective comes before it: blinksim advise dgx1-v100 allreduce 256MiB --nodes 2"),
        ("project dgx1-v100 64MiB --why", 2, "before it: blinksim project dgx1-v100 allreduce 64MiB --why"),
        ("... --members 0..3", 2, "--members 0..3 is no range; write it like 0-3"),
        ("... --members 2:", 2, "--members 2: is no range; write it like 2-7"),
        ("compare dgx1-v100 allreduce 1MiB:2GiB", 2, "(1MiB:2GiB): sizes go after --sizes"),
        ("compare h100 a100 allreduce 1MiB 2MiB", 2,
         "joined by commas: blinksim compare h100,a100 allreduce --sizes 1MiB,2MiB (see"),
        ("compare dgx1-v100 allreduce --search", 2, "--search needs a value: --search SECONDS"),
        ("compare dgx1-v100 allreduce --search --sizes 1MiB", 2, "--search needs a value: --search SECONDS (see"),
        ("compare dgx1-v100 allreduce --search long", 2, "'long' is not a number"),
        ("... --nodes", 2, "--nodes needs a value: --nodes INTEGER"),
        ("sweep dgx1-v100 allreduce 1MiB 2GiB", 2, "sizes go after --sizes"),
        ("bound dgx1-v100 allreduce 1MiB", 2, "(1MiB): sizes go after --size (see"),
        ("advise dgx1-v100 allreduce --collective gather", 2, "--collective says what allreduce says; leave one of"),
        ("advise dgx1-v100 allreduce 1MiB --size 2MiB", 2, "--size says what 1MiB says"),
        ("advise allreduce", 2, "the machine comes before it: blinksim advise hgx-h100 allreduce"),
        ("bound aurora allreduce --edit 'replace nic bandwidth=50GB/s'", 2, "link classes: mdfi, xe, "),
        ("... --members 0,1,1", 2, "more than once"),
        ("... --members 0,9", 2, "GPUs 0 to 7"),
        ("... --members 0,gpu99", 2, "unknown device 'gpu99'"),
        ("... --members 0,5", 3, "--relays idle"),
        ("... --links nvlnk", 2, "did you mean 'nvlink'"),
        ("... --rates nominl", 2, "did you mean 'nominal'"),
        ('... --edit "degrade gpu0-gpu5 lanes=1"', 2, "no link gpu0-gpu5"),
        ('... --edit "degrad gpu0-gpu3 lanes=1"', 2, "did you mean 'degrade'"),
        ('... --edit ""', 2, "edit"),
        ("... --root 2", 2, "has no root"),
        ("project dgx1-v100 broadcast 1MB --root 8", 2, "ranks are numbered 0 to 7"),
        ("... --model aurora-projektion", 2, "did you mean"),
        ("project aurora allreduce 1MB --model aurora-projection --rates nominal", 2, "pins the rates"),
        ("project p5 allreduce 1MB --model aurora-projection", 3, "aurora-projection holds for aurora: it needs"),
        ("project p5 allreduce 1MB --model aurora-chain", 3, "aurora-chain holds for aurora: it needs links"),
        ("bound p5 allreduce --why", 2, "what a bound rests on is in every answer"),
        ("project p5 allreduce 1MB --algorithm plan", 2, "a plan of yours is a file, named with its ending"),
        ("project aurora allreduce 1MB --ranks-per-node 13", 2, "a node of aurora has 12"),
        ("project aurora broadcast 1MB --nodes 2 --model aurora-projection", 3, "allreduce"),
        ("project mi250 allreduce 1MB --nodes 0", 2, "nodes"),
        ("compare dgx1-v100 allreduce --sizes 1GiB:1KiB", 2, "runs backwards"),
        ('project hgx-h100 allreduce 1MB --nodes 2 --edit "without n1"', 2, "for a node less lower --nodes"),
        ("project dgx1-v100 dist.all_reduc 1MB", 2, "unknown collective 'dist.all_reduc': did you mean 'allreduce'"),
        ("simulate x.json --size 64MiB", 2, "the size stands last without an option, as in"),
        ("projct", 2, "did you mean project?"),
        ("project nowhere.yaml allreduce 1MB", 2, "nowhere.yaml"),
        ("project nowhere.xml allreduce 1MB", 2, "nowhere.xml"),
        ("project tests allreduce 1MB", 2, "tests"),
        ("topo shwo", 2, "No such command"),
    ],
)  # fmt: skip
def test_bad_input(capsys: pytest.CaptureFixture[str], line: str, status: int, said: str) -> None:
    arguments = shlex.split(line.replace("...", "project dgx1-v100 allreduce 1MB"))
    assert said in refusal(capsys, *arguments, status=status)


def test_topo_list_show_check(capsys: pytest.CaptureFixture[str]) -> None:
    listed = as_json(capsys, "topo", "list")
    names = {row["name"] for row in listed["rows"]}
    assert {"dgx1-p100", "dgx1-v100", "p3.16xlarge", "aurora", "k2200-ntb", "k2200-ethernet", "dgx-a100", "hgx-h100",
            "hgx-h200", "mi250"} <= names  # fmt: skip
    a100 = next(row for row in listed["rows"] if row["name"] == "dgx-a100")
    assert (a100["maker"], a100["year"]) == ("NVIDIA", 2020)
    assert "a100" in a100["aliases"]
    assert as_json(capsys, "topo", "show", "p5")["assumed"] == ["pcie: overhead", "efa: latency"]
    for name in sorted(names):
        text = answer(capsys, "topo", "show", name)
        assert text.partition(":")[0].endswith(name)
        assert as_json(capsys, "topo", "check", name)["ok"] is True
    shown = as_json(capsys, "topo", "show", "dgx1-v100")
    lanes = {(row["src"], row["dst"]): row["lanes"] for row in shown["rows"] if row["class"] == "nvlink"}
    assert lanes["gpu0", "gpu3"] == lanes["gpu3", "gpu0"] == 2


@pytest.mark.parametrize(
    "file",
    [
        CAPTURE,
        "tests/data/captures/h200x4/quad_topo.xml",
        "tests/data/thesis_listing_3_3.xml",
        "tests/data/thesis_listing_4_7.xml",
    ],
)
def test_topo_import_round_trip(capsys: pytest.CaptureFixture[str], tmp_path: Path, file: str) -> None:
    target = tmp_path / "machine.yaml"
    answer(capsys, "topo", "import", file, "-o", str(target))
    assert run(["topo", "import", file, "-o", str(target)]) == 2
    assert "--force" in capsys.readouterr().err
    before, after = (as_json(capsys, "topo", "show", name) for name in (file, str(target)))
    assert before["rows"] == after["rows"]
    assert before["members"] == after["members"]


def test_topo_import_counts_what_holds_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for machine, ranks in (("aurora", "12 tiles"), ("dgx1-v100", "8 GPUs")):
        said = answer(capsys, "topo", "import", machine, "-o", str(tmp_path / machine))
        assert said.startswith(f"{machine}: {ranks}, ")


def test_a_machine_file_with_an_error_ends_the_check_with_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(
        "name: broken\ntitle: two islands\nsource: made up\n"
        "devices: [{name: 'gpu[0-3]', kind: gpu}]\n"
        "link_classes: {nvlink: {bandwidth: 25GB/s, latency: 1us, overhead: 1us, source: made up}}\n"
        "links: [{between: [gpu0, gpu1], class: nvlink}, {between: [gpu2, gpu3], class: nvlink}]\n"
        "collective_links: [nvlink]\n"
    )
    assert "members-connected" in answer(capsys, "topo", "check", str(broken), status=1)


def test_a_picture_has_an_ending_that_says_its_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "dgx1-v100", "allreduce", "--sizes", "1MiB", "--plot", "sizes.bmp"]) == 2
    assert ".png, .svg, .pdf" in capsys.readouterr().err


def test_a_closed_pipe_is_no_error() -> None:
    """`blinksim topo list | head -1`: the reader leaves early."""
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from blinksim.__main__ import main; sys.argv = ['blinksim', 'topo', 'list']; main()"
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == ""
    # As other programs end whose reader leaves: 128 + SIGPIPE, which is no answer of ours.
    assert done.returncode == 141


def test_names_of_nccl_lead_to_algorithms_that_there_are() -> None:
    """None hides an entry of the registry, and every name that a message gives is one."""
    from blinksim.algorithms.registry import REGISTRY
    from blinksim.textio.text_files import read_words

    named = read_words("algorithm")
    assert not {name.replace("_", "") for name in REGISTRY} & named.keys()
    for text in named.values():
        for word in text.replace(";", " ").replace(",", " ").split():
            assert "_" not in word or word in REGISTRY


@pytest.mark.parametrize("word", ["unsearched", "all", "best"])
def test_words_for_several_algorithms_are_told_from_names(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "dgx1-v100", "allreduce", "--sizes", "1MiB", "--algorithms", word]) == 2
    assert f"unknown algorithm '{word}': it stands for several; name some" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (8e9, 7e9, "takes 14.3 % longer"),
        (7e9, 8e9, "takes 12.5 % less time"),
        (7e9, 7e9, "takes as long"),
        (2e9, 1e9, "takes 2.0 times as long"),
        (28.242e9, 1e9, "takes 28.2 times as long"),
    ],
)
def test_edits_cost_time(was: float, now: float, words: str) -> None:
    assert left(was, now, "5 ms, busbw 12 GB/s") == f"5 ms, busbw 12 GB/s without the edit; {words} with it"


def test_edits_that_double_a_rate_say_so() -> None:
    assert left(1e9, 3e9) == "1 GB/s algbw without the edit; 3.0 times as high with it"
    assert left(1e9, 1.5e9) == "1 GB/s algbw without the edit; 50.0 % higher with it"


def test_the_rate_before_is_in_the_unit_of_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("project", "dgx1-v100", "allreduce", "256MiB")
    first = answer(capsys, *asked).splitlines()[0].partition(": ")[2].replace(" with NCCL", "")
    out = answer(capsys, *asked, "--edit", "without gpu0-gpu3", "--before")
    assert f"\n  before            {first} without the edit; " in out


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("bound dgx1-v100 allreduce", lambda found: found["algbw_GBps"]),
        ("project dgx1-v100 allreduce 256MiB", lambda found: found["algbw_GBps"]),
        ("project aurora allreduce 2GB --nodes 4 --model projection", lambda found: found["algbw_GBps"]),
        ("advise dgx1-v100 --members 0-3", lambda found: found["takes"]["algbw_GBps"]),
    ],
)
def test_before_is_the_answer_without_the_edit(
    capsys: pytest.CaptureFixture[str], line: str, rate: Callable[[dict[str, Any]], float]
) -> None:
    edit = "degrade gpu0-gpu3 lanes=1" if "dgx1" in line else "replace xe bandwidth=10GB/s"
    alone = as_json(capsys, *line.split())
    damaged = as_json(capsys, *line.split(), "--edit", edit)
    both = as_json(capsys, *line.split(), "--edit", edit, "--before")
    before = both.pop("before")
    assert both == damaged
    assert rate(before) == rate(alone)
    if "ratio" in before:
        assert before["ratio"] == pytest.approx(rate(damaged) / rate(alone), rel=1e-12)
    printed = answer(capsys, *line.split(), "--edit", edit, "--before")
    if line.startswith("bound"):
        assert f"  before {rate(alone):.4g} GB/s algbw without the edit; " in printed
        assert f"; {100 * (1 - rate(damaged) / rate(alone)):.1f} % lower with it" in printed
    else:
        assert f", busbw {alone.get('takes', alone)['busbw_GBps']:.4g} GB/s without the edit; " in printed
        # As a time, which is what else such an answer says.
        assert f"; takes {100 * (rate(alone) / rate(damaged) - 1):.1f} % longer with it" in printed
    refusal(capsys, *line.split(), "--before")


def test_what_was_assumed_of_a_table_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = [f"GPU{number}" for number in range(4)]
    rows = ["\t".join([a, *(" X " if a == b else "NV18" for b in labels)]) for a in labels]
    table = tmp_path / "tray.txt"
    table.write_text("\n".join(["\t" + "\t".join(labels), *rows]) + "\n", encoding="utf-8")
    assert run(["project", str(table), "allreduce", "1MiB"]) == 0
    said = capsys.readouterr().err
    assert "tray.txt: assumed: NVLinks of Hopper" in said
    assert "put what nvidia-smi -L prints above the table" in said
    assert run(["project", "-q", str(table), "allreduce", "1MiB"]) == 0
    assert capsys.readouterr().err == ""


def test_where_all_points_are_alike_none_is_best(capsys: pytest.CaptureFixture[str]) -> None:
    """A projection of bandwidths alone has one algbw for all sizes; it was "40.84 to 40.84, best at size 64 MB"."""
    words = "sweep aurora allreduce --nodes 64 --ranks-per-node 12 --model aurora-projection --sizes 64MB,2GB"
    assert run(words.split()) == 0
    assert capsys.readouterr().out.splitlines()[0] == "allreduce on aurora: 40.84 GB/s algbw over 2 points"


def test_what_was_typed_comes_back_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["diagnose", "log.txt", "--against", "9" * 5000], ["project", "dgx1-v100", f"--{'x' * 5000}"]):
        assert run(line) == 2
        assert len(capsys.readouterr().err) < 1700


@pytest.mark.parametrize("name", ["p5", "dgx-a100", "aurora"])
def test_help_of_a_machine_points_to_its_page(capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = " ".join(answer(capsys, "help", name).split())
    assert load(name).title in text
    assert text.endswith(f"blinksim topo show {name}")


@pytest.mark.parametrize("machine", ["p5", "p5 --nodes 2", "mi300x --nodes 4"])
def test_a_dispatch_fits_on_nine_lines(capsys: pytest.CaptureFixture[str], machine: str) -> None:
    """Every way is named with its time; terms and the certificate of the floor are asked for."""
    name, *more = machine.split()
    asked = ["project", name, "dispatch", *more]
    short, long = answer(capsys, *asked), answer(capsys, *asked, "--why")
    assert len(short.splitlines()) <= 9
    assert len(long.splitlines()) == len(short.splitlines()) + 2
    assert [line for line in short.splitlines() if line not in long.splitlines()] == []
    ways = json.loads(answer(capsys, *asked, "--json"))["ways"]
    assert any(way["way"] in short for way in ways)
