"""Presets of models/ as timing models: scale-up + scale-out with the equations of one preset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from blinksim.errors import InfeasibleError, InputError
from blinksim.results import total
from blinksim.timing import projection
from blinksim.timing.projection_result import Projection
from blinksim.timing.timing_model import TimingModel
from blinksim.topology.cluster import nodes_of
from blinksim.topology.selection import NONE
from blinksim.units import format_size, format_time

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.question import Question
    from blinksim.timing.timing_model import Report
    from blinksim.topology.graph import Topology

CHAIN = "chain"
# A size is refused if one message on each link class takes a tenth of what its bytes take, or more.
_MOST_LEFT_OUT = 10


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
        fabric = (topology.fabric,) if topology.fabric else ()
        latencies = {link.kind: link.latency + link.overhead for link in (*topology.links, *fabric)}
        left_out_s, time_s = sum(latencies.get(term.limit, 0.0) for term in terms), total(terms)
        # The next power of two, which is easier to say.
        least = 1 << max(0, math.ceil(size * _MOST_LEFT_OUT * left_out_s / time_s) - 1).bit_length()
        if size < least:
            raise InfeasibleError(
                f"{self.name} holds from {format_size(least)} on: it counts no latencies, and one message on "
                f"each of its links takes {format_time(left_out_s)}; take a larger size"
            )
        members = projection.ranks_of(topology, nodes, ranks_per_node, self.preset)
        if topology.nodes == 1 and nodes > 1:
            members = tuple(f"n{i}.{name}" for i in range(nodes) for name in members)
        busy = {term.limit: total(one for one in terms if one.limit == term.limit) for term in terms}
        slowest = max(busy, key=lambda kind: busy[kind])
        return Projection(
            machine=topology.name,
            collective=collective,
            members=members,
            relays=(),
            links=tuple(kind for kind in busy if kind in latencies),
            rates=topology.rates,
            size=size,
            model=self.name,
            algorithm=algorithm,
            terms=terms,
            bottleneck=f"{slowest}: {', '.join(term.name for term in terms if term.limit == slowest)}",
            details={
                "time_by_class_s": busy,
                "bottleneck_busy": busy[slowest] / time_s,
                "holds_from_bytes": least,
                "links_left_out": sorted(latencies.keys() - busy.keys()),
            },
        )
