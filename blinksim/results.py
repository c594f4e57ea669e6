"""Results that show themselves: a table for pandas, and one for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 40


class Shown:
    """A result whose `rows` are a table; gives it to pandas (`to_frame`) and to notebooks.

    A subclass says what its rows are, dictionaries with units in the keys, and its repr is the headline.
    """

    __slots__ = ()

    def rows(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        more = f"<p>… {len(frame) - _MOST_ROWS} more rows</p>" if len(frame) > _MOST_ROWS else ""
        return f"<pre>{escape(repr(self))}</pre>{frame.head(_MOST_ROWS).to_html(index=False)}{more}"
