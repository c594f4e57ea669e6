"""Tuner files: which of NCCL's choices to change, the gain, and which choices to measure for it.

Times of choices are by a model, NCCL's own (`blinksim.nccl.tuner.tuner`) or the machine's measured constants where it
has them, corrected where some were measured. A measured time corrects the model by a factor at its size. Between two
measured sizes the factor's logarithm goes straight, and beyond them it stays, so that few measurements say much: the
model knows how a time grows, not how large it is.

Few measurements find the quickest for every size. First every algorithm and protocol that may win somewhere,
by what is known so far, is timed once, where the model has it strongest. Then come the sizes where the best
choice changes: both choices are timed there, and again where the change has moved to, until it stays. What is
left goes to channels: NCCL gives small messages one or two, and some are quicker on more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blinksim.errors import FileError, InputError
from blinksim.machines import MachineLike, Question
from blinksim.nccl.tuner import tuner_files
from blinksim.nccl.tuner.tuner import ALGORITHMS_OF, COLLECTIVES, DEFAULT_VERSION, Prediction, predict
from blinksim.nccl.tuner.tuner_files import DEFAULT, MOST_CHANNELS, Choice, DialectName, TuningRule
from blinksim.results import Result, keyed
from blinksim.textio.text_files import MIB, Exported, read_rows, read_text, shown
from blinksim.timing.measured_constants import NcclRates
from blinksim.topology.selection import Names
from blinksim.units import SIZES, format_size

# Octaves around a measured size in which channels that NCCL would not take by itself keep their factor: how
# many channels are best depends on the size.
_NEAR = 1.0
COLUMNS = ("collective", "size_bytes", "algorithm", "protocol", "channels", "least_channels", "time_us")
_JOB = re.compile(r"# NCCL (\S+) on (.{1,999}) \((.{0,999})\): ([0-9]{1,9}) ranks on ([0-9]{1,9}) nodes?")

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
                raise InputError(f"{what}: NCCL cannot run that here; name the machine, GPUs and nodes")
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
        # Else the mean of what is known of the choice in other collectives, or of its algorithm with other protocols.
        elsewhere = [known for (_, other), known in self.measured.items() if other == choice]
        near = (collective, algorithm, DEFAULT) if algorithm != "ring" else ()
        alike = [known for (name, other), known in self.measured.items() if (name, *other[::2]) == near]
        known = [points] if points else elsewhere or alike
        factors = [float(np.interp(math.log2(size), *np.transpose(points))) for points in known]
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
    first, job = read_text(path, MIB, "file of measured times").partition("\n")[0], None
    if first.startswith("#"):
        if (said := _JOB.fullmatch(first.rstrip("\r"))) is None:
            raise FileError(shown(path), "say '# NCCL 2.28.9 on MACHINE (GPUS): 4 ranks on 1 node', or nothing", line=1)
        job = TimedJob(said[1], said[2], said[3], int(said[4]), int(said[5]))
    found, least = dict[tuple[str, int, Choice], ChoiceTime](), set[int]()

    def add(row: Mapping[str, str]) -> None:
        collective, size, algorithm, protocol, channels, fewest, time = (row[column] for column in COLUMNS)
        if not re.fullmatch("[-+.e0-9 ]+", f"{size} {channels} {fewest} {time}"):
            raise InputError("numbers are of the digits 0 to 9, as in allreduce,1024,ring,ll128,-1,0,27.5")
        one = ChoiceTime(collective, int(size), algorithm, protocol, int(channels), float(time) * 1e-6)
        if found.setdefault((collective, one.size, one.choice), one) is not one:
            raise InputError("a second time of the same choice for the same size: keep one of them")
        least.add(int(fewest))
        if len(least) > 1 or not 0 <= max(least) <= MOST_CHANNELS:
            raise InputError(f"least_channels={fewest}: give 0 to {MOST_CHANNELS}, and one number for all times")

    read_rows(Path(path), add, "measured time")
    if not found:
        raise FileError(shown(path), f"holds no measured time: a line names the columns, {','.join(COLUMNS)}")
    return [*found.values()], least.pop() or None, job


def times_text(times: Iterable[ChoiceTime], least_channels: int | None, job: TimedJob) -> str:
    """The text of a file."""
    rows = [(one.collective, one.size, *one.choice, least_channels or 0, f"{one.time_s * 1e6:.6g}") for one in times]
    return "\n".join((f"# {job}", *(",".join(map(str, row)) for row in (COLUMNS, *rows)), ""))


# What another choice than NCCL's must gain by the model: a part, and more for every octave to the nearest
# measured sizes of the two.
_GAIN, _GAIN_PER_OCTAVE = 0.02, 0.005
MOST_MEASUREMENTS = 40
# A choice that the model takes to be slower than the best by more everywhere is not timed.
_HOPELESS = 1.3
# Channels of messages that NCCL gives fewer, and the sizes to try them at: the middle first.
_SPREAD = 8
_SPREAD_SIZES = (2**15, 2**13)
# How many sizes after its first the choice of the largest messages is timed.
_LAST = 1
# Octaves from which on a size counts as not measured at all.
_FAR = 6.0
# What so many channels must gain before other sizes are tried.
_WORTHWHILE = 0.05
# Octaves over which the usual number of channels need not be timed again.
_NEAR_ENOUGH = 2.0

Measure = Callable[[str, int, Choice], float]
"""Seconds of (collective, bytes, choice)."""


@dataclass(frozen=True, slots=True)
class TunedCell:
    """A collective at a size. before, choice: what NCCL takes by itself and what it is to take; their times in s."""

    collective: str
    size: int
    before: Choice
    before_s: float
    choice: Choice
    time_s: float

    @property
    def gain(self) -> float:
        """The part of the time that the change saves."""
        return 1 - self.time_s / self.before_s


@dataclass(frozen=True, repr=False)
class Tuning(Result):
    """A tuner file's rules and what they are expected to gain.

    Attributes
    ----------
    machine : str
        Its name.
    version : str
        The release of NCCL whose choices are changed.
    nodes, ranks : int
        The communicators that the rules are for.
    rules : tuple
        The rules, each with ``collective``, ``least`` and ``most`` bytes, ``algorithm``, ``protocol``,
        ``channels``.
    cells : tuple
        Every collective and size, with NCCL's own choice and the better one.
    measured : tuple
        The times that it rests on.
    least_channels : int, optional
        NCCL_MIN_NCHANNELS of the measurements, which the file needs too.
    gpus : str
        What kind of GPU the machine has, such as ``sm 90``.
    caution : str
        What is not known about the measured times; empty if nothing.

    Examples
    --------
    >>> import blinksim as bs
    >>> quick = bs.ChoiceTime("allgather", 2**22, "ring", "ll128", -1, 27e-6)
    >>> slow = bs.ChoiceTime("allgather", 2**22, "ring", "simple", -1, 36e-6)
    >>> bs.tune("hgx-h200", [quick, slow], members="0-3", nvls=False).rules[0].protocol
    'll128'
    """

    machine: str
    version: str
    nodes: int
    ranks: int
    rules: tuple[TuningRule, ...]
    cells: tuple[TunedCell, ...]
    measured: tuple[ChoiceTime, ...]
    least_channels: int | None = None
    gpus: str = ""
    caution: str = ""

    @property
    def job(self) -> TimedJob:
        """The job that was measured, as a file of times describes it."""
        return TimedJob(self.version, self.machine, self.gpus, self.ranks, self.nodes)

    def export(self, dialect: DialectName = "nccl") -> Exported:
        """The rules as a file for NCCL (with blinksim's plugin or NCCL's example plugin), RCCL or NCCLX."""
        changes = (f"{rule.collective} of {self.span(rule)}: {change}" for rule, change in self.changes())
        head = (f"{self.job}, from {len(self.measured)} measured times", *changes)
        found = tuner_files.export(self.rules, dialect, head=head, least_channels=self.least_channels)
        return replace(found, caution=self.caution)

    def span(self, rule: TuningRule) -> str:
        """The examined sizes that a rule covers; its range ends half way to the next ones."""
        sizes = [format_size(cell.size) for cell in self._cells(rule)]
        if rule.most == tuner_files.MOST_BYTES:
            return f"{sizes[0]} and more"
        return " to ".join(dict.fromkeys((sizes[0], sizes[-1])))

    def _cells(self, rule: TuningRule) -> list[TunedCell]:
        alike = [cell for cell in self.cells if cell.collective == rule.collective]
        return [cell for cell in alike if rule.least <= cell.size <= rule.most]

    def changes(self) -> list[tuple[TuningRule, str]]:
        """Each rule with its change and its gain, in words."""
        found = []
        for rule in self.rules:
            cells = self._cells(rule)
            gains = [100 * cell.gain for cell in cells]
            before = " or ".join(dict.fromkeys(choice_words(cell.before) for cell in cells))
            gain = " to ".join(dict.fromkeys(f"{gain:.0f}" for gain in (min(gains), max(gains))))
            found.append((rule, f"{choice_words(rule.choice)} instead of {before}, {gain} % less time"))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One row per collective and size; times in seconds."""
        return [
            keyed(cell, "collective size_bytes=size")
            | {f"nccl_{name}": value for name, value in _named(cell.before).items()}
            | {"nccl_time_s": cell.before_s, **_named(cell.choice), "time_s": cell.time_s, "gain": cell.gain}
            for cell in self.cells
        ]

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        rules = [keyed(rule, "@Tuning.rules") | _named(rule.choice) for rule in self.rules]
        return keyed(self, "@Tuning", measurements=len(self.measured), rules=rules, rows=self.rows())

    def __repr__(self) -> str:
        gains = [cell.gain for cell in self.cells] or [0.0]
        best = max(self.cells, key=lambda cell: cell.gain, default=None)
        most = ""
        if best is not None and best.gain > 0:
            most = f", at most {100 * best.gain:.0f} % ({best.collective} of {format_size(best.size)})"
        mean = f"{100 * sum(gains) / len(gains):.1f} % less time in the mean"
        return f"<Tuning {len(self.rules)} rules for {self.ranks} ranks of {self.machine}: {mean}{most}>"


