"""NCCL's own model of time: latency plus bytes over bandwidth, for every algorithm and protocol.

NCCL chooses, for every collective, the algorithm and protocol of least predicted time. Its latencies and
limits are constants by version (``models/nccl-tuner-<version>.yaml``); bandwidths come from the channels that
the search found (NCCL 2.28.3, graph/tuning.cc).

The plan for a machine has the channels that NCCL finds and the table by which it chooses. The order is NCCL's
own: rings first, then trees with as many channels as rings, then NVLS where the switches can multicast (NCCL
2.28.3, init.cc).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from blinksim import data_files
from blinksim.errors import InfeasibleError, InputError, one_of
from blinksim.nccl.families import DIS, FAMILIES, NVB, PATH_TYPES, PXB, PXN, Pattern
from blinksim.nccl.files.graph_file import Graph, agreed, graphs_of as graphs_in, read as read_graph_file
from blinksim.nccl.paths import SWITCH_KIND, Paths, System, systems_of
from blinksim.nccl.search_passes import Rules, search
from blinksim.textio.text_files import read_words
from blinksim.topology.cluster import nodes_of
from blinksim.topology.edits import IN_NETWORK
from blinksim.topology.graph import Topology

DEFAULT_VERSION = "2.28.3"
# Who takes adapters by name, and by which variable: libfabric's fi_cxi(7), fi_efa(7); over verbs NCCL_IB_HCA.
_CHOSEN = {"slingshot": ("FI_CXI_DEVICE_NAME", "cxi"), "efa": ("FI_EFA_IFACE", "")}
# Where hosts call adapters by names of their own, such as rdmap79s0.
_CALLED_OTHERWISE = {"efa": "FI_EFA_IFACE", "ethernet": "NCCL_IB_HCA or the variable of NCCL's plug-in"}
PROTOCOLS = ("LL", "LL128", "Simple")
_PREFIX = "nccl-tuner-"


Generation = Mapping[str, Any]
"""Limits of GPUs of a generation in GB/s, as their file explains them: of 1, 2, and 3 or more nodes."""


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
        return next(row for row in self.generations if sm >= row["sm"])

    def ll_most(self, sm: int, nnodes: int, vendor: str) -> float:
        """GB/s that the LL protocol reaches at most."""
        row = self.generation(sm)
        if nnodes > 1:
            name = self.ll_most_by_cpu.get(vendor, self.ll_most_by_cpu["default"])
            row = next(generation for generation in self.generations if generation["name"] == name)
        return float(row["ll_most"][min(nnodes, 3) - 1])


def versions() -> list[str]:
    """The versions of NCCL whose figures lie in models/, oldest first."""
    names = [stem.removeprefix(_PREFIX) for stem in data_files.files("models", f"{_PREFIX}*.yaml")]
    return sorted(names, key=lambda version: [int(part) for part in version.split(".")])


def nearest(version: str) -> str:
    """The version with figures that stands for `version`: itself, else one that differs in the patch only, else the
    default."""
    known, branch = versions(), version.split(".")[:2]
    alike = next((name for name in known if name.split(".")[:2] == branch), DEFAULT_VERSION)
    return version if version in known else alike


@cache
def load(version: str = DEFAULT_VERSION) -> Constants:
    """The figures of NCCL `version`; raises `InputError` with the known ones for others."""
    one_of("version of NCCL", version, versions())
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
    given["channel_bandwidths"] = tuple(
        (row["sm"], rates(row["one_node"]), rates(row["several_nodes"])) for row in table["channel_bandwidths"]
    )
    return Constants(**given)


COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""In the order in which NCCL looks at them: of equal times the first wins."""
ALGORITHMS_OF = {name: tuple(words.split()) for name, words in read_words("collective of NCCL").items()}
_LL, _LL128, _SIMPLE = range(3)
_AS_PLANNED = Fraction(1)


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

        What is not in the table NCCL does not use: CollNet (off by default), NVLS without multicast, LL128
        over far paths, PAT with several GPUs per node.
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
            known = f"it times {', '.join(COLLECTIVES)}. advise says what the sends take"
            runs = f"{collective}, which NCCL runs as plain sends"
            raise InfeasibleError(f"NCCL's tuner does not time {runs}; {known}")
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
                return min(0.92 * bus, channels * float(row["ll128_ring_channel"][self.column]))
            return bus
        if algorithm == "pat":
            return 0.75 * bus
        bus = min(0.92 * bus, channels * row["tree_channel"][self.column])
        if protocol == _LL:
            bus = min(bus / 3.8, ll_most)
        if protocol == _LL128:
            packed = 7 / 9 if job.nnodes == 1 else 120 / 128
            bus = min(packed * bus, channels * row["ll128_tree_channel"][self.column])
        return 0.85 * bus if self.graphs["tree"].pattern == Pattern.TREE else bus

    def multicast_bus(self, collective: str, algorithm: str) -> float:
        job, graph = self.job, self.graphs["nvls"]
        if graph.nchannels < 2 or (job.nnodes > 1 and (collective != "allreduce" or algorithm == "nvls")):
            return 0.0
        count, efficiency = graph.nchannels, float(self.generation["nvls_efficiency"])
        per_node = job.ranks / job.nnodes
        share = 2.0 if collective == "allreduce" else (per_node - 1) / per_node
        intra = float(graph.bw_intra) / 1e9 * efficiency * (count - 1) / count * share
        inter = float(graph.bw_inter) / 1e9 * (2 if job.nnodes <= 2 and algorithm == "nvls_tree" else 1)
        channel = min(intra, inter)
        if algorithm == "nvls_tree":
            channel = min(channel, float(self.generation["nvls_tree_channel"][self.column]))
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


