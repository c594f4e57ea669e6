"""Calibration: alpha and beta of link classes from measured times, as a table that ``--rates`` reads.

Hockney's model fitted to what nccl-tests measured: the time of the rings that NCCL runs is a sum of terms in
proportion to the alpha (latency and overhead) and the beta (seconds per byte) of the classes that they cross,
and these factors are what is fitted (`blinksim.answers.logs.fit`). A class that no measurement depends on
keeps what it had.

NCCL's own constants are fitted as far as they are identifiable.
The model of NCCL says which algorithm and protocol ran at each size; the times are then linear in the
constants. Rings have no part in logs of NVLS, where switches add, so that these say nothing about the
bandwidth of a link class; what a port carries while its switch adds is a constant of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import attrgetter
from statistics import median
from typing import Any, Generic, TypeVar

import numpy as np

from blinksim.answers.logs.expectation import Expectation, Expected, RingModel, Sample, Series
from blinksim.answers.logs.fit import Fit, Fitted, Floats, Timed, fit, fit_sums
from blinksim.collective import busbw_factor
from blinksim.errors import InputError
from blinksim.formats.rate_tables import ClassRates, RateTable, job_of
from blinksim.graphs.connectivity import grouped
from blinksim.machines import NOMINAL, MachineLike, as_topology, load
from blinksim.nccl.tuner.tuner import Prediction
from blinksim.results import Result, keyed
from blinksim.timing.measured.library_rates import catalogued, relatives_of
from blinksim.timing.measured_constants import LINES, NVLS, FitError, NcclLine, NcclRates, Origin, addends
from blinksim.topology.graph import Topology
from blinksim.units import format_rate, format_size

# Links carry what their file says, but for so much.
_BEYOND_LINKS = 1.1
# Eight H200, whose constants were measured and stand in where another machine has none.
STAND_IN = "hgx-h200"
# The type of all constants of NCCL, or of programs.
Rates = TypeVar("Rates")


@dataclass(frozen=True)
class ConstantsFit(Generic[Rates]):
    """Constants of NCCL or of programs, how they were found, and how well they fit.

    rates: all constants, kept ones among them. constants: the fitted ones. kept: the names of those that the
    times do not determine. error: of all times that the constants are for.
    """

    rates: Rates
    constants: tuple[Fitted, ...]
    kept: tuple[str, ...]
    error: FitError

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        rows = []
        for one in self.constants:
            unit, scale = ("GBps", 1e-9) if one.is_rate else ("s", 1.0)
            figures = keyed(one, "value low high before").items()
            rows.append({"constant": one.name} | {f"{key}_{unit}": x and x * scale for key, x in figures})
        return {"rows": rows, "kept": list(self.kept), "error": keyed(self.error, "median p90 points")}


NcclFit = ConstantsFit[NcclRates]


def fit_nccl(series: Sequence[Series], *, version: str = "", source: str = "") -> NcclFit | None:
    """NCCL's constants from series of one node whose GPUs switches join; None where there are too few times of such.

    The times are of rings, not of switches that reduce. version: of NCCL, empty if it is not known. source:
    where the times come from.
    """
    if len(times := [time for one in series for time in _times(one, version)]) < 3:
        return None
    first, known = series[0].topology, series[0].topology.nccl_rates
    # The name of the GPUs, as the machine's file says it.
    model = first.device(first.members[0]).attributes.get("model", f"GPUs of {first.name}")
    before = known or replace(stand_in(), hardware=str(model))
    found_there = _prediction(series[0], version)
    start = before.constants(2 * found_there.nchannels if found_there is not None else 0)
    # No protocol sends faster than the links allow: a rate beyond them is one that the times do not show.
    most = _BEYOND_LINKS * max(leaving(one.topology) for one in series)
    least = {f"{line}.byte": 1 / most for line in LINES} if most else {}
    if (found := fit_sums(times, start, least=least, rates=_shows_rates(series))) is None:
        return None
    error, constants, kept = _stated(found, times, {name: start[name] for name in start if not name.startswith(NVLS)})
    rates = _with(before, {name: value for name, value in found.values.items() if value != start[name]})
    gpus, measured = tuple(sorted({one.topology.ranks for one in series})), Origin(source or "measured times")
    rates = replace(rates, gpus=gpus, measured=measured, version=version or "unknown")
    return ConstantsFit(replace(rates, error=None if math.isnan(error.median) else error), constants, kept, error)


def _stated(
    found: Fit[str], times: Sequence[Timed], start: Mapping[str, float]
) -> tuple[FitError, tuple[Fitted, ...], tuple[str, ...]]:
    """How well times fit, and the fitted and the kept constants, as machine files name them, in their units."""
    constants = []
    for name, (low, high) in found.intervals.items():
        value, before = found.values[name], start[name]
        if name.endswith((".byte", ".turn")):
            value, low, high, before = 1 / value, 1 / high, 1 / low, 1 / before
        constants.append(Fitted(name.replace(".byte", ".rate"), value, low, high, before))
    kept = tuple(name.replace(".byte", ".rate") for name in start if name not in found.intervals)
    # NaN where the scale is.
    error = FitError.of(list(found.predicted + 0 * found.scale), [time.seconds for time in times])
    return error, tuple(constants), kept


def leaving(part: Topology) -> float:
    """Bytes/s of the links that leave a member, the most of all."""
    links = grouped((link.src, float(link.bandwidth)) for link in part.links)
    return max(sum(links.get(member, ()), 0.0) for member in part.members)


def stand_in() -> NcclRates:
    """The constants of H200, where a machine has none."""
    found = load(STAND_IN).nccl_rates
    assert found is not None
    return found


def _prediction(one: Series, version: str = "", multicast: bool = False) -> Prediction | None:
    """NCCL's prediction there; None where its model does not say. multicast: with switches that reduce."""
    ran = one.ran._replace(multicast=multicast, version=version)
    return Expectation(one.topology, one.topology, one.collective, ran).prediction


