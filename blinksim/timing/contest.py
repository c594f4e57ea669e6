"""Candidate schedules of one question, timed by one model, and an upper bound for all of them.

Candidates are named, or those that ``best`` considers, with reasons for the ones left out. All that need no
solver take part, unless their schedules take seconds to build. Packed trees and Blink's three phases take
part if the others leave a gap to the bound and they are found within about a second: trees for large
messages, three phases for small ones. Algorithms by CP-SAT do not: it takes a second to load, and packed
trees reach every rate that chains reach. If only the quickest is asked for, those that are slower for sure,
by what a part of their time takes, are not timed further, and of many alike nodes not built if another one is
as quick as they are on the first of these. Where one node has less than others, the best
schedule of what all nodes have takes part as well, and that without links that are slower than others of
their class: it runs here too.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from importlib import import_module
from itertools import chain, compress
from math import inf, lcm
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blinksim import budget, plugins
from blinksim.algorithms.registry import REGISTRY, Algorithm, algorithm, candidates
from blinksim.bounds.bound_result import NOTHING, assumed_by, granted_to_switches, granting, of_blocks
from blinksim.bounds.compute import best_known
from blinksim.bounds.rails import read_rails
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InfeasibleError, InputError, PluginError
from blinksim.graphs.arrays import Floats, distinct, occurrences, per_topology, places, scattered
from blinksim.results import Tabular
from blinksim.schedule.candidate import Candidate, cached
from blinksim.schedule.loads import MANY_SENDS, MOST_PAIRS, RouteUses, resources, single_routes
from blinksim.schedule.model import MOST_DENOMINATOR, Schedule, ScheduleLike, as_schedule
from blinksim.timing.alpha_beta import SAFE, Starts, cost, quickest, takes_at_most
from blinksim.timing.projection_result import Ceiling, LeastTime, Projection, left_out_words
from blinksim.topology.elements import Link, among, regarded
from blinksim.topology.graph import Topology
from blinksim.topology.selection import unserved
from blinksim.topology.symmetry import alike_nodes_of, encoded, node_generators, node_group, orbit_labels

if TYPE_CHECKING:
    from blinksim.timing.timing_model import ScheduleModel

Answer = Callable[[int], Projection]
"""Projection of a size by a model without schedules."""
# The models whose times are those of links with latency, overhead and bandwidth.
ON_LINKS = ("alpha-beta", "simulate")
# Those that choose routes: some of the trees, paths or parts that data is divided among may be enough for
# few bytes.
_DIVIDED = {name for name, entry in REGISTRY.items() if entry.routes}
_WAITS = "waiting not counted above"


@dataclass(repr=False)
class Contest(Tabular):
    """All algorithms that can run a collective on a machine, built once and timed for any size.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What runs.
    model : ScheduleModel
        What times the schedules.
    bound : Ceiling
        What no algorithm exceeds here.
    candidates : dict
        The schedules by the name that the answer gives them, with the parallel routes that their sends are
        divided among.
    besides : dict
        Other schedules by the same names: the quickest one at a size stands for its name there.
    refused, left_out : dict
        The reasons of those that cannot run here, and of those that were not tried.
    others : dict
        What models without a schedule answer for a size, by name.
    whole : set of str
        Those of `candidates` that stand, with all trees, at any size.
    only_best : bool
        Only the quickest at a size is asked for, so that what is slower for sure needs no time of its own.
    named : bool
        The candidates were asked for by name, so that each is shown.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.contest("dgx1-v100", "allreduce")
    >>> for size in (2**10, 2**30):
    ...     print(found.projections(size)[0].algorithm)
    recursive_doubling
    ring
    """

    topology: Topology
    collective: Collective
    model: ScheduleModel
    bound: Ceiling
    candidates: dict[str, Candidate] = field(default_factory=dict)
    besides: dict[str, list[Candidate]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    others: dict[str, Answer] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    only_best: bool = False
    named: bool = False

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules by name, their sends divided among parallel routes."""
        return {name: candidate.schedule for name, candidate in self.candidates.items()}

    @property
    def on_links(self) -> bool:
        """True if times count links alone: latency, overhead and bandwidth."""
        return self.model.name in ON_LINKS

    def check_on_links(self, option: str) -> None:
        """Raise `InputError` naming an option for links alone if the model in force counts more."""
        if not self.on_links:
            raise InputError(f"{option} is for the links alone, and {self.model.name} counts more; leave it out")

    def among(self, candidates: dict[str, Candidate]) -> Contest:
        """The same contest among other schedules."""
        asked = self.topology, self.collective, self.model, self.bound
        return Contest(*asked, candidates, only_best=self.only_best)

    def only(self, *names: str) -> Contest:
        """The same contest among the algorithms named."""
        found = self.among({name: candidate for name, candidate in self.candidates.items() if name in names})
        others = {name: answer for name, answer in self.others.items() if name in names}
        return replace(found, others=others, besides=self.besides)

    def at(self, size: int, best: bool = False, beside: Collection[str] = ()) -> Contest:
        """The same with the schedule by each name that alpha and beta say is the quickest for `size` bytes.

        On the links these are without packed trees, and parts for further adapters, whose start costs more
        than they gain. best: without those that are slower for sure if only the quickest is asked for,
        except `beside`.
        """
        ways = {of: [one, *self.besides[of] * (of not in self.whole)] for of, one in self.candidates.items()}
        divided = ways.keys() & _DIVIDED
        others, most = [*chain(*map(ways.__getitem__, ways.keys() - divided))], inf
        if others and self.only_best and self.model.name == ON_LINKS[0] and not self.model.gamma:
            # Fewer trees that are slower than another algorithm need not be found.
            most = cost(quickest(others, size), size).time_s
        for name in divided - self.whole if self.on_links else ():
            ways[name] = [fewer_trees(one, size, most) for one in ways[name]]
        if best and most < inf:
            # What no schedule falls below is raised to that: others may then be as quick.
            most = max(most, least_time_of(self.topology, self.collective, size, self.bound).time_s)
            likely = {of for of, every in ways.items() if any(takes_at_most(one, size, most) for one in every)}
            ways = {name: every for name, every in ways.items() if name in likely.union(beside)}
        return self.among({name: quickest(every, size) for name, every in ways.items()})

    def projections(self, size: int, best: bool = False, beside: Collection[str] = ()) -> list[Projection]:
        """One projection per schedule and other model for `size` bytes, quickest first.

        best: only the first one counts; others may be by a quicker model, or left out if they are slower for
        sure. beside: what is not left out.
        """
        there, rank = self.at(size, best, beside), self.model.rank_best if best else self.model.rank
        timed = [*rank(there, size), *(answer(size) for answer in self.others.values())]
        return sorted(timed, key=lambda projection: projection.time_s)

    def answers(self, size: int, best: bool = False, beside: Collection[str] = ()) -> list[Projection]:
        """As `projections`, with a lower bound on the time if the model counts the links alone.

        The sums of alpha-beta leave out that messages wait for each other. Where that makes a time less than
        any schedule takes, the rest is added as a term of its own, so that no answer is below a proved bound.
        """
        found = (with_least_time(self.topology, one) for one in self.projections(size, best, beside))
        return sorted(found, key=lambda projection: projection.time_s)

    def rows(self) -> list[dict[str, Any]]:
        """One row per schedule, and one per refused algorithm with the reason."""
        known = [(name, found.sends, found.steps, "") for name, found in self.candidates.items()]
        refused = [(name, None, None, why) for name, why in self.refused.items()]
        return [dict(zip(("algorithm", "sends", "steps", "refused"), row, strict=True)) for row in (*known, *refused)]

    def __repr__(self) -> str:
        names = ", ".join((*self.candidates, *self.others))
        refused = f"; refused: {', '.join(self.refused)}" if self.refused else ""
        return f"<Contest for {self.collective} on {self.topology.name} by {self.model.name}: {names}{refused}>"


