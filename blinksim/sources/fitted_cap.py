"""The cap on what a GPU's channels drive together (`blinksim.simulation.contention`), fitted to Blink+'s logs."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import exp, fsum, log

from blinksim.errors import InputError


def fitted_cap(rates: Iterable[float]) -> Fraction:
    """The cap, in whole bytes/s, that fits what several channels reached together (bytes/s): their geometric mean.

    So that too much and too little, as ratios, weigh the same. Raises `InputError` without a positive rate.
    """
    logs = [log(rate) for rate in rates if rate > 0]
    if not logs:
        raise InputError("a cap is fitted to the rates of runs with several channels; give one at least")
    return Fraction(round(exp(fsum(logs) / len(logs))))
