"""Trees that branch in switches: the ways of the linear program of the bound, as sends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

from blinksim.algorithms.building.switching.sharing_out import shared_out
from blinksim.algorithms.building.switching.switch_plan import Moves, SwitchPlan
from blinksim.bounds.in_network import OUT, OWN, WAY, BranchingTrees, Hop, abilities, best_ways
from blinksim.bounds.obvious.guessed_lengths import guessed_lengths
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
    """The schedule of the best trees that the program finds.

    Raises `InfeasibleError` if it finds no optimum.
    """
    guess = guessed_lengths(topology, collective, abilities(topology))
    lengths, ways, _ = best_ways(topology, collective, (), guess)
    _, trees = shared_out(topology, collective, [way for _, way in ways])
    best: tuple[Fraction, Schedule] | None = None
    amounts = [amount for amount, _ in trees]
    for rounded in _rounded(amounts, lengths.rate):
        parts = _evened(topology, collective, rounded, [tree for _, tree in trees])
        if not parts:
            continue
        schedule = _schedule(
            topology, collective, [(part, tree) for part, (_, tree) in zip(parts, trees, strict=True) if part]
        )
        found = rate(schedule) or Fraction(0)
        if best is None or found > best[0]:
            best = found, schedule
        if found >= lengths.rate:
            break
    if best is None:
        raise InfeasibleError("the trees of this bound have no shares that add up")
    return best[1]


def _rounded(amounts: Sequence[float], best: Fraction) -> Iterator[list[Fraction]]:
    """Amounts in bytes/s as exact parts, in several ways, the likeliest first."""
    whole = sum(amounts)
    # Parts of the whole mostly have shorter fractions than bytes/s.
    yield next(roundings(best))([amount / whole for amount in amounts])
    yield from (rounding(amounts) for rounding in roundings(best))


def _evened(
    topology: Topology, collective: Collective, parts: Sequence[Fraction], trees: Sequence[BranchingTrees]
) -> list[Fraction]:
    """Amounts as shares of the size: of the data of every root, where each has its own; empty if one has none."""
    own = collective.name in ("allgather", "reducescatter")
    total = defaultdict[int, Fraction](Fraction)
    for part, tree in zip(parts, trees, strict=True):
        total[tree.root if own else -1] += part
    count = topology.ranks if own else 1
    if len(total) < count or not all(total.values()):
        return []
    return [part / total[tree.root if own else -1] / count for part, tree in zip(parts, trees, strict=True)]


def _schedule(topology: Topology, collective: Collective, trees: Sequence[tuple[Fraction, BranchingTrees]]) -> Schedule:
    plan = SwitchPlan(topology, collective, "packed_in_network")
    rank = {device: number for number, device in enumerate(plan.ranks)}
    for share, tree in trees:
        moves = Moves(plan)
        _add(moves, tree)
        root = rank.get(tree.root, -1)
        labels = (-1, -1) if collective.name == "allreduce" else collective.labels(root, root)
        moves.finish(plan.add_chunk(share, *labels))
    return plan.finish()


def _add(moves: Moves, tree: BranchingTrees) -> None:
    below = _below(tree.towards)
    for hop in reversed(tree.towards):
        if hop.sort == WAY:
            moves.send(hop.end, hop.start, REDUCE, hop.links)
        elif hop.sort == OWN:
            moves.read(hop.end, hop.start, below)
    below = _below(tree.away)
    for hop in tree.away:
        if hop.sort == WAY:
            moves.send(hop.start, hop.end, COPY, hop.links)
        elif hop.sort == OWN:
            moves.store(hop.end, hop.start, below)


def _below(hops: Sequence[Hop]) -> dict[int, list[int]]:
    """What each switch that works for GPUs by turns is joined with, its owner left out: GPUs, and further switches."""
    found: dict[int, list[int]] = defaultdict(list)
    for hop in hops:
        if hop.sort == OUT:
            found[hop.start].append(hop.end)
    return found
