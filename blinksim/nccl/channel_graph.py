"""What NCCL knows of the channels that it searched for, or that a graph file gave it.

NCCL keeps one graph per algorithm family: the number of channels, the bandwidth that it counts for one, the worst path
inside a node and to a network port, and for every channel the order of the node's GPUs. The tuner reads nothing else
(NCCL 2.28.3, graph/tuning.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """The channels of one algorithm family.

    pattern: one of `blinksim.nccl.families.PATTERNS`. nchannels: channels before NCCL doubles them.
    bw_intra, bw_inter: bytes/s that NCCL counts for a channel inside a node and between nodes.
    type_intra, type_inter: the worst path between GPUs, and to a network port, one of `PATH_TYPES`.
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
