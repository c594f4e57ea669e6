"""Strict reading of small YAML files, with line and column of every value, and exact YAML text.

Plain YAML only: one document, no anchors and aliases, no tags, limited depth, no key twice. Scalars are text
until the reader asks for a number with a unit, so that ``on``, ``1:30`` or a bus id such as ``04:00.0`` mean
what they say. Bandwidths and times are written exactly, in the layout of our data files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

import yaml

from blinksim.errors import FileError, InputError, blamed_on, one_of, unknown
from blinksim.textio.text_files import line_and_column, read_text
from blinksim.units import parse_rate, parse_size, parse_time

Quantity = TypeVar("Quantity", int, float, Fraction)

MAX_DEPTH = 16
# Characters of a line in which a slip is looked for: the search is quadratic.
_LONGEST_SLIP, _LONGEST_KEY = 1000, 2**20
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FRACTION = re.compile(r"\s*([0-9]{1,40})/([0-9]{1,40})\s*([A-Za-z]+/s)\s*")
_PERCENT = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,40})?(?:[eE]-[0-9]{1,3})?) ?%")
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"[-+]?[0-9]{1,20}\.[0-9]{0,20}([eE][-+][0-9]{1,3})?")


@dataclass(slots=True, eq=False)
class Entry:
    """A value of the file at `path`, with methods that return it as what it should be or raise a `FileError`.

    what: what the value describes, for messages ("link class nvlink").
    """

    path: str | os.PathLike[str]
    node: yaml.Node
    what: str

    def error(self, message: str) -> FileError:
        """A `FileError` at this value."""
        return FileError(self.path, message, *_place(self.node.start_mark))

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    def line_of(self, keys: Sequence[str]) -> int | None:
        """The line of the last key that is there of those that lead into nested mappings; None without the first."""
        node, line = self.node, None
        for wanted in keys:
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            found = next(((key, value) for key, value in pairs if key.value == wanted), None)
            if found is None:
                break
            line, node = int(found[0].start_mark.line) + 1, found[1]
        return line

    def _found(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping (key: value)"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        text = str(self.node.value)
        return repr(text if len(text) <= 60 else text[:60] + "…") if text else "nothing"

    def _pairs(self, example: str) -> Iterator[tuple[Entry, str, Entry]]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(f"{self.what} must be a mapping, as in {example}; found {self._found()}")
        lines: dict[str, int] = {}
        for key_node, value_node in self.node.value:
            key = Entry(self.path, key_node, f"a key of {self.what}")
            if (name := key.text(_LONGEST_KEY)) in lines:
                raise key.error(f"{self.what} has the key {name!r} twice (first in line {lines[name]}); keep one")
            lines[name] = key.line
            yield key, name, Entry(self.path, value_node, f"{name} of {self.what}")

    def mapping(self, known: Collection[str], required: Collection[str] = (), *, example: str) -> dict[str, Entry]:
        """The values by key; only keys in `known` may occur and those in `required` must."""
        values: dict[str, Entry] = {}
        for key, name, value in self._pairs(example):
            if name not in known:
                raise key.error(str(unknown(f"key in {self.what}:", name, known, hint=f"(as in {example})")))
            values[name] = value
        for name in required:
            if name not in values:
                raise self.error(f"{self.what} has no {name!r}; add it, as in {example}")
        return values

    def named(self, *, example: str) -> dict[str, tuple[Entry, Entry]]:
        """The (key, value) entries of a mapping whose keys are free names."""
        return {name: (key, value) for key, name, value in self._pairs(example)}

    def items(self, *, example: str) -> list[Entry]:
        """The entries of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"{self.what} must be a list, as in {example}; found {self._found()}")
        return [Entry(self.path, node, f"entry {i} of {self.what}") for i, node in enumerate(self.node.value, start=1)]

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    def text(self, limit: int = 2000) -> str:
        """A text that is not empty, of at most `limit` characters."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value.strip():
            raise self.error(f"{self.what} must be a text; found {self._found()}")
        if len(self.node.value) > limit:
            raise self.error(f"{self.what} is longer than {limit} characters")
        return str(self.node.value)

    def choice(self, known: Collection[str], what: str) -> str:
        """One of the texts in `known`; `what` names such a thing."""
        with blamed_on(self.error):
            return one_of(what, self.text(), known)

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        text = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
            raise self.error(f"{self.what} must be a whole number from {low} to {high}; found {self._found()}")
        return int(text)

    def ratio(self, example: str) -> Fraction:
        """A positive number without a unit, such as ``2``, ``1.5`` or ``3/2``."""
        text = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        match = re.fullmatch(r"([0-9]{1,20})/([0-9]{1,20})|([0-9]{1,20}(?:\.[0-9]{1,20})?)", text)
        if not match or (match[2] and not int(match[2])) or not Fraction(text):
            raise self.error(f"{self.what} must be a positive number such as {example}; found {self._found()}")
        return Fraction(text)

    def percent(self) -> float:
        """A share from text such as ``2.7 %``: 0.027, at most 1000 %."""
        match = _PERCENT.fullmatch(self.node.value if isinstance(self.node, yaml.ScalarNode) else "")
        if not match or Fraction(match[1]) > 1000:
            raise self.error(f"{self.what} must be a percentage such as 2.7 %; found {self._found()}")
        return float(Fraction(match[1]) / 100)

    def size(self) -> int:
        """Bytes from text such as ``25MiB``."""
        return self._quantity(parse_size, "25MiB")

    def rate(self) -> Fraction:
        """Bytes/s from text such as ``25GB/s``, or from a fraction such as ``100/3 GB/s``."""

        def read(text: str) -> Fraction:
            if not (match := _FRACTION.fullmatch(text)):
                return parse_rate(text)
            if not int(match[1]) or not int(match[2]):
                raise InputError(f"{text!r} is not a positive bandwidth")
            return Fraction(int(match[1]), int(match[2])) * parse_rate(f"1{match[3]}")

        return self._quantity(read, "25GB/s")

    def time(self) -> float:
        """Seconds from text such as ``0.6us``."""
        return self._quantity(parse_time, "0.6us")

    def _quantity(self, read: Callable[[str], Quantity], example: str) -> Quantity:
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value:
            raise self.error(f"{self.what} must be a number with its unit, such as {example}; found {self._found()}")
        with blamed_on(lambda why: self.error(f"{self.what}: {why}")):
            return read(str(self.node.value))

    def scalar(self) -> int | float | bool | str:
        """A whole number, a decimal number, true or false, or else text; in quotes always text, which may be empty."""
        if isinstance(self.node, yaml.ScalarNode) and not self.node.value.strip() and self.node.style in ("'", '"'):
            return str(self.node.value)
        text = self.text()
        if getattr(self.node, "style", None) in ("'", '"', "|", ">"):
            return text
        if text in ("true", "false"):
            return text == "true"
        if _WHOLE.fullmatch(text):
            return int(text)
        number = float(text) if _DECIMAL.fullmatch(text) else 0.0
        if not math.isfinite(number):
            raise self.error(f"{self.what} is too large for a number; write it in quotes if it is text")
        return number if _DECIMAL.fullmatch(text) else text


def plain(path: str | os.PathLike[str], what: str) -> Any:
    """The data file at `path` as mappings, lists, numbers and text, for files of blinksim's own that state no places.

    Raises `FileError` as `load`, and for a scalar that is none of these.
    """
    node = load(path, read_text(path, what=what), what).node
    refused = yaml.MarkedYAMLError, ValueError, OverflowError
    with blamed_on(lambda why: FileError(path, f"holds a value that is no number or text: {why}"), refused):
        return yaml.constructor.SafeConstructor().construct_document(node)


def _cure(text: str, line: int) -> str:
    """What to do about two slips that people make and YAML has no words for."""
    lines = text.splitlines()
    slip = lines[line - 1][:_LONGEST_SLIP] if 0 < line <= len(lines) else ""
    if "\t" in slip[: len(slip) - len(slip.lstrip())]:
        return "; indent with spaces, not with tabs"
    unquoted = re.search(r"[\w.]+\[[0-9]+-[0-9]+\]", re.sub(r"'[^']*'|\"[^\"]*\"", "", slip))
    return f'; write names with brackets in quotes: "{unquoted[0]:.40}"' if unquoted else ""


def load(path: str | os.PathLike[str], text: str, what: str) -> Entry:
    """The root value of the YAML document `text`; `path` and `what` ("machine file") are for messages.

    Raises `FileError` with line and column for text that is not YAML, is empty, or uses more of YAML than is
    allowed.
    """
    try:
        # Refuses what a plain file does not need; lazily, before anything recurses into it or grows by it.
        depth = documents = 0
        for event in yaml.parse(text, Loader=_LOADER):
            place = _place(event.start_mark)
            tag = getattr(event, "tag", None)
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                message = f"YAML anchors (&) and aliases (*) are not allowed in a {what}; write the value out"
                raise FileError(path, message, *place)
            if tag is not None:
                raise FileError(path, f"YAML tags (here {tag[:60]}) are not allowed in a {what}; remove it", *place)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            documents += isinstance(event, yaml.DocumentStartEvent)
            if depth > MAX_DEPTH:
                raise FileError(path, f"exceeds a nesting depth of {MAX_DEPTH}; no {what} does", *place)
            if documents > 1:
                raise FileError(path, f"holds two YAML documents (---); a {what} is one", *place)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        problem = " ".join(part for part in (error.problem, error.context) if part)
        line, column = _place(error.problem_mark or error.context_mark)
        raise FileError(path, f"is not valid YAML: {problem}{_cure(text, line or 0)}", line, column) from None
    except yaml.reader.ReaderError as error:
        place = line_and_column(text, error.position)
        raise FileError(path, "holds a control character, which YAML does not allow", *place) from None
    except UnicodeEncodeError:
        raise FileError(path, "holds a lone surrogate, which is not a character") from None
    if node is None:
        raise FileError(path, f"is empty; a {what} is expected")
    return Entry(path, node, f"the {what}")


def _place(mark: yaml.Mark | yaml._yaml.Mark | None) -> tuple[int | None, int | None]:
    return (None, None) if mark is None else (mark.line + 1, mark.column + 1)


_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_DUMPER):  # type: ignore[misc, valid-type]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(data: dict[str, Any]) -> str:
    """Block style outside, one line for every item of a list of mappings and of a mapping without mappings."""
    lines = []
    for key, value in data.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            lines += [f"{key}:", *(f"  {line}" for line in dump(value).splitlines())]
        elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
            lines += [f"{key}:", *(f"  - {_flow(inner)}" for inner in value)]
        else:
            # Each in a list of one: a long key of a mapping is a line of its own, which is no text when it is read.
            key, text = (_flow([one])[1:-1] for one in (key, value))
            # YAML has keys of up to 1,024 characters on the line of their value.
            lines += [f"{key}: {text}"] if len(key) < 1000 else [f"? {key}", f": {text}"]
    return "".join(f"{line}\n" for line in lines)


def _flow(value: Any) -> str:
    # Wide enough for every line: only single lines can be put together as above.
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=True, width=2**30, allow_unicode=True)
    return str(text).strip()


def decimal_text(number: Fraction) -> str:
    """A positive number exactly: as a decimal of up to 18 digits where it is one, else as ``p/q``."""
    scaled = number * 10**9
    if scaled.denominator == 1 and scaled < 10**18:
        whole, rest = divmod(scaled.numerator, 10**9)
        return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")
    return f"{number.numerator}/{number.denominator}"


def rate_text(rate: Fraction) -> str:
    """Bytes/s exactly, such as ``25GB/s``, or ``100/3 GB/s`` where decimals do not reach."""
    text = decimal_text(rate / 10**9)
    return f"{text} GB/s" if "/" in text else f"{text}GB/s"


def time_text(seconds: float) -> str:
    """Seconds such as ``0.6us``, which read back as the same float."""
    micro = (Decimal(repr(seconds)) * 10**6).normalize()
    return f"{micro:f}us" if -12 < micro.adjusted() < 12 else f"{micro}us"
