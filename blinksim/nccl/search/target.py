"""What one attempt of the search looks for, and the best channels found so far."""

from __future__ import annotations

from dataclasses import dataclass

from blinksim.nccl.families import PATTERN_BALANCED_TREE, PATTERN_NVLS, PATTERN_SPLIT_TREE, PATTERN_TREE


@dataclass(frozen=True, slots=True)
class Target:
    """The demands of one attempt; the search relaxes them one after another.

    type_intra, type_inter: the worst kinds of paths allowed, between GPUs and to a port.
    bw_intra, bw_inter: of a channel, in `system.GRAIN`. same: True if all channels must be copies of the first.
    cross: 2 if two channels may exchange their ports, else 0. least, most: number of channels.
    hops: where the count of links crossed starts; NCCL's second pass goes on from that of the first.
    """

    pattern: int
    type_intra: int
    type_inter: int
    bw_intra: int
    bw_inter: int
    same: bool
    cross: int
    least: int
    most: int
    hops: int = 0

    @property
    def is_tree(self) -> bool:
        return self.pattern in (PATTERN_BALANCED_TREE, PATTERN_SPLIT_TREE, PATTERN_TREE)


@dataclass(frozen=True, slots=True)
class Found:
    """The channels that meet a target; at first none.

    channels: GPUs by index, for each channel. nets: ports by index, by which each channel enters and leaves.
    hops: links crossed. latency: of the last port, seconds.
    """

    target: Target
    channels: tuple[tuple[int, ...], ...] = ()
    nets: tuple[tuple[int, int], ...] = ()
    hops: int = 0
    latency: float = 0.0

    @property
    def nchannels(self) -> int:
        return len(self.channels)

    def beaten_by(self, target: Target, nchannels: int, hops: int, gpus: int) -> bool:
        """True if `nchannels` channels that meet `target`, over `hops` links, are worth more than these."""
        if nchannels < target.least:
            return False
        mine = self.target
        if target.pattern == PATTERN_NVLS:
            more = self.nchannels < nchannels <= gpus
            return more or nchannels * target.bw_inter > self.nchannels * mine.bw_inter
        gain = nchannels * target.bw_intra - self.nchannels * mine.bw_intra
        if gain:
            return gain > 0
        return target.pattern == mine.pattern and target.cross == mine.cross and hops < self.hops
