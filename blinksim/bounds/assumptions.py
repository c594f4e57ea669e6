"""Assumptions of bounds on schedules and switches, in words, and the machine whose switches may do more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from blinksim.bounds.certificates import Certificate, Partition, Phases
from blinksim.bounds.lengths import Lengths
from blinksim.collective import Collective
from blinksim.topology.elements import BRANCHING

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

NOTHING = "nothing, it holds for every schedule"
NO_CODING = "no coding: every message is one element or a reduction of such"
ONLY_TREES = "switches and other devices without a rank only forward, and every element moves along trees"
TWO_PHASES = "every rank reduces an equal shard, then all shards are gathered"
TREES_BRANCH = "every element moves along trees that may branch there"
# What NVLink switches do for NVLS.
NVLS_GRANTS = ("multicast", "reduce_into_reader")
REDUCING_SWITCHES = "switches may multicast and reduce into readers"
EVERY_LINK = "links of every class carry data"
IDLE_FORWARD = "GPUs that do not take part forward"
WIDE_FABRIC = "the switches between nodes carry all that enters them"
FAST_NETWORK = "adapters and the links between nodes carry what a channel carries within a node"
BY_SUMS = "by sums alone, as a search takes long here; it might find a tighter bound"
UNSHARED_LINKS = "links that share a bus carry their full rate each, both ways at once"


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
        if certificate.grants:
            return f"{granted_to_switches(certificate.grants)}; {TREES_BRANCH}"
        if not collective.personalized:
            return ONLY_TREES
        # Network coding can beat all flows between several pairs (not from one source or to one sink): the butterfly of
        # Ahlswede, Cai, Li and Yeung (2000), with two pairs.
        return NO_CODING if collective.exchanges else NOTHING
    return NOTHING


def granted_to_switches(grants: Sequence[str]) -> str:
    """What a certificate lets switches do, in words.

    >>> granted_to_switches(NVLS_GRANTS) == REDUCING_SWITCHES
    True
    """
    return f"switches may {' and '.join(BRANCHING[grant] for grant in grants)}"


def grants_in(assumes: str) -> frozenset[str]:
    """What a bound that assumes this lets switches do."""
    first = assumes.partition(";")[0]
    return frozenset(
        ability for ability, words in BRANCHING.items() if assumes.endswith(TREES_BRANCH) and words in first
    )


def with_reduction(topology: Topology) -> Topology:
    """The machine where the switches inside nodes multicast and reduce into readers, as NVLink switches do for NVLS.

    One that reduces in flight, as its file says, keeps what it can.
    """
    devices = tuple(
        replace(device, can=device.can | {*NVLS_GRANTS})
        if device.kind == "switch" and "reduce" not in device.can
        else device
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


def with_fast_network(topology: Topology, rate: Fraction) -> Topology:
    """The machine whose adapters, and links outside of nodes, carry at least `rate` (bytes/s) each way."""
    far = {device.name for device in topology.devices if device.kind == "nic" or device.node < 0}
    return topology.with_links(
        replace(link, lane_bandwidth=rate / link.lanes)
        if {link.src, link.dst} & far and link.bandwidth < rate
        else link
        for link in topology.links
    )


def with_unshared_links(topology: Topology) -> Topology:
    """The machine where no links share a bus, as files of NCCL have it."""
    if not topology.link_columns.shared:
        return topology
    return topology.with_links(replace(link, bus=None) for link in topology.links)


def granting(assumes: str, *granted: str) -> str:
    """`assumes` for a bound that also lets the machine do what is `granted`."""
    for grant in granted:
        # A certificate may name by itself what it grants.
        assumes = assumes.removeprefix(f"{grant}; ")
    return "; ".join((*granted, *([] if assumes == NOTHING else [assumes]))) or NOTHING
