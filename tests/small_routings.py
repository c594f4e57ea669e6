"""Routings of few tokens, each written as where it comes from and the ranks that want it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

import blinksim as bs

Tokens = list[tuple[int, frozenset[int]]]
"""Where every token comes from, and the ranks that want it."""


def routing_of(ranks: int, tokens: Tokens, size: int = 100) -> bs.Routing:
    """Every rank holds one expert, its own."""
    own = [[sorted(wanted) for source, wanted in tokens if source == rank] for rank in range(ranks)]
    most, widest = max(map(len, own)), max(len(wanted) for rows in own for wanted in rows)
    ids = np.full((ranks, most, widest), -1)
    for rank, rows in enumerate(own):
        for place, wanted in enumerate(rows):
            ids[rank, place, : len(wanted)] = wanted
    return bs.Routing(ids, ranks, token_size=size)


def all_routings(ranks: int, tokens: int) -> Iterator[Tokens]:
    sets = [frozenset(found) for size in range(1, ranks + 1) for found in combinations(range(ranks), size)]
    for chosen in product(sets, repeat=tokens):
        if any(wanted - {token % ranks} for token, wanted in enumerate(chosen)):
            yield [(token % ranks, wanted) for token, wanted in enumerate(chosen)]
