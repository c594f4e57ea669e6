"""Trees packed at the rate of the bound that grants switches which multicast or reduce.

How much each of some trees carries: the trees of a bound, and all that symmetries make of them, as a linear program.

The program of the bound has one way for all that symmetries map onto each other; here each is a tree of its own, and
every link keeps its capacity.

Trees that branch in switches: the ways of the linear program of the bound, as sends.

Packed trees that may branch in switches which multicast or reduce, at the rate of the bound that grants it.

The trees are those of the bound's linear program (`blinksim.bounds.in_network`): packings of Steiner trees (Jain,
Mahdian and Salavatipour 2003). Where switches do not raise the rate, they only forward, as in `packed`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.claims import with_gap
from blinksim.algorithms.building.switch_plan import Moves, SwitchPlan
from blinksim.algorithms.packed import build as build_packed
from blinksim.algorithms.registry import ON_TREES, Algorithm
from blinksim.bounds import BoundResult
from blinksim.bounds import bound as find_bound
from blinksim.bounds.in_network import OUT, OWN, WAY, BranchingTrees, Hop, Way, abilities, best_ways
from blinksim.bounds.quick import guessed_lengths
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.linear import Program, roundings
from blinksim.graphs.network import network
from blinksim.graphs.programs import with_adders
from blinksim.schedule.loads import rate
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import automorphisms, with_name_turns

ENTRY = Algorithm(
    "packed_in_network",
    ON_TREES,
    "packed trees that may branch in switches",
    order=260,
    solver=True,
    source="Jain et al. 2003",
    routes=True,
    in_network=True,
)


# Trees beyond which no more symmetries are applied.
_MOST_TREES = 2000


def shared_out(
    topology: Topology, collective: Collective, ways: Iterable[Way]
) -> tuple[float, list[tuple[float, BranchingTrees]]]:
    """The rate of the collective on such trees, and the bytes/s of each, as the links allow.

    Raises `InfeasibleError` if the solver finds no optimum.
    """
    trees = [tree for way in ways for tree in way.trees]
    # A symmetry may take the root to another device.
    trees = trees if collective.rooted else _images(topology, trees)
    trees = list({_key(tree): tree for tree in trees}.values())
    net = network(topology)
    names, shared, _ = with_adders(topology, net)
    scale, unit = float(net.capacity.max()), float(net.unit)
    program = Program()
    amounts = program.variables(len(trees))
    (rate,) = program.variables(1)
    used = [_arcs(topology, tree) for tree in trees]
    by_arc: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for variable, arcs in zip(amounts, used, strict=True):
        for name, times in arcs.items():
            by_arc[name].append((variable, times))
    for capacity in shared:
        terms = [(v, times * part) for arc, part in capacity.uses for v, times in by_arc[names[arc]]]
        if terms:
            program.row(terms, at_most=float(capacity.capacity) / scale)
    wanted = _wanted(topology, collective)
    parts: dict[int, list[int]] = defaultdict(list)
    for variable, tree in zip(amounts, trees, strict=True):
        parts[tree.root if wanted else -1].append(variable)
    for root, part in (wanted or {-1: Fraction(1)}).items():
        program.row([*((v, 1.0) for v in parts[root]), (rate, -float(part))], at_least=0.0, at_most=0.0)
    value = program.solve([(rate, 1.0)]) * scale * unit
    found = np.maximum(program.values[: len(trees)], 0) * scale * unit
    return value, [(float(amount), tree) for amount, tree in zip(found, trees, strict=True) if amount > 1e-12 * value]


def _wanted(topology: Topology, collective: Collective) -> dict[int, Fraction]:
    """The part of the data that each device is the root of; nothing where any root will do."""
    if collective.name not in ("allgather", "reducescatter"):
        return {}
    return {topology.index[name]: Fraction(1, topology.ranks) for name in topology.members}


def _arcs(topology: Topology, tree: BranchingTrees) -> Counter[str]:
    found = Counter[str]()
    for hop in (*tree.away, *tree.towards):
        for number in hop.links:
            link = topology.links[number]
            found.update((link.name, f"{link.src} out", f"{link.dst} in"))
    found.update(f"{topology.devices[switch].name} sums" for switch in tree.sums(topology))
    return found


def _images(topology: Topology, trees: Sequence[BranchingTrees]) -> list[BranchingTrees]:
    """The trees, and what the symmetries make of them: all of it if that is not too much.

    Else powers of the first symmetry, powers of the second of all these, and so on.
    """
    index = topology.index
    number = {(index[x.src], index[x.dst], x.kind): place for place, x in enumerate(topology.links)}
    symmetries = [
        (goes, [number[goes[a], goes[b], kind] for a, b, kind in number])
        for goes in automorphisms(with_name_turns(topology))
    ]
    found = {_key(tree): tree for tree in trees}
    latest = list(trees)
    while latest and len(found) <= _MOST_TREES:
        images = {_key(tree): tree for goes, image in symmetries for tree in (_moved(x, goes, image) for x in latest)}
        latest = [tree for key, tree in images.items() if key not in found]
        found |= images
    if not latest:
        return list(found.values())
    every = list(trees)
    for goes, image in symmetries:
        turned, known = every, list(every)
        while (turned := [_moved(tree, goes, image) for tree in turned]) != every and len(known) < _MOST_TREES:
            known += turned
        every = known
    return every


def _key(tree: BranchingTrees) -> tuple[object, ...]:
    return tree.root, tree.away, tree.towards


def _moved(tree: BranchingTrees, goes: Sequence[int], image: Sequence[int]) -> BranchingTrees:
    def hops(some: Sequence[Hop]) -> tuple[Hop, ...]:
        return tuple(Hop(x.sort, goes[x.start], goes[x.end], tuple(image[link] for link in x.links)) for x in some)

    return replace(tree, root=goes[tree.root], away=hops(tree.away), towards=hops(tree.towards))


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


def build(topology: Topology, collective: Collective, *, bound: BoundResult | None = None) -> Schedule:
    """The schedule, carrying the bound that it is measured against.

    bound: what `blinksim.bounds.bound` gave with in_network, if known already. Raises `InfeasibleError` where no switch
    does more than to forward, and where no optimum is found.
    """
    from blinksim.algorithms.packed_in_network import best_schedule, check_switches

    check_switches(topology)
    found = bound or find_bound(topology, collective, in_network=True)
    if found.in_network is None:
        return build_packed(topology, collective, bound=found)
    return with_gap(best_schedule(topology, collective), found, divided=False)
