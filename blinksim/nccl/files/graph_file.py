"""NCCL's graph files (NCCL_GRAPH_FILE, NCCL_GRAPH_DUMP_FILE), and the channels that they or its search give.

A file lists one node's GPUs: by their NVML number, in ring or chain order, between the network devices where
traffic enters and leaves. Reading is strict XML (`graph_rules` judges as NCCL does); writing keeps to what
NCCL 2.8 to 2.30 all load correctly: no prolog, blanks, double quotes, numbers in hexadecimal.

NCCL keeps one graph per algorithm family: the number of channels, the bandwidth that it counts for one, the
worst path inside a node and to a network port, and for every channel the order of the node's GPUs. The tuner
reads nothing else (NCCL 2.28.3, graph/tuning.cc).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from blinksim.errors import FileError, InputError, blamed_on
from blinksim.nccl import families
from blinksim.nccl.families import FAMILIES, FAMILY_NAMES, FILE_PATH_TYPES, PATH_TYPES, RING, TREE
from blinksim.nccl.files.graph_rules import DEFAULT_RELEASE, CrashError, LoadError, Release, load_graphs
from blinksim.textio.safe_xml import Element, check_places, fault, file_text, integer, number, parse, word

# NCCL copies every channel of a file, and has room for 32 with the copies before 2.25, for 64 since.
PORTABLE_CHANNELS, MOST_CHANNELS = 16, 32
_PARENTS = {"graph": ("graphs",), "channel": ("graph",), "gpu": ("channel",), "net": ("channel",)}
_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,16}")
_GIGA = 10**9
_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Graph:
    """The channels of one algorithm family.

    pattern: one of `families.Pattern`. nchannels: channels before NCCL doubles them; a file may list another
    number. bw_intra, bw_inter: bytes/s that NCCL counts for a channel inside a node and between nodes.
    type_intra, type_inter: the worst path between GPUs, and to a network port, one of `families.PATH_TYPES`.
    same_channels: True if all channels were searched as copies of the first. latency_inter: seconds.
    cross_nic: 0 if a channel enters and leaves a node by the same port. channels: for each channel the
    numbers (``dev``) of the node's GPUs in the order of the ring or chain; for NVLS the head comes first.
    nets: for each channel the numbers of the ports by which it enters and leaves; empty on one node. wider:
    how many times as much the links would let each of the first one, two, ... channels carry, all of these at
    once; not in files. Where the network holds channels back, beside all that were found, as links inside
    have room.
    """

    pattern: int
    nchannels: int
    bw_intra: Fraction
    bw_inter: Fraction
    type_intra: str
    type_inter: str
    same_channels: bool
    latency_inter: float = 0.0
    cross_nic: int = 0
    channels: tuple[tuple[int, ...], ...] = ()
    nets: tuple[tuple[int, ...], ...] = ()
    wider: tuple[Fraction, ...] = field(default=(Fraction(1),) * 2 * MOST_CHANNELS, compare=False)

    @property
    def bandwidth(self) -> Fraction:
        """Bytes/s of all channels together, inside a node."""
        return self.nchannels * self.bw_intra

    def widened(self, inside: Fraction, outside: Fraction) -> Graph:
        """The same channels with so many times the bandwidth."""
        return replace(self, bw_intra=self.bw_intra * inside, bw_inter=self.bw_inter * outside)

    @property
    def paths(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The GPUs and the ports of each channel."""
        return zip(self.channels, self.nets or ((),) * len(self.channels), strict=True)


def agreed(graphs: Sequence[Graph], shown: int = 0) -> Graph:
    """What ranks make of the channels that each node has found: the least of everything (NCCL 2.28.3, init.cc).

    shown: the node whose channels are listed.
    """
    first = graphs[shown]
    least, most = ("nchannels", "bw_intra", "bw_inter", "same_channels"), ("pattern", "latency_inter", "cross_nic")
    worst: dict[str, Any] = {key: min(getattr(graph, key) for graph in graphs) for key in least}
    worst |= {key: max(getattr(graph, key) for graph in graphs) for key in most}
    for key in ("type_intra", "type_inter"):
        worst[key] = max((getattr(graph, key) for graph in graphs), key=PATH_TYPES.index)
    first = replace(first, **worst)
    widths = [[graph.bw_intra * room for room in graph.wider[: first.nchannels]] for graph in graphs]
    wider = tuple(min(every) / first.bw_intra for every in zip(*widths, strict=True))
    channels, nets = (listed[: first.nchannels] for listed in (first.channels, first.nets))
    return replace(first, channels=channels, nets=nets, wider=wider)


