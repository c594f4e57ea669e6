"""Common base of all answers: a table for pandas and notebooks, JSON, one line, rates in GB/s, and terms of a time.

And aligned tables and short lists, as the command line prints them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

from blinksim import data_files
from blinksim.textio.text_files import read_rows
from blinksim.units import exact_GBps, in_GBps

if TYPE_CHECKING:
    import pandas as pd


_UNITS: dict[str, Callable[[Any], Any]] = {"GBps": in_GBps, "exact": exact_GBps}


# The keys of every answer, by the name that `keyed` takes.
_FILE = data_files.folder("models") / "answer_keys.csv"
_ANSWERS = dict(read_rows(_FILE, lambda row: (row["answer"], row["keys"]), "row of keys"))


@cache
def _paths(keys: str) -> list[tuple[str, list[str], Callable[[Any], Any] | None, bool]]:
    """Keys of `keyed`, the way to each value, what brings it into the key's unit, and if it may be left out."""
    found = []
    for word in re.sub(r"@(\S+)", lambda answer: _ANSWERS[answer[1]], keys).split():
        said, _, path = word.partition("=")
        key = said.removesuffix("?")
        found.append((key, (path or key).split("."), _UNITS.get(key.rpartition("_")[2]), key != said))
    return found


def entry(of: Any, name: str) -> Any:
    """The attribute, or of a mapping the entry, of this name; None of None."""
    return None if of is None else of.get(name) if isinstance(of, Mapping) else getattr(of, name)


def keyed(of: object, keys: str, **values: Any) -> dict[str, Any]:
    """Attributes of an object as a row of a table or as JSON, under keys that carry their units.

    keys: words such as ``size_bytes=size``, or ``size`` where key and attribute have one name; dots reach
    further, into mappings too, and nothing has nothing in it. ``size?`` is left out if it is None, false or empty
    text. ``@Health`` stands for the keys of that row in ``models/answer_keys.csv``. Rates in bytes/s become GB/s
    under ``…_GBps`` and text of an exact fraction under ``…_exact``; tuples
    become lists, and NaN null. values: the entries, by key, that are no attributes.

    >>> from blinksim.collective import Collective
    >>> keyed(Collective("broadcast", 3), "collective=name root rate_GBps", rate_GBps=2.5)
    {'collective': 'broadcast', 'root': 3, 'rate_GBps': 2.5}
    """
    found = dict[str, Any]()
    for key, path, in_unit, optional in _paths(keys):
        value = values[key] if key in values else reduce(entry, path, of)
        if in_unit is not None and value is not None and key not in values:
            value = in_unit(value)
        if isinstance(value, float) and value != value:
            value = None
        if not (optional and (value is None or value is False or value == "")):
            found[key] = list(value) if isinstance(value, tuple) else value
    return found


class Tabular:
    """An object with `rows`, which become a table for pandas (`to_frame`) and for notebooks.

    A subclass defines the rows: dictionaries with units in the keys. Its repr is the headline of the table.
    """

    __slots__ = ()

    def rows(self) -> list[dict[str, Any]]:
        """The table, one dictionary per row, with units in the keys."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def _repr_html_(self) -> str:
        from html import escape

        html = self.to_frame().to_html(index=False, max_rows=40, float_format="{:.4g}".format)
        # Names in the text come from files of others.
        return f"<pre>{escape(repr(self))}</pre>{html}"


class Result(Tabular):
    """The answer of a public function: `sentence`, `text`, `to_dict`, and the table of a `Tabular`.

    A subclass defines `rows`. It defines `to_dict` where ``--json`` prints more than the rows, `sentence`
    where the first line of its repr is not the answer, and `text` where the command line prints more than the
    sentence.
    """

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The answer for JSON; keys carry their units."""
        return {"rows": self.rows()}

    def sentence(self) -> str:
        """The answer in one line."""
        first = repr(self).splitlines()[0].removeprefix(f"<{type(self).__name__}")
        return first.removesuffix(">").lstrip(": ")

    def text(self) -> str:
        """The answer as the command line prints it."""
        return self.sentence()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sentence()}>"


class Rate:
    """A result with a `rate` in bytes/s gives it in GB/s as well."""

    rate: Fraction

    @property
    def rate_GBps(self) -> float:  # noqa: N802 - GBps is the unit's name
        """`rate` in GB/s."""
        return in_GBps(self.rate)


class Rates:
    """A result with an `algbw` and a `busbw` in bytes/s gives them in GB/s as well."""

    __slots__ = ()

    @property
    def algbw(self) -> float | Fraction:
        """Bytes/s: size over time."""
        raise NotImplementedError

    @property
    def busbw(self) -> float | Fraction:
        """Bytes/s: algbw times the factor of the collective, comparable with the bandwidth of links."""
        raise NotImplementedError

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - GBps is the unit's name
        """algbw in GB/s."""
        return in_GBps(self.algbw)

    rate_GBps = algbw_GBps  # noqa: N815

    @property
    def busbw_GBps(self) -> float:  # noqa: N802
        """busbw in GB/s."""
        return in_GBps(self.busbw)


@dataclass(frozen=True, slots=True)
class Term:
    """One addend of a time.

    Parameters
    ----------
    name : str
        What takes it.
    time_s : float
        How long, in seconds.
    limit : str
        The link class or constant that sets it.

    Examples
    --------
    >>> import blinksim as bs
    >>> [term.name for term in bs.project("dgx1-v100", "allreduce", "1GiB", algorithm="ring").terms]
    ['latency of 14 steps', 'overhead of further messages', 'bandwidth of nvlink']
    """

    name: str
    time_s: float
    limit: str = ""


def total(terms: Iterable[Term]) -> float:
    """The time in seconds that the terms add up to, rounded once."""
    return math.fsum(term.time_s for term in terms)


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


def plain(value: float, digits: int = 4) -> str:
    """At least so many significant digits, without an exponent.

    >>> plain(99.6, 2), plain(112, 2), plain(4.36, 2), plain(1e-3)
    ('100', '112', '4.4', '0.001')
    """
    return f"{value:.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def names(values: Sequence[str], between: str = " ", most: int = 8) -> str:
    """A list of names, shortened in the middle: ``gpu0 gpu1 … gpu7``; between: what parts names that hold blanks."""
    if len(values) <= most:
        return between.join(values)
    return f"{between.join(values[: most // 2])}{between.rstrip()} … {values[-1]}"


def refused_words(refused: Mapping[str, str] | None) -> list[str]:
    """Who cannot run and why, without the advice to take another one: others stand beside it."""
    found = ((name, reason.partition("; take ")[0]) for name, reason in (refused or {}).items())
    return [why if why.startswith(name) else f"{name}: {why}" for name, why in found]
