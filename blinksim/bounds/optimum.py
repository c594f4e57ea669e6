"""Optimal rates by linear programs over trees or flows, with link lengths from the duals as certificates.

Allgather and broadcast send along out-trees, reducescatter and reduce along in-trees, which are out-trees of
the transposed network; allreduce along both, with the same roots. Alltoall, scatter and gather are a maximum
concurrent flow. `blinksim.graphs.programs` has both programs. Duals rounded to fractions are still valid
lengths, so the bound recomputed from them is exact however the solver rounds (Neumaier and Shcherbina 2004,
safe bounds in linear programming).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product

from blinksim.bounds.lengths import Lengths
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.graphs.linear import DENOMINATORS, MOST_FLOWS
from blinksim.graphs.network import Network, NetworkOrbits
from blinksim.graphs.programs import (
    Commodity,
    SharedCapacity,
    Solution,
    agree,
    flow_variables,
    solve_flows,
    solve_trees,
    widest,
)
from blinksim.topology.graph import Topology
from blinksim.traffic import Traffic

# Lengths need no common denominator with anything else, so long fractions may be tried last.
_DENOMINATORS = (*DENOMINATORS, 10**5, 10**7)


def best_trees(
    net: Network,
    collective: Collective,
    shared: Sequence[SharedCapacity],
    orbits: NetworkOrbits,
    shares: Sequence[int] = (),
) -> Iterator[tuple[Solution, bool]]:
    """Rates in units of `net` with link lengths, the best last, and true for those that trees attain.

    allreduce: roots may hold any shares, in the first answer one holds everything; allgather and reducescatter: as
    `shares` (default: equal); broadcast, reduce: all at the root. orbits: equivalent arcs and ranks; they must respect
    root and shares.
    """
    members = net.members.tolist()
    if collective.name == "allreduce":
        if len(orbits.first) == len(members):
            one = solve_trees(net, shared, {widest(net): 1}, both=True)
            yield Solution(one.value, one.duals), one.attained
        solution = solve_trees(net, shared, None, both=True, orbits=orbits)
    else:
        held = [int(rank == collective.root) for rank in range(len(members))] if collective.rooted else shares
        weights = dict(zip(members, held or [1] * len(members), strict=True))
        way = net.reversed() if collective.collects else net
        solution = solve_trees(way, shared, weights, orbits=orbits)
    yield Solution(solution.value, solution.duals), solution.attained


def best_flows(
    net: Network,
    collective: Collective,
    shared: Sequence[SharedCapacity],
    orbits: NetworkOrbits,
    shares: Sequence[int] = (),
) -> Solution | None:
    """The greatest algbw of alltoall, scatter or gather in units of `net`, with link lengths; None if too large.

    shares: weights of the ranks' blocks (scatter and gather; default: equal). orbits: equivalent arcs and ranks (for
    alltoall).
    """
    members, traffic, way = net.members.tolist(), collective.traffic, net
    weights = dict(zip(members, shares or [1] * len(members), strict=True))
    if collective.rooted:
        # A gather is a scatter in the reversed network.
        way = net.reversed() if collective.collects else net
        rows, total = [Commodity(members[collective.root], weights)], sum(weights.values())
    elif traffic is not None:
        # It tells ranks apart that the machine does not.
        rows, total = commodities(net, traffic), traffic.size
    else:
        rows, total = [Commodity(source, weights) for source in orbits.first], sum(weights.values())
    sources = len(orbits.first) if traffic is None else traffic.ranks
    if not collective.rooted and flow_variables(net, sources) > MOST_FLOWS:
        return None
    plain = not collective.rooted and traffic is None
    solution = solve_flows(way, shared, rows, orbits=orbits if plain else None)
    return Solution(solution.rate * total, solution.duals)


def commodities(net: Network, traffic: Traffic) -> list[Commodity]:
    """What every rank sends to the others, in bytes; without the ranks that send nothing."""
    members = net.members.tolist()
    rows = []
    for source, amounts in zip(members, traffic.matrix.tolist(), strict=True):
        weights = {
            vertex: amount for vertex, amount in zip(members, amounts, strict=True) if amount and vertex != source
        }
        if weights:
            rows.append(Commodity(source, weights))
    return rows


def certify(
    topology: Topology,
    collective: Collective,
    net: Network,
    shared: Sequence[SharedCapacity],
    solution: Solution,
    shares: Sequence[int] = (),
) -> tuple[Lengths, bool] | None:
    """`shortest_lengths` of a solution."""
    names = [link.name for link in topology.links] + list(net.limits)
    duals = {
        names[arc]: max(value, 0.0) * part
        for resource, value in zip(shared, solution.duals, strict=True)
        for arc, part in resource.uses
    }
    return shortest_lengths(
        duals, solution.value * float(net.unit), lambda lengths: Lengths.of(topology, collective, lengths, shares)
    )


def shortest_lengths(
    values: Mapping[str, float], target: float, proved: Callable[[dict[str, Fraction]], Lengths]
) -> tuple[Lengths, bool] | None:
    """The tightest lengths from duals rounded to short fractions, and whether they prove the program's value.

    target: that value, bytes/s. proved: what lengths prove, or an `InputError`. None if no rounding proves anything.
    """
    largest = max(values.values(), default=0.0)
    if largest <= 0:
        return None
    # Scaled to the smallest length, or to the largest, the lengths of a vertex are short fractions.
    smallest = min(value for value in values.values() if value > 1e-7 * largest)
    best: Lengths | None = None
    tried: list[dict[str, Fraction]] = []
    for scale, denominator in product((smallest, largest), _DENOMINATORS):
        rounded = {
            name: Fraction(value / scale).limit_denominator(denominator)
            for name, value in values.items()
            if value > 1e-9 * largest
        }
        if rounded in tried:
            continue
        tried.append(rounded)
        try:
            found = proved(rounded)
        except InputError:
            continue
        if best is None or found.rate < best.rate:
            best = found
        if agree(best.rate, target):
            return best, True
    return (best, False) if best else None
