"""Logs of NCCL's NVLS, where switches add: which they are, and the constants of NVLS that their times give.

Rings have no part in them, so that they say nothing about the bandwidth of a link class; what a port carries while its
switch adds is a constant of its own (`blinksim.cost.nccl_rates`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from blinksim.answers.logs.expectation import Expectation, at_nccl_rates
from blinksim.answers.logs.linear_fit import Timed, fit_sums
from blinksim.answers.logs.nccl_fit import NcclFit, constant_of, digits, rounded, shown, stand_in
from blinksim.answers.logs.series import Series
from blinksim.cost.nccl_rates import NVLS, NcclRates, NvlsLine
from blinksim.cost.origin import FitError
from blinksim.errors import InputError
from blinksim.machines import load
from blinksim.nccl.tuner.prediction import Prediction
from blinksim.timing.measured.library_time import catalogued, relative_of

# Times of rings and of NVLS that are nearer to each other do not say which of the two ran.
_APART = math.log(1.1)
_BLACKWELL = 100
_CHANNELS = 24


def nvls_ran(one: Series) -> bool:
    """True if the largest time of a series is nearer to NVLS than to NCCL's rings, where NCCL can do both."""
    if one.topology.nodes > 1 or not any(device.kind == "switch" for device in one.topology.devices):
        return False
    found = _prediction(one)
    sample = max(one.samples, key=lambda sample: sample.size)
    ranks, name, size = one.topology.ranks, one.collective.name, sample.size
    timed = {one.algorithm: one.time_s for one in found.times(name, size)} if found else {}
    if found is None or NVLS not in timed:
        return False
    picked = found.best(name, size).algorithm
    rates = one.topology.nccl_rates
    if rates is not None and rates.line_of(NVLS, "Simple", ranks, name):
        # NCCL's own figures miss NVLS by up to a fifth where few GPUs take part.
        lines = {NVLS: NVLS, "ring": "simple"}
        timed = {key: rates.time(name, ranks, size, line, 2 * found.nchannels) for key, line in lines.items()}
        if abs(math.log(timed[NVLS] / timed["ring"])) < _APART:
            return picked == NVLS
    elif picked != NVLS:
        return False
    return min(timed, key=lambda name: abs(math.log(timed[name] / sample.time_s))) == NVLS


def nvls_sizes(one: Series) -> Series:
    """The part of a series in which NCCL takes NVLS: from the first size on for which its model does.

    Raises `InputError` if these are fewer than three times.
    """
    found = _prediction(one)
    assert found is not None
    sizes = sorted({sample.size for sample in one.samples})
    name = one.collective.name
    least = next((size for size in sizes if found.best(name, size).algorithm == NVLS), sizes[-1])
    kept = tuple(sample for sample in one.samples if sample.size >= least)
    if len(kept) < 3:
        raise InputError(
            f"{one.collective} on {one.topology.ranks} ranks of {one.topology.name} ran as NVLS, where switches add, "
            f"at {len(kept)} of these sizes; a fit needs at least three, or measure rings with NCCL_NVLS_ENABLE=0"
        )
    return replace(one, samples=kept)


def _prediction(one: Series) -> Prediction | None:
    return Expectation(at_nccl_rates(one.topology), at_nccl_rates(one.topology), one.collective).prediction


def fit_nvls(series: Sequence[Series], nccl: NcclFit | None = None, source: str = "") -> NcclFit:
    """The constants of NVLS from series of `nvls_sizes`, on top of what was fitted to rings.

    Raises `InputError` if the times determine none.
    """
    before = nccl.rates if nccl is not None else _known(series[0])
    line = before.nvls or _unknown(series[0])
    times = [
        Timed(sample.time_s, line.counts(one.topology.ranks, sample.size)) for one in series for sample in one.samples
    ]
    start = line.constants()
    found = fit_sums(times, start)
    if found is None:
        raise InputError("the measurements determine no constant of NVLS; are they of this machine?")
    values = {name: found.values[name] for name in start}
    fitted = replace(
        line,
        start_s=rounded(values["nvls.start"]),
        chunk_s=rounded(values["nvls.chunk"]) if "nvls.chunk" in values else line.chunk_s,
        rate=digits(1 / values["nvls.byte"]),
        source=f"from {source}" if source else "fitted to measured times",
        gpus=max(one.topology.ranks for one in series),
    )
    constants = tuple(constant_of(name, values[name], span, start[name]) for name, span in found.intervals.items())
    kept = tuple(shown(name) for name in start if name not in found.intervals)
    error = FitError.of(list(found.predicted), [time.seconds for time in times])
    if nccl is None:
        return NcclFit(replace(before, nvls=fitted), constants, kept, error)
    rates = replace(before, nvls=fitted)
    return NcclFit(rates, (*nccl.constants, *constants), (*nccl.kept, *kept), nccl.error)


def _known(one: Series) -> NcclRates:
    """NCCL's constants of the machine, or of its nearest relative that has some."""
    own = one.topology.nccl_rates
    if own is not None:
        return own
    near = relative_of(catalogued(one.topology))
    found = load(near).nccl_rates if near else None
    return found or stand_in()


def _unknown(one: Series) -> NvlsLine:
    """Where a fit begins that has no constants of NVLS: Hopper's, with the channels that NCCL takes."""
    line = stand_in().nvls
    assert line is not None
    found = _prediction(one)
    newer = found is not None and found.job.sm >= _BLACKWELL
    return replace(line, channels=_CHANNELS) if newer else line
