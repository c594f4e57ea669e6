"""The elements of an NCCL topology file as NCCL parses them: one a line, double quotes, indented by blanks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from blinksim.errors import InputError

GPU_KINDS = ("gpu", "tile")
"""The kinds of devices that are GPUs in NCCL's files."""
BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,4}):([0-9a-f]{1,4})\.([0-9a-f]{1,2})")
"""Domain, bus, device and function, in small letters; the domain may be left out."""
_SAFE = re.compile(r"[^\"'<>&\x00-\x1f]{0,254}")


@dataclass
class Element:
    """An element with its attributes, in the order in which they are written."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)

    def lines(self, indent: int = 0) -> Iterator[str]:
        """The text, line by line; raises `InputError` for a value that NCCL would not read as it is."""
        for name, value in self.attributes.items():
            if not _SAFE.fullmatch(value):
                raise InputError(f"{self.tag} {name}={value[:40]!r} cannot stand in a file that NCCL reads")
        words = " ".join((self.tag, *(f'{name}="{value}"' for name, value in self.attributes.items())))
        if not self.children:
            yield f"{' ' * indent}<{words}/>"
            return
        yield f"{' ' * indent}<{words}>"
        for child in self.children:
            yield from child.lines(indent + 2)
        yield f"{' ' * indent}</{self.tag}>"

    def count(self) -> int:
        """The number of elements, this one included."""
        return 1 + sum(child.count() for child in self.children)
