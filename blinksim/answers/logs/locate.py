"""The device or link whose fault explains several logs of nccl-tests, each on other GPUs, and the next run.

Each fault of a table is an edit of the machine, which says how many times as long every log's job takes. A
measured time over that of a healthy machine is that ratio, times how the rig differs from others (as wide as
the interval of the expected time, and shared by jobs that are alike), times noise. Bayes' rule does the rest:
with Student's t, as single logs may be wild. The next run is the one whose outcome is least certain beyond its
noise: it says most about which fault it is (D. Lindley, Annals of Mathematical Statistics 27, 1956).
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import chain, combinations, product
from operator import attrgetter, itemgetter
from statistics import median
from typing import Any, cast

import numpy as np

from blinksim.answers.expect import PROGRAMS, VISIBLE
from blinksim.answers.logs.diagnose import STATUSES, Diagnosis, Line, figure, judged
from blinksim.answers.logs.expectation import NVLS, Expected, Ran, read_runs
from blinksim.answers.logs.faults import ALL, ASKED, LEAF, RAIL, SIZE, TYPICAL, FaultClass, Faults, Part
from blinksim.collective import ROOTED, Collective, CollectiveLike
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.arrays import Bools, Floats, Ints
from blinksim.graphs.connectivity import grouped
from blinksim.machines import MachineLike, Question
from blinksim.nccl.tests_log import Row, Run, lacking, select
from blinksim.nccl.tuner.tuner import chosen_by
from blinksim.results import Result, count, keyed, names
from blinksim.timing.projection_result import labelled
from blinksim.topology.elements import taking_part
from blinksim.topology.selection import Names
from blinksim.units import format_size, whole

MOST_RUNS = 10
# What a second log of the same job on the same rig differs by: nine in ten of 865 published times of 64 MiB
# and more are within 2.5 % of those of half and twice the size; as Student's t with so many degrees of
# freedom.
_NOISE, _FREEDOM = 0.03, 16
# What a fault's effect differs by from the predicted one, as a share of it.
_ROUGH = 0.12
# The interval of expected times holds eight in ten: so many standard deviations.
_EIGHT_IN_TEN = 2 * 1.2816
# The probability that nothing is wrong at which a fault is found, and above which none is.
_ALARM, _SOUND = 1e-3, 0.5
# The probability by chance below which a fault, or none, does not explain the logs.
_MISFIT = 1e-4
# The same of two faults at once, which fit more easily.
_MISFIT_OF_TWO = 1e-2
# Candidates of at least this share of the first one's probability cannot be told from it.
_ALIKE = 0.25
# How many times as likely a fault is that NCCL names.
_TOLD = 1000.0
# What a run must tell, in nats, to be worth it.
_WORTH = 0.02
_MOST_NODES = 16
_MOST_PAIRS = 20_000
_SIZES = "-b 64M -e 1G -f 4"


@dataclass(frozen=True)
class Job:
    """A collective and its GPUs by node: numbers of nodes, and of the GPUs in each.

    nics: the adapters that every node takes by their names in the machine; none for all.
    """

    gpus: tuple[tuple[int, tuple[int, ...]], ...]
    collective: Collective = ASKED
    nics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """A log: its job, what is said of it by itself, and its largest size that is not odd.

    ratio: logarithm of measured over expected time, the median over its largest sizes. told: nodes, and the
    numbers of `Faults.targets` that may be what NCCL says that they lack. rows: those of these sizes, where
    calls are alike.
    """

    path: str
    job: Job
    line: Line
    ratio: float
    found: Diagnosis
    told: tuple[tuple[int, tuple[int, ...]], ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A fault that may explain the logs.

    place: the device or link; probability: of this one; share: of the bandwidth that is left; edits: the machine
    with it, for ``--edit``; tied: no log tells it from the first one; node: its number, -1 if in none; logs: the
    numbers of those that take longer with it.
    """

    kind: FaultClass
    place: str
    probability: float
    share: float
    edits: tuple[str, ...]
    tied: bool
    node: int = -1
    logs: tuple[int, ...] = ()

    def row(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        return keyed(self, "@Candidate.row", words=f"{self.kind.words} ({self.place})")


@dataclass(frozen=True, repr=False)
class Located(Result):
    """What explains several logs.

    Attributes
    ----------
    machine : str
        Its name.
    nodes, gpus : int
        Of the machine, and of each node.
    seen : tuple of Seen
        The logs.
    candidates : tuple of Candidate
        The faults, the likeliest first, while they are likelier than 1 %; of those that look alike first what
        is on the links that limit.
    healthy : float
        The probability that nothing is wrong that these logs can show.
    once_in : float
        One in so many healthy machines shows such times.
    explained : bool
        A fault, two at once, or none, fits all logs.
    hosts : tuple of str
        The names of the nodes, as far as they are known.
    next_run : str
        The run of nccl-tests that tells most about what is open; empty if none does, or it was not asked for.
    plan : tuple of str
        Runs that clear a machine, of which each tells most where those before show nothing wrong.
    pairs : tuple of pairs of Candidate
        Two faults at once, the likeliest first, where these explain all logs better than any single one, and
        likely single ones; `candidates` then holds each of them once.
    apart : float
        How many times as long the same GPUs took in one run as in another, where that hides a fault; else 1. Then
        `next_run` is this run again.
    odd : str
        The log and its largest size, if that alone is behind; `next_run` then measures that size again.
    multicast : bool
        NCCL might use NVLS.
    library : str
        What runs on the machine, such as NCCL.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.locate("hgx-h100", next_run=True)
    >>> found.next_run
    'CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 all_reduce_perf -b 64M -e 1G -f 4 -g 8'
    """

    machine: str
    nodes: int
    gpus: int
    seen: tuple[Seen, ...]
    candidates: tuple[Candidate, ...]
    healthy: float
    once_in: float
    next_run: str
    plan: tuple[str, ...] = ()
    explained: bool = True
    hosts: tuple[str, ...] = ()
    pairs: tuple[tuple[Candidate, ...], ...] = ()
    apart: float = 1.0
    odd: str = ""
    multicast: bool = True
    library: str = "NCCL"

    @property
    def status(self) -> int:
        """1 if there is a fault, 5 if a log is doubtful, or nobody can tell of them together, else 0.

        A log that is behind is no fault yet, as one of ten healthy machines is. Without logs 0 if there are
        the runs to do that were asked for, else 5.
        """
        if not self.seen:
            return 0 if self.plan or self.next_run else 5
        # The worst comes first.
        wrong = any(self.seen[n].found.status() for n in self.doubtful[:1])
        return 1 if self.faulty else 5 if self.healthy <= _SOUND or self.apart > 1 or wrong else 0

    @property
    def doubtful(self) -> list[int]:
        """Which logs are not in order, or have single sizes that are not, the worst first.

        But for a size that others have measured again.
        """
        logs = [*enumerate(one.found for one in self.seen)]
        found = [n for n, one in logs if (one.status() or one.again) and (self.odd or not one.last_odd)]
        return sorted(found, key=lambda n: (STATUSES.index(self.seen[n].found.status()), -self.seen[n].ratio))

    @property
    def faulty(self) -> bool:
        """True if a fault, or two at once, are named: they explain all logs, or these are in order."""
        # What is quicker than healthy machines has no fault to be explained, and what slows every size on
        # every GPU may be none of one GPU.
        alike = any("every size" in one.found.shown for one in self.seen)
        every = alike and len(self.tied) == self.nodes * self.gpus
        found = self.healthy < _ALARM and self.candidates != () and not every
        return found and (self.explained or not any(self.seen[n].found.status() for n in self.doubtful[:1]))

    @property
    def first(self) -> tuple[Candidate, ...]:
        """The likeliest fault, or two."""
        return self.pairs[0] if self.pairs else self.candidates[:1]

    @property
    def tied(self) -> tuple[Candidate, ...]:
        """The candidates that the logs do not tell apart, the first one included."""
        return tuple(one for one in self.candidates if one.tied)

    def sentence(self) -> str:
        """The answer in one line."""
        head = f"{taking_part(self.nodes * self.gpus, self.machine, self.nodes)}, {count(len(self.seen), 'log')}"
        if self.faulty:
            known = [(x.kind.words, self.named(x), 100 * x.share) for x in self.first]
            many = sum(both[0].tied for both in self.pairs) or len(self.tied)
            if many > 1 > len(self.pairs):
                # The classes are what can be told, and the node if it is one.
                at = self.named(replace(self.first[0], place=f"node {self.first[0].node}"))
                at = at if {x.node for x in self.tied} == {self.first[0].node} != {-1} else ""
                known = [(names([*dict.fromkeys(x.kind.words for x in self.tied)], ", or "), at, known[0][2])]
            left = {share: f", about {share:.0f} % of its rate left" * (share > 0) for *_, share in known}
            first = [f"{words}{f' ({at})' * bool(at)}{left[share]}" for words, at, share in known]
            among = f", one of {many} faults that look alike" * (many > 1)
            return f"{head}: {'two faults explain all logs: ' * (len(first) > 1)}{'; '.join(first)}{among}"
        if not self.seen:
            return f"{head}: nothing is known yet"
        told = "no fault shows" if self.status == 0 else "cannot tell yet whether anything is wrong"
        if any(one.found.status() == 1 for one in self.seen):
            why = "and neither a fault nor two explain all logs", "but these logs do not say whether by a fault"
            told = f"slower than a healthy machine, {why[self.explained]}"
        return f"{head}: {told}"

    def named(self, one: Candidate) -> str:
        """The place, in a node by the name of its host, if that is known."""
        host = self.hosts[one.node] if 0 <= one.node < len(self.hosts) else f"n{one.node}"
        return one.place.replace(f"node {one.node}", host).replace(f"n{one.node}.", f"{host}.")

    @property
    def _open(self) -> str:
        """What else looks alike, by class, or the pairs; empty if nothing does."""
        if self.pairs:
            tied = [[*map(self.named, both)] for both in self.pairs if both[0].tied]
            alike = [" with ".join(both) + " alone" * (len(both) < 2) for both in tied]
            return names(alike, "; ", 4) if len(alike) > 1 else ""
        places = grouped((one.kind.name, self.named(one)) for one in self.tied)
        return "; ".join(f"{kind} of {names(at, ', ', 4)}" for kind, at in places.items()) * (len(self.tied) > 1)

    def text(self) -> str:
        """The sentence, what shows it, and what to do, in at most nine lines; a plan has one for each run."""
        lines = list[tuple[str, str]]()
        by = {number for one in self.first * self.faulty for number in one.logs}
        worst = sorted(self.doubtful, key=lambda number: number not in by)
        for number in dict.fromkeys((*worst, *range(len(self.seen)))):
            words = f"{self.seen[number].path}: {self.seen[number].found.verdict.words}"
            lines.append((("log", "shown by")[number in by], words))
        # What each of the others is, without its figures.
        others = [words.partition(", ")[0] for _, words in lines[2:]]
        lines[2:] = [("others", names(others, "; "))] * bool(others)
        if self.apart > 1:
            took = f"the same GPUs took up to {self.apart:.3g} times as long in one run as in another: measure again"
            lines.append(("unsteady", took))
        if self.faulty:
            lines.append(("by chance", f"at most once in {self.once_in:,.0f} healthy machines"))
            lines += [("open", f"cannot be told apart: {self._open}")] if self._open else []
        # Where all that was measured is slow, and alike, it may be by what all GPUs share.
        every = Counter(kind for one in self.seen for kind, said in one.found.causes if not said)
        causes = [f"{kind.words}: {kind.check}" for kind in every if every[kind] == len(self.seen)]
        lines += [("could be", cause) for cause in causes[: 6 - len(lines)]]
        if self.faulty:
            lines += [("check", x) for x in dict.fromkeys(one.kind.check for one in (*self.first, *self.tied))]
        lines = lines[:8]
        lines += [(f"run {number}", run) for number, run in enumerate(self.plan, start=1)]
        return "\n".join((self.sentence(), *labelled(lines)))

    def rows(self) -> list[dict[str, Any]]:
        """One row for each candidate."""
        return [one.row() for one in self.candidates]

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        logs = [keyed(one, "@Located.logs") | {"nodes": [node for node, _ in one.job.gpus]} for one in self.seen]
        pairs = [
            keyed(both[0], "probability tied places", places=[one.row()["words"] for one in both])
            for both in self.pairs
        ]
        return keyed(self, "@Located", rows=self.rows(), logs=logs, pairs=pairs)


# Kept, as every question of a machine asks for the same times.
_faults = lru_cache(maxsize=8)(Faults)


class Suspicion:
    """How likely each fault is after some logs: arrays of all nodes and `Faults.columns`, healthy last.

    pairs: of two faults at once, where given, the numbers of both; each job takes as long as with the worse one.
    """

    def __init__(self, faults: Faults, nodes: int, seen: Sequence[Seen] = (), pairs: Ints | None = None) -> None:
        self.faults, self.nodes, self.seen, self.pairs = faults, nodes, tuple(seen), pairs
        targets = [faults.targets[place] for place in faults.places]
        self.rail, self.above = (np.array([x.kind.at == at for x in targets]) for at in (RAIL, LEAF))
        # Half for healthy, and the rest for every place alike, and for each of its shares.
        weights = np.tile([1 / len(one.kind.shares) for one in targets], (nodes, 1))
        weights[nodes > 1 :, self.rail] = 0.0
        # What is above a leaf is counted at its first node, if there are several leaves.
        self.leaves = range(0, nodes * (nodes > faults.width), faults.width)
        weights[:, self.above] *= np.isin(np.arange(nodes), self.leaves)[:, None]
        # The place that each fault is at, whatever its share: by node and target.
        every = np.arange(nodes)[:, None] * len(faults.targets) + faults.places
        self.places: Ints = np.append(every.ravel(), nodes * len(faults.targets))
        self.kinds = [(one.job.collective, self.kind(one.job)) for one in seen]
        self.wide = np.array([self.wide_of(one.line.expected) for one in seen])
        self.ratios: Floats = np.array([one.ratio for one in seen]).reshape(-1, 1)
        self.same: Bools = np.array([[a == b for b in self.kinds] for a in self.kinds], dtype=np.bool_)
        self.covariance = self.same * np.outer(self.wide, self.wide) + _NOISE**2 * np.eye(len(seen))
        # A fault that NCCL names is likelier than others, and than none, where it explains a log: one that is
        # behind, or beside the others no longer looks as if nothing were wrong.
        alone = [self.predicted(one.job, max(2**20, min(SIZE, one.line.size))) for one in seen]
        self.told: Bools = np.zeros(len(self.places), dtype=np.bool_)
        likely = self._distances(np.reshape(alone, (len(seen), len(self.places))))[1]
        told = likely[-1] < likely + math.log(_ALIKE)
        for one, effects in zip(seen, alone, strict=True):
            named = [node * len(faults.targets) + place for node, places in one.told for place in places]
            slow = one.line.behind & (effects >= math.log(one.line.time_s / one.line.expected.high_s))
            self.told |= (slow | (told & (effects >= _NOISE / 3))) & np.isin(self.places, named)
        for one in seen:
            excluded = [not one.found.shown.keys().isdisjoint(target.kind.unless) for target in targets]
            weights[np.ix_([node for node, _ in one.job.gpus], excluded)] = 0.0
        self.told[:-1] &= weights.ravel() > 0
        chances = weights.ravel() * np.where(self.told[:-1], _TOLD, 1)
        self.prior: Floats = np.append(0.5 * chances / chances.sum(), 0.5)
        # The faults of each case: one, or both of a pair.
        self.ends: Ints = np.arange(len(self.prior))[:, None] if pairs is None else pairs
        self.prior = self.prior[self.ends].prod(axis=1)
        # By log and case.
        self.effects: Floats = np.reshape(alone, (len(seen), len(self.places)))[:, self.ends].max(axis=2)
        ends = np.sort(self.places[self.ends], axis=1)
        key = ends[:, 0] * len(self.places) + ends[:, -1]
        self.groups: Ints = np.unique(key, return_inverse=True)[1].ravel()
        self._told = dict[object, float]()

    def kind(self, job: Job) -> tuple[Part, ...]:
        """What jobs have in common that take the same time on a healthy machine."""
        local, nics = self.faults.placed(job.gpus, job.nics)
        return tuple(self.faults.alike(gpus, nics)[0] for gpus in local)

    @staticmethod
    def wide_of(healthy: Expected) -> float:
        """The standard deviation of the logarithm of the time, from rig to rig."""
        return max(_NOISE, math.log(healthy.high_s / healthy.low_s) / _EIGHT_IN_TEN)

    def predicted(self, job: Job, size: int = SIZE) -> Floats:
        """The logarithm of the time with each fault alone over that of a healthy machine."""
        found = np.zeros((self.nodes, len(self.faults.columns)))
        parts = Counter(own for _, own in job.gpus)
        for node, gpus in job.gpus:
            other = next((it for it, _ in (parts - Counter([gpus])).most_common(1)), None)
            found[node] = self.faults.effects(gpus, other, job.collective, size, job.nics)
        found[0, self.rail] = found[:, self.rail].max(axis=0, initial=0.0)
        for leaf in {node // self.faults.width for node, _ in job.gpus} if self.leaves else ():
            above = self.faults.above(job.gpus, leaf, job.collective, size, job.nics)
            found[self.leaves[leaf], self.above] = above if len(above) else 0.0
        return np.append(found.ravel(), 0.0)

    @cached_property
    def shown(self) -> Bools:
        """Which faults some log would show."""
        return np.asarray(np.any(self.effects >= _NOISE / 3, axis=0))

    @cached_property
    def _fits(self) -> tuple[Floats, Floats]:
        """`_distances` of each fault."""
        effects, places = np.unique(self.effects, axis=1, return_inverse=True)
        squared, logs = self._distances(effects)
        return squared[places.ravel()], logs[places.ravel()]

    def _distances(self, effects: Floats) -> tuple[Floats, Floats]:
        """Squared distances from the logs, in standard deviations, and logarithms of the logs' probabilities.

        effects: by log and fault; they are known the less the larger they are, alike in jobs that are alike.
        """
        misses, many, rough = self.ratios - effects, len(self.seen), _ROUGH * effects.T
        covariance = self.covariance + self.same * rough[:, :, None] * rough[:, None, :]
        pulls = np.linalg.solve(covariance, misses.T[:, :, None])[:, :, 0]
        squared, wide = (pulls * misses.T).sum(axis=1), np.linalg.slogdet(covariance)[1]
        return squared, -0.5 * ((_FREEDOM + many) * np.log1p(squared / _FREEDOM) + wide)

    @cached_property
    def doubled(self) -> Suspicion:
        """Up to two faults at once: the likeliest pairs of what explains a part of the logs."""
        far = 4 * np.sqrt(np.diag(self.covariance))[:, None] + _ROUGH * self.effects
        part = np.flatnonzero((self.ratios - self.effects > -far).all(axis=0) & (self.prior > 0))
        effects, same = np.unique(self.effects[:, part].round(2), axis=1, return_inverse=True)
        first, second = (ends.ravel() for ends in np.triu_indices(effects.shape[1]))
        own = np.log(np.bincount(same.ravel(), self.prior[part]))
        likely = self._distances(np.maximum(effects[:, first], effects[:, second]))[1]
        order = np.argsort(-(likely + own[first] + own[second]), kind="stable")
        found, many = [np.full((1, 2), len(self.prior) - 1)], 0
        alike = [part[same.ravel() == number] for number in range(effects.shape[1])]
        for place in order.tolist():
            one, other = alike[first[place]], alike[second[place]]
            if many + len(one) * len(other) <= _MOST_PAIRS:
                many += len(one) * len(other)
                found.append(np.stack(np.meshgrid(one, other), axis=-1).reshape(-1, 2))
        return Suspicion(self.faults, self.nodes, self.seen, np.concatenate(found[::-1]))

    @cached_property
    def unsteady(self) -> tuple[float, Job | None]:
        """How many times as long a job took in one run as in another, and the job, if a typical fault does less."""
        every = ((one.job, row) for one in self.seen for row in one.rows if row.size != one.found.last_odd)
        times = grouped(((job, row.size, row.in_place), row.time_s) for job, row in every)
        apart = [(max(same) / min(same), job) for (job, *_), same in times.items()]
        return max((one for one in apart if one[0] ** 2 > TYPICAL), key=itemgetter(0), default=(1.0, None))

    @property
    def odd(self) -> Seen | None:
        """A log whose largest size, alone behind, no other has; until one does nobody knows if it is slow."""
        known = {(one.job, one.line.size) for one in self.seen}
        every = ((one, one.found.last_odd) for one in self.seen)
        return next((one for one, size in every if size and (one.job, size) not in known), None)

    @property
    def settled(self) -> Suspicion:
        """Itself, or up to two faults at once where two explain the logs better than any single one."""
        known = self.pairs is not None or (self.explained and self.healthy >= _ALARM)
        if known or not self.doubled.explained:
            return self
        first = next(iter(self.doubled.candidates()), ())
        return self.doubled if len(first) == 2 or not self.explained else self

    @property
    def explained(self) -> bool:
        """Some fault, or none, fits all logs."""
        return self.by_chance(int(self._fits[0].argmin())) > (_MISFIT if self.pairs is None else _MISFIT_OF_TWO)

    @cached_property
    def posterior(self) -> Floats:
        """The probability of each fault."""
        logs = self._fits[1]
        weights = self.prior * np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum())

    @cached_property
    def alike(self) -> list[object]:
        """Of each node what is known, the same for nodes that can change places."""
        if self.pairs is not None:
            return [*range(self.nodes)]
        known = np.vstack((self.posterior, self.effects))[:, :-1].reshape(1 + len(self.seen), self.nodes, -1)
        own = known[:, :, ~(self.rail | self.above)]
        return [(node // self.faults.width, own[:, node].tobytes()) for node in range(self.nodes)]

    @property
    def healthy(self) -> float:
        """The probability that nothing is wrong, if faults that none of the logs would show are left out."""
        shown = self.shown
        if not shown.any():
            return 1.0
        odds = self.posterior[shown].sum() / self.prior[shown].sum() * self.prior[-1] / self.posterior[-1]
        return float(1 / (1 + odds * _TOLD ** bool(self.told.any())))

    def by_chance(self, fault: int) -> float:
        """The probability that logs with this fault (-1: healthy) are as far from what is predicted."""
        from scipy.special import fdtrc

        many = len(self.seen)
        return float(fdtrc(many, _FREEDOM, self._fits[0][fault] / many)) if many else 1.0

    def candidates(self) -> list[tuple[Candidate, ...]]:
        """The faults that logs show, or the pairs of them, the likeliest first."""
        faults, many, weights = self.faults, self.nodes > 1, self.posterior * self.shown
        share = np.append(np.tile([share for _, share in faults.columns], self.nodes), 1)
        ends = np.take_along_axis(self.ends, np.argsort(self.places[self.ends], axis=1), axis=1)
        total = np.bincount(self.groups, weights)
        means = [np.bincount(self.groups, weights * share[end]) / np.maximum(total, 1e-300) for end in ends.T]
        at = dict(zip(self.groups.tolist(), self.places[ends].tolist(), strict=True))
        order, found = np.argsort(-total, kind="stable"), list[tuple[Candidate, ...]]()
        for index in order[: int((total > 0.01 * total.sum()).sum())].tolist():
            chance, tied = float(total[index]), bool(total[index] >= _ALIKE * total[order[0]])
            longer = np.flatnonzero(self.effects[:, self.groups == index].max(axis=1) >= _NOISE / 3).tolist()
            # The last place is of no fault.
            ways = [way for way in zip(at[index], means, strict=True) if way[0] < self.places[-1]]
            both = list[Candidate]()
            for place, mean in ways:
                node, number = divmod(place, len(faults.targets))
                target, left = faults.targets[number], float(mean[index])
                own = many and target.kind.at not in (RAIL, LEAF)
                name = f"node {node}" if target.name == ALL else f"n{node}." * own + faults.named(target.name, node)
                on = range(self.nodes) if target.kind.at == RAIL else [node]
                edits = faults.edits(target, left, on if many else ())
                where = name, chance, left, edits, tied, node if own else -1
                both.append(Candidate(target.kind, *where, tuple(longer)))
            found.append(tuple(both))
        # Of single ones that no log tells apart first what is on the links that limit, as the verdict says.
        spares = cache(lambda kind: self.pairs is None and self.seen[0].found.spares(kind))
        return sorted(filter(None, found), key=lambda one: spares(one[0].kind) if one[0].tied else 2)

    def informs(self, job: Job, beside: Job | None = None) -> float:
        """What the outcome of a run is expected to tell about which fault it is, in nats.

        beside: another run that takes as long on a healthy machine; then what one takes beside the other tells.
        """
        from scipy.special import entr

        both = [dict(one.gpus) for one in (job, beside) if one]
        at = sorted((self.alike[node], *(own.get(node) or () for own in both)) for node in {*chain(*both)})
        key = job.collective, job.nics, beside and beside.nics, tuple(at)
        if key in self._told:
            return self._told[key]
        wide, kind = self.wide_of(self.expected(job)), (job.collective, self.kind(job))
        values, variance = self.predicted(job)[self.ends].max(axis=1), wide**2 + _NOISE**2
        if beside is not None:
            values, variance = values - self.predicted(beside)[self.ends].max(axis=1), 2 * _NOISE**2
        elif self.seen:
            shared = np.array([wide * w * (k == kind) for w, k in zip(self.wide, self.kinds, strict=True)])
            pulls = np.linalg.solve(self.covariance, shared)
            values, variance = values + pulls @ (self.ratios - self.effects), variance - float(pulls @ shared)
        weights = np.bincount(self.groups, self.posterior)
        means = np.bincount(self.groups, self.posterior * values) / np.maximum(weights, 1e-300)
        means = np.where(weights > 0, means, means[-1])
        # The entropy of a mixture of normal distributions at these means, less that of one of them.
        bins = np.round((means - means.min()) / (math.sqrt(variance) / 2)).astype(np.int64)
        kernel = np.exp(-0.5 * (np.arange(-8, 9) / 2) ** 2)
        kernel /= kernel.sum()
        self._told[key] = float(entr(np.convolve(np.bincount(bins, weights), kernel)).sum() - entr(kernel).sum())
        return self._told[key]

    def runs(self) -> Iterator[Job]:
        """The runs to choose from: of a node all GPUs, halves, pairs; of several all GPUs, or one of each."""
        at, last = self.places[self.ends.T] // len(self.faults.targets), self.nodes + 1
        likely = np.sum([np.bincount(end, self.posterior, last) for end in at], axis=0)[:-1]
        first = np.argsort(-likely, kind="stable")[:_MOST_NODES].tolist()
        every, all_nodes = tuple(range(self.faults.gpus)), tuple(range(self.nodes))
        pairs = zip(every[::2], every[1::2], strict=False)
        parts = [every, *_halves(every), *(combinations(every, 2) if len(every) <= _MOST_NODES else pairs)]
        yield from (Job(((node, part),)) for node in sorted(first) for part in parts)
        if self.leaves:
            # An allreduce crosses links above a leaf once, an alltoall for every GPU.
            yield Job(tuple((node, every) for node in all_nodes), Collective("alltoall"))
        sets = dict.fromkeys((all_nodes, *_halves(all_nodes), *combinations(sorted(first[:8]), 2)))
        joined: list[Part] = [(part, ()) for part in (every, *((gpu,) for gpu in every))]
        joined += [((gpu,), (nic,)) for nic, gpu in self.faults.nearest()]
        every_job = product(joined, (nodes for nodes in sets if len(nodes) > 1))
        yield from (Job(tuple((node, part) for node in nodes), nics=nics) for (part, nics), nodes in every_job)
        if self.nodes == 2 and every[1:]:
            # No third node tells which end it is, but another port at one of them does.
            yield from (Job(((0, (gpu,)), (1, (every[gpu - 1],)))) for gpu in every)

    @cached_property
    def choices(self) -> list[Job]:
        """Those of `runs` whose GPUs are two or more, and joined.

        They are on all hosts that lacked something in a slow run.
        """
        found, named = list[Job](), {node for one in self.seen if one.line.behind for node, _ in one.told}
        for run in (run for run in self.runs() if named <= dict(run.gpus).keys()):
            with suppress(InfeasibleError):
                if sum(len(gpus) for _, gpus in run.gpus) > 1 and self.expected(run):
                    found.append(run)
        return found

    def expected(self, job: Job) -> Expected:
        """What a healthy machine takes for a run; the same for runs on GPUs that its symmetries exchange."""
        local, nics = self.faults.placed(job.gpus, job.nics)
        return self.faults.projection(local, job.collective, SIZE, nics=nics)

    def next_run(self) -> Job | None:
        """The run that tells most, of several the one on most nodes; None if no run tells anything.

        By itself, or half of what it and a run on others tell beside each other. One whose times are far apart comes
        first: nothing is told before it is steady.
        """
        if self.unsteady[1]:
            return self.unsteady[1]
        # What is found may not be all.
        asked = self.doubled if self.pairs is None and self.healthy < _ALARM else self.settled
        if asked is not self:
            return asked.next_run()
        known = {one.job for one in self.seen}
        told = {job: self.informs(job) for job in self.choices if job not in known}
        for alike in grouped(((job.collective, self.kind(job)), job) for job in self.choices).values():
            for job in told.keys() & {*alike}:
                spots = {*job.gpus}
                if other := next((one for one in alike if spots.isdisjoint(one.gpus)), None):
                    told[job] = max(told[job], self.informs(job, other) / 2)
        best = max(told, key=lambda job: (round(told[job], 6), len(job.gpus)), default=None)
        return best if best is not None and told[best] > _WORTH else None


def _halves(items: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Both halves by every binary digit of the place, which together name each one."""
    digits = product(range((len(items) - 1).bit_length()), (0, 1))
    found = [tuple(x for place, x in enumerate(items) if place >> digit & 1 == half) for digit, half in digits]
    return [half for half in found if 1 < len(half) < len(items)]


@dataclass(frozen=True)
class _Rig:
    """The machine, its nodes, and the names of their hosts, as logs have them."""

    faults: Faults
    whole: Question
    hosts: dict[str, int]
    buses: dict[str, int]
    adapters: dict[str, str]

    @classmethod
    def of(cls, whole: Question, hosts: Sequence[str], tests: Sequence[Run], multicast: bool) -> _Rig:
        """Of the hosts that are given, in their order, or of the tests; raises `InputError` for others.

        And for edits of single nodes: a fault is compared with one node, of which all others are copies.
        """
        if whole.nodes > 1 and (own := re.search(r"\bn[0-9[][^ .]*\.\S*", " ".join(whole.edits))):
            raise InputError(f"locate's edits are of every node, and {own[0]} is on some; leave it out: logs show it")
        listed = [place.host for run in tests if not run.group for place in run.places]
        known = list(dict.fromkeys((*(host.strip() for host in hosts), *listed)))
        if hosts and len(known) > len(hosts):
            raise InputError(f"host {known[len(hosts)]} is not among hosts={','.join(hosts)}")
        if len(known) > whole.nodes:
            raise InputError(f"the logs come from {len(known)} hosts ({names(known)}); give nodes={len(known)}")
        if len({value for run in tests for name, value in run.launch.settings if name == NVLS}) > 1:
            raise InputError(f"the logs are of runs with and without NVLS ({NVLS}); give those of one kind")
        asked = cast("Hashable", whole.machine), whole.nodes > 1, whole.edits, Ran.of(tests, multicast)
        faults = _faults(*asked)
        numbers, buses = {host: node for node, host in enumerate(known)}, _buses(tests, faults.gpus)
        adapters, said = _adapters(tests, faults), (words for _, words, _ in lacking(tests, whole.whole()))
        return cls(_faults(*asked, faults.lost(said, adapters)), whole, numbers, buses, adapters)

    def spots(self, run: Run, given: Names | None) -> list[tuple[int, int]]:
        """Node and GPU of each rank: those given, else those that the head of the log lists, else all."""
        gpus, nodes, places = self.faults.gpus, self.whole.nodes, run.places
        if given is not None:
            whole = self.whole.whole()
            members = Question.of(self.whole.machine, nodes=nodes, members=given).member_names(whole)
            return [divmod(whole.members.index(name), gpus) for name in members]
        if run.group and places:
            return [divmod(place.device, gpus) for place in places]
        if places and len(places) == run.ranks:
            return [(self.hosts[one.host], self.buses.get(one.busid, one.device)) for one in places]
        if run.ranks == gpus * nodes:
            return [divmod(rank, gpus) for rank in range(gpus * nodes)]
        raise InputError(f"{run.path}: does not list its {run.ranks} GPUs; name them behind it, as in log.txt@0,1")

    def job(self, run: Run, given: Names | None) -> Job:
        """The job of a run; raises `InputError` for one that failed, and GPUs that the machine does not have."""
        if run.spoilt:
            why = names([run.spoilt, *(said for *_, said in lacking([run], self.whole.whole()))], "; ", 4)
            raise InputError(f"{run.path}: {why}; its times locate nothing, run the test again")
        if run.collective in ROOTED:
            raise InputError(f"{run.path}: is of a {run.collective}, whose root counts; take one without")
        spots, gpus, nodes = self.spots(run, given), self.faults.gpus, self.whole.nodes
        if run.ranks not in (0, len(spots)):
            raise InputError(f"{run.path}: has {run.ranks} ranks, and {len(spots)} GPUs are named")
        if len(spots) < 2:
            raise InputError(f"{run.path}: ran on one GPU, which shows nothing of links")
        if not {*spots} <= {divmod(rank, gpus) for rank in range(gpus * nodes)} or len({*spots}) < len(spots):
            there = f"{self.faults.node.name} has {count(gpus, 'GPU')} a node and {count(nodes, 'node')}"
            cure = "give nodes=, or name the GPUs behind the log, as in log.txt@0,1"
            raise InputError(f"{run.path}: its devices are not those of this machine ({there}); {cure}")
        local = tuple((node, tuple(sorted(own))) for node, own in sorted(grouped(spots).items()))
        return Job(local, Collective(run.collective), self.nics(run) if len(local) > 1 else ())

    def nics(self, run: Run) -> tuple[str, ...]:
        """The adapters that a run was told to take, by their names in the machine; none for all.

        As NCCL reads ``NCCL_IB_HCA``: ``^`` for all but these, ``=`` for whole names, a port behind a colon.
        """
        own, text, exact = self.faults.nics, run.adapters.lstrip("^="), "=" in run.adapters[:2]
        found = set[str]()
        for name in (item.partition(":")[0].strip() for item in text.split(",") if own and item):
            known = {nic for at, nic in self.adapters.items() if at == name or (at.startswith(name) and not exact)}
            if not known:
                cure = f"name those of the machine behind the log, as in log.txt:hca={own[0]}"
                took = f"took adapter {name}, and a node has {names(list(self.adapters))}"
                raise InputError(f"{run.path}: {took}; {cure}")
            found |= known
        chosen = tuple(nic for nic in own if (nic in found) != run.adapters.startswith("^"))
        return chosen if len(chosen) < len(own) else ()

    def seen(self, run: Run, given: Names | None) -> Seen:
        """A run beside what a healthy machine takes; of its sizes the largest three within a factor of 16."""
        job = self.job(run, given)
        # Adapters that the run was told to leave out are no fault.
        own = replace(run, hcas=()) if job.nics else run
        local, nics = self.faults.placed(job.gpus, job.nics)
        found = judged([own], self.faults.expectation(local, job.collective, nics=nics))
        lines = [one for one in found.lines if found.largest.size / 16 <= one.size <= found.largest.size][-3:]
        # The middle of the interval: longer times than the expected one may be usual.
        usual = found.largest.expected
        ratio = math.log(usual.time_s / math.sqrt(usual.low_s * usual.high_s) / median(one.of_model for one in lines))
        lacks = ((self.hosts[host], words) for host, words in found.lacks if host in self.hosts)
        told = ((node, self.faults.named_by(words, self.adapters)) for node, words in lacks)
        # In a job most calls wait for a rank, or share the GPU with other kernels.
        alike = () if run.group else tuple(row for row in run.rows if row.size >= lines[0].size)
        return Seen(run.path, job, found.largest, ratio, found, tuple(told), alike)

    def command(self, job: Job, sizes: str = _SIZES) -> str:
        """The run as a command of nccl-tests."""
        node = self.faults.node
        visible, launch = VISIBLE[node.device(node.members[0]).library.upper()], self.faults.ran.launch
        known = {node: shlex.quote(host) for host, node in self.hosts.items()}
        test = f"{PROGRAMS.get(job.collective.name, job.collective.name)}_perf {sizes}"
        if self.whole.nodes == 1:
            [(_, gpus)] = job.gpus
            if not launch.options or launch.each > 1:
                launch = launch._replace(options=f"-g {len(gpus)}", each=len(gpus))
            return launch.command(test, len(gpus), 1, {visible: ",".join(map(str, gpus))})
        settings, called = dict(launch.settings), {nic: name for name, nic in self.adapters.items()}
        # Which adapters a run takes is its own.
        settings.pop(chosen := chosen_by(node)[0], "")
        settings |= {chosen: ",".join(called[nic] for nic in job.nics)} if job.nics else {}
        taken = "".join(f"-x {name}={shlex.quote(value)} " for name, value in settings.items())
        named = ((gpus, f"{known.get(node, f'n{node}')}:{len(gpus)}") for node, gpus in job.gpus)
        parts = list[str]()
        for gpus, hosts in grouped(named).items():
            ranks = f"-H {','.join(hosts)} -np {len(hosts) * len(gpus)}"
            parts.append(f"{ranks} -x {visible}={','.join(map(str, gpus))} {taken}{test} -g 1")
        return f"mpirun {' : '.join(parts)}"


def _adapters(runs: Sequence[Run], faults: Faults) -> dict[str, str]:
    """The adapters of a node in the machine, by what they are called: in the logs, if these together name all."""
    given = (item.partition(":")[0].strip() for run in runs for item in run.adapters.lstrip("^=").split(",") if item)
    named, own = sorted({*given} - {*faults.nics}, key=lambda name: (len(name), name)), faults.nics
    if len(named) != len(own):
        stem = chosen_by(faults.node)[1]
        named = [f"{stem}{number}" if stem else name for number, name in enumerate(own)]
    return {name: name for name in own} | dict(zip(named, own, strict=True))


def _buses(runs: Sequence[Run], gpus: int) -> dict[str, int]:
    """The number of each GPU in its node by its PCI address; empty where the logs together do not show it.

    Numbers of devices are those that ``CUDA_VISIBLE_DEVICES`` leaves; nodes are alike.
    """
    every = dict[str, int]()
    for run in runs:
        for host in {place.host for place in run.places}:
            table = {place.busid: place.device for place in run.places if place.host == host and place.busid}
            if len(table) == gpus:
                return table
            every |= table
    if len(every) == gpus:
        return {bus: number for number, bus in enumerate(sorted(every))}
    cards = {(place.host, place.device): place.busid for run in runs for place in run.places}
    if any(cards[place.host, place.device] != place.busid for run in runs for place in run.places):
        named = f"the logs name {len(every)} GPUs, and the machine has {gpus}"
        cure = "add a log of all, name them behind each (log.txt@4,5), or give the machine's own topo.xml"
        raise InputError(f"CUDA_VISIBLE_DEVICES gave GPUs other numbers, by PCI addresses; {named}: {cure}")
    return {}


def locate(
    machine: MachineLike,
    logs: Sequence[str | os.PathLike[str] | Run] = (),
    *,
    nodes: int = 1,
    hosts: Sequence[str] = (),
    collective: CollectiveLike = "",
    edits: str | Sequence[str] = (),
    multicast: bool = True,
    next_run: bool = False,
    plan: bool = False,
) -> Located:
    """Find the device or link whose fault explains several logs of nccl-tests, each on other GPUs.

    Parameters
    ----------
    machine : str, path or Topology
        One node, as for `load`; what it is when nothing is wrong.
    logs : sequence of str, path or Run
        Logs of pairs, groups, nodes or several nodes. The heads name hosts and GPUs; GPUs may also be named
        behind a path, as in ``log.txt@0,1``, and behind these the adapters of a run on some: ``log.txt:hca=nic0``.
    nodes : int
        Nodes of the cluster, at most those that `hosts` names.
    hosts : sequence of str
        The names of the nodes in their order. Default: in the order of the logs.
    collective : str or Collective
        Which tests to take. Default: all.
    edits : str or sequence of str
        What the machine has that the catalogue's has not, as for `load`, such as a fabric of leaves.
    multicast : bool
        True if NCCL may use NVLS, unless a log says ``NCCL_NVLS_ENABLE=0``.
    next_run : bool
        Also the run of nccl-tests that tells most about what is open.
    plan : bool
        Also the runs that clear a machine of which nothing is known, ten at most.

    Returns
    -------
    Located
        The faults, the likeliest first, which of them cannot be told apart, and the run to do next.

    Raises
    ------
    InputError
        For a log whose GPUs are unknown or not those of the machine, for one without NCCL or RCCL, and as
        `load` does.
    FileError
        For a file that is no log.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.locate("hgx-h100", plan=True)
    >>> len(found.plan) <= 10, found.status
    (True, 0)
    """
    many = max(whole(nodes, "nodes"), len(hosts))
    wanted = Collective.of(collective).name if collective else ""
    runs = list(chain.from_iterable(_read(log, wanted) for log in logs))
    if logs and not runs:
        raise InputError(f"the logs hold no test of {collective}")
    rig = _Rig.of(Question.of(machine, nodes=many, edits=edits), hosts, [run for run, _ in runs], multicast)
    faults = rig.faults
    if (library := faults.node.device(faults.node.members[0]).library.upper()) not in VISIBLE:
        cure = "blinksim diagnose says what may be slow, and what to measure next"
        raise InputError(f"locate knows NCCL and RCCL, and {faults.node.name} runs {library.lower()}; {cure}")
    seen = [rig.seen(run, given) for run, given in runs]
    single = Suspicion(faults, many, seen)
    suspicion = single.settled
    apart, again = suspicion.unsteady
    more = suspicion.next_run() if next_run else again
    command = rig.command(more) if more else ""
    if odd := single.odd:
        size = odd.found.last_odd
        command = rig.command(odd.job, f"-b {size} -e {size} -f 2")
    # What to measure again, as `diagnose` says: an unfinished run before others, single sizes after them.
    single_sizes = filter(attrgetter("found.again"), seen * next_run * (not command))
    if short := [*filter(attrgetter("found.unfinished"), seen), *single_sizes]:
        command = dict(short[0].found.to_do()).get("again", command)
    found = suspicion.candidates()
    likely = {(one.kind.name, one.place): one for one in reversed([*chain(*found)])}
    return Located(
        faults.node.name, many, faults.gpus, tuple(seen), tuple(likely.values())[::-1],
        suspicion.healthy if seen else 0.5, 1 / max(1e-6, suspicion.by_chance(-1)),
        command, tuple(rig.command(job) for job in _plan(single)) if plan else (),
        suspicion.explained, tuple(rig.hosts), () if suspicion is single else tuple(found), apart,
        f"{odd.path}: {format_size(odd.found.last_odd)}" if odd else "", faults.ran.multicast, library,
    )  # fmt: skip


def _read(log: str | os.PathLike[str] | Run, wanted: str) -> list[tuple[Run, str | None]]:
    """The tests of a log, each with the GPUs that ``log.txt@0,1`` names, on the adapters of ``log.txt:hca=nic0``."""
    members, taken = None, ""
    if isinstance(log, Run):
        found: Sequence[Run] = (log,)
    else:
        path = os.fspath(log)
        if not os.path.exists(path):
            path, _, taken = path.partition(":hca=")
        if not os.path.exists(path) and "@" in path:
            path, _, members = path.rpartition("@")
        found = [replace(run, adapters=taken or run.adapters) for run in read_runs(path)]
    runs = [run for run in found if not wanted or run.collective in ("", wanted)]
    return [(one, members) for run in runs for one in select([run], wanted)]


def _plan(suspicion: Suspicion) -> Iterator[Job]:
    """The runs of which each tells most where those before show nothing wrong, ten at most."""
    seen = suspicion.seen
    for _ in range(MOST_RUNS):
        if (job := Suspicion(suspicion.faults, suspicion.nodes, seen).next_run()) is None:
            return
        yield job
        ranks = sum(len(gpus) for _, gpus in job.gpus)
        healthy = figure(job.collective, ranks, SIZE, None, suspicion.expected(job).time_s)
        local, nics = suspicion.faults.placed(job.gpus, job.nics)
        found = judged([healthy], suspicion.faults.expectation(local, job.collective, nics=nics))
        seen += (Seen("", job, found.largest, 0.0, found),)