def _named(choice: Choice) -> dict[str, Any]:
    algorithm, protocol, channels = choice
    return {"algorithm": algorithm, "protocol": protocol, "channels": None if channels == DEFAULT else channels}


def choice_words(choice: Choice) -> str:
    """Such as ``ring simple on 8 channels``."""
    algorithm, protocol, channels = choice
    return f"{algorithm} {protocol}" if channels == DEFAULT else f"{algorithm} {protocol} on {channels} channels"


def tune(
    machine: MachineLike,
    times: str | Path | Iterable[ChoiceTime],
    *,
    members: Names | None = None,
    nodes: int = 1,
    nvls: bool = True,
    version: str | None = None,
    least_channels: int | None = None,
) -> Tuning:
    """Find where another of NCCL's choices is quicker than its own, for a tuner plugin to force.

    NCCL's choices are times by a model (its own, or constants that were measured on the machine) which the
    measured times make right. A choice replaces NCCL's where it gains more than the model may be wrong by.

    Parameters
    ----------
    machine : str, path or Topology
        Whatever `load` takes.
    times : str, path or list
        Measured times of choices: a file that ``blinksim tune`` wrote, or `ChoiceTime` objects.
    members : optional
        The GPUs that take part; default, all.
    nodes : int
        How many nodes.
    nvls : bool
        False where NCCL ran with NCCL_NVLS_ENABLE=0.
    version : str, optional
        The release of NCCL. Default: `blinksim.nccl.tuner.tuner.DEFAULT_VERSION`.
    least_channels : int, optional
        NCCL_MIN_NCHANNELS that was in force, if the file does not say so.

    Returns
    -------
    Tuning
        The rules, each cell's choice with its time, and `export` for the file.

    Raises
    ------
    InputError
        For times that NCCL cannot have on this machine, a file of other GPUs or another number of ranks or
        nodes, and a machine or file that cannot be read.

    Examples
    --------
    >>> import blinksim as bs
    >>> quick = bs.ChoiceTime("allgather", 2**22, "ring", "ll128", -1, 27e-6)
    >>> slow = bs.ChoiceTime("allgather", 2**22, "ring", "simple", -1, 36e-6)
    >>> found = bs.tune("hgx-h200", [quick, slow], members="0-3", nvls=False)
    >>> print(found.export().files[""].splitlines()[-1])
    allgather,2965821,94906265,ring,ll128,-1,1,4,-1,-1
    """
    here = _of(machine, members, nodes, nvls, version)
    caution = ""
    if isinstance(times, str | Path):
        given, said, job = read_times(times)
        least_channels = least_channels if said is None else said
        file, wanted = shown(times), here.job
        if job is None:
            what = "does not say of which machine and how many ranks its times are"
            caution = f"{file} {what}; they are taken for {wanted}"
        elif (job.ranks, job.nodes) != (wanted.ranks, wanted.nodes):
            need = f"{wanted.ranks} ranks on {wanted.nodes} need times of their own"
            cure = "members= and nodes= say what was measured; or measure again"
            raise InputError(f"{file} has times of {job}, and {need}: {cure}")
        elif "" not in (job.gpus, wanted.gpus) and job.gpus != wanted.gpus:
            gpus = f"the GPUs of {wanted.machine} are {wanted.gpus}"
            raise InputError(f"{file} has times of {job}, and {gpus}: measure there")
        elif job.machine != wanted.machine:
            caution = f"{file} has times of {job}, which are taken for those of {wanted.machine}"
    else:
        given = list(times)
    if not given:
        raise InputError("no measured times: a tuner file rests on some")
    here.times.add(given)
    collectives = dict.fromkeys(one.collective for one in given)
    return replace(_tuning(here, tuple(collectives), tuple(given), least_channels), caution=caution)


