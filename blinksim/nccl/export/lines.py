"""Lines of a schedule (chains, rings) that NCCL can run, and NCCL's names for the devices on them.

GPUs go by their NVML number, which is the order on the PCIe bus and what nvidia-smi shows; network devices by
the order of NCCL's plugin. A topology file says both (``dev``); in the catalogue's machines ``gpu3`` is
number 3 of its node.

NCCL's tree allreduce makes every channel a chain, up and then down; everything else runs on rings (NCCL
2.28.3 graph/connect.cc; Broadcast and Reduce follow a ring from or to the root). Other schedules have no
graph file; they are refused, with what to do instead. Over several nodes, one file serves all: NCCL goes from
node to node along rings, and between the nodes' first GPUs along its own double binary trees (NCCL 2.28.3
graph/trees.cc), through the network devices that the file names. Lines that differ between nodes, or take
another route between them, are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, permutations
from math import gcd, lcm

import numpy as np

from blinksim.algorithms.double_binary import two_trees
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import distinct
from blinksim.nccl.families import GPU_KINDS, PATH_TYPES
from blinksim.nccl.files.graph_file import MOST_CHANNELS
from blinksim.nccl.files.graph_rules import Communicator
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Device, Topology

_NUMBERED = re.compile(r"(?:n[0-9]+\.)?(?:gpu|net|nic)([0-9]{1,4})")


def number(device: Device) -> int:
    """The number of a GPU or network device; raises `InfeasibleError` if neither name nor attributes give it."""
    given = device.attributes.get("dev")
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    match = _NUMBERED.fullmatch(device.name)
    if match is None:
        raise InfeasibleError(
            f"{device.name} has no number that NCCL knows; give the {device.kind} the attribute dev in the machine file"
        )
    return int(match[1])


def net_number(topology: Topology, device: Device) -> int:
    """The number of a network device: its own, or its position among those of its node."""
    if "dev" in device.attributes or _NUMBERED.fullmatch(device.name):
        return number(device)
    ports = [d.name for d in topology.devices if d.node == device.node and is_port(topology, d)]
    return ports.index(device.name)


def has_nvswitch(topology: Topology) -> bool:
    return any(device.kind == "switch" for device in topology.devices if device.node >= 0 or topology.nodes == 1)


def path_type(topology: Topology, links: Iterable[int]) -> str:
    """NCCL's name for a route (indices into topology.links): the farthest of the devices that it passes."""
    route = [topology.links[i] for i in links]
    kinds = [topology.device(link.src).kind for link in route[1:]]
    gpus, cpus, pcie = sum(k in GPU_KINDS for k in kinds), kinds.count("cpu"), kinds.count("pcie")
    if cpus or gpus > 1:
        return "PHB" if cpus == 1 and not gpus else "SYS"
    if gpus:
        return "NVB"
    ends = {topology.device(route[0].src).kind, topology.device(route[-1].dst).kind} if route else set()
    if pcie:
        return "PIX" if pcie == 1 else "PXB"
    # A NIC drawn at its GPU sits on the same PCIe switch.
    return "PIX" if "nic" in ends else "NVL"


def farthest(types: Iterable[str], default: str) -> str:
    """The farthest of some path types, `default` without any."""
    return max(types, key=PATH_TYPES.index, default=default)


def _local_gpus(members: Iterable[Device]) -> dict[int, list[int]]:
    """The numbers of the members of every node that has any, in rank order."""
    gpus_of: dict[int, list[int]] = {}
    for device in members:
        gpus_of.setdefault(device.node, []).append(number(device))
    for node, gpus in gpus_of.items():
        if len(set(gpus)) < len(gpus):
            raise InfeasibleError(f"two ranks of node {node} have the same GPU number; NCCL runs one rank on each GPU")
    return gpus_of


def communicator(topology: Topology) -> Communicator:
    """The members of `topology` as NCCL sees them, for `graph_rules.judge`.

    Raises `InfeasibleError` if the nodes do not have the same GPUs in the same order (a graph file is for one), for two
    members with one number in a node, and as `number`.
    """
    members = [topology.device(name) for name in topology.members]
    first, own = members[0].node, _local_gpus(members)
    if any(gpus != own[first] for gpus in own.values()):
        raise InfeasibleError("the nodes have different GPUs in the job; a graph file describes one node for all")
    here = {d.name: d for d in topology.devices if d.node == first}
    linked: set[tuple[int, int]] = set()
    for link in topology.links:
        if link.src in here and link.dst in here and link.kind == "nvlink":
            src, dst = here[link.src], here[link.dst]
            if src.kind in GPU_KINDS and dst.kind in GPU_KINDS:
                linked.add((number(src), number(dst)))
    if has_nvswitch(topology):
        linked |= set(permutations(own[first], 2))
    nets = frozenset(net_number(topology, d) for d in here.values() if d.kind == "nic" and is_port(topology, d))
    known = any(link.kind == "nvlink" for link in topology.links)
    sm = min((sm for device in members if isinstance(sm := device.attributes.get("sm"), int)), default=0)
    return Communicator(
        tuple(own[first]), len(own), sm, has_nvswitch(topology), frozenset(linked) if known else None, nets or None
    )


