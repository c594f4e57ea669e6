"""NCCL's own model of time: latency plus bytes over bandwidth, for every algorithm and protocol.

NCCL chooses, for every collective, the algorithm and protocol of least predicted time. Its latencies and
limits are constants by version (``models/nccl-tuner-<version>.yaml``); bandwidths come from the channels that
the search found (NCCL 2.28.3, graph/tuning.cc).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

from blinksim import data_files
from blinksim.errors import InfeasibleError, unknown
from blinksim.nccl.families import NVB, PATH_TYPES, PXB, PXN, Pattern
from blinksim.nccl.files.graph_file import Graph

DEFAULT_VERSION = "2.28.3"
PROTOCOLS = ("LL", "LL128", "Simple")
_PREFIX = "nccl-tuner-"


@dataclass(frozen=True, slots=True)
class Generation:
    """Limits by GPU generation in GB/s; tuples are for 1, 2, and 3 or more nodes."""

    name: str
    sm: int
    ll_most: tuple[float, ...]
    ll128_ring_channel: tuple[float, ...]
    ll128_tree_channel: tuple[float, ...]
    tree_channel: tuple[float, ...]
    nvls_tree_channel: tuple[float, ...]
    nvls_efficiency: float


@dataclass(frozen=True)
class Constants:
    """One version's figures, as its file explains them; times in us, bandwidths in GB/s.

    channel_bandwidths, any_port_below: what the search tries, in bytes/s; see `Rules` of `search_passes`.
    """

    version: str
    base_latency: Mapping[str, tuple[float, ...]]
    hop_latency: Mapping[str, Mapping[str, tuple[float, ...]]]
    net_overhead: Mapping[str, float]
    generations: tuple[Generation, ...]
    ll_most_by_cpu: Mapping[str, str]
    tree_correction: tuple[tuple[float, ...], ...]
    nvls_tree_correction_from: int
    nvls_least_gpus: int
    channel_bandwidths: tuple[tuple[int, tuple[Fraction, ...], tuple[Fraction, ...]], ...]
    any_port_below: int

    def generation(self, sm: int) -> Generation:
        """The row for GPUs of compute capability `sm` (90 for 9.0) or later."""
        return next(row for row in self.generations if sm >= row.sm)

    def ll_most(self, sm: int, nnodes: int, vendor: str) -> float:
        """GB/s that the LL protocol reaches at most."""
        row = self.generation(sm)
        if nnodes > 1:
            name = self.ll_most_by_cpu.get(vendor, self.ll_most_by_cpu["default"])
            row = next(generation for generation in self.generations if generation.name == name)
        return row.ll_most[min(nnodes, 3) - 1]


def versions() -> list[str]:
    """The versions of NCCL whose figures lie in models/, oldest first."""
    names = [path.stem.removeprefix(_PREFIX) for path in data_files.files("models", f"{_PREFIX}*.yaml")]
    return sorted(names, key=lambda version: [int(part) for part in version.split(".")])


def nearest(version: str) -> str:
    """The version with figures that stands for `version`: itself, else one that differs in the patch only, else the
    default."""
    known = versions()
    if version in known:
        return version
    branch = version.split(".")[:2]
    return next((name for name in known if name.split(".")[:2] == branch), DEFAULT_VERSION)


@cache
def load(version: str = DEFAULT_VERSION) -> Constants:
    """The figures of NCCL `version`; raises `InputError` with the known ones for others."""
    if version not in versions():
        raise unknown("version of NCCL", version, versions())
    from blinksim.textio import yaml_nodes

    path = data_files.folder("models") / f"{_PREFIX}{version}.yaml"
    table: dict[str, Any] = yaml_nodes.plain(path, "table of NCCL's figures")

    def frozen(value: Any) -> Any:
        """Lists as tuples of floats, at any depth."""
        if isinstance(value, dict):
            return {key: frozen(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return tuple(frozen(inner) if isinstance(inner, list | dict) else float(inner) for inner in value)
        return value

    def rates(gigabytes: list[float]) -> tuple[Fraction, ...]:
        return tuple(Fraction(str(rate)) * 10**9 for rate in gigabytes)

    given = {field.name: frozen(table[field.name]) for field in fields(Constants)}
    given["generations"] = tuple(Generation(**row) for row in given["generations"])
    given["channel_bandwidths"] = tuple(
        (row["sm"], rates(row["one_node"]), rates(row["several_nodes"])) for row in table["channel_bandwidths"]
    )
    return Constants(**given)


COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""In the order in which NCCL looks at them: of equal times the first wins."""
ALGORITHMS_OF = {
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "allgather": ("ring", "nvls", "pat"),
    "reducescatter": ("ring", "nvls", "pat"),
    "allreduce": ("tree", "ring", "nvls", "nvls_tree"),
}
_LL, _LL128, _SIMPLE = range(3)


