"""What stands against each other: schedules by the name that the answer gives them, and what none of them exceeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from blinksim.algorithms.registry import Algorithm, algorithm
from blinksim.bounds.assumptions import NOTHING, assumed_by, granted_to_switches, granting
from blinksim.bounds.best_known import best_known
from blinksim.cost.brief.turned_cost import cost_of
from blinksim.errors import InfeasibleError
from blinksim.timing.projection_result import Ceiling
from blinksim.topology.elements import BRANCHING

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.schedule.model import ScheduleLike
    from blinksim.schedule.turned.entrant import Turned
    from blinksim.schedule.turned.symmetric import SymmetricSchedule
    from blinksim.schedule.ways import Parallel
    from blinksim.topology.graph import Topology

Entrant: TypeAlias = "str | os.PathLike[str] | ScheduleLike"
"""An algorithm by its name, a schedule by its file or its name, or a schedule."""
Entrants: TypeAlias = "Iterable[Entrant] | Entrant"
"""Several of them, as a list or as text such as ``ring,chain``."""
GIVEN = "(given)"
"""How the label of a schedule that is no file ends."""
# Sends from which on schedules are timed by symmetry.
_FEW_SENDS = 250_000
# Trees per rank up to which fewer ones are not looked for, and which part of the rate these may lose.
_FEW_TREES, _LESS = 3, Fraction(1, 100)
NEARLY = 0.985
"""Within this share of the ceiling, no other algorithm gains anything worth a search."""


@dataclass(frozen=True)
class Field:
    """The schedules that stand against each other.

    entrants: by name. ceiling: what no algorithm exceeds. refused: the reason, for those that cannot run here.
    left_out: the reason, for those that were not tried. slower: those that lose to another one by what they take at
    least, and have no schedule therefore.
    """

    entrants: dict[str, Parallel]
    ceiling: Ceiling
    refused: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    slower: list[str] = field(default_factory=list)


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
    if entry.turned:
        return entry.name, lambda: said_once(entry, part, collective) or entry.parallel(part, collective)
    if "size" in entry.options() and sizes:
        return entry.name, partial(_of_one_size, entry, part, collective, sizes)
    return entry.name, partial(entry.parallel, part, collective)


def _packed(entry: Algorithm, part: Topology, collective: Collective, sizes: Collection[int] = ()) -> Parallel:
    """The packed trees; where they have very many sends, one of each sort, if such trees attain the bound."""
    return symmetric(part, collective) or packed_for(entry, part, collective, sizes)


def packed_for(entry: Algorithm, part: Topology, collective: Collective, sizes: Collection[int]) -> Parallel:
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


def symmetric(
    part: Topology, collective: Collective, ceiling: Ceiling | None = None, least: float = NEARLY
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


def said_once(entry: Algorithm, part: Topology, collective: Collective, few: int = _FEW_SENDS) -> Parallel | None:
    """Its schedule by symmetry or sums; None where it has `few` sends, or its module knows of nothing shorter."""
    from blinksim.schedule.kept import kept
    from blinksim.schedule.turned.entrant import Turned
    from blinksim.schedule.turned.symmetric import SymmetricSchedule

    if not entry.turned or entry.sends_on(part, collective.name) < few:
        return None

    def build() -> Parallel:
        found: Parallel | SymmetricSchedule | None
        found = import_module(f"blinksim.algorithms.{entry.name}").symmetric(part, collective)
        if found is None:
            raise InfeasibleError(f"no turns make {entry.name} on {part.name} out of a part of it")
        return Turned.of_images(found) if isinstance(found, SymmetricSchedule) else found

    try:
        return kept(("said once", entry, part, part.loaded_from, collective), build)
    except InfeasibleError:
        return None


def _of_one_size(entry: Algorithm, part: Topology, collective: Collective, sizes: Collection[int]) -> Parallel:
    if len(sizes) > 1:
        raise InfeasibleError(f"{entry.name} makes a schedule for one size; ask for one size, or leave it out")
    return entry.parallel(part, collective, size=next(iter(sizes)))
