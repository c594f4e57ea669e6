"""Recorded machines and their like in the catalogue: GPU models, measured constants, what is missing.

NCCL's topology files give PCI numbers and ``nvidia-smi`` model names, which ``models/gpus.yaml`` knows. A
machine with the GPUs and NVLinks of one in the catalogue, its twin, runs programs and NCCL as that one was
measured to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

from blinksim import data_files
from blinksim.errors import InputError
from blinksim.formats import machine_yaml, rate_tables
from blinksim.formats.rate_tables import ClassRates, RateTable
from blinksim.formats.shipped.machine_names import catalogue_file, measured_rates, names, outline
from blinksim.results import count
from blinksim.textio import link_rates, yaml_nodes
from blinksim.timing.measured_constants import ExecutionRates
from blinksim.topology.edits import BETWEEN_GPUS, in_ranges, lacking, losing
from blinksim.topology.elements import RCCL, Device, Link
from blinksim.topology.graph import Topology
from blinksim.topology.rules import Finding, beside_gpus, listed
from blinksim.units import format_rate

# How the source of a machine begins that was read from what it says of itself, and of which links that does
# not say how fast they are.
UNTOLD = {"NCCL topology file ": "cpu", "nvidia-smi topo -m in ": "pcie cpu", "NCCL's debug log in ": "cpu"}
UNTOLD |= {"nvidia-smi and lspci -vv in ": "cpu", "lspci -vv in ": "nvlink cpu"}
UNTOLD |= {"lspci in ": "nvlink pcie cpu"}
RECORDED = tuple(UNTOLD)
_BESIDE = "gpu", "tile", "pcie"
_OTHERS = "take nominal or nccl, or a rates file"


@dataclass(frozen=True, slots=True, eq=False)
class KnownGpu:
    """A model of GPU. machine: of the catalogue, made of it. vendor, pci: numbers of PCI, as four hex digits.

    rccl: what RCCL's files say of it.
    """

    name: str
    machine: str
    vendor: str
    pci: Sequence[str]
    also: Sequence[str]
    rccl: Mapping[str, Any]


@cache
def known_gpus() -> tuple[KnownGpu, ...]:
    """All rows of the table."""
    table = yaml_nodes.plain(data_files.folder("models") / "gpus.yaml", "table of GPUs")
    return tuple(KnownGpu(**{"rccl": {}, **row}) for row in table["gpus"])


def named(model: str) -> KnownGpu | None:
    """The GPU that drivers call `model`, such as ``NVIDIA H100 80GB HBM3``, or of this PCI number; or None."""
    return next((gpu for gpu in known_gpus() if model in (gpu.name, *gpu.also, *gpu.pci)), None)


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

    rates: ``measured`` gives the links between its GPUs the twin's measured rates as well.

    Raises `InputError` for these without a twin that has them.
    """
    models = {known_gpu(recorded.device(name)) for name in recorded.members}
    gpu = models.pop() if len(models) == 1 else None
    twin = recorded if gpu is None else machine_yaml.read(catalogue_file(gpu.machine))
    ports, there = _ports(recorded), _ports(twin)
    if ports == there:
        recorded = replace(recorded, execution=twin.execution, nccl_rates=twin.nccl_rates)
    if rates == recorded.rates:
        return recorded
    row, own, sort = None, max(map(itemgetter(0), ports), default=""), itemgetter(0, 1, 2)
    if rates == "nccl" and own == "nvlink":
        sm = int(recorded.device(recorded.members[0]).attributes["sm"])
        row = ClassRates(link_rates.load(rates).nvlink_lane(sm))
    # Lanes that are lost leave the others as they are.
    elif gpu is not None and ports and {*map(sort, ports)} == {*map(sort, there)}:
        if (measured := measured_rates(gpu.machine)) is not None:
            row = measured.classes.get(own)
        elif rates in outline(gpu.machine).rate_names():
            rated = machine_yaml.read(catalogue_file(gpu.machine), rates)
            row = ClassRates(next(link.lane_bandwidth for link in rated.links if link.kind == own))
    if row is None:
        raise InputError(f"{recorded.name} has no {rates} rates: nobody measured such GPUs and NVLinks; {_OTHERS}")
    return rate_tables.apply(recorded, RateTable(rates, {own: row}))


def known_gpu(device: Device) -> KnownGpu | None:
    """The GPU that a recorded device is, by its model or its PCI number; None if it is not in the table."""
    given = device.attributes
    if "model" in given:
        return named(str(given["model"]))
    vendor, number = (str(given.get(key, "")).lower().removeprefix("0x") for key in ("vendor", "device"))
    return next((gpu for gpu in known_gpus() if gpu.vendor == vendor and number in gpu.pci), None)


