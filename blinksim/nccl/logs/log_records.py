"""What a log of nccl-tests holds: runs, their rows, and where their ranks ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. size: bytes; time_s: seconds; algbw, busbw: bytes/s as the log states them.

    op, root: ``none`` and -1 where the collective has none. wrong: elements found wrong (or the largest error, in old
    releases), None if not checked. line: its place in the log (in JSON the number of the result, from 1).
    """

    size: int
    count: int
    dtype: str
    op: str
    root: int
    in_place: bool
    time_s: float
    algbw: float
    busbw: float
    wrong: float | None
    line: int


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank ran: host name, CUDA device number, PCI address, name of the device."""

    rank: int
    host: str
    device: int
    busid: str
    name: str


@dataclass(frozen=True)
class Run:
    """One test of a log.

    collective: as blinksim calls it, or empty if the log does not say and its numbers leave it open.
    ranks: 0 where the log neither lists them nor shows their number in busbw / algbw.
    version, nccl: of nccl-tests and of NCCL itself, empty where the log does not say.
    complete: True if the last lines of the test are there.
    """

    path: str
    collective: str
    ranks: int
    rows: tuple[Row, ...]
    places: tuple[RankPlace, ...] = ()
    version: str = ""
    nccl: str = ""
    complete: bool = True

    def __repr__(self) -> str:
        sizes = f"{len({row.size for row in self.rows})} sizes, {len(self.rows)} measurements"
        return f"<Run {self.collective or 'unknown collective'} on {self.ranks or '?'} ranks: {sizes} ({self.path})>"
