"""Quick commands stay quick: what they load, seen from outside in a process of their own.

Importing pandas, pyplot or CP-SAT takes over a second each, NetworkX almost half a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SLOW = ("cupy", "matplotlib", "networkx", "ortools", "pandas", "scipy")
# What answers other questions, and what NumPy loads for masked arrays alone.
OTHERS = ("blinksim.answers.compare", "blinksim.answers.sweep", "blinksim.bounds.sensitivity", "numpy.ma")
# What best may load where the elementary algorithms leave a gap: what packs trees quickly, but not CP-SAT.
SOLVERS = (*(name for name in SLOW if name != "ortools"), "ortools.sat", "ortools.math_opt")
HEAVY = (*SLOW, "numpy")
REPORT = "import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.__stderr__)"


def modules_after(source: str, folder: Path) -> set[str]:
    """The modules that are loaded in a fresh interpreter once `source` has run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = f"import atexit\natexit.register(lambda: exec({REPORT!r}))\n{source}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def command(*arguments: str) -> str:
    return f"import sys; sys.argv = {['blinksim', *arguments]!r}\nfrom blinksim.__main__ import main\nmain()"


@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (("--help",), HEAVY),
        (("--version",), HEAVY),
        (("project", "--help"), HEAVY),
        (("topo", "list"), SLOW),
        (("project", "dgx1-v100", "allreduce", "256MiB"), (*SLOW, *OTHERS)),
        (("advise", "hgx-h100"), (*SLOW, *OTHERS)),
        (("project", "aurora", "allreduce", "2GB", "--nodes", "2"), SOLVERS),
    ],
    ids=lambda value: " ".join(value) if value[0] not in SLOW else "",
)
def test_a_command_loads_only_its_needs(arguments: tuple[str, ...], forbidden: tuple[str, ...], tmp_path: Path) -> None:
    loaded = modules_after(command(*arguments), tmp_path)
    assert "blinksim.cli.main" in loaded
    assert loaded.isdisjoint(forbidden), loaded.intersection(forbidden)


def test_the_package_itself_loads_nothing_heavy(tmp_path: Path) -> None:
    assert modules_after("import blinksim", tmp_path).isdisjoint(HEAVY)


def test_a_certificate_is_checked_without_solver_or_arrays(tmp_path: Path) -> None:
    loaded = modules_after("import blinksim.bounds.certificates", tmp_path)
    assert loaded.isdisjoint({"networkx", "numpy", "ortools", "scipy", "pandas"})


def test_a_heavy_import_is_seen(tmp_path: Path) -> None:
    assert "numpy" in modules_after("def f():\n    import numpy\nf()", tmp_path)
