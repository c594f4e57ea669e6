"""Published tables beside computed values: one row per figure, and the difference."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args

from blinksim import data_files
from blinksim.errors import one_of
from blinksim.results import Result, count, keyed, table
from blinksim.textio.text_files import read_rows

DocumentName = Literal["blink", "blinkplus", "cubedo", "mxnet", "aurora"]
DOCUMENTS: tuple[DocumentName, ...] = get_args(DocumentName)
# A figure, a range that may have no upper end, or None where the document prints none.
Published = float | tuple[float, float | None] | None
# Rows from which on the text of a table leaves out those that agree, and by how much in percent those may
# differ.
_MANY_ROWS, _AGREE_PCT = 30, 0.1


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of a table: what the document says, and what blinksim computes, None for what it does not model."""

    what: str
    published: Published
    ours: float | None
    unit: str = ""
    note: str = ""

    @property
    def difference_pct(self) -> float | None:
        """By how much ours is above what is published, as a percentage; of a range the nearer end, 0 inside."""
        if self.published is None or self.ours is None:
            return None
        low, high = self.published if isinstance(self.published, tuple) else (self.published, self.published)
        nearest = max(low, self.ours if high is None else min(self.ours, high))
        if self.ours == nearest:
            return 0.0
        return 100 * (self.ours / nearest - 1) if nearest else None


@dataclass(frozen=True, slots=True)
class Table:
    """Figures of one table or section. source: where they are published, and how ours come about.

    measured: they were measured, and the document does not say that its equations give them. checked: the
    document has none of them, and they come from elsewhere, such as brute force.
    """

    name: str
    source: str
    rows: tuple[Figure, ...]
    measured: bool = False
    checked: bool = False


@dataclass(frozen=True, repr=False)
class Reproduction(Result):
    """The tables of a document beside what blinksim computes.

    Attributes
    ----------
    document, title : str
        Its short name, and its authors and year.
    tables : tuple of Table
        In the order of the document.
    slips : tuple of str
        What the document prints that cannot be, with the proof.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.reproduce("aurora")
    >>> row = found.tables[0].rows[0]
    >>> row.what, row.published, round(row.ours, 3), row.unit
    ('2 nodes, 1 rank each', 108.7, 108.696, 'ms')
    """

    document: str
    title: str
    tables: tuple[Table, ...]
    slips: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row per figure; a range is a list, its upper end None where it has none."""
        return [keyed(row, "@Reproduction.rows", table=part.name) for part in self.tables for row in part.rows]

    def to_dict(self) -> dict[str, Any]:
        """The rows, the source of each table, and the slips."""
        sources = {part.name: part.source for part in self.tables}
        return keyed(self, "document title sources rows slips", sources=sources, rows=self.rows())

    def sentence(self) -> str:
        """The answer in one line, about what the document computes."""
        told = [part for part in self.tables if not part.measured and not part.checked]
        rows = [(f"{part.name}, {row.what}", row.difference_pct) for part in told for row in part.rows]
        gaps = [(abs(difference), what) for what, difference in rows if difference is not None]
        near, (far, what) = sum(difference <= 1 for difference, _ in gaps), max(gaps)
        return f"{self.title}: {near} of {len(gaps)} figures within 1 %; farthest off by {far:.3g} %: {what}"

    def text(self) -> str:
        """The sentence, every table, and the slips; of long tables the rows that differ."""
        apart = [part.name for part in self.tables if part.measured or part.checked]
        lines = [self.sentence(), *(f"  not counted, as it is measured or checked: {name}" for name in apart)]
        for part in self.tables:
            odd = [row for row in part.rows if abs(row.difference_pct or 0) > _AGREE_PCT]
            shown = odd if len(part.rows) > _MANY_ROWS else part.rows
            lines += [f"\n{part.name}", f"  {part.source}"]
            if len(shown) < len(part.rows):
                lines.append(f"  {len(part.rows) - len(shown)} of {len(part.rows)} rows agree and are left out")
            cells = []
            for row in shown:
                off = row.difference_pct
                percent = "-" if off is None else "0 %" if abs(off) < 5e-3 else f"{off:+.2f} %"
                cells.append((row.what, _words(row.published), _words(row.ours), row.unit, percent, row.note))
            if cells:
                lines.append(table(("", "published", "ours", "unit", "difference", "note"), cells, left=(0, 3, 5)))
        if self.slips:
            lines += [f"\n{count(len(self.slips), 'slip')} of the document", *(f"  - {slip}" for slip in self.slips)]
        return "\n".join(lines)


def _words(value: Published) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        low, high = value
        return f"above {_words(low)}" if high is None else f"{_words(low)} to {_words(high)}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def published_rows(name: str) -> list[dict[str, str]]:
    """The rows of a table in ``models/papers``."""
    return read_rows(data_files.folder("models") / "papers" / name, dict, "published row")


def reproduce(document: DocumentName | str) -> Reproduction:
    """The tables of a source document beside the computed values.

    Parameters
    ----------
    document : str
        ``blink``, ``blinkplus``, ``cubedo`` (the SISCI-NCCL thesis), ``mxnet`` or ``aurora``.

    Returns
    -------
    Reproduction
        One row per published figure with ours and the difference, and the slips of the document.

    Raises
    ------
    InputError
        For another document.

    Examples
    --------
    >>> import blinksim as bs
    >>> len(bs.reproduce("aurora").slips)
    3
    """
    one_of("document", document, DOCUMENTS)
    module = import_module(f"blinksim.papers.{document}")
    every = read_rows(data_files.folder("models") / "paper_slips.csv", dict, "slip of a document")
    slips = tuple(row["slip"] for row in every if row["document"] == document)
    return Reproduction(document, module.TITLE, tuple(module.tables()), slips)