def numbered(machine: Topology) -> Topology:
    """A machine with what NCCL's and RCCL's files say of its GPUs, such as PCI numbers, if it is known."""
    gpus = [known_gpu(device) or named(f"NVIDIA {model(device)}") for device in machine.devices]
    numbers = [{"vendor": f"0x{gpu.vendor}", "device": f"0x{gpu.pci[0]}", **gpu.rccl} if gpu else {} for gpu in gpus]
    every = zip(machine.devices, numbers, strict=True)
    return replace(machine, devices=tuple(replace(x, attributes={**own, **x.attributes}) for x, own in every))


def model(device: Device) -> str:
    """The model of a GPU as the catalogue has it, without form and memory: ``H100``."""
    known = known_gpu(device)
    twin = None if known is None else machine_yaml.read(catalogue_file(known.machine))
    device = device if twin is None else twin.device(twin.members[0])
    return str(device.attributes.get("model", "")).partition("-")[0]


@dataclass(frozen=True, slots=True)
class Twin:
    """The machine of the catalogue that a recorded one is most like, and what the recorded one has less.

    gpus, nics: how many fewer, below 0 for more. far: how unlike the NICs beside GPUs are. lanes: fewer of
    each link. edits: what makes the machine of the catalogue lack these lanes, GPUs and NICs. missing: in
    words, as ``gpu5 has 12 of 18 lanes``. nodes: how many show what it costs: two where NICs alone are gone.
    shown: if the recorded machine itself does; else its like does, as between nodes or without its NVLinks.
    """

    name: str
    gpus: int = 0
    nics: int = 0
    far: int = 0
    lanes: dict[Link, int] = field(default_factory=dict)
    edits: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    nodes: int = 1
    shown: bool = True


def like(machine: Topology) -> Twin | None:
    """The twin of a machine that says itself which GPUs it has and which links join them.

    None of any other.
    """
    read = not machine.edits and machine.source.startswith(RECORDED)
    if not read or {*BETWEEN_GPUS}.isdisjoint(machine.link_classes):
        return None
    models = {model(machine.device(name)) for name in machine.members}
    return twin_of(machine) if len(models) == 1 and "" not in models else None


@lru_cache(maxsize=16)
def twin_of(recorded: Topology) -> Twin | None:
    """The nearest machine in the catalogue with such GPUs and links between them; None if there is none.

    GPUs of unknown model are alike by their compute capability. NICs count that are beside GPUs, if any are.
    GPUs without links have a twin if their model is sold with links only, and none of them is gone.
    """
    gpu = recorded.device(recorded.members[0])
    key: Callable[[Device], object] = model if model(gpu) else _generation
    own = known_gpu(gpu)
    every = [*([own.machine] if own else []), *(known.machine for known in known_gpus()), *names()]
    wholes = (machine_yaml.read(catalogue_file(name)) for name in dict.fromkeys(every))
    alike = (whole for whole in wholes if key(whole.device(whole.members[0])) == key(gpu) is not None)
    found = list[Twin]()
    for twin in filter(None, (_compared(recorded, whole) for whole in alike)):
        found.append(twin)
        if not (twin.missing or twin.far):
            break
    return min(found, key=lambda one: (one.gpus, sum(one.lanes.values()), one.far), default=None)


def _compared(recorded: Topology, whole: Topology) -> Twin | None:
    """A recorded machine beside one of the catalogue with such GPUs; None if it has other links."""
    # By lspci alone GPUs have the NVLinks that they are sold with, or none.
    untold = recorded.source.startswith("lspci")
    linked = untold or not {*BETWEEN_GPUS}.isdisjoint(recorded.link_classes)
    gone = whole.ranks - recorded.ranks
    # If GPUs are gone, names, which count on, do not tell which links are.
    fewer = lacking(recorded, whole) if not gone else {} if _ports(recorded) <= _ports(whole) else None
    known = linked or (not gone and known_gpu(recorded.device(recorded.members[0])) is not None)
    if fewer is None or gone < 0 or not known:
        return None
    lost, (nics, far, apart, without) = [*losing(fewer, whole)], _fewer_nics(recorded, whole)
    words = [words for words, _ in lost] if linked else ["no GPU has NVLink"]
    words += [f"{count(gone, 'GPU')} fewer"] * bool(gone)
    edits = *(f"without {member}" for member in whole.members[recorded.ranks :]), *(edit for _, edit in lost)
    off = [*without, *_slowing(recorded, whole)]
    nodes = 2 if off and whole.fabric and not edits else 1
    shown = nodes == 1 and not untold
    return Twin(whole.name, gone, nics, far, fewer, (*edits, *off), (*words, *apart), nodes, shown)


