"""The collective and ranks of a log of nccl-tests, and whether its numbers agree.

Size over time is algbw, and busbw over algbw is a factor of the collective and the number of ranks (nccl-tests,
doc/PERFORMANCE.md). Together they show what a log leaves out, and whether it is a single log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction

from blinksim.collective import COLLECTIVES, REDUCING, ROOTED, busbw_factor
from blinksim.errors import FileError
from blinksim.nccl.logs.log_columns import Number
from blinksim.nccl.logs.log_records import Row, Run


def collective_of(program: str) -> str:
    """``allreduce`` for ``./build/all_reduce_perf_mpi``; other tests keep the name of their program."""
    stem = re.sub(r"_perf(_mpi)?(\.exe)?$", "", program.replace("\\", "/").rpartition("/")[2])
    plain = stem.replace("_", "").lower()
    return plain if plain in COLLECTIVES else stem


def factor_of(rows: Iterable[Row]) -> float | None:
    """busbw / algbw of the row that shows it most exactly, None if none does."""
    # Beyond that, two digits are printed.
    best = max((row for row in rows if row.algbw < 1e14), key=lambda row: row.algbw, default=None)
    return best.busbw / best.algbw if best is not None and best.algbw >= 1e9 else None


def inferred(run: Run) -> str:
    """The one collective that fits operation, root and busbw / algbw; empty if several do."""
    factor, first = factor_of(run.rows), run.rows[0]
    if factor is None or run.ranks < 2:
        return ""
    fits = [
        name
        for name in COLLECTIVES
        if abs(float(busbw_factor(name, run.ranks)) - factor) < 0.02
        and (name in REDUCING) == (first.op != "none")
        and (name in ROOTED) == (first.root >= 0)
    ]
    return fits[0] if len(fits) == 1 else ""


def counted(collective: str, numbers: list[tuple[Number, Number, Number]]) -> int:
    """The number of ranks that busbw / algbw implies, as far as the digits go; 0 where several fit."""
    if collective not in COLLECTIVES or busbw_factor(collective, 2) == busbw_factor(collective, 3):
        return 0
    _, algbw, busbw = max(numbers, key=lambda row: row[1].value)
    if algbw.value <= 2 * algbw.half:
        return 0
    low = (busbw.value - busbw.half) / (algbw.value + algbw.half)
    high = (busbw.value + busbw.half) / (algbw.value - algbw.half)
    fits = [ranks for ranks in range(2, 1025) if low <= float(busbw_factor(collective, ranks)) <= high]
    return fits[0] if len(fits) == 1 else 0


def check_ranks(run: Run) -> None:
    """A log whose busbw is not that of its own number of ranks is a mixture of logs."""
    factor = factor_of(run.rows)
    if factor is None or run.ranks < 2:
        return
    expected = busbw_factor(run.collective, run.ranks)
    if abs(factor - float(expected)) > 0.03:
        raise FileError(
            run.path,
            f"busbw / algbw is {factor:.3f}, but an {run.collective} on {run.ranks} ranks has {_text(expected)}; "
            f"is this one log?",
        )


def _text(factor: Fraction) -> str:
    return str(factor) if factor.denominator == 1 else f"{factor} = {float(factor):.3f}"


def check_rate(path: str, row: Row, numbers: tuple[Number, Number, Number]) -> None:
    """Raises `FileError` if size / time is not the algbw that the row states, as far as its digits go."""
    time, algbw, _ = numbers
    if not row.size:
        return
    low, high = (
        row.size / (time.value + sign * time.half) / 1e3 if time.value > time.half else math.inf for sign in (1, -1)
    )
    if not low * 0.97 - algbw.half <= algbw.value <= high * 1.03 + algbw.half:
        raise FileError(
            path,
            f"{row.size} bytes in {time.value:g} us are {row.size / time.value / 1e3:.4g} GB/s, "
            f"but the row says algbw {algbw.value:g}",
            row.line,
        )
