"""Aligned tables and short lists, as the command line prints them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int] = (0,), indent: str = "  "
) -> str:
    """Columns under their headings; those numbered in `left` are text, flush left, the others numbers, flush right."""
    columns = list[list[str]]()
    for number, texts in enumerate(zip(header, *rows, strict=True)):
        flush, width = str.ljust if number in left else str.rjust, max(map(len, texts))
        columns.append([flush(text, width) for text in texts])
    return "\n".join(indent + "  ".join(line).rstrip() for line in zip(*columns, strict=True))


def count(number: int, what: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def names(values: Sequence[str], between: str = " ", most: int = 8) -> str:
    """A list of names, shortened in the middle: ``gpu0 gpu1 … gpu7``; between: what parts names that hold blanks."""
    if len(values) <= most:
        return between.join(values)
    return f"{between.join(values[: most // 2])}{between.rstrip()} … {values[-1]}"


def refused_words(refused: Mapping[str, str] | None) -> list[str]:
    """Who cannot run and why, without the advice to take another one: others stand beside it."""
    found = ((name, reason.partition("; take ")[0]) for name, reason in (refused or {}).items())
    return [why if why.startswith(name) else f"{name}: {why}" for name, why in found]
