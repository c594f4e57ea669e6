"""Permutations that take alike hosts round: candidates for symmetries of a cluster of which a host was changed."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from blinksim.packing.hosts.alike_hosts import Hosts
from blinksim.packing.hosts.shard_spread import kinds_of


def host_turns(hosts: Hosts, devices: int) -> list[NDArray[np.int64]]:
    """Turns of the hosts of one kind below the same switches, and of leaves whose hosts are of the most frequent kind.

    Hosts below several such leaves of one size turn at once too, which commutes with turns of the leaves.

    devices: how many devices the cluster has. What is no symmetry is for the caller to find.
    """
    kinds, found = kinds_of(hosts), []
    leaves: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for leaf in hosts.fabric.leaves:
        groups: dict[int, list[int]] = defaultdict(list)
        for host in leaf:
            groups[kinds[host]].append(host)
        found += [_round(hosts, [[host] for host in group], devices) for group in groups.values() if len(group) > 1]
        if len(groups) == 1 and 0 in groups:
            leaves[len(leaf)].append(leaf)
    for several in leaves.values():
        if len(several) > 1:
            found.append(_round(hosts, several, devices))
            if len(several[0]) > 1:
                goes = np.arange(devices)
                for leaf in several:
                    _turn(goes, hosts, [[host] for host in leaf])
                found.append(goes)
    return found


def _round(hosts: Hosts, groups: list[list[int]] | list[tuple[int, ...]], devices: int) -> NDArray[np.int64]:
    """Every group of hosts to the place of the next one, with the switches at their ports, if these differ."""
    goes = np.arange(devices)
    _turn(goes, hosts, groups)
    return goes


def _turn(goes: NDArray[np.int64], hosts: Hosts, groups: list[list[int]] | list[tuple[int, ...]]) -> None:
    """As `_round`, written into `goes`."""
    for here, there in zip(groups, [*groups[1:], groups[0]], strict=True):
        for a, b in zip(here, there, strict=True):
            there = (hosts.device[a] >= 0) & (hosts.device[b] >= 0)
            goes[hosts.device[a][there]] = hosts.device[b][there]
            goes[list(hosts.fabric.ends[a])] = list(hosts.fabric.ends[b])
