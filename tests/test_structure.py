"""The shape of the source: the direction of imports, circles, declared packages, clean tracked files.

The imports are read from the syntax trees, also inside functions and as dotted strings (lazy registries), so that a
module that nobody imports in a test is checked too.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

import networkx as nx
import pytest
from source_tree import ROOT, excused, imports, modules, part_of, repository_files, syntax, write_package

# From the bottom up. A part imports parts of earlier rows and itself; parts that share a row do not know each other,
# except in the first row, which is the common ground. The folders of `gpu` are parts of their own: nothing else
# loads one unasked. So are the modules of `timing` that formats and programs import.
ROWS = (
    ("units", "errors", "data_files", "_version", "gpu"),
    ("textio",),
    ("results",),
    ("traffic", "routing"),
    ("collective",),
    ("graphs.arrays", "graphs.connectivity"),
    ("plugins",),
    ("topology",),
    ("budget",),
    ("graphs",),
    ("schedule",),
    ("bounds",),
    ("packing",),
    ("algorithms",),
    ("timing.measured_constants", "timing.alpha_beta"),
    ("nccl", "gpu.programs"),
    ("gpu.execution_time",),
    ("formats",),
    ("machines",),
    ("question",),
    ("timing",),
    ("exports",),
    ("answers", "gpu.execution"),
    ("gpu.jobs",),
    ("gpu.torch",),
    ("torch",),
    ("plots", "papers"),
    ("cli",),
    ("__main__",),
)
RANK = {part: rank for rank, row in enumerate(ROWS) for part in row}
# The top-level names of the packages whose distribution is called otherwise.
IMPORT_NAMES = {"pyyaml": "yaml", "cupy-cuda12x": "cupy", "cupy-cuda13x": "cupy"}
# Scripts that are written out and run elsewhere, without blinksim.
SCRIPTS = ("models/chains_recipe.py",)
# The imports that close a circle, with the reason why each stays.
CIRCLES: dict[str, str] = {}
MAX_BYTES = 2**20


def _entry(module: str) -> str:
    """The entry of `ROWS` for a module of blinksim; ``""`` for the package itself."""
    folder = ".".join(module.split(".")[1:3])
    return folder if folder in RANK else part_of(module)


def wrong_imports(root: Path) -> list[str]:
    """What imports against the direction of `ROWS`, as ``file:line: message``."""
    known = modules(root)
    complaints = []
    for name, path in known.items():
        part = _entry(name)
        if not part:  # the package itself is the lazy public interface and may name everything
            continue
        where = path.relative_to(root)
        if part not in RANK:
            complaints.append(f"{where}:1: {part} has no row; give it one in tests/test_structure.py")
            continue
        for line, target in sorted(imports(name, path, frozenset(known))):
            top = target.partition(".")[0]
            if top in ("cupy", "cupyx") and part != "gpu.execution":
                complaints.append(f"{where}:{line}: only gpu.execution imports CuPy")
            if top != "blinksim" or target == "blinksim":
                continue
            other = _entry(target)
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


def circles(root: Path, allowed: Collection[str]) -> set[str]:
    """The imports between modules that are part of a circle: those of `allowed`, and those of circles without them."""
    known = modules(root)
    edges = {
        (name, target)
        for name, path in known.items()
        if _entry(name)
        for _, target in imports(name, path, frozenset(known))
        if target in known and target != name
    }
    excepted = {edge for edge in edges if " -> ".join(edge) in allowed}
    return {" -> ".join(edge) for edge in _circular(edges - excepted) | _circular(edges) & excepted}


def _circular(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    graph = nx.DiGraph(edges)
    room = {node: number for number, nodes in enumerate(nx.strongly_connected_components(graph)) for node in nodes}
    return {(source, target) for source, target in edges if room[source] == room[target]}


def test_imports_follow_the_direction() -> None:
    assert wrong_imports(ROOT) == []


@pytest.mark.parametrize(
    ("place", "source", "complaint"),
    [
        ("bounds/optimum.py", "from blinksim.algorithms import ring", "bounds imports algorithms"),
        ("packing/x.py", "def f():\n    from blinksim.algorithms.ring import build", "packing imports algorithms"),
        ("bounds/x.py", "from ..packing import x", "bounds imports packing"),
        ("formats/x.py", "import blinksim.timing.x", "formats imports timing"),
        ("machines.py", "from blinksim import cli", "machines imports cli"),
        ("formats/x.py", "LAZY = {'a': 'blinksim.machines:load'}", "formats imports machines"),
        ("units.py", "from blinksim.topology import graph", "units imports topology"),
        ("timing/x.py", "import cupy as cp", "only gpu.execution imports CuPy"),
        ("answers/x.py", "from blinksim import load", "imports from the public interface"),
        ("oddity.py", "", "oddity has no row"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, place: str, source: str, complaint: str) -> None:
    others = ("algorithms/ring.py", "packing/x.py", "nccl/tuner.py", "cli/main.py", "machines.py", "topology/graph.py")
    write_package(tmp_path, dict.fromkeys(others, "") | {place: source})
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
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from blinksim.timing import rates\n"
                "else:\n    from blinksim.topology import graph"
            ),
            "timing/rates.py": "",
            "cli/main.py": "from blinksim import load\nGROUPS = ['blinksim.timing.rates']",
        },
    )
    assert wrong_imports(tmp_path) == []


def test_no_imports_go_round_in_circles() -> None:
    assert excused(circles(ROOT, CIRCLES), CIRCLES) == []


@pytest.mark.parametrize(
    ("back", "found"),
    [
        ("from blinksim.topology import graph", True),
        ("def f():\n    from .graph import Link", True),
        ("TABLE = {'f': 'blinksim.topology.graph:Link'}", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .graph import Link", False),
        ("from blinksim.units import parse_rate", False),
    ],
)
def test_a_circle_is_found(tmp_path: Path, back: str, found: bool) -> None:
    first, second, last = ("blinksim.topology." + name for name in ("graph", "edits", "rules"))
    sources = {"units.py": "", "topology/graph.py": "def f():\n    from . import edits", "topology/rules.py": back}
    write_package(tmp_path, sources | {"topology/edits.py": "from blinksim.topology.rules import check"})
    circle = {f"{first} -> {second}", f"{second} -> {last}", f"{last} -> {first}"}
    assert circles(tmp_path, ()) == (circle if found else set())
    # The import that is allowed is the only one that is left, and is asked for no more when the circle is gone.
    allowed = [f"{first} -> {second}"]
    assert circles(tmp_path, allowed) == (set(allowed) if found else set())


@pytest.mark.parametrize(
    ("found", "complaints"),
    [
        (["old"], []),
        (["old", "new"], ["new: not allowed"]),
        ([], ["old: allowed, but no longer there: take it off the list"]),
    ],
)
def test_an_exception_lasts_as_long_as_it_is_needed(found: list[str], complaints: list[str]) -> None:
    assert excused(found, {"old": "a reason"}) == complaints


def test_the_certificate_needs_no_solver_and_no_arrays() -> None:
    known = modules(ROOT)
    name = "blinksim.bounds.certificates"
    assert name in known, "the certificate check has moved; follow it here"
    tops = {target.partition(".")[0] for _, target in imports(name, known[name], frozenset(known))}
    assert tops <= {"blinksim", *sys.stdlib_module_names}


def test_nothing_loads_the_gpu_package_unasked() -> None:
    """Only its own front doors import it when they are loaded: the PyTorch backend, and the fit of its constants."""
    doors = {
        name.rpartition(".")[2]
        for name, path in modules(ROOT).items()
        if not name.startswith("blinksim.gpu")
        for node in syntax(path).body
        if isinstance(node, ast.Import | ast.ImportFrom) and "blinksim.gpu" in ast.unparse(node)
    }
    assert doors <= {"torch", "execution_fit"}


def test_scripts_stand_alone() -> None:
    for script in SCRIPTS:
        tops = {target.partition(".")[0] for _, target in imports("script", ROOT / script, frozenset())}
        assert {"cupy", "json"} <= tops <= {"cupy", *sys.stdlib_module_names}


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


def test_every_module_says_what_it_is() -> None:
    silent = [name for name, path in modules(ROOT).items() if not ast.get_docstring(syntax(path))]
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


def test_the_top_level_holds_what_a_newcomer_expects() -> None:
    """Nothing that a command of a page wrote where it was run."""
    folders = {"blinksim", "topologies", "models", "schedules", "validate", "notebooks", "examples", "tests", "docs"}
    folders |= {"benchmarks", "packaging"}
    files = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "CONTRIBUTING.md", "Makefile", "mkdocs.yml"}
    files |= {"CITATION.cff", "Containerfile", "SECURITY.md"}
    found = {path.relative_to(ROOT).parts[0] for path in repository_files()}
    assert {name for name in found if not name.startswith(".")} <= folders | files
