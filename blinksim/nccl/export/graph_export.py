"""A schedule of chains or rings as a graph file for stock NCCL, on one node or on several with NICs.

A packing of equal chains brings the partition bound to NCCL's tree allreduce wherever chains reach it: NCCL runs every
channel's chain up and down and splits the data evenly. Both the ring and the tree graph are written with the same
number of channels, since NCCL uses the smaller of the two, and would search for a missing one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil

from blinksim.algorithms import ring as ring_algorithm
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.building.rank_trees import add_tree
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.nccl.export.devices import communicator, farthest, has_nvswitch, number, path_type
from blinksim.nccl.export.lines import lines, repeated
from blinksim.nccl.export.node_lines import chains_on_nodes, network_speed, network_type, ring_on_nodes
from blinksim.nccl.families import PATTERN_BALANCED_TREE, PATTERN_RING, PATTERN_TREE, RING, TREE
from blinksim.nccl.files.graph_file import (
    MOST_CHANNELS,
    PORTABLE_CHANNELS,
    Channel,
    GraphElement,
    GraphFile,
    check,
    log_lines,
    to_text,
)
from blinksim.nccl.files.graph_rules import judge
from blinksim.nccl.files.nccl_xml import Release
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule
from blinksim.textio.exported import Exported, most_channels
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps

RELEASES = ("2.28.3", "2.30.7")
# One channel is one thread block, which moves 24 to 25 GB/s of an allreduce (measured on 4 x H200).
BLOCK_RATE = 25 * 10**9
CAUTION = (
    "for experiments: NCCL_GRAPH_FILE binds every communicator of the process, also those that libraries make; one "
    "with other GPUs fails to start, or hangs. Set it for one command; never in a profile or an nccl.conf"
)


@dataclass(frozen=True, slots=True)
class GraphExport:
    """A graph file and how to use it.

    rate: algbw in bytes/s that the loads of what NCCL runs allow, None on several nodes. environment: variables by
    name, NCCL_GRAPH_FILE aside. log: lines of NCCL_DEBUG=INFO on rank 0 that prove the file to be in force. notes: what
    the reader should know.
    """

    file: GraphFile
    algorithm: str
    rate: Fraction | None
    environment: dict[str, str]
    log: tuple[str, ...]
    notes: tuple[str, ...]


def graph_export(schedule: Schedule, most: int = PORTABLE_CHANNELS) -> GraphExport:
    """The graph file of a schedule; at most `most` channels (16 load everywhere, 32 since NCCL 2.25).

    Raises `InfeasibleError`, with the way out, for what the format cannot say: branching trees, GPUs outside the
    communicator, too many channels, chains through several nodes.
    """
    topology = schedule.topology
    comm = communicator(topology)
    members = set(topology.members)
    trees = comm.nodes > 1 and schedule.form == "forest" and schedule.collective.name == "allreduce"
    found = [] if trees else lines(schedule)
    for line in found:
        foreign = [device for device in line.devices if device not in members]
        if foreign:
            raise InfeasibleError(
                f"{line.words} passes {', '.join(foreign)}, which is not in the communicator, and NCCL's graph files "
                "list exactly its GPUs. Take --format nccl-graph-set, which makes such a GPU a helper of its own "
                "communicator, or build without --relays"
            )
    if trees:
        channels = chains_on_nodes(schedule, most)
    elif comm.nodes > 1:
        channels = [ring_on_nodes(topology, line) for line in repeated(found, most)]
    else:
        channels = [_numbers(topology, line.devices) for line in repeated(found, most)]
    pattern = PATTERN_BALANCED_TREE if comm.nodes == 1 else PATTERN_TREE
    if comm.nodes == 1:
        channels = _thinned(topology, channels, most)
    rings = not trees and (found[0].ring or schedule.collective.rooted)
    file = _file(topology, channels, comm.nodes, pattern)
    check(file, comm.gpus, comm.nodes, most=most)
    algorithm = "ring" if rings else "tree"
    used = file.graph(RING if rings else TREE)
    assert used is not None
    # NCCL copies every channel unless it may not; where channels are too few for their load, it should.
    copies = 2 if comm.nodes > 1 or used.speed_intra * 10**9 > BLOCK_RATE else 1
    environment = {
        "NCCL_ALGO": "Ring" if rings else "allreduce:tree",
        "NCCL_PROTO": "Simple",
        "NCCL_MAX_NCHANNELS": str(copies * len(channels)),
    }
    if has_nvswitch(topology):
        environment["NCCL_NVLS_ENABLE"] = "0"
    allowed = None if comm.nodes > 1 else rate(as_run(file, topology, schedule.collective, algorithm))
    log = tuple(log_lines(file, comm.gpus, copies)) if comm.nodes == 1 else ()
    notes = tuple(_notes(file, rings, copies))
    return GraphExport(file, algorithm, allowed, environment, log, notes)


def _thinned(topology: Topology, channels: list[Channel], most: int) -> list[Channel]:
    """Every channel so often that none carries more than a thread block moves, or as often as there is room."""
    graph = _file(topology, channels, 1, PATTERN_BALANCED_TREE).graph(TREE)
    assert graph is not None
    times = min(most // len(channels), ceil(graph.speed_intra * 10**9 / BLOCK_RATE))
    return [channel for channel in channels for _ in range(max(1, times))]


def _numbers(topology: Topology, devices: Sequence[str]) -> Channel:
    return Channel(tuple(number(topology.device(name)) for name in devices))


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
        if sorted(channel.gpus) != sorted(rank):
            raise InfeasibleError(f"a channel lists the GPUs {channel.gpus}, but the members are {tuple(sorted(rank))}")
        orders.append(tuple(rank[gpu] for gpu in channel.gpus))
    if algorithm == "ring" and not collective.rooted:
        return ring_algorithm.build(topology, collective, orders)
    plan = Plan(topology, collective, "nccl", "forest")
    for position, order in enumerate(orders):
        if collective.rooted:
            at = order.index(collective.root)
            order = order[at:] + order[:at]
            if collective.name == "reduce":
                order = (order[0], *reversed(order[1:]))
        parents = {b: a for a, b in pairwise(order)}
        add_tree(plan, collective, Fraction(1, len(orders)), parents, order[0], position)
    return plan.finish()


def export(schedule: Schedule, channels: int | None = None) -> Exported:
    """`graph_export`, judged by the rules of two NCCL releases; see `exports.Format.export`."""
    most = most_channels(channels, PORTABLE_CHANNELS, MOST_CHANNELS, "NCCL copies each, and has 64 in all")
    found = graph_export(schedule, most)
    text, comm = to_text(found.file), communicator(schedule.topology)
    judged = [judge(text, comm, Release.parse(release)) for release in RELEASES]
    if any(judgement.verdict != "used" for judgement in judged):
        raise InfeasibleError(next(j.reason for j in judged if j.verdict != "used"))
    listed = {graph.number: graph for graph in found.file.graphs}[RING]
    nodes = f" on each of {comm.nodes} nodes" if comm.nodes > 1 else ""
    kind = "ring" if found.algorithm == "ring" else "chain"
    facts = [f"the rules of NCCL {' and '.join(RELEASES)} put it in force as it is written"]
    if found.rate is not None:
        facts.append(f"as NCCL runs it, the loads allow {exact_GBps(found.rate)} GB/s algbw")
    return Exported(
        files={"": text},
        summary=f"{listed.channel_count} {kind} channels over {len(comm.gpus)} GPUs{nodes}, for NCCL 2.8 and later",
        facts=tuple(facts),
        environment={"NCCL_GRAPH_FILE": "{file}", **found.environment},
        proof=found.log,
        notes=(*found.notes, *dict.fromkeys(remark for judgement in judged for remark in judgement.accidents)),
        caution=CAUTION,
    )


# --- the file -----------------------------------------------------------------------------------------------------


def _file(topology: Topology, channels: list[Channel], nodes: int, pattern: int) -> GraphFile:
    names = {number(topology.device(name)): name for name in reversed(topology.members)}
    routes = {
        (a, b): topology.router.route(topology.index[names[a]], topology.index[names[b]])
        for channel in channels
        for a, b in (*pairwise(channel.gpus), *((channel.gpus[-1], channel.gpus[0]),))
        if a != b
    }
    same = int(len(set(channels)) == 1)
    graphs = []
    for kind in (RING, TREE):
        # A closing hop is there on one node only; between nodes the ring goes on over the network.
        pairs = [
            [*pairwise(c.gpus), *([(c.gpus[-1], c.gpus[0])] if kind == RING and nodes == 1 and len(c.gpus) > 2 else [])]
            for c in channels
        ]
        both = kind == TREE or (len(channels[0].gpus) == 2 and nodes == 1)
        uses = Counter(
            link
            for hops in pairs
            for a, b in hops
            for link in (*routes[a, b], *(routes[b, a] if both and (b, a) in routes else ()))
        )
        intra = min((topology.links[i].bandwidth / times for i, times in uses.items()), default=Fraction(10**10))
        inter = network_speed(topology, channels) if nodes > 1 else intra
        graphs.append(
            GraphElement(
                number=kind,
                pattern=PATTERN_RING if kind == RING else pattern,
                channel_count=len(channels),
                speed_intra=float(intra / 10**9),
                speed_inter=float(min(intra, inter) / 10**9),
                type_intra=farthest((path_type(topology, routes[hop]) for hops in pairs for hop in hops), "LOC"),
                type_inter=network_type(topology, channels) if nodes > 1 else "PIX",
                same_channels=same,
                cross_nic=int(any(len(set(c.nets)) > 1 for c in channels)),
                channels=tuple(channels),
            )
        )
    return GraphFile(tuple(graphs))


def _notes(file: GraphFile, rings: bool, copies: int) -> list[str]:
    notes = []
    ring, tree = file.graph(RING), file.graph(TREE)
    assert ring is not None
    assert tree is not None
    if not rings:
        notes.append("before NCCL 2.24 write NCCL_ALGO=Tree; other collectives take the rings of the file")
    if not rings and ring.type_intra != tree.type_intra:
        notes.append(
            f"the rings of the file close over a {ring.type_intra} path: collectives that run on rings are slow with it"
        )
    if copies == 1:
        notes.append(f"without NCCL_MAX_NCHANNELS={len(ring.channels)} NCCL runs every channel twice")
    else:
        notes.append("NCCL runs every channel of the file twice, here with a purpose")
    return notes
