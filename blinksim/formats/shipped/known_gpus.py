"""GPU models of recorded machines, by ``models/gpus.yaml``, and the constants measured on such GPUs.

NCCL's topology files give PCI numbers and ``nvidia-smi`` model names. A machine with the GPUs and NVLinks of
one in the catalogue, its twin, runs programs and NCCL as that one was measured to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from blinksim import data_files
from blinksim.errors import InputError
from blinksim.formats import machine_yaml, rate_tables
from blinksim.formats.rate_tables import ClassRates, RateTable
from blinksim.formats.shipped.machine_names import MEASURED, catalogue_file, measured_rates, outline
from blinksim.textio import yaml_nodes
from blinksim.topology.elements import Device
from blinksim.topology.graph import Topology

if TYPE_CHECKING:
    from blinksim.timing.measured_constants import ExecutionRates

_NVIDIA, _OWN = "10de", "nvlink"
_OTHERS = "take nominal or nccl, or a rates file"


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A model of GPU. machine: of the catalogue, made of it. pci: its device numbers, as four hex digits."""

    name: str
    machine: str
    pci: tuple[str, ...]
    also: tuple[str, ...]


@cache
def known_gpus() -> tuple[KnownGpu, ...]:
    """All rows of the table."""
    table = yaml_nodes.plain(data_files.folder("models") / "gpus.yaml", "table of GPUs")
    return tuple(KnownGpu(row["name"], row["machine"], tuple(row["pci"]), tuple(row["also"])) for row in table["gpus"])


def named(model: str) -> KnownGpu | None:
    """The GPU that drivers call `model`, such as ``NVIDIA H100 80GB HBM3``; None if it is not in the table."""
    return next((gpu for gpu in known_gpus() if model == gpu.name or model in gpu.also), None)


def execution_rates(model: str) -> ExecutionRates | None:
    """What it costs GPUs that drivers call `model` to run programs; None if nobody measured it.

    >>> from blinksim.formats.shipped.known_gpus import execution_rates
    >>> execution_rates("NVIDIA H200").blocks
    132
    """
    gpu = named(model)
    rates = None if gpu is None else machine_yaml.read(catalogue_file(gpu.machine)).execution
    return rates if rates is not None and rates.measured.band is None else None


def with_constants(recorded: Topology, rates: str) -> Topology:
    """A recorded machine with the constants of its twin, at nominal rates or NCCL's; as it is if it has no twin.

    rates: ``measured`` gives its NVLinks the twin's measured rates as well. Raises `InputError` for these without a
    twin that has them.
    """
    models = {known_gpu(recorded.device(name)) for name in recorded.members}
    gpu = models.pop() if len(models) == 1 else None
    twin = None if gpu is None else machine_yaml.read(catalogue_file(gpu.machine))
    if gpu is None or twin is None or _ports(recorded) != _ports(twin):
        if rates == MEASURED:
            raise InputError(f"{recorded.name} has no measured rates: nobody measured such GPUs and NVLinks; {_OTHERS}")
        return recorded
    recorded = replace(recorded, execution=twin.execution, nccl_rates=twin.nccl_rates)
    if rates != MEASURED:
        return recorded
    measured, row = measured_rates(gpu.machine), None
    if measured is not None:
        row = measured.classes.get(_OWN)
    elif MEASURED in outline(gpu.machine).rate_names():
        own = machine_yaml.read(catalogue_file(gpu.machine), MEASURED)
        row = ClassRates(next(link.lane_bandwidth for link in own.links if link.kind == _OWN))
    if row is None:
        raise InputError(f"{recorded.name} has no measured rates: nobody measured NVLinks of {gpu.machine}; {_OTHERS}")
    return rate_tables.apply(recorded, RateTable(MEASURED, {_OWN: row}))


def known_gpu(device: Device) -> KnownGpu | None:
    """The GPU that a recorded device is, by its model or its PCI number; None if it is not in the table."""
    given = device.attributes
    if "model" in given:
        return named(str(given["model"]))
    vendor, number = (str(given.get(key, "")).lower().removeprefix("0x") for key in ("vendor", "device"))
    return next((gpu for gpu in known_gpus() if number in gpu.pci), None) if vendor == _NVIDIA else None


def _ports(topology: Topology) -> set[tuple[object, bool, int]]:
    """Which NVLinks leave the members: from which compute capability, whether to a switch, and of how many lanes."""
    held = {name: topology.device(name).attributes.get("sm") for name in topology.members}
    return {
        (held[link.src], topology.device(link.dst).kind == "switch", link.lanes)
        for link in topology.links
        if link.kind == _OWN and link.src in held
    }
