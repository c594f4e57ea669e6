"""NCCL's constants (`blinksim.cost.nccl_rates`) from measured times: those that can be told apart, the rest is kept.

The model of NCCL says which algorithm and protocol ran at each size; the times are then linear in the constants. A
constant that no time depends on, or that others stand for just as well (start and hop where all times are of as many
steps), keeps the value that it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from blinksim import machines
from blinksim.answers.logs.expectation import Expectation, at_nccl_rates
from blinksim.answers.logs.linear_fit import Timed, fit_sums
from blinksim.answers.logs.series import Series
from blinksim.cost.nccl_rates import LINES, NVLS, NcclLine, NcclRates, addends
from blinksim.cost.origin import FitError, Origin
from blinksim.nccl.tuner.prediction import Prediction
from blinksim.topology.graph import Topology

# The machine whose constants stand in where another has none.
# Links carry what their file says, but for so much.
_BEYOND_LINKS = 1.1
_STAND_IN = "hgx-h200"


@dataclass(frozen=True, slots=True)
class NcclConstant:
    """A fitted constant: seconds, or bytes/s for those that divide bytes. low, high: its interval of 95 %."""

    name: str
    value: float
    low: float
    high: float
    before: float

    @property
    def is_rate(self) -> bool:
        return self.name.endswith((".rate", ".turn"))


@dataclass(frozen=True)
class NcclFit:
    """NCCL's constants, how they were found, and how well they fit.

    rates: all constants, kept ones among them. constants: the fitted ones. kept: the names of those that the times do
    not determine. error: of all times that the constants are for.
    """

    rates: NcclRates
    constants: tuple[NcclConstant, ...]
    kept: tuple[str, ...]
    error: FitError

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        rows = []
        for one in self.constants:
            unit, scale = ("GBps", 1e-9) if one.is_rate else ("s", 1.0)
            figures = {"value": one.value, "low": one.low, "high": one.high, "before": one.before}
            rows.append({"constant": one.name, **{f"{key}_{unit}": value * scale for key, value in figures.items()}})
        error = {"median": self.error.median, "p90": self.error.p90, "points": self.error.points}
        return {"rows": rows, "kept": list(self.kept), "error": error}


def fit_nccl(series: Sequence[Series], *, version: str = "", source: str = "") -> NcclFit | None:
    """NCCL's constants from series of one node whose GPUs switches join; None where there are too few times of such.

    The times are of rings, not of switches that reduce. version: of NCCL, empty if it is not known. source: where the
    times come from.
    """
    times = [time for one in series for time in _times(one, version)]
    if len(times) < 3:
        return None
    before = series[0].topology.nccl_rates or stand_in()
    ranks = sorted({one.topology.ranks for one in series})
    start = before.constants(_channels(series[0], version))
    # No protocol sends faster than the links allow: a rate beyond them is one that the times do not show.
    most = _BEYOND_LINKS * max(_leaving(one.topology) for one in series)
    found = fit_sums(times, start, least={f"{line}.byte": 1 / most for line in LINES} if most else {})
    if found is None:
        return None
    error = FitError.of(list(found.predicted), [time.seconds for time in times])
    constants = tuple(
        constant_of(name, found.values[name], interval, start[name]) for name, interval in found.intervals.items()
    )
    kept = tuple(shown(name) for name in start if name not in found.intervals and not name.startswith(NVLS))
    rates = replace(
        _with(before, {name: value for name, value in found.values.items() if value != start[name]}),
        hardware=_hardware(series[0]),
        measured=Origin(source or "measured times"),
        gpus=tuple(ranks),
        version=version or "unknown",
        error=error,
    )
    return NcclFit(rates, constants, kept, error)


def _leaving(part: Topology) -> float:
    """Bytes/s of the links that leave a member, the most of all."""
    total = dict.fromkeys(part.members, 0.0)
    for link in part.links:
        if link.src in total:
            total[link.src] += float(link.bandwidth)
    return max(total.values())


@cache
def stand_in() -> NcclRates:
    """The constants of H200, where a machine has none."""
    found = stand_in_machine().nccl_rates
    assert found is not None
    return found


def stand_in_machine() -> Topology:
    """Eight H200, whose constants were measured."""
    return machines.load(_STAND_IN)


def _channels(one: Series, version: str) -> int:
    prediction = _prediction(one, version)
    return 2 * prediction.nchannels if prediction is not None else 0


def _prediction(one: Series, version: str) -> Prediction | None:
    """What NCCL did there, without switches that reduce; None where its model does not say."""
    machine = at_nccl_rates(one.topology)
    return Expectation(machine, machine, one.collective, multicast=False, ran=version).prediction


def _times(one: Series, version: str) -> list[Timed]:
    """The times of a series whose choice has constants; none on several nodes, or where no switches join the GPUs."""
    prediction = _prediction(one, version)
    if prediction is None or prediction.job.nnodes > 1 or prediction.ring.type_intra != "NVL":
        return []
    if not any(device.kind == "switch" for device in one.topology.devices):
        return []
    found = []
    for sample in one.samples:
        best = prediction.best(one.collective.name, sample.size)
        if best.algorithm == "ring":
            line = best.protocol.lower()
            counts = addends(one.collective.name, one.topology.ranks, sample.size, line)
            found.append(Timed(sample.time_s, counts))
    return found


def _is_rate(name: str) -> bool:
    return name.endswith((".byte", ".turn"))


def constant_of(name: str, value: float, interval: tuple[float, float], before: float) -> NcclConstant:
    """A fitted constant in the units that machine files have."""
    if not _is_rate(name):
        return NcclConstant(name, value, *interval, before)
    return NcclConstant(shown(name), 1 / value, 1 / interval[1], 1 / interval[0], 1 / before)


def shown(name: str) -> str:
    """As machine files name it."""
    return name.replace(".byte", ".rate")


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


def _hardware(one: Series) -> str:
    """The name of the GPUs, as the machine's file says it."""
    known = one.topology.nccl_rates
    model = one.topology.device(one.topology.members[0]).attributes.get("model")
    return known.hardware if known is not None else str(model or f"GPUs of {one.topology.name}")


def rounded(seconds: float) -> float:
    """To picoseconds: more digits are noise."""
    return round(seconds * 1e12) / 1e12


def digits(rate: float) -> float:
    """To five digits."""
    return float(f"{rate:.4e}")
