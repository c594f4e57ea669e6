"""The ratchet: the size of every room, and signs of code cut too small or grown too dense, only fall."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from code_size import code_lines, dense_functions, grown, measure, private_functions, rows
from source_tree import ROOT, write_package


@pytest.fixture(scope="module")
def now() -> dict[str, int]:
    return measure(ROOT)


def test_nothing_grows(now: dict[str, int]) -> None:
    assert grown(now) == {}, "now and limit; see tests/code_size.py"


def test_a_new_file_fits_and_no_more() -> None:
    limits = {what: limit for what, limit, _ in rows()}
    assert grown({**limits, "algorithms": limits["algorithms"] + 40, "functions": limits["functions"] + 3}) == {}
    more = {**limits, "algorithms": limits["algorithms"] + 61, "dense functions": limits["dense functions"] + 1}
    assert grown(more).keys() == {"algorithms", "dense functions"}


def test_an_algorithm_of_one_file_fits_as_the_code_stands(now: dict[str, int]) -> None:
    """As does a timing model or a format; code without an entry of its own does not, once a room is full."""
    more = {"algorithms": 60, "all code lines": 60, "functions": 8, "modules": 1, "files with an entry": 1}
    assert grown({what: count + more.get(what, 0) for what, count in now.items()}) == {}
    full = {what: limit for what, limit, _ in rows()}
    assert grown(full | {"algorithms": full["algorithms"] + 120, "files with an entry": 39}) == {}
    assert grown(full | {"algorithms": full["algorithms"] + 61}).keys() == {"algorithms"}


def test_code_lines_leave_out_comments_and_docstrings() -> None:
    text = (
        '"""One\ntwo."""\n\n# Comment.\nX = """a\nb"""  # two lines\n\n\ndef f():\n    """No code."""\n    return X\n'
    )
    assert code_lines(text, ast.parse(text)) == 4


def test_one_caller_is_seen() -> None:
    tree = ast.parse(
        "def _once(): ...\ndef _twice(): ...\nclass C:\n    def _m(self): _once(); _twice(); _twice(); self._m"
    )
    assert private_functions(tree) == (3, 2)


def test_dense_functions_are_seen() -> None:
    for branches, dense in ((17, 0), (18, 1)):
        body = "".join(f"    if x == {n}:\n        x = 0\n" for n in range(branches))
        assert dense_functions(ast.parse(f"def f(x):\n{body}    return x\n")) == dense


def test_rooms_are_counted(tmp_path: Path) -> None:
    write_package(tmp_path, {"units.py": "x = 1", "bounds/cut.py": "def f():\n    return 1\n"})
    found = measure(tmp_path)
    assert (found["(top level)"], found["bounds"], found["functions"]) == (1, 2, 1)
