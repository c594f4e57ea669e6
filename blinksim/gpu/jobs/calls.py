"""Calls of a group, and the launches that a large message is moved in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from blinksim.collective import OWN, Collective
from blinksim.errors import InputError, unknown
from blinksim.gpu.programs.dtypes import ElementType, check_reduction
from blinksim.units import format_size_about

# The collectives of a group. Allreduce, broadcast and reduce work in place, as in torch.
CALLED = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")


@dataclass(frozen=True, slots=True)
class Call:
    """One collective on real data.

    collective: one of `CALLED`. count: elements of the whole vector, for allgather and reducescatter a multiple of the
    number of ranks. op: how contributions are combined, one of `blinksim.gpu.programs.dtypes.REDUCTIONS`. root: a rank.
    Raises `InputError` for a name that it does not know.
    """

    collective: str
    count: int
    kind: ElementType
    op: str = "sum"
    root: int = 0
    # Asked for in every call of a job.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.collective, self.count, self.kind, self.op, self.root)))
        if self.collective not in CALLED:
            raise unknown("collective of a group", self.collective, CALLED)
        check_reduction(self.op)
        if self.count < 1:
            raise InputError(f"a {self.collective} of {self.count} elements moves nothing")

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        how = f", {self.op}" if self.combines else ""
        root = f", root {self.root}" if self.rooted else ""
        return f"{self.collective} of {self.count} {self.kind.name}{how}{root}"

    @property
    def combines(self) -> bool:
        return self.collective in ("allreduce", "reducescatter", "reduce")

    @property
    def rooted(self) -> bool:
        return self.collective in ("broadcast", "reduce")

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector."""
        return self.count * self.kind.itemsize

    @property
    def what(self) -> Collective:
        return Collective(self.collective, self.root if self.rooted else 0)

    def parts(self, ranks: int) -> int:
        """How many parts of equal length the vector has, one for each rank or a single one.

        Raises `InputError` if the ranks would get different numbers of elements.
        """
        if OWN not in (self.what.starts, self.what.ends):
            return 1
        if self.count % ranks:
            raise InputError(f"{self}: {ranks} ranks need equal parts, and {self.count} is no multiple of {ranks}")
        return ranks

    def stretches(self, ranks: int, most_bytes: int) -> Iterator[tuple[int, int]]:
        """(first, length): the elements of every part that one launch moves, at most `most_bytes` in all.

        Launches have equal lengths but for the last one, and begin at multiples of 128 bytes where that is possible.
        """
        parts = self.parts(ranks)
        whole = self.count // parts
        most = max(1, most_bytes // parts // self.kind.itemsize)
        launches = -(-whole // most)
        line = 128 // self.kind.itemsize
        length = -(-whole // launches)
        if launches > 1 and length >= line:
            length = min(-(-length // line) * line, max(line, most // line * line))
        for first in range(0, whole, length):
            yield first, min(length, whole - first)


@lru_cache(maxsize=1024)
def call_of(collective: str, count: int, kind: ElementType, op: str = "sum", root: int = 0) -> Call:
    """The `Call` for these; a job makes the same ones again and again."""
    return Call(collective, count, kind, op, root)


def signature_of(call: Call, first: int, length: int, program: bytes = b"") -> int:
    """32 bits, never 0, that stand for a launch of a call: ranks whose calls or programs differ have different ones."""
    digest = hashlib.blake2b(f"{call}; {first}+{length}".encode() + program, digest_size=4).digest()
    return int.from_bytes(digest, "little") or 1


def say(call: Call, first: int, length: int, ranks: int) -> str:
    """A call for people, and which part of it, if it is moved in several."""
    whole = call.count // call.parts(ranks)
    return f"{call} ({format_size_about(call.nbytes)})" + (f", elements {first} to {first + length}" * (length < whole))
