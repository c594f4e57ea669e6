"""NCCL's own reading of its XML files: byte by byte, more lenient and more fragile than XML.

A checker that used a real XML parser would pass files that NCCL cannot load and refuse files that it loads.
The rules are those of NCCL 2.28.3, graph/xml.cc, with what differs between releases in `Release`: no prolog,
no tabs, attributes on one line with one blank before each, comments between elements, no text, no entities,
limits on counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from blinksim.errors import InputError
from blinksim.nccl.families import file_path_types

SYSTEM_ERROR, INTERNAL_ERROR, INVALID_USAGE = 2, 3, 5
_LONGEST = 255
_MOST_ATTRIBUTES = 16
_VERSION = re.compile(r"2\.([0-9]{1,2})(?:\.[0-9]{1,2})?")
_OLDEST, _NEWEST = 8, 30


class LoadError(Exception):
    """NCCL refuses the file: its result code, and the warning that stands in its log."""

    def __init__(self, code: int, log: str) -> None:
        super().__init__(log)
        self.code, self.log = code, log


class CrashError(Exception):
    """NCCL's process dies; the signal that ends it."""


@dataclass(frozen=True, slots=True)
class Release:
    """What a release of NCCL 2 determines: limits, spellings, and how graph files number GPUs."""

    minor: int

    @classmethod
    def parse(cls, text: str) -> Release:
        """The release called ``2.28.3`` or ``2.28``; raises `InputError` for those whose rules are not known here."""
        match = _VERSION.fullmatch(text.strip())
        if match is None or not _OLDEST <= int(match[1]) <= _NEWEST:
            raise InputError(f"NCCL {text[:20]!r}: the rules of releases 2.{_OLDEST} to 2.{_NEWEST} are known")
        return cls(int(match[1]))

    @property
    def most_children(self) -> int:
        return 32 if self.minor <= 20 else 128 if self.minor <= 29 else 640

    @property
    def most_elements(self) -> int:
        return 1024 if self.minor <= 20 else 4096 if self.minor <= 29 else 65536

    @property
    def most_channels(self) -> int:
        """Channels of a communicator; a graph has room for half of them, the rest are their copies."""
        return 32 if self.minor <= 24 else 64

    @property
    def hexadecimal(self) -> bool:
        """True if ``dev="10"`` is GPU 16."""
        return self.minor >= 21

    @property
    def reads_ranks(self) -> bool:
        """True if a GPU may be named by its rank, which then wins over its number."""
        return self.minor >= 30

    @property
    def single_quotes(self) -> bool:
        return self.minor >= 27

    @property
    def path_types(self) -> tuple[str, ...]:
        return file_path_types(self.minor)


@dataclass
class Node:
    """One element as NCCL keeps it."""

    name: str
    line: int
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)

    def text(self, name: str) -> str:
        """The attribute `name`; without it NCCL gives up."""
        if name not in self.attributes:
            raise LoadError(INTERNAL_ERROR, f"Attribute {name} of node {self.name} not found")
        return self.attributes[name]

    def integer(self, name: str, base: int = 0) -> int:
        return c_integer(self.text(name), base)

    def decimal(self, name: str) -> float:
        return c_float(self.text(name))


def c_integer(text: str, base: int = 0) -> int:
    """A text as C's strtol reads it: the longest number at its start, 0 if there is none."""
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)(0[xX](?=[0-9a-fA-F]))?", text)
    assert match is not None
    rest = text[match.end() :]
    if match[2]:
        base = 16 if base == 0 else base
        if base != 16:
            return 0
    elif base == 0:
        base = 8 if rest.startswith("0") else 10
    digits = re.match({8: "[0-7]*", 10: "[0-9]*", 16: "[0-9a-fA-F]*"}[base], rest)
    assert digits is not None
    value = int(digits[0], base) if digits[0] else 0
    return -value if match[1] == "-" else value