def tune_here(
    machine: MachineLike,
    measure: Measure,
    *,
    members: Names | None = None,
    nvls: bool = True,
    version: str | None = None,
    least_channels: int | None = None,
    most: int = MOST_MEASUREMENTS,
    gpus: str = "",
) -> Tuning:
    """As `tune`, with at most `most` times that `measure` takes now, where the model expects them to say most.

    gpus: what it measures on, such as ``sm 90``; raises `InputError` if the machine's are others.
    """
    here = _of(machine, members, 1, nvls, version)
    if "" not in (gpus, here.job.gpus) and gpus != here.job.gpus:
        those = f"those of {here.job.machine} {here.job.gpus}"
        raise InputError(f"the GPUs here are {gpus}, and {those}: name this machine")
    return _tuning(here, COLLECTIVES, tuple(search(here.times, measure, most)), least_channels)


def search(times: ChoiceTimes, measure: Measure, most: int = MOST_MEASUREMENTS) -> list[ChoiceTime]:
    """Times at most `most` choices by `measure`, adds them to `times`, and returns them in the order of measuring."""
    found: list[ChoiceTime] = []
    for number, collective in enumerate(COLLECTIVES):
        share = (most - len(found)) // (len(COLLECTIVES) - number)
        wanted = _wanted(times, collective)
        fresh = ((size, choice) for size, choice in wanted if times.distance(collective, choice, size) > 0)
        for size, choice in islice(fresh, share):
            one = ChoiceTime(collective, size, *choice, measure(collective, size, choice))
            times.add([one])
            found.append(one)
    return found


