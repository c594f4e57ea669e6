"""Trees of several groups that share a machine, the best of all at once.

Every group packs its own trees, through GPUs of other groups too where these are its relays. One linear
program holds the trees of all: the best rate that all of them have together, in a ratio that is given. Those
that a certificate of it does not count can have more, by a further program (max-min fairness).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import gcd, lcm

from blinksim.algorithms.blinkplus import helper_trees, idle_helpers, tree_search
from blinksim.algorithms.building.plan import Plan
from blinksim.bounds.compute import bound
from blinksim.bounds.lengths import more_than_forwards
from blinksim.bounds.optimum import shortest_lengths
from blinksim.bounds.together import Group, Held, SharedLengths, Together
from blinksim.errors import InfeasibleError
from blinksim.packing.columns import Column, Mix, best_mix, hops_of_parts
from blinksim.packing.forest import pairs_of_links
from blinksim.packing.tree_columns import BOTH, TreeSearch
from blinksim.schedule.loads import resources
from blinksim.topology.graph import Topology

# Rounds in which trees are generated.
_ROUNDS = 400


def fair(machine: Topology, groups: Sequence[Group]) -> Together:
    """What groups can do at once on the machine that holds their parts; raises as `joint_mix`."""
    own = [tree_search(group.part, group.collective) for group in groups]
    # Where links load alike both ways, trees that are used both ways suffice.
    pairs = pairs_of_links(machine) if all(search.use == BOTH for search in own) else None
    own = [replace(search, apart=pairs is None and search.use == BOTH) for search in own]
    alone = [_alone(group, search) for group, search in zip(groups, own, strict=True)]
    hops = hops_of_parts(machine, [(group.part, idle_helpers(group.part)) for group in groups])
    searches = [replace(search, hops=one) for search, one in zip(own, hops, strict=True)]
    held: list[Fraction | None] = [None] * len(groups)
    proofs, mix = list[SharedLengths](), None
    while mix is None or None in held:
        mix = joint_mix(searches, [group.weight for group in groups], held, mix)
        proof = _proof(machine, groups, mix, held, pairs)
        # Of those that a certificate counts none can have more.
        for number, group in enumerate(groups):
            if held[number] is None and (proof.distances[number] or proof.rate > mix.rate):
                held[number] = group.weight * mix.rate
        proofs.append(proof)
    found = list[Group]()
    for group, search, trees, first, rate in zip(groups, searches, mix.mixes, alone, held, strict=True):
        plan = Plan(group.part, group.collective, "packed", "forest")
        plan.add_trees(helper_trees(group.part, search, trees))
        found.append(replace(group, alone=first, rate=rate or Fraction(0), schedule=plan.finish(rounded=True)))
    return Together(machine, tuple(found), tuple(proofs))


def _alone(group: Group, search: TreeSearch) -> Fraction:
    """Bytes/s of algbw that the trees of a group attain if the others do nothing."""
    found = search.best().rate * len(search.roots) * search.hops.unit
    if group.part.relays and not more_than_forwards(group.part):
        # Through relays that only forward there are several ways between two GPUs; the search takes one.
        best = bound(group.part, group.collective).headline
        found = max(found, best.rate) if best.exact else found
    return found


def _proof(
    machine: Topology, groups: Sequence[Group], mix: JointMix, held: Held, pairs: Sequence[int] | None
) -> SharedLengths:
    """Lengths from the prices of a mix. pairs: the reverse of every link, where trees load both alike."""
    shared, capacity, values = resources(machine), mix.capacity, dict[str, float]()
    for link, (first, last) in zip(machine.links, pairwise(shared.starts.tolist()), strict=True):
        ends = (f"{link.src} out", link.src), (f"{link.dst} in", link.dst)
        ways = [link.name, *(way for way, end in ends if machine.device(end).capacity is not None)]
        for way, resource in zip(ways, shared.members[first:last].tolist(), strict=True):
            # A use of a byte counts several times where hops are divided.
            counts = capacity[resource] * mix.unit / shared.rate[resource]
            values[way] = mix.prices[resource] * float(counts)
    names = [link.name for link in machine.links]
    if pairs is not None:
        back = [values[names[other]] for other in pairs]
        values |= {name: (values[name] + other) / 2 for name, other in zip(names, back, strict=True)}

    proved = partial(SharedLengths.of, machine, groups, held=held)
    found = shortest_lengths(values, float(mix.rate), proved)
    if found is None:
        why = "trees take one way between two GPUs, and these have several, as over shared NICs or other GPUs"
        cure = f"{why}; name groups of one node, and let relays reduce"
        raise InfeasibleError(f"no lengths of links prove a bound of these groups: {cure}")
    return found[0]


@dataclass(frozen=True)
class JointMix:
    """The best mix of several groups at once.

    rate: bytes/s of algbw that a group of weight 1 has. mixes: the trees of every group. prices: of the
    machine's resources, by the linear program, for a use of a whole unit. capacity, unit: as in `Hops`.
    """

    rate: Fraction
    mixes: tuple[Mix, ...]
    prices: tuple[float, ...]
    capacity: tuple[int, ...]
    unit: Fraction


def joint_mix(
    searches: Sequence[TreeSearch], weights: Sequence[Fraction], held: Held, before: JointMix | None = None
) -> JointMix:
    """The trees with which groups have the largest algbw at once, in the ratio of these weights.

    searches: for trees on hops with common capacities (`hops_of_parts`). held: the algbw of groups that keep it
    instead, in bytes/s, which it has in the mix `before`; at least one group does not. Every root of an
    allgather has the same rate. Raises `InfeasibleError` if some member of a group cannot be reached.
    """
    parts = [weight / len(search.roots) for search, weight in zip(searches, weights, strict=True)]
    scale = Fraction(lcm(*(part.denominator for part in parts)))
    scale /= gcd(*(int(part * scale) for part in parts))
    first, times = [0], [int(part * scale) for part in parts]
    for search in searches:
        first.append(first[-1] + len(search.roots))

    def columns(found: Sequence[Sequence[Column]]) -> list[Column]:
        """Trees as columns of the program, with the loads of what a group has of a common rate of 1."""
        return [
            replace(tree, load=tuple((r, used * count) for r, used in tree.load), group=tree.group + start)
            for trees, count, start in zip(found, times, first, strict=False)
            for tree in trees
        ]

    def price(prices: Sequence[float]) -> list[Column]:
        return columns([search.cheapest(search.hops.cost(prices)) for search in searches])

    start = columns([search.first() for search in searches])
    for mix, begin in zip(before.mixes if before else (), first, strict=False):
        start += [replace(column, group=column.group + begin) for column in mix.columns]
    start = list({(column.arcs, column.up, column.group): column for column in start}.values())
    # So that rates are of the order of 1, whatever the weights.
    most = max(times)
    unit, kept = searches[0].hops.unit / most, dict[int, Fraction]()
    capacity = tuple(map(most.__mul__, searches[0].hops.capacity))
    for search, count, begin, own in zip(searches, times, first, held, strict=False):
        if own is not None:
            each = own / (len(search.roots) * count * unit)
            kept |= dict.fromkeys(range(begin, begin + len(search.roots)), each)
    best = best_mix(start, capacity, groups=first[-1], rounds=_ROUNDS, price=price, held=kept)
    mixes = []
    for count, (begin, end) in zip(times, pairwise(first), strict=True):
        both = zip(best.columns, best.rates, strict=True)
        mine = [(replace(c, group=c.group - begin), r * count) for c, r in both if begin <= c.group < end]
        mixes.append(Mix(tuple(c for c, _ in mine), tuple(r for _, r in mine), best.optimum))
    free = [*held].index(None)
    rate = mixes[free].rate * len(searches[free].roots) * unit / weights[free]
    return JointMix(rate, tuple(mixes), best.prices, capacity, unit)
