"""Routings: the experts of every token and the ranks that hold them, which is what dispatch and combine move.

A dispatch copies every token to all ranks that hold one of its experts; a combine adds up what these made of
it, back where it came from. Copies may be made and sums formed at any GPU on the way: a cut is crossed once
by every token that is wanted on its far side, however many ranks want it there. A replicated expert serves a
token on the token's own rank if it is there, else in its node, else replicas take turns by the token's rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.errors import InputError
from blinksim.traffic import MOST_RANKS, Matrix
from blinksim.units import size_of

MOST_IDS, MOST_EXPERTS = 2**28, 2**15 - 1


class Routing:
    """The experts of every token, and where they are; it never changes, and equal routings are equal.

    Parameters
    ----------
    experts : array_like (ranks, tokens, k)
        Numbers of experts, -1 for none. Every rank has as many rows as the one with the most tokens.
    placement : int or sequence of sequences of int
        The ranks that hold each expert, or the number of experts, which ranks then hold in equal blocks.
    token_size : int or str
        Bytes of a token. The default is 7,168 elements in 16 bits.
    ranks_per_node : int
        Ranks whose replicas are near each other.

    Raises
    ------
    InputError
        For anything but whole numbers of known experts, and where no token leaves its rank.

    Examples
    --------
    >>> import blinksim as bs
    >>> two = bs.Routing([[[0, 2, 3]], [[0, 1, -1]]], 4, token_size=100)  # a token and two experts each
    >>> two.tokens.tolist(), two.size
    ([[1, 1], [1, 0]], 200)
    """

    def __init__(
        self,
        experts: npt.ArrayLike,
        placement: int | Sequence[Sequence[int]],
        *,
        token_size: int | str = "14KiB",
        ranks_per_node: int = 8,
    ) -> None:
        ids = np.asarray(experts)
        wrong = ids.ndim != 3 or ids.dtype.kind not in "iu" or not 0 < ids.size <= MOST_IDS
        if wrong or not 2 <= len(ids) <= MOST_RANKS:
            raise InputError(f"a routing is 2 to {MOST_RANKS:,} ranks x tokens x k experts, not {ids.shape}")
        self.ranks = ranks = len(ids)
        if isinstance(placement, int):
            if not 0 < placement <= MOST_EXPERTS or placement % ranks:
                raise InputError(f"{placement} experts are not equally many on {ranks} ranks; place each")
            placement = [[expert * ranks // placement] for expert in range(placement)]
        if not 0 < len(placement) <= MOST_EXPERTS or not all(placement):
            raise InputError(f"a placement has 1 to {MOST_EXPERTS:,} experts, each with the ranks of it")
        if not -1 <= int(ids.min()) <= int(ids.max()) < len(placement):
            raise InputError(f"expert {ids.max()} is wanted; {len(placement)} are placed, from 0; -1 is none")
        # Which rank serves an expert for the tokens of each rank; the last row is for -1.
        serves, rank = np.full((len(placement) + 1, ranks), -1, dtype=np.int16), np.arange(ranks)
        for expert, holders in enumerate(placement):
            held = np.unique(np.asarray(holders))[:, None]
            if held.dtype.kind not in "iu" or held[0] < 0 or held[-1] >= ranks:
                raise InputError(f"expert {expert} is on {list(holders)!s:.60}; ranks are 0 to {ranks - 1}")
            far = 2 - (held // ranks_per_node == rank // ranks_per_node) - (held == rank)
            turn = (np.arange(len(held))[:, None] - rank) % len(held)
            serves[expert] = held[np.argmin(far * len(held) + turn, axis=0), 0]
        self.experts, self.token_size = np.ascontiguousarray(ids, dtype=np.int16), size_of(token_size)
        self.placement, self.ranks_per_node = tuple(map(tuple, placement)), ranks_per_node
        self._to = np.array([serves[own.T.copy(), rank] for rank, own in enumerate(self.experts)])
        self.digest = sha256(f"{ids.shape} {self.token_size} ".encode() + self._to.tobytes()).hexdigest()
        if not int(self.tokens.sum()) - int(np.trace(self.tokens)):
            raise InputError("no token goes to another rank in this routing")

    @lru_cache(maxsize=16)  # noqa: B019 - routings are few
    def reached(self, label: tuple[int, ...]) -> tuple[Matrix, Matrix]:
        """Tokens of every rank that each group wants (ranks, groups), and those that one not its own does.

        label: the group of every rank, numbered from 0.
        """
        group, groups = np.array([*label, -1], dtype=np.int16), max(label) + 1
        counts, away = np.zeros((self.ranks, groups), dtype=np.int64), np.zeros(self.ranks, dtype=np.int64)
        for rank, to in enumerate(self._to):
            columns = group[to]
            new = first_of_equals(columns) & (columns >= 0)
            counts[rank] = np.bincount(columns[new], minlength=groups)
            away[rank] = (new & (columns != label[rank])).any(axis=0).sum()
        return counts, away

    @cached_property
    def tokens(self) -> Matrix:
        """Tokens that every rank has for every other, each once; shape (ranks, ranks)."""
        return self.reached(tuple(range(self.ranks)))[0]

    @cached_property
    def size(self) -> int:
        """Bytes of the largest buffer of any rank: tokens of its own, or for its experts."""
        own = (self._to >= 0).any(axis=1).sum(axis=1)
        return self.token_size * int(max(own.max(), self.tokens.sum(axis=0).max()))

    def crossing(self, label: Matrix, count: int) -> tuple[npt.NDArray[Any], ...]:
        """Bytes that must leave each of `count` groups in a dispatch, and enter it.

        label: the group of every rank, `count` for those in none.
        """
        reached, away = self.reached((*label.tolist(),))
        into = np.pad(reached, ((0, 0), (0, count + 1 - reached.shape[1])))
        into[np.arange(self.ranks), label] = 0
        out = np.bincount(label, away, count + 1)
        return out * self.token_size, into.sum(axis=0) * float(self.token_size)

    def between(self, sources: Sequence[int], sinks: Sequence[int]) -> Fraction:
        """Tokens of the ranks `sources` that any of the ranks `sinks` wants, as a part of `size`."""
        wanted = self.reached((*np.isin(np.arange(self.ranks), sinks).astype(int).tolist(),))[0]
        return Fraction(int(wanted[sources, 1].sum()) * self.token_size, self.size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Routing) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Routing: {self.experts.shape} ranks x tokens x k, of {len(self.placement)} experts>"


def first_of_equals(columns: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
    """Which entries differ from those of all columns before; columns: shape (k, tokens)."""
    return np.array([(columns[:place] != column).all(axis=0) for place, column in enumerate(columns)])
