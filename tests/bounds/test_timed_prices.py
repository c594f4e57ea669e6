"""What the theorem on timed prices says a byte costs, against trees of messages drawn at random."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

import blinksim as bs
from blinksim.bounds.time.link_prices import TimedPrices, _least, _priced

PRICES = TimedPrices.choices
KIB = 2**10


@given(st.integers(3, 9), st.integers(1, 3), st.integers(0, 9), st.integers(1, 30), st.integers(0, 2**32))
def test_no_tree_of_loads_costs_less(n: int, ports: int, overhead: int, latency: int, seed: int) -> None:
    """Ranks that have the byte start messages at any time, one after another on a link, of any length."""
    rng, time, steps = random.Random(seed), 1000, 23
    data = rng.choice((5, 40, 1000))
    step = -(-time // steps)
    root, other = _priced(time - latency, step, PRICES, steps)
    least = _least(n, ports, root, other, step, (overhead, latency, overhead + data))
    spent = {
        own: np.concatenate((np.zeros((len(PRICES), 1)), np.cumsum(price, axis=1)), axis=1) * step
        for own, price in ((True, root), (False, other))
    }

    def until(own: bool, moment: float) -> np.ndarray:
        return np.array([np.interp(moment, np.arange(steps + 1) * step, row) for row in spent[own]])

    # Of every link: whether it is the root's, and from when on it is free.
    links, cost = [(True, 0.0)] * ports, np.zeros(len(PRICES))
    for _ in range(n - 1):
        place = min(range(len(links)), key=lambda one: links[one][1] + rng.random() * 100)
        own, free = links[place]
        start = free + rng.choice((0.0, rng.random() * 50))
        end = start + overhead + min(data, rng.choice((1e-3, 1.0, 10.0, 100.0)) * rng.uniform(0.1, 1.0) * 3)
        cost += (until(own, end) - until(own, start)) / (end - start - overhead)
        links[place] = own, end
        links += [(False, end + latency)] * ports
        if end + latency > time:
            return
    assert np.all(cost >= least * (1 - 1e-9))


@pytest.mark.parametrize("ports", [1, 2])
def test_one_message(ports: int) -> None:
    """To one other rank the root sends one message: at the best moment, about, and never cheaper."""
    time, overhead, latency, steps = 10_000, 400, 50, 250
    root, other = _priced(time - latency, 40, PRICES, steps)
    least = _least(2, ports, root, other, 40, (overhead, latency, time))
    marks = np.concatenate((np.zeros((len(PRICES), 1)), np.cumsum(root, axis=1)), axis=1) * 40
    for row, found in zip(marks, least, strict=True):
        exact = min((row[b] - row[a]) / (40 * (b - a) - overhead) for a in range(248) for b in range(a + 11, 249))
        assert found <= exact * (1 + 1e-9)
        assert found >= 0.9 * exact


@pytest.mark.parametrize(
    ("machine", "name", "sizes"),
    [
        ("hgx-h200", "broadcast", (512 * KIB, 640 * KIB, 768 * KIB)),
        ("hgx-h200", "broadcast", (7168 * KIB, 8192 * KIB)),
        ("hgx-h200", "allreduce", (96 * KIB, 112 * KIB)),
        ("l40s-pcie", "broadcast", (40 * KIB, 48 * KIB)),
    ],
)
def test_more_bytes_have_no_lower_bound(machine: str, name: str, sizes: tuple[int, ...]) -> None:
    """With all its messages made smaller by one factor, a schedule for more bytes is one for fewer, and no slower."""
    found = [bs.time_bound(machine, name, size) for size in sizes]
    assert all(less.time_s <= more.time_s for less, more in pairwise(found))
    assert all(one.best.check(one.topology, one.collective, one.size) == [] for one in found)
