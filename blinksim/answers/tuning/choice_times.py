"""What NCCL's choices take, by size: a model's times, made right where some were measured.

The model is NCCL's own (`blinksim.nccl.tuner.tuner`), or the machine's measured constants where it has them. A measured
time corrects the model by a factor at its size. Between two measured sizes the factor's logarithm goes straight, and
beyond them it stays, so that few measurements say much: the model knows how a time grows, not how large it is.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from blinksim.cost.nccl_rates import NcclRates
from blinksim.errors import InputError
from blinksim.nccl.tuner.prediction import Prediction
from blinksim.nccl.tuner.tuner_files import DEFAULT, Choice, runs

# Octaves around a measured size in which channels that NCCL would not take by itself keep their factor: how many
# channels are best depends on the size.
_NEAR = 1.0

Model = Callable[[str, str, str, int], float | None]
"""Seconds of (collective, algorithm, protocol, bytes) with NCCL's own channels; None where NCCL cannot."""


@dataclass(frozen=True, slots=True)
class ChoiceTime:
    """A measured time of a choice of NCCL's.

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
        For what NCCL does not run, or a time that is not above 0.

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
        if not (self.time_s > 0 and math.isfinite(self.time_s)):
            raise InputError(f"a measured time of {self.time_s} s for {self.collective}: give seconds above 0")
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

    model: of the job. measured: so far, by collective and choice, ascending sizes with the logarithm of the factor.
    """

    model: Model
    measured: dict[tuple[str, Choice], list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, times: Iterable[ChoiceTime]) -> None:
        """Takes measured times in; raises `InputError` for what the model says NCCL cannot run."""
        for one in times:
            expected = self.model(one.collective, one.algorithm, one.protocol, one.size)
            if expected is None or not runs(one.collective, one.algorithm, one.protocol):
                raise InputError(
                    f"a measured time of {one.collective} by {one.algorithm} with {one.protocol}: NCCL cannot run that "
                    "here; name the machine, GPUs and nodes that were measured"
                )
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
        factor = _interpolated(points, math.log2(size)) if points else self._borrowed(collective, choice, size)
        return expected * math.exp(factor)

    def _borrowed(self, collective: str, choice: Choice, size: int) -> float:
        """What is known of the choice in other collectives, else of its algorithm with other protocols; the mean."""
        others = [points for (name, other), points in self.measured.items() if other == choice and name != collective]
        if not others:
            others = [
                points
                for (name, (algorithm, _, channels)), points in self.measured.items()
                if name == collective and algorithm == choice[0] != "ring" and channels == DEFAULT
            ]
        found = [_interpolated(points, math.log2(size)) for points in others]
        return sum(found) / len(found) if found else 0.0

    def distance(self, collective: str, choice: Choice, size: int) -> float:
        """Octaves from a size to the nearest one that was measured with the choice; infinite if none was."""
        points = self.measured.get((collective, choice), [])
        return min((abs(at - math.log2(size)) for at, _ in points), default=math.inf)


def _interpolated(points: list[tuple[float, float]], at: float) -> float:
    after = bisect_right([place for place, _ in points], at)
    if after == 0:
        return points[0][1]
    if after == len(points):
        return points[-1][1]
    (low, first), (high, last) = points[after - 1 : after + 1]
    return first if high == low else first + (last - first) * (at - low) / (high - low)
