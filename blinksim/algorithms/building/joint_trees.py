"""Trees of several groups that share a machine, the best of all at once.

Every group packs its own trees, through GPUs of other groups too where these are its relays. One linear
program holds the trees of all: the best rate that all of them have together, in a ratio that is given. Those
that a certificate of it does not count can have more, by a further program (max-min fairness).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from math import lcm

from blinksim.algorithms.blink import trees_from
from blinksim.algorithms.blinkplus import tree_search
from blinksim.algorithms.building.plan import Plan
from blinksim.bounds.optimum import shortest_lengths
from blinksim.bounds.together import Group, Held, SharedLengths, Together
from blinksim.errors import InfeasibleError
from blinksim.packing.columns import Column, Mix, best_mix
from blinksim.packing.forest import pairs_of_links
from blinksim.packing.tree_columns import BOTH, TreeSearch
from blinksim.schedule.loads import resources
from blinksim.topology.graph import Topology

# The rate of weight 1, the trees of every group, and what uses of resources cost.
Joint = tuple[Fraction, list[Mix], tuple[float, ...]]
# Rounds in which trees are generated.
_ROUNDS = 400


def fair(machine: Topology, groups: Sequence[Group]) -> Together:
    """What groups can do at once on the machine that holds their parts; raises as `joint_mix`."""
    own = [tree_search(group.part, group.collective, machine) for group in groups]
    # Where links load alike both ways, trees that are used both ways suffice.
    pairs = pairs_of_links(machine) if all(search.use == BOTH for search in own) else None
    searches = [replace(search, apart=pairs is None and search.use == BOTH) for search in own]
    weights = [group.weight for group in groups]
    alone = [joint_mix([search], [weight], [None]) for search, weight in zip(searches, weights, strict=True)]
    held, mixes, proofs = _progressive_filling(machine, groups, searches, alone, pairs)
    plans, den = [Plan(group.part, group.collective, "packed", "forest") for group in groups], 1
    for plan, search, trees in zip(plans, searches, mixes, strict=True):
        plan.add_trees(trees_from(search, trees))
        den = lcm(den, plan.finish(rounded=True).share_den)
    found = list[Group]()
    for group, plan, (first, _, _), rate in zip(groups, plans, alone, held, strict=True):
        # One file holds the shares of all.
        made = plan.finish(rounded=True, common=den)
        found.append(replace(group, alone=first * group.weight, rate=rate, schedule=made))
    return Together(machine, tuple(found), tuple(proofs))


def _progressive_filling(
    machine: Topology,
    groups: Sequence[Group],
    searches: Sequence[TreeSearch],
    alone: Sequence[Joint],
    pairs: Sequence[int] | None,
) -> tuple[list[Fraction], list[Mix], list[SharedLengths]]:
    """The max-min fair rates of groups, trees for them, and proofs: all rise until some can have no more (Bertsekas and
    Gallager, Data Networks, section 6.5.2).

    alone: what `joint_mix` gives for each by itself.
    """
    held, proofs = list[Fraction | None]([None] * len(groups)), list[SharedLengths]()
    mixes = [mix for _, [mix], _ in alone]
    while None in held:
        common, mixes, prices = joint_mix(searches, [group.weight for group in groups], held, mixes)
        # Of those that a certificate counts none can have more; nor any that has no more than this alone.
        full = [own for (most, _, own), rate in zip(alone, held, strict=True) if rate is None and most == common]
        every = [_proof(machine, groups, (common, mixes, each), held, pairs) for each in (prices, *full)]
        tight = [proof for proof in every if proof.rate == common]
        proofs += tight or every[:1]
        for number, group in enumerate(groups):
            if held[number] is None and (not tight or any(proof.distances[number] for proof in tight)):
                held[number] = group.weight * common
    return [rate for rate in held if rate is not None], mixes, proofs


def _proof(
    machine: Topology, groups: Sequence[Group], joint: Joint, held: Held, pairs: Sequence[int] | None
) -> SharedLengths:
    """Lengths from what `joint_mix` gives. pairs: the reverse of every link, where trees load both alike."""
    shared, values, (common, _, prices) = resources(machine), dict[str, float](), joint
    for link, (first, last) in zip(machine.links, pairwise(shared.starts.tolist()), strict=True):
        ends = (f"{link.src} out", link.src), (f"{link.dst} in", link.dst)
        ways = [link.name, *(way for way, end in ends if machine.device(end).capacity is not None)]
        values |= zip(ways, map(prices.__getitem__, shared.members[first:last].tolist()), strict=True)
    names = [link.name for link in machine.links]
    back = [values[names[other]] for other in pairs or range(len(names))]
    values |= {name: (values[name] + other) / 2 for name, other in zip(names, back, strict=True)}
    found = shortest_lengths(values, float(common), partial(SharedLengths.of, machine, groups, held=held))
    if found is None:
        raise InfeasibleError("no lengths of links prove a bound of these groups; bound some of them apart")
    return found[0]


def joint_mix(
    searches: Sequence[TreeSearch], weights: Sequence[Fraction], held: Held, known: Sequence[Mix] = ()
) -> Joint:
    """The largest algbw of groups at once, in the ratio of these weights: bytes/s of weight 1, trees, prices.

    searches: for trees on hops with common capacities (`links_as_hops`). held: the algbw of groups that keep
    it instead, in bytes/s; at least one group does not. known: trees to begin with, on which all that is held
    is possible. Every root of an allgather has the same rate. The prices are those of the program, for a use
    of a whole unit of a resource (`Hops`). Raises `InfeasibleError` if a member of a group cannot be reached.
    """
    parts = [weight / len(search.roots) for search, weight in zip(searches, weights, strict=True)]
    first, hops = [0, *accumulate(len(search.roots) for search in searches)], searches[0].hops

    def columns(found: Iterable[Sequence[Column]]) -> list[Column]:
        both = zip(found, first, strict=False)
        return [replace(tree, group=tree.group + start) for trees, start in both for tree in trees]

    most = max(part for part, own in zip(parts, held, strict=True) if own is None)
    kept = dict[int, Fraction]()
    for (begin, end), own in zip(pairwise(first), held, strict=True):
        kept |= {} if own is None else dict.fromkeys(range(begin, end), own / (hops.unit * (end - begin)))
    best = best_mix(
        columns([mix.columns for mix in known] or [search.first() for search in searches]),
        hops.capacity,
        weights=[part / most for search, part in zip(searches, parts, strict=True) for _ in search.roots],
        price=lambda prices: columns(search.cheapest(search.hops.cost(prices)) for search in searches),
        rounds=_ROUNDS,
        held=kept,
    )
    mixes = []
    for begin, end in pairwise(first):
        mine = [(c, r) for c, r in zip(best.columns, best.rates, strict=True) if begin <= c.group < end]
        trees = tuple(replace(c, group=c.group - begin) for c, _ in mine)
        mixes.append(Mix(trees, tuple(r for _, r in mine), best.optimum))
    free = [*held].index(None)
    return mixes[free].rate * len(searches[free].roots) * hops.unit / weights[free], mixes, best.prices