def _times(one: Series, version: str) -> list[Timed]:
    """The times of a series whose choice has constants; none on several nodes, or where no switches join GPUs."""
    prediction = _prediction(one, version)
    if prediction is None or prediction.job.nnodes > 1 or prediction.ring.type_intra != "NVL":
        return []
    name, ranks = one.collective.name, one.topology.ranks
    if ranks > 2 and not any(device.kind == "switch" for device in one.topology.devices):
        return []
    ran = ((sample, prediction.best(name, sample.size)) for sample in one.samples)
    rings = ((sample, best.protocol.lower()) for sample, best in ran if best.algorithm == "ring")
    return [Timed(sample.time_s, addends(name, ranks, sample.size, protocol)) for sample, protocol in rings]


def _with(rates: NcclRates, fitted: Mapping[str, float]) -> NcclRates:
    """The constants with the fitted ones, seconds or seconds per byte by name, in place of the others."""
    lines = dict[str, Any]()
    for name in LINES:
        line: NcclLine = getattr(rates, name)
        start_s, hop_s = fitted.get(f"{name}.start", line.start_s), fitted.get(f"{name}.hop", line.hop_s)
        lines[name] = replace(line, start_s=digits(start_s), hop_s=digits(hop_s))
        if f"{name}.byte" in fitted:
            # What ran had as many channels as NCCL takes: what one carries does not show.
            lines[name] = replace(lines[name], rate=digits(1 / fitted[f"{name}.byte"]), channel=None)
    turn = digits(1 / fitted["simple.turn"]) if "simple.turn" in fitted else rates.turn
    rooted = digits(fitted.get("simple.rooted_start", rates.rooted_start_s))
    return replace(rates, **lines, turn=turn, rooted_start_s=rooted)


def digits(rate: float) -> float:
    """To five digits: more are noise."""
    return float(f"{rate:.4e}")


