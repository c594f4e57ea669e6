"""Presets of models/ as timing models: scale-up + scale-out with the equations of one preset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from blinksim.errors import InputError
from blinksim.timing import projection
from blinksim.timing.projection_result import Projection
from blinksim.timing.timing_model import TimingModel
from blinksim.topology.cluster import nodes_of, place
from blinksim.topology.selection import NONE

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.question import Question
    from blinksim.timing.timing_model import Report
    from blinksim.topology.graph import Topology

CHAIN = "chain"


class PresetModel(TimingModel):
    """The scale-up + scale-out time by a preset of models/ (`blinksim.timing.projection.project`).

    nodes, ranks_per_node: of the cluster, where the topology given is one node with its fabric. Default: as
    many as the topology has. The terms need one node and its fabric only, so that a thousand nodes cost no
    more than one.
    """

    def __init__(self, preset: str, nodes: int | None = None, ranks_per_node: int | None = None) -> None:
        self.preset = projection.load_preset(preset)
        self.name = self.preset.name
        self.rates = self.preset.rates
        self.pins_rates = self.rates is not None
        self.nodes, self.ranks_per_node = nodes, ranks_per_node

    def at(self, question: Question) -> tuple[PresetModel, Topology]:
        """The model for the nodes of the question, and one of them with its fabric, unless an edit names a node."""
        try:
            node = replace(question, nodes=1).whole()
        except InputError:
            if question.nodes == 1:
                raise
            node = question.whole()
        return PresetModel(self.name, question.nodes, question.ranks_per_node), node

    def check(self, question: Question) -> None:
        if question.members is not None or question.relays not in (None, NONE) or question.links is not None:
            raise InputError(f"model={self.name} takes nodes= and ranks_per_node=, not members=, relays= or links=")

    def algorithms(self, topology: Topology, collective: Collective) -> tuple[str, ...]:
        """The only one that the preset has."""
        return (CHAIN if self.preset.reading == "chain" else "scale-up + scale-out",)

    def times(
        self,
        topology: Topology,
        collective: Collective,
        sizes: Iterable[int],
        algorithms: Sequence[str] | None = None,
        report: Report | None = None,
    ) -> list[Projection]:
        """As `TimingModel.times`. topology: a cluster, or one node with its fabric."""
        own = self.algorithms(topology, collective)
        if algorithms is not None and tuple(algorithms) != own:
            given = ",".join(algorithms)
            raise InputError(f"model={self.name} has an algorithm of its own; leave algorithm={given} out")
        return [self._at(topology, collective, size, own[0]) for size in sizes]

    def _at(self, topology: Topology, collective: Collective, size: int, algorithm: str) -> Projection:
        nodes, ranks_per_node = self.nodes, self.ranks_per_node
        if nodes is None:
            groups = nodes_of(topology, topology.members)
            nodes, ranks_per_node = len(groups), len(groups[0])
        terms = projection.project(topology, nodes, ranks_per_node, size, self.preset, collective.name)
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
            model=self.name,
            algorithm=algorithm,
            terms=terms,
            bottleneck=f"{slowest.limit}: {slowest.name}" if slowest.limit else slowest.name,
        )