# Communicators, and nodes, whose channels are cached: the search takes longer than all else.
_MOST_CACHED = 64
paths_of = lru_cache(maxsize=_MOST_CACHED)(Paths)
channels_of = lru_cache(maxsize=3 * _MOST_CACHED)(search)


@dataclass(frozen=True)
class Prediction:
    """NCCL's channels and choices for one communicator.

    members: in rank order. version: of NCCL. job: what the tuner knows of ranks and GPUs.
    ring, tree, nvls: the channels; nvls is None where NCCL does not use multicast.
    names: device by GPU number, of the node whose channels carry least; ports: the same by port number,
    without the node. assumed: what the machine leaves out and blinksim assumes. planned: what NCCL itself
    predicts, where it takes links for quicker than they are.
    """

    machine: str
    members: tuple[str, ...]
    version: str
    job: Job
    ring: Graph
    tree: Graph
    nvls: Graph | None = None
    names: Mapping[int, str] = field(default_factory=dict, hash=False)
    assumed: tuple[str, ...] = ()
    ports: Mapping[int, str] = field(default_factory=dict, hash=False)
    planned: Prediction | None = None

    @property
    def graphs(self) -> dict[str, Graph]:
        """The graphs by family: ``ring``, ``tree`` and perhaps ``nvls``."""
        graphs = {"ring": self.ring, "tree": self.tree}
        return graphs if self.nvls is None else {**graphs, "nvls": self.nvls}

    @property
    def nchannels(self) -> int:
        """Channels of the communicator before NCCL doubles them: the same number for rings and trees."""
        return min(self.ring.nchannels, self.tree.nchannels)

    @cached_property
    def model(self) -> Tuner:
        """By which NCCL chooses."""
        return Tuner(self.job, self.graphs, load(self.version))

    @cached_property
    def orders(self) -> dict[str, list[list[str]]]:
        """By family, for each channel, the devices of the node of `names` in the order of the ring or chain."""
        name = self.names.get
        return {
            family: [[name(number, f"gpu{number}") for number in channel] for channel in graph.channels]
            for family, graph in self.graphs.items()
        }

    def idle_ports(self, *families: str) -> frozenset[str]:
        """The ports that no channel of these families goes through; none where a file does not say."""
        used = {self.ports.get(port) for name in families for ends in self.graphs[name].nets for port in ends}
        return frozenset(self.ports.values()) - used if used else frozenset()

    def times(self, collective: str, size: int) -> list[Timing]:
        """Predicted times of a collective of `size` bytes; see `blinksim.nccl.tuner.tuner.Tuner.times`."""
        return self.model.times(collective, size)

    def best(self, collective: str, size: int) -> Timing:
        """What NCCL chooses for a collective of `size` bytes, by the least time that it predicts."""
        pick = next(iter(self.expects(collective, size)))
        return next(one for one in self.times(collective, size) if f"{one.algorithm} {one.protocol}" == pick)

    def expects(self, collective: str, size: int) -> dict[str, float]:
        """The seconds that NCCL predicts for each algorithm and protocol that it may choose, least first."""
        return {f"{one.algorithm} {one.protocol}": one.time_s for one in (self.planned or self).times(collective, size)}

    @cached_property
    def at_width(self) -> Tuner:
        """The model of channels as wide as links allow: the steps that NCCL searches in only serve its choice."""
        wide = {name: one.wider[one.nchannels - 1] for name, one in self.graphs.items()}
        graphs = {name: one.widened(wide[name], wide[name]) for name, one in self.graphs.items()}
        return Tuner(self.job, graphs, self.model.constants)


