"""Which algorithms ``best`` considers, and why it leaves the others out.

All that need no solver take part, unless their schedules take seconds to build. Packed trees and Blink's three phases
take part where the others leave a gap to what any algorithm can reach, and where they are found within about a second:
trees for large messages, three phases for small ones. The others do not: CP-SAT, which chooses them, takes a second to
load, and packed trees reach every rate that chains reach.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from blinksim.algorithms.registry import REGISTRY, Algorithm, algorithm, candidates
from blinksim.bounds.assumptions import NOTHING, assumed_by, granted_to_switches, granting
from blinksim.bounds.best_known import best_known
from blinksim.errors import BlinksimError, InfeasibleError, PluginError
from blinksim.limits import effort
from blinksim.timing.projection_result import Ceiling, left_out_words
from blinksim.timing.turned_cost import cost_of
from blinksim.topology.elements import BRANCHING
from blinksim.topology.symmetries.exchangeable import alike_nodes

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.schedule.model import ScheduleLike
    from blinksim.schedule.turned.entrant import Turned
    from blinksim.schedule.ways import Parallel
    from blinksim.topology.graph import Topology

Entrant: TypeAlias = "str | os.PathLike[str] | ScheduleLike"
"""An algorithm by its name, a schedule by its file or its name, or a schedule."""
Entrants: TypeAlias = "Iterable[Entrant] | Entrant"
"""Several of them, as a list or as text such as ``ring,chain``."""
GIVEN = "(given)"
"""How the label of a schedule that is no file ends."""
# Sends, and pairs of ranks that need a route each, up to which a schedule is built unasked.
MOST_SENDS = 2_500_000
MOST_PAIRS = 20_000
# Sends from which on schedules are timed by symmetry.
_FEW_SENDS = 250_000
# Algorithms with a solver that may be considered, and the ranks up to which that takes about a second.
_SOLVED = {"packed": 80, "blink_hierarchical": 64}
# Ranks from which packed trees are tried first.
_MANY = 32
# Trees per rank up to which fewer ones are not looked for, and which part of the rate these may lose.
_FEW_TREES, _LESS = 3, Fraction(1, 100)
# Seconds that the routes of an algorithm may take unasked.
_QUICK_S = 0.5
# Within this share of the ceiling, no other algorithm gains anything worth a search.
_NEARLY = 0.985


@dataclass(frozen=True)
class Field:
    """The schedules that stand against each other.

    entrants: by name. ceiling: what no algorithm exceeds. refused: the reason, for those that cannot run here.
    left_out: the reason, for those that were not tried.
    """

    entrants: dict[str, Parallel]
    ceiling: Ceiling
    refused: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def ceiling_of(
    part: Topology, collective: Collective, granted: Sequence[str] = (), grants: Sequence[str] = ()
) -> Ceiling:
    """What no algorithm exceeds on a selected topology.

    granted: what the topology may do beyond the description of its machine, in words for the answer. grants: what its
    switches may do, of what they can.
    """
    known = best_known(part, collective, tuple(grants))
    certificate = known.certificate
    assumes = granting(assumed_by(certificate, collective), *granted)
    scope = type(certificate).__name__.lower()
    able = part.in_network
    more = None
    if able and not grants and not collective.personalized:
        every = tuple(ability for ability in BRANCHING if ability in able)
        rate = best_known(part, collective, every).rate
        more = (rate, granted_to_switches(every)) if rate > certificate.rate else None
    return Ceiling(
        certificate.rate,
        certificate.words(part),
        "" if assumes == NOTHING else assumes,
        scope,
        tuple(granted),
        more,
        known.searched,
    )


def each(entrants: Entrants) -> tuple[Entrant, ...]:
    """The entrants one by one: text is divided at its commas, and a single path or schedule is one.

    >>> each("ring, chain")
    ('ring', 'chain')
    """
    if isinstance(entrants, str):
        return tuple(name.strip() for name in entrants.split(","))
    return tuple(entrants) if isinstance(entrants, Iterable) else (entrants,)


def asked_as(name: str) -> str:
    """How any process finds what a name stands for: an algorithm as it is registered, or the file of a schedule.

    Raises `InputError` for text that is neither an algorithm nor a file by its ending.
    """
    from blinksim import plugins
    from blinksim.formats.schedule_files import names_a_file

    if names_a_file(name):
        return name
    entry = algorithm(name)
    return name if plugins.split(name) else entry.asked_as


def named(
    entrant: Entrant, part: Topology, collective: Collective, sizes: Collection[int] = ()
) -> tuple[str, Callable[[], Parallel]]:
    """What the answer calls an entrant, and how to build its schedule.

    Algorithms go by their name in the registry, files by their path, schedules by their algorithm. sizes: in bytes, for
    which it is to be built; building what serves one size raises `InfeasibleError` for several. Raises `InputError` for
    text that is neither an algorithm nor a file by its ending.
    """
    from blinksim.formats import schedule_files
    from blinksim.schedule.model import as_schedule

    if not isinstance(entrant, (str, os.PathLike)):
        given = as_schedule(entrant)
        return f"{given.algorithm} {GIVEN}", partial(schedule_files.entrant, given, part, collective)
    name = os.fspath(entrant).strip()
    if schedule_files.names_a_file(name):
        return name, partial(schedule_files.entrant, name, part, collective)
    entry = algorithm(name)
    if entry.name == "packed":
        return entry.name, partial(_packed, entry, part, collective, sizes)
    if entry.name == "rail_aligned":
        return entry.name, lambda: _exchange(part, collective) or entry.parallel(part, collective)
    if "size" in entry.options() and sizes:
        return entry.name, partial(_of_one_size, entry, part, collective, sizes)
    return entry.name, partial(entry.parallel, part, collective)


def _packed(entry: Algorithm, part: Topology, collective: Collective, sizes: Collection[int] = ()) -> Parallel:
    """The packed trees; where they have very many sends, one of each sort, if such trees attain the bound."""
    return _symmetric(part, collective) or _packed_for(entry, part, collective, sizes)


def _packed_for(entry: Algorithm, part: Topology, collective: Collective, sizes: Collection[int]) -> Parallel:
    """The trees at the best rate, or low ones from those of single hosts if they are quicker even at the largest size.

    Where only many trees reach the best rate, few ones that lose up to a hundredth of it send fewer messages.
    """
    from blinksim.algorithms.packed import from_hosts
    from blinksim.schedule.ways import Parallel

    best = entry.parallel(part, collective)
    if part.nodes < 2 or not sizes or not best.rate or best.compact.chunks <= _FEW_TREES * part.ranks:
        return best
    ready = from_hosts(part, collective, best.rate * (1 - _LESS))
    if ready is None:
        return best
    return min(best, Parallel(ready), key=lambda entrant: cost_of(entrant, max(sizes)).time_s)


def _symmetric(
    part: Topology, collective: Collective, ceiling: Ceiling | None = None, least: float = _NEARLY
) -> Turned | None:
    """Packed trees said once; None where they have few sends, or reach less than `least` of what any algorithm can.

    ceiling: the latter, if it is known.
    """
    from blinksim.algorithms.building.symmetric_trees import many_sends, symmetric_trees
    from blinksim.schedule.turned.entrant import Turned

    if not many_sends(part, collective, _FEW_SENDS):
        return None
    aim = (ceiling or best_known(part, collective)).rate
    found = symmetric_trees(part, collective, aim)
    return Turned.of_images(found) if found is not None and (found.rate or 0) >= least * aim else None


def _exchange(part: Topology, collective: Collective) -> Turned | None:
    """`rail_aligned` said once; None where it has few sends, blocks or adapters differ, or nothing turns the nodes."""
    from blinksim.algorithms.rail_aligned import symmetric
    from blinksim.schedule.kept import kept
    from blinksim.schedule.turned.entrant import Turned

    if REGISTRY["rail_aligned"].sends_on(part, collective.name) < _FEW_SENDS:
        return None

    def build() -> Turned:
        found = symmetric(part, collective)
        if found is None:
            raise InfeasibleError(f"no turns make the alltoall of {part.name} out of what one node sends")
        return Turned.of_images(found)

    try:
        found = kept(("exchange", part, part.loaded_from, collective), build)
    except InfeasibleError:
        return None
    return found if isinstance(found, Turned) else None


def _of_one_size(entry: Algorithm, part: Topology, collective: Collective, sizes: Collection[int]) -> Parallel:
    if len(sizes) > 1:
        raise InfeasibleError(f"{entry.name} makes a schedule for one size; ask for one size, or leave it out")
    return entry.parallel(part, collective, size=next(iter(sizes)))


def best_of(
    part: Topology,
    collective: Collective,
    check: Callable[[Parallel], None],
    ceiling: Ceiling,
    sizes: Collection[int],
    say: Callable[[str], None],
) -> Field:
    """The field for ``best`` at these sizes. check: raises `InfeasibleError` for schedules slow to time.

    Raises `InfeasibleError` if no algorithm is left.
    """
    choice = _Choice(part, collective, check, sizes, say, Field({}, ceiling))
    choice.enter_trees_of_hosts()
    choice.enter_elementary()
    choice.enter_solved()
    found = choice.field
    if not found.entrants:
        [(common, times)] = Counter(found.refused.values()).most_common(1) or [("", 0)]
        # What holds for most of them is about the model or the machine, not about algorithms.
        reasons = (common,) if times > 1 else (*found.refused.values(), *left_out_words(found.left_out))
        raise InfeasibleError(f"no algorithm runs {collective} on {part.name}: {'; '.join(reasons)}")
    return found


@dataclass
class _Choice:
    """The field while it fills. leader: an algorithm that leaves nothing to gain, empty if there is none."""

    part: Topology
    collective: Collective
    check: Callable[[Parallel], None]
    sizes: Collection[int]
    say: Callable[[str], None]
    field: Field
    leader: str = ""

    def enter(self, entry: Algorithm, build: Callable[[], Parallel]) -> None:
        self.say(f"building {entry.name}")
        try:
            entrant = build()
            self.check(entrant)
        except PluginError as error:  # code of the user's own: not a property of the machine
            raise PluginError(
                f"{error} (it takes part unless it is registered with only_named=True, or raises InfeasibleError there)"
            ) from error
        except BlinksimError as error:
            self.field.refused[entry.name] = str(error)
        else:
            self.field.entrants[entry.name] = entrant

    def enter_or_leave_out(self, entry: Algorithm, why: str) -> None:
        if why:
            self.field.left_out[entry.name] = why
        elif entry.name == "packed":
            self.enter(entry, partial(_packed_for, entry, self.part, self.collective, self.sizes))
        else:
            self.enter(entry, partial(entry.parallel, self.part, self.collective))

    def enter_trees_of_hosts(self) -> None:
        """Packed trees first where those of one host or device serve all: they then cost less than anything else."""
        packed = REGISTRY["packed"]
        if self.part.ranks > _MANY and packed.supports(self.collective.name):
            build = _from_hosts(self.part, self.collective, self.field.ceiling)
            if build is not None:
                self.enter(packed, build)
        self.leader = _leader(self.field, self.sizes)

    def enter_elementary(self) -> None:
        """All that need no solver."""
        for entry in candidates(self.collective.name):
            nearly = _nearly(self.leader)
            turned = None if nearly or entry.name != "rail_aligned" else _exchange(self.part, self.collective)
            if turned is not None:
                self.enter(entry, partial(_given, turned))
            else:
                self.enter_or_leave_out(entry, nearly or _too_large(entry, self.part, self.collective))
        self.leader = self.leader or _leader(self.field, self.sizes)

    def enter_solved(self) -> None:
        """Those with a solver that find their schedules quickly."""
        for entry in REGISTRY.values():
            named = entry.name in self.field.entrants or entry.in_network
            if entry.solver and entry.supports(self.collective.name) and not named:
                self.enter_or_leave_out(entry, self._slow(entry))

    def _slow(self, entry: Algorithm) -> str:
        if entry.name not in _SOLVED:
            return "search"
        most = _SOLVED[entry.name]
        return _nearly(self.leader) or (f"search on more than {most} ranks" if self.part.ranks > most else "")


def _given(entrant: Parallel) -> Parallel:
    return entrant


def _too_large(entry: Algorithm, part: Topology, collective: Collective) -> str:
    """Why an algorithm without a solver is left out, empty if it is not."""
    if entry.outlines(part, collective) and _routes_are_quick(part):
        return ""
    pairs = part.ranks * (part.ranks - 1)
    if entry.every_pair and pairs > MOST_PAIRS:
        return f"a route for each of {pairs:,} pairs of ranks"
    sends = entry.sends_on(part, collective.name)
    return f"more than {MOST_SENDS:,} sends" if sends > MOST_SENDS else ""


def _routes_are_quick(part: Topology) -> bool:
    """Whether few ranks need a search, as those of alike nodes do."""
    if part.nodes > 1 and part.symmetries and alike_nodes(part) is not None:
        return True
    return effort.of_routes(len(part.links), part.ranks) < _QUICK_S


def _from_hosts(part: Topology, collective: Collective, ceiling: Ceiling) -> Callable[[], Parallel] | None:
    """How to build packed trees from those of a single host or device; None where these are not alike."""
    from blinksim.algorithms.packed import from_hosts
    from blinksim.schedule.kept import kept
    from blinksim.schedule.ways import Parallel

    def build() -> Parallel:
        # Written out they would be the same trees, at the same rate.
        turned = _symmetric(part, collective, ceiling, 0.0)
        if turned is not None:
            return turned
        ready = from_hosts(part, collective, ceiling.rate)
        if ready is None:
            raise InfeasibleError(f"{part.name} is no cluster of alike hosts")
        return Parallel(ready)

    try:
        found = kept(("from hosts", part, part.loaded_from, collective), build)
    except InfeasibleError:
        return None
    return lambda: found


def _nearly(leader: str) -> str:
    return f"{leader} comes within 1.5 % of what any algorithm can reach" if leader else ""


def _leader(found: Field, sizes: Collection[int]) -> str:
    """The algorithm whose time nearly is the least that any could take, for all sizes; empty if there is none."""
    for name, entrant in found.entrants.items():
        if all(
            size / float(found.ceiling.rate) >= _NEARLY * cost_of(entrant, size).time_s
            for size in {min(sizes), max(sizes)}
        ):
            return name
    return ""
