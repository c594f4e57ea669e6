"""Traffic matrices: the bytes that every rank sends to every other in an alltoallv.

Row i of the matrix is what rank i sends, column j what rank j receives (`sendcounts` and `recvcounts` of
MPI_Alltoallv, in bytes). The diagonal is what a rank keeps: it crosses no link, but is part of the rank's
buffers and so of `size`.
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
from blinksim.units import format_size_about

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
        return hash(self.digest)

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
