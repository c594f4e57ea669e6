"""Placement: subsets of a machine's GPUs, ranked by what a collective can reach on them.

Subsets that a symmetry of the machine maps onto each other are computed once (orbits of subsets under the
machine's checked symmetries: Holt, Handbook of Computational Group Theory, 2005, section 4.1). Of too many to
list, those are ranked that divide the GPUs evenly among nodes, with the best of each node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, groupby
from math import comb
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from blinksim import budget
from blinksim.answers import worker_pool
from blinksim.answers.project import Answer, answer
from blinksim.bounds.certificates import listed
from blinksim.bounds.compute import bound
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.graphs.arrays import Bools, Floats, Ints
from blinksim.graphs.connectivity import breadth_first, joined_labels
from blinksim.machines import MachineLike, Question, as_topology
from blinksim.results import Result, keyed
from blinksim.textio.text_table import count as counted
from blinksim.topology.graph import Topology
from blinksim.topology.selection import class_names
from blinksim.topology.symmetry import orbit_labels, searched
from blinksim.units import in_GBps, size_of, whole

# Subsets up to which all of them are listed.
LIMIT = 100_000
Subset = tuple[int, ...]
Kinds = dict[Subset, tuple[Collection[Subset], int]]
"""One choice of each kind; those of the kind that are listed, and how many there are."""
_Parts = tuple[Ints, Floats, Floats]
# What rows say of a size.
_FIGURES = ("time_s", "interval_low_s", "interval_high_s", "could_take_s", "cannot_take_less_s", "library", "basis")
# Pieces of work that the kinds of choice are divided into, at most.
_PIECES = 1000


@dataclass(frozen=True)
class Placement:
    """One choice of members. rate: algbw of the headline bound in bytes/s, None if the links do not connect them.

    scope, exact: of that bound. words: its certificate, or the groups that are not connected. alike: how many
    subsets a symmetry maps onto this one, itself included. in_network: the rate where switches multicast and
    reduce as they can, None where that is no more. answer: what a size takes there, as `blinksim.project` says it,
    None where that was not asked.
    """

    members: tuple[str, ...]
    relays: tuple[str, ...]
    rate: Fraction | None
    scope: str
    exact: bool
    words: str
    alike: int = 1
    in_network: Fraction | None = None
    answer: Answer | None = None

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
        found = keyed(self, keys, kind="exact" if self.exact else "upper")
        return found if self.answer is None else found | {key: self.answer.row()[key] for key in _FIGURES}


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
    candidates : tuple of str
        Who may be chosen.
    whole : bool
        True if these are all choices; of too many, they are even divisions among nodes, or one of those that
        are ``alike`` in a node.

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
    candidates: tuple[str, ...] = ()
    whole: bool = True

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
        rows = [placement.to_dict() for placement in self.ranked]
        return [dict.fromkeys(rows[0]) | row for row in rows]

    def equals(self) -> list[tuple[Placement, str]]:
        """The first of all choices with equal rates, and which ones these are, in words."""
        equal = groupby(self.ranked, key=attrgetter("rate", "in_network"))
        return [(rows[0], self.words(rows)) for rows in (list(alike) for _, alike in equal)]

    def words(self, rows: Sequence[Placement]) -> str:
        """Which choices these are, in words."""
        first, chosen = rows[0].members, [{*row.members} for row in rows]
        always, some = set.intersection(*chosen), set.union(*chosen)
        free = len(first) - len(always)
        if len(rows) == comb(len(some) - len(always), free) > 1:
            out = listed([name for name in self.candidates if name not in some])
            kept = listed([name for name in first if name in always])
            either = f"{kept} and any {'other' if free == 1 else f'{free} others'}" if kept else f"any {free}"
            every = either if kept else f"all {len(rows):,} choices are alike"
            return f"{either} without {out}" if out else every
        more = max(len(rows), rows[0].alike) - 1
        return listed(first) + (f" or {counted(more, 'other')}" if more else "")

    def sentence(self) -> str:
        """The answer in one line."""
        best, choices = self.ranked[0], f"{len(self)} {'choices' if self.whole else 'even divisions'}"
        what = f"{len(best.members)} of {self.machine}'s {len(self.candidates)} GPUs for {self.collective}"
        if best.rate is None:
            return f"{what}: the links connect none of {choices}"
        connected = sum(placement.connected for placement in self.ranked)
        added = f" ({in_GBps(best.in_network):.4g} where switches add)" if best.in_network is not None else ""
        advice = f"ask for {listed(best.members)}, up to {best.rate_GBps:.4g} GB/s algbw{added}"
        return f"{what}: {advice}; {connected} of {choices} are connected"


def place(
    machine: MachineLike,
    count: int,
    collective: CollectiveLike = "allreduce",
    size: int | float | str | None = None,
    *,
    top: int = 3,
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
    size : int or str, optional
        Bytes, or text such as ``"256MiB"``: also how long that takes on the first choices, with the library, at best,
        and at least.
    top : int
        For how many groups of choices with equal rates.
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
        For a count that does not fit, for more than `LIMIT` subsets of one node unless its GPUs are alike, and
        a scheduler that does not answer or goes away.
    InfeasibleError
        If the bounds of all subsets would take minutes here, and if processes died of some.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.place("dgx1-v100", 4)[0].members
    ('gpu0', 'gpu1', 'gpu2', 'gpu3')
    """
    topology, wanted, count = as_topology(machine), Collective.of(collective), whole(count, "count")
    worker_pool.check(workers, cluster)
    helpers = () if isinstance(relays, str) else tuple(relays)
    if isinstance(relays, str) and relays not in ("none", "idle"):
        raise InputError(f"relays {relays!r}: say none, idle or the names of devices")
    candidates = tuple(name for name in topology.members if name not in helpers)
    if not 2 <= count <= len(candidates):
        raise InputError(f"{count} GPUs: choose 2 to {len(candidates)} of {topology.name}'s {len(candidates)}")
    wanted.check_ranks(count)
    chosen_links = None if links is None else class_names(links, topology.link_classes)
    asked = _Asked(topology, candidates, helpers, relays == "idle", wanted, chosen_links)
    # A root, or a traffic matrix, tells the ranks apart, so that symmetric subsets need not be alike with
    # their ranks in file order.
    symmetries, maps = list[Ints](), list[Ints]()
    if not (wanted.rooted or wanted.data is not None or helpers):
        symmetries = searched(topology)
        maps = of_ranks(topology, symmetries)
    subsets, every = comb(len(candidates), count), combinations(range(len(candidates)), count)
    kinds = _orbits(every, maps) if subsets <= LIMIT else _divisions(asked, count, symmetries, maps)
    if not kinds:
        raise InputError(f"{count} of {len(candidates)} GPUs: {subsets:,} choices, too many to rank (over {LIMIT:,})")
    if cluster is None:
        # A single bound that takes too long refuses itself, with the size that works.
        each = budget.of_bound(topology, count)
        seconds = len(kinds) * each / workers
        if each < budget.MOST_SECONDS < seconds:
            differ = f"{count} of {topology.ranks} GPUs of {topology.name}: {len(kinds):,} choices differ"
            most = f"up to about {int(budget.MOST_SECONDS / seconds * len(kinds)):,} work"
            cure = "choose among fewer GPUs or nodes, or use several machines with cluster="
            long = f"whose bounds would take about {budget.words(seconds)}"
            raise InfeasibleError(f"{differ}, {long}; {most}: {cure}")
    what, done = f"ranking {count} GPUs of {topology.name}", 0
    say = report or (lambda _: None)
    say(f"{what}, 0 of {len(kinds)} kinds of choice")
    step, listed = 1 if workers == 1 and cluster is None else -(-len(kinds) // _PIECES), tuple(kinds)
    pieces = [(asked, listed[at : at + step]) for at in range(0, len(kinds), step)]
    answers: dict[tuple[int, ...], Placement] = {}
    for (_, choices), found in worker_pool.finished(_placed, pieces, workers, cluster):
        if isinstance(found, BlinksimError):
            raise found
        if found is None:
            raise InfeasibleError(f"{what}: {worker_pool.DIED}; choose among fewer GPUs, or run it where there is more")
        done += len(choices)
        if done < len(kinds):
            say(f"{what}, {done} of {len(kinds)} kinds of choice")
        for subset, row in zip(choices, found, strict=True):
            orbit, alike = kinds[subset]
            for other in orbit:
                members, rest = asked.named(other)
                words = row.words if members == row.members else f"as {', '.join(row.members)}: {row.words}"
                answers[other] = replace(row, members=members, relays=rest, words=words, alike=alike)
    # Forwarding decides, and what switches add among equals.
    rows = [answers[subset] for subset in sorted(answers)]
    rows.sort(key=lambda row: (row.rate is None, -(row.rate or 0), -(row.in_network or 0)))
    ranking = Placements(topology.name, wanted, tuple(rows), candidates, subsets <= LIMIT)
    if size is None:
        return ranking
    timed = dict[tuple[str, ...], Answer]()
    for row, _ in ranking.equals()[:top]:
        if row.connected:
            say(f"timing {' '.join(row.members)}")
            part = Question.of(topology, members=row.members, relays=row.relays or None, links=chosen_links)
            [timed[row.members]] = answer(part, wanted, [size_of(size)])
    return replace(ranking, ranked=tuple(replace(row, answer=timed.get(row.members)) for row in rows))


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

    def parts(self, group: Ints, size: int, exchanged: Ints, to_rails: Bools) -> _Parts:
        """All choices of so many GPUs of a node: places in it, bytes/s to every rail, and the rates.

        exchanged: of ranks, equal where a symmetry exchanges two. to_rails: the rail that a link leads to.
        """
        # Of GPUs that can be exchanged the first ones will do.
        group = group[:size] if len({*exchanged[group].tolist()}) == 1 else group
        topology, members = self.topology, [self.candidates[rank] for rank in group.tolist()]
        rows: Iterable[Placement] = [Placement((name,), (), None, "", True, "") for name in members]
        if size > 1:
            wanted = Collective("allreduce") if self.collective.traffic else replace(self.collective, root=0)
            relays = "idle" if self.idle else "none"
            rows = place(topology.subset(members), size, wanted, links=self.links, relays=relays)
        places = np.array([[members.index(name) for name in row.members] for row in rows])
        rates = np.array([float(row.rate or 0) for row in rows])
        # Links out of the node that GPUs reach without passing others.
        (src, dst), node, table = topology.ends, topology.device_nodes, topology.link_columns
        own, hold = [topology.index[name] for name in members], np.array([d.holds for d in topology.devices])
        here, inside = node[src] == node[own[0]], node[src] == node[dst]
        out, passed = np.flatnonzero(here & ~inside), here & inside & ~hold[dst]
        hub = joined_labels(len(node), src[passed & ~hold[src]], dst[passed & ~hold[src]])
        near = [hub[np.append(dst[passed & (src == gpu)], gpu)] for gpu in own]
        reached = np.array([np.isin(hub[src[out]], hubs) for hubs in near])
        bandwidths = np.array(table.bandwidths, dtype=float)[table.figure[out]]
        return places, reached[places].any(axis=1) @ (bandwidths[:, None] * to_rails[out]), rates


def of_ranks(topology: Topology, symmetries: Sequence[Ints]) -> list[Ints]:
    """Where symmetries of the devices take every rank."""
    places = topology.member_places
    order = np.argsort(places)
    return [order[np.searchsorted(places[order], perm[places])] for perm in symmetries]


def _placed(piece: tuple[_Asked, tuple[Subset, ...]]) -> list[Placement] | BlinksimError:
    """The answers to some choices, or what made them impossible."""
    asked, choices = piece
    placed = []
    try:
        for subset in choices:
            members, rest = asked.named(subset)
            part = asked.topology.select(members, rest, asked.links, connected=False)
            if len(groups := part.components()) > 1:
                words = "not connected: " + " | ".join(" ".join(group) for group in groups)
                placed.append(Placement(members, rest, None, "", False, words))
                continue
            found = bound(part, asked.collective, in_network=True)
            best, added = found.headline, found.in_network
            words, more = best.certificate.words(part), None if added is None else added.rate
            placed.append(Placement(members, rest, best.rate, best.scope, best.exact, words, in_network=more))
    except BlinksimError as error:
        return error
    return placed


def _orbits(every: Iterable[Subset], maps: Sequence[Ints]) -> Kinds:
    """The orbits of the choices."""
    kinds, seen, moves = Kinds(), set[Subset](), [image.tolist() for image in maps]
    for subset in every:
        if subset not in seen:
            orbit = breadth_first(subset, lambda at: {tuple(sorted(image[i] for i in at)) for image in moves})
            kinds[subset] = orbit.keys(), len(orbit)
            seen |= orbit.keys()
    return kinds


def _divisions(asked: _Asked, count: int, moves: Sequence[Ints], maps: Sequence[Ints]) -> Kinds:
    """Even divisions among nodes and their GPUs, with the most bandwidth to rails that all of these reach.

    On one node, GPUs of which every two can be exchanged. Nothing if there are too many choices all the same.
    moves: symmetries of the devices; maps: the same of the ranks.
    """
    topology, ranks = asked.topology, np.arange(len(asked.candidates))
    (src, dst), node = topology.ends, topology.device_nodes
    # Rails are what links between nodes join. Nodes are alike by the symmetries that leave these in place.
    between = (node[src] < 0) | (node[src] != node[dst])
    rail, ends = joined_labels(len(node), src[between], dst[between]), src[between]
    images, perms = np.array(maps, int).reshape(-1, len(ranks)), np.array(moves, int).reshape(-1, len(node))
    alike = orbit_labels(len(ranks), [*images[(rail[perms[:, ends]] == rail[ends]).all(axis=1)]])
    exchanged = orbit_labels(len(ranks), [*images[(images != ranks).sum(axis=1) == 2]])
    label = node[[topology.index[name] for name in asked.candidates]] if topology.nodes > 1 else exchanged
    groups = [np.flatnonzero(label == one) for one in np.unique(label)]
    sorts = [tuple(alike[group].tolist()) for group in groups]
    to_rails, kinds = rail[dst, None] == np.unique(rail[ends]), Kinds()
    for number in range(1, min(count, topology.nodes) + 1):
        size, more = divmod(count, number)
        sizes = [size + 1] * more + [size] * (number - more)
        able = [(sort, group) for sort, group in zip(sorts, groups, strict=True) if len(group) >= sizes[0]]
        if len(able) >= number and not (kinds and more):
            known = {(sort, one): group for sort, group in able for one in sizes}
            parts = {key: asked.parts(group, key[1], exchanged, to_rails) for key, group in known.items()}
            subset = _division(able, sizes, parts)
            kinds[subset] = (subset,), comb(len(able[0][1]), count) if topology.nodes == 1 else 1
    return kinds


def _division(
    able: Sequence[tuple[Subset, Ints]], sizes: Sequence[int], parts: dict[tuple[Subset, int], _Parts]
) -> Subset:
    """The ranks of so many GPUs of each of some nodes. able: nodes by kind; parts: what kinds can give."""
    divisions = []
    # The rails of the first GPUs come first.
    for rails in sorted({tuple(row > 0) for _, ways, _ in parts.values() for row in ways}, reverse=True):
        lacks = dict[tuple[Subset, int], tuple[tuple[float, float], Ints]]()
        for key, (places, ways, rates) in parts.items():
            # On one node its own rate counts first.
            first, second = (-rates, -(ways @ rails))[:: 1 if len(sizes) == 1 else -1]
            at = np.lexsort((second, first))[0]
            lacks[key] = (first[at], second[at]), places[at]
        chosen = sorted(able, key=lambda one: lacks[one[0], sizes[0]][0])
        found = [(*lacks[sort, size], group) for (sort, group), size in zip(chosen, sizes, strict=False)]
        ranked = np.sort(np.concatenate([group[places] for _, places, group in found]))
        divisions.append((sorted(map(itemgetter(0), found), reverse=True), tuple(ranked.tolist())))
    return min(divisions, key=itemgetter(0))[1]
