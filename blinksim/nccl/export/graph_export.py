"""Graph files for stock NCCL from schedules of chains or rings, on one node or several, and back.

A packing of equal chains brings the partition bound to NCCL's tree allreduce wherever chains reach it: NCCL
runs every channel's chain up and down and splits the data evenly. Ring and tree graph are both written, with
the same number of channels, since NCCL uses the smaller of the two and would search for a missing one. A file
read back gives the schedule that NCCL runs under it, which can be verified and its loads counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil

from blinksim.algorithms import ring as ring_algorithm
from blinksim.algorithms.building.plan import Plan, add_chains
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.nccl.export.lines import (
    Channel,
    chains_on_nodes,
    communicator,
    farthest,
    has_nvswitch,
    lines,
    network_speed,
    network_type,
    number,
    path_type,
    repeated,
    ring_on_nodes,
)
from blinksim.nccl.families import PATTERN_BALANCED_TREE, PATTERN_RING, PATTERN_TREE, RING, TREE
from blinksim.nccl.files.graph_file import MOST_CHANNELS, PORTABLE_CHANNELS, Graph, GraphFile, check, log_lines, to_text
from blinksim.nccl.files.graph_rules import Communicator, judge
from blinksim.nccl.files.nccl_xml import Release
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule
from blinksim.textio.text_table import count
from blinksim.textio.whole_files import Exported, most_channels
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps

BLOCK_RATE = 25 * 10**9
"""Bytes/s of one channel: a thread block moves 24 to 25 GB/s of an allreduce (measured on 4 x H200)."""
_UNLIMITED = Fraction(10**10)
"""Bytes/s that are written where no link limits a channel."""

Hop = tuple[int, int]


def graph_file_of(topology: Topology, channels: Sequence[Channel], nodes: int) -> GraphFile:
    """The graph file that makes NCCL use these channels for rings and for trees on each of some nodes."""
    routes = _routes(topology, channels)
    return GraphFile(tuple((kind, channel_graph(topology, channels, nodes, kind, routes)) for kind in (RING, TREE)))


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
    graph = Graph(
        pattern=PATTERN_RING if family == RING else PATTERN_BALANCED_TREE,
        nchannels=len(channels),
        bw_intra=intra,
        bw_inter=intra,
        type_intra=farthest((path_type(topology, routes[hop]) for hop in hops), "LOC"),
        type_inter="PIX",
        same_channels=len(set(channels)) == 1,
        cross_nic=int(any(len(set(channel.nets)) > 1 for channel in channels)),
        channels=tuple(channel.gpus for channel in channels),
    )
    if nodes == 1:
        return graph
    return replace(
        graph,
        pattern=PATTERN_RING if family == RING else PATTERN_TREE,
        bw_inter=min(intra, network_speed(topology, channels)),
        type_inter=network_type(topology, channels),
        nets=tuple(channel.nets for channel in channels),
    )


def _routes(topology: Topology, channels: Sequence[Channel]) -> dict[Hop, Sequence[int]]:
    """The links from GPU to GPU of every hop that a chain or a ring over these channels takes."""
    # GPUs with the same number are on different nodes; the first stands for all.
    index = {number(topology.device(name)): topology.index[name] for name in reversed(topology.members)}
    hops = {
        (a, b)
        for channel in channels
        for a, b in (*pairwise(channel.gpus), (channel.gpus[-1], channel.gpus[0]))
        if a != b
    }
    return {(a, b): topology.router.route(index[a], index[b]) for a, b in sorted(hops)}


def as_run(file: GraphFile, topology: Topology, collective: Collective, algorithm: str) -> Schedule:
    """What NCCL runs under a graph file on the members of one node: chains or rings of the file, with equal shares.

    algorithm: ``tree`` or ``ring``. Raises `InfeasibleError` if the file has no such graph, or lists other GPUs.
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

    Raises `InfeasibleError`, with the way out, for what the format cannot say: branching trees, GPUs outside the
    communicator, too many channels, chains through several nodes.
    """
    topology, comm = schedule.topology, communicator(schedule.topology)
    if comm.nodes > 1 and schedule.form == "forest" and schedule.collective.name == "allreduce":
        rings, channels = False, chains_on_nodes(schedule, most)
    else:
        orders = lines(schedule)
        members = set(topology.members)
        for line in orders:
            foreign = [device for device in line.devices if device not in members]
            if foreign:
                raise InfeasibleError(
                    f"{line.words} passes {', '.join(foreign)}, which is not in the communicator, and NCCL's graph "
                    "files list exactly its GPUs. Take the format nccl-graph-set, which makes such a GPU a helper of "
                    "its own communicator, or build without relays"
                )
        rings = orders[0].ring or schedule.collective.rooted
        if comm.nodes > 1:
            channels = [ring_on_nodes(topology, line) for line in repeated(orders, most)]
        else:
            numbers = {name: number(topology.device(name)) for name in topology.members}
            channels = [Channel(tuple(numbers[name] for name in line.devices)) for line in repeated(orders, most)]
    if comm.nodes == 1:
        # Every channel again until none carries more than a thread block moves, or there is no more room.
        tree = channel_graph(topology, channels, 1, TREE, _routes(topology, channels))
        times = max(1, min(most // len(channels), ceil(tree.bw_intra / BLOCK_RATE)))
        channels = [channel for channel in channels for _ in range(times)]
    file = graph_file_of(topology, channels, comm.nodes)
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
    ring, tree = file.graph(RING), file.graph(TREE)
    assert ring is not None
    assert tree is not None
    # NCCL copies every channel unless forbidden; where channels are too few for their load, it should.
    copies = 2 if comm.nodes > 1 or (ring if rings else tree).bw_intra > BLOCK_RATE else 1
    allowed = None
    if comm.nodes == 1:
        allowed = rate(as_run(file, topology, schedule.collective, "ring" if rings else "tree"))
    text = to_text(file)
    accidents = dict.fromkeys(in_force(text, comm))
    facts = [f"the rules of NCCL {' and '.join(RELEASES)} accept it as it is written"]
    if allowed is not None:
        facts.append(f"as NCCL runs it, the loads allow {exact_GBps(allowed)} GB/s algbw")
    notes = []
    if not rings:
        notes.append("before NCCL 2.24 write NCCL_ALGO=Tree; other collectives take the rings of the file")
    if not rings and ring.type_intra != tree.type_intra:
        notes.append(
            f"the rings of the file close over a {ring.type_intra} path: collectives that run on rings are slow with it"
        )
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
