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
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from blinksim.errors import InputError
from blinksim.nccl.families import FAMILIES, FAMILY_NAMES, FILE_PATH_TYPES, PORTABLE_PATH_TYPES, RING, TREE
from blinksim.textio import safe_xml
from blinksim.textio.safe_xml import Element, fault, integer, number, word

PORTABLE_CHANNELS, MOST_CHANNELS = 16, 32
"""NCCL copies every channel of a file, and has room for 32 with the copies before 2.25, for 64 since."""
_PARENTS = {"graph": ("graphs",), "channel": ("graph",), "gpu": ("channel",), "net": ("channel",)}
_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,16}")


@dataclass(frozen=True, slots=True)
class Channel:
    """GPUs by NVML number in chain (or ring) order; nets: none, or the network devices of the way in and out."""

    gpus: tuple[int, ...]
    nets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphElement:
    """One ``<graph>`` of a file, as it is written; `blinksim.nccl.files.graph_file.Graph` is what it means.

    number: its family (`FAMILY_NAMES`). channel_count: ``nchannels``, which need not be the number of channels listed.
    speed_intra, speed_inter: GB/s that NCCL's tuner counts per channel, inside a node and between nodes.
    latency_inter: us, None if the file does not say. type_intra, type_inter: the farthest path (`FILE_PATH_TYPES`).
    """

    number: int
    pattern: int
    channel_count: int
    speed_intra: float
    speed_inter: float
    type_intra: str
    type_inter: str
    same_channels: int = 0
    cross_nic: int = 0
    latency_inter: float | None = 0.0
    channels: tuple[Channel, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphFile:
    """The graphs of a file, in its order."""

    graphs: tuple[GraphElement, ...] = field(default=())

    def graph(self, number: int) -> GraphElement | None:
        """The graph that NCCL takes for `number`: the last with that id, if it has channels."""
        found = [graph for graph in self.graphs if graph.number == number]
        return found[-1] if found and found[-1].channel_count > 0 else None


def read(path: str | Path) -> GraphFile:
    """The graph file at `path`; see `read_text`. Raises `FileError` if it cannot be read."""
    return read_text(safe_xml.file_text(path), path)


def read_text(text: str, path: str | Path, *, hexadecimal: bool = True) -> GraphFile:
    """The graphs of a file: what NCCL dumps (with empty graphs for what a machine does not have), or what people write.

    hexadecimal: if ``dev="10"`` is GPU 16, as since NCCL 2.21; before it was GPU 10. `path` stands in messages.
    Raises `FileError` with the line for anything malformed.
    """
    root = safe_xml.parse(text, path, root="graphs", max_elements=65536)
    integer(path, root, "version", low=1, high=1)
    safe_xml.check_places(path, root, _PARENTS)
    return GraphFile(tuple(_graph(path, element, hexadecimal) for element in root.named("graph")))


def _graph(path: str | Path, element: Element, hexadecimal: bool) -> GraphElement:
    latency = number(path, element, "latencyinter", low=0, high=1e6, default=-0.0)
    return GraphElement(
        number=integer(path, element, "id", low=0, high=99),
        pattern=integer(path, element, "pattern", low=0, high=99),
        channel_count=integer(path, element, "nchannels", low=0, high=10_000),
        speed_intra=number(path, element, "speedintra", low=0, high=1e6),
        speed_inter=number(path, element, "speedinter", low=0, high=1e6),
        type_intra=_type(path, element, "typeintra"),
        type_inter=_type(path, element, "typeinter"),
        same_channels=integer(path, element, "samechannels", low=0, high=1),
        cross_nic=integer(path, element, "crossnic", low=0, high=2),
        latency_inter=latency if "latencyinter" in element.attributes else None,
        channels=tuple(_channel(path, channel, hexadecimal) for channel in element.named("channel")),
    )


def _type(path: str | Path, element: Element, name: str) -> str:
    value = word(path, element, name)
    if value not in FILE_PATH_TYPES:
        raise fault(path, element, f"{name}={value[:20]!r} is not a path type; known: {', '.join(FILE_PATH_TYPES)}")
    return value


def _channel(path: str | Path, element: Element, hexadecimal: bool) -> Channel:
    devices: dict[str, list[int]] = {"gpu": [], "net": []}
    for child in element.children:
        if child.tag not in devices:
            continue
        text = word(path, child, "dev")
        if not _HEX.fullmatch(text):
            raise fault(path, child, f"dev={text[:20]!r} is not a number such as 0x3")
        if not hexadecimal:
            integer(path, child, "dev", low=0, high=2**31)
        devices[child.tag].append(int(text, 16 if hexadecimal else 0))
    return Channel(tuple(devices["gpu"]), tuple(devices["net"]))


# --- writing ------------------------------------------------------------------------------------------------------


def to_text(file: GraphFile) -> str:
    """The XML of a graph file, in the form that every NCCL since 2.8 reads.

    Raises `InputError` for a path type that not all of them know.
    """
    lines = ['<graphs version="1">']
    for graph in file.graphs:
        lines += _graph_lines(graph)
    return "\n".join([*lines, "</graphs>"]) + "\n"


def _graph_lines(graph: GraphElement) -> Iterable[str]:
    for kind in (graph.type_intra, graph.type_inter):
        if kind not in PORTABLE_PATH_TYPES:
            raise InputError(f"path type {kind!r} is not known to every NCCL since 2.8, so it is not written")
    head = (
        f'  <graph id="{graph.number}" pattern="{graph.pattern}" crossnic="{graph.cross_nic}" '
        f'nchannels="{graph.channel_count}" speedintra="{_decimal(graph.speed_intra)}" '
        f'speedinter="{_decimal(graph.speed_inter)}" latencyinter="{_decimal(graph.latency_inter or 0.0)}" '
        f'typeintra="{graph.type_intra}" typeinter="{graph.type_inter}" samechannels="{graph.same_channels}"'
    )
    if not graph.channels:
        yield f"{head}/>"
        return
    yield f"{head}>"
    for channel in graph.channels:
        yield "    <channel>"
        if channel.nets:
            yield f'      <net dev="{channel.nets[0]:#x}"/>'
        yield from (f'      <gpu dev="{gpu:#x}"/>' for gpu in channel.gpus)
        if len(channel.nets) > 1:
            yield f'      <net dev="{channel.nets[1]:#x}"/>'
        yield "    </channel>"
    yield "  </graph>"


def _decimal(value: float) -> str:
    return f"{value:.10g}"


def check(file: GraphFile, gpus: Iterable[int], nodes: int = 1, *, most: int = PORTABLE_CHANNELS) -> None:
    """Raises `InputError` unless every channel of the ring and the tree graph is what NCCL needs.

    That is: all of the node's GPUs once each, as many channels as the graph says, the same number of rings and trees,
    at most `most`, and two network devices a channel exactly when there are several nodes.
    """
    wanted = sorted(gpus)
    graphs = [graph for graph in (file.graph(RING), file.graph(TREE)) if graph is not None]
    if len(graphs) < 2:
        raise InputError("a graph file needs a ring and a tree graph, or NCCL's own search sets the number of channels")
    if len({graph.channel_count for graph in graphs}) > 1:
        raise InputError("ring and tree graph have different numbers of channels; NCCL would use the smaller one")
    for graph in graphs:
        name = FAMILY_NAMES[graph.number]
        if graph.channel_count != len(graph.channels) or not 1 <= graph.channel_count <= most:
            raise InputError(f"{len(graph.channels)} {name} channels; there may be 1 to {most}, and nchannels of them")
        for position, channel in enumerate(graph.channels):
            if sorted(channel.gpus) != wanted:
                raise InputError(f"{name} channel {position} lists {channel.gpus}, not each of {tuple(wanted)} once")
            if len(channel.nets) != (2 if nodes > 1 else 0):
                raise InputError(f"{name} channel {position} has {len(channel.nets)} network devices for {nodes} nodes")


def log_lines(file: GraphFile, gpus: Iterable[int], copies: int = 1) -> list[str]:
    """What NCCL_DEBUG=INFO prints on rank 0 of one node when the file is in force.

    gpus: NVML numbers in rank order. copies: 2 if NCCL may copy the channels, 1 if NCCL_MAX_NCHANNELS forbids it.
    """
    rank = {gpu: position for position, gpu in enumerate(gpus)}
    ring, tree = file.graph(RING), file.graph(TREE)
    lines = []
    if ring:
        total = copies * len(ring.channels)
        for number in range(total):
            order = [rank[gpu] for gpu in ring.channels[number % len(ring.channels)].gpus]
            first = order.index(0)
            turned = order[first:] + order[:first]
            lines.append(f"Channel {number:02d}/{total:02d} : {' '.join(map(str, turned))}")
    if tree:
        parts = []
        for number in range(copies * len(tree.channels)):
            order = [rank[gpu] for gpu in tree.channels[number % len(tree.channels)].gpus]
            at = order.index(0)
            down, up = (order[at + 1] if at + 1 < len(order) else -1), (order[at - 1] if at else -1)
            parts.append(f"[{number}] {down}/-1/-1->0->{up}")
        lines.append(f"Trees {' '.join(parts)}")
    return lines


_GIGA = 10**9
_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Graph:
    """The channels of one algorithm family.

    pattern: one of `families.PATTERNS`. nchannels: channels before NCCL doubles them.
    bw_intra, bw_inter: bytes/s that NCCL counts for a channel inside a node and between nodes.
    type_intra, type_inter: the worst path between GPUs, and to a network port, one of `families.PATH_TYPES`.
    same_channels: True if all channels were searched as copies of the first. latency_inter: seconds.
    cross_nic: 0 if a channel enters and leaves a node by the same port.
    channels: for each channel the numbers (``dev``) of the node's GPUs in the order of the ring or chain; for NVLS the
    head comes first. nets: for each channel the numbers of the ports by which it enters and leaves; empty on one node.
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
    nets: tuple[tuple[int, int], ...] = ()

    @property
    def bandwidth(self) -> Fraction:
        """Bytes/s of all channels together, inside a node."""
        return self.nchannels * self.bw_intra

    @classmethod
    def from_file(cls, element: GraphElement) -> Graph:
        """What a ``<graph>`` of a file means.

        Speeds are the decimal numbers of the file, not the binary ones nearest to them. Channels listed beyond
        ``nchannels`` do not count.
        """
        listed = element.channels[: element.channel_count]
        return cls(
            pattern=element.pattern,
            nchannels=element.channel_count,
            bw_intra=Fraction(repr(element.speed_intra)) * _GIGA,
            bw_inter=Fraction(repr(element.speed_inter)) * _GIGA,
            type_intra=element.type_intra,
            type_inter=element.type_inter,
            same_channels=bool(element.same_channels),
            latency_inter=(element.latency_inter or 0.0) * _MICRO,
            cross_nic=element.cross_nic,
            channels=tuple(channel.gpus for channel in listed),
            nets=tuple((channel.nets[0], channel.nets[-1]) for channel in listed if channel.nets),
        )

    def to_file(self, family: int) -> GraphElement:
        """The ``<graph>`` that makes NCCL use these channels for a `family`."""
        nets: tuple[tuple[int, ...], ...] = self.nets or ((),) * len(self.channels)
        return GraphElement(
            number=family,
            pattern=self.pattern,
            channel_count=self.nchannels,
            speed_intra=float(self.bw_intra / _GIGA),
            speed_inter=float(self.bw_inter / _GIGA),
            type_intra=self.type_intra,
            type_inter=self.type_inter,
            same_channels=int(self.same_channels),
            cross_nic=self.cross_nic,
            latency_inter=self.latency_inter / _MICRO,
            channels=tuple(Channel(gpus, ports) for gpus, ports in zip(self.channels, nets, strict=True)),
        )


def graphs_of(file: GraphFile) -> dict[str, Graph]:
    """The ring, tree and NVLS channels of a graph file by family, as far as it has them."""
    found = {family: file.graph(number) for family, number in FAMILIES.items()}
    return {family: Graph.from_file(element) for family, element in found.items() if element is not None}
