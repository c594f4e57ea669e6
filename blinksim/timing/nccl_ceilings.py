"""What no algorithm exceeds on a machine as NCCL's model takes it: paths, switches and networks as NCCL counts them."""

from __future__ import annotations

from fractions import Fraction

from blinksim.bounds.assumptions import (
    EVERY_LINK,
    FAST_NETWORK,
    IDLE_FORWARD,
    REDUCING_SWITCHES,
    UNSHARED_LINKS,
    WIDE_FABRIC,
    with_fast_network,
    with_reduction,
    with_unshared_links,
    with_wide_fabric,
)
from blinksim.collective import Collective
from blinksim.nccl.tuner.prediction import Prediction
from blinksim.timing.contest import ceiling_of
from blinksim.timing.projection_result import Ceiling, Projection, reduces_in_switches
from blinksim.topology.elements import BRANCHING
from blinksim.topology.graph import Topology
from blinksim.topology.selection import ALL, IDLE

# Ranks up to which a bound stands beside the prediction: a larger cluster is not built for it.
MOST_RANKS = 8192
# What NCCL calls paths over the links that a machine file means for collectives: inside a node, where NVB is by way of
# another GPU, and to the adapters.
_DIRECT = frozenset({"LOC", "NVL"})
_NEAR = _DIRECT | {"NVB"}
_NEAR_ADAPTERS = _NEAR | {"PIX", "PXB", "PXN"}


class Ceilings:
    """The ceilings of one machine's predictions, each found once."""

    def __init__(self) -> None:
        self._found: dict[tuple[Collective, bool, bool, bool, Fraction | None], Ceiling] = {}

    def of(self, projection: Projection, found: Prediction, whole: Topology, nodes: int | None) -> Ceiling | None:
        """What bounds this time of NCCL's model; None above `MOST_RANKS`. nodes: copies of `whole`, if it has one."""
        if found.job.ranks > MOST_RANKS:
            return None
        details = projection.details
        far = details["type_intra"] not in _NEAR or details.get("type_inter", "LOC") not in _NEAR_ADAPTERS
        direct = details["type_intra"] in _DIRECT
        key = projection.collective, reduces_in_switches(projection), far, direct, _inner_rate(projection, found)
        if key not in self._found:
            cluster = whole if whole.nodes > 1 or nodes is None else whole.replicate(nodes)
            self._found[key] = _ceiling(*key, cluster)
        return self._found[key]


def family_of(algorithm: str) -> str:
    """The sort of channels that an algorithm of NCCL runs on: ``ring``, ``tree`` or ``nvls``."""
    return "ring" if algorithm == "ring" else "nvls" if algorithm.startswith("nvls") else "tree"


def _inner_rate(projection: Projection, found: Prediction) -> Fraction | None:
    """Bytes/s of all channels within a node, where NCCL's model takes them for those between two slower nodes."""
    graph = found.graphs[family_of(projection.details["nccl_algorithm"])]
    counts_within = found.job.nnodes == 2 and graph.bw_inter < graph.bw_intra
    return graph.nchannels * Fraction(graph.bw_intra) if counts_within else None


def _ceiling(
    collective: Collective, reduces: bool, far: bool, direct: bool, network: Fraction | None, machine: Topology
) -> Ceiling:
    """What no algorithm exceeds on a machine as NCCL takes it.

    reduces: the switches add (NVLS). far: some paths leave the links that are meant for collectives. direct: none leads
    by way of another GPU. network: bytes/s that NCCL takes adapters to carry, None for what they do. To NCCL's model
    the switches between nodes are never too narrow, and links share nothing.
    """
    granted = []
    part = (
        machine.selected()
        if direct and not far
        else machine.select(relays=machine.relays if direct else IDLE, links=ALL if far else None)
    )
    if not set(part.link_classes) <= set(machine.default_links()):
        granted.append(EVERY_LINK)
    if set(part.relays) - set(machine.relays):
        granted.append(IDLE_FORWARD)
    if reduces:
        granted.append(REDUCING_SWITCHES)
        part = with_reduction(part)
    if network is not None:
        granted.append(FAST_NETWORK)
        part = with_fast_network(part, network)
    wide = with_wide_fabric(part)
    granted += [WIDE_FABRIC] if wide is not part else []
    unshared = with_unshared_links(wide)
    granted += [UNSHARED_LINKS] if unshared is not wide else []
    return ceiling_of(unshared, collective, granted, _grants(unshared) if reduces else ())


def _grants(machine: Topology) -> tuple[str, ...]:
    """What NVLS uses of what the switches of a machine can do."""
    able = frozenset[str]().union(*(device.in_network for device in machine.devices if device.node >= 0))
    return tuple(grant for grant in BRANCHING if grant in able)
