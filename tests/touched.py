"""The tests of what changed since a commit (HEAD unless one is named), as `make quick` runs them.

A room of blinksim is tested by the folder of that name in tests/, a top-level module by its file there; pages by the
tests of pages. The rules for the source as a whole always run.
"""

from __future__ import annotations

import subprocess
import sys

from source_tree import ROOT

ALWAYS = ("test_structure.py", "test_code_rules.py", "test_code_size.py", "test_lazy_imports.py", "test_api.py")
RELEASE = (".github", "packaging", "pyproject.toml", "CITATION.cff", "Containerfile", "SECURITY.md")
# What a room's own folder does not test: names in types and the tables of machines stand for every file of their kind.
ELSEWHERE = {
    "gpu": ("execution", "jobs"),
    "topologies": ("topology", "test_machines.py", "test_machine_figures.py", "test_names_in_types.py"),
    "algorithms": ("algorithms", "execution", "schedule/test_every_algorithm.py", "test_names_in_types.py"),
}


def changed(base: str) -> list[str]:
    """Tracked files that differ from the commit, and new ones."""
    commands = (["git", "diff", "--name-only", base], ["git", "ls-files", "--others", "--exclude-standard"])
    return [line for command in commands for line in subprocess.check_output(command, cwd=ROOT, text=True).splitlines()]


def tests_of(path: str) -> list[str]:
    """Files and folders of tests/ for one changed file."""
    top, _, rest = path.partition("/")
    if top == "tests":
        return [rest] if rest.rpartition("/")[2].startswith("test_") else []
    if top in ("docs", "README.md", "CONTRIBUTING.md", "mkdocs.yml"):
        return ["test_docs.py", "test_readme.py", "test_examples.py"] if top == "docs" else ["test_docs.py"]
    if top in RELEASE:
        return ["test_release.py"]
    room = rest.partition("/")[0].removesuffix(".py") if top == "blinksim" else top
    return [*ELSEWHERE.get(room, (room, f"test_{room}.py"))]


def main() -> None:
    named = [*ALWAYS, *(test for path in changed(*sys.argv[1:] or ["HEAD"]) for test in tests_of(path))]
    print(" ".join(f"tests/{name}" for name in dict.fromkeys(named) if (ROOT / "tests" / name).exists()))


if __name__ == "__main__":
    main()
