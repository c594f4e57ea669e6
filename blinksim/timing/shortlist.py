"""Which algorithms ``best`` considers, and why it leaves the others out.

All that need no solver take part, unless their schedules take seconds to build. Packed trees and Blink's three phases
take part where the others leave a gap to what any algorithm can reach, and where they are found within about a second:
trees for large messages, three phases for small ones. The others do not: CP-SAT, which chooses them, takes a second to
load, and packed trees reach every rate that chains reach.

Where only the quickest is asked for, on thousands of ranks, what runs in many steps need not be built to see that it is
slower: its steps, and what they put on the links out of each node, say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any

from blinksim import budget
from blinksim.algorithms.registry import REGISTRY, Algorithm, candidates
from blinksim.cost.brief.turned_cost import cost_of
from blinksim.errors import BlinksimError, InfeasibleError, PluginError
from blinksim.timing.entrants import NEARLY, Field, packed_for, said_once, symmetric
from blinksim.timing.projection_result import Ceiling, left_out_words
from blinksim.topology.group import alike_nodes

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.schedule.ways import Parallel
    from blinksim.topology.graph import Topology

# Sends, and pairs of ranks that need a route each, up to which a schedule is built unasked.
MOST_SENDS = 2_500_000
MOST_PAIRS = 20_000
# Algorithms with a solver that may be considered, and the ranks up to which that takes about a second.
_SOLVED = {"packed": 80, "blink_hierarchical": 64}
# Ranks from which packed trees are tried first.
_MANY = 32
# Seconds that the routes of an algorithm may take unasked.
_QUICK_S = 0.5
# Ranks up to which everything is built and timed, however slow it is.
_MOST_TIMED = 4096


def best_of(
    part: Topology,
    collective: Collective,
    check: Callable[[Parallel], None],
    ceiling: Ceiling,
    sizes: Collection[int],
    say: Callable[[str], None],
    only_best: bool = False,
) -> Field:
    """The field for ``best`` at these sizes. check: raises `InfeasibleError` for schedules slow to time.

    only_best: of thousands of ranks, only what may be the quickest by alpha and beta is built; the rest is `slower`.
    Raises `InfeasibleError` if no algorithm is left.
    """
    brief = only_best and part.ranks > _MOST_TIMED
    choice = _Choice(part, collective, check, sizes, say, Field({}, ceiling), brief)
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
    """The field while it fills.

    brief: what loses by its least time is not built. leader: an algorithm that leaves nothing to gain, empty if there
    is none. floor: seconds that packed trees take at least besides passing all bytes, 0 if they are timed.
    """

    part: Topology
    collective: Collective
    check: Callable[[Parallel], None]
    sizes: Collection[int]
    say: Callable[[str], None]
    field: Field
    brief: bool = False
    leader: str = ""
    floor: float = 0.0

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
            self.enter(entry, partial(packed_for, entry, self.part, self.collective, self.sizes))
        else:
            self.enter(entry, partial(entry.parallel, self.part, self.collective))

    def enter_trees_of_hosts(self) -> None:
        """Packed trees first where those of one host or device serve all: they then cost less than anything else."""
        packed = REGISTRY["packed"]
        if self.part.ranks > _MANY and packed.supports(self.collective.name):
            build = _from_hosts(self.part, self.collective, self.field.ceiling)
            if build is not None:
                self.enter(packed, build)
        if not self._trees_lead_nowhere():
            self.leader = _leader(self.field, self.sizes)

    def _trees_lead_nowhere(self) -> bool:
        """Whether packed trees of many sends, which take long to time, are no leader by what they take at least."""
        from blinksim.cost.brief.least import least_of_tree

        trees = self.field.entrants.get("packed")
        if not self.brief or trees is None or trees.spread is not None or trees.held < trees.sends:
            return False
        least, size, rate = least_of_tree(trees.compact), min(self.sizes), float(self.field.ceiling.rate)
        self.floor = least if NEARLY * (least + size / rate) > size / rate else 0.0
        return self.floor > 0

    def enter_elementary(self) -> None:
        """All that need no solver; last those of which it is known how long they take at least, the quickest first."""
        entries = candidates(self.collective.name)
        known = {entry.name: self._least(entry) for entry in entries if self.brief and not self.leader}
        told = {name: least for name, least in known.items() if least is not None}
        size = min(self.sizes)
        for entry in sorted(entries, key=lambda entry: told[entry.name](size) if entry.name in told else -1.0):
            nearly = _nearly(self.leader)
            turned = None if nearly else said_once(entry, self.part, self.collective)
            why = nearly or ("" if turned else _too_large(entry, self.part, self.collective))
            if turned is not None:
                self.enter(entry, partial(_given, turned))
            elif entry.name in told and not why and self._slow_at_all_sizes(told[entry.name]):
                self.field.slower.append(entry.name)
            else:
                self.enter_or_leave_out(entry, why)
        if self.floor and self._slow_at_all_sizes(lambda size: self.floor + size / float(self.field.ceiling.rate)):
            del self.field.entrants["packed"]
            self.field.slower.append("packed")
        if told:
            for found in (self.field.entrants, self.field.refused, self.field.left_out):
                _in_order(found)
        self.leader = self.leader or _leader(self.field, self.sizes)

    def _least(self, entry: Algorithm) -> Callable[[int], float] | None:
        """What says for a size how long an algorithm takes at least, before its routes are known; None for some."""
        from blinksim.algorithms.building.plan import Sketch
        from blinksim.cost.brief.least import least_of_messages, least_of_outline, least_of_steps
        from blinksim.schedule.outlines.outline import Outlined

        part, collective = self.part, self.collective
        if entry.fill is not None or _too_large(entry, part, collective):
            return None
        hops = least_of_steps(part, entry.hops(part.ranks, collective.name))
        try:
            if entry.outlines(part, collective):
                entrant = None if hops else entry.parallel(part, collective)
                least = partial(least_of_outline, entrant.outline) if isinstance(entrant, Outlined) else None
                return (lambda _: hops) if least is None else cache(least)
            fill = getattr(import_module(f"blinksim.algorithms.{entry.name}"), "fill", None)
            if fill is None:
                return None
            sketch = Sketch(part, collective, entry.name, "forest")
            fill(sketch)
        except BlinksimError:  # `enter` says why
            return None
        bytes_s = least_of_messages(part, sketch.messages(), 1)
        return lambda size: max(hops, bytes_s * size)

    def _slow_at_all_sizes(self, least: Callable[[int], float]) -> bool:
        rate = float(self.field.ceiling.rate)
        timed = [entrant for name, entrant in self.field.entrants.items() if name != "packed" or not self.floor]
        quickest = {size: min((cost_of(other, size).time_s for other in timed), default=inf) for size in self.sizes}
        ends = min(self.sizes), max(self.sizes)
        return all(least(size) > time for size, time in quickest.items()) and any(
            NEARLY * least(size) > size / rate for size in ends
        )

    def enter_solved(self) -> None:
        """Those with a solver that find their schedules quickly."""
        for entry in REGISTRY.values():
            named = entry.in_network or entry.name in (*self.field.entrants, *self.field.slower)
            if entry.solver and entry.supports(self.collective.name) and not named:
                self.enter_or_leave_out(entry, self._slow(entry))

    def _slow(self, entry: Algorithm) -> str:
        if entry.name not in _SOLVED:
            return "search"
        most = _SOLVED[entry.name]
        return _nearly(self.leader) or (f"search on more than {most} ranks" if self.part.ranks > most else "")


def _in_order(found: dict[str, Any]) -> None:
    """Puts what goes by names of algorithms into their order; packed trees, which were tried first, stay there."""
    order = {name: place for place, name in enumerate(REGISTRY)}
    for name in sorted(found, key=lambda name: -1 if name == "packed" else order[name]):
        found[name] = found.pop(name)


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
    return budget.of_routes(len(part.links), part.ranks) < _QUICK_S


def _from_hosts(part: Topology, collective: Collective, ceiling: Ceiling) -> Callable[[], Parallel] | None:
    """How to build packed trees from those of a single host or device; None where these are not alike."""
    from blinksim.algorithms.packed import from_hosts
    from blinksim.schedule.kept import kept
    from blinksim.schedule.ways import Parallel

    def build() -> Parallel:
        # Written out they would be the same trees, at the same rate.
        turned = symmetric(part, collective, ceiling, 0.0)
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
            size / float(found.ceiling.rate) >= NEARLY * cost_of(entrant, size).time_s
            for size in {min(sizes), max(sizes)}
        ):
            return name
    return ""