def with_least_time(part: Topology, projection: Projection) -> Projection:
    """A projection on `part` with the bound on its time, and raised to it; one of programs as it is."""
    if projection.bound is None or projection.least or not (projection.pick or projection.model in ON_LINKS):
        return projection
    least = least_time_of(part, projection.collective, projection.size, projection.bound, projection.grants)
    return replace(projection.raised(least.time_s, _WAITS, "alpha"), least=least)


@lru_cache(maxsize=4096)
def least_time_of(
    part: Topology, collective: Collective, size: int, bound: Ceiling, grants: tuple[str, ...] = ()
) -> LeastTime:
    """What no schedule falls below for `size` bytes on the links.

    By the bound on the rate alone for tokens of experts.

    grants: what switches may do, as in the bound.
    """
    if size < 1 or collective.routing is not None:
        return LeastTime(size / float(bound.rate), bound.words, bound.assumes, bound.scope)
    from blinksim.bounds.time.delays import SECOND
    from blinksim.bounds.time.time_bound import least_time

    best = least_time(part, collective, size, grants)
    assumes = of_blocks(best.assumes, collective)
    return LeastTime(best.time / SECOND, best.words(part), "" if assumes == NOTHING else assumes, best.kind)


@lru_cache(maxsize=64)
def ceiling_of(
    part: Topology, collective: Collective, grants: tuple[str, ...] = (), granted: tuple[str, ...] | None = None
) -> Ceiling:
    """The upper bound for all algorithms on a selected topology.

    grants: what its switches may do, of what they can. granted: what the topology may do beyond the
    description of its machine, in words for the answer; default: what `grants` say. Raises `InputError` for
    fewer than two ranks.
    """
    if part.ranks < 2:
        cure = ", or nodes=2" * (part.nodes < 2)
        raise InputError(f"members={','.join(part.members)}: a collective needs two GPUs or more{cure}")
    said = granted if granted is not None else (granted_to_switches(grants),) if grants else ()
    known = best_known(part, collective, grants)
    certificate = known.certificate
    assumes = of_blocks(granting(assumed_by(certificate, collective), *said), collective)
    every = () if grants or collective.personalized else part.in_network
    rate = best_known(part, collective, every).rate if every else certificate.rate
    more = (rate, granted_to_switches(every)) if rate > certificate.rate else None
    scope, shown = type(certificate).__name__.lower(), "" if assumes == NOTHING else assumes
    asked = certificate.rate, certificate.words(part), shown, scope, said, more
    return Ceiling(*asked, known.searched, part.rates)


