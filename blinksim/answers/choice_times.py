"""Times of NCCL's choices by size: by a model, corrected where some were measured, and files of such times.

The model is NCCL's own (`blinksim.nccl.tuner.tuner`), or the machine's measured constants where it has them.
A measured time corrects the model by a factor at its size. Between two measured sizes the factor's logarithm
goes straight, and beyond them it stays, so that few measurements say much: the model knows how a time grows,
not how large it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from blinksim.errors import FileError, InputError
from blinksim.nccl.tuner.prediction import Prediction
from blinksim.nccl.tuner.tuner_files import DEFAULT, MOST_CHANNELS, Choice, TuningRule
from blinksim.textio.text_files import MIB, read_text, shown
from blinksim.timing.measured_constants import NcclRates

# Octaves around a measured size in which channels that NCCL would not take by itself keep their factor: how
# many channels are best depends on the size.
_NEAR = 1.0
COLUMNS = ("collective", "size_bytes", "algorithm", "protocol", "channels", "least_channels", "time_us")
_ROW = re.compile(
    r"(\w+),([0-9]{1,15}),(\w+),(\w+),(-?[0-9]{1,9}),([0-9]{1,9}),([0-9]{1,15}(?:\.[0-9]{0,15})?(?:e[+-]?0?[0-9])?)",
    re.ASCII,
)
_JOB = re.compile(r"# NCCL (\S+) on (.+) \((.*)\): ([0-9]{1,9}) ranks on ([0-9]{1,9}) nodes?")

Model = Callable[[str, str, str, int], float | None]
"""Seconds of (collective, algorithm, protocol, bytes) with NCCL's own channels; None where NCCL cannot."""


@dataclass(frozen=True, slots=True)
class ChoiceTime:
    """A measured time of one of NCCL's choices.

    Parameters
    ----------
    collective, algorithm, protocol : str
        NCCL's names in small letters.
    size : int
        Bytes of the larger of one rank's buffers.
    channels : int
        As in a rule.
    time_s : float
        Seconds.

    Raises
    ------
    InputError
        For what no release of NCCL runs, or a time below 1 ns or above a day.

    Examples
    --------
    >>> ChoiceTime("allreduce", 2**20, "ring", "ll", -1, 28e-6).choice
    ('ring', 'll', -1)
    """

    collective: str
    size: int
    algorithm: str
    protocol: str
    channels: int
    time_s: float

    def __post_init__(self) -> None:
        # A rule refuses what NCCL does not run.
        TuningRule(self.collective, self.size, self.size, *self.choice)
        if not 1e-9 <= self.time_s <= 86400:
            raise InputError(f"a measured time of {self.time_s:g} s for {self.collective}: give from 1 ns to a day")
        if self.size < 1:
            raise InputError(f"a measured time of {self.collective} for {self.size} bytes: give at least 1")

    @property
    def choice(self) -> Choice:
        """Algorithm, protocol, channels."""
        return self.algorithm, self.protocol, self.channels


def model_of(prediction: Prediction, rates: NcclRates | None) -> Model:
    """The times of a job: by measured constants of rings where `rates` has them, else NCCL's own."""
    tables: dict[tuple[str, int], Mapping[tuple[str, str], float]] = {}
    ranks, channels = prediction.job.ranks, 2 * prediction.nchannels

    def time(collective: str, algorithm: str, protocol: str, size: int) -> float | None:
        if (collective, size) not in tables:
            times = prediction.times(collective, size)
            tables[collective, size] = {(one.algorithm, one.protocol.lower()): one.time_s for one in times}
        own = tables[collective, size].get((algorithm, protocol))
        ring = tables[collective, size].get(("ring", protocol))
        line = rates.line_of("ring", protocol, ranks, collective) if rates is not None else None
        if own is None or ring is None or rates is None or line is None or prediction.job.nnodes > 1:
            return own
        # Trees were not measured: NCCL's own model says how they compare with rings of the same protocol.
        return own / ring * rates.time(collective, ranks, size, line, channels)

    return time


