"""The tables of docs/measurements/nvls.md: what `nvls_times.py` finds, and public tables of several nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from statistics import median

from blinksim.answers.measurements.public import MeasuredCell, public_measurements
from blinksim.units import format_size, format_time
from validate.recipes.nvls_times import BANDS, DOMAINS, MACHINES, Line, every

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "nvls.md"
LEAST = 512 << 10
LARGEST = 8 << 30
"""The size at which one constant for each generation is judged."""
CLUSTERS = ("p5.48xlarge", "bm.gpu.h100.8", "hgx-h100", "a3-megagpu-8g", "gb200-nvl72")
"""Machines with tables of several nodes whose switches add."""
_MARK = re.compile(r"(<!-- (\w+): written by validate/recipes/nvls_times.py --page -->\n).*?(<!-- end -->)", re.DOTALL)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; the first columns are words."""
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f} %"


def _spread(errors: Sequence[float]) -> tuple[str, str]:
    sizes = [abs(error) for error in errors]
    return (f"{median(sizes):.1f} %", f"{max(sizes):.1f} %") if sizes else ("", "")


def large(found: Sequence[Line]) -> str:
    """NVLS at 8 GiB: the rate of a port W = busbw (n + 1) / (2 (n - 1)), measured and predicted."""
    rows = []
    for one in found:
        cell = one.found.cell
        if cell.size == LARGEST and one.ran.startswith("nvls"):
            port = cell.busbw * (cell.gpus + 1) / (2 * (cell.gpus - 1)) / 1e9
            busbw = cell.busbw * cell.time_s / one.time_s / 1e9
            figures = (
                f"{cell.busbw / 1e9:.1f}",
                f"{port:.1f}",
                f"{busbw:.1f}",
                _percent(100 * (busbw * 1e9 / cell.busbw - 1)),
            )
            rows.append((one.machine, cell.set.name, str(cell.gpus), *figures, "yes" if one.fitted else ""))
    head = ("machine", "source", "GPUs", "busbw, GB/s", "W, GB/s", "predicted busbw", "error", "fitted")
    return _table(head, rows, left=2)


def tables(found: Sequence[Line]) -> str:
    """By set, NVLS on or off, and band of sizes."""
    groups: dict[tuple[str, str, str, str], list[Line]] = {}
    for one in found:
        nvls = "on" if one.found.cell.adds_in_switches else "off"
        groups.setdefault((one.machine, one.found.cell.set.name, nvls, one.band), []).append(one)
    rows = []
    for key, alike in groups.items():
        own = [one.found.error_pct for one in alike if one.found.error_pct is not None]
        fitted = str(sum(one.fitted for one in alike))
        rows.append((*key, str(len(alike)), *_spread([one.error for one in alike]), *_spread(own), fitted))
    head = ("machine", "source", "NVLS", "sizes", "times", "median", "worst", "NCCL's own", "worst", "fitted")
    return _table(head, rows, left=4)


def own(found: Sequence[Line]) -> str:
    """NCCL's own model beside constants, where NVLS ran and both say something, by machine and band."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for one in found:
        if one.ran.startswith("nvls") and one.found.error_pct is not None:
            generation = "Hopper" if one.machine in MACHINES[:3] else "Blackwell"
            groups.setdefault((generation, one.band), []).append(one)
    rows = []
    for key, alike in sorted(groups.items(), key=lambda item: (item[0][0] != "Hopper", _band(item[0][1]))):
        off = [one.found.error_pct or 0.0 for one in alike]
        ends = _percent(min(off)), _percent(median(off)), _percent(max(off))
        rows.append((*key, str(len(alike)), *ends, *_spread([one.error for one in alike])))
    head = ("", "sizes", "times", "least", "median", "most", "by constants: median", "worst")
    return _table(head, rows, left=2)


def _band(name: str) -> int:
    return [band for _, band in BANDS].index(name)


def clusters(_: Sequence[Line]) -> str:
    """Public allreduces of several nodes: NCCL's own model, and constants fitted to parts of the tables."""
    rows = []
    for machine in CLUSTERS:
        groups: dict[tuple[str, int, int, str], list[MeasuredCell]] = {}
        for one in public_measurements(machine).cells:
            cell = one.cell
            domain = machine not in DOMAINS and cell.gpus // cell.nodes < 8
            if cell.collective == "allreduce" and cell.nodes > 1 and cell.size >= LEAST and not domain:
                band = next(name for least, name in reversed(BANDS) if cell.size >= least)
                groups.setdefault((cell.set.name, cell.nodes, cell.gpus, band), []).append(one)
        for (name, nodes, gpus, band), alike in groups.items():
            off = [one.error_pct for one in alike if one.error_pct is not None]
            judged = [one for one in alike if not one.fitted and one.expected_error_pct is not None]
            taken = ", ".join(dict.fromkeys(one.choice.split("/")[0] for one in alike if one.choice))
            rates = _spread([one.expected_error_pct or 0.0 for one in judged])
            where = (machine, name, taken, band, str(nodes), str(gpus))
            rows.append((*where, str(len(alike)), *_spread(off), str(len(judged)), *rates))
    head = (
        "machine", "source", "NCCL's model takes", "sizes", "nodes", "GPUs", "times", "NCCL's own: median", "worst",
        "judged", "by constants: median", "worst",
    )  # fmt: skip
    return _table(head, rows, left=4)


def times(found: Sequence[Line]) -> str:
    """Every time."""
    rows = []
    for one in found:
        cell = one.found.cell
        what = one.machine, cell.set.name, cell.dtype, one.ran, str(cell.gpus), format_size(cell.size)
        figures = format_time(cell.time_s), format_time(one.time_s), _percent(one.error), _percent(one.found.error_pct)
        rows.append((*what, *figures, "yes" if one.fitted else ""))
    head = (
        "machine", "source", "type", "ran", "GPUs", "size", "measured", "predicted", "error", "NCCL's own", "fitted",
    )  # fmt: skip
    return _table(head, rows, left=4)


PARTS: dict[str, Callable[[Sequence[Line]], str]] = {
    "large": large, "tables": tables, "own": own, "clusters": clusters, "times": times,
}  # fmt: skip
"""The tables of the page by the names of their marks."""


def text(page: str, parts: Collection[str] = tuple(PARTS)) -> str:
    """The page with its tables made anew, those of `parts`."""
    found = every(LEAST)

    def renewed(mark: re.Match[str]) -> str:
        return f"{mark[1]}\n{PARTS[mark[2]](found)}\n\n{mark[3]}" if mark[2] in parts else mark[0]

    return _MARK.sub(renewed, page)


def write() -> None:
    """Writes the tables into the page."""
    PAGE.write_text(text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
