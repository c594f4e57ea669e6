"""A schedule of chains or rings as a graph file for stock NCCL, on one node or on several with NICs.

A packing of equal chains brings the partition bound to NCCL's tree allreduce wherever chains reach it: NCCL runs every
channel's chain up and down and splits the data evenly. Both the ring and the tree graph are written with the same
number of channels, since NCCL uses the smaller of the two, and would search for a missing one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinksim.errors import InfeasibleError
from blinksim.nccl.export.devices import communicator, has_nvswitch, number
from blinksim.nccl.export.graph_schedule import as_run
from blinksim.nccl.export.line_graphs import BLOCK_RATE, graph_file_of, thinned
from blinksim.nccl.export.lines import lines, repeated
from blinksim.nccl.export.node_lines import chains_on_nodes, ring_on_nodes
from blinksim.nccl.families import RING, TREE
from blinksim.nccl.files.graph_file import (
    MOST_CHANNELS,
    PORTABLE_CHANNELS,
    Channel,
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
from blinksim.textio.text_table import count
from blinksim.units import exact_GBps

RELEASES = ("2.28.3", "2.30.7")
CAUTION = (
    "for experiments: NCCL_GRAPH_FILE binds every communicator of the process, those of libraries included; one "
    "with other GPUs fails to start, or hangs. Set it for one command; never in a profile or an nccl.conf"
)


@dataclass(frozen=True, slots=True)
class GraphExport:
    """A graph file and how to use it.

    rate: algbw in bytes/s that the loads of what NCCL runs allow, None on several nodes.
    environment: variables by name, NCCL_GRAPH_FILE aside. notes: what the user should know.
    log: lines of NCCL_DEBUG=INFO on rank 0 that prove the file to be in force.
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
    rings, channels = _channels(schedule, comm.nodes, most)
    if comm.nodes == 1:
        channels = thinned(topology, channels, most)
    file = graph_file_of(topology, channels, comm.nodes)
    check(file, comm.gpus, comm.nodes, most=most)
    algorithm = "ring" if rings else "tree"
    used = file.graph(RING if rings else TREE)
    assert used is not None
    # NCCL copies every channel unless forbidden; where channels are too few for their load, it should.
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


def _channels(schedule: Schedule, nodes: int, most: int) -> tuple[bool, list[Channel]]:
    """True if NCCL runs the schedule on rings, else on trees; and the channels of a node."""
    topology = schedule.topology
    if nodes > 1 and schedule.form == "forest" and schedule.collective.name == "allreduce":
        return False, chains_on_nodes(schedule, most)
    found = lines(schedule)
    members = set(topology.members)
    for line in found:
        foreign = [device for device in line.devices if device not in members]
        if foreign:
            raise InfeasibleError(
                f"{line.words} passes {', '.join(foreign)}, which is not in the communicator, and NCCL's graph files "
                "list exactly its GPUs. Take the format nccl-graph-set, which makes such a GPU a helper of its own "
                "communicator, or build without relays"
            )
    rings = found[0].ring or schedule.collective.rooted
    if nodes > 1:
        return rings, [ring_on_nodes(topology, line) for line in repeated(found, most)]
    numbers = {name: number(topology.device(name)) for name in topology.members}
    return rings, [Channel(tuple(numbers[name] for name in line.devices)) for line in repeated(found, most)]


def export(schedule: Schedule, channels: int | None = None) -> Exported:
    """`graph_export`, judged by the rules of two NCCL releases; see `exports.Format.export`."""
    most = most_channels(channels, PORTABLE_CHANNELS, MOST_CHANNELS, "NCCL copies each, and has 64")
    found = graph_export(schedule, most)
    text, comm = to_text(found.file), communicator(schedule.topology)
    judged = [judge(text, comm, Release.parse(release)) for release in RELEASES]
    if any(judgement.verdict != "used" for judgement in judged):
        raise InfeasibleError(next(j.reason for j in judged if j.verdict != "used"))
    listed = {graph.number: graph for graph in found.file.graphs}[RING]
    nodes = f" on each of {comm.nodes} nodes" if comm.nodes > 1 else ""
    kind = "ring" if found.algorithm == "ring" else "chain"
    facts = [f"the rules of NCCL {' and '.join(RELEASES)} accept it as it is written"]
    if found.rate is not None:
        facts.append(f"as NCCL runs it, the loads allow {exact_GBps(found.rate)} GB/s algbw")
    return Exported(
        files={"": text},
        summary=f"{count(listed.channel_count, f'{kind} channel')} over {len(comm.gpus)} GPUs{nodes}, "
        "for NCCL 2.8 and later",
        facts=tuple(facts),
        environment={"NCCL_GRAPH_FILE": "{file}", **found.environment},
        proof=found.log,
        notes=(*found.notes, *dict.fromkeys(remark for judgement in judged for remark in judgement.accidents)),
        caution=CAUTION,
    )


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
        notes.append("NCCL runs every channel of the file twice, here on purpose")
    return notes
