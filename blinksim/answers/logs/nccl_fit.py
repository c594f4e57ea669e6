"""Fit of NCCL's constants (`blinksim.timing.measured_constants`) from measured times, as far as they are identifiable.

The model of NCCL says which algorithm and protocol ran at each size; the times are then linear in the
constants. Rings have no part in logs of NVLS, where switches add, so that these say nothing about the
bandwidth of a link class; what a port carries while its switch adds is a constant of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blinksim import machines
from blinksim.answers.logs.expectation import Expectation, at_nccl_rates
from blinksim.answers.logs.fit import Fit, Fitted, Timed, fit_sums
from blinksim.answers.logs.series import Series
from blinksim.errors import InputError
from blinksim.nccl.tuner.prediction import Prediction
from blinksim.results import keyed
from blinksim.timing.measured.library_time import catalogued, relative_of
from blinksim.timing.measured_constants import LINES, NVLS, FitError, NcclLine, NcclRates, Origin, addends
from blinksim.topology.graph import Topology

# Links carry what their file says, but for so much.
_BEYOND_LINKS = 1.1
STAND_IN = "hgx-h200"
"""Eight H200, whose constants were measured and stand in where another machine has none."""
# Times of rings and of NVLS that are nearer to each other do not say which of the two ran.
_APART = math.log(1.1)
_BLACKWELL = 100
_CHANNELS = 24


@dataclass(frozen=True)
class NcclFit:
    """NCCL's constants, how they were found, and how well they fit.

    rates: all constants, kept ones among them. constants: the fitted ones. kept: the names of those that the
    times do not determine. error: of all times that the constants are for.
    """

    rates: NcclRates
    constants: tuple[Fitted, ...]
    kept: tuple[str, ...]
    error: FitError

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        rows = []
        for one in self.constants:
            unit, scale = ("GBps", 1e-9) if one.is_rate else ("s", 1.0)
            figures = keyed(one, "value low high before")
            rows.append({"constant": one.name, **{f"{key}_{unit}": value * scale for key, value in figures.items()}})
        return {"rows": rows, "kept": list(self.kept), "error": keyed(self.error, "median p90 points")}


def fit_nccl(series: Sequence[Series], *, version: str = "", source: str = "") -> NcclFit | None:
    """NCCL's constants from series of one node whose GPUs switches join; None where there are too few times of such.

    The times are of rings, not of switches that reduce. version: of NCCL, empty if it is not known. source:
    where the times come from.
    """
    times = [time for one in series for time in _times(one, version)]
    if len(times) < 3:
        return None
    first, known = series[0].topology, series[0].topology.nccl_rates
    model = first.device(first.members[0]).attributes.get("model", f"GPUs of {first.name}")
    before = known or stand_in()
    found_there = _prediction(series[0], version)
    start = before.constants(2 * found_there.nchannels if found_there is not None else 0)
    # No protocol sends faster than the links allow: a rate beyond them is one that the times do not show.
    most = _BEYOND_LINKS * max(_leaving(one.topology) for one in series)
    found = fit_sums(times, start, least={f"{line}.byte": 1 / most for line in LINES} if most else {})
    if found is None:
        return None
    error, constants, kept = _stated(found, times, {name: start[name] for name in start if not name.startswith(NVLS)})
    rates = replace(
        _with(before, {name: value for name, value in found.values.items() if value != start[name]}),
        # The name of the GPUs, as the machine's file says it.
        hardware=known.hardware if known is not None else str(model),
        measured=Origin(source or "measured times"),
        gpus=tuple(sorted({one.topology.ranks for one in series})),
        version=version or "unknown",
        error=error,
    )
    return NcclFit(rates, constants, kept, error)


def _stated(
    found: Fit[str], times: Sequence[Timed], start: Mapping[str, float]
) -> tuple[FitError, tuple[Fitted, ...], tuple[str, ...]]:
    """How well times fit, and the fitted and the kept constants, as machine files name them and in their units."""
    constants = []
    for name, (low, high) in found.intervals.items():
        value, before = found.values[name], start[name]
        if name.endswith((".byte", ".turn")):
            value, low, high, before = 1 / value, 1 / high, 1 / low, 1 / before
        constants.append(Fitted(name.replace(".byte", ".rate"), value, low, high, before))
    kept = tuple(name.replace(".byte", ".rate") for name in start if name not in found.intervals)
    return FitError.of(list(found.predicted), [time.seconds for time in times]), tuple(constants), kept


def _leaving(part: Topology) -> float:
    """Bytes/s of the links that leave a member, the most of all."""
    total = dict.fromkeys(part.members, 0.0)
    for link in part.links:
        if link.src in total:
            total[link.src] += float(link.bandwidth)
    return max(total.values())


def stand_in() -> NcclRates:
    """The constants of H200, where a machine has none."""
    found = machines.load(STAND_IN).nccl_rates
    assert found is not None
    return found


def _prediction(one: Series, version: str = "", multicast: bool = False) -> Prediction | None:
    """NCCL's prediction there; None where its model does not say. multicast: True with switches that reduce."""
    machine = at_nccl_rates(one.topology)
    return Expectation(machine, machine, one.collective, multicast=multicast, ran=version).prediction


