"""What NCCL calls the devices of a machine: GPUs and network devices by number, paths between them by type.

GPUs go by their NVML number, which is the order on the PCIe bus and what nvidia-smi shows; network devices by the order
of NCCL's plugin. A topology file says both (``dev``); in the catalogue's machines ``gpu3`` is number 3 of its node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from blinksim.errors import InfeasibleError
from blinksim.nccl.families import PATH_TYPES
from blinksim.nccl.files.graph_rules import Communicator
from blinksim.nccl.files.topo_elements import GPU_KINDS
from blinksim.topology.graph import Device, Topology

_NUMBERED = re.compile(r"(?:n[0-9]+\.)?(?:gpu|net|nic)([0-9]{1,4})")


def number(device: Device) -> int:
    """The number of a GPU or network device; raises `InfeasibleError` if neither name nor attributes give it."""
    given = device.attributes.get("dev")
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    match = _NUMBERED.fullmatch(device.name)
    if match is None:
        raise InfeasibleError(
            f"{device.name} has no number that NCCL knows; give the {device.kind} the attribute dev in the machine file"
        )
    return int(match[1])


def net_number(topology: Topology, device: Device) -> int:
    """The number of a network device: its own, or its position among those of its node."""
    if "dev" in device.attributes or _NUMBERED.fullmatch(device.name):
        return number(device)
    ports = [d.name for d in topology.devices if d.node == device.node and is_port(topology, d)]
    return ports.index(device.name)


def local_gpus(topology: Topology) -> list[list[int]]:
    """The numbers of the members of every node that has any, in rank order.

    Raises `InfeasibleError` for two members with one number in a node, and as `number`.
    """
    nodes: dict[int, list[int]] = {}
    for name in topology.members:
        device = topology.device(name)
        nodes.setdefault(device.node, []).append(number(device))
    for node, gpus in nodes.items():
        if len(set(gpus)) < len(gpus):
            raise InfeasibleError(f"two ranks of node {node} have the same GPU number; NCCL runs one rank on each GPU")
    return list(nodes.values())


def compute_capability(topology: Topology) -> int | None:
    """The lowest compute capability of the members, times ten; None if no member says it."""
    known = [topology.device(name).attributes.get("sm") for name in topology.members]
    return min((sm for sm in known if isinstance(sm, int)), default=None)


def has_nvswitch(topology: Topology) -> bool:
    return any(device.kind == "switch" for device in topology.devices if device.node >= 0 or topology.nodes == 1)


def path_type(topology: Topology, links: Iterable[int]) -> str:
    """NCCL's name for a route (indices into topology.links): the farthest of the devices that it passes."""
    route = [topology.links[i] for i in links]
    kinds = [topology.device(link.src).kind for link in route[1:]]
    gpus, cpus, pcie = sum(k in GPU_KINDS for k in kinds), kinds.count("cpu"), kinds.count("pcie")
    if cpus or gpus > 1:
        return "PHB" if cpus == 1 and not gpus else "SYS"
    if gpus:
        return "NVB"
    ends = {topology.device(route[0].src).kind, topology.device(route[-1].dst).kind} if route else set()
    if pcie:
        return "PIX" if pcie == 1 else "PXB"
    # A NIC drawn at its GPU sits on the same PCIe switch.
    return "PIX" if "nic" in ends else "NVL"


def farthest(types: Iterable[str], default: str) -> str:
    """The farthest of some path types, `default` without any."""
    return max(types, key=PATH_TYPES.index, default=default)


def communicator(topology: Topology) -> Communicator:
    """The members of `topology` as NCCL sees them, for `graph_rules.judge`.

    Raises `InfeasibleError` if the nodes do not have the same GPUs in the same order: a graph file is for one node.
    """
    nodes = local_gpus(topology)
    if any(gpus != nodes[0] for gpus in nodes):
        raise InfeasibleError("the nodes have different GPUs in the job; a graph file describes one node for all")
    first = topology.device(topology.members[0]).node
    here = {d.name: d for d in topology.devices if d.node == first}
    linked: set[tuple[int, int]] = set()
    for link in topology.links:
        if link.src in here and link.dst in here and link.kind == "nvlink":
            src, dst = here[link.src], here[link.dst]
            if src.kind in GPU_KINDS and dst.kind in GPU_KINDS:
                linked.add((number(src), number(dst)))
    if has_nvswitch(topology):
        linked |= {(a, b) for a in nodes[0] for b in nodes[0] if a != b}
    nets = frozenset(net_number(topology, d) for d in here.values() if d.kind == "nic" and is_port(topology, d))
    known = any(link.kind == "nvlink" for link in topology.links)
    sm = compute_capability(topology) or 0
    return Communicator(
        tuple(nodes[0]), len(nodes), sm, has_nvswitch(topology), frozenset(linked) if known else None, nets or None
    )


def is_port(topology: Topology, device: Device) -> bool:
    """True for what NCCL counts as a network device; an adapter with ports of its own is none."""
    if device.kind != "nic":
        return False
    ports = [topology.device(topology.links[i].dst) for i in topology.out_links[topology.index[device.name]]]
    return not any(port.kind == "nic" and port.node == device.node for port in ports)
