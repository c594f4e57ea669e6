"""What docs/promises.md promises: files of 0.1 are read and answered as they were then, and no name has gone.

tests/data/compatibility holds files as the commits in answers.json wrote or shipped them, and what these answered.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from promised import FILE, names
from test_readme import run_command

FOLDER = FILE.parent
ASKED: list[dict[str, Any]] = json.loads((FOLDER / "answers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked["command"])
def test_a_file_of_then_is_answered_as_then(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    status, printed = run_command(["blinksim", *shlex.split(asked["command"]), "--json"], monkeypatch)
    found = json.loads(printed)
    assert asked["answer"]
    for key, value in asked["answer"].items():
        assert found[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key
    # Of words nothing is asked, but one file has a bound that its schedule does not attain.
    attained = asked["command"] != "verify version-1-steps.json"
    assert [text for text in found.get("unproved", ()) if attained or "some schedule attains" not in text] == []
    assert status == (0 if attained else 5)


def test_every_file_of_then_is_asked_for() -> None:
    asked = " ".join(entry["command"] for entry in ASKED)
    # tests/nccl/test_tuner_files.py has the plugin read the tuner file.
    others = {"answers.json", "names.json", "tuner.csv"}
    assert [path.name for path in FOLDER.iterdir() if path.name not in others and path.name not in asked] == []
    versions = {json.loads(path.read_text())["version"] for path in FOLDER.glob("version-*.json")}
    assert versions == {1, 2, 3}


@pytest.mark.parametrize("kind", ["commands", "answers", "python"])
def test_no_name_has_gone(kind: str) -> None:
    promised, now = json.loads(FILE.read_text(encoding="utf-8"))[kind], names()[kind]
    gone = {name: sorted(set(parts) - set(now.get(name, ()))) for name, parts in promised.items()}
    assert {name: parts for name, parts in gone.items() if parts or name not in now} == {}, "see docs/promises.md"