def _times(one: Series, version: str) -> list[Timed]:
    """The times of a series whose choice has constants; none on several nodes, or where no switches join the GPUs."""
    prediction = _prediction(one, version)
    if prediction is None or prediction.job.nnodes > 1 or prediction.ring.type_intra != "NVL":
        return []
    if not any(device.kind == "switch" for device in one.topology.devices):
        return []
    name, ranks = one.collective.name, one.topology.ranks
    ran = ((sample, prediction.best(name, sample.size)) for sample in one.samples)
    return [
        Timed(sample.time_s, addends(name, ranks, sample.size, best.protocol.lower()))
        for sample, best in ran
        if best.algorithm == "ring"
    ]


def _with(rates: NcclRates, fitted: Mapping[str, float]) -> NcclRates:
    """The constants with the fitted ones, seconds or seconds per byte by name, in place of the others."""
    lines: dict[str, NcclLine] = {}
    for name in LINES:
        line: NcclLine = getattr(rates, name)
        line = replace(
            line,
            start_s=rounded(fitted.get(f"{name}.start", line.start_s)),
            hop_s=rounded(fitted.get(f"{name}.hop", line.hop_s)),
        )
        if f"{name}.byte" in fitted:
            # What ran had as many channels as NCCL takes: what one carries does not show.
            line = replace(line, rate=digits(1 / fitted[f"{name}.byte"]), channel=None)
        lines[name] = line
    turn = digits(1 / fitted["simple.turn"]) if "simple.turn" in fitted else rates.turn
    rooted = rounded(fitted.get("simple.rooted_start", rates.rooted_start_s))
    return replace(
        rates, ll=lines["ll"], ll128=lines["ll128"], simple=lines["simple"], turn=turn, rooted_start_s=rooted
    )


def rounded(seconds: float) -> float:
    """To picoseconds: more digits are noise."""
    return round(seconds * 1e12) / 1e12


def digits(rate: float) -> float:
    """To five digits."""
    return float(f"{rate:.4e}")


def nvls_ran(one: Series) -> bool:
    """True if the largest time of a series is nearer to NVLS than to NCCL's rings, where NCCL can do both."""
    if one.topology.nodes > 1 or not any(device.kind == "switch" for device in one.topology.devices):
        return False
    found = _prediction(one, multicast=True)
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
    found = _prediction(one, multicast=True)
    assert found is not None
    sizes = sorted({sample.size for sample in one.samples})
    name = one.collective.name
    least = next((size for size in sizes if found.best(name, size).algorithm == NVLS), sizes[-1])
    large = tuple(sample for sample in one.samples if sample.size >= least)
    if len(large) < 3:
        raise InputError(
            f"{one.collective} on {one.topology.ranks} ranks of {one.topology.name} ran as NVLS, where switches add, "
            f"at {len(large)} of these sizes; a fit needs at least three, or measure rings with NCCL_NVLS_ENABLE=0"
        )
    return replace(one, samples=large)


def fit_nvls(series: Sequence[Series], nccl: NcclFit | None = None, source: str = "") -> NcclFit:
    """The constants of NVLS from series of `nvls_sizes`, on top of what was fitted to rings.

    Raises `InputError` if the times determine none.
    """
    before = nccl.rates if nccl is not None else series[0].topology.nccl_rates
    if before is None:
        # Those of the nearest relative that has some.
        near = relative_of(catalogued(series[0].topology))
        before = (machines.load(near).nccl_rates if near else None) or stand_in()
    line = before.nvls
    if line is None:
        # Hopper's, with the channels that NCCL takes.
        line, hopper = stand_in().nvls, _prediction(series[0], multicast=True)
        assert line is not None
        line = replace(line, channels=_CHANNELS) if hopper is not None and hopper.job.sm >= _BLACKWELL else line
    times = [
        Timed(sample.time_s, line.counts(one.topology.ranks, sample.size)) for one in series for sample in one.samples
    ]
    start = line.constants()
    found = fit_sums(times, start)
    if found is None:
        raise InputError("the measurements determine no constant of NVLS; are they of this machine?")
    fitted = replace(
        line,
        start_s=rounded(found.values["nvls.start"]),
        chunk_s=rounded(found.values["nvls.chunk"]) if "nvls.chunk" in start else line.chunk_s,
        rate=digits(1 / found.values["nvls.byte"]),
        source=f"from {source}" if source else "fitted to measured times",
        gpus=max(one.topology.ranks for one in series),
    )
    error, constants, kept = _stated(found, times, start)
    if nccl is not None:
        error, constants, kept = nccl.error, (*nccl.constants, *constants), (*nccl.kept, *kept)
    return NcclFit(replace(before, nvls=fitted), constants, kept, error)
