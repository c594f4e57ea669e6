"""A thousand changes of the schedules of groups that share a machine: refused, or right by a second opinion."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from independent_check import check

import blinksim as bs
from blinksim.errors import BlinksimError

GROUPS = {
    "pairs": ("full:8@50GB/s", ["0,1", "2,3", "4,5", "6,7"]),
    "mixed": ("full:8@50GB/s", ["0,1", "2,3:broadcast", "4-7:allgather"]),
    "tenants": ("dgx1-v100", ["0,1", "2,3:allgather", "4-7:reducescatter"]),
    "quads": ("mi355x", ["0-3", "4-7"]),
}
EACH = 250


def changed(document: dict[str, Any], luck: random.Random) -> str:
    """The file with one send, chunk or route other than it was."""
    found = json.loads(json.dumps(document))
    lists = [found[key] for key, value in found.items() if isinstance(value, list) and value and key != "machine"]
    lists += [
        value for part in found.values() if isinstance(part, dict) for value in part.values() if isinstance(value, list)
    ]
    rows = luck.choice([rows for rows in lists if len(rows) > 1])
    place = luck.randrange(len(rows))
    match luck.randrange(4):
        case 0:
            del rows[place]
        case 1:
            rows.append(rows[place])
        case 2:
            other = luck.randrange(len(rows))
            rows[place], rows[other] = rows[other], rows[place]
        case _:
            inner, key = rows, place
            while isinstance(inner[key], (list, dict)) and inner[key]:
                inner = inner[key]
                key = luck.choice([*inner]) if isinstance(inner, dict) else luck.randrange(len(inner))
            value = inner[key]
            inner[key] = value + luck.choice([1, -1]) if type(value) is int else f"{value}1"
    return json.dumps(found)


@pytest.mark.parametrize("name", GROUPS)
def test_mutants_are_refused_or_right(name: str, tmp_path: Path) -> None:
    machine, groups = GROUPS[name]
    question = bs.Question(machine, relays="others", relays_reduce=True)
    documents = []
    for number, group in enumerate(bs.together(question, groups).groups):
        assert group.schedule is not None
        bs.write(group.schedule, tmp_path / f"{number}.json")
        assert bs.verify_file(tmp_path / f"{number}.json").ok
        documents.append(json.loads((tmp_path / f"{number}.json").read_text()))
    luck, path, refused, right = random.Random(name), tmp_path / "mutant.json", 0, 0
    for number in range(EACH):
        path.write_text(changed(documents[number % len(documents)], luck))
        try:
            schedule = bs.read_schedule(path)
            believed = bs.verify_file(path).ok
        except BlinksimError:
            refused += 1
            continue
        if believed:
            assert check(schedule) == []
            right += 1
        else:
            refused += 1
    assert refused > right
    assert refused + right == EACH
