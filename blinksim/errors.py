"""The one family of errors. Each carries the exit status that the command line ends with.

0 ok · 1 the answer is "no" · 2 usage or bad input · 3 not expressible or infeasible · 4 missing extra or hardware.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlinksimError(Exception):
    """Anything that blinksim refuses, in one line that says what is wrong, where, and what to do."""

    exit_code = 2


class InputError(BlinksimError):
    """An argument or a file cannot be used as it is."""

    exit_code = 2


class FileError(InputError):
    """A file cannot be used; the place in it comes first, as ``file:line:column: message``."""

    def __init__(self, path: object, message: str, line: int | None = None, column: int | None = None) -> None:
        place = ":".join(str(part) for part in (path, line, column) if part is not None)
        super().__init__(f"{place}: {message}")


class InfeasibleError(BlinksimError):
    """The question is well put, and there is no answer to it on this machine."""

    exit_code = 3


class MissingError(BlinksimError):
    """An optional package or a piece of hardware is not here."""

    exit_code = 4


def unknown(what: str, name: str, known: Iterable[str], *, hint: str = "") -> InputError:
    """An `InputError` for a name that is not in `known`: offers the nearest names, or lists all of them."""
    names = sorted(known)
    lowered = {entry.lower(): entry for entry in names}
    near = [lowered[match] for match in get_close_matches(name.lower(), lowered, n=3, cutoff=0.6)]
    if near:
        advice = f"did you mean {' or '.join(repr(entry) for entry in near)}?"
    elif not names:
        advice = "there are none"
    else:
        advice = f"known: {', '.join(names)}" if len(names) <= 40 else f"{len(names)} names are known"
    return InputError(f"unknown {what} {name!r}: {advice}{' ' + hint if hint else ''}")
