"""The site is built without a warning, holds every page, and documents every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import blinksim

ROOT = Path(__file__).resolve().parents[1]
# A module, and the members that are shown of it (all, if none are named).
DIRECTIVE = re.compile(r"^::: (blinksim[\w.]*)$(?:\n    options: \{members: \[([^\]]*)\]\})?", re.MULTILINE)


def pages(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [page for value in values for page in pages(value)]  # type: ignore[union-attr]


def test_every_page_is_in_the_menu_and_on_the_first_page() -> None:
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert set(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])) == there
    first = (ROOT / "docs" / "index.md").read_text()
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", first)) == there - {"index.md"}


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    shown = {module: re.findall(r"\w+", names) for module, names in DIRECTIVE.findall(text)}
    values = [getattr(blinksim, name) for name in blinksim.__all__ if name != "plot"]
    values += [getattr(blinksim.plot, name) for name in blinksim.plot.__all__ if name.islower()]
    for value in values:
        assert value.__module__ in shown, f"{value.__name__} of {value.__module__}"
        names = shown[value.__module__]
        assert not names or value.__name__ in names, f"{value.__name__} of {value.__module__}"


def test_every_statement_of_the_sources_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "features.md").read_text()
    rows = re.findall(r"^\| F(\d\d) \|", text, re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, 68))
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", text)
    assert len(named) >= 67 - 10
    for file, test in named:
        assert re.search(rf"^def {test}\b", (ROOT / "tests" / file).read_text(), re.MULTILINE), f"{file}::{test}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site" / "api.html").read_text()
    assert "blinksim.answers.sweeps.sweep.sweep" in reference
    assert "axes by name" in reference
