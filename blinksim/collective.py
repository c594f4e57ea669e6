"""The collectives: names, data moved, and the factor of their quoted bandwidth.

`size` is always the larger of one rank's send and receive buffers, in bytes: the whole vector for allreduce,
broadcast and reduce; the gathered vector for allgather and gather; the vector before the scatter for
reducescatter and scatter; everything that a rank sends for alltoall, and for alltoallv, dispatch and combine
the most that any rank sends or ends with (what it keeps included). algbw is size / time; busbw is algbw times
a factor that makes it comparable with link bandwidth (the convention of nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from blinksim.errors import InputError, one_of
from blinksim.textio.text_files import read_words
from blinksim.units import whole

if TYPE_CHECKING:
    from blinksim.traffic import Routing, Traffic

CollectiveName = Literal[
    "allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "alltoall"
]
"""The names of the collectives, for editors and type checkers; text such as ``all_reduce`` is understood too."""
EVERY, ROOT, OWN, SOME = "every rank", "the root", "one rank", "some ranks"
"""Who has a chunk: every rank, the root, a rank of the chunk's own (its origin or its target), or several."""
# Who has a chunk before the first send, and who must have it after the last one. All else follows from these
# two.
_PROMISES = {
    "allreduce": (EVERY, EVERY),
    "allgather": (OWN, EVERY),
    "reducescatter": (EVERY, OWN),
    "broadcast": (ROOT, EVERY),
    "reduce": (EVERY, ROOT),
    "gather": (OWN, ROOT),
    "scatter": (ROOT, OWN),
    "alltoall": (OWN, OWN),
}
ALLTOALLV = "alltoallv"
"""An alltoall of unequal blocks. It needs a traffic matrix; the names in `COLLECTIVES` need nothing else."""
OF_EXPERTS = DISPATCH, COMBINE = "dispatch", "combine"
"""Tokens to the ranks of their experts, copied on the way; and back, added up on the way (`Routing`)."""
_WIDTH = {ROOT: 0, OWN: 1, SOME: 2, EVERY: 3}
COLLECTIVES = tuple(_PROMISES)
_PROMISES |= {DISPATCH: (OWN, SOME), COMBINE: (SOME, OWN)}
_BY_PROMISE = {promise: name for name, promise in _PROMISES.items()}
_PROMISES[ALLTOALLV] = (OWN, OWN)
ROOTED = frozenset(name for name, promise in _PROMISES.items() if ROOT in promise)
REDUCING = frozenset(name for name, (starts, _) in _PROMISES.items() if starts in (EVERY, SOME))
# Those whose data, or half of it, lies in one shard per rank.
SHARDED = ("allreduce", "allgather", "reducescatter")
# Those that trees carry. A group of blinksim.torch has them, too, where allreduce, broadcast and reduce work in
# place, as in torch.
ON_TREES = (*SHARDED, "broadcast", "reduce")


def spelt(text: str) -> str:
    """A collective's name as it is written here, such as ``allreduce`` for ``All_Reduce``; takes any text."""
    # Also as torch.distributed calls them: all_gather_into_tensor, all_to_all_single and the like.
    return re.sub(r"_(into_)?(tensor|single)$|[_-]", "", text.lower())


def busbw_factor(name: str, ranks: int) -> Fraction:
    """busbw / algbw of a collective on `ranks` ranks: 2(n-1)/n for allreduce, 1 for broadcast and reduce, else (n-1)/n.

    A single rank moves nothing; the factor is then 0, or 1 for broadcast and reduce.
    """
    if name in ("broadcast", "reduce"):
        return Fraction(1)
    return Fraction((2 if name == "allreduce" else 1) * (ranks - 1), ranks)


