"""What checking a file found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blinksim.results import Result


@dataclass(frozen=True)
class FileVerdict(Result):
    """What checking a file found.

    Parameters
    ----------
    ok : bool
        Nothing in the file is wrong.
    summary : str
        The verdict in a line.
    reasons : tuple of str
        What is wrong.
    facts : tuple of str
        What else was found.
    unproved : tuple of str
        What the file claims without proof; it may be true.
    about : mapping
        Machine, collective and members, where the file names them.
    details : mapping
        Exact rates and the like, as ``--json`` prints them.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.FileVerdict(False, "wrong: 1 bound", ("cut: the sum is 7, not 8",))
    <FileVerdict wrong: 1 bound
      cut: the sum is 7, not 8>
    """

    ok: bool
    summary: str
    reasons: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    unproved: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Nothing is wrong, and everything that the file claims is proved."""
        return self.ok and not self.unproved

    def rows(self) -> list[dict[str, Any]]:
        """The reasons, or the facts of a file that is right."""
        return [{"reason": text} for text in self.reasons] or [{"fact": text} for text in self.facts]

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        return {
            **self.about,
            "ok": self.ok,
            "summary": self.summary,
            "reasons": list(self.reasons),
            "unproved": list(self.unproved),
            "facts": list(self.facts),
            **self.details,
        }

    def text(self) -> str:
        """The verdict, the reasons, what is not proved, and the facts, a line each."""
        return "\n".join([self.summary, *(f"  {line}" for line in (*self.reasons, *self.unproved, *self.facts))])

    def __repr__(self) -> str:
        return f"<FileVerdict {self.text()}>"
