"""PCI bus ids of the devices of a node: those given, those of the machine, and made-up ones for the rest."""

from __future__ import annotations

from collections.abc import Sequence

from blinksim.errors import InputError
from blinksim.nccl.files.topo_elements import BUS_ID, GPU_KINDS
from blinksim.topology.graph import Device, Topology


class BusIds:
    """Bus ids by name of the device; `gpus` in the order in which `given` lists theirs.

    Raises `InputError` for bus ids that are malformed, repeated or too few.
    """

    def __init__(self, topology: Topology, gpus: Sequence[Device], given: Sequence[str] | None) -> None:
        self._of: dict[str, str] = _given(gpus, given) if given is not None else {}
        known = {str(d.attributes["busid"]).lower() for d in topology.devices if "busid" in d.attributes}
        self._taken = {*self._of.values(), *known}
        self._made = 0
        self.invents_gpus = False
        """True if the bus id of a GPU is made up."""
        for device in (*gpus, *(d for d in topology.devices if d.kind in ("pcie", "nic"))):
            if device.name in self._of:
                continue
            if "busid" in device.attributes:
                self._of[device.name] = str(device.attributes["busid"])
            else:
                self._of[device.name] = self.new()
                self.invents_gpus |= device.kind in GPU_KINDS

    def __getitem__(self, name: str) -> str:
        return self._of[name]

    def get(self, name: str) -> str:
        """The bus id of a device, empty if it has none."""
        return self._of.get(name, "")

    def new(self) -> str:
        """A bus id that no device has."""
        while True:
            self._made += 1
            bus = f"{self._made >> 8:04x}:{self._made & 255:02x}:00.0"
            if bus not in self._taken:
                self._taken.add(bus)
                return bus


def _given(gpus: Sequence[Device], given: Sequence[str]) -> dict[str, str]:
    lowered = [bus.strip().lower() for bus in given]
    for bus in lowered:
        if not BUS_ID.fullmatch(bus):
            raise InputError(f"{bus[:40]!r} is not a bus id such as 0000:1b:00.0")
    if len(lowered) != len(gpus) or len(set(lowered)) < len(lowered):
        raise InputError(f"{len(gpus)} different bus ids are needed, one for each GPU, not {len(given)}")
    return dict(zip((gpu.name for gpu in gpus), lowered, strict=True))
