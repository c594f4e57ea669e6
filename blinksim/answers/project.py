"""How long a collective takes, with which algorithm, and which one is best for a size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from blinksim.algorithms.registry import Algorithm, algorithm, candidates
from blinksim.bounds.quick import quick_bound
from blinksim.collective import ROOTED, Collective, busbw_factor
from blinksim.cost.alpha_beta import cost
from blinksim.cost.terms import Term
from blinksim.errors import BlinksimError, InfeasibleError, InputError, unknown
from blinksim.topology.cluster import nodes_of, place
from blinksim.units import exact_GBps, format_rate, format_size, format_time, parse_size

if TYPE_CHECKING:
    import pandas as pd

    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology

# A schedule of more sends than this takes seconds to build and gigabytes to hold.
MOST_SENDS = 4_000_000
# Models that time schedules; the others have no schedule.
SCHEDULE_MODELS = ("alpha-beta", "simulate")
# Algorithms whose search grows fast with the ranks stay out of the contest beyond this many.
_MOST_SEARCHED = {"mxnet": 32}


@dataclass(frozen=True)
class Ceiling:
    """An upper bound on algbw, bytes/s, found from sums alone (`blinksim.bounds.quick`), and why it holds."""

    rate: Fraction
    words: str


@dataclass(frozen=True)
class Projection:
    """The projected time of one collective on one machine, for one size.

    time_s: seconds; terms add up to it. algbw and busbw: bytes/s. bottleneck: what sets the time. details: what the
    model has to add (steps, pieces, presets), with units in the keys.
    """

    machine: str
    collective: Collective
    members: tuple[str, ...]
    relays: tuple[str, ...]
    links: tuple[str, ...]
    rates: str
    size: int
    model: str
    algorithm: str
    terms: tuple[Term, ...]
    bottleneck: str
    details: Mapping[str, Any] = field(default_factory=dict)
    bound: Ceiling | None = None

    @property
    def time_s(self) -> float:
        return sum(term.time_s for term in self.terms)

    @property
    def algbw(self) -> float:
        return self.size / self.time_s

    @property
    def busbw(self) -> float:
        return self.algbw * float(busbw_factor(self.collective.name, len(self.members)))

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints; every key with a unit carries it."""
        return {
            "machine": self.machine,
            "collective": self.collective.name,
            **({"root": self.collective.root} if self.collective.rooted else {}),
            "members": list(self.members),
            "relays": list(self.relays),
            "links": list(self.links),
            "rates": self.rates,
            "size_bytes": self.size,
            "model": self.model,
            "algorithm": self.algorithm,
            "time_s": self.time_s,
            "algbw_GBps": self.algbw / 1e9,
            "busbw_GBps": self.busbw / 1e9,
            "terms": [{"name": t.name, "time_s": t.time_s, "limit": t.limit} for t in self.terms],
            "bottleneck": self.bottleneck,
            **({"ceiling_exact": exact_GBps(self.bound.rate), "ceiling_words": self.bound.words} if self.bound else {}),
            **self.details,
        }

    def to_frame(self) -> pd.DataFrame:
        """The terms as a table: name, time_s, share."""
        import pandas as pd

        frame = pd.DataFrame([{"name": t.name, "time_s": t.time_s, "limit": t.limit} for t in self.terms])
        return frame.assign(share=frame["time_s"] / self.time_s)

    def sentence(self) -> str:
        """The answer in one line."""
        return (
            f"{self.collective} of {format_size(self.size)} on {self.machine} takes {format_time(self.time_s)}: "
            f"algbw {format_rate(self.algbw)}, busbw {format_rate(self.busbw)} ({self.algorithm}, {self.model})"
        )

    def __repr__(self) -> str:
        return f"<Projection {self.sentence()}\n  bottleneck: {self.bottleneck}; rates: {self.rates}>"

    def _repr_html_(self) -> str:
        return f"<p>{self.sentence()}; bottleneck: {self.bottleneck}</p>{self.to_frame().to_html(index=False)}"