def nvls_ran(one: Series) -> bool:
    """True if NCCL takes NVLS and most of the three largest sizes are nearer to that than to times without."""
    asked, large = (one.topology, one.topology, one.collective), sorted({sample.size for sample in one.samples})[-3:]
    adds, rings = (Expectation(*asked, one.ran._replace(multicast=way)) for way in (True, False))
    seen = [(at.time_s, adds.taken(at.size), rings.taken(at.size)) for at in one.samples if at.size in large]
    nearer = [abs(math.log(a.time_s / time_s)) < abs(math.log(b.time_s / time_s)) for time_s, a, b in seen]
    picked = all(a.choice.startswith(NVLS) for _, a, _ in seen)
    return picked and one.ran.multicast and one.topology.nodes == 1 and 2 * sum(nearer) > len(nearer)


def nvls_sizes(one: Series) -> Series:
    """The part of a series in which NCCL takes NVLS: from the first size on for which its model does.

    Raises `InputError` if these are fewer than three times.
    """
    found = _prediction(one, multicast=True)
    assert found is not None
    name, sizes = one.collective.name, sorted({sample.size for sample in one.samples})
    least = next((size for size in sizes if found.best(name, size).algorithm == NVLS), sizes[-1])
    large = tuple(sample for sample in one.samples if sample.size >= least)
    if len(large) < 3:
        where = f"{one.collective} on {one.topology.ranks} ranks of {one.topology.name}"
        ran = f"{where} ran as NVLS, where switches add, at {len(large)} of these sizes"
        raise InputError(f"{ran}; a fit needs at least three, or measure rings with NCCL_NVLS_ENABLE=0")
    return replace(one, samples=large)


def fit_nvls(series: Sequence[Series], nccl: NcclFit | None = None, source: str = "") -> NcclFit:
    """The constants of NVLS from series of `nvls_sizes`, on top of what was fitted to rings.

    Raises `InputError` if the times determine none.
    """
    before = nccl.rates if nccl is not None else series[0].topology.nccl_rates
    if before is None:
        # Those of the nearest relative that has some.
        lent = (load(near).nccl_rates for near in relatives_of(catalogued(series[0].topology)))
        before = next(filter(None, lent), None) or stand_in()
    line = before.nvls or stand_in().nvls
    assert line is not None
    times = [Timed(sample.time_s, line.counts(one.topology.ranks, sample.size)) for one, sample in _every(series)]
    start = line.constants()
    if (found := fit_sums(times, start)) is None:
        raise InputError("the measurements determine no constant of NVLS; are they of this machine?")
    values, gpus = found.values, max(one.topology.ranks for one in series)
    chunk_s = digits(values["nvls.chunk"]) if "nvls.chunk" in start else line.chunk_s
    fitted = replace(line, source=f"from {source}" if source else "fitted to measured times", gpus=gpus)
    start_s, rate = digits(values["nvls.start"]), digits(1 / values["nvls.byte"])
    fitted = replace(fitted, start_s=start_s, chunk_s=chunk_s, rate=rate)
    error, constants, kept = _stated(found, times, start)
    if nccl is not None:
        error, constants, kept = nccl.error, (*nccl.constants, *constants), (*nccl.kept, *kept)
    return ConstantsFit(replace(before, nvls=fitted), constants, kept, error)


# A link class and ``alpha`` or ``bandwidth``.
Class = tuple[str, str]
# A parameter of which the others explain all but this part of its share is left as it was.
_LEAST_OWN = 0.05
# A measurement below this weight does not count (4 standard deviations); if it is off by more than this
# part as well, it is reported as wild: the times of a quiet machine scatter so little that two per cent are
# many deviations.
WILD, FAR_OFF = 0.08, 0.05
_START_ALPHA = 1e-6
_OF_ALPHA = attrgetter("latency"), attrgetter("overhead")
# The step of the factor on an alpha for its slope.
_STEP = 1e-6
# A fit that half of the times miss by more says nothing about links.
WORST_FIT = 0.25
# No lane carries more than its data sheet says, but for the digits of a log.
_MOST_OF_LANE = 1.02


def _every(series: Iterable[Series]) -> list[tuple[Series, Sample]]:
    """Every sample and its series."""
    return [(one, sample) for one in series for sample in one.samples]


@dataclass(frozen=True, slots=True)
class Parameter(Fitted):
    """A fitted figure of a link class: `bandwidth` of a lane in bytes/s, or `alpha`, latency and overhead, in seconds.

    kind: the link class. before: what the machine file says.
    """

    kind: str