@dataclass(frozen=True, slots=True)
class GraphFile:
    """The graphs of a file with the number of their family (`FAMILY_NAMES`), in its order."""

    graphs: tuple[tuple[int, Graph], ...] = ()

    def graph(self, number: int) -> Graph | None:
        """The graph that NCCL takes for `number`: the last with that id, if it has channels."""
        graph = dict(self.graphs).get(number)
        return graph if graph is not None and graph.nchannels > 0 else None


def read(path: str | Path) -> GraphFile:
    """The graph file at `path`; see `read_text`. Raises `FileError` if it cannot be read, or NCCL cannot load it."""
    text = file_text(path)
    found = read_text(text, path)
    with blamed_on(lambda why: FileError(path, f"NCCL cannot load the file: {why}"), (LoadError, CrashError)):
        load_graphs(text, Release.parse(DEFAULT_RELEASE))
    return found


def read_text(text: str, path: str | Path) -> GraphFile:
    """The graphs of a file: what NCCL dumps (with empty graphs for what a machine does not have), or what people write.

    ``dev="10"`` is GPU 16, as since NCCL 2.21. `path` stands in messages. Raises `FileError` with the line
    for anything malformed.
    """
    root = parse(text, path, root="graphs", max_elements=65536)
    integer(path, root, "version", low=1, high=1)
    check_places(path, root, _PARENTS)
    graphs = []
    for element in root.named("graph"):
        latency = number(path, element, "latencyinter", low=0, high=1e6, default=-0.0)
        family, pattern = (integer(path, element, name, low=0, high=99) for name in ("id", "pattern"))
        nchannels = integer(path, element, "nchannels", low=0, high=10_000)
        # Speeds are the decimal numbers of the file, not the binary ones nearest to them.
        speeds = (number(path, element, name, low=0, high=1e6) for name in ("speedintra", "speedinter"))
        inside, between = (Fraction(repr(speed)) * _GIGA for speed in speeds)
        types = []
        for name in ("typeintra", "typeinter"):
            types.append(word(path, element, name))
            if types[-1] not in FILE_PATH_TYPES:
                known = ", ".join(FILE_PATH_TYPES)
                raise fault(path, element, f"{name}={types[-1][:20]!r} is not a path type; known: {known}")
        same = integer(path, element, "samechannels", low=0, high=1)
        cross = integer(path, element, "crossnic", low=0, high=2)
        channels, nets = [], []
        for channel in element.named("channel"):
            devices: dict[str, list[int]] = {"gpu": [], "net": []}
            for child in channel.children:
                if child.tag not in devices:
                    continue
                dev = word(path, child, "dev")
                if not _HEX.fullmatch(dev):
                    raise fault(path, child, f"dev={dev[:20]!r} is not a number such as 0x3")
                devices[child.tag].append(int(dev, 16))
            channels.append(tuple(devices["gpu"]))
            nets.append(tuple(devices["net"]))
        listed, ports = tuple(channels), tuple(nets) if any(nets) else ()
        graph = Graph(pattern, nchannels, inside, between, types[0], types[1], bool(same), channels=listed, nets=ports)
        graphs.append((family, replace(graph, latency_inter=latency * _MICRO, cross_nic=cross)))
    return GraphFile(tuple(graphs))


