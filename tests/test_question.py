"""One question, whoever asks it: the command line, a sweep and Python give the same answer and the same refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import blinksim as bs
from blinksim.answers.sweep import sweep
from blinksim.cli.main import run
from blinksim.errors import BlinksimError, InputError
from blinksim.machines import Question, at_rates, preferring
from blinksim.topology.shapes import FORMS

# Settings as the command line takes them; what `Topology.select` makes of the same by hand; None where refused.
PROBES: dict[str, tuple[dict[str, Any], tuple[str, ...] | None, tuple[str, ...] | None]] = {
    "numbers": ({"members": "0,1,4"}, ("gpu0", "gpu1", "gpu4"), ()),
    "range": ({"members": "1-3"}, ("gpu1", "gpu2", "gpu3"), ()),
    "order is kept": ({"members": "gpu3,0"}, ("gpu3", "gpu0"), ()),
    "idle": ({"members": "0,5", "relays": "idle"}, ("gpu0", "gpu5"), tuple(f"gpu{i}" for i in (1, 2, 3, 4, 6, 7))),
    "listed relays": ({"members": "0,5", "relays": "1,4-5"}, None, None),
    "file numbers": ({"members": "6,7", "edits": ("without gpu0",)}, ("gpu6", "gpu7"), ()),
    "leading zeros": ({"members": "0000000003,1"}, ("gpu3", "gpu1"), ()),
    "cut range": ({"members": "0-"}, None, None),
    "backwards": ({"members": "3-1"}, None, None),
    "too large": ({"members": "0,8"}, None, None),
    "far too large": ({"members": "10000000000"}, None, None),
    "other digits": ({"members": "\u0663"}, None, None),
    "missing name": ({"members": "0,,1"}, None, None),
    "misspelt relays": ({"members": "0,5", "relays": "idel"}, None, None),
    "reducing nothing": ({"members": "0,1", "relays_reduce": True}, None, None),
    "two ways": ({"members": "0,1", "ranks_per_node": 2}, None, None),
    "no class": ({"links": ","}, None, None),
}


def typed(settings: dict[str, Any]) -> list[str]:
    words = []
    for name, value in settings.items():
        if name == "edits":
            words += [f"--edit={edit}" for edit in value]
        elif value is True:
            words.append(f"--{name.replace('_', '-')}")
        else:
            words.append(f"--{name.replace('_', '-')}={value}")
    return words


@pytest.mark.parametrize("name", PROBES)
def test_every_way_to_ask_agrees(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings, members, relays = PROBES[name]
    question = Question("dgx1-v100", **settings)
    status = run(["bound", "dgx1-v100", "allgather", "--json", *typed(settings)])
    printed = capsys.readouterr()
    row = sweep("dgx1-v100", "allgather", ["1MiB"], base=question).rows()[0]
    if members is None:
        with pytest.raises(BlinksimError) as refused:
            question.part()
        assert status == refused.value.exit_code == 2
        assert row["reason"] == str(refused.value)
        assert printed.err.count("\n") == 1
        assert "=" not in printed.err.replace("--edit=", "")
        return
    part = question.part()
    assert (part.members, part.relays) == (members, relays)
    answer = json.loads(printed.out)
    assert (tuple(answer["members"]), tuple(answer["relays"])) == (members, relays)
    assert row["ranks"] == len(members)


def test_python_values_are_as_good_as_text() -> None:
    text = Question("dgx1-v100", members="0,1,4", relays="2,3", links="nvlink", edits=("without gpu0-gpu1",))
    values = Question.of(
        "dgx1-v100", members=[0, "gpu1", 4], relays=(2, 3), links=["nvlink"], edits="without gpu0-gpu1"
    )
    assert values.part() == text.part()
    with pytest.raises(InputError, match="a question has no 'node'"):
        Question.of("dgx1-v100", node=2)


def test_a_topology_is_asked_at_its_own_rates_only() -> None:
    seed = bs.load("dgx1-v100", rates="seed")
    assert Question(seed, nodes=1).whole() == seed
    assert Question(seed, rates="seed").whole() == seed
    with pytest.raises(InputError, match=r"loaded at seed \(qpi, ib: nominal\) rates"):
        Question(seed, rates="nccl").whole()


def test_numbers_on_a_cluster_count_all_nodes() -> None:
    assert Question("hgx-h200", nodes=2, members="7,15").part().members == ("n0.gpu7", "n1.gpu7")
    assert Question(bs.load("hgx-h200"), nodes=2, members="7,15").part().members == ("n0.gpu7", "n1.gpu7")


# Rates that these machines have a table of; at others they stay as they are.
TABLES = {("aurora", "seed"), ("dgx-a100", "nccl"), ("dgx1-v100", "nccl"), ("dgx1-v100", "seed"), ("hgx-h200", "nccl")}


@pytest.mark.parametrize("name", ["aurora", "dgx-a100", "dgx1-v100", "hgx-h200"])
@pytest.mark.parametrize("rates", ["nccl", "seed"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_loaded_machine_at_other_rates_is_the_machine_loaded_at_them(name: str, rates: str, nodes: int) -> None:
    known = (name, rates) in TABLES
    wanted = bs.load(name, nodes=nodes, rates=rates) if known else bs.load(name, nodes=nodes)
    assert preferring(bs.load(name, nodes=nodes), rates) == wanted
    assert (wanted != bs.load(name, nodes=nodes)) == known


def test_edits_stay_at_other_rates() -> None:
    edit = "replace gpu0-gpu3 bandwidth=7GB/s"
    wanted = bs.load("dgx1-v100", rates="nccl", edits=edit)
    assert preferring(bs.load("dgx1-v100", edits=edit), "nccl") == wanted


@pytest.mark.parametrize(
    ("machine", "nodes", "edit", "rates"),
    [
        # The first leaves the nominal rate as it is, which is no rate of the other table.
        ("aurora", 16, "replace xe bandwidth=53GB/s", "seed"),
        ("aurora", 16, "without n3.nic[0-3]", "seed"),
        ("hgx-h100", 1, "degrade gpu0-nvswitch lanes=9", "nccl"),
        ("hgx-h100", 2, "replace nvlink bandwidth=25GB/s", "nccl"),
        ("dgx1-v100", 1, "without gpu0-gpu3", "measured"),
    ],
)
def test_edits_stay_at_another_table_of_rates(machine: str, nodes: int, edit: str, rates: str) -> None:
    """As if the machine had been loaded at that table at once."""
    found = at_rates(bs.load(machine, nodes=nodes, edits=edit), rates)
    wanted = bs.load(machine, nodes=nodes, edits=edit, rates=rates)
    assert (found.links, found.devices, found.rates) == (wanted.links, wanted.devices, wanted.rates)
    assert (found.nccl_rates, found.execution) == (wanted.nccl_rates, wanted.execution)


@pytest.mark.parametrize("machine", ["p5", "hgx-h100", "dgx1-v100"])
@pytest.mark.parametrize("rates", ["nominal", "nccl"])
def test_a_machine_at_other_rates_is_the_one_that_is_loaded_at_these(machine: str, rates: str) -> None:
    """So that what is worked out of it, such as clusters of thousands of nodes, is not worked out twice."""
    other = {"nominal": "nccl", "nccl": "nominal"}[rates]
    assert at_rates(bs.load(machine, rates=other), rates) is bs.load(machine, rates=rates)


def test_a_machine_without_what_was_measured_of_it_keeps_none_at_other_rates() -> None:
    plain = replace(bs.load("hgx-h200", rates="measured"), execution=None)
    assert at_rates(plain, "nominal").execution is None


@pytest.mark.parametrize("form", FORMS)
def test_a_shape_without_its_sizes_is_shown_with_some(form: str) -> None:
    with pytest.raises(InputError, match=f"did you mean .*'{form}:[0-9x]+'"):
        bs.load(form)
