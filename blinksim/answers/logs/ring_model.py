"""Ring model of NCCL's time by alpha and beta, for machines without a model of its tuner.

NCCL moves large messages along rings that share no lane (Blink, 2018 short paper, section 2): allreduce,
allgather and reduce-scatter in shards, broadcast and reduce as chains along them; the rest are sends and
receives. Between nodes those of an alltoall go through the member of the sender's node that is on the
receiver's rail (PXN, since NCCL 2.12).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from blinksim.algorithms import direct, rail_aligned, ring
from blinksim.algorithms.building.orders import ring_orders
from blinksim.algorithms.building.plan import Plan, add_chains
from blinksim.algorithms.registry import algorithm
from blinksim.bounds.rails import turned_rails
from blinksim.collective import Collective
from blinksim.cost.alpha_beta import Counts, Floats, Ints, Starts, busiest, route_alphas, step_kinds
from blinksim.errors import InputError
from blinksim.schedule.loads import Resources, RouteUses, one_way, resource_loads, resources
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

# Bytes beside which overheads count for nothing.
_MANY = 2.0**50
# A class that this many times its time per byte makes the limit is as likely to be slow as the limit is.
_NEAR = 1.1


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
        rails = turned_rails(topology) if collective.name == "alltoall" else None
        if rails is not None and rails.alike:
            return rail_aligned.build(topology, collective)
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
        kind = {"direct": "direct sends", "rail_aligned": "sends by rail"}.get(
            self.schedule.algorithm, "NCCL-like rings"
        )
        return f"alpha-beta of {kind} at {self.topology.rates} rates"

    @cached_property
    def _figures(self) -> _Figures:
        return _Figures.of(self.schedule)

    @property
    def alpha(self) -> float:
        """Seconds that do not depend on the size."""
        return self._own[0]

    @property
    def betas(self) -> dict[str, float]:
        """Seconds per byte by what limits: a link class, or a kind of device with a capacity; they add up."""
        return self._own[1]

    @cached_property
    def _own(self) -> tuple[float, dict[str, float]]:
        return self.terms({}, {})

    def terms(self, alphas: Mapping[str, float], betas: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """`alpha` and `betas` where link classes have their alpha, or their beta (time per byte), times a factor."""
        return self._figures.in_steps(alphas, betas) if self._figures.kinds else self._figures.piped(alphas, betas)

    def time(self, size: int) -> float:
        """Seconds for `size` bytes."""
        return self.alpha + size * sum(self.betas.values())

    @property
    def limit(self) -> str:
        """The link class (or kind of device) that sets the bandwidth."""
        return max(self.betas, key=lambda kind: self.betas[kind])

    @cached_property
    def limits(self) -> tuple[str, ...]:
        """`limit`, and the link classes in series with it that a slowdown by a tenth makes the limit.

        Times of one collective do not tell them apart: any of them may be slow where it is behind.
        """
        usual = sum(self.betas.values())
        near = [kind for kind in self.classes if sum(self.terms({}, {kind: _NEAR})[1].values()) > usual * (1 + 1e-9)]
        return (self.limit, *(kind for kind in near if kind != self.limit))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The link classes that the schedule's sends cross, in the machine's order."""
        used = {self.topology.links[int(i)].kind for i in self.schedule.route_links}
        return tuple(kind for kind in self.topology.link_classes if kind in used)


@dataclass(frozen=True)
class _Figures:
    """What the time of a schedule depends on, in arrays that are filled once.

    kinds, numbers: of its steps (`blinksim.cost.alpha_beta.step_kinds`), none for a pipeline. starts, start_class:
    where messages start, and the class of that link, by way. link_class: by link. resource_class: by resource, empty
    for the capacity of a device, which is no link's.
    """

    schedule: Schedule
    shared: Resources
    occupied: RouteUses
    kinds: list[tuple[Ints, Floats, Counts]]
    counts: list[int]
    starts: Starts
    start_class: list[str]
    link_class: list[str]
    resource_class: list[str]
    seconds: Floats

    @classmethod
    def of(cls, schedule: Schedule) -> _Figures:
        shared, links = resources(schedule.topology), schedule.topology.links
        resource_class = [""] * len(shared.names)
        for link, own in zip(links, shared.of_link.tolist(), strict=True):
            resource_class[own] = link.kind
        ways = one_way(schedule)
        kinds, numbers = step_kinds(schedule) if schedule.form == "steps" else ([], np.zeros(0, np.int64))
        return cls(
            schedule,
            shared,
            RouteUses.of(ways, shared),
            kinds,
            np.bincount(numbers, minlength=len(kinds)).tolist(),
            Starts.of(schedule, ways, shared),
            [links[link].kind for link in ways.links[ways.start[:-1]].tolist()],
            [link.kind for link in links],
            resource_class,
            1 / np.array([float(rate) for rate in shared.rate]),
        )

    def in_steps(self, alphas: Mapping[str, float], betas: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """Alpha and betas of steps: each waits for the overheads of all messages on the link that is busy longest."""
        one, seconds = self._alphas(alphas), self._seconds(betas)
        starts = self._starts(alphas)
        alpha, found = 0.0, defaultdict[str, float](float)
        # Of many bytes: what a byte takes does not depend on the overheads then.
        longest = busiest(self.kinds, self.occupied, seconds * _MANY, starts, one)
        for count, (worst, time, waits) in zip(self.counts, longest, strict=True):
            alpha += count * waits
            found[self.shared.kinds[worst]] += count * time / _MANY
        return alpha, dict(found)

    def piped(self, alphas: Mapping[str, float], betas: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """Alpha and betas of a pipeline: the longest chain of sends, and the busiest link."""
        one = self._alphas(alphas)
        # A send waits for what its source gets of the same chunk; sends come in the order of their steps.
        late = defaultdict[tuple[int, int], float](float)
        chosen = self.schedule
        sends = zip(chosen.chunk.tolist(), chosen.src.tolist(), chosen.dst.tolist(), one[chosen.route], strict=True)
        for chunk, src, dst, alpha in sends:
            late[chunk, dst] = max(late[chunk, dst], late[chunk, src] + float(alpha))
        busy = self._loads * self._seconds(betas)
        worst = int(np.argmax(busy))
        return max(late.values()) + self._queued(alphas), {self.shared.kinds[worst]: float(busy[worst])}

    def _queued(self, alphas: Mapping[str, float]) -> float:
        """Seconds that the last of the blocks waits for the overheads of those that leave before it."""
        if not self.schedule.collective.exchanges:
            return 0.0
        routes, times = np.unique(self.schedule.route, return_counts=True)
        starts, resources = self._starts(alphas), len(self.shared.names)
        used = routes.astype(np.int32)
        before = starts.occupied(used, resources, times) - starts.one(used, resources)
        return float(before.max())

    def _starts(self, factors: Mapping[str, float]) -> Starts:
        scale = np.array([factors.get(kind, 1.0) for kind in self.start_class])
        return replace(self.starts, overhead=self.starts.overhead * scale)

    def _alphas(self, factors: Mapping[str, float]) -> Floats:
        return route_alphas(self.schedule, scale=np.array([factors.get(kind, 1.0) for kind in self.link_class]))

    def _seconds(self, factors: Mapping[str, float]) -> Floats:
        return np.asarray(self.seconds * np.array([factors.get(kind, 1.0) for kind in self.resource_class]))

    @cached_property
    def _loads(self) -> Floats:
        return np.array([float(load) for load in resource_loads(self.schedule, self.shared)])