@dataclass(frozen=True, repr=False)
class Calibration(Result):
    """A calibrated table of rates, with its measurements and the quality of the fit.

    Attributes
    ----------
    table : RateTable
        The rates; `write` makes a file of it, which `load` takes as rates.
    parameters : tuple of Parameter
        The fitted figures, with intervals of 95 %, NaN where there are no more sizes than figures.
    series : tuple of Series
        What was fitted to.
    residuals : tuple of float
        measured / fitted - 1 for every sample, in the order of the series.
    wild : tuple
        The series, sample and residual of each measurement that is more than 5 % off and had no say.
    spread : float
        Of the others, such as 0.05 for 5 %; NaN where nothing is left over to judge the fit by.
    kept : tuple
        Each (class, quantity) that the measurements say nothing about.
    nccl : ConstantsFit, optional
        NCCL's own constants, where the times are of one node whose GPUs switches join.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("log.txt").write_text('''# Collective test starting: all_reduce_perf
    ... #      size      count   type  redop  root     time   algbw   busbw  #wrong
    ... #       (B)                                    (us)  (GB/s)  (GB/s)
    ...       16384       4096  float    sum    -1    23.73    0.69    1.21       0
    ...    16777216    4194304  float    sum    -1   121.13  138.51  242.39       0
    ...  1073741824  268435456  float    sum    -1  5227.44  205.40  359.46       0
    ... ''')
    >>> import blinksim as bs
    >>> found = bs.calibrate(bs.read_series("log.txt", "hgx-h200"))
    >>> [row["class"] for row in found.rows()], found.largest_error < 0.3
    (['nvlink'], True)
    """

    table: RateTable
    parameters: tuple[Parameter, ...]
    series: tuple[Series, ...]
    residuals: tuple[float, ...]
    wild: tuple[tuple[Series, Sample, float], ...]
    spread: float
    kept: tuple[tuple[str, str], ...]
    nccl: NcclFit | None = None

    @property
    def largest_error(self) -> float:
        """The largest |measured / fitted - 1| of a measurement that is not wild; NaN as `spread`."""
        wild = {error for *_, error in self.wild}
        return max(abs(error) for error in self.residuals if error not in wild) + 0 * self.spread

    @property
    def median_error(self) -> float:
        """The median of |measured / fitted - 1|; NaN as `spread`."""
        return float(np.median(np.abs(self.residuals))) + 0 * self.spread

    def parameter(self, kind: str, quantity: str) -> Parameter:
        """The fitted `alpha` or `bandwidth` of a class; raises `InputError` if it was not fitted."""
        for found in self.parameters:
            if (found.kind, found.name) == (kind, quantity):
                return found
        raise InputError(f"the measurements do not determine the {quantity} of {kind}")

    def rows(self) -> list[dict[str, Any]]:
        """One row per link class, with units in the keys; None where the measurements say nothing."""
        rows = list[dict[str, Any]]()
        for kind, own in grouped((p.kind, p) for p in self.parameters).items():
            rows.append({"class": kind})
            for what, key, scale in (("bandwidth", "GBps", 1e-9), ("alpha", "s", 1.0)):
                found = keyed(next((p for p in own if p.name == what), None), "=value _low=low _high=high")
                rows[-1] |= {f"{what}{end}_{key}": x and x * scale for end, x in found.items()}
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        wild = [keyed(x, "@Calibration.wild", collective=of.collective.name, error=off) for of, x, off in self.wild]
        kept = [{"class": kind, "quantity": quantity} for kind, quantity in self.kept]
        values = {"measurements": len(self.residuals), "rows": self.rows(), "wild": wild, "kept": kept}
        return keyed(self, "@Calibration", **values, nccl=self.nccl and self.nccl.to_dict())

    def sound(self, series: Sequence[Series]) -> list[Series]:
        """These without what is wild and not as expected either, as where trees ran."""
        wild = {id(sample) for _, sample, _ in self.wild}
        off = ((x, _taken(one, x.size)) for one, x in _every(series) if id(x) in wild)
        out = {id(x) for x, usual in off if not usual.low_s <= x.time_s <= usual.high_s}
        return [replace(one, samples=tuple(x for x in one.samples if id(x) not in out)) for one in series]

    def sentence(self) -> str:
        """The answer in one line."""
        one = max(self.series, key=lambda series: series.topology.ranks)
        first = ""
        if not (self.parameters or self.nccl):
            first = "no rates of links explain these times: the table has them by size"
        elif not self.parameters:
            ranks, sample = one.topology.ranks, max(one.samples, key=attrgetter("size"))
            busbw = format_rate(float(busbw_factor(one.collective.name, ranks)) * sample.size / sample.time_s)
            first = f"NCCL ran NVLS: busbw {busbw} on {ranks} GPUs at {format_size(sample.size)}"
        for sent in [p for p in self.parameters if p.name == "alpha"][:1]:
            span = f"{1e6 * sent.value:.4g} us ({sent.interval(1e6)})"
            first = f"a message over {sent.kind} takes {span}, and no size tells the bandwidth"
        for lane in [p for p in self.parameters if p.name == "bandwidth"][:1]:
            first = f"a lane of {lane.kind} carries {lane.value / 1e9:.4g} GB/s ({lane.interval(1e-9)})"
        return f"{one.topology.name}: {first}, from {len(self.residuals)} measurements"


