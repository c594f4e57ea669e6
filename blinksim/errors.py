"""The family of errors, each with the exit status of the command line.

0 ok · 1 the answer is "no" · 2 usage or bad input · 3 not expressible or infeasible · 4 missing extra or
hardware · 5 nothing is wrong, and something is not proved (`blinksim verify`) or not known well enough to tell
(`blinksim diagnose`). What is none of them is a bug, and ends with 70.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import CO_VARKEYWORDS, signature
from typing import Any

# What a message quotes may be as long as a file.
_LONGEST = 1500
# Among more names than this no near one is looked for: that takes seconds, and lists nothing that helps.
_MOST_COMPARED = 2000
# Names that a message lists at most.
_MOST_LISTED = 40


class BlinksimError(Exception):
    """Base class of all errors: one line that says what is wrong, where, and what to do.

    Control characters, which may come from a file, are written out (``\\x1b``).

    Examples
    --------
    >>> import blinksim as bs
    >>> try:
    ...     bs.load("dgx1-v1000")
    ... except bs.BlinksimError as error:
    ...     print(error.exit_code, type(error).__name__)
    2 InputError
    """

    exit_code = 2

    def __init__(self, message: object) -> None:
        text = one_line(str(message))
        super().__init__(text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}")


class InputError(BlinksimError):
    """An argument or a file cannot be used as it is.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.project("dgx1-v100", "allreduce", "much")
    Traceback (most recent call last):
    blinksim.errors.InputError: 'much' is not a size; write it like 256MiB or 2GB
    """


class FileError(InputError):
    """A file cannot be used; the place in it comes first, as ``file:line:column: message``.

    Parameters
    ----------
    path : object
        The file.
    message : str
        What is wrong and what to do.
    line, column : int, optional
        The place in the file, from 1.

    Examples
    --------
    >>> print(FileError("box.yaml", "unknown key 'lanez'", 7, 3))
    box.yaml:7:3: unknown key 'lanez'
    """

    def __init__(self, path: object, message: str, line: int | None = None, column: int | None = None) -> None:
        place = ":".join(str(part) for part in (path, line, column) if part is not None)
        super().__init__(f"{place}: {message}")


class PluginError(InputError):
    """Code from outside the package failed or returned an unusable result; the message names it.

    Examples
    --------
    >>> import blinksim as bs
    >>> @bs.register_algorithm(["broadcast"])
    ... def nothing(plan):
    ...     plan.add_chunk(1)
    >>> try:
    ...     bs.synthesize("ring:4", "broadcast", "nothing")
    ... except bs.PluginError as error:
    ...     print(str(error).partition(": ")[2])
    chunk 0 never reaches gpu1 (rank 1), gpu2 (rank 2), gpu3 (rank 3)
    """


class OutdatedWarning(DeprecationWarning):
    """A word that still works, and what takes its place."""


class InfeasibleError(BlinksimError):
    """The question is valid but has no answer on this machine.

    Examples
    --------
    >>> import blinksim as bs
    >>> try:
    ...     bs.load("dgx1-v100").select([0, 5])
    ... except bs.InfeasibleError as error:
    ...     print(error.exit_code)
    3
    """

    exit_code = 3


class MissingError(BlinksimError):
    """An optional package or a piece of hardware is missing.

    Examples
    --------
    >>> MissingError("no GPUs found here").exit_code
    4
    """

    exit_code = 4


def nearest_names(name: str, known: Iterable[str], most: int, cutoff: float) -> list[str]:
    """At most so many of `known` that are spelt almost like `name`; cutoff: 1 for the same letters."""
    from difflib import get_close_matches  # takes as long to load as the command line itself

    return get_close_matches(name, list(known), n=most, cutoff=cutoff)


def in_runs(names: Iterable[str]) -> list[str]:
    """The names, in their order, those that count up as one entry: ``efa0 to efa31``."""
    runs: dict[tuple[str, bool], list[int]] = {}
    for name in names:
        stem = name.rstrip("0123456789")
        if 0 < len(name) - len(stem) < 10 and name == f"{stem}{int(name[len(stem) :])}":
            runs.setdefault((stem, True), []).append(int(name[len(stem) :]))
        else:
            runs[name, False] = []
    found = []
    for (stem, _), numbers in runs.items():
        alone = [f"{stem}{number}" for number in sorted(numbers)] or [stem]
        whole = len(numbers) == max(numbers, default=0) - min(numbers, default=0) + 1 > 1
        found += [f"{alone[0]} to {alone[-1]}"] if whole else alone
    return found


def asked(called: Any) -> Any:
    """A function that refuses wrong and missing arguments by an `InputError`; anything else as it is.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.sweep("hgx-h100", "allreduce", modle="nccl")
    Traceback (most recent call last):
    blinksim.errors.InputError: unknown keyword of sweep() 'modle': did you mean 'model'?
    """
    if not hasattr(called, "__code__") or called.__code__.co_flags & CO_VARKEYWORDS:
        return called

    @wraps(called)
    def checked(*given: Any, **named: Any) -> Any:
        for name in named.keys() - signature(called).parameters:
            whole = name in ("nodes", "edits", "rates")
            if whole or name in ("members", "relays", "links", "ranks_per_node"):
                way = f"take as the machine bs.{'load' if whole else 'Question.of'}(name, {name}={named[name]!r})"
                raise InputError(f"{called.__name__}() takes no {name}=; {way}")
            if (called.__name__, name) == ("bound", "size"):
                raise InputError("bound() takes no size=; what so many bytes take at least is bs.time_bound's answer")
            raise unknown(f"keyword of {called.__name__}()", name, signature(called).parameters)
        try:
            signature(called).bind(*given, **named)
        except TypeError as error:
            takes = ", ".join(signature(called).parameters)
            raise InputError(f"{called.__name__}(): {error}; it takes {takes}") from None
        return called(*given, **named)

    # Other processes find it, and not the function inside, under its public name.
    checked.__module__ = "blinksim"
    return checked


def unknown(
    what: str, name: str, known: Iterable[str], *, hint: str = "", sorts: Mapping[str, list[str]] | None = None
) -> InputError:
    """An `InputError` for a name that is not in `known`: offers the nearest names, or lists all of them.

    Where some of `known` have the same part before their last dot, such as a node's name, only these count, and
    names without a dot, such as that of a switch between nodes. sorts: names by what people call their like; where
    none is near, those alone are listed whose sort the name begins with, as the adapters for ``nic3``.
    """
    names, inside = sorted(known), name[: name.rfind(".") + 1]
    if any(entry.startswith(inside) for entry in names):
        names = [entry for entry in names if entry.startswith(inside) or "." not in entry]
    lowered = {entry.removeprefix(inside).lower(): entry for entry in names}
    sought = name[:200].removeprefix(inside).lower()
    compared = lowered if len(lowered) <= _MOST_COMPARED else [sought] * (sought in lowered)
    span = re.fullmatch(r"(.*[^0-9])([0-9]+)-\1?([0-9]+)", name[:200])
    if span and f"{span[1]}{span[2]}" in names:
        advice = f"write a range like {span[1]}[{span[2]}-{span[3]}]"
    elif f"n0.{name}" in names:
        advice = f"write n0.{name}, as names begin with the node"
    elif near := [lowered[match] for match in nearest_names(sought, compared, 3, 0.6)]:
        advice = f"did you mean {' or '.join(repr(entry) for entry in near)}?"
    elif not names:
        advice = "there are none"
    else:
        runs = in_runs((sorts or {}).get(sought.rstrip("0123456789"), names))
        advice = f"known: {', '.join(runs)}" if len(runs) <= _MOST_LISTED else f"{len(names)} names are known"
    shown = name[:200] + "…" * (len(name) > 200)
    return InputError(f"unknown {what} {shown!r}: {advice}{' ' + hint if hint else ''}")


def each_of(what: str, names: Iterable[str], known: Collection[str], *, hint: str = "") -> None:
    """As `one_of` for each of the names, in their order."""
    for name in names:
        one_of(what, name, known, hint=hint)


def one_of(what: str, name: str, known: Collection[str], *, hint: str = "") -> str:
    """The name, if it is in `known`; else raises the error of `unknown`.

    >>> one_of("collective", "reduce", ("broadcast", "reduce"))
    'reduce'
    """
    if name not in known:
        raise unknown(what, name, known, hint=hint)
    return name


Kinds = type[Exception] | tuple[type[Exception], ...]


@contextmanager
def blamed_on(place: str | Callable[[str], BlinksimError], kinds: Kinds = InputError) -> Iterator[None]:
    """An `InputError` inside becomes the error at this place of a file, or one that begins with this text.

    One that has a place stays as it is. kinds: errors that do in place of `InputError`.

    >>> with blamed_on(lambda message: FileError("box.yaml", message, 7)):
    ...     raise InputError("25 lanes too many")
    Traceback (most recent call last):
    blinksim.errors.FileError: box.yaml:7: 25 lanes too many
    """
    try:
        yield
    except FileError:
        raise
    except kinds as error:
        raise (InputError(f"{place}: {error}") if isinstance(place, str) else place(str(error))) from None


# --- safe printing of foreign text ------------------------------------------------------------------------
# What must not reach a terminal: ISO/IEC 6429 (the escape sequences) and Boucher and Anderson, Trojan Source:
# Invisible Vulnerabilities, USENIX Security 2023 (the characters of Unicode that hide or reorder text).

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_ENDS = re.compile("[\t\n]")
_NOT_ASCII = re.compile("[^\x00-\x7f]")


def printable(text: str, encoding: str = "utf-8") -> str:
    """`text` with control characters, but for tabs and ends of lines, and what `encoding` lacks, as ``\\u001b``.

    JSON that is escaped like this holds the same values as before.
    """
    text = _UNSAFE.sub(_escaped, text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        # What `encoding` lacks it ignores, and leaves nothing of it.
        text = _NOT_ASCII.sub(lambda a: a[0] if a[0].encode(encoding, "ignore") else _escaped(a), text)
    return text


def one_line(text: str) -> str:
    r"""`text` on one line that any terminal shows as it is, as messages need it: ``\x1b``, ``\n`` or ``\u202e``."""
    return _ENDS.sub(_written, _UNSAFE.sub(_written, text))


def _written(found: re.Match[str]) -> str:
    """In the way of Python."""
    return found[0].encode("unicode_escape").decode("ascii")


def _escaped(found: re.Match[str]) -> str:
    """In the way of JSON: beyond 16 bits as two halves."""
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
