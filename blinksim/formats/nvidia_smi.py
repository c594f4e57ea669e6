"""Machines from the text of `nvidia-smi topo -m`: NVLinks by pair, the PCIe tree from path types.

The table names the nearest common point of every two devices (PIX, PXB, PHB, NODE, SYS) or the number of
NVLinks between two GPUs (NV#; words: NVIDIA System Management Interface, `nvidia-smi topo -h`). The output of
`nvidia-smi` with -L, `nvlink -s` or nothing may stand in the same text; it gives model names and lane rates.

The table does not tell whether NVLinks lead to NVSwitches. With NVSwitches, NV# is what each GPU has to the
switches, shared by all its peers; without, it is the pair's own. The number of NVLinks that a GPU can have
decides.

The text of `lspci -vv` beside it, or alone, gives models and the rates of PCIe ports, but no NVLinks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations, permutations
from pathlib import Path

from blinksim.errors import FileError
from blinksim.formats.shipped.known_gpus import named
from blinksim.graphs.connectivity import grouped, joined
from blinksim.nccl import debug_log
from blinksim.textio import link_rates, lspci, text_files
from blinksim.topology.elements import machine_name, nvswitch
from blinksim.topology.graph import Device, Link, Topology

# Colors, also of terminals whose escape character was lost on the way.
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[[0-9;]+m")
# A row of the table in Markdown, as issues have it, or the line below its heading.
_MARKDOWN = re.compile(r"\s*\|(?:[\s|:-]*$|[\s|]*(?:GPU|NIC|mlx5_)[0-9])")
_HEADER = re.compile(r"^\s*GPU0(?:\s|$)")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,40}")
_GPU = re.compile(r"GPU[0-9]{1,4}")
_NVLINKS = re.compile(r"NV([0-9]{1,3})")
_LEGEND = re.compile(r"^\s*(NIC[0-9]{1,4}):\s+(\S{1,60})\s*$")
# Of `nvidia-smi -L`, also as PyTorch's collect_env prints it, of the table of `nvidia-smi`, and of its `--query-gpu`.
_MODEL = re.compile(
    r"^\s*(?:GPU ([0-9]{1,4}): (.{1,80}?)(?: \(UUID:.*)?$"
    r"|\| {1,4}([0-9]{1,4})  (\S.{1,40}?) +(?:On|Off|N/A) +\||([0-9]{1,4}), (NVIDIA [^,]{1,60}),)"
)
_LANE = re.compile(r"^\s*Link ([0-9]{1,3}): (?:([0-9]{1,4}(?:\.[0-9]{1,6})?) GB/s|<inactive>)", re.IGNORECASE)
_FAR = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "PSB"})
_PEER = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
_MOST, _MOST_DEVICES = 300, 4096


# NVLinks of one GPU, by what its name holds; no GPU has more than 18.
_MODELS = (
    *(("P100", 60, 4), ("V100", 70, 6), ("GH200", 90, 18), ("A100", 80, 12), ("A800", 80, 8), ("H800", 90, 8)),
    *(("H100", 90, 18), ("H200", 90, 18), ("H20", 90, 18), ("B100", 100, 18), ("B200", 100, 18), ("B300", 100, 18)),
    *(("A6000", 86, 4), ("A5000", 86, 4), ("A40", 86, 4), ("3090", 86, 4), ("4090", 89, 0), ("L40", 89, 0)),
    *(("RTX PRO", 120, 0), ("5090", 120, 0)),
)
_MOST_NVLINKS, _SWITCHED = 18, 12
_MOST_VOLTA, _MOST_AMPERE = 6, 12
_GENERATIONS = {70: "Volta (V100)", 80: "Ampere (A100)", 90: "Hopper (H100, H200)", 100: "Blackwell (B200)"}
# Bytes/s of an NVLink above which it is of a generation later than Hopper.
_BLACKWELL_LANE = 40 * 10**9


def looks_like(text: str) -> bool:
    """True if a text holds such a table, or what tells as much."""
    lines = _lines(text)
    found = any(_HEADER.match(line) or _LANE.match(line) for line in lines) or debug_log.looks_like(text)
    return found or any(device.kind == "gpu" for device in lspci.read(text))


def _lines(text: str) -> list[str]:
    lines = (_ANSI.sub("", line) for line in text.splitlines())
    return [re.sub(r"\||:?-{3,}:?", " ", line) if _MARKDOWN.match(line) else line for line in lines]


@dataclass
class SmiTable:
    """What the text says of a machine.

    labels: of the columns, in order. line: of the heading. cells: by pair of labels.
    affinity: NUMA node (or CPU list) of each GPU. grace: True if a GPU has a NUMA node of its own.
    names: of the network devices, by label. models: names of GPU models, by number. lane: bytes/s of the
    fastest NVLink. links: bytes/s of each NVLink, 0 of an inactive one, by its number and that of its GPU.
    switches: whether NVSwitches join the GPUs, None where the text does not tell. ports: PCIe rates by
    device, as multiples of that of 16 lanes of generation 3. facts: more attributes by device. notes: what is
    to be said of lspci. source: what printed the text.
    """

    labels: list[str]
    line: int
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)
    grace: bool = False
    names: dict[str, str] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)
    lane: Fraction | None = None
    links: dict[int, dict[int, Fraction]] = field(default_factory=dict)
    switches: bool | None = None
    ports: dict[str, Fraction] = field(default_factory=dict)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    source: str = "nvidia-smi topo -m"

    @property
    def gpus(self) -> list[str]:
        """The labels of GPUs, in the table's order."""
        return [label for label in self.labels if _GPU.fullmatch(label)]

    @property
    def nics(self) -> list[str]:
        """The labels of network adapters, in the table's order."""
        return [label for label in self.labels if not _GPU.fullmatch(label)]

    def lanes(self, gpu: str, other: str) -> int:
        """The number of NVLinks that the table shows between two GPUs."""
        match = _NVLINKS.fullmatch(self.cells[gpu, other])
        return int(match[1]) if match else 0

    def model(self, gpu: str) -> str:
        """The model of a GPU; that of the others where all those named are alike; empty if the text names none."""
        alike = set(self.models.values())
        return self.models.get(int(gpu[3:]), next(iter(alike)) if len(alike) == 1 else "")

    def known(self, gpu: str) -> tuple[int, int] | None:
        """(compute capability times ten, NVLinks) of a GPU whose model the text names."""
        return next(((sm, most) for part, sm, most in _MODELS if part in self.model(gpu)), None)

    def capability(self, gpu: str) -> int:
        """The compute capability of a GPU times ten: of its model, or of the generation that has such NVLinks."""
        if known := self.known(gpu):
            return known[0]
        if self.lane is not None and self.lane > _BLACKWELL_LANE:
            return 100
        most = max((self.lanes(*pair) for pair in combinations(self.gpus, 2)), default=0)
        # A Grace CPU has one Hopper GPU, or two Blackwell GPUs.
        if most > _MOST_AMPERE and self.grace and len(set(self.affinity.values())) < len(self.affinity):
            return 100
        return 90 if most > _MOST_AMPERE or self.grace else 80 if most > _MOST_VOLTA else 70

    def working(self, gpu: str, count: int) -> int:
        """How many of the `count` NVLinks that the table shows of a GPU are active, by the list of its links."""
        links = self.links.get(int(gpu[3:]), {})
        return min(count, max(count, len(links)) - sum(not rate for rate in links.values()))

    def switch_lanes(self) -> dict[str, int]:
        """NVLinks of every GPU to the NVSwitches that work; empty if NV# counts those of a pair."""
        rows = {gpu: [self.lanes(gpu, other) for other in self.gpus if other != gpu] for gpu in self.gpus}
        counts = {count for row in rows.values() for count in row}
        # No GPU has more NVLinks to its peers one by one than it has at all. Four GPUs with 6 each are a
        # Grace Hopper board, whose links are the pairs' own, or part of a DGX-2.
        switched = any(sum(row) > (self.known(gpu) or (0, _MOST_NVLINKS))[1] for gpu, row in rows.items())
        alike = len(counts) == 1 and min(counts) >= 6 and len(rows) > 3 and not self.models and not self.grace
        joined = switched or alike if self.switches is None else self.switches
        return {gpu: self.working(gpu, max(row)) for gpu, row in rows.items()} if joined else {}

    def fill(self, gpus: list[lspci.Device], nics: list[lspci.Device], devices: list[lspci.Device]) -> None:
        """Take from lspci models, PCIe links, and, where nvidia-smi lists no devices, these."""
        listed = {f"{one.kind.upper()}{number}": one for some in (gpus, nics) for number, one in enumerate(some)}
        cells, redirected = lspci.as_table(listed, devices)
        told = " -vv" * any(one.facts for one in gpus)
        self.source = ("nvidia-smi and lspci -vv" if told else self.source) if self.gpus else f"lspci{told}"
        if not self.gpus:
            self.notes.append("lspci lists no NVLinks: GPUs that are sold with them have all, by assumption")
        if not self.nics:
            self.labels, self.cells = [*listed], cells | self.cells
            self.affinity = {label: one.numa for label, one in listed.items()}
        for number, gpu in enumerate(gpus):
            known = (one.name for word in gpu.models if (one := named(word)))
            self.models.setdefault(number, next(known, gpu.models[-1] if gpu.models else ""))
        for label, device in listed.items():
            if device.kind == "gpu" or len(nics) == len(self.nics):
                name = device.kind + label[3:]
                self.ports[name], self.facts[name] = device.does, device.facts
        for name in self.facts.keys() & {*map(str.lower, redirected)}:
            self.facts[name] = self.facts[name] | {"acs": "on"}

    def assumed(self) -> list[str]:
        """What was taken for granted because the text names no models, in words."""
        gpus = [gpu for gpu in self.gpus if self.known(gpu) is None]
        most = max((self.lanes(*pair) for pair in combinations(gpus, 2)), default=0)
        if not gpus or not most:
            return []
        generation = _GENERATIONS[self.capability(gpus[0])]
        notes = [] if self.lane is not None else [f"assumed: NVLinks of {generation} GPUs"]
        if self.switches is not None:
            notes = []
        elif self.switch_lanes():
            notes.append(f"assumed: NV{most} leads to NVSwitches, as on an HGX or a DGX-2, and is not the pair's own")
        elif len(self.gpus) > 2:
            notes.append("assumed: NV# counts the NVLinks of a pair, and there is no NVSwitch")
        named = next((self.models[number] for number in sorted(self.models)), "")
        why = f"the model {named!r} is not known here" if named else "the text names no model"
        return [*notes, f"{why}: put what nvidia-smi -L prints above the table"] if notes else []


