"""Recorded machines and their like in the catalogue: GPU models, measured constants, what is missing.

NCCL's topology files give PCI numbers and ``nvidia-smi`` model names, which ``models/gpus.yaml`` knows. A
machine with the GPUs and NVLinks of one in the catalogue, its twin, runs programs and NCCL as that one was
measured to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from blinksim import data_files
from blinksim.errors import InputError
from blinksim.formats import machine_yaml, rate_tables
from blinksim.formats.rate_tables import ClassRates, RateTable
from blinksim.formats.shipped.machine_names import MEASURED, catalogue_file, measured_rates, names, outline
from blinksim.textio import yaml_nodes
from blinksim.textio.text_table import count
from blinksim.timing.measured_constants import ExecutionRates
from blinksim.topology.elements import Device, Link
from blinksim.topology.graph import Topology
from blinksim.topology.rules import Finding, listed

_NVIDIA, _OWN = "10de", "nvlink"
_BETWEEN_GPUS, _BESIDE = (_OWN, "xgmi"), ("gpu", "tile", "pcie")
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


def model(device: Device) -> str:
    """The model of a GPU as the catalogue has it, without form and memory: ``H100``."""
    known = known_gpu(device)
    twin = None if known is None else machine_yaml.read(catalogue_file(known.machine))
    device = device if twin is None else twin.device(twin.members[0])
    return str(device.attributes.get("model", "")).partition("-")[0]


def lacking(recorded: Topology, whole: Topology) -> dict[Link, int] | None:
    """The lanes between GPUs and to switches that `whole` has and `recorded` lacks; None where it has others.

    All switches count as one, and a link between two GPUs for both its directions.
    """
    had, has = (
        {
            frozenset((link.src, link.dst if link.dst in machine.members else "")): link
            for link in reversed(machine.links)
            if link.kind in _BETWEEN_GPUS and link.src in machine.members
        }
        for machine in (recorded, whole)
    )
    lanes = {ends: link.lanes for ends, link in had.items()}
    fewer = {link: link.lanes - lanes.pop(ends, 0) for ends, link in reversed(has.items())}
    if lanes or min(fewer.values(), default=0) < 0:
        return None
    return {link: count for link, count in fewer.items() if count}


@dataclass(frozen=True, slots=True)
class Twin:
    """The machine of the catalogue that a recorded one is most like, and what the recorded one has less.

    gpus, nics: how many fewer, below 0 for more. lanes: fewer of each link. edits: what makes the machine of
    the catalogue lack these lanes and GPUs.
    """

    name: str
    gpus: int
    nics: int
    lanes: dict[Link, int]
    edits: tuple[str, ...]

    @property
    def less(self) -> str:
        """What is missing, counted in words; empty if nothing is."""
        counts = {"GPU": self.gpus, "lane": sum(self.lanes.values()), "NIC": self.nics}
        return " and ".join(count(many, what) for what, many in counts.items() if many > 0)


def twin_of(recorded: Topology) -> Twin | None:
    """The nearest machine in the catalogue with such GPUs and links between them; None if there is none.

    GPUs of unknown model are alike by their compute capability. NICs count that are beside GPUs, if any are.
    """
    gpu, found = recorded.device(recorded.members[0]), list[Twin]()
    key: Callable[[Device], object] = model if model(gpu) else lambda device: device.attributes.get("sm")
    for name in dict.fromkeys([*(known.machine for known in known_gpus()), *names()]):
        whole = machine_yaml.read(catalogue_file(name))
        gone, near = whole.ranks - recorded.ranks, _nics(recorded)
        if gone >= 0 and key(whole.device(whole.members[0])) == key(gpu) is not None:
            # Names count on, so they do not tell which GPUs are gone.
            fewer = lacking(recorded, whole) if not gone else {}
            beside = _nics(whole) * recorded.ranks // whole.ranks
            if fewer is not None and (not gone or _ports(recorded) <= _ports(whole)):
                edits = *(f"without {member}" for member in whole.members[recorded.ranks :]), *_losing(fewer)
                found.append(Twin(name, gone, beside - near if near else 0, fewer, edits))
    if not {*_BETWEEN_GPUS} & {*recorded.link_classes}:
        return None
    return min(found, key=lambda one: (one.gpus, sum(one.lanes.values()), abs(one.nics)), default=None)


def _losing(fewer: dict[Link, int]) -> Iterator[str]:
    """The edits that take so many lanes from links."""
    for link, lanes in fewer.items():
        ends, left = f"{link.src}-{link.dst}", link.lanes - lanes
        yield f"degrade {ends} lanes={left}" if left else f"without {ends}"


def compare(recorded: Topology) -> list[Finding]:
    """What a recorded machine lacks of its twin: GPUs, NVLinks, NICs."""
    twin = twin_of(recorded)
    if twin is None or not twin.less:
        return []
    ends = listed(f"{link.src}-{link.dst} ({count(fewer, 'lane')})" for link, fewer in twin.lanes.items())
    words = f"{twin.less} fewer than {twin.name}{': ' if ends else ''}{ends}"
    cure = "see whether these links are down (nvidia-smi nvlink -s)" if ends else "see what lspci lists"
    return [Finding("as-in-catalogue", "warning", words, cure)]


def _nics(topology: Topology) -> int:
    """How many NICs are joined with GPUs or PCIe switches, not with a CPU."""
    kind = {device.name: device.kind for device in topology.devices}
    return len({end.src for end in topology.links if kind[end.src] == "nic" and kind[end.dst] in _BESIDE})


def completed(recorded: Topology, like: Topology) -> Topology:
    """The GPUs of `like` that were recorded, with all that `like` has but the lanes that `recorded` lacks.

    Raises `InputError` if `like` has not all of its GPUs and NVLinks.
    """
    machine = like.subset(recorded.members)
    fewer = lacking(recorded, machine)
    if fewer is None:
        raise InputError(f"{recorded.name} has other NVLinks than {like.name}; name the machine that it is")
    for edit in _losing(fewer):
        machine = machine.edit(edit)
    less = f" without {count(sum(fewer.values()), 'lane')}" if fewer else ""
    source = f"{recorded.source.partition('; ')[0]}; completed as {like.name}{less}"
    return replace(machine, name=recorded.name, source=source, edits=())


def _ports(topology: Topology) -> set[tuple[object, bool, int]]:
    """Which NVLinks leave the members: from which compute capability, whether to a switch, and of how many lanes."""
    held = {name: topology.device(name).attributes.get("sm") for name in topology.members}
    return {
        (held[link.src], topology.device(link.dst).kind == "switch", link.lanes)
        for link in topology.links
        if link.kind == _OWN and link.src in held
    }
