"""Lines and columns of what is wrong in a JSON document, against the place where a mark comes to stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.errors import FileError
from blinksim.textio.strict_json import Entry, parse, place_of
from blinksim.textio.text_files import line_and_column

MARK = "the value that is looked for"
NAMES = st.text('ab"\\{}[],: \n\u00e9', min_size=1, max_size=4) | st.sampled_from(["links", "n0:gpu0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=6,
)


@st.composite
def marked(draw: Any) -> tuple[Any, str]:
    """A document with a mark in it, and the place of that."""
    value: Any = MARK
    place = ""
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            before = draw(st.lists(VALUES, max_size=3))
            value, place = [*before, value, *draw(st.lists(VALUES, max_size=2))], f"[{len(before)}]{place}"
        else:
            # No key is the beginning of the way to another one.
            names = draw(st.lists(st.text('xyz"\\{}:,\n', min_size=3, max_size=3), min_size=1, max_size=4, unique=True))
            at = draw(st.integers(0, len(names) - 1))
            value = {name: value if i == at else draw(VALUES) for i, name in enumerate(names)}
            place = f".{names[at]}{place}"
    return value, place.removeprefix(".")


@given(marked(), st.sampled_from([None, 0, 1, "\t"]), st.sampled_from(["", "  ", "\n\n"]))
def test_a_place_is_where_its_value_stands(document: tuple[Any, str], indent: Any, before: str) -> None:
    value, place = document
    text = before + json.dumps(value, indent=indent)
    assert place_of(text, place) == line_and_column(text, text.index(json.dumps(MARK)))


def test_what_is_not_there_is_sought_as_near_as_it_gets() -> None:
    text = '{"a": {"b": [1, {"c": 2}]},\n "d": []}'
    assert place_of(text, "a.b[1].x") == place_of(text, "a.b[1]") == (1, 17)
    assert place_of(text, "a.b[7]") == place_of(text, "a.b") == (1, 13)
    assert place_of(text, "d[0]") == (2, 7)
    assert place_of(text, "e") == (1, 1)
    for broken in ("", "{", '{"a"', '{"a": ', '{"a": [1', "[" * 100_000):
        place_of(broken, "a[3].b")  # says nothing wrong, and does not break


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("NaN", "4:6: holds NaN, which is not a number"),
        ("-Infinity", "4:6: holds -Infinity"),
        ("1e999", "4:6: holds 1e999, which is too large"),
        ("1" * 50, "4:6: holds 11111111111111111111…, a number of 50 digits"),
        ('{"x": "{", "y": {"x": 1}, "x" : 2}', "4:32: has the key 'x' twice in one object"),
        ('"\\ud800"', "4:7: holds \\ud800, which is half a character"),
    ],
)
def test_what_json_allows_and_we_do_not_is_named_with_its_place(inside: str, message: str) -> None:
    text = '{"NaN": "NaN, 1e999",\n "x": [\n\n     ' + inside + "]}"
    with pytest.raises(FileError) as caught:
        parse("box.json", text.encode())
    assert str(caught.value).startswith(f"box.json:{message}")


def test_an_entry_finds_its_line_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    path.write_text('{\n  "machine": {\n    "links": [\n      {"lanes": true}\n    ]\n  }\n}\n')
    entry = Entry(path, "machine.links[0].lanes", True)
    assert str(entry.wrong("no")) == f"{path}:4:17: machine.links[0].lanes: no"
    # A document that was never a file has no lines.
    assert str(Entry("given", "a.b", 1).wrong("no")) == "given: a.b: no"
    ready = Path(__file__).resolve().parents[2] / "schedules"
    source = min(ready.glob("*.json"), key=lambda file: file.stat().st_size)
    whole = json.loads(source.read_text())
    whole["machine"]["links"][1]["latancy"] = 0
    text = json.dumps(whole, indent=1)
    path.write_text(text)
    line = text[: text.index("latancy")].count("\n") + 1
    with pytest.raises(FileError, match=rf"json:{line}:[0-9]+: machine.links\[1\]: unknown key 'latancy'"):
        bs.read_schedule(path)
