"""One step for small messages: every rank sends to every other itself, to the far ones first, over balanced routes.

What only passes through a GPU pays no overhead there, so two short messages on each link reach all ranks of a machine
in which every rank is two links away at most.
"""

from __future__ import annotations

from collections import defaultdict

from ortools.sat.python import cp_model

from blinksim.packing.columns.solver_limits import Limits
from blinksim.packing.rounds.wires import Wires

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
    at: dict[Pair, int] = {}
    for wire, ends in enumerate(zip(wires.src.tolist(), wires.dst.tolist(), strict=True)):
        if ends not in at or wires.whole[wire] < wires.whole[at[ends]]:
            at[ends] = wire
    model = cp_model.CpModel()
    starting: dict[int, list[cp_model.IntVar | int]] = defaultdict(list)
    passing: dict[int, list[cp_model.IntVar | int]] = defaultdict(list)
    chosen: dict[Pair, list[tuple[cp_model.IntVar, tuple[int, ...]]]] = {}
    for source, sink in pairs:
        if (source, sink) in at:
            starting[at[source, sink]].append(1)
            passing[at[source, sink]].append(1)
            continue
        ways: list[tuple[cp_model.IntVar, tuple[int, ...]]] = [
            (model.new_bool_var(""), (at[source, middle], at[middle, sink]))
            for middle in range(wires.ranks)
            if (source, middle) in at and (middle, sink) in at
        ]
        if not ways:
            return None
        model.add_exactly_one(way for way, _ in ways)
        chosen[source, sink] = ways
        for way, route in ways:
            starting[route[0]].append(way)
            for wire in route:
                passing[wire].append(way)
    most, through = (model.new_int_var(0, len(pairs), "") for _ in range(2))
    for many, limit in ((starting, most), (passing, through)):
        for entries in many.values():
            model.add(sum(entries) <= limit)
    model.minimize(len(pairs) * most + through)
    solver = Limits(time_limit=_SECONDS, seed=1).solver()
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    far = [(pair, next(route for way, route in ways if solver.value(way))) for pair, ways in chosen.items()]
    return [*far, *((pair, (at[pair],)) for pair in pairs if pair in at)]
