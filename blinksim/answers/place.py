"""Placement: all subsets of a machine's GPUs, ranked by what a collective can reach on them.

Subsets that a symmetry of the machine maps onto each other are computed once (orbits of subsets under the
machine's checked symmetries: Holt, Handbook of Computational Group Theory, 2005, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any, Literal, NamedTuple, overload

from blinksim import budget
from blinksim.answers import pool
from blinksim.bounds.compute import bound
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.results import Result, keyed
from blinksim.topology.graph import Topology
from blinksim.topology.selection import class_names
from blinksim.units import in_GBps, whole

# Subsets up to which all of them are listed.
LIMIT = 100_000
# Pieces of work that the kinds of choice are divided into, at most.
_PIECES = 1000


@dataclass(frozen=True)
class Placement:
    """One choice of members. rate: algbw of the headline bound in bytes/s, None if the links do not connect them.

    scope, exact: of that bound. words: its certificate, or the groups that are not connected. alike: how many
    subsets a symmetry maps onto this one, itself included. in_network: the rate where switches multicast and
    reduce as they can, None where that is no more.
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
        keys = "members relays connected rate_exact=rate algbw_GBps=rate scope kind words alike"
        keys += " in_network_exact=in_network in_network_GBps=in_network"
        return keyed(self, keys, kind="exact" if self.exact else "upper")


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
    collective: CollectiveLike = "allreduce",
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
        The address of a dask scheduler, instead of workers. What a worker that dies was working on goes to
        another.

    Returns
    -------
    Placements
        A sequence and a table. Equal rates stay in the order of the machine file.

    Raises
    ------
    InputError
        For a count that does not fit, for more than `LIMIT` subsets, and a scheduler that does not answer or
        goes away.
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
    # A root, or a traffic matrix, tells the ranks apart, so that symmetric subsets need not be alike with
    # their ranks in file order.
    alike = not (wanted.rooted or wanted.traffic is not None or helpers)
    every = list(combinations(range(len(candidates)), count))
    kinds = _orbits(every, topology if alike else None)
    if cluster is None:
        # A single bound that takes too long refuses itself, with the size that works.
        each = budget.of_bound(topology, count)
        seconds = len(kinds) * each / workers
        if each < budget.MOST_SECONDS < seconds:
            raise InfeasibleError(
                f"{count} of {topology.ranks} GPUs of {topology.name}: {len(kinds):,} choices differ, whose bounds "
                f"would take about {budget.words(seconds)}; up to about "
                f"{int(budget.MOST_SECONDS / seconds * len(kinds)):,} work: choose among fewer GPUs or nodes, or use "
                "several machines with cluster="
            )
    what, done = f"ranking {count} GPUs of {topology.name}", 0
    say = report or (lambda _: None)
    say(f"{what}, 0 of {len(kinds)} kinds of choice")
    asked = _Asked(topology, candidates, helpers, relays == "idle", wanted, chosen_links)
    counted = [(subset, len(orbit)) for subset, orbit in kinds.items()]
    step = 1 if workers == 1 and cluster is None else -(-len(counted) // _PIECES)
    pieces = [(asked, tuple(counted[at : at + step])) for at in range(0, len(counted), step)]
    answers: dict[tuple[int, ...], Placement] = {}
    for (_, choices), found in pool.finished(_placed, pieces, workers, cluster):
        if isinstance(found, BlinksimError):
            raise found
        if found is None:
            raise InfeasibleError(f"{what}: {pool.DIED}; choose among fewer GPUs, or run it where there is more")
        done += len(choices)
        if done < len(counted):
            say(f"{what}, {done} of {len(counted)} kinds of choice")
        for (subset, _), row in zip(choices, found, strict=True):
            for other in kinds[subset]:
                members, rest = asked.named(other)
                words = row.words if members == row.members else f"as {', '.join(row.members)}: {row.words}"
                answers[other] = replace(row, members=members, relays=rest, words=words)

    # Forwarding decides, and what switches add among equals.
    def order(row: Placement) -> tuple[bool, Fraction, Fraction]:
        return row.rate is None, -(row.rate or Fraction(0)), -(row.in_network or Fraction(0))

    return Placements(topology.name, wanted, tuple(sorted((answers[subset] for subset in every), key=order)))


class _Asked(NamedTuple):
    """What is asked of every choice. candidates: who may be chosen. helpers: relays by name; idle: all others."""

    topology: Topology
    candidates: tuple[str, ...]
    helpers: tuple[str, ...]
    idle: bool
    collective: Collective
    links: tuple[str, ...] | None

    def named(self, subset: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Members and relays of a choice."""
        members = tuple(self.candidates[i] for i in subset)
        rest = tuple(name for name in self.topology.members if name not in members) if self.idle else self.helpers
        return members, rest


def _placed(piece: tuple[_Asked, tuple[tuple[tuple[int, ...], int], ...]]) -> list[Placement] | BlinksimError:
    """The answers to kinds of choice, each with how many choices are alike, or what made them impossible."""
    asked, choices = piece
    placed = []
    try:
        for subset, alike in choices:
            members, rest = asked.named(subset)
            part = asked.topology.select(members, rest, asked.links, connected=False)
            groups = part.components()
            if len(groups) > 1:
                words = "not connected: " + " | ".join(" ".join(group) for group in groups)
                placed.append(Placement(members, rest, None, "", False, words, alike))
                continue
            found = bound(part, asked.collective, in_network=True)
            best, added = found.headline, found.in_network
            words, more = best.certificate.words(part), None if added is None else added.rate
            placed.append(Placement(members, rest, best.rate, best.scope, best.exact, words, alike, more))
    except BlinksimError as error:
        return error
    return placed


def _orbits(every: Sequence[tuple[int, ...]], machine: Topology | None) -> dict[tuple[int, ...], set[tuple[int, ...]]]:
    """The orbits of the choices by their first one, under the symmetries of a machine, if one is given."""
    from blinksim.topology.symmetry import automorphisms

    maps = list[list[int]]()
    if machine is not None:
        rank = {machine.index[name]: number for number, name in enumerate(machine.members)}
        maps = [[rank[image[machine.index[name]]] for name in machine.members] for image in automorphisms(machine)]
    kinds, seen = dict[tuple[int, ...], set[tuple[int, ...]]](), set[tuple[int, ...]]()
    for subset in every:
        if subset in seen:
            continue
        orbit, stack = {subset}, [subset]
        while stack:
            at = stack.pop()
            images = {tuple(sorted(image[i] for i in at)) for image in maps} - orbit
            orbit |= images
            stack += images
        kinds[subset] = orbit
        seen |= orbit
    return kinds
