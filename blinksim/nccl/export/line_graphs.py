"""The ring and the tree graph of a node's channels: what each carries, and over which kinds of paths it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil

from blinksim.nccl.channel_graph import Graph
from blinksim.nccl.export.devices import farthest, number, path_type
from blinksim.nccl.export.node_lines import network_speed, network_type
from blinksim.nccl.families import PATTERN_BALANCED_TREE, PATTERN_RING, PATTERN_TREE, RING, TREE
from blinksim.nccl.files.graph_file import Channel, GraphFile
from blinksim.topology.graph import Topology

BLOCK_RATE = 25 * 10**9
"""Bytes/s of one channel: a thread block moves 24 to 25 GB/s of an allreduce (measured on 4 x H200)."""
_UNLIMITED = Fraction(10**10)
"""Bytes/s that are written where no link limits a channel."""

Hop = tuple[int, int]


def graph_file_of(topology: Topology, channels: Sequence[Channel], nodes: int) -> GraphFile:
    """The graph file that makes NCCL use these channels for rings and for trees on each of some nodes."""
    routes = _routes(topology, channels)
    graphs = (channel_graph(topology, channels, nodes, family, routes) for family in (RING, TREE))
    return GraphFile(tuple(graph.to_file(family) for family, graph in zip((RING, TREE), graphs, strict=True)))


def thinned(topology: Topology, channels: list[Channel], most: int) -> list[Channel]:
    """Repeats every channel until none carries more than a thread block moves, or there is no more room."""
    tree = channel_graph(topology, channels, 1, TREE, _routes(topology, channels))
    times = min(most // len(channels), ceil(tree.bw_intra / BLOCK_RATE))
    return [channel for channel in channels for _ in range(max(1, times))]


def channel_graph(
    topology: Topology, channels: Sequence[Channel], nodes: int, family: int, routes: dict[Hop, Sequence[int]]
) -> Graph:
    """The channels as one family uses them; routes: links from GPU to GPU, by number."""
    hops = [_hops(channel, closed=family == RING and nodes == 1) for channel in channels]
    # Trees run up and down; a ring of two GPUs returns over the same link.
    both_ways = family == TREE or (len(channels[0].gpus) == 2 and nodes == 1)
    uses = Counter(
        link
        for pairs in hops
        for a, b in pairs
        for link in (*routes[a, b], *(routes.get((b, a), ()) if both_ways else ()))
    )
    intra = min((topology.links[link].bandwidth / times for link, times in uses.items()), default=_UNLIMITED)
    tree_pattern = PATTERN_BALANCED_TREE if nodes == 1 else PATTERN_TREE
    return Graph(
        pattern=PATTERN_RING if family == RING else tree_pattern,
        nchannels=len(channels),
        bw_intra=intra,
        bw_inter=min(intra, network_speed(topology, channels)) if nodes > 1 else intra,
        type_intra=farthest((path_type(topology, routes[hop]) for pairs in hops for hop in pairs), "LOC"),
        type_inter=network_type(topology, channels) if nodes > 1 else "PIX",
        same_channels=len(set(channels)) == 1,
        cross_nic=int(any(len(set(channel.nets)) > 1 for channel in channels)),
        channels=tuple(channel.gpus for channel in channels),
        nets=tuple((channel.nets[0], channel.nets[1]) for channel in channels if channel.nets),
    )


def _hops(channel: Channel, *, closed: bool) -> list[Hop]:
    """From GPU to GPU along a channel. A ring closes on one node only; between nodes it goes on over the network."""
    closing = [(channel.gpus[-1], channel.gpus[0])] if closed and len(channel.gpus) > 2 else []
    return [*pairwise(channel.gpus), *closing]


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
