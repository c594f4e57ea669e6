"""Measured times of NCCL's choices as a file: comma-separated, one time a row, with the units in the head."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from blinksim.answers.tuning.choice_times import ChoiceTime
from blinksim.errors import FileError, InputError
from blinksim.textio.text_files import MIB, read_text, shown

COLUMNS = ("collective", "size_bytes", "algorithm", "protocol", "channels", "least_channels", "time_us")


def read_times(path: str | Path) -> tuple[list[ChoiceTime], int | None]:
    """The times of a file and the NCCL_MIN_NCHANNELS that they were taken with, None if it was not set.

    Raises `FileError` with the line for what cannot be read.
    """
    rows = csv.reader(io.StringIO(read_text(path, MIB, "file of measured times")))
    head = next(rows, [])
    if tuple(head) != COLUMNS:
        raise FileError(shown(path), f"the first line names the columns: {','.join(COLUMNS)}", line=1)
    found, least = [], set()
    for row in rows:
        if not row:
            continue
        if len(row) != len(COLUMNS):
            raise FileError(shown(path), f"{len(row)} fields; there are {len(COLUMNS)} columns", line=rows.line_num)
        collective, size, algorithm, protocol, channels, fewest, time = row
        try:
            found.append(ChoiceTime(collective, int(size), algorithm, protocol, int(channels), float(time) * 1e-6))
            least.add(int(fewest))
        except (ValueError, InputError) as error:
            raise FileError(shown(path), str(error), line=rows.line_num) from None
    if len(least) > 1:
        raise FileError(shown(path), "times of several least_channels; NCCL has one NCCL_MIN_NCHANNELS for all")
    return found, (least.pop() or None) if least else None


def times_text(times: Iterable[ChoiceTime], least_channels: int | None) -> str:
    """The text of a file."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in times:
        micro = f"{one.time_s * 1e6:.6g}"
        writer.writerow((one.collective, one.size, *one.choice, least_channels or 0, micro))
    return target.getvalue()
