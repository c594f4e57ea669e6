"""What a sweep varies: axes as text, the cases that they span, and the part of the machine that a case runs on.

A case is one combination of values: a full factorial design, as in Montgomery, Design and Analysis of Experiments,
chapter 5. What is constant and what varies is text until a case is run, so that a case can travel to another machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import product
from typing import Any

from blinksim.errors import InputError, unknown
from blinksim.machines import assemble
from blinksim.topology.cluster import place
from blinksim.topology.edits import VERBS
from blinksim.topology.graph import Topology
from blinksim.units import parse_rate, parse_time

SETTINGS = ("nodes", "ranks-per-node", "members", "relays", "links", "rates", "edit")
PROPERTIES = ("bandwidth", "latency", "lanes", "overhead")
# Values of these hold commas themselves.
_LISTS = frozenset({"members", "relays", "links", "edit"})
_COUNTS = frozenset({"nodes", "ranks-per-node", "lanes"})
NONE = "none"
MOST_CASES = 100_000


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
            raise InputError("nothing named before the =; write what varies like nodes=1,2,4")
        if len(words) == 1 and words[0] not in SETTINGS:
            hint = "(or a property of links, as in 'xe bandwidth=15GB/s,53GB/s')"
            raise unknown("thing to vary", self.name, SETTINGS, hint=hint)
        if len(words) > 1 and words[-1] not in PROPERTIES:
            hint = "(whole edits vary with edit=…;…)"
            raise unknown(f"property of links in {self.name!r}:", words[-1], PROPERTIES, hint=hint)
        if not self.values or not all(self.values):
            raise InputError(f"{self.name}: a value is missing; write them like {_example(self.name)}")
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
            example = "nodes=1,2,4 or 'xe bandwidth=15GB/s,53GB/s'"
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
            if not (value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= 10**6):
                raise InputError(f"{self.name}={value}: give whole numbers of at least 1")
            return int(value)
        if kind == "bandwidth":
            return float(parse_rate(value) / 10**9)
        if kind in ("latency", "overhead"):
            return parse_time(value)
        return value

    def apply(self, case: Case, value: str) -> Case:
        """`case` with this value, and its column."""
        labelled = replace(case, labels=(*case.labels, (self.column, self.number(value))))
        words = self.name.split()
        if len(words) > 1:
            verb = [] if words[0] in VERBS else ["replace"]
            return replace(labelled, edits=(*case.edits, f"{' '.join([*verb, *words])}={value}"))
        if self.name == "edit":
            return labelled if value == NONE else replace(labelled, edits=(*case.edits, value))
        changed: dict[str, Any] = {self.name.replace("-", "_"): int(value) if self.name in _COUNTS else value}
        return replace(labelled, **changed)


def _key(name: str) -> str:
    words = name.split()
    return words[0].replace("_", "-") if len(words) == 1 else " ".join(words)


def _example(name: str) -> str:
    return f"{name}=none;without gpu0-gpu3" if name == "edit" else f"{name}=a;b" if name in _LISTS else f"{name}=a,b"


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
    """One combination. labels: the columns of the axes and their values. The rest is as on the command line."""

    labels: tuple[tuple[str, int | float | str], ...] = ()
    nodes: int = 1
    ranks_per_node: int | None = None
    members: str | None = None
    relays: str = NONE
    relays_reduce: bool = False
    links: str | None = None
    rates: str = "nominal"
    edits: tuple[str, ...] = ()

    def settings(self) -> dict[str, Any]:
        """All that decides the answer, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "labels"}

    def whole(self, node: Topology) -> Topology:
        """The machine of the case: `node` edited and replicated. Raises as `blinksim.machines.load` does."""
        return assemble(node, self.nodes, self.edits)

    def select(self, node: Topology) -> Topology:
        """What takes part of it, as `Topology.select` gives it; raises as that does."""
        whole = self.whole(node)
        members = place(whole, self.ranks_per_node)
        if self.members is not None:
            if self.ranks_per_node is not None:
                raise InputError("members and ranks-per-node both say who takes part; give one of them")
            members = self._devices(node, self.members)
        if self.relays == NONE:
            relays: tuple[str, ...] = ()
        elif self.relays == "idle":
            relays = tuple(d.name for d in whole.devices if d.holds and d.name not in members)
        else:
            relays = self._devices(node, self.relays)
        links = None if self.links in (None, "default") else _links(whole, self.links or "")
        return whole.select(members, relays, links, relays_reduce=self.relays_reduce)

    def _devices(self, node: Topology, text: str) -> tuple[str, ...]:
        """Names in a list such as ``0,1,4``, ``0-3`` or ``gpu0,gpu3``; numbers count the GPUs before any edit."""
        inside = [device.name for device in node.devices if device.holds]
        holders = inside if self.nodes == 1 else [f"n{i}.{name}" for i in range(self.nodes) for name in inside]
        chosen: list[str] = []
        for part in (piece.strip() for piece in text.split(",")):
            first, _, last = part.partition("-")
            if not (first.isascii() and first.isdigit()):
                chosen.append(part)
                continue
            low, high = int(first[:9]), int((last or first)[:9]) if (last or first).isdigit() else -1
            if not low <= high < len(holders):
                most = len(holders) - 1
                raise InputError(f"{part}: the machine has GPUs 0 to {most}; write a list like 0,1,4 or 0-3")
            chosen += holders[low : high + 1]
        return tuple(chosen)


def _links(whole: Topology, text: str) -> tuple[str, ...]:
    given = tuple(kind.strip() for kind in text.split(",") if kind.strip())
    return whole.link_classes if given == ("all",) else given


def axes(vary: Mapping[str, Iterable[object]] | Sequence[str | Axis]) -> tuple[Axis, ...]:
    """Axes from text, from a mapping of names to values, or as they are; raises `InputError` if one is named twice."""
    if isinstance(vary, Mapping):
        found = tuple(Axis.of(name, values) for name, values in vary.items())
    else:
        found = tuple(entry if isinstance(entry, Axis) else Axis.parse(entry) for entry in vary)
    columns = [axis.column for axis in found]
    for column in columns:
        if columns.count(column) > 1:
            raise InputError(f"{column} varies twice; give all its values at once")
    return found


def expand(base: Case, along: Sequence[Axis]) -> list[Case]:
    """Every combination of the values of the axes, the last axis fastest."""
    count = 1
    for axis in along:
        count *= len(axis.values)
    if count > MOST_CASES:
        raise InputError(f"{count:,} cases are too many for one sweep (at most {MOST_CASES:,})")
    cases = []
    for values in product(*(axis.values for axis in along)):
        case = base
        for axis, value in zip(along, values, strict=True):
            case = axis.apply(case, value)
        cases.append(case)
    return cases
