"""Measured times of NCCL's choices as a file: comma-separated, one time a row, with the units in the head.

A first line says of what job the times are, as ``# NCCL 2.28.9 on hgx-h200 (sm 90): 4 ranks on 1 node``; files without
it are read as well.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from blinksim.answers.tuning.choice_times import ChoiceTime
from blinksim.errors import FileError, InputError
from blinksim.textio.text_files import MIB, read_text, shown

COLUMNS = ("collective", "size_bytes", "algorithm", "protocol", "channels", "least_channels", "time_us")
_JOB = re.compile(r"# NCCL (\S+) on (.+) \((.*)\): ([0-9]{1,9}) ranks on ([0-9]{1,9}) nodes?")


@dataclass(frozen=True, slots=True)
class TimedJob:
    """Where times were taken: the release of NCCL, a machine's name and its GPUs (``sm 90``), ranks and nodes."""

    version: str
    machine: str
    gpus: str
    ranks: int
    nodes: int

    def __str__(self) -> str:
        where = f"{self.ranks} ranks on {self.nodes} node{'s' if self.nodes > 1 else ''}"
        return f"NCCL {self.version} on {self.machine} ({self.gpus}): {where}"


def read_times(path: str | Path) -> tuple[list[ChoiceTime], int | None, TimedJob | None]:
    """The times of a file, the NCCL_MIN_NCHANNELS that they were taken with (None if it was not set), and their job
    (None if the file does not say it).

    Raises `FileError` with the line for what cannot be read.
    """
    text = read_text(path, MIB, "file of measured times")
    job = None
    if text.startswith("#"):
        first, _, text = text.partition("\n")
        said = _JOB.fullmatch(first.rstrip("\r"))
        if said is None:
            raise FileError(shown(path), "say '# NCCL 2.28.9 on MACHINE (GPUS): 4 ranks on 1 node', or nothing", line=1)
        job = TimedJob(said[1], said[2], said[3], int(said[4]), int(said[5]))
    rows, before = csv.reader(io.StringIO(text)), int(job is not None)
    head = next(rows, [])
    if tuple(head) != COLUMNS:
        raise FileError(shown(path), f"this line names the columns: {','.join(COLUMNS)}", line=1 + before)
    found, least = [], set()
    for row in rows:
        line = rows.line_num + before
        if not row:
            continue
        if len(row) != len(COLUMNS):
            raise FileError(shown(path), f"{len(row)} fields; there are {len(COLUMNS)} columns", line=line)
        collective, size, algorithm, protocol, channels, fewest, time = row
        try:
            found.append(ChoiceTime(collective, int(size), algorithm, protocol, int(channels), float(time) * 1e-6))
            least.add(int(fewest))
        except (ValueError, InputError) as error:
            raise FileError(shown(path), str(error), line=line) from None
    if len(least) > 1:
        raise FileError(shown(path), "times of several least_channels; NCCL has one NCCL_MIN_NCHANNELS for all")
    return found, (least.pop() or None) if least else None, job


def times_text(times: Iterable[ChoiceTime], least_channels: int | None, job: TimedJob) -> str:
    """The text of a file."""
    target = io.StringIO()
    target.write(f"# {job}\n")
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in times:
        micro = f"{one.time_s * 1e6:.6g}"
        writer.writerow((one.collective, one.size, *one.choice, least_channels or 0, micro))
    return target.getvalue()
