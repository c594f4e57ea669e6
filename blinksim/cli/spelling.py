"""Messages of the library in the words of the command line: ``nodes=4`` becomes ``--nodes 4``."""

from __future__ import annotations

import re

# Python arguments that messages name, and the options that set them; None where the option takes no value.
OPTIONS = {
    "algorithm": "--algorithm",
    "channels": "--channels",
    "chunk": "--chunk",
    "cluster": "--cluster",
    "collective": "--collective",
    "edits": "--edit",
    "links": "--links",
    "machine": "--machine",
    "members": "--members",
    "model": "--model",
    "nodes": "--nodes",
    "ranks_per_node": "--ranks-per-node",
    "rates": "--rates",
    "relays": "--relays",
    "root": "--root",
    "service": "--service",
}
FLAGS = {"alike": "--alike", "check": "--check", "force": "--force", "relays_reduce": "--relays-reduce"}
# An argument inside quotes is somebody's text, such as the edit 'degrade gpu0-gpu3 lanes=1'.
_ARGUMENT = re.compile(r"(?<![\w'\"-])([a-z][a-z_]*)=(True\b)?(?:'([\w-]+)')?(?=(\S)?)")


def as_typed(message: str) -> str:
    """`message` with the Python arguments that it names spelled as options."""

    def option(match: re.Match[str]) -> str:
        name, true, quoted, following = match.groups()
        if name in FLAGS:
            return FLAGS[name]
        if name not in OPTIONS or true:
            return match.group()
        if quoted:
            return f"{OPTIONS[name]} {quoted}"
        value = following is not None and following not in ",;.:)"
        return OPTIONS[name] + (" " if value else "")

    return _ARGUMENT.sub(option, message)
