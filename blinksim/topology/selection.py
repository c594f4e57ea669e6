"""Lists of devices as people write them: ``0,1,4``, ``0-3``, ``gpu0,gpu3``, or numbers and names in a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blinksim.errors import InputError

Names = str | Iterable[int | str]
"""Devices as text such as ``0-3`` or ``gpu0,gpu3``, or as numbers and names."""

_DIGITS = 9


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(text: str) -> int:
    """The value of ASCII digits; beyond nine digits any number is larger than every machine."""
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS else 10**_DIGITS


def names_text(names: Names) -> str:
    """Devices as one line of text, the form in which a question can be printed, compared and sent elsewhere."""
    return names if isinstance(names, str) else ",".join(str(name) for name in names)


def listed(names: Names, holders: Sequence[str], argument: str) -> tuple[str, ...]:
    """The devices that `names` lists, in its order.

    holders: the GPUs and tiles that numbers count. argument: what the caller calls the list, for messages.
    Raises `InputError` for a number that no GPU has, a range that runs backwards or is cut short, and an empty name;
    names are not looked up.
    """
    text = names_text(names)
    chosen: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        first, dash, last = part.partition("-")
        if _is_number(first) and (not dash or _is_number(last)):
            low, high = _number(first), _number(last or first)
            if high < low:
                raise InputError(f"{argument}={part} runs backwards; write {high}-{low}")
            if high >= len(holders):
                raise InputError(f"{argument}={part}: the machine has GPUs 0 to {len(holders) - 1}")
            chosen += holders[low : high + 1]
        elif _is_number(first) and dash and not last:
            raise InputError(f"{argument}={part}: the range has no end; write it like {first}-{len(holders) - 1}")
        elif part:
            chosen.append(part)
        else:
            raise InputError(f"{argument}={text!r}: a name is missing between the commas; write it like 0,1,4")
    return tuple(chosen)
