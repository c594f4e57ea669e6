"""Common base of all answers: a table for pandas and notebooks, JSON, one line, and rates in GB/s."""

from __future__ import annotations

from fractions import Fraction
from html import escape
from typing import TYPE_CHECKING, Any

from blinksim.units import in_GBps

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 40


def paragraph(text: str) -> str:
    """`text` as HTML; names in it come from files of others."""
    return f"<p>{escape(text)}</p>"


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
        frame = self.to_frame()
        more = f"<p>… {len(frame) - _MOST_ROWS} more rows</p>" if len(frame) > _MOST_ROWS else ""
        return f"<pre>{escape(repr(self))}</pre>{frame.head(_MOST_ROWS).to_html(index=False)}{more}"


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
    def rate_GBps(self) -> float:  # noqa: N802 - GBps is the unit's name
        """algbw in GB/s."""
        return in_GBps(self.algbw)

    @property
    def algbw_GBps(self) -> float:  # noqa: N802
        """algbw in GB/s."""
        return in_GBps(self.algbw)

    @property
    def busbw_GBps(self) -> float:  # noqa: N802
        """busbw in GB/s."""
        return in_GBps(self.busbw)