def c_float(text: str) -> float:
    """A text as C's strtof reads it, without its special values."""
    match = re.match(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", text)
    return float(match[0]) if match else 0.0


class _Reader:
    """The characters of a file, taken one after another as NCCL takes them."""

    def __init__(self, text: str, release: Release, places: Mapping[str, tuple[str, ...]]) -> None:
        self.text, self.release, self.places = text, release, places
        self.at = 0
        self.line, self.counted = 1, 0
        self.elements = 0
        self.log: list[str] = []

    def next(self) -> str:
        if self.at >= len(self.text):
            raise LoadError(INTERNAL_ERROR, "XML Parse : Unexpected EOF")
        self.at += 1
        return self.text[self.at - 1]

    def token(self, *, with_value: bool) -> tuple[str, str, str]:
        """(name, value, the character that ended it)."""
        name: list[str] = []
        while True:
            char = self.next()
            if char in " >/\n\r":
                return "".join(name), "", char
            if char == "=":
                break
            name.append(char)
            if len(name) >= _LONGEST:
                raise LoadError(INTERNAL_ERROR, f"Error : name {''.join(name)[:20]}… too long (max {_LONGEST})")
        if not with_value:
            raise LoadError(INTERNAL_ERROR, f"XML Parse : Unexpected value with name {''.join(name)[:80]}")
        quote = self.next()
        if quote != '"' and not (quote == "'" and self.release.single_quotes):
            raise LoadError(INTERNAL_ERROR, "XML Parse : Expected (double) quote.")
        end = self.text.find(quote, self.at)
        if end < 0:
            raise LoadError(INTERNAL_ERROR, "XML Parse : Unexpected EOF")
        value = self.text[self.at : end]
        if len(value) >= _LONGEST:
            raise LoadError(INTERNAL_ERROR, f"Error : value {value[:20]}… too long (max {_LONGEST})")
        self.at = end + 1
        return "".join(name), value, self.next()

    def node(self) -> tuple[str, Node | None]:
        """(open, close, single or end, the element)."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \n\r":
                self.at += 1
            if self.at >= len(self.text):
                return "end", None
            self.line += self.text.count("\n", self.counted, self.at)
            self.counted = self.at
            char = self.next()
            if char != "<":
                raise LoadError(INTERNAL_ERROR, f"XML Parse error : expecting '<', got '{char}'")
            name, _, last = self.token(with_value=False)
            if not name.startswith("!--"):
                break
            # "-->" may begin in the name itself.
            end = self.text.find("-->", self.at - 1 - len(name[3:]))
            if end < 0:
                raise LoadError(INTERNAL_ERROR, "XML Parse error : unterminated comment")
            self.at = end + 3
        if not name and last == "/":
            name, _, last = self.token(with_value=False)
            if last != ">":
                raise LoadError(INTERNAL_ERROR, f"XML Parse error : unexpected trailing {last} in closing tag {name}")
            return "close", Node(name, self.line)
        node, count, kind = Node(name, self.line), 0, "open"
        while last == " ":
            key, value, last = self.token(with_value=True)
            if count < _MOST_ATTRIBUTES:
                # A doubled blank is an attribute without a name, and the first of two with one name counts.
                node.attributes.setdefault(key, value)
                count += 1
            else:
                self.log.append(f"XML Parse : Ignoring extra attributes (max {_MOST_ATTRIBUTES})")
        if last == "/":
            kind = "single"
            last = self.token(with_value=False)[2]
        if last != ">":
            raise LoadError(INTERNAL_ERROR, f"XML Parse : expected >, got '{last}'")
        return kind, node

    def roots(self) -> list[Node]:
        """The outermost elements with everything inside them that NCCL knows."""
        loaded: list[Node] = []
        # A stack instead of recursion, so that deep files end in a message.
        stack: list[tuple[Node | None, tuple[str, ...], bool]] = [(None, self.places[""], False)]
        while stack:
            head, known, ignored = stack[-1]
            if self.elements >= self.release.most_elements:
                limit = self.release.most_elements
                raise LoadError(INTERNAL_ERROR, f"Error : XML parser is limited to {limit} nodes")
            kind, node = self.node()
            if node is None:
                if head is not None:
                    raise LoadError(INTERNAL_ERROR, f"XML Parse : unterminated {head.name}")
                break
            if head is not None and kind == "close":
                # Inside an element that NCCL does not know, names of closing tags are not compared.
                if not ignored and node.name != head.name:
                    raise LoadError(INTERNAL_ERROR, f"XML Mismatch : {head.name} / {node.name}")
                stack.pop()
                continue
            ignored = node.name not in known or ignored
            if ignored and known:
                self.log.append(f"Ignoring element {node.name}")
            elif not ignored:
                self.keep(node, loaded if head is None else head.children, outermost=head is None)
            if kind == "open":
                stack.append((node, () if ignored else self.places[node.name], ignored))
        return loaded

    def keep(self, node: Node, siblings: list[Node], *, outermost: bool) -> None:
        """Puts an element behind its siblings."""
        if not outermost and len(siblings) == self.release.most_children:
            limit = self.release.most_children
            raise LoadError(INTERNAL_ERROR, f"Error : XML parser is limited to {limit} subnodes")
        siblings.append(node)
        self.elements += 1
        if outermost and node.integer("version") != 1:
            raise LoadError(INVALID_USAGE, f"XML Graph has wrong version {node.integer('version')}, 1 needed")


GRAPH_PLACES: Mapping[str, tuple[str, ...]] = {
    "": ("graphs",),
    "graphs": ("graph",),
    "graph": ("channel",),
    "channel": ("net", "gpu"),
    "net": (),
    "gpu": (),
}


def load_graphs(text: str, release: Release) -> tuple[Node, list[str]]:
    """The outermost ``<graphs>`` of a graph file as NCCL loads it, and the notes in its log.

    A file without any is an empty one. Raises `LoadError` where NCCL gives up.
    """
    reader = _Reader(text, release, GRAPH_PLACES)
    loaded = reader.roots()
    return (loaded[0] if loaded else Node("graphs", 1)), reader.log