# --- which candidates -------------------------------------------------------------------------------------------------

CandidateLike: TypeAlias = "str | os.PathLike[str] | ScheduleLike"
"""An algorithm by its name, a schedule by its file or its name, or a schedule."""
CandidatesLike: TypeAlias = "Iterable[CandidateLike] | CandidateLike"
"""Several of them, as a list or as text such as ``ring,chain``."""
Say = Callable[[str], None]
# How the label of a schedule that is no file ends.
_GIVEN = "(given)"
NEARLY = 0.985
"""Within this share of the ceiling, no other algorithm gains anything worth a search."""
# Trees per rank up to which fewer ones are not looked for, and which part of the rate these may lose.
_FEW_TREES, _LESS = 3, Fraction(1, 100)
# Ranks up to which the paths of an exchange are looked for even where rails reach the best rate.
_FEW_RANKS = 16
# Equal trees from every root: of 1 MiB one makes an allgather 3 % quicker on a DGX-1 V100, 11 % on a P100 and 22 % on
# MI250, four a broadcast 2 and 4 %, in 0.01 to 0.07 s each.
_EQUAL = 1, 2, 4
# Sends up to which a schedule is built unasked.
MOST_SENDS = 2_500_000
# Sends of trees of hosts without symmetry up to which these are written out: on 140, 200 and 300 nodes of Frontier 3.1,
# 6.4 and 14 million take 1.0, 2.8 and 9 s, and on 940 nodes 141 million take minutes and 12 GB.
_WRITTEN_SENDS = 10_000_000
# Algorithms with a solver that may be considered; the ranks up to which that takes about a second, and some.
_SOLVED = {"packed": (80, 512), "blink_hierarchical": (64, 64)}
# Which part of its time the quickest could save if its links carried what any can, from which on packing trees
# on more ranks is worth some seconds. Of 276 clusters of 84 to 256 ranks without a GPU or an adapter 95 held less
# than 0.7 of the bound for 1 GiB, 0.016 at worst; packed, in 0.4 to 4.6 s, held more in all of them, 0.33 to
# 0.997. Of 19 that held 0.7 to 0.8, six gained by it.
_PACKED_GAINS = 0.3
# Seconds after which a search that nobody asked for ends: on clusters of uneven nodes it may take hours.
_SEARCH_S = 20.0
# Within this share of the ceiling a search gains trees, not time: 16 GiB on 8 p5 without a NIC take 92.0 ms at
# 0.973 and 92.8 at 1, found in 0.5 and 10 s.
_HOSTS = 0.97
# From hand to hand l40s-pcie and hgx-h800 hold 0.80 of the bound, p3dn 0.85, gb300-nvl72 0.90. Other trees hold
# 0.33 on l40s-pcie, 0.73 on p3dn, and 0.91 on the others, where it gains nothing.
_HANDS = 0.8
# Ranks of the nodes on which algorithms are timed first, where there are four times as many nodes or more. On
# twelve machines, for five collectives and five sizes, none takes a thousandth less on these more nodes, but for
# the one whose members take turns: of it some idle where nodes are few, and it takes down to 0.26 of that.
_FIRST_RANKS = 64
_IN_TURNS = "locality_bruck"
# Ranks from which packed trees are tried first.
_MANY = 32
# Seconds that the routes of an algorithm may take unasked, and those of nodes in unlike groups: on 300 nodes of
# Frontier, of which the last group has 44, all algorithms take 8 s, on 940 over a minute.
_QUICK_S, _ROUTES_S = 0.5, 1.0


def each(given: CandidatesLike) -> tuple[CandidateLike, ...]:
    """The candidates one by one: text is divided at its commas, and a single path or schedule is one.

    >>> each("ring, chain")
    ('ring', 'chain')
    """
    if isinstance(given, str):
        return tuple(name.strip() for name in given.split(","))
    return tuple(given) if isinstance(given, Iterable) else (given,)


def asked_as(name: str) -> str:
    """How any process finds what a name stands for: an algorithm as it is registered, or the file of a schedule.

    Raises `InputError` for text that is neither an algorithm nor a file by its ending.
    """
    from blinksim.formats.schedule_json import names_a_file

    if names_a_file(name):
        return name
    entry = algorithm(name)
    return name if plugins.split(name) else f"{entry.file}:{entry.name}".removeprefix(":")