def calibrate(
    series: Series | Iterable[Series],
    *,
    name: str = "measured",
    machine: MachineLike | None = None,
    source: str = "",
    multicast: bool = True,
    version: str = "",
) -> Calibration:
    """Fit alpha and bandwidth of the link classes that the series depend on.

    Parameters
    ----------
    series : Series or iterable of Series
        Measured times, as `read_series` reads them from a log.
    name : str
        What the table of rates is called.
    machine, source : str, path or Topology, optional; str
        The only machine that the table is for (default: any), and where its rates come from.
    multicast : bool
        True if NCCL may have let switches reduce (NVLS). Series that look like it, and whose logs do not say
        ``NCCL_NVLS_ENABLE=0``, give the constants of NVLS.
    version : str
        Of NCCL. Default: what the logs say.

    Returns
    -------
    Calibration
        The table, the figures with their intervals, and how well they fit.

    Raises
    ------
    InputError
        For fewer than three measurements, for times that depend on no link class, and for times that rings do
        not fit.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("log.txt").write_text('''# Collective test starting: all_reduce_perf
    ... #      size      count   type  redop  root     time   algbw   busbw  #wrong
    ... #       (B)                                    (us)  (GB/s)  (GB/s)
    ...       16384       4096  float    sum    -1    23.73    0.69    1.21       0
    ...    16777216    4194304  float    sum    -1   121.13  138.51  242.39       0
    ...  1073741824  268435456  float    sum    -1  5227.44  205.40  359.46       0
    ... ''')
    >>> import blinksim as bs
    >>> found = bs.calibrate(bs.read_series("log.txt", "hgx-h200"), machine="hgx-h200")
    >>> round(found.parameter("nvlink", "bandwidth").value / 1e9)  # GB/s of a lane
    20
    >>> bs.write(found.table, "rates.yaml")
    >>> bs.load("hgx-h200", rates="rates.yaml").rates
    'measured (pcie, ib: nominal)'
    """
    asked = (series,) if isinstance(series, Series) else tuple(series)
    version = version or next((one.ran.version for one in asked if one.ran.version), "")
    by_switches = grouped((multicast and nvls_ran(one), one) for one in asked)
    added, given = tuple(map(nvls_sizes, by_switches.get(True, ()))), tuple(by_switches.get(False, ()))
    result = _of_rings(given, source) if given or not added else None
    nccl = fit_nccl(result.sound(given * bool(result.parameters)), version=version, source=source) if result else None
    nccl = fit_nvls(added, nccl, source) if added else nccl
    result = result or _of_switches(added, nccl, source)
    only = as_topology(machine).name if machine else ""
    # Protocols change with the size, so that no constants give all of these times.
    times = defaultdict[str, dict[int, float]](dict)
    for one in result.sound(asked):
        job = job_of(one.collective, one.topology, multicast and one.ran.multicast)
        taken = grouped((at.size, at.time_s) for at in one.samples)
        times[job] |= {size: digits(median(every)) for size, every in taken.items()}
    table = replace(result.table, name=name, machine=only, times=times)
    return replace(result, table=replace(table, nccl_rates=nccl.rates if nccl else None), nccl=nccl)


