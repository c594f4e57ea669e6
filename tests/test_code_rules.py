"""Rules for functions and texts: few parameters, typed commands, no command-line options in the library.

What does not keep a rule stands in a list here. An entry that is no longer needed fails its test, so lists only shrink.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from source_tree import ROOT, excused, modules, nodes, part_of, repository_files, syntax, write_package

# pyproject.toml has them for ruff; a method's own object is no parameter, nor are ``*args``.
MAX_PARAMETERS = 8
PARAMETERS = "PLR0913"

MANY_PARAMETERS = {
    "blinksim/answers/logs/diagnose.py: diagnose": "one keyword for each option of the command",
    "blinksim/answers/logs/locate.py: locate": "one keyword for each option of the command",
    "blinksim/answers/place.py: place": "one keyword for each option of the command",
    "blinksim/answers/sweep.py: sweep": "one keyword for each option of the command",
    "blinksim/bounds/experts.py: draw_routing": "one keyword for each option of the command",
    "blinksim/timing/simulator.py: simulate": "one keyword for each option of the command",
    "tests/nccl_tests_logs.py: text": "one keyword for each part of a log",
}
OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in nodes(tree) if isinstance(node, Function))


def refused(root: Path, files: list[Path], rule: str) -> set[str]:
    """Functions that a rule of ruff refuses, with the limits of pyproject.toml."""
    # Parameters with a name like _unused count too.
    limits = ["--config", str(ROOT / "pyproject.toml"), "--config", "lint.dummy-variable-rgx = '^$'"]
    options = [*limits, "--select", rule, "--ignore-noqa", "--output-format", "json"]
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--exit-zero", *options, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    return {_named(root, found) for found in json.loads(done.stdout)}


def _named(root: Path, found: dict[str, Any]) -> str:
    """The file, and the name that ruff points at."""
    path, (start, end) = Path(found["filename"]), (found["location"], found["end_location"])
    line = path.read_text(encoding="utf-8").splitlines()[start["row"] - 1]
    return f"{path.relative_to(root.resolve()).as_posix()}: {line[start['column'] - 1 : end['column'] - 1]}"


def untyped_commands(root: Path) -> set[str]:
    """Modules of cli with `Any` in the type of a parameter or of what a function returns."""
    return {
        path.relative_to(root).as_posix()
        for name, path in modules(root).items()
        if part_of(name) == "cli"
        for function in functions(syntax(path))
        if any(_says_any(annotation) for annotation in _annotations(function))
    }


def _annotations(function: Function) -> Iterator[ast.expr]:
    given = function.args
    parameters = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    yield from (parameter.annotation for parameter in parameters if parameter and parameter.annotation)
    if function.returns:
        yield function.returns


def _says_any(annotation: ast.expr) -> bool:
    return any(
        (isinstance(node, ast.Name) and node.id == "Any") or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(annotation)
    )


def options_in_text(root: Path) -> set[str]:
    """Modules outside cli with a command-line option in a text; docstrings are not texts that users meet."""
    found = set()
    for name, path in modules(root).items():
        if part_of(name) in ("cli", "__main__"):
            continue
        tree = syntax(path)
        docstrings = {id(node) for node in _docstrings(tree)}
        for node in nodes(tree):
            text = node.value if isinstance(node, ast.Constant) and id(node) not in docstrings else None
            if isinstance(text, str) and OPTION.search(text):
                found.add(path.relative_to(root).as_posix())
    return found


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    for node in nodes(tree):
        match node:
            case ast.Module(body=[ast.Expr(value=text), *_]) | ast.ClassDef(body=[ast.Expr(value=text), *_]):
                yield text
            case (
                ast.FunctionDef(body=[ast.Expr(value=text), *_]) | ast.AsyncFunctionDef(body=[ast.Expr(value=text), *_])
            ):
                yield text


def sources() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py"]


def test_ruff_knows_the_limits() -> None:
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert limits["pylint"]["max-args"] == MAX_PARAMETERS


def test_functions_have_few_parameters() -> None:
    assert excused(refused(ROOT, sources(), PARAMETERS), MANY_PARAMETERS) == []


def test_many_parameters_are_found(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(MAX_PARAMETERS)]
    text = f"def few({', '.join(names)}, *rest, **others): ...\nclass C:\n    def few(self, {', '.join(names)}): ...\n"
    path = tmp_path / "m.py"
    path.write_text(text)
    assert refused(tmp_path, [path], PARAMETERS) == set()
    path.write_text(f"{text}    async def many(self, {', '.join(names[1:])}, *, _a, b): ...\n")
    assert refused(tmp_path, [path], PARAMETERS) == {"m.py: many"}


@pytest.mark.parametrize("listed", ["slow.txt", "alike.txt"])
def test_slow_cases_are_cases_of_tests(listed: str) -> None:
    for case in (ROOT / "tests" / listed).read_text(encoding="utf-8").splitlines():
        path, name = case.partition("[")[0].split("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), case


def test_commands_name_their_types() -> None:
    assert untyped_commands(ROOT) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(**options: Any) -> None: ...", True),
        ("def f() -> dict[str, typing.Any]: ...", True),
        ("def f(x: int, *, y: list[Any] | None = None) -> None: ...", True),
        ("def f(x: 'int', y: object) -> None:\n    z: Any = x", False),
    ],
)
def test_an_untyped_command_is_found(tmp_path: Path, source: str, found: bool) -> None:
    write_package(tmp_path, {"cli/x.py": source, "formats/x.py": "def f(x: Any) -> Any: ..."})
    assert untyped_commands(tmp_path) == ({"blinksim/cli/x.py"} if found else set())


def test_the_library_names_no_options_of_the_command_line() -> None:
    assert options_in_text(ROOT) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raise InputError('exists; add --force')", True),
        ("raise InputError(f'{path} exists; add --force')", True),
        ("HELP = {'root': 'leave --root out'}", True),
        ("def f():\n    '''Like --force.'''\n    x = 0  # --force\n    return 'a -- b, gpu0--gpu1, -x, ---'", False),
    ],
)
def test_an_option_in_a_text_is_found(tmp_path: Path, source: str, found: bool) -> None:
    write_package(tmp_path, {"formats/x.py": source, "cli/x.py": "TEXT = 'add --force'"})
    assert options_in_text(tmp_path) == ({"blinksim/formats/x.py"} if found else set())