def is_port(topology: Topology, device: Device) -> bool:
    """True for what NCCL counts as a network device; an adapter with ports of its own is none."""
    if device.kind != "nic":
        return False
    ports = [topology.device(topology.links[i].dst) for i in topology.out_links[topology.index[device.name]]]
    return not any(port.kind == "nic" and port.node == device.node for port in ports)


Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Channel:
    """GPUs by NVML number in chain (or ring) order; nets: none, or the network devices of the way in and out."""

    gpus: tuple[int, ...]
    nets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A chain (from its root, where it has one at an end) or a ring of devices, with its share of the data."""

    devices: tuple[str, ...]
    share: Fraction
    ring: bool = False

    @property
    def words(self) -> str:
        return "-".join(self.devices)


def lines(schedule: Schedule) -> list[Line]:
    """The chains or rings of a schedule, GPUs on the way included; raises `InfeasibleError` if it is neither.

    An allreduce in forest form gives the chains of its trees, a rooted collective the chain from or to its root, a
    schedule around rings the rings.
    """
    name = schedule.collective.name
    if schedule.collective.personalized:
        raise InfeasibleError(f"NCCL runs {name} as single sends, which no graph changes; take the format msccl-xml")
    if schedule.topology.ranks < 2:
        raise InfeasibleError("a collective needs at least two ranks; there is no graph to write")
    if schedule.form == "forest" and name in ("allreduce", "broadcast", "reduce"):
        return [_chain(schedule, chunk) for chunk in range(schedule.chunks) if schedule.share_num[chunk]]
    return list(_rings(schedule))


def steps_between(schedule: Schedule, sends: Iterator[int] | list[int]) -> list[Pair]:
    """The hops from GPU to GPU of some sends, with those GPUs that a route passes."""
    topology = schedule.topology
    hops = []
    for send in sends:
        ends = [topology.devices[int(ends[send])] for ends in (schedule.src, schedule.dst)]
        stops = [ends[0].name]
        for link in schedule.links_of(int(schedule.route[send])):
            at = topology.device(topology.links[link].dst)
            # Between nodes NCCL itself relays through GPUs on the way to a NIC (PXN).
            if at.kind in GPU_KINDS and (at.name == ends[1].name or ends[0].node == ends[1].node):
                stops.append(at.name)
            elif at.name == ends[1].name:
                raise InfeasibleError(f"{at.name} computes in the network; NCCL's rings and chains are of GPUs only")
        hops += list(pairwise(stops))
    return hops


def _chain(schedule: Schedule, chunk: int) -> Line:
    mine = np.flatnonzero(schedule.chunk == chunk).tolist()
    up = steps_between(schedule, [i for i in mine if schedule.op[i] == REDUCE])
    down = steps_between(schedule, [i for i in mine if schedule.op[i] != REDUCE])
    if up and down and sorted(up) != sorted((b, a) for a, b in down):
        raise InfeasibleError(
            f"chunk {chunk} comes down another tree than it goes up; NCCL's chains are used both ways"
        )
    edges = down or [(b, a) for a, b in up]
    near: dict[str, list[str]] = {}
    for a, b in edges:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    for device, others in near.items():
        if len(others) > 2:
            raise InfeasibleError(
                f"the tree of chunk {chunk} branches at {device}, which is next to {', '.join(others)}; NCCL runs "
                "chains only. Build the schedule with algorithm=chains, or take the format msccl-xml, which can branch"
            )
    if len(near) != len(edges) + 1:
        raise InfeasibleError(f"the tree of chunk {chunk} passes a GPU twice; NCCL's chains pass each once")
    children = {b for _, b in edges}
    ends = [device for device, others in near.items() if len(others) == 1]
    start = next((device for device in ends if device not in children), min(ends))
    if schedule.collective.rooted and start in children:
        raise InfeasibleError(
            f"the chain of chunk {chunk} has its root in the middle; NCCL's {schedule.collective.name} follows a ring "
            "from one end. Build it with algorithm=chain or algorithm=rings"
        )
    order, before = [start], ""
    while len(order) < len(near):
        after = next(other for other in near[order[-1]] if other != before)
        before = order[-1]
        order.append(after)
    if schedule.collective.name == "reduce":
        # A reduction runs along the ring to the root, so the root is last.
        order.reverse()
    return Line(tuple(order), schedule.share(chunk))


def _rings(schedule: Schedule) -> Iterator[Line]:
    ranks = set(schedule.topology.members)
    for channel in distinct(schedule.channel).tolist():
        mine = np.flatnonzero(schedule.channel == channel).tolist()
        after: dict[str, set[str]] = {}
        hops = np.stack([schedule.src[mine], schedule.dst[mine], schedule.route[mine]])
        _, first = np.unique(hops, axis=1, return_index=True)
        for a, b in steps_between(schedule, [mine[place] for place in first.tolist()]):
            after.setdefault(a, set()).add(b)
        order = [min(after)] if schedule.topology.members[0] not in after else [schedule.topology.members[0]]
        while len(order) <= len(after) and len(after.get(order[-1], ())) == 1:
            order.append(next(iter(after[order[-1]])))
        if len(order) != len(after) + 1 or order[0] != order[-1] or len(set(order)) != len(after):
            raise InfeasibleError(
                f"channel {channel} of this schedule is no ring: its sends do not lead once around the GPUs. A graph "
                "file holds rings (algorithm=ring, algorithm=rings) and chains (algorithm=chains), msccl-xml anything"
            )
        chunks = distinct(schedule.chunk[mine])
        share = Fraction(int(schedule.share_num[chunks].sum()), schedule.share_den)
        n = len(ranks)
        expected = n * (n - 1) * (2 if schedule.collective.name == "allreduce" else 1)
        shares = schedule.share_num[chunks]
        if len(chunks) % n or (shares != shares[0]).any() or len(mine) != expected * (len(chunks) // n):
            raise InfeasibleError(
                f"channel {channel} is a ring, but not used as NCCL uses one: {n} equal blocks that each go all the way"
            )
        yield Line(tuple(order[:-1]), share, ring=True)


def repeated(given: list[Line], most: int) -> list[Line]:
    """The lines with equal shares: each as often as its share needs, since NCCL splits the data evenly over channels.

    Raises `InfeasibleError` if that takes more than `most` channels.
    """
    shares = [line.share for line in given]
    unit = Fraction(gcd(*(share.numerator for share in shares)), lcm(*(share.denominator for share in shares)))
    total = int(sum(shares) / unit)
    if total > most:
        more = f"give channels={total}, which NCCL 2.25 and later load, or " if total <= MOST_CHANNELS else ""
        raise InfeasibleError(
            f"the shares of these {len(given)} chains need {total} equal channels, and {most} are allowed; {more}build "
            "the schedule with algorithm=chains, which keeps to few equal channels, or take the format nccl-graph-set"
        )
    return [line for line in given for _ in range(int(line.share / unit))]


_BUILD = "Build it with algorithm=chain_tree (chains in the nodes, NCCL's trees between them) or algorithm=ring"
_ELSEWHERE = f"between nodes NCCL runs double binary trees of the first GPUs, which no file changes. {_BUILD}"


def ring_on_nodes(topology: Topology, line: Line) -> Channel:
    """What a node sees of a ring; raises `InfeasibleError` unless all nodes see the same, in turn."""
    node = [topology.device(name).node for name in line.devices]
    starts = [i for i in range(len(node)) if node[i] != node[i - 1]]
    rotated = line.devices[starts[0] :] + line.devices[: starts[0]]
    parts: list[list[str]] = []
    for name in rotated:
        if parts and topology.device(parts[-1][-1]).node == topology.device(name).node:
            parts[-1].append(name)
        else:
            parts.append([name])
    order = [topology.device(part[0]).node for part in parts]
    first = order.index(min(order))
    alike = {tuple(number(topology.device(name)) for name in part) for part in parts}
    rotation = order[first:] + order[:first]
    # Descending order equals ascending order with the nodes renamed.
    one_by_one = rotation == sorted(rotation) or rotation[:1] + rotation[:0:-1] == sorted(rotation)
    if len(parts) != len(set(node)) or not one_by_one or len(alike) > 1:
        raise InfeasibleError(
            f"the ring {' '.join(line.devices[:6])} … does not pass the nodes one after another in the same way, and "
            "NCCL's file describes one node for all. Build it with algorithm=ring and alike=True"
        )
    hops = [(parts[i][-1], parts[(i + 1) % len(parts)][0]) for i in range(len(parts))]
    return Channel(next(iter(alike)), _nets(topology, hops))


def chains_on_nodes(schedule: Schedule, most: int) -> list[Channel]:
    """The chains inside the nodes of trees that are NCCL's own between them: the two of its double binary tree."""
    topology = schedule.topology
    nodes = nodes_of(topology, topology.members)
    trees = [parents for parents, _ in two_trees(len(nodes))]
    shares: dict[Channel, list[Fraction]] = {}
    for chunk in range(schedule.chunks):
        mine = (schedule.chunk == chunk) & (schedule.op == COPY)
        ranks = schedule.rank_of[schedule.src[mine]].tolist(), schedule.rank_of[schedule.dst[mine]].tolist()
        channel, across = _chain_of_nodes(topology, nodes, dict(zip(ranks[1], ranks[0], strict=True)))
        if across not in trees:
            raise InfeasibleError(_ELSEWHERE)
        shares.setdefault(channel, [Fraction(0)] * 2)[trees.index(across)] += schedule.share(chunk)
        # Of two nodes both trees have one edge; they differ in the root only where there are more.
        if trees[0] == trees[1]:
            shares[channel] = [sum(shares[channel], start=Fraction(0)) / 2] * 2
    if any(a != b for a, b in shares.values()):
        raise InfeasibleError(f"NCCL gives both trees between the nodes the same share. {_BUILD}")
    # `repeated` looks at shares only, so the channel's number stands for its devices.
    numbered = [Line((str(number),), sum(two, start=Fraction(0))) for number, two in enumerate(shares.values())]
    channels = list(shares)
    return [channels[int(line.devices[0])] for line in repeated(numbered, most)]