def parse(text: str, path: str | Path) -> SmiTable:
    """The table in `text`; `path` stands in messages. Raises `FileError` for anything that is no such table."""
    lines = _lines(text)
    start = next((number for number, line in enumerate(lines) if _HEADER.match(line)), None)
    tables = [str(n) for n, line in enumerate(lines, 1) if _HEADER.match(line) and "CPU Affinity" in line]
    if len(tables) > 1:
        raise FileError(path, f"holds tables of several hosts (lines {', '.join(tables)}); give one host's")
    tools = text_files.read_words("table of a tool").items()
    if tool := next((tool for pattern, tool in tools if re.search(pattern, text[:100_000])), ""):
        cure = "Write the machine as YAML, or take a name of the catalogue"
        raise FileError(path, f"is a table of {tool}; only NVIDIA's is read. {cure}")
    devices = lspci.read(text)
    if start is None:
        # GPUs of which only their NVLinks are listed, or by lspci none that they are sold with: to
        # NVSwitches.
        table = _with_links(SmiTable([], 1), lines)
        table.labels = [f"GPU{number}" for number in sorted(table.links)]
        table.cells, table.affinity = {(gpu, gpu): "X" for gpu in table.labels}, dict.fromkeys(table.labels, "0")
        counts, table = {len(links) for links in table.links.values()}, _with_ports(table, devices, path)
        sold = [gpu for gpu in table.gpus if counts or named(table.model(gpu))]
        most = {known[1] for gpu in sold if (known := table.known(gpu))}
        if not table.labels or (sold and (len(most) != 1 or counts - most or min(most) < _SWITCHED)):
            more = ", and NVLinks alone do not say which GPUs they join" * bool(sold) + "; add what it prints"
            raise FileError(path, f"holds no table of `nvidia-smi topo -m`: no line begins with GPU0{more}")
        table.cells |= {pair: f"NV{max(most)}" for pair in permutations(sold, 2)}
        return table
    words = lines[start].split()
    labels = words[: words.index("CPU")] if "CPU" in words else words
    table = SmiTable(labels, start + 1)
    if len(labels) > _MOST:
        raise FileError(path, f"has {len(labels)} columns; no machine has more than {_MOST} GPUs and NICs", start + 1)
    for label in labels:
        if not _LABEL.fullmatch(label) or labels.count(label) > 1:
            raise FileError(path, f"column {label[:40]!r} is no device, or is there twice", start + 1)
    gpu_numa = "GPU NUMA ID" in lines[start]
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if not (row := line.split()):
            if table.cells:
                break
            continue
        label, cells, tail = row[0], row[1 : 1 + len(labels)], row[1 + len(labels) :]
        if label not in labels:
            if all((one, one) in table.cells for one in labels):
                break
            raise FileError(path, f"row {label[:40]!r} is not among the columns {' '.join(labels[:8])} …", number)
        if (label, label) in table.cells:
            raise FileError(path, f"a second row for {label}", number)
        if len(cells) < len(labels):
            raise FileError(path, f"row {label} has {len(cells)} cells for {len(labels)} columns", number)
        for column, cell in zip(labels, cells, strict=True):
            if cell in _PEER:
                raise FileError(path, f"{cell} in row {label}: this is `nvidia-smi topo -p2p`; use `topo -m`", number)
            right = cell == "X" if column == label else cell in _FAR or _NVLINKS.fullmatch(cell) is not None
            if not right or cell == "NV0":
                wrong = f"row {label}, column {column}: {cell[:20]!r} is no connection (X, NV#, PIX … SYS)"
                raise FileError(path, wrong, number)
            table.cells[label, column] = cell
        if tail and _GPU.fullmatch(label):
            table.affinity[label] = tail[1] if len(tail) > 1 and tail[1] != "N/A" else tail[0]
            table.grace |= gpu_numa and len(tail) > 2 and re.fullmatch("[0-9]+", tail[2]) is not None
    for label in table.labels:
        if (label, label) not in table.cells:
            raise FileError(path, f"there is no row for {label}; the table is cut short", table.line)
    for (a, b), cell in table.cells.items():
        if table.cells[b, a] != cell:
            raise FileError(path, f"{a} is {cell} from {b}, but {b} is {table.cells[b, a]} from {a}", table.line)
        if _NVLINKS.fullmatch(cell) and not (_GPU.fullmatch(a) and _GPU.fullmatch(b)):
            raise FileError(path, f"{a} and {b} have NVLinks ({cell}), but only GPUs have", table.line)
    legends = [legend for line in lines if (legend := _LEGEND.match(line))]
    table.names = {legend[1]: legend[2] for legend in legends if legend[1] in labels}
    return _with_ports(_with_links(table, lines), devices, path)


