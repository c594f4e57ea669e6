"""Origin of constants, and the errors of predictions by them against measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """Where constants come from.

    Parameters
    ----------
    source : str
        What was run, or what the constants were derived from.
    date, driver : str
        The day of the measurements (2026-11-20), and the driver; empty where they are not known.
    band : float, optional
        How far off constants may be that nobody measured on this hardware, as a share; None for measured ones.
    """

    source: str
    date: str = ""
    driver: str = ""
    band: float | None = None

    def words(self, hardware: str, gpus: Sequence[int]) -> str:
        """In one line, for constants of so many GPUs (ascending) of this name.

        >>> Origin("nccl-tests", "2026-11-20").words("NVIDIA H200", (2, 4, 8))
        'measured on 2 to 8 NVIDIA H200, 2026-11-20'
        """
        if self.band is not None:
            return f"not measured on {hardware}: {self.source}, {100 * self.band:.0f} % more or less"
        count = f"{gpus[0]} to {gpus[-1]}" if len(gpus) > 1 else str(gpus[0])
        return f"measured on {count} {hardware}, {self.date or self.source}"


@dataclass(frozen=True, slots=True)
class FitError:
    """|predicted / measured - 1| of `points` measurements: what half of them and nine in ten stay below."""

    median: float
    p90: float
    points: int

    @classmethod
    def of(cls, predicted: Sequence[float], measured: Sequence[float]) -> FitError:
        """The error of predicted times (any unit) against measured ones; both of one length, at least 1.

        >>> FitError.of([1.0, 2.2, 3.0], [1.0, 2.0, 3.0])
        FitError(median=0.0, p90=0.1, points=3)
        """
        errors = sorted(abs(time / seen - 1) for time, seen in zip(predicted, measured, strict=True))
        # The smallest error that nine in ten do not exceed.
        most = errors[-(-9 * len(errors) // 10) - 1]
        return cls(round(float(errors[(len(errors) - 1) // 2]), 4), round(float(most), 4), len(errors))

    def words(self) -> str:
        """Such as ``half within 2.7 %, nine in ten within 8.3 % of 183 times``."""
        median, p90 = 100 * self.median, 100 * self.p90
        return f"half within {median:.2g} %, nine in ten within {p90:.2g} % of {self.points} times"
