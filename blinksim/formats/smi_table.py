"""The table of `nvidia-smi topo -m` as it is printed, and what other parts of nvidia-smi's text add to it.

The table names the nearest common point of every two devices (PIX, PXB, PHB, NODE, SYS) or the number of NVLinks
between two GPUs (NV#). Words of the table: NVIDIA System Management Interface, `nvidia-smi topo -h`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from blinksim.errors import FileError

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEADER = re.compile(r"^\s*GPU0(?:\s|$)")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,40}")
_WHOLE = re.compile(r"[0-9]{1,6}")
_GPU = re.compile(r"GPU([0-9]{1,4})")
_NVLINKS = re.compile(r"NV([0-9]{1,3})")
_LEGEND = re.compile(r"^\s*(NIC[0-9]{1,4}):\s+(\S{1,60})\s*$")
_MODEL = re.compile(r"^GPU ([0-9]{1,4}): (.{1,80}?) \(UUID:")
_LANE = re.compile(r"^\s*Link ([0-9]{1,3}): ([0-9]{1,4}(?:\.[0-9]{1,6})?) GB/s")
_FAR = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "NODE", "SYS": "SYS", "SOC": "SYS", "PSB": "PXB"}
_PEER = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
_MOST = 300


# Words of other vendors' tables of GPUs, and whose tool prints them.
_VENDORS = (
    (re.compile(r"(?:Weight|Hops|Link Type|Link accessibility) between (?:two )?GPUs|ROCm System Management|\bXGMI\b"),
     "rocm-smi or amd-smi (AMD)"),
    (re.compile(r"^\s*(?:NPU0|Phy-ID0?|HCCS)\b|\bHCCS\b", re.MULTILINE), "npu-smi (Huawei)"),
    (re.compile(r"\bMX[0-9]{1,2}\b.*\bMX[0-9]{1,2}\b|mx-smi|MetaXLink", re.IGNORECASE), "mx-smi (MetaX)"),
    (re.compile(r"^\s*MLU0\b|\bMLULink\b|\bcnmon\b", re.MULTILINE), "cnmon (Cambricon)"),
    (re.compile(r"xpu-smi|\bXL[0-9]{1,2}\b.*\bXL[0-9]{1,2}\b|^\s*GPU 0/0\b", re.MULTILINE), "xpu-smi (Intel)"),
)  # fmt: skip


def _vendor(text: str) -> str:
    """Whose table it is if not NVIDIA's, as far as its words say."""
    return next((tool for words, tool in _VENDORS if words.search(text[:100_000])), "")


def refuse_vendor(text: str, path: str | Path) -> None:
    """Raises `FileError` for another vendor's table."""
    tool = _vendor(text)
    if tool:
        raise FileError(
            path,
            f"is a table of {tool}; only NVIDIA's is read. Write the machine as YAML, or take a name of the catalogue",
        )


def looks_like(text: str) -> bool:
    """True if a text holds such a table."""
    return any(_HEADER.match(_ANSI.sub("", line)) for line in text.splitlines())


@dataclass
class SmiTable:
    """What the text says of a machine.

    labels: of the columns, in order. line: of the heading. cells: by pair of labels.
    affinity: NUMA node (or CPU list) of each GPU. grace: True if a GPU has a NUMA node of its own.
    names: of the network devices, by label. models: names of GPU models, by number. lane: bytes/s of one NVLink.
    """

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
        """The labels of GPUs, in the table's order."""
        return [label for label in self.labels if gpu_number(label) is not None]

    def lanes(self, gpu: str, other: str) -> int:
        """The number of NVLinks that the table shows between two GPUs."""
        match = _NVLINKS.fullmatch(self.cells[gpu, other])
        return int(match[1]) if match else 0


def gpu_number(label: str) -> int | None:
    """3 for ``GPU3``, None for what is no GPU."""
    match = _GPU.fullmatch(label)
    return int(match[1]) if match else None


def parse(text: str, path: str | Path) -> SmiTable:
    """The table in `text`; `path` stands in messages. Raises `FileError` for anything that is no such table."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    start = next((number for number, line in enumerate(lines) if _HEADER.match(line)), None)
    if start is None or _vendor(text):
        refuse_vendor(text, path)
        raise FileError(path, "holds no table of `nvidia-smi topo -m`: no line begins with GPU0")
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


def _row(table: SmiTable, path: str | Path, number: int, row: list[str], gpu_numa: bool) -> None:
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
        table.grace |= gpu_numa and len(tail) > 2 and _WHOLE.fullmatch(tail[2]) is not None


def _check(table: SmiTable, path: str | Path) -> None:
    for label in table.labels:
        if (label, label) not in table.cells:
            raise FileError(path, f"there is no row for {label}; the table is cut short", table.line)
    for (a, b), cell in table.cells.items():
        if table.cells[b, a] != cell:
            raise FileError(path, f"{a} is {cell} from {b}, but {b} is {table.cells[b, a]} from {a}", table.line)
        if _NVLINKS.fullmatch(cell) and not (_GPU.fullmatch(a) and _GPU.fullmatch(b)):
            raise FileError(path, f"{a} and {b} have NVLinks ({cell}), but only GPUs have", table.line)
