"""Lines of a schedule (chains, rings) as graph files for stock NCCL, on one node or several, and back.

GPUs go by their NVML number, which is the order on the PCIe bus and what nvidia-smi shows; network devices by
the order of NCCL's plugin. A topology file says both (``dev``); in the catalogue's machines ``gpu3`` is
number 3 of its node.

NCCL's tree allreduce makes every channel a chain, up and then down; everything else runs on rings (NCCL
2.28.3 graph/connect.cc; Broadcast and Reduce follow a ring from or to the root). Other schedules have no
graph file; they are refused, with what to do instead. Over several nodes, one file serves all: NCCL goes from
node to node along rings, and between the nodes' first GPUs along its own double binary trees (NCCL 2.28.3
graph/trees.cc), through the network devices that the file names. Lines that differ between nodes, or take
another route between them, are refused.

A packing of equal chains brings the partition bound to NCCL's tree allreduce wherever chains reach it: NCCL
runs every channel's chain up and down and splits the data evenly. Ring and tree graph are both written, with
the same number of channels, since NCCL uses the smaller of the two and would search for a missing one. A file
read back gives the schedule that NCCL runs under it, which can be verified and its loads counted.

Sets of graph files, one communicator per chain, by which idle GPUs help stock NCCL, as in Blink+. A graph
file lists exactly the GPUs of its communicator, so a chain through a helper gets a communicator of users and
helper, and its share of the data (Blink+ report, section 4.1, algorithm 1). NCCL reads NCCL_GRAPH_FILE anew
for every communicator, but NCCL_MAX_NCHANNELS once in a process: all communicators get the same number of
channels, and a chain over more lanes gets several communicators. A helper contributes zeros, so only sums
(and broadcasts) are right.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby, pairwise, permutations
from math import ceil, gcd
from typing import TypeVar

import numpy as np

from blinksim import data_files
from blinksim.algorithms import ring as ring_algorithm
from blinksim.algorithms.building.plan import Plan, add_chains
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import distinct, scattered
from blinksim.graphs.connectivity import breadth_first, grouped
from blinksim.graphs.network import whole
from blinksim.graphs.rooted_trees import two_trees
from blinksim.nccl.families import PATH_TYPES, RING, TREE, Pattern
from blinksim.nccl.files.graph_file import MOST_CHANNELS, PORTABLE_CHANNELS, Graph, GraphFile, check, log_lines, to_text
from blinksim.nccl.files.graph_rules import Communicator, Release, judge
from blinksim.nccl.files.topo_file import NUMBERED, leaving, number
from blinksim.results import count
from blinksim.schedule.loads import rate
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.textio.text_files import Exported, most_channels, read_text
from blinksim.topology.cluster import nodes_of
from blinksim.topology.elements import GPU_KINDS
from blinksim.topology.graph import Device, Topology
from blinksim.units import exact_GBps


def net_number(topology: Topology, device: Device) -> int:
    """The number of a network device: its own, or its position among those of its node."""
    if "dev" in device.attributes or NUMBERED.fullmatch(device.name):
        return number(device)
    return [d.name for d in topology.devices if d.node == device.node and is_port(topology, d)].index(device.name)


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


def communicator(topology: Topology) -> Communicator:
    """The members of `topology` as NCCL sees them, for `graph_rules.judge`.

    Raises `InfeasibleError` if the nodes do not have the same GPUs in the same order (a graph file is for
    one), for two members with one number in a node, and as `number`.
    """
    members = [topology.device(name) for name in topology.members]
    first, own = members[0].node, grouped((device.node, number(device)) for device in members)
    for node, gpus in own.items():
        if len(set(gpus)) < len(gpus):
            raise InfeasibleError(f"two ranks of node {node} have the same GPU number; NCCL runs one rank on each GPU")
    if any(gpus != own[first] for gpus in own.values()):
        raise InfeasibleError("the nodes have different GPUs in the job; a graph file describes one node for all")
    here = {d.name: d for d in topology.devices if d.node == first}
    nvlinks = [link for link in topology.links if link.kind == "nvlink"]
    gpus_here = {name: number(device) for name, device in here.items() if device.kind in GPU_KINDS}
    linked = {(gpus_here[x.src], gpus_here[x.dst]) for x in nvlinks if {x.src, x.dst} <= gpus_here.keys()}
    if has_nvswitch(topology):
        linked |= set(permutations(own[first], 2))
    nets = frozenset(net_number(topology, d) for d in here.values() if d.kind == "nic" and is_port(topology, d))
    sm = min((sm for device in members if isinstance(sm := device.attributes.get("sm"), int)), default=0)
    joined = frozenset(linked) if nvlinks else None
    return Communicator(tuple(own[first]), len(own), sm, has_nvswitch(topology), joined, nets or None)


def is_port(topology: Topology, device: Device) -> bool:
    """True for what NCCL counts as a network device; an adapter with ports of its own is none."""
    if device.kind != "nic":
        return False
    ports = [other for _, other in leaving(topology, device.name)]
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

    An allreduce in forest form gives the chains of its trees, a rooted collective the chain from or to its
    root, a schedule around rings the rings.
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
        what = f"chunk {chunk} comes down another tree than it goes up"
        raise InfeasibleError(f"{what}; NCCL's chains are used both ways")
    edges = down or [(b, a) for a, b in up]
    near = grouped(ends for a, b in edges for ends in ((a, b), (b, a)))
    for device, others in near.items():
        if len(others) > 2:
            lies = f"the tree of chunk {chunk} branches at {device}, which is next to {', '.join(others)}"
            cure = "Build the schedule with algorithm=chains, or take the format msccl-xml, which can branch"
            raise InfeasibleError(f"{lies}; NCCL runs chains only. {cure}")
    if len(near) != len(edges) + 1:
        raise InfeasibleError(f"the tree of chunk {chunk} passes a GPU twice; NCCL's chains pass each once")
    children = {b for _, b in edges}
    ends = [device for device, others in near.items() if len(others) == 1]
    start = next((device for device in ends if device not in children), min(ends))
    if schedule.collective.rooted and start in children:
        lies = f"the chain of chunk {chunk} has its root in the middle"
        follows = f"NCCL's {schedule.collective.name} follows a ring from one end"
        raise InfeasibleError(f"{lies}; {follows}. Build it with algorithm=chain or algorithm=rings")
    order = [*breadth_first(start, near.__getitem__)]
    if schedule.collective.name == "reduce":
        # A reduction runs along the ring to the root, so the root is last.
        order.reverse()
    return Line(tuple(order), schedule.share(chunk))


def _rings(schedule: Schedule) -> Iterator[Line]:
    n = len(schedule.topology.members)
    expected = n * (n - 1) * schedule.collective.phases
    for channel in distinct(schedule.channel).tolist():
        mine = np.flatnonzero(schedule.channel == channel)
        by_route = scattered(schedule.route[mine], mine, len(schedule.route_start) - 1)
        after = defaultdict(list, grouped({*steps_between(schedule, by_route[by_route >= 0].tolist())}))
        first = schedule.topology.members[0]
        order = [*breadth_first(first if first in after else min(after), after.__getitem__)]
        if len(order) != len(after) or any(after[a] != [b] for a, b in pairwise((*order, order[0]))):
            lies = "is no ring: its sends do not lead once around the GPUs"
            holds = "holds rings (algorithm=ring, algorithm=rings) and chains (algorithm=chains)"
            cure = f"A graph file {holds}, msccl-xml anything"
            raise InfeasibleError(f"channel {channel} of this schedule {lies}. {cure}")
        chunks = distinct(schedule.chunk[mine])
        shares = schedule.share_num[chunks]
        if len(chunks) % n or (shares != shares[0]).any() or len(mine) != expected * (len(chunks) // n):
            used = f"as NCCL uses one: {n} equal blocks that each go all the way"
            raise InfeasibleError(f"channel {channel} is a ring, but not used {used}")
        yield Line(tuple(order), Fraction(int(shares.sum()), schedule.share_den), ring=True)


Way = TypeVar("Way", Line, Channel)


def repeated(given: Sequence[tuple[Way, Fraction]], most: int) -> list[Way]:
    """Lines or channels, each as often as its share needs, since NCCL splits the data evenly over channels.

    Raises `InfeasibleError` if that takes more than `most` channels.
    """
    times, _ = whole([(share, 1) for _, share in given])
    if (total := sum(times)) > most:
        more = f"give channels={total}, which NCCL 2.25 and later load, or " if total <= MOST_CHANNELS else ""
        needs = f"the shares of these {len(given)} chains need {total} equal channels, and {most} are allowed"
        cure = "build the schedule anew with algorithm=chains, which keeps to few equal channels"
        raise InfeasibleError(f"{needs}; {more}{cure}, or take the format nccl-graph-set")
    return [way for (way, _), count in zip(given, times, strict=True) for _ in range(count)]


_BUILD = "Build it with algorithm=chain_tree (chains in the nodes, NCCL's trees between them) or algorithm=ring"
_ONE_NODE = "NCCL's file describes one node for all"
_ELSEWHERE = f"between nodes NCCL runs double binary trees of the first GPUs, which no file changes. {_BUILD}"


def ring_on_nodes(topology: Topology, line: Line) -> Channel:
    """What a node sees of a ring; raises `InfeasibleError` unless all nodes see the same, in turn."""
    node = [topology.device(name).node for name in line.devices]
    starts = [i for i in range(len(node)) if node[i] != node[i - 1]]
    rotated = line.devices[starts[0] :] + line.devices[: starts[0]]
    runs = [(node, [*run]) for node, run in groupby(rotated, lambda name: topology.device(name).node)]
    order, parts = [node for node, _ in runs], [run for _, run in runs]
    first = order.index(min(order))
    alike = {tuple(number(topology.device(name)) for name in part) for part in parts}
    rotation = order[first:] + order[:first]
    # Descending order equals ascending order with the nodes renamed.
    one_by_one = rotation == sorted(rotation) or rotation[:1] + rotation[:0:-1] == sorted(rotation)
    if len(parts) != len(set(order)) or not one_by_one or len(alike) > 1:
        lacks = "does not pass the nodes one after another in the same way"
        cure = "Build it with algorithm=ring and alike=True"
        raise InfeasibleError(f"the ring {' '.join(line.devices[:6])} … {lacks}, and {_ONE_NODE}. {cure}")
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
    return repeated([(channel, sum(two, start=Fraction(0))) for channel, two in shares.items()], most)


def _chain_of_nodes(
    topology: Topology, nodes: list[list[int]], parent: dict[int, int]
) -> tuple[Channel, dict[int, int]]:
    """The chain that every node has in one tree, and the tree over the nodes; raises `InfeasibleError` otherwise."""
    home = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    inside = {b: a for b, a in parent.items() if home[a] == home[b]}
    below = grouped((a, b) for b, a in inside.items())
    heads = [[rank for rank in ranks if rank not in inside] for ranks in nodes]
    if len(below) != len(inside) or any(len(tops) != 1 for tops in heads):
        raise InfeasibleError(f"a tree branches inside a node, where NCCL runs chains. {_BUILD}")
    walks = (breadth_first(head, lambda rank: below.get(rank, ())) for (head,) in heads)
    chains = {tuple(number(topology.device(topology.members[rank])) for rank in walk) for walk in walks}
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
        if len(ports := [device for device in passed if is_port(topology, device)]) < 2:
            raise InfeasibleError(f"{a} reaches {b} without NICs on the way; NCCL's files name the network devices")
        pairs.add((net_number(topology, ports[-1]), net_number(topology, ports[0])))
    if len(pairs) > 1:
        raise InfeasibleError(f"the nodes take different NICs ({sorted(pairs)}); {_ONE_NODE}")
    return pairs.pop()


def network_speed(topology: Topology, channels: Sequence[Channel]) -> Fraction:
    """Bytes/s of a channel between nodes: what a NIC sends, over the channels that leave by it."""
    leaving = Counter(channel.nets[1] for channel in channels)
    by_port = {d.name: leaving[net_number(topology, d)] for d in topology.devices if is_port(topology, d)}
    out = (x for x in topology.links if topology.device(x.dst).node != topology.device(x.src).node)
    return min((x.bandwidth / by_port[x.src] for x in out if by_port.get(x.src)), default=_UNLIMITED)


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


# Bytes/s of one channel: a thread block moves 24 to 25 GB/s of an allreduce (measured on 4 x H200).
BLOCK_RATE = 25 * 10**9
# Bytes/s that are written where no link limits a channel.
_UNLIMITED = Fraction(10**10)

Hop = tuple[int, int]


def channel_graph(
    topology: Topology, channels: Sequence[Channel], nodes: int, family: int, routes: dict[Hop, Sequence[int]]
) -> Graph:
    """The channels as one family uses them; routes: links from GPU to GPU, by number."""
    hops: list[Hop] = []
    for channel in channels:
        # A ring closes on one node only; between nodes it goes on over the network.
        closes = family == RING and nodes == 1 and len(channel.gpus) > 2
        hops += pairwise(channel.gpus + channel.gpus[:1] * closes)
    # Trees run up and down; a ring of two GPUs returns over the same link.
    two_way = family == TREE or (len(channels[0].gpus) == 2 and nodes == 1)
    uses = Counter(link for a, b in hops for link in (*routes[a, b], *(routes.get((b, a), ()) if two_way else ())))
    intra = min((topology.links[link].bandwidth / times for link, times in uses.items()), default=_UNLIMITED)
    several = nodes > 1
    return Graph(
        pattern=Pattern.RING if family == RING else (Pattern.BALANCED_TREE, Pattern.TREE)[several],
        nchannels=len(channels),
        bw_intra=intra,
        bw_inter=min(intra, network_speed(topology, channels)) if several else intra,
        type_intra=farthest((path_type(topology, routes[hop]) for hop in hops), "LOC"),
        type_inter=network_type(topology, channels) if several else "PIX",
        same_channels=len(set(channels)) == 1,
        cross_nic=int(any(len(set(channel.nets)) > 1 for channel in channels)),
        channels=tuple(channel.gpus for channel in channels),
        nets=tuple(channel.nets for channel in channels) if several else (),
    )


def _routes(topology: Topology, channels: Sequence[Channel]) -> dict[Hop, Sequence[int]]:
    """The links from GPU to GPU of every hop that a chain or a ring over these channels takes."""
    # GPUs with the same number are on different nodes; the first stands for all.
    index = {number(topology.device(name)): topology.index[name] for name in reversed(topology.members)}
    around = (hop for channel in channels for hop in pairwise((*channel.gpus, channel.gpus[0])))
    hops = {(a, b) for a, b in around if a != b}
    return {(a, b): topology.router.route(index[a], index[b]) for a, b in sorted(hops)}


def as_run(file: GraphFile, topology: Topology, collective: Collective, algorithm: str) -> Schedule:
    """What NCCL runs under a graph file on the members of one node: chains or rings of the file, with equal shares.

    algorithm: ``tree`` or ``ring``. Raises `InfeasibleError` if the file has no such graph, or lists other
    GPUs.
    """
    graph = file.graph(TREE if algorithm == "tree" else RING)
    if graph is None:
        raise InfeasibleError(f"the file has no {algorithm} graph")
    rank = {number(topology.device(name)): position for position, name in enumerate(topology.members)}
    orders = []
    for channel in graph.channels:
        if sorted(channel) != sorted(rank):
            raise InfeasibleError(f"a channel lists the GPUs {channel}, but the members are {tuple(sorted(rank))}")
        orders.append(tuple(rank[gpu] for gpu in channel))
    if algorithm == "ring" and not collective.rooted:
        return ring_algorithm.build(topology, collective, orders)
    plan = Plan(topology, collective, "nccl", "forest")
    add_chains(plan, orders)
    return plan.finish()


RELEASES = ("2.28.3", "2.30.7")
CAUTION = (
    "for experiments: NCCL_GRAPH_FILE binds every communicator of the process, those of libraries included; one "
    "with other GPUs fails to start, or hangs. Set it for one command; never in a profile or an nccl.conf"
)


def graphs_for(schedule: Schedule, most: int = PORTABLE_CHANNELS) -> tuple[GraphFile, bool]:
    """The graph file of a schedule with at most `most` channels, and True if NCCL runs it on rings.

    Raises `InfeasibleError`, with the way out, for what the format cannot say: branching trees, GPUs outside
    the communicator, too many channels, chains through several nodes.
    """
    topology, comm = schedule.topology, communicator(schedule.topology)
    if comm.nodes > 1 and schedule.form == "forest" and schedule.collective.name == "allreduce":
        rings, channels = False, chains_on_nodes(schedule, most)
    else:
        orders = lines(schedule)
        members = set(topology.members)
        for line in orders:
            if foreign := [device for device in line.devices if device not in members]:
                lies = f"{line.words} passes {', '.join(foreign)}, which is not in the communicator"
                lists = "NCCL's graph files list exactly its GPUs"
                cure = "which makes such a GPU a helper of its own communicator, or build without relays"
                raise InfeasibleError(f"{lies}, and {lists}. Take the format nccl-graph-set, {cure}")
        rings = orders[0].ring or schedule.collective.rooted
        equal = repeated([(line, line.share) for line in orders], most)
        if comm.nodes > 1:
            channels = [ring_on_nodes(topology, line) for line in equal]
        else:
            channels = [Channel(tuple(number(topology.device(name)) for name in line.devices)) for line in equal]
    routes = _routes(topology, channels)
    if comm.nodes == 1:
        # Every channel again until none carries more than a thread block moves, or there is no more room.
        tree = channel_graph(topology, channels, 1, TREE, routes)
        times = max(1, min(most // len(channels), ceil(tree.bw_intra / BLOCK_RATE)))
        channels = [channel for channel in channels for _ in range(times)]
    graphs = ((kind, channel_graph(topology, channels, comm.nodes, kind, routes)) for kind in (RING, TREE))
    file = GraphFile(tuple(graphs))
    check(file, comm.gpus, comm.nodes, most=most)
    return file, rings


def in_force(text: str, comm: Communicator, label: str = "") -> list[str]:
    """What releases of NCCL misread in a graph file; raises `InfeasibleError` if one does not use it."""
    judged = [judge(text, comm, Release.parse(release)) for release in RELEASES]
    for judgement in judged:
        if judgement.verdict != "used":
            raise InfeasibleError(f"{label}{judgement.reason}")
    return [remark for judgement in judged for remark in judgement.accidents]


def variables(topology: Topology, trees: bool, channels: int) -> dict[str, str]:
    """The environment in which NCCL takes channels from a graph file; trees: an allreduce on trees."""
    chosen = {"NCCL_ALGO": "allreduce:tree" if trees else "Ring", "NCCL_PROTO": "Simple"}
    chosen["NCCL_MAX_NCHANNELS"] = str(channels)
    return chosen | ({"NCCL_NVLS_ENABLE": "0"} if has_nvswitch(topology) else {})


def export(schedule: Schedule, channels: int | None = None) -> Exported:
    """The graph file of a schedule, judged by the rules of two NCCL releases; see `registry.Format.export`."""
    most = most_channels(channels, PORTABLE_CHANNELS, MOST_CHANNELS, "NCCL copies each, and has 64")
    file, rings = graphs_for(schedule, most)
    topology, comm = schedule.topology, communicator(schedule.topology)
    ring, tree = (dict(file.graphs)[family] for family in (RING, TREE))
    # NCCL copies every channel unless forbidden; where channels are too few for their load, it should.
    copies = 2 if comm.nodes > 1 or (ring if rings else tree).bw_intra > BLOCK_RATE else 1
    text = to_text(file)
    accidents = dict.fromkeys(in_force(text, comm))
    facts = [f"the rules of NCCL {' and '.join(RELEASES)} accept it as it is written"]
    if comm.nodes == 1:
        found = as_run(file, topology, schedule.collective, "ring" if rings else "tree")
        facts.append(f"as NCCL runs it, the loads allow {exact_GBps(rate(found) or Fraction(0))} GB/s algbw")
    notes = []
    if not rings:
        notes.append("before NCCL 2.24 write NCCL_ALGO=Tree; other collectives take the rings of the file")
    if not rings and ring.type_intra != tree.type_intra:
        slow = "collectives that run on rings are slow with it"
        notes.append(f"the rings of the file close over {ring.type_intra}: {slow}")
    if copies == 1:
        notes.append(f"without NCCL_MAX_NCHANNELS={ring.nchannels} NCCL runs every channel twice")
    else:
        notes.append("NCCL runs every channel of the file twice, here on purpose")
    nodes = f" on each of {comm.nodes} nodes" if comm.nodes > 1 else ""
    kind = "ring channel" if rings else "chain channel"
    return Exported(
        files={"": text},
        summary=f"{count(ring.nchannels, kind)} over {len(comm.gpus)} GPUs{nodes}, for NCCL 2.8 and later",
        facts=tuple(facts),
        environment={"NCCL_GRAPH_FILE": "{file}", **variables(topology, not rings, copies * ring.nchannels)},
        proof=tuple(log_lines(file, comm.gpus, copies)) if comm.nodes == 1 else (),
        notes=(*notes, *accidents),
        caution=CAUTION,
    )


MOST_COMMUNICATORS = 32
FORMAT, VERSION = "blinksim-nccl-graph-set", 1


def export_set(schedule: Schedule, channels: int | None = None) -> Exported:
    """One graph file for each chain, a manifest and a recipe that runs them; see `registry.Format.export`.

    Raises `InfeasibleError` for several nodes, for what is no chain, and for more than `channels` chains.
    """
    most = most_channels(channels, MOST_COMMUNICATORS, MOST_COMMUNICATORS, "one communicator for each chain")
    topology, name = schedule.topology, schedule.collective.name
    if name not in ("allreduce", "broadcast", "reduce"):
        raise InfeasibleError(f"helpers know allreduce, broadcast and reduce, not {name}; take the format nccl-graph")
    if len({topology.device(member).node for member in topology.members}) > 1:
        raise InfeasibleError("the chains of a set stay on one node; take the format nccl-graph for several")
    chains = lines(schedule)
    if any(line.ring for line in chains):
        raise InfeasibleError("this schedule runs on rings; take the format nccl-graph, which needs one communicator")
    # Every chain sends something.
    index, allowed = topology.index, rate(schedule) or Fraction(0)
    cut = []
    for line in chains:
        routes = [topology.router.route(index[a], index[b]) for a, b in pairwise(line.devices)]
        kind = farthest((path_type(topology, route) for route in routes), "NVL")
        narrow = min(topology.links[link].bandwidth for route in routes for link in route)
        # As many equal channels as the share needs thread blocks; a chain over several lanes is as wide as
        # they are.
        carried = min(narrow, allowed * line.share)
        wide = max(1, min(16, -(-carried // BLOCK_RATE)))
        cut.append((line, kind, wide, carried / wide))
    width = gcd(*(wide for _, _, wide, _ in cut))
    parts = [
        (replace(line, share=line.share * width / wide), kind, speed)
        for line, kind, wide, speed in cut
        for _ in range(wide // width)
    ]
    if len(parts) > most:
        raise InfeasibleError(f"{len(chains)} chains need {len(parts)} communicators; at most {most}. Synthesise fewer")
    members = set(topology.members)
    # Broadcast and reduce have rings only; the file's rings are the same chains.
    environment = variables(topology, name == "allreduce", width)
    files: dict[str, str] = {}
    entries, helpers = [], set[int]()
    for position, (line, kind, speed) in enumerate(parts):
        order = tuple(number(topology.device(device)) for device in line.devices)
        ring = Graph(Pattern.RING, width, speed, speed, kind, "PIX", same_channels=True, channels=(order,) * width)
        graphs = GraphFile(((RING, ring), (TREE, replace(ring, pattern=Pattern.BALANCED_TREE))))
        file, text = f"chain{position}.xml", to_text(graphs)
        check(graphs, order, most=16)
        in_force(text, Communicator(order), f"chain {line.words}: ")
        files[file] = text
        helping = [gpu for gpu, device in zip(order, line.devices, strict=True) if device not in members]
        helpers.update(helping)
        users = [gpu for gpu in order if gpu not in helping]
        entry = {"file": file, "gpus": [*order], "users": users, "helpers": helping, "share": str(line.share)}
        log = log_lines(graphs, order)
        entries.append({**entry, "channels": width, "log": log, "environment": environment})
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "machine": topology.name,
        "collective": name,
        "users": [number(topology.device(member)) for member in topology.members],
        "root": number(topology.device(topology.members[schedule.collective.root])),
        "helpers": sorted(helpers),
        "helper_role": "a helper joins with a buffer of zeros, so that sums are right; what it receives is not used",
        "communicators": entries,
    }
    files["manifest.json"] = json.dumps(manifest, indent=2) + "\n"
    # The script that starts the communicators, runs them and checks the result; it needs no blinksim.
    files["recipe.py"] = read_text(data_files.folder("models") / "chains_recipe.py")
    words = [f"{line.words} carries {line.share}" for line, _, _ in parts]
    facts = [f"the rules of NCCL {' and '.join(RELEASES)} put every file in force for its communicator", *words]
    facts.append(f"together {exact_GBps(allowed)} GB/s algbw by their loads")
    count = "" if len(parts) == len(chains) else f"{len(parts)} "
    return Exported(
        files=files,
        summary=f"{len(chains)} chains as {count}communicators, {len(helpers)} helper GPUs, a manifest and a recipe",
        facts=tuple(facts),
        proof=("python3 {file}/recipe.py  (CuPy with NCCL, and the GPUs: checks the result, prints the bandwidth)",),
        notes=(
            "set NCCL_GRAPH_FILE only while a communicator starts; the recipe does",
            "small vectors are slower than with NCCL alone: every chain is a launch of its own",
        ),
        caution=CAUTION,
    )
