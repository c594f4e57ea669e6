"""Text that is safe to print: nothing that a terminal obeys, and JSON stays what it was."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, strategies as st

from blinksim.errors import one_line, printable


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_is_left_that_controls_a_terminal(text: str) -> None:
    found = printable(text)
    assert {unicodedata.category(c) for c in found if c not in "\n\t"} & {"Cc", "Cs", "Zl", "Zp"} == set()
    assert not any(
        unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "PDI") for c in found
    )
    found.encode("utf-8")


@given(st.recursive(st.text(st.characters(exclude_categories=())) | st.integers() | st.none(), st.lists))
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii", "cp1252"])
def test_json_keeps_its_values(encoding: str, value: object) -> None:
    line = printable(json.dumps(value, ensure_ascii=False), encoding)
    assert json.loads(line.encode(encoding).decode(encoding)) == value


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_other_text_stays(text: str) -> None:
    assert printable(text) == text


def test_examples() -> None:
    assert (
        printable("a\x1b[31mb\x07\x9bc\r\nd\te\u202ef\x7f")
        == "a\\u001b[31mb\\u0007\\u009bc\\u000d\nd\te\\u202ef\\u007f"
    )
    assert printable("80 % – …", "latin-1") == "80 % \\u2013 \\u2026"
    assert printable("\U000e0041\udcff") == "\\udb40\\udc41\\udcff"


@given(st.text(st.characters(exclude_categories=())))
def test_a_message_is_one_line_and_holds_nothing_that_printing_would_change(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert printable(line) == line
