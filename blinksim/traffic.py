"""Traffic matrices: the bytes that every rank sends to every other in an alltoallv.

Row i of the matrix is what rank i sends, column j what rank j receives (`sendcounts` and `recvcounts` of
MPI_Alltoallv, in bytes). The diagonal is what a rank keeps: it crosses no link, but is part of the rank's
buffers and so of `size`.

Mixtures of experts: every rank holds the same number of experts and of tokens. A token goes to its top k
experts, once to each rank that holds any of them (as DeepEP does it), and the results come back on the same
route: combine is the transpose of dispatch. Expert popularity follows Zipf's law, the usual model of uneven
load; the k experts of a token are drawn one after the other without replacement. As a matrix, the copies of a
token are different data, which cross every link anew; a library copies tokens, and adds results, on the way.
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
from blinksim.results import Tabular
from blinksim.units import format_size_about, size_of, whole

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

    def between(self, sources: Sequence[int], sinks: Sequence[int]) -> Fraction:
        """Data of the ranks `sources` for the ranks `sinks`, as a part of `size`."""
        to = np.asarray(sinks, dtype=np.int64)
        some = np.zeros(self.ranks, dtype=bool)
        some[np.asarray(sources, dtype=np.int64)] = True
        if 2 * int(some.sum()) <= self.ranks:
            amount = int(self.matrix[some].sum(axis=0)[to].sum())
        else:
            # What all have, without the few others: most rows need not be read again.
            amount = int(self.received[to].sum()) - int(self.matrix[~some].sum(axis=0)[to].sum())
        return Fraction(amount, self.size)

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
        own = int(np.trace(self.matrix))
        sent, received = (sums - np.diagonal(self.matrix) for sums in (self.sent, self.received))
        return {
            "ranks": self.ranks,
            "total_bytes": self.total,
            "kept_bytes": own,
            "largest_buffer_bytes": self.size,
            "mean_bytes": self.total / self.ranks,
            "pairs": int(np.count_nonzero(self.matrix)) - int(np.count_nonzero(np.diagonal(self.matrix))),
            "most_sent_bytes": int(sent.max()),
            "most_sent_rank": int(sent.argmax()),
            "most_received_bytes": int(received.max()),
            "most_received_rank": int(received.argmax()),
            "counts": "every block as data of its own",
        }

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
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.ranks, self.matrix.tobytes()))

    def __repr__(self) -> str:
        moved = np.count_nonzero(self.matrix) - np.count_nonzero(np.diagonal(self.matrix))
        return (
            f"<Traffic: {self.ranks} ranks, {format_size_about(self.total)} in {moved:,} of "
            f"{self.ranks * (self.ranks - 1):,} pairs, at most {format_size_about(self.size)} a rank>"
        )


@lru_cache(maxsize=8)
def block_bounds(traffic: Traffic, count: int) -> tuple[tuple[int, ...], ...]:
    """Where the blocks of every rank's vector begin, and where it ends, if the size is `count` elements.

    Row i has n + 1 entries: what rank i has for rank j are the elements from entry j to entry j + 1.

    >>> block_bounds(Traffic([[0, 3], [1, 0]]), 30)
    ((0, 0, 30), (0, 10, 10))
    """
    ends = np.cumsum(traffic.matrix, axis=1).tolist()
    return tuple((0, *(end * count // traffic.size for end in row)) for row in ends)


def _whole(matrix: npt.ArrayLike) -> Matrix:
    """The matrix in 64-bit integers; raises `InputError` for what is not whole numbers."""
    try:
        array = np.asarray(matrix)
    except ValueError:
        raise InputError("the rows of a traffic matrix must be equally long") from None
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.rint(array)).all():
        if float(np.abs(array).max(initial=0.0)) <= _MOST_BYTES:
            return array.astype(np.int64)
    elif array.dtype.kind == "i" or (array.dtype.kind == "u" and int(array.max(initial=0)) <= _MOST_BYTES):
        return array.astype(np.int64)
    raise InputError("a traffic matrix holds whole numbers of bytes, at most 2^53 in all")


# Candidates that are drawn per token and round, as a multiple of k, and rounds, before the rest is drawn
# exactly.
_SPARE, _ROUNDS = 2, 4
# Numbers in one block of tokens.
_BLOCK = 2**22
_MOST = 2**31


def expert_traffic(
    ranks: int,
    *,
    tokens: int = 4096,
    token_size: int | str = "14KiB",
    experts_per_rank: int = 1,
    top_k: int = 8,
    skew: float = 0.0,
    seed: int = 0,
) -> Traffic:
    """The dispatch of one layer of experts: tokens of every rank for the experts of every other.

    Parameters
    ----------
    ranks : int
        Ranks; each holds `tokens` tokens and `experts_per_rank` experts.
    tokens : int
        Tokens of every rank in one call.
    token_size : int or str
        Bytes of a token: hidden dimensions times bytes each. The default is 7,168 in 16 bits.
    experts_per_rank : int
        Experts that every rank holds.
    top_k : int
        Experts that every token goes to.
    skew : float
        Exponent of Zipf's law: the expert at place i is chosen with a probability in proportion to i^-skew. 0
        is even.
    seed : int
        Of the choices, and of the places of the experts.

    Returns
    -------
    Traffic
        Bytes from every rank to every rank, shape (ranks, ranks); `Traffic.transposed` is the combine.

    Raises
    ------
    InputError
        For fewer than two ranks or more than 8,192, more experts per token than there are, and numbers that
        are not positive.

    Examples
    --------
    >>> import blinksim as bs
    >>> even = bs.expert_traffic(16, tokens=1000, token_size=100, experts_per_rank=2, top_k=4)
    >>> hot = bs.expert_traffic(16, tokens=1000, token_size=100, experts_per_rank=2, top_k=4, skew=1.0)
    >>> round(even.skew, 1), round(hot.skew, 1)
    (1.0, 3.2)
    """
    numbers = {"ranks": ranks, "tokens": tokens, "experts_per_rank": experts_per_rank, "top_k": top_k}
    for name, value in numbers.items():
        if not 1 <= whole(value, name) <= _MOST:
            raise InputError(f"{name}={value}: give a positive whole number")
    if ranks > MOST_RANKS:
        raise InputError(f"ranks={ranks}: a traffic matrix is of {MOST_RANKS:,} at most")
    each, experts = size_of(token_size), ranks * experts_per_rank
    if top_k > experts:
        raise InputError(f"a token cannot go to {top_k} of {experts} experts; send it to fewer, or take more ranks")
    if not 0 <= skew <= 10:
        raise InputError(f"skew={skew}: the exponent of Zipf's law is from 0 to 10")
    random = np.random.default_rng(seed)
    weight = np.arange(1, experts + 1, dtype=np.float64) ** -float(skew)
    weight = random.permutation(weight / weight.sum())
    counts = np.zeros((ranks, ranks), dtype=np.int64)
    block = max(1, _BLOCK // (top_k * _SPARE))
    for rank in range(ranks):
        for first in range(0, tokens, block):
            drawn = choose(random, weight, min(block, tokens - first), top_k) // experts_per_rank
            once = first_of_equals(np.ascontiguousarray(drawn.T)).T
            counts[rank] += np.bincount(drawn[once], minlength=ranks)
    return Traffic(counts * each)


def choose(random: np.random.Generator, weight: npt.NDArray[np.float64], tokens: int, k: int) -> Matrix:
    """For every token k different experts, drawn one after the other by weight; shape (tokens, k).

    Repeated draws are thrown away, which leaves the others with the right chances. Rows that are not full
    after some rounds are filled by the largest of logarithms plus Gumbel noise, which is the same draw
    (Vieira 2014).
    """
    bounds = np.cumsum(weight)
    bounds[-1] = 1.0
    # Where to look for a number among the bounds; a binary search takes longer than all else. A product with
    # a power of two is exact.
    cells = 4 << len(weight).bit_length()
    first = np.searchsorted(bounds, np.arange(cells) / cells, side="right")
    chosen = np.full((tokens, k), -1, dtype=np.int64)
    for _ in range(_ROUNDS):
        rows = np.flatnonzero(chosen[:, -1] < 0)
        if not len(rows):
            return chosen
        sample = random.random((len(rows), k * _SPARE)).ravel()
        drawn = first[(sample * cells).astype(np.int64)]
        late = np.flatnonzero(bounds[drawn] <= sample)
        while len(late):
            drawn[late] += 1
            late = late[bounds[drawn[late]] <= sample[late]]
        every = np.concatenate([chosen[rows], drawn.reshape(len(rows), -1)], axis=1)
        new = first_of_equals(np.ascontiguousarray(every.T)).T & (every >= 0)
        new &= np.cumsum(new, axis=1) <= k
        kept = np.full((len(rows), k), -1, dtype=np.int64)
        kept[np.arange(k) < new.sum(axis=1)[:, None]] = every[new]
        chosen[rows] = kept
    for row in np.flatnonzero(chosen[:, -1] < 0).tolist():
        keys = np.log(weight) + random.gumbel(size=len(weight))
        filled = int((chosen[row] >= 0).sum())
        keys[chosen[row, :filled]] = -np.inf
        more = k - filled
        chosen[row, filled:] = np.argpartition(keys, -more)[-more:]
    return chosen


def first_of_equals(columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which entries differ from those of all columns before; columns: shape (k, tokens)."""
    return np.array([(columns[:place] != column).all(axis=0) for place, column in enumerate(columns)])
