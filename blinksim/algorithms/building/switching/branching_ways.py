"""Trees that branch in switches: the ways of the linear program of the bound, as sends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from blinksim.algorithms.building.switching.switch_plan import Moves, SwitchPlan
from blinksim.bounds.in_network import OWN, WAY, BranchingTrees, Hop, Way, abilities, best_ways
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.rounding import roundings
from blinksim.schedule.loads import rate
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology


def check_switches(topology: Topology) -> None:
    """Raises `InfeasibleError` if no switch does more than to forward."""
    if not abilities(topology):
        raise InfeasibleError(
            f"packed_in_network needs a switch that multicasts or reduces; {topology.name} has none (machine files say "
            "it, or an edit such as 'nvswitch can=forward,multicast,reduce_into_reader')"
        )


def best_schedule(topology: Topology, collective: Collective) -> Schedule:
    """The schedule of the best ways that the program finds.

    Raises `InfeasibleError` if it finds no optimum.
    """
    # Symmetries let one way stand for those that are like it, and here each is written down.
    lengths, ways, _ = best_ways(replace(topology, symmetries=()), collective)
    best: tuple[Fraction, Schedule] | None = None
    amounts = [amount for amount, _ in ways]
    for rounding in roundings(lengths.rate):
        parts = rounding(amounts)
        if not any(parts):
            continue
        total = sum(parts)
        schedule = _schedule(
            topology, collective, [(part / total, way) for part, (_, way) in zip(parts, ways, strict=True)]
        )
        found = rate(schedule) or Fraction(0)
        if best is None or found > best[0]:
            best = found, schedule
        if found >= lengths.rate:
            break
    assert best is not None
    return best[1]


def _schedule(topology: Topology, collective: Collective, ways: Sequence[tuple[Fraction, Way]]) -> Schedule:
    plan = SwitchPlan(topology, collective, "packed_in_network")
    rank = {device: number for number, device in enumerate(plan.ranks)}
    for share, way in ways:
        for tree in way.trees if share else ():
            moves = Moves(plan)
            _add(moves, tree)
            root = rank.get(tree.root, -1)
            labels = (-1, -1) if collective.name == "allreduce" else collective.labels(root, root)
            moves.finish(plan.add_chunk(share * tree.part, *labels))
    return plan.finish()


def _add(moves: Moves, tree: BranchingTrees) -> None:
    for hop in reversed(tree.towards):
        if hop.sort == WAY:
            moves.send(hop.end, hop.start, REDUCE, hop.links)
        elif hop.sort == OWN:
            moves.read(hop.end, (hop.start, *_group(tree.towards)[hop.end]), hop.start)
    for hop in tree.away:
        if hop.sort == WAY:
            moves.send(hop.start, hop.end, COPY, hop.links)
        elif hop.sort == OWN:
            moves.store(hop.end, hop.start, (hop.start, *_group(tree.away)[hop.end]))


def _group(hops: Sequence[Hop]) -> dict[int, list[int]]:
    """The GPUs that each switch works for, its owner left out."""
    switches = {hop.end for hop in hops if hop.sort == OWN}
    found: dict[int, list[int]] = defaultdict(list)
    for hop in hops:
        if hop.sort not in (WAY, OWN):
            if hop.start not in switches or hop.end in switches:
                raise InfeasibleError("packed trees do not branch in several switches that work for GPUs at once")
            found[hop.start].append(hop.end)
    return found
