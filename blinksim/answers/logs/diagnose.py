"""Diagnosis of measured bandwidth: times of nccl-tests beside what the library takes, and the bound.

Sizes at which latency is most of the time say nothing about links; of the others, the first from which the
measurement stays above the interval of what is expected is named, with its cause or the link class that limits.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from blinksim.answers.expect import Expectations
from blinksim.answers.logs.expectation import Expectation, Expected, Ran, check_ranks, members_of, other_gpus, read_runs
from blinksim.answers.logs.faults import EVERY, TYPICAL, FaultClass, classes, sort_of
from blinksim.answers.measurements.public import grouped
from blinksim.bounds.bound_result import Bound
from blinksim.collective import Collective, CollectiveLike, busbw_factor
from blinksim.errors import InputError
from blinksim.machines import MachineLike, as_topology, at_nominal, at_rates
from blinksim.nccl.tests_log import Channels, Row, Run, lacking, select
from blinksim.results import Rates, Result, keyed, names
from blinksim.timing.measured.public_tables import SetUpName
from blinksim.timing.projection_result import guesses, rates_of
from blinksim.topology.graph import Topology
from blinksim.units import format_rate, format_size, format_time, in_GBps, parse_rate, parse_time, size_of, sizes_of

_SHOWN_FROM, _AGAIN = 2**20, 2**23
# What a run of sizes that say nothing of bandwidth goes on to: the largest that `expect` has.
_ENOUGH = 2**30
_VERSION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}")
# What a share is of, where a job's log says its steps.
STEPS = "the steps"
# A number as nccl-tests prints it.
_PLAIN = re.compile(r"-?[0-9]{1,12}(\.[0-9]{0,12})?")
# After so many steps an explaining rate is near, if there is one; how near it explains a time, and a rate
# far below.
_TRIES, _EXPLAINS, _FAR = 8, 0.03, 1000
# Tolerance for another explanation.
_NEAR = 0.12
# What a time differs by from another one of the same rig, as a standard deviation, from a size on. From 512
# KiB on: nine in ten of 865 published times of 64 MiB and more are within 2.5 % of those of half and twice
# the size. Below: of 400 pairs of published times of bytes and halves, which allgathers and alltoalls move
# alike, nine in ten are within 7.9 %, and below 32 KiB 15 %; of 440 pairs from 512 KiB on 1.9 %.
NOISE = ((2**19, 0.015), (2**15, 0.034), (0, 0.064))
# Sizes down to this share of the largest are large, and alike whose shares of what is expected differ by
# no more.
_LARGE, _EVEN = 1 / 16, 1.2
Given = float | str | None
"""A quantity as people give it: a number, or text with a unit."""


# The worst exit status of several logs first.
STATUSES = 1, 5, 0


class Verdict(NamedTuple):
    """What is said of a log: the exit status, and why in words.

    status: 1 if something is wrong, 5 if nobody can tell, else 0. weighed: by the rate.
    """

    status: int
    words: str
    weighed: bool = True


@dataclass(frozen=True, slots=True)
class Line(Rates):
    """One size. time_s: measured, the median where it was measured more often; wrong: elements that were wrong.

    took: the algorithm and protocol that NCCL says it took, where the log has that.
    apart: the longest time over the shortest, of tests that repeat it. many: how many times there are.
    """

    size: int
    time_s: float
    expected: Expected
    wrong: float
    took: str = ""
    apart: float = 1.0
    many: int = 1

    @property
    def algbw(self) -> float:
        """Bytes/s."""
        return self.size / self.time_s

    @property
    def of_model(self) -> float:
        """Measured over expected bandwidth."""
        return self.expected.time_s / self.time_s

    @property
    def latency_bound(self) -> bool:
        """True if half of the time or more is expected to be latency."""
        return self.expected.latency_s >= 0.5 * self.expected.time_s

    @property
    def behind(self) -> bool:
        """True if it takes longer than eight in ten published times allow for, by more than noise."""
        noise = next(share for size, share in NOISE if self.size >= size)
        return self.time_s > (1 + noise) * self.expected.high_s


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """A test of nccl-tests beside what is expected, and the bound.

    Attributes
    ----------
    part : Topology
        The part of the machine that the test ran on.
    collective : Collective
        What was tested.
    lines : tuple of Line
        What was measured and expected, by size, ascending.
    expectation : Expectation
        The model.
    bound : Bound
        What no run exceeds; for switches that add unless `multicast` said that they may not.
    complete : bool
        The log has its last lines.
    ended : str
        What the log ends with beside them or in their place, such as an error; empty where it says nothing.
    stated : bool
        A single figure in place of a log.
    strange : str
        Which GPUs the log names, if they are of another model than the machine's; else empty.
    otherwise : tuple of str
        What NCCL did otherwise than its model expects on this machine, as the log says, and what that costs.
    lacks : tuple of (str, str)
        Hosts, and what NCCL says that they lack.
    failed : str
        The line in which nccl-tests says that the run failed, or the launcher that it died; else empty.
    most : int
        The bytes that the run was to end at; 0 if the log does not say.
    spoilt : str
        In words, why the times say nothing: data were wrong, or the run failed.
    unfinished : bool
        A test ended, without a failure, before the last of the sizes that it was to measure.
    shown : dict
        What the log shows that excludes causes, as the table of faults names it; and how many times as long every
        size takes, if all do alike.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("log.txt").write_text('''# Collective test starting: all_reduce_perf
    ... #      size      count   type  redop  root     time   algbw   busbw  #wrong
    ... #       (B)                                    (us)  (GB/s)  (GB/s)
    ...       16384       4096  float    sum    -1    17.73    0.92    1.62       0
    ...    16777216    4194304  float    sum    -1   121.13  138.51  242.39       0
    ...  1073741824  268435456  float    sum    -1  5227.44  205.40  359.46       0
    ... ''')
    >>> import blinksim as bs
    >>> found = bs.diagnose("log.txt", "hgx-h200", multicast=False)
    >>> round(found.largest.algbw_GBps), found.first_behind is None
    (205, True)
    """

    part: Topology
    collective: Collective
    lines: tuple[Line, ...]
    expectation: Expectation
    bound: Bound
    complete: bool
    stated: bool = False
    strange: str = ""
    ended: str = ""
    otherwise: tuple[str, ...] = ()
    lacks: tuple[tuple[str, str], ...] = ()
    failed: str = ""
    most: int = 0
    spoilt: str = ""
    unfinished: bool = False
    shown: Mapping[str, float] = field(default_factory=dict)

    @property
    def largest(self) -> Line:
        """The largest size that is not odd."""
        return self.lines[-1 - (self.last_odd > 0)]

    @property
    def factor(self) -> Fraction:
        """busbw / algbw."""
        return busbw_factor(self.collective.name, self.part.ranks)

    @property
    def wrong(self) -> list[Line]:
        """Sizes at which data were wrong; old releases print a largest error, small where all is well."""
        return [line for line in self.lines if line.wrong >= 1]

    @property
    def judged(self) -> list[Line]:
        """Sizes that bandwidth decides, and any size of which a figure is stated; none of other GPUs."""
        return [line for line in self.lines if not self.strange and (self.stated or not line.latency_bound)]

    @property
    def stretches(self) -> list[list[Line]]:
        """Judged sizes that are behind, those together that follow each other."""
        return [[*same] for behind, same in groupby(self.judged, attrgetter("behind")) if behind]

    @property
    def first_behind(self) -> Line | None:
        """The first size from which all that are judged are behind; None if the largest is not."""
        return self.stretches[-1][0] if self.largest in self.judged and self.largest.behind else None

    @cached_property
    def odd(self) -> list[Line]:
        """Single sizes that are behind, though the next larger one is not, nor the next smaller one.

        Sizes that latency decides where both of these are nearer to what is expected by a typical fault, as what they
        take differs more from rig to rig. And the largest, if it was measured once, far from the one before it.
        """
        every = [*zip(self.lines, self.lines[1:], self.lines[2:], strict=False)] * (not self.strange)
        alone = [(x, min(a.of_model, b.of_model)) for a, x, b in every if x.behind and not (a.behind or b.behind)]
        single = [same[0] for same in self.stretches if len(same) == 1]
        found = [x for x, beside in alone if (beside > TYPICAL * x.of_model if x.latency_bound else x in single)]
        *before, last = self.judged or self.lines[-1:]
        far = before[1:] and last.behind and last.many == 1 and before[-1].of_model > _EVEN * last.of_model
        return [*found, last] if far and not any(line.behind for line in before) else found

    @property
    def last_odd(self) -> int:
        """The largest size, if that is odd, so that nobody knows whether it is slow; else 0."""
        return self.lines[-1].size * (self.lines[-1] in self.odd)

    @property
    def again(self) -> list[str]:
        """Sizes to be measured again, and why: single ones that are behind, and times far apart."""
        why = {x.size: f"up to {x.apart:.3g} times apart" for x in self.judged if x.apart**2 > TYPICAL}
        why |= {x.size: "alone behind" for x in self.odd}
        return [f"{format_size(size)} {what}" for size, what in why.items()]

    @property
    def behind_before(self) -> str:
        """The sizes that are behind although the largest is not, but for odd ones; empty without any."""
        less = [] if self.first_behind else [x for x in chain(*self.stretches) if x not in self.odd]
        return " to ".join(dict.fromkeys(format_size(x.size) for x in (*less[:1], *less[-1:])))

    @property
    def small_times(self) -> str:
        """Small sizes that take too long, in words, and what to check; empty if half of them do not."""
        small = [line for line in self.lines if line.latency_bound and not (self.stated or self.strange)]
        slow = [line for line in small if line.behind]
        # Where larger ones are behind, the first line says from which size on.
        if self.first_behind is not None or len(slow) < max(1, len(small) // 2):
            return ""
        size, took, usual = format_size(slow[0].size), *map(format_time, (slow[0].time_s, slow[0].expected.time_s))
        check = "how calls are launched (graph, stream or threads), hosts' load (top) and NUMA nodes (numactl -s)"
        return f"small sizes ({took} at {size}, where {usual} is expected), so not the links: {check}"

    def of_bound(self, line: Line) -> float:
        """The least time of any schedule at this size as a share of the measured one."""
        return line.expected.least_s / line.time_s

    @property
    def impossible(self) -> bool:
        """True if the log is faster than the bound, by more than its digits; it refutes guessed rates."""
        return max(self.of_bound(line) for line in self.lines) > 1.02

    def status(self, *, weighed: bool = True) -> int:
        """That of the verdict; weighed: False where a threshold says what rate is too low."""
        return self.verdict.status if weighed or not self.verdict.weighed else 5 * self.unfinished

    @property
    def as_expected(self) -> bool:
        """True if nothing is wrong, behind, ahead of what others took, or such that nobody can tell."""
        fitted = self.expectation.takes.question.rates is not None
        return self.status() == 0 and (fitted or self.largest.time_s >= self.largest.expected.low_s)

    def apart(self) -> list[Line]:
        """The largest size and smaller ones down to 1 MiB, in steps of 4; all, if none is as large.

        And small ones that take too long, and both ends of what is behind, which the sentence names.
        """
        ends, found = [self.largest, *self.odd], list[Line]()
        ends += [same[end] for same in self.stretches for end in (0, -1)]
        for line in reversed(self.lines):
            shown = line.size >= _SHOWN_FROM or (self.small_times and line.behind)
            if not found or line in ends or (shown and line.size <= found[-1].size / 4):
                found.append(line)
        return found[::-1] if self.largest.size >= _SHOWN_FROM else list(self.lines)

    @cached_property
    def lane(self) -> tuple[float, float, str, float] | None:
        """Bytes/s of a lane of the limiting class, as measured and as in the machine, and such a lane.

        As an edit of the machine the first gives the measured time again, but where `unlike` says otherwise.
        The rates are not those of NCCL's model. Last the time by that edit; the measured one if that is not behind.
        """
        kind = self.expectation.rings.limits[0]
        rates = {link.lane_bandwidth for link in self.part.links if link.kind == kind}
        if len(rates) != 1 or self.largest.latency_bound:
            return None
        rate, line, latency = float(rates.pop()), self.largest, self.largest.expected.latency_s
        # By the time per byte and that of the model, both without latency.
        seen, time_s = rate * (line.expected.time_s - latency) / max(1e-9, line.time_s - latency), line.time_s
        slow, quick = (seen / _FAR, line.time_s * _FAR), (rate, line.expected.time_s)
        for _ in range(_TRIES * (self.first_behind is not None)):
            # The library may find other rings then, and not all of its time comes from links.
            seen = slow[0] * (quick[0] / slow[0]) ** math.log(slow[1] / line.time_s, slow[1] / quick[1])
            edited = at_rates(self.expectation.whole, self.part.rates).edit(f"degrade {kind} bandwidth={seen:.9g}B/s")
            time_s = replace(self.expectation, whole=edited).taken(line.size).time_s
            if math.isclose(time_s, line.time_s, rel_tol=_EXPLAINS / 3):
                break
            slow, quick = ((seen, time_s), quick) if time_s > line.time_s else (slow, (seen, time_s))
        one = ("link", "lane")[any(link.lanes > 1 for link in self.part.links if link.kind == kind)]
        return seen, rate, f"{one} of class {kind}", time_s

    @cached_property
    def unlike(self) -> str:
        """The time with links at the rate of `lane`; empty where it is within 3 % of the measured one."""
        lane, measured_s = self.lane, self.largest.time_s
        return "" if lane is None or math.isclose(lane[-1], measured_s, rel_tol=_EXPLAINS) else format_time(lane[-1])

    @property
    def resembles(self) -> str:
        """What else would take as long, where it takes longer than expected; empty if none is known."""
        stay = self.stretches[-1] if self.first_behind else []
        lines = stay or [self.largest] * (self.largest in self.judged and self.largest.of_model < 1 - _NEAR)
        apart = defaultdict[str, list[float]](list)
        for line in lines:
            for words, time in self.expectation.others(line.size).items():
                if not line.took or "NCCL_ALGO" not in words or words.lower().startswith(f"{line.took} ("):
                    apart[words].append(abs(math.log(line.time_s / time)))
        best = min(apart, key=lambda words: median(apart[words]), default="")
        fits = best and median(apart[best]) < _NEAR and len(apart[best]) == len(lines)
        if not fits and stay and self.lane is not None:
            # By the rate in all, as links may explain a thin share of the time.
            words, share = self.expectation.detour
            return words if self.largest.of_model < share else ""
        # Another algorithm of NCCL is as quick as many faults: none is said if all is normal, or NCCL tells.
        return best if fits and (stay * (not self.otherwise) or "NCCL_ALGO" not in best) else ""

    @property
    def sure(self) -> bool:
        """True if what it resembles is far from what slow links do; other algorithms of NCCL are not."""
        return self.resembles != "" and "NCCL_ALGO" not in self.resembles

    def spares(self, kind: FaultClass) -> bool:
        """True of a class of fault that slows none of the links of the classes which limit."""
        device, limits = self.part.device, self.expectation.rings.limits
        ends = ((device(link.src), device(link.dst)) for link in self.part.links if link.kind in limits)
        return {sort_of(*both) for both in ends}.isdisjoint(kind.slow)

    @cached_property
    def causes(self) -> list[tuple[FaultClass, str]]:
        """Faults that NCCL names, with its words, and those of all GPUs where all large sizes are as slow."""
        line, library = self.largest, self.expectation.takes.library.lower()
        shares = [x.of_model for x in self.judged if x.size >= _LARGE * line.size]
        # Nor is one of them asked for where all is normal but for what NCCL names.
        sound = any((self.verdict.words.startswith("normal"), self.sure, self.stated, line.of_model > 1 - _NEAR))
        even = not sound and max(shares, default=1) < _EVEN * min(shares, default=0)
        slow, found = even or "every size" in self.shown, list[tuple[FaultClass, str]]()
        for one in classes(library, tuple(self.part.link_classes)):
            said = [words for words in self.otherwise if one.told and re.search(one.told, words)]
            if said or (slow and one.at == EVERY and self.shown.keys().isdisjoint(one.unless)):
                found.append((one, names(said, "; ", 4)))
        return found

    def to_do(self) -> list[tuple[str, str]]:
        """What to check, by labels, and the run that measures again."""
        found = [(("could be", "check")[say != ""], f"{say or one.words}: {one.check}") for one, say in self.causes]
        alike = not all(said for _, said in self.causes)
        with suppress(InputError):
            # Sizes grow at least twofold, and one that failed, was wrong or odd is to be reached, by
            # doubling.
            largest, small = self.lines[-1].size, not any((self.judged, self.strange, self.failed))
            most = max(largest, self.most or largest << bool(self.failed), _ENOUGH * small)
            reached = min((one.size for one in (*self.wrong, *self.odd)), default=most)
            least = self.lines[0].size if self.small_times else min(_AGAIN, largest, reached)
            down, up = (max(1, many).bit_length() - 1 for many in (reached // least, most // reached))
            if any((alike, self.again, self.failed, self.small_times, small, self.wrong, self.unfinished)):
                of, sizes = self.expectation.takes, sizes_of(f"{reached >> down}:{reached << up}:x2")
                takes, launch = tuple(of.times(of.machine, self.collective, sizes)), self.expectation.ran.launch
                found.append(("again", Expectations(takes).nccl_tests(launch, NCCL_DEBUG="INFO").strip()))
        return found

    def calls(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Calls of a job's log in all: seconds measured, expected, at the bound, and above expectation."""
        usual = {line.size: line.expected for line in self.lines}
        rows = [row for run in runs for row in run.rows if row.size]
        taken = [(row.time_s, usual[row.size].time_s, usual[row.size].least_s) for row in rows]
        measured, expected, bound = map(sum, zip(*taken, strict=True))
        above = sum(max(0.0, time_s - expected_s) for time_s, expected_s, _ in taken)
        found = {"group": runs[0].group, "collective": self.collective.name, "ranks": self.part.ranks}
        found |= {"calls": len(taken), "time_s": measured, "expected_s": expected, "bound_s": bound}
        whole, of = (runs[0].step_s, STEPS) if runs[0].step_s else (measured, "the time of these calls")
        verdict = "faster than can be" if self.impossible else "slow" if self.first_behind else ""
        found |= {"above_s": above, "above_share": above / whole, "of": of, "of_s": whole, "verdict": verdict}
        return found | ({"waited_s": runs[0].waited_s, "late": runs[0].late} if runs[0].late else {})

    @cached_property
    def verdict(self) -> Verdict:
        """What every command says of this log, and the status that it gives: the first that holds.

        Nobody can tell of sizes that a run did not come to or that are odd, nor from what another machine was
        measured at, nor where NCCL says that a host lacks what others have, though that does not show.
        """
        line, first, source = self.largest, self.first_behind, ("log", "figure or its size")[self.stated]
        ended = ("the run ended early", "after its last row")[self.complete]
        ended += f", before {format_size(self.most)}; run it again" * self.unfinished
        early = f"; {ended}: {self.ended[:160]}" * (self.ended not in ("", self.failed))
        if self.spoilt:
            return Verdict(1, f"{self.spoilt}{early}", weighed=False)
        if self.strange:
            return Verdict(5, f"not judged, as {self.strange}{early}", weighed=False)
        if self.impossible:
            most = max(self.lines, key=self.of_bound)
            why = f"faster than this machine can be, so the {source} comes from another one"
            why = "faster than guessed rates allow, so these are too low" if guesses(rates_of(self.part)) else why
            why += f": {format_time(most.time_s)} at {format_size(most.size)}, and nothing takes less than "
            return Verdict(5, f"{why}{format_time(most.expected.least_s)}{early}", weighed=False)
        if line not in self.judged:
            why = f"up to {format_size(line.size)} latency decides, so it says nothing about bandwidth"
            return Verdict(5, f"{why}{early}")
        ends = (line.expected.high_s, line.expected.low_s)
        usual = " to ".join(f"{in_GBps(line.size / end * self.factor):.3g}" for end in ends)
        reached = f"{format_rate(line.algbw * self.factor)} busbw at {format_size(line.size)}, "
        reached += f"{100 * line.of_model:.0f} % of expected ({usual}), {100 * self.of_bound(line):.0f} % of the bound"
        # All hosts, and of other channels those of one family.
        says = re.split("; (?:tree|nvls): ", "; ".join(self.otherwise))[0]
        reached += f", {('and', 'though')[first is None]} {self.expectation.takes.library} says: {says}" * bool(says)
        reached += f"; {names(self.again, ', ', 4)}, measure again" * bool(self.again) + early
        if first is not None:
            by = ("on", "and not alone by slow")[self.unlike != ""]
            why = f"as with {self.resembles}" if self.sure else f"{by} {' or '.join(self.expectation.rings.limits)}"
            if alike := self.shown.get("every size"):
                why = f"as every size takes about {alike:.2g} times as long"
            since = (f"behind from {format_size(first.size)} on", "slow")[self.stated]
            return Verdict(1, f"{since}, {'latency decides' if line.latency_bound else why}: {reached}")
        if self.behind_before:
            return Verdict(1, f"behind at {self.behind_before}, and not at the largest size: {reached}")
        unsure = "the largest size is alone behind" * (self.last_odd > 0)
        if line.of_model**2 * TYPICAL < 1:
            unsure = unsure or "nearer to half of what is expected, and within its wide interval"
        if unsure:
            return Verdict(5, f"cannot tell, {unsure}: {reached}")
        status = 5 * bool(self.lacks or self.unfinished)
        if line.time_s < line.expected.low_s:
            fits = f", so the {source} may come from another machine" * (self.expectation.takes.question.rates is None)
            return Verdict(status, f"faster than expected{fits}: {reached}")
        small = " as far as it got" * self.unfinished + " but for small sizes" * bool(self.small_times)
        small += " but for what a host lacks" * bool(self.lacks)
        return Verdict(status, f"normal{small}, {reached}" + f"; {self.resembles} would look the same" * self.sure)

    def sentence(self) -> str:
        """The answer in one line."""
        return f"{self.collective.name} on {self.part.taking_part}: {self.verdict.words}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per size, with units in the keys."""
        rates = {"model_rates": self.expectation.rings.topology.rates, "bound_rates": self.part.rates}
        rows = list[dict[str, Any]]()
        for line in self.lines:
            most = {"bound_algbw_GBps": in_GBps(line.size / line.expected.least_s)}
            most["model_algbw_GBps"] = in_GBps(line.size / line.expected.time_s)
            shares = {"percent_of_model": 100 * line.of_model, "percent_of_bound": 100 * self.of_bound(line)}
            busbw = in_GBps(line.algbw * float(self.factor))
            rows.append(keyed(line, "@Diagnosis.rows", busbw_GBps=busbw, **most, **shares, **rates))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        lane, line = self.lane, self.largest
        published = {"source": line.expected.origin, "compared_size_bytes": line.size}
        published["percent_of_published"] = 100 * line.of_model
        seen, usual = map(in_GBps, lane[:2]) if lane else (None, None)
        said: dict[str, Any] = {"lane_GBps": None if self.sure or self.unlike else seen}
        said |= {"model_lane_GBps": usual, "bound_words": self.bound.certificate.words(self.part)}
        said |= {"published": published if line.expected.basis in ("measured", "between") else None}
        said |= {"link_class": self.expectation.rings.limits[0], "rows": self.rows()}
        said |= {"to_do": [{"label": label, "words": words} for label, words in self.to_do()]}
        said |= {"odd_size_bytes": [line.size for line in self.odd], "busbw_factor_exact": str(self.factor)}
        return keyed(self, "@Diagnosis", ended_early="" if self.complete else self.ended, **said)


