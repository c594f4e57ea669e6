"""XML elements from untrusted text, with the line of each, within limits.

The files that blinksim reads in XML (NCCL's topologies and graphs, MSCCL's algorithms) are elements with
attributes and nothing else. So a document type, entities, text between elements and anything beyond the
limits are refused, and every refusal is a `FileError` that names the line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from xml.parsers import expat

from blinksim.errors import FileError, blamed_on
from blinksim.textio.text_files import MIB, decode, read_bytes

MAX_BYTES = 10 * MIB
MAX_ELEMENTS = 100_000
MAX_DEPTH = 64
MAX_ATTRIBUTES = 64
MAX_VALUE = 4096

# Possessive, so that what stands before the outermost element is passed over once and never tried again.
_OUTERMOST = re.compile(r"\ufeff?(?>\s+|<\?.*?\?>|<!--.*?-->)*+<([A-Za-z][\w.-]*)", re.DOTALL | re.ASCII)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18})")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class Element:
    """One element: its attributes as written (line breaks in a value are blanks) and where it starts, from 1.

    One that is to be written starts nowhere yet: at 0.
    """

    tag: str
    attributes: Mapping[str, str] = field(hash=False)
    children: tuple[Element, ...] = ()
    line: int = 0
    column: int = 0

    def named(self, tag: str) -> Iterator[Element]:
        """The children called `tag`, in file order."""
        return (child for child in self.children if child.tag == tag)

    def walk(self) -> Iterator[Element]:
        """The element and all below it, in file order."""
        yield self
        for child in self.children:
            yield from child.walk()


class _Builder:
    """Collects elements from the parser's callbacks and enforces the limits as they come."""

    def __init__(self, parser: expat.XMLParserType, path: object, root: str, max_elements: int) -> None:
        self.parser, self.path, self.root, self.max_elements = parser, path, root, max_elements
        # The elements that are open, with their children so far.
        self.stack: list[tuple[Element, list[Element]]] = []
        self.count = 0
        self.result: Element | None = None

    def fail(self, message: str) -> FileError:
        return FileError(self.path, message, self.parser.CurrentLineNumber, self.parser.CurrentColumnNumber + 1)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if not self.stack and tag != self.root:
            raise self.fail(f"the outermost element is <{tag[:40]}>; this file must hold <{self.root}>")
        if self.count > self.max_elements:
            raise self.fail(f"more than {self.max_elements} elements; no real file is that large")
        if len(self.stack) >= MAX_DEPTH:
            raise self.fail(f"elements are nested more than {MAX_DEPTH} deep")
        if len(attributes) > MAX_ATTRIBUTES:
            raise self.fail(f"<{tag[:40]}> has {len(attributes)} attributes; at most {MAX_ATTRIBUTES} are read")
        for name, value in attributes.items():
            if len(value) > MAX_VALUE or len(name) > MAX_VALUE:
                raise self.fail(f"attribute {name[:40]} of <{tag[:40]}> is longer than {MAX_VALUE} characters")
        place = self.parser.CurrentLineNumber, self.parser.CurrentColumnNumber + 1
        self.stack.append((Element(tag, MappingProxyType(attributes), (), *place), []))

    def end(self, _tag: str) -> None:
        begun, children = self.stack.pop()
        self.result = replace(begun, children=tuple(children))
        if self.stack:
            self.stack[-1][1].append(self.result)

    def text(self, data: str) -> None:
        if not data.isspace():
            inside = self.stack[-1][0].tag[:40] if self.stack else self.root
            raise self.fail(f"text {data.strip()[:30]!r} inside <{inside}>; only elements may stand there")

    def doctype(self, *_: object) -> None:
        raise self.fail("a document type or entity declaration; such files are not read, remove it")


