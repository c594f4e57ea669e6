"""NCCL's numbers and words: graph families, channel patterns, path types, and the elements of topology files.

A family says what channels are for (the ``id`` of a graph in a file), a pattern how they are shaped (its
``pattern``): two numberings that share most names but no meaning (NCCL 2.28.3, include/graph.h). Topology
files are parsed as NCCL does: one element a line, double quotes, indented by blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum

from blinksim.errors import InputError
from blinksim.textio.safe_xml import Element
from blinksim.textio.text_files import read_words

# Families.
RING, TREE, COLLNET, NVLS, COLLNET_DIRECT = range(5)
FAMILY_NAMES = {RING: "ring", TREE: "tree", COLLNET: "collnet", NVLS: "nvls", COLLNET_DIRECT: "collnet direct"}
# The families that blinksim predicts, by name.
FAMILIES = {FAMILY_NAMES[family]: family for family in (RING, TREE, NVLS)}


class Pattern(IntEnum):
    """How the channels of a graph are shaped."""

    BALANCED_TREE = 1
    SPLIT_TREE = 2
    TREE = 3
    RING = 4
    NVLS = 5
    COLLNET_DIRECT = 6


# The patterns that make sense for a family.
FAMILY_PATTERNS = {
    RING: (Pattern.RING,),
    TREE: (Pattern.BALANCED_TREE, Pattern.SPLIT_TREE, Pattern.TREE),
    NVLS: (Pattern.NVLS,),
}

# Kinds of paths, nearest first, as NCCL abbreviates them, in words.
PATH_WORDS = read_words("path")
PATH_TYPES = tuple(PATH_WORDS)
LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET, DIS = range(len(PATH_TYPES))
_SINCE = {"PXN": 12, "P2C": 27}
# The path types that a graph file can name; some releases know fewer (`file_path_types`).
FILE_PATH_TYPES = tuple(kind for kind in PATH_TYPES if kind not in ("C2C", "NET", "DIS"))
# The path types of graph files that every NCCL since 2.8 knows.
PORTABLE_PATH_TYPES = tuple(kind for kind in FILE_PATH_TYPES if kind not in _SINCE)


def file_path_types(minor: int) -> tuple[str, ...]:
    """The path types that NCCL 2.`minor` knows in a graph file, nearest first."""
    return tuple(kind for kind in FILE_PATH_TYPES if minor >= _SINCE.get(kind, 0))


# The compute capability, times ten, that is assumed of GPUs that do not say theirs.
DEFAULT_SM = 90
# Domain, bus, device and function, in small letters; the domain may be left out.
BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,4}):([0-9a-f]{1,4})\.([0-9a-f]{1,2})")
_SAFE = re.compile(r"[^\"'<>&\x00-\x1f]{0,254}")


def lines(element: Element, indent: int = 0) -> Iterator[str]:
    """The text of an element, line by line; raises `InputError` for a value that NCCL would not read as it is."""
    for name, value in element.attributes.items():
        if not _SAFE.fullmatch(value):
            raise InputError(f"{element.tag} {name}={value[:40]!r} cannot stand in a file that NCCL reads")
    words = " ".join((element.tag, *(f'{name}="{value}"' for name, value in element.attributes.items())))
    if not element.children:
        yield f"{' ' * indent}<{words}/>"
        return
    yield f"{' ' * indent}<{words}>"
    for child in element.children:
        yield from lines(child, indent + 2)
    yield f"{' ' * indent}</{element.tag}>"