def sends_needed(name: str, collective: str, ranks: int) -> int:
    """About how many sends the schedule of an elementary algorithm has: quadratic for some, linear for trees."""
    quadratic = ("ring", "hierarchical", "direct", "two_shot", "halving_doubling", "recursive_doubling")
    if name in quadratic and not (name == "direct" and collective in ROOTED):
        return 2 * ranks * ranks
    return (64 if name == "chain_tree" else 4) * ranks


def build(topology: Topology, collective: Collective, entry: Algorithm, **options: Any) -> Schedule:
    """The schedule of an algorithm; raises `InfeasibleError` if it would be too large to hold."""
    needed = sends_needed(entry.name, collective.name, topology.ranks)
    most = _MOST_SEARCHED.get(entry.name, topology.ranks)
    if topology.ranks > most:
        raise InfeasibleError(f"{entry.name} searches too long on {topology.ranks} ranks (at most {most})")
    if not entry.solver and needed > MOST_SENDS:
        raise InfeasibleError(
            f"{entry.name} on {topology.ranks} ranks needs about {needed:,} sends, more than {MOST_SENDS:,}; "
            "take double_binary or chain_tree, or --model projection"
        )
    return entry.build(topology, collective, **options)


def _summed(schedule: Schedule, size: int, gamma: float) -> dict[str, Any]:
    """What a projection says of a schedule by alpha-beta."""
    found = cost(schedule, size, gamma)
    return {
        "terms": found.terms,
        "bottleneck": found.bottleneck,
        "details": {"bottleneck_busy": found.busy, "steps": found.steps, "pieces": found.pieces},
    }


def _simulated(schedule: Schedule, size: int, gamma: float) -> dict[str, Any]:
    """What a projection says of a schedule that was simulated."""
    from blinksim.simulation.time_terms import projected, terms

    timeline = projected(schedule, size, gamma)
    busiest = timeline.uses[0]
    details = {
        "bottleneck_busy": busiest.busy,
        "steps": schedule.steps,
        "pieces": timeline.pieces,
        "engine": timeline.engine,
        "loads_s": timeline.bound_s,
    }
    return {"terms": terms(timeline), "bottleneck": busiest.resource, "details": details}


@dataclass
class Contest:
    """All algorithms that can run a collective on a machine, built once and timed for any size.

    schedules: by name. refused: the reason, for those that cannot run here. others: what models without a schedule
    answer for a size, by name. model: one of `SCHEDULE_MODELS`.
    """

    topology: Topology
    collective: Collective
    schedules: dict[str, Schedule] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    others: dict[str, Callable[[int], Projection]] = field(default_factory=dict)
    model: str = "alpha-beta"

    def only(self, *names: str) -> Contest:
        """The same contest among the algorithms named."""
        schedules = {name: schedule for name, schedule in self.schedules.items() if name in names}
        others = {name: answer for name, answer in self.others.items() if name in names}
        return Contest(self.topology, self.collective, schedules, others=others, model=self.model)

    @cached_property
    def bound(self) -> Ceiling:
        """What no algorithm exceeds here."""
        certificate = quick_bound(self.topology, self.collective)
        return Ceiling(certificate.rate, certificate.words(self.topology))

    def projections(self, size: int, gamma: float = 0.0) -> list[Projection]:
        """One projection per schedule and other model for `size` bytes, quickest first."""
        timing = _simulated if self.model == "simulate" else _summed
        timed = [
            Projection(
                machine=self.topology.name,
                collective=self.collective,
                members=self.topology.members,
                relays=self.topology.relays,
                links=self.topology.link_classes,
                rates=self.topology.rates,
                size=size,
                model=self.model,
                algorithm=name,
                bound=self.bound,
                **timing(schedule, size, gamma),
            )
            for name, schedule in self.schedules.items()
        ]
        timed += [answer(size) for answer in self.others.values()]
        return sorted(timed, key=lambda p: p.time_s)


