"""The shape of the source: the direction of imports, who may import what, the size of modules, clean tracked files.

The imports are read from the syntax trees, also inside functions and as dotted strings (lazy registries), so that a
module that nobody imports in a test is checked too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# From the bottom up. A part imports parts of earlier rows and itself; parts that share a row do not know each other,
# except in the first row, which is the common ground.
ROWS = (
    ("units", "errors", "collective", "data_files", "_version", "results"),
    ("textio",),
    ("topology",),
    ("graphs",),
    ("schedule",),
    ("bounds",),
    ("packing",),
    ("algorithms",),
    ("cost", "nccl"),
    ("simulation",),
    ("sources",),
    ("formats",),
    ("exports",),
    ("machines",),
    ("question",),
    ("answers", "execution"),
    ("plots",),
    ("cli",),
    ("__main__",),
)
RANK = {part: rank for rank, row in enumerate(ROWS) for part in row}
# The top-level names of the packages whose distribution is called otherwise.
IMPORT_NAMES = {"pyyaml": "yaml", "cupy-cuda12x": "cupy", "cupy-cuda13x": "cupy"}
MAX_LINES = 400
MAX_BYTES = 2**20
DOTTED = re.compile(r"blinksim(\.[A-Za-z_]\w*)+(:\w+)?")


def module_name(path: Path, root: Path) -> str:
    """``blinksim.topology.graph`` for ``root/blinksim/topology/graph.py``."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(root: Path) -> dict[str, Path]:
    return {module_name(path, root): path for path in sorted((root / "blinksim").rglob("*.py"))}


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node except what only type checkers see."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and _is_type_checking(child.test):
            for other in child.orelse:
                yield other
                yield from _walk(other)
            continue
        yield child
        yield from _walk(child)


def imports(name: str, path: Path, known: frozenset[str]) -> set[tuple[int, str]]:
    """(line, imported module) of one module; a name imported from a package counts as the submodule if it is one."""
    found: set[tuple[int, str]] = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in _walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
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


def part_of(module: str) -> str:
    """The row entry that a module of blinksim belongs to; ``""`` for the package itself."""
    return module.split(".")[1] if "." in module else ""


def wrong_imports(root: Path) -> list[str]:
    """What imports against the direction of `ROWS`, as ``file:line: message``."""
    known = modules(root)
    complaints = []
    for name, path in known.items():
        part = part_of(name)
        if not part:  # the package itself is the lazy public interface and may name everything
            continue
        where = path.relative_to(root)
        if part not in RANK:
            complaints.append(f"{where}:1: {part} has no row; give it one in tests/test_structure.py")
            continue
        for line, target in sorted(imports(name, path, frozenset(known))):
            top = target.partition(".")[0]
            if top in ("cupy", "cupyx") and part != "execution":
                complaints.append(f"{where}:{line}: only execution imports CuPy")
            if top != "blinksim" or target == "blinksim":
                continue
            other = part_of(target)
            if other == "__init__":
                if part != "cli":
                    complaints.append(f"{where}:{line}: imports from the public interface; name the module itself")
            elif other not in RANK:
                complaints.append(f"{where}:{line}: {target} is in no row")
            elif other != part and RANK[other] >= RANK[part] > 0:
                complaints.append(f"{where}:{line}: {part} imports {other}, which does not lie below it")
            elif RANK[part] == 0 and RANK[other] > 0:
                complaints.append(f"{where}:{line}: {part} imports {other}, which lies above it")
    return complaints


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


def test_imports_follow_the_direction() -> None:
    assert wrong_imports(ROOT) == []


@pytest.mark.parametrize(
    ("place", "source", "complaint"),
    [
        ("bounds/cuts.py", "from blinksim.algorithms import ring", "bounds imports algorithms"),
        ("packing/x.py", "def f():\n    from blinksim.algorithms.ring import build", "packing imports algorithms"),
        ("bounds/x.py", "from ..packing import x", "bounds imports packing"),
        ("cost/x.py", "import blinksim.nccl.tuner.tuner", "cost imports nccl"),
        ("machines.py", "from blinksim import cli", "machines imports cli"),
        ("formats/x.py", "LAZY = {'a': 'blinksim.machines:load'}", "formats imports machines"),
        ("units.py", "from blinksim.topology import graph", "units imports topology"),
        ("cost/x.py", "import cupy as cp", "only execution imports CuPy"),
        ("answers/x.py", "from blinksim import load", "imports from the public interface"),
        ("oddity.py", "", "oddity has no row"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, place: str, source: str, complaint: str) -> None:
    others = {
        "algorithms/ring.py": "",
        "packing/x.py": "",
        "nccl/tuner.py": "",
        "cli/main.py": "",
        "machines.py": "",
        "topology/graph.py": "",
    }
    write_package(tmp_path, others | {place: source})
    found = wrong_imports(tmp_path)
    assert len(found) == 1
    assert complaint in found[0]


def test_right_imports_are_left_alone(tmp_path: Path) -> None:
    write_package(
        tmp_path,
        {
            "errors.py": "",
            "units.py": "from blinksim.errors import InputError",
            "topology/graph.py": "def check(t):\n    from blinksim.topology import rules\n    return rules.check(t)",
            "topology/rules.py": "from . import graph\nfrom ..units import parse_rate",
            "algorithms/ring.py": (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from blinksim.cost import rates\n"
                "else:\n    from blinksim.topology import graph"
            ),
            "cost/rates.py": "",
            "cli/main.py": "from blinksim import load\nGROUPS = ['blinksim.cost.rates']",
        },
    )
    assert wrong_imports(tmp_path) == []


def test_the_certificate_needs_no_solver_and_no_arrays() -> None:
    known = modules(ROOT)
    name = "blinksim.bounds.certificates.certificate"
    assert name in known, "the certificate check has moved; follow it here"
    tops = {target.partition(".")[0] for _, target in imports(name, known[name], frozenset(known))}
    assert tops <= {"blinksim", *sys.stdlib_module_names}


def test_only_declared_packages_are_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [entries for name, entries in project["optional-dependencies"].items() if name != "dev"]
    required = [entry for entries in (project["dependencies"], *extras) for entry in entries]
    declared = {re.split(r"[\s<>=!~\[;]", entry, maxsplit=1)[0].lower() for entry in required}
    allowed = {IMPORT_NAMES.get(name, name) for name in declared} | {"blinksim", *sys.stdlib_module_names}
    known = modules(ROOT)
    used = {
        f"{path.relative_to(ROOT)}:{line}: {target}"
        for name, path in known.items()
        for line, target in imports(name, path, frozenset(known))
        if target.partition(".")[0] not in allowed
    }
    assert used == set()


def test_modules_are_one_idea_long() -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in modules(ROOT).values()}
    assert {str(path): lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_every_module_says_what_it_is() -> None:
    silent = [name for name, path in modules(ROOT).items() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    # Joined here so that this file does not contain what it forbids.
    places = re.compile("|".join(("/work" + "/", "/root" + "/", "/home" + r"/\w", "/tmp" + "/bash_jobs")).encode())
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in repository_files()
        for match in [places.search(path.read_bytes())]
        if match
    ]
    assert found == []


def test_no_file_is_over_a_mebibyte() -> None:
    large = {str(path.relative_to(ROOT)): path.stat().st_size for path in repository_files()}
    assert {name: size for name, size in large.items() if size > MAX_BYTES} == {}
