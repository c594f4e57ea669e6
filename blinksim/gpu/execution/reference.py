"""Reference results: what a collective must leave on every rank, without schedule, chunks or program.

Inputs are pseudo-random tables whose length is prime, repeated along the vector: element i of rank r is
table[r][i mod period]. Sums and products are therefore known for a vector of any size from one pass over the
tables, and no two chunks look alike. Floating-point results may differ from the exact value by ranks *
epsilon * sum(|x|) (each of at most `ranks` roundings is half a unit of the last place of a partial sum; the
bound of Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2, with a factor of two to
spare); min and max are exact. The product is bounded likewise, relative to itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from blinksim.collective import OWN, ROOT, Collective
from blinksim.gpu.programs.dtypes import Array, ElementType, fold, narrow, widen
from blinksim.traffic import Routing, block_bounds, class_bounds

PERIOD = 1_048_583  # prime
Span = tuple[int, int, int]
ALL = -1


def input_spans(collective: Collective, ranks: int, rank: int, count: int) -> list[tuple[int, int]]:
    """The parts of the vector that a rank starts with, in order: (first, last + 1) element."""
    if collective.routing is not None:
        spans = token_spans(collective.routing, rank, count)[collective.starts != OWN]
        return [(start, stop) for _, start, stop in spans]
    if collective.traffic is not None:
        return [(0, block_bounds(collective.traffic, count)[rank][-1])]
    if collective.starts == OWN and not collective.exchanges:
        return [(rank * count // ranks, (rank + 1) * count // ranks)]
    return [(0, 0) if collective.starts == ROOT and rank != collective.root else (0, count)]


def token_spans(routing: Routing, rank: int, count: int) -> tuple[list[Span], list[Span]]:
    """The classes of tokens that a rank has, and those that it is sent: (the class, first, last + 1).

    Elements are counted in what all ranks have together.
    """
    bounds, classes = class_bounds(routing, count), routing.classes
    mine, sent = classes.own == rank, classes.holds[classes.which, rank]
    own, others = ([(c, bounds[c], bounds[c + 1]) for c in np.flatnonzero(some).tolist()] for some in (mine, sent))
    return own, others


def output_spans(
    collective: Collective, ranks: int, rank: int, count: int
) -> list[Span] | list[tuple[tuple[int, ...], int, int]]:
    """What a rank ends with, in order: (rank it comes from or `ALL` for the reduction of all, first, last + 1).

    In a combine, with the ranks whose data are reduced.
    """
    if (routing := collective.routing) is not None:
        classes, (own, sent) = routing.classes, token_spans(routing, rank, count)
        if collective.starts == OWN:
            return [(int(classes.own[c]), start, stop) for c, start, stop in sent]
        held = classes.holds[classes.which]
        return [(tuple(np.flatnonzero(held[c]).tolist()), start, stop) for c, start, stop in own]
    parts = [(other * count // ranks, (other + 1) * count // ranks) for other in range(ranks)]
    if collective.traffic is not None:
        rows = block_bounds(collective.traffic, count)
        return [(other, row[rank], row[rank + 1]) for other, row in enumerate(rows)]
    if collective.exchanges:
        return [(other, *parts[rank]) for other in range(ranks)]
    if collective.ends == ROOT and rank != collective.root:
        return []
    if collective.starts == OWN:
        return [(other, *part) for other, part in enumerate(parts)]
    source = ALL if collective.reduces else collective.root
    return [(source, *parts[rank])] if collective.ends == OWN else [(source, 0, count)]


@dataclass(frozen=True)
class Reference:
    """Inputs and expected outputs of one collective on `ranks` ranks."""

    collective: Collective
    ranks: int
    count: int
    kind: ElementType
    op: str = "sum"
    seed: int = 1

    @cached_property
    def period(self) -> int:
        return max(1, min(PERIOD, self.count))

    @cached_property
    def tables(self) -> tuple[Array, ...]:
        """One table per rank, in storage form: full-range integers; fractions in (-1, 1), for products near 1."""
        made = []
        for rank in range(self.ranks):
            source = np.random.default_rng([self.seed, rank])
            if self.kind.floating:
                low, high = (0.75, 1.25) if self.op == "prod" else (-1.0, 1.0)
                real = source.random(self.period) * (high - low) + low
                computed = np.float64 if self.kind.name == "float64" else np.float32
                made.append(narrow(real.astype(computed), self.kind).astype(self.kind.storage))
            else:
                info = np.iinfo(self.kind.storage)
                table = source.integers(info.min, info.max, self.period, info.dtype, endpoint=True)
                # A product of many even numbers would be 0 whatever was left out.
                made.append(table | info.dtype.type(1) if self.op == "prod" else table)
        return tuple(made)

    def inputs(self, rank: int) -> Array:
        """What a rank starts with, in storage form."""
        spans = input_spans(self.collective, self.ranks, rank, self.count)
        target = np.empty(sum(stop - start for start, stop in spans), dtype=self.kind.storage)
        self.write_inputs(rank, target)
        return target

    def write_inputs(self, rank: int, target: Any, xp: Any = np) -> None:
        """Fills `target`, an array of `xp` (NumPy or CuPy), with what a rank starts with."""
        table, at = xp.asarray(self.tables[rank]), 0
        for start, stop in input_spans(self.collective, self.ranks, rank, self.count):
            for before, part in self._parts(start, stop):
                target[at + before : at + before + part.stop - part.start] = table[part]
            at += stop - start

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, slice]]:
        """Elements start to stop of a vector as parts of a table: (elements before it, the part)."""
        low = start
        while low < stop:
            first = low % self.period
            high = min(stop, low + self.period - first)
            yield low - start, slice(first, first + high - low)
            low = high

    @cached_property
    def reduced(self) -> tuple[Array, Array]:
        """The reduction of all tables, floating types in float64, and how far a result may be from it."""
        return self.reduction(self.tables)

    def reduction(self, tables: Sequence[Array]) -> tuple[Array, Array]:
        """The same of some tables, or of the same part of each."""
        if not self.kind.floating:
            return fold(tables, self.op, self.kind), np.zeros(len(tables[0]))
        wide = [widen(table, self.kind).astype(np.float64) for table in tables]
        exact = fold(wide, self.op, _DOUBLE)
        if self.op in ("min", "max"):
            return exact, np.zeros(len(exact))
        scale = np.abs(exact) if self.op == "prod" else sum(np.abs(table) for table in wide)
        return exact, len(tables) * self.kind.epsilon * np.asarray(scale)

    def compare(self, rank: int, output: Any, xp: Any = np) -> tuple[int, float]:
        """(number of wrong elements, largest error of the others and them) of a rank's output.

        output: its elements in storage form, an array of `xp` (NumPy or CuPy). The error is absolute; it is
        infinite where a floating result is not a number.
        """
        wrong, worst, at = 0, 0.0, 0
        every: Any = ()
        if self.collective.reduces and self.collective.routing is None:
            every = tuple(xp.asarray(part) for part in self.reduced)
        for source, start, stop in output_spans(self.collective, self.ranks, rank, self.count):
            for before, part in self._parts(start, stop):
                got = output[at + before : at + before + part.stop - part.start]
                part = slice(part.start, part.start + int(got.size))
                if isinstance(source, tuple):
                    given = tuple(xp.asarray(a) for a in self.reduction([self.tables[one][part] for one in source]))
                else:
                    given = tuple(a[part] for a in every) if source == ALL else (xp.asarray(self.tables[source][part]),)
                due, summed = given[0], len(given) > 1
                expected = due if summed else widen(due, self.kind).astype(np.float64)
                error = xp.abs(widen(got, self.kind).astype(np.float64) - expected)
                # Written so that a NaN counts as wrong.
                different = ~(error <= given[1]) if summed and self.kind.floating else got != due
                largest = float(error.max()) if error.size else 0.0
                # What is not a number is infinitely wrong.
                wrong, worst = wrong + int(different.sum()), max(worst, largest if largest == largest else math.inf)
            at += stop - start
        return wrong + abs(int(output.size) - at), worst

    @property
    def tolerance(self) -> str:
        """What counts as equal, for people."""
        if not self.kind.floating or not self.collective.reduces or self.op in ("min", "max"):
            return "exact"
        scale = "|product|" if self.op == "prod" else "sum of |x|"
        return f"{self.ranks} * {self.kind.epsilon:.3g} * {scale}"


@dataclass(frozen=True)
class References:
    """As a `Reference`, of several groups that run side by side.

    each: of every group. places: for each of its ranks, the rank among all, and where its input begins and
    how long it is, and its output. inputs_of (rank): elements of all inputs.
    """

    each: tuple[Reference, ...]
    places: Sequence[Sequence[tuple[int, int, int, int, int]]]
    inputs_of: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return len(self.inputs_of)

    @property
    def op(self) -> str:
        return self.each[0].op

    @property
    def tolerance(self) -> str:
        return ", ".join(dict.fromkeys(one.tolerance for one in self.each))

    def _own(self, rank: int) -> Iterator[tuple[Reference, int, tuple[int, int, int, int, int]]]:
        """Of the groups that a rank is in: the reference, the rank there, and its place."""
        for reference, places in zip(self.each, self.places, strict=True):
            yield from ((reference, own, place) for own, place in enumerate(places) if place[0] == rank)

    def inputs(self, rank: int) -> Array:
        """What a rank starts with, in storage form."""
        target = np.zeros(self.inputs_of[rank], dtype=self.each[0].kind.storage)
        self.write_inputs(rank, target)
        return target

    def write_inputs(self, rank: int, target: Any, xp: Any = np) -> None:
        """As `Reference.write_inputs`."""
        for reference, own, (_, at, size, _, _) in self._own(rank):
            reference.write_inputs(own, target[at : at + size], xp)

    def compare(self, rank: int, output: Any, xp: Any = np) -> tuple[int, float]:
        """As `Reference.compare`."""
        found = [one.compare(own, output[at : at + size], xp) for one, own, (*_, at, size) in self._own(rank)]
        return sum(wrong for wrong, _ in found), max((error for _, error in found), default=0.0)


AnyReference = Reference | References


_DOUBLE = ElementType("float64", "float64", 52)
