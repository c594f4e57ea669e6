"""What NCCL knows of the channels that it searched for, or that a graph file gave it.

NCCL keeps one graph per algorithm family: the number of channels, the bandwidth that it counts for one, the worst path
inside a node and to a network port, and for every channel the order of the node's GPUs. The tuner reads nothing else
(NCCL 2.28.3, graph/tuning.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

PATH_TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Kinds of paths, nearest first: itself, NVLink, NVLink through one GPU, GPU to CPU by a chip link, one PCIe switch,
several, chip link and then PCIe, NVLink to a GPU beside the port, through a CPU, between CPUs, network, none."""
LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET, DIS = range(len(PATH_TYPES))

BALANCED_TREE, SPLIT_TREE, TREE, RING, NVLS, COLLNET_DIRECT = range(1, 7)
"""Patterns, numbered as in NCCL's graph files."""
PATTERNS = {
    BALANCED_TREE: "balanced tree",
    SPLIT_TREE: "split tree",
    TREE: "tree",
    RING: "ring",
    NVLS: "NVLS",
    COLLNET_DIRECT: "CollNet direct",
}


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """The channels of one algorithm family.

    pattern: one of `PATTERNS`. nchannels: channels before NCCL doubles them. bw_intra, bw_inter: bytes/s that NCCL
    counts for a channel inside a node and between nodes. type_intra, type_inter: the worst path between GPUs, and to a
    network port, one of `PATH_TYPES`. latency_inter: seconds. same_channels: whether all channels were searched as
    copies of the first. cross_nic: 0 if a channel enters and leaves a node by the same port. channels: for each
    channel the numbers (``dev``) of the node's GPUs in the order of the ring or chain; for NVLS the head comes first.
    nets: for each channel the numbers of the ports by which it enters and leaves; empty on one node.
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
