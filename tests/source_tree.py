"""Reading the source for the tests of its shape: modules, what they import, the repository's files, small examples."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOTTED = re.compile(r"blinksim(\.[A-Za-z_]\w*)+(:\w+)?")


def module_name(path: Path, root: Path) -> str:
    """``blinksim.topology.graph`` for ``root/blinksim/topology/graph.py``."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(root: Path) -> dict[str, Path]:
    return {module_name(path, root): path for path in sorted((root / "blinksim").rglob("*.py"))}


def syntax(path: Path) -> ast.Module:
    """The syntax tree of a module. It is shared: many tests look at the same files."""
    return _parsed(path.read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Every node of a module, listed once."""
    return list(ast.walk(tree))


def part_of(module: str) -> str:
    """The row entry that a module of blinksim belongs to; ``""`` for the package itself."""
    return module.split(".")[1] if "." in module else ""


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node except what only type checkers see."""
    left = [tree]
    while left:
        node = left.pop()
        left += node.orelse if isinstance(node, ast.If) and _is_type_checking(node.test) else ast.iter_child_nodes(node)
        yield node


def imports(name: str, path: Path, known: frozenset[str]) -> set[tuple[int, str]]:
    """(line, imported module) of one module; a name imported from a package counts as the submodule if it is one."""
    return _imports(name if path.name == "__init__.py" else name.rpartition(".")[0], syntax(path), known)


@cache
def _imports(package: str, tree: ast.Module, known: frozenset[str]) -> set[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            found |= {(node.lineno, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                found.add((node.lineno, submodule if submodule in known else base))
                if base == "blinksim" and submodule not in known:
                    found.add((node.lineno, "blinksim.__init__"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            target = node.value.partition(":")[0]
            if target in known or target.rpartition(".")[0] in known - {"blinksim"}:
                found.add((node.lineno, target))
    return found


def repository_files() -> list[Path]:
    """What git tracks, and what it would: not ignored. In an unpacked archive: every file outside hidden folders."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        files = [path for path in ROOT.rglob("*") if not any(p.startswith(".") for p in path.relative_to(ROOT).parts)]
    return [path for path in files if path.is_file()]


def write_package(root: Path, sources: dict[str, str]) -> None:
    for name, text in sources.items():
        path = root / "blinksim" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in {path.parent for path in (root / "blinksim").rglob("*.py")} | {root / "blinksim"}:
        (folder / "__init__.py").touch()


def excused(found: Collection[str], allowed: Collection[str]) -> list[str]:
    """What is wrong with `found`: what is not `allowed`, and what is allowed without being found any more."""
    new = [f"{entry}: not allowed" for entry in sorted(set(found) - set(allowed))]
    return new + [
        f"{entry}: allowed, but no longer there: take it off the list" for entry in sorted(set(allowed) - set(found))
    ]
