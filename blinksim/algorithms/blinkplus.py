"""Blink+: idle GPUs of the machine lend a tenant links that are otherwise unused.

A tenant's GPUs see only the links between them; trees through idle neighbours add those of the neighbours
(Blink+ report, section 4.1, algorithm 1). A helper copies what passes and reduces into a scratch buffer that
starts with the neutral element, so it changes no result. The data is split by the trees' rates. All trees
over tenant and helpers are searched (Steiner trees), so "no helper adds more" is proved for small tenants or
machines.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from blinksim.algorithms.blink import trees_from
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.packing.choose import Limits
from blinksim.packing.columns import find_hops, links_as_hops
from blinksim.packing.tree_columns import BOTH, TreeSearch, use_of
from blinksim.schedule.loads import Tree, rate
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm(REDUCE_AND_SPREAD, "trees through idle GPUs as well (Blink+)", solver=True, most_ranks=32)


# What a helper must do for trees to branch there.
_BRANCHES = frozenset(("reduce", "multicast"))


def build(
    topology: Topology,
    collective: Collective,
    *,
    channels: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
) -> Schedule:
    """Trees over the members and the idle GPUs among the devices of `topology`, at the best rate.

    topology: ``machine.select(tenant, relays=idle, relays_reduce=True)``. Relays that only forward lie
    on the way from one GPU of a tree to the next. Without idle neighbours the
    tenant's own links remain. Among equally fast choices the one that loads the fewest links. channels: the
    trees, in lanes (on the report's DGX-1 a fourth gained nothing, section 4.3); None for no limit.

    Raises `InputError` for less than one channel, and `InfeasibleError` if the members are not connected.
    """
    if channels is not None and channels < 1:
        raise InputError(f"{channels} channels: give 1 or more")
    helpers = idle_helpers(topology)
    machine = replace(topology, relays=(*topology.relays, *(name for name in helpers if name not in topology.relays)))
    plan = Plan(machine, collective, "blinkplus", "forest")
    _, trees = helped_trees(machine, collective, Limits(time_limit, seed), channels)
    plan.add_trees(trees)
    return plan.finish(rounded=True)


def helped_trees(
    machine: Topology, collective: Collective, limits: Limits, channels: int | None = None
) -> tuple[Fraction, list[Tree]]:
    """algbw in bytes/s, and few trees through helpers, with the fewest hops, that attain it.

    channels: as in `build`.
    """
    search = tree_search(machine, collective)
    hops, roots, best = search.hops, search.roots, search.best()
    loss = Fraction(0)
    if channels is not None:
        loss = max(Fraction(0), 1 - channels * search.hops.lane / search.hops.unit / best.rate)
    mix = search.few(best, limits, loss=loss, cheapest=True)
    return mix.rate * len(roots) * hops.unit, [*trees_from(search, mix)]


def tree_search(part: Topology, collective: Collective, machine: Topology | None = None) -> TreeSearch:
    """The search for trees through helpers; each root of an allgather has the same rate.

    machine: whose links are the hops, if others share it (`links_as_hops`). What neither is a member nor
    branches only forwards.
    """
    idle, use = idle_helpers(part), use_of(collective)
    hops = find_hops(part, idle) if machine is None else links_as_hops(machine, part, idle)
    members, helpers = hops.vertices[: hops.members], hops.vertices[hops.members :]
    roots = (members[collective.root],) if collective.rooted else members if use != BOTH else members[:1]
    forwards = tuple({*helpers} - {part.index[one] for one in idle if part.device(one).can >= _BRANCHES})
    return TreeSearch(hops, roots, use, hops_first=True, forwards=forwards)


def idle_helpers(topology: Topology) -> tuple[str, ...]:
    """GPUs and tiles without a rank that trees may use: those that reduce and multicast, or forward."""
    members = set(topology.members)
    idle = (one for one in topology.devices if one.kind in ("gpu", "tile") and one.name not in members)
    return tuple(one.name for one in idle if one.can >= _BRANCHES or "forward" in one.can)


def lanes(schedule: Schedule) -> Fraction:
    """The rate of a schedule in lanes of the machine's thinnest hop: the report's number of channels."""
    return (rate(schedule) or Fraction(0)) / find_hops(schedule.topology, idle_helpers(schedule.topology)).lane
