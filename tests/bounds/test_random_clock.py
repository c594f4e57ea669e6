"""What the theorem on a random clock says a link may earn, against sequences of messages drawn at random."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from blinksim.bounds.time.link_prices import _best_sequences

PARTS = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8)


@given(st.integers(3, 9), st.floats(0, 0.9), st.floats(0.05, 1), PARTS, st.lists(st.booleans(), min_size=8, max_size=8))
def test_no_sequence_of_messages_earns_more(
    n: int, first: float, wide: float, parts: list[float], passing: list[bool]
) -> None:
    time, overhead, latency = 10.0, 0.4, 0.3
    start, end = first * time, first * time + wide * time

    def over(moment: float) -> float:
        return min(1.0, max(0.0, (moment - start) / (end - start)))

    root, other = _best_sequences(np.array([time]), n, overhead, latency, np.array([[start, end]]), 23)
    now, mine, theirs = 0.0, 0.0, 0.0
    for part, through in zip(parts, passing, strict=False):
        length = part / sum(parts) * (time - latency)
        data = max(0.0, length - overhead)
        mine += length * over(now) if through else data * (1 + (n - 2) * (1 - over(now + length + latency)))
        theirs += data * over(now)
        now += length
    assert mine <= root[0] * (1 + 1e-12)
    assert theirs <= other[0] * (1 + 1e-12)
