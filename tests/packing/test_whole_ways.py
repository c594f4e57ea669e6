"""Whole parts in their best order: against all ways to do it on three ranks, one after another."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from blinksim.packing.choose import Limits
from blinksim.packing.rounds import Sums, Trees
from blinksim.packing.undivided_messages import best_order
from blinksim.packing.wires import Use, Wires

# Nothing, a sum, a copy.
IDLE, ADD, COPY = range(3)
STEPS = 2


@st.composite
def lines(draw: st.DrawFn, relays: bool) -> Wires:
    """Three ranks in a line, and, if wanted, routes between the first and the last, through the middle."""
    src, dst = np.array([0, 1, 1, 2, 0, 2]), np.array([1, 0, 2, 1, 2, 0])
    parts = (0,), (1,), (2,), (3,), (0, 2), (3, 1)
    tenths = st.integers(0, 30).map(lambda value: value / 10)
    overhead, latency, whole = (np.array([draw(tenths) for _ in range(4)]) for _ in range(3))
    count = 6 if relays else 4
    uses: list[tuple[Use, ...]] = [(Use(link, 0.0, 0.0, overhead[link], whole[link]),) for link in range(4)]
    for a, b in parts[4:]:
        lag = max(0.0, whole[a] - whole[b])
        later = Use(b, overhead[a] + latency[a], lag, 0.0, whole[b])
        uses.append((Use(a, 0.0, 0.0, overhead[a], whole[a]), later))
    return Wires(
        3,
        parts[:count],
        tuple(uses[:count]),
        src[:count],
        dst[:count],
        np.array([overhead[route[0]] for route in parts[:count]]),
        np.array([sum(latency[link] for link in route) for route in parts[:count]]),
        np.array([max(whole[link] for link in route) for route in parts[:count]]),
    )


def seconds(wires: Wires, chosen: tuple[tuple[int, ...], ...], start: list[int]) -> float | None:
    """When the last message of a way arrives; None if it is wrong, or two messages are on one link in one step."""
    has, there, end = list(start), [0.0] * 3, 0.0
    free = dict.fromkeys(range(4), 0.0)
    for kinds in chosen:
        before, ready, written = list(has), list(there), dict[int, int]()
        busy: list[int] = []
        for wire, kind in enumerate(kinds):
            if kind == IDLE:
                continue
            a, b = int(wires.src[wire]), int(wires.dst[wire])
            busy += [use.link for use in wires.uses[wire]]
            clash = b in written and COPY in (kind, written[b])
            if not before[a] or clash or (kind == ADD and has[b] & before[a]) or (kind == COPY and before[a] != 7):
                return None
            written[b] = kind
            has[b] = has[b] | before[a]
            begun = max([ready[a], *(free[use.link] - use.offset - use.lag for use in wires.uses[wire])])
            for use in wires.uses[wire]:
                free[use.link] = begun + use.offset + use.lag + use.hold + use.whole
            arrival = begun + float(wires.overhead[wire] + wires.latency[wire] + wires.whole[wire])
            there[b], end = max(there[b], arrival), max(end, arrival)
        if len({*busy}) < len(busy):
            return None
    return end if has == [7, 7, 7] else None


@settings(max_examples=6, deadline=None)
@given(st.data(), st.booleans())
def test_no_way_is_quicker(data: st.DataObject, adds: bool) -> None:
    # An allreduce has too many ways over routes of two links.
    wires = data.draw(lines(relays=not adds))
    start = [1, 2, 4] if adds else [7, 0, 0]
    count = len(wires.routes)
    kinds = (IDLE, ADD, COPY) if adds else (IDLE, COPY)
    found = [seconds(wires, chosen, start) for chosen in product(product(kinds, repeat=count), repeat=STEPS)]
    due = min(one for one in found if one is not None)
    pricing = Sums(wires) if adds else Trees([(0, -1)], 1.0)
    best, _ = best_order(wires, pricing, 1, STEPS, due + 1.0, Limits(seed=1))
    assert best is not None
    assert best.microseconds == pytest.approx(due, abs=0.01)
    assert best_order(wires, pricing, 1, STEPS, due - 0.01, Limits(seed=1))[0] is None
