"""NCCL's predicted plan for a machine: the channels that it finds and the table by which it chooses.

The order is NCCL's own: rings first, then trees with as many channels as rings, then NVLS where the switches
can multicast (NCCL 2.28.3, init.cc).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache

from blinksim.errors import InfeasibleError, InputError
from blinksim.nccl.families import DIS, FAMILIES, PATH_TYPES, Pattern
from blinksim.nccl.files.graph_file import Graph, agreed
from blinksim.nccl.search.paths import SWITCH_KIND, Paths, System, systems_of
from blinksim.nccl.search.search_passes import Rules, search
from blinksim.nccl.tuner import tuner
from blinksim.nccl.tuner.tuner import Constants
from blinksim.topology.cluster import nodes_of
from blinksim.topology.edits import IN_NETWORK
from blinksim.topology.graph import Topology

# Communicators, and nodes, whose channels are cached: the search takes longer than all else.
_MOST_CACHED = 64
paths_of = lru_cache(maxsize=_MOST_CACHED)(Paths)
channels_of = lru_cache(maxsize=3 * _MOST_CACHED)(search)


@dataclass(frozen=True)
class Prediction:
    """NCCL's channels and choices for one communicator.

    members: in rank order. version: of NCCL. job: what the tuner knows of ranks and GPUs.
    ring, tree, nvls: the channels; nvls is None where NCCL does not use multicast.
    names: device by GPU number, of the node whose channels carry least. assumed: what the machine leaves out
    and blinksim assumes.
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
    def graphs(self) -> dict[str, Graph]:
        """The graphs by family: ``ring``, ``tree`` and perhaps ``nvls``."""
        graphs = {"ring": self.ring, "tree": self.tree}
        return graphs if self.nvls is None else {**graphs, "nvls": self.nvls}

    @property
    def nchannels(self) -> int:
        """Channels of the communicator before NCCL doubles them: the same number for rings and trees."""
        return min(self.ring.nchannels, self.tree.nchannels)

    @cached_property
    def model(self) -> tuner.Tuner:
        """By which NCCL chooses."""
        return tuner.Tuner(self.job, self.graphs, tuner.load(self.version))

    @property
    def rows(self) -> tuple[tuner.Row, ...]:
        """The tuner's table: latency and bandwidth by collective, algorithm and protocol."""
        return self.model.rows

    @cached_property
    def orders(self) -> dict[str, list[list[str]]]:
        """By family, for each channel, the devices of the node of `names` in the order of the ring or chain."""
        name = self.names.get
        return {
            family: [[name(number, f"gpu{number}") for number in channel] for channel in graph.channels]
            for family, graph in self.graphs.items()
        }

    def times(self, collective: str, size: int) -> list[tuner.Timing]:
        """Predicted times of a collective of `size` bytes; see `blinksim.nccl.tuner.tuner.Tuner.times`."""
        return self.model.times(collective, size)

    def best(self, collective: str, size: int) -> tuner.Timing:
        """What NCCL chooses for a collective of `size` bytes: the least predicted time."""
        return self.times(collective, size)[0]

    def expects(self, collective: str, size: int) -> dict[str, float]:
        """The seconds that NCCL predicts for each algorithm and protocol that it may choose, least first."""
        return {f"{one.algorithm} {one.protocol}": one.time_s for one in self.times(collective, size)}

    @cached_property
    def at_width(self) -> tuner.Tuner:
        """The model of channels as wide as links allow: the steps that NCCL searches in only serve its choice."""
        graphs = {name: one.widened(one.wider, one.wider) for name, one in self.graphs.items()}
        return tuner.Tuner(self.job, graphs, self.model.constants)

    def __repr__(self) -> str:
        found = f"<NCCL {self.version} on {self.machine}, {self.job.ranks} ranks on {self.job.nnodes} nodes"
        for family, graph in self.graphs.items():
            paths = f"{graph.type_intra} inside, {graph.type_inter} to the network"
            found += f"\n  {family}: {graph.nchannels} x {float(graph.bw_intra) / 1e9:g} GB/s, {paths}"
        return found + ">"


