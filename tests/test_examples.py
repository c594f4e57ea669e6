"""The programs in examples/: each is short, opens with its question, and prints what docs/examples.md shows."""

from __future__ import annotations

import ast
import re
import tempfile
from pathlib import Path

import pytest
from test_notebooks import public_names_taken
from test_readme import FILE, ROOT, examples, run_command, same

PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
PRINTED = {example.command.split()[1]: example.expected for example in examples(PAGE)}
PICTURES = re.findall(r"^!\[[^\]]+\]\(pictures/(\w+)\.png\)$", PAGE, re.MULTILINE)


def test_the_page_shows_every_program_below_its_question() -> None:
    assert len(PROGRAMS) == 25
    assert dict(FILE.findall(PAGE)) == {path.name: path.read_text(encoding="utf-8") for path in PROGRAMS}
    assert sorted(PRINTED) == [path.name for path in PROGRAMS]
    below = re.findall(r'^### (.+)\n\n```python title="\w+\.py"\n"""(.+)$', PAGE, re.MULTILINE)
    assert len(below) == len(PROGRAMS)
    assert [(heading, question) for heading, question in below if heading != question] == []


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_it_is_short_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 40
    question, empty, how = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert question.endswith("?")
    assert not empty
    assert how.startswith(f"Run it with: python {path.name}")
    assert ("PICTURE" in how) == (path.stem in PICTURES)
    assert public_names_taken(ast.parse(text))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_it_prints_what_the_page_shows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _, printed = run_command(["python", str(path)], monkeypatch)
    assert same(PRINTED[path.name], printed.splitlines()), printed
    assert len(printed.splitlines()) <= 10
    if path.stem in PICTURES:
        # Other versions of matplotlib may draw other bytes than those of the picture on the page.
        for folder in (tmp_path, ROOT / "docs" / "pictures"):
            assert (folder / f"{path.stem}.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_goes_where_the_argument_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(PICTURES) == 6
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wanted = tmp_path / "square.svg"
    _, printed = run_command(["python", str(ROOT / "examples" / "own_machine.py"), str(wanted)], monkeypatch)
    assert printed.splitlines()[-1] == f"{wanted} shows where."
    assert wanted.read_text().count("<svg") == 1