@dataclass(frozen=True, slots=True)
class Job:
    """What the tuner knows besides the graphs.

    ranks, nnodes: of the communicator. vendor, arch: of the CPUs. multicast: True if NVLS works.
    sm: lowest compute capability times ten. alike: True if all GPUs share it.
    """

    ranks: int
    nnodes: int
    sm: int
    alike: bool = True
    vendor: str = "GenuineIntel"
    arch: str = "x86_64"
    multicast: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of the table: latency in us, bandwidth (size over time, without latency) in GB/s."""

    collective: str
    algorithm: str
    protocol: str
    latency_us: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Timing:
    """The time in seconds that NCCL predicts for one algorithm and protocol at a size; algbw in bytes/s."""

    algorithm: str
    protocol: str
    time_s: float
    latency_s: float
    algbw: float


class Tuner:
    """What NCCL of some figures expects of a job.

    graphs: ``ring``, ``tree`` and where multicast works ``nvls``.
    """

    def __init__(self, job: Job, graphs: Mapping[str, Graph], constants: Constants) -> None:
        self.job, self.graphs, self.constants = job, graphs, constants
        self.column = min(job.nnodes, 3) - 1
        self.generation = constants.generation(job.sm)
        # All ranks use as many channels for rings as for trees; NCCL doubles them later.
        self.channels = min(graphs["ring"].nchannels, graphs["tree"].nchannels)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Latency and bandwidth of everything that NCCL may choose.

        What is not in the table NCCL does not use: CollNet (off by default), NVLS without multicast, LL128 over far
        paths, PAT with several GPUs per node.
        """
        return tuple(
            Row(collective, algorithm, protocol, self.latency(collective, algorithm, number), bandwidth)
            for collective in COLLECTIVES
            for algorithm in ALGORITHMS
            for number, protocol in enumerate(PROTOCOLS)
            if algorithm in ALGORITHMS_OF[collective] and self.enabled(algorithm, number)
            if (bandwidth := self.bandwidth(collective, algorithm, number)) > 0
        )

    def times(self, collective: str, size: int) -> list[Timing]:
        """The predicted times of one collective of `size` bytes, least first; of equal ones NCCL takes the first.

        Raises `InfeasibleError` for a collective that the tuner does not time.
        """
        if collective not in COLLECTIVES:
            raise InfeasibleError(
                f"NCCL's tuner does not time {collective}, which NCCL runs as plain sends; it times "
                f"{', '.join(COLLECTIVES)}. advise says what the sends take"
            )
        job, timings = self.job, []
        start, correction = self.constants.nvls_tree_correction_from, self.constants.tree_correction
        for row in (row for row in self.rows if row.collective == collective):
            latency, bandwidth = row.latency_us, row.bandwidth
            protocol = PROTOCOLS.index(row.protocol)
            late = row.algorithm == "nvls_tree" and 0 < start <= job.sm and job.arch == "x86_64"
            # The first entry of the correction is that of 64 B.
            step = max(size >> 6, 1).bit_length() - 1
            corrected = collective == "allreduce" and (row.algorithm == "tree" or late)
            if corrected and step < len(correction[protocol]):
                bandwidth *= correction[protocol][step]
            # Large messages of the ring over the network start more slowly than the table says.
            slow = row.algorithm == "ring" and row.protocol == "Simple" and collective == "allreduce"
            if slow and job.nnodes > 1 and size // (self.channels * job.ranks) >= 64:
                latency *= 1.9 if job.sm < 80 else 1.4
            time = latency + size / (1000 * bandwidth)
            timings.append(Timing(row.algorithm, row.protocol, time * 1e-6, latency * 1e-6, bandwidth * 1e9))
        return sorted(timings, key=lambda timing: timing.time_s)

    def graph(self, algorithm: str) -> Graph:
        return self.graphs[{"ring": "ring", "nvls": "nvls", "nvls_tree": "nvls"}.get(algorithm, "tree")]

    def enabled(self, algorithm: str, protocol: int) -> bool:
        job = self.job
        if algorithm in ("nvls", "nvls_tree"):
            if not job.multicast or "nvls" not in self.graphs or protocol != _SIMPLE:
                return False
            return algorithm == "nvls" or job.nnodes > 1
        if algorithm == "pat":
            return protocol == _SIMPLE and job.ranks == job.nnodes and job.sm >= 60
        if protocol != _LL128:
            return True
        graph = self.graph(algorithm)
        farthest = PXN if job.sm >= 90 else PXB
        near = PATH_TYPES.index(graph.type_inter) <= farthest and PATH_TYPES.index(graph.type_intra) <= NVB
        return near and job.alike and job.sm >= 70

    # --- bandwidth ------------------------------------------------------------------------------------------------

    def bandwidth(self, collective: str, algorithm: str, protocol: int) -> float:
        """Size over time in GB/s."""
        job, graph = self.job, self.graph(algorithm)
        steps = {"allreduce": 2 * (job.ranks - 1), "broadcast": job.ranks, "reduce": job.ranks}
        if algorithm in ("nvls", "nvls_tree"):
            bus = self.multicast_bus(collective, algorithm)
        else:
            channel = float(graph.bw_intra if job.nnodes <= 2 else graph.bw_inter) / 1e9
            bus = self.bus(collective, algorithm, protocol, self.channels * channel)
        if algorithm in ("ring", "nvls", "nvls_tree"):
            if algorithm != "ring" and collective != "allreduce":
                return bus
            return bus * job.ranks / steps.get(collective, job.ranks - 1)
        return bus if collective in ("allgather", "reducescatter") else 0.5 * bus

    def bus(self, collective: str, algorithm: str, protocol: int, bus: float) -> float:
        job, row, channels = self.job, self.generation, self.channels
        ll_most = self.constants.ll_most(job.sm, job.nnodes, job.vendor)
        if algorithm == "ring":
            if protocol == _LL:
                return min(ll_most, 0.5 * bus)
            if protocol == _LL128:
                return min(0.92 * bus, channels * row.ll128_ring_channel[self.column])
            return bus
        if algorithm == "pat":
            return 0.75 * bus
        bus = min(0.92 * bus, channels * row.tree_channel[self.column])
        if protocol == _LL:
            bus = min(bus / 3.8, ll_most)
        if protocol == _LL128:
            packed = 7 / 9 if job.nnodes == 1 else 120 / 128
            bus = min(packed * bus, channels * row.ll128_tree_channel[self.column])
        return 0.85 * bus if self.graphs["tree"].pattern == Pattern.TREE else bus

    def multicast_bus(self, collective: str, algorithm: str) -> float:
        job, graph = self.job, self.graphs["nvls"]
        if graph.nchannels < 2 or (collective != "allreduce" and job.nnodes > 1):
            return 0.0
        if algorithm == "nvls" and job.nnodes > 1:
            return 0.0
        count, efficiency = graph.nchannels, self.generation.nvls_efficiency
        per_node = job.ranks / job.nnodes
        share = 2.0 if collective == "allreduce" else (per_node - 1) / per_node
        intra = float(graph.bw_intra) / 1e9 * efficiency * (count - 1) / count * share
        inter = float(graph.bw_inter) / 1e9 * (2 if job.nnodes <= 2 and algorithm == "nvls_tree" else 1)
        channel = min(intra, inter)
        if algorithm == "nvls_tree":
            channel = min(channel, self.generation.nvls_tree_channel[self.column])
        return count * channel

    # --- latency --------------------------------------------------------------------------------------------------

    def latency(self, collective: str, algorithm: str, protocol: int) -> float:
        """Microseconds."""
        job, graph, hops = self.job, self.graph(algorithm), self.constants.hop_latency
        over = "nvlink" if graph.type_intra == "NVL" else "pcie"
        intra = hops[over][algorithm][protocol]
        as_tree = job.ranks == job.nnodes and algorithm in ("tree", "ring")
        inter = hops["net"]["tree" if as_tree else algorithm][protocol] + graph.latency_inter * 1e6
        if protocol == _SIMPLE:
            inter += graph.latency_inter * 1e6
        base = self.constants.base_latency[algorithm][protocol]
        levels = int(math.log2(job.nnodes))
        local = job.ranks // job.nnodes - 1
        if algorithm == "tree":
            return base + 2 * (local * intra + levels * inter)
        if algorithm == "nvls":
            return intra + (inter if job.nnodes > 1 else 0)
        if algorithm == "nvls_tree":
            return intra + 2 * levels * inter
        if algorithm == "pat":
            return base + levels * inter / 3.5 + 2.8 * job.ranks
        return base + self.ring_steps(collective, protocol, over, intra, inter)

    def ring_steps(self, collective: str, protocol: int, over: str, intra: float, inter: float) -> float:
        job = self.job
        if collective in ("broadcast", "reduce"):
            same = self.graphs["ring"].same_channels
            kind = "net" if job.nnodes > 1 else over
            column = "tree" if protocol == _SIMPLE and not same else "ring"
            hop = self.constants.hop_latency[kind][column][protocol]
            return hop if same else job.ranks * hop
        rounds = 2 if collective == "allreduce" else 1
        steps = rounds * (job.ranks - 1)
        if job.nnodes == 1:
            return steps * intra
        overhead = self.constants.net_overhead.get(job.vendor, self.constants.net_overhead["default"])
        intra = max(intra, overhead * (3 if protocol == _SIMPLE else 1))
        across = rounds * (job.nnodes - 1)
        return (steps - across) * intra + across * inter