def diagnose(
    runs: Run | Sequence[Run] | os.PathLike[str] | str | None,
    part: MachineLike,
    machine: MachineLike | None = None,
    *,
    collective: CollectiveLike = "allreduce",
    size: int | float | str | None = None,
    busbw: float | str | None = None,
    time: float | str | None = None,
    in_place: bool = False,
    multicast: bool = True,
    rates: str | None = None,
    version: str = "",
    set_up: SetUpName | None = None,
) -> Diagnosis:
    """Compare tests of one collective, or a single figure, with the expected rate of the machine.

    Parameters
    ----------
    runs : str, path, Run or sequence of Run, optional
        The path of a log of nccl-tests that holds tests of one collective, or such tests
        (`blinksim.nccl.tests_log`). None for a figure: `size` with `busbw` or `time`.
    part : str, path or Topology
        The selected part that they ran on, or a whole machine, of which the log says the members. The bound is
        at its nominal rates, or those of a file that was not fitted to times.
    machine : str, path or Topology, optional
        The whole machine, for NCCL's model. Default: `part`.
    collective : str or Collective
        What the figure was measured of.
    size : int or str
        Bytes of the figure, or text such as ``"8GiB"``.
    busbw : float or str
        The figure, as nccl-tests prints it, in GB/s, or text such as ``"380GB/s"``.
    time : float or str
        The figure in seconds, or text such as ``"40ms"``.
    in_place : bool
        Take the times in place, where there are both.
    multicast : bool
        True if NCCL may use NVLS, unless the log says ``NCCL_NVLS_ENABLE=0``.
    rates : str, optional
        The table of rates of NCCL's model. Default: the one that the machine was loaded at by name, else
        ``nccl`` where it has that.
    version : str
        The version of NCCL that ran, such as ``2.30.7``. Default: what the log says, if it does.
    set_up : str, optional
        How calls were launched: ``graph``, ``stream`` or ``threads``. Default: what the log says, else ``graph``.

    Returns
    -------
    Diagnosis
        Every size beside model and bound, the first size that stays behind, and the link class that limits
        there.

    Raises
    ------
    InputError
        For a log without usable rows, of several collectives, or of another number of ranks, and for a figure
        that lacks its size.
    InfeasibleError
        If the links do not connect the members.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("log.txt").write_text('''# Collective test starting: all_reduce_perf
    ... #      size      count   type  redop  root     time   algbw   busbw  #wrong
    ... #       (B)                                    (us)  (GB/s)  (GB/s)
    ...       16384       4096  float    sum    -1    17.73    0.92    1.62       0
    ...    16777216    4194304  float    sum    -1   121.13  138.51  242.39       0
    ...  1073741824  268435456  float    sum    -1  5227.44  205.40  359.46       0
    ... ''')
    >>> import blinksim as bs
    >>> print(bs.diagnose("log.txt", "hgx-h200", multicast=False).sentence())
    allreduce on 8 GPUs of hgx-h200: normal, 359.5 GB/s busbw at 1 GiB, 101 % of expected (343 to 380), 80 % ...
    >>> bs.diagnose(None, "hgx-h200", size="1GiB", busbw=300).first_behind is None
    False
    """
    stated = runs is None
    if runs is None:
        runs = figure(Collective.of(collective), as_topology(part).selected().ranks, size, busbw, time)
    if isinstance(runs, str | os.PathLike):
        runs = select(read_runs(runs))
    given = [runs] if isinstance(runs, Run) else list(runs)
    first = given[0]
    asked, whole = (as_topology(one) for one in (part, part if machine is None else machine))
    # Of a whole machine the members that the log names.
    chosen = at_nominal(asked if asked.selected() is asked else asked.select(members_of(first, asked)))
    for run in given:
        check_ranks(run, chosen)
    tested = Collective(first.collective, max(0, first.rows[0].root))
    if version and not _VERSION.fullmatch(version):
        raise InputError(f"{version!r} is no version of NCCL; give one such as 2.28.3")
    expectation = Expectation(chosen, whole, tested, Ran.of(given, multicast, version, set_up), rates)
    return judged(given, expectation, in_place, stated)


