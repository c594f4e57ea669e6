"""Times of the library that runs on a machine (NCCL, RCCL, HCCL …): the first figure of every answer.

One source for all commands. Where somebody published the time of this very job, that is the figure, of
several runs their median; between and near the published sizes of the job the model below is scaled to
them, and no rate jumps where one run ends and another begins. That model is, in this order:
constants that were fitted to published tables (`blinksim.timing.measured.library_rates`); the time that NCCL's
own model states; what libraries send on the links: chains in the nodes and trees across them, at the rate
that no schedule exceeds. The last two are multiplied by the factor that published times are above them. An
edited machine takes as many times longer as the channels that NCCL would choose, or the links, carry less. No
figure is below the bound on the time, and none but a published one below that of fewer bytes. Intervals hold
eight in ten of the published times that they were not made from (``models/usable/spreads.csv``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, wraps
from itertools import chain, compress, filterfalse, product, starmap
from operator import attrgetter
from statistics import median
from typing import Any, TypeVar, cast, get_args

import numpy as np

from blinksim.algorithms.registry import algorithm
from blinksim.bounds.rails import symmetric_rails
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InfeasibleError, one_of, unknown
from blinksim.formats import rate_tables
from blinksim.formats.shipped.known_gpus import RECORDED, like
from blinksim.graphs.connectivity import breadth_first
from blinksim.machines import Question, RatesName, at_nominal, load
from blinksim.nccl.search_passes import NO_SOLUTION
from blinksim.nccl.tuner import tuner as nccl_tuner
from blinksim.results import Term, count
from blinksim.timing.alpha_beta import quickest
from blinksim.timing.contest import ceiling_of, evened, least_time_of, too_large
from blinksim.timing.measured import library_rates, public_tables
from blinksim.timing.measured.library_rates import AGAIN, EVERY, EXPECTED, LINKS, NCCL, PREDICTED, SENDS, TURNS, Spread
from blinksim.timing.measured.public_tables import GRAPH, HALVES, SET_UPS, SLOW, STREAM, THREADS, Cell, SetUpName
from blinksim.timing.model_registry import schedule_model
from blinksim.timing.nccl_model import CHOICE, MOST_CHANNELS, NcclTuner, as_sold, load_of
from blinksim.timing.projection_result import Ceiling, Projection, of_part, rates_of
from blinksim.timing.timing_model import TimingModel
from blinksim.topology.graph import Topology
from blinksim.topology.rules import behind
from blinksim.topology.selection import NONE
from blinksim.topology.symmetry import searched
from blinksim.units import format_size, format_time, in_GBps

ENTRIES = ({"name": "library", "class": "Library", "chooses": "library", "place": 6},)

MODEL = "library"
T = TypeVar("T")
_ENDS = "interval_low_s", "interval_high_s"
# The node, or the range of nodes, of a device in an edit.
_OF_NODE = re.compile(r"\bn\[?([0-9]+)(?:-([0-9]+)\])?\.")
_SETTINGS = "version", "multicast", "published", "constants", "set_up"
SHARE = "8 in 10"
"""The share of published times that the intervals hold."""
# What libraries are called in answers, by the attribute of GPUs.
_NAMES = {"nccl": NCCL, "rccl": "RCCL", "hccl": "HCCL", "oneccl": "oneCCL", "xla": "XLA", "neuron": "Neuron CCL"}
# NCCL plans larger NVLink domains as many nodes, which its model here does not.
MOST_GPUS_A_NODE = 16
# Between published sizes within this factor their ratio to the model is interpolated; farther apart it fades.
_NEIGHBORS = 16
# Beyond the published sizes of a job their ratio to the model fades; by this factor in size it is forgotten.
_FADES = 256
# In nodes it is forgotten sooner: what 8 nodes say of 540, and 2 of 512, makes held-out times no better.
_FADES_IN_NODES = 64
# Factors on a model at two sizes differ by less.
_FALLS = 16
# What a model remembers, some 2 KB each.
_MOST_FOUND = 10_000
# What one allreduce does at least.
_ROOTED = "broadcast", "reduce"


@dataclass(frozen=True, slots=True)
class _Modelled:
    """A time by a model, with the spread of published times around it."""

    time_s: float
    terms: tuple[Term, ...]
    what: str
    origin: str
    spread: Spread

    def times(self, factor: float) -> _Modelled:
        """So many times as long."""
        terms = tuple(replace(term, time_s=factor * term.time_s) for term in self.terms)
        return replace(self, time_s=factor * self.time_s, terms=terms)


def _once(method: Callable[..., T]) -> Callable[..., T]:
    """A method that works each answer out once for what the model may know at the time."""

    @wraps(method)
    def found(self: Library, *asked: object, **how: object) -> T:
        key = method, self.published, self.constants, *asked, *how.values()
        if key not in self._found:
            if len(self._found) > _MOST_FOUND:
                self._found.clear()
            self._found[key] = method(self, *asked, **how)
        return cast("T", self._found[key])

    return found


class Library(TimingModel):
    """The library of the machine, by its own choice of algorithm and protocol.

    Parameters
    ----------
    version : str
        Of NCCL.
    multicast : bool
        Switches may add (NVLS), where they can.
    published : callable, optional
        Which published cells may be used; to judge intervals by the others.
    constants : bool
        False: as if nobody had measured the machine.
    set_up : str
        How calls are launched: ``graph``, ``stream`` or ``threads``. From a stream the host holds up short ones.

    Examples
    --------
    >>> import blinksim as bs
    >>> model, machine = Library().at(bs.Question("p5", nodes=2))
    >>> found = model.times(machine, bs.Collective("allreduce"), [2**24])[0]
    >>> found.details["basis"], round(found.time_s * 1e6)
    ('measured', 283)
    """

    name = MODEL
    best = (MODEL,)

    def __init__(
        self,
        *,
        version: str = nccl_tuner.DEFAULT_VERSION,
        multicast: bool = True,
        published: Callable[[Cell], bool] = lambda _: True,
        constants: bool = True,
        set_up: SetUpName = "graph",
    ) -> None:
        one_of("version of NCCL", version, nccl_tuner.versions())
        one_of("set-up", set_up, SET_UPS)
        self.version, self.multicast, self.published, self.constants = version, multicast, published, constants
        self.set_up = set_up
        self.question = Question()
        self.healthy: Library | None = None
        self._found: dict[tuple[object, ...], Any] = {}

    def at(self, question: Question, **settings: Any) -> tuple[Library, Topology]:
        """The model for the GPUs of a question, and their machine as NCCL's model takes it.

        settings: in place of this model's, by the names of its parameters.
        """
        model = Library(**{of: getattr(self, of) for of in _SETTINGS} | settings)
        named, machine = get_args(RatesName), question.machine
        name, table = (isinstance(machine, Topology) and machine.loaded_from) or ("", "")
        own = isinstance(machine, Topology) and any(
            (machine.edits, machine.source.startswith(RECORDED), question.members, machine.members != machine.holders)
        )
        if isinstance(machine, Topology) and name and (own or table not in named):
            # The same question by name and edits has the same answer.
            nodes, edits = max(machine.nodes, question.nodes), (*machine.edits, *question.edits)
            asked = replace(question, machine=name, nodes=nodes, edits=edits, rates=question.rates or table)
            with suppress(BlinksimError):
                there, here = question.whole(), asked.whole()
                if (members := question.member_names(there)) != here.members:
                    asked = replace(asked, members=",".join(members), ranks_per_node=None)
                question = asked if asked.part(here) == question.part(there) else question
        question = _on_one_node(question)
        # Tables of the package are views of one machine; a table in a file changes it.
        changed, machine = question.rates not in (None, *named), question.machine
        at = at_nominal(machine) if isinstance(machine, Topology) else machine
        model.question = replace(question, machine=at, rates=question.rates if changed else None)
        model.healthy = model._as_it_was(question, changed or bool(question.edits))
        return model, model.machine

    def _as_it_was(self, question: Question, edited: bool) -> Library | None:
        """The model of the machine before it was edited, or of one of the catalogue that has what it says it lacks.

        Or of switches that add, where they are set not to, and nobody published what jobs of several nodes take then.
        """
        whole = self.machine
        if not edited and not self.multicast and self.nodes > 1 and whole.in_network:
            told = {(one.collective, one.nodes > 1) for one in self._published_of(library_rates.catalogued(whole))}
            if ("allreduce", True) not in told:
                return self.at(question, multicast=True)[0]
        alone = not edited and self.nodes == 1 and question.links is None and whole.rates.startswith("nccl")
        twin = like(self.question.node()) if alone else None
        if not edited and (twin is None or not twin.edits):
            return None
        self.multicast &= bool(whole.in_network)
        # Without switches that add: what it takes with those set not to; without GPUs: what the others take.
        asked = replace(question, edits=(), rates=None, machine=twin.name if twin else question.machine)
        if (left := question.member_names(question.whole())) != asked.member_names(asked.whole()):
            asked = replace(asked, members=",".join(left), ranks_per_node=None)
        return self.at(asked)[0]

    @cached_property
    def _planned(self) -> tuple[NcclTuner, Topology]:
        return NcclTuner(version=self.version, multicast=self.multicast).at(self.question.preferring_known("nccl"))

    @property
    def machine(self) -> Topology:
        """The machine as NCCL's model takes it: one of the nodes, where all are alike."""
        return self._planned[1]

    @cached_property
    def prediction(self) -> nccl_tuner.Prediction | None:
        """NCCL's plan; None where another library runs, or its model says nothing."""
        tuner, whole = self._planned
        with suppress(BlinksimError):
            if self.library == NCCL and len(whole.members) <= MOST_GPUS_A_NODE * whole.nodes:
                return tuner.prediction(whole)
        return None

    @cached_property
    def nodes(self) -> int:
        """Nodes that take part; NCCL's model plans for one where all are alike."""
        return self._planned[0].nodes or len(set(self.machine.device_nodes[self.machine.member_places].tolist()))

    @cached_property
    def ranks(self) -> int:
        """GPUs that take part."""
        return len(self.machine.members) * (self._planned[0].nodes or 1)

    @property
    def library(self) -> str:
        """The name of the library."""
        name = self.machine.device(self.machine.members[0]).library
        return _NAMES.get(name, name)

    @cached_property
    def job(self) -> library_rates.LibraryJob:
        """The job; its collective is open."""
        whole, plan = self.machine, self.prediction
        switched = any(device.kind == "switch" and device.node >= 0 for device in whole.devices)
        near = plan is None or plan.ring.type_intra == "NVL"
        # NCCL doubles the channels that it has searched.
        channels = min(MOST_CHANNELS, 2 * plan.nchannels) if plan else 0
        return library_rates.LibraryJob("", self.ranks, self.nodes, self.library, channels, switched and near)

    @cached_property
    def _name(self) -> str:
        """The machine of the catalogue that has these links; empty if there is none."""
        if self.healthy or self.question.links is not None:
            return ""
        twin = like(self.question.node()) if self.nodes == 1 else None
        return twin.name if twin and not twin.edits else library_rates.catalogued(self.machine)

    @cached_property
    def _known_as(self) -> str:
        """The machine of the catalogue whose published jobs these GPUs stand for; empty if there is none."""
        return self._runs_of if self._stands_for("") else ""

    @cached_property
    def _runs_of(self) -> str:
        """The machine whose published jobs these are.

        Between nodes one that sends as much, if nobody published any: it has as many GPUs in a node,
        of the same links, and the same network.
        """
        exchange = Collective("alltoall")
        # What two nodes send tells of more, whose bounds take longer.
        pair = self._beside(2, self.ranks // self.nodes) if self._name and self.nodes > 2 else self
        lesser = pair._lesser(exchange) if self.nodes > 1 else ()
        alike = (one for one in lesser if load(one._name).ranks == load(self._name).ranks)
        as_much = (one for one in alike if one.bounded(exchange)[2].rate == pair.bounded(exchange)[2].rate)
        return next((one._name for one in as_much), self._name)

    @_once
    def _stands_for(self, members: str) -> bool:
        """True if a symmetry maps these GPUs onto those named of a node, or onto the first ones.

        Among GPUs that a switch joins any stand for as many others that were not named.
        """
        if not self._name or (self.job.switched and not members):
            return True
        node = load(self._name)
        moves = [move.tolist() for move in searched(node)]
        # A machine of several nodes in its file gives their devices no prefix.
        copies = self.machine.nodes // node.nodes
        names = [member.partition(".")[2] if copies > 1 else member for member in self.machine.members]
        own = frozenset(map(node.index.__getitem__, names))
        alike = breadth_first(own, lambda places: {frozenset(map(move.__getitem__, places)) for move in moves})
        named = Question(node, members=members or None).member_names(node)[: len(names) // copies]
        return frozenset(map(node.index.__getitem__, named)) in alike

    def spared(self, collective: Collective, sizes: Sequence[int]) -> list[Projection | None]:
        """What it takes for each size without the adapters that it waits for, or None if that is no less.

        details: ``left_out``, the adapters, and ``set``, by node what leaves them out.
        """
        untold = library_rates.catalogued(self.machine) or self.library not in _LED
        weak = () if untold else chain(*(names for names, _ in behind(at_nominal(self.machine))))
        slow, told = nccl_tuner.without_adapters(self.machine, {*weak})
        question = replace(self.question, edits=(*self.question.edits, *(f"without {name}" for name in slow)))
        found, more = list[Projection | None](), {"left_out": slow, "set": told}
        with suppress(BlinksimError):
            models = (self, self.at(question)[0]) if slow else ()
            pairs = zip(*(one.times(one.machine, collective, sizes) for one in models), strict=True)
            found += [other if other.time_s < own.time_s else None for own, other in pairs]
        return [one and replace(one, details={**one.details, **more}) for one in found or [None] * len(sizes)]

    def times(
        self, topology: Topology, collective: Collective, sizes: Iterable[int], algorithms: Sequence[str] | None = None
    ) -> list[Projection]:
        """As `TimingModel.times`: for each size a projection whose details say the interval and where it comes from.

        details: ``interval_low_s``, ``interval_high_s``, ``interval_share``; ``basis``: ``measured`` at this point,
        ``between`` published sizes, ``lent`` by machines of the same links, else ``fitted``, ``predicted`` or ``links``
        after the model; ``origin`` in words; ``set_up`` where the launch matters; ``library`` and its ``choice``;
        ``bound_rates``, at which its bound holds; ``published_s`` of several runs of the point, ascending.
        """
        if others := [name for name in algorithms or () if name != MODEL]:
            raise unknown("algorithm of the model library", others[0], self.best)
        if not self.question.machine:
            return self.at(Question(topology))[0].times(topology, collective, sizes)
        collective.check_ranks(self.ranks)
        return [self._held(self._risen(collective, size)) for size in sizes]

    @_once
    def nominal(self, collective: Collective) -> Topology:
        """The part of the machine at nominal rates, or those of a file: what was measured of links is no bound."""
        question = replace(self.question, collective=collective)
        return question.part(at_nominal(question.whole()))

    @_once
    def bounded(self, collective: Collective) -> tuple[Topology, tuple[str, ...], Ceiling]:
        """As `nominal`, what its switches may do for the collective, and its bound."""
        part = self.nominal(collective)
        grants = part.in_network if self.multicast and not collective.personalized else ()
        return part, grants, ceiling_of(part, collective, grants)

    def _held(self, taken: Projection) -> Projection:
        """A projection and the bound on its time, which no end of its interval is below."""
        part, grants, bound = self.bounded(taken.collective)
        least = least_time_of(part, taken.collective, taken.size, bound, grants)
        pick = taken.details["choice"].partition(" ")[0]
        plain = 1 / float(ceiling_of(part, taken.collective).rate) if pick == "tree" else 0.0
        needs_s = taken.size * max(plain, load_of(part, taken.collective, pick))
        # Where nobody measured anything, it takes what NCCL's model picks.
        guess = taken.details["basis"] in GUESSES
        found = taken.raised(max(least.time_s, guess * needs_s), "what the links need at least")
        # What the bound raises keeps an interval as wide above it.
        ends = {end: max(taken.details[end] * (found.time_s / taken.time_s), least.time_s) for end in _ENDS}
        any_launch = self.set_up != "graph" and self.nodes > 1
        origin = taken.details["origin"] + "; however calls are launched" * any_launch
        others = self._of_this_job([one for one in self._published_of(self._name) if one.set.members], True)
        told = *others, *self._of_this_job(self._published_of(self._name, aside=True))
        rest = [one for one in told if one.collective == taken.collective.name and self.published(one)]
        if rest and taken.details["basis"] not in _PUBLISHED:
            one = min(rest, key=lambda one: (abs(math.log(one.size / taken.size)), one.set.quality))
            who = f"other GPUs, {one.set.members}," if one in others else f"with {one.set.algorithm} it"
            who = "a run that was reported as slow" if one.set.quality == SLOW else who
            origin += f"; {who} took {format_time(one.time_s)} for {format_size(one.size)}"
        details = {**taken.details, **ends, "bound_rates": rates_of(part), "origin": origin}
        if taken.details["basis"] == "measured" and found.time_s > (1 + 1e-9) * taken.time_s:
            held = f"the bound, as links cannot carry it in {format_time(taken.time_s)}, {origin}; check that time"
            details |= {"basis": "scaled", "origin": held}
        if needs_s > (1 + 1e-9) * found.time_s:
            details |= {"choice": "", "nccl_expects_s": {}}
            details["origin"] += f"; quicker than a {pick} can be on these links, which NCCL's model picks"
            terms = (Term(f"not by a {pick}", found.time_s, ""),)
            found = replace(found, terms=terms, bottleneck=terms[0].name)
        return replace(found, details=details, least=least, bound=bound, grants=grants)

    @_once
    def _risen(self, collective: Collective, size: int, asked: float = 0.0) -> Projection:
        """The time, no less than of fewer bytes unless it was published; the ends of its interval do not fall.

        Factors on models fall as the size grows, constants jump where NCCL changes its choice, and published
        times of several runs need not join. asked: seconds of more bytes; far less says nothing of these.
        """
        # Times and constants in a file of rates that was named are those of the machine as it is.
        own = self.question.rates and (self._curves(collective) or self.by_constants(collective, size))
        healthy = None if own and not self.machine.edits else self.healthy
        found = self._edited(healthy, collective, size) if healthy else self._taken(collective, size)
        if healthy or found.time_s * _FALLS < asked:
            return found
        for one, who in self._less(found, asked):
            less, jobs = found.time_s < one.time_s * (1 - 1e-9), one.details["nodes"] != self.nodes
            # Published times stay what they are, and end no later where fewer bytes took longer, or fewer
            # nodes may. Between their sizes other jobs raise none.
            guessed = found.details["basis"] not in _PUBLISHED[: 1 + jobs]
            told = f"; no less than {who}" if guessed else "; fewer bytes took longer" * (not jobs)
            found = found.raised(one.time_s, f"what it takes {who}") if guessed else found
            lows, highs = ([each.details[end] for each in (found, one)] for end in _ENDS)
            low = min(max(lows), found.time_s, *found.details.get("published_s", ()))
            high = max(highs) if guessed or not (less or jobs) else highs[0]
            origin = found.details["origin"] + told * less
            found = replace(found, details={**found.details, _ENDS[0]: low, _ENDS[1]: high, "origin": origin})
        return found

    def _less(self, found: Projection, asked: float) -> Iterator[tuple[Projection, str]]:
        """What takes no longer than a time: fewer bytes, and if nobody published it, other GPUs and fewer nodes.

        Such GPUs of a node were measured, and their links carry no less.

        asked: seconds of more bytes, of which fewer nodes are asked.
        """
        collective, size, each = found.collective, found.size, self.ranks // self.nodes
        power = max(TURNS[0], 2 ** (max(1, size - 1).bit_length() - 1))
        near = self._neighbors(collective) if size <= TURNS[0] else ()
        if fewer := [s for one in (self, *near) for s in (power, *one._known(collective)) if s < size]:
            yield self._risen(collective, max(fewer), max(asked, found.time_s)), "with fewer bytes"
        guessed = found.details["basis"] not in _PUBLISHED and collective.traffic is None
        for other in self._linked_as_well(collective) if guessed else ():
            yield other._taken(collective, size), f"on {other.question.members}"
        if self._name and self.nodes > 1 and collective.traffic is None and not asked:
            # Farther than published times reach, those of models alone grow with the nodes.
            told = max((one.nodes for one in self._published_of(self._runs_of)), default=1)
            half = 2 ** (min(self.nodes - 1, _FADES_IN_NODES * told).bit_length() - 1)
            beside = self._beside(half, each)
            # Published times that fall as the size grows say no more of more nodes than what they fall to.
            sizes = (size, *(s for s in beside._known(collective) if s > size)) if half * each > 1 else ()
            few = min(map(partial(beside._risen, collective), sizes), key=attrgetter("time_s"), default=found)
            # Those whose time it is, where half as many take no less than fewer either.
            *_, on = count(half, "node"), *str(few.details["origin"]).split("; no less than on ")[1:]
            yield few, f"on {on}"

    @_once
    def _taken(self, collective: Collective, size: int) -> Projection:
        ratio, nearest, ratios, sets = self._nearest(collective, size)
        if nearest < 1 and self.nodes == 1:
            # Where nobody measured the machine itself, or farther sizes, those of the same links stand in.
            others = self._nearest(collective, size, lent=True)
            ratio, nearest, ratios, sets = others if others[1] > nearest else (ratio, nearest, ratios, sets)
        model = self._modelled(collective, size) if sets else self._scaled(collective, size)
        if not sets and (half := 2 ** ((size - 1).bit_length() - 1)) >= TURNS[-1]:
            # Of more bytes than factors tell apart, none pass at a lower rate than fewer: other jobs' rates level off
            # elsewhere.
            model = model.times(min(1.0, size / half * self._taken(collective, half).time_s / model.time_s))
        time, near, took = ratio * model.time_s, min(1.0, nearest), sorted(one * model.time_s for one in ratios)
        lent = [name for name in dict.fromkeys(one.machine for one in sets) if name != self._name]
        origin, what = model.origin, _BASES[model.what]
        if nearest >= 1:
            what = "lent" if lent else "measured" if nearest > 1 else "between"
            on = f" and {count(len(lent) - 1, 'other machine')}" if lent[1:] else ""
            at = {"measured": "measured at this point", "between": "between sizes that were measured"}
            if what == "measured" and time < (1 - 1e-9) * median(took):
                what, slow = "scaled", format_time(median(took))
                at[what] = f"at the rate of fewer bytes, which more runs have; {slow} measured at this point"
            # Those lend by their links inside the node, and between nodes by how much these carry, over whatever NICs.
            alike = "of the same links" if self.nodes == 1 else "with as much bandwidth between nodes"
            origin = (at.get(what) or f"measured on {lent[0]}{on} {alike}") + f": {_sources(sets)}"
            unlike = self.nodes == 1 and not {"", self.set_up} & {one.set_up for one in sets}
            if unlike and not public_tables.beyond_host(time):
                host, launched = max((public_tables.host_times(one.set_up)[one.name], one.set_up) for one in sets)
                origin += f"; launched {public_tables.LAUNCHED[launched]}, by a host that takes {format_time(host)}"
        elif nearest > 0:
            closest = min(self._known(collective, bool(lent)), key=lambda one: abs(math.log(one / size)))
            origin += f"; scaled from the nearest size that was measured, {format_size(closest)}: {_sources(sets)}"
        # The nearer published sizes are, the less may differ but another run of the job.
        runs, guess = ([one.low, one.high] for one in (self._spread(AGAIN, size), model.spread))
        ends = [run**near * end ** (1 - near) * time for run, end in zip(runs, guess, strict=True)]
        ends += [*took, *(run * time for run in runs if nearest > 0)]
        figures = time, min(time, *ends), max(time, *ends)
        projection = self._projection(collective, size, replace(model, origin=origin), figures, what)
        if what == "measured" and len(took) > 1:
            projection = replace(projection, details={**projection.details, "published_s": took})
        projection = self._launched(projection, sets)
        # An allgather that was measured may well be above an allreduce, and one by rings above one by trees.
        guessed = what == "lent" or (nearest == 0 and model.what != EXPECTED)
        if guessed and collective.name in HALVES:
            asked = collective, Collective("allreduce")
            half, whole = (self.stated(one, size) or self._modelled(one, size, LINKS) for one in asked)
            guessed = half.time_s <= whole.time_s
        return self._capped(projection, (*_ROOTED, *HALVES)[: None if guessed else len(_ROOTED)])

    def _launched(self, found: Projection, sets: Sequence[public_tables.Set]) -> Projection:
        """A time on one node no less than the host takes from call to call, where it launches every one."""
        times = [*public_tables.host_times().values()] if self.set_up == STREAM and self.nodes == 1 else []
        if not times or any(one.set_up == STREAM for one in sets):
            return found
        low, middle, high = (float(np.quantile(times, share)) for share in (0.1, 0.5, 0.9))
        ends = {end: max(found.details[end], least) for end, least in zip(_ENDS, (low, high), strict=True)}
        raised = found.raised(middle, f"the host of {count(len(times), 'published run')} from call to call")
        return replace(raised, details={**raised.details, **ends})

    def _nearest(
        self, collective: Collective, size: int, lent: bool = False
    ) -> tuple[float, float, list[float], list[public_tables.Set]]:
        """As `_ratio` of all published times; and the ratios and sets of the runs that have the nearest."""
        if not (known := self._known(collective, lent)):
            return 1.0, 0.0, [], []
        ends = {max((s for s in known if s <= size), default=0), *sorted(s for s in known if s >= size)[:1]}
        near = [(one, times) for one, times in self._curves(collective, lent) if ends & times.keys()]
        ratios = [self._ratio(collective, size, times)[0] for _, times in near]
        return *self._ratio(collective, size, known), ratios, [one for one, _ in near]

    def _capped(self, found: Projection, no_more: Sequence[str]) -> Projection:
        """A time that nobody published, and all intervals, no more than that of the next published size.

        Of few bytes, which models say little of, it is no more than of twice as many. no_more: collectives that
        take no more than an allreduce either. Times are of calls in a row, and those of a broadcast or reduce
        do not wait for the last rank. Halves of an allreduce of which nobody measured otherwise are among
        them: published ones of 64 MiB and more are all below it. What one rank sends or gets, all do in an alltoall.
        """
        collective, size = found.collective, found.size
        larger = sorted(s for s in self._known(collective) if s > size)[:1]
        if found.details["basis"] == "measured":
            more = [self._taken(collective, s) for s in larger]
            ends = [one.details[_ENDS[1]] for one in (found, *more)]
            high = max(min(ends), found.time_s, *found.details.get("published_s", ()))
            # A tenth more than the next size took 81 of 3,267 published points.
            odd = (f"{format_size(one.size)} took less" for one in more if one.time_s < 0.9 * found.time_s)
            origin = "; ".join((found.details["origin"], *odd))
            return replace(found, details={**found.details, _ENDS[1]: high, "origin": origin})
        larger += [2 ** size.bit_length()] * (size < TURNS[0])
        caps = [self._taken(collective, s) for s in larger]
        slower = [(Collective("alltoall"), size)] if collective.personalized and collective.rooted else []
        if collective.name in no_more:
            whole = Collective("allreduce")
            # Its published times may fall as the size grows; no others do.
            slower += [(whole, s) for s in (size, *self._known(whole)) if s >= size]
        # Links that lead one way carry none.
        with suppress(InfeasibleError):
            caps += list(starmap(self._risen, slower))
        if self.nodes > 1 and found.details["basis"] in GUESSES:
            caps += [one._taken(collective, size) for one in self._lesser(collective)]
        if self.nodes == 1 and self.set_up == GRAPH and found.details["basis"] in GUESSES:
            # What the same calls took by threads is nearer than a guess, and rather too long than too short.
            other = self.at(self.question, set_up=THREADS)[0]._taken(collective, size)
            caps += [other] * (other.details["basis"] in _PUBLISHED)
        for most in caps:
            details = {**found.details, **{end: min(found.details[end], most.details[end]) for end in _ENDS}}
            own = (most.machine, most.collective) == (found.machine, collective)
            by_threads = own and most.size == size
            if most.time_s < found.time_s and (details["basis"] == "lent" or by_threads or not own):
                what = most.machine if most.machine != found.machine else f"an {most.collective}"
                what = "a launch by threads" if by_threads else format_size(most.size) if own else what
                details |= {"held_to": what, "basis": "scaled" if by_threads else details["basis"]}
                details["published"] = most.details["published"]
                details["origin"] = f"held to what {what} takes: {most.details['origin'].split(' takes: ')[-1]}"
                # The library's own choice is not what takes so long.
                details |= {} if own else {"choice": "", "nccl_expects_s": {}}
            shorter = min(found, most, key=lambda one: one.time_s)
            found = replace(found, terms=shorter.terms, bottleneck=shorter.bottleneck, details=details)
        return found

    def _edited(self, healthy: Library, collective: Collective, size: int) -> Projection:
        """The time without the edits, by `healthy`, longer by the part that NCCL's model or the links explain.

        They explain what they take, times the middle ratio of published times of all machines to that: what
        a longer time waits for, such as software, is not theirs. The interval is from adding what they take
        themselves to multiplying all. The terms are those after the edits: the library may choose otherwise.
        """
        before, what, by, lost = healthy._risen(collective, size), PREDICTED, "NCCL's channels", 1.0
        verbs = {edit.partition(" ")[0] for edit in self.machine.edits}
        models = [*filter(None, (self.stated(collective, size), healthy.stated(collective, size)))]
        if len(models) < 2:
            # Likes are compared: rails that an edit leaves unlike carry neither.
            sold = self if (old := as_sold(self.question, self.nodes)) == self.question else self.at(old)[0]
            here, new, *parts = (x.nominal(collective) for x in (self, sold, healthy, *sold._nodes_alike))
            own = min(map(partial(sent_by, collective=collective), parts), key=len)
            sends, sound = sold.links(collective, size, own), healthy.links(collective, size, own)
            # What is no exchange counts what links carry by itself.
            models = [sends if own else self.links(collective, size, own), sound]
            by, times = "the links", [found.time_s for found in models]
            # It sends as over ports that carry what they are sold for, and waits for those that do not.
            held = sends.details["busy_by_class"]
            rest = 1 - max(held.values(), default=1.0)
            # Links of thousands of nodes are of few sorts.
            rows = zip(here.link_columns.figure.tolist(), new.link_columns.figure.tolist(), strict=True)
            for now, was in dict(zip(rows, zip(here.links, new.links, strict=True), strict=True)).values():
                waits = rest + held.get(was.kind, 0.0) * float(was.bandwidth / now.bandwidth)
                late = now.latency + now.overhead - was.latency - was.overhead
                times[0] = max(times[0], sends.time_s * waits + late)
            what = SENDS if collective.personalized else LINKS
            # Routes over fewer links may have fewer starts, and libraries do not find them.
            lost = float(healthy.bounded(collective)[2].rate / self.bounded(collective)[2].rate)
        else:
            times = [self._at_width(models[0]), healthy._at_width(models[1])]
        factor = times[0] / times[1]
        alike = self.multicast == healthy.multicast
        # Such edits give no link more bandwidth, whatever they say of its latency: the rate that is lost is the same.
        if all((alike, not self.question.rates, verbs <= {"degrade", "without"})):
            start = models[1].terms[0].time_s / models[1].time_s
            factor = max(factor, 1.0, start + (1 - start) * lost)
        scope = library_rates.scope_of(healthy.nodes, healthy.ranks)
        usual = times[1] * library_rates.spread_at(EVERY, EVERY, "", what, scope, size).middle
        share, (low, high) = min(1.0, usual / before.time_s), (before.details[end] for end in _ENDS)
        lacks = f"what it lacks of {healthy.machine.name}" if alike else "switches set not to add"
        cause = "the edits" if self.machine.edits else "the rates" if self.question.rates else lacks
        cause += " but for which GPUs take part" * (self.question.members != healthy.question.members)
        longer = 1 + share * (factor - 1)
        # A factor that rounds to 1 says nothing.
        change = "unchanged by" if round(longer, 3) == 1 else f"times {longer:.4g} for"
        # The time without the edits is one without NVLS, where they take it away.
        lost_it = len(healthy.machine.in_network) > len(self.machine.in_network)
        change = "as with switches set not to add, otherwise " * (lost_it > bool(healthy.healthy)) + change
        part = f", which explain {100 * share:.0f} % of that time" * (share < 1)
        origin = f"{before.details['origin']}; {change} {cause}, by {by}{part}"
        model = replace(self._modelled(collective, size), origin=origin)
        # No less is open of it than of the time before.
        low = min(longer * low, factor * low, low + (factor - 1) * min(low, times[1]))
        high = max(longer * high, factor * high, high + (factor - 1) * min(high, times[1]))
        # What was guessed is a guess still.
        basis = before.details["basis"] if factor == 1 or before.details["basis"] in GUESSES else "scaled"
        found = self._projection(collective, size, model, (longer * before.time_s, low, high), basis)
        kept = {} if before.details["choice"] else {"choice": "", "nccl_expects_s": {}}
        return replace(found, details={**found.details, **kept, "published": before.details["published"]})

    @_once
    def _modelled(self, collective: Collective, size: int, what: str = EXPECTED) -> _Modelled:
        """The time by the best model that is known, whatever was published of this very job.

        what: by constants only if these are asked for, so that like is held against like.
        """
        if what == EXPECTED and (known := self.by_constants(collective, size)):
            return known
        stated = self.stated(collective, size)
        kind = PREDICTED if stated else SENDS if collective.personalized else LINKS
        base = stated or self.links(collective, size)
        whose, larger = self._runs_of if self.constants else "", [s for s in TURNS if s > size]
        spread, *further = (self._spread(kind, s, whose) for s in (size, *larger))
        middle, by = spread.middle, "NCCL's own model" if stated else f"{base.algorithm} on the links"
        origin = f"{by}, and how {count(spread.cells, 'published time')} of other jobs compare with it"
        found = _Modelled(base.time_s, base.terms, kind, origin, spread).times(middle)
        # Ratios of few sizes are known of a machine, and no fewer bytes reach a higher rate: of published
        # curves 19 in 20 have no bus bandwidth 6 % above that of their largest size.
        # Sends on links do so by themselves.
        rising = larger and (stated or max(one.middle for one in further) > middle)
        least = size / larger[0] * self._modelled(collective, larger[0], kind).time_s if rising else 0.0
        slower = max(1.0, least / found.time_s)
        about = replace(spread, low=spread.low / middle / slower, middle=1.0, high=spread.high / middle)
        return replace(found, spread=about).times(slower)

    def _scaled(self, collective: Collective, size: int) -> _Modelled:
        """The time by a model, times what published ones of jobs on fewer and on more nodes are above theirs.

        Between two such jobs the factor is interpolated, beyond them it fades. What they gain on NCCL's
        model, this one gains on what that has above the bound.
        """
        model, at = self._modelled(collective, size), math.log(self.ranks)
        ratios, jobs, sure = dict[float, float](), list[str](), self._spread(EXPECTED, size, self._known_as)
        for neighbor in self._neighbors(collective):
            base = neighbor._modelled(collective, size, model.what)
            # Rates that fall as the size grows are one rig's own, and so are times that do, as where a
            # network changes its protocol: the rate stays, and the time is what it falls to.
            sizes = np.array(sorted({size, *neighbor._known(collective)}))
            rates = [s / neighbor._taken(collective, s).time_s for s in sizes.tolist()]
            least_s = min((sizes / np.maximum.accumulate(rates))[sizes >= size])
            ratios[math.log(neighbor.ranks)] = math.log(least_s / base.time_s)
            each = count(neighbor.ranks // neighbor.nodes, self.machine.unit) + " a node" * (self.nodes > 1)
            told = each if neighbor.nodes == self.nodes else count(neighbor.nodes, "node")
            jobs.append(told + f" of {neighbor._name}" * (neighbor._name != self._name))
            # Far from its published sizes a job is no surer than its own time there.
            there = neighbor._taken(collective, size)
            if there.details["basis"] not in _PUBLISHED:
                low, high = (there.details[end] / there.time_s for end in _ENDS)
                sure = replace(sure, low=min(sure.low, low), high=max(sure.high, high))
                jobs[-1] += " at other sizes"
        if ratios:
            far = 0.0 if len(ratios) > 1 else abs(at - min(ratios)) / math.log(_FADES_IN_NODES)
            weight = max(0.0, 1 - far)
            ratio = math.exp(weight * np.interp(at, list(ratios), list(ratios.values())))
            # Near them times are as sure as those by constants.
            low = sure.low**weight * model.spread.low ** (1 - weight)
            high = sure.high**weight * model.spread.high ** (1 - weight)
            told = f"{model.origin}; scaled to published times of {' and '.join(jobs)}"
            model = replace(model.times(ratio), origin=told, spread=replace(model.spread, low=low, high=high))
        elif model.what == LINKS and collective.name in HALVES:
            # What a library makes of links in an allreduce, it makes of them in its halves.
            whole = Collective("allreduce")
            ratio = self._taken(whole, size).time_s / self._modelled(whole, size, LINKS).time_s
            told = f"; scaled to an {whole} that was published" if ratio != 1 else ""
            model = replace(model.times(ratio), origin=model.origin + told)
        stated = self.stated(collective, size) if self.nodes > 1 else None
        if stated is None or model.time_s >= stated.time_s:
            return model
        part, grants, bound = self.bounded(collective)
        least = least_time_of(part, collective, size, bound, grants)
        return model.times(1 + (1 / model.time_s - 1 / stated.time_s) * least.time_s)

    @_once
    def _neighbors(self, collective: Collective) -> list[Library]:
        """The models of the nearest smaller and the nearest larger job that times were published of.

        They have another number of nodes with as many GPUs each, or of GPUs in one node. Where nobody
        published any, as many nodes, with another number of GPUs each of which others were published.
        """
        wanted, cells = (collective.name, self.nodes > 1, ""), self._published_of(self._runs_of)
        told = [x for x in cells if (x.collective, x.nodes > 1, x.set.members) == wanted and self.published(x)]
        alike = [one for one in told if self.nodes == 1 or one.gpus * self.nodes == self.ranks * one.nodes]
        jobs = {one.gpus: one.nodes for one in alike}
        jobs = jobs or {one.gpus // one.nodes * self.nodes: self.nodes for one in told}
        below, above = (sorted(filter(apart, jobs)) for apart in (self.ranks.__gt__, self.ranks.__lt__))
        return [self._beside(jobs[n], n // jobs[n], self._runs_of) for n in (*below[-1:], *above[:1])]

    @_once
    def _lesser(self, collective: Collective) -> list[Library]:
        """Machines with such nodes that send no more to others, if times were published of these, not of this one."""
        names = (self._name, *library_rates.kin_of(self._name)) if self._name else ()
        told = [of for of in names if any(x.nodes > 1 and self.published(x) for x in self._published_of(of))]
        alike = (self._beside(self.nodes, self.ranks // self.nodes, of) for of in told if self._name not in told)
        found = [one for one in alike if one._network == self._network]
        return [one for one in found if one.bounded(collective)[2].rate <= self.bounded(collective)[2].rate]

    def _beside(self, nodes: int, each: int, name: str = "") -> Library:
        """The model of other nodes with so many GPUs each, of this machine or one named; it knows as much."""
        return known_job(name or self._name, nodes, each, **{of: getattr(self, of) for of in _SETTINGS})

    def by_constants(self, collective: Collective, size: int) -> _Modelled | None:
        if not self.constants or collective.traffic is not None:
            return None
        job, timing = replace(self.job, collective=collective.name), self._choice(collective, size)
        known = library_rates.library_time(self._known_as, self.machine.nccl_rates, job, size, timing)
        if known is None:
            return None
        spread = self._spread(EXPECTED, size, known.owner)
        if known.owner != self._known_as:
            # What is lent is no surer than where it was measured.
            lent = self._spread(AGAIN, size)
            spread = replace(spread, low=min(spread.low, lent.low), high=max(spread.high, lent.high))
        if known.error and (known.owner, EXPECTED) not in library_rates.spreads():
            # Constants are no surer than the times that they were fitted to, where no other rig says how far
            # off they are: of normal errors of which half are within 1, eight in ten are within 1.9.
            off = 1 + 1.9 * known.error.median
            spread = replace(spread, low=min(spread.low, 1 / off), high=max(spread.high, off))
        return _Modelled(known.time_s, known.terms, EXPECTED, known.origin, spread)

    def _spread(self, what: str, size: int, machine: str = "") -> Spread:
        scope = library_rates.scope_of(self.nodes, self.ranks)
        return library_rates.spread_at(machine, self.library, self._network, what, scope, size)

    @cached_property
    def _network(self) -> str:
        """The class of the links between nodes, also of nodes that are joined already; empty if there are none.

        Of one node ``pcie``, if NCCL's rings take it.
        """
        if self.nodes == 1 and self.prediction and self.prediction.ring.type_intra != "NVL":
            return "pcie"
        columns, node = self.machine.link_columns, self.machine.device_nodes
        apart = columns.kind[node[columns.src] != node[columns.dst]].tolist()
        return self.machine.fabric.kind if self.machine.fabric else columns.classes[apart[0]] if apart else ""

    @_once
    def _choice(self, collective: Collective, size: int) -> nccl_tuner.Timing | None:
        """What NCCL takes, by its own model."""
        known = self.prediction is not None and collective.name in nccl_tuner.COLLECTIVES
        return self.prediction.best(collective.name, size) if self.prediction and known else None

    @_once
    def stated(self, collective: Collective, size: int) -> Projection | None:
        """The time that NCCL's model states, no less than links allow; None if it finds no channels."""
        if self._choice(collective, size) is None:
            return None
        tuner, whole = self._planned
        [(_, found)] = tuner.stated(whole, collective, size, [CHOICE])
        return None if found.details["channel_GBps"] == in_GBps(NO_SOLUTION) else found

    def _at_width(self, stated: Projection) -> float:
        """Seconds of the best with channels as wide as links allow, unless these hold up what NCCL takes."""
        assert self.prediction is not None
        wide, kept = self.prediction.at_width.times(stated.collective.name, stated.size), self.prediction.planned
        # It keeps to what it chose for links that it takes for quicker.
        own = (one for one in wide if not kept or f"{one.algorithm} {one.protocol}" == stated.pick)
        return stated.time_s if stated.terms[2:] else next(own).time_s

    def links(self, collective: Collective, size: int, names: Sequence[str] | None = None) -> Projection:
        """The time on the links of the quickest of the schedules named, else of those that a library sends by.

        Without any, of a chain in every node and a tree across the nodes, by the latencies of NCCL's trees with
        LL, and of the bytes at the rate that nothing exceeds where switches forward: it grows with what links
        carry less, and not with what is searched for. A cluster waits for its slowest node: what is lost on
        several nodes does not add up.
        """
        if (alike := self._nodes_alike) != [self]:
            return max((one.links(collective, size, names) for one in alike), key=attrgetter("time_s"))
        part, model = self._sent_on(collective), schedule_model("alpha-beta")
        if names := sent_by(part, collective) if names is None else names:
            built = (model.contest(part, collective, [name], None, [size]).at(size) for name in names)
            found = {one: contest for contest in built for one in contest.candidates.values()}
            return found[quickest(found, size)].projections(size)[0]
        known = nccl_tuner.load(self.version)
        # NCCL and RCCL send blocks of single ranks round all of them.
        around = collective.name in HALVES and self.library.startswith((NCCL, "RCCL"))
        kind, each = "ring" if around else "tree", self.ranks / self.nodes - 1
        hops = (self.nodes * each, self.nodes - 1) if around else (each, math.log2(self.nodes))
        inside, across = (collective.phases * known.hop_latency[over][kind][0] for over in ("nvlink", "net"))
        steps = hops[0] * inside + hops[1] * across
        start = Term("start and steps", 1e-6 * (known.base_latency["tree"][0] + steps), "alpha")
        # The bytes pass the ports of all nodes, and all wait for the one that sends the least.
        even = (evened(part) if part.nodes > 1 else None) or part
        terms = start, Term("bytes sent", size / float(ceiling_of(even, collective).rate), "links")
        # Those between nodes, or else between GPUs, none of which a library takes for slow.
        ends, busy = np.array(part.ends), terms[1].time_s / (start.time_s + terms[1].time_s)
        apart, among = np.diff(part.device_nodes[ends], axis=0)[0] != 0, np.isin(ends, part.member_places)
        used = np.where(part.nodes > 1, apart, among.all(axis=0))
        ports = map(attrgetter("kind"), compress(part.links, used.tolist()))
        asked = of_part(part, 1, collective=collective, size=size, model=MODEL, algorithm="chains and trees")
        held = {"busy_by_class": dict.fromkeys(ports, busy)}
        return Projection(**asked, terms=terms, bottleneck=terms[1].name, details=held)

    @cached_property
    def _nodes_alike(self) -> list[Library]:
        """For each sort of node the model where edits make all nodes so."""
        sorts = dict.fromkeys(self._edits_of(node) for node in range(self.machine.nodes))
        found = [self]
        with suppress(BlinksimError):
            found = [self.at(replace(self.question, edits=edits))[0] for edits in sorts]
        return found if found[1:] else [self]

    def _edits_of(self, node: int) -> tuple[str, ...]:
        """The edits of one node, as of a machine of one: ``n[0-2].nic1`` is ``nic1`` of nodes 0 to 2."""

        def local(named: re.Match[str]) -> str:
            return "" if int(named[1]) <= node <= int(named[2] or named[1]) else named[0]

        # Edits that still name a node are of others.
        own = (_OF_NODE.sub(local, edit) for edit in self.question.edits)
        return tuple(filterfalse(_OF_NODE.search, own))

    @_once
    def _sent_on(self, collective: Collective) -> Topology:
        """The part whose links it sends on: without relays, as no library spreads its bytes over GPUs without a rank.

        Where only these connect the others, the hardware sends through one of them.
        """
        question = replace(self.question, collective=collective)
        part = self.nominal(collective) if at_nominal(whole := question.whole()) is whole else question.part(whole)
        by_one = list[Topology]()
        for relay in (NONE, *part.relays) if part.relays else ():
            with suppress(InfeasibleError):
                by_one.append(replace(question, relays=relay, relays_reduce=False).part())
                if relay == NONE:
                    break
        return max(by_one, key=lambda one: ceiling_of(one, collective).rate, default=part)

    def _linked_as_well(self, collective: Collective) -> list[Library]:
        """The models of other GPUs of a node that times were published of, whose links carry no less."""
        cells = self._of_this_job(self._published_of(self._name), True) if self.nodes == 1 else ()
        named = dict.fromkeys(one.set.members for one in cells if one.set.members)
        told = [self.at(Question(self._name, members=members))[0] for members in named]
        least = ceiling_of(self._sent_on(collective), collective).rate if told else 0
        return [one for one in told if one.bounded(collective)[2].rate >= least]

    def _published_of(self, name: str, aside: bool = False) -> Sequence[Cell]:
        """Published cells by libraries that chose for themselves, or those that are `aside`.

        With such switches and calls launched as these.
        """
        adds = "reduce_into_reader" in self.machine.in_network
        return public_tables.chosen_freely(name, adds, self.multicast, self.set_up, aside)

    def _of_this_job(self, cells: Sequence[Cell], apart: bool = False) -> list[Cell]:
        """Those of as many GPUs on as many nodes for which these stand, or `apart` for which they do not."""
        found = [cell for cell in cells if (cell.nodes, cell.gpus) == (self.nodes, self.ranks)]
        return [cell for cell in found if self._stands_for(cell.set.members) != apart]

    @_once
    def _curves(self, collective: Collective, lent: bool = False) -> list[tuple[public_tables.Set, dict[int, float]]]:
        """The published times by size, for each run of each set, of this job on a machine with the same links.

        lent: also on others than this one.
        """
        curves: dict[tuple[object, ...], tuple[public_tables.Set, dict[int, float]]] = {}
        kin = library_rates.kin_of(self._name) if lent and self.constants and self.nodes == 1 else []
        cells = self._of_this_job([x for name in (self._runs_of, *kin) for x in self._published_of(name)])
        for cell in cells if collective.traffic is None else ():
            if cell.collective == collective.name and self.published(cell):
                key = cell.set.name, cell.placement, cell.nvls, cell.dtype
                curves.setdefault(key, (cell.set, {}))[1][cell.size] = cell.time_s
        found = list(curves.values())
        if self.question.rates and collective.traffic is None:
            table, part = rate_tables.read(self.question.rates), self._sent_on(collective)
            source = table.source or table.name
            own = public_tables.Set(source, self._name, "", self.library, "", "", "", self.set_up, "")
            times = table.times_of(rate_tables.job_of(collective, part, self.multicast))
            found += [(own, dict(times))] if times else []
        return found

    @_once
    def _known(self, collective: Collective, lent: bool = False) -> dict[int, float]:
        """The published times by size, one curve of all runs: the median of those that have a size.

        Where some end, those that go on are at no lower rate than all were, unless they slow down themselves.
        """
        found, last, curves = dict[int, float](), 0, [times for _, times in self._curves(collective, lent)]
        for size in sorted({*chain(*curves)}):
            here = [times for times in curves if size in times]
            found[size] = median(times[size] for times in here)
            if all(last in times for times in here):
                longer = found[size] / median(times[last] for times in here)
                found[size] = min(found[size], found[last] * max(size / last, longer))
            last = size
        return found

    def _ratio(self, collective: Collective, size: int, times: dict[int, float]) -> tuple[float, float]:
        """Published over modelled time at a size, from the nearest published sizes; and its weight.

        That is 2 where the size was published, 1 between published ones, and less elsewhere.
        """
        model = self._modelled(collective, size)
        if size in times:
            return times[size] / model.time_s, 2.0
        below = max((s for s in times if s < size), default=0)
        above = min((s for s in times if s > size), default=0)
        near = {s: times[s] / self._modelled(collective, s, model.what).time_s for s in (below, above) if s}
        end = min(near, key=lambda s: abs(math.log(s / size)))
        weight = max(0.0, 1 - abs(math.log(end / size)) / math.log(_FADES))
        if len(near) > 1:
            grid = [below, *(2**n for n in range(below.bit_length(), (above - 1).bit_length())), above]
            taken = np.log([self._modelled(collective, s, model.what).time_s for s in grid])
            at, ends, x = np.array([*map(math.log, grid)]), np.log([*near.values()]), math.log(size)
            # Farther apart they say less, but no less at one size than beside it.
            fades = np.minimum(at - at[0], at[-1] - at) / math.log(_FADES) * (above > _NEIGHBORS * below)
            line = np.interp(at, at[[0, -1]], ends) * np.maximum(0, 1 - fades) + taken
            line = np.maximum(line, at + min(math.log(times[s] / s) for s in near))
            # The model may jump between them, where NCCL changes its choice. Times of a start and a rate do
            # not: they lie below every straight line between two of them, in logarithms. Published times left
            # out between sizes 16 times apart are 12.9 % off at the mean so, 13.7 % by the model, 14.5 % on
            # the line.
            pairs = product(np.flatnonzero(at <= x), np.flatnonzero(at >= x))
            least = min(float(np.interp(x, at[[*pair]], line[[*pair]])) for pair in pairs)
            return math.exp(least) / model.time_s, 1.0 if above <= _NEIGHBORS * below else weight
        # Beyond all published sizes the rate of the largest stays, and no fewer bytes reach a higher one.
        larger = min((s for s in TURNS if size < s < end), default=end)
        larger_s = self._ratio(collective, larger, times)[0] * self._modelled(collective, larger).time_s
        faded, steady = near[end] ** weight, size / larger * larger_s / model.time_s
        return (faded, weight) if above and faded >= steady else (steady, max(weight, 0.001))

    def _projection(
        self, collective: Collective, size: int, model: _Modelled, figures: Sequence[float], basis: str
    ) -> Projection:
        (tuner, whole), (time_s, low, high) = self._planned, figures
        choice = self._choice(collective, size)
        details = {"interval_low_s": low, "interval_high_s": high, "interval_share": SHARE}
        details |= {"basis": basis, "origin": model.origin, "library": self.library, "nodes": self.nodes}
        # Whether times of this job or of like ones were published, to which it is held.
        details |= {"published": basis not in GUESSES or "; scaled" in model.origin}
        details |= {"choice": f"{choice.algorithm} {choice.protocol}" if choice else ""}
        if whole.unit != "GPU":
            details["unit"] = whole.unit
        # Where calls are captured in graphs, those from a stream are told from these.
        elif self.nodes == 1 and not public_tables.beyond_host(time_s):
            details["set_up"] = self.set_up
        if choice and self.prediction:
            details["nccl_expects_s"] = self.prediction.expects(collective.name, size)
        terms = tuple(replace(term, time_s=time_s / model.time_s * term.time_s) for term in model.terms)
        bottleneck = max(terms, key=lambda term: term.time_s).name
        asked = {"collective": collective, "size": size, "model": MODEL, "algorithm": self.library.lower()}
        part = of_part(whole, tuner.nodes or 1, relays=(), **asked)
        return Projection(**part, terms=terms, bottleneck=bottleneck, details=details)


def _on_one_node(question: Question) -> Question:
    """The question of one node where GPUs of it alone are named: the same job, whatever others there are."""
    if question.nodes == 1 or not question.members or question.edits:
        return question
    whole = question.whole()
    named = question.member_names(whole)
    homes, names = zip(*(one.split(".", 1) for one in named), strict=True)
    one = replace(question, nodes=1, members=",".join(names), relays=None)
    return one if len({*homes}) == 1 and {*named} <= {*whole.holders} else question


@lru_cache(maxsize=64)
def known_job(name: str, nodes: int, each: int, **settings: Any) -> Library:
    """The model of a job on a machine of the catalogue, which answers about many machines and sizes ask."""
    return Library(**settings).at(Question(name, nodes=nodes, ranks_per_node=each))[0]


def sent_by(part: Topology, collective: Collective) -> tuple[str, ...]:
    """What a library sends every block to its rank by, of which it takes the quickest.

    Straight, or equal blocks by the GPU on the receiver's rail (PXN, NCCL 2.12), or by others if it has none.
    Between nodes of 8 H100 and A100, the published alltoalls of 64 MiB and more take 1.1 to 1.4 times what
    that takes on the links, and 0.6 to 0.75 times what straight sends do.
    """
    from blinksim.algorithms.building.rail_alltoall import rails_for

    found = ["direct"] * (collective.personalized and not too_large(algorithm("direct"), part, collective))
    if collective.name == "alltoall":
        with suppress(InfeasibleError):
            # By symmetry thousands of ranks have them, which are no schedule that is written out.
            rails = symmetric_rails(part)
            if rails is None or not rails.alike:
                algorithm("rail_aligned").check_size(part.ranks, collective.name)
                rails_for(part, collective, "rail_aligned")
            return (*found, "rail_aligned")
    return tuple(found)


# Libraries that are told which adapters to take.
_LED = NCCL, "RCCL", "oneCCL"
_PUBLISHED, GUESSES = ("measured", "between"), ("predicted", "links")
_BASES = {EXPECTED: "fitted", PREDICTED: "predicted", LINKS: "links", SENDS: "links"}


def _sources(sets: Sequence[public_tables.Set]) -> str:
    """Whose times these are: library, version and set; the number of runs where there are several."""
    named = list(dict.fromkeys(f"{one.library} {one.version}".strip() + f", {one.name}" for one in sets))
    return named[0] if len(named) == 1 else f"median of {len(sets)} published runs, such as {named[0]}"