def carried(found: Prediction, known: Topology, whole: Topology) -> Prediction:
    """The prediction with channels as wide as the links of `whole` are, which NCCL takes for those of `known`.

    Ports that no channel goes through do not count, and of others what their channels leave free goes first.
    """
    links = [(new, new.bandwidth / old.bandwidth) for old, new in zip(known.links, whole.links, strict=True)]
    wide = {}
    for family, graph in found.graphs.items():
        idle = found.idle_ports(family)
        passing = [Counter(map(found.ports.get, ports)) for ports in zip(*graph.nets, strict=True)]
        ratios: dict[str, list[Fraction]] = defaultdict(list)
        for link, ratio in links:
            ends = {in_node(link.src), in_node(link.dst)}
            if idle.isdisjoint(ends):
                most = max((used[port] for used in passing for port in ends), default=0) * graph.bw_inter
                held = most > 0 and ratio < 1
                ratios[link.kind].append(min(max(ratio, link.bandwidth / most), _AS_PLANNED) if held else ratio)
        inside, outside = (
            min((one for kind in kinds for one in ratios[kind]), default=_AS_PLANNED)
            for kinds in (whole.collective_links, whole.inter_node_links)
        )
        # On two nodes its table takes the bandwidth inside a node, also where the network gives less.
        if found.job.nnodes == 2:
            inside = min(inside, outside * max(_AS_PLANNED, graph.bw_inter / graph.bw_intra))
        wide[family] = graph.widened(inside, outside)
    return replace(found, ring=wide["ring"], tree=wide["tree"], nvls=wide.get("nvls"), planned=found)


def in_node(name: str) -> str:
    """The name of a device, or of the one that a port belongs to, in its own node."""
    return re.sub(r"^n[0-9]+\.| port$", "", name)


def chosen_by(machine: Topology) -> tuple[str, str]:
    """The variable that says which adapters to take, and what they are called, before a number."""
    return next((_CHOSEN[kind] for kind in machine.inter_node_links if kind in _CHOSEN), ("NCCL_IB_HCA", "mlx5_"))


