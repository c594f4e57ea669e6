"""Where in a JSON document something stands: looked up after something was found wrong, which is rare.

Python's parser keeps no places, and a parser that does takes ten times as long for every sound document.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"\[([0-9]+)\]")
_ANY = json.JSONDecoder()
# Behind a string, the colon that makes it a key. What stands between values is left out.
_TOKEN = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")(?P<key>[ \t\n\r]*:)?|[{}\[\]]|[^ \t\n\r{}\[\]:,"]+', re.DOTALL)
# Characters that are searched: a plain parser takes seconds for more.
LONGEST = 5_000_000


def place_of(text: str, place: str) -> tuple[int, int] | None:
    """Line and column, from 1, of a value such as ``machine.links[3].lanes``, or of the nearest one around it.

    None for a text that is no JSON.

    >>> place_of('{"links": [{"lanes": 2},\\n {"lanes": true}]}', "links[1].lanes")
    (2, 12)
    """
    try:
        return None if len(text) > LONGEST else line_and_column(text, _start(text, _after_space(text, 0), place))
    except (ValueError, IndexError, RecursionError):
        return None


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Both from 1, of a character by its number from 0."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _start(text: str, at: int, place: str) -> int:
    """Where the value begins that `place` leads to from the value at `at`; as near as it gets."""
    if text[at] == "{" and place:
        return _in_object(text, at, place.removeprefix("."))
    number = _NUMBER.match(place)
    if text[at] == "[" and number:
        return _in_list(text, at, int(number[1]), place[number.end() :])
    return at


def _in_object(text: str, at: int, place: str) -> int:
    here = _after_space(text, at + 1)
    while text[here] == '"':
        key, here = _ANY.raw_decode(text, here)
        here = _after_space(text, _after_space(text, here) + 1)
        rest = place[len(key) :]
        # A key may hold a dot.
        if place.startswith(key) and (not rest or rest[0] in ".["):
            return _start(text, here, rest)
        here = _next(text, here)
    return at


def _in_list(text: str, at: int, number: int, place: str) -> int:
    here = _after_space(text, at + 1)
    while text[here] != "]":
        if not number:
            return _start(text, here, place)
        here, number = _next(text, here), number - 1
    return at


def _next(text: str, at: int) -> int:
    """Behind the value at `at`, and the comma that follows it."""
    here = _after_space(text, _ANY.raw_decode(text, at)[1])
    return _after_space(text, here + 1) if text[here] == "," else here


def place_of_refusal(text: str, refused: type[Exception], **hooks: Any) -> tuple[int, int] | None:
    """Line and column of the first key that its object has twice, or number for which a hook raises `refused`.

    hooks: `parse_constant`, `parse_float` and `parse_int` of `json.loads`. None for a text without either.
    """
    keys: list[set[str]] = []
    for token in _TOKEN.finditer(text) if len(text) <= LONGEST else ():
        first = token[0][0]
        if first in "{[":
            keys.append(set())
        elif first in "}]" and keys:
            keys.pop()
        elif first == '"':
            if keys and token["key"]:
                key = json.loads(token["text"], strict=False)
                if key in keys[-1]:
                    return line_and_column(text, token.start())
                keys[-1].add(key)
        else:
            try:
                json.loads(token[0], **hooks)
            except refused:
                return line_and_column(text, token.start())
            except ValueError:
                break
    return None
