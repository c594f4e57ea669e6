"""Chains and rings over several nodes, as the one file that every node loads.

NCCL goes from node to node along rings, and between the nodes' first GPUs along its own double binary trees (NCCL
2.28.3 graph/trees.cc), through the network devices that a file names. Chains and rings that differ between nodes, or
take another way between them, are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from blinksim.algorithms.double_binary import two_trees
from blinksim.errors import InfeasibleError
from blinksim.nccl.export.devices import farthest, is_port, net_number, number, path_type
from blinksim.nccl.export.lines import Line, repeated
from blinksim.nccl.files.graph_file import Channel
from blinksim.schedule.model import COPY, Schedule
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

_BUILD = "Build it with algorithm=chain_tree (chains in the nodes, NCCL's trees between them) or algorithm=ring"
_ELSEWHERE = f"between nodes NCCL runs double binary trees of the first GPUs, which no file changes. {_BUILD}"


def ring_on_nodes(topology: Topology, line: Line) -> Channel:
    """What a node sees of a ring; raises `InfeasibleError` unless all nodes see the same, in turn."""
    node = [topology.device(name).node for name in line.devices]
    starts = [i for i in range(len(node)) if node[i] != node[i - 1]]
    turned = line.devices[starts[0] :] + line.devices[: starts[0]]
    parts: list[list[str]] = []
    for name in turned:
        if parts and topology.device(parts[-1][-1]).node == topology.device(name).node:
            parts[-1].append(name)
        else:
            parts.append([name])
    order = [topology.device(part[0]).node for part in parts]
    first = order.index(min(order))
    alike = {tuple(number(topology.device(name)) for name in part) for part in parts}
    turn = order[first:] + order[:first]
    # Descending order equals ascending order with the nodes renamed.
    one_by_one = turn == sorted(turn) or turn[:1] + turn[:0:-1] == sorted(turn)
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
    below = {a: b for b, a in parent.items() if home[a] == home[b]}
    inside = sum(home[a] == home[b] for b, a in parent.items())
    heads = [[r for r in ranks if r not in parent or home[parent[r]] != home[r]] for ranks in nodes]
    if len(below) != inside or any(len(found) != 1 for found in heads):
        raise InfeasibleError(f"a tree branches inside a node, where NCCL runs chains. {_BUILD}")
    chains = []
    for (head,) in heads:
        chain = [head]
        while chain[-1] in below:
            chain.append(below[chain[-1]])
        chains.append(tuple(number(topology.device(topology.members[rank])) for rank in chain))
    across = {home[b]: home[a] for b, a in parent.items() if home[a] != home[b]}
    top = {found[0] for found in heads}
    if len(set(chains)) > 1 or any(a not in top for b, a in parent.items() if home[a] != home[b]):
        raise InfeasibleError(_ELSEWHERE)
    hops = [(topology.members[heads[b][0]], topology.members[heads[a][0]]) for b, a in across.items()]
    nets = {net for hop in hops for net in _nets(topology, [hop, hop[::-1]])}
    if len(nets) > 1:
        raise InfeasibleError(f"the first GPU of a chain uses different NICs ({sorted(nets)}) on different nodes")
    (net,) = nets
    return Channel(chains[0], (net, net)), across


def _nets(topology: Topology, hops: list[tuple[str, str]]) -> tuple[int, int]:
    """(way in, way out) by network device number, the same on every node; raises `InfeasibleError` otherwise."""
    found = set()
    for a, b in hops:
        route = topology.router.route(topology.index[a], topology.index[b])
        passed = [topology.device(topology.links[i].dst) for i in route]
        ports = [device for device in passed if is_port(topology, device)]
        if len(ports) < 2:
            raise InfeasibleError(f"{a} reaches {b} without NICs on the way; NCCL's files name the network devices")
        found.add((net_number(topology, ports[-1]), net_number(topology, ports[0])))
    if len(found) > 1:
        raise InfeasibleError(
            f"the nodes take different NICs ({sorted(found)}); NCCL's file describes one node for all"
        )
    return found.pop()


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
