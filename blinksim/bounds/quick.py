"""An upper bound from sums alone: the cuts around single ranks and nodes, and the partitions into ranks and into nodes.

Not always the tightest (`compute.bound` finds that with flows), but valid, with the same certificates, and so cheap
that every projection can stand beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from blinksim.bounds.certificate import Certificate, Cut, Partition
from blinksim.collective import Collective
from blinksim.topology.graph import Topology


def quick_bound(topology: Topology, collective: Collective) -> Certificate:
    """The tightest of a few certificates that need no search; its `rate` is algbw in bytes/s.

    topology: the selected part, with two or more members.
    """
    return min(_candidates(topology, collective), key=lambda certificate: certificate.rate)


def _candidates(topology: Topology, collective: Collective) -> Iterator[Certificate]:
    names = [device.name for device in topology.devices]
    root = topology.members[collective.root] if collective.rooted else None
    for group in _tightest_groups(topology):
        rest = [name for name in names if name not in group]
        for side in (sorted(group, key=topology.index.__getitem__), rest):
            if _says_something(topology, collective, set(side), root):
                yield Cut.of(topology, collective, side)
    if collective.name == "allreduce":
        for parts in _partitions(topology):
            if len(parts) > 1:
                yield Partition.of(topology, collective, parts)


def _says_something(topology: Topology, collective: Collective, side: set[str], root: str | None) -> bool:
    """Whether data of the collective must leave `side`."""
    inside = sum(name in side for name in topology.members)
    outside = topology.ranks - inside
    match collective.name:
        case "broadcast" | "scatter":
            return root in side and outside > 0
        case "reduce" | "gather":
            return root not in side and inside > 0
        case _:
            return inside > 0 and outside > 0


def _tightest_groups(topology: Topology) -> Iterator[set[str]]:
    """Single members, and whole nodes, with the least bandwidth out of or into them."""
    node = {device.name: device.node for device in topology.devices}
    groups: list[dict[str, object]] = [{name: name for name in topology.members}]
    if len({node[name] for name in topology.members}) > 1:
        groups.append({name: number for name, number in node.items() if number >= 0})
    for key in groups:
        out, into = defaultdict[object, Fraction](Fraction), defaultdict[object, Fraction](Fraction)
        for link in topology.links:
            a, b = key.get(link.src), key.get(link.dst)
            if a != b:
                out[a] += link.bandwidth
                into[b] += link.bandwidth
        holders = {key[name] for name in topology.members}
        for total in (out, into):
            least = min(holders, key=lambda group: (total[group], str(group)))
            yield {name for name, group in key.items() if group == least}


def _partitions(topology: Topology) -> Iterator[list[list[str]]]:
    """The ranks apart (where no forwarder has to be put somewhere), and the nodes apart."""
    if len(topology.devices) == topology.ranks:
        yield [[device.name] for device in topology.devices]
    by_node = defaultdict[int, list[str]](list)
    for device in topology.devices:
        by_node[device.node].append(device.name)
    hosts = {topology.device(name).node for name in topology.members}
    outside = [name for number, names in by_node.items() if number not in hosts for name in names]
    parts = [by_node[number] for number in sorted(hosts)]
    parts[0] = [*parts[0], *outside]
    yield parts