@dataclass
class ChoiceTimes:
    """A model's times, corrected by what was measured.

    model: of the job. measured: so far, by collective and choice, ascending sizes with the logarithm of the
    factor.
    """

    model: Model
    measured: dict[tuple[str, Choice], list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, times: Iterable[ChoiceTime]) -> None:
        """Takes measured times in; raises `InputError` for what the model says NCCL cannot run."""
        for one in times:
            expected = self.model(one.collective, one.algorithm, one.protocol, one.size)
            if expected is None:
                what = f"a measured time of {one.collective} by {one.algorithm} with {one.protocol}"
                cure = "name the machine, GPUs and nodes that were measured"
                raise InputError(f"{what}: NCCL cannot run that here; {cure}")
            points = self.measured.setdefault((one.collective, one.choice), [])
            points.append((math.log2(one.size), math.log(one.time_s / expected)))
            points.sort()

    def time(self, collective: str, choice: Choice, size: int) -> float | None:
        """Seconds; None where NCCL cannot, or nothing is known of so many channels."""
        algorithm, protocol, channels = choice
        expected = self.model(collective, algorithm, protocol, size)
        points = self.measured.get((collective, choice))
        if expected is None or (channels != DEFAULT and self.distance(collective, choice, size) > _NEAR):
            return None
        known = [points] if points else []
        # Else the mean of what is known of the choice in other collectives, or of its algorithm with other protocols.
        for (name, other), points in self.measured.items() if not known else ():
            known += [points] if other == choice and name != collective else []
        for (name, other), points in self.measured.items() if not known else ():
            alike = name == collective and other[::2] == (algorithm, DEFAULT) and algorithm != "ring"
            known += [points] if alike else []
        factors = [
            float(np.interp(math.log2(size), [at for at, _ in points], [factor for _, factor in points]))
            for points in known
        ]
        return expected * math.exp(sum(factors) / len(factors) if factors else 0.0)

    def distance(self, collective: str, choice: Choice, size: int) -> float:
        """Octaves from a size to the nearest one that was measured with the choice; infinite if none was."""
        points = self.measured.get((collective, choice), [])
        return min((abs(at - math.log2(size)) for at, _ in points), default=math.inf)


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

    The file is comma-separated, one time a row, with the units in the head. A first line says of what job the
    times are, as ``# NCCL 2.28.9 on hgx-h200 (sm 90): 4 ranks on 1 node``; files without it are read as well.

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
    head, *rows = [*text.splitlines(), ""]
    before = int(job is not None)
    if tuple(head.split(",")) != COLUMNS:
        raise FileError(shown(path), f"this line names the columns: {','.join(COLUMNS)}", line=1 + before)
    found, least = dict[tuple[str, int, Choice], ChoiceTime](), set[int]()
    for line, text in enumerate(rows, 2 + before):
        if not text.strip():
            continue
        try:
            row = _ROW.fullmatch(text)
            if row is None:
                raise InputError(f"{text[:60]!r} is no row such as allreduce,1024,ring,ll128,-1,0,27.5")
            collective, size, algorithm, protocol, channels, fewest, time = row.groups()
            one = ChoiceTime(collective, int(size), algorithm, protocol, int(channels), float(time) * 1e-6)
            if found.setdefault((collective, one.size, one.choice), one) is not one:
                raise InputError("a second time of the same choice for the same size: keep one of them")
            least.add(int(fewest))
            if len(least) > 1 or max(least) > MOST_CHANNELS:
                raise InputError(f"least_channels={fewest}: give 0 to {MOST_CHANNELS}, and one number for all times")
        except InputError as error:
            raise FileError(shown(path), str(error), line=line) from None
    return [*found.values()], (least.pop() or None) if least else None, job


def times_text(times: Iterable[ChoiceTime], least_channels: int | None, job: TimedJob) -> str:
    """The text of a file."""
    rows = [(one.collective, one.size, *one.choice, least_channels or 0, f"{one.time_s * 1e6:.6g}") for one in times]
    return "\n".join((f"# {job}", *(",".join(map(str, row)) for row in (COLUMNS, *rows)), ""))
