"""The duals of a linear program as exact lengths: rounded to short fractions, then summed exactly.

A dual solution rounded to fractions is still a valid set of lengths, so the bound recomputed from it is exact for
any rounding in the solver (Neumaier and Shcherbina 2004, safe bounds in linear programming).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from blinksim.bounds.certificates.lengths import Lengths
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.graphs.capacities import SharedCapacity, Solution, agree
from blinksim.graphs.network import Network
from blinksim.graphs.rounding import DENOMINATORS
from blinksim.topology.graph import Topology

# Lengths need no common denominator with anything else, so long fractions may be tried last.
_DENOMINATORS = (*DENOMINATORS, 10**5, 10**7)


def certify(
    topology: Topology,
    collective: Collective,
    net: Network,
    shared: Sequence[SharedCapacity],
    solution: Solution,
    shares: Sequence[int] = (),
) -> tuple[Lengths, bool] | None:
    """The best exact bound from the duals, rounded to short fractions, and whether it agrees with the program.

    None if no rounding proves anything.
    """
    dual = np.zeros(len(net.tail))
    for resource, value in zip(shared, solution.duals, strict=True):
        for arc, part in resource.uses:
            dual[arc] = max(value, 0.0) * part
    largest = float(dual.max(initial=0.0))
    if largest <= 0:
        return None
    names = [link.name for link in topology.links] + list(net.limits)
    target = solution.value * float(net.unit)
    best: Lengths | None = None
    tried: list[dict[str, Fraction]] = []
    # Scaled to the smallest length, or to the largest, the lengths of a vertex are short fractions.
    smallest = float(dual[dual > 1e-7 * largest].min())
    for scale in (smallest, largest):
        for denominator in _DENOMINATORS:
            rounded = {
                name: Fraction(value / scale).limit_denominator(denominator)
                for name, value in zip(names, dual.tolist(), strict=True)
                if value > 1e-9 * largest
            }
            if rounded in tried:
                continue
            tried.append(rounded)
            try:
                found = Lengths.of(topology, collective, rounded, shares)
            except InputError:
                continue
            if best is None or found.rate < best.rate:
                best = found
            if agree(best.rate, target):
                return best, True
    return (best, False) if best else None
