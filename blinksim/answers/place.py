"""Which GPUs should I ask for? All subsets of a machine ranked by what a collective can reach on them.

Subsets that a symmetry of the machine maps onto each other are computed once (orbits of subsets under the machine's
checked symmetries: Holt, Handbook of Computational Group Theory, 2005, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any, Literal, overload

from blinksim import budget
from blinksim.answers import pool
from blinksim.bounds.compute import bound
from blinksim.collective import Collective, CollectiveName
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.results import Result
from blinksim.topology.graph import Topology
from blinksim.topology.selection import class_names
from blinksim.units import exact_GBps, in_GBps, whole

# Subsets up to which all of them are listed.
LIMIT = 100_000
# Pieces of work that the kinds of choice are divided into, at most.
_PIECES = 1000


@dataclass(frozen=True)
class Placement:
    """One choice of members. rate: algbw of the headline bound in bytes/s, None if the links do not connect them.

    scope, exact: of that bound. words: its certificate, or the groups that are not connected. alike: how many subsets
    a symmetry maps onto this one, itself included. in_network: the rate where switches multicast and reduce as they
    can, None where that is no more.
    """

    members: tuple[str, ...]
    relays: tuple[str, ...]
    rate: Fraction | None
    scope: str
    exact: bool
    words: str
    alike: int
    in_network: Fraction | None = None

    @property
    def connected(self) -> bool:
        return self.rate is not None

    @property
    def rate_GBps(self) -> float | None:  # noqa: N802 - GBps is the unit's name
        """rate in GB/s, None if the links do not connect the members."""
        return None if self.rate is None else in_GBps(self.rate)

    def to_dict(self) -> dict[str, Any]:
        """JSON; rates in GB/s, null if not connected."""
        return {
            "members": list(self.members),
            "relays": list(self.relays),
            "connected": self.connected,
            "rate_exact": None if self.rate is None else exact_GBps(self.rate),
            "algbw_GBps": self.rate_GBps,
            "scope": self.scope,
            "kind": "exact" if self.exact else "upper",
            "words": self.words,
            "alike": self.alike,
            "in_network_exact": None if self.in_network is None else exact_GBps(self.in_network),
            "in_network_GBps": None if self.in_network is None else in_GBps(self.in_network),
        }


@dataclass(frozen=True, repr=False)
class Placements(Result, Sequence[Placement]):
    """Every choice of members, the best first and those not connected last: a sequence that is a table as well.

    Attributes
    ----------
    machine : str
        Its name.
    collective : Collective
        What the members should be good at.
    ranked : tuple of Placement
        The choices, each with ``members``, ``relays``, ``rate`` (bytes/s, exact) and the bound behind it.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.place("dgx1-v100", 6)
    >>> len(found), found[0].rate_GBps
    (28, 70.0)
    """

    machine: str
    collective: Collective
    ranked: tuple[Placement, ...]

    @overload
    def __getitem__(self, index: int) -> Placement: ...

    @overload
    def __getitem__(self, index: slice) -> list[Placement]: ...

    def __getitem__(self, index: int | slice) -> Placement | list[Placement]:
        return self.ranked[index] if isinstance(index, int) else list(self.ranked[index])

    def __len__(self) -> int:
        return len(self.ranked)

    def __iter__(self) -> Iterator[Placement]:
        return iter(self.ranked)

    def rows(self) -> list[dict[str, Any]]:
        """One row per choice, as `Placement.to_dict` gives it."""
        return [placement.to_dict() for placement in self.ranked]

    def sentence(self) -> str:
        """The answer in one line."""
        best = self.ranked[0]
        what = f"{self.collective} on {len(best.members)} GPUs of {self.machine}"
        if best.rate is None:
            return f"{what}: the links connect none of {len(self)} choices"
        connected = sum(placement.connected for placement in self.ranked)
        names = ", ".join(best.members)
        added = f" ({in_GBps(best.in_network):.4g} where switches add)" if best.in_network is not None else ""
        rate = f"up to {best.rate_GBps:.4g} GB/s algbw{added}"
        return f"{what}: {names}, {rate}; {connected} of {len(self)} choices connected"

    def __repr__(self) -> str:
        return f"<Placements {self.sentence()}>"


def place(
    machine: MachineLike,
    count: int,
    collective: Collective | CollectiveName | str = "allreduce",
    *,
    links: str | Iterable[str] | None = None,
    relays: Sequence[str] | Literal["none", "idle"] | str = "none",
    report: Callable[[str], None] | None = None,
    workers: int = 1,
    cluster: str | None = None,
) -> Placements:
    """Every choice of `count` members, the best first and those not connected last.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology.
    count : int
        How many GPUs.
    collective : str or Collective
        What they should be good at. Row i of a traffic matrix is what the i-th of them, in file order, sends.
    links : str or iterable of str, optional
        Link classes to use, as in `Topology.select`.
    relays : str or sequence of str
        ``none``, ``idle`` (all GPUs that are not chosen forward) or the names of devices that always do.
    report : callable, optional
        Called with a progress message.
    workers : int
        Processes of this machine (scripts then need an ``if __name__ == "__main__":``).
    cluster : str, optional
        The address of a dask scheduler, instead of workers. What a worker that dies was working on goes to another.

    Returns
    -------
    Placements
        A sequence and a table. Equal rates stay in the order of the machine file.

    Raises
    ------
    InputError
        For a count that does not fit, for more than `LIMIT` subsets, and a scheduler that does not answer or goes away.
    InfeasibleError
        If the bounds of all subsets would take minutes here, and if processes died of some.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.place("dgx1-v100", 4)[0].members
    ('gpu0', 'gpu1', 'gpu2', 'gpu3')
    """
    topology, wanted, count = as_topology(machine), Collective.of(collective), whole(count, "count")
    pool.check(workers, cluster)
    members = topology.members
    helpers = () if isinstance(relays, str) else tuple(relays)
    if isinstance(relays, str) and relays not in ("none", "idle"):
        raise InputError(f"relays {relays!r}: say none, idle or the names of devices")
    candidates = tuple(name for name in members if name not in helpers)
    if not 2 <= count <= len(candidates):
        raise InputError(f"{count} GPUs: choose 2 to {len(candidates)} of {topology.name}'s {len(candidates)}")
    wanted.check_ranks(count)
    subsets = comb(len(candidates), count)
    if subsets > LIMIT:
        raise InputError(f"{count} of {len(candidates)} GPUs: {subsets} subsets are too many to rank (at most {LIMIT})")
    chosen_links = None if links is None else class_names(links, topology.link_classes)
    # A root, or a traffic matrix, tells the ranks apart, so that symmetric subsets need not be alike with their ranks
    # in file order.
    alike = not (wanted.rooted or wanted.traffic is not None or helpers)
    maps = _member_maps(topology) if alike else []
    kinds: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    seen: set[tuple[int, ...]] = set()
    every = list(combinations(range(len(candidates)), count))
    for subset in every:
        if subset not in seen:
            kinds[subset] = sorted(_orbit(subset, maps))
            seen.update(kinds[subset])
    if cluster is None:
        _check_effort(topology, count, len(kinds), workers)
    asked = _Asked(topology, candidates, helpers, relays == "idle", wanted, chosen_links)
    answers: dict[tuple[int, ...], Placement] = {}
    for subset, first in _answered(asked, kinds, report, workers, cluster):
        answers |= dict.fromkeys(kinds[subset], first)
    rows = [(subset, answers[subset]) for subset in every]
    if maps:
        rows = [(subset, _renamed(row, subset, topology, candidates, relays == "idle")) for subset, row in rows]
    order = sorted(rows, key=lambda entry: _merit(entry[1]))
    return Placements(topology.name, wanted, tuple(row for _, row in order))


@dataclass(frozen=True)
class _Asked:
    """What is asked of every choice. candidates: who may be chosen. helpers: relays by name; idle: all others."""

    topology: Topology
    candidates: tuple[str, ...]
    helpers: tuple[str, ...]
    idle: bool
    collective: Collective
    links: tuple[str, ...] | None


# What is asked, and the kinds of choice with how many choices are alike: work for one process.
_Piece = tuple[_Asked, tuple[tuple[tuple[int, ...], int], ...]]


def _answered(
    asked: _Asked,
    kinds: Mapping[tuple[int, ...], Sequence[tuple[int, ...]]],
    report: Callable[[str], None] | None,
    workers: int,
    cluster: str | None,
) -> Iterator[tuple[tuple[int, ...], Placement]]:
    """Every kind of choice with its answer, in any order; raises what an answer raised."""
    counted = [(subset, len(orbit)) for subset, orbit in kinds.items()]
    size = 1 if workers == 1 and cluster is None else -(-len(counted) // _PIECES)
    pieces: list[_Piece] = [(asked, tuple(counted[at : at + size])) for at in range(0, len(counted), size)]
    done = 0
    what = f"ranking {len(counted[0][0])} GPUs of {asked.topology.name}"
    if report is not None:
        report(f"{what}, 0 of {len(counted)} kinds of choice")
    for (_, choices), found in pool.finished(_placed, pieces, workers, cluster):
        if isinstance(found, BlinksimError):
            raise found
        if found is None:
            raise InfeasibleError(f"{what}: {pool.DIED}; choose among fewer GPUs, or run it where there is more")
        done += len(choices)
        if report is not None and done < len(counted):
            report(f"{what}, {done} of {len(counted)} kinds of choice")
        yield from zip((subset for subset, _ in choices), found, strict=True)


def _placed(piece: _Piece) -> list[Placement] | BlinksimError:
    """The answers to a piece of work, or what made them impossible."""
    asked, choices = piece
    try:
        return [_answer(asked, subset, alike) for subset, alike in choices]
    except BlinksimError as error:
        return error


def _merit(row: Placement) -> tuple[bool, Fraction, Fraction]:
    """What choices are ordered by: forwarding decides, and what switches add among equals."""
    return row.rate is None, -(row.rate or Fraction(0)), -(row.in_network or Fraction(0))


def _check_effort(topology: Topology, count: int, kinds: int, workers: int) -> None:
    """Raises `InfeasibleError` if the bounds of so many choices would take minutes on so many processes."""
    each = budget.of_bound(topology, count)
    seconds = kinds * each / workers
    # A single one that takes too long refuses itself, with the size that works.
    if each < budget.MOST_SECONDS < seconds:
        raise InfeasibleError(
            f"{count} of {topology.ranks} GPUs of {topology.name}: {kinds:,} choices differ, whose bounds would take "
            f"about {budget.words(seconds)}; up to about {int(budget.MOST_SECONDS / seconds * kinds):,} work: choose "
            "among fewer GPUs or nodes, or use several machines with cluster="
        )


def _member_maps(topology: Topology) -> list[list[int]]:
    """The checked symmetries of the machine as permutations of its ranks."""
    from blinksim.topology.symmetry import automorphisms

    rank = {topology.index[name]: number for number, name in enumerate(topology.members)}
    return [[rank[perm[topology.index[name]]] for name in topology.members] for perm in automorphisms(topology)]


def _orbit(subset: tuple[int, ...], maps: list[list[int]]) -> set[tuple[int, ...]]:
    seen, stack = {subset}, [subset]
    while stack:
        at = stack.pop()
        for perm in maps:
            other = tuple(sorted(perm[i] for i in at))
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen


def _answer(asked: _Asked, subset: tuple[int, ...], alike: int) -> Placement:
    topology = asked.topology
    members = tuple(asked.candidates[i] for i in subset)
    rest = tuple(name for name in topology.members if name not in members) if asked.idle else asked.helpers
    part = topology.select(members, rest, asked.links, connected=False)
    groups = part.components()
    if len(groups) > 1:
        words = "not connected: " + " | ".join(" ".join(group) for group in groups)
        return Placement(members, rest, None, "", False, words, alike)
    found = bound(part, asked.collective, in_network=True)
    best, added = found.headline, found.in_network
    words = best.certificate.words(part)
    return Placement(
        members, rest, best.rate, best.scope, best.exact, words, alike, added.rate if added is not None else None
    )


def _renamed(
    row: Placement, subset: tuple[int, ...], topology: Topology, candidates: tuple[str, ...], idle: bool
) -> Placement:
    members = tuple(candidates[i] for i in subset)
    if members == row.members:
        return row
    rest = tuple(name for name in topology.members if name not in members) if idle else ()
    words = f"as {', '.join(row.members)}: {row.words}"
    return replace(row, members=members, relays=rest, words=words)
