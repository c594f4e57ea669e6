"""Traffic matrices: the bytes that every rank sends to every other in an alltoallv.

Row i of the matrix is what rank i sends, column j what rank j receives (`sendcounts` and `recvcounts` of
MPI_Alltoallv, in bytes). The diagonal is what a rank keeps: it crosses no link, but is part of the rank's
buffers and so of `size`.

Routings have the experts of every token and the ranks that hold them, which is what dispatch and combine move: a
dispatch copies every token to all ranks that hold one of its experts; a combine adds up what these made of
it, back where it came from. Copies may be made and sums formed at any GPU on the way: a cut is crossed once
by every token that is wanted on its far side, however many ranks want it there. A replicated expert serves a
token on the token's own rank if it is there, else in its node, else replicas take turns by the token's rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.errors import InputError, blamed_on
from blinksim.results import Tabular
from blinksim.units import format_size_about, size_of

Matrix = npt.NDArray[np.int64]
MOST_RANKS = 8192
# Sums of all bytes, times the ranks of a node, must fit in 63 bits.
_MOST_BYTES = 2**53


class Traffic(Tabular):
    """Bytes from every rank to every rank; it never changes, and equal matrices are equal.

    Parameters
    ----------
    matrix : array_like (n, n)
        Bytes from rank i (row) to rank j (column): whole numbers, none negative. The diagonal is what ranks
        keep.

    Attributes
    ----------
    matrix : array of int64 (n, n)
        The same, read-only.

    Raises
    ------
    InputError
        For anything but a square matrix of whole numbers with two ranks or more, for negative numbers, for
        sums above 2^53 bytes, and where no rank sends anything to another.

    Examples
    --------
    >>> import blinksim as bs
    >>> skewed = bs.Traffic([[0, 3000], [1000, 0]])
    >>> skewed.ranks, skewed.size, skewed.total
    (2, 3000, 4000)
    >>> bs.bound("ring:2@25GB/s", bs.Collective("alltoallv", traffic=skewed)).time(skewed.size)
    6e-08
    """

    __slots__ = ("__dict__", "matrix")

    matrix: Matrix

    def __init__(self, matrix: npt.ArrayLike) -> None:
        whole = _whole(matrix)
        if whole.ndim != 2 or whole.shape[0] != whole.shape[1]:
            shape = " x ".join(map(str, whole.shape)) or "a single number"
            raise InputError(f"a traffic matrix has a row and a column for every rank; this is {shape}")
        if not 2 <= len(whole) <= MOST_RANKS:
            raise InputError(f"a traffic matrix of {len(whole)} ranks; give 2 to {MOST_RANKS:,}")
        if int(whole.min()) < 0:
            i, j = (int(place) for place in np.argwhere(whole < 0)[0])
            raise InputError(f"rank {i} has {whole[i, j]} bytes for rank {j}; bytes cannot be negative")
        # As floats, which do not overflow; a sum that these round down to the limit is exact as a whole number.
        if float(whole.sum(dtype=np.float64)) > _MOST_BYTES or int(whole.sum()) > _MOST_BYTES:
            raise InputError("a traffic matrix of more than 2^53 bytes; give the bytes of one call")
        if not int(whole.sum()) - int(np.trace(whole)):
            raise InputError("no rank has anything for another in this traffic matrix")
        self.matrix = whole
        self.matrix.setflags(write=False)

    @classmethod
    def uniform(cls, ranks: int, size: int) -> Traffic:
        """The matrix of an alltoall of `size` bytes a rank, its own block included.

        Raises `InputError` unless `size` is a multiple of `ranks`.

        >>> Traffic.uniform(4, 400).matrix[0].tolist()
        [100, 100, 100, 100]
        """
        if ranks < 1 or size % ranks:
            raise InputError(f"{size} bytes are not the same whole number of bytes for each of {ranks} ranks")
        return cls(np.full((ranks, ranks), size // ranks, dtype=np.int64))

    @property
    def ranks(self) -> int:
        return len(self.matrix)

    @cached_property
    def sent(self) -> Matrix:
        """Bytes that each rank sends, with what it keeps; shape (n,)."""
        return np.asarray(self.matrix.sum(axis=1))

    @cached_property
    def received(self) -> Matrix:
        """Bytes that each rank ends with, with what it keeps; shape (n,)."""
        return np.asarray(self.matrix.sum(axis=0))

    @cached_property
    def size(self) -> int:
        """Bytes of the largest buffer of any rank, whether it sends or receives."""
        return int(max(self.sent.max(), self.received.max()))

    @cached_property
    def total(self) -> int:
        """Bytes sent between different ranks."""
        return int(self.matrix.sum()) - int(np.trace(self.matrix))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the matrix, its identity across processes."""
        return sha256(self.matrix.astype("<i8").tobytes()).hexdigest()

    @property
    def amounts(self) -> Matrix:
        """Bytes of every block, row by row; shape (n * n,)."""
        return self.matrix.ravel()

    def between(self, sources: Sequence[int], sinks: Sequence[int]) -> Fraction:
        """Data of the ranks `sources` for the ranks `sinks`, as a part of `size`."""
        some, to = np.zeros(self.ranks, dtype=bool), np.asarray(sinks, dtype=np.int64)
        some[np.asarray(sources, dtype=np.int64)] = True
        if 2 * int(some.sum()) <= self.ranks:
            amounts = self.matrix[some].sum(axis=0)
        else:
            # What all have, without the few others: most rows need not be read again.
            amounts = self.received - self.matrix[~some].sum(axis=0)
        return Fraction(int(amounts[to].sum()), self.size)

    def crossing(self, label: Matrix, count: int) -> tuple[npt.NDArray[Any], ...]:
        """Bytes that must leave every one of `count` groups, and enter it.

        label: the group of every rank, `count` for those in none.
        """
        own = np.einsum("ij,ij->i", self.matrix, label[:, None] == label)
        return tuple(np.bincount(label, ends - own, count + 1) for ends in (self.sent, self.received))

    def transposed(self) -> Traffic:
        """The reverse traffic: the combine of a dispatch.

        >>> Traffic([[0, 3], [1, 0]]).transposed().matrix.tolist()
        [[0, 1], [3, 0]]
        """
        return Traffic(self.matrix.T)

    @property
    def skew(self) -> float:
        """The most that a rank sends or receives over the average of all."""
        return self.size * self.ranks / int(self.matrix.sum())

    def to_dict(self) -> dict[str, Any]:
        """The sums as JSON; the matrix is in `lines`."""
        kept = np.diagonal(self.matrix)
        said: dict[str, Any] = {"ranks": self.ranks, "total_bytes": self.total, "kept_bytes": int(kept.sum())}
        said |= {"largest_buffer_bytes": self.size, "mean_bytes": self.total / self.ranks}
        said["pairs"] = int(np.count_nonzero(self.matrix)) - int(np.count_nonzero(kept))
        for what, sums in (("sent", self.sent - kept), ("received", self.received - kept)):
            said |= {f"most_{what}_bytes": int(sums.max()), f"most_{what}_rank": int(sums.argmax())}
        return said | {"counts": "every block as data of its own"}

    def lines(self) -> list[str]:
        """A line per rank with its bytes for every rank, separated by commas."""
        return [",".join(map(str, row)) for row in self.matrix.tolist()]

    def rows(self) -> list[dict[str, Any]]:
        """One row per pair of different ranks that has bytes."""
        pairs = ((int(i), int(j)) for i, j in np.argwhere(self.matrix) if i != j)
        return [{"src": i, "dst": j, "bytes": int(self.matrix[i, j])} for i, j in pairs]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traffic) and np.array_equal(self.matrix, other.matrix)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        moved = np.count_nonzero(self.matrix) - np.count_nonzero(np.diagonal(self.matrix))
        pairs = f"{moved:,} of {self.ranks * (self.ranks - 1):,} pairs"
        most = f"at most {format_size_about(self.size)} a rank"
        return f"<Traffic: {self.ranks} ranks, {format_size_about(self.total)} in {pairs}, {most}>"