def _with_ports(table: SmiTable, devices: list[lspci.Device], path: str | Path) -> SmiTable:
    """The table with what lspci says, if that is of as many GPUs."""
    by_kind = grouped((one.kind, one) for one in devices)
    gpus, nics = by_kind.get("gpu", []), by_kind.get("nic", [])
    table.notes += [f"the GPU at {one.slot} does not answer (revision ff)" for one in by_kind.get("lost", [])]
    if len(gpus) + len(nics) > _MOST or len(devices) > _MOST_DEVICES:
        raise FileError(path, f"lists {len(gpus)} GPUs and {len(nics)} NICs of {len(devices)} devices; give one host's")
    if len(gpus) == len(table.gpus or gpus) > 0:
        table.fill(gpus, nics, devices)
    elif gpus:
        table.notes.append(f"lspci lists {len(gpus)} GPUs, nvidia-smi {len(table.gpus)}: PCIe not compared")
    return table


def _with_links(table: SmiTable, lines: list[str]) -> SmiTable:
    """The table with the models and the NVLinks that `nvidia-smi -L` and `nvlink -s` list."""
    listed = 0
    for line in lines:
        if model := _MODEL.match(line):
            number, name = filter(None, model.groups())
            listed = int(number)
            table.models[listed] = name
        elif "all links are inactive" in line.lower():
            _, most = table.known(f"GPU{listed}") or (0, _MOST_NVLINKS)
            table.links[listed] = dict.fromkeys(range(most), Fraction(0))
        elif lane := _LANE.match(line):
            rate = Fraction(lane[2] or 0) * 10**9
            table.links.setdefault(listed, {})[int(lane[1])] = rate
            table.lane = max(table.lane or rate, rate) or None
    return table


