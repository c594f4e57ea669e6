"""JSON read strictly: no repeated key, no NaN, no number beyond a double, limits on size and nesting.

The grammar is RFC 8259; what it leaves to readers (repeated keys, large numbers, depth) is refused here with
its position. Python's parser keeps no positions, and one that does takes ten times as long, so they are
looked up only after a fault. Fields may hold data compressed by xz in base64, read with a limit on its
length.
"""

from __future__ import annotations

import base64
import gzip
import json
import lzma
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

from blinksim.errors import FileError, blamed_on, unknown
from blinksim.textio.text_files import MIB, decode, line_and_column, read_bytes

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
    nearest, begins = -1, 0
    for token, found, known in _walk(text):
        key = token.lastgroup == "key"
        around = (place.startswith(found) and (place[len(found) :] or ".")[0] in ".[") or not found
        if around and not known and not key and len(found) > nearest:
            nearest, begins = len(found), token.start()
            if found == place:
                break
    return line_and_column(text, begins) if nearest >= 0 else None


def _walk(text: str) -> Iterator[tuple[re.Match[str], str, bool]]:
    """Every key and every value of a document, its place, and whether a key is known to its object already."""
    # Of every list and object around: its place, the number of the next value or the last key, and all keys.
    around: list[tuple[str, list[Any], set[str]]] = []
    for token in _TOKEN.finditer(text) if len(text) <= LONGEST else ():
        if len(around) > MAX_DEPTH:
            return
        if (first := token[0][0]) in "}]":
            around[-1:] = []
            continue
        outside, last, keys = around[-1] if around else ("", [], set())
        if around and token["key"]:
            last[:] = [json.loads(token["text"], strict=False)]
            yield token, outside, last[0] in keys
            keys.add(last[0])
            continue
        place = outside
        if around and isinstance(last[0], int):
            place = f"{outside}[{last[0]}]"
            last[0] += 1
        elif around:
            place = f"{outside}.{last[0]}" if outside else last[0]
        yield token, place, False
        if first in "{[":
            around.append((place, [0 if first == "[" else ""], set()))


def place_of_refusal(text: str, refused: type[Exception], **hooks: Any) -> tuple[int, int] | None:
    """Line and column of the first key that its object has twice, or number for which a hook raises `refused`.

    hooks: `parse_constant`, `parse_float` and `parse_int` of `json.loads`. None for a text without either.
    """
    for token, _, known in _walk(text):
        if known:
            return line_and_column(text, token.start())
        if token[0][0] not in '"{[':
            try:
                json.loads(token[0], **hooks)
            except refused:
                return line_and_column(text, token.start())
            except ValueError:
                break
    return None


