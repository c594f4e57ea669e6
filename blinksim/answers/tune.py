"""Tuner files: which of NCCL's choices to change, the gain, and which choices to measure for it.

Few measurements find the quickest for every size. First every algorithm and protocol that may win somewhere,
by what is known so far, is timed once, where the model has it strongest. Then come the sizes where the best
choice changes: both choices are timed there, and again where the change has moved to, until it stays. What is
left goes to channels: NCCL gives small messages one or two, and some are quicker on more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from blinksim.answers.choice_times import ChoiceTime, ChoiceTimes, TimedJob, model_of, read_times
from blinksim.errors import InputError
from blinksim.machines import MachineLike
from blinksim.nccl.tuner import tuner_files
from blinksim.nccl.tuner.prediction import Prediction, predict
from blinksim.nccl.tuner.tuner import ALGORITHMS_OF, COLLECTIVES, DEFAULT_VERSION
from blinksim.nccl.tuner.tuner_files import DEFAULT, MOST_BYTES, Choice, DialectName, TuningRule, rules_of, runs
from blinksim.question import Question
from blinksim.results import Result, keyed
from blinksim.textio.text_files import shown
from blinksim.textio.whole_files import Exported
from blinksim.topology.selection import Names
from blinksim.units import format_size

# What another choice than NCCL's must gain by the model: a part, and more for every octave to the nearest
# measured sizes of the two.
_GAIN, _GAIN_PER_OCTAVE = 0.02, 0.005
SIZES = tuple(2**power for power in range(10, 31))
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
        if rule.most == MOST_BYTES:
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
            before = " or ".join(dict.fromkeys(_words(cell.before) for cell in cells))
            gain = " to ".join(dict.fromkeys(f"{gain:.0f}" for gain in (min(gains), max(gains))))
            found.append((rule, f"{_words(rule.choice)} instead of {before}, {gain} % less time"))
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
        named = "collective least_bytes=least most_bytes=most"
        rules = [keyed(rule, named) | _named(rule.choice) for rule in self.rules]
        keys = "machine nccl=version nodes ranks measurements least_channels gpus caution rules rows"
        return keyed(self, keys, measurements=len(self.measured), rules=rules, rows=self.rows())

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


def _words(choice: Choice) -> str:
    algorithm, protocol, channels = choice
    return f"{algorithm} {protocol}" if channels == DEFAULT else f"{algorithm} {protocol} on {channels} channels"


def tune(
    machine: MachineLike,
    times: str | Path | Iterable[ChoiceTime],
    *,
    members: Names | None = None,
    nodes: int = 1,
    nvls: bool = True,
    version: str = DEFAULT_VERSION,
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
    version : str
        The release of NCCL.
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
    version: str = DEFAULT_VERSION,
    least_channels: int | None = None,
    most: int = MOST_MEASUREMENTS,
    gpus: str = "",
) -> Tuning:
    """As `tune`, with at most `most` times that `measure` takes now, where the model expects them to say most.

    gpus: what it measures on, such as ``sm 90``; raises `InputError` if the machine's are others.
    """
    here, job = _of(machine, members, 1, nvls, version), Job()
    if "" not in (gpus, here.job.gpus) and gpus != here.job.gpus:
        those = f"those of {here.job.machine} {here.job.gpus}"
        raise InputError(f"the GPUs here are {gpus}, and {those}: name this machine")
    taken = search(here.times, job, measure, most)
    return _tuning(here, job.collectives, tuple(taken), least_channels)


@dataclass(frozen=True, slots=True)
class Job:
    """The target of tuning. collectives: NCCL's names. sizes: ascending bytes."""

    collectives: tuple[str, ...] = COLLECTIVES
    sizes: tuple[int, ...] = SIZES


def search(times: ChoiceTimes, job: Job, measure: Measure, most: int = MOST_MEASUREMENTS) -> list[ChoiceTime]:
    """Times at most `most` choices by `measure`, adds them to `times`, and returns them in the order of measuring."""
    found: list[ChoiceTime] = []
    for number, collective in enumerate(job.collectives):
        share = (most - len(found)) // (len(job.collectives) - number)
        for size, choice in _Plan(times, collective, job.sizes).wanted():
            if share == 0:
                break
            if times.distance(collective, choice, size) == 0:
                continue
            share -= 1
            one = ChoiceTime(collective, size, *choice, measure(collective, size, choice))
            times.add([one])
            found.append(one)
    return found