def _chain_of_nodes(
    topology: Topology, nodes: list[list[int]], parent: dict[int, int]
) -> tuple[Channel, dict[int, int]]:
    """The chain that every node has in one tree, and the tree over the nodes; raises `InfeasibleError` otherwise."""
    home = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    inside = {b: a for b, a in parent.items() if home[a] == home[b]}
    below = {a: b for b, a in inside.items()}
    heads = [[rank for rank in ranks if rank not in inside] for ranks in nodes]
    if len(below) != len(inside) or any(len(tops) != 1 for tops in heads):
        raise InfeasibleError(f"a tree branches inside a node, where NCCL runs chains. {_BUILD}")
    chains = set()
    for (head,) in heads:
        chain = [head]
        while chain[-1] in below:
            chain.append(below[chain[-1]])
        chains.add(tuple(number(topology.device(topology.members[rank])) for rank in chain))
    # Only heads of chains send to other nodes.
    outside = {b: a for b, a in parent.items() if b not in inside}
    if len(chains) > 1 or not set(outside.values()) <= {head for (head,) in heads}:
        raise InfeasibleError(_ELSEWHERE)
    hops = [(topology.members[b], topology.members[a]) for b, a in outside.items()]
    nets = {net for hop in hops for net in _nets(topology, [hop, hop[::-1]])}
    if len(nets) > 1:
        raise InfeasibleError(f"the first GPU of a chain uses different NICs ({sorted(nets)}) on different nodes")
    (net,) = nets
    return Channel(chains.pop(), (net, net)), {home[b]: home[a] for b, a in outside.items()}