_GZIP = b"\x1f\x8b"
# Each separator can cost about 100 bytes as a Python object.
MOST_ENTRIES = 8_000_000
MAX_DEPTH = 64
# A UTF-16 surrogate, escaped, without the other half of its pair: Python accepts it and then cannot print it.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = re.compile(rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH.replace('{2}', '[0-9a-fA-F]')}){_LOW}")
_LONGEST_NUMBER = 40
_LONGEST_FRACTION = 200
# Exponents are left out: the digits of 1e999999999 would fill the memory.
_FRACTION = re.compile(r"0*[1-9][0-9]*(/0*[1-9][0-9]*)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """Something that the grammar allows and a reader here does not."""


def unpack(path: str | os.PathLike[str], data: bytes, limit: int, what: str = "file") -> bytes:
    """`data`, decompressed if it is gzip.

    Raises `FileError` if that is damaged, cut short, or unpacks to more than `limit` bytes.
    """
    if not data.startswith(_GZIP):
        return data
    unpacker = zlib.decompressobj(wbits=31)
    damaged = "is damaged: it starts like gzip but does not unpack"
    with blamed_on(lambda why: FileError(path, f"{damaged} ({why})"), zlib.error):
        plain = unpacker.decompress(data, limit + 1)
    if len(plain) > limit:
        raise FileError(path, f"unpacks to more than {limit // MIB} MiB; that is no {what}")
    if not unpacker.eof:
        raise FileError(path, "is cut short: the gzip data ends too early")
    if unpacker.unused_data:
        raise FileError(path, "has something after the end of its gzip data")
    return plain


def pack(text: str) -> bytes:
    """`text` as gzip, the same bytes for the same text."""
    return gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)


def parse(path: str | os.PathLike[str], data: bytes, what: str = "file") -> Any:
    """The value of the JSON document `data`; raises `FileError`, with line and column where the grammar is broken."""
    text = decode(path, data, what)
    if text.count(",") + text.count("[") + text.count("{") > MOST_ENTRIES:
        raise FileError(path, f"has more than {MOST_ENTRIES:,} entries; that is no {what}")
    if "\\u" in text and (half := _HALF.search(text)):
        place = line_and_column(text, half.start())
        raise FileError(path, f"holds {half.group()}, which is half a character", *place)
    numbers: dict[str, Any] = {"parse_constant": _float, "parse_float": _float, "parse_int": _int}
    try:
        value = json.loads(text, object_pairs_hook=_object, **numbers)
    except json.JSONDecodeError as error:
        other = os.fspath(path).lower().endswith((".yaml", ".yml"))
        hint = "; YAML files are machines and rates, of which blinksim synth makes schedules" if other else ""
        raise FileError(path, f"is not JSON: {error.msg}{hint}", error.lineno, error.colno) from None
    except _Refused as fault:
        raise FileError(path, str(fault), *(place_of_refusal(text, _Refused, **numbers) or ())) from None
    except RecursionError:
        raise FileError(path, f"is nested too deeply; that is no {what}") from None
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(MAX_DEPTH):
        inside = chain.from_iterable(one.values() if isinstance(one, dict) else one for one in level)
        level = [one for one in inside if isinstance(one, list | dict)]
    if level:
        raise FileError(path, f"is nested more than {MAX_DEPTH} deep; that is no {what}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(result := dict(pairs)) < len(pairs):
        seen = set[str]()
        doubled = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused(f"has the key {doubled[:60]!r} twice in one object")
    return result


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        # NaN and Infinity, which Python's parser takes for constants, are written in letters.
        what = "not a number" if text[-1].isalpha() else "too large for a number"
        raise _Refused(f"holds {text[:40]}, which is {what}")
    return value


def _int(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise _Refused(f"holds {text[:20]}…, a number of {len(text)} digits; at most {_LONGEST_NUMBER} make sense")
    return int(text)


@dataclass(frozen=True)
class Entry:
    """A value of a document together with its place, such as ``machine.links[3].lanes``, for messages."""

    path: str | os.PathLike[str]
    place: str
    value: Any

    def wrong(self, message: str, key: str = "") -> FileError:
        """The error that says what is wrong at this place, with line and column where the file can be read again.

        key: of the object here, whose line it is.
        """
        where: tuple[int, ...] = ()
        with suppress(FileError, ValueError):
            text = decode(self.path, unpack(self.path, read_bytes(self.path, LONGEST), LONGEST))
            where = place_of(text, f"{self.place}.{key}" if key else self.place) or ()
        return FileError(self.path, f"{self.place}: {message}" if self.place else message, *where)

    def fields(self, required: Iterable[str], optional: Mapping[str, Any] | None = None) -> dict[str, Entry]:
        """The entries of an object with these keys and no others; keys of `optional` have defaults."""
        given = self.a(dict, "an object {…}")
        needed, known = tuple(required), {**dict.fromkeys(required), **(optional or {})}
        for key in given:
            if key not in known:
                raise self.wrong(str(unknown("key", key[:80], known)), key)
        for key in needed:
            if key not in given:
                raise self.wrong(f"the key {key!r} is missing")
        inside = f"{self.place}." if self.place else ""
        return {key: Entry(self.path, f"{inside}{key}", given.get(key, default)) for key, default in known.items()}

    def items(self) -> Iterator[Entry]:
        """The entries of a list."""
        for number, value in enumerate(self.a(list, "a list […]")):
            yield Entry(self.path, f"{self.place}[{number}]", value)

    def a(self, kind: type | tuple[type, ...], words: str) -> Any:
        """The value, which must be of a type; true and false are not numbers."""
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and kind is not bool):
            raise self.wrong(f"must be {words}, not {_shown(self.value)}")
        return self.value

    def text(self, longest: int = 1000) -> str:
        """A string of at most `longest` characters, none of which controls a terminal."""
        value: str = self.a(str, "text in quotes")
        if len(value) > longest:
            raise self.wrong(f"is longer than {longest} characters")
        if _CONTROL.search(value):
            raise self.wrong("holds a control character")
        return value

    def whole(self, low: int, high: int) -> int:
        """An integer from `low` to `high`."""
        value: int = self.a(int, "a whole number")
        if not low <= value <= high:
            raise self.wrong(f"must lie between {low} and {high}, not {value}")
        return value

    def number(self, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        value = self.a((int, float), "a number")
        if not low <= value <= high:
            raise self.wrong(f"must lie between {low} and {high}, not {value}")
        return float(value)

    def fraction(self) -> Fraction:
        """An exact positive number, written as text like ``"25000000000"`` or ``"82/3"``."""
        text = self.text(_LONGEST_FRACTION)
        if not _FRACTION.fullmatch(text):
            raise self.wrong(f'must be a positive fraction like "25000000000" or "82/3", not {_shown(text)}')
        return Fraction(text)


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, str | int | float) or value is None else type(value).__name__
    return {"dict": "an object", "list": "a list"}.get(text, text if len(text) <= 60 else f"{text[:57]}…")


_MOST_TEXT = 2**26
# What unpacking may use: the dictionary of the strongest preset.
_MOST_MEMORY = 2**27
# Names and columns repeat from node to node: stronger presets are ten times slower here and find no more.
_PRESET = 2


def compressed(data: bytes) -> str:
    """The data, compressed (xz, LZMA2), in base64."""
    return base64.b64encode(lzma.compress(data, preset=_PRESET)).decode("ascii")


def decompressed(entry: Entry, most: int) -> bytes:
    """The data of such a field; raises `FileError` for what is none, or unpacks to more than `most` bytes."""
    with blamed_on(lambda _: entry.wrong("is not xz data in base64"), (ValueError, lzma.LZMAError)):
        data = base64.b64decode(entry.text(_MOST_TEXT), validate=True)
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MOST_MEMORY)
        plain = unpacker.decompress(data, most + 1)
    if len(plain) > most or not unpacker.eof:
        raise entry.wrong(f"does not unpack to at most {most} bytes")
    return plain
