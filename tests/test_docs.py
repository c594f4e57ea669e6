"""The site is built without a warning, holds every page, and documents every public name."""

from __future__ import annotations

import inspect
import json
import re
import runpy
from itertools import pairwise
from pathlib import Path

import yaml

import blinksim

ROOT = Path(__file__).resolve().parents[1]
# A module, and the members that are shown of it (all, if none are named).
DIRECTIVE = re.compile(r"^::: (blinksim[\w.]*)$(?:\n    options: \{members: \[([^\]]*)\]\})?", re.MULTILINE)


def pages(entry: object) -> list[str]:
    """The file names in a part of the menu."""
    if isinstance(entry, str):
        return [entry]
    assert isinstance(entry, dict | list)
    return [page for value in (entry.values() if isinstance(entry, dict) else entry) for page in pages(value)]


def test_every_page_is_in_the_menu_and_on_the_first_page() -> None:
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])) == there
    first = (ROOT / "docs" / "index.md").read_text()
    assert set(re.findall(r"\]\(([\w/-]+\.md)\)", first)) == there - {"index.md"}


def test_the_menu_has_the_kinds_of_pages() -> None:
    groups = [next(iter(entry)) for entry in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]]
    assert groups == ["Start", "Machines", "Tutorial", "How to", "Reference", "Background", "Measurements"]


def test_every_command_and_option_is_on_the_page_of_commands() -> None:
    """None is missing; tests/test_readme.py compares the help texts with what the commands print."""
    from blinksim.cli.commands import COMMANDS
    from blinksim.cli.options import built

    text = (ROOT / "docs" / "commands.md").read_text()
    sections = dict(re.findall(r"^###? (.+)\n+((?:(?!^##).*\n)*)", text, re.MULTILINE))
    shared = sections["Options that choose a machine and its GPUs"]
    found = {name: built(name) for name in COMMANDS}
    for name, command in found.items():
        assert " " in name or f"| [`{name}`](#{name}) | {command.short_help} |" in text
    for name, command in found.items():
        assert f"$ blinksim help {name}\n" in sections[name], name
        for parameter in command.params:
            for option in parameter.opts:
                shown = not option.startswith("-") or option in sections[name] or option in shared
                assert shown, f"{option} of {name}"


def test_every_answer_is_on_the_page_of_answers() -> None:
    schema = json.loads((ROOT / "docs" / "answer.schema.json").read_text())
    text = (ROOT / "docs" / "project.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z ]+)` \| (.*) \|$", text, re.MULTILINE))
    common = {"machine", "collective", "members", "relays", "links", "rates"}
    assert len(schema["allOf"]) > 5
    for entry in schema["allOf"]:
        name = entry["if"]["properties"]["command"]["const"]
        listed = set(re.findall(r"`(\w+)`", rows.get(name, "")))
        if "as `bound`" in rows.get(name, ""):
            listed = listed - {"bound"} | set(re.findall(r"`(\w+)`", rows["bound"]))
        assert listed == set(entry["then"].get("required", ())) - common, name


def test_the_files_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:blinksim|tests|topologies|models|docs|benchmarks|validate)/[\w./-]*)`", text)
    assert len(named) >= 20
    assert [name for name in named if not (ROOT / name).exists()] == []
    folders = set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE))
    assert folders == {path.parent.name for path in (ROOT / "blinksim").glob("*/__init__.py")}


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    shown = {module: re.findall(r"\w+", names) for module, names in DIRECTIVE.findall(text)}
    values = [getattr(blinksim, name) for name in blinksim.__all__ if name != "plot"]
    values += [getattr(blinksim.plot, name) for name in blinksim.plot.__all__ if name.islower()]
    for value in map(inspect.unwrap, values):
        assert value.__module__ in shown, f"{value.__name__} of {value.__module__}"
        names = shown[value.__module__]
        assert not names or value.__name__ in names, f"{value.__name__} of {value.__module__}"


def test_every_group_of_the_reference_is_introduced() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for title, below in re.findall(r"^## (.+)\n\n(.*)$", text, re.MULTILINE):
        assert re.match(r"[A-Z`].*", below), title
    named = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert sorted(set(named)) == sorted(named)  # each module in one group


def test_every_statement_of_the_sources_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "measurements" / "features.md").read_text()
    rows = re.findall(r"^\| F(\d\d) \|", text, re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, 68))
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", text)
    assert len(named) >= 67 - 10
    for file, test in named:
        assert re.search(rf"^def {test}\b", (ROOT / "tests" / file).read_text(), re.MULTILINE), f"{file}::{test}"


def test_the_first_page_answers_three_questions_with_a_picture_each() -> None:
    text = (ROOT / "docs" / "index.md").read_text().partition("## Three questions")[2].partition("\n## ")[0]
    answers = text.split("### ")[1:]
    assert [answer.partition("\n")[0][-1] for answer in answers] == ["?"] * 3
    found = [re.findall(r"^!\[.{20,}\]\(pictures/([\w-]+\.png)\)", answer, re.MULTILINE) for answer in answers]
    assert found == [["two_machines.png"], ["start-narrow.png"], ["start-chains.png"]]
    assert all((ROOT / "docs" / "pictures" / name).is_file() for [name] in found)
    drawn = runpy.run_path(str(ROOT / "docs" / "pictures" / "start.py"))
    # As many as the command has NCCL take: NCCL_MAX_NCHANNELS=5.
    assert len([axes for axes in drawn["chains"]().axes if axes.get_title()]) == 5
    assert "4 copies of the data must cross" in drawn["narrow"]().axes[0].get_title(loc="left")


def test_the_pictures_of_an_allreduce_end_with_the_sum_everywhere() -> None:
    """In the ring every quarter of every GPU ends with what four GPUs added, and no step adds or copies twice."""
    drawn = runpy.run_path(str(ROOT / "docs" / "pictures" / "allreduce.py"))
    cells = [int(text.get_text()) for text in drawn["ring"]().axes[1].texts if text.get_text().isdigit()]
    states = [cells[number : number + 16] for number in range(0, len(cells), 16)]
    assert states[0] == [1] * 16
    assert states[-1] == [4] * 16
    # Each step changes one quarter of every GPU: 2(n-1) steps in all.
    changed = [sum(a != b for a, b in zip(*pair, strict=True)) for pair in pairwise(states)]
    assert changed == [4] * 6
    # A tree of eight GPUs has seven edges, three steps from the lowest GPU to the root.
    for axes in drawn["tree"]().axes:
        assert sum(not text.get_text() for text in axes.texts) == 7
