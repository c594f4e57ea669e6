"""What checking a file found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blinksim.results import Shown


@dataclass(frozen=True)
class FileVerdict(Shown):
    """What checking a file found.

    ok: nothing in it is wrong. summary: the verdict in a line. reasons: what is wrong. facts: what was found besides.
    about: machine, collective and members, where the file names them. details: exact rates and the like.
    """

    ok: bool
    summary: str
    reasons: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

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
            "facts": list(self.facts),
            **self.details,
        }

    def text(self) -> str:
        """The verdict, the reasons and the facts, a line each."""
        return "\n".join([self.summary, *(f"  {line}" for line in (*self.reasons, *self.facts))])

    def __repr__(self) -> str:
        return f"<FileVerdict {self.text()}>"
