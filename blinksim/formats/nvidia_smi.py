"""What `nvidia-smi topo -m` prints, as a machine: NVLinks counted pair by pair, the PCIe tree from path types.

The table (`smi_table`) names the nearest common point of every two devices or the number of NVLinks between two GPUs;
whether those lead to NVSwitches is a guess (`smi_guess`). What `nvidia-smi -L` and `nvidia-smi nvlink -s` print may
stand in the same text and is used: model names and lane rates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path

from blinksim.formats import smi_table
from blinksim.formats.smi_guess import assumed, capability, model_name, switch_lanes
from blinksim.formats.smi_table import SmiTable, gpu_number
from blinksim.textio import link_rates
from blinksim.textio.text_files import MIB
from blinksim.textio.text_files import read_text as text_of
from blinksim.topology.elements import machine_name, nvswitch
from blinksim.topology.graph import Device, Link, Topology

looks_like = smi_table.looks_like


def read(path: str | Path, rates: str = "nominal") -> Topology:
    """The machine in the file at `path`; see `read_text`. Raises `FileError` if it cannot be read."""
    return read_text(text_of(path, MIB, "text of nvidia-smi"), path, rates)


def read_text(text: str, path: str | Path, rates: str = "nominal") -> Topology:
    """The machine that the table of `nvidia-smi topo -m` in `text` describes.

    rates: ``nominal`` (data sheets) or ``nccl`` (what NCCL computes with), both from ``models/link_rates.yaml``; the
    table holds none. `path` names the machine and stands in messages. Devices: ``gpu<n>``, ``nic<n>``, ``cpu<n>``,
    ``pcie<n>`` and ``nvswitch``. GPUs of unknown model count as those that have as many NVLinks, and `source` says so.
    PCIe ports are taken for generation 3 with 16 lanes, as NCCL takes unknown ones. There is no fabric: the table has
    no network speeds.

    Raises `FileError` with the line for anything that is no such table, and `InputError` for other rates.
    """
    return _Builder(path, smi_table.parse(text, path), link_rates.load(rates)).build()


class _Builder:
    """Devices and links of a table."""

    def __init__(self, path: str | Path, table: SmiTable, rates: link_rates.LinkRates) -> None:
        self.path, self.table, self.rates = path, table, rates
        self.name = {label: self._device_name(label, position) for position, label in enumerate(table.labels)}
        self.links: list[Link] = []
        self.devices: list[Device] = []

    def _device_name(self, label: str, position: int) -> str:
        gpu = gpu_number(label)
        return f"gpu{gpu}" if gpu is not None else f"nic{position - len(self.table.gpus)}"

    def build(self) -> Topology:
        table = self.table
        for gpu in table.gpus:
            text = model_name(table, gpu)
            facts = {"dev": int(gpu[3:]), "sm": capability(table, gpu)} | ({"model": text} if text else {})
            self.devices.append(Device(self.name[gpu], "gpu", attributes=facts))
        for nic in (label for label in table.labels if label not in table.gpus):
            name = table.names.get(nic, nic)
            number = int(self.name[nic][3:])
            self.devices.append(Device(self.name[nic], "nic", attributes={"dev": number, "name": name}))
        self._nvlinks()
        self._pcie()
        machine = Topology(
            name=machine_name(Path(self.path).stem),
            devices=tuple(self.devices),
            links=tuple(self.links),
            members=tuple(self.name[gpu] for gpu in sorted(table.gpus, key=lambda gpu: int(gpu[3:]))),
            rates=self.rates.name,
            source="; ".join([f"nvidia-smi topo -m in {Path(self.path).name}", *assumed(table)]),
        )
        nvlink = machine.with_links(link for link in self.links if link.kind == "nvlink")
        whole = bool(nvlink.links) and len(nvlink.components()) == 1
        inside = tuple(kind for kind in ("nvlink", "pcie", "cpu") if kind in machine.link_classes)
        return replace(machine, collective_links=("nvlink",) if whole else inside)

    def add(self, src: str, dst: str, kind: str, lane: Fraction, lanes: int = 1, timing: str = "") -> None:
        latency, overhead = self.rates.timing[timing or kind]
        self.links.append(Link(src, dst, kind, lane, lanes, latency, overhead))

    def _nvlinks(self) -> None:
        gpus, count = self.table.gpus, switch_lanes(self.table)
        if count:
            self.devices.append(nvswitch(min(capability(self.table, gpu) for gpu in gpus)))
        for a in gpus:
            lane = self.rates.nvlink_lane(capability(self.table, a))
            assert lane is not None
            if count:
                self.add(self.name[a], "nvswitch", "nvlink", lane, count, "nvlink_to_switch")
                self.add("nvswitch", self.name[a], "nvlink", lane, count, "nvlink_from_switch")
                continue
            for b in gpus:
                if a != b and self.table.lanes(a, b):
                    self.add(self.name[a], self.name[b], "nvlink", lane, self.table.lanes(a, b))

    # --- the PCIe tree ------------------------------------------------------------------------------------------------

    def _pcie(self) -> None:
        """Switches and CPUs from the distances between devices; NVLinks hide that of their pairs."""
        labels, cells = self.table.labels, self.table.cells
        port = self.rates.pcie[self.rates.pcie_unknown_rate], self.rates.pcie_unknown_lanes
        affinity = self.table.affinity

        def same_node(a: str, b: str) -> bool:
            near = cells[a, b] in ("PIX", "PXB", "PHB", "NODE")
            return near or (a in affinity and affinity.get(a) == affinity.get(b))

        cpus = _groups(labels, same_node)
        near = _groups(labels, lambda a, b: cells[a, b] == "PIX")
        wide = _groups(labels, lambda a, b: cells[a, b] in ("PIX", "PXB"))
        made: list[Device] = []
        for number, group in enumerate(cpus):
            made.append(Device(f"cpu{number}", "cpu"))
            for outer in (part for part in wide if part[0] in group):
                top = f"cpu{number}"
                inner = [part for part in near if part[0] in outer]
                if len(inner) > 1:
                    top = self._switch(made, top, port)
                for part in inner:
                    place = self._switch(made, top, port) if len(part) > 1 or len(inner) > 1 else top
                    for label in part:
                        self._pair(place, self.name[label], "pcie", *port)
        between = self.rates.cpu_link("x86_64", "GenuineIntel", None, None).rate
        for a, b in permutations(range(len(cpus)), 2):
            self.add(f"cpu{a}", f"cpu{b}", "cpu", between)
        self.devices += made

    def _switch(self, made: list[Device], above: str, port: tuple[Fraction, int]) -> str:
        name = f"pcie{sum(device.kind == 'pcie' for device in made)}"
        made.append(Device(name, "pcie"))
        self._pair(above, name, "pcie", *port)
        return name

    def _pair(self, a: str, b: str, kind: str, lane: Fraction, lanes: int) -> None:
        self.add(a, b, kind, lane, lanes)
        self.add(b, a, kind, lane, lanes)


def _groups(labels: list[str], together: Callable[[str, str], bool]) -> list[list[str]]:
    """The labels by what is together, directly or through others, in their order."""
    left, found = list(labels), []
    while left:
        group = [left.pop(0)]
        for member in group:
            joined = [label for label in left if together(member, label)]
            group += joined
            left = [label for label in left if label not in joined]
        found.append(sorted(group, key=labels.index))
    return found
