"""What `nvidia-smi topo -m` prints, as a machine: NVLinks counted pair by pair, the PCIe tree from path types.

The table names the nearest common point of every two devices (PIX, PXB, PHB, NODE, SYS) or the number of NVLinks
between two GPUs (NV#). On machines with NVSwitches NV# is what each GPU has to the switch, shared by all its peers; on
others it is the pair's own. What `nvidia-smi -L` and `nvidia-smi nvlink -s` print may stand in the same text and is
used: model names and lane rates. Words of the table: NVIDIA System Management Interface, `nvidia-smi topo -h`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from blinksim.errors import FileError
from blinksim.textio import link_rates
from blinksim.textio.text_files import MIB
from blinksim.textio.text_files import read_text as text_of
from blinksim.topology.graph import Device, Link, Topology

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEADER = re.compile(r"^\s*GPU0(?:\s|$)")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,40}")
_GPU = re.compile(r"GPU([0-9]{1,4})")
_NVLINKS = re.compile(r"NV([0-9]{1,3})")
_LEGEND = re.compile(r"^\s*(NIC[0-9]{1,4}):\s+(\S{1,60})\s*$")
_MODEL = re.compile(r"^GPU ([0-9]{1,4}): (.{1,80}?) \(UUID:")
_LANE = re.compile(r"^\s*Link ([0-9]{1,3}): ([0-9]{1,4}(?:\.[0-9]{1,6})?) GB/s")
_FAR = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "NODE", "SYS": "SYS", "SOC": "SYS", "PSB": "PXB"}
_PEER = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
_MOST = 300
# NVLinks of one GPU, by what its name holds; no GPU has more than 18.
_MODELS = (
    *(("P100", 60, 4), ("V100", 70, 6), ("GH200", 90, 18), ("A100", 80, 12), ("A800", 80, 8), ("H800", 90, 8)),
    *(("H100", 90, 18), ("H200", 90, 18), ("H20", 90, 18), ("B100", 100, 18), ("B200", 100, 18), ("B300", 100, 18)),
    *(("A6000", 86, 4), ("A5000", 86, 4), ("A40", 86, 4), ("3090", 86, 4)),
)
_MOST_NVLINKS = 18


def looks_like(text: str) -> bool:
    """Whether a text holds such a table."""
    return any(_HEADER.match(_ANSI.sub("", line)) for line in text.splitlines())


def read(path: str | Path, rates: str = "nominal") -> Topology:
    """The machine in the file at `path`; see `read_text`. Raises `FileError` if it cannot be read."""
    return read_text(text_of(path, MIB, "text of nvidia-smi"), path, rates)


def read_text(text: str, path: str | Path, rates: str = "nominal") -> Topology:
    """The machine that the table of `nvidia-smi topo -m` in `text` describes.

    rates: ``nominal`` (data sheets) or ``nccl`` (what NCCL computes with), both from ``models/link_rates.yaml``; the
    table holds none. `path` names the machine and stands in messages. Devices: ``gpu<n>``, ``nic<n>``, ``cpu<n>``,
    ``pcie<n>`` and ``nvswitch``. GPUs of unknown model count as those that have as many NVLinks. PCIe ports are taken
    for generation 3 with 16 lanes, as NCCL takes unknown ones. There is no fabric: the table has no network speeds.

    Raises `FileError` with the line for anything that is no such table, and `InputError` for other rates.
    """
    return _Builder(path, _table(text, path), link_rates.load(rates)).build()


@dataclass
class _Table:
    """labels: of columns, in order. cells: by pair of labels. affinity: NUMA node (or CPU list) of each GPU."""

    labels: list[str]
    line: int
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)
    grace: bool = False
    names: dict[str, str] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)
    lane: Fraction | None = None

    @property
    def gpus(self) -> list[str]:
        return [label for label in self.labels if _GPU.fullmatch(label)]


def _table(text: str, path: str | Path) -> _Table:
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    start = next((number for number, line in enumerate(lines) if _HEADER.match(line)), None)
    if start is None:
        raise FileError(path, "holds no table of `nvidia-smi topo -m`: no line begins with GPU0")
    words = lines[start].split()
    labels = words[: words.index("CPU")] if "CPU" in words else words
    table = _Table(labels, start + 1)
    if len(labels) > _MOST:
        raise FileError(path, f"has {len(labels)} columns; no machine has more than {_MOST} GPUs and NICs", start + 1)
    for label in labels:
        if not _LABEL.fullmatch(label) or labels.count(label) > 1:
            raise FileError(path, f"column {label[:40]!r} is no device, or is there twice", start + 1)
    gpu_numa = "GPU NUMA ID" in lines[start]
    for number, line in enumerate(lines[start + 1 :], start + 2):
        row = line.split()
        if not row:
            if table.cells:
                break
            continue
        _row(table, path, number, row, gpu_numa)
    _check(table, path)
    for line in lines:
        if (legend := _LEGEND.match(line)) and legend[1] in labels:
            table.names[legend[1]] = legend[2]
        elif model := _MODEL.match(line):
            table.models[int(model[1])] = model[2]
        elif (lane := _LANE.match(line)) and table.lane is None and Fraction(lane[2]) > 0:
            table.lane = Fraction(lane[2]) * 10**9
    return table


def _row(table: _Table, path: str | Path, number: int, row: list[str], gpu_numa: bool) -> None:
    label, cells, tail = row[0], row[1 : 1 + len(table.labels)], row[1 + len(table.labels) :]
    if label not in table.labels:
        raise FileError(path, f"row {label[:40]!r} is not among the columns {' '.join(table.labels[:8])} …", number)
    if (label, label) in table.cells:
        raise FileError(path, f"a second row for {label}", number)
    if len(cells) < len(table.labels):
        raise FileError(path, f"row {label} has {len(cells)} cells for {len(table.labels)} columns", number)
    for column, cell in zip(table.labels, cells, strict=True):
        if cell in _PEER:
            raise FileError(path, f"{cell} in row {label}: this is `nvidia-smi topo -p2p`; use `topo -m`", number)
        right = cell == "X" if column == label else cell in _FAR or _NVLINKS.fullmatch(cell) is not None
        if not right or cell == "NV0":
            raise FileError(
                path, f"row {label}, column {column}: {cell[:20]!r} is no connection (X, NV#, PIX … SYS)", number
            )
        table.cells[label, column] = cell
    if tail and _GPU.fullmatch(label):
        table.affinity[label] = tail[1] if len(tail) > 1 and tail[1] != "N/A" else tail[0]
        table.grace |= gpu_numa and len(tail) > 2 and tail[2].isdigit()


def _check(table: _Table, path: str | Path) -> None:
    for label in table.labels:
        if (label, label) not in table.cells:
            raise FileError(path, f"there is no row for {label}; the table is cut short", table.line)
    for (a, b), cell in table.cells.items():
        if table.cells[b, a] != cell:
            raise FileError(path, f"{a} is {cell} from {b}, but {b} is {table.cells[b, a]} from {a}", table.line)
        if _NVLINKS.fullmatch(cell) and not (_GPU.fullmatch(a) and _GPU.fullmatch(b)):
            raise FileError(path, f"{a} and {b} have NVLinks ({cell}), but only GPUs have", table.line)


class _Builder:
    """Devices and links of a table."""

    def __init__(self, path: str | Path, table: _Table, rates: link_rates.LinkRates) -> None:
        self.path, self.table, self.rates = path, table, rates
        self.name = {label: self._device_name(label, position) for position, label in enumerate(table.labels)}
        self.links: list[Link] = []
        self.devices: list[Device] = []

    def _device_name(self, label: str, position: int) -> str:
        gpu = _GPU.fullmatch(label)
        return f"gpu{int(gpu[1])}" if gpu else f"nic{position - len(self.table.gpus)}"

    def lanes(self, a: str, b: str) -> int:
        match = _NVLINKS.fullmatch(self.table.cells[a, b])
        return int(match[1]) if match else 0

    def switched(self) -> int:
        """NVLinks of a GPU to the NVSwitches, 0 if NV# counts those of a pair."""
        gpus = self.table.gpus
        counts = {self.lanes(a, b) for a in gpus for b in gpus if a != b}
        if len(counts) != 1 or len(gpus) < 3:
            return 0
        (count,) = counts
        most = min((known[1] for gpu in gpus if (known := self.model(gpu))), default=_MOST_NVLINKS)
        # Four GPUs with 6 each are a Grace Hopper board, whose links are the pairs' own, or part of a DGX-2.
        doubtful = count >= 6 and not self.table.models and not self.table.grace
        return count if (len(gpus) - 1) * count > most or (len(gpus) > 3 and doubtful) else 0

    def model(self, gpu: str) -> tuple[int, int] | None:
        """(compute capability times ten, NVLinks) of a GPU whose model the text names."""
        text = self.model_name(gpu)
        return next(((sm, most) for part, sm, most in _MODELS if part in text), None)

    def model_name(self, gpu: str) -> str:
        """The model of a GPU; that of the others where all those named are alike; empty if the text names none."""
        named = self.table.models
        return named.get(int(gpu[3:]), next(iter(named.values())) if len(set(named.values())) == 1 else "")

    def capability(self, gpu: str) -> int:
        known = self.model(gpu)
        if known:
            return known[0]
        most = max((self.lanes(gpu, other) for other in self.table.gpus if other != gpu), default=0)
        if self.table.lane is not None and self.table.lane > 40 * 10**9:
            return 100
        # A GPU that is nowhere told shows its generation by its links: 18 Hopper, 12 Ampere, fewer Volta.
        return 90 if most > 12 or self.table.grace else 80 if most > 6 else 70

    def build(self) -> Topology:
        table = self.table
        for gpu in table.gpus:
            text = self.model_name(gpu)
            facts = {"dev": int(gpu[3:]), "sm": self.capability(gpu)} | ({"model": text} if text else {})
            self.devices.append(Device(self.name[gpu], "gpu", attributes=facts))
        for nic in (label for label in table.labels if label not in table.gpus):
            name = table.names.get(nic, nic)
            number = int(self.name[nic][3:])
            self.devices.append(Device(self.name[nic], "nic", attributes={"dev": number, "name": name}))
        self._nvlinks()
        self._pcie()
        machine = Topology(
            name=Path(self.path).stem,
            devices=tuple(self.devices),
            links=tuple(self.links),
            members=tuple(self.name[gpu] for gpu in sorted(table.gpus, key=lambda gpu: int(gpu[3:]))),
            rates=self.rates.name,
            source=f"nvidia-smi topo -m in {Path(self.path).name}",
        )
        nvlink = machine.with_links(link for link in self.links if link.kind == "nvlink")
        whole = bool(nvlink.links) and len(nvlink.components()) == 1
        inside = tuple(kind for kind in ("nvlink", "pcie", "cpu") if kind in machine.link_classes)
        return replace(machine, collective_links=("nvlink",) if whole else inside)

    def add(self, src: str, dst: str, kind: str, lane: Fraction, lanes: int = 1, timing: str = "") -> None:
        latency, overhead = self.rates.timing[timing or kind]
        self.links.append(Link(src, dst, kind, lane, lanes, latency, overhead))

    def _nvlinks(self) -> None:
        gpus, count = self.table.gpus, self.switched()
        if count:
            self.devices.append(Device("nvswitch", "switch"))
        for a in gpus:
            lane = self.rates.nvlink_lane(self.capability(a))
            assert lane is not None
            if count:
                self.add(self.name[a], "nvswitch", "nvlink", lane, count, "nvlink_to_switch")
                self.add("nvswitch", self.name[a], "nvlink", lane, count, "nvlink_from_switch")
                continue
            for b in gpus:
                if a != b and self.lanes(a, b):
                    self.add(self.name[a], self.name[b], "nvlink", lane, self.lanes(a, b))

    # --- the PCIe tree ------------------------------------------------------------------------------------------------

    def _pcie(self) -> None:
        """Switches and CPUs from who is how far from whom; NVLinks hide that of their pairs."""
        labels, cells = self.table.labels, self.table.cells
        port = self.rates.pcie[self.rates.pcie_unknown_rate], self.rates.pcie_unknown_lanes
        affinity = self.table.affinity
        same_node = lambda a, b: (  # noqa: E731
            cells[a, b] in ("PIX", "PXB", "PHB", "NODE") or (a in affinity and affinity.get(a) == affinity.get(b))
        )
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
        for a in range(len(cpus)):
            for b in range(len(cpus)):
                if a != b:
                    self.add(
                        f"cpu{a}", f"cpu{b}", "cpu", self.rates.cpu_link("x86_64", "GenuineIntel", None, None).rate
                    )
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
