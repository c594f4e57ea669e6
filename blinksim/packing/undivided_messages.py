"""Schedules of undivided messages: a single step over balanced routes, or a few steps found by CP-SAT.

Single step: every rank sends to every other, to the far ones first. Passing through a GPU pays no overhead,
so two short messages on each link reach all ranks of a machine in which every rank is at most two links away.

Few steps: every item in one part, or a few equal ones. If latency and overheads count, all depends on who
adds up what before whom. A step is only the order of events of an item at a rank: a message starts when its
own data is there and its links are free, whatever else is under way. A link sends in the order of steps, one
message a step.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from math import ceil

from ortools.sat.python import cp_model

from blinksim.packing.choose import Limits
from blinksim.packing.rounds import Column, Pricing, Solved
from blinksim.packing.wires import Wires

Pair = tuple[int, int]
# Seconds of the search.
_SECONDS = 2.0


def takes(wires: Wires, routes: list[tuple[Pair, tuple[int, ...]]], share: float) -> float:
    """About how many microseconds; a message carries this share of the size."""
    busy, longest = [0.0] * len(wires.src), 0.0
    for _, route in routes:
        delay = float(wires.overhead[route[0]])
        busy[route[0]] += delay
        for wire in route:
            busy[wire] += share * float(wires.whole[wire])
            delay += share * float(wires.whole[wire]) + float(wires.latency[wire])
        longest = max(longest, delay)
    return max(longest, *(time + float(wires.latency[wire]) for wire, time in enumerate(busy)))


def far_first(wires: Wires, pairs: list[Pair]) -> list[tuple[Pair, tuple[int, ...]]] | None:
    """A route of one or two wires for each pair, those of two first; None if there is none for some pair.

    The most messages that start on one wire are as few as possible, then the most that pass one.
    """
    ends, whole = list(zip(wires.src.tolist(), wires.dst.tolist(), strict=True)), wires.whole.tolist()
    # The quickest wire of every pair, the first of equal ones.
    at = {ends[wire]: wire for wire in sorted(range(len(ends)), key=lambda wire: (-whole[wire], -wire))}
    model = cp_model.CpModel()
    starting = defaultdict[int, list[cp_model.IntVar]](list)
    passing = defaultdict[int, list[cp_model.IntVar]](list)
    chosen: dict[Pair, list[tuple[cp_model.IntVar, tuple[int, ...]]]] = {}
    for a, b in pairs:
        over = (middle for middle in range(wires.ranks) if {(a, middle), (middle, b)} <= at.keys())
        routes = [(at[a, b],)] if (a, b) in at else [(at[a, middle], at[middle, b]) for middle in over]
        if not routes:
            return None
        chosen[a, b] = [(model.new_bool_var(""), route) for route in routes]
        model.add_exactly_one(taken for taken, _ in chosen[a, b])
        for taken, route in chosen[a, b]:
            starting[route[0]].append(taken)
            for wire in route:
                passing[wire].append(taken)
    most, through = model.new_int_var(0, len(pairs), ""), model.new_int_var(0, len(pairs), "")
    for many, limit in ((starting, most), (passing, through)):
        for entries in many.values():
            model.add(sum(entries) <= limit)
    model.minimize(len(pairs) * most + through)
    if (solver := Limits(time_limit=_SECONDS, seed=1).solved(model)) is None:
        return None
    found = [(pair, next(route for use, route in some if solver.value(use))) for pair, some in chosen.items()]
    return sorted(found, key=lambda entry: -len(entry[1]))


# A step, and a wire.
Place = tuple[int, int]
# A variable, or a number that is known.
Entry = cp_model.IntVar | int
Table = list[list[Entry]]
# Of an item: which sends there are, and which of them add up what is sent, if any may.
_Sends = tuple[dict[Place, cp_model.IntVar], dict[Place, cp_model.IntVar]]


def best_order(
    wires: Wires, pricing: Pricing, parts: int, steps: int, most: float, limits: Limits
) -> tuple[Solved | None, float]:
    """The best order within so many steps that takes less than `most` microseconds; None if none is found.

    parts: into how many equal ones each item of `pricing` is cut; each has one column. Also returned: how
    much of the effort of `limits` it took.
    """
    given = _Model(wires, pricing, parts, steps, most)
    solver = limits.solver()
    status = solver.solve(given.model)
    spent = float(solver.response_proto.deterministic_time)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, spent
    columns = []
    for item, share, (sends, adds) in zip(given.item, given.shares, given.moves, strict=True):
        sent = sorted(place for place, send in sends.items() if solver.value(send))
        column = Column(item, tuple((*place, place in adds and bool(solver.value(adds[place]))) for place in sent))
        columns.append((column, share))
    return Solved(solver.value(given.end) / 1000, tuple(columns)), spent


def _nanoseconds(microseconds: float) -> int:
    return ceil(microseconds * 1000 - 1e-6)


class _Model:
    """Times are in whole nanoseconds, rounded up."""

    def __init__(self, wires: Wires, pricing: Pricing, parts: int, steps: int, most: float) -> None:
        self.wires, self.steps = wires, steps
        # The item of each part, and its share of the size.
        self.item = [item for item in range(len(pricing.labels)) for _ in range(parts)]
        self.shares = [float(pricing.shares[item]) / parts for item in self.item]
        self.model = cp_model.CpModel()
        self.most = int(most * 1000)
        self.src, self.dst = wires.src.tolist(), wires.dst.tolist()
        self.into = [[wire for wire, to in enumerate(self.dst) if to == rank] for rank in range(wires.ranks)]
        labels = [pricing.labels[item] for item in self.item]
        self.moves = [self._sums() if label == (-1, -1) else self._copies(*label) for label in labels]
        self.end = self._moment()
        self._take_time()
        sends = sum(sum(sends.values()) for sends, _ in self.moves)
        # Of equally quick orders that with fewest sends.
        self.model.minimize(self.end * 1024 + sends)

    def _new(self) -> cp_model.IntVar:
        return self.model.new_bool_var("")

    def _moment(self) -> cp_model.IntVar:
        return self.model.new_int_var(0, self.most, "")

    def _copies(self, root: int, sink: int) -> _Sends:
        """From a rank to another one, or to all (-1)."""
        ranks = range(self.wires.ranks)
        ends = {*ranks} if sink < 0 else {sink}
        places = product(range(self.steps), [wire for wire, b in enumerate(self.dst) if b != root])
        sends = {(step, wire): self._new() for step, wire in places if step or self.src[wire] == root}
        there: list[Entry] = [int(rank == root) for rank in ranks]
        for step in range(self.steps):
            last = step == self.steps - 1
            after: list[Entry] = [1 if rank == root or (last and rank in ends) else self._new() for rank in ranks]
            for rank in ranks:
                came = [wire for wire in self.into[rank] if (step, wire) in sends]
                self.model.add(after[rank] == there[rank] + sum(sends[step, wire] for wire in came))
                for wire in came:
                    self.model.add(sends[step, wire] <= there[self.src[wire]])
            there = after
        return sends, {}

    def _sums(self) -> _Sends:
        """All ranks add it up and get it: what a rank has is what of all ranks is in its sum."""
        ranks, wires = range(self.wires.ranks), range(len(self.src))
        sends: dict[Place, cp_model.IntVar] = {}
        adds: dict[Place, cp_model.IntVar] = {}
        has: list[list[Entry]] = [[int(rank == other) for other in ranks] for rank in ranks]
        for step in range(self.steps):
            last = step == self.steps - 1
            copies = {}
            for wire in wires:
                adds[step, wire], copies[wire], sends[step, wire] = self._new(), self._new(), self._new()
                self.model.add(sends[step, wire] == adds[step, wire] + copies[wire])
                for other in ranks:
                    # Only the whole sum is copied.
                    self.model.add(copies[wire] <= has[self.src[wire]][other])
            after: list[list[Entry]] = [
                [1 if last or rank == other else self._new() for other in ranks] for rank in ranks
            ]
            # What a rank has after the step: no rank's part twice, and a copy alone.
            for rank in ranks:
                copied = sum(copies[wire] for wire in self.into[rank])
                self.model.add(copied <= 1)
                for wire in self.into[rank]:
                    self.model.add(copied + adds[step, wire] <= 1)
                for other in ranks:
                    parts = []
                    for wire in self.into[rank]:
                        known, add = has[self.src[wire]][other], adds[step, wire]
                        if isinstance(known, int):
                            parts += [add] if known else []
                            continue
                        both = self._new()
                        self.model.add_implication(both, add)
                        self.model.add_implication(both, known)
                        self.model.add_bool_or(both, add.negated(), known.negated())
                        parts.append(both)
                    there = has[rank][other] + sum(parts)
                    self.model.add(there <= 1)
                    self.model.add(after[rank][other] <= there + copied)
                    self.model.add(after[rank][other] >= there)
            has = after
        return sends, adds

    def _take_time(self) -> None:
        """Messages start when what they carry is there; each link carries one at a time, in the order of steps."""
        ranks = range(self.wires.ranks)
        links = {use.link for uses in self.wires.uses for use in uses}
        free: dict[int, Entry] = dict.fromkeys(links, 0)
        there: list[list[Entry]] = [[0 for _ in ranks] for _ in self.moves]
        for step in range(self.steps):
            later: dict[int, Entry] = {link: self._moment() for link in links}
            came: list[list[Entry]] = [[self._moment() for _ in ranks] for _ in self.moves]
            for link in links:
                self.model.add(later[link] >= free[link])
            for before, after in zip(there, came, strict=True):
                for rank in ranks:
                    self.model.add(after[rank] >= before[rank])
            sharing: dict[int, list[cp_model.IntVar]] = defaultdict(list)
            for wire in range(len(self.src)):
                if (message := self._message(step, wire, there, came, free, later)) is not None:
                    for use in self.wires.uses[wire]:
                        sharing[use.link].append(message)
            for messages in sharing.values():
                self.model.add_at_most_one(messages)
            free, there = later, came

    def _message(
        self, step: int, wire: int, there: Table, came: Table, free: dict[int, Entry], later: dict[int, Entry]
    ) -> cp_model.IntVar | None:
        """Whether a wire sends a message in a step, of any items; None if it may not.

        there, came: when ranks have each item before and after the step. free, later: when links have sent
        all.
        """
        sent = {item: sends[step, wire] for item, (sends, _) in enumerate(self.moves) if (step, wire) in sends}
        if not sent:
            return None
        model, wires = self.model, self.wires
        start, some = self._moment(), self._new()
        model.add_max_equality(some, list(sent.values()))

        def after(fixed: float, whole: float) -> cp_model.LinearExprT:
            """So many microseconds after its start, and `whole` if it carried the whole size."""
            times = [_nanoseconds(whole * self.shares[part]) for part in sent]
            return start + _nanoseconds(fixed) + cp_model.LinearExpr.weighted_sum([*sent.values()], times)

        end = after(float(wires.overhead[wire] + wires.latency[wire]), float(wires.whole[wire]))
        model.add(self.end >= end).only_enforce_if(some)
        for item, send in sent.items():
            model.add(start >= there[item][self.src[wire]]).only_enforce_if(send)
            model.add(came[item][self.dst[wire]] >= end).only_enforce_if(send)
        for use in wires.uses[wire]:
            model.add(after(use.offset, use.lag) >= free[use.link]).only_enforce_if(some)
            over = after(use.offset + use.hold, use.lag + use.whole)
            model.add(later[use.link] >= over).only_enforce_if(some)
        return some
