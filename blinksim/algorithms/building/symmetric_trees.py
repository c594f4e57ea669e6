"""Packed trees of symmetric machines: base trees, and the symmetries that map them to all others.

Clusters of alike nodes have the trees of `host_trees`; those of one node stand for the rest, also if one node
differs and the symmetries rotate only the others. Machines whose devices are all alike, such as tori, have
the trees of `blinksim.packing.forest`. The rate is not assumed but follows from the loads of all images
together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from blinksim.algorithms.building.claims import accepted_gap
from blinksim.algorithms.building.host_trees import Stands, add_host_trees
from blinksim.algorithms.building.plan import Plan
from blinksim.bounds.bound_result import BoundResult
from blinksim.collective import EVERY, Collective
from blinksim.packing.forest import trees_of_first
from blinksim.packing.hosts import Hosts, read_hosts
from blinksim.packing.shards import kinds_of
from blinksim.packing.spanning import pairs_of_links
from blinksim.schedule.model import MOST_DENOMINATOR, Schedule
from blinksim.schedule.symmetric import SymmetricSchedule
from blinksim.schedule.tree import Tree
from blinksim.topology.graph import Topology
from blinksim.topology.group import CommutingGroup, commuting_group, find_commuting_group


def host_rotations(hosts: Hosts, devices: int) -> list[NDArray[np.int64]]:
    """Rotations of hosts of one kind below the same switches, and of leaves of the most frequent kind.

    Hosts below several such leaves of one size rotate together too, which commutes with rotating the leaves.

    devices: how many devices the cluster has. What is no symmetry is for the caller to find.
    """
    kinds, rotations = kinds_of(hosts), list[NDArray[np.int64]]()
    leaves: dict[int, list[tuple[int, ...]]] = defaultdict(list)

    def rotate(rounds: Iterable[Sequence[Sequence[int]]]) -> None:
        """Of every round, each group of hosts to the place of the next one, with the switches at their ports."""
        goes = np.arange(devices)
        for groups in rounds:
            for here, there in zip(groups, [*groups[1:], groups[0]], strict=True):
                for a, b in zip(here, there, strict=True):
                    held = (hosts.device[a] >= 0) & (hosts.device[b] >= 0)
                    goes[hosts.device[a][held]] = hosts.device[b][held]
                    goes[list(hosts.fabric.ends[a])] = list(hosts.fabric.ends[b])
        rotations.append(goes)

    for leaf in hosts.fabric.leaves:
        alike: dict[int, list[list[int]]] = defaultdict(list)
        for host in leaf:
            alike[kinds[host]].append([host])
        for group in alike.values():
            if len(group) > 1:
                rotate([group])
        if len(alike) == 1 and 0 in alike:
            leaves[len(leaf)].append(leaf)
    for size, several in leaves.items():
        if len(several) > 1:
            rotate([several])
            if size > 1:
                rotate([[host] for host in leaf] for leaf in several)
    return rotations


# Sends of the trees from which on one of each sort is said once: written out, they take a file of more than 1 MB.
FEW_SENDS = 24_000
# Sends of trees that are written one by one at most, and how many times as many images of trees may have.
_MOST_IN_FULL = 40_000_000
_MOST_TIMES = 8
COLLECTIVES = ("allgather", "reducescatter", "allreduce")


def many_sends(topology: Topology, collective: Collective, many: int) -> bool:
    """Whether trees from all ranks have so many sends that one of each sort should stand for them."""
    times = 2 if collective.name == "allreduce" else 1
    return collective.name in COLLECTIVES and times * topology.ranks * (topology.ranks - 1) >= many


def symmetric_packed(topology: Topology, collective: Collective, bound: BoundResult) -> SymmetricSchedule | None:
    """The packed trees of a large symmetric machine, if they attain the bound, or miss by no more than is accepted of
    trees of hosts; else None, and they must be searched."""
    if not many_sends(topology, collective, FEW_SENDS):
        return None
    schedule = symmetric_trees(topology, collective, bound.rate)
    least = (1 - accepted_gap(topology, collective)) * bound.rate
    if schedule is None or schedule.rate is None or schedule.rate < least:
        return None
    # Symmetries may change trees into so many that all of them could not be written out, where one by one they can.
    plain = many_sends(topology, collective, _MOST_IN_FULL)
    return schedule if plain or many_sends(topology, collective, -(-schedule.sends // _MOST_TIMES)) else None


def symmetric_trees(topology: Topology, collective: Collective, aim: Fraction) -> SymmetricSchedule | None:
    """Those of alike hosts, or of alike devices; None if the machine is neither. aim: algbw, bytes/s."""
    return symmetric_host_trees(topology, collective, aim) or symmetric_device_trees(topology, collective, aim)


def symmetric_host_trees(topology: Topology, collective: Collective, aim: Fraction) -> SymmetricSchedule | None:
    """The trees of a cluster of alike hosts; None if it is none, or it has no such group. aim: algbw, bytes/s."""
    if collective.name not in COLLECTIVES or topology.nodes < 2:
        return None
    hosts = read_hosts(topology)
    rotations = None if hosts is None else find_commuting_group(topology, host_rotations(hosts, len(topology.devices)))
    if hosts is None or rotations is None:
        return None
    best: SymmetricSchedule | None = None
    shard = aim / topology.ranks * (2 if collective.name == "allreduce" else 1)
    # Members of a host may share its ports such that symmetries inside the host change that. So those that leave
    # every device in its place in its host come second.
    place = np.full(len(rotations.first), -1)
    there = hosts.device >= 0
    place[hosts.device[there]] = np.nonzero(there)[1]
    for group in dict.fromkeys((rotations, rotations.keeping(place))):
        if group is None:
            continue
        plan, stands = Plan(topology, collective, "packed", "forest"), Stands(group)
        if add_host_trees(plan, topology, shard, pairs_of_links(topology), hosts, stands):
            schedule = weighed(plan.finish(rounded=True), group, stands.counts)
            if schedule is not None and (best is None or (schedule.rate or 0) > (best.rate or 0)):
                best = schedule
        if best is not None and best.rate == aim:
            break
    return best


def symmetric_device_trees(topology: Topology, collective: Collective, aim: Fraction) -> SymmetricSchedule | None:
    """The trees of a machine of direct links in which symmetries take any member to any other by one element each.

    None if it is none, or such trees do not hold the aim (algbw, bytes/s).
    """
    tail, head = topology.ends
    count = len(topology.devices)
    key = tail * count + head
    plain = all(device.capacity is None for device in topology.devices) and len(set(key.tolist())) == len(key)
    if collective.name not in COLLECTIVES or count != topology.ranks or not plain:
        return None
    pairs, group = pairs_of_links(topology), commuting_group(topology)
    if pairs is None or group is None or group.size != count:
        return None
    phases = 2 if collective.name == "allreduce" else 1
    exponents, own = group.place - group.place[0], np.flatnonzero(tail == 0)
    heads = np.stack([group.along(exponents, np.full(count, end)) for end in head[own].tolist()], axis=1)
    capacity = [topology.links[link].bandwidth for link in own.tolist()]
    packed = trees_of_first(heads, capacity, aim / count * phases)
    if packed is None:
        return None
    trees, units = packed
    order = np.argsort(key)
    plan = Plan(topology, collective, "packed", "forest")
    for parents, children, amount in trees:
        links = order[np.searchsorted(key[order], parents * count + children)].tolist()
        edges = list(zip(parents.tolist(), children.tolist(), links, strict=True))
        down = tuple((a, b, (link,)) for a, b, link in edges) if collective.ends == EVERY else ()
        up = tuple((a, b, (pairs[link],)) for a, b, link in edges) if collective.reduces else ()
        plan.add_trees([Tree(0, Fraction(amount, units * count), down, up)])
    return weighed(plan.finish(rounded=True), group, [count] * len(trees))


def weighed(parts: Schedule, group: CommutingGroup, counts: Sequence[int]) -> SymmetricSchedule | None:
    """The schedule in which the images of every chunk together have the share of all that it stands for.

    A chunk has more images than that if what permutes the rest of the machine changes its tree: then each has less.
    None if shares get too long. parts: with the share of one chunk. counts: for how many each stands.
    """
    whole = SymmetricSchedule(parts, group)
    factor = [Fraction(many, times) for many, times in zip(counts, whole.times.tolist(), strict=True)]
    if all(part == 1 for part in factor):
        return whole
    common = lcm(*(part.denominator for part in factor))
    if parts.share_den * common > MOST_DENOMINATOR:
        return None
    scaled = parts.share_num * np.array([int(part * common) for part in factor], dtype=np.int64)
    return SymmetricSchedule(replace(parts, share_num=scaled, share_den=parts.share_den * common), group)