def enter_named(contest: Contest, names: CandidatesLike, sizes: Collection[int], say: Say) -> None:
    """Enters algorithms, files of schedules and schedules, or why one cannot run; raises if none can."""
    contest.named = True
    for candidate in each(names):
        label, build = named(candidate, contest.topology, contest.collective, sizes)
        if label in contest.candidates and label.endswith(_GIVEN):
            label = f"{label} {sum(other.startswith(label) for other in contest.candidates) + 1}"
        say(f"building {label}")
        try:
            contest.model.check_schedule(built := build())
        except InfeasibleError as error:
            contest.refused[label] = str(error)
            continue
        contest.candidates[label], contest.besides[label] = built, built.on_fewer_routes
    if contest.refused and not contest.candidates:
        raise InfeasibleError("; ".join(dict.fromkeys(contest.refused.values())))


def named(
    candidate: CandidateLike, part: Topology, collective: Collective, sizes: Collection[int] = ()
) -> tuple[str, Callable[[], Candidate]]:
    """The label of a candidate in answers, and how to build its schedule.

    Algorithms go by their name in the registry, files by their path, schedules by their algorithm. sizes: in
    bytes, for which it is to be built; building what serves one size raises `InfeasibleError` for several.
    Raises `InputError` for text that is neither an algorithm nor a file by its ending.
    """
    from blinksim.formats import schedule_json

    if not isinstance(candidate, (str, os.PathLike)):
        given = as_schedule(candidate)
        return f"{given.algorithm} {_GIVEN}", partial(schedule_json.candidate, given, part, collective)
    name = os.fspath(candidate).strip()
    if schedule_json.names_a_file(name):
        return name, partial(schedule_json.candidate, name, part, collective)
    entry = algorithm(name)
    return entry.name, partial(_built, entry, part, collective, sizes)


def _built(entry: Algorithm, part: Topology, collective: Collective, sizes: Collection[int]) -> Candidate:
    """The schedule of a named algorithm; where it has very many sends, by symmetry."""
    if "size" in entry.options() and sizes:
        if len(sizes) > 1:
            raise InfeasibleError(f"{entry.name} makes a schedule for one size; ask for one size, or leave it out")
        return entry.parallel(part, collective, size=next(iter(sizes)))
    return said_once(entry, part, collective) or forms(entry, part, collective, sizes)[0]


def forms(
    entry: Algorithm, part: Topology, collective: Collective, sizes: Collection[int], sort: bool = True
) -> list[Candidate]:
    """The schedule; of packed all forms at the best rate, or nearly, of which any may be quickest.

    sort: of these the quickest at the largest size comes first; if as quick, at the smallest.
    """
    packed = entry.name == "packed"
    best = (symmetric(part, collective) if packed else None) or entry.parallel(part, collective)
    if not (packed and sizes):
        return [best, *best.on_fewer_routes]
    # In one node few equal trees from every root may be lower than the best, and send fewer messages.
    few = part.nodes < 2 and part.ranks <= _FEW_RANKS and collective.phases == 1 and not collective.personalized
    every = best, *other_trees(best), *(entry.parallel(part, collective, trees=trees) for trees in _EQUAL if few)
    ends = (max(sizes), min(sizes)) if every[1:] and sort else ()
    return sorted(every, key=lambda one: [cost(fewer_trees(one, s), s).time_s for s in ends])


@lru_cache(maxsize=8)
def other_trees(best: Candidate) -> tuple[Candidate, ...]:
    """Other packed trees of a cluster, about as good on the links as the best.

    Where only many trees reach the best rate, few ones that lose up to a hundredth of it send fewer messages.
    Where links between switches can carry a copy for every node, one for a leaf may be sent on sooner.
    """
    from blinksim.algorithms.building.symmetric_trees import rooted_host_trees, symmetric_host_trees
    from blinksim.algorithms.packed import build, from_hosts
    from blinksim.packing.hosts import Keep, read_hosts

    part, collective, rate = best.compact.topology, best.timed.collective, best.rate
    if part.nodes < 2 or not rate:
        return ()
    if collective.personalized:
        return (Candidate(build(part, collective, templates=False)),) if part.ranks <= _FEW_RANKS else ()
    hosts, found = read_hosts(part), list[Any]()
    leaves = hosts is not None and len(hosts.fabric.leaves) > 1
    if collective.rooted:
        # Of few nodes the lowest trees, however slow, or such that nothing comes back to the root's node.
        keep: Keep = "back" if leaves else "apart"
        ways = [(Fraction(0), "back"), (Fraction(0), keep)] * (part.ranks <= _SOLVED.get("packed", (0, 0))[0])
        ways += [(rate, keep)] * (leaves or part.nodes <= best.steps)
        ways += [(Fraction(0), "hands")] * (rate < _HANDS * best_known(part, collective, ()).rate)
        found += [rooted_host_trees(part, collective, aim, by_leaf=False, keep=form) for aim, form in ways]
    elif hosts is not None:
        if leaves and not hosts.fabric.narrow(hosts.rates[0][1]):
            packed = symmetric_host_trees if best.by_symmetry else from_hosts
            found.append(packed(part, collective, rate, by_leaf=True))
        if not best.by_symmetry and best.compact.chunks > _FEW_TREES * part.ranks:
            found.append(from_hosts(part, collective, rate * (1 - _LESS)))
    return tuple(Candidate(other) for other in found if other is not None)