def _wanted(times: ChoiceTimes, collective: str) -> Iterator[tuple[int, Choice]]:
    """Choices of a collective to time next, as long as someone asks; each time is known before the next."""
    # Choices that NCCL can run here, with its own number of channels; rings first.
    algorithms = sorted(ALGORITHMS_OF[collective], key=lambda name: name != "ring")
    pairs = product(algorithms, ("ll", "ll128", "simple"))
    able = [(*pair, DEFAULT) for pair in pairs if tuner_files.runs(collective, *pair)]
    among = [choice for choice in able if times.time(collective, choice, SIZES[0]) is not None]

    def time(choice: Choice, size: int) -> float:
        return times.time(collective, choice, size) or math.inf

    def best(size: int) -> Choice:
        """The quickest at a size, with NCCL's own number of channels."""
        return min(among, key=lambda choice: time(choice, size))

    def changes() -> Iterator[tuple[float, int, Choice]]:
        """Choices that are not timed at a change of the best: what a wrong one costs, the size, and the choice."""
        for place, pair in enumerate(pairwise([best(size) for size in SIZES])):
            if pair[0] == pair[1]:
                continue
            # How far apart two choices are two sizes away from where the better one changes, in the mean.
            around = [SIZES[max(place - 2, 0)], SIZES[min(place + 3, len(SIZES) - 1)]]
            found = [[time(choice, size) for choice in pair] for size in around]
            stake = sum(max(one) / min(one) - 1 for one in found)
            for choice in pair:
                apart = [times.distance(collective, choice, size) for size in SIZES[place : place + 2]]
                if min(apart) > 0:
                    yield stake * min(apart[0], _FAR), SIZES[place + (choice == pair[0])], choice

    for choice in among:
        behind = [time(choice, size) / time(best(size), size) for size in SIZES]
        if min(behind) > _HOPELESS:
            continue
        # Where it is least behind the best: the size that serves the channels too, the first that still
        # tells how it ends, or the middle.
        near = min(behind) * (1 + 1e-9)
        strong = [size for size, ratio in zip(SIZES, behind, strict=True) if ratio <= near]
        at = min(_LAST, len(strong) - 1) if strong[-1] == SIZES[-1] else len(strong) // 2
        yield _SPREAD_SIZES[0] if _SPREAD_SIZES[0] in strong else strong[at], choice
    for size in _SPREAD_SIZES:
        usual = best(size)
        spread = (*usual[:2], _SPREAD)
        if times.distance(collective, usual, size) > _NEAR_ENOUGH:
            yield size, usual
        yield size, spread
        if 1 - time(spread, size) / time(usual, size) < _WORTHWHILE:
            break
    # Both choices at each change of the best, the change where a wrong choice costs most before the
    # others.
    while left := list(changes()):
        _, size, choice = max(left, key=lambda entry: entry[0])
        yield size, choice


