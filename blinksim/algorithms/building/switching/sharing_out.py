"""How much each of some trees carries: the trees of a bound, and all that symmetries make of them, as a linear program.

The program of the bound has one way for all that symmetries map onto each other; here each is a tree of its own, and
every link keeps its capacity.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from blinksim.bounds.in_network import BranchingTrees, Hop, Way
from blinksim.collective import Collective
from blinksim.graphs.capacities import with_adders
from blinksim.graphs.linear import Program
from blinksim.graphs.network import network
from blinksim.topology.graph import Topology
from blinksim.topology.symmetries.name_turns import with_name_turns
from blinksim.topology.symmetry import automorphisms

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