def fewer_trees(whole: Candidate, size: int, most: float = inf) -> Candidate:
    """With only the largest trees, paths or parts of every pair of ends, as many as take least time for `size` bytes.

    Each tree costs the start of its messages, which may be more than a small share gains. most: seconds that what is
    found takes at most, else it need not be the best.
    """
    best = whole
    floors = ((SAFE * (byte_s * size + start_s).max(), made) for byte_s, start_s, made in thinner(whole))
    for floor, made in sorted(floors, key=itemgetter(0)):
        one = made() if floor < min(most, cost(best, size).time_s) else None
        best = quickest((best, one), size) if one else best
    return best


@lru_cache(maxsize=32)
def thinner(whole: Candidate) -> list[tuple[Floats, Floats, Callable[[], Candidate | None]]]:
    """With the largest trees or paths of every pair of ends only, of equal ones the lowest, ever fewer.

    Of many, a sixteenth less each time. Before what writes them, seconds on every resource at least: for each
    byte of the size, and for starts of messages.
    """
    schedule, found = whole.by_symmetry.base if whole.by_symmetry else whole.timed, list[Any]()
    if whole.build or whole.parallel or not isinstance(schedule, Schedule):
        return found
    # What takes a route in a step is one message. Images add to these seconds; those of trees may be unlike
    # in number.
    joined = schedule.form == "steps"
    if schedule.sends > MANY_SENDS * (4 if joined else 0 if whole.by_symmetry else 1):
        return found
    ends = schedule.origin.astype(np.int64) * (int(schedule.target.max(initial=0)) + 1) + schedule.target
    _, kind, count = np.unique(ends, return_inverse=True, return_counts=True)
    place, height = np.empty(schedule.chunks, dtype=np.int64), np.zeros(schedule.chunks, dtype=np.int64)
    np.maximum.at(height, schedule.chunk, schedule.step)
    place[np.lexsort((height, -schedule.share_num, kind))] = places(count)
    most, chunk, route, share = int(count.max()), schedule.chunk, schedule.route, 1.0 * schedule.share_num
    spread, shared = single_routes(schedule), resources(schedule.topology)
    starts, routes = Starts.of(schedule, spread, shared), np.arange(len(spread.count), dtype=np.int32)
    while most > 1:
        most -= most // 16 or 1
        kept = place < most
        chunk, route = chunk[kept[chunk]], route[kept[chunk]]
        more = np.bincount(kind, share) / np.bincount(kind, share * kept) / schedule.share_den
        carried = np.asarray(np.bincount(route, (share * more[kind])[chunk], len(routes)), dtype=np.float64)
        starting = np.bincount(distinct(route) if joined else route, minlength=len(routes))
        each, _ = starts.overheads(routes, len(shared.rate), starting)
        byte_s = RouteUses.of(spread, shared).loads(carried) / shared.rates
        found.append((byte_s, each, cache(partial(only_chunks, whole, kept, kind))))
    return found


