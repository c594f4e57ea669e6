"""All lower bounds on the time of one collective at one size, each with its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blinksim.bounds.assumptions import NOTHING
from blinksim.bounds.time.certificates import in_words, microseconds
from blinksim.bounds.time.delays import SECOND
from blinksim.collective import Collective
from blinksim.results import Result
from blinksim.textio.text_table import table
from blinksim.units import format_size

if TYPE_CHECKING:
    from blinksim.bounds.time.certificates import TimeCertificate
    from blinksim.topology.graph import Topology


@dataclass(frozen=True, repr=False)
class TimeBound(Result):
    """A lower bound on the time of a collective of one size, on the links alone.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What is bounded.
    size : int
        Bytes.
    certificates : tuple of TimeCertificate
        The latest time of each theorem, the latest first.
    in_network : TimeCertificate, optional
        What holds for switches that multicast and reduce as they can, where the machine has such.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.time_bound("dgx1-v100", "allgather", "1MiB")
    >>> found.kind, round(found.time_s * 1e6, 3)
    ('second-message', 9.317)
    >>> found.best.check(found.topology, found.collective, found.size)  # reasons against the certificate
    []
    """

    topology: Topology
    collective: Collective
    size: int
    certificates: tuple[TimeCertificate, ...]
    in_network: TimeCertificate | None = None

    @property
    def best(self) -> TimeCertificate:
        """The certificate of the largest lower bound."""
        return self.certificates[0]

    @property
    def time_s(self) -> float:
        """The largest lower bound in seconds."""
        return self.best.time / SECOND

    @property
    def kind(self) -> str:
        """The theorem that gives the largest lower bound."""
        return self.best.kind

    def rows(self) -> list[dict[str, Any]]:
        """One row per theorem."""
        return [
            {
                "kind": entry.kind,
                "time_s": entry.time / SECOND,
                "time_us": microseconds(entry.time),
                "assumes": entry.assumes,
                "words": entry.words(self.topology),
            }
            for entry in self.certificates
        ]

    def sentence(self) -> str:
        """The answer in one line."""
        return (
            f"{self.collective} of {format_size(self.size)} on {self.topology.name}: at least "
            f"{in_words(self.best.time)} on the links alone ({self.kind})"
        )

    def text(self) -> str:
        """The sentence, the proof, and the bound of each theorem."""
        rows = [(entry.kind, in_words(entry.time), entry.assumes) for entry in self.certificates]
        able = self.in_network
        more = []
        if able is not None and (able.time, able.assumes) != (self.best.time, self.best.assumes):
            where = "whatever switches do" if able.assumes == NOTHING else f"where {able.assumes.partition(';')[0]}"
            more = [f"  {where}, at least {in_words(able.time)}"]
        return "\n".join(
            (
                self.sentence(),
                f"  {self.best.words(self.topology)}",
                f"  it assumes: {self.best.assumes}",
                *more,
                "",
                table(("theorem", "at least", "assumes"), rows, left=(0, 2)),
            )
        )

    def __repr__(self) -> str:
        return f"<TimeBound {self.sentence()}>"

    def to_dict(self) -> dict[str, Any]:
        """JSON: the largest bound, and every certificate with its own; each is checked on the way."""
        every = [*self.certificates, *([self.in_network] if self.in_network else [])]
        return {
            "collective": self.collective.name,
            **({"root": self.collective.root} if self.collective.rooted else {}),
            "size_bytes": self.size,
            "time_bound_s": self.time_s,
            "time_bounds": [stated(entry, self.topology, self.collective) for entry in every],
        }


def stated(entry: TimeCertificate, topology: Topology, collective: Collective) -> dict[str, Any]:
    """JSON of one bound, as a file has it."""
    return {
        "time_s": entry.time / SECOND,
        "assumes": entry.assumes,
        "words": entry.words(topology),
        "certificate": entry.to_dict(),
        "checked": not entry.check(topology, collective, entry.size),
    }