def carried(found: Prediction, known: Topology, whole: Topology) -> Prediction:
    """The prediction with channels as wide as the links of `whole` are, which NCCL takes for those of `known`."""
    pairs = zip(known.links, whole.links, strict=True)
    wider = [(new.kind, new.lane_bandwidth / old.lane_bandwidth) for old, new in pairs]
    inside, outside = (
        min((ratio for kind, ratio in wider if kind in kinds), default=Fraction(1))
        for kinds in (whole.collective_links, whole.inter_node_links)
    )
    wide = {name: one.widened(inside, outside) for name, one in found.graphs.items()}
    return replace(found, ring=wide["ring"], tree=wide["tree"], nvls=wide.get("nvls"))


def predict(
    topology: Topology,
    members: Sequence[str] | None = None,
    *,
    nodes: int | None = None,
    version: str = tuner.DEFAULT_VERSION,
    multicast: bool = True,
    graphs: Mapping[str, Graph] | None = None,
) -> Prediction:
    """The channels that NCCL finds for `members` (default: the topology's), and its table of times.

    The topology is a whole machine, not a selection: NCCL plans over NVLink, PCIe and CPUs, and never through GPUs
    that are not members. Its figures are those of the rates ``nccl``; with other rates the answer is what NCCL would
    do if it knew them.

    nodes: how many nodes like this one there are, for a machine of one node with a fabric.
    multicast: False forbids NVLS, as NCCL_NVLS_ENABLE=0 does, and so do switches that cannot reduce into readers, after
    an edit or beside GPUs without sm.
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
    constants, systems = tuner.load(version), systems_of(topology, members, nodes)
    # Edits may say what switches can do, and some reduce into readers no more; so do none beside GPUs without sm.
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
    shown = min(range(len(found)), key=lambda i: [graph.bandwidth if graph else 0 for graph in found[i]])
    ring, tree, nvls = (agreed(graphs, shown) for graphs in zip(*found, strict=True))
    assert ring is not None
    assert tree is not None
    gpus = [systems[shown].vertices[gpu] for gpu in systems[shown].gpus]
    return Prediction(
        machine=topology.name,
        members=chosen,
        version=version,
        job=job,
        ring=ring,
        tree=tree,
        nvls=nvls,
        names={gpu.number: gpu.name for gpu in gpus},
        assumed=systems[shown].assumed,
    )


def graphs_of(
    system: System, rules: Rules, given: Mapping[str, Graph], multicast: bool
) -> tuple[Graph | None, Graph | None, Graph | None]:
    """The rings, trees and NVLS channels that the ranks of a node find, or are `given`.

    Raises `InfeasibleError` if no links that NCCL takes join the GPUs.
    """
    # To a node two of them are as many as a thousand.
    paths = paths_of(replace(system, nnodes=min(system.nnodes, 2)))
    ring = given.get("ring") or channels_of(paths, rules, Pattern.RING)
    count = ring.nchannels if ring else 1
    tree = given.get("tree") or channels_of(paths, rules, Pattern.BALANCED_TREE, count, count)
    nvls = given.get("nvls") or channels_of(paths, rules, Pattern.NVLS) if multicast else None
    if any(graph and graph.nchannels and graph.type_intra == PATH_TYPES[DIS] for graph in (ring, tree, nvls)):
        joined = ", ".join(system.vertices[gpu].name for gpu in system.gpus)
        raise InfeasibleError(
            f"no links that NCCL takes join all of {joined}, there and back; draw the PCIe links and CPUs that "
            "do, or choose other members"
        )
    return ring, tree, nvls


def job_of(systems: Sequence[System], ranks: int, constants: Constants, multicast: bool = True) -> tuner.Job:
    """What the tuner knows of the sorts of nodes besides their channels."""
    first, sm = systems[0], {system.vertices[gpu].sm for system in systems for gpu in system.gpus}
    least = min(len(system.gpus) for system in systems)
    adds = all(system.of_kind(SWITCH_KIND) for system in systems) and least >= constants.nvls_least_gpus
    return tuner.Job(
        ranks=ranks,
        nnodes=first.nnodes,
        sm=min(sm),
        alike=len(sm) == 1,
        vendor=first.vendor,
        arch=first.arch,
        multicast=multicast and adds and min(sm) >= 90,
    )
