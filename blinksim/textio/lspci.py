"""GPUs and network adapters in the text of `lspci -vv`: where they are, and how fast their PCIe links run.

``LnkCap`` is what a device can do, ``LnkSta`` what its link does, ``ACSCtl`` whether a port sends traffic
between the devices below it up to the CPU (words: lspci of pciutils). Below a bridge are all buses from its
secondary to its subordinate one.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from blinksim.textio import link_rates

_DEVICE = re.compile(
    r"^((?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):[0-9a-f]{2}\.[0-7]) ([^:\n]{1,60}: .{1,200})\n((?:[ \t].*\n?)*)",
    re.MULTILINE,
)
_LINK = re.compile(r"Lnk(Cap|Sta):.*?Speed ([0-9.]{1,5})GT/s[^,\n]{0,20}, Width x([1-9][0-9]?)\b")
# A GPU's PCI number, or its name.
_MODEL = re.compile(r"\[10de:([0-9a-f]{4})\]|\[([^]:]{1,60})\]")
# What fell off the bus has revision ff. Adapters for RDMA count, and no others.
_KINDS = {
    "lost": re.compile(r"(?:3D|VGA compatible) controller.*NVIDIA.*\(rev ff\)"),
    "gpu": re.compile(r"(?:3D|VGA compatible) controller.*NVIDIA"),
    "nic": re.compile(
        r"(?:Infiniband|Ethernet) controller(?!.*Virtual).*(?:Mellanox|Elastic Fabric Adapter|BCM57[56])"
    ),
}


class Device(NamedTuple):
    """One device.

    slot: as lspci writes it. kind: ``gpu``, ``nic``, ``lost`` for a GPU that does not answer, or empty.
    models: what may name a GPU. bus: its number, those of a domain in a row. below: the buses below a bridge.
    does: the rate of its link, as a multiple of generation 3 with 16 lanes. facts: ``pcie``, that in words,
    of what it could be, and ``pcie_left``, the share; none if they are not told. redirects: if it is a
    switch's port that sends what is for its neighbours to the CPU.
    """

    slot: str
    kind: str
    models: tuple[str, ...]
    numa: str
    bus: int
    below: range
    does: Fraction
    facts: dict[str, str]
    redirects: bool


def read(text: str) -> list[Device]:
    """All devices in a text, by their places; none in what is not of lspci."""
    lane, found = link_rates.load("nominal").pcie, list[Device]()
    for slot, domain, bus, name, said in _DEVICE.findall(text):
        kind = next((kind for kind, words in _KINDS.items() if words.match(name)), "")
        # The first of each, as a device says it; NCCL takes what is not told for generation 3 with 16 lanes.
        links = {which: (speed, lanes) for which, speed, lanes in reversed(_LINK.findall(said))}
        most = links.get("Cap", ("8", "16"))
        speed, lanes = links.get("Sta", most)
        # A GPU lowers its link to 2.5 GT/s while it has nothing to do.
        now = (most[0] if kind == "gpu" and speed == "2.5" else speed), lanes
        does, can = (lane.get(speed, lane["8"]) / lane["8"] * int(lanes) / 16 for speed, lanes in (now, most))
        words = " of ".join(f"{speed} GT/s x{lanes}" for speed, lanes in (now, most))
        facts = {"pcie": words, "pcie_left": str(does / can)} if links else {}
        start, numa = int(domain or "0", 16) * 256, re.findall(r"NUMA node: ([0-9]{1,3})", said) or ["0"]
        ends = re.findall(r"Bus: primary=.., secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", said)
        below = [range(start + int(one, 16), start + int(last, 16) + 1) for one, last in ends] or [range(0)]
        models = tuple(number or model for number, model in reversed(_MODEL.findall(name.partition(": ")[2])))
        redirects = re.search(r"Downstream Port(?s:.)*ACSCtl:.*ReqRedir\+", said) is not None
        place = numa[0], start + int(bus, 16), below[0]
        found.append(Device(slot, kind, models, *place, does, facts, redirects))
    return sorted(found, key=lambda device: device.slot)


def as_table(listed: dict[str, Device], devices: list[Device]) -> tuple[dict[tuple[str, str], str], set[str]]:
    """The cells of `nvidia-smi topo -m` for devices by their labels; those with ports above that redirect."""
    bridges = [one for one in devices if one.below]
    above = {label: {port.slot for port in bridges if one.bus in port.below} for label, one in listed.items()}
    cells = {}
    for (a, one), (b, two) in product(listed.items(), repeat=2):
        shared = len(above[a] & above[b])
        if a == b or shared:
            # Devices on one switch have each its port below what they share.
            most = max(len(above[a]), len(above[b]))
            cells[a, b] = "X" if a == b else "PIX" if most - shared < 2 else "PXB"
        else:
            cells[a, b] = "PHB" if one.numa == two.numa else "SYS"
    return cells, {label for label in listed if above[label] & {port.slot for port in bridges if port.redirects}}