@dataclass(frozen=True)
class Collective:
    """One collective operation.

    Parameters
    ----------
    name : str
        One of `COLLECTIVES`; `parse` also understands ``all_reduce`` and the like.
    root : int
        The root's rank, for broadcast, reduce, gather and scatter.
    traffic : Traffic, optional
        For ``alltoallv``, and for it only: the bytes from every rank to every other. With a size of its own,
        they are scaled to it.
    routing : Routing, optional
        For ``dispatch`` and ``combine``, and for them only: the experts of every token.

    Raises
    ------
    InputError
        For another name, a root that is no whole number, an alltoallv without a traffic matrix, and a
        dispatch or combine without a routing.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.bound("dgx1-v100", bs.Collective("broadcast", root=3)).rate_GBps
    150.0
    """

    name: str
    root: int = 0
    traffic: Traffic | None = field(default=None, repr=False)
    routing: Routing | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        one_of("collective", self.name, _PROMISES)
        object.__setattr__(self, "root", whole(self.root, "root"))
        if self.name == ALLTOALLV:
            traffic = self.traffic
            from blinksim.traffic import Traffic

            if traffic is None:
                takers = "bound, project, compare, sweep, synth, place and advise take"
                needed = "the bytes from every rank to every other: a traffic matrix"
                raise InputError(f"alltoallv needs {needed}, which {takers}")
            if not isinstance(traffic, Traffic):
                raise InputError(f"a {type(traffic).__name__} is no traffic matrix; give blinksim.Traffic(…)")
        elif self.traffic is not None:
            raise InputError(f"{self.name} has no traffic matrix; alltoallv has")
        if (self.name in OF_EXPERTS) != (self.routing is not None):
            drawn = f"project, bound, sweep and synth draw one: blinksim project p5 {self.name}"
            what = "has no routing" if self.routing else "needs a routing"
            raise InputError(
                f"{self.name} {what}, which is the experts of every token{'' if self.routing else f'; {drawn}'}"
            )

    @classmethod
    def parse(cls, text: str, root: int | None = None, traffic: Traffic | None = None) -> Collective:
        """The collective called `text` (``all_reduce``, ``all_gather_into_tensor`` and the like are understood).

        Raises `InputError` for an unknown name, a root given to a collective that has none, and for a traffic
        matrix that is missing, or given to another collective than alltoallv.
        """
        if (name := spelt(text)) not in _PROMISES:
            one_of("collective", text, _PROMISES, hint=read_words("collective").get(name, ""))
        if name == ALLTOALLV or traffic is not None:
            if root is not None:
                raise InputError(f"{name} with a traffic matrix has no root; leave root= out")
            return cls(name, traffic=traffic)
        if root is not None and name not in ROOTED:
            raise InputError(f"{name} has no root; leave root= out (rooted: {', '.join(sorted(ROOTED))})")
        return cls(name, 0 if root is None else root)

    @classmethod
    def of(cls, collective: Collective | str, root: int | None = None) -> Collective:
        """The collective given, or named by a text.

        Raises `InputError` as `parse` does, and if a collective and a different root are given.

        >>> Collective.of("all_reduce")
        Collective(name='allreduce', root=0)
        >>> Collective.of("broadcast", root=2).root
        2
        """
        if isinstance(collective, str):
            return cls.parse(collective, root)
        if not isinstance(collective, Collective):
            raise InputError(f"{collective!r} is not a collective; give a name such as 'allreduce'")
        if root is not None and whole(root, "root") != collective.root:
            raise InputError(f"{collective} has a root already; give root= with a name only")
        return collective

    @property
    def rooted(self) -> bool:
        return self.name in ROOTED

    @property
    def starts(self) -> str:
        """Ranks that start with a chunk: `EVERY` (each its contribution), `ROOT`, `OWN` (its origin) or `SOME`."""
        return _PROMISES[self.name][0]

    @property
    def ends(self) -> str:
        """Ranks that must end with the complete chunk: `EVERY`, `ROOT`, `OWN` (its target) or `SOME`."""
        return _PROMISES[self.name][1]

    @property
    def reduces(self) -> bool:
        """True if contributions to the same chunk are added up."""
        return self.name in REDUCING

    @property
    def phases(self) -> int:
        """How often all data are moved: 2 in allreduce, a reducescatter and an allgather, otherwise 1."""
        return 2 if self.name == "allreduce" else 1

    @property
    def collects(self) -> bool:
        """True for reduce, reducescatter and gather, which bring data together; their duals spread it."""
        return _WIDTH[self.starts] > _WIDTH[self.ends]

    @property
    def dual(self) -> Collective:
        """The collective run backwards over reversed links: allgather for reducescatter, and so on.

        allreduce and alltoall are their own duals; that of an alltoallv takes everything back.
        """
        if self.traffic is not None:
            return Collective(self.name, traffic=self.traffic.transposed())
        return Collective(_BY_PROMISE[self.ends, self.starts], self.root, routing=self.routing)

    def labels(self, start: int, end: int) -> tuple[int, int]:
        """Origin and target of a chunk from rank `start` to rank `end`; -1 for an end without a name.

        In a dispatch the end is the number of a set of ranks (`Routing.classes`), in a combine the start.
        """
        return start if self.starts in (OWN, SOME) else -1, end if self.ends in (OWN, SOME) else -1

    def label_counts(self, ranks: int) -> tuple[int, int]:
        """How many different origins and targets chunks may have: ranks, or sets of ranks (`Routing.classes`)."""
        sets = len(self.routing.classes.sets) if self.routing else 0
        return sets if self.starts == SOME else ranks, sets if self.ends == SOME else ranks

    @property
    def personalized(self) -> bool:
        """True for gather, scatter, alltoall and alltoallv: each chunk goes from one rank to one other."""
        return EVERY not in _PROMISES[self.name]

    @property
    def block_sides(self) -> int:
        """The number of sides (start, end) with one block per rank: 2 for alltoall, 0 for allreduce."""
        return _PROMISES[self.name].count(OWN)

    @property
    def exchanges(self) -> bool:
        """True for alltoall and alltoallv: every rank has a block of its own for every rank."""
        return self.block_sides == 2

    def vectors(self, ranks: int) -> int:
        """The number of vectors of `size` that are moved: one per rank in alltoall, otherwise one."""
        return ranks if self.exchanges else 1

    def share(self, origin: int, target: int, ranks: int) -> Fraction:
        """The part of the size that rank `origin` has for rank `target`, in alltoall and alltoallv."""
        if self.traffic is None:
            return Fraction(1, ranks)
        return Fraction(int(self.traffic.matrix[origin, target]), self.traffic.size)

    def promised(self, ranks: int) -> Fraction:
        """The data of all chunks in units of the size: 1, or all that blocks or tokens have."""
        if self.data is None:
            return Fraction(self.vectors(ranks))
        return Fraction(int(self.data.amounts.sum()), self.data.size)

    @property
    def data(self) -> Traffic | Routing | None:
        """What tells the ranks apart: a traffic matrix or a routing."""
        return self.traffic or self.routing

    @property
    def routed(self) -> Routing:
        """The experts of every token of a dispatch or combine; raises `InputError` for others."""
        if self.routing is None:
            raise InputError(f"{self} has no tokens")
        return self.routing

    def between(self, sources: Collection[int], sinks: Collection[int], ranks: int) -> Fraction:
        """The part of the size that must get from some ranks to others, disjoint from them; 0 if none."""
        if self.traffic is not None:
            return self.traffic.between([*sources], [*sinks])
        if self.routing is not None:
            ends = [*sources], [*sinks]
            return self.routing.between(*ends[:: 1 if self.name == DISPATCH else -1])
        given, taken = set(sources), set(sinks)
        inner = {EVERY: Fraction(bool(given)), ROOT: Fraction(self.root in given), OWN: Fraction(len(given), ranks)}
        outer = {EVERY: Fraction(bool(taken)), ROOT: Fraction(self.root in taken), OWN: Fraction(len(taken), ranks)}
        return inner[self.starts] * outer[self.ends] * self.vectors(ranks)

    def buffers(self, units: int, ranks: int) -> tuple[int, int]:
        """Units of a rank's input and output buffer for a vector of `units`: all of them, or one block of `ranks`."""
        block = units // ranks
        if self.vectors(ranks) > 1:
            return units, units
        return block if self.starts == OWN else units, block if self.ends == OWN else units

    def check_ranks(self, ranks: int) -> None:
        """Raises `InputError` unless the root is one of `ranks` ranks, and a traffic matrix is of as many."""
        if self.data is not None and self.data.ranks != ranks:
            raise InputError(
                f"the {type(self.data).__name__.lower()} is of {self.data.ranks} ranks, and there are {ranks}"
            )
        if self.rooted and not 0 <= self.root < ranks:
            raise InputError(f"root {self.root} is not a rank: {ranks} ranks are numbered 0 to {ranks - 1}")

    def __str__(self) -> str:
        return f"{self.name} from root {self.root}" if self.rooted else self.name


CollectiveLike = Collective | CollectiveName | str
"""A collective as public functions take it: itself, or its name."""
