"""The pages keep their word: every command and Python session runs, its output is compared, every link is followed.

A block holds `$ blinksim …` lines, each followed by exactly what the command prints (stderr before stdout, empty lines
too); a line of only `…` or `...` stands for any lines left out. A command that does not end with status 0 says so in a
comment: `$ blinksim verify broken.json  # exit 1`. The commands of one page run in order, in one temporary folder in
which the checkout's data folders can be reached by their names, and where a block with `title="FILE"` is a file.
`pycon` blocks are doctests; `python` blocks must run. tests/test_examples.py runs the programs of docs/examples.md.
`python tests/refresh_pages.py` writes the current output into the pages.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(ROOT / name / "README.md" for name in ("models", "notebooks", "schedules", "topologies", "validate")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
DATA_FOLDERS = ("topologies", "models", "schedules", "validate", "tests")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r'^```\w+ title="([\w.-]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
STATUS = re.compile(r"#\s*exit (\d)\s*$")
ELLIPSES = ("…", "...")


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def furnish(folder: Path, text: str) -> None:
    """Puts into a folder what the commands of a page reach: the data folders and the files that the page shows."""
    for name in DATA_FOLDERS:
        (folder / name).symlink_to(ROOT / name)
    for name, contents in FILE.findall(text):
        (folder / name).write_text(contents)


class Example(NamedTuple):
    """A command of a page, what the page says that it prints, and the exit status that it says."""

    line: int
    command: str
    expected: list[str]
    status: int


def examples(text: str) -> list[Example]:
    """The commands of all console blocks in a page, in order."""
    found: list[Example] = []
    for block in BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(1)) + 1
        inside: list[Example] = []
        for offset, line in enumerate(block.group(1).splitlines()):
            if line.startswith("$ "):
                status = STATUS.search(line)
                inside.append(Example(start + offset, line[2:], [], int(status.group(1)) if status else 0))
            else:
                assert inside, f"line {start + offset}: output before the first command: {line!r}"
                inside[-1].expected.append(line)
        found += inside
    return found


PROGRESS = re.compile(r"still at work after |\d+ of \d+ pieces of work are done$")


def same(expected: list[str], actual: list[str]) -> bool:
    """Whether the lines agree, an ellipsis in `expected` standing for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() in ELLIPSES else re.escape(line.rstrip()) + "\n" for line in expected
    )
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in actual)) is not None


def run_command(command: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Exit status and output of blinksim or of a Python file, run in this process as a shell would."""
    from blinksim.cli.main import run

    python = command[0] == "python"
    monkeypatch.setattr(sys, "argv", command[1:] if python else command)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if python:
            runpy.run_path(command[1], run_name="__main__")
        status = 0 if python else run()
    # How long a command takes depends on the computer; what it answers does not.
    said = [line for line in err.getvalue().splitlines(keepends=True) if not PROGRESS.match(line)]
    return status, "".join(said) + out.getvalue()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.parent.name == "docs" else [])
        for page in PAGES
        if examples(page.read_text()) and page.name != "examples.md"
    ],
    ids=page_id,
)
def test_examples_print_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(tmp_path, page.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    for line, command, expected, status in examples(page.read_text()):
        words = shlex.split(command, comments=True)
        where = f"{page.relative_to(ROOT)}:{line}: $ {command}"
        assert words[0] == "blinksim", f"{where}\nonly blinksim runs in console blocks; use a sh block for the rest"
        ended, printed = run_command(words, monkeypatch)
        assert ended == status, f"{where}\nended with status {ended}, the page says {status}:\n{printed}"
        assert same(expected, printed.splitlines()), f"{where}\nprints:\n{printed}\nnot:\n" + "\n".join(expected)


WITH_PYTHON = [page for page in PAGES if PYTHON.search(page.read_text())]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=page_id)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in PYTHON.findall(page.read_text()):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if SESSION.search(page.read_text())], ids=page_id)
def test_python_sessions_give_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session = "\n".join(SESSION.findall(page.read_text()))
    test = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
    assert test.examples
    report = io.StringIO()
    found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.write)
    assert found.failed == 0, report.getvalue()


def test_the_readme_asks_its_three_questions_on_one_screen() -> None:
    text = (ROOT / "README.md").read_text()
    assert [example.command.split()[1] for example in examples(text)] == ["project", "bound", "advise"]
    assert SESSION.search(text)
    assert len(text.splitlines()) <= 100


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if not target.startswith(("https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_console_blocks_are_read_as_written() -> None:
    text = "Text\n```console\n$ blinksim a 'b c'\none\n\n…\nlast\n$ blinksim d  # exit 2\n```\n```sh\n$ not me\n```\n"
    assert examples(text) == [
        Example(3, "blinksim a 'b c'", ["one", "", "…", "last"], 0),
        Example(8, "blinksim d  # exit 2", [], 2),
    ]


@pytest.mark.parametrize(
    ("expected", "actual", "agree"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["a", "c"], False),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a"], False),
        (["a", "...", "d"], ["a", "b", "c", "d"], True),
        (["a", "…", "d"], ["a", "d"], True),
        (["a", "…", "d"], ["a", "b", "c"], False),
        (["1.5 s (x)"], ["105 s (x)"], False),
        ([], [], True),
        ([], ["a"], False),
    ],
)
def test_outputs_are_compared_line_by_line(expected: list[str], actual: list[str], agree: bool) -> None:
    assert same(expected, actual) is agree


def test_a_block_between_ellipses_keeps_its_lines() -> None:
    from refresh_pages import renewed

    assert renewed(["…", "a 1", "b 1", "…"], ["x", "a 2", "b 2", "y"]) == ["…", "a 2", "b 2", "…"]
    # Fewer lines than there were: no ellipsis, which would match anything, stands for all of them.
    assert renewed(["…", "a 1", "b 1", "…"], ["a 2"]) == ["a 2"]
    assert renewed(["a 1", "…"], ["a 2", "x", "y"]) == ["a 2", "…"]