def only_chunks(whole: Candidate, kept: npt.NDArray[np.bool_], kind: npt.NDArray[np.int64]) -> Candidate | None:
    """With some chunks only, which share what the others of their kind had; None if that needs too fine shares."""
    schedule = whole.compact
    chunks, sends, number = np.flatnonzero(kept), kept[schedule.chunk], np.cumsum(kept) - 1
    # Below 2^53 these sums are exact.
    every, part = np.bincount(kind, schedule.share_num), np.bincount(kind[chunks], schedule.share_num[chunks])
    # Whole numbers of any length: with fractions it takes ten times as long.
    over = schedule.share_num[chunks].astype(object) * every[kind[chunks]].astype(np.int64)
    under = part[kind[chunks]].astype(np.int64) * np.array(schedule.share_den, dtype=object)
    den = lcm(*(under // np.gcd(over, under)))
    if den > MOST_DENOMINATOR:
        return None
    taken: dict[str, Any] = {name: getattr(schedule, name)[chunks] for name in ("origin", "target")}
    taken |= {name: getattr(schedule, name)[sends] for name in ("src", "dst", "op", "step", "route", "channel")}
    share, chunk = (over * den // under).astype(np.int64), number[schedule.chunk[sends]].astype(np.int32)
    fewer = replace(schedule, share_num=share, share_den=den, chunk=chunk, bound={}, **taken)
    return Candidate(replace(whole.by_symmetry, base=fewer) if whole.by_symmetry else fewer)


def symmetric(
    part: Topology, collective: Collective, rate: Fraction | None = None, least: float = NEARLY
) -> Candidate | None:
    """Packed trees by symmetry; None where they have few sends, or reach less than `least` of what any algorithm can.

    rate: the latter in bytes/s, if it is known.
    """
    from blinksim.algorithms.building.symmetric_trees import many_sends, symmetric_trees

    if not many_sends(part, collective, MANY_SENDS):
        return None
    aim = rate or best_known(part, collective, ()).rate
    found = symmetric_trees(part, collective, aim)
    return Candidate(found) if found is not None and (found.rate or 0) >= least * aim else None


def said_once(entry: Algorithm, part: Topology, collective: Collective, few: int = MANY_SENDS) -> Candidate | None:
    """Its schedule by symmetry or sums; None where it has `few` sends, or its module knows of nothing shorter."""
    if not entry.symmetric or entry.sends_on(part, collective.name) < few:
        return None
    module = import_module(f"blinksim.algorithms.{entry.name}")
    return _kept(f"{entry.name}, said once", part, collective, partial(module.symmetric, part, collective))


def _kept(what: str, part: Topology, collective: Collective, build: Callable[[], Any]) -> Candidate | None:
    """The schedule or candidate that `build` gives, or gave under this name before; None if it gives none."""

    def made() -> Candidate:
        found = build()
        if found is None:
            raise InfeasibleError(f"{part.name} has no {what}")
        return found if isinstance(found, Candidate) else Candidate(found)

    with suppress(InfeasibleError):
        return cached((what, part, part.loaded_from, collective), made)
    return None


def enter_best(contest: Contest, sizes: Collection[int], say: Say) -> None:
    """Enters what ``best`` considers at these sizes; raises `InfeasibleError` if no algorithm is left."""
    part, collective = contest.topology, contest.collective
    _enter_host_trees(contest, sizes, say)
    leader = _leader(contest, sizes)
    known = {} if leader else _on_first_nodes(contest, sizes, say)
    least = defaultdict(lambda: dict.fromkeys(sizes, 0.0), known)
    for entry in sorted(candidates(collective.name), key=lambda entry: sum(least[entry.name].values())):
        quicker = _reached(contest, least[entry.name])
        sure = leader or (quicker and f"{quicker} takes no longer than this one on fewer nodes")
        compact = None if sure else said_once(entry, part, collective)
        if why := sure or ("" if compact else too_large(entry, part, collective)):
            contest.left_out[entry.name] = why
        else:
            _enter(contest, entry, sizes, say, [compact] if compact else None)
    _enter_solved(contest, sizes, say, leader)
    _enter_poorer(contest, sizes, say)
    if not contest.candidates:
        [(common, times)] = Counter(contest.refused.values()).most_common(1) or [("", 0)]
        # What holds for most of them is about the model or the machine, not about algorithms.
        reasons = (common,) if times > 1 else (*contest.refused.values(), *left_out_words(contest.left_out))
        raise InfeasibleError(f"no algorithm runs {collective} on {part.name}: {'; '.join(reasons)}")


def _enter_host_trees(contest: Contest, sizes: Collection[int], say: Say) -> None:
    """Enters packed trees where those of one host or device serve all: they then cost less than all else."""
    part, collective, packed, aim = contest.topology, contest.collective, REGISTRY["packed"], contest.bound.rate
    sends = collective.phases * part.ranks * (1 if collective.rooted else part.ranks)
    unlike = sends > _WRITTEN_SENDS and not nodes_alike(part)
    if part.ranks <= _MANY or unlike or not packed.supports(collective.name):
        return
    from blinksim.algorithms.packed import from_hosts

    # Written out, those by symmetry would be the same trees, at the same rate.
    job = part, collective, aim
    trees = _kept("trees of hosts", part, collective, lambda: symmetric(*job, 0.0) or from_hosts(*job))
    # A search that takes a second finds better ones where these miss the bound.
    many = part.ranks > _SOLVED.get("packed", (0, 0))[0]
    if trees is not None and (many or (trees.rate or 0) >= _HOSTS * aim):
        _enter(contest, packed, sizes, say, [trees, *other_trees(trees)])


@per_topology
def first_nodes(topology: Topology) -> Topology | None:
    """The first of many nodes by themselves, a power of two; None where there are few, or not all alike."""
    nodes = 2 ** (max(2, _FIRST_RANKS * topology.nodes // topology.ranks).bit_length() - 1)
    if not 1 < nodes <= topology.nodes // 4 or node_group(topology) is None:
        return None
    there = topology.device_nodes < nodes
    roles = {"members": topology.members, "relays": topology.relays}
    own = {of: tuple(name for name in names if there[topology.index[name]]) for of, names in roles.items()}
    used = there[topology.link_columns.src] & there[topology.link_columns.dst]
    return among(topology, there, used, nodes=nodes, **own)


def _on_first_nodes(contest: Contest, sizes: Collection[int], say: Say) -> dict[str, dict[int, float]]:
    """Seconds for each size that algorithms take at least: what they do on the first nodes of many."""
    part, collective = first_nodes(contest.topology) if contest.only_best else None, contest.collective
    if part is None or collective.root >= part.ranks or collective.personalized:
        return {}
    few = replace(contest.among({}), topology=part, bound=ceiling_of(part, collective))
    for entry in candidates(collective.name):
        # Nothing is known of how those of users grow.
        if entry.name != _IN_TURNS and not entry.file and not too_large(entry, part, collective):
            _enter(few, entry, sizes, say)
    best = {size: few.at(size).candidates for size in sizes}
    return {name: {s: SAFE * cost(best[s][name], s).time_s for s in sizes} for name in few.candidates}


@per_topology
def nodes_alike(topology: Topology) -> bool:
    """True if the symmetries that a topology is known to have take every node with members to any other."""
    label = orbit_labels(len(topology.devices), [np.asarray(one) for one in topology.symmetries])
    places = topology.member_places
    first = np.unique(topology.device_nodes[places], return_index=True)[1]
    return node_group(topology) is not None or len(distinct(label[places[first]])) == 1


@per_topology
def evened(topology: Topology) -> Topology | None:
    """The links that all nodes have, each as where it is worst; None where nodes are alike.

    Nodes of known symmetries are alike, as every change of a single one takes these away.
    """
    alike = topology.symmetries or topology.nodes < 2
    even = None if alike else _of_links(topology, _common_links(topology))
    orders = node_generators(len(even.devices), alike_nodes_of(encoded(even))) if even else ()
    return even and replace(even, symmetries=tuple(tuple(one.tolist()) for one in orders))


@per_topology
def without_narrow(topology: Topology) -> Topology | None:
    """Without links that are narrower than three in four of their class; None where there are none."""
    table, wide = topology.link_columns, np.ones(len(topology.links), dtype=np.bool_)
    width = np.array([float(rate) for rate in table.bandwidths])[table.figure]
    for kind in distinct(table.kind).tolist():
        own = np.flatnonzero(table.kind == kind)
        wide[own] = width[own] >= np.sort(width[own])[len(own) // 4]
    return None if wide.all() else _of_links(topology, tuple(compress(topology.links, wide)))


def _of_links(topology: Topology, links: tuple[Link, ...]) -> Topology | None:
    """The topology with these links alone; None if they are all that it has, or do not join its members.

    Whatever runs there runs on `topology`, over links that are no narrower and no slower.
    """
    poorer = regarded(topology, {"index": topology.index}, links=links).pruned()
    return None if poorer.links == topology.links or unserved(poorer) else poorer


def _common_links(topology: Topology) -> tuple[Link, ...]:
    """Those that all nodes have, each as where it is worst, and all between the nodes."""
    table, nodes, links = topology.link_columns, topology.device_nodes, [*topology.links]
    names = [d.name.removeprefix(f"n{d.node}.") if d.node >= 0 else "" for d in topology.devices]
    local, owner = np.unique(names, return_inverse=True)[1], np.maximum(*(nodes[end] for end in topology.ends))
    wire = (local[table.src] * len(nodes) + local[table.dst]) * len(table.classes) + table.kind
    # A port may lead to several switches.
    wire = wire * len(links) + occurrences(owner * (wire.max(initial=0) + 1) + wire)
    inside = np.flatnonzero(owner >= 0)
    _, which, many = np.unique(wire[inside], return_inverse=True, return_counts=True)
    for same in np.split(inside[np.argsort(which, kind="stable")], np.cumsum(many)[:-1]):
        if len(same) == topology.nodes and len(distinct(table.figure[same])) > 1:
            alike = [links[place] for place in same.tolist()]
            slow = {of: max(getattr(link, of) for link in alike) for of in ("latency", "overhead")}
            worst = replace(min(alike, key=lambda link: link.bandwidth), **slow)
            for place, link in zip(same.tolist(), alike, strict=True):
                links[place] = worst.between(link.src, link.dst, link.bus)
    return tuple(compress(links, scattered(inside, (many == topology.nodes)[which], len(links), True)))


def _enter_poorer(contest: Contest, sizes: Collection[int], say: Say) -> None:
    """Enters what is quickest with fewer or worse links, if it is quicker: better ones never cost time.

    Forests by symmetry stay out, as the machine has fewer of these; in steps their loads are what counts.
    """
    part = contest.topology
    for poorer in filter(None, (without_narrow(part), evened(part))):
        from blinksim.formats.schedule_json import carried

        other = replace(contest.among({}), topology=poorer, bound=ceiling_of(poorer, contest.collective))
        if _leader(replace(contest, bound=other.bound), sizes, 1.0):
            continue
        with suppress(InfeasibleError):
            enter_best(other, sizes, say)
        alike = {name: found.by_symmetry for name, found in other.candidates.items()}
        written = [name for name, found in alike.items() if found is None or found.form == "steps"]
        for size in sizes if written else ():
            here, there = contest.at(size).candidates, other.at(size).candidates
            names = {there[name]: name for name in written}
            name = names[best := quickest(names, size)]
            if name in here and takes_at_most(here[name], size, cost(best, size).time_s):
                continue
            write = partial(lambda one: Candidate(carried(one.schedule, part, "it")), best)
            timed = best.by_symmetry.step_loads if best.by_symmetry else best.timed
            moved = Candidate(timed, best.parallel, write)
            every = [moved, *contest.besides[name], *([contest.candidates[name]] if name in here else [])]
            every.sort(key=lambda one: cost(one, max(sizes)).time_s)
            contest.candidates[name], *contest.besides[name] = every
            for reasons in (contest.refused, contest.left_out):
                reasons.pop(name, None)


def _enter_solved(contest: Contest, sizes: Collection[int], say: Say, leader: str) -> None:
    """Enters those with a solver that find schedules quickly, and packed where others leave links idle."""
    size, moving, idle = max(sizes), inf, inf
    if contest.candidates:
        best = quickest(contest.candidates.values(), size)
        time_s, moving_s = cost(best, size).time_s, size / float(best.rate or inf)
        moving, idle = moving_s / time_s, (moving_s - size / float(contest.bound.rate)) / time_s
    # Of many ranks a search takes seconds.
    few = contest.topology.ranks <= _FEW_RANKS
    leader = leader or _leader(contest, sizes, NEARLY if few else _HOSTS)
    if not (few or contest.collective.rooted or moving > 1 - _HOSTS):
        leader = leader or f"bytes take {100 * moving:.2g} % of the quickest one's time on the links"
    for entry in REGISTRY.values():
        there = entry.name in contest.candidates
        if not entry.solver or entry.in_network or there or not entry.supports(contest.collective.name):
            continue
        most = _SOLVED.get(entry.name, (0, 0))[idle > _PACKED_GAINS]
        many = f"search on more than {most} ranks" * (contest.topology.ranks > most)
        if why := leader or many if most else "search":
            contest.left_out[entry.name] = why
        else:
            _enter(contest, entry, sizes, say)


def _enter(
    contest: Contest, entry: Algorithm, sizes: Collection[int], say: Say, ready: list[Candidate] | None = None
) -> None:
    """Enters an algorithm, or why it cannot run. ready: its schedules, if they are built."""
    part, collective = contest.topology, contest.collective
    say(f"building {entry.name}")
    try:
        # At most half of the time that is left for all work, so that others are built, too.
        left, sort = budget.seconds_left(), not contest.only_best
        most = min(inf if left is None else left / 2, _SEARCH_S if entry.solver else inf)
        # Where only the quickest counts, `Contest.at` finds it, and times none that are slower for sure.
        build = partial(forms, entry, part, collective, sizes, sort)
        every = ready or budget.within(None if most == inf else most, "schedule", build, spare=False)
        contest.model.check_schedule(every[0])
    except PluginError as error:  # code of the user's own: not a property of the machine
        contest.left_out[entry.name] = str(error)
    except BlinksimError as error:
        contest.refused[entry.name] = str(error)
    else:
        contest.candidates[entry.name], *contest.besides[entry.name] = every


def too_large(entry: Algorithm, part: Topology, collective: Collective) -> str:
    """Why an algorithm without a solver is left out, empty if it is not."""
    # Of nodes few ranks need a search; where their links differ, the even part stands in for large machines.
    quick = (part.nodes > 1 and evened(part) is None) or budget.of_routes(len(part.links), part.ranks) < _QUICK_S
    # Where a fabric's groups are unlike, such as the last one of a dragonfly, every rank's routes are searched for.
    unlike = quick and not nodes_alike(part)
    if unlike and budget.of_routes(part.router.looked_at, part.ranks) > _ROUTES_S:
        return f"routes from each of {part.ranks:,} ranks of nodes in unlike groups"
    if quick and entry.outlines(part, collective):
        return ""
    if entry.every_pair and not collective.rooted and (pairs := part.ranks * (part.ranks - 1)) > MOST_PAIRS:
        return f"a route for each of {pairs:,} pairs of ranks"
    sends = entry.sends_on(part, collective.name)
    if sends <= MOST_SENDS and entry.routes and (rails := read_rails(part)) is not None:
        # What crosses is divided among the ports of a member.
        sends *= max(rails.ports())
    return f"more than {MOST_SENDS:,} sends" * (sends > MOST_SENDS)


def _leader(contest: Contest, sizes: Collection[int], near: float = NEARLY) -> str:
    """Which algorithm takes the least time that any could, but for a share, for all sizes; empty if there is none."""
    rate, where = near * float(contest.bound.rate), "" if contest.on_links else " on the links"
    name = _reached(contest, {size: size / rate for size in (min(sizes), max(sizes))})
    return name and f"{name} comes within {100 * (1 - near):.2g} % of what any algorithm can reach{where}"


def _reached(contest: Contest, most: Mapping[int, float]) -> str:
    """Which algorithm takes at most so many seconds for each of these sizes; empty if there is none."""
    for name, candidate in contest.candidates.items():
        every = candidate, *contest.besides[name]
        if all(any(takes_at_most(one, size, most_s) for one in every) for size, most_s in most.items()):
            return name
    return ""
