"""The size of the source by room, and signs of code cut too small or grown too dense; `code_size.csv` holds the limits.

    python tests/code_size.py            the table: what is there, the most that may be, limits and targets
    python tests/code_size.py --lower    lower every limit to what is there now; none is ever raised

Code lines are neither blank, nor comment, nor docstring. A private function has one caller if its name is used once in
its module. Dense functions have a cyclomatic complexity above 18 as radon counts it, which sees comprehensions too.
"""

from __future__ import annotations

import ast
import csv
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from radon.complexity import cc_visit_ast
from source_tree import ROOT, modules, nodes, part_of, syntax

# What a new file may add, such as an algorithm or a format: code lines of a room and of all, and of the rest these.
# Each one that says its own entry, beyond those that the table counts, brings this room with it.
A_FILE = 60
ENTRIES = "files with an entry"
FEW = {
    "modules": 1,
    "functions": 8,
    "dense functions": 0,
    "one-caller share, per mille": 2,
    "lines over 110 columns": 4,
    ENTRIES: 1,
}
TABLE = Path(__file__).with_name("code_size.csv")
DENSE, WIDE = 18, 110
# The names by which algorithms, timing models and formats say what they are.
_SAID = {"ENTRY", "FORMAT"}
_SCOPES = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines that are neither blank, nor comment, nor part of a docstring."""
    docstrings, strings = set[int](), set[int]()
    for node in nodes(tree):
        if isinstance(node, _SCOPES) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(_lines(node.body[0]))
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            strings.update(_lines(node))
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    written = {number for number, line in lines if line and not line.startswith("#")}
    return len((written | strings) - docstrings)


def private_functions(tree: ast.Module) -> tuple[int, int]:
    """How many functions and methods are private, and how many of them are named only once elsewhere."""
    used: Counter[str] = Counter()
    defined: list[str] = []
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defined += [node.name] if node.name.startswith("_") and not node.name.endswith("__") else []
        elif isinstance(node, ast.Name):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
    return len(defined), sum(used[name] == 1 for name in defined)


def dense_functions(tree: ast.Module) -> int:
    blocks = cc_visit_ast(tree)
    return sum(block.complexity > DENSE for block in blocks if block.letter != "C")


def measure(root: Path) -> dict[str, int]:
    """Everything that the table limits, by name: code lines of every room first."""
    found: Counter[str] = Counter()
    private = lonely = 0
    # Stubs are code too.
    stubs = {str(path): path for path in root.glob("blinksim/**/*.pyi")}
    for name, path in {**modules(root), **stubs}.items():
        text, tree = path.read_text(encoding="utf-8"), syntax(path)
        room = part_of(name) if path.parent != root / "blinksim" else "(top level)"
        lines = code_lines(text, tree)
        found[room] += lines
        found["all code lines"] += lines
        found["modules"] += path.suffix == ".py"
        found["functions"] += sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes(tree))
        found["dense functions"] += dense_functions(tree)
        said = (ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign))
        found[ENTRIES] += not _SAID.isdisjoint(said)
        found["lines over 110 columns"] += sum(len(line) > WIDE for line in text.splitlines())
        every, once = private_functions(tree)
        private, lonely = private + every, lonely + once
    found["one-caller share, per mille"] = round(1000 * lonely / max(private, 1))
    return dict(found)


def rows() -> Iterator[tuple[str, int, int]]:
    """(what, limit, target) of the table."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            yield row["what"], int(row["limit"]), int(row["target"])


def most(now: dict[str, int]) -> dict[str, int]:
    """What each may count: its limit, and what a file may add, for one and for each that has come with an entry."""
    limits = {what: limit for what, limit, _ in rows()}
    files = 1 + max(0, now[ENTRIES] - limits[ENTRIES])
    return {what: limits.get(what, 0) + files * FEW.get(what, A_FILE) for what in now}


def grown(now: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What counts more than it may: now, and the most."""
    allowed = most(now)
    return {what: (count, allowed[what]) for what, count in now.items() if count > allowed[what]}


def main() -> None:
    now, table = measure(ROOT), list(rows())
    allowed, over = most(now), grown(now)
    print(f"{'what':28}{'now':>8}{'most':>8}{'limit':>8}{'target':>8}")
    for what, limit, target in table:
        count = now.get(what, 0)
        print(f"{what:28}{count:8}{allowed.get(what, limit):8}{limit:8}{target:8}{'   too many' * (what in over)}")
    for what in sorted(now.keys() - {row[0] for row in table}):
        print(f"{what:28}{now[what]:8}   has no row")
    if "--lower" in sys.argv[1:]:
        with TABLE.open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(("what", "limit", "target"))
            writer.writerows((what, min(limit, now.get(what, 0)), target) for what, limit, target in table)


if __name__ == "__main__":
    main()
