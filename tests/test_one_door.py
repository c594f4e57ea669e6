"""One door for text from strangers: whatever reads a file or parses text does so through blinksim/textio."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from source_tree import ROOT, modules, nodes, part_of, syntax, write_package

# Modules that parse, and what may be taken from them elsewhere: writing, mostly.
PARSERS = {
    "json": {"dumps"},
    "yaml": set[str](),
    "xml": set[str](),
    "pickle": set[str](),
    "marshal": set[str](),
    "configparser": set[str](),
    "tomllib": set[str](),
    "gzip": set[str](),
    "zlib": set[str](),
    "lzma": set[str](),
}
READS = {"open", "read_text", "read_bytes", "fdopen", "load_txt", "genfromtxt", "read_csv", "literal_eval"}
BARE = {"open", "eval", "exec"}
# What appends to its own file; Python that the user asks to run; and what files of the package say that they are.
EXCUSED = {
    "blinksim.plugins": {"exec", "read_text"},
    "blinksim.algorithms.registry": {"eval"},
    "blinksim.timing.model_registry": {"literal_eval"},
    "blinksim.answers.worker_pool": {"open"},
}


def back_doors(root: Path) -> set[str]:
    """Reads and parsers outside textio, as ``module:line: name``."""
    found = set()
    for name, path in modules(root).items():
        if part_of(name) == "textio":
            continue
        tree = syntax(path)
        ours = _own_names(tree)
        for node in nodes(tree):
            for used in _uses(node, ours):
                if used not in EXCUSED.get(name, set()):
                    found.add(f"{name}:{getattr(node, 'lineno', 0)}: {used}")
    return found


def _own_names(tree: ast.Module) -> set[str]:
    """What a module imports from blinksim: `machine_yaml.read_text` is a door, `path.read_text` is none."""
    return {
        alias.asname or alias.name
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("blinksim")
        for alias in node.names
    }


def _uses(node: ast.AST, ours: set[str]) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [f"import {one.name}" for one in names if _banned(one.name)]
        case ast.ImportFrom(module=str(module), names=names, level=0) if module.partition(".")[0] in PARSERS:
            allowed = PARSERS[module.partition(".")[0]]
            return [f"{module}.{one.name}" for one in names if one.name not in allowed]
        case ast.Attribute(value=ast.Name(id="json"), attr=attr) if attr not in PARSERS["json"]:
            return [f"json.{attr}"]
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in READS:
            known = isinstance(value, ast.Name) and value.id in ours | {"json", "os"}
            return [] if known else [attr]
        case ast.Call(func=ast.Name(id=name)) if name in BARE and name not in ours:
            return [name]
    return []


def _banned(module: str) -> bool:
    top = module.partition(".")[0]
    return top in PARSERS and not PARSERS[top]


def test_text_from_strangers_comes_through_one_door() -> None:
    assert back_doors(ROOT) == set()


@pytest.mark.parametrize(
    "source",
    [
        "import json\nx = json.loads(text)",
        "def f():\n    import yaml",
        "from xml.etree import ElementTree",
        "from json import load",
        "data = path.read_text()",
        "with open(path) as file: pass",
        "with path.open() as file: pass",
        "import pandas as pd\npd.read_csv(path)",
        "eval(text)",
        "import gzip",
    ],
)
def test_a_back_door_is_found(tmp_path: Path, source: str) -> None:
    write_package(tmp_path, {"formats/x.py": source, "textio/y.py": source})
    assert [entry.partition(":")[0] for entry in back_doors(tmp_path)] == ["blinksim.formats.x"]


def test_a_reader_of_our_own_is_no_back_door(tmp_path: Path) -> None:
    source = "import json\nfrom blinksim.textio import text_files\ntext_files.read_text(path)\njson.dumps(1)"
    write_package(tmp_path, {"formats/x.py": source, "textio/text_files.py": ""})
    assert back_doors(tmp_path) == set()


def test_digits_are_ascii() -> None:
    r"""``\d`` and `str.isdigit` also know the digits of other scripts, which C programs do not read."""
    wrong = []
    for name, path in modules(ROOT).items():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(r"\\d|isdecimal|isnumeric", line):
                wrong.append(f"{name}:{number}: {line.strip()}")
            own = part_of(name) in ("plots", "simulation")  # names of devices, which are ASCII
            if ".isdigit()" in line and ".isascii()" not in line and "[0-9]" not in line and not own:
                wrong.append(f"{name}:{number}: {line.strip()}")
    assert wrong == []
