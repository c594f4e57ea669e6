"""The notebooks run from beginning to end, say their question first and their answer last, and use what is public."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PUBLIC = re.compile(r"^::: (blinksim[\w.]*)$", re.MULTILINE)


def cells(path: Path, kind: str) -> list[str]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def code(path: Path) -> ast.Module:
    lines = [line for cell in cells(path, "code") for line in cell.splitlines() if not line.startswith("%")]
    return ast.parse("\n".join(lines))


def test_all_are_listed() -> None:
    text = (ROOT / "notebooks" / "README.md").read_text()
    assert len(NOTEBOOKS) == 10
    assert [path.name for path in NOTEBOOKS] == re.findall(r"\]\((\d[^)]*\.ipynb)\)", text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_opens_with_a_question_and_ends_with_an_answer(path: Path) -> None:
    words = cells(path, "markdown")
    assert re.match(r"# [^\n]+\?\n", words[0])
    assert words[-1].startswith("## Answer\n")
    assert json.loads(path.read_text())["cells"][-1]["cell_type"] == "markdown"


def public_names_taken(tree: ast.Module) -> int:
    """How many names of blinksim the code takes; fails for one that is not public."""
    import blinksim

    public = set(PUBLIC.findall((ROOT / "docs" / "api.md").read_text()))
    taken = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("blinksim"):
            modules = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            assert modules & public, f"{node.module} is not among the modules of docs/api.md"
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")
            if isinstance(node.value, ast.Name) and node.value.id == "bs":
                assert node.attr in blinksim.__all__
                taken += 1
    return taken


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_uses_the_public_interface_only(path: Path) -> None:
    assert public_names_taken(code(path))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    book = nbformat.read(path, as_version=4)
    kept = [cell.get("outputs", []) for cell in book.cells]
    resources = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=resources).execute()
    # What is printed, and every table, is what the file shows; of a picture only that there is one.
    for cell, before in zip(book.cells, kept, strict=True):
        if cell.cell_type == "code":
            assert printed(cell.outputs) == printed(before), cell.source


@pytest.mark.parametrize("there", [True, False])
def test_sliders_are_shown_where_they_can_be(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (sliders,) = (cell for cell in cells(NOTEBOOKS[-1], "code") if "ipywidgets" in cell)
    if there:
        pytest.importorskip("ipywidgets")
    else:
        monkeypatch.setitem(sys.modules, "ipywidgets", None)

    def picture(nodes: int, size: str, broken: str) -> None: ...

    names: dict[str, Any] = {"picture": picture, "HURT": {"nothing": "", "an adapter": "without n0.nic0"}}
    exec(sliders, names)
    controls = names["board"].children if there else ()
    assert [control.description for control in controls[:3]] == ["nodes", "size", "broken"] * there


def printed(outputs: list[Any]) -> str:
    """The text of outputs without pictures; none says how long the work took."""
    texts = [entry.get("text") or entry.get("data", {}).get("text/plain", "") for entry in outputs]
    return "".join(text for text in texts if not text.startswith(("<Figure", "interactive(")))
