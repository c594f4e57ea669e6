"""Steiner trees that branch in relays and switches, packed: a bound's trees share out what links carry.

The trees are those of the bound's linear program (`blinksim.bounds.optimum`; Jain, Mahdian and Salavatipour
2003). That program counts trees that symmetries map onto each other as one; here every image is a tree of its
own, a second program shares the rate among them, and every link keeps its capacity.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm

import numpy as np

from blinksim.bounds.optimum import BranchingTrees, Hop, TreeSet
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.connectivity import summed
from blinksim.graphs.network import network
from blinksim.graphs.programs import with_adders
from blinksim.packing.columns import Column, best_mix
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import automorphisms, candidates, encoded, orbit_labels, orbits, with_name_rotations

# Trees beyond which no more symmetries are applied.
_MOST_TREES = 2000


def shared_out(
    topology: Topology, collective: Collective, sets: Iterable[TreeSet]
) -> tuple[Fraction, list[tuple[Fraction, BranchingTrees]]]:
    """The rate of the collective on such trees, and the bytes/s of each, as the links allow.

    Raises `InfeasibleError` if the solver finds no optimum.
    """
    trees = [tree for each in sets for tree in each.trees]
    # A symmetry may take the root to another device.
    trees = trees if collective.rooted else _images(topology, trees)
    trees = list({_key(tree): tree for tree in trees}.values())
    net = network(topology)
    names, shared, _ = with_adders(topology, net)
    capacities, uses = list[int](), defaultdict[str, list[tuple[int, int]]](list)
    for resource, limit in enumerate(shared):
        # A bus is shared by time: a slower link takes more of it for the same data.
        most, bus = Fraction(limit.capacity), len(limit.uses) > 1
        parts = [most / int(net.capacity[arc]) if bus else Fraction(1) for arc, _ in limit.uses]
        whole_of = lcm(most.denominator, *(part.denominator for part in parts))
        capacities.append(int(most * whole_of))
        for (arc, _), part in zip(limit.uses, parts, strict=True):
            uses[names[arc]].append((resource, int(part * whole_of)))
    # Every root of an allgather has the same part of the data; elsewhere any root will do.
    own = collective.name in ("allgather", "reducescatter")
    group = {device: number if own else 0 for number, device in enumerate(topology.member_places.tolist())}
    columns = list[Column]()
    for number, tree in enumerate(trees):
        crossed = (topology.links[link] for hop in (*tree.away, *tree.towards) for link in hop.links)
        used = Counter(f"{topology.devices[switch].name} sums" for switch in tree.sums(topology))
        for link in crossed:
            used.update((link.name, f"{link.src} out", f"{link.dst} in"))
        load = summed((resource, times * each) for name, times in used.items() for resource, each in uses[name])
        columns.append(Column(((number, number),), tuple(sorted(load.items())), 0, group.get(tree.root, 0)))
    groups = topology.ranks if own else 1
    if {column.group for column in columns} != set(range(groups)):
        raise InfeasibleError("some member is the root of none of the trees of this bound")
    mix = best_mix(columns, capacities, groups=groups)
    chosen = [(rate * net.unit, trees[column.arcs[0][0]]) for column, rate in zip(mix.columns, mix.rates, strict=True)]
    return mix.rate * groups * net.unit, chosen


def _images(topology: Topology, trees: Sequence[BranchingTrees]) -> list[BranchingTrees]:
    """The trees, and what the symmetries of the bound's program make of them: all of it if that is not too much.

    Else powers of the first symmetry, powers of the second of all these, and so on.
    """
    machine = with_name_rotations(topology)
    own = [np.asarray(goes) for goes in automorphisms(machine)]
    # The bound's program takes devices of an orbit as alike. An edit may leave rotations of nodes besides.
    fewer = 1 + orbit_labels(len(machine.devices), own).max() > len(orbits(machine))
    images = ((goes, encoded(machine).image(goes)) for goes in (candidates(machine) if fewer else own))
    symmetries = [(np.asarray(goes).tolist(), image.tolist()) for goes, image in images if image is not None]
    seen = {_key(tree): tree for tree in trees}
    latest = list(trees)
    while latest and len(seen) <= _MOST_TREES:
        moved = [_moved(tree, goes, image) for goes, image in symmetries for tree in latest]
        fresh = {_key(tree): tree for tree in moved if _key(tree) not in seen}
        latest = list(fresh.values())
        seen |= fresh
    if not latest:
        return list(seen.values())
    every = list(trees)
    for goes, image in symmetries:
        powers, known = every, list(every)
        while (powers := [_moved(tree, goes, image) for tree in powers]) != every and len(known) < _MOST_TREES:
            known += powers
        every = known
    return every


def _key(tree: BranchingTrees) -> tuple[object, ...]:
    return tree.root, tree.away, tree.towards


def _moved(tree: BranchingTrees, goes: Sequence[int], image: Sequence[int]) -> BranchingTrees:
    def hops(some: Sequence[Hop]) -> tuple[Hop, ...]:
        return tuple(Hop(x.sort, goes[x.start], goes[x.end], tuple(image[link] for link in x.links)) for x in some)

    return replace(tree, root=goes[tree.root], away=hops(tree.away), towards=hops(tree.towards))