def _fewer_nics(recorded: Topology, whole: Topology) -> tuple[int, int, list[str], list[str]]:
    """NICs that are gone from beside GPUs, how unlike these are, what each lacks, and edits; nothing without any.

    The edits leave out those that are not elsewhere in the machine.
    """
    near, there = adapters(recorded), adapters(whole)
    own, others = (sorted({*chain(*nics.values())}) for nics in (near, there))
    lack = {name: min(map(len, there.values())) - len(nics) for name, nics in near.items() if own}
    runs = {few: in_ranges(name for name in lack if lack[name] == few) for few in {*lack.values()} if few > 0}
    words = [f"{run}: {count(few, 'NIC')} fewer on its side of the CPU" for few in runs for run in runs[few]]
    far = len(own) and (2 * sum(map(abs, lack.values())) or len(own) != len(others))
    off = dict.fromkeys(nic for name, few in lack.items() for nic in sorted(there[name])[: max(few, 0)])
    gone = len(others) * recorded.ranks // whole.ranks - len(own) if own else 0
    if gone > len(off) == 0:
        # GPUs share what is left.
        words, off = [f"{count(gone, 'NIC')} fewer"], dict.fromkeys(others[-gone:])
    before, now = ([*map(attrgetter("kind"), one.devices)].count("nic") for one in (whole, recorded))
    return gone, far, words, [f"without {nic}" for nic in off][: max(before - now, 0)]


def _slowing(recorded: Topology, whole: Topology) -> Iterator[str]:
    """Edits that leave PCIe ports what those here have of most others, or of what they can by lspci."""
    ports = {link.src: link.bandwidth for link in recorded.links if link.kind == "pcie"}
    beside = ([*dict.fromkeys(chain(*map(sorted, adapters(one).values())))] for one in (recorded, whole))
    for own, others in ((recorded.members, whole.members), tuple(beside)):
        rates = Counter(ports[name] for name in own if name in ports)
        most = max(rates, key=lambda rate: (rates[rate], rate), default=0)
        for name, other in zip(own, others, strict=False):
            less = recorded.device(name).attributes.get("pcie_left") or ports.get(name, most) / (most or 1)
            if (left := Fraction(str(less))) < 1:
                for link in whole.links:
                    if (link.src, link.kind) == (other, "pcie"):
                        rate = format_rate(link.lane_bandwidth * left).replace(" ", "")
                        yield f"degrade {other}-{link.dst} bandwidth={rate}"


def compare(recorded: Topology) -> list[Finding]:
    """What a recorded machine lacks of its twin: GPUs, NVLinks, NICs."""
    if (twin := twin_of(recorded)) is None or not twin.missing:
        return []
    cure = "see whether links are down (nvidia-smi nvlink -s), and what lspci lists"
    return [Finding("as-in-catalogue", "warning", f"like {twin.name}, but {listed(twin.missing)}", cure)]


def adapters(topology: Topology) -> dict[str, set[str]]:
    """The NICs beside each member: on its PCIe switches or its own links, not across a CPU."""
    kind, together = {device.name: device.kind for device in topology.devices}, beside_gpus(topology)
    nics = {end.src for end in topology.links if kind[end.src] == "nic" and kind[end.dst] in _BESIDE}
    own = {name: together.get(name, name) for name in topology.members}
    return {name: {nic for nic in nics if together.get(nic) == root} for name, root in own.items()}


def completed(recorded: Topology, like: Topology) -> Topology:
    """The GPUs of `like` that were recorded, with all that `like` has but the lanes and NICs that `recorded` lacks.

    Raises `InputError` if `like` has not all of its GPUs and NVLinks.
    """
    machine = like.subset(recorded.members)
    if (fewer := lacking(recorded, machine)) is None:
        raise InputError(f"{recorded.name} has other NVLinks than {like.name}; name the machine that it is")
    _, _, apart, off = _fewer_nics(recorded, machine)
    edits = [*(edit for _, edit in losing(fewer, machine)), *off]
    for edit in edits:
        machine = machine.edit(edit)
    # As many NICs in all, at other places.
    moved = f"; NICs placed as there and not as recorded: {listed(apart)}" * bool(apart and not off)
    source = f"{recorded.source.partition('; ')[0]}; completed as {', '.join((like.name, *edits))}{moved}"
    return replace(machine, name=recorded.name, source=source, edits=())


def _generation(device: Device) -> object:
    """The compute capability; None of a GPU of AMD, as RCCL counts compute units in its place."""
    return None if device.library == RCCL else device.attributes.get("sm")


def _ports(topology: Topology) -> set[tuple[str, object, bool, int]]:
    """Which links leave the members: class, from which compute capability, whether to a switch, and lanes."""
    held = {name: _generation(topology.device(name)) for name in topology.members}
    return {
        (link.kind, held[link.src], topology.device(link.dst).kind == "switch", link.lanes)
        for link in topology.links
        if link.kind in BETWEEN_GPUS and link.src in held
    }