def _nets(topology: Topology, hops: list[tuple[str, str]]) -> tuple[int, int]:
    """(way in, way out) by network device number, the same on every node; raises `InfeasibleError` otherwise."""
    pairs = set()
    for a, b in hops:
        route = topology.router.route(topology.index[a], topology.index[b])
        passed = [topology.device(topology.links[i].dst) for i in route]
        ports = [device for device in passed if is_port(topology, device)]
        if len(ports) < 2:
            raise InfeasibleError(f"{a} reaches {b} without NICs on the way; NCCL's files name the network devices")
        pairs.add((net_number(topology, ports[-1]), net_number(topology, ports[0])))
    if len(pairs) > 1:
        raise InfeasibleError(
            f"the nodes take different NICs ({sorted(pairs)}); NCCL's file describes one node for all"
        )
    return pairs.pop()


def network_speed(topology: Topology, channels: Sequence[Channel]) -> Fraction:
    """Bytes/s of a channel between nodes: what a NIC sends, over the channels that leave by it."""
    leaving = Counter(channel.nets[1] for channel in channels)
    speeds = [
        link.bandwidth / leaving[net_number(topology, topology.device(link.src))]
        for link in topology.links
        if is_port(topology, topology.device(link.src))
        and topology.device(link.dst).node != topology.device(link.src).node
        and leaving[net_number(topology, topology.device(link.src))]
    ]
    return min(speeds, default=Fraction(10**10))


def network_type(topology: Topology, channels: Sequence[Channel]) -> str:
    first = topology.device(topology.members[0]).node
    here = [device for device in topology.devices if device.node == first]
    gpus = {number(d): d.name for d in here if d.holds}
    nets = {net_number(topology, d): d.name for d in here if is_port(topology, d)}
    ends = {(c.gpus[-1], c.nets[1]) for c in channels} | {(c.gpus[0], c.nets[0]) for c in channels}
    index = topology.index
    types = [path_type(topology, topology.router.route(index[gpus[g]], index[nets[n]])) for g, n in ends]
    # P2C and the like are not written; PIX is what NCCL says of a NIC at the same switch.
    return farthest(("PIX" if kind == "NVL" else kind for kind in types), "PIX")