def parse(text: str, path: object, *, root: str, max_elements: int = MAX_ELEMENTS) -> Element:
    """The outermost element of `text`, which must be called `root`.

    `path` stands in messages only. A declared encoding is ignored: the text has been decoded already.
    Comments and processing instructions are skipped. Raises `FileError` with line and column for text that is
    empty, cut short, not well-formed, over a limit (`MAX_BYTES`, `max_elements`, `MAX_DEPTH`,
    `MAX_ATTRIBUTES`, `MAX_VALUE`), or that holds a document type, entities of its own, or text between the
    elements.
    """
    with blamed_on(lambda _: FileError(path, "is not UTF-8 text"), UnicodeEncodeError):
        data = text.removeprefix("\ufeff").encode("utf-8")
    if len(data) > MAX_BYTES:
        raise FileError(path, f"more than {MAX_BYTES} bytes; no real file of this kind is that large")
    if not data.strip():
        raise FileError(path, f"is empty; expected an XML file with <{root}>")
    parser = expat.ParserCreate(encoding="utf-8")
    parser.buffer_text = True
    builder = _Builder(parser, path, root, max_elements)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.StartDoctypeDeclHandler = builder.doctype
    parser.EntityDeclHandler = builder.doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        cut_short = expat.errors.XML_ERROR_NO_ELEMENTS, expat.errors.XML_ERROR_UNCLOSED_TOKEN
        reason = f"not well-formed XML ({expat.ErrorString(error.code) or 'unknown error'})"
        if error.code in [expat.errors.codes[name] for name in cut_short]:
            reason = f"ends before <{root}> begins or is complete; the file is cut short or is not XML"
            if builder.stack:
                inside = builder.stack[-1][0]
                reason = f"ends inside <{inside.tag[:40]}> of line {inside.line}; the file is cut short"
        raise FileError(path, reason, error.lineno, error.offset + 1) from None
    if builder.result is None:
        raise FileError(path, f"holds no <{root}>")
    return builder.result


def outermost(text: str) -> str:
    """The name of the outermost element, empty if the text does not begin like XML; `parse` says what is wrong."""
    found = _OUTERMOST.match(text)
    return found[1] if found else ""


def file_text(path: str | os.PathLike[str]) -> str:
    """The text of an XML file; it keeps a byte order mark, which NCCL refuses. Raises `FileError` if it is none."""
    return decode(path, read_bytes(path, MAX_BYTES, "XML file"), "XML file", "utf-8")


def check_places(path: object, element: Element, parents: Mapping[str, tuple[str, ...]]) -> None:
    """Raises `FileError` for an element below `element` that stands elsewhere than in one of its `parents`.

    Elements that `parents` does not name are left alone with all they hold: their reader skips them.
    """
    for child in element.children:
        if child.tag in parents:
            if element.tag not in parents[child.tag]:
                wanted = " or ".join(f"<{parent}>" for parent in parents[child.tag])
                raise fault(path, child, f"stands inside <{element.tag}>; its place is inside {wanted}")
            check_places(path, child, parents)


# --- attributes ---


def fault(path: object, element: Element, message: str) -> FileError:
    """A `FileError` about `element`, at its line."""
    return FileError(path, f"<{element.tag}>: {message}", element.line, element.column)


def word(path: object, element: Element, name: str, default: str | None = None) -> str:
    """Attribute `name` without any blanks or line breaks, or `default`; raises `FileError` if there is neither."""
    if (value := element.attributes.get(name)) is None:
        if default is None:
            raise fault(path, element, f"attribute {name} is missing")
        return default
    return "".join(value.split())


def integer(path: object, element: Element, name: str, *, low: int, high: int, default: int | None = None) -> int:
    """Attribute `name` as a whole number, decimal or 0x hexadecimal, from `low` to `high`; else as `word`."""
    value = word(path, element, name, None if default is None else str(default))
    # A leading zero means octal in C; Python refuses it.
    if not _INTEGER.fullmatch(value) or (len(value.lstrip("+-")) > 1 and re.match(r"[+-]?0[0-9]", value)):
        raise fault(path, element, f"{name}={value[:40]!r} is not a whole number")
    number = int(value, 0)
    if not low <= number <= high:
        raise fault(path, element, f"{name}={value[:40]!r} must lie between {low} and {high}")
    return number


def number(
    path: object, element: Element, name: str, *, low: float, high: float, default: float | None = None
) -> float:
    """Attribute `name` as a decimal number from `low` to `high`; else as `word`."""
    value = word(path, element, name, None if default is None else str(default))
    if not _NUMBER.fullmatch(value):
        raise fault(path, element, f"{name}={value[:40]!r} is not a number")
    if not low <= float(value) <= high:
        raise fault(path, element, f"{name}={value[:40]!r} must lie between {low:g} and {high:g}")
    return float(value)
