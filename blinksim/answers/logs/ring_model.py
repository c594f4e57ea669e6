"""The time of NCCL's rings on a machine by alpha and beta: the yardstick where its tuner has no model.

NCCL moves large messages along rings that share no lane (Blink, 2018 short paper, section 2): allreduce, allgather and
reduce-scatter in shards, broadcast and reduce as chains along them; the rest are plain sends and receives.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from blinksim.algorithms import direct, ring
from blinksim.algorithms.building.orders import ring_orders
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.building.rank_trees import add_chains
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.cost.alpha_beta import cost, route_alphas
from blinksim.errors import InputError
from blinksim.schedule.loads import resource_loads, resources
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology


def ring_schedule(topology: Topology, collective: Collective) -> Schedule:
    """The rings' schedule of `collective` on a selected topology.

    Raises `InfeasibleError` if the links do not connect the members, `InputError` for a single rank.
    """
    if topology.ranks < 2:
        raise InputError("a collective needs at least two ranks; choose at least two members")
    collective.check_ranks(topology.ranks)
    if algorithm("ring").supports(collective.name):
        return ring.build(topology, collective)
    if collective.name not in ("broadcast", "reduce"):
        return direct.build(topology, collective)
    plan = Plan(topology, collective, "ring", "forest")
    add_chains(plan, collective, ring_orders(topology))
    return plan.finish()


@dataclass(frozen=True)
class RingModel:
    """T = alpha + size x beta of the rings of a collective; link classes can be scaled.

    The alphas of the longest chain of sends add up, and the busiest link passes its whole load: pieces count as so
    small that a pipeline fills in no time, as in NCCL's own model (NCCL 2.28.3, graph/tuning.cc).
    """

    topology: Topology
    collective: Collective

    @cached_property
    def schedule(self) -> Schedule:
        """Built once, at the machine's own rates."""
        return ring_schedule(self.topology, self.collective)

    @property
    def name(self) -> str:
        """What to call the model in answers."""
        kind = "direct sends" if self.schedule.algorithm == "direct" else "NCCL-like rings"
        return f"alpha-beta of {kind} at {self.topology.rates} rates"

    @cached_property
    def alpha(self) -> float:
        """Seconds that do not depend on the size."""
        alphas = route_alphas(self.schedule)[self.schedule.route]
        if self.schedule.form == "steps":
            slowest = np.zeros(self.schedule.steps)
            np.maximum.at(slowest, self.schedule.step, alphas)
            return float(slowest.sum())
        # A send waits for what its source gets of the same chunk; sends come in the order of their steps.
        late = defaultdict[tuple[int, int], float](float)
        sends = zip(self.schedule.chunk, self.schedule.src, self.schedule.dst, alphas, strict=True)
        for chunk, src, dst, alpha in sends:
            late[chunk, dst] = max(late[chunk, dst], late[chunk, src] + float(alpha))
        return max(late.values())

    @cached_property
    def betas(self) -> dict[str, float]:
        """Seconds per byte by what limits: a link class, or a kind of device with a capacity; they add up."""
        size = 2**30
        if self.schedule.form == "steps":
            found = cost(self.schedule, size)
            return {term.limit: term.time_s / size for term in found.terms if term.limit != "alpha"}
        shared = resources(self.topology)
        loads = resource_loads(self.schedule, shared)
        seconds = [float(load / rate) for load, rate in zip(loads, shared.rate, strict=True)]
        worst = int(np.argmax(seconds))
        return {shared.kinds[worst]: seconds[worst]}

    def time(self, size: int) -> float:
        """Seconds for `size` bytes."""
        return self.alpha + size * sum(self.betas.values())

    @property
    def limit(self) -> str:
        """The link class (or kind of device) that sets the bandwidth."""
        return max(self.betas, key=lambda kind: self.betas[kind])

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The link classes that the schedule's sends cross, in the machine's order."""
        used = {self.topology.links[int(i)].kind for i in self.schedule.route_links}
        return tuple(kind for kind in self.topology.link_classes if kind in used)

    def scaled(self, alphas: dict[str, float], betas: dict[str, float]) -> RingModel:
        """The same rings where link classes have their alpha, or their beta (time per byte), times a factor."""
        links = tuple(
            replace(
                link,
                latency=link.latency * alphas.get(link.kind, 1.0),
                overhead=link.overhead * alphas.get(link.kind, 1.0),
                lane_bandwidth=_slower(link.lane_bandwidth, betas.get(link.kind, 1.0)),
            )
            for link in self.topology.links
        )
        changed = RingModel(replace(self.topology, links=links), self.collective)
        changed.__dict__["schedule"] = replace(self.schedule, topology=changed.topology)
        return changed


def _slower(rate: Fraction, factor: float) -> Fraction:
    # Whole bytes per second: exact fractions of floats have denominators of fifty bits.
    return rate if factor == 1.0 else Fraction(max(1, round(float(rate) / factor)))
