"""What bounds assume of schedules and switches, in words, and the machine whose switches may do more."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from blinksim.bounds.certificates.certificate import Certificate, Partition, Phases
from blinksim.bounds.certificates.lengths import Lengths
from blinksim.collective import Collective

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

NOTHING = "nothing, it holds for every schedule"
NO_CODING = "no coding: every message is one element or a reduction of such"
ONLY_TREES = "switches and other devices without a rank only forward, and every element moves along trees"
TWO_PHASES = "every rank reduces an equal shard, then all shards are gathered"
REDUCING_SWITCHES = "switches may reduce and multicast"
EVERY_LINK = "links of every class carry data"
IDLE_FORWARD = "GPUs that do not take part forward"
WIDE_FABRIC = "the switches between nodes carry all that enters them"


# Scopes from the one that assumes the least to the one that assumes the most.
SCOPES = ("cut", "partition", "lengths", "tree-optimum", "reduce-scatter + allgather")


def scope_of(certificate: Certificate, collective: Collective) -> str:
    """What the bound of a certificate is called: one of `SCOPES`."""
    if isinstance(certificate, Phases):
        return "reduce-scatter + allgather"
    if isinstance(certificate, Lengths) and not collective.personalized:
        return "tree-optimum"
    return certificate.kind


def assumed_by(certificate: Certificate, collective: Collective) -> str:
    """What a certificate's bound assumes besides the machine."""
    if isinstance(certificate, Phases):
        phases = (assumed_by(proof, Collective(name)) for name, proof in certificate.phases)
        return "; ".join(dict.fromkeys((TWO_PHASES, *(assumed for assumed in phases if assumed != NOTHING))))
    if isinstance(certificate, Partition) and collective.name == "allreduce":
        return NO_CODING
    if isinstance(certificate, Lengths):
        if not collective.personalized:
            return ONLY_TREES
        # Network coding can beat all flows between several pairs (not from one source or to one sink): the butterfly of
        # Ahlswede, Cai, Li and Yeung (2000), with two pairs.
        return NO_CODING if collective.name == "alltoall" else NOTHING
    return NOTHING


def with_reduction(topology: Topology) -> Topology:
    """The machine where every switch inside a node may reduce and multicast, as NVLink switches do for NVLS."""
    devices = tuple(
        replace(device, can=device.can | {"multicast", "reduce"}) if device.kind == "switch" else device
        for device in topology.devices
    )
    return replace(topology, devices=devices)


def with_wide_fabric(topology: Topology) -> Topology:
    """The machine where links between fabric switches carry all that the nodes can send: no oversubscription."""
    outside = {device.name for device in topology.devices if device.node < 0}
    trunks = {link.name for link in topology.links if {link.src, link.dst} <= outside}
    if not trunks:
        return topology
    enough = sum((link.bandwidth for link in topology.links if link.dst in outside), Fraction(0))
    wide = (replace(link, lane_bandwidth=enough) if link.name in trunks else link for link in topology.links)
    return topology.with_links(wide)


def granting(assumes: str, *granted: str) -> str:
    """`assumes` for a bound that also lets the machine do what is `granted`."""
    return "; ".join((*granted, *([] if assumes == NOTHING else [assumes]))) or NOTHING