def read_text(text: str, path: str | Path, rates: str = "nominal") -> Topology:
    """The machine that the table of `nvidia-smi topo -m` in `text` describes.

    rates: ``nominal`` (data sheets) or ``nccl`` (what NCCL computes with), both from
    ``models/link_rates.yaml``; the table holds none. `path` names the machine and stands in messages.
    Devices: ``gpu<n>``, ``nic<n>``, ``cpu<n>``, ``pcie<n>`` and ``nvswitch``. GPUs of unknown model count as
    those that have as many NVLinks, and `source` says so. PCIe ports have 16 lanes of the generation of a
    GPU that the text names, else of generation 3, as NCCL takes unknown ones. There is no fabric: the table
    has no network speeds.

    Raises `FileError` with the line for anything that is no such table, and `InputError` for other rates.
    """
    said, switches, ports = "", None, dict[str, Fraction]()
    if debug_log.looks_like(text):
        said, (text, switches, ports) = "NCCL's debug log", debug_log.as_table(text, path)
    elif not looks_like(text) and ("NCCL INFO" in text or "out-of-place" in text):
        judged = "; blinksim diagnose judges its times" * ("out-of-place" in text)
        raise FileError(path, f"has no paths of GPUs: run it with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH{judged}")
    table = parse(text, path)
    table = replace(table, switches=switches, ports=ports | table.ports, source=said or table.source)
    told = bool(table.ports)
    found = _Builder(path, table, link_rates.load(rates)).build()
    source = [f"{table.source} in {Path(path).name}", *table.assumed(), *table.notes]
    if "pcie" in found.collective_links and not told:
        named = "PCIe of 16 lanes and of the generation of the GPUs named" * all(map(table.known, table.gpus))
        others = f"PCIe 3.0 of 16 lanes for all {len(table.labels)} devices"
        source.append(f"assumed: {named or others}, as the table has no speeds")
    return replace(found, source="; ".join(source))


