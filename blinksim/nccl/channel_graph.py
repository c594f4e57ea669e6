"""The channels of NCCL, found by its search or read from a graph file.

NCCL keeps one graph per algorithm family: the number of channels, the bandwidth that it counts for one, the worst path
inside a node and to a network port, and for every channel the order of the node's GPUs. The tuner reads nothing else
(NCCL 2.28.3, graph/tuning.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinksim.nccl.families import FAMILIES
from blinksim.nccl.files.graph_file import Channel, GraphElement, GraphFile

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
