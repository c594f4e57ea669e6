"""Messages of the library in the words of the command line: ``nodes=4`` becomes ``--nodes 4``."""

from __future__ import annotations

import re

# Python arguments that messages name, and the options that set them.
OPTIONS = {
    "algorithm": "--algorithm",
    "calls": "--calls",
    "channels": "--channels",
    "chunk": "--chunk",
    "cluster": "--cluster",
    "collective": "--collective",
    "edits": "--edit",
    "format": "--format",
    "lane_blocks": "--lane-blocks",
    "like": "--like",
    "links": "--links",
    "machine": "--machine",
    "members": "--members",
    "model": "--model",
    "nodes": "--nodes",
    "protocol": "--protocol",
    "ranks_per_node": "--ranks-per-node",
    "rates": "--rates",
    "relays": "--relays",
    "root": "--root",
    "search": "--search",
    "service": "--service",
    "time_limit": "--time-limit",
    "trees": "--trees",
    "workers": "--workers",
}
# Options that take no value: they stand for True.
FLAGS = {"alike": "--alike", "check": "--check", "force": "--force", "relays_reduce": "--relays-reduce"}
# Text in quotes is quoted from the user, such as the edit 'degrade gpu0-gpu3 lanes=1'; an apostrophe is no quote.
_QUOTED = r"(?<![\w=])(?:'[^'\n]*'|\"[^\"\n]*\")(?!\w)"
_ARGUMENT = r"(?<![\w-])(?P<name>[a-z][a-z_]*)=(?:(?P<word>True|False)\b|'(?P<quoted>[\w-]+)')?(?=(?P<next>\S)?)"
_PIECE = re.compile(f"{_QUOTED}|{_ARGUMENT}")
_ENDS_A_CLAUSE = ",;.:)"


def as_typed(message: str) -> str:
    """`message` with the Python arguments that it names spelled as options."""
    return _PIECE.sub(_option, message)


def _option(piece: re.Match[str]) -> str:
    name, word, quoted, following = piece.group("name", "word", "quoted", "next")
    if name in FLAGS and word != "False":
        return FLAGS[name]
    if name not in OPTIONS or word:
        return piece.group()
    if quoted:
        return f"{OPTIONS[name]} {quoted}"
    has_value = following is not None and following not in _ENDS_A_CLAUSE
    return OPTIONS[name] + (" " if has_value else "")