def _taken(one: Series, size: int) -> Expected:
    """What the library takes for a size, with its interval."""
    return Expectation(one.topology, one.topology, one.collective, one.ran).taken(size)


def _shows_rates(series: Sequence[Series]) -> bool:
    """True if bandwidth decides what some size should take; the others say nothing about rates."""
    most = ((one, max(sample.size for sample in one.samples)) for one in series)
    return any(2 * one.latency_s < one.time_s for one in (_taken(*asked) for asked in most))


def _of_rings(series: Sequence[Series], source: str) -> Calibration:
    """The rates of links from series of rings."""
    seen = np.array([sample.time_s for _, sample in _every(series)])
    if len(seen) < 3:
        raise InputError(f"{len(seen)} measurements; a fit needs at least three, of small and of large sizes")
    problem = _Problem(series)
    names = [name for name in problem.names if name[1] != "bandwidth" or _shows_rates(series)]
    found = fit(problem.predict, seen, dict.fromkeys(problem.names, 1.0), names, share=0.0, own=_LEAST_OWN)
    result = problem.result(found, source) if found else None
    if result is None or result.median_error > WORST_FIT:
        # Trees and other ways, or a slow machine: then the times alone say what the library takes.
        fits = 0
        for one in series:
            every = sorted(one.samples, key=attrgetter("size", "time_s"))
            times = np.array([at.time_s for at in every])
            # No library takes much less for more.
            most, least = np.maximum.accumulate(times), np.minimum.accumulate(times[::-1])[::-1]
            falls = np.maximum(most / times, times / least) > 1 + WORST_FIT
            fits += int(np.count_nonzero(~falls & (times >= [_taken(one, at.size).low_s for at in every])))
        if 2 * fits >= len(seen):
            table, exact = RateTable("", {}, "", source), (0.0,) * len(seen)
            return Calibration(table, (), tuple(series), exact, (), 0.0, tuple(problem.names))
    if result is None:
        raise InputError("the measurements depend on no link class; are they of this machine?")
    return _checked(result)


def _of_switches(series: tuple[Series, ...], nccl: NcclFit | None, source: str) -> Calibration:
    """Series of NVLS, which say nothing about rings, beside its constants."""
    line = nccl.rates.nvls if nccl else None
    assert line is not None
    found = [(one, at, at.time_s / line.time(one.topology.ranks, at.size) - 1) for one, at in _every(series)]
    errors, wild = tuple(e for *_, e in found), tuple(row for row in found if abs(row[2]) > WORST_FIT)
    kept = tuple((kind, what) for kind in series[0].topology.link_classes for what in ("alpha", "bandwidth"))
    spread = median(map(abs, errors))
    return _checked(Calibration(RateTable("", {}, "", source), (), series, errors, wild, spread, kept))


def _checked(found: Calibration) -> Calibration:
    """What was found; raises `InputError` if the series were not of the rings, or NVLS, that are fitted."""
    if found.median_error > WORST_FIT:
        ways = "rings" if found.parameters else "NVLS"
        off = f"half of them are {100 * found.median_error:.0f} % or more off the best fit of {ways}"
        cure = f"is this the machine, with all its nodes, and did {ways} run?"
        raise InputError(f"no rates explain these times: {off} (at most {100 * WORST_FIT:.0f} %); {cure}")
    nominal = all(one.topology.rates == NOMINAL for one in found.series)
    for lane in found.parameters:
        # The least rate that these times allow; the rate itself where the ends are NaN.
        if nominal and lane.name == "bandwidth" and min(lane.value, lane.low) > _MOST_OF_LANE * lane.before:
            needs = f"{format_rate(lane.value)} of a lane of {lane.kind}, which carries {format_rate(lane.before)}"
            cure = "is this the machine, and did its library run rings?"
            raise InputError(f"rings with these times need {needs}; {cure}")
    return found