def without_adapters(machine: Topology, few: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """Those of a machine's adapters that are named, and by node what is to be set to leave them out.

    NCCL_IB_HCA names those, other variables those that stay. Names that no host uses are not said.
    """
    (variable, stem), told = chosen_by(machine), dict[str, str]()
    nics, off = [one for one in machine.devices if one.kind == "nic"], variable == "NCCL_IB_HCA"
    slow = [one.name for one in nics if one.name in few]
    otherwise = [words for kind, words in _CALLED_OTHERWISE.items() if kind in machine.inter_node_links]
    for node in dict.fromkeys(one.node for one in nics if one.name in few):
        own = enumerate(one.name for one in nics if one.node == node)
        taken = ",".join(f"{stem}{place}" for place, name in own if (name in few) == off)
        how = f"by {otherwise[0]}" if otherwise else f"{variable}={'^=' * off}{taken}"
        told[f"n{node}" if machine.nodes > 1 else "every node"] = how
    return slow, told


def predict(
    topology: Topology,
    members: Sequence[str] | None = None,
    *,
    nodes: int | None = None,
    version: str = DEFAULT_VERSION,
    multicast: bool = True,
    graphs: Mapping[str, Graph] | None = None,
) -> Prediction:
    """The channels that NCCL finds for `members` (default: the topology's), and its table of times.

    The topology is a whole machine, not a selection: NCCL plans over NVLink, PCIe and CPUs, and never through
    GPUs that are not members. Its figures are those of the rates ``nccl``; with other rates the answer is
    what NCCL would do if it knew them.

    nodes: how many nodes like this one there are, for a machine of one node with a fabric. multicast: False
    forbids NVLS, as NCCL_NVLS_ENABLE=0 does, and so do switches that cannot reduce into readers, after an
    edit or beside GPUs without sm. graphs: channels given by a graph file, by family, instead of those of the
    search.

    Raises `InputError` for unknown members, versions and families, `InfeasibleError` where NCCL does not run.
    """
    given = tuple((graphs or {}).items())
    for family, _ in given:
        if family not in FAMILIES:
            raise InputError(f"no channels of NCCL are called {family!r}; known: {', '.join(FAMILIES)}")
    return _predicted(topology, topology.edits, members and tuple(members), nodes, version, multicast, given)


@lru_cache(maxsize=_MOST_CACHED)
def _predicted(
    topology: Topology,
    edits: tuple[str, ...],
    members: tuple[str, ...] | None,
    nodes: int | None,
    version: str,
    multicast: bool,
    given: tuple[tuple[str, Graph], ...],
) -> Prediction:
    """edits: of the topology, which are no part of what makes topologies equal. given: graphs by family."""
    constants, systems = load(version), systems_of(topology, members, nodes)
    # Edits may say what switches can do, and some reduce into readers no more; so do none beside GPUs without
    # sm.
    said = any(edit.endswith(IN_NETWORK) or " can=" in edit for edit in edits)
    said |= not any("sm" in device.attributes for device in topology.devices)
    taken_away = said and not all(device.reads for device in topology.devices if device.kind == SWITCH_KIND)
    chosen = members or topology.members
    # A machine of one node stands for several.
    ranks = len(chosen) * systems[0].nnodes // len(nodes_of(topology, chosen))
    job = job_of(systems, ranks, constants, multicast and not taken_away)
    rules = Rules(constants.channel_bandwidths, constants.any_port_below)
    found = [graphs_of(system, rules, dict(given), job.multicast) for system in systems]
    # The node whose channels carry least is the one that an answer shows.
    shown = min(range(len(found)), key=lambda i: [graph.bandwidth for graph in found[i].values()])
    common = [family for family in found[0] if all(family in graphs for graphs in found)]
    taken = {family: agreed([graphs[family] for graphs in found], shown) for family in common}
    families, system = (taken["ring"], taken["tree"], taken.get("nvls")), systems[shown]
    names = {gpu.number: gpu.name for gpu in map(system.vertices.__getitem__, system.gpus)}
    ports = {port.number: in_node(port.name) for port in map(system.vertices.__getitem__, system.ports)}
    return Prediction(topology.name, chosen, version, job, *families, names, system.assumed, ports)


def graphs_of(system: System, rules: Rules, given: Mapping[str, Graph], multicast: bool) -> dict[str, Graph]:
    """The channels that the ranks of a node find, or are `given`, by family; those of NVLS if there are any.

    Raises `InfeasibleError` if no links that NCCL takes join the GPUs.
    """
    # To a node two of them are as many as a thousand.
    paths = paths_of(replace(system, nnodes=min(system.nnodes, 2)))
    ring = given.get("ring") or channels_of(paths, rules, Pattern.RING)
    count = ring.nchannels if ring else 1
    tree = given.get("tree") or channels_of(paths, rules, Pattern.BALANCED_TREE, count, count)
    nvls = given.get("nvls") or channels_of(paths, rules, Pattern.NVLS) if multicast else None
    found = {family: graph for family, graph in (("ring", ring), ("tree", tree), ("nvls", nvls)) if graph}
    if any(graph.nchannels and graph.type_intra == PATH_TYPES[DIS] for graph in found.values()):
        joined = ", ".join(system.vertices[gpu].name for gpu in system.gpus)
        cure = "draw the PCIe links and CPUs that do, or choose other members"
        raise InfeasibleError(f"no links that NCCL takes join all of {joined}, there and back; {cure}")
    return found


def job_of(systems: Sequence[System], ranks: int, constants: Constants, multicast: bool = True) -> Job:
    """What the tuner knows of the sorts of nodes besides their channels."""
    first, sm = systems[0], {system.vertices[gpu].sm for system in systems for gpu in system.gpus}
    least = min(len(system.gpus) for system in systems)
    adds = all(system.of_kind(SWITCH_KIND) for system in systems) and least >= constants.nvls_least_gpus
    adds = multicast and adds and min(sm) >= 90
    return Job(ranks, first.nnodes, min(sm), len(sm) == 1, first.vendor, first.arch, adds)


def predict_with(*asked: Any, graph_file: str | Path | None = None, **how: Any) -> Prediction:
    """`predict` as asked, with the channels of a graph file where one is given.

    Raises `FileError` if the file cannot be read, `InputError` if it has no channels, or lists other GPUs
    than the members', as NCCL then fails.
    """
    given = graphs_in(read_graph_file(graph_file)) if graph_file is not None else {}
    if graph_file is not None and not given:
        raise InputError(f"{graph_file}: has no ring, tree or NVLS channels; NCCL would search as if it were not there")
    found = predict(*asked, **how, graphs=given)
    for family, graph in given.items():
        for number, channel in enumerate(graph.channels):
            if sorted(channel) != sorted(found.names):
                listed, members = (", ".join(map(str, sorted(each))) for each in (channel, found.names))
                lists = f"{graph_file}: {family} channel {number} lists GPUs {listed}"
                raise InputError(f"{lists}, the members are {members}; NCCL needs each of them once")
    return found
