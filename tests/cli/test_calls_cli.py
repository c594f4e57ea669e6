"""``--protocol`` and ``--calls`` of project and compare: what is timed of a program on measured GPUs."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from blinksim.cli.commands import ModelOptions
from blinksim.cli.main import run
from blinksim.gpu.execution_time.simulate_blocks import CALLS
from blinksim.gpu.programs.program import PROTOCOLS

PROJECT = ("project", "hgx-h200", "broadcast", "1MiB", "--rates", "measured", "--algorithm", "chain")


def test_the_choices_are_those_of_the_model() -> None:
    offered = {name: kind.choices for name, kind in _kinds() if isinstance(kind, click.Choice)}
    assert (tuple(offered["protocol"]), tuple(offered["calls"])) == (PROTOCOLS, CALLS)


def _kinds() -> list[tuple[str | None, click.ParamType[Any]]]:
    return [(parameter.name, parameter.type) for parameter in ModelOptions.parameters("project")]


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run([*PROJECT, "--json", *arguments]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_protocol_and_calls_are_taken_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    usual = asked(capsys)
    assert (usual["model"], usual["calls"]) == ("execution", "graph")
    simple, apart = asked(capsys, "--protocol", "simple"), asked(capsys, "--calls", "apart")
    assert (simple["protocol"], apart["calls"]) == ("simple", "apart")
    graph, host, row = (asked(capsys, "--calls", calls) for calls in ("graph", "host", "successive"))
    assert float(str(graph["time_s"])) == float(str(usual["time_s"])) < float(str(row["time_s"]))
    assert float(str(host["time_s"])) >= 17e-6
    assert float(str(apart["time_s"])) > float(str(row["time_s"]))
    assert float(str(usual["time_s"])) <= float(str(simple["time_s"]))


def test_a_comparison_takes_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "hgx-h200", "allreduce", "--rates", "measured", "--sizes", "1MiB", "--algorithms", "ring")
    times = []
    for protocol, calls in (("simple", "graph"), ("ll128", "successive")):
        assert run([*words, "--protocol", protocol, "--json"]) == 0
        [row] = json.loads(capsys.readouterr().out)["rows"]
        assert row["model"] == "execution"
        assert (row["protocol"], row["calls"]) == (protocol, calls)
        times.append(row["time_s"])
    assert times[0] > 1.3 * times[1]
    assert run([*words, "--calls", "apart"]) == 0
    found = capsys.readouterr().out
    assert "  calls each by itself, begun by all GPUs at once\n  constants measured on 2 to 8 NVIDIA H200" in found
    assert run([*words[:4], "nominal", *words[5:], "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert not {"protocol", "calls"} & row.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("project", "dgx1-v100", "allreduce", "1MiB", "--algorithm", "best", "--calls", "apart"),
            "--protocol and --calls are",
        ),
        (("project", "hgx-h200", "allreduce", "1MiB", "--model", "simulate", "--calls", "apart"), "--calls is about"),
        (("compare", "hgx-h200", "allreduce", "--model", "alpha-beta", "--protocol", "simple"), "--protocol is about"),
    ],
)
def test_they_are_refused_where_nothing_was_measured(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run([*arguments]) == 2
    assert message in capsys.readouterr().err
