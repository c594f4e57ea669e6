"""NCCL's predicted plan for a machine: the channels that it finds and the table by which it chooses.

The order is NCCL's own: rings first, then trees with as many channels as rings, then NVLS where the switches
can multicast (NCCL 2.28.3, init.cc).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from blinksim.errors import InfeasibleError, InputError
from blinksim.nccl.families import DIS, FAMILIES, PATH_TYPES, PATTERN_BALANCED_TREE, PATTERN_NVLS, PATTERN_RING
from blinksim.nccl.files.graph_file import Graph
from blinksim.nccl.search.paths import Paths
from blinksim.nccl.search.search import MOST_CHANNELS, Rules, search
from blinksim.nccl.search.system import System, system_of
from blinksim.nccl.tuner import constants as figures
from blinksim.nccl.tuner import tuner
from blinksim.nccl.tuner.constants import Constants
from blinksim.topology.edits import IN_NETWORK
from blinksim.topology.graph import Topology

# Communicators whose channels are cached: the search takes longer than all else.
_MOST_CACHED = 64


@dataclass(frozen=True)
class Prediction:
    """NCCL's channels and choices for one communicator.

    members: in rank order. version: of NCCL. job: what the tuner knows of ranks and GPUs.
    ring, tree, nvls: the channels; nvls is None where NCCL does not use multicast.
    names: device of the first node by GPU number. assumed: what the machine leaves out and blinksim assumes.
    """

    machine: str
    members: tuple[str, ...]
    version: str
    job: tuner.Job
    ring: Graph
    tree: Graph
    nvls: Graph | None = None
    names: Mapping[int, str] = field(default_factory=dict, hash=False)
    assumed: tuple[str, ...] = ()

    @property
    def constants(self) -> Constants:
        return figures.load(self.version)

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
    def rows(self) -> tuple[tuner.Row, ...]:
        """The tuner's table: latency and bandwidth by collective, algorithm and protocol."""
        return tuner.table(self.job, self.graphs, self.constants)

    def orders(self, family: str) -> tuple[tuple[str, ...], ...]:
        """For each channel of a family the first node's devices in the order of the ring or chain."""
        graph = self.graphs[family]
        return tuple(tuple(self.names.get(number, f"gpu{number}") for number in channel) for channel in graph.channels)

    def times(self, collective: str, size: int) -> list[tuner.Timing]:
        """Predicted times of a collective of `size` bytes; see `blinksim.nccl.tuner.tuner.times`."""
        return tuner.times(self.rows, self.job, self.nchannels, self.constants, collective, size)

    def best(self, collective: str, size: int) -> tuner.Timing:
        """What NCCL chooses for a collective of `size` bytes: the least predicted time, of equal ones the first."""
        return min(self.times(collective, size), key=lambda timing: timing.time_s)

    def __repr__(self) -> str:
        lines = [f"<NCCL {self.version} on {self.machine}, {self.job.ranks} ranks on {self.job.nnodes} nodes"]
        for family, graph in self.graphs.items():
            lines.append(
                f"  {family}: {graph.nchannels} x {float(graph.bw_intra) / 1e9:g} GB/s, "
                f"{graph.type_intra} inside, {graph.type_inter} to the network"
            )
        return "\n".join(lines) + ">"


def predict(
    topology: Topology,
    members: Sequence[str] | None = None,
    *,
    nodes: int | None = None,
    version: str = figures.DEFAULT_VERSION,
    multicast: bool = True,
    graphs: Mapping[str, Graph] | None = None,
) -> Prediction:
    """The channels that NCCL finds for `members` (default: the topology's), and its table of times.

    The topology is a whole machine, not a selection: NCCL plans over NVLink, PCIe and CPUs, and never through GPUs
    that are not members. Its figures are those of the rates ``nccl``; with other rates the answer is what NCCL would
    do if it knew them.

    nodes: how many nodes like this one there are, for a machine of one node with a fabric.
    multicast: False forbids NVLS, as NCCL_NVLS_ENABLE=0 does, and so does an edit after which no switch reduces into
    readers.
    graphs: channels given by a graph file, by family, instead of those of the search.

    Raises `InputError` for unknown members, versions and families, `InfeasibleError` where NCCL does not run.
    """
    given = tuple((graphs or {}).items())
    for family, _ in given:
        if family not in FAMILIES:
            raise InputError(f"no channels of NCCL are called {family!r}; known: {', '.join(FAMILIES)}")
    chosen = None if members is None else tuple(members)
    return _predicted(topology, topology.edits, chosen, nodes, version, multicast, given)


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
    constants = figures.load(version)
    system = system_of(topology, members, nodes)
    vertices = [system.vertices[gpu] for gpu in system.gpus]
    if len({vertex.number for vertex in vertices}) < len(vertices):
        raise InputError(f"{topology.name}: two members have the same number `dev`; NCCL tells GPUs apart by it")
    paths = Paths(system)
    # Edits may say what switches can do, and none reduces into readers any more.
    said = any(edit.endswith(IN_NETWORK) or " can=" in edit for edit in edits)
    taken_away = said and not any(device.reads for device in topology.devices)
    job = job_of(system, constants, multicast and not taken_away)
    rules = Rules(constants.channel_bandwidths, constants.any_port_below)

    own = dict(given)

    def graph_of(family: str, pattern: int, least: int, most: int) -> Graph | None:
        graph = own[family] if family in own else search(paths, rules, pattern, least, most)
        if graph is not None and graph.nchannels and graph.type_intra == PATH_TYPES[DIS]:
            joined = ", ".join(topology.members if members is None else members)
            raise InfeasibleError(
                f"{topology.name}: no links that NCCL takes join all of {joined}, there and back; draw the PCIe links "
                "and CPUs that do, or choose other members"
            )
        return graph

    ring = graph_of("ring", PATTERN_RING, 1, MOST_CHANNELS)
    assert ring is not None
    tree = graph_of("tree", PATTERN_BALANCED_TREE, ring.nchannels, ring.nchannels)
    assert tree is not None
    nvls = graph_of("nvls", PATTERN_NVLS, 1, MOST_CHANNELS) if job.multicast else None
    return Prediction(
        machine=topology.name,
        members=topology.members if members is None else members,
        version=version,
        job=job,
        ring=ring,
        tree=tree,
        nvls=nvls,
        names={vertex.number: vertex.name for vertex in vertices},
        assumed=system.assumed,
    )


def job_of(system: System, constants: Constants, multicast: bool = True) -> tuner.Job:
    """What the tuner knows of a system besides its channels."""
    enough = len(system.gpus) >= constants.nvls_least_gpus
    return tuner.Job(
        ranks=len(system.gpus) * system.nnodes,
        nnodes=system.nnodes,
        sm=system.lowest_sm,
        alike=system.alike,
        vendor=system.vendor,
        arch=system.arch,
        multicast=multicast and bool(system.switches) and system.lowest_sm >= 90 and enough,
    )
