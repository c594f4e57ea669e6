"""Polishing of a packing: the lowest and fewest trees that keep its rate, or the rate that lower trees cost.

A packing at the best rate may have tall trees, which start late, and many, which need channels. On small
machines all trees of a height are compared (`blinksim.packing.tree_columns`), height by height until the
bound is reached, which gives the Pareto front of rate, height and number of trees; on larger ones the
candidates are the trees of a given schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import lcm
from random import Random

from blinksim.algorithms.building.plan import Plan, claim
from blinksim.bounds.bound_result import BoundResult
from blinksim.collective import ON_TREES, Collective
from blinksim.errors import InputError
from blinksim.graphs.connectivity import grouped
from blinksim.packing.choose import MOST_PARTS, Choice, Selection
from blinksim.packing.columns import Arc, Column, Mix, Symmetry, best_mix, find_hops, images
from blinksim.packing.tree_columns import BOTH, as_tree, entry_trees, low_trees, use_of
from blinksim.schedule.loads import Tree, rate as load_rate, resources, trees_of
from blinksim.schedule.model import Schedule
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import searched

# Trees of one height up to which all of them are compared.
MOST_TREES = 8_000
# Trees up to which a linear program over given ones is made exact.
_MOST_EXACT = 150
# Height of trees that enter every other node once and spread there.
_ENTRY_HEIGHT = 2
# Most symmetries that answers are looked for by.
_SYMMETRIES = 6
# The part of the bound that a point must reach to be considered.
_WORTH = Fraction(1, 10)
# Column orders with which the linear program is solved.
_ORDERS = 12


@dataclass(frozen=True)
class Point:
    """One compromise. rate: algbw in bytes/s, exact. height: hops from the root to the farthest rank, up or down.

    least_trees: fewer trees, with rates in multiples of the same part, are impossible at this rate and
    height; where only given trees were compared, impossible with these trees.
    """

    schedule: Schedule
    rate: Fraction
    height: int
    trees: int
    least_trees: int
    of_all_trees: bool


def polish(
    given: Schedule | Topology,
    collective: Collective | None = None,
    *,
    seconds: float = 30.0,
    seed: int = 0,
    bound: BoundResult | None = None,
) -> tuple[Point, ...]:
    """The front for a collective on a topology, or for a schedule in forest form (of `ON_TREES`), and better trees.

    Lowest first: taller points are faster, or have fewer trees.

    seconds: of search for fewer trees, altogether; the answer depends on it and on `seed`, but not on the
    machine that searches. bound: what `blinksim.bounds.bound` gave, if it is known already.

    Raises `InputError` for other collectives, for a schedule that is no forest, and where a topology is too
    large to compare all trees and no schedule is given.
    """
    from blinksim.bounds.compute import bound as find_bound

    schedule = given if isinstance(given, Schedule) else None
    topology, wanted = (schedule.topology, schedule.collective) if schedule else (given, collective)
    assert isinstance(topology, Topology)
    if wanted is None or wanted.name not in ON_TREES:
        raise InputError(f"{wanted or 'no collective'} cannot be polished; {', '.join(ON_TREES)} can")
    if schedule is not None and schedule.form != "forest":
        raise InputError(f"{schedule.algorithm} is in steps form; only forests can be polished")
    question = _Question(topology, wanted, bound or find_bound(topology, wanted))
    points = question.compared(seconds / (2 if schedule else 1), seed)
    if schedule is not None:
        points += question.chosen(schedule, seconds if not points else seconds / 2, seed)
    if not points:
        many = f"{topology.name} has too many trees to compare all of them"
        raise InputError(f"{many}; build a schedule with packed, and polish that")
    # Those that no other point equals or betters in rate, height and number of trees; lowest first.
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.height, -p.rate, p.trees)):
        if not any(other.rate >= point.rate and other.trees <= point.trees for other in front):
            front.append(point)
    return tuple(front)


class _Question:
    """One collective on one topology."""

    def __init__(self, topology: Topology, collective: Collective, bound: BoundResult) -> None:
        self.topology, self.collective, self.bound = topology, collective, bound
        # Every edge of a tree has one route, as those of the given trees.
        self.plain, self.use = find_hops(topology, divided=False), use_of(collective)
        self.hops = self.plain.reversed if collective.collects else self.plain
        self.members = self.hops.vertices[: self.hops.members]
        # Every root of an allgather needs its own rate, which makes it a group; in an allreduce the roots are free.
        self.both = self.use == BOTH
        self.roots = (self.members[collective.root],) if collective.rooted or self.both else self.members

    # --- all trees ------------------------------------------------------------------------------------------------

    def compared(self, seconds: float, seed: int) -> list[Point]:
        """One point per height at which all trees can be listed and the rate grows, up to the bound."""
        entries: list[tuple[int, list[Column], Mix, bool]] = []
        for height in range(1, len(self.members)):
            columns, whole = self.columns(height), True
            if columns is None and height == _ENTRY_HEIGHT:
                columns, whole = self.entering(), False
            if columns is None:
                break
            if {column.group for column in columns} == set(range(len(self.roots))):
                mix = best_mix(columns, self.hops.capacity, weights=[1] * len(self.roots))
                if not entries or mix.rate > entries[-1][2].rate:
                    entries.append((height, columns, mix, whole))
                if mix.rate * self.hops.unit * len(self.roots) >= self.bound.rate:
                    break
        worth = self.bound.rate / self.hops.unit / len(self.roots) * _WORTH
        entries = [entry for entry in entries if entry[2].rate >= worth]
        known = member_symmetries(self.topology) if entries else []
        points = []
        for number, (height, columns, mix, whole) in enumerate(entries):
            # Most users want the fastest point, so it gets half of the time.
            part = seconds / 2 if number == len(entries) - 1 else seconds / 2 / (len(entries) - 1)
            chosen = self._compared(columns, mix, known, part if len(entries) > 1 else seconds, seed)
            trees = [as_tree(self.plain, c.arcs[0][0], Fraction(0), c.arcs, self.use) for c in columns]
            points.append(self._point(trees, *chosen, height, whole))
        return points

    def _compared(
        self, columns: list[Column], mix: Mix, known: Sequence[Symmetry], seconds: float, seed: int
    ) -> tuple[Choice, Selection]:
        """The fewest of these columns that are found, with the rate of `mix`."""
        # Of several answers of the linear program, from columns in other orders, the one with the fewest columns.
        random, shuffled = Random(seed), list(columns)
        for _ in range(_ORDERS if len(mix.columns) > len(self.roots) else 0):
            random.shuffle(shuffled)
            other = best_mix(shuffled, self.hops.capacity, weights=[1] * len(self.roots))
            if other.rate >= mix.rate and len(other.columns) < len(mix.columns):
                mix = other
        weight = dict(zip(mix.columns, mix.rates, strict=True))
        own = lcm(*(rate.denominator for rate in mix.rates))
        mapped = [images(columns, symmetry, self.roots, both=self.both) for symmetry in known]
        maps = [entry for entry in mapped if entry is not None]
        found = list[tuple[Choice, Selection]]()
        for parts in sorted({mix.rate.denominator, own}):
            amounts = [weight.get(column, Fraction(0)) * parts for column in columns]
            start = [int(amount) for amount in amounts] if parts % own == 0 else None
            choice = Choice(columns, self.hops.capacity, mix.rate, parts)
            if parts <= MOST_PARTS:
                selection = choice.fewest(seconds, seed, maps=maps, known=start)
            else:
                selection = None if start is None else Selection(tuple(start), choice.least)
            if selection is not None:
                found.append((choice, selection))
                if selection.count <= len(mix.columns):
                    break
        return min(found, key=lambda pair: pair[1].count)

    def entering(self) -> list[Column] | None:
        """Low trees over several nodes (`entry_trees`); None on a single node."""
        if len(places := nodes_of(self.topology, self.topology.members)) < 2:
            return None
        nodes = [[self.members[rank] for rank in node] for node in places]
        roots = self.members if self.both else self.roots
        trees = ((group, arcs) for group, root in enumerate(roots) for arcs in entry_trees(self.hops, nodes, root))
        return list(dict.fromkeys(self._column(arcs, group) for group, arcs in trees)) or None

    def columns(self, height: int) -> list[Column] | None:
        """All trees of at most that height; None if they are too many."""
        columns: list[Column] = []
        seen: set[frozenset[frozenset[int]]] = set()
        for group, root in enumerate(self.members if self.both else self.roots):
            for arcs in low_trees(self.hops, root, height):
                if self.both:
                    # Used both ways, a tree is the same whatever its root; the first root found is low enough.
                    shape = frozenset(map(frozenset, arcs))
                    if shape in seen or any((b, a) not in self.hops.routes for a, b in arcs):
                        continue
                    seen.add(shape)
                columns.append(self._column(arcs, group))
                if len(columns) > MOST_TREES:
                    return None
        return columns

    def _column(self, arcs: tuple[Arc, ...], group: int) -> Column:
        used = (*arcs, *((b, a) for a, b in arcs)) if self.both else arcs
        return Column(arcs, self.hops.load(used), 0, 0 if self.both else group)

    # --- given trees ----------------------------------------------------------------------------------------------

    def chosen(self, schedule: Schedule, seconds: float, seed: int) -> list[Point]:
        """The rate of a schedule with as few of its trees as are found.

        For the lowest trees that suffice, and for trees as tall as those of the schedule.
        """
        total = (load_rate(schedule) or Fraction(0)) / self.hops.unit
        alike = grouped(((t.root, frozenset(t.down), frozenset(t.up)), t) for t in trees_of(schedule))
        every = ((same[-1], sum((t.share for t in same), Fraction(0))) for same in alike.values())
        trees, shared = [replace(tree, share=share) for tree, share in every], resources(self.topology)
        group = {root: number for number, root in enumerate(self.roots)}
        columns = [Column((), tree.loads(shared), 0, 0 if self.both else group[tree.root]) for tree in trees]
        heights = [tree.height for tree in trees]
        tallest = max(heights)
        amounts = [total / len(self.roots), *(total * tree.share for tree in trees)]
        if (parts := lcm(*(amount.denominator for amount in amounts))) > MOST_PARTS:
            return [self._finished([(tree, tree.share) for tree in trees], tallest, len(self.roots), False)]
        # The height of the schedule, and the least height whose trees reach the rate, by their linear program.
        levels = {tallest}
        for height in sorted({*heights} - levels):
            low = [column for column, own in zip(columns, heights, strict=True) if own <= height]
            if len(low) <= _MOST_EXACT and {column.group for column in low} == set(range(len(self.roots))):
                mix = best_mix(low, self.hops.capacity, weights=[1] * len(self.roots))
                if mix.rate * len(self.roots) >= total:
                    levels.add(height)
                    break
        points = []
        for level in sorted(levels):
            allowed = [number for number, height in enumerate(heights) if height <= level]
            # The schedule itself is an answer to start from.
            known = [int(total * parts * tree.share) for tree in trees] if level == tallest else None
            low = [columns[number] for number in allowed]
            choice = Choice(low, self.hops.capacity, total / len(self.roots), parts)
            selection = choice.fewest(seconds / len(levels), seed, known=known)
            if selection is not None:
                points.append(self._point([trees[number] for number in allowed], choice, selection, level, False))
        return points

    # --- answers --------------------------------------------------------------------------------------------------

    def _point(self, trees: Sequence[Tree], choice: Choice, selection: Selection, height: int, of_all: bool) -> Point:
        total = int(choice.rate * choice.parts) * len(self.roots)
        pairs = zip(trees, selection.amounts, strict=True)
        chosen = [(tree, Fraction(amount, total)) for tree, amount in pairs if amount]
        return self._finished(chosen, height, selection.least, of_all)

    def _finished(self, chosen: Sequence[tuple[Tree, Fraction]], height: int, least: int, of_all: bool) -> Point:
        plan = Plan(self.topology, self.collective, "packed", "forest")
        plan.add_trees(replace(tree, share=share) for tree, share in chosen)
        schedule = plan.finish(rounded=True)
        schedule = schedule.with_bound(claim(schedule, self.bound))
        rate = load_rate(schedule)
        assert rate is not None
        own = max(tree.height for tree, _ in chosen)
        return Point(schedule, rate, min(own, height), len(chosen), least, of_all)


def member_symmetries(topology: Topology) -> list[Symmetry]:
    """Symmetries of the machine and their products, by members; those that leave none in place come first."""
    found, members = searched(topology), topology.member_places.tolist()
    products = (first[second] for first, second in product(found, repeat=2))
    images = dict.fromkeys(tuple(goes[members].tolist()) for goes in (*found, *products))
    moving: list[Symmetry] = [dict(zip(members, image, strict=True)) for image in images if list(image) != members]
    return sorted(moving, key=lambda moves: sum(a == b for a, b in moves.items()))[:_SYMMETRIES]