@lru_cache(maxsize=8)
def block_bounds(traffic: Traffic, count: int) -> tuple[tuple[int, ...], ...]:
    """Where the blocks of every rank's vector begin, and where it ends, if the size is `count` elements.

    Row i has n + 1 entries: what rank i has for rank j are the elements from entry j to entry j + 1.

    >>> block_bounds(Traffic([[0, 3], [1, 0]]), 30)
    ((0, 0, 30), (0, 10, 10))
    """
    ends = np.cumsum(traffic.matrix, axis=1).tolist()
    return tuple((0, *(end * count // traffic.size for end in row)) for row in ends)


@lru_cache(maxsize=8)
def class_bounds(routing: Routing, count: int) -> tuple[int, ...]:
    """Where each of `Routing.classes` begins in what all ranks have, and where the last ends; `count` is the size.

    >>> class_bounds(Routing([[[0, 1]], [[1, -1]]], 2, token_size=3), 3)
    (0, 1, 3)
    """
    return (0, *(end * count // routing.size for end in np.cumsum(routing.amounts).tolist()))


def _whole(matrix: npt.ArrayLike) -> Matrix:
    """The matrix in 64-bit integers; raises `InputError` for what is not whole numbers."""
    with blamed_on(lambda _: InputError("the rows of a traffic matrix must be equally long"), ValueError):
        array = np.asarray(matrix)
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.rint(array)).all():
        if float(np.abs(array).max(initial=0.0)) <= _MOST_BYTES:
            return array.astype(np.int64)
    elif array.dtype.kind == "i" or (array.dtype.kind == "u" and int(array.max(initial=0)) <= _MOST_BYTES):
        return array.astype(np.int64)
    raise InputError("a traffic matrix holds whole numbers of bytes, at most 2^53 in all")


MOST_IDS, MOST_EXPERTS = 2**28, 2**15 - 1


@dataclass(frozen=True, eq=False)
class TokenClasses:
    """Tokens of one rank that go to the same ranks, as classes: C of them, to S different sets of ranks.

    sets (S, k): the ranks of every set, after entries of -1. own, which (C): the rank that has them, and the
    number of the set that they go to. tokens (C): how many, in the order of own and which.
    """

    ranks: int
    sets: Matrix
    own: Matrix
    which: Matrix
    tokens: Matrix

    @cached_property
    def holds(self) -> npt.NDArray[np.bool_]:
        """Whether each set has each rank; shape (S, ranks)."""
        found = np.zeros((len(self.sets), self.ranks + 1), dtype=np.bool_)
        np.put_along_axis(found, self.sets, True, axis=1)
        return found[:, :-1]

    def number(self, own: Matrix, which: Matrix) -> Matrix:
        """The number of the class of a rank and a set, -1 if there is none."""
        keys, wanted = self.own * len(self.sets) + self.which, own * np.int64(len(self.sets)) + which
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, place, -1)


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
                near = ranks * max(1, min(round(placement / ranks), MOST_EXPERTS // ranks))
                cure = f"take {near}, or say where each is"
                raise InputError(f"{placement} experts are not equally many on {ranks} ranks; {cure}")
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

    @lru_cache(maxsize=16)  # noqa: B019 - routings are few
    def sets(self, label: tuple[int, ...]) -> dict[tuple[int, int], int]:
        """How many tokens of a group other groups want, by the number of the group and the bits of these."""
        group = np.array(label)
        bit = np.append(1 << group, 0)
        wanted = np.bitwise_or.reduce(bit[self._to], axis=1) & ~bit[:-1, None]
        keys, tokens = np.unique((group[:, None] << max(label) + 1 | wanted).ravel(), return_counts=True)
        own, bits = keys >> max(label) + 1, keys & (2 << max(label)) - 1
        counted = zip(zip(own.tolist(), bits.tolist(), strict=True), tokens.tolist(), strict=True)
        return {pair: many for pair, many in counted if pair[1]}

    @property
    def wanted(self) -> npt.NDArray[np.int16]:
        """The ranks that each token goes to, an entry for each of its experts, -1 for none; (ranks, tokens, k)."""
        return self._to.swapaxes(1, 2)

    @cached_property
    def classes(self) -> TokenClasses:
        """The tokens by the rank that has them and the set of ranks that they go to."""
        rows = np.sort(self.wanted.reshape(-1, self._to.shape[1]), axis=1)
        rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = -1
        rows.sort(axis=1)
        some = np.flatnonzero(rows[:, -1] >= 0)
        sets, which = np.unique(rows[some], axis=0, return_inverse=True)
        keys, tokens = np.unique(some // self._to.shape[2] * len(sets) + which.ravel(), return_counts=True)
        return TokenClasses(self.ranks, sets.astype(np.int64), *np.divmod(keys, len(sets)), tokens)

    @property
    def amounts(self) -> Matrix:
        """Bytes of every one of `classes`."""
        return self.classes.tokens * self.token_size

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
