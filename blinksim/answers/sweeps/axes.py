"""What a sweep varies: axes as text, and the cases that they span.

A case is one combination of values: a full factorial design, as in Montgomery, Design and Analysis of Experiments,
chapter 5. A case holds a question, which is text until it is asked, so that a case can travel to another machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

from blinksim.errors import InputError, unknown
from blinksim.question import Question
from blinksim.topology.edits import VERBS
from blinksim.topology.selection import NONE
from blinksim.units import parse_rate, parse_time

SETTINGS = ("nodes", "ranks-per-node", "members", "relays", "links", "rates", "edit")
PROPERTIES = ("bandwidth", "latency", "lanes", "overhead")
# Values of these hold commas themselves.
_LISTS = frozenset({"members", "relays", "links", "edit"})
_COUNTS = frozenset({"nodes", "ranks-per-node", "lanes"})
MOST_CASES = 100_000
# The value of the axis links that stands for what the machine file says.
_DEFAULT = "default"


@dataclass(frozen=True)
class Axis:
    """One thing that varies, and the values that it takes, as text.

    name: one of `SETTINGS`, or the beginning of an edit up to its last property (``xe bandwidth``, which replaces;
    ``degrade gpu0-gpu3 lanes``; ``add gpu0-gpu5 nvlink lanes``).
    """

    name: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        words = self.name.split()
        if not words:
            raise InputError("nothing named before the =; write what varies like 'nodes=1,2,4'")
        if len(words) == 1 and words[0] not in SETTINGS:
            hint = "(or a property of links, as in 'xe bandwidth=15GB/s,53GB/s')"
            raise unknown("thing to vary", self.name, SETTINGS, hint=hint)
        if len(words) > 1 and words[-1] not in PROPERTIES:
            hint = "(whole edits vary with 'edit=…;…')"
            raise unknown(f"property of links in {self.name!r}:", words[-1], PROPERTIES, hint=hint)
        if not self.values or not all(self.values):
            raise InputError(f"{self.name}: a value is missing; write them like '{_example(self.name)}'")
        for value in self.values:
            self.number(value)
        doubled = [value for value, times in Counter(self.values).items() if times > 1]
        if doubled:
            raise InputError(f"{self.name} takes the value {doubled[0]} twice")

    @classmethod
    def parse(cls, text: str) -> Axis:
        """``nodes=1,2,4``, ``xe bandwidth=15GB/s,53GB/s``, ``edit=none;without gpu0-gpu3``.

        Values are separated by commas; those of members, relays, links and edit, which have commas of their own, by
        semicolons. Raises `InputError` for anything else.
        """
        name, given, rest = text.partition("=")
        if not given:
            example = "'nodes=1,2,4' or 'xe bandwidth=15GB/s,53GB/s'"
            raise InputError(f"{text!r} names no values; write it like {example}")
        key = _key(name)
        return cls(key, tuple(value.strip() for value in rest.split(";" if key in _LISTS else ",")))

    @classmethod
    def of(cls, name: str, values: Iterable[object]) -> Axis:
        """From Python values: counts, bandwidths in bytes/s, times in seconds, lists of names, or text."""
        key = _key(name)
        return cls(key, tuple(_text(key, value) for value in values))

    @property
    def column(self) -> str:
        """The name of the column, with the unit of its numbers."""
        words = self.name.split()
        if len(words) == 1:
            return self.name.replace("-", "_")
        units = {"bandwidth": "_GBps", "latency": "_s", "overhead": "_s"}
        verb = f"{words[0]}_" if words[0] == "add" else ""
        return verb + "_".join(words[words[0] in VERBS :]) + units.get(words[-1], "")

    def number(self, value: str) -> int | float | str:
        """What the column holds for a value: a number in the column's unit, or the text; raises `InputError`."""
        kind = self.name.split()[-1]
        if kind in _COUNTS:
            if not (re.fullmatch("[0-9]{1,18}", value) and 1 <= int(value) <= 10**6):
                raise InputError(f"'{self.name}={value:.40}': give whole numbers of at least 1, at most 1,000,000")
            return int(value)
        if kind == "bandwidth":
            return float(parse_rate(value) / 10**9)
        if kind in ("latency", "overhead"):
            return parse_time(value)
        return value

    def apply(self, case: Case, value: str) -> Case:
        """`case` with this value, and its column."""
        labels = (*case.labels, (self.column, self.number(value)))
        return Case(self._changed(case.question, value), labels)

    def _changed(self, question: Question, value: str) -> Question:
        words = self.name.split()
        if len(words) > 1:
            verb = [] if words[0] in VERBS else ["replace"]
            return replace(question, edits=(*question.edits, f"{' '.join([*verb, *words])}={value}"))
        if self.name == "edit":
            return question if value == NONE else replace(question, edits=(*question.edits, value))
        changed: dict[str, Any] = {self.name.replace("-", "_"): int(value) if self.name in _COUNTS else value}
        if self.name == "links" and value == _DEFAULT:
            changed["links"] = None
        return replace(question, **changed)


def _key(name: str) -> str:
    words = name.split()
    return words[0].replace("_", "-") if len(words) == 1 else " ".join(words)


def _example(name: str) -> str:
    """What one may type for values of this name."""
    if name == "edit":
        return f"{name}=none;without gpu0-gpu3"
    if name in _LISTS:
        return f"{name}=a;b"
    kind = name.split()[-1]
    values = {"bandwidth": "15GB/s,53GB/s", "latency": "1us,2us", "overhead": "1us,2us"}
    return f"{name}={'1,2,4' if kind in _COUNTS else values.get(kind, 'a,b')}"


def _text(name: str, value: object) -> str:
    kind = name.split()[-1] if name else ""
    if isinstance(value, (int, float, Fraction)) and kind == "bandwidth":
        return f"{float(value) / 1e9:.15g}GB/s"
    if isinstance(value, (int, float)) and kind in ("latency", "overhead"):
        return f"{value:.15g}s"
    if isinstance(value, str) or not isinstance(value, Iterable):
        return NONE if value is None else str(value)
    return ",".join(map(str, value))


@dataclass(frozen=True)
class Case:
    """One combination: the question that it asks, and the columns of the axes with their values (`labels`)."""

    question: Question
    labels: tuple[tuple[str, int | float | str], ...] = ()


def axes(vary: Mapping[str, Iterable[object]] | Sequence[str | Axis] | str) -> tuple[Axis, ...]:
    """Axes from text, from a mapping of names to values, or as they are; raises `InputError` if one is named twice."""
    if isinstance(vary, Mapping):
        found = tuple(Axis.of(name, values) for name, values in vary.items())
    else:
        found = tuple(
            entry if isinstance(entry, Axis) else Axis.parse(entry)
            for entry in ([vary] if isinstance(vary, str) else vary)
        )
    columns = [axis.column for axis in found]
    for column in columns:
        if columns.count(column) > 1:
            raise InputError(f"{column} varies twice; give all its values at once")
    return found


def expand(base: Question, along: Sequence[Axis]) -> list[Case]:
    """Every combination of the values of the axes applied to `base`, the last axis fastest."""
    count = 1
    for axis in along:
        count *= len(axis.values)
    if count > MOST_CASES:
        raise InputError(f"{count:,} cases are too many for one sweep (at most {MOST_CASES:,})")
    cases = []
    for values in product(*(axis.values for axis in along)):
        case = Case(base)
        for axis, value in zip(along, values, strict=True):
            case = axis.apply(case, value)
        cases.append(case)
    return cases