def judged(runs: Sequence[Run], expectation: Expectation, in_place: bool = False, stated: bool = False) -> Diagnosis:
    """Tests of one collective beside what is expected: the one verdict of their log, for all commands."""
    if not (lines := tuple(lines_of(runs, in_place, expectation.taken))):
        raise InputError(f"{runs[0].path}: has no size above 0")
    part, tested = expectation.part, expectation.collective
    cut = min(runs, key=lambda run: (not run.failed, run.complete, not run.ended))
    told, channels = tuple(lacking(runs, part)), tuple(_other_channels(runs, expectation))
    lacks = tuple((host, words) for hosts, words, _ in told for host in hosts)
    otherwise = *(said for *_, said in told), *channels
    more = other_gpus(runs[0], expectation.whole), cut.ended, otherwise, lacks, cut.failed, cut.most
    spoilt = "; ".join(dict.fromkeys(run.spoilt for run in runs if run.spoilt))
    ended = [run for run in runs if not (run.complete or run.failed)]
    early = any(run.most >= 2 * max(row.size for row in run.rows) for run in ended)
    shown = shown_by(runs, part.nodes, lines, dict(lacks))
    shown |= {"its channels": 1.0} if any(run.channels for run in runs) and not channels else {}
    best = expectation.bounds.holding(part.in_network if expectation.ran.multicast else ())
    return Diagnosis(part, tested, lines, expectation, best, cut.complete, stated, *more, spoilt, early, shown)