class _Builder:
    """Devices and links of a table."""

    def __init__(self, path: str | Path, table: SmiTable, rates: link_rates.LinkRates) -> None:
        self.path, self.table, self.rates = path, table, rates
        self.name = {gpu: f"gpu{int(gpu[3:])}" for gpu in table.gpus}
        self.name |= {nic: f"nic{number}" for number, nic in enumerate(table.nics)}
        self.links: list[Link] = []
        self.devices: list[Device] = []

    def build(self) -> Topology:
        table = self.table
        ports = table.switch_lanes()
        for a, b in combinations(table.gpus, 2):
            # Behind NVSwitches a pair has as many as its GPU with fewer.
            if ports and not table.links and table.lanes(a, b) != min(ports[a], ports[b]):
                cells = f"row {a} has NV{table.lanes(a, b)} to {b}, and up to NV{ports[a]} to others"
                raise FileError(self.path, f"{cells}, which NVSwitches do not do; take the table again", table.line)
        for label, name in self.name.items():
            if (kind := name[:3]) == "gpu":
                text = table.model(label)
                own = {"sm": table.capability(label)} | ({"model": text} if text else {})
            else:
                own = {"name": table.names.get(label, label)}
            facts = {"dev": int(name[3:])} | own | table.facts.get(name, {})
            self.devices.append(Device(name, kind, attributes=facts))
        self._nvlinks(ports)
        self._pcie()
        name, devices = machine_name(Path(self.path).stem), tuple(self.devices)
        members = tuple(self.name[gpu] for gpu in sorted(table.gpus, key=lambda gpu: int(gpu[3:])))
        machine = Topology(name, devices, tuple(self.links), members, rates=self.rates.name)
        nvlink = machine.with_links(link for link in self.links if link.kind == "nvlink")
        whole = bool(nvlink.links) and len(nvlink.components()) == 1
        inside = tuple(kind for kind in ("nvlink", "pcie", "cpu") if kind in machine.link_classes)
        return replace(machine, collective_links=("nvlink",) if whole else inside)

    def add(self, src: str, dst: str, kind: str, lane: Fraction, lanes: int = 1, timing: str = "") -> None:
        latency, overhead = self.rates.timing[timing or kind]
        self.links.append(Link(src, dst, kind, lane, lanes, latency, overhead))

    def _nvlinks(self, ports: dict[str, int]) -> None:
        gpus = self.table.gpus
        if ports:
            self.devices.append(nvswitch(min(self.table.capability(gpu) for gpu in gpus)))
        for a in gpus:
            lane = self.rates.nvlink_lane(self.table.capability(a))
            assert lane is not None
            rates = [rate for rate in self.table.links.get(int(a[3:]), {}).values() if rate]
            if rates and self.table.lane:
                # Lanes of different rates are alike on average.
                lane *= sum(rates, Fraction(0)) / len(rates) / self.table.lane
            if ports.get(a):
                self.add(self.name[a], "nvswitch", "nvlink", lane, ports[a], "nvlink_to_switch")
                self.add("nvswitch", self.name[a], "nvlink", lane, ports[a], "nvlink_from_switch")
            pairs = {b: self.table.lanes(a, b) for b in gpus if a != b and not ports}
            count = sum(pairs.values())
            if (working := self.table.working(a, count)) < count:
                wrong = f"row {a} counts {count} NVLinks, but {working} are active in the list of its links"
                cure = "which pair has lost some, the list does not say: lower its NV#"
                raise FileError(self.path, f"{wrong}; {cure}", self.table.line)
            for b, lanes in pairs.items():
                if lanes:
                    self.add(self.name[a], self.name[b], "nvlink", lane, lanes)

    # --- the PCIe tree ------------------------------------------------------------------------------------------------

    def _pcie(self) -> None:
        """Switches and CPUs from the distances between devices; NVLinks hide that of their pairs."""
        labels, cells = self.table.labels, self.table.cells
        port, lanes = self.rates.pcie[self.rates.pcie_unknown_rate], self.rates.pcie_unknown_lanes
        for gpu in filter(self.table.known, self.table.gpus):
            *_, rate = (rate for sm, rate in self.rates.pcie_by_sm if self.table.capability(gpu) >= sm)
            self.table.ports.setdefault(self.name[gpu], rate / port)
        node = {label: self.table.affinity.get(label, label) for label in labels}

        def pair(above: str, name: str) -> None:
            for ends in ((above, name), (name, above)):
                self.add(*ends, "pcie", port * self.table.ports.get(name, 1), lanes)

        def switch(above: str, part: list[str]) -> str:
            name = f"pcie{sum(device.kind == 'pcie' for device in self.devices)}"
            self.devices.append(Device(name, "pcie"))
            # A switch has a port upwards such as the best of those below it.
            self.table.ports[name] = max(self.table.ports.get(self.name[one], Fraction(1)) for one in part)
            pair(above, name)
            return name

        cpus = _groups(labels, lambda a, b: cells[a, b] in ("PIX", "PXB", "PHB", "NODE") or node[a] == node[b])
        near = _groups(labels, lambda a, b: cells[a, b] == "PIX")
        wide = _groups(labels, lambda a, b: cells[a, b] in ("PIX", "PXB"))
        for number, group in enumerate(cpus):
            self.devices.append(Device(f"cpu{number}", "cpu"))
            for outer in (part for part in wide if part[0] in group):
                inner = [part for part in near if part[0] in outer]
                top = switch(f"cpu{number}", outer) if len(inner) > 1 else f"cpu{number}"
                for part in inner:
                    place = switch(top, part) if len(part) > 1 or len(inner) > 1 else top
                    for label in part:
                        pair(place, self.name[label])
        between = self.rates.cpu_link("x86_64", "GenuineIntel", None, None)
        for a, b in permutations(range(len(cpus)), 2):
            self.add(f"cpu{a}", f"cpu{b}", "cpu", between)


def _groups(labels: list[str], together: Callable[[str, str], bool]) -> list[list[str]]:
    """The labels by what is together, directly or through others, in their order."""
    first = joined(labels, (pair for pair in combinations(labels, 2) if together(*pair)))
    return [*grouped((first[label], label) for label in labels).values()]
