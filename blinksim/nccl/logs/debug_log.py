"""The machine in NCCL's debug log (NCCL_DEBUG=INFO with the subsystem GRAPH), as a table of nvidia-smi.

NCCL prints, for every GPU, hops, bandwidth in GB/s and type of the path to every other device
(ncclTopoPrintPaths in src/graph/paths.cc): ``GPU/0-60 :GPU/0-70 (2/370.8/NVL) …``.
"""

from __future__ import annotations

import re

from blinksim.errors import FileError
from blinksim.textio import link_rates

_PATHS = re.compile(r"NCCL INFO (GPU/\S{1,40}) :(GPU/.*)")
_PATH = re.compile(r"(GPU/\S{1,40}) \([0-9]{1,3}/([0-9]{1,6}\.[0-9]{1,8})/([A-Z0-9]{3})\)")
_CPU = re.compile(r"(CPU/\S{1,40}) \(1/")
# Types of paths that nvidia-smi's table has too; others go through a GPU, or nowhere.
_SHOWN = ("PIX", "PXB", "PHB", "SYS")
# Of GPUs whose NVLinks differ, the usual ones first.
_CAPABILITIES = (90, 100, 80, 60, 86)
_MOST_GPUS, _MOST_LANES = 64, 18


def looks_like(text: str) -> bool:
    """True if a text holds paths between GPUs as NCCL prints them."""
    return _PATHS.search(text) is not None


def as_table(text: str, path: object) -> tuple[str, bool]:
    """What nvidia-smi topo -m would print of the GPUs, with the rate of an NVLink; and if switches join them.

    Raises `FileError` if the GPUs are not those of one node, and for bandwidths that are no NVLinks.
    """
    found = dict(_PATHS.findall(text))
    rows = {gpu: {end: (rate, kind) for end, rate, kind in _PATH.findall(more)} for gpu, more in found.items()}
    if len(rows) > _MOST_GPUS or any({*row} != {*rows} for row in rows.values()):
        raise FileError(str(path), f"holds paths of {len(rows)} GPUs that are not those of one node")
    nvlink = {rate for row in rows.values() for rate, kind in row.values() if kind == "NVL"}
    cells, lane = _lanes({rate: float(rate) for rate in nvlink}, path)
    table = [" ".join((*(f"GPU{number}" for number in range(len(rows))), "CPU Affinity"))]
    for number, (gpu, row) in enumerate(rows.items()):
        shown = [cells[rate] if kind == "NVL" else kind if kind in _SHOWN else "SYS" for rate, kind in row.values()]
        shown[list(row).index(gpu)] = "X"
        # The CPU that a GPU is nearest to; NVLinks hide the paths over PCIe.
        near = _CPU.search(found[gpu])
        table.append(" ".join((f"GPU{number}", *shown, near[1] if near else gpu)))
    return "\n".join((*table, "", lane)), "NVS/" in text


def _lanes(rates: dict[str, float], path: object) -> tuple[dict[str, str], str]:
    """Bandwidths in GB/s, by the text, as multiples of that of a lane, as NV#; and the lane as `nvlink -s` has it."""
    nominal, computed = link_rates.load("nominal"), link_rates.load("nccl")
    for sm in _CAPABILITIES:
        lane, data_sheet = (float(table.nvlink_lane(sm) or 0) / 1e9 for table in (computed, nominal))
        lanes = {text: round(rate / lane) for text, rate in rates.items()}
        if all(0 < n <= _MOST_LANES and abs(n * lane - rates[text]) < 0.06 for text, n in lanes.items()):
            return {text: f"NV{n}" for text, n in lanes.items()}, f"Link 0: {data_sheet:g} GB/s"
    raise FileError(str(path), f"NVLinks of {', '.join(sorted(rates))} GB/s are of no known GPU")