class _Here(NamedTuple):
    """The job that is tuned, what NCCL takes there, and times by a model."""

    job: TimedJob
    prediction: Prediction
    times: ChoiceTimes


def _of(machine: MachineLike, members: Names | None, nodes: int, nvls: bool, version: str | None) -> _Here:
    question = Question.of(machine, members=members, nodes=nodes)
    whole = question.whole()
    chosen = question.member_names(whole)
    prediction = predict(whole, chosen, version=version or DEFAULT_VERSION, multicast=nvls)
    attributes = whole.device(chosen[0]).attributes
    gpus = f"sm {attributes['sm']}" if "sm" in attributes else str(attributes.get("model", ""))
    job = TimedJob(prediction.version, whole.name, gpus, prediction.job.ranks, prediction.job.nnodes)
    return _Here(job, prediction, ChoiceTimes(model_of(prediction, whole.nccl_rates)))


def _tuning(
    here: _Here, collectives: tuple[str, ...], measured: tuple[ChoiceTime, ...], least_channels: int | None
) -> Tuning:
    job, prediction, times = here
    cells, rules = list[TunedCell](), list[TuningRule]()
    for collective in (known for known in COLLECTIVES if known in collectives):
        among = list(dict.fromkeys(one.choice for one in measured if one.collective == collective))
        merged = list[tuple[int, Choice | None, frozenset[Choice | None]]]()
        for size in SIZES:
            own = prediction.best(collective, size)
            before = (own.algorithm, own.protocol.lower(), DEFAULT)
            every = {choice: times.time(collective, choice, size) for choice in [before, *among]}
            known = {choice: time for choice, time in every.items() if time is not None}
            best = min(known, key=known.__getitem__)
            apart = [min(times.distance(collective, choice, size), len(SIZES)) for choice in (before, best)]
            needed = _GAIN + _GAIN_PER_OCTAVE * sum(apart)
            taken = best if known[best] < known[before] * (1 - needed) else before
            cells.append(TunedCell(collective, size, before, known[before], taken, known[taken]))
            # What a merged rule may say here: the choice; where that is NCCL's own, also nothing, which is
            # None.
            changed = None if taken == before else taken
            merged.append((size, changed, frozenset({changed, taken})))
        rules += tuner_files.rules_of(collective, merged, job.nodes, job.ranks)
    found = tuple(rules), tuple(cells), measured, least_channels
    return Tuning(job.machine, job.version, job.nodes, job.ranks, *found, gpus=job.gpus)
