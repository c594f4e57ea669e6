"""Certificates of expert traffic and of groups: read back, proved without a solver, and any change is noticed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import blinksim as bs
from blinksim.cli.main import run
from blinksim.errors import BlinksimError

DISPATCH = ("hgx-h100", "dispatch", "--nodes", "2", "--tokens", "32", "--experts", "32", "--topk", "4", "--seed", "3")
COMBINE = ("mi355x", "combine", "--tokens", "32", "--experts", "16", "--topk", "2", "--skew", "0.8")
PAIRS = ("dgx1-v100", "--group", "0,1", "--group", "2,3:allgather", "--relays", "others", "--relays-reduce")
MESH = ("hgx-h100", "--mesh", "2x4", "--size", "64MiB")
UNEVEN = ("full:8@50GB/s", "--group", "0,1:allreduce:64MiB", "--group", "0,2,3:broadcast:1GiB")
CASES = {"dispatch": DISPATCH, "combine": COMBINE, "pairs": PAIRS, "mesh": MESH, "uneven": UNEVEN}


def written(path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> dict[str, Any]:
    assert run(["bound", *words, "--json"]) == 0
    text = capsys.readouterr().out
    path.write_text(text)
    found: dict[str, Any] = json.loads(text)
    return found


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all numbers, texts and truths in a document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*way, key))
    if not isinstance(value, (dict, list)):
        yield way


def another(value: Any, luck: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + luck.choice([1, -1, 7, 10**6])
    if isinstance(value, float):
        return value * luck.choice([0.5, 1.01, 2.0, -1.0])
    if value is None:
        return 1
    try:
        return str(Fraction(value) * Fraction(luck.choice([1, 3, 4]), 2) or Fraction(1, 3))
    except ValueError:
        return value + luck.choice(["x", "0"])


def changed(document: dict[str, Any], way: tuple[Any, ...], luck: random.Random) -> dict[str, Any]:
    found = copy.deepcopy(document)
    inner = found
    for key in way[:-1]:
        inner = inner[key]
    if isinstance(inner, list) and luck.random() < 0.3:
        del inner[way[-1]]
    else:
        inner[way[-1]] = another(inner[way[-1]], luck)
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_bound_prints_is_proved(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bound.json"
    written(path, capsys, CASES[name])
    found = bs.verify_file(path)
    assert found.ok, found.text()
    assert found.proved, found.text()
    assert run(["verify", str(path)]) == 0


@pytest.mark.parametrize("name", CASES)
def test_mutants_are_refused(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A hundred of each, at every place at least once: refused, or said to be not proved."""
    document, luck = written(tmp_path / "bound.json", capsys, CASES[name]), random.Random(name)
    ways = [*places(document)]
    luck.shuffle(ways)
    path, believed = tmp_path / "mutant.json", []
    for number in range(max(100, len(ways))):
        way = ways[number % len(ways)]
        path.write_text(json.dumps(changed(document, way, luck)))
        try:
            if bs.verify_file(path).proved:
                believed.append(next((key for key in ("relays", "assumes", "words") if key in way), way[0]))
        except BlinksimError:
            pass
    # A simulation is no claim of the bound, one without a search claims less, no links are those of the machine, and a
    # group may have its rate without one of its relays, or where relays may add too. Sentences are for people.
    true = {"simulated_s", "searched", "links", "relays", "relays_reduce"}
    assert {*believed} <= {*true, "assumes", "words"}