def to_text(file: GraphFile) -> str:
    """The XML of a graph file, in the form that every NCCL since 2.8 reads.

    Raises `InputError` for a path type that not all of them know.
    """
    graphs = list[Element]()
    for family, graph in file.graphs:
        for kind in (graph.type_intra, graph.type_inter):
            if kind not in families.PORTABLE_PATH_TYPES:
                raise InputError(f"path type {kind!r} is not known to every NCCL since 2.8, so it is not written")
        facts = {"id": f"{family}", "pattern": f"{graph.pattern}", "crossnic": f"{graph.cross_nic}"}
        facts |= {"nchannels": f"{graph.nchannels}", "speedintra": f"{float(graph.bw_intra / _GIGA):.10g}"}
        facts |= {"speedinter": f"{float(graph.bw_inter / _GIGA):.10g}"}
        facts |= {"latencyinter": f"{graph.latency_inter / _MICRO:.10g}", "typeintra": graph.type_intra}
        facts |= {"typeinter": graph.type_inter, "samechannels": f"{int(graph.same_channels)}"}
        channels = list[Element]()
        for gpus, nets in graph.paths:
            inside = [("net", net) for net in nets[:1]] + [("gpu", gpu) for gpu in gpus]
            inside += [("net", net) for net in nets[1:2]]
            devices = tuple(Element(tag, {"dev": f"{dev:#x}"}) for tag, dev in inside)
            channels.append(Element("channel", {}, devices))
        graphs.append(Element("graph", facts, tuple(channels)))
    return "\n".join(families.lines(Element("graphs", {"version": "1"}, tuple(graphs)))) + "\n"


def check(file: GraphFile, gpus: Iterable[int], nodes: int = 1, *, most: int = PORTABLE_CHANNELS) -> None:
    """Raises `InputError` unless every channel of the ring and the tree graph is what NCCL needs.

    That is: all of the node's GPUs once each, as many channels as the graph says, the same number of rings
    and trees, at most `most`, and two network devices a channel exactly when there are several nodes.
    """
    wanted = sorted(gpus)
    graphs = [(FAMILY_NAMES[family], graph) for family in (RING, TREE) if (graph := file.graph(family)) is not None]
    if len(graphs) < 2:
        raise InputError("a graph file needs a ring and a tree graph, or NCCL's own search sets the number of channels")
    if len({graph.nchannels for _, graph in graphs}) > 1:
        raise InputError("ring and tree graph have different numbers of channels; NCCL would use the smaller one")
    for name, graph in graphs:
        if graph.nchannels != len(graph.channels) or not 1 <= graph.nchannels <= most:
            raise InputError(f"{len(graph.channels)} {name} channels; there may be 1 to {most}, and nchannels of them")
        for position, (order, nets) in enumerate(graph.paths):
            if sorted(order) != wanted:
                raise InputError(f"{name} channel {position} lists {order}, not each of {tuple(wanted)} once")
            if len(nets) != (2 if nodes > 1 else 0):
                raise InputError(f"{name} channel {position} has {len(nets)} network devices for {nodes} nodes")


def log_lines(file: GraphFile, gpus: Iterable[int], copies: int = 1) -> list[str]:
    """What NCCL_DEBUG=INFO prints on rank 0 of one node when the file is in force.

    gpus: NVML numbers in rank order. copies: 2 if NCCL may copy the channels, 1 if NCCL_MAX_NCHANNELS forbids
    it.
    """
    rank = {gpu: position for position, gpu in enumerate(gpus)}
    ring, tree = file.graph(RING), file.graph(TREE)
    lines = []
    if ring:
        total = copies * len(ring.channels)
        for number in range(total):
            order = [rank[gpu] for gpu in ring.channels[number % len(ring.channels)]]
            first = order.index(0)
            rotated = order[first:] + order[:first]
            lines.append(f"Channel {number:02d}/{total:02d} : {' '.join(map(str, rotated))}")
    if tree:
        parts = []
        for number in range(copies * len(tree.channels)):
            order = [rank[gpu] for gpu in tree.channels[number % len(tree.channels)]]
            at = order.index(0)
            down, up = (order[at + 1] if at + 1 < len(order) else -1), (order[at - 1] if at else -1)
            parts.append(f"[{number}] {down}/-1/-1->0->{up}")
        lines.append(f"Trees {' '.join(parts)}")
    return lines


def graphs_of(file: GraphFile) -> dict[str, Graph]:
    """The ring, tree and NVLS channels of a graph file by family, as far as it has them.

    Channels listed beyond ``nchannels`` do not count, and by a port alone a channel enters and leaves.
    """
    chosen = {}
    for family, own_id in FAMILIES.items():
        if (graph := file.graph(own_id)) is not None:
            nets = tuple((ports[0], ports[-1]) for ports in graph.nets[: graph.nchannels] if ports)
            chosen[family] = replace(graph, channels=graph.channels[: graph.nchannels], nets=nets)
    return chosen