@dataclass(frozen=True)
class _Plan:
    """Choices of one collective to time, by what is known so far."""

    times: ChoiceTimes
    collective: str
    sizes: tuple[int, ...]

    @cached_property
    def among(self) -> list[Choice]:
        """Choices that NCCL can run here, with its own number of channels; rings first."""
        return [
            (algorithm, protocol, DEFAULT)
            for algorithm in sorted(ALGORITHMS_OF[self.collective], key=lambda name: name != "ring")
            for protocol in ("ll", "ll128", "simple")
            if runs(self.collective, algorithm, protocol)
            and self.times.time(self.collective, (algorithm, protocol, DEFAULT), self.sizes[0]) is not None
        ]

    def time(self, choice: Choice, size: int) -> float:
        """Seconds, infinite where the choice cannot run."""
        return self.times.time(self.collective, choice, size) or math.inf

    def best(self, size: int) -> Choice:
        """The quickest at a size, with NCCL's own number of channels."""
        return min(self.among, key=lambda choice: self.time(choice, size))

    def wanted(self) -> Iterator[tuple[int, Choice]]:
        """Choices to time next, as long as someone asks; between two of them `times` learns of the first."""
        for choice in self.among:
            behind = [self.time(choice, size) / self.time(self.best(size), size) for size in self.sizes]
            if min(behind) > _HOPELESS:
                continue
            # Where it is least behind the best: the size that serves the channels too, the first that still
            # tells how it ends, or the middle.
            strong = [size for size, ratio in zip(self.sizes, behind, strict=True) if ratio <= min(behind) * (1 + 1e-9)]
            if _SPREAD_SIZES[0] in strong:
                yield _SPREAD_SIZES[0], choice
            elif strong[-1] == self.sizes[-1]:
                yield strong[min(_LAST, len(strong) - 1)], choice
            else:
                yield strong[len(strong) // 2], choice
        for size in _SPREAD_SIZES:
            if not self.sizes[0] <= size <= self.sizes[-1]:
                continue
            usual = self.best(size)
            spread = (*usual[:2], _SPREAD)
            if self.times.distance(self.collective, usual, size) > _NEAR_ENOUGH:
                yield size, usual
            yield size, spread
            if 1 - self.time(spread, size) / self.time(usual, size) < _WORTHWHILE:
                break
        # Both choices at each change of the best, the change where a wrong choice costs most before the
        # others.
        while changes := list(self._changes()):
            _, size, choice = max(changes, key=lambda entry: entry[0])
            yield size, choice

    def _changes(self) -> Iterator[tuple[float, int, Choice]]:
        """Choices that are not timed at a change of the best: what a wrong one costs, the size, and the choice."""
        for place, pair in enumerate(pairwise([self.best(size) for size in self.sizes])):
            if pair[0] == pair[1]:
                continue
            # How far apart two choices are two sizes away from where the better one changes, in the mean.
            around = [self.sizes[max(place - 2, 0)], self.sizes[min(place + 3, len(self.sizes) - 1)]]
            found = [[self.time(choice, size) for choice in pair] for size in around]
            stake = sum(max(one) / min(one) - 1 for one in found)
            for choice in pair:
                apart = [self.times.distance(self.collective, choice, size) for size in self.sizes[place : place + 2]]
                if min(apart) > 0:
                    yield stake * min(apart[0], _FAR), self.sizes[place + (choice == pair[0])], choice


class _Here(NamedTuple):
    """The job that is tuned, what NCCL takes there, and times by a model."""

    job: TimedJob
    prediction: Prediction
    times: ChoiceTimes


def _of(machine: MachineLike, members: Names | None, nodes: int, nvls: bool, version: str) -> _Here:
    question = Question.of(machine, members=members, nodes=nodes)
    whole = question.whole()
    chosen = question.member_names(whole)
    prediction = predict(whole, chosen, version=version, multicast=nvls)
    attributes = whole.device(chosen[0]).attributes
    gpus = f"sm {attributes['sm']}" if "sm" in attributes else str(attributes.get("model", ""))
    job = TimedJob(prediction.version, whole.name, gpus, prediction.job.ranks, prediction.job.nnodes)
    return _Here(job, prediction, ChoiceTimes(model_of(prediction, whole.nccl_rates)))


def _tuning(
    here: _Here, collectives: tuple[str, ...], measured: tuple[ChoiceTime, ...], least_channels: int | None
) -> Tuning:
    (job, prediction, times), usual = here, Job()
    cells, rules = list[TunedCell](), list[TuningRule]()
    for collective in (known for known in usual.collectives if known in collectives):
        among = list(dict.fromkeys(one.choice for one in measured if one.collective == collective))
        merged = list[tuple[int, Choice | None, frozenset[Choice | None]]]()
        for size in usual.sizes:
            own = prediction.best(collective, size)
            before = (own.algorithm, own.protocol.lower(), DEFAULT)
            every = {choice: times.time(collective, choice, size) for choice in [before, *among]}
            known = {choice: time for choice, time in every.items() if time is not None}
            best = min(known, key=known.__getitem__)
            apart = [min(times.distance(collective, choice, size), len(usual.sizes)) for choice in (before, best)]
            needed = _GAIN + _GAIN_PER_OCTAVE * sum(apart)
            taken = best if known[best] < known[before] * (1 - needed) else before
            cells.append(TunedCell(collective, size, before, known[before], taken, known[taken]))
            # What a merged rule may say here: the choice; where that is NCCL's own, also nothing, which is
            # None.
            changed = None if taken == before else taken
            merged.append((size, changed, frozenset({changed, taken})))
        rules += rules_of(collective, merged, job.nodes, job.ranks)
    found = tuple(rules), tuple(cells), measured, least_channels
    return Tuning(job.machine, job.version, job.nodes, job.ranks, *found, gpus=job.gpus)
