"""Safe printing of foreign text, without control characters and bidirectional marks.

What must not reach a terminal: ISO/IEC 6429 (the escape sequences) and Boucher and Anderson, Trojan Source:
Invisible Vulnerabilities, USENIX Security 2023 (the characters of Unicode that hide or reorder text).
"""

from __future__ import annotations

import re

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
