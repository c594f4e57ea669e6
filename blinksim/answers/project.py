"""How long a collective takes, with which algorithm, and which one is best for a size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from blinksim.algorithms.registry import Algorithm, algorithm, candidates
from blinksim.bounds.quick import quick_bound
from blinksim.collective import ROOTED, Collective
from blinksim.cost.alpha_beta import cost
from blinksim.errors import BlinksimError, InfeasibleError, InputError, unknown
from blinksim.timing.projection_result import Ceiling, Projection
from blinksim.topology.cluster import nodes_of, place
from blinksim.units import parse_size

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology

# A schedule of more sends than this takes seconds to build and gigabytes to hold.
MOST_SENDS = 4_000_000
# Models that time schedules; the others have no schedule.
SCHEDULE_MODELS = ("alpha-beta", "simulate")
# Algorithms whose search grows fast with the ranks stay out of the contest beyond this many.
_MOST_SEARCHED = {"mxnet": 32}


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