def contest(
    topology: Topology,
    collective: Collective,
    names: Iterable[str] | None = None,
    report: Callable[[str], None] = lambda what: None,
    model: str = "alpha-beta",
) -> Contest:
    """Builds the named algorithms (default: all that have the collective and need no solver) on a selected topology.

    report: told what is being done, for work that takes long. model: what times them, one of `SCHEDULE_MODELS`.
    A named algorithm that cannot run raises; of the default ones the reason is kept. Raises `InfeasibleError` if none
    is left.
    """
    collective.check_ranks(topology.ranks)
    if topology.ranks < 2:
        raise InputError(f"{topology.name}: one rank moves nothing; name two members or more")
    if model not in SCHEDULE_MODELS:
        raise unknown("model of schedules", model, SCHEDULE_MODELS)
    result = Contest(topology, collective, model=model)
    if names is not None:
        for name in names:
            entry = algorithm(name.strip())
            report(f"building {entry.name}")
            result.schedules[entry.name] = _fit(build(topology, collective, entry), model)
        return result
    entries = candidates(collective.name)
    for number, entry in enumerate(entries, start=1):
        report(f"building {entry.name}, {number} of {len(entries)}")
        try:
            result.schedules[entry.name] = _fit(build(topology, collective, entry), model)
        except BlinksimError as error:
            result.refused[entry.name] = str(error)
    if not result.schedules:
        raise InfeasibleError(
            f"no algorithm runs {collective} on {topology.name}: {'; '.join(result.refused.values())}"
        )
    return result


def _fit(schedule: Schedule, model: str) -> Schedule:
    if model != "simulate":
        return schedule
    from blinksim.simulation.time_terms import check_sends

    return check_sends(schedule)


def project(
    topology: Topology,
    collective: Collective | str,
    size: int | str,
    *,
    algorithm: str = "best",
    model: str = "alpha-beta",
    gamma: float = 0.0,
) -> Projection:
    """The time of a collective of `size` (bytes, or text such as ``256MiB``) on a topology.

    topology: as `Topology.select` gives it, or a whole machine, of which its default members and links take part.

    algorithm: a name of the registry, or ``best`` for the quickest that needs no solver. model: ``alpha-beta``,
    ``simulate`` (`blinksim.simulation.time_terms.projected`), ``projection`` or the name of a preset in models/ (load
    the machine with the rates that the preset pins). gamma: seconds per byte reduced. Raises `InputError` for unknown
    names and `InfeasibleError` where the algorithm or the model does not cover the case.
    """
    chosen = Collective.parse(collective) if isinstance(collective, str) else collective
    chosen.check_ranks(topology.ranks)
    count = parse_size(str(size))
    if model in SCHEDULE_MODELS:
        names = None if algorithm == "best" else [algorithm]
        return contest(topology.selected(), chosen, names, model=model).projections(count, gamma)[0]
    groups = nodes_of(topology, topology.members)
    return project_preset(topology, chosen, count, len(groups), len(groups[0]), model)


def project_preset(
    topology: Topology, collective: Collective, size: int, nodes: int, ranks_per_node: int | None, preset: str
) -> Projection:
    """The scale-up + scale-out time by a preset of models/ (`blinksim.cost.projection.project`).

    topology: one node with its fabric, or a cluster of `nodes` nodes.
    """
    from blinksim.cost import projection
    from blinksim.cost.presets import load_preset

    entry = load_preset(preset)
    terms = projection.project(topology, nodes, ranks_per_node, size, entry, collective.name)
    members = place(topology, ranks_per_node)
    if topology.nodes == 1 and nodes > 1:
        members = tuple(f"n{i}.{name}" for i in range(nodes) for name in members)
    slowest = max(terms, key=lambda term: term.time_s)
    classes = {*topology.link_classes, *((topology.fabric.kind,) if topology.fabric else ())}
    return Projection(
        machine=topology.name,
        collective=collective,
        members=members,
        relays=(),
        links=tuple(dict.fromkeys(term.limit for term in terms if term.limit in classes)),
        rates=topology.rates,
        size=size,
        model=entry.name,
        algorithm="scale-up + scale-out" if entry.reading != "chain" else "chain",
        terms=terms,
        bottleneck=f"{slowest.limit}: {slowest.name}" if slowest.limit else slowest.name,
    )