def shown_by(runs: Sequence[Run], nodes: int, lines: Sequence[Line], without: Mapping[str, str]) -> dict[str, float]:
    """`Diagnosis.shown` of runs; without: hosts that lack something."""
    # As slow where latency decides as elsewhere, nearer to that than to what slow links make of the rest.
    slower = 1 / median(line.of_model for line in lines if not line.latency_bound or line is lines[-1])
    small = [(line.of_model, line.expected.latency_s / line.expected.time_s) for line in lines if line.latency_bound]
    told = [slower * (slower + (1 - slower) * latency) * share**2 < 1 for share, latency in small]
    alike = lines[-1].behind and all(line.of_model < 1 - _NEAR for line in lines) and 2 * sum(told) > len(told)
    whole = {host for run in runs for host, _ in run.hcas if host not in without}
    found: dict[str, float] = {"a benchmark": not runs[0].group, "a power of 2": nodes.bit_count() == 1}
    found |= {"all adapters": len(whole) == nodes, "GPUDirect RDMA": any(run.direct for run in runs)}
    found |= {"one node": nodes == 1, "every size": alike and slower, "a whole host": bool(whole)}
    return {words: float(much) for words, much in found.items() if much}


def lines_of(runs: Sequence[Run], in_place: bool, taken: Callable[[int], Expected]) -> Iterator[Line]:
    """Every size of the runs beside what is expected, ascending."""
    size_of_row, took = attrgetter("size"), dict(pair for run in runs for pair in run.took)
    every = sorted((row for run in runs for row in run.rows if row.size), key=size_of_row)
    for size, rows in grouped(every, size_of_row):
        wrong = max(row.wrong or 0.0 for row in rows)
        times = sorted(row.time_s for row in [row for row in rows if row.in_place == in_place] or rows)
        # In a job most calls wait for a rank, or share the GPU with other kernels.
        time_s = times[len(times) // 4] if runs[0].group else median(times)
        apart = 1.0 if runs[0].group else times[-1] / times[0]
        yield Line(size, time_s, taken(size), wrong, took.get(size, ""), apart, len(times))


def _other_channels(runs: Sequence[Run], expectation: Expectation) -> Iterator[str]:
    """What NCCL's search found, as logs say, where its model finds other channels."""
    predicted, nodes = expectation.prediction, expectation.part.nodes
    for family, found in dict.fromkeys(pair for run in runs for pair in run.channels):
        if graph := getattr(predicted, family, None):
            ends = in_GBps(graph.bw_intra), in_GBps(graph.bw_inter)
            usual = Channels(graph.nchannels, *ends, f"{graph.type_intra}/{graph.type_inter}")
            (carried, told), (most, model) = found.at(nodes), usual.at(nodes)
            if most and told != model:
                yield f"{family}: {told}, expected {model}: {100 * carried / most:.0f} % of the bandwidth"


def figure(collective: Collective, ranks: int, size: Given, busbw: Given, time: Given) -> Run:
    """A single figure as a run; see `diagnose`."""
    if size is None or (busbw is None) == (time is None):
        raise InputError("give a log, or a figure: size= with busbw= or time=, such as size='8GiB' with busbw='380'")
    count = size_of(size)
    if time is None:
        plain = not isinstance(busbw, str) or _PLAIN.fullmatch(busbw)
        rate = parse_rate(f"{busbw}GB/s" if plain else str(busbw))
        time_s = count * float(busbw_factor(collective.name, ranks) / rate)
    else:
        time_s = parse_time(time) if isinstance(time, str) else float(time)
    if not 0 < time_s < math.inf:
        raise InputError(f"{time} is no measured time; it must be above 0")
    row = Row(count, 0, "", "none", collective.root, False, time_s, count / time_s, 0.0, None, 0)
    return Run("the figure", collective.name, ranks, (row,))
