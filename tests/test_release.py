"""What a release is made of agrees with pyproject.toml: citation, recipe, container, workflows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import blinksim

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What conda-forge calls otherwise.
CONDA_NAMES = {"ortools": "ortools-python", "matplotlib": "matplotlib-base"}
PINNED = re.compile(r"[\w-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(name: str) -> Any:
    return yaml.load((ROOT / name).read_text(encoding="utf-8"), yaml.BaseLoader)


def pythons() -> list[str]:
    """The versions that the classifiers name."""
    return [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]


def test_the_citation_is_of_this_version() -> None:
    found = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= found.keys()
    assert found["cff-version"] == "1.2.0"
    assert (found["title"], found["version"]) == (PROJECT["name"], blinksim.__version__)
    for key in ("license", "authors", "keywords"):
        assert found[key] == PROJECT[key]
    assert found["abstract"] == PROJECT["description"]


def test_the_recipe_asks_for_what_the_wheel_asks_for() -> None:
    found = read("packaging/conda/recipe.yaml")
    assert found["package"]["name"] == PROJECT["name"]
    assert found["context"]["version"] == blinksim.__version__
    assert (found["about"]["license"], found["about"]["license_file"]) == (PROJECT["license"], "LICENSE")
    assert found["about"]["summary"] == PROJECT["description"]
    named = [re.fullmatch(r"([\w-]+)(>=[\d.]+)", text.lower()) for text in PROJECT["dependencies"]]
    wanted = [f"{CONDA_NAMES.get(match[1], match[1])} {match[2]}" for match in named if match]
    assert len(wanted) == len(PROJECT["dependencies"])
    python = f"python {PROJECT['requires-python']}"
    assert found["requirements"]["run"] == [python, *wanted]
    assert python in found["requirements"]["host"]
    (script,) = found["build"]["python"]["entry_points"]
    assert script == f"blinksim = {PROJECT['scripts']['blinksim']}"


def test_the_container_needs_no_network_and_no_root() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    assert re.findall(r"^ARG PYTHON=(.+)$", text, re.MULTILINE) == pythons()[-1:]
    assert "--no-index" in text
    assert not re.search(r"https?:|apt-get|curl|wget", text)
    kinds = [line.split()[0] for line in text.splitlines() if line[:1].isupper()]
    assert kinds.index("RUN") < kinds.index("USER") < kinds.index("ENTRYPOINT")
    assert "USER blinksim" in lines
    assert 'ENTRYPOINT ["blinksim"]' in lines


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_may_do_little(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: (.+)$", text, re.MULTILINE)
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []
    found = read(f".github/workflows/{path.name}")
    assert found["permissions"] == {"contents": "read"}
    for name, job in found["jobs"].items():
        assert "timeout-minutes" in job
        assert job.get("permissions", {}) == ({"id-token": "write"} if name == "publish" else {})
    assert "secrets." not in text


def test_the_tests_run_on_every_python_that_is_named() -> None:
    jobs = read(".github/workflows/tests.yml")["jobs"]
    assert jobs["quick"]["strategy"]["matrix"]["python"] == pythons()
    assert pythons()[0] == PROJECT["requires-python"].removeprefix(">=")
    listed = f"{', '.join(pythons()[:-1])} or {pythons()[-1]}"
    assert all(f"Python {listed}" in (ROOT / page).read_text() for page in ("README.md", "docs/index.md"))
    assert jobs["quick"]["steps"][-1]["run"] == "make test"


def test_every_file_of_tests_is_in_one_shard() -> None:
    shards = read(".github/workflows/tests.yml")["jobs"]["slow"]["strategy"]["matrix"]["tests"]
    listed: list[Path] = []
    for place in (word for shard in shards for word in shard.split()):
        found = sorted(ROOT.glob(place))
        assert found, place
        listed += [path for one in found for path in ([one] if one.is_file() else one.rglob("test_*.py"))]
    assert sorted(listed) == sorted((ROOT / "tests").rglob("test_*.py"))


def test_a_release_is_published_without_a_password() -> None:
    found = read(".github/workflows/release.yml")
    build, publish = found["jobs"]["build"], found["jobs"]["publish"]
    assert found["on"] == {"release": {"types": ["published"]}}
    assert publish["needs"] == "build"
    assert any(step.get("run", "").startswith("make build") for step in build["steps"])
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "with" not in publish["steps"][-1]


def test_the_security_policy_names_tests_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(tests/[\w/]+)`", text)
    assert len(named) == 2
    assert all((ROOT / name).is_dir() for name in named)
    assert "private vulnerability report" in text