class _Problem:
    """Series and their models; parameters are factors on (class, ``alpha`` or ``bandwidth``), the latter on beta."""

    def __init__(self, series: Sequence[Series]) -> None:
        self.series = series
        self.models = list[RingModel]()
        for one in series:
            # A class with no time in the machine file has nothing to scale, so it starts at 1 us.
            links = one.topology.links
            timed = {link.kind for link in links if link.latency or link.overhead}
            begun = tuple(link if link.kind in timed else replace(link, latency=_START_ALPHA) for link in links)
            self.models.append(RingModel(replace(one.topology, links=begun), one.collective))
        kinds = dict.fromkeys(kind for model in self.models for kind in model.classes)
        self.names = [(kind, quantity) for kind in kinds for quantity in ("alpha", "bandwidth")]

    def predict(self, values: Mapping[Class, float], names: Sequence[Class]) -> tuple[Floats, Floats]:
        """Seconds of every sample, and the share of them that grows with each parameter."""
        alphas = {kind: value for (kind, what), value in values.items() if what == "alpha"}
        betas = {kind: value for (kind, what), value in values.items() if what == "bandwidth"}
        times, shares = list[Floats](), list[Floats]()
        for model, one in zip(self.models, self.series, strict=True):
            alpha, beta = model.terms(alphas, betas)
            sizes = np.array([float(sample.size) for sample in one.samples])
            time = alpha + sizes * sum(beta.values())
            parts = list[Floats]()
            for kind, what in names:
                # Seconds due to one class: the alpha of the model is homogeneous in all of them (Euler).
                own = alpha if model.classes == (kind,) else 0.0
                if what == "alpha" and kind in model.classes and len(model.classes) > 1:
                    own = (model.terms({**alphas, kind: alphas[kind] * (1 + _STEP)}, {})[0] - alpha) / _STEP
                parts.append(sizes * beta.get(kind, 0.0) if what == "bandwidth" else np.full(len(sizes), own))
            times.append(time)
            shares.append(np.array(parts).T / time[:, None])
        return np.concatenate(times), np.concatenate(shares)

    def result(self, found: Fit[Class], source: str) -> Calibration:
        parameters, rates = [], defaultdict[str, dict[str, Any]](dict)
        for (kind, what), (low, high) in found.intervals.items():
            factor = found.values[kind, what]
            links = [link for model in self.models for link in model.topology.links if link.kind == kind]
            if what == "bandwidth":
                if len({link.lane_bandwidth for link in links}) > 1:
                    lanes = f"{kind} lanes of {self.models[0].topology.name} have several bandwidths"
                    cure = "write the machine as YAML with a link class for each"
                    raise InputError(f"{lanes}, so no single rate fits them; {cure}")
                rate = float(links[0].lane_bandwidth)
                parameters.append(Parameter(what, rate / factor, rate / high, rate / low, rate, kind))
                # To five digits: further ones are noise, and would stand in every exact answer.
                rates[kind]["bandwidth"] = Fraction(f"{rate / factor:.4e}")
            else:
                # The largest where links differ.
                latency, overhead = (max(map(part, links)) for part in _OF_ALPHA)
                alpha = latency + overhead
                own = [link for one in self.series for link in one.topology.links if link.kind == kind]
                before = sum(max(map(part, own)) for part in _OF_ALPHA)
                parameters.append(Parameter(what, alpha * factor, alpha * low, alpha * high, before, kind))
                rates[kind] |= {"latency": digits(latency * factor), "overhead": digits(overhead * factor)}
        every, errors = _every(self.series), np.exp(found.residual) - 1
        off = np.flatnonzero((found.weight < WILD) & (np.abs(errors) > FAR_OFF))
        wild = tuple((*every[at], float(errors[at])) for at in off.tolist())
        table = RateTable("", {kind: ClassRates(**row) for kind, row in rates.items()}, "", source)
        kept = tuple(entry for entry in self.names if entry not in found.intervals)
        fitted, series, residuals = tuple(parameters), tuple(self.series), tuple(map(float, errors))
        return Calibration(table, fitted, series, residuals, wild, found.scale, kept)
