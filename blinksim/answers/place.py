"""Placement: subsets of a machine's GPUs, ranked by what a collective can reach on them.

Subsets that a symmetry of the machine maps onto each other are computed once (orbits of subsets under the
machine's checked symmetries: Holt, Handbook of Computational Group Theory, 2005, section 4.1). Of too many to
list, those are ranked that divide the GPUs evenly among nodes, with the best of each node.

The order of a machine's GPUs in a device mesh: which groups of ranks the mesh makes of them.

Branch and bound (Land and Doig, 1960) over the orders, one GPU after another. A group that is only begun counts
with the best rate of all groups that it may become; orders that only rename the parts of an axis make the same
groups, and one of them is tried. Groups whose parts have links in common are bounded together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, groupby, pairwise, permutations
from math import comb, inf
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from blinksim import budget
from blinksim.answers import worker_pool
from blinksim.answers.bound import together
from blinksim.answers.expect import VISIBLE
from blinksim.answers.project import Answer, answer
from blinksim.bounds.certificates import listed
from blinksim.bounds.compute import bound
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.graphs.arrays import Bools, Floats, Ints
from blinksim.graphs.connectivity import breadth_first, joined_labels
from blinksim.machines import MachineLike, Question, as_topology, mesh_groups
from blinksim.results import Result, count as counted, keyed, table
from blinksim.topology.elements import titled
from blinksim.topology.graph import Topology
from blinksim.topology.selection import class_names, neighbours
from blinksim.topology.symmetry import orbit_labels, searched
from blinksim.units import exact_GBps, format_time, in_GBps, size_of, whole

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
        found = keyed(self, "@Placement", kind="exact" if self.exact else "upper")
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
    unit : str
        What is chosen, ``GPU`` or ``tile``.

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
    unit: str = "GPU"

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
        what = f"{len(best.members)} of {self.machine}'s {len(self.candidates)} {self.unit}s for {self.collective}"
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
    candidates, gpus = tuple(name for name in topology.members if name not in helpers), f"{topology.unit}s"
    if not 2 <= count <= len(candidates):
        raise InputError(f"{count} {gpus}: choose 2 to {len(candidates)} of {topology.name}'s {len(candidates)}")
    wanted.check_ranks(count)
    chosen_links = None if links is None else class_names(links, topology.link_classes)
    asked = _Asked(topology, candidates, helpers, relays == "idle", wanted, chosen_links)
    # A root, or a traffic matrix, tells the ranks apart, so that symmetric subsets need not be alike with
    # their ranks in file order.
    apart = wanted.rooted or wanted.data is not None or helpers
    symmetries = [] if apart else searched(topology)
    maps = of_ranks(topology, symmetries)
    subsets, every = comb(len(candidates), count), combinations(range(len(candidates)), count)
    kinds = _orbits(every, maps) if subsets <= LIMIT else _divisions(asked, count, symmetries, maps)
    if not kinds:
        many = f"{count} of {len(candidates)} {gpus}: {subsets:,} choices, too many to rank (over {LIMIT:,})"
        raise InputError(f"{many}; ask for the bound of those that come into question, one by one (members=)")
    if cluster is None:
        # A single bound that takes too long refuses itself, with the size that works.
        each = budget.of_bound(topology, count)
        seconds = len(kinds) * each / workers
        if each < budget.MOST_SECONDS < seconds:
            differ = f"{count} of {topology.ranks} {gpus} of {topology.name}: {len(kinds):,} choices differ"
            most = f"up to about {int(budget.MOST_SECONDS / seconds * len(kinds)):,} work"
            cure = f"choose among fewer {gpus} or nodes, or use several machines with cluster="
            long = f"whose bounds would take about {budget.words(seconds)}"
            raise InfeasibleError(f"{differ}, {long}; {most}: {cure}")
    what, done = f"ranking {count} {gpus} of {topology.name}", 0
    say = report or (lambda _: None)
    say(f"{what}, 0 of {len(kinds)} kinds of choice")
    step, listed = 1 if workers == 1 and cluster is None else -(-len(kinds) // _PIECES), tuple(kinds)
    pieces = [(asked, listed[at : at + step]) for at in range(0, len(kinds), step)]
    answers: dict[tuple[int, ...], Placement] = {}
    for (_, choices), found in worker_pool.finished(_placed, pieces, workers, cluster):
        if isinstance(found, BlinksimError):
            raise found
        if found is None:
            raise InfeasibleError(f"{what}: {worker_pool.DIED}; choose among fewer, or run it where there is more")
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
    ranking = Placements(topology.name, wanted, tuple(rows), candidates, subsets <= LIMIT, topology.unit)
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
            # Of too many choices the links between nodes stay out, which tell GPUs apart that are alike in
            # the node.
            few = comb(len(members), size) <= LIMIT
            part = topology.subset(members) if few else topology.select(members, links=self.links)
            rows = place(part, size, wanted, links=self.links, relays=relays)
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
    label = node[[topology.index[name] for name in asked.candidates]]
    nodes = len(np.unique(label))
    label = label if nodes > 1 else exchanged
    groups = [np.flatnonzero(label == one) for one in np.unique(label)]
    sorts = [tuple(alike[group].tolist()) for group in groups]
    to_rails, kinds = rail[dst, None] == np.unique(rail[ends]), Kinds()
    for number in range(1, min(count, nodes) + 1):
        size, more = divmod(count, number)
        sizes = [size + 1] * more + [size] * (number - more)
        able = [(sort, group) for sort, group in zip(sorts, groups, strict=True) if len(group) >= sizes[0]]
        if len(able) >= number and not (kinds and more):
            known = {(sort, one): group for sort, group in able for one in sizes}
            parts = {key: asked.parts(group, key[1], exchanged, to_rails) for key, group in known.items()}
            subset = _division(able, sizes, parts)
            kinds[subset] = (subset,), comb(len(able[0][1]), count) if nodes == 1 else 1
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


# Orders begun and sets of groups bounded together, up to which a search for better ones goes on: each takes about 10 s.
# A tenth of the steps for the others as good.
_MOST_STEPS, _MOST_SHARED = 300_000, 100
# Images of a set of groups under the machine's symmetries.
_MOST_IMAGES = 5_000


@dataclass(frozen=True)
class Order:
    """GPUs in the order of a mesh, whose last axis is the innermost.

    rates: algbw in bytes/s of the slowest group along each axis, all groups of the axis at once; 0 where links do not
    connect one.
    """

    members: tuple[str, ...]
    rates: tuple[Fraction, ...]


@dataclass(frozen=True, repr=False)
class MeshOrder(Result):
    """The best order of a machine's GPUs in a device mesh.

    Attributes
    ----------
    machine : Topology
        Whose GPUs they are.
    mesh : str
        Its sides, such as ``2x4``.
    collective : Collective
        What the groups of every axis run, one axis after the other.
    sizes : tuple of int
        Bytes of a group of each axis; empty where none are given, and then a byte of each counts alike.
    best, default : Order
        The best order, and that of the machine file.
    alike : int
        How many other orders with other groups are as good; of as many as were tried if not `counted`.
    counted, exact : bool
        False if the search for more of these, or for better ones, was cut short.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.place_mesh("dgx1-v100", "4x2")
    >>> found.best.members[:2], round(found.slowdown, 2)
    (('gpu0', 'gpu3'), 1.67)
    """

    machine: Topology
    mesh: str
    collective: Collective
    sizes: tuple[int, ...]
    best: Order
    default: Order
    alike: int
    counted: bool
    exact: bool

    @property
    def axes(self) -> list[int]:
        """The sides of the mesh."""
        return [int(side) for side in self.mesh.split("x")]

    def times(self, order: Order) -> list[float]:
        """Seconds that every axis takes for its size, or for one byte; infinite without links."""
        each = zip(self.sizes or [1] * len(order.rates), order.rates, strict=True)
        return [float(size / rate) if rate else inf for size, rate in each]

    @property
    def slowdown(self) -> float:
        """How many times as long the axes take, one after another, in the order of the machine file."""
        return sum(self.times(self.default)) / sum(self.times(self.best))

    @property
    def numbers(self) -> list[int]:
        """The best order as numbers of GPUs in the machine file."""
        return [self.machine.members.index(name) for name in self.best.members]

    def setting(self) -> str:
        """What makes this the order of the ranks of a job."""
        named = [re.fullmatch("gpu([0-9]+)", name) for name in self.best.members]
        if all(named):
            variable = VISIBLE.get(self.machine.device(self.best.members[0]).library.upper(), VISIBLE["NCCL"])
            return f"{variable}={','.join(name[1] for name in named if name)} before init_device_mesh"
        rows: list[Any] = self.numbers
        for side in self.axes[:0:-1]:
            rows = [rows[at : at + side] for at in range(0, len(rows), side)]
        return f"DeviceMesh(device, {str(rows).replace(' ', '')})"

    def _time(self, order: Order) -> float | None:
        """Seconds of all axes one after another; None without sizes, or if links do not connect a group."""
        return sum(self.times(order)) if self.sizes and all(order.rates) else None

    def rows(self) -> list[dict[str, Any]]:
        """A row for the best order and for that of the machine file."""
        rows = list[dict[str, Any]]()
        for name, one in (("best", self.best), ("default", self.default)):
            exact, rounded = ([said(rate) for rate in one.rates] for said in (exact_GBps, in_GBps))
            more = {"order": name, "rates_exact": exact, "algbw_GBps": rounded, "time_s": self._time(one)}
            rows.append(keyed(one, "order members rates_exact algbw_GBps time_s?", **more))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        slower = self.slowdown if all(self.default.rates) else None
        return keyed(self, "@MeshOrder", slowdown=slower, setting=self.setting()) | super().to_dict()

    def sentence(self) -> str:
        """The answer in one line."""
        members = "that of the machine file" if self.best == self.default else ",".join(map(str, self.numbers))
        others = f"{'' if self.counted else 'at least '}{self.alike:,} other{'s' * (self.alike != 1)} as good"
        if not (self.counted or self.alike):
            others = "of those that were tried"
        reach = "the best order" if self.exact else "the best order found"
        mesh = f"mesh {self.mesh} of {titled(self.machine.name, self.machine.nodes)} for {self.collective}"
        return f"{mesh}: {reach} is {members}, {others}"

    def text(self) -> str:
        """The sentence, the rates of both orders, and what to set."""
        cells = list[list[str]]()
        for name, order in (("best", self.best), ("as in the file", self.default)):
            rates = (f"{in_GBps(rate):.4g}" if rate else "not connected" for rate in order.rates)
            time_s = self._time(order)
            cells.append([name, *rates, *["-" if time_s is None else format_time(time_s)] * bool(self.sizes)])
        header = ["order", *(f"axis {number}, GB/s" for number in range(len(self.axes)))]
        lines = [self.sentence(), "", table([*header, *["one after another"] * bool(self.sizes)], cells, left=(0,))]
        lines += [f"  links {', '.join(self.machine.default_links())} at {self.machine.rates} rates"]
        return "\n".join([*lines, f"  set {self.setting()}"])


def place_mesh(
    machine: MachineLike,
    mesh: str,
    collective: CollectiveLike = "allreduce",
    size: int | float | str | Sequence[int | float | str] | None = None,
) -> MeshOrder:
    """The order of a machine's GPUs in a device mesh in which the groups of all axes take the least time.

    The groups of one axis run at once, one axis after the other.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology, all of whose members take part.
    mesh : str
        The sides, such as ``"2x4"``; the last axis is the innermost.
    collective : str or Collective
        What the groups run, one without a root that trees carry.
    size : int, str, or a sequence of these, optional
        Bytes of each group, or text such as ``"64MiB"``, or one for every axis. Default: a byte of each axis counts
        alike.

    Returns
    -------
    MeshOrder
        The best order with the rates of its axes, those of the order in the machine file, and what to set.

    Raises
    ------
    InputError
        For a mesh of other than the machine's ranks, sizes of some axes only, and collectives with a root or without
        trees.
    InfeasibleError
        If the links connect the groups of no order.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.place_mesh("dgx1-v100", "4x2").setting()
    'CUDA_VISIBLE_DEVICES=0,3,1,2,4,7,5,6 before init_device_mesh'
    """
    topology, wanted = as_topology(machine), Collective.of(collective)
    if wanted.rooted or wanted.personalized:
        raise InputError(f"groups of a mesh have collectives without a root that trees carry, not {wanted.name}")
    mesh_groups(mesh, topology.ranks)
    sides = [int(side) for side in mesh.split("x")]
    if 1 in sides:
        raise InputError(f"mesh={mesh}: leave sides of 1 out")
    given = [size] * len(sides) if isinstance(size, (int, float, str)) else list(size or ())
    if len(given) not in (0, len(sides)):
        raise InputError(f"size: give one for all axes of mesh={mesh}, or {len(sides)}")
    sizes = tuple(map(size_of, given))
    search = _Search(topology, wanted, mesh, sizes or (1,) * len(sides))
    # Without lists nothing says beforehand how long the bounds of groups at once take.
    limit = None if search.listed else float(budget.MOST_SECONDS)
    best, exact = budget.within(limit, f"order of the mesh {mesh}", search.best, spare=False)
    if best is None:
        raise InfeasibleError(f"mesh={mesh} of {topology.name}: the links connect the groups of no order")
    alike, counted = search.alike(best)
    ordered = (Order(tuple(topology.members[i] for i in one), search.rates(one)) for one in (best, range(len(best))))
    return MeshOrder(topology, mesh, wanted, sizes, next(ordered), next(ordered), alike - 1, counted, exact)


class _Search:
    """Orders of the ranks of a machine in a mesh.

    weights: the time of an axis is its weight over its rate. axes: of each, the places in an order that are a group.
    alone: the rate of every group, a number whose bits are ranks. most: of each axis, the best rate of the groups that
    one may become which has these ranks so far. limit: orders that take as long are of no interest. steps, shared: how
    many more may be begun, and bounded together; cut: if one of these ran out.
    """

    def __init__(self, topology: Topology, collective: Collective, mesh: str, weights: Sequence[int]) -> None:
        self.topology, self.collective, self.weights = topology, collective, weights
        self.axes, self.alone = list[list[list[int]]](), dict[int, Fraction]()
        for number in range(len(weights)):
            groups = mesh_groups(mesh, topology.ranks, number)
            self.axes.append([[int(place) for place in group.split(",")] for group in groups])
        self.together, self.links = dict[frozenset[int], Fraction](), dict[int, set[str]]()
        self.moves = [image.tolist() for image in of_ranks(topology, searched(topology))]
        self.limit, self.steps, self.shared, self.cut = inf, _MOST_STEPS, _MOST_SHARED, False
        self.sides = [len(axis[0]) for axis in self.axes]
        self.listed = all(comb(topology.ranks, side) <= LIMIT for side in self.sides)
        self.most = [self._most(side) if self.listed else {0: inf} for side in self.sides]
        if not self.listed:
            axes = (axis for order in self._orders() for axis in self._groups(order))
            tried = sorted(set[int]().union(*axes))
            subsets = tuple(tuple(i for i in range(topology.ranks) if group >> i & 1) for group in tried)
            rows = _placed((_Asked(topology, topology.members, (), False, collective, None), subsets))
            if isinstance(rows, BlinksimError):
                raise rows
            self.alone = {group: row.rate or Fraction(0) for group, row in zip(tried, rows, strict=True)}

    def _most(self, side: int) -> dict[int, float]:
        """`most` of an axis with groups of so many ranks, whose own rates `alone` gets."""
        bits = {name: 1 << number for number, name in enumerate(self.topology.members)}
        found = place(self.topology, side, self.collective)
        rates = {sum(bits[name] for name in row.members): row.rate or Fraction(0) for row in found}
        self.alone |= rates
        most = dict[int, float]()
        level = {group: float(rate) for group, rate in rates.items()}
        while level:
            most |= level
            above, level = level, {}
            for group, rate in above.items():
                for bit in bits.values():
                    if group & bit:
                        level[group ^ bit] = max(rate, level.get(group ^ bit, 0.0))
        return most

    def best(self) -> tuple[list[int] | None, bool]:
        """The best order, None if links connect the groups of none, and whether it is sure that none is better."""
        found, least = None, self._time([most[0] for most in self.most])
        for order in self._orders():
            if (time := self.time(order)) < self.limit:
                # Less than rounding is no difference.
                found, self.limit = order, time * (1 - 1e-9)
                if self.limit <= least:
                    break
        return found, not self.cut or self.limit <= least

    def alike(self, best: Sequence[int]) -> tuple[int, bool]:
        """How many orders take as little time as this one, itself included, and whether all of them are counted."""
        self.limit, self.steps, self.shared = self.time(best) * (1 + 1e-9), _MOST_STEPS // 10, _MOST_SHARED
        self.cut = False
        return sum(self.time(order) < self.limit for order in self._orders()), not self.cut

    def time(self, order: Sequence[int]) -> float:
        """The time of all axes; only a lower bound where that is `limit` or more."""
        rates = [float(min(self.alone[group] for group in axis)) for axis in self._groups(order)]
        for number, axis in enumerate(self._groups(order)):
            if self._time(rates) < self.limit:
                rates[number] = float(self.rate(axis))
        return self._time(rates)

    def rates(self, order: Sequence[int]) -> tuple[Fraction, ...]:
        """The rates of the axes in this order."""
        return tuple(map(self.rate, self._groups(order)))

    def rate(self, groups: Sequence[int]) -> Fraction:
        """The rate of the slowest of some groups at once, 0 where links do not connect one."""
        key, alone = frozenset(groups), min(self.alone[group] for group in groups)
        if alone and key not in self.together:
            members = [[name for i, name in enumerate(self.topology.members) if one >> i & 1] for one in groups]
            for one, names in zip(groups, members, strict=True):
                self.links[one] = self.links.get(one) or _on_the_way(self.topology.select(names))
            own = [self.links[one] for one in groups]
            if len(set[str]().union(*own)) < sum(map(len, own)):
                self.shared -= 1
                alone = min(one.rate for one in together(self.topology, map(",".join, members), self.collective).groups)
                # Of the few orders of large machines none is another's image.
                self.together |= dict.fromkeys(self._images(key) if self.listed else (), alone)
            self.together[key] = alone
        return self.together.get(key, alone)

    def _images(self, groups: frozenset[int]) -> list[frozenset[int]]:
        """These groups, and those that symmetries make of them."""
        images, seen = [groups], {groups}
        for one in images:
            for move in self.moves:
                image = frozenset(sum(1 << move[i] for i in range(len(move)) if group >> i & 1) for group in one)
                if image not in seen and len(seen) < _MOST_IMAGES:
                    seen.add(image)
                    images.append(image)
        return images

    def _time(self, rates: Sequence[float]) -> float:
        """The time of axes with these rates, one after another."""
        return sum(weight / rate if rate else inf for weight, rate in zip(self.weights, rates, strict=True))

    def _groups(self, order: Sequence[int]) -> list[list[int]]:
        """The groups of every axis."""
        return [[sum(1 << order[place] for place in group) for group in axis] for axis in self.axes]

    def _orders(self) -> Iterator[list[int]]:
        """Orders of other groups each, those that may take less than `limit`, which may fall meanwhile."""
        ranks, order = self.topology.ranks, list[int]()
        if not self.listed:
            self.cut = True
            for axes in permutations(range(len(self.sides))):
                file_order = np.arange(ranks).reshape([self.sides[axis] for axis in axes])
                yield file_order.transpose(np.argsort(axes)).ravel().tolist()
            return
        # The first GPU comes first, and the parts of every axis in the order of the GPUs beside it.
        after = {b: a for axis in self.axes for group in axis if group[0] == 0 for a, b in pairwise(group)}
        numbers = [{place: n for n, group in enumerate(axis) for place in group} for axis in self.axes]
        at = [[number[place] for number in numbers] for place in range(ranks)]
        begun = [[0] * len(axis) for axis in self.axes]

        def extend(rates: Sequence[float]) -> Iterator[list[int]]:
            place, choices = len(order), list[tuple[float, int, list[float]]]()
            if place == ranks:
                yield order.copy()
                return
            self.steps -= 1
            mine = list(zip(begun, at[place], self.most, strict=True))
            for rank in range(order[after[place]] + 1 if place in after else 0, ranks if place else 1):
                if rank not in order:
                    both = zip(rates, (most.get(axis[n] | 1 << rank, 0.0) for axis, n, most in mine), strict=True)
                    now = [min(pair) for pair in both]
                    choices.append((self._time(now), rank, now))
            for time, rank, now in sorted(choices):
                if self.steps < 0 or self.shared < 0:
                    self.cut = True
                    return
                if time < self.limit:
                    order.append(rank)
                    for axis, n, _ in mine:
                        axis[n] |= 1 << rank
                    yield from extend(now)
                    order.pop()
                    for axis, n, _ in mine:
                        axis[n] ^= 1 << rank

        yield from extend([most[0] for most in self.most])


def _on_the_way(part: Topology) -> set[str]:
    """Links, buses and switches between the members of a part, for which groups may compete."""
    near, members = neighbours(part), {*part.members}
    while ends := [name for name, others in near.items() if len(others) < 2 and name not in members]:
        for name in ends:
            for other in near.pop(name):
                near[other].discard(name)
    inside = [link for link in part.links if link.src in near and link.dst in near]
    found = {name for link in inside for name in (link.name, link.bus) if name}
    return found | {name for name in near if part.device(name).capacity is not None}
