"""The machine in NCCL's debug log (NCCL_DEBUG=INFO with the subsystem GRAPH), as a table of nvidia-smi.

NCCL prints, for every GPU, hops, bandwidth in GB/s and type of the path to every other device
(ncclTopoPrintPaths in src/graph/paths.cc): ``GPU/0-60 :GPU/0-70 (2/370.8/NVL) …``.
"""

from __future__ import annotations

import re
from fractions import Fraction

from blinksim.errors import FileError
from blinksim.textio import link_rates

_PATHS = re.compile(r"NCCL INFO (GPU/\S{1,40}) :(GPU/.*)")
_PATH = re.compile(r"(GPU/\S{1,40}) \([0-9]{1,3}/([0-9]{1,6}\.[0-9]{1,8})/([A-Z0-9]{3})\)")
# From where a name begins only: to try every place in a long word takes the square of its length.
_HOST = re.compile(r"(?<![^\s:>])([^\s:>]+):[0-9]+:[0-9]+ \[[0-9]+\] NCCL INFO GPU/")
_PORT = re.compile(r"PCI\[([0-9]{1,6}\.[0-9]{1,8})\] - (GPU/\S{1,40})")
_CPU = re.compile(r"(CPU/\S{1,40}) \(1/")
# Types of paths that nvidia-smi's table has too; others go through a GPU, or nowhere.
_SHOWN = {"LOC": "X", "PIX": "PIX", "PXB": "PXB", "PHB": "PHB"}
# Of GPUs whose NVLinks differ, the usual ones first.
_CAPABILITIES = (90, 100, 80, 60, 86)
_MOST_GPUS, _MOST_LANES = 64, 18


def looks_like(text: str) -> bool:
    """True if a text holds paths between GPUs as NCCL prints them."""
    return _PATHS.search(text) is not None


def as_table(text: str, path: object) -> tuple[str, bool, dict[str, Fraction]]:
    """What nvidia-smi topo -m would print of GPUs, with the rate of an NVLink; if they have switches; PCIe.

    Of PCIe the rates of ports, as multiples of that of generation 3 with 16 lanes. Raises `FileError` if the
    GPUs are not those of one node, and for bandwidths that are no NVLinks.
    """
    hosts = sorted({*_HOST.findall(text)})
    found = dict(_PATHS.findall(text))
    rows = {gpu: {end: (rate, kind) for end, rate, kind in _PATH.findall(more)} for gpu, more in found.items()}
    if len(rows) > _MOST_GPUS or len(hosts) > 1 or any({*row} != {*rows} for row in rows.values()):
        where = f"are not those of one node ({', '.join(hosts)})"
        raise FileError(str(path), f"paths of {len(rows)} GPUs {where}; give one's")
    cells, lane = _lanes({rate for row in rows.values() for rate, kind in row.values() if kind == "NVL"}, path)
    table = [" ".join((*(f"GPU{number}" for number in range(len(rows))), "CPU Affinity"))]
    for number, (gpu, row) in enumerate(rows.items()):
        shown = [cells[rate] if kind == "NVL" else _SHOWN.get(kind, "SYS") for rate, kind in row.values()]
        # The CPU that a GPU is nearest to; NVLinks hide the paths over PCIe.
        near = _CPU.search(found[gpu])
        table.append(" ".join((f"GPU{number}", *shown, near[1] if near else gpu)))
    # A port of generation 3 with 16 lanes has 12 GB/s by NCCL.
    ports = {gpu: Fraction(rate) / 12 for rate, gpu in _PORT.findall(text)}
    known = {f"gpu{number}": ports.get(gpu, Fraction(1)) for number, gpu in enumerate(rows)}
    return "\n".join((*table, "", lane)), "NVS/" in text, known


def _lanes(rates: set[str], path: object) -> tuple[dict[str, str], str]:
    """Bandwidths in GB/s, by the text, as multiples of that of a lane, as NV#; and the lane as `nvlink -s` has it."""
    for sm in _CAPABILITIES:
        lane, data_sheet = (float(link_rates.load(at).nvlink_lane(sm) or 0) / 1e9 for at in ("nccl", "nominal"))
        lanes = {text: round(float(text) / lane) for text in rates}
        if all(0 < n <= _MOST_LANES and abs(n * lane - float(text)) < 0.06 for text, n in lanes.items()):
            return {text: f"NV{n}" for text, n in lanes.items()}, f"Link 0: {data_sheet:g} GB/s"
    raise FileError(str(path), f"NVLinks of {', '.join(sorted(rates))} GB/s are of no known GPU")
