"""Cuts for a traffic matrix: what the ranks inside have for those outside, over what the links out carry.

All groups of devices of a sort are looked at together: single GPUs, GPUs with their NICs, nodes, the nodes below one
switch. The bytes between all groups are one product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from blinksim.bounds.certificates.certificate import Cut
from blinksim.bounds.certificates.crossing_sums import crossing_links, tight_limits
from blinksim.bounds.pairs import tightest_side
from blinksim.collective import Collective
from blinksim.graphs.network import Network
from blinksim.topology.graph import Topology

# Groups of each sort whose cuts are worth exact sums, and flows.
_TIGHTEST, _FLOWS = 2, 6
# Ranks up to which all their subsets are tried as sides.
_SUBSETS = 8


def traffic_cuts(topology: Topology, collective: Collective, groups: Iterable[Mapping[str, object]]) -> Iterator[Cut]:
    """The tightest cuts around single groups, and around all but one.

    groups: sorts of groups, each as the group of every device that is in one.
    """
    names = [device.name for device in topology.devices]
    seen: set[frozenset[str]] = set()
    for key in groups:
        for _, label, outside in _tightest(topology, collective, key)[:_TIGHTEST]:
            side = [name for name in names if (key.get(name, _NONE) == label) != outside]
            if frozenset(side) not in seen:
                seen.add(frozenset(side))
                part = dict.fromkeys(names, 1) | dict.fromkeys(side, 0)
                limits = tight_limits(topology, crossing_links(topology, part, leaving=0), part)
                yield Cut.of(topology, collective, side, limits)


_NONE = object()


def _tightest(
    topology: Topology, collective: Collective, key: Mapping[str, object]
) -> list[tuple[float, object, bool]]:
    """Groups by what their links carry over what must cross them: (ratio, group, outside), the tightest first.

    outside: the side is all but the group, and what must reach the group counts.
    """
    traffic = collective.traffic
    assert traffic is not None
    labels = list(dict.fromkeys(key.values()))
    number = {label: place for place, label in enumerate(labels)}
    count = len(labels)
    of_rank = np.array([number[key[name]] if name in key else count for name in topology.members])
    sums = np.zeros((count + 1, traffic.ranks), dtype=np.int64)
    np.add.at(sums, of_rank, traffic.matrix)
    between = np.zeros((count + 1, count + 1), dtype=np.int64)
    np.add.at(between.T, of_rank, sums.T)
    np.fill_diagonal(between, 0)
    of_device = {name: number[label] for name, label in key.items()}
    leaving, entering = np.zeros(count + 1), np.zeros(count + 1)
    for link in topology.links:
        a, b = of_device.get(link.src, count), of_device.get(link.dst, count)
        if a != b:
            rate = float(link.bandwidth)
            leaving[a] += rate
            entering[b] += rate
    found = []
    for outside, capacity, amount in ((False, leaving, between.sum(axis=1)), (True, entering, between.sum(axis=0))):
        some = np.flatnonzero(amount[:count])
        ratios = capacity[some] / amount[some]
        found += [
            (float(ratios[place]), labels[int(some[place])], outside) for place in np.argsort(ratios, kind="stable")
        ]
    return sorted(found, key=lambda entry: entry[0])


def tight_traffic_cut(
    topology: Topology, collective: Collective, net: Network, groups: Iterable[Mapping[str, object]]
) -> Cut:
    """The tightest cut found: around subsets where ranks are few, else around groups, with the other devices placed."""
    traffic = collective.traffic
    assert traffic is not None
    ranks = topology.ranks
    if ranks <= _SUBSETS:
        sets = (np.arange(1, 2**ranks - 1)[:, None] >> np.arange(ranks)) & 1 == 1
        inside = list(sets)
    else:
        ranked: list[tuple[float, NDArray[np.bool_]]] = []
        for key in groups:
            for ratio, label, outside in _tightest(topology, collective, key)[:_TIGHTEST]:
                within = np.array([key.get(name, _NONE) == label for name in topology.members])
                ranked.append((ratio, ~within if outside else within))
        inside = [within for _, within in sorted(ranked, key=lambda entry: entry[0])[:_FLOWS]]
    sides = []
    for within in inside:
        crossing = int(traffic.matrix[within][:, ~within].sum())
        if crossing:
            sides.append((np.flatnonzero(within).tolist(), crossing))
    side, limits = tightest_side(topology, net, sides)
    return Cut.of(topology, collective, side, limits)
